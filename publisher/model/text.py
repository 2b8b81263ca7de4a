"""Text and host names as receivers accept them: ASCII for APEL, XML 1.0's characters for all.

One non-ASCII byte stops APEL's receiver for all sites, and a character outside the server's charset
rejects the message (SSM 4.0.0 and APEL 2.5.0). So text that APEL stores is transliterated, in CAR
and in text messages alike.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import urlsplit


@lru_cache(maxsize=4096)
def endpoint_host(url: str) -> str:
    """Host of an endpoint URL or ''. IPv6, in brackets or not, keeps its digits and colons."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
        if netloc.count(":") > 1 and not netloc.startswith("["):
            # A-REX composes URLs of addresses without brackets: https://2001:db8::1:443/arex
            host, _, port = netloc.rpartition(":")
            return (host if port.isdecimal() and _is_ipv6(host) else netloc).lower()
        return parts.hostname or ""
    except ValueError:
        return ""


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def is_domain_name(host: str) -> bool:
    """Whether the CAR and UR schemas take it as a domainNameType.

    At most 255 characters; labels of at least two letters, digits or inner hyphens.
    """
    labels = host.split(".")
    return (
        len(host) <= 255
        and host.isascii()
        and host.replace("-", "").replace(".", "").isalnum()
        and all(len(label) >= 2 and label[0].isalnum() and label[-1].isalnum() for label in labels)
    )


# Letters that decomposition leaves whole. Names are what the field has: Nordic, German, Polish,
# Croatian, Turkish, Icelandic.
_LETTERS: Final = str.maketrans(
    {
        "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O",
        "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ł": "l", "Ł": "L",
        "ħ": "h", "Ħ": "H", "ı": "i", "ŋ": "n", "Ŋ": "N", "ŧ": "t", "Ŧ": "T", "‐": "-", "‑": "-",
        "‒": "-", "–": "-", "—": "-", "−": "-", "‘": "'", "’": "'", "“": '"', "”": '"',
        "…": "...", "ʼ": "'", "\u00a0": " ",
    }
)  # fmt: skip
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_BLANKS: Final = re.compile(r"[\t\n\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029 ]+")
# What XML 1.0 section 2.2 (Char) does not allow; lone surrogates are bytes that were not UTF-8. The
# other way round, what it does allow, is slow to compile at every start.
_NOT_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

# A-REX's writer percent-escapes these, in lower case.
_AREX_ESCAPED: Final = re.compile(r"%(27|23|25|0d|0a|08|00)")
_AREX_SPECIAL: Final = re.compile("['#%\r\n\b\0]")


def ascii_text(text: str) -> str:
    """The text in printable ASCII, trimmed: transliterated where possible, else `?`."""
    if text.isascii() and text.isprintable():
        return text.strip()
    # Decomposed first: ǿ is ø with an accent, and only then found in the table.
    decomposed = unicodedata.normalize("NFKD", _BLANKS.sub(" ", text))
    bare = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return _UNPRINTABLE.sub("?", bare.translate(_LETTERS)).strip()


def xml_text(text: str) -> str:
    """The text with every character that XML 1.0 forbids replaced by U+FFFD, and trimmed."""
    if text.isprintable() and text.isascii():
        return text.strip()
    return _NOT_XML.sub("\ufffd", text).strip()


def arex_unescape(text: str) -> str:
    """Undo A-REX's percent-escapes once: `O%27Neil` becomes `O'Neil`, `%2527` becomes `%27`."""
    if "%" not in text:
        return text
    return _AREX_ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def arex_escape(text: str) -> str:
    """The spelling of a text in A-REX's database, which jura-ng publishes as it is."""
    return _AREX_SPECIAL.sub(lambda match: f"%{ord(match[0]):02x}", text)


def receiver_key(text: str) -> str:
    """The text as the server's key columns compare it: without case, accents and trailing blanks.

    Spec: MariaDB `latin1_swedish_ci`, measured on APEL 2.5.0.
    """
    if text.isalnum() and text.isascii():  # as job ids are: nothing to trim or to spell
        return text.lower()
    return ascii_text(text).rstrip().casefold()


NO_VO: Final = "(no VO)"
"""What people see in place of the VO of a job that has none."""

# Texts that the server takes for "not given", in any case.
NOT_GIVEN: Final = frozenset(("", "none", "null"))


# SSM 4.0.0 takes a message that holds one of these anywhere for an encrypted one; `%%` ends a
# record of a text message. XML defuses them by character references (formats/xml/text.py), text
# cannot.
FORBIDDEN_IN_TEXT: Final = re.compile(r"application/(?:x-)?pkcs7-mime|%%", re.IGNORECASE)


def may_hold_forbidden(text: str) -> bool:
    """False where `FORBIDDEN_IN_TEXT` finds nothing in an ASCII text: quick, also in a long one."""
    return "%%" in text or "pkcs7-mime" in text.lower()


_SHOWN: Final = 80


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun: 1 job, 2,000 jobs; `many` where an s is not enough (`jobs are`)."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def shown(text: str) -> str:
    """Text of the file for messages and comments: one printable line of a readable length."""
    if len(text) > _SHOWN:
        text = f"{text[: _SHOWN - 3]}..."
    return printable(text)


def printable(text: str) -> str:
    """Text that moves no cursor and breaks no line."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def visible(text: str) -> str:
    """A text on one line, nothing hiding or moving a cursor: names must not forge lines."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


# What spreadsheets take for a formula's beginning, also behind blanks (OWASP, CSV Injection).
_FORMULA: Final = r"\s*[=+\-@\t\r\n＝＋－＠]"
_NUMBER: Final = r"-?[0-9]+(\.[0-9]+)?"


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula, and `visible`. Numbers stay numbers."""
    if re.match(_FORMULA, text) and not re.fullmatch(_NUMBER, text):
        text = f"'{text}"
    return visible(text)
