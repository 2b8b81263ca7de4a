"""Old jobs of batch systems, taken out once every target has them; refusals of what needs them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from publisher.jobs.store import JobStore
from publisher.ledger.answers import Hold
from publisher.ledger.contract import Ledger
from publisher.model.errors import PublisherError, SourceError
from publisher.model.job import JobRecord
from publisher.model.text import plural
from publisher.model.time import Month, Window, epoch, month_of
from publisher.policy.target import Target, is_wanted
from publisher.publishing.databases.batch_systems import chosen_entries
from publisher.publishing.databases.known import jobs_of
from publisher.publishing.databases.load import store_alone
from publisher.publishing.site import Site
from publisher.sources.base import BatchEntry

log = logging.getLogger("publisher")

_EVERY: Final = timedelta(days=1)


class Pruned(NamedTuple):
    """What was deleted of a source: jobs before the month. `kept`: not delivered."""

    before: Month
    jobs: int
    kept: int


def prune_after_rounds(site: Site) -> None:
    """What all targets have of each source with `keep`, daily. Trouble is logged only."""
    entries = [one for one in chosen_entries(site.batch_systems, None) if one.keep_months]
    if not any(_is_due(site, entry) for entry in entries):
        return
    try:
        with store_alone(site) as store:
            for entry in entries:
                if _is_due(site, entry):
                    found = _prune(site, store, entry)
                    if found.jobs or found.kept:
                        log.info("source %s: %s", entry.name, pruned_text(found))
    except PublisherError as error:
        log.error("old jobs were not pruned: %s", error)


def _is_due(site: Site, entry: BatchEntry) -> bool:
    with closing(jobs_of(site.ledgers)) as jobs:
        last = jobs.pruned_at(entry.name)
        is_read = entry.name in jobs.sources()
    now = epoch(site.process.clock())
    return is_read and not (last is not None and 0 <= now - last < _EVERY.total_seconds())


def prune(site: Site, name: str | None) -> Mapping[str, Pruned]:
    """At once, of one source or each with `keep`. Raises: UsageError, PublisherError."""
    entries = [entry for entry in chosen_entries(site.batch_systems, name) if entry.keep_months]
    with closing(jobs_of(site.ledgers)) as jobs:
        read = [entry for entry in entries if entry.name in jobs.sources()]
    if not read:
        return {}
    with store_alone(site) as store:
        return {entry.name: _prune(site, store, entry) for entry in read}


def pruned_text(found: Pruned) -> str:
    kept = ""
    if found.kept:
        kept = f"; {plural(found.kept, 'job')} that not every target has accepted stayed"
    return f"{plural(found.jobs, 'job')} that ended before {found.before} pruned{kept}"


def refuse_pruned(site: Site, window: Window) -> None:
    """Raises: SourceError where jobs of a window were pruned: the answer would be wrong."""
    with closing(jobs_of(site.ledgers)) as jobs:
        pruned = {
            entry.name: jobs.pruned_months(entry.name)
            for entry in chosen_entries(site.batch_systems, None)
        }
    for name, of_source in pruned.items():
        months = [month for month in of_source if window.overlaps(month.window)]
        if months:
            names = f"{months[0]}" if len(months) == 1 else f"{months[0]} to {months[-1]}"
            raise SourceError(
                f"source {name}: jobs that ended in {names} were pruned (`keep`), "
                f"and an answer without them would be wrong; ask from {months[-1].next} on"
            )


def _prune(site: Site, store: JobStore, entry: BatchEntry) -> Pruned:
    """Page by page, each in a transaction. Raises: PublisherError."""
    before = _months_ago(site.process.clock(), entry.keep_months)
    window, jobs, kept = Window(end=before.window.start), 0, 0
    part = site.ces.part(store, entry)
    with closing(site.ledgers.to_read()) as ledger:
        for page in store.window(window, current=True):  # with their earlier runs
            own = [job for job in page.jobs if job.row.database == entry.name]
            done = own
            for target in site.targets:
                done = _accepted(target, ledger, done)
            with part.transaction():
                jobs += part.prune(done)
            kept += len(own) - len(done)
            if site.process.wait(0):
                return Pruned(before, jobs, kept)
    with part.transaction():
        part.prune_runs_of_ces(before.window.start or 0)
    store.pruned(entry.name, epoch(site.process.clock()))
    return Pruned(before, jobs, kept)


def _months_ago(now: datetime, count: int) -> Month:
    month = month_of(now)
    for _ in range(count):
        month = month.previous
    return month


def _accepted(target: Target, ledger: Ledger, jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Those that a target has accepted as they are, does not want, or was told never to be sent."""
    state = ledger.targets.state(target.name)
    if state is None:
        return []
    selection = target.selection(Window(start=state.start))
    keys = [job.key for job in jobs]
    known = ledger.entries.recorded(target.name, [job.run_key for job in jobs])
    held = ledger.quarantine.held(target.name, keys)
    found = []
    for job, key in zip(jobs, keys, strict=True):
        run, quarantined = known.get(job.run_key), held.get(key)
        if quarantined is not None:
            accepted = quarantined.hold is Hold.DROPPED
        elif run is not None:
            accepted = run.digest == job.values_digest and run.counts
        else:
            accepted = not is_wanted(selection, target, job)
        if accepted:
            found.append(job)
    return found


def earliest(now: datetime, months: int | None) -> Window:
    """The last months, this one among them; all without a number."""
    start = None if months is None else epoch(_months_ago(now, max(months - 1, 0)).start)
    return Window(start=start)
