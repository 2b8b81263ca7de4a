"""ARC's accounting database, as A-REX writes it: the source that is published from."""

from __future__ import annotations

from typing import Final

from publisher.sources.arex.options import Options, database_paths, names, only_database
from publisher.sources.arex.source import create, newest_job, writing_order

__all__ = [
    "Options",
    "create",
    "create_statistics",
    "create_usage",
    "database_paths",
    "names",
    "newest_job",
    "only_database",
    "writing_order",
]

# Loaded when a command asks for them.
create_statistics: Final = "publisher.sources.arex.counting.statistics:create"
create_usage: Final = "publisher.sources.arex.counting.usage:create"
