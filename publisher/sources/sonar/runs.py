"""Every record received about jobs that are not final, and the runs of a job, made of all of them.

A row holds what was reported about a job or step with one start time; records without a start are
kept under their submission time. A run is known by its start time; a requeued job has several.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from publisher.sources.sonar.records import (
    LIVE,
    WAITING,
    Clock,
    Fields,
    Layer,
    Observation,
    merged,
    overlay,
)

TABLES: Final = """
    CREATE TABLE IF NOT EXISTS SonarJob (
        Source INTEGER NOT NULL REFERENCES source (id),
        Job INTEGER NOT NULL,
        Due INTEGER,               -- epoch seconds when to look at it; NULL: when there is news
        -- new, done, skipped, waiting (to end, or held off), steps (the job itself is missing)
        Stage TEXT NOT NULL,
        Heard INTEGER NOT NULL,    -- epoch seconds of the newest record
        Reason TEXT NOT NULL,      -- why it was skipped, or ''
        PRIMARY KEY (Source, Job)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS SonarJob_Due ON SonarJob (Source, Due) WHERE Due IS NOT NULL;
    CREATE INDEX IF NOT EXISTS SonarJob_Stage ON SonarJob (Source, Stage, Heard)
    WHERE Stage IN ('waiting', 'steps');
    CREATE TABLE IF NOT EXISTS SonarRecord (
        Source INTEGER NOT NULL REFERENCES source (id),
        Job INTEGER NOT NULL,
        Step TEXT NOT NULL,        -- '': the job itself
        Start TEXT NOT NULL,       -- on the cluster's clock, or ? and the submission
        Written INTEGER NOT NULL,  -- 1: it is a job
        Content TEXT NOT NULL,     -- JSON: layers, and the first offset claimed for each time
        PRIMARY KEY (Source, Job, Step, Start)
    ) WITHOUT ROWID;
"""
_KEYS_AT_ONCE: Final = 300  # three parameters each; SQLite before 3.32 takes 999
_KNOWN: Final = """
    SELECT Job, Step, Start, Content FROM wanted CROSS JOIN SonarRecord
    ON Source = source_number() AND Job = wanted_job AND Step = wanted_step AND Start = wanted_start
"""
_PUT: Final = """
    INSERT INTO SonarRecord VALUES (source_number(), ?, ?, ?, 0, ?)
    ON CONFLICT DO UPDATE SET Content = excluded.Content
"""
_LAST_SEEN: Final = """
    INSERT INTO SonarJob VALUES (source_number(), ?, 0, 'new', ?, '')
    ON CONFLICT DO UPDATE SET Heard = max(Heard, excluded.Heard)
"""
_TOUCHED: Final = "UPDATE SonarJob SET Due = 0 WHERE Source = source_number() AND Job = ?"
_SHORTENED: Final = "UPDATE SonarJob SET Due = 0 WHERE Source = source_number() AND Due > ?"
_DUE: Final = """
    SELECT Job, Reason FROM SonarJob WHERE Source = source_number() AND Due <= ?
    ORDER BY Due, Job LIMIT ?
"""
# In the order of the key, the job itself is before its steps.
_OF_JOB: Final = """
    SELECT Step, Start, Written, Content FROM SonarRecord
    WHERE Source = source_number() AND Job = ? ORDER BY Step, Start
"""
_SETTLE: Final = """
    UPDATE SonarJob SET Due = ?, Stage = ?, Reason = ? WHERE Source = source_number() AND Job = ?
"""
_WRITTEN: Final = """
    UPDATE SonarRecord SET Written = ?
    WHERE Source = source_number() AND Job = ? AND Step = '' AND Start = ?
"""
_STAGES: Final = """
    SELECT Stage, count(*), coalesce(sum(Heard < ?), 0) FROM SonarJob
    WHERE Source = source_number() AND Stage IN ('waiting', 'steps') GROUP BY Stage
"""

_encode: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode

Key = tuple[int, str, str]


class StoredRecord(NamedTuple):
    """A row: what was said about a job or step that began at one time."""

    step: str
    start: str
    written: bool
    layers: tuple[Layer, ...]
    offsets: Mapping[str, int | None]  # by the time on the clock, as it was claimed first


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The status of a job. `due` is when to check it again without anything new; None: never."""

    job: int
    stage: str
    due: int | None = None
    reason: str = ""
    written: Sequence[tuple[str, bool]] = ()  # starts of runs whose job came or went


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Jobs that are not over or held off, jobs with steps alone, and who of both is overdue."""

    jobs: int
    steps: int
    overdue_jobs: int
    overdue_steps: int


class _Row(NamedTuple):
    layers: list[Layer]
    offsets: dict[str, tuple[int, int | None]]  # when it was claimed, and what


def store_observations(connection: sqlite3.Connection, records: Sequence[Observation]) -> int:
    """Store records, inside a transaction; returns how many had nothing new."""
    rows = _known(connection, sorted({_key(observation) for observation in records}))
    before = {key: _text(row) for key, row in rows.items()}
    duplicates = 0
    touched: set[int] = set()
    for observation in records:
        row = rows.get(key := _key(observation))
        after = _with(row, observation)
        if row is not None and _content(row) == _content(after):
            duplicates += 1
        else:
            touched.add(observation.job)
        rows[key] = after
    changed = [(*key, text) for key, row in rows.items() if (text := _text(row)) != before.get(key)]
    connection.executemany(_PUT, changed)
    connection.executemany(_LAST_SEEN, [(each.job, each.at) for each in records])
    mark_changed(connection, touched)
    return duplicates


def mark_changed(connection: sqlite3.Connection, jobs: set[int]) -> None:
    """Have known jobs examined again, inside a transaction."""
    connection.executemany(_TOUCHED, [(job,) for job in sorted(jobs)])


def hold_off_at_most(connection: sqlite3.Connection, until: int) -> None:
    """Have jobs examined again that would be held off for longer, in a transaction."""
    connection.execute(_SHORTENED, (until,))


def due(connection: sqlite3.Connection, now: int, most: int) -> list[tuple[int, str]]:
    """Jobs that are to be examined, and why they were skipped the last time."""
    return [(job, reason) for job, reason in connection.execute(_DUE, (now, most))]


def kept(connection: sqlite3.Connection, job: int) -> Iterator[StoredRecord]:
    """All that was said about a job, row by row, the job itself before its steps."""
    for step, start, written, text in connection.execute(_OF_JOB, (job,)):
        row = _read(text)
        offsets = {clock: offset for clock, (_, offset) in row.offsets.items()}
        yield StoredRecord(step, start, bool(written), tuple(row.layers), offsets)


def settle(connection: sqlite3.Connection, settled: Sequence[JobStatus]) -> None:
    """Store the status of jobs, inside a transaction."""
    found = [(each.due, each.stage, each.reason, each.job) for each in settled]
    connection.executemany(_SETTLE, found)
    flags = [(written, each.job, start) for each in settled for start, written in each.written]
    connection.executemany(_WRITTEN, flags)


def waiting(connection: sqlite3.Connection, seen_before: int) -> Waiting:
    """What still waits; overdue is what was last heard of before that time."""
    stages: Iterable[Any] = connection.execute(_STAGES, (seen_before,))
    found = {stage: (int(count), int(late)) for stage, count, late in stages}
    jobs, steps = found.get("waiting", (0, 0)), found.get("steps", (0, 0))
    return Waiting(jobs=jobs[0], steps=steps[0], overdue_jobs=jobs[1], overdue_steps=steps[1])


def _key(observation: Observation) -> Key:
    return observation.job, observation.step, observation.start


def _known(connection: sqlite3.Connection, keys: Sequence[Key]) -> dict[Key, _Row]:
    found = {}
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        chunk = keys[start : start + _KEYS_AT_ONCE]
        places = ", ".join(["(?, ?, ?)"] * len(chunk))
        wanted = f"WITH wanted (wanted_job, wanted_step, wanted_start) AS (VALUES {places})"
        rows = connection.execute(f"{wanted} {_KNOWN}", list(chain.from_iterable(chunk)))
        for job, step, begun, text in rows:
            found[job, step, begun] = _read(text)
    return found


def _with(row: _Row | None, observation: Observation) -> _Row:
    layers = row.layers if row else []
    offsets = dict(row.offsets) if row else {}
    for clock, offset in observation.offsets.items():
        claim = (observation.at, offset)
        if clock not in offsets or _order(claim) < _order(offsets[clock]):
            offsets[clock] = claim
    new = Layer(observation.over, observation.at, observation.fields)
    return _Row(overlay(layers, new), offsets)


def _order(claim: tuple[int, int | None]) -> tuple[int, bool, int]:
    at, offset = claim
    return at, offset is None, offset or 0


def _content(row: _Row) -> tuple[Fields, dict[str, int | None]]:
    """All that is known by a row, and the offset of each time."""
    return merged(row.layers), {clock: offset for clock, (_, offset) in row.offsets.items()}


def _read(text: str) -> _Row:
    stored: dict[str, Any] = json.loads(text)
    layers = [Layer(over, at, fields) for over, at, fields in stored["layers"]]
    return _Row(layers, {clock: (at, offset) for clock, (at, offset) in stored["offsets"].items()})


def _text(row: _Row) -> str:
    return _encode({"layers": row.layers, "offsets": row.offsets})


# Slurm requeues a job some times at most; more are not one, and take forever to look at.
MOST_RUNS: Final = 200


@dataclass(slots=True, kw_only=True)
class SlurmRun:
    """One run. Times are epoch seconds; figures of the steps are 0 where they are unknown."""

    start: str  # on the cluster's clock
    started_at: int
    submitted_at: int
    ended_at: int | None
    fields: Fields
    written: bool  # it is a job already
    followed: bool = False  # by another run
    steps: int = 0
    steps_cpu_s: int = 0
    resident_kib: int = 0
    virtual_kib: int = 0

    @property
    def over(self) -> bool:
        """Whether the job ended, and when it did so is known."""
        return self.ended_at is not None and self.fields.get("state", "") not in LIVE

    @property
    def span_s(self) -> int:
        return 0 if self.ended_at is None else self.ended_at - self.started_at


@dataclass(slots=True, kw_only=True)
class JobHistory:
    """All of one job: its runs in order, what was said before it began, and unclaimed steps."""

    job: int
    runs: list[SlurmRun] = field(default_factory=list)
    waiting: Fields | None = None
    absurd: bool = False  # more runs than a job has


def read_history(job: int, rows: Iterable[StoredRecord], clock: Clock) -> JobHistory:
    """Of all rows of the job, the job itself before its steps."""
    history = JobHistory(job=job)
    begun: list[StoredRecord] = []
    not_started: list[StoredRecord] = []
    made = False
    for row in rows:
        if not row.step:
            (not_started if row.start.startswith(WAITING) else begun).append(row)
            if len(begun) + len(not_started) > MOST_RUNS:
                return JobHistory(job=job, absurd=True)
            continue
        if not made:
            _make_runs(history, begun, not_started, clock)
            made = True
        _add_step(history, row)
    if not made:
        _make_runs(history, begun, not_started, clock)
    return history


def _make_runs(
    history: JobHistory,
    begun: Sequence[StoredRecord],
    not_started: Sequence[StoredRecord],
    clock: Clock,
) -> None:
    starts = [clock.moments(row.start, row.offsets.get(row.start))[0] for row in begun]
    extra, used = _assigned(begun, not_started, starts)
    offsets = dict(chain.from_iterable(each.offsets.items() for each in not_started))
    for number, row in enumerate(begun):
        fields = _with_undated(row, extra[number])
        history.runs.append(_run(row, fields, starts[number], {**offsets, **row.offsets}, clock))
    for run in history.runs[:-1]:
        run.followed = True
    unused = [row for row in not_started if row.start not in used]
    if unused:
        history.waiting = merged(max(unused, key=_newest).layers)


def _assigned(
    begun: Sequence[StoredRecord], not_started: Sequence[StoredRecord], starts: Sequence[int]
) -> tuple[list[list[Layer]], set[str]]:
    """What records without a start report of each run, and which of these records were used."""
    extra: list[list[Layer]] = [[] for _ in begun]
    used: set[str] = set()
    for row in not_started:
        candidates = [number for number, other in enumerate(begun) if _same_submission(row, other)]
        for layer in row.layers:
            for number in _candidates(layer, candidates, begun, starts):
                extra[number].append(layer)
                used.add(row.start)
    return extra, used


def _with_undated(row: StoredRecord, undated: Sequence[Layer]) -> Fields:
    """A run's fields, filled in by what was reported without a start."""
    own = merged(row.layers)
    if undated and not _ended(own):
        return merged([*undated, *row.layers])
    return merged(undated) | own


def _candidates(
    layer: Layer, candidates: Sequence[int], begun: Sequence[StoredRecord], starts: Sequence[int]
) -> Sequence[int]:
    """Whose run a record without a start is: all, for a description, or the last open one."""
    if not layer.over:
        return candidates
    before = (at for at in candidates if starts[at] <= layer.at)
    return [at for at in before if not _ended(merged(begun[at].layers))][-1:]


def _newest(row: StoredRecord) -> tuple[int, int, str]:
    over, at = row.layers[0][:2] if row.layers else (0, 0)
    return over, at, row.start


def _same_submission(row: StoredRecord, other: StoredRecord) -> bool:
    submitted = row.start.removeprefix(WAITING)
    return not submitted or merged(other.layers).get("submit", submitted) == submitted


def _ended(fields: Fields) -> bool:
    return "end" in fields and fields.get("state", "") not in LIVE


def _run(
    row: StoredRecord, fields: Fields, started_at: int, offsets: dict[str, int | None], clock: Clock
) -> SlurmRun:
    submit, end = fields.get("submit"), fields.get("end")
    ended_at = None
    if end is not None:
        # In the hour that comes twice, what fits the time that the job took.
        expected = started_at + fields.get("elapsed", 0)
        moments = clock.moments(end, offsets.get(end))
        ended_at = min(moments, key=lambda moment: abs(moment - expected))
    submitted_at = started_at if submit is None else clock.moments(submit, offsets.get(submit))[0]
    return SlurmRun(
        start=row.start,
        started_at=started_at,
        submitted_at=submitted_at,
        ended_at=ended_at,
        fields=fields,
        written=row.written,
    )


def _add_step(history: JobHistory, row: StoredRecord) -> None:
    """A step belongs to the run that began last before it."""
    if not history.runs:
        return
    at = len(history.runs)
    if not row.start.startswith(WAITING):
        at = bisect_right(history.runs, row.start, key=lambda run: run.start)
    run = history.runs[max(0, at - 1)]
    fields = merged(row.layers)
    run.steps += 1
    run.steps_cpu_s += fields.get("cpu_s", 0)
    run.resident_kib = max(run.resident_kib, fields.get("rss", 0))
    run.virtual_kib = max(run.virtual_kib, fields.get("vm", 0))
