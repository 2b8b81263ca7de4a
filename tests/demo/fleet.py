"""Several CEs with one ledger in PostgreSQL, one of them a pair: the host that works is killed, the other goes on.

Everything is private to this run: the server, its database, the stand-in for the messaging service.
"""

from __future__ import annotations

import copy
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from tests.arex_databases import generate
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.daemons import RunningDaemon, until
from tests.support.pki import PKI
from tests.support.postgres import PostgresServer, private_server
from tests.support.sites import ConfiguredSite, SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = 400  # of each CE
NO_SERVER = (
    "There is no PostgreSQL server here, and this demo starts one of its own. "
    "Debian: apt-get install postgresql. EL: dnf install postgresql-server."
)
NO_SCHEDULER = (
    "This Python has no APScheduler, which `publisher run` needs: "
    "`make demo SOURCE=fleet` installs it; by hand: pip install 'APScheduler<4'."
)
NO_PSYCOPG = (
    "This Python has no psycopg 3, with which the publisher reaches PostgreSQL: "
    "`make demo SOURCE=fleet` installs it; by hand: pip install 'psycopg[binary]'."
)

LIBRARIES = {"psycopg": NO_PSYCOPG, "apscheduler": NO_SCHEDULER}


def missing(programs: Path | None, libraries: Iterable[str]) -> list[str]:
    """What a person has to install first, a line each."""
    return [
        *([NO_SERVER] if programs is None else []),
        *(told for name, told in LIBRARIES.items() if name not in libraries),
    ]


def conclusion(arrived: int, jobs: int) -> tuple[str, int]:
    """The last line, and the exit status."""
    if arrived == jobs:
        return "All of them arrived, once.", 0
    return f"Something is wrong: {jobs} jobs were there.", 1


def demo(folder: Path, programs: Path | None) -> int:
    needed = missing(programs, [name for name in LIBRARIES if find_spec(name)])
    if needed or programs is None:
        print("\n".join(needed), file=sys.stderr)
        return 1
    print("1. A private PostgreSQL, a stand-in for the ARGO Messaging Service, three CEs, of which ce1 has two hosts")
    with private_server(programs) as server, FakeAMS(PKI.create(folder / "pki")) as fake:
        return _Fleet(folder, server, fake).publish()


class _Fleet:
    """Three instances in one database."""

    def __init__(self, folder: Path, server: PostgresServer, fake: FakeAMS) -> None:
        self._server = server
        self._fake = fake
        self._first = SiteUnderTest(folder / "ce1", fake.pki, fake)
        self._first.config["targets"]["egi"] |= {"batch_records": 20}
        targets = self._first.config["targets"]
        others = [ConfiguredSite(folder / name, fake.pki, self._first.host, targets) for name in ("ce2", "ce3")]
        self._sites = [self._first, *others]
        for seed, site in enumerate(self._sites, 1):
            site.config |= {"state": server.address, "instance": site.folder.name, "state_directory": str(site.folder)}
            site.fill(*generate(seed, JOBS, START, END))
            site.save()

    def publish(self) -> int:
        print(f"   {JOBS} finished jobs on each; all write to {self._server.address}")
        print("\n2. publisher publish, on ce2 and ce3")
        for site in self._sites[1:]:
            print(site.run("publish").out)
        print("3. publisher run, on both hosts of ce1; the one that works is killed (kill -9) in the middle")
        self._kill_one_of_the_pair()
        print("\n4. publisher status --all-instances, on ce3")
        print(self._sites[2].run("status", "--all-instances").out)
        rows = self._first.received()
        ids = Counter(message.attributes["empaid"] for message in self._fake.messages(PROJECT, TOPIC))
        arrived = len({(row["LocalJobId"], row["EndTime"], row["SubmitHost"]) for row in rows})
        twice = sum(count - 1 for count in ids.values())
        print(f"5. What arrived: {arrived:,} jobs in {len(ids)} messages, {twice} of them twice, under the same id")
        told, status = conclusion(arrived, JOBS * len(self._sites))
        print(f"\n{told}")
        return status

    def _kill_one_of_the_pair(self) -> None:
        before = self._messages()
        with self._host("ce1a") as active:
            until(lambda: self._messages() > before + 3, active.text, active.has_ended)
            with self._host("ce1b") as standby:
                standby.wait_for("standby:")
                active.send(signal.SIGKILL)
                print(f"   ce1a is gone after {self._messages() - before} messages")
                until(self._all_of_ce1, standby.text, standby.has_ended)
                print("   ce1b has sent the rest")

    def _host(self, name: str) -> RunningDaemon:
        host = copy.copy(self._first)
        host.folder = self._first.folder / name
        host.folder.mkdir()
        host.path = host.folder / "publisher.yaml"
        host.config = self._first.config | {"state_directory": str(host.folder)}
        return RunningDaemon(host)

    def _messages(self) -> int:
        return len(self._fake.messages(PROJECT, TOPIC))

    def _all_of_ce1(self) -> bool:
        return bool(self._first.run("status", "--json").json["targets"]["egi"]["delivered"] == JOBS)
