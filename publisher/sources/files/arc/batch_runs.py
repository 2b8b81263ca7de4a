"""The runs of batch systems that are jobs of A-REX, looked up by A-REX's numbers.

Each batch system has a part of the job store. A job is looked up in those that its CE submits to:
clusters give the same numbers.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from itertools import compress
from typing import Any, Final, NamedTuple, Protocol, Self

from publisher.model.job import JobId, JobRecord
from publisher.sources.base import JoinedEntry
from publisher.sources.files.arc.numbers import (
    APART_S,
    Run,
    StoredRun,
    overlap,
    remember,
    runs_of_numbers,
    spans_of,
)


class BatchRun(NamedTuple):
    """A run of a batch system that is a job of A-REX."""

    entry: JoinedEntry
    run: StoredRun


class JobsOfSources(Protocol):
    """What is asked of the job store, of which each batch system has a part."""

    def bound_to(self, source: str) -> sqlite3.Connection:
        """Return the connection, on which `source_number()` is that of a source from now on."""

    def with_local_ids(self, local_ids: Sequence[str]) -> list[JobRecord]:
        """Return all runs that have these ids in their batch systems."""

    def of_jobs(self, job_ids: Iterable[JobId]) -> list[JobRecord]:
        """Return all runs of these jobs."""


class LoadedJobs(JobsOfSources, Protocol):
    """The job store while it is loaded."""

    def transaction(self) -> AbstractContextManager[None]:
        """Store all that is done inside, or nothing."""


class _RunsOfSource(NamedTuple):
    """The part of one batch system: `SourceRuns`."""

    store: JobsOfSources
    name: str
    connection: sqlite3.Connection

    def with_local_ids(self, local_ids: Sequence[str]) -> list[JobRecord]:
        found = self.store.with_local_ids(local_ids)
        return [job for job in found if job.row.database == self.name]

    def jobs(self, job_ids: Iterable[str]) -> Mapping[str, JobRecord]:
        found = self.store.of_jobs(map(JobId, job_ids))
        return {job.job_id: job for job in found if job.row.database == self.name}


class BatchRuns:
    """The runs of all batch systems that are joined, by local id."""

    def __init__(
        self,
        entries: Sequence[JoinedEntry],
        store: JobsOfSources,
        *,
        remembers_in: LoadedJobs | None = None,
    ) -> None:
        """`remembers_in`: where what a CE has is remembered before looking it up."""
        self.entries = entries
        self._store = store
        self._remembers_in = remembers_in

    def of_ce(self, database: str) -> Self:
        """The same of those batch systems only that the CE with this database submits to."""
        found = copy(self)
        found.entries = [entry for entry in self.entries if entry.is_of_ce(database)]
        return found

    def look_up(self, local_ids: Sequence[str]) -> Mapping[str, Sequence[BatchRun]]:
        """One question for each batch system. Raises: LedgerError."""
        numbers = sorted(set(filter(None, local_ids)))
        found: dict[str, list[BatchRun]] = {}
        for entry in self.entries if numbers else ():
            part = self._part(entry)
            known = runs_of_numbers(part, numbers, joins=entry.wait_s is not None)
            for number, runs in known.items():
                found.setdefault(number, []).extend(BatchRun(entry, run) for run in runs)
        return found

    def _part(self, entry: JoinedEntry) -> _RunsOfSource:
        return _RunsOfSource(self._store, entry.name, self._store.bound_to(entry.name))

    def remember(self, runs: Sequence[tuple[Run, str]]) -> None:
        """That a CE has these runs, each with what A-REX calls its batch system.

        Raises: LedgerError.
        """
        if self._remembers_in is None:
            return
        asked = [(number, end, lrms) for (number, _, end), lrms in runs]
        for entry in self.entries:
            connection = self._remembers_in.bound_to(entry.name)
            new = [run for run, _ in compress(runs, self._are_new(connection, entry, asked))]
            if new:
                with self._remembers_in.transaction():
                    remember(connection, new)

    def _are_new(
        self,
        connection: sqlite3.Connection,
        entry: JoinedEntry,
        runs: Sequence[tuple[str, int, str]],
    ) -> Sequence[bool]:
        may = [_may_have(entry, *run) for run in runs]
        if not any(may):
            return may
        numbers = sorted({number for number, _, _ in compress(runs, may)})
        had = {(number, end) for number, _, end in spans_of(connection, numbers)}
        asked = zip(may, runs, strict=True)
        return [yes and (number, end) not in had for yes, (number, end, _) in asked]

    def waits(self, lrms: str) -> int:
        """How long after its end a job waits for its run."""
        return max((entry.wait_s or 0 for entry in self.entries if entry.ran(lrms)), default=0)


def _may_have(entry: JoinedEntry, number: str, end: int, lrms: str) -> bool:
    """Whether a batch system may have had a run that ended so, and given it this number."""
    is_number = number != "" and number.isascii() and number.isprintable()
    return end > 0 and is_number and entry.ran(lrms)


def run_of(found: Mapping[str, Sequence[BatchRun]], run: JobRecord, lrms: str) -> BatchRun | None:
    """The run that is this job: of the same number and overlapping, as numbers come again.

    None where two systems have one. A run that is requeued keeps its number: the one counts that
    ended nearest to the job.
    """
    return nearest_run(found.get(run.local_id, ()), run.ended_at, run.wall_s, lrms)


def nearest_run(runs: Sequence[BatchRun], ended_at: int, wall_s: int, lrms: str) -> BatchRun | None:
    first, last = ended_at - wall_s - APART_S, ended_at + APART_S
    joined = [one for one in runs if not one.run.own and one.entry.ran(lrms)]
    near = [one for one in joined if one.run.started_at <= last and one.run.ended_at >= first]
    if not near or len({one.entry.name for one in near}) > 1:
        return None
    return min(near, key=lambda one: (abs(one.run.ended_at - ended_at), -one.run.started_at))


def own_run(runs: Sequence[BatchRun], span: tuple[int, int], lrms: str) -> BatchRun | None:
    """The job of a batch system that a job of A-REX is."""
    own = (one for one in runs if one.run.own and one.entry.ran(lrms))
    return next((one for one in own if overlap(span, one.run.started_at, one.run.ended_at)), None)


def additions(adds: str, job: JobRecord) -> dict[str, Any]:
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
