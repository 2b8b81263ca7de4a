"""Taking over from jura-ng (`jura_until`), and comparing a shadow with it (`sync --check`).

jura-ng keeps one time per target, the latest end that it published. Jobs written to the accounting
data behind that are lost unless somebody looks for them, which happens once, before the first
round. The months that it sent in part are sent whole by us: where its rows had other keys than
ours, they would stay and count twice. So those rows are worked out and recorded in the ledger as
accepted by the receiver. From then on they are rows of our own: where they would stay beside
others, the month is held.

What a shadow would have at the receiver is worked out from the same rows as what jura-ng has there.
Equal keys with equal numbers replace each other when `shadow` is removed; a key that only one of
the two has would count beside the other's.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final

from publisher.formats import is_summary_format, receiver_of, summary_format
from publisher.formats.base import OnChange
from publisher.formats.rows import SummaryRows
from publisher.jobs.reader import StoreReader
from publisher.jobs.tables.joined import without_joined
from publisher.ledger.contract import Counts, Entries, Ledger, Targets
from publisher.model.entry import Entry, RowFields, RowId, RowKey, RowTotal, Usage
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord, ReadRequest
from publisher.model.published import PublishedJob
from publisher.model.text import plural
from publisher.model.time import Window, epoch, month_of
from publisher.model.totals import (
    InheritedMonth,
    KeyTotal,
    groups_of,
    month_name,
    month_number,
    month_window,
    row_for_people,
    sync_host,
)
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Selection, Target
from publisher.publishing.plan.decision import Decider, Publish
from publisher.publishing.plan.runs import entry_of
from publisher.publishing.round.outcome import LostJob, LostJobs
from publisher.publishing.takeover.jura import (
    Search,
    Watermark,
    as_jura,
    as_read_by_jura,
    jura_selection,
    look_for_lost,
    report,
)
from publisher.sources.base import Source, WritingOrder

log = logging.getLogger("publisher")


JobsOfCes = Callable[[Window], Iterable[JobRecord]]
"""Gives the jobs that ended in a window and that CEs have. Raises: SourceError, LedgerError."""


Ordered = AbstractContextManager[Sequence[WritingOrder]]


def jobs_of_ces(jobs: StoreReader, source: Source, now: datetime) -> JobsOfCes:
    """Return what gives the jobs of CEs without what was joined to them: as they were loaded.

    Those that wait for their batch system's record are not loaded yet: as their CE has them.
    """

    def ended(window: Window) -> Iterator[JobRecord]:
        names = source.databases().keys()
        for page in jobs.window(window, current=True):
            yield from (without_joined(job) for job in page.jobs if job.row.database in names)
        yield from (job for job in _awaiting(jobs, source, now) if job.ended_at in window)

    return ended


def _awaiting(jobs: StoreReader, source: Source, now: datetime) -> Iterator[JobRecord]:
    request = ReadRequest(frozenset(), Epoch(epoch(now)))
    for one in source.sources():
        if awaiting := jobs.awaiting(one.name):
            rows = [row for row in jobs.unfinished(one.name) if row.row in awaiting]
            for page in one.read(jobs.position(one.name), rows, request):
                yield from (job for job in page.jobs if job.row in awaiting)


def take_over(
    target: Target, jobs: JobsOfCes, order: Ordered | None, ledger: Ledger, now: datetime
) -> LostJobs | None:
    """Once for each `jura_until`: adopt what was left since the start, and look for what was lost.

    `order`: None where the order in which jobs were written is unknown.
    None where that was done before. Raises: SourceError, LedgerError.
    """
    until = target.jura_until
    if until is None or ledger.targets.took_over(target.name) == until:
        return None
    start = _start(target, ledger.targets, now)
    before = ledger.targets.took_over(target.name)
    if before is not None and before < until:
        months = range(month_number(before), month_number(until) + 1)
        _warn_of_both(target, months, jobs, ledger.entries, ledger.counts, now)
    adopt_named(target, _since(start, until, jobs), jobs, ledger.entries, ledger.counts, now)
    lost = _lost(order, target, start, until)
    ledger.targets.take_over(target.name, until)
    return lost


def adopt_named(
    target: Target,
    months: Collection[int],
    jobs: JobsOfCes,
    entries: Entries,
    counts: Counts,
    now: datetime,
) -> None:
    """Adopt these months where the ledger knows nothing. Raises: SourceError, LedgerError."""
    until = target.jura_until
    if until is None or receiver_of(target.format).on_change is OnChange.KEEP_FIRST:
        return
    sent = {known.month for known in entries.months(target.name)}
    sent |= {month for month, _ in counts.by_host(target.name).delivered}
    last = month_number(until)
    for month in (month for month in months if month <= last and month not in sent):
        entries.adopt(target.name, left_by_jura(target, month, until, jobs, now))


def _warn_of_both(
    target: Target,
    months: Iterable[int],
    jobs: JobsOfCes,
    entries: Entries,
    counts: Counts,
    now: datetime,
) -> None:
    """Of months that we had sent when jura-ng sent them again: rows of it that ours do not replace.

    Raises: SourceError.
    """
    there = receiver_of(target.jura_format or target.format)
    if there.on_change is OnChange.KEEP_FIRST:
        return
    sent = {known.month for known in entries.months(target.name) if known.format}
    sent |= {month for month, _ in counts.by_host(target.name).delivered}
    for month in sorted(sent.intersection(months)):
        theirs = by_key(left_by_jura(target, month, target.jura_until, jobs, now))
        if there.table == receiver_of(target.format).table:
            selection = target.selection(month_window(month))
            ours = by_key(rows_of(selection, target.policy, target.format, month, jobs, now))
            theirs = {key: row for key, row in theirs.items() if key not in ours}
        if theirs:
            name, count = month_name(month), sum(row.jobs for row in theirs.values())
            log.warning(
                "target %s: publisher had sent %s before jura_until was moved: if jura-ng sent it "
                "again, %s of it with %s count beside ours; have all of %s deleted for site %s, "
                "then `publisher republish --from %s --to %s --target %s`",
                *(target.name, name, plural(len(theirs), "row"), plural(count, "job"), name),
                *(target.policy.site, name, name, target.name),
            )


def left_by_jura(
    target: Target, month: int, until: Epoch | None, jobs: JobsOfCes, now: datetime
) -> InheritedMonth:
    """What jura-ng left of a month, of jobs that ended until then. Raises: SourceError."""
    form = target.jura_format or target.format
    window = month_window(month)
    if until is not None and window.end is not None and until < window.end:
        window = Window(start=window.start, end=Epoch(until + 1))
    summary = is_summary_format(form)
    policy = as_jura(target.policy, summary=summary)

    def as_read(job: JobRecord) -> JobRecord | None:
        wanted = target.vos is None or job.vo in target.vos
        return as_read_by_jura(job, policy, summary=summary) if wanted else None

    selection = jura_selection(target.selection(Window()), window)
    return rows_of(selection, policy, form, month, jobs, now, as_read)


def rows_of(
    selection: Selection,
    policy: RecordPolicy,
    form: str,
    month: int,
    jobs: JobsOfCes,
    now: datetime,
    as_read: Callable[[JobRecord], JobRecord | None] = lambda job: job,
) -> InheritedMonth:
    """The rows that the selected jobs of a month make at the receiver, in a format, under a policy.

    `as_read` is what the publisher reads of a job, None if left out. Raises: SourceError.
    """
    decider = Decider(selection, policy, "", OnChange.RECOUNT, again=True)
    summary = summary_format(form) if is_summary_format(form) else None
    fields_of = _fields_of(form)
    hosts: Counter[tuple[int, str]] = Counter()
    entries: list[Entry] = []
    for published in _published(jobs(selection.window), as_read, decider):
        with suppress(Unfit):  # no receiver takes it
            if summary is not None:
                summary.admit(published, now)
            if (fields := fields_of(published)) is not None:
                job, row = published.job, RowKey(month, fields)
                entries.append(entry_of(published, job.run_key, row, job.values_digest))
            hosts[month, sync_host(published.where.receiver_host)] += 1
    return InheritedMonth(month, form, summary is not None, tuple(entries), hosts)


def _fields_of(form: str) -> Callable[[PublishedJob], RowFields | None]:
    """Return what tells the row of a job at the receiver of a format; None where it has no rows."""
    if is_summary_format(form):
        return SummaryRows(summary_format(form).grouping).of
    row_keys = receiver_of(form).row_keys
    if row_keys is None:
        return lambda _: None
    return row_keys().of


def _published(
    jobs: Iterable[JobRecord], as_read: Callable[[JobRecord], JobRecord | None], decider: Decider
) -> Iterator[PublishedJob]:
    """What a target publishes of the jobs that it wants."""
    for job in jobs:
        read = as_read(job)
        fit = decider.decide(read, read.run_key, None, None) if read is not None else None
        if isinstance(fit, Publish):
            yield fit.published


def by_key(left: InheritedMonth) -> Mapping[object, KeyTotal]:
    """Rows by the receiver's key."""
    rows: dict[RowId, RowTotal] = {}
    for entry in left.entries:
        end, usage = entry.record.ended_at, Usage(1, entry.wall_s, entry.cpu_s)
        known = rows.get(entry.row.id, RowTotal(entry.row, Usage(), end, end))
        rows[entry.row.id] = known._replace(counts=known.counts.plus(usage))
    if not is_summary_format(left.format):
        return {at: row_for_people(row, by_level=True) for at, row in rows.items()}
    form = summary_format(left.format)
    groups = [one.group for one in groups_of(form.grouping, rows.values())]
    by_level = form.grouping.by_level
    return {form.receiver_key(group): group.row(by_level=by_level) for group in groups}


def _start(target: Target, targets: Targets, now: datetime) -> Epoch | None:
    state = targets.state(target.name)
    if state is not None and state.start_rule == str(target.start):
        return state.start
    return target.start.begin(now)


def _since(start: Epoch | None, until: Epoch, jobs: JobsOfCes) -> Sequence[int]:
    """The months from the start, or from the first job, to the last that was sent."""
    last = month_number(until)
    first = last if start is None else month_number(start)
    while start is None and _any(jobs(Window(end=month_window(first).start))):
        first -= 1
    return range(first, last + 1)


def _any(jobs: Iterable[JobRecord]) -> bool:
    return next(iter(jobs), None) is not None


def _lost(
    order: Ordered | None, target: Target, start: Epoch | None, until: Epoch
) -> LostJobs | None:
    """None where the accounting data is not A-REX's own, or everything is sent anyway."""
    if order is None or start is None:
        return None
    mark = Watermark(
        target=target.name,
        last_end=until,
        start=start,
        summary=is_summary_format(target.jura_format or target.format),
        vos=target.vos or frozenset(),
        period_s=target.every_s,
    )
    with order as databases:
        (search,) = look_for_lost(databases, [mark])
    return _lost_jobs(search)


def _lost_jobs(search: Search) -> LostJobs:
    return LostJobs(
        certain=search.certain,
        perhaps=search.perhaps,
        jobs=tuple(
            LostJob(job_id=one.job.job_id, ended_at=one.job.ended_at, certain=one.certain)
            for one in chain(search.surest, search.latest)
        ),
        lines=tuple(report(search)),
    )


_EARLIEST: Final = 12 * 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A row of the receiver that is not the same on both sides. None where one has no such key."""

    row: str
    ours: KeyTotal | None
    theirs: KeyTotal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMonth:
    """A month of a shadow: how many rows are equal on both sides, and those that are not."""

    target: str
    month: int
    format: str  # ours
    their_format: str
    equal: int
    different: tuple[ComparedRow, ...]

    @property
    def month_name(self) -> str:
        return month_name(self.month)


def compare(
    jobs: JobsOfCes, targets: Sequence[Target], now: datetime, *, months: int | None
) -> list[ComparedMonth]:
    """The shadows of jura-ng (`jura_format`) that go to APEL, by month. Raises: SourceError."""
    last = month_of(now).number
    first = _EARLIEST if months is None else last - months + 1
    shadows = [target for target in targets if target.shadow and target.jura_format]
    shadows = [target for target in shadows if receiver_of(target.format).sync_format]
    return [
        _compared(target, number, jobs, now)
        for target in shadows
        for number in range(first, last + 1)
        if _any(jobs(month_window(number)))
    ]


def _compared(target: Target, number: int, jobs: JobsOfCes, now: datetime) -> ComparedMonth:
    selection = target.selection(month_window(number))
    ours = by_key(rows_of(selection, target.policy, target.format, number, jobs, now))
    left = left_by_jura(target, number, None, jobs, now)
    theirs = by_key(left)
    every = {**theirs, **ours}
    different = [
        ComparedRow(row=total.key.text, ours=ours.get(key), theirs=theirs.get(key))
        for key, total in every.items()
        if _numbers(ours.get(key)) != _numbers(theirs.get(key))
    ]
    return ComparedMonth(
        target=target.name,
        month=number,
        format=target.format,
        their_format=left.format,
        equal=len(every) - len(different),
        different=tuple(sorted(different, key=lambda one: one.row)),
    )


def _numbers(total: KeyTotal | None) -> tuple[int, int, int] | None:
    return None if total is None else (total.jobs, total.wall_s, total.cpu_s)
