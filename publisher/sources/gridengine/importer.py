"""`import gridengine`: accounting files of every Grid Engine into the job store.

A tightly integrated parallel job has a record for each task on each host. Every record of a
parallel job is kept, so that a run is always rebuilt from all its records, in whatever order they
came. A task belongs to the run during which it started.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, Final, get_type_hints

from publisher.model.text import plural
from publisher.sources.files.line_importer import LineImporter, LogPiece, by_line
from publisher.sources.files.log_files import LogFile
from publisher.sources.files.run import ImportRun
from publisher.sources.gridengine.records import GridEngineRecord, ParallelRun, read_line
from publisher.sources.gridengine.site_mapping import GridEngineMapping, Options
from publisher.sources.importers import StoredJobs, never_stopped

__all__ = ["TABLES", "GridEngineImporter", "Options", "create"]

SUMMARY: Final = (
    "import accounting files of Grid Engine, plain or compressed; reads only what is new"
)
PATHS: Final = "accounting file, or the directory that holds it"

_LEAST_BYTES: Final = 2  # of a record; accounting(5) says to ignore shorter lines
_SECOND: Final = 1_000_000
# Start and end come from the clocks of different hosts.
_CLOCKS_APART_US: Final = 60 * _SECOND
_KEYS_AT_ONCE: Final = 200  # two parameters each; SQLite before 3.32 takes 999

_KEY: Final = ("job", "task", "pe_task", "host", "submitted_s", "started_s", "ended_s")
_KINDS: Final = get_type_hints(GridEngineRecord)
_FIELDS: Final = GridEngineRecord._fields
_COLUMNS: Final = [f"{name} {'INTEGER' if _KINDS[name] is int else 'TEXT'}" for name in _FIELDS]
# What may differ between two spellings of one record, such as seconds and microseconds.
_NUMBERS: Final = [name for name in _FIELDS if _KINDS[name] is int and name not in _KEY]

TABLES: Final = f"""
    CREATE TABLE IF NOT EXISTS GridEngineRecord (
        source INTEGER NOT NULL REFERENCES source (id),
        {" NOT NULL, ".join(_COLUMNS)} NOT NULL,
        submitted_s INTEGER NOT NULL, started_s INTEGER NOT NULL, ended_s INTEGER NOT NULL,
        merged INTEGER NOT NULL DEFAULT 0, -- a task that is part of a job
        PRIMARY KEY (source, {", ".join(_KEY)})
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS GridEngineRecord_held ON GridEngineRecord (source, ended_s)
    WHERE pe_task <> '' AND NOT merged;
"""
_PUT: Final = f"""
    INSERT INTO GridEngineRecord (
        source, {", ".join(_FIELDS)}, submitted_s, started_s, ended_s, merged
    )
    VALUES (source_number(), {", ".join("?" * (len(_FIELDS) + 4))})
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _NUMBERS)}
    WHERE ({", ".join(f"excluded.{name}" for name in _NUMBERS)}) > ({", ".join(_NUMBERS)})
"""
# A cross join lets SQLite look each job up; it scans the table for (job, task) IN (VALUES ...).
_OF_WANTED: Final = (
    "FROM wanted CROSS JOIN GridEngineRecord "
    "ON source = source_number() AND job = wanted_job AND task = wanted_task"
)
_KNOWN_JOBS: Final = f"SELECT DISTINCT job, task {_OF_WANTED}"
_OF_JOBS: Final = f"SELECT {', '.join(_FIELDS)}, merged {_OF_WANTED}"
_MERGED: Final = f"""
    UPDATE GridEngineRecord SET merged = ?
    WHERE (source, {", ".join(_KEY)}) = (source_number(), {", ".join("?" * len(_KEY))})
"""
_HELD: Final = """
    SELECT count(*), coalesce(sum(ended_s < ?), 0) FROM GridEngineRecord
    WHERE source = source_number() AND pe_task <> '' AND NOT merged
"""

JobNumber = tuple[int, int]  # job and task of an array
_Stored = list[tuple[GridEngineRecord, int]]  # each with whether a run has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Runs to be written; how many task records found theirs, and how many were there already."""

    runs: Sequence[ParallelRun]
    merged: int
    duplicates: int


def is_parallel(record: GridEngineRecord) -> bool:
    return record.slots > 1 or bool(record.pe or record.pe_task)


def key_of(record: GridEngineRecord) -> tuple[object, ...]:
    """What makes a record the same one when it is met again, in whatever unit of time."""
    return (
        *(record.job, record.task, record.pe_task, record.host),
        *(record.submitted_us // _SECOND, record.started_us // _SECOND, record.ended_us // _SECOND),
    )


def merge(connection: sqlite3.Connection, records: Sequence[GridEngineRecord]) -> Merged:
    """Keep records of parallel jobs, and remake the runs they touch. Inside a transaction."""
    if not records:
        return Merged(runs=(), merged=0, duplicates=0)
    of_job = _by_job(records)
    # Nearly every job comes in one record or at once: reading it back takes as long as the rest.
    known = {(job, task) for job, task in _ask(connection, _KNOWN_JOBS, sorted(of_job))}
    new = [job for job, its in of_job.items() if job not in known and _distinct(its)]
    runs = [run for job in new for run in _runs(of_job[job])]
    found = _tasks(runs)
    duplicates = _keep(connection, records, found)
    merged = len(found)
    for stored in _stored(connection, sorted(of_job.keys() - set(new))):
        made = _runs([record for record, _ in stored])
        runs += made
        merged += _note_merged(connection, stored, made)
    return Merged(runs=runs, merged=merged, duplicates=duplicates)


def _by_job(records: Iterable[GridEngineRecord]) -> dict[JobNumber, list[GridEngineRecord]]:
    of_job: dict[JobNumber, list[GridEngineRecord]] = defaultdict(list)
    for record in records:
        of_job[record.job, record.task].append(record)
    return of_job


def _tasks(runs: Iterable[ParallelRun]) -> set[tuple[object, ...]]:
    return {key_of(task) for run in runs for task in run.tasks}


def _keep(
    connection: sqlite3.Connection,
    records: Sequence[GridEngineRecord],
    merged: Collection[tuple[object, ...]],
) -> int:
    """Returns how many were kept before."""
    before = connection.total_changes
    keyed = [(record, key_of(record)) for record in records]
    connection.executemany(_PUT, [(*record, *key[-3:], key in merged) for record, key in keyed])
    return len(records) - (connection.total_changes - before)


def _note_merged(
    connection: sqlite3.Connection, stored: _Stored, runs: Sequence[ParallelRun]
) -> int:
    """Note of each task's record whether a run has it. Returns how many newly have one."""
    found = _tasks(runs)
    tasks = [(key_of(record), bool(was)) for record, was in stored if record.pe_task]
    changed = [key for key, was_merged in tasks if (key in found) != was_merged]
    connection.executemany(_MERGED, [(key in found, *key) for key in changed])
    return sum(key in found for key in changed)


def count_waiting(connection: sqlite3.Connection, ended_before_s: int) -> tuple[int, int]:
    """Records of tasks whose run is not there, and those among them that ended before."""
    count, orphans = connection.execute(_HELD, (ended_before_s,)).fetchone()
    return int(count), int(orphans)


def _distinct(records: Sequence[GridEngineRecord]) -> bool:
    return len(records) == 1 or len({key_of(record) for record in records}) == len(records)


def _stored(connection: sqlite3.Connection, jobs: Sequence[JobNumber]) -> list[_Stored]:
    """All that is kept of these jobs, job by job."""
    found: dict[JobNumber, _Stored] = defaultdict(list)
    for *fields, merged in _ask(connection, _OF_JOBS, jobs):
        record = GridEngineRecord(*fields)
        found[record.job, record.task].append((record, merged))
    return [found[job] for job in jobs]


def _ask(
    connection: sqlite3.Connection, question: str, jobs: Sequence[JobNumber]
) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(jobs), _KEYS_AT_ONCE):
        chunk = jobs[start : start + _KEYS_AT_ONCE]
        places = ", ".join(["(?, ?)"] * len(chunk))
        wanted = f"WITH wanted (wanted_job, wanted_task) AS (VALUES {places})"
        yield from connection.execute(f"{wanted} {question}", list(chain.from_iterable(chunk)))


def _runs(records: Sequence[GridEngineRecord]) -> list[ParallelRun]:
    """The runs of one job. Its number may be used again: each task goes to the nearest run."""
    if len(records) == 1:
        return [] if records[0].pe_task else [ParallelRun(master=records[0], tasks=())]
    ordered = sorted(records)
    # Two that began in one second have one identity: the greater stays, whichever came first.
    of_second = {record.started_us // _SECOND: record for record in ordered if not record.pe_task}
    masters = list(of_second.values())
    of_master: list[list[GridEngineRecord]] = [[] for _ in masters]
    for task in filter(attrgetter("pe_task"), ordered):
        distances = [_distance(task.started_us, master) for master in masters]
        nearest = min(distances, default=_CLOCKS_APART_US + 1)
        if nearest <= _CLOCKS_APART_US:
            of_master[distances.index(nearest)].append(task)
    return [_parallel(master, tasks) for master, tasks in zip(masters, of_master, strict=True)]


def _parallel(master: GridEngineRecord, tasks: Sequence[GridEngineRecord]) -> ParallelRun:
    ordered = sorted(tasks, key=lambda task: (task.started_us, key_of(task)))
    return ParallelRun(master=master, tasks=tuple(ordered))


def _distance(moment: int, run: GridEngineRecord) -> int:
    return max(run.started_us - moment, moment - run.ended_us, 0)


def create(
    options: object, environment: Mapping[str, str], wait: Callable[[float], bool] = never_stopped
) -> GridEngineImporter:
    """Raises: ConfigError for a map file that cannot be read."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return GridEngineImporter(options)


class GridEngineImporter(LineImporter[GridEngineRecord]):
    """An `Importer`."""

    files: ClassVar[Sequence[str]] = ("accounting", "accounting.jsonl")
    kind: ClassVar[str] = "an accounting file of Grid Engine"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._mapping = GridEngineMapping(options)
        super().__init__(self._mapping)

    def pieces(self, file: LogFile, start: int) -> Iterator[LogPiece[GridEngineRecord]]:
        unit = self._options.time_unit
        return by_line(file, start, lambda line: read_line(line, unit), least=_LEAST_BYTES)

    def skips(self, record: GridEngineRecord) -> str:
        return self._mapping.skips(record)

    def store(
        self, run: ImportRun, records: Sequence[GridEngineRecord], file: int | None
    ) -> Sequence[StoredJobs]:
        job = self._mapping.job
        alone: list[GridEngineRecord] = []
        of_parallel: list[GridEngineRecord] = []
        for record in records:
            (of_parallel if is_parallel(record) else alone).append(record)
        serial_runs = [ParallelRun(master=record, tasks=()) for record in alone]
        serial = run.store(list(map(job, serial_runs)), file=file)
        merged = merge(run.accounting.connection, of_parallel)
        parallel = run.store(list(map(job, merged.runs)), file=file, replace=True)
        incomplete = sum(record.cpu_incomplete for record in records)
        parallel = parallel._replace(unchanged=merged.duplicates, merged=merged.merged)
        return serial, parallel._replace(incomplete=incomplete)

    def finish(self, run: ImportRun) -> None:
        report, overdue_before = run.report, run.now - self._options.orphans_after_s
        with run.accounting.transaction():
            waiting = count_waiting(run.accounting.connection, overdue_before)
        report.held, report.orphans = waiting
        if report.incomplete:
            report.notes.append(
                f"{plural(report.incomplete, 'record')} (failed 37) written without the host's "
                "figures: their CPU time is what rusage reports, which may be too little"
            )
