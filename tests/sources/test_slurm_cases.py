"""Outputs of sacct after public reports of what happened at sites, and what each must give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from publisher.sources.importers import ImportReport
from publisher.sources.slurm.header import COLUMNS
from tests.support.gridengine_files import jobs
from tests.support.sacct_text import job, run_import, step, text, write

CASES = Path(__file__).parent / "slurm_cases"


def case(name: str, tmp_path: Path) -> tuple[ImportReport, list[dict[str, Any]]]:
    """The report, and the jobs in the order of their numbers."""
    report = run_import(tmp_path / "imported.db", CASES / f"{name}.sacct")
    return report, sorted(jobs(tmp_path / "imported.db").values(), key=lambda one: int(one["LocalJobID"].split("+")[0]))


def cpu_s(one: dict[str, Any]) -> int | None:
    if dict(one["extra"]).get("cputime") == "unknown":
        return None
    return int(one["UsedCPUUserTime"] + one["UsedCPUKernelTime"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("srun-cpu-only-in-tres-25.05", [14_117]),
        ("totalcpu-zero-25.05", [14_112] * 30),
        ("usercpu-above-wall", [148_187]),
        ("timeout-batch-cancelled", [3_666]),
        ("node-fail", [None]),
        ("interactive-step", [2]),
        ("het", [600, 600, 600]),
        ("recycled-number", [600, 600]),
        ("unknown-state", [600, 600, 600]),
        ("no-user", [600]),
        ("never-started", []),
    ],
)
def test_cpu_time(name: str, expected: list[int | None], tmp_path: Path) -> None:
    report, found = case(name, tmp_path)
    assert (report.troubles, report.bad) == ([], 0)
    assert list(map(cpu_s, found)) == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("disabled", "Slurm accounting storage is disabled"),
        ("error-text", "slurmdbd: Too wide of a date range in query"),
    ],
)
def test_what_sacct_says_in_place_of_a_table(name: str, words: str, tmp_path: Path) -> None:
    report, _ = case(name, tmp_path)
    assert report.exit_status == 66
    assert words in report.troubles[0]


def test_a_cluster_that_gathers_nothing(tmp_path: Path) -> None:
    """JobAcctGatherType=none: every CPU time is 0, and no step shows memory."""
    nothing = {"TotalCPU": "00:00:00", "UserCPU": "00:00:00", "SystemCPU": "00:00:00"}
    ran = [job(number, **nothing) for number in range(1, 6)]
    lines = [line for one in ran for line in (one, step(one, MaxRSS="", MaxVMSize=""))]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct.txt", text(lines)))
    assert (report.incomplete, len(report.notes)) == (5, 1)
    assert "JobAcctGatherType" in report.notes[0]
    assert list(map(cpu_s, jobs(tmp_path / "imported.db").values())) == [None] * 5


def test_cores_come_from_tres_where_they_were_not_asked_for(tmp_path: Path) -> None:
    one = job(1, AllocTRES="billing=4,cpu=4,mem=4G,node=1")
    columns = [name for name in COLUMNS if name != "AllocCPUS"]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct.txt", text([one, step(one)], columns)))
    assert report.troubles == []
    assert [found["CPUCount"] for found in jobs(tmp_path / "imported.db").values()] == [4]


def test_no_name_forges_a_job_in_a_file_made_as_the_manual_shows(tmp_path: Path) -> None:
    """Slurm prints an end of line in a name, a directory or an account as it is."""
    forged = text([job(666), step(job(666))], header=False).decode()
    one = job(1, JobName=f"x\n{forged}", Account=f"bio\n{forged}")
    path = write(tmp_path / "sacct.txt", text([one, step(one)], delimiter="|13580424571302949375|"))
    run_import(tmp_path / "imported.db", path)
    assert "666" not in {found["LocalJobID"] for found in jobs(tmp_path / "imported.db").values()}
