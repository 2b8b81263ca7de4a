"""Sources of job records, by name. A new one is one file here and one line in `SOURCES`.

Plug-ins load on first use, so that a command that needs no source starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from publisher.sources.base import SourcePlugin

SOURCES: Final[Mapping[str, str]] = {
    "arex": "publisher.sources.arex",
}


def source_plugin(name: str) -> SourcePlugin:
    """The plug-in module of a source. Raises: KeyError for a name that is not in `SOURCES`."""
    plugin: SourcePlugin = import_module(SOURCES[name])
    return plugin
