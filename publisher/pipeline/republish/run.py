"""`republish`: send a window of end times again, delivered or not, between the regular rounds.

It is planned first (plan.py), so that an administrator sees the effect, and carried out in
portions: between two of them the target's lock is free for a regular round, and after each the
ledger knows how far it has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing
from sys import maxsize
from typing import Final

from publisher.ledger.contract import Ledger
from publisher.model.errors import PublisherError, RecordError
from publisher.model.totals import BlockedMonth, KeyTotal
from publisher.pipeline.guards import keys
from publisher.pipeline.publish import for_each_target
from publisher.pipeline.republish.plan import RepublishPlan, RepublishRequest, as_requested, numbers
from publisher.pipeline.round.outcome import Outcome, added, broken_off, held_reason
from publisher.pipeline.round.round import Observer, Round, patience
from publisher.pipeline.site import LiveTarget, Site
from publisher.pipeline.takeover.adopt import adopt_named
from publisher.policy.target import Target
from publisher.sources.base import Source

# A portion is a few seconds of work: so long a regular round may have to wait.
_PORTION_ROWS: Final = 25_000
_BREATH_S: Final = 0.2
_MAX_CHECKS: Final = 3  # at months in which others deliver too, before they have to wait for us


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

    def work(target: Target, source: Source, ledger: Ledger) -> Outcome:
        planned = planned_for[target.name]
        if planned.brake and request.brake:
            reason = f"{planned.brake}; --no-brake sends anyway"
            return Outcome(target=target.name, outcome="held", reason=reason, exit_status=65)
        try:
            live = site.live(target, dry_run=dry_run, accept_key_change=accept)
            # Two runs of one republish would each send everything: the second does nothing.
            with closing(live.transport), ledger.working_on(f"{target.name}~republish"):
                republish = _Republish(site, target, live, planned, source, ledger, observer)
                if planned.summary:
                    return republish.months()
                if planned.stays_held(request):
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
        source: Source,
        ledger: Ledger,
        observer: Observer,
    ) -> None:
        self._site = site
        self._target = target
        self._live = live
        self._planned = planned
        self._source = source
        self._ledger = ledger
        self._observer = observer
        self._numbers = numbers(planned.window)

    def held_back(self) -> Outcome:
        """Nothing new is sent, only what was recorded: the rows that a ticket names must exist."""
        done = self._nothing()
        if self._ledger.outstanding(self._live.name) is not None:
            done = self._round().send_outstanding()
            if not _went_through(done):
                return done
        return added(done, self._held_back(held_reason(self._planned.held), self._planned.held))

    def records(self, *, dry_run: bool) -> Outcome:
        """Single records, in portions."""
        done = self._nothing()
        # A dry run records no progress: it must come through in one portion.
        rows = maxsize if dry_run else _PORTION_ROWS
        finished = False
        while not finished:
            if strange := self._under_other_settings():
                return added(done, strange)
            portion, finished = self._round().republish(
                self._planned.window, self._planned.window_progress, most_rows=rows
            )
            done = added(done, portion)
            if finished and _went_through(portion):
                self._note_accepted()
                if self._planned.whole:
                    self._note_singles()
                # Last: one that is interrupted before sends nothing again.
                self._finish_window()
                if strange := self._under_other_settings():
                    return added(done, strange)
            if not finished and self._site.wait(_BREATH_S):
                return _stopped(done)
        return done

    def months(self) -> Outcome:
        """Month by month, each whole; it continues where it was broken off, or a month was held."""
        done = self._nothing()
        left = self._planned.months_left()
        if self._target.jura_until is not None:
            # What jura-ng left of months that we have not sent yet is written down before them.
            live = self._live
            with self._ledger.working_on(live.name, patience(self._site.wait), live.receiver):
                live.begin(self._ledger)
                adopt_named(self._target, left, self._source, self._ledger, self._site.clock())
        for number in left:
            progress = "" if done.held else self._planned.window_progress
            month_done = self._round().republish_month(number, progress)
            done = added(done, month_done)
            if not _went_through(month_done):
                return done
            if number != left[-1] and self._site.wait(_BREATH_S):
                return _stopped(done)
        self._finish_window()
        return done

    def _finish_window(self) -> None:
        self._ledger.finish_window(self._live.name, self._planned.window_progress)

    def _nothing(self) -> Outcome:
        return Outcome(target=self._live.name, outcome="nothing")

    def _held_back(self, reason: str, held: tuple[BlockedMonth, ...]) -> Outcome:
        name, status = self._live.name, RecordError.exit_status
        return Outcome(name, "held", reason, held=held, exit_status=status)

    def _round(self) -> Round:
        site = self._site
        return Round(self._live, self._source, self._ledger, self._observer, site.clock, site.wait)

    def _under_other_settings(self) -> Outcome | None:
        """Rows that another publisher made of these months meanwhile, under other settings.

        What we send again of their jobs leaves them behind. None where there are none.
        """
        rows = {number: self._not_ours(number) for number in self._numbers}
        theirs = [(at, there) for at, there in rows.items() if there]
        months = [BlockedMonth(month=at, orphaned=there, lost_jobs=0) for at, there in theirs]
        if not months:
            return None
        changed = f"the settings changed for {self._live.name} since this was planned"
        return self._held_back(f"{changed}: run the command again", tuple(months))

    def _not_ours(self, number: int) -> tuple[KeyTotal, ...]:
        """Rows of a month that are not of our settings, and not from when this was planned."""
        made = self._planned.made
        noted = {total.key.digest for total in (made.rows.get(number, ()) if made else ())}
        there = self._planned.noted | noted
        rows = self._ledger.summary_keys(self._live.name, number)
        others = [total for total, policy in rows if policy != self._live.policy_digest]
        return tuple(total for total in others if total.key.digest not in there)

    def _note_accepted(self) -> None:
        """An administrator said that these rows may stay behind."""
        for held in self._planned.held:
            change = held.month, held.orphaned, held.lost_jobs
            self._ledger.accept_change(self._live.name, *change, self._site.clock())

    def _note_singles(self) -> None:
        """The months are at the receiver as single records, whole, as they are said now.

        Reading them takes long, and a regular round may deliver more of them meanwhile: then they
        are read once more, in the end without letting go of the target.
        """
        if not self._planned.held and self._ledger_is_right():
            return
        for _ in range(_MAX_CHECKS):
            with self._locked():
                noted = self._noted()
            made = self._made()
            with self._locked():
                if noted == self._noted():
                    self._set_singles(made)
                    return
        with self._locked():
            self._noted()
            self._set_singles(self._made())

    def _locked(self) -> AbstractContextManager[None]:
        live = self._live

        def patient() -> bool:
            return not self._site.wait(_BREATH_S)

        return self._ledger.working_on(live.name, patient, live.receiver)

    def _made(self) -> keys.WindowTotals:
        live = self._live
        return keys.made(
            keys.JobScope(live.name, live.format.name, live.selection, live.policy, live.beside),
            self._planned.window,
            self._source,
            self._ledger,
            self._site.clock(),
            delivered=True,
            page_read=lambda page: self._observer.page_read(live.name, page),
        )

    def _noted(self) -> object:
        """What the ledger knows of the months by now, also from others."""
        self._live.begin(self._ledger)
        name = self._live.name
        keys_of = [self._ledger.summary_keys(name, number) for number in self._numbers]
        return self._ledger.counts(name).delivered, keys_of

    def _set_singles(self, made: keys.WindowTotals) -> None:
        rows = {at: (*made.rows.get(at, ()), *self._not_ours(at)) for at in self._numbers}
        hosts = {at: jobs for at, jobs in made.hosts.items() if at[0] in rows}
        self._ledger.set_singles(self._live.name, rows, hosts, self._live.policy_digest)

    def _ledger_is_right(self) -> bool:
        """Whether the ledger knows the truth about the months without having read them again."""
        name, made = self._live.name, self._planned.made
        if made is None:
            return True
        for number in self._numbers:
            rows = [total for total, _ in self._ledger.summary_keys(name, number)]
            if _jobs(rows) != _jobs(made.rows.get(number, ())):
                return False
        delivered, hosts = self._ledger.counts(name).delivered, made.hosts
        places = [at for at in delivered.keys() | hosts.keys() if at[0] in self._numbers]
        return all(delivered.get(at) == hosts.get(at) for at in places)


def _jobs(rows: Iterable[KeyTotal]) -> dict[bytes, int]:
    return {total.key.digest: total.jobs for total in rows}
