"""Sources of job records and importers of other systems' accounting, by name.

A new source is one file and one line in `SOURCES`; a new importer one folder and one line in
`BATCH_SYSTEMS`. Plug-ins load on first use, so that a command that needs none starts without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from publisher.model.errors import ConfigError
from publisher.sources.base import SourcePlugin

if TYPE_CHECKING:
    from publisher.sources.importers import ImporterPlugin


class BatchSystem(NamedTuple):
    """How the accounting of one batch system is read, and by what its jobs are known."""

    importer: str  # the plug-in module
    interface: str  # that of its jobs' endpoints; A-REX's own are org.nordugrid.*
    lrms: str  # what A-REX calls it, or a part of that


BATCH_SYSTEMS: Final[Mapping[str, BatchSystem]] = {
    "gridengine": BatchSystem("publisher.sources.gridengine.importer", "gridengine", "sge"),
    "htcondor": BatchSystem("publisher.sources.htcondor.importer", "htcondor", "condor"),
    "slurm": BatchSystem("publisher.sources.slurm.importer", "sacct", "slurm"),
    "sonar": BatchSystem("publisher.sources.sonar.importer", "slurm", "slurm"),
}
IMPORTERS: Final[Mapping[str, str]] = {
    name: system.importer for name, system in BATCH_SYSTEMS.items()
}
BY_INTERFACE: Final[Mapping[str, str]] = {
    system.interface: name for name, system in BATCH_SYSTEMS.items()
}
LRMS: Final[Mapping[str, str]] = {name: system.lrms for name, system in BATCH_SYSTEMS.items()}

OF_CES: Final = "arex"  # the source that a site without a CE has as well, without a database


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
