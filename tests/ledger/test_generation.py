"""A ledger that went back in time, was copied, or lives twice: noticed before anything is sent, and taken only when told."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

import publisher.cli.site
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.daemons import RunningDaemon, until
from tests.support.ledgers import instance_of
from tests.support.postgres import PostgresServer
from tests.support.sites import Run, SiteUnderTest, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = list(generate(1, 40, START, END))
Restore = Callable[[], None]


class Ledgers:
    """The ledger of a site, which can be put back to what it was."""

    def __init__(self, site: SiteUnderTest) -> None:
        self.site = site
        site.config["targets"]["egi"] |= {"batch_records": 5}
        site.save()

    def keep(self) -> Restore:
        """What it is now; calling the answer puts that in place of what it has become."""
        folder = self.site.folder / f"kept{len(list(self.site.folder.iterdir()))}"
        folder.mkdir()
        with closing(sqlite3.connect(self.site.state)) as connection:
            connection.execute("VACUUM INTO ?", [str(folder / "publishing.db")])
        return lambda: self.put(folder / "publishing.db")

    def put(self, file: Path) -> None:
        self.remove()
        shutil.copy(file, self.site.state)

    def remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.site.state.with_name(self.site.state.name + suffix).unlink(missing_ok=True)


class PostgresLedgers(Ledgers):
    def __init__(self, site: SiteUnderTest, server: PostgresServer) -> None:
        super().__init__(site)
        self.server = server

    def keep(self) -> Restore:
        self._end_connections()
        self.server.sql("DROP DATABASE IF EXISTS older", database="postgres")
        self.server.sql("CREATE DATABASE older TEMPLATE site OWNER publisher", database="postgres")
        return self._restore

    def _restore(self) -> None:
        self.server.sql("DROP DATABASE site WITH (FORCE)", database="postgres")
        self.server.sql("ALTER DATABASE older RENAME TO site", database="postgres")

    def remove(self) -> None:
        self.server.sql(f'DROP SCHEMA "publisher_{instance_of(self.site.state)}" CASCADE')

    def _end_connections(self) -> None:
        self.server.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'site'", database="postgres"
        )


@pytest.fixture(params=["sqlite", "postgres"])
def ledgers(request: pytest.FixtureRequest, site: SiteUnderTest) -> Ledgers:
    site.config["targets"]["egi"] |= {"attempts": 2, "retry_budget_s": 1}
    if request.param == "sqlite":
        return Ledgers(site)
    request.getfixturevalue("ledger_in_postgres")
    return PostgresLedgers(site, request.getfixturevalue("postgres"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Says which machine this is."""
    file = tmp_path / "machine-id"
    monkeypatch.setattr(publisher.cli.site, "MACHINE_ID", file)
    return lambda name: file.write_text(f"{name}\n")


def generation_file(site: SiteUnderTest) -> Path:
    return site.state.with_name("publishing.db.egi.generation")


def sent(site: SiteUnderTest) -> int:
    return len(site.fake.messages(PROJECT, TOPIC))


def assert_stopped(site: SiteUnderTest, *why: str, command: tuple[str, ...] = ("publish", "--force")) -> Run:
    """No round begins, and nothing is sent."""
    before = sent(site)
    run = site.run(*command)
    assert run.status == 74, run.err
    for text in (*why, "--accept-state", "nothing was sent"):
        assert text in run.err, run.err
    assert sent(site) == before
    return run


def assert_all_arrived(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    """Each job is at the receiver once by its keys."""
    rows = site.table().rows("JobRecords")
    assert len(rows) == len(jobs)
    assert {row["LocalJobId"] for row in rows} == {truth(job)[0] for job in jobs}


def use_once(ledgers: Ledgers) -> Restore:
    """Half of the jobs are delivered; gives the way back to that."""
    ledgers.site.fill(*JOBS[:20])
    assert ledgers.site.publish().status == 0
    return ledgers.keep()


def use_twice(ledgers: Ledgers) -> Restore:
    """Half of the jobs are delivered, then the other half; gives the way back to the first half."""
    restore = use_once(ledgers)
    ledgers.site.fill(*JOBS[20:])
    assert ledgers.site.publish().status == 0
    return restore


def test_an_older_ledger_stops_the_round_until_it_is_accepted(ledgers: Ledgers) -> None:
    site = ledgers.site
    use_twice(ledgers)()
    again = "4 messages with 20 records would be sent again"
    assert_stopped(site, "went back in time", again)
    assert_stopped(site, "went back in time", again)
    accepted = site.run("publish", "--force", "--accept-state")
    assert accepted.status == 0, accepted.err
    assert "accepted: the ledger went back in time" in accepted.err
    assert again in accepted.err
    assert sent(site) == 12
    assert_all_arrived(site, JOBS)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


def test_a_ledger_that_is_gone_stops_the_round(ledgers: Ledgers) -> None:
    use_twice(ledgers)
    ledgers.remove()
    assert_stopped(ledgers.site, "went back in time", "8 messages with 40 records")
    assert ledgers.site.publish("--accept-state").json["targets"]["egi"]["records"] == 40
    assert_all_arrived(ledgers.site, JOBS)


def test_a_republish_stops_too(ledgers: Ledgers) -> None:
    use_twice(ledgers)()
    command = ("republish", "--from", "2026-10-01", "--to", "2026-11-01", "--yes")
    assert_stopped(ledgers.site, "went back in time", command=command)
    assert ledgers.site.run(*command, "--accept-state").status == 0
    assert_all_arrived(ledgers.site, JOBS)


def test_a_daemon_stops_too(ledgers: Ledgers) -> None:
    site = ledgers.site
    use_twice(ledgers)()
    before = sent(site)
    site.config["targets"]["egi"] |= {"every": "1s"}
    with RunningDaemon(site) as daemon:
        daemon.wait_for("went back in time", times=2)  # in the next round, too
        assert sent(site) == before
    with RunningDaemon(site, "--accept-state") as daemon:
        until(lambda: sent(site) == 12, daemon.text)
        assert daemon.end() == 0
    assert_all_arrived(site, JOBS)


def test_doctor_tells_of_it(ledgers: Ledgers) -> None:
    use_twice(ledgers)()
    looked = ledgers.site.run("doctor")
    assert "went back in time" in looked.out + looked.err


def test_the_newer_ledger_that_is_found_after_all_has_to_be_accepted_again(ledgers: Ledgers) -> None:
    """Both were used: what each of them lacks of the other cannot be merged."""
    site = ledgers.site
    use_twice(ledgers)
    newer = ledgers.keep()
    ledgers.remove()
    site.config["targets"]["egi"] |= {"batch_records": 4}
    site.save()
    assert site.publish("--accept-state").status == 0
    newer()
    assert_stopped(site, "went back in time")
    assert site.publish("--accept-state").status == 0
    assert_all_arrived(site, JOBS)


def test_a_crash_between_the_ledger_and_the_file_is_no_alarm(ledgers: Ledgers) -> None:
    """Also a loss of power, which may leave a file that is much older."""
    site = ledgers.site
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    older = generation_file(site).read_bytes()
    assert len(older) == 512
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    newer = json.loads(generation_file(site).read_bytes())
    generation_file(site).write_bytes(older)
    assert site.publish().status == 0
    assert json.loads(generation_file(site).read_bytes())["message_id"] == newer["message_id"]
    site.assert_received(*JOBS)


def test_a_ledger_that_lacks_the_message_in_flight_stops_the_round(ledgers: Ledgers) -> None:
    """Nobody knows whether it arrived, and its records would leave under another id."""
    site = ledgers.site
    restore = use_once(ledgers)
    site.fake.faults.push(Fault.store_then_close())
    site.fake.faults.always(Fault.status(503))
    site.fill(*JOBS[20:25])
    assert site.publish().status == 75
    restore()
    site.fake.faults.clear()
    assert_stopped(site, "went back in time", "was in flight", "would be sent again")
    assert site.run("publish", "--force", "--accept-state").status == 0
    assert site.publish().status == 0


def test_the_very_first_message_may_be_the_one_that_the_ledger_lacks(ledgers: Ledgers) -> None:
    site = ledgers.site
    site.fill()
    assert site.publish().status == 0
    restore = ledgers.keep()
    site.fake.faults.push(Fault.store_then_close())
    site.fake.faults.always(Fault.status(503))
    site.fill(*JOBS[:5])
    assert site.publish().status == 75
    restore()
    site.fake.faults.clear()
    assert_stopped(site, "went back in time", "was in flight")


def test_a_message_that_was_cut_in_two_is_no_alarm(ledgers: Ledgers) -> None:
    """Its row is gone from the ledger on purpose."""
    site = ledgers.site
    site.fill(*JOBS[:20])
    site.fake.faults.push(Fault.status(413))
    site.fake.faults.always(Fault.status(503))
    assert site.publish().status == 75
    site.fake.faults.clear()
    assert site.publish().status == 0
    site.assert_received(*JOBS[:20])


def test_a_half_may_have_the_number_of_the_message_that_was_cut(site: SiteUnderTest) -> None:
    """So the file names a half, and not what was cut."""
    site.fill(*JOBS[:20])
    site.fake.faults.push(Fault.status(413))
    assert site.publish().status == 0
    begun = json.loads(generation_file(site).read_bytes())["begun_id"]
    with closing(sqlite3.connect(site.state)) as ledger:
        assert begun in {text for (text,) in ledger.execute("SELECT message_id FROM message")}


def test_a_message_that_was_given_up_is_no_alarm(ledgers: Ledgers) -> None:
    """It was never handed over, and its row is gone from the ledger on purpose."""
    site = ledgers.site
    site.fill(*JOBS[:20])
    site.fake.faults.always(Fault.status(401))
    assert site.publish().status == 77
    assert json.loads(generation_file(site).read_bytes())["begun"] == 0
    site.fake.faults.clear()
    assert site.publish().status == 0
    site.assert_received(*JOBS[:20])


def test_a_ledger_without_its_log_stops_the_round(site: SiteUnderTest) -> None:
    ledgers = Ledgers(site)
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    # Whoever reads keeps the log from being copied into the file when the round ends.
    with closing(sqlite3.connect(site.state)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM message").fetchone()
        site.fill(*JOBS[20:])
        assert site.publish().status == 0
        without_log = site.state.read_bytes()
    ledgers.remove()
    site.state.write_bytes(without_log)
    assert_stopped(site, "went back in time", "would be sent again")
    assert site.publish("--accept-state").status == 0
    assert_all_arrived(site, JOBS)


def test_a_ledger_that_was_restored_on_a_new_machine_stops_the_round(site: SiteUnderTest, tmp_path: Path) -> None:
    """The machine was lost, and the file with it."""
    restore = use_twice(Ledgers(site))
    generation_file(site).unlink()
    restore()
    assert_stopped(site, "was restored or copied", "delivered after 20")
    assert site.publish("--accept-state").status == 0
    assert_all_arrived(site, JOBS)


def test_a_state_directory_that_was_restored_as_a_whole_stops_the_round(site: SiteUnderTest, tmp_path: Path) -> None:
    """Ledger and file agree, but the file is not the one that was written here."""
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    shutil.copytree(site.state.parent, tmp_path / "backup")
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    site.state.parent.rename(tmp_path / "lost")
    shutil.copytree(tmp_path / "backup", site.state.parent)
    assert_stopped(site, "was restored or copied", "delivered after 20")
    assert site.publish("--accept-state").status == 0
    assert_all_arrived(site, JOBS)


def test_a_state_directory_that_was_copied_to_another_host_stops_the_round_there(
    site: SiteUnderTest, machine: Callable[[str], object]
) -> None:
    machine("first")
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    site.fill(*JOBS[20:])
    machine("second")
    assert_stopped(site, "was in use on another host")
    machine("first")
    assert site.publish().status == 0
    machine("second")
    assert site.publish("--accept-state").json["targets"]["egi"]["outcome"] == "nothing"
    assert site.publish().status == 0
    machine("first")
    assert_stopped(site, "was in use on another host")


def test_a_ledger_that_comes_back_from_another_host_may_lack_what_was_sent_here(
    site: SiteUnderTest, tmp_path: Path, machine: Callable[[str], object]
) -> None:
    """It was accepted there, and not here."""
    ledgers, lent, here = Ledgers(site), tmp_path / "there" / "publishing.db", site.state
    machine("first")
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    lent.parent.mkdir()
    shutil.copy(here, lent)
    machine("second")
    site.config["state"] = str(lent)
    site.save()
    assert site.publish("--accept-state").status == 0
    machine("first")
    site.config["state"] = str(here)
    site.save()
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    ledgers.put(lent)
    assert_stopped(site, "went back in time", "4 messages with 20 records would be sent again")
    assert site.publish("--accept-state").status == 0
    assert_all_arrived(site, JOBS)


def test_a_host_that_does_not_say_who_it_is_is_no_alarm(site: SiteUnderTest, machine: Callable[[str], object]) -> None:
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    machine("first")
    site.fill(*JOBS[20:])
    assert site.publish().status == 0


def test_each_host_of_a_pair_has_a_file_and_an_acceptance_holds_for_both(
    site: SiteUnderTest, ledger_in_postgres: None, postgres: PostgresServer, machine: Callable[[str], object]
) -> None:
    ledgers = PostgresLedgers(site, postgres)

    def on(host: str, *options: str) -> Run:
        machine(host)
        site.config["state_directory"] = str(site.folder / host)
        site.save()
        return site.run("publish", "--force", *options)

    site.fill(*JOBS[:10])
    assert on("first").status == 0
    restore = ledgers.keep()
    site.fill(*JOBS[10:20])
    assert on("second").status == 0
    site.fill(*JOBS[20:])
    assert on("first").status == 0
    assert on("second").status == 0
    restore()
    assert on("second").status == 74
    assert on("first").status == 74
    assert on("first", "--accept-state").status == 0
    assert on("second").status == 0
    assert_all_arrived(site, JOBS)


def test_a_damaged_file_stops_the_round(site: SiteUnderTest) -> None:
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    generation_file(site).write_bytes(b"\0" * 512)
    assert_stopped(site, "record of it", "damaged")
    assert site.publish("--accept-state").status == 0
    assert site.publish().status == 0


def test_a_file_that_cannot_be_written_says_so(site: SiteUnderTest) -> None:
    generation_file(site).parent.mkdir(parents=True)
    generation_file(site).mkdir()
    site.fill(*JOBS[:20])
    run = site.run("publish", "--force")
    assert (run.status, str(generation_file(site)) in run.err) == (74, True)
    assert sent(site) == 0


def test_a_copy_on_purpose_is_no_alarm(site: SiteUnderTest, tmp_path: Path) -> None:
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    there = tmp_path / "there" / "publishing.db"
    assert site.run("state", "copy", "--to", str(there)).status == 0
    site.config["state"] = str(there)
    site.save()
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    site.assert_received(*JOBS)
