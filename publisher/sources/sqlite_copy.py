"""A private copy of an SQLite file with what its `-wal` or hot `-journal` holds."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path
from urllib.parse import quote

from publisher.errors import SourceError

_NAME = "copy.db"


class PrivateCopy:
    """An open copy whose files are gone from the directory already: nothing is left behind, whatever ends the process.

    Counted: the connection closes when the shelf and all readers have released it.
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
    """Copy the file, its `-wal` and its `-journal`, and open the copy with the WAL worked in or the journal rolled back.

    It takes the space of the file and its WAL below `directory` until it is released. Raises: SourceError.
    """
    private = ""
    try:
        private = os.path.abspath(tempfile.mkdtemp(prefix="publisher-", dir=directory))  # 0700
        target = os.path.join(private, _NAME)
        real = os.path.realpath(path)
        for suffix in ("", "-wal", "-journal"):
            if not suffix or os.path.exists(real + suffix):
                shutil.copyfile(real + suffix, target + suffix)
        return PrivateCopy(_recovered(target))
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be copied to {directory}: {error}; free room there for the file and its -wal, "
            "or set TMPDIR to a directory with room"
        ) from error
    except sqlite3.Error as error:
        raise SourceError(
            f"{path}: a copy with its -wal cannot be opened: {error}; free room in {directory}, or let A-REX or "
            "sqlite3 open the file once as its owner"
        ) from error
    finally:
        if private:
            shutil.rmtree(private, ignore_errors=True)


def _recovered(path: str) -> sqlite3.Connection:
    recovering = sqlite3.connect(path, isolation_level=None)
    try:
        # Leaving WAL mode moves every committed frame into the file; a hot journal is rolled back by the first read.
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
