"""The options of transports over HTTP; addresses of services and proxies as they are configured.

Every command reads the configuration, so this loads no library: `requests` looks at an address when
it is asked, and then takes a path, a user or a query as well, which are mistakes here.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from publisher.model.errors import ConfigError
from publisher.transports.base import Endpoint, TransportOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions(TransportOptions):
    """Keys that targets of all these transports have."""

    url: str
    connect_timeout_s: float = field(
        default=10,
        metadata={"help": "seconds to connect: name, all addresses, proxy and TLS together"},
    )
    read_timeout_s: float = 60
    attempt_timeout_s: float = field(
        default=180, metadata={"help": "seconds for one request with its answer"}
    )
    attempts: int = field(
        default=5, metadata={"help": "attempts to deliver one message in one run"}
    )
    retry_budget_s: float = field(
        default=600, metadata={"help": "seconds to lose on failures and waiting in one run"}
    )
    proxy: str = field(
        default="", metadata={"help": "http://HOST:PORT; default: HTTPS_PROXY and NO_PROXY"}
    )
    allow_open_key: bool = field(
        default=False, metadata={"help": "accept a key file that group or others can read"}
    )

    def limit_problems(self) -> list[str]:
        """What cannot work in the limits of these options, for people; [] when all is well."""
        positive = ("connect_timeout_s", "read_timeout_s", "attempt_timeout_s", "attempts")
        found = [f"`{key}` must be more than 0" for key in positive if getattr(self, key) <= 0]
        if self.retry_budget_s < 0:
            found.append("`retry_budget_s` must not be negative")
        return found

    def endpoint(self, name: str, url: str, environment: Mapping[str, str]) -> Endpoint:
        """A service with these limits; plain HTTP is for the local network and has no proxy.

        Raises: ConfigError for a proxy that cannot work.
        """
        plain = url.startswith("http://")
        if plain and self.proxy:
            advice = "leave it out, or write https:// in `url`"
            raise ConfigError(f"`proxy`: is for https:// only; {advice}")
        proxy = "" if plain else proxy_url(url, self.proxy, environment)
        return Endpoint(
            name=name,
            url=url,
            proxy=proxy,
            connect_s=self.connect_timeout_s,
            read_s=self.read_timeout_s,
            attempt_s=self.attempt_timeout_s,
        )


_PORTS: Final = {"https": 443, "http": 80}


def port_of(url: str) -> int:
    """The port of a service."""
    parts = urlsplit(url)
    return parts.port or _PORTS[parts.scheme]


def https_url(url: str, key: str, schemes: Collection[str] = ("https",)) -> str:
    """The URL of a service as https://HOST[:PORT], or of another of these schemes.

    Raises: ConfigError, naming the key, for anything with more or less.
    """
    only = f"`{key}`: give only https://HOST or https://HOST:PORT, no path, user or query"
    if "@" in url:  # not quoted: it may hold a password
        raise ConfigError(only)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"`{key}`: {url!r} is no URL ({error})") from error
    if parts.scheme not in schemes or not parts.hostname:
        forms = " or ".join(map("{0}://HOST or {0}://HOST:PORT".format, schemes))
        raise ConfigError(f"`{key}`: {url!r} must be of the form {forms}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(only)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    usual = port in (None, _PORTS[parts.scheme])
    return f"{parts.scheme}://{host}" if usual else f"{parts.scheme}://{host}:{port}"


def proxy_url(url: str, option: str, environment: Mapping[str, str]) -> str:
    """The proxy for a service: the option, else HTTPS_PROXY unless NO_PROXY spares it, else ''.

    Raises: ConfigError for a proxy that is not an http:// URL.
    """
    found, name = option, "`proxy`"
    if not found:
        name = "HTTPS_PROXY"
        found = environment.get("https_proxy") or environment.get(name) or ""
        exempt = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        if not found or _is_exempt(url, exempt):
            return ""
    full = found if "://" in found else f"http://{found}"
    if not _is_http(full):  # not quoted: it may hold a password
        what = "a proxy is given as http://HOST:PORT, other kinds are not supported"
        raise ConfigError(f"{name}: {what}")
    return full


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_exempt(url: str, no_proxy: str) -> bool:
    """Whether NO_PROXY names the host: `*`, a name or a domain, HOST:PORT, or a network.

    `requests` would read the process's own environment, and knows no networks of IPv6.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    for entry in no_proxy.lower().replace(",", " ").split():
        name = entry.removeprefix("*").removeprefix(".")
        is_above = bool(name) and host.endswith(f".{name}")
        if entry == "*" or is_above or name in (host, f"{host}:{parts.port or 443}"):
            return True
        try:
            if ip_address(host) in ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False
