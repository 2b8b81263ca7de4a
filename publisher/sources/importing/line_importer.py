"""Accounting files with a record on each line, which grow and are rotated: read from where reading stopped.

A batch system brings how a line becomes records and records become jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar

from publisher.model.job import JobRecord
from publisher.sources.importers import BadLine, ImportReport, ImportRule, StoredJobs, Watch, unwatched
from publisher.sources.importing.log_files import (
    MARK_BYTES,
    FileCursor,
    LogFile,
    LogLine,
    in_directory,
    opened,
    rotated_siblings,
)
from publisher.sources.importing.run import ImportRun, import_run, refuse_foreign
from publisher.sources.importing.site_mapping import SiteMapping

# In one transaction; more at once are slower (docs/performance.md).
_BATCH_LINES: Final = 500

Record = TypeVar("Record")


class LineImporter(ABC, Generic[Record]):
    """An `Importer`."""

    files: ClassVar[Sequence[str]]  # names of the files in a directory
    kind: ClassVar[str]  # what such a file is, for people
    tables: ClassVar[str] = ""  # statements for what is kept beside the jobs

    def __init__(self, site: SiteMapping) -> None:
        self.site = site

    @abstractmethod
    def read(self, line: bytes) -> tuple[Sequence[Record], str]:
        """The records of a line, and what is wrong with it or ''."""

    @abstractmethod
    def ended_at(self, record: Record) -> int:
        """Epoch seconds."""

    @abstractmethod
    def skips(self, record: Record) -> str:
        """Why a record is not usage, or ''."""

    @abstractmethod
    def store(self, run: ImportRun, records: Sequence[Record], file: int | None) -> Sequence[StoredJobs]:
        """Make jobs of records and write them, inside a transaction."""

    @abstractmethod
    def finish(self, run: ImportRun) -> None:
        """Report what waits, and what an administrator must know."""

    def run(self, paths: Sequence[Path], database: Path, now: datetime, watch: Watch = unwatched) -> ImportReport:
        with import_run(self.site, self.tables, database, now, watch) as run:
            reading = _Reading(self, run)
            for path in paths:
                with run.trouble_reported():
                    reading.path(path)
            reading.report_missing()
            self.finish(run)
        return run.report

    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        return self.site.explain(job)


@dataclass(slots=True, kw_only=True)
class _ParsedLines(Generic[Record]):
    """What some lines hold."""

    end: int
    usage: list[Record] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    lines: int = 0
    stopped: bool = False  # what follows is for a later import


class _Reading(Generic[Record]):
    """Reads the files of one run."""

    def __init__(self, importer: LineImporter[Record], run: ImportRun) -> None:
        self._importer = importer
        self._run = run
        self._found: dict[int | None, set[Path]] = defaultdict(
            set
        )  # files of each content, by the number of its cursor
        self._missing: list[tuple[Path, FileCursor]] = []  # contents that may be gone, and where they stood

    def path(self, path: Path) -> None:
        """A file, after what rotation made of it since the last time; or the files of a directory. Raises: SourceError."""
        if path.is_dir():
            self._directory(path)
        else:
            self._rotated(path)
            self._run.read(path, self._content)

    def report_missing(self) -> None:
        """Contents that are no longer under their names, and in none of the files that were read."""
        run = self._run
        for path, cursor in self._missing:
            if not self._found[cursor.number]:
                run.report.notes.append(
                    f"{path}: is another file than the last time, and that one is not beside it; "
                    "where it was archived, import the archive too"
                )
            with run.accounting.transaction():
                run.cursors.forget_path(cursor, path)

    def _directory(self, path: Path) -> None:
        """Its files, looked for until no more appear: rotation may rename one at any moment. Raises: SourceError."""
        run, names = self._run, self._importer.files
        troubles = len(run.report.troubles)
        done: set[tuple[int, int]] = set()
        listing = in_directory(path, names)
        while new := {each: identity for each, identity in listing.files.items() if identity not in done}:
            done.update(new.values())
            for each in new:
                run.read(each, self._content)
            listing = in_directory(path, names)
        self._report_others(listing.others)
        if len(run.report.troubles) > troubles:
            return  # what is in trouble is looked for again the next time
        for live in (path / name for name in names):
            before = run.cursors.left_behind(live)
            self._missing.extend((live, cursor) for cursor in before if live not in self._found[cursor.number])

    def _report_others(self, others: Sequence[Path]) -> None:
        """Files that are called like accounting and are not read, unless they were imported by their own names."""
        unread = [each.name for each in others if not self._run.cursors.left_behind(each)]
        if unread:
            self._run.report.notes.append(
                f"{others[0].parent}: not read, because its name does not show what it is: {', '.join(unread)}; "
                "if it is accounting of this cluster, import it by its own name"
            )

    def _rotated(self, path: Path) -> None:
        """Finish what stood under this name the last time; what is in trouble is looked for again the next time."""
        before = self._run.cursors.left_behind(path)
        if not before:
            return
        with opened(path) as file:
            gone = [cursor for cursor in before if not file.fits(cursor.mark)]
        # So few bytes may be those with which the batch system begins every file.
        unsure = [cursor for cursor in before if cursor.mark.consumed < MARK_BYTES]
        if gone or unsure:
            self._siblings(path, gone, min(cursor.modified for cursor in (*gone, *unsure)))

    def _siblings(self, path: Path, gone: Sequence[FileCursor], since: float) -> None:
        """What rotation made of a file whose contents are no longer under its name."""
        troubles = self._run.report.troubles
        before = len(troubles)
        for sibling in rotated_siblings(path, since):
            self._run.read(sibling, self._content)
        if len(troubles) == before:
            self._missing.extend((path, cursor) for cursor in gone)

    def _content(self, file: LogFile) -> None:
        """Raises: ReadElsewhere, SourceError."""
        cursors, report = self._run.cursors, self._run.report
        fitting = cursors.fitting(file)
        for each in fitting:
            self._found[each.number].add(file.path)
        cursor = fitting[0] if fitting else cursors.beginning(file)
        lines = file.lines(cursor.mark.consumed)
        first = cursor.mark.consumed == 0
        while chunk := list(islice(lines, _BATCH_LINES)):
            batch = self._parsed(file.path, chunk)
            if first:
                refuse_foreign(file.path, self._importer.kind, batch.bad, batch.lines)
            first = False
            if batch.end > cursor.mark.consumed:
                cursor = self._write(cursor, file, batch)
                self._found[cursor.number].add(file.path)
            if batch.stopped:
                report.notes.append(
                    f"{file.path}: from byte {batch.end:,} on is for a later import: the job there ended not long ago, and "
                    "an ARC CE may still claim it (arc_wait_s)"
                )
                return

    def _parsed(self, path: Path, lines: Sequence[LogLine]) -> _ParsedLines[Record]:
        batch: _ParsedLines[Record] = _ParsedLines(end=lines[-1].end)
        read, skips, watching = self._importer.read, self._importer.skips, self._run.arc.watching
        for line in lines:
            content = line.content
            if not content.strip() or content.startswith(b"#"):
                continue
            records: Sequence[Record] = ()
            wrong = f"{line.length} bytes long, too long for a record"
            if len(content) == line.length:
                records, wrong = read(content)
            if watching and self._is_too_early(records):
                batch.end, batch.stopped = line.offset, True
                break
            batch.lines += 1
            if wrong:
                batch.bad.append(BadLine.of(path, line.offset, line.length, wrong, content, line.digest))
            for record in records:
                reason = skips(record)
                if reason:
                    batch.skipped.append(reason)
                else:
                    batch.usage.append(record)
        return batch

    def _is_too_early(self, records: Sequence[Record]) -> bool:
        """Whether a CE may yet claim one of them."""
        arc, now = self._run.arc, self._run.now
        return any(arc.may_still_come(self._importer.ended_at(record), now) for record in records)

    def _write(self, cursor: FileCursor, file: LogFile, batch: _ParsedLines[Record]) -> FileCursor:
        """What was read and how far. Raises: ReadElsewhere, SourceError when a CE's database is unreadable."""
        run = self._run
        mark = file.mark_before(batch.end) if batch.stopped else file.mark(batch.end)
        with run.step(cursor, file, mark, bad=batch.bad, lines=batch.lines) as moved:
            stored = self._importer.store(run, batch.usage, moved.number)
        for each in stored:
            run.report.count_jobs(each)
        run.report.skipped.update(batch.skipped)
        return moved
