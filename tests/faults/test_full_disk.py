"""The disk under the publishing database is full: nothing is lost or sent twice, and once there is room rounds go on.

Each test runs the real command in a mount namespace of its own, on a small file system that the test fills up by way of
`/proc/PID/root`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Final

import pytest

from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.support.forks import Child
from tests.support.mounts import mounted
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
ROOT: Final = Path(__file__).parents[2]
MIB: Final = 1 << 20

# Commands come in as JSON lists on standard input, their statuses go out.
CHILD: Final = """
print(os.getpid(), flush=True)
from publisher.cli import main as cli
for line in sys.stdin:
    print(cli.run(["--config", config, *json.loads(line)]), flush=True)
"""


@dataclass
class SmallDisk:
    """A site whose publishing database is on a small file system."""

    site: SiteUnderTest
    child: Child
    folder: Path
    errors: Path

    def begin(self, *command: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(command) + "\n")
        self.child.stdin.flush()

    def status(self) -> int:
        """Of the command that was begun. What commands print on standard output stands before it."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.strip().isdigit():
                return int(line)
        raise AssertionError(self.errors.read_text())

    def run(self, *command: str) -> int:
        self.begin(*command)
        return self.status()

    def leave(self, free: int) -> None:
        """Fill the file system up to so many bytes."""
        filler = self.folder / "filler"
        filler.unlink(missing_ok=True)
        with filler.open("wb", buffering=0) as file:
            with pytest.raises(OSError, match="No space left"):
                file.writelines(repeat(bytes(64 * 1024)))
            file.truncate(max(0, file.tell() - free))

    def make_room(self) -> None:
        (self.folder / "filler").unlink()

    def log_bytes(self) -> int:
        log = self.folder / "publishing.db-wal"
        return log.stat().st_size if log.exists() else 0


@pytest.fixture
def disk(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> Iterator[SmallDisk]:
    """12 MiB, and messages of some 950 kB."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.state.parent.mkdir()
    site.save()
    errors = tmp_path / "errors"
    with errors.open("wb") as complaints:
        child = mounted(
            *(site.state.parent, "mode=0700,size=12m", site.path, CHILD),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
    assert child.stdout is not None
    first = child.stdout.readline().strip()
    try:
        if not first.isdigit():
            pytest.skip(f"no file system can be mounted here: {first}{errors.read_text()}")
        folder = Path(f"/proc/{first}/root{site.state.parent}")
        yield SmallDisk(site=site, child=child, folder=folder, errors=errors)
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait(PATIENCE_S)
        child.stdout.close()
    assert "Traceback" not in errors.read_text()


def jobs_of_a_site(disk: SmallDisk) -> list[SampleJob]:
    jobs = list(generate(1, 2000, START, END))  # five messages
    disk.site.fill(*jobs)
    return jobs


@pytest.mark.slow
def test_a_disk_that_is_nearly_full_takes_no_message_and_heals(disk: SmallDisk) -> None:
    jobs = jobs_of_a_site(disk)
    disk.leave(2 * MIB)
    assert disk.run("publish", "--force") == 74
    grown = disk.log_bytes()
    for _ in range(3):
        assert disk.run("publish", "--force") == 74
    assert disk.log_bytes() == grown, "what is free is not eaten up"
    said = disk.errors.read_text()
    assert "MiB are free and" in said
    assert "needed; make room on the file system of" in said
    disk.make_room()
    assert disk.run("publish", "--force") == 0
    disk.site.assert_received(*jobs)


@pytest.mark.slow
def test_not_a_byte_is_left(disk: SmallDisk) -> None:
    """SQLite calls it an I/O error then, since its index of the log cannot grow."""
    jobs = jobs_of_a_site(disk)
    assert disk.run("publish", "--force", "--limit", "500") == 0
    disk.leave(0)
    for command in (["publish", "--force"], ["status"], ["state", "check"]):
        disk.errors.write_text("")
        assert disk.run(*command) == 74
        assert "the disk is full: 0 MiB are free" in disk.errors.read_text(), command
    disk.make_room()
    assert disk.run("publish", "--force") == 0
    disk.site.assert_received(*jobs)


@pytest.mark.slow
def test_a_receipt_is_recorded_though_another_program_filled_the_disk(disk: SmallDisk) -> None:
    jobs = jobs_of_a_site(disk)
    disk.site.fake.faults.push(Fault.none(), Fault.delay(2))
    disk.begin("publish")
    disk.site.fake.wait_for_messages(2)
    disk.leave(0)
    assert disk.status() == 74
    assert "delivered: " in disk.errors.read_text().splitlines()[-2], "the second message is settled"
    assert disk.run("publish", "--force") == 74
    disk.make_room()
    assert disk.run("publish", "--force") == 0
    disk.site.assert_received(*jobs)
    assert len(
        {message.attributes["empaid"] for message in disk.site.fake.messages("accounting", "gLite-APEL")}
    ) == len(disk.site.fake.messages("accounting", "gLite-APEL")), "no message went out twice"


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 64 * 1024, 512 * 1024, MIB, 3 * MIB, 5 * MIB])
@pytest.mark.some(2)
def test_however_little_is_freed_each_round_ends_and_the_last_one_delivers(disk: SmallDisk, free: int) -> None:
    jobs = jobs_of_a_site(disk)
    assert disk.run("publish", "--force", "--limit", "500") == 0
    disk.leave(free)
    assert disk.run("publish", "--force") in (0, 74)
    disk.leave(free // 2)
    assert disk.run("status") in (0, 74), "without any room SQLite cannot even share the file with others"
    assert disk.run("publish", "--force") in (0, 74)
    disk.make_room()
    assert disk.run("publish", "--force") == 0
    disk.site.assert_received(*jobs)
