"""Commands that ask before they work: on a terminal alone, and nowhere without --yes."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.arex_databases import generate
from tests.fake_ams.service import PROJECT, TOPIC, FakeAMS
from tests.support.command_line import commands
from tests.support.forks import Child
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
SOURCE = Path(__file__).parents[2] / "publisher"
# Each command that asks, as it is given with everything that it needs but the answer.
ASKING = {"republish": ("republish", "--from", "2026-10", "--to", "2026-10")}
STREAMS = ("input", "output", "error")


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.fill(*generate(1, 5, START, END))
    made.save()
    return made


def sent(site: SiteUnderTest) -> int:
    return len(site.fake.messages(PROJECT, TOPIC))


def redirected(site: SiteUnderTest, stream: str, *words: str) -> tuple[int, str]:
    """The status of a command with one stream in a file and the others on a terminal where yes is typed; what it wrote."""
    terminal, inside = os.openpty()
    away = site.folder / "away"
    away.write_text("y\n")
    with away.open("r+" if stream == "input" else "w+") as file:
        ends = [file if stream == name else inside for name in STREAMS]
        child = Child("--config", site.path, *words, stdin=ends[0], stdout=ends[1], stderr=ends[2])
    os.close(inside)
    try:
        os.write(terminal, b"y\n")
        written = bytearray()
        while piece := _read(terminal):
            written += piece
        return child.wait(PATIENCE_S), written.decode() + away.read_text()
    finally:
        child.kill()
        child.wait()
        os.close(terminal)


def _read(terminal: int) -> bytes:
    """A piece; Linux reports an error when the last writer has left."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("name", ASKING)
@pytest.mark.slow
def test_nothing_is_done_where_a_stream_is_no_terminal(site: SiteUnderTest, name: str, stream: str) -> None:
    status, written = redirected(site, stream, *ASKING[name])
    assert (status, sent(site)) == (64, 0)
    assert f"{name} asks before it works, and standard {stream} is no terminal: give --yes, or --dry-run" in written
    assert redirected(site, stream, *ASKING[name], "--dry-run")[0] == 0
    assert sent(site) == 0
    assert redirected(site, stream, *ASKING[name], "--yes")[0] == 0
    assert sent(site) == 1


@pytest.mark.parametrize("name", ASKING)
def test_nothing_is_done_from_cron_or_through_a_pipe(site: SiteUnderTest, name: str) -> None:
    nowhere = Child("--config", site.path, *ASKING[name], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = nowhere.communicate(timeout=PATIENCE_S)
    assert (nowhere.wait(), out, sent(site)) == (64, "", 0)
    assert "give --yes" in err


def test_every_command_that_asks_has_the_option_and_is_tried_here() -> None:
    assert {path for path, command in commands().items() if "--yes" in command.options} == set(ASKING)


def test_one_place_asks() -> None:
    """No other module reads an answer, or decides by itself where nobody can be asked."""
    asking = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(word in path.read_text() for word in ("stdin.isatty", "stdin.readline", "input(", "[y/N]"))
    }
    assert asking == {"cli/parser.py"}
