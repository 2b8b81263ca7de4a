"""Our connections and sockets under `requests`: an adapter over urllib3's pools."""

from __future__ import annotations

import http.client
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any, ClassVar, Final

import requests
from requests.adapters import HTTPAdapter
from requests.utils import get_auth_from_url
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from publisher.transports.base import Endpoint
from publisher.transports.http.sockets import connected, resolved

# How long to wait for the answer after an upload broke: it is on its way already, or there is none.
_LAST_WORDS_S: Final = 5.0
_INTERIM: Final = range(102, 200)  # 101 would be final, and was never asked for


class DeadlineError(TimeoutError):
    """The attempt has used up its time."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The exchange under way in a session: its limits in seconds, and how far it came.

    Neither is in `requests` or urllib3, whose errors do not show whether a byte had left.
    `connecting`: a connection is being opened, with its name, all its addresses, a proxy and TLS;
    `connected`: it opened one of its own; `sending`: its first byte may have left; `upload_error`:
    the rest of the request did not leave; `timed_out`: a limit ended it. `connection` is the last
    one, open or not.
    """

    clock: Callable[[], float]
    connect_s: float
    silence_s: float
    whole_s: float
    deadline: float = 0.0
    connect_by: float = 0.0
    connecting: bool = False
    connected: bool = False
    sending: bool = False
    upload_error: OSError | None = None
    timed_out: bool = False
    connection: _Connection | None = None

    @classmethod
    def to(cls, endpoint: Endpoint, clock: Callable[[], float]) -> Attempt:
        """Return one with the limits of a service."""
        connect_s, silence_s, whole_s = endpoint.connect_s, endpoint.read_s, endpoint.attempt_s
        return cls(clock=clock, connect_s=connect_s, silence_s=silence_s, whole_s=whole_s)

    def begin(self) -> None:
        """Begin another exchange, of one request or of two."""
        self.deadline = self.clock() + self.whole_s

    def begin_request(self) -> None:
        """Begin a request; what is known of an earlier one of the exchange is forgotten."""
        self.connecting = self.connected = self.sending = self.timed_out = False
        self.upload_error = None

    def begin_connection(self) -> None:
        """Begin to open a connection."""
        self.connecting = self.connected = True
        self.connect_by = self.clock() + self.connect_s

    def left_s(self) -> float:
        """Return the seconds for what comes next. Raises: DeadlineError when none are left."""
        now = self.clock()
        most = self.silence_s if self.upload_error is None else _LAST_WORDS_S
        if self.connecting:
            most = self.connect_by - now
        left = min(most, self.deadline - now)
        if left <= 0:
            if self.connecting:
                raise DeadlineError("no connection within the time for one")
            raise DeadlineError("no complete answer within the time for one attempt")
        return left


class _Head:
    """The lines of an answer's head: `http.client` takes one that breaks off for a whole one."""

    def __init__(self, file: Any) -> None:
        self.file, self.last = file, b""
        self.close = file.close

    def readline(self, limit: int) -> bytes:
        """Return the next line, b'' at the end of the connection."""
        self.last = self.file.readline(limit)
        return self.last


class _WholeResponse(http.client.HTTPResponse):
    """The final answer, with its whole head: `http.client`, by which urllib3 reads, takes 103 for
    one, and what follows then for the answer to the next request.

    Spec: RFC 9110 section 15.2, RFC 9112 section 8.
    """

    fp: Any
    headers: Any  # None until `begin` has read them

    def begin(self) -> None:
        """Read status and headers, which is done again only once they are forgotten."""
        self._begin()
        while self.status in _INTERIM:
            self.headers = None
            self._begin()

    def _begin(self) -> None:
        head = self.fp = _Head(self.fp)
        try:
            super().begin()
        finally:
            self.fp = self.fp and head.file  # None once it is closed
        if not head.last:
            raise http.client.RemoteDisconnected("the connection ended within the headers")


class _Connection(HTTPConnection):
    """A connection that notes how far an exchange came, and lets answers to broken uploads in.

    AMS answers 401, 403 and 404 before it has read the body, then closes: a client that still
    uploads meets a broken pipe, a reset or a TLS end of file, and finds the answer only if it
    reads (always there, for bodies up to 5 MB). urllib3 reads after the first two alone, and would
    use such a connection again.
    """

    response_class = _WholeResponse
    attempt: ClassVar[Attempt]

    def connect(self) -> None:
        """Connect, and shake hands where it is TLS."""
        self.attempt.begin_connection()
        self.attempt.connection = self
        super().connect()
        self.attempt.connecting = False

    def _new_conn(self) -> socket.socket:
        left_s = self.attempt.left_s
        host = self._dns_host.strip("[]")  # of an IPv6 address
        opened, errors = connected(resolved(host, self.port, left_s()), left_s)
        if opened is None:
            raise errors[-1]
        opened.left_s = left_s
        return opened

    def send(self, data: Any) -> None:
        """Send a part of the request; nothing any more once sending has failed."""
        attempt = self.attempt
        if self.sock is None:
            self.connect()
        if attempt.connecting:  # the CONNECT request to a proxy
            super().send(data)
        elif attempt.upload_error is None:
            attempt.sending = True
            try:
                super().send(data)
            except OSError as error:
                attempt.upload_error = error

    @property
    def has_more(self) -> bool:
        """Whether TLS has read more than the answer, which urllib3 does not see before it sends."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0


class _SecureConnection(_Connection, HTTPSConnection):
    """With TLS."""


class _Adapter(HTTPAdapter):
    """Makes `requests` use one connection of our kind, directly or through a proxy.

    It takes a context from an adapter alone, and connections from the pools of urllib3 alone.
    """

    def __init__(self, context: ssl.SSLContext | None, attempt: Attempt) -> None:
        plain = type("_PlainLine", (_Connection,), {"attempt": attempt})
        secure = type("_SecureLine", (_SecureConnection,), {"attempt": attempt})
        self._pools = {
            "http": type("_PlainPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
            "https": type("_SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
        }
        self._context = context
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **kwargs: Any
    ) -> None:
        """Let the pools be ours."""
        super().init_poolmanager(connections, maxsize, block, **kwargs, ssl_context=self._context)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """Let the pools behind a proxy be ours."""
        manager = super().proxy_manager_for(proxy, **kwargs, ssl_context=self._context)
        manager.pool_classes_by_scheme = self._pools
        return manager

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leave trust to our context: `requests` would add the CAs of certifi to it."""

    def proxy_headers(self, proxy: str) -> dict[str, str]:
        """Return the name and password for a proxy in UTF-8; `requests` knows only Latin-1."""
        name, password = get_auth_from_url(proxy)
        known = b64encode(f"{name}:{password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {known}"} if name else {}

    def build_response(self, req: requests.PreparedRequest, resp: Any) -> requests.Response:
        """Return the answer with its body unread, and its headers with it.

        By these, `requests` would look for a charset, which fails on `text/html; charset`, for
        cookies, and for a redirect, whose page it reads without bounds even to not follow it.
        """
        response = requests.Response()
        response.request, response.status_code, response.raw = req, resp.status, resp
        return response


def opened_session(
    context: ssl.SSLContext | None, proxy: str, attempt: Attempt
) -> requests.Session:
    """Return a session for one service. `context` is None for plain HTTP, `proxy` '' for none."""
    session = requests.Session()
    session.trust_env = False  # no .netrc, no CAs and no proxy of the environment
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))  # none are kept
    session.proxies = {"https": proxy} if proxy else {}
    session.headers.clear()
    # What comes encoded all the same is not decoded: no answer that we need is, and a bomb is.
    session.headers.update({"User-Agent": "publisher", "Accept-Encoding": "identity"})
    adapter = _Adapter(context, attempt)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session
