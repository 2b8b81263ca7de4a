"""Batch systems read by hand: files that are named, and files with bad lines once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from publisher.jobs.batch import SourceJobs
from publisher.publishing.databases.batch_systems import chosen_entries
from publisher.publishing.databases.load import store_alone
from publisher.publishing.site import Site
from publisher.sources.base import BatchEntry
from publisher.sources.importers import ImportReport, Retried, Watch


def bring_in(site: Site, entry: BatchEntry, paths: Sequence[Path], watch: Watch) -> ImportReport:
    """Read what is new in these files, or without any where the options say.

    Raises: ConfigError, UsageError, SourceError, LedgerError; not for single files.
    """
    importer = site.batch_systems.importer(entry, reading=True)
    with store_alone(site) as store:
        part = SourceJobs(store, entry.name, site.batch_systems.tables(entry))
        report = importer.run(paths, part, site.process.clock(), watch)
        if not entry.in_rounds:
            store.complete(entry.name)
        return report


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
                part = SourceJobs(store, entry.name, site.batch_systems.tables(entry))
                found[entry.name] = site.batch_systems.retry(entry, part)
    return found
