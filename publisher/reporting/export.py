"""Finished jobs for other systems, one by one: the accounting data of each, and what the site
publishes about it.

Raw and derived values have columns of their own, named as in the report's CSV files: `wall_s` is
time on the clock, `wall_core_s` times processors, `scaled_wall_core_s` times the benchmark too.
Unknown is None, never zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import Final, Literal

from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.message import OpenRow
from publisher.model.policy import PublishedJob, RecordPolicy
from publisher.model.rates import EnergyRules, JobEnergy
from publisher.model.time import iso_epoch
from publisher.pipeline.site import Site
from publisher.reporting.charges.power import METER, Power
from publisher.sources.statistics import Accounts, JobFilter

Value = str | int | Decimal | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJob:
    """A finished job, and what the site says about it; None where it cannot be published, for the reason in `unfit`."""

    job: JobRecord
    published: PublishedJob | None
    unfit: str
    energy: JobEnergy


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, the type of its values, their unit ('' for none), what they mean, and how to get one."""

    name: str
    kind: Literal["text", "integer", "decimal", "time", "texts"]
    unit: str
    meaning: str
    value: Callable[[ExportedJob], Value]


def _raw(name: str, meaning: str) -> Column:
    """A text of the job record under its own name; '' is not there."""
    return Column(name, "text", "", meaning, lambda one: getattr(one.job, name) or None)


def _count(name: str, unit: str, meaning: str) -> Column:
    """A number of the job record, which may be zero."""
    return Column(name, "integer", unit, meaning, attrgetter(f"job.{name}"))


def _published(
    name: str, meaning: str, value: Callable[[PublishedJob], Value], kind: Literal["text", "texts"] = "text"
) -> Column:
    return Column(name, kind, "", meaning, lambda one: None if one.published is None else value(one.published) or None)


def _time(name: str, meaning: str) -> Column:
    def text(one: ExportedJob) -> Value:
        moment = getattr(one.job, name)
        try:
            return None if moment is None else iso_epoch(moment)
        except (OverflowError, OSError, ValueError):  # in no calendar
            return None

    return Column(name, "time", "UTC", meaning, text)


def _wait(one: ExportedJob) -> int | None:
    started = one.job.started_at
    return None if started is None else started - one.job.submitted_at


def _wall_core(one: ExportedJob) -> int:
    return one.job.wall_s * (one.job.cpu_count or 1)


def _gpu_models(one: ExportedJob) -> tuple[str, ...] | None:
    return tuple(model for model, _ in one.job.gpu_models) or None


def _gpu_s(one: ExportedJob) -> int | None:
    return None if one.job.gpu_count is None else one.job.wall_s * one.job.gpu_count


def _cpu(name: str, meaning: str, value: Callable[[JobRecord], int]) -> Column:
    """CPU time of the job, unknown where nobody measured it."""
    return Column(name, "integer", "s", meaning, lambda one: None if one.job.cpu_unknown else value(one.job))


def _efficiency(one: ExportedJob) -> Decimal | None:
    wall_core = _wall_core(one)
    if not wall_core or one.job.cpu_unknown:
        return None
    return (Decimal(one.job.cpu_user_s + one.job.cpu_kernel_s) / wall_core).quantize(Decimal("0.0001"))


def _benchmark_value(one: ExportedJob) -> Decimal | None:
    if one.published is None or not one.published.benchmark.benchmarks:
        return None
    return one.published.benchmark.benchmarks[0].value


def _scaled(one: ExportedJob) -> Decimal | None:
    value = _benchmark_value(one)
    return None if value is None else _wall_core(one) * value


def _charge(one: ExportedJob) -> Decimal | None:
    return None if one.published is None or one.published.charge is None else one.published.charge.amount


def _meter(one: ExportedJob) -> int | None:
    return dict(one.job.quantities).get(METER)


def _energy(one: ExportedJob) -> Decimal | None:
    return one.energy.wh


def _energy_origin(one: ExportedJob) -> str | None:
    energy = one.energy
    if energy.wh is None:
        return None
    if not energy.measured_wh:
        return "estimated"
    return "measured" if energy.measured_wh == energy.wh else "mixed"


def _measured(one: ExportedJob) -> Decimal | None:
    return None if one.energy.wh is None else one.energy.measured_wh


_WALL_CORE: Final = "wall_s times cpu_count; an unknown number of cores counts as one, as in the report"
_UNKNOWN_CPU: Final = "null where the batch system did not measure it"
_EFFICIENCY: Final = "cpu_s over wall_core_s, four decimals; null where there was no wall time or cpu_s is not known"
_SCALED: Final = "wall_core_s times benchmark_value; never add these up over different benchmark_type"

COLUMNS: Final = (
    _raw("job_id", "id of the job at the CE"),
    _published("local_id", "id in the batch system as published", lambda job: job.local_id),
    _raw("status", "how it ended: completed, failed, aborted"),
    _count("exit_code", "", "exit status of the job"),
    _published("site", "site as published", lambda job: job.where.site),
    _published("submit_host", "endpoint of a grid job, batch server of a local one", lambda job: job.where.submit_host),
    _published("machine_name", "the CE", lambda job: job.where.machine_name),
    _published("infrastructure", "grid or local", lambda job: job.where.infrastructure),
    _raw("interface", "type of the endpoint"),
    _raw("queue", "queue or partition"),
    _published("user", "who, as records.identity lets it be said", lambda job: job.who.user),
    _published("vo", "VO as published", lambda job: job.who.vo),
    _published("vo_group", "group within the VO", lambda job: job.who.group),
    _published("vo_role", "role within the VO", lambda job: job.who.role),
    _published("projects", "projects as published", lambda job: job.projects, "texts"),
    _time("submitted_at", "when it was submitted"),
    _time("started_at", "when it began to run, where that is known"),
    _time("ended_at", "when it ended"),
    Column("wait_s", "integer", "s", "from submission to start; negative where clocks differ", _wait),
    _count("wall_s", "s", "time on the clock from start to end"),
    _cpu("cpu_user_s", f"CPU time of its processes over all cores; {_UNKNOWN_CPU}", attrgetter("cpu_user_s")),
    _cpu("cpu_kernel_s", f"CPU time of the kernel for it over all cores; {_UNKNOWN_CPU}", attrgetter("cpu_kernel_s")),
    _cpu("cpu_s", f"both kinds of CPU time; {_UNKNOWN_CPU}", lambda job: job.cpu_user_s + job.cpu_kernel_s),
    _count("node_count", "", "nodes that it had"),
    _count("cpu_count", "", "cores that it had, over all nodes"),
    _count("gpu_count", "", "GPUs that it had"),
    Column("gpu_models", "texts", "", "their models", _gpu_models),
    Column("gpu_s", "integer", "GPU s", "wall_s times gpu_count; null where it had none or it is not known", _gpu_s),
    Column(
        "wall_core_s",
        "integer",
        "core s",
        _WALL_CORE,
        _wall_core,
    ),
    Column(
        "cpu_efficiency",
        "decimal",
        "",
        _EFFICIENCY,
        _efficiency,
    ),
    _published(
        "benchmark_type",
        "kind of the benchmark that is published",
        lambda job: job.benchmark.benchmarks[0].kind if job.benchmark.benchmarks else None,
    ),
    Column("benchmark_value", "decimal", "of benchmark_type, a core", "how fast a core is", _benchmark_value),
    Column(
        "scaled_wall_core_s",
        "decimal",
        "of benchmark_type times s",
        _SCALED,
        _scaled,
    ),
    _count("memory_kib", "KiB", "resident memory, at most"),
    _count("virtual_memory_kib", "KiB", "virtual memory, at most"),
    _count("scratch_bytes", "B", "scratch space, at most"),
    _count("stage_in_bytes", "B", "files that came in"),
    _count("stage_out_bytes", "B", "files that went out"),
    Column("charge", "decimal", "of charge_unit", "what it costs by records.charges", _charge),
    _published("charge_unit", "unit of the charge", lambda job: None if job.charge is None else job.charge.tariff.unit),
    Column("meter_j", "integer", "J", "energy as measured, whatever it is worth", _meter),
    Column("energy_wh", "decimal", "Wh", "energy with records.power's pue: measured, else estimated", _energy),
    Column("measured_wh", "decimal", "Wh", "the part of energy_wh that was measured", _measured),
    Column("energy_origin", "text", "", "measured, estimated, or mixed: GPUs alone were measured", _energy_origin),
    Column("carbon_g", "decimal", "g", "CO2 equivalent of energy_wh", lambda one: one.energy.grams),
    Column(
        "unfit",
        "text",
        "",
        "why it cannot be published: what is said of it is then empty",
        lambda one: one.unfit or None,
    ),
)


RowsRead = Callable[[int], None]
_LONG_AGO = Epoch(0)  # a job that waits for what belongs to its row is handed out as it is


@dataclass(slots=True)
class SkippedJobs:
    """Jobs that a filter takes and that are not handed out: still in progress, or with a row that cannot be read."""

    in_progress: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)  # by rule


def jobs(site: Site, wanted: JobFilter, *, left_out: SkippedJobs, rows_read: RowsRead) -> Iterator[ExportedJob]:
    """The finished jobs that a filter takes, in bounded memory, each database in the order of its index.

    Raises: SourceError.
    """
    policy, power = site.policy, site.power or Power()
    accounts: Accounts = site.accounts()
    with closing(accounts), closing(site.source()) as records:
        for page in accounts.counted(wanted):
            finished = [row for row, job in zip(page.rows, page.jobs, strict=True) if not job.in_progress]
            left_out.in_progress += len(page.jobs) - len(finished)
            rows = [OpenRow(row=row, finished_seen_at=_LONG_AGO) for row in finished]
            for found in records.reread(rows, frozenset(), site.clock()):
                left_out.in_progress += len(found.open)
                left_out.unreadable.update(skipped.rule for skipped in found.skipped)
                for job in found.jobs:
                    yield _exported(job, policy, power)
            rows_read(page.rows_read)


def _exported(job: JobRecord, policy: RecordPolicy, power: EnergyRules) -> ExportedJob:
    energy = power.energy(job)
    try:
        return ExportedJob(job=job, published=policy.describe(job), unfit="", energy=energy)
    except Unfit as unfit:
        return ExportedJob(job=job, published=None, unfit=str(unfit), energy=energy)
