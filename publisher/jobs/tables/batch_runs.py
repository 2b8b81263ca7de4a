"""Runs of batch systems: jobs in the table `job`, and those behind ARC CEs that are hidden.

A run of a system without a CE in front of it is a job at once. Else it stands in the table
`batch_run`, which no question asks, until linking (link.py) has decided whose it is.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any, Final, NamedTuple

from publisher.jobs.reader import StoreReader
from publisher.jobs.store import PUT, PUT_SKIPPED, JobStore, skipped_values
from publisher.jobs.tables.columns import COLUMNS, READ, VALUES, Row, restored, stored
from publisher.model.job import JOB_OF_RUN, Epoch, JobRecord, RunKey, SkippedJob, run_key

# Between a CE's job and its run. Numbers come again after months or years; A-REX notices an end
# some minutes later, at times hours.
APART_S: Final = 86_400
_KEY_BYTES: Final = 15
_ASKED_AT_ONCE: Final = 200  # SQLite before 3.32 takes 999 parameters
_VALUES: Final = ", ".join(VALUES)


class LinkState(IntEnum):
    """Whose a run of a batch system is."""

    NEW = 0  # to be decided: it came, or changed
    WAITS = 1  # a CE may yet claim it
    OF_CE = 2
    CHANGED = 3  # a CE's, with other values than when it was linked
    OWN = 4  # a job of the batch system; never in `batch_run`


class BatchRun(NamedTuple):
    """A run of a batch system.

    `is_own`: it was delivered as a job of the batch system. `ce_runs` are the keys, one behind the
    other, of runs that were delivered as CEs' jobs and have its number and time.
    """

    job: JobRecord
    state: LinkState
    is_own: bool = False
    ce_runs: bytes = b""

    @property
    def ce_keys(self) -> Sequence[bytes]:
        """The keys of `ce_runs`."""
        starts = range(0, len(self.ce_runs), _KEY_BYTES)
        return [self.ce_runs[start : start + _KEY_BYTES] for start in starts]

    @property
    def source(self) -> str:
        """The name of its batch system."""
        return self.job.row.database

    @property
    def times(self) -> tuple[int, int]:
        """When it started, and when it ended."""
        return self.job.started_at or 0, self.job.ended_at


class CeJob(NamedTuple):
    """A job, or a row that is none yet, by its number in the batch system.

    `ended_at` is 0 while it runs. `is_there`: the CE has it.
    """

    source: str
    local_id: str
    submitted_at: int
    ended_at: int
    lrms: str
    run: RunKey
    is_there: bool

    @property
    def span(self) -> tuple[int, int]:
        """When it was submitted, and when it ended."""
        return self.submitted_at, self.ended_at


_READ: Final = f"0, source, record_id, 0, run, {_VALUES}, state, is_own, ce_runs"  # `READ` first
_HIDDEN: Final = f"SELECT {_READ} FROM batch_run"
_OWN: Final = f"SELECT {', '.join(READ)} FROM job"
_LOCAL_ID: Final = "local_id IN ({})"
_JOB_ID: Final = "substr(run, 5, 7) IN ({})"
_RUN: Final = "run IN ({})"
_OTHER_NUMBERS: Final = """SELECT number, run FROM other_number
WHERE number IN (SELECT value FROM json_each(?))"""
_NUMBERS_OF: Final = "SELECT run, number FROM other_number WHERE source = {} AND run IN ({{}})"
_CE_JOBS: Final = """SELECT s.name, local_id, submitted_at, ended_at, p.lrms, run, NOT gone
FROM job JOIN source AS s ON s.id = job.source JOIN place AS p ON p.id = job.place WHERE {0}
UNION ALL SELECT s.name, local_id, submitted_at, ended_at, p.lrms, run, 1
FROM partial JOIN source AS s ON s.id = partial.source JOIN place AS p ON p.id = partial.place
WHERE {0}"""
IN_STATE: Final = f"""SELECT {_READ}, rowid FROM batch_run
WHERE source = :source AND state = :state AND ended_at BETWEEN :first AND :last
    AND (ended_at > :first OR rowid > :after) ORDER BY ended_at, rowid LIMIT :limit"""
_DELIVERED: Final = f"{_HIDDEN} WHERE source = ? AND state IN (0, 1) AND is_own"
_OF_NAME: Final = "(SELECT id FROM source WHERE name = :name)"
_FIRST_END: Final = f"""SELECT min(ended_at), count(*) FROM batch_run
WHERE source = {_OF_NAME} AND state IN (0, 1) AND ended_at <= :until"""
_WAIT_FOR: Final = f"""SELECT count(*), min(ended_at) FROM batch_run
WHERE source = {_OF_NAME} AND state IN (0, 1)
    AND ended_at > :after AND ended_at <= :until AND ifnull(started_at, 0) >= :started"""
_REVEAL: Final = f"""INSERT OR REPLACE INTO job ({", ".join(COLUMNS)})
SELECT ?, run, source, record_id, 0, {_VALUES} FROM batch_run WHERE run = ?"""
_REMOVE_HIDDEN: Final = "DELETE FROM batch_run WHERE run = ?"
_SET_STATE: Final = "UPDATE batch_run SET state = ? WHERE run = ?"
_NOTE_OWN: Final = "UPDATE batch_run SET is_own = 1 WHERE run = ?"
_NOTE_CE_RUN: Final = """UPDATE batch_run SET ce_runs = CAST(ce_runs || ?1 AS BLOB)
WHERE run = ?2 AND NOT instr(ce_runs, ?1)"""
_LRMS_OF_JOB: Final = """SELECT p.lrms FROM job JOIN place AS p ON p.id = job.place
WHERE run BETWEEN ?1 AND ?2
UNION SELECT p.lrms FROM partial JOIN place AS p ON p.id = partial.place
WHERE substr(run, 5, 7) = substr(?1, 5, 7) AND run BETWEEN ?1 AND ?2"""
_REMOVE_RUN: Final = "DELETE FROM job WHERE run = ?"


class BatchRuns:
    """The runs of all batch systems in a store: what linking asks. Methods raise sqlite3.Error."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._execute = store.connection.execute

    def of_numbers(
        self, numbers: Collection[str], sources: Collection[str]
    ) -> Mapping[str, Sequence[BatchRun]]:
        """Return the runs of some batch systems that a CE may know by these numbers."""
        found: dict[str, dict[RunKey, BatchRun]] = defaultdict(dict)
        for one in self._found(_LOCAL_ID, stored(numbers), sources):
            found[one.job.local_id][one.job.run_key] = one
        asked = json.dumps([one for one in numbers if one.isascii()])
        named = self._execute(_OTHER_NUMBERS, (asked,)).fetchall()
        others = self._found(_RUN, [run for _, run in named], sources)
        by_run = {one.job.run_key: one for one in others}
        for number, run in named:
            if run in by_run:
                found[number][run] = by_run[run]
        return {number: list(runs.values()) for number, runs in found.items()}

    def _found(
        self, condition: str, values: Sequence[Any], sources: Collection[str]
    ) -> Iterator[BatchRun]:
        # The sign keeps SQLite from the index over sources.
        ours = f"{condition} AND +source IN ({self._ids(sources)})"
        for row in self._asked(f"{_HIDDEN} WHERE {ours}", values):
            yield self._hidden(row)
        for row in self._asked(f"{_OWN} WHERE {ours}", values):
            yield BatchRun(self._store.job(row), LinkState.OWN)

    def numbers_of(self, runs: Sequence[BatchRun]) -> Mapping[RunKey, Sequence[str]]:
        """Return the numbers by which a CE may know runs of one source."""
        found = {one.job.run_key: [one.job.local_id] for one in runs}
        question = _NUMBERS_OF.format(self._ids([one.source for one in runs[:1]]))
        for run, number in self._asked(question, list(found)):
            found[run].append(number)
        return found

    def ce_jobs(self, numbers: Collection[str]) -> Mapping[str, Sequence[CeJob]]:
        """Return all jobs and rows that are none yet with these local ids, whatever their source.

        Runs that A-REX forgot are among them: the table `job` keeps these.
        """
        found: dict[str, list[CeJob]] = defaultdict(list)
        asked = stored(numbers)
        for start in range(0, len(asked), _ASKED_AT_ONCE):
            part = asked[start : start + _ASKED_AT_ONCE]
            question = _CE_JOBS.format(_LOCAL_ID.format(", ".join("?" * len(part))))
            for row in self._execute(question, [*part, *part]):
                what = CeJob._make((*restored(row[:5]), *row[5:]))  # a key is bytes
                found[what.local_id].append(what)
        return found

    def in_state(
        self, source: str, state: LinkState, first: int, last: int, limit: int
    ) -> Iterator[Sequence[BatchRun]]:
        """Yield runs of a source that are in a state and ended in [first, last], by their ends.

        Runs that get another state meanwhile are met once at most.
        """
        asked = {"source": self._number(source), "state": int(state), "last": last}
        place = {"first": first, "after": 0, "limit": limit}
        while rows := self._execute(IN_STATE, asked | place).fetchall():
            runs = [self._hidden(row) for row in rows]
            place |= {"first": runs[-1].job.ended_at, "after": rows[-1][-1]}
            yield runs

    def delivered_as_own(self, source: str) -> Sequence[BatchRun]:
        """Return undecided runs that were delivered as jobs of the batch system."""
        rows = self._execute(_DELIVERED, (self._number(source),)).fetchall()
        return [self._hidden(row) for row in rows]

    def of_runs(self, runs: Sequence[RunKey]) -> Sequence[BatchRun]:
        """Return those of these runs that are hidden."""
        question = f"{_HIDDEN} WHERE {_RUN}"
        return [self._hidden(row) for row in self._asked(question, runs)]

    def of_jobs(self, source: str, job_ids: Iterable[str]) -> Mapping[str, BatchRun]:
        """Return the hidden runs of one source by their JobIDs."""
        digests = list({job_digest(one) for one in job_ids})
        question = f"{_HIDDEN} WHERE {_JOB_ID} AND +source = {self._number(source)}"
        found = map(self._hidden, self._asked(question, digests))
        return {one.job.job_id: one for one in found}

    def lrms_of_job(self, run: bytes) -> Sequence[str]:
        """Return what A-REX calls the batch systems of all runs of a job, of one's key."""
        of_job = run[JOB_OF_RUN]
        rows = self._execute(_LRMS_OF_JOB, (of_job + bytes(4), of_job + b"\xff" * 4))
        return [restored(row)[0] for row in rows.fetchall()]

    def first_end(self, source: str, until: int) -> Epoch | None:
        """Return when the first undecided run of a source ended, of those that ended until then."""
        first: Epoch | None
        first, _ = self._execute(_FIRST_END, {"name": source, "until": until}).fetchone()
        return first

    def undecided(self, source: str) -> int:
        """Return how many runs of a source are not decided yet."""
        asked = {"name": source, "until": 2**62}
        return int(self._execute(_FIRST_END, asked).fetchone()[1])

    def waiting_for(
        self, source: str, after: int, until: int, started: int
    ) -> tuple[int, int | None]:
        """Return how many undecided runs started at a time or later and ended in (after, until].

        And when the first of them ended.
        """
        asked = {"name": source, "after": after, "until": until, "started": started}
        count, first = self._execute(_WAIT_FOR, asked).fetchone()
        return int(count), first

    def _hidden(self, row: Row) -> BatchRun:
        state, is_own, ce_runs = row[len(READ) : len(READ) + 3]
        job = self._store.job(row[: len(READ)])
        return BatchRun(job, LinkState(state), bool(is_own), ce_runs)

    def _number(self, source: str) -> int:
        found = self._execute("SELECT id FROM source WHERE name = ?", (source,)).fetchone()
        return 0 if found is None else int(found[0])

    def _ids(self, sources: Collection[str]) -> str:
        return ", ".join(str(self._number(one)) for one in sources)

    def _asked(self, question: str, values: Sequence[Any]) -> Iterator[Row]:
        for start in range(0, len(values), _ASKED_AT_ONCE):
            part = values[start : start + _ASKED_AT_ONCE]
            yield from self._execute(question.format(", ".join("?" * len(part))), part).fetchall()


class LinkedRuns(BatchRuns):
    """The runs of all batch systems, as linking changes them: each method inside a transaction."""

    def __init__(self, store: JobStore) -> None:
        super().__init__(store)
        self._jobs = store

    def reveal(self, runs: Sequence[RunKey]) -> None:
        """Make hidden runs jobs, which gives them the number of their change."""
        change = self._jobs.last_change()
        self._many(_REVEAL, [(change + at, run) for at, run in enumerate(runs, 1)])
        self._many(_REMOVE_HIDDEN, [(run,) for run in runs])
        self._advance(change, len(runs))

    def keep(self, runs: Sequence[RunKey], state: LinkState) -> None:
        """Keep hidden runs as being in a state."""
        self._many(_SET_STATE, [(int(state), run) for run in runs])

    def note_delivered(
        self, own: Sequence[RunKey], ce_runs: Sequence[tuple[RunKey, RunKey]]
    ) -> None:
        """Keep which runs were delivered as jobs of the batch system, and as which of CEs' runs."""
        self._many(_NOTE_OWN, [(run,) for run in own])
        self._many(_NOTE_CE_RUN, ce_runs)

    def change(self, jobs: Sequence[JobRecord]) -> None:
        """Store jobs of CEs that got other values."""
        change = self._jobs.last_change()
        numbered = enumerate(jobs, change + 1)
        rows = [self._jobs.row(at, self._number(job.row.database), job) for at, job in numbered]
        self._many(PUT, list(map(stored, rows)))
        self._advance(change, len(rows))

    def set_aside(self, jobs: Sequence[SkippedJob]) -> None:
        """Take jobs of CEs out of the store, which were in no message, and keep why."""
        change = self._jobs.last_change()
        for at, job in enumerate(jobs, change + 1):
            self._execute(_REMOVE_RUN, (job.run_key,))
            row = at, self._number(job.row.database), job.row.record_id, *skipped_values(job)
            self._execute(PUT_SKIPPED, stored(row))
        self._advance(change, len(jobs))

    def transaction(self) -> AbstractContextManager[None]:
        """Store all that is done inside, or nothing."""
        return self._jobs.transaction()

    def _advance(self, change: int, more: int) -> None:
        if more:
            self._jobs.advance(change + more)

    def _many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        self._jobs.connection.executemany(statement, rows)


def lies_in(span: tuple[int, int], times: tuple[int, int]) -> bool:
    """Return whether a run may be a job of this submission and end; 0: its end was not seen."""
    submitted_at, ended_at = span
    return submitted_at - APART_S <= times[0] and (not ended_at or times[1] <= ended_at + APART_S)


def job_digest(job_id: str) -> bytes:
    """Return the part of a run key that stands for a JobID."""
    return bytes(run_key(0, job_id, "")[4:11])
