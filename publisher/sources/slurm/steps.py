"""Steps whose lines do not follow those of their jobs, kept until both were read.

`SlurmRun` has what the lines of each run in a file add up to, `SlurmStep` each step that was read
apart from its run. A step belongs to the run of its number in whose time it began: Slurm gives
numbers again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from sqlite3 import Connection
from typing import Any, Final, NamedTuple

from publisher.model.job import JobRecord
from publisher.sources.importers import SourceStore
from publisher.sources.slurm.records import SacctRun, SacctStep
from publisher.sources.slurm.usage import CpuParts, StepUsage, cpu_seconds, cpu_time, with_steps

TABLES: Final = """
    -- Times are epoch seconds, CPU times milliseconds; NULL: the lines have none.
    CREATE TABLE IF NOT EXISTS SlurmRun (
        Source INTEGER NOT NULL REFERENCES source (id),
        Number INTEGER NOT NULL,
        Submitted INTEGER NOT NULL,
        Started INTEGER NOT NULL,
        Ended INTEGER NOT NULL,
        OwnUser INTEGER,
        OwnSystem INTEGER NOT NULL,
        StepsUser INTEGER,
        StepsSystem INTEGER NOT NULL,
        StepsMore INTEGER NOT NULL,
        Evidence INTEGER NOT NULL,
        Steps TEXT NOT NULL,            -- the names of those that are in these sums: batch 0..3
        PRIMARY KEY (Source, Number, Submitted)
    ) WITHOUT ROWID;

    CREATE TABLE IF NOT EXISTS SlurmStep (
        Source INTEGER NOT NULL REFERENCES source (id),
        Number INTEGER NOT NULL,        -- of its job
        Name TEXT NOT NULL,
        Started INTEGER NOT NULL,
        Ended INTEGER NOT NULL,
        User INTEGER,
        System INTEGER NOT NULL,
        More INTEGER NOT NULL,
        Tasks INTEGER NOT NULL,
        Memory INTEGER NOT NULL,        -- KiB
        VirtualMemory INTEGER NOT NULL,
        Evidence INTEGER NOT NULL,
        Submitted INTEGER,              -- of the run that it belongs to; NULL: not read yet
        PRIMARY KEY (Source, Number, Name, Started)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS SlurmStep_Waits ON SlurmStep (Source, Number)
    WHERE Submitted IS NULL;
"""
# Of two readings of a run, what has more of it.
_KEEP_RUN: Final = """
    INSERT INTO SlurmRun VALUES (source_number(), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        Started = excluded.Started, Ended = excluded.Ended, OwnUser = excluded.OwnUser,
        OwnSystem = excluded.OwnSystem, StepsUser = excluded.StepsUser,
        StepsSystem = excluded.StepsSystem, StepsMore = excluded.StepsMore,
        Evidence = excluded.Evidence, Steps = excluded.Steps
    WHERE (excluded.Ended, length(excluded.Steps)) >= (Ended, length(Steps))
"""
_KEEP_STEP: Final = """
    INSERT INTO SlurmStep VALUES (source_number(), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)
    ON CONFLICT DO UPDATE SET
        Ended = excluded.Ended, User = excluded.User, System = excluded.System,
        More = excluded.More, Tasks = excluded.Tasks, Memory = excluded.Memory,
        VirtualMemory = excluded.VirtualMemory, Evidence = excluded.Evidence
    WHERE excluded.Ended >= Ended
"""
# A run that was not read from a file has what its job shows.
_KEEP_SHOWN: Final = """
    INSERT OR IGNORE INTO SlurmRun
    VALUES (source_number(), ?, ?, ?, ?, ?, ?, NULL, 0, 0, 0, '')
"""
_HAS_STEPS: Final = "SELECT EXISTS (SELECT 1 FROM SlurmStep WHERE Source = source_number())"
_WITH_STEPS: Final = """
    SELECT DISTINCT Number FROM SlurmStep
    WHERE Source = source_number() AND Number IN (SELECT value FROM json_each(?))
"""
_RUNS: Final = """
    SELECT
        Number, Submitted, Started, Ended, OwnUser, OwnSystem, StepsUser, StepsSystem, StepsMore,
        Evidence, Steps
    FROM SlurmRun WHERE Source = source_number() AND Number = ? ORDER BY Started, Submitted
"""
_STEPS: Final = """
    SELECT Name, Started, Submitted, User, System, More, Tasks, Memory, VirtualMemory, Evidence
    FROM SlurmStep WHERE Source = source_number() AND Number = ?
"""
_BELONGS: Final = """
    UPDATE SlurmStep SET Submitted = ?
    WHERE Source = source_number() AND Number = ? AND Name = ? AND Started = ?
"""
_WAITING: Final = """
    SELECT count(*) FROM SlurmStep WHERE Source = source_number() AND Submitted IS NULL
"""
_FIRST_WAITING: Final = """
    SELECT Number || '.' || Name FROM SlurmStep
    WHERE Source = source_number() AND Submitted IS NULL
    ORDER BY Number, Name LIMIT 3
"""
# What a forgotten run was given by its steps its job has, to which the same steps add nothing.
_OF_SOURCE: Final = "Source = source_number() AND Ended"
_FORGET: Final = (
    f"DELETE FROM SlurmRun WHERE {_OF_SOURCE} < :read",
    f"DELETE FROM SlurmStep WHERE {_OF_SOURCE} < :read AND Submitted IS NOT NULL",
    f"DELETE FROM SlurmStep WHERE {_OF_SOURCE} < :waiting AND Submitted IS NULL",
)
_TASKS: Final = "NumTasks"
_CLOCKS_S: Final = 1  # by which the clocks of a job's nodes and of the controller may differ


class RunUsage(NamedTuple):
    """What a run used, with all its steps that were read; the last three are at least so much."""

    job_id: str
    user_ms: int | None
    system_ms: int
    tasks: int
    memory_kib: int
    virtual_kib: int

    def added(self, job: JobRecord) -> JobRecord:
        """Return a job with what it used, where that is not less than before."""
        is_known = self.user_ms is not None
        user_s, kernel_s = cpu_seconds(self.user_ms, self.system_ms)
        if not is_known or user_s + kernel_s < job.cpu_user_s + job.cpu_kernel_s:
            user_s, kernel_s = job.cpu_user_s, job.cpu_kernel_s
        quantities = job.quantities
        if self.tasks > dict(quantities).get(_TASKS, 0):
            others = (pair for pair in quantities if pair[0] != _TASKS)
            quantities = ((_TASKS, self.tasks), *others)
        return job._replace(
            memory_kib=max(self.memory_kib, job.memory_kib or 0) or None,
            virtual_memory_kib=max(self.virtual_kib, job.virtual_memory_kib or 0) or None,
            cpu_user_s=user_s,
            cpu_kernel_s=kernel_s,
            cpu_unknown=job.cpu_unknown and not is_known,
            quantities=quantities,
        )


class _Run(NamedTuple):
    """A row of `SlurmRun`."""

    number: int
    submitted_at: int
    started_at: int
    ended_at: int
    parts: CpuParts
    steps: str


class _LoneStep(NamedTuple):
    """What is asked of `SlurmStep`."""

    name: str
    started_at: int
    run: int | None  # when that was submitted
    usage: StepUsage


@dataclass(frozen=True, slots=True)
class StepTable:
    """Steps and runs of one cluster. Changes are made inside a transaction."""

    store: SourceStore
    cluster: str

    @property
    def connection(self) -> Connection:
        return self.store.connection

    def keep(self, runs: Sequence[SacctRun], steps: Sequence[SacctStep]) -> None:
        """Keep what was read in a file."""
        put = self.connection.executemany
        put(_KEEP_RUN, [_run_row(run) for run in runs])
        put(
            _KEEP_STEP,
            [
                (int(raw_id), name, started_at, ended_at, *usage)
                for raw_id, name, _, started_at, ended_at, usage in steps
            ],
        )

    def has_steps(self) -> bool:
        """Whether any step was read apart from its run."""
        return bool(self._ask(_HAS_STEPS))

    def settle(self, numbers: Iterable[int]) -> list[RunUsage]:
        """What runs of these numbers used that have steps which were read apart."""
        if not self.has_steps():
            return []
        execute = self.connection.execute
        found = execute(_WITH_STEPS, (json.dumps(sorted(set(numbers))),)).fetchall()
        usages = []
        for (number,) in found:
            self._keep_shown(number)
            usages += self._settled(number)
        return usages

    def waiting(self) -> tuple[int, list[str]]:
        """How many steps wait for their jobs, and the first of them."""
        names = [name for (name,) in self.connection.execute(_FIRST_WAITING)]
        return self._ask(_WAITING), names

    def raise_job(self, usage: RunUsage) -> tuple[bool, bool]:
        """Whether a job changed by what its run used, and its CPU time became known."""
        before = self.store.jobs([usage.job_id]).get(usage.job_id)
        if before is None:
            return False, False
        after = usage.added(before)
        if after == before:
            return False, False
        self.store.put([after], replace=True, file=before.row.record_id)
        return True, before.cpu_unknown and not after.cpu_unknown

    def forget(self, read_before: int, waiting_before: int) -> None:
        """Forget runs with their steps, and steps that still wait, which ended before then."""
        for statement in _FORGET:
            asked = {"read": read_before, "waiting": waiting_before}
            self.connection.execute(statement, asked)

    def _keep_shown(self, number: int) -> None:
        """Keep what jobs of this number show, where their runs were not read from files."""
        prefix = f"{self.cluster}:{number}:"
        for job in self.store.with_local_ids([str(number)]):
            if job.job_id.startswith(prefix):
                user_ms = None if job.cpu_unknown else job.cpu_user_s * 1000
                times = job.submitted_at, job.started_at or 0, job.ended_at
                row = number, *times, user_ms, job.cpu_kernel_s * 1000
                self.connection.execute(_KEEP_SHOWN, row)

    def _settled(self, number: int) -> list[RunUsage]:
        """What its runs used that have such steps."""
        execute = self.connection.execute
        runs = list(map(_run, execute(_RUNS, (number,))))
        steps = list(map(_step, execute(_STEPS, (number,))))
        of_run: dict[int, list[StepUsage]] = defaultdict(list)
        for step in steps:
            run = _run_of(step, runs)
            if run is None:
                continue
            if run.submitted_at != step.run:
                execute(_BELONGS, (run.submitted_at, number, step.name, step.started_at))
            if step.name not in _names(run.steps):
                of_run[run.submitted_at].append(step.usage)
        return [self._usage(run, found) for run in runs if (found := of_run[run.submitted_at])]

    def _usage(self, run: _Run, steps: Sequence[StepUsage]) -> RunUsage:
        parts = with_steps(run.parts, steps)
        user_ms, system_ms = cpu_time(parts, run.ended_at - run.started_at)
        return RunUsage(
            f"{self.cluster}:{run.number}:{run.submitted_at}",
            user_ms,
            system_ms or 0,
            max(step.tasks for step in steps),
            max(step.memory_kib for step in steps),
            max(step.virtual_kib for step in steps),
        )

    def _ask(self, question: str) -> int:
        return int(self.connection.execute(question).fetchone()[0])


def _run(row: tuple[Any, ...]) -> _Run:
    return _Run._make((*row[:4], CpuParts._make(row[4:10]), row[10]))


def _step(row: tuple[Any, ...]) -> _LoneStep:
    return _LoneStep._make((*row[:3], StepUsage._make(row[3:])))


def _run_of(step: _LoneStep, runs: Sequence[_Run]) -> _Run | None:
    """The run in whose time a step began, the last one if there are several."""
    fitting = [
        run
        for run in runs
        if run.started_at - _CLOCKS_S <= step.started_at <= run.ended_at + _CLOCKS_S
    ]
    return fitting[-1] if fitting else None


def _run_row(run: SacctRun) -> tuple[object, ...]:
    times = (run.submitted_at, run.started_at, run.ended_at)
    return (int(run.raw_id), *times, *run.cpu_parts, _names_text(run.steps))


@lru_cache(1_000)
def _names_text(names: tuple[str, ...]) -> str:
    """Names of steps; numbers as ranges, because a job may have thousands: `batch 0..4999`."""
    numbers = sorted({int(name) for name in names if _is_number(name)})
    others = sorted({name for name in names if not _is_number(name)})
    starts = numbers[:1] + [after for before, after in pairwise(numbers) if after > before + 1]
    ends = [before for before, after in pairwise(numbers) if after > before + 1] + numbers[-1:]
    ranges = [
        f"{start}..{end}" if end > start else f"{start}"
        for start, end in zip(starts, ends, strict=True)
    ]
    return " ".join([*others, *ranges])


def _names(text: str) -> set[str]:
    """The names that `_names_text` wrote."""
    names: set[str] = set()
    for each in text.split():
        first, is_range, last = each.partition("..")
        if is_range:
            names.update(map(str, range(int(first), int(last) + 1)))
        else:
            names.add(each)
    return names


def _is_number(name: str) -> bool:
    return name.isdecimal() and (name == "0" or not name.startswith("0"))
