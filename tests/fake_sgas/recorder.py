"""What the stand-in has seen: every request, every connection, every failed handshake."""

from dataclasses import dataclass

from tests.fake_ams.recorder import Requests
from tests.fake_ams.wire import Headers
from tests.fake_sgas.faults import Fault


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


class Recorder(Requests[Request]):
    """And connections and handshakes."""

    def __init__(self) -> None:
        super().__init__()
        self._handshake_failures: list[str] = []
        self._connections = 0

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
