"""The job store, open to be loaded: a page of jobs and the position behind it in one transaction.

What a source reports of a run is inserted, or replaces what was known of it, or changes nothing; an
insert or a change gets the next number. Nothing is deleted that a source does not take back: runs
that it no longer has are marked.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from publisher.jobs import file as store_file
from publisher.jobs.reader import StoreReader, bounds
from publisher.jobs.tables.columns import (
    COLUMNS,
    PARTIAL,
    SKIPPED,
    VALUES,
    Row,
    account_values,
    benchmark_values,
    identity,
    own_values,
    person_values,
    place_values,
    plain_values,
    restored,
    stored,
)
from publisher.jobs.tables.comparison import LostRun, Met, not_met_of
from publisher.model.job import (
    JobId,
    JobRecord,
    LoadedPage,
    PartialJob,
    RowPart,
    RowRef,
    SkippedJob,
    run_key,
)
from publisher.model.time import Window

_ASKED_AT_ONCE: Final = 500  # SQLite before 3.32 takes 999 parameters
_MARKED_AT_ONCE: Final = 5_000
_NONE: Final = (-(2**63) - 1, 0)  # before any end
_MARKS: Final = 100_000  # that are kept, for targets whose last round was long ago


def _list(names: Iterable[str], form: str = "{}") -> str:
    return ", ".join(form.format(name) for name in names)


def _differs(names: Sequence[str], table: str) -> str:
    mine, new = _list(names, f"{table}.{{}}"), _list(names, "excluded.{}")
    return f"({mine}) IS NOT ({new})"


_CHANGED: Final = _differs(VALUES, "job")
_MOVED: Final = _differs(("source", "record_id", "gone"), "job")
# A row that only moved keeps the number of its change.
PUT: Final = f"""INSERT INTO job ({_list(COLUMNS)}) VALUES ({_list("?" * len(COLUMNS))})
ON CONFLICT (run) DO UPDATE SET
    change = CASE WHEN {_CHANGED} THEN excluded.change ELSE job.change END,
    {", ".join(f"{name} = excluded.{name}" for name in COLUMNS[2:])}
WHERE {_MOVED} OR {_CHANGED}"""
_SKIPPED_COLUMNS: Final = ("change", "source", "record_id", *SKIPPED)
PUT_SKIPPED: Final = f"""
INSERT INTO skipped ({_list(_SKIPPED_COLUMNS)}) VALUES ({_list("?" * len(_SKIPPED_COLUMNS))})
ON CONFLICT (source, record_id) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in ("change", *SKIPPED))}
WHERE {_differs(SKIPPED, "skipped")}"""
_PUT_PARTIAL: Final = f"""
INSERT INTO partial ({_list(PARTIAL)}) VALUES ({_list("?" * len(PARTIAL))})
ON CONFLICT (source, record_id) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in PARTIAL[2:])}
WHERE {_differs(PARTIAL[2:], "partial")}"""
_CHANGE_SKIPPED: Final = "SELECT change FROM skipped WHERE source = ? AND record_id = ?"
_ANY_SKIPPED: Final = "SELECT EXISTS (SELECT 1 FROM skipped)"
_BETWEEN: Final = "SELECT record_id FROM {} WHERE source = ? AND record_id BETWEEN ? AND ?"
_IS_A_JOB: Final = "DELETE FROM skipped WHERE source = ? AND record_id = ?"
_IS_WHOLE: Final = "DELETE FROM partial WHERE source = ? AND record_id = ?"
_NO_LONGER_THERE: Final = """DELETE FROM partial
WHERE NOT EXISTS (SELECT 1 FROM unfinished AS u
        WHERE u.source = partial.source AND u.record_id = partial.record_id)
    AND NOT EXISTS (SELECT 1 FROM skipped AS s
        WHERE s.source = partial.source AND s.record_id = partial.record_id)"""
# The change by which a run (given twice before it) took the place of another; no change where that
# is the same run, of which its source has corrected the submission time.
GONE_FOR: Final = """CASE WHEN substr(run, 12) = substr(?, 12)
    AND ended_at = (SELECT ended_at FROM job AS new WHERE new.run = ?) THEN -1 ELSE ? END"""
# Another run in the same row: A-REX restarted the job.
_RESTARTED: Final = f"""UPDATE job SET gone = {GONE_FOR}
WHERE substr(run, 5, 7) = ? AND run <> ? AND source = ? AND record_id = ? AND NOT gone"""
_IS_NO_JOB: Final = "UPDATE job SET gone = ? WHERE run = ? AND source = ? AND NOT gone"
# Runs of jobs in other sources, the same or others.
_ELSEWHERE: Final = """SELECT job_id, run, source, ended_at, change FROM job
WHERE substr(run, 5, 7) IN ({}) AND source <> {} AND NOT gone"""
_IN_ANOTHER: Final = "DELETE FROM skipped WHERE job_id = ? AND source <> ?"
_NEW_SOURCE: Final = "INSERT OR IGNORE INTO source (name, complete, first_load) VALUES (?, 0, 0)"
_SOURCE: Final = "SELECT id FROM source WHERE name = ?"
_SOURCES: Final = "SELECT count(*) FROM source"
_READ_TO: Final = "UPDATE source SET position = ? WHERE id = ?"
_COMPLETE: Final = """UPDATE source SET complete = 1,
    first_load = (SELECT last_change FROM store WHERE EXISTS (SELECT 1 FROM mark WHERE is_lost)
        UNION ALL SELECT 0 LIMIT 1)
WHERE name = ? AND NOT complete"""
_OPEN: Final = """INSERT INTO unfinished VALUES (?, ?, ?)
ON CONFLICT (source, record_id) DO UPDATE SET seen_at = excluded.seen_at
WHERE unfinished.seen_at IS NULL AND excluded.seen_at IS NOT NULL"""
_CLOSE: Final = "DELETE FROM unfinished WHERE source = ? AND record_id = ?"
BEGIN_AT: Final = "UPDATE store SET begins = max(begins, ?)"
_ADVANCE: Final = "UPDATE store SET last_change = ?, mark = ?"
_NEW_MARK: Final = "INSERT OR IGNORE INTO mark (tag, is_lost) VALUES (?, ?)"
_FORGET_MARKS: Final = "DELETE FROM mark WHERE id <= (SELECT max(id) FROM mark) - ?"
_MARK_IS_THERE: Final = "SELECT EXISTS (SELECT 1 FROM mark WHERE tag = ?)"
_LAST_CHANGE: Final = "SELECT last_change FROM store"
_READ_AS: Final = "UPDATE store SET needs = ?, read_as = ?"
_COMPARED: Final = "UPDATE store SET compared_at = ?"
_OF_SOURCES: Final = """SELECT m.name FROM sqlite_master m, pragma_table_info(m.name) c
WHERE m.type = 'table' AND lower(c.name) = 'source'"""
_FORGET_SOURCE: Final = "DELETE FROM source WHERE id = ?"
_FORGET_POSITIONS: Final = "UPDATE source SET position = NULL"
_FORGET_PARTS: Final = "DELETE FROM part WHERE source = ?"
_KEEP_PART: Final = "INSERT OR REPLACE INTO part (source, number, digest) VALUES (?, ?, ?)"
_MARK: Final = "UPDATE job SET gone = ? WHERE change = ?"
_FORGET: Final = "DELETE FROM skipped WHERE change = ?"
_THERE: Final = """SELECT change, source, record_id, job_id FROM job
WHERE change > :after AND NOT gone AND +ended_at BETWEEN :first AND :last
ORDER BY change LIMIT :limit"""
_SKIPPED_THERE: Final = """SELECT change, source, record_id, job_id FROM skipped
WHERE ended_at BETWEEN :first AND :last OR (ended_at IS NULL AND :all)"""


Ended = TypeVar("Ended", JobRecord, SkippedJob)


class _RunElsewhere(NamedTuple):
    """A run in another source."""

    run: bytes
    source: int
    ended_at: int
    change: int


class JobStore(StoreReader):
    """The store of who loads; others are `StoreReader`. Every method raises LedgerError."""

    _named: Sequence[str] = ()
    closed_until = 0  # what ended before is not stored: its months are closed (`keep`)
    passed_over = 0  # so many rows, as often as they were read

    def rank(self, sources: Sequence[str]) -> None:
        """Note in which order the sources are named that are read."""
        self._named = sources

    def put(
        self, pages: Sequence[LoadedPage], met: Met | None = None, *, are_new: bool = False
    ) -> None:
        """Store pages, in one transaction; `met` gets the changes of their rows.

        `are_new`: their rows were never read before, and no run can have been restarted there.
        """
        with self.transaction():
            change = before = self.last_change()
            for page in pages:
                change = self._put(page, change, are_new=are_new)
            if change != before:
                self.advance(change)
        if met is not None:
            self._note_met(pages, met)

    def _note_met(self, pages: Sequence[LoadedPage], met: Met) -> None:
        for page in pages:
            if page.part is not None and page.part.is_known:
                met.parts.add((page.source, page.part.number))
            met.add(self._changes_of(page))
            met.rows.update(one.row for one in page.open if one.finished_seen_at is not None)

    def last_change(self) -> int:
        """Return the number that was given last."""
        return int(self._connection.execute(_LAST_CHANGE).fetchone()[0])

    def advance(self, change: int) -> None:
        """Note the last change, under a new mark; inside a transaction."""
        mark = secrets.token_hex(8)
        self._connection.execute(_NEW_MARK, (mark, False))
        self._connection.execute(_FORGET_MARKS, (_MARKS,))
        self._connection.execute(_ADVANCE, (change, mark))

    def is_behind(self, marks: Iterable[str]) -> bool:
        """Return whether a cursor has a mark of which this store has never heard."""
        return not all(self._rows(_MARK_IS_THERE, (mark,))[0][0] for mark in marks if mark)

    def begin_after(self, marks: Iterable[str]) -> None:
        """Note marks that cursors have of stores before this one."""
        with self.transaction():
            rows = [(mark, True) for mark in marks if mark]
            self._connection.executemany(_NEW_MARK, rows)

    def complete(self, source: str) -> None:
        """Note that a source was loaded to its end."""
        with self.transaction():
            self._connection.execute(_NEW_SOURCE, (source,))
            self._connection.execute(_COMPLETE, (source,))

    def read_as(self, options: str, needs: Iterable[str]) -> None:
        """Note under which options sources were looked through, and with which side tables."""
        with self.transaction():
            self._connection.execute(_READ_AS, (" ".join(sorted(needs)), options))

    def compared(self, at: int) -> None:
        """Note when sources were looked through again."""
        with self.transaction():
            self._connection.execute(_COMPARED, (at,))

    def forget(self, source: str) -> None:
        """Delete the jobs of a source, and have the others looked through again.

        Some of its jobs may be theirs, too.
        """
        with self.transaction():
            number = (self.number_of(source),)
            for (table,) in self._connection.execute(_OF_SOURCES).fetchall():
                self._connection.execute(f"DELETE FROM {table} WHERE source = ?", number)
            self._connection.execute(_FORGET_SOURCE, number)
            self._connection.execute(_FORGET_POSITIONS)

    def begin_at(self, closed_until: int) -> None:
        """Store nothing that ended before then, and note that it is not there."""
        self.closed_until = closed_until
        if closed_until > (self.begins() or 0):
            with self.transaction():
                self._connection.execute(BEGIN_AT, (closed_until,))

    def not_closed(self, jobs: Sequence[Ended]) -> Sequence[Ended]:
        """Leave out what ended in months that are closed, and count it."""
        if not self.closed_until:
            return jobs
        found = [one for one in jobs if one.ended_at is None or one.ended_at >= self.closed_until]
        self.passed_over += len(jobs) - len(found)
        return found

    def source_tables(self, source: str, tables: str) -> sqlite3.Connection:
        """Return a connection as `bound_to` does, to a store that has a source, and its tables."""
        with self.transaction():
            self._bind(self.number_of(source))
            for statement in tables.split(";\n"):
                if statement.strip():
                    self._connection.execute(statement)
        return self._connection

    def keep_parts(self, source: str, parts: Iterable[RowPart], *, are_all: bool) -> None:
        """Note the digests of parts; `are_all`: of the whole source."""
        with self.transaction():
            number = self.number_of(source)
            if are_all:
                self._connection.execute(_FORGET_PARTS, (number,))
            rows = [(number, part.number, part.digest) for part in parts if not part.is_known]
            self._connection.executemany(_KEEP_PART, rows)

    def not_met(
        self, sources: Collection[str], window: Window, met: Met
    ) -> Iterator[Sequence[LostRun]]:
        """Yield the runs of a window that were not met though these sources were looked through.

        Some thousand at a time; `mark_gone` may be called between.
        """
        names = {self.number_of(name): name for name in sources}
        first, last = bounds(window)
        place = {"after": 0, "first": first, "last": last, "limit": _MARKED_AT_ONCE}
        while rows := self._rows(_THERE, place):
            place["after"] = rows[-1][0]
            if gone := not_met_of(rows, names, met):
                yield gone

    def mark_gone(self, gone: Sequence[LostRun], pages: Sequence[LoadedPage], met: Met) -> None:
        """Mark runs that their sources have no longer; `pages` have their jobs in other sources.

        In one transaction, so that none of these jobs is ever without a run that counts.
        """
        with self.transaction():
            change = self.last_change() + 1
            self._connection.executemany(_MARK, [(change, one.change) for one in gone])
            for page in pages:
                change = self._put(page, change, are_new=False)
            self.advance(change)
        self._note_met(pages, met)

    def forget_skipped(self, sources: Collection[str], window: Window, met: Met) -> None:
        """Delete the rows of a window that were set aside, and were not met."""
        names = {self.number_of(name): name for name in sources}
        first, last = bounds(window)
        place = {"first": first, "last": last, "all": window == Window()}
        if not_there := not_met_of(self._rows(_SKIPPED_THERE, place), names, met):
            with self.transaction():
                self._connection.executemany(_FORGET, [(one.change,) for one in not_there])
                self._connection.execute(_NO_LONGER_THERE)

    def _put(self, page: LoadedPage, change: int, *, are_new: bool) -> int:
        """Store a page in the caller's transaction; return the last change."""
        execute_many, source = self._connection.executemany, self.number_of(page.source)
        page = page._replace(jobs=self.not_closed(page.jobs), skipped=self.not_closed(page.skipped))
        found, skipped = page.jobs, page.skipped
        if self._connection.execute(_SOURCES).fetchone()[0] > 1:
            found, skipped = self._winners(page, source, change + 1)
            if self._connection.execute(_ANY_SKIPPED).fetchone()[0]:
                execute_many(_IN_ANOTHER, [stored((job.job_id, source)) for job in found])
        jobs = self.rows(change + 1, source, found)
        before = self._connection.total_changes
        try:
            execute_many(PUT, jobs)
        except UnicodeEncodeError:  # those before it are stored, and stay as they are
            execute_many(PUT, map(stored, jobs))
        if self._connection.total_changes != before:
            change += len(jobs)
            if not are_new:
                replaced = [(row[1], row[1], change, row[1][4:11], *row[1:4]) for row in jobs]
                execute_many(_RESTARTED, replaced)
        execute_many(_IS_A_JOB, self._in_table("skipped", source, [job.row for job in found]))
        whole = [*page.closed, *(job.row for job in page.jobs)]
        execute_many(_IS_WHOLE, self._in_table("partial", source, whole))
        execute_many(_PUT_PARTIAL, [self._partial_row(source, one) for one in page.partial])
        for one in skipped:
            row = change + 1, source, one.row.record_id, *skipped_values(one)
            change += self._connection.execute(PUT_SKIPPED, stored(row)).rowcount
            self._connection.execute(_IS_NO_JOB, (change, one.run_key, source))
        execute_many(_CLOSE, [(source, row.record_id) for row in page.closed])
        execute_many(
            _OPEN, [(source, one.row.record_id, one.finished_seen_at) for one in page.open]
        )
        if page.position is not None:
            self._connection.execute(_READ_TO, (page.position, source))
        return change

    def _in_table(self, table: str, source: int, rows: Iterable[RowRef]) -> list[tuple[int, int]]:
        """Return which rows of a source are in a table, by source and number."""
        numbers = {row.record_id for row in rows}
        if not numbers:
            return []
        between = (source, min(numbers), max(numbers))
        found = self._connection.execute(_BETWEEN.format(table), between).fetchall()
        return [(source, number) for (number,) in found if number in numbers]

    def _partial_row(self, source: int, one: PartialJob) -> Row:
        job, flags = one.job, (one.is_in_progress, one.is_unreadable)
        at = source, job.row.record_id, job.run_key
        values = self.row(0, source, job)[-len(VALUES) :]
        return stored((*at, 0, one.rule, *flags, *values))

    def _winners(
        self, page: LoadedPage, source: int, change: int
    ) -> tuple[Sequence[JobRecord], Sequence[SkippedJob]]:
        """Return what of a page counts, where jobs are in other sources too.

        A job counts in the source in which it is finished; of two, in that with the later end; of
        equal ones, in that which is named first. Runs that counted elsewhere are marked as gone.
        """
        ids = [*(job.job_id for job in page.jobs), *(one.job_id for one in page.skipped)]
        elsewhere = self._elsewhere(ids, source)
        if not elsewhere:
            return page.jobs, page.skipped
        named = {name: -place for place, name in enumerate(self._named)}
        found = self._rows("SELECT id, name FROM source")
        ranks = {number: named[name] for number, name in found if name in named}
        mine = ranks.get(source, -len(named))
        winners: list[JobRecord] = []
        lost: list[tuple[int, int]] = []
        for job in page.jobs:
            others = elsewhere.get(job.job_id, ())
            if _best(others, ranks) < (job.ended_at, mine):
                winners.append(job)
                lost += [(change, one.change) for one in others if one.run != job.run_key]
        self._connection.executemany(_MARK, lost)
        return winners, [
            one for one in page.skipped if _best(elsewhere.get(one.job_id, ()), ranks) == _NONE
        ]

    def _elsewhere(
        self, job_ids: Iterable[JobId], source: int
    ) -> Mapping[str, Sequence[_RunElsewhere]]:
        """Return the runs of jobs in other sources."""
        others: dict[str, list[_RunElsewhere]] = {}
        digests = list({_digest(one) for one in job_ids})
        for start in range(0, len(digests), _ASKED_AT_ONCE):
            part = digests[start : start + _ASKED_AT_ONCE]
            question = _ELSEWHERE.format(_list("?" * len(part)), source)
            for job_id, *other in self._rows(question, part):
                others.setdefault(restored([job_id])[0], []).append(_RunElsewhere(*other))
        return others

    def rows(self, change: int, source: int, jobs: Sequence[JobRecord]) -> list[Row]:
        """Return jobs as rows of `job`, with changes from one on (hot path).

        Inside a transaction, since it enters what jobs share.
        """
        return [
            (at, run_key(*ids), source, row.record_id, 0, *shared, *own, *plain)
            for at, (row, *ids), shared, own, plain in zip(
                count(change),
                map(identity, jobs),
                self._numbers(jobs),
                map(own_values, jobs),
                map(plain_values, jobs),
            )
        ]

    def row(self, change: int, source: int, job: JobRecord) -> Row:
        """Return a job as a row of `job`; inside a transaction, as `rows`."""
        return self.rows(change, source, [job])[0]

    def _numbers(self, jobs: Sequence[JobRecord]) -> Iterator[Row]:
        """Return the numbers of what jobs share, in the order of the columns."""
        parts = person_values, account_values, place_values, benchmark_values
        tables = zip(self._distinct, parts, strict=True)
        return zip(*(table.numbers(map(part, jobs)) for table, part in tables), strict=True)

    def number_of(self, name: str) -> int:
        """Return the number of a source, which is entered where it is new."""
        found = self._connection.execute(_SOURCE, (name,)).fetchone()
        if found is None:
            found = (self._connection.execute(_NEW_SOURCE, (name,)).lastrowid,)
        return int(found[0])

    def _changes_of(self, page: LoadedPage) -> Iterator[int]:
        runs = [job.run_key for job in page.jobs]
        for start in range(0, len(runs), _ASKED_AT_ONCE):
            part = runs[start : start + _ASKED_AT_ONCE]
            places = ", ".join("?" * len(part))
            rows = self._rows(f"SELECT change FROM job WHERE run IN ({places})", part)
            yield from (change for (change,) in rows)
        for skipped in page.skipped:
            at = self.number_of(page.source), skipped.row.record_id
            yield from (change for (change,) in self._rows(_CHANGE_SKIPPED, at))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store all that is done inside, or nothing."""
        with store_file.translated(self._path):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException as error:
                for known in self._distinct:
                    known.clear()
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    store_file.forget_damaged(self._path, error)
                raise


def _best(runs: Iterable[_RunElsewhere], ranks: Mapping[int, int]) -> tuple[int, int]:
    """Return the end of the run that counts, and the rank of its source, of those with a rank."""
    ends = [(one.ended_at, ranks[one.source]) for one in runs if one.source in ranks]
    return max(ends, default=_NONE)


def _digest(job_id: JobId) -> bytes:
    return bytes(run_key(0, job_id, "")[4:11])


def skipped_values(skipped: SkippedJob) -> Row:
    """Return the columns `SKIPPED` of a row that was set aside."""
    return (
        *(skipped.job_id, skipped.local_id, skipped.ended_at, skipped.rule, skipped.reason),
        *(skipped.fingerprint, skipped.submitted_at),
    )


def open_store(path: Path) -> JobStore:
    """Return a store to be loaded; the caller holds `loader_lock`. Raises: LedgerError."""
    return JobStore(store_file.open_to_load(path), path)


def remove_store(path: Path) -> None:
    """Delete a store. Raises: LedgerError."""
    with store_file.translated(path):
        store_file.remove(path)


def open_reader(path: Path) -> StoreReader:
    """Return a reader of a store, an empty one where there is none. Raises: LedgerError."""
    return StoreReader(store_file.open_to_read(path) or store_file.open_scratch(), path)


def scratch_store() -> JobStore:
    """Return a store that is gone when it is closed."""
    return JobStore(store_file.open_scratch(), Path("temporary job store"))
