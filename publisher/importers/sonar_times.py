"""Times as Sonar writes them: local, with an offset that was valid when they were collected.

So one moment is told with two offsets when the clocks change between two collections; what stands on the clock stays the same.
Spec: other-sources facts, section 2.2.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR, _LAST_YEAR = 1971, 2999
_MOST_TEXT: Final = 64


class BadTime(ValueError):
    """A text that is no time."""


def read_time(text: object) -> tuple[str, int | None]:
    """What the clock showed, as `2026-03-01T12:00:00`, and the offset from UTC in seconds that was claimed. Raises: BadTime."""
    if not isinstance(text, str) or len(text) > _MOST_TEXT:
        raise BadTime("is no time")
    return _read(text)


@lru_cache(maxsize=4096)  # a job and its steps have most of their times in common
def _read(text: str) -> tuple[str, int | None]:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadTime(f"{text!r} is no time") from None
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise BadTime(f"{text!r} is no time of this age")
    offset = moment.utcoffset()
    clock = moment.replace(tzinfo=None, microsecond=0).isoformat()
    return clock, None if offset is None else int(offset.total_seconds())


def read_moment(text: object) -> int:
    """Epoch seconds of a time that was taken when it was written, so that its offset is right. Raises: BadTime."""
    clock, offset = read_time(text)
    if offset is None:
        raise BadTime(f"{clock} has no offset from UTC")
    return Clock(None).moments(clock, offset)[0]


class Clock:
    """Local texts to epoch seconds: by the zone of the cluster, or by the claimed offsets where that is not known."""

    def __init__(self, zone: ZoneInfo | None) -> None:
        self._zone = zone

    def moments(self, clock: str, offset: int | None) -> tuple[int, ...]:
        """Epoch seconds, the likelier first: an hour that comes twice in the year has two."""
        local = datetime.fromisoformat(clock)
        if self._zone is None:
            return (_seconds(local.replace(tzinfo=UTC)) - (offset or 0),)
        folds = [local.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1)]
        claimed = timedelta(seconds=offset) if offset is not None else None
        folds.sort(key=lambda moment: moment.utcoffset() != claimed)
        return tuple(dict.fromkeys(_seconds(moment) for moment in folds))


def _seconds(moment: datetime) -> int:
    return int((moment.astimezone(UTC) - _EPOCH).total_seconds())
