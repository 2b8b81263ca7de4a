"""`import gridengine`: accounting files of every generation of Grid Engine into a local accounting database."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Final

from publisher.errors import SourceError, UsageError
from publisher.importers.accounting_database import AccountingDatabase
from publisher.importers.base import BadLine, ImportReport
from publisher.importers.cursors import Cursors, FileCursor, Overtaken
from publisher.importers.gridengine_lines import read_line
from publisher.importers.gridengine_parallel import TABLES, Run, held, is_parallel, merge
from publisher.importers.gridengine_record import Accounted
from publisher.importers.gridengine_site import Options, SiteMapping
from publisher.importers.log_files import (
    DIGEST_BYTES,
    KEPT_BYTES,
    Line,
    LogFile,
    in_directory,
    opened,
    rotated_siblings,
)

__all__ = ["GridEngineImporter", "Options", "create"]

log = logging.getLogger("publisher")

_NAME: Final = "gridengine"
_FILES: Final = ("accounting", "accounting.jsonl")
# In one transaction. Measured with 1,000,000 lines while others kept the two cores busy: 34,100 lines of JSON in a second of
# processor time, or 36,700 with colons, of which a fifth belong to parallel jobs; 66 MiB. 4,000 at once are a tenth slower.
_BATCH_LINES: Final = 500
_SHOWN_BAD: Final = 100
# A file whose first lines are all bad is not what it was taken for, and is left alone.
_SURELY_FOREIGN: Final = 20


def create(options: object) -> GridEngineImporter:
    """Raises: ConfigError for a map file that cannot be read."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return GridEngineImporter(options)


@dataclass(slots=True, kw_only=True)
class _Batch:
    """What some lines hold."""

    end: int
    serial: list[Accounted] = field(default_factory=list)
    parallel: list[Accounted] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    records: int = 0


class GridEngineImporter:
    """An `Importer`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._site = SiteMapping(options)

    def run(self, paths: Sequence[Path], database: Path, now: datetime) -> ImportReport:
        report = ImportReport(importer=_NAME, database=database)
        with closing(AccountingDatabase(database, TABLES)) as accounting:
            self._check_cluster(accounting)
            cursors = Cursors(accounting, _NAME)
            for path in paths:
                self._path(accounting, cursors, path, report)
            overdue = int(now.timestamp()) - self._options.orphans_after_s
            with accounting.transaction():
                report.held, report.orphans = held(accounting.connection, overdue)
            report.set_aside = accounting.bad_lines(_NAME)
            report.aborted = accounting.aborted()
        if report.incomplete:
            report.notes.append(
                f"{report.incomplete:,} records (failed 37) were written without the host's figures: "
                "their CPU time is what rusage tells, which may be too little"
            )
        return report

    def _check_cluster(self, accounting: AccountingDatabase) -> None:
        with accounting.transaction():
            cluster = accounting.settle("GRIDENGINE_CLUSTER", self._options.cluster)
            if cluster != self._options.cluster:
                raise UsageError(
                    f"{accounting.path}: holds jobs of the cluster {cluster}; under the name {self._options.cluster} "
                    "they would count twice: correct importers.gridengine.cluster, or name another file with --database"
                )

    def _path(self, accounting: AccountingDatabase, cursors: Cursors, path: Path, report: ImportReport) -> None:
        """A file, after what rotation made of it since the last time; or the files of a directory."""
        try:
            if path.is_dir():
                for each in in_directory(path, _FILES):
                    self._file(accounting, cursors, each, report)
                return
            self._rotated(accounting, cursors, path, report)
            self._file(accounting, cursors, path, report)
        except SourceError as error:
            report.troubles.append(str(error))

    def _rotated(self, accounting: AccountingDatabase, cursors: Cursors, path: Path, report: ImportReport) -> None:
        """Finish what stood under this name the last time."""
        before = cursors.left_behind(path)
        if not before:
            return
        with opened(path) as file:
            gone = [cursor for cursor in before if not file.fits(cursor.mark)]
        if not gone:
            return
        found = False
        for sibling in rotated_siblings(path, min(cursor.modified for cursor in gone)):
            with opened(sibling) as file:
                found = found or any(file.fits(cursor.mark) for cursor in gone)
            self._file(accounting, cursors, sibling, report)
        if not found:
            report.notes.append(
                f"{path}: is another file than the last time, and that one is not beside it; "
                "where it was archived, import the archive too"
            )
        with accounting.transaction():
            for cursor in gone:
                cursors.forget_path(cursor, path)

    def _file(self, accounting: AccountingDatabase, cursors: Cursors, path: Path, report: ImportReport) -> None:
        report.files += 1
        again = True
        while again:
            with opened(path) as file:
                try:
                    self._content(accounting, cursors, file, report)
                    again = False
                except Overtaken:
                    log.debug("%s: another importer reads it too; going on from where it is", path)

    def _content(self, accounting: AccountingDatabase, cursors: Cursors, file: LogFile, report: ImportReport) -> None:
        cursor = cursors.find(file)
        lines = file.lines(cursor.mark.taken)
        first = cursor.mark.taken == 0
        while chunk := list(islice(lines, _BATCH_LINES)):
            batch = self._read(file.path, chunk)
            if first and len(batch.bad) >= _SURELY_FOREIGN and len(batch.bad) == batch.records:
                raise SourceError(
                    f"{file.path}: is no accounting file of Grid Engine, or not in a form that is known; its first line: "
                    f"{batch.bad[0].reason}"
                )
            first = False
            cursor = self._write(accounting, cursors, cursor, file, batch, report)

    def _read(self, path: Path, lines: Sequence[Line]) -> _Batch:
        batch = _Batch(end=lines[-1].end)
        for line in lines:
            if not line.content or line.content[:1] == b"#" or line.content.isspace():
                continue
            batch.records += 1
            if not line.whole:
                batch.bad.append(_bad(path, line, f"{line.length} bytes long, which no record is"))
                continue
            records, wrong = read_line(line.content, self._options.time_unit)
            if wrong:
                batch.bad.append(_bad(path, line, wrong))
            for record in records:
                if reason := self._site.skips(record):
                    batch.skipped.append(reason)
                elif is_parallel(record):
                    batch.parallel.append(record)
                else:
                    batch.serial.append(record)
        return batch

    def _write(
        self,
        accounting: AccountingDatabase,
        cursors: Cursors,
        cursor: FileCursor,
        file: LogFile,
        batch: _Batch,
        report: ImportReport,
    ) -> FileCursor:
        """What was read and how far, in one transaction. Raises: Overtaken."""
        with accounting.transaction():
            moved = cursors.move(cursor, file, file.mark(batch.end))
            serial = accounting.put([self._site.job(Run(master=record, tasks=())) for record in batch.serial])
            merged = merge(accounting.connection, batch.parallel)
            parallel = accounting.put([self._site.job(run) for run in merged.runs], replace=True)
            bad = accounting.set_aside(_NAME, batch.bad)
        report.lines += batch.records
        report.incomplete += sum(record.cpu_incomplete for record in (*batch.serial, *batch.parallel))
        report.imported += serial.inserted + parallel.inserted
        report.updated += serial.updated + parallel.updated
        report.merged += merged.merged
        report.duplicates += len(batch.serial) - serial.inserted - serial.updated + merged.duplicates
        report.skipped.update(batch.skipped)
        report.bad += len(bad)
        report.bad_lines += bad[: _SHOWN_BAD - len(report.bad_lines)]
        return moved


def _bad(path: Path, line: Line, reason: str) -> BadLine:
    return BadLine(
        path=str(path),
        offset=line.offset,
        length=line.length,
        reason=reason,
        line=line.content[:KEPT_BYTES],
        digest=line.digest or blake2b(line.content, digest_size=DIGEST_BYTES).digest(),
    )
