"""The ledger of a dry run: it answers like the real one and writes nothing down."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Protocol

from publisher.ledger.contract import MessageState, Outstanding, Patience, TargetState, impatient
from publisher.ledger.generation import StateGuard
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.reads import LedgerReader
from publisher.ledger.sql.sums import message_rows, receivers
from publisher.ledger.sql.sums.elsewhere import losses
from publisher.model.entry import (
    Entry,
    MonthTotals,
    ReceiverName,
    Recorded,
    RowId,
    RowTotal,
    RunKey,
    Usage,
)
from publisher.model.errors import ConfigError
from publisher.model.job import Epoch
from publisher.model.message import Message, MessageId, MonthMessage, SyncMessage
from publisher.model.receiver import Loss
from publisher.model.time import epoch
from publisher.model.totals import InheritedMonth


class AdoptedEntries(Protocol):
    """Entries that another publisher made, as a dry run adopts them."""

    def add(self, target: str, entries: Iterable[Entry]) -> None:
        """Keep entries of runs that are not there."""

    def recorded(self, target: str, runs: Collection[RunKey]) -> dict[RunKey, Recorded]:
        """Return those of these runs that are there."""

    def close(self) -> None: ...


class DryRunLedger(LedgerReader):
    """`Ledger` over a publishing database that is only read.

    What a round needs to go on as if it had written is kept in memory: the ids of messages that it
    "sent", the rows that it made or adopted or that were in doubt, and messages of totals and
    counts. Adopted entries, of which there may be very many, go into `adopted`. Other writes are
    forgotten.
    """

    def __init__(
        self, database: Database, adopted: AdoptedEntries, guard: StateGuard | None = None
    ) -> None:
        super().__init__(database, guard)
        self._adopted = adopted
        self._losses: dict[str, Sequence[Loss]] = {}  # by target, as a round would note them now
        self._sent: set[MessageId] = set()
        self._waiting: list[Outstanding] = []
        # By target: rows that no message of the ledger said, or that one in doubt says.
        self._rows: dict[str, dict[RowId, RowTotal]] = {}
        self._kept: dict[tuple[str, int], set[RowId]] = {}  # by target and month
        self._arrived: dict[str, set[RowId]] = {}
        self._arrived_jobs: dict[tuple[str, int], int] = {}  # pending until then, by month

    def close(self) -> None:
        self._adopted.close()
        super().close()

    def _forget(self, *_: object, **__: object) -> None:
        """A write of which nothing is asked later."""

    note = found_databases = retire_database = rename_database = finish_window = _forget
    learn_limit = take_over = same_receiver = new_receiver = end_round = set_before = (
        accept_change
    ) = _forget
    prepare = in_doubt = refused_in_doubt = leave_in_doubt = give_up = split = refuse = _forget
    withdraw = discard = forget_totals = confirm_deleted = _forget
    note_earlier = forget_earlier = _forget
    months_deleted = months_delivered = _forget

    def release(self, numbers: Iterable[int]) -> int:
        return 0

    drop = release

    def outstanding(self, target: str, besides: Collection[MessageId] = ()) -> Outstanding | None:
        passed = {*besides, *self._sent}
        of_target = (one for one in self._waiting if one.message.target == target)
        waiting = (one for one in of_target if one.message.id not in passed)
        # A round gives up what is under way in a ledger that lacks something.
        there = None if target in self._losses else super().outstanding(target, passed)
        return there or next(waiting, None)

    def recorded(self, target: str, runs: Collection[RunKey]) -> Mapping[RunKey, Recorded]:
        arrived = self._arrived.get(target, set())
        found = {
            run: one._replace(pending=one.pending and one.row not in arrived)
            for run, one in super().recorded(target, runs).items()
        }
        return self._adopted.recorded(target, runs) | found

    def rows(self, target: str, month: int) -> Sequence[RowTotal]:
        found = {row.key.id: row for row in super().rows(target, month)}
        there = self._rows.get(target, {})
        found |= {at: row for at, row in there.items() if at.month == month}
        return [found[at] for at in sorted(found)]

    def months(self, target: str) -> Sequence[MonthTotals]:
        found = {known.month: known for known in super().months(target)}
        for month in {at.month for at in self._rows.get(target, {})}:
            rows, known = self.rows(target, month), found.get(month)
            pending = known.pending if known else 0
            found[month] = MonthTotals(
                month=month,
                counts=_sum(row.counts for row in rows),
                sent=_sum(row.sent for row in rows),
                pending=pending - self._arrived_jobs.get((target, month), 0),
                format=max((row.format for row in rows), default=""),
                unsent=sum(row.is_unsent for row in rows),
            )
        return [found[month] for month in sorted(found)]

    def enter(self, target: str, entries: Sequence[Entry], settings: str, now: datetime) -> None:
        there = self._rows.setdefault(target, {})
        for key in {entry.row.id: entry.row for entry in entries}.values():
            if key.id not in there and key.id not in self._kept_rows(target, key.month):
                there[key.id] = RowTotal(key, Usage(), Epoch(0), Epoch(0))

    def _kept_rows(self, target: str, month: int) -> Collection[RowId]:
        """Return the rows of a month that the ledger has."""
        at = target, month
        if at not in self._kept:
            self._kept[at] = {row.key.id for row in super().rows(target, month)}
        return self._kept[at]

    def seal(self, target: str, messages: Iterable[MonthMessage]) -> None:
        self._await(messages)

    def adopt(self, target: str, inherited: InheritedMonth) -> None:
        there = self._rows.setdefault(target, {})
        known = {row.key.id: row for row in self.rows(target, inherited.month)}
        recorded = self.recorded(target, [entry.run for entry in inherited.entries])
        form = inherited.format if inherited.totals else ""
        new = {entry.run: entry for entry in inherited.entries if entry.run not in recorded}
        for entry in new.values():
            at = entry.row.id
            there[at] = _with_entry(there.get(at) or known.get(at), entry, form)
        self._adopted.add(target, new.values())

    def prepare_sync(self, target: str, messages: Sequence[SyncMessage]) -> None:
        self._await(messages)

    def _await(self, messages: Iterable[MonthMessage] | Iterable[SyncMessage]) -> None:
        self._waiting += [
            Outstanding(0, one.message, MessageState.PREPARED, one.records, narrowing=False)
            for one in messages
        ]

    def working_on(
        self,
        target: str,
        patience: Patience = impatient,
        receiver: ReceiverName | None = None,
        *,
        moves_to: str = "",
    ) -> AbstractContextManager[None]:
        if receiver is not None:
            self._compare_with_file(target, self._lead(target, receiver), receiver.place)
        return nullcontext()

    def _compare_with_file(self, target: str, receiver: int | None, place: str) -> None:
        """Find what a round would hold that the ledger lacks. Raises: LedgerError."""
        if self._guard is None:
            return
        lacking = self._guard.check(self._database, place, self._guard.file(place))
        if lacking is not None and lacking.months:
            now, lost = epoch(self._guard.clock()), (lacking.months, lacking.mark, lacking.last_at)
            with self._database.reading():
                self._losses[target] = losses.to_hold(self._database, receiver or 0, *lost, now)

    def losses(self, target: str) -> Sequence[Loss]:
        return self._losses[target] if target in self._losses else super().losses(target)

    def _lead(self, target: str, receiver: ReceiverName) -> int | None:
        """Look at the receiver that a target leads to now, if it is known.

        All that a shadow has is shown as if it were there. Raises: ConfigError.
        """
        if (changed := self.changed_address(target, receiver)) is not None:
            raise ConfigError(changed.question)
        with self._database.reading():
            there = receivers.at(self._database, receiver.place)
            was = receivers.of_target(self._database, target)
        if there is None and was is not None and was.is_shadow and not receiver.is_shadow:
            there = was
        number = None if there is None else there.number
        self._receivers[target] = number or 0  # no receiver has that
        return number

    def begin_round(
        self,
        target: str,
        *,
        start_rule: str,
        start: Epoch | None,
        selection_digest: str,
        receiver: ReceiverName,
    ) -> TargetState:
        state, was = super().target(target), self.receiver_of(target)
        there = self._lead(target, receiver)
        if state is not None and state.start_rule == start_rule:
            is_there = was is not None and was.number == there
            return state if is_there else state._replace(swept=None)
        return TargetState(
            target=target,
            start_rule=start_rule,
            start=start,
            checked_digest="",
            last_round=None,
            last_success=None,
            last_published_end=None,
            swept=None,
            delivered=0,
            prepared=0,
            in_doubt=0,
            quarantined=0,
            held=(),
        )

    def sent(
        self, message: Message, *, remote_id: str, remote_ids: Mapping[str, str], now: datetime
    ) -> None:
        first = super().outstanding(message.target, self._sent)
        if first is not None and first.message.id == message.id:
            with self._database.reading():
                rows = message_rows.waiting(self._database, first.number)
            for row, jobs in rows:
                self._arrive(message, row, jobs)
        self._sent.add(message.id)

    def _arrive(self, message: Message, row: RowTotal, pending: int) -> None:
        """Take a row as told that a message of the ledger says, with its ends and pending jobs."""
        there, at = self._rows.setdefault(message.target, {}), row.key.id
        there[at] = row._replace(counts=row.sent, format=message.format)
        self._arrived.setdefault(message.target, set()).add(at)
        of_month = message.target, at.month
        self._arrived_jobs[of_month] = self._arrived_jobs.get(of_month, 0) + pending


def _with_entry(row: RowTotal | None, entry: Entry, form: str) -> RowTotal:
    """Return a row with one more entry, of which the receiver was told."""
    end = entry.record.ended_at
    has_jobs = row is not None and row.counts.jobs > 0
    had = row if row is not None and has_jobs else RowTotal(entry.row, Usage(), end, end)
    counts = had.counts.plus(Usage(entry.jobs, entry.wall_s, entry.cpu_s))
    ends = min(had.first_end, end), max(had.last_end, end)
    sent = counts if form else Usage()
    return RowTotal(had.key, counts, *ends, sent, form, is_guess=bool(form))


def _sum(usages: Iterable[Usage]) -> Usage:
    found = Usage()
    for usage in usages:
        found = found.plus(usage)
    return found
