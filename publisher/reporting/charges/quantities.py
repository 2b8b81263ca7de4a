"""What the names in a formula mean, and how each value is read from a job.

Names are those of `scontrol show job` and of Slurm's TRES, as in the formulas of HEAppE. Spec: other-sources facts, 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from publisher.model.job import JobRecord
from publisher.reporting.charges import formula, heappe


class TimeUnit(StrEnum):
    """What a formula counts time in."""

    SECONDS = "seconds"
    MINUTES = "minutes"
    HOURS = "hours"
    DAYS = "days"


UNIT_S: Final[Mapping[TimeUnit, int]] = {
    TimeUnit.SECONDS: 1,
    TimeUnit.MINUTES: 60,
    TimeUnit.HOURS: 3600,
    TimeUnit.DAYS: 86_400,
}


KIB_PER_GIB: Final = 1024 * 1024


class QuantityKind(StrEnum):
    """What kind of quantity it is; how the two arithmetics read it depends on that."""

    COUNT = "count"
    DURATION = "duration"  # in the time unit
    MOMENT = "moment"  # since 1970, in the time unit, so that EndTime - StartTime is a duration
    SECONDS = "seconds"  # whatever the time unit is
    MEMORY = "memory"  # GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A quantity: its kind, where it is in a job record ('' where no source tells it), and how it is got there.

    `take` yields None where it is not known, else a count, seconds, or (of memory) KiB.
    """

    measure: QuantityKind
    field: str
    take: Callable[[JobRecord], int | None]


def _reported(name: str) -> Named:
    """One that only the source of some batch systems tells; others leave it unknown."""
    return Named(
        measure=_REPORTED_ONLY[name], field=f"quantities: {name}", take=lambda job: dict(job.quantities).get(name)
    )


_REPORTED_ONLY: Final[Mapping[str, QuantityKind]] = {
    "NumTasks": QuantityKind.COUNT,
    "TimeLimit": QuantityKind.DURATION,
    "EligibleTime": QuantityKind.MOMENT,
    "AccrueTime": QuantityKind.MOMENT,
    "SecsPreSuspend": QuantityKind.SECONDS,
    "mem": QuantityKind.MEMORY,
    "billing": QuantityKind.COUNT,
}

QUANTITIES: Final[Mapping[str, Named]] = {
    "NumNodes": Named(measure=QuantityKind.COUNT, field="node_count", take=lambda job: job.node_count),
    "NumCPUs": Named(measure=QuantityKind.COUNT, field="cpu_count", take=lambda job: job.cpu_count),
    "NumTasks": _reported("NumTasks"),
    "RunTime": Named(measure=QuantityKind.DURATION, field="wall_s", take=lambda job: job.wall_s),
    "TimeLimit": _reported("TimeLimit"),
    "SubmitTime": Named(measure=QuantityKind.MOMENT, field="submitted_at", take=lambda job: job.submitted_at or None),
    "StartTime": Named(measure=QuantityKind.MOMENT, field="started_at", take=lambda job: job.started_at),
    "EndTime": Named(measure=QuantityKind.MOMENT, field="ended_at", take=lambda job: job.ended_at),
    "EligibleTime": _reported("EligibleTime"),
    "AccrueTime": _reported("AccrueTime"),
    "SecsPreSuspend": _reported("SecsPreSuspend"),
    "cpu": Named(measure=QuantityKind.COUNT, field="cpu_count", take=lambda job: job.cpu_count),
    "mem": _reported("mem"),
    "node": Named(measure=QuantityKind.COUNT, field="node_count", take=lambda job: job.node_count),
    "billing": _reported("billing"),
    "gres_gpu": Named(measure=QuantityKind.COUNT, field="gpu_count", take=lambda job: job.gpu_count),
}


def decimal_value(measure: QuantityKind, value: int, unit_s: int) -> Decimal:
    """As formulas of ours have it."""
    match measure:
        case QuantityKind.DURATION | QuantityKind.MOMENT:
            return formula.quotient(value, unit_s)
        case QuantityKind.MEMORY:
            return formula.quotient(value, KIB_PER_GIB)
        case _:
            return Decimal(value)


def heappe_value(measure: QuantityKind, value: int, unit_s: int) -> heappe.Value:
    """As formulas of HEAppE have it: times of day and sizes with a letter are not numbers there, and become 0."""
    match measure:
        case QuantityKind.DURATION:
            return heappe.duration(value, unit_s)
        case QuantityKind.MOMENT | QuantityKind.MEMORY:
            return 0
        case _:
            return heappe.literal(value)
