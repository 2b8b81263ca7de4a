"""Old months are closed at each receiver, and pruned from the job store.

A month is closed once all of its runs are older than `keep`, and nothing of any of them is left to
be done at any receiver; the months before it come first. Then its runs go from the job store.

    keep: 24 months, 2026-07-02  ->  2024-06 and what is before it, as far as all of that is settled
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from publisher.jobs.batch import prune as prune_store
from publisher.jobs.reader import JobPage
from publisher.jobs.store import JobStore
from publisher.ledger.answers import Hold
from publisher.ledger.contract import Ledger
from publisher.model.errors import PublisherError
from publisher.model.job import Epoch, key_of
from publisher.model.text import plural
from publisher.model.time import Month, Window, epoch, month_of
from publisher.model.totals import month_number, year_and_month
from publisher.publishing.databases.batch_systems import last_troubles
from publisher.publishing.databases.known import closed_everywhere, closed_until, jobs_of, missed_at
from publisher.publishing.databases.load import store_alone
from publisher.publishing.databases.prune import months_ago
from publisher.publishing.databases.reader import LoadedFirst, wanted_since
from publisher.publishing.plan.decision import Decider, Skip
from publisher.publishing.round.live import LiveTarget
from publisher.publishing.round.round import patience
from publisher.publishing.site import Site

log = logging.getLogger("publisher")

_EVERY: Final = timedelta(days=1)


class Pruned(NamedTuple):
    """What was closed and pruned: all before the month `before`, None where nothing is.

    `entries` of the ledger were summed up, and so many `jobs` were deleted from the job store.
    `why` a month stays open that is old enough; '' without such a one.
    """

    before: Month | None
    entries: int
    jobs: int
    why: str


def prune_after_rounds(site: Site) -> None:
    """Close and prune old months, once a day. Trouble is logged only."""
    try:
        with closing(jobs_of(site.ledgers)) as jobs:
            last = jobs.pruned_at()
        since = None if last is None else epoch(site.process.clock()) - last
        if since is not None and 0 <= since < _EVERY.total_seconds():
            return
        found = prune(site)
        if found is not None and (found.entries or found.jobs or found.why):
            log.info("%s", pruned_text(found))
    except PublisherError as error:
        log.error("old months were not closed: %s", error)


def prune(site: Site) -> Pruned | None:
    """Close and prune old months at once; None where there are none. Raises: PublisherError."""
    before, now = months_ago(site.process.clock(), site.keep_months), site.process.clock()
    with ExitStack() as opened:
        store = opened.enter_context(store_alone(site))
        ledger = opened.enter_context(closing(site.ledgers.open()))
        lives = [site.sending.live(target, dry_run=True) for target in site.targets]
        for live in lives:
            opened.callback(live.transport.close)
        first, why = _first_open(site, store, ledger, lives, before)
        entries = 0
        for live in lives if _has_months(store, ledger, lives, first) else ():
            with ledger.locks.working_on(live.name, patience(site.process.wait), live.receiver):
                closed = ledger.targets.close(live.name, first.number, now)
            entries += closed.entries
            if closed.why:
                stays = Month(*year_and_month(closed.before))
                why = f"{stays} stays open for target {live.name}: {closed.why}"
        jobs = prune_store(store, end := closed_everywhere(site), epoch(now))
    closed_to = month_of(datetime.fromtimestamp(end, UTC)) if end else None
    return Pruned(closed_to, entries, jobs, why) if entries or jobs or why else None


def pruned_text(found: Pruned) -> str:
    """Return what was done, for people."""
    parts = [found.why] if found.why else []
    if found.before is not None:
        entries = plural(found.entries, "entry", "entries")
        jobs = plural(found.jobs, "job")
        closed = f"months before {found.before} are closed"
        parts.insert(0, f"{closed}: {entries} of runs summed up, {jobs} pruned")
    return "; ".join(parts)


def _first_open(
    site: Site,
    store: JobStore,
    ledger: Ledger,
    lives: Sequence[LiveTarget],
    before: Month,
) -> tuple[Month, str]:
    """Return the first month that is not to be closed, and why, where it is one before `before`."""
    nothing = month_of(datetime.fromtimestamp(0, UTC))
    if unread := [*sorted(store.incomplete()), *last_troubles(site), *_missing(site)]:
        return nothing, f"no month is closed while sources are not read in full: {unread[0]}"
    without = [live.name for live in lives if not _had_a_round(live, ledger)]
    if without or not lives:
        names = ", ".join(without)
        return nothing, f"no month is closed before each target had a round as it is now: {names}"
    waiting = Counter[int]()
    undecided = store.first_undecided()
    if undecided is not None and undecided < epoch(before.start):
        waiting[month_number(undecided)] += 1
    checks = [_OpenJobs(site, live, store, ledger) for live in lives]
    for page in store.window(Window(end=epoch(before.start))):
        for check in checks:
            waiting.update(map(month_number, check.ends(page)))
        if site.process.wait(0):
            return nothing, "no month is closed: a stop was asked for"
    for check in checks:
        waiting.update(map(month_number, check.set_aside(epoch(before.start))))
    if not waiting:
        return before, ""
    first = min(waiting)
    month = Month(*year_and_month(first))
    jobs = plural(waiting[first], "job")
    why = f"{month} stays open: not every target has accepted {jobs} of it, or had them dropped"
    return month, why


def _had_a_round(live: LiveTarget, ledger: Ledger) -> bool:
    """Return whether a target was compared since it leads where it does, and wants what it does."""
    state, cursor = ledger.targets.state(live.name), ledger.positions.cursor(live.name)
    if state is None or cursor is None:
        return False
    return cursor.wanted == live.wanted_digest(state.start)


def _missing(site: Site) -> list[str]:
    return [one.reason for one in missed_at(site)]


def _has_months(store: JobStore, ledger: Ledger, lives: Sequence[LiveTarget], first: Month) -> bool:
    """Return whether there is anything before a month that is not closed."""
    end = store.first_end()
    return (end is not None and end < epoch(first.start)) or any(
        ledger.targets.closed(live.name) <= one.month < first.number
        for live in lives
        for one in ledger.entries.months(live.name)
    )


class _OpenJobs:
    """Finds the runs of the store of which something is left to be done at a target."""

    def __init__(self, site: Site, live: LiveTarget, store: JobStore, ledger: Ledger) -> None:
        self._name = live.name
        self._ledger = ledger
        state = ledger.targets.state(live.name)
        self._decider = Decider(
            selection=live.selection._replace(window=Window(start=state and state.start)),
            policy=live.policy,
            policy_digest=live.policy_digest,
            changed=live.changed,
            sent_by_jura=live.sent_by_jura,
            closed_until=closed_until(ledger.targets, live.name),
        )
        began = wanted_since(live.name, ledger.positions, store)
        of_sources = store.first_loads(), site.accounting.batch_systems
        lost = ledger.losses.months(live.name)
        self._first = LoadedFirst(*of_sources, began=began, lost=lost)

    def ends(self, page: JobPage) -> Iterator[Epoch]:
        """Yield when those of a page ended."""
        recorded = self._ledger.entries.recorded(self._name, page.runs)
        page = self._first.wanted(page, recorded, again=False)
        keys = [*map(key_of, page.runs), *(row.key for row in page.skipped)]
        quarantined = self._ledger.quarantine.held(self._name, keys)
        for job, run in zip(page.jobs, page.runs, strict=True):
            known = recorded.get(run)
            if key_of(run) in quarantined:  # `set_aside` tells of these
                continue
            if known is not None and known.counts:
                digests = job.values_digest, self._decider.pinned(job, known).values_digest
                if known.digest in digests:
                    continue
            verdict = self._decider.decide(job, run, known, None)
            is_pending = known is not None and known.pending
            if is_pending or not isinstance(verdict, Skip) or verdict.waits:
                yield job.ended_at
        for row in page.skipped:
            is_wanted = row.ended_at is not None and self._decider.may_want(row)
            if is_wanted and row.key not in quarantined:
                yield row.ended_at or Epoch(0)

    def set_aside(self, before: Epoch) -> Iterator[Epoch]:
        """Yield when those ended, in open months, that are in quarantine, in whatever store."""
        for held in self._ledger.quarantine.listed(self._name):
            ended_at = held.job.ended_at
            if ended_at is None or held.hold is Hold.DROPPED:
                continue
            if self._decider.closed_until <= ended_at < before:
                yield ended_at
