"""ClassAds as HTCondor writes them into histories: `Name = value` on each line.

Numbers, texts, booleans and records of these are read; lists, expressions and `undefined` are
unknown. In this older syntax a backslash stands for itself, except before a quotation mark.

    'JobStatus = 4', 'Owner = "ann"', 'Requirements = TARGET.Cpus > 2'
    ->  {"jobstatus": "4", "owner": '"ann"', "requirements": "TARGET.Cpus > 2"}

A text that goes over several lines, which HTCondor does not escape, hides what is in these lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Final

Value = str | int | float | bool | None
Ad = Mapping[str, str]  # expressions by names in small letters: HTCondor does not tell them apart

_MOST_VALUE: Final = 262_144  # characters; a longer one is unknown
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_REAL: Final = re.compile(
    r"-?(?:[0-9]{1,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?", re.ASCII
)
_WORDS: Final[Mapping[str, bool]] = {"true": True, "false": False}
_COMPOUND: Final = ('"', "[", "{")
_ONLY_ONCE: Final = "globaljobid"
_MORE_THAN_ONE: Final = "holds more than one job, as after a crash in the midst of writing"


class BadAd(Exception):
    """Lines that are no ClassAd, and why."""


def read_ad(text: str) -> Ad:
    """The attributes of one ad; of one that is there twice, the last. Raises: BadAd."""
    found: dict[str, str] = {}
    open_text = False
    for line in text.split("\n"):
        if open_text:
            open_text = not _ends_text(line)
            continue
        # Hot path: an ad has hundreds of lines, nearly all of this form.
        name, _, value = line.partition(" = ")
        name, value = name.lower(), value.strip()
        if value[:1] in "=" or not name.isidentifier():
            if not line.strip():
                continue
            name, value = _assignment(line)
        if name == _ONLY_ONCE and found.get(name, value) != value:
            raise BadAd(_MORE_THAN_ONE)
        found[name] = value
        open_text = value[:1] == '"' and not _is_text(value)
    if open_text:
        raise BadAd("has a text without an end")
    return found


def ad_of(attributes: Iterable[tuple[str, str]]) -> Ad:
    """Return an ad of names and expressions; of a name that is there twice, the last.

    Raises: BadAd.
    """
    found: dict[str, str] = {}
    for name, expression in attributes:
        name = name.lower()
        if name == _ONLY_ONCE and found.get(name, expression) != expression:
            raise BadAd(_MORE_THAN_ONE)
        found[name] = expression
    return found


def text_literal(text: str) -> str:
    """Return the expression of a text."""
    return '"' + text.replace('"', '\\"') + '"'


def record_text(attributes: Iterable[tuple[str, str]]) -> str:
    """Return the expression of a nested ad, with numbers and words only."""
    plain = (f"{name} = {value}" for name, value in attributes if value[:1] not in _COMPOUND)
    return f"[ {'; '.join(plain)} ]"


def _assignment(line: str) -> tuple[str, str]:
    """Name in small letters, and value. Raises: BadAd."""
    name, equals, value = line.partition("=")
    name, value = name.strip().lower(), value.strip()
    if not name or not equals or value.startswith("="):
        raise BadAd(f"{line[:64]!r} is not `Name = value`")
    return name, value


def read_value(expression: str) -> Value:
    """A number, text or boolean; None for what is undefined, or none of these."""
    if len(expression) > _MOST_VALUE:
        return None
    if expression.startswith('"'):
        return expression[1:-1].replace('\\"', '"') if _is_text(expression) else None
    if _INTEGER.fullmatch(expression):
        return int(expression)
    if _REAL.fullmatch(expression):
        number = float(expression)
        return number if isfinite(number) else None
    return _WORDS.get(expression.lower())


def read_record(expression: str) -> Mapping[str, Value]:
    """The values of a nested ad, `[ HEPSPEC = 12.5 ]`, by lower-case names; empty for none."""
    is_record = expression.startswith("[") and expression.endswith("]")
    if len(expression) > _MOST_VALUE or not is_record:
        return {}
    parts = (part.partition("=") for part in expression[1:-1].split(";"))
    return {name.strip().lower(): read_value(value.strip()) for name, _, value in parts}


def _is_text(value: str) -> bool:
    if len(value) < 2 or value[-1] != '"':
        return False
    return value.count('"') == 2 or '"' not in value[1:-1].replace('\\"', "")


def _ends_text(line: str) -> bool:
    """Whether a text from an earlier line ends with this one. Raises: BadAd when it ends within."""
    line = line.rstrip()
    quoted = line.endswith('"') and not line.endswith('\\"')
    if '"' in (line[:-1] if quoted else line).replace('\\"', ""):
        raise BadAd("has a text without an end")
    return quoted
