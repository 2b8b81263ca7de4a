"""The interface of sources: pages of job records from a position on, for the job store.

`JobSource` is what the loader asks, and all other questions about jobs are asked of the store. A
`Source` also answers the few about what is beside rows and in no store.
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from publisher.model.errors import SourceError, refused_by_system
from publisher.model.job import (
    Epoch,
    JobId,
    LoadedPage,
    OpenRow,
    Position,
    ReadRequest,
    RowRef,
)
from publisher.model.time import Window

if TYPE_CHECKING:
    from publisher.sources.sheet import JobDetails

__all__ = [
    "Absent",
    "BatchEntry",
    "JobSource",
    "LastReading",
    "OpenRow",
    "Source",
    "SourceFacts",
    "SourceList",
    "SourcePlugin",
]


_NO_STATUSES: Final[Mapping[str, int]] = {}


class SourceFacts(NamedTuple):
    """What a source's files look like, for `doctor` and messages.

    `way` is how the file is read: shared with its writer, unlocked, or a copy; `notes` say why it
    is not shared. `unindexed` are the tables that questions of every round read whole, for lack of
    an index; `strange_statuses` the rows that no status of a job explains, by its name.
    """

    path: str
    schema: int
    journal_mode: str
    way: str
    notes: tuple[str, ...] = ()
    unindexed: tuple[str, ...] = ()
    strange_statuses: Mapping[str, int] = _NO_STATUSES


class Absent(NamedTuple):
    """Something that the configuration names and that is not there."""

    patterns: tuple[str, ...]  # of the files that it would name
    reason: str


class JobSource(Protocol):
    """One source as the job store loads it: an accounting database, or a batch system.

    It only reads, and decides nothing that depends on another source: the store does (the same job
    in two files, linking). Each page is read in one short transaction or step, and nothing is held
    between pages. `name` is by which the store and the ledger know it.

    `is_comparable`: rows stay where they are until a CE purges them, so that runs which `compare`
    does not meet are marked as purged. False: of log files, what was loaded once stays.

    All methods raise SourceError where data cannot be read, after all pages that could be: one
    file's trouble does not keep another file's jobs back, and is never an empty answer.
    """

    @property
    def name(self) -> str: ...
    @property
    def is_comparable(self) -> bool: ...

    def read(
        self, position: Position | None, again: Sequence[OpenRow], request: ReadRequest
    ) -> Iterator[LoadedPage]:
        """Yield the rows to read `again`, then all rows after a position, in the source's order.

        From the first row where the position is None, or does not fit any more (`restarted`). A
        load that is killed goes on from the position of the last page that was stored, with the
        rows that were open by then.
        """

    def rows_after(self, position: Position | None) -> int:
        """Return at most how many rows `read` will yield after a position, at once."""

    def ends(self, rows: Sequence[OpenRow]) -> Mapping[RowRef, Epoch]:
        """Return when the jobs of some rows ended, if they have, at once."""

    def compare(
        self, window: Window, known: Mapping[int, bytes], request: ReadRequest
    ) -> Iterator[LoadedPage]:
        """Yield all rows of the parts in which a job ended in a window.

        `known` are the digests of parts that were compared before: a part with an equal digest is
        yielded as a page without jobs.
        """

    def look_up(self, job_ids: Sequence[JobId], request: ReadRequest) -> Iterator[LoadedPage]:
        """Yield the rows of these jobs, as far as they are there."""

    def fits(self, position: Position) -> bool:
        """Return whether the row at a position is still the job that it was."""

    def close(self) -> None: ...


class SourceList(Protocol):
    """The sources of one kind that a configuration names: the databases of all CEs, for example.

    Each call looks for them again, as files are rotated, migrated and restored.
    """

    def sources(self) -> Sequence[JobSource]:
        """Return those that are there, the one named first in front; open until `close`.

        Raises: SourceError when none is, or for one that is no accounting data.
        """

    def databases(self) -> Mapping[str, str]:
        """Return the files of the sources, by name, in the order of `sources`."""

    def absent(self) -> tuple[Absent, ...]:
        """Return what the configuration names in vain."""

    def has_any(self) -> bool:
        """Return whether any of these is there."""

    def names(self, file: str) -> bool:
        """Whether the configuration names this database, by name or file, be it there or not."""

    def facts(self) -> tuple[SourceFacts, ...]:
        """Return what the files look like."""

    def close(self) -> None: ...


class Source(SourceList, Protocol):
    """The accounting databases of a site, and what only they have of a job.

    Only reads. All methods raise: SourceError when the data cannot be read; never an empty answer
    instead.
    """

    def sheet(self, job_id: JobId) -> "JobDetails | None":
        """Return everything about a job, in the database in which it counts; None for none."""

    def rows_with(self, attribute: str, values: Collection[str]) -> Iterator[RowRef]:
        """Yield the rows of jobs with one of these values of an attribute (`rte`, `dtrurl`, ...).

        For local questions, of what is beside rows and no round reads.
        """


class WrittenJob(NamedTuple):
    """One finished job, any status. Texts are as they are stored."""

    job_id: str
    local_id: str
    ended_at: Epoch
    status: str
    vo: str


class WritingOrder(Protocol):
    """One database, to be read once in the order in which the ends of its jobs were written."""

    @property
    def name(self) -> str: ...
    def jobs(self) -> Iterator[WrittenJob]:
        """Page by page, in short transactions. Raises: SourceError."""

    def unordered(self, last_end: Epoch) -> Iterator[str]:
        """Yield the JobIDs of other jobs that ended up to a second. Raises: SourceError."""

    def finished_among(self, job_ids: Sequence[str]) -> set[str]:
        """Which of some jobs, named as by `WrittenJob`, are finished here. Raises: SourceError."""


# Keys of JobExtraInfo. What formulas of charges may ask for, as `mem=4096 TimeLimit=3600`:
QUANTITIES: Final = "quantities"
GPU_MODELS: Final = "gpumodels"


class ImportedFrom(NamedTuple):
    """The importer of a job, and what it was made of."""

    importer: str
    key: str  # of the record
    file: str  # in which that stood, where it was last seen; '': not known, or many


class BatchEntry(NamedTuple):
    """A batch system: an entry of `source`, which every round reads, or a block of `importers`.

    `join_wait_s` is how long A-REX's jobs wait for its runs, which are joined to them; None where
    they are not.
    """

    name: str
    type: str  # a name of IMPORTERS
    options: object  # the importer's `Options`
    in_rounds: bool
    join_wait_s: int | None = None

    @property
    def cluster(self) -> str:
        """What is part of its jobs' ids."""
        name: str = getattr(self.options, "cluster", "")
        return name

    def ces(self) -> frozenset[Path] | None:
        """The CEs that submit to it, as `is_of_ce` knows them; None: all."""
        databases: Sequence[Path] | None = getattr(self.options, "arc_databases", None)
        if databases is None:
            return None
        files = [database.resolve() for database in databases]
        return frozenset(file.parent if file.name in NAMES_OF_AREX else file for file in files)


def read_as(options: object) -> object:
    """Return what of a source's options decides the values of its jobs: all, unless they say so."""
    return getattr(options, "read_as", options)


def has_file(path: Path) -> bool:
    """Raises: SourceError when that cannot be told, which `Path.exists` of Python 3.14 calls no."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        why = refused_by_system(error, "its directory must belong to the user who publishes")
        raise SourceError(f"{path}: {why}") from error
    return True


NAMES_OF_AREX: Final = ("accounting.db", "accounting_v2.db")


def is_of_ce(database: str, ces: frozenset[Path]) -> bool:
    """Whether it is of one of these CEs.

    They are known by their directories, in which A-REX leaves old databases, or by databases that
    are called otherwise than A-REX does.
    """
    file = Path(database).resolve()
    return file in ces or file.parent in ces


def ce_of(database: str) -> str:
    """Return the CE of a database: its directory, or the file if A-REX gives no such name."""
    folder, name = os.path.split(database)
    return folder if name in NAMES_OF_AREX else database


class NewestJob(NamedTuple):
    """When the last job of a database ended, and how many did in the four weeks before."""

    ended_at: Epoch | None = None
    four_weeks: int = 0
    cpu_unknown: int = 0  # those of these of which nobody measured the CPU time


class AwaitedCe(NamedTuple):
    """A CE with jobs in progress that tells nothing, and for which runs wait: they may be these."""

    name: str  # its directory or database
    written: datetime  # what it told last
    jobs: int
    since: datetime  # when the first of them would have become a job otherwise


class LastReading(NamedTuple):
    """What became of reading an entry of `source` before rounds."""

    ended: datetime | None  # None: never read
    succeeded: datetime | None  # the last time that all of it could be read
    failing_since: datetime | None
    trouble: str = ""  # of the last reading
    damaged: tuple[str, ...] = ()  # archives that the last reading passed over
    bad_lines: int = 0  # were set aside
    awaited: tuple[AwaitedCe, ...] = ()
    notices: tuple[str, ...] = ()  # what is wrong with the source as a whole, and what to do


class DatabaseEntry(NamedTuple):
    """An entry of `source` whose databases rounds read in place, as A-REX's."""

    name: str
    type: str  # a name of SOURCES
    options: object  # of its plug-in


class SourcePlugin(Protocol):
    """A module in this room: its options (a frozen dataclass) and a way to make it live.

    It may also offer

    - `database_paths(options, environment)`, which names its files, and `names(options, file)`,
      which tells whether it would name this one if it were there;
    - `writing_order(source, environment)`, a context manager of one `WritingOrder` a database,
      where jobs are known in the order in which their ends were written.
    """

    Options: type

    def create(
        self, options: object, environment: Mapping[str, str], *, lock_wait_s: float | None = None
    ) -> Source:
        """`lock_wait_s` is how long a writer is waited for at most, whatever the options say."""
