"""What a round reads of the job store, and what may be noted once that is done."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from sys import maxsize
from typing import Final, NamedTuple, Protocol

from publisher.jobs.reader import PAGE_JOBS, JobPage, StoreReader
from publisher.ledger.answers import Hold, Quarantined
from publisher.ledger.contract import Positions, Quarantine
from publisher.model.entry import Recorded
from publisher.model.job import Epoch, JobKey, JobRecord, RowRef, RunKey, SkippedJob
from publisher.model.message import Progress, StoreCursor, WindowMark
from publisher.model.time import Window

Read = tuple[JobPage, Progress]
_QUARANTINE_PORTION: Final = 1000
_HELD_PORTION: Final = 500


class JobReader(Protocol):
    """A stream of pages. `repeats`: it yields jobs that the same round may meet again."""

    repeats: bool

    def pages(self) -> Iterator[Read]: ...
    def once_more(self) -> JobReader:
        """All from where the ledger stands, each job by itself."""

    def after(self, ended_at: Epoch, change: int) -> Progress | None:
        """How far it has come with this job of the page; None where only page ends are."""


@dataclass(slots=True, kw_only=True)
class IncrementalReader:
    """Held runs and quarantined jobs again, then what changed behind the cursor up to `until`.

    What is loaded during a round waits for the next one. While a source is `incomplete`, that reads
    all again.
    """

    target: str
    jobs: StoreReader
    quarantine: Quarantine
    held: Collection[RunKey]
    cursor: StoreCursor
    until: int
    incomplete: Collection[str] = ()
    repeats: bool = True
    _nameless: dict[RowRef, JobKey] | None = None

    def pages(self) -> Iterator[Read]:
        self.repeats = True
        self._nameless = {}
        yield from self._held()
        yield from self._quarantined(self._nameless)
        self.repeats = False
        for page in self.jobs.changed(self.cursor.change, self.until):
            cursor = self.cursor._replace(change=page.upto)
            named = self._named(page.jobs, self._nameless)
            noted = None if self.incomplete else cursor
            if self.held:
                page = page.where(lambda job, _: job.run_key not in self.held)
            yield page, Progress(cursor=noted, left_quarantine=named)

    def once_more(self) -> IncrementalReader:
        return replace(self, repeats=True)

    def after(self, ended_at: Epoch, change: int) -> None:
        return None

    def _held(self) -> Iterator[Read]:
        runs = iter(self.held)
        while portion := list(islice(runs, _HELD_PORTION)):
            jobs = tuple(self.jobs.of_runs(portion))
            yield JobPage(jobs, (0,) * len(jobs), (0,) * len(jobs)), Progress()

    def _quarantined(self, nameless: dict[RowRef, JobKey]) -> Iterator[Read]:
        everything = self.quarantine.listed(self.target)
        quarantined = (held for held in everything if held.hold is not Hold.DROPPED)
        while portion := list(islice(quarantined, _QUARANTINE_PORTION)):
            # A row without a JobID is in quarantine under a key of its own, which no job has once
            # there is one.
            nameless |= {held.job.row: held.key for held in portion if not held.job.job_id}
            page = self._again(portion)
            yield page, Progress(left_quarantine=self._named(page.jobs, nameless))

    def _again(self, portion: Sequence[Quarantined]) -> JobPage:
        """Return what the store has of quarantined jobs, and of rows."""
        keys = {held.key for held in portion}
        found = self.jobs.of_jobs(held.job.job_id for held in portion)
        jobs = tuple(job for job in found if job.key in keys)
        skipped = self.jobs.skipped_at(held.job.row for held in portion)
        of_none = (0,) * len(jobs), (0,) * len(jobs)
        return JobPage(jobs, *of_none, tuple(skipped))

    def _named(
        self, jobs: Sequence[JobRecord], nameless: dict[RowRef, JobKey]
    ) -> tuple[JobKey, ...]:
        """Return under which keys rows were in quarantine that are jobs now."""
        if not nameless:
            return ()
        return tuple(nameless[job.row] for job in jobs if job.row in nameless)


def begin_reading(
    target: str,
    jobs: StoreReader,
    positions: Positions,
    quarantine: Quarantine,
    held: Collection[RunKey],
    wanted: str,
    *,
    every_job: bool,
) -> tuple[IncrementalReader, bool]:
    """Return what a round reads, and whether that is all that the store has.

    So it is where another store was read before, or other jobs were wanted.
    """
    store, was = jobs.state(), positions.cursor(target)
    place = wanted.partition(" ")[0]  # another one gets what is there
    if was is None or not was.wanted.startswith(place) or not jobs.knows(was.mark):
        was, every_job = StoreCursor(store.mark, 0, wanted, began=store.last_change), True
    elif was.wanted != wanted:  # what waited and has gone since is wanted still
        gone_to = max(was.began, was.change)
        was, every_job = was._replace(wanted=wanted, began=gone_to), True
    read_to = 0 if every_job else was.change
    cursor = was._replace(mark=store.mark, change=read_to)
    reading = IncrementalReader(
        target=target,
        jobs=jobs,
        quarantine=quarantine,
        held=held,
        cursor=cursor,
        until=store.last_change,
        incomplete=jobs.incomplete(),
    )
    return reading, every_job


@dataclass(slots=True, kw_only=True)
class WindowReader:
    """The jobs of a window, from where the last run stopped, until `most_jobs` were read.

    `finished`: whether the window ended then.
    """

    target: str
    window_progress: str
    jobs: StoreReader
    positions: Positions
    window: Window
    most_jobs: int
    finished: bool = False
    repeats: bool = False
    _mark: str = ""

    def once_more(self) -> WindowReader:
        return replace(self, most_jobs=maxsize)

    def after(self, ended_at: Epoch, change: int) -> Progress:
        """What a message carried is behind it even if the page is not: nothing is sent again."""
        mark = WindowMark(self.window_progress, ended_at, change, self._mark)
        return Progress(window_mark=mark)

    def pages(self) -> Iterator[Read]:
        stopped_at = self.positions.window_progress(self.target, self.window_progress)
        self._mark = self.jobs.state().mark
        after = None if stopped_at is None else place_of(stopped_at, self.jobs)
        count, self.finished = 0, False
        most = min(PAGE_JOBS, self.most_jobs)
        for page in self.jobs.window(self.window, after, page_jobs=most):
            if count >= self.most_jobs:
                return
            count += len(page.jobs) + len(page.skipped)
            last = (page.jobs[-1].ended_at, page.changes[-1]) if page.jobs else None
            yield page, self.after(*last) if last else Progress()
        self.finished = True


def wanted_since(cursor: StoreCursor | None, jobs: StoreReader) -> int:
    """Return the change at which a target began to want what it wants: now, where nobody knows."""
    is_known = cursor is not None and jobs.knows(cursor.mark)
    return cursor.began if cursor is not None and is_known else jobs.state().last_change


def place_of(mark: WindowMark, jobs: StoreReader) -> tuple[Epoch, int]:
    """Return where a window goes on: in another store, with all that ended in that second."""
    return mark.ended_at, mark.change if jobs.knows(mark.mark) else 0


def mark_behind(
    reading: JobReader,
    quarantined: Sequence[SkippedJob],
    left: Sequence[JobKey],
    ended_at: Epoch,
    change: int,
) -> Progress | None:
    """What may be noted with a job within a page: also what was set aside before it."""
    mark = reading.after(ended_at, change)
    if mark is None or not (quarantined or left):
        return mark
    return mark + Progress(skipped=tuple(quarantined), left_quarantine=tuple(left))


class LoadedFirst(NamedTuple):
    """What sources may have forgotten before this store loaded them.

    `first_loads` has the last change of the first load of each source, in a store that was begun
    anew; `batch_systems` are read from files, which are rotated away. `incomplete` are sources that
    were never loaded to their end. `began` is the change at which the target began to want what it
    wants.

        entry: 500 s of CPU   |  the log with one of its tasks was rotated away, jobs.db deleted
        store: 400 s of CPU   |  ->  the run is left as it is
        store: 600 s of CPU   |  ->  a change: another log was found
    """

    first_loads: Mapping[str, int]
    batch_systems: Collection[str]
    incomplete: Collection[str] = ()
    began: int = 0

    def wanted(
        self,
        page: JobPage,
        recorded: Mapping[RunKey, Recorded],
        waiting: Collection[RunKey] = (),
        *,
        again: bool,
    ) -> JobPage:
        """Return the page without runs that are left as they are, or were gone before `began`."""
        page = page.wanted_since(self.began, recorded, waiting)
        changes = zip(page.jobs, page.changes, strict=True)
        lacking = {
            job.run_key
            for job, change in changes
            if self.may_lack(job, change, recorded.get(job.run_key), again=again)
        }
        return page.where(lambda job, _: job.run_key not in lacking) if lacking else page

    def may_lack(
        self, job: JobRecord, change: int, recorded: Recorded | None, *, again: bool
    ) -> bool:
        """Return whether the receiver may have more of a run, as its last change shows it.

        A job of a CE lacks something where no run of a batch system was joined to it: only values
        that the CE does not record. What is published `again` on purpose, such as by other rules,
        may be as much as before.
        """
        if recorded is None:
            return False
        source = job.row.database
        if source in self.incomplete:
            return True
        is_first = 0 < change <= self.first_loads.get(source, 0)
        if not (is_first and self.batch_systems) or recorded.digest == job.values_digest:
            return False
        if source not in self.batch_systems:
            values = zip(_usage(job), recorded.usage[1:], strict=True)
            return job.joined == "" and all(new in (0, old) for new, old in values)
        is_enough = again and _usage(job) == recorded.usage[1:]
        return not (is_enough or _has_grown(job, recorded))


def _has_grown(job: JobRecord, recorded: Recorded) -> bool:
    """Return whether a run has more usage than is recorded, and no less of any."""
    of_run, of_entry = _usage(job), recorded.usage[1:]
    is_no_less = all(new >= old for new, old in zip(of_run, of_entry, strict=True))
    return is_no_less and of_run != of_entry


def _usage(job: JobRecord) -> tuple[int, int]:
    return job.wall_s, job.cpu_user_s + job.cpu_kernel_s
