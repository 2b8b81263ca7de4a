"""A stand-in for AUDITOR on the loopback, over mutual TLS or plain HTTP, with its manners and with faults by script.

As AUDITOR 0.11: a list is stored whole or not at all; what is there already is 500 `RECORD_EXISTS`, or 200 with a warning
where that is ignored, and everything else that goes wrong with the database 500 `UNEXPECTED_ERROR`. `GET /records` takes
the queries of python-auditor. PostgreSQL's part is a dictionary that does not keep NUL either. All this is read in AUDITOR's
source: the server itself was never run, as what it is built from could not be had.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.fake_ams.listener import server_context
from tests.support.pki import PKI, Credential

BODY_LIMIT: Final = 2_097_152
_IDLE_S: Final = 30
EXISTS, UNEXPECTED = b"RECORD_EXISTS", b"UNEXPECTED_ERROR"
_FORBIDDEN: Final = re.compile(r'[/()"<>\\{}]')  # before 0.7
_QUERY: Final = re.compile(r"([^\[\]]+)|\[([^\[\]]*)\]")
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "gt": lambda one, other: one > other,
    "gte": lambda one, other: one >= other,
    "lt": lambda one, other: one < other,
    "lte": lambda one, other: one <= other,
    "equals": lambda one, other: one == other,
}
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What the next insert meets. Without a `status` nothing is answered; `stored`: it is carried out all the same."""

    status: int | None = None
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    stored: bool = False
    cut: int = 0  # bytes of the body that are announced and never sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One insert: where, what, and what became of it (0: no answer)."""

    path: str
    body: bytes
    status: int
    answer: bytes
    content_type: str


class Refused(Exception):
    """The answer to a request that is not carried out."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status, self.body = status, body


class FakeAuditor:
    """Start with `with`. Without a PKI it speaks plain HTTP."""

    def __init__(
        self, pki: PKI | None = None, *, port: int = 0, server: Credential | None = None, before_0_7: bool = False
    ) -> None:
        self.records: dict[str, Record] = {}
        self.requests: list[Request] = []
        self.faults: deque[Fault | None] = deque()  # None: all goes well
        self.always: Fault | None = None
        self.writers: set[str] | None = None  # common names; None: no access rules
        self.ignores_existing = False
        self.healthy = True
        self.health = b""  # what a page in its place would say
        self.lock = threading.Lock()
        self._before_0_7 = before_0_7
        self._open: set[socket.socket] = set()
        handler = type("_BoundHandler", (_Handler,), {"fake": self})
        self._server = _Server(("127.0.0.1", port), handler)
        self._server.on_open = self._open.add
        self.port = int(self._server.server_address[1])
        self._scheme = "http"
        if pki is not None:
            anchors = (pki.authority.certificate,)
            self._server.context = server_context(server or pki.server, anchors=anchors, asked=ssl.CERT_REQUIRED)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self.drop_connections()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"{self._scheme}://localhost:{self.port}"

    def drop_connections(self) -> None:
        """Cut every open connection."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        self._open.clear()

    def insert(self, path: str, body: bytes) -> bytes:
        """Store a record or a list. Gives the body of the answer 200. Raises: Refused."""
        if len(body) > BODY_LIMIT:
            raise Refused(
                413, f"JSON payload ({len(body)} bytes) is larger than allowed (limit: {BODY_LIMIT} bytes).".encode()
            )
        try:
            told = json.loads(body)
            records = [self._read(one) for one in ([told] if path == "/record" else told)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(400, f"Json deserialize error: {error}".encode()) from error
        with self.lock:
            return self._commit(records, many=path == "/records")

    def _commit(self, records: Sequence[Record], *, many: bool) -> bytes:
        ids = [record["record_id"] for record in records]
        if not self.healthy or "\\u0000" in json.dumps(records):
            raise Refused(500, UNEXPECTED)
        if len({*ids, *self.records}) < len(ids) + len(self.records):
            if not self.ignores_existing:
                raise Refused(500, EXISTS)
            what = "One or more records already exist" if many else "Record already exists"
            return json.dumps({"warning": f"{what}, but the error was ignored due to AUDITOR configuration."}).encode()
        self.records.update(zip(ids, records, strict=True))
        return b""

    def _read(self, told: Record) -> Record:
        """A record as it is kept. Raises: ValueError, KeyError, TypeError, AttributeError."""
        meta = {self._name(key): [self._name(text) for text in texts] for key, texts in (told["meta"] or {}).items()}
        start, stop = (datetime.fromisoformat(told[key]) for key in ("start_time", "stop_time"))
        if start.tzinfo is None or stop.tzinfo is None:
            raise ValueError("premature end of input")
        components = [
            {
                "name": self._name(one["name"]),
                "amount": _amount(one["amount"]),
                "scores": [
                    {"name": self._name(score["name"]), "value": float(score["value"])} for score in one["scores"]
                ],
            }
            for one in told["components"]
        ]
        return {
            "record_id": self._name(told["record_id"]),
            "meta": meta or None,
            "components": components,
            "start_time": _moment(start),
            "stop_time": _moment(stop),
            "runtime": int((stop - start).total_seconds()),
        }

    def _name(self, text: str) -> str:
        if not text.strip() or len(text) > 256 or (self._before_0_7 and _FORBIDDEN.search(text)):
            raise ValueError(f"Parsing {text!r} failed")
        return text

    def found(self, query: str) -> list[Record]:
        """The records that a query asks for, by their stop. Raises: Refused."""
        records = sorted(self.records.values(), key=lambda record: str(record["stop_time"]))
        for key, value in parse_qsl(query):
            path = [one or other for one, other in _QUERY.findall(key)]
            records = [record for record in records if _fits(record, path, value)]
        return records


def _amount(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"Parsing {value!r} failed")
    return value


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _fits(record: Record, path: Sequence[str], value: str) -> bool:
    match path:
        case ["runtime", operator]:
            return _COMPARE[operator](record["runtime"], int(value))
        case [("start_time" | "stop_time") as key, operator]:
            return _COMPARE[operator](datetime.fromisoformat(record[key]), datetime.fromisoformat(value))
        case ["meta", name, "c", *_]:
            return value in (record["meta"] or {}).get(name, [])
        case ["meta", name, "dnc", *_]:
            return value not in (record["meta"] or {}).get(name, [])
        case ["record_id"]:
            return bool(record["record_id"] == value)
    raise Refused(400, json.dumps({"error": f"unknown field {path[0]}"}).encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for them
    context: ssl.SSLContext | None = None
    on_open: Callable[[socket.socket], None] = staticmethod(lambda _: None)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the thread of the connection, so that a slow handshake delays nobody."""
        request.settimeout(_IDLE_S)
        connection = request
        try:
            if self.context is not None:
                connection = self.context.wrap_socket(request, server_side=True)
            self.on_open(connection)
            super().finish_request(connection, client_address)
        except OSError:  # ssl.SSLError is one
            return
        finally:
            connection.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever sees a broken connection sees it at the other end."""


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    fake: FakeAuditor
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        try:
            if parts.path == "/health_check":
                self._answer(200 if self.fake.healthy else 500, self.fake.health)
            elif parts.path == "/records":
                found = self.fake.found(parts.query)  # no list: one object after the other
                self._answer(200, "".join(map(json.dumps, found)).encode(), json_body=True)
            elif parts.path.startswith("/record/"):
                record = self.fake.records.get(unquote(parts.path.removeprefix("/record/")))
                self._answer(200 if record else 500, json.dumps(record).encode(), json_body=True)
            else:
                self._answer(404, b"The requested resource was not found. 404 Not Found")
        except Refused as refused:
            self._answer(refused.status, refused.body, json_body=True)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path not in ("/record", "/records"):
            self._answer(404, b"The requested resource was not found. 404 Not Found")
            return
        fault = self.fake.faults.popleft() if self.fake.faults else self.fake.always
        status, answer = self._met(fault, body)
        kind = self.headers.get("content-type", "")
        request = Request(path=self.path, body=body, status=status, answer=answer, content_type=kind)
        self.fake.requests.append(request)
        if not status:
            self.close_connection = True
            return
        self._answer(status, answer, fault.headers if fault else (), cut=fault.cut if fault else 0)

    def _met(self, fault: Fault | None, body: bytes) -> tuple[int, bytes]:
        answer = self._carried_out(body) if fault is None or fault.stored else (0, b"")
        return answer if fault is None else (fault.status or 0, fault.body)

    def _carried_out(self, body: bytes) -> tuple[int, bytes]:
        if self.fake.writers is not None and self._common_name() not in self.fake.writers:
            return 403, b"Insufficient permissions"
        try:
            return 200, self.fake.insert(self.path, body)
        except Refused as refused:
            return refused.status, refused.body

    def _common_name(self) -> str:
        shown = self.connection.getpeercert(binary_form=True) if isinstance(self.connection, ssl.SSLSocket) else None
        if not shown:
            return "no_cert"
        names = x509.load_der_x509_certificate(shown).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[0].value)

    def _answer(
        self,
        status: int,
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (),
        *,
        json_body: bool = False,
        cut: int = 0,
    ) -> None:
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        if json_body:
            self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body[: len(body) - cut])
        self.wfile.flush()
        self.close_connection = self.close_connection or cut > 0
