"""One publisher at a time on a target, by a lock that dies with its process."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from publisher.errors import Busy, LedgerError


@contextmanager
def target_lock(state: Path, target: str, patience: Callable[[], bool]) -> Iterator[None]:
    """Hold `<state>.<target>.lock`. `flock`, so that `kill -9` and power loss release it.

    A republish lets go of the lock between its portions; with some patience a regular round
    gets in between.
    Raises: Busy when another process holds it and patience ends; LedgerError when the file cannot be made or locked.
    """
    path = state.with_name(f"{state.name}.{target}.lock")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror}; the user who publishes must be able to write there") from error
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
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):  # network file systems without locks
                raise LedgerError(
                    f"{path}: cannot be locked: {error.strerror}; keep the state on a local file system"
                ) from error
        if not patience():
            raise Busy(f"target {target}: another publisher is at work on it ({path}); this one leaves it alone")
