"""What was delivered of the CEs' jobs, held against what the CEs have now, as they forget numbers.

Jobs are delivered without this database knowing of it: before it was made, or by the other host of
a pair. So whoever reads the batch system first asks the ledger what was delivered since it was
asked last. Of each run of a CE the number is remembered, whether A-REX still has it or not.

    delivered since:   job a, number 4711   |   job b, number 4712   |   job c, number 4713
    A-REX has now:     job a, number 4711   |   job b, number 5000   |
    remembered:        4711                 |   4712, forgotten      |   4713, forgotten

Jobs of the batch system itself that were delivered, and are not here, are remembered by their keys:
they stay its own, though A-REX tells of them by now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from publisher.model.entry import DeliveredFrom
from publisher.model.job import JOB_OF_RUN, Epoch, RunKey, run_key
from publisher.model.text import arex_unescape
from publisher.sources.base import NAMES_OF_AREX
from publisher.sources.files.arc.jobs import ArcJobs
from publisher.sources.files.arc.numbers import Run, remember, remember_own
from publisher.sources.files.tables import SourceTables
from publisher.sources.importers import DeliveredSince

_MARK: Final = "DELIVERED_UNTIL"  # a setting of the source
_COLUMNS: Final = """
    CAST(JobID AS BLOB), CAST(LocalJobID AS BLOB), CAST(coalesce(SubmitTime, 0) AS INTEGER)
"""
_SUBMITTED: Final = "WHERE SubmitTime IN (SELECT value FROM json_each(:seconds))"
_DeliveredRun = tuple[RunKey, str, Epoch]  # its LocalJobID and end


class _CeJob(NamedTuple):
    """A job of a CE as it is today. `is_ours`: it may be of the batch system that is read."""

    run: RunKey
    is_ours: bool


def remember_delivered(accounting: SourceTables, arc: ArcJobs, delivered: DeliveredSince) -> int:
    """Return how many forgotten runs came to be known. Raises: SourceError, LedgerError, Busy."""
    before = accounting.setting(_MARK)
    comparison = _Comparison(accounting, arc)
    with delivered(before) as (until, parts):
        for part in parts:
            # Names are of batch systems; this one's was another before, if its entry was renamed.
            # Without a name are runs that another publisher sent.
            if os.path.isabs(part.source):
                comparison.take(part)
            else:
                comparison.take_own(part.runs)
    if until != before:
        with accounting.transaction():
            accounting.set(_MARK, until)
    return comparison.forgotten


def _jobs_submitted_with(arc: ArcJobs, runs: Sequence[_DeliveredRun]) -> Iterator[_CeJob]:
    """Yield the jobs that CEs have of the seconds in which these runs were submitted."""
    seconds = sorted({_submitted_at(run) for run, _, _ in runs})
    for database in arc.databases():
        for job_id, number, submitted_at, is_ours in arc.ask(
            database, _COLUMNS, _SUBMITTED, {"seconds": json.dumps(seconds)}
        ):
            run = run_key(submitted_at, _text(job_id), _text(number))
            yield _CeJob(run, bool(is_ours))


def _submitted_at(run: RunKey) -> int:
    return int.from_bytes(run[:4], "big")


def _text(stored: bytes | None) -> str:
    """As a `JobRecord` has what A-REX wrote."""
    return arex_unescape((stored or b"").decode("utf-8", "surrogateescape"))


class _Comparison:
    """Each step is one transaction; if it ends before the last one, all is done again."""

    def __init__(self, accounting: SourceTables, arc: ArcJobs) -> None:
        self.forgotten = 0
        self._accounting = accounting
        self._arc = arc
        self._connection = accounting.connection

    def take(self, part: DeliveredFrom) -> None:
        """Remember delivered runs of a database that is a CE's, or was one under another name.

        Whose a run was that no CE has any more tells only the name of its database.
        """
        runs = [one for one in part.runs if one[1]]
        is_ours: dict[bytes, bool] = {}  # by job
        there: set[RunKey] = set()
        for job in _jobs_submitted_with(self._arc, runs):
            of_job = job.run[JOB_OF_RUN]
            is_ours[of_job] = is_ours.get(of_job, False) or job.is_ours
            there.add(job.run)
        unless_there = self._is_of_ce(part.source)
        known: list[Run] = []
        forgotten: list[Run] = []
        for run, number, ended_at in runs:
            if is_ours.get(run[JOB_OF_RUN], unless_there):
                of_run = number, _submitted_at(run), ended_at
                (known if run in there else forgotten).append(of_run)
        with self._accounting.transaction():
            remember(self._connection, known)
            self._forget(forgotten)

    def _is_of_ce(self, database: str) -> bool:
        """Whether jobs delivered from a database were surely a CE's, though it may be gone."""
        return database in self._arc.databases() or os.path.basename(database) in NAMES_OF_AREX

    def take_own(self, runs: Sequence[_DeliveredRun]) -> None:
        """Remember delivered runs of the batch system's own database that it has no more."""
        numbers = sorted({number for _, number, _ in runs})
        here = {job.run_key for job in self._accounting.store.with_local_ids(numbers)}
        with self._accounting.transaction():
            remember_own(self._connection, [run for run, _, _ in runs if run not in here])

    def _forget(self, runs: Iterable[Run]) -> None:
        before = self._connection.total_changes
        remember(self._connection, runs)
        self.forgotten += self._connection.total_changes - before
