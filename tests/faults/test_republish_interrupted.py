"""A republish of very many jobs, killed at 40 % and started again: at most one message goes twice. And in little memory,
as what follows it: `sync --check` and `sync` of them all.

By default in small. The long one has 1,000,000 jobs, or as many as PUBLISHER_REPUBLISH_JOBS says, from a database that it makes
or that PUBLISHER_REPUBLISH_DATABASE names (only read):

    PUBLISHER_REPUBLISH_JOBS=1000000 pytest -n 0 -s tests/faults/test_republish_interrupted.py -m long
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from tests.arex_databases import bulk
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

START, END = datetime(2025, 3, 1, tzinfo=UTC), datetime(2025, 10, 1, tzinfo=UTC)
WINDOW: Final = ("--from", "2025-03", "--to", "2025-09")
# What the console script does, without needing it on a path.
PUBLISHER: Final = ("-c", "from publisher.cli.main import main; main()")
_LOOK_EVERY_S: Final = 0.005
_MOST_MIB: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A run of the command line that came to its end, or was killed."""

    status: int
    wall_s: float
    peak_mib: float
    out: str
    err: str


class Crowd:
    """A site with very many jobs, and a stand-in that keeps digests of what it gets."""

    def __init__(self, folder: Path, pki: PKI, database: Path) -> None:
        self.fake = FakeAMS(pki, keep_data=False)
        self.site = SiteUnderTest(folder, pki, self.fake)
        self.site.config["source"] = {"type": "arex", "databases": [str(database)], "time_zone": "Europe/Oslo"}
        self.site.save()
        self.folder = folder

    def sent(self) -> list[str]:
        """The ids of all messages that arrived, in order."""
        return [message.attributes["empaid"] for message in self.fake.messages()]

    def run(self, *arguments: str, kill_at: int | None = None) -> Child:
        """Run the command line in a process of its own; `kill -9` it when so many messages have arrived."""
        out, err = self.folder / "child.out", self.folder / "child.err"
        began = time.monotonic()
        never = threading.Event()
        peak_mib = 0.0
        with out.open("wb") as to_out, err.open("wb") as to_err:
            child = subprocess.Popen(
                [sys.executable, *PUBLISHER, "--config", str(self.site.path), *arguments], stdout=to_out, stderr=to_err
            )
            while True:
                # Not ru_maxrss, which begins with that of whoever started the process.
                peak_mib = max(peak_mib, _high_water_mib(child.pid))
                number, status = os.waitpid(child.pid, os.WNOHANG)
                if number:
                    break
                if kill_at is not None and len(self.fake.messages()) >= kill_at:
                    os.kill(child.pid, signal.SIGKILL)
                    kill_at = None
                never.wait(_LOOK_EVERY_S if kill_at is not None else 0.05)
        child.returncode = os.waitstatus_to_exitcode(status)
        return Child(
            status=child.returncode,
            wall_s=time.monotonic() - began,
            peak_mib=peak_mib,
            out=out.read_text(),
            err=err.read_text(),
        )

    def ask_ledger(self, question: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.site.state)) as connection:
            return connection.execute(question).fetchall()


def _high_water_mib(pid: int) -> float:
    """What a process had in memory at most until now; 0 when it has just ended."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 0.0 if found is None else int(found[1]) / 1024


def interrupted(crowd: Crowd, jobs: int) -> list[str]:
    """Publish all, republish all, killed at 40 %, and republish again; gives what was measured, a line a run."""
    said = []

    def tell(what: str, child: Child) -> None:
        line = f"{what}: {child.wall_s:.1f} s, peak {child.peak_mib:.0f} MiB, {len(crowd.sent()):,} messages so far"
        said.append(line)
        print(line, flush=True)

    first = crowd.run("publish", "--json", "--force")
    assert first.status == 0, first.err[-2000:]
    tell(f"publish of {jobs:,} jobs", first)
    published = crowd.sent()
    assert json.loads(first.out)["targets"]["egi"]["records"] == jobs
    assert len(set(published)) == len(published)

    again = ("republish", "--json", "--yes", *WINDOW)
    killed = crowd.run(*again, kill_at=len(published) + len(published) * 4 // 10)
    assert killed.status == -signal.SIGKILL, killed.err[-2000:]
    tell("republish, killed with -9 at 40 %", killed)
    by_then = len(crowd.sent()) - len(published)
    assert by_then < len(published) * 0.6, "it was killed too late to show anything"
    finished = crowd.run(*again)
    assert finished.status == 0, finished.err[-2000:]
    assert "resumes where the last run of the same command stopped" in finished.err
    tell("the same command again", finished)

    resent = Counter(crowd.sent()[len(published) :])
    twice = sum(copies - 1 for copies in resent.values())
    ledger = crowd.ask_ledger("SELECT message_id, state, records FROM message ORDER BY id")
    line = (
        f"republished: {len(resent):,} messages, {sum(resent.values()):,} with repetitions, {by_then:,} of them before the "
        f"kill; {twice} sent twice"
    )
    said.append(line)
    print(line, flush=True)
    # Counted at the receiver: every message that the ledger knows has arrived, and one at most twice.
    assert twice <= 1
    assert set(crowd.sent()) == {one for one, _, _ in ledger}
    # And every job once in the first round and once in the second: nothing was read again after the kill.
    assert {state for _, state, _ in ledger} == {2}
    assert sum(records for _, _, records in ledger) == 2 * jobs
    assert crowd.ask_ledger("SELECT delivered FROM target") == [(jobs,)]

    checked = crowd.run("sync", "--check", "--json", "--months", "all")
    assert checked.status == 0, checked.out[-2000:] + checked.err[-2000:]
    assert sum(row["delivered"] for row in json.loads(checked.out)["rows"]) == jobs
    tell("sync --check of all months", checked)
    counted = crowd.run("sync", "--json", "--target", "egi", "--months", "all")
    assert counted.status == 0, counted.err[-2000:]
    tell("sync of all months", counted)
    # Memory does not grow with the number of jobs: the interpreter with what it has loaded is 70 MiB of it.
    assert max(one.peak_mib for one in (first, killed, finished, checked, counted)) < _MOST_MIB
    return said


def measured(tmp_path: Path, pki: PKI, jobs: int, database: Path | None) -> list[str]:
    if database is None:
        database = tmp_path / "accounting.db"
        bulk(database, 2, jobs, 1, START, END)
    crowd = Crowd(tmp_path, pki, database)
    with crowd.fake:
        crowd.site.config["targets"]["egi"] |= {
            "url": crowd.fake.url,
            "auth_url": crowd.fake.auth_url,
            "batch_records": 500 if jobs >= 100_000 else 50,
        }
        crowd.site.save()
        return interrupted(crowd, jobs)


@pytest.mark.slow
def test_killed_at_40_percent_at_most_one_message_goes_twice(tmp_path: Path, pki: PKI) -> None:
    assert measured(tmp_path, pki, 3_000, None)


@pytest.mark.long
def test_killed_at_40_percent_with_a_million_jobs(tmp_path: Path, pki: PKI) -> None:
    named = os.environ.get("PUBLISHER_REPUBLISH_DATABASE")
    jobs = int(os.environ.get("PUBLISHER_REPUBLISH_JOBS", "1000000"))
    assert measured(tmp_path, pki, jobs, Path(named) if named else None)
