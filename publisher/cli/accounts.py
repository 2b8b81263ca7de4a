"""The accounting data and the batch systems of a configuration, with the class behind each name.

A registry, as `site.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from publisher.config import Settings
from publisher.publishing.databases.batch_systems import delivered_since
from publisher.publishing.site import ProcessEnvironment
from publisher.sources import LRMS, READS_IMPORTED, importer_plugin, offered, source_plugin
from publisher.sources.base import BatchEntry, DatabaseEntry, JoinedEntry, Source

if TYPE_CHECKING:
    from publisher.ledger.contract import Ledgers
    from publisher.model.job import JobRecord
    from publisher.model.time import Month
    from publisher.sources.base import ImportedFrom, LastReading, Namesake, NewestJob, WritingOrder
    from publisher.sources.files.arc.batch_runs import BatchRuns
    from publisher.sources.importers import BadLine, Importer, ImportReport, ImportRule, Retried

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

    def read_as(self) -> str:
        options = self.settings.source, self.settings.batch_entries
        return sha256(repr(options).encode()).hexdigest()[:16]

    def open(self, *, lock_wait_s: float | None = None, to_publish: bool = False) -> Source:
        """Raises: SourceError."""
        source = self._databases(lock_wait_s)
        if (runs := self._batch_runs(lock_wait_s, to_publish=to_publish)) is None:
            return source
        from publisher.sources.files.arc.joined import JoinedSource

        return JoinedSource(
            source, runs, [str(entry.database) for entry in self.settings.batch_entries]
        )

    def _databases(self, lock_wait_s: float | None = None) -> Source:
        source = self.settings.source
        create = source_plugin(source.type).create
        return create(source.options, self.process.environment, lock_wait_s=lock_wait_s)

    def _batch_runs(
        self, lock_wait_s: float | None = None, *, to_publish: bool = False
    ) -> BatchRuns | None:
        """What is known of A-REX's jobs by the batch systems that CEs submit to."""
        if not (entries := self._joined_entries()):
            return None
        from publisher.sources.files.arc.batch_runs import BatchRuns

        return BatchRuns(entries, copies_of(self.process), lock_wait_s, remembers=to_publish)

    def _joined_entries(self) -> Sequence[JoinedEntry]:
        """The batch systems that CEs submit to: `arc_databases: []` says that none does."""
        return [
            JoinedEntry(entry.name, LRMS[entry.type], entry.database, entry.join_wait_s, ces)
            for entry in (self.settings.batch_entries if self.settings.written else ())
            if entry.in_rounds and (ces := entry.ces()) != frozenset()
        ]

    def writing_order(
        self, source: Source
    ) -> AbstractContextManager[Sequence[WritingOrder]] | None:
        opener = getattr(source_plugin(self.settings.source.type), "writing_order", None)
        return None if opener is None else opener(source, self.process.environment)

    def imported_from(self, job: JobRecord) -> ImportedFrom | None:
        from publisher.sources.files.read_files import origin_of

        return origin_of(job, self._databases(), copies_below=copies_of(self.process))

    def joined_from(self, job: JobRecord) -> Sequence[ImportRule]:
        if (runs := self._batch_runs()) is None:
            return ()
        from publisher.sources.files.arc.joined import rules_of

        with closing(runs), closing(self._databases()) as source:
            as_it_is = source.find(job.job_id, frozenset(), self.process.clock()).jobs
            of_ce = runs.of_ce(source.databases().get(job.row.database, job.row.database))
            return [rule for one in as_it_is if one.row == job.row for rule in rules_of(one, of_ce)]

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

    def read(self, entry: BatchEntry, check: Callable[[], object]) -> ImportReport | None:
        from publisher.sources.files.batch_entry import read_entry

        importer = partial(self.importer, entry, reading=True)
        return read_entry(entry, importer, self.process.clock, self.process.wait, check)

    def namesakes(self, entry: BatchEntry) -> Sequence[Namesake]:
        from publisher.sources.files.batch_entry import namesakes

        return namesakes(entry, copies_of(self.process))

    def last_reading(self, entry: BatchEntry) -> LastReading:
        from publisher.sources.files.batch_entry import last_reading

        return last_reading(entry.database, copies_of(self.process))

    def retry(self, entry: BatchEntry) -> Retried | None:
        from publisher.sources.files.batch_entry import retry

        return retry(
            entry, self.importer(entry, reading=True), self.process.clock, self.process.wait
        )

    def open(self, entry: BatchEntry) -> Source:
        plugin = source_plugin(READS_IMPORTED)
        return plugin.create(
            plugin.Options(imported=(str(entry.database),)), self.process.environment
        )

    def alone(self, entry: BatchEntry) -> AbstractContextManager[object]:
        from publisher.sources.files.batch_entry import alone

        return alone(entry.database, self.process.wait)

    def last_pruned(self, entry: BatchEntry) -> datetime | None:
        from publisher.sources.files.prune import last_pruned

        return last_pruned(entry.database)

    def keep_pruned(self, entry: BatchEntry) -> None:
        from publisher.sources.files.prune import keep_pruned

        keep_pruned(entry.database, self.process.clock())

    def prune_rows(self, entry: BatchEntry, jobs: Sequence[JobRecord]) -> int:
        from publisher.sources.files.prune import prune_rows

        return prune_rows(entry.database, jobs)

    def pruned_months(self, entry: BatchEntry) -> Sequence[Month]:
        from publisher.sources.files.prune import pruned_months

        return pruned_months(entry.database, copies_of(self.process))

    def bad_lines(self, entry: BatchEntry, limit: int) -> Sequence[BadLine]:
        from publisher.sources.files.batch_entry import bad_lines

        return bad_lines(entry.database, limit, copies_of(self.process))
