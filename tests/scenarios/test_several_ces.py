"""Databases of several CEs, local or copied from elsewhere: each with its name, its time zone, and its jobs once."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import SampleJob, Writer, generate
from tests.fake_ams.service import FakeAMS
from tests.support import sacct_text
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
ONE, TWO = list(generate(1, 5, START, END)), list(generate(2, 7, START, END))


def ce(site: SiteUnderTest, name: str, jobs: list[SampleJob]) -> dict[str, Any]:
    """An entry with a directory of its own."""
    accounting = site.folder / name / "accounting"
    accounting.mkdir(parents=True, exist_ok=True)
    with Writer(accounting / "accounting_v2.db", schema=2) as arex:
        arex.write_all(jobs)
    return {"type": "arex", "name": name, "control_dir": str(site.folder / name), "time_zone": "Europe/Oslo"}


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["source"] = [ce(made, "ce1", ONE), ce(made, "ce2", TWO)]
    return made


def test_jobs_of_all_ces_are_published_once(site: SiteUnderTest) -> None:
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 12), run.err
    assert site.publish().json["targets"]["egi"]["outcome"] == "nothing"
    site.assert_received(*ONE, *TWO)
    assert {*site.run("status", "--json").json["sources"]} == {"ce1", "ce2"}
    assert site.run("stats", "--from", "2026-10", "--to", "2026-10", "--json").json["jobs"] == 12
    assert len(site.run("source", "list", "ce2", "--json").json["databases"]) == 1


def test_each_ce_has_its_own_clock(site: SiteUnderTest) -> None:
    """Only A-REX's events tell the true start, and they are local times."""
    events = [("job", "events", job.job_id, "--json") for job in (ONE[0], TWO[0])]
    before = [site.run(*words).json for words in events]
    site.config["source"][1]["time_zone"] = "Asia/Tokyo"
    site.save()
    after = [site.run(*words).json for words in events]
    assert after[0] == before[0]
    assert after[1] != before[1]


@pytest.mark.parametrize("copied", [False, True])
def test_a_database_that_moved_is_the_same(copied: bool, site: SiteUnderTest) -> None:
    """Also to another file system, where it has another inode."""
    assert site.publish().status == 0
    old, new = site.folder / "ce2", site.folder / "elsewhere"
    if copied:
        shutil.copytree(old, new)
        shutil.rmtree(old)
    else:
        old.rename(new)
    site.config["source"][1]["control_dir"] = str(new)
    site.save()
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["outcome"]) == (0, "nothing"), run.err
    with Writer(new / "accounting" / "accounting_v2.db", schema=2) as arex:
        arex.write_all(list(generate(3, 2, START, END)))
    assert site.publish().json["targets"]["egi"]["records"] == 2
    site.assert_received(*ONE, *TWO, *generate(3, 2, START, END))
    databases = {one["file"]: one for one in site.run("source", "list", "--json").json["databases"]}
    moved = str(new / "accounting" / "accounting_v2.db")
    assert databases.keys() == {str(site.folder / "ce1" / "accounting" / "accounting_v2.db"), moved}
    assert (databases[moved]["there"], databases[moved]["retired"]) == (True, None)
    with closing(sqlite3.connect(moved)) as rows, rows:
        rows.execute("DELETE FROM AAR")
    checked = site.run("sync", "--check", "--json").json["rows"]
    assert [sum(row[what] for row in checked) for what in ("purged", "retired")] == [9, 0]
    shutil.rmtree(new)
    del site.config["source"][1]
    site.save()
    assert site.run("source", "retire", "--force", moved).status == 0
    checked = site.run("sync", "--check", "--json").json["rows"]
    assert [sum(row[what] for row in checked) for what in ("purged", "retired")] == [0, 9]


def test_copies_under_a_new_name_each_day(site: SiteUnderTest) -> None:
    for day in (1, 2, 3):
        folder = site.folder / f"copy-{day}"
        folder.mkdir()
        with Writer(site.folder / "ce2" / "accounting" / "accounting_v2.db", schema=2) as arex:
            arex.write_all(list(generate(10 + day, 2, START, END)))
        with (
            closing(sqlite3.connect(site.folder / "ce2" / "accounting" / "accounting_v2.db")) as live,
            closing(sqlite3.connect(folder / "ce2.db")) as copy,
        ):
            live.backup(copy)
        site.config["source"][1] = {
            "type": "arex",
            "name": "ce2",
            "databases": [str(folder / "ce2.db")],
            "time_zone": "Europe/Oslo",
        }
        site.save()
        run = site.publish()
        assert run.status == 0, run.err
        shutil.rmtree(site.folder / f"copy-{day - 1}", ignore_errors=True)
    assert len(site.received(with_openssl=False)) == 5 + 7 + 6


def test_one_ce_that_is_gone_is_named_and_the_other_is_published(site: SiteUnderTest) -> None:
    shutil.rmtree(site.folder / "ce1")
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (66, 7)
    assert str(site.folder / "ce1") in run.json["targets"]["egi"]["reason"]


def test_what_is_shown_reads_back(site: SiteUnderTest) -> None:
    site.save()
    shown = site.run("config", "show").out
    path = site.folder / "shown.yaml"
    path.write_text(shown)
    assert site.run("--config", str(path), "config", "show").out == shown
    assert "name: ce2" in shown


def test_the_doctor_asks_for_each_ce_s_zone(site: SiteUnderTest) -> None:
    del site.config["source"][1]["time_zone"]
    findings = site.run("doctor", "--json").json["findings"]
    zones = {one["part"]: one["state"] for one in findings if one["name"] == "time zone"}
    assert zones == {"ce1": "ok", "ce2": "warning"}


def cluster(site: SiteUnderTest, name: str, runs: list[SampleJob], **keys: object) -> dict[str, Any]:
    """A Slurm with these runs, in front of which is the CE that has its number."""
    lines = [
        sacct_text.job(
            int(run.local_job_id or 0), Submit=run.end_time - run.wall_s, ElapsedRaw=run.wall_s, Cluster=name
        )
        for run in runs
    ]
    path = site.folder / f"{name}.txt"
    path.write_bytes(sacct_text.text([each for line in lines for each in (line, sacct_text.step(line))]))
    accounting = site.folder / name.replace("hpc", "ce") / "accounting" / "accounting_v2.db"
    return {
        "type": "slurm",
        "name": name,
        "cluster": name,
        "files": [str(path)],
        "arc_databases": [str(accounting)],
    } | keys


@pytest.mark.parametrize("keys", [{}, {"join": "arex", "join_wait": 0}])
@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_clusters_give_the_same_numbers(form: str, keys: dict[str, object], site: SiteUnderTest) -> None:
    """Each CE submits to one of two clusters: a local job of the other one is not its job of that number and time."""
    made = [job for job in generate(3, 60, START, END) if job.status == "completed" and job.local_job_id]
    grid = [replace(job, local_job_id=str(number), lrms="slurm") for number, job in enumerate(made[:6], 1)]
    local = [replace(job, end_time=job.end_time - 7, wall_s=100) for job in grid]
    site.config["targets"]["egi"]["format"] = form
    for folder in ("ce1", "ce2"):
        (site.folder / folder / "accounting" / "accounting_v2.db").unlink()
    ces = [ce(site, "ce1", grid[:4]), ce(site, "ce2", grid[4:])]
    site.config["source"] = [
        *ces,
        cluster(site, "hpc2", [*grid[4:], *local[:2]], **keys),
        cluster(site, "hpc1", [*grid[:4], *local[4:]], **keys),
    ]
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"] > 0) == (0, True), run.err
    assert site.run("stats", "--from", "2026-10", "--to", "2026-10", "--json").json["jobs"] == 10
    # Slurm tells late of jobs whose numbers the other CE's jobs had, which are delivered by now.
    cluster(site, "hpc2", [*grid[4:], *local[:4]])
    run = site.publish()
    assert run.status == 0, run.err
    assert "forgotten" not in run.err
    rows = site.table().rows("Summaries" if "summary" in form else "JobRecords")
    assert sum(int(str(row.get("NumberOfJobs", 1))) for row in rows) == 12
    walls = sum(int(str(row["WallDuration"])) for row in rows)
    assert walls == sum(job.wall_s for job in grid) + 6 * 100
    assert site.run("stats", "--from", "2026-10", "--to", "2026-10", "--json").json["jobs"] == 12


@pytest.mark.parametrize("keys", [{}, {"join": "arex", "join_wait": 0}])
@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_a_ce_in_front_of_no_batch_system(form: str, keys: dict[str, object], site: SiteUnderTest) -> None:
    """Its own is not read here, such as another site's."""
    site.config["targets"]["egi"]["format"] = form
    site.config["source"].append(cluster(site, "hpc1", [], **keys))
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"] > 0) == (0, True), run.err
    assert site.run("stats", "--from", "2026-10", "--to", "2026-10", "--json").json["jobs"] == 12
    assert site.run("explain", TWO[0].job_id).status == 0
    rows = site.table().rows("Summaries" if "summary" in form else "JobRecords")
    assert sum(int(str(row.get("NumberOfJobs", 1))) for row in rows) == 12


def test_a_ce_that_is_gone_keeps_no_other_batch_system_from_being_read(site: SiteUnderTest) -> None:
    site.config["source"].append(cluster(site, "hpc1", [replace(ONE[0], local_job_id="900001")]))
    shutil.rmtree(site.folder / "ce2")
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (66, 5 + 1), run.err
    assert run.json["sources"]["hpc1"]["trouble"] is None
