"""Values as A-REX stores them: numbers that went through 32 bits, text that may be no text, lists in one string."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from typing import Final

from publisher.errors import Unfit
from publisher.model.job import Epoch, Transfer
from publisher.model.text import arex_unescape

_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_KINDS: Final = {10: "download", 11: "cached", 20: "upload"}
_INT32: Final = 2**31
_INT63: Final = 2**63


def whole(value: object) -> int | None:
    """A stored number; None for NULL and for what is no whole number of 64 bits."""
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _INT63:
        return int(value)
    if isinstance(value, str) and _WHOLE.fullmatch(value) and -_INT63 <= int(value) < _INT63:
        return int(value)
    return None


def mandatory(column: str, value: object) -> int:
    """Raises: Unfit with rule `not-a-number` when there is none."""
    number = whole(value)
    if number is None:
        raise Unfit("not-a-number", f"{column} is {'NULL' if value is None else repr(value)}, not a whole number")
    return number


def positive(value: object) -> int | None:
    """A number of nodes or cores, or a moment; None when it is not positive, which is how A-REX writes unknown."""
    if value is None:
        return None
    if isinstance(value, int) and value > 0:  # nearly always; the others cost a call more
        return value
    number = whole(value)
    return number if number is not None and number > 0 else None


def unsigned(value: object) -> int | None:
    """A size: negative ones went through a signed 32-bit integer. 0 stays 0."""
    if isinstance(value, int) and value >= 0:
        return value
    number = whole(value)
    if number is None or number >= 0:
        return number
    return number + 2**32 if number >= -_INT32 else None


def exit_code(value: object) -> int | None:
    """A signed 32-bit exit code; 4294967295 is -1."""
    if isinstance(value, int) and -_INT32 <= value < _INT32:
        return value
    number = whole(value)
    return None if number is None else (number + _INT32) % 2**32 - _INT32


def text_of(value: object) -> str:
    """Stored text; '' for NULL. Bytes that are no UTF-8 stay as surrogate escapes."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)


def unescaped(value: object) -> str:
    """Stored text as it was before A-REX escaped it."""
    text = value if isinstance(value, str) else text_of(value)
    return arex_unescape(text) if "%" in text else text


def tolerant_text(stored: bytes) -> str:
    """Text factory for pages on which some text is not UTF-8."""
    return stored.decode("utf-8", "surrogateescape")


def is_undecodable(text: str) -> bool:
    return not text.isascii() and _SURROGATE.search(text) is not None


def anchor_text(stored: object) -> str:
    """A JobID as a cursor carries it: storable everywhere, even when it is not UTF-8."""
    return text_of(stored).encode("utf-8", "backslashreplace").decode("utf-8")


@lru_cache(maxsize=4096)
def hosts_of(nodes: str) -> tuple[str, ...]:
    """Node names joined with colons; one IPv6 address stays whole."""
    try:
        IPv6Address(nodes.strip("[]"))
    except AddressValueError:
        return tuple(dict.fromkeys(name for name in nodes.split(":") if name))
    return (nodes,)


def transfer(url: str, stored: Sequence[object]) -> Transfer | None:
    """A row of DataTransfers after its URL: size, start, end, type. None for a type that no format has a word for."""
    size, started, ended, kind = stored
    word = _KINDS.get(whole(kind) or 0)
    if word is None:
        return None
    return Transfer(kind=word, url=url, size_bytes=unsigned(size), started_at=_moment(started), ended_at=_moment(ended))


def _moment(value: object) -> Epoch | None:
    number = positive(value)
    return None if number is None else Epoch(number)
