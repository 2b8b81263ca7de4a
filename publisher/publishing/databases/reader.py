"""What a round reads of the job store, what may be noted once that is done, and what waits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from sys import maxsize
from typing import Final, NamedTuple, Protocol

from publisher.jobs.reader import PAGE_JOBS, JobPage, StoreReader, page_of
from publisher.ledger.answers import Hold, Quarantined
from publisher.ledger.contract import Ledger, Positions, Quarantine
from publisher.model.entry import Recorded
from publisher.model.job import (
    Epoch,
    JobKey,
    JobRecord,
    RowRef,
    RunKey,
    SkippedJob,
    key_of,
    was_joined,
)
from publisher.model.message import Progress, StoreCursor, WindowMark
from publisher.model.receiver import OTHERS, WAITED, WaitingRun
from publisher.model.text import plural
from publisher.model.time import Window
from publisher.model.totals import month_window
from publisher.publishing.plan.decision import Decider, Publish

Read = tuple[JobPage, Progress]
_QUARANTINE_PORTION: Final = 1000
_HELD_PORTION: Final = 500
# So many jobs are looked at; what is behind them is counted: a backlog of any size is no burden.
_LOOKED_AT: Final = 5_000
_HOW: Final = (
    "when jobs.db was lost (deleted, damaged or restored), and the accounting data that was loaded "
    "since"
)


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
                page = page.where(lambda run, _: run not in self.held)
            yield page, Progress(cursor=noted, left_quarantine=named)

    def once_more(self) -> IncrementalReader:
        return replace(self, repeats=True)

    def after(self, ended_at: Epoch, change: int) -> None:
        return None

    def _held(self) -> Iterator[Read]:
        runs = iter(self.held)
        while portion := list(islice(runs, _HELD_PORTION)):
            yield page_of(self.jobs.of_runs(portion)), Progress()

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
        skipped = self.jobs.skipped_at(held.job.row for held in portion)
        return page_of((job for job in found if job.key in keys), skipped)

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
        began = _began_at_receiver(target, positions, jobs)
        was, every_job = StoreCursor(store.mark, 0, wanted, began=began), True
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


def wanted_since(target: str, positions: Positions, jobs: StoreReader) -> int:
    """Return the change at which a target began to want what it wants: now, where nobody knows."""
    cursor = positions.cursor(target)
    if cursor is not None and jobs.knows(cursor.mark):
        return cursor.began
    return _began_at_receiver(target, positions, jobs)


def _began_at_receiver(target: str, positions: Positions, jobs: StoreReader) -> int:
    """Return since when other targets have led to the receiver of one: it may be one renamed."""
    others = (one.began for one in positions.beside(target) if jobs.knows(one.mark))
    return min(others, default=jobs.state().last_change)


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
    wants; of months that a ledger `lost`, nobody knows when, and all is wanted that the store has.

        entry: 500 s of CPU   |  the log with one of its tasks was rotated away, jobs.db deleted
        store: 400 s of CPU   |  ->  the run is left as it is
        store: 600 s of CPU   |  ->  a change: another log was found
    """

    first_loads: Mapping[str, int]
    batch_systems: Collection[str]
    incomplete: Collection[str] = ()
    began: int = 0
    lost: Collection[int] = ()

    def wanted(
        self,
        page: JobPage,
        recorded: Mapping[RunKey, Recorded],
        waiting: Collection[RunKey] = (),
        *,
        again: bool,
    ) -> JobPage:
        """Return the page without runs that are left as they are, or were gone before `began`."""
        page = _wanted(page, self.began, self.lost, recorded, waiting)
        if not recorded:
            return page
        rows = zip(page.jobs, page.runs, page.changes, strict=True)
        lacking = {
            run
            for job, run, change in rows
            if self.may_lack(job, change, recorded.get(run), again=again)
        }
        return page.where(lambda run, _: run not in lacking) if lacking else page

    def may_lack(
        self, job: JobRecord, change: int, recorded: Recorded | None, *, again: bool
    ) -> bool:
        """Return whether the receiver may have more of a run, as its last change shows it.

        A job of a CE lacks something where the run of a batch system was joined to it that is none
        now: only values that the CE does not record. What is published `again` on purpose, such as
        by other rules, may be as much as before.
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
            lacks = was_joined(recorded.digest) and not job.joined
            return lacks and all(new in (0, old) for new, old in values)
        is_enough = again and _usage(job) == recorded.usage[1:]
        return not (is_enough or _has_grown(job, recorded))


def _wanted(
    page: JobPage, began: int, lost: Collection[int], *known: Collection[RunKey]
) -> JobPage:
    """Return the page without runs that were gone before `began`, but for those of lost months."""
    if not (lost and any(page.gone)):
        return page.wanted_since(began, *known)
    of_lost: set[RunKey] = set()
    for window in map(month_window, lost):
        runs = zip(page.jobs, page.runs, page.gone, strict=True)
        of_lost.update(run for job, run, gone in runs if gone > 0 and job.ended_at in window)
    return page.wanted_since(began, *known, of_lost)


def _has_grown(job: JobRecord, recorded: Recorded) -> bool:
    """Return whether a run has more usage than is recorded, and no less of any."""
    of_run, of_entry = _usage(job), recorded.usage[1:]
    is_no_less = all(new >= old for new, old in zip(of_run, of_entry, strict=True))
    return is_no_less and of_run != of_entry


def _usage(job: JobRecord) -> tuple[int, int]:
    return job.wall_s, job.cpu_user_s + job.cpu_kernel_s


class WaitingRuns:
    """What waits in a store for a target, and what waited in an earlier one that this lacks.

    A store that is deleted, damaged or restored is loaded again, and lacks runs that their source
    has purged since. What was delivered of them is in the ledger; what waited is written down
    before a round sends anything, and set aside by the first one that has loaded all sources again.

        job 7 was loaded, and the receiver cannot be reached  ->  job 7 waits
        the CE purges job 7, and jobs.db is deleted           ->  job 7 is in quarantine
    """

    def __init__(self, target: str, jobs: StoreReader, ledger: Ledger, decider: Decider) -> None:
        self._target = target
        self._jobs = jobs
        self._ledger = ledger
        self._decider = decider
        self._lacking: list[WaitingRun] = []
        self._are_kept = False  # some, in the ledger

    def write_down(self) -> None:
        """Keep what waits, before anything of it is sent."""
        known = self._ledger.positions.waiting(self._target)
        others = [one for one in known if not self._jobs.knows(one.mark)]
        found = self._jobs.of_runs([one.run for one in others])
        there = {job.run_key for job in found}
        self._lacking = [one for one in others if one.run not in there]
        self._are_kept = bool(known)
        self._keep()

    def _keep(self) -> None:
        waiting = [*self._lacking, *self._in_store()]
        if waiting or self._are_kept:
            self._ledger.positions.wait(self._target, waiting)
        self._are_kept = bool(waiting)

    def _in_store(self) -> Iterator[WaitingRun]:
        store, cursor = self._jobs.state(), self._ledger.positions.cursor(self._target)
        is_known = cursor is not None and self._jobs.knows(cursor.mark)
        read_to = cursor.change if cursor is not None and is_known else 0
        began = wanted_since(self._target, self._ledger.positions, self._jobs)
        looked_at = 0
        for page in self._jobs.changed(read_to, store.last_change):
            if looked_at + len(page.jobs) > _LOOKED_AT:
                break
            yield from self._of_page(page, began, store.mark)
            looked_at += len(page.jobs)
            read_to = page.upto
        if more := self._jobs.ahead(read_to, Window(), None).jobs:
            yield WaitingRun(OTHERS, store.mark, jobs=more)

    def _of_page(self, page: JobPage, began: int, mark: str) -> Iterator[WaitingRun]:
        recorded = self._recorded(page.runs)
        page = _wanted(page, began, self._ledger.losses.months(self._target), recorded)
        held = self._ledger.quarantine.held(self._target, [*map(key_of, page.runs)])
        for job, run in zip(page.jobs, page.runs, strict=True):
            known = recorded.get(run)
            fit = self._decider.decide(job, run, known, held.get(key_of(run)))
            if isinstance(fit, Publish):
                yield _waiting(job, run, mark, fit.digest)
            elif known is not None and known.pending:  # it may turn out not to be stored
                yield _waiting(job, run, mark, self._decider.pinned(job, known).values_digest)

    def _recorded(self, runs: Sequence[RunKey]) -> dict[RunKey, Recorded]:
        return dict(self._ledger.entries.recorded(self._target, runs))

    def not_found(self, held: Collection[RunKey]) -> list[SkippedJob]:
        """Set aside what this store lacks, though all sources are loaded.

        Not what is delivered, on its way or in quarantine by now, nor runs that are `held`.
        """
        if not self._lacking:
            return []
        recorded = self._recorded([one.run for one in self._lacking if one.run != OTHERS])
        lost = [one for one in self._lacking if one.run not in held]
        lost = [one for one in lost if not _is_there(one, recorded.get(one.run))]
        self._lacking = [one for one in self._lacking if _is_pending(recorded.get(one.run))]
        aside = [_set_aside(one, recorded.get(one.run)) for one in lost]
        there = self._ledger.quarantine.held(self._target, [job.key for job in aside])
        return [job for job in aside if job.key not in there]

    def conclude(self, *, is_whole: bool) -> None:
        """Keep what waits still after a round that looked at all of it; others keep what waited."""
        if is_whole:
            self._keep()


def _is_pending(recorded: Recorded | None) -> bool:
    return recorded is not None and recorded.pending


def _is_there(one: WaitingRun, recorded: Recorded | None) -> bool:
    """Return whether a run is at the receiver, or on its way, with the values that waited."""
    return recorded is not None and recorded.digest == one.digest


def _waiting(job: JobRecord, run: RunKey, mark: str, digest: bytes) -> WaitingRun:
    cpu_s = job.cpu_user_s + job.cpu_kernel_s
    names = job.job_id, job.local_id, job.ended_at
    return WaitingRun(run, mark, digest, *names, job.wall_s, cpu_s)


def _set_aside(one: WaitingRun, recorded: Recorded | None) -> SkippedJob:
    """Return a run as quarantine keeps it, or those that nobody knows by name."""
    if one.run == OTHERS:
        what = f"up to {plural(one.jobs, 'more job')} waited {_HOW} may lack some of them"
        # By its mark: what another store lost is apart, and may be dropped by itself.
        store = RowRef(f"jobs.db {one.mark}", 0)
        return SkippedJob(store, one.job_id, "", None, WAITED, what, fingerprint=0)
    used = f"{one.wall_s} s wall, {one.cpu_s} s CPU"
    text = f"it waited with {used} {_HOW} does not have it: it was not delivered"
    if recorded is not None and recorded.counts:
        _, wall_s, cpu_s = recorded.usage
        text += f" so, and counts as it was, with {wall_s} s wall, {cpu_s} s CPU"
    where = RowRef("", 0), one.job_id, one.local_id, one.ended_at
    return SkippedJob(*where, WAITED, text, fingerprint=0)
