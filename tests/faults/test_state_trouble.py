"""The state on a bad day: cut short, on a file system that became read-only, and under a clock that jumps."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from publisher import config
from publisher.cli.site import LiveSite
from publisher.publishing import publish
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ProcessEnvironment
from tests.arex_databases import generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.faults import failing_calls
from tests.faults.failing_calls import Failure
from tests.support import gridengine_files
from tests.support.complaints import assert_plain
from tests.support.mounts import run_mounted
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
WITH_LOCKS = (
    ["publish", "--force"],
    ["republish", "--from", "2026-10", "--to", "2026-10", "--yes"],
    ["sync", "--target", "egi"],
    ["import", "gridengine"],
    ["run"],
    ["status"],
    ["doctor"],
    ["state", "check"],
)


@pytest.mark.parametrize("kept", [0, 1, 99, 100, 4096, 0.3, 0.6, 0.95])
def test_a_state_that_was_cut_short_is_74_and_left_as_it_is(site: SiteUnderTest, kept: float) -> None:
    """Never taken for a new one, which would send everything again, and never mended by guessing."""
    jobs = list(generate(1, 40, START, END))
    site.fill(*jobs[:30])
    assert site.publish().status == 0
    site.fill(*jobs[30:])
    whole = site.state.read_bytes()
    cut = whole[: kept if isinstance(kept, int) else int(len(whole) * kept)]
    site.state.write_bytes(cut)
    sent = len(site.fake.messages(PROJECT, TOPIC))
    assert_plain(site.publish(), 74, str(site.state), "damaged")
    assert_plain(site.run("status"), 74, str(site.state))
    assert site.state.read_bytes() == cut
    assert len(site.fake.messages(PROJECT, TOPIC)) == sent
    for suffix in ("-wal", "-shm"):
        site.state.with_name(site.state.name + suffix).unlink(missing_ok=True)
    site.state.write_bytes(whole)
    assert site.publish().status == 0
    site.assert_received(*jobs)


@pytest.mark.parametrize(
    ("what", "messages"),
    [("payload = replace(CAST(payload AS TEXT), 'Duration>PT', 'Duration>PT9')", 0), ("records = '[1'", 1)],
)
def test_a_message_in_doubt_that_was_damaged_since_is_not_sent_or_not_settled(
    site: SiteUnderTest, what: str, messages: int
) -> None:
    """One flipped bit of the payload may be another number at the receiver."""
    site.fill(*generate(1, 10, START, END))
    site.config["targets"]["egi"] |= {"attempts": 1}
    site.fake.faults.push(Fault.drop_without_storing())
    assert site.publish().status == 75
    with closing(sqlite3.connect(site.state)) as ledger, ledger:
        assert ledger.execute(f"UPDATE outbox SET {what}").rowcount == 1
    assert_plain(site.publish(), 74, "the ledger is damaged: ", "restore the last sound backup")
    assert site.run("state", "check").status == 74
    assert "the ledger is damaged: damaged payloads" in site.run("doctor").out
    # The first round of a day looks at a part of all messages first: this one is among them on some days of a month.
    assert len(site.fake.messages(PROJECT, TOPIC)) <= messages


@pytest.mark.parametrize(
    ("place", "said"),
    [("{folder}", "is no regular file"), ("/dev/null", "is no regular file"), ("{folder}/notes", "another program's")],
)
def test_what_is_no_ledger_is_not_called_a_damaged_one(site: SiteUnderTest, place: str, said: str) -> None:
    """Nobody is to move a directory away, or to look for a broken disk."""
    site.fill(*generate(1, 3, START, END))
    notes = site.folder / "notes"
    notes.write_text("Here nobody may write. " * 100)
    site.folder.chmod(0o700)
    site.config["state"] = place.format(folder=site.folder)
    site.save()
    for command in (("publish",), ("status",), ("quarantine", "list")):
        assert_plain(site.run(*command), 74, site.config["state"], said, "`state`")
    assert notes.read_text() == "Here nobody may write. " * 100
    assert not site.fake.messages(PROJECT, TOPIC)


@pytest.mark.slow
@pytest.mark.parametrize("words", WITH_LOCKS, ids=[words[0] for words in WITH_LOCKS])
def test_a_file_system_without_locks_is_found_at_once(site: SiteUnderTest, words: list[str]) -> None:
    """NFS without its lock service. SQLite would wait for two minutes, and say that the file is locked."""
    log = gridengine_files.write(site.folder / "accounting", [gridengine_files.colon(gridengine_files.Entry())])
    gridengine = {"type": "gridengine", "cluster": gridengine_files.CLUSTER, "paths": [str(log)]}
    site.config["source"] = [site.config["source"], gridengine]
    site.fill(*generate(1, 3, START, END))
    assert site.publish().status == 0
    failure = Failure(where=str(site.state.parent), error="ENOLCK", number=1, forever=True)
    ended = failing_calls.run(failing_calls.library(), site, words, failure)
    assert ended.status == 74, ended
    said = ended.out if words[0] == "doctor" else ended.err
    assert "cannot lock files" in said
    assert "local disk" in said
    assert "a bug in" not in ended.err
    assert site.publish().status == 0


READ_ONLY = """
from publisher.cli import main as cli
def run(*arguments):
    return cli.run(["--config", config, *arguments])
def remount(how):
    subprocess.run(["mount", "-o", f"remount,{how}", mount], check=True)
def restore():
    remount("rw")
remount("ro")
empty = run("publish", "--force")
restore()
some = run("publish", "--force", "--limit", "5")
remount("ro")
full = run("publish", "--force")
examined = run("doctor")
restore()
print(json.dumps([empty, some, full, examined, run("publish", "--force")]))
"""


def test_a_look_at_the_room_may_be_interrupted(site: SiteUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a network file system that gives up. Python tries most calls again, but not this one."""
    interrupted = InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
    site.fill(*generate(1, 2, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", Mock(side_effect=interrupted))
        stopped = site.run("publish", "--force")
    assert (stopped.status, "kernel's log" in stopped.err) == (74, True), stopped.err
    assert "must belong" not in stopped.err
    assert site.run("publish", "--force").status == 0


def test_a_read_only_file_system_is_74_and_the_next_round_goes_on(site: SiteUnderTest) -> None:
    """As the kernel leaves it after errors of the disk."""
    jobs = list(generate(1, 20, START, END))
    site.fill(*jobs)
    site.state.parent.mkdir()
    site.save()
    ended = run_mounted(site.state.parent, "mode=0700", site.path, READ_ONLY)
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[-1] == "[74, 0, 74, 74, 0]", ended.out + ended.err
    assert "Traceback" not in ended.err
    assert ended.err.count("its file system is read-only, as after an error of its disk") == 2, ended.err
    assert "must belong" not in ended.err
    assert f"{site.state.parent}: its file system is read-only" in ended.out, "what doctor found"
    site.assert_received(*jobs)


# The clock


class Clock:
    """What the publisher takes for the time."""

    def __init__(self, site: SiteUnderTest) -> None:
        self.ahead = timedelta(0)
        self._site = site

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def round(self, *, force: bool = True) -> Outcome:
        surroundings = ProcessEnvironment(
            environment={}, clock=self.now, monotonic=time.monotonic, wait=threading.Event().wait
        )
        self._site.save()
        live = LiveSite(settings=config.load(self._site.path, {}, host_name="ce01.example.org"), process=surroundings)
        (outcome,) = publish.publish(live, targets=[], observer=Silent(), force=force)
        return outcome


class Silent:
    def __getattr__(self, name: str) -> Any:
        return lambda *told, **also: None


@pytest.fixture
def clocked(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> tuple[SiteUnderTest, Clock]:
    """With a certificate that outlives the jumps."""
    site = SiteUnderTest(
        tmp_path, pki, fake_ams, host=pki.host(days=1000, not_before=datetime.now(UTC) - timedelta(days=400))
    )
    # A year ahead, the receiver would have purged what it has.
    site.config["targets"]["egi"] |= {"every": "24h", "batch_records": 7, "single_months": 0}
    return site, Clock(site)


JUMPS = {
    "back an hour": timedelta(hours=-1),
    "back a day and a bit": timedelta(hours=-25),
    "forward a year": timedelta(days=365),
}


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("force", [True, False])
def test_a_clock_that_jumps_and_comes_back_loses_and_doubles_nothing(
    clocked: tuple[SiteUnderTest, Clock], jump: str, force: bool
) -> None:
    """Also without --force: no target waits for a year because it had its round in the future."""
    site, clock = clocked
    jobs = list(generate(1, 60, START, END))
    site.fill(*jobs[:20])
    assert clock.round(force=force).records == 20
    site.fill(*jobs[20:40])
    clock.ahead = JUMPS[jump]
    there = clock.round(force=force)
    assert (there.exit_status, there.records) == (0, 20)
    site.fill(*jobs[40:])
    clock.ahead = timedelta(0)
    back = clock.round(force=force)
    if jump == "back an hour" and not force:  # the last round is an hour old, not a day
        assert "not due" in back.reason
        clock.ahead = timedelta(hours=25)
        back = clock.round(force=force)
    assert (back.exit_status, back.records) == (0, 20)
    site.assert_received(*jobs)
    ids = [message.attributes["empaid"] for message in site.fake.messages(PROJECT, TOPIC)]
    assert len(set(ids)) == len(ids)
    assert clock.round().outcome == "nothing"


def test_a_clock_that_is_a_year_ahead_of_the_certificate_sends_nothing_and_loses_nothing(
    tmp_path: Path, pki: PKI, fake_ams: FakeAMS
) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    clock = Clock(site)
    jobs = list(generate(1, 10, START, END))
    site.fill(*jobs)
    clock.ahead = timedelta(days=365)
    ahead = clock.round()
    assert (ahead.exit_status, ahead.records) == (77, 0)
    assert "expired" in ahead.reason
    clock.ahead = timedelta(days=-365)
    behind = clock.round()
    assert (behind.exit_status, behind.records) == (77, 0)
    assert "check this machine's clock" in behind.reason
    clock.ahead = timedelta(0)
    assert clock.round().records == 10
    site.assert_received(*jobs)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_message_that_was_written_down_before_a_jump_keeps_its_id(
    clocked: tuple[SiteUnderTest, Clock], jump: str
) -> None:
    site, clock = clocked
    site.config["targets"]["egi"] |= {"attempts": 1}
    jobs = list(generate(1, 5, START, END))
    site.fill(*jobs)
    site.fake.faults.push(Fault.store_then_close())
    assert clock.round().exit_status == 75
    clock.ahead = JUMPS[jump]
    assert clock.round().exit_status == 0
    messages = site.fake.messages(PROJECT, TOPIC)
    assert len(messages) == 2
    assert len({message.attributes["empaid"] for message in messages}) == 1
