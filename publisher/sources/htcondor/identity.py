"""Who a job belongs to, by its ad: the certificate of its proxy, or its token.

    x509UserProxyFQAN = "/DC=org/CN=Ada,/atlas/Role=production,/atlas"
    ->  JobOwner(subject="/DC=org/CN=Ada", vo="atlas", fqans=("/atlas/Role=production", "/atlas"))

Spec: HTCondor's manual, Job ClassAd Attributes: x509UserProxyFQAN.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from publisher.sources.htcondor.attributes import text_of
from publisher.sources.htcondor.classads import Ad

_MOST_GROUPS: Final = 100
_TOKEN_PARTS: Final = ("Subject", "Issuer", "Groups")
# A route of a CE copies the token of the job that came in; a job's own is the fallback.
_TOKENS: Final = ("orig_AuthToken", "AuthToken")


class JobOwner(NamedTuple):
    """Texts are '' where the ad has none."""

    subject: str  # of the proxy, or the token's issuer/subject
    vo: str
    fqans: tuple[str, ...]  # the main one first


class _AuthToken(NamedTuple):
    """What an ad says of one token."""

    subject: str
    issuer: str
    groups: str


def identity_of(ad: Ad) -> JobOwner:
    token = _token(ad)
    listed_subject, listed = _listed_fqans(text_of(ad, "x509UserProxyFQAN"))
    first = text_of(ad, "x509UserProxyFirstFQAN")
    fqans = (first,) if first else listed or _groups(token.groups)
    subject = text_of(ad, "x509userproxysubject") or listed_subject or _subject_of(token)
    return JobOwner(subject, text_of(ad, "x509UserProxyVOName") or _vo_of(fqans), fqans)


def _token(ad: Ad) -> _AuthToken:
    """Return the first token that the ad has anything of: parts of two are never joined."""
    for prefix in _TOKENS:
        token = _AuthToken(*(text_of(ad, prefix + part) for part in _TOKEN_PARTS))
        if any(token):
            return token
    return _AuthToken("", "", "")


def _subject_of(token: _AuthToken) -> str:
    issuer, subject = token.issuer.rstrip("/"), token.subject
    return f"{issuer}/{subject}" if issuer and subject else subject


def _groups(text: str) -> tuple[str, ...]:
    """Return a token's groups, which are written like FQANs."""
    groups = map(str.strip, text.split(",", _MOST_GROUPS)[:_MOST_GROUPS])
    return _distinct(group for group in groups if group.startswith("/"))


def _listed_fqans(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the DN and the FQANs of a list that begins with the DN.

    HTCondor writes a comma within one of them as `&comma;`. What wrote it as it is, too, can be
    read: an FQAN begins with a slash and the VO, and no VO has an equals sign, as each part of a
    DN has.
    """
    subject: list[str] = []
    fqans: list[str] = []
    for part in text.rstrip(",").split(","):
        if _is_fqan(part):
            fqans.append(part)
        elif fqans:
            fqans[-1] += f",{part}"
        else:
            subject.append(part)
    found = _distinct(_unescaped(fqan) for fqan in fqans[:_MOST_GROUPS])
    return _unescaped(",".join(subject)), found


def _is_fqan(part: str) -> bool:
    vo = part.split("/", 2)[1] if part.startswith("/") else ""
    return vo != "" and "=" not in vo


def _unescaped(text: str) -> str:
    return text.replace("&comma;", ",").replace("&amp;", "&").strip()


def _distinct(fqans: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(fqans))


def _vo_of(fqans: tuple[str, ...]) -> str:
    """Return the VO, with which an FQAN begins: `/cms/Role=production`."""
    return fqans[0].split("/", 2)[1] if fqans else ""
