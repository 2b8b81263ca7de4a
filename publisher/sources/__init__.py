"""Sources of job records and importers of other systems' accounting, by name.

A new source is one file and one line in `SOURCES`; a new importer one file and one line in
`IMPORTERS`. Plug-ins load on first use, so that a command that needs none starts without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

from publisher.model.errors import ConfigError
from publisher.sources.base import SourcePlugin

if TYPE_CHECKING:
    from publisher.sources.importers import ImporterPlugin

IMPORTERS: Final[Mapping[str, str]] = {
    "gridengine": "publisher.sources.gridengine.importer",
    "htcondor": "publisher.sources.htcondor.importer",
    "slurm": "publisher.sources.slurm.importer",
    "sonar": "publisher.sources.sonar.importer",
}

OF_CES: Final = "arex"  # the source that a site without a CE has as well, without a database
# What each of them writes as the interface of a job's endpoint; A-REX's own are org.nordugrid.*.
BY_INTERFACE: Final[Mapping[str, str]] = {
    "gridengine": "gridengine",
    "htcondor": "htcondor",
    "sacct": "slurm",
    "slurm": "sonar",
}
# What A-REX calls the batch systems that they read, or a part of it.
LRMS: Final[Mapping[str, str]] = {
    "gridengine": "sge",
    "htcondor": "condor",
    "slurm": "slurm",
    "sonar": "slurm",
}


def importer_plugin(name: str) -> ImporterPlugin:
    """The plug-in module of an importer. Raises: KeyError for a name that is not in `IMPORTERS`."""
    plugin: ImporterPlugin = import_module(IMPORTERS[name])
    return plugin


SOURCES: Final[Mapping[str, str]] = {
    "arex": "publisher.sources.arex",
}


def source_plugin(name: str) -> SourcePlugin:
    """The plug-in module of a source. Raises: KeyError for a name that is not in `SOURCES`."""
    plugin: SourcePlugin = import_module(SOURCES[name])
    return plugin


def offered(name: str, factory: str, commands: str) -> Callable[..., Any]:
    """What a source's plug-in offers beside `create`, for some commands. Raises: ConfigError."""
    found: Callable[..., Any] | str | None = getattr(source_plugin(name), factory, None)
    if found is None:
        raise ConfigError(
            f"source.type: {commands}: a source of the type {name} does not offer what is needed; "
            "the type arex does"
        )
    return resolve_name(found) if isinstance(found, str) else found
