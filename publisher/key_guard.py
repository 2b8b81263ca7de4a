"""The rows that single records make at a receiver which sums them up, and those that would be left behind there.

Job records replace each other, but no row of the sums is ever deleted: one that no job makes any more stays and counts
(apel facts, section 7). So the rows that a month would have are worked out before anything of it changes its key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from publisher.errors import Unfit
from publisher.judge import Changed, Fit, Judge
from publisher.ledger.base import Known, Ledger
from publisher.model.months import month_window
from publisher.model.policy import RecordPolicy
from publisher.model.row_keys import month_number, sync_host
from publisher.model.selection import Selection, Window
from publisher.model.summary_keys import KeyTotal, SummaryKey, SummaryKeys
from publisher.reading import whole_window
from publisher.sources.base import Page, Source

HostMonth = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What the jobs of a window make: rows by month, and jobs by month and submit host.

    `again` are those of them, by month, that were delivered before.
    """

    rows: Mapping[int, Sequence[KeyTotal]]
    hosts: Mapping[HostMonth, int]
    again: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose jobs count, and how they are described."""

    target: str
    format: str
    selection: Selection
    policy: RecordPolicy


def made(
    wanted: Wanted,
    window: Window,
    source: Source,
    ledger: Ledger,
    now: datetime,
    *,
    delivered: bool = False,
    page_read: Callable[[Page], None] = lambda _: None,
) -> Made:
    """What the window's jobs would make as they are now; `delivered`: only those that were.

    Jobs in quarantine make nothing, unless they were delivered before. A run that was delivered stands in the month in which
    it was. Raises: SourceError.
    """
    judge = Judge(
        selection=replace(wanted.selection, window=window),
        policy=wanted.policy,
        policy_digest="",
        changed=Changed.REPLACE,
        again=True,
    )
    keys = SummaryKeys(wanted.format)
    sums: defaultdict[SummaryKey, list[int]] = defaultdict(lambda: [0, 0, 0])
    hosts: Counter[HostMonth] = Counter()
    again: Counter[int] = Counter()
    for page in whole_window(wanted.target, source, ledger, window, frozenset(), now):
        page_read(page)
        ids = [job.key for job in page.jobs]
        known, held = ledger.known(wanted.target, ids), ledger.held(wanted.target, ids)
        for job, key in zip(page.jobs, ids, strict=True):
            if key not in known and (delivered or key in held):
                continue
            fit = judge.judge(job, key, _settled(known.get(key)), None)
            if not isinstance(fit, Fit):
                continue
            try:
                row = keys.of(fit.published)
            except Unfit:
                continue  # it ended in no month: it is set aside, and makes nothing
            here = sums[row]
            here[0] += 1
            here[1] += job.wall_s
            here[2] += job.cpu_user_s + job.cpu_kernel_s
            month = month_number(fit.entry.ended_at)
            hosts[month, sync_host(fit.published.where.spelt_host)] += 1
            again[month] += key in known  # also if it is on its way once more
    rows: defaultdict[int, list[KeyTotal]] = defaultdict(list)
    for row, (jobs, wall_s, cpu_s) in sums.items():
        rows[row.month].append(KeyTotal(key=row, jobs=jobs, wall_s=wall_s, cpu_s=cpu_s))
    return Made(rows=dict(rows), hosts=dict(hosts), again=dict(again))


def stale(ledger: Ledger, target: str, month: int, would_be: Made) -> tuple[KeyTotal, ...]:
    """Rows that a month's single records made before, and that nothing would make any more."""
    new = {total.key.digest for total in would_be.rows.get(month, ())}
    return tuple(total for total, _ in ledger.summary_keys(target, month) if total.key.digest not in new)


def lost(
    ledger: Ledger, target: str, months: Sequence[int], would_be: Made | None, totals: Collection[int], source: Source
) -> dict[int, int]:
    """Delivered jobs of these months that would not go out again: a receiver that purged its records would lose them.

    Their rows are gone, or they are not wanted any more. Rows that nobody wants must not stand in for them, so all rows of a
    month are only counted where not each was looked at, or `totals` are there, for which a ticket is written anyway.
    """
    delivered: Counter[int] = Counter()
    for (month, _), jobs in ledger.counts(target).delivered.items():
        delivered[month] += jobs
    missing = {}
    for month in months:
        if would_be is not None and month not in totals:
            missing[month] = delivered[month] - would_be.again.get(month, 0)
        elif delivered[month]:
            missing[month] = delivered[month] - source.count(month_window(month))
    return {month: jobs for month, jobs in missing.items() if jobs > 0}


def emptied(
    wanted: Wanted, moved: int, month: int, source: Source, ledger: Ledger, now: datetime, policy_digest: str
) -> tuple[KeyTotal, ...]:
    """Rows of a month that lose their last jobs when so many of its runs, which changed, are sent again.

    What made a row under an earlier policy is still there: such a row is emptied only when it has no more jobs than these.
    Raises: SourceError.
    """
    would_be = made(wanted, month_window(month), source, ledger, now)
    said_by = {total.key.digest: digest for total, digest in ledger.summary_keys(wanted.target, month)}
    return tuple(
        total
        for total in stale(ledger, wanted.target, month, would_be)
        if said_by[total.key.digest] == policy_digest or total.jobs <= moved
    )


def _settled(known: Known | None) -> Known | None:
    """Whether a message is still on its way does not matter here."""
    return None if known is None else replace(known, settled=True)
