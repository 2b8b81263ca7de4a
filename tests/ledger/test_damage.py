"""Bits that flip on the disk: what `state check` and the doctor notice of them."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from publisher import config
from publisher.cli.site import LiveSite
from publisher.ledger.checks import Disagreement, damaged_in_sample, disagreements
from publisher.ledger.sqlite.connection import open_database_to_read
from publisher.ledger.transfer import tables
from publisher.model.errors import LedgerError
from publisher.publishing.publish import publish
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ProcessEnvironment
from tests.arex_databases import generate
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.crash_walk import FatalObserver
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = 3_000
SENT = "SELECT min(id) FROM message WHERE state = 2"  # what is only counted has no digest


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, pki: PKI) -> Iterator[SiteUnderTest]:
    """With a ledger full of deliveries, in a file without a log; it takes longer than the tests."""
    with FakeAMS(pki) as fake:
        yield delivered(SiteUnderTest(tmp_path_factory.mktemp("damage"), pki, fake))


def delivered(site: SiteUnderTest) -> SiteUnderTest:
    site.config["targets"]["egi"] |= {"batch_records": 100, "sync": True}
    site.config["targets"]["sums"] = site.config["targets"]["egi"] | {"format": "apel-summary-0.4", "topic": "sums"}
    site.fake.allow(site.user, "sums")
    site.fill(*generate(1, JOBS, START, END))
    assert site.publish().status == 0
    with closing(sqlite3.connect(site.state)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")  # else most flips hit free pages
    shutil.copy(site.state, site.folder / "sound.db")
    return site


@pytest.fixture
def ledger(site: SiteUnderTest) -> Path:
    """As it was before any test."""
    for rest in ("-wal", "-shm"):
        site.state.with_name(site.state.name + rest).unlink(missing_ok=True)
    shutil.copy(site.folder / "sound.db", site.state)
    return site.state


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows, read without indexes."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        return {
            table.name: sorted(connection.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}"), key=repr)
            for table in tables()
        }


def is_noticed(path: Path) -> bool:
    try:
        with closing(open_database_to_read(path)) as database:
            return bool(disagreements(database))
    except LedgerError:
        return True


def flipped(ledger: Path, copy: Path, chance: random.Random) -> None:
    shutil.copy(ledger, copy)
    with copy.open("r+b") as file:
        at = chance.randrange(copy.stat().st_size)
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def walk(ledger: Path, flips: int, seed: int) -> tuple[int, int, list[object]]:
    """Flips that were noticed, that changed nothing, and rows that changed unnoticed."""
    chance, sound = random.Random(seed), content(ledger)
    noticed = harmless = 0
    missed: list[object] = []
    for _ in range(flips):
        copy = ledger.with_name("flipped.db")
        flipped(ledger, copy, chance)
        if is_noticed(copy):
            noticed += 1
            continue
        found = content(copy)
        harmless += found == sound
        missed += [(name, set(rows) ^ set(sound[name])) for name, rows in found.items() if rows != sound[name]]
    return noticed, harmless, missed


@pytest.mark.slow
def test_nearly_every_bit_that_flips_is_noticed(ledger: Path, record_property: Callable[[str, object], None]) -> None:
    assert not is_noticed(ledger)
    noticed, harmless, missed = walk(ledger, 300, 11)
    record_property("tried", 300)
    print(noticed, harmless, len(missed))
    assert noticed > 100
    assert len(missed) * 10 < noticed, missed


@pytest.mark.slow
def test_of_sixty_flips_that_changed_a_row_few_are_missed(ledger: Path) -> None:
    """56 of 60 were, without checksums."""
    chance, sound = random.Random(13), content(ledger)
    copy = ledger.with_name("flipped.db")
    noticed: list[bool] = []
    while len(noticed) < 60:
        flipped(ledger, copy, chance)
        told = is_noticed(copy)
        if told or content(copy) != sound:
            noticed.append(told)
    print(sum(noticed), "of", len(noticed))
    assert sum(noticed) >= 50


@pytest.mark.long
def test_of_two_thousand_flips_few_are_missed(ledger: Path) -> None:
    noticed, harmless, missed = walk(ledger, 2_000, 12)
    print(noticed, harmless, len(missed))
    assert len(missed) * 10 < noticed, missed


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET digest = zeroblob(8) WHERE run = (SELECT min(run) FROM entry)",
        "UPDATE entry SET local_id = 'another' WHERE run = (SELECT max(run) FROM entry)",
        "UPDATE entry SET wall_s = 'a row of another table' WHERE run = (SELECT min(run) FROM entry)",
        "UPDATE posting SET checksum = checksum + 1 WHERE id = (SELECT max(id) FROM posting)",
    ],
)
def test_damaged_entries_are_named(ledger: Path, site: SiteUnderTest, statement: str) -> None:
    """By a whole check: which entries a posting has is known by going through all of them."""
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute(statement)
    checked = site.run("state", "check")
    assert (checked.status, "postings with damaged entries: " in checked.out) == (74, True), checked.out


@pytest.mark.parametrize(
    ("what", "statement"),
    [
        ("damaged messages", f"UPDATE message SET digest = zeroblob(32) WHERE id = ({SENT})"),
        ("damaged rows of receivers", "UPDATE row_key SET fields = fields || ' ' WHERE id = 1"),
        ("damaged messages", f"UPDATE message SET made_at = made_at + 1024 WHERE id = ({SENT})"),
    ],
)
def test_a_damaged_row_is_named(ledger: Path, site: SiteUnderTest, what: str, statement: str) -> None:
    assert "is damaged" not in site.run("doctor").out
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute(statement)
    checked = site.run("state", "check")
    assert (checked.status, f"{what}: 1" in checked.out) == (74, True), checked.out
    looked = site.run("doctor")
    assert what in looked.out + looked.err


@pytest.mark.slow
def test_the_daily_look_finds_a_damaged_row_within_a_month(ledger: Path, site: SiteUnderTest) -> None:
    """Each day another part of the rows: the round of that day stops before anything is sent."""
    begun, day = datetime.now(UTC), 3
    part = (begun + timedelta(days=day)).toordinal() % 30
    with closing(sqlite3.connect(ledger)) as connection, connection:
        damaged = "SELECT min(id) FROM message WHERE checksum IS NOT NULL AND id % 30 = ?"
        connection.execute(f"UPDATE message SET digest = zeroblob(32) WHERE id = ({damaged})", [part])
    with closing(open_database_to_read(ledger)) as database:
        found = [damaged_in_sample(database, begun + timedelta(days=number)) for number in range(30)]
    assert [number for number, one in enumerate(found) if one] == [day]
    assert found[day] == [Disagreement("damaged messages", 1)]
    sent = len(site.fake.messages(PROJECT, TOPIC))
    site.fill(*generate(5, 3, START, END))
    (stopped, *_), (went_on, *_) = (round_after(site, timedelta(days=number)) for number in (day, day + 1))
    assert (stopped.exit_status, went_on.exit_status) == (74, 0)
    assert "the ledger is damaged: damaged messages; `publisher state check`" in stopped.reason
    assert len(site.fake.messages(PROJECT, TOPIC)) > sent


def round_after(site: SiteUnderTest, ahead: timedelta) -> list[Outcome]:
    settings = config.load(site.path, {}, host_name="ce01.example.org")
    process = ProcessEnvironment(
        environment={},
        clock=lambda: datetime.now(UTC) + ahead,
        monotonic=time.monotonic,
        wait=threading.Event().wait,
    )
    return publish(LiveSite(settings=settings, process=process), targets=[], observer=FatalObserver(0), force=True)
