"""Log files that grow, are renamed, compressed and cut: their content line by line, from where it was read before.

A file is known by its content, a digest of its beginning and one of what stands before the place, so that it is known again as
`X.0`, as `X.0.gz` and on another disk, and a file that was cut and written anew is not mistaken for the old one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from publisher.errors import SourceError
from publisher.importers.compressed import SUFFIXES, Damaged, Stream, Unreadable, decompressed

MARK_BYTES: Final = 4096  # by which a place is known again
_CHUNK_BYTES: Final = 1024 * 1024
MOST_LINE_BYTES: Final = 1024 * 1024
KEPT_BYTES: Final = 4096  # of a line that is set aside
DIGEST_BYTES: Final = 16
# What rotation and administrators append: .0, .1.gz, -20260301.xz, .2026-03-01.bz2, .old, .complete, .2025.old, .Sep2025
_WORDS: Final = (
    "old|bak|backup|prev|previous|save|saved|orig|last|full|complete|completed|done|closed|rotated|archive|archived"
    "|jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec"
    "|january|february|march|april|june|july|august|september|october|november|december"
)
ROTATION: Final = (
    rf"(?:[._-](?:[0-9][0-9TZ:]*|[0-9]{{0,8}}(?i:{_WORDS})[0-9]{{0,8}}))*(?:{'|'.join(map(re.escape, SUFFIXES))})?"
)
_ROTATED: Final = re.compile(ROTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place in a content: so many bytes were taken, and the digests by which that content is known again."""

    taken: int
    head_bytes: int
    head: bytes
    tail_bytes: int
    tail: bytes


class Line(NamedTuple):
    """A line without its end. `length` is that of the whole, `content` the beginning of one that is too long to be a record.

    A tuple, because there are millions.
    """

    offset: int
    content: bytes
    length: int
    end: int  # where the next one begins
    digest: bytes = b""  # of the whole, where `content` is not it


class LogFile:
    """The content of one open file, plain or compressed."""

    def __init__(self, path: Path, stream: Stream, *, compressed: bool, modified: float) -> None:
        self.path = path
        self.compressed = compressed
        self.modified = modified
        self._stream = stream
        self._head = stream.read(MARK_BYTES)
        # What was read last and a little before it, for marks: going back in a compressed file means to begin anew.
        self._window, self._window_at = self._head, 0
        self._pushed_back = b""

    def fits(self, mark: Mark) -> bool:
        """Whether the mark is a place in this content."""
        if len(self._head) < mark.head_bytes or _digest(self._head[: mark.head_bytes]) != mark.head:
            return False
        self._stream.seek(mark.taken - mark.tail_bytes)
        tail = self._stream.read(mark.tail_bytes)
        return len(tail) == mark.tail_bytes and _digest(tail) == mark.tail

    def mark(self, taken: int) -> Mark:
        """The mark of the place where the line ends that `lines` gave last."""
        head = self._window if self._window_at == 0 else self._head
        head = head[: min(taken, MARK_BYTES)]
        end = taken - self._window_at
        tail = self._window[max(0, end - MARK_BYTES) : end]
        return Mark(taken=taken, head_bytes=len(head), head=_digest(head), tail_bytes=len(tail), tail=_digest(tail))

    def lines(self, start: int) -> Iterator[Line]:
        """Lines from a place on. A last one without an end is left: its writer is not done. A compressed file has no writer."""
        self._window_at = max(0, start - MARK_BYTES)
        self._stream.seek(self._window_at)
        self._window = self._stream.read(start - self._window_at)
        rest, at = b"", start
        while chunk := self._read():
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for content in lines:
                end = at + len(content) + 1
                yield Line(at, content, len(content), end)
                at = end
            if len(rest) > MOST_LINE_BYTES:
                long = self._long_line(rest, at)
                if long is None:
                    return
                yield long
                rest, at = b"", long.end
        if rest and self.compressed:
            yield Line(offset=at, content=rest, length=len(rest), end=at + len(rest))

    def chunks(self, start: int) -> Iterator[bytes]:
        """The content from a place on, whatever stands in it."""
        at = start
        while True:
            self._stream.seek(at)
            chunk = self._stream.read(_CHUNK_BYTES)
            if not chunk:
                return
            at += len(chunk)
            yield chunk

    def mark_after(self, taken: int, tail: bytes) -> Mark:
        """The mark of any place; `tail` is what stands before it, `MARK_BYTES` of it where there are so many."""
        head = tail if taken <= MARK_BYTES else self._head
        if len(head) < min(taken, MARK_BYTES):  # the file was shorter when it was opened
            self._stream.seek(0)
            head = self._stream.read(MARK_BYTES)
        return Mark(taken=taken, head_bytes=len(head), head=_digest(head), tail_bytes=len(tail), tail=_digest(tail))

    def mark_before(self, taken: int) -> Mark:
        """The mark of a place that was passed. No line can be read after it."""
        start = max(0, taken - MARK_BYTES)
        self._stream.seek(start)
        return self.mark_after(taken, self._stream.read(taken - start))

    def _long_line(self, beginning: bytes, at: int) -> Line | None:
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
        return Line(
            offset=at,
            content=beginning[:KEPT_BYTES],
            length=length,
            end=at + length + int(ended),
            digest=digest.digest(),
        )

    def _read(self) -> bytes:
        if self._pushed_back:
            chunk, self._pushed_back = self._pushed_back, b""
            return chunk
        chunk = self._stream.read(_CHUNK_BYTES)
        if chunk:
            kept = self._window[-MARK_BYTES:]
            self._window_at += len(self._window) - len(kept)
            self._window = kept + chunk
        return chunk


@contextmanager
def opened(path: Path) -> Iterator[LogFile]:
    """The file, open. Raises: SourceError, also out of what is done with it, when it cannot be read or is damaged."""
    try:
        with path.open("rb") as raw:
            modified = os.fstat(raw.fileno()).st_mtime
            with decompressed(raw) as (stream, compressed):
                yield LogFile(path, stream, compressed=compressed, modified=modified)
    except Damaged as error:
        raise SourceError(
            f"{path}: is damaged, or still being compressed: {error}; import it again when it is whole"
        ) from error
    except Unreadable as error:
        raise SourceError(f"{path}: {error}") from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}; let this user read it, or correct the path") from error


def rotated_siblings(path: Path, since: float) -> list[Path]:
    """Files beside this one that rotation made of it, last written at that time or later, the oldest first."""
    try:
        beside = [each for each in path.parent.iterdir() if each != path and _is_rotated(path.name, each.name)]
        dated = [(each.stat().st_mtime, str(each), each) for each in beside if each.is_file()]
    except OSError as error:
        raise SourceError(f"{path.parent}: {error.strerror or error}; let this user search it") from error
    return [each for modified, _, each in sorted(dated) if modified >= since]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Files of a directory: those to read, the oldest first, and others whose names begin alike.

    Each file to read comes with what stays the same when it is renamed.
    """

    files: Mapping[Path, tuple[int, int]]
    others: Sequence[Path]


def in_directory(path: Path, names: Sequence[str]) -> Listing:
    """The files of these names in a directory, and what rotation made of them. Raises: SourceError when there is none."""
    found: list[tuple[float, str, Path, tuple[int, int]]] = []
    others: list[Path] = []
    try:
        for each in path.iterdir():
            if not each.name.startswith(tuple(names)) or not each.is_file():
                continue
            if any(_is_rotated(name, each.name) for name in names):
                stat = each.stat()
                found.append((stat.st_mtime, str(each), each, (stat.st_dev, stat.st_ino)))
            else:
                others.append(each)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}; let this user search it, and import again") from error
    if not found:
        raise SourceError(f"{path}: has no files called {' or '.join(names)}; name the files themselves")
    return Listing(files={file: identity for _, _, file, identity in sorted(found)}, others=sorted(others))


def _is_rotated(name: str, other: str) -> bool:
    return other.startswith(name) and _ROTATED.fullmatch(other, len(name)) is not None


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()
