"""CPU time that nobody measured is not known, and not zero, wherever people see it."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fake_ams.service import FakeAMS
from tests.support.imported_sites import bring_in, local_site
from tests.support.pki import PKI
from tests.support.sacct_text import CLUSTER, job, step, text, write
from tests.support.sites import SiteUnderTest

NO_CPU = {"TotalCPU": "00:00:00", "UserCPU": "00:00:00", "SystemCPU": "00:00:00"}


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """Job 1 used CPU time, 2 none, 3 was lost with its node, and 4 had no step."""
    made = local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER)
    used, idle, lost, alone = job(1), job(2, **NO_CPU), job(3, State="NODE_FAIL", **NO_CPU), job(4, **NO_CPU)
    lines = [used, step(used), idle, step(idle), lost, step(lost, ExitCode="", MaxRSS=""), alone]
    bring_in(made, write(made.folder / "told.psv", text(lines)))
    return made


def test_stats_count_the_jobs_of_which_it_is_not_known(site: SiteUnderTest) -> None:
    found = site.run("stats", "--by", "state", "--json").json
    assert (found["jobs"], found["cpu_unknown"]) == (4, 2)
    assert {group["name"]: group["cpu_unknown"] for group in found["groups"]} == {"completed": 1, "failed": 1}
    assert "CPU time not measured by the batch system, and not in these sums: 2 of the jobs" in site.run("stats").out
    one_by_one = site.run("stats", "--filter-extra", "lrms", "slurm", "--json").json
    assert one_by_one["cpu_unknown"] == 2


def test_status_and_sync_count_them(site: SiteUnderTest) -> None:
    shown = site.run("status")
    assert "slurm: CPU time unknown: 2 of 4 jobs in the four weeks up to its newest one" in shown.out, shown.out
    assert site.run("status", "--json").json["sources"]["slurm"]["cpu_unknown_in_four_weeks"] == 2
    shown = site.run("sync", "--check", "--months", "all")
    assert "CPU time unknown, and 0 in what APEL reads: 2 jobs" in shown.out, shown.out
    assert site.run("sync", "--check", "--months", "all", "--json").json["cpu_unknown"] == 2
    assert site.run("sync", "--check", "--months", "1", "--json").json["cpu_unknown"] == 0


def test_export_leaves_it_empty(site: SiteUnderTest) -> None:
    run = site.run("export", "--from", "2020-01", "--to", "2030-01", "--format", "json-lines")
    assert run.status == 0, run.err
    rows = {row["local_id"]: row for row in map(json.loads, run.out.splitlines())}
    names = ("cpu_s", "cpu_user_s", "cpu_kernel_s", "cpu_efficiency")
    for number in "34":
        assert [rows[number][name] for name in names] == [None] * 4
    assert rows["2"]["cpu_s"] == 0
    assert rows["1"]["cpu_s"] > 0


def test_a_job_says_so(site: SiteUnderTest) -> None:
    run = site.run("stats", "-o", "jobids")
    found = [site.run("job", "info", job_id, "--json").json for job_id in run.out.split()]
    known = {one["local_id"]: one["cpu_user_s"] is not None for one in found}
    assert known == {"1": True, "2": True, "3": False, "4": False}


def test_a_report_leaves_them_out_of_the_efficiency(site: SiteUnderTest) -> None:
    """What the two jobs used that were measured, over the cores that these had: 200 of 400 s of wall time, two cores each."""
    folder = site.folder / "csv"
    run = site.run("report", "--from", "2026-09", "--to", "2026-10", "--csv", str(folder))
    assert run.status == 0, run.err
    (day,) = csv.DictReader((folder / "queues.csv").read_text().splitlines())
    assert (day["jobs"], day["wall_core_s"], day["cpu_s"], day["cpu_unknown"]) == ("4", "800", "91", "2")
    assert float(day["cpu_efficiency"]) == pytest.approx(91 / 400, abs=1e-6)
    by_status = {row["status"]: row for row in csv.DictReader((folder / "statuses.csv").read_text().splitlines())}
    assert {name: row["cpu_unknown"] for name, row in by_status.items()} == {"completed": "1", "failed": "1"}
    assert by_status["failed"]["cpu_efficiency"] == ""
    shown = site.run("report", "--format", "terminal", "--from", "2026-09", "--to", "2026-10").out
    assert "! CPU time: 2 jobs have none that was measured; the efficiency is of the others" in shown
    assert "CPU efficiency        22.8 %" in shown


def found_of(site: SiteUnderTest, form: str) -> dict[str, dict[str, Any]]:
    """What `explain` tells in a format, by local id."""
    site.config["records"]["benchmark"] = {"type": "HEPscore23", "value": 10}
    site.save()
    found = {}
    for job_id in site.run("stats", "-o", "jobids").out.split():
        (one,) = site.run("explain", job_id, "--format", form, "--json").json["explanations"]
        found[one["local_id"]] = one
    return found


@pytest.mark.parametrize(
    ("form", "known", "zero", "unknown"),
    [
        (
            "car",
            r"CpuDuration",
            r'"user">PT0S<.*"system">PT0S<.*"all">PT0S<',
            '>PT100S</WallDuration><CpuDuration urf:usageType="all" urf:description="not measured">PT0S<',
        ),
        (
            "ogf-ur",
            r"CpuDuration.*UserTime.*KernelTime",
            r"CpuDuration.*UserTime.*KernelTime",
            r"^((?!CpuDuration|UserTime|KernelTime).)*$",
        ),
        (
            "auditor-record",
            r'"TotalCPU", "amount": 91',
            r'"TotalCPU", "amount": 0',
            r'"total_cpu": \["unknown"\].*"TotalCPU", "amount": 0',
        ),
        ("apel-job-0.4", r"CpuDuration: 91", r"CpuDuration: 0", r"CpuDuration: 0"),
    ],
)
def test_records_say_so_where_their_format_can(
    form: str, known: str, zero: str, unknown: str, site: SiteUnderTest
) -> None:
    found = found_of(site, form)
    for number, wanted in {"1": known, "2": zero, "3": unknown, "4": unknown}.items():
        record = " ".join(found[number]["record"].split("\n"))
        assert re.search(wanted, record), (number, record)
        assert ("unknown" in record or "not measured" in record) <= (number in "34")
        (value,) = [one for one in found[number]["values"] if one["name"] == "CpuDuration"]
        if number in "34":
            rule = "nobody measured it; a format that wants a number has 0"
            assert (value["value"], value["rule"]) == ("unknown", rule)
        else:
            assert value["value"].startswith({"1": ("91 s", "81 s user"), "2": "0 s"}[number])


def test_records_have_a_number_because_formats_want_one(site: SiteUnderTest) -> None:
    assert site.publish().status == 0
    assert sorted((row["LocalJobId"], int(row["CpuDuration"]) > 0) for row in site.received(with_openssl=False)) == [
        ("1", True),
        ("2", False),
        ("3", False),
        ("4", False),
    ]
