"""Batch systems read by hand: files that are named, and files with bad lines once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from publisher.jobs.store import JobStore
from publisher.publishing.databases.batch_systems import chosen_entries, linked_notes
from publisher.publishing.databases.load import (
    LoadOptions,
    load_into,
    needs_of,
    store_alone,
)
from publisher.publishing.site import Site
from publisher.sources.base import BatchEntry
from publisher.sources.importers import PUBLISHED, ImportReport, Retried, Watch

if TYPE_CHECKING:
    from publisher.jobs.link import Linked


def bring_in(site: Site, entry: BatchEntry, paths: Sequence[Path], watch: Watch) -> ImportReport:
    """Read what is new in these files, or without any where the options say.

    Where CEs submit to the batch system, these are loaded too, and its runs linked. Raises:
    ConfigError, UsageError, SourceError, LedgerError; not for single files.
    """
    importer = site.batch_systems.importer(entry)
    reports: list[ImportReport] = []

    def read(site: Site, store: JobStore) -> Sequence[str]:
        part = site.ces.part(store, entry)
        reports.append(importer.run(paths, part, site.process.clock(), watch))
        return ()

    with store_alone(site) as store:
        if site.ces.has_ces(entry):
            needs = needs_of(site.targets)
            options = LoadOptions(needs, site.accounting.read_as(), reads_batch=True, links=True)
            failures, linked = load_into(store, site, options, read)
            reports[0].troubles += failures
            count_linked(reports[0], linked[entry.name])
        else:
            read(site, store)
        if not entry.in_rounds:
            store.complete(entry.name)
    return reports[0]


def count_linked(report: ImportReport, linked: Linked) -> None:
    """Count in a report what became of runs that were hidden."""
    report.imported += linked.own
    if linked.of_ce:
        report.skipped[PUBLISHED] += linked.of_ce
    report.held += linked.waiting
    report.notes += linked_notes(linked)


def retry_bad_lines(site: Site, name: str | None) -> Mapping[str, Retried | None]:
    """Read the files once more in which lines of one source, or of each, were set aside.

    None for a source that was never read. Raises: UsageError for a name that is not configured,
    PublisherError.
    """
    found: dict[str, Retried | None] = {}
    chosen = chosen_entries(site.batch_systems, name)
    with store_alone(site) as store:
        read = store.sources()
        for entry in chosen:
            found[entry.name] = None
            if entry.name in read:
                part = site.ces.part(store, entry)
                found[entry.name] = site.batch_systems.retry(entry, part)
    return found
