"""What one round of the random walk meets besides the faults of services, and who watches it."""

from __future__ import annotations

import fcntl
import random
import resource
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from publisher.transports.base import BackgroundThread
from tests.faults.walk_services import ServicesAndSite
from tests.support.patience import PATIENCE_S

DANGERS: Final = {
    "killed between two steps": ("killed between any two steps of a round", "the next round mends it"),
    "stopped while it waits": ("SIGTERM while it waits for the next attempt", "ends; what is in doubt stays so"),
    "disk full": ("no file can grow any further", "ends with 74 and says what to do; nothing is lost"),
    "another publisher at work": (
        "a second publisher at work on the same target",
        "ends with 75; the other one does the work",
    ),
    "clock ahead": ("the clock a day or a year ahead", "goes on; no job is passed over later"),
    "clock back": ("the clock an hour behind", "goes on; no job is passed over"),
    "token changed": ("another token in the middle of a round", "asks for the new one, and sends the message again"),
    "A-REX holds its lock": ("A-REX writes for as long as the round lasts", "reads all the same, without waiting"),
    "database vanished": (
        "the accounting databases gone, as after a lost mount",
        'ends with 66; never taken for "no jobs"',
    ),
}
"""What a round can meet besides the faults of services, in an administrator's words; and what comes of it."""


class Killed(BaseException):
    """The process ends here: nothing more is written, nothing is settled."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """A target's round as its observer saw it: where it began in the memory of the stand-ins and of the proxy."""

    target: str
    ams: int
    sgas: int
    proxy: int
    stopped: bool = False


@dataclass(slots=True, kw_only=True)
class Dangers:
    """What one round of the publisher is to meet besides the queued faults; 0 and empty are none."""

    fatal_step: int = 0
    most_bytes: int = 0
    busy: str = ""
    vanished: bool = False
    stop_after: int = 0
    rotate_at: int = 0
    locked: bool = False

    def certain(self) -> list[str]:
        """Those that befall the round whatever it does."""
        befalls = {
            "another publisher at work": self.busy,
            "database vanished": self.vanished,
            "A-REX holds its lock": self.locked,
        }
        return [name for name, there in befalls.items() if there]


def seen(services: ServicesAndSite, target: str) -> Seen:
    """A round that begins now."""
    ams, sgas = services.met_so_far()
    return Seen(target=target, ams=ams, sgas=sgas, proxy=len(services.proxy.refused))


class Witness:
    """The observer: notes where each round begins, and lets happen what is due at a step."""

    def __init__(self, services: ServicesAndSite, dangers: Dangers) -> None:
        self._services = services
        self._dangers = dangers
        self._steps = 0
        self.rounds: list[Seen] = []
        self.condemned: set[str] = set()  # local ids of records that a service refused by themselves

    def round_begins(self, state: Any, *, sweep: bool) -> None:
        self.rounds.append(seen(self._services, state.target))
        self._step()

    def job_set_aside(self, target: str, job: Any) -> None:
        if job.rule in ("refused-by-receiver", "too-large"):
            self.condemned.add(job.local_id)
        self._step()

    def page_read(self, *told: Any) -> None:
        self._step()

    record_shed = message_prepared = message_handed_over = message_settled = round_ends = page_read

    def _step(self) -> None:
        self._steps += 1
        if self._steps == self._dangers.rotate_at:
            self._services.rotate_token()
            self._services.counts["danger: token changed"] += 1
        if self._steps == self._dangers.fatal_step:
            _wait_for_deliveries()
            raise Killed


def _wait_for_deliveries() -> None:
    """A real kill ends them too. Here they would connect once more after the round, and take the next round's faults."""
    for left in threading.enumerate():
        if isinstance(left, BackgroundThread):
            left.close()
            left.join(PATIENCE_S)


def drawn(chance: random.Random, targets: Sequence[str]) -> Dangers:
    """Usually none, and never more than one of the grave ones at once."""
    dangers = Dangers(rotate_at=chance.randrange(1, 20) if chance.random() < 0.15 else 0, locked=chance.random() < 0.15)
    match chance.choices(("none", "kill", "full", "busy", "vanish", "stop"), weights=(60, 18, 9, 5, 4, 5))[0]:
        case "kill":
            dangers.fatal_step = chance.randrange(1, 40)
        case "full":
            dangers.most_bytes = chance.choice((1, 4_096, 33_000, *(chance.randrange(1, 400_000),) * 3))
        case "busy":
            dangers.busy = chance.choice(targets)
        case "vanish":
            dangers.vanished = True
        case "stop":
            dangers.stop_after = chance.randrange(1, 8)
    return dangers


@contextmanager
def endangered(services: ServicesAndSite, dangers: Dangers) -> Iterator[None]:
    """While one round runs: A-REX writes, the files are gone, another publisher works, no file may grow further."""
    site = services.site
    with ExitStack() as undone:
        if dangers.locked:
            services.writer.connection.execute("BEGIN IMMEDIATE")
            undone.callback(services.writer.connection.execute, "COMMIT")
        if dangers.vanished:
            away = site.control / "away"
            site.database().parent.rename(away)
            undone.callback(away.rename, site.database().parent)
        if dangers.busy:
            site.state.parent.mkdir(mode=0o700, exist_ok=True)
            lock = undone.enter_context(Path(f"{site.state}.{dangers.busy}.lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        if dangers.most_bytes:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (dangers.most_bytes, before[1]))
            undone.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        yield
