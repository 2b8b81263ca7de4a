"""The interface of importers: read files, store jobs, and report on every record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from publisher.model.errors import RecordError, SourceError, gravest
from publisher.model.job import JobRecord

if TYPE_CHECKING:
    from publisher.sources.base import (
        BatchEntry,
        DatabaseEntry,
        ImportedFrom,
        LastReading,
        Source,
        WritingOrder,
    )


BoundConnection = Connection  # on which `source_number()` is the number of a source


Numbers = Callable[[JobRecord], Sequence[str]]
"""Gives the numbers by which a CE may know a run."""


class SourceStore(Protocol):
    """The part of the job store that one batch system has, for its importer.

    In statements on `connection`, `source_number()` is the number of the source, which rows of its
    tables begin with. Changes are made inside a transaction. All methods raise LedgerError.
    """

    name: str
    path: Path  # of the store
    connection: Connection

    def transaction(self) -> AbstractContextManager[None]:
        """Store all that is done inside, or nothing."""

    def put(
        self,
        jobs: Sequence[JobRecord],
        *,
        replace: bool = False,
        file: int | None = None,
        numbers: Numbers | None = None,
    ) -> tuple[int, int, int]:
        """Store runs; return how many are new jobs, how many changed, and how many are hidden.

        A run is hidden where a CE may have it, until linking has decided. Without `replace` the
        greater of two that claim one JobID stays. `file` is the number of the file in which they
        stood, where one has all. Without `numbers` a CE knows a run by its local id.
        """

    def take_back(self, job_ids: Iterable[str]) -> None:
        """Delete jobs that turned out to be none."""

    def jobs(self, job_ids: Iterable[str]) -> Mapping[str, JobRecord]:
        """Return those of these jobs that are there, by JobID."""

    def with_local_ids(self, local_ids: Sequence[str]) -> list[JobRecord]:
        """Return its jobs with these ids in the batch system."""

    def ended_between(self, begin: int, end: int) -> int:
        """Return how many jobs ended in [begin, end), in epoch seconds."""

    def count(self) -> int:
        """Return how many jobs it has."""


KEPT_BYTES: Final = 4096  # of a line that is set aside
DIGEST_BYTES: Final = 16


class BadLine(NamedTuple):
    """A line that cannot be understood; `line` is its beginning."""

    path: str
    offset: int
    length: int
    reason: str
    line: bytes
    digest: bytes  # of the whole line: the same line is set aside once, wherever it is met again

    @classmethod
    def of(
        cls, path: Path, offset: int, length: int, reason: str, content: bytes, digest: bytes = b""
    ) -> BadLine:
        """`digest` is needed where `content` is not the whole line."""
        digest = digest or blake2b(content, digest_size=DIGEST_BYTES).digest()
        return cls(str(path), offset, length, reason, content[:KEPT_BYTES], digest)


class StoredJobs(NamedTuple):
    """What became of some jobs, and of the records that they were made of."""

    inserted: int
    updated: int
    unchanged: int = 0  # they were there already
    hidden: int = 0  # an ARC CE has them, or may have
    merged: int = 0  # records of parallel tasks that went into the row of their job
    incomplete: int = 0  # records whose CPU time is not all of it


_SHOWN_BAD: Final = 100
PUBLISHED: Final = "an ARC CE publishes it"  # why a job is skipped

Watch = Callable[[int], None]
"""Called with how many records more have been read, after each step."""


def unwatched(more: int) -> None:
    """Nobody watches."""


def never_stopped(seconds: float) -> bool:
    """Nobody asks for a stop, and nobody waits."""
    return False


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """What one run did; `held`, `orphans` and `bad_kept` are what the source has after it."""

    importer: str
    database: Path
    files: int = 0
    lines: int = 0  # records, good or bad; not comments, empty lines and envelopes around them
    imported: int = 0
    updated: int = 0  # rows that changed: a part of the job came later
    merged: int = 0  # records of parallel tasks, or steps, that went into the row of their job
    duplicates: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # records by reason
    bad: int = 0  # lines set aside for the first time
    bad_lines: list[BadLine] = field(default_factory=list)  # the first of them
    cancelled: int = 0  # jobs that somebody cancelled while they ran
    incomplete: int = 0  # records whose CPU time is not all of it
    held: int = 0  # what waits: records of parallel tasks for that of their job, jobs for their end
    orphans: int = 0  # those among them that wait for too long
    orphans_are: tuple[str, str] = ("record of a parallel task", "records of parallel tasks")
    bad_kept: int = 0  # lines set aside, of which the store has all
    notes: list[str] = field(default_factory=list)  # what an administrator must know
    troubles: list[str] = field(default_factory=list)  # files not read to the end, and why
    damaged: list[str] = field(default_factory=list)  # those of them that are of a damaged archive
    watch: Watch = unwatched

    def count_lines(self, more: int) -> None:
        """So many records were written down with what they are."""
        self.lines += more
        self.watch(more)

    def count_jobs(self, stored: StoredJobs) -> None:
        """These jobs were written, or not."""
        self.imported += stored.inserted
        self.updated += stored.updated
        self.duplicates += stored.unchanged
        self.merged += stored.merged
        self.incomplete += stored.incomplete

    def count_bad(self, lines: Sequence[BadLine]) -> None:
        """These lines were set aside for the first time."""
        self.bad += len(lines)
        self.bad_lines += lines[: _SHOWN_BAD - len(self.bad_lines)]

    @property
    def failures(self) -> list[str]:
        """The troubles without damaged archives, which a later round may never find whole."""
        return [trouble for trouble in self.troubles if trouble not in self.damaged]

    @property
    def exit_status(self) -> int:
        unread = SourceError.exit_status if self.troubles else 0
        return gravest([unread, RecordError.exit_status if self.bad else 0])


class Retried(NamedTuple):
    """What became of lines that had been set aside."""

    tried: int
    still_bad: int
    gone: Mapping[str, int]  # files that are not there any more, with their lines
    report: ImportReport


class ImportRule(NamedTuple):
    """How a field of the job record came to be what it is when the job was imported."""

    field: str
    rule: str


class Importer(Protocol):
    """Reads another system's accounting.

    Idempotent, resumable, safe beside others: each step is one transaction.
    """

    def run(
        self, paths: Sequence[Path], store: SourceStore, now: datetime, watch: Watch = unwatched
    ) -> ImportReport:
        """Read what is new in these files, or without any where the options say.

        One file's trouble never stops another. Raises: UsageError without anything to read,
        LedgerError when the store cannot be written.
        """

    def forget_file(self, connection: Connection, path: Path) -> None:
        """Forget what is kept of a file beside how far it was read, as it is to be read again.

        Inside a transaction.
        """

    def ask_again(self, connection: Connection, path: Path, now: datetime) -> bool:
        """Whether the next run without files asks once more for what a program printed then.

        Inside a transaction.
        """

    @property
    def mapped_vos(self) -> frozenset[str]:
        """The VOs that map files give to jobs."""

    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        """How the fields of a job that it imported came about, by the rules of today."""

    def record_key(self, job: JobRecord) -> str:
        """Return what tells people of which of its records a job was made."""


class ImporterPlugin(Protocol):
    """A module in this room: its options (a frozen dataclass) and a way to make it live.

    It may also have `TABLES`: statements that make what it keeps beside jobs, where it is not
    there.
    """

    Options: type
    SUMMARY: str  # of `import NAME`, for its help
    PATHS: str  # what it reads, for its help

    def create(
        self,
        options: object,
        environment: Mapping[str, str],
        wait: Callable[[float], bool] = never_stopped,
    ) -> Importer:
        """`wait(seconds)` waits, and says whether a stop was asked for."""


class BatchSystems(Protocol):
    """The batch systems whose accounting a site reads into databases. It sends nothing.

    An entry is a block of `source`.
    """

    @property
    def entries(self) -> Sequence[BatchEntry]: ...

    def importer(self, entry: BatchEntry) -> Importer:
        """Raises: ConfigError."""

    def read(
        self, entry: BatchEntry, store: SourceStore, check: Callable[[], object]
    ) -> ImportReport:
        """Read what is new.

        `check` raises what keeps it from being read; that is kept too. Raises: PublisherError.
        """

    def other_cluster(self, entry: BatchEntry, connection: BoundConnection) -> str:
        """Return how a source calls the cluster of which it has read files that an entry names.

        '' where it has read none, or calls it as the entry does.
        """

    def retry(self, entry: BatchEntry, store: SourceStore) -> Retried:
        """Read the files with bad lines once more. Raises: PublisherError."""

    def last_reading(self, connection: BoundConnection) -> LastReading:
        """Return what became of the last reading of the source that a connection is bound to."""

    def bad_lines(self, connection: BoundConnection, limit: int) -> Sequence[BadLine]:
        """Return the first lines of that source that were set aside."""

    def imported_from(self, entry: BatchEntry, job: JobRecord) -> ImportedFrom:
        """Return the record that a job was made of. Raises: ConfigError, LedgerError."""


class Accounting(Protocol):
    """The accounting data of a site, as its source reads it. It writes nothing there.

    Whoever opens a source closes it.
    """

    @property
    def entries(self) -> Sequence[DatabaseEntry]: ...
    @property
    def batch_systems(self) -> frozenset[str]:
        """The names of those that are configured."""

    def read_as(self) -> str:
        """Return a digest of the options under which it is read."""

    def open(self, *, lock_wait_s: float | None = None) -> Source:
        """A writer is waited for at most `lock_wait_s`. Raises: SourceError."""

    def writing_order(
        self, source: Source
    ) -> AbstractContextManager[Sequence[WritingOrder]] | None:
        """One a database, opened; None where the order in which jobs were written is unknown."""

    def joined_from(self, job: JobRecord) -> Sequence[ImportRule]:
        """Where each value came from that a batch system's run joined to a job of A-REX.

        Raises: LedgerError.
        """

    def files(self, entry: DatabaseEntry) -> Sequence[str]:
        """Raises: SourceError when one that the configuration names is missing."""

    def names(self, entry: DatabaseEntry, file: str) -> bool:
        """Whether the entry names this file, be it there or not."""

    def open_file(self, path: str) -> Source:
        """The jobs of one database, also of one that `source` does not name any more.

        Raises: SourceError.
        """
