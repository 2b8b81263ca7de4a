"""The local accounting database that importers write: jobs, and how far each file was read.

A job and the position in its file are written in one transaction. The tables are those of ARC's
schema 2, with DDL of our own and only the indexes that the source uses, plus tables for importers,
whose layout has a version. `PUBLISHER_IMPORTER` in DBConfig tells the source that text is stored
unescaped, that rows are complete, and that AAR has more columns.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Self

from publisher.model.errors import Busy, LedgerError, PublisherError, UsageError, refused_by_system
from publisher.sources.files.read_files import ARCHIVE_TABLE, FILE_TABLE
from publisher.sources.importers import BadLine, ImportedJob, StoredJobs

IMPORTER_VERSION: Final = "2"

_PLACE: Final = ("EndpointID", "QueueID", "UserID", "VOID", "StatusID", "FQANID", "BenchmarkID")
# In the order of an `ImportedJob`.
AAR_COLUMNS: Final = (
    *("RecordID", "JobID", "LocalJobID", *_PLACE),
    "ExitCode",  # NULL: unknown
    *("SubmitTime", "StartTime", "EndTime"),  # epoch seconds; the true start of the run
    *("NodeCount", "CPUCount", "UsedMemory", "UsedVirtMem"),
    *("UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime"),
    "GPUCount",  # NULL: unknown
    "Source",  # the importer's name
    "SourceKey",  # what makes the record the same one when it is met again
    "FileID",  # of ImportFile, where it was met last; NULL: many files tell of it
)
_NUMBERS: Final = (*_PLACE, *AAR_COLUMNS[11:21], "UsedScratch", "StageInVolume", "StageOutVolume")

NAME_TABLES: Final = ("Queues", "Users", "WLCGVOs", "FQANs", "Benchmarks", "Status")
_NAME_TABLE: Final = "CREATE TABLE {} (ID INTEGER PRIMARY KEY, Name TEXT NOT NULL UNIQUE);"
SIDE_TABLES: Final = (  # importers fill the first two
    *("JobExtraInfo", "AuthTokenAttributes", "JobEvents", "RunTimeEnvironments", "DataTransfers"),
)
_SIDE_INDEX: Final = "CREATE INDEX {0}_RecordID ON {0} (RecordID);"
_OF_JOB: Final = "RecordID INTEGER NOT NULL REFERENCES AAR (RecordID)"

TABLES: Final = f"""
    CREATE TABLE DBConfig (KeyName TEXT PRIMARY KEY, KeyValue TEXT NOT NULL);
    INSERT INTO DBConfig
    VALUES ('DBSCHEMA_VERSION', '2'), ('PUBLISHER_IMPORTER', '{IMPORTER_VERSION}');

    {"".join(map(_NAME_TABLE.format, NAME_TABLES))}
    CREATE TABLE Endpoints (
        ID INTEGER PRIMARY KEY, Interface TEXT NOT NULL, URL TEXT NOT NULL, UNIQUE (Interface, URL)
    );

    CREATE TABLE AAR (
        RecordID INTEGER PRIMARY KEY AUTOINCREMENT,
        JobID TEXT NOT NULL UNIQUE,
        LocalJobID TEXT NOT NULL,
        {", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in _NUMBERS)},
        ExitCode INTEGER,
        GPUCount INTEGER,
        Source TEXT NOT NULL,
        SourceKey TEXT NOT NULL,
        FileID INTEGER
    );
    CREATE INDEX AAR_EndTime ON AAR (EndTime);
    CREATE INDEX AAR_LocalJobID ON AAR (LocalJobID);

    CREATE TABLE JobExtraInfo ({_OF_JOB}, InfoKey TEXT, InfoValue TEXT);
    CREATE TABLE AuthTokenAttributes ({_OF_JOB}, AttrKey TEXT, AttrValue TEXT);
    CREATE TABLE JobEvents ({_OF_JOB}, EventKey TEXT, EventTime TEXT);
    CREATE TABLE RunTimeEnvironments ({_OF_JOB}, RTEName TEXT);
    CREATE TABLE DataTransfers (
        {_OF_JOB},
        URL TEXT, FileSize INTEGER, TransferStart INTEGER, TransferEnd INTEGER, TransferType INTEGER
    );
    {"".join(map(_SIDE_INDEX.format, SIDE_TABLES))}
    {FILE_TABLE}
    -- Lines that could not be understood, for people.
    CREATE TABLE ImportBadLine (
        Digest BLOB PRIMARY KEY,    -- of the whole line
        Importer TEXT NOT NULL,
        Path TEXT NOT NULL,         -- where it was first met,
        Offset INTEGER NOT NULL,    -- at which byte of the content,
        Length INTEGER NOT NULL,    -- how long it was,
        Reason TEXT NOT NULL,
        Line BLOB NOT NULL          -- and its beginning
    ) WITHOUT ROWID;
"""


# Also in databases that were made before. What was published of a job is known by its row.
_ADDED: Final = f"""
    CREATE TABLE IF NOT EXISTS ImportTakenBack (
        JobID TEXT PRIMARY KEY, RecordID INTEGER NOT NULL
    ) WITHOUT ROWID;

    -- Digests of the JobIDs of jobs that were taken out, and in which months (2026-03) they ended;
    -- and of runs that are a CE's and not joined to it.
    CREATE TABLE IF NOT EXISTS ImportPruned (Digest BLOB PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS ImportPrunedMonth (
        Month TEXT PRIMARY KEY, Jobs INTEGER NOT NULL
    ) WITHOUT ROWID;

    -- Digests of bad lines whose files are being read once more, and that were not met again yet.
    CREATE TABLE IF NOT EXISTS ImportRetried (Digest BLOB PRIMARY KEY) WITHOUT ROWID;

    -- Few jobs, and among them those without a measured CPU time, which are counted often.
    CREATE INDEX IF NOT EXISTS AAR_WithoutCPU ON AAR (EndTime)
    WHERE UsedCPUUserTime + UsedCPUKernelTime = 0;

    {ARCHIVE_TABLE}
"""
_PRUNED_DIGEST_BYTES: Final = 12
_WAIT_S: Final = 60.0
_WAL_BYTES: Final = 16 * 1024 * 1024
_WAL_PAGES: Final = 4_000  # so many are copied at once: an index gets many rows a page by then
_CACHE_KIB: Final = 32 * 1024
_REMEMBERED: Final = 50_000
_INSERT: Final = (
    f"INSERT INTO AAR ({', '.join(AAR_COLUMNS)}) VALUES ({', '.join('?' * len(AAR_COLUMNS))}) "
    "ON CONFLICT (JobID) DO NOTHING"
)
_UPDATE: Final = (
    f"UPDATE AAR SET {' = ?, '.join(AAR_COLUMNS[2:])} = ? WHERE RecordID = ? AND JobID = ?"
)
_STORED: Final = (
    f"SELECT {', '.join(AAR_COLUMNS)} FROM AAR WHERE JobID IN (SELECT value FROM json_each(?))"
)
_SIDE: Final = ImportedJob._fields.index("extra")  # from here on it is no column of AAR
_ATTRIBUTE: Final = (
    "INSERT INTO AuthTokenAttributes (RecordID, AttrKey, AttrValue) VALUES (?, ?, ?)"
)
_CLEAR_SIDE: Final = [f"DELETE FROM {name} WHERE RecordID = ?" for name in SIDE_TABLES[:2]]
_SET_ASIDE: Final = (
    "INSERT INTO ImportBadLine VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (Digest) DO NOTHING"
)
_REMEMBER: Final = "INSERT OR IGNORE INTO ImportPruned VALUES (?)"
_MET_AGAIN: Final = "DELETE FROM ImportRetried WHERE Digest = ?"
_ABORTED: Final = (
    "SELECT count(*) FROM AAR WHERE StatusID = (SELECT ID FROM Status WHERE Name = 'aborted')"
)
_STORED_EXTRA: Final = (
    "SELECT InfoKey, InfoValue FROM JobExtraInfo WHERE RecordID = ? ORDER BY rowid"
)
_ENDED: Final = "SELECT count(*) FROM AAR WHERE Source = ? AND EndTime >= ? AND EndTime < ?"
_TAKEN_BACK: Final = "SELECT JobID, RecordID FROM ImportTakenBack WHERE JobID = ?"
_IS_PRUNED: Final = "SELECT EXISTS (SELECT 1 FROM ImportPruned WHERE Digest = ?)"

Row = tuple[Any, ...]


@cache
def _extra_rows(count: int) -> str:
    """All extra information of a job by one statement: a call for each row takes twice as long."""
    rows = ", ".join(["(?, ?, ?)"] * count)
    return f"INSERT INTO JobExtraInfo (RecordID, InfoKey, InfoValue) VALUES {rows}"


def digest_of(job_id: str) -> bytes:
    """By which a pruned job is known again."""
    content = job_id.encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=_PRUNED_DIGEST_BYTES).digest()


class ImportDatabase:
    """One file, open for writing. Not shared between threads."""

    def __init__(self, path: Path, tables: str = "") -> None:
        """Opened, and made when it is not there; `tables` are statements for what is kept beside.

        Raises: UsageError when it is not ours, LedgerError, Busy.
        """
        self.path = path
        self._names: dict[tuple[object, ...], tuple[int, ...]] = {}
        with self._translated():
            _create(path)
            uri = f"{path.absolute().as_uri()}?mode=rw"
            self.connection = sqlite3.connect(uri, uri=True, timeout=_WAIT_S)
            self.connection.isolation_level = None
            try:
                self._prepare(tables)
            except BaseException:
                self.connection.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        """Closed. What SQLite cannot read outside of a transaction is told as inside of one.

        Raises: LedgerError, Busy.
        """
        self.connection.close()
        if isinstance(error, sqlite3.Error):
            raise self._error_of(error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """It happens whole, or not at all. Raises: LedgerError, Busy, and what is raised inside."""
        with self._translated():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                self._names.clear()  # some may have been given in this transaction
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def put(
        self, jobs: Sequence[ImportedJob], *, replace: bool = False, file: int | None = None
    ) -> StoredJobs:
        """Write jobs, inside a transaction. One that is there already changes only by `replace`.

        Without it the greater of two that claim one JobID stays, so that the order of files does
        not matter. `file` is the number of the file's cursor, where one file tells all of them.
        """
        jobs = self._without_pruned(jobs)
        if not jobs:
            return StoredJobs(inserted=0, updated=0)
        last = self._ask("SELECT coalesce(max(seq), 0) FROM sqlite_sequence")
        back = self._former_rows(jobs)
        new = set(back.values())
        numbered = enumerate(jobs, start=last + 1)
        rows = [self._row(back.pop(job.job_id, number), job, file) for number, job in numbered]
        pairs = list(zip(rows, jobs, strict=True))
        before = self.connection.total_changes
        self.connection.executemany(_INSERT, rows)
        inserted = self.connection.total_changes - before
        if inserted == len(rows):
            self._put_side(pairs)
            return StoredJobs(inserted=inserted, updated=0)
        added = self.connection.execute("SELECT RecordID FROM AAR WHERE RecordID > ?", (last,))
        new.update(number for (number,) in added)
        self._put_side([(row, job) for row, job in pairs if row[0] in new])
        known = [(row, job) for row, job in pairs if row[0] not in new]
        return StoredJobs(inserted=inserted, updated=self._change(known, replace))

    def take_back(self, job_ids: Sequence[str]) -> None:
        """Remove jobs that turned out to be none, inside a transaction.

        One that comes again gets the row that it had.
        """
        execute = self.connection.execute
        for job_id in job_ids:
            found = execute("SELECT RecordID FROM AAR WHERE JobID = ?", (job_id,)).fetchone()
            if found is not None:
                self._clear_side(found[0])
                execute("DELETE FROM AAR WHERE RecordID = ?", found)
                execute("INSERT INTO ImportTakenBack VALUES (?, ?)", (job_id, *found))

    def remember_pruned(self, job_ids: Sequence[str]) -> None:
        """That these runs were read and shall not come again, inside a transaction."""
        self.connection.executemany(_REMEMBER, [(digest_of(job_id),) for job_id in job_ids])

    def _without_pruned(self, jobs: Sequence[ImportedJob]) -> Sequence[ImportedJob]:
        """A pruned run was read once, and counts."""
        if not self._ask("SELECT EXISTS (SELECT 1 FROM ImportPruned)"):
            return jobs
        return [job for job in jobs if not self._ask(_IS_PRUNED, digest_of(job.job_id))]

    def _former_rows(self, jobs: Sequence[ImportedJob]) -> dict[str, int]:
        """RecordIDs of those of the jobs that were taken back, which is forgotten with this."""
        if not self._ask("SELECT EXISTS (SELECT 1 FROM ImportTakenBack)"):
            return {}
        execute = self.connection.execute
        found = dict(row for job in jobs for row in execute(_TAKEN_BACK, (job.job_id,)).fetchall())
        came_again = [(job_id,) for job_id in found]
        self.connection.executemany("DELETE FROM ImportTakenBack WHERE JobID = ?", came_again)
        return found

    def keep_bad_lines(self, importer: str, lines: Sequence[BadLine]) -> list[BadLine]:
        """Keep bad lines for people, inside a transaction; returns those that are new."""
        new = []
        for line in lines:
            *where_and_why, digest = line
            kept = (digest, importer, *where_and_why)
            if self.connection.execute(_SET_ASIDE, kept).rowcount:
                new.append(line)
            else:
                self.connection.execute(_MET_AGAIN, (line.digest,))
        return new

    def bad_lines(self, importer: str) -> int:
        return self._ask("SELECT count(*) FROM ImportBadLine WHERE Importer = ?", importer)

    def aborted(self) -> int:
        """How many jobs somebody cancelled while they ran."""
        return self._ask(_ABORTED)

    def setting(self, key: str) -> str:
        """What DBConfig holds under a key, or ''."""
        ask = "SELECT KeyValue FROM DBConfig WHERE KeyName = ?"
        found = self.connection.execute(ask, (key,)).fetchone()
        return "" if found is None else str(found[0])

    def set(self, key: str, value: str) -> None:
        """Inside a transaction."""
        self.connection.execute("INSERT OR REPLACE INTO DBConfig VALUES (?, ?)", (key, value))

    def ended_between(self, importer: str, begin: int, end: int) -> int:
        """How many jobs of an importer ended in [begin, end), in epoch seconds."""
        return self._ask(_ENDED, importer, begin, end)

    def settle(self, key: str, value: str) -> str:
        """What DBConfig holds under a key: this value if it held nothing. Inside a transaction."""
        self.connection.execute("INSERT OR IGNORE INTO DBConfig VALUES (?, ?)", (key, value))
        return self.setting(key)

    def _ask(self, question: str, *values: object) -> int:
        return int(self.connection.execute(question, values).fetchone()[0])

    def _row(self, record_id: int, job: ImportedJob, file: int | None) -> Row:
        names = (*job[2:7], job.fqan, job.benchmark)
        place = self._names.get(names)
        if place is None:
            place = self._names[names] = self._place(job)
        return (record_id, *job[:2], *place, *job[7:_SIDE], file)

    def _place(self, job: ImportedJob) -> tuple[int, ...]:
        """The numbers of a job's names, of which there are few different sets."""
        if len(self._names) > _REMEMBERED:
            self._names.clear()
        texts = {
            "Queues": job.queue,
            "Users": job.user,
            "WLCGVOs": job.vo,
            "Status": job.status,
            "FQANs": job.fqan,
            "Benchmarks": job.benchmark,
        }
        endpoint = self._number("Endpoints", ("Interface", "URL"), job.endpoint)
        return (endpoint, *(self._number(name, ("Name",), (text,)) for name, text in texts.items()))

    def _put_side(self, pairs: Sequence[tuple[Row, ImportedJob]]) -> None:
        put = self.connection.executemany
        by_count: dict[int, list[list[object]]] = defaultdict(list)
        for row, job in pairs:
            number = row[0]
            rows: list[object] = []
            for key, value in job.extra:
                rows += (number, key, value)
            by_count[len(job.extra)].append(rows)
        for count in sorted(by_count.keys() - {0}):
            put(_extra_rows(count), by_count[count])
        attributes = ((row[0], key, value) for row, job in pairs for key, value in job.attributes)
        put(_ATTRIBUTE, attributes)

    def _clear_side(self, record_id: int) -> None:
        for statement in _CLEAR_SIDE:
            self.connection.execute(statement, (record_id,))

    def _change(self, known: Sequence[tuple[Row, ImportedJob]], replace: bool) -> int:
        """Replace stored rows of jobs by new ones that win over them; gives how many did."""
        job_ids = json.dumps([job.job_id for _, job in known])
        found = self.connection.execute(_STORED, (job_ids,))
        stored: dict[str, Row] = {row[1]: row for row in found}
        changed = 0
        for row, job in known:
            before = stored[job.job_id]
            if self._wins(row, job, before, replace):
                self.connection.execute(_UPDATE, (*row[2:], before[0], job.job_id))
                self._clear_side(before[0])
                self._put_side([(before, job)])
                stored[job.job_id] = (before[0], *row[1:])
                changed += 1
        return changed

    def _wins(self, row: Row, job: ImportedJob, stored: Row, replace: bool) -> bool:
        if not replace:
            ours, theirs = _weight(row), _weight(stored)
            return bool(ours != theirs and _comparable(ours) > _comparable(theirs))
        if stored[1:-1] != row[1:-1]:
            return True
        return tuple(self.connection.execute(_STORED_EXTRA, (stored[0],)).fetchall()) != job.extra

    def _number(self, table: str, columns: Sequence[str], texts: Sequence[str]) -> int:
        into, places = f"{table} ({', '.join(columns)})", ", ".join("?" * len(columns))
        self.connection.execute(f"INSERT OR IGNORE INTO {into} VALUES ({places})", texts)
        where = " AND ".join(f"{column} = ?" for column in columns)
        return self._ask(f"SELECT ID FROM {table} WHERE {where}", *texts)

    def _prepare(self, tables: str) -> None:
        bounds = (f"journal_size_limit = {_WAL_BYTES}", f"wal_autocheckpoint = {_WAL_PAGES}")
        for pragma in (*bounds, f"cache_size = -{_CACHE_KIB}", "synchronous = NORMAL"):
            self.connection.execute(f"PRAGMA {pragma}")
        if not self._ours():
            raise UsageError(
                f"{self.path}: is not a database that `publisher import` made; "
                "name another file with --database"
            )
        self.connection.executescript(f"BEGIN IMMEDIATE; {_ADDED} {tables} COMMIT;")

    def _ours(self) -> bool:
        is_there = self._ask("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'DBConfig')")
        version = self.setting("PUBLISHER_IMPORTER") if is_there else ""
        if version not in ("", IMPORTER_VERSION):
            raise LedgerError(
                f"{self.path}: was made by another version of publisher ({version}); use that one, "
                "or remove the file and import again: what was delivered is not sent twice"
            )
        return bool(version)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLite's and the system's errors in our words."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._error_of(error) from error
        except OSError as error:
            advice = "its directory must exist and belong to the user who imports"
            raise LedgerError(f"{self.path}: {refused_by_system(error, advice)}") from error

    def _error_of(self, error: sqlite3.Error) -> PublisherError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy(f"{self.path}: another process keeps it locked; try again")
        advice = _ADVICE.get(code, _REFUSED)
        return LedgerError(f"{self.path}: {error}; {advice}; then import again: nothing is lost")


_RIGHTS: Final = (
    "see that this user may write the file and its directory, that there is room and memory, "
    "and that not too many files are open (LimitNOFILE=)"
)
_REFUSED: Final = (
    "the disk or a lock of its file system failed, or no room or no memory was left: "
    "look at the kernel's log"
)
_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "make room on its file system",
    sqlite3.SQLITE_CANTOPEN: _RIGHTS,
    sqlite3.SQLITE_READONLY: _RIGHTS,
    sqlite3.SQLITE_CORRUPT: "if the kernel's log tells of a disk that cannot be read, mend that; "
    "otherwise the file is damaged: restore a copy of it, or else remove it; "
    "what was delivered is not sent twice",
}
# Which of two rows that claim one JobID stays: the later end, then the greater numbers.
_WEIGHT: Final = (
    *("EndTime", "UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime"),
    *("UsedMemory", "UsedVirtMem", "NodeCount", "ExitCode", "SourceKey"),
)
_weight: Final = itemgetter(*map(AAR_COLUMNS.index, _WEIGHT))


def _comparable(weight: Row) -> Row:
    """What is known outweighs what is not."""
    return tuple([(value is not None, value) for value in weight])


def _create(path: Path) -> None:
    """Make the file, whole or not at all, even when two want to. Raises: OSError, sqlite3.Error."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.new")
    unfinished.unlink(missing_ok=True)
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(unfinished)
        try:
            connection.executescript(f"BEGIN; {TABLES} COMMIT;")
            # After the tables: whether a log could be copied into the file, no closing says.
            connection.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.close()
        _put_in_place(unfinished, path)
    finally:
        for suffix in ("", "-wal", "-shm"):
            unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)


def _put_in_place(unfinished: Path, path: Path) -> None:
    """Unless another importer was faster. Raises: OSError.

    Whoever removed the database may have left its log, which SQLite would take for the new one's.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Else the log may be that of a file which another has just put there.
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not path.exists():
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            os.link(unfinished, path)
    finally:
        os.close(folder)
