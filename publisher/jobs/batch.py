"""A batch system's part of the job store, for its importer: jobs, and the tables beside them.

What an importer does in one transaction (jobs, how far files were read, lines set aside, what
waits) is stored whole or not at all. In its statements `source_number()` is the source's number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from publisher.jobs.store import JobStore
from publisher.model.job import JobId, JobRecord
from publisher.model.time import moment

_DIGEST_BYTES: Final = 12
_ANY_PRUNED: Final = "SELECT EXISTS (SELECT 1 FROM ImportPruned WHERE Source = source_number())"
_IS_PRUNED: Final = """SELECT EXISTS (
    SELECT 1 FROM ImportPruned WHERE Source = source_number() AND Digest = ?
)"""
_PRUNE: Final = "INSERT OR IGNORE INTO ImportPruned VALUES (source_number(), ?)"
_COUNT_PRUNED: Final = """INSERT INTO ImportPrunedMonth VALUES (source_number(), ?, 1)
ON CONFLICT DO UPDATE SET Jobs = Jobs + 1"""
_ENDED: Final = """SELECT count(*) FROM job
WHERE ended_at >= ? AND ended_at < ? AND source = source_number()"""
_COUNT: Final = "SELECT count(*) FROM job WHERE source = source_number()"
# Which of two runs that claim one JobID stays: the later end, then the greater numbers.
_WEIGHT: Final = (
    *("ended_at", "wall_s", "cpu_user_s", "cpu_kernel_s", "memory_kib", "virtual_memory_kib"),
    *("node_count", "exit_code", "submitted_at"),
)
_WEIGHTS: Final = tuple(map(JobRecord._fields.index, _WEIGHT))


class SourceJobs:
    """The part of one batch system. Every method raises LedgerError."""

    def __init__(self, store: JobStore, name: str, tables: str = "") -> None:
        """`tables` are statements that make the system's own tables where they are not there."""
        self.name = name
        self.path: Path = store.path
        self.connection: sqlite3.Connection = store.source_tables(name, tables)
        self._store = store

    def transaction(self) -> AbstractContextManager[None]:
        """Store all that is done inside, or nothing."""
        return self._store.transaction()

    def put(
        self, jobs: Sequence[JobRecord], *, replace: bool = False, file: int | None = None
    ) -> tuple[int, int]:
        """Store runs, inside a transaction; return how many are new, and how many changed.

        Without `replace` the greater of two that claim one JobID stays, so that the order of files
        does not matter. `file` is the number of the file in which they stood, where one has all.
        """
        jobs = self._without_pruned(jobs)
        known: dict[str, JobRecord] = dict(self.jobs(job.job_id for job in jobs))
        stored = dict(known)
        put: dict[str, JobRecord] = {}
        updated = 0
        for job in jobs:
            before = known.get(job.job_id)
            if before is not None and not _wins(job, before, replace=replace):
                continue
            known[job.job_id] = put[job.job_id] = job
            updated += before is not None
        if put:
            self._store.put_runs(self.name, list(put.values()), stored, file or 0)
        return len(put.keys() - stored.keys()), updated

    def take_back(self, job_ids: Iterable[str]) -> None:
        """Delete jobs that turned out to be none, inside a transaction."""
        self._store.remove_jobs(self.name, map(JobId, job_ids))

    def prune(self, jobs: Sequence[JobRecord]) -> int:
        """Delete jobs, and keep that they were read and when they ended; return how many.

        Inside a transaction.
        """
        pruned = self._store.remove_jobs(self.name, [job.job_id for job in jobs])
        self.remember_pruned([job.job_id for job in jobs])
        months = [(f"{moment(job.ended_at):%Y-%m}",) for job in jobs]
        self.connection.executemany(_COUNT_PRUNED, months)
        return pruned

    def remember_pruned(self, job_ids: Iterable[str]) -> None:
        """Keep that these runs were read and shall not come again, inside a transaction."""
        self.connection.executemany(_PRUNE, [(_digest_of(job_id),) for job_id in job_ids])

    def jobs(self, job_ids: Iterable[str]) -> Mapping[str, JobRecord]:
        """Return those of these jobs that are there, by JobID."""
        found = self._store.of_jobs(map(JobId, job_ids))
        return {job.job_id: job for job in found if job.row.database == self.name}

    def with_local_ids(self, local_ids: Sequence[str]) -> list[JobRecord]:
        """Return its jobs with these ids in the batch system."""
        found = self._store.with_local_ids(local_ids)
        return [job for job in found if job.row.database == self.name]

    def ended_between(self, begin: int, end: int) -> int:
        """Return how many jobs ended in [begin, end)."""
        return self._ask(_ENDED, begin, end)

    def count(self) -> int:
        """Return how many jobs it has."""
        return self._ask(_COUNT)

    def _without_pruned(self, jobs: Sequence[JobRecord]) -> Sequence[JobRecord]:
        """Leave out pruned runs, which were read once, and count."""
        if not self._ask(_ANY_PRUNED):
            return jobs
        return [job for job in jobs if not self._ask(_IS_PRUNED, _digest_of(job.job_id))]

    def _ask(self, question: str, *values: Any) -> int:
        return int(self.connection.execute(question, values).fetchone()[0])


def _wins(job: JobRecord, before: JobRecord, *, replace: bool) -> bool:
    if replace:
        return job != before._replace(row=job.row)
    return _weight(job) > _weight(before)


def _weight(job: JobRecord) -> list[tuple[bool, Any]]:
    """Return what is compared; what is known outweighs what is not."""
    values = [job[at] for at in _WEIGHTS]
    return [*((value is not None, value or 0) for value in values), (bool(job.hosts), job.hosts)]


def _digest_of(job_id: str) -> bytes:
    content = job_id.encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
