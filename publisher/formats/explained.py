"""Values as people read them, for `explain`."""

from __future__ import annotations

from datetime import UTC, datetime

from publisher.model.job import Epoch
from publisher.model.time import iso


def number(value: int | None, unit: str = "") -> str:
    return "" if value is None else f"{value}{unit}"


def moment(value: Epoch | int | None) -> str:
    """ISO 8601 with Z; a time outside the calendar as its number of seconds."""
    if value is None:
        return ""
    try:
        return iso(datetime.fromtimestamp(value, UTC))
    except (OverflowError, OSError, ValueError):
        return f"{value} s"
