"""One run of an importer: what it needs, opened; and jobs of this batch system that an ARC CE publishes itself, looked up in
its accounting database.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from glob import glob
from pathlib import Path
from typing import Final

from publisher.model.errors import SourceError, UsageError
from publisher.sources.importers import BadLine, ImportedJob, ImportReport, StoredJobs, Watch
from publisher.sources.importing.database import ImportDatabase
from publisher.sources.importing.log_files import Cursors, DamagedArchive, LogFile, ReadElsewhere, opened
from publisher.sources.importing.site_mapping import SiteMapping
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile, check_readable

log = logging.getLogger("publisher")

# A file whose first lines are all bad is something else, and is left alone.
_SURELY_FOREIGN: Final = 20
# Numbers of the batch system come again after months or years; A-REX notices an end some minutes later, at times hours.
_APART_S: Final = 86_400
_AT_ONCE: Final = 500  # SQLite before 3.32 takes 999 parameters
_DAY_S: Final = 86_400

# The sign keeps SQLite from the index over InfoKey, by which it would look at all jobs.
_NO_OTHER_LRMS: Final = """
    AND NOT EXISTS (
        SELECT 1 FROM JobExtraInfo
        WHERE JobExtraInfo.RecordID = AAR.RecordID AND +InfoKey = 'lrms' AND InfoValue <> '' AND instr(lower(InfoValue), ?) = 0
    )
"""

Run = tuple[str, int, int]  # the batch system's number, start and end as epoch seconds


class ArcJobs:
    """The accounting databases of the CEs in front of one batch system; there may be none."""

    def __init__(self, databases: Sequence[Path], wait_s: int, own: Path, lrms: str) -> None:
        """`own` is the database that is imported into: what cannot be shared is copied beside it. With `lrms`, jobs of which
        A-REX names a batch system that is not called so do not count.

        Raises: UsageError when it is one of them, SourceError when one cannot be read.
        """
        if own.resolve() in {path.resolve() for path in databases}:
            raise UsageError(f"{own}: is the database to write, and in arc_databases too; name A-REX's own there")
        self.wait_s = wait_s if databases else 0
        self.watching = bool(databases)
        self._lrms = lrms
        self._copies = CopyDirectory(own.absolute().parent)
        self._files: list[ReadOnlyFile] = []
        try:
            for path in databases:
                check_arc_database(path)
                self._files.append(ReadOnlyFile(str(path), self._copies))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._copies.close()

    def may_still_come(self, ended_at: int, now: int) -> bool:
        """Whether a CE may not have written a job yet: it tells the batch system's number only when it has seen the end."""
        return self.watching and now - self.wait_s < ended_at <= now + _DAY_S

    def published(self, runs: Sequence[Run]) -> list[bool]:
        """Of each run, whether a CE has a job of that number which was there at that time. Raises: SourceError."""
        if not self.watching:
            return [False] * len(runs)
        numbers = sorted({number for number, _, _ in runs})
        spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for file in self._files:
            for start in range(0, len(numbers), _AT_ONCE):
                for number, submitted, ended in file.ask(
                    _spans(file.path, numbers[start : start + _AT_ONCE], self._lrms)
                ):
                    spans[number].append((submitted, ended))
        return [any(_overlap(span, start, end) for span in spans[number]) for number, start, end in runs]


def check_arc_database(path: Path) -> None:
    """Raises: SourceError when it cannot be read."""
    if not path.parent.exists() or (os.access(path.parent, os.X_OK) and not path.exists()):
        raise SourceError(
            f"{path}: there is no such file; correct arc_databases of the importer, or take it out if no ARC CE is there"
        )
    check_readable(str(path))


def _spans(path: str, numbers: Sequence[str], lrms: str) -> Callable[[sqlite3.Connection], list[Run]]:
    """A question: numbers, submissions and ends (0: not seen yet) of the jobs that have one of these numbers."""
    question = f"""
        SELECT LocalJobID, CAST(SubmitTime AS INTEGER), CAST(EndTime AS INTEGER) FROM AAR
        WHERE LocalJobID IN ({", ".join("?" * len(numbers))}) {_NO_OTHER_LRMS if lrms else ""}
    """
    asked = [*numbers, lrms] if lrms else numbers

    def ask(connection: sqlite3.Connection) -> list[Run]:
        try:
            return [(number, begun or 0, ended or 0) for number, begun, ended in connection.execute(question, asked)]
        except sqlite3.OperationalError as error:
            if "no such" not in str(error):
                raise
            raise SourceError(f"{path}: holds no accounting tables: {error}; correct arc_databases") from error

    return ask


def _overlap(span: tuple[int, int], started_at: int, ended_at: int) -> bool:
    """A CE has a job from before it is submitted to after its end; one that it has not seen the end of is still there."""
    submitted, ended = span
    return submitted - _APART_S <= started_at and (not ended or ended_at <= ended + _APART_S)


def _own_id(job: ImportedJob) -> Sequence[str]:
    return (job.local_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRun:
    """One run of an importer."""

    accounting: ImportDatabase
    cursors: Cursors
    report: ImportReport
    arc: ArcJobs
    now: int

    @contextmanager
    def trouble_reported(self) -> Iterator[None]:
        """One file's trouble stops no other."""
        try:
            yield
        except SourceError as error:
            self.report.troubles.append(str(error))
            if isinstance(error, DamagedArchive):
                self.report.damaged.append(str(error))

    def read(self, path: Path, content: Callable[[LogFile], None]) -> None:
        """Have a file read, again from where it is when another importer read on in it meanwhile."""
        self.report.files += 1
        again = True
        while again:
            again = False
            with self.trouble_reported(), opened(path) as file:
                try:
                    content(file)
                except ReadElsewhere:
                    log.debug("%s: another importer reads it too; going on from where it is", path)
                    again = True

    @contextmanager
    def step(self, *, bad: Sequence[BadLine], lines: int) -> Iterator[None]:
        """One transaction: what is done inside, and what could not be understood. Raises: what is raised inside."""
        with self.accounting.transaction():
            yield
            new = self.accounting.keep_bad_lines(self.report.importer, bad)
        self.report.count_lines(lines)
        self.report.count_bad(new)

    def store(
        self,
        jobs: Sequence[ImportedJob],
        *,
        file: int | None,
        replace: bool = False,
        arc_ids: Callable[[ImportedJob], Sequence[str]] = _own_id,
    ) -> StoredJobs:
        """Write the jobs that no ARC CE publishes, inside a transaction. Raises: SourceError when a CE cannot be asked.

        `arc_ids` are the numbers of the batch system that a CE may know a job by.
        """
        own = jobs
        if self.arc.watching:
            runs = [(name, job.started_at, job.ended_at) for job in jobs for name in arc_ids(job)]
            theirs = {run for run, claimed in zip(runs, self.arc.published(runs), strict=True) if claimed}
            own = [
                job for job in jobs if not any((name, job.started_at, job.ended_at) in theirs for name in arc_ids(job))
            ]
        stored = self.accounting.put(own, file=file, replace=replace)
        unchanged = len(own) - stored.inserted - stored.updated
        return stored._replace(unchanged=unchanged, claimed=len(jobs) - len(own))


@contextmanager
def import_run(site: SiteMapping, tables: str, database: Path, now: datetime, watch: Watch) -> Iterator[ImportRun]:
    """One run, open; in the end it reports what the database holds. Raises: as `Importer.run`."""
    name, options = site.importer, site.options
    report = ImportReport(importer=name, database=database, watch=watch)
    with (
        closing(ImportDatabase(database, tables)) as accounting,
        closing(ArcJobs(options.arc_databases or (), options.arc_wait_s, database, options.arc_lrms)) as arc,
    ):
        report.notes += site.begin_import(accounting)
        cursors = Cursors(accounting, name)
        yield ImportRun(accounting=accounting, cursors=cursors, report=report, arc=arc, now=int(now.timestamp()))
        report.bad_kept = accounting.bad_lines(name)
        report.aborted = accounting.aborted()


def to_read(paths: Sequence[Path], site: SiteMapping) -> list[Path]:
    """The paths, or what the configuration names. A pattern that matches nothing stays, and is reported when it is opened.

    Raises: UsageError when neither names anything.
    """
    if paths:
        return list(paths)
    if not site.options.reads:
        raise UsageError(f"name what to read: PATH here, or {site.place}.{site.options.reads_key} in the configuration")
    matching = [(pattern, sorted(glob(str(pattern)))) for pattern in site.options.reads]
    return [path for pattern, found in matching for path in (map(Path, found) if found else [pattern])]


def refuse_foreign(path: Path, kind: str, bad: Sequence[BadLine], pieces: int) -> None:
    """Raises: SourceError for a file of something else, judged by its first pieces."""
    if len(bad) == pieces >= _SURELY_FOREIGN:
        raise SourceError(f"{path}: is not {kind}, or not in a form that is known; its first line: {bad[0].reason}")
