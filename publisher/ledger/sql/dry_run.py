"""The ledger of a dry run: it answers like the real one and writes nothing down.

What a round needs to go on as if it had written is kept in memory: the ids of messages that it
"sent", the rows that it made or adopted or that were in doubt, and messages of totals and counts.
Adopted entries, of which there may be very many, go elsewhere. Other writes are forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Protocol

from publisher.ledger.answers import MessageState, Outstanding, TargetState
from publisher.ledger.contract import Ledger, Patience, impatient
from publisher.ledger.generation import StateGuard
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.parts.earlier import SqlEarlier
from publisher.ledger.sql.parts.entries import SqlEntries, SqlPostings
from publisher.ledger.sql.parts.holds import SqlHolds
from publisher.ledger.sql.parts.locks import SqlCondition
from publisher.ledger.sql.parts.months import SqlCounts, SqlLeft, SqlLosses
from publisher.ledger.sql.parts.opened import Opened
from publisher.ledger.sql.parts.outbox import SqlOutbox
from publisher.ledger.sql.parts.positions import SqlDatabases, SqlPositions
from publisher.ledger.sql.parts.quarantine import SqlQuarantine
from publisher.ledger.sql.parts.targets import SqlReceivers, SqlTargets
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


class DryRun(Opened):
    """A publishing database that is only read, and what a dry run did instead of writing."""

    def __init__(
        self, database: Database, adopted: AdoptedEntries, guard: StateGuard | None = None
    ) -> None:
        super().__init__(database, guard)
        self.adopted = adopted
        self.losses: dict[str, Sequence[Loss]] = {}  # by target, as a round would note them now
        self.sent: set[MessageId] = set()
        self.waiting: list[Outstanding] = []
        # By target: rows that no message of the ledger said, or that one in doubt says.
        self.rows: dict[str, dict[RowId, RowTotal]] = {}
        self.arrived: dict[str, set[RowId]] = {}
        self.record_formats: dict[tuple[str, int], str] = {}  # of adopted months
        self.arrived_jobs: dict[tuple[str, int], int] = {}  # pending until then, by month

    def wait(self, messages: Iterable[MonthMessage] | Iterable[SyncMessage]) -> None:
        """Keep messages that are sent next."""
        self.waiting += [
            Outstanding(0, one.message, MessageState.PREPARED, one.records, narrowing=False)
            for one in messages
        ]

    def lead(self, target: str, receiver: ReceiverName) -> int | None:
        """Look at the receiver that a target leads to now, if it is known.

        All that a shadow has is shown as if it were there. Raises: ConfigError.
        """
        with self.database.reading():
            if (changed := receivers.changed(self.database, target, receiver)) is not None:
                raise ConfigError(changed.question)
            there = receivers.at(self.database, receiver.place)
            was = receivers.of_target(self.database, target)
        if there is None and was is not None and was.is_shadow and not receiver.is_shadow:
            there = was
        number = None if there is None else there.number
        self.working_on[target] = number or 0  # no receiver has that
        return number


def _forget(*_: object, **__: object) -> None:
    """A write of which nothing is asked later."""


class DryRunLocks:
    def __init__(self, opened: DryRun) -> None:
        self._opened = opened

    def working_on(
        self,
        target: str,
        patience: Patience = impatient,
        receiver: ReceiverName | None = None,
        *,
        moves_to: str = "",
    ) -> AbstractContextManager[None]:
        if receiver is not None:
            number = self._opened.lead(target, receiver)
            self._compare_with_file(target, number, receiver.place)
        return nullcontext()

    def _compare_with_file(self, target: str, receiver: int | None, place: str) -> None:
        """Find what a round would hold that the ledger lacks. Raises: LedgerError."""
        database, guard = self._opened.database, self._opened.guard
        if guard is None:
            return
        lacking = guard.check(database, place, guard.file(place))
        if lacking is not None and lacking.months:
            now, lost = epoch(guard.clock()), (lacking.months, lacking.mark, lacking.last_at)
            with database.reading():
                held = losses.to_hold(database, receiver or 0, *lost, now)
            self._opened.losses[target] = held

    def close(self) -> None:
        self._opened.adopted.close()
        self._opened.database.close()


class DryRunTargets(SqlTargets):
    _opened: DryRun
    end_round = take_over = learn_limit = _forget

    def begin_round(
        self,
        target: str,
        *,
        start_rule: str,
        start: Epoch | None,
        selection_digest: str,
        receiver: ReceiverName,
    ) -> TargetState:
        state = self.state(target)
        with self._database.reading():
            was = receivers.of_target(self._database, target)
        there = self._opened.lead(target, receiver)
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


class DryRunReceivers(SqlReceivers):
    readdress = enter = _forget


class DryRunOutbox(SqlOutbox):
    _opened: DryRun
    prepare = in_doubt = refused_in_doubt = leave_in_doubt = give_up = split = refuse = _forget

    def prepare_sync(self, target: str, messages: Sequence[SyncMessage]) -> None:
        self._opened.wait(messages)

    def outstanding(self, target: str, besides: Collection[MessageId] = ()) -> Outstanding | None:
        passed = {*besides, *self._opened.sent}
        of_target = (one for one in self._opened.waiting if one.message.target == target)
        waiting = (one for one in of_target if one.message.id not in passed)
        # A round gives up what is under way in a ledger that lacks something.
        there = None if target in self._opened.losses else super().outstanding(target, passed)
        return there or next(waiting, None)

    def sent(
        self, message: Message, *, remote_id: str, remote_ids: Mapping[str, str], now: datetime
    ) -> None:
        first = super().outstanding(message.target, self._opened.sent)
        if first is not None and first.message.id == message.id:
            with self._database.reading():
                rows = message_rows.waiting(self._database, first.number)
            for row, jobs in rows:
                self._arrive(message, row, jobs)
        self._opened.sent.add(message.id)

    def _arrive(self, message: Message, row: RowTotal, pending: int) -> None:
        """Take a row as told that a message of the ledger says, with its ends and pending jobs."""
        there, at = self._opened.rows.setdefault(message.target, {}), row.key.id
        there[at] = row._replace(counts=row.sent, format=message.format)
        self._opened.arrived.setdefault(message.target, set()).add(at)
        of_month, arrived = (message.target, at.month), self._opened.arrived_jobs
        arrived[of_month] = arrived.get(of_month, 0) + pending


class DryRunEntries(SqlEntries):
    _opened: DryRun
    go_on_as_records = _forget

    def recorded(self, target: str, runs: Collection[RunKey]) -> Mapping[RunKey, Recorded]:
        arrived = self._opened.arrived.get(target, set())
        found = {
            run: one._replace(pending=one.pending and one.row not in arrived)
            for run, one in super().recorded(target, runs).items()
        }
        return self._opened.adopted.recorded(target, runs) | found

    def rows(self, target: str, month: int) -> Sequence[RowTotal]:
        found = {row.key.id: row for row in super().rows(target, month)}
        there = self._opened.rows.get(target, {})
        found |= {at: row for at, row in there.items() if at.month == month}
        return [found[at] for at in sorted(found)]

    def record_format(self, target: str, month: int) -> str:
        adopted = self._opened.record_formats.get((target, month), "")
        return super().record_format(target, month) or adopted

    def ends(self, target: str, row: RowId) -> tuple[Epoch, Epoch]:
        known = {one.key.id: one for one in self.rows(target, row.month)}
        return known[row].first_end, known[row].last_end

    def months(self, target: str) -> Sequence[MonthTotals]:
        found = {known.month: known for known in super().months(target)}
        there = self._opened.rows.get(target, {})
        for month in {at.month for at in there}:
            rows, known = self.rows(target, month), found.get(month)
            pending, form = (known.pending, known.format) if known else (0, "")
            forms = [row.format for at, row in there.items() if at.month == month]
            found[month] = MonthTotals(
                month=month,
                counts=_sum(row.counts for row in rows),
                sent=_sum(row.sent for row in rows),
                pending=pending - self._opened.arrived_jobs.get((target, month), 0),
                format=form or max(forms),
                unsent=sum(row.is_unsent for row in rows),
            )
        return [found[month] for month in sorted(found)]

    def adopt(self, target: str, inherited: InheritedMonth) -> None:
        there = self._opened.rows.setdefault(target, {})
        known = {row.key.id: row for row in self.rows(target, inherited.month)}
        recorded = self.recorded(target, [entry.run for entry in inherited.entries])
        form = inherited.format if inherited.totals else ""
        self._opened.record_formats[target, inherited.month] = inherited.format
        new = {entry.run: entry for entry in inherited.entries if entry.run not in recorded}
        for entry in new.values():
            at = entry.row.id
            there[at] = _with_entry(there.get(at) or known.get(at), entry, form)
        self._opened.adopted.add(target, new.values())


class DryRunPostings(SqlPostings):
    _opened: DryRun
    withdraw = discard = _forget

    def __init__(self, opened: DryRun) -> None:
        super().__init__(opened)
        self._kept: dict[tuple[str, int], set[RowId]] = {}  # by target and month

    def enter(self, target: str, entries: Sequence[Entry], settings: str, now: datetime) -> None:
        there = self._opened.rows.setdefault(target, {})
        for key in {entry.row.id: entry.row for entry in entries}.values():
            if key.id not in there and key.id not in self._kept_rows(target, key.month):
                there[key.id] = RowTotal(key, Usage(), Epoch(0), Epoch(0))

    def _kept_rows(self, target: str, month: int) -> Collection[RowId]:
        """Return the rows of a month that the ledger has."""
        at = target, month
        if at not in self._kept:
            with self._database.reading():
                rows = message_rows.rows(self._database, self._opened.receiver(target), month)
            self._kept[at] = {row.key.id for row in rows}
        return self._kept[at]

    def seal(self, target: str, messages: Iterable[MonthMessage]) -> None:
        self._opened.wait(messages)


class DryRunEarlier(SqlEarlier):
    note = forget = _forget


class DryRunHolds(SqlHolds):
    hold_runs = hold_rows = end = _forget


class DryRunQuarantine(SqlQuarantine):
    def release(self, numbers: Iterable[int]) -> int:
        return 0

    drop = release


class DryRunPositions(SqlPositions):
    note = finish_window = wait = _forget


class DryRunDatabases(SqlDatabases):
    found = retire = rename = _forget


class DryRunCounts(SqlCounts):
    set_before = _forget


class DryRunLeft(SqlLeft):
    confirm_deleted = _forget


class DryRunLosses(SqlLosses):
    _opened: DryRun
    deleted = delivered = _forget

    def held(self, target: str) -> Sequence[Loss]:
        here = self._opened.losses
        return here[target] if target in here else super().held(target)

    def months(self, target: str) -> Collection[int]:
        return {*super().months(target), *(one.month for one in self.held(target))}


def dry_run_ledger(
    database: Database, adopted: AdoptedEntries, guard: StateGuard | None = None
) -> Ledger:
    """Return a ledger over a publishing database that is only read."""
    opened = DryRun(database, adopted, guard)
    return Ledger(
        locks=DryRunLocks(opened),
        condition=SqlCondition(opened),
        targets=DryRunTargets(opened),
        receivers=DryRunReceivers(opened),
        outbox=DryRunOutbox(opened),
        entries=DryRunEntries(opened),
        postings=DryRunPostings(opened),
        earlier=DryRunEarlier(opened),
        holds=DryRunHolds(opened),
        quarantine=DryRunQuarantine(opened),
        positions=DryRunPositions(opened),
        databases=DryRunDatabases(opened),
        counts=DryRunCounts(opened),
        left=DryRunLeft(opened),
        losses=DryRunLosses(opened),
    )


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
