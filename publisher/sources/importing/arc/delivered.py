"""What was delivered of the CEs' jobs, held against what the CEs have now, as they forget numbers.

Jobs are delivered without this database knowing of it: before it was made, or by the other host of
a pair. So whoever reads the batch system first asks the ledger what was delivered since it was
asked last. A run that still stands in its row is remembered by its number. Where the row has
another number by now, or is gone, the run is remembered by the digest that the ledger has.

    delivered since:   row 7: job a, number 4711 | row 8: job b, number 4712 | row 9: job c, 4713
    A-REX has now:     row 7: job a, number 4711 | row 8: job b, number 5000 |
    remembered:        4711                      | the digest of 4712        | that of 4713

Jobs of the batch system itself that were delivered, and are not here, are remembered by their keys:
they stay its own, though A-REX tells of them by now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from publisher.model.job import JOB_DIGEST_BYTES, JobKey, job_keys, run_digest
from publisher.model.message import PlacedRuns
from publisher.model.text import arex_unescape
from publisher.sources.base import NAMES_OF_AREX
from publisher.sources.importers import DeliveredSince
from publisher.sources.importing.arc.jobs import READ_AT_ONCE, ArcJobs
from publisher.sources.importing.arc.numbers import (
    Forgotten,
    Run,
    digest_of_number,
    remember,
    remember_forgotten,
    remember_own,
)
from publisher.sources.importing.database import ImportDatabase

_MARK: Final = "DELIVERED_UNTIL"  # a key of DBConfig
_COLUMNS: Final = """
    RecordID, CAST(JobID AS BLOB), CAST(LocalJobID AS BLOB),
    CAST(coalesce(SubmitTime, 0) AS INTEGER)
"""
_AT: Final = "WHERE RecordID IN (SELECT value FROM json_each(:rows))"
_ALL: Final = f"WHERE RecordID > :after ORDER BY RecordID LIMIT {READ_AT_ONCE}"
# Delivered runs that do not stand in their rows any more. OfCe: their database was surely a CE's.
_MISSED: Final = """
    CREATE TEMPORARY TABLE Missed (
        Job BLOB NOT NULL, Run BLOB NOT NULL, Ended INTEGER NOT NULL, OfCe INTEGER NOT NULL,
        PRIMARY KEY (Job, Run, Ended)
    ) WITHOUT ROWID
"""
_MISS: Final = """
    INSERT INTO Missed VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET OfCe = max(OfCe, excluded.OfCe)
"""
_ANY_MISSED: Final = "SELECT EXISTS (SELECT 1 FROM Missed)"
_FOUND: Final = "SELECT Run, Ended FROM Missed WHERE Job = ?"
_FIND: Final = "DELETE FROM Missed WHERE Job = ?"
_GONE: Final = "SELECT Run, Ended FROM Missed WHERE OfCe"
_OWN: Final = """
    SELECT RecordID, JobID, LocalJobID FROM AAR
    WHERE RecordID IN (SELECT value FROM json_each(:rows))
"""


class _CeJob(NamedTuple):
    """A job of a CE as it is today. `is_ours`: it may be of the batch system that is read."""

    record_id: int
    key: JobKey
    number: str
    submitted_at: int
    is_ours: bool


def remember_delivered(accounting: ImportDatabase, arc: ArcJobs, delivered: DeliveredSince) -> int:
    """How many forgotten runs came to be known. Raises: SourceError, LedgerError, Busy."""
    before = accounting.setting(_MARK)
    comparison = _Comparison(accounting, arc)
    with delivered(before) as (until, pages):
        for runs in pages:
            # Names are of batch systems; this one's was another before, if its entry was renamed.
            # Without a name are jobs with ids such as HTCondor's, which A-REX never makes.
            if os.path.isabs(runs.files[0]) and runs.files[0] != str(accounting.path):
                comparison.take(runs)
            else:
                comparison.take_own(runs)
    comparison.look_for_missed()
    if until != before:
        with accounting.transaction():
            accounting.set(_MARK, until)
    return comparison.forgotten


def _is_of_ce(database: str, arc: ArcJobs) -> bool:
    """Whether jobs delivered from a database were surely a CE's, though it may be gone."""
    return database in arc.databases() or os.path.basename(database) in NAMES_OF_AREX


def _jobs_at(arc: ArcJobs, database: str, record_ids: Iterable[int]) -> Mapping[int, _CeJob]:
    if database not in arc.databases():
        return {}
    rows = {"rows": json.dumps(list(record_ids))}
    return {job.record_id: job for job in _jobs(arc, database, _AT, rows)}


def _all_jobs(arc: ArcJobs) -> Iterator[Sequence[_CeJob]]:
    for database in arc.databases():
        jobs = _jobs(arc, database, _ALL, {"after": 0})
        while jobs:
            yield jobs
            jobs = _jobs(arc, database, _ALL, {"after": jobs[-1].record_id})


def _jobs(arc: ArcJobs, database: str, which: str, values: Mapping[str, object]) -> list[_CeJob]:
    rows = arc.ask(database, _COLUMNS, which, values)
    numbers = [_text(row[2]) for row in rows]
    keys = job_keys([_text(row[1]) for row in rows], numbers)
    known = zip(rows, keys, numbers, strict=True)
    return [
        _CeJob(record_id, key, number, submitted_at, bool(is_ours))
        for (record_id, _, _, submitted_at, is_ours), key, number in known
    ]


def _text(stored: bytes | None) -> str:
    """As a `JobRecord` has what A-REX wrote."""
    return arex_unescape((stored or b"").decode("utf-8", "surrogateescape"))


class _Comparison:
    """Each step is one transaction; if it ends before the last one, all is done again."""

    def __init__(self, accounting: ImportDatabase, arc: ArcJobs) -> None:
        self.forgotten = 0
        self._accounting = accounting
        self._arc = arc
        self._connection = accounting.connection
        self._connection.execute(_MISSED)

    def take(self, runs: PlacedRuns) -> None:
        """Delivered runs of one database that is a CE's, or may have been under another name."""
        rows = _jobs_at(self._arc, runs.files[0], runs.record_ids)
        found: list[tuple[_CeJob, JobKey, int]] = []
        missed: list[tuple[bytes, bytes, int, bool]] = []
        is_of_ce = _is_of_ce(runs.files[0], self._arc)
        for key, ended, record_id in zip(runs.keys, runs.ended_at, runs.record_ids, strict=True):
            row, job = rows.get(record_id), key[:JOB_DIGEST_BYTES]
            if row is not None and row.key.startswith(job):
                found.append((row, key, ended))
            else:
                missed.append((job, run_digest(key), ended, is_of_ce))
        with self._accounting.transaction():
            self._keep(found)
            self._connection.executemany(_MISS, missed)

    def take_own(self, runs: PlacedRuns) -> None:
        """Delivered runs of the batch system's own database, or of one that is not known."""
        asked = {"rows": json.dumps(list(runs.record_ids))}
        rows = self._connection.execute(_OWN, asked).fetchall()
        record_ids, job_ids, numbers = zip(*rows, strict=True) if rows else ((), (), ())
        here = dict(zip(record_ids, job_keys(job_ids, numbers), strict=True))
        placed = zip(runs.keys, runs.record_ids, strict=True)
        with self._accounting.transaction():
            remember_own(self._connection, [key for key, place in placed if here.get(place) != key])

    def look_for_missed(self) -> None:
        """In all rows, as they may have other places. What is a CE's and in none, no CE has now."""
        if not self._connection.execute(_ANY_MISSED).fetchone()[0]:
            return
        for rows in _all_jobs(self._arc):
            found = [
                (row, JobKey(row.key[:JOB_DIGEST_BYTES] + run), ended)
                for row in rows
                for run, ended in self._connection.execute(_FOUND, (row.key[:JOB_DIGEST_BYTES],))
            ]
            if found:
                jobs = [(row.key[:JOB_DIGEST_BYTES],) for row, _, _ in found]
                with self._accounting.transaction():
                    self._keep(found)
                    self._connection.executemany(_FIND, jobs)
        with self._accounting.transaction():
            gone: Any = self._connection.execute(_GONE)
            self._forget((digest_of_number(run), ended, ended) for run, ended in gone)

    def _keep(self, found: Sequence[tuple[_CeJob, JobKey, int]]) -> None:
        """Runs of jobs that stand in these rows, under the same number or another one."""
        known: list[Run] = []
        forgotten: list[Forgotten] = []
        for row, key, ended in found:
            if row.is_ours and row.key == key:
                known.append((row.number, row.submitted_at, ended))
            elif row.is_ours:
                digest = digest_of_number(run_digest(key))
                forgotten.append((digest, row.submitted_at, ended))
        remember(self._connection, known)
        self._forget(forgotten)

    def _forget(self, runs: Iterable[Forgotten]) -> None:
        before = self._connection.total_changes
        remember_forgotten(self._connection, runs)
        self.forgotten += self._connection.total_changes - before
