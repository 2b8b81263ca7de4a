"""Ledgers of every earlier schema go on as they are, and those of a later one are refused.

`schema_<version>.sql` is a ledger as that version left it: of fifteen jobs twelve were delivered, and a message with the other
three is in doubt. Whoever raises the version adds the file of the one before.
"""

from __future__ import annotations

import sqlite3
from base64 import b64decode
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from publisher.ledger import schema
from publisher.ledger.sql.ledger import SqlLedger
from tests.arex_databases import generate
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.complaints import assert_plain
from tests.support.ledgers import instance_of
from tests.support.postgres import PostgresServer
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS: Final = list(generate(1, 15, START, END))
EARLIER: Final = range(1, schema.VERSION)


def dump_of(version: int) -> str:
    return Path(__file__).with_name(f"schema_{version}.sql").read_text(encoding="utf-8")


@pytest.fixture
def earlier(site: SiteUnderTest) -> SiteUnderTest:
    """As the site was that these ledgers are of."""
    site.config["targets"]["egi"] |= {"batch_records": 4, "sync": True, "attempts": 1}
    site.config["targets"]["sums"] = site.config["targets"]["egi"] | {"format": "apel-summary-0.4", "topic": "sums"}
    site.fake.allow(site.user, "sums")
    site.fill(*JOBS)
    site.state.parent.mkdir()
    return site


def restore(site: SiteUnderTest, version: int) -> None:
    with closing(sqlite3.connect(site.state)) as connection:
        connection.executescript(dump_of(version).replace("@SITE@", str(site.folder)))
        connection.execute("PRAGMA journal_mode = WAL")


def layout(path: Path) -> dict[str, Any]:
    """Tables with their columns, and indexes."""
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
        return {
            name: sorted(connection.execute(f"PRAGMA {kind}_xinfo({name})").fetchall(), key=lambda row: str(row[1:]))
            for kind, name in names
        }


@pytest.mark.parametrize("version", EARLIER)
def test_it_becomes_what_a_new_one_is(earlier: SiteUnderTest, version: int) -> None:
    restore(earlier, version)
    assert earlier.run("publish", "--force").status == 0
    with closing(sqlite3.connect(earlier.state)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    upgraded = layout(earlier.state)
    earlier.state = earlier.folder / "new" / "publishing.db"
    earlier.config["state"] = str(earlier.state)
    earlier.save()
    assert earlier.run("publish", "--force").status == 0
    assert upgraded == layout(earlier.state)


@pytest.mark.parametrize("version", EARLIER)
def test_nothing_goes_again_but_what_was_in_doubt(earlier: SiteUnderTest, version: int) -> None:
    restore(earlier, version)
    looked = earlier.run("status", "--json")
    assert (looked.status, looked.json["targets"]["egi"]["in_doubt"]) == (0, 3), looked.err
    with closing(sqlite3.connect(earlier.state)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (version,), "looking changes nothing"
    assert earlier.run("publish", "--force").status == 0
    received = earlier.received(with_openssl=False)
    assert sorted(row["LocalJobId"] for row in received) == sorted(job.local_job_id or job.job_id for job in JOBS[12:])
    # Counts are due again a day after the last ones.
    assert all(b"APEL-sync-message" in b64decode(one.data) for one in earlier.fake.messages(PROJECT, "sums"))
    assert earlier.run("state", "check").status == 0
    sent = len(earlier.fake.messages(PROJECT, TOPIC))
    assert earlier.run("publish", "--force").status == 0
    assert len(earlier.fake.messages(PROJECT, TOPIC)) == sent
    assert earlier.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes").status == 0
    earlier_jobs = {job.local_job_id or job.job_id for job in JOBS}
    assert {row["LocalJobId"] for row in earlier.received(with_openssl=False)} == earlier_jobs


@pytest.mark.parametrize("version", EARLIER)
def test_in_postgresql_it_becomes_what_a_new_one_is(postgres: PostgresServer, tmp_path: Path, version: int) -> None:
    import psycopg

    from publisher.ledger.postgres import connection
    from publisher.ledger.postgres import schema as server_schema

    def columns(instance: str) -> list[Any]:
        with psycopg.connect(postgres.address) as opened:
            return opened.execute(
                "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns "
                "WHERE table_schema = %s AND column_default NOT LIKE 'nextval%%' IS NOT FALSE ORDER BY 1, 2",
                [f"{server_schema.PREFIX}{instance}"],
            ).fetchall()

    old, new = instance_of(tmp_path / "old"), instance_of(tmp_path / "new")
    made = [one for one in dump_of(version).split(";\n") if one.startswith("CREATE")]
    script = server_schema._spelled(";\n".join(made) + ";\n" + server_schema._OWN)
    with psycopg.connect(postgres.address, autocommit=True) as opened:
        opened.execute(f"CREATE SCHEMA {server_schema.name_of(old)}".encode())
        opened.execute(f"SET search_path = {server_schema.name_of(old)}".encode())
        for statement in filter(str.strip, script.split(";")):
            opened.execute(statement.encode())
        opened.execute("INSERT INTO about (version) VALUES (%s)", [version])
    for instance in (old, new):
        with closing(SqlLedger(connection.open_database(postgres.address, instance))) as ledger:
            ledger.begin_round("egi", start_rule="all", start=None, selection_digest="")
    assert columns(old) == columns(new)


def test_a_later_one_stops_everything_and_is_left_as_it_is(earlier: SiteUnderTest) -> None:
    assert earlier.run("publish", "--force").status == 0
    sent = len(earlier.fake.messages(PROJECT, TOPIC))
    with closing(sqlite3.connect(earlier.state)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    content = earlier.state.read_bytes()
    for words in (["publish", "--force"], ["republish", "--from", "2026-10", "--to", "2026-10", "--yes"], ["status"]):
        assert_plain(earlier.run(*words), 74, "is newer than", "install the publisher that wrote it")
    assert earlier.state.read_bytes() == content
    assert len(earlier.fake.messages(PROJECT, TOPIC)) == sent


def test_back_to_an_earlier_publisher_by_the_copy_from_before_the_update(earlier: SiteUnderTest) -> None:
    """What docs/operations.md tells: back up, update, and if it has to be, put the copy back and accept it."""
    copy = earlier.folder / "before.db"
    assert earlier.run("publish", "--force", "--limit", "8", "--target", "egi").status == 0
    assert earlier.run("state", "backup", str(copy)).status == 0
    assert earlier.run("publish", "--force").status == 0
    for suffix in ("-wal", "-shm"):
        earlier.state.with_name(earlier.state.name + suffix).unlink(missing_ok=True)
    copy.replace(earlier.state)
    assert earlier.run("publish", "--force").status == 74
    assert earlier.run("publish", "--force", "--accept-state").status == 0
    assert {row["LocalJobId"] for row in earlier.received(with_openssl=False)} == {
        job.local_job_id or job.job_id for job in JOBS
    }
    keys = [(row["LocalJobId"], row["EndTime"]) for row in earlier.table().rows("JobRecords")]
    assert len(keys) == len(set(keys)) == len(JOBS)
