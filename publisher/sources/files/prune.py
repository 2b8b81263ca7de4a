"""Rows of old jobs taken out of a batch system's database, which keeps that they were read.

In which months they ended stays known too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from publisher.model.job import JobRecord
from publisher.model.time import Month, epoch
from publisher.sources.base import has_file
from publisher.sources.files.database import SIDE_TABLES, ImportDatabase
from publisher.sources.files.read_files import ask_database

_AT: Final = "PRUNED_AT"
# The newest row stays: that it is still there shows a reader that its rows keep their numbers.
_STILL_THERE: Final = """
    SELECT 1 FROM AAR
    WHERE RecordID = ? AND JobID = ? AND RecordID < (SELECT max(RecordID) FROM AAR)
"""
_COUNT: Final = """
    INSERT INTO ImportPrunedMonth VALUES (?, 1) ON CONFLICT (Month) DO UPDATE SET Jobs = Jobs + 1
"""
_HAS_MONTHS: Final = "SELECT 1 FROM sqlite_master WHERE name = 'ImportPrunedMonth'"
_MONTHS: Final = "SELECT Month FROM ImportPrunedMonth ORDER BY Month"


def last_pruned(database: Path) -> datetime | None:
    """Raises: LedgerError, Busy, UsageError."""
    with ImportDatabase(database) as accounting:
        at = accounting.setting(_AT)
    return datetime.fromtimestamp(int(at), UTC) if at else None


def keep_pruned(database: Path, now: datetime) -> None:
    """That old rows were looked through. Raises: LedgerError, Busy, UsageError."""
    with ImportDatabase(database) as accounting, accounting.transaction():
        accounting.set(_AT, str(epoch(now)))


def prune_rows(database: Path, jobs: Sequence[JobRecord]) -> int:
    """Take out these jobs, in one transaction. Returns how many were there.

    Raises: LedgerError, Busy, UsageError.
    """
    pruned = 0
    with ImportDatabase(database) as accounting, accounting.transaction():
        execute = accounting.connection.execute
        for job in jobs:
            number = job.row.record_id
            if execute(_STILL_THERE, (number, job.job_id)).fetchone() is None:
                continue
            for table in SIDE_TABLES:
                execute(f"DELETE FROM {table} WHERE RecordID = ?", (number,))
            execute("DELETE FROM AAR WHERE RecordID = ?", (number,))
            accounting.remember_pruned([job.job_id])
            ended = datetime.fromtimestamp(job.ended_at, UTC)
            execute(_COUNT, (f"{ended:%Y-%m}",))
            pruned += 1
    return pruned


def pruned_months(database: Path, copies_below: Path) -> Sequence[Month]:
    """Those of which jobs were taken out. Raises: SourceError."""

    def ask(connection: sqlite3.Connection) -> Sequence[Month]:
        if connection.execute(_HAS_MONTHS).fetchone() is None:
            return ()
        return [Month(int(text[:4]), int(text[5:])) for (text,) in connection.execute(_MONTHS)]

    return ask_database(str(database), copies_below, ask) if has_file(database) else ()
