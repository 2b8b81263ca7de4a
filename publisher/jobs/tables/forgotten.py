"""Runs that were delivered as jobs of a batch system, and of which a new store found nothing.

Their log files were rotated away before the store was begun anew. A-REX may write their jobs only
now: these count already.

    delivered: run 4711 of hpc   |   jobs.db deleted, sacct has purged the run
    A-REX writes: job a, 4711    |   ->  set aside: hpc has it
"""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from publisher.jobs.store import JobStore
from publisher.jobs.tables.batch_runs import lies_in
from publisher.model.entry import DeliveredRun
from publisher.model.job import JobRecord, RunKey

_ASKED_AT_ONCE: Final = 200
_THERE: Final = (
    "SELECT run FROM job WHERE run IN ({})",
    "SELECT run FROM batch_run WHERE run IN ({})",
)
_NOTE: Final = """INSERT OR IGNORE INTO forgotten_run
SELECT id, :local_id, :submitted_at, :ended_at FROM source WHERE name = :source"""
_OF_NUMBERS: Final = """SELECT s.name, local_id, submitted_at, ended_at
FROM forgotten_run JOIN source AS s ON s.id = forgotten_run.source
WHERE local_id IN (SELECT value FROM json_each(?))"""
_ASKED: Final = """SELECT count(*) FROM SourceSetting AS setting
JOIN source AS s ON s.id = setting.Source WHERE s.name = ? AND setting.Name = 'FORGOTTEN_ASKED'"""
_SET_ASKED: Final = """INSERT OR REPLACE INTO SourceSetting
SELECT id, 'FORGOTTEN_ASKED', '1' FROM source WHERE name = ?"""


class ForgottenRun(NamedTuple):
    """A run that was delivered as a job of the batch system `source`, and is not in the store."""

    source: str
    local_id: str
    submitted_at: int  # its start is not known
    ended_at: int

    def is_of(self, job: JobRecord) -> bool:
        """Return whether it has the number and time of a job of a CE."""
        span = job.submitted_at, job.ended_at
        times = self.submitted_at, self.ended_at
        return self.local_id == job.local_id and lies_in(span, times)


class ForgottenRuns:
    """Those of a store. Methods raise sqlite3.Error."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._execute = store.connection.execute

    def to_find(self, sources: Iterable[str]) -> Sequence[str]:
        """Return the batch systems for which the ledger was not asked in this store."""
        return [one for one in sources if not self._execute(_ASKED, (one,)).fetchone()[0]]

    def find(self, sources: Collection[str], parts: Iterable[Sequence[DeliveredRun]]) -> None:
        """Keep delivered runs of these batch systems that are not in the store."""
        for part in parts:
            own = {one.run: one for one in part if one.local_id and one.source in sources}
            missing = own.keys() - self._there(list(own))
            found = [
                ForgottenRun(one.source, one.local_id, one.submitted_at, one.ended_at)
                for one in map(own.__getitem__, missing)
            ]
            with self._store.transaction():
                rows = [one._asdict() for one in found]
                self._store.connection.executemany(_NOTE, rows)
        with self._store.transaction():
            for source in sources:
                self._execute(_SET_ASKED, (source,))

    def of_numbers(self, numbers: Collection[str]) -> Sequence[ForgottenRun]:
        """Return those with these local ids."""
        asked = json.dumps([one for one in numbers if one.isascii()])
        return [ForgottenRun(*row) for row in self._execute(_OF_NUMBERS, (asked,)).fetchall()]

    def _there(self, runs: Sequence[RunKey]) -> set[RunKey]:
        found: set[RunKey] = set()
        for start in range(0, len(runs), _ASKED_AT_ONCE):
            part = runs[start : start + _ASKED_AT_ONCE]
            for question in _THERE:
                asked = question.format(", ".join("?" * len(part)))
                found.update(row[0] for row in self._execute(asked, part))
        return found
