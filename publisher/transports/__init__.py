"""Transports, by name. A new one is one file here and one line in `TRANSPORTS`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from publisher.transports.base import TransportPlugin

TRANSPORTS: Final[Mapping[str, str]] = {
    "ams": "publisher.transports.ams",
    "sgas": "publisher.transports.sgas",
    "spool": "publisher.transports.spool",
}

# The transports that ARC's own publisher had, by the names that arc.conf gives their blocks.
JURA_TRANSPORTS: Final[Mapping[str, str]] = {"apel": "ams", "sgas": "sgas"}


def transport_plugin(name: str) -> TransportPlugin:
    """The plug-in module of a transport, loaded on first use. Raises: KeyError for a name not in `TRANSPORTS`."""
    plugin: TransportPlugin = import_module(TRANSPORTS[name])
    return plugin
