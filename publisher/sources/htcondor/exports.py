"""Histories that `condor_history -json`, `-jsonl` or `-xml` printed, an ad at a time.

What stands between ads tells nothing, so reading may go on after any of them: arrays and documents
may follow each other, as when each day's is added to one file. Each ad is taken apart by itself;
no document type is read, and so no entity is defined but those that XML has.

    [ { "JobStatus": 4, "Owner": "ann", "Rank": "\\/Expr(TARGET.Memory)\\/" } ]
    <classads><c><a n="JobStatus"><i>4</i></a><a n="Owner"><s>ann</s></a></c></classads>
    ->  {"jobstatus": "4", "owner": '"ann"'}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from xml.parsers import expat

from publisher.sources.htcondor.classads import Ad, BadAd, ad_of, record_text, text_literal

MOST_BYTES: Final = 8 * 1024 * 1024  # of one ad
TOO_LONG: Final = "is too long for the ClassAd of a job"
CUT_SHORT: Final = "ends before its end, as after a crash in the midst of writing"
_MOST_DEPTH: Final = 100  # of ads within ads
_TOO_DEEP: Final = "has too many ads within each other"
_NO_AD: Final = "is no ClassAd"
_UNKNOWN: Final = "undefined"
_MARK: Final = b"\xef\xbb\xbf"  # with which some programs begin a text


class FramedAd(NamedTuple):
    """An ad, or what stands in its place, and where."""

    offset: int
    end: int
    content: bytes
    wrong: str = ""


class _AdEnd(NamedTuple):
    """Where an ad, or what stands in its place, ends in a buffer."""

    end: int
    wrong: str = ""


class AdForm(NamedTuple):
    """How ads are written."""

    between: re.Pattern[bytes]  # what may stand between two; matches the empty text too
    opening: re.Pattern[bytes]
    frame: Callable[[bytes, int], _AdEnd | None]  # of the ad that begins there; None: not whole
    read: Callable[[bytes], Ad]  # raises BadAd
    without_ads: re.Pattern[bytes]  # a whole content without any, as of a day without jobs


def form_of(beginning: bytes) -> AdForm | None:
    """Return the form of a file that begins so, None for the lines of the long format."""
    text = beginning.removeprefix(_MARK).lstrip()
    if text.startswith((b"{", b"[")):
        return _JSON
    return _XML if text.startswith(b"<") else None


def framed_ads(
    parts: Iterable[bytes], start: int, form: AdForm, *, over: bool
) -> Iterator[FramedAd]:
    """Yield the ads of a content from a place on.

    A last one that is not whole is left, or set aside where nobody will write any more (`over`) and
    there are others.
    """
    buffer, at = b"", start  # where the buffer begins
    is_begun = start > 0
    for part in parts:
        buffer += part
        place = 0
        while True:
            begin = _after_between(form, buffer, place)
            frame = _next_frame(form, buffer, begin)
            if frame is None:
                break
            yield FramedAd(at + begin, at + frame.end, buffer[begin : frame.end], frame.wrong)
            place, is_begun = frame.end, True
        buffer, at = buffer[begin:], at + begin
    if over and buffer and is_begun:
        yield FramedAd(at, at + len(buffer), buffer, CUT_SHORT)


def _after_between(form: AdForm, buffer: bytes, place: int) -> int:
    found = form.between.match(buffer, place)
    return place if found is None else found.end()


def _next_frame(form: AdForm, buffer: bytes, begin: int) -> _AdEnd | None:
    """Return the frame of what begins there, None where more of the content must be known."""
    opening = form.opening.search(buffer, begin)
    if opening is not None and opening.start() > begin:
        return _AdEnd(opening.start(), _NO_AD)
    frame = None if opening is None else form.frame(buffer, begin)
    if frame is None and len(buffer) - begin > MOST_BYTES:
        return _AdEnd(len(buffer), TOO_LONG)
    return frame


# A text; a brace; a brace at the beginning of a line, where HTCondor begins each ad and no other
# object. A text does not go over the end of a line.
_JSON_TOKEN: Final = re.compile(rb'"(?:[^"\\\n]++|\\[^\n])*+("?)|\n\{|[{}]')


def _json_frame(buffer: bytes, begin: int) -> _AdEnd | None:
    # Hot path: an ad has hundreds of texts.
    depth = 0
    for token in _JSON_TOKEN.finditer(buffer, begin):
        first = buffer[token.start()]
        if first == ord("{"):
            depth += 1
            if depth > _MOST_DEPTH:
                return _AdEnd(token.end(), _TOO_DEEP)
        elif first == ord("}"):
            depth -= 1
            if depth == 0:
                return _AdEnd(token.end())
        elif first == ord("\n"):
            return _AdEnd(token.start(), CUT_SHORT)
        elif not token[1]:
            is_torn = token.end() < len(buffer) - 1  # else more of it may follow
            return _AdEnd(token.end(), CUT_SHORT) if is_torn else None
    return None


class _Object(list[tuple[str, object]]):
    """The names and values of an object of JSON."""


def _read_json(content: bytes) -> Ad:
    """Raises: BadAd."""
    text = content.decode("utf-8", "replace")
    try:
        found = json.loads(text, strict=False, object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        raise BadAd(f"is no JSON: {error}") from error
    return ad_of((name, _json_expression(value)) for name, value in found)


def _json_expression(value: object) -> str:
    if isinstance(value, _Object):
        return record_text((name, _plain_json(inner)) for name, inner in value)
    return _plain_json(value)


def _plain_json(value: object) -> str:
    if isinstance(value, str):
        is_expression = value.startswith("/Expr(") and value.endswith(")/")
        return value[6:-2] if is_expression else text_literal(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return _UNKNOWN


# A nested ad has the tags of an ad, and the others stand between ads only.
_XML_TAG: Final = re.compile(rb"<(?:(/?)c\s*>|[?!]|/?classads)")


def _xml_frame(buffer: bytes, begin: int) -> _AdEnd | None:
    depth = 0
    for tag in _XML_TAG.finditer(buffer, begin):
        if tag[1] is None:
            return _AdEnd(tag.start(), CUT_SHORT)
        depth += -1 if tag[1] else 1
        if depth == 0:
            return _AdEnd(tag.end())
        if depth > _MOST_DEPTH:
            return _AdEnd(tag.end(), _TOO_DEEP)
    return None


_RECORD_DEPTH: Final = 3  # of a nested ad: an ad, its attribute, and the value of that
_NOT_IN_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def _read_xml(content: bytes) -> Ad:
    """Raises: BadAd."""
    text = _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", content.decode("utf-8", "replace"))
    reader = _XmlReader()
    parser = expat.ParserCreate("UTF-8")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise BadAd(f"is no XML: {error}") from error
    return ad_of(reader.attributes)


class _XmlReader:
    """Attributes of an ad, `c`: each is an element `a` with its name, and in it one of its kind."""

    def __init__(self) -> None:
        self.attributes: list[tuple[str, str]] = []
        self._record: list[tuple[str, str]] = []  # of a nested ad
        self._names: list[str] = []  # of the attributes that are open
        self._depth = 0
        self._value = ""

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if tag == "a":
            self._names.append(attributes.get("n", ""))
        elif tag == "b":
            self._value = attributes.get("v", "")
        else:
            self._value = ""
        if tag == "c" and self._depth == _RECORD_DEPTH:
            self._record = []

    def text(self, text: str) -> None:
        self._value += text

    def end(self, tag: str) -> None:
        self._depth -= 1
        if tag == "a":
            self._names.pop()
        elif self._depth == _RECORD_DEPTH - 1 and len(self._names) == 1:
            self.attributes.append((self._names[-1], self._expression(tag)))
        elif self._depth == _RECORD_DEPTH + 1 and len(self._names) == 2:
            self._record.append((self._names[-1], self._expression(tag)))

    def _expression(self, kind: str) -> str:
        if kind == "s":
            return text_literal(self._value)
        if kind in ("i", "r", "e"):
            return self._value.strip()
        if kind == "b":
            return "true" if self._value == "t" else "false"
        return record_text(self._record) if kind == "c" else _UNKNOWN


_JSON: Final = AdForm(
    re.compile(rb"[\s\[\],\xef\xbb\xbf]*+"),
    re.compile(rb"\{"),
    _json_frame,
    _read_json,
    re.compile(rb"(?:[\s\xef\xbb\xbf]*+\[\s*+\])++\s*+"),
)
_PROLOG: Final = rb"[\s\xef\xbb\xbf]++|<\?[^>]*\?>|<!DOCTYPE[^>\[]*>"
_XML: Final = AdForm(
    re.compile(rb"(?:" + _PROLOG + rb"|</?classads\s*>)*+", re.IGNORECASE),
    re.compile(rb"<c\s*>"),
    _xml_frame,
    _read_xml,
    re.compile(rb"(?:(?:" + _PROLOG + rb")*+<classads\s*>\s*+</classads\s*>)++\s*+", re.IGNORECASE),
)
