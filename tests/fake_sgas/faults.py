"""Scripted misfortune: the faults of the AMS stand-in, and those that only nginx and SGAS have."""

import threading

from tests.fake_ams.faults import CONNECT, Act, Fault
from tests.fake_sgas.failures import nginx_page

__all__ = ["CONNECT", "Act", "Fault", "FaultScript", "bad_gateway", "gateway_timeout", "unavailable"]

ANY = "*"


def bad_gateway(*, stored: bool = False) -> Fault:
    """SGAS is down, or was killed at work (`stored`: just after its commit)."""
    return Fault.status(502, nginx_page(502), handled=stored)


def unavailable(retry_after_s: int | None = None) -> Fault:
    """Refused before anybody looked at it."""
    headers = () if retry_after_s is None else (("Retry-After", str(retry_after_s)),)
    return Fault.status(503, nginx_page(503), headers)


def gateway_timeout() -> Fault:
    """An insert of more than 60 s: nginx gives up, SGAS commits all the same (measured)."""
    return Fault.status(504, nginx_page(504), handled=True)


class FaultScript:
    """The queue of faults of one stand-in, one for each request that matches; safe to fill while requests come in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[tuple[str, Fault]] = []
        self._standing: list[tuple[str, Fault]] = []
        self._met: list[tuple[str, Fault | None]] = []

    def push(self, *faults: Fault, route: str = "insert") -> None:
        """Let the next requests of the route meet these, in order; `route="*"` is any."""
        with self._lock:
            self._queue += [(route, fault) for fault in faults]

    def always(self, fault: Fault, *, route: str = "insert") -> None:
        """Let every request of the route meet this, until `clear()`; queued faults come first."""
        with self._lock:
            self._standing.append((route, fault))

    def clear(self) -> None:
        with self._lock:
            self._queue.clear()
            self._standing.clear()

    @property
    def pending(self) -> int:
        """How many queued faults nobody has met yet."""
        with self._lock:
            return len(self._queue)

    @property
    def met(self) -> list[tuple[str, Fault | None]]:
        """What every request and every new connection has met, in the order in which they came."""
        with self._lock:
            return list(self._met)

    def take(self, route: str) -> Fault | None:
        """The fault for this request, removed from the queue."""
        with self._lock:
            fault = self._take(route)
            self._met.append((route, fault))
            return fault

    def _take(self, route: str) -> Fault | None:
        for number, (wanted, fault) in enumerate(self._queue):
            if _matches(wanted, route):
                del self._queue[number]
                return fault
        return next((fault for wanted, fault in self._standing if _matches(wanted, route)), None)


def _matches(wanted: str, route: str) -> bool:
    return wanted == route or (wanted == ANY and route != CONNECT)
