"""`republish`: send a window of end times again, delivered or not, between the regular rounds.

It is planned first (plan.py), so that an administrator sees the effect, and carried out in
portions: between two of them the target's lock is free for a regular round, and after each the
ledger knows how far it has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from sys import maxsize
from typing import Final

from publisher.ledger.contract import Ledger
from publisher.model.errors import PublisherError, RecordError
from publisher.model.receiver import shown
from publisher.model.totals import BlockedMonth
from publisher.policy.target import Target
from publisher.publishing.databases.known import AccountingData
from publisher.publishing.plan.actions import ActionCounts
from publisher.publishing.plan.holds import stays
from publisher.publishing.plan.reasons import braked, held_reason, settings_changed
from publisher.publishing.publish import for_each_target
from publisher.publishing.republish.plan import (
    RepublishPlan,
    RepublishRequest,
    as_requested,
    numbers,
)
from publisher.publishing.round.live import LiveTarget
from publisher.publishing.round.outcome import Outcome, added, broken_off, count_held
from publisher.publishing.round.round import Observer, Round, patience
from publisher.publishing.site import Site
from publisher.publishing.takeover.adopt import adopt_named, jobs_of_ces

# A portion is a few seconds of work: so long a regular round may have to wait.
_PORTION_JOBS: Final = 25_000
_BREATH_S: Final = 0.2


def carry_out(
    site: Site,
    targets: Sequence[Target],
    plans: Sequence[RepublishPlan],
    request: RepublishRequest,
    observer: Observer,
    *,
    dry_run: bool,
) -> list[Outcome]:
    """Send what was planned, whatever one target meets. Raises: LedgerError, SourceError."""
    planned_for = {target.name: planned for target, planned in zip(targets, plans, strict=True)}
    accept = request.accept_key_change

    def work(target: Target, accounting: AccountingData, ledger: Ledger) -> Outcome:
        planned = planned_for[target.name]
        if planned.brake and request.brake:
            reason, status = braked(planned.brake), RecordError.exit_status
            return Outcome(target=target.name, outcome="held", reason=reason, exit_status=status)
        try:
            accounting.refuse_incomplete()
            live = site.sending.live(target, dry_run=dry_run, accept_key_change=accept)
            # Two runs of one republish would each send everything: the second does nothing.
            with closing(live.transport), ledger.locks.working_on(f"{target.name}~republish"):
                republish = _Republish(site, target, live, planned, accounting, ledger, observer)
                if planned.summary:
                    return republish.months()
                if planned.stays_held(request) or not republish.is_shown():
                    return republish.held_back()
                return republish.records(dry_run=dry_run)
        except PublisherError as error:
            return broken_off(target.name, error)

    requested = [as_requested(target, request) for target in targets]
    return for_each_target(site, requested, work, dry_run=dry_run)


def _went_through(outcome: Outcome) -> bool:
    return outcome.exit_status in (0, RecordError.exit_status)


def _stopped(done: Outcome) -> Outcome:
    reason = "stopped; the same command continues from here"
    return done._replace(outcome="deferred", reason=reason, exit_status=75)


class _Republish:
    """What was planned for one target, carried out."""

    def __init__(
        self,
        site: Site,
        target: Target,
        live: LiveTarget,
        planned: RepublishPlan,
        accounting: AccountingData,
        ledger: Ledger,
        observer: Observer,
    ) -> None:
        self._site = site
        self._target = target
        self._live = live
        self._planned = planned
        self._accounting = accounting
        self._ledger = ledger
        self._observer = observer
        self._numbers = numbers(planned.window)

    def is_shown(self) -> bool:
        """Whether each row that would stay is as it was shown last.

        What goes on after an interruption was accepted before.
        """
        seen = {digest for _, digest in self._ledger.holds.rows_shown(self._live.name)}
        rows = [row for held in self._planned.held for row in held.orphaned]
        return self._planned.resume_from is not None or all(shown(row) in seen for row in rows)

    def held_back(self) -> Outcome:
        """Nothing new is sent, only what was recorded: the rows that a ticket names must exist."""
        done = self._nothing()
        if self._ledger.outbox.outstanding(self._live.name) is not None:
            done = self._round().send_outstanding()
            if not _went_through(done):
                return done
        self._keep_shown()
        return added(done, self._held_back(held_reason(self._planned.held), self._planned.held))

    def _keep_shown(self) -> None:
        """Keep what is shown of the rows that would stay."""
        live, ledger, process = self._live, self._ledger, self._site.process
        now, into = process.clock(), (ledger.entries, ledger.counts)
        with ledger.locks.working_on(live.name, patience(process.wait), live.receiver):
            live.begin(ledger.targets)
            adopt_named(
                self._target,
                self._numbers,
                jobs_of_ces(self._accounting.jobs, self._accounting.source, now),
                *into,
                now,
            )
            for held in self._planned.held:
                rows = stays(held, ledger.entries.rows(live.name, held.month))
                ledger.holds.hold_rows(live.name, rows, now, again=True)

    def records(self, *, dry_run: bool) -> Outcome:
        """Single records, in portions."""
        done = self._nothing()
        # A dry run records no progress: it must come through in one portion.
        rows = maxsize if dry_run else _PORTION_JOBS
        finished = False
        while not finished:
            if strange := self._under_other_settings():
                return added(done, strange)
            portion, finished = self._round().republish(
                self._planned.window, self._planned.window_progress, most_jobs=rows
            )
            done = added(done, portion)
            if finished and _went_through(portion):
                if self._planned.whole:
                    self._ledger.entries.go_on_as_records(self._live.name, self._numbers)
                    self._ledger.earlier.forget(self._live.name, self._numbers)
                # Last: one that is interrupted before sends nothing again.
                self._finish_window()
            if not finished and self._site.process.wait(_BREATH_S):
                return _stopped(done)
        return done

    def months(self) -> Outcome:
        """Month by month, each whole; it continues where it was broken off, or a month was held."""
        done = self._nothing()
        left = self._planned.months_left()
        if self._target.jura_until is not None:
            # What jura-ng left of months that we have not sent yet is written down before them.
            live = self._live
            with self._ledger.locks.working_on(
                live.name, patience(self._site.process.wait), live.receiver
            ):
                live.begin(self._ledger.targets)
                now = self._site.process.clock()
                adopt_named(
                    self._target,
                    left,
                    jobs_of_ces(self._accounting.jobs, self._accounting.source, now),
                    self._ledger.entries,
                    self._ledger.counts,
                    now,
                )
        for number in left:
            progress = "" if done.held else self._planned.window_progress
            month_done = self._round().republish_month(number, progress)
            done = added(done, month_done)
            if not _went_through(month_done):
                return done
            if not month_done.held:
                self._ledger.earlier.forget(self._live.name, [number])
            if number != left[-1] and self._site.process.wait(_BREATH_S):
                return _stopped(done)
        self._finish_window()
        return done

    def _finish_window(self) -> None:
        self._ledger.positions.finish_window(self._live.name, self._planned.window_progress)

    def _nothing(self) -> Outcome:
        return Outcome(target=self._live.name, outcome="nothing")

    def _held_back(self, reason: str, held: tuple[BlockedMonth, ...]) -> Outcome:
        name, status = self._live.name, RecordError.exit_status
        counts = ActionCounts()
        count_held(held, counts)
        lines = counts.lines()
        return Outcome(name, "held", reason, held=held, actions=lines, exit_status=status)

    def _round(self) -> Round:
        site, of = self._site, (self._live, self._accounting, self._ledger, self._observer)
        return Round(*of, site.process.clock, site.process.wait)

    def _under_other_settings(self) -> Outcome | None:
        """Return why it ends, if another publisher sent jobs under other settings since the plan.

        What is sent again of those jobs would leave their rows behind.
        """
        _, settings = self._ledger.earlier.settings_since(self._live.name, self._planned.posting)
        if settings <= {self._live.settings}:
            return None
        return self._held_back(settings_changed(self._live.name), ())
