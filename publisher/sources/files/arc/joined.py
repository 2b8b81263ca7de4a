"""Jobs of A-REX beside those of their batch systems: a `Source` around another one.

A batch system that is an entry of `source` is read into the job store. The jobs of a page are
looked up there together, by their local ids. A job whose run is a job of the batch system
already is set aside, as it would count twice. With `join`, runs that A-REX has stand there in the
table `ArcRun` (`sources/files/arc/jobs.py`), and the jobs get what only the batch system knows
of them. A job whose run is not there yet stays an open row for `join_wait` after its end.

Before jobs are stored, it is remembered which numbers they have: A-REX forgets that.

    job 7 of A-REX, no memory, no GPUs   +   run 7 of hpc: 8 GiB, 2 GPUs   ->   job 7 with both
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from publisher.model.job import (
    Epoch,
    JobId,
    JobRecord,
    LoadedPage,
    PartialJob,
    Position,
    ReadRequest,
    RowRef,
    SideTable,
    SkippedJob,
)
from publisher.model.time import Window
from publisher.sources.base import (
    COUNTED_RULE,
    Absent,
    JobSource,
    OpenRow,
    Page,
    RowsAhead,
    Source,
    SourceFacts,
)
from publisher.sources.files.arc.batch_runs import (
    BatchRun,
    BatchRuns,
    additions,
    own_run,
    run_of,
)
from publisher.sources.importers import ImportRule
from publisher.sources.sheet import JobDetails

_NOTHING_SEEN: Final[Mapping[RowRef, Epoch]] = {}


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
        submitted_at=job.submitted_at,
    )


def _whole_job(job: JobRecord, found: Mapping[str, Sequence[BatchRun]]) -> JobRecord | SkippedJob:
    """A job with what its batch system knows, or set aside, or as it is where no run is found."""
    span = (job.submitted_at, job.ended_at)
    if (own := own_run(found.get(job.local_id, ()), span, job.lrms)) is not None:
        return _set_aside(job, own)
    run = run_of(found, job, job.lrms)
    if run is None:
        return job
    return job._replace(joined=run.run.adds, **additions(run.run.adds, job))


def _waits(of_ce: BatchRuns, local_id: str, since: int, lrms: str, now: int) -> bool:
    """Whether a job without a run waits for it; not one that ends in a far future."""
    return local_id != "" and abs(now - since) < of_ce.waits(lrms)


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


class _Sorted(NamedTuple):
    jobs: tuple[JobRecord, ...]
    counted: tuple[SkippedJob, ...]
    waiting: Mapping[RowRef, OpenRow]
    partial: Sequence[PartialJob]  # those that wait


class JoinedJobs:
    """A `JobSource` whose jobs have what batch systems know of them.

    That may change while its rows do not, so its parts have no digests.
    """

    def __init__(self, source: JobSource, runs: JoinedSource) -> None:
        self._source = source
        self._runs = runs

    @property
    def name(self) -> str:
        """That of the database."""
        return self._source.name

    @property
    def is_comparable(self) -> bool:
        """As the database."""
        return self._source.is_comparable

    def read(
        self, position: Position | None, again: Sequence[OpenRow], request: ReadRequest
    ) -> Iterator[LoadedPage]:
        """Yield pages with what batch systems know."""
        for page in self._source.read(position, again, request):
            yield self._runs.joined(page, again, request.now)

    def compare(
        self, window: Window, known: Mapping[int, bytes], request: ReadRequest
    ) -> Iterator[LoadedPage]:
        """Yield all parts, with what batch systems know."""
        for page in self._source.compare(window, {}, request):
            yield self._runs.joined(page, (), request.now)

    def look_up(self, job_ids: Sequence[JobId], request: ReadRequest) -> Iterator[LoadedPage]:
        """Yield the rows of jobs, with what batch systems know."""
        for page in self._source.look_up(job_ids, request):
            yield self._runs.joined(page, (), request.now)

    def fits(self, position: Position) -> bool:
        """As the database."""
        return self._source.fits(position)

    def close(self) -> None:
        """Close the database."""
        self._source.close()


class JoinedSource:
    """A `Source`."""

    def __init__(self, source: Source, runs: BatchRuns, close: Callable[[], None]) -> None:
        """`close` closes the store of the runs, or does nothing."""
        self._source = source
        self._close = close
        self._runs = runs
        self._runs_of: dict[str, BatchRuns] = {}  # by name of a CE's database

    def since(
        self,
        cursor: Position | None,
        database: str,
        needs: frozenset[SideTable],
        now: datetime,
    ) -> Iterator[Page]:
        for page in self._source.since(cursor, database, needs, now):
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
    ) -> Iterator[Page]:
        for page in self._source.window(window, needs, now, after):
            yield self._joined(page, needs, now)

    def _of_ce(self, database: str) -> BatchRuns:
        """Those that jobs of this database may be."""
        if database not in self._runs_of:
            file = self._source.databases().get(database, database)
            self._runs_of[database] = self._runs.of_ce(file)
        return self._runs_of[database]

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
        if not page.jobs:
            return page
        found = self._sorted(page.jobs, Epoch(int(now.timestamp())), seen)
        skipped, rows = (*page.skipped, *found.counted), (*page.open, *found.waiting.values())
        return replace(
            page,
            jobs=found.jobs,
            skipped=skipped,
            open=rows,
            awaited=tuple(found.waiting),
            partial=(*page.partial, *found.partial),
        )

    def joined(self, page: LoadedPage, again: Sequence[OpenRow], now: Epoch) -> LoadedPage:
        """Return a page with what batch systems know of its jobs, as `_joined`."""
        if not page.jobs:
            return page
        seen = {each.row: at for each in again if (at := each.finished_seen_at) is not None}
        found = self._sorted(page.jobs, now, seen)
        return page._replace(
            jobs=found.jobs,
            skipped=(*page.skipped, *found.counted),
            open=(*page.open, *found.waiting.values()),
            partial=(*page.partial, *found.partial),
            part=None,
        )

    def sources(self) -> Sequence[JobSource]:
        """Return the databases, with what batch systems know of their jobs."""
        return [JoinedJobs(one, self) for one in self._source.sources()]

    def _sorted(
        self, page_jobs: Sequence[JobRecord], moment: Epoch, seen: Mapping[RowRef, Epoch]
    ) -> _Sorted:
        """Return which jobs of a page are whole, which wait, and which a batch system counts."""
        runs = [((job.local_id, job.submitted_at, job.ended_at), job.lrms) for job in page_jobs]
        of_ce = self._of_ce(page_jobs[0].row.database)
        of_ce.remember(runs)
        found = of_ce.look_up([job.local_id for job in page_jobs])
        jobs: list[JobRecord] = []
        waiting: dict[RowRef, OpenRow] = {}
        counted: list[SkippedJob] = []
        for job in page_jobs:
            since = min(job.ended_at, seen.get(job.row, job.ended_at))
            whole = _whole_job(job, found)
            if whole is job and _waits(of_ce, job.local_id, since, job.lrms, moment):
                waiting[job.row] = OpenRow(row=job.row, finished_seen_at=seen.get(job.row))
            elif isinstance(whole, SkippedJob):
                counted.append(whole)
            else:
                jobs.append(whole)
        partial = [PartialJob(job, is_in_progress=False) for job in page_jobs if job.row in waiting]
        return _Sorted(tuple(jobs), tuple(counted), waiting, partial)

    # As they are

    def databases(self) -> Mapping[str, str]:
        return self._source.databases()

    def names(self, file: str) -> bool:
        return self._source.names(file)

    def absent(self) -> tuple[Absent, ...]:
        return self._source.absent()

    def ahead(
        self, database: str, cursor: Position, start: Epoch | None, late_before: Epoch | None
    ) -> RowsAhead:
        return self._source.ahead(database, cursor, start, late_before)

    def ends(self, rows: Sequence[OpenRow]) -> Mapping[RowRef, Epoch]:
        return self._source.ends(rows)

    def count(self, window: Window) -> int:
        return self._source.count(window)

    def sheet(self, job_id: JobId) -> JobDetails | None:
        return self._source.sheet(job_id)

    def rows_with(self, attribute: str, values: Collection[str]) -> Iterator[RowRef]:
        return self._source.rows_with(attribute, values)

    def facts(self) -> tuple[SourceFacts, ...]:
        return self._source.facts()

    def close(self) -> None:
        self._close()
        self._source.close()
