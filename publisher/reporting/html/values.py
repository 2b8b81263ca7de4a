"""Values of a report as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")


def day_text(day: int) -> str:
    """`2026-03-05` of a number of days since 1970."""
    try:
        return f"{_EPOCH + timedelta(days=day):%Y-%m-%d}"
    except OverflowError:
        return f"day {day}"


def size_text(count: float) -> str:
    """`1.2 MB`, by thousands."""
    at = 0
    while count >= 1000 and at < len(_UNITS) - 1:
        count, at = count / 1000, at + 1
    return f"{count:,.0f} {_UNITS[at]}" if at == 0 else f"{count:,.1f} {_UNITS[at]}"


def minutes_text(minutes: int | None) -> str:
    """`3 h 05 min`, rounded down to the minute."""
    if minutes is None:
        return "unknown"
    if minutes < 1:
        return "under 1 min"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // 1440} days {minutes % 1440 // 60} h"


def hours_text(seconds: float) -> str:
    return _rounded(seconds / 3600)


def thousands_text(count: Decimal) -> str:
    """`1.2` kWh of 1,234 Wh."""
    return _rounded(float(count) / 1000)


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 or number == 0 else f"{number:,.1f}" if number >= 0.1 else f"{number:.3f}"


def share_text(share: float) -> str:
    return f"{share * 100:.1f} %"


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(letter in text for letter in ',";\r\n') else text
