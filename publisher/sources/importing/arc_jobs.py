"""Runs of a batch system that belong to the ARC CEs in front of it, and those that a CE may yet claim.

A CE writes down the batch system's number of a job only when it has seen the end. So a run that no CE has, and that ended not
long ago, waits in the table `ArcRun` of the database that is imported into. A run that a CE has leaves it, or stays for whoever
joins it to the CE's job (`sources/importing/joined.py`).
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from publisher.model.errors import SourceError, UsageError
from publisher.sources.base import GPU_MODELS, QUANTITIES
from publisher.sources.importers import ImportedJob
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile, check_readable

# Numbers of the batch system come again after months or years; A-REX notices an end some minutes later, at times hours.
APART_S: Final = 86_400
_AT_ONCE: Final = 500  # SQLite before 3.32 takes 999 parameters
_DAY_S: Final = 86_400

# The sign keeps SQLite from the index over InfoKey, by which it would look at all jobs.
_NO_OTHER_LRMS: Final = """
    AND NOT EXISTS (
        SELECT 1 FROM JobExtraInfo
        WHERE JobExtraInfo.RecordID = AAR.RecordID AND +InfoKey = 'lrms' AND InfoValue <> '' AND instr(lower(InfoValue), ?) = 0
    )
"""

ARC_RUNS: Final = """
    CREATE TABLE IF NOT EXISTS ArcRun (
        JobID TEXT NOT NULL,
        LocalJobID TEXT NOT NULL,   -- as a CE may call it; there may be several
        Importer TEXT NOT NULL,
        StartTime INTEGER NOT NULL,
        EndTime INTEGER NOT NULL,
        Waits INTEGER NOT NULL,     -- 1: no CE has it yet
        FileID INTEGER,
        Job TEXT NOT NULL,          -- the row as it would be in AAR, in JSON
        Adds TEXT NOT NULL,         -- what of it may be joined to the CE's job, by field of a job record, in JSON; or ''
        PRIMARY KEY (JobID, LocalJobID)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS ArcRun_LocalJobID ON ArcRun (LocalJobID);
    CREATE INDEX IF NOT EXISTS ArcRun_Waits ON ArcRun (EndTime) WHERE Waits;
"""
# Of two that claim one JobID the later and greater stays, unless it is replaced: the order of files does not matter.
_KEEP: Final = """
    INSERT INTO ArcRun VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        StartTime = excluded.StartTime, EndTime = excluded.EndTime, Waits = min(Waits, excluded.Waits),
        FileID = excluded.FileID, Job = excluded.Job, Adds = excluded.Adds
    WHERE ? OR excluded.Waits < Waits OR (excluded.EndTime, excluded.Job) > (EndTime, Job)
"""
_REMOVE: Final = "DELETE FROM ArcRun WHERE JobID = ?"
_WAITING: Final = "SELECT DISTINCT JobID FROM ArcRun WHERE Waits AND Importer = ? ORDER BY EndTime"
_RUNS: Final = """
    SELECT JobID, LocalJobID, FileID, Job FROM ArcRun
    WHERE JobID IN (SELECT value FROM json_each(?)) ORDER BY JobID, LocalJobID
"""
_OF_NUMBERS: Final = """
    SELECT LocalJobID, JobID, StartTime, EndTime, Adds FROM ArcRun
    WHERE LocalJobID IN (SELECT value FROM json_each(:numbers))
"""
_ENDED: Final = "SELECT count(DISTINCT JobID) FROM ArcRun WHERE Importer = ? AND EndTime >= ? AND EndTime < ?"

Run = tuple[str, int, int]  # the batch system's number, start and end as epoch seconds
ArcIds = Callable[[ImportedJob], Sequence[str]]


class ArcRun(NamedTuple):
    """A run, the numbers under which a CE may know it, and the file that told of it."""

    job: ImportedJob
    arc_ids: Sequence[str]
    file: int | None


class SortedRuns(NamedTuple):
    """What is to become of some runs."""

    own: list[ArcRun]  # no CE has them
    claimed: list[ArcRun]
    waiting: list[ArcRun]


class ArcJobs:
    """The accounting databases of the CEs in front of one batch system; there may be none."""

    def __init__(self, databases: Sequence[Path], wait_s: int, own: Path, lrms: str, *, join: bool = False) -> None:
        """`own` is the database that is imported into: what cannot be shared is copied beside it. With `lrms`, jobs of which
        A-REX names a batch system that is not called so do not count. `join`: what is a CE's is kept.

        Raises: UsageError when it is one of them, SourceError when one cannot be read.
        """
        if own.resolve() in {path.resolve() for path in databases}:
            raise UsageError(f"{own}: is the database to write, and in arc_databases too; name A-REX's own there")
        self._wait_s = wait_s
        self.watching = bool(databases)
        self.join = join
        self._lrms = lrms
        self._copies = CopyDirectory(own.absolute().parent)
        self._files: list[ReadOnlyFile] = []
        try:
            for path in databases:
                check_arc_database(path)
                self._files.append(ReadOnlyFile(str(path), self._copies))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._copies.close()

    def sorted(self, runs: Sequence[ArcRun], now: int) -> SortedRuns:
        """Whose these runs are. Raises: SourceError."""
        if not self.watching:
            return SortedRuns(list(runs), [], [])
        spans = self._spans(sorted({number for run in runs for number in run.arc_ids}))
        found = SortedRuns([], [], [])
        for run in runs:
            job = run.job
            of_run = (span for number in run.arc_ids for span in spans.get(number, ()))
            if any(_overlap(span, job.started_at, job.ended_at) for span in of_run):
                found.claimed.append(run)
            elif now - self._wait_s < job.ended_at <= now + _DAY_S:
                found.waiting.append(run)
            else:
                found.own.append(run)
        return found

    def _spans(self, numbers: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        """From the submission to the end of the jobs of each number."""
        spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for file in self._files:
            for start in range(0, len(numbers), _AT_ONCE):
                chunk = numbers[start : start + _AT_ONCE]
                for number, submitted, ended in file.ask(_question(file.path, chunk, self._lrms)):
                    spans[number].append((submitted, ended))
        return spans


class ArcRunTable:
    """What an importer has in the table `ArcRun`. Changes are made inside a transaction."""

    def __init__(self, connection: sqlite3.Connection, importer: str) -> None:
        self._connection = connection
        self._importer = importer

    def keep(self, runs: Sequence[ArcRun], *, waits: bool, replace: bool = False) -> None:
        rows = []
        for job, numbers, file in runs:
            times = (job.started_at, job.ended_at)
            values = (waits, file, json.dumps(job), _additions(job), replace)
            rows += [(job.job_id, number, self._importer, *times, *values) for number in numbers]
        self._connection.executemany(_KEEP, rows)

    def remove(self, job_ids: Sequence[str]) -> None:
        self._connection.executemany(_REMOVE, [(job_id,) for job_id in job_ids])

    def waiting(self) -> list[str]:
        """The JobIDs of the runs that no CE has yet, in the order of their ends."""
        return [job_id for (job_id,) in self._connection.execute(_WAITING, (self._importer,))]

    def runs(self, job_ids: Sequence[str]) -> list[ArcRun]:
        rows = self._connection.execute(_RUNS, (json.dumps(job_ids),)).fetchall()
        return [_run(list(of_job)) for _, of_job in groupby(rows, itemgetter(0))]

    def ended_between(self, begin: int, end: int) -> int:
        """How many runs ended in [begin, end)."""
        return int(self._connection.execute(_ENDED, (self._importer, begin, end)).fetchone()[0])


def _additions(job: ImportedJob) -> str:
    """The column `Adds`. Its text tells whether a job that was published changed, so it must stay as it is written."""
    extra = dict(job.extra)
    values = {
        "gpu_count": job.gpu_count,
        "gpu_models": _numbers(extra.get(GPU_MODELS, "").split(",")),
        "memory_kib": job.memory_kib,
        "virtual_memory_kib": job.virtual_memory_kib,
        "node_count": job.node_count,
        "cpu_count": job.cpu_count,
        "hosts": [host for host in extra.get("nodenames", "").split(":") if host],
        "quantities": _numbers(extra.get(QUANTITIES, "").split()),
    }
    known = {name: value for name, value in values.items() if value}
    return json.dumps(known, separators=(",", ":"), sort_keys=True) if known else ""


def _numbers(pairs: Sequence[str]) -> list[tuple[str, int]]:
    """Of texts such as `NumTasks=4`."""
    parts = (pair.rpartition("=") for pair in pairs)
    return sorted((name, int(text)) for name, _, text in parts if text.isdecimal())


class StoredRun(NamedTuple):
    """A run that a CE has or may yet claim, as the table holds it."""

    job_id: str
    started_at: int
    ended_at: int
    adds: str


def runs_of_numbers(connection: sqlite3.Connection, numbers: Sequence[str]) -> dict[str, list[StoredRun]]:
    """The runs that a CE may know by these numbers. Raises: sqlite3.Error."""
    found: dict[str, list[StoredRun]] = defaultdict(list)
    try:
        rows = connection.execute(_OF_NUMBERS, {"numbers": json.dumps(numbers)}).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):  # nothing was read into it since it may be joined
            return {}
        raise
    for number, *run in rows:
        found[number].append(StoredRun(*run))
    return found


def _run(rows: Sequence[tuple[str, str, int | None, str]]) -> ArcRun:
    return ArcRun(job_from(rows[0][3]), [number for _, number, _, _ in rows], rows[0][2])


def job_from(text: str) -> ImportedJob:
    """The job that `Job` of `ArcRun` holds."""
    job = ImportedJob(*json.loads(text))
    interface, url = job.endpoint
    return job._replace(
        endpoint=(interface, url),
        extra=tuple((key, value) for key, value in job.extra),
        attributes=tuple((key, value) for key, value in job.attributes),
    )


def check_arc_database(path: Path) -> None:
    """Raises: SourceError when it cannot be read."""
    if not path.parent.exists() or (os.access(path.parent, os.X_OK) and not path.exists()):
        raise SourceError(
            f"{path}: there is no such file; correct arc_databases of the importer, or take it out if no ARC CE is there"
        )
    check_readable(str(path))


def _question(path: str, numbers: Sequence[str], lrms: str) -> Callable[[sqlite3.Connection], list[Run]]:
    """Numbers, submissions and ends (0: not seen yet) of the jobs that have one of these numbers."""
    question = f"""
        SELECT LocalJobID, CAST(SubmitTime AS INTEGER), CAST(EndTime AS INTEGER) FROM AAR
        WHERE LocalJobID IN ({", ".join("?" * len(numbers))}) {_NO_OTHER_LRMS if lrms else ""}
    """
    asked = [*numbers, lrms] if lrms else numbers

    def ask(connection: sqlite3.Connection) -> list[Run]:
        try:
            return [(number, begun or 0, ended or 0) for number, begun, ended in connection.execute(question, asked)]
        except sqlite3.OperationalError as error:
            if "no such" not in str(error):
                raise
            raise SourceError(f"{path}: holds no accounting tables: {error}; correct arc_databases") from error

    return ask


def _overlap(span: tuple[int, int], started_at: int, ended_at: int) -> bool:
    """A CE has a job from before it is submitted to after its end; one that it has not seen the end of is still there."""
    submitted, ended = span
    return submitted - APART_S <= started_at and (not ended or ended_at <= ended + APART_S)
