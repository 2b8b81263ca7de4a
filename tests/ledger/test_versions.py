"""Ledgers of another schema are refused and left as they are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from publisher.ledger import schema
from publisher.ledger.sql.ledger import sql_ledger
from publisher.model.errors import LedgerError
from tests.arex_databases import generate
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.complaints import assert_plain
from tests.support.jobs import RECEIVER
from tests.support.ledgers import instance_of
from tests.support.postgres import PostgresServer
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS: Final = list(generate(1, 15, START, END))
NEWER, OLDER = schema.VERSION + 1, schema.VERSION - 1


@pytest.fixture
def filled(site: SiteUnderTest) -> SiteUnderTest:
    site.config["targets"]["egi"] |= {"batch_records": 4, "attempts": 1}
    site.fill(*JOBS)
    site.state.parent.mkdir()
    return site


@pytest.mark.parametrize(
    ("version", "advice"),
    [(NEWER, "install the publisher that wrote it"), (OLDER, "begin a new ledger")],
)
def test_another_schema_stops_everything_and_is_left_as_it_is(filled: SiteUnderTest, version: int, advice: str) -> None:
    assert filled.run("publish", "--force").status == 0
    sent = len(filled.fake.messages(PROJECT, TOPIC))
    with closing(sqlite3.connect(filled.state)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {version}")
    content = filled.state.read_bytes()
    copy = str(filled.folder / "copy.db")
    commands = [
        ["publish", "--force"],
        ["republish", "--from", "2026-10", "--to", "2026-10", "--yes"],
        ["status"],
        ["state", "check"],
        ["state", "backup", copy],
    ]
    for words in commands:
        assert_plain(filled.run(*words), 74, f"schema {version} is", advice)
    assert filled.state.read_bytes() == content
    assert len(filled.fake.messages(PROJECT, TOPIC)) == sent


@pytest.mark.parametrize("version", [NEWER, OLDER])
def test_another_schema_in_postgresql_stops_everything(postgres: PostgresServer, tmp_path: Path, version: int) -> None:
    import psycopg

    from publisher.ledger.postgres import connection
    from publisher.ledger.postgres.schema import name_of

    instance = instance_of(tmp_path / "site")
    with closing(sql_ledger(connection.open_database(postgres.address, instance))) as ledger:
        ledger.targets.begin_round("egi", start_rule="all", start=None, selection_digest="", receiver=RECEIVER)
    with psycopg.connect(postgres.address, autocommit=True) as opened:
        opened.execute(f"UPDATE {name_of(instance)}.about SET version = {version}".encode())
    for opening in (connection.open_database, connection.open_database_to_read):
        with pytest.raises(LedgerError, match=f"schema {version} is"):
            opening(postgres.address, instance)


def test_back_to_an_earlier_publisher_by_the_copy_from_before_the_update(filled: SiteUnderTest) -> None:
    """What docs/operations.md tells: back up, update, and if it has to be, put the copy back."""
    copy = filled.folder / "before.db"
    assert filled.run("publish", "--force", "--limit", "8", "--target", "egi").status == 0
    assert filled.run("state", "backup", str(copy)).status == 0
    assert filled.run("publish", "--force").status == 0
    for suffix in ("-wal", "-shm"):
        filled.state.with_name(filled.state.name + suffix).unlink(missing_ok=True)
    copy.replace(filled.state)
    held = filled.publish()
    assert held.status == 65
    for name, outcome in held.json["targets"].items():
        months = [one["month"] for one in outcome["held"]]
        assert not months or filled.run("receiver", "delivered", name, *months).status == 0
    assert filled.run("publish", "--force").status == 0
    assert {row["LocalJobId"] for row in filled.received(with_openssl=False)} == {
        job.local_job_id or job.job_id for job in JOBS
    }
    keys = [(row["LocalJobId"], row["EndTime"]) for row in filled.table().rows("JobRecords")]
    assert len(keys) == len(set(keys)) == len(JOBS)
