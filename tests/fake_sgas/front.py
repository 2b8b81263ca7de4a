"""nginx in front of SGAS: TLS with a mandatory client certificate, a limit on bodies, connections kept or closed.

A thread accepts, a thread serves each connection, all of them gone after `stop()`.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Final

from cryptography import x509

from tests.fake_ams import wire
from tests.fake_ams.wire import Body, Disconnected, Head, Malformed, Peer
from tests.fake_sgas.application import Application, Query
from tests.fake_sgas.failures import Reply, from_nginx
from tests.fake_sgas.faults import CONNECT, Act, Fault, FaultScript
from tests.fake_sgas.recorder import Recorder, Request
from tests.support.patience import PATIENCE_S

BODY_LIMIT: Final = 2_097_152
_LINGER_S: Final = 2.0
_HANDLED: Final = (Act.NORMAL, Act.LOSE_ANSWER, Act.CLOSE_AFTER, Act.TWICE)


class Front:
    """One port on the loopback. `unsafe_reason` says what nginx has against a certificate, `subject` how it spells its DN."""

    def __init__(
        self,
        application: Application,
        *,
        port: int,
        context: Callable[[], ssl.SSLContext],
        unsafe_reason: Callable[[x509.Certificate], str],
        subject: Callable[[x509.Certificate], str],
        faults: FaultScript,
        recorder: Recorder,
        idle_timeout_s: float,
    ) -> None:
        self.body_limit = BODY_LIMIT
        self._application = application
        self._context, self._unsafe_reason, self._subject = context, unsafe_reason, subject
        self._faults, self._recorder = faults, recorder
        self._idle_timeout_s = idle_timeout_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=128)
        self._acceptor = threading.Thread(target=self._accept, name="sgas-accept", daemon=True)

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
        self._acceptor.join()
        self._socket.close()
        self.drop_connections()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(PATIENCE_S)

    def drop_connections(self) -> None:
        """Cut every open connection, as a restart of nginx does."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    # Not SSLSocket.shutdown, which would pull the TLS state from under the thread that reads.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    # Connections

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            number = self._recorder.add_connection()
            thread = threading.Thread(target=self._serve, args=(connection, number), name=f"sgas-{number}", daemon=True)
            with self._lock:
                self._threads.add(thread)
            thread.start()

    def _serve(self, raw: socket.socket, number: int) -> None:
        connection = raw
        try:
            with self._lock:
                self._open.add(raw)
            raw.settimeout(self._idle_timeout_s)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._refused(raw) or self._stopping.is_set():
                return
            tls = self._context().wrap_socket(raw, server_side=True, do_handshake_on_connect=False)
            connection = tls
            with self._lock:
                self._open.add(tls)
            try:
                tls.do_handshake()
            except OSError as error:
                self._recorder.add_handshake_failure(str(error))
                return
            self._converse(Peer(tls, number))
        finally:
            with self._lock:
                self._open.difference_update((raw, connection))
                self._threads.discard(threading.current_thread())
            connection.close()
            raw.close()

    def _refused(self, raw: socket.socket) -> bool:
        fault = self._faults.take(CONNECT)
        if fault is None:
            return False
        self._stopping.wait(fault.delay_s)
        if fault.act is Act.RESET:
            # Before it speaks, Python would leave the socket open on its side.
            with contextlib.suppress(OSError):
                raw.recv(1, socket.MSG_PEEK)
            Peer(raw, 0).reset()
        return fault.act is not Act.NORMAL

    def _converse(self, peer: Peer) -> None:
        """The requests of one peer, one after the other."""
        try:
            while not self._stopping.is_set():
                head = peer.read_head()
                if head is None or not self._exchange(peer, head):
                    break
        except Malformed:
            with contextlib.suppress(Disconnected):
                peer.send(_render(from_nginx(400), keep=False))
        except Disconnected:
            return
        peer.half_close()

    # Requests

    def _exchange(self, peer: Peer, head: Head) -> bool:
        """One request and its answer; whether the connection stays."""
        certificate = x509.load_der_x509_certificate(peer.certificate) if peer.certificate else None
        subject = self._subject(certificate) if certificate else ""
        fault = self._faults.take(self._application.route(head.target))
        body = Body(peer, head)
        answer: Reply | wire.Answer | None = None
        try:
            answer = self._refusal(head, certificate) or self._meet(fault, head, body, subject)
        finally:
            self._record(peer, head, subject, body, answer, fault)
        if fault is not None and fault.act is Act.RESET:
            peer.reset()
        if fault is not None and fault.act is Act.DRIP:
            self._drip(peer, fault)
        if answer is None:
            raise Disconnected
        return self._send(peer, head, answer, fault)

    def _refusal(self, head: Head, certificate: x509.Certificate | None) -> Reply | None:
        """What nginx says by itself, before the body is read."""
        if not head.header("host"):
            return from_nginx(400, close=True)
        if certificate is None:
            return from_nginx(400, "No required SSL certificate was sent", close=True)
        if self._unsafe_reason(certificate):
            return from_nginx(400, "The SSL certificate error", close=True)
        if int(head.header("content-length") or 0) > self.body_limit:
            return from_nginx(413, close=True)
        return None

    def _meet(self, fault: Fault | None, head: Head, body: Body, subject: str) -> Reply | wire.Answer | None:
        """Let the request be handled, or not, as the fault says; None when nothing shall be answered."""
        if fault is None:
            return self._pass_on(head, body, subject)
        answer: Reply | None = None
        if fault.handled or fault.act in _HANDLED:
            answer = self._pass_on(head, body, subject)
        if fault.act is Act.TWICE:
            self._pass_on(head, body, subject)
        elif fault.act is Act.CLOSE:
            body.read_some(fault.size)
        elif fault.act in (Act.DROP, Act.DRIP) or (fault.act is Act.ANSWER and not fault.unread):
            body.read()
        if fault.act is not Act.DRIP:
            self._stopping.wait(fault.delay_s)  # after the work: a client that gives up has left its records behind
        if fault.act is Act.ANSWER:
            return fault.answer
        return answer if fault.act in (Act.NORMAL, Act.CLOSE_AFTER, Act.TWICE) else None

    def _pass_on(self, head: Head, body: Body, subject: str) -> Reply:
        content = bytes(body.read())
        if len(content) > self.body_limit:  # in chunks, so that only now it shows
            return from_nginx(413, close=True)
        query = Query(
            method=head.method,
            target=head.target,
            host=head.header("host"),
            content_type=head.header("content-type"),
            subject=subject,
        )
        return self._application.answer(query, content)

    def _send(self, peer: Peer, head: Head, answer: Reply | wire.Answer, fault: Fault | None) -> bool:
        polite = head.version == "HTTP/1.1" and head.header("connection").lower() != "close"
        if isinstance(answer, wire.Answer):
            peer.send(wire.render(answer, close=not polite))
            return polite and answer.raw is None and answer.length in (None, len(answer.body))
        keep = polite and not answer.close
        peer.send(_render(answer, keep=keep, body=head.method != "HEAD"))
        if answer.close:
            _linger(peer)
        return keep and (fault is None or fault.act is not Act.CLOSE_AFTER)

    def _drip(self, peer: Peer, fault: Fault) -> None:
        start = b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: 10000000\r\n\r\n" if fault.in_body else b"X-Drip: ")
        peer.send(start)
        end = time.monotonic() + fault.delay_s
        while time.monotonic() < end and not self._stopping.wait(fault.interval_s):
            peer.send(b" " if fault.in_body else b"x")

    def _record(
        self,
        peer: Peer,
        head: Head,
        subject: str,
        body: Body,
        answer: Reply | wire.Answer | None,
        fault: Fault | None,
    ) -> None:
        self._recorder.add(
            Request(
                route=self._application.route(head.target),
                method=head.method,
                target=head.target,
                headers=head.headers,
                body=bytes(body.content),
                status=answer.status if answer else 0,
                clock_s=time.monotonic(),
                connection=peer.number,
                tls_version=peer.tls_version,
                subject=subject,
                fault=fault,
            )
        )


def _render(reply: Reply, *, keep: bool, body: bool = True) -> bytes:
    """Replies of the database's thread come in chunks, all others with their length."""
    content = reply.body if body else b""
    if reply.chunked:
        cut = len(content) // 2
        pieces = [piece for piece in (content[:cut], content[cut:]) if piece]
        framing = "Transfer-Encoding: chunked"
        content = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        framing = f"Content-Length: {len(content)}"
    head = (
        f"HTTP/1.1 {reply.status} {wire.phrase(reply.status)}\r\nServer: nginx/1.22.1\r\n"
        f"Date: {formatdate(usegmt=True)}\r\nContent-Type: text/html\r\n{framing}\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    )
    return head.encode("latin-1") + content


def _linger(peer: Peer) -> None:
    """Swallow what still comes, so that a client in the middle of its upload finds the answer and no reset."""
    with contextlib.suppress(OSError):
        peer.sock.settimeout(_LINGER_S)
        while peer.sock.recv(65536):
            pass
