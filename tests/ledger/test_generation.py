"""A ledger that went back in time is held; one that was copied or lives twice is taken when told; nothing is sent before."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import publisher.cli.site
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.daemons import RunningDaemon
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
    (file,) = site.state.parent.glob("publishing.db.+receiver-*.generation")
    return file


def recorded(site: SiteUnderTest) -> Any:
    return json.loads(generation_file(site).read_bytes())


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


def assert_held(site: SiteUnderTest, *why: str) -> Any:
    """October is held, and nothing is sent; returns what is said of it."""
    before = sent(site)
    run = site.publish()
    assert run.status == 65, run.err
    assert sent(site) == before
    for text in ("the ledger was restored or lost", "publisher receiver delivered egi 2026-10", *why):
        assert text in run.err, run.err
    (held,) = run.json["targets"]["egi"]["held"]
    assert (held["month"], held["restored"]["differs"]) == ("2026-10", True)
    return held["restored"]


def delivered(site: SiteUnderTest, *options: str) -> Run:
    return site.run("receiver", "delivered", "egi", "2026-10", "--json", *options)


def assert_taken(site: SiteUnderTest) -> None:
    """The month is taken as delivered, job by job what counted before; nothing is sent again, and all is sound."""
    before, run = sent(site), delivered(site)
    assert run.status == 0, run.err
    assert [(one["is_same"], one["is_taken"]) for one in run.json["months"]] == [(True, True)]
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert sent(site) == before
    assert site.run("sync", "--check").status == 0
    assert site.run("state", "check").status == 0
    assert_all_arrived(site, JOBS)


@pytest.mark.slow
def test_rule_22_an_older_ledger_is_held_and_nothing_is_sent_again(ledgers: Ledgers) -> None:
    site = ledgers.site
    use_twice(ledgers)()
    held = assert_held(site, "went back in time", "the receiver should have 40 jobs, the ledger has 20 jobs")
    assert (held["jobs"], held["counted"], held["waiting"]) == (40, 20, 20)
    assert_held(site)  # in each round, until somebody acts
    assert site.run("status", "--nagios").status == 1
    assert_taken(site)
    assert site.run("status", "--nagios").status == 0


@pytest.mark.slow
def test_rule_22_a_ledger_that_is_lost_is_held(ledgers: Ledgers) -> None:
    use_twice(ledgers)
    ledgers.remove()
    assert_held(
        ledgers.site, "the receiver should have 40 jobs, the ledger has 0 jobs, 40 jobs that may be delivered wait"
    )
    assert_taken(ledgers.site)


@pytest.mark.slow
def test_rule_22_a_month_that_is_not_what_it_was_is_not_taken(ledgers: Ledgers) -> None:
    """Keys changed since: what is in which row at the receiver is not known."""
    site = ledgers.site
    use_twice(ledgers)()
    site.config["records"]["default_vo"] = "other"
    site.config["records"]["vo_rules"] = [{"field": "queue", "pattern": ".*", "vo": "other", "override": True}]
    site.save()
    assert_held(site)
    run = delivered(site)
    assert run.status == 65
    assert [(one["is_same"], one["is_taken"], one["entered"]) for one in run.json["months"]] == [(False, False, 0)]
    assert "with the settings of then" in run.err
    assert_held(site)
    site.config["records"].pop("vo_rules")
    site.config["records"].pop("default_vo")
    site.save()
    assert_taken(site)


@pytest.mark.slow
def test_rule_22_a_purged_job_keeps_a_month_from_being_taken_unless_somebody_insists(ledgers: Ledgers) -> None:
    """Where the job store, which had it, is lost too."""
    site = ledgers.site
    use_twice(ledgers)()
    for path in site.state.parent.glob("jobs.db*"):
        path.unlink()
    with site.arex() as arex:
        arex.connection.execute("DELETE FROM AAR WHERE JobID = ?", (JOBS[30].job_id,))
    assert_held(site)
    refused = delivered(site)
    assert (refused.status, "lacks 1 job" in refused.err) == (65, True)
    taken = delivered(site, "--anyway")
    assert taken.status == 65
    (month,) = taken.json["months"]
    assert (month["entered"], month["counted"], month["before"], month["is_taken"]) == (19, 39, 40, True)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


@pytest.mark.slow
def test_rule_22_a_deleted_month_is_sent_anew(ledgers: Ledgers) -> None:
    site = ledgers.site
    use_twice(ledgers)()
    assert_held(site)
    assert site.run("receiver", "deleted", "egi", "2026-10").status == 0
    assert site.publish().json["targets"]["egi"]["records"] == 40
    assert_all_arrived(site, JOBS)
    assert site.run("sync", "--check").status == 0
    assert site.run("state", "check").status == 0


def test_rule_22_only_months_that_are_held_are_taken(site: SiteUnderTest) -> None:
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    for action in ("delivered", "deleted"):
        run = site.run("receiver", action, "egi", "2026-10")
        assert (run.status, "2026-10 is not held for egi" in run.err) == (64, True), run.err


@pytest.mark.slow
def test_rule_22_a_republish_is_held_too(ledgers: Ledgers) -> None:
    use_twice(ledgers)()
    site, before = ledgers.site, sent(ledgers.site)
    for options in ([], ["--accept-key-change"], ["--accept-state"]):
        run = site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes", *options)
        assert (run.status, sent(site)) == (65, before), run.err
        assert "the ledger was restored or lost" in run.err


@pytest.mark.slow
def test_rule_22_a_daemon_holds_too(ledgers: Ledgers) -> None:
    site = ledgers.site
    use_twice(ledgers)()
    before = sent(site)
    site.config["targets"]["egi"] |= {"every": "1s"}
    with RunningDaemon(site) as daemon:
        daemon.wait_for("the ledger was restored or lost")
        assert daemon.end() == 0
    assert sent(site) == before
    assert_taken(site)


@pytest.mark.slow
def test_doctor_tells_of_it(ledgers: Ledgers) -> None:
    use_twice(ledgers)()
    looked = ledgers.site.run("doctor")
    assert "went back in time" in looked.out + looked.err
    assert_held(ledgers.site)
    looked = ledgers.site.run("doctor")
    assert "publisher receiver delivered egi 2026-10" in " ".join(looked.out.split())


@pytest.mark.slow
def test_rule_22_the_newer_ledger_that_is_found_after_all_is_held_again(ledgers: Ledgers) -> None:
    """Both were used: what each of them lacks of the other cannot be merged."""
    site = ledgers.site
    use_once(ledgers)
    newer = ledgers.keep()
    ledgers.remove()
    assert_held(site)
    assert delivered(site).status == 0
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    newer()
    held = assert_held(site)
    assert (held["jobs"], held["counted"]) == (40, 20)
    assert_taken(site)


@pytest.mark.slow
def test_a_crash_between_the_ledger_and_the_file_is_no_alarm(ledgers: Ledgers) -> None:
    """Also a loss of power, which may leave a file that is much older."""
    site = ledgers.site
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    older = site.folder / "older"
    older.hardlink_to(generation_file(site))
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    newer = recorded(site)
    older.replace(generation_file(site))
    assert site.publish().status == 0
    found = recorded(site)
    assert all(found[name] == newer[name] for name in ("mark", "number", "message_id", "at", "months"))
    site.assert_received(*JOBS)


def test_rule_22_a_ledger_that_lacks_the_message_in_flight_is_held(ledgers: Ledgers) -> None:
    """Nobody knows whether it arrived, and its records would leave under another id."""
    site = ledgers.site
    restore = use_once(ledgers)
    site.fake.faults.push(Fault.store_then_close())
    site.fake.faults.always(Fault.status(503))
    site.fill(*JOBS[20:25])
    assert site.publish().status == 75
    restore()
    site.fake.faults.clear()
    held = assert_held(site, "which was in flight", "what the receiver should have is not known")
    assert (held["jobs"], held["counted"], held["waiting"]) == (None, 20, 5)
    asked = delivered(site)
    assert (asked.status, asked.json["months"][0]["entered"]) == (65, 0)
    assert "if its portal shows 25 jobs of that month, and the configuration says" in asked.err
    run = delivered(site, "--anyway")
    assert (run.status, run.json["months"][0]["entered"]) == (0, 5)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


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
    assert_held(site, "which was in flight")


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
    site.config["targets"]["egi"] |= {"attempts": 2, "retry_budget_s": 1}
    site.save()
    site.fake.faults.push(Fault.status(413), Fault.store_then_close())
    site.fake.faults.always(Fault.status(503))
    assert site.publish().status == 75
    begun = recorded(site)["begun_id"]
    with closing(sqlite3.connect(site.state)) as ledger:
        assert begun in {text for (text,) in ledger.execute("SELECT message_id FROM message")}


def test_a_message_that_was_given_up_is_no_alarm(ledgers: Ledgers) -> None:
    """It was never handed over, and its row is gone from the ledger on purpose."""
    site = ledgers.site
    site.fill(*JOBS[:20])
    site.fake.faults.always(Fault.status(401))
    assert site.publish().status == 77
    assert recorded(site)["begun"] == 0
    site.fake.faults.clear()
    assert site.publish().status == 0
    site.assert_received(*JOBS[:20])


def test_rule_22_a_ledger_without_its_log_is_an_older_one(site: SiteUnderTest) -> None:
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
    assert_held(site, "went back in time")
    assert_taken(site)


def test_rule_22_without_a_file_every_month_is_held(site: SiteUnderTest) -> None:
    """The machine was lost, and the file with it: nobody knows what was delivered since."""
    restore = use_twice(Ledgers(site))
    generation_file(site).unlink()
    restore()
    assert_stopped(site, "was restored or copied", "delivered after 20")
    before = sent(site)
    run = site.publish("--accept-state")
    assert (run.status, sent(site)) == (65, before), run.err
    held = {one["month"]: one["restored"] for one in run.json["targets"]["egi"]["held"]}
    assert (held["2026-10"]["jobs"], held["2026-10"]["counted"], held["2026-10"]["waiting"]) == (None, 20, 20)
    assert f"{datetime.now(UTC):%Y-%m}" in held
    assert site.run("receiver", "delivered", "egi", *held).status == 65
    taken = site.run("receiver", "delivered", "egi", *held, "--anyway")
    assert taken.status == 0, taken.err
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
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
    assert_stopped(site, "was moved, restored or copied", "delivered after 20", f"remove {generation_file(site)}")
    generation_file(site).unlink()
    before = sent(site)
    assert (site.publish("--accept-state").status, sent(site)) == (65, before)


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


def test_rule_22_a_ledger_that_comes_back_from_another_host_may_lack_what_was_sent_here(
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
    assert site.publish("--accept-state").status == 65
    machine("first")
    site.config["state"] = str(here)
    site.save()
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    ledgers.put(lent)
    run = site.publish()
    assert (run.status, "went back in time" in run.err) == (65, True), run.err
    months = [one["month"] for one in run.json["targets"]["egi"]["held"]]
    assert site.run("receiver", "delivered", "egi", *months, "--anyway").status == 0
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert_all_arrived(site, JOBS)


def test_a_host_that_does_not_say_who_it_is_is_no_alarm(site: SiteUnderTest, machine: Callable[[str], object]) -> None:
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    machine("first")
    site.fill(*JOBS[20:])
    assert site.publish().status == 0


@pytest.mark.slow
def test_rule_22_each_host_of_a_pair_has_a_file_and_what_is_solved_is_for_both(
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
    before = sent(site)
    assert on("second").status == 65
    assert on("first").status == 65
    assert on("second").status == 65
    assert sent(site) == before
    assert site.run("receiver", "delivered", "egi", "2026-10").status == 0
    assert on("first").status == 0
    assert on("second").status == 0
    assert sent(site) == before
    assert_all_arrived(site, JOBS)


def test_a_damaged_file_stops_the_round(site: SiteUnderTest) -> None:
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    generation_file(site).write_bytes(b"\0" * 512)
    assert_stopped(site, "record of it", "damaged")
    held = site.publish("--accept-state")
    assert held.status == 65
    months = [one["month"] for one in held.json["targets"]["egi"]["held"]]
    assert site.run("receiver", "delivered", "egi", *months, "--anyway").status == 0
    assert site.publish().status == 0


def test_a_file_that_cannot_be_written_says_so(site: SiteUnderTest) -> None:
    site.fill()
    assert site.publish().status == 0
    file = generation_file(site)
    file.unlink()
    file.mkdir()
    site.fill(*JOBS[:20])
    run = site.run("publish", "--force")
    assert (run.status, str(file) in run.err) == (74, True)
    assert sent(site) == 0


def test_the_file_goes_along_with_a_receiver_that_has_another_address(site: SiteUnderTest) -> None:
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    before, known = generation_file(site), recorded(site)
    lead_elsewhere(site)
    assert site.publish().status == 78
    assert generation_file(site) == before
    assert site.run("receiver", "same", "egi").status == 0
    assert generation_file(site) != before
    assert recorded(site)["months"] == known["months"]
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


@pytest.mark.parametrize("answer", ["same", "new"])
@pytest.mark.slow
def test_rule_22_a_ledger_from_before_its_receiver_moved_is_held_there(ledgers: Ledgers, answer: str) -> None:
    """It asks again; with either answer, what was delivered by then is held, and goes nowhere."""
    site = ledgers.site
    restore = use_once(ledgers)
    lead_elsewhere(site)
    assert site.run("receiver", "same", "egi").status == 0
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    arrived = len(site.fake.messages(PROJECT, "other"))
    restore()
    assert site.publish().status == 78
    assert site.run("receiver", answer, "egi").status == 0
    there = 20 if answer == "same" else 0
    held = assert_held(site, f"the receiver should have 40 jobs, the ledger has {there} jobs")
    assert (held["jobs"], held["counted"], held["waiting"]) == (40, there, 40 - there)
    run = delivered(site)
    assert [(one["entered"], one["is_same"]) for one in run.json["months"]] == [(40 - there, True)]
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert len(site.fake.messages(PROJECT, "other")) == arrived
    assert site.run("state", "check").status == 0


def lead_elsewhere(site: SiteUnderTest) -> None:
    site.fake.allow(site.user, "other")
    site.config["targets"]["egi"] |= {"topic": "other"}
    site.save()


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
@pytest.mark.slow
def test_rule_22_what_a_shadow_recorded_counts_in_the_sums_of_the_receiver_that_gets_it(
    site: SiteUnderTest, form: str
) -> None:
    """And a ledger from before that is held as any other."""
    ledgers = Ledgers(site)
    site.config["targets"]["egi"] |= {"format": form, "shadow": True}
    site.save()
    site.fill(*JOBS[:20])
    assert site.publish().status == 0
    restore = ledgers.keep()
    del site.config["targets"]["egi"]["shadow"]
    site.save()
    site.fill(*JOBS[20:])
    assert site.publish().status == 0
    assert site.run("state", "check").status == 0
    (of_shadow,), (there,) = [
        [one["months"]["2026-10"][0] for one in found] for found in (files_with(site, 20), files_with(site, 40))
    ]
    assert (of_shadow, there) == (20, 40)
    before = sent(site)
    restore()
    held = assert_held(site, "the receiver should have 40 jobs")
    assert held["jobs"] == 40
    run = delivered(site)
    assert [(one["is_same"], one["is_taken"]) for one in run.json["months"]] == [(True, True)]
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    assert sent(site) == before
    assert site.run("state", "check").status == 0


def files_with(site: SiteUnderTest, jobs: int) -> list[Any]:
    """The files beside the ledger in which so many jobs of October count."""
    every = [json.loads(file.read_bytes()) for file in site.state.parent.glob("publishing.db.+receiver-*.generation")]
    return [one for one in every if one["months"]["2026-10"][0] == jobs]


@pytest.mark.slow
def test_rule_22_plan_shows_what_is_held_and_why(ledgers: Ledgers) -> None:
    """Also before a round has noticed it; `plan` changes nothing."""
    site = ledgers.site
    use_twice(ledgers)()
    known = generation_file(site).read_bytes()
    assert planned(site) == 20
    assert generation_file(site).read_bytes() == known
    assert_held(site)
    assert planned(site) == 20
    ledgers.remove()
    assert planned(site) == 40
    assert generation_file(site).exists()


def planned(site: SiteUnderTest) -> int:
    """How many jobs the plan holds of October."""
    plan = site.run("plan", "--json")
    assert plan.status == 65, plan.err
    (line,) = plan.json["targets"]["egi"]["actions"]
    assert (line["month"], line["action"], line["rows"]) == ("2026-10", "hold", None)
    assert line["reason"] == "the ledger was restored or lost, and lacks what counted of this month before"
    assert {one["job"] for one in line["examples"]} <= {job.job_id for job in JOBS}
    return int(line["jobs"])


@pytest.mark.slow
def test_rule_22_what_several_targets_want_is_taken_as_delivered_once(ledgers: Ledgers) -> None:
    site = ledgers.site
    site.config["targets"]["other"] = site.config["targets"]["egi"] | {"vos": ["atlas"]}
    site.save()
    use_twice(ledgers)
    ledgers.remove()
    assert site.publish().status == 65
    assert_taken(site)


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
