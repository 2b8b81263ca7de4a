"""The daemon: real processes, real datagrams to a stand-in for systemd, the stand-in AMS, and a clock that jumps."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest
import yaml

from publisher import config
from publisher.cli.progress import ProgressReport
from publisher.cli.site import LiveSite
from publisher.publishing.daemon import Daemon, DaemonCommand, ServiceManager
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ProcessEnvironment, Site
from tests.arex_databases import SampleJob, Writer, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.support.daemons import Manager, RunningDaemon, until
from tests.support.forks import Child
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest, told, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """One target, hourly, with jobs that wait."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["egi"]["every"] = "1h"
    write(made, jobs())
    return made


class Logged(logging.Handler):
    """What was logged, whatever other tests have set up."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[Logged]:
    handler = Logged()
    logging.getLogger("publisher").addHandler(handler)
    yield handler
    logging.getLogger("publisher").removeHandler(handler)


def jobs(count: int = 5, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, START, END))


def write(site: SiteUnderTest, these: list[SampleJob]) -> None:
    site.fill(*these)


def arrived(site: SiteUnderTest) -> list[Any]:
    return sorted(told(row) for row in site.received(with_openssl=False))


def wanted(these: list[SampleJob]) -> list[Any]:
    return sorted(truth(job) for job in these)


def spool(folder: Path, **keys: Any) -> dict[str, Any]:
    """A target that needs no service."""
    return {"type": "spool", "path": str(folder), "format": "car", "start": "all", "every": "1h", "sign": False} | keys


# Rounds


def test_a_target_that_is_due_is_published_at_once_and_then_waits(site: SiteUnderTest) -> None:
    with RunningDaemon(site, JOURNAL_STREAM=journal_of(site.folder)) as daemon:
        daemon.manager.wait_for("STATUS=egi: next round")
        write(site, jobs(3, seed=2))
        time.sleep(1.2)
        status = daemon.end(signal.SIGINT)
        assert (status, daemon.text().count("round ended"), "Traceback" in daemon.text()) == (0, 1, False)
    assert arrived(site) == wanted(jobs())
    not_the_journal = daemon.text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [A-Z]+ ", line) for line in not_the_journal)


def test_each_target_has_its_own_timetable(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["every"] = "1s"
    site.config["targets"]["nightly"] = spool(site.folder / "out", cron="0 3 * * *")
    del site.config["targets"]["nightly"]["every"]
    with RunningDaemon(site) as daemon:
        daemon.wait_for("target nightly: round ended: ok")
        daemon.wait_for("target egi: round ended: ok")
        more = jobs(3, seed=2)
        write(site, more)
        daemon.wait_for("target egi: round ended: ok", times=2)
        said = [line for line in daemon.manager.told if line.startswith("STATUS=")]
        assert daemon.end() == 0
    assert daemon.text().count("target nightly: round ended") == 1
    assert re.search(r"nightly: next round \d{4}-\d\d-\d\dT03:00:00Z", said[-1])
    assert arrived(site) == wanted(jobs() + more)


def test_a_failing_target_beside_a_good_one(site: SiteUnderTest) -> None:
    (site.folder / "out").write_text("a file where a directory belongs")
    site.config["targets"]["broken"] = spool(site.folder / "out" / "below")
    site.config["targets"]["egi"]["every"] = "1s"
    with RunningDaemon(site) as daemon:
        daemon.wait_for("ERROR target broken: ")
        daemon.wait_for("target egi: round ended: ok")
        write(site, jobs(3, seed=2))
        daemon.wait_for("target egi: round ended: ok", times=2)
        daemon.manager.wait_for("STATUS=egi: next round")
        assert any("broken: trying again" in line for line in daemon.manager.told)
        assert daemon.end() == 0
    assert len(arrived(site)) == 8


def test_a_target_that_hangs_delays_no_other(site: SiteUnderTest) -> None:
    site.fake.faults.push(Fault.delay(FOR_EVER_S))
    site.config["targets"]["files"] = spool(site.folder / "out")
    with RunningDaemon(site) as daemon:
        daemon.wait_for("target files: round ended: ok")
        assert "target egi: round ended" not in daemon.text()


def test_accounting_data_that_is_away_for_a_while(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["every"] = "1s"
    database = site.database()
    database.rename(database.with_suffix(".away"))
    with RunningDaemon(site) as daemon:
        daemon.wait_for(f"ERROR {site.control}: has neither ")
        database.with_suffix(".away").rename(database)
        daemon.wait_for("round ended: ok")
        assert daemon.end() == 0
    assert arrived(site) == wanted(jobs())


def test_what_was_missed_while_it_was_down_is_made_up_for_once(site: SiteUnderTest) -> None:
    site.save()
    assert site.publish().status == 0
    write(site, jobs(3, seed=2))
    with closing(sqlite3.connect(site.state)) as state, state:
        state.execute("UPDATE target SET last_success = last_success - 86400 * 7")
    with RunningDaemon(site) as daemon:
        daemon.wait_for("round ended: ok: 1 messages, 3 records")
        time.sleep(1.2)
        assert daemon.end() == 0
        assert daemon.text().count("round ended") == 1


def test_a_restart_does_not_publish_what_is_not_due(site: SiteUnderTest) -> None:
    site.save()
    assert site.publish().status == 0
    write(site, jobs(3, seed=2))
    with RunningDaemon(site) as daemon:
        daemon.manager.wait_for("STATUS=egi: next round")
        time.sleep(1.2)
        assert daemon.end() == 0
        assert "round ended" not in daemon.text()


def test_publish_minds_the_moments_of_cron_too(site: SiteUnderTest) -> None:
    del site.config["targets"]["egi"]["every"]
    site.config["targets"]["egi"]["cron"] = "0 0 1 1 *"
    assert site.run("publish", "--json").json["targets"]["egi"]["outcome"] == "ok"
    again = site.run("publish", "--json").json["targets"]["egi"]
    assert again["outcome"] == "nothing"
    assert re.search(r"not due before \d{4}-01-01T00:00:00Z \(cron 0 0 1 1 \*; --force", again["reason"])
    with closing(sqlite3.connect(site.state)) as state, state:
        state.execute("UPDATE target SET last_success = last_success - 86400 * 366")
    assert "not due" not in (site.run("publish", "--json").json["targets"]["egi"]["reason"] or "")


# systemd


@pytest.mark.slow
def test_systemd_is_told(site: SiteUnderTest) -> None:
    with RunningDaemon(site, address=f"@publisher-test-{os.getpid()}", WATCHDOG_USEC="1000000") as daemon:
        daemon.manager.wait_for("READY=1")
        daemon.manager.wait_for("WATCHDOG=1", times=4)
        daemon.manager.wait_for("STATUS=egi: next round 20")
        assert daemon.end() == 0
        daemon.manager.wait_for("STOPPING=1")
    assert daemon.manager.told[0] == "READY=1", "not before it can work"


def test_the_watchdog_of_another_process_is_none_of_ours() -> None:
    asked = {"WATCHDOG_USEC": "200000"}
    assert ServiceManager(asked).alive_every_s == 0.1
    assert ServiceManager(asked | {"WATCHDOG_PID": str(os.getpid())}).alive_every_s == 0.1
    assert ServiceManager(asked | {"WATCHDOG_PID": "1"}).alive_every_s is None


def test_what_is_told_is_one_line_and_told_once(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "socket"))
    service = ServiceManager({"NOTIFY_SOCKET": manager.address})
    for _ in range(2):
        service.status("egi\nREADY=1  " + "x" * 1000)
    service.stopping()
    manager.wait_for("STOPPING=1")
    manager.close()
    assert manager.told[0].startswith("STATUS=egi READY=1 xxx")
    assert (len(manager.told), len(manager.told[0])) == (2, len("STATUS=") + 500)


def test_a_socket_that_is_gone_is_complained_of_once(tmp_path: Path, logged: Logged) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    service.ready()
    service.alive()
    assert sum("cannot notify systemd" in line for line in logged.lines) == 1


def test_not_ready_with_a_bad_configuration(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"evry": "1h", "cron": "0 25 * * *"}
    with RunningDaemon(site) as daemon:
        assert daemon.status() == 78
        assert daemon.manager.told == []
        assert "did you mean" in daemon.text()
        assert "'25' is not a valid hour" in daemon.text()


def test_not_ready_without_a_state_that_can_be_read(site: SiteUnderTest) -> None:
    site.state.parent.mkdir()
    site.state.write_text("this is not a database, whatever its name is" * 100)
    with RunningDaemon(site) as daemon:
        assert daemon.status() == 74
        assert daemon.manager.told == []


# Signals


def test_sighup_takes_a_good_configuration_over(site: SiteUnderTest) -> None:
    begun = time.monotonic()
    with RunningDaemon(site) as daemon:
        daemon.wait_for("round ended: ok")
        site.config["targets"] = {"files": spool(site.folder / "out")}
        site.save()
        daemon.send(signal.SIGHUP)
        daemon.wait_for("target files: round ended: ok")
        daemon.manager.wait_for("STATUS=files: next round")
        at = daemon.manager.told.index("RELOADING=1")
        usec = re.fullmatch(r"MONOTONIC_USEC=(\d+)", daemon.manager.told[at + 1])
        assert usec
        assert int(begun) <= int(usec[1]) / 1_000_000 <= time.monotonic(), "by the clock that systemd compares it with"
        assert "READY=1" in daemon.manager.told[at:]
        assert daemon.end() == 0


def test_sighup_refuses_a_bad_configuration_with_every_problem(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"]["every"] = "1s"
    with RunningDaemon(site) as daemon:
        daemon.wait_for("round ended: ok")
        site.path.write_text(site.path.read_text().replace("every: 1s", "every: soon\n    colour: blue"))
        daemon.send(signal.SIGHUP)
        daemon.wait_for("the old one stays in effect")
        assert "'soon' is not a length of time" in daemon.text()
        assert "targets.egi.colour: unknown key" in daemon.text()
        write(site, jobs(3, seed=2))
        daemon.wait_for("round ended: ok", times=2)
        daemon.manager.wait_for("STATUS=new configuration refused; egi: next round")
        assert daemon.manager.told.count("READY=1") == 2
        assert daemon.end() == 0


@pytest.mark.slow
def test_it_ends_between_two_messages(site: SiteUnderTest) -> None:
    many = jobs(600, seed=3)
    site.config["targets"]["egi"]["batch_records"] = 5
    site.config["source"]["page_rows"] = 5
    write(site, many)
    with RunningDaemon(site) as daemon:
        site.fake.wait_for_messages(3)
        assert daemon.end() == 0
        assert "Traceback" not in daemon.text()
    assert 0 < len(arrived(site)) < 605
    assert site.publish().status == 0
    assert arrived(site) == wanted(jobs() + many), "all of them, once"


def test_a_message_on_its_way_is_let_finish(site: SiteUnderTest) -> None:
    site.fake.faults.push(Fault.delay(1))
    with RunningDaemon(site) as daemon:
        site.fake.wait_for_messages(1)
        assert daemon.end() == 0
        assert "delivered: 5 records" in daemon.text()
        assert site.run("status", "--json").json["targets"]["egi"]["delivered"] == 5


@pytest.mark.slow
def test_a_message_that_is_not_answered_is_sent_again_under_its_id(site: SiteUnderTest) -> None:
    site.fake.faults.push(Fault.delay(FOR_EVER_S))
    with RunningDaemon(site) as daemon:
        site.fake.wait_for_messages(1)
        assert daemon.end() == 0
        assert "stopped in the middle of a message: egi; nothing is lost" in daemon.text()
    with RunningDaemon(site) as daemon:
        daemon.wait_for("round ended: ok")
        assert daemon.end() == 0
    ids = {message.attributes["empaid"] for message in site.fake.messages("accounting", "gLite-APEL")}
    assert len(ids) == 1, "the same message under the same id"
    assert {told(row) for row in site.received(with_openssl=False)} == {truth(job) for job in jobs()}


def test_a_second_signal_does_not_wait_for_the_message(site: SiteUnderTest) -> None:
    site.fake.faults.push(Fault.delay(FOR_EVER_S))
    with RunningDaemon(site) as daemon:
        site.fake.wait_for_messages(1)
        daemon.send(signal.SIGINT)
        daemon.manager.wait_for("STOPPING=1")
        assert daemon.end(signal.SIGINT) == 0


# The log


def journal_of(stream: Path) -> str:
    found = stream.stat()
    return f"{found.st_dev}:{found.st_ino}"


def test_the_journal_gets_priorities_and_no_times(site: SiteUnderTest) -> None:
    site.config["targets"]["egi"] |= {"url": "https://127.0.0.1:1", "attempts": 1}
    (site.folder / "log").touch()
    with RunningDaemon(site, JOURNAL_STREAM=journal_of(site.folder / "log")) as daemon:
        daemon.wait_for("round ended: deferred")
        assert daemon.end() == 0
        lines = daemon.text().splitlines()
    assert all(re.match(r"<[2-7]>(INFO|WARNING|ERROR) ", line) for line in lines), lines
    assert {"<6>INFO", "<4>WARNING"} <= {line.split(" ")[0] for line in lines}


def test_the_log_in_json_in_the_journal(site: SiteUnderTest) -> None:
    (site.folder / "log").touch()
    stream = journal_of(site.folder / "log")
    with RunningDaemon(site, "--log-format", "json", JOURNAL_STREAM=stream) as daemon:
        daemon.wait_for("round ended: ok")
        assert daemon.end() == 0
        lines = daemon.text().splitlines()
    assert {json.loads(re.sub("^<[46]>", "", line))["logger"] for line in lines} == {"publisher"}


def test_errors_of_other_commands_reach_the_journal_as_errors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stream:
        environment = os.environ | {"JOURNAL_STREAM": journal_of(log)}
        child = Child("--config", tmp_path / "none.yaml", "status", stderr=stream, env=environment)
    assert child.wait(PATIENCE_S) == 78
    assert log.read_text().startswith("<3>ERROR ")


# A clock that is set, in this process: the daemon itself, with a clock of ours


class Time:
    """A wall clock that can be set, for the daemon and for APScheduler."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def now(self, zone: tzinfo | None = UTC) -> datetime:
        return datetime.now(zone) + self.ahead


class InThread:
    """A daemon on a thread of this process."""

    def __init__(self, site: LiveSite, environment: dict[str, str] | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.looks = 0
        self.wishes: SimpleQueue[DaemonCommand] = SimpleQueue()
        self.manager = ServiceManager(environment or {})
        self.daemon = Daemon(
            site,
            load=lambda: site,
            next_command=self._wish,
            stop=threading.Event(),
            manager=self.manager,
            observer=ProgressReport(sys.stderr, monotonic=time.monotonic, quiet=True),
            report=self.outcomes.append,
        )
        self._thread = threading.Thread(target=self.daemon.serve, daemon=True)
        self._thread.start()

    def _wish(self, seconds: float) -> DaemonCommand | None:
        self.looks += 1
        try:
            return self.wishes.get(timeout=min(seconds, 0.02))
        except Empty:
            return None

    def wait_for_rounds(self, count: int) -> None:
        """And for the plan that follows."""
        until(lambda: len(self.outcomes) >= count, lambda: str(self.outcomes))
        looked = self.looks
        until(lambda: self.looks > looked + 2, lambda: "it does not look any more")

    def end(self) -> None:
        self.wishes.put(DaemonCommand.STOP)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr("apscheduler.schedulers.base.datetime", made)  # it asks the system itself
    return made


@pytest.fixture
def spooling(tmp_path: Path, wall: Time) -> LiveSite:
    """A site with one hourly target, which needs no service, at a time that tests set."""
    control = tmp_path / "control"
    (control / "accounting").mkdir(parents=True)
    with Writer(control / "accounting" / "accounting_v2.db", schema=2) as arex:
        arex.write_all(jobs())
    path = tmp_path / "publisher.yaml"
    source = {"type": "arex", "control_dir": str(control), "time_zone": "UTC"}
    tree = {"site": "SITE", "source": source, "state": str(tmp_path / "state" / "publishing.db")}
    path.write_text(yaml.safe_dump(tree | {"targets": {"files": spool(tmp_path / "out", sign=False)}}))
    return LiveSite(
        settings=config.load(path, {}, host_name="ce.example.org"),
        process=ProcessEnvironment(
            environment={}, clock=wall.now, monotonic=time.monotonic, wait=lambda seconds: False, chance=lambda: 0.5
        ),
    )


@pytest.fixture
def daemon(spooling: LiveSite) -> Iterator[InThread]:
    """After its first round."""
    made = InThread(spooling)
    made.wait_for_rounds(1)
    yield made
    made.end()


def quiet_for_a_while(daemon: InThread, rounds: int) -> None:
    time.sleep(0.5)
    assert len(daemon.outcomes) == rounds


def test_a_clock_that_leaps_a_year_makes_one_round(daemon: InThread, wall: Time) -> None:
    wall.ahead = timedelta(days=365)
    daemon.wait_for_rounds(2)
    quiet_for_a_while(daemon, 2)


def test_a_clock_that_is_put_right_after_a_leap_makes_one_round(daemon: InThread, wall: Time) -> None:
    wall.ahead = timedelta(days=365)
    daemon.wait_for_rounds(2)
    wall.ahead = timedelta(0)
    daemon.wait_for_rounds(3)
    quiet_for_a_while(daemon, 3)


def test_a_clock_that_goes_back_an_hour_does_not_stop_it(daemon: InThread, wall: Time) -> None:
    """The success an hour ahead is of another clock: one round at once, and the next within its hour."""
    wall.ahead = timedelta(hours=-1)
    daemon.wait_for_rounds(2)
    quiet_for_a_while(daemon, 2)
    wall.ahead += timedelta(hours=1, seconds=1)
    daemon.wait_for_rounds(3)


def test_rounds_come_when_their_time_has_come_and_not_before(daemon: InThread, wall: Time) -> None:
    wall.ahead = timedelta(minutes=59)
    quiet_for_a_while(daemon, 1)
    wall.ahead = timedelta(minutes=60, seconds=2)
    daemon.wait_for_rounds(2)
    quiet_for_a_while(daemon, 2)


def with_keys(site: LiveSite, **keys: Any) -> LiveSite:
    """The site with other settings of its target."""
    (target,) = site.settings.targets
    return replace(site, settings=site.settings._replace(targets=(replace(target, **keys),)))


def test_jitter_delays_a_round(spooling: LiveSite, tmp_path: Path) -> None:
    """An hour after the last one, and half of an hour, by its chance of 0.5; the ledger counts whole seconds."""
    with closing(Manager(str(tmp_path / "notify"))) as manager:
        daemon = InThread(with_keys(spooling, jitter_s=3600), {"NOTIFY_SOCKET": manager.address})
        daemon.wait_for_rounds(1)
        manager.wait_for("STATUS=files: next round")
        daemon.end()
    (planned,) = (line for line in manager.told if line.startswith("STATUS=files: next round"))
    with closing(sqlite3.connect(spooling.settings.state)) as state:
        (ended,) = state.execute("SELECT last_success FROM target").fetchone()
    due = datetime.fromtimestamp(ended + 5400, UTC)
    assert planned in {f"STATUS=files: next round {due + timedelta(seconds=n):%Y-%m-%dT%H:%M:%SZ}" for n in (0, 1)}


def test_a_bug_in_what_follows_a_round_stops_nothing(spooling: LiveSite, wall: Time, logged: Logged) -> None:
    """Also the place that metrics are written from: told of every round, and its trouble is its own."""
    seen: list[tuple[str, str]] = []

    def follow(site: Site, outcome: Outcome) -> None:
        seen.append((outcome.target, outcome.outcome))
        raise ZeroDivisionError("a bug")

    daemon = InThread(replace(spooling, after_round=(follow,)))
    daemon.wait_for_rounds(1)
    wall.ahead = timedelta(hours=2)
    daemon.wait_for_rounds(2)
    daemon.end()
    assert seen == [("files", "ok"), ("files", "nothing")]
    assert "a bug in publisher, after its round: a bug" in "\n".join(logged.lines)


def test_a_bug_in_a_round_is_logged_and_the_next_one_comes(spooling: LiveSite, wall: Time, logged: Logged) -> None:
    """A clock that breaks once stands for the bug: everything in a round asks it."""
    broken = threading.Event()

    def clock() -> datetime:
        if broken.is_set() and threading.current_thread().name == "files":
            raise ZeroDivisionError("a bug")
        return wall.now()

    broken.set()
    site = with_keys(spooling, every_s=1)
    daemon = InThread(replace(site, process=site.process._replace(clock=clock)))
    daemon.wait_for_rounds(1)
    broken.clear()
    daemon.wait_for_rounds(2)
    daemon.end()
    assert [(one.outcome, one.exit_status) for one in daemon.outcomes[:2]] == [("error", 70), ("ok", 0)]
    assert "a bug in publisher: a bug" in "\n".join(logged.lines)


@pytest.mark.slow
def test_never_two_rounds_of_a_target_at_once(spooling: LiveSite) -> None:
    """A round that lasts longer than `every` has no second one beside it, and missed ones are made up for once."""
    busy: list[int] = []
    most: list[int] = []

    def follow(site: Site, outcome: Outcome) -> None:
        busy.append(1)
        most.append(len(busy))
        time.sleep(1.2)
        busy.pop()

    daemon = InThread(replace(with_keys(spooling, every_s=1), after_round=(follow,)))
    daemon.wait_for_rounds(2)
    daemon.end()
    assert set(most) == {1}
