"""What every source offers: pages of job records, by row order or by end time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from publisher.model.alike import Alike
from publisher.model.job import Epoch, Glimpse, JobId, JobRecord, RowRef, Side, SkippedJob
from publisher.model.progress import Cursor, OpenRow
from publisher.model.selection import Window

__all__ = [
    "Absent",
    "Cursor",
    "DoneWith",
    "EndedIn",
    "EndedRun",
    "OpenRow",
    "Page",
    "Source",
    "SourceFacts",
    "SourcePlugin",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some rows of one database, read in one short transaction.

    `cursor` is where reading goes on after this page; None for pages that were asked for by window or by row.
    `gone` are rows that were asked for and no longer exist. `alike` are further jobs, for those who asked to count them only.
    """

    jobs: tuple[JobRecord, ...]
    skipped: tuple[SkippedJob, ...] = ()
    open: tuple[OpenRow, ...] = ()
    gone: tuple[RowRef, ...] = ()
    alike: tuple[Alike, ...] = ()
    cursor: Cursor | None = None
    rows_read: int = 0


# End, JobID and LocalJobID of a run. A tuple, because one is made for every job.
EndedRun = tuple[Epoch, JobId, str]
EndedIn = Callable[[Collection[Epoch]], Sequence[EndedRun]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What a source's files look like, for `doctor` and messages.

    `way` is how the file is read: shared with its writer, unlocked, or a copy; `notes` say why it is not shared. `unindexed`
    are the tables that questions of every round read whole, for lack of an index; `strange_statuses` the rows that no status
    of a job explains, by its name.
    """

    path: str
    schema: int
    journal_mode: str
    way: str
    notes: tuple[str, ...] = field(default=())
    unindexed: tuple[str, ...] = field(default=())
    strange_statuses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Something that the configuration names and that is not there; `patterns` match the files that it would stand for."""

    patterns: tuple[str, ...]
    reason: str


# Which of some runs there is nothing to do about, in their order.
DoneWith = Callable[[Sequence[Glimpse]], Sequence[bool]]


class Source(Protocol):
    """Finished jobs of a site. Only reads. Every call opens, reads one page at a time, and lets go between pages.

    Of several databases, those that are there are read; `absent` tells of the others.
    All methods raise: SourceError when the data cannot be read; never an empty answer instead.
    """

    def databases(self) -> tuple[str, ...]:
        """Names of the databases, the most authoritative first: a job finished in two of them counts in the first."""
        ...

    def absent(self) -> tuple[Absent, ...]:
        """What the configuration names in vain."""
        ...

    def since(
        self,
        cursor: Cursor | None,
        database: str,
        needs: frozenset[Side],
        now: datetime,
        done_with: DoneWith | None = None,
        *,
        alike: bool = False,
    ) -> Iterator[Page]:
        """Pages in row order of everything after the cursor; from the first row when it is None or no longer fits.

        Runs that `done_with` knows are left out, before what stands beside their rows is read. `alike`: jobs are only
        counted, so those that are alike may come as `Page.alike`.
        """
        ...

    def fits(self, cursor: Cursor) -> bool:
        """Whether the cursor's row still is the job that it was."""
        ...

    def look_again(self, rows: Sequence[OpenRow], needs: frozenset[Side], now: datetime) -> Iterator[Page]:
        """Pages of the named rows: finished ones as jobs, others as still open, vanished ones as gone."""
        ...

    def window(
        self, window: Window, needs: frozenset[Side], now: datetime, after: tuple[Epoch, RowRef] | None = None
    ) -> Iterator[Page]:
        """Pages by (EndTime, RecordID) of the finished jobs in a half-open window, database by database."""
        ...

    def count(self, window: Window) -> int:
        """How many rows end in a half-open window: an upper bound of the jobs that `window` yields.

        A job that is finished in two databases counts once. One database answers from an index alone; of several, the
        JobIDs of all but the first are looked up in those before it.
        """
        ...

    def by_end(self) -> AbstractContextManager[EndedIn]:
        """Keeps the databases open to be asked who ended in some seconds."""
        ...

    def find(self, job_id: JobId, needs: frozenset[Side], now: datetime) -> Page:
        """The job with this id, wherever it stands; an empty page when there is none."""
        ...

    def facts(self) -> tuple[SourceFacts, ...]:
        """What the files look like."""
        ...

    def close(self) -> None: ...


class SourcePlugin(Protocol):
    """A module in this room: its options (a frozen dataclass) and a way to make it live."""

    Options: type

    def create(self, options: object, environment: Mapping[str, str]) -> Source: ...
