"""Runs of a batch system that are of the ARC CEs in front of it, or that a CE may yet claim.

A CE writes down the batch system's number of a job only when it has seen the end. So a run that no
CE has waits in the table `ArcRun` of the database that is imported into: for a while after its end,
and longer where the CE has written nothing since and has a job that is not over yet, which it may
be. A run that a CE has leaves it, or stays for whoever joins it to the CE's job (`joined.py`). A
run that became a job of the batch system stays one, whatever a CE writes later: the CE's job is set
aside, so that no run counts twice.

Each number that a CE has is remembered before the job is published (`numbers.py`), in one
transaction that waits for whoever decides about runs; a run of it stays the CE's.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from publisher.model.errors import SourceError
from publisher.model.job import JobRecord
from publisher.sources.base import NAMES_OF_AREX, AwaitedCe, has_file
from publisher.sources.files.arc.numbers import (
    APART_S,
    Run,
    SourceRuns,
    StoredRun,
    delivered_as_own,
    overlap,
    own_runs,
    spans_of,
)
from publisher.sources.files.batch_job import job_of_text, text_of_job
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile, check_readable

_AT_ONCE: Final = 500
_DAY_S: Final = 86_400
READ_AT_ONCE: Final = 5_000  # rows of a CE's database, which may keep it from writing meanwhile

# The sign keeps SQLite from the index over InfoKey, by which it would look at all jobs.
_NO_OTHER_LRMS: Final = """
    AND NOT EXISTS (
        SELECT 1 FROM JobExtraInfo
        WHERE JobExtraInfo.RecordID = AAR.RecordID AND +InfoKey = 'lrms' AND InfoValue <> ''
            AND instr(lower(InfoValue), :lrms) = 0
    )
"""
_RUN: Final = (
    "LocalJobID, CAST(coalesce(SubmitTime, 0) AS INTEGER), CAST(coalesce(EndTime, 0) AS INTEGER)"
)
_NUMBERED: Final = (
    f"SELECT {_RUN} FROM AAR WHERE LocalJobID IN (SELECT value FROM json_each(:numbers))"
)
_ENDED_RUNS: Final = f"""
    SELECT RecordID, {_RUN} FROM AAR
    WHERE RecordID > :after AND CAST(EndTime AS INTEGER) > 0
        AND LocalJobID <> '' AND LocalJobID NOT GLOB '*[^ -~]*'
"""

# Of two that claim one JobID the later and greater stays, unless it is replaced, in any order.
_KEEP: Final = """
    INSERT INTO ArcRun VALUES (source_number(), ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        StartTime = excluded.StartTime, EndTime = excluded.EndTime, FileID = excluded.FileID,
        Waits = min(Waits, excluded.Waits), Job = excluded.Job, Adds = excluded.Adds
    WHERE ? OR excluded.Waits < Waits OR (excluded.EndTime, excluded.Job) > (EndTime, Job)
"""
_REMOVE: Final = "DELETE FROM ArcRun WHERE Source = source_number() AND JobID = ?"
_WAITING: Final = """
    SELECT DISTINCT JobID FROM ArcRun WHERE Waits AND Source = source_number() ORDER BY EndTime
"""
_OLD: Final = f"""
    SELECT DISTINCT JobID FROM ArcRun
    WHERE NOT Waits AND Source = source_number() AND EndTime < ? AND JobID > ?
    ORDER BY JobID LIMIT {_AT_ONCE}
"""
_RUNS: Final = """
    SELECT JobID, LocalJobID, FileID, Job FROM ArcRun
    WHERE Source = source_number() AND JobID IN (SELECT value FROM json_each(?))
    ORDER BY JobID, LocalJobID
"""
_CLAIMED: Final = """
    SELECT JobID FROM ArcRun
    WHERE NOT Waits AND Source = source_number()
        AND JobID IN (SELECT value FROM json_each(:job_ids))
"""
# Jobs that are not over have an end of 0, and no number yet. Rows of lost jobs stay so for ever.
_SIGNS: Final = f"""
    SELECT
        (SELECT max(SubmitTime) FROM AAR WHERE SubmitTime <= :now),
        (SELECT max(EndTime) FROM AAR WHERE EndTime <= :now),
        (SELECT min(+SubmitTime) FROM AAR WHERE EndTime = 0 AND coalesce(LocalJobID, '') = ''
            AND +SubmitTime > :now - {90 * 86_400})
"""
_NAME_OWN: Final = "INSERT OR IGNORE INTO ArcNumber VALUES (source_number(), ?, ?)"
_STATES: Final = "SELECT Ce, Written, Returned, Before FROM ArcCe WHERE Source = source_number()"
_AWAITED: Final = """
    SELECT Ce, Written, Waiting, Since FROM ArcCe
    WHERE Source = source_number() AND Waiting ORDER BY Ce
"""
_FORGET_STATES: Final = "DELETE FROM ArcCe WHERE Source = source_number()"
_KEEP_STATE: Final = "INSERT OR REPLACE INTO ArcCe VALUES (source_number(), ?, ?, ?, ?, ?, ?)"
_WAITS_FOR: Final = (
    "UPDATE ArcCe SET Waiting = ?, Since = ? WHERE Source = source_number() AND Ce = ?"
)
_WAIT_FOR_CE: Final = """
    SELECT count(DISTINCT JobID), min(EndTime) FROM ArcRun
    WHERE Waits AND Source = source_number() AND EndTime > ? AND EndTime <= ? AND StartTime >= ?
"""
_ENDED: Final = (
    "SELECT count(DISTINCT JobID) FROM ArcRun "
    "WHERE Source = source_number() AND EndTime >= ? AND EndTime < ?"
)

ArcIds = Callable[[JobRecord], Sequence[str]]
_Claim = tuple[str, tuple[int, int]]  # a job of a CE: its number, submission and end


class ArcRun(NamedTuple):
    """A run, the numbers under which a CE may know it, and the file that told of it."""

    job: JobRecord
    arc_ids: Sequence[str]
    file: int | None


class SortedRuns(NamedTuple):
    """What is to become of some runs."""

    own: list[ArcRun]  # no CE has them
    claimed: list[ArcRun]
    waiting: list[ArcRun]


class Signs(NamedTuple):
    """What the databases of a CE show, as epoch seconds."""

    written: int  # what was written last
    first_open: int | None  # the submission of the first of its jobs that are not over


class Ce(NamedTuple):
    """A CE in front of the batch system."""

    name: str
    horizon: int  # of jobs that ended before, it would have told by now
    first_open: int | None

    def may_claim(self, started_at: int, ended_at: int) -> bool:
        """Whether it may yet tell that a run of these times is its own."""
        has_open = self.first_open is not None and self.first_open - APART_S <= started_at
        return has_open and ended_at > self.horizon


class ArcJobs:
    """The accounting databases of the CEs in front of one batch system; there may be none."""

    def __init__(
        self,
        databases: Sequence[Path],
        wait_s: int,
        copies_below: Path,
        lrms: str,
        *,
        outage_s: int = 0,
        join: bool = False,
    ) -> None:
        """What cannot be shared is copied to a directory below `copies_below`.

        With `lrms`, jobs of which A-REX names a batch system that is not called so do not count.
        `join`: what is a CE's is kept. Raises: SourceError when a database cannot be read.
        """
        self._wait_s = wait_s
        self._outage_s = max(wait_s, outage_s)
        self.watching = bool(databases)
        self.join = join
        self._lrms = lrms
        self._of_lrms = _NO_OTHER_LRMS if lrms else ""
        self._ces: Sequence[Ce] = ()
        self._copies = CopyDirectory(copies_below)
        self._files: list[ReadOnlyFile] = []
        try:
            for path in dict.fromkeys(databases):  # patterns may name one twice
                check_arc_database(path)
                self._files.append(ReadOnlyFile(str(path), self._copies))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._copies.close()

    def databases(self) -> list[str]:
        return [file.path for file in self._files]

    def runs_of(self, database: str) -> Iterator[list[Run]]:
        """All that have ended, some at a time. Raises: SourceError."""
        (file,) = (file for file in self._files if file.path == database)
        rows: list[Any] = [(0,)]
        while rows:
            asked = {"after": rows[-1][0]}
            rows = self._runs(file, _ENDED_RUNS, asked, f"ORDER BY RecordID LIMIT {READ_AT_ONCE}")
            yield [run for _, *run in rows]

    def ask(
        self, database: str, columns: str, which: str, values: Mapping[str, object]
    ) -> list[Any]:
        """Rows of all batch systems' jobs; their last column tells whether it may be this one.

        Raises: SourceError.
        """
        (file,) = (file for file in self._files if file.path == database)
        statement = f"SELECT {columns}, 1 {self._of_lrms} FROM AAR {which}"
        return _answer(file, statement, {**values, "lrms": self._lrms})

    def look(self, connection: sqlite3.Connection, now: int) -> None:
        """See what each CE has written last, inside a transaction. Raises: SourceError."""
        states = {name: state for name, *state in connection.execute(_STATES)}
        connection.execute(_FORGET_STATES)
        ces = []
        for name, signs in self._signs(now).items():
            written, returned, before = states.get(name, (signs.written, 0, 0))
            if signs.written - written > self._wait_s:  # it may have much to tell of
                returned, before = now, before if now < returned + self._wait_s else written
            written = max(written, signs.written)
            connection.execute(_KEEP_STATE, (name, written, returned, before, 0, None))
            written_all = before if now < returned + self._wait_s else written
            horizon = max(written_all - self._wait_s, now - self._outage_s)
            ces.append(Ce(name, horizon, signs.first_open))
        self._ces = ces

    def keep_waiting(self, connection: sqlite3.Connection, now: int) -> None:
        """Note how many runs wait for each CE longer than runs do, inside a transaction."""
        for ce in self._ces if self._wait_s else ():
            if ce.first_open is not None:
                asked = (ce.horizon, now - self._wait_s, ce.first_open - APART_S)
                waiting, ended_at = connection.execute(_WAIT_FOR_CE, asked).fetchone()
                since = None if ended_at is None else ended_at + self._wait_s
                connection.execute(_WAITS_FOR, (waiting, since, ce.name))

    def sorted(self, runs: Sequence[ArcRun], now: int, store: SourceRuns) -> SortedRuns:
        """Whose these runs are. Raises: SourceError."""
        connection = store.connection
        if not self.watching:
            return SortedRuns(list(runs), [], [])
        spans, numbers = self._spans(runs), _numbers_of(runs)
        for number, submitted, ended in spans_of(connection, numbers):
            spans[number].append((submitted, ended))
        ours = own_runs(store, list(spans))
        once_claimed = _once_claimed(connection, runs)
        delivered = delivered_as_own(connection, [run.job for run in runs])
        found = SortedRuns([], [], [])
        for run in runs:
            claims = _claims(run, spans)
            if run.job.job_id in delivered or _has_own(claims, ours):
                found.own.append(run)
            elif claims or run.job.job_id in once_claimed:
                found.claimed.append(run)
            else:
                (found.waiting if self._waits(run.job, now) else found.own).append(run)
        return found

    def unclaimed(self, runs: Sequence[ArcRun]) -> list[ArcRun]:
        """Those of the runs that no CE has. Raises: SourceError."""
        spans = self._spans(runs)
        return [run for run in runs if not _claims(run, spans)]

    def _waits(self, job: JobRecord, now: int) -> bool:
        if job.ended_at > now + _DAY_S or not self._wait_s:
            return False
        times = _times(job)
        is_late = now - self._wait_s >= job.ended_at
        return not is_late or any(ce.may_claim(*times) for ce in self._ces)

    def _signs(self, now: int) -> Mapping[str, Signs]:
        """Of each CE, by its directory, or by its database where A-REX gives no such name."""
        found: dict[str, Signs] = {}
        for file in self._files:
            ((submitted, ended, first_open),) = _answer(file, _SIGNS, {"now": now})
            written = max(submitted or 0, ended or 0)
            folder, name = os.path.split(file.path)
            ce = folder if name in NAMES_OF_AREX else file.path
            before = found.get(ce, Signs(0, None))
            opens = [each for each in (before.first_open, first_open) if each is not None]
            found[ce] = Signs(max(before.written, written), min(opens, default=None))
        return found

    def _spans(self, runs: Sequence[ArcRun]) -> dict[str, list[tuple[int, int]]]:
        """From the submission to the end of each of the CEs' jobs that these runs may be."""
        spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        asked = {"numbers": json.dumps(_numbers_of(runs))}
        for file in self._files:
            for number, submitted, ended in self._runs(file, _NUMBERED, asked):
                spans[number].append((submitted, ended))
        return spans

    def _runs(
        self, file: ReadOnlyFile, statement: str, values: Mapping[str, object], order: str = ""
    ) -> list[Any]:
        """Those of the batch system, where A-REX names it. Raises: SourceError."""
        asked = {**values, "lrms": self._lrms}
        return _answer(file, f"{statement} {self._of_lrms} {order}", asked)


def _numbers_of(runs: Sequence[ArcRun]) -> list[str]:
    return sorted({number for run in runs for number in run.arc_ids})


def _once_claimed(connection: sqlite3.Connection, runs: Sequence[ArcRun]) -> set[str]:
    asked = {"job_ids": json.dumps([run.job.job_id for run in runs])}
    return {job_id for (job_id,) in connection.execute(_CLAIMED, asked)}


def _claims(run: ArcRun, spans: Mapping[str, Sequence[tuple[int, int]]]) -> list[_Claim]:
    """The jobs of CEs that a run may be."""
    times = _times(run.job)
    known = ((number, span) for number in run.arc_ids for span in spans.get(number, ()))
    return [(number, span) for number, span in known if overlap(span, *times)]


def _has_own(claims: Sequence[_Claim], ours: Mapping[str, Sequence[StoredRun]]) -> bool:
    """Whether a run of one of these jobs of CEs is a job of the batch system."""
    runs = ((span, one) for number, span in claims for one in ours.get(number, ()))
    return any(overlap(span, one.started_at, one.ended_at) for span, one in runs)


class ArcRunTable:
    """What a source has in the table `ArcRun`. Changes are made inside a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def keep(self, runs: Sequence[ArcRun], *, waits: bool, replace: bool = False) -> None:
        rows = []
        for job, numbers, file in runs:
            times = _times(job)
            values = (waits, file, text_of_job(job), _additions(job), replace)
            rows += [(job.job_id, number, *times, *values) for number in numbers]
        self._connection.executemany(_KEEP, rows)

    def name_own(self, runs: Sequence[ArcRun]) -> None:
        """Keep what else a CE may call runs that are jobs now."""
        named = ((number, job) for job, numbers, _ in runs for number in numbers)
        others = [(number, job.job_id) for number, job in named if number != job.local_id]
        self._connection.executemany(_NAME_OWN, others)

    def remove(self, job_ids: Sequence[str]) -> None:
        self._connection.executemany(_REMOVE, [(job_id,) for job_id in job_ids])

    def waiting(self) -> list[str]:
        """The JobIDs of the runs that no CE has yet, in the order of their ends."""
        return [job_id for (job_id,) in self._connection.execute(_WAITING)]

    def ended_before(self, moment: int, after: str) -> list[str]:
        """JobIDs of some runs of CEs that ended before then, in order after that JobID."""
        rows = self._connection.execute(_OLD, (moment, after))
        return [job_id for (job_id,) in rows]

    def runs(self, job_ids: Sequence[str]) -> list[ArcRun]:
        rows = self._connection.execute(_RUNS, (json.dumps(job_ids),)).fetchall()
        return [_run(list(of_job)) for _, of_job in groupby(rows, itemgetter(0))]

    def ended_between(self, begin: int, end: int) -> int:
        """How many runs ended in [begin, end)."""
        return int(self._connection.execute(_ENDED, (begin, end)).fetchone()[0])


def _times(job: JobRecord) -> tuple[int, int]:
    """When a run started, and when it ended."""
    return job.started_at or 0, job.ended_at


def _additions(job: JobRecord) -> str:
    """The column `Adds`. It tells whether a published job changed, so its text has to stay so."""
    values = {
        "gpu_count": job.gpu_count,
        "gpu_models": sorted(job.gpu_models),
        "memory_kib": job.memory_kib,
        "virtual_memory_kib": job.virtual_memory_kib,
        "node_count": job.node_count,
        "cpu_count": job.cpu_count,
        "hosts": job.hosts,
        "quantities": sorted(job.quantities),
    }
    known = {name: value for name, value in values.items() if value}
    return json.dumps(known, separators=(",", ":"), sort_keys=True) if known else ""


def _run(rows: Sequence[tuple[str, str, int | None, str]]) -> ArcRun:
    return ArcRun(job_of_text(rows[0][3]), [number for _, number, _, _ in rows], rows[0][2])


def awaited_ces(connection: sqlite3.Connection) -> list[AwaitedCe]:
    """Return the CEs that tell nothing, and for which runs of a source wait."""
    rows = connection.execute(_AWAITED).fetchall()
    return [AwaitedCe(ce, _at(written), jobs, _at(since)) for ce, written, jobs, since in rows]


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def check_arc_database(path: Path) -> None:
    """Raises: SourceError when it cannot be read."""
    if not has_file(path.parent) or (os.access(path.parent, os.X_OK) and not has_file(path)):
        raise SourceError(
            f"{path}: there is no such file; correct arc_databases of the importer, "
            "or remove it if no ARC CE is there"
        )
    check_readable(str(path))


def _answer(file: ReadOnlyFile, statement: str, values: Mapping[str, object]) -> list[Any]:
    """Raises: SourceError, also for a database of something else."""

    def ask(connection: sqlite3.Connection) -> list[Any]:
        try:
            return connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such" in str(error):
                wrong = f"{file.path}: holds no accounting tables: {error}; correct arc_databases"
                raise SourceError(wrong) from error
            raise

    return file.ask(ask)
