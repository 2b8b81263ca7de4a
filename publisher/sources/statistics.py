"""The interface behind `stats`, `job` and `report`: single jobs, statistics, and summed up usage.

Statistics count every job, finished or not, as its accounting rows have it; reports read finished
jobs and sum them up while they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from publisher.model.job import Epoch, JobId, JobRecord, RowRef, Transfer
from publisher.model.rates import JobEnergy
from publisher.model.time import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """A change of state. `local_time` is the CE's clock, as stored; `moments` what it may mean.

    One moment usually; two in the hour in which clocks go back, none in the one
    that they leave out.
    """

    key: str
    local_time: str
    moments: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails:
    """Everything known about a job in one database. None is unknown, '' a text that is not there.

    `attributes` are its token's, `extra` everything else that A-REX noted by name; both as stored,
    without repetitions. `oddities` tell of values that cannot be read. `elsewhere` are other
    databases that hold the job too.
    """

    row: RowRef
    job_id: JobId
    local_id: str
    status: str
    in_progress: bool
    exit_code: int | None
    submitted_at: Epoch | None
    started_at: Epoch | None
    ended_at: Epoch | None
    interface: str
    endpoint: str
    queue: str
    user: str
    vo: str
    fqan: str  # the main one
    benchmark: str
    node_count: int | None
    cpu_count: int | None
    gpu_count: int | None
    memory_kib: int | None
    virtual_memory_kib: int | None
    wall_s: int | None
    cpu_user_s: int | None
    cpu_kernel_s: int | None
    scratch_bytes: int | None
    stage_in_bytes: int | None
    stage_out_bytes: int | None
    attributes: tuple[tuple[str, str], ...]
    extra: tuple[tuple[str, str], ...]
    runtime_environments: tuple[str, ...]
    events: tuple[StoredEvent, ...]
    transfers: tuple[Transfer, ...]
    oddities: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


_DAY_S: Final = 86_400
_NOTHING: Final = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs count: by any of the values of a field, and by all fields; empty, every job.

    A window with a bound takes no job that lacks the time. `extras` are attributes by name (`rte`,
    `vomsfqan`, ...), with the values of which a job must have one.
    """

    ended: Window = Window()
    submitted: Window = Window()
    vos: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    interfaces: frozenset[str] = frozenset()
    gpus: bool = False  # only jobs that had some
    extras: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def takes(self, job: CountedJob) -> bool:
        """Whether a job is wanted, but for its extra attributes: a `CountedJob` has none."""
        in_time = _is_within(self.ended, job.ended_at)
        in_time = in_time and _is_within(self.submitted, job.submitted_at)
        return in_time and self.takes_names(job)

    def takes_names(self, job: CountedJob) -> bool:
        asked = (
            (self.vos, job.vo),
            (self.users, job.user),
            (self.states, job.status),
            (self.queues, job.queue),
            (self.interfaces, job.interface),
        )
        has_gpus = bool(job.gpu_count) or not self.gpus
        return has_gpus and all(not names or name in names for names, name in asked)


def _is_within(window: Window, moment: Epoch | None) -> bool:
    if window.start is None and window.end is None:
        return True
    return moment is not None and moment in window


class CountedJob(NamedTuple):
    """What statistics need of a job, finished or not. Made for every row, so a tuple.

    None is unknown. '' is a name that is not there. `unreadable` is whether some value is not a
    number, or a negative time.
    """

    job_id: str
    status: str
    in_progress: bool
    interface: str
    queue: str
    user: str
    vo: str
    submitted_at: Epoch | None
    ended_at: Epoch | None
    wall_s: int | None
    cpu_user_s: int | None
    cpu_kernel_s: int | None
    stage_in_bytes: int | None
    stage_out_bytes: int | None
    unreadable: bool
    gpu_count: int | None = None  # A-REX does not tell it
    cpu_unknown: bool = False  # nobody measured it: its numbers are 0
    local_name: str = ""  # one of `LOCAL_NAMES`, or the main FQAN, where jobs are told apart by it


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over some jobs. Those in progress have no usage yet; unknown values add nothing."""

    jobs: int = 0
    in_progress: int = 0
    unreadable: int = 0
    wall_s: int = 0
    cpu_user_s: int = 0
    cpu_kernel_s: int = 0
    stage_in_bytes: int = 0
    stage_out_bytes: int = 0
    cpu_unknown: int = 0  # jobs of which nobody measured the CPU time
    gpu_jobs: int = 0
    gpu_s: int = 0  # wall time x GPUs
    first_submitted_at: Epoch | None = None
    first_ended_at: Epoch | None = None
    last_ended_at: Epoch | None = None

    @property
    def cpu_s(self) -> int:
        return self.cpu_user_s + self.cpu_kernel_s

    def add(self, other: Totals) -> None:
        self.jobs += other.jobs
        self.in_progress += other.in_progress
        self.unreadable += other.unreadable
        self.wall_s += other.wall_s
        self.cpu_user_s += other.cpu_user_s
        self.cpu_kernel_s += other.cpu_kernel_s
        self.stage_in_bytes += other.stage_in_bytes
        self.stage_out_bytes += other.stage_out_bytes
        self.cpu_unknown += other.cpu_unknown
        self.gpu_jobs += other.gpu_jobs
        self.gpu_s += other.gpu_s
        self.first_submitted_at = _of_both(min, self.first_submitted_at, other.first_submitted_at)
        self.first_ended_at = _of_both(min, self.first_ended_at, other.first_ended_at)
        self.last_ended_at = _of_both(max, self.last_ended_at, other.last_ended_at)


def _of_both(
    choose: Callable[[Epoch, Epoch], Epoch], one: Epoch | None, other: Epoch | None
) -> Epoch | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def totals_of(job: CountedJob) -> Totals:
    return Totals(
        jobs=1,
        in_progress=int(job.in_progress),
        unreadable=int(job.unreadable),
        wall_s=job.wall_s or 0,
        cpu_user_s=job.cpu_user_s or 0,
        cpu_kernel_s=job.cpu_kernel_s or 0,
        stage_in_bytes=job.stage_in_bytes or 0,
        stage_out_bytes=job.stage_out_bytes or 0,
        cpu_unknown=int(job.cpu_unknown),
        gpu_jobs=int(bool(job.gpu_count)),
        gpu_s=(job.gpu_count or 0) * (job.wall_s or 0),
        first_submitted_at=job.submitted_at,
        first_ended_at=job.ended_at,
        last_ended_at=job.ended_at,
    )


@dataclass(slots=True, kw_only=True)
class JobStatistics:
    """All statistics of some jobs. Grows with the number of users, not of jobs.

    `groups` are totals by `by`, one of `GROUPINGS`; without it there are none. '' is in no set.
    """

    by: str | None = None
    totals: Totals = field(default_factory=Totals)
    states: Counter[str] = field(default_factory=Counter)
    vos: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    local_users: set[str] = field(default_factory=set)  # of jobs of which no certificate is known
    has_unknown_users: bool = False
    groups: dict[str, Totals] = field(default_factory=dict)

    def add(self, groups: Iterable[tuple[CountedJob, Totals]]) -> None:
        """Jobs in groups, each with one that has the names which they have in common."""
        for job, totals in groups:
            self.totals.add(totals)
            self.states[job.status] += totals.jobs
            self.vos.add(job.vo)
            self.users.add(job.user)
            self.has_unknown_users |= not job.user
            if self.by is not None:
                self.groups.setdefault(GROUPINGS[self.by](job), Totals()).add(totals)
        self.vos.discard("")
        self.users.discard("")


def end_month(job: CountedJob) -> str:
    """The calendar month of a job's end in UTC: `2026-03`; '' without an end, or a calendar."""
    return "" if job.ended_at is None else _month(job.ended_at // _DAY_S)


@lru_cache(maxsize=4096)
def _month(day: int) -> str:
    try:
        return f"{datetime.fromtimestamp(day * _DAY_S, UTC):%Y-%m}"
    except (OverflowError, OSError, ValueError):
        return ""


LOCAL_NAMES: Final = ("project", "account", "local-user")
"""What the batch system calls who runs a job, for jobs of which no certificate is known."""

GROUPINGS: Final[Mapping[str, Callable[[CountedJob], str]]] = {
    "vo": lambda job: job.vo,
    "user": lambda job: job.user,
    "state": lambda job: job.status,
    "queue": lambda job: job.queue,
    "endpoint": lambda job: job.interface,
    "month": end_month,
    **dict.fromkeys((*LOCAL_NAMES, "fqan"), attrgetter("local_name")),
}


class LocalNames(NamedTuple):
    """What the batch system calls who runs a job, '' where it is not known."""

    project: str  # the first one
    account: str
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageGroup:
    """Finished jobs that differ in nothing but who they are, when they ran, and what they used.

    `example` is one of them. `exit_code` is told of failed ones alone. `era` says between which of
    the moments that were asked for they ended. `waits_s` has the time from submission to the true
    start of those whose start is known.
    """

    era: int
    example: JobRecord
    names: LocalNames
    exit_code: int | None
    jobs: int
    wall_s: int
    cpu_s: int | None  # None: nobody measured it
    waits_s: Sequence[int]
    gpus: Sequence[tuple[str, int]]  # of each job, by model; '' is no known one


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePage:
    """The groups of some rows that were read in one short transaction."""

    groups: tuple[UsageGroup, ...]
    unreadable: int  # jobs in no group
    rows_read: int


@dataclass(slots=True, kw_only=True)
class Used:
    """Sums over some jobs.

    `scaled` is wall time x cores x benchmark, in 1/1000 of (benchmark unit x seconds), by benchmark
    type; types are never added up. Jobs without a benchmark are in none. A job whose number of
    cores is unknown counts as one core.
    """

    jobs: int = 0
    failed: int = 0
    wall_s: int = 0
    wall_core_s: int = 0
    cpu_s: int = 0
    cores_unknown: int = 0
    cpu_unknown: int = 0  # jobs of which nobody measured the CPU time
    unmeasured_core_s: int = 0  # wall time x cores of those
    without_benchmark: int = 0
    scaled: Counter[str] = field(default_factory=Counter)
    gpu_jobs: int = 0
    gpu_s: int = 0  # wall time x GPUs
    measured_wh: Decimal = _NOTHING
    estimated_wh: Decimal = _NOTHING
    carbon_g: Decimal = _NOTHING
    energy_unknown: int = 0
    carbon_unknown: int = 0
    meters_rejected: int = 0

    def add(
        self, group: UsageGroup, benchmark: tuple[str, int] | None, energy: JobEnergy | None = None
    ) -> None:
        """`benchmark` is its type and 1000 times its value, `energy` that of its one job."""
        cores = group.example.cpu_count
        wall_core_s = group.wall_s * (cores or 1)
        self.jobs += group.jobs
        self.failed += group.jobs if group.example.status == "failed" else 0
        self.wall_s += group.wall_s
        self.wall_core_s += wall_core_s
        if group.cpu_s is None:
            self.cpu_unknown += group.jobs
            self.unmeasured_core_s += wall_core_s
        else:
            self.cpu_s += group.cpu_s
        self.cores_unknown += 0 if cores else group.jobs
        self.gpu_jobs += group.jobs if group.gpus else 0
        self.gpu_s += group.wall_s * sum(count for _, count in group.gpus)
        if benchmark is None:
            self.without_benchmark += group.jobs
        else:
            kind, thousandths = benchmark
            self.scaled[kind] += wall_core_s * thousandths
        if energy is not None:
            self._add_energy(energy)

    def _add_energy(self, energy: JobEnergy) -> None:
        self.measured_wh += energy.measured_wh
        self.estimated_wh += (energy.wh or 0) - energy.measured_wh
        self.carbon_g += energy.grams or 0
        self.energy_unknown += energy.wh is None
        self.carbon_unknown += energy.grams is None
        self.meters_rejected += energy.meter_rejected

    @property
    def efficiency(self) -> float | None:
        """CPU time over wall time x cores, of jobs whose CPU time was measured; None for none."""
        measured_core_s = self.wall_core_s - self.unmeasured_core_s
        return self.cpu_s / measured_core_s if measured_core_s else None

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.jobs if self.jobs else None

    @property
    def gpu_share(self) -> float | None:
        """Jobs with GPUs over all jobs."""
        return self.gpu_jobs / self.jobs if self.jobs else None

    def merge(self, other: Used) -> None:
        self.jobs += other.jobs
        self.failed += other.failed
        self.wall_s += other.wall_s
        self.wall_core_s += other.wall_core_s
        self.cpu_s += other.cpu_s
        self.cores_unknown += other.cores_unknown
        self.cpu_unknown += other.cpu_unknown
        self.unmeasured_core_s += other.unmeasured_core_s
        self.without_benchmark += other.without_benchmark
        self.scaled.update(other.scaled)
        self.gpu_jobs += other.gpu_jobs
        self.gpu_s += other.gpu_s
        self.measured_wh += other.measured_wh
        self.estimated_wh += other.estimated_wh
        self.carbon_g += other.carbon_g
        self.energy_unknown += other.energy_unknown
        self.carbon_unknown += other.carbon_unknown
        self.meters_rejected += other.meters_rejected


def by_weight(parts: Mapping[str, Used]) -> list[tuple[str, Used]]:
    """The parts, the one with the most wall time x cores first; alike ones by name."""
    return sorted(parts.items(), key=lambda part: (-part[1].wall_core_s, -part[1].jobs, part[0]))


class NameKind(StrEnum):
    """Names that jobs have in common, with the word for one of them."""

    VO = "VO"
    USER = "user"
    STATE = "state"
    QUEUE = "queue"
    INTERFACE = "endpoint type"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPage:
    """The jobs of a page that a filter takes."""

    jobs: tuple[CountedJob, ...]
    rows: tuple[RowRef, ...]  # of the jobs, in the same order
    rows_read: int  # in one short transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedPage:
    """The jobs of a page that a filter takes, in groups as `JobStatistics` adds them up."""

    groups: Sequence[tuple[CountedJob, Totals]]
    rows_read: int


class Accounts(Protocol):
    """A site's accounting data, to be looked into.

    Only reads; a job in two databases counts once, where it is finished. All methods raise:
    SourceError when the data cannot be read; never an empty answer instead.
    """

    @property
    def zone(self) -> str:
        """IANA name of the zone in which events are written; '' when it is that of this host."""

    def counted(self, wanted: JobFilter) -> Iterator[CountedPage]:
        """The jobs that a filter takes, page by page; pages may be empty."""

    def summed(self, wanted: JobFilter, by: str | None) -> Iterator[SummedPage]:
        """The same jobs, added up page by page, apart by one of `GROUPINGS` as `by` names it."""

    def names(self, kind: NameKind) -> frozenset[str]:
        """All names of that kind."""

    def sheet(self, job_id: JobId) -> JobDetails | None:
        """Everything known about a job, in the database in which it counts; None for none."""

    def with_local_id(self, local_id: str) -> tuple[JobId, ...]:
        """Some of the jobs that have this id in the batch system."""

    def ids_beginning(self, beginning: str, limit: int) -> tuple[JobId, ...]:
        """So many of the ids of jobs that begin like this, in order."""

    def close(self) -> None: ...


class UsageReader(Protocol):
    """A site's finished jobs in groups. Only reads; a job finished in two databases counts once."""

    def groups(self, window: Window, eras: Sequence[Epoch]) -> Iterator[UsagePage]:
        """The jobs that ended in a window, page by page, be they written whole or not yet.

        `eras` are moments in order: group `era` n ended before `eras[n]` and not before the one in
        front of it.

        Raises: SourceError when the data cannot be read; never an empty answer instead.
        """

    def close(self) -> None: ...
