"""What status, Nagios, metrics, doctor and the report know of each source, and the alarm for one that has no jobs any more."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support import condor_history
from tests.support.gridengine_files import CLUSTER, Entry, colon, write
from tests.support.metrics_site import samples
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

DAY_S = 86_400
BUSY = 2_800  # 100 a day for four weeks


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """A site with Grid Engine, whose targets wait for jobs of another VO: what is read matters here."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["source"] = [
        {"type": "gridengine", "name": "old", "cluster": CLUSTER, "paths": [str(made.folder / "common")]}
    ]
    made.config["targets"]["egi"]["vos"] = ["nobody"]
    return made


def entries(jobs: int, newest: int, first: int = 1) -> Iterator[Entry]:
    """So many jobs, the last of which ended then and the others within the four weeks before."""
    for number in range(jobs):
        ended = newest - 27 * DAY_S * number // max(jobs, 1)
        yield replace(Entry(), job=first + number, submitted=ended - 700, started=ended - 600, ended=ended)


def log(site: SiteUnderTest, jobs: int, days_ago: float, first: int = 1) -> None:
    (site.folder / "common").mkdir(exist_ok=True)
    path = site.folder / "common" / "accounting"
    before = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    newest = int(time.time() - days_ago * DAY_S)
    write(path, [*before, *map(colon, entries(jobs, newest, first))])


@pytest.mark.parametrize(("jobs", "days_ago", "silent"), [(BUSY, 2.1, True), (BUSY, 1.9, False), (BUSY - 30, 9, False)])
def test_a_busy_source_without_jobs_for_two_days_is_a_warning(
    jobs: int, days_ago: float, silent: bool, site: SiteUnderTest
) -> None:
    log(site, jobs, days_ago)
    assert site.publish().status == 0
    run = site.run("status", "--json")
    assert run.status == 0
    assert (run.json["sources"]["old"]["silence"] is not None) == silent
    assert run.json["sources"]["old"]["jobs_in_four_weeks"] == jobs
    assert ("source old: no job has ended since 20" in run.err) == silent
    nagios = site.run("status", "--nagios")
    assert (nagios.status, "source old: no job has ended since" in nagios.out) == (int(silent), silent)


def test_the_next_job_ends_the_silence(site: SiteUnderTest) -> None:
    log(site, BUSY, 3)
    assert site.publish().status == 0
    assert site.run("status", "--nagios").status == 1
    log(site, 1, 0.1, first=BUSY + 1)
    assert site.publish().status == 0
    assert site.run("status", "--nagios").status == 0


def test_a_source_that_is_not_read_is_one_alarm_and_not_two(site: SiteUnderTest) -> None:
    log(site, BUSY, 3)
    site.config["source"][0]["paths"] = [str(site.folder / "common"), str(site.folder / "gone")]
    assert site.publish().status == 66
    found = site.run("status", "--json").json["sources"]["old"]
    assert (
        found["alarm"]
        == f"source old: has never been read in full: {site.folder}/gone: No such file or directory; correct the path"
    )
    assert found["silence"] is None


def test_a_source_is_not_shown_as_read_when_that_failed(site: SiteUnderTest) -> None:
    site.config["source"][0]["paths"] = [str(site.folder / "gone")]
    assert site.publish().status == 66
    run = site.run("status")
    (row,) = [line.split() for line in run.out.splitlines() if line.startswith("old")]
    assert row[2:] == ["never", "-", "0", "failing"]
    assert f"{site.folder}/gone: No such file or directory; correct the path" in run.err


@pytest.mark.slow
def test_a_busy_ce_without_jobs_is_silent_too(site: SiteUnderTest) -> None:
    now = datetime.now(UTC)
    site.config["source"] = [{"type": "arex", "name": "ce1", "control_dir": str(site.control), "time_zone": "UTC"}]
    site.fill(*generate(1, BUSY, now - timedelta(days=20), now - timedelta(days=3)))
    assert site.publish().status == 0
    run = site.run("status", "--json")
    found = run.json["sources"]["ce1"]
    assert (found["type"], found["last_read"], found["set_aside"]) == ("arex", None, None)
    assert found["database"] == str(site.database())
    assert "source ce1: no job has ended since" in run.err
    site.fill(*generate(2, 1, now - timedelta(hours=2), now - timedelta(hours=1)))
    assert site.publish().status == 0
    assert site.run("status", "--json").json["sources"]["ce1"]["silence"] is None


def test_the_newest_job_of_a_ce_is_the_newest_that_was_loaded(site: SiteUnderTest) -> None:
    """The accounting database is not asked again: it may have been locked, or purged since."""
    began = datetime.now(UTC)
    site.config["source"] = [{"type": "arex", "name": "ce1", "control_dir": str(site.control), "time_zone": "UTC"}]
    site.fill(*generate(1, 20, began - timedelta(days=20), began - timedelta(days=3)))
    (before,) = site.run("source", "list", "--json").json["sources"].values()
    assert (before["newest_end_time"], before["jobs_in_four_weeks"]) == (None, None)
    assert site.publish().status == 0
    (loaded,) = site.run("source", "list", "--json").json["sources"].values()
    assert (loaded["newest_end_time"] is not None, loaded["jobs_in_four_weeks"]) == (True, 20)
    with closing(sqlite3.connect(site.database())) as database, database:
        database.execute("DELETE FROM AAR")
    (purged,) = site.run("source", "list", "--json").json["sources"].values()
    assert purged == loaded


def test_a_job_of_the_future_ends_no_silence(site: SiteUnderTest) -> None:
    log(site, BUSY, 3)
    log(site, 1, -30, first=BUSY + 1)
    assert site.publish().status in (0, 65)
    assert site.run("status", "--json").json["sources"]["old"]["silence"] is not None


def test_metrics_tell_of_a_source_that_was_never_read(site: SiteUnderTest) -> None:
    """What the rule PublisherSourceNeverRead asks for."""
    file, log_file = site.folder / "publisher.prom", site.folder / "gone"
    site.config["metrics"] = {"textfile": str(file)}
    site.config["source"][0]["paths"] = [str(log_file)]
    assert site.publish().status == 66
    told = samples(file.read_text())
    assert told["publisher_source_set_aside_lines", "old"] == 0
    assert ("publisher_source_read_timestamp_seconds", "old") not in told
    write(log_file, map(colon, entries(1, int(time.time()))))
    assert site.publish().status == 0
    assert ("publisher_source_read_timestamp_seconds", "old") in samples(file.read_text())


@pytest.mark.slow
def test_metrics_tell_of_each_source_as_long_as_it_is_configured(site: SiteUnderTest) -> None:
    file = site.folder / "publisher.prom"
    site.config["metrics"] = {"textfile": str(file)}
    log(site, BUSY, 3)
    with (site.folder / "common" / "accounting").open("ab") as out:
        out.write(b"torn\n")
    began = time.time()
    assert site.publish().status == 0
    told = samples(file.read_text())
    assert told["publisher_source_read_timestamp_seconds", "old"] >= int(began)
    assert told["publisher_source_newest_job_timestamp_seconds", "old"] == pytest.approx(began - 3 * DAY_S, abs=60)
    assert told["publisher_source_set_aside_lines", "old"] == 1
    assert told["publisher_source_silent", "old"] == 1
    site.config["source"][0]["name"] = "new"
    site.save()
    assert site.publish().status in (0, 66)
    told = samples(file.read_text())
    assert {at[1] for at in told if at[0].startswith("publisher_source_")} == {"new"}


@pytest.mark.slow
def test_the_doctor_tells_of_each_source(site: SiteUnderTest) -> None:
    log(site, BUSY, 3)
    before = {
        (one["name"], one["state"]) for one in site.run("doctor", "--json").json["findings"] if one["part"] == "old"
    }
    assert ("last reading", "warning") in before
    with (site.folder / "common" / "accounting").open("ab") as out:
        out.write(b"torn\n")
    assert site.publish().status == 0
    after = {one["name"]: one for one in site.run("doctor", "--json").json["findings"] if one["part"] == "old"}
    assert (after["last reading"]["state"], after["bad lines"]["state"]) == ("ok", "warning")
    assert after["newest job"]["state"] == "warning"
    assert "100 a day did" in after["newest job"]["found"]


def test_the_report_has_a_table_of_sources(site: SiteUnderTest) -> None:
    log(site, BUSY, 3)
    assert site.publish().status == 0
    run = site.run("report", "--format", "terminal", "--csv", str(site.folder / "csv"))
    assert run.status == 0, run.err
    assert "! Source: old: no job has ended since" in run.out
    head, row, *_ = (site.folder / "csv" / "sources.csv").read_text().splitlines()
    found = dict(zip(head.split(","), row.split(","), strict=True))
    assert (found["source"], found["jobs_in_four_weeks"], found["set_aside_lines"]) == ("old", str(BUSY), "0")


def test_an_empty_or_missing_directory_that_had_jobs_is_trouble(site: SiteUnderTest) -> None:
    folder = site.folder / "history-per-job"
    folder.mkdir()
    entry = {"type": "htcondor", "cluster": condor_history.CLUSTER, "history": str(folder)}
    site.config["source"] = [entry]
    assert site.publish().status == 66  # it has nothing, and whether that is right nobody knows
    condor_history.spool(folder, [condor_history.ad(1)])
    assert site.publish().status == 0
    for each in folder.iterdir():
        each.unlink()
    run = site.publish()
    assert run.status == 66
    assert f"source htcondor: {folder}: is empty, and had files of jobs before" in run.err
    assert site.publish().status == 66, "as long as it is"
    folder.rmdir()
    run = site.publish()
    assert (run.status, f"{folder}: No such file" in run.err) == (66, True)
    folder.mkdir()
    condor_history.spool(folder, [condor_history.ad(2)])
    assert site.publish().status == 0
    assert json.loads(site.run("status", "--json").out)["sources"]["htcondor"]["trouble"] is None
