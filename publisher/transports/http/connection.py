"""Our connections and sockets under `requests`: an adapter over urllib3's pools."""

from __future__ import annotations

import http.client
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import requests
from requests.adapters import HTTPAdapter
from requests.utils import get_auth_from_url
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from publisher.transports.http.tls import Bounded

# How long to wait for the answer after an upload broke: it is on its way already, or there is none.
_LAST_WORDS_S: Final = 5.0
_INTERIM: Final = range(102, 200)  # 101 would be final, and was never asked for


class DeadlineError(TimeoutError):
    """The attempt has used up its time."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The exchange under way in a session: its limits in seconds, and how far it came.

    Neither is in `requests` or urllib3, whose errors do not show whether a byte had left.
    `connecting`: a connection is being opened, through a proxy or not; `connected`: it opened one
    of its own; `sending`: its first byte may have left; `upload_error`: the rest of the request
    did not leave; `timed_out`: a limit ended it. `connection` is the last one, open or not.
    """

    clock: Callable[[], float]
    connect_s: float
    silence_s: float
    whole_s: float
    deadline: float = 0.0
    connecting: bool = False
    connected: bool = False
    sending: bool = False
    upload_error: OSError | None = None
    timed_out: bool = False
    connection: _Connection | None = None

    def begin(self) -> None:
        """Begin another exchange."""
        self.deadline = self.clock() + self.whole_s
        self.connecting = self.connected = self.sending = self.timed_out = False
        self.upload_error = None

    def left_s(self) -> float:
        """Return the seconds for the next read or write. Raises: DeadlineError."""
        left = self.deadline - self.clock()
        if left <= 0:
            raise DeadlineError("no complete answer within the time for one attempt")
        most = self.connect_s if self.connecting else self.silence_s
        if self.upload_error is not None:
            most = _LAST_WORDS_S
        return min(left, most)


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
        self.attempt.connecting = self.attempt.connected = True
        self.attempt.connection = self
        super().connect()
        self.attempt.connecting = False
        if isinstance(self.sock, Bounded):
            self.sock.left_s = self.attempt.left_s

    def _new_conn(self) -> socket.socket:
        opened = super()._new_conn()
        bounded = Bounded(fileno=opened.detach())
        bounded.settimeout(self.timeout)
        bounded.left_s = self.attempt.left_s
        return bounded

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


class _NoCookies(requests.cookies.RequestsCookieJar):
    """A jar that stays empty: `requests` would send back what a service or a balancer sets."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        """Look at nothing."""


class _Adapter(HTTPAdapter):
    """Makes `requests` use one connection of our kind, directly or through a proxy."""

    def __init__(self, context: ssl.SSLContext | None, attempt: Attempt) -> None:
        plain = type("_PlainLine", (_Connection,), {"attempt": attempt})
        secure = type("_SecureLine", (_SecureConnection,), {"attempt": attempt})
        self._pools = {
            "http": type("_PlainPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
            "https": type("_SecurePool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
        }
        # Behind a proxy, urllib3 would leave Nagle's algorithm on, which delays every request.
        options = HTTPConnection.default_socket_options
        self._for_pools = {"ssl_context": context, "socket_options": options}
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **kwargs: Any
    ) -> None:
        """Let the pools be ours."""
        super().init_poolmanager(connections, maxsize, block, **kwargs, **self._for_pools)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """Let the pools behind a proxy be ours."""
        manager = super().proxy_manager_for(proxy, **kwargs, **self._for_pools)
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
    session.cookies = _NoCookies()
    session.proxies = {"https": proxy} if proxy else {}
    session.headers.clear()
    # What comes encoded all the same is not decoded: no answer that we need is, and a bomb is.
    session.headers.update({"User-Agent": "publisher", "Accept-Encoding": "identity"})
    adapter = _Adapter(context, attempt)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return session
