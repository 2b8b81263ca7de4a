"""The ledger's contract: small parts, and the `Ledger` that has them all.

An operation takes the parts that it needs. What only reads never writes. Every write is one
transaction, and on the disk when it returns. All methods raise LedgerError when the publishing
database cannot be read or written; "cannot tell" is never "nothing".
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from publisher.ledger.answers import (
    ClosedMonths,
    Delivery,
    HostCounts,
    KnownDatabase,
    Outstanding,
    Quarantined,
    SentMessage,
    TargetState,
)
from publisher.model.entry import (
    EarlierRuns,
    Entry,
    MonthTotals,
    ReceiverName,
    Recorded,
    RecordKey,
    RowId,
    RowTotal,
    RunKey,
)
from publisher.model.job import Epoch, JobId, JobKey, SkippedJob
from publisher.model.message import (
    LearntLimit,
    Message,
    MessageId,
    MonthMessage,
    OutboxRecord,
    Progress,
    Rendered,
    StoreCursor,
    SyncMessage,
    WindowMark,
)
from publisher.model.receiver import (
    ChangedAddress,
    HeldBack,
    HeldRow,
    HeldRun,
    KnownReceiver,
    LeftMonth,
    Loss,
    ReceiverSums,
    WaitingRun,
)
from publisher.model.totals import InheritedMonth

if TYPE_CHECKING:
    from publisher.ledger.books import ChargeBook, History, MeasureBook

Patience = Callable[[], bool]  # waits a little and says whether to look again


def impatient() -> bool:
    """No patience at all with a lock that another publisher holds."""
    return False


class Locks(Protocol):
    """Who works on a receiver and a target. It changes nothing of what is recorded of them."""

    def working_on(
        self,
        target: str,
        patience: Patience = impatient,
        receiver: ReceiverName | None = None,
        *,
        moves_to: str = "",
    ) -> AbstractContextManager[None]:
        """Hold the receiver's lock, and then the target's; `moves_to`: its place from now on.

        Raises: ConfigError where an administrator has to say which receiver it is; Busy when
        another publisher has a lock; LedgerError if nobody can tell whether this is the ledger that
        this host knows. Months of one that went back in time are held (`losses`).
        """

    def close(self) -> None:
        """Close the ledger."""


class Condition(Protocol):
    """Whether the ledger is whole, and the one that this host knows. It repairs nothing."""

    def damage(self, on: datetime | None = None) -> Sequence[str]:
        """What a quick look at the database finds damaged; `on`: in that day's sample of rows."""

    def trouble(self, place: str) -> str:
        """Why this is not the ledger that this host knows, at a receiver; '' if it is."""


class Targets(Protocol):
    """The targets and their rounds. It knows nothing of their jobs."""

    def state(self, target: str) -> TargetState | None:
        """None for a target that never had a round."""

    def names(self) -> Sequence[str]:
        """The names of all that ever had a round."""

    def begin_round(
        self,
        target: str,
        *,
        start_rule: str,
        start: Epoch | None,
        selection_digest: str,
        receiver: ReceiverName,
    ) -> TargetState:
        """Enter a target, and the receiver that this round sends to.

        Its start stays while its rule does. At another receiver everything is compared anew; what a
        shadow recorded moves there. Raises: ConfigError as `working_on`.
        """

    def end_round(
        self,
        target: str,
        *,
        success: bool,
        swept: bool,
        checked: str | None,
        now: datetime,
    ) -> None:
        """`swept`: every row was looked at. `checked`: the policy digest that was checked under."""

    def closed(self, target: str) -> int:
        """Months before this one (12 x year + month - 1) are closed at its receiver; 0: none."""

    def close(self, target: str, before: int, now: datetime) -> ClosedMonths: ...

    def took_over(self, target: str) -> Epoch | None:
        """Until when another publisher's rows were adopted, and its lost jobs looked for."""

    def take_over(self, target: str, until: Epoch) -> None: ...

    def limit(self, target: str) -> LearntLimit | None:
        """What the service was found to take in one message; None while it took everything."""

    def learn_limit(self, target: str, limit: LearntLimit) -> None:
        """Remember what the service takes, in the place of what was known before."""


class Receivers(Protocol):
    """Where targets lead. No target moves to another receiver before an administrator says so."""

    def listed(self) -> Sequence[ReceiverSums]:
        """All receivers, in the order of their numbers."""

    def changed_address(self, target: str, receiver: ReceiverName) -> ChangedAddress | None:
        """What an administrator has to say of a target with this address; None for nothing."""

    def readdress(self, target: str, receiver: ReceiverName) -> None:
        """The service moved: the target's receiver has this address now."""

    def enter(self, target: str, receiver: ReceiverName) -> None:
        """Another place: everything that the target wants is sent there."""


class Outbox(Protocol):
    """Messages: written down before they are sent, settled after the receipt. It sends nothing."""

    def prepare(
        self,
        message: Message,
        records: Sequence[Rendered],
        progress: Progress,
        policy_digest: str,
        before: SentMessage | None = None,
        *,
        settings: str = "",
    ) -> None:
        """Write a message down before it is sent, with its records and the progress it completes.

        `settings`: digest of what decides which keys its records have. `before` was sent, and is
        settled in the same transaction: both or neither.
        """

    def prepare_sync(self, target: str, messages: Sequence[SyncMessage]) -> None:
        """Write messages of counts down before they are sent."""

    def outstanding(self, target: str, besides: Collection[MessageId] = ()) -> Outstanding | None:
        """Return the first message without a receipt, whichever target of the receiver made it."""

    def sent(
        self, message: Message, *, remote_id: str, remote_ids: Mapping[str, str], now: datetime
    ) -> None:
        """Settle a message after its receipt; once more changes nothing. `remote_ids` by JobID."""

    def in_doubt(self, message: Message, reason: str) -> None:
        """Keep that a message may have been stored, whatever becomes of later attempts."""

    def refused_in_doubt(self, message: Message) -> None:
        """Keep that a message in doubt was refused: if it is once more, it is narrowed down."""

    def leave_in_doubt(self, target: str) -> None:
        """Prepared messages for the receiver may have been stored: their process has ended."""

    def give_up(
        self, target: str, besides: Collection[MessageId], behind: Mapping[str, WindowMark | None]
    ) -> None:
        """Undo what writing the prepared messages down did, besides these: they were not stored.

        Their jobs are unknown again; their counts were not sent. A posting of which a message is
        stored, or may be, keeps all its messages. `behind` is a window that goes on from there
        (None: from its beginning). Only for messages of this process.
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
        """Settle a message as rejected, of which nothing is stored, and set its records aside."""

    def trace(self, job_id: JobId, runs: Collection[RunKey] = ()) -> Sequence[Delivery]:
        """Every message that carried the job, all its runs, oldest first.

        Quick with the key of one of its runs; without, all entries are looked through.
        """


class Entries(Protocol):
    """What runs count for at the receiver of a target. It never forgets a run that counts.

    Entries of single records are written by `Outbox.prepare`, those of totals by `Postings`. They
    count, those of totals each with its row, when the message is accepted that has them.
    """

    def recorded(self, target: str, runs: Collection[RunKey]) -> Mapping[RunKey, Recorded]:
        """What the receiver has, or is being sent, of these runs and of other runs of their jobs.

        Other runs of a job share its submission time (`JOB_OF_RUN` of model/entry.py).
        """

    def owners(self, target: str, ends: Collection[Epoch]) -> Sequence[tuple[RunKey, RecordKey]]:
        """The records that it has, is being sent, or keeps, of runs that ended in these seconds."""

    def counted_from(self, target: str, source: str) -> Mapping[tuple[int, str], int]:
        """How many runs count that a database told of, by month and submit host."""

    def rows(self, target: str, month: int) -> Sequence[RowTotal]:
        """The rows of a month that the receiver has, or that entries were made for."""

    def ends(self, target: str, row: RowId) -> tuple[Epoch, Epoch]:
        """The first and the last end in a row once what is pending counts, 0 without jobs."""

    def record_format(self, target: str, month: int) -> str:
        """The format of single records that the receiver has of a month; '' without any."""

    def months(self, target: str) -> Sequence[MonthTotals]:
        """Every month of which the receiver has something, or is being sent something."""

    def adopt(self, target: str, inherited: InheritedMonth) -> None:
        """The receiver has this of a month from another publisher; totals may come in parts."""

    def go_on_as_records(self, target: str, months: Collection[int]) -> None:
        """Months were sent whole as single records, and go on so."""


class Postings(Protocol):
    """The open posting of a target: entries of totals that its round plans. It sends nothing.

    Entries go in page by page, until the posting is sealed with its messages; `Targets.begin_round`
    drops one that was never sealed.
    """

    def enter(self, target: str, entries: Sequence[Entry], settings: str, now: datetime) -> None:
        """Add pending entries to the open posting, or to a new one; a run comes once in it."""

    def withdraw(
        self,
        target: str,
        *,
        leaving: Collection[RowId] = (),
        entering: Collection[RowId] = (),
        held: HeldBack | None = None,
    ) -> None:
        """Take entries out of the open posting: of runs that count in some rows until now, which
        are kept as `held`, and of those that would count in others.
        """

    def discard(self, target: str) -> None:
        """Drop the open posting with its entries, if there is one."""

    def seal(self, target: str, messages: Iterable[MonthMessage]) -> None:
        """Write the messages of the open posting, all at once, before the first is sent.

        Without a posting they tell what is known, once more.
        """


class Earlier(Protocol):
    """Runs that were sent under other settings than those of today. It moves none of them."""

    def runs(self, target: str, settings: str) -> EarlierRuns:
        """What is known of runs that were sent under other settings than these."""

    def note(self, target: str, settings: str, months: Mapping[int, int], now: datetime) -> None:
        """So many runs of each month would have other keys under these settings."""

    def forget(self, target: str, months: Collection[int]) -> None:
        """Months were published again, so that their runs have the keys of today."""

    def settings_since(self, target: str, posting: int) -> tuple[int, frozenset[str]]:
        """The latest posting of a target, and the settings of those after `posting`."""


class Holds(Protocol):
    """Runs that wait until they count, and rows that would stay. It lets nothing go by itself."""

    def runs(self, target: str) -> Mapping[RunKey, str]:
        """The runs that are held, each with the target whose round held it last."""

    def hold_runs(self, target: str, runs: Sequence[HeldRun], now: datetime) -> None: ...

    def rows_shown(self, target: str) -> Collection[tuple[RowId, bytes]]:
        """The rows that rounds of the target hold, or a republish, with what was shown of each."""

    def hold_rows(
        self, target: str, rows: Sequence[HeldRow], now: datetime, *, again: bool = False
    ) -> None: ...

    def not_found(
        self, target: str, found: Collection[RunKey], since: datetime
    ) -> Mapping[RunKey, tuple[str, SkippedJob]]:
        """Runs that were held before and were not found, with the target, and as set aside."""

    def end(self, target: str, runs: Collection[RunKey], *, but: Collection[RowId] | None) -> None:
        """Hold these runs no longer, and of the rows that rounds held only some; None: all stay."""


class Quarantine(Protocol):
    """Jobs that were set aside. A job that was dropped is never tried again."""

    def held(self, target: str, keys: Sequence[JobKey]) -> Mapping[JobKey, Quarantined]:
        """Those of the runs that are in quarantine."""

    def listed(self, target: str | None = None) -> Iterator[Quarantined]:
        """Every job set aside, in order; read in portions, because there may be very many."""

    def of_job(self, job_id: JobId) -> Sequence[Quarantined]:
        """Where a job is set aside."""

    def release(self, numbers: Iterable[int]) -> int: ...
    def drop(self, numbers: Iterable[int]) -> int: ...


class Positions(Protocol):
    """How far rounds and windows have come. It knows nothing of what they found."""

    def cursor(self, target: str) -> StoreCursor | None:
        """How far a target came in the job store; None before its first round."""

    def beside(self, target: str) -> Sequence[StoreCursor]:
        """How far others came that lead to its receiver, or led there last."""

    def note(self, target: str, progress: Progress, policy_digest: str, now: datetime) -> None:
        """Progress that no message carries."""

    def window_progress(self, target: str, name: str) -> WindowMark | None:
        """How far a republish came that was broken off; None for one that is new or finished."""

    def finish_window(self, target: str, name: str) -> None: ...

    def waiting(self, target: str) -> Sequence[WaitingRun]:
        """The runs that waited in the job store when a round last began, or that it lacked."""

    def wait(self, target: str, runs: Iterable[WaitingRun]) -> None: ...


class Databases(Protocol):
    """The accounting databases that rounds of a target have found. It reads none of them."""

    def known(self, target: str | None = None) -> Sequence[KnownDatabase]:
        """Every accounting database that was found, of one target or of all, by name."""

    def found(self, target: str, inodes: Mapping[str, int], now: datetime) -> None:
        """A round found these files. One that was retired is not any more."""

    def retire(
        self, target: str, file: str, never_sent: Mapping[int, int | None], now: datetime
    ) -> None:
        """The file is gone for good; no row of it is looked at again.

        `never_sent`: how many jobs are lost with it, as of `KnownDatabase`.
        """

    def rename(self, target: str, file: str, name: str) -> None:
        """The same database, with the same rows, is called otherwise from now on."""


class Counts(Protocol):
    """How many jobs count, by month and submit host: delivered, and reported. It counts none."""

    def by_host(self, target: str) -> HostCounts: ...

    def set_before(self, target: str, jobs: Mapping[tuple[int, str], int], basis: str) -> None:
        """Eligible jobs of the takeover month that were delivered before the target's start."""


class Left(Protocol):
    """What stays at a receiver, and is not to count there. It deletes nothing."""

    def months(self, target: str) -> Sequence[LeftMonth]:
        """What stays of each month until somebody deletes it there."""

    def elsewhere(self, targets: Collection[str]) -> Sequence[tuple[KnownReceiver, LeftMonth]]:
        """What stays of each month at receivers to which none of these targets leads."""

    def confirm_deleted(self, target: str, month: int) -> None:
        """What stayed of a month is deleted there."""


class Losses(Protocol):
    """Months that wait, as a restored ledger may lack some of them. It lets none go by itself."""

    def held(self, target: str) -> Sequence[Loss]:
        """Months of the target's receiver that wait, because the ledger may lack something."""

    def months(self, target: str) -> Collection[int]:
        """Months of the target's receiver that wait, or have waited."""

    def deleted(self, target: str, months: Collection[int], now: datetime) -> None:
        """Hold these months no longer: all of them was deleted at the receiver."""

    def delivered(self, target: str, months: Collection[int], now: datetime) -> None:
        """Hold these months no longer: the receiver has all that counts of them."""


class Ledger(NamedTuple):
    """An opened ledger, by its parts: `ledger.entries.recorded("egi", runs)`. For one thread."""

    locks: Locks
    condition: Condition
    targets: Targets
    receivers: Receivers
    outbox: Outbox
    entries: Entries
    postings: Postings
    earlier: Earlier
    holds: Holds
    quarantine: Quarantine
    positions: Positions
    databases: Databases
    counts: Counts
    left: Left
    losses: Losses

    def close(self) -> None:
        self.locks.close()


class Ledgers(Protocol):
    """The publishing database of a site, opened when it is asked for.

    Whoever opens something closes it. Whatever opens something raises LedgerError.
    """

    @property
    def instance(self) -> str:
        """Which of the ledgers of a shared database is the site's; '' for one of its own."""

    @property
    def name(self) -> str:
        """Its file, or its server and instance, for people."""

    @property
    def state(self) -> Path:
        """The publishing database, or where its files are beside a server."""

    def open(self, *, dry_run: bool = False) -> Ledger:
        """For a dry run, one that reads the ledger and writes nothing."""

    def to_read(self) -> Ledger: ...
    def history(self) -> "History": ...
    def charge_book(self, *, to_read: bool = False) -> "ChargeBook": ...
    def measure_book(self, *, to_read: bool = False) -> "MeasureBook": ...

    def others(self) -> Iterator["Ledgers"]:
        """Yield those of the other instances. Raises: UsageError without a server; LedgerError."""
