"""Reading a batch system's entry of `source` before a round, and what became of that.

It is kept in the entry's own database.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from publisher.model.errors import LedgerError, PublisherError, bug_text, refused_by_system
from publisher.model.time import epoch, moment
from publisher.sources.base import AwaitedCe, BatchEntry, LastReading, Namesake, has_file
from publisher.sources.files.database import ImportDatabase
from publisher.sources.files.log_files import opened, rotated_siblings
from publisher.sources.files.read_files import Cursors, ask_database
from publisher.sources.importers import BadLine, Importer, ImportReport, Retried
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile

_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS SourceReading (
        Only INTEGER PRIMARY KEY CHECK (Only = 1),
        Ended INTEGER NOT NULL,     -- the last reading, as the times below in epoch seconds
        Succeeded INTEGER,          -- the last one without trouble
        FailingSince INTEGER,       -- the first one with trouble after that
        Trouble TEXT NOT NULL,
        Damaged TEXT NOT NULL       -- archives that the last one passed over, a line each
    );
"""
# For people: what is wrong with a source as a whole, and what to do, until it is no longer so.
NOTICE_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS SourceNotice (
        Kind TEXT PRIMARY KEY,
        Text TEXT NOT NULL
    ) WITHOUT ROWID;
"""
_KEEP: Final = """
    INSERT INTO SourceReading VALUES (1, :now, :succeeded, :failed, :trouble, :damaged)
    ON CONFLICT DO UPDATE SET
        Ended = :now,
        Succeeded = coalesce(:succeeded, Succeeded),
        FailingSince = CASE WHEN :failed IS NULL THEN NULL ELSE coalesce(FailingSince, :failed) END,
        Trouble = :trouble,
        Damaged = :damaged
"""
_HAS_TABLE: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = ?)"
_CLUSTER_READ: Final = "SELECT KeyValue FROM DBConfig WHERE KeyName = ?"
_PATHS: Final = "SELECT Path FROM ImportFile WHERE Importer = ?"
_AWAITED: Final = "SELECT Ce, Written, Waiting, Since FROM ArcCe WHERE Waiting ORDER BY Ce"
_LAST: Final = "SELECT Ended, Succeeded, FailingSince, Trouble, Damaged FROM SourceReading"
_NOTICES: Final = "SELECT Text FROM SourceNotice ORDER BY Kind"
_SET_NOTICE: Final = "INSERT OR REPLACE INTO SourceNotice VALUES (?, ?)"
_NO_NOTICE: Final = "DELETE FROM SourceNotice WHERE Kind = ?"
_BAD_LINES: Final = "SELECT count(*) FROM ImportBadLine"
_SHOW_BAD_LINES: Final = """
    SELECT Path, Offset, Length, Reason, Line, Digest FROM ImportBadLine
    ORDER BY Path, Offset LIMIT :limit
"""
_LOOK_EVERY_S: Final = 0.2
_BAD_FILES: Final = "SELECT Path, count(*) FROM ImportBadLine GROUP BY Path ORDER BY Path"
_RETRY: Final = (
    "INSERT OR IGNORE INTO ImportRetried SELECT Digest FROM ImportBadLine WHERE Path = ?"
)
_NOT_MET_AGAIN: Final = (
    "DELETE FROM ImportBadLine WHERE Digest IN (SELECT Digest FROM ImportRetried)"
)
NEVER: Final = LastReading(ended=None, succeeded=None, failing_since=None)


def read_entry(
    entry: BatchEntry,
    importer: Callable[[], Importer],
    clock: Callable[[], datetime],
    wait: Callable[[float], bool],
    check: Callable[[], object],
) -> ImportReport | None:
    """Read what is new, unless another process has just done so: None.

    `check` raises what keeps it from being read. What went wrong is kept, and raised where nothing
    could be read at all. Raises: PublisherError.
    """
    asked = epoch(clock())
    with alone(entry.database, wait) as was_first:
        if not was_first and _ended(entry.database) >= asked:
            return None
        try:
            check()
            report = importer().run((), entry.database, clock())
        except PublisherError as error:
            _keep(entry.database, clock(), trouble=str(error))
            raise
        except Exception as error:
            _keep(entry.database, clock(), trouble=bug_text(error))
            raise
        _keep(entry.database, clock(), trouble="; ".join(report.failures), damaged=report.damaged)
    return report


def namesakes(entry: BatchEntry, copies_below: Path) -> Sequence[Namesake]:
    """Databases beside the entry's own into which its files were read, under another cluster.

    Raises: SourceError.
    """
    options: Any = entry.options
    reads = [str(path) for path in options.reads]

    def ask(connection: sqlite3.Connection) -> str:
        found = connection.execute(_CLUSTER_READ, (f"{entry.type.upper()}_CLUSTER",)).fetchone()
        if found is None or found[0] == options.cluster:
            return ""
        read = [path for (path,) in connection.execute(_PATHS, (entry.type,))]
        same = any(_names(each, path) for path in read for each in reads)
        return str(found[0]) if same else ""

    found = []
    with closing(CopyDirectory(copies_below)) as copies:
        for database in sorted(entry.database.parent.glob("*.db")):
            with closing(ReadOnlyFile(str(database), copies)) as file:
                if cluster := file.ask(ask):
                    found.append(Namesake(database, cluster))
    return found


def _names(reads: str, path: str) -> bool:
    return path == reads or path.startswith(f"{reads}/") or fnmatchcase(path, reads)


def last_reading(database: Path, copies_below: Path) -> LastReading:
    """Return what became of the last reading, and what there is. Raises: SourceError."""

    def ask(connection: sqlite3.Connection) -> LastReading:
        execute = connection.execute
        has_reading = execute(_HAS_TABLE, ("SourceReading",)).fetchone()[0]
        has_ces = execute(_HAS_TABLE, ("ArcCe",)).fetchone()[0]
        found = execute(_LAST).fetchone() if has_reading else None
        ces = execute(_AWAITED).fetchall() if has_ces else ()
        awaited = [AwaitedCe(ce, _at(at), jobs, _at(since)) for ce, at, jobs, since in ces]
        (bad_lines,) = execute(_BAD_LINES).fetchone()
        last = NEVER if found is None else _reading(*found)
        has_notices = execute(_HAS_TABLE, ("SourceNotice",)).fetchone()[0]
        kept = tuple(notices(connection)) if has_notices else ()
        return last._replace(bad_lines=bad_lines, awaited=tuple(awaited), notices=kept)

    return ask_database(str(database), copies_below, ask) if has_file(database) else NEVER


def set_notice(connection: sqlite3.Connection, kind: str, text: str) -> None:
    """Keep what is wrong with a source, or '' where nothing is any more, inside a transaction."""
    if text:
        connection.execute(_SET_NOTICE, (kind, text))
    else:
        connection.execute(_NO_NOTICE, (kind,))


def notices(connection: sqlite3.Connection) -> list[str]:
    """Return what is wrong with a source as a whole, one text each."""
    return [text for (text,) in connection.execute(_NOTICES)]


def bad_lines(database: Path, limit: int, copies_below: Path) -> Sequence[BadLine]:
    """Return the lines that were set aside, by file. Raises: SourceError."""

    def ask(connection: sqlite3.Connection) -> Sequence[BadLine]:
        return [BadLine(*row) for row in connection.execute(_SHOW_BAD_LINES, {"limit": limit})]

    return ask_database(str(database), copies_below, ask) if has_file(database) else ()


def retry(
    entry: BatchEntry,
    importer: Importer,
    clock: Callable[[], datetime],
    wait: Callable[[float], bool],
) -> Retried | None:
    """Read the files once more in which lines were set aside, whole; None where there are none.

    What is known of them changes nothing. A line that is not met again is no longer bad, unless a
    file was in trouble. Raises: PublisherError.
    """
    if not entry.is_read():
        return None
    with alone(entry.database, wait):
        now = clock()
        with ImportDatabase(entry.database, _TABLES) as accounting:
            found = _to_retry(accounting, entry.type, importer, now)
        report = ImportReport(importer=entry.type, database=entry.database)
        if found.tried:
            report = importer.run(found.files, entry.database, now)
        with ImportDatabase(entry.database, _TABLES) as accounting, accounting.transaction():
            if not report.troubles:
                accounting.connection.execute(_NOT_MET_AGAIN)
            accounting.connection.execute("DELETE FROM ImportRetried")
            (left,) = accounting.connection.execute(_BAD_LINES).fetchone()
    return Retried(tried=found.tried, still_bad=left - found.others, gone=found.gone, report=report)


class _ToRetry(NamedTuple):
    """The files to read again, none where a program is asked."""

    files: Sequence[Path]
    tried: int  # how many bad lines that may mend
    others: int  # bad lines
    gone: Mapping[str, int]


def _to_retry(accounting: ImportDatabase, kind: str, importer: Importer, now: datetime) -> _ToRetry:
    """Forgets how far they were read, and notes the bad lines that are to be met again."""
    connection, cursors = accounting.connection, Cursors(accounting.connection, kind)
    counts: dict[str, int] = dict(connection.execute(_BAD_FILES).fetchall())
    files = {path: _files_of(Path(path), cursors) for path in counts}
    with accounting.transaction():
        asked = [path for path in counts if importer.ask_again(connection, Path(path), now)]
        tried = asked or list(filter(files.get, files))
        again = list(dict.fromkeys(chain.from_iterable(map(files.__getitem__, tried))))
        connection.execute("DELETE FROM ImportRetried")
        connection.executemany(_RETRY, [(path,) for path in tried])
        for each in again:
            cursors.read_again(str(each))
            importer.forget_file(connection, each)
    lines = sum(map(counts.__getitem__, tried))
    gone = {path: counts[path] for path, found in files.items() if not (found or path in asked)}
    return _ToRetry(files=again, tried=lines, others=sum(counts.values()) - lines, gone=gone)


def _files_of(path: Path, cursors: Cursors) -> Sequence[Path]:
    """Where a line of this file may be today: there, and where rotation moved what was read of it.

    Raises: SourceError.
    """
    there = [path] if path.is_file() else []
    if not path.parent.is_dir() or not path.is_absolute():
        return there
    for sibling in rotated_siblings(path, 0.0):
        with opened(sibling) as file:
            if any(file.begins(cursor.mark) for cursor in cursors.all() if cursor.mark.consumed):
                there.append(sibling)
    return there


@contextmanager
def alone(database: Path, wait: Callable[[float], bool]) -> Iterator[bool]:
    """Nobody else reads into this database meanwhile. Whether nobody had to be waited for.

    Raises: LedgerError.
    """
    lock = database.with_name(f"{database.name}.lock")
    try:
        for folder in (database.parent.parent, database.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        # A link that somebody else made there would lead us to make files elsewhere.
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refused(lock, error) from error
    with open(descriptor):
        was_first = True
        while not _locked(lock, descriptor):
            was_first = False
            if wait(_LOOK_EVERY_S):
                stopped = "another process reads into it, and a stop was asked for"
                raise LedgerError(f"{database}: {stopped}")
        yield was_first


def _locked(path: Path, descriptor: int) -> bool:
    """Raises: LedgerError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _refused(path, error) from error
    return True


def _refused(lock: Path, error: OSError) -> LedgerError:
    why = refused_by_system(error, "its directory must belong to the user who publishes")
    return LedgerError(f"{lock}: {why}")


def _keep(database: Path, now: datetime, *, trouble: str, damaged: Sequence[str] = ()) -> None:
    """Raises: LedgerError, Busy, UsageError."""
    moment = epoch(now)
    kept = {
        "now": moment,
        "succeeded": None if trouble else moment,
        "failed": moment if trouble else None,
        "trouble": trouble,
        "damaged": "\n".join(damaged),
    }
    with ImportDatabase(database, _TABLES) as accounting, accounting.transaction():
        accounting.connection.execute(_KEEP, kept)


def _ended(database: Path) -> int:
    with ImportDatabase(database, _TABLES) as accounting:
        found = accounting.connection.execute(_LAST).fetchone()
    return 0 if found is None else int(found[0])


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


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
