"""A publisher that ends itself with SIGKILL at a chosen step: `python -m tests.support.crash_walk CONFIG STEP [MONTH]`.

With a month it republishes that one, without it publishes.

Run as a child process by the tests. Step numbers count what the observer is told, across all messages of the round; the
number of steps of a whole round is printed when none was fatal.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from publisher import config
from publisher.cli.site import LiveSite
from publisher.model import time as when
from publisher.pipeline import publish
from publisher.pipeline.republish import plan, run
from publisher.pipeline.site import ProcessEnvironment
from tests.support.patience import PATIENCE_S


def crash_walk(path: Path, fatal: int, month: str = "") -> int:
    """The same in a process that is forked where everything is loaded already. What it ends with; negative: the signal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *_LOADED])
    child = context.Process(target=main, args=(path, fatal, month))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode is not None
    return child.exitcode


_LOADED = ("publisher.sources.arex.source", "publisher.formats.apel.car", "publisher.transports.ams.transport")


class FatalObserver:
    """Counts steps, and kills its process at one of them."""

    def __init__(self, fatal: int) -> None:
        self.steps = 0
        self._fatal = fatal

    def __getattr__(self, name: str) -> Any:
        return self._step

    def _step(self, *told: object, **also: object) -> None:
        self.steps += 1
        if self.steps == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)


def main(path: Path, fatal: int, month: str = "") -> None:
    settings = config.load(path, {}, host_name="ce01.example.org")
    surroundings = ProcessEnvironment(
        environment={}, clock=lambda: datetime.now(UTC), monotonic=time.monotonic, wait=threading.Event().wait
    )
    observer = FatalObserver(fatal)
    site = LiveSite(settings=settings, process=surroundings)
    if month:
        now = surroundings.clock()
        wish = plan.RepublishRequest(window=when.window(when.parse_from(month, now), when.parse_to(month, now)))
        plans = plan.plan(site, settings.targets, wish, FatalObserver(0))
        outcomes = run.carry_out(site, settings.targets, plans, wish, observer, dry_run=False)
    else:
        outcomes = publish.publish(site, targets=[], observer=observer, force=True)
    print(observer.steps)
    sys.exit(publish.exit_status(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
