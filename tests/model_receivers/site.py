"""The product at work in this process: real configuration, ledger, accounting data and commands; transports end at models.

`run` is a command line. `cut_short` is one in a child that is killed at a statement of its databases, or whose disk is full;
what it had delivered by then has arrived.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import signal
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from publisher import config
from publisher.cli.commands import Context, command
from publisher.cli.logs import set_up_logging
from publisher.cli.parser import parser
from publisher.cli.site import LiveSending, LiveSite
from publisher.config import Settings
from publisher.config.settings import LedgerServer
from publisher.model.errors import PublisherError
from publisher.model.message import Message
from publisher.policy.target import Target
from publisher.publishing.site import ProcessEnvironment
from publisher.transports.base import LATER, REFUSED, Receipt, Step, Transport, Verdict
from tests.model_receivers.ledgers import StoredLedger
from tests.model_receivers.receivers.apel import Apel
from tests.model_receivers.receivers.keep_first import KINDS, KeepFirst
from tests.support.simulated_months import WiredSending
from tests.support.sites import as_yaml

Model = Apel | KeepFirst
Take = Callable[[str, bytes], None]
NEVER: Final = 1 << 60
KILLED: Final = -signal.SIGKILL


class Answer(StrEnum):
    """How the next delivery ends."""

    OK = "ok"
    LOST = "lost answer"  # stored, and nobody knows
    AWAY = "away"  # nothing left this host
    REFUSED = "refused"
    TOO_LARGE = "too large"
    KILLED_BEFORE = "killed before"  # only in a child
    KILLED_AFTER = "killed after"


_RECEIPTS: Final = {
    Answer.OK: Receipt(Verdict.DELIVERED, remote_id="1"),
    Answer.LOST: Receipt(Verdict.IN_DOUBT, reason="no answer", exit_status=LATER, doubt=True),
    Answer.AWAY: Receipt(Verdict.RETRY_LATER, reason="no connection", exit_status=LATER),
    Answer.REFUSED: Receipt(Verdict.REFUSED, reason="the model says no", exit_status=REFUSED),
    Answer.TOO_LARGE: Receipt(Verdict.TOO_LARGE, reason="the model finds it too large", exit_status=REFUSED),
}
_STORED: Final = (Answer.OK, Answer.LOST, Answer.KILLED_AFTER)


class Run(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str = ""

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out) if self.out.startswith("{") else {}
        return found


class ModelTransport:
    """A `Transport` to a model, which answers as the script says."""

    def __init__(self, place: str, take: Take, answer: Callable[[], Answer]) -> None:
        self._place, self._take, self._answer = place, take, answer

    def payload_limit(self) -> int:
        return 500_000

    def deliver(self, message: Message, now: datetime) -> Receipt:
        answer = self._answer()
        if answer is Answer.TOO_LARGE and message.records < 2:
            answer = Answer.OK
        if answer in _STORED:
            self._take(self._place, message.payload)
        if answer in (Answer.KILLED_BEFORE, Answer.KILLED_AFTER):
            os._exit(1)
        return _RECEIPTS[answer]

    def preflight(self) -> tuple[Step, ...]:
        return ()

    def warnings(self, now: datetime) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteAtModels(LiveSite):
    """A configured site whose targets end at models."""

    connect: Callable[[Target], Transport]

    @property
    def sending(self) -> LiveSending:
        return WiredSending(self.settings, self.process, self.ledgers, connect=self.connect)


def place_of(target: dict[str, Any]) -> str:
    """Return the name of the receiver that a block of the configuration leads to."""
    if target["type"] == "ams":
        return f"apel {target.get('topic', 'gLite-APEL')}"
    return f"{target['type']} {target['url']}"


def place_at(kind: str, address: str) -> str:
    """Return the name of the receiver of which the product shows this address."""
    if kind == "ams":
        return f"apel {address.rpartition(', topic ')[2]}"
    return f"{kind} {address}"


def new_model(place: str) -> Model:
    kind = place.partition(" ")[0]
    return Apel() if kind == "apel" else KINDS[kind]()


@dataclass(slots=True)
class Product:
    """A site in a folder, its clock and its receivers."""

    folder: Path
    config: dict[str, Any]
    ledger: StoredLedger
    now: datetime = datetime(2026, 6, 20, 12, tzinfo=UTC)
    models: dict[str, Model] = field(default_factory=dict)
    answer: Callable[[], Answer] = lambda: Answer.OK
    arrived: list[tuple[str, bytes]] = field(default_factory=list)
    _settings: tuple[str, Settings] | None = None
    _said_first: object = None

    def __post_init__(self) -> None:
        self._said_first = self._said()

    def _said(self) -> object:
        formats = {target["format"] for target in self.config["targets"].values()}
        return deepcopy((self.config["site"], self.config["records"], formats))

    @property
    def says_what_it_said(self) -> bool:
        """Whether the configuration says of jobs what it did in the beginning."""
        return self._said() == self._said_first

    @property
    def state(self) -> Path:
        return self.folder / "state" / "publishing.db"

    def take(self, place: str, payload: bytes) -> None:
        """A payload arrives at a receiver."""
        self.arrived.append((place, payload))
        self.model(place).take(payload)

    def model(self, place: str) -> Model:
        if place not in self.models:
            self.models[place] = new_model(place)
        return self.models[place]

    def move_model(self, old: str, new: str) -> None:
        """A service moves to another place, with all that it has."""
        self.models[new] = self.models.pop(old)

    def run(self, *words: str) -> Run:
        """Run a command to its end. Raises: what is a bug in the product."""
        return self._run(words, self.take, self.answer)

    def _run(self, words: tuple[str, ...], take: Take, answer: Callable[[], Answer]) -> Run:
        out, err, given = io.StringIO(), io.StringIO(), argparse.Namespace(command=None)
        with redirect_stdout(out), redirect_stderr(err):
            set_up_logging(verbosity=0, log_format="text", stream=err)
            try:
                command_line().parse_args(words, given)
                site = self._site(take, answer)
                status = command(given.command).load().run(given, Context(lambda: site, threading.Event()))
            except PublisherError as error:
                err.write(f"{error}\n")
                status = error.exit_status
        if "a bug in publisher" in err.getvalue():
            raise AssertionError(err.getvalue())
        return Run(status, out.getvalue(), err.getvalue())

    def _site(self, take: Take, answer: Callable[[], Answer]) -> LiveSite:
        text = as_yaml(self.config)
        if self._settings is None or self._settings[0] != text:
            path = self.folder / "publisher.yaml"
            path.write_text(text)
            self._settings = text, config.load(path, {}, host_name="ce1.example.org")

        def connect(target: Target) -> Transport:
            block = self.config["targets"][target.name]
            return ModelTransport(place_of(block), take, answer)

        process = ProcessEnvironment(
            environment={},
            clock=lambda: self.now,
            monotonic=lambda: self.now.timestamp(),
            wait=lambda seconds: False,
            chance=lambda: 0.5,
            host="model-test",
        )
        return SiteAtModels(settings=self._settings[1], process=process, connect=connect)

    def cut_short(self, *words: str, statement: int = NEVER, most_bytes: int = 0) -> Run:
        """Run a command in a child that is killed at a statement of its databases, or whose files may not grow over a size.

        A ledger in PostgreSQL always has room.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            self._in_child(words, writing, statement, most_bytes)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
        self.ledger.until_alone()
        ended = Run(KILLED, "")
        for line in told.decode().splitlines():
            match json.loads(line):
                case [place, payload]:
                    self.take(place, bytes.fromhex(payload))
                case [status, out, err]:
                    ended = Run(status, out, err)
        assert ended.status != 70, ended.err
        return ended

    def _in_child(self, words: tuple[str, ...], pipe: int, statement: int, most_bytes: int) -> None:
        def tell(what: Sequence[object]) -> None:
            os.write(pipe, json.dumps(what).encode() + b"\n")

        try:
            if most_bytes:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
            _end_at_statement(statement, self.ledger.place)
            tell(self._run(words, lambda place, payload: tell((place, payload.hex())), self.answer))
        except BaseException as error:  # noqa: BLE001  # the parent raises it
            tell(Run(70, "", repr(error)))
        finally:
            os._exit(0)

    def later(self, **passed: float) -> None:
        self.now += timedelta(**passed)

    @property
    def job_store(self) -> Path:
        return self.state.with_name("jobs.db")

    def lose_store(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.job_store.with_name(f"jobs.db{suffix}").unlink(missing_ok=True)


def _end_at_statement(number: int, ledger: Path | LedgerServer) -> None:
    """Have this process end, as by SIGKILL, before that statement of the job store or the ledger."""
    left, connect = [number], sqlite3.connect

    def count(_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            os._exit(1)

    def counted(database: Any, *more: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(database, *more, **options)
        if "publishing.db" in str(database) or "jobs.db" in str(database):
            connection.set_trace_callback(count)
        return connection

    vars(sqlite3)["connect"] = counted
    if isinstance(ledger, LedgerServer):
        _count_at_server(count)


def _count_at_server(count: Callable[[object], None]) -> None:
    """Call `count` before each statement that this process sends to PostgreSQL."""
    import psycopg

    def counted(send: Callable[..., Any]) -> Callable[..., Any]:
        def counting(sender: Any, statement: Any, *more: Any, **options: Any) -> Any:
            count(statement)
            return send(sender, statement, *more, **options)

        return counting

    for kind, name in ((psycopg.Connection, "execute"), (psycopg.Cursor, "executemany")):
        setattr(kind, name, counted(getattr(kind, name)))


@cache
def command_line() -> argparse.ArgumentParser:
    """To make it takes longer than many a command."""
    return parser()


def scripted(seed: int, *, trouble: float, kills: bool = False) -> Callable[[], Answer]:
    """Return a script in which so many deliveries end badly."""
    chance = random.Random(seed)
    bad = [Answer.LOST, Answer.AWAY, Answer.REFUSED, Answer.TOO_LARGE]
    bad += [Answer.KILLED_BEFORE, Answer.KILLED_AFTER] * kills

    def answer() -> Answer:
        return chance.choice(bad) if chance.random() < trouble else Answer.OK

    return answer
