"""Which numbers of the batch system the CEs in front of it have had, and which runs have those.

A-REX forgets the number of a run when it restarts the job. So each number that a CE has is written
down in the table `ArcSpan` before the job is published, and that of each run that was delivered
without that (`delivered.py`). The ledger also has keys of the batch system's own jobs, which stay
such when this database is made anew: `OwnDelivered`.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from publisher.model.job import RunKey, run_key
from publisher.sources.importers import ImportedJob

# Numbers of the batch system come again after months or years; A-REX notices an end some minutes
# later, at times hours.
APART_S: Final = 86_400

NUMBER_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS ArcSpan (
        LocalJobID TEXT NOT NULL, Submitted INTEGER NOT NULL, Ended INTEGER NOT NULL,
        PRIMARY KEY (LocalJobID, Ended)
    ) WITHOUT ROWID;

    -- What else a CE may call a run that is a job in AAR.
    CREATE TABLE IF NOT EXISTS ArcNumber (
        LocalJobID TEXT NOT NULL, JobID TEXT NOT NULL, PRIMARY KEY (LocalJobID, JobID)
    ) WITHOUT ROWID;

    -- Keys of delivered runs that were jobs of the batch system, and are none in this database.
    CREATE TABLE IF NOT EXISTS OwnDelivered (Key BLOB PRIMARY KEY) WITHOUT ROWID;
"""
_KEEP_SPAN: Final = "INSERT OR IGNORE INTO ArcSpan VALUES (?, ?, ?)"
_KEEP_OWN: Final = "INSERT OR IGNORE INTO OwnDelivered VALUES (?)"
_HAS_OWN: Final = "SELECT EXISTS (SELECT 1 FROM OwnDelivered)"
_IS_OWN: Final = "SELECT EXISTS (SELECT 1 FROM OwnDelivered WHERE Key = ?)"
_SPANS: Final = """
    SELECT LocalJobID, Submitted, Ended FROM ArcSpan
    WHERE LocalJobID IN (SELECT value FROM json_each(:numbers))
"""
_OWN: Final = """
    SELECT LocalJobID, JobID, StartTime, EndTime FROM AAR
    WHERE LocalJobID IN (SELECT value FROM json_each(:numbers))
    UNION
    SELECT ArcNumber.LocalJobID, JobID, StartTime, EndTime FROM ArcNumber JOIN AAR USING (JobID)
    WHERE ArcNumber.LocalJobID IN (SELECT value FROM json_each(:numbers))
"""
_OF_NUMBERS: Final = """
    SELECT LocalJobID, JobID, StartTime, EndTime, Adds FROM ArcRun
    WHERE LocalJobID IN (SELECT value FROM json_each(:numbers))
"""

Run = tuple[str, int, int]  # the batch system's number, start and end as epoch seconds


class StoredRun(NamedTuple):
    """A run that a CE has or may yet claim, as the table holds it."""

    job_id: str
    started_at: int
    ended_at: int
    adds: str = ""
    own: bool = False  # or one that is a job of the batch system


def remember(connection: sqlite3.Connection, runs: Iterable[Run]) -> None:
    """That CEs have had these runs, which are over, inside a transaction."""
    connection.executemany(_KEEP_SPAN, runs)


def remember_own(connection: sqlite3.Connection, keys: Iterable[RunKey]) -> None:
    """That targets have these runs as jobs of the batch system, inside a transaction."""
    connection.executemany(_KEEP_OWN, [(key,) for key in keys])


def delivered_as_own(connection: sqlite3.Connection, runs: Iterable[ImportedJob]) -> set[str]:
    """Return the JobIDs of those of these runs. Raises: sqlite3.Error."""
    if not connection.execute(_HAS_OWN).fetchone()[0]:
        return set()
    keys = ((job.job_id, run_key(job.submitted_at, job.job_id, job.local_id)) for job in runs)
    return {job_id for job_id, key in keys if connection.execute(_IS_OWN, (key,)).fetchone()[0]}


def spans_of(connection: sqlite3.Connection, numbers: Sequence[str]) -> list[Run]:
    """What is remembered of these numbers. Raises: sqlite3.Error."""
    try:
        return connection.execute(_SPANS, {"numbers": json.dumps(numbers)}).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):  # an earlier version read into it last
            return []
        raise


def own_runs(connection: sqlite3.Connection, numbers: Sequence[str]) -> dict[str, list[StoredRun]]:
    """The jobs of the batch system that a CE may know by these numbers. Raises: sqlite3.Error."""
    found: dict[str, list[StoredRun]] = defaultdict(list)
    asked = {"numbers": json.dumps(numbers)}
    for number, job_id, started_at, ended_at in connection.execute(_OWN, asked):
        found[number].append(StoredRun(job_id, started_at, ended_at, own=True))
    return found


def runs_of_numbers(
    connection: sqlite3.Connection, numbers: Sequence[str], *, joins: bool
) -> dict[str, list[StoredRun]]:
    """The runs that a CE may know by these numbers; with `joins` also those that are no own jobs.

    Raises: sqlite3.Error.
    """
    asked = {"numbers": json.dumps(numbers)}
    try:
        found = own_runs(connection, numbers)
        rows = connection.execute(_OF_NUMBERS, asked).fetchall() if joins else ()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):  # nothing was read into it since CEs are looked up
            return {}
        raise
    for number, *run in rows:
        found[number].append(StoredRun(*run))
    return found


def overlap(span: tuple[int, int], started_at: int, ended_at: int) -> bool:
    """A CE has a job from before it is submitted to after its end, and as long as it saw none."""
    submitted, ended = span
    return submitted - APART_S <= started_at and (not ended or ended_at <= ended + APART_S)
