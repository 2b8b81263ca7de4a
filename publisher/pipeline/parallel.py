"""Targets worked on at the same time, so that one that hangs delays no other.

A service that accepts connections and then says nothing costs its target up to `retry_budget_s` and one attempt more: 13
minutes with the options as they come. Whoever came after it in the file would wait as long, in every round. So each target
gets a thread, with a ledger and a source of its own: a connection of SQLite belongs to one thread, and a target's rows in the
ledger to one publisher (its lock). The only thing that two of them share is the ledger's file, whose transactions take
milliseconds. What one target raises is its own outcome.

A single target gets its thread too: the main thread must be free to hear SIGTERM, which Python tells it only between two steps
of its own, and a wait for SQLite's locks is one step.

The threads take turns on one interpreter: together they need the time that they would need one after the other, less what they
wait for services and disks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from publisher.ledger.contract import Ledger
from publisher.model.errors import PublisherError
from publisher.model.target import Target
from publisher.pipeline.round.outcome import Outcome, broken_off
from publisher.pipeline.site import Site
from publisher.sources.base import Source
from publisher.transports.background import BackgroundTask

Work = Callable[[Target, Source, Ledger], Outcome]


def for_each_target(site: Site, targets: Sequence[Target], work: Work, *, dry_run: bool = False) -> list[Outcome]:
    """What came of the work on each target, in their order. `work` sees to it that trouble is an outcome.

    Raises: LedgerError, SourceError for what concerns all targets.
    """
    with closing(site.ledger(dry_run=dry_run)) as ledger, closing(site.source()) as source:
        if not site.parallel:
            return [work(target, source, ledger) for target in targets]
        # What is wrong with the ledger as a whole was raised just now, once; the threads open it again.
        begun = [BackgroundTask(partial(_in_thread, site, target, work, dry_run=dry_run)) for target in targets]
        return [one.result() for one in begun]


def _in_thread(site: Site, target: Target, work: Work, *, dry_run: bool) -> Outcome:
    try:
        with closing(site.ledger(dry_run=dry_run)) as ledger, closing(site.source()) as source:
            return work(target, source, ledger)
    except PublisherError as error:
        return broken_off(target.name, error)
