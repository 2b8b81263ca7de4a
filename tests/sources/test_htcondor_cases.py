"""Histories as sites met them: which job each gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from publisher.sources.htcondor.records import Routed
from publisher.sources.importers import ImportReport
from tests.support.batch_stores import records
from tests.support.condor_history import run_import
from tests.support.gridengine_files import jobs

CASES: Final = Path(__file__).parent / "htcondor_cases"
COMPLETED: Final = 1_787_003_700  # 2026-08-17T21:55:00Z
REMOVED: Final = 1_789_596_000  # 2026-09-16T22:00:00Z


def read(tmp_path: Path, case: str, **options: Any) -> tuple[ImportReport, list[dict[str, Any]]]:
    database = tmp_path / "imported.db"
    report = run_import(database, CASES / case, **options)
    assert (report.troubles, report.bad, report.held) == ([], 0, 0)
    return report, [found | {"extra": dict(found["extra"])} for found in jobs(database).values()]


def one_job(tmp_path: Path, case: str, **options: Any) -> dict[str, Any]:
    report, (found,) = read(tmp_path, case, **options)
    assert (report.lines, report.imported) == (1, 1)
    return found


def test_the_token_of_a_job_at_its_ce(tmp_path: Path) -> None:
    found = one_job(tmp_path, "ce-token", routed=Routed.CE)
    assert (found["User"], found["VO"]) == ("https://cms-auth.example.org/1f2e-aaaa", "cms")
    (job,) = records(tmp_path / "imported.db")
    assert job.fqans == ("/cms", "/cms/pilot")


@pytest.mark.parametrize(("case", "cores"), [("ce-xcount", 8), ("ce-token", 8), ("completed-then-removed", 1)])
def test_cores_that_a_ce_was_asked_for(tmp_path: Path, case: str, cores: int) -> None:
    assert one_job(tmp_path, case, routed=Routed.CE)["CPUCount"] == cores


def test_cores_of_a_whole_node(tmp_path: Path) -> None:
    assert one_job(tmp_path, "whole-node")["CPUCount"] == 48


def test_a_job_that_completed_and_was_removed_a_month_later(tmp_path: Path) -> None:
    found = one_job(tmp_path, "completed-then-removed", routed=Routed.CE)
    assert (found["Status"], found["EndTime"], found["UsedWalltime"]) == ("completed", COMPLETED, 3600)


def test_a_job_that_was_held_and_removed_a_month_later(tmp_path: Path) -> None:
    found = one_job(tmp_path, "held-then-removed-late")
    assert (found["Status"], found["EndTime"], found["UsedWalltime"]) == ("aborted", REMOVED, 3600)
    assert found["UsedCPUUserTime"] + found["UsedCPUKernelTime"] == 3100


def test_the_cpu_time_of_the_last_of_three_starts(tmp_path: Path) -> None:
    found = one_job(tmp_path, "restarted-no-cumulative")
    assert (found["UsedWalltime"], found["extra"]["cputime"]) == (3600, "unknown")
    assert (found["UsedCPUUserTime"], found["UsedCPUKernelTime"]) == (0, 0)


def test_a_user_whose_name_has_dots(tmp_path: Path) -> None:
    found = one_job(tmp_path, "acct-group-dots", group_vo_map=CASES / "groups.map")
    assert (found["extra"]["localuser"], found["VO"]) == ("john.doe:group_cms.prod", "cms")


@pytest.mark.parametrize("form", ["long.txt", "history.json"])
def test_forms_of_a_history(tmp_path: Path, form: str) -> None:
    found = one_job(tmp_path, f"formats/{form}")
    assert (found["Status"], found["EndTime"], found["UsedWalltime"]) == ("completed", COMPLETED, 542)
    assert (found["UsedCPUUserTime"], found["UsedCPUKernelTime"], found["CPUCount"]) == (18, 4, 2)


def test_the_history_of_epochs_is_not_one_of_jobs(tmp_path: Path) -> None:
    report, found = read(tmp_path, "formats/epoch_history")
    assert (found, report.skipped) == ([], {"not over (JobStatus 2)": 1})
