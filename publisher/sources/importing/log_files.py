"""Log files that grow, are rotated, compressed (in any usual way) and truncated, read line by line
from where reading stopped.

A file is recognised by its content: a digest of its beginning and one of the bytes before the
position. So it is recognised as `X.0`, as `X.0.gz` and on another disk, and a file that was
truncated and rewritten is not consumed for the old one. Positions are stored in the imported
database, in the transaction of the jobs that were read. Text may be in any encoding.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib import import_module
from itertools import starmap
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from publisher.model.errors import SourceError, refused_by_system
from publisher.sources.importers import DIGEST_BYTES, KEPT_BYTES
from publisher.sources.importing.database import ImportDatabase

SUFFIXES: Final = (".gz", ".bz2", ".xz", ".zst")
_MOST_MAGIC: Final = 6


class Stream(Protocol):
    def seek(self, offset: int, /) -> int: ...

    def read(self, size: int, /) -> bytes: ...


class DamagedArchive(SourceError):
    """A compressed file that cannot be read to its end, and that no later round may find whole."""


class Damaged(Exception):
    """The archive is not whole."""


class Unreadable(Exception):
    """Nothing here can decompress it; the text says what is missing."""


class _ReadMode(NamedTuple):
    """How to open one kind of archive, and what reading a damaged one raises."""

    open: Callable[[BinaryIO], Any]
    damage: tuple[type[Exception], ...]


_BY_MAGIC: Final[dict[bytes, _ReadMode]] = {
    b"\x1f\x8b": _ReadMode(
        lambda raw: gzip.GzipFile(fileobj=raw), (EOFError, gzip.BadGzipFile, zlib.error)
    ),
    b"BZh": _ReadMode(bz2.BZ2File, (EOFError,)),  # and an OSError without a number
    b"\xfd7zXZ\x00": _ReadMode(lzma.LZMAFile, (EOFError, lzma.LZMAError)),
}
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
for _name in ("backports.zstd", "compression.zstd"):  # the latter is part of Python since 3.14
    try:
        _zstd = import_module(_name)
    except ImportError:
        continue
    _BY_MAGIC[_ZSTD_MAGIC] = _ReadMode(_zstd.ZstdFile, (EOFError, _zstd.ZstdError))


def _way(beginning: bytes) -> _ReadMode | None:
    """None for what is not compressed. Raises: Unreadable."""
    way = next((way for magic, way in _BY_MAGIC.items() if beginning.startswith(magic)), None)
    if way is None and beginning.startswith(_ZSTD_MAGIC):
        raise Unreadable(
            "is compressed by zstd, which this Python cannot read; install the Python package backports.zstd (the extra "
            "zstd of publisher), or decompress it"
        )
    return way


@contextmanager
def decompressed(raw: BinaryIO) -> Iterator[tuple[Stream, bool]]:
    """The content of an open file, and whether that is compressed.

    Raises: Damaged, also out of what is done with it; Unreadable.
    """
    way = _way(raw.read(_MOST_MAGIC))
    raw.seek(0)
    if way is None:
        yield raw, False
        return
    try:
        with way.open(raw) as stream:
            yield stream, True
    except way.damage as error:
        raise Damaged(str(error)) from error
    except OSError as error:
        if error.errno is None:
            raise Damaged(str(error)) from error
        raise


MARK_BYTES: Final = 4096  # by which a place is known again
_KEPT_BYTES: Final = (
    16 * MARK_BYTES
)  # of what was read before a chunk: where a record of several lines may have begun
_CHUNK_BYTES: Final = 1024 * 1024
MOST_LINE_BYTES: Final = 1024 * 1024
# What rotation and administrators append: .0, .1.gz, -20260301.xz, .2026-03-01.bz2, .old,
# .complete, .2025.old, .Sep2025
_WORDS: Final = (
    "old|bak|backup|prev|previous|save|saved|orig|last|full|complete|completed|done|closed|rotated|archive|archived"
    "|jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec"
    "|january|february|march|april|june|july|august|september|october|november|december"
)
ROTATION: Final = rf"(?:[._-](?:[0-9][0-9TZ:]*|[0-9]{{0,8}}(?i:{_WORDS})[0-9]{{0,8}}))*(?:{'|'.join(map(re.escape, SUFFIXES))})?"
_ROTATED: Final = re.compile(ROTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePosition:
    """A place in a content: how many bytes were read, and digests that identify the content."""

    consumed: int
    head_bytes: int
    head: bytes
    tail_bytes: int
    tail: bytes


class LogBlock(NamedTuple):
    """Lines without their ends that follow each other, or the beginning of one that is too long,
    with the `length` of that.
    """

    offset: int
    lines: Sequence[bytes]
    end: int  # where the next one begins
    length: int = 0
    digest: bytes = b""  # of the line that is too long

    @property
    def is_long(self) -> bool:
        return bool(self.digest)


class LogFile:
    """The content of one open file, plain or compressed."""

    def __init__(self, path: Path, stream: Stream, *, compressed: bool, modified: float) -> None:
        self.path = path
        self.compressed = compressed
        self.modified = modified
        self._stream = stream
        self._head = stream.read(MARK_BYTES)
        # What was read last and a little before it, for marks: going back in a compressed file
        # means to begin again.
        self._window, self._window_at = self._head, 0
        self._pushed_back = b""

    def fits(self, mark: FilePosition) -> bool:
        """Whether the mark is a place in this content."""
        if not self.begins(mark):
            return False
        self._stream.seek(mark.consumed - mark.tail_bytes)
        tail = self._stream.read(mark.tail_bytes)
        return len(tail) == mark.tail_bytes and _digest(tail) == mark.tail

    def begins(self, mark: FilePosition) -> bool:
        """Whether this content begins as that of the mark, whatever follows."""
        return (
            len(self._head) >= mark.head_bytes
            and _digest(self._head[: mark.head_bytes]) == mark.head
        )

    def head_digest(self, length: int) -> bytes:
        """The digest of so many bytes from the beginning, or of all where there are fewer."""
        return _digest(self._head[:length])

    def mark(self, consumed: int) -> FilePosition:
        """The mark of the place where a line ends that `blocks` gave, the last one or not long
        before it.
        """
        head = self._window if self._window_at == 0 else self._head
        head = head[: min(consumed, MARK_BYTES)]
        end = max(0, consumed - self._window_at)
        tail = self._window[max(0, end - MARK_BYTES) : end]
        return FilePosition(
            consumed=consumed,
            head_bytes=len(head),
            head=_digest(head),
            tail_bytes=len(tail),
            tail=_digest(tail),
        )

    def blocks(self, start: int) -> Iterator[LogBlock]:
        """Lines from a place on. A last one without an end is left: its writer is not done. A
        compressed file has no writer.
        """
        self._window_at = max(0, start - MARK_BYTES)
        self._stream.seek(self._window_at)
        self._window = self._stream.read(start - self._window_at)
        rest, at = b"", start
        while chunk := self._read():
            if not rest and not chunk.strip(b"\n"):  # a damaged disk leaves millions of empty lines
                at += len(chunk)
                continue
            chunk = rest + chunk
            lines = chunk.split(b"\n")
            rest = lines.pop()
            end = at + len(chunk) - len(rest)
            if lines:
                yield LogBlock(at, lines, end)
            at = end
            if len(rest) > MOST_LINE_BYTES:
                long = self._long_line(rest, at)
                if long is None:
                    return
                yield long
                rest, at = b"", long.end
        if rest and self.compressed:
            yield LogBlock(at, [rest], at + len(rest))

    def chunks(self, start: int) -> Iterator[bytes]:
        """The content from a place on, whatever is in it."""
        at = start
        while True:
            self._stream.seek(at)
            chunk = self._stream.read(_CHUNK_BYTES)
            if not chunk:
                return
            at += len(chunk)
            yield chunk

    def mark_after(self, consumed: int, tail: bytes) -> FilePosition:
        """The mark of any place; `tail` is what is before it, `MARK_BYTES` of it where there are so
        many.
        """
        head = tail if consumed <= MARK_BYTES else self._head
        if len(head) < min(consumed, MARK_BYTES):  # the file was shorter when it was opened
            self._stream.seek(0)
            head = self._stream.read(MARK_BYTES)
        return FilePosition(
            consumed=consumed,
            head_bytes=len(head),
            head=_digest(head),
            tail_bytes=len(tail),
            tail=_digest(tail),
        )

    def _long_line(self, beginning: bytes, at: int) -> LogBlock | None:
        """A line that is too long to be a record, in bounded memory. None: it has no end yet."""
        digest, length = blake2b(beginning, digest_size=DIGEST_BYTES), len(beginning)
        ended = False
        while not ended and (chunk := self._read()):
            content, line_feed, self._pushed_back = chunk.partition(b"\n")
            digest.update(content)
            length += len(content)
            ended = bool(line_feed)
        if not ended and not self.compressed:
            return None
        return LogBlock(
            offset=at,
            lines=[beginning[:KEPT_BYTES]],
            end=at + length + int(ended),
            length=length,
            digest=digest.digest(),
        )

    def _read(self) -> bytes:
        if self._pushed_back:
            chunk, self._pushed_back = self._pushed_back, b""
            return chunk
        chunk = self._stream.read(_CHUNK_BYTES)
        if chunk:
            kept = self._window[-_KEPT_BYTES:]
            self._window_at += len(self._window) - len(kept)
            self._window = kept + chunk
        return chunk


@contextmanager
def opened(path: Path) -> Iterator[LogFile]:
    """The file, open. Raises: SourceError, also out of what is done with it, when it cannot be read
    or is damaged.
    """
    try:
        if (
            path.exists() and not path.is_file()
        ):  # to open a FIFO would wait for somebody who writes
            raise SourceError(f"{path}: is no regular file; name a file with its content")
        with path.open("rb") as raw:
            modified = os.fstat(raw.fileno()).st_mtime
            with decompressed(raw) as (stream, compressed):
                yield LogFile(path, stream, compressed=compressed, modified=modified)
    except Damaged as error:
        raise DamagedArchive(
            f"{path}: is damaged, or still being compressed: {error}; import it again when it is whole"
        ) from error
    except Unreadable as error:
        raise SourceError(f"{path}: {error}") from error
    except OSError as error:
        raise SourceError(
            f"{path}: {refused_by_system(error, 'let this user read it, or correct it')}"
        ) from error


@contextmanager
def spooled(pipe: BinaryIO, name: str) -> Iterator[LogFile]:
    """What comes out of a pipe, in a file that is gone afterwards. Raises: SourceError, also out of
    what is done with it.
    """
    try:
        with TemporaryFile() as raw:
            copyfileobj(pipe, raw)
            raw.seek(0)
            with decompressed(raw) as (stream, _):
                # As in a compressed file, a last line without an end is whole: nobody writes any
                # more.
                yield LogFile(Path(name), stream, compressed=True, modified=0.0)
    except (Damaged, Unreadable) as error:
        raise SourceError(f"{name}: {error}") from error
    except OSError as error:
        raise SourceError(
            f"{name}: {refused_by_system(error, 'set TMPDIR to where this user may write')}"
        ) from error


def rotated_siblings(path: Path, since: float, apart: re.Pattern[str] | None = None) -> list[Path]:
    """Files beside this one that rotation made of it, last written at that time or later, the
    oldest first.

    Names that match `apart` as a whole are others.
    """
    try:
        siblings = [
            each
            for each in path.parent.iterdir()
            if each != path and _is_rotated(path.name, each.name, apart)
        ]
        dated = [(each.stat().st_mtime, str(each), each) for each in siblings if each.is_file()]
    except OSError as error:
        raise SourceError(
            f"{path.parent}: {refused_by_system(error, 'let this user search it')}"
        ) from error
    return [each for modified, _, each in sorted(dated) if modified >= since]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
    """Files of a directory: those to read, the oldest first, and others whose names begin alike.

    Each file to read comes with what stays the same when it is renamed.
    """

    files: Mapping[Path, tuple[int, int]]
    others: Sequence[Path]


def in_directory(
    path: Path, names: Sequence[str], apart: re.Pattern[str] | None = None
) -> FileListing:
    """The files of these names in a directory, and what rotation made of them; names that match
    `apart` are left out.

    Raises: SourceError when there is none.
    """
    found: list[tuple[float, str, Path, tuple[int, int]]] = []
    others: list[Path] = []
    try:
        for each in path.iterdir():
            if apart is not None and apart.fullmatch(each.name):
                continue
            is_dangling = each.is_symlink() and not each.exists()
            if not each.name.startswith(tuple(names)) or not (is_dangling or each.is_file()):
                continue
            if any(_is_rotated(name, each.name) for name in names):
                stat = each.stat(
                    follow_symlinks=not is_dangling
                )  # reading a dangling link reports it
                found.append((stat.st_mtime, str(each), each, (stat.st_dev, stat.st_ino)))
            else:
                others.append(each)
    except OSError as error:
        raise SourceError(
            f"{path}: {refused_by_system(error, 'let this user search it, and import again')}"
        ) from error
    if not found:
        raise SourceError(
            f"{path}: has no files called {' or '.join(names)}; name the files themselves"
        )
    return FileListing(
        files={file: identity for _, _, file, identity in sorted(found)}, others=sorted(others)
    )


def _is_rotated(name: str, other: str, apart: re.Pattern[str] | None = None) -> bool:
    if apart is not None and apart.fullmatch(other):
        return False
    return other.startswith(name) and _ROTATED.fullmatch(other, len(name)) is not None


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


_COLUMNS: Final = "FileID, Path, Modified, Bytes, HeadBytes, Head, TailBytes, Tail"
_AT_PATH: Final = f"SELECT {_COLUMNS} FROM ImportFile WHERE Importer = ? AND Path = ? ORDER BY FileID DESC LIMIT 1"
_ALL: Final = f"SELECT {_COLUMNS} FROM ImportFile WHERE Importer = ? ORDER BY FileID"
_LEFT: Final = f"SELECT {_COLUMNS} FROM ImportFile WHERE Importer = ? AND Path = ? ORDER BY FileID"
_HEAD_BYTES: Final = "SELECT DISTINCT HeadBytes FROM ImportFile WHERE Importer = ?"
_BEGIN_SO: Final = f"SELECT {_COLUMNS} FROM ImportFile WHERE Importer = ? AND HeadBytes = ? AND Head = ? ORDER BY FileID"
_BYTES_READ: Final = "SELECT Bytes FROM ImportFile WHERE FileID = ?"
_INSERT: Final = (
    "INSERT INTO ImportFile (Importer, Path, Modified, Bytes, HeadBytes, Head, TailBytes, Tail)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = (
    "UPDATE ImportFile SET Path = ?, Modified = ?, Bytes = ?, HeadBytes = ?, Head = ?, TailBytes = ?, Tail = ?"
    " WHERE FileID = ?"
)
_ARCHIVE: Final = "SELECT FileID FROM ImportArchive WHERE Importer = ? AND Path = ? AND Bytes = ? AND Modified = ?"
_KEEP_ARCHIVE: Final = "INSERT OR REPLACE INTO ImportArchive VALUES (?, ?, ?, ?, ?)"
_FORGET_ARCHIVE: Final = "DELETE FROM ImportArchive WHERE Importer = ? AND Path = ?"
_READ_AGAIN: Final = "UPDATE ImportFile SET Importer = Importer || ' before' WHERE Importer = :importer AND Path = :path"
_LOST: Final = "UPDATE ImportFile SET Path = '' WHERE FileID = ? AND Path = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCursor:
    """A content, where it was last seen, and how far it was read. `number` is None when it is not
    written down yet.

    `modified` is 0 while it is not known whether there is more.
    """

    number: int | None
    path: str
    modified: float
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

    def __init__(self, database: ImportDatabase, importer: str) -> None:
        self._database = database
        self._importer = importer

    def all(self) -> list[FileCursor]:
        found = self._database.connection.execute(_ALL, (self._importer,)).fetchall()
        return [_cursor(*row) for row in found]

    def at_path(self, path: Path) -> FileCursor | None:
        """The cursor of what stood under this name last: for trees of many files, where each keeps
        its name.
        """
        found = self._database.connection.execute(_AT_PATH, (self._importer, str(path))).fetchone()
        return None if found is None else _cursor(*found)

    def fitting(self, file: LogFile) -> list[FileCursor]:
        """Every place up to which this content was read, the farthest first."""
        # Hot path: there may be thousands of files, each with a cursor.
        execute = self._database.connection.execute
        lengths = [length for (length,) in execute(_HEAD_BYTES, (self._importer,)).fetchall()]
        rows = [
            row
            for each in lengths
            for row in execute(_BEGIN_SO, (self._importer, each, file.head_digest(each)))
        ]
        found = [
            cursor
            for cursor in starmap(_cursor, rows)
            if cursor.mark.consumed and file.fits(cursor.mark)
        ]
        return sorted(found, key=lambda cursor: cursor.mark.consumed, reverse=True)

    def beginning(self, file: LogFile) -> FileCursor:
        """Of a content that is new."""
        return FileCursor(
            number=None, path=str(file.path), modified=file.modified, mark=file.mark(0)
        )

    def left_behind(self, path: Path) -> list[FileCursor]:
        """Cursors of contents that stood under this name when they were last seen."""
        found = self._database.connection.execute(_LEFT, (self._importer, str(path))).fetchall()
        return [_cursor(*row) for row in found]

    def move(
        self, cursor: FileCursor, file: LogFile, mark: FilePosition, *, more: bool = False
    ) -> FileCursor:
        """Write a new place down, inside a transaction; with `more` where the file may continue.
        Raises: ReadElsewhere.
        """
        execute = self._database.connection.execute
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
        """The cursor's number of a compressed file that looked so when it was read to its end: it
        need not be read again.
        """
        found = self._database.connection.execute(_ARCHIVE, (self._importer, *look)).fetchone()
        return None if found is None else int(found[0])

    def keep_archive(self, look: ArchiveLook, number: int) -> None:
        """That a compressed file, which looked so before it was read, was read to its end; inside a
        transaction.
        """
        self._database.connection.execute(_KEEP_ARCHIVE, (self._importer, *look, number))

    def read_again(self, path: str) -> None:
        """Forget how far what stood under this name was read, inside a transaction; jobs still tell
        where they were met.
        """
        self._database.connection.execute(_READ_AGAIN, {"importer": self._importer, "path": path})
        self._database.connection.execute(_FORGET_ARCHIVE, (self._importer, path))

    def forget_path(self, cursor: FileCursor, path: Path) -> None:
        """That a content is no longer under its name, inside a transaction."""
        self._database.connection.execute(_LOST, (cursor.number, str(path)))


def _cursor(
    number: int,
    path: str,
    modified: float,
    consumed: int,
    head_bytes: int,
    head: bytes,
    tail_bytes: int,
    tail: bytes,
) -> FileCursor:
    mark = FilePosition(
        consumed=consumed, head_bytes=head_bytes, head=head, tail_bytes=tail_bytes, tail=tail
    )
    return FileCursor(number=number, path=path, modified=modified, mark=mark)


_UNWRITABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """Without control characters and halves of surrogate pairs: neither SQLite nor XML takes them
    all.
    """
    return text if text.isprintable() else _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text)
