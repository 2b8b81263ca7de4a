"""The authentication service: a client certificate goes in, the AMS user's token comes out."""

import threading
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from cryptography import x509

from tests.fake_ams.faults import ServiceName
from tests.fake_ams.names import authn_dn
from tests.fake_ams.storage import Store
from tests.fake_ams.wire import NOT_FOUND, Answer, Body, Head, go_json
from tests.support.pki import validity

_JSON = "application/json; charset=utf-8"
_PATH = ("v1", "service-types")


@dataclass(kw_only=True)
class AuthnPolicy:
    """What the operators configured, and how the world around the service is.

    `verify_certificate` switches the checks of names, dates and revocation; `peer_name` is the reverse DNS name of the
    clients when names are checked: None for unchecked, empty for an address without a name.
    """

    service_host: str
    service_types: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"ams": ("x509", "oidc")})
    verify_certificate: bool = True
    peer_name: str | None = None
    crl: Literal["reachable", "unreachable", "garbage"] = "reachable"
    has_auth_method: bool = True


class Refusal(Exception):
    """One row of authn's table of answers."""

    def __init__(self, code: int, message: str, status: str) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


def _forbidden(message: str) -> Refusal:
    return Refusal(403, message, "ACCESS_FORBIDDEN")


def _not_found(message: str) -> Refusal:
    return Refusal(404, message, "NOT FOUND")


def _internal(message: str) -> Refusal:
    return Refusal(500, message, "INTERNAL SERVER ERROR")


class Authn:
    """argo-api-authn, its open routes."""

    name: ServiceName = "authn"

    def __init__(self, policy: AuthnPolicy, store: Store, revoked: AbstractSet[int]) -> None:
        self.policy = policy
        self._store = store
        self._revoked = revoked
        self._lock = threading.Lock()
        self._bindings: list[tuple[str, str]] = []

    def bind(self, dn: str, user: str) -> None:
        """Let a DN (in authn's form) stand for an AMS user."""
        with self._lock:
            self._bindings.append((dn, user))

    def unbind(self, dn: str) -> None:
        """Remove every binding of a DN."""
        with self._lock:
            self._bindings = [binding for binding in self._bindings if binding[0] != dn]

    def route(self, head: Head) -> str:
        parts = head.path.strip("/").split("/")
        if head.method != "GET" or head.path.endswith("/"):
            return ""
        if tuple(parts[:2]) == _PATH and len(parts) == 5 and parts[3] == "hosts" and parts[4].endswith(":authx509"):
            return "authx509"
        return {"/v1/health": "health", "/v1/version": "version"}.get(head.path, "")

    def answer(self, head: Head, body: Body, certificate: bytes | None) -> Answer:
        route = self.route(head)
        if route == "authx509":
            _, _, service_type, _, host = head.path.strip("/").split("/")
            try:
                token = self._exchange(certificate, service_type, host.removesuffix(":authx509"))
            except Refusal as no:
                error = {"message": no.message, "code": no.code, "status": no.status}
                return Answer(status=no.code, body=go_json({"error": error}, 1), content_type=_JSON)
            return Answer(status=200, body=go_json({"token": token}, 1), content_type=_JSON)
        if route == "health":
            return Answer(status=200, body=b"null", content_type=_JSON)
        if route == "version":
            build = {"build_time": "2026-03-09T00:00:00Z", "golang": "go1.19", "compiler": "gc", "os": "linux"}
            return Answer(status=200, body=go_json(build | {"architecture": "amd64"}, 1), content_type=_JSON)
        return NOT_FOUND

    def _exchange(self, der: bytes | None, service_type: str, host: str) -> str:
        if der is None:
            raise Refusal(400, "No certificate provided", "BAD REQUEST")
        certificate = x509.load_der_x509_certificate(der)
        if self.policy.verify_certificate:
            self._check_peer_name(certificate)
            _check_dates(certificate)
            self._check_revocation(certificate)
        types = self.policy.service_types.get(service_type)
        if types is None:
            raise _not_found("Service-type was not found")
        if "x509" not in types:
            supported = f"Supported:[{' '.join(types)}]"
            raise Refusal(422, f"Auth type: x509 is not yet supported.{supported}", "UNPROCESSABLE ENTITY")
        if host != self.policy.service_host:
            raise _not_found("Host was not found")
        if not self.policy.has_auth_method:
            raise _not_found("Auth method was not found")
        return self._token(authn_dn(certificate.subject))

    def _check_peer_name(self, certificate: x509.Certificate) -> None:
        peer = self.policy.peer_name
        if peer is None:
            return
        if not peer:
            raise Refusal(400, "lookup 1.0.0.127.in-addr.arpa.: no such host", "BAD REQUEST")
        try:
            extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            complaint = "x509: certificate relies on legacy Common Name field, use SANs instead"
            raise _forbidden(complaint) from None
        names = extension.value.get_values_for_type(x509.DNSName)
        if peer not in names:
            raise _forbidden(f"x509: certificate is valid for {', '.join(names)}, not {peer}")

    def _check_revocation(self, certificate: x509.Certificate) -> None:
        try:
            certificate.extensions.get_extension_for_class(x509.CRLDistributionPoints)
        except x509.ExtensionNotFound:
            message = "Your certificate is invalid. No CRLDistributionPoints found on the certificate"
            raise _forbidden(message) from None
        if self.policy.crl == "unreachable":
            raise _internal("Internal Error: Could not access CRL URL")
        if self.policy.crl == "garbage":
            raise _internal("Internal Error: Unable to parse CRL Data")
        if certificate.serial_number in self._revoked:
            raise _forbidden("Your certificate has been revoked")

    def _token(self, dn: str) -> str:
        with self._lock:
            users = [user for bound, user in self._bindings if bound == dn]
        if not users:
            raise _not_found("Binding was not found")
        if len(users) > 1:
            raise _internal(f"Database Error: More than 1 bindings found with the same DN: {dn}")
        with self._store.changed:
            user = self._store.users.get(users[0])
            if user is None:
                gone = {"error": {"code": 404, "message": "User doesn't exist", "status": "NOT_FOUND"}}
                raise _internal("Internal Error: " + go_json(gone, 3).decode())
            return user.token


def _check_dates(certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    first, last = validity(certificate)
    if now > last:
        raise _forbidden("Your certificate has expired")
    if now < first:
        raise _forbidden("Your certificate is not active yet")
