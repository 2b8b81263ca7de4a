"""Signing and sending in a second thread: they spend most of their time in libraries that release
the interpreter, or waiting.

The ledger, the source, checks and observers stay on the main thread. It starts a piece of work,
continues, and collects the result before it starts the next of that kind, so no queue can grow. Work
that is mostly Python does not belong here: two threads that both want the interpreter are slower
than one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")

# Python runs signal handlers on the main thread, and a signal that the kernel hands to another thread does not wake it: a wait
# without an end would hear SIGTERM when the work is done.
_LOOK_EVERY_S: Final = 0.5


class BackgroundTask(Generic[Result]):
    """One piece of work that has begun.

    Its thread is a daemon: when SIGTERM ends the process, nobody waits for a service that does not answer.
    """

    NAME: Final = "background"  # of its thread

    def __init__(self, work: Callable[[], Result]) -> None:
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, args=(work,), name=self.NAME, daemon=True)
        self._thread.start()

    def result(self) -> Result:
        """The result, once it is done. Raises: whatever the work raised."""
        while self._thread.is_alive():
            self._thread.join(_LOOK_EVERY_S)
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self, work: Callable[[], Result]) -> None:
        with ExitStack() as ending:
            ending.push(self._keep)
            self._results.append(work())

    def _keep(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """What the work raised waits for `result`, which raises it where somebody can take it: a thread has no caller."""
        self._error = error
        return True
