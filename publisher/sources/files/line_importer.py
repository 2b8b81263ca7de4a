"""Accounting files that grow and are rotated, read from where reading stopped.

Each record has a line or a few. A batch system brings how lines become records, and records jobs.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from sqlite3 import Connection
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from publisher.model.job import JobRecord
from publisher.sources.files.log_files import (
    MARK_BYTES,
    FileIdentity,
    LogFile,
    in_directory,
    opened,
    rotated_siblings,
    spooled,
)
from publisher.sources.files.read_files import FileCursor, look_of
from publisher.sources.files.run import ImportRun, import_run, refuse_foreign, to_read
from publisher.sources.files.site_mapping import SiteMapping
from publisher.sources.importers import (
    BadLine,
    ImportReport,
    ImportRule,
    SourceStore,
    StoredJobs,
    Watch,
    unwatched,
)

# In one transaction; more at once are slower (docs/performance.md).
_BATCH_PIECES: Final = 500
_NONE: Final = -1
SURELY_WRITTEN_S: Final = 3600  # a file that was left alone for so long is all there will be
STANDARD_INPUT: Final = Path("-")

Record = TypeVar("Record")


@dataclass(slots=True)
class LogPiece(Generic[Record]):
    """Lines that belong together, with the records that they hold."""

    offset: int
    end: int  # where the next piece begins
    content: bytes  # empty where there is nothing to count: an empty line, a comment
    records: Sequence[Record]
    wrong: str = ""
    skipped: str = ""  # why what the lines hold is not usage
    length: int | None = None  # of the whole, where `content` is its beginning
    digest: bytes = b""


class LogLine(NamedTuple):
    """A line without its end. A tuple, because there are millions."""

    offset: int
    content: bytes  # the beginning of one that is too long to be a record
    length: int  # of the whole
    end: int  # where the next one begins
    digest: bytes = b""  # of the whole, where `content` is not it


def lines_of(file: LogFile, start: int) -> Iterator[LogLine]:
    """Its lines from a place on; a last one without an end is left where there may be a writer."""
    for block in file.blocks(start):
        if block.is_long:
            (content,) = block.lines
            yield LogLine(block.offset, content, block.length, block.end, block.digest)
            continue
        at = block.offset
        for content in block.lines:
            end = at + len(content) + 1
            yield LogLine(at, content, len(content), min(end, block.end))
            at = end


def by_line(
    file: LogFile,
    start: int,
    read: Callable[[bytes], tuple[Sequence[Record], str]],
    *,
    least: int = 1,
) -> Iterator[LogPiece[Record]]:
    """Yield a piece for each line; one with fewer bytes than `least` is no record.

    `read` gives the records of one, and what is wrong with it or ''.
    """
    for line in lines_of(file, start):
        content = line.content
        if len(content.strip()) < least or content.startswith(b"#"):
            yield LogPiece(line.offset, line.end, b"", ())
        elif len(content) == line.length:
            records, wrong = read(content)
            yield LogPiece(line.offset, line.end, content, records, wrong)
        else:
            length, digest = line.length, line.digest
            wrong = f"{length} bytes long, too long for a record"
            yield LogPiece(line.offset, line.end, content, (), wrong, length=length, digest=digest)


class LineImporter(ABC, Generic[Record]):
    """An `Importer`."""

    files: ClassVar[Sequence[str]]  # names of the files in a directory
    kind: ClassVar[str]  # what such a file is, for people
    # Whether what follows is added to a file; else it is written anew, with some of the last.
    grows: ClassVar[bool] = True
    # Names of files that hold one piece each, which `singles` reads.
    single: ClassVar[re.Pattern[str] | None] = None

    def __init__(self, site: SiteMapping) -> None:
        self.site = site

    @abstractmethod
    def pieces(self, file: LogFile, start: int) -> Iterator[LogPiece[Record]]:
        """What a file has from the end of one of its pieces on.

        Raises: SourceError for a file of something else.
        """

    def skips(self, record: Record) -> str:
        """Why a record is not usage, or ''."""
        return ""

    def job(self, record: Record) -> JobRecord:
        """Return the job of a record; only `store` asks, where each record is a job."""
        raise NotImplementedError

    def store(
        self, run: ImportRun, records: Sequence[Record], file: int | None
    ) -> Sequence[StoredJobs]:
        """Make jobs of records and write them, inside a transaction."""
        return [run.store(list(map(self.job, records)), file=file)]

    def singles(self, run: ImportRun, path: Path) -> bool:
        """Read what a path has of files called `single`. Returns whether that is all.

        Raises: SourceError.
        """
        return False

    def nothing_whole(self, run: ImportRun, file: LogFile) -> None:
        """Judge a file of which not even one piece could be read.

        Raises: SourceError where it cannot be one that will grow.
        """

    def is_cut_short(self, file: LogFile, consumed: int) -> bool:
        """Whether what is left of a file is a part of a piece."""
        last = b"\n"
        for chunk in file.chunks(consumed):
            last = chunk[-1:]
        return last != b"\n"

    def finish(self, run: ImportRun) -> None:
        """Report what waits, and what an administrator must know."""

    def run(
        self, paths: Sequence[Path], store: SourceStore, now: datetime, watch: Watch = unwatched
    ) -> ImportReport:
        with import_run(self.site, store, now, watch) as run:
            reading = _Reading(self, run)
            for path in to_read(paths, self.site):
                with run.trouble_reported():
                    if not self.singles(run, path):
                        reading.path(path)
            reading.report_missing()
            self.finish(run)
        return run.report

    def forget_file(self, connection: Connection, path: Path) -> None:
        """Nothing else is kept of it."""

    def ask_again(self, connection: Connection, path: Path, now: datetime) -> bool:
        return False

    @property
    def mapped_vos(self) -> frozenset[str]:
        return self.site.mapped_vos

    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        return self.site.explain(job)

    def record_key(self, job: JobRecord) -> str:
        return self.site.record_key(job)

    def write_singles(
        self,
        run: ImportRun,
        read: Sequence[tuple[Path, LogPiece[Record]]],
        remember: Callable[[Sequence[Path]], None],
    ) -> None:
        """Write what such files hold, each whole, and have remembered which."""
        _Reading(self, run).singles(read, remember)

    def read_answer(self, run: ImportRun, file: LogFile) -> int:
        """Read what a program printed, from its beginning. Returns how many pieces it had.

        Raises: SourceError.
        """
        return _Reading(self, run).answer(file)


@dataclass(slots=True, kw_only=True)
class _ParsedPieces(Generic[Record]):
    """What some pieces hold."""

    end: int = _NONE
    usage: list[Record] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    pieces: int = 0

    def add(self, other: _ParsedPieces[Record]) -> None:
        self.usage += other.usage
        self.skipped += other.skipped
        self.bad += other.bad
        self.pieces += other.pieces


class _Reading(Generic[Record]):
    """Reads the files of one run."""

    def __init__(self, importer: LineImporter[Record], run: ImportRun) -> None:
        self._importer = importer
        self._run = run
        # Files of each content, by the number of its cursor.
        self._found: dict[int | None, set[Path]] = defaultdict(set)
        # Contents that may be gone, and where they stood.
        self._missing: list[tuple[Path, FileCursor]] = []

    def path(self, path: Path) -> None:
        """A file, after what rotation made of it since the last time; or a directory's files.

        Raises: SourceError.
        """
        if path == STANDARD_INPUT:
            self._run.report.files += 1
            with spooled(sys.stdin.buffer, "standard input") as file:
                self._content(file)
        elif path.is_dir():
            self._directory(path)
        elif not self._is_unchanged_archive(path):
            self._rotated(path)
            self._file(path)

    def _file(self, path: Path, *, missing_ok: bool = False) -> bool:
        """Read what is new in a file; an archive that has not changed is not decompressed.

        Returns whether it is there; that it is not is a trouble unless `missing_ok`.
        """
        if self._is_unchanged_archive(path):
            return True
        run, look = self._run, look_of(path)
        troubles = len(run.report.troubles)
        if not run.read(path, self._content, missing_ok=missing_ok):
            return False
        found = (number for number, paths in self._found.items() if path in paths)
        read = next(filter(None, found), None)
        if look is not None and read is not None and len(run.report.troubles) == troubles:
            with run.accounting.transaction():
                run.cursors.keep_archive(look, read)
        return True

    def _is_unchanged_archive(self, path: Path) -> bool:
        look = look_of(path)
        number = None if look is None else self._run.cursors.unchanged_archive(look)
        if number is None:
            return False
        self._run.report.files += 1
        self._found[number].add(path)
        return True

    def report_missing(self) -> None:
        """Contents that are no longer under their names, and in no file that was read."""
        run = self._run
        for path, cursor in self._missing:
            if self._importer.grows and not self._found[cursor.number]:
                run.report.notes.append(
                    f"{path}: is another file than the last time, and that one is not beside it; "
                    "where it was archived, import the archive too"
                )
            with run.accounting.transaction():
                run.cursors.forget_path(cursor, path)

    def _directory(self, path: Path) -> None:
        """Raises: SourceError."""
        run, names, apart = self._run, self._importer.files, self._importer.single
        troubles = len(run.report.troubles)
        self._listed(lambda: in_directory(path, names, apart).files)
        self._report_others(in_directory(path, names, apart).others)
        if len(run.report.troubles) > troubles:
            return  # what is in trouble is looked for again the next time
        for live in (path / name for name in names):
            for cursor in run.cursors.left_behind(live):
                if live not in self._found[cursor.number]:
                    self._missing.append((live, cursor))

    def _listed(self, listing: Callable[[], Mapping[Path, FileIdentity]]) -> None:
        """Read files, looked for until no more appear: rotation may rename one at any moment.

        Raises: SourceError.
        """
        done: set[FileIdentity] = set()
        renamed: set[tuple[Path, FileIdentity]] = set()  # before they were opened
        while new := [
            (path, identity)
            for path, identity in listing().items()
            if identity not in done and (path, identity) not in renamed
        ]:
            for path, identity in new:
                if self._file(path, missing_ok=True):
                    done.add(identity)
                else:
                    renamed.add((path, identity))

    def _report_others(self, others: Sequence[Path]) -> None:
        """Files named like an accounting file that nobody asked for by name, and none has read."""
        unread = [each.name for each in others if not self._run.cursors.left_behind(each)]
        if unread:
            self._run.report.notes.append(
                f"{others[0].parent}: not read, because its name does not show what it is: "
                f"{', '.join(unread)}; if it is accounting of this cluster, import it by its own "
                "name"
            )

    def _rotated(self, path: Path) -> None:
        """Finish what stood under this name the last time."""
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
        apart = self._importer.single
        self._listed(lambda: rotated_siblings(path, since, apart))
        if len(troubles) == before:  # else it is looked for again the next time
            self._missing.extend((path, cursor) for cursor in gone)

    def _content(self, file: LogFile) -> None:
        """Raises: SourceError."""
        cursors = self._run.cursors
        fitting = cursors.fitting(file)
        for each in fitting:
            self._found[each.number].add(file.path)
        cursor = fitting[0] if fitting else cursors.beginning(file)
        pieces = self._importer.pieces(file, cursor.mark.consumed)
        first = cursor.mark.consumed == 0
        is_read = not first
        while (batch := self._parsed(file.path, islice(pieces, _BATCH_PIECES))).end != _NONE:
            if first:
                refuse_foreign(file.path, self._importer.kind, batch.bad, batch.pieces)
            first, is_read = False, True
            if batch.end > cursor.mark.consumed:
                cursor = self._write(cursor, file, batch)
                self._found[cursor.number].add(file.path)
            elif batch.usage or batch.bad:
                self._write_last(cursor, batch)
        if not is_read:
            self._importer.nothing_whole(self._run, file)
        self._note_missing_end(file, cursor.mark.consumed)

    def _note_missing_end(self, file: LogFile, consumed: int) -> None:
        """What a writer may yet add to is no trouble; of an archive the end was read."""
        age_s = self._run.now - file.modified
        if file.compressed or age_s < SURELY_WRITTEN_S:
            return
        if self._importer.is_cut_short(file, consumed):
            self._run.report.notes.append(
                f"{file.path}: its last record is not whole, from byte {consumed:,} on, and "
                "nothing was added for an hour or more; if it was cut short, import it again when "
                "it is whole"
            )

    def answer(self, file: LogFile) -> int:
        """Raises: SourceError."""
        run, pieces, count = self._run, self._importer.pieces(file, 0), 0
        while (batch := self._parsed(file.path, islice(pieces, _BATCH_PIECES))).end != _NONE:
            with run.step(bad=batch.bad, lines=batch.pieces):
                stored = self._importer.store(run, batch.usage, None)
            self._report(stored, batch)
            count += batch.pieces
        return count

    def singles(
        self,
        read: Sequence[tuple[Path, LogPiece[Record]]],
        remember: Callable[[Sequence[Path]], None],
    ) -> None:
        """Raises: SourceError when a CE's database is unreadable."""
        run, whole = self._run, _ParsedPieces[Record]()
        for path, piece in read:
            whole.add(self._parsed(path, [piece]))
        with run.step(bad=whole.bad, lines=whole.pieces):
            remember([path for path, _ in read])
            stored = self._importer.store(run, whole.usage, None)
        self._report(stored, whole)

    def _parsed(self, path: Path, pieces: Iterable[LogPiece[Record]]) -> _ParsedPieces[Record]:
        batch, skips = _ParsedPieces[Record](), self._importer.skips
        for piece in pieces:
            batch.end = piece.end
            batch.pieces += bool(piece.content)
            if piece.skipped:
                batch.skipped.append(piece.skipped)
            if piece.wrong:
                content = piece.content
                length = len(content) if piece.length is None else piece.length
                bad = BadLine.of(path, piece.offset, length, piece.wrong, content, piece.digest)
                batch.bad.append(bad)
            for record in piece.records:
                reason = skips(record)
                if reason:
                    batch.skipped.append(reason)
                else:
                    batch.usage.append(record)
        return batch

    def _write(self, cursor: FileCursor, file: LogFile, batch: _ParsedPieces[Record]) -> FileCursor:
        """What was read and how far.

        Raises: SourceError when a CE's database is unreadable.
        """
        run = self._run
        with run.step(bad=batch.bad, lines=batch.pieces):
            moved = run.cursors.move(cursor, file, file.mark(batch.end))
            stored = self._importer.store(run, batch.usage, moved.number)
        self._report(stored, batch)
        return moved

    def _write_last(self, cursor: FileCursor, batch: _ParsedPieces[Record]) -> None:
        """The last piece of a file, which is read each time.

        More may have come, or be in another file that begins alike. Raises: SourceError when a CE's
        database is unreadable.
        """
        run = self._run
        with run.step(bad=batch.bad, lines=0):
            stored = self._importer.store(run, batch.usage, cursor.number)
        if any(each.inserted or each.updated for each in stored):
            self._report(stored, batch)

    def _report(self, stored: Sequence[StoredJobs], batch: _ParsedPieces[Record]) -> None:
        for each in stored:
            self._run.report.count_jobs(each)
        self._run.report.skipped.update(batch.skipped)
