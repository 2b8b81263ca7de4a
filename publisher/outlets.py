"""Where a round's fit jobs go: on as single records, or into the totals of their months."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from typing import Protocol

from publisher import key_guard
from publisher.aim import Aim
from publisher.batching import Guard, JobBatches
from publisher.dispatch import Dispatch
from publisher.formats.base import SummaryFormat, has_levels
from publisher.judge import Changed, Fit, Judge
from publisher.ledger.base import Ledger
from publisher.model.job import JobKey
from publisher.model.months import HeldMonth, row_of
from publisher.model.parcel import Packer
from publisher.model.progress import Progress
from publisher.model.summary_keys import KeyTotal
from publisher.sources.base import Page, Source
from publisher.summing import MonthTotals, Scales


class Outlet(Protocol):
    """Where fit jobs go: `JobBatches` or `MonthTotals`."""

    def __contains__(self, key: JobKey) -> bool:
        """Whether a run was taken and is not yet written down."""
        ...

    @property
    def idle(self) -> bool: ...
    @property
    def held(self) -> list[HeldMonth]:
        """Months of which something is held back until an administrator says so."""
        ...

    def take(self, fit: Fit, now: datetime, place: Progress | None = None) -> None:
        """`place`: how far the reading has come with this job, where that is told within pages."""
        ...

    def mark(self, progress: Progress) -> None: ...
    def write_down(self) -> None: ...
    def conclude(self, now: datetime) -> None: ...


def open_outlet(
    aim: Aim,
    judge: Judge,
    source: Source,
    ledger: Ledger,
    dispatch: Dispatch,
    clock: Callable[[], datetime],
    *,
    held_before: Collection[int],
    page_read: Callable[[Page], None],
) -> Outlet:
    """The outlet of the target's format. `held_before`: months that the last round held back.

    `page_read` is told of pages that are read to sum a month up again.
    """
    if isinstance(aim.format, SummaryFormat):
        return MonthTotals(
            target=aim.name,
            format=aim.format,
            judge=judge,
            source=source,
            ledger=ledger,
            dispatch=dispatch,
            scales=Scales(most_records=aim.batch_records, fill_to=dispatch.payload_limit),
            basis=f"{aim.selection_digest}-{aim.policy_digest}",
            accept_key_change=aim.accept_key_change,
            clock=clock,
            page_read=page_read if judge.again else lambda _: None,  # a regular round tells of its own reading only
        )
    frame = aim.format.frame
    packer = Packer(
        most_records=aim.batch_records,
        most_bytes=aim.transport.payload_limit(),
        around=len(frame.head) + len(frame.tail),
        between=len(frame.separator),
        fill_to=dispatch.payload_limit,
    )
    summed = aim.changed is Changed.REPLACE
    guard = None
    if summed and not judge.again:  # what a window sends again was looked at when it was planned
        guard = Guard(
            totals=_sent_as_totals(aim, ledger),
            held_before=held_before,
            emptied=partial(_emptied, aim, source, ledger, clock),
        )
    return JobBatches(aim.format, packer, dispatch, summed=summed, guard=guard)


def _sent_as_totals(aim: Aim, ledger: Ledger) -> dict[int, HeldMonth]:
    """Months that the receiver has as totals, in a format of before: single records would count beside them."""
    return {
        state.month: HeldMonth(
            month=state.month,
            stale=tuple(
                row_of(group, by_level=has_levels(state.accepted_format))
                for group in ledger.accepted(aim.name, state.month)
            ),
            lost_jobs=0,
            was=state.accepted_format or "totals",
        )
        for state in ledger.months(aim.name)
        if state.accepted_digest or state.on_its_way
    }


def _emptied(
    aim: Aim,
    source: Source,
    ledger: Ledger,
    clock: Callable[[], datetime],
    month: int,
    runs: Mapping[bytes, int],
    now: datetime,
) -> tuple[KeyTotal, ...]:
    """Rows that changed runs would leave behind at the receiver, unless that is accepted."""
    wanted = key_guard.Wanted(target=aim.name, format=aim.format.name, selection=aim.selection, policy=aim.policy)
    rows = key_guard.emptied(wanted, runs, month, source, ledger, now, aim.policy_digest)
    if rows and aim.accept_key_change:
        ledger.accept_change(aim.name, month, rows, 0, clock())
        return ()
    return rows
