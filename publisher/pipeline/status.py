"""What waits for a target: jobs that are there and were not accepted yet. Only reads."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from publisher.formats import is_summary_format
from publisher.ledger.contract import Ledger, TargetState
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.message import MessageId
from publisher.model.target import Selection, Target
from publisher.model.time import Window
from publisher.model.totals.months import month_window
from publisher.pipeline.site import Site
from publisher.sources.base import Source


def waiting(
    site: Site, target: Target, state: TargetState | None, source: Source, ledger: Ledger
) -> tuple[int, int, Epoch | None]:
    """Jobs that the next round would send, those of them that ended before the last published end, and the first end.

    Raises: LedgerError, SourceError.
    """
    now = site.clock()
    start = state.start if state else _start(target, now)
    selection = target.selection(Window(start=start))
    pending = state.prepared if state else 0
    ends = list(_ends_on_their_way(target, ledger)) if pending or (state and state.in_doubt) else []
    if is_summary_format(target.format):
        # Jobs, not rows: those counted into months whose last content the receiver has not accepted.
        months = [month for month in ledger.months(target.name) if month.digest != month.accepted_digest]
        pending = sum(max(month.jobs - month.accepted_jobs, 0) for month in months)
        # Which jobs these are is not known any more: most ended after what was published last, all of them in their month.
        ends = [_within(month.month, state.last_published_end if state else None) for month in months]
    late = 0
    pages = [source.reread(ledger.open_rows(target.name), frozenset(), now)]
    pages += [
        source.since(ledger.cursor(target.name, database), database, frozenset(), now)
        for database in source.databases()
    ]
    for page in (page for stream in pages for page in stream):
        keys = [job.key for job in page.jobs]
        known = ledger.known(target.name, keys)
        held = ledger.held(target.name, keys)
        found = [
            job
            for job, key in zip(page.jobs, keys, strict=True)
            if key not in known and key not in held and _wanted(selection, target, job)
        ]
        pending += len(found)
        ends += [min(job.ended_at for job in found)] if found else []
        if state and state.last_published_end is not None:
            late += sum(job.ended_at < state.last_published_end for job in found)
    return pending, late, min(ends, default=None)


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
