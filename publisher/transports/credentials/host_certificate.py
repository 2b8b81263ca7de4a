"""The host certificate and its key as files: load and judge them; the spellings of the subject.

SGAS compares a DN byte for byte, in one of two spellings in which nginx hands it on: RFC 2253 as
OpenSSL writes it (nginx 1.11.6 and newer), or OpenSSL's one-line form (older, or configured so), in
which OpenSSL 1.1.1 and newer put a backslash before `/` and `+` (`/CN=host\\/ce.example.org`).
"""

from __future__ import annotations

import re
import stat
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import cryptography
from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from publisher.model.errors import CredentialError
from publisher.model.text import plural
from publisher.transports.base import Credentials

WARN_BEFORE: Final = timedelta(days=30)
# How to run a command with the key that only the service is handed; the command follows.
AS_THE_SERVICE: Final = (
    "systemd-run --pipe --wait --uid=publisher "
    "--property=LoadCredential=hostkey.pem:/etc/grid-security/hostkey.pem -- publisher"
)

_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

SigningKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

# Short names of OpenSSL, which both GOCDB's and the receiver's lists of DNs are made with.
_SHORT: Final = {
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
    "1.2.840.113549.1.9.1": "emailAddress",
    "2.5.4.3": "CN",
    "2.5.4.4": "SN",
    "2.5.4.5": "serialNumber",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "street",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.12": "title",
    "2.5.4.15": "businessCategory",
    "2.5.4.17": "postalCode",
    "2.5.4.42": "GN",
    "2.5.4.43": "initials",
    "2.5.4.46": "dnQualifier",
    "2.5.4.65": "pseudonym",
    "2.5.4.97": "organizationIdentifier",
    "1.3.6.1.4.1.311.60.2.1.1": "jurisdictionL",
    "1.3.6.1.4.1.311.60.2.1.2": "jurisdictionST",
    "1.3.6.1.4.1.311.60.2.1.3": "jurisdictionC",
}
# The order in which authn joins the parts; it drops other types (argo-api-authn eb23120).
_AUTHN: Final = (
    ("E", "1.2.840.113549.1.9.1"),
    ("SERIALNUMBER", "2.5.4.5"),
    ("CN", "2.5.4.3"),
    ("OU", "2.5.4.11"),
    ("O", "2.5.4.10"),
    ("POSTALCODE", "2.5.4.17"),
    ("STREET", "2.5.4.9"),
    ("L", "2.5.4.7"),
    ("ST", "2.5.4.8"),
    ("C", "2.5.4.6"),
    ("DC", "0.9.2342.19200300.100.1.25"),
)
_LAST_ONLY: Final = ("SERIALNUMBER", "CN")
_UNESCAPED: Final = ("E", "DC")
_COMMON_NAME: Final = re.compile(r"(?:^|(?<!\\),)CN=((?:[^,\\]|\\.)*)")
_CHECK_DEPTH: Final = 2
_RSA_PSS: Final = bytes.fromhex("06092a864886f70d01010a")  # object id 1.2.840.113549.1.1.10, DER
# To prove an RSA key's primes takes longer than the rest of a start; a signature that its own
# certificate verifies does not (`_try_out`).
_UNPROVED: Final[Mapping[str, bool]] = (
    {"unsafe_skip_rsa_key_validation": True}
    if int(cryptography.__version__.partition(".")[0]) >= 39
    else {}
)


class HostCertificate:
    """The host's certificate and its key, loaded and tried once."""

    def __init__(
        self,
        credentials: Credentials,
        now: datetime,
        *,
        allow_open_key: bool = False,
        subject_form: Callable[[x509.Name], str] | None = None,
    ) -> None:
        """`subject_form` gives the subject as messages show it; GOCDB's form where it is None.

        Raises: CredentialError for a certificate or key that is missing, unreadable, damaged, not
            yet or no longer valid, of a kind that S/MIME cannot use, of another pair, or (unless
            allowed) a key that others can read.
        """
        self._path = credentials.certificate
        self._certificate = load_certificate(credentials.certificate)
        self._key = load_key(credentials.key, self._certificate, allow_open=allow_open_key)
        self._begins, self._ends = validity(self._certificate)
        self._shown = (subject_form or slash_dn)(self._certificate.subject)
        self.check(now)

    @property
    def subject(self) -> x509.Name:
        return self._certificate.subject

    def check(self, now: datetime) -> None:
        """Raises: CredentialError when the certificate is not valid at this time."""
        if now >= self._ends:
            raise CredentialError(
                f"the certificate {self._path} ({self._shown}) expired on "
                f"{self._ends:%Y-%m-%d %H:%M} UTC; get a new one from your CA and put it in place, "
                "nothing was sent"
            )
        if now < self._begins:
            raise CredentialError(
                f"the certificate {self._path} ({self._shown}) is not valid before "
                f"{self._begins:%Y-%m-%d %H:%M} UTC; check this machine's clock, nothing was sent"
            )

    def warnings(self, now: datetime) -> list[str]:
        """A warning for the administrator in good time: an expiry less than 30 days away."""
        left = self._ends - now
        if left >= WARN_BEFORE:
            return []
        return [
            f"the certificate {self._path} ({self._shown}) expires in "
            f"{plural(max(0, left.days), 'day')}, on {self._ends:%Y-%m-%d %H:%M} UTC; "
            "renew it in time, messages that wait past that moment are rejected"
        ]


def load_certificate(path: Path) -> x509.Certificate:
    """The host's certificate, first in a PEM file: a chain is for TLS. Raises: CredentialError"""
    content = _read(path, "certificate")
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise CredentialError(
            f"{path} holds no PEM certificate; `credentials: certificate` must name a PEM file "
            "(convert DER with `openssl x509 -inform DER`, PKCS#12 with `openssl pkcs12 -nokeys`)"
        )
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        what = f"the certificate in {path} is damaged ({error}); install it again"
        raise CredentialError(what) from error


def load_key(path: Path, certificate: x509.Certificate, *, allow_open: bool = False) -> SigningKey:
    """The private key. Raises: CredentialError, also for a key that group or others may read."""
    content = _read(path, "key")
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise CredentialError(f"cannot look at the key {path}: {error.strerror}") from error
    if mode & 0o077 and not allow_open:
        raise CredentialError(
            f"the key {path} is open to others (mode {mode:04o}); chmod 0400 it, "
            "or set `allow_open_key: true` on the target if this is meant"
        )
    key = _parse_key(path, content)
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if certificate.public_key().public_bytes(*form) != key.public_key().public_bytes(*form):
        raise CredentialError(
            f"the key {path} does not belong to the certificate of "
            f"{slash_dn(certificate.subject)}; check `credentials: certificate` and `key`, "
            "and whether only one of the two was renewed"
        )
    _try_out(path, key)
    return key


def may_be_open(key: Path, environment: Mapping[str, str]) -> bool:
    """Whether a key's mode is none of our business, because systemd handed it over.

    LoadCredential gives the service's user access through an ACL, which shows as a group-readable
    mode; the directory around it is closed to everybody else.
    """
    directory = environment.get("CREDENTIALS_DIRECTORY", "")
    return bool(directory and key.is_relative_to(Path(directory)))


def validity(certificate: x509.Certificate) -> tuple[datetime, datetime]:
    """First and last moment of a certificate, aware UTC."""
    return _moment(certificate, "not_valid_before"), _moment(certificate, "not_valid_after")


def slash_dn(name: x509.Name) -> str:
    """A name in slash form, in the certificate's order, values flattened, nothing escaped."""
    return "".join(f"/{_short(part)}={_text(part)}" for part in name)


def authn_dn(name: x509.Name) -> str:
    """A name as authn builds it: fixed order, several of a type joined with `+`, of CN the last."""
    parts = []
    for label, oid in _AUTHN:
        values = [_text(part) for part in name if part.oid.dotted_string == oid]
        if label in _LAST_ONLY:
            values = values[-1:]
        if label not in _UNESCAPED:
            values = [_escaped(value) for value in values]
        if values:
            parts.append("+".join(f"{label}={value}" for value in values))
    return ",".join(parts)


class SubjectNames(NamedTuple):
    """One DN as SGAS may see it, in ASCII: `comma` CN=host,DC=org and `slash` /DC=org/CN=host."""

    comma: str
    slash: str

    @property
    def host(self) -> str:
        """The CN, for which and whose domain SGAS lets a certificate insert; '' for none."""
        found = _COMMON_NAME.findall(self.comma)
        return found[-1].removeprefix("host/") if found else ""


def subject_names(name: x509.Name) -> SubjectNames:
    """In `comma`, the last part is first, and several values of one part are joined with `+`."""
    comma = ",".join(map(_relative_in_commas, reversed(name.rdns)))
    slash = "".join(f"/{_short(part)}={_in_slashes(part)}" for part in name)
    return SubjectNames(comma=comma, slash=slash)


def _relative_in_commas(parts: x509.RelativeDistinguishedName) -> str:
    return "+".join(f"{_short(part)}={_in_commas(part)}" for part in parts)


def in_domain(machine: str, host: str) -> bool:
    """Whether `jobinsert` of a certificate for this host covers a MachineName: its last two labels.

    As SGAS compares them, letter by letter; its administrator may have set another depth, or
    allowed a machine by its name.
    """
    wanted = [label for label in host.split(".") if label][-_CHECK_DEPTH:]
    labels = [label for label in machine.split(".") if label]
    return bool(wanted) and labels[-len(wanted) :] == wanted


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        if str(path).startswith("$"):
            raise CredentialError(
                f"the {what} {path} is available only to the service; "
                f"run the command as the service does: `{AS_THE_SERVICE} COMMAND`, "
                f"or write the full path of a file as `credentials: {what}`"
            ) from error
        raise CredentialError(
            f"the {what} {path} does not exist; put it there or correct `credentials: {what}`"
        ) from error
    except PermissionError as error:
        raise CredentialError(
            f"no permission to read the {what} {path}; run as a user that may, "
            "or hand it over with systemd's LoadCredential"
        ) from error
    except OSError as error:
        why = error.strerror or error
        raise CredentialError(f"cannot read the {what} {path}: {why}") from error


def _parse_key(path: Path, content: bytes) -> SigningKey:
    if b"PRIVATE KEY-----" not in content:
        raise CredentialError(f"{path} holds no PEM private key; `credentials: key` must name one")
    try:
        key = load_pem_private_key(content, password=None, **_UNPROVED)
    except TypeError as error:  # what the library raises when a password is missing
        raise CredentialError(
            f"the key {path} is encrypted, and nobody is here to type its password; "
            "store it unencrypted with mode 0400"
        ) from error
    except UnsupportedAlgorithm as error:
        why = f"of an unknown kind ({error}); use RSA or EC"
        raise CredentialError(f"the key {path} is {why}") from error
    except ValueError as error:
        raise CredentialError(f"the key in {path} is damaged; install it again") from error
    if isinstance(key, rsa.RSAPrivateKey) and not _is_pss(content):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key
    kind = type(key).__name__.strip("_").removesuffix("PrivateKey")
    if isinstance(key, rsa.RSAPrivateKey):
        kind = "RSA-PSS"
    raise CredentialError(
        f"the key {path} is of the kind {kind}, which S/MIME receivers cannot verify; "
        "use an RSA or EC key"
    )


def _try_out(path: Path, key: SigningKey) -> None:
    """Whether its signatures hold: a damaged secret part may be beside a whole public part."""
    trial = b"."
    try:
        if isinstance(key, rsa.RSAPrivateKey):
            signature = key.sign(trial, padding.PKCS1v15(), hashes.SHA256())
            key.public_key().verify(signature, trial, padding.PKCS1v15(), hashes.SHA256())
        else:
            algorithm = ec.ECDSA(hashes.SHA256())
            key.public_key().verify(key.sign(trial, algorithm), trial, algorithm)
    except (InvalidSignature, InternalError, ValueError) as error:
        raise CredentialError(f"the key in {path} is damaged; install it again") from error


def _is_pss(content: bytes) -> bool:
    """Whether a key is bound to PSS, which only the object id in its PKCS#8 tells."""
    _, found, rest = content.partition(b"-----BEGIN PRIVATE KEY-----")
    return bool(found) and _RSA_PSS in b64decode(b"".join(rest.split(maxsplit=1)[:1]))


def certificates(content: bytes) -> list[x509.Certificate]:
    """All certificates of a PEM file. Raises: ValueError, also when there is none.

    `load_pem_x509_certificates` does it only since cryptography 39; Debian 12 has 38.
    """
    blocks = _BLOCK.findall(content)
    if not blocks:
        raise ValueError("no certificate")
    return [x509.load_pem_x509_certificate(block) for block in blocks]


def issued(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    """Whether that CA signed this certificate, with cryptography older than 40 as well."""
    if certificate.issuer != ca.subject:
        return False
    key, hashed = ca.public_key(), certificate.signature_hash_algorithm
    signature, content = certificate.signature, certificate.tbs_certificate_bytes
    try:
        if hasattr(certificate, "verify_directly_issued_by"):
            certificate.verify_directly_issued_by(ca)
        elif isinstance(key, rsa.RSAPublicKey) and hashed is not None:
            key.verify(signature, content, padding.PKCS1v15(), hashed)
        elif isinstance(key, ec.EllipticCurvePublicKey) and hashed is not None:
            key.verify(signature, content, ec.ECDSA(hashed))
        else:
            return False
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False
    return True


def _moment(certificate: x509.Certificate, which: str) -> datetime:
    """`not_valid_after` and its like, aware (and called `_utc`) only since cryptography 42."""
    aware: datetime | None = getattr(certificate, f"{which}_utc", None)
    if aware is not None:
        return aware
    naive: datetime = getattr(certificate, which)
    return naive.replace(tzinfo=UTC)


def _text(part: x509.NameAttribute[str | bytes]) -> str:
    return part.value if isinstance(part.value, str) else part.value.hex()


def _short(part: x509.NameAttribute[str | bytes]) -> str:
    return _SHORT.get(part.oid.dotted_string, part.oid.dotted_string)


def _escaped(value: str) -> str:
    """As RFC 2253 and Go's pkix.Name: a backslash before separators, edge blanks, a leading #."""
    text = "".join(f"\\{letter}" if letter in ',+"\\<>;' else letter for letter in value)
    if value.startswith((" ", "#")):
        text = f"\\{text}"
    if len(value) > 1 and value.endswith(" "):
        text = f"{text[:-1]}\\ "
    return text


def _in_commas(part: x509.NameAttribute[str | bytes]) -> str:
    return _hex_escaped(_escaped(str(part.value)), "\\")


def _in_slashes(part: x509.NameAttribute[str | bytes]) -> str:
    return _hex_escaped(re.sub("[/+]", r"\\\g<0>", str(part.value)), "\\x")


def _hex_escaped(text: str, mark: str) -> str:
    """Everything outside printable ASCII byte by byte, such as `\\C3\\85`."""
    octets = text.encode()
    return "".join(chr(one) if 0x20 <= one < 0x7F else f"{mark}{one:02X}" for one in octets)
