"""Jobs on their way as monthly totals: counted into their months, and every month that changed sent, always whole.

A job is counted once, by the ledger's membership, in the same transaction as the month that it made; nothing that was summed
before is summed again. A month is summed up anew from its rows when a counted job changed, or when another selection
or policy applies. What is sent replaces rows at the receiver by their keys and deletes none, so two things are held back
until an administrator says so: a month that would leave rows behind, and one that lost jobs since it was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from publisher.dispatch import Dispatch
from publisher.errors import Unfit
from publisher.formats.base import SummaryFormat, has_levels, receiver_table
from publisher.judge import Fit, Judge, PassedOver, set_aside
from publisher.ledger.base import Hold, Ledger, MonthState, Quarantined
from publisher.making import make_months
from publisher.model.job import JobId, JobKey, JobRecord, RowRef, SkippedJob
from publisher.model.message import LEFT_OUT, Values
from publisher.model.months import HeldMonth, left_behind, month_window, row_of, whole_messages
from publisher.model.policy import PublishedJob
from publisher.model.progress import Progress
from publisher.model.row_keys import month_number
from publisher.model.summary import Accumulator, Share, SummaryGroup
from publisher.model.summary_keys import KeyTotal
from publisher.reading import whole_window
from publisher.sources.base import Page, Source

_ASIDE_AT_ONCE: Final = 2_000  # jobs that have to leave a month, 1.7 kB each; the next sweep sets the others aside
_SUMMED_OTHERWISE: Final = (
    "it was summed up without service levels, for the format of before, and rows of it are gone since; "
    "publish it in that format, or give their database to source.databases again"
)
_FLUSH_JOBS: Final = 32_768  # entries that wait for their transaction: with what it makes of them some 20 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What bounds the messages of a summary target."""

    most_records: int  # 0: no limit by count
    fill_to: Callable[[], int]  # how many bytes a payload shall have


class MonthTotals:
    """What a round does with jobs when its format has monthly totals."""

    def __init__(
        self,
        *,
        target: str,
        format: SummaryFormat,  # noqa: A002  # the field's word
        judge: Judge,
        source: Source,
        ledger: Ledger,
        dispatch: Dispatch,
        scales: Scales,
        basis: str,
        accept_key_change: bool,
        clock: Callable[[], datetime],
        page_read: Callable[[Page], None],
    ) -> None:
        self._target = target
        self._format = format
        self._judge = judge
        self._source = source
        self._ledger = ledger
        self._dispatch = dispatch
        self._scales = scales
        self._basis = basis
        self._accept_key_change = accept_key_change
        self._clock = clock
        self._page_read = page_read
        self._months: dict[int, Accumulator | None] = {}
        self._runs: dict[JobKey, Values] = {}  # counted, and not written down yet
        self._dirty: set[int] = set()
        self._progress = Progress()
        self._held: list[HeldMonth] = []

    def __contains__(self, key: JobKey) -> bool:
        return key in self._runs

    @property
    def held(self) -> list[HeldMonth]:
        """Months that wait for an administrator."""
        return self._held

    @property
    def idle(self) -> bool:
        """Progress can always be written down with what was counted."""
        return True

    def take(self, fit: Fit, now: datetime, place: Progress | None = None) -> None:
        """Count a job into its month; one that was counted before with other values has its months summed up anew.

        Raises: Unfit.
        """
        self._format.admit(fit.published, now)
        month = month_number(fit.entry.ended_at)
        if fit.known is not None:
            self._dirty |= {month, month_number(fit.known.ended_at)}
        elif (totals := self._accumulator(month)) is not None:
            totals.add(fit.published)
        self._runs[fit.entry.key] = fit.entry.ended_at, fit.entry.fingerprint

    def admits(self, job: PublishedJob, now: datetime) -> bool:
        """Whether `take` would count it."""
        try:
            self._format.admit(job, now)
        except Unfit:
            return False
        return True

    def take_many(self, like: PublishedJob, runs: Iterable[tuple[JobKey, Values]], share: Share) -> None:
        """Count new runs of one month that are like that one, and that `take` would count each."""
        if (totals := self._accumulator(month_number(share.latest_end))) is not None:
            totals.add_many(like, share)
        self._runs.update(runs)

    def has_none_of(self, keys: Iterable[JobKey]) -> bool:
        return self._runs.keys().isdisjoint(keys)

    def mark(self, progress: Progress) -> None:
        self._progress += progress
        if len(self._runs) >= _FLUSH_JOBS:
            self.write_down()

    def write_down(self) -> None:
        """Everything counted so far, with how far was read, in one transaction."""
        contents = {month: list(totals.groups()) for month, totals in self._months.items() if totals is not None}
        self._count(self._runs, contents, dirty=self._dirty, clean=(), progress=self._progress)
        self._months.clear()
        self._runs.clear()
        self._dirty.clear()
        self._progress = Progress()

    def conclude(self, now: datetime) -> None:
        """Sum up anew what must be, and send the months that changed. Raises: Stopped, SourceError."""
        self.write_down()
        for state in self._ledger.months(self._target):
            if state.dirty or state.basis != self._basis or self._takes_singles_over(state):
                self._sum_up_anew(state, now)
        for state in self._ledger.months(self._target):
            if state.dirty:  # jobs of it were found in another month just now
                self._sum_up_anew(state, now)
        changed = [state for state in self._ledger.months(self._target) if state.digest != state.accepted_digest]
        self._send([one for state in changed for one in self._rendered(state, self._judged(state, now), now)], now)
        self._dispatch.send_outstanding()
        self._dispatch.conclude()

    def send_again(self, month: int, now: datetime) -> None:
        """Sum a month up anew and send it, whatever the receiver accepted. Raises: Stopped, SourceError."""
        fresh = MonthState(
            month=month,
            jobs=0,
            digest="",
            basis="",
            dirty=True,
            accepted_jobs=0,
            accepted_digest="",
            accepted_format="",
            on_its_way=False,
        )
        known = {state.month: state for state in self._ledger.months(self._target)}
        self._sum_up_anew(known.get(month, fresh), now)
        state = next((one for one in self._ledger.months(self._target) if one.month == month), None)
        if state is not None:
            self._send(self._rendered(state, self._judged(state, now), now), now)
        self._dispatch.send_outstanding()
        self._dispatch.conclude()

    def _accumulator(self, month: int) -> Accumulator | None:
        """What was counted of a month so far; None where that cannot be added to, and the month is to be summed up anew."""
        if month not in self._months:
            groups = self._ledger.counted(self._target, month)
            if self._can_be_told(groups):
                totals = self._months[month] = Accumulator(self._format.grouping)
                for group in groups:
                    totals.add_group(group)
            else:
                self._months[month] = None
                self._dirty.add(month)
        return self._months[month]

    def _can_be_told(self, groups: Iterable[SummaryGroup]) -> bool:
        """Whether they were summed up so that this format has a place for each: without levels none can be told by level."""
        return not self._format.grouping.by_level or all(group.benchmarks for group in groups)

    def _takes_singles_over(self, state: MonthState) -> bool:
        """Whether what was sent of a month one by one, in an earlier format, becomes part of its totals now."""
        return self._accept_key_change and bool(self._ledger.summary_keys(self._target, state.month))

    def _sum_up_anew(self, state: MonthState, now: datetime) -> None:
        """One month from its rows. Rows that are gone (`cleanup`, `rotate`) must not shrink it: then it stays as it was."""
        judge = self._judge_of(state.month)
        totals = Accumulator(self._format.grouping)
        runs: dict[JobKey, Values] = {}
        aside: list[SkippedJob] = []
        left: set[int] = set()  # months in which jobs of this one were counted before
        for_sure = state.dirty or not state.jobs
        present = 0
        window = month_window(state.month)
        for page in whole_window(self._target, self._source, self._ledger, window, self._format.needs, now):
            self._page_read(page)
            jobs: tuple[JobRecord | SkippedJob, ...] = (*page.jobs, *page.skipped)
            keys = [job.key for job in jobs]
            known, held = self._ledger.known(self._target, keys), self._ledger.held(self._target, keys)
            for job, key in zip(jobs, keys, strict=True):
                was = known.get(key)
                before = None if was is None or was.fingerprint == LEFT_OUT else month_number(was.ended_at)
                present += before == state.month
                fit = self._looked_at(job, key, held.get(key), judge, now)
                if isinstance(fit, Fit):
                    totals.add(fit.published)
                    if before is None or was is None or was.fingerprint != fit.entry.fingerprint:
                        runs[key] = fit.entry.ended_at, fit.entry.fingerprint
                        left.add(state.month if before is None else before)
                elif before is not None and was is not None:
                    runs[key] = was.ended_at, LEFT_OUT
                    left.add(before)
                    if fit is not None and key not in held and len(aside) < _ASIDE_AT_ONCE:
                        aside.append(fit)
            if for_sure and len(runs) >= _FLUSH_JOBS:  # until the month is written too, it stays to be summed up
                self._count(runs, {}, dirty={state.month, *left}, clean=(), progress=Progress())
                runs.clear()
        groups = list(totals.groups())
        if not for_sure and present < state.jobs:
            # What is there beside the rows that are gone is met by the regular reading, and added.
            groups, runs, left = list(self._ledger.counted(self._target, state.month)), {}, set()
            aside = []
        dirty = left - {state.month}
        for skipped in aside:
            self._dispatch.count_aside(skipped)
        progress = Progress(skipped=tuple(aside))
        self._count(runs, {state.month: groups}, dirty=dirty, clean=[state.month], progress=progress)

    def _looked_at(
        self, job: JobRecord | SkippedJob, key: JobKey, held: Quarantined | None, judge: Judge, now: datetime
    ) -> Fit | SkippedJob | None:
        """What a month that is summed up anew makes of a job, whatever was made of it before; None: it is not wanted."""
        if held is not None and held.hold is Hold.DROPPED:
            return None
        if isinstance(job, SkippedJob):
            return job
        verdict = judge.judge(job, key, None, None)
        if isinstance(verdict, Fit):
            try:
                self._format.admit(verdict.published, now)
            except Unfit as unfit:
                return set_aside(job, unfit)
        return None if isinstance(verdict, PassedOver) else verdict

    def _judge_of(self, month: int) -> Judge:
        """Of every job of the month, also of one that began before the start: a part of it would replace the whole."""
        return replace(self._judge, selection=replace(self._judge.selection, window=month_window(month)))

    def _judged(self, state: MonthState, now: datetime) -> Sequence[SummaryGroup]:
        """The groups of a month to send; none when it waits: held back, or not begun at the receiver."""
        groups = self._ledger.counted(self._target, state.month)
        if not self._can_be_told(groups):
            self._set_month_aside(state, Unfit("summed-otherwise", _SUMMED_OTHERWISE))
            return ()
        if not all(group.has_begun(now) for group in groups):
            return ()
        stale = self._stale(state, groups)
        lost = self._lost(state)
        if not stale and not lost:
            return groups
        if not self._accept_key_change:
            self._held.append(HeldMonth(month=state.month, stale=stale, lost_jobs=lost))
            return ()
        self._ledger.accept_change(self._target, state.month, stale, lost, self._clock())
        return groups

    def _lost(self, state: MonthState) -> int:
        """Jobs that the receiver has of a month, one by one or in totals, and that the totals to be sent have not."""
        jobs, there = state.jobs, state.accepted_jobs
        if self._ledger.summary_keys(self._target, state.month):
            delivered = self._ledger.counts(self._target).delivered
            there = max(there, sum(count for (month, _), count in delivered.items() if month == state.month))
            if not (self._accept_key_change or self._judge.again):  # what was sent one by one is not summed up yet
                jobs = max(jobs, self._source.count(month_window(state.month)))
        return max(there - jobs, 0)

    def _stale(self, state: MonthState, groups: Sequence[SummaryGroup]) -> tuple[KeyTotal, ...]:
        """Rows of the receiver that the groups do not replace, single records of an earlier format among them."""
        accepted = self._ledger.accepted(self._target, state.month)
        accepted_format = state.accepted_format or self._format.name
        if receiver_table(accepted_format) == receiver_table(self._format.name):
            accepted = left_behind(self._format.receiver_key, accepted, groups)
        singles = [total for total, _ in self._ledger.summary_keys(self._target, state.month)]
        return (*(row_of(group, by_level=has_levels(accepted_format)) for group in accepted), *singles)

    def _rendered(
        self, state: MonthState, groups: Sequence[SummaryGroup], now: datetime
    ) -> list[tuple[int, SummaryGroup, bytes]]:
        """A month's records; none at all when one cannot be said, because a month goes out whole or not."""
        try:
            return [(state.month, group, self._format.render(group, now)) for group in groups]
        except Unfit as unfit:
            self._set_month_aside(state, unfit)
            return []

    def _set_month_aside(self, state: MonthState, unfit: Unfit) -> None:
        aside = SkippedJob(
            row=RowRef(database="", record_id=0),
            job_id=JobId(f"summary {HeldMonth(month=state.month, stale=(), lost_jobs=0).name}"),
            local_id="",
            ended_at=None,
            rule=unfit.rule,
            reason=unfit.reason,
            fingerprint=0,
        )
        self._dispatch.count_aside(aside)
        self._ledger.note(self._target, Progress(skipped=(aside,)), self._judge.policy_digest, self._clock())

    def _send(self, rendered: Iterable[tuple[int, SummaryGroup, bytes]], now: datetime) -> None:
        frame = self._format.frame
        batches = whole_messages(
            rendered,
            most_records=self._scales.most_records,
            most_bytes=self._scales.fill_to() - len(frame.head) - len(frame.tail),
            between=len(frame.separator),
        )
        made = [make_months(self._format, self._target, batch, now) for batch in batches]
        self._ledger.prepare_months(self._target, made)

    def _count(
        self,
        runs: Mapping[JobKey, Values],
        contents: dict[int, list[SummaryGroup]],
        *,
        dirty: Iterable[int],
        clean: Iterable[int],
        progress: Progress,
    ) -> None:
        self._ledger.count(
            self._target,
            runs,
            contents,
            dirty=set(dirty),
            clean=set(clean),
            progress=progress,
            basis=self._basis,
            policy_digest=self._judge.policy_digest,
            now=self._clock(),
        )
