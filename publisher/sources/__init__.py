"""Sources of job records, by name. A new one is one file here and one line in `SOURCES`.

Plug-ins load on first use, so that a command that needs no source starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Final

from publisher.errors import ConfigError
from publisher.sources.base import SourcePlugin

SOURCES: Final[Mapping[str, str]] = {
    "arex": "publisher.sources.arex",
}


def source_plugin(name: str) -> SourcePlugin:
    """The plug-in module of a source. Raises: KeyError for a name that is not in `SOURCES`."""
    plugin: SourcePlugin = import_module(SOURCES[name])
    return plugin


def offered(modules: Mapping[str, str], name: str, who: str) -> ModuleType:
    """The module by which a source's type serves `who`. Raises: ConfigError where it serves publishing only."""
    if name not in modules:
        raise ConfigError(
            f"source.type: jobs of a source of the type {name} are published, and not looked at by {who}; "
            f"those of {', '.join(modules)} are"
        )
    return import_module(modules[name])
