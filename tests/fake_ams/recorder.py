"""What the fake has seen: every request, every connection, every failed handshake."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar, overload

from tests.fake_ams.faults import Fault, ServiceName
from tests.fake_ams.wire import Headers
from tests.support.patience import PATIENCE_S

Kind = TypeVar("Kind")


class Requests(Sequence[Kind]):
    """Requests in order of their answers; each is here before its answer leaves."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: list[Kind] = []

    def add(self, request: Kind) -> None:
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

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
    def __getitem__(self, index: int) -> Kind: ...
    @overload
    def __getitem__(self, index: slice) -> list[Kind]: ...
    def __getitem__(self, index: int | slice) -> Kind | list[Kind]:
        with self._changed:
            return self._requests[index]

    def __iter__(self) -> Iterator[Kind]:
        with self._changed:
            return iter(list(self._requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it arrived and how it ended.

    `status` is 0 when nothing was answered; `route` is empty for an unknown path; `body` is what was read of it (empty
    when bodies are not kept), `body_size` its length; `clock_s` is monotonic; `connection` counts from 1 per fake.
    """

    service: ServiceName
    route: str
    method: str
    target: str
    path: str
    headers: Headers
    body: bytes
    body_size: int
    status: int
    time: datetime
    clock_s: float
    connection: int
    tls_version: str
    client_subject: str
    fault: Fault | None

    def header(self, name: str) -> str:
        """The first value of a header, or empty."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")


class Recorder(Requests[Request]):
    """And connections and handshakes, by service."""

    def __init__(self) -> None:
        super().__init__()
        self._connections: list[ServiceName] = []
        self._handshake_failures: list[tuple[ServiceName, str]] = []

    def add_connection(self, service: ServiceName) -> int:
        """Count a connection; its number."""
        with self._changed:
            self._connections.append(service)
            return len(self._connections)

    def add_handshake_failure(self, service: ServiceName, reason: str) -> None:
        with self._changed:
            self._handshake_failures.append((service, reason))
            self._changed.notify_all()

    def connections(self, service: ServiceName) -> int:
        """How many connections were opened to a service."""
        with self._changed:
            return self._connections.count(service)

    def wait_for_handshake_failures(self, count: int, timeout_s: float = PATIENCE_S) -> bool:
        """Wait for refused handshakes, of which the client may know before they are here; False when time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._handshake_failures) >= count, timeout_s)

    @property
    def handshake_failures(self) -> list[tuple[ServiceName, str]]:
        """Service and reason of every TLS handshake that failed, as the server saw it."""
        with self._changed:
            return list(self._handshake_failures)

    def on(self, route: str, service: ServiceName = "ams") -> list[Request]:
        """The requests of one route."""
        return [request for request in self if request.route == route and request.service == service]
