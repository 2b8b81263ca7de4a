"""A throw-away grid PKI: an authority, its OpenSSL-hashed directory, server and host certificates, good and bad.

Layout of the directory:

    ca.pem                      the authority (also a bundle for REQUESTS_CA_BUNDLE)
    certificates/<hash>.0       the same, as /etc/grid-security/certificates has it
    <name>.pem, <name>.key      credentials; a second one of a name becomes <name>-2.pem
"""

import functools
import hashlib
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

KeyKind = Literal["rsa", "ec"]
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

CRL_URL = "http://crl.example.org/ca.crl"

SHORT_NAMES: dict[str, ObjectIdentifier] = {
    "DC": NameOID.DOMAIN_COMPONENT,
    "C": NameOID.COUNTRY_NAME,
    "ST": NameOID.STATE_OR_PROVINCE_NAME,
    "L": NameOID.LOCALITY_NAME,
    "street": NameOID.STREET_ADDRESS,
    "postalCode": NameOID.POSTAL_CODE,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "CN": NameOID.COMMON_NAME,
    "serialNumber": NameOID.SERIAL_NUMBER,
    "emailAddress": NameOID.EMAIL_ADDRESS,
    "UID": NameOID.USER_ID,
    "organizationIdentifier": ObjectIdentifier("2.5.4.97"),
}
_LONG_TO_SHORT = {oid: short for short, oid in SHORT_NAMES.items()}


def validity(certificate: x509.Certificate) -> tuple[datetime, datetime]:
    """From when to when, aware; also with a cryptography older than 42, whose times are naive."""
    first, last = (getattr(certificate, f"not_valid_{end}_utc", None) for end in ("before", "after"))
    if first is not None and last is not None:
        return first, last
    return certificate.not_valid_before.replace(tzinfo=UTC), certificate.not_valid_after.replace(tzinfo=UTC)


def slash_dn(name: x509.Name) -> str:
    """The OpenSSL slash form, in certificate order, multi-valued parts flattened: what GOCDB and the receiver hold."""
    return "".join(f"/{_LONG_TO_SHORT.get(part.oid, part.oid.dotted_string)}={part.value!s}" for part in name)


def parse_slash_dn(text: str) -> x509.Name:
    """A name from its slash form; a slash not followed by `type=` belongs to the value (CN=host/ce.example.org)."""
    parts = [part for part in re.split(r"/(?=[A-Za-z]+=)", text) if part]
    pairs = [part.partition("=") for part in parts]
    return x509.Name([x509.NameAttribute(SHORT_NAMES[short], value) for short, _, value in pairs])


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(octets)]) + octets + content


def _der_oid(oid: ObjectIdentifier) -> bytes:
    first, second, *rest = (int(arc) for arc in oid.dotted_string.split("."))
    content = bytearray()
    for arc in (first * 40 + second, *rest):
        septets = [arc & 0x7F]
        while arc := arc >> 7:
            septets.append(0x80 | (arc & 0x7F))
        content += bytes(reversed(septets))
    return _der(0x06, bytes(content))


def subject_hash(name: x509.Name) -> str:
    """The eight hex digits that name a certificate in a hashed directory.

    Spec: OpenSSL X509_NAME_hash: SHA-1 over the relative names without the outer SEQUENCE, every text as UTF8String
    with ASCII letters lowered, edges trimmed and inner blanks collapsed; first four bytes, little endian.
    """
    canonical = b""
    for relative in name.rdns:
        parts = []
        for part in relative:
            text = re.sub(r"[ \t\n\v\f\r]+", " ", str(part.value)).strip(" ")
            lowered = "".join(letter.lower() if letter.isascii() else letter for letter in text)
            parts.append(_der(0x30, _der_oid(part.oid) + _der(0x0C, lowered.encode())))
        canonical += _der(0x31, b"".join(sorted(parts)))
    digest = hashlib.sha1(canonical, usedforsecurity=False).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}"


@functools.cache
def _rsa_key(slot: int) -> rsa.RSAPrivateKey:
    """RSA keys are dear (about 0.1 s each); a test run shares a handful."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@functools.cache
def _ec_key(slot: int) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@functools.cache
def _pem(private_key: PrivateKey) -> bytes:
    return private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A certificate and its key, on disk and in memory; the key file is readable by its owner only."""

    certificate: Path
    key: Path
    x509: x509.Certificate
    private_key: PrivateKey

    @property
    def subject(self) -> str:
        """The DN in slash form."""
        return slash_dn(self.x509.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certification authority; `certificate` is its PEM file."""

    certificate: Path
    x509: x509.Certificate
    private_key: rsa.RSAPrivateKey


@dataclass(kw_only=True)
class PKI:
    """One trusted authority and everything it (or a stranger) has issued into a directory."""

    directory: Path
    authority: Authority
    anchors: list[Path] = field(default_factory=list)
    revoked: set[int] = field(default_factory=set)
    _issued: Counter[str] = field(default_factory=Counter)
    _slots: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    @classmethod
    def create(cls, directory: Path) -> "PKI":
        """Make the authority and its hashed directory under `directory`, which is created."""
        directory.mkdir(parents=True, exist_ok=True)
        authority = _issue_authority(
            directory / "ca.pem", "/DC=org/DC=example/O=Example Grid/CN=Example Test CA", slot=0
        )
        pki = cls(directory=directory, authority=authority, anchors=[authority.certificate])
        pki.ca_directory.mkdir(exist_ok=True)
        hashed = pki.ca_directory / f"{subject_hash(authority.x509.subject)}.0"
        hashed.write_bytes(authority.certificate.read_bytes())
        return pki

    @property
    def bundle(self) -> Path:
        """The trusted authority as a bundle file."""
        return self.authority.certificate

    @property
    def ca_directory(self) -> Path:
        """The trusted authority in an OpenSSL-hashed directory."""
        return self.directory / "certificates"

    @functools.cached_property
    def other_authority(self) -> Authority:
        """An authority that nobody trusts."""
        authority = _issue_authority(self.directory / "other-ca.pem", "/DC=org/DC=elsewhere/CN=Other Test CA", slot=1)
        self.anchors.append(authority.certificate)
        return authority

    def host(
        self,
        name: str = "ce.example.org",
        *,
        key: KeyKind = "rsa",
        days: float = 30,
        not_before: datetime | None = None,
        ca: Authority | None = None,
        subject: str | None = None,
        crl_url: str | None = CRL_URL,
        san: Iterable[str] | None = None,
        self_signed: bool = False,
    ) -> Credential:
        """Issue a host certificate good for `days` from `not_before` (default: an hour ago).

        `subject` is a slash DN (default /DC=org/DC=example/OU=hosts/CN=name); `san` are DNS names or addresses.
        """
        private_key = _rsa_key(2 + next(self._slots) % 3) if key == "rsa" else _ec_key(next(self._slots) % 3)
        subject_name = parse_slash_dn(subject or f"/DC=org/DC=example/OU=hosts/CN={name}")
        issuer = ca or self.authority
        start = not_before or datetime.now(UTC) - timedelta(hours=1)
        builder = (
            x509.CertificateBuilder(subject_name=subject_name)
            .issuer_name(subject_name if self_signed else issuer.x509.subject)
            .public_key(private_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + timedelta(days=days))
        )
        for extension, critical in _host_extensions([name] if san is None else san, crl_url, issuer):
            builder = builder.add_extension(extension, critical)
        certificate = builder.sign(private_key if self_signed else issuer.private_key, hashes.SHA256())
        credential = self._save(name, certificate, private_key)
        if self_signed:
            self.anchors.append(credential.certificate)
        return credential

    @functools.cached_property
    def server(self) -> Credential:
        """The good server certificate: localhost and 127.0.0.1."""
        return self._server()

    def expired_server(self) -> Credential:
        """A server certificate that ended yesterday."""
        return self._server(not_before=datetime.now(UTC) - timedelta(days=31))

    def wrong_name_server(self) -> Credential:
        """A valid server certificate of another machine."""
        return self.host("elsewhere.example.org")

    def other_ca_server(self) -> Credential:
        """A server certificate from an authority that nobody trusts."""
        return self._server(ca=self.other_authority)

    def expired_host(self, name: str = "ce.example.org") -> Credential:
        """A host certificate that ended yesterday."""
        return self.host(name, not_before=datetime.now(UTC) - timedelta(days=31))

    def not_yet_valid_host(self, name: str = "ce.example.org") -> Credential:
        """A host certificate that begins tomorrow."""
        return self.host(name, not_before=datetime.now(UTC) + timedelta(days=1))

    def other_ca_host(self, name: str = "ce.example.org") -> Credential:
        """A host certificate from an authority that nobody trusts."""
        return self.host(name, ca=self.other_authority)

    def host_without_crl(self, name: str = "ce.example.org") -> Credential:
        """A host certificate without a CRL distribution point."""
        return self.host(name, crl_url=None)

    def revoked_host(self, name: str = "ce.example.org") -> Credential:
        """A host certificate whose serial number is on the revocation list."""
        credential = self.host(name)
        self.revoke(credential)
        return credential

    def revoke(self, credential: Credential) -> None:
        """Put the certificate on the revocation list."""
        self.revoked.add(credential.x509.serial_number)

    def _server(self, *, not_before: datetime | None = None, ca: Authority | None = None) -> Credential:
        return self.host("localhost", key="ec", san=("localhost", "127.0.0.1"), not_before=not_before, ca=ca)

    def _save(self, name: str, certificate: x509.Certificate, private_key: PrivateKey) -> Credential:
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        label = stem
        # Thousands of one name are issued in a run: those that are known to be there are not looked for again.
        while (self.directory / f"{label}.pem").exists():
            self._issued[stem] += 1
            label = f"{stem}-{self._issued[stem] + 1}"
        certificate_path, key_path = self.directory / f"{label}.pem", self.directory / f"{label}.key"
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.touch(mode=0o600)
        key_path.write_bytes(_pem(private_key))
        return Credential(certificate=certificate_path, key=key_path, x509=certificate, private_key=private_key)


def _host_extensions(
    san: Iterable[str], crl_url: str | None, issuer: Authority
) -> Iterator[tuple[x509.ExtensionType, bool]]:
    yield x509.BasicConstraints(ca=False, path_length=None), True
    yield x509.KeyUsage(True, False, True, False, False, False, False, False, False), True
    yield x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False
    yield x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.private_key.public_key()), False
    if names := [_general_name(name) for name in san]:
        yield x509.SubjectAlternativeName(names), False
    if crl_url is not None:
        point = x509.DistributionPoint([x509.UniformResourceIdentifier(crl_url)], None, None, None)
        yield x509.CRLDistributionPoints([point]), False


def _general_name(name: str) -> x509.GeneralName:
    if re.fullmatch(r"[0-9.]+|.*:.*", name):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


def _issue_authority(path: Path, subject: str, *, slot: int) -> Authority:
    private_key, name = _rsa_key(slot), parse_slash_dn(subject)
    start = datetime.now(UTC) - timedelta(days=400)
    certificate = (
        x509.CertificateBuilder(subject_name=name, issuer_name=name)
        .public_key(private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=4000))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private_key.public_key()), False)
        .sign(private_key, hashes.SHA256())
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return Authority(certificate=path, x509=certificate, private_key=private_key)
