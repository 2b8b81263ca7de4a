"""Which files were read, how far, and in which of them an imported job stood.

Positions are stored in the imported database, in the transaction of the jobs that were read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Any, Final, TypeVar

from publisher.model.job import JobRecord
from publisher.sources.base import ImportedFrom, Source
from publisher.sources.files.log_files import SUFFIXES, FilePosition, LogFile
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile

Answer = TypeVar("Answer")

FILE_TABLE: Final = """
    -- How far each log file was read. Content is what counts: a file is known again after it was
    -- renamed or compressed.
    CREATE TABLE ImportFile (
        FileID INTEGER PRIMARY KEY,
        Importer TEXT NOT NULL,
        Path TEXT NOT NULL,         -- where it was last seen
        Modified REAL NOT NULL,     -- and its time of modification then
        Bytes INTEGER NOT NULL,     -- of content that were read, up to the end of a line
        HeadBytes INTEGER NOT NULL, -- so many from the beginning,
        Head BLOB NOT NULL,         -- and their digest
        TailBytes INTEGER NOT NULL, -- so many before the place where reading goes on,
        Tail BLOB NOT NULL          -- and their digest
    );
"""
ARCHIVE_TABLE: Final = """
    CREATE INDEX IF NOT EXISTS ImportFile_Path ON ImportFile (Importer, Path);
    CREATE INDEX IF NOT EXISTS ImportFile_Head ON ImportFile (Importer, HeadBytes, Head);

    -- Compressed files that were read to their ends, and how they looked then.
    CREATE TABLE IF NOT EXISTS ImportArchive (
        Importer TEXT NOT NULL,
        Path TEXT NOT NULL,
        Bytes INTEGER NOT NULL,
        Modified INTEGER NOT NULL,
        FileID INTEGER NOT NULL,
        PRIMARY KEY (Importer, Path)
    ) WITHOUT ROWID;
"""
_IMPORTED: Final = "SELECT 1 FROM pragma_table_info('AAR') WHERE name = 'SourceKey'"
_ORIGIN: Final = """
    SELECT Source, SourceKey, coalesce(Path, '') FROM AAR LEFT JOIN ImportFile USING (FileID)
    WHERE RecordID = ? AND JobID = ?
"""
_COLUMNS: Final = "FileID, Path, Modified, Bytes, HeadBytes, Head, TailBytes, Tail"
_OF_IMPORTER: Final = f"SELECT {_COLUMNS} FROM ImportFile WHERE Importer = ?"
_ALL: Final = f"{_OF_IMPORTER} ORDER BY FileID"
_LEFT: Final = f"{_OF_IMPORTER} AND Path = ? ORDER BY FileID"
_AT_PATH: Final = f"{_LEFT} DESC LIMIT 1"
_HEAD_BYTES: Final = "SELECT DISTINCT HeadBytes FROM ImportFile WHERE Importer = ?"
_BEGIN_SO: Final = f"{_OF_IMPORTER} AND HeadBytes = ? AND Head = ? ORDER BY FileID"
_BYTES_READ: Final = "SELECT Bytes FROM ImportFile WHERE FileID = ?"
_INSERT: Final = (
    "INSERT INTO ImportFile (Importer, Path, Modified, Bytes, HeadBytes, Head, TailBytes, Tail)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = """
    UPDATE ImportFile SET Path = ?, Modified = ?, Bytes = ?,
        HeadBytes = ?, Head = ?, TailBytes = ?, Tail = ?
    WHERE FileID = ?
"""
_ARCHIVE: Final = """
    SELECT FileID FROM ImportArchive
    WHERE Importer = ? AND Path = ? AND Bytes = ? AND Modified = ?
"""
_KEEP_ARCHIVE: Final = "INSERT OR REPLACE INTO ImportArchive VALUES (?, ?, ?, ?, ?)"
_FORGET_ARCHIVE: Final = "DELETE FROM ImportArchive WHERE Importer = ? AND Path = ?"
_READ_AGAIN: Final = """
    UPDATE ImportFile SET Importer = Importer || ' before' WHERE Importer = ? AND Path = ?
"""
_LOST: Final = "UPDATE ImportFile SET Path = '' WHERE FileID = ? AND Path = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCursor:
    """A content, where it was last seen, and how far it was read."""

    number: int | None  # None when it is not written down yet
    path: str
    modified: float  # 0 while it is not known whether there is more
    mark: FilePosition


ArchiveLook = tuple[str, int, int]  # path, bytes, and nanoseconds of the last modification


def look_of(path: Path) -> ArchiveLook | None:
    """None for what is not compressed, by its name, or not there."""
    try:
        found = path.stat() if path.suffix in SUFFIXES else None
    except OSError:
        return None  # reading it says why
    return None if found is None else (str(path), found.st_size, found.st_mtime_ns)


class ReadElsewhere(Exception):
    """Another importer read on in the same file meanwhile."""


class Cursors:
    """The cursors of one importer."""

    def __init__(self, connection: sqlite3.Connection, importer: str) -> None:
        self._execute = connection.execute
        self._importer = importer

    def all(self) -> list[FileCursor]:
        return [_cursor(*row) for row in self._execute(_ALL, (self._importer,)).fetchall()]

    def at_path(self, path: Path) -> FileCursor | None:
        """Of what stood under this name last: for trees of files of which each keeps its name."""
        found = self._execute(_AT_PATH, (self._importer, str(path))).fetchone()
        return None if found is None else _cursor(*found)

    def fitting(self, file: LogFile) -> list[FileCursor]:
        """Every place up to which this content was read, the farthest first."""
        # Hot path: there may be thousands of files, each with a cursor.
        found: list[FileCursor] = []
        for (length,) in self._execute(_HEAD_BYTES, (self._importer,)).fetchall():
            asked = (self._importer, length, file.head_digest(length))
            found += starmap(_cursor, self._execute(_BEGIN_SO, asked).fetchall())
        found = [each for each in found if each.mark.consumed and file.fits(each.mark)]
        return sorted(found, key=lambda cursor: cursor.mark.consumed, reverse=True)

    def beginning(self, file: LogFile) -> FileCursor:
        """Of a content that is new."""
        mark = file.mark(0)
        return FileCursor(number=None, path=str(file.path), modified=file.modified, mark=mark)

    def left_behind(self, path: Path) -> list[FileCursor]:
        """Cursors of contents that stood under this name when they were last seen."""
        found = self._execute(_LEFT, (self._importer, str(path))).fetchall()
        return [_cursor(*row) for row in found]

    def move(
        self, cursor: FileCursor, file: LogFile, mark: FilePosition, *, more: bool = False
    ) -> FileCursor:
        """Write a new place down, inside a transaction; with `more` where the file may continue.

        Raises: ReadElsewhere.
        """
        execute = self._execute
        place = (mark.consumed, mark.head_bytes, mark.head, mark.tail_bytes, mark.tail)
        modified = 0.0 if more else file.modified
        if cursor.number is None:
            number = execute(_INSERT, (self._importer, str(file.path), modified, *place)).lastrowid
        else:
            number = cursor.number
            stored = execute(_BYTES_READ, (number,)).fetchone()
            if stored is None or stored[0] != cursor.mark.consumed:
                raise ReadElsewhere
            execute(_UPDATE, (str(file.path), modified, *place, number))
        return replace(cursor, number=number, path=str(file.path), modified=modified, mark=mark)

    def unchanged_archive(self, look: ArchiveLook) -> int | None:
        """The cursor's number of a compressed file that looked so when it was read to its end."""
        found = self._execute(_ARCHIVE, (self._importer, *look)).fetchone()
        return None if found is None else int(found[0])

    def keep_archive(self, look: ArchiveLook, number: int) -> None:
        """That a compressed file, which looked so before, was read to its end; in a transaction."""
        self._execute(_KEEP_ARCHIVE, (self._importer, *look, number))

    def read_again(self, path: str) -> None:
        """Forget how far what stood under this name was read, inside a transaction.

        Jobs still tell where they were met.
        """
        for statement in (_READ_AGAIN, _FORGET_ARCHIVE):
            self._execute(statement, (self._importer, path))

    def forget_path(self, cursor: FileCursor, path: Path) -> None:
        """That a content is no longer under its name, inside a transaction."""
        self._execute(_LOST, (cursor.number, str(path)))


def _cursor(number: int, path: str, modified: float, consumed: int, *marks: Any) -> FileCursor:
    head_bytes, head, tail_bytes, tail = marks
    mark = FilePosition(
        consumed=consumed, head_bytes=head_bytes, head=head, tail_bytes=tail_bytes, tail=tail
    )
    return FileCursor(number=number, path=path, modified=modified, mark=mark)


def origin_of(job: JobRecord, source: Source, *, copies_below: Path) -> ImportedFrom | None:
    """None when A-REX wrote the row, or it is gone meanwhile. The source is closed.

    Raises: SourceError.
    """

    def ask(connection: sqlite3.Connection) -> ImportedFrom | None:
        if connection.execute(_IMPORTED).fetchone() is None:
            return None
        found = connection.execute(_ORIGIN, (job.row.record_id, job.job_id)).fetchone()
        return None if found is None else ImportedFrom(*found)

    with closing(source):
        file = source.databases().get(job.row.database)
    return None if file is None else ask_database(file, copies_below, ask)


def ask_database(
    path: str, copies_below: Path, ask: Callable[[sqlite3.Connection], Answer]
) -> Answer:
    """The answer of a database that may be written meanwhile. Raises: SourceError."""
    copies = CopyDirectory(copies_below)
    with closing(copies), closing(ReadOnlyFile(path, copies)) as file:
        return file.ask(ask)
