"""One run of an importer: what it needs, opened, and where the jobs go that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from glob import glob
from pathlib import Path
from typing import Final

from publisher.model.errors import SourceError, UsageError, refused_by_system
from publisher.model.job import JobRecord
from publisher.sources.files.log_files import DamagedArchive, LogFile, MissingFile, opened
from publisher.sources.files.read_files import Cursors
from publisher.sources.files.site_mapping import SiteMapping
from publisher.sources.files.tables import SourceTables, count_bad_lines
from publisher.sources.importers import (
    BadLine,
    ImportReport,
    Numbers,
    SourceStore,
    StoredJobs,
    Watch,
)

# A file whose first lines are all bad is something else, and is left alone.
_SURELY_FOREIGN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRun:
    """One run of an importer."""

    accounting: SourceTables
    cursors: Cursors
    report: ImportReport
    now: int

    @contextmanager
    def trouble_reported(self, *, missing_ok: bool = False) -> Iterator[None]:
        """One file's trouble stops no other. Raises: MissingFile if `missing_ok`."""
        try:
            yield
        except SourceError as error:
            if missing_ok and isinstance(error, MissingFile):
                raise
            self.report.troubles.append(str(error))
            if isinstance(error, DamagedArchive):
                self.report.damaged.append(str(error))
        except OSError as error:
            why = refused_by_system(error, "let this user read it, and import again")
            trouble = f"{error.filename}: {why}" if error.filename else why
            self.report.troubles.append(trouble)

    def read(
        self, path: Path, content: Callable[[LogFile], None], *, missing_ok: bool = False
    ) -> bool:
        """Have a file read; return whether it is there.

        That it is not is a trouble unless `missing_ok`.
        """
        self.report.files += 1
        try:
            with self.trouble_reported(missing_ok=missing_ok), opened(path) as file:
                content(file)
        except MissingFile:
            self.report.files -= 1
            return False
        return True

    @contextmanager
    def step(self, *, bad: Sequence[BadLine], lines: int) -> Iterator[None]:
        """One transaction: what is done inside, and what could not be understood.

        Raises: what is raised inside.
        """
        with self.accounting.transaction():
            yield
            new = self.accounting.keep_bad_lines(bad)
        self.report.count_lines(lines)
        self.report.count_bad(new)

    def store(
        self,
        jobs: Sequence[JobRecord],
        *,
        file: int | None,
        replace: bool = False,
        numbers: Numbers | None = None,
    ) -> StoredJobs:
        """Store runs, inside a transaction; `numbers` are those by which a CE may know a run."""
        if not jobs:
            return StoredJobs(0, 0)
        self.accounting.note_jobs()
        store = self.accounting.store
        inserted, updated, hidden = store.put(jobs, file=file, replace=replace, numbers=numbers)
        if inserted or hidden:
            self.report.cancelled += sum(job.status == "aborted" for job in jobs)
        unchanged = len(jobs) - inserted - updated - hidden
        return StoredJobs(inserted, updated, unchanged, hidden)


@contextmanager
def import_run(
    site: SiteMapping, store: SourceStore, now: datetime, watch: Watch
) -> Iterator[ImportRun]:
    """One run, open; in the end it reports what the source has. Raises: as `Importer.run`."""
    report = ImportReport(importer=site.importer, database=store.path, watch=watch)
    accounting = SourceTables(store)
    report.notes += site.begin_import(accounting)
    yield ImportRun(
        accounting=accounting,
        cursors=Cursors(accounting.connection),
        report=report,
        now=int(now.timestamp()),
    )
    report.bad_kept = count_bad_lines(accounting.connection)


def to_read(paths: Sequence[Path], site: SiteMapping) -> list[Path]:
    """The paths, or what the configuration names.

    A pattern that matches nothing stays, and is reported when it is opened. Raises: UsageError when
    neither names anything.
    """
    if paths:
        return list(paths)
    if not site.options.reads:
        key = f"{site.place}.{site.options.reads_key}"
        raise UsageError(f"name what to read: PATH here, or {key} in the configuration")
    patterns = map(str, site.options.reads)
    return [Path(path) for pattern in patterns for path in sorted(glob(pattern)) or [pattern]]


def refuse_foreign(path: Path, kind: str, bad: Sequence[BadLine], pieces: int) -> None:
    """Raises: SourceError for a file of something else, judged by its first pieces."""
    if len(bad) == pieces >= _SURELY_FOREIGN:
        what = f"is not {kind}, or not in a form that is known"
        raise SourceError(f"{path}: {what}; its first line: {bad[0].reason}")
