"""Many instances on one PostgreSQL, under kills of publishers and crashes of the server: nothing is lost, nothing doubled."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

from tests.arex_databases import bulk
from tests.demo import fleet
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.daemons import until
from tests.support.forks import Child
from tests.support.pki import PKI
from tests.support.postgres import PostgresServer, binaries
from tests.support.sites import ConfiguredSite, SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
ENDS = {0, -9, 74, 75}  # of publishers that are killed, or whose server goes away
TRUTH = """
    SELECT LocalJobID, CAST(UsedWalltime AS TEXT), CAST(UsedCPUUserTime + UsedCPUKernelTime AS TEXT),
        strftime('%Y-%m-%dT%H:%M:%SZ', EndTime, 'unixepoch')
    FROM AAR"""
TOLD = (
    *(r"<LocalJobId>([^<]*)</", r"<WallDuration>PT(\d+)S</", r'"all">PT(\d+)S</CpuDuration>'),
    r"<EndTime>([^<]*)</",
)  # a million records are not parsed

pytest.importorskip("psycopg")


class Arrived:
    """What the receiver has: each message is opened once, compared with its repetitions, and then dropped."""

    def __init__(self, fake: FakeAMS, receiver: Receiver) -> None:
        self._fake, self._receiver = fake, receiver
        self._log = fake.store.topics[PROJECT, TOPIC].log
        self._read = 0
        self._contents: dict[str, bytes] = {}  # digests by message id
        self.jobs: Counter[int] = Counter()  # by a hash of their values

    @property
    def messages(self) -> int:
        return len(self._log)

    @property
    def repeated(self) -> int:
        return self._read - len(self._contents)

    def read(self) -> bool:
        """Whether there was a message to open."""
        if self._read == len(self._log):
            return False
        message = self._log[self._read]
        text = self._receiver.take(message).text
        message_id, digest = message.attributes["empaid"], sha256(text.encode()).digest()
        if message_id not in self._contents:
            self._contents[message_id] = digest
            self.jobs.update(map(hash, zip(*(re.findall(told, text) for told in TOLD), strict=True)))
        assert self._contents[message_id] == digest
        self._log[self._read] = replace(message, data="")
        self._read += 1
        self._fake.requests.clear()
        return True


class Fleet:
    """Instances with their jobs, one server, one messaging service."""

    def __init__(self, folder: Path, pki: PKI, fake: FakeAMS, server: PostgresServer) -> None:
        self._folder, self._pki, self._fake, self._server = folder, pki, fake, server
        self.sites: list[ConfiguredSite] = []
        self.kills = self.crashes = 0

    def add(self, jobs: int, batch: int) -> None:
        """One instance more."""
        site: ConfiguredSite
        name = f"ce{len(self.sites) + 1}"
        if self.sites:
            first = self.sites[0]
            site = ConfiguredSite(self._folder / name, self._pki, first.host, first.config["targets"])
        else:
            site = SiteUnderTest(self._folder / name, self._pki, self._fake)
            site.config["targets"]["egi"] |= {"batch_records": batch}
            receiver = Receiver.create(self._pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
            self.arrived = Arrived(self._fake, receiver)
        site.config |= {"state": self._server.address, "instance": name, "state_directory": str(site.folder)}
        pattern = self._folder / "jobs.db"
        if not pattern.exists():
            bulk(pattern, 2, jobs, 1, START, END)
        shutil.copyfile(pattern, site.database())
        with closing(sqlite3.connect(site.database())) as arex, arex:
            arex.execute("UPDATE AAR SET JobID = ? || RecordID, LocalJobID = ? || RecordID", (f"{name}-", f"{name}."))
        site.save()
        self.sites.append(site)

    def publish(self, chance: random.Random, *, at_once: int, spacing: int) -> None:
        """Some at a time, until all have ended well; every now and then one of them is killed, or the server crashes."""
        waiting, working = list(self.sites), dict[ConfiguredSite, Child]()
        due = chance.randint(1, spacing)
        while waiting or working:
            while waiting and len(working) < at_once:
                site = waiting.pop(chance.randrange(len(waiting)))
                working[site] = self._start(site)
            self._wait(due, working)
            if self.arrived.messages >= due:
                self._trouble(chance, list(working.values()))
                due = self.arrived.messages + chance.randint(1, spacing)
            for site, ended in [(site, one) for site, one in working.items() if one.poll() is not None]:
                said = ended.communicate()[1]
                assert ended.returncode in ENDS, said
                del working[site]
                if ended.returncode:
                    waiting.append(site)

    def _start(self, site: ConfiguredSite) -> Child:
        return Child("--config", site.path, "publish", "--force", stdout=DEVNULL, stderr=PIPE)

    def _wait(self, due: int, working: dict[ConfiguredSite, Child]) -> None:
        """Until so many messages are there, or somebody has ended."""

        def something_happened() -> bool:
            self.arrived.read()
            return self.arrived.messages >= due or any(one.poll() is not None for one in working.values())

        until(something_happened, lambda: f"{self.arrived.messages} of {due} messages")

    def _trouble(self, chance: random.Random, publishers: list[Child]) -> None:
        if (self.kills + self.crashes) % 3 == 2:
            self.crashes += 1
            self._server.stop()
            self._server.start()
        else:
            self.kills += 1
            chance.choice(publishers).kill()

    def assert_all_arrived_once(self) -> None:
        before = self.arrived.messages
        for site in self.sites:
            again = self._start(site)
            said = again.communicate()[1]
            assert again.returncode == 0, said
        while self.arrived.read():
            pass
        assert self.arrived.messages == before
        jobs = Counter(hash(row) for site in self.sites for row in _rows(site))
        lost, more = jobs - self.arrived.jobs, self.arrived.jobs - jobs
        print(f"{jobs.total():,} jobs, {lost.total()} lost, {more.total()} doubled")
        assert not lost
        assert not more

    def assert_ledgers_agree(self) -> None:
        """Each with its own sums, and with what its CE has."""
        targets = self.sites[0].run("status", "--json", "--all-instances").json["targets"]
        told = {name: (one["delivered"], one["in_doubt"]) for name, one in targets.items()}
        assert told == {f"{site.config['instance']}/egi": (len(list(_rows(site))), 0) for site in self.sites}
        for site in self.sites:
            checked = site.run("state", "check")
            assert checked.status == 0, checked.err
            compared = site.run("sync", "--check", "--json", "--months", "all")
            assert compared.status == 0, compared.err


def _rows(site: ConfiguredSite) -> Iterator[tuple[Any, ...]]:
    """What the receiver must have of its jobs."""
    with closing(sqlite3.connect(site.database())) as arex:
        yield from arex.execute(TRUTH)


@pytest.mark.slow
def test_three_instances_under_kills_and_crashes_of_the_server(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, postgres_of_test: PostgresServer
) -> None:
    made = Fleet(tmp_path, pki, fake_ams, postgres_of_test)
    for _ in range(3):
        made.add(jobs=120, batch=5)
    made.publish(random.Random(5), at_once=3, spacing=16)
    made.assert_all_arrived_once()
    made.assert_ledgers_agree()
    assert (made.kills > 1, made.crashes > 0) == (True, True)


@pytest.mark.long
def test_twenty_instances_with_a_million_jobs(
    tmp_path: Path,
    pki: PKI,
    fake_ams: FakeAMS,
    postgres_of_test: PostgresServer,
    record_property: Callable[[str, object], None],
) -> None:
    seed = int(os.environ.get("PUBLISHER_SEED", "6"))
    made = Fleet(tmp_path, pki, fake_ams, postgres_of_test)
    for _ in range(20):
        made.add(jobs=50_000, batch=500)
    began = time.monotonic()
    made.publish(random.Random(seed), at_once=2, spacing=60)
    done = {"seed": seed, "messages": made.arrived.messages, "again under their ids": made.arrived.repeated}
    done |= {"kills": made.kills, "crashes": made.crashes, "seconds": round(time.monotonic() - began)}
    print(done)
    made.assert_all_arrived_once()
    made.assert_ledgers_agree()
    record_property("fleet", done)


@pytest.mark.slow
def test_the_demonstration_of_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if (programs := binaries()) is None:
        pytest.skip("no PostgreSQL here")
    assert fleet.demo(tmp_path, programs) == 0
    shown = capsys.readouterr().out
    assert "All of them arrived, once." in shown
    assert all(f"ce{number}/egi" in shown for number in (1, 2, 3))
