"""Entries that a dry run would have written, in a temporary database: memory would not hold them.

SQLite keeps some 2 MB of it in memory and the rest in a file without a name, which is gone when it
is closed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Final

from publisher.model.entry import Entry, Recorded, RecordKey, RowId, RunKey, Usage
from publisher.model.errors import LedgerError
from publisher.model.job import Epoch
from publisher.model.totals import BY_JURA

_TABLE: Final = """
CREATE TABLE entry (
    target TEXT, run BLOB, site TEXT, localid_prefix TEXT, local_id TEXT, ended_at INTEGER,
    month INTEGER, row_digest BLOB, jobs INTEGER, wall_s INTEGER, cpu_s INTEGER, digest BLOB,
    PRIMARY KEY (target, run)
) WITHOUT ROWID"""
_ENTER: Final = "INSERT OR IGNORE INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FIND: Final = """
SELECT site, localid_prefix, local_id, ended_at, month, row_digest, jobs, wall_s, cpu_s, digest
FROM entry WHERE target = ? AND run = ?"""


class ScratchEntries:
    """What another publisher sent, as a dry run adopted it."""

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect("")
        connection.execute(_TABLE)
        return connection

    def add(self, target: str, entries: Iterable[Entry]) -> None:
        """Keep entries of runs that it does not have. Raises: LedgerError where no room is left."""
        try:
            with self._connection:
                self._connection.executemany(_ENTER, (_values(target, entry) for entry in entries))
        except sqlite3.Error as error:
            raise LedgerError(f"a dry run cannot write its temporary file: {error}") from error

    def recorded(self, target: str, runs: Collection[RunKey]) -> dict[RunKey, Recorded]:
        """Return those of these runs that are there. Raises: LedgerError."""
        if "_connection" not in self.__dict__:
            return {}
        try:
            ask = self._connection.execute
            rows = ((run, ask(_FIND, (target, run)).fetchone()) for run in runs)
            return {run: _recorded(run, *row) for run, row in rows if row is not None}
        except sqlite3.Error as error:
            raise LedgerError(f"a dry run cannot read its temporary file: {error}") from error

    def close(self) -> None:
        if "_connection" in self.__dict__:
            self._connection.close()


def _values(target: str, entry: Entry) -> tuple[object, ...]:
    row, usage = entry.row.id, (entry.jobs, entry.wall_s, entry.cpu_s)
    return target, entry.run, *entry.record, *row, *usage, entry.digest


def _recorded(
    run: RunKey,
    site: str,
    prefix: str,
    local_id: str,
    ended_at: Epoch,
    month: int,
    row_digest: bytes,
    jobs: int,
    wall_s: int,
    cpu_s: int,
    digest: bytes,
) -> Recorded:
    record = RecordKey(site, prefix, local_id, ended_at)
    own = run, record, RowId(month, row_digest), Usage(jobs, wall_s, cpu_s), digest
    return Recorded(*own, BY_JURA, pending=False, first=1)
