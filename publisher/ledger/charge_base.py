"""The contract of the charges that are kept: runs that compute them, and what each job costs.

Questions only read; every move is one transaction. All of them raise: LedgerError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import NewType, Protocol

from publisher.model.charge import AssessedJob
from publisher.model.selection import Window

RunNumber = NewType("RunNumber", int)


class RunState(StrEnum):
    QUEUED = "queued"  # another run is at work
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"  # what it has done until then is kept


class News(StrEnum):
    """What a run brought of a job."""

    FIRST = "first"  # it was never assessed before
    CHANGED = "changed"  # another amount, another unit, or none any more


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRequest:
    """Which jobs: by the window of their end, and by project and group where these are given."""

    window: Window
    project: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many jobs: assessed, with a charge, without a result (some of which cost 0), without a rule, unreadable; and what
    was new of them.
    """

    jobs: int = 0
    charged: int = 0
    without_result: int = 0
    without_rule: int = 0
    unreadable: int = 0
    first: int = 0
    changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRun:
    """One run. Times are UTC; `noted_at` is when it last wrote something down. `reason` is why it failed."""

    number: RunNumber
    state: RunState
    request: ChargeRequest
    asked_at: datetime
    began_at: datetime | None
    noted_at: datetime
    ended_at: datetime | None
    counts: Counts
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCharge:
    """A job as it is kept. `news` is what run `news_of` brought of it; `was` is what it replaced, None for the first."""

    job: AssessedJob
    news: News
    news_of: RunNumber
    was: AssessedJob | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedSum:
    """What the jobs of one payer cost together, in one unit."""

    project: str
    group: str
    unit: str
    jobs: int
    amount: Decimal


class ChargeBook(Protocol):
    """Charges by job, and the runs that computed them."""

    def runs(self) -> Sequence[ChargeRun]:
        """The latest last. One whose process is gone has failed, whatever it wrote down last."""
        ...

    def charges(self, request: ChargeRequest) -> Iterator[KeptCharge]:
        """By end time; read in portions, because there may be very many."""
        ...

    def sums(self, window: Window) -> Sequence[ChargedSum]:
        """Of the charges that are kept of jobs that ended in a window, by project, group and unit."""
        ...

    def asked(
        self, request: ChargeRequest, clock: Callable[[], datetime], patience: Callable[[], bool]
    ) -> AbstractContextManager[RunNumber]:
        """Enter a run, wait until no other is at work, and let it run; it has failed when the block is left by an error.

        `patience` waits a little and says whether to look again. Raises: Busy when it ends.
        """
        ...

    def keep(self, number: RunNumber, jobs: Sequence[AssessedJob], *, unreadable: int, now: datetime) -> None:
        """Some jobs of a run, in place of what was kept of them. Of jobs that never had a rule nothing is kept."""
        ...

    def close(self) -> None: ...
