"""Importers of other systems' accounting, by name. A new one is one file here and one line in `IMPORTERS`.

They write a local accounting database of ARC's schema 2, which `source: {type: arex}` reads like A-REX's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # rounds of publishing read only the names
    from publisher.importers.base import ImporterPlugin

IMPORTERS: Final[Mapping[str, str]] = {
    "gridengine": "publisher.importers.gridengine",
    "sonar": "publisher.importers.sonar",
}

BESIDE_STATE: Final = "imported.db"  # the database that they write by default
# What each of them writes as the interface of a job's endpoint. A-REX's own are org.nordugrid.* and the like.
BY_INTERFACE: Final[Mapping[str, str]] = {"gridengine": "gridengine", "slurm": "sonar"}


def importer_plugin(name: str) -> ImporterPlugin:
    """The plug-in module of an importer. Raises: KeyError for a name that is not in `IMPORTERS`."""
    plugin: ImporterPlugin = import_module(IMPORTERS[name])
    return plugin
