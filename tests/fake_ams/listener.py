"""A TLS port on the loopback: a thread that accepts, a thread per connection, all of them gone after `stop()`."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.fake_ams.conversation import LINGER_S, Conversation, Service
from tests.fake_ams.faults import CONNECT, Act, FaultScript
from tests.fake_ams.recorder import Recorder
from tests.fake_ams.wire import Disconnected, Peer
from tests.support.patience import PATIENCE_S
from tests.support.pki import Credential

_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which Python has no name for
_PLAIN_HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
_HANDSHAKE_RECORD = b"\x16"


@cache
def server_context(
    credential: Credential,
    *,
    maximum_tls: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    anchors: tuple[Path, ...] = (),
    asked: ssl.VerifyMode = ssl.CERT_OPTIONAL,
    any_validity: bool = False,
) -> ssl.SSLContext:
    """TLS 1.2 or newer, HTTP/1.1; one serves all connections, as to make it takes as long as a handshake.

    With anchors the client is asked for a certificate, which must stand on one of them and may, as `asked` says, stay away.
    `any_validity` lets dates and chains pass (Go's `trust_unknown_cas`), as far as every anchor is named.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = maximum_tls
    context.load_cert_chain(credential.certificate, credential.key)
    context.set_alpn_protocols(["http/1.1"])
    if anchors:
        context.verify_mode = asked
    for anchor in anchors:
        context.load_verify_locations(cafile=anchor)
    if any_validity:
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    return context


class Listener:
    """One service on one port."""

    def __init__(
        self,
        service: Service,
        *,
        port: int,
        context: Callable[[], ssl.SSLContext],
        faults: FaultScript,
        recorder: Recorder,
        keep_bodies: bool,
        idle_timeout_s: float,
    ) -> None:
        self._service = service
        self._context = context
        self._faults = faults
        self._recorder = recorder
        self._keep_bodies = keep_bodies
        self._idle_timeout_s = idle_timeout_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=128)
        self._acceptor = threading.Thread(target=self._accept, name=f"{service.name}-accept", daemon=True)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        self._acceptor.start()

    def stop(self) -> None:
        """Close the port and every connection, and wait for the threads."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._acceptor.ident is not None:
            self._acceptor.join()
        self._socket.close()
        self.drop_connections()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(PATIENCE_S)

    def drop_connections(self) -> None:
        """Cut every open connection, as a restart of the service does."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    # Not SSLSocket.shutdown, which would pull the TLS state from under the thread that reads.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            number = self._recorder.add_connection(self._service.name)
            thread = threading.Thread(
                target=self._serve, args=(connection, number), name=f"{self._service.name}-{number}", daemon=True
            )
            with self._lock:
                self._threads.add(thread)
            thread.start()

    def _serve(self, raw: socket.socket, number: int) -> None:
        connection = raw
        try:
            with self._lock:
                self._open.add(raw)
            if self._stopping.is_set():
                return
            raw.settimeout(self._idle_timeout_s)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = None if self._refused(raw) else self._handshake(raw)
            if tls is not None:
                connection = tls
                Conversation(
                    Peer(tls, number),
                    self._service,
                    faults=self._faults,
                    recorder=self._recorder,
                    stopping=self._stopping,
                    keep_bodies=self._keep_bodies,
                ).run()
        finally:
            with self._lock:
                self._open.difference_update((raw, connection))
                self._threads.discard(threading.current_thread())
            connection.close()
            raw.close()

    def _refused(self, raw: socket.socket) -> bool:
        """A fault on the connection itself, or a client that speaks plain HTTP."""
        fault = self._faults.take(self._service.name, CONNECT)
        if fault is not None:
            self._stopping.wait(fault.delay_s)
            if fault.act is Act.RESET:
                # Before it speaks, Python would leave the socket open on its side.
                with contextlib.suppress(OSError):
                    raw.recv(1, socket.MSG_PEEK)
                Peer(raw, 0).reset()
            if fault.act is not Act.NORMAL:
                return True
        try:
            first = raw.recv(1, socket.MSG_PEEK)
            if first and first != _HANDSHAKE_RECORD:
                raw.sendall(_PLAIN_HTTP)
                self._linger(raw)
        except OSError:
            return True
        return first != _HANDSHAKE_RECORD

    def _handshake(self, raw: socket.socket) -> ssl.SSLSocket | None:
        try:
            tls = self._context().wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
        except OSError:
            return None
        with self._lock:
            self._open.discard(raw)
            self._open.add(tls)
        try:
            tls.do_handshake()
        except OSError as error:
            self._recorder.add_handshake_failure(self._service.name, str(error))
            self._linger(tls)
            tls.close()
            return None
        return tls

    def _linger(self, connection: socket.socket) -> None:
        """Let the last words arrive: closing with unread bytes would send a reset that overtakes them."""
        with contextlib.suppress(OSError, Disconnected):
            socket.socket.shutdown(connection, socket.SHUT_WR)
            connection.settimeout(LINGER_S)
            while socket.socket.recv(connection, 65536):
                pass
