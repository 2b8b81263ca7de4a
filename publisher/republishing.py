"""`republish`: a window of end times again, whatever was delivered before, beside the regular rounds.

Planned first (`plan`), so that an administrator sees what it means, and carried out in portions (`carry_out`): between two of
them the target's lock is free for a regular round, and after each one the ledger knows how far the errand has come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from publisher.config import TargetSettings
from publisher.errors import PublisherError, RecordError, Unfit, UsageError
from publisher.formats import is_summary_format, job_format
from publisher.judge import Changed, Fit, Judge
from publisher.ledger.base import Ledger
from publisher.model.months import HeldMonth
from publisher.model.row_keys import month_number_of
from publisher.model.selection import Window
from publisher.model.summary_keys import KeyTotal, SummaryKey, SummaryKeys
from publisher.model.when import months, whole_months
from publisher.outcome import Outcome, added, broken_off, held_reason
from publisher.pipeline import Aim, Observer, Round
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
    keys: Mapping[int, Sequence[KeyTotal]]  # of the months as they would be, where that had to be worked out
    brake: str  # why it should not be done without a second thought; '' when nothing speaks against it

    @property
    def errand(self) -> str:
        return f"{self.window} {self.format}"


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
    outcomes = []
    with closing(site.ledger(rehearsal=dry_run)) as ledger, closing(site.source()) as source:
        for target, planned in zip(targets, plans, strict=True):
            if planned.brake and wish.brake:
                reason = f"{planned.brake}; --no-brake goes on all the same"
                outcomes.append(Outcome(target=target.name, outcome="rejected", reason=reason, exit_status=65))
                continue
            if planned.held and not wish.accept_key_change:
                outcomes.append(
                    Outcome(
                        target=target.name,
                        outcome="rejected",
                        reason=held_reason(planned.held),
                        held=planned.held,
                        exit_status=RecordError.exit_status,
                    )
                )
                continue
            try:
                aim = site.aim(_as_wished(target, wish), rehearsal=dry_run, accept_key_change=wish.accept_key_change)
                with closing(aim.transport):
                    outcomes.append(_carry_out(site, aim, planned, source, ledger, observer, dry_run=dry_run))
            except PublisherError as error:
                outcomes.append(broken_off(target.name, error))
    return outcomes


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
        keys={},
        brake=_brake(site, target, window, source, ledger, rows, delivered),
    )
    goes_on = ledger.errand(target.name, planned.errand) is not None
    return _guarded(site, target, replace(planned, goes_on=goes_on), wish, source, ledger)


def _guarded(site: Site, target: TargetSettings, planned: Plan, wish: Wish, source: Source, ledger: Ledger) -> Plan:
    """The plan with the months whose single records would leave summary rows of the receiver behind.

    Months of summaries are judged when they are summed up; SGAS sums nothing up.
    """
    if target.type == "sgas" or is_summary_format(target.format) or wish.exact:
        return planned
    digest = site.policy_digest(target)
    said = {number: ledger.summary_keys(target.name, number) for number in _numbers(planned.window)}
    if all(policy == digest for keys in said.values() for _, policy in keys):
        return planned  # the same policy says the same keys
    totals = _keys_as_they_would_be(target, planned.window, source, site.surroundings.clock())
    held = []
    for number, keys in said.items():
        new = {total.key.digest for total in totals.get(number, ())}
        stale = tuple(total for total, _ in keys if total.key.digest not in new)
        if stale:
            held.append(HeldMonth(month=number, stale=stale, lost_jobs=0))
    return replace(planned, held=tuple(held), keys=totals)


def _keys_as_they_would_be(
    target: TargetSettings, window: Window, source: Source, now: datetime
) -> dict[int, list[KeyTotal]]:
    judge = Judge(
        selection=target.selection(window), policy=target.policy, policy_digest="", changed=Changed.REPLACE, again=True
    )
    keys = SummaryKeys()
    sums: defaultdict[SummaryKey, list[int]] = defaultdict(lambda: [0, 0, 0])
    for page in source.window(window, frozenset(), now):
        for job in page.jobs:
            fit = judge.judge(job, job.key, None, None)
            if isinstance(fit, Fit):
                here = sums[keys.of(fit.published)]
                here[0] += 1
                here[1] += job.wall_s
                here[2] += job.cpu_user_s + job.cpu_kernel_s
    months: defaultdict[int, list[KeyTotal]] = defaultdict(list)
    for key, (jobs, wall_s, cpu_s) in sums.items():
        months[key.month].append(KeyTotal(key=key, jobs=jobs, wall_s=wall_s, cpu_s=cpu_s))
    return dict(months)


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
            done = added(done, _round(site, aim, source, ledger, observer).republish_month(number))
            if done.exit_status not in (0, 65):
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
        if finished and planned.keys and done.exit_status in (0, RecordError.exit_status):
            ledger.set_summary_keys(aim.name, planned.keys, aim.policy_digest)
        if not finished and site.surroundings.wait(_BREATH_S):
            return replace(
                done, outcome="deferred", reason="stopped; the same command goes on from here", exit_status=75
            )
    return done


def _round(site: Site, aim: Aim, source: Source, ledger: Ledger, observer: Observer) -> Round:
    return Round(aim, source, ledger, observer, site.surroundings.clock, site.surroundings.wait)
