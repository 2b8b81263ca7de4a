"""One publisher at a time on a target, by a lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from publisher.errors import Busy, LedgerError


@contextmanager
def target_lock(state: Path, target: str) -> Iterator[None]:
    """Hold `<state>.<target>.lock`. `flock`, so that `kill -9` and power loss release it.

    Raises: Busy when another process holds it; LedgerError when the lock file cannot be made.
    """
    path = state.with_name(f"{state.name}.{target}.lock")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror}; the user who publishes must be able to write there") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"target {target}: another publisher is at work on it ({path}); this one leaves it alone"
            ) from None
        yield
    finally:
        os.close(descriptor)
