"""Locks that die with their process: one publisher a target, and which runs of charges are alive.

Charges have one file, with a byte for each run and one for the run at work. These are POSIX locks,
because one process holds several of them; it loses all of them when it closes the file, so it must
open it only once.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from publisher.ledger.sql.database import ANOTHER_CHARGES
from publisher.model.errors import Busy, LedgerError, refused_by_system

_AT_WORK: Final = 0
# A link that somebody else made in the directory would lead us to make files elsewhere.
_TO_HOLD: Final = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_TO_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_MUST_WRITE: Final = "the user who publishes must be able to write there, on a local file system"


class FileChargeLocks:
    """`ChargeLocks`, those of one process. The file is made when the first is wanted."""

    def __init__(self, state: Path) -> None:
        # No target is called so: their names begin with a letter or a digit.
        self._path = state.with_name(f"{state.name}.+charge.lock")
        self._descriptor: int | None = None
        self._to_hold = False  # opened to hold locks, not only to look
        self._mine: set[int] = set()

    def hold(self, run: int) -> None:
        """Say that a run is alive. Raises: LedgerError."""
        descriptor = self._open()
        try:
            # At once, but for a moment in which somebody looks.
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, run)
        except OSError as error:
            raise self._trouble(error) from error
        self._mine.add(run)

    def work(self, patience: Callable[[], bool]) -> None:
        """Be the one at work. Raises: Busy when another is and patience ends; LedgerError."""
        descriptor = self._open()
        while not self._try(descriptor, fcntl.LOCK_EX, _AT_WORK):
            if not patience():
                raise Busy(ANOTHER_CHARGES)

    def leave(self, run: int) -> None:
        """The run is over: neither alive nor at work."""
        descriptor = self._open()
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, run)
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, _AT_WORK)
        self._mine.discard(run)

    def is_alive(self, run: int) -> bool:
        """Whether the process of a run is there, this one or another. Raises: LedgerError."""
        if run in self._mine:
            return True
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, _TO_LOOK)
            except FileNotFoundError:
                return False
            except OSError as error:
                raise self._trouble(error) from error
        free = self._try(self._descriptor, fcntl.LOCK_SH, run)
        if free:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, run)
        return not free

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None or not self._to_hold:
            self.close()  # it was opened to look: no lock is lost
            try:
                self._descriptor = os.open(self._path, _TO_HOLD, 0o600)
            except OSError as error:
                raise self._trouble(error) from error
            self._to_hold = True
        return self._descriptor

    def _try(self, descriptor: int, kind: int, byte: int) -> bool:
        try:
            fcntl.lockf(descriptor, kind | fcntl.LOCK_NB, 1, byte)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise self._trouble(error) from error
        return True

    def _trouble(self, error: OSError) -> LedgerError:
        return LedgerError(f"{self._path}: {refused_by_system(error, _MUST_WRITE)}")


@contextmanager
def target_lock(state: Path, target: str, patience: Callable[[], bool]) -> Iterator[None]:
    """Hold `<state>.<target>.lock`. `flock`, so that `kill -9` and power loss release it.

    A republish lets go of the lock between its portions; with some patience a regular round gets in
    between. Raises: Busy when another process holds it and patience ends; LedgerError when the file
    cannot be made or locked.
    """
    path = state.with_name(f"{state.name}.{target}.lock")
    try:
        descriptor = os.open(path, _TO_HOLD, 0o600)
    except OSError as error:
        raise LedgerError(f"{path}: {refused_by_system(error, _MUST_WRITE)}") from error
    try:
        _wait_for(descriptor, path, target, patience)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, path: Path, target: str, patience: Callable[[], bool]) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            # Others come from network file systems without locks.
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                why = refused_by_system(error, "keep the state on a local file system")
                raise LedgerError(f"{path}: cannot be locked: {why}") from error
        if not patience():
            raise Busy(
                f"target {target}: another publisher is at work on it ({path}); "
                "this one leaves it alone"
            )
