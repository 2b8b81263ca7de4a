"""A look at certificate and key, question by question, before any service does: for `doctor`.

Spec: RFC 5280 (key usage 4.2.1.3, extended key usage 4.2.1.12, CRL distribution points 4.2.1.13), RFC 3820 (proxies).
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from publisher.delivery.base import Credentials, Step
from publisher.delivery.hostcert import (
    AS_THE_SERVICE,
    authn_dn,
    load_certificate,
    load_key,
    may_be_open,
    slash_dn,
    validity,
)
from publisher.delivery.sgas_names import in_domain, spellings
from publisher.delivery.verdicts import CREDENTIALS
from publisher.errors import CredentialError

Kind = TypeVar("Kind", bound=x509.ExtensionType)

SOON: Final = timedelta(days=30)
URGENT: Final = timedelta(days=14)
TOO_LATE: Final = timedelta(days=3)
_RENEW: Final = "get a new certificate from your CA, and put certificate and key in place together"
_PROFILE: Final = "ask the CA for a certificate of the profile for grid hosts, and put it in place with its key"
_PROXY: Final = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14")
_SMALLEST_RSA: Final = 2048
_CLIENTS: Final = frozenset({ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})


def certificate_ends(credentials: Credentials) -> datetime | None:
    """When the certificate ends, aware UTC; None when it cannot be read."""
    try:
        return validity(load_certificate(credentials.certificate))[1]
    except CredentialError:
        return None


def foreign_machines(credentials: Credentials, machines: Iterable[str]) -> tuple[str, list[str]]:
    """The host that the certificate is for, and every MachineName for which SGAS does not let it insert by that alone.

    Raises: CredentialError.
    """
    host = spellings(load_certificate(credentials.certificate).subject).host
    return host, sorted(name for name in machines if not in_domain(name, host))


def not_here(credentials: Credentials) -> Step | None:
    """What to say of a key that only the service gets to see; None for any other."""
    if not str(credentials.key).startswith("$"):
        return None
    advice = f"ask as the service does: `{AS_THE_SERVICE} doctor`"
    return Step(name="key", answer=f"{credentials.key} is there for the service only", advice=advice)


def check_credentials(
    credentials: Credentials, now: datetime, environment: Mapping[str, str], *, allow_open_key: bool
) -> tuple[Step, ...]:
    """Certificate, its dates, purpose and subject, and the key. Only the key, when the certificate cannot be read."""
    try:
        certificate = load_certificate(credentials.certificate)
    except CredentialError as error:
        return (_refused("certificate", error),)
    subject = slash_dn(certificate.subject)
    try:
        of_extensions: tuple[Step, ...] = (_purpose(certificate), _profile(certificate))
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        answer = f"its extensions cannot be read: {error}"
        of_extensions = (Step(name="certificate purpose", answer=answer, exit_status=CREDENTIALS, advice=_PROFILE),)
    return (
        Step(name="certificate", answer=f"{credentials.certificate}: {subject}, by {slash_dn(certificate.issuer)}"),
        _dates(certificate, now),
        *of_extensions,
        _subject(certificate),
        not_here(credentials) or _key(credentials, certificate, environment, allow_open=allow_open_key),
    )


def _refused(name: str, error: CredentialError) -> Step:
    found, _, advice = str(error).partition("; ")
    return Step(name=name, answer=found, exit_status=CREDENTIALS, advice=advice or _RENEW)


def _dates(certificate: x509.Certificate, now: datetime) -> Step:
    name = "certificate dates"
    begins, ends = validity(certificate)
    left, until = ends - now, f"{ends:%Y-%m-%d %H:%M} UTC"
    if now < begins:
        found = f"not valid before {begins:%Y-%m-%d %H:%M} UTC"
        advice = "see that this host's clock is right, else wait until then, or put the earlier certificate back"
        return Step(name=name, answer=found, exit_status=CREDENTIALS, advice=advice)
    if left <= timedelta(0):
        return Step(name=name, answer=f"expired on {until}", exit_status=CREDENTIALS, advice=_RENEW)
    answer = f"good until {until}, {left.days} days from now"
    if left < TOO_LATE:
        return Step(name=name, answer=answer, exit_status=CREDENTIALS, advice=f"today: {_RENEW}")
    if left < URGENT:
        return Step(name=name, answer=answer, advice=f"this week: {_RENEW}")
    if left < SOON:
        return Step(name=name, answer=answer, advice=f"in good time: {_RENEW}")
    return Step(name=name, answer=answer)


def _purpose(certificate: x509.Certificate) -> Step:
    """Whether services may take it for a client's, and its signature for one of a message."""
    usage = _extension(certificate, x509.KeyUsage)
    extended = _extension(certificate, x509.ExtendedKeyUsage)
    basic = _extension(certificate, x509.BasicConstraints)
    wrong = []
    if basic is not None and basic.ca:
        wrong.append("it is the certificate of a CA, not of a host")
    if any(extension.oid == _PROXY for extension in certificate.extensions):
        wrong.append("it is a proxy, not the certificate of a host")
    if usage is not None and not usage.digital_signature:
        wrong.append("its key usage lacks digitalSignature, so that it may not sign messages")
    if extended is not None and not _CLIENTS & set(extended):
        wrong.append("its extended key usage lacks clientAuth, so that services take it for no client's")
    if wrong:
        return Step(name="certificate purpose", answer="; ".join(wrong), exit_status=CREDENTIALS, advice=_PROFILE)
    return Step(name="certificate purpose", answer="may sign, and be shown by a client")


def _profile(certificate: x509.Certificate) -> Step:
    """What some receivers insist on and others do not: a warning."""
    name = "certificate profile"
    odd = []
    public = certificate.public_key()
    if isinstance(public, rsa.RSAPublicKey) and public.key_size < _SMALLEST_RSA:
        odd.append(f"its key has {public.key_size} bits, and TLS libraries of today want {_SMALLEST_RSA}")
    algorithm = certificate.signature_hash_algorithm
    if algorithm is not None and algorithm.name in ("md5", "sha1"):
        odd.append(f"it is signed with {algorithm.name.upper()}, which services of today refuse")
    if _extension(certificate, x509.CRLDistributionPoints) is None:
        odd.append("it names no CRL, and the service that gives out AMS tokens may refuse it for that")
    if _extension(certificate, x509.SubjectAlternativeName) is None:
        odd.append("it has no subject alternative name, and that service may refuse it for that")
    if odd:
        return Step(name=name, answer="; ".join(odd), advice=_PROFILE)
    return Step(name=name, answer="key, signature, names and CRL address as services want them")


def _subject(certificate: x509.Certificate) -> Step:
    """The DN in the spellings that people have to paste."""
    subject, sgas = certificate.subject, spellings(certificate.subject)
    slash = slash_dn(subject)
    found = f'GOCDB, host DN: {slash} | authn: {authn_dn(subject)} | SGAS: "{sgas.comma}" or "{sgas.slash}"'
    if slash != " ".join(slash.split()) or not slash.isascii():
        advice = "GOCDB and SGAS compare it letter by letter: copy the DN from here, with every blank and every letter"
        return Step(
            name="subject", answer=f"{found}; it holds blanks at an edge, or letters beyond ASCII", advice=advice
        )
    return Step(name="subject", answer=found)


def _key(
    credentials: Credentials, certificate: x509.Certificate, environment: Mapping[str, str], *, allow_open: bool
) -> Step:
    handed_over = may_be_open(credentials.key, environment)
    try:
        load_key(credentials.key, certificate, allow_open=allow_open or handed_over)
        mode = stat.S_IMODE(credentials.key.stat().st_mode)
    except CredentialError as error:
        return _refused("key", error)
    except OSError as error:
        return _refused("key", CredentialError(f"{credentials.key}: {error.strerror}; run again"))
    answer = f"{credentials.key}, mode {mode:04o}, belongs to the certificate"
    if mode & 0o077 and not handed_over:
        advice = f"`chmod 0400 {credentials.key}`, and take `allow_open_key` out of the configuration"
        return Step(name="key", answer=f"{answer}; others on this host can read it", advice=advice)
    return Step(name="key", answer=answer)


def _extension(certificate: x509.Certificate, kind: type[Kind]) -> Kind | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
