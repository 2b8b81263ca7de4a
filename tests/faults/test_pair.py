"""Two hosts of a pair, each with its daemon: one dies, hangs or is cut off from the ledger, the other goes on."""

from __future__ import annotations

import copy
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import SampleJob, generate
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.daemons import RunningDaemon, until
from tests.support.network import Network
from tests.support.pki import PKI
from tests.support.postgres import ROLE, PostgresServer
from tests.support.sites import SiteUnderTest, told, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
BATCH = 4
SHORT_LEASE = "from publisher.ledger.postgres import locks; locks.LEASE_S, locks._RENEW_S = 3.0, 0.3"

pytestmark = pytest.mark.usefixtures("ledger_in_postgres")


class Pair:
    """Two hosts with one configuration, one accounting database and one instance; which of them works may change."""

    def __init__(self, folder: Path, pki: PKI, fake_ams: FakeAMS, before: str) -> None:
        self.site = SiteUnderTest(folder, pki, fake_ams)
        self.site.config["targets"]["egi"] |= {"every": "1s", "batch_records": BATCH}
        self.site.save()
        self.jobs: list[SampleJob] = []
        self._before = before
        self._starts = 0

    def start(self, **config: object) -> RunningDaemon:
        self._starts += 1
        host = copy.copy(self.site)
        host.folder = self.site.folder / f"host{self._starts}"
        host.folder.mkdir()
        host.path = host.folder / "publisher.yaml"
        host.config = self.site.config | {"state_directory": str(host.folder)} | config
        return RunningDaemon(host, before=self._before)

    def finish_jobs(self, count: int) -> None:
        more = list(generate(self._starts * 1000 + len(self.jobs), count, START, END))
        first = len(self.jobs)
        more = [replace(job, job_id=f"turn-{first + at}", local_job_id=str(first + at)) for at, job in enumerate(more)]
        self.site.fill(*more)
        self.jobs += more

    def messages(self) -> int:
        return len(self.site.fake.messages(PROJECT, TOPIC))

    def wait_for_messages(self, count: int, working: RunningDaemon) -> None:
        until(lambda: self.messages() >= count, working.text)

    def wait_for_all(self, working: RunningDaemon) -> None:
        def all_are_there() -> bool:
            status = self.site.run("status", "--json").json["targets"]["egi"]
            return (status["delivered"], status["in_doubt"]) == (len(self.jobs), 0)

        until(all_are_there, working.text)

    def assert_each_arrived_once(self) -> int:
        """Gives how many messages came twice, each time under the same id."""
        arrived = Counter(told(row) for row in self.site.received(with_openssl=False))
        assert set(arrived) == {truth(job) for job in self.jobs}
        ids = Counter(one.attributes["empaid"] for one in self.site.fake.messages(PROJECT, TOPIC))
        twice = sum(times - 1 for times in ids.values())
        assert sum(arrived.values()) - len(self.jobs) <= twice * BATCH
        return twice


def take_over(pair: Pair, active: RunningDaemon, standby: RunningDaemon, end: signal.Signals, behind: int) -> float:
    """One turn: the active host ends or hangs after some messages, and the other delivers the rest. Gives the seconds."""
    before = pair.messages()
    pair.finish_jobs(40)
    pair.wait_for_messages(before + behind, active)
    active.send(end)
    ended, messages = time.monotonic(), pair.messages()
    pair.wait_for_messages(messages + 2, standby)
    seconds = time.monotonic() - ended
    pair.wait_for_all(standby)
    return seconds


def walk(pair: Pair, ends: list[signal.Signals], record: Callable[[str, object], None]) -> None:
    """Turn after turn; who was killed is started again, who hung goes on, and both stand by then."""
    chance = random.Random(7)
    longest = dict.fromkeys(ends, 0.0)
    with ExitStack() as daemons:
        active = daemons.enter_context(pair.start())
        active.wait_for("ready:")
        for turn, end in enumerate(ends):
            standby = daemons.enter_context(pair.start())
            standby.wait_for("standby:")
            seconds = take_over(pair, active, standby, end, chance.randint(1, 5))
            print(f"turn {turn + 1}: {end.name}, {seconds:.1f} s", flush=True)
            longest[end] = max(longest[end], seconds)
            if end is signal.SIGSTOP:
                active.send(signal.SIGCONT)
                active.wait_for("standby:")
                pair.wait_for_all(standby)
                active.end()
            active = standby
    record("turns", len(ends))
    record("messages in doubt", pair.assert_each_arrived_once())
    record("longest", {end.name: round(seconds, 1) for end, seconds in longest.items()})


@pytest.mark.slow
def test_the_other_host_goes_on_when_one_dies_or_hangs(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, record_property: Callable[[str, object], None]
) -> None:
    walk(Pair(tmp_path, pki, fake_ams, SHORT_LEASE), [signal.SIGKILL, signal.SIGSTOP], record_property)


@pytest.mark.long
def test_fifty_turns_with_the_lease_as_it_is(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, record_property: Callable[[str, object], None]
) -> None:
    walk(Pair(tmp_path, pki, fake_ams, ""), 25 * [signal.SIGKILL, signal.SIGSTOP], record_property)


@pytest.mark.slow
def test_who_is_cut_off_from_the_server_begins_no_message_and_stands_by_later(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS, postgres: PostgresServer
) -> None:
    pair = Pair(tmp_path, pki, fake_ams, SHORT_LEASE)
    with Network(postgres.socket) as network, ExitStack() as daemons:
        elsewhere = f"postgresql:///site?host=127.0.0.1&port={network.port}&user={ROLE}"
        active = daemons.enter_context(pair.start(state=elsewhere))
        active.wait_for("ready:")
        standby = daemons.enter_context(pair.start())
        standby.wait_for("standby:")
        pair.finish_jobs(80)
        pair.wait_for_messages(3, active)
        network.cut()
        before = pair.messages()
        pair.wait_for_all(standby)
        network.mend()
        active.wait_for("standby:")
        assert active.text().count("delivered:") <= before + 1  # with the one in flight
        pair.finish_jobs(8)
        pair.wait_for_all(standby)
        assert pair.assert_each_arrived_once() <= 1


def test_who_stands_by_can_be_stopped(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    pair = Pair(tmp_path, pki, fake_ams, SHORT_LEASE)
    with pair.start() as active:
        active.wait_for("ready:")
        with pair.start() as standby:
            standby.manager.wait_for("STATUS=standby")
            assert "READY=1" in standby.manager.told
            assert standby.end() == 0
        assert active.end() == 0
