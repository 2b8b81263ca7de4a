"""Text as the receivers bear it: plain ASCII for APEL, characters of XML 1.0 for everybody.

One non-ASCII byte stops APEL's receiver for all sites, and a character outside the server's charset rejects the message
(measured on SSM 4.0.0 and APEL 2.5.0), so text that APEL stores is transliterated, alike in CAR and in text messages.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# Letters that decomposition leaves whole. Names are what the field has: Nordic, German, Polish, Croatian, Turkish, Icelandic.
_LETTERS: Final = str.maketrans(
    {
        "ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D",
        "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ł": "l", "Ł": "L", "ħ": "h", "Ħ": "H", "ı": "i", "ŋ": "n", "Ŋ": "N",
        "ŧ": "t", "Ŧ": "T", "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "−": "-", "‘": "'", "’": "'",
        "“": '"', "”": '"', "…": "...", "ʼ": "'", "\u00a0": " ",
    }
)  # fmt: skip
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_BLANKS: Final = re.compile(r"[\t\n\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029 ]+")
# What XML 1.0 section 2.2 (Char) does not allow; lone surrogates are bytes that were not UTF-8. The other way round, what it
# does allow, takes 3 ms of every start to compile.
_NOT_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

# A-REX's writer percent-escapes these, in lower case (arc-database facts, section 4).
_AREX_ESCAPED: Final = re.compile(r"%(27|23|25|0d|0a|08|00)")
_AREX_SPECIAL: Final = re.compile("['#%\r\n\b\0]")


def ascii_text(text: str) -> str:
    """The text in printable ASCII, trimmed: transliterated where there is a spelling, `?` where there is none."""
    if text.isascii() and text.isprintable():
        return text.strip()
    # Decomposed first: ǿ is ø with an accent, and only then found in the table.
    spelt = unicodedata.normalize("NFKD", _BLANKS.sub(" ", text))
    spelt = "".join(letter for letter in spelt if not unicodedata.combining(letter)).translate(_LETTERS)
    return _UNPRINTABLE.sub("?", spelt).strip()


def xml_text(text: str) -> str:
    """The text with every character that XML 1.0 forbids replaced by U+FFFD, and trimmed."""
    if text.isprintable() and text.isascii():
        return text.strip()
    return _NOT_XML.sub("\ufffd", text).strip()


def arex_unescape(text: str) -> str:
    """Undo A-REX's percent-escapes, once, left to right: `O%27Neil` becomes `O'Neil`, `%2527` becomes `%27`."""
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
