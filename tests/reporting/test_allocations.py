"""Allocations of projects: what was used of them by charges and GPU hours, in a report, by `charge`, and for Nagios."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.batch_stores import as_tables
from tests.support.imported_sites import bring_in, local_site
from tests.support.metrics_site import WatchedSite
from tests.support.pki import PKI
from tests.support.sacct_text import BEGIN, CLUSTER, job, text, write
from tests.support.sites import SiteUnderTest

SEPTEMBER = ("--from", "2026-09", "--to", "2026-09")
YEAR = {"valid_from": "2026-01", "valid_to": "2026-12"}
BIO: dict[str, Any] = {"project": "bio", **YEAR, "charge": 20, "unit": "CPUh", "gpu_hours": "4.5"}
ATLAS: dict[str, Any] = {"project": "atlas", **YEAR, "gpu_hours": 1000}
OCTOBER: dict[str, Any] = {"project": "bio", "valid_from": "2026-10", "valid_to": "2026-10", "gpu_hours": 1}


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """Jobs of an hour and of two projects, some with GPUs, and what these projects may use."""
    made = local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER)
    records = made.config["records"]
    records["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    records["allocations"] = [BIO, ATLAS, OCTOBER]
    lines = [
        job(
            number,
            ElapsedRaw=3600,
            Account=("bio", "atlas")[number % 2],
            AllocTRES=f"cpu=2,gres/gpu={number % 3}",
        )
        for number in range(1, 21)
    ]
    bring_in(made, write(made.folder / "told.psv", text(lines)))
    made.run("charge", *SEPTEMBER)
    return made


def gpu_hours(site: SiteUnderTest, project: str) -> float:
    """As SQLite adds them up."""
    sql = """
    SELECT sum(GPUCount * UsedWalltime) / 3600.0 FROM AAR JOIN JobExtraInfo AS x ON x.RecordID = AAR.RecordID
    WHERE InfoKey = 'projectname' AND InfoValue = ?
    """
    with closing(as_tables(site.state.with_name("jobs.db"))) as connection:
        ((found,),) = connection.execute(sql, (project,)).fetchall()
    return float(found)


def test_charge_shows_what_is_left(site: SiteUnderTest) -> None:
    bio, atlas = gpu_hours(site, "bio"), gpu_hours(site, "atlas")
    assert bio > 4.5
    found = site.run("charge", *SEPTEMBER, "--json").json["allocations"]
    named = {(one["project"], one["unit"]): one for one in found}
    assert {at: (one["granted"], Decimal(one["used"])) for at, one in named.items()} == {
        ("bio", "CPUh"): ("20", 20),
        ("bio", "GPUh"): ("4.5", Decimal(str(bio))),
        ("atlas", "GPUh"): ("1000", Decimal(str(atlas))),
    }
    assert (found[0]["from"], found[0]["to"]) == ("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z")
    shown = site.run("charge", *SEPTEMBER, "--stored").out
    assert "allocation of bio: 20 of 20 CPUh, 100.0 %" in shown
    assert f"allocation of bio: {bio:g} of 4.5 GPUh, {100 * bio / 4.5:.1f} %" in shown
    assert "allocation of bio" not in site.run("charge", *SEPTEMBER, "--stored", "--project", "atlas").out


def test_a_report_has_those_of_its_period(site: SiteUnderTest) -> None:
    site.run("report", *SEPTEMBER, "--csv", str(site.folder / "csv"), "-o", str(site.folder / "page.html"))
    rows = list(csv.DictReader((site.folder / "csv" / "allocations.csv").read_text().splitlines()))
    assert [(row["project"], row["unit"], row["granted"]) for row in rows] == [
        ("atlas", "GPUh", "1000"),
        ("bio", "CPUh", "20"),
        ("bio", "GPUh", "4.5"),
    ]
    assert (rows[1]["used"], rows[1]["share"]) == ("20", "1.000000")
    assert rows[1]["period"] == "2026-01-01 to 2026-12-31"
    page = (site.folder / "page.html").read_text()
    assert "Allocations" in page
    shown = site.run("report", *SEPTEMBER, "--format", "terminal").out
    told = [line for line in shown.splitlines() if line.startswith("! Allocation: bio has used ")]
    assert [line.endswith(" GPUh of 2026-01-01 to 2026-12-31") for line in told] == [False, True]
    assert "atlas has used" not in shown


@pytest.mark.parametrize(
    ("granted", "options", "status", "words"),
    [
        (1000, (), 0, ""),
        (Decimal("21.5"), (), 1, "WARNING - bio: 93 % of the allocation of 21.5 CPUh used"),
        (19, (), 2, "CRITICAL - bio: 105 % of the allocation of 19 CPUh used"),
        (20, (), 1, "WARNING - bio: 100 % of the allocation of 20 CPUh used"),
        (Decimal("19.99"), (), 2, "CRITICAL - bio: 100 % of the allocation of 19.99 CPUh used"),
        (1000, ("--warning", "allocation=1"), 1, "WARNING - bio: 2 % of the allocation of 1000 CPUh used"),
    ],
)
def test_nagios_warns_before_and_alarms_after(
    site: SiteUnderTest, granted: object, options: tuple[str, ...], status: int, words: str
) -> None:
    site.config["records"]["allocations"] = [BIO | {"charge": str(granted), "gpu_hours": None}]
    site.save()
    assert site.publish().status == 0
    run = site.run("status", "--nagios", *options)
    assert run.status == status, run.out
    assert words in run.out
    assert "'bio_CPUh'=" in run.out


def test_nagios_has_one_value_for_a_project_and_unit(site: SiteUnderTest) -> None:
    """The format of performance data allows each label once: of several allocations it is the fullest."""
    hours = BIO | {"charge": None, "unit": None}
    site.config["records"]["allocations"] = [hours | {"gpu_hours": 11}, hours | {"gpu_hours": 1100}]
    site.save()
    assert site.publish().status == 0
    run = site.run("status", "--nagios")
    assert (run.out.count("'bio_GPUh'="), run.out.count("'bio_GPUh'=100%")) == (1, 1)


def test_charges_that_were_never_computed_are_not_zero(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    made = local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER)
    made.config["records"]["charges"] = [{"formula": "NumCPUs * RunTime", "unit": "CPUh"}]
    made.config["records"]["allocations"] = [BIO | {"gpu_hours": None, "charge": 1000}]
    bring_in(made, write(made.folder / "told.psv", text([job(1, ElapsedRaw=3600, Account="bio")])))
    assert made.publish().status == 0
    made.run("charge", "--from", "2025-09", "--to", "2025-09")  # of another time than the allocation
    run = made.run("status", "--nagios")
    assert run.status == 1
    assert "WARNING - bio: its charges were never computed; run `publisher charge`" in run.out
    assert "bio_CPUh" not in run.out
    shown = made.run("report", *SEPTEMBER, "--format", "terminal").out
    assert "! Allocation: the charges of bio were never computed; run `publisher charge`" in shown
    assert made.run("charge", *SEPTEMBER, "--stored", "--json").json["allocations"] == []
    (used,) = made.run("charge", *SEPTEMBER, "--json").json["allocations"]
    assert used["used"] == "2"
    assert made.run("status", "--nagios").status == 0


def test_a_pledge_is_of_a_vo_and_in_hours_of_a_benchmark(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    granted = {"valid_from": "2026-09", "valid_to": "2026-10", "benchmark": "HEPSPEC", "benchmark_hours": 50_000}
    project = {"project": "atlas-t2", "valid_from": "2026-09", "valid_to": "2026-10", "benchmark": "HEPSPEC"}
    site.config["records"]["allocations"] = [
        {"vo": "atlas", **granted, "gpu_hours": 10},
        {**project, "benchmark_hours": 50_000},
    ]
    site.fill(*generate(1, 400, datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 20, tzinfo=UTC)))
    site.run("report", "--from", "2026-10", "--to", "2026-10", "--csv", str(site.folder / "csv"))
    with (site.folder / "csv" / "allocations.csv").open() as file:
        rows = {(row["project"], row["unit"]): float(row["used"]) for row in csv.DictReader(file)}
    vo = "VOID IN (SELECT ID FROM WLCGVOs WHERE Name = 'atlas')"
    first = (
        "(SELECT InfoValue FROM JobExtraInfo AS x WHERE x.RecordID = AAR.RecordID AND InfoKey = 'projectname' LIMIT 1)"
    )
    hours = [benchmark_hours(site, where) for where in (vo, f"{first} = 'atlas-t2'")]
    assert hours[0] > 0
    assert rows == {
        ("VO atlas", "GPUh"): 0,
        ("VO atlas", "HEPSPEC h"): pytest.approx(hours[0]),
        ("atlas-t2", "HEPSPEC h"): pytest.approx(hours[1]),
    }
    shown = site.run("charge", "--from", "2026-10", "--to", "2026-10", "--stored").out
    assert f"allocation of VO atlas: {rows['VO atlas', 'HEPSPEC h']:.6f} of 50000 HEPSPEC h" in shown
    assert "vo: atlas" in site.run("config", "show").out


def test_a_job_that_ends_when_one_allocation_does_is_in_the_next(site: SiteUnderTest) -> None:
    turn = datetime.fromtimestamp(BEGIN + 10 * 60 + 3600, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    halves = [{"valid_from": "2026-09", "valid_to": turn}, {"valid_from": turn, "valid_to": "2026-09"}]
    site.config["records"]["allocations"] = [{"project": "bio", "gpu_hours": 100, **half} for half in halves]
    site.save()
    found = [Decimal(one["used"]) for one in site.run("charge", *SEPTEMBER, "--json").json["allocations"]]
    assert (min(found) > 0, float(sum(found))) == (True, gpu_hours(site, "bio"))


def test_a_project_that_is_called_as_a_user_counts_whole_where_users_are_withheld(site: SiteUnderTest) -> None:
    bring_in(site, write(site.folder / "own.psv", text([job(50, ElapsedRaw=3600, User="bio", Account="bio")])))
    granted = {"project": "bio", **YEAR, "benchmark": "HEPscore23", "benchmark_hours": 1000}
    site.config["records"] |= {"allocations": [granted], "identity": "withheld"}
    site.save()
    (found,) = site.run("charge", *SEPTEMBER, "--json").json["allocations"]
    assert Decimal(found["used"]) == 11 * 2 * Decimal("11.5")


def benchmark_hours(site: SiteUnderTest, where: str) -> float:
    """Of jobs of two months whose benchmark is HEPSPEC, as SQLite adds them up."""
    sql = f"""
    SELECT sum(UsedWalltime * max(coalesce(CPUCount, 0), 1) * CAST(substr(b.Name, 9) AS REAL)) / 3600
    FROM AAR JOIN Benchmarks AS b ON b.ID = BenchmarkID JOIN Status ON Status.ID = StatusID
    WHERE b.Name LIKE 'HEPSPEC:%' AND Status.Name <> 'in-progress' AND {where}
          AND EndTime >= strftime('%s', '2026-09-01') AND EndTime < strftime('%s', '2026-11-01')
    """
    with closing(sqlite3.connect(site.database())) as connection:
        ((found,),) = connection.execute(sql).fetchall()
    return float(found or 0)


def test_nagios_looks_at_what_holds_now(site: SiteUnderTest) -> None:
    site.config["records"]["allocations"] = [OCTOBER | {"valid_from": "2026-09", "gpu_hours": "0.1"}]
    site.save()
    assert site.publish().status == 0
    run = site.run("status", "--nagios")
    assert (run.status, "allocation" in run.out) == (0, False)


def test_metrics_have_the_share_of_the_fullest(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    watched = WatchedSite(local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER))
    hours = BIO | {"charge": None, "unit": None}
    watched.site.config["records"]["allocations"] = [hours | {"gpu_hours": 4}, hours | {"gpu_hours": 8}]
    watched.site.save()
    lines = [job(1, ElapsedRaw=3600, Account="bio", AllocTRES="cpu=1,gres/gpu=2")]
    watched.site.run("import", "slurm", str(write(tmp_path / "told.psv", text(lines))))
    watched.round()
    assert watched.told()["publisher_allocation_used_ratio", "bio", "GPUh"] == 0.5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"valid_to": None}, "valid_to: missing"),
        ({"unit": None}, "has charge and no unit"),
        ({"charge": None, "gpu_hours": None, "unit": None}, "has none of charge, gpu_hours and benchmark_hours"),
        ({"project": None}, "write either project or vo"),
        ({"vo": "atlas"}, "write either project or vo"),
        ({"project": None, "vo": "atlas"}, "has charge, which projects have"),
        ({"benchmark": "HEPscore23"}, "write benchmark and benchmark_hours together"),
        ({"benchmark": "HS06", "benchmark_hours": 3}, "'HS06' is none of Si2k, HEPSPEC, HEPscore23"),
        ({"gpu_hours": "0"}, "gpu_hours: '0' is not a number above 0"),
        ({"valid_to": "2025-12"}, "valid_from 2026-01 is after valid_to 2025-12"),
    ],
)
def test_a_wrong_allocation_is_named(site: SiteUnderTest, change: dict[str, Any], reason: str) -> None:
    wrong = {key: value for key, value in (BIO | change).items() if value is not None}
    site.config["records"]["allocations"] = [wrong]
    site.save()
    run = site.run("config", "check")
    assert run.status == 78
    assert reason in run.err


def test_the_configuration_shows_them(site: SiteUnderTest) -> None:
    assert "gpu_hours: '4.5'" in site.run("config", "show").out
