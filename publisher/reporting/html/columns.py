"""The columns of a report's tables: names, definitions, and their values for people and programs.

At the end those that tell what jobs used, which most tables have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import chain
from typing import Any, Final

from publisher.model.rates import amount_text
from publisher.model.text import NO_VO, harmless
from publisher.model.time import Durations
from publisher.reporting.html.values import (
    change_text,
    day_text,
    days_text,
    hours_text,
    minutes_text,
    number_text,
    quoted,
    share_text,
    size_text,
    thousands_text,
)
from publisher.reporting.report import Report
from publisher.reporting.usage import Used

Value = str | int | float | Decimal | None

LONG: Final = 24  # letters: a text of more needs room
UNKNOWN: Final = "unknown"


class CellKind(StrEnum):
    """What a column holds; None is unknown, or not there, and never zero."""

    TEXT = "text"
    DAY = "day"  # days since 1970
    COUNT = "count"
    MINUTES = "minutes"
    SECONDS = "seconds"  # shown in hours
    IN_DAYS = "in days"  # seconds, shown in days
    SCALED = "scaled"  # 1/1000 of benchmark units x seconds; shown in units x hours
    SCALED_DAYS = "scaled days"  # the same, shown in units x days
    SHARE = "share"  # shown in per cent
    CHANGE = "change"  # a share with its sign
    BYTES = "bytes"
    ENERGY = "energy"  # Wh; shown in kWh
    CARBON = "carbon"  # g; shown in kg
    AMOUNT = "amount"  # decimal


def nameless(what: str) -> str:
    """Return what people see in place of an empty name of a `vo`, `user`, `project`, ..."""
    return NO_VO if what == "vo" else "(none)"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """`key` heads it in CSV files, `title` on the page and on terminals; `means` defines it.

    A column that is not `in_files` says in another unit what a column beside it says.
    """

    key: str
    title: str
    kind: CellKind
    means: str
    in_files: bool = True

    def shown(self, value: Value) -> str:
        """For people."""
        match value:
            case None:
                return "–"
            case str():
                return value or nameless(self.key)
        return KINDS[self.kind][1](value)

    def stored(self, value: Value) -> str:
        """For programs: plain numbers in seconds, bytes and fractions; '' for what is not known."""
        match value:
            case None:
                return ""
            case str():
                return harmless(value)
            case Decimal():
                return amount_text(value)
        match self.kind:
            case CellKind.DAY:
                return day_text(int(value))
            case CellKind.SCALED:
                return amount_text(Decimal(int(value)) / 1000)
            case CellKind.SHARE | CellKind.CHANGE:
                return f"{value:.6f}"
            case _:
                return str(value)

    def plain(self, value: Value) -> str | int | float | None:
        """Return a value for JSON: a number as `stored` has it, or a text; None: not known."""
        if value is None or isinstance(value, str) or self.kind is CellKind.DAY:
            return self.stored(value) if value is not None else None
        stored = self.stored(value)
        return int(stored) if stored.lstrip("-").isdecimal() else float(stored)

    @property
    def is_number(self) -> bool:
        return self.kind not in (CellKind.TEXT, CellKind.DAY)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report. `name` is of its CSV file; `notes` are below it; `total` is a row."""

    name: str
    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[tuple[Value, ...]]
    total: tuple[Value, ...] | None = None
    notes: Sequence[str] = ()

    def csv(self) -> str:
        """All rows without the total, which would be counted twice by who adds them up."""
        lines = [[column.key for column in self.columns if column.in_files]]
        for row in self.rows:
            cells = zip(self.columns, row, strict=True)
            lines.append([column.stored(value) for column, value in cells if column.in_files])
        return "".join(",".join(map(quoted, line)) + "\r\n" for line in lines)

    def plain(self) -> dict[str, list[Any]]:
        """Return names of columns and rows for JSON, without the total: values as in CSV files."""
        names = [one.key for one in self.columns if one.in_files]
        return {"columns": names, "rows": list(map(self._plain_row, self.rows))}

    def _plain_row(self, row: Sequence[Value]) -> list[Any]:
        cells = zip(self.columns, row, strict=True)
        return [column.plain(value) for column, value in cells if column.in_files]


def text(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.TEXT, means)


def count(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.COUNT, means)


def share(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.SHARE, means)


def seconds(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.SECONDS, means)


def amount(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.AMOUNT, means)


def minutes(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.MINUTES, f"{means} In minutes, rounded down.")


def all_waits(waits: Iterable[Durations]) -> Durations:
    """Of several queues together."""
    whole = Durations()
    for one in waits:
        whole.update(one)
    return whole


def spread(
    durations: Durations, edges: Sequence[int], names: Sequence[str]
) -> list[tuple[str, int]]:
    """How many took how long; at last, those of which it is not known."""
    counts = durations.within(edges)
    unknown = durations.unknown + durations.negative
    return [*zip(names, counts, strict=True), *([(UNKNOWN, unknown)] if unknown else [])]


# The unit of what is stored, and how it is shown.
KINDS: Final[Mapping[CellKind, tuple[str, Callable[[Any], str]]]] = {
    CellKind.TEXT: ("text", str),
    CellKind.DAY: ("date", lambda value: day_text(int(value))),
    CellKind.COUNT: ("number", "{:,}".format),
    CellKind.MINUTES: ("min", lambda value: minutes_text(int(value))),
    CellKind.SECONDS: ("s", hours_text),
    CellKind.IN_DAYS: ("s", days_text),
    CellKind.SCALED: ("benchmark unit x s", lambda value: hours_text(value / 1000)),
    CellKind.SCALED_DAYS: ("benchmark unit x s", lambda value: days_text(value / 1000)),
    CellKind.SHARE: ("fraction", share_text),
    CellKind.CHANGE: ("fraction", change_text),
    CellKind.BYTES: ("bytes", size_text),
    CellKind.ENERGY: ("Wh", thousands_text),
    CellKind.CARBON: ("g", thousands_text),
    CellKind.AMOUNT: ("decimal", lambda value: number_text(float(value))),
}


_HOUR, _DAY = 60, 24 * 60  # in minutes
WAIT_EDGES_MIN: Final = (1, 5, 15, _HOUR, 4 * _HOUR, 12 * _HOUR, _DAY, 3 * _DAY)
WAIT_NAMES: Final = (
    *("< 1 min", "1-5 min", "5-15 min", "15-60 min"),
    *("1-4 h", "4-12 h", "12-24 h", "1-3 days", "> 3 days"),
)
LAG_EDGES_MIN: Final = (
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY, 31 * _DAY),
)
LAG_NAMES: Final = (
    *("< 1 h", "1-3 h", "3-6 h", "6-12 h", "12-24 h"),
    *("1-2 days", "2-7 days", "7-31 days", "> 31 days"),
)

ON_PAGE: Final = "in seconds (on the page: hours)"
JOBS: Final = count(
    "jobs", "Jobs", "Finished jobs that ended in the period, whatever their status, each once."
)
# Of failed jobs, a row for each exit code.
REASONS: Final = (
    count("exit_code", "Exit code", "Of the job; empty: not known."),
    text("meaning", "Meaning", "What such an exit code says."),
    text("advice", "What to do", "Where to look for the cause."),
    count("jobs", "Jobs", "Jobs whose status is failed."),
    share("jobs_share", "Share", "Those over all failed jobs."),
    seconds("wall_core_s", "Core hours", f"What they used, {ON_PAGE}."),
    text("vo", "Most in VO", "VO with most of them."),
    share("vo_share", "of them", "Part of these jobs that is of the VO."),
    text("queue", "Most in queue", "Queue with most of them."),
    share("queue_share", "of them", "Part of these jobs that is of the queue."),
)
_USED: Final = (
    JOBS,
    count("failed", "Failed", "Those of them whose status is failed."),
    share("failed_share", "Failed share", "Failed jobs over all jobs, from 0 to 1."),
    seconds("wall_s", "Wall hours", f"Raw wall time of the jobs, {ON_PAGE}, cores not counted."),
    seconds(
        "wall_core_s",
        "Core hours",
        f"Raw wall time times the job's number of cores, {ON_PAGE}, not scaled by any benchmark. "
        "A job whose number of cores is unknown counts as one core.",
    ),
    TableColumn(
        "wall_core_days", "Core days", CellKind.IN_DAYS, "Core hours in days.", in_files=False
    ),
    seconds(
        "cpu_s", "CPU hours", f"CPU time, user and kernel, {ON_PAGE}, not scaled by any benchmark."
    ),
    share(
        "cpu_efficiency",
        "CPU efficiency",
        "cpu_s over wall_core_s, of jobs whose CPU time was measured; "
        "empty where there was no such wall time.",
    ),
)
# Only where the batch system did not measure every job's.
_CPU_UNKNOWN: Final = count(
    "cpu_unknown",
    "CPU unknown",
    "Jobs of which nobody measured the CPU time: they are in neither part of the efficiency.",
)
# Only where some job had GPUs.
_GPUS: Final = (
    count("gpu_jobs", "GPU jobs", "Those of the jobs that asked for GPUs."),
    share("gpu_share", "GPU share", "GPU jobs over all jobs, from 0 to 1."),
    seconds("gpu_s", "GPU hours", f"Raw wall time times the job's number of GPUs, {ON_PAGE}."),
)
# Only where records.power is set.
_ENERGY: Final = (
    TableColumn(
        "measured_wh",
        "Measured kWh",
        CellKind.ENERGY,
        "Energy that meters measured, with pue, in Wh (on the page: kWh).",
    ),
    TableColumn(
        "estimated_wh",
        "Estimated kWh",
        CellKind.ENERGY,
        "Energy by the site's power rules of jobs without a meter value, with pue, "
        "in Wh (on the page: kWh).",
    ),
    TableColumn(
        "carbon_g", "CO₂e kg", CellKind.CARBON, "CO2 equivalent of both, in g (on the page: kg)."
    ),
)


def _kinds(report: Report) -> list[str]:
    """The types of benchmark that scaled times are of."""
    return sorted(report.usage.total.scaled)


def used_columns(report: Report) -> list[TableColumn]:
    scaled = [_scaled_columns(kind) for kind in _kinds(report)]
    power = _ENERGY if report.has_energy else ()
    unknown = (_CPU_UNKNOWN,) if report.usage.total.cpu_unknown else ()
    gpus = _GPUS if report.usage.total.gpu_jobs else ()
    return [*_USED, *unknown, *gpus, *power, *chain.from_iterable(scaled)]


def _scaled_columns(kind: str) -> tuple[TableColumn, TableColumn]:
    return (
        TableColumn(
            f"scaled_wall_core_{kind.lower()}_s",
            f"{kind} hours",
            CellKind.SCALED,
            f"Wall time x cores x {kind} value of the job, in {kind} seconds (on the page: hours). "
            "Only jobs with a benchmark of this type; types cannot be added up; "
            "empty where no job has one. The raw time is wall_core_s.",
        ),
        TableColumn(
            f"{kind}_days",
            f"{kind} days",
            CellKind.SCALED_DAYS,
            f"{kind} hours in days.",
            in_files=False,
        ),
    )


def used_values(report: Report, used: Used) -> tuple[Value, ...]:
    gpus = (used.gpu_jobs, used.gpu_share, used.gpu_s) if report.usage.total.gpu_jobs else ()
    return (
        *(used.jobs, used.failed, used.failed_share),
        *(used.wall_s, used.wall_core_s, used.wall_core_s, used.cpu_s, used.efficiency),
        *((used.cpu_unknown,) if report.usage.total.cpu_unknown else ()),
        *gpus,
        *(_energy_values(used) if report.has_energy else ()),
        *(used.scaled.get(kind) for kind in _kinds(report) for _ in _scaled_columns(kind)),
    )


def _energy_values(used: Used) -> tuple[Value, ...]:
    """None where it is known of none of the jobs."""
    carbon = None if used.carbon_unknown == used.jobs else used.carbon_g
    if used.energy_unknown == used.jobs:
        return None, None, carbon
    return used.measured_wh, used.estimated_wh, carbon
