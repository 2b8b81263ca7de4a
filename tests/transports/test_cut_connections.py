"""Connections that are cut at every byte, each way: what is known of the failure agrees with what the server has read."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest

from publisher.transports.base import Credentials, Endpoint
from publisher.transports.http.exchange import Answer, Failure, RequestFailure
from publisher.transports.http.session import Session
from publisher.transports.http.tls import client_context
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI

BODY = b"b" * 300
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b"r" * 20
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\nVia: proxy\r\n\r\n"
THERE, BACK = 0, 1
RESET = struct.pack("ii", 1, 0)
WITHOUT_END = 1 << 30


class Listener(ABC):
    """Serves one connection after the other, in a thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with line, contextlib.suppress(OSError):
                line.settimeout(PATIENCE_S)
                self.serve(line)
            self.ended()

    @abstractmethod
    def serve(self, line: socket.socket) -> None: ...

    @abstractmethod
    def ended(self) -> None: ...


class Server(Listener):
    """Answers each request that is whole. It counts the bytes of requests and the whole ones that it has read."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.read = self.whole = self._ended = 0
        self._context, self._changed = context, threading.Condition()
        super().__init__()

    def serve(self, line: socket.socket) -> None:
        line.recv(1, socket.MSG_PEEK)  # of one that is reset already, Python 3.11 would leave the TLS socket open
        with self._context.wrap_socket(line, server_side=True) if self._context else line as peer:
            data = b""
            while piece := peer.recv(65_536):
                self.read += len(piece)
                data += piece
                if data.partition(b"\r\n\r\n")[2] == BODY:
                    self.whole += 1
                    data = b""
                    peer.sendall(REPLY)

    def ended(self) -> None:
        with self._changed:
            self._ended += 1
            self._changed.notify()

    def settle(self, connections: int) -> None:
        """Wait until so many connections are read to their ends."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended >= connections, PATIENCE_S)


class Relay(Listener):
    """Passes bytes on to a server until so many have gone one of the ways, then cuts both ends. As a proxy, if asked."""

    def __init__(self, port: int, *, is_proxy: bool) -> None:
        self.connections = 0
        self.passed = [0, 0]
        self._port, self._is_proxy = port, is_proxy
        self.pass_all()
        super().__init__()

    def ended(self) -> None:
        """Nothing is counted."""

    def pass_all(self) -> None:
        self.limits, self._resets = [WITHOUT_END, WITHOUT_END], False

    def cut(self, way: int, after: int, *, resets: bool) -> None:
        """Cut after so many bytes from now on; of a connection to come, from its start."""
        self.limits[way] = after
        self._resets = resets

    def serve(self, line: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._port), PATIENCE_S) as server:
            self.connections += 1
            self.passed = [0, 0]
            ends = (line, server)
            if self._is_proxy:
                asked = b""
                while b"\r\n\r\n" not in asked:
                    if not (piece := line.recv(65_536)):
                        return
                    asked += piece
                self._send(BACK, ESTABLISHED, line)
            while min(left for left in self._left()) > 0:
                ready, _, _ = select.select(ends, (), (), PATIENCE_S)
                way = THERE if line in ready else BACK
                piece = ends[way].recv(max(1, min(self._left()[way], 65_536)))
                if not piece:
                    return
                self._send(way, piece, ends[1 - way])
            if self._resets:
                for end in ends:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def _send(self, way: int, piece: bytes, sink: socket.socket) -> None:
        piece = piece[: self._left()[way]]
        self.passed[way] += len(piece)  # before the reader of it goes on
        sink.sendall(piece)

    def _left(self) -> list[int]:
        return [limit - passed for limit, passed in zip(self.limits, self.passed, strict=True)]


class Line:
    """A session to a server, by way of a relay."""

    def __init__(self, pki: PKI, kind: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki.server.certificate, pki.server.key)
        self.server = Server(None if kind == "plain" else context)
        self.relay = Relay(self.server.port, is_proxy=kind == "proxy")
        place = f"localhost:{self.relay.port}"
        url, proxy = {
            "plain": (f"http://{place}", ""),
            "TLS": (f"https://{place}", ""),
            "proxy": (f"https://localhost:{self.server.port}", f"http://user:secret@{place}"),
        }[kind]
        host = pki.host(key="ec")
        ours = Credentials(certificate=host.certificate, key=host.key, ca=pki.bundle)
        self.handshakes = kind != "plain"
        self._context = None if kind == "plain" else client_context(ours)
        self._endpoint = Endpoint("AMS", url, proxy, connect_s=60, read_s=60, attempt_s=120)

    def session(self) -> Session:
        return Session(self._endpoint, self._context, trust="", clock=time.monotonic)

    def close(self) -> None:
        self.relay.close()
        self.server.close()


@pytest.fixture(params=["plain", "TLS", "proxy"])
def line(request: pytest.FixtureRequest, pki: PKI) -> Iterator[Line]:
    made = Line(pki, request.param)
    yield made
    made.close()


def post(session: Session) -> Answer | RequestFailure:
    return session.exchange("POST", "/v1/elsewhere", BODY, {"x-api-key": "5ecret"})


def cut_exchange(line: Line, way: int, after: int, *, resets: bool, kept: bool) -> Failure | None:
    """One exchange whose connection is cut; what is known of it is held against what the server has read."""
    session, relay, server = line.session(), line.relay, line.server
    relay.pass_all()
    if kept:
        assert isinstance(post(session), Answer)
    read, whole, connections = server.read, server.whole, relay.connections
    relay.cut(way, after + (relay.passed[way] if kept else 0), resets=resets)
    result = post(session)
    session.close()
    server.settle(relay.connections)
    read, whole = server.read - read, server.whole - whole
    assert whole <= result.tries
    assert relay.connections - connections == result.tries - kept
    if isinstance(result, RequestFailure):
        assert (read == 0) or result.failure is Failure.MAYBE_SENT, (way, after, result)
        return result.failure
    assert whole >= 1
    assert result.body == REPLY[-len(result.body) :] if result.body else True
    assert result.complete is (len(result.body) == 20)
    return None


def cut_everywhere(line: Line, step: int, *, resets: bool, kept: bool) -> set[Failure | None]:
    line.relay.pass_all()
    session = line.session()
    assert isinstance(post(session), Answer)
    before = [*line.relay.passed] if kept else [0, 0]
    if kept:
        assert isinstance(post(session), Answer)
    session.close()
    amounts = [all_of_it - earlier for all_of_it, earlier in zip(line.relay.passed, before, strict=True)]
    found = set()
    for way, amount in enumerate(amounts):
        assert amount >= len(REPLY)
        for after in [*range(1, amount + 1, step), amount]:
            found.add(cut_exchange(line, way, after, resets=resets, kept=kept))
    return found


@pytest.mark.parametrize("resets", [False, True], ids=["ends", "resets"])
def test_a_connection_that_is_cut_anywhere(resets: bool, line: Line) -> None:
    found = cut_everywhere(line, 97, resets=resets, kept=False)
    assert Failure.MAYBE_SENT in found
    assert (Failure.NOT_SENT in found) is line.handshakes, "nothing is sent before the handshake is done"


@pytest.mark.parametrize("resets", [False, True], ids=["ends", "resets"])
def test_a_kept_connection_that_is_cut_anywhere(resets: bool, line: Line) -> None:
    cut_everywhere(line, 47, resets=resets, kept=True)


@pytest.mark.long
@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
@pytest.mark.parametrize("resets", [False, True], ids=["ends", "resets"])
def test_a_connection_that_is_cut_at_every_byte(resets: bool, kept: bool, line: Line) -> None:
    cut_everywhere(line, 1, resets=resets, kept=kept)
