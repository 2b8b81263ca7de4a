"""Times as administrators write them, in UTC: months, days, clock times, and `last-month`.

A time of the command line or the configuration names a `Period`. `--from` takes its start and
`--to` its end, so `--from 2026-03 --to 2026-03` is the whole of March; a clock time is a period of
no length and therefore exact.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from publisher.model.errors import UsageError
from publisher.model.job import Epoch
from publisher.model.text import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A half-open interval [start, end) of end times, epoch seconds UTC. None is unbounded."""

    start: Epoch | None = None
    end: Epoch | None = None

    def __contains__(self, ended_at: int) -> bool:
        if self.start is not None and ended_at < self.start:
            return False
        return self.end is None or ended_at < self.end

    def __str__(self) -> str:
        """Return the first and the last day, or clock times where it does not hold whole days."""
        if self.end is None:
            return "at any time" if self.start is None else f"from {_beginning(self.start)} on"
        if self.start is None:
            is_clock_time = self.end % _DAY_S
            return f"before {iso_epoch(self.end)}" if is_clock_time else f"until {_end(self.end)}"
        if self.start % _DAY_S or self.end % _DAY_S:
            return f"{iso_epoch(self.start)} until before {iso_epoch(self.end)}"
        first, last = _beginning(self.start), _end(self.end)
        return first if first == last else f"{first} to {last}"

    def overlaps(self, other: Window) -> bool:
        """Return whether a second is in both."""
        begins_before = self.start is None or other.end is None or self.start < other.end
        return begins_before and (self.end is None or other.start is None or other.start < self.end)


# Outside of these a date is a slip of the keyboard; the last one leaves room for a month.
_YEARS: Final = range(1970, 3000)
_FORMS: Final = "2026-03, 2026-03-05, 2026-03-05T14:00 (UTC)"
_MONTH: Final = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_QUARTER: Final = re.compile(r"(19[7-9]\d|2\d{3})(?:-?[Qq]([1-4]))?", re.ASCII)
_DAY: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_CLOCK: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})[T ](\d{2}):(\d{2})(?::(\d{2}))?Z?", re.ASCII)


_DAY_S: Final = 86_400
_DECEMBER: Final = 12
_DECEMBER_S: Final = 31 * 86_400


class Period(NamedTuple):
    """A half-open interval of time, aware UTC. A clock time has `start == end`."""

    start: datetime
    end: datetime


class Month(NamedTuple):
    """A calendar month in UTC."""

    year: int
    month: int

    @property
    def number(self) -> int:
        """Return the months since the year 0."""
        return self.year * 12 + self.month - 1

    @property
    def start(self) -> datetime:
        return datetime(self.year, self.month, 1, tzinfo=UTC)

    @property
    def next(self) -> Month:
        return Month(self.year + self.month // 12, self.month % 12 + 1)

    @property
    def previous(self) -> Month:
        return Month(self.year - (self.month == 1), (self.month - 2) % 12 + 1)

    @property
    def window(self) -> Window:
        start = epoch(self.start)
        if self.month == _DECEMBER:  # the calendar's last month has no next one
            return Window(start=start, end=Epoch(start + _DECEMBER_S))
        return Window(start=start, end=epoch(self.next.start))

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}"


class StartKind(StrEnum):
    """Where a new target begins, when no date says it."""

    MONTH = "month"
    NOW = "now"
    ALL = "all"
    DATE = "date"


class StartRule(NamedTuple):
    """Since when ended jobs belong to a new target. `since` is for kind `date`, aware UTC."""

    kind: StartKind = StartKind.MONTH
    since: datetime | None = None

    def begin(self, now: datetime) -> Epoch | None:
        """The earliest end time that counts when the target is new at `now`; None for all."""
        since = self.since
        if self.kind is StartKind.MONTH:
            since = month_of(now).start
        elif self.kind is StartKind.NOW:
            since = now
        return None if since is None else epoch(since)

    def __str__(self) -> str:
        return str(self.kind) if self.since is None else f"{self.since:%Y-%m-%dT%H:%M:%SZ}"


def parse_from(text: str, now: datetime) -> datetime:
    """The start of the period that the text names, aware UTC. `now` decides what `yesterday` is.

    Raises: UsageError when it is not a time.
    """
    return parse_when(text, now).start


def parse_to(text: str, now: datetime) -> datetime:
    """Return the end of the named period, aware UTC, a clock time exactly. Raises: UsageError."""
    return parse_when(text, now).end


def parse_when(text: str, now: datetime) -> Period:
    """Return the period that the text names. Raises: UsageError when it names none."""
    if named := _NAMED.get(text.strip()):
        return named(now.astimezone(UTC))
    return _fixed_period(text, f"{_FORMS}, {', '.join(_NAMED)}")


def parse_month(text: str, now: datetime, forms: str = "2026-03") -> Month:
    """Return a calendar month that has begun, of `2026-03`, `this-month` or `last-month`.

    `forms` are the spellings that a message offers, with the names. Raises: UsageError.
    """
    forms = f"{forms}, this-month or last-month"
    named = _NAMED.get(text.strip())
    period = named(now.astimezone(UTC)) if named else _fixed_period(text, forms)
    month = month_of(period.start)
    if (period.start, period.end) != (month.start, month.next.start):
        raise UsageError(f"{text} is no calendar month; write {forms}")
    if month.start > now:
        raise UsageError(f"{month} has not begun")
    return month


def parse_months(text: str, now: datetime) -> list[Month]:
    """Return the months that have begun of a month, a quarter (`2026-Q3`) or a year (`2026`).

    Raises: UsageError.
    """
    found = _QUARTER.fullmatch(text.strip())
    if found is None:
        return [parse_month(text, now, "2026-03, 2026-Q3, 2026")]
    first, count = 1, 12
    if quarter := found[2]:
        first, count = 3 * int(quarter) - 2, 3
    months = [Month(int(found[1]), month) for month in range(first, first + count)]
    begun = [month for month in months if month.start <= now]
    if not begun:
        raise UsageError(f"{text} has not begun")
    return begun


def fixed_period(text: str) -> Period:
    """Return the period of a month, a day or a clock time. Raises: UsageError for anything else."""
    return _fixed_period(text, _FORMS)


def _fixed_period(text: str, forms: str) -> Period:
    text = text.strip()
    for form, read in ((_MONTH, _month), (_DAY, _day), (_CLOCK, _clock)):
        if found := form.fullmatch(text):
            numbers = [int(number) for number in found.groups() if number]
            if numbers[0] not in _YEARS:
                raise UsageError(f"{text!r}: the year must be from {_YEARS[0]} to {_YEARS[-1]}")
            try:
                return read(*numbers)
            except ValueError as error:
                why = f"{text!r} is not in the calendar ({error}); write {forms}"
                raise UsageError(why) from error
    raise UsageError(f"{text[:60]!r} is not a time; write {forms}")


def window(start: datetime | None, end: datetime | None) -> Window:
    """Return the window [start, end) over end times. Raises: UsageError when it holds no second."""
    if start is not None and end is not None and epoch(start) >= epoch(end):
        raise UsageError(
            f"the window from {iso(start)} to {iso(end)} is empty: --from must be before --to "
            "(a month or a day in --to ends at its end)"
        )
    first = None if start is None else epoch(start)
    last = None if end is None else epoch(end)
    return Window(start=first, end=last)


def months(wanted: Window) -> Iterator[Month]:
    """Yield the months that the window touches, in order. Raises: ValueError for an open window."""
    if wanted.start is None or wanted.end is None:
        raise ValueError(f"the months of {wanted} cannot be listed: it has no start or no end")
    month = month_of(datetime.fromtimestamp(wanted.start, UTC))
    while epoch(month.start) < wanted.end:
        yield month
        month = month.next


def whole_months(wanted: Window) -> Window:
    """Return the window rounded out to whole months; a side without bound stays so."""
    start, end = wanted.start, wanted.end
    if start is not None:
        start = epoch(month_of(datetime.fromtimestamp(start, UTC)).start)
    if end is not None:
        last = month_of(datetime.fromtimestamp(end, UTC))
        if epoch(last.start) != end:
            end = epoch(last.next.start)
    return Window(start=start, end=end)


def month_of(moment: datetime) -> Month:
    """Return the calendar month, in UTC, of an aware time."""
    there = moment.astimezone(UTC)
    return Month(there.year, there.month)


def epoch(moment: datetime) -> Epoch:
    """Return the whole seconds since 1970 of an aware time."""
    return Epoch(int(moment.timestamp()))


def moment(seconds: int | None) -> datetime | None:
    """Return the aware time that is so many seconds after 1970; None for None."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def length_text(seconds: int) -> str:
    """Return a length of time in the largest unit it is a multiple of: day, 6 hours, 90 seconds."""
    for unit_s, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds and seconds % unit_s == 0:
            return plural(seconds // unit_s, unit).removeprefix("1 ")
    return plural(seconds, "second")


def _beginning(start: Epoch) -> str:
    return iso_epoch(start) if start % _DAY_S else iso_epoch(start)[:10]


def _end(end: Epoch) -> str:
    """Return the last day before it, or the clock time."""
    return f"before {iso_epoch(end)}" if end % _DAY_S else iso_epoch(Epoch(end - 1))[:10]


def iso(moment: datetime) -> str:
    """Return a time as `2026-03-05T14:00:00Z`."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def iso_epoch(moment: Epoch) -> str:
    """Return a time as `2026-03-05T14:00:00Z`, of whole seconds since 1970."""
    # Hot path: strftime takes eight times as long
    return f"{datetime.fromtimestamp(moment, UTC).isoformat()[:19]}Z"


def _month(year: int, month: int) -> Period:
    named = Month(year, month)
    return Period(start=named.start, end=named.next.start)


def _day(year: int, month: int, day: int) -> Period:
    start = datetime(year, month, day, tzinfo=UTC)
    return Period(start=start, end=start + timedelta(days=1))


def _clock(year: int, month: int, day: int, hour: int, minute: int, second: int = 0) -> Period:
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    return Period(start=moment, end=moment)


_NAMED: Final[Mapping[str, Callable[[datetime], Period]]] = {
    "today": lambda now: fixed_period(f"{now:%Y-%m-%d}"),
    "yesterday": lambda now: fixed_period(f"{now - timedelta(days=1):%Y-%m-%d}"),
    "this-month": lambda now: fixed_period(str(month_of(now))),
    "last-month": lambda now: fixed_period(str(month_of(now).previous)),
}


# By whole minutes, those of more than 100 days together: few enough, whatever clocks did.
MINUTE_S: Final = 60
LONGEST_MIN: Final = 144_000


@dataclass(slots=True)
class Durations:
    """How long something took, in minutes. `unknown` and `negative` (clocks) are counted apart."""

    minutes: Counter[int] = field(default_factory=Counter)
    unknown: int = 0
    negative: int = 0

    def add(self, seconds: int, times: int) -> None:
        """Count a duration that occurred so many times."""
        minutes = -1 if seconds < 0 else min(seconds // MINUTE_S, LONGEST_MIN)
        self.add_minutes(minutes, times)

    def add_minutes(self, minutes: int | None, times: int) -> None:
        """Count a duration of at most `LONGEST_MIN`; None is unknown."""
        if minutes is None:
            self.unknown += times
        elif minutes < 0:
            self.negative += times
        else:
            self.minutes[minutes] += times

    def update(self, other: Durations) -> None:
        """Add others."""
        self.minutes.update(other.minutes)
        self.unknown += other.unknown
        self.negative += other.negative

    @property
    def known(self) -> int:
        return self.minutes.total()

    def quantile_min(self, share: float) -> int | None:
        """The least number of minutes that this share of the known did not exceed; else None."""
        wanted, passed = share * self.known, 0
        for minute in sorted(self.minutes):
            passed += self.minutes[minute]
            if passed >= wanted:
                return minute
        return None

    def within(self, edges_min: Sequence[int]) -> list[int]:
        """How many took less than each edge but not the one before; at last, those beyond all."""
        counts = [0] * (len(edges_min) + 1)
        for minute, count in self.minutes.items():
            counts[bisect_right(edges_min, minute)] += count
        return counts
