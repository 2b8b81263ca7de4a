"""Statistics as JSON objects, tables and lines. The JSON is a contract: `publisher(1)` documents it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from publisher.model.job import Epoch
from publisher.model.local_stats import JobFilter, Tally, Totals
from publisher.results import when

Json = Mapping[str, Any]

COLUMNS: Final = (
    *("jobs", "in_progress", "wall_s", "cpu_s", "cpu_user_s", "cpu_kernel_s", "stage_in_bytes", "stage_out_bytes"),
    *("first_submitted", "last_ended"),
)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def stats_json(wanted: JobFilter, tally: Tally) -> Json:
    return {
        "end_from": when(wanted.ended.start),
        "end_till": when(wanted.ended.end),
        "start_from": when(wanted.submitted.start),
        **_totals_json(tally.totals),
        "unreadable": tally.totals.unreadable,
        "states": [{"state": state, "jobs": jobs} for state, jobs in sorted(tally.states.items())],
        "vos": sorted(tally.vos),
        "users": sorted(tally.users),
        "groups": [{"name": name, **_totals_json(totals)} for name, totals in sorted(tally.groups.items())],
    }


def _totals_json(totals: Totals) -> Json:
    return {
        "jobs": totals.jobs,
        "in_progress": totals.in_progress,
        "wall_s": totals.wall_s,
        "cpu_s": totals.cpu_s,
        "cpu_user_s": totals.cpu_user_s,
        "cpu_kernel_s": totals.cpu_kernel_s,
        "stage_in_bytes": totals.stage_in_bytes,
        "stage_out_bytes": totals.stage_out_bytes,
        "first_submitted": when(totals.first_submitted_at),
        "last_ended": when(totals.last_ended_at),
    }


def arc_json(tally: Tally) -> Json:
    """The object of `arcctl accounting stats -o json`: seconds, bytes, and times in seconds since 1970."""
    totals = tally.totals
    return {
        "count": totals.jobs,
        "walltime": totals.wall_s,
        "cpuusertime": totals.cpu_user_s,
        "cpukerneltime": totals.cpu_kernel_s,
        "cputime": totals.cpu_s,
        "stagein": totals.stage_in_bytes,
        "stageout": totals.stage_out_bytes,
        "rangestart": totals.first_submitted_at,
        "rangeend": totals.last_ended_at,
        "users": sorted(tally.users),
        "wlcgvos": sorted(tally.vos),
    }


def job_ids_json(job_ids: Iterable[str]) -> Mapping[str, Iterable[str]]:
    return {"job_ids": job_ids}


def brief_lines(tally: Tally) -> list[str]:
    """Totals for people, each with its unit."""
    totals = tally.totals
    states = ", ".join(f"{state or '(none)'} {jobs:,}" for state, jobs in sorted(tally.states.items()))
    vos = ", ".join(sorted(tally.vos))
    told = [
        ("jobs", f"{totals.jobs:,}" + (f": {states}" if states else "")),
        ("wall time", duration(totals.wall_s)),
        (
            "CPU time",
            f"{duration(totals.cpu_s)}: user {totals.cpu_user_s:,} s, kernel {totals.cpu_kernel_s:,} s",
        ),
        ("staged in", size(totals.stage_in_bytes)),
        ("staged out", size(totals.stage_out_bytes)),
        ("first submitted", when(totals.first_submitted_at) or "-"),
        ("last ended", when(totals.last_ended_at) or "-"),
        ("VOs", f"{len(tally.vos):,}" + (f": {vos}" if vos else "")),
        ("users", f"{len(tally.users):,}"),
    ]
    lines = [f"{name:<17}{text}" for name, text in told]
    if totals.in_progress:
        lines.append(f"{totals.in_progress:,} of the jobs are in progress: they have no usage yet")
    if totals.unreadable:
        lines.append(
            f"{totals.unreadable:,} of the jobs have a usage that is no number, or negative; it counts as 0 here"
        )
    return lines


def table_rows(groups: Mapping[str, Totals]) -> list[tuple[str, ...]]:
    """Rows of a table whose first column names the group."""
    return [(name, *_cells(totals)) for name, totals in sorted(groups.items())]


def totals_row(totals: Totals) -> tuple[str, ...]:
    return _cells(totals)


def _cells(totals: Totals) -> tuple[str, ...]:
    """As in `COLUMNS`, plain numbers; empty for a time that there is none of."""
    return tuple("" if value is None else str(value) for value in _totals_json(totals).values())


def duration(seconds: int | None) -> str:
    """`93,784 s (1 day, 2:03:04)`."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds} s"
    try:
        return f"{seconds:,} s ({timedelta(seconds=seconds)})"
    except OverflowError:
        return f"{seconds:,} s"


def size(count: int | None, unit: str = "B") -> str:
    """`2,097,152 KiB (2.0 GiB)`: a number of the unit, and rounded where it is large."""
    if count is None:
        return "unknown"
    scaled, at = float(count), _UNITS.index(unit)
    while scaled >= 1024 and at < len(_UNITS) - 1:
        scaled, at = scaled / 1024, at + 1
    exact = f"{count:,} {'bytes' if unit == 'B' else unit}"
    return exact if _UNITS[at] == unit else f"{exact} ({scaled:,.1f} {_UNITS[at]})"


def moment(value: Epoch | None) -> str:
    return when(value) or "unknown"
