"""What reports ask of a source: the finished jobs of a period, summed up while they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from publisher.model.job import Epoch
from publisher.model.selection import Window
from publisher.model.usage import UsagePage
from publisher.sources import offered


class UsageReader(Protocol):
    """A site's finished jobs in groups. Only reads; a job that is finished in two databases counts once."""

    def groups(self, window: Window, eras: Sequence[Epoch], *, alone: bool, own_projects: bool) -> Iterator[UsagePage]:
        """The jobs that ended in a window, page by page, whether or not everything beside their rows is written yet.

        `eras` are moments in order: group `era` n ended before `eras[n]` and not before the one in front of it. `alone`: each
        job is a group of its own, with all that is known of it. `own_projects`: whether projects are called as their users
        are is looked up; otherwise none is.
        Raises: SourceError when the data cannot be read; never an empty answer instead.
        """
        ...

    def close(self) -> None: ...


class UsagePlugin(Protocol):
    """A module in this room that makes a source's options live for reports."""

    def create(self, options: object, environment: Mapping[str, str]) -> UsageReader: ...


USAGE: Final[Mapping[str, str]] = {
    "arex": "publisher.sources.arex_usage",
}


def usage_plugin(name: str) -> UsagePlugin:
    """The plug-in module for a source's type. Raises: ConfigError for a source that publishes only."""
    plugin: UsagePlugin = offered(USAGE, name, "report")
    return plugin
