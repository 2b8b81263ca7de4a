"""Where jobs to publish go: into batches of single records, sent as they fill, or into months.

`BatchBuilder`: rendered records in, batches out that keep both limits, in order, with the progress
that each completes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property, partial
from typing import Final, NamedTuple, Protocol

from publisher.formats import receiver_of
from publisher.formats.base import JobFormat, RecordOrigin, SummaryFormat, lighter
from publisher.ledger.contract import Ledger
from publisher.model.entry import Entry, RecordKey, RowFields, RowKey, run_key
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobKey
from publisher.model.message import TOO_LARGE, Batch, OpenRow, Progress, RecordColumns, Rendered
from publisher.model.published import Placement, PublishedJob
from publisher.model.totals import (
    BY_JURA,
    BlockedMonth,
    KeyTotal,
    ascii_key,
    column,
    month_name,
    month_number,
)
from publisher.pipeline.guards import keys
from publisher.pipeline.round.decision import KEY_CHANGED, Decider, Publish
from publisher.pipeline.round.sender import MessageSender
from publisher.pipeline.round.totals import MonthlyTotals
from publisher.pipeline.site import LiveTarget
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


# Runs that changed after delivery and wait to be looked at together: some 10 MB.
_CHANGED: Final = 2_000


class RowsEmptied(Protocol):
    """Rows at the receiver that lose their last jobs when changed runs of a month go out again.

    `runs`: so many of each row, by its digest.
    """

    def __call__(
        self, month: int, runs: Mapping[bytes, int], now: datetime
    ) -> Sequence[KeyTotal]: ...


class Guard(NamedTuple):
    """What a regular round keeps back from a receiver that adds records up, and deletes no sum."""

    totals: Mapping[int, BlockedMonth]  # months that it has as totals
    held_before: Collection[int]  # months that the last round held back
    emptied: RowsEmptied
    # Of rows of a month that were sent under another policy.
    origins: Callable[[int], Collection[RecordOrigin]]


class RecordMaker:
    """Renders the jobs of a format, each with what the ledger keeps of it."""

    def __init__(self, job_format: JobFormat) -> None:
        self._format = job_format
        row_keys = job_format.receiver.row_keys
        self._keys = None if row_keys is None else row_keys()

    def rendered(self, fit: Publish, now: datetime) -> Rendered:
        """Raises: Unfit."""
        published = fit.published
        month = month_number(published.ended_at)
        key = None if self._keys is None else self._keys.of(published)
        fields = _of_host(published.where) if key is None else key.fields
        summary_key = None if key is None else key.of_month(month)
        return Rendered.of(
            published.job,
            self._format.render(published, now),
            fit.entry,
            first_time=fit.known is None,
            submit_host=ascii_key(published.where.receiver_host),
            summary_key=summary_key,
            counts_for=_entry(published, RowKey(month, fields)),
        )


def _of_host(where: Placement) -> RowFields:
    """Return the row of a receiver that adds nothing up: the submit host, as for sync counts."""
    host = ascii_key(where.receiver_host)
    return RowFields.of({"SubmitHost": host}, (column(host),))


def _entry(published: PublishedJob, row: RowKey) -> Entry:
    job, where = published.job, published.where
    local_id = published.local_id.removeprefix(where.localid_prefix)
    return Entry(
        run=run_key(job.submitted_at, job.job_id, job.local_id),
        record=RecordKey(where.site, where.localid_prefix, local_id, published.ended_at),
        row=row,
        wall_s=job.wall_s,
        cpu_s=job.cpu_user_s + job.cpu_kernel_s,
        digest=job.values_digest,
    )


class JobBatches:
    """What a round does with jobs when its format has one record a job."""

    def __init__(
        self,
        job_format: JobFormat,
        builder: BatchBuilder,
        sender: MessageSender,
        *,
        guard: Guard | None = None,
    ) -> None:
        self.format = job_format
        self._builder = builder
        self._sender = sender
        self._maker = RecordMaker(job_format)
        self._guard = guard
        self._totals: Mapping[int, BlockedMonth] = {} if guard is None else guard.totals
        self._changed: dict[JobKey, Rendered] = {}
        self._open: list[OpenRow] = []  # of runs held back: the next round looks at them again
        # Jobs that wait for totals to go were passed in an earlier round, and wait still.
        before = () if guard is None else guard.held_before
        self._held = {at: self._totals[at] for at in before if at in self._totals}
        # Since the last page began: of those before it the ledger tells.
        self._shipped: set[JobKey] = set()

    def __contains__(self, key: JobKey) -> bool:
        return key in self._builder or key in self._changed or key in self._shipped

    @property
    def held(self) -> list[BlockedMonth]:
        """Months of which something is held back."""
        return [self._held[month] for month in sorted(self._held)]

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a batch to fill."""
        return self._builder.idle

    def take(self, fit: Publish, now: datetime, mark: Progress | None = None) -> None:
        """Render a job and pack it; ships the batch that it closes.

        Raises: Unfit; Stopped, SourceError.
        """
        if self._is_held_back(fit.entry.ended_at):
            return
        record = self.rendered(fit, now)
        if self._guard is not None and fit.known is not None:
            _check_origin(record, self._guard)
            self._changed[fit.entry.key] = record
            if len(self._changed) >= _CHANGED:
                self._let_go(self._guard, now)
            return
        self._pack_and_send(record, mark)

    def rendered(self, fit: Publish, now: datetime) -> Rendered:
        """Raises: Unfit."""
        return self._maker.rendered(fit, now)

    def _is_held_back(self, ended_at: Epoch) -> bool:
        """Whether the receiver has the job's month as totals."""
        if not self._totals:
            return False
        held = self._totals.get(month_number(ended_at))
        if held is not None:
            self._held[held.month] = held
        return held is not None

    def _pack_and_send(self, record: Rendered, mark: Progress | None) -> None:
        for batch in self._packed(record, mark):
            self._send(batch)

    def _let_go(self, guard: Guard, now: datetime) -> None:
        """Pack the changed runs of months in which none was the last of its row at the receiver."""
        changed, self._changed = self._changed, {}
        months: dict[int, list[Rendered]] = {}
        for record in changed.values():
            months.setdefault(month_number(record.ended_at), []).append(record)
        for month, records in months.items():
            digests = [one.summary_key.digest for one in records if one.summary_key is not None]
            runs = Counter(digests)
            if orphaned := guard.emptied(month, runs, now):
                self._held[month] = BlockedMonth(month=month, orphaned=tuple(orphaned), lost_jobs=0)
                self._open += [OpenRow(row=record.row, finished_seen_at=None) for record in records]
                continue
            for record in records:
                try:
                    self._pack_and_send(record, None)
                except Unfit as unfit:
                    quarantined = record.set_aside(unfit)
                    self._sender.quarantine(quarantined)
                    self._builder.mark(Progress(skipped=(quarantined,)))

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
            self._let_go(self._guard, now)
        self.write_down()
        if self._open:  # after what was written down, which closes rows that were looked at
            self._builder.mark(Progress(opened=tuple(self._open)))
            self.write_down()
        self._sender.finish()
        self._sender.conclude()


def _check_origin(record: Rendered, guard: Guard) -> None:
    """Raises: Unfit for a changed run whose record may stand at the receiver beside the new one."""
    if record.summary_key is None:
        return
    month, now = record.summary_key.month, RecordOrigin.of(record.summary_key)
    others = [one for one in guard.origins(month) if not one.is_like(now)]
    if others:
        name = month_name(month)
        raise Unfit(
            KEY_CHANGED,
            f"it changed after it was delivered, and {name} was sent with "
            f"{', '.join(sorted(map(str, others)))}: with {now} it would count twice; set those of "
            f"before again, or see what `publisher republish --from {name} --to {name}` says",
        )


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
    page_read: Callable[[Page], None],
) -> RecordSink:
    """The record sink of the target's format. `held_before`: months that the last round held back.

    `page_read` is called for pages that are read to sum a month up again, but in regular rounds.
    """
    if isinstance(live.format, SummaryFormat):
        places = decider, source, ledger, sender, clock
        return MonthlyTotals(live, live.format, *places, page_read=page_read)
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
        guard = Guard(
            totals=_sent_as_totals(live, ledger),
            held_before=held_before,
            emptied=partial(_emptied, live, source, ledger, clock),
            origins=cache(partial(_origins, live, ledger)),
        )
    return JobBatches(live.format, builder, sender, guard=guard)


def _sent_as_totals(live: LiveTarget, ledger: Ledger) -> dict[int, BlockedMonth]:
    """Months that the receiver has as totals of a format of before: records would count beside."""
    found = {}
    for state in ledger.months(live.name):
        if state.accepted_digest or state.on_its_way:
            rows: tuple[KeyTotal, ...] = ()
            if groups := ledger.accepted(live.name, state.month):  # '' has no receiver
                by_level = receiver_of(state.accepted_format).keeps_benchmark_values
                rows = tuple(group.row(by_level=by_level) for group in groups)
            was = state.accepted_format or "totals"
            found[state.month] = BlockedMonth(state.month, orphaned=rows, lost_jobs=0, was=was)
    return found


def _origins(live: LiveTarget, ledger: Ledger, month: int) -> set[RecordOrigin]:
    """Of rows that this target sent before its policy was what it is."""
    of_now = live.policy_digest, BY_JURA
    sent = ledger.summary_keys(live.name, month)
    return {RecordOrigin.of(total.key) for total, policy in sent if policy not in of_now}


def _emptied(
    live: LiveTarget,
    source: Source,
    ledger: Ledger,
    clock: Callable[[], datetime],
    month: int,
    runs: Mapping[bytes, int],
    now: datetime,
) -> tuple[KeyTotal, ...]:
    """Rows that changed runs would leave behind at the receiver, unless that is accepted."""
    wanted = keys.JobScope(
        target=live.name,
        format=live.format.name,
        selection=live.selection,
        policy=live.policy,
        beside=live.beside,
        sent_by_jura=live.sent_by_jura,
    )
    rows = keys.emptied(wanted, runs, month, source, ledger, now, live.policy_digest)
    if rows and live.accept_key_change:
        ledger.accept_change(live.name, month, rows, 0, clock())
        return ()
    return rows
