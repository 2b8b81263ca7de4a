"""The journey, and nothing else: pages of job records, judged, taken, written down, sent; progress noted behind them.

One `Round` works on one target. What a job needs is decided in `judge.py`; it goes on as a single record (`batching.py`) or
as part of its month (`summing.py`); what becomes of a message is `dispatch.py`'s business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

from publisher.aim import Aim
from publisher.collisions import NoCollisions, collisions
from publisher.counting import counter_for
from publisher.delivery.base import Receipt, Verdict
from publisher.dispatch import Dispatch, Stopped, Watcher
from publisher.errors import Later, PublisherError, Unfit
from publisher.formats.base import SummaryFormat
from publisher.judge import Fit, Judge, PassedOver, set_aside
from publisher.ledger.base import Hold, Ledger, Quarantined, TargetState
from publisher.missing import Missing, look_for_databases
from publisher.model.job import Epoch, JobKey, RowRef, SkippedJob
from publisher.model.months import HeldMonth, month_window
from publisher.model.progress import Progress, WindowMark
from publisher.model.quality import apel_warnings
from publisher.model.selection import Window
from publisher.outcome import Outcome, broken_off, concluded
from publisher.outlets import Outlet, open_outlet
from publisher.reading import NewRows, Reading, WindowAgain, place_of
from publisher.sources.base import Page, Source
from publisher.summing import MonthTotals

log = logging.getLogger("publisher")

SWEEP_EVERY: Final = timedelta(hours=24)
_PATIENCE: Final = 50  # looks at a lock that another publisher holds
_LOOK_EVERY_S: Final = 0.1
_QUIET_PAGES: Final = 200  # pages without a wanted job between two notes of progress
_ASIDE_AT_ONCE: Final = 2_000  # jobs set aside between two of them: they wait in memory, 1.7 kB each


_TOLD_TO_STOP: Final = Receipt(
    verdict=Verdict.RETRY_LATER, reason="told to stop; the next run goes on from here", exit_status=Later.exit_status
)


class Observer(Watcher, Protocol):
    """Told of every step: for progress bars, for logs, and for tests that end the process between two of them."""

    def round_begins(self, state: TargetState, *, sweep: bool) -> None: ...
    def page_read(self, target: str, page: Page) -> None: ...


class Round:
    """One regular round of one target: first what is in doubt, then everything not yet delivered."""

    def __init__(
        self,
        aim: Aim,
        source: Source,
        ledger: Ledger,
        observer: Observer,
        clock: Callable[[], datetime],
        wait: Callable[[float], bool],
    ) -> None:
        self._aim = aim
        self._source = source
        self._ledger = ledger
        self._observer = observer
        self._clock = clock
        self._wait = wait
        self._taken = 0
        self._quiet_pages = 0
        self._aside_waiting = 0
        self._counted_again: set[RowRef] = set()
        self._outlet_now: Outlet | None = None
        self._collisions = NoCollisions()

    def run(self, limit: int | None = None, *, every_row: bool = False) -> Outcome:
        """Publish up to `limit` jobs; `every_row`: look at all rows now, not only once a day.

        What breaks a round off on its way is its outcome, beside what went out before.

        Raises: PublisherError for whatever ends the round before it has begun.
        """
        with self._ledger.working_on(self._aim.name, self._patience()):
            now = self._clock()
            state = self._begin(now)
            missing = self._look_for_databases(now)
            sweep = every_row or self._sweep_is_due(state, now)
            self._observer.round_begins(state, sweep=sweep)
            judge = self._judge(replace(self._aim.selection.window, start=state.start), again=False)
            reading = NewRows(
                target=self._aim.name,
                source=self._source,
                ledger=self._ledger,
                needs=self._aim.format.needs,
                sweep=sweep,
                nearly_all_done=state.swept is not None or state.start is not None,
                wants=judge.selection.wants,
                delivered_as_it_is=judge.delivered_as_it_is,
                alike=isinstance(self._aim.format, SummaryFormat) and limit is None and judge.policy.told_by_row,
            )
            try:
                receipt = self._travel(reading, judge, limit, now)
            except PublisherError as error:
                return broken_off(self._aim.name, error, self._dispatch.tally)
            whole = receipt is None and (limit is None or self._taken < limit)
            self._ledger.end_round(
                self._aim.name,
                success=receipt is None and not self._held and not missing,
                swept=sweep and whole,
                checked=self._aim.policy_digest if whole else None,
                now=self._clock(),
                held=[month.month for month in self._held],
            )
        return replace(self._outcome(receipt), missing=tuple(one.reason for one in missing))

    def republish(self, window: Window, errand: str, *, most_pages: int) -> tuple[Outcome, bool]:
        """Publish the next portion of a window again, and say whether it was the last. Regular rounds go on as before.

        Raises: PublisherError for whatever ends it before it has begun.
        """
        with self._ledger.working_on(self._aim.name, self._patience()):
            now = self._clock()
            self._observer.round_begins(self._begin(now), sweep=False)
            judge = self._judge(window, again=True)
            reading = WindowAgain(
                target=self._aim.name,
                errand=errand,
                source=self._source,
                ledger=self._ledger,
                needs=self._aim.format.needs,
                window=window,
                most_pages=most_pages,
            )
            try:
                receipt = self._travel(reading, judge, None, now)
            except PublisherError as error:
                return broken_off(self._aim.name, error, self._dispatch.tally), True
            if reading.finished and receipt is None:
                self._ledger.end_errand(self._aim.name, errand)
        return self._outcome(receipt), reading.finished or receipt is not None

    def republish_month(self, month: int, errand: str = "") -> Outcome:
        """Sum a month (12 x year + month - 1) up anew and send it whole; an errand that is broken off goes on behind it.

        Raises: PublisherError for whatever ends it before it has begun.
        """
        with self._ledger.working_on(self._aim.name, self._patience()):
            now = self._clock()
            state = self._begin(now)
            self._observer.round_begins(state, sweep=False)
            # The regular round counts what ended since the target's start; the same jobs make the month here.
            judge = self._judge(replace(self._aim.selection.window, start=state.start), again=True)
            try:
                with self._dispatch:
                    self._dispatch.send_outstanding()
                    outlet = self._outlet(judge)
                    if isinstance(outlet, MonthTotals):
                        outlet.send_again(month, now)
                if errand and not self._held:
                    self._note_month(month, errand)
            except Stopped as stopped:
                return self._outcome(stopped.receipt)
            except PublisherError as error:
                return broken_off(self._aim.name, error, self._dispatch.tally)
        return self._outcome(None)

    def _note_month(self, month: int, errand: str) -> None:
        done = Epoch(month_window(month).end or 0)
        mark = WindowMark(errand=errand, ended_at=done, row=RowRef(database="", record_id=0))
        self._ledger.note(self._aim.name, Progress(window_mark=mark), self._aim.policy_digest, self._clock())

    def send_outstanding(self) -> Outcome:
        """Send what is in doubt, and nothing new.

        Raises: PublisherError for whatever ends it before it has begun.
        """
        with self._ledger.working_on(self._aim.name, self._patience()):
            self._observer.round_begins(self._begin(self._clock()), sweep=False)
            try:
                with self._dispatch:
                    self._dispatch.send_outstanding()
                    self._dispatch.conclude()
            except Stopped as stopped:
                return self._outcome(stopped.receipt)
        return self._outcome(None)

    @property
    def _held(self) -> list[HeldMonth]:
        return [] if self._outlet_now is None else self._outlet_now.held

    def _patience(self) -> Callable[[], bool]:
        """Waits a little while another publisher is on the target; a republish lets go of it every few seconds."""
        left = iter(range(_PATIENCE))
        return lambda: next(left, None) is not None and not self._wait(_LOOK_EVERY_S)

    def _begin(self, now: datetime) -> TargetState:
        state = self._ledger.begin_round(
            self._aim.name,
            start_rule=self._aim.start_rule,
            start=self._aim.start,
            selection_digest=self._aim.selection_digest,
            now=now,
        )
        self._dispatch = self._new_dispatch(state)
        self._held_before = state.held
        return state

    def _sweep_is_due(self, state: TargetState, now: datetime) -> bool:
        """Once a day, after a change of what is wanted, when the clock went back, or when rows were renumbered."""
        if state.swept is None or not timedelta(0) <= now - state.swept < SWEEP_EVERY:
            return True
        if self._totals_were_left(state):
            return True
        cursors = [self._ledger.cursor(self._aim.name, database) for database in self._source.databases()]
        return any(cursor is not None and not self._source.fits(cursor) for cursor in cursors)

    def _look_for_databases(self, now: datetime) -> Sequence[Missing]:
        """Note which databases are there, and say which of those that were read once are not."""
        target = self._aim.name
        found = look_for_databases(target, self._source, self._ledger)
        self._ledger.found_databases(target, found.there, now)
        for file in found.returned:
            log.info(
                "target %s: %s: was retired and is there again: it is read from where reading stopped", target, file
            )
        for file, name in found.renamed.items():
            log.info("target %s: %s: is called %s now", target, file, name)
            self._ledger.retire_database(target, file, now)
        return found.missing

    def _totals_were_left(self, state: TargetState) -> bool:
        """Whether jobs were counted for totals that never arrived, in a format of before: now they go one by one."""
        if isinstance(self._aim.format, SummaryFormat) or state.checked_digest == self._aim.policy_digest:
            return False
        return any(month.digest != month.accepted_digest for month in self._ledger.months(self._aim.name))

    def _new_dispatch(self, state: TargetState) -> Dispatch:
        return Dispatch(
            target=self._aim.name,
            format=self._aim.format,
            transport=self._aim.transport,
            ledger=self._ledger,
            policy_digest=self._aim.policy_digest,
            wire_digest=self._aim.wire_digest,
            watcher=self._observer,
            clock=self._clock,
            check_all=state.checked_digest != self._aim.policy_digest,
            frame_of=self._aim.frame_of,
        )

    def _travel(self, reading: Reading, judge: Judge, limit: int | None, now: datetime) -> Receipt | None:
        """The journey; returns the receipt that ended it early, if one did."""
        with self._dispatch:
            try:
                self._dispatch.send_outstanding()
                outlet = self._outlet(judge)
                with collisions(self._aim, self._source, self._ledger) as self._collisions:
                    self._read(reading, judge, outlet, limit, now)
                outlet.conclude(now)
            except Stopped as stopped:
                return self._dispatch.land(stopped.receipt)
            except Exception:
                self._dispatch.land(None)
                raise
        return None

    def _read(self, reading: Reading, judge: Judge, outlet: Outlet, limit: int | None, now: datetime) -> None:
        """Raises: Stopped."""
        counter = counter_for(outlet, self._aim, judge, self._source, self._ledger)
        for page, progress in reading.pages(now):
            self._stop_when_told()
            self._observer.page_read(self._aim.name, page)
            if page.alike and counter is not None:
                page, progress, taken = counter.take_page(page, progress, now)
                self._taken += taken.jobs
            if not self._take_page(page, progress, reading, judge, outlet, limit, now):
                return

    def _stop_when_told(self) -> None:
        if self._wait(0):
            raise Stopped(_TOLD_TO_STOP)

    def _judge(self, window: Window, *, again: bool) -> Judge:
        return Judge(
            selection=replace(self._aim.selection, window=window),
            policy=self._aim.policy,
            policy_digest=self._aim.policy_digest,
            changed=self._aim.changed,
            again=again,
        )

    def _outlet(self, judge: Judge) -> Outlet:
        self._outlet_now = open_outlet(
            self._aim,
            judge,
            self._source,
            self._ledger,
            self._dispatch,
            self._clock,
            held_before=self._held_before,
            page_read=partial(self._observer.page_read, self._aim.name),
        )
        return self._outlet_now

    # Taking

    def _take_page(
        self,
        page: Page,
        progress: Progress,
        reading: Reading,
        judge: Judge,
        outlet: Outlet,
        limit: int | None,
        now: datetime,
    ) -> bool:
        """Judge a page's jobs and let them go on; False when the limit was reached before its end."""
        keys = [job.key for job in page.jobs]
        known = self._ledger.known(self._aim.name, keys)
        held = self._ledger.held(self._aim.name, keys + [skipped.key for skipped in page.skipped])
        self._collisions.look_up(page.jobs)
        aside: list[SkippedJob] = []
        left: list[JobKey] = []
        for skipped in page.skipped:
            if skipped.ended_at is None or skipped.ended_at in judge.selection.window:
                self._set_aside(skipped, held.get(skipped.key), aside, reading)
        for job, key in zip(page.jobs, keys, strict=True):
            if limit is not None and self._taken >= limit:
                # The page is read again, but what was set aside of it is told now and must be found in quarantine.
                outlet.mark(Progress(skipped=tuple(aside), left_quarantine=tuple(left)))
                return False
            if key in outlet:
                continue
            verdict = judge.judge(job, key, known.get(key), held.get(key))
            stays = self._take(verdict, held.get(key), outlet, now, place_of(reading, job, aside, left))
            if stays is None:
                continue
            if isinstance(stays, SkippedJob):
                self._set_aside(stays, held.get(key), aside, reading)
            else:
                self._dispatch.tally.kept += stays.kept and not reading.repeats
                if stays.left_quarantine:
                    left.append(key)
        outlet.mark(progress + Progress(skipped=tuple(aside), left_quarantine=tuple(left)))
        self._quiet_pages += 1
        self._aside_waiting += len(aside)
        if (outlet.idle and self._quiet_pages >= _QUIET_PAGES) or self._aside_waiting >= _ASIDE_AT_ONCE:
            self._quiet_pages = self._aside_waiting = 0
            outlet.write_down()
        return True

    def _take(
        self,
        fit: Fit | SkippedJob | PassedOver,
        held: Quarantined | None,
        outlet: Outlet,
        now: datetime,
        place: Progress | None,
    ) -> SkippedJob | PassedOver | None:
        """None for a job that goes on; otherwise it is set aside, or there is nothing to do about it."""
        if not isinstance(fit, Fit):
            return fit
        try:
            self._collisions.check(fit, held, outlet.__contains__)
            outlet.take(fit, now, place)
        except Unfit as unfit:
            return set_aside(fit.published.job, unfit)
        self._collisions.taken(fit)
        self._taken += 1
        job, summed = fit.published.job, isinstance(self._aim.format, SummaryFormat)
        lost_s = job.wall_s if fit.published.benchmark.arex_default else 0
        self._dispatch.remark(fit.entry.key, job.queue, lost_s, apel_warnings(fit.published, summed=summed))
        return None

    def _set_aside(
        self, skipped: SkippedJob, held: Quarantined | None, aside: list[SkippedJob], reading: Reading
    ) -> None:
        if held is not None and held.hold is Hold.DROPPED:
            return
        if held is None or held.hold is Hold.RELEASED or held.job.rule != skipped.rule:
            # A sweep meets again what was looked at again just before: count it once.
            if skipped.row not in self._counted_again:
                self._dispatch.set_aside(skipped)
            if reading.repeats:
                self._counted_again.add(skipped.row)
        aside.append(skipped)

    def _outcome(self, receipt: Receipt | None) -> Outcome:
        return concluded(
            self._aim.name,
            receipt,
            self._dispatch.tally,
            held=self._held,
        )
