"""Scripted misfortune: faults are values, pushed on a queue, one consumed by each request that matches."""

import threading
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from tests.fake_ams.wire import Answer, Headers

ServiceName = Literal["ams", "authn"]
ANY = "*"
CONNECT = "connect"
"""The pseudo-route of a new connection, before TLS."""

HTML_502 = (
    b"<html><body><h1>502 Bad Gateway</h1>\nThe server returned an invalid or incomplete response.\n</body></html>\n"
)
"""The look of a load balancer's error page."""


class Act(Enum):
    """What happens to the request."""

    NORMAL = "answered normally"
    ANSWER = "answered with this instead"
    CLOSE = "connection closed after some of the body, nothing answered"
    RESET = "connection reset"
    LOSE_ANSWER = "handled, then closed without an answer"
    DROP = "read, not handled, closed without an answer"
    DRIP = "answered without end, a few bytes at a time"
    CLOSE_AFTER = "answered normally, then closed without a word"
    TWICE = "handled twice, answered once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One misfortune; build it with the constructors below, refine it with `.after()`.

    `handled` says whether the request takes effect all the same before `answer` goes out in place of the true one.
    `unread` answers without reading the body.
    """

    act: Act
    answer: Answer | None = None
    handled: bool = False
    unread: bool = False
    size: int = 0
    delay_s: float = 0.0
    interval_s: float = 0.05
    in_body: bool = False

    @classmethod
    def none(cls) -> "Fault":
        """Nothing happens: lets one request pass in the middle of a script."""
        return cls(act=Act.NORMAL)

    @classmethod
    def status(
        cls, status: int, body: bytes = b"", headers: Headers = (), *, handled: bool = False, unread: bool = False
    ) -> "Fault":
        """Another answer, usually the balancer's."""
        kind = "application/json; charset=utf-8" if body.startswith((b"{", b"[")) else "text/html"
        answer = Answer(status=status, body=body, content_type=kind, headers=headers)
        return cls(act=Act.ANSWER, answer=answer, handled=handled, unread=unread)

    @classmethod
    def body(cls, status: int, body: bytes, *, length: int | None = None, handled: bool = False) -> "Fault":
        """A strange body under an honest status; a `length` other than its own is announced, then the connection closed."""
        answer = Answer(status=status, body=body, content_type="application/json; charset=utf-8", length=length)
        return cls(act=Act.ANSWER, answer=answer, handled=handled)

    @classmethod
    def raw(cls, data: bytes, *, handled: bool = False) -> "Fault":
        """These bytes and nothing else, then close."""
        return cls(act=Act.ANSWER, answer=Answer(status=0, raw=data), handled=handled)

    @classmethod
    def redirect(cls, url: str, status: int = 302) -> "Fault":
        """A redirect, which must not be followed."""
        return cls.status(status, headers=(("Location", url),))

    @classmethod
    def close_before_read(cls) -> "Fault":
        """Close when the headers are in, before the body is read."""
        return cls(act=Act.CLOSE)

    @classmethod
    def close_after_bytes(cls, size: int) -> "Fault":
        """Close after `size` bytes of the body, while the client uploads."""
        return cls(act=Act.CLOSE, size=size)

    @classmethod
    def reset(cls) -> "Fault":
        """Reset the connection when the headers are in."""
        return cls(act=Act.RESET)

    @classmethod
    def store_then_close(cls) -> "Fault":
        """The request takes effect; its answer is lost."""
        return cls(act=Act.LOSE_ANSWER)

    @classmethod
    def drop_without_storing(cls) -> "Fault":
        """The request is read, has no effect and no answer: to the client the same as `store_then_close`."""
        return cls(act=Act.DROP)

    @classmethod
    def store_twice(cls) -> "Fault":
        """The broker stores twice what was sent once."""
        return cls(act=Act.TWICE)

    @classmethod
    def delay(cls, seconds: float) -> "Fault":
        """A slow but normal answer."""
        return cls(act=Act.NORMAL, delay_s=seconds)

    @classmethod
    def drip(cls, *, interval: float = 0.05, seconds: float = 600.0, in_body: bool = False) -> "Fault":
        """An endless header (or body), a byte each `interval`, until `seconds` are over or the client leaves."""
        return cls(act=Act.DRIP, interval_s=interval, delay_s=seconds, in_body=in_body)

    @classmethod
    def close_keepalive(cls) -> "Fault":
        """A normal answer that promises to keep the connection, which is then closed."""
        return cls(act=Act.CLOSE_AFTER)

    def after(self, seconds: float) -> "Fault":
        """The same, but only after a silence. A drip is timed by itself. Raises: ValueError for a drip."""
        if self.act is Act.DRIP:
            raise ValueError("a drip has its own interval")
        return replace(self, delay_s=seconds)


class FaultScript:
    """The queue of faults of one fake; safe to fill while requests come in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[tuple[ServiceName, str, Fault]] = []
        self._standing: list[tuple[ServiceName, str, Fault]] = []
        self._met: list[tuple[ServiceName, str, Fault | None]] = []

    def push(self, *faults: Fault, service: ServiceName = "ams", route: str = "publish") -> None:
        """Let the next requests of the route meet these, in order; `route="*"` is any."""
        with self._lock:
            self._queue += [(service, route, fault) for fault in faults]

    def always(self, fault: Fault, *, service: ServiceName = "ams", route: str = "publish") -> None:
        """Let every request of the route meet this, until `clear()`; queued faults come first."""
        with self._lock:
            self._standing.append((service, route, fault))

    def clear(self) -> None:
        """Back to normal."""
        with self._lock:
            self._queue.clear()
            self._standing.clear()

    @property
    def pending(self) -> int:
        """How many queued faults nobody has met yet."""
        with self._lock:
            return len(self._queue)

    @property
    def met(self) -> list[tuple[ServiceName, str, Fault | None]]:
        """What every request and every new connection has met, in the order in which they came."""
        with self._lock:
            return list(self._met)

    def take(self, service: ServiceName, route: str) -> Fault | None:
        """The fault for this request, removed from the queue."""
        with self._lock:
            fault = self._take(service, route)
            self._met.append((service, route, fault))
            return fault

    def _take(self, service: ServiceName, route: str) -> Fault | None:
        for number, entry in enumerate(self._queue):
            if _matches(entry, service, route):
                return self._queue.pop(number)[2]
        return next((entry[2] for entry in self._standing if _matches(entry, service, route)), None)


def _matches(entry: tuple[ServiceName, str, Fault], service: ServiceName, route: str) -> bool:
    return entry[0] == service and (entry[1] == route or (entry[1] == ANY and route != CONNECT))
