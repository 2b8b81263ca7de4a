"""Where jobs to publish go: into batches of single records, sent as they fill, or into months.

`BatchBuilder`: rendered records in, batches out that keep both limits, in order, with the progress
that each completes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from publisher.formats.base import JobFormat, SummaryFormat, lighter
from publisher.ledger.contract import Consents, Entries, Ledger
from publisher.model.entry import Entry, Recorded, RowFields, RowId, RowKey
from publisher.model.errors import Unfit
from publisher.model.job import JobKey
from publisher.model.message import TOO_LARGE, Batch, OpenRow, Progress, RecordColumns, Rendered
from publisher.model.published import Placement, PublishedJob
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
from publisher.publishing.plan.decision import Decider, Publish
from publisher.publishing.plan.holds import HeldBefore
from publisher.publishing.plan.known_rows import rows_for_people
from publisher.publishing.plan.reasons import held_month
from publisher.publishing.plan.records import RecordMoves, pinned
from publisher.publishing.plan.restored import RestoredLedger
from publisher.publishing.plan.runs import entry_of, plan_record
from publisher.publishing.round.live import LiveTarget, own_rows
from publisher.publishing.round.sender import MessageSender
from publisher.publishing.round.totals import MonthlyTotals
from publisher.sources.base import Page, Source


class BatchBuilder:
    """Cuts batches between records, never inside one, before anything is sent.

    `most_records` 0 is no limit by count. `most_bytes` is asked once how much one payload may have,
    the frame counted by `around` bytes once and `between` bytes at each record. `fill_to` is asked
    at every record how full a payload shall be now: less than `most_bytes` when the service has
    refused a size. A record that is larger than that goes alone: whether it is too large shall be
    the service's word.
    """

    def __init__(
        self,
        *,
        most_records: int,
        most_bytes: Callable[[], int],
        around: int,
        between: int,
        fill_to: Callable[[], int],
    ) -> None:
        self._most_records = most_records
        self._payload_limit = most_bytes
        self._around = around
        self._between = between
        self._fill_to = fill_to
        self._waiting = RecordColumns()
        self._bytes = 0
        self._marks: deque[tuple[int, Progress]] = deque()
        self._added = 0
        self._cut = 0
        self._keys: set[JobKey] = set()

    @cached_property
    def _most_bytes(self) -> int:
        return self._payload_limit() - self._around

    def __contains__(self, key: JobKey) -> bool:
        return key in self._keys

    def add(self, record: Rendered, progress: Progress | None = None) -> Sequence[Batch]:
        """Add a record; gives the batches that it closes, if any. `progress` goes with its batch.

        Raises: Unfit for a record that no message can hold.
        """
        size = len(record.content) + self._between
        if size > self._most_bytes:
            holds = f"a message holds {self._most_bytes}"
            raise Unfit(TOO_LARGE, f"the record alone has {size} bytes, {holds}")
        full = [] if self._has_room(size) else [self._close()]
        self._append(RecordColumns.of([record]), size)
        if progress is not None:
            self.mark(progress)
        return [*full, self._close()] if self._is_full() else full

    def _has_room(self, size: int) -> bool:
        """Whether a record goes into this message, or is the first of it."""
        if not self._waiting:
            return True
        most = min(self._most_bytes, self._fill_to() - self._around)
        is_full = 0 < self._most_records <= len(self._waiting)
        return self._bytes + size <= most and not is_full

    def _append(self, records: RecordColumns, size: int) -> None:
        self._waiting.extend(records)
        self._keys.update(records.keys)
        self._bytes += size
        self._added += len(records)

    def _is_full(self) -> bool:
        return 0 < self._most_records <= len(self._waiting)

    def mark(self, progress: Progress) -> None:
        """What was read so far is accounted for once the records before `progress` are written."""
        if self._marks and self._marks[-1][0] == self._added:
            progress = self._marks.pop()[1] + progress
        self._marks.append((self._added, progress))

    @property
    def idle(self) -> bool:
        """Whether no record waits: then progress can be written down at once."""
        return not self._waiting

    def rest(self) -> Iterator[Batch]:
        """The last batch, perhaps without records when there is only progress to write down."""
        if self._waiting or self._marks:
            yield self._close()

    def _close(self) -> Batch:
        records, self._waiting = self._waiting, RecordColumns()
        self._keys.clear()
        self._bytes = 0
        self._cut += len(records)
        progress = Progress()
        while self._marks and self._marks[0][0] <= self._cut:
            progress += self._marks.popleft()[1]
        return Batch(records=records, progress=progress)


# Runs that come to other rows, and wait to be looked at together: some 10 MB.
_MOVING: Final = 2_000


class Guard(NamedTuple):
    """What a regular round keeps back from a receiver that adds records up, and deletes no sum."""

    totals: Mapping[int, BlockedMonth]  # months that it has as totals
    held_before: Collection[int]  # months of which something is held back
    moves: RecordMoves
    accept: Callable[[int, Sequence[KeyTotal]], None] | None  # rows of a month may stay behind


class RecordMaker:
    """Renders the jobs of a format, each with what the ledger keeps of it."""

    def __init__(self, job_format: JobFormat) -> None:
        self._format = job_format
        row_keys = job_format.receiver.row_keys
        self._keys = None if row_keys is None else row_keys()

    def rendered(self, fit: Publish, now: datetime) -> Rendered:
        """Raises: Unfit."""
        published = fit.published
        return Rendered.of(
            published.job,
            self._format.render(published, now),
            fit.entry,
            counts_for=self.entry(published, fit.entry.digest),
        )

    def entry(self, published: PublishedJob, digest: bytes) -> Entry:
        """Return what the record of a job counts for. Raises: Unfit outside the calendar."""
        where = published.where
        fields = _of_host(where) if self._keys is None else self._keys.of(published)
        return entry_of(published, RowKey(month_number(published.ended_at), fields), digest)


def _of_host(where: Placement) -> RowFields:
    """Return the row of a receiver that adds nothing up: the submit host, as for sync counts."""
    host = ascii_key(where.receiver_host)
    return RowFields.of({"SubmitHost": host}, (column(host),))


class JobBatches:
    """What a round does with jobs when its format has one record a job."""

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
        self._totals: Mapping[int, BlockedMonth] = {} if guard is None else guard.totals
        self._moving: dict[JobKey, tuple[Rendered, Recorded]] = {}
        self._open: list[OpenRow] = []  # of runs held back: the next round looks at them again
        # Jobs that wait for totals to go were passed in an earlier round, and wait still.
        months = () if guard is None else guard.held_before
        self._held = {at: self._totals[at] for at in months if at in self._totals}
        # Since the last page began: of those before it the ledger tells.
        self._shipped: set[JobKey] = set()

    def __contains__(self, key: JobKey) -> bool:
        return key in self._builder or key in self._moving or key in self._shipped

    @property
    def held(self) -> list[BlockedMonth]:
        """Months of which something is held back."""
        return [*self._restored.held, *(self._held[month] for month in sorted(self._held))]

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a batch to fill."""
        return self._builder.idle

    def take(self, fit: Publish, now: datetime, mark: Progress | None = None) -> None:
        """Render a job and pack it; ships the batch that it closes.

        Raises: Unfit; Stopped, SourceError.
        """
        known, job, month = fit.known, fit.published.job, month_number(fit.published.ended_at)
        if self._restored.holds(job, month, known, is_single=True):
            self._hold(fit, month, self._restored.reason(month))
            return
        if self._is_held_back(fit):
            return
        if self._guard is not None:
            fit = fit._replace(published=pinned(fit.published, known))
        record = self.rendered(fit, now)
        if self._guard is not None and known and self._guard.moves.add(record.counts_for, known):
            self._moving[fit.entry.key] = record, known
            if len(self._moving) >= _MOVING:
                self._let_go(self._guard)
            return
        self._pack_and_send(record, known, mark)

    def rendered(self, fit: Publish, now: datetime) -> Rendered:
        """Raises: Unfit."""
        return self._maker.rendered(fit, now)

    def _is_held_back(self, fit: Publish) -> bool:
        """Whether the receiver has the job's month as totals."""
        if not self._totals:
            return False
        held = self._totals.get(month_number(fit.entry.ended_at))
        if held is not None:
            self._held[held.month] = held
            action = held_month(held)
            self._sender.tally.actions.job(held.month, action, Example(fit.published.job.job_id))
            self._hold(fit, held.month, action.reason)
        return held is not None

    def _hold(self, fit: Publish, month: int, reason: str) -> None:
        """Keep that a run waits, and what it would count for."""
        entry = self._maker.entry(fit.published, fit.entry.digest)
        self._before.hold(entry, fit.published.job.job_id, month, reason)

    def _pack_and_send(
        self, record: Rendered, known: Recorded | None, mark: Progress | None
    ) -> None:
        entry = record.counts_for
        action = plan_record(entry, known, again=self._again)
        self._sender.remarks.note_action(record.key, entry.row.month, action, record.job_id)
        for batch in self._packed(record, mark):
            self._send(batch)

    def _let_go(self, guard: Guard) -> None:
        """Pack the runs that leave no row behind at the receiver, or may."""
        moving, self._moving = list(self._moving.values()), {}
        accepts = guard.accept is not None

        def is_accepted(row: RowId) -> bool:
            return accepts and self._before.accepts((row,), shown(_for_people(guard, row)))

        rows_held, left = guard.moves.hold(is_accepted)
        held = self._hold_rows(guard, rows_held.keys)
        if guard.accept is not None:
            for month, rows in groupby(left, attrgetter("month")):
                guard.accept(month, [_for_people(guard, row) for row in rows])
        for record, known in moving:
            if known.row in rows_held.rows:
                self._open.append(OpenRow(row=record.row, finished_seen_at=None))
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

    def _packed(self, record: Rendered, mark: Progress | None) -> Sequence[Batch]:
        """Pack a record; if too large, without what its format can leave out. Raises: Unfit."""
        try:
            return self._builder.add(record, mark)
        except Unfit as unfit:
            less = lighter(self.format, record.content) if unfit.rule == TOO_LARGE else None
            if less is None:
                raise
            batches = self._builder.add(record._replace(content=less), mark)
            self._sender.shed(record.key, record.job_id, unfit.reason)
            return batches

    def _send(self, batch: Batch) -> None:
        self._shipped.update(batch.records.keys)
        self._sender.send(batch)

    def mark(self, progress: Progress) -> None:
        self._builder.mark(progress)
        self._shipped.clear()

    def write_down(self) -> None:
        """Ship what waits, and note the progress behind it. Raises: Stopped."""
        for batch in self._builder.rest():
            self._send(batch)

    def conclude(self, now: datetime) -> None:
        """The end of the round's reading. Raises: Stopped, SourceError."""
        if self._guard is not None:
            self._let_go(self._guard)
        self.write_down()
        if self._open:  # after what was written down, which closes rows that were looked at
            self._builder.mark(Progress(opened=tuple(self._open)))
            self.write_down()
        self._sender.finish()
        self._sender.conclude()


def _for_people(guard: Guard, row: RowId) -> KeyTotal:
    return row_for_people(guard.moves.row(row), by_level=True)


RecordSink = JobBatches | MonthlyTotals
"""Where fit jobs go."""


def open_sink(
    live: LiveTarget,
    decider: Decider,
    source: Source,
    ledger: Ledger,
    sender: MessageSender,
    clock: Callable[[], datetime],
    *,
    held_before: Collection[int],
    restored: RestoredLedger,
    before: HeldBefore,
    page_read: Callable[[Page], None],
) -> RecordSink:
    """The record sink of the target's format. `held_before`: months with something held back.

    `page_read` is called for pages that are read to sum a month up again, but in regular rounds.
    """
    if isinstance(live.format, SummaryFormat):
        places = decider, source, ledger, sender, clock
        held = restored, before
        return MonthlyTotals(live, live.format, *places, *held, page_read=page_read)
    frame = live.format.frame
    builder = BatchBuilder(
        most_records=live.batch_records,
        most_bytes=live.transport.payload_limit,
        around=len(frame.head) + len(frame.tail),
        between=len(frame.separator),
        fill_to=sender.payload_limit,
    )
    summed = live.format.receiver.row_keys is not None
    guard = None
    if summed and not decider.again:  # what a window sends again was looked at when it was planned
        accept = _accepting(live, ledger.consents, clock) if live.accept_key_change else None
        guard = Guard(
            totals=_sent_as_totals(live, ledger.entries),
            held_before=held_before,
            moves=RecordMoves(live.settings, partial(ledger.entries.rows, live.name)),
            accept=accept,
        )
    args = live.format, builder, sender, restored, before
    return JobBatches(*args, again=decider.again, guard=guard)


def _sent_as_totals(live: LiveTarget, entries: Entries) -> dict[int, BlockedMonth]:
    """Return the months that the receiver has as totals: records would count beside."""
    return {
        known.month: BlockedMonth(
            known.month,
            orphaned=rows_for_people(
                own_rows(entries.rows(live.name, known.month), live.selection, live.beside),
                known.format,
            ),
            lost_jobs=0,
            was=known.format,
        )
        for known in entries.months(live.name)
        if known.format
    }


def _accepting(
    live: LiveTarget, consents: Consents, clock: Callable[[], datetime]
) -> Callable[[int, Sequence[KeyTotal]], None]:
    """Return what notes that rows of a month stay at the receiver with consent."""
    accept = partial(consents.accept, of_records=True)
    return lambda month, rows: accept(live.name, month, rows, 0, clock())
