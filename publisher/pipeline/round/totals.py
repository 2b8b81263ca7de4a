"""Monthly totals: jobs are counted into their months, and each that changed is sent, always whole.

A job is counted once, in the same transaction as the month that it made. A month is summed up again
from its rows when a counted job changed, or when another selection or policy applies.

What is sent replaces rows at the receiver by their keys and deletes none: a row that no job makes
any more stays and counts. Where the receiver empties a row for a record of zeros under its key
(`takes_zeros`), that is sent with the month. Our own configuration, or another version of this
program, must not change unnoticed what is counted under which key, so a month that they moved is
held back until an administrator accepts it. The ledger keeps the `basis` of each month's totals, a
digest of selection, policy and version: under another one the month is marked `by_settings`, as it
is when an unchanged job leaves it or when another publisher sent it.

Jobs that are gone from the accounting data (`cleanup`, `rotate`) never empty or shrink a row: rows
that lack known runs keep the total that was counted (`rows_with_gone`), or else the whole month
does. In formats without a known way to send zeros, a month that would leave rows behind, or that
lost jobs, is held back, and those rows become a ticket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import count, repeat
from typing import Final

from publisher.formats.base import SummaryFormat
from publisher.ledger.contract import DeliveredRun, Ledger, MonthState
from publisher.model.errors import Unfit
from publisher.model.job import JobId, JobKey, JobRecord, SkippedJob
from publisher.model.message import REMOVED, PlacedRuns, Progress, delivered_from
from publisher.model.totals import (
    Accumulator,
    BlockedMonth,
    FoundJobs,
    Grouping,
    KeyTotal,
    SummaryGroup,
    month_name,
    month_number,
    month_window,
    rows_with_gone,
)
from publisher.pipeline.guards.collisions import SentBefore, sent_before
from publisher.pipeline.guards.keys import delivered_by_month
from publisher.pipeline.round.assemble import NOWHERE, MonthRow, make_months, whole_messages
from publisher.pipeline.round.decision import Decider, Publish
from publisher.pipeline.round.outcome import RowsLeft
from publisher.pipeline.round.reader import undisturbed, whole_window
from publisher.pipeline.round.sender import MessageSender
from publisher.pipeline.site import LiveTarget
from publisher.sources import BY_INTERFACE
from publisher.sources.base import Page, Source

# Jobs that have to leave a month, 1.7 kB each; the next sweep sets the others aside.
_QUARANTINE_BATCH: Final = 2_000
_SUMMED_OTHERWISE: Final = (
    "it was summed up without service levels, for the format of before, and rows of it are gone "
    "since; publish it in that format, or give their database to source.databases again"
)
# Records, and what they were made of: some 3 MB, and less than 1 MB in the ledger.
_SENT_TOGETHER: Final = 1_000
_KEPT_GROUPS: Final = 12_000  # of months that were written down and may go on: some 12 MB
# Entries that wait for their transaction: with what it makes of them some 12 MB.
_FLUSH_JOBS: Final = 65_536


class _MonthRows:
    """What a month that is summed up again has in the accounting data."""

    def __init__(self, month: int, grouping: Grouping) -> None:
        self._month = month
        self.unchanged, self.changed, self.joined = (Accumulator(grouping) for _ in range(3))
        self.runs = PlacedRuns()  # to be written down
        self.moved: Counter[int] = Counter()  # runs that leave a month, less those that come
        self.quarantined: list[SkippedJob] = []
        self.present = 0  # runs that the ledger has in this month
        self.by_settings = False
        self.imported = False  # some rows: our importer writes them, and perhaps otherwise now

    def add(
        self,
        job: JobRecord | SkippedJob,
        fit: Publish | SkippedJob | None,
        was: DeliveredRun | None,
        *,
        was_held: bool,
    ) -> None:
        """Count a job of the month, by what was known of it before."""
        before = None if was is None or was.fingerprint == REMOVED else month_number(was.ended_at)
        self.present += (here := before == self._month)
        self.imported |= here and isinstance(job, JobRecord) and job.interface in BY_INTERFACE
        place = delivered_from(job.job_id, job.row), job.row.record_id
        if isinstance(fit, Publish):
            if self._sum(fit, was, before):
                self.runs.add(job.key, fit.entry.ended_at, fit.entry.fingerprint, *place)
        elif before is not None and was is not None:
            self.runs.add(job.key, was.ended_at, REMOVED, *place)
            self.moved[before] += 1
            if here:
                same = isinstance(job, SkippedJob) or job.fingerprint == was.fingerprint
                self.by_settings |= same
            if fit is not None and not was_held and len(self.quarantined) < _QUARANTINE_BATCH:
                self.quarantined.append(fit)

    def _sum(self, fit: Publish, was: DeliveredRun | None, before: int | None) -> bool:
        """Add a job, which was counted in month `before`; whether its run is to be written down."""
        if before == self._month:
            same = was is not None and was.fingerprint == fit.entry.fingerprint
            (self.unchanged if same else self.changed).add(fit.published)
            return not same
        self.joined.add(fit.published)
        self.moved[self._month] -= 1
        if before is not None:
            self.moved[before] += 1
        return True

    def groups(self) -> list[SummaryGroup]:
        """Everything found."""
        self.joined.merge(self.unchanged)
        self.joined.merge(self.changed)
        return list(self.joined.groups())


class MonthlyTotals:
    """What a round does with jobs when its format has monthly totals."""

    idle: Final = True  # progress can always be written down with what was counted

    def __init__(
        self,
        live: LiveTarget,
        summary_format: SummaryFormat,
        decider: Decider,
        source: Source,
        ledger: Ledger,
        sender: MessageSender,
        clock: Callable[[], datetime],
        *,
        page_read: Callable[[Page], None],
    ) -> None:
        self._target = live.name
        self._rows_of_others = live.rows_of_others
        self._sent_before = partial(sent_before, live)
        self._format = summary_format
        self._decider = decider
        self._source = source
        self._ledger = ledger
        self._sender = sender
        self._most_records = live.batch_records  # of a message; 0: no limit by count
        self._basis = f"{live.selection_digest}-{live.policy_digest}-{live.source_digest}"
        self._accept_key_change = live.accept_key_change
        self._clock = clock
        self._page_read = page_read
        self._months: dict[int, Accumulator | None] = {}
        # In the totals of these months, when they were written down.
        self._jobs_written: dict[int, int] = {}
        self._runs = PlacedRuns()  # counted, and not written down yet
        # These, and those that are counted when their month is summed up again.
        self._waiting: set[JobKey] = set()
        # Months to sum up again, with the runs that left them, less those that came.
        self._dirty: Counter[int] = Counter()
        self._progress = Progress()
        self.held: list[BlockedMonth] = []  # months that wait for an administrator
        # By month: rows left behind, jobs lost.
        self._accepted: list[tuple[int, tuple[KeyTotal, ...], int]] = []

    def __contains__(self, key: JobKey) -> bool:
        return key in self._waiting

    def take(self, fit: Publish, now: datetime, mark: Progress | None = None) -> None:
        """Count a job into its month.

        Where it was counted with other values, both months are summed up again.

        Raises: Unfit.
        """
        self._format.admit(fit.published, now)
        month = month_number(fit.entry.ended_at)
        job, known = fit.published.job, fit.known
        key, ended_at, value = fit.entry
        self._waiting.add(key)
        if known is not None and (ended_at, value) != (known.ended_at, known.fingerprint):
            # Its entry stays until then: it tells which jobs are in the totals with other values.
            self._dirty.update({month: 0, month_number(known.ended_at): 0})
            return
        if known is not None:
            self._dirty[month] += 0
        elif (totals := self._accumulator(month)) is not None:
            totals.add(fit.published)
        else:
            self._dirty[month] -= 1
        self._runs.add(key, ended_at, value, delivered_from(job.job_id, job.row), job.row.record_id)

    def _accumulator(self, month: int) -> Accumulator | None:
        """What was counted of a month so far, until it is written down.

        None where that cannot be added to, and the month is to be summed up again.
        """
        if month not in self._months:
            groups = self._ledger.counted(self._target, month)
            if self._fit_format(groups):
                totals = self._months[month] = Accumulator(self._format.grouping)
                for group in groups:
                    totals.add_group(group)
                self._jobs_written[month] = totals.jobs
            else:
                self._months[month] = None
                self._dirty[month] += 0
        return self._months[month]

    def mark(self, progress: Progress) -> None:
        self._progress += progress
        if len(self._waiting) >= _FLUSH_JOBS:
            self.write_down()

    def write_down(self) -> None:
        """Everything counted so far, with how far was read, in one transaction."""
        months = {at: totals for at, totals in self._months.items() if totals is not None}
        jobs = {month: totals.jobs for month, totals in months.items()}
        added_to = {at: months[at] for at in jobs if jobs[at] != self._jobs_written[at]}
        contents = {month: list(totals.groups()) for month, totals in added_to.items()}
        self._count(self._runs, contents, dirty=self._dirty, progress=self._progress)
        self._jobs_written = jobs
        # Months without a new job are read again if one comes: jobs are written in order of time.
        self._months = {} if sum(map(len, contents.values())) > _KEPT_GROUPS else dict(added_to)
        self._runs = PlacedRuns()
        self._waiting.clear()
        self._dirty.clear()
        self._progress = Progress()

    def conclude(self, now: datetime) -> None:
        """Sum up again what must be, and send what changed. Raises: Stopped, SourceError."""
        self.write_down()
        self._months = {}
        for month, state in self._states().items():
            if state.dirty or state.basis != self._basis or self._takes_singles_over(month):
                self._recount_month(month, now)
        for month, state in self._states().items():
            # Jobs of it were found in another month just now.
            if state.dirty and not self._is_held(month):
                self._recount_month(month, now)
        states = self._states().values()
        self._send([state for state in states if state.digest != state.accepted_digest], now)

    def resend(self, month: int, now: datetime) -> None:
        """Sum a month up again and send it in any case. Raises: Stopped, SourceError."""
        self._recount_month(month, now)
        self._send([state for state in self._states().values() if state.month == month], now)

    def _states(self) -> dict[int, MonthState]:
        return {state.month: state for state in self._ledger.months(self._target)}

    def _is_held(self, month: int) -> bool:
        return any(held.month == month for held in self.held)

    def _fit_format(self, groups: Iterable[SummaryGroup]) -> bool:
        """Whether this format has a place for each: without levels none can be told by level."""
        return not self._format.grouping.by_level or all(group.benchmarks for group in groups)

    def _takes_singles_over(self, month: int) -> bool:
        """Whether what an earlier format sent one by one becomes part of a month's totals now."""
        return self._accept_key_change and bool(self._ledger.summary_keys(self._target, month))

    def _recount_month(self, month: int, now: datetime) -> None:
        """As it is after the months before it."""
        state = self._states().get(month, MonthState(month))
        self._write_summed_up(
            state, undisturbed(self._source, lambda: self._month_rows(state, now))
        )

    def _month_rows(self, state: MonthState, now: datetime) -> _MonthRows:
        """One month from its rows. Those that are gone (`cleanup`, `rotate`) must not shrink it."""
        found = _MonthRows(state.month, self._format.grouping)
        found.by_settings = state.basis != self._basis
        window, needs = month_window(state.month), self._format.needs
        # Also of a job that began before the start: a part of the month would replace the whole.
        selection = self._decider.selection._replace(window=window)
        decider = self._decider._replace(selection=selection)
        for page in whole_window(self._target, self._source, self._ledger, window, needs, now):
            if self._decider.again:  # a regular round tells of its own reading only
                self._page_read(page)
            jobs: tuple[JobRecord | SkippedJob, ...] = (*page.jobs, *page.skipped)
            keys = [job.key for job in jobs]
            rows = dict(zip(keys, [job.row for job in jobs], strict=True))
            known = self._ledger.known(self._target, rows)
            held = self._ledger.held(self._target, keys)
            for job, key in zip(jobs, keys, strict=True):
                fit = decider.decide_again(job, key, held.get(key), self._format, now)
                found.add(job, fit, known.get(key), was_held=key in held)
            if not state.jobs and len(found.runs) >= _FLUSH_JOBS:
                # It stays to be summed up until it is written too.
                dirty = {state.month: 0, **found.moved}
                self._count(found.runs, {}, dirty=dirty, progress=Progress())
                found.runs = PlacedRuns()
                found.moved.clear()
        return found

    def _write_summed_up(self, state: MonthState, found: _MonthRows) -> None:
        """The month's new totals, or what was counted before, as far as its jobs are gone."""
        gone = max(state.jobs - state.moved - found.present, 0)
        groups: Sequence[SummaryGroup] | None = None
        if gone:
            counted = self._ledger.counted(self._target, state.month)
            as_counted = self._fit_format(counted)
            if as_counted and not found.by_settings:
                # Which jobs of a row are in another month by now, and which are gone, is not known.
                groups = self._with_gone(counted, found, gone + state.moved)
            if groups is None and (as_counted or not state.dirty):
                # What is there beside the rows that are gone, the regular reading meets and adds.
                groups, found = counted, _MonthRows(state.month, self._format.grouping)
            if groups is not None:
                self._sender.tally.gone[state.month] = gone
        for skipped in found.quarantined:
            self._sender.quarantine(skipped)
        by_settings = [state.month] if found.by_settings or found.imported else ()
        self._count(
            found.runs,
            {state.month: found.groups() if groups is None else groups},
            dirty={month: moved for month, moved in found.moved.items() if month != state.month},
            clean=[state.month],
            by_settings=by_settings,
            progress=Progress(skipped=tuple(found.quarantined)),
        )

    def _with_gone(
        self, counted: Sequence[SummaryGroup], found: _MonthRows, gone: int
    ) -> Sequence[SummaryGroup] | None:
        """What was found, and rows whose jobs are gone as counted; None where that is not known."""
        unchanged, changed = tuple(found.unchanged.groups()), tuple(found.changed.groups())
        jobs = FoundJobs(unchanged=unchanged, changed=changed)
        rows = rows_with_gone(self._format.receiver_key, counted, jobs, gone)
        if rows is None:
            return None
        totals = Accumulator(self._format.grouping)
        totals.merge(found.joined)
        for group in rows:
            totals.add_group(group)
        return list(totals.groups())

    def _decided(self, state: MonthState, now: datetime) -> Sequence[SummaryGroup]:
        """The groups of a month to send; none when it is held back, or has not begun."""
        groups = self._ledger.counted(self._target, state.month)
        if not self._fit_format(groups):
            self._quarantine_month(state, Unfit("summed-otherwise", _SUMMED_OTHERWISE))
            return ()
        if groups and not groups[0].has_begun(now):
            return ()
        left = self._left(state, groups)
        # Jobs that it lost changed and went elsewhere.
        clear = left.is_clear(by_itself=self._format.takes_zeros and not state.by_settings)
        if left.awaited or not (clear or self._accept_key_change):
            self.held.append(left.blocked(state.month, self._format))
            return ()
        if not clear and (left.orphaned or left.lost):
            self._accepted.append((state.month, left.orphaned, left.lost))
        elif clear and left.theirs and not groups:  # nothing goes out that could be accepted
            self._accepted.append((state.month, (), 0))
        return [*groups, *(group.without_usage() for group in left.emptied)]

    def _lost(self, state: MonthState) -> int:
        """Jobs that the receiver has of a month, and that the totals to be sent have not."""
        jobs, there = state.jobs, state.accepted_jobs
        if self._ledger.summary_keys(self._target, state.month):
            there = max(there, delivered_by_month(self._ledger, self._target)[state.month])
            # What was sent one by one is not summed up yet.
            if not (self._accept_key_change or self._decider.again):
                jobs = max(jobs, self._source.count(month_window(state.month)))
        return max(there - jobs, 0)

    def _left(self, state: MonthState, groups: Sequence[SummaryGroup]) -> RowsLeft:
        """What is at the receiver of a month that the groups do not replace."""
        theirs, awaited = self._rows_of_others(self._format, self._ledger, state.month, groups)
        lost = max(self._lost(state) - sum(group.jobs for group in theirs), 0)
        accepted = self._ledger.accepted(self._target, state.month)
        singles = [total for total, _ in self._ledger.summary_keys(self._target, state.month)]
        own = SentBefore("", state.accepted_format or self._format.name, accepted, singles, lost)
        sent = own, *self._sent_before(self._format, self._ledger, state, accepted, groups)
        orphaned = [*{row.key.digest: row for one in sent for row in one.singles}.values()]
        emptied: list[SummaryGroup] = []
        before = {one.target for one in sent if one.lost or one.singles}
        for one in sent:
            zeroed, stays = one.left(self._format, [*groups, *theirs])
            emptied += zeroed
            orphaned += stays
            if zeroed or stays:
                before.add(one.target)
        lost, names = sum(one.lost for one in sent), ", ".join(sorted(before - {""}))
        return RowsLeft(emptied, tuple(orphaned), lost, theirs, awaited, names)

    def _rendered(
        self, state: MonthState, groups: Sequence[SummaryGroup], now: datetime
    ) -> list[MonthRow]:
        """A month's rows; none when one cannot be said, because a month goes out whole or not."""
        try:
            contents = self._format.render(groups, now)
        except Unfit as unfit:
            self._quarantine_month(state, unfit)
            return []
        return list(map(MonthRow, repeat(state.month), count(1), groups, contents))

    def _quarantine_month(self, state: MonthState, unfit: Unfit) -> None:
        name = JobId(f"summary {month_name(state.month)}")
        quarantined = SkippedJob(NOWHERE, name, "", None, unfit.rule, unfit.reason, fingerprint=0)
        self._sender.quarantine(quarantined)
        self._sender.note(Progress(skipped=(quarantined,)))

    def _send(self, states: Iterable[MonthState], now: datetime) -> None:
        """Send months as they are counted, unless they wait. Raises: Stopped."""
        rendered: list[MonthRow] = []
        for state in states:
            if not self._is_held(state.month):
                rendered += self._rendered(state, self._decided(state, now), now)
            if len(rendered) >= _SENT_TOGETHER:  # whole months: none is ever written down in part
                self._dispatch(rendered, now)
                rendered = []
        self._dispatch(rendered, now)
        self._sender.conclude()

    def _dispatch(self, rendered: Sequence[MonthRow], now: datetime) -> None:
        """Write down whole months' messages, in one transaction, and send them. Raises: Stopped."""
        frame = self._format.frame
        batches = whole_messages(
            rendered,
            most_records=self._most_records,
            most_bytes=self._sender.payload_limit() - len(frame.head) - len(frame.tail),
            between=len(frame.separator),
        )
        made = [make_months(self._format, self._target, batch, now) for batch in batches]
        self._ledger.prepare_months(self._target, made)
        while self._accepted:
            self._ledger.accept_change(self._target, *self._accepted.pop(0), self._clock())
        self._sender.send_outstanding()

    def _count(
        self,
        runs: PlacedRuns,
        contents: Mapping[int, Sequence[SummaryGroup]],
        *,
        dirty: Mapping[int, int],
        clean: Collection[int] = (),
        by_settings: Collection[int] = (),
        progress: Progress,
    ) -> None:
        self._ledger.count(
            self._target,
            runs,
            contents,
            dirty=dirty,
            clean=clean,
            by_settings=by_settings,
            progress=progress,
            basis=self._basis,
            policy_digest=self._decider.policy_digest,
            now=self._clock(),
        )
        self._sender.written_down(progress)
        self._sender.remarks.count(runs.keys)
