"""Where jobs to publish go: into batches of single records, sent as they fill, or into months."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from publisher.formats.base import JobFormat, lighter
from publisher.model.entry import Entry, Recorded, RowFields, RowId, RowKey, RunKey
from publisher.model.errors import Unfit
from publisher.model.message import TOO_LARGE, Batch, Progress, Rendered, StoreCursor
from publisher.model.published import Placement
from publisher.model.receiver import HeldRow, shown
from publisher.model.totals import (
    BlockedMonth,
    KeyTotal,
    ascii_key,
    column,
    month_number,
    row_for_people,
)
from publisher.publishing.plan.actions import Example
from publisher.publishing.plan.decision import Publish, skipped_job
from publisher.publishing.plan.holds import HeldBefore
from publisher.publishing.plan.reasons import held_month
from publisher.publishing.plan.records import OldRows, RecordMoves, by_month, pinned
from publisher.publishing.plan.restored import RestoredLedger
from publisher.publishing.plan.runs import entry_of, plan_record
from publisher.publishing.round.assemble import BatchBuilder
from publisher.publishing.round.sender import MessageSender

# Runs that come to other rows, and wait to be looked at together: some 10 MB.
_MOVING: Final = 2_000


class Guard(NamedTuple):
    """What a regular round keeps back from a receiver that adds records up, and deletes no sum."""

    moves: RecordMoves
    accepts: bool  # rows may stay behind
    old: OldRows
    month: Callable[[int], Iterator[Publish]]  # all jobs of a month, delivered or not


class RecordMaker:
    """Renders the jobs of a format, each with what the ledger keeps of it."""

    def __init__(self, job_format: JobFormat) -> None:
        self._format = job_format
        row_keys = job_format.receiver.row_keys
        self._keys = None if row_keys is None else row_keys()

    def rendered(self, fit: Publish, now: datetime) -> Rendered:
        """Raises: Unfit."""
        published = fit.published
        content = self._format.render(published, now)
        return Rendered(published.job, content, self.entry(fit))

    def entry(self, fit: Publish) -> Entry:
        """Return what the record of a job counts for. Raises: Unfit outside the calendar."""
        published = fit.published
        fields = _of_host(published.where) if self._keys is None else self._keys.of(published)
        row = RowKey(month_number(published.ended_at), fields)
        return entry_of(published, fit.run, row, fit.digest)


def _of_host(where: Placement) -> RowFields:
    """Return the row of a receiver that adds nothing up: the submit host, as for sync counts."""
    host = ascii_key(where.receiver_host)
    return RowFields.of({"SubmitHost": host}, (column(host),))


class JobBatches:
    """What a round does with jobs when its format has one record a job."""

    waits: Final = False  # nothing that was read is left to a later round

    def __init__(
        self,
        job_format: JobFormat,
        builder: BatchBuilder,
        sender: MessageSender,
        restored: RestoredLedger,
        before: HeldBefore,
        *,
        again: bool = False,
        guard: Guard | None = None,
    ) -> None:
        """`again`: a window is published again."""
        self.format = job_format
        self._again = again
        self._restored = restored
        self._before = before
        self._builder = builder
        self._sender = sender
        self._maker = RecordMaker(job_format)
        self._guard = guard
        self._moving: dict[RunKey, tuple[Rendered, Recorded]] = {}
        self._waiting: set[RunKey] = set()  # of old rows
        self._purged: Mapping[int, BlockedMonth] = {}
        self._behind: StoreCursor | None = None  # what was read while runs wait
        self._held: dict[int, BlockedMonth] = {}

    @property
    def met(self) -> Set[RunKey]:
        """Runs that were taken, and that the ledger may not tell of yet."""
        return self._builder.runs | self._moving.keys()

    @property
    def held(self) -> list[BlockedMonth]:
        """Months of which something is held back."""
        return sorted([*self._held.values(), *self._purged.values()])

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a batch to fill."""
        return self._builder.idle

    def take(self, fit: Publish, now: datetime, mark: Progress | None = None) -> bool:
        """Render a job and pack it, unless it is held; ships the batch that it closes.

        Raises: Unfit; Stopped, SourceError.
        """
        known, job, month = fit.known, fit.published.job, month_number(fit.published.ended_at)
        is_old = self._guard is not None and self._guard.old.is_old(month)
        if self._restored.holds(job, month, known, is_single=not is_old):
            self._hold(fit, month, self._restored.reason(month))
            return False
        if self._guard is not None:
            fit = fit._replace(published=pinned(fit.published, known))
            if is_old and self._waits(fit, self._guard):
                return False
        record = self.rendered(fit, now)
        if self._guard is not None and known and self._guard.moves.add(record.counts_for, known):
            self._moving[fit.run] = record, known
            if len(self._moving) >= _MOVING:
                self._let_go(self._guard)
            return True
        self._pack_and_send(record, known, mark)
        return True

    def rendered(self, fit: Publish, now: datetime) -> Rendered:
        """Raises: Unfit."""
        return self._maker.rendered(fit, now)

    def _waits(self, fit: Publish, guard: Guard) -> bool:
        """Whether a run waits for all others of its row, of which the receiver has no records."""
        touches = guard.old.touch(self._maker.entry(fit), fit.known)
        if touches:
            self._waiting.add(fit.run)
        return touches

    def _hold(self, fit: Publish, month: int, reason: str) -> None:
        """Keep that a run waits, and what it would count for."""
        entry = self._maker.entry(fit)
        self._before.hold(entry, fit.published.job.job_id, month, reason)

    def _pack_and_send(
        self,
        record: Rendered,
        known: Recorded | None,
        mark: Progress | None,
        *,
        again: bool = False,
    ) -> None:
        entry = record.counts_for
        action = plan_record(entry, known, again=self._again or again)
        self._sender.remarks.note_action(entry.run, entry.row.month, action, record.job_id)
        for batch in self._packed(record, mark):
            self._sender.send(batch)

    def _let_go(self, guard: Guard) -> None:
        """Pack the runs that leave no row behind at the receiver, or may."""
        moving, self._moving = list(self._moving.values()), {}

        def is_accepted(row: RowId) -> bool:
            return guard.accepts and self._before.accepts((row,), shown(_for_people(guard, row)))

        rows_held = guard.moves.hold(is_accepted)
        held = self._hold_rows(guard, rows_held.keys)
        for record, known in moving:
            if known.row in rows_held.rows:
                self._count_held(guard, held[known.row.month], record, known.row)
                continue
            try:
                self._pack_and_send(record, known, None)
            except Unfit as unfit:
                quarantined = record.set_aside(unfit)
                self._sender.quarantine(quarantined)
                self._builder.mark(Progress(skipped=(quarantined,)))

    def _hold_rows(self, guard: Guard, rows: Iterable[RowId]) -> Mapping[int, BlockedMonth]:
        """Keep what is held of rows; return it by month."""
        held = {}
        for month, of_month in groupby(sorted(rows), attrgetter("month")):
            totals = {row: _for_people(guard, row) for row in of_month}
            held[month] = BlockedMonth(month, tuple(totals.values()), 0, ticket_after=True)
            reason = held_month(held[month]).reason
            self._before.hold_rows(
                [
                    HeldRow(row, guard.moves.row(row).counts, reason, shown(total))
                    for row, total in totals.items()
                ]
            )
        self._held |= held
        return held

    def _count_held(self, guard: Guard, held: BlockedMonth, record: Rendered, row: RowId) -> None:
        action, text = held_month(held), _for_people(guard, row).key.text
        self._sender.tally.actions.job(held.month, action, Example(record.job_id, text))
        self._before.hold(record.counts_for, record.job_id, held.month, action.reason)

    def _send_old_rows(self, guard: Guard, now: datetime) -> None:
        """Send all records of old rows: last those that have to come, or else all go again.

        Of a row of which any cannot be sent, none is.
        """
        for month in guard.old.months:
            for _, entry, known in self._of_month(guard, month):
                guard.old.see(entry, known, is_changed=entry.run in self._waiting)
        lacks = guard.old.missing()
        self._purged = {at: self._lacking(guard, rows) for at, rows in by_month(lacks).items()}
        for waiting in (False, True):
            for month in guard.old.months:
                for fit, entry, known in self._of_month(guard, month):
                    if (entry.run in self._waiting) is not waiting:
                        continue
                    rows = guard.old.rows(entry, known)
                    if waiting and not lacks.keys().isdisjoint(rows):
                        self._hold_old(fit, entry, self._purged[month])
                    elif rows and lacks.keys().isdisjoint(rows):
                        self._send_again(guard, fit, now, again=not waiting)
        self._let_go(guard)

    def _of_month(
        self, guard: Guard, month: int
    ) -> Iterator[tuple[Publish, Entry, Recorded | None]]:
        """Yield the jobs of a month that can be sent, each with what it would count for."""
        for fit in guard.month(month):
            with suppress(Unfit):
                fit = fit._replace(published=pinned(fit.published, fit.known))
                yield fit, self._maker.entry(fit), fit.known

    def _send_again(self, guard: Guard, fit: Publish, now: datetime, *, again: bool) -> None:
        try:
            record, known = self.rendered(fit, now), fit.known
            if not again and known and guard.moves.add(record.counts_for, known):
                self._moving[record.run] = record, known
            else:
                self._pack_and_send(record, known, None, again=again)
        except Unfit as unfit:
            quarantined = skipped_job(fit.published.job, unfit)
            self._sender.quarantine(quarantined)
            self._builder.mark(Progress(skipped=(quarantined,)))

    def _lacking(self, guard: Guard, rows: Mapping[RowId, int]) -> BlockedMonth:
        """Return what is held of a month, of whose rows so many jobs cannot be sent again."""
        month = next(iter(rows)).month
        totals = tuple(_for_people(guard, row) for row in sorted(rows))
        return BlockedMonth(month, totals, sum(rows.values()), purged=True)

    def _hold_old(self, fit: Publish, entry: Entry, held: BlockedMonth) -> None:
        job, action = fit.published.job, held_month(held)
        self._sender.tally.actions.job(held.month, action, Example(job.job_id))
        self._before.hold(entry, job.job_id, held.month, action.reason)

    def _packed(self, record: Rendered, mark: Progress | None) -> Sequence[Batch]:
        """Pack a record; if too large, without what its format can leave out. Raises: Unfit."""
        try:
            return self._builder.add(record, mark)
        except Unfit as unfit:
            less = lighter(self.format, record.content) if unfit.rule == TOO_LARGE else None
            if less is None:
                raise
            batches = self._builder.add(record._replace(content=less), mark)
            self._sender.shed(record.run, record.job_id, unfit.reason)
            return batches

    def mark(self, progress: Progress) -> None:
        self._before.write_down()
        if self._moving or self._waiting:  # how far was read is noted once they were looked at
            self._behind = progress.cursor or self._behind
            progress = replace(progress, cursor=None)
        elif progress.cursor:
            self._behind = None
        self._builder.mark(progress)

    def write_down(self) -> None:
        """Ship what waits, and note the progress behind it. Raises: Stopped."""
        for batch in self._builder.rest():
            self._sender.send(batch)

    def conclude(self, now: datetime) -> None:
        """The end of the round's reading. Raises: Stopped, SourceError."""
        if self._guard is not None:
            self._let_go(self._guard)
            if self._waiting:
                self._send_old_rows(self._guard, now)
        self._before.write_down()
        if self._behind:
            self._builder.mark(Progress(cursor=self._behind))
        self.write_down()
        self._sender.finish()
        self._sender.conclude()


def _for_people(guard: Guard, row: RowId) -> KeyTotal:
    return row_for_people(guard.moves.row(row), by_level=True)
