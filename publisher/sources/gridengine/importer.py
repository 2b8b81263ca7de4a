"""`import gridengine`: accounting files of every generation of Grid Engine into a local accounting database."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Final

from publisher.model.errors import SourceError
from publisher.model.job import JobRecord
from publisher.model.text import plural
from publisher.sources.gridengine.parallel_jobs import TABLES, ParallelRun, count_waiting, is_parallel, merge
from publisher.sources.gridengine.records import GridEngineRecord, read_line
from publisher.sources.gridengine.site_mapping import GridEngineMapping, Options
from publisher.sources.importers import BadLine, ImportedJob, ImportReport, ImportRule, Watch, unwatched
from publisher.sources.importing.arc_jobs import PUBLISHED, ArcJobs
from publisher.sources.importing.database import ImportDatabase
from publisher.sources.importing.log_files import (
    DIGEST_BYTES,
    KEPT_BYTES,
    MARK_BYTES,
    Cursors,
    FileCursor,
    LogFile,
    LogLine,
    ReadElsewhere,
    in_directory,
    opened,
    rotated_siblings,
)
from publisher.sources.importing.site_mapping import begin_import

__all__ = ["GridEngineImporter", "Options", "create"]

log = logging.getLogger("publisher")

SUMMARY: Final = "import accounting files of Grid Engine, plain or compressed; reads only what is new"
PATHS: Final = "accounting file, or the directory that holds it"
_NAME: Final = "gridengine"
_FILES: Final = ("accounting", "accounting.jsonl")
# In one transaction; more at once are slower (docs/performance.md).
_BATCH_LINES: Final = 500
_SECOND: Final = 1_000_000  # µs
# A file whose first lines are all bad is something else, and is left alone.
_SURELY_FOREIGN: Final = 20


def create(options: object) -> GridEngineImporter:
    """Raises: ConfigError for a map file that cannot be read."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return GridEngineImporter(options)


@dataclass(slots=True, kw_only=True)
class _ParsedLines:
    """What some lines hold."""

    end: int
    serial: list[GridEngineRecord] = field(default_factory=list)
    parallel: list[GridEngineRecord] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    records: int = 0
    stopped: bool = False  # what follows is for a later import

    def add(self, record: GridEngineRecord, skipped: str) -> None:
        if skipped:
            self.skipped.append(skipped)
        elif is_parallel(record):
            self.parallel.append(record)
        else:
            self.serial.append(record)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Import:
    """One run of the importer."""

    accounting: ImportDatabase
    cursors: Cursors
    report: ImportReport
    arc: ArcJobs
    now: int
    # Of contents, by the number of their cursor: the files in which each was found, and where those stood that may be missing.
    found: dict[int | None, set[Path]] = field(default_factory=lambda: defaultdict(set))
    missing: list[tuple[Path, FileCursor]] = field(default_factory=list)

    def unclaimed(self, jobs: list[ImportedJob]) -> list[ImportedJob]:
        """Those that no ARC CE publishes."""
        if not self.arc.watching:
            return jobs
        claimed = self.arc.published([(job.local_id, job.started_at, job.ended_at) for job in jobs])
        return [job for job, theirs in zip(jobs, claimed, strict=True) if not theirs]


class GridEngineImporter:
    """An `Importer`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._site = GridEngineMapping(options)

    def run(self, paths: Sequence[Path], database: Path, now: datetime, watch: Watch = unwatched) -> ImportReport:
        report = ImportReport(importer=_NAME, database=database, watch=watch)
        options = self._options
        with (
            closing(ImportDatabase(database, TABLES)) as accounting,
            closing(ArcJobs(options.arc_databases, options.arc_wait_s, database)) as arc,
        ):
            report.notes += begin_import(accounting, _NAME, options.cluster, self._site.rules)
            run = _Import(
                accounting=accounting,
                cursors=Cursors(accounting, _NAME),
                report=report,
                arc=arc,
                now=int(now.timestamp()),
            )
            for path in paths:
                self._path(run, path)
            self._report_missing(run)
            overdue = run.now - options.orphans_after_s
            with accounting.transaction():
                report.held, report.orphans = count_waiting(accounting.connection, overdue)
            report.bad_kept = accounting.bad_lines(_NAME)
            report.aborted = accounting.aborted()
        if report.incomplete:
            report.notes.append(
                f"{plural(report.incomplete, 'record')} (failed 37) written without the host's figures: "
                "their CPU time is what rusage reports, which may be too little"
            )
        return report

    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        return self._site.explain(job)

    def _path(self, run: _Import, path: Path) -> None:
        """A file, after what rotation made of it since the last time; or the files of a directory."""
        with _trouble_reported(run.report):
            if path.is_dir():
                self._directory(run, path)
            else:
                self._rotated(run, path)
                self._file(run, path)

    def _directory(self, run: _Import, path: Path) -> None:
        """Its files, looked for until no more appear: rotation may rename one at any moment. Raises: SourceError."""
        troubles = len(run.report.troubles)
        done: set[tuple[int, int]] = set()
        listing = in_directory(path, _FILES)
        while new := {each: identity for each, identity in listing.files.items() if identity not in done}:
            done.update(new.values())
            for each in new:
                with _trouble_reported(run.report):
                    self._file(run, each)
            listing = in_directory(path, _FILES)
        self._report_others(run, listing.others)
        if len(run.report.troubles) > troubles:
            return  # what is in trouble is looked for again the next time
        for live in (path / name for name in _FILES):
            before = run.cursors.left_behind(live)
            run.missing.extend((live, cursor) for cursor in before if live not in run.found[cursor.number])

    def _report_others(self, run: _Import, others: Sequence[Path]) -> None:
        """Files that are called like accounting and are not read, unless they were imported by their own names."""
        unread = [each.name for each in others if not run.cursors.left_behind(each)]
        if unread:
            run.report.notes.append(
                f"{others[0].parent}: not read, because its name does not show what it is: {', '.join(unread)}; "
                "if it is accounting of this cluster, import it by its own name"
            )

    def _report_missing(self, run: _Import) -> None:
        """Contents that are no longer under their names, and in none of the files that were read."""
        for path, cursor in run.missing:
            if not run.found[cursor.number]:
                run.report.notes.append(
                    f"{path}: is another file than the last time, and that one is not beside it; "
                    "where it was archived, import the archive too"
                )
            with run.accounting.transaction():
                run.cursors.forget_path(cursor, path)

    def _rotated(self, run: _Import, path: Path) -> None:
        """Finish what stood under this name the last time; what is in trouble is looked for again the next time."""
        before = run.cursors.left_behind(path)
        if not before:
            return
        with opened(path) as file:
            gone = [cursor for cursor in before if not file.fits(cursor.mark)]
        # So few bytes may be those with which the qmaster begins every file.
        unsure = [cursor for cursor in before if cursor.mark.consumed < MARK_BYTES]
        if gone or unsure:
            self._siblings(run, path, gone, min(cursor.modified for cursor in (*gone, *unsure)))

    def _siblings(self, run: _Import, path: Path, gone: Sequence[FileCursor], since: float) -> None:
        """What rotation made of a file whose contents are no longer under its name."""
        troubles = len(run.report.troubles)
        for sibling in rotated_siblings(path, since):
            with _trouble_reported(run.report):
                self._file(run, sibling)
        if len(run.report.troubles) == troubles:
            run.missing.extend((path, cursor) for cursor in gone)

    def _file(self, run: _Import, path: Path) -> None:
        run.report.files += 1
        again = True
        while again:
            with opened(path) as file:
                try:
                    self._content(run, file)
                    again = False
                except ReadElsewhere:
                    log.debug("%s: another importer reads it too; going on from where it is", path)

    def _content(self, run: _Import, file: LogFile) -> None:
        fitting = run.cursors.fitting(file)
        for each in fitting:
            run.found[each.number].add(file.path)
        cursor = fitting[0] if fitting else run.cursors.beginning(file)
        lines = file.lines(cursor.mark.consumed)
        first = cursor.mark.consumed == 0
        while chunk := list(islice(lines, _BATCH_LINES)):
            batch = self._read(run, file.path, chunk)
            if first and len(batch.bad) >= _SURELY_FOREIGN and len(batch.bad) == batch.records:
                raise SourceError(
                    f"{file.path}: is not an accounting file of Grid Engine, or not in a form that is known; its first line: "
                    f"{batch.bad[0].reason}"
                )
            first = False
            if batch.end > cursor.mark.consumed:
                cursor = self._write(run, cursor, file, batch)
                run.found[cursor.number].add(file.path)
            if batch.stopped:
                run.report.notes.append(
                    f"{file.path}: from byte {batch.end:,} on is for a later import: the job there ended not long ago, and "
                    "an ARC CE may still claim it (arc_wait_s)"
                )
                return

    def _read(self, run: _Import, path: Path, lines: Sequence[LogLine]) -> _ParsedLines:
        batch = _ParsedLines(end=lines[-1].end)
        watching, unit, skips = run.arc.watching, self._options.time_unit, self._site.skips
        for line in lines:
            content = line.content
            if not content.strip() or content.startswith(b"#"):
                continue
            batch.records += 1
            if len(content) != line.length:
                batch.bad.append(_bad(path, line, f"{line.length} bytes long, too long for a record"))
                continue
            records, wrong = read_line(content, unit)
            if watching and any(run.arc.may_still_come(record.ended_us // _SECOND, run.now) for record in records):
                batch.records -= 1
                batch.end, batch.stopped = line.offset, True
                break
            if wrong:
                batch.bad.append(_bad(path, line, wrong))
            for record in records:
                batch.add(record, skips(record))
        return batch

    def _write(self, run: _Import, cursor: FileCursor, file: LogFile, batch: _ParsedLines) -> FileCursor:
        """What was read and how far, in one transaction. Raises: Overtaken, SourceError when a CE's database is unreadable."""
        accounting, report = run.accounting, run.report
        with accounting.transaction():
            mark = file.mark_before(batch.end) if batch.stopped else file.mark(batch.end)
            moved = run.cursors.move(cursor, file, mark)
            own = run.unclaimed([self._site.job(ParallelRun(master=record, tasks=())) for record in batch.serial])
            serial = accounting.put(own, file=moved.number)
            merged = merge(accounting.connection, batch.parallel)
            tight = run.unclaimed([self._site.job(each) for each in merged.runs])
            parallel = accounting.put(tight, replace=True, file=moved.number)
            bad = accounting.keep_bad_lines(_NAME, batch.bad)
        claimed = len(batch.serial) - len(own) + len(merged.runs) - len(tight)
        if claimed:
            report.skipped[PUBLISHED] += claimed
        report.count_lines(batch.records)
        report.incomplete += sum(record.cpu_incomplete for record in (*batch.serial, *batch.parallel))
        report.imported += serial.inserted + parallel.inserted
        report.updated += serial.updated + parallel.updated
        report.merged += merged.merged
        report.duplicates += len(own) - serial.inserted - serial.updated + merged.duplicates
        report.skipped.update(batch.skipped)
        report.count_bad(bad)
        return moved


@contextmanager
def _trouble_reported(report: ImportReport) -> Iterator[None]:
    """One file's trouble stops no other."""
    try:
        yield
    except SourceError as error:
        report.troubles.append(str(error))


def _bad(path: Path, line: LogLine, reason: str) -> BadLine:
    return BadLine(
        path=str(path),
        offset=line.offset,
        length=line.length,
        reason=reason,
        line=line.content[:KEPT_BYTES],
        digest=line.digest or blake2b(line.content, digest_size=DIGEST_BYTES).digest(),
    )
