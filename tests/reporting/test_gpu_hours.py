"""GPU hours, wherever usage is shown, against sums that SQLite makes of the rows."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.batch_stores import as_tables
from tests.support.imported_sites import bring_in, local_site
from tests.support.pki import PKI
from tests.support.sacct_text import CLUSTER, job, jobs_of, text, write
from tests.support.sites import SiteUnderTest
from tests.support.spring_2028 import FEBRUARY, MARCH

GPUS = "billing=3,cpu=2,gres/gpu:a100=1,gres/gpu:t4=1,gres/gpu=2,mem=4G,node=1"


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """A cluster of which two jobs in three had GPUs, a few of two models."""
    made = local_site(tmp_path, pki, fake_ams, "slurm", CLUSTER)
    lines = [*jobs_of(3, 150), *(job(1000 + number, AllocTRES=GPUS, Partition="gpu") for number in range(5))]
    bring_in(made, write(made.folder / "told.psv", text(lines)))
    return made


def asked(site: SiteUnderTest, sql: str) -> list[tuple[Any, ...]]:
    with closing(as_tables(site.state.with_name("jobs.db"))) as connection:
        return connection.execute(sql).fetchall()


LOCAL_USER = "(SELECT InfoValue FROM JobExtraInfo AS x WHERE x.RecordID = AAR.RecordID AND InfoKey = 'localuser')"
SUMS = "count(*), sum(GPUCount > 0), sum(GPUCount * UsedWalltime)"


def told(totals: dict[str, Any]) -> tuple[int, int, int]:
    return totals["jobs"], totals["gpu_jobs"], totals["gpu_s"]


def test_stats_count_the_jobs_with_gpus_and_their_hours(site: SiteUnderTest) -> None:
    ((jobs, gpu_jobs, gpu_s),) = asked(site, f"SELECT {SUMS} FROM AAR")
    assert 0 < gpu_jobs < jobs
    found = site.run("stats", "--by", "queue", "--json").json
    assert told(found) == (jobs, gpu_jobs, gpu_s)
    by_queue = asked(site, f"SELECT Name, {SUMS} FROM AAR JOIN Queues ON QueueID = ID GROUP BY Name")
    found_groups = {group["name"]: told(group) for group in found["groups"]}
    assert found_groups == {name: tuple(rest) for name, *rest in by_queue}
    line = next(line for line in site.run("stats").out.splitlines() if line.startswith("GPU time"))
    assert f"{gpu_s / 3600:,.1f} h of {gpu_jobs:,} jobs ({100 * gpu_jobs / jobs:.1f} %)" in line


LOCAL = {
    "project": "(SELECT InfoValue FROM JobExtraInfo AS x WHERE x.RecordID = AAR.RecordID AND InfoKey = 'projectname')",
    "local-user": f"substr({LOCAL_USER}, 1, instr({LOCAL_USER}, ':') - 1)",
    "account": f"substr({LOCAL_USER}, instr({LOCAL_USER}, ':') + 1)",
}


@pytest.mark.parametrize("by", sorted(LOCAL))
@pytest.mark.parametrize(("options", "where"), [((), "1"), (("--filter-gpus",), "GPUCount > 0")])
def test_stats_group_by_local_names(site: SiteUnderTest, by: str, options: tuple[str, ...], where: str) -> None:
    told_groups = site.run("stats", "--by", by, "--json", *options).json["groups"]
    expected = asked(site, f"SELECT {LOCAL[by]}, {SUMS} FROM AAR WHERE {where} GROUP BY 1")
    assert len(expected) > 2
    assert {group["name"]: told(group) for group in told_groups} == {name: tuple(rest) for name, *rest in expected}


@pytest.mark.parametrize("by", ["vo", "user", "state", "queue", "endpoint", "month", *sorted(LOCAL)])
def test_groups_add_up_to_the_whole(site: SiteUnderTest, by: str) -> None:
    found = site.run("stats", "--by", by, "--json").json
    groups = [told(group) for group in found["groups"]]
    assert tuple(map(sum, zip(*groups, strict=True))) == told(found)


def test_a_filter_takes_jobs_with_gpus_alone(site: SiteUnderTest) -> None:
    ((jobs, gpu_s),) = asked(site, "SELECT count(*), sum(GPUCount * UsedWalltime) FROM AAR WHERE GPUCount > 0")
    assert told(site.run("stats", "--filter-gpus", "--json").json) == (jobs, jobs, gpu_s)
    ids = site.run("stats", "--filter-gpus", "-o", "jobids").out.split()
    assert sorted(ids) == sorted(one for (one,) in asked(site, "SELECT JobID FROM AAR WHERE GPUCount > 0"))
    queue = site.run("stats", "--filter-gpus", "--filter-queue", "gpu", "--json").json
    assert (queue["jobs"], queue["gpu_s"]) == (5, 5 * 100 * 2)


def test_export_tells_them_job_by_job(site: SiteUnderTest) -> None:
    rows = list(csv.DictReader(io.StringIO(site.run("export", "--format", "csv").out)))
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        sums[row["gpu_models"]] += int(row["gpu_s"] or 0)
    ((gpu_s,),) = asked(site, "SELECT sum(GPUCount * UsedWalltime) FROM AAR")
    assert sum(sums.values()) == gpu_s
    both = next(models for models in sums if "a100" in models)
    assert ("t4" in both, sums[both]) == (True, 1000)


FINISHED = "JOIN Status ON Status.ID = StatusID AND Status.Name IN ('completed', 'failed', 'aborted')"
NAMED = f"""
    SELECT {{}}, {SUMS} FROM AAR {FINISHED}
    JOIN WLCGVOs ON WLCGVOs.ID = VOID JOIN Queues ON Queues.ID = QueueID JOIN Users ON Users.ID = UserID
    LEFT JOIN JobExtraInfo AS x ON x.RecordID = AAR.RecordID AND InfoKey = 'projectname' GROUP BY 1
"""


PERIOD = ("--from", "2026-09", "--to", "2026-10")


@pytest.fixture
def tables(site: SiteUnderTest) -> dict[str, list[dict[str, str]]]:
    """The CSV files of a report on all jobs."""
    folder = site.folder / "csv"
    by = [f"--by={name}" for name in LOCAL]
    run = site.run("report", "--from", "2026-09", "--to", "2026-10", *by, "--csv", str(folder))
    assert run.status == 0, run.err
    return {path.stem: list(csv.DictReader(path.read_text().splitlines())) for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("table", "key", "column"),
    [
        ("vos", "vo", "WLCGVOs.Name"),
        ("queues", "queue", "Queues.Name"),
        ("users", "user", "Users.Name"),
        ("statuses", "status", "Status.Name"),
        ("projects", "project", "InfoValue"),
        ("accounts", "account", LOCAL["account"]),
        ("local_users", "local_user", LOCAL["local-user"]),
        ("days", "day", "strftime('%Y-%m-%d', EndTime, 'unixepoch')"),
    ],
)
def test_a_report_has_them_by_name_and_day(
    site: SiteUnderTest, tables: dict[str, list[dict[str, str]]], table: str, key: str, column: str
) -> None:
    expected = {str(name): tuple(rest) for name, *rest in asked(site, NAMED.format(column))}
    found = {row[key]: (int(row["jobs"]), int(row["gpu_jobs"]), int(row["gpu_s"])) for row in tables[table]}
    assert {name: sums for name, sums in found.items() if sums[0]} == expected
    for row in tables[table]:
        share = int(row["gpu_jobs"]) / int(row["jobs"]) if int(row["jobs"]) else None
        assert row["gpu_share"] == ("" if share is None else f"{share:.6f}")


def test_a_report_has_them_by_model(site: SiteUnderTest, tables: dict[str, list[dict[str, str]]]) -> None:
    found = {row["gpu_model"]: (int(row["gpu_jobs"]), int(row["gpu_s"])) for row in tables["gpu_models"]}
    ((jobs, gpu_s),) = asked(site, "SELECT sum(GPUCount > 0), sum(GPUCount * UsedWalltime) FROM AAR")
    assert found == {"a100": (5, 500), "t4": (5, 500), "": (jobs - 5, gpu_s - 1000)}
    ((every,),) = asked(site, f"SELECT count(*) FROM AAR {FINISHED}")
    assert {row["gpu_share"] for row in tables["gpu_models"]} == {f"{5 / every:.6f}", f"{(jobs - 5) / every:.6f}"}


def test_local_names_are_shown_where_they_are_asked_for(site: SiteUnderTest) -> None:
    shown = {by: site.run("report", *PERIOD, "--format", "terminal", "--by", by).out for by in LOCAL}
    for by, title in (("project", "Top projects"), ("account", "By account"), ("local-user", "By local user")):
        assert [name for name, text in shown.items() if f"{title}\n" in text] == [by]
    assert "Top projects\n" in site.run("report", *PERIOD, "--format", "terminal").out
    site.run("report", *PERIOD, "--by", "account", "-o", str(site.folder / "page.html"))
    assert "By account" in (site.folder / "page.html").read_text()


def test_local_users_are_not_named_where_users_are_withheld(site: SiteUnderTest) -> None:
    site.config["records"]["identity"] = "withheld"
    site.save()
    run = site.run("report", *PERIOD, "--format", "terminal", "--by", "local-user")
    assert (run.status, run.out) == (64, "")
    assert "records.identity" in run.err
    fill = [job(5000, User="bio", Account="bio", AllocTRES=GPUS)]
    bring_in(site, write(site.folder / "own.psv", text(fill)))
    shown = site.run("report", *PERIOD, "--format", "terminal", "--by", "account").out
    assert "(a user's own)" in shown


def test_a_report_shows_them_first_and_on_its_page(site: SiteUnderTest) -> None:
    ((jobs, gpu_jobs, gpu_s),) = asked(site, f"SELECT {SUMS} FROM AAR")
    page = site.folder / "report.html"
    run = site.run("report", "--from", "2026-09", "--to", "2026-10", "-o", str(page))
    assert run.status == 0, run.err
    text_of_page = page.read_text()
    shown = site.run("report", "--from", "2026-09", "--to", "2026-10", "--format", "terminal").out
    models = shown.partition("By GPU model")[2].partition("\n\n")[0]
    assert ("a100" in models, "\N{EN DASH}" in models, "(none)" in models) == (True, True, False)
    assert "--by local-user shows whom they ran as" in run.err
    assert "--by local-user" not in text_of_page
    for words in ("GPU h", "GPU share", "a100", f"of {gpu_jobs} jobs", f"{100 * gpu_jobs / jobs:.1f} %"):
        assert words in text_of_page, words
    assert f"{round(gpu_s / 3600):,}" in text_of_page


def test_where_no_source_tells_of_gpus_nothing_is_said(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    plain = SiteUnderTest(tmp_path, pki, fake_ams)
    plain.fill(*generate(3, 20, FEBRUARY, MARCH))
    assert told(plain.run("stats", "--json").json)[1:] == (0, 0)
    assert "GPU" not in plain.run("stats").out
    shown = plain.run("report", "--from", "2028-02", "--to", "2028-03", "--format", "terminal").out
    assert "By VO" in shown
    assert "GPU" not in shown
