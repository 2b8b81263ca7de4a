"""A short run of the fuzzing that is led by coverage, where atheris is installed; `make fuzz` runs it for longer."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
READERS = (
    "gridengine-colon",
    "gridengine-json",
    "sonar-texts",
    "classad",
    "formula",
    "answer",
    "arc-conf",
    "configuration",
)

pytestmark = pytest.mark.skipif(find_spec("atheris") is None, reason="no atheris here")


def fuzzed(folder: Path, reader: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.guided_fuzz", reader, *options, f"-artifact_prefix={folder}/"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("reader", READERS)
def test_no_bytes_break_a_reader(tmp_path: Path, reader: str) -> None:
    done = fuzzed(tmp_path, reader, "-runs=5000", "-seed=1", "-max_len=600", "-timeout=300", "-rss_limit_mb=1024")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Done 5000 runs" in done.stderr
    assert not list(tmp_path.iterdir())


def test_every_reader_has_a_test(tmp_path: Path) -> None:
    refused = fuzzed(tmp_path, "nothing")
    assert f"readers: {', '.join(READERS)}" in refused.stderr
