"""Databases of several CEs, local or copied from elsewhere: each with its name, its time zone, and its jobs once."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases import SampleJob, Writer, generate
from tests.fake_ams.service import FakeAMS
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
    assert databases[str(old / "accounting" / "accounting_v2.db")]["retired"] is not None
    assert databases[str(new / "accounting" / "accounting_v2.db")]["there"]


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
