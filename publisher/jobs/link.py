"""Linking: runs of a batch system that ARC CEs submit to are theirs or its own; each counts once.

A run is a CE's job where the job has its local id, or another name that a CE has for it, and the
run's time lies within the job's, to a day: batch systems give numbers again. These are the rules,
the first that fits:

| a run | is then |
|---|---|
| that was delivered as a job of the batch system, or another run of whose job is one | a job |
| whose number and time a CE's job has, or once had, or was delivered with | hidden for good |
| of a system of which a CE could not be loaded | hidden, until it is decided |
| that ended less than `wait_s` ago | hidden: a CE writes down the number when it saw the end |
| that may be a job in progress of a silent CE, until `outage_s` after its end | hidden |
| any other | a job |

| a job of a CE | is then |
|---|---|
| of whose number and time the batch system has a job, or had one delivered | set aside |
| with a hidden run, of a system that is joined | a job, with the values that it lacks |
| without a run, of a system that is joined, until `join_wait_s` after its end | open |
| any other | a job |

What decides is all in the store and the ledger: `job` keeps runs that A-REX forgot when it
restarted a job or purged a row; what was delivered by a store before this one, or by the other host
of a pair, the ledger's entries have, by number and time.

A load goes in this order, under the lock of who loads: `Linking.ask`, when batch systems were read;
`Linking.page` for each page of a CE; `Linking.link` in the end. Each step of these is one
transaction, in which what becomes visible gets the number of its change (rule 16). Ended anywhere,
the next load decides the rest in the same way: each step depends only on what is stored by then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Final, NamedTuple

from publisher.jobs.reader import StoreReader
from publisher.jobs.store import JobStore
from publisher.jobs.tables.batch_runs import (
    APART_S,
    BatchRun,
    BatchRuns,
    CeJob,
    LinkedRuns,
    LinkState,
    lies_in,
)
from publisher.jobs.tables.forgotten import ForgottenRun, ForgottenRuns
from publisher.jobs.tables.joined import with_joined, with_values
from publisher.jobs.tables.silence import SilentCes
from publisher.jobs.tables.systems import LinkedSystem
from publisher.model.entry import DeliveredRun
from publisher.model.job import (
    Epoch,
    JobRecord,
    LoadedPage,
    OpenRow,
    PartialJob,
    RowRef,
    RunKey,
    SkippedJob,
)

COUNTED_RULE: Final = "counted-by-batch-system"
_FAR_S: Final = 86_400  # of an end in the future: no clock is so wrong
_AT_ONCE: Final = 500
_FIRST, _LAST = -(2**62), 2**62
_WAITS, _OF_CE, _OWN = LinkState.WAITS, LinkState.OF_CE, LinkState.OWN
_UNDECIDED: Final = (LinkState.NEW, _WAITS)

AskLedger = Callable[[Epoch], Generator[Sequence[DeliveredRun], None, None]]
"""Asked with a time: yields what was delivered, or is on its way, and ended then or later."""


class Linked(NamedTuple):
    """What became of runs of one batch system; of `of_ce` the CE has `forgotten` some."""

    own: int = 0
    of_ce: int = 0
    forgotten: int = 0
    waiting: int = 0

    def plus(self, own: int, of_ce: int, forgotten: int) -> Linked:
        """Return the sum."""
        return self._replace(
            own=self.own + own,
            of_ce=self.of_ce + of_ce,
            forgotten=self.forgotten + forgotten,
        )


class _Claims(NamedTuple):
    """Jobs of CEs that runs may be, by these; `counted` are those that a batch system counts."""

    jobs: Mapping[RunKey, Sequence[CeJob]]
    counted: Collection[RunKey]

    def of(self, run: BatchRun) -> Sequence[CeJob]:
        """Return those of a run."""
        return self.jobs[run.job.run_key]


class Linking:
    """The linking of one load. Every method raises LedgerError."""

    def __init__(
        self,
        store: JobStore,
        systems: Sequence[LinkedSystem],
        now: int,
        others: StoreReader | None = None,
    ) -> None:
        """`others` has the jobs of CEs that are no sources: others publish them."""
        self._store = store
        self._systems = systems
        self._now = now
        self._runs = LinkedRuns(store)
        self._forgotten = ForgottenRuns(store)
        self._stores = [one for one in (store, others) if one is not None]
        self._ces = [BatchRuns(one) for one in self._stores]
        self._asked = False
        self._met: set[RunKey] = set()  # undecided runs that jobs of CEs have, which were loaded
        self._linked = {one.name: Linked() for one in systems}

    @property
    def troubles(self) -> Sequence[str]:
        """Why runs of batch systems wait that cannot be linked, a line each."""
        return [f"source {one.name}: {one.trouble}" for one in self._systems if one.trouble]

    def ask(self, ledger: AskLedger) -> None:
        """Ask the ledger which undecided runs were delivered, and have those that were as jobs."""
        with self._store.translated():
            with_ces = (one.name for one in self._systems if one.has_ces)
            if names := self._forgotten.to_find(with_ces):
                with closing(ledger(Epoch(_FIRST))) as parts:
                    self._forgotten.find(names, parts)
            ends = [self._runs.first_end(one.name, _LAST) for one in self._systems]
            first = min((end for end in ends if end is not None), default=None)
            if first is not None:
                with closing(ledger(Epoch(first - APART_S))) as parts:
                    for part in parts:
                        self._note_delivered(part)
            for system in self._systems:
                runs = self._runs.delivered_as_own(system.name)
                for start in range(0, len(runs), _AT_ONCE):
                    self._settle(system, runs[start : start + _AT_ONCE], frozenset())
        self._asked = True

    def due(self) -> Epoch | None:
        """Return when the first job of a CE may have ended that an undecided run still can be.

        Of runs that waited long enough: what CEs have changed since then is to be looked at.
        """
        with self._store.translated():
            ends = [
                self._runs.first_end(one.name, self._now - one.wait_s)
                for one in self._systems
                if one.has_ces
            ]
        first = min((end for end in ends if end is not None), default=None)
        return None if first is None else Epoch(first - APART_S)

    def meet(self, page: LoadedPage) -> LoadedPage:
        """Note which waiting runs a CE has by now; return the page as it is."""
        systems = [one for one in self._systems if one.ce_of(page.source) is not None]
        rows = (*page.jobs, *(one.job for one in page.partial))
        numbers = {one.local_id for one in rows if one.local_id}
        if systems and numbers:
            with self._store.translated():
                found = self._runs.of_numbers(numbers, [one.name for one in systems])
            runs = chain.from_iterable(found.values())
            self._met.update(one.job.run_key for one in runs if one.state is _WAITS)
        return page

    def page(self, page: LoadedPage) -> LoadedPage:
        """Return a page of a CE as it is stored: with what is joined, set aside, or left open."""
        systems = [one for one in self._systems if one.ce_of(page.source) is not None]
        if not systems or not page.jobs:
            return self.meet(page)
        with self._store.translated():
            decided = list(self._decided(page.jobs, systems))
        jobs = [one for one in decided if isinstance(one, JobRecord)]
        skipped = [one for one in decided if isinstance(one, SkippedJob)]
        waiting = {one for one in decided if isinstance(one, RowRef)}
        return page._replace(
            jobs=jobs,
            skipped=(*page.skipped, *skipped),
            open=(*page.open, *(OpenRow(row, None) for row in waiting)),
            closed=[row for row in page.closed if row not in waiting],
            partial=(
                *page.partial,
                *(PartialJob(job, is_in_progress=False) for job in page.jobs if job.row in waiting),
            ),
        )

    def link(self, read: Collection[str]) -> Mapping[str, Linked]:
        """Decide about all runs that can be; return what became of them by batch system.

        `read` are the CEs' databases that were loaded.
        """
        with self._store.translated():
            for system in self._systems:
                ces = self._silent_ces(system, read)
                for runs in self._to_link(system):
                    self._settle(system, runs, read, ces)
                if system.has_ces:
                    with self._runs.transaction():
                        ces.keep_waiting(self._runs, self._now)
                waiting = self._runs.undecided(system.name)
                self._linked[system.name] = self._linked[system.name]._replace(waiting=waiting)
        return self._linked

    def _silent_ces(self, system: LinkedSystem, read: Collection[str]) -> SilentCes:
        waits = {"wait_s": system.wait_s, "outage_s": system.outage_s}
        with self._runs.transaction():
            ces = SilentCes(self._store, system.name, **waits)
            if system.has_ces:
                ces.look(self._stores, read, system.ce_of, self._now)
        return ces

    def _to_link(self, system: LinkedSystem) -> Iterator[Sequence[BatchRun]]:
        due, far = self._now - system.wait_s, self._now + _FAR_S
        asked = system.name, _WAITS
        yield from self._runs.in_state(*asked, _FIRST, due, _AT_ONCE)
        yield from self._runs.in_state(*asked, far + 1, _LAST, _AT_ONCE)
        met = [one for one in self._runs.of_runs(list(self._met)) if one.source == system.name]
        for start in range(0, len(met), _AT_ONCE):
            part = met[start : start + _AT_ONCE]
            yield [one for one in part if one.state is _WAITS]
        for state in (LinkState.NEW, LinkState.CHANGED):
            yield from self._runs.in_state(system.name, state, _FIRST, _LAST, _AT_ONCE)

    # Runs

    def _note_delivered(self, part: Sequence[DeliveredRun]) -> None:
        """Keep which of the undecided runs stand in a part of the ledger's entries."""
        numbers = {one.local_id for one in part if one.local_id}
        names = [one.name for one in self._systems]
        found = self._runs.of_numbers(numbers, names)
        undecided = {
            one.job.run_key: one
            for one in chain.from_iterable(found.values())
            if one.state in _UNDECIDED
        }
        own = [one.run for one in part if one.run in undecided]
        of_ces = [
            (one.run, run.job.run_key)
            for one in part
            for run in found.get(one.local_id, ())
            if run.job.run_key in undecided and self._is_of(one, run)
        ]
        if own or of_ces:
            with self._runs.transaction():
                self._runs.note_delivered(own, of_ces)

    def _is_of(self, entry: DeliveredRun, run: BatchRun) -> bool:
        """Return whether a run may be the job of a CE that an entry is of."""
        system = self._system(run)
        span = entry.submitted_at, entry.ended_at
        return (
            entry.run != run.job.run_key
            and system.ce_of(entry.source) is not None
            and lies_in(span, run.times)
        )

    def _settle(
        self,
        system: LinkedSystem,
        runs: Sequence[BatchRun],
        read: Collection[str],
        ces: SilentCes | None = None,
    ) -> None:
        """Decide about some runs of one system, in one transaction.

        Without `ces` they were delivered as jobs of the batch system.
        """
        with self._runs.transaction():
            claims = self._claims(system, runs)
            decided: dict[LinkState, list[BatchRun]] = {_OWN: [], _OF_CE: [], _WAITS: []}
            for run in runs:
                decided[self._verdict(system, run, claims, read, ces)].append(run)
            own, of_ce = decided[_OWN], decided[_OF_CE]
            self._runs.reveal([one.job.run_key for one in own])
            for state in (_OF_CE, _WAITS):
                self._runs.keep([one.job.run_key for one in decided[state]], state)
            if system.join_wait_s is not None:
                self._rejoin([job.run for run in of_ce for job in claims.of(run)])
            as_own = [
                one for one in own if one.is_own and not self._is_delivered_by_ce(system, one)
            ]
            self._set_aside({job.run: run for run in as_own for job in claims.of(run)})
        new = [one for one in of_ce if one.state in _UNDECIDED]
        forgotten = sum(not any(map(system.has, claims.of(one))) for one in new)
        self._linked[system.name] = self._linked[system.name].plus(len(own), len(new), forgotten)

    def _verdict(
        self,
        system: LinkedSystem,
        run: BatchRun,
        claims: _Claims,
        read: Collection[str],
        ces: SilentCes | None,
    ) -> LinkState:
        of_run = claims.of(run)
        if run.state not in _UNDECIDED:
            return _OF_CE
        if run.is_own or any(one.run in claims.counted for one in of_run):
            return _OWN
        if of_run or self._is_delivered_by_ce(system, run):
            return _OF_CE
        if ces is None or not self._may_be_nobodys(system, read) or self._waits(system, run, ces):
            return _WAITS
        return _OWN

    def _is_delivered_by_ce(self, system: LinkedSystem, run: BatchRun) -> bool:
        """Return whether a CE delivered a run; not as a job that another batch system ran."""
        for key in run.ce_keys:
            systems = [lrms for ce in self._ces for lrms in ce.lrms_of_job(key)]
            if not systems or any(map(system.ran, systems)):
                return True
        return False

    def _claims(self, system: LinkedSystem, runs: Sequence[BatchRun]) -> _Claims:
        """Return the jobs of CEs that these runs may be."""
        numbers = self._runs.numbers_of(runs)
        jobs = self._ce_jobs(system, set(chain.from_iterable(numbers.values())))
        found: dict[RunKey, list[CeJob]] = {}
        for run in runs:
            named = chain.from_iterable(jobs.get(one, ()) for one in numbers[run.job.run_key])
            found[run.job.run_key] = [one for one in named if lies_in(one.span, run.times)]
        claims = list(chain.from_iterable(found.values()))
        return _Claims(found, self._counted_among(system, claims))

    def _may_be_nobodys(self, system: LinkedSystem, read: Collection[str]) -> bool:
        return self._asked and system.databases is not None and system.databases <= set(read)

    def _waits(self, system: LinkedSystem, run: BatchRun, ces: SilentCes) -> bool:
        """Return whether a run waits for a CE that may yet claim it."""
        if not system.has_ces or not system.wait_s or run.job.ended_at > self._now + _FAR_S:
            return False
        is_young = run.job.ended_at > self._now - system.wait_s
        return is_young or ces.may_claim(*run.times)

    def _ce_jobs(
        self, system: LinkedSystem, numbers: Collection[str]
    ) -> Mapping[str, Sequence[CeJob]]:
        """Return the jobs of CEs in front of a system with some numbers."""
        found: dict[str, list[CeJob]] = {}
        for store in self._ces:
            for number, jobs in store.ce_jobs(numbers).items():
                found.setdefault(number, []).extend(
                    one
                    for one in jobs
                    if system.ce_of(one.source) is not None and system.ran(one.lrms)
                )
        return found

    def _counted_among(self, system: LinkedSystem, jobs: Sequence[CeJob]) -> set[RunKey]:
        """Return which jobs of CEs have a run that is a job of the batch system."""
        found = self._runs.of_numbers({one.local_id for one in jobs}, [system.name])
        return {
            one.run
            for one in jobs
            for run in found.get(one.local_id, ())
            if run.state is _OWN and lies_in(one.span, run.times)
        }

    def _rejoin(self, runs: Sequence[RunKey]) -> None:
        """Give jobs of CEs, which were loaded before, what their runs have."""
        jobs = self._store.of_runs(list(set(runs)), current=True)
        numbers = {job.local_id for job in jobs}
        found = self._runs.of_numbers(numbers, [one.name for one in self._systems])
        changed = []
        for job in jobs:
            run = self._joined_run(job, found)
            if run is not None and (joined := with_values(job, run.job)) != job:
                changed.append(joined)
        self._runs.change(changed)

    def _set_aside(self, runs: Mapping[RunKey, BatchRun]) -> None:
        """Set jobs of CEs aside of which a run was delivered as the batch system's own."""
        found = self._store.of_runs(list(runs), current=True)
        own = ((job, runs[job.run_key]) for job in found)
        self._runs.set_aside([_counted(job, run.source, run.job.job_id) for job, run in own])

    # Jobs of CEs

    def _decided(
        self, jobs: Sequence[JobRecord], systems: Sequence[LinkedSystem]
    ) -> Iterator[JobRecord | SkippedJob | RowRef]:
        """Yield each job as it is stored, or set aside, or its row if it stays open."""
        numbers = {one.local_id for one in jobs if one.local_id}
        found = self._runs.of_numbers(numbers, [one.name for one in systems])
        runs = [self._joined_run(one, found) for one in jobs]
        unsure = [
            job.run_key
            for job, run in zip(jobs, runs, strict=True)
            if run is None or run.state in _UNDECIDED
        ]
        known = {one.run_key: one.joined for one in self._store.of_runs(unsure)}
        forgotten = self._forgotten.of_numbers(numbers)
        for job, run in zip(jobs, runs, strict=True):
            near = self._near(job, found)
            undecided = any(one.state in _UNDECIDED for one in near)
            self._met.update(one.job.run_key for one in near if one.state is _WAITS)
            own = next((one for one in near if one.state is _OWN), None)
            gone = next((one for one in forgotten if self._is_run_of(job, one)), None)
            if own is not None:
                yield _counted(job, own.source, own.job.job_id)
            elif gone is not None:
                yield _counted(job, gone.source, f"run {gone.local_id}")
            elif undecided and not self._asked and job.run_key not in known:
                yield job.row  # nobody has looked yet whether that was delivered as a job
            elif run is not None:
                joins = self._system(run).join_wait_s is not None
                yield with_values(job, run.job) if joins else job
            elif job.run_key in known:
                yield with_joined(job, known[job.run_key])
            elif self._waits_for_run(job, systems):
                yield job.row
            else:
                yield job

    def _candidates(
        self, job: JobRecord, found: Mapping[str, Sequence[BatchRun]]
    ) -> Iterator[BatchRun]:
        """Yield the runs with the number of a job, of batch systems that may have run it."""
        for run in found.get(job.local_id, ()):
            system = self._system(run)
            if system.ran(job.lrms) and system.ce_of(job.row.database) is not None:
                yield run

    def _near(self, job: JobRecord, found: Mapping[str, Sequence[BatchRun]]) -> Sequence[BatchRun]:
        """Return the runs that may be this job."""
        span = job.submitted_at, job.ended_at
        return [one for one in self._candidates(job, found) if lies_in(span, one.times)]

    def _is_run_of(self, job: JobRecord, run: ForgottenRun) -> bool:
        systems = [one for one in self._systems if one.name == run.source and one.ran(job.lrms)]
        return run.is_of(job) and any(one.ce_of(job.row.database) for one in systems)

    def _joined_run(
        self, job: JobRecord, found: Mapping[str, Sequence[BatchRun]]
    ) -> BatchRun | None:
        """Return the hidden run that a job is; None where two systems have one.

        A run that is requeued keeps its number: the one counts that ended nearest to the job.
        """
        first, last = job.ended_at - job.wall_s - APART_S, job.ended_at + APART_S
        hidden = [one for one in self._candidates(job, found) if one.state is not _OWN]
        near = [one for one in hidden if one.times[0] <= last and one.job.ended_at >= first]
        if not near or len({one.source for one in near}) > 1:
            return None
        return min(near, key=lambda one: (abs(one.job.ended_at - job.ended_at), -one.times[0]))

    def _waits_for_run(self, job: JobRecord, systems: Sequence[LinkedSystem]) -> bool:
        waits = (one.join_wait_s or 0 for one in systems if one.ran(job.lrms))
        # One that ends in a far future does not wait.
        return job.local_id != "" and abs(self._now - job.ended_at) < max(waits, default=0)

    def _system(self, run: BatchRun) -> LinkedSystem:
        return next(one for one in self._systems if one.name == run.source)


def _counted(job: JobRecord, source: str, name: str) -> SkippedJob:
    return SkippedJob(
        row=job.row,
        job_id=job.job_id,
        local_id=job.local_id,
        ended_at=job.ended_at,
        rule=COUNTED_RULE,
        reason=(
            f"source {source} has this job as {name}, since before A-REX "
            "recorded its end: it counts there, and is not published twice"
        ),
        fingerprint=job.content_fingerprint,
        submitted_at=job.submitted_at,
    )
