"""Locks that die with their process: one publisher a receiver and a target, and runs of charges.

Charges have one file, with a byte for each run and one for the run at work. These are POSIX locks,
because one process holds several of them; it loses all of them when it closes the file, so it must
open it only once.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from publisher.ledger.sql.database import ANOTHER_CHARGES, receiver_is_busy, receiver_lock
from publisher.model.errors import Busy, LedgerError, refused_by_system

_AT_WORK: Final = 0
# A link that somebody else made in the directory would lead us to make files elsewhere.
_TO_HOLD: Final = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_TO_LOOK: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_MUST_WRITE: Final = "the user who publishes must be able to write there, on a local file system"
_MOST_BYTES: Final = 400  # of who holds a receiver


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

    def busy(_: int) -> str:
        at_work = f"another publisher is at work on it ({path})"
        return f"target {target}: {at_work}; this one leaves it alone"

    with _held(path, patience, busy):
        yield


@contextmanager
def receiver_lock_file(
    state: Path, receiver: int, place: str, target: str, patience: Callable[[], bool]
) -> Iterator[None]:
    """Hold `<state>.+receiver-<number>.lock`, in which the holder writes who it is.

    Raises: Busy, LedgerError, as for a target.
    """

    def busy(descriptor: int) -> str:
        return receiver_is_busy(target, place, _holder(descriptor))

    path = state.with_name(f"{state.name}.{receiver_lock(receiver)}.lock")
    with _held(path, patience, busy) as descriptor:
        _sign(descriptor, f"process {os.getpid()}, target {target}")
        try:
            yield
        finally:
            _sign(descriptor, "")


@contextmanager
def _held(path: Path, patience: Callable[[], bool], busy: Callable[[int], str]) -> Iterator[int]:
    """Hold a lock file, made when it is not there; gives its descriptor."""
    try:
        descriptor = os.open(path, _TO_HOLD, 0o600)
    except OSError as error:
        raise LedgerError(f"{path}: {refused_by_system(error, _MUST_WRITE)}") from error
    try:
        while not _is_locked(descriptor, path):
            if not patience():
                raise Busy(busy(descriptor))
        yield descriptor
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Others come from network file systems without locks.
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        why = refused_by_system(error, "keep the state on a local file system")
        raise LedgerError(f"{path}: cannot be locked: {why}") from error
    return True


def _sign(descriptor: int, holder: str) -> None:
    """Write who holds a lock, for people: a full disk keeps nobody from his work."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)


def _holder(descriptor: int) -> str:
    """Return who holds a lock; '' where the file does not say, or not in words."""
    with suppress(OSError, ValueError):
        text = os.pread(descriptor, _MOST_BYTES, 0).decode()
        return text if text.isprintable() else ""
    return ""
