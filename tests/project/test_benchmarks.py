"""`make bench` in small: memory and counts of work, never time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import NEW_JOBS, STARTS
from benchmarks.compare import compared
from benchmarks.least import least
from benchmarks.measure import Cost
from benchmarks.report import Line, as_json, table
from benchmarks.stages import STAGES, SUMMARY_STAGES
from tests.support.patience import PATIENCE_S

JOBS = 800
Lines = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Lines]:
    """What it printed, and its lines by the beginning of the group and by name."""
    folder = tmp_path_factory.mktemp("bench")
    figures = folder / "figures.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--jobs",
        str(JOBS),
        "--directory",
        str(folder),
        "--json",
        str(figures),
    ]
    run = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert run.returncode == 0, run.stderr
    assert list(folder.iterdir()) == [figures], "it left something behind"
    lines = json.loads(figures.read_text())["lines"]
    return run.stdout, {(line["group"].partition(",")[0], line["name"]): line for line in lines}


WHOLE = ("CAR to the stand-in of AMS", "CAR to a sink that answers at once", "OGF-UR to such a sink")
SUMMARIES = "Summaries and sync to such a sink"
IMPORTS = ("Import of Grid Engine", "Import of Sonar")
STAGE_GROUP, FLOORS = "Stage by stage", "Floors of this machine"


@pytest.mark.long
def test_the_table_has_a_row_for_everything(bench: tuple[str, Lines]) -> None:
    printed, lines = bench
    for group, name in lines:
        assert group in printed
        assert name in printed
    for group in (*WHOLE, SUMMARIES):
        for name in ("first round", "nothing to do", "a look at all rows", f"{NEW_JOBS:,} new jobs", "status"):
            assert (group, name) in lines
    assert (SUMMARIES, "sync") in lines
    assert [name for group, name in lines if group == "Starts of Python"] == [name for name, _ in STARTS]
    for group in IMPORTS:
        assert [name for each, name in lines if each == group] == ["first import", "nothing to do", "then published"]
    assert [name for group, name in lines if group == STAGE_GROUP] == list(STAGES)
    assert [name for group, name in lines if group == "Summaries stage by stage"] == list(SUMMARY_STAGES)
    assert len([name for group, name in lines if group == FLOORS]) == 8


@pytest.mark.parametrize("group", WHOLE)
@pytest.mark.long
def test_each_job_travels_once_and_no_round_sends_another_again(bench: tuple[str, Lines], group: str) -> None:
    _, lines = bench
    assert [lines[group, name]["work"]["records"] for name in ("first round", "nothing to do")] == [JOBS, 0]
    assert lines[group, f"{NEW_JOBS:,} new jobs"]["work"]["records"] == NEW_JOBS
    assert lines[group, "nothing to do"]["work"]["messages"] == 0
    assert lines[group, "a look at all rows"]["work"]["messages"] == 0
    assert lines[group, "first round"]["work"]["quarantined"] == 0


@pytest.mark.long
def test_summaries_send_months_that_changed_and_no_others(bench: tuple[str, Lines]) -> None:
    _, lines = bench
    sent = [
        lines[SUMMARIES, name]["work"]["messages"] for name in ("first round", "nothing to do", "a look at all rows")
    ]
    assert sent == [1, 0, 0], "all months in one"
    assert lines[SUMMARIES, f"{NEW_JOBS:,} new jobs"]["work"]["messages"] == 1


@pytest.mark.parametrize("group", IMPORTS)
@pytest.mark.long
def test_an_import_reads_everything_once_and_all_of_it_is_published(bench: tuple[str, Lines], group: str) -> None:
    _, lines = bench
    first, second, published = (
        lines[group, name]["work"] for name in ("first import", "nothing to do", "then published")
    )
    assert JOBS <= first["lines"] < JOBS + 60
    assert (second["lines"], second["imported"]) == (0, 0)
    assert published["records"] == first["imported"] > JOBS / 10
    assert published["quarantined"] == 0


@pytest.mark.long
def test_a_process_stays_small(bench: tuple[str, Lines]) -> None:
    _, lines = bench
    peaks = {key: line["cost"]["peak_mib"] for key, line in lines.items() if key[0] in (*WHOLE, SUMMARIES, *IMPORTS)}
    assert max(peaks.values()) < 100, peaks
    assert max(peaks[group, "status"] for group in WHOLE) < 60, peaks


@pytest.mark.long
def test_the_work_of_a_record(bench: tuple[str, Lines]) -> None:
    """Rows read once, messages filled, few bytes a record, one request a message and one for the token of each round."""
    _, lines = bench
    groups = [(STAGE_GROUP, STAGES), ("Summaries stage by stage", SUMMARY_STAGES)]
    for group, names in groups:  # the job store keeps new jobs that the database has no more
        assert all(JOBS <= lines[group, name]["work"]["rows"] <= JOBS + NEW_JOBS for name in names)
    whole = lines[STAGE_GROUP, STAGES[-1]]["work"]
    assert whole["records"] == JOBS
    assert whole["payload_bytes"] / JOBS < 1_900
    assert whole["messages"] == -(-JOBS // 390)  # as many as fill the limit of AMS
    first = lines[WHOLE[0], "first round"]["work"]
    assert first["messages"] == whole["messages"]
    assert first["bytes"] / JOBS < 2_550  # base64 and the signature around them
    counted = lines["Counted by the stand-in", "requests"]["work"]
    assert counted["messages"] == first["messages"] + lines[WHOLE[0], f"{NEW_JOBS:,} new jobs"]["work"]["messages"]
    assert counted["requests"] == counted["messages"] + 2


def test_what_was_not_timed_is_not_shown_as_zero() -> None:
    line = Line(group="g", name="n", count=7, unit="in all", cost=Cost(wall_s=0.0, cpu_s=0.0))
    assert table([line]).splitlines()[-1].split() == ["n", "7", "in", "all"]


@pytest.mark.slow
def test_a_ladder_costs_by_new_jobs_and_not_by_history(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    sizes = ("400", "1200")
    command = [sys.executable, "-m", "benchmarks", "--ladder", *sizes, "--only", "summaries"]
    run = subprocess.run(
        [*command, "--directory", str(tmp_path), "--json", str(figures)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert list(tmp_path.iterdir()) == [figures], "it left something behind"
    lines = {(line["group"], line["name"]): line for line in json.loads(figures.read_text())["lines"]}
    small, large = ("summaries, 400 jobs", "summaries, 1,200 jobs")
    assert {group for group, _ in lines} == {small, large}
    for name in ("nothing to do", f"{NEW_JOBS:,} new jobs"):
        assert lines[small, name]["work"]["messages"] == lines[large, name]["work"]["messages"]
    printed = compared(*[json.loads(figures.read_text())] * 2).splitlines()
    assert [line for line in printed if line in (small, large)] == [small, large]
    assert sum(line.startswith("  first round") and " 1.00 " in line for line in printed) == 2


def test_a_comparison_tells_which_work_changed() -> None:
    line = Line(
        group="g", name="n", count=7, unit="jobs", cost=Cost(wall_s=2.0, cpu_s=1.0), work={"messages": 3, "bytes": 9}
    )
    before, after = as_json([line], {}), as_json([replace(line, work={"messages": 4, "bytes": 9})], {})
    assert compared(before, after).splitlines()[-1].endswith("messages 3 -> 4")
    assert compared(before, as_json([replace(line, name="another")], {})).splitlines()[1:] == []


def test_of_several_runs_each_line_counts_as_cheap_as_it_ever_was() -> None:
    def run(first_s: float, second_s: float, peak_mib: float) -> dict[str, Any]:
        costs = {"first": first_s, "second": second_s}
        lines = [
            Line(
                group="g", name=name, count=7, unit="jobs", cost=Cost(wall_s=cpu_s + 1, cpu_s=cpu_s, peak_mib=peak_mib)
            )
            for name, cpu_s in costs.items()
        ]
        return as_json(lines, {})

    found = {line.name: line.cost for line in least([run(3.0, 1.0, 50.0), run(2.0, 4.0, 60.0)])}
    assert found == {
        "first": Cost(wall_s=3.0, cpu_s=2.0, peak_mib=60.0),
        "second": Cost(wall_s=2.0, cpu_s=1.0, peak_mib=60.0),
    }
