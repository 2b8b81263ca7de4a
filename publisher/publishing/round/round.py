"""The journey: pages of job records, decided on, taken, written down, sent, progress noted behind.

One `Round` works on one target. `plan/decision.py` decides what becomes of a job; it goes on to the
sink of its month (`sinks.py`); what becomes of a message is the business of `sender.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, Protocol

from publisher.formats.base import SummaryFormat
from publisher.formats.rules import warnings_about
from publisher.jobs.reader import JobPage
from publisher.ledger.answers import Hold, Quarantined, TargetState
from publisher.ledger.contract import Ledger
from publisher.model.entry import Recorded, RecordedRuns
from publisher.model.errors import LedgerError, PublisherError, Unfit
from publisher.model.job import Epoch, JobKey, JobRecord, RowRef, SkippedJob, key_of
from publisher.model.message import Batch, Progress, Rendered, WindowMark
from publisher.model.time import Window
from publisher.model.totals import BlockedMonth, month_window
from publisher.publishing.databases.known import AccountingData, closed_until, note_databases
from publisher.publishing.databases.reader import (
    IncrementalReader,
    JobReader,
    LoadedFirst,
    WaitingRuns,
    WindowReader,
    begin_reading,
    mark_behind,
    wanted_since,
)
from publisher.publishing.plan.collisions import NoCollisions, collisions
from publisher.publishing.plan.decision import Decider, Publish, Skip, skipped_job
from publisher.publishing.plan.holds import HeldBefore
from publisher.publishing.plan.restored import RestoredLedger
from publisher.publishing.round.live import LiveTarget
from publisher.publishing.round.outcome import Outcome, broken_off, concluded
from publisher.publishing.round.refusals import STOP_REQUESTED, RoundStopped
from publisher.publishing.round.sender import MessageObserver, MessageSender
from publisher.publishing.round.sinks import RecordSink, Sinks, open_sink, other_kind
from publisher.publishing.round.totals import MonthlyTotals
from publisher.transports.base import Receipt

_PATIENCE: Final = 50  # looks at a lock that another publisher holds
_LOOK_EVERY_S: Final = 0.1
_QUIET_PAGES: Final = 200  # pages without a wanted job between two notes of progress
# Jobs set aside between two of them: they wait in memory, 1.7 kB each.
_QUARANTINE_BATCH: Final = 2_000
_DAMAGED: Final = "`publisher state check` checks all of it; restore the last sound backup"
_ACCEPT_AGAIN: Final = (
    "what --accept-key-change accepted holds for the months that arrived: "
    "give it again to have the others sent"
)


def patience(wait: Callable[[float], bool]) -> Callable[[], bool]:
    """Waits a little while another publisher is on a target; a republish soon lets go of it."""
    left = iter(range(_PATIENCE))
    return lambda: next(left, None) is not None and not wait(_LOOK_EVERY_S)


class Observer(MessageObserver, Protocol):
    """Notified of every step: for progress bars, logs, and tests that end the process there."""

    def round_begins(self, state: TargetState, *, sweep: bool) -> None: ...
    def page_read(self, target: str, page: JobPage) -> None: ...
    def round_ends(self, target: str) -> None: ...


class _Journey(NamedTuple):
    """What is read, how it is decided on, up to how many jobs are taken, and as of when."""

    reading: JobReader
    decider: Decider
    limit: int | None
    now: datetime


class Round:
    """One regular round of one target: what is in doubt, then everything not yet delivered."""

    def __init__(
        self,
        live: LiveTarget,
        accounting: AccountingData,
        ledger: Ledger,
        observer: Observer,
        clock: Callable[[], datetime],
        wait: Callable[[float], bool],
    ) -> None:
        self._live = live
        self._summed = isinstance(live.format, SummaryFormat)
        self._accounting = accounting
        self._jobs = accounting.jobs
        self._ledger = ledger
        self._observer = observer
        self._clock = clock
        self._wait = wait
        self._taken = self._messages = self._quiet_pages = self._quarantine_waiting = 0
        self._counted_again: set[RowRef] = set()
        self._sinks: Sinks | None = None
        self._collisions = NoCollisions()
        self._waits = False  # some job that was read is to be decided on by a later round
        self._first = LoadedFirst(self._jobs.first_loads(), accounting.batch_systems)

    def run(
        self, limit: int | None = None, *, every_row: bool = False, all_read: bool = True
    ) -> Outcome:
        """Publish up to `limit` jobs; `every_row`: look at all jobs now, not only at changed ones.

        Without `all_read`, jobs of a batch system may be missing, and it is no success. What breaks
        a round off on its way is its outcome, beside what went out before.

        Raises: PublisherError for whatever ends the round before it has begun.
        """
        with self._at_work():
            now = self._clock()
            state = self._begin()
            databases = self._ledger.databases
            missing = note_databases(self._live.name, self._accounting, databases, now)
            window = replace(self._live.selection.window, start=state.start)
            decider = self._decider(window, again=False)
            waiting = WaitingRuns(self._live.name, self._jobs, self._ledger, decider)
            waiting.write_down()
            reading, sweep = self._incremental(state, every_row)
            is_new_day = state.last_round is None or state.last_round.date() != now.date()
            if (sweep or is_new_day) and (damage := self._ledger.condition.damage(now)):
                what = f"the ledger is damaged: {', '.join(damage)}; {_DAMAGED}"
                raise LedgerError(f"target {self._live.name}: {what}")
            self._observer.round_begins(state, sweep=sweep)
            try:
                receipt = self._travel(_Journey(reading, decider, limit, now))
            except PublisherError as error:
                return broken_off(self._live.name, error, self._sender.tally)
            whole = receipt is None and (limit is None or self._taken < limit)
            all_read = all_read and not missing
            are_all_read = whole and all_read and not reading.incomplete
            self._end_holds(waiting, is_whole=whole, are_all_read=are_all_read)
            checked = self._live.policy_digest if whole else None
            self._ledger.targets.end_round(
                self._live.name,
                success=receipt is None and not self._held and all_read,
                swept=sweep and whole and not reading.incomplete,
                checked=checked,
                now=self._clock(),
            )
        return self._outcome(receipt)._replace(missing=tuple(one.reason for one in missing))

    def _end_holds(self, waiting: WaitingRuns, *, is_whole: bool, are_all_read: bool) -> None:
        """Write down what is held or waits; set aside what was and is in no store any more."""
        held = self._before.runs
        if are_all_read and (missed := [*self._before.not_found(), *waiting.not_found(held)]):
            for job in missed:
                self._sender.quarantine(job)
            self._sender.note(Progress(skipped=tuple(missed)))
        self._before.conclude(is_whole=is_whole)
        waiting.conclude(is_whole=is_whole)

    def _incremental(self, state: TargetState, every_row: bool) -> tuple[IncrementalReader, bool]:
        """Return what is read, and whether that is all: then the ledger says so from now on."""
        of = self._live.name, self._jobs, self._ledger.positions, self._ledger.quarantine
        wanted = self._live.wanted_digest(state.start)
        # All jobs are looked at: also those that may be retracted, or wait.
        is_due = state.swept is None or self._restored or self._live.accept_key_change
        every_job = every_row or bool(is_due)
        reading, sweep = begin_reading(*of, self._before.runs, wanted, every_job=every_job)
        if sweep:
            self._note(Progress(cursor=reading.cursor))
        began, incomplete = reading.cursor.began, reading.incomplete
        self._first = self._first._replace(began=began, incomplete=incomplete)
        return reading, sweep

    def _note(self, progress: Progress) -> None:
        now = self._clock()
        self._ledger.positions.note(self._live.name, progress, self._live.policy_digest, now)

    def republish(
        self, window: Window, window_progress: str, *, most_jobs: int
    ) -> tuple[Outcome, bool]:
        """Publish the next portion of a window again, and say whether it was the last.

        The place where it ended stays written down. Regular rounds go on as before. Raises:
        PublisherError before it has begun.
        """
        with self._at_work():
            now = self._clock()
            self._observer.round_begins(self._begin(again=True), sweep=False)
            decider = self._decider(window, again=True)
            reading = WindowReader(
                target=self._live.name,
                window_progress=window_progress,
                jobs=self._jobs,
                positions=self._ledger.positions,
                window=window,
                most_jobs=most_jobs,
            )
            try:
                receipt = self._travel(_Journey(reading, decider, None, now))
            except PublisherError as error:
                return broken_off(self._live.name, error, self._sender.tally), True
        return self._outcome(receipt), reading.finished or receipt is not None

    def republish_month(self, month: int, window_progress: str = "") -> Outcome:
        """Sum a month (12 x year + month - 1) up again and send it whole.

        One that is broken off goes on behind it. Raises: PublisherError before it has begun.
        """
        with self._at_work():
            now = self._clock()
            state = self._begin(again=True)
            self._observer.round_begins(state, sweep=False)
            # As a regular round counts what ended since the target's start, so does this month.
            window = replace(self._live.selection.window, start=state.start)
            decider = self._decider(window, again=True)
            try:
                with self._sender:
                    self._sender.send_outstanding()
                    if (totals := self._open_sinks(decider).totals) is not None:
                        totals.resend(month, now)
                if window_progress and not self._held:
                    done = Epoch(month_window(month).end or 0)
                    self._note(Progress(window_mark=WindowMark(window_progress, done)))
            except RoundStopped as stopped:
                return self._outcome(stopped.receipt)
            except PublisherError as error:
                return broken_off(self._live.name, error, self._sender.tally)
        return self._outcome(None)

    def send_outstanding(self) -> Outcome:
        """Send what is in doubt, and nothing new. Raises: PublisherError before it has begun."""
        with self._at_work():
            self._observer.round_begins(self._begin(again=True), sweep=False)
            try:
                with self._sender:
                    self._sender.send_outstanding()
                    self._sender.conclude()
            except RoundStopped as stopped:
                return self._outcome(stopped.receipt)
        return self._outcome(None)

    @property
    def _held(self) -> list[BlockedMonth]:
        return [] if self._sinks is None else self._sinks.held

    def _at_work(self) -> AbstractContextManager[None]:
        patient = patience(self._wait)
        return self._ledger.locks.working_on(self._live.name, patient, self._live.receiver)

    def _begin(self, *, again: bool = False) -> TargetState:
        state = self._live.begin(self._ledger.targets)
        losses = self._ledger.losses.held(self._live.name)
        name, closed = self._live.name, self._ledger.targets.closed(self._live.name)
        self._restored = RestoredLedger(name, losses, closed=closed, are_all_shown=not again)
        beside = {one.name for one in self._live.beside}, self._ledger.holds, self._clock
        self._before = HeldBefore(self._live.name, *beside, again=again)
        self._other = None if again else other_kind(self._live, self._ledger.entries)
        form = self._other.format if self._other and self._summed else self._live.format
        sending = self._live, form, self._ledger, self._observer, self._clock
        check_all = state.checked_digest != self._live.policy_digest
        self._sender = MessageSender(*sending, check_all=check_all)
        began = wanted_since(self._live.name, self._ledger.positions, self._jobs)
        lost = self._ledger.losses.months(self._live.name)
        self._first = self._first._replace(began=began, lost=lost)
        return state

    def _travel(self, journey: _Journey) -> Receipt | None:
        """The journey; returns the receipt that ended it early, if one did.

        A refusal of names, such as a MachineName, is the records' fault if another name is taken.
        When nothing but refused names was met, a job of another name goes ahead of them to tell.
        """
        receipt = self._travel_once(journey)
        refused: set[str] = set()
        while receipt is not None and receipt.refused_by:
            refused.update(receipt.refused_by)
            witness = self._job_of_another_machine(journey, refused)
            if witness is None:
                break
            receipt = self._travel_once(journey, witness)
        return receipt

    def _travel_once(self, journey: _Journey, first: Rendered | None = None) -> Receipt | None:
        self._taken = self._sender.tally.records
        with self._sender:
            try:
                self._sender.send_outstanding()
                if first is not None:
                    self._sender.send(Batch(records=[first], progress=Progress()))
                    self._sender.finish()
                sinks = self._open_sinks(journey.decider)
                if sinks.records is not None:
                    of = self._live.name, sinks.records.format.receiver, self._ledger.entries
                    self._collisions = collisions(*of, journey.decider.closed_until)
                self._read(journey, sinks)
                sinks.conclude(journey.now)
            except RoundStopped as stopped:
                return self._sender.abort(stopped.receipt)
            except Exception:
                self._sender.abort(None)
                raise
        return None

    def _job_of_another_machine(self, journey: _Journey, refused: set[str]) -> Rendered | None:
        """The first job under none of these MachineNames, to which its own is added."""
        sinks = self._open_sinks(journey.decider)
        records = sinks.records
        if self._live.policy.machine_name or records is None:
            return None
        for page, _ in journey.reading.once_more().pages():
            if self._wait(0):
                return None
            name, runs = self._live.name, page.runs
            known = self._ledger.entries.recorded(name, runs)
            held = self._ledger.quarantine.held(name, [*map(key_of, runs)])
            for job, run in zip(page.jobs, runs, strict=True):
                sink, decider = sinks.of(job, known.get(run))
                if sink is not records:
                    continue
                fit = decider.decide(job, run, known.get(run), held.get(key_of(run)))
                if isinstance(fit, Publish) and fit.published.where.machine_name not in refused:
                    with suppress(Unfit):
                        found = records.rendered(fit, journey.now)
                        refused.add(fit.published.where.machine_name)
                        return found
        return None

    def _read(self, journey: _Journey, sinks: Sinks) -> None:
        """Raises: Stopped."""
        for page, progress in journey.reading.pages():
            if self._wait(0):
                raise RoundStopped(STOP_REQUESTED)
            self._observer.page_read(self._live.name, page)
            if not self._take_page(page, progress, journey, sinks):
                return

    def _decider(self, window: Window, *, again: bool) -> Decider:
        sent_by_jura = None if again else self._live.sent_by_jura
        selection, of = self._live.selection._replace(window=window), self._live
        return Decider(
            *(selection, of.policy, of.policy_digest, of.changed),
            again=again,
            sent_by_jura=sent_by_jura,
            closed_until=closed_until(self._ledger.targets, self._live.name),
        )

    def _open_sinks(self, decider: Decider) -> Sinks:
        self._sinks = open_sink(
            self._live,
            decider,
            self._jobs,
            self._ledger,
            self._sender,
            self._clock,
            other=self._other,
            restored=self._restored,
            before=self._before,
            first=self._first,
            page_read=partial(self._observer.page_read, self._live.name),
        )
        return self._sinks

    def _take_page(
        self, page: JobPage, progress: Progress, journey: _Journey, sinks: Sinks
    ) -> bool:
        """Decide on a page's jobs and take them; False when the limit is reached before its end."""
        reading, usual, limit, now = journey
        name, met = self._live.name, sinks.met
        recorded = self._ledger.entries.recorded(name, page.runs)
        self._before.meet(page.runs)
        page = self._first.wanted(page, recorded, self._before.runs, again=usual.again)
        if not met.isdisjoint(page.runs):  # since the ledger may not tell of them yet
            page = page.where(lambda run, _: run not in met)
        keys = list(map(key_of, page.runs))
        held = self._ledger.quarantine.held(name, keys + [skipped.key for skipped in page.skipped])
        self._collisions.look_up(page.jobs, RecordedRuns(recorded))
        quarantined: list[SkippedJob] = []
        left: list[JobKey] = []
        mark_at = partial(mark_behind, reading, quarantined, left)
        for skipped in filter(usual.may_want, page.skipped):
            self._quarantine(skipped, held.get(skipped.key), quarantined, reading)
        for job, key, run, change in zip(page.jobs, keys, page.runs, page.changes, strict=True):
            if limit is not None and self._taken >= limit:
                # The page is read again, but what was set aside of it is reported now, and must be
                # found in quarantine.
                sinks.mark(Progress(skipped=tuple(quarantined), left_quarantine=tuple(left)))
                return False
            was, in_quarantine = recorded.get(run), held.get(key)
            sink, decider = sinks.of(job, was)
            verdict = decider.decide(job, run, was, in_quarantine)
            stays = self._take(verdict, in_quarantine, sink, now, mark_at(job.ended_at, change))
            if stays is None:
                if isinstance(sink, MonthlyTotals) and key in held:
                    left.append(key)
                continue
            if isinstance(stays, SkippedJob):
                self._quarantine(stays, in_quarantine, quarantined, reading)
                self._before.end(run)
                continue
            self._pass_over(stays, job, was, journey, sink)
            if stays.unwanted or decider.is_settled(job, was):
                self._before.end(run)
            if stays.left_quarantine:
                left.append(key)
        progress += Progress(skipped=tuple(quarantined), left_quarantine=tuple(left))
        sinks.mark(progress, waits=self._waits)
        self._write_down_if_due(sinks, len(quarantined))
        return True

    def _pass_over(
        self,
        verdict: Skip,
        job: JobRecord,
        known: Recorded | None,
        journey: _Journey,
        sink: RecordSink,
    ) -> None:
        """Leave a job where it is."""
        self._sender.tally.kept += verdict.kept and not journey.reading.repeats
        self._waits = self._waits or verdict.waits
        if verdict.unwanted and isinstance(sink, MonthlyTotals):
            sink.unwanted(job, known)

    def _write_down_if_due(self, sinks: Sinks, quarantined: int) -> None:
        """After a page of which so many jobs were set aside."""
        self._quiet_pages += 1
        self._quarantine_waiting += quarantined
        quiet = sinks.idle and self._quiet_pages >= _QUIET_PAGES
        if quiet or self._quarantine_waiting >= _QUARANTINE_BATCH:
            self._quiet_pages = self._quarantine_waiting = 0
            sinks.write_down()

    def _take(
        self,
        fit: Publish | SkippedJob | Skip,
        held: Quarantined | None,
        sink: RecordSink,
        now: datetime,
        mark: Progress | None,
    ) -> SkippedJob | Skip | None:
        """None for a job that goes on; else it is set aside, or there is nothing to be done.

        Raises: Stopped.
        """
        self._stop_between_messages()
        if not isinstance(fit, Publish):
            return fit
        summed = isinstance(sink, MonthlyTotals)
        try:
            checked = fit if summed else self._collisions.checked(fit, held)
            if isinstance(checked, Skip):
                return checked
            fit = checked
            is_held = not sink.take(fit, now, mark)
        except Unfit as unfit:
            return skipped_job(fit.published.job, unfit)
        job = fit.published.job
        if not summed:
            self._collisions.taken(fit, is_held=is_held)
        # One that was held before may be held again: it takes no place of a limit.
        self._taken += not (is_held or fit.run in self._before.runs)
        lost_s = job.wall_s if fit.published.benchmark.arex_default else 0
        warnings = warnings_about(fit.published, summed=summed)
        self._sender.remarks.note(fit.run, job, lost_s, warnings)
        return None

    def _stop_between_messages(self) -> None:
        """Raises: RoundStopped when a stop was asked for while the last message was sent."""
        before, self._messages = self._messages, self._sender.tally.messages
        if self._messages != before and self._wait(0):
            raise RoundStopped(STOP_REQUESTED)

    def _quarantine(
        self,
        skipped: SkippedJob,
        held: Quarantined | None,
        quarantined: list[SkippedJob],
        reading: JobReader,
    ) -> None:
        if held is not None and held.hold is Hold.DROPPED:
            return
        if held is None or held.hold is Hold.RELEASED or held.job.rule != skipped.rule:
            # A sweep meets again what was looked at again just before: count it once.
            if skipped.row not in self._counted_again:
                self._sender.quarantine(skipped)
            if reading.repeats:
                self._counted_again.add(skipped.row)
        quarantined.append(skipped)

    def _outcome(self, receipt: Receipt | None) -> Outcome:
        accepts = self._summed and self._live.accept_key_change
        # Months that were sent because that was accepted, and did not arrive, are decided on again.
        if receipt is not None and accepts and not receipt.doubt:
            receipt = receipt._replace(reason=f"{receipt.reason}; {_ACCEPT_AGAIN}")
        return concluded(self._live.name, receipt, self._sender.tally, held=self._held)
