"""The record of what can be observed says the same of the same code, and tells when something is not as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.observed import compared
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
SCENE = "trouble"


def observed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.scenarios.observed", *arguments, "--only", SCENE]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.mark.long
def test_two_runs_observe_the_same(tmp_path: Path) -> None:
    written = observed("--write", str(tmp_path / "before"))
    assert written.returncode == 0, written.stderr
    notes = sorted((tmp_path / "before" / SCENE).iterdir())
    texts = "".join(note.read_text() for note in notes)
    assert "<UsageRecord>" in texts, "what arrived is there, out of its signature"
    assert '"in_doubt": ' in texts
    assert str(tmp_path) not in texts
    again = observed("--compare", str(tmp_path / "before"))
    assert (again.returncode, again.stdout) == (0, ""), again.stdout + again.stderr


def test_a_difference_is_told_by_its_file_and_line(tmp_path: Path) -> None:
    for side, status in (("before", 0), ("after", 65)):
        (tmp_path / side / SCENE).mkdir(parents=True)
        (tmp_path / side / SCENE / "001-status.txt").write_text(f"$ publisher status\nexit status {status}\n")
    (tmp_path / "after" / SCENE / "002-new.txt").write_text("x\n")
    told = list(compared(tmp_path / "before", tmp_path / "after", [SCENE]))
    assert "-exit status 0\n" in told
    assert "+exit status 65\n" in told
    assert "+x\n" in told
    assert not list(compared(tmp_path / "after", tmp_path / "after", [SCENE]))
