"""A ledger copied into another database and back, row by row."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from publisher.ledger.generation import UNFINISHED
from publisher.ledger.sql.database import Database
from publisher.ledger.sqlite.connection import open_database
from publisher.ledger.transfer import Transferred, compare, copy, tables
from tests.arex_databases import generate
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.daemons import RunningDaemon, until
from tests.support.ledgers import instance_of
from tests.support.postgres import PostgresServer
from tests.support.sites import SiteUnderTest, as_yaml

open_in_server = pytest.importorskip("publisher.ledger.postgres.connection").open_database
START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def used(site: SiteUnderTest) -> SiteUnderTest:
    """A site whose ledger has something in most tables."""
    site.config["targets"]["egi"] |= {"batch_records": 7, "sync": True}
    summaries = site.config["targets"]["egi"] | {"format": "apel-summary-0.4", "topic": "sums"}
    site.config["targets"]["sums"] = summaries
    site.fake.allow(site.user, "sums")
    site.fill(*generate(1, 60, START, END))
    assert site.publish().status == 0
    return site


def elsewhere(site: SiteUnderTest, server: PostgresServer) -> list[str]:
    return ["--to", server.address, "--instance", instance_of(site.path)]


@pytest.mark.slow
def test_a_ledger_goes_to_postgresql_and_back_and_rounds_go_on(
    used: SiteUnderTest, postgres: PostgresServer, tmp_path: Path
) -> None:
    copied = used.run("state", "copy", "--json", *elsewhere(used, postgres))
    assert copied.status == 0, copied.err
    assert copied.json["tables"]["message"]["rows"] == copied.json["tables"]["message"]["written"] > 9
    delivered = used.run("status", "--json").json["targets"]
    here = {"state": postgres.address, "instance": instance_of(used.path), "state_directory": str(used.state.parent)}
    used.config |= here
    used.save()
    assert used.run("status", "--json").json["targets"] == delivered
    assert used.publish().json["targets"]["egi"]["outcome"] == "nothing"
    used.fill(*generate(2, 30, START, END))
    assert used.publish().status == 0
    assert used.run("state", "check").status == 0
    back = tmp_path / "back" / "publishing.db"
    assert used.run("state", "copy", "--to", str(back)).status == 0
    assert used.run("state", "check", "--with", str(back)).status == 0
    for key in here:
        del used.config[key]
    used.config["state"] = str(back)
    used.save()
    assert used.publish().json["targets"]["egi"]["outcome"] == "nothing"
    used.assert_received(*generate(1, 60, START, END), *generate(2, 30, START, END))


@pytest.mark.slow
def test_what_was_copied_is_compared_and_what_changed_is_brought_up_to_it(
    used: SiteUnderTest, postgres: PostgresServer
) -> None:
    assert used.run("state", "copy", *elsewhere(used, postgres)).status == 0
    used.fill(*generate(3, 20, START, END))
    assert used.publish().status == 0
    again = used.run("state", "copy", "--json", *elsewhere(used, postgres)).json["tables"]
    assert 0 < again["message"]["written"] < again["message"]["rows"]
    third = used.run("state", "copy", "--json", *elsewhere(used, postgres)).json["tables"]
    assert {name for name, table in third.items() if table["written"]} == set()


@pytest.mark.parametrize("tables_done", [1, 5, 9])
def test_a_copy_that_was_broken_off_goes_on(used: SiteUnderTest, postgres: PostgresServer, tables_done: int) -> None:
    done: list[Transferred] = []

    def broken_off(table: Transferred) -> None:
        done.append(table)
        if len(done) == tables_done:
            raise KeyboardInterrupt

    with (
        closing(open_database(used.state)) as source,
        closing(open_in_server(postgres.address, instance_of(used.path))) as destination,
        pytest.raises(KeyboardInterrupt),
    ):
        copy(source, destination, broken_off)
    there = [one.replace("--to", "--with") for one in elsewhere(used, postgres)]
    assert used.run("state", "check", *there).status == 74
    again = used.run("state", "copy", "--json", *elsewhere(used, postgres))
    assert again.status == 0, again.err
    assert not any(again.json["tables"][one.table]["written"] for one in done)
    assert used.run("state", "check", *there).status == 0


@pytest.mark.parametrize("in_server", [False, True])
@pytest.mark.parametrize("tables_done", [1, 5])
@pytest.mark.slow
def test_no_round_begins_with_a_copy_that_was_broken_off(
    used: SiteUnderTest, postgres: PostgresServer, tmp_path: Path, tables_done: int, in_server: bool
) -> None:
    """It knows jobs that it would not count, and so would send a month without them."""
    done: list[Transferred] = []

    def broken_off(table: Transferred) -> None:
        done.append(table)
        if len(done) == tables_done:
            raise KeyboardInterrupt

    here = dict(used.config)
    file, instance = tmp_path / "there" / "publishing.db", instance_of(used.path)
    server = {"state": postgres.address, "instance": instance, "state_directory": str(file.parent)}
    there = server if in_server else {"state": str(file)}
    opened = open_in_server(postgres.address, instance) if in_server else open_database(file)
    with (
        closing(open_database(used.state)) as source,
        closing(opened) as destination,
        pytest.raises(KeyboardInterrupt),
    ):
        copy(source, destination, broken_off)
    sent = {topic: len(used.fake.messages(PROJECT, topic)) for topic in (TOPIC, "sums")}
    used.config = here | there
    used.save()
    for options in ([], ["--accept-state"]):
        run = used.publish(*options)
        assert run.status == 74, run.err
        assert "is a copy that was broken off: run the same `publisher state copy` again" in run.err
    assert "is a copy that was broken off" in " ".join(used.run("doctor").out.split())
    for command in (["copy", "--to", str(tmp_path / "copy.db")], ["backup", str(tmp_path / "backup.db")]):
        run = used.run("state", *command)
        assert (run.status, "is a copy that was broken off" in run.err) == (74, True), run.err
    assert {topic: len(used.fake.messages(PROJECT, topic)) for topic in sent} == sent
    used.config = here
    used.save()
    to = elsewhere(used, postgres) if in_server else ["--to", str(file)]
    assert used.run("state", "copy", *to).status == 0
    used.config = here | there
    used.save()
    assert {one["outcome"] for one in used.publish().json["targets"].values()} == {"nothing"}


class Interrupted:
    """A database whose process dies before one of its transactions."""

    def __init__(self, database: Database, transactions: int) -> None:
        self._database, self._left = database, transactions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def atomic(self) -> AbstractContextManager[None]:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return self._database.atomic()


@pytest.mark.parametrize("goes_on", [False, True])
def test_wherever_a_copy_is_broken_off_it_says_so(used: SiteUnderTest, tmp_path: Path, goes_on: bool) -> None:
    """Of each receiver, also where its row is another by now: one that is not there would be begun anew."""
    first = tmp_path / "first" / "publishing.db"
    first.parent.mkdir()
    if goes_on:
        assert used.run("state", "copy", "--to", str(first)).status == 0
        used.fill(*generate(3, 20, START, END))
        assert used.publish().status == 0
    for transactions in range(100):
        file = tmp_path / str(transactions) / "publishing.db"
        file.parent.mkdir()
        if goes_on:
            shutil.copy(first, file)
        with closing(open_database(used.state)) as source, closing(open_database(file)) as destination:
            try:
                copy(source, cast("Database", Interrupted(destination, transactions)), lambda _: None)
            except KeyboardInterrupt:
                found = [one for (one,) in destination.execute("SELECT generation FROM receiver").fetchall()]
                begun = transactions > int(not goes_on)  # an empty ledger has nothing to say so of
                assert found == [UNFINISHED, UNFINISHED] or not begun
            else:
                assert transactions > 10
                return
    raise AssertionError("it never ends")


def test_what_must_be_unique_may_have_another_number_by_now(tmp_path: Path) -> None:
    """As in a ledger whose jobs were all set aside anew since it was copied."""
    with (
        closing(open_database(tmp_path / "state" / "here.db")) as source,
        closing(open_database(tmp_path / "state" / "there.db")) as destination,
    ):
        for numbers in (range(1200), range(1200, 0, -1)):
            with source.atomic():
                source.execute("DELETE FROM quarantine")
                source.execute_many(
                    "INSERT INTO quarantine (target, key, job_id, local_id, file, record_id, rule, reason,"
                    " fingerprint, hold, policy_digest, since) VALUES (1, :key, '', '', '', 1, '', '', 0, '', '', 0)",
                    [{"key": number.to_bytes(2, "big")} for number in numbers],
                )
            copy(source, destination, lambda _: None)
            assert not compare(source, destination)


def test_a_row_that_differs_is_named(used: SiteUnderTest, postgres: PostgresServer) -> None:
    assert used.run("state", "copy", *elsewhere(used, postgres)).status == 0
    schema = f'"publisher_{instance_of(used.path)}"'
    postgres.sql(f"UPDATE {schema}.message SET records = records + 1 WHERE id = 3")
    there = [one.replace("--to", "--with") for one in elsewhere(used, postgres)]
    checked = used.run("state", "check", *there)
    assert checked.status == 74
    assert "differs: message (3,)" in checked.out
    assert "this ledger differs" in checked.err
    assert "damaged" not in checked.err


def test_a_file_that_is_not_there_is_no_ledger_to_compare_with(used: SiteUnderTest, tmp_path: Path) -> None:
    checked = used.run("state", "check", "--with", str(tmp_path / "missing.db"))
    assert (checked.status, "missing.db does not exist" in checked.err) == (64, True)


def test_a_destination_that_was_used_since_is_not_set_back(used: SiteUnderTest, postgres: PostgresServer) -> None:
    assert used.run("state", "copy", *elsewhere(used, postgres)).status == 0
    file = used.config["state"]
    used.config |= {"state": postgres.address, "instance": instance_of(used.path)}
    used.config["state_directory"] = str(used.state.parent)
    used.save()
    used.fill(*generate(2, 30, START, END))
    assert used.publish().status == 0
    used.config["state"] = file
    del used.config["instance"], used.config["state_directory"]
    used.save()
    refused = used.run("state", "copy", *elsewhere(used, postgres))
    assert refused.status == 74
    assert "is no copy of this one, or was used since; nothing was changed" in refused.err


def test_the_ledger_of_another_ce_is_not_overwritten(used: SiteUnderTest, tmp_path: Path) -> None:
    """Also where this ledger has a message for every number that the other one gave."""
    other = used.state
    used.config["state"] = str(tmp_path / "longer" / "publishing.db")
    used.save()
    used.fill(*generate(2, 30, START, END))
    assert used.publish().status == 0
    refused = used.run("state", "copy", "--to", str(other))
    assert refused.status == 74
    assert "it is no copy of this one, or was used since; nothing was changed" in refused.err


def test_a_backup_is_a_ledger(used: SiteUnderTest, tmp_path: Path) -> None:
    assert used.run("state", "backup", str(tmp_path / "backup.db")).status == 0
    assert used.run("state", "check", "--with", str(tmp_path / "backup.db")).status == 0
    refused = used.run("state", "backup", str(tmp_path / "backup.db"))
    assert (refused.status, "exists already" in refused.err) == (64, True)


def test_a_backup_that_cannot_be_written(used: SiteUnderTest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, reason in (("no/where", "No such file or directory"), ("file", "Not a directory")):
        file = tmp_path / place / "backup.db"
        refused = used.run("state", "backup", str(file))
        assert (refused.status, refused.err) == (
            64,
            f"publisher: {file} cannot be written: {reason}; name another file\n",
        )


@pytest.mark.slow
@pytest.mark.parametrize("ledger", ["sqlite", "postgres"])
def test_backups_while_a_round_goes_on_are_consistent(
    site: SiteUnderTest, tmp_path: Path, request: pytest.FixtureRequest, ledger: str
) -> None:
    if ledger == "postgres":
        request.getfixturevalue("ledger_in_postgres")
    site.config["targets"]["egi"] |= {"batch_records": 1}
    site.fill(*generate(1, 150, START, END))
    site.save()
    with RunningDaemon(site) as daemon:
        for number in range(4):
            site.fake.wait_for_messages(30 * number + 1)
            made = site.run("state", "backup", str(tmp_path / f"backup{number}.db"))
            assert made.status == 0, made.err
        until(lambda: len(site.fake.messages(PROJECT, TOPIC)) >= 150, daemon.text)
        assert daemon.end() == 0
    known = []
    for key in ("instance", "state_directory"):
        site.config.pop(key, None)
    for number in range(4):
        site.config["state"] = str(tmp_path / f"backup{number}.db")
        site.path.write_text(as_yaml(site.config))
        checked = site.run("state", "check")
        assert checked.status == 0, checked.out
        with closing(sqlite3.connect(site.config["state"])) as backup:
            known += backup.execute("SELECT count(*) FROM message").fetchone()
    assert known == sorted(known)
    assert 0 < known[0] < known[3] <= 150


def test_sums_that_do_not_agree_are_named(used: SiteUnderTest) -> None:
    with closing(sqlite3.connect(used.state)) as connection, connection:
        connection.execute("UPDATE target SET accepted_records = accepted_records + 1")
        connection.execute("DELETE FROM message WHERE id = 1")
    checked = used.run("state", "check")
    assert checked.status == 74
    assert "targets whose accepted records are not as many as counted: 2" in checked.out
    assert "targets whose accepted messages are not as many as counted" in checked.out


def test_nobody_works_meanwhile(used: SiteUnderTest, postgres: PostgresServer) -> None:
    with closing(open_database(used.state)) as database, database.target_lock("egi", lambda: False):
        refused = used.run("state", "copy", *elsewhere(used, postgres))
    assert (refused.status, "another publisher is at work on it" in refused.err) == (75, True)


def test_every_column_of_every_table_is_copied(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "state" / "publishing.db")) as database:
        made = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert made - {"sqlite_sequence"} == {table.name for table in tables()}
        for table in tables():
            found = [column[1] for column in database.execute(f"PRAGMA table_info({table.name})")]
            assert found == list(table.columns)
