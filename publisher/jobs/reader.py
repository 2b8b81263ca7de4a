"""The questions to the job store. Each is a statement here; no caller writes SQL of its own.

A reader belongs to one thread. It reads pages in short transactions, or, in `snapshot`, all of them
as they were at its beginning, whatever is loaded after that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from publisher.jobs import file as store_file
from publisher.jobs.tables.columns import (
    ACCOUNT,
    BENCHMARK,
    PERSON,
    PLACE,
    READ,
    SHARED,
    SKIPPED,
    Row,
    distinct_values,
    job_of,
    restored,
    skipped_of,
    stored,
)
from publisher.jobs.tables.distinct import Distinct
from publisher.model.job import (
    Epoch,
    JobId,
    JobRecord,
    OpenRow,
    Position,
    RowRef,
    RunKey,
    SkippedJob,
    run_key,
)
from publisher.model.time import Window

PAGE_JOBS: Final = 500
_FIRST: Final = -(2**63)
_LAST: Final = 2**63 - 1
_AT_ONCE: Final = 200  # ids of a question; SQLite before 3.32 takes 999 parameters
_JOB: Final = f"SELECT {', '.join(READ)} FROM job"
CHANGED: Final = f"{_JOB} WHERE change > :after AND change <= :until ORDER BY change LIMIT :limit"
SKIPPED_ROWS: Final = f"SELECT source, record_id, {', '.join(SKIPPED)} FROM skipped"
SKIPPED_CHANGED: Final = f"""{SKIPPED_ROWS}
WHERE change > :after AND change <= :until ORDER BY change"""
_IN_WINDOW: Final = """ended_at >= :first AND ended_at <= :last
    AND (ended_at > :first OR change > :after)"""
WINDOW: Final = f"{_JOB} WHERE {_IN_WINDOW} ORDER BY ended_at, change LIMIT :limit"
# Runs that their sources still have.
WINDOW_CURRENT: Final = f"""{_JOB} WHERE {_IN_WINDOW} AND NOT gone
ORDER BY ended_at, change LIMIT :limit"""
SKIPPED_WINDOW: Final = f"""{SKIPPED_ROWS}
WHERE ended_at >= :first AND ended_at <= :last ORDER BY ended_at, change"""
RUNS_CURRENT: Final = """SELECT run FROM job
WHERE ended_at >= :first AND ended_at <= :last AND NOT gone ORDER BY ended_at"""
COUNT: Final = "SELECT count(*) FROM job WHERE ended_at >= :first AND ended_at <= :last"
COUNT_CHANGED: Final = """SELECT count(*), total(ended_at < :late_before), min(ended_at) FROM job
WHERE change > :after AND change <= :until AND +ended_at BETWEEN :first AND :last"""
_KEYS_OF_ROW: Final = itemgetter(*(READ.index(name) for name in ("run", "change", "gone")))
_DIGESTS: Final = "substr(run, 5, 7) IN ({})"
_LOCAL_IDS: Final = "local_id IN ({})"
_RUNS: Final = "run IN ({})"
_KNOWS: Final = "SELECT EXISTS (SELECT 1 FROM mark WHERE tag = :tag AND NOT is_lost)"
_STATE: Final = "SELECT mark, last_change, needs, read_as, compared_at FROM store"
_SOURCES: Final = "SELECT id, name FROM source"
# By the index over ends, from the last one on: whatever source has jobs, one of its own is near.
# What ends in the future is of a wrong clock.
NEWEST: Final = """SELECT ended_at FROM job
WHERE ended_at BETWEEN 1 AND :now AND source = (SELECT id FROM source WHERE name = :name)
ORDER BY ended_at DESC LIMIT 1"""
FOUR_WEEKS: Final = """SELECT count(*), total(flags & 1) FROM job
WHERE ended_at > :newest - 28 * 86400 AND ended_at <= :newest
    AND source = (SELECT id FROM source WHERE name = :name)"""
_CLUSTER: Final = """SELECT Value FROM SourceSetting
WHERE Name = 'CLUSTER' AND Source = (SELECT id FROM source WHERE name = :name)"""
_PRUNED_AT: Final = "SELECT min(pruned_at) FROM source"
_FIRST_UNDECIDED: Final = """SELECT min(ended_at) FROM batch_run
WHERE source IN (SELECT id FROM source) AND state IN (0, 1, 3)"""
_BEGINS: Final = "SELECT begins FROM store"
_FIRST_END: Final = "SELECT min(ended_at) FROM job"
_NUMBER: Final = "SELECT id FROM source WHERE name = :name"
_POSITION: Final = "SELECT position FROM source WHERE name = :name AND position IS NOT NULL"
_PARTS: Final = """SELECT number, digest FROM part
WHERE source = (SELECT id FROM source WHERE name = :name)"""
_INCOMPLETE: Final = "SELECT name FROM source WHERE NOT complete"
_FIRST_LOADS: Final = "SELECT name, first_load FROM source WHERE first_load"
_UNFINISHED: Final = """SELECT record_id, seen_at FROM unfinished
WHERE source = (SELECT id FROM source WHERE name = :name) ORDER BY record_id"""
_AWAITED: Final = """SELECT p.record_id
FROM partial AS p JOIN unfinished AS u ON u.source = p.source AND u.record_id = p.record_id
WHERE NOT p.is_in_progress AND p.rule = '' AND u.seen_at IS NULL
    AND p.source = (SELECT id FROM source WHERE name = :name)"""
_SKIPPED_AT: Final = f"""{SKIPPED_ROWS}
WHERE source = (SELECT id FROM source WHERE name = :name) AND record_id = :record_id"""


class StoreState(NamedTuple):
    """What is known of a store.

    `mark` is that of the last change. `compared_at`: when its sources were last looked through.
    """

    mark: str
    last_change: int
    needs: frozenset[str]
    read_as: str
    compared_at: int | None


class JobPage(NamedTuple):
    """Some jobs, and rows that could not be made jobs.

    Of each job the key of its run, the number of its change, and of the one with which its source
    had this run no longer, or 0. `upto`: all changes up to this one were read, and at most `left`
    are to come.
    """

    jobs: tuple[JobRecord, ...]
    runs: tuple[RunKey, ...] = ()
    changes: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    skipped: tuple[SkippedJob, ...] = ()
    upto: int = 0
    left: int = 0

    def wanted_since(self, began: int, *known: Collection[RunKey]) -> JobPage:
        """Return the page without runs that were gone by the change `began`, and are not known."""
        if not any(self.gone):
            return self
        return self.where(
            lambda run, gone: not gone or gone > began or any(run in runs for runs in known)
        )

    def where(self, is_kept: Callable[[RunKey, int], bool]) -> JobPage:
        """Return the page with some of its jobs, by run and the change by which it went."""
        rows = zip(self.jobs, self.runs, self.changes, self.gone, strict=True)
        kept = [row for row in rows if is_kept(row[1], row[3])]
        jobs, runs, changes, gone = zip(*kept, strict=True) if kept else ((),) * 4
        return self._replace(jobs=jobs, runs=runs, changes=changes, gone=gone)


def page_of(jobs: Iterable[JobRecord], skipped: Iterable[SkippedJob] = ()) -> JobPage:
    """Return a page of jobs that were asked for by name, whenever they changed."""
    found = tuple(jobs)
    nothing = (0,) * len(found)
    return JobPage(found, tuple(job.run_key for job in found), nothing, nothing, tuple(skipped))


class JobsAhead(NamedTuple):
    """Jobs behind a change, counted and not examined; `late` ended before a moment."""

    jobs: int
    late: int
    first_end: Epoch | None


def bounds(window: Window) -> tuple[int, int]:
    """Return the first and the last second of a window."""
    first = _FIRST if window.start is None else window.start
    return first, _LAST if window.end is None else window.end - 1


class StoreReader:
    """The jobs of a store. Every method raises LedgerError where it cannot be read."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._people = Distinct(connection, "person", PERSON)
        self._accounts = Distinct(connection, "account", ACCOUNT)
        self._places = Distinct(connection, "place", PLACE)
        self._benchmarks = Distinct(connection, "benchmark", BENCHMARK)
        self._distinct = self._people, self._accounts, self._places, self._benchmarks
        self._names: dict[int, str] = {}

    @property
    def path(self) -> Path:
        """Where the store is."""
        return self._path

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for statements about one part of the store; sqlite3 raises errors."""
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Answer all questions from the store as it is now."""
        with store_file.translated(self._path):
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")

    def state(self) -> StoreState:
        """Return what is known of the store itself."""
        mark, last_change, needs, read_as, compared_at = self._rows(_STATE)[0]
        return StoreState(mark, last_change, frozenset(needs.split()), read_as, compared_at)

    def knows(self, mark: str) -> bool:
        """Return whether a mark is one of this store: it has all changes up to that one."""
        return bool(self._rows(_KNOWS, {"tag": mark})[0][0])

    def changed(self, after: int, until: int) -> Iterator[JobPage]:
        """Yield what was inserted or changed after one change and until another, in order."""
        place = {"after": after, "until": until, "limit": PAGE_JOBS}
        while place["after"] < until:
            rows = self._rows(CHANGED, place)
            upto = rows[-1][0] if len(rows) == PAGE_JOBS else until
            skipped = self._rows(SKIPPED_CHANGED, place | {"until": upto})
            yield self._page(rows, skipped, upto)._replace(left=until - upto)
            place["after"] = upto

    def window(
        self,
        window: Window,
        after: tuple[Epoch, int] | None = None,
        *,
        current: bool = False,
        page_jobs: int = PAGE_JOBS,
    ) -> Iterator[JobPage]:
        """Yield the jobs that ended in a window, by end and change, from behind a place in it.

        `current`: only runs that their sources still have.
        """
        first, last = bounds(window)
        begin, position = (first, 0) if after is None or after[0] < first else after
        place = {"first": begin, "after": position, "last": last, "limit": page_jobs}
        question, skipped_from = WINDOW_CURRENT if current else WINDOW, begin
        while True:
            rows = self._rows(question, place)
            is_last = len(rows) < page_jobs
            page = self._page(rows, (), 0)
            end = last if is_last else page.jobs[-1].ended_at - 1
            skipped = self._rows(SKIPPED_WINDOW, {"first": skipped_from, "last": end})
            skipped_from = end + 1
            page = page._replace(skipped=tuple(map(self._skipped, skipped)))
            if page.jobs or page.skipped:
                yield page
            if is_last:
                return
            place["first"], place["after"] = page.jobs[-1].ended_at, page.changes[-1]

    def runs(self, window: Window) -> Iterator[Sequence[RunKey]]:
        """Yield the runs that ended in a window and that their sources still have, in portions."""
        first, last = bounds(window)
        found = self._each(RUNS_CURRENT, {"first": first, "last": last})
        while portion := [RunKey(run) for (run,) in islice(found, PAGE_JOBS)]:
            yield portion

    def count(self, window: Window) -> int:
        """Return how many runs ended in a window."""
        first, last = bounds(window)
        return int(self._rows(COUNT, {"first": first, "last": last})[0][0])

    def ahead(self, after: int, window: Window, late_before: Epoch | None) -> JobsAhead:
        """Count the runs of a window that changed after a change."""
        first, last = bounds(window)
        place = {"after": after, "until": _LAST, "first": first, "last": last}
        jobs, late, end = self._rows(COUNT_CHANGED, place | {"late_before": late_before or _FIRST})[
            0
        ]
        return JobsAhead(int(jobs), int(late), end)

    def of_jobs(self, job_ids: Iterable[JobId]) -> list[JobRecord]:
        """Return all runs of these jobs, the one that changed last at the end."""
        wanted = {_digest_of(job_id): job_id for job_id in job_ids}
        names = set(wanted.values())
        return [job for job in self._asked(_DIGESTS, list(wanted)) if job.job_id in names]

    def with_local_ids(self, local_ids: Sequence[str]) -> list[JobRecord]:
        """Return all runs that have these ids in their batch systems."""
        return list(self._asked(_LOCAL_IDS, stored(local_ids)))

    def sources(self) -> list[str]:
        """Return the names of all sources of which something was loaded."""
        return [name for _, name in self._rows(_SOURCES)]

    def newest(self, source: str, now: Epoch) -> tuple[Epoch | None, int, int]:
        """Return when the last job of a source ended, how many did in the four weeks before it, and
        of how many of these nobody measured the CPU time.
        """
        asked = {"name": source, "now": now}
        found = self._rows(NEWEST, asked)
        if not found:
            return None, 0, 0
        newest = found[0][0]
        jobs, unknown = self._rows(FOUR_WEEKS, {"name": source, "newest": newest})[0]
        return Epoch(newest), int(jobs), int(unknown)

    def cluster(self, source: str) -> str:
        """Return the cluster whose jobs a batch system has; '' of one that was never read."""
        found = self._rows(_CLUSTER, {"name": source})
        return found[0][0] if found else ""

    def pruned_at(self) -> Epoch | None:
        """Return when old jobs were looked through to be pruned; None before the first time."""
        return self._one(_PRUNED_AT)

    def begins(self) -> Epoch | None:
        """Return since when runs are there that ended: earlier ones were pruned; 0 without any."""
        return self._one(_BEGINS)

    def first_end(self) -> Epoch | None:
        """Return when the first run ended."""
        return self._one(_FIRST_END)

    def first_undecided(self) -> Epoch | None:
        """Return when the first run of a batch system ended of which a CE may have the job."""
        return self._one(_FIRST_UNDECIDED)

    def _one(self, question: str) -> Epoch | None:
        found: Epoch | None = self._rows(question)[0][0]
        return found

    def bound_to(self, source: str) -> sqlite3.Connection:
        """Return the connection, on which `source_number()` is that of a source from now on.

        It is 0 of a source that was never loaded.
        """
        found = self._rows(_NUMBER, {"name": source}) or [(0,)]
        self._bind(found[0][0])
        return self._connection

    def _bind(self, number: int) -> None:
        self._connection.create_function("source_number", 0, lambda: number, deterministic=True)

    def of_runs(self, runs: Sequence[RunKey], *, current: bool = False) -> list[JobRecord]:
        """Return those of these runs that are there; `current`: that their sources still have."""
        question = f"{_RUNS} AND NOT gone" if current else _RUNS
        return list(self._asked(question, runs))

    def _asked(self, condition: str, values: Sequence[Any]) -> Iterator[JobRecord]:
        for start in range(0, len(values), _AT_ONCE):
            part = values[start : start + _AT_ONCE]
            asked = condition.format(", ".join("?" * len(part)))
            yield from map(self.job, self._rows(f"{_JOB} WHERE {asked} ORDER BY change", part))

    def skipped_at(self, rows: Iterable[RowRef]) -> list[SkippedJob]:
        """Return what could not be made a job of these rows."""
        asked = ({"name": row.database, "record_id": row.record_id} for row in rows)
        found = chain.from_iterable(self._rows(_SKIPPED_AT, one) for one in asked)
        return [self._skipped(row) for row in found]

    def position(self, source: str) -> Position | None:
        """Return how far a source was loaded; None where it was not yet."""
        found = self._rows(_POSITION, {"name": source})
        return Position(found[0][0]) if found else None

    def parts(self, source: str) -> Mapping[int, bytes]:
        """Return the digests of the parts of a source that were compared as a whole."""
        return dict(self._rows(_PARTS, {"name": source}))

    def unfinished(self, source: str) -> list[OpenRow]:
        """Return the rows of a source that are to be read again."""
        rows = self._rows(_UNFINISHED, {"name": source})
        return [OpenRow(RowRef(source, number), seen_at) for number, seen_at in rows]

    def awaiting(self, source: str) -> frozenset[RowRef]:
        """Return the rows of a CE whose jobs are over, and wait for their batch system's record."""
        rows = self._rows(_AWAITED, {"name": source})
        return frozenset(RowRef(source, record_id) for (record_id,) in rows)

    def incomplete(self) -> frozenset[str]:
        """Return the sources that were never loaded to their end."""
        return frozenset(name for (name,) in self._rows(_INCOMPLETE))

    def first_loads(self) -> Mapping[str, int]:
        """Return by source the last change of its first load, in a store after another one.

        Nobody can tell what a source has forgotten since the other one loaded it.
        """
        return dict(self._rows(_FIRST_LOADS))

    def translated(self) -> AbstractContextManager[None]:
        """Raise LedgerError for what SQLite raises of statements on the connection."""
        return store_file.sqlite_translated(self._path)

    def distinct(self, question: str, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
        """Yield what many jobs share, by number: the rows of a question of `id` and columns."""
        for number, *row in self._each(question):
            yield number, distinct_values(columns, restored(row))

    def _rows(self, question: str, place: Mapping[str, Any] | Sequence[Any] = ()) -> list[Row]:
        with store_file.translated(self._path):
            return self._connection.execute(question, place).fetchall()

    def _each(self, question: str, place: Mapping[str, Any] | Sequence[Any] = ()) -> Iterator[Row]:
        """Yield rows while they are read."""
        with store_file.translated(self._path):
            cursor = self._connection.execute(question, place)
            # `yield from` would close the cursor of a store that may be closed by then.
            while (row := cursor.fetchone()) is not None:
                yield row

    def _page(self, rows: Sequence[Row], skipped: Sequence[Row], upto: int) -> JobPage:
        with store_file.translated(self._path):
            jobs = tuple(map(self.job, rows))
            missed = tuple(map(self._skipped, skipped))
        if not rows:
            return JobPage((), skipped=missed, upto=upto)
        runs, changes, gone = zip(*map(_KEYS_OF_ROW, rows), strict=True)
        return JobPage(jobs, runs, changes, gone, missed, upto)

    def job(self, row: Row) -> JobRecord:
        """Return the job of a row with the columns `READ`."""
        return job_of(row, self._name_of(row[1]), self.shared(row[SHARED]))

    def shared(self, numbers: Row) -> Row:
        """Return what many jobs share, of the numbers of a person, account, place, benchmark."""
        person, account, place, benchmark = numbers
        of_person, of_account = self._people.values[person], self._accounts.values[account]
        return (
            *of_person,
            *of_account,
            *self._places.values[place],
            *self._benchmarks.values[benchmark],
        )

    def _skipped(self, row: Row) -> SkippedJob:
        return skipped_of(row[1:], self._name_of(row[0]))

    def _name_of(self, source: int) -> str:
        if source not in self._names:
            self._names = dict(self._connection.execute(_SOURCES))
        return self._names[source]


def _digest_of(job_id: JobId) -> bytes:
    return bytes(run_key(0, job_id, "")[4:11])
