"""`republish`: a window of end times again, whatever was delivered before, beside the regular rounds.

Planned first (`plan`), so that an administrator sees what it means, and carried out in portions (`carry_out`): between two of
them the target's lock is free for a regular round, and after each one the ledger knows how far the errand has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from publisher import key_guard
from publisher.abreast import work_on
from publisher.aim import Aim
from publisher.config import TargetSettings
from publisher.errors import PublisherError, RecordError, Unfit, UsageError
from publisher.formats import is_summary_format, job_format
from publisher.ledger.base import Ledger
from publisher.model.months import HeldMonth, month_window, row_of
from publisher.model.row_keys import month_number_of
from publisher.model.selection import Window
from publisher.model.summary_keys import KeyTotal
from publisher.model.when import months, whole_months
from publisher.outcome import Outcome, added, broken_off, held_reason
from publisher.pipeline import Observer, Round
from publisher.sources.base import Page, Source
from publisher.wiring import Site

# A portion is a few seconds of work: so long a regular round may have to wait.
_PORTION_PAGES: Final = 50
_BREATH_S: Final = 0.2
# A window this many times what was ever delivered, and not small, is more likely a slip than a wish.
_DWARFS: Final = 10
_SMALL: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for. `format` None is the target's own."""

    window: Window
    exact: bool = False
    format: str | None = None
    accept_key_change: bool = False
    brake: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a republish to one target would send. `rows` and `bytes` are upper bounds: what is wanted of them is fewer."""

    target: str
    type: str
    format: str
    window: Window
    rounded: bool
    months: tuple[str, ...]
    rows: int
    messages: int
    bytes: int
    goes_on: bool  # an errand that was broken off
    held: tuple[HeldMonth, ...]  # months that would leave rows behind at the receiver
    whole: bool  # months are sent whole as single records: the ledger's keys and counts of them are anew then
    made: key_guard.Made | None  # what they make at the receiver, where something was sent of them before
    policy_digest: str  # of what decides which jobs are sent and how they look
    brake: str  # why it should not be done without a second thought; '' when nothing speaks against it

    @property
    def errand(self) -> str:
        return f"{self.window} {self.format} {self.policy_digest}"


def plan(site: Site, targets: Sequence[TargetSettings], wish: Wish) -> list[Plan]:
    """What would be sent, target by target. Raises: UsageError, SourceError, LedgerError, CredentialError."""
    with closing(site.ledger_to_read()) as ledger, closing(site.source()) as source:
        return [_plan(site, _as_wished(target, wish), wish, source, ledger) for target in targets]


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
            aim = site.aim(_as_wished(target, wish), rehearsal=dry_run, accept_key_change=wish.accept_key_change)
            # Two runs of one errand would each send what the other did: the second one leaves it alone.
            with closing(aim.transport), ledger.working_on(f"{target.name}~republish"):
                if planned.held and not wish.accept_key_change:
                    return _held_back(_round(site, aim, source, ledger, observer), planned, ledger)
                return _carry_out(site, aim, planned, source, ledger, observer, dry_run=dry_run)
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


def _as_wished(target: TargetSettings, wish: Wish) -> TargetSettings:
    return target if wish.format is None else replace(target, format=wish.format)


def _plan(site: Site, target: TargetSettings, wish: Wish, source: Source, ledger: Ledger) -> Plan:
    window = wish.window
    if is_summary_format(target.format) and wish.exact:
        raise UsageError(
            f"target {target.name}: a part of a month would replace the whole month at the receiver; "
            f"--exact is not for {target.format}"
        )
    if target.type != "sgas" and not wish.exact:
        window = whole_months(window)
    rows = source.count(window)
    record_bytes = _record_bytes(site, target, window, source)
    per_message = target.batch_records or 500
    state = ledger.target(target.name)
    delivered = state.delivered if state else 0
    planned = Plan(
        target=target.name,
        type=target.type,
        format=target.format,
        window=window,
        rounded=window != wish.window,
        months=tuple(f"{month.year}-{month.month:02}" for month in months(window)),
        rows=rows,
        messages=0 if is_summary_format(target.format) else -(-rows // per_message),
        bytes=rows * record_bytes,
        goes_on=False,
        held=(),
        whole=target.type != "sgas" and not is_summary_format(target.format) and not wish.exact,
        made=None,
        policy_digest=f"{site.selection_digest(target)}-{site.policy_digest(target)}",
        brake=_brake(site, target, window, source, ledger, rows, delivered),
    )
    goes_on = ledger.errand(target.name, planned.errand) is not None
    return _guarded(site, target, replace(planned, goes_on=goes_on), source, ledger)


def _guarded(site: Site, target: TargetSettings, planned: Plan, source: Source, ledger: Ledger) -> Plan:
    """The plan with the months whose single records would leave rows of the receiver behind, or make them smaller.

    Months of summaries are judged when they are summed up; SGAS sums nothing up.
    """
    if not planned.whole:
        return planned
    months = _numbers(planned.window)
    stale: dict[int, tuple[KeyTotal, ...]] = dict.fromkeys(months, ()) | _totals(target, ledger, months)
    would_be = None
    if any(ledger.summary_keys(target.name, number) for number in months):
        # Not only another policy gives jobs other rows: one that changed may have been the last of its row.
        would_be = key_guard.made(_wanted(target), planned.window, source, ledger, site.surroundings.clock())
        for number in months:
            stale[number] = (*stale[number], *key_guard.stale(ledger, target.name, number, would_be))
    lost = _lost(target, source, ledger, months)
    held = [
        HeldMonth(month=number, stale=stale[number], lost_jobs=lost.get(number, 0))
        for number in months
        if stale[number] or number in lost
    ]
    return replace(planned, held=tuple(held), made=would_be)


def _wanted(target: TargetSettings) -> key_guard.Wanted:
    return key_guard.Wanted(
        target=target.name, format=target.format, selection=target.selection(Window()), policy=target.policy
    )


def _totals(target: TargetSettings, ledger: Ledger, months: Sequence[int]) -> dict[int, tuple[KeyTotal, ...]]:
    """Rows of months that the receiver has as totals, in another format: single records would count beside them."""
    return {
        state.month: tuple(map(row_of, ledger.accepted(target.name, state.month)))
        for state in ledger.months(target.name)
        if state.month in months and state.accepted_digest
    }


def _lost(target: TargetSettings, source: Source, ledger: Ledger, months: Sequence[int]) -> dict[int, int]:
    """Delivered jobs that the accounting data has no more: a receiver that purged its records would lose them."""
    delivered: Counter[int] = Counter()
    for (month, _), jobs in ledger.counts(target.name).delivered.items():
        delivered[month] += jobs
    missing = {number: delivered[number] - source.count(month_window(number)) for number in months if delivered[number]}
    return {number: jobs for number, jobs in missing.items() if jobs > 0}


def _numbers(window: Window) -> list[int]:
    return [month_number_of(month.year, month.month) for month in months(window)]


def _brake(
    site: Site, target: TargetSettings, window: Window, source: Source, ledger: Ledger, rows: int, delivered: int
) -> str:
    """Why the window dwarfs or contradicts what the ledger knows."""
    if rows > _SMALL and delivered and rows > _DWARFS * delivered:
        return f"the window has {rows:,} jobs, {rows // delivered} times what was ever delivered to {target.name}"
    state = ledger.target(target.name)
    if state is None or is_summary_format(target.format) or state.last_published_end is None:
        return ""
    first = _first_page(site, target, window, source)
    keys = [job.key for job in first.jobs if job.ended_at in Window(start=state.start, end=state.last_published_end)]
    if len(keys) > 100 and not ledger.known(target.name, keys):
        return (
            f"none of the first {len(keys)} jobs of the window was ever delivered to {target.name}, though it was "
            "served at that time: is this the right accounting database?"
        )
    return ""


def _record_bytes(site: Site, target: TargetSettings, window: Window, source: Source) -> int:
    """The mean size of a record, by rendering the window's first page; 0 for summaries, whose size is not by job."""
    if is_summary_format(target.format):
        return 0
    now = site.surroundings.clock()
    form = job_format(target.format)
    sizes = []
    for job in _first_page(site, target, window, source).jobs[:100]:
        try:
            sizes.append(len(form.render(target.policy.describe(job), now)))
        except Unfit:
            continue
    return sum(sizes) // len(sizes) if sizes else 0


def _first_page(site: Site, target: TargetSettings, window: Window, source: Source) -> Page:
    needs = job_format(target.format).needs
    return next(source.window(window, needs, site.surroundings.clock()), Page(jobs=()))


def _carry_out(
    site: Site, aim: Aim, planned: Plan, source: Source, ledger: Ledger, observer: Observer, *, dry_run: bool
) -> Outcome:
    done = Outcome(target=aim.name, outcome="nothing")
    if is_summary_format(aim.format.name):
        for month in months(planned.window):
            number = month_number_of(month.year, month.month)
            month_done = _round(site, aim, source, ledger, observer).republish_month(number)
            done = added(done, month_done)
            if month_done.exit_status not in (0, RecordError.exit_status):
                return done
        return done
    # A rehearsal notes no progress: it must come through in one portion.
    pages = 1_000_000_000 if dry_run else _PORTION_PAGES
    finished = False
    while not finished:
        portion, finished = _round(site, aim, source, ledger, observer).republish(
            planned.window, planned.errand, most_pages=pages
        )
        done = added(done, portion)
        if finished and planned.whole and portion.exit_status in (0, RecordError.exit_status):
            _note_singles(site, aim, planned, source, ledger)
        if not finished and site.surroundings.wait(_BREATH_S):
            return replace(
                done, outcome="deferred", reason="stopped; the same command goes on from here", exit_status=75
            )
    return done


def _note_singles(site: Site, aim: Aim, planned: Plan, source: Source, ledger: Ledger) -> None:
    """The months are at the receiver as single records, whole, as they are said now."""
    now = site.surroundings.clock()
    for held in planned.held:
        ledger.accept_change(aim.name, held.month, held.stale, held.lost_jobs, now)
    if not planned.held and _stands(aim.name, planned, ledger):
        return
    wanted = key_guard.Wanted(target=aim.name, format=aim.format.name, selection=aim.selection, policy=aim.policy)
    made = key_guard.made(wanted, planned.window, source, ledger, now, delivered=True)
    months = _numbers(planned.window)
    rows = {number: made.rows.get(number, ()) for number in months}
    hosts = {at: jobs for at, jobs in made.hosts.items() if at[0] in rows}
    ledger.set_singles(aim.name, rows, hosts, aim.policy_digest)


def _stands(target: str, planned: Plan, ledger: Ledger) -> bool:
    """Whether the ledger knows of the months what is true of them, without having read them again."""
    if planned.made is None:
        return True
    months = _numbers(planned.window)
    rows = {number: {total.key.digest for total, _ in ledger.summary_keys(target, number)} for number in months}
    hosts = {at: jobs for at, jobs in ledger.counts(target).delivered.items() if at[0] in rows}
    made = {number: {total.key.digest for total in planned.made.rows.get(number, ())} for number in months}
    return rows == made and hosts == {at: jobs for at, jobs in planned.made.hosts.items() if at[0] in rows}


def _round(site: Site, aim: Aim, source: Source, ledger: Ledger, observer: Observer) -> Round:
    return Round(aim, source, ledger, observer, site.surroundings.clock, site.surroundings.wait)
