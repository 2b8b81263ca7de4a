"""Which files were read, and how far: stored in the transaction of the jobs that were read."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Any, Final

from publisher.sources.files.log_files import SUFFIXES, FilePosition, LogFile

_COLUMNS: Final = "FileID, Path, Modified, Bytes, HeadBytes, Head, TailBytes, Tail"
_OF_SOURCE: Final = (
    f"SELECT {_COLUMNS} FROM ImportFile WHERE Source = source_number() AND NOT Forgotten"
)
_ALL: Final = f"{_OF_SOURCE} ORDER BY FileID"
_LEFT: Final = f"{_OF_SOURCE} AND Path = ? ORDER BY FileID"
_AT_PATH: Final = f"{_LEFT} DESC LIMIT 1"
_HEAD_BYTES: Final = (
    "SELECT DISTINCT HeadBytes FROM ImportFile WHERE Source = source_number() AND NOT Forgotten"
)
_BEGIN_SO: Final = f"{_OF_SOURCE} AND HeadBytes = ? AND Head = ? ORDER BY FileID"
_INSERT: Final = (
    f"INSERT INTO ImportFile (Source, Forgotten, {_COLUMNS.partition(', ')[2]})"
    " VALUES (source_number(), 0, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = """
    UPDATE ImportFile SET Path = ?, Modified = ?, Bytes = ?,
        HeadBytes = ?, Head = ?, TailBytes = ?, Tail = ?
    WHERE FileID = ?
"""
_ARCHIVE: Final = """
    SELECT FileID FROM ImportArchive
    WHERE Source = source_number() AND Path = ? AND Bytes = ? AND Modified = ?
"""
_KEEP_ARCHIVE: Final = "INSERT OR REPLACE INTO ImportArchive VALUES (source_number(), ?, ?, ?, ?)"
_FORGET_ARCHIVE: Final = "DELETE FROM ImportArchive WHERE Source = source_number() AND Path = ?"
_READ_AGAIN: Final = """
    UPDATE ImportFile SET Forgotten = 1 WHERE Source = source_number() AND Path = ?
"""
_PATH: Final = "SELECT Path FROM ImportFile WHERE FileID = ?"
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


class Cursors:
    """The cursors of one source."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def all(self) -> list[FileCursor]:
        return [_cursor(*row) for row in self._execute(_ALL).fetchall()]

    def at_path(self, path: Path) -> FileCursor | None:
        """Of what stood under this name last: for trees of files of which each keeps its name."""
        found = self._execute(_AT_PATH, (str(path),)).fetchone()
        return None if found is None else _cursor(*found)

    def fitting(self, file: LogFile) -> list[FileCursor]:
        """Every place up to which this content was read, the farthest first."""
        # Hot path: there may be thousands of files, each with a cursor.
        found: list[FileCursor] = []
        for (length,) in self._execute(_HEAD_BYTES).fetchall():
            asked = (length, file.head_digest(length))
            found += starmap(_cursor, self._execute(_BEGIN_SO, asked).fetchall())
        found = [each for each in found if each.mark.consumed and file.fits(each.mark)]
        return sorted(found, key=lambda cursor: cursor.mark.consumed, reverse=True)

    def beginning(self, file: LogFile) -> FileCursor:
        """Of a content that is new."""
        mark = file.mark(0)
        return FileCursor(number=None, path=str(file.path), modified=file.modified, mark=mark)

    def left_behind(self, path: Path) -> list[FileCursor]:
        """Cursors of contents that stood under this name when they were last seen."""
        found = self._execute(_LEFT, (str(path),)).fetchall()
        return [_cursor(*row) for row in found]

    def move(
        self, cursor: FileCursor, file: LogFile, mark: FilePosition, *, more: bool = False
    ) -> FileCursor:
        """Write a new place down, inside a transaction; with `more` where the file may continue."""
        execute = self._execute
        place = (mark.consumed, mark.head_bytes, mark.head, mark.tail_bytes, mark.tail)
        modified = 0.0 if more else file.modified
        if cursor.number is None:
            number = execute(_INSERT, (str(file.path), modified, *place)).lastrowid
        else:
            number = cursor.number
            execute(_UPDATE, (str(file.path), modified, *place, number))
        return replace(cursor, number=number, path=str(file.path), modified=modified, mark=mark)

    def unchanged_archive(self, look: ArchiveLook) -> int | None:
        """The cursor's number of a compressed file that looked so when it was read to its end."""
        found = self._execute(_ARCHIVE, look).fetchone()
        return None if found is None else int(found[0])

    def keep_archive(self, look: ArchiveLook, number: int) -> None:
        """That a compressed file, which looked so before, was read to its end; in a transaction."""
        self._execute(_KEEP_ARCHIVE, (*look, number))

    def read_again(self, path: str) -> None:
        """Forget how far what stood under this name was read, inside a transaction.

        Jobs still tell where they were met.
        """
        for statement in (_READ_AGAIN, _FORGET_ARCHIVE):
            self._execute(statement, (path,))

    def forget_path(self, cursor: FileCursor, path: Path) -> None:
        """That a content is no longer under its name, inside a transaction."""
        self._execute(_LOST, (cursor.number, str(path)))


def _cursor(number: int, path: str, modified: float, consumed: int, *marks: Any) -> FileCursor:
    head_bytes, head, tail_bytes, tail = marks
    mark = FilePosition(
        consumed=consumed, head_bytes=head_bytes, head=head, tail_bytes=tail_bytes, tail=tail
    )
    return FileCursor(number=number, path=path, modified=modified, mark=mark)


def path_of(connection: sqlite3.Connection, file: int) -> str:
    """Return where the file of a number was last seen; '' where that is not known."""
    found = connection.execute(_PATH, (file,)).fetchone()
    return "" if found is None else str(found[0])
