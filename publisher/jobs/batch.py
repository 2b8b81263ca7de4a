"""A batch system's part of the job store, for its importer: runs, and its own tables.

What an importer does in one transaction (runs, how far files were read, lines set aside) is stored
whole or not at all. In its statements `source_number()` is the source's number.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

from publisher.jobs.store import BEGIN_AT, GONE_FOR, PUT, JobStore
from publisher.jobs.tables.batch_runs import BatchRuns, LinkState, job_digest
from publisher.jobs.tables.columns import VALUES, Row, stored
from publisher.model.job import JobId, JobRecord

_VALUES: Final = ", ".join(VALUES)
_HIDE: Final = f"""INSERT INTO batch_run (run, source, record_id, state, is_own, ce_runs, {_VALUES})
VALUES ({", ".join("?" * (6 + len(VALUES)))})
ON CONFLICT (run) DO UPDATE SET record_id = excluded.record_id,
    state = CASE WHEN state >= 2 THEN 3 ELSE 0 END,
    {", ".join(f"{name} = excluded.{name}" for name in VALUES)}"""
_RENAME: Final = "UPDATE OR REPLACE batch_run SET run = ? WHERE run = ?"
_NAME: Final = "INSERT OR IGNORE INTO other_number VALUES (?, ?, ?)"
_REMOVE_OF_JOB: Final = "DELETE FROM {} WHERE substr(run, 5, 7) = ? AND job_id = ? AND source = ?"
# The batch system has corrected what the key is made of, such as the submission time.
_REPLACED: Final = f"""UPDATE job SET gone = {GONE_FOR}
WHERE substr(run, 5, 7) = ? AND run <> ? AND source = ? AND job_id = ? AND NOT gone"""

_PRUNE: Final = """
DELETE FROM job WHERE change IN (SELECT change FROM job WHERE ended_at < ? LIMIT 5000)"""
# Whose a run of a batch system is must be known (`LinkState`) before it goes.
_PRUNE_OTHERS: Final = (
    "DELETE FROM skipped WHERE ended_at < ?",
    "DELETE FROM batch_run WHERE state = 2 AND ended_at < ?",
)
_PRUNE_NUMBERS: Final = """
DELETE FROM other_number
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.run = other_number.run)
    AND NOT EXISTS (SELECT 1 FROM batch_run AS b WHERE b.run = other_number.run)"""
_PRUNED: Final = "UPDATE source SET pruned_at = ?"
_COUNTED: Final = """SELECT (SELECT count(*) FROM job WHERE {0})
    + (SELECT count(*) FROM batch_run WHERE {0} AND state IN (0, 1, 2, 3))"""
_ENDED: Final = _COUNTED.format("ended_at >= ?1 AND ended_at < ?2 AND source = source_number()")
_COUNT: Final = _COUNTED.format("source = source_number()")
# Which of two runs that claim one JobID stays: the later end, then the greater numbers.
_WEIGHT: Final = (
    *("ended_at", "wall_s", "cpu_user_s", "cpu_kernel_s", "memory_kib", "virtual_memory_kib"),
    *("node_count", "exit_code", "submitted_at"),
)
_WEIGHTS: Final = tuple(map(JobRecord._fields.index, _WEIGHT))


class PutRuns(NamedTuple):
    """How many runs became jobs, changed as jobs, and are hidden."""

    inserted: int = 0
    updated: int = 0
    hidden: int = 0


class SourceJobs:
    """The part of one batch system. Every method raises LedgerError."""

    def __init__(
        self, store: JobStore, name: str, tables: str = "", *, has_ces: bool = False
    ) -> None:
        """`tables` are statements that make the system's own tables where they are not there.

        `has_ces`: CEs submit to it, so that runs are hidden until they are linked.
        """
        self.name = name
        self.path: Path = store.path
        self.connection: sqlite3.Connection = store.source_tables(name, tables)
        self._store = store
        self._hidden = BatchRuns(store)
        self._has_ces = has_ces
        self._number = store.number_of(name)

    def transaction(self) -> AbstractContextManager[None]:
        """Store all that is done inside, or nothing."""
        return self._store.transaction()

    def put(
        self,
        jobs: Sequence[JobRecord],
        *,
        replace: bool = False,
        file: int | None = None,
        numbers: Callable[[JobRecord], Sequence[str]] | None = None,
    ) -> PutRuns:
        """Store runs, inside a transaction; return what became of them.

        Without `replace` the greater of two that claim one JobID stays, so that the order of files
        does not matter. `file` is the number of the file in which they stood, where one has all.
        `numbers` gives those by which a CE may know a run; without, it is the local id.
        """
        jobs = self._store.not_closed(jobs)
        ids = [job.job_id for job in jobs]
        own = self._own(ids)
        hidden = self._hidden.of_jobs(self.name, ids)
        stored_before = {**own, **{job_id: one.job for job_id, one in hidden.items()}}
        known = dict(stored_before)
        put: dict[str, JobRecord] = {}
        is_hidden = {one for one in ids if one in hidden or (self._has_ces and one not in own)}
        updated = 0
        for job in jobs:
            before = known.get(job.job_id)
            if before is None or _wins(job, before, replace=replace):
                known[job.job_id] = put[job.job_id] = job
                updated += before is not None and job.job_id not in is_hidden
        seen = [job for job_id, job in put.items() if job_id not in is_hidden]
        self._put_seen(seen, own, file or 0)
        self._hide([put[one] for one in put if one in is_hidden], stored_before, file or 0)
        if self._has_ces and numbers is not None:
            self._name(put.values(), numbers)
        inserted = sum(job.job_id not in own for job in seen)
        return PutRuns(inserted, updated, len(is_hidden))

    def _put_seen(
        self, jobs: Sequence[JobRecord], known: Mapping[str, JobRecord], file: int
    ) -> None:
        if not jobs:
            return
        change = self._store.last_change()
        rows = [self._row(at, job, file) for at, job in enumerate(jobs, change + 1)]
        try:
            self.connection.executemany(PUT, rows)
        except UnicodeEncodeError:
            self.connection.executemany(PUT, map(stored, rows))
        change += len(rows)
        for job in jobs:
            before = known.get(job.job_id)
            if before is not None and before.run_key != job.run_key:
                run, named = job.run_key, stored((job.job_id,))
                of_run = run, run, change, run[4:11], run, self._number, *named
                self.connection.execute(_REPLACED, of_run)
        self._store.advance(change)

    def _hide(self, jobs: Sequence[JobRecord], known: Mapping[str, JobRecord], file: int) -> None:
        rows = []
        for job in jobs:
            before = known.get(job.job_id)
            if before is not None and before.run_key != job.run_key:
                self.connection.execute(_RENAME, (job.run_key, before.run_key))
            row = self._row(0, job, file)
            rows.append(stored((*row[1:4], int(LinkState.NEW), False, b"", *row[5:])))
        self.connection.executemany(_HIDE, rows)

    def _name(
        self, jobs: Iterable[JobRecord], numbers: Callable[[JobRecord], Sequence[str]]
    ) -> None:
        others = [
            (self._number, number, job.run_key)
            for job in jobs
            for number in numbers(job)
            if number != job.local_id and number.isascii()
        ]
        self.connection.executemany(_NAME, others)

    def _row(self, change: int, job: JobRecord, file: int) -> Row:
        return self._store.row(
            change, self._number, job._replace(row=job.row._replace(record_id=file))
        )

    def take_back(self, job_ids: Iterable[str]) -> None:
        """Delete jobs that turned out to be none, inside a transaction."""
        self._remove(job_ids)

    def jobs(self, job_ids: Iterable[str]) -> Mapping[str, JobRecord]:
        """Return those of these runs that are there, hidden or not, by JobID."""
        ids = list(job_ids)
        hidden = self._hidden.of_jobs(self.name, ids)
        return {**self._own(ids), **{job_id: one.job for job_id, one in hidden.items()}}

    def _own(self, job_ids: Iterable[str]) -> Mapping[str, JobRecord]:
        found = self._store.of_jobs(map(JobId, job_ids))
        return {job.job_id: job for job in found if job.row.database == self.name}

    def with_local_ids(self, local_ids: Sequence[str]) -> list[JobRecord]:
        """Return its runs with these ids in the batch system, hidden or not."""
        found = self._hidden.of_numbers(local_ids, [self.name])
        runs = [one.job for runs in found.values() for one in runs]
        return [job for job in runs if job.local_id in local_ids]

    def ended_between(self, begin: int, end: int) -> int:
        """Return how many runs ended in [begin, end)."""
        return self._ask(_ENDED, begin, end)

    def count(self) -> int:
        """Return how many runs it has."""
        return self._ask(_COUNT)

    def _remove(self, job_ids: Iterable[str]) -> int:
        rows = [(job_digest(one), *stored((one,)), self._number) for one in job_ids]
        if not rows:
            return 0
        for table in ("batch_run", "job"):
            removed = self.connection.executemany(_REMOVE_OF_JOB.format(table), rows).rowcount
        return removed

    def _ask(self, question: str, *values: Any) -> int:
        return int(self.connection.execute(question, values).fetchone()[0])


def prune(store: JobStore, before: int, at: int) -> int:
    """Delete what ended before then, and note when that was; return how many jobs it were.

    Raises: LedgerError.
    """
    jobs = 0
    while True:
        with store.transaction():
            deleted = store.connection.execute(_PRUNE, (before,)).rowcount
        if not deleted:
            break
        jobs += deleted
    with store.transaction():
        for statement in _PRUNE_OTHERS:
            store.connection.execute(statement, (before,))
        store.connection.execute(_PRUNE_NUMBERS)
        store.connection.execute(_PRUNED, (at,))
        store.connection.execute(BEGIN_AT, (before,))
    return jobs


def _wins(job: JobRecord, before: JobRecord, *, replace: bool) -> bool:
    if replace:
        return job != before._replace(row=job.row)
    return _weight(job) > _weight(before)


def _weight(job: JobRecord) -> list[tuple[bool, Any]]:
    """Return what is compared; what is known outweighs what is not."""
    values = [job[at] for at in _WEIGHTS]
    return [*((value is not None, value or 0) for value in values), (bool(job.hosts), job.hosts)]
