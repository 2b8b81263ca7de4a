"""Opening an SQLite file of somebody else: no committed row is missed, nothing written beside it.

Three ways, in this order (tried with SQLite 3.40 as another user):

- shared: `mode=ro`, with SQLite's own locks. Right whenever it works. In WAL mode it needs `-wal`
  and `-shm`, and would create them where it may: files that A-REX could not write if they were
  ours. So it is not tried there.
- unlocked: `immutable=1`, only while no `-wal` or `-journal` holds anything. A writer may start at
  any moment, so the file is examined before and after each question, and the question is asked
  again when it changed.
- copy: the file and its `-wal` (or hot `-journal`) together, to a private directory. Never
  `immutable` past a WAL: that misses its rows silently.
"""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from threading import RLock
from typing import Final, TypeVar
from urllib.parse import quote

from publisher.model.errors import SourceError, refused_by_system
from publisher.sources.base import has_file

# Not /tmp, which is often memory: a copy may be as large as the database. It lies in a private
# directory, which mkdtemp makes.
_COPIES: Final = "/var/tmp"  # noqa: S108  # never written to itself

_NAME = "copy.db"


class PrivateCopy:
    """An open copy whose files are gone already: nothing is left, whatever ends the process.

    Counted: the connection closes when the directory of copies and all readers have released it.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._users = 1

    def acquire(self) -> PrivateCopy:
        self._users += 1
        return self

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self.connection.close()


def copy_database(path: str, directory: Path) -> PrivateCopy:
    """Copy the file, its `-wal` and its `-journal`, and open the copy.

    The WAL is worked in, or the journal rolled back. It takes the space of the file and its WAL
    below `directory` until it is released. Raises: SourceError.
    """
    private = ""
    try:
        private = os.path.abspath(tempfile.mkdtemp(prefix="publisher-", dir=directory))  # 0700
        target = os.path.join(private, _NAME)
        real = os.path.realpath(path)
        shutil.copyfile(real, target)
        for suffix in ("-wal", "-journal"):
            with suppress(FileNotFoundError):  # what is refused does not pass for "there is none"
                shutil.copyfile(real + suffix, target + suffix)
        return PrivateCopy(_recovered(target))
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be copied to {directory}: {error}; "
            "free room there for the file and its -wal, or set TMPDIR to a directory with room"
        ) from error
    except sqlite3.Error as error:
        raise SourceError(
            f"{path}: a copy with its -wal cannot be opened: {error}; free room in {directory}, "
            "or let A-REX or sqlite3 open the file once as its owner"
        ) from error
    finally:
        if private:
            shutil.rmtree(private, ignore_errors=True)


def _recovered(path: str) -> sqlite3.Connection:
    recovering = sqlite3.connect(path, isolation_level=None)
    try:
        # Leaving WAL mode moves all committed frames into the file; the first read rolls a hot
        # journal back.
        recovering.execute("PRAGMA journal_mode = DELETE").fetchone()
        recovering.execute("SELECT count(*) FROM sqlite_master").fetchone()
    finally:
        recovering.close()
    uri = f"file://{quote(os.fsencode(path))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


Answer = TypeVar("Answer")
Marks = tuple[tuple[int, int, int, int] | None, ...]

BUSY_TIMEOUT_S: Final = 30.0
_ATTEMPTS: Final = 5
# One question at a time is asked of a file in this process, whichever target asks: to open the file
# past SQLite's locks, and to close it again, takes away those of all other connections of the
# process (SQLite, How To Corrupt, section 2.2).
_ASKING: Final[dict[str, RLock]] = {}
_COMPANION_FILES: Final = ("", "-wal", "-journal")
_CANNOT_SHARE: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
_WAL_FORMAT: Final = b"\x02\x02"  # bytes 18 and 19 of the header: SQLite file format, section 1.3.3
_LOCKED: Final = (
    "another process holds it locked; "
    "try again, and look for that process with fuser if it stays so"
)
_ADVICE: Final = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database; correct the path, or restore the file",
    sqlite3.SQLITE_CORRUPT: "it is damaged or truncated, unless the kernel's log tells of a disk "
    "that could not be read: then try again; otherwise restore a backup, "
    "or rescue what is left with sqlite3's .recover",
    sqlite3.SQLITE_IOERR: "the disk failed, or no memory was left; "
    "look into the kernel's log, and try again",
    sqlite3.SQLITE_FULL: "the disk for temporary files is full; make room there, or set TMPDIR",
    sqlite3.SQLITE_CANTOPEN: "it could not be opened; check the rights on it and on its directory, "
    "the number of open files (LimitNOFILE=), free memory, and the kernel's log",
    sqlite3.SQLITE_NOMEM: "no memory is left on this machine; look at what uses it, and try again",
    sqlite3.SQLITE_READONLY: "it needs recovery by a process that may write; "
    "check the rights on it and on its directory",
}


class OpenMode(StrEnum):
    """How a file is read."""

    SHARED = "shared"
    UNLOCKED = "unlocked"
    COPY = "copy"


def copies_directory(environment: Mapping[str, str]) -> Path:
    """Below which private copies of databases are made."""
    return Path(environment.get("TMPDIR") or _COPIES)


class CopyDirectory:
    """The private copies of one source, kept from call to call while the original is the same."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._copies: dict[str, tuple[Marks, PrivateCopy]] = {}

    def take(self, path: str) -> PrivateCopy:
        """A copy of the file as it is now, to be given back with `release`. Raises: SourceError."""
        for _ in range(_ATTEMPTS):
            real = os.path.realpath(path)
            marks = file_marks(real)
            kept_marks, kept = self._copies.get(path, (None, None))
            if kept is not None and kept_marks == marks:
                return kept.acquire()
            if kept is not None:
                del self._copies[path]
                kept.release()
            fresh = copy_database(path, self._directory)
            # What changed while it was copied may be half old, half new.
            if file_marks(real) == marks:
                self._copies[path] = (marks, fresh)
                return fresh.acquire()
            fresh.release()
        raise SourceError(
            f"{path}: changed {_ATTEMPTS} times while it was being copied; "
            "try again when it is quieter"
        )

    def close(self) -> None:
        for _, kept in self._copies.values():
            kept.release()
        self._copies.clear()


class ReadOnlyFile:
    """One SQLite file, open for reading; `way` and `why` say how and for what reason.

    If it is replaced under us, the next opening (copy) or question (shared, unlocked) notices.
    """

    def __init__(
        self, path: str, copies: CopyDirectory, *, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        """Raises: SourceError when no way leads to all rows."""
        self.path = path
        self.way = OpenMode.SHARED
        self.why = ""
        self._copies = copies
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._copy: PrivateCopy | None = None
        self._marks: Marks = ()
        self._file: tuple[int, int] | None = None
        # SQLite keeps -wal and -journal beside the file that a link points to.
        self._real = os.path.realpath(path)
        self._asking = _ASKING.setdefault(self._real, RLock())
        with self._asking:
            self._open()

    def ask(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """The answer to a question, asked in one short read transaction. Raises: SourceError.

        It may be asked again, of another connection, when the file was changed meanwhile.
        """
        with self._asking:
            for _ in range(_ATTEMPTS):
                connection = self._connection
                if connection is None or not self._unchanged():
                    connection = self._open()
                try:
                    answer = _in_one_transaction(connection, question)
                except (sqlite3.Error, UnicodeDecodeError, SourceError) as error:
                    self._give_up(error)
                    self._open()
                    continue
                if self._unchanged():
                    return answer
            raise SourceError(
                f"{self.path}: changes faster than it can be read, {_ATTEMPTS} times; try again"
            )

    def journal_mode(self) -> str:
        """`wal`, or the journal mode that SQLite reports. Raises: SourceError."""
        if self.way is OpenMode.SHARED:
            question = "PRAGMA journal_mode"
            (mode,) = self.ask(lambda connection: connection.execute(question).fetchone())
            return str(mode)
        with self._asking:
            return "wal" if _is_wal(self.path) else "delete"

    def close(self) -> None:
        with self._asking:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.release()
        elif connection is not None:
            connection.close()

    def _give_up(self, error: sqlite3.Error | UnicodeDecodeError | SourceError) -> None:
        """Raises: SourceError, unless the question may be answered by the file as it is now."""
        if not self._unchanged():
            return
        if isinstance(error, SourceError):
            raise error
        # SQLite's words about a damaged schema quote what it found there.
        if isinstance(error, UnicodeDecodeError):
            raise source_error(self.path, error) from error
        if self.way is OpenMode.UNLOCKED or primary_code(error) not in _CANNOT_SHARE:
            raise source_error(self.path, error) from error

    def _unchanged(self) -> bool:
        """Whether an answer is to be trusted: the file is the same one; unlocked, it is as it was.

        Who has a replaced file open reads it together with the `-wal` and `-shm` of the new one,
        which have its name: SQLite then finds the file damaged, or does not notice (SQLite, How To
        Corrupt, "Unlinking or renaming").
        """
        match self.way:
            case OpenMode.SHARED:
                return _identity(self.path) == self._file
            case OpenMode.UNLOCKED:
                same_file = _identity(self.path) == self._file
                return same_file and file_marks(self._real) == self._marks
            case OpenMode.COPY:
                return True

    def _open(self) -> sqlite3.Connection:
        self._close()
        check_readable(self.path)
        self._file = _identity(self.path)
        self._real = os.path.realpath(self.path)
        try:
            if not _sharing_would_create_files(self._real):
                try:
                    return self._open_by_uri("mode=ro", OpenMode.SHARED, "")
                except sqlite3.Error as error:
                    if primary_code(error) not in _CANNOT_SHARE:
                        raise
            self._marks = file_marks(self._real)
            if not any(mark and mark[1] for mark in self._marks[1:]):
                why = "read without locks: nobody has it open"
                return self._open_by_uri("mode=ro&immutable=1", OpenMode.UNLOCKED, why)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise source_error(self.path, error) from error
        self._copy = self._copies.take(self.path)
        self._connection = self._copy.connection
        self.way = OpenMode.COPY
        self.why = (
            "opened a private copy: its -wal or -journal holds data that this user cannot read in "
            "place; the writer died, or is starting"
        )
        return self._connection

    def _open_by_uri(self, mode: str, way: OpenMode, why: str) -> sqlite3.Connection:
        connection = connect(self.path, mode, self._busy_timeout_s)
        try:
            # The first read finds out whether the file can be read, and binds its -wal and -shm.
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            # KiB, instead of 2,000: rows are mostly read in order, and the system keeps the file in
            # memory as well.
            connection.execute("PRAGMA cache_size = -500")
        except BaseException:
            connection.close()
            raise
        self._connection, self.way, self.why = connection, way, why
        return connection


def connect(path: str, mode: str, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection in autocommit, by URI; a path has any byte but NUL. Raises: sqlite3.Error."""
    # An empty authority keeps a path that begins with two slashes from being taken for a host.
    uri = f"file://{quote(os.fsencode(os.path.abspath(path)))}?{mode}"
    return sqlite3.connect(
        uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
    )


def check_arc_database(path: Path) -> None:
    """Raises: SourceError when it cannot be read."""
    if not has_file(path.parent) or (os.access(path.parent, os.X_OK) and not has_file(path)):
        raise SourceError(
            f"{path}: there is no such file; correct arc_databases of the importer, "
            "or remove it if no ARC CE is there"
        )
    check_readable(str(path))


def check_readable(path: str) -> None:
    """Raises: SourceError with the reason when the file is missing, out of reach or no file."""
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        raise SourceError(
            f"{path}: there is no such file; correct source.control_dir or source.databases"
        ) from error
    except PermissionError as error:
        raise out_of_reach(path) from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be looked at: {_refused(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"{path}: is not a regular file; name an accounting database")
    if not os.access(path, os.R_OK, effective_ids=True):
        user = user_name(os.geteuid())
        advice = "grant it with setfacl or a group"
        raise SourceError(f"{path}: may not be read by user {user}; {advice}")


def user_name(number: int) -> str:
    """What the system calls this user; the number where it has no name."""
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return str(number)


def out_of_reach(path: str) -> SourceError:
    return SourceError(
        f"{path}: its directory may not be searched by user {user_name(os.geteuid())}; "
        "add this user to the group of the directory, or grant it with setfacl"
    )


def file_marks(real: str) -> Marks:
    """What changes when the file, its `-wal` or its `-journal` is written or replaced.

    None where there is no such file. `real` is no link. Raises: SourceError when they cannot be
    examined.
    """
    return tuple(_mark(real + suffix) for suffix in _COMPANION_FILES)


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; -1 for errors of the Python module itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else code & 0xFF


def source_error(path: str, error: sqlite3.Error | UnicodeDecodeError) -> SourceError:
    """An error of SQLite in words that an administrator can act on."""
    if isinstance(error, UnicodeDecodeError):
        return SourceError(f"{path}: {_ADVICE[sqlite3.SQLITE_CORRUPT]} (its schema is not text)")
    advice = _ADVICE.get(primary_code(error))
    trouble = f"{advice} ({error})" if advice else f"cannot be read: {error}"
    return SourceError(f"{path}: {trouble}")


def _refused(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return refused_by_system(error, "let this user read it")
    return str(error)


def _mark(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"{path}: cannot be looked at: {_refused(error)}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _identity(path: str) -> tuple[int, int] | None:
    """Which file has this name now: device and inode, which no other has while it is open."""
    try:
        found = os.stat(path)
    except OSError:  # none, which the next opening tells in words
        return None
    return found.st_dev, found.st_ino


def _in_one_transaction(
    connection: sqlite3.Connection, question: Callable[[sqlite3.Connection], Answer]
) -> Answer:
    connection.execute("BEGIN")
    try:
        return question(connection)
    finally:
        # Nothing was written: rolling back just ends the snapshot, unless an error has.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _sharing_would_create_files(real: str) -> bool:
    """Whether `mode=ro` would make `-wal` or `-shm`.

    So it would of a WAL database that nobody has open, in a directory that we may write.
    """
    return (
        not (os.path.exists(real + "-wal") and os.path.exists(real + "-shm"))
        and os.access(os.path.dirname(real), os.W_OK, effective_ids=True)
        and _is_wal(real)
    )


def _is_wal(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(20)[18:] == _WAL_FORMAT
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {_refused(error)}") from error
