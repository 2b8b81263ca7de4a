"""The accounting data and the batch systems of a configuration, with the class behind each name.

A registry, as `site.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from publisher.config import Settings
from publisher.jobs.file import store_path
from publisher.jobs.store import open_reader
from publisher.model.job import Epoch, ReadRequest
from publisher.model.time import epoch
from publisher.publishing.databases.batch_systems import delivered_since
from publisher.publishing.site import ProcessEnvironment
from publisher.sources import LRMS, importer_plugin, offered, source_plugin
from publisher.sources.base import BatchEntry, DatabaseEntry, ImportedFrom, JoinedEntry, Source

if TYPE_CHECKING:
    from publisher.jobs.reader import StoreReader
    from publisher.jobs.store import JobStore
    from publisher.ledger.contract import Ledgers
    from publisher.model.job import JobRecord
    from publisher.sources.base import LastReading, NewestJob, WritingOrder
    from publisher.sources.importers import (
        BadLine,
        BoundConnection,
        Importer,
        ImportReport,
        ImportRule,
        Retried,
        SourceStore,
    )

MACHINE_ID: Final = Path("/etc/machine-id")


def copies_of(process: ProcessEnvironment) -> Path:
    """Return where copies of databases are made that cannot be read in place."""
    from publisher.sources.sqlite_reader import copies_directory

    return copies_directory(process.environment)


class LiveAccounting(NamedTuple):
    """`Accounting` of a configuration."""

    settings: Settings
    process: ProcessEnvironment

    @property
    def entries(self) -> Sequence[DatabaseEntry]:
        return [
            DatabaseEntry(name=each.name, type=each.type, options=each.options)
            for each in self.settings.written
            if hasattr(source_plugin(each.type), "database_paths")
        ]

    @property
    def batch_systems(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.settings.batch_entries)

    def read_as(self) -> str:
        options = self.settings.source, self.settings.batch_entries
        return sha256(repr(options).encode()).hexdigest()[:16]

    def open(
        self, *, lock_wait_s: float | None = None, loads_into: JobStore | None = None
    ) -> Source:
        """Raises: SourceError."""
        source = self._databases(lock_wait_s)
        if not (entries := self._joined_entries()):
            return source
        from publisher.sources.files.arc.batch_runs import BatchRuns
        from publisher.sources.files.arc.joined import JoinedSource

        if loads_into is not None:
            runs = BatchRuns(entries, loads_into, remembers_in=loads_into)
            return JoinedSource(source, runs, close=lambda: None)
        jobs = self._jobs()
        return JoinedSource(source, BatchRuns(entries, jobs), close=jobs.close)

    def _jobs(self) -> StoreReader:
        return open_reader(store_path(self.settings.state))

    def _databases(self, lock_wait_s: float | None = None) -> Source:
        source = self.settings.source
        create = source_plugin(source.type).create
        return create(source.options, self.process.environment, lock_wait_s=lock_wait_s)

    def _joined_entries(self) -> Sequence[JoinedEntry]:
        """The batch systems that CEs submit to: `arc_databases: []` says that none does."""
        return [
            JoinedEntry(entry.name, LRMS[entry.type], entry.join_wait_s, ces)
            for entry in (self.settings.batch_entries if self.settings.written else ())
            if entry.in_rounds and (ces := entry.ces()) != frozenset()
        ]

    def writing_order(
        self, source: Source
    ) -> AbstractContextManager[Sequence[WritingOrder]] | None:
        opener = getattr(source_plugin(self.settings.source.type), "writing_order", None)
        return None if opener is None else opener(source, self.process.environment)

    def joined_from(self, job: JobRecord) -> Sequence[ImportRule]:
        if not (entries := self._joined_entries()):
            return ()
        from publisher.sources.files.arc.batch_runs import BatchRuns
        from publisher.sources.files.arc.joined import rules_of

        request = ReadRequest(frozenset(), Epoch(epoch(self.process.clock())))
        with closing(self._jobs()) as jobs, closing(self._databases()) as accounting:
            runs = BatchRuns(entries, jobs)
            of_ce = runs.of_ce(accounting.databases().get(job.row.database, job.row.database))
            pages = [
                page
                for source in accounting.sources()
                if source.name == job.row.database
                for page in source.look_up([job.job_id], request)
            ]
            as_it_is = [one for page in pages for one in page.jobs if one.row == job.row]
            return [rule for one in as_it_is for rule in rules_of(one, of_ce)]

    def files(self, entry: DatabaseEntry) -> Sequence[str]:
        ask: Callable[..., Sequence[str]] = offered(entry.type, "database_paths", "status")
        return ask(entry.options, self.process.environment)

    def names(self, entry: DatabaseEntry, file: str) -> bool:
        return bool(offered(entry.type, "names", "import")(entry.options, file))

    def newest_job(self, database: str, *, lock_wait_s: float) -> NewestJob:
        ask: Callable[..., NewestJob] = offered(self.settings.source.type, "newest_job", "status")
        return ask(
            database, self.process.environment, now=self.process.clock(), lock_wait_s=lock_wait_s
        )

    def open_file(self, path: str) -> Source:
        source = self.settings.source
        only: Callable[..., object] = offered(source.type, "only_database", "source retire")
        return source_plugin(source.type).create(
            only(source.options, path), self.process.environment
        )


class LiveBatchSystems(NamedTuple):
    """`BatchSystems` of a configuration."""

    settings: Settings
    process: ProcessEnvironment
    accounting: LiveAccounting
    ledgers: Ledgers

    @property
    def entries(self) -> Sequence[BatchEntry]:
        return self.settings.batch_entries

    def importer(self, entry: BatchEntry, *, reading: bool = False) -> Importer:
        """Raises: ConfigError for an unreadable map file, SourceError for a missing database."""
        options: Any = entry.options
        if reading and entry.in_rounds and self.settings.written and options.arc_databases is None:
            ces = self.accounting.entries
            paths = tuple(Path(file) for ce in ces for file in self.accounting.files(ce))
            options = replace(options, arc_databases=paths, arc_lrms=LRMS[entry.type])
        if reading:
            asked = self.ledgers, self.accounting, self.entries, entry
            options = replace(options, arc_delivered=partial(delivered_since, *asked))
        surroundings = self.process.environment, self.process.wait
        return importer_plugin(entry.type).create(options, *surroundings)

    def tables(self, entry: BatchEntry) -> str:
        return importer_plugin(entry.type).TABLES

    def read(
        self, entry: BatchEntry, store: SourceStore, check: Callable[[], object]
    ) -> ImportReport:
        from publisher.sources.files.batch_entry import read_entry

        def importer() -> Importer:
            check()
            return self.importer(entry, reading=True)

        return read_entry(store, importer, self.process.clock)

    def other_cluster(self, entry: BatchEntry, connection: BoundConnection) -> str:
        from publisher.sources.files.batch_entry import other_cluster

        return other_cluster(connection, entry)

    def retry(self, entry: BatchEntry, store: SourceStore) -> Retried:
        from publisher.sources.files.batch_entry import retry

        return retry(store, self.importer(entry, reading=True), entry.type, self.process.clock)

    def last_reading(self, connection: BoundConnection) -> LastReading:
        from publisher.sources.files.batch_entry import last_reading

        return last_reading(connection)

    def bad_lines(self, connection: BoundConnection, limit: int) -> Sequence[BadLine]:
        from publisher.sources.files.tables import bad_lines

        return bad_lines(connection, limit)

    def imported_from(self, entry: BatchEntry, job: JobRecord) -> ImportedFrom:
        from publisher.sources.files.read_files import path_of

        with closing(open_reader(store_path(self.settings.state))) as jobs, jobs.translated():
            file = path_of(jobs.bound_to(entry.name), job.row.record_id)
        return ImportedFrom(entry.type, self.importer(entry).record_key(job), file)
