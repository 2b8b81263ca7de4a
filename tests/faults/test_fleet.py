"""Many instances on one PostgreSQL, under kills of publishers and crashes of the server: nothing is lost, nothing doubled."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import SampleJob, generate
from tests.demo import fleet
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.daemons import until
from tests.support.pki import PKI
from tests.support.postgres import PostgresServer, binaries, private_server
from tests.support.sites import ConfiguredSite, SiteUnderTest, told, truth
from tests.support.strict_apel import read_car

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
MAIN = "from publisher.cli.main import main; main()"
ENDS = {0, -9, 74, 75}  # of publishers that are killed, or whose server goes away

pytest.importorskip("psycopg")


class Fleet:
    """Instances with their jobs, one server, one messaging service."""

    def __init__(self, folder: Path, pki: PKI, fake: FakeAMS, server: PostgresServer) -> None:
        self.folder, self.pki, self.fake, self.server = folder, pki, fake, server
        self.sites: list[ConfiguredSite] = []
        self.jobs: list[SampleJob] = []

    def add(self, jobs: int, batch: int) -> None:
        """One instance more."""
        site: ConfiguredSite
        name = f"ce{len(self.sites) + 1}"
        if self.sites:
            first = self.sites[0]
            site = ConfiguredSite(self.folder / name, self.pki, first.host, first.config["targets"])
        else:
            site = SiteUnderTest(self.folder / name, self.pki, self.fake)
            site.config["targets"]["egi"] |= {"batch_records": batch}
        site.config |= {"state": self.server.address, "instance": name, "state_directory": str(site.folder)}
        made = [
            replace(job, job_id=f"{name}-{at}", local_job_id=f"{name}.{at}")
            for at, job in enumerate(generate(len(self.sites) + 1, jobs, START, END))
        ]
        site.fill(*made)
        site.save()
        self.sites.append(site)
        self.jobs += made

    def messages(self) -> int:
        return len(self.fake.messages(PROJECT, TOPIC))

    def start(self) -> list[subprocess.Popen[str]]:
        inherited = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
        return [
            subprocess.Popen(
                [sys.executable, "-c", MAIN, "--config", str(site.path), "publish", "--force"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=inherited,
            )
            for site in self.sites
        ]

    def turn(self, chance: random.Random, *, crash: bool) -> None:
        """All publish; after some messages one of them is killed, or the server crashes."""
        before, publishers = self.messages(), self.start()
        wanted = before + chance.randint(1, 2 * len(self.sites))
        until(
            lambda: self.messages() >= wanted or all(one.poll() is not None for one in publishers),
            lambda: f"{self.messages()} of {wanted} messages",
        )
        if crash:
            self.server.stop()
            self.server.start()
        else:
            chance.choice(publishers).kill()
        said = [one.communicate()[1] for one in publishers]
        assert {one.returncode for one in publishers} <= ENDS, said

    def assert_all_arrived_once(self) -> None:
        publishers = self.start()
        said = [one.communicate()[1] for one in publishers]
        assert {one.returncode for one in publishers} == {0}, said
        receiver = Receiver.create(self.pki.ca_directory, allowed=[self.sites[0].host.subject], with_openssl=False)
        messages = {one.attributes["empaid"]: one for one in self.fake.messages(PROJECT, TOPIC)}
        now = datetime.now(UTC)
        rows = (row for one in messages.values() for row in read_car(receiver.take(one).text.encode(), now))
        assert Counter(map(told, rows)) == Counter(map(truth, self.jobs))


@pytest.fixture
def server_of_its_own() -> Iterator[PostgresServer]:
    programs = binaries()
    if programs is None:
        pytest.skip("needs PostgreSQL")
    with private_server(programs) as started:
        yield started


def walk(made: Fleet, turns: int, seed: int) -> None:
    chance = random.Random(seed)
    for turn in range(turns):
        before = made.messages()
        made.turn(chance, crash=turn % 3 == 2)
        if made.messages() == before:  # all is sent
            break
    made.assert_all_arrived_once()


def test_three_instances_under_kills_and_a_crash_of_the_server(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, server_of_its_own: PostgresServer
) -> None:
    made = Fleet(tmp_path, pki, fake_ams, server_of_its_own)
    for _ in range(3):
        made.add(jobs=120, batch=5)
    walk(made, 3, 5)


@pytest.mark.long
def test_twenty_instances_with_a_million_jobs(
    tmp_path: Path,
    pki: PKI,
    fake_ams: FakeAMS,
    server_of_its_own: PostgresServer,
    record_property: Callable[[str, object], None],
) -> None:
    made = Fleet(tmp_path, pki, fake_ams, server_of_its_own)
    for _ in range(20):
        made.add(jobs=50_000, batch=500)
    walk(made, 30, 6)
    record_property("messages", made.messages())


def test_the_demonstration_of_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if binaries() is None:
        assert fleet.demo(tmp_path) == 1
        assert "apt-get install postgresql python3-psycopg" in capsys.readouterr().out
        return
    assert fleet.demo(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "All of them arrived, once." in shown
    assert all(f"ce{number}/egi" in shown for number in (1, 2, 3))
