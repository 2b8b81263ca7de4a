"""Beside the ledger, in the same database: charges, what was delivered when, and measured values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple, NewType, Protocol

from publisher.model.job import Epoch, JobKey
from publisher.model.message import PlacedRuns
from publisher.model.rates import AssessedJob
from publisher.model.time import Durations, Window

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
    """How many jobs: assessed, with a charge, without a result (some of which cost 0), without a
    rule, unreadable; and what was new of them.
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
    """One run. Times are UTC; `noted_at` is when it last wrote something down. `reason` is why it
    failed.
    """

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
    """A job as it is kept. `news` is what run `news_of` brought of it; `was` is what it replaced,
    None for the first.
    """

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

    def charges(self, request: ChargeRequest) -> Iterator[KeptCharge]:
        """By end time; read in portions, because there may be very many."""

    def sums(self, window: Window) -> Sequence[ChargedSum]:
        """Of the charges that are kept of jobs that ended in a window, by project, group and unit."""

    def asked(
        self, request: ChargeRequest, clock: Callable[[], datetime], patience: Callable[[], bool]
    ) -> AbstractContextManager[RunNumber]:
        """Enter a run, wait until no other is at work, and let it run; it has failed when the block
        is left by an error.

        `patience` waits a little and says whether to look again. Raises: Busy when it ends.
        """

    def keep(
        self, number: RunNumber, jobs: Sequence[AssessedJob], *, unreadable: int, now: datetime
    ) -> None:
        """Some jobs of a run, in place of what was kept of them. Of jobs that never had a rule
        nothing is kept.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyDelivery:
    """What one target accepted on one day in one format. Bytes are those of the payloads, before
    signing and encoding.
    """

    messages: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHistory:
    """A target over a period.

    `days` are by days since 1970 and format, of what was accepted in the period. `lags` are the times from the end of a job
    that ended in the period to the first acceptance of a message that tells of it; unknown where that has not come yet.
    `rejected` are messages that were refused in the period.
    """

    days: Mapping[tuple[int, str], DailyDelivery]
    rejected: int
    lags: Durations


class SentMessages(NamedTuple):
    """How many messages were accepted, and one digest of them: SHA-256 of the SHA-256 of each
    payload, in order; '' of none.
    """

    messages: int
    digest: str


class DeliveredPart(NamedTuple):
    """Runs that a target accepted in one message, with the ends that it was told.

    `message_id` is '' for runs that were counted into totals of months, which are sent by themselves.
    """

    target: str
    message_id: str
    format: str
    accepted_at: Epoch
    keys: Sequence[JobKey]
    ended_at: Sequence[Epoch]


class History(Protocol):
    """What the ledger can tell of the past."""

    def accepted(self) -> Mapping[str, Sequence[int]]:
        """By month (`2026-10`), how many messages were accepted in it, how many runs they had, and
        the number of the last.
        """

    def deliveries(self, accepted: Window) -> Iterator[DeliveredPart]:
        """The runs of messages that were accepted in a window; a message may come in several parts."""

    def delivered_since(
        self, mark: str, files: Callable[[str], bool]
    ) -> tuple[str, Generator[PlacedRuns, None, None]]:
        """What was delivered, or is on its way, of these databases since a mark ('': ever).

        With the mark of now before it. Each part is of one database; '' is an unknown one. To be
        closed by whoever does not read to the end.
        """

    def targets(self, names: Sequence[str], window: Window) -> Mapping[str, TargetHistory]:
        """Those of the targets that ever had a round. Its memory grows with messages, not with
        jobs.
        """

    def sent(self, target: str, month: Window) -> SentMessages:
        """The messages with jobs that ended in a calendar month, or with its totals."""

    def close(self) -> None: ...


Measures = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMetric:
    """A value. `target` is '' for what is measured of the site as a whole."""

    target: str
    name: str
    label: str
    value: float


class MeasureBook(Protocol):
    """The last value of each gauge, and the sums of counters since there is a publishing database."""

    def measures(self) -> Sequence[StoredMetric]:
        """Everything that is kept."""

    def delivered(self, target: str) -> tuple[int, int]:
        """Messages that a target accepted so far, and the records in them."""

    def note(
        self, target: str, *, set_to: Measures, added: Measures, unknown: Sequence[str]
    ) -> None:
        """Gauges as they are now, what to add to counters, and the names of gauges of which nothing
        is known any more.
        """

    def close(self) -> None: ...
