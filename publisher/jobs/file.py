"""The file of the job store: made, opened, locked, and begun anew when it cannot be read.

It is a cache: a file that is damaged, of another version or of another program's making under our
name is deleted, and all sources are loaded again.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final
from urllib.parse import quote

from publisher.jobs.tables import schema
from publisher.model.errors import LedgerError, refused_by_system

log = logging.getLogger("publisher")

_APPLICATION_ID: Final = 0x50554A31  # 'PUJ1' in the file's header
_WAIT_S: Final = 120.0
_WAL_BYTES: Final = 16 * 1024 * 1024
_CACHE_KIB: Final = 16 * 1024  # of who loads: three indexes grow
_READER_CACHE_KIB: Final = 2 * 1024
_STATE_DIRECTORY: Final = (
    "the state directory must exist, and the user who publishes must be able to write to it"
)
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_LACKS_TABLES: Final = frozenset({*_DAMAGE, sqlite3.SQLITE_ERROR})
_CACHE: Final = "it is a cache: delete it, with its -wal and -shm, and run again"
_LIMITS: Final = "and look at quotas and limits of file size"
_LOCK_FLAGS: Final = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def store_path(state: Path) -> Path:
    """Return where the job store of a ledger is: `jobs.db` where that is `publishing.db`."""
    name = "jobs.db" if state.name == "publishing.db" else f"{state.stem}-jobs.db"
    return state.with_name(name)


def others_path(path: Path) -> Path:
    """Return where the jobs of CEs are kept that others publish."""
    return path.with_name(f"{path.stem}-of-others.db")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Give SQLite's and the system's errors as LedgerError, with what to do."""
    try:
        with sqlite_translated(path):
            yield
    except OSError as error:
        raise LedgerError(f"{path}: {refused_by_system(error, _STATE_DIRECTORY)}") from error


@contextmanager
def sqlite_translated(path: Path) -> Iterator[None]:
    """Give SQLite's errors as LedgerError, with what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {error}; {_advice(error)}") from error


def _advice(error: sqlite3.Error) -> str:
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return f"make room on its file system, {_LIMITS}: nothing is lost"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another program holds it; run again when it is done"
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return _STATE_DIRECTORY
        case sqlite3.SQLITE_IOERR:
            look = f"look at the kernel's log, {_LIMITS} and at free memory"
            return f"{look}, then run again: nothing is lost"
        case code if code in _DAMAGE:
            return "it is a cache, and is loaded again by the next round"
        case _:
            return _CACHE


def open_to_read(path: Path) -> sqlite3.Connection | None:
    """Return a connection that only reads; None where no store is, or none that can be read.

    Raises: LedgerError.
    """
    with translated(path):
        if not _has_content(path):
            return None
        _refuse_without_locks(path)
        connection = _connect(path, "ro")
        try:
            if _is_ours(connection):
                connection.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
                return connection
        except sqlite3.Error as error:
            if _code(error) not in _LACKS_TABLES:
                connection.close()
                raise
        except BaseException:
            connection.close()
            raise
    connection.close()
    return None


def _refuse_without_locks(path: Path) -> None:
    """SQLite takes "no locks available" for "locked", and waits as if another held the file.

    Raises: LedgerError where the file system cannot lock files.
    """
    with suppress(OSError), TemporaryFile(dir=path.parent) as probe:
        try:
            fcntl.lockf(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.ENOLCK:
                why = refused_by_system(error, _STATE_DIRECTORY)
                raise LedgerError(f"{path}: {why}") from error


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def open_to_load(path: Path) -> sqlite3.Connection:
    """Return a connection that writes, to a store that is made where none can be read.

    `synchronous=FULL` in WAL mode: a page and its position are on the disk when its transaction
    ends. The caller holds `loader_lock`. Raises: LedgerError.
    """
    with translated(path):
        _create(path)
        try:
            connection = _connect(path, "rw")
            try:
                if _is_ours(connection) or _is_new(connection):
                    _prepare(connection)
                    return connection
                why = "is of another version, or another program's"
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            if _code(error) not in _LACKS_TABLES:
                raise
            why = f"is damaged ({error})"
        else:
            connection.close()
        log.warning("%s: %s; it is a cache, and all sources are loaded again", path, why)
        remove(path)
        _create(path)
        connection = _connect(path, "rw")
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def open_scratch() -> sqlite3.Connection:
    """Return a connection to a store in a temporary file that is gone when it is closed."""
    connection = sqlite3.connect("")
    connection.isolation_level = None
    _make_tables(connection)
    return connection


def copy(path: Path, to: Path) -> None:
    """Copy a store as it is now, where one is that can be read. Raises: LedgerError."""
    found = open_to_read(path)
    if found is not None:
        with translated(to), closing(found), closing(sqlite3.connect(to)) as made:
            found.backup(made)


def remove(path: Path) -> None:
    """Delete a store with its log and index of the log. Raises: OSError."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file://{quote(os.fsencode(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=_WAIT_S)
    connection.isolation_level = None
    return connection


def _create(path: Path) -> None:
    """Make the file and its directory, which belong to who owns the directory above.

    Root may look before the user who publishes does.
    """
    _make_directory(path.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        return
    _give(path)


def _make_directory(path: Path) -> None:
    if not path.exists():
        path.mkdir(mode=0o700)
        _give(path)


def _give(path: Path) -> None:
    """Give what root has made to the owner of its directory."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def _is_new(connection: sqlite3.Connection) -> bool:
    return not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Whether it is a store of this version, whole as far as its first page shows."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) != (_APPLICATION_ID, schema.VERSION):
        return False
    (rows,) = connection.execute("SELECT count(*) FROM store").fetchone()
    return bool(rows == 1)


def _code(error: sqlite3.Error) -> int:
    """Return the primary code of an error."""
    return int(getattr(error, "sqlite_errorcode", -1)) & 0xFF


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    if _is_new(connection):
        _make_tables(connection)


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in schema.TABLES.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute("INSERT INTO store VALUES ('', 0, '', '', NULL, 0)")
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {schema.VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def forget_damaged(path: Path, error: sqlite3.Error) -> None:
    """Delete a store that turned out to be damaged while it was loaded."""
    if _code(error) in _DAMAGE:
        with suppress(OSError):
            remove(path)


@contextmanager
def loader_lock(path: Path) -> Iterator[bool]:
    """Hold the lock of who loads; False where another process or thread holds it.

    `flock` ends with its process. Raises: LedgerError.
    """
    lock = path.with_name(f"{path.name}.lock")
    with translated(lock):
        _make_directory(path.parent)
        is_new = not lock.exists()
        descriptor = os.open(lock, _LOCK_FLAGS, 0o600)
        if is_new:
            _give(lock)
    try:
        yield _is_locked(descriptor, lock)
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, lock: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        why = refused_by_system(error, "keep the state on a local file system")
        raise LedgerError(f"{lock}: cannot be locked: {why}") from error
    return True


def is_writable(path: Path) -> bool:
    """Whether this user may load a store at this place.

    Root may not in the directory of another user, whom files of root's would keep out.
    """
    if not path.parent.is_dir():
        return False
    if os.geteuid() == 0 and path.parent.stat().st_uid != 0:
        return False
    return os.access(path.parent, os.W_OK | os.X_OK) and (
        not path.exists() or os.access(path, os.W_OK)
    )
