"""The stand-in as a whole: nginx, SGAS and its database on one loopback port, with the knobs that tests turn."""

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from cryptography import x509

from publisher.transports.credentials.host_certificate import issued
from tests.fake_ams.listener import server_context
from tests.fake_sgas.application import Application
from tests.fake_sgas.authz import Authz, Spelling, nginx_dn
from tests.fake_sgas.database import Database
from tests.fake_sgas.failures import Generation, Twisted
from tests.fake_sgas.faults import FaultScript
from tests.fake_sgas.front import Front
from tests.fake_sgas.recorder import Recorder
from tests.fake_sgas.rows import Row
from tests.support.pki import PKI, Credential, validity


class FakeSGAS:
    """Start with `with`; nobody may insert until `allow` says so.

    `port` 0 is a free one. `generation` H is the head of development, R the release 3.8.1. `twisted` old shows tracebacks,
    new keeps them. `spelling` is how nginx writes DNs, by default as each generation met it: H comma, R slash.
    """

    def __init__(
        self,
        pki: PKI,
        *,
        port: int = 0,
        generation: Generation = "H",
        twisted: Twisted = "old",
        spelling: Spelling | None = None,
        base: str = "/sgas",
        insert: str = "ur",
        server: Credential | None = None,
        idle_timeout_s: float = 60.0,
    ) -> None:
        self.pki = pki
        self.spelling: Spelling = spelling or ("comma" if generation == "H" else "slash")
        self.faults = FaultScript()
        self.requests = Recorder()
        self.authz = Authz(generation)
        self.database = Database(generation)
        self._server = server or pki.server
        self._base = base
        self._insert = insert
        self.application = Application(
            generation=generation,
            twisted=twisted,
            authz=self.authz,
            database=self.database,
            base=base,
            insert=insert,
        )
        self._front = Front(
            self.application,
            port=port,
            context=self._context,
            unsafe_reason=self._unsafe_reason,
            subject=lambda certificate: nginx_dn(certificate.subject, self.spelling),
            faults=self.faults,
            recorder=self.requests,
            idle_timeout_s=idle_timeout_s,
        )

    def __enter__(self) -> Self:
        self._front.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._front.stop()

    @property
    def port(self) -> int:
        return self._front.port

    @property
    def url(self) -> str:
        """Where the list of services is."""
        return f"https://localhost:{self.port}{self._base}"

    @property
    def insert_url(self) -> str:
        return f"{self.url}/{self._insert}"

    @property
    def rows(self) -> Mapping[str, Row]:
        """What is stored, by record id."""
        return dict(self.database.rows)

    def allow(self, who: str | Credential, *actions: str) -> str:
        """Write a line into the authz file (`jobinsert` without actions); the DN in it, as nginx spells it."""
        dn = who if isinstance(who, str) else nginx_dn(who.x509.subject, self.spelling)
        self.authz.allow(dn, actions or ("jobinsert",))
        return dn

    def set_limit(self, body_bytes: int) -> None:
        """Change nginx's limit on bodies."""
        self._front.body_limit = body_bytes

    def restart_database(self) -> None:
        """Cut the connection between SGAS and its database, which is there again at once."""
        self.database.restart()

    def drop_connections(self) -> None:
        """Cut every open connection, as a restart of nginx does."""
        self._front.drop_connections()

    def _context(self) -> ssl.SSLContext:
        """Any certificate passes TLS; nginx says over HTTP what it thinks of it."""
        return server_context(self._server, anchors=tuple(self.pki.anchors), any_validity=True)

    def _unsafe_reason(self, certificate: x509.Certificate) -> str:
        """What is wrong with a certificate, or an empty string."""
        now = datetime.now(UTC)
        if not issued(certificate, self.pki.authority.x509):
            return "unknown CA"
        first, last = validity(certificate)
        if not first <= now < last:
            return "expired or not yet valid"
        return "revoked" if certificate.serial_number in self.pki.revoked else ""
