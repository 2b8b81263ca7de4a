"""What came back of a request, or that nothing did, and its text for people: one line, bounded, without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

REASON_LENGTH: Final = 500
_QUOTE_LENGTH: Final = 200
_TAG: Final = re.compile(r"<(style|script|title)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e]+")


class Failure(StrEnum):
    """Why there is no answer.

    `NOT_SENT` is certain: the request did not begin to leave. `MAYBE_SENT` may have been carried out. `OUR_CERTIFICATE` and
    `THEIR_CERTIFICATE` are verdicts of one side on the other's credentials, `PROXY` of the proxy on the request, all three
    before anything was carried out. `IMPOSSIBLE` is a request that cannot be put into HTTP.
    """

    NOT_SENT = "not sent"
    MAYBE_SENT = "maybe sent"
    OUR_CERTIFICATE = "our certificate refused"
    THEIR_CERTIFICATE = "their certificate not trusted"
    PROXY = "proxy refused"
    IMPOSSIBLE = "impossible request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status, headers (names in lower case) and body. `complete` is False when the body was cut by the other side or by us.

    `tries` is 2 when a dead kept-alive connection was replaced. The body may hold a token, so it is in no `repr`.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    complete: bool = True
    tries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailure:
    """Nothing came back; `reason` is for people and holds no secrets."""

    failure: Failure
    reason: str
    tries: int = 1


def plain(text: str, length: int = REASON_LENGTH) -> str:
    """A text for people and logs: one line of printable ASCII, not longer than `length`."""
    line = " ".join(_NOT_PLAIN.sub(" ", text).split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, whichever way they got into it."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[withheld]")
    return text


def without(answer: Answer, secrets: Iterable[str]) -> Answer:
    """The answer without the secrets of the request, which it may echo.

    To be called before anything is quoted: of a secret in a text that is cut, a part would be left that nobody recognises.
    """
    body, headers = answer.body, dict(answer.headers)
    for secret in filter(None, secrets):
        body = body.replace(secret.encode(), b"[withheld]")
        headers = {name: value.replace(secret, "[withheld]") for name, value in headers.items()}
    return replace(answer, body=body, headers=headers)


def parsed(body: bytes) -> object:
    """The body as JSON, or None when it is none (which `null` is as well, for our purposes)."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # invalid UTF-8 is a ValueError; a megabyte of brackets is a RecursionError
        return None


def envelope_message(answer: Answer) -> str:
    """The message of an AMS or authn error envelope, or an empty string when somebody else is speaking.

    Their Content-Type is not examined: AMS labels half of its JSON as text/plain.
    """
    document = parsed(answer.body)
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return plain(message, _QUOTE_LENGTH) if isinstance(message, str) else ""


def quoted(answer: Answer) -> str:
    """Status and what the service said, for a reason: `403 "Access to this resource is forbidden"`."""
    text = envelope_message(answer)
    if not text:
        text = plain(_TAG.sub(" ", answer.body[:4096].decode("utf-8", "replace")), _QUOTE_LENGTH)
    text = text.replace('"', "'")  # so that where the quotation ends can be determined
    return f'{answer.status} "{text}"' if text else f"{answer.status} without a word"


# Everything those libraries raise: requests' exceptions are OSErrors; bad URLs, headers and host names are ValueErrors.
