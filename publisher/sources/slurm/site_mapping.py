"""What a site configures for a Slurm cluster whose accounting is read by sacct, and runs of jobs as rows of AAR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Final
from zoneinfo import ZoneInfo

from publisher.model.job import JobRecord
from publisher.sources.base import GPU_MODELS
from publisher.sources.importers import ImportedJob, ImportRule
from publisher.sources.importing.site_mapping import cluster_key, extra_info
from publisher.sources.importing.slurm_jobs import SlurmMapping, SlurmOptions, check_zone, models_text, read_tres
from publisher.sources.slurm.records import SacctRun

NAME: Final = "slurm"
_SACCT: Final = ("sacct",)

_DAY_S: Final = 86_400


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
    files: tuple[Path, ...] = field(
        default=(), metadata={"help": "what sacct printed: files, their directories, or patterns; else sacct is run"}
    )
    command: tuple[str, ...] = field(default=_SACCT, metadata={"check": _check_command})
    look_back_s: int = field(default=30 * _DAY_S, metadata={"check": _check_look_back})
    timeout_s: int = field(default=600, metadata={"check": _check_timeout})

    def __post_init__(self) -> None:
        if self.files and self.command != _SACCT:
            raise ValueError("names both files and command; keep the one that is to be read")


class SacctMapping(SlurmMapping):
    """Makes rows of runs. Reads the map files once."""

    def __init__(self, options: Options) -> None:
        """Raises: ConfigError when a map file cannot be read or is wrong."""
        super().__init__(NAME, options, interface="sacct")
        self.zone = ZoneInfo(options.time_zone) if options.time_zone else None
        self._cluster = options.cluster
        self._tres = lru_cache(maxsize=10_000)(read_tres)

    def skips(self, run: SacctRun) -> str:
        """Why a run is not this site's usage, or ''."""
        if run.cluster and run.cluster != self._cluster:
            return f"of the cluster {run.cluster}"
        return self._left_out(run.user, run.account, run.partition, run.state)

    def job(self, run: SacctRun) -> ImportedJob:
        """A run as a row."""
        account = run.account
        resources = self._tres(run.tres)
        hosts = self._hosts((run.node_list,))
        total_s = _seconds((run.user_ms or 0) + (run.system_ms or 0))
        kernel_s = min(total_s, _seconds(run.system_ms or 0))
        return ImportedJob(
            f"{self._cluster}:{run.raw_id}:{run.submitted_at}",
            run.job_id if self._array_ids else run.raw_id,
            self._endpoint,
            run.partition,
            self._users.get(run.user, ""),
            self._vo((account, run.user), account),
            self.status(run.state),
            run.exit_code,
            run.submitted_at,
            run.started_at,
            run.ended_at,
            run.nodes or resources.nodes or len(hosts),
            self.cores(run.cpus or resources.cpus or 0),
            run.memory_kib,
            run.virtual_kib,
            run.wall_s,
            total_s - kernel_s,
            kernel_s,
            # A job that was given something, and no GPU, had none.
            resources.gpus or (0 if run.tres else None),
            NAME,
            f"{run.raw_id}/{run.submitted_at}",
            self._extra(run, hosts),
        )

    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        """How the fields of a job came about."""
        return [
            *self._account_rules(job),
            ImportRule("wall_s", "ElapsedRaw, which does not count suspension; of a resized job, its part"),
            ImportRule("cpu_user_s", "UserCPU of the job, else of its steps; 0 where Slurm measured nothing"),
            ImportRule("cpu_kernel_s", "SystemCPU of the job, else of its steps"),
            ImportRule("memory_kib", "the largest MaxRSS of its steps"),
            self._endpoint_rule(),
        ]

    def _extra(self, run: SacctRun, hosts: Sequence[str]) -> tuple[tuple[str, str], ...]:
        account, resources = run.account, self._tres(run.tres)
        extra = extra_info(
            self.lrms,
            user=run.user,
            group=account,
            job_name=run.name,
            project=self._projects.get(account, account),
            hosts=hosts,
            quantities=(
                ("NumTasks", run.tasks or None),
                ("TimeLimit", run.limit_min * 60 or None),
                ("EligibleTime", run.eligible_at),
                ("mem", resources.memory_kib),
                ("billing", resources.billing),
                ("SecsPreSuspend", run.suspended_s),
            ),
        )
        if run.user_ms is None:
            extra.append(("cputime", "unknown"))
        if resources.gpu_models:
            extra.append((GPU_MODELS, models_text(resources)))
        if run.energy_j:
            extra.append(("energy_j", str(run.energy_j)))
        return tuple(extra)


def _seconds(milliseconds: int) -> int:
    return (milliseconds + 500) // 1000
