"""ARC's accounting database, as A-REX writes it: the source that is published from."""

from __future__ import annotations

from publisher.sources.arex.options import Options, database_paths, names, only_database
from publisher.sources.arex.source import create, writing_order

__all__ = [
    "Options",
    "create",
    "database_paths",
    "names",
    "only_database",
    "writing_order",
]
