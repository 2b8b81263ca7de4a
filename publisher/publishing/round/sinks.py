"""Where the jobs of a round go: each to the sink of its month's kind.

A month goes on as single records or as totals, as it began, whatever the format of the target is by
now. So a round has two sinks where its receiver has months of the other kind: one sends messages as
they fill, the other one plans all of its rows, and comes last.

    target: apel-summary-0.4; 2026-05 began as car    ->  2026-05 goes on as car, 2026-06 as totals
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import NamedTuple

from publisher.formats import job_format, summary_format
from publisher.formats.base import JobFormat, SummaryFormat
from publisher.jobs.reader import JobPage, StoreReader
from publisher.ledger.contract import Entries, Ledger
from publisher.model.entry import Recorded, RunKey
from publisher.model.errors import Unfit
from publisher.model.job import JobRecord, key_of
from publisher.model.message import Progress
from publisher.model.totals import BlockedMonth, month_number, month_window
from publisher.publishing.databases.reader import LoadedFirst
from publisher.publishing.plan.decision import Decider, Publish
from publisher.publishing.plan.holds import HeldBefore
from publisher.publishing.plan.months import is_of_records
from publisher.publishing.plan.records import OldRows, RecordMoves, first_kept
from publisher.publishing.plan.restored import RestoredLedger
from publisher.publishing.round.assemble import BatchBuilder
from publisher.publishing.round.batches import Guard, JobBatches
from publisher.publishing.round.live import LiveTarget
from publisher.publishing.round.sender import MessageSender
from publisher.publishing.round.totals import MonthlyTotals

RecordSink = JobBatches | MonthlyTotals
"""Where fit jobs go."""


class OtherKind(NamedTuple):
    """The months of a receiver that go on in the other kind than that of the target's format."""

    format: JobFormat | SummaryFormat
    months: frozenset[int] = frozenset()


def other_kind(live: LiveTarget, entries: Entries) -> OtherKind | None:
    """Return the months of the other kind; None without any."""
    own = live.format
    if isinstance(own, SummaryFormat):
        months = {one.month for one in entries.months(live.name) if is_of_records(one)}
        # Of closed months nobody knows it, and nothing of them is sent.
        forms = {entries.record_format(live.name, month) for month in months} - {""}
        return OtherKind(job_format(max(forms)), frozenset(months)) if forms else None
    if own.receiver.row_keys is None:
        return None
    formats = {one.month: one.format for one in entries.months(live.name) if one.format}
    form = max(formats.values(), default="")
    return OtherKind(summary_format(form), frozenset(formats)) if formats else None


class Outlet(NamedTuple):
    """A sink, and what decides on the jobs that go there."""

    sink: RecordSink
    decider: Decider


class Sinks:
    """The sink of the target's format, and that of the months of the other kind."""

    def __init__(
        self,
        own: Outlet,
        restored: RestoredLedger,
        other: Outlet | None = None,
        months: Collection[int] = (),
    ) -> None:
        self._own = own
        self._restored = restored
        self._other = other
        self._months = months
        both = [own.sink] if other is None else [own.sink, other.sink]
        # Totals come last: they note how far was read.
        self._all = sorted(both, key=lambda sink: isinstance(sink, MonthlyTotals))

    @property
    def met(self) -> Set[RunKey]:
        """Runs that were taken, and that the ledger may not tell of yet."""
        return frozenset(chain.from_iterable(sink.met for sink in self._all))

    def of(self, job: JobRecord, known: Recorded | None) -> Outlet:
        """Return where a job goes: by the month in which it counts, or else by its end."""
        if self._other is None:
            return self._own
        counts = known is not None and (known.pending or known.counts)
        if known is not None and counts:
            month = known.row.month
        else:
            try:
                month = month_number(job.ended_at)
            except Unfit:
                return self._own
        return self._other if month in self._months else self._own

    @property
    def records(self) -> JobBatches | None:
        """The sink of single records, if there is one."""
        return next((sink for sink in self._all if isinstance(sink, JobBatches)), None)

    @property
    def totals(self) -> MonthlyTotals | None:
        """The sink of totals, if there is one."""
        return next((sink for sink in self._all if isinstance(sink, MonthlyTotals)), None)

    @property
    def held(self) -> list[BlockedMonth]:
        """Months of which something is held back."""
        return [*self._restored.held, *(month for sink in self._all for month in sink.held)]

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a batch to fill."""
        return all(sink.idle for sink in self._all)

    def mark(self, progress: Progress, *, waits: bool = False) -> None:
        """Keep what was read and set aside, until what is before it is accepted.

        How far was read is kept no more once a job `waits`, here or in a sink, for a later round.
        """
        if waits or any(sink.waits for sink in self._all):
            progress = replace(progress, cursor=None)
        *others, last = self._all
        for sink in others:
            sink.mark(Progress())
        last.mark(progress)

    def write_down(self) -> None:
        """Write down what waits. Raises: Stopped."""
        for sink in self._all:
            sink.write_down()

    def conclude(self, now: datetime) -> None:
        """The end of the round's reading. Raises: Stopped, SourceError."""
        for sink in self._all:
            sink.conclude(now)


def open_sink(
    live: LiveTarget,
    decider: Decider,
    jobs: StoreReader,
    ledger: Ledger,
    sender: MessageSender,
    clock: Callable[[], datetime],
    *,
    other: OtherKind | None,
    restored: RestoredLedger,
    before: HeldBefore,
    first: LoadedFirst,
    page_read: Callable[[JobPage], None],
) -> Sinks:
    """Return the sinks of a round; `page_read` is called for pages that are read once more."""

    def outlet(form: JobFormat | SummaryFormat) -> Outlet:
        retracts = isinstance(form, SummaryFormat) and live.accept_key_change
        of_form = decider._replace(changed=form.receiver.on_change, retracts=retracts)
        places = of_form, jobs, ledger, sender, clock, restored, before
        sink: RecordSink
        if isinstance(form, SummaryFormat):
            sink = MonthlyTotals(live, form, *places, first=first, page_read=page_read)
        else:
            sink = _batches(live, form, *places, first)
        return Outlet(sink, of_form)

    if other is None:
        return Sinks(outlet(live.format), restored)
    return Sinks(outlet(live.format), restored, outlet(other.format), other.months)


def _batches(
    live: LiveTarget,
    form: JobFormat,
    decider: Decider,
    jobs: StoreReader,
    ledger: Ledger,
    sender: MessageSender,
    clock: Callable[[], datetime],
    restored: RestoredLedger,
    before: HeldBefore,
    first: LoadedFirst,
) -> JobBatches:
    """Return the sink of single records."""
    frame = form.frame
    builder = BatchBuilder(
        most_records=live.batch_records,
        most_bytes=live.transport.payload_limit,
        around=len(frame.head) + len(frame.tail),
        between=len(frame.separator),
        fill_to=sender.payload_limit,
    )
    summed = form.receiver.row_keys is not None
    guard = None
    if summed and not decider.again:  # what a window sends again was looked at when it was planned
        rows_of, whole = partial(ledger.entries.rows, live.name), decider._replace(again=True)
        guard = Guard(
            moves=RecordMoves(live.settings, rows_of),
            accepts=live.accept_key_change,
            old=OldRows(first_kept(live.single_months, clock()), rows_of),
            month=partial(_jobs_of, live, whole, jobs, ledger, before.runs, first),
        )
    args = form, builder, sender, restored, before
    return JobBatches(*args, again=decider.again, guard=guard)


def _jobs_of(
    live: LiveTarget,
    decider: Decider,
    jobs: StoreReader,
    ledger: Ledger,
    waiting: Collection[RunKey],
    first: LoadedFirst,
    month: int,
) -> Iterator[Publish]:
    """Yield the jobs of a month that can be sent, delivered or not."""
    window = month_window(month)
    decider = decider._replace(selection=decider.selection._replace(window=window))
    for page in jobs.window(window):
        known = ledger.entries.recorded(live.name, page.runs)
        page = first.wanted(page, known, waiting, again=decider.again)
        held = ledger.quarantine.held(live.name, [*map(key_of, page.runs)])
        for job, run in zip(page.jobs, page.runs, strict=True):
            fit = decider.decide(job, run, known.get(run), held.get(key_of(run)))
            if isinstance(fit, Publish):
                yield fit
