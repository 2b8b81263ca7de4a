"""The accounting database while A-REX works on it: full speed, checkpoints, VACUUM, replaced files, locks, lost mounts.

The writer is another process, as A-REX is.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, get_args

import pytest

from publisher import config
from publisher.cli.site import LiveSite
from publisher.jobs.reader import JobPage
from publisher.model.job import Epoch, ReadRequest, SideTable
from publisher.publishing import publish
from publisher.publishing.site import ProcessEnvironment
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import create
from tests.arex_databases import Journal, SampleJob, Writer, bulk, generate
from tests.support.complaints import assert_complains
from tests.support.daemons import until
from tests.support.forks import Child, publisher
from tests.support.mounts import run_mounted
from tests.support.patience import FOR_EVER_S, PATIENCE_S
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
ROWS = 12_000


def fill(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    with site.arex() as arex:
        for job in jobs:
            arex.write(job)


@contextmanager
def process(code: str, *arguments: str) -> Iterator[Child]:
    """Python in another process; it ends when its input does, or else here."""
    child = Child(*arguments, code=code, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


# Commits as fast as it can, without any patience of SQLite's own, and ends when it was refused once.
IMPATIENT_WRITER = """
import sqlite3, sys, threading, time
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
connection.execute("PRAGMA synchronous = OFF")
print("ready", flush=True)
while not ended.is_set():
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE AAR SET ExitCode = 1 - ExitCode WHERE RecordID = 1")
    connection.execute("COMMIT")
    time.sleep(0.001)
connection.close()
"""


def everything() -> ReadRequest:
    return ReadRequest(frozenset(SideTable), Epoch(int(datetime.now(UTC).timestamp())))


def await_commit(watching: sqlite3.Connection, writer: Child) -> None:
    def version() -> int:
        return int(watching.execute("PRAGMA data_version").fetchone()[0])

    before = version()
    until(lambda: version() != before, lambda: "no commit", lambda: writer.poll() is not None)


@pytest.mark.slow
def test_with_wal_a_writer_never_waits_for_us(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    bulk(path, 2, ROWS, 1, START, END, journal="wal")
    with (
        closing(create(Options(databases=(str(path),)), {})) as source,
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as watching,
        process(IMPATIENT_WRITER, str(path)) as writer,
    ):
        pages = rows = 0
        for page in source.sources()[0].read(None, (), everything()):
            pages += 1
            rows += page.rows
            await_commit(watching, writer)
        writer.communicate("")
        assert writer.returncode == 0, "it was never refused"
    assert (pages, rows) == (ceil(ROWS / Options(databases=(str(path),)).page_rows), ROWS)


@pytest.mark.slow
def test_without_wal_a_writer_waits_for_us_no_longer_than_a_page(tmp_path: Path) -> None:
    """However many rows there are: between any two pages nothing is locked."""
    path = tmp_path / "a.db"
    bulk(path, 2, ROWS, 1, START, END, journal="delete")
    pages = rows = 0
    with (
        closing(create(Options(databases=(str(path),)), {})) as source,
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as writer,
    ):
        for page in source.sources()[0].read(None, (), everything()):
            pages += 1
            rows += page.rows
            writer.execute("BEGIN EXCLUSIVE")
            writer.execute("UPDATE AAR SET ExitCode = 1 - ExitCode WHERE RecordID = 1")
            writer.execute("COMMIT")
    assert (pages, rows) == (ceil(ROWS / Options(databases=(str(path),)).page_rows), ROWS)


# Writes jobs at full speed; between them checkpoints and VACUUM, as `arcctl accounting database` and SQLite itself do.
FULL_SPEED = """
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from tests.arex_databases import Writer, generate
path, count = Path(sys.argv[1]), int(sys.argv[2])
jobs = list(generate(7, count, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
with Writer(path) as arex:
    for job in jobs[:5]:
        arex.write(job)
    print("ready", flush=True)
    for number, job in enumerate(jobs[5:]):
        arex.write(job)
        if number % 40 == 0:
            arex.connection.execute("PRAGMA wal_checkpoint(" + ("TRUNCATE", "RESTART", "PASSIVE")[number // 40 % 3] + ")")
        if number % 150 == 0:
            arex.connection.execute("VACUUM")
sys.stdin.read()
"""


@pytest.mark.parametrize("journal", get_args(Journal))
@pytest.mark.slow
def test_rounds_while_arex_writes_at_full_speed(site: SiteUnderTest, journal: Journal) -> None:
    count = 700
    jobs = list(generate(7, count, START, END))
    Writer(site.database(), schema=2, journal=journal).close()
    site.config["source"] |= {"page_rows": 20}
    with process(FULL_SPEED, str(site.database()), str(count)) as writer:
        sent = during = 0
        while writer.poll() is None and sent < count:
            run = site.publish()
            assert run.status == 0, run.out + run.err
            records = run.json["targets"]["egi"]["records"]
            sent += records
            during += 0 < records < count
    assert during > 1, "some of it was read while the rest was being written"
    assert site.publish().status == 0
    site.assert_received(*jobs)


# Replaced under our feet


class AtPage:
    """An observer that lets something happen after so many pages."""

    def __init__(self, number: int, happens: Callable[[], None]) -> None:
        self._left = number
        self._happens = happens

    def page_read(self, target: str, page: JobPage) -> None:
        self._left -= 1
        if self._left == 0:
            self._happens()

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **also: None


def round_with(site: SiteUnderTest, observer: AtPage) -> int:
    site.save()
    surroundings = ProcessEnvironment(
        environment={}, clock=lambda: datetime.now(UTC), monotonic=time.monotonic, wait=threading.Event().wait
    )
    live = LiveSite(settings=config.load(site.path, {}, host_name="ce01.example.org"), process=surroundings)
    return publish.exit_status(publish.publish(live, targets=[], observer=observer, force=True))


def renumber(site: SiteUnderTest, jobs: list[SampleJob], kept: list[SampleJob]) -> None:
    """Another file takes the place of this one: `kept` in another order, under other RecordIDs, as `migrate` leaves them."""
    new = site.folder / "new.db"
    with Writer(new, schema=2) as writer:
        for job in reversed(kept):
            writer.write(job)
    for suffix in ("-wal", "-shm"):
        site.database().with_name(site.database().name + suffix).unlink(missing_ok=True)
    os.replace(new, site.database())


def migrated(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    renumber(site, jobs, jobs)


def rotated(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    """The old file stays beside the new one, which has the last jobs only."""
    shutil.copyfile(site.database(), site.control / "accounting" / "accounting_v2.db.old")
    renumber(site, jobs, jobs[-10:])


def appears_beside(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    """`migrate` from schema 1: every job is in both files from now on."""
    with site.arex(1 if site.database(2).exists() else 2) as writer:
        for job in jobs:
            writer.write(job)


REPLACED = {"migrated": migrated, "rotated": rotated, "appears beside": appears_beside}


@pytest.mark.parametrize("how", REPLACED)
@pytest.mark.parametrize("page", [1, 3])
def test_a_database_that_is_replaced_in_the_middle_of_a_round(site: SiteUnderTest, how: str, page: int) -> None:
    """The round goes on with what it opened, or ends with 66; the next ones deliver the rest, and nothing twice."""
    jobs = list(generate(1, 60, START, END))
    fill(site, jobs)
    site.config["source"] |= {"page_rows": 10, "databases": [str(site.control / "accounting" / "*.old")]}
    if how != "rotated":
        del site.config["source"]["databases"]
    else:  # the pattern must match something from the beginning
        Writer(site.control / "accounting" / "earlier.old", schema=2).close()
    site.config["targets"]["egi"] |= {"batch_records": 10}
    assert round_with(site, AtPage(page, lambda: REPLACED[how](site, jobs))) in (0, 66)
    for _ in range(2):
        assert site.publish().status == 0
    site.assert_received(*jobs)
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"


# Locks


def holding(path: Path, seconds: float) -> str:
    return f"""
import sqlite3, sys, time
connection = sqlite3.connect({str(path)!r}, isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
connection.execute("UPDATE AAR SET ExitCode = ExitCode WHERE RecordID = 1")
print("ready", flush=True)
time.sleep({seconds})
connection.execute("COMMIT")
sys.stdin.read()
"""


def test_a_writer_that_holds_the_lock_is_waited_for_as_long_as_configured(site: SiteUnderTest) -> None:
    """A minute in the field, for which 90 s are the default; here less of both."""
    jobs = list(generate(1, 20, START, END))
    with Writer(site.database(), schema=2, journal="delete") as arex:
        for job in jobs:
            arex.write(job)
    site.config["source"] |= {"lock_wait_s": 300}
    with process(holding(site.database(), 1.5), ""):
        run = site.publish()
        assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 20)
    site.assert_received(*jobs)


@pytest.mark.slow
def test_a_writer_that_holds_the_lock_longer_is_66_in_bounded_time(site: SiteUnderTest) -> None:
    jobs = list(generate(1, 20, START, END))
    with Writer(site.database(), schema=2, journal="delete") as arex:
        for job in jobs:
            arex.write(job)
    site.config["source"] |= {"lock_wait_s": 1}
    with process(holding(site.database(), FOR_EVER_S), ""):
        assert_complains(site.publish(), 66, str(site.database()), "locked", "try again")
    assert site.publish().status == 0
    site.assert_received(*jobs)


def has_open(pid: int, path: Path) -> bool:
    return any(each.is_symlink() and each.readlink() == path for each in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.long
def test_sigterm_ends_a_wait_for_the_lock_too(site: SiteUnderTest) -> None:
    with Writer(site.database(), schema=2, journal="delete") as arex:
        arex.write(next(generate(1, 1, START, END)))
    site.save()
    with process(holding(site.database(), FOR_EVER_S), ""):
        child = publisher(site, "publish", "--force")
        opened = partial(has_open, child.pid, site.database())
        until(opened, lambda: "it does not ask the database", lambda: child.poll() is not None)
        child.terminate()
        _, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, "Traceback" in err) == (75, False), err


def test_with_wal_a_long_write_transaction_delays_nothing(site: SiteUnderTest) -> None:
    jobs = list(generate(1, 20, START, END))
    fill(site, jobs)
    site.config["source"] |= {"lock_wait_s": 0}
    with process(holding(site.database(), FOR_EVER_S), ""):
        assert site.publish().status == 0
    site.assert_received(*jobs)


# Mounts


def test_a_mount_that_vanishes_in_the_middle_of_a_round(site: SiteUnderTest) -> None:
    """66 in words, and all of it later; what was read before counts."""
    jobs = list(generate(1, 60, START, END))
    fill(site, jobs)
    site.config["source"] |= {"page_rows": 10}
    away = site.folder / "away"
    status = round_with(site, AtPage(1, lambda: os.rename(site.control / "accounting", away)))
    assert status in (0, 66), "what is open may be read to its end"
    assert_complains(site.publish(), 66, str(site.control))
    assert site.run("status", "--json").json["targets"]["egi"]["pending"] is None
    shutil.move(away, site.control / "accounting")
    assert site.publish().status == 0
    site.assert_received(*jobs)


ON_A_FULL_MOUNT = """
from datetime import UTC, datetime
accounting = pathlib.Path(mount)
from tests.arex_databases import Writer, generate, leave_wal
jobs = list(generate(1, 30, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
database = accounting / "accounting_v2.db"
with Writer(database, schema=2) as arex:
    for job in jobs[:20]:
        arex.write(job)
if sys.argv[4] == "killed":
    leave_wal(database, jobs[20:], shm=False)
else:
    arex = Writer(database)
    for job in jobs[20:]:
        arex.write(job)
try:
    with open(accounting / "ballast", "wb", buffering=0) as ballast:
        while ballast.write(b"x" * 4096):
            pass
except OSError:
    pass
from publisher.cli import main as cli
status = cli.run(["--config", config, "publish", "--force"])
if sys.argv[4] != "killed":
    arex.close()
sys.exit(status)
"""


@pytest.mark.parametrize("writer", ["alive", "killed"])
def test_a_full_file_system_below_the_database_keeps_nothing_from_being_read(site: SiteUnderTest, writer: str) -> None:
    """Reading needs no room there; after a killed writer a copy is read, which is made elsewhere."""
    site.save()
    ended = run_mounted(site.database().parent, "size=24m", site.path, ON_A_FULL_MOUNT, writer)
    assert ended.status == 0, ended.err
    site.assert_received(*list(generate(1, 30, START, END)))


def test_a_round_leaves_the_database_as_it_was(site: SiteUnderTest) -> None:
    """Not a byte, not a file beside it, whoever has it open."""
    jobs = list(generate(1, 10, START, END))
    fill(site, jobs)
    with closing(sqlite3.connect(site.database())) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = {path.name: path.read_bytes() for path in site.database().parent.iterdir()}
    assert site.publish().status == 0
    assert {path.name: path.read_bytes() for path in site.database().parent.iterdir()} == before
