"""The connection under a session: requests and urllib3 drive it, our TLS context and time limits rule it."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import Any, ClassVar

import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPSConnection
from urllib3.connectionpool import HTTPSConnectionPool

from publisher.transports.http.errors import explains_more
from publisher.transports.http.tls import Attempt, BoundedSocket


class ConnectionOptions:
    """What every connection of one session shares: the TLS context, and the attempt being made."""

    def __init__(self, context: ssl.SSLContext, attempt: Attempt) -> None:
        self.context = context
        self.attempt = attempt


class _Connection(HTTPSConnection):
    """One connection. It notes how far the attempt has come, and reads the answer even after the upload broke.

    AMS answers 401, 403 and 404 before it has read the body, then closes: a client that still uploads sees a broken pipe,
    a reset or a TLS end of file, and finds the answer only if it looks (measured: always there, for bodies up to 5 MB).
    """

    line: ClassVar[ConnectionOptions]
    _connecting = False

    def connect(self) -> None:
        """Connect with our context and nothing of what requests would add to it, such as its own bundle of CAs."""
        self.line.attempt.connected = True
        self.ssl_context = self.line.context
        self.ca_certs = self.ca_cert_dir = self.ca_cert_data = None
        self.cert_file = self.key_file = None
        self.cert_reqs = ssl.CERT_REQUIRED
        self.assert_hostname = self.assert_fingerprint = None
        self._connecting = True
        try:
            super().connect()
            if self.sock is not None:  # urllib3 leaves Nagle's algorithm on behind a proxy, which delays every request
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        if isinstance(self.sock, BoundedSocket):
            self.sock.attempt = attempt
        try:
            super().send(data)
        except OSError as error:
            attempt.upload_error = error

    def getresponse(self) -> Any:
        """The answer. Raises: the error of the upload, if there was one and no answer came all the same."""
        broken = self.line.attempt.upload_error
        try:
            return super().getresponse()
        except (OSError, http.client.HTTPException) as error:
            if broken is None or explains_more(error):
                raise
            raise broken from error


class ConnectionAdapter(HTTPAdapter):
    """Makes requests use one connection of our kind, directly or through a proxy."""

    def __init__(self, line: ConnectionOptions) -> None:
        connection = type("_LineConnection", (_Connection,), {"line": line})
        pool = type("_LinePool", (HTTPSConnectionPool,), {"ConnectionCls": connection})
        self._pools = {"https": pool}
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=urllib3.Retry(0, read=False))

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Let the pools be ours."""
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        """Let the pools behind a proxy be ours."""
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = self._pools
        return manager

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Leave verification to our context."""
