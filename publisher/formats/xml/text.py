"""XML text: the one place where escaping happens.

Records are written by templates instead of an element tree, which is ten times slower (hot path).
This is safe because nothing gets into a template without an escape function of this module.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from threading import Lock
from typing import Final

from publisher.model.text import xml_text

ONE_SCHEMA_AT_A_TIME: Final = Lock()
"""Held while a schema is made or asked, for targets are worked on in threads.

libxml2 sets up the types of all schemas once a process, without a lock, and lxml lets go of the
interpreter meanwhile: a second target that came just then found half of them ("Document is not
valid XML Schema", and valid records set aside). A schema's error log is not a thread's own either.
"""

# The hyphens that would spell a type name which makes SSM 4.0.0 take a clear message for an
# encrypted one, anywhere in the message (measured): as a reference the parsed value stays, and the
# raw bytes do not hold the name.
_PKCS7_HYPHEN: Final = "(?<=application/pkcs7)-(?=mime)|(?<=application/x-pkcs7)-(?=mime)"
_MARKUP: Final = '[&<>"\t\n\r\x7f]'
_TO_ASCII: Final = re.compile(f"{_MARKUP}|[^\\x00-\\x7f]|{_PKCS7_HYPHEN}", re.IGNORECASE)
_TO_UNICODE: Final = re.compile(f"{_MARKUP}|{_PKCS7_HYPHEN}", re.IGNORECASE)
_NAMED: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


def escape_ascii(text: str) -> str:
    """The text for element content or a double-quoted attribute in pure ASCII; trimmed.

    Characters outside ASCII become numeric references, those that XML 1.0 forbids U+FFFD. Tab, LF,
    CR and DEL become references too: raw ones would be folded by the parser, and CR breaks an
    S/MIME signature.
    """
    if _is_plain(text):
        return _with_names(text)
    return _TO_ASCII.sub(_reference, xml_text(text))


def escape_unicode(text: str) -> str:
    """As `escape_ascii` for a document in UTF-8: characters outside ASCII stay as they are."""
    if _is_plain(text):
        return _with_names(text)
    return _TO_UNICODE.sub(_reference, xml_text(text))


# Texts joined by slashes of which none is escaped or trimmed. `*+` gives nothing back.
_AS_IT_IS: Final = "[!#-%'-.0-68-;=?-~]*+"
ARE_PLAIN: Final = re.compile(
    f"(?! ){_AS_IT_IS}(?:(?:7(?!-)|/(?! )| (?!/|$)){_AS_IT_IS})*+"
).fullmatch


def _is_plain(text: str) -> bool:
    """Whether it is printable ASCII, as nearly all values are, and no type name needs a look."""
    return text.isascii() and text.isprintable() and "7-" not in text  # as in pkcs7-mime


def _with_names(text: str) -> str:
    """Plain text, trimmed, with its markup by name: replacing is cheaper than to search for it."""
    text = text.strip().replace("&", "&amp;")
    return text.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _reference(match: re.Match[str]) -> str:
    return _NAMED.get(match[0]) or f"&#{ord(match[0])};"


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OF_HOUR: Final = tuple(f"{second // 60:02}:{second % 60:02}Z" for second in range(3_600))


def instant(moment: int) -> str:
    """Epoch seconds as xsd:dateTime, `2026-03-05T14:00:00Z`. Raises: OverflowError."""
    return _hour(moment // 3_600) + _OF_HOUR[moment % 3_600]


@lru_cache(maxsize=4096)  # jobs come in the order of their ends
def _hour(hour: int) -> str:
    return f"{(_EPOCH + timedelta(hours=hour)).isoformat()[:13]}:"
