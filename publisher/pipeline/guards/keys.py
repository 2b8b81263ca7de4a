"""Keys of the receiver's sums: rows that would be left behind.

Job records replace each other, but no row of the sums is ever deleted: one that no job makes any
more stays and counts. So the rows that a month would have are worked out before anything of it
changes its key.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from publisher.formats import receiver_of
from publisher.formats.base import OnChange
from publisher.ledger.contract import DeliveredRun, Ledger
from publisher.model.errors import Unfit
from publisher.model.job import JobRecord, SkippedJob
from publisher.model.time import Window
from publisher.model.totals import KeyTotal, SummaryKey, month_number, month_window, sync_host
from publisher.pipeline.round.decision import Decider, Publish, SentByJura, Skip
from publisher.pipeline.round.reader import numbered, undisturbed, whole_window
from publisher.pipeline.site import Neighbour
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Selection
from publisher.sources.base import Page, Source

HostMonth = tuple[int, str]


class WindowTotals(NamedTuple):
    """What the jobs of a window make: rows by month, and jobs by month and submit host.

    `again` are those of them, by month, that were delivered before, and `again_by_row` by the
    digest of their row, without runs that are in no row of the accounting data any more.
    """

    rows: Mapping[int, Sequence[KeyTotal]]
    hosts: Mapping[HostMonth, int]
    again: Mapping[int, int]
    again_by_row: Mapping[bytes, int]


class JobScope(NamedTuple):
    """Whose jobs count, and how they are described.

    What was delivered of a VO that a target `beside` wants now counts as ever: it is not sent again
    there under another key.
    """

    target: str
    format: str
    selection: Selection
    policy: RecordPolicy
    beside: Sequence[Neighbour]
    sent_by_jura: SentByJura | None = None


def made(
    wanted: JobScope,
    window: Window,
    source: Source,
    ledger: Ledger,
    now: datetime,
    *,
    delivered: bool = False,
    page_read: Callable[[Page], None] = lambda _: None,
) -> WindowTotals:
    """What the window's jobs would make as they are now; `delivered`: only those that were.

    Jobs in quarantine make nothing, unless they were delivered before. A run that was delivered is
    in the month in which it was, also if its job was restarted since and ended again, under the
    same LocalJobID or another. Raises: SourceError; Later as `undisturbed`.
    """

    def add_up() -> WindowTotals:
        making = _Making(wanted, window, ledger, delivered)
        for page in whole_window(wanted.target, source, ledger, window, frozenset(), now):
            page_read(page)
            making.add(page.jobs)
        if window.end is not None and making.lacks_some():
            later = source.window(Window(start=window.end), frozenset(), now)
            for page in numbered(later, wanted.target, source, ledger):
                page_read(page)
                making.add_restarted(page.jobs)
        return making.made()

    return undisturbed(source, add_up)


class _Making:
    """Adds up what the jobs of a window make."""

    def __init__(self, wanted: JobScope, window: Window, ledger: Ledger, delivered: bool) -> None:
        self._target = wanted.target
        self._window = window
        self._ledger = ledger
        self._delivered = delivered
        self._wants_vo = wanted.selection.wants_vo
        selection = wanted.selection._replace(window=window)
        for one in wanted.beside:
            selection = selection.or_vos_of(one.selection)
        self._decider = Decider(
            selection=selection,
            policy=wanted.policy,
            policy_digest="",
            changed=OnChange.REPLACE,
            again=True,
            sent_by_jura=wanted.sent_by_jura,
        )
        row_keys = receiver_of(wanted.format).row_keys
        if row_keys is None:
            raise AssertionError(f"{wanted.format} is not added up by its receiver")
        self._keys = row_keys()
        self._sums: defaultdict[SummaryKey, list[int]] = defaultdict(lambda: [0, 0, 0])
        # Of the jobs in these sums, runs that are in no row any more
        self._earlier: Counter[SummaryKey] = Counter()
        self._hosts: Counter[HostMonth] = Counter()
        self._again: Counter[int] = Counter()
        self._again_by_row: Counter[bytes] = Counter()

    def add(self, jobs: Sequence[JobRecord]) -> None:
        """Jobs that ended in the window."""
        ids = [job.key for job in jobs]
        rows = dict(zip(ids, [job.row for job in jobs], strict=True))
        known, held = self._ledger.known(self._target, rows), self._ledger.held(self._target, ids)
        others = self._ledger.other_runs(self._target, rows)
        for job, key in zip(jobs, ids, strict=True):
            if key in known or not (self._delivered or key in held):
                fit = self._decider.decide(job, key, _settled(known.get(key)), None)
                # Also if it is on its way once more.
                cpu_s = job.cpu_user_s + job.cpu_kernel_s
                if key not in known and not self._is_own(fit):
                    fit = Skip()
                row = self._count(fit, job.wall_s, cpu_s, again=key in known)
                if row is not None and key in known:
                    self._again_by_row[row.digest] += 1
            self._add_earlier(job, others.get(key, ()))

    def add_restarted(self, jobs: Sequence[JobRecord]) -> None:
        """Jobs that ended after the window: those that were delivered in it count there."""
        ids = [job.key for job in jobs]
        rows = dict(zip(ids, [job.row for job in jobs], strict=True))
        known = self._ledger.known(self._target, rows)
        others = self._ledger.other_runs(self._target, rows)
        for job, key in zip(jobs, ids, strict=True):
            self._add_earlier(job, others.get(key, ()))
            own = [known[key]] if key in known else []
            for row in self._add_earlier(job, own):
                self._again_by_row[row.digest] += 1

    def _is_own(self, fit: Publish | SkippedJob | Skip) -> bool:
        return isinstance(fit, Publish) and self._wants_vo(fit.published.who.vo)

    def lacks_some(self) -> bool:
        """Whether more was delivered in the window than was found in it."""
        delivered = delivered_by_month(self._ledger, self._target).items()
        return any(self._covers(month) and jobs > self._again[month] for month, jobs in delivered)

    def made(self) -> WindowTotals:
        rows: defaultdict[int, list[KeyTotal]] = defaultdict(list)
        for row, (jobs, wall_s, cpu_s) in self._sums.items():
            rows[row.month].append(KeyTotal(key=row, jobs=jobs, wall_s=wall_s, cpu_s=cpu_s))
        for month in {row.month for row in self._earlier}:
            rows[month] = self._with_earlier(month, rows[month])
        return WindowTotals(
            rows=dict(rows),
            hosts=dict(self._hosts),
            again=dict(self._again),
            again_by_row=dict(self._again_by_row),
        )

    def _with_earlier(self, month: int, rows: Sequence[KeyTotal]) -> list[KeyTotal]:
        """The rows of a month with those of earlier runs of restarted jobs, whose records stay.

        Their jobs may make another row by now. A row that no job makes any more was theirs, unless
        there are more jobs in such rows than earlier runs, or another row has got more of the
        delivered jobs than it had: then somebody moved.
        """
        sent = self._ledger.summary_keys(self._target, month)
        were = {total.key.digest: total for total, _ in sent}
        own = {total.key.digest: total.jobs - self._earlier[total.key] for total in rows}
        theirs = [total for digest, total in were.items() if not own.get(digest)]
        had = Counter({digest: total.jobs for digest, total in were.items()})
        moved = any(self._again_by_row[digest] > had[digest] for digest in own)
        earlier = sum(self._earlier[total.key] for total in rows)
        if moved or sum(total.jobs for total in theirs) > earlier:
            return list(rows)
        others = {row: max(jobs, min(jobs + earlier, had[row])) for row, jobs in own.items()}
        kept = [total for total in rows if own[total.key.digest]]
        return [total._replace(jobs=others[total.key.digest]) for total in kept] + theirs

    def _covers(self, month: int) -> bool:
        start = month_window(month).start
        return start is not None and start in self._window

    def _add_earlier(self, job: JobRecord, runs: Iterable[DeliveredRun]) -> list[SummaryKey]:
        """Runs of the job that were delivered in the window, of unknown usage; gives their rows."""
        there = [run for run in runs if run.settled and run.ended_at in self._window]
        then = [job._replace(ended_at=run.ended_at) for run in there]
        fits = [self._decider.decide(one, job.key, None, None) for one in then]
        rows = [row for fit in fits if (row := self._count(fit, 0, 0, again=True)) is not None]
        self._earlier.update(rows)
        return rows

    def _count(
        self, fit: Publish | SkippedJob | Skip, wall_s: int, cpu_s: int, *, again: bool
    ) -> SummaryKey | None:
        """Gives its row; None for a job that makes none."""
        if not isinstance(fit, Publish):
            return None
        try:
            row = self._keys.of(fit.published).of_month(month_number(fit.published.ended_at))
        except Unfit:
            return None  # it ended in no month: it is set aside, and makes nothing
        here = self._sums[row]
        here[0] += 1
        here[1] += wall_s
        here[2] += cpu_s
        month = month_number(fit.entry.ended_at)
        self._hosts[month, sync_host(fit.published.where.receiver_host)] += 1
        self._again[month] += again
        return row


def orphaned(
    ledger: Ledger, target: str, month: int, would_be: WindowTotals
) -> tuple[KeyTotal, ...]:
    """Rows that a month's single records made before, and that nothing would make any more."""
    new = {total.key.digest for total in would_be.rows.get(month, ())}
    made_before = [total for total, _ in ledger.summary_keys(target, month)]
    return tuple(total for total in made_before if total.key.digest not in new)


def delivered_by_month(ledger: Ledger, target: str) -> Counter[int]:
    """How many of a target's jobs, by the month of their end."""
    months: Counter[int] = Counter()
    for (month, _), jobs in ledger.counts(target).delivered.items():
        months[month] += jobs
    return months


def lost(
    ledger: Ledger,
    target: str,
    months: Sequence[int],
    would_be: WindowTotals | None,
    totals: Collection[int],
    source: Source,
) -> dict[int, int]:
    """Delivered jobs of these months that would not go out again: they are lost if it was purged.

    Their rows are gone, or they are not wanted any more. Rows that nobody wants must not take their
    place, so all rows of a month are only counted where not each was examined, or `totals` are
    there, for which a ticket is written anyway.
    """
    delivered = delivered_by_month(ledger, target)
    missing = {}
    for month in months:
        if would_be is not None and month not in totals:
            missing[month] = delivered[month] - would_be.again.get(month, 0)
        elif delivered[month]:
            missing[month] = delivered[month] - source.count(month_window(month))
    return {month: jobs for month, jobs in missing.items() if jobs > 0}


def emptied(
    wanted: JobScope,
    changed: Mapping[bytes, int],
    month: int,
    source: Source,
    ledger: Ledger,
    now: datetime,
    policy_digest: str,
) -> tuple[KeyTotal, ...]:
    """Rows of a month that lose their last jobs when its `changed` runs are sent again.

    `changed`: how many of each row, by digest. What made a row under an earlier policy is still
    there: such a row is emptied only when it has no more jobs than these. And a row that no job
    makes any more may have lost them without us: A-REX restarted a job, which has another
    LocalJobID since, and the record of its first run stays by right. So no row is emptied where
    runs that are gone from the accounting data make up for all of them, and no row of the changed
    runs has more jobs than were delivered in it. Raises: SourceError.
    """
    would_be = made(wanted, month_window(month), source, ledger, now)
    keys = ledger.summary_keys(wanted.target, month)
    rows = orphaned(ledger, wanted.target, month, would_be)
    gone = delivered_by_month(ledger, wanted.target)[month] - sum(would_be.again_by_row.values())
    were = {total.key.digest: total.jobs for total, _ in keys}
    came = any(would_be.again_by_row.get(row, 0) > were.get(row, 0) for row in changed)
    if not came and sum(total.jobs for total in rows) <= gone:
        return ()
    policy_by = {total.key.digest: digest for total, digest in keys}
    moved = sum(changed.values())
    return tuple(
        total
        for total in rows
        if policy_by[total.key.digest] == policy_digest or total.jobs <= moved
    )


def _settled(known: DeliveredRun | None) -> DeliveredRun | None:
    """Whether a message is still on its way does not matter here."""
    return None if known is None else known._replace(settled=True)
