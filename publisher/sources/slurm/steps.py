"""Steps whose lines do not follow those of their jobs, kept until both were read.

`SlurmRun` has what the lines of each run in a file add up to, `SlurmStep` each step that was read
apart from its run. A step belongs to the run of its number in whose time it began: Slurm gives
numbers again.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from sqlite3 import Connection
from typing import Any, Final, NamedTuple

from publisher.sources.base import CPU_UNKNOWN, QUANTITIES
from publisher.sources.slurm.records import SacctRun, SacctStep
from publisher.sources.slurm.usage import CpuParts, StepUsage, cpu_seconds, cpu_time, with_steps

TABLES: Final = """
    -- Times are epoch seconds, CPU times milliseconds; NULL: the lines have none.
    CREATE TABLE IF NOT EXISTS SlurmRun (
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
        PRIMARY KEY (Number, Submitted)
    ) WITHOUT ROWID;

    CREATE TABLE IF NOT EXISTS SlurmStep (
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
        PRIMARY KEY (Number, Name, Started)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS SlurmStep_Waits ON SlurmStep (Number) WHERE Submitted IS NULL;
"""
# Of two readings of a run, what has more of it.
_KEEP_RUN: Final = """
    INSERT INTO SlurmRun VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        Started = excluded.Started, Ended = excluded.Ended, OwnUser = excluded.OwnUser,
        OwnSystem = excluded.OwnSystem, StepsUser = excluded.StepsUser,
        StepsSystem = excluded.StepsSystem, StepsMore = excluded.StepsMore,
        Evidence = excluded.Evidence, Steps = excluded.Steps
    WHERE (excluded.Ended, length(excluded.Steps)) >= (Ended, length(Steps))
"""
_KEEP_STEP: Final = """
    INSERT INTO SlurmStep VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)
    ON CONFLICT DO UPDATE SET
        Ended = excluded.Ended, User = excluded.User, System = excluded.System,
        More = excluded.More, Tasks = excluded.Tasks, Memory = excluded.Memory,
        VirtualMemory = excluded.VirtualMemory, Evidence = excluded.Evidence
    WHERE excluded.Ended >= Ended
"""
# A run that was not read from a file has what AAR shows of it.
_FROM_AAR: Final = """
    INSERT OR IGNORE INTO SlurmRun
    SELECT
        CAST(:number AS INTEGER), SubmitTime, StartTime, EndTime,
        iif(:unknown IN (SELECT InfoKey FROM JobExtraInfo e WHERE e.RecordID = a.RecordID),
            NULL, UsedCPUUserTime * 1000),
        UsedCPUKernelTime * 1000, NULL, 0, 0, 0, ''
    FROM AAR a WHERE JobID > :prefix || ':' AND JobID < :prefix || ';'
"""
_HAS_STEPS: Final = "SELECT EXISTS (SELECT 1 FROM SlurmStep)"
_WITH_STEPS: Final = (
    "SELECT DISTINCT Number FROM SlurmStep WHERE Number IN (SELECT value FROM json_each(?))"
)
_RUNS: Final = "SELECT * FROM SlurmRun WHERE Number = ? ORDER BY Started, Submitted"
_STEPS: Final = """
    SELECT Name, Started, Submitted, User, System, More, Tasks, Memory, VirtualMemory, Evidence
    FROM SlurmStep WHERE Number = ?
"""
_BELONGS: Final = """
    UPDATE SlurmStep SET Submitted = ? WHERE Number = ? AND Name = ? AND Started = ?
"""
_WAITING: Final = "SELECT count(*) FROM SlurmStep WHERE Submitted IS NULL"
_FIRST_WAITING: Final = """
    SELECT Number || '.' || Name FROM SlurmStep WHERE Submitted IS NULL
    ORDER BY Number, Name LIMIT 3
"""
# What a forgotten run was given by its steps AAR has, to which the same steps add nothing.
_FORGET: Final = (
    "DELETE FROM SlurmRun WHERE Ended < :read",
    "DELETE FROM SlurmStep WHERE Ended < :read AND Submitted IS NOT NULL",
    "DELETE FROM SlurmStep WHERE Ended < :waiting AND Submitted IS NULL",
)
_USED: Final = """
    SELECT RecordID, UsedMemory, UsedVirtMem, UsedCPUUserTime, UsedCPUKernelTime
    FROM AAR WHERE JobID = ?
"""
_EXTRA: Final = "SELECT InfoKey, InfoValue FROM JobExtraInfo WHERE RecordID = ? ORDER BY rowid"
_RAISE: Final = """
    UPDATE AAR SET UsedMemory = ?, UsedVirtMem = ?, UsedCPUUserTime = ?, UsedCPUKernelTime = ?
    WHERE RecordID = ?
"""
_PUT_EXTRA: Final = "INSERT INTO JobExtraInfo (RecordID, InfoKey, InfoValue) VALUES (?, ?, ?)"
_TASKS: Final = re.compile(r"NumTasks=([0-9]+) ")
_CLOCKS_S: Final = 1  # by which the clocks of a job's nodes and of the controller may differ


class RunUsage(NamedTuple):
    """What a run used, with all its steps that were read; the last three are at least so much."""

    job_id: str
    user_ms: int | None
    system_ms: int
    tasks: int
    memory_kib: int
    virtual_kib: int

    def added(self, job: UsedByJob) -> UsedByJob:
        """What a job used, where that is not less than before."""
        extra = dict(job.extra)
        known = self.user_ms is not None
        user_s, kernel_s = cpu_seconds(self.user_ms, self.system_ms)
        if not known or user_s + kernel_s < job.cpu_user_s + job.cpu_kernel_s:
            user_s, kernel_s = job.cpu_user_s, job.cpu_kernel_s
        if known:
            extra.pop(CPU_UNKNOWN[0], None)
        quantities = extra.get(QUANTITIES, "")
        found = _TASKS.match(quantities)
        if self.tasks > (int(found[1]) if found else 0):
            extra[QUANTITIES] = f"NumTasks={self.tasks} {_TASKS.sub('', quantities)}"
        return UsedByJob(
            max(self.memory_kib, job.memory_kib),
            max(self.virtual_kib, job.virtual_memory_kib),
            user_s,
            kernel_s,
            tuple(extra.items()),
        )


class UsedByJob(NamedTuple):
    """Fields of an `ImportedJob` that its steps change."""

    memory_kib: int
    virtual_memory_kib: int
    cpu_user_s: int
    cpu_kernel_s: int
    extra: tuple[tuple[str, str], ...]


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

    connection: Connection
    cluster: str

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
            prefix = f"{self.cluster}:{number}"
            asked = {"number": number, "prefix": prefix, "unknown": CPU_UNKNOWN[0]}
            execute(_FROM_AAR, asked)
            usages += self._settled(number)
        return usages

    def waiting(self) -> tuple[int, list[str]]:
        """How many steps wait for their jobs, and the first of them."""
        names = [name for (name,) in self.connection.execute(_FIRST_WAITING)]
        return self._ask(_WAITING), names

    def raise_job(self, usage: RunUsage) -> tuple[bool, bool]:
        """Whether the row of a job changed by what its run used, and its CPU time became known."""
        execute = self.connection.execute
        row = execute(_USED, (usage.job_id,)).fetchone()
        if row is None:
            return False, False
        record_id, *used = row
        extra = tuple(execute(_EXTRA, (record_id,)).fetchall())
        before = UsedByJob._make((*used, extra))
        after = usage.added(before)
        if after == before:
            return False, False
        execute(_RAISE, (*after[:4], record_id))
        if after.extra != before.extra:
            execute("DELETE FROM JobExtraInfo WHERE RecordID = ?", (record_id,))
            rows = [(record_id, key, value) for key, value in after.extra]
            self.connection.executemany(_PUT_EXTRA, rows)
        became_known = CPU_UNKNOWN in before.extra and CPU_UNKNOWN not in after.extra
        return True, became_known

    def forget(self, read_before: int, waiting_before: int) -> None:
        """Forget runs with their steps, and steps that still wait, which ended before then."""
        for statement in _FORGET:
            asked = {"read": read_before, "waiting": waiting_before}
            self.connection.execute(statement, asked)

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
