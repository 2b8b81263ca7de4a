"""The energy of a job, and its CO2: as a meter has it, else estimated by the site's rules."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from publisher.model.job import Epoch, JobRecord
from publisher.model.rates import JobEnergy
from publisher.reporting.charges.rules import JobRule, Rules, metered, start_of

GPU_METER: Final = "gpu_energy"  # joules of a job's GPUs alone
_HOUR_S: Final = 3600
_STEP: Final = Decimal("0.000001")
_ONE: Final = Decimal(1)
_NONE: Final = Decimal(0)


class CarbonPeriod(NamedTuple):
    """Grams of CO2 equivalent a kWh from one moment until another."""

    start: Epoch
    end: Epoch
    grams: Decimal


@dataclass(frozen=True, slots=True)
class CarbonTable:
    """Periods in order, none of which overlap."""

    periods: Sequence[CarbonPeriod]

    def mean(self, start: int, end: int) -> Decimal | None:
        """Over a time; None where the table does not cover it."""
        start = min(start, end - 1)
        first = max(bisect_right(self.periods, start, key=attrgetter("start")) - 1, 0)
        total, covered = Decimal(0), start
        for at in range(first, len(self.periods)):
            period = self.periods[at]
            if covered >= end or not period.start <= covered < period.end:
                break
            until = min(end, period.end)
            total += period.grams * (until - covered)
            covered = until
        return total / (end - start) if covered >= end else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRule(JobRule):
    """Watts a core and a GPU, what cooling and the like add, and CO2; None is not known."""

    place: str = field(default="records.power", repr=False, compare=False)
    watts_per_core: Decimal | None = None
    watts_per_gpu: Decimal | None = None
    pue: Decimal = _ONE
    grams_per_kwh: Decimal | None = None
    carbon_file: Path | None = None
    carbon: CarbonTable | None = field(default=None, repr=False, compare=False)

    def watts(self, job: JobRecord, gpus: int) -> Decimal | None:
        """None where the rule has none, or where the job's cores are not known."""
        if self.watts_per_core is None and self.watts_per_gpu is None:
            return None
        if self.watts_per_core and job.cpu_count is None:
            return None
        cores = Decimal(job.cpu_count or 0)
        return (self.watts_per_core or 0) * cores + (self.watts_per_gpu or 0) * gpus

    def wh(self, joules: Decimal) -> Decimal:
        """With what cooling and the like take on top."""
        return (joules / _HOUR_S * self.pue).quantize(_STEP, ROUND_HALF_UP)

    def grams(self, wh: Decimal, job: JobRecord) -> Decimal | None:
        per_kwh = self.grams_per_kwh
        if self.carbon is not None:
            per_kwh = self.carbon.mean(start_of(job), job.ended_at)
        return None if per_kwh is None else (wh * per_kwh / 1000).quantize(_STEP, ROUND_HALF_UP)


_NO_RULE: Final = PowerRule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Power(Rules[PowerRule]):
    """All rules of a site."""

    def energy(self, job: JobRecord) -> JobEnergy:
        """Where GPUs alone were metered, cores are estimated. GPUs that are not known are none."""
        rule = self.rule_for(job) or _NO_RULE
        joules, rejected = metered(job)
        gpu_joules = None if rejected else dict(job.quantities).get(GPU_METER)
        gpus = 0 if gpu_joules is not None else job.gpu_count or 0
        watts = rule.watts(job, gpus)
        if joules is not None:
            measured, estimated = joules, Decimal(0)
        elif gpu_joules is not None or watts is not None:
            measured, estimated = gpu_joules or 0, (watts or 0) * Decimal(job.wall_s)
        else:
            return JobEnergy(wh=None, measured_wh=_NONE, grams=None, meter_rejected=rejected)
        measured_wh = rule.wh(Decimal(measured))
        wh = measured_wh + rule.wh(estimated)
        return JobEnergy(wh, measured_wh, rule.grams(wh, job), meter_rejected=rejected)
