"""`republish`: a window of end times again, whatever was delivered before, beside the regular rounds.

Planned first (planning.py), so that an administrator sees what it means, and carried out in portions: between two of them the
target's lock is free for a regular round, and after each one the ledger knows how far the errand has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Final

from publisher import key_guard
from publisher.abreast import work_on
from publisher.aim import Aim
from publisher.config import TargetSettings
from publisher.errors import PublisherError, RecordError
from publisher.ledger.base import Ledger
from publisher.model.months import HeldMonth
from publisher.model.summary_keys import KeyTotal
from publisher.outcome import Outcome, added, broken_off, held_reason
from publisher.pipeline import Observer, Round
from publisher.planning import Plan, Wish, as_wished, numbers
from publisher.sources.base import Source
from publisher.takeover import adopt_named
from publisher.wiring import Site

# A portion is a few seconds of work: so long a regular round may have to wait.
_PORTION_PAGES: Final = 50
_BREATH_S: Final = 0.2
_LOOKS: Final = 3  # at months in which others deliver too, before they have to wait for us


def carry_out(
    site: Site,
    targets: Sequence[TargetSettings],
    plans: Sequence[Plan],
    wish: Wish,
    observer: Observer,
    *,
    dry_run: bool,
) -> list[Outcome]:
    """Send what was planned. One target's trouble never stops another. Raises: LedgerError, SourceError."""
    planned_for = {target.name: planned for target, planned in zip(targets, plans, strict=True)}

    def work(target: TargetSettings, source: Source, ledger: Ledger) -> Outcome:
        planned = planned_for[target.name]
        if planned.brake and wish.brake:
            reason = f"{planned.brake}; --no-brake goes on all the same"
            return Outcome(target=target.name, outcome="rejected", reason=reason, exit_status=65)
        try:
            aim = site.aim(as_wished(target, wish), rehearsal=dry_run, accept_key_change=wish.accept_key_change)
            # Two runs of one errand would each send what the other did: the second one leaves it alone.
            with closing(aim.transport), ledger.working_on(f"{target.name}~republish"):
                if not planned.summary and planned.stays_held(wish):
                    return _held_back(_round(site, aim, source, ledger, observer), planned, ledger)
                wished = as_wished(target, wish)
                return _carry_out(site, wished, aim, planned, source, ledger, observer, dry_run=dry_run)
        except PublisherError as error:
            return broken_off(target.name, error)

    return work_on(site, targets, work, rehearsal=dry_run)


def _held_back(round_: Round, planned: Plan, ledger: Ledger) -> Outcome:
    """Nothing of the errand is sent. What was written down before is: the rows that a ticket names must be there."""
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


def _carry_out(
    site: Site,
    target: TargetSettings,
    aim: Aim,
    planned: Plan,
    source: Source,
    ledger: Ledger,
    observer: Observer,
    *,
    dry_run: bool,
) -> Outcome:
    done = Outcome(target=aim.name, outcome="nothing")
    if planned.summary:
        return _carry_out_months(site, target, aim, planned, source, ledger, observer)
    # A rehearsal notes no progress: it must come through in one portion.
    pages = 1_000_000_000 if dry_run else _PORTION_PAGES
    finished = False
    while not finished:
        if strange := _under_other_settings(aim, planned, ledger):
            return added(done, strange)
        portion, finished = _round(site, aim, source, ledger, observer).republish(
            planned.window, planned.errand, most_pages=pages
        )
        done = added(done, portion)
        if finished and portion.exit_status in (0, RecordError.exit_status):
            _note_accepted(site, aim, planned, ledger)
            if planned.whole:
                _note_singles(site, aim, planned, source, ledger, observer)
            if strange := _under_other_settings(aim, planned, ledger):
                return added(done, strange)
        if not finished and site.surroundings.wait(_BREATH_S):
            return _stopped(done)
    return done


def _carry_out_months(
    site: Site,
    target: TargetSettings,
    aim: Aim,
    planned: Plan,
    source: Source,
    ledger: Ledger,
    observer: Observer,
) -> Outcome:
    """Month by month, each whole. Broken off, it goes on with the month where it stopped, or where one was held."""
    done = Outcome(target=aim.name, outcome="nothing")
    left = planned.months_left()
    if target.jura_until is not None:
        _adopt(site, target, aim, left, source, ledger)
    for number in left:
        errand = "" if done.held else planned.errand
        month_done = _round(site, aim, source, ledger, observer).republish_month(number, errand)
        done = added(done, month_done)
        if month_done.exit_status not in (0, RecordError.exit_status):
            return done
        if number != left[-1] and site.surroundings.wait(_BREATH_S):
            return _stopped(done)
    ledger.end_errand(aim.name, planned.errand)
    return done


def _adopt(site: Site, target: TargetSettings, aim: Aim, months: Sequence[int], source: Source, ledger: Ledger) -> None:
    """What jura-ng left of months that we have not sent yet is written down, so that it is not forgotten after them."""
    with ledger.working_on(aim.name):
        _begin(site, aim, ledger)
        adopt_named(target, months, source, ledger, site.surroundings.clock())


def _begin(site: Site, aim: Aim, ledger: Ledger) -> None:
    now = site.surroundings.clock()
    ledger.begin_round(
        aim.name, start_rule=aim.start_rule, start=aim.start, selection_digest=aim.selection_digest, now=now
    )


def _stopped(done: Outcome) -> Outcome:
    return replace(done, outcome="deferred", reason="stopped; the same command goes on from here", exit_status=75)


def _under_other_settings(aim: Aim, planned: Plan, ledger: Ledger) -> Outcome | None:
    """Rows that another publisher made of these months meanwhile, under settings that are not ours; None where there are none.

    What we send again of their jobs leaves them behind.
    """
    months = [
        HeldMonth(month=number, stale=rows, lost_jobs=0)
        for number in numbers(planned.window)
        if (rows := _not_ours(aim, planned, ledger, number))
    ]
    if not months:
        return None
    return Outcome(
        target=aim.name,
        outcome="rejected",
        reason=f"other settings have come into use for {aim.name} since this was planned: start it again",
        held=tuple(months),
        exit_status=RecordError.exit_status,
    )


def _not_ours(aim: Aim, planned: Plan, ledger: Ledger, number: int) -> tuple[KeyTotal, ...]:
    """Rows of a month that are not of our settings, and were not there when this was planned."""
    there = {total.key.digest for total in planned.made.rows.get(number, ())} if planned.made else set()
    return tuple(
        total
        for total, policy in ledger.summary_keys(aim.name, number)
        if policy != aim.policy_digest and total.key.digest not in there | planned.noted
    )


def _note_singles(site: Site, aim: Aim, planned: Plan, source: Source, ledger: Ledger, observer: Observer) -> None:
    """The months are at the receiver as single records, whole, as they are said now.

    Reading them takes long, and a regular round may deliver more of them meanwhile: then they are read once more, in the end
    without letting go of the target.
    """
    if not planned.held and _stands(aim.name, planned, ledger):
        return

    def locked() -> AbstractContextManager[None]:
        return ledger.working_on(aim.name, lambda: not site.surroundings.wait(_BREATH_S))

    for _ in range(_LOOKS):
        with locked():
            noted = _noted(site, aim, planned, ledger)
        made = _made_of(site, aim, planned, source, ledger, observer)
        with locked():
            if noted == _noted(site, aim, planned, ledger):
                _set_singles(aim, planned, made, ledger)
                return
    with locked():
        _noted(site, aim, planned, ledger)
        _set_singles(aim, planned, _made_of(site, aim, planned, source, ledger, observer), ledger)


def _made_of(site: Site, aim: Aim, planned: Plan, source: Source, ledger: Ledger, observer: Observer) -> key_guard.Made:
    wanted = key_guard.Wanted(target=aim.name, format=aim.format.name, selection=aim.selection, policy=aim.policy)
    return key_guard.made(
        wanted,
        planned.window,
        source,
        ledger,
        site.surroundings.clock(),
        delivered=True,
        page_read=lambda page: observer.page_read(aim.name, page),
    )


def _noted(site: Site, aim: Aim, planned: Plan, ledger: Ledger) -> object:
    """What the ledger knows of the months by now, also from others."""
    _begin(site, aim, ledger)
    return ledger.counts(aim.name).delivered, [ledger.summary_keys(aim.name, at) for at in numbers(planned.window)]


def _set_singles(aim: Aim, planned: Plan, made: key_guard.Made, ledger: Ledger) -> None:
    months = numbers(planned.window)
    rows = {at: (*made.rows.get(at, ()), *_not_ours(aim, planned, ledger, at)) for at in months}
    hosts = {at: jobs for at, jobs in made.hosts.items() if at[0] in rows}
    ledger.set_singles(aim.name, rows, hosts, aim.policy_digest)


def _note_accepted(site: Site, aim: Aim, planned: Plan, ledger: Ledger) -> None:
    """An administrator said that these rows may stay behind."""
    for held in planned.held:
        ledger.accept_change(aim.name, held.month, held.stale, held.lost_jobs, site.surroundings.clock())


def _stands(target: str, planned: Plan, ledger: Ledger) -> bool:
    """Whether the ledger knows of the months what is true of them, without having read them again."""
    if planned.made is None:
        return True
    months = numbers(planned.window)
    rows = {number: {total.key.digest for total, _ in ledger.summary_keys(target, number)} for number in months}
    hosts = {at: jobs for at, jobs in ledger.counts(target).delivered.items() if at[0] in rows}
    made = {number: {total.key.digest for total in planned.made.rows.get(number, ())} for number in months}
    return rows == made and hosts == {at: jobs for at, jobs in planned.made.hosts.items() if at[0] in rows}


def _round(site: Site, aim: Aim, source: Source, ledger: Ledger, observer: Observer) -> Round:
    return Round(aim, source, ledger, observer, site.surroundings.clock, site.surroundings.wait)
