"""A target: one configured destination, which jobs it wants, and when its rounds are due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.rates import Charging
from publisher.model.time import StartRule, Window, length_text
from publisher.policy.records import RecordPolicy


class Selection(NamedTuple):
    """The jobs a target wants. VO names are those that policy arrives at, compared exactly."""

    statuses: frozenset[str]
    window: Window
    vos: frozenset[str] | None = None
    exclude_vos: frozenset[str] = frozenset()
    gpus_only: bool = False

    def wants(self, job: JobRecord) -> bool:
        """Whether status, end and GPUs are wanted; asked before policy has worked out the VO."""
        if self.gpus_only and not job.gpu_count:
            return False
        return job.status in self.statuses and job.ended_at in self.window

    def wants_vo(self, vo: str) -> bool:
        return (self.vos is None or vo in self.vos) and vo not in self.exclude_vos


_GRACE: Final = timedelta(hours=1)  # beyond two rounds
FOR_ONCE: Final = "once-"  # begins the name of a target that the configuration does not have


class Schedule(Protocol):
    """Moments at which rounds are due, such as those of a crontab line; its text is that line."""

    def next_after(self, moment: datetime) -> datetime:
        """The first one after a moment; both are aware and in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One destination; its name is its key in the ledger.

    `every_s` is the least time between two rounds, unless `cron` names their moments; in the daemon
    each begins up to `jitter_s` later. `batch_records` is 0 where only size limits a message.
    `single_months`: for how many months the receiver keeps single records that it adds up; 0: for
    ever. `vos` None is all. `shadow` renders and counts but hands nothing over. `options` are of
    the transport's `Options`. `charging` are the site's price lists, whether or not the format has
    a place for charges.
    """

    name: str
    type: str
    options: object
    format: str
    sync: bool
    every_s: int
    cron: Schedule | None
    jitter_s: int
    start: StartRule
    vos: frozenset[str] | None
    exclude_vos: frozenset[str]
    batch_records: int
    single_months: int
    shadow: bool
    statuses: frozenset[str]
    policy: RecordPolicy = field(repr=False)  # holds the secret of pseudonyms
    # In another format
    policy_for: Callable[[str], RecordPolicy] = field(repr=False, compare=False)
    charging: Charging | None = None
    jura_until: Epoch | None = None  # jura-ng published here the jobs that ended until then
    jura_format: str | None = None  # in this format; None: in ours

    @property
    def timetable(self) -> str:
        """When its rounds are, for people."""
        return f"cron {self.cron}" if self.cron else f"every {length_text(self.every_s)}"

    def due_after(self, success: datetime) -> datetime:
        """When the next round is due after one that went through, aware UTC."""
        if self.cron:
            return self.cron.next_after(success)
        return success + timedelta(seconds=self.every_s)

    def overdue_after(self, success: datetime) -> datetime:
        """When somebody should look at a target that had no success since, aware UTC.

        Then the round after the next is over, and more: timers are spread, hosts may be down.
        """
        return self.due_after(self.due_after(success)) + timedelta(seconds=self.jitter_s) + _GRACE

    def in_format(self, name: str) -> Target:
        """The same target with another format, which may have a place for more or for less."""
        return replace(self, format=name, policy=self.policy_for(name))

    def selection(self, window: Window) -> Selection:
        """The jobs that this target wants of a window."""
        return Selection(
            statuses=self.statuses,
            window=window,
            vos=self.vos,
            exclude_vos=self.exclude_vos,
            gpus_only=self.policy.gpus_only,
        )


def is_wanted(selection: Selection, target: Target, job: JobRecord) -> bool:
    """Whether a round of the target would send a job, or set it aside."""
    if not selection.wants(job):
        return False
    try:
        return selection.wants_vo(target.policy.describe(job).who.vo)
    except Unfit:
        return True  # it will be set aside; until then it waits
