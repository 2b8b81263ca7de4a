"""What local statistics ask of a source: every job once, finished or not, and all that stands of one job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from publisher.model.job import JobId, RowRef
from publisher.model.job_sheet import JobSheet
from publisher.model.local_stats import CountedJob, JobFilter
from publisher.sources import offered


class NameKind(StrEnum):
    """Names that jobs have in common, with the word for one of them."""

    VO = "VO"
    USER = "user"
    STATE = "state"
    QUEUE = "queue"
    INTERFACE = "endpoint type"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPage:
    """The jobs of a page that a filter takes, of so many rows that were read in one short transaction.

    `rows` tell where each job stands, in the same order.
    """

    jobs: tuple[CountedJob, ...]
    rows: tuple[RowRef, ...]
    rows_read: int


class Accounts(Protocol):
    """A site's accounting data, to be looked into. Only reads; a job in two databases counts once, where it is finished.

    All methods raise: SourceError when the data cannot be read; never an empty answer instead.
    """

    @property
    def zone(self) -> str:
        """IANA name of the zone in which events are written; '' when that is taken from this host."""
        ...

    def counted(self, wanted: JobFilter) -> Iterator[CountedPage]:
        """The jobs that a filter takes, page by page; pages may be empty."""
        ...

    def names(self, kind: NameKind) -> frozenset[str]:
        """All names of that kind."""
        ...

    def sheet(self, job_id: JobId) -> JobSheet | None:
        """All that stands of a job, in the database in which it counts; None when there is no such job."""
        ...

    def with_local_id(self, local_id: str) -> tuple[JobId, ...]:
        """Some of the jobs that have this id in the batch system."""
        ...

    def ids_beginning(self, beginning: str, limit: int) -> tuple[JobId, ...]:
        """So many of the ids of jobs that begin like this, in order."""
        ...

    def close(self) -> None: ...


class AccountsPlugin(Protocol):
    """A module in this room that makes a source's options live for statistics."""

    def create(self, options: object, environment: Mapping[str, str]) -> Accounts: ...


ACCOUNTS: Final[Mapping[str, str]] = {
    "arex": "publisher.sources.arex_accounts",
}


def accounts_plugin(name: str) -> AccountsPlugin:
    """The plug-in module for a source's type. Raises: ConfigError for a source that publishes only."""
    plugin: AccountsPlugin = offered(ACCOUNTS, name, "stats, job, export and complete")
    return plugin
