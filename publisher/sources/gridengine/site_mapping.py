"""What a site configures for its Grid Engine, and records of it as job records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

from publisher.model.job import JobRecord
from publisher.sources.files.batch_job import batch_job, known
from publisher.sources.files.site_mapping import (
    ImporterOptions,
    SiteMapping,
    cluster_key,
    map_of,
)
from publisher.sources.gridengine.records import GridEngineRecord, ParallelRun, StampUnit
from publisher.sources.importers import ImportRule

_SECOND: Final = 1_000_000
_NAME: Final = "gridengine"
_LRMS: Final = "sge"
_LIMIT: Final = re.compile(r"(?:([0-9]{0,6}):([0-9]{0,6}):)?([0-9]{0,9})", re.ASCII)
_COUNT: Final = re.compile("[0-9]{1,5}")
# For whom a request is: the whole job, its first task, or each of the others.
_SCOPES: Final = ("global", "master", "slave")
# What Grid Engine writes where nobody chose anything.
_DEFAULT_NAMES: Final = frozenset({"", "sge", "defaultdepartment", "NONE"})
# fmt: off
_FAILED: Final = {
    0: "no failure", 1: "assumed before job", 3: "no config", 4: "no pid", 5: "on reading config",
    6: "setting processor set", 7: "before prolog", 8: "in prolog", 9: "before pestart",
    10: "in pestart", 11: "before job", 12: "before pestop", 13: "in pestop", 14: "before epilog",
    15: "in epilog", 16: "releasing processor set", 17: "through signal",
    18: "shepherd returned error", 19: "before writing exit_status", 20: "error file",
    21: "in recognising job", 22: "removed by hand", 23: "no pids", 24: "migrating",
    25: "rescheduling", 26: "opening output file", 27: "searching requested shell",
    28: "changing into working directory", 29: "AFS setup", 30: "application error",
    36: "daemon configuration", 37: "qmaster enforced limit or qdel -f", 38: "adding group id",
    100: "assumed after job",
}
# fmt: on


class GridEngineWall(StrEnum):
    """Where wall time comes from: the clock, or `ru_wallclock`, which some sites scale."""

    TIMES = "times"
    RU_WALLCLOCK = "ru_wallclock"


_WALL_RULES: Final = {
    GridEngineWall.TIMES: "times",
    GridEngineWall.RU_WALLCLOCK: "ru_wallclock, or times where that is 0",
}


class ProjectFrom(StrEnum):
    """Columns that may name a job's project."""

    PROJECT = "project"
    ACCOUNT = "account"
    DEPARTMENT = "department"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ImporterOptions):
    """Keys of `importers.gridengine`."""

    cluster: str = field(
        default="gridengine",
        metadata=cluster_key(
            "write the host of the qmaster, which becomes part of every job's id",
            "is not a host name; write that of the qmaster, such as sge.example.org",
        ),
    )
    paths: tuple[Path, ...] = field(
        default=(), metadata={"help": "accounting files, their directories, or patterns"}
    )
    project_vo_map: Path | None = field(default=None, metadata=map_of("PROJECT VO"))
    group_vo_map: Path | None = field(default=None, metadata=map_of("GROUP VO"))
    project_from: tuple[ProjectFrom, ...] = (ProjectFrom.PROJECT,)
    wall_from: GridEngineWall = GridEngineWall.TIMES
    time_unit: StampUnit = StampUnit.AUTO
    single_host_pes: tuple[str, ...] = ()
    gpu_resources: tuple[str, ...] = ("gpu",)
    gpu_per_slot: bool = False
    exclude_groups: tuple[str, ...] = ()
    exclude_queues: tuple[str, ...] = ()
    orphans_after_s: int = 30 * 86_400


class GridEngineMapping(SiteMapping):
    """Makes jobs of records. Reads the map files once."""

    in_ids: ClassVar[frozenset[str]] = frozenset({"time_unit"})

    def __init__(self, options: Options) -> None:
        """Raises: ConfigError when a map file cannot be read or is wrong."""
        self._options = options
        self._by_clock = options.wall_from is GridEngineWall.TIMES
        super().__init__(
            _NAME,
            options,
            interface="gridengine",
            vo_maps=("project_vo_map", "group_vo_map", "user_vo_map"),
            excludes=("exclude_users", "exclude_groups", "exclude_queues"),
        )
        self._gpus = lru_cache(maxsize=10_000)(self._requested_gpus)
        self._limit = lru_cache(maxsize=10_000)(_requested_limit)
        self._single = lru_cache(maxsize=1_000)(self._on_single_host)

    def skips(self, record: GridEngineRecord) -> str:
        """Why a record is not usage, or ''."""
        if record.ran and not self._has_excludes:
            return ""
        if record.ran:
            return self._left_out(record.owner, record.unix_group, record.queue)
        meaning = "unknown code"
        if record.failed in _FAILED:
            meaning = f"failed {record.failed}, {_FAILED[record.failed]}"
        if record.started_us:
            return f"ended before it started ({meaning})"
        if record.cpu_us:
            return f"no start time, though it used CPU time ({meaning})"
        return f"never ran ({meaning})"

    def job(self, run: ParallelRun) -> JobRecord:
        """Return the job of a run; figures of its tasks are added up, all else is its own."""
        record, tasks = run.master, run.tasks
        options = self._options
        number = f"{record.job}.{record.task}" if record.task else str(record.job)
        cpu_us, kernel_us = record.cpu_us, record.kernel_us
        resident, virtual = record.resident_kib, record.virtual_kib
        for task in tasks:
            cpu_us += task.cpu_us
            kernel_us += task.kernel_us
            resident += task.resident_kib
            virtual += task.virtual_kib
        wall_us = 0 if self._by_clock else record.rusage_wall_us
        if not wall_us:  # the qmaster writes no ru_wallclock of a job that it killed at its limit
            wall_us = record.ended_us - record.started_us
        cpu_s = (cpu_us + _SECOND // 2) // _SECOND
        kernel_s = min((kernel_us + _SECOND // 2) // _SECOND, cpu_s)
        hosts = _hosts(record, tasks)
        names: list[str] = [getattr(record, source) for source in options.project_from]
        started = record.started_us // _SECOND
        return batch_job(
            job_id=f"{options.cluster}:{number}:{started}",
            local_id=number,
            endpoint=self._endpoint,
            queue=record.queue,
            lrms=_LRMS,
            user=self._users.get(record.owner, ""),
            vo=self._vo((record.project, record.unix_group, record.owner), record.unix_group),
            account=(record.owner, record.unix_group),
            status=_status(record),
            exit_code=record.exit_status,
            submitted_at=record.submitted_us // _SECOND or started,
            started_at=started,
            ended_at=record.ended_us // _SECOND,
            node_count=self._nodes(record, tasks, len(hosts)),
            cpu_count=record.slots,
            memory_kib=resident,
            virtual_memory_kib=virtual,
            wall_s=(wall_us + _SECOND // 2) // _SECOND,
            cpu_user_s=cpu_s - kernel_s,
            cpu_kernel_s=kernel_s,
            cpu_unknown=bool(record.cpu_incomplete) and not cpu_us,
            gpu_count=self._gpus(record.category, record.slots, self._slave_hosts(record, tasks)),
            job_name=record.name,
            project=next((name for name in names if name not in _DEFAULT_NAMES), ""),
            hosts=tuple(hosts),
            quantities=known([("TimeLimit", self._limit(record.category))]),
        )

    @staticmethod
    def record_key(job: JobRecord) -> str:
        """Return what tells people which record a job is: job/task//host/submission/start/end."""
        number, _, task = job.local_id.partition(".")
        times = f"{job.submitted_at}/{job.started_at or 0}/{job.ended_at}"
        return f"{number}/{task or 0}//{job.hosts[0] if job.hosts else ''}/{times}"

    def explain(self, job: JobRecord) -> list[ImportRule]:
        """How the fields of a job came about."""
        options = self._options
        project = job.projects[0] if job.projects else ""
        chosen = f"the first of {', '.join(options.project_from)} that somebody chose"
        user = "cpu, which the daemon measures, less the kernel's share; of all tasks"
        nodes = "one for one slot or by single_host_pes, else distinct hosts of the tasks"
        gpus = f"hard requests of {', '.join(options.gpu_resources)} (gpu_resources)"
        return [
            *self._identity_rules(job, (project, job.local_group, job.local_user)),
            ImportRule("projects", f"{self.place}.project_from: {chosen}"),
            ImportRule("wall_s", f"{self.place}.wall_from: {_WALL_RULES[options.wall_from]}"),
            ImportRule("cpu_user_s", user),
            ImportRule("cpu_kernel_s", "ru_stime, not more than cpu; of all tasks"),
            ImportRule("node_count", nodes),
            ImportRule("gpu_count", gpus),
            self._endpoint_rule(),
        ]

    def _nodes(
        self, record: GridEngineRecord, tasks: Sequence[GridEngineRecord], hosts: int
    ) -> int:
        """A record names the first host only; others are known where each task has a record."""
        if tasks:
            return hosts
        return 1 if record.slots == 1 or self._single(record.pe) else 0

    def _on_single_host(self, pe: str) -> bool:
        patterns = self._options.single_host_pes
        return bool(pe) and any(fnmatchcase(pe, pattern) for pattern in patterns)

    def _slave_hosts(self, record: GridEngineRecord, tasks: Sequence[GridEngineRecord]) -> int:
        """On how many hosts slave tasks ran; 0 where that is not known."""
        if tasks:
            return len({task.host for task in tasks})
        return int(self._single(record.pe))

    def _requested_gpus(self, category: str, slots: int, slave_hosts: int) -> int | None:
        """GPUs of the hard requests: `-l gpu=2,h_rt=3600`. None for none, or an unclear number."""
        gpus = dict.fromkeys(_SCOPES, 0)
        for scope, name, count in _requested(category):
            if name in self._options.gpu_resources and _COUNT.fullmatch(count):
                if scope not in gpus:
                    return None
                gpus[scope] += int(count)
        whole, master, slave = gpus.values()
        if self._options.gpu_per_slot:
            return whole * slots + master + slave * (slots - 1) or None
        if slave and not slave_hosts:
            return None
        return whole + master + slave * slave_hosts or None


def _requested(category: str) -> Iterator[tuple[str, str, str]]:
    """Scopes, names and values of the hard requests: `-l gpu=2`, `-scope slave -hard -l gpu=1`.

    Soft requests are wishes that need not have come true.
    """
    scope, hard = _SCOPES[0], True
    for flag, following in pairwise(category.split()):
        if flag == "-scope":
            scope, hard = following.lower(), True
        elif flag in ("-hard", "-soft"):
            hard = flag == "-hard"
        elif flag == "-l" and hard:
            for resource in following.split(","):
                name, _, value = resource.partition("=")
                yield scope, name, value


def _requested_limit(category: str) -> int | None:
    """Seconds of `-l h_rt=3600` or `-l h_rt=1:0:0`, the shortest of several; None for no limit."""
    found = []
    for _, name, value in _requested(category):
        match = _LIMIT.fullmatch(value) if name == "h_rt" and value else None
        if match:
            hours, minutes, seconds = (int(part or 0) for part in match.groups())
            found.append(3600 * hours + 60 * minutes + seconds)
    return min(found, default=None)


def _hosts(record: GridEngineRecord, tasks: Sequence[GridEngineRecord]) -> list[str]:
    """Distinct host names, the first host's first."""
    hosts = [record.host, *(task.host for task in tasks)]
    return [host for host in dict.fromkeys(hosts) if host]


def _status(record: GridEngineRecord) -> str:
    if record.failed == 0 and record.exit_status == 0:
        return "completed"
    return "aborted" if record.deleted_by_user else "failed"
