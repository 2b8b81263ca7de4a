"""Statistics of the accounting data itself: which jobs are counted, and what they add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from publisher.model.job import Epoch
from publisher.model.selection import Window

_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs count. Several values of a field: any of them; several fields: all. Empty takes every job.

    A window with a bound takes no job that lacks the time. `extras` are attributes by name (`rte`, `vomsfqan`, ...), with the
    values of which a job must have one.
    """

    ended: Window = Window()
    submitted: Window = Window()
    vos: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    interfaces: frozenset[str] = frozenset()
    extras: Mapping[str, frozenset[str]] = field(default_factory=dict)


class CountedJob(NamedTuple):
    """What statistics need of a job, finished or not. Made for every row, so a tuple: half the time of a frozen dataclass.

    None is unknown. '' is a name that is not there. `unreadable` is whether some value is no number, or a negative time.
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


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over some jobs. `jobs` includes those in progress, which have no usage yet; unknown values add nothing."""

    jobs: int = 0
    in_progress: int = 0
    unreadable: int = 0
    wall_s: int = 0
    cpu_user_s: int = 0
    cpu_kernel_s: int = 0
    stage_in_bytes: int = 0
    stage_out_bytes: int = 0
    first_submitted_at: Epoch | None = None
    last_ended_at: Epoch | None = None

    @property
    def cpu_s(self) -> int:
        return self.cpu_user_s + self.cpu_kernel_s

    def add(self, job: CountedJob) -> None:
        self.jobs += 1
        self.in_progress += job.in_progress
        self.unreadable += job.unreadable
        self.wall_s += job.wall_s or 0
        self.cpu_user_s += job.cpu_user_s or 0
        self.cpu_kernel_s += job.cpu_kernel_s or 0
        self.stage_in_bytes += job.stage_in_bytes or 0
        self.stage_out_bytes += job.stage_out_bytes or 0
        submitted, ended = job.submitted_at, job.ended_at
        if submitted is not None and (self.first_submitted_at is None or submitted < self.first_submitted_at):
            self.first_submitted_at = submitted
        if ended is not None and (self.last_ended_at is None or ended > self.last_ended_at):
            self.last_ended_at = ended


@dataclass(slots=True, kw_only=True)
class Tally:
    """Everything that is told of some jobs. Grows with the number of users, not of jobs.

    `groups` are totals by what `by` tells of a job; without it there are none. Names that are '' are in no set.
    """

    by: Callable[[CountedJob], str] | None = None
    totals: Totals = field(default_factory=Totals)
    states: Counter[str] = field(default_factory=Counter)
    vos: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    groups: dict[str, Totals] = field(default_factory=dict)

    def add(self, jobs: Iterable[CountedJob]) -> None:
        for job in jobs:
            self.totals.add(job)
            self.states[job.status] += 1
            self.vos.add(job.vo)
            self.users.add(job.user)
            if self.by is not None:
                self.groups.setdefault(self.by(job), Totals()).add(job)
        self.vos.discard("")
        self.users.discard("")


def end_month(job: CountedJob) -> str:
    """The calendar month, in UTC, in which a job ended: `2026-03`; '' when it has not, or in no calendar."""
    return "" if job.ended_at is None else _month(job.ended_at // _DAY_S)


@lru_cache(maxsize=4096)
def _month(day: int) -> str:
    try:
        return f"{datetime.fromtimestamp(day * _DAY_S, UTC):%Y-%m}"
    except (OverflowError, OSError, ValueError):
        return ""


GROUPINGS: Final[Mapping[str, Callable[[CountedJob], str]]] = {
    "vo": lambda job: job.vo,
    "user": lambda job: job.user,
    "state": lambda job: job.status,
    "queue": lambda job: job.queue,
    "endpoint": lambda job: job.interface,
    "month": end_month,
}
