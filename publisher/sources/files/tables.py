"""Settings, notices, lines set aside and readings of a batch system, which are no jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from publisher.model.time import moment
from publisher.sources.base import AwaitedCe, LastReading
from publisher.sources.importers import BadLine, SourceStore

_SETTING: Final = "SELECT Value FROM SourceSetting WHERE Source = source_number() AND Name = ?"
_SET: Final = "INSERT OR REPLACE INTO SourceSetting VALUES (source_number(), ?, ?)"
_SETTLE: Final = "INSERT OR IGNORE INTO SourceSetting VALUES (source_number(), ?, ?)"
_NOTICES: Final = "SELECT Text FROM SourceNotice WHERE Source = source_number() ORDER BY Kind"
_SET_NOTICE: Final = "INSERT OR REPLACE INTO SourceNotice VALUES (source_number(), ?, ?)"
_NO_NOTICE: Final = "DELETE FROM SourceNotice WHERE Source = source_number() AND Kind = ?"
_SET_ASIDE: Final = """
    INSERT INTO ImportBadLine VALUES (source_number(), ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_MET_AGAIN: Final = "DELETE FROM ImportRetried WHERE Source = source_number() AND Digest = ?"
_BAD_LINES: Final = "SELECT count(*) FROM ImportBadLine WHERE Source = source_number()"
_SHOW_BAD_LINES: Final = """
    SELECT Path, Offset, Length, Reason, Line, Digest FROM ImportBadLine
    WHERE Source = source_number() ORDER BY Path, Offset LIMIT ?
"""
_LAST: Final = """
    SELECT Ended, Succeeded, FailingSince, Trouble, Damaged FROM SourceReading
    WHERE Source = source_number()
"""
_KEEP: Final = """
    INSERT INTO SourceReading VALUES (
        source_number(), :now, :succeeded, :failed, :trouble, :damaged
    )
    ON CONFLICT DO UPDATE SET
        Ended = :now,
        Succeeded = coalesce(:succeeded, Succeeded),
        FailingSince = CASE WHEN :failed IS NULL THEN NULL ELSE coalesce(FailingSince, :failed) END,
        Trouble = :trouble,
        Damaged = :damaged
"""
_AWAITED: Final = """
    SELECT name, written, waiting, since FROM ce
    WHERE source = source_number() AND waiting ORDER BY name
"""
_HAS_JOBS: Final = "HAS_JOBS"  # a setting
NEVER: Final = LastReading(ended=None, succeeded=None, failing_since=None)


class SourceTables:
    """The tables of one batch system, and its jobs, open to be written."""

    def __init__(self, store: SourceStore) -> None:
        self.store = store
        self.connection = store.connection

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store all that is done inside, or nothing. Raises: LedgerError."""
        with self.store.transaction():
            yield

    def setting(self, name: str) -> str:
        """Return what is kept under a name, or ''."""
        return setting(self.connection, name)

    def set(self, name: str, value: str) -> None:
        """Keep a value under a name, inside a transaction."""
        self.connection.execute(_SET, (name, value))

    def settle(self, name: str, value: str) -> str:
        """Return what is kept under a name: this value if nothing was. Inside a transaction."""
        self.connection.execute(_SETTLE, (name, value))
        return self.setting(name)

    def note_jobs(self) -> None:
        """Keep that runs were read, inside a transaction."""
        self.settle(_HAS_JOBS, "1")

    def has_jobs(self) -> bool:
        """Return whether any run was ever read."""
        return self.setting(_HAS_JOBS) != ""

    def keep_bad_lines(self, lines: Sequence[BadLine]) -> list[BadLine]:
        """Keep bad lines for people, inside a transaction; return those that are new."""
        new = []
        for line in lines:
            *where_and_why, digest = line
            if self.connection.execute(_SET_ASIDE, (digest, *where_and_why)).rowcount:
                new.append(line)
            else:
                self.connection.execute(_MET_AGAIN, (line.digest,))
        return new

    def set_notice(self, kind: str, text: str) -> None:
        """Keep what is wrong with the source, or '' where nothing is any more; in a transaction."""
        if text:
            self.connection.execute(_SET_NOTICE, (kind, text))
        else:
            self.connection.execute(_NO_NOTICE, (kind,))

    def keep_reading(self, kept: Mapping[str, object]) -> None:
        """Keep what became of a reading."""
        with self.transaction():
            self.connection.execute(_KEEP, kept)


def setting(connection: sqlite3.Connection, name: str) -> str:
    """Return what a source keeps under a name, or ''."""
    found = connection.execute(_SETTING, (name,)).fetchone()
    return "" if found is None else str(found[0])


def notices(connection: sqlite3.Connection) -> list[str]:
    """Return what is wrong with a source as a whole, one text each."""
    return [text for (text,) in connection.execute(_NOTICES)]


def count_bad_lines(connection: sqlite3.Connection) -> int:
    """Return how many lines of a source are set aside."""
    return int(connection.execute(_BAD_LINES).fetchone()[0])


def bad_lines(connection: sqlite3.Connection, limit: int) -> Sequence[BadLine]:
    """Return the first lines that were set aside, by file."""
    return [BadLine(*row) for row in connection.execute(_SHOW_BAD_LINES, (limit,))]


def last_reading(connection: sqlite3.Connection) -> LastReading:
    """Return what became of the last reading of a source, and what there is."""
    found = connection.execute(_LAST).fetchone()
    last = NEVER if found is None else _reading(*found)
    kept = tuple(notices(connection))
    awaited = tuple(
        AwaitedCe(ce, _at(written), jobs, _at(since))
        for ce, written, jobs, since in connection.execute(_AWAITED)
    )
    return last._replace(bad_lines=count_bad_lines(connection), awaited=awaited, notices=kept)


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _reading(
    ended: int, succeeded: int | None, failing_since: int | None, trouble: str, damaged: str
) -> LastReading:
    return LastReading(
        ended=moment(ended),
        succeeded=moment(succeeded),
        failing_since=moment(failing_since),
        trouble=trouble,
        damaged=tuple(damaged.splitlines()),
    )
