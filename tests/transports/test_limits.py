"""Limits of an exchange that hold whatever resolver, addresses and services do: of time, and of memory."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from publisher.transports.base import Endpoint
from publisher.transports.http.exchange import Answer, Failure, RequestFailure
from publisher.transports.http.reachability import reach
from publisher.transports.http.session import ERROR_LIMIT, SUCCESS_LIMIT, Session
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.pki import PKI
from tests.transports.test_https import answered, credentials, failed

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LOCAL = "127.0.0.1"
DEAD = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
MiB = 1 << 20
NOW: Final = datetime(2026, 10, 1, tzinfo=UTC)
Clock = Callable[[], float]


class Service:
    """Plain HTTP, one connection after the other. It reads each request whole, keeping nothing, and answers with `pieces`."""

    def __init__(self, *pieces: bytes) -> None:
        self.connections = self.requests = 0
        self.pieces = pieces
        self.before_answer: Callable[[], None] | None = None
        self._listener = socket.create_server((LOCAL, 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with line, contextlib.suppress(OSError):
                while self._exchange(line):
                    pass

    def _exchange(self, line: socket.socket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := line.recv(4096)):
                return False
            head += piece
        head, _, body = head.partition(b"\r\n\r\n")
        left = sum(int(each[15:]) for each in head.lower().split(b"\r\n") if each.startswith(b"content-length:"))
        left -= len(body)
        buffer = bytearray(65_536)
        while left > 0:
            left -= line.recv_into(buffer)
        self.requests += 1
        if self.before_answer is not None:
            self.before_answer()
        for piece in self.pieces:
            line.sendall(piece)
        return bool(self.pieces)


@contextlib.contextmanager
def session(port: int, *, connect_s: float, attempt_s: float, clock: Clock = time.monotonic) -> Iterator[Session]:
    url = f"http://service.example.org:{port}"
    endpoint = Endpoint("AUDITOR", url, "", connect_s=connect_s, read_s=FOR_EVER_S, attempt_s=attempt_s)
    with contextlib.closing(Session(endpoint, None, trust="", clock=clock)) as made:
        yield made


@contextlib.contextmanager
def silent_at(port: int, *hosts: str) -> Iterator[None]:
    """Makes these addresses ones whose queue is full: the kernel drops what asks for a place, as a firewall would."""
    with contextlib.ExitStack() as kept:
        for host in hosts:
            kept.enter_context(socket.create_server((host, port), backlog=0))
            first, more = kept.enter_context(socket.socket()), kept.enter_context(socket.socket())
            first.connect((host, port))
            more.setblocking(False)
            assert more.connect_ex((host, port)) in (0, errno.EINPROGRESS)
        yield


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives the name of the service these addresses."""

    def resolves_to(*hosts: str) -> None:
        def addresses(_host: str, port: int, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

        monkeypatch.setattr(socket, "getaddrinfo", addresses)

    return resolves_to


@pytest.mark.slow
def test_silent_addresses_leave_time_for_the_one_that_answers(name: Callable[..., None]) -> None:
    """Each of them would take all the time to connect, or the exchange would have none left."""
    name(*DEAD, LOCAL)
    with (
        Service(OK) as service,
        silent_at(service.port, *DEAD),
        session(service.port, connect_s=8, attempt_s=8) as asking,
    ):
        assert answered(asking.exchange("GET", "/")).body == b"ok"
    assert service.connections == 1


@pytest.mark.parametrize(("connect_s", "attempt_s"), [(10, 1_000), (1_000, 10)], ids=["to connect", "of all"])
def test_no_address_is_tried_once_the_time_is_over(
    connect_s: float, attempt_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]

    def slow(_host: str, port: int, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
        passed.append(11.0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (LOCAL, port))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with (
        Service(OK) as service,
        session(service.port, connect_s=connect_s, attempt_s=attempt_s, clock=lambda: sum(passed)) as asking,
    ):
        failure, reason = failed(asking.exchange("GET", "/"))
    assert failure is Failure.NOT_SENT
    assert "no connection within the time" in reason
    assert service.connections == 0


@pytest.mark.parametrize(("connect_s", "attempt_s"), [(0.2, 1_000), (1_000, 0.2)], ids=["to connect", "of all"])
def test_a_resolver_that_does_not_answer_holds_nobody(
    connect_s: float, attempt_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, done = socket.getaddrinfo, threading.Event()

    def slow(_host: str, *arguments: Any, **more: Any) -> Any:
        done.wait(FOR_EVER_S)
        return resolve(LOCAL, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Service(OK) as service, session(service.port, connect_s=connect_s, attempt_s=attempt_s) as asking:
        failure, reason = failed(asking.exchange("GET", "/"))
        done.set()
    assert failure is Failure.NOT_SENT
    assert "not resolved in time" in reason
    assert service.connections == 0


def test_the_second_request_of_an_exchange_has_no_time_of_its_own(name: Callable[..., None]) -> None:
    """A kept-alive connection that died is replaced within the limit of the exchange."""
    name(LOCAL)
    passed = [0.0]
    with (
        Service(OK) as service,
        session(service.port, connect_s=1_000, attempt_s=100, clock=lambda: time.monotonic() + sum(passed)) as asking,
    ):
        answered(asking.exchange("GET", "/"))
        service.pieces = ()
        service.before_answer = lambda: passed.append(101.0)
        assert failed(asking.exchange("GET", "/"))[0] is Failure.MAYBE_SENT
    assert service.requests == 2  # by one connection, or by another if the service closed the first before


@pytest.mark.slow
def test_doctor_names_the_addresses_that_are_silent(name: Callable[..., None], pki: PKI) -> None:
    name(*DEAD, LOCAL)
    with Service(OK) as service, silent_at(service.port, *DEAD):
        url = f"http://service.example.org:{service.port}"
        endpoint = Endpoint("AUDITOR", url, "", connect_s=8, read_s=FOR_EVER_S, attempt_s=20)
        steps = reach(endpoint, credentials(pki.host(), None), lambda: NOW, time.monotonic)
    assert [step.name for step in steps][:2] == ["name", "connection"]
    assert steps[1].answer == f"{LOCAL} port {service.port} takes connections, but {', '.join(DEAD)} does not answer"
    assert steps[1].exit_status == 0
    assert "dead address" in steps[1].advice


# ---- memory


def traced(service: Service, body: bytes | None) -> tuple[Answer | RequestFailure, int, int]:
    """An exchange, the bytes that it took at its peak, and those that are kept of it. Without what the first one loads."""
    with session(service.port, connect_s=PATIENCE_S, attempt_s=FOR_EVER_S) as asking:
        asking.exchange("POST", "/", b"first")
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            result = asking.exchange("POST", "/", body)
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return result, peak - before, kept - before


def test_a_large_body_is_sent_without_a_copy(name: Callable[..., None]) -> None:
    name(LOCAL)
    with Service(OK) as service:
        result, peak, kept = traced(service, b"x" * (32 * MiB))
    assert answered(result).body == b"ok"
    assert peak < MiB
    assert kept < MiB // 4


def test_nothing_keeps_a_body_that_was_sent(name: Callable[..., None]) -> None:
    name(LOCAL)
    with Service(OK) as service, session(service.port, connect_s=PATIENCE_S, attempt_s=FOR_EVER_S) as asking:
        asking.exchange("POST", "/", b"first")
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            asking.exchange("POST", "/", b"x" * (32 * MiB))
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert kept < MiB // 4


@pytest.mark.parametrize(("status", "limit"), [(b"200 OK", SUCCESS_LIMIT), (b"500 No", ERROR_LIMIT)])
def test_an_answer_without_end_takes_its_limit_of_memory(status: bytes, limit: int, name: Callable[..., None]) -> None:
    name(LOCAL)
    head = b"HTTP/1.1 " + status + b"\r\nContent-Length: 1000000000\r\n\r\n"
    piece = b"x" * 65_536
    with Service(OK) as service:

        def from_the_second_on() -> None:
            if service.requests == 2:
                service.pieces = (head, *[piece] * 1_000)

        service.before_answer = from_the_second_on
        result, peak, _ = traced(service, b"x")
    answer = answered(result)
    assert (len(answer.body), answer.complete) == (limit, False)
    assert peak < 3 * limit + MiB // 4
