"""A bounded soak: `make soak`, or `python -m tests.faults.soak [--seconds N] [--seed N] [--rate N]`.

A-REX writes in a hurry in one process (WAL, checkpoints, VACUUM, rotation under our feet), publishers run as processes one
after the other and sometimes two at once, some of them end by SIGKILL or SIGTERM, a daemon beside them is told to read
another configuration, and the stand-ins for AMS and SGAS have a bad day. When time is up everything is well again, the rest
is delivered, and what stands at the receivers is held against the databases. The exit status is 0 when nothing was lost and
nothing doubled, else 1.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.arex_databases import Writer
from tests.fake_ams.faults import Act
from tests.fake_ams.service import FakeAMS
from tests.fake_sgas import FakeSGAS
from tests.faults.soak_account import Account
from tests.faults.soak_daemon import SoakDaemon
from tests.faults.walk_faults import AMS, AUTHN, SGAS, Misfortune
from tests.faults.walk_services import SUMS_TOPIC
from tests.support.forks import Child
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

_DAY: Final = [one for one in (*AMS, *AUTHN, *SGAS) if one.make().act is not Act.DRIP]  # drips take their time
_GOOD: Final = {0, 65, 75, 76, 77, 78}  # what a round may end with on a bad day; never 66, 70 or 74
_ENDINGS: Final = {"its own way": 60, "SIGKILL": 25, "SIGTERM": 15}
_UNTIL_AN_END: Final = (-1.5, 0.9)  # powers of ten, in seconds: from 30 ms to 8 s
_ROUNDS_TO_RECOVER: Final = 6


class Soak:
    """One site on a bad day."""

    def __init__(self, folder: Path, *, seconds: int, seed: int, rate: int) -> None:
        self._folder, self._seconds, self._rate = folder, seconds, rate
        self._chance = random.Random(seed)
        self._counts: Counter[str] = Counter()
        self._statuses: Counter[int] = Counter()
        self._slowest_end_s = 0.0
        self._strange: list[str] = []

    def run(self) -> dict[str, Any]:
        """What happened, by name; `losses`, `duplicates` and `strange` are 0 and empty when all went well."""
        (self._folder / "pki").mkdir()
        pki = PKI.create(self._folder / "pki")
        with FakeAMS(pki) as fake, FakeSGAS(pki) as sgas:
            site = self._site(pki, fake, sgas)
            writer = self._start_writer(site)
            daemon = SoakDaemon(site, self._chance)
            try:
                self._bad_day(site, sgas, writer, daemon)
                daemon.finish()
            finally:
                daemon.kill()
                if writer.poll() is None:
                    writer.kill()
                wrote = writer.communicate(timeout=PATIENCE_S)[0]
            strange = self._recover(site, sgas)
            return self._told(json.loads(wrote), Account(site, sgas), strange, daemon)

    def _site(self, pki: PKI, fake: FakeAMS, sgas: FakeSGAS) -> SiteUnderTest:
        site = SiteUnderTest(self._folder, pki, fake, host=pki.host(key="ec"))
        fake.allow(site.user, SUMS_TOPIC)
        sgas.allow(site.host)
        (site.control / "archive").mkdir()
        Writer(site.control / "archive" / "0.db", schema=2).close()
        site.config["source"] = {
            "type": "arex",
            "databases": [str(site.database()), str(site.control / "archive" / "*.db")],
            "time_zone": "Europe/Oslo",
        }
        patience = {"attempts": 2, "retry_budget_s": 1, "read_timeout_s": 20, "start": "all", "every": "1s"}
        egi = site.config["targets"]["egi"] | patience
        site.config["targets"] = {
            "egi": egi | {"batch_records": 100},
            "sums": egi | {"format": "apel-summary-0.4", "topic": SUMS_TOPIC},
            "nordic": patience | {"type": "sgas", "url": sgas.url, "format": "ogf-ur", "batch_records": 50},
        }
        site.save()
        return site

    def _start_writer(self, site: SiteUnderTest) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "tests.faults.soak_writer",
            str(site.database()),
            str(self._seconds),
            str(self._rate),
        ]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while not site.database().exists() and writer.poll() is None:
            time.sleep(0.05)
        return writer

    def _bad_day(self, site: SiteUnderTest, sgas: FakeSGAS, writer: subprocess.Popen[str], daemon: SoakDaemon) -> None:
        while writer.poll() is None:
            daemon.look()
            for chosen in self._chance.choices(_DAY, k=self._chance.randrange(5)):
                befall(chosen, site.fake, sgas)
            if self._chance.random() < 0.2:
                site.fake.rotate_token(site.user)
            if self._chance.random() < 0.1:
                site.fake.drop_connections()
                sgas.drop_connections()
            together = [self._start(site) for _ in range(2 if self._chance.random() < 0.15 else 1)]
            self._counts["two at once"] += len(together) > 1
            for publisher, log in together:
                status = self._end(publisher)
                self._statuses[status] += 1
                if status >= 0 and status not in _GOOD:
                    self._strange.append(f"exit status {status}: {log.read_text().strip()}")

    def _start(self, site: SiteUnderTest) -> tuple[Child, Path]:
        """A publisher, and what it says."""
        self._counts["rounds"] += 1
        log = self._folder / f"publisher-{self._counts['rounds'] % 2}.log"
        with log.open("w") as file:
            words = ("--config", site.path, "-q", "publish", "--force")
            return Child(*words, stdout=subprocess.DEVNULL, stderr=file), log

    def _end(self, publisher: Child) -> int:
        """Let it come to its end, or end it. Gives its status."""
        how = self._chance.choices(list(_ENDINGS), weights=list(_ENDINGS.values()))[0]
        try:
            return publisher.wait(PATIENCE_S if how == "its own way" else 10 ** self._chance.uniform(*_UNTIL_AN_END))
        except subprocess.TimeoutExpired:
            if how == "its own way":
                publisher.kill()
                raise
            self._counts[how] += 1
            publisher.send_signal(signal.Signals[how])
            asked = time.monotonic()
            status = publisher.wait(PATIENCE_S)
            self._slowest_end_s = max(self._slowest_end_s, time.monotonic() - asked)
            return status

    def _recover(self, site: SiteUnderTest, sgas: FakeSGAS) -> list[str]:
        """All is well again, and what services refused by themselves is released. What never came to rest, in words."""
        site.fake.faults.clear()
        sgas.faults.clear()
        for _ in range(_ROUNDS_TO_RECOVER):
            site.run("quarantine", "release", "--all")
            last = site.publish()
            if all(each["outcome"] == "nothing" for each in last.json["targets"].values()):
                return []
        return [f"never at rest: {last.out}"]

    def _told(self, wrote: dict[str, Any], account: Account, strange: list[str], daemon: SoakDaemon) -> dict[str, Any]:
        strange += [*self._strange, *account.strange, *daemon.strange]
        self._slowest_end_s = max(self._slowest_end_s, daemon.slowest_end_s)
        if wrote["jobs"] != len(account.jobs):
            strange.append(f"the writer counts {wrote['jobs']} jobs, the databases hold {len(account.jobs)}")
        return {
            "seconds": self._seconds,
            "jobs written": wrote["jobs"],
            "jobs delivered": account.delivered,
            "checkpoints, VACUUMs, rotations": f"{wrote['checkpoints']}, {wrote['vacuums']}, {wrote['rotations']}",
            "longest time of A-REX for a job": f"{wrote['longest_wait_s'] * 1000:.0f} ms",
            "rounds": f"{self._counts['rounds']}, and {self._counts['two at once']} times two of them at once",
            "exit statuses (negative: by signal)": dict(sorted(self._statuses.items())),
            "faults injected": account.faults,
            "restarts after SIGKILL, SIGTERM": f"{self._counts['SIGKILL']}, {self._counts['SIGTERM']}",
            "daemon: starts, SIGKILL, SIGTERM": ", ".join(
                str(daemon.counts[name]) for name in ("started", "SIGKILL", "SIGTERM")
            ),
            "configurations taken over, refused": f"{daemon.counts['reloads']}, {daemon.counts['mistakes refused']}",
            "longest way to an end": f"{self._slowest_end_s:.1f} s",
            "messages sent again under their id": account.repeated,
            "duplicates": account.duplicates,
            "losses": account.losses,
            "strange": strange,
        }


def befall(chosen: Misfortune, fake: FakeAMS, sgas: FakeSGAS) -> None:
    """Let the next request of its kind meet it."""
    if chosen in SGAS:
        sgas.faults.push(chosen.make(), route=chosen.route)
    else:
        fake.faults.push(chosen.make(), service="authn" if chosen in AUTHN else "ams", route=chosen.route)


def soak(*, seconds: int, seed: int, rate: int) -> dict[str, Any]:
    """One soak in a folder of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="publisher-soak-") as folder:
        return Soak(Path(folder), seconds=seconds, seed=seed, rate=rate).run()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.soak", description="Publish beside a live A-REX on a bad day."
    )
    parser.add_argument("--seconds", type=int, default=120, help="how long A-REX writes (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="another bad day (%(default)s)")
    parser.add_argument("--rate", type=int, default=200, help="jobs a second (%(default)s)")
    options = parser.parse_args(arguments)
    found = soak(seconds=options.seconds, seed=options.seed, rate=options.rate)
    for name, value in found.items():
        print(f"{name:36} {value or 'nothing' if name == 'strange' else value}")
    return 1 if found["losses"] or found["duplicates"] or found["strange"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
