"""Checks of certificate, key and CAs before any service sees them, one question each, for `doctor`.

Spec: RFC 5280 (key usage 4.2.1.3, extended key usage 4.2.1.12, CRL distribution points 4.2.1.13),
RFC 3820 (proxies); the CA directory of IGTF's distribution and fetch-crl: `<hash>.<n>` are
certificates, `<hash>.r<n>` CRLs, PEM or DER.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from publisher.model.errors import CredentialError
from publisher.model.text import plural
from publisher.transports.base import CREDENTIALS, Credentials, Step
from publisher.transports.credentials.host_certificate import (
    AS_THE_SERVICE,
    authn_dn,
    certificates,
    in_domain,
    issued,
    load_certificate,
    load_key,
    may_be_open,
    slash_dn,
    subject_names,
    validity,
)
from publisher.transports.credentials.revocation import AUTHORITIES, LISTS, next_update, read_list
from publisher.transports.http.tls import trusting_context

Kind = TypeVar("Kind", bound=x509.ExtensionType)

SOON: Final = timedelta(days=30)
URGENT: Final = timedelta(days=14)
TOO_LATE: Final = timedelta(days=3)
_RENEW: Final = "get a new certificate from your CA, and put certificate and key in place together"
_PROFILE: Final = (
    "ask the CA for a certificate of the profile for grid hosts, and put it in place with its key"
)
_PROXY: Final = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14")
_SHOWN: Final = 3
_INSTALL: Final = (
    "install the CAs of your grid (the packages ca_policy_igtf-* or ca-policy-egi-core), "
    "or set `credentials: ca` to a bundle file or to `system`"
)
_UPDATE: Final = "update the package of CAs"
_FETCH: Final = "run `fetch-crl`, and enable its timer or cron job, so that it stays so"
_SMALLEST_RSA: Final = 2048
_CLIENTS: Final = frozenset(
    {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
)


def certificate_ends(credentials: Credentials) -> datetime | None:
    """When the certificate ends, aware UTC; None when it cannot be read."""
    try:
        return validity(load_certificate(credentials.certificate))[1]
    except CredentialError:
        return None


def foreign_machines(credentials: Credentials, machines: Iterable[str]) -> tuple[str, list[str]]:
    """The certificate's host, and every MachineName for which SGAS wants more than that to insert.

    Raises: CredentialError.
    """
    host = subject_names(load_certificate(credentials.certificate).subject).host
    return host, sorted(name for name in machines if not in_domain(name, host))


def not_here(credentials: Credentials) -> Step | None:
    """What to say of a key that only the service gets to see; None for any other."""
    if not str(credentials.key).startswith("$"):
        return None
    advice = f"ask as the service does: `{AS_THE_SERVICE} doctor`"
    return Step("key", f"{credentials.key} is available only to the service", advice=advice)


def check_credentials(
    credentials: Credentials, now: datetime, environment: Mapping[str, str], *, allow_open_key: bool
) -> tuple[Step, ...]:
    """Certificate, dates, purpose, subject and key; only the key of an unreadable certificate."""
    try:
        certificate = load_certificate(credentials.certificate)
    except CredentialError as error:
        return (_refused("certificate", error),)
    subject = slash_dn(certificate.subject)
    try:
        of_extensions: tuple[Step, ...] = (_purpose(certificate), _profile(certificate))
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        answer = f"its extensions cannot be read: {error}"
        of_extensions = (Step("certificate purpose", answer, CREDENTIALS, _PROFILE),)
    return (
        Step(
            "certificate",
            f"{credentials.certificate}: {subject}, by {slash_dn(certificate.issuer)}",
        ),
        _dates(certificate, now),
        *of_extensions,
        _subject(certificate),
        not_here(credentials)
        or _key(credentials, certificate, environment, allow_open=allow_open_key),
    )


def _refused(name: str, error: CredentialError) -> Step:
    found, _, advice = str(error).partition("; ")
    return Step(name, found, CREDENTIALS, advice or _RENEW)


def _dates(certificate: x509.Certificate, now: datetime) -> Step:
    name = "certificate dates"
    begins, ends = validity(certificate)
    left, until = ends - now, f"{ends:%Y-%m-%d %H:%M} UTC"
    if now < begins:
        found = f"not valid before {begins:%Y-%m-%d %H:%M} UTC"
        advice = "see that this host's clock is right, "
        advice += "else wait until then, or put the earlier certificate back"
        return Step(name, found, CREDENTIALS, advice)
    if left <= timedelta(0):
        return Step(name, f"expired on {until}", CREDENTIALS, _RENEW)
    answer = f"good until {until}, {left.days} days from now"
    if left < TOO_LATE:
        return Step(name, answer, CREDENTIALS, f"today: {_RENEW}")
    if left < SOON:
        when = "this week" if left < URGENT else "in good time"
        return Step(name, answer, 0, f"{when}: {_RENEW}")
    return Step(name, answer)


def _purpose(certificate: x509.Certificate) -> Step:
    """Whether services may take it for a client's, and its signature for one of a message."""
    usage = _extension(certificate, x509.KeyUsage)
    extended = _extension(certificate, x509.ExtendedKeyUsage)
    basic = _extension(certificate, x509.BasicConstraints)
    asked = (
        (basic is not None and basic.ca, "it is the certificate of a CA, not of a host"),
        (
            any(one.oid == _PROXY for one in certificate.extensions),
            "it is a proxy, not the certificate of a host",
        ),
        (
            usage is not None and not usage.digital_signature,
            "its key usage lacks digitalSignature, so that it may not sign messages",
        ),
        (
            extended is not None and not _CLIENTS & set(extended),
            "its extended key usage lacks clientAuth, so that services take it for no client's",
        ),
    )
    wrong = [text for is_wrong, text in asked if is_wrong]
    if wrong:
        return Step("certificate purpose", "; ".join(wrong), CREDENTIALS, _PROFILE)
    return Step("certificate purpose", "may sign, and be shown by a client")


def _profile(certificate: x509.Certificate) -> Step:
    """What some receivers insist on and others do not: a warning."""
    name = "certificate profile"
    odd = []
    public = certificate.public_key()
    if isinstance(public, rsa.RSAPublicKey) and public.key_size < _SMALLEST_RSA:
        wanted = f"TLS libraries of today want {_SMALLEST_RSA}"
        odd.append(f"its key has {public.key_size} bits, and {wanted}")
    algorithm = certificate.signature_hash_algorithm
    if algorithm is not None and algorithm.name in ("md5", "sha1"):
        odd.append(f"it is signed with {algorithm.name.upper()}, which services of today refuse")
    if _extension(certificate, x509.CRLDistributionPoints) is None:
        why = "the service that gives out AMS tokens may refuse it for that"
        odd.append(f"it names no CRL, and {why}")
    if _extension(certificate, x509.SubjectAlternativeName) is None:
        odd.append("it has no subject alternative name, and that service may refuse it for that")
    if odd:
        return Step(name, "; ".join(odd), advice=_PROFILE)
    return Step(name, "key, signature, names and CRL address as services want them")


def _subject(certificate: x509.Certificate) -> Step:
    """The DN in the spellings that people have to paste."""
    subject, sgas = certificate.subject, subject_names(certificate.subject)
    slash = slash_dn(subject)
    at_sgas = f'"{sgas.comma}" or "{sgas.slash}"'
    found = f"GOCDB, host DN: {slash} | authn: {authn_dn(subject)} | SGAS: {at_sgas}"
    if slash == " ".join(slash.split()) and slash.isascii():
        return Step("subject", found)
    answer = f"{found}; it holds blanks at an edge, or letters beyond ASCII"
    advice = "copy the DN from here, with every blank and every letter"
    advice = f"GOCDB and SGAS compare it letter by letter: {advice}"
    return Step("subject", answer, advice=advice)


def _key(
    credentials: Credentials,
    certificate: x509.Certificate,
    environment: Mapping[str, str],
    *,
    allow_open: bool,
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
        remove = "remove `allow_open_key` from the configuration"
        advice = f"`chmod 0400 {credentials.key}`, and {remove}"
        return Step("key", f"{answer}; others on this host can read it", advice=advice)
    return Step("key", answer)


def _extension(certificate: x509.Certificate, kind: type[Kind]) -> Kind | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def check_trust(credentials: Credentials, now: datetime) -> tuple[Step, ...]:
    """The CAs, our own among them, and the CRLs of a directory."""
    try:
        trusting_context(credentials)
    except CredentialError as error:
        found, _, advice = str(error).partition("; ")
        return (Step("CAs", found, CREDENTIALS, advice or _INSTALL),)
    if credentials.ca is None:
        return (Step("CAs", "the system's store"),)
    names = _entries(credentials.ca, AUTHORITIES) if credentials.ca.is_dir() else [credentials.ca]
    cas, unreadable = _load(names)
    steps = [_counted(credentials.ca, cas, unreadable, now), _issuer(credentials, cas)]
    if credentials.ca.is_dir():
        steps.append(_lists(credentials.ca, now))
    return tuple(steps)


def _entries(directory: Path, pattern: re.Pattern[str]) -> list[Path]:
    return sorted(entry for entry in directory.iterdir() if pattern.fullmatch(entry.name))


def _load(paths: list[Path]) -> tuple[list[x509.Certificate], list[str]]:
    """The certificates of files, and the names of files without one (a dangling link, say)."""
    found: list[x509.Certificate] = []
    unreadable = []
    for path in paths:
        try:
            found += certificates(path.read_bytes())
        except (OSError, ValueError):
            unreadable.append(path.name)
    return found, unreadable


def _counted(ca: Path, cas: list[x509.Certificate], unreadable: list[str], now: datetime) -> Step:
    if not cas:
        return Step("CAs", f"no readable CA in {ca}", CREDENTIALS, _INSTALL)
    answer = f"{len(cas)} in {ca}"
    if unreadable:
        files = f"{plural(len(unreadable), 'file')} cannot be read"
        answer = f"{answer}; {files}: {', '.join(unreadable[:_SHOWN])}"
        advice = "install the package of CAs again; links must lead somewhere"
        return Step("CAs", answer, advice=advice)
    expired = [slash_dn(each.subject) for each in cas if validity(each)[1] <= now]
    if len(expired) == len(cas):
        return Step("CAs", f"{answer}, all of them expired", CREDENTIALS, _UPDATE)
    if expired:
        answer = f"{answer}, {len(expired)} expired: {', '.join(expired[:_SHOWN])}"
        return Step("CAs", answer, advice=_UPDATE)
    return Step("CAs", answer)


def _issuer(credentials: Credentials, cas: list[x509.Certificate]) -> Step:
    """Whether our own certificate leads to one of the CAs: if not here, maybe not there."""
    try:
        chain = certificates(credentials.certificate.read_bytes())
    except (OSError, ValueError):
        return Step("our CA", "not asked: the certificate cannot be read")
    own = chain[0]
    if any(issued(link, ca) for ca in cas for link in chain):
        return Step("our CA", f"{slash_dn(own.issuer)} is among the CAs")
    what = "which issued our certificate, is not among the CAs"
    advice = f"get the certificate from a CA that the services know (IGTF); if it is one, {_UPDATE}"
    return Step("our CA", f"{slash_dn(own.issuer)}, {what} in {credentials.ca}", advice=advice)


def _lists(directory: Path, now: datetime) -> Step:
    """The CRLs: by default an old one stops nothing here, but others on the host use it too."""
    paths = _entries(directory, LISTS)
    if not paths:
        return Step("CRLs", f"none in {directory}", advice=f"install fetch-crl; {_FETCH}")
    old = [path.name for path in paths if _is_outdated(path, now)]
    if old:
        shown = ", ".join(old[:_SHOWN])
        answer = f"{len(old)} of {len(paths)} are out of date or unreadable: {shown}"
        return Step("CRLs", answer, advice=_FETCH)
    return Step("CRLs", f"{len(paths)}, all of them up to date")


def _is_outdated(path: Path, now: datetime) -> bool:
    try:
        return next_update(read_list(path), path) <= now
    except (OSError, ValueError):
        return True
