"""Envelopes of Sonar: JSON objects in a file, one per line or pretty-printed, or truncated.

Where an object ends depends only on the bytes before, so that a file read in parts yields the same
as a file read at once. Unknown keys are ignored, and the token in `meta` is never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from json import JSONDecoder
from typing import Any, Final, NamedTuple

from publisher.sources.files.log_files import MARK_BYTES, FilePosition, LogFile, clean
from publisher.sources.importers import DIGEST_BYTES, KEPT_BYTES
from publisher.sources.sonar.old_formats import ADVICE, old_csv, old_object
from publisher.sources.sonar.records import BadTime, read_moment

_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?")
# Sizes of memory were cut before: the unit up to 0.15, what is not a whole number up to 0.18.1.
_RIGHT_SIZES: Final = (0, 18, 2)
_MOST_NAME: Final = 255
_MOST_DETAIL: Final = 200


class BadEnvelope(Exception):
    """An envelope that cannot be understood, and why."""


class EnvelopeKind(StrEnum):
    """What an envelope is about."""

    JOBS = "job"
    SAMPLE = "sample"
    SYSTEM = "sysinfo"
    CLUSTER = "cluster"
    ERRORS = "errors"


_KINDS: Final = {
    "job": EnvelopeKind.JOBS,
    "jobs": EnvelopeKind.JOBS,
    "sample": EnvelopeKind.SAMPLE,
    "sysinfo": EnvelopeKind.SYSTEM,
    "cluster": EnvelopeKind.CLUSTER,
    "cluzter": EnvelopeKind.CLUSTER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """`at` is when it was measured, epoch seconds; `attributes` are empty for errors."""

    kind: EnvelopeKind
    at: int
    cluster: str
    node: str
    right_sizes: bool  # whether sizes of memory can be believed
    strange_format: str  # of the data, '' for the one that is known: 0, which is not written
    attributes: dict[str, Any]
    errors: tuple[str, ...] = ()

    def entries(self, key: str) -> Sequence[Any]:
        """A list of it, empty when absent. Raises: BadEnvelope."""
        found = self.attributes.get(key) or []
        if not isinstance(found, list):
            raise BadEnvelope(f"{key} is not a list")
        return found


def _of_errors(errors: Any) -> Envelope:
    return Envelope(
        kind=EnvelopeKind.ERRORS,
        at=0,
        cluster="",
        node="",
        right_sizes=False,
        strange_format="",
        attributes={},
        errors=_error_texts(errors),
    )


def open_envelope(decoded: dict[str, Any]) -> Envelope:
    """Raises: BadEnvelope."""
    meta, data, errors = decoded.get("meta"), decoded.get("data"), decoded.get("errors")
    if not isinstance(meta, dict):
        raise BadEnvelope(old_object(decoded) or "has no meta: not an envelope of Sonar")
    if errors is not None:
        if data is not None:
            raise BadEnvelope("has both data and errors")
        return _of_errors(errors)
    if not isinstance(data, dict):
        raise BadEnvelope("has neither data nor errors")
    what, attributes = data.get("type"), data.get("attributes")
    if what == "slurm_jobs":
        raise BadEnvelope(f"written by Sonar before 0.13, in a form that is not read: {ADVICE}")
    if not isinstance(what, str) or what not in _KINDS:
        raise BadEnvelope(f"of the type {_word(what)[:40]!r}, which is not known")
    if not isinstance(attributes, dict):
        raise BadEnvelope("has no attributes")
    try:
        at = read_moment(attributes.get("time"))
    except BadTime as error:
        raise BadEnvelope(f"time: {error}") from None
    return Envelope(
        kind=_KINDS[what],
        at=at,
        cluster=_name(attributes, "cluster"),
        node=_name(attributes, "node"),
        right_sizes=_right_sizes(meta),
        strange_format=_strange_format(meta),
        attributes=attributes,
    )


def _name(attributes: dict[str, Any], key: str) -> str:
    name = attributes.get(key, "")
    if not isinstance(name, str) or len(name) > _MOST_NAME:
        raise BadEnvelope(f"{key} is not a name")
    return clean(name)


def _right_sizes(meta: dict[str, Any]) -> bool:
    """By Sonar's version; other producers are believed."""
    if meta.get("producer") != "sonar":
        return True
    found = _VERSION.match(_word(meta.get("version")))
    return found is not None and tuple(int(part or 0) for part in found.groups()) >= _RIGHT_SIZES


def _strange_format(meta: dict[str, Any]) -> str:
    form = meta.get("format", 0)
    is_known = form == 0 and isinstance(form, int) and not isinstance(form, bool)
    return "" if is_known else repr(form)[:40]


def _error_texts(errors: object) -> tuple[str, ...]:
    if not isinstance(errors, list) or not errors:
        raise BadEnvelope("errors is not a list, or an empty one")
    return tuple(_error(each) for each in errors)


def _error(error: object) -> str:
    if not isinstance(error, dict):
        return "an error without words"
    node = _word(error.get("node")) or _word(error.get("cluster"))
    detail = _word(error.get("detail"))
    where = f"{node[:_MOST_NAME]}: " if node else ""
    return clean(where + (detail[:_MOST_DETAIL] or "no detail"))


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


# Sonar writes at most 500 records into an envelope, some 300 kB; formerly some megabytes.
MOST_ENVELOPE_BYTES: Final = 8 * 1024 * 1024
# How every envelope begins, and nothing inside one: quotes have a backslash there.
_BEGINNING: Final = re.compile(rb'\{\s{0,64}"meta"\s{0,64}:')
_MOST_BEGINNING: Final = 256  # bytes, generously
_LOOKED_AT: Final = 2 * KEPT_BYTES  # for a token, in what is set aside
_BLANKS: Final = re.compile(rb"\s*")
_END_OF_LINE: Final = re.compile(rb"[^\s{]\s*?\n")
_STRUCTURE: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]"]', re.DOTALL)
_TOKEN: Final = re.compile(rb'("token"\s*+:\s*+)"[^"\\]*+(?:\\.[^"\\]*+)*+"?')
_decode: Final = JSONDecoder().raw_decode


class Piece(NamedTuple):
    """An object, or what is none and why: `content` is its beginning, without its token."""

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
        """Bytes at the end that wait for their rest, when all pieces were read."""
        return self._base + len(self._buffer) - self._at

    def tail(self, consumed: int) -> bytes:
        """What is before the place where the last piece ends, for its mark, which is costly."""
        end = consumed - self._base
        return self._buffer[max(0, end - MARK_BYTES) : end]

    def mark(self, consumed: int, tail: bytes) -> FilePosition:
        return self._file.mark_after(consumed, tail)

    def pieces(self) -> Iterator[Piece]:
        """To the end or to an unfinished last object; nobody writes on in a compressed file."""
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
        """Where the next envelope surely begins; or the end of what was read, which is enough."""
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
        """Pieces up to a place; up to the last unfinished one unless it is the `whole`."""
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
            if len(text) == len(segment):
                place += end - at
            else:
                place += len(segment[at:end].decode("utf-8", "surrogateescape"))
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
            stop = end if self._over else end - _MOST_BEGINNING
            if found:
                stop = self._base + found.start()
            digest.update(self._buffer[self._at - self._base : stop - self._base])
            self._at = max(self._at, stop)
            if found or (self._over and self._compressed):
                break
            if self._over:
                self._at = start  # to be examined again when there is more
                return None
            self._more()
        wrong = _endless(self._at - start)
        return Piece(start, self._at, None, wrong, _kept(beginning), digest.digest())


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return getattr(error, "msg", "") or "a strange number"


def _after_blanks(segment: bytes, at: int) -> int:
    found = _BLANKS.match(segment, at)
    return found.end() if found else at


def _object(
    segment: bytes, at: int, text: str, place: int, start: int, *, whole: bool
) -> Piece | None:
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
    """What begins like an object and is none, to the end of its brackets, or None before that."""
    end = _end_of_brackets(segment, at, at + MOST_ENVELOPE_BYTES)
    if end is None:
        return _without_end(segment, at, start, whole=whole)
    return _bad_piece(segment, at, end, start, wrong)


def _no_object(segment: bytes, at: int, start: int, *, whole: bool) -> Piece | None:
    """What is no object, to the end of the line; a brace at its end may begin an envelope."""
    line = _END_OF_LINE.search(segment, at, at + MOST_ENVELOPE_BYTES)
    if line is None:
        return _without_end(segment, at, start, whole=whole)
    wrong = old_csv(segment[at : min(line.end(), at + _LOOKED_AT)]) or "not an envelope of Sonar"
    return _bad_piece(segment, at, line.end(), start, wrong)


def _without_end(segment: bytes, at: int, start: int, *, whole: bool) -> Piece | None:
    """What does not end within bounds, up to the next envelope; None when that may be to come."""
    size = len(segment)
    return _bad_piece(segment, at, size, start, _endless(size - at)) if whole else None


def _endless(size: int) -> str:
    if size <= MOST_ENVELOPE_BYTES:
        return "torn: it has no end"
    return f"{size} bytes without an end, too long for an envelope"


def _bad_piece(segment: bytes, at: int, end: int, start: int, wrong: str) -> Piece:
    digest = blake2b(segment[at:end], digest_size=DIGEST_BYTES).digest()
    kept = _kept(segment[at : min(end, at + _LOOKED_AT)])
    return Piece(start + at, start + end, None, wrong, kept, digest)


def _kept(beginning: bytes) -> bytes:
    """For people; more is examined than kept, so that a token is found that ends later."""
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
