"""`republish`: send a window of end times again, even if delivered before, between the regular
rounds.

It is planned first (plan.py), so that an administrator sees the effect, and carried out in
portions: between two of them the target's lock is free for a regular round, and after each the
ledger knows how far it has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Final

from publisher.ledger.contract import Ledger
from publisher.model.errors import PublisherError, RecordError
from publisher.model.target import Target
from publisher.model.totals import BlockedMonth, KeyTotal
from publisher.pipeline.guards import keys
from publisher.pipeline.publish import for_each_target
from publisher.pipeline.republish.plan import RepublishPlan, RepublishRequest, as_requested, numbers
from publisher.pipeline.round.outcome import Outcome, added, broken_off, held_reason
from publisher.pipeline.round.round import Observer, Round
from publisher.pipeline.site import LiveTarget, Site
from publisher.pipeline.takeover.adopt import adopt_named
from publisher.sources.base import Source

# A portion is a few seconds of work: so long a regular round may have to wait.
_PORTION_PAGES: Final = 50
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
    """Send what was planned. One target's trouble never stops another. Raises: LedgerError, SourceError."""
    planned_for = {target.name: planned for target, planned in zip(targets, plans, strict=True)}

    def work(target: Target, source: Source, ledger: Ledger) -> Outcome:
        planned = planned_for[target.name]
        if planned.brake and request.brake:
            reason = f"{planned.brake}; --no-brake sends anyway"
            return Outcome(target=target.name, outcome="rejected", reason=reason, exit_status=65)
        try:
            live = site.live(
                as_requested(target, request), dry_run=dry_run, accept_key_change=request.accept_key_change
            )
            # Two runs of the same republish would each send everything: the second one does nothing.
            with closing(live.transport), ledger.working_on(f"{target.name}~republish"):
                if not planned.summary and planned.stays_held(request):
                    return _held_back(_round(site, live, source, ledger, observer), planned, ledger)
                requested = as_requested(target, request)
                return _carry_out(site, requested, live, planned, source, ledger, observer, dry_run=dry_run)
        except PublisherError as error:
            return broken_off(target.name, error)

    return for_each_target(site, targets, work, dry_run=dry_run)


def _held_back(round_: Round, planned: RepublishPlan, ledger: Ledger) -> Outcome:
    """Nothing new is sent. What was recorded before is: the rows that a ticket names must be there."""
    done = Outcome(target=planned.target, outcome="nothing")
    if ledger.outstanding(planned.target) is not None:
        done = round_.send_outstanding()
        if done.exit_status not in (0, RecordError.exit_status):
            return done
    held = Outcome(
        target=planned.target,
        outcome="rejected",
        reason=held_reason(planned.held),
        held=planned.held,
        exit_status=RecordError.exit_status,
    )
    return added(done, held)


def _note_rows(
    site: Site, live: LiveTarget, planned: RepublishPlan, source: Source, ledger: Ledger, observer: Observer
) -> None:
    _note_accepted(site, live, planned, ledger)
    if planned.whole:
        _note_singles(site, live, planned, source, ledger, observer)


def _carry_out(
    site: Site,
    target: Target,
    live: LiveTarget,
    planned: RepublishPlan,
    source: Source,
    ledger: Ledger,
    observer: Observer,
    *,
    dry_run: bool,
) -> Outcome:
    done = Outcome(target=live.name, outcome="nothing")
    if planned.summary:
        return _carry_out_months(site, target, live, planned, source, ledger, observer)
    # A rehearsal notes no progress: it must come through in one portion.
    pages = 1_000_000_000 if dry_run else _PORTION_PAGES
    finished = False
    while not finished:
        if strange := _under_other_settings(live, planned, ledger):
            return added(done, strange)
        portion, finished = _round(site, live, source, ledger, observer).republish(
            planned.window, planned.window_progress, most_pages=pages
        )
        done = added(done, portion)
        if finished and portion.exit_status in (0, RecordError.exit_status):
            _note_rows(site, live, planned, source, ledger, observer)
            if strange := _under_other_settings(live, planned, ledger):
                return added(done, strange)
        if not finished and site.wait(_BREATH_S):
            return _stopped(done)
    return done


def _carry_out_months(
    site: Site,
    target: Target,
    live: LiveTarget,
    planned: RepublishPlan,
    source: Source,
    ledger: Ledger,
    observer: Observer,
) -> Outcome:
    """Month by month, each whole. Broken off, it continues with the month where it stopped, or where one was held."""
    done = Outcome(target=live.name, outcome="nothing")
    left = planned.months_left()
    if target.jura_until is not None:
        _adopt(site, target, live, left, source, ledger)
    for number in left:
        window_progress = "" if done.held else planned.window_progress
        month_done = _round(site, live, source, ledger, observer).republish_month(number, window_progress)
        done = added(done, month_done)
        if month_done.exit_status not in (0, RecordError.exit_status):
            return done
        if number != left[-1] and site.wait(_BREATH_S):
            return _stopped(done)
    ledger.finish_window(live.name, planned.window_progress)
    return done


def _adopt(site: Site, target: Target, live: LiveTarget, months: Sequence[int], source: Source, ledger: Ledger) -> None:
    """What jura-ng left of months that we have not sent yet is written down, so that it is not forgotten after them."""
    with ledger.working_on(live.name):
        _begin(site, live, ledger)
        adopt_named(target, months, source, ledger, site.clock())


def _begin(site: Site, live: LiveTarget, ledger: Ledger) -> None:
    now = site.clock()
    ledger.begin_round(
        live.name, start_rule=live.start_rule, start=live.start, selection_digest=live.selection_digest, now=now
    )


def _stopped(done: Outcome) -> Outcome:
    return replace(done, outcome="deferred", reason="stopped; the same command continues from here", exit_status=75)


def _under_other_settings(live: LiveTarget, planned: RepublishPlan, ledger: Ledger) -> Outcome | None:
    """Rows that another publisher made of these months meanwhile, under settings that are not ours; None where there are none.

    What we send again of their jobs leaves them behind.
    """
    months = [
        BlockedMonth(month=number, orphaned=rows, lost_jobs=0)
        for number in numbers(planned.window)
        if (rows := _not_ours(live, planned, ledger, number))
    ]
    if not months:
        return None
    return Outcome(
        target=live.name,
        outcome="rejected",
        reason=f"other settings have come into use for {live.name} since this was planned: start it again",
        held=tuple(months),
        exit_status=RecordError.exit_status,
    )


def _not_ours(live: LiveTarget, planned: RepublishPlan, ledger: Ledger, number: int) -> tuple[KeyTotal, ...]:
    """Rows of a month that are not of our settings, and were not there when this was planned."""
    there = {total.key.digest for total in planned.made.rows.get(number, ())} if planned.made else set()
    return tuple(
        total
        for total, policy in ledger.summary_keys(live.name, number)
        if policy != live.policy_digest and total.key.digest not in there | planned.noted
    )


def _note_singles(
    site: Site, live: LiveTarget, planned: RepublishPlan, source: Source, ledger: Ledger, observer: Observer
) -> None:
    """The months are at the receiver as single records, whole, as they are said now.

    Reading them takes long, and a regular round may deliver more of them meanwhile: then they are read once more, in the end
    without letting go of the target.
    """
    if not planned.held and _stands(live.name, planned, ledger):
        return

    def locked() -> AbstractContextManager[None]:
        return ledger.working_on(live.name, lambda: not site.wait(_BREATH_S))

    for _ in range(_MAX_CHECKS):
        with locked():
            noted = _noted(site, live, planned, ledger)
        made = _made_of(site, live, planned, source, ledger, observer)
        with locked():
            if noted == _noted(site, live, planned, ledger):
                _set_singles(live, planned, made, ledger)
                return
    with locked():
        _noted(site, live, planned, ledger)
        _set_singles(live, planned, _made_of(site, live, planned, source, ledger, observer), ledger)


def _made_of(
    site: Site, live: LiveTarget, planned: RepublishPlan, source: Source, ledger: Ledger, observer: Observer
) -> keys.WindowTotals:
    wanted = keys.JobScope(target=live.name, format=live.format.name, selection=live.selection, policy=live.policy)
    return keys.made(
        wanted,
        planned.window,
        source,
        ledger,
        site.clock(),
        delivered=True,
        page_read=lambda page: observer.page_read(live.name, page),
    )


def _noted(site: Site, live: LiveTarget, planned: RepublishPlan, ledger: Ledger) -> object:
    """What the ledger knows of the months by now, also from others."""
    _begin(site, live, ledger)
    return ledger.counts(live.name).delivered, [ledger.summary_keys(live.name, at) for at in numbers(planned.window)]


def _set_singles(live: LiveTarget, planned: RepublishPlan, made: keys.WindowTotals, ledger: Ledger) -> None:
    months = numbers(planned.window)
    rows = {at: (*made.rows.get(at, ()), *_not_ours(live, planned, ledger, at)) for at in months}
    hosts = {at: jobs for at, jobs in made.hosts.items() if at[0] in rows}
    ledger.set_singles(live.name, rows, hosts, live.policy_digest)


def _note_accepted(site: Site, live: LiveTarget, planned: RepublishPlan, ledger: Ledger) -> None:
    """An administrator said that these rows may stay behind."""
    for held in planned.held:
        ledger.accept_change(live.name, held.month, held.orphaned, held.lost_jobs, site.clock())


def _stands(target: str, planned: RepublishPlan, ledger: Ledger) -> bool:
    """Whether the ledger knows of the months what is true of them, without having read them again."""
    if planned.made is None:
        return True
    months = numbers(planned.window)
    for number in months:
        rows = {total.key.digest for total, _ in ledger.summary_keys(target, number)}
        if rows != {total.key.digest for total in planned.made.rows.get(number, ())}:
            return False
    delivered, made = ledger.counts(target).delivered, planned.made.hosts
    return all(delivered.get(at) == made.get(at) for at in delivered.keys() | made.keys() if at[0] in months)


def _round(site: Site, live: LiveTarget, source: Source, ledger: Ledger, observer: Observer) -> Round:
    return Round(live, source, ledger, observer, site.clock, site.wait)
