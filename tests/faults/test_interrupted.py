"""^C or a bug at any line of a round, and the rounds after it: each job arrives under one message id, and nothing is left.

The thread that sends is quick, or slow, or dies with the process. By default at a few lines; the long form tries many more.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import publisher
from publisher.model.message import Message
from publisher.publishing.round.outcome import Outcome
from publisher.transports.base import BackgroundThread, Receipt
from tests.arex_databases import generate
from tests.support.patience import PATIENCE_S
from tests.support.pki import Credential
from tests.support.simulated_months import Receiver, Wire, World
from tests.support.spring_2028 import done

NOW: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
JOBS: Final = 9
ROUNDS: Final = 12
TRIED: Final = 4
TRIED_LONG: Final = 400
# Lines of what only reads are interrupted alike everywhere.
FOLDERS: Final = tuple(str(Path(publisher.__file__).parent / room) for room in ("publishing", "ledger"))
LOCKS: Final = "locks.py"  # go with their process, which does not end here
# Files that were just opened are closed when their process ends.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
FORMATS: Final = ("car", "ogf-ur", "apel-summary-0.4")
# What becomes of messages, one after the other.
FATES: Final = {"fine": (), "cut": ("too large", "fine", "not stored", "too large", "fine", "answer lost")}
ERRORS: Final = (KeyboardInterrupt, MemoryError)

Line = tuple[str, int, str]  # file, line, event


class Died(BaseException):
    """The process is gone, and with it the thread that would have sent."""


@dataclass(slots=True, kw_only=True)
class SlowWire(Wire):
    """Sends beside the main thread when that waits for it, or has ended. `arrived`: payloads by message id."""

    slow: bool = False
    dies: bool = False
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gone: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    arrived: dict[str, bytes] = field(default_factory=dict)

    def deliver(self, message: Message, now: datetime) -> Receipt:
        if threading.current_thread() is threading.main_thread():
            return self._delivered(message, now)
        if self.slow:
            assert self.go.acquire(timeout=PATIENCE_S)
            if self.dies:
                raise Died
        try:
            return self._delivered(message, now)
        finally:
            self.gone.release()

    def _delivered(self, message: Message, now: datetime) -> Receipt:
        kept = self.receiver.messages
        before = len(kept)
        receipt = Wire.deliver(self, message, now)
        if len(kept) > before:
            assert self.arrived.setdefault(message.id, message.payload) == message.payload
        return receipt


class AnyReceiver(Receiver):
    """Takes usage records of OGF, too."""

    def take(self, message: Message, now: datetime) -> None:
        if message.format == "ogf-ur":
            self.messages.append(message.id)
        else:
            Receiver.take(self, message, now)


class InterruptedWorld(World):
    """A site whose round is interrupted at the `nth` time that it comes to a line."""

    wire: SlowWire

    def _round(self, faults: Iterable[str], go: Callable[[], list[Outcome]]) -> Outcome | None:
        def ending() -> list[Outcome]:
            try:
                return go()
            finally:
                self.wire.go.release(2)  # before the thread that sends is waited for

        return World._round(self, faults, ending)


class Interruption:
    """Traces the main thread: counts the lines that it comes to, and raises at one of them.

    `dies`: nothing more is sent then.
    """

    def __init__(
        self,
        wire: SlowWire,
        at: tuple[Line, int] | None = None,
        error: type[BaseException] = Died,
        *,
        dies: bool = False,
    ) -> None:
        self.met: Counter[Line] = Counter()
        self._wire = wire
        self._at = at
        self._error = error
        self._dies = dies

    @contextmanager
    def traced(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code is BackgroundThread.result.__code__ and _sends(frame):
            self._wire.go.release()
        if code.co_filename.endswith(LOCKS):
            return None
        if code is BackgroundThread.begin.__code__ or code.co_filename.startswith(FOLDERS):
            return self._look
        return None

    def _look(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if event == "return" and code is BackgroundThread.begin.__code__ and _sends(frame) and not self._wire.slow:
            assert self._wire.gone.acquire(timeout=PATIENCE_S)
        # That of a generator that goes on is no place where Python looks for a signal.
        if event == "line" or (event == "return" and not code.co_flags & 0x20):
            line = code.co_filename, frame.f_lineno, event
            self.met[line] += 1
            if (line, self.met[line]) == self._at:
                self._wire.dies = self._dies
                if issubclass(self._error, Exception):  # the round goes on, and waits for what is on its way
                    self._wire.slow = False
                    self._wire.go.release()
                raise self._error
        return self._look


def _sends(frame: FrameType) -> bool:
    """Whether it is of the thread that sends, and no other one."""
    return type(frame.f_locals["self"]) is BackgroundThread


def world_of(folder: Path, host: Credential, form: str) -> InterruptedWorld:
    folder.mkdir()
    wire = SlowWire(receiver=AnyReceiver())
    world = InterruptedWorld(folder=folder, host=host, now=NOW, format=form.replace("ogf-ur", "car"), wire=wire)
    if form == "ogf-ur":
        to_files = {"type": "spool", "path": str(folder / "out"), "format": form, "sign": False}
        world.config["targets"]["egi"] = to_files | {"start": "all", "every": "1s", "batch_records": 4}
    world.finish(generate(11, JOBS, datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
    return world


def goes(world: World, again: bool, faults: Iterable[str] = ()) -> Outcome | None:
    def way() -> Generator[Outcome | None, None, None]:
        yield (
            world.republish("2026-09", "2026-10", faults=faults) if again else world.publish(faults=faults, force=False)
        )

    # What is raised where a handler begins leaves an exception as being handled (CPython 3.11): in a generator, until it ends.
    with closing(way()) as gone:
        return next(gone)


def goes_on(world: World, again: bool) -> None:
    """The same command until it went through, and then regular rounds until one finds nothing."""
    for _ in range(ROUNDS):
        world.pass_time(1 / 1440)
        outcome = done(goes(world, again))
        if outcome.outcome == "nothing":
            return
        again = again and outcome.exit_status != 0
    raise AssertionError(outcome)


def assert_right(world: InterruptedWorld, form: str, times: int) -> None:
    with closing(sqlite3.connect(world.folder / "state" / "publishing.db")) as ledger:
        for left in ("outbox", "window_progress", "quarantine", "message WHERE state < 2"):
            assert ledger.execute(f"SELECT count(*) FROM {left}").fetchone() == (0,), left
    if form != "apel-summary-0.4":
        payloads = [payload for payload in world.wire.arrived.values() if not payload.startswith(b"APEL-sync")]
        arrived = {job: sum(job.encode() in payload for payload in payloads) for job in world.done}
        assert arrived == dict.fromkeys(world.done, times)
    if form != "ogf-ur":
        assert not world.wrong_months()
        assert not world.differences()


def try_lines(folder: Path, host: Credential, form: str, again: bool, fates: str, tried: int, seed: int) -> None:
    def begun(number: int) -> InterruptedWorld:
        world = world_of(folder / str(number), host, form)
        if again:
            world.publish()
            world.pass_time(1)
        return world

    world = begun(0)
    whole = Interruption(world.wire)
    with whole.traced():
        goes(world, again, FATES[fates])
    chance = random.Random(seed)
    lines = sorted(whole.met)
    for number in range(1, tried + 1):
        line, error = chance.choice(lines), chance.choice(ERRORS)
        at = line, chance.randint(1, whole.met[line])
        world = begun(number)
        world.wire.slow = chance.random() < 0.6
        dies = world.wire.slow and error is KeyboardInterrupt and chance.random() < 0.5
        what = f"{at} {error.__name__}, slow: {world.wire.slow}, dies: {dies}"
        with suppress(error), Interruption(world.wire, at, error, dies=dies).traced():
            goes(world, again, FATES[fates])
        world.wire.slow = world.wire.dies = False
        try:
            goes_on(world, again and not _is_over(world, form))
            assert_right(world, form, 1 + again)
        except AssertionError as wrong:
            raise AssertionError(f"interrupted at {what}") from wrong


def _is_over(world: InterruptedWorld, form: str) -> bool:
    """Whether a republish was, when it was interrupted: the same command would be another one."""
    with closing(sqlite3.connect(world.folder / "state" / "publishing.db")) as ledger:
        if form == "apel-summary-0.4" or ledger.execute("SELECT count(*) FROM window_progress").fetchone() != (0,):
            return False
    payloads = world.wire.arrived.values()
    return all(sum(job.encode() in payload for payload in payloads) == 2 for job in world.done)


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize("fates", FATES)
@pytest.mark.parametrize("again", [False, True], ids=["publish", "republish"])
@pytest.mark.parametrize("form", FORMATS)
def test_at_a_few_lines(tmp_path: Path, host: Credential, form: str, again: bool, fates: str) -> None:
    try_lines(tmp_path, host, form, again, fates, TRIED, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("fates", FATES)
@pytest.mark.parametrize("again", [False, True], ids=["publish", "republish"])
@pytest.mark.parametrize("form", FORMATS)
def test_at_many_lines(tmp_path: Path, host: Credential, form: str, again: bool, fates: str) -> None:
    try_lines(tmp_path, host, form, again, fates, TRIED_LONG, seed=random.randrange(1 << 32))
