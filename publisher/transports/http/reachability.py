"""A look at a service, step by step: name, connection, TLS, clock. It is asked for `/` only.

`requests` takes all steps at once: of several addresses it shows the last failure alone.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from publisher.transports.base import CONFIGURATION, CREDENTIALS, LATER, Credentials, Endpoint, Step
from publisher.transports.http.connection import Attempt
from publisher.transports.http.exchange import Answer, Failure, plain
from publisher.transports.http.options import port_of
from publisher.transports.http.session import Session
from publisher.transports.http.sockets import Address, Bounded, connected, resolved
from publisher.transports.http.tls import trust_described, trusting_context

# Validity is judged by the receiver's clock. Its Date has whole seconds, and the answer's age.
CLOCK_WARNING: Final = timedelta(seconds=30)
CLOCK_FAILURE: Final = timedelta(minutes=5)
_THEIR_CERTIFICATE_ENDS_SOON: Final = timedelta(days=7)

# OpenSSL's numbers of verification errors (x509_vfy.h): what to do about each.
_DATES = (
    "their certificate is out of date, which its operators must mend; "
    "first see that the clock of this host is right"
)
_ISSUER = (
    "the CA that issued their certificate is not among those that are trusted here: "
    "install or update the CA bundle (IGTF), name another with `credentials: ca`, "
    "or write `ca: system`"
)
_NAME = (
    "`{key}` of the target must name the host as its certificate does, not an alias or an address"
)
_VERIFY_ADVICE: Final = {
    **dict.fromkeys((9, 10), _DATES),
    **dict.fromkeys((18, 19, 20, 21), _ISSUER),
    **dict.fromkeys((62, 64), _NAME),
}
_CONNECT_ADVICE: Final = {
    errno.ECONNREFUSED: "nothing listens there: see that the port in `{key}` is right, "
    "or wait until the service is up again",
    **dict.fromkeys(
        (errno.ENETUNREACH, errno.EHOSTUNREACH),
        "this host has no route there: look at its network, or give `proxy`",
    ),
}
_FIREWALL: Final = (
    "a firewall swallows it: let this host open TCP connections to {place}, or give `proxy`"
)
_KEYS: Final = {"authn": "auth_url"}  # the other services are named by `url`


@dataclass(frozen=True, slots=True)
class _Look:
    """One service, whom we trust to speak for it, and the time."""

    endpoint: Endpoint
    credentials: Credentials
    context: ssl.SSLContext | None  # None for plain HTTP
    now: Callable[[], datetime]
    clock: Callable[[], float]
    left_s: Callable[[], float]  # for name, connection and TLS together, as in a round

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint.url).hostname or ""

    @property
    def port(self) -> int:
        return port_of(self.endpoint.url)

    def say(self, advice: str) -> str:
        key = _KEYS.get(self.endpoint.name, "url")
        return advice.format(key=key, place=f"{self.host} port {self.port}")


def reach(
    endpoint: Endpoint,
    credentials: Credentials,
    now: Callable[[], datetime],
    clock: Callable[[], float],
) -> tuple[Step, ...]:
    """The steps on the way to a service, up to the first failure. Our certificate is not shown.

    Behind a proxy one step replaces the first three. Raises: CredentialError for no usable CAs.
    """
    is_plain = endpoint.url.startswith("http://")
    context = None if is_plain else trusting_context(credentials)
    attempt = Attempt.to(endpoint, clock)
    attempt.begin()
    attempt.begin_connection()
    look = _Look(endpoint, credentials, context, now, clock, attempt.left_s)
    if endpoint.proxy:
        return _asked(look)
    addresses = _resolved(look)
    if isinstance(addresses, Step):
        return (addresses,)
    shown = ", ".join(dict.fromkeys(str(address[4][0]) for address in addresses))
    steps = [Step("name", f"{look.host} is {shown}")]
    connection, step = _connected(look, addresses)
    steps.append(step)
    if connection is None:
        return tuple(steps)
    with connection:
        if look.context is not None:
            steps.append(_shaken(look, look.context, connection))
    return tuple(steps) if steps[-1].exit_status else (*steps, *_asked(look))


def _resolved(look: _Look) -> Sequence[Address] | Step:
    try:
        return resolved(look.host, look.port, look.left_s())
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        advice = look.say(
            "look for a slip in `{key}` of the target; `getent hosts "
            f"{look.host}` must print its address, so else mend /etc/resolv.conf"
        )
        return Step("name", plain(f"{look.host} does not resolve: {why}"), LATER, advice)


def _connected(look: _Look, addresses: Sequence[Address]) -> tuple[Bounded | None, Step]:
    """A connection to the first address that takes one."""
    connection, errors = connected(addresses, look.left_s)
    if connection is None:
        timed_out = isinstance(errors[-1], TimeoutError)
        advice = _FIREWALL if timed_out else _CONNECT_ADVICE.get(errors[-1].errno or 0, _FIREWALL)
        why = "timed out" if timed_out else errors[-1].strerror or str(errors[-1])
        answer = f"no connection to {look.host} port {look.port}: {why}"
        return None, Step("connection", plain(answer), LATER, look.say(advice))
    hosts = [str(address[4][0]) for address in addresses]
    answer = f"{hosts[len(errors)]} port {look.port} takes connections"
    pairs = zip(hosts, errors, strict=False)
    silent = [host for host, error in pairs if isinstance(error, TimeoutError)]
    if not silent:
        return connection, Step("connection", answer)
    answer = f"{answer}, but {', '.join(silent)} does not answer"
    advice = look.say(f"{_FIREWALL}; or remove the dead address from the name's entry")
    return connection, Step("connection", answer, advice=advice)


def _shaken(look: _Look, context: ssl.SSLContext, connection: Bounded) -> Step:
    """The TLS handshake: is it the service that we mean, by somebody whom we trust?"""
    try:
        connection.left_s = look.left_s
        with context.wrap_socket(connection, server_hostname=look.host) as secured:
            ends = _end_of(secured.getpeercert())
            answer = f"{secured.version()}, certificate good until {ends:%Y-%m-%d %H:%M} UTC"
    except ssl.SSLCertVerificationError as error:
        trusted = f"trusted are {trust_described(look.credentials)}"
        refusal = f"their certificate is not accepted: {error.verify_message}; {trusted}"
        advice = look.say(_VERIFY_ADVICE.get(error.verify_code, _ISSUER))
        return Step("TLS", plain(refusal), CREDENTIALS, advice)
    except OSError as error:  # ssl.SSLError is one
        why = getattr(error, "reason", None) or error.strerror or error
        advice = look.say(
            "is this port of `{key}` one that speaks HTTPS (TLS 1.2 or newer)? If it is, "
            "something in between ends TLS: ask those who run the network"
        )
        return Step("TLS", plain(f"the handshake failed: {why}"), CONFIGURATION, advice)
    if ends - look.now() < _THEIR_CERTIFICATE_ENDS_SOON:
        return Step("TLS", answer, advice="tell the operators of the service that it ends soon")
    return Step("TLS", answer)


def _asked(look: _Look) -> tuple[Step, ...]:
    """One harmless request: whether HTTP comes through, and what time it is there."""
    trust = trust_described(look.credentials)
    session = Session(look.endpoint, look.context, trust=trust, clock=look.clock)
    try:
        began = look.now()
        answer = session.exchange("GET", "/")
        middle = began + (look.now() - began) / 2
    finally:
        session.close()
    if not isinstance(answer, Answer):
        if answer.failure is Failure.OUR_CERTIFICATE:
            # It insists on one in the handshake; delivery shows it
            return (Step("clock", "not shown to clients without a certificate"),)
        known = {Failure.PROXY: CONFIGURATION, Failure.THEIR_CERTIFICATE: CREDENTIALS}
        status = known.get(answer.failure, LATER)
        usual = _ISSUER if status == CREDENTIALS else _FIREWALL
        advice = look.say(usual)
        if look.endpoint.proxy and status != CREDENTIALS:
            advice = "ask who runs the proxy to let this host through, "
            advice += "or correct `proxy`, HTTPS_PROXY and NO_PROXY"
        return (Step("connection", answer.reason, status, advice),)
    steps = () if not look.endpoint.proxy else (Step("connection", "the proxy leads there"),)
    return (*steps, _clock(answer.headers.get("date", ""), middle))


def _clock(date: str, ours: datetime) -> Step:
    try:
        theirs = parsedate_to_datetime(date)
    except ValueError:
        return Step("clock", "the service sends no Date")
    if theirs.tzinfo is None:  # "-0000" is read as no zone
        theirs = theirs.replace(tzinfo=UTC)
    off = ours - theirs
    size = abs(off)
    if size < CLOCK_WARNING:
        seconds = max(1, round(size.total_seconds()))
        return Step("clock", f"the same as there, give or take {seconds} s")
    way = "ahead of" if off > timedelta(0) else "behind"
    exit_status = CONFIGURATION if size >= CLOCK_FAILURE else 0
    return Step(
        name="clock",
        answer=f"this host is {round(size.total_seconds())} s {way} the service",
        exit_status=exit_status,
        advice="set the clock by NTP: `timedatectl` must say that it is synchronised; "
        "chronyd or systemd-timesyncd does it",
    )


def _end_of(certificate: Any) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
