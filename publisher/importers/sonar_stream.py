"""Envelopes of Sonar in a file: JSON objects one after the other, on a line each or pretty-printed, whole or torn.

Where a piece ends depends on the bytes before that place alone, so that a file read in parts gives what the whole gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from json import JSONDecoder
from typing import Any, Final, NamedTuple

from publisher.importers.log_files import DIGEST_BYTES, KEPT_BYTES, MARK_BYTES, LogFile, Mark

# Sonar writes at most 500 records into an envelope, some 300 kB; before it did so, the largest had some megabytes.
MOST_ENVELOPE_BYTES: Final = 8 * 1024 * 1024
# How every envelope begins. Inside of one it cannot stand: there a quote would have a backslash before it.
_BEGINNING: Final = re.compile(rb'\{\s{0,64}"meta"\s{0,64}:')
_MOST_BEGINNING: Final = 256  # bytes, generously
_LOOKED_AT: Final = 2 * KEPT_BYTES  # for a token, in what is set aside
_BLANKS: Final = re.compile(rb"\s*")
_END_OF_LINE: Final = re.compile(rb"[^\s{]\s*?\n")
_STRUCTURE: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]"]', re.DOTALL)
_TOKEN: Final = re.compile(rb'("token"\s*+:\s*+)"[^"\\]*+(?:\\.[^"\\]*+)*+"?')
_decode: Final = JSONDecoder().raw_decode


class Piece(NamedTuple):
    """An object, or what is none and why. `content` is the beginning of what is none, without its token."""

    offset: int
    end: int
    envelope: dict[str, Any] | None
    wrong: str = ""
    content: bytes = b""
    digest: bytes = b""


def without_token(content: bytes) -> bytes:
    """The token by which Sonar proves itself to its collector is a secret."""
    return _TOKEN.sub(rb'\1"***"', content)


class EnvelopeReader:
    """The pieces of one file from a place on."""

    def __init__(self, file: LogFile, start: int) -> None:
        self._compressed = file.compressed
        self._file = file
        kept = max(0, start - MARK_BYTES)
        self._chunks = file.chunks(kept)
        self._base = kept  # where the buffer begins
        self._at = start  # where the next piece does
        self._buffer = b""
        self._over = False
        while not self._over and self._base + len(self._buffer) < start:
            self._more()

    @property
    def unfinished(self) -> int:
        """Bytes at the end that wait for their rest, when all pieces were taken."""
        return self._base + len(self._buffer) - self._at

    def tail(self, taken: int) -> bytes:
        """What stands before the place where the piece ends that was given last: for its mark, which takes longer to make."""
        end = taken - self._base
        return self._buffer[max(0, end - MARK_BYTES) : end]

    def mark(self, taken: int, tail: bytes) -> Mark:
        return self._file.mark_after(taken, tail)

    def pieces(self) -> Iterator[Piece]:
        """Until the end, or to where the last object is not whole: its writer is not done. A compressed file has no writer."""
        while True:
            until, surely = self._segment()
            yield from self._objects(until, whole=surely or (self._over and self._compressed))
            if surely:
                self._at = max(self._at, until)
            elif self._over:
                return
            elif self._base + len(self._buffer) - self._at >= MOST_ENVELOPE_BYTES:
                piece = self._too_long()
                if piece is None:
                    return
                yield piece

    def _more(self) -> None:
        chunk = next(self._chunks, b"")
        self._over = not chunk
        done = max(0, self._at - self._base - MARK_BYTES)
        self._buffer = self._buffer[done:] + chunk
        self._base += done

    def _segment(self) -> tuple[int, bool]:
        """Where the next envelope begins, and that it surely does; or the end of what was read, which is enough of it."""
        searched = self._at + 1
        while True:
            found = _BEGINNING.search(self._buffer, searched - self._base)
            if found:
                return self._base + found.start(), True
            end = self._base + len(self._buffer)
            if self._over or end - self._at >= MOST_ENVELOPE_BYTES:
                return end, False
            searched = max(searched, end - _MOST_BEGINNING)
            self._more()

    def _objects(self, until: int, *, whole: bool) -> Iterator[Piece]:
        """Pieces up to a place; up to the last unfinished one where more may come, unless it is the `whole`."""
        segment = self._buffer[self._at - self._base : until - self._base]
        start = self._at
        text = segment.decode("utf-8", "surrogateescape")
        at = _after_blanks(segment, 0)
        place = at  # the same in the text
        self._at = start + at
        while at < len(segment):
            if segment[at : at + 1] == b"{":
                piece = _object(segment, at, text, place, start, whole=whole)
            else:
                piece = _no_object(segment, at, start, whole=whole)
            if piece is None:
                return
            end = _after_blanks(segment, piece.end - start)
            place += end - at if len(text) == len(segment) else len(segment[at:end].decode("utf-8", "surrogateescape"))
            at = end
            self._at = start + at
            yield piece._replace(end=self._at)

    def _too_long(self) -> Piece | None:
        """What has no end within bounds, up to where an envelope begins; None when none does."""
        start = self._at
        beginning = self._buffer[start - self._base :][:_LOOKED_AT]
        digest = blake2b(digest_size=DIGEST_BYTES)
        while True:
            found = _BEGINNING.search(self._buffer, max(self._at, start + 1) - self._base)
            end = self._base + len(self._buffer)
            stop = self._base + found.start() if found else end if self._over else end - _MOST_BEGINNING
            digest.update(self._buffer[self._at - self._base : stop - self._base])
            self._at = max(self._at, stop)
            if found or (self._over and self._compressed):
                break
            if self._over:
                self._at = start  # to be looked at again when there is more
                return None
            self._more()
        return Piece(start, self._at, None, _endless(self._at - start), _kept(beginning), digest.digest())


def _reason(error: Exception) -> str:
    return getattr(error, "msg", "") or (
        "nested too deeply" if isinstance(error, RecursionError) else "a strange number"
    )


def _after_blanks(segment: bytes, at: int) -> int:
    found = _BLANKS.match(segment, at)
    return found.end() if found else at


def _object(segment: bytes, at: int, text: str, place: int, start: int, *, whole: bool) -> Piece | None:
    """The object that begins at a byte of the segment, which is at that place of its text."""
    try:
        envelope, stop = _decode(text, place)
    except (ValueError, RecursionError) as error:
        return _broken(segment, at, start, f"not JSON: {_reason(error)}", whole=whole)
    size = stop - place
    if len(text) != len(segment):
        size = len(text[place:stop].encode("utf-8", "surrogateescape"))
    if size > MOST_ENVELOPE_BYTES:
        return _without_end(segment, at, start, whole=whole)
    return Piece(start + at, start + at + size, envelope)


def _broken(segment: bytes, at: int, start: int, wrong: str, *, whole: bool) -> Piece | None:
    """What begins like an object and is none, up to where its brackets end; None when they may yet."""
    end = _end_of_brackets(segment, at, at + MOST_ENVELOPE_BYTES)
    return _without_end(segment, at, start, whole=whole) if end is None else _bad(segment, at, end, start, wrong)


def _no_object(segment: bytes, at: int, start: int, *, whole: bool) -> Piece | None:
    """What is no object, up to the end of the line. A line that ends with a brace may be the beginning of an envelope."""
    line = _END_OF_LINE.search(segment, at, at + MOST_ENVELOPE_BYTES)
    if line is None:
        return _without_end(segment, at, start, whole=whole)
    return _bad(segment, at, line.end(), start, "not an envelope of Sonar")


def _without_end(segment: bytes, at: int, start: int, *, whole: bool) -> Piece | None:
    """What does not end within bounds, up to the next envelope; None when that may not be there yet."""
    return _bad(segment, at, len(segment), start, _endless(len(segment) - at)) if whole else None


def _endless(size: int) -> str:
    if size <= MOST_ENVELOPE_BYTES:
        return "torn: it has no end"
    return f"{size} bytes without an end, which no envelope has"


def _bad(segment: bytes, at: int, end: int, start: int, wrong: str) -> Piece:
    digest = blake2b(segment[at:end], digest_size=DIGEST_BYTES).digest()
    return Piece(start + at, start + end, None, wrong, _kept(segment[at : min(end, at + _LOOKED_AT)]), digest)


def _kept(beginning: bytes) -> bytes:
    """For people; more is looked at than kept, so that a token is found that ends later."""
    return without_token(beginning[:_LOOKED_AT])[:KEPT_BYTES].rstrip()


def _end_of_brackets(segment: bytes, at: int, most: int) -> int | None:
    depth = 0
    for token in _STRUCTURE.finditer(segment, at, most):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth == 0:
                    return token.end()
            case b'"':  # a text without an end
                return None
    return None
