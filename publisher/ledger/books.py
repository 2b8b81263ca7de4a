"""Beside the ledger, in the same database: charges, what was delivered when, measured values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple, NewType, Protocol

from publisher.model.entry import DeliveredRun
from publisher.model.job import Epoch, RunKey
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
class ChargeCounts:
    """How many jobs a run assessed, and what came of them."""

    jobs: int = 0
    charged: int = 0
    without_result: int = 0  # some of them cost 0
    without_rule: int = 0
    unreadable: int = 0
    first: int = 0  # never assessed before
    changed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRun:
    """One run. Times are UTC."""

    number: RunNumber
    state: RunState
    request: ChargeRequest
    asked_at: datetime
    began_at: datetime | None
    noted_at: datetime  # when it last wrote something down
    ended_at: datetime | None
    counts: ChargeCounts
    reason: str  # why it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCharge:
    """A job as it is kept."""

    job: AssessedJob
    news: News  # what run `news_of` brought of it
    news_of: RunNumber
    was: AssessedJob | None  # what it replaced; None for the first


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
        """Of the charges of jobs that ended in a window, by project, group and unit."""

    def asked(
        self, request: ChargeRequest, clock: Callable[[], datetime], patience: Callable[[], bool]
    ) -> AbstractContextManager[RunNumber]:
        """Enter a run, wait until no other is at work, and let it run.

        It has failed when the block is left by an error. `patience` waits a little and says whether
        to look again. Raises: Busy when it ends.
        """

    def keep(
        self, number: RunNumber, jobs: Sequence[AssessedJob], *, unreadable: int, now: datetime
    ) -> None:
        """Jobs of a run, in the place of what was kept of them. Without a rule, none is kept."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyDelivery:
    """What one target accepted on one day in one format."""

    messages: int
    records: int
    bytes: int  # of the payloads, before signing and encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHistory:
    """A target over a period.

    `lags` are the times from the end of a job that ended in the period to the first acceptance of a
    message that tells of it; unknown where that has not come yet.
    """

    days: Mapping[tuple[int, str], DailyDelivery]  # accepted in it, by days since 1970 and format
    rejected: int  # messages that were refused in it
    lags: Durations


class SentMessages(NamedTuple):
    """How many messages were accepted, and one digest of them."""

    messages: int
    digest: str  # SHA-256 of the SHA-256 of each payload, in order; '' of none


class DeliveredPart(NamedTuple):
    """Runs that a target accepted in one message, with the ends that it was told.

    Of totals it is the first message that the receiver accepted of the month after they came to it.
    """

    target: str
    message_id: str
    format: str
    accepted_at: Epoch
    runs: Sequence[RunKey]
    ended_at: Sequence[Epoch]


class History(Protocol):
    """What the ledger can tell of the past."""

    def accepted(self) -> Mapping[str, Sequence[int]]:
        """By month (`2026-10`): messages accepted, runs in them, and the number of the last."""

    def deliveries(self, accepted: Window) -> Iterator[DeliveredPart]:
        """The runs of messages accepted in a window; a message may come in several parts."""

    def delivered(self, first: Epoch) -> Generator[Sequence[DeliveredRun], None, None]:
        """Yield what was delivered, or is on its way, and ended at this time or later, in parts.

        To be closed by a caller that does not read to the end.
        """

    def targets(self, names: Sequence[str], window: Window) -> Mapping[str, TargetHistory]:
        """Of targets that ever had a round. Its memory grows with messages, not with jobs."""

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
    """The last value of each gauge, and the sums of counters since the database was made."""

    def measures(self) -> Sequence[StoredMetric]:
        """Everything that is kept."""

    def delivered(self, target: str) -> tuple[int, int]:
        """Messages that a target accepted so far, and the records in them."""

    def note(
        self, target: str, *, set_to: Measures, added: Measures, unknown: Sequence[str]
    ) -> None:
        """Gauges as they are now, what to add to counters, and gauges now `unknown`, by name."""

    def close(self) -> None: ...
