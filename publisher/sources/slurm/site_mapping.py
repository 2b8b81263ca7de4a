"""What a site configures for a Slurm cluster read by sacct, and runs of jobs as job records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Final, NamedTuple
from zoneinfo import ZoneInfo

from publisher.model.errors import UsageError
from publisher.model.job import JobRecord
from publisher.sources.files.batch_job import batch_job
from publisher.sources.files.site_mapping import cluster_key, map_of
from publisher.sources.files.slurm_jobs import (
    SlurmMapping,
    SlurmOptions,
    check_zone,
    node_names,
    read_tres,
)
from publisher.sources.files.tables import SourceTables
from publisher.sources.importers import ImportRule
from publisher.sources.slurm.records import SacctRun, SacctStep
from publisher.sources.slurm.steps import StepTable
from publisher.sources.slurm.usage import cpu_seconds

NAME: Final = "slurm"
_SACCT: Final = ("sacct",)

_FILES: Final = "what sacct printed: files, their directories, or patterns; else sacct is run"
_DAY_S: Final = 86_400
_ZONE: Final = "TIME_ZONE"  # settings of the source
_SHOWS_GPUS: Final = "SHOWS_GPUS"


def _check_command(command: tuple[str, ...]) -> str | None:
    return None if command and command[0] else "name the program, such as [sacct]"


def _check_look_back(seconds: int) -> str | None:
    return None if seconds >= _DAY_S else "must be a day or more"


def _check_timeout(seconds: int) -> str | None:
    return None if seconds > 0 else "must be more than nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SlurmOptions):
    """Keys of `importers.slurm`."""

    reads_key: ClassVar[str] = "files"
    must_read: ClassVar[bool] = False  # sacct is run

    cluster: str = field(
        metadata=cluster_key(
            "write the name of the cluster as Slurm does, which becomes part of every job's id",
            "is not a cluster name; write it as `sacctmgr show cluster` does, such as hpc1",
        )
    )
    time_zone: str = field(
        default="",
        metadata={
            "help": "zone in which sacct wrote the times of files that have no epoch seconds",
            "check": check_zone,
        },
    )
    qos_vo_map: Path | None = field(default=None, metadata=map_of("QOS VO"))
    files: tuple[Path, ...] = field(default=(), metadata={"help": _FILES})
    gpus_recorded: bool = False
    command: tuple[str, ...] = field(default=_SACCT, metadata={"check": _check_command})
    look_back_s: int = field(default=30 * _DAY_S, metadata={"check": _check_look_back})
    timeout_s: int = field(default=600, metadata={"check": _check_timeout})

    def __post_init__(self) -> None:
        if self.files and self.command != _SACCT:
            raise ValueError("names both files and command; keep the one that is to be read")


Quantities = tuple[tuple[str, int], ...]  # for formulas of charges


class _Account(NamedTuple):
    """What a job's user, account and QOS say of it."""

    user: str
    vo: str
    project: str


class _Given(NamedTuple):
    """What a job was given."""

    nodes: int
    cpus: int
    gpus: int | None  # None: none are shown
    has_gpu_total: bool
    has_gpu_share: bool
    gpu_models: tuple[tuple[str, int], ...]
    asked: Quantities  # before its eligible time
    used: Quantities  # and behind that


class SacctMapping(SlurmMapping):
    """Makes jobs of runs. Reads the map files once."""

    gpu_rule: ClassVar[str] = (
        "allocated gres/gpu; of a job without, 0 if the source had shown any before, or by "
        "gpus_recorded, else unknown, as it is of a job with shares of GPUs (gres/shard, gres/mps)"
    )

    def __init__(self, options: Options) -> None:
        """Raises: ConfigError when a map file cannot be read or is wrong."""
        super().__init__(
            NAME,
            options,
            interface="sacct",
            vo_maps=("account_vo_map", "qos_vo_map", "user_vo_map"),
        )
        self.zone = ZoneInfo(options.time_zone) if options.time_zone else None
        self._cluster = options.cluster
        self._gpus_recorded = options.gpus_recorded
        self._shows_gpus = options.gpus_recorded
        self.has_lone_steps = False  # whether steps were read apart from their jobs
        # Hot path: a million jobs have few of each.
        self._of_account = lru_cache(maxsize=10_000)(self._account)
        self._of_tres = lru_cache(maxsize=10_000)(_given)
        self._of_nodes = lru_cache(maxsize=1_000)(_nodes)

    def begin_import(self, accounting: SourceTables) -> list[str]:
        """Raises: UsageError also for another time zone, by which jobs would have other ids."""
        notes = super().begin_import(accounting)
        self._shows_gpus = self._gpus_recorded or bool(accounting.setting(_SHOWS_GPUS))
        self.has_lone_steps = StepTable(accounting.store, self._cluster).has_steps()
        if self.zone is None:
            return notes
        zone = self.zone.key
        with accounting.transaction():
            if not accounting.has_jobs():
                accounting.set(_ZONE, zone)
            stored = accounting.settle(_ZONE, zone)
        if stored != zone:
            raise UsageError(
                f"source {accounting.store.name}: times were read in the zone {stored}, and are "
                f"part of the ids of jobs: those that are read again in {zone} would count twice; "
                f"write {self.place}.time_zone: {stored}, or, where nothing of it was delivered, "
                f"remove {accounting.store.path} and read all again"
            )
        return notes

    def keep_shown(self, accounting: SourceTables) -> None:
        """Keep that GPUs are recorded, once a job showed any, inside a transaction."""
        if self._shows_gpus and not self._gpus_recorded:
            accounting.settle(_SHOWS_GPUS, "1")

    def skips(self, run: SacctRun | SacctStep) -> str:
        """Why a run or a step is not this site's usage, or ''."""
        if run.cluster and run.cluster != self._cluster:
            return f"of the cluster {run.cluster}"
        if not self._has_excludes or isinstance(run, SacctStep):
            return ""
        return self._left_out(run.user, run.account, run.partition, run.state)

    def job(self, run: SacctRun) -> JobRecord:
        """Return the job of a run."""
        of_account = self._of_account(run.user, run.account, run.qos)
        given = self._of_tres(run.tres, run.tasks, run.limit_min, run.suspended_s)
        self._shows_gpus = self._shows_gpus or given.has_gpu_total
        gpus = given.gpus
        if gpus is None and run.tres and self._shows_gpus and not given.has_gpu_share:
            gpus = 0
        hosts = self._of_nodes(run.node_list)
        user_s, kernel_s = cpu_seconds(run.user_ms, run.system_ms)
        local_id = run.job_id if self._array_ids else run.raw_id
        eligible = () if run.eligible_at is None else (("EligibleTime", run.eligible_at),)
        return batch_job(
            job_id=f"{self._cluster}:{run.raw_id}:{run.submitted_at}",
            local_id=local_id,
            endpoint=self._endpoint,
            queue=run.partition,
            lrms=self.lrms,
            user=of_account.user,
            vo=of_account.vo,
            account=(run.user, run.account),
            status=self.status(run.state),
            exit_code=run.exit_code,
            submitted_at=run.submitted_at,
            started_at=run.started_at,
            ended_at=run.ended_at,
            node_count=run.nodes or given.nodes or len(hosts),
            cpu_count=self.cores(run.cpus or given.cpus),
            memory_kib=run.memory_kib,
            virtual_memory_kib=run.virtual_kib,
            wall_s=run.wall_s,
            cpu_user_s=user_s,
            cpu_kernel_s=kernel_s,
            cpu_unknown=run.user_ms is None,
            gpu_count=gpus,
            gpu_models=given.gpu_models,
            job_name=run.name,
            project=of_account.project,
            hosts=hosts,
            quantities=(*given.asked, *eligible, *given.used, *_energy(run.energy_j)),
        )

    @staticmethod
    def record_key(job: JobRecord) -> str:
        """Return what tells people which line a job is: its number and its submission."""
        return "/".join(job.job_id.split(":")[1:])

    def _account(self, user: str, account: str, qos: str) -> _Account:
        vo = self._vo((account, qos, user), account)
        return _Account(self._users.get(user, ""), vo, self._projects.get(account, account))

    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        """How the fields of a job came about."""
        rules = self._account_rules(job, (job.local_group, "", job.local_user))
        if self._by_qos(job):
            by_qos = ImportRule("vo", f"{self.place}.qos_vo_map")
            rules = [by_qos if rule.field == "vo" else rule for rule in rules]
        wall = "ElapsedRaw, which does not count suspension; of a resized job, its part"
        user = "UserCPU of the job, else of its steps; unknown where Slurm measured nothing"
        return [
            *rules,
            ImportRule("wall_s", wall),
            ImportRule("cpu_user_s", user),
            ImportRule("cpu_kernel_s", "SystemCPU of the job, else of its steps"),
            ImportRule("memory_kib", "the largest MaxRSS of its steps"),
            self._endpoint_rule(),
        ]

    def _by_qos(self, job: JobRecord) -> bool:
        """Whether its QOS gave a job its VO: no account did. The QOS itself is not kept."""
        by_account = self._maps["account_vo_map"].get(job.local_group)
        return not by_account and job.vo in self._maps["qos_vo_map"].values()


def _given(tres: str, tasks: int, limit_min: int, suspended_s: int) -> _Given:
    resources = read_tres(tres)
    memory = () if resources.memory_kib is None else (("mem", resources.memory_kib),)
    billing = () if resources.billing is None else (("billing", resources.billing),)
    asked: Quantities = (("NumTasks", tasks),) if tasks else ()
    if limit_min:
        asked += (("TimeLimit", limit_min * 60),)
    return _Given(
        resources.nodes or 0,
        resources.cpus or 0,
        resources.gpus,
        resources.has_gpu_total,
        resources.has_gpu_share,
        tuple((model, count) for model, count in resources.gpu_models if model),
        asked,
        (*memory, *billing, ("SecsPreSuspend", suspended_s)),
    )


def _energy(joules: int) -> Quantities:
    if not joules:
        return ()
    return (("energy", joules),) if joules > 0 else (("energy_rejected", 1),)


def _nodes(text: str) -> tuple[str, ...]:
    return node_names((text,))
