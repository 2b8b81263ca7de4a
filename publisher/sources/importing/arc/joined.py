"""Jobs of A-REX beside those of their batch systems: a `Source` around another one.

A batch system that is an entry of `source` is read into a database of its own. The jobs of a page
are looked up there together, by their local ids. A job whose run is a job of the batch system
already is set aside, as it would count twice. With `join`, runs that A-REX has stand there in the
table `ArcRun` (`sources/importing/arc/jobs.py`), and the jobs get what only the batch system knows
of them. A job whose run is not there yet stays an open row for `join_wait` after its end.

Before jobs are published, it is remembered there which numbers they have, and looked up only then:
whoever reads runs in meanwhile sees that they are a CE's, or has committed that they are not.

    job 7 of A-REX, no memory, no GPUs   +   run 7 of hpc: 8 GiB, 2 GPUs   ->   job 7 with both
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import compress
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from publisher.model.job import (
    OWN_VALUES,
    Epoch,
    JobId,
    JobRecord,
    RowRef,
    RunColumns,
    RunValues,
    SideTable,
    SkippedJob,
)
from publisher.model.time import Window
from publisher.sources.base import (
    Absent,
    Additions,
    Cursor,
    DoneWith,
    EndedIn,
    JoinedEntry,
    Knows,
    OpenRow,
    Page,
    RowsAhead,
    RunAt,
    Source,
    SourceFacts,
    has_file,
)
from publisher.sources.importers import ImportRule
from publisher.sources.importing.arc.jobs import ARC_RUNS
from publisher.sources.importing.arc.numbers import (
    APART_S,
    Run,
    StoredRun,
    overlap,
    remember,
    runs_of_numbers,
    spans_of,
)
from publisher.sources.importing.database import ImportDatabase
from publisher.sources.sqlite_reader import BUSY_TIMEOUT_S, CopyDirectory, ReadOnlyFile

_run_in = itemgetter(*map(OWN_VALUES.index, ("local_id", "submitted_at", "ended_at")))
COUNTED_RULE: Final = "counted-by-batch-system"
_NOTHING_SEEN: Final[Mapping[RowRef, Epoch]] = {}


class BatchRun(NamedTuple):
    """A run of a batch system that is a job of A-REX."""

    entry: JoinedEntry
    run: StoredRun


class BatchRuns:
    """The runs of all batch systems that are joined, by local id."""

    def __init__(
        self,
        entries: Sequence[JoinedEntry],
        copies_below: Path,
        lock_wait_s: float | None,
        *,
        remembers: bool = False,
    ) -> None:
        """`remembers`: as jobs are published, what a CE has is remembered before looking it up."""
        self.entries = entries
        self._remembers = remembers
        self._busy_timeout_s = BUSY_TIMEOUT_S if lock_wait_s is None else lock_wait_s
        self._copies = CopyDirectory(copies_below)
        self._files: dict[Path, ReadOnlyFile] = {}

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._copies.close()

    def look_up(self, local_ids: Sequence[str]) -> Mapping[str, Sequence[BatchRun]]:
        """One question to each batch system's database. Raises: SourceError."""
        numbers = sorted(set(filter(None, local_ids)))
        found: dict[str, list[BatchRun]] = {}
        for entry in self.entries if numbers else ():
            file, joins = self._file(entry), entry.wait_s is not None
            if file is not None:
                known = file.ask(partial(runs_of_numbers, numbers=numbers, joins=joins))
                for number, runs in known.items():
                    found.setdefault(number, []).extend(BatchRun(entry, run) for run in runs)
        return found

    def _file(self, entry: JoinedEntry) -> ReadOnlyFile | None:
        """None where nothing was read into it yet."""
        path = entry.database
        if path not in self._files and has_file(path):
            file = ReadOnlyFile(str(path), self._copies, busy_timeout_s=self._busy_timeout_s)
            self._files[path] = file
        return self._files.get(path)

    def remember(self, runs: Sequence[tuple[Run, str]]) -> None:
        """That a CE has these runs, each with what A-REX calls its batch system.

        Raises: PublisherError.
        """
        asked = [(number, end, lrms) for (number, _, end), lrms in runs]
        for entry in self.entries:
            new = [run for run, _ in compress(runs, self._are_new(entry, asked))]
            if new:
                accounting = ImportDatabase(entry.database, ARC_RUNS)
                with accounting, accounting.transaction():
                    remember(accounting.connection, new)

    def are_new(self, runs: Sequence[tuple[str, int, str]]) -> Sequence[bool]:
        """Whether some database has yet to remember them. Raises: SourceError.

        `runs` have the number, end and batch system of each.
        """
        of_entries = [self._are_new(entry, runs) for entry in self.entries]
        return list(map(any, zip(*of_entries, strict=True)))

    def _are_new(self, entry: JoinedEntry, runs: Sequence[tuple[str, int, str]]) -> Sequence[bool]:
        file = self._file(entry) if self._remembers else None
        may = [_may_have(entry, *run) for run in runs]
        if file is None or not any(may):
            return [False] * len(runs)
        numbers = sorted({number for number, _, _ in compress(runs, may)})
        had = {(number, end) for number, _, end in file.ask(partial(spans_of, numbers=numbers))}
        asked = zip(may, runs, strict=True)
        return [yes and (number, end) not in had for yes, (number, end, _) in asked]

    def known(
        self, runs: Mapping[int, RunAt], lrms_of: Callable[[Collection[int]], Mapping[int, str]]
    ) -> Additions:
        """As `JoinedRuns` has it."""
        found = self.look_up([run.local_id for run in runs.values()])
        near = {row: run for row, run in runs.items() if run.local_id in found}
        lrms = lrms_of(near) if near else {}
        additions: dict[int, Mapping[str, Any] | None] = {}
        for row, run in near.items():
            of_number, name = found[run.local_id], lrms.get(row, "")
            nearest = _nearest(of_number, run.ended_at, run.wall_s, name)
            if _own(of_number, (run.submitted_at, run.ended_at), name) is not None:
                additions[row] = None
            elif nearest is not None and nearest.run.adds:
                additions[row] = _values(nearest.run.adds)
        return additions

    def waits(self, lrms: str) -> int:
        """How long after its end a job waits for its run."""
        return max((entry.wait_s or 0 for entry in self.entries if entry.ran(lrms)), default=0)


def _may_have(entry: JoinedEntry, number: str, end: int, lrms: str) -> bool:
    """Whether a batch system may have had a run that ended so, and given it this number."""
    is_number = number != "" and number.isascii() and number.isprintable()
    return end > 0 and is_number and entry.ran(lrms)


def run_of(
    found: Mapping[str, Sequence[BatchRun]], run: RunValues | JobRecord, lrms: str
) -> BatchRun | None:
    """The run that is this job: of the same number and overlapping, as numbers come again.

    None where two systems have one. A run that is requeued keeps its number: the one counts that
    ended nearest to the job.
    """
    return _nearest(found.get(run.local_id, ()), run.ended_at, run.wall_s, lrms)


def _nearest(runs: Sequence[BatchRun], ended_at: int, wall_s: int, lrms: str) -> BatchRun | None:
    first, last = ended_at - wall_s - APART_S, ended_at + APART_S
    joined = [one for one in runs if not one.run.own and one.entry.ran(lrms)]
    near = [one for one in joined if one.run.started_at <= last and one.run.ended_at >= first]
    if not near or len({one.entry.name for one in near}) > 1:
        return None
    return min(near, key=lambda one: (abs(one.run.ended_at - ended_at), -one.run.started_at))


def _own(runs: Sequence[BatchRun], span: tuple[int, int], lrms: str) -> BatchRun | None:
    """The job of a batch system that a job of A-REX is."""
    own = (one for one in runs if one.run.own and one.entry.ran(lrms))
    return next((one for one in own if overlap(span, one.run.started_at, one.run.ended_at)), None)


def _may_be_own(found: Mapping[str, Sequence[BatchRun]], local_id: str) -> bool:
    return any(one.run.own for one in found.get(local_id, ()))


def _set_aside(job: JobRecord, found: BatchRun) -> SkippedJob:
    return SkippedJob(
        row=job.row,
        job_id=job.job_id,
        local_id=job.local_id,
        ended_at=job.ended_at,
        rule=COUNTED_RULE,
        reason=(
            f"source {found.entry.name} has this job as {found.run.job_id}, since before A-REX "
            "told of its end: it counts there, and is not published twice"
        ),
        fingerprint=job.content_fingerprint,
    )


def additions(adds: str, job: RunValues | JobRecord) -> dict[str, Any]:
    """What of a run's values this job has not."""
    return {name: value for name, value in _values(adds).items() if not getattr(job, name, True)}


def _values(adds: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(adds) if adds else {}
    for name in values.keys() & _MADE.keys():
        values[name] = _MADE[name](values[name])
    return values


def _pairs(stored: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, stored))


_MADE: Final[Mapping[str, Callable[[Any], object]]] = {
    "hosts": tuple,
    "gpu_models": _pairs,
    "quantities": _pairs,
}


def _whole_run(run: RunValues, found: Mapping[str, Sequence[BatchRun]]) -> RunValues:
    of_batch = run_of(found, run, "")
    if of_batch is None:
        return run
    adds = of_batch.run.adds
    more = {} if run.node_count and run.cpu_count else additions(adds, run)
    return run._replace(joined=adds, **more)


def rules_of(job: JobRecord, runs: BatchRuns) -> list[ImportRule]:
    """Where each value comes from that is joined to a job, which is as A-REX has it.

    Raises: SourceError.
    """
    found = runs.look_up([job.local_id])
    of_batch = run_of(found, job, job.lrms)
    if of_batch is not None:
        origin = f"joined from {of_batch.run.job_id} of source {of_batch.entry.name}"
        return [ImportRule(name, origin) for name in additions(of_batch.run.adds, job)]
    joined = (one for one in found.get(job.local_id, ()) if not one.run.own)
    names = sorted({one.entry.name for one in joined if one.entry.ran(job.lrms)})
    if len(names) > 1:
        several = f"nothing: runs of the sources {' and '.join(names)} have this number and time"
        return [ImportRule("joined", several)]
    return []


class JoinedSource:
    """A `Source`."""

    def __init__(self, source: Source, runs: BatchRuns, batch_databases: Sequence[str]) -> None:
        """`batch_databases` are the files of all batch systems, whose jobs have everything."""
        self._source = source
        self._batch_databases = frozenset(batch_databases)
        self._is_batch: dict[str, bool] = {}  # by name of a database
        self._joins = any(entry.wait_s is not None for entry in runs.entries)
        self._runs = runs

    def since(
        self,
        cursor: Cursor | None,
        database: str,
        needs: frozenset[SideTable],
        now: datetime,
        done_with: DoneWith | None = None,
        *,
        columns: bool = False,
        alike: bool = False,
        names: bool = True,
    ) -> Iterator[Page]:
        """As the source's. Where runs are joined no job is like another: each gets its own."""
        if done_with is not None and self._joins and not self._of_batch(database):
            done_with = partial(self._done_with, done_with)
        alike, names = alike and not self._joins, names or self._joins
        for page in self._source.since(
            cursor, database, needs, now, done_with, columns=columns, alike=alike, names=names
        ):
            yield self._joined(page, needs, now)

    def reread(
        self, rows: Sequence[OpenRow], needs: frozenset[SideTable], now: datetime
    ) -> Iterator[Page]:
        seen = {each.row: at for each in rows if (at := each.finished_seen_at) is not None}
        for page in self._source.reread(rows, needs, now):
            yield self._joined(page, needs, now, seen)

    def window(
        self,
        window: Window,
        needs: frozenset[SideTable],
        now: datetime,
        after: tuple[Epoch, RowRef] | None = None,
        *,
        columns: bool = False,
        knows: Knows | None = None,
        alike: bool = False,
        names: bool = True,
    ) -> Iterator[Page]:
        alike, names = alike and not self._joins, names or self._joins
        for page in self._source.window(
            window, needs, now, after, columns=columns, knows=knows, alike=alike, names=names
        ):
            yield self._joined(page, needs, now)

    def find(self, job_id: JobId, needs: frozenset[SideTable], now: datetime) -> Page:
        return self._joined(self._source.find(job_id, needs, now), needs, now)

    def _of_batch(self, database: str) -> bool:
        if database not in self._is_batch:
            file = self._source.databases().get(database)
            self._is_batch[database] = file in self._batch_databases
        return self._is_batch[database]

    def _joined(
        self,
        page: Page,
        needs: frozenset[SideTable],
        now: datetime,
        seen: Mapping[RowRef, Epoch] = _NOTHING_SEEN,
    ) -> Page:
        """A page with what batch systems know of its jobs, and without those that wait for that.

        `seen` is when rows were first seen finished; one that was seen long ago waits no longer.
        """
        if page.runs is not None and not self._of_batch(page.runs.database):
            page = self._counted(page, page.runs, needs, now)
        page = self._alike(page, needs, now)
        if not page.jobs or self._of_batch(page.jobs[0].row.database):
            return page
        moment = Epoch(int(now.timestamp()))
        runs = [((job.local_id, job.submitted_at, job.ended_at), job.lrms) for job in page.jobs]
        self._runs.remember(runs)
        found = self._runs.look_up([job.local_id for job in page.jobs])
        jobs: list[JobRecord] = []
        waiting: dict[RowRef, OpenRow] = {}
        counted: list[SkippedJob] = []
        for job in page.jobs:
            since = min(job.ended_at, seen.get(job.row, job.ended_at))
            whole = self._whole_job(job, found, since, moment)
            if whole is None:
                waiting[job.row] = OpenRow(row=job.row, finished_seen_at=seen.get(job.row))
            elif isinstance(whole, SkippedJob):
                counted.append(whole)
            else:
                jobs.append(whole)
        skipped, rows = (*page.skipped, *counted), (*page.open, *waiting.values())
        return replace(page, jobs=tuple(jobs), skipped=skipped, open=rows, awaited=tuple(waiting))

    def _whole_job(
        self, job: JobRecord, found: Mapping[str, Sequence[BatchRun]], since: int, now: int
    ) -> JobRecord | SkippedJob | None:
        """A job with what its batch system knows, or set aside; None where it waits, since then."""
        span = (job.submitted_at, job.ended_at)
        if (own := _own(found.get(job.local_id, ()), span, job.lrms)) is not None:
            return _set_aside(job, own)
        run = run_of(found, job, job.lrms)
        if run is not None:
            return job._replace(joined=run.run.adds, **additions(run.run.adds, job))
        return None if self._waits(job.local_id, since, job.lrms, now) else job

    def _waits(self, local_id: str, since: int, lrms: str, now: int) -> bool:
        """Whether a job waits for its run; not one that ends in a far future."""
        return local_id != "" and abs(now - since) < self._runs.waits(lrms)

    def _counted(
        self, page: Page, runs: RunColumns, needs: frozenset[SideTable], now: datetime
    ) -> Page:
        """A page of columns.

        What waits, lacks a number that counts, or is yet to be remembered, is read whole.
        """
        lrms = [example.lrms for example in runs.examples]
        new = self._runs.are_new(list(zip(runs.local_ids, runs.ended_at, lrms, strict=True)))
        found, moment = self._runs.look_up(runs.local_ids), int(now.timestamp())
        texts: list[str] = []
        whole: list[bool] = []
        columns = zip(runs.local_ids, runs.ended_at, runs.wall_s, runs.examples, new, strict=True)
        for local_id, end, wall_s, example, is_new in columns:
            run = _nearest(found.get(local_id, ()), end, wall_s, example.lrms)
            if run is None:
                adds, unfit = "", self._waits(local_id, end, example.lrms, moment)
            else:
                adds, unfit = run.run.adds, not (example.node_count and example.cpu_count)
            texts.append(adds)
            whole.append(unfit or is_new or _may_be_own(found, local_id))
        runs = runs._replace(joined=texts)
        if any(whole):
            page = self._with_rows(page, runs.rows(compress(range(len(whole)), whole)), needs, now)
            runs = runs.only([not each for each in whole])
        joined = runs if runs.record_ids else None
        return replace(page, runs=joined)

    def _alike(self, page: Page, needs: frozenset[SideTable], now: datetime) -> Page:
        """A page of kinds; jobs that may be a batch system's own are read whole."""
        if not page.alike or self._of_batch(page.alike[0].example.row.database):
            return page
        runs = [(_run_in(job.values), job.place.lrms) for job in page.alike]
        self._runs.remember(runs)
        local_ids = [run[0] for run, _ in runs]
        found = self._runs.look_up(local_ids)
        owned = [_may_be_own(found, local_id) for local_id in local_ids]
        if not any(owned):
            return page
        database, own = page.alike[0].example.row.database, compress(page.alike, owned)
        rows = [RowRef(database=database, record_id=job.record_id) for job in own]
        alike = tuple(compress(page.alike, [not each for each in owned]))
        return self._with_rows(replace(page, alike=alike), rows, needs, now)

    def _with_rows(
        self, page: Page, rows: Sequence[RowRef], needs: frozenset[SideTable], now: datetime
    ) -> Page:
        """A page with some rows read whole."""
        again = [OpenRow(row=row, finished_seen_at=None) for row in rows]
        for read in self._source.reread(again, needs, now):
            jobs, skipped = page.jobs + read.jobs, page.skipped + read.skipped
            page = replace(page, jobs=jobs, skipped=skipped, open=page.open + read.open)
        return page

    def _done_with(
        self, done_with: DoneWith, rows: Sequence[int], runs: Sequence[RunValues]
    ) -> Sequence[bool]:
        """As it is asked about runs, with what is joined to them, whatever system they are of."""
        found = self._runs.look_up([run.local_id for run in runs])
        if found:
            runs = [_whole_run(run, found) for run in runs]
        return done_with(rows, runs)

    # As they are

    def databases(self) -> Mapping[str, str]:
        return self._source.databases()

    def names(self, file: str) -> bool:
        return self._source.names(file)

    def absent(self) -> tuple[Absent, ...]:
        return self._source.absent()

    def ahead(self, cursor: Cursor, start: Epoch | None, late_before: Epoch | None) -> RowsAhead:
        return self._source.ahead(cursor, start, late_before)

    def rows_behind(self, database: str, cursor: Cursor | None) -> int:
        return self._source.rows_behind(database, cursor)

    def ends(self, rows: Sequence[OpenRow]) -> Mapping[RowRef, Epoch]:
        return self._source.ends(rows)

    def rows(self) -> int:
        return self._source.rows()

    def fits(self, cursor: Cursor) -> bool:
        return self._source.fits(cursor)

    def count(self, window: Window) -> int:
        return self._source.count(window)

    def by_end(self) -> AbstractContextManager[EndedIn]:
        return self._source.by_end()

    def facts(self) -> tuple[SourceFacts, ...]:
        return self._source.facts()

    def close(self) -> None:
        self._runs.close()
        self._source.close()
