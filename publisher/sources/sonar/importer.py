"""`import sonar`: what Sonar collected of a Slurm cluster into a local accounting database."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from publisher.model.errors import SourceError
from publisher.model.job import JobRecord
from publisher.model.text import plural
from publisher.sources.importers import BadLine, ImportReport, ImportRule, Watch, unwatched
from publisher.sources.importing.arc_jobs import ArcJobs
from publisher.sources.importing.database import ImportDatabase
from publisher.sources.importing.log_files import (
    ROTATION,
    SUFFIXES,
    Cursors,
    FileCursor,
    FilePosition,
    LogFile,
    ReadElsewhere,
    opened,
)
from publisher.sources.importing.site_mapping import begin_import
from publisher.sources.sonar.batch_reader import BatchReader, EnvelopeBatch
from publisher.sources.sonar.cluster import SAMPLE_TABLES as SAMPLE_TABLES
from publisher.sources.sonar.cluster import SYSTEM_TABLES as SYSTEM_TABLES
from publisher.sources.sonar.cluster import keep_node, keep_partitions, keep_samples
from publisher.sources.sonar.envelopes import EnvelopeReader
from publisher.sources.sonar.finalizer import Inconsistencies, JobFinalizer
from publisher.sources.sonar.site_mapping import NAME, Options, SonarMapping
from publisher.sources.sonar.store import TABLES as JOB_TABLES
from publisher.sources.sonar.store import due, hold_off_at_most, mark_changed, settle, store_observations, waiting

__all__ = ["Options", "SonarImporter", "create"]

log = logging.getLogger("publisher")

SUMMARY: Final = "import what Sonar collected on a Slurm cluster; reads only what is new"
PATHS: Final = "file, or the directory tree that holds YYYY/MM/DD/0+job-slurm.json"
# `cluzter` is how Sonar spells it. Old trees also hold CSV, and JSON without the 0+ in another form.
_BEGINNING: Final = re.compile(r"0\+(?:jobs?|clu[sz]ter|sysinfo|sample)-")
_WANTED: Final = re.compile(rf"{_BEGINNING.pattern}.*\.json{ROTATION}")
_SAMPLE: Final = re.compile(r"0\+sample-")
_ORPHANS: Final = ("job known only by its steps", "jobs known only by their steps")
_SETTLED_AT_ONCE: Final = 500
_SHOWN_ERRORS: Final = 10
_SHOWN_FILES: Final = 10
_RECENT_S: Final = 8 * 86_400  # longer ago, a file was surely read whole before it was removed


def create(options: object) -> SonarImporter:
    """Raises: ConfigError for a map file that cannot be read."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return SonarImporter(options)


@dataclass(slots=True, kw_only=True)
class _ImportRun:
    """One run of the importer."""

    accounting: ImportDatabase
    cursors: Cursors
    report: ImportReport
    now: int
    errors: Counter[str] = field(default_factory=Counter)
    unfinished: list[str] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)


class SonarImporter:
    """An `Importer`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._site = SonarMapping(options)
        self._batches = BatchReader(options)

    def run(self, paths: Sequence[Path], database: Path, now: datetime, watch: Watch = unwatched) -> ImportReport:
        report = ImportReport(importer=NAME, database=database, orphans_are=_ORPHANS, watch=watch)
        options = self._options
        with (
            closing(ImportDatabase(database, JOB_TABLES + SAMPLE_TABLES + SYSTEM_TABLES)) as accounting,
            closing(ArcJobs(options.arc_databases, options.arc_wait_s, database)) as arc,
        ):
            report.notes += begin_import(accounting, NAME, options.cluster, self._site.rules)
            run = _ImportRun(
                accounting=accounting,
                cursors=Cursors(accounting, NAME),
                report=report,
                now=int(now.timestamp()),
            )
            for path in paths:
                self._path(run, path)
            self._report_missing(run, [path for path in paths if path.is_dir()])
            doubts = self._settle(run, arc)
            self._finish(run, doubts)
        return report

    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        return self._site.explain(job)

    def _path(self, run: _ImportRun, path: Path) -> None:
        """A file of any name, or all files of a tree that Sonar names so."""
        before = run.report.files
        unread: list[Path] = []
        for each in self._tree(path, run.report.troubles, unread) if path.is_dir() else [path]:
            self._file(run, each)
            run.seen.add(each)
        if path.is_dir():
            self._report_unread(run, [each for each in unread if run.cursors.at_path(each) is None])
        if run.report.files == before:
            run.report.troubles.append(
                f"{path}: has no files called 0+job-slurm.json or the like; name the files themselves"
            )

    def _report_unread(self, run: _ImportRun, unread: Sequence[Path]) -> None:
        """Files that are called like Sonar's and are not read, unless they were imported by their own names."""
        if unread:
            shown = ", ".join(map(str, unread[:_SHOWN_FILES]))
            more = f" and {len(unread) - _SHOWN_FILES:,} more" if len(unread) > _SHOWN_FILES else ""
            run.report.notes.append(
                f"not read, because their names do not show what they are: {shown}{more}; if it is what Sonar wrote, "
                "import it by its own name"
            )

    def _report_missing(self, run: _ImportRun, trees: Sequence[Path]) -> None:
        """Files that are gone from the trees so soon that Sonar may have written into them after they were read last."""
        there = {_day_and_name(each) for each in run.seen}
        gone: list[Path] = []
        for cursor in run.cursors.all():
            path = Path(cursor.path)
            if path in run.seen or not any(tree in path.parents for tree in trees) or path.exists():
                continue
            with run.accounting.transaction():
                run.cursors.forget_path(cursor, path)
            if _day_and_name(path) not in there and run.now - _day(path) < _RECENT_S:
                gone.append(path)
        if gone:
            run.report.notes.append(
                f"{plural(len(gone), 'file is', 'files are')} gone that had been read the last time, and may have grown "
                f"since: {_shown(gone)}; where they were archived, import the archive too"
            )

    def _tree(self, path: Path, troubles: list[str], unread: list[Path]) -> Iterator[Path]:
        """In the order of days. A folder that cannot be searched is reported among the troubles."""

        def report_error(error: OSError) -> None:
            troubles.append(f"{error.filename}: {error.strerror or error}; let this user search it")

        entered: set[Path] = set()  # a link may lead back up
        for folder, folders, names in os.walk(path, onerror=report_error, followlinks=True):
            if (real := Path(folder).resolve()) in entered:
                folders.clear()
                continue
            entered.add(real)
            folders.sort()
            for name in sorted(name for name in names if self._options.samples or not _SAMPLE.match(name)):
                if _WANTED.fullmatch(name):
                    yield Path(folder, name)
                elif _BEGINNING.match(name):
                    unread.append(Path(folder, name))

    def _file(self, run: _ImportRun, path: Path) -> None:
        run.report.files += 1
        again = True
        while again:
            cursor = run.cursors.at_path(path)
            if cursor is not None and _untouched(path, cursor):
                return
            try:
                with opened(path) as file:
                    self._content(run, cursor, file)
                again = False
            except ReadElsewhere:
                log.debug("%s: another importer reads it too; going on from where it is", path)
            except SourceError as error:
                run.report.troubles.append(str(error))
                again = False

    def _content(self, run: _ImportRun, cursor: FileCursor | None, file: LogFile) -> None:
        if cursor is None:
            cursor = FileCursor(number=None, path=str(file.path), modified=file.modified, mark=file.mark(0))
        start = cursor.mark.consumed if file.fits(cursor.mark) else 0
        reader = EnvelopeReader(file, start)
        first = start == 0
        for batch, mark in self._batches.read(file.path, reader):
            if first and batch.foreign:
                raise SourceError(
                    f"{file.path}: is not a file of Sonar, or not in a form that is known; {batch.foreign}"
                )
            first = False
            cursor = self._write(run, cursor, file, batch, mark)
        if file.compressed and cursor.number is not None and cursor.modified != file.modified:
            with run.accounting.transaction():
                run.cursors.move(cursor, file, cursor.mark)
        if reader.unfinished:
            run.unfinished.append(f"{file.path} ({reader.unfinished:,} bytes)")

    def _write(
        self, run: _ImportRun, cursor: FileCursor, file: LogFile, batch: EnvelopeBatch, mark: FilePosition
    ) -> FileCursor:
        """What was read and how far, in one transaction. Raises: Overtaken."""
        connection = run.accounting.connection
        with run.accounting.transaction():
            # The size of a compressed file does not tell whether it was read to its end, should this process end here.
            moved = run.cursors.move(cursor, file, mark, more=file.compressed)
            duplicates = store_observations(connection, batch.records)
            mark_changed(connection, keep_samples(connection, batch.samples))
            for node in batch.nodes:
                keep_node(connection, node)
            for partitions in batch.partitions:
                keep_partitions(connection, partitions)
            bad: list[BadLine] = run.accounting.keep_bad_lines(NAME, batch.bad)
        report = run.report
        report.count_lines(batch.lines)
        report.duplicates += duplicates
        report.skipped.update(batch.skipped)
        report.count_bad(bad)
        run.errors.update(batch.errors)
        return moved

    def _settle(self, run: _ImportRun, arc: ArcJobs) -> Inconsistencies:
        """Make rows of all jobs of which something new was said, or whose hold-off is over."""
        connection, report = run.accounting.connection, run.report
        settling = JobFinalizer(connection, self._site, self._options, arc, run.now)
        with run.accounting.transaction():
            hold_off_at_most(connection, run.now + max(self._options.hold_off_s, arc.wait_s))
        more = True
        while more:
            with run.accounting.transaction():
                jobs = due(connection, run.now, _SETTLED_AT_ONCE)
                found = settling.verdicts(jobs)
                put = run.accounting.put(found.jobs, replace=True)
                run.accounting.take_back(found.taken_back)
                settle(connection, found.settled)
            report.imported += put.inserted
            report.updated += put.updated
            report.merged += found.steps
            report.skipped.update(found.skipped)
            more = bool(jobs)
        return settling.doubts

    def _finish(self, run: _ImportRun, doubts: Inconsistencies) -> None:
        """What the database holds in the end, and what to report."""
        report, accounting = run.report, run.accounting
        with accounting.transaction():
            unfinished = waiting(accounting.connection, run.now - self._options.overdue_after_s)
            report.notes += doubts.notes(accounting.connection, self._options)
        report.held, report.orphans = unfinished.jobs + unfinished.steps, unfinished.overdue_steps
        report.bad_kept = accounting.bad_lines(NAME)
        report.aborted = accounting.aborted()
        if unfinished.overdue_jobs:
            report.notes.append(
                f"{plural(unfinished.overdue_jobs, 'job was', 'jobs were')} seen waiting or running long ago, and never since: "
                "Sonar collects no "
                "jobs that ended by a failure of a node, preemption or requeueing; their usage is not known"
            )
        if run.unfinished:
            report.notes.append(
                f"{plural(len(run.unfinished), 'file ends', 'files end')} inside an envelope; the rest is read when it comes: "
                + ", ".join(run.unfinished[:3])
            )
        for error, count in run.errors.most_common(_SHOWN_ERRORS):
            report.notes.append(f"Sonar reported an error ({plural(count, 'time')}): {error}")
        if len(run.errors) > _SHOWN_ERRORS:
            report.notes.append(f"and {len(run.errors) - _SHOWN_ERRORS:,} other errors that Sonar reported")


def _shown(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files[:_SHOWN_FILES])) + (", ..." if len(files) > _SHOWN_FILES else "")


def _day_and_name(path: Path) -> tuple[str, ...]:
    """What stays the same when a file is compressed, or its tree archived: `2026/09/21` and `0+job-slurm`."""
    return (*path.parent.parts[-3:], path.name.partition(".json")[0])


def _day(path: Path) -> int:
    """When the day began into whose folder Sonar wrote the file, as epoch seconds; of another folder, far in the future."""
    try:
        year, month, day = map(int, path.parent.parts[-3:])
        return int(datetime(year, month, day, tzinfo=UTC).timestamp())
    except ValueError:
        return sys.maxsize


def _untouched(path: Path, cursor: FileCursor) -> bool:
    """Whether a file is as it was when it was read to its end; a tree has thousands, most of them of days long gone."""
    try:
        found = path.stat()
    except OSError:
        return False  # opening it tells the trouble
    whole = found.st_size == cursor.mark.consumed or path.suffix in SUFFIXES
    return whole and found.st_mtime == cursor.modified and cursor.mark.consumed > 0
