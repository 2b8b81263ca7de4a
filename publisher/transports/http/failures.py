"""What the exceptions of HTTP and TLS libraries mean, in words that help.

`requests` keeps the cause, wrapped by urllib3; whether the request had begun to leave, and whose
certificate was refused, it does not show.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import urllib3

from publisher.transports.http.exchange import Failure, RequestFailure, plain, redacted

# Also of `requests`, whose exceptions are OSErrors, and some ValueErrors as well
FOREIGN: Final = (OSError, ValueError, urllib3.exceptions.HTTPError, http.client.HTTPException)

# TLS alerts that are a verdict on our certificate; prefixes differ between versions of OpenSSL.
_ABOUT_OUR_CERTIFICATE: Final = (
    *("ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_UNSUPPORTED_CERTIFICATE"),
    *("ALERT_CERTIFICATE_EXPIRED", "ALERT_CERTIFICATE_REVOKED", "ALERT_CERTIFICATE_UNKNOWN"),
    *("ALERT_CERTIFICATE_REQUIRED", "ALERT_ACCESS_DENIED"),
)
_TUNNEL: Final = re.compile(r"Tunnel connection failed: (\d{3})(.*)", re.DOTALL)
_PASSING_AT_PROXY: Final = (408, 425, 429)
_NO_HTTP: Final = (
    http.client.BadStatusLine,
    http.client.UnknownProtocol,
    urllib3.exceptions.InvalidHeader,
)
_CREDENTIALS_IN_URL: Final = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What a reason names: the host and port, whom we trust, and the proxy ('' for none)."""

    place: str
    trust: str
    proxy: str = ""


def no_answer(
    error: Exception, where: Peer, *, sending: bool, secrets: Iterable[str] = ()
) -> RequestFailure:
    """What an exception means. `sending`: the first byte of the request may have left."""
    failure, reason = _meaning(error, tuple(_causes(error)), where, sending=sending)
    text = redacted(_CREDENTIALS_IN_URL.sub("//", reason), secrets)
    return RequestFailure(failure=failure, reason=plain(text))


def is_timeout(error: Exception) -> bool:
    """Whether a time limit of ours ended the request, rather than the other side."""
    limits = (TimeoutError, urllib3.exceptions.ReadTimeoutError)
    return any(isinstance(cause, limits) for cause in _causes(error))


def explains_more(error: Exception) -> bool:
    """Whether an error of reading says more than that of sending: an alert on our certificate."""
    return _alert(_causes(error)) is not None


def _meaning(
    error: Exception, causes: tuple[BaseException, ...], where: Peer, *, sending: bool
) -> tuple[Failure, str]:
    refusals = (cause for cause in causes if isinstance(cause, ssl.SSLCertVerificationError))
    if refused := next(refusals, None):
        why = getattr(refused, "verify_message", "") or str(refused)
        return Failure.THEIR_CERTIFICATE, (
            f"{where.place}: its certificate is not trusted ({why}); "
            f"trusted are the CAs in {where.trust}; nothing was sent; "
            "`publisher doctor` says what to do"
        )
    if alert := _alert(causes):
        words = f"refused our certificate in the TLS handshake ({_tls_reason(alert)})"
        return Failure.OUR_CERTIFICATE, f"{where.place}: {words}"
    words = _words(error, causes)
    if sending:
        reason = f"{where.place}: no answer, the request may have arrived ({words})"
        return Failure.MAYBE_SENT, reason
    if isinstance(error, ValueError):
        # Its text would quote the offending header or URL, in a spelling that no redaction knows.
        words = f"cannot ask that ({type(error).__name__}); check the URLs of the target"
        return Failure.IMPOSSIBLE, f"{where.place}: {words}"
    if where.proxy:
        return _at_the_proxy(causes, where, words)
    return Failure.NOT_SENT, f"{where.place}: cannot connect ({words})"


def _at_the_proxy(
    causes: tuple[BaseException, ...], where: Peer, words: str
) -> tuple[Failure, str]:
    tunnels = (_TUNNEL.fullmatch(str(cause)) for cause in causes)
    tunnel = next((found for found in tunnels if found), None)
    status = int(tunnel[1]) if tunnel else 0
    if tunnel:
        words = f"it answered {status}{tunnel[2]}"
    proxy = f"{where.proxy} (`proxy` of the target or HTTPS_PROXY)"
    reason = f"{where.place}: no way through the proxy {proxy}: {words}"
    refused = 400 <= status < 500 and status not in _PASSING_AT_PROXY
    return Failure.PROXY if refused else Failure.NOT_SENT, reason


def _alert(causes: Iterable[BaseException]) -> ssl.SSLError | None:
    errors = (cause for cause in causes if isinstance(cause, ssl.SSLError))
    ours = (error for error in errors if _tls_reason(error).endswith(_ABOUT_OUR_CERTIFICATE))
    return next(ours, None)


def _tls_reason(error: ssl.SSLError) -> str:
    """OpenSSL's name for what happened; Python's own errors have none, not even the attribute."""
    return str(getattr(error, "reason", None) or "")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it wraps: as an argument, as `reason`, or as its cause.

    Not its context, which may be an error that was being handled when the request was made.
    """
    seen: set[int] = set()
    queue: list[BaseException] = [error]
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inner = (*current.args, getattr(current, "reason", None), current.__cause__)
        queue += [wrapped for wrapped in inner if isinstance(wrapped, BaseException)]


def _words(error: BaseException, causes: tuple[BaseException, ...]) -> str:
    """The operating system's own error text, without what was wrapped around it."""
    for cause in reversed(causes):
        if isinstance(cause, socket.gaierror):
            return f"the name does not resolve: {cause.strerror}"
        if isinstance(cause, TimeoutError):
            return str(cause) or "timed out"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        if isinstance(cause, _NO_HTTP) and not isinstance(cause, http.client.RemoteDisconnected):
            return "what came is no HTTP"  # their texts quote it, and it may be the token
        if isinstance(cause, http.client.HTTPException):
            return f"{type(cause).__name__}: {cause}"
    return type(error).__name__  # whose text may quote what came
