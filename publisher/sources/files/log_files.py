"""Log files that grow, are rotated, compressed (in any usual way) and truncated, read by line.

A file is recognised by its content: a digest of its beginning and one of the bytes before the
position where reading stopped. So it is recognised as `X.0`, as `X.0.gz` and on another disk, and a
file that was truncated and rewritten is not consumed for the old one. Text may be in any encoding.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from shutil import copyfileobj
from stat import S_ISREG
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

from publisher.model.errors import SourceError, refused_by_system
from publisher.sources.importers import DIGEST_BYTES, KEPT_BYTES

SUFFIXES: Final = (".gz", ".bz2", ".xz", ".zst")
_MOST_MAGIC: Final = 6


class Stream(Protocol):
    def seek(self, offset: int, /) -> int: ...

    def read(self, size: int, /) -> bytes: ...


class DamagedArchive(SourceError):
    """A compressed file that cannot be read to its end, and that no later round may find whole."""


class MissingFile(SourceError):
    """There is nothing of this name, not even a link that leads nowhere."""


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
            "is compressed by zstd, which this Python cannot read; install the Python package "
            "backports.zstd (the extra zstd of publisher), or decompress it"
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
# Of what was read before a chunk: where a record of several lines may have begun.
_KEPT_BYTES: Final = 16 * MARK_BYTES
_CHUNK_BYTES: Final = 1024 * 1024
MOST_LINE_BYTES: Final = 1024 * 1024
# What rotation and administrators append: .0, .1.gz, -20260301.xz, .2026-03-01.bz2, .old,
# .complete, .2025.old, .Sep2025
_WORDS: Final = (
    "old|bak|backup|prev|previous|save|saved|orig|last|full|complete|completed|done|closed|rotated"
    "|archive|archived"
    "|jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec"
    "|january|february|march|april|june|july|august|september|october|november|december"
)
ROTATION: Final = (
    rf"(?:[._-](?:[0-9][0-9TZ:]*|[0-9]{{0,8}}(?i:{_WORDS})[0-9]{{0,8}}))*"
    rf"(?:{'|'.join(map(re.escape, SUFFIXES))})?"
)
_ROTATED: Final = re.compile(ROTATION)


_MOST_LISTINGS: Final = 20  # of a directory that changes meanwhile
FileIdentity = tuple[int, int]  # device and number, which stay when a file is renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePosition:
    """A place in a content: how many bytes were read, and digests that identify the content."""

    consumed: int
    head_bytes: int
    head: bytes
    tail_bytes: int
    tail: bytes


class LogBlock(NamedTuple):
    """Lines without their ends that follow each other, or the beginning of one that is too long."""

    offset: int
    lines: Sequence[bytes]
    end: int  # where the next one begins
    length: int = 0  # of the line that is too long
    digest: bytes = b""  # of that too

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
        is_long = len(self._head) >= mark.head_bytes
        return is_long and self.head_digest(mark.head_bytes) == mark.head

    def head_digest(self, length: int) -> bytes:
        """The digest of so many bytes from the beginning, or of all where there are fewer."""
        return _digest(self._head[:length])

    def mark(self, consumed: int) -> FilePosition:
        """The mark of where a line ends that `blocks` gave, the last one or not long before it."""
        head = self._window if self._window_at == 0 else self._head
        end = max(0, consumed - self._window_at)
        tail = self._window[max(0, end - MARK_BYTES) : end]
        return _position(consumed, head[: min(consumed, MARK_BYTES)], tail)

    @property
    def head(self) -> bytes:
        """What it began with when it was opened."""
        return self._head

    def parts(self, start: int) -> Iterator[bytes]:
        """The content from a place on, as `blocks` without lines; any place in it has a mark."""
        self._go_to(start)
        while chunk := self._read():
            yield chunk

    def _go_to(self, start: int) -> None:
        self._window_at = max(0, start - MARK_BYTES)
        self._stream.seek(self._window_at)
        self._window = self._stream.read(start - self._window_at)

    def blocks(self, start: int) -> Iterator[LogBlock]:
        """Lines from a place on; the last one too, unless it has no end and may have a writer."""
        self._go_to(start)
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
        """The mark of any place; `tail` is what is before it, at most `MARK_BYTES` of that."""
        head = tail if consumed <= MARK_BYTES else self._head
        if len(head) < min(consumed, MARK_BYTES):  # the file was shorter when it was opened
            self._stream.seek(0)
            head = self._stream.read(MARK_BYTES)
        return _position(consumed, head, tail)

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
        end = at + length + int(ended)
        return LogBlock(at, [beginning[:KEPT_BYTES]], end, length, digest.digest())

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
    """The file, open.

    Raises: MissingFile; SourceError, also out of what is done with it, when it cannot be read or is
    damaged.
    """
    try:
        # To open a FIFO would wait for somebody who writes.
        if not S_ISREG(path.stat().st_mode):
            raise SourceError(f"{path}: is no regular file; name a file with its content")
        with path.open("rb") as raw:
            modified = os.fstat(raw.fileno()).st_mtime
            with decompressed(raw) as (stream, compressed):
                yield LogFile(path, stream, compressed=compressed, modified=modified)
    except Damaged as error:
        why = f"is damaged, or still being compressed: {error}; import it again when it is whole"
        raise DamagedArchive(f"{path}: {why}") from error
    except Unreadable as error:
        raise SourceError(f"{path}: {error}") from error
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        advice = "correct the path" if missing else "let this user read it"
        refused = _refused(path, error, advice)
        if missing and not os.path.lexists(path):
            raise MissingFile(str(refused)) from error
        raise refused from error


@contextmanager
def spooled(pipe: BinaryIO, name: str) -> Iterator[LogFile]:
    """What comes out of a pipe, in a file that is gone afterwards.

    Raises: SourceError, also out of what is done with it.
    """
    try:
        with TemporaryFile() as raw:
            copyfileobj(pipe, raw)
            raw.seek(0)
            with decompressed(raw) as (stream, _):
                # As in a compressed file, a last line without an end is whole: nobody writes now.
                yield LogFile(Path(name), stream, compressed=True, modified=0.0)
    except (Damaged, Unreadable) as error:
        raise SourceError(f"{name}: {error}") from error
    except OSError as error:
        raise _refused(name, error, "set TMPDIR to where this user may write") from error


def rotated_siblings(
    path: Path, since: float, apart: re.Pattern[str] | None = None
) -> Mapping[Path, FileIdentity]:
    """What rotation made of this file, beside it, last written then or later, the oldest first.

    Names that match `apart` as a whole are others. Raises: SourceError.
    """

    def is_sibling(name: str) -> bool:
        return name != path.name and _is_rotated(path.name, name, apart)

    return {
        file: (stat.st_dev, stat.st_ino)
        for file, stat in _files_in(path.parent, is_sibling)
        if S_ISREG(stat.st_mode) and stat.st_mtime >= since
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
    """Files of a directory: those to read, the oldest first, and others whose names begin alike."""

    files: Mapping[Path, FileIdentity]
    others: Sequence[Path]


def in_directory(
    path: Path, names: Sequence[str], apart: re.Pattern[str] | None = None
) -> FileListing:
    """The files of these names in a directory, and what rotation made of them.

    Names that match `apart` are left out. Raises: SourceError when there is none.
    """
    files: dict[Path, FileIdentity] = {}
    others: list[Path] = []
    for each, stat in _files_in(path, lambda name: _begins(name, names, apart)):
        if any(_is_rotated(name, each.name) for name in names):
            files[each] = (stat.st_dev, stat.st_ino)
        else:
            others.append(each)
    if not files:
        called = " or ".join(names)
        alike = ""
        if others:
            alike = f", and {min(others).name} is not what rotation makes of one"
        raise SourceError(
            f"{path}: has no files called {called}{alike}; name the files themselves, or a pattern"
        )
    return FileListing(files=files, others=sorted(others))


def _files_in(folder: Path, wanted: Callable[[str], bool]) -> list[tuple[Path, os.stat_result]]:
    """Its files and dangling links of wanted names, the oldest first.

    Listed again where one has another name before it is looked at. Raises: SourceError.
    """
    try:
        for _ in range(_MOST_LISTINGS - 1):
            with suppress(FileNotFoundError):
                return _listed(folder, wanted)
        return _listed(folder, wanted)
    except OSError as error:
        raise _refused(folder, error, "let this user search it, and import again") from error


def _listed(folder: Path, wanted: Callable[[str], bool]) -> list[tuple[Path, os.stat_result]]:
    """Raises: OSError."""
    looked_at = [(each, _stat_of(each)) for each in folder.iterdir() if wanted(each.name)]
    found = [(each, stat) for each, stat in looked_at if stat is not None]
    return sorted(found, key=lambda file: (file[1].st_mtime, str(file[0])))


def _stat_of(path: Path) -> os.stat_result | None:
    """Of a file, or of a dangling link, as reading it says what is wrong; None for all else.

    Raises: FileNotFoundError when nothing has this name any more; OSError.
    """
    if path.is_symlink() and not path.exists():
        return path.lstat()
    stat = path.stat()
    return stat if S_ISREG(stat.st_mode) else None


def _begins(name: str, names: Sequence[str], apart: re.Pattern[str] | None) -> bool:
    is_apart = apart is not None and apart.fullmatch(name) is not None
    return not is_apart and name.startswith(tuple(names))


def _is_rotated(name: str, other: str, apart: re.Pattern[str] | None = None) -> bool:
    return _begins(other, (name,), apart) and _ROTATED.fullmatch(other, len(name)) is not None


def _refused(what: object, error: OSError, advice: str) -> SourceError:
    return SourceError(f"{what}: {refused_by_system(error, advice)}")


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def _position(consumed: int, head: bytes, tail: bytes) -> FilePosition:
    return FilePosition(
        consumed=consumed,
        head_bytes=len(head),
        head=_digest(head),
        tail_bytes=len(tail),
        tail=_digest(tail),
    )


_UNWRITABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """Without control characters and lone surrogates, not all of which SQLite and XML take."""
    return text if text.isprintable() else _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text)
