"""Where jobs to publish go: into batches of single records, or into the totals of their months."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from typing import Protocol

from publisher.formats import receiver_of
from publisher.formats.base import SummaryFormat
from publisher.ledger.contract import Ledger
from publisher.model.job import JobKey
from publisher.model.message import Progress
from publisher.model.totals import BlockedMonth, KeyTotal
from publisher.pipeline.guards import keys
from publisher.pipeline.round.batches import BatchBuilder, Guard, JobBatches
from publisher.pipeline.round.decision import Decider, Publish
from publisher.pipeline.round.sender import MessageSender
from publisher.pipeline.round.totals import MessageLimits, MonthlyTotals
from publisher.pipeline.site import LiveTarget
from publisher.sources.base import Page, Source


class RecordSink(Protocol):
    """Where fit jobs go: `JobBatches` or `MonthlyTotals`."""

    def __contains__(self, key: JobKey) -> bool:
        """Whether a run was taken and is not yet written down."""
        ...

    @property
    def idle(self) -> bool: ...
    @property
    def held(self) -> list[BlockedMonth]:
        """Months of which something is held back until an administrator says so."""
        ...

    def take(self, fit: Publish, now: datetime, place: Progress | None = None) -> None:
        """`place`: how far the reading has come with this job, where that is told within pages."""
        ...

    def mark(self, progress: Progress) -> None: ...
    def write_down(self) -> None: ...
    def conclude(self, now: datetime) -> None: ...


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
    """The outlet of the target's format. `held_before`: months that the last round held back.

    `page_read` is told of pages that are read to sum a month up again.
    """
    if isinstance(live.format, SummaryFormat):
        return MonthlyTotals(
            target=live.name,
            summary_format=live.format,
            decider=decider,
            source=source,
            ledger=ledger,
            sender=sender,
            scales=MessageLimits(most_records=live.batch_records, fill_to=sender.payload_limit),
            basis=f"{live.selection_digest}-{live.policy_digest}-{live.source_digest}",
            accept_key_change=live.accept_key_change,
            clock=clock,
            page_read=page_read if decider.again else lambda _: None,  # a regular round tells of its own reading only
        )
    frame = live.format.frame
    builder = BatchBuilder(
        most_records=live.batch_records,
        most_bytes=live.transport.payload_limit(),
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
        )
    return JobBatches(live.format, builder, sender, guard=guard)


def _sent_as_totals(live: LiveTarget, ledger: Ledger) -> dict[int, BlockedMonth]:
    """Months that the receiver has as totals, in a format of before: single records would count beside them."""
    return {
        state.month: BlockedMonth(
            month=state.month,
            orphaned=tuple(
                group.row(by_level=receiver_of(state.accepted_format).keeps_benchmark_values)
                for group in ledger.accepted(live.name, state.month)
            ),
            lost_jobs=0,
            was=state.accepted_format or "totals",
        )
        for state in ledger.months(live.name)
        if state.accepted_digest or state.on_its_way
    }


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
        sent_by_jura=live.sent_by_jura,
    )
    rows = keys.emptied(wanted, runs, month, source, ledger, now, live.policy_digest)
    if rows and live.accept_key_change:
        ledger.accept_change(live.name, month, rows, 0, clock())
        return ()
    return rows
