"""Host names, as endpoints and schemas have them."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address
from urllib.parse import urlsplit


@lru_cache(maxsize=4096)
def endpoint_host(url: str) -> str:
    """Host of an endpoint URL, '' where there is none. IPv6 with or without brackets loses neither digits nor colons."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
        if netloc.count(":") > 1 and not netloc.startswith("["):
            # A-REX composes URLs from socket addresses without brackets: https://2001:db8::1:443/arex
            host, _, port = netloc.rpartition(":")
            return (host if port.isdecimal() and _is_ipv6(host) else netloc).lower()
        return parts.hostname or ""
    except ValueError:
        return ""


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def is_domain_name(host: str) -> bool:
    """Whether the CAR and UR schemas take it as a domainNameType.

    At most 255 characters; labels of at least two letters, digits or inner hyphens.
    """
    labels = host.split(".")
    return (
        0 < len(host) <= 255
        and host.isascii()
        and all(
            len(label) >= 2 and label[0].isalnum() and label[-1].isalnum() and label.replace("-", "").isalnum()
            for label in labels
        )
    )
