"""Balances: what the entries of a row that count add up to, and when the first and last one ended.

They are written, and the sums of months with them (`month_sums.py`), when entries begin or cease to
count, and at no other time. Entries without jobs, of runs that shall not count any more, add
nothing and have no ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import month_sums
from publisher.model.entry import closing_run
from publisher.model.receiver import RowSum, entry_digest

_ADD: Final = """
INSERT INTO balance (row_key, jobs, wall_s, cpu_s, first_end, last_end)
VALUES (:row_key, :jobs, :wall_s, :cpu_s, :first_end, :last_end)
ON CONFLICT (row_key) DO UPDATE SET
    sent_jobs = CASE WHEN balance.sent_by IS NULL THEN 0 ELSE balance.sent_jobs END,
    jobs = balance.jobs + excluded.jobs, wall_s = balance.wall_s + excluded.wall_s,
    cpu_s = balance.cpu_s + excluded.cpu_s,
    first_end = CASE WHEN balance.jobs > 0 AND balance.first_end < excluded.first_end
                     THEN balance.first_end ELSE excluded.first_end END,
    last_end = CASE WHEN balance.jobs > 0 AND balance.last_end > excluded.last_end
                    THEN balance.last_end ELSE excluded.last_end END"""
_LESS: Final = """
UPDATE balance SET jobs = jobs - :jobs, wall_s = wall_s - :wall_s, cpu_s = cpu_s - :cpu_s
WHERE row_key = :row_key"""
# What a receiver made of single records before some of them leave the row; less those that came.
_STAYS: Final = """
UPDATE balance SET sent_jobs = jobs - :jobs, sent_wall_s = wall_s - :wall_s,
    sent_cpu_s = cpu_s - :cpu_s
WHERE row_key = :row_key AND sent_by IS NULL AND jobs - :jobs > sent_jobs"""
_BALANCE: Final = "SELECT jobs, first_end, last_end FROM balance WHERE row_key = :row_key"
# The index by end is that of all rows; the first entry that is of this one ends the search.
_FIRST_END: Final = """
SELECT ended_at FROM entry
WHERE +receiver = :receiver AND ended_at >= :first_end AND ended_at <= :last_end
    AND row_key = :row_key AND state IN (1, 3) AND jobs > 0
ORDER BY ended_at LIMIT 1"""
_LAST_END: Final = f"{_FIRST_END.removesuffix(' LIMIT 1')} DESC LIMIT 1"
# Of a closing entry (sql/sums/elsewhere/closed.py), which has the last end as its own.
_FIRST_OF_CLOSED: Final = """
SELECT CAST(local_id AS BIGINT) FROM entry
WHERE receiver = :receiver AND run = :run AND row_key = :row_key AND state IN (1, 3)"""
_SET_ENDS: Final = """
UPDATE balance SET first_end = :first_end, last_end = :last_end WHERE row_key = :row_key"""


class Addition(NamedTuple):
    """What an entry adds to its row; times in seconds."""

    row_key: int
    jobs: int
    wall_s: int
    cpu_s: int
    ended_at: int
    prefix: str  # of its digest (model/receiver.py)


@dataclass(slots=True)
class _Sums:
    """What some entries of a row add up to."""

    jobs: int = 0
    wall_s: int = 0
    cpu_s: int = 0
    first_end: int = 1 << 62
    last_end: int = 0
    digest: int = 0

    def add(self, run: bytes, entry: Addition) -> None:
        _, jobs, wall_s, cpu_s, ended_at, prefix = entry
        self.digest += entry_digest(run, jobs, wall_s, cpu_s, ended_at, prefix)
        self.jobs += jobs
        self.wall_s += wall_s
        self.cpu_s += cpu_s
        if ended_at < self.first_end:
            self.first_end = ended_at
        if ended_at > self.last_end:
            self.last_end = ended_at

    def less(self, other: _Sums) -> RowSum:
        return RowSum(self.jobs - other.jobs, self.digest - other.digest)

    def of_row(self, row_key: int) -> dict[str, object]:
        usage = {"jobs": self.jobs, "wall_s": self.wall_s, "cpu_s": self.cpu_s}
        return {"row_key": row_key, **usage, "first_end": self.first_end, "last_end": self.last_end}


class BalanceChanges:
    """Entries that begin or cease to count, summed up by row. Memory: two sums a row."""

    def __init__(self) -> None:
        self._coming: dict[int, _Sums] = {}
        self._leaving: dict[int, _Sums] = {}

    def add(self, run: bytes, entry: Addition) -> None:
        """Count an entry in its row."""
        _count(self._coming, run, entry)

    def take_away(self, run: bytes, entry: Addition) -> None:
        """Count an entry in its row no more."""
        _count(self._leaving, run, entry)

    def write(self, database: Database, receiver: int) -> Mapping[int, tuple[int, bytes, str]]:
        """Bring the balances of a receiver's rows up to date, after the entries.

        Return month, digest and fields of these rows (hot path).
        """
        coming, leaving = self._coming, self._leaving
        none = _Sums()
        fewer = {row for row in leaving if leaving[row].jobs > coming.get(row, none).jobs}
        database.execute_many(_ADD, [coming[row].of_row(row) for row in sorted(coming)])
        if fewer:
            came = [coming.get(row, none).of_row(row) for row in sorted(fewer)]
            database.execute_many(_STAYS, came)
        database.execute_many(_LESS, [leaving[row].of_row(row) for row in sorted(leaving)])
        for row_key in sorted(leaving):
            _find_ends(database, receiver, row_key, leaving[row_key])
        rows = {
            row: coming.get(row, none).less(leaving.get(row, none))
            for row in coming.keys() | leaving.keys()
        }
        return month_sums.change(database, receiver, rows)


def _count(sums: dict[int, _Sums], run: bytes, entry: Addition) -> None:
    if entry.jobs:
        row = sums.get(entry.row_key) or sums.setdefault(entry.row_key, _Sums())
        row.add(run, entry)


def _find_ends(database: Database, receiver: int, row_key: int, left: _Sums) -> None:
    """Find the ends of a row anew where the entry that had one has left it."""
    row = {"row_key": row_key}
    jobs, first_end, last_end = database.execute(_BALANCE, row).fetchone()
    if jobs and left.first_end > first_end and left.last_end < last_end:
        return
    ends = {"first_end": 0, "last_end": 0}
    if jobs:
        between = {"receiver": receiver, "first_end": first_end, "last_end": last_end}
        for end, question in (("first_end", _FIRST_END), ("last_end", _LAST_END)):
            found = database.execute(question, row | between).fetchone()
            ends[end] = found[0] if found else 0
        asked = {**row, "receiver": receiver, "run": closing_run(row_key)}
        if closed := database.execute(_FIRST_OF_CLOSED, asked).fetchone():
            ends["first_end"] = min(ends["first_end"], closed[0])
    database.execute(_SET_ENDS, row | ends)
