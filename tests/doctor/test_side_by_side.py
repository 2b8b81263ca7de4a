"""All parts of an examination at once: what hangs delays nobody, and is a finding."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

import pytest

from publisher.cli import main
from publisher.cli.commands import doctor
from publisher.doctor import examination, side_by_side
from publisher.doctor.findings import Finding, Question, State
from publisher.doctor.side_by_side import Answer, ExaminedPart, ask_all
from tests.fake_ams.service import FakeAMS
from tests.support.patience import PATIENCE_S
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest


def part(name: str, answers: Iterator[Answer]) -> ExaminedPart:
    return ExaminedPart(f"the {name}", Question(name, "host", "why"), "do", lambda: answers)


def test_one_that_hangs_keeps_what_it_found_and_the_others_answer() -> None:
    for_ever = threading.Event()
    done = threading.Event()

    def hangs() -> Iterator[Finding]:
        yield Question("first", "host", "why").ok("well")
        done.wait()  # the other one is asked meanwhile, or nobody ever wakes this one
        for_ever.wait()

    def answers() -> Iterator[Finding]:
        done.set()
        yield Question("second", "host", "why").ok("well")

    waited: list[Sequence[str]] = []
    hung, other = ask_all(
        [part("files", hangs()), part("ledger", answers())], within_s=0.5, clock=monotonic, waits=waited.append
    )
    assert [one.found for one in other if isinstance(one, Finding)] == ["well"]
    first, last = hung
    assert isinstance(first, Finding)
    assert isinstance(last, Finding)
    assert (first.found, last.name, last.state, last.exit_status) == ("well", "files", State.FAILURE, 75)
    assert last.found == "no answer within 0.5 s"
    assert waited == [["the files", "the ledger"], ["the files"]]
    for_ever.set()


def test_a_bug_in_one_part_hides_nothing() -> None:
    def broken() -> Iterator[Finding]:
        yield from ()
        raise ZeroDivisionError("by 0")

    def answers() -> Iterator[Finding]:
        yield Question("second", "host", "why").ok("well")

    (bug,), (other,) = ask_all(
        [part("files", broken()), part("ledger", answers())], within_s=60, clock=monotonic, waits=lambda names: None
    )
    assert isinstance(bug, Finding)
    assert isinstance(other, Finding)
    assert (bug.exit_status, other.state) == (70, State.OK)
    assert "ZeroDivisionError: by 0" in bug.found


def test_all_parts_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait is asked for what is left of it, and none for more, however many parts there are."""
    asked: list[float] = []

    class Queue(SimpleQueue[int]):
        def get(self, block: bool = True, timeout: float | None = None) -> int:
            assert timeout is not None
            asked.append(timeout)
            return super().get(block, PATIENCE_S) if len(asked) < 4 else super().get(block, 0)

    monkeypatch.setattr(side_by_side, "SimpleQueue", Queue)
    for_ever = threading.Event()

    def hangs() -> Iterator[Finding]:
        for_ever.wait()
        yield Question("hung", "host", "why").ok("well")

    clock = iter([100.0, 100.0, 105.0, 114.0, 116.0])
    parts = [part("hung", hangs()), *(part(f"quick {each}", iter([])) for each in range(3))]
    hung, *others = ask_all(parts, within_s=15, clock=lambda: next(clock), waits=lambda names: None)
    assert asked == [15.0, 10.0, 1.0, 0.0]
    assert [one.found for one in hung if isinstance(one, Finding)] == ["no answer within 15 s"]
    assert others == [[], [], []]
    for_ever.set()


def test_doctor_waits_less_than_20_s() -> None:
    """Two seconds are for starting, and for printing."""
    assert doctor.LOADED_WITHIN_S + examination.WITHIN_S <= 18


def test_a_configuration_that_hangs_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without a writer, as a file on a server that is gone."""
    path = tmp_path / "publisher.yaml"
    os.mkfifo(path)
    monkeypatch.setattr(doctor, "LOADED_WITHIN_S", 0.2)
    assert main.run(["--config", str(path), "doctor"]) == 78
    told = capsys.readouterr().out
    assert f"failure  configuration: {path} did not load within 0.2 s\n" in told
    assert "do:  check that the file systems" in told
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # wakes the thread that waits


@pytest.mark.long  # it waits for the whole time
def test_doctor_ends_whatever_hangs(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    """A certificate that is a pipe without a writer: whoever opens it waits for ever, and so does each service for him."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.arex().close()
    pipe = tmp_path / "hostcert.pem"
    os.mkfifo(pipe)
    site.config["credentials"]["certificate"] = str(pipe)
    site.save()
    code = "from publisher.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", str(site.path), "doctor"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode in (66, 74, 75, 77, 78), done.stderr
    assert "failure  certificate, key and CAs: no answer within 15 s" in done.stdout
    assert "failure  services (egi): no answer within 15 s" in done.stdout
    assert "ok       database" in done.stdout
