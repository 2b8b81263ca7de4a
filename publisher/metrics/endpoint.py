"""The same over HTTP, for the daemon: a port that answers every GET with the metrics."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from contextlib import closing
from socketserver import TCPServer, ThreadingMixIn
from threading import Lock, Thread
from typing import Any, ClassVar, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from publisher.config import Listen
from publisher.errors import ConfigError, LedgerError
from publisher.ledger.measure_base import Measure
from publisher.metrics.exposition import registry
from publisher.metrics.rounds import lost_measures
from publisher.wiring import Site

log = logging.getLogger("publisher")

_LOOK_S: Final = 0.2  # how soon a stop is seen


class _Asker(WSGIRequestHandler):
    """One who asks. Who says nothing for long is sent away."""

    timeout: ClassVar[float | None] = 10.0

    def log_message(self, template: str, *args: Any) -> None:
        log.debug("metrics: %s: %s", self.address_string(), template % args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def server_bind(self) -> None:
        """Without asking DNS for this host's name, as the standard library does; it may be what is broken."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("metrics: %s went away", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class Endpoint:
    """Answers where the configuration says, and moves when that changes. Nothing listens where it says nothing."""

    def __init__(self) -> None:
        self._lock = Lock()  # between those who ask and a reload
        self._site: Site | None = None
        self._listen: Listen | None = None
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def follow(self, site: Site) -> None:
        """Answer as this configuration says. Raises: ConfigError when it cannot listen there; then all stays as it was."""
        settings = site.settings.metrics
        listen = settings.listen if settings else None
        if listen == self._listen:
            with self._lock:
                self._site = site
            return
        server = None if listen is None else self._open(listen)
        self.close()
        with self._lock:
            self._site = site
        self._listen, self._server = listen, server
        if server is not None:
            self._thread = Thread(target=server.serve_forever, args=(_LOOK_S,), name="metrics", daemon=True)
            self._thread.start()
            log.info("metrics: http://%s/metrics", listen)

    def close(self) -> None:
        """Close the port. Once more does nothing."""
        server, thread = self._server, self._thread
        self._listen = self._server = self._thread = None
        if server is not None and thread is not None:
            server.shutdown()
            thread.join()
            server.server_close()

    def _open(self, listen: Listen) -> WSGIServer:
        kind = _Server6 if ":" in listen.host else _Server
        try:
            server = kind((listen.host, listen.port), _Asker)
        except OSError as error:
            raise ConfigError(
                f"metrics.listen: {listen}: {error.strerror or error}; name an address of this host and a port that is free"
            ) from error
        server.set_app(make_wsgi_app(registry(self._followed, _kept)))
        return server

    def _followed(self) -> Site:
        with self._lock:
            site = self._site
        if site is None:
            raise AssertionError("it answers only after it follows")
        return site


def _kept(site: Site) -> Sequence[Measure]:
    try:
        with closing(site.measure_book_to_read()) as book:
            return book.measures()
    except LedgerError as error:
        log.error("metrics: %s", error)
        return lost_measures(site)
