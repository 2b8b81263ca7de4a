"""The varied database of the benchmarks in small, and its table: counts and bytes, never time."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import ground
from benchmarks.asked import ASKED, DATABASES, Least, table
from benchmarks.measure import Cost
from benchmarks.varied import PATTERNS
from tests.arex_databases import Schema
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.some(2)
@pytest.mark.slow
def test_it_is_varied(tmp_path: Path, schema: Schema) -> None:
    """Every pattern once: users, projects and benchmarks of a large site; restarts, failures, jobs without VO, long names."""
    path = ground.varied(tmp_path, PATTERNS, schema)
    with closing(sqlite3.connect(path)) as connection:

        def one(question: str) -> int:
            return int(connection.execute(question).fetchone()[0])

        extra = "SELECT count(DISTINCT InfoValue) FROM JobExtraInfo WHERE InfoKey = "
        assert one("SELECT count(*) FROM AAR") == PATTERNS
        assert one(f"{extra}'localuser'") >= 500
        assert one(f"{extra}'projectname'") >= 40
        assert one(f"{extra}'benchmark'" if schema == 1 else "SELECT count(*) FROM Benchmarks WHERE Name <> ''") >= 4
        assert one("SELECT count(DISTINCT strftime('%m', EndTime, 'unixepoch')) FROM AAR") >= 3
        assert one("SELECT count(*) FROM AAR WHERE VOID = (SELECT ID FROM WLCGVOs WHERE Name = '')") > PATTERNS / 20
        assert (
            one("SELECT count(*) FROM AAR WHERE StatusID = (SELECT ID FROM Status WHERE Name = 'failed')")
            > PATTERNS / 20
        )
        assert one("SELECT max(length(InfoValue)) FROM JobExtraInfo WHERE InfoKey = 'jobname'") > 150
        finished = "SELECT RecordID FROM JobEvents WHERE EventKey = 'FINISHED' GROUP BY RecordID HAVING count(*) > 1"
        assert one(f"SELECT count(*) FROM ({finished})") > PATTERNS / 100
        several = "SELECT RecordID FROM AuthTokenAttributes GROUP BY RecordID HAVING count(*) > 2"
        assert one(f"SELECT count(*) FROM ({several})") > PATTERNS / 3


@pytest.mark.long
def test_the_table_has_a_row_for_all_that_was_asked_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.asked", "--jobs", "200", "--runs", "1", "--directory", str(tmp_path)]
    root = Path(__file__).parents[2]
    run = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=_without_arc()
    )
    assert run.returncode == 0, run.stderr
    assert list(tmp_path.iterdir()) == [], "it left something behind"
    rows = [line.strip("| ").split(" | ") for line in run.stdout.splitlines() if line.startswith("| ")]
    shown = {row[0]: row for row in rows}
    for line, (goal, _) in ASKED.items():
        assert shown[line][1] == goal
        cells = shown[line][2 : 2 + len(DATABASES)]
        assert len(cells) == len(DATABASES), line
        assert all(cells), line
    assert shown["car: first round"][-1] == "not run: ARC_SRC is not set"


def _without_arc() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "ARC_SRC"}


def test_a_slow_machine_is_taken_into_account() -> None:
    """Twice the yardstick is half the speed; the least run counts, and the most memory."""
    costs = [Cost(wall_s=4.0, cpu_s=3.0, peak_mib=50.0), Cost(wall_s=2.0, cpu_s=2.0, peak_mib=40.0)]
    least = Least(jobs=10_000, costs=costs)
    assert least.shown("rate", 0.40) == "10,000/s, 100 µs CPU, 50 MiB"
    assert least.shown("million", 0.20) == "200.0 CPU s a million, 50 MiB"
    assert "10,000/s" in table({("car: first round", "ours"): least}, 0.40)
