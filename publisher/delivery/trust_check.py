"""A look at those whom we trust: the CAs, whether our own is among them, and the age of their lists of revoked certificates.

Spec: the directory of IGTF's distribution and fetch-crl: `<hash>.<n>` are certificates, `<hash>.r<n>` CRLs, PEM or DER.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from publisher.delivery.base import Credentials, Step
from publisher.delivery.hostcert import certificates, issued, slash_dn, validity
from publisher.delivery.tls import trusting_context
from publisher.delivery.verdicts import CREDENTIALS
from publisher.errors import CredentialError

_CERTIFICATE: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")
_CRL: Final = re.compile(r"[0-9a-f]{8}\.r[0-9]+")
_MOST_BYTES: Final = 64 << 20  # the longest CRLs of the field have some megabytes
_OLD: Final = timedelta(days=7)  # for a CRL that does not say when the next one comes
_SHOWN: Final = 3
_INSTALL: Final = (
    "install the CAs of your grid (the packages ca_policy_igtf-* or ca-policy-egi-core), or set `credentials: ca` to a bundle "
    "file or to `system`"
)
_FETCH: Final = "run `fetch-crl`, and enable its timer or cron job, so that it stays so"


def check_trust(credentials: Credentials, now: datetime) -> tuple[Step, ...]:
    """The CAs, our own among them, and the CRLs of a directory."""
    try:
        trusting_context(credentials)
    except CredentialError as error:
        found, _, advice = str(error).partition("; ")
        return (Step(name="CAs", answer=found, exit_status=CREDENTIALS, advice=advice or _INSTALL),)
    if credentials.ca is None:
        return (Step(name="CAs", answer="the system's store"),)
    names = _entries(credentials.ca, _CERTIFICATE) if credentials.ca.is_dir() else [credentials.ca]
    cas, unreadable = _load(names)
    steps = [_counted(credentials.ca, cas, unreadable, now), _issuer(credentials, cas)]
    if credentials.ca.is_dir():
        steps.append(_lists(credentials.ca, now))
    return tuple(steps)


def _entries(directory: Path, pattern: re.Pattern[str]) -> list[Path]:
    return sorted(entry for entry in directory.iterdir() if pattern.fullmatch(entry.name))


def _load(paths: list[Path]) -> tuple[list[x509.Certificate], list[str]]:
    """The certificates of files, and the names of those that hold none that can be read (a dangling link, say)."""
    found: list[x509.Certificate] = []
    unreadable = []
    for path in paths:
        try:
            found += certificates(path.read_bytes())
        except (OSError, ValueError):
            unreadable.append(path.name)
    return found, unreadable


def _counted(ca: Path, cas: list[x509.Certificate], unreadable: list[str], now: datetime) -> Step:
    expired = [slash_dn(each.subject) for each in cas if validity(each)[1] <= now]
    answer = f"{len(cas)} in {ca}"
    if not cas:
        return Step(name="CAs", answer=f"no readable CA in {ca}", exit_status=CREDENTIALS, advice=_INSTALL)
    if unreadable:
        answer = f"{answer}; {len(unreadable)} files cannot be read: {', '.join(unreadable[:_SHOWN])}"
        return Step(name="CAs", answer=answer, advice="install the package of CAs again; links must lead somewhere")
    if len(expired) == len(cas):
        answer = f"{answer}, all of them expired"
        return Step(name="CAs", answer=answer, exit_status=CREDENTIALS, advice="update the package of CAs")
    if expired:
        answer = f"{answer}, {len(expired)} expired: {', '.join(expired[:_SHOWN])}"
        return Step(name="CAs", answer=answer, advice="update the package of CAs")
    return Step(name="CAs", answer=answer)


def _issuer(credentials: Credentials, cas: list[x509.Certificate]) -> Step:
    """Whether our own certificate leads to one of the CAs. If not here, then perhaps not there either."""
    try:
        chain = certificates(credentials.certificate.read_bytes())
    except (OSError, ValueError):
        return Step(name="our CA", answer="not asked: the certificate cannot be read")
    own = chain[0]
    if any(issued(own, ca) or any(issued(link, ca) for link in chain[1:]) for ca in cas):
        return Step(name="our CA", answer=f"{slash_dn(own.issuer)} is among the CAs")
    return Step(
        name="our CA",
        answer=f"{slash_dn(own.issuer)}, which issued our certificate, is not among the CAs in {credentials.ca}",
        advice="get the certificate from a CA that the services know (IGTF); if it is one, update the package of CAs",
    )


def _lists(directory: Path, now: datetime) -> Step:
    """The CRLs: nothing here depends on them, and the same directory serves the rest of the host."""
    paths = _entries(directory, _CRL)
    if not paths:
        return Step(name="CRLs", answer=f"none in {directory}", advice=f"install fetch-crl; {_FETCH}")
    old = list(_stale(paths, now))
    if old:
        answer = f"{len(old)} of {len(paths)} are out of date or unreadable: {', '.join(old[:_SHOWN])}"
        return Step(name="CRLs", answer=answer, advice=_FETCH)
    return Step(name="CRLs", answer=f"{len(paths)}, all of them up to date")


def _stale(paths: list[Path], now: datetime) -> Iterator[str]:
    for path in paths:
        try:
            if path.stat().st_size > _MOST_BYTES or _next_update(path) <= now:
                yield path.name
        except (OSError, ValueError):
            yield path.name


def _next_update(path: Path) -> datetime:
    """Raises: OSError, ValueError."""
    content = path.read_bytes()
    pem = content.lstrip().startswith(b"-----BEGIN")
    found = x509.load_pem_x509_crl(content) if pem else x509.load_der_x509_crl(content)
    aware: datetime | None = getattr(found, "next_update_utc", None)  # since cryptography 42
    if aware is not None:
        return aware
    if hasattr(found, "next_update_utc") or found.next_update is None:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC) + _OLD
    return found.next_update.replace(tzinfo=UTC)
