"""A-REX's finished jobs for reports, in groups: columns, and what only a report asks of them.

Jobs that are not complete yet count here: what they used is all there when they have an end.

    columns of 4,000 runs with 30 examples, their first projects and true starts
        ->   50 groups of runs that share all that
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from publisher.model.job import Epoch, JobRecord, RunColumns, gpus_by_model
from publisher.model.time import Window
from publisher.sources.arex import queries as sql
from publisher.sources.arex.counting.joined import ReopenedDatabases, known_of, lacking
from publisher.sources.arex.database import (
    BEFORE_ALL,
    LAST_SECOND,
    AccountingDatabase,
    RowPage,
    bounds,
    without_finished_in,
)
from publisher.sources.arex.options import database_files
from publisher.sources.arex.rows import ReadOptions, RowReader
from publisher.sources.arex.values import LocalTime, exit_code, gpu_models_of, positive, text_of
from publisher.sources.base import CPU_UNKNOWN, GPU_MODELS, Additions, JoinedRuns
from publisher.sources.statistics import LocalNames, UsageGroup, UsagePage

_PAGE_ROWS: Final = 4_000  # in one transaction, which no writer notices
_NOTHING: Final[Mapping[str, Any]] = {}
_FAILED: Final = "failed"
_NamesAndExit = tuple[LocalNames, int | None]  # with the exit code of a failed job
_GPUs = tuple[int, tuple[tuple[str, int], ...]]  # how many, and of which models
_NONE: Final[_GPUs] = (0, ())
# By example, era, who, GPUs, and whether nobody measured the CPU time.
_Alike = tuple[int, int, _NamesAndExit, _GPUs, bool]


def create(
    options: object, environment: Mapping[str, str], joined: JoinedRuns | None = None
) -> ArexUsage:
    """Raises: ConfigError when the time zone cannot be found."""
    return ArexUsage(options, environment, joined)


class ArexUsage(ReopenedDatabases):
    """A `UsageReader`."""

    def groups(self, window: Window, eras: Sequence[Epoch], *, alone: bool) -> Iterator[UsagePage]:
        # Nothing is waited for.
        asked = ReadOptions(
            needs=frozenset(), now=Epoch(LAST_SECOND), remembers=False, columns=not alone
        )
        first, last = bounds(window)
        with ExitStack() as stack:
            opened: list[_UsageDatabase] = []
            for name, path, ce in database_files(self._options):
                reading = self._readings[ce]._replace(hold_off_s=0)
                opened.append(_UsageDatabase(path, self._copies, reading, name))
                opened[-1].joined = self._joined_of(path)
                stack.callback(opened[-1].close)
            # The most authoritative first, as `ArexSource` has them.
            opened.sort(key=lambda each: -each.schema)
            for place, database in enumerate(opened):
                after = first, BEFORE_ALL
                while True:
                    found, beside = database.page(after, last, asked, opened[:place])
                    verdicts, groups = found.verdicts, _Groups(eras, database.clock)
                    of_jobs = groups.of_jobs(verdicts.jobs)
                    yield UsagePage(
                        groups=(*of_jobs, *groups.of_runs(verdicts.runs, beside)),
                        unreadable=len(verdicts.skipped),
                        rows_read=len(found.rows),
                    )
                    if len(found.rows) < _PAGE_ROWS:
                        break
                    after = found.rows[-1][sql.END[asked.columns]], found.rows[-1][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """What stands of runs beside their columns, by row and as stored."""

    times: Mapping[int, tuple[int, Any, Any]]  # submission, true start, and the exit code
    projects: Mapping[int, str]
    local_users: Mapping[int, str]
    # What importers alone tell.
    imported: bool = False
    gpus: Mapping[int, _GPUs] = field(default_factory=dict)
    cpu_unknown: frozenset[int] = frozenset()  # nobody measured their CPU time


class _UsageDatabase(AccountingDatabase):
    """One accounting database, open for a report."""

    joined: JoinedRuns | None = None

    def page(
        self,
        after: tuple[int, int],
        last: int,
        asked: ReadOptions,
        above: Sequence[AccountingDatabase],
    ) -> tuple[RowPage, _Beside]:
        """Rows by (EndTime, RecordID) past that position. Raises: SourceError."""
        question = sql.WINDOW_TO_COUNT if asked.columns else sql.WINDOW
        parameters = {"first": after[0], "after": after[1], "last": last, "limit": _PAGE_ROWS}

        def read(connection: sqlite3.Connection, reader: RowReader) -> tuple[RowPage, _Beside]:
            row_filter = without_finished_in(above)
            found = self._read(question, parameters, asked, row_filter, connection, reader)
            runs = found.verdicts.runs
            record_ids = () if runs is None else runs.record_ids
            rows = {"rows": json.dumps(record_ids)}
            times = connection.execute(sql.times_of_row(reader.layout), rows)
            projects, users = (
                connection.execute(sql.extra_of_row(key), rows).fetchall()
                for key in sql.EXTRA_TO_COUNT
            )
            beside = _Beside(
                times={row: (submitted, start, code) for row, submitted, start, code in times},
                projects={row: reader.text(name) for row, name in reversed(projects) if name},
                local_users={row: reader.text(name) for row, name in users},
            )
            if reader.layout == sql.IMPORTED:
                gpus, cpu_unknown = _gpus(connection, rows), _cpu_unknown(connection, runs)
                beside = replace(beside, imported=True, gpus=gpus, cpu_unknown=cpu_unknown)
            return self._with_joined(connection, reader, found, beside)

        return self.ask(read)

    def _with_joined(
        self, connection: sqlite3.Connection, reader: RowReader, found: RowPage, beside: _Beside
    ) -> tuple[RowPage, _Beside]:
        """With what batch systems know of the jobs, and without those that they count.

        Raises: sqlite3.Error.
        """
        verdicts, runs = found.verdicts, found.verdicts.runs
        rows: list[tuple[Any, ...]] = [
            (job.row.record_id, job.local_id, job.submitted_at, job.ended_at, job.wall_s)
            for job in verdicts.jobs
        ]
        if runs is not None:
            record_ids, submitted = (
                runs.record_ids,
                [beside.times[row][0] for row in runs.record_ids],
            )
            rows += zip(
                record_ids, runs.local_ids, submitted, runs.ended_at, runs.wall_s, strict=True
            )
        known = known_of(connection, reader, self.joined, rows)
        if not known:
            return found, beside
        values_of = [known.get(job.row.record_id, _NOTHING) for job in verdicts.jobs]
        pairs = zip(verdicts.jobs, values_of, strict=True)
        verdicts.jobs = [
            job._replace(**lacking(job, values)) for job, values in pairs if values is not None
        ]
        if runs is not None:
            verdicts.runs = _runs_with_joined(runs, known)
        return found, replace(beside, gpus=_gpus_joined(known))


def _gpus_joined(known: Additions) -> dict[int, _GPUs]:
    return {
        row: (values["gpu_count"], values.get("gpu_models", ()))
        for row, values in known.items()
        if values and "gpu_count" in values
    }


def _runs_with_joined(runs: RunColumns, known: Additions) -> RunColumns:
    """With the cores that A-REX does not know, and without the runs that a batch system counts."""
    made: dict[tuple[int, object], JobRecord] = {}
    examples = []
    for row, example in zip(runs.record_ids, runs.examples, strict=True):
        cores = (known.get(row) or {}).get("cpu_count")
        if cores and not example.cpu_count:
            example = made.setdefault((id(example), cores), example._replace(cpu_count=cores))
        examples.append(example)
    counts = [known.get(row, {}) is not None for row in runs.record_ids]
    return runs._replace(examples=examples).only(counts)


def _gpus(connection: sqlite3.Connection, rows: Mapping[str, str]) -> dict[int, _GPUs]:
    counts = connection.execute(sql.GPUS_OF_ROW[sql.IMPORTED], rows).fetchall()
    models = dict(connection.execute(sql.extra_of_row(GPU_MODELS), rows)) if counts else {}
    return {row: (count, gpu_models_of(text_of(models.get(row)))) for row, count in counts}


def _cpu_unknown(connection: sqlite3.Connection, runs: RunColumns | None) -> frozenset[int]:
    """Few rows have no CPU time, so nearly none is looked up."""
    if runs is None:
        return frozenset()
    used = zip(runs.record_ids, runs.cpu_user_s, runs.cpu_kernel_s, strict=True)
    without = [row for row, user_s, kernel_s in used if not (user_s or kernel_s)]
    found = connection.execute(sql.extra_of_row(CPU_UNKNOWN[0]), {"rows": json.dumps(without)})
    return frozenset(row for row, text in found if text == CPU_UNKNOWN[1])


class _Groups:
    """Puts the runs of a page together."""

    def __init__(self, eras: Sequence[Epoch], clock: LocalTime) -> None:
        self._eras = eras
        self._clock = clock

    def of_jobs(self, jobs: Sequence[JobRecord]) -> Iterator[UsageGroup]:
        """Each by itself."""
        for job in jobs:
            waits = () if job.started_at is None else (job.started_at - job.submitted_at,)
            names = LocalNames(next(iter(job.projects), ""), job.local_group, job.local_user)
            used = 1, job.wall_s, None if job.cpu_unknown else job.cpu_user_s + job.cpu_kernel_s
            gpus = gpus_by_model(job.gpu_count, job.gpu_models)
            failure = job.exit_code if job.status == _FAILED else None
            yield self._group(job, job.ended_at, (names, failure), used, waits, gpus)

    def of_runs(self, runs: RunColumns | None, beside: _Beside) -> Iterator[UsageGroup]:
        """Those together that share all but times and usage."""
        if runs is None:
            return
        alike: defaultdict[_Alike, list[int]] = defaultdict(list)
        ended = zip(runs.record_ids, runs.examples, runs.ended_at, strict=True)
        for at, (row, example, end) in enumerate(ended):
            user, _, account = beside.local_users.get(row, "").partition(":")
            names = LocalNames(beside.projects.get(row, ""), account, user)
            failure = exit_code(beside.times[row][2]) if example.status == _FAILED else None
            era, gpus_and_models = bisect_right(self._eras, end), beside.gpus.get(row, _NONE)
            cpu_unknown = row in beside.cpu_unknown
            alike[id(example), era, (names, failure), gpus_and_models, cpu_unknown].append(at)
        for (_, _, names_and_exit, (count, models), cpu_unknown), places in alike.items():
            columns = runs.wall_s, runs.cpu_user_s, runs.cpu_kernel_s
            wall_s, user_s, kernel_s = (sum(map(column.__getitem__, places)) for column in columns)
            used = len(places), wall_s, None if cpu_unknown else user_s + kernel_s
            example, end = runs.examples[places[0]], runs.ended_at[places[0]]
            waits = [wait for at in places for wait in self._wait(runs, at, beside)]
            gpus = gpus_by_model(count, models)
            yield self._group(example, end, names_and_exit, used, waits, gpus)

    def _wait(self, runs: RunColumns, at: int, beside: _Beside) -> Iterator[int]:
        """From submission to true start, where that is told.

        By an importer in seconds, by A-REX in its local time.
        """
        submitted, start, _ = beside.times[runs.record_ids[at]]
        if start is None:
            return
        if beside.imported:
            known = positive(start)
        else:
            ended_at, wall_s = runs.ended_at[at], runs.wall_s[at]
            known = self._clock.epoch(text_of(start), ended_at=ended_at, wall_s=wall_s)
        if known is not None:
            yield known - submitted

    def _group(
        self,
        example: JobRecord,
        ended_at: Epoch,
        names_and_exit: _NamesAndExit,
        used: tuple[int, int, int | None],
        waits_s: Sequence[int],
        gpus: Sequence[tuple[str, int]],
    ) -> UsageGroup:
        jobs, wall_s, cpu_s = used
        names, failure = names_and_exit
        return UsageGroup(
            era=bisect_right(self._eras, ended_at),
            example=example,
            names=names,
            exit_code=failure,
            jobs=jobs,
            wall_s=wall_s,
            cpu_s=cpu_s,
            waits_s=waits_s,
            gpus=gpus,
        )
