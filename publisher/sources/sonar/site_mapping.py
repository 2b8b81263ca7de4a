"""What a site configures for the cluster that Sonar watches, and runs of jobs as job records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from publisher.model.job import JobRecord
from publisher.sources.files.batch_job import batch_job, known
from publisher.sources.files.site_mapping import cluster_key
from publisher.sources.files.slurm_jobs import SlurmMapping, SlurmOptions, check_zone
from publisher.sources.importers import ImportRule
from publisher.sources.sonar.cluster import GpuUse
from publisher.sources.sonar.records import Clock
from publisher.sources.sonar.runs import SlurmRun

NAME: Final = "sonar"
_MOST_S: Final = 2**53
_USER_CPU: Final = (
    "the greater of UserCPU + SystemCPU of the job and AveCPU of all steps, less the kernel's"
)
# What formulas of charges may use, and the field of the job that has it.
_QUANTITIES: Final = {
    "TimeLimit": "limit_s",
    "mem": "memory",
    "billing": "billing",
    "energy": "energy",
}


class SonarWall(StrEnum):
    """Where wall time comes from: Slurm's own `ElapsedRaw`, or end less start."""

    ELAPSED = "elapsed"
    TIMES = "times"


def _check_interval(interval_s: int) -> str | None:
    return None if interval_s > 0 else "must be more than nothing"


# How the cluster is called where its name is not given; then all that is read must be of one.
ANY_CLUSTER: Final = "sonar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SlurmOptions):
    """Keys of `importers.sonar`."""

    cluster: str = field(
        default=ANY_CLUSTER,
        metadata=cluster_key(
            "write the name of the cluster as Sonar does, which becomes part of every job's id",
            "is not a cluster name; write it as Sonar does, such as fox.example.org",
        ),
    )
    paths: tuple[Path, ...] = field(
        default=(), metadata={"help": "files, directory trees, or patterns"}
    )
    time_zone: str = field(
        default="", metadata={"help": "zone of the cluster's clocks", "check": check_zone}
    )
    wall_from: SonarWall = SonarWall.ELAPSED
    samples: bool = True
    sample_interval_s: int = field(default=300, metadata={"check": _check_interval})
    hold_off_s: int = 90 * 60
    overdue_after_s: int = 30 * 86_400


class SonarMapping(SlurmMapping):
    """Makes jobs of runs. Reads the map files once."""

    def __init__(self, options: Options) -> None:
        """Raises: ConfigError when a map file cannot be read or is wrong."""
        self._options = options
        zone = ZoneInfo(options.time_zone) if options.time_zone else None
        self.clock = Clock(zone)
        super().__init__(NAME, options, interface="slurm")

    def skips(self, run: SlurmRun) -> str:
        """Why a run that is over is not usage, or ''."""
        get = run.fields.get
        if not get("elapsed") and run.span_s < 0:
            return "ended before it started"
        # Slurm may give a job that was cancelled while it waited the same start and end. One that
        # ran had CPUs, however short.
        if not get("elapsed") and run.span_s == 0 and not (get("cpus") or get("nodes")):
            return f"never started ({get('state', '')})"
        return self._left_out(*(get(key, "") for key in ("user", "account", "partition", "state")))

    def job_id(self, job: int, run: SlurmRun) -> str:
        """By the cluster's clock, not in UTC, which differs from one collection to the next."""
        return f"{self._options.cluster}:{job}:{run.start.replace('-', '').replace(':', '')}"

    def hosts(self, run: SlurmRun) -> tuple[str, ...]:
        """Names of the nodes in their order; none where they are unknown or too many."""
        return self._hosts(tuple(run.fields.get("hosts", ())))

    def job(self, job: int, run: SlurmRun, gpus: GpuUse | None) -> JobRecord:
        """Return the job of a run that is over."""
        get = run.fields.get
        hosts = self.hosts(run)
        cpu_s, kernel_s = _cpu(run)
        elapsed_s: int = 0 if self._options.wall_from is SonarWall.TIMES else get("elapsed", 0)
        cpus: int = get("cpus", 0) or get("asked_cpus", 0)
        # What was given, and no GPU in it
        no_gpus = 0 if get("cpus") or get("nodes") else None
        account: str = get("account", "")
        asked = [(name, get(field)) for name, field in _QUANTITIES.items()]
        return batch_job(
            job_id=self.job_id(job, run),
            local_id=self._local_id(job, run),
            endpoint=self._endpoint,
            queue=get("partition", ""),
            lrms=self.lrms,
            user=self._users.get(get("user", ""), ""),
            vo=self._vo((account, get("user", "")), account),
            account=(get("user", ""), account),
            status=self.status(get("state", "")),
            exit_code=_exit_code(run),
            submitted_at=run.submitted_at,
            started_at=run.started_at,
            ended_at=run.ended_at or 0,
            node_count=get("nodes", 0) or len(hosts),
            cpu_count=self.cores(cpus),
            memory_kib=run.resident_kib,
            virtual_memory_kib=run.virtual_kib,
            wall_s=elapsed_s or max(0, run.span_s),
            cpu_user_s=cpu_s - kernel_s,
            cpu_kernel_s=kernel_s,
            cpu_unknown=not _was_measured(run),
            gpu_count=get("gpus", no_gpus),
            gpu_models=_models(get("gpu_models", "")),
            job_name=get("name", ""),
            project=self._projects.get(account, account),
            hosts=hosts,
            # Zeros are not written: a job of which nothing is said was never suspended.
            quantities=known(
                [*asked, ("SecsPreSuspend", get("suspended", 0)), *_gpu_quantities(gpus)]
            ),
        )

    @staticmethod
    def record_key(job: JobRecord) -> str:
        """Return what tells people which run a job is: cluster, number and start."""
        return job.job_id.replace(":", "/")

    @staticmethod
    def arc_ids(job: JobRecord) -> Sequence[str]:
        """A-REX calls a task of an array by its own number, too."""
        return (job.job_id.split(":")[1],)

    def explain(self, job: JobRecord) -> list[ImportRule]:
        """How the fields of a job came about."""
        options = self._options
        times = "the offset that was seen first"
        if options.time_zone:
            times = f"{self.place}.time_zone: {options.time_zone}"
        return [
            *self._account_rules(job, (job.local_group, job.local_user)),
            ImportRule("started_at", times),
            ImportRule("ended_at", times),
            ImportRule("wall_s", f"{self.place}.wall_from: {options.wall_from}"),
            ImportRule("cpu_user_s", _USER_CPU),
            ImportRule("cpu_kernel_s", "SystemCPU of the job"),
            self._endpoint_rule(),
        ]

    def _local_id(self, job: int, run: SlurmRun) -> str:
        array = run.fields.get("array")
        # The number 0 of a task is never written.
        return f"{array}_{run.fields.get('task', 0)}" if array and self._array_ids else str(job)


def _models(text: str) -> tuple[tuple[str, int], ...]:
    """Return the GPUs of a job by model, of `a100=4,t4=1`."""
    pairs = (each.rpartition("=") for each in text.split(","))
    return tuple((model, int(count)) for model, _, count in pairs if model)


def _gpu_quantities(gpus: GpuUse | None) -> Sequence[tuple[str, int | None]]:
    """What samples tell of the use, the memory and the power of a job's GPUs."""
    if gpus is None:
        return ()
    rejected = 1 if gpus.energy_rejected else None
    return (
        ("gpu_energy", gpus.energy_j or None),
        ("energy_rejected", rejected),
        ("gpuseconds", gpus.gpu_s),
        ("gpumemory", gpus.memory_kib),
    )


def _cpu(run: SlurmRun) -> tuple[int, int]:
    """CPU seconds in all, and the kernel's share.

    What Slurm reports on the job loses all but whole minutes below an hour on its way through
    Sonar, what it reports on steps is for one task each. Both are too little: the greater counts.
    """
    get = run.fields.get
    kernel_s = min(get("system_s", 0), _MOST_S)
    return min(max(get("user_s", 0) + kernel_s, run.steps_cpu_s), 2 * _MOST_S), kernel_s


def _was_measured(run: SlurmRun) -> bool:
    """Sonar leaves out what is 0, so a job without CPU time may have used some."""
    return run.steps_cpu_s > 0 or not run.fields.keys().isdisjoint(("user_s", "system_s"))


def _exit_code(run: SlurmRun) -> int | None:
    """Neither 0 nor a signal is written: without a code only a completed job surely had 0."""
    code: int | None = run.fields.get("exit")
    return 0 if code is None and run.fields.get("state") == "COMPLETED" else code
