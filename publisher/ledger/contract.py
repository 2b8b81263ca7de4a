"""The ledger's contract: six small parts, and the `Ledger` that has them all.

A caller takes the part that it needs. What only reads never writes. Every write is one transaction,
and on the disk when it returns. All methods raise LedgerError when the publishing database cannot
be read or written; "cannot tell" is never "nothing".
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from publisher.model.entry import ReceiverName
from publisher.model.job import Epoch, JobId, JobKey, RowRef, SkippedJob, job_key
from publisher.model.message import (
    Cursor,
    LearntLimit,
    Message,
    MessageId,
    OpenRow,
    PlacedRuns,
    Progress,
    RecordColumns,
    WindowMark,
)
from publisher.model.totals import AcceptedChange, InheritedMonth, KeyTotal, SummaryGroup

Patience = Callable[[], bool]  # waits a little and says whether to look again


def impatient() -> bool:
    """No patience at all with a lock that another publisher holds."""
    return False


class MessageState(StrEnum):
    PREPARED = "prepared"  # by the process that holds the target's lock, to be sent or given up
    IN_DOUBT = "in doubt"  # perhaps stored: the answer was lost, or the process ended before it
    SENT = "sent"  # accepted by the receiver
    REJECTED = "rejected"  # refused for good; its records are in quarantine
    COUNTED = "counted"  # jobs added to their months; the months' messages follow


class Hold(StrEnum):
    """Why a quarantined job stays where it is."""

    HELD = "held"
    RELEASED = "released"  # an administrator said: try again
    DROPPED = "dropped"  # an administrator said: never


class DeliveredRun(NamedTuple):
    """A run that the ledger knows: delivered (`settled`) or in an outstanding message."""

    ended_at: Epoch
    fingerprint: int
    settled: bool
    only_counted: bool = False  # into a month whose totals are not accepted as they are now


class OutboxRecord(NamedTuple):
    """A record of an outstanding message: enough to cut that in two, set this aside, or give up."""

    row: RowRef
    job_id: JobId
    local_id: str
    ended_at: Epoch
    fingerprint: int
    content_bytes: int
    first_time: bool
    submit_host: str = ""  # as sync spells it
    group: int = 0  # place of a summary's row among those of its month, from 1; 0 for other records
    submitted_at: int = 0  # of the run, for its key

    @property
    def key(self) -> JobKey:
        return job_key(self.job_id, self.local_id)

    def set_aside(self, rule: str, reason: str) -> SkippedJob:
        """As quarantine keeps its job."""
        run = self.row, self.job_id, self.local_id, self.ended_at
        return SkippedJob(*run, rule=rule, reason=reason, fingerprint=self.fingerprint)


class Outstanding(NamedTuple):
    """A message without a receipt."""

    number: int
    message: Message
    state: MessageState
    records: Sequence[OutboxRecord]
    narrowing: bool  # while a refused message is halved down to its culprits


class SentMessage(NamedTuple):
    """A message that the receiver took."""

    message: Message
    remote_id: str  # the receiver's of the message
    remote_ids: Mapping[str, str]  # and of its records, by JobID
    at: datetime  # when the receipt came


class TargetState(NamedTuple):
    """What is known of a target. Counts are records; times are UTC, None before the first."""

    target: str
    start_rule: str
    start: Epoch | None
    selection_digest: str
    checked_digest: str  # of the policy whose payloads were all checked against the schema
    last_round: datetime | None
    last_success: datetime | None
    last_published_end: Epoch | None
    swept: datetime | None
    delivered: int
    prepared: int
    in_doubt: int
    quarantined: int
    messages: int
    held: tuple[int, ...]  # months that the last round held back
    leads_to: str  # where its first round sent, and each success; '' where that is unknown

    @property
    def is_behind(self) -> bool:
        """Whether the last round left something to be sent, so that the next one need not wait."""
        if self.last_success is None or self.prepared or self.in_doubt:
            return True
        return self.last_round is not None and self.last_round > self.last_success


class Quarantined(NamedTuple):
    """A job set aside. `number` names it in `quarantine release|drop`."""

    number: int
    target: str
    key: JobKey
    job: SkippedJob
    hold: Hold
    policy_digest: str
    since: datetime


class KnownDatabase(NamedTuple):
    """An accounting database that rounds of a target have found."""

    target: str
    file: str
    inode: int
    seen: datetime
    retired: datetime | None  # when an administrator said that it is gone


class Delivery(NamedTuple):
    """One message that carried a run of a job."""

    target: str
    run: bytes  # digest of the LocalJobID: another one is another run
    ended_at: Epoch
    message_id: MessageId
    state: MessageState
    format: str
    records: int
    digest: str
    made_at: datetime
    settled_at: datetime | None
    remote_id: str  # of the message
    row_id: str  # of the job's row at the receiver; '' where it reported none
    reason: str


class MonthState(NamedTuple):
    """A month of a summary target. Digests are of the groups, '' before the first."""

    month: int  # 12 x year + month - 1
    jobs: int = 0
    digest: str = ""
    basis: str = ""
    dirty: bool = True
    moved: int = 0  # runs that left it since it was summed up, less those that came
    # Since it was sent, not only a change of the accounting data may have moved its jobs.
    by_settings: bool = False
    accepted_jobs: int = 0
    accepted_digest: str = ""
    accepted_format: str = ""  # '' before the first
    on_its_way: bool = False
    sending_digest: str = ""  # of all that is on its way; '' for nothing, or for a part of it
    sending_jobs: int = 0


class MonthMessage(NamedTuple):
    """A message with rows of whole months."""

    message: Message
    months: tuple[int, ...]
    records: tuple[OutboxRecord, ...]  # its groups, by their names for quarantine


class HostCounts(NamedTuple):
    """Jobs by (month, submit host)."""

    delivered: Mapping[tuple[int, str], int]  # carried by the target's records
    before: Mapping[tuple[int, str], int]  # delivered by another before us
    reported: Mapping[tuple[int, str], int]  # to the receiver
    last_reported_at: datetime | None
    before_basis: str  # of what `before` was counted from; '' when it has to be counted again


class SyncMessage(NamedTuple):
    """A message of counts; `counts` and `records` are in one order."""

    message: Message
    counts: tuple[tuple[tuple[int, str], int], ...]
    records: tuple[OutboxRecord, ...]


class Targets(Protocol):
    """The targets and their rounds."""

    def target(self, target: str) -> TargetState | None:
        """None for a target that never had a round."""

    def targets(self) -> Sequence[str]:
        """The names of all that ever had a round."""

    def working_on(
        self, target: str, patience: Patience = impatient, receiver: ReceiverName | None = None
    ) -> AbstractContextManager[None]:
        """Hold the receiver's lock, and then the target's.

        Raises: Busy when another publisher has one; LedgerError if the ledger went back in time.
        """

    def damage(self, on: datetime | None = None) -> Sequence[str]:
        """What a quick look at the database finds damaged; `on`: in that day's sample of rows."""

    def state_trouble(self, target: str) -> str:
        """Why this is not the ledger that this host knows, so that no round begins; '' if it is."""

    def begin_round(
        self,
        target: str,
        *,
        start_rule: str,
        start: Epoch | None,
        selection_digest: str,
        receiver: ReceiverName,
        leads_to: str = "",
    ) -> TargetState:
        """Enter a target, and the receiver that this round sends to.

        Its start stays while its rule does, and `leads_to` once it is known.
        """

    def end_round(
        self,
        target: str,
        *,
        success: bool,
        swept: bool,
        checked: str | None,
        now: datetime,
        held: Sequence[int] = (),
        leads_to: str = "",
    ) -> None:
        """`swept`: every row was looked at. `held`: months that are held back.

        `checked`: the policy digest under which everything was checked.
        """

    def took_over(self, target: str) -> Epoch | None:
        """Until when another publisher's rows were adopted, and its lost jobs looked for."""

    def take_over(self, target: str, until: Epoch) -> None: ...

    def limit(self, target: str) -> LearntLimit | None:
        """What the service was found to take in one message; None while it took everything."""

    def learn_limit(self, target: str, limit: LearntLimit) -> None:
        """Remember what the service takes, in the place of what was known before."""


class Outbox(Protocol):
    """Messages: written down before they are sent, settled after the receipt."""

    def prepare(
        self,
        message: Message,
        records: RecordColumns,
        progress: Progress,
        policy_digest: str,
        before: SentMessage | None = None,
    ) -> None:
        """Write a message down before it is sent, with its records and the progress it completes.

        `before` was sent, and is settled in the same transaction: both or neither.
        """

    def prepare_months(self, target: str, messages: Sequence[MonthMessage]) -> None:
        """Write the messages of whole months down, all at once, before the first is sent."""

    def prepare_sync(self, target: str, messages: Sequence[SyncMessage]) -> None:
        """Write messages of counts down before they are sent."""

    def outstanding(self, target: str, besides: Collection[MessageId] = ()) -> Outstanding | None:
        """Return the first message without a receipt, whichever target of the receiver made it."""

    def sent(
        self, message: Message, *, remote_id: str, remote_ids: Mapping[str, str], now: datetime
    ) -> None:
        """Settle a message after its receipt; once more changes nothing. `remote_ids` by JobID."""

    def in_doubt(self, message: Message, reason: str) -> None: ...
    def leave_in_doubt(self, target: str) -> None:
        """Prepared messages for the receiver may have been stored: their process has ended."""

    def give_up(
        self, target: str, besides: Collection[MessageId], behind: Mapping[str, WindowMark | None]
    ) -> None:
        """Undo what writing the prepared messages down did, besides these: they were not stored.

        Their jobs are unknown again; their months and counts were not sent. `behind` is a window
        that goes on from there (None: from its beginning). Only for messages of this process.
        """

    def split(
        self,
        whole: Outstanding,
        halves: Sequence[tuple[Message, Sequence[OutboxRecord]]],
        narrowing: bool,
    ) -> None:
        """Put halves, in order, in the place of an outstanding message; in doubt if it was."""

    def refuse(
        self, whole: Outstanding, rule: str, reason: str, policy_digest: str, now: datetime
    ) -> None:
        """Settle a message as rejected and set its records aside."""

    def trace(self, job_id: JobId) -> Sequence[Delivery]:
        """Every message that carried the job, all runs, oldest first."""


class Delivered(Protocol):
    """Which runs of jobs were delivered, or are on their way."""

    def known(
        self, target: str, runs: Mapping[JobKey, RowRef | None]
    ) -> Mapping[JobKey, DeliveredRun]:
        """Those of the runs that were delivered or are on their way.

        They are given with their rows of today, None for unknown ones. Quick for rows of databases
        that `check_numbering` was asked about after they were read; right for all.
        """

    def known_at(
        self, target: str, database: str, record_ids: Sequence[int], keys: Sequence[JobKey]
    ) -> Mapping[JobKey, DeliveredRun]:
        """The same for many rows of one database, in columns; with other runs of the same jobs."""

    def settled_at(
        self, target: str, database: str, record_ids: Sequence[int], ends: Sequence[Epoch]
    ) -> Sequence[bool]:
        """From which of these rows just one run was delivered, with this end, and accepted.

        False where the rows do not tell. Quick: neither keys nor fingerprints are compared.
        """

    def other_runs(
        self, target: str, runs: Mapping[JobKey, RowRef | None]
    ) -> Mapping[JobKey, Sequence[DeliveredRun]]:
        """By each of these runs, the other ones of its job that were delivered or are on their way.

        Before a restart a job had another LocalJobID.
        """


class Quarantine(Protocol):
    """Jobs that were set aside."""

    def held(self, target: str, keys: Sequence[JobKey]) -> Mapping[JobKey, Quarantined]:
        """Those of the runs that are in quarantine."""

    def quarantine(self, target: str | None = None) -> Iterator[Quarantined]:
        """Every job set aside, in order; read in portions, because there may be very many."""

    def quarantined(self, job_id: JobId) -> Sequence[Quarantined]:
        """Where a job is set aside."""

    def release(self, numbers: Iterable[int]) -> int: ...
    def drop(self, numbers: Iterable[int]) -> int: ...


class Positions(Protocol):
    """How far the accounting databases were read."""

    def cursor(self, target: str, database: str) -> Cursor | None: ...
    def check_numbering(
        self, target: str, database: str, fits: Callable[[Cursor], bool], *, restarted: bool = False
    ) -> None:
        """Rows were read: see whether they still have the numbers under which they were delivered.

        `fits` tells whether the row that was read last is still the same job; `restarted`, that
        reading began again because it was not. Where the numbers changed, what was delivered is
        looked for by key from now on.
        """

    def open_rows(self, target: str) -> Sequence[OpenRow]: ...
    def note(self, target: str, progress: Progress, policy_digest: str, now: datetime) -> None:
        """Progress that no message carries."""

    def known_databases(self, target: str | None = None) -> Sequence[KnownDatabase]:
        """Every accounting database that was found, of one target or of all, by name."""

    def found_databases(self, target: str, inodes: Mapping[str, int], now: datetime) -> None:
        """A round found these files. One that was retired is not any more."""

    def retire_database(self, target: str, file: str, now: datetime) -> None:
        """The file is gone for good; no row of it is looked at again."""

    def rename_database(self, target: str, file: str, name: str) -> None:
        """The same database, with the same rows, is called otherwise from now on."""

    def window_progress(self, target: str, name: str) -> WindowMark | None:
        """How far a republish came that was broken off; None for one that is new or finished."""

    def finish_window(self, target: str, name: str) -> None: ...


class Months(Protocol):
    """What jobs come to, by month and submit host: counted, accepted by the receiver, reported."""

    def months(self, target: str) -> Sequence[MonthState]: ...

    def counted(self, target: str, month: int) -> Sequence[SummaryGroup]:
        """The groups of all jobs counted so far."""

    def accepted(self, target: str, month: int) -> Sequence[SummaryGroup]:
        """The groups that the receiver accepted last."""

    def sending(self, target: str, month: int) -> Sequence[SummaryGroup]:
        """The groups that outstanding messages were made of, by `OutboxRecord.group` in order."""

    def count(
        self,
        target: str,
        runs: PlacedRuns,
        contents: Mapping[int, Sequence[SummaryGroup]],
        *,
        dirty: Mapping[int, int],
        clean: Collection[int],
        by_settings: Collection[int],
        progress: Progress,
        basis: str,
        policy_digest: str,
        now: datetime,
    ) -> None:
        """Jobs counted, the months they made, and how far was read.

        `dirty` months must be summed up again: so many of their runs were found elsewhere, less
        those that were found in them and not counted. `clean` ones were, under `basis`; of those in
        `by_settings` more than a change of the accounting data may have moved jobs.
        """

    def counts(self, target: str) -> HostCounts: ...

    def set_before(self, target: str, jobs: Mapping[tuple[int, str], int], basis: str) -> None:
        """Eligible jobs of the takeover month that were delivered before the target's start."""

    def set_singles(
        self,
        target: str,
        months: Mapping[int, Sequence[KeyTotal]],
        hosts: Mapping[tuple[int, str], int],
        policy_digest: str,
    ) -> None:
        """Months, now no totals, were sent whole as single records of these keys and counts."""

    def summary_keys(self, target: str, month: int) -> Sequence[tuple[KeyTotal, str]]:
        """The receiver's keys that a month's single records made, with their policies' digests."""

    def accepted_changes(self, target: str) -> Sequence[AcceptedChange]:
        """Every key change that was accepted, oldest first."""

    def accept_change(
        self, target: str, month: int, orphaned: Sequence[KeyTotal], lost_jobs: int, now: datetime
    ) -> None:
        """An administrator accepted that rows stay at the receiver, or that it loses jobs.

        Of a month of totals without jobs by now, nothing counts as accepted then.
        """

    def adopt(self, target: str, inherited: InheritedMonth) -> None:
        """The receiver has these rows of a month from another publisher."""


class Ledger(Targets, Outbox, Delivered, Quarantine, Positions, Months, Protocol):
    """What was sent, to whom, what is in doubt, what was set aside."""

    def close(self) -> None: ...
