"""The publishing database in one SQLite file: opened with care, whole transactions, our errors."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final
from urllib.parse import quote

from publisher.ledger import schema
from publisher.ledger.generation import sync_directory
from publisher.ledger.sql.database import NO_PARAMETERS, ChargeLocks, Database, Parameters, Rows
from publisher.ledger.sqlite import room
from publisher.ledger.sqlite.locks import FileChargeLocks, receiver_lock_file, target_lock
from publisher.ledger.sqlite.room import DiskRoom
from publisher.model.errors import LedgerError, refused_by_system

# Targets share the file (publishing/publish.py), with transactions before and after every message.
_WAIT_S: Final = 120.0
# Who writes is not in the way of who only reads, unless somebody took the file for himself.
_READER_WAIT_S: Final = 2.0
_DAMAGE_SHOWN: Final = 20
_WRITE: Final = "BEGIN IMMEDIATE"
_HEADER_BYTES: Final = 100
_APPLICATION_ID: Final = 0x50554231  # 'PUB1' in the file's header: `file` and we know it by that
_DAMAGED: Final = (
    "the file is damaged: move it away, with its -wal and -shm, and restore the last backup; "
    "without one, a new one begins. Either way, `publisher publish` holds what may be delivered, "
    "and says how to go on"
)
# Without a limit the WAL would keep the size of the longest backlog for ever.
_WAL_BYTES: Final = 16 * 1024 * 1024


class SqliteDatabase:
    """`Database` in one SQLite file; `path` is where it is, or would be."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._room = DiskRoom(connection, path)

    @contextmanager
    def atomic(self, to_settle: int = 0) -> Iterator[None]:
        if to_settle:
            with _translated(self._path):
                self._room.take(to_settle)
        else:
            self._room.give_back()
        with _transaction(self._connection, self._path, _WRITE):
            yield

    def make_room(self, to_settle: int) -> None:
        with _translated(self._path):
            self._room.make(to_settle)

    def learn_sizes(self, tables: Iterable[str]) -> None:
        """SQLite has the order of the tables from the statements."""

    def reading(self) -> AbstractContextManager[None]:
        return _translated(self._path)

    def snapshot(self) -> AbstractContextManager[None]:
        if self._connection.in_transaction:
            return self.reading()
        return _transaction(self._connection, self._path, "BEGIN")

    def execute(self, statement: str, parameters: Parameters = NO_PARAMETERS) -> Rows:
        return self._connection.execute(statement, parameters)

    def stream(self, statement: str, parameters: Parameters = NO_PARAMETERS) -> Iterator[Any]:
        return self._connection.execute(statement, parameters)

    def execute_many(self, statement: str, parameters: Iterable[Parameters]) -> int:
        return max(0, self._connection.executemany(statement, parameters).rowcount)

    def insert_returning_id(self, statement: str, parameters: Parameters) -> int:
        return int(self._connection.execute(statement, parameters).lastrowid or 0)

    def rows_were_copied(self, tables: Iterable[str]) -> None:
        """SQLite sees to it."""

    def target_lock(
        self, target: str, patience: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        return target_lock(self._path, target, patience)

    def receiver_lock(
        self, receiver: int, place: str, target: str, patience: Callable[[], bool]
    ) -> AbstractContextManager[None]:
        return receiver_lock_file(self._path, receiver, place, target, patience)

    def charge_locks(self) -> ChargeLocks:
        return FileChargeLocks(self._path)

    def damage(self, *, quick: bool) -> list[str]:
        pragma = "quick_check" if quick else "integrity_check"
        with _translated(self._path):
            rows = self._connection.execute(f"PRAGMA {pragma}({_DAMAGE_SHOWN})").fetchall()
        found = [str(text) for (text,) in rows]
        return [] if found == ["ok"] else found

    def close(self) -> None:
        self._room.give_back()
        self._connection.close()


def open_database(path: Path) -> Database:
    """The publishing database at `path`, made when it is not there. Raises: LedgerError."""
    return SqliteDatabase(open_ledger_file(path), path)


def open_database_to_read(path: Path) -> Database:
    """The same, only to read. Raises: LedgerError, also from every write.

    An empty one in memory when there is none yet, or its tables are just being made.
    """
    return SqliteDatabase(_open_file_to_read(path), path)


def open_ledger_file(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection to the publishing database, made when it is not there yet (0700, file 0600).

    `synchronous=FULL` in WAL mode: what a transaction wrote is on the disk when it ends. Raises:
    LedgerError when it cannot be opened, is another's file, is damaged, or has another schema.
    """
    with _translated(path):
        if read_only or not _create_private(path):
            _refuse_directory(path)
            _refuse_cut(path)
        if not read_only:
            _refuse_without_locks(path)
        mode = "ro" if read_only else "rw"
        wait_s = _READER_WAIT_S if read_only else _WAIT_S
        connection = sqlite3.connect(_uri(path, mode), uri=True, timeout=wait_s)
        connection.isolation_level = None
        try:
            _prepare(connection, path, read_only=read_only)
        except BaseException:
            connection.close()
            raise
        return connection


def _uri(path: Path, mode: str) -> str:
    """Not Path.as_uri, with which Python 3.14 loads urllib.request, and with it ssl."""
    return f"file://{quote(os.fsencode(path.absolute()))}?mode={mode}"


def is_there(path: Path) -> bool:
    """Whether there is one. Raises: LedgerError when the directory cannot be searched."""
    with _translated(path):
        try:
            _refuse_directory(path)
            return path.stat().st_size > 0 or _was_worked_with(path)
        except FileNotFoundError:
            return False


def _open_file_to_read(path: Path) -> sqlite3.Connection:
    if is_there(path):
        connection = open_ledger_file(path, read_only=True)
        try:
            with _translated(path):
                (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            connection.close()
            raise
        if tables:
            return connection
        connection.close()
    return _open_in_memory()


def _open_in_memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.isolation_level = None
    connection.executescript(schema.TABLES)
    connection.execute(f"PRAGMA user_version = {schema.VERSION}")
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection, path: Path, begin: str) -> Iterator[None]:
    with _translated(path):
        connection.execute(begin)
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors, as LedgerError with what to do now."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {_explained(error, path)}") from error
    except UnicodeDecodeError as error:  # SQLite quotes what it found in a damaged schema
        raise LedgerError(f"{path}: its schema is not text; {_DAMAGED}") from error
    except OSError as error:
        raise LedgerError(f"{path}: {refused_by_system(error, unwritable(path.parent))}") from error


def _create_private(path: Path) -> bool:
    """Make the file, and say whether it was not there.

    One that is there is never opened: to close it again would take away the locks that other
    connections of this process hold on it, and a stranger that leaves would then delete their WAL
    (SQLite, How To Corrupt, 2.2).
    """
    new = not path.parent.exists()
    path.parent.mkdir(mode=0o700, exist_ok=True)
    mode = path.parent.stat().st_mode
    if mode & stat.S_IWOTH:
        chmod = f"`chmod 0700 {path.parent}`, or "
        if mode & stat.S_ISVTX:
            chmod = ""  # it is /tmp, or another one for everybody
        raise LedgerError(
            f"{path.parent}: everybody may write there, and so change what was sent; "
            f"{chmod}name a file in another directory"
        )
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return False
    # SQLite syncs what is in the file; that there is one is for us to see to.
    for directory in (path.parent, path.parent.parent) if new else (path.parent,):
        sync_directory(directory)
    return True


def _refuse_directory(path: Path) -> None:
    """Nor a device. SQLite's words about it would send people to look for a broken disk."""
    if not stat.S_ISREG(path.stat().st_mode):
        one = path / "publishing.db"
        raise LedgerError(f"{path}: is no regular file; name a file in `state`, such as {one}")


def _refuse_without_locks(path: Path) -> None:
    """SQLite takes "no locks available" for "locked", and waits as if another held the file."""
    if _cannot_lock(path):
        raise LedgerError(f"{path}: {_NO_LOCKS.format(folder=path.parent)}")


def _cannot_lock(path: Path) -> bool:
    with suppress(OSError), TemporaryFile(dir=path.parent) as probe:
        try:
            fcntl.lockf(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno == errno.ENOLCK
    return False


def _refuse_cut(path: Path) -> None:
    """SQLite takes one without a whole header for a new one: everything would be sent again.

    Empty it is when the first publisher of all ended just after making it; then nobody has locked a
    target yet, which comes after the tables.
    """
    # Before the size, which a publisher that begins just now makes grow first.
    worked = _was_worked_with(path)
    size = path.stat().st_size
    if 0 < size < _HEADER_BYTES or (size == 0 and worked):
        raise LedgerError(f"{path}: was cut to {size} bytes; {_DAMAGED}")


def _was_worked_with(path: Path) -> bool:
    return any(path.parent.glob(f"{escape(path.name)}.*.lock"))


def _prepare(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    # In this order: another publisher that makes the tables meanwhile sets both at once.
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    if tables and application != _APPLICATION_ID:
        raise LedgerError(
            f"{path}: this is not a publishing database of this publisher; "
            "choose another file for `state`"
        )
    if tables:
        schema.refuse_other_version(str(path), _version(connection))
    if read_only:
        return
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # In KiB: a message fits, and each target has a connection.
    connection.execute("PRAGMA cache_size = -1000")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    # Debian's SQLite overwrites what is deleted: it would write each settled payload's pages twice.
    connection.execute("PRAGMA secure_delete = FAST")
    if not tables:
        with _transaction(connection, path, _WRITE):
            # Another publisher may have been quicker: what it made is the same.
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                for statement in schema.TABLES.split(";\n"):
                    if statement.strip():
                        connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {schema.VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


_NO_LOCKS: Final = (
    "the file system of {folder} cannot lock files, as NFS does without its lock service; "
    "name a file on a local disk in `state`"
)
_HELD: Final = (
    "another program holds it; run again when it is done. If none does, the file system refused a "
    "lock for a moment: look at the kernel's log, and run again: nothing is lost"
)
_LOCK_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_UNLOCK,
        sqlite3.SQLITE_IOERR_SHMLOCK,
        sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
    }
)
# By the primary code.
_ADVICE: Final = {
    sqlite3.SQLITE_NOTADB: (
        f"if the file is another program's, name another one in `state`; otherwise {_DAMAGED}"
    ),
    sqlite3.SQLITE_IOERR: (
        "the disk under {folder} refused: look at the kernel's log, at quotas and limits of file "
        "size, and at free memory, then run again: nothing is lost"
    ),
    sqlite3.SQLITE_NOMEM: (
        "no memory is left on this machine: look at what uses it, then run again: nothing is lost"
    ),
}
_PART_NOT_GIVEN: Final = (
    "a second look found the file whole, so the disk did not give a part of it: "
    "look at the kernel's log, and run again: nothing is lost"
)


def _explained(error: sqlite3.Error, path: Path) -> str:
    """What is wrong, and what to do now."""
    code = getattr(error, "sqlite_errorcode", -1)
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return room.advice(path)
        case sqlite3.SQLITE_IOERR if room.is_used_up(path):
            return room.advice(path)
        case _ if code in _LOCK_ERRORS:
            what_to_do = (
                "the file system of {folder} refused a lock: "
                "keep the state on a local disk, and run again"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            what_to_do = _NO_LOCKS if _cannot_lock(path) else _HELD
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            what_to_do = _about_rights(path)
        case sqlite3.SQLITE_CORRUPT:
            what_to_do = _about_damage(path)
        case primary:
            what_to_do = _ADVICE.get(primary, "run again; if the error persists, report it")
    return f"{error}; {what_to_do.replace('{folder}', str(path.parent))}"


def _about_damage(path: Path) -> str:
    """SQLite says "malformed" of a page, too, that the disk did not give: then look once more."""
    try:
        # Not by a file of our own: closing that would take away the locks of this process.
        with closing(sqlite3.connect(_uri(path, "ro"), uri=True)) as connection:
            if connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",):
                return _PART_NOT_GIVEN
    except UnicodeDecodeError:
        return _DAMAGED
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", -1) & 0xFF == sqlite3.SQLITE_IOERR:
            return _ADVICE[sqlite3.SQLITE_IOERR]
    disk = "if the kernel's log reports disk errors, repair the disk and run again"
    return f"{disk}; otherwise {_DAMAGED}"


def _about_rights(path: Path) -> str:
    """SQLite keeps the system's reason to itself; a second look may find it."""
    rights = unwritable(path.parent)
    try:
        if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
            return refused_by_system(OSError(errno.EROFS, os.strerror(errno.EROFS)), rights)
        those = [path.parent, *path.parent.glob(f"{escape(path.name)}*")]
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        return refused_by_system(error, rights)
    if path in those and all(os.access(each, os.R_OK | os.W_OK) for each in those):
        return (
            "a second look found nothing in the way, so it was for the moment: too many open files "
            "(LimitNOFILE=), no memory, no room, or a disk that refused; "
            "look at the kernel's log, and run again: nothing is lost"
        )
    return rights


def unwritable(folder: Path) -> str:
    """Return why this user cannot write the state, and what to do; of what is so as it is found.

    SQLite writes beside a database even to read it, so this keeps `status` from reading, too.
    """
    user = os.geteuid()
    try:
        found = folder.stat()
    except OSError as error:
        return f"{folder}: {error.strerror}; create it, for the user who publishes"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a directory; choose another file for `state`"
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return f"every file in {folder} must belong to the user who publishes"
    if found.st_uid != user and user != 0:
        owner = _user_name(found.st_uid)
        whose = f"{folder} belongs to user {owner}, and this is user {_user_name(user)}"
        if found.st_uid == 0:
            return (
                f"{whose}: give it to the user who publishes (`chown {_user_name(user)} {folder}`)"
            )
        return f"{whose}: run it as {owner} (`runuser -u {owner} -- publisher ...`)"
    mode = stat.S_IMODE(found.st_mode)
    return f"{folder} may not be written to (mode {mode:04o}): `chmod u+rwx {folder}`"


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return str(number)
