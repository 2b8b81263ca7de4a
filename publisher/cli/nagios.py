"""Status as one line for Nagios and similar monitoring systems; publisher(1) documents it.

Spec: Monitoring Plugins Development Guidelines, sections 2 and 3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Final, NamedTuple

from publisher.model.errors import UsageError
from publisher.model.rates import UsedAllocation, amount_text
from publisher.model.text import plural
from publisher.publishing.databases.batch_systems import SourceStatus
from publisher.publishing.status import TargetStatus

OK, WARNING, CRITICAL, UNKNOWN = range(4)
_WORDS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_GRAVEST_FIRST: Final = (CRITICAL, WARNING, UNKNOWN, OK)
# Of the line, before the performance data; Nagios' own limits are at 1 kB and 4 kB
_MOST_TEXT: Final = 600
_DURATION: Final = re.compile(r"([0-9]{1,9})([smhdw]?)", re.ASCII)
_NOT_IN_LABELS: Final = str.maketrans("'=| ", "____")
_COUNT: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_UNIT_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800}
_TOO_LONG_S: Final = 3 * 86400
_NOTHING: Final[Mapping[str, str]] = {}

# What is examined, by the name that thresholds use, and what it is for people.
_TIMES: Final = {"age": "last success", "oldest": "oldest unsent job ended"}
_COUNTS: Final = {
    "pending": ("job pending", "jobs pending"),
    "late": ("job late", "jobs late"),
    "in_doubt": ("record in doubt", "records in doubt"),
    "quarantined": ("job set aside", "jobs set aside"),
    "held": ("month held back", "months held back"),
}
_ALLOCATION: Final = "allocation"  # per cent
_ALLOCATION_LIMITS: Final = (90, 100)
# `age` has a default for each target, by its timetable.
_WARN_ABOVE: Final[Mapping[str, int]] = {"quarantined": 0, "held": 0}


class Thresholds(NamedTuple):
    """Thresholds by name; seconds for times. Values above are reported, equal ones are not."""

    warning: Mapping[str, int]
    critical: Mapping[str, int]


class _CheckedValue(NamedTuple):
    """One value of a target; None cannot be determined. Unless `exact`, it is an upper bound."""

    target: str
    name: str
    value: int | None
    warning: int | None
    critical: int | None
    exact: bool

    @property
    def state(self) -> int:
        if self.value is None:
            return OK
        if self.critical is not None and self.value > self.critical:
            return CRITICAL
        return WARNING if self.warning is not None and self.value > self.warning else OK

    @property
    def text(self) -> str:
        found = self.value or 0
        if self.name in _TIMES:
            return f"{self.target}: {_TIMES[self.name]} {spoken(found)} ago"
        bound = "" if self.exact else "at most "
        return f"{self.target}: {bound}{plural(found, *_COUNTS[self.name])}"

    @property
    def performance(self) -> str:
        label = f"{self.target}_{self.name}"
        warning = "" if self.warning is None else self.warning
        critical = "" if self.critical is None else self.critical
        if self.value is None:
            return performance(label, "U", "", warning, critical)  # unknown, in Nagios' word
        unit = "s" if self.name in _TIMES else ""
        return performance(label, self.value, unit, warning, critical)


def thresholds(warning: Sequence[str], critical: Sequence[str]) -> Thresholds:
    """Read words such as age=36h and late=100. Raises: UsageError."""
    warnings, criticals = (dict(map(_threshold, words)) for words in (warning, critical))
    return Thresholds(warning=warnings, critical=criticals)


def _threshold(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if name in _TIMES and (found := _DURATION.fullmatch(value)):
        return name, int(found[1]) * _UNIT_S[found[2]]
    if name in (*_COUNTS, _ALLOCATION) and _COUNT.fullmatch(value):
        return name, int(value)
    times = f"a time (36h, 3d) for {' and '.join(_TIMES)}"
    numbers = f"a number for {', '.join(_COUNTS)} and {_ALLOCATION}"
    raise UsageError(f"{text!r} is not a threshold; write NAME=VALUE, {times}, {numbers}")


def status_nagios(
    found: Sequence[TargetStatus],
    trouble: str,
    now: datetime,
    limits: Thresholds,
    sources: Sequence[SourceStatus] = (),
    allocations: Sequence[UsedAllocation] = (),
    uncharged: Sequence[str] = (),
    unable: Mapping[str, str] = _NOTHING,
) -> tuple[str, int]:
    """Return the plug-in's line and its exit status.

    `trouble` kept the pending jobs from being counted. `uncharged` are projects of whose charges
    nothing is known, `unable` why targets cannot begin their first round.
    """
    checked = [one for status in found for one in _checked_values(status, now, limits)]
    parts = [_allocation(one, limits) for one in sorted(allocations, key=attrgetter("share"))]
    messages = [*_messages(checked, found, trouble, unable), *_of_sources(sources)]
    messages += _of_charges(parts, uncharged)
    messages.sort(key=lambda message: _GRAVEST_FIRST.index(message[0]))
    messages = messages or list(_when_well(checked))
    state = messages[0][0] if messages else OK
    texts = [text for _, text in messages]
    # Each label may come once: of several allocations, the fullest.
    of_allocations = {performed.partition("=")[0]: performed for *_, performed in parts}
    data = [*(one.performance for one in checked), *of_allocations.values()]
    return nagios_line(state, "; ".join(texts), data), state


def _when_well(checked: Sequence[_CheckedValue]) -> Iterator[tuple[int, str]]:
    """Yield what the line shows when there is nothing to report."""
    for one in checked:
        if one.name in ("age", "pending") and one.value is not None:
            yield OK, one.text


def _allocation(one: UsedAllocation, limits: Thresholds) -> tuple[int, str, str]:
    """Return state, text and performance data."""
    exactly = 100 * one.used / one.granted
    used = math.floor(exactly)
    warning = limits.warning.get(_ALLOCATION, _ALLOCATION_LIMITS[0])
    critical = limits.critical.get(_ALLOCATION, _ALLOCATION_LIMITS[1])
    state = OK
    if exactly > critical:
        state = CRITICAL
    elif exactly > warning:
        state = WARNING
    granted = f"{amount_text(one.granted)} {one.unit}"
    text = f"{one.project}: {used} % of the allocation of {granted} used"
    label = f"{one.project}_{one.unit}".translate(_NOT_IN_LABELS)
    return state, text, performance(label, used, "%", warning, critical)


def _of_charges(
    parts: Sequence[tuple[int, str, str]], uncharged: Sequence[str]
) -> Iterator[tuple[int, str]]:
    yield from ((state, text) for state, text, _ in parts if state is not OK)
    for project in uncharged:
        yield WARNING, f"{project}: its charges were never computed; run `publisher charge`"


def _of_sources(sources: Sequence[SourceStatus]) -> Iterator[tuple[int, str]]:
    for one in sources:
        warnings = [line for line in (one.silence, one.waiting) if line]
        if one.alarm:
            yield CRITICAL, one.alarm
        elif warnings:
            yield from ((WARNING, line) for line in warnings)
        elif one.last is not None and one.last.ended is None:
            yield WARNING, f"source {one.name}: has not been read yet"


def _messages(
    checked: Sequence[_CheckedValue],
    found: Sequence[TargetStatus],
    trouble: str,
    unable: Mapping[str, str],
) -> Iterator[tuple[int, str]]:
    """Yield values beyond their thresholds, and what no threshold is about."""
    yield from ((one.state, one.text) for one in checked if one.state is not OK)
    for status in found:
        if not status.began and status.target in unable:
            yield CRITICAL, f"{status.target}: has never run: {unable[status.target]}"
        elif not status.began:
            yield WARNING, f"{status.target}: has not run yet"
        elif not status.last_success:
            yield CRITICAL, f"{status.target}: has never succeeded"
        if status.question:
            yield CRITICAL, status.question
        for missing in status.missing:
            yield CRITICAL, f"{status.target}: {missing.reason}"
    if trouble:
        yield UNKNOWN, trouble


def _checked_values(
    status: TargetStatus, now: datetime, limits: Thresholds
) -> Iterator[_CheckedValue]:
    # A time that there is none of is not the same as one that cannot be determined.
    values: dict[str, int | None] = {}
    if status.last_success is not None:
        values["age"] = max(0, round((now - status.last_success).total_seconds()))
    if status.oldest_unsent is not None:
        values["oldest"] = max(0, round(now.timestamp()) - status.oldest_unsent)
    values |= {name: getattr(status, name) for name in _COUNTS}
    warning, critical = dict(_WARN_ABOVE), {}
    if status.last_success is not None and status.overdue is not None:
        patience = round((status.overdue - status.last_success).total_seconds())
        warning["age"], critical["age"] = patience, max(patience, _TOO_LONG_S)
    warning |= limits.warning
    critical |= limits.critical
    for name, value in values.items():
        yield _CheckedValue(
            target=status.target,
            name=name,
            value=value,
            warning=warning.get(name),
            critical=critical.get(name),
            exact=status.exact or name not in ("pending", "late"),
        )


def spoken(seconds: int) -> str:
    """Return a length of time for people."""
    for unit_s, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds} seconds"


def nagios_line(status: int, text: str, data: Sequence[str] = ()) -> str:
    """Return the line; Nagios takes its first `|` for the end of the text."""
    line = " ".join(text.replace("|", "/").split())
    short = line if len(line) <= _MOST_TEXT else f"{line[: _MOST_TEXT - 3]}..."
    return f"PUBLISHER {_WORDS[status]} - {short}{' | ' if data else ''}{' '.join(data)}"


def performance(label: str, value: object, unit: str, warn: object, critical: object) -> str:
    return f"'{label}'={value}{unit};{warn};{critical}".rstrip(";")
