"""How far each log file was read, kept in the same database and transactions as what was read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from publisher.importers.accounting_database import AccountingDatabase
from publisher.importers.log_files import LogFile, Mark

_COLUMNS: Final = "FileID, Path, Modified, Bytes, HeadBytes, Head, TailBytes, Tail"
_AT_PATH: Final = f"SELECT {_COLUMNS} FROM ImportFile WHERE Importer = ? AND Path = ? ORDER BY FileID DESC LIMIT 1"
_ALL: Final = f"SELECT {_COLUMNS} FROM ImportFile WHERE Importer = ? ORDER BY FileID"
_TAKEN: Final = "SELECT Bytes FROM ImportFile WHERE FileID = ?"
_INSERT: Final = (
    "INSERT INTO ImportFile (Importer, Path, Modified, Bytes, HeadBytes, Head, TailBytes, Tail)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = (
    "UPDATE ImportFile SET Path = ?, Modified = ?, Bytes = ?, HeadBytes = ?, Head = ?, TailBytes = ?, Tail = ?"
    " WHERE FileID = ?"
)
_LOST: Final = "UPDATE ImportFile SET Path = '' WHERE FileID = ? AND Path = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCursor:
    """A content, where it was last seen, and how far it was read. `number` is None when it is not written down yet.

    `modified` is 0 while it is not known whether there is more.
    """

    number: int | None
    path: str
    modified: float
    mark: Mark


class Overtaken(Exception):
    """Another importer read on in the same file meanwhile."""


class Cursors:
    """The cursors of one importer."""

    def __init__(self, database: AccountingDatabase, importer: str) -> None:
        self._database = database
        self._importer = importer

    def all(self) -> list[FileCursor]:
        found = self._database.connection.execute(_ALL, (self._importer,)).fetchall()
        return [_cursor(*row) for row in found]

    def at_path(self, path: Path) -> FileCursor | None:
        """The cursor of what stood under this name last: for trees of many files, where each keeps its name."""
        found = self._database.connection.execute(_AT_PATH, (self._importer, str(path))).fetchone()
        return None if found is None else _cursor(*found)

    def fitting(self, file: LogFile) -> list[FileCursor]:
        """Every place up to which this content was read, the farthest first."""
        found = [cursor for cursor in self.all() if cursor.mark.taken and file.fits(cursor.mark)]
        return sorted(found, key=lambda cursor: cursor.mark.taken, reverse=True)

    def beginning(self, file: LogFile) -> FileCursor:
        """Of a content that is new."""
        return FileCursor(number=None, path=str(file.path), modified=file.modified, mark=file.mark(0))

    def left_behind(self, path: Path) -> list[FileCursor]:
        """Cursors of contents that stood under this name when they were last seen."""
        return [cursor for cursor in self.all() if cursor.path == str(path)]

    def move(self, cursor: FileCursor, file: LogFile, mark: Mark, *, more: bool = False) -> FileCursor:
        """Write a new place down, inside a transaction; with `more` where the file may go on. Raises: Overtaken."""
        execute = self._database.connection.execute
        place = (mark.taken, mark.head_bytes, mark.head, mark.tail_bytes, mark.tail)
        modified = 0.0 if more else file.modified
        if cursor.number is None:
            number = execute(_INSERT, (self._importer, str(file.path), modified, *place)).lastrowid
        else:
            number = cursor.number
            held = execute(_TAKEN, (number,)).fetchone()
            if held is None or held[0] != cursor.mark.taken:
                raise Overtaken
            execute(_UPDATE, (str(file.path), modified, *place, number))
        return replace(cursor, number=number, path=str(file.path), modified=modified, mark=mark)

    def forget_path(self, cursor: FileCursor, path: Path) -> None:
        """That a content is no longer under its name, inside a transaction."""
        self._database.connection.execute(_LOST, (cursor.number, str(path)))


def _cursor(
    number: int, path: str, modified: float, taken: int, head_bytes: int, head: bytes, tail_bytes: int, tail: bytes
) -> FileCursor:
    mark = Mark(taken=taken, head_bytes=head_bytes, head=head, tail_bytes=tail_bytes, tail=tail)
    return FileCursor(number=number, path=path, modified=modified, mark=mark)
