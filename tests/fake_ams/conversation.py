"""One connection from first request to last: read, meet the fault, answer, keep or close."""

import contextlib
import threading
import time
from datetime import UTC, datetime
from typing import Protocol

from cryptography import x509

from tests.fake_ams.faults import Act, Fault, FaultScript, ServiceName
from tests.fake_ams.recorder import Recorder, Request
from tests.fake_ams.wire import Answer, Body, Disconnected, Head, Malformed, Peer, render
from tests.support.pki import slash_dn

LINGER_S = 0.5
"""How long Go's server waits after a half-close before it drops a client that still uploads."""
_BAD_REQUEST = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
)


class Service(Protocol):
    """What stands behind a listener: authn or AMS."""

    @property
    def name(self) -> ServiceName: ...

    def route(self, head: Head) -> str:
        """The name of the route, or empty."""
        ...

    def answer(self, head: Head, body: Body, certificate: bytes | None) -> Answer:
        """Handle a request; the body is read only if the handler wants it."""
        ...


class Conversation:
    """The requests of one peer, one after the other."""

    def __init__(
        self,
        peer: Peer,
        service: Service,
        *,
        faults: FaultScript,
        recorder: Recorder,
        stopping: threading.Event,
        keep_bodies: bool,
    ) -> None:
        self._peer = peer
        self._service = service
        self._faults = faults
        self._recorder = recorder
        self._stopping = stopping
        self._keep_bodies = keep_bodies
        certificate = peer.certificate
        self._subject = slash_dn(x509.load_der_x509_certificate(certificate).subject) if certificate else ""

    def run(self) -> None:
        """Serve until either side closes; the caller closes the socket."""
        try:
            while not self._stopping.is_set():
                head = self._peer.read_head()
                if head is None or not self._exchange(head):
                    break
        except Malformed:
            with contextlib.suppress(Disconnected):
                self._peer.send(_BAD_REQUEST)
        except Disconnected:
            return
        self._peer.half_close()

    def _exchange(self, head: Head) -> bool:
        """One request and its answer; whether the connection stays."""
        route = self._service.route(head)
        fault = self._faults.take(self._service.name, route)
        act = fault.act if fault else Act.NORMAL
        body = Body(self._peer, head)
        answer: Answer | None = None
        try:
            answer = self._meet(fault, head, body)
        finally:
            self._record(head, route, body, answer, fault)
        if act is Act.RESET:
            self._peer.reset()
        if act is Act.DRIP and fault:
            self._drip(fault)
        if answer is None:
            raise Disconnected
        return self._send(answer, head, body, stay=act is not Act.CLOSE_AFTER)

    def _meet(self, fault: Fault | None, head: Head, body: Body) -> Answer | None:
        """Let the request be handled, or not, as the fault says; None when nothing shall be answered."""
        if fault is None:
            return self._service.answer(head, body, self._peer.certificate)
        answer: Answer | None = None
        if fault.handled or fault.act in (Act.NORMAL, Act.LOSE_ANSWER, Act.CLOSE_AFTER, Act.TWICE):
            answer = self._service.answer(head, body, self._peer.certificate)
        if fault.act is Act.TWICE:
            self._service.answer(head, body, self._peer.certificate)
        elif fault.act is Act.CLOSE:
            body.read_some(fault.size)
        elif fault.act in (Act.DROP, Act.DRIP) or (fault.act is Act.ANSWER and not fault.unread):
            body.read()
        if fault.act is not Act.DRIP and fault.delay_s:
            # The silence comes after the work: a client that gives up has left its message, as with a slow Kafka.
            self._stopping.wait(fault.delay_s)
        if fault.act is Act.ANSWER:
            return fault.answer
        return answer if fault.act in (Act.NORMAL, Act.CLOSE_AFTER, Act.TWICE) else None

    def _send(self, answer: Answer, head: Head, body: Body, *, stay: bool) -> bool:
        keep = body.drain()
        polite = head.version == "HTTP/1.1" and head.header("connection").lower() != "close"
        self._peer.send(render(answer, close=not (keep and polite)))
        if not keep:
            self._peer.half_close()
            self._stopping.wait(LINGER_S)
            raise Disconnected
        honest = answer.raw is None and answer.length in (None, len(answer.body))
        return polite and stay and honest

    def _drip(self, fault: Fault) -> None:
        self._peer.send(
            b"HTTP/1.1 200 OK\r\n" + (b"Content-Length: 10000000\r\n\r\n" if fault.in_body else b"X-Drip: ")
        )
        end = time.monotonic() + fault.delay_s
        while time.monotonic() < end and not self._stopping.wait(fault.interval_s):
            self._peer.send(b" " if fault.in_body else b"x")

    def _record(self, head: Head, route: str, body: Body, answer: Answer | None, fault: Fault | None) -> None:
        self._recorder.add(
            Request(
                service=self._service.name,
                route=route,
                method=head.method,
                target=head.target,
                path=head.path,
                headers=head.headers,
                body=bytes(body.content) if self._keep_bodies else b"",
                body_size=body.size,
                status=answer.status if answer else 0,
                time=datetime.now(UTC),
                clock_s=time.monotonic(),
                connection=self._peer.number,
                tls_version=self._peer.tls_version,
                client_subject=self._subject,
                fault=fault,
            )
        )
