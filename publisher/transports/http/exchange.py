"""An exchange with a service: the answer or that there is none, and when to try again.

Texts for people are one line, bounded and without secrets.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from publisher.transports import http_sessions
from publisher.transports.base import Endpoint, Environment
from publisher.transports.http.options import HttpOptions

if TYPE_CHECKING:
    import ssl

_log: Final = logging.getLogger("publisher.transports")

FIRST_S: Final = 2.0
LONGEST_S: Final = 60.0
# A balancer that asks for an hour gets the next round instead.
LONGEST_ASKED_S: Final = 300.0
# The form of today and two obsolete ones. Not `email.utils`, which takes long to load.
_HTTP_DATES: Final = (
    "%a, %d %b %Y %H:%M:%S GMT",
    "%A, %d-%b-%y %H:%M:%S GMT",
    "%a %b %d %H:%M:%S %Y",
)

REASON_LENGTH: Final = 500
_QUOTE_LENGTH: Final = 200
_TAG: Final = re.compile(r"<(style|script|title)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e]+")


class Failure(StrEnum):
    """Why there is no answer; exceptions of `requests` and urllib3 do not show it.

    `NOT_SENT` is certain: the request did not begin to leave. `MAYBE_SENT` may have been carried
    out: it was sent, whole or in part, and has no answer. These two are one, since the same is done
    about both: the same bytes go again under their id, which stores them once. How much arrived is
    not known either: what the kernel took may be lost, and an upload often breaks because the
    service has what it needs and closes.

    `OUR_CERTIFICATE` and `THEIR_CERTIFICATE` are verdicts of one side on the other's credentials,
    `PROXY` of the proxy on the request, all three before anything was carried out. `IMPOSSIBLE` is
    a request that cannot be put into HTTP.
    """

    NOT_SENT = "not sent"
    MAYBE_SENT = "maybe sent"
    OUR_CERTIFICATE = "our certificate refused"
    THEIR_CERTIFICATE = "their certificate not trusted"
    PROXY = "proxy refused"
    IMPOSSIBLE = "impossible request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status, headers (names in lower case), body. `complete` is False when the body was cut short.

    Not `requests.Response`, which raises for a body that is cut short, and holds the connection.
    `tries` is 2 when a dead connection was replaced. The body may hold a token: in no `repr`.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    complete: bool = True
    tries: int = 1

    @property
    def may_have_arrived(self) -> bool:
        return True

    @property
    def retry_after(self) -> str:
        return self.headers.get("retry-after", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailure:
    """Nothing came back; `reason` is for people and holds no secrets."""

    failure: Failure
    reason: str
    tries: int = 1

    @property
    def may_have_arrived(self) -> bool:
        return self.failure is Failure.MAYBE_SENT

    @property
    def retry_after(self) -> str:
        return ""


def plain(text: str, length: int = REASON_LENGTH) -> str:
    """Return a text for people and logs: one line of printable ASCII, not longer than `length`."""
    line = " ".join(_NOT_PLAIN.sub(" ", text).split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets, whichever way they got into it."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "[withheld]")
    return text


def without(answer: Answer, secrets: Iterable[str]) -> Answer:
    """Return the answer without the secrets of the request, which it may echo.

    To be called before anything is quoted: of a secret in a text that is cut, a part would be left
    that nobody recognises.
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
    except (ValueError, RecursionError):
        # Invalid UTF-8 is a ValueError; a megabyte of brackets is a RecursionError
        return None


def envelope_message(answer: Answer) -> str:
    """Return the message of an AMS or authn error envelope, or '' when somebody else answers.

    Their Content-Type is not examined: AMS labels half of its JSON as text/plain.
    """
    document = parsed(answer.body)
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return plain(message, _QUOTE_LENGTH) if isinstance(message, str) else ""


def quoted(answer: Answer) -> str:
    """Status and message of an answer: `403 "Access to this resource is forbidden"`."""
    text = envelope_message(answer)
    if not text:
        text = plain(_TAG.sub(" ", answer.body[:4096].decode("utf-8", "replace")), _QUOTE_LENGTH)
    text = text.replace('"', "'")  # so that where the quotation ends can be determined
    return f'{answer.status} "{text}"' if text else f"{answer.status} without a word"


class RetrySchedule(NamedTuple):
    """`attempts` for one message, and `budget_s` for everything that goes wrong in one run.

    Not urllib3's `Retry`, which knows one request. It decides by method and status, where the text
    of an answer decides (AMS, SGAS), and repeats within the call, where an attempt needs a token or
    fewer records first. It waits in `time.sleep`, so that SIGTERM would come too late, has no
    budget for a run, and in 1.26, the lowest that is allowed, neither jitter nor a limit for
    Retry-After. Sessions here leave all retries to us.
    """

    attempts: int = 5
    budget_s: float = 600.0

    def wait_s(
        self, *, attempts_made: int, spent_s: float, chance: float, asked_s: float | None = None
    ) -> float | None:
        """Seconds to wait before the next attempt, or None when there shall be none.

        `spent_s` is what this run has lost, `chance` in [0, 1), `asked_s` from Retry-After.
        """
        if attempts_made >= self.attempts:
            return None
        ceiling = min(LONGEST_S, FIRST_S * 2.0 ** min(attempts_made - 1, 16))
        # Full jitter: hundreds of CEs lost the service at once and must not return at once.
        wait = max(chance * ceiling, min(asked_s or 0.0, LONGEST_ASKED_S))
        return wait if spent_s + wait <= self.budget_s else None


def asked_wait_s(retry_after: str, now: datetime) -> float | None:
    """The seconds that a Retry-After header asks for, never negative; None for nothing sensible.

    urllib3's `Retry` reads it as well, by the wall clock alone, and is loaded with a request only.
    Spec: RFC 9110 section 10.2.3, seconds or an HTTP date.
    """
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    for form in _HTTP_DATES:
        with suppress(ValueError):
            until = datetime.strptime(text, form).replace(tzinfo=UTC)
            return max(0.0, (until - now).total_seconds())
    return None


class Retries:
    """The attempts of one run by its `RetrySchedule`: waits that a stop ends, and the time lost."""

    def __init__(self, options: HttpOptions, world: Environment) -> None:
        self._schedule = RetrySchedule(attempts=options.attempts, budget_s=options.retry_budget_s)
        self._world = world
        self._lost_s = 0.0

    def wait(
        self, message_id: str, attempt: int, reason: str, asked: str, *, since: float | None = None
    ) -> bool:
        """Wait for the next attempt; False when there shall be none.

        `asked` is a Retry-After header; the time since `since` was lost on the attempt.
        """
        if since is not None:
            self._lost_s += self._world.clock() - since
        wait_s = self._schedule.wait_s(
            attempts_made=attempt,
            spent_s=self._lost_s,
            chance=self._world.chance(),
            asked_s=asked_wait_s(asked, self._world.now()),
        )
        if wait_s is None:
            return False
        which = message_id, attempt, self._schedule.attempts
        _log.info("message %s: attempt %d of %d failed, the next in %.1f s", *which, wait_s)
        # The last attempt's reason is that of the target, at a higher level.
        _log.debug("message %s: attempt %d of %d: %s", *which, reason)
        self._lost_s += wait_s
        return not self._world.wait(wait_s)


class LazySession:
    """A `Session` that is opened with its first request. Only that one loads `requests`."""

    def __init__(
        self,
        endpoint: Endpoint,
        context: ssl.SSLContext | None,
        *,
        trust: str,
        clock: Callable[[], float],
    ) -> None:
        """`context` is None for plain HTTP."""
        self._endpoint, self._context = endpoint, context
        self._trust, self._clock = trust, clock
        self._session: Any = None  # a Session

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | RequestFailure:
        if self._session is None:
            self._session = http_sessions()(
                self._endpoint, self._context, trust=self._trust, clock=self._clock
            )
        answer: Answer | RequestFailure = self._session.exchange(method, path, body, headers)
        return answer

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
