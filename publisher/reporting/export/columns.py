"""What is told of a finished job to other systems: its accounting data, and what is published.

Raw and derived values have columns of their own, named as in the report's CSV files: `wall_s` is
time on the clock, `wall_core_s` times processors, `scaled_wall_core_s` times the benchmark too.
Unknown is None, never zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Literal

from publisher.model.job import Epoch, JobRecord
from publisher.model.published import PublishedJob, published_projects
from publisher.model.rates import JobEnergy
from publisher.model.time import iso_epoch
from publisher.policy.records import RecordPolicy
from publisher.reporting.charges.rules import METER

Value = str | int | Decimal | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJob:
    """A finished job and what the site says of it.

    `published` is None where it cannot be published, for the reason in `unfit`.
    """

    job: JobRecord
    policy: RecordPolicy
    published: PublishedJob | None
    unfit: str
    energy: JobEnergy

    @property
    def benchmark_value(self) -> Decimal | None:
        if self.published is None or not self.published.benchmark.benchmarks:
            return None
        return self.published.benchmark.benchmarks[0].value


class Column:
    """A column: its name, the type of its values, their unit ('' for none), and what they mean.

    A value is made of `inputs`, which are attributes of an `ExportedJob`: by `make`, or it is the
    only one of them.
    """

    def __init__(
        self,
        name: str,
        kind: Literal["text", "integer", "decimal", "time", "texts"],
        unit: str,
        meaning: str,
        *inputs: str,
        make: Callable[..., Value] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.unit = unit
        self.meaning = meaning
        self.inputs = inputs
        self.make = make
        self._get = attrgetter(*inputs)

    def value(self, one: ExportedJob) -> Any:
        """Return the job's value in this column."""
        found = self._get(one)
        if self.make is None:
            return found
        return self.make(found) if len(self.inputs) == 1 else self.make(*found)


def _raw(name: str, meaning: str) -> Column:
    """A text of the job record under its own name; '' is not there."""
    return Column(name, "text", "", meaning, f"job.{name}", make=_text)


def _text(text: str) -> Value:
    return text or None


def _count(name: str, unit: str, meaning: str) -> Column:
    """A number of the job record, which may be zero."""
    return Column(name, "integer", unit, meaning, f"job.{name}")


def _of_place(name: str, meaning: str, value: Callable[[PublishedJob], Value]) -> Column:
    return Column(name, "text", "", meaning, "published", make=_if_published(value))


def _of_user(name: str, meaning: str, value: Callable[[PublishedJob], Value]) -> Column:
    return Column(name, "text", "", meaning, "published", make=_if_published(value))


def _if_published(value: Callable[[PublishedJob], Value]) -> Callable[[PublishedJob | None], Value]:
    return lambda published: None if published is None else value(published) or None


def _time(name: str, meaning: str) -> Column:
    return Column(name, "time", "UTC", meaning, f"job.{name}", make=time_text)


def time_text(moment: Epoch | None) -> str | None:
    """None for what is in no calendar."""
    if moment is None:
        return None
    day, second = divmod(moment, _DAY_S)
    date = _date(day)
    return None if date is None else f"{date}{_MINUTES[second // 60]}{_SECONDS[second % 60]}"


_DAY_S: Final = 86_400
_MINUTES: Final = [f"T{hour:02}:{minute:02}:" for hour in range(24) for minute in range(60)]
_SECONDS: Final = [f"{second:02}Z" for second in range(60)]


@lru_cache(maxsize=4096)
def _date(day: int) -> str | None:
    try:
        return iso_epoch(Epoch(day * _DAY_S))[:-10]
    except (OverflowError, OSError, ValueError):
        return None


def _local_id(
    local_id: str, job_id: str, policy: RecordPolicy, published: PublishedJob | None, job: JobRecord
) -> Value:
    return None if published is None else policy.local_id(job, local_id or job_id) or None


def _projects(projects: tuple[str, ...], local_user: str, published: PublishedJob | None) -> Value:
    if published is None:
        return None
    return published_projects(projects, local_user, published.identity_open) or None


def _wait(started: int | None, submitted: int) -> Value:
    return None if started is None else started - submitted


def _wall_core(wall_s: int, cores: int | None) -> int:
    return wall_s * (cores or 1)


def _gpu_models(models: tuple[tuple[str, int], ...]) -> Value:
    return tuple(model for model, count in models if count) or None


def _gpu_s(wall_s: int, gpus: int | None) -> Value:
    return None if gpus is None else wall_s * gpus


def _cpu(name: str, meaning: str) -> Column:
    """CPU time of the job, unknown where nobody measured it."""
    inputs = (f"job.{name}", "job.cpu_unknown")
    return Column(name, "integer", "s", meaning, *inputs, make=_unless_unknown)


def _unless_unknown(cpu_s: int, unknown: bool) -> Value:
    return None if unknown else cpu_s


def _cpu_sum(user_s: int, kernel_s: int, unknown: bool) -> Value:
    return None if unknown else user_s + kernel_s


def _efficiency(user_s: int, kernel_s: int, unknown: bool, wall_s: int, cores: int | None) -> Value:
    wall_core = _wall_core(wall_s, cores)
    if not wall_core or unknown:
        return None
    return (Decimal(user_s + kernel_s) / wall_core).quantize(_FOUR_PLACES)


_FOUR_PLACES: Final = Decimal("0.0001")


def _scaled(wall_s: int, cores: int | None, value: Decimal | None) -> Value:
    return None if value is None else _wall_core(wall_s, cores) * value


def _charge(published: PublishedJob | None) -> Value:
    return None if published is None or published.charge is None else published.charge.amount


def _charge_unit(published: PublishedJob) -> Value:
    return None if published.charge is None else published.charge.tariff.unit


def _meter(quantities: tuple[tuple[str, int], ...]) -> Value:
    return dict(quantities).get(METER)


def _energy_origin(energy: JobEnergy) -> Value:
    if energy.wh is None:
        return None
    if not energy.measured_wh:
        return "estimated"
    return "measured" if energy.measured_wh == energy.wh else "mixed"


def _measured(energy: JobEnergy) -> Value:
    return None if energy.wh is None else energy.measured_wh


_unit = _if_published(_charge_unit)
_CPU: Final = ("job.cpu_user_s", "job.cpu_kernel_s", "job.cpu_unknown")
_CORES: Final = ("job.wall_s", "job.cpu_count")
_WALL_CORE: Final = (
    "wall_s times cpu_count; an unknown number of cores counts as one, as in the report"
)
_UNKNOWN_CPU: Final = "null where the batch system did not measure it"
_EFFICIENCY: Final = (
    "cpu_s over wall_core_s, four decimals; null where there was no wall time or cpu_s is not known"
)
_BOTH: Final = f"both kinds of CPU time; {_UNKNOWN_CPU}"
_SUBMIT_HOST: Final = "endpoint of a grid job, batch server of a local one"
_CHARGE: Final = "what it costs by records.charges"
_METER: Final = "energy as the meter gave it, plausible or not"
_ENERGY: Final = "energy with records.power's pue: measured, else estimated"
_MEASURED: Final = "the part of energy_wh that was measured"
_ORIGIN: Final = "measured, estimated, or mixed: GPUs alone were measured"
_UNFIT: Final = "why it cannot be published; the values as published are then empty"
_SCALED: Final = (
    "wall_core_s times benchmark_value; never add these up over different benchmark_type"
)

COLUMNS: Final = (
    _raw("job_id", "id of the job at the CE"),
    Column(
        "local_id",
        "text",
        "",
        "id in the batch system as published",
        *("job.local_id", "job.job_id", "policy", "published", "job"),
        make=_local_id,
    ),
    _raw("status", "how it ended: completed, failed, aborted"),
    _count("exit_code", "", "exit status of the job"),
    _of_place("site", "site as published", lambda job: job.where.site),
    _of_place("submit_host", _SUBMIT_HOST, lambda job: job.where.submit_host),
    _of_place("machine_name", "the CE", lambda job: job.where.machine_name),
    _of_place("infrastructure", "grid or local", lambda job: job.where.infrastructure),
    _raw("interface", "type of the endpoint"),
    _raw("queue", "queue or partition"),
    _of_user("user", "who, as far as records.identity allows", lambda job: job.who.user),
    _of_user("vo", "VO as published", lambda job: job.who.vo),
    _of_user("vo_group", "group within the VO", lambda job: job.who.group),
    _of_user("vo_role", "role within the VO", lambda job: job.who.role),
    Column(
        "projects",
        "texts",
        "",
        "projects as published",
        *("job.projects", "job.local_user", "published"),
        make=_projects,
    ),
    _time("submitted_at", "when it was submitted"),
    _time("started_at", "when it began to run, where that is known"),
    _time("ended_at", "when it ended"),
    Column(
        "wait_s",
        "integer",
        "s",
        "from submission to start; negative where clocks differ",
        *("job.started_at", "job.submitted_at"),
        make=_wait,
    ),
    _count("wall_s", "s", "time on the clock from start to end"),
    _cpu("cpu_user_s", f"CPU time of its processes over all cores; {_UNKNOWN_CPU}"),
    _cpu("cpu_kernel_s", f"CPU time of the kernel for it over all cores; {_UNKNOWN_CPU}"),
    Column("cpu_s", "integer", "s", _BOTH, *_CPU, make=_cpu_sum),
    _count("node_count", "", "nodes that it had"),
    _count("cpu_count", "", "cores that it had, over all nodes"),
    _count("gpu_count", "", "GPUs that it had; null where that is not known"),
    Column("gpu_models", "texts", "", "their models", "job.gpu_models", make=_gpu_models),
    Column(
        "gpu_s",
        "integer",
        "GPU s",
        "wall_s times gpu_count; null where that is not known",
        "job.wall_s",
        "job.gpu_count",
        make=_gpu_s,
    ),
    Column("wall_core_s", "integer", "core s", _WALL_CORE, *_CORES, make=_wall_core),
    Column("cpu_efficiency", "decimal", "", _EFFICIENCY, *_CPU, *_CORES, make=_efficiency),
    _of_place(
        "benchmark_type",
        "kind of the benchmark that is published",
        lambda job: job.benchmark.benchmarks[0].kind if job.benchmark.benchmarks else None,
    ),
    Column(
        "benchmark_value",
        "decimal",
        "of benchmark_type, a core",
        "how fast a core is",
        "benchmark_value",
    ),
    Column(
        "scaled_wall_core_s",
        "decimal",
        "of benchmark_type times s",
        _SCALED,
        *_CORES,
        "benchmark_value",
        make=_scaled,
    ),
    _count("memory_kib", "KiB", "resident memory, at most"),
    _count("virtual_memory_kib", "KiB", "virtual memory, at most"),
    _count("scratch_bytes", "B", "scratch space, at most"),
    _count("stage_in_bytes", "B", "files that came in"),
    _count("stage_out_bytes", "B", "files that went out"),
    Column("charge", "decimal", "of charge_unit", _CHARGE, "published", make=_charge),
    Column("charge_unit", "text", "", "unit of the charge", "published", make=_unit),
    Column("meter_j", "integer", "J", _METER, "job.quantities", make=_meter),
    Column("energy_wh", "decimal", "Wh", _ENERGY, "energy.wh"),
    Column("measured_wh", "decimal", "Wh", _MEASURED, "energy", make=_measured),
    Column("energy_origin", "text", "", _ORIGIN, "energy", make=_energy_origin),
    Column("carbon_g", "decimal", "g", "CO2 equivalent of energy_wh", "energy.grams"),
    Column("unfit", "text", "", _UNFIT, "unfit", make=_text),
)
