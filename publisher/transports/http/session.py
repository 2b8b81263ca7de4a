"""A session to one host: our own TLS, time limits and proxy; answers and failures as values.

What the exceptions of HTTP and TLS libraries mean, and words that help, is decided here as well.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from publisher.transports.base import Endpoint
from publisher.transports.http.exchange import Answer, Failure, RequestFailure, plain, redacted
from publisher.transports.http.tls import Attempt, Bounded, BoundedPlainSocket


@dataclass(slots=True)
class ConnectionOptions:
    """What connections of one session share: the TLS context (or None), and the attempt."""

    context: ssl.SSLContext | None
    attempt: Attempt


class _Connection(HTTPConnection):
    """One connection. It notes how far an attempt came, and reads answers to broken uploads too.

    AMS answers 401, 403 and 404 before it has read the body, then closes: a client that still
    uploads sees a broken pipe, a reset or a TLS end of file, and finds the answer only if it looks
    (always there, for bodies up to 5 MB).
    """

    line: ClassVar[ConnectionOptions]
    _connecting = False

    def connect(self) -> None:
        self.line.attempt.connected = True
        self._connecting = True
        try:
            super().connect()
            if self.sock is not None:
                # urllib3 leaves Nagle's algorithm on behind a proxy, which delays every request
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not isinstance(self.sock, Bounded):
                    self.sock = BoundedPlainSocket(fileno=self.sock.detach())
        finally:
            self._connecting = False

    def send(self, data: Any) -> None:
        """Send a part of the request; nothing any more once sending has failed."""
        if self.sock is None:
            self.connect()
        if self._connecting:  # the CONNECT request to a proxy
            super().send(data)
            return
        attempt = self.line.attempt
        if attempt.upload_error is not None:
            return
        attempt.sending = True
        if isinstance(self.sock, Bounded):
            self.sock.attempt = attempt
        try:
            super().send(data)
        except OSError as error:
            attempt.upload_error = error

    def getresponse(self) -> Any:
        """The answer. Raises: the error of the upload, if there was one and no answer came."""
        broken = self.line.attempt.upload_error
        try:
            return super().getresponse()
        except (OSError, http.client.HTTPException) as error:
            if broken is None or explains_more(error):
                raise
            raise broken from error


class _SecureConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        """Connect with our context and nothing that urllib3 would add, such as the system's CAs."""
        self.ssl_context = self.line.context
        self.ca_certs = self.ca_cert_dir = self.ca_cert_data = None
        self.cert_file = self.key_file = None
        self.cert_reqs = ssl.CERT_REQUIRED
        self.assert_hostname = self.assert_fingerprint = None
        super().connect()


def _connections(line: ConnectionOptions, proxy: str) -> urllib3.PoolManager:
    """One connection of our kind at a time, directly or through a proxy."""
    manager = urllib3.PoolManager(1)
    if proxy:
        address = urlsplit(proxy)
        known = f"{unquote(address.username)}:{unquote(address.password or '')}" if address.username else None
        manager = urllib3.ProxyManager(proxy, 1, proxy_headers=urllib3.make_headers(proxy_basic_auth=known))
    plain = type("_LineConnection", (_Connection,), {"line": line})
    secure = type("_SecureLineConnection", (_SecureConnection,), {"line": line})
    manager.pool_classes_by_scheme = {
        "http": type("_LinePool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("_SecureLinePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
    }
    return manager


SUCCESS_LIMIT: Final = 1 << 20
ERROR_LIMIT: Final = 64 << 10
_CHUNK: Final = 4096
_HEADERS: Final = {"User-Agent": "publisher", "Accept-Encoding": "identity"}
_NOT_AGAIN: Final = urllib3.Retry(0, read=False)


class Session:
    """Requests to one host over one kept-alive connection, strictly one after the other.

    Redirects are not followed, which would carry the token to another host.
    """

    def __init__(
        self, endpoint: Endpoint, context: ssl.SSLContext | None, *, trust: str, clock: Callable[[], float]
    ) -> None:
        """`context` is None for plain HTTP. `trust` names the CAs, for messages."""
        self._endpoint, self._clock = endpoint, clock
        self._where = Peer(place=urlsplit(endpoint.url).netloc, trust=trust, proxy=endpoint.proxy)
        self._line = ConnectionOptions(context, self._attempt())
        self._http = _connections(self._line, endpoint.proxy)
        self._limits = urllib3.Timeout(connect=endpoint.connect_s, read=endpoint.read_s)

    def exchange(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer | RequestFailure:
        """One request and its result; never raises for network or server. `headers` are secret.

        A kept-alive connection that turns out to be dead is replaced once, without a word: the
        requests that are made here are all harmless to repeat.
        """
        given = dict(headers or {})
        first = self._once(method, path, body, given)
        dead = self._line.attempt
        if isinstance(first, Answer) or dead.connected or dead.timed_out or first.failure is not Failure.MAYBE_SENT:
            return first
        again = self._once(method, path, body, given)
        if isinstance(again, RequestFailure) and again.failure is Failure.NOT_SENT:
            return RequestFailure(failure=Failure.MAYBE_SENT, reason=again.reason)
        return replace(again, tries=2)

    def close(self) -> None:
        """Close the connection; a further request would open a new one."""
        self._http.clear()

    def _attempt(self) -> Attempt:
        deadline = self._clock() + self._endpoint.attempt_s
        return Attempt(clock=self._clock, io_timeout_s=self._endpoint.read_s, deadline=deadline)

    def _once(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer | RequestFailure:
        attempt = self._line.attempt = self._attempt()
        try:
            response = self._http.connection_from_url(self._endpoint.url).urlopen(
                method,
                path,
                body,
                _HEADERS | headers,
                retries=_NOT_AGAIN,
                redirect=False,
                assert_same_host=False,
                timeout=self._limits,
                preload_content=False,
                decode_content=False,
            )
        except FOREIGN as error:
            self._http.clear()
            attempt.timed_out = is_timeout(error)
            return no_answer(error, self._where, sending=attempt.sending, secrets=headers.values())
        answer = _read(response)
        if attempt.upload_error is not None:
            # The rest of that upload must never be taken for the next request
            self._http.clear()
        return answer


def _read(response: urllib3.BaseHTTPResponse) -> Answer:
    """The answer, read in bounded pieces; marked as cut when too long, too slow, or broken off."""
    headers = {name.lower(): value for name, value in response.headers.itermerged()}
    limit = SUCCESS_LIMIT if response.status == 200 else ERROR_LIMIT
    body = bytearray()
    complete = False
    try:
        while len(body) <= limit:
            piece = response.read(_CHUNK, decode_content=False)
            if not piece:
                announced = headers.get("content-length", "")
                complete = not announced.isdecimal() or int(announced) == len(body)
                break
            body += piece
    except FOREIGN:
        # The status is known and decides; `complete` says that the body is no receipt.
        complete = False
    if complete:
        response.release_conn()
    else:
        response.close()
    return Answer(status=response.status, headers=headers, body=bytes(body[:limit]), complete=complete)


FOREIGN: Final = (OSError, ValueError, urllib3.exceptions.HTTPError, http.client.HTTPException)

# TLS alerts that are a verdict on our certificate; prefixes differ between versions of OpenSSL.
_ABOUT_OUR_CERTIFICATE: Final = (
    *("ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_UNSUPPORTED_CERTIFICATE", "ALERT_ACCESS_DENIED"),
    *("ALERT_CERTIFICATE_EXPIRED", "ALERT_CERTIFICATE_REVOKED", "ALERT_CERTIFICATE_UNKNOWN"),
    "ALERT_CERTIFICATE_REQUIRED",
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


def no_answer(error: Exception, where: Peer, *, sending: bool, secrets: Iterable[str] = ()) -> RequestFailure:
    """What an exception means. `sending`: the first byte of the request may have left."""
    failure, reason = _meaning(error, tuple(_causes(error)), where, sending=sending)
    text = redacted(_CREDENTIALS_IN_URL.sub("//", reason), secrets)
    return RequestFailure(failure=failure, reason=plain(text))


def is_timeout(error: Exception) -> bool:
    """Whether a time limit of ours ended the request, rather than the other side."""
    return any(isinstance(cause, TimeoutError | urllib3.exceptions.TimeoutError) for cause in _causes(error))


def explains_more(error: Exception) -> bool:
    """Whether an error of reading says more than that of sending: an alert on our certificate."""
    return _alert(_causes(error)) is not None


def _meaning(error: Exception, causes: tuple[BaseException, ...], where: Peer, *, sending: bool) -> tuple[Failure, str]:
    if refused := next((cause for cause in causes if isinstance(cause, ssl.SSLCertVerificationError)), None):
        why = getattr(refused, "verify_message", "") or str(refused)
        return Failure.THEIR_CERTIFICATE, (
            f"{where.place}: its certificate is not trusted ({why}); trusted are the CAs in {where.trust}; nothing was sent"
        )
    if alert := _alert(causes):
        reason = f"{where.place}: refused our certificate in the TLS handshake ({_tls_reason(alert)})"
        return Failure.OUR_CERTIFICATE, reason
    words = _words(error, causes)
    if sending:
        return Failure.MAYBE_SENT, f"{where.place}: no answer, the request may have arrived ({words})"
    if where.proxy:
        return _at_the_proxy(causes, where, words)
    if isinstance(error, ValueError):
        # Its text would quote the offending header or URL, in a spelling that no redaction knows.
        reason = f"{where.place}: cannot ask that ({type(error).__name__}); check the URLs of the target"
        return Failure.IMPOSSIBLE, reason
    return Failure.NOT_SENT, f"{where.place}: cannot connect ({words})"


def _at_the_proxy(causes: tuple[BaseException, ...], where: Peer, words: str) -> tuple[Failure, str]:
    tunnels = (_TUNNEL.fullmatch(str(cause)) for cause in causes)
    tunnel = next((found for found in tunnels if found), None)
    status = int(tunnel[1]) if tunnel else 0
    if tunnel:
        words = f"it answered {status}{tunnel[2]}"
    reason = f"{where.place}: no way through the proxy {where.proxy} (`proxy` of the target or HTTPS_PROXY): {words}"
    refused = 400 <= status < 500 and status not in _PASSING_AT_PROXY
    return Failure.PROXY if refused else Failure.NOT_SENT, reason


def _alert(causes: Iterable[BaseException]) -> ssl.SSLError | None:
    errors = (cause for cause in causes if isinstance(cause, ssl.SSLError))
    return next((error for error in errors if _tls_reason(error).endswith(_ABOUT_OUR_CERTIFICATE)), None)


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
    """The operating system's own error text, without what three libraries wrapped around it."""
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
