"""How long tests wait: for what should come soon, longer than any load delays it; for a computation, by its own CPU time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from publisher.transports.base import BackgroundThread

# Ends a test that would hang for ever. It decides nothing: a test that reaches it has failed.
PATIENCE_S: Final = 300.0
# For a fault that only the client's own limit can end: a client without one hangs until PATIENCE_S, or for as long as this.
FOR_EVER_S: Final = 3600.0
_CPU_S: Final = 60.0


class OutOfBounds(AssertionError):
    """A computation that should take a moment does not end."""


@contextmanager
def bounded(cpu_s: float = _CPU_S) -> Iterator[None]:
    """Breaks off what takes more CPU time of this process than anything that is bounded at all, however busy the machine is."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfBounds(f"not done after {cpu_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def sending_ends() -> Iterator[None]:
    """A process that is killed takes its threads along; where a test only pretends to, they end with what they do."""
    before = set(threading.enumerate())
    try:
        yield
    finally:
        for left in threading.enumerate():
            if isinstance(left, BackgroundThread) and left not in before:
                left.close()
                left.join(PATIENCE_S)
                assert not left.is_alive()
