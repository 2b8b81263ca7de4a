"""APEL's text messages: a header, records of `Key: value` lines, `%%` between and after them.

A format is a table of lines, from which it is rendered and against which `check` holds a whole
payload. What would break the layout (line ends, other alphabets) is transliterated, what the loader
would cut a record at or the receiver would take for another kind of message is refused by name. The
sync message, which has no rules of its own, is here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, lru_cache
from typing import Any, ClassVar, Final, NamedTuple

from publisher.formats.apel.receiver import SYNC
from publisher.formats.apel.rules import INT_MAX, require_text
from publisher.formats.base import Frame, Receiver
from publisher.formats.compiled import Scope
from publisher.model.errors import Unfit
from publisher.model.rates import KINDS, Benchmark
from publisher.model.text import FORBIDDEN_IN_TEXT, NOT_GIVEN, ascii_text, may_hold_forbidden
from publisher.model.totals import SyncCount, column

BIGINT_MAX: Final = 2**63 - 1
CLOSING: Final = b"%%\n"

_LINE: Final = re.compile(r"([A-Za-z]+): ([!-~](?:[ -~]*[!-~])?)")
_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_LEVEL: Final = re.compile(r"(?:0|[1-9][0-9]{0,6})(?:\.[0-9]{1,3})?")
_KIND: Final = "(?:" + "|".join(KINDS.values()) + ")"
_ENTRIES: Final = re.compile(r"\{(" + _KIND + r": [0-9.]+(?:, " + _KIND + r": [0-9.]+)*)\}")


class TextKind(Enum):
    """What a value is: free text, a whole number, a benchmark's type or value, or these by type."""

    TEXT = "text"
    WHOLE = "whole"
    TYPE = "type"
    LEVEL = "level"
    LEVELS = "levels"
    WHOLES = "wholes"


@dataclass(frozen=True, slots=True)
class TextLine:
    """One key: its value's origin, and what the server accepts. None, or `none`, makes no line.

    `limit` counts characters of a text and is the largest number else. A text that is `spare` is
    left out where its words would sink the message: no key and no total depends on it.
    """

    key: str
    value: Callable[[Any], Any]
    of: Scope = field(default=Scope.RUN, kw_only=True)
    kind: TextKind = TextKind.TEXT
    limit: int = 255
    mandatory: bool = False
    spare: bool = False

    def write(self, subject: object) -> str:
        """The line, or ''. Raises: Unfit when the server would refuse it."""
        return self._line(self.value(subject))

    def write_each(self, subjects: Iterable[object]) -> list[str]:
        """The line of each; a value that many share is looked at once (hot path). Raises: Unfit."""
        values = list(map(self.value, subjects))
        if (
            self.kind is TextKind.WHOLE
            and values
            and None not in values
            and 0 <= min(values) <= max(values) <= self.limit
        ):
            return [f"{self.key}: {value}\n" for value in values]
        line_of = {value: self._line(value) for value in dict.fromkeys(values)}
        return [line_of[value] for value in values]

    def _line(self, value: Any) -> str:
        if self.kind is TextKind.WHOLE and value is not None:
            if 0 <= value <= self.limit:
                return f"{self.key}: {value}\n"
            raise Unfit("number-out-of-range", f"{self.key} {value} is not in 0 to {self.limit}")
        if self.kind is TextKind.TEXT:
            value = self._text(value)
        if value:
            return f"{self.key}: {value}\n"
        if self.mandatory:
            raise Unfit("value-missing", f"{self.key} is empty or means none to APEL")
        return ""

    def _text(self, text: str) -> str:
        text = ascii_text(text)
        if text.lower() in NOT_GIVEN or (self.spare and FORBIDDEN_IN_TEXT.search(text)):
            return ""
        require_value(self.key, text, self.limit)
        return text


def whole(key: str, value: Callable[[Any], int], *, limit: int = INT_MAX) -> TextLine:
    """A whole number that must be there."""
    return TextLine(key, value, kind=TextKind.WHOLE, limit=limit, mandatory=True)


def require_value(key: str, text: str, limit: int) -> None:
    """For a text in ASCII. Raises: Unfit when no message may hold it, or when it is too long."""
    if len(text) > limit:
        raise Unfit("text-too-long", f"{key} has {len(text)} characters, APEL keeps {limit}")
    require_text(key, text)


def text_user(user: str) -> str:
    """A user's name, percent-escaped as A-REX writes it, because `%%` ends a record."""
    return user.replace("%%", "%25%25")


def frame(header: str) -> Frame:
    """The frame of a message; a record ends with its last line's end."""
    return Frame(head=f"{header}\n".encode("ascii"), separator=CLOSING, tail=CLOSING)


def written(lines: Iterable[TextLine], subject: object) -> str:
    """These lines of one subject. Raises: Unfit for the first that the server would refuse."""
    return "".join([line.write(subject) for line in lines])


def written_each(lines: Iterable[TextLine], subjects: Sequence[object]) -> list[str]:
    """As `written`, of each subject. Raises: Unfit for a line that the server would refuse."""
    columns = [line.write_each(subjects) for line in lines]
    return list(map("".join, zip(*columns, strict=True)))


@lru_cache(maxsize=1024)
def levels(benchmarks: tuple[Benchmark, ...]) -> str:
    """Benchmarks as a dictionary: `{HEPscore23: 11.9, HEPSPEC: 10}`."""
    return "{" + ", ".join(f"{benchmark.kind}: {benchmark.text}" for benchmark in benchmarks) + "}"


class ValueComparison(NamedTuple):
    """Finds what is wrong between the values of some keys of a record; '' for nothing."""

    keys: tuple[str, ...] = ()
    fault: Callable[..., str] = lambda *_: ""


_NONE: Final = ValueComparison()


def check(
    payload: bytes, form: Frame, lines: tuple[TextLine, ...], compare: ValueComparison = _NONE
) -> None:
    """Hold a payload against its table.

    A record that is written as the table writes it is looked at once, any other line by line.
    Raises: Unfit naming the first fault and the record that has it.
    """
    if not payload.isascii():
        raise Unfit("not-ascii", "the message is not pure ASCII; APEL's receiver would stop")
    if not payload.startswith(form.head) or not payload.endswith(b"\n" + form.tail):
        what = "does not begin with its header, or does not end with a closing %%"
        raise Unfit("text-layout", f"the message {what}")
    by_key = {line.key: line for line in lines}
    as_written = _as_written(lines).fullmatch
    body = payload[len(form.head) : -len(form.tail)].decode("ascii").removesuffix("\n")
    records = body.split("\n%%\n")
    doubtful = may_hold_forbidden("\n".join(records))
    for number, record in enumerate(records, start=1):
        match = None if doubtful and FORBIDDEN_IN_TEXT.search(record) else as_written(record + "\n")
        fault = _fault(record, by_key, compare) if match is None else _fault_between(match, compare)
        if fault:
            raise Unfit("text-layout", f"record {number}: {fault}")


def _fault_between(match: re.Match[str], compare: ValueComparison) -> str:
    return compare.fault(*match.group(*compare.keys)) if compare.keys else ""


@cache
def _as_written(lines: tuple[TextLine, ...]) -> re.Pattern[str]:
    """Matches nearly every sound record with lines in the order of the table, and no other."""
    return re.compile(
        "".join(
            f"(?:{line.key}: (?P<{line.key}>{_pattern(line)})\n){'?'[line.mandatory :]}"
            for line in lines
        )
    )


def _pattern(line: TextLine) -> str:
    """Values that are sound in a line."""
    none = "|".join(sorted(NOT_GIVEN - {""}))
    whole = _whole_pattern(line.limit)
    level = _LEVEL.pattern
    patterns = {
        TextKind.TEXT: rf"(?!(?i:{none})\n)(?=.{{1,{line.limit}}}\n)[!-~](?:[ -~]*[!-~])?",
        TextKind.WHOLE: whole,
        TextKind.TYPE: _KIND,
        TextKind.LEVEL: level,
        TextKind.LEVELS: rf"\{{{_KIND}: {level}\}}",
        TextKind.WHOLES: rf"\{{{_KIND}: {whole}\}}",
    }
    return patterns[line.kind]


def _whole_pattern(limit: int) -> str:
    """Whole numbers up to a limit; beyond 99 only those with fewer digits, or as many nines."""
    if limit < 100:
        return f"(?:{'|'.join(map(str, range(limit, -1, -1)))})"
    digits = len(str(limit + 1)) - 1
    return f"(?:0|[1-9][0-9]{{0,{digits - 1}}})"


def _fault(record: str, by_key: Mapping[str, TextLine], compare: ValueComparison) -> str:
    values: dict[str, str] = {}
    for text in record.removesuffix("\n").split("\n"):
        match = _LINE.fullmatch(text)
        if match is None:
            return f"{text!r} is not a line of key and value"
        key, value = match.groups()
        if key in values:
            return f"{key} is repeated"
        if key not in by_key:
            return f"{key} is no key of this message"
        if fault := _value_fault(by_key[key], value):
            return f"{key} {fault}"
        values[key] = value
    for line in by_key.values():
        if line.mandatory and line.key not in values:
            return f"{line.key} is missing"
    return compare.fault(*(values[key] for key in compare.keys))


def _value_fault(line: TextLine, value: str) -> str:
    if FORBIDDEN_IN_TEXT.search(value):
        return "holds what no message may hold"
    match line.kind:
        case TextKind.TEXT:
            return _text_fault(value, line.limit)
        case TextKind.WHOLE:
            is_whole = _is_whole(value, line.limit)
            return "" if is_whole else f"{value!r} is not a whole number up to {line.limit}"
        case TextKind.TYPE:
            return "" if value in KINDS.values() else f"{value!r} is not a benchmark type"
        case TextKind.LEVEL:
            return "" if _LEVEL.fullmatch(value) else f"{value!r} is not a benchmark value"
        case TextKind.LEVELS | TextKind.WHOLES:
            return _entries_fault(line, value)


def _text_fault(value: str, limit: int) -> str:
    if len(value) > limit:
        return f"has {len(value)} characters, APEL keeps {limit}"
    return "says none" if value.lower() in NOT_GIVEN else ""


def _entries_fault(line: TextLine, value: str) -> str:
    match = _ENTRIES.fullmatch(value)
    if match is None:
        return f"{value!r} is not a dictionary by benchmark type"
    entries = [entry.split(": ") for entry in match[1].split(", ")]
    if len({kind for kind, _ in entries}) != len(entries):
        return f"{value!r} has a type twice"
    for _, number in entries:
        if line.kind is TextKind.WHOLES and not _is_whole(number, line.limit):
            return f"{value!r}: a number is not whole"
        if line.kind is TextKind.LEVELS and not _LEVEL.fullmatch(number):
            return f"{value!r}: a value is not a benchmark's"
    return ""


def _is_whole(text: str, limit: int) -> bool:
    return _WHOLE.fullmatch(text) is not None and int(text) <= limit


# Spec: APEL's sync record. The server checks nothing of it.
SYNC_LINES: Final = (
    TextLine("Site", lambda count: count.site, mandatory=True),
    TextLine("SubmitHost", lambda count: count.submit_host),
    whole("NumberOfJobs", lambda count: count.jobs),
    whole("Month", lambda count: count.month, limit=12),
    whole("Year", lambda count: count.year, limit=9999),
)


class ApelSync:
    """How many jobs a site holds for each submit host and month, to compare with what arrived.

    A count of 0 takes back one that was announced.
    """

    name: ClassVar[str] = "apel-sync-0.1"
    receiver: ClassVar[Receiver] = SYNC
    frame: ClassVar[Frame] = frame("APEL-sync-message: v0.1")

    def render(self, count: SyncCount) -> bytes:
        """The lines of one count."""
        return written(SYNC_LINES, count).encode("ascii")

    def receiver_key(self, count: SyncCount) -> tuple[object, ...]:
        """Site, SubmitHost, Month and Year, as the server compares them."""
        return column(count.site), column(count.submit_host), count.month, count.year

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and the record that has it."""
        check(payload, self.frame, SYNC_LINES)


def create(name: str) -> ApelSync:
    return {ApelSync.name: ApelSync}[name]()
