"""Transports, by name. A new one is one file here and one line in `TRANSPORTS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from publisher.transports.base import (
    Credentials,
    Environment,
    Transport,
    TransportMaker,
    TransportPlugin,
)

TRANSPORTS: Final[Mapping[str, str]] = {
    "ams": "publisher.transports.ams",
    "sgas": "publisher.transports.sgas",
    "auditor": "publisher.transports.auditor",
    "spool": "publisher.transports.spool",
}

# The transports that ARC's own publisher had, by the names that arc.conf gives their blocks.
JURA_TRANSPORTS: Final[Mapping[str, str]] = {"apel": "ams", "sgas": "sgas"}


def transport_plugin(name: str) -> TransportPlugin:
    """The plug-in module of a transport, loaded at need. Raises: KeyError for an unknown name."""
    plugin: TransportPlugin = import_module(TRANSPORTS[name])
    return plugin


def create_transport(
    name: str, options: object, credentials: Credentials, environment: Environment
) -> Transport:
    """A transport, not yet connected. Raises: ConfigError, CredentialError as its `create`.

    A package has `create` in its module `transport`, with the libraries that options do without.
    """
    plugin = import_module(TRANSPORTS[name])
    is_package = hasattr(plugin, "__path__")
    maker: TransportMaker = import_module(f"{plugin.__name__}.transport") if is_package else plugin
    return maker.create(options, credentials, environment)


def http_sessions() -> Callable[..., Any]:
    """The class `Session`, loaded late: it takes long, and without messages none is needed."""
    sessions: Callable[..., Any] = import_module("publisher.transports.http.session").Session
    return sessions


def pkcs7_writer() -> Any:
    """PKCS#7 of `cryptography`, loaded for the first signature: Python's e-mail comes with it."""
    return import_module("cryptography.hazmat.primitives.serialization.pkcs7")
