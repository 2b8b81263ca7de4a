"""Room on the database's file system: no message is written down that there is no room to settle.

SQLite writes to its log first (`publishing.db-wal`) and copies the log into the file at a
checkpoint. On a full disk neither can grow, and whatever is freed goes into the log again. So where
little is free, the log is copied before a message is written down, room for message and receipt
must be left, and 2 MiB are held back for the receipt, in a file without a name: another program may
fill the disk while the receiver answers.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from math import ceil
from pathlib import Path
from tempfile import mkstemp
from typing import Final

from publisher.model.errors import LedgerError

_MIB: Final = 1 << 20
_PLENTY: Final = 64 * _MIB  # nothing has to be seen to
_FOR_RECEIPTS: Final = 2 * _MIB
_SHARED_INDEX: Final = 64 * 1024  # SQLite calls it an I/O error when this finds no room
_COPIES: Final = 2  # of what is written: one in the log, and after a checkpoint one in the file


class DiskRoom:
    """Room for the database at `path`, held back by one connection."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._held_back: int | None = None  # descriptor

    def take(self, wanted: int) -> None:
        """See to it that so many bytes can be written down and settled. Not inside a transaction.

        Raises: LedgerError when too little is free, OSError, sqlite3.Error.
        """
        if self._has_plenty(wanted):
            return
        if not (self._copy_log() and self._hold_back() and _free(self._path) >= _COPIES * wanted):
            self.give_back()
            raise LedgerError(f"{self._path}: {advice(self._path, wanted)}")

    def make(self, wanted: int) -> None:
        """See to room for what a transaction is about to write down, as `take` before it.

        Raises: LedgerError when too little is free, OSError.
        """
        if self._has_plenty(wanted):
            return
        if not (self._hold_back() and _free(self._path) >= _COPIES * wanted):
            raise LedgerError(f"{self._path}: {advice(self._path, wanted)}")

    def _has_plenty(self, wanted: int) -> bool:
        return _free(self._path) >= _PLENTY + _COPIES * wanted

    def give_back(self) -> None:
        """Let the next transaction have what was held back."""
        if self._held_back is not None:
            os.close(self._held_back)
            self._held_back = None

    def _copy_log(self) -> bool:
        """Whether nothing but what others are reading just now is left in the log."""
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            return False
        return True

    def _hold_back(self) -> bool:
        if self._held_back is not None:
            return True
        held_back, name = mkstemp(dir=self._path.parent)
        Path(name).unlink()
        try:
            os.posix_fallocate(held_back, 0, _FOR_RECEIPTS)
        except OSError as error:
            os.close(held_back)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        self._held_back = held_back
        return True


def advice(path: Path, wanted: int = _MIB) -> str:
    """How much is free, how much has to be, and what to do. Raises: OSError."""
    needed = _COPIES * wanted + _FOR_RECEIPTS + _log_bytes(path)
    return (
        f"the disk is full: {_free(path) // _MIB} MiB are free and {ceil(needed / _MIB)} needed; "
        f"make room on the file system of {path.parent}, then run again: nothing is lost"
    )


def is_used_up(path: Path) -> bool:
    """Whether not even the log's index (`-shm`, 32 KiB at a time) may have found room."""
    try:
        return _free(path) < _SHARED_INDEX
    except OSError:
        return False


def _free(path: Path) -> int:
    found = os.statvfs(path.parent)
    return found.f_bavail * found.f_frsize


def _log_bytes(path: Path) -> int:
    log = path.with_name(f"{path.name}-wal")
    return log.stat().st_size if log.exists() else 0
