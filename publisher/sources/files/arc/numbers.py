"""Which numbers of the batch system the CEs in front of it have had, and which runs have those.

A-REX forgets the number of a run when it restarts the job. So each number that a CE has is written
down in the table `ArcSpan` before the job is published, and that of each run that was delivered
without that (`delivered.py`). The ledger also has keys of the batch system's own jobs, which stay
such when the store is made anew: `OwnDelivered`.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from publisher.model.job import JobRecord, RunKey

# Numbers of the batch system come again after months or years; A-REX notices an end some minutes
# later, at times hours.
APART_S: Final = 86_400

_KEEP_SPAN: Final = "INSERT OR IGNORE INTO ArcSpan VALUES (source_number(), ?, ?, ?)"
_KEEP_OWN: Final = "INSERT OR IGNORE INTO OwnDelivered VALUES (source_number(), ?)"
_HAS_OWN: Final = "SELECT EXISTS (SELECT 1 FROM OwnDelivered WHERE Source = source_number())"
_IS_OWN: Final = """
    SELECT EXISTS (SELECT 1 FROM OwnDelivered WHERE Source = source_number() AND Key = ?)
"""
_SPANS: Final = """
    SELECT LocalJobID, Submitted, Ended FROM ArcSpan
    WHERE Source = source_number() AND LocalJobID IN (SELECT value FROM json_each(:numbers))
"""
_NAMED_OWN: Final = """
    SELECT LocalJobID, JobID FROM ArcNumber
    WHERE Source = source_number() AND LocalJobID IN (SELECT value FROM json_each(:numbers))
"""
_OF_NUMBERS: Final = """
    SELECT LocalJobID, JobID, StartTime, EndTime, Adds FROM ArcRun
    WHERE Source = source_number() AND LocalJobID IN (SELECT value FROM json_each(:numbers))
"""

Run = tuple[str, int, int]  # the batch system's number, start and end as epoch seconds


class StoredRun(NamedTuple):
    """A run that a CE has or may yet claim, as the table holds it."""

    job_id: str
    started_at: int
    ended_at: int
    adds: str = ""
    own: bool = False  # or one that is a job of the batch system


class SourceRuns(Protocol):
    """What is asked of the jobs of one batch system; `connection` is bound to it."""

    @property
    def connection(self) -> sqlite3.Connection: ...
    def with_local_ids(self, local_ids: Sequence[str]) -> list[JobRecord]:
        """Return its jobs with these ids in the batch system."""

    def jobs(self, job_ids: Iterable[str]) -> Mapping[str, JobRecord]:
        """Return those of these jobs that are there, by JobID."""


def remember(connection: sqlite3.Connection, runs: Iterable[Run]) -> None:
    """That CEs have had these runs, which are over, inside a transaction."""
    connection.executemany(_KEEP_SPAN, runs)


def remember_own(connection: sqlite3.Connection, keys: Iterable[RunKey]) -> None:
    """That targets have these runs as jobs of the batch system, inside a transaction."""
    connection.executemany(_KEEP_OWN, [(key,) for key in keys])


def delivered_as_own(connection: sqlite3.Connection, runs: Iterable[JobRecord]) -> set[str]:
    """Return the JobIDs of those of these runs. Raises: sqlite3.Error."""
    if not connection.execute(_HAS_OWN).fetchone()[0]:
        return set()
    keys = ((job.job_id, job.run_key) for job in runs)
    return {job_id for job_id, key in keys if connection.execute(_IS_OWN, (key,)).fetchone()[0]}


def spans_of(connection: sqlite3.Connection, numbers: Sequence[str]) -> list[Run]:
    """What is remembered of these numbers. Raises: sqlite3.Error."""
    return connection.execute(_SPANS, {"numbers": json.dumps(numbers)}).fetchall()


def own_runs(store: SourceRuns, numbers: Sequence[str]) -> dict[str, list[StoredRun]]:
    """The jobs of the batch system that a CE may know by these numbers."""
    found: dict[str, list[StoredRun]] = defaultdict(list)
    for job in store.with_local_ids(numbers):
        found[job.local_id].append(_own(job))
    asked = {"numbers": json.dumps(numbers)}
    named = store.connection.execute(_NAMED_OWN, asked).fetchall()
    jobs = store.jobs(job_id for _, job_id in named)
    for number, job_id in named:
        if job_id in jobs:
            found[number].append(_own(jobs[job_id]))
    return found


def _own(job: JobRecord) -> StoredRun:
    return StoredRun(job.job_id, job.started_at or 0, job.ended_at, own=True)


def runs_of_numbers(
    store: SourceRuns, numbers: Sequence[str], *, joins: bool
) -> dict[str, list[StoredRun]]:
    """The runs that a CE may know by these numbers; with `joins` also those that are no jobs."""
    found = own_runs(store, numbers)
    if joins:
        asked = {"numbers": json.dumps(numbers)}
        for number, *run in store.connection.execute(_OF_NUMBERS, asked).fetchall():
            found[number].append(StoredRun(*run))
    return found


def overlap(span: tuple[int, int], started_at: int, ended_at: int) -> bool:
    """A CE has a job from before it is submitted to after its end, and as long as it saw none."""
    submitted, ended = span
    return submitted - APART_S <= started_at and (not ended or ended_at <= ended + APART_S)
