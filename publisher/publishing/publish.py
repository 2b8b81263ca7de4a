"""`publish` and `sync`: one regular round of every target that is due, or its job counts.

Nothing here prints.

A service that accepts connections and then says nothing costs its target up to `retry_budget_s` and
one attempt more: 13 minutes with the default options. Whoever came after it in the file would wait
as long, in every round. So each receiver gets a thread, in which its targets run one after the
other: what one of them has under way goes before what the next one sends. Each target has a ledger
and a source of its own: a connection of SQLite belongs to one thread. The only thing that two
receivers share is the ledger's file, whose transactions take milliseconds. What one target raises
is its own outcome.

Memory is for those at work: no more than `targets_at_once` receivers. The others wait until one is
done.

A single target gets its thread too: the main thread must be free to hear SIGTERM, which Python
delivers only between two steps of its own, and a wait for SQLite's locks is one step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from functools import partial
from threading import Event, Lock, Semaphore
from typing import TYPE_CHECKING

from publisher.formats import is_summary_format
from publisher.ledger.answers import TargetState
from publisher.ledger.contract import Ledger, Targets
from publisher.model.errors import BUG, PublisherError, RecordError, UsageError, bug_text, gravest
from publisher.policy.target import FOR_ONCE, Target
from publisher.publishing.databases.known import AccountingData
from publisher.publishing.databases.load import Loaded, loaded, needs_of
from publisher.publishing.round.earlier import with_earlier
from publisher.publishing.round.live import LiveTarget, Sending
from publisher.publishing.round.outcome import Outcome, added, broken_off, incomplete
from publisher.publishing.round.round import Observer, Round, patience
from publisher.publishing.site import Site, choose
from publisher.publishing.sync import counts
from publisher.transports.base import BackgroundTask

if TYPE_CHECKING:
    from publisher.publishing.round.outcome import LostJobs

log = logging.getLogger("publisher")

# A timer is never on the second: a target is due a little before its time is up.
_EARLY = timedelta(minutes=5)
_LOOK_EVERY_S = 0.5  # a wait without an end would not hear SIGTERM


Work = Callable[[Target, AccountingData, Ledger], Outcome]


class OnceARound:
    """Finds texts to log, each for the first of several targets whose rounds have it.

    A target that has it again begins a new round of all of them. For several threads.
    """

    def __init__(self) -> None:
        self._had: dict[str, set[str]] = {}  # by text, targets that had it since it was logged
        self._turn = Lock()

    def to_log(self, target: str, texts: Sequence[str]) -> list[str]:
        """Return those of all texts of a target's round that are to be logged."""
        with self._turn:
            for text in [text for text, targets in self._had.items() if target in targets]:
                if text not in texts:
                    del self._had[text]
            found = []
            for text in texts:
                targets = self._had.get(text, {target})
                if target in targets:
                    found.append(text)
                    targets = set()
                self._had[text] = targets | {target}
            return found


class Turns:
    """Rounds of one process: one at a time to a receiver, and to so many receivers at once.

    For several threads. A stop ends the wait for a turn.
    """

    def __init__(self, at_once: int, stop: Event) -> None:
        self._places = Semaphore(max(1, at_once))
        self._receivers: dict[str, Semaphore] = {}
        self._stop = stop

    @contextmanager
    def turn(self, place: str) -> Iterator[bool]:
        """Wait for a turn at the receiver of this place; False when a stop came first."""
        with ExitStack() as held:
            of_receiver = self._receivers.setdefault(place, Semaphore())
            yield all(self._waited_for(one, held) for one in (of_receiver, self._places))

    def _waited_for(self, one: Semaphore, held: ExitStack) -> bool:
        while not one.acquire(timeout=_LOOK_EVERY_S):
            if self._stop.is_set():
                return False
        held.callback(one.release)
        return True


def for_each_target(
    site: Site,
    targets: Sequence[Target],
    work: Work,
    *,
    dry_run: bool = False,
    every_row: bool = False,
    reads_batch: bool = False,
) -> list[Outcome]:
    """Return what came of the work on each target, in order; its trouble must be an outcome.

    Before, the jobs of all sources are loaded; `every_row`: and those that were loaded are looked
    through again; `reads_batch`: with what is new of the batch systems.

    Raises: LedgerError, SourceError for what concerns all targets.
    """
    with (
        closing(site.ledgers.open(dry_run=dry_run)) as ledger,
        loaded(
            site,
            ledger.positions,
            sends_nothing=dry_run,
            every_row=every_row,
            needs=needs_of(targets),
            reads_batch=reads_batch,
        ) as there,
    ):
        if not site.targets_at_once:
            with closing(there.open()) as accounting:
                return [work(target, accounting, ledger) for target in targets]
        # What is wrong with the ledger as a whole was raised just now; the threads open it again.
        places, begun = Semaphore(site.targets_at_once), []
        for of_one in _by_receiver(site.sending, targets):
            while not places.acquire(timeout=_LOOK_EVERY_S):
                continue
            task = partial(_in_thread, there, of_one, work, places, dry_run=dry_run)
            begun.append(BackgroundTask(task))
        outcomes = {name: outcome for one in begun for name, outcome in one.result().items()}
        return [outcomes[target.name] for target in targets]


def _by_receiver(sending: Sending, targets: Iterable[Target]) -> Iterable[Sequence[Target]]:
    """Return the targets of each receiver, in the order of the configuration."""
    found: dict[str, list[Target]] = {}
    for target in targets:
        found.setdefault(sending.receiver(target).place, []).append(target)
    return found.values()


def _in_thread(
    there: Loaded, targets: Iterable[Target], work: Work, places: Semaphore, *, dry_run: bool
) -> dict[str, Outcome]:
    """Work on the targets of one receiver in turn; return their outcomes by name."""
    try:
        return {target.name: _worked_on(there, target, work, dry_run=dry_run) for target in targets}
    finally:
        places.release()


def _worked_on(there: Loaded, target: Target, work: Work, *, dry_run: bool) -> Outcome:
    try:
        with (
            closing(there.site.ledgers.open(dry_run=dry_run)) as ledger,
            closing(there.open()) as accounting,
        ):
            return work(target, accounting, ledger)
    except PublisherError as error:
        return broken_off(target.name, error)


def publish(
    site: Site,
    *,
    targets: Sequence[str],
    observer: Observer,
    force: bool = False,
    dry_run: bool = False,
    limit: int | None = None,
    accept_key_change: bool = False,
    warnings: OnceARound | None = None,
) -> list[Outcome]:
    """Do one regular round of each target that is due; none stops or delays another.

    Before it, but not in a dry run, the batch systems of `source` are read. `force`: also of
    targets that are not due, and with a look at every row. A dry run is one of the next round,
    whenever that is due. `warnings`: what was logged in rounds of other targets.

    Raises: UsageError, LedgerError, SourceError for what concerns all targets.
    """
    chosen = choose(site.targets, targets)
    refuse_limit_for_summaries(chosen, limit)
    monotonic = site.process.monotonic
    warnings = warnings or OnceARound()

    def work(target: Target, accounting: AccountingData, ledger: Ledger) -> Outcome:
        lacks = accounting.failures
        is_asked = force or dry_run
        waiting = (
            None
            if is_asked
            else _not_due(ledger.targets.state(target.name), target, site.process.clock())
        )
        if waiting:
            idle = Outcome(target=target.name, outcome="nothing", reason=waiting)
            return incomplete(idle, lacks)
        began = monotonic()
        outcome = _attempt(
            *(site, target, accounting, ledger, observer),
            dry_run=dry_run,
            limit=limit,
            accept_key_change=accept_key_change,
            every_row=force,
            all_read=not lacks,
            warnings=warnings,
        )
        outcome = incomplete(outcome, [one for one in lacks if one not in outcome.reason])
        if dry_run and outcome.exit_status in (0, RecordError.exit_status):
            settings, by = site.sending.settings_digest(target), site.process
            read = target, settings, accounting.jobs, ledger, site.ledgers
            outcome = with_earlier(outcome, *read, by.clock(), by.wait)
        if not dry_run:
            outcome = after_round(site, outcome._replace(seconds=monotonic() - began))
        return outcome

    try:
        outcomes = for_each_target(
            site,
            chosen,
            _noting_ends(work, observer),
            dry_run=dry_run,
            every_row=force,
            reads_batch=not dry_run,
        )
    except PublisherError as error:
        if not dry_run:  # no target came to a round, and that must be seen too
            for target in chosen:
                reason = after_round(site, broken_off(target.name, error)).reason
                more = [reason.removeprefix(f"{error}; ")] if reason != str(error) else []
                for text in warnings.to_log(target.name, more):
                    log.error("%s", text)
        raise
    if not dry_run and site.keep_months:
        BackgroundTask(site.close_old_months).result()
    return outcomes


def _noting_ends(work: Work, observer: Observer) -> Work:
    """Return the work, whose end the observer sees, whatever comes of it."""

    def noted(target: Target, accounting: AccountingData, ledger: Ledger) -> Outcome:
        try:
            return work(target, accounting, ledger)
        finally:
            observer.round_ends(target.name)

    return noted


def sync(
    site: Site, targets: Sequence[Target], observer: Observer, *, months: int | None, dry_run: bool
) -> list[Outcome]:
    """Send the counts of the last months (None: of all). One target's trouble never stops another.

    Raises: LedgerError, SourceError.
    """

    def work(target: Target, accounting: AccountingData, ledger: Ledger) -> Outcome:
        try:
            live = site.sending.live(target, dry_run=dry_run)
            with closing(live.transport):
                args = site.process, target, live, accounting, ledger, observer
                outcome = counts.send_counts(*args, months=months)
                return incomplete(outcome, accounting.failures)
        except PublisherError as error:
            return broken_off(target.name, error)

    return for_each_target(site, targets, work, dry_run=dry_run)


def exit_status(outcomes: Iterable[Outcome]) -> int:
    return gravest(outcome.exit_status for outcome in outcomes)


def refuse_limit_for_summaries(targets: Sequence[Target], limit: int | None) -> None:
    """A part of a month's summary would replace the whole at the receiver. Raises: UsageError."""
    summaries = [target.name for target in targets if is_summary_format(target.format)]
    if limit is not None and summaries:
        raise UsageError(
            "--limit would send parts of months, which replace whole ones at the receiver: "
            f"not for {', '.join(summaries)}; name other targets with --target"
        )


def _attempt(
    site: Site,
    target: Target,
    accounting: AccountingData,
    ledger: Ledger,
    observer: Observer,
    *,
    dry_run: bool,
    limit: int | None,
    accept_key_change: bool,
    every_row: bool,
    all_read: bool,
    warnings: OnceARound,
) -> Outcome:
    """Do a round and its job counts; return what keeps it from being a success too."""
    try:
        live = site.sending.live(target, dry_run=dry_run, accept_key_change=accept_key_change)
        with closing(live.transport):
            found = live.transport.warnings(site.process.clock())
            found += _left(site, target, ledger.targets)
            for text in warnings.to_log(target.name, found):
                log.warning("target %s: %s", target.name, text)
            lost = _take_over(site, target, live, accounting, ledger)
            round_ = Round(
                live, accounting, ledger, observer, site.process.clock, site.process.wait
            )
            outcome = round_.run(limit, every_row=every_row, all_read=all_read)
            if target.sync and outcome.exit_status in (0, RecordError.exit_status):
                counts_outcome = _send_counts(site, target, live, accounting, ledger, observer)
                outcome = added(outcome, counts_outcome) if counts_outcome else outcome
            return incomplete(outcome._replace(shadow=target.shadow, lost=lost), outcome.missing)
    except PublisherError as error:
        return broken_off(target.name, error)
    except Exception as error:  # the boundary: a bug in one target's round must not stop the others
        reason = bug_text(error)
        log.critical("target %s: %s", target.name, reason, exc_info=True)
        return Outcome(target=target.name, outcome="error", reason=reason, exit_status=BUG)


def _left(site: Site, target: Target, targets: Targets) -> list[str]:
    """Return why a target without a round may be one that was renamed; nothing for others."""
    if targets.state(target.name) is not None:
        return []
    configured = {one.name for one in site.targets}
    left = [
        name for name in targets.names() if name not in configured and not name.startswith(FOR_ONCE)
    ]
    if not left:
        return []
    return [
        f"this is its first round, and the ledger has {', '.join(left)}, not configured any more; "
        "if that was renamed, give it its old name again: under the new one nothing is known of "
        "what was delivered, set aside or late; only what it has in doubt goes first, under its "
        "old name"
    ]


def _take_over(
    site: Site, target: Target, live: LiveTarget, data: AccountingData, ledger: Ledger
) -> LostJobs | None:
    """Take over what another publisher left, before the first round; return what it passed over.

    Raises: SourceError, LedgerError.
    """
    if target.jura_until is None or ledger.targets.took_over(target.name) == target.jura_until:
        return None
    data.refuse_incomplete()  # a job that was not adopted would go beside its row
    with ledger.locks.working_on(target.name, patience(site.process.wait), live.receiver):
        live.begin(ledger.targets)
        lost = site.take_over(target, data.jobs, data.source, ledger)
    for line in lost.lines if lost is not None and lost.certain + lost.perhaps else ():
        log.warning("%s", line)
    return lost


def _send_counts(
    site: Site,
    target: Target,
    live: LiveTarget,
    accounting: AccountingData,
    ledger: Ledger,
    observer: Observer,
) -> Outcome | None:
    """Send the counts after a round; their trouble does not hide what the round did."""
    try:
        return counts.after_round(site.process, target, live, accounting, ledger, observer)
    except PublisherError as error:
        return broken_off(target.name, error)


def after_round(site: Site, outcome: Outcome) -> Outcome:
    """Do what follows every round, of `publish` and of the daemon.

    Called from the thread of the round: of several targets at once. Returns the outcome with what
    went wrong; its word stays, because the round itself is done.
    """
    for follow in site.after_round:
        try:
            follow(site, outcome)
        except PublisherError as error:
            after = f"after the round: {error}"
            outcome = outcome._replace(
                reason="; ".join(filter(None, (outcome.own_reason, after, *outcome.lacks))),
                lacks=(after, *outcome.lacks),  # of all targets, so that it is printed once
                exit_status=gravest([outcome.exit_status, error.exit_status]),
            )
        except Exception as error:  # the boundary: what follows a round must not undo it
            bug = "target %s: a bug in publisher, after its round: %s"
            log.critical(bug, outcome.target, error, exc_info=True)
    return outcome


def _not_due(state: TargetState | None, target: Target, now: datetime) -> str | None:
    """Return why a target waits; None when it is due. A clock that went back makes it due."""
    if state is None or state.last_success is None or state.is_behind:
        return None
    due = target.due_after(state.last_success)
    if target.cron is None:
        due -= min(_EARLY, (due - state.last_success) / 10)
    if not state.last_success <= now < due:
        return None
    return f"not due before {due:%Y-%m-%dT%H:%M:%SZ} ({target.timetable}; --force publishes now)"
