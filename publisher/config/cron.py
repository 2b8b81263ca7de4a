"""Five fields as in crontab(5), in UTC, and the moments that they name.

The fields are read here, because APScheduler's notation is another one: it counts weekdays from
Monday, and wants day and weekday both. What it gets are plain lists; which moment comes next is its
business.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from apscheduler.triggers.cron import CronTrigger

from publisher.config import schema
from publisher.config.schema import Node, ReadContext, Wrong

_SHAPE: Final = (
    'write five fields: minute hour day month weekday, such as "0 3 * * *" for 03:00 UTC every day'
)
_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART: Final = re.compile(r"(?:\*|(\w{1,9})(?:-(\w{1,9}))?)(?:/(\d{1,4}))?", re.ASCII)
_LEAP_YEAR: Final = 2028


@dataclass(frozen=True, slots=True, kw_only=True)
class _CronField:
    name: str
    values: range
    names: tuple[str, ...] = ()
    first: int = 0  # what the first of `names` stands for


_FIELDS: Final = (
    _CronField(name="minute", values=range(60)),
    _CronField(name="hour", values=range(24)),
    _CronField(name="day", values=range(1, 32)),
    _CronField(name="month", values=range(1, 13), names=_MONTHS, first=1),
    _CronField(name="weekday", values=range(8), names=_WEEKDAYS),  # both 0 and 7 are Sunday
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A timetable in crontab's notation. Raises: ValueError that says what is wrong with it."""

    text: str

    def __post_init__(self) -> None:
        _triggers(self.text)

    def next_after(self, moment: datetime) -> datetime:
        """The first moment it names that is later than `moment`, aware UTC."""
        begin = moment.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        found = [trigger.get_next_fire_time(None, begin) for trigger in _triggers(self.text)]
        moments: list[datetime] = [fire.astimezone(UTC) for fire in found if fire is not None]
        return min(moments)

    def __str__(self) -> str:
        return self.text


def read(node: Node, _reading: ReadContext) -> Cron:
    """The value of a target's key `cron`. Raises: Wrong."""
    text = schema.scalar(node, "five fields as in crontab")
    try:
        return Cron(text)
    except ValueError as error:
        raise Wrong(f"{schema.quoted(text)}: {error}") from error


@lru_cache(maxsize=64)
def _triggers(text: str) -> tuple[Any, ...]:
    """One trigger; two when day and weekday are given, of which one is enough. Spec: crontab(5)."""
    words = text.split()
    if len(words) != len(_FIELDS):
        raise ValueError(f"has {len(words)} fields; {_SHAPE}")
    minutes, hours, days, months, weekdays = map(_read, words, _FIELDS)
    longest = max(monthrange(_LEAP_YEAR, month)[1] for month in months)
    if min(days) > longest:
        what = f"these months end before the {min(days)}th"
        raise ValueError(f"names a day that does not exist: {what}")
    weekdays = sorted({day % 7 for day in weekdays})
    always = {"minute": _listed(minutes), "hour": _listed(hours), "month": _listed(months)}
    by_day = {"day": _listed(days)}
    by_weekday = {"day_of_week": ",".join(_WEEKDAYS[day] for day in weekdays)}
    either = not words[2].startswith("*") and not words[4].startswith("*")
    choices = [by_day, by_weekday] if either else [by_day | by_weekday]
    return tuple(CronTrigger(timezone=UTC, **always, **choice) for choice in choices)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers)


def _read(word: str, field: _CronField) -> list[int]:
    """The numbers that a field names. Raises: ValueError."""
    found: set[int] = set()
    for part in word.split(","):
        shape = _PART.fullmatch(part)
        if shape is None:
            raise ValueError(f"{part!r} is not a valid {field.name}; {_SHAPE}")
        first, last, step = shape.groups()
        if first and step and not last:
            example = f"{first}-{field.values[-1]}/{step}"
            raise ValueError(f"{part!r}: a step needs a range, such as {example}")
        low, high = _bounds(first, last, field)
        if low > high:
            advice = "write two parts with a comma between them"
            raise ValueError(f"{part!r}: the {field.name}s run backwards; {advice}")
        if step and int(step) == 0:
            raise ValueError(f"{part!r}: a step must be at least 1")
        found.update(range(low, high + 1, int(step or 1)))
    return sorted(found)


def _bounds(first: str | None, last: str | None, field: _CronField) -> tuple[int, int]:
    if first is None:
        return field.values[0], field.values[-1]
    low = _number(first, field)
    return low, _number(last, field) if last else low


def _number(word: str, field: _CronField) -> int:
    if word.lower() in field.names:
        return field.names.index(word.lower()) + field.first
    if not word.isdigit() or int(word) not in field.values:
        valid = f"{field.values[0]} to {field.values[-1]}"
        if field.names:
            valid += f", or {field.names[0]} to {field.names[-1]}"
        raise ValueError(f"{word!r} is not a valid {field.name}; it is {valid}")
    return int(word)
