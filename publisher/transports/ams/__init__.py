"""ARGO messaging (AMS), APEL's way in: the options of such a target. The transport itself loads when one is made.

Spec: argo-messaging 1.7.0 and argo-api-authn, HTTP interfaces v1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlsplit

from publisher.model.errors import ConfigError
from publisher.transports.base import Credentials, Destination, Endpoint, Environment, OneOff, TransportOptions
from publisher.transports.http.addresses import https_url, proxy_url

if TYPE_CHECKING:
    from publisher.transports.ams.transport import AmsTransport

# What the service itself accepts in a path (anything else is 400 before the token is examined).
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_TEST_HOSTS: Final = ("msg-devel.",)
_HOST: Final = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TransportOptions):
    """The keys of a target of the type `ams`."""

    url: str = field(metadata={"help": "where AMS is, https://HOST[:PORT]"})
    auth_url: str = field(default="", metadata={"help": "where tokens come from; default: the host of url, port 8443"})
    service_host: str = field(
        default="", metadata={"help": "the host's name in the token path; default: the host of url"}
    )
    project: str = field(default="accounting", metadata={"help": "AMS project"})
    topic: str = field(default="gLite-APEL", metadata={"help": "AMS topic"})
    batch_bytes: int = field(default=950_000, metadata={"help": "most characters of base64 data in one message"})
    connect_timeout_s: float = field(default=10, metadata={"help": "seconds to connect"})
    read_timeout_s: float = field(default=60, metadata={"help": "seconds of silence to bear (the broker may take 30)"})
    attempt_timeout_s: float = field(default=180, metadata={"help": "seconds for one request with its answer"})
    attempts: int = field(default=5, metadata={"help": "attempts to deliver one message in one run"})
    retry_budget_s: float = field(default=600, metadata={"help": "seconds to lose on failures and waiting in one run"})
    proxy: str = field(default="", metadata={"help": "http://HOST:PORT; default: HTTPS_PROXY and NO_PROXY"})
    allow_open_key: bool = field(default=False, metadata={"help": "accept a key file that group or others can read"})

    one_off: ClassVar[OneOff | None] = OneOff(
        key="url",
        help="send to this AMS once, instead of to configured targets",
        format="car",
        options=("topic", "project"),
    )

    def destination(self) -> Destination:
        """The queue (topic), which does not tell whose messages it holds."""
        url = self.url.lower().rstrip("/").removesuffix(":443")
        return Destination(place=(url, self.project, self.topic), keys="url, project and topic")

    def doubts(self) -> tuple[tuple[str, str], ...]:
        if any(host in self.url for host in _TEST_HOSTS):
            return ((f"{self.url} is the test instance", "write https://msg.argo.grnet.gr for real accounting"),)
        return ()


def problems(options: Options) -> list[str]:
    """Everything that cannot work in these options, for people; an empty list when all is well."""
    found = [
        f"`{key}`: {value!r} is not a name for AMS, which takes letters, digits, _ and -"
        for key, value in (("project", options.project), ("topic", options.topic))
        if not _NAME.fullmatch(value)
    ]
    if options.service_host and not _HOST.fullmatch(options.service_host):
        found.append(f"`service_host`: {options.service_host!r} must be a host name without a port")
    if not 16_384 <= options.batch_bytes <= 1_499_000:
        found.append(f"`batch_bytes`: {options.batch_bytes} is not between 16384 and 1499000, the most that AMS stores")
    positive = ("connect_timeout_s", "read_timeout_s", "attempt_timeout_s", "attempts")
    found += [f"`{key}` must be more than 0" for key in positive if getattr(options, key) <= 0]
    if options.retry_budget_s < 0:
        found.append("`retry_budget_s` must not be negative")
    return found


def endpoints(options: object, environment: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """AMS, and the service that gives out its tokens, in this order. Raises: ConfigError for URLs that cannot work."""
    if not isinstance(options, Options):
        raise TypeError(f"options of another transport: {type(options).__name__}")
    url = https_url(options.url, "url")
    auth_url = (
        https_url(options.auth_url, "auth_url") if options.auth_url else f"https://{urlsplit(url).hostname or ''}:8443"
    )
    return tuple(
        Endpoint(
            name=name,
            url=place,
            proxy=proxy_url(place, options.proxy, environment),
            connect_s=options.connect_timeout_s,
            read_s=options.read_timeout_s,
            attempt_s=options.attempt_timeout_s,
        )
        for name, place in (("AMS", url), ("authn", auth_url))
    )


def create(options: object, credentials: Credentials, circumstances: Environment) -> AmsTransport:
    """A transport to AMS, not yet connected.

    Raises: ConfigError for options that cannot work; CredentialError for certificate, key or CAs that cannot be used.
    """
    if not isinstance(options, Options):
        raise TypeError(f"options of another transport: {type(options).__name__}")
    if found := problems(options):
        raise ConfigError(found)
    from publisher.transports.ams.transport import AmsTransport  # `status` must start without requests and cryptography
    from publisher.transports.credentials.host_certificate import may_be_open

    allow_open_key = options.allow_open_key or may_be_open(credentials.key, circumstances.environment)
    return AmsTransport(options, credentials, circumstances, allow_open_key=allow_open_key)
