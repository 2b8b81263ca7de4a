"""SGAS, the accounting service of NeIC and SweGrid: the options of such a target. The transport loads when one is made.

Spec: luts3-service 3.8.1 and its head of development.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlsplit

from publisher.model.errors import ConfigError
from publisher.transports.base import Credentials, Endpoint, Environment, OneOff, TransportOptions
from publisher.transports.http.addresses import https_url, proxy_url

if TYPE_CHECKING:
    from publisher.transports.sgas.transport import SgasTransport

_BATCH_BYTES: Final = range(16_384, 64_000_001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TransportOptions):
    """The keys of a target of the type `sgas`."""

    url: str = field(metadata={"help": "https://HOST:PORT/sgas, or the insert URL below it, https://HOST:PORT/sgas/ur"})
    # The shipped nginx takes 2 MiB and not a byte more; where it was raised, this may be.
    batch_bytes: int = field(default=2_000_000, metadata={"help": "most bytes in one message; nginx takes 2097152"})
    connect_timeout_s: float = field(default=10, metadata={"help": "seconds to connect"})
    read_timeout_s: float = field(default=90, metadata={"help": "seconds of silence to bear (nginx bears 60)"})
    attempt_timeout_s: float = field(default=180, metadata={"help": "seconds for one request with its answer"})
    attempts: int = field(default=5, metadata={"help": "attempts to deliver one message in one run"})
    retry_budget_s: float = field(default=600, metadata={"help": "seconds to lose on failures and waiting in one run"})
    proxy: str = field(default="", metadata={"help": "http://HOST:PORT; default: HTTPS_PROXY and NO_PROXY"})
    allow_open_key: bool = field(default=False, metadata={"help": "accept a key file that group or others can read"})

    one_off: ClassVar[OneOff | None] = OneOff(key="url", help="send to this SGAS once", format="ogf-ur")


def problems(options: Options) -> list[str]:
    """Everything that cannot work in these options, for people; an empty list when all is well."""
    found = []
    try:
        parts = urlsplit(options.url)
        if parts.query or parts.fragment:
            found.append("`url`: give https://HOST:PORT/sgas, without query or fragment")
    except ValueError as error:
        shown = "" if "@" in options.url else f"{options.url!r} "  # it may hold a password
        found.append(f"`url`: {shown}is no URL ({error})")
    if options.batch_bytes not in _BATCH_BYTES:
        found.append(f"`batch_bytes`: {options.batch_bytes} is not between {_BATCH_BYTES[0]} and {_BATCH_BYTES[-1]}")
    positive = ("connect_timeout_s", "read_timeout_s", "attempt_timeout_s", "attempts")
    found += [f"`{key}` must be more than 0" for key in positive if getattr(options, key) <= 0]
    if options.retry_budget_s < 0:
        found.append("`retry_budget_s` must not be negative")
    return found


def endpoints(options: object, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """The one service. Raises: ConfigError for a URL that cannot work."""
    if not isinstance(options, Options):
        raise TypeError(f"options of another transport: {type(options).__name__}")
    parts = urlsplit(options.url)
    place = https_url(f"{parts.scheme}://{parts.netloc}", "url")
    return (
        Endpoint(
            name="SGAS",
            url=place,
            proxy=proxy_url(place, options.proxy, environment),
            connect_s=options.connect_timeout_s,
            read_s=options.read_timeout_s,
            attempt_s=options.attempt_timeout_s,
        ),
    )


def create(options: object, credentials: Credentials, circumstances: Environment) -> SgasTransport:
    """A transport to SGAS, not yet connected.

    Raises: ConfigError for options that cannot work; CredentialError for certificate, key or CAs that cannot be used.
    """
    if not isinstance(options, Options):
        raise TypeError(f"options of another transport: {type(options).__name__}")
    if found := problems(options):
        raise ConfigError(found)
    from publisher.transports.credentials.host_certificate import (
        may_be_open,  # `status` must start without requests and cryptography
    )
    from publisher.transports.sgas.transport import SgasTransport

    allow_open_key = options.allow_open_key or may_be_open(credentials.key, circumstances.environment)
    return SgasTransport(options, credentials, circumstances, allow_open_key=allow_open_key)
