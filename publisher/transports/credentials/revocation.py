"""Revoked server certificates: the CRLs of fetch-crl beside the CAs (`<hash>.r<n>`, PEM or DER).

Spec: RFC 5280 section 5. OpenSSL's own check refuses every server whose CA has no current list; on
CEs a list is often a day late. So by default the lists that are there are asked here, and an old
one still counts for the serial numbers that it has.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from publisher.transports.credentials.host_certificate import certificates

if TYPE_CHECKING:  # cryptography has this module since 40 only; Debian 12 has 38
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPublicKeyTypes

log = logging.getLogger("publisher")

LISTS: Final = re.compile(r"[0-9a-f]{8}\.r[0-9]+")
AUTHORITIES: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")
_MOST_BYTES: Final = 64 << 20  # the longest CRLs of the field have some megabytes
_OLD: Final = timedelta(days=7)  # for a CRL that does not say when the next one comes
_REVOKED: Final = 23  # OpenSSL's X509_V_ERR_CERT_REVOKED


class RevocationLists:
    """The lists of a CA directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def check(self, certificate: bytes, authorities: Sequence[bytes]) -> None:
        """See whether a server's certificate (DER) was revoked by its issuer among these CAs.

        Raises: ssl.SSLCertVerificationError.
        """
        server = x509.load_der_x509_certificate(certificate)
        for encoded in authorities:
            authority = x509.load_der_x509_certificate(encoded)
            if authority.subject != server.issuer:
                continue
            # No other kind has signed it
            key = cast("CertificateIssuerPublicKeyTypes", authority.public_key())
            for path in self._lists_of(encoded):
                if self._names(path, server, key):
                    raise _revoked(path)

    def _lists_of(self, authority: bytes) -> Iterator[Path]:
        """The files that have the hash of a CA's name."""
        for path in sorted(self._directory.iterdir()):
            if AUTHORITIES.fullmatch(path.name) and _is(path, authority):
                lists = self._directory.glob(f"{path.stem}.r*")
                yield from (each for each in lists if LISTS.fullmatch(each.name))

    def _names(
        self, path: Path, server: x509.Certificate, key: CertificateIssuerPublicKeyTypes
    ) -> bool:
        try:
            found = read_list(path)
            until = next_update(found, path)
            if found.issuer != server.issuer or not found.is_signature_valid(key):
                return False
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s: cannot be read: %s; run fetch-crl", path, error)
            return False
        if until <= datetime.now(UTC):
            log.warning(
                "%s: the revocation list is out of date since %s; run fetch-crl",
                *(path, f"{until:%Y-%m-%d %H:%M} UTC"),
            )
        return found.get_revoked_certificate_by_serial_number(server.serial_number) is not None


def read_list(path: Path) -> x509.CertificateRevocationList:
    """Raises: OSError, ValueError when it is none, or longer than any."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError("longer than any revocation list")
    content = path.read_bytes()
    pem = content.lstrip().startswith(b"-----BEGIN")
    return x509.load_pem_x509_crl(content) if pem else x509.load_der_x509_crl(content)


def next_update(found: x509.CertificateRevocationList, path: Path) -> datetime:
    """When the next list comes, UTC. Raises: OSError."""
    aware: datetime | None = getattr(found, "next_update_utc", None)  # since cryptography 42
    if aware is not None:
        return aware
    if hasattr(found, "next_update_utc") or found.next_update is None:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC) + _OLD
    return found.next_update.replace(tzinfo=UTC)


def _is(path: Path, authority: bytes) -> bool:
    try:
        found = certificates(path.read_bytes())
    except (OSError, ValueError):
        # A dangling link or no certificate: OpenSSL did not take it from there
        return False
    return any(each.public_bytes(Encoding.DER) == authority for each in found)


def _revoked(path: Path) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, f"certificate revoked according to {path}")
    error.verify_code, error.verify_message = _REVOKED, f"certificate revoked according to {path}"
    return error
