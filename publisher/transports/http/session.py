"""A session to one host: our own TLS, time limits and proxy; answers and failures as values.

What the exceptions of HTTP and TLS libraries mean, and words that help, is decided here as well.
"""

from __future__ import annotations

import http.client
import re
import select
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from publisher.transports.base import Endpoint
from publisher.transports.http.exchange import Answer, Failure, RequestFailure, plain, redacted
from publisher.transports.http.options import port_of
from publisher.transports.http.tls import Attempt, Bounded, BoundedPlainSocket


class _Response(http.client.HTTPResponse):
    """The final answer: interim ones, such as 103, are passed over. `http.client` knows only 100.

    Spec: RFC 9110 section 15.2.
    """

    headers: Any  # None until `begin` has read them

    def begin(self) -> None:
        """Read status and headers, which is done again only once they are forgotten."""
        super().begin()
        while self.status in _INTERIM:
            self.headers = None
            super().begin()


class _Connection(http.client.HTTPConnection):
    """The connection of a session. It notes how far an attempt came, and reads answers to broken
    uploads too.

    AMS answers 401, 403 and 404 before it has read the body, then closes: a client that still
    uploads sees a broken pipe, a reset or a TLS end of file, and finds the answer only if it looks
    (always there, for bodies up to 5 MB).
    """

    response_class = _Response
    attempt: Attempt
    _connecting = False

    def connect(self) -> None:
        self.attempt.connected = True
        self._connecting = True
        try:
            super().connect()
            if not isinstance(self.sock, Bounded):
                self.sock = BoundedPlainSocket(fileno=self.sock.detach())
        finally:
            self._connecting = False

    def send(self, data: Any) -> None:
        """Send a part of the request; nothing any more once sending has failed."""
        if self.sock is None:
            self.connect()
        if self._connecting:  # the CONNECT request to a proxy
            to_proxy = self.sock = BoundedPlainSocket(fileno=self.sock.detach())
            to_proxy.attempt = replace(self.attempt, io_timeout_s=self.timeout or 0)
            super().send(data)
            return
        attempt = self.attempt
        if attempt.upload_error is not None:
            return
        attempt.sending = True
        if isinstance(self.sock, Bounded):
            self.sock.attempt = attempt
        try:
            super().send(data)
        except OSError as error:
            attempt.upload_error = error

    def getresponse(self) -> http.client.HTTPResponse:
        """The answer. Raises: the error of the upload, if there was one and no answer came."""
        broken = self.attempt.upload_error
        try:
            return super().getresponse()
        except (OSError, http.client.HTTPException) as error:
            if broken is None or explains_more(error):
                raise
            raise broken from error

    def close_if_over(self) -> None:
        """Close it where the other side has, or sent what nobody asked for."""
        if self.sock is not None:
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            if poll.poll(0) or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
                self.close()


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """With TLS."""


def _connection(endpoint: Endpoint, context: ssl.SSLContext | None) -> _Connection:
    """A connection, not yet opened, directly or through a proxy."""
    host, port = urlsplit(endpoint.url).hostname or "", port_of(endpoint.url)
    if context is None:
        return _Connection(host, port, timeout=endpoint.connect_s)
    if not endpoint.proxy:
        return _SecureConnection(host, port, timeout=endpoint.connect_s, context=context)
    proxy = urlsplit(endpoint.proxy)
    made = _SecureConnection(
        proxy.hostname or "", port_of(endpoint.proxy), timeout=endpoint.connect_s, context=context
    )
    made.set_tunnel(host, port, _proxy_headers(proxy))
    return made


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    known = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(known.encode()).decode()}"}


SUCCESS_LIMIT: Final = 1 << 20
ERROR_LIMIT: Final = 64 << 10
_CHUNK: Final = 4096
_INTERIM: Final = range(102, 200)  # 101 would be final, and was never asked for
_HEADERS: Final = {"User-Agent": "publisher", "Accept-Encoding": "identity"}
_PATH: Final = "%/:?#[]@!$&'()*+,;=~"  # what stays in a path as it is


class Session:
    """Requests to one host over one kept-alive connection, strictly one after the other.

    Redirects are not followed, which would carry the token to another host.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        context: ssl.SSLContext | None,
        *,
        trust: str,
        clock: Callable[[], float],
    ) -> None:
        """`context` is None for plain HTTP. `trust` names the CAs, for messages."""
        self._endpoint, self._clock = endpoint, clock
        self._where = Peer(place=urlsplit(endpoint.url).netloc, trust=trust, proxy=endpoint.proxy)
        self._connection = _connection(endpoint, context)

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | RequestFailure:
        """One request and its result; never raises for network or server. `headers` are secret.

        A kept-alive connection that turns out to be dead is replaced once, without a word: the
        requests that are made here are all harmless to repeat.
        """
        given = dict(headers or {})
        first = self._once(method, path, body, given)
        dead = self._connection.attempt
        was_tried = dead.connected or dead.timed_out
        if isinstance(first, Answer) or was_tried or first.failure is not Failure.MAYBE_SENT:
            return first
        again = self._once(method, path, body, given)
        if isinstance(again, RequestFailure) and again.failure is Failure.NOT_SENT:
            return RequestFailure(failure=Failure.MAYBE_SENT, reason=again.reason)
        return replace(again, tries=2)

    def close(self) -> None:
        """Close the connection; a further request would open a new one."""
        self._connection.close()

    def _attempt(self) -> Attempt:
        deadline = self._clock() + self._endpoint.attempt_s
        return Attempt(clock=self._clock, io_timeout_s=self._endpoint.read_s, deadline=deadline)

    def _once(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> Answer | RequestFailure:
        connection = self._connection
        attempt = connection.attempt = self._attempt()
        try:
            connection.close_if_over()
            connection.request(method, quote(path, safe=_PATH), body, _HEADERS | headers)
            response = connection.getresponse()
        except FOREIGN as error:
            connection.close()
            attempt.timed_out = is_timeout(error)
            return no_answer(error, self._where, sending=attempt.sending, secrets=headers.values())
        with response:
            answer = _read(response)
        if not answer.complete or attempt.upload_error is not None:
            # The rest of an answer, or of an upload, must never be taken for the next one.
            connection.close()
        return answer


def _read(response: http.client.HTTPResponse) -> Answer:
    """The answer, read in bounded pieces; marked as cut when too long, too slow, or broken off."""
    headers: dict[str, str] = {}
    for name, value in response.getheaders():
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    limit = SUCCESS_LIMIT if response.status == 200 else ERROR_LIMIT
    body = bytearray()
    complete = False
    try:
        while len(body) <= limit:
            piece = response.read(_CHUNK)
            if not piece:
                complete = not response.length  # nothing is missing of what was announced, if any
                break
            body += piece
    except FOREIGN:
        # The status is known and decides; `complete` says that the body is no receipt.
        complete = False
    return Answer(
        status=response.status, headers=headers, body=bytes(body[:limit]), complete=complete
    )


FOREIGN: Final = (OSError, ValueError, http.client.HTTPException)

# TLS alerts that are a verdict on our certificate; prefixes differ between versions of OpenSSL.
_ABOUT_OUR_CERTIFICATE: Final = (
    *("ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_UNSUPPORTED_CERTIFICATE"),
    *("ALERT_CERTIFICATE_EXPIRED", "ALERT_CERTIFICATE_REVOKED", "ALERT_CERTIFICATE_UNKNOWN"),
    *("ALERT_CERTIFICATE_REQUIRED", "ALERT_ACCESS_DENIED"),
)
_TUNNEL: Final = re.compile(r"Tunnel connection failed: (\d{3})(.*)", re.DOTALL)
_PASSING_AT_PROXY: Final = (408, 425, 429)
_NO_HTTP: Final = (http.client.BadStatusLine, http.client.UnknownProtocol)
_CREDENTIALS_IN_URL: Final = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What a reason names: the host and port, whom we trust, and the proxy ('' for none)."""

    place: str
    trust: str
    proxy: str = ""


def no_answer(
    error: Exception, where: Peer, *, sending: bool, secrets: Iterable[str] = ()
) -> RequestFailure:
    """What an exception means. `sending`: the first byte of the request may have left."""
    failure, reason = _meaning(error, tuple(_causes(error)), where, sending=sending)
    text = redacted(_CREDENTIALS_IN_URL.sub("//", reason), secrets)
    return RequestFailure(failure=failure, reason=plain(text))


def is_timeout(error: Exception) -> bool:
    """Whether a time limit of ours ended the request, rather than the other side."""
    return any(isinstance(cause, TimeoutError) for cause in _causes(error))


def explains_more(error: Exception) -> bool:
    """Whether an error of reading says more than that of sending: an alert on our certificate."""
    return _alert(_causes(error)) is not None


def _meaning(
    error: Exception, causes: tuple[BaseException, ...], where: Peer, *, sending: bool
) -> tuple[Failure, str]:
    refusals = (cause for cause in causes if isinstance(cause, ssl.SSLCertVerificationError))
    if refused := next(refusals, None):
        why = getattr(refused, "verify_message", "") or str(refused)
        return Failure.THEIR_CERTIFICATE, (
            f"{where.place}: its certificate is not trusted ({why}); "
            f"trusted are the CAs in {where.trust}; nothing was sent; "
            "`publisher doctor` says what to do"
        )
    if alert := _alert(causes):
        words = f"refused our certificate in the TLS handshake ({_tls_reason(alert)})"
        return Failure.OUR_CERTIFICATE, f"{where.place}: {words}"
    words = _words(error, causes)
    if sending:
        reason = f"{where.place}: no answer, the request may have arrived ({words})"
        return Failure.MAYBE_SENT, reason
    if where.proxy:
        return _at_the_proxy(causes, where, words)
    if isinstance(error, ValueError):
        # Its text would quote the offending header or URL, in a spelling that no redaction knows.
        words = f"cannot ask that ({type(error).__name__}); check the URLs of the target"
        return Failure.IMPOSSIBLE, f"{where.place}: {words}"
    return Failure.NOT_SENT, f"{where.place}: cannot connect ({words})"


def _at_the_proxy(
    causes: tuple[BaseException, ...], where: Peer, words: str
) -> tuple[Failure, str]:
    tunnels = (_TUNNEL.fullmatch(str(cause)) for cause in causes)
    tunnel = next((found for found in tunnels if found), None)
    status = int(tunnel[1]) if tunnel else 0
    if tunnel:
        words = f"it answered {status}{tunnel[2]}"
    proxy = f"{where.proxy} (`proxy` of the target or HTTPS_PROXY)"
    reason = f"{where.place}: no way through the proxy {proxy}: {words}"
    refused = 400 <= status < 500 and status not in _PASSING_AT_PROXY
    return Failure.PROXY if refused else Failure.NOT_SENT, reason


def _alert(causes: Iterable[BaseException]) -> ssl.SSLError | None:
    errors = (cause for cause in causes if isinstance(cause, ssl.SSLError))
    ours = (error for error in errors if _tls_reason(error).endswith(_ABOUT_OUR_CERTIFICATE))
    return next(ours, None)


def _tls_reason(error: ssl.SSLError) -> str:
    """OpenSSL's name for what happened; Python's own errors have none, not even the attribute."""
    return str(getattr(error, "reason", None) or "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it wraps, in any way: arguments, `reason`, cause or context."""
    seen: set[int] = set()
    queue: list[BaseException] = [error]
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inner = [*current.args, getattr(current, "reason", None), current.__cause__]
        if not current.__suppress_context__:
            inner.append(current.__context__)
        queue += [wrapped for wrapped in inner if isinstance(wrapped, BaseException)]


def _words(error: BaseException, causes: tuple[BaseException, ...]) -> str:
    """The operating system's own error text, without what was wrapped around it."""
    for cause in reversed(causes):
        if isinstance(cause, socket.gaierror):
            return f"the name does not resolve: {cause.strerror}"
        if isinstance(cause, TimeoutError):
            return str(cause) or "timed out"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        if isinstance(cause, _NO_HTTP) and not isinstance(cause, http.client.RemoteDisconnected):
            return "what came is no HTTP"  # their texts quote it, and it may be the token
        if isinstance(cause, http.client.HTTPException):
            return f"{type(cause).__name__}: {cause}"
    return f"{type(error).__name__}: {error}"
