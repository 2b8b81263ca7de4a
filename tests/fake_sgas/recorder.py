"""What the stand-in has seen: every request, every connection, every failed handshake."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from tests.fake_ams.wire import Headers
from tests.fake_sgas.faults import Fault
from tests.support.patience import PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request and how it ended.

    `route` is insert, services or empty; `status` is 0 when nothing was answered; `body` is what was read of it;
    `connection` counts from 1; `clock_s` is monotonic; `subject` is the DN as SGAS sees it.
    """

    route: str
    method: str
    target: str
    headers: Headers
    body: bytes
    status: int
    clock_s: float
    connection: int
    tls_version: str
    subject: str
    fault: Fault | None

    def header(self, name: str) -> str:
        """The first value of a header, or empty."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")


class Recorder(Sequence[Request]):
    """Requests in order of their answers; each is here before its answer leaves."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: list[Request] = []
        self._handshake_failures: list[str] = []
        self._connections = 0

    def add(self, request: Request) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

    def add_connection(self) -> int:
        """Count a connection; its number."""
        with self._changed:
            self._connections += 1
            return self._connections

    def add_handshake_failure(self, reason: str) -> None:
        with self._changed:
            self._handshake_failures.append(reason)

    @property
    def connections(self) -> int:
        """How many connections were opened."""
        with self._changed:
            return self._connections

    @property
    def handshake_failures(self) -> list[str]:
        with self._changed:
            return list(self._handshake_failures)

    @property
    def inserts(self) -> list[Request]:
        """The requests to the insert URL."""
        return [request for request in self if request.route == "insert"]

    def wait_for(self, count: int, timeout_s: float = PATIENCE_S) -> bool:
        """Wait until that many requests are here; False when time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._requests) >= count, timeout_s)

    def clear(self) -> None:
        """Forget the requests."""
        with self._changed:
            self._requests.clear()

    def __len__(self) -> int:
        with self._changed:
            return len(self._requests)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> list[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | list[Request]:
        with self._changed:
            return self._requests[index]

    def __iter__(self) -> Iterator[Request]:
        with self._changed:
            return iter(list(self._requests))
