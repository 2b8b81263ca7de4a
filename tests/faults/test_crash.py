"""The end at any moment: killed inside a transaction or a write, power lost, disk full; and the next round mends it.

Every publisher here is a real process (crash_nursery.py). After each end: nothing is lost, at most one message went twice and
that under its id, and the ledger is whole and agrees with the receiver's log.
"""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import generate
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, FakeAMS
from tests.faults import crash_nursery
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest, told, truth
from tests.support.strict_apel import read_car

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
KILLED = -signal.SIGKILL
FULL = -signal.SIGXFSZ


class Walk:
    """A site whose state and topic are new at every step."""

    def __init__(self, folder: Path, pki: PKI, fake: FakeAMS) -> None:
        self.site = SiteUnderTest(folder, pki, fake)
        self.site.config["targets"]["egi"] |= {"batch_records": 8, "attempts": 1}
        self.jobs = list(generate(1, 22, START, END))
        self.site.fill(*self.jobs, replace(self.jobs[0], job_id="hopeless", benchmark="fast"))
        self._steps = 0
        self.topic = ""
        self.next()

    def next(self) -> None:
        self._steps += 1
        self.topic = f"step{self._steps}"
        self.site.fake.allow(self.site.user, self.topic)
        self.site.state = self.site.folder / f"state{self._steps}" / "publishing.db"
        self.site.config["state"] = str(self.site.state)
        self.site.config["targets"]["egi"] |= {"topic": self.topic}
        self.site.save()

    def publish(self, **order: Any) -> dict[str, Any]:
        return crash_nursery.publish(self.site, **order)

    def assert_mended(self, where: object) -> None:
        """The next round ends well, and everything is as if nothing had happened."""
        mended = self.publish()
        assert mended["status"] in (0, 65), (where, mended)  # 0: what is set aside was told before the end
        messages = self.site.fake.messages(PROJECT, self.topic)
        ids = Counter(message.attributes["empaid"] for message in messages)
        assert sum(count - 1 for count in ids.values()) <= 1, where
        receiver = Receiver.create(self.site.pki.ca_directory, allowed=[self.site.host.subject], with_openssl=False)
        rows = [row for one in messages for row in read_car(receiver.take(one).text.encode(), datetime.now(UTC))]
        assert {told(row) for row in rows} == {truth(job) for job in self.jobs}, where
        assert len(rows) - len(self.jobs) <= max(message_sizes(self.site)), where
        settled, sent, waiting = self.kept(where)
        assert waiting == 0, where
        assert sent == set(ids), where
        assert settled == (len(ids), len(self.jobs)), where
        status = self.site.run("status", "--json").json["targets"]["egi"]
        assert (status["delivered"], status["quarantined"], status["in_doubt"], status["pending"]) == (
            len(self.jobs),
            1,
            0,
            0,
        ), where

    def kept(self, where: object) -> tuple[tuple[int, int], set[str], int]:
        """Messages and records that the ledger has as sent, the ids of these messages, and how many wait."""
        with closing(sqlite3.connect(self.site.state)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",), where
            settled = connection.execute("SELECT count(*), sum(records) FROM message WHERE state = 2").fetchone()
            sent = {one for (one,) in connection.execute("SELECT message_id FROM message WHERE state = 2")}
            (waiting,) = connection.execute("SELECT count(*) FROM outbox").fetchone()
        return settled, sent, waiting


def message_sizes(site: SiteUnderTest) -> list[int]:
    return [int(site.config["targets"]["egi"]["batch_records"])]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory, pki: PKI) -> Iterator[Walk]:
    with FakeAMS(pki) as fake:
        yield Walk(tmp_path_factory.mktemp("site"), pki, fake)


@pytest.mark.slow
def test_the_state_is_synced_at_every_end_of_a_transaction(walk: Walk) -> None:
    """What the simulation of lost power builds on: SQLite's promise for these two settings."""
    walk.next()
    assert walk.publish()["status"] == 65
    from publisher.ledger.sqlite.connection import open_ledger_file

    with closing(open_ledger_file(walk.site.state)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def walk_statements(walk: Walk, stride: int) -> tuple[int, int]:
    """How many statements a round has, and how many of them were the last."""
    fatal, ends = 1, 0
    while True:
        walk.next()
        ended = walk.publish(fatal=fatal)
        if ended["status"] != KILLED:
            assert ended["status"] == 65, ended
            return int(ended["statements"]), ends
        walk.assert_mended(fatal)
        fatal += stride
        ends += 1


@pytest.mark.slow
def test_every_statement_of_the_ledger_may_be_the_last(
    walk: Walk, record_property: Callable[[str, object], None]
) -> None:
    """SIGKILL between two statements, also inside transactions: some here, all of them in the long run."""
    statements, ends = walk_statements(walk, 17)
    assert statements > 100
    record_property("tried", ends)


@pytest.mark.long
def test_every_single_statement_of_the_ledger_may_be_the_last(walk: Walk) -> None:
    assert min(walk_statements(walk, 1)) > 100


# What a loss of power leaves of the files, where a process was in the middle of a write


def as_it_was(state: Path, synced: dict[str, int]) -> None:
    """The process was killed, the machine goes on: everything that was written is there."""


def nothing_else(state: Path, synced: dict[str, int]) -> None:
    """What was not synced never came to the disk; the index in memory is gone."""
    cut_to(state, synced)
    shm(state).unlink(missing_ok=True)


def torn(state: Path, synced: dict[str, int]) -> None:
    """Of what was not synced every other sector came to the disk; the others are zeros. The index is rubbish."""
    for path, safe in unsynced(state, synced):
        with path.open("r+b") as file:
            size = path.stat().st_size
            for at in range(safe - safe % 512 + 512, size, 1024):
                file.seek(at)
                file.write(b"\0" * min(512, size - at))
    if shm(state).exists():
        shm(state).write_bytes(b"\xa5" * shm(state).stat().st_size)


def half(state: Path, synced: dict[str, int]) -> None:
    """Of what was not synced the first half came to the disk, cut in the middle of a sector."""
    for path, safe in unsynced(state, synced):
        with path.open("r+b") as file:
            file.truncate(safe + (path.stat().st_size - safe) // 2 + 7)
    shm(state).unlink(missing_ok=True)


def shm(state: Path) -> Path:
    return state.with_name(state.name + "-shm")


def unsynced(state: Path, synced: dict[str, int]) -> Iterator[tuple[Path, int]]:
    """The log, where it holds more than was synced, and up to where. The database is only written from a synced log."""
    path = state.with_name(state.name + "-wal")
    if path.exists() and path.stat().st_size > synced.get("-wal", 0):
        yield path, synced.get("-wal", 0)


def cut_to(state: Path, synced: dict[str, int]) -> None:
    for path, safe in unsynced(state, synced):
        with path.open("r+b") as file:
            file.truncate(safe)


LOSSES: dict[str, Callable[[Path, dict[str, int]], None]] = {
    "killed": as_it_was,
    "power lost": nothing_else,
    "torn": torn,
    "half": half,
}


def walk_writes(walk: Walk, losses: list[str], step_bytes: int) -> tuple[int, int]:
    """Ends in the middle of writes at ever later places; how many there were, and how many of them left unsynced bytes."""
    most, ends, unsafe = 5_000, 0, 0
    while True:
        lost = losses[ends % len(losses)]
        walk.next()
        ended = walk.publish(most_bytes=most, by_signal=True)
        if ended["status"] != FULL:
            assert ended["status"] == 65, ended
            return ends, unsafe
        unsafe += any(unsynced(walk.site.state, ended["synced"]))
        LOSSES[lost](walk.site.state, ended["synced"])
        walk.assert_mended((lost, most))
        ends += 1
        most += step_bytes


@pytest.mark.slow
def test_every_write_may_be_the_last_and_power_may_be_lost_with_it(
    walk: Walk, record_property: Callable[[str, object], None]
) -> None:
    """A few places here with each kind of loss in turn; in the long run places 1 KiB apart with all kinds."""
    ends, unsafe = walk_writes(walk, list(LOSSES), 39_003)
    assert ends > 8
    assert unsafe > 4
    record_property("tried", ends)


@pytest.mark.long
@pytest.mark.parametrize("lost", LOSSES)
def test_every_kilobyte_may_be_the_last(walk: Walk, lost: str) -> None:
    ends, unsafe = walk_writes(walk, [lost], 1021)
    assert ends > 200
    assert unsafe > 100


def walk_full_disk(walk: Walk, step_bytes: int) -> int:
    most, ends = 1, 0
    while True:
        walk.next()
        ended = walk.publish(most_bytes=most)
        if ended["status"] == 65:
            return ends
        assert ended["status"] == 74, (most, ended)
        assert "nothing is lost" in ended["said"], (most, ended)
        walk.assert_mended(most)
        ends += 1
        most += step_bytes


@pytest.mark.slow
def test_the_disk_may_be_full_at_every_write(walk: Walk, record_property: Callable[[str, object], None]) -> None:
    ends = walk_full_disk(walk, 80_021)
    assert ends > 5
    record_property("tried", ends)


@pytest.mark.long
def test_the_disk_may_be_full_at_every_page(walk: Walk) -> None:
    assert walk_full_disk(walk, 2048) > 100
