"""The accounting data and the batch systems of a configuration, with the class behind each name.

A registry, as `site.py`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from publisher.config import Settings
from publisher.jobs.file import store_path
from publisher.jobs.store import open_reader
from publisher.model.errors import SourceError
from publisher.publishing.site import ProcessEnvironment
from publisher.sources import LRMS, OF_CES, importer_plugin, offered, source_plugin
from publisher.sources.base import (
    BatchEntry,
    DatabaseEntry,
    ImportedFrom,
    Source,
    ce_of,
    is_of_ce,
)

if TYPE_CHECKING:
    from publisher.jobs.batch import SourceJobs
    from publisher.jobs.link import Linking
    from publisher.jobs.reader import StoreReader
    from publisher.jobs.store import JobStore
    from publisher.jobs.tables.systems import LinkedSystem
    from publisher.model.job import JobRecord
    from publisher.sources.base import LastReading, WritingOrder
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

    def open(self, *, lock_wait_s: float | None = None) -> Source:
        """Raises: SourceError."""
        source = self.settings.source
        create = source_plugin(source.type).create
        return create(source.options, self.process.environment, lock_wait_s=lock_wait_s)

    def writing_order(
        self, source: Source
    ) -> AbstractContextManager[Sequence[WritingOrder]] | None:
        opener = getattr(source_plugin(self.settings.source.type), "writing_order", None)
        return None if opener is None else opener(source, self.process.environment)

    def joined_from(self, job: JobRecord) -> Sequence[ImportRule]:
        from publisher.jobs.tables.joined import origins
        from publisher.sources.importers import ImportRule

        systems = LiveCes(self.settings, self.process, self).systems()
        with closing(open_reader(store_path(self.settings.state))) as jobs:
            return [ImportRule(*one) for one in origins(jobs, systems, job)]

    def files(self, entry: DatabaseEntry) -> Sequence[str]:
        ask: Callable[..., Sequence[str]] = offered(entry.type, "database_paths", "status")
        return ask(entry.options, self.process.environment)

    def names(self, entry: DatabaseEntry, file: str) -> bool:
        return bool(offered(entry.type, "names", "import")(entry.options, file))

    def open_file(self, path: str) -> Source:
        source = self.settings.source
        only: Callable[..., object] = offered(source.type, "only_database", "source retire")
        return source_plugin(source.type).create(
            only(source.options, path), self.process.environment
        )


class LiveCes:
    """`Ces` of a configuration."""

    def __init__(
        self, settings: Settings, process: ProcessEnvironment, accounting: LiveAccounting
    ) -> None:
        self.settings = settings
        self.process = process
        self.accounting = accounting

    def systems(self) -> Sequence[LinkedSystem]:
        """Return all batch systems, each with the CEs that submit to it."""
        return list(map(self._system, self.settings.batch_entries))

    def part(self, store: JobStore, entry: BatchEntry) -> SourceJobs:
        from publisher.jobs.batch import SourceJobs

        tables = getattr(importer_plugin(entry.type), "TABLES", "")
        return SourceJobs(store, entry.name, tables, has_ces=self.has_ces(entry))

    def linking(self, store: JobStore, now: int, others: StoreReader | None) -> Linking | None:
        if not (systems := self.systems()):
            return None
        from publisher.jobs.link import Linking

        return Linking(store, systems, now, others)

    @property
    def has_others(self) -> bool:
        return bool(self._others())

    def others(self) -> Source:
        """Raises: SourceError."""
        from publisher.sources.sqlite_reader import check_arc_database

        paths = self._others()
        for path in paths:
            check_arc_database(path)
        plugin = source_plugin(OF_CES)
        options = plugin.Options(databases=tuple(glob.escape(str(path)) for path in paths))
        return plugin.create(options, self.process.environment)

    def _others(self) -> Sequence[Path]:
        """Return the databases that a batch system names and no entry of A-REX does."""
        named: list[Path] = []
        for entry in self.settings.batch_entries:
            options: Any = entry.options
            named += options.arc_databases or ()
        distinct = {os.path.realpath(path): path for path in named}
        return [
            path
            for real, path in distinct.items()
            if not (self._is_source(real) or self._is_source(str(path)))
        ]

    def _is_source(self, file: str) -> bool:
        return any(self.accounting.names(each, file) for each in self.accounting.entries)

    def has_ces(self, entry: BatchEntry) -> bool:
        """Return whether any CE submits to a batch system; none does with `arc_databases: []`."""
        ces = entry.ces()
        return entry.in_rounds and bool(self.settings.written) if ces is None else bool(ces)

    def _system(self, entry: BatchEntry) -> LinkedSystem:
        from publisher.jobs.tables.systems import LinkedSystem

        options: Any = entry.options
        if not self.has_ces(entry):
            return LinkedSystem(entry.name, LRMS[entry.type])
        databases, trouble = self._databases(options.arc_databases)
        return LinkedSystem(
            name=entry.name,
            lrms=LRMS[entry.type],
            databases=databases,
            trouble=trouble,
            ce_of=lru_cache(maxsize=1_000)(partial(self._ce_of, entry.ces())),
            wait_s=options.arc_wait_s,
            outage_s=options.arc_outage_s,
            join_wait_s=entry.join_wait_s,
        )

    def _databases(self, named: Sequence[Path] | None) -> tuple[frozenset[str] | None, str]:
        """Return the names under which databases of CEs are loaded, by default all of A-REX's.

        Or None, and why these cannot be listed.
        """
        found: dict[str, str] = {}
        missing: list[str] = []
        for each in self.accounting.entries:
            try:
                files = self.accounting.files(each)
                found = {os.path.realpath(file): file for file in files} | found
            except SourceError as error:
                missing.append(str(error))
        if named is not None:
            # Batch systems may name one database by different paths; it is loaded by one of them.
            names = {os.path.realpath(path): str(path) for path in self._others()} | found
            return frozenset(names.get(os.path.realpath(path), str(path)) for path in named), ""
        return (None, "; ".join(missing)) if missing else (frozenset(found.values()), "")

    def _ce_of(self, ces: frozenset[Path] | None, name: str) -> str | None:
        """Return the CE of a source; None where it submits to other batch systems alone.

        Also None of a batch system, whose name is no path.
        """
        if not os.path.isabs(name):
            return None
        if ces is not None and is_of_ce(name, ces):
            return ce_of(name)
        is_source = self._is_source(name)
        named = (entry.ces() for entry in self.settings.batch_entries)
        is_others = any(is_of_ce(name, each) for each in named if each)
        # Without `arc_databases` all entries of A-REX submit to it.
        is_known = is_others and not is_source if ces is None else is_others or is_source
        return None if is_known else ce_of(name)


class LiveBatchSystems(NamedTuple):
    """`BatchSystems` of a configuration."""

    settings: Settings
    process: ProcessEnvironment

    @property
    def entries(self) -> Sequence[BatchEntry]:
        return self.settings.batch_entries

    def importer(self, entry: BatchEntry) -> Importer:
        """Raises: ConfigError for an unreadable map file."""
        surroundings = self.process.environment, self.process.wait
        return importer_plugin(entry.type).create(entry.options, *surroundings)

    def read(
        self, entry: BatchEntry, store: SourceStore, check: Callable[[], object]
    ) -> ImportReport:
        from publisher.sources.files.batch_entry import read_entry

        def importer() -> Importer:
            check()
            return self.importer(entry)

        return read_entry(store, importer, self.process.clock)

    def other_cluster(self, entry: BatchEntry, connection: BoundConnection) -> str:
        from publisher.sources.files.batch_entry import other_cluster

        return other_cluster(connection, entry)

    def retry(self, entry: BatchEntry, store: SourceStore) -> Retried:
        from publisher.sources.files.batch_entry import retry

        return retry(store, self.importer(entry), entry.type, self.process.clock)

    def last_reading(self, connection: BoundConnection) -> LastReading:
        from publisher.sources.files.tables import last_reading

        return last_reading(connection)

    def bad_lines(self, connection: BoundConnection, limit: int) -> Sequence[BadLine]:
        from publisher.sources.files.tables import bad_lines

        return bad_lines(connection, limit)

    def imported_from(self, entry: BatchEntry, job: JobRecord) -> ImportedFrom:
        from publisher.sources.files.read_files import path_of

        with closing(open_reader(store_path(self.settings.state))) as jobs, jobs.translated():
            file = path_of(jobs.bound_to(entry.name), job.row.record_id)
        return ImportedFrom(entry.type, self.importer(entry).record_key(job), file)
