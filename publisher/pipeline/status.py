"""What waits for a target: jobs that are there and were not accepted yet. Only reads.

People and monitoring ask when something is wrong, which is when most waits. So the first rows behind what was read are looked
at as a round would, and of the others SQLite only counts those that ended: then the numbers say "at most".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from publisher.formats import is_summary_format
from publisher.ledger.contract import Ledger, TargetState
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.message import MessageId
from publisher.model.target import Selection, Target
from publisher.model.time import Window
from publisher.model.totals.months import month_window
from publisher.pipeline.site import Site
from publisher.sources.base import Page, Source

LOCK_WAIT_S: Final = 2.0  # for a writer of the accounting data; then that is the answer
LOOKED_AT: Final = 2_000  # rows of all targets together


class WaitingJobs(NamedTuple):
    """Jobs that the next round would send; `exact`, or at most so many."""

    pending: int
    late: int  # of them ended before the last published end
    first_end: Epoch | None
    exact: bool


def waiting(
    site: Site, target: Target, state: TargetState | None, source: Source, ledger: Ledger, looked_at: int = LOOKED_AT
) -> WaitingJobs:
    """What waits for a target; so many rows are looked at, in whole pages. Raises: LedgerError, SourceError."""
    now = site.clock()
    start = state.start if state else _start(target, now)
    published = state.last_published_end if state else None
    pending = state.prepared if state else 0
    ends = list(_ends_on_their_way(target, ledger)) if pending or (state and state.in_doubt) else []
    if is_summary_format(target.format):
        # Jobs, not rows: those counted into months whose last content the receiver has not accepted.
        months = [month for month in ledger.months(target.name) if month.digest != month.accepted_digest]
        pending = sum(max(month.jobs - month.accepted_jobs, 0) for month in months)
        # Which jobs these are is not known any more: most ended after what was published last, all of them in their month.
        ends = [_within(month.month, published) for month in months]
    parts = list(_not_read(target, target.selection(Window(start=start)), published, source, ledger, now, looked_at))
    ends += [part.first_end for part in parts if part.first_end is not None]
    return WaitingJobs(
        pending=pending + sum(part.pending for part in parts),
        late=sum(part.late for part in parts),
        first_end=min(ends, default=None),
        exact=all(part.exact for part in parts),
    )


def _not_read(
    target: Target,
    selection: Selection,
    published: Epoch | None,
    source: Source,
    ledger: Ledger,
    now: datetime,
    looked_at: int,
) -> Iterator[WaitingJobs]:
    """What no round has dealt with: rows that were not finished when they were read, and those behind the cursors."""

    def of_page(page: Page) -> WaitingJobs:
        keys = [job.key for job in page.jobs]
        known, held = ledger.known(target.name, keys), ledger.held(target.name, keys)
        ends = [
            job.ended_at
            for job, key in zip(page.jobs, keys, strict=True)
            if key not in known and key not in held and _wanted(selection, target, job)
        ]
        return _ended(ends, published, exact=True)

    rows = ledger.open_rows(target.name)
    ends = source.ends(rows)
    finished = [row for row in rows if row.row in ends]
    for page in source.reread(finished[:looked_at], frozenset(), now):
        yield of_page(page)
    if further := [ends[row.row] for row in finished[looked_at:] if ends[row.row] in selection.window]:
        yield _ended(further, published, exact=False)
    looked_at -= len(finished)
    for database in source.databases():
        for page in source.since(ledger.cursor(target.name, database), database, frozenset(), now):
            yield of_page(page)
            looked_at -= page.rows_read
            if looked_at <= 0 and page.cursor is not None:
                ahead = source.ahead(page.cursor, selection.window.start, published)
                yield WaitingJobs(ahead.rows, ahead.late, ahead.first_end, exact=not ahead.rows)
                break


def _ended(ends: Sequence[Epoch], published: Epoch | None, *, exact: bool) -> WaitingJobs:
    late = 0 if published is None else sum(end < published for end in ends)
    return WaitingJobs(len(ends), late, min(ends, default=None), exact)


def _ends_on_their_way(target: Target, ledger: Ledger) -> Iterable[Epoch]:
    """When the jobs ended that stand in messages without a receipt."""
    seen: set[MessageId] = set()
    while not is_summary_format(target.format) and (one := ledger.outstanding(target.name, seen)) is not None:
        seen.add(one.message.id)
        yield from (record.ended_at for record in one.records if record.row.record_id)  # counts have no row


def _within(month: int, last: Epoch | None) -> Epoch:
    """A time as near as can be in a month; its beginning without one."""
    window = month_window(month)
    start, end = window.start or Epoch(0), window.end or Epoch(0)
    return start if last is None else min(max(last, start), end)


def _wanted(selection: Selection, target: Target, job: JobRecord) -> bool:
    if not selection.wants(job):
        return False
    try:
        return selection.wants_vo(target.policy.describe(job).who.vo)
    except Unfit:
        return True  # it will be set aside; until then it waits


def _start(target: Target, now: datetime) -> Epoch | None:
    begin = target.start.begin(now)
    return None if begin is None else Epoch(int(begin.timestamp()))
