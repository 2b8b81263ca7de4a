"""The commands, a few lines each: what to do with a site, and what came of it. Nothing here prints."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from publisher.formats import is_summary_format
from publisher.ledger.contract import Delivery, Hold, Ledger, Quarantined, TargetState
from publisher.model.errors import BUG, PublisherError, RecordError, SourceError, UsageError, gravest
from publisher.model.job import Epoch, JobId, JobRecord
from publisher.model.target import Target
from publisher.pipeline.guards.databases import Missing, missed, missing_databases, said_of
from publisher.pipeline.site import Site
from publisher.pipeline.status import LOCK_WAIT_S, LOOKED_AT, WaitingJobs, waiting
from publisher.sources.base import Source

if TYPE_CHECKING:  # `status` starts sooner without them
    from publisher.pipeline.round.outcome import Outcome
    from publisher.pipeline.round.round import Observer
    from publisher.pipeline.site import LiveTarget
    from publisher.pipeline.takeover.lost_jobs import LostJobs

log = logging.getLogger("publisher")

AnyTarget = TypeVar("AnyTarget", bound=Target)

# A timer is never on the second: a target is due a little before its time is up.
_EARLY = timedelta(minutes=5)


class TargetStatus(NamedTuple):
    """A target as `status` shows it. `pending` and `late` are None when the accounting data cannot be read.

    Both are upper bounds unless `exact`. `oldest_unsent` is the end of the pending job that ended first, None without any or
    when that cannot be told. `overdue` is when somebody should look at it, if it has no success until then; None before the
    first one.
    """

    target: str
    last_success: datetime | None
    last_published_end: Epoch | None
    delivered: int
    pending: int | None
    late: int | None
    in_doubt: int
    quarantined: int
    held: int  # months that the last round held back
    oldest_unsent: Epoch | None
    overdue: datetime | None
    began: bool  # it had a round
    exact: bool = True
    missing: Sequence[Missing] = ()  # databases that its rounds have read


class Traced(NamedTuple):
    """All that is known of a job: the messages that carried it, where it is set aside, and its rows now."""

    job_id: JobId
    deliveries: Sequence[Delivery]
    quarantined: Sequence[Quarantined]
    rows: Sequence[JobRecord] | None  # None when the accounting data cannot be read; `trouble` says why
    trouble: str


def publish(
    site: Site,
    *,
    targets: Sequence[str],
    observer: Observer,
    force: bool = False,
    dry_run: bool = False,
    limit: int | None = None,
    accept_key_change: bool = False,
) -> list[Outcome]:
    """One regular round of every target that is due. One target's trouble never stops another, nor delays it.

    `force`: also of targets that are not due, and with a look at every row.

    Raises: UsageError, LedgerError, SourceError for what concerns all targets.
    """
    from publisher.pipeline.parallel import for_each_target
    from publisher.pipeline.round.outcome import Outcome, broken_off

    chosen = choose(site.targets, targets)
    refuse_limit_for_summaries(chosen, limit)
    monotonic = site.monotonic

    def work(target: Target, source: Source, ledger: Ledger) -> Outcome:
        waiting = None if force else _not_due(ledger.target(target.name), target, site.clock())
        if waiting:
            return Outcome(target=target.name, outcome="nothing", reason=waiting)
        began = monotonic()
        outcome = _attempt(
            site,
            target,
            source,
            ledger,
            observer,
            dry_run=dry_run,
            limit=limit,
            accept_key_change=accept_key_change,
            every_row=force,
        )
        if not dry_run:
            after_round(site, replace(outcome, seconds=monotonic() - began))
        return outcome

    try:
        return for_each_target(site, chosen, work, dry_run=dry_run)
    except PublisherError as error:
        if not dry_run:  # no target came to a round, and that must be seen too
            for target in chosen:
                after_round(site, broken_off(target.name, error))
        raise


def exit_status(outcomes: Iterable[Outcome]) -> int:
    return gravest(outcome.exit_status for outcome in outcomes)


def status(site: Site, *, targets: Sequence[str]) -> tuple[list[TargetStatus], str]:
    """Every target's state, and what kept the pending jobs from being counted, if anything did. Only reads.

    Whoever finds the accounting data locked, or gone, does not wait for it once more for the next target.
    Raises: UsageError, LedgerError.
    """
    chosen = choose(site.targets, targets)
    with closing(site.ledger_to_read()) as ledger:
        trouble = ""
        found = []
        for target in chosen:
            state = ledger.target(target.name)
            waits: WaitingJobs | None = None
            missing: Sequence[Missing] = ()
            try:
                if not trouble:
                    with closing(site.source(lock_wait_s=LOCK_WAIT_S)) as source:
                        missing = missing_databases(target.name, source, ledger)
                        waits = waiting(site, target, state, source, ledger, LOOKED_AT // len(chosen))
            except SourceError as error:
                trouble = str(error)
            found.append(_status(target, state, waits, missing))
    return found, trouble


def trace(site: Site, job_id: JobId) -> Traced:
    """Every message that carried a job, and where it stands now.

    Raises: UsageError for a job that is known nowhere, LedgerError.
    """
    page, trouble = None, ""
    with closing(site.ledger_to_read()) as ledger:
        deliveries, held = ledger.trace(job_id), ledger.quarantined(job_id)
        try:
            with closing(site.source()) as source:
                page = source.find(job_id, frozenset(), site.clock())
                if not (deliveries or held or page.jobs or page.skipped or page.open):
                    trouble = said_of(missed(site.targets, source, ledger))
        except SourceError as error:  # what was delivered can be proved all the same
            trouble = str(error)
    if page is not None and not (deliveries or held or page.jobs or page.skipped or page.open or trouble):
        raise UsageError(
            f"job {job_id} is neither in the ledger nor in the accounting data; what is asked for is the JobID of the CE, "
            "and `publisher stats -o jobids` lists those that are there"
        )
    return Traced(
        job_id=job_id,
        deliveries=deliveries,
        quarantined=held,
        rows=None if page is None else page.jobs,
        trouble=trouble,
    )


def quarantined(site: Site, *, targets: Sequence[str]) -> list[Quarantined]:
    """The jobs set aside. Raises: UsageError, LedgerError."""
    names = {target.name for target in choose(site.targets, targets)} if targets else None
    with closing(site.ledger_to_read()) as ledger:
        return [held for held in ledger.quarantine() if names is None or held.target in names]


def release_or_drop(
    site: Site, chosen: Sequence[str], hold: Hold, *, every: bool, targets: Sequence[str]
) -> Sequence[Quarantined]:
    """Release or drop quarantined jobs, by number or JobID; returns them. Raises: UsageError, LedgerError."""
    held = quarantined(site, targets=targets)
    names = set(chosen)
    found = [one for one in held if every or str(one.number) in names or one.job.job_id in names]
    known = {str(one.number) for one in held} | {str(one.job.job_id) for one in held}
    if unknown := sorted(names - known):
        raise UsageError(f"not in quarantine: {', '.join(unknown)}; `publisher quarantine list` shows what is")
    numbers = [one.number for one in found]
    with closing(site.ledger()) as ledger:
        _ = ledger.release(numbers) if hold is Hold.RELEASED else ledger.drop(numbers)
    return found


def choose(targets: Sequence[AnyTarget], names: Sequence[str]) -> list[AnyTarget]:
    """The targets of these names, all without any. Raises: UsageError for a name that is not configured."""
    by_name = {target.name: target for target in targets}
    for name in names:
        if name not in by_name:
            near = get_close_matches(name, by_name, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"configured are: {', '.join(by_name)}"
            raise UsageError(f"no target is called {name!r}; {hint}")
    return [target for target in targets if not names or target.name in names]


def refuse_limit_for_summaries(targets: Sequence[Target], limit: int | None) -> None:
    """A part of a month's summary would replace the whole at the receiver. Raises: UsageError."""
    summaries = [target.name for target in targets if is_summary_format(target.format)]
    if limit is not None and summaries:
        raise UsageError(
            f"--limit would send parts of months, which replace whole ones at the receiver: not for {', '.join(summaries)}; "
            "name other targets with --target"
        )


def _attempt(
    site: Site,
    target: Target,
    source: Source,
    ledger: Ledger,
    observer: Observer,
    *,
    dry_run: bool,
    limit: int | None,
    accept_key_change: bool,
    every_row: bool,
) -> Outcome:
    from publisher.pipeline.round.outcome import Outcome, added, broken_off, with_missing_told
    from publisher.pipeline.round.round import Round

    try:
        live = site.live(target, dry_run=dry_run, accept_key_change=accept_key_change)
        with closing(live.transport):
            for warning in live.transport.warnings(site.clock()):
                log.warning("target %s: %s", target.name, warning)
            lost = _take_over(site, target, live, source, ledger)
            round_ = Round(live, source, ledger, observer, site.clock, site.wait)
            outcome = round_.run(limit, every_row=every_row)
            if target.sync and outcome.exit_status in (0, RecordError.exit_status):
                told = _tell_counts(site, target, live, source, ledger, observer)
                outcome = added(outcome, told) if told else outcome
            return with_missing_told(replace(outcome, shadow=target.shadow, lost=lost))
    except PublisherError as error:
        return broken_off(target.name, error)
    except Exception as error:  # the boundary: a bug in one target's round must not stop the others
        log.critical("target %s: a bug in publisher: %s", target.name, error, exc_info=True)
        reason = f"a bug in publisher ({type(error).__name__}: {error}); the log has the details, please report it"
        return Outcome(target=target.name, outcome="error", reason=reason, exit_status=BUG)


def _take_over(site: Site, target: Target, live: LiveTarget, source: Source, ledger: Ledger) -> LostJobs | None:
    """Before the first round after another publisher: what it left at the receiver, and what it has passed over."""
    if target.jura_until is None or ledger.took_over(target.name) == target.jura_until:
        return None
    from publisher.pipeline.takeover import adopt  # once in the life of a target

    with ledger.working_on(target.name):
        ledger.begin_round(
            target.name,
            start_rule=live.start_rule,
            start=live.start,
            selection_digest=live.selection_digest,
            now=site.clock(),
        )
        lost = adopt.take_over(site, target, source, ledger)
    for line in lost.lines if lost is not None and lost.certain + lost.perhaps else ():
        log.warning("%s", line)
    return lost


def _tell_counts(
    site: Site, target: Target, live: LiveTarget, source: Source, ledger: Ledger, observer: Observer
) -> Outcome | None:
    """Its trouble does not hide what the round did."""
    from publisher.pipeline.round.outcome import broken_off  # loaded by now, with all of a round
    from publisher.pipeline.sync import (
        counts,  # takes as long to load as the rest of this room, and few rounds have counts to tell
    )

    try:
        return counts.after_round(site, target, live, source, ledger, observer)
    except PublisherError as error:
        return broken_off(target.name, error)


def after_round(site: Site, outcome: Outcome) -> None:
    """What follows every round, of `publish` and of the daemon alike; its trouble does not hide what the round did.

    Called from the thread of the round: of several targets at once.
    """
    for follow in site.after_round:
        try:
            follow(site, outcome)
        except PublisherError as error:
            log.error("target %s: after its round: %s", outcome.target, error)
        except Exception as error:  # the boundary: what follows a round must not undo it
            log.critical("target %s: a bug in publisher, after its round: %s", outcome.target, error, exc_info=True)


def _not_due(state: TargetState | None, target: Target, now: datetime) -> str | None:
    """Why a target waits; None when it is due. A clock that went back makes it due."""
    if state is None or state.last_success is None or state.is_behind:
        return None
    due = target.due_after(state.last_success)
    if target.cron is None:
        due -= min(_EARLY, (due - state.last_success) / 10)
    if state.last_success <= now < due:
        return f"not due before {due:%Y-%m-%dT%H:%M:%SZ} ({target.timetable}; --force publishes now)"
    return None


def _status(
    target: Target,
    state: TargetState | None,
    waits: WaitingJobs | None,
    missing: Sequence[Missing],
) -> TargetStatus:
    success = state.last_success if state else None
    return TargetStatus(
        target=target.name,
        last_success=success,
        last_published_end=state.last_published_end if state else None,
        delivered=state.delivered if state else 0,
        pending=waits.pending if waits else None,
        late=waits.late if waits else None,
        in_doubt=state.in_doubt if state else 0,
        quarantined=state.quarantined if state else 0,
        held=len(state.held) if state else 0,
        oldest_unsent=waits.first_end if waits else None,
        overdue=None if success is None else target.overdue_after(success),
        began=state is not None and state.last_round is not None,
        exact=waits is None or waits.exact,
        missing=missing,
    )
