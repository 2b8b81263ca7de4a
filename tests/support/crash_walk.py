"""A publisher that ends itself with SIGKILL at a chosen step. With a month it republishes that one, without it publishes.

It is a process of its own. Step numbers count what the observer is told, across all messages of the round; the
number of steps of a whole round is printed when none was fatal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE
from typing import Any

from publisher import config
from publisher.cli.site import LiveSite
from publisher.model import time as when
from publisher.publishing import publish
from publisher.publishing.republish import plan, run
from publisher.publishing.site import ProcessEnvironment
from tests.support.forks import Child
from tests.support.patience import PATIENCE_S


def walking(path: Path, fatal: int, month: str = "") -> Child:
    """Such a process."""
    return Child(path, fatal, *[month][: bool(month)], target=f"{__name__}:main", stdout=PIPE, stderr=PIPE)


def crash_walk(path: Path, fatal: int, month: str = "") -> int:
    """What it ends with; negative: the signal."""
    child = walking(path, fatal, month)
    child.communicate(timeout=PATIENCE_S)
    assert child.returncode is not None
    return child.returncode


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


def main() -> int:
    path, fatal, month = Path(sys.argv[1]), int(sys.argv[2]), "".join(sys.argv[3:])
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
    return publish.exit_status(outcomes)
