"""The runs of batch systems that are jobs of A-REX, looked up by A-REX's numbers.

Each batch system has a database of its own. A job is looked up in those that its CE submits to:
clusters give the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from publisher.model.job import JobRecord
from publisher.sources.base import JoinedEntry, has_file
from publisher.sources.files.arc.jobs import ARC_RUNS
from publisher.sources.files.arc.numbers import (
    APART_S,
    Run,
    StoredRun,
    overlap,
    remember,
    runs_of_numbers,
    spans_of,
)
from publisher.sources.files.database import ImportDatabase
from publisher.sources.sqlite_reader import BUSY_TIMEOUT_S, CopyDirectory, ReadOnlyFile


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

    def of_ce(self, database: str) -> Self:
        """The same of those batch systems only that the CE with this database submits to."""
        found = copy(self)
        found.entries = [entry for entry in self.entries if entry.is_of_ce(database)]
        return found

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

    def _are_new(self, entry: JoinedEntry, runs: Sequence[tuple[str, int, str]]) -> Sequence[bool]:
        file = self._file(entry) if self._remembers else None
        may = [_may_have(entry, *run) for run in runs]
        if file is None or not any(may):
            return [False] * len(runs)
        numbers = sorted({number for number, _, _ in compress(runs, may)})
        had = {(number, end) for number, _, end in file.ask(partial(spans_of, numbers=numbers))}
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
