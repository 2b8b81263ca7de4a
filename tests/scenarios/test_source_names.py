"""A source is known by its name wherever its database lies; under a new name its jobs are not sent again."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from publisher.jobs.store import remove_store
from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.batch_stores import records
from tests.support.gridengine_files import Entry, colon, write
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

MONTHS = datetime(2026, 9, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(params=["car", "apel-summary-0.4"])
def site(request: pytest.FixtureRequest, tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """Seven jobs of A-REX, and five of Grid Engine that it does not have."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["targets"]["egi"]["format"] = request.param
    made.config["records"]["default_vo"] = "ops"
    made.fill(*generate(3, 7, *MONTHS))
    (tmp_path / "common").mkdir()
    write(tmp_path / "common" / "accounting", [colon(replace(Entry(), job=900 + number)) for number in range(5)])
    entry = {"type": "gridengine", "name": "old", "paths": [str(tmp_path / "common")], "arc_databases": []}
    made.config["source"] = [made.config["source"] | {"name": "ce"}, entry]
    run = made.publish()
    assert run.status == 0, run.err
    return made


def sent_again(site: SiteUnderTest) -> tuple[int, int]:
    """Records, and the exit status."""
    site.save()
    run = site.publish()
    assert run.status in (0, 66), run.err
    return run.json["targets"]["egi"]["records"], run.status


TABLES = ("source_file", "quarantine")


def known_in(site: SiteUnderTest) -> set[str]:
    """What the ledger calls the databases, in all of its tables."""
    with closing(sqlite3.connect(site.state)) as connection:
        return {file for table in TABLES for (file,) in connection.execute(f"SELECT file FROM {table}")}


def ce(site: SiteUnderTest) -> str:
    """A-REX's database goes by its path."""
    return str(Path(site.config["source"][0]["control_dir"]) / "accounting" / "accounting_v2.db")


def test_the_ledger_knows_databases_by_the_names_of_their_sources(site: SiteUnderTest) -> None:
    assert known_in(site) == {ce(site), "old"}
    listed = site.run("source", "list", "--json").json["databases"]
    assert [one["file"] for one in listed] == [ce(site), "old"]
    (of_old,) = site.run("source", "list", "old", "--json").json["databases"]
    assert (of_old["file"], of_old["there"]) == ("old", True)
    explained = site.run("explain", job_of_grid_engine(site), "--json").json
    assert {one["database"] for one in explained["explanations"]} == {"old"}


def job_of_grid_engine(site: SiteUnderTest) -> str:
    return next(job.job_id for job in records(site.state.with_name("jobs.db")) if job.row.database == "old")


def test_a_database_that_is_read_by_its_path_keeps_it(site: SiteUnderTest) -> None:
    """Also beside a new source whose own database has the same name elsewhere."""
    path = site.folder / "other" / "sources" / "new.db"
    path.parent.mkdir(parents=True)
    shutil.copy(ce(site), path)
    site.config["source"].append({"type": "arex", "name": "copy", "databases": [str(path)]})
    assert sent_again(site) == (0, 0)
    write(site.folder / "another", [colon(replace(Entry(), job=1900))])
    entry = {"type": "gridengine", "name": "new", "paths": [str(site.folder / "another")]}
    site.config["source"].append(entry | {"cluster": "other", "arc_databases": []})
    site.save()
    assert "is now called" not in site.publish().err
    assert known_in(site) == {ce(site), str(path), "old", "new"}


def test_a_ledger_may_be_copied_to_another_host(site: SiteUnderTest) -> None:
    """With the job store, and without it: it is made again."""
    other = site.folder / "other-host"
    shutil.copytree(site.state.parent, other)
    site.config["state"] = str(other / site.state.name)
    site.state = other / site.state.name
    shutil.move(site.control, site.folder / "elsewhere")
    site.config["source"][0]["control_dir"] = str(site.folder / "elsewhere")
    site.save()
    run = site.run("publish", "--force", "--json", "--accept-state")
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 0), run.err
    remove_store(other / "jobs.db")
    assert sent_again(site) == (0, 0)
    assert known_in(site) == {ce(site), "old"}
    assert site.run("sync", "--check").status == 0


def test_a_source_under_another_name_is_not_sent_again(site: SiteUnderTest) -> None:
    site.config["source"][1]["name"] = "new"
    assert sent_again(site) == (0, 0)
    assert site.run("sync", "--check").status == 0


def test_under_another_name_and_cluster_it_is_not_read_before_somebody_says_so(site: SiteUnderTest) -> None:
    site.config["source"][1] |= {"name": "new", "cluster": "sge.example.org"}
    assert sent_again(site) == (0, 66)
    run = site.publish()
    assert "source new: source old has read the same files and calls their cluster gridengine" in run.err
    assert "write cluster: gridengine" in run.err
    assert site.run("source", "retire", "old").status == 0
    site.save()
    run = site.publish()
    if site.config["targets"]["egi"]["format"] == "car":
        assert run.status == 65, "their records would take the place of those that were sent"
        assert "key-collision" in run.err
    else:
        assert run.json["targets"]["egi"]["records"] > 0, "the administrator says that these are other jobs"


def test_a_state_directory_may_move(site: SiteUnderTest) -> None:
    shutil.move(site.state.parent, site.folder / "elsewhere")
    site.config["state"] = str(site.folder / "elsewhere" / site.state.name)
    assert sent_again(site) == (0, 0)
    assert site.run("status").status == 0


def test_a_control_directory_may_move(site: SiteUnderTest) -> None:
    shutil.move(site.control, site.folder / "elsewhere")
    site.config["source"][0]["control_dir"] = str(site.folder / "elsewhere")
    assert sent_again(site) == (0, 0)
    site.config["source"][0]["name"] = "another"
    assert sent_again(site) == (0, 0)


def test_a_database_that_lacks_the_newest_row_in_another_place_is_missed_and_not_sent_again(
    site: SiteUnderTest,
) -> None:
    site.control = site.folder / "elsewhere"
    (site.control / "accounting").mkdir(parents=True)
    site.fill(*list(generate(3, 7, *MONTHS))[:6])
    shutil.rmtree(site.folder / "control")
    site.config["source"][0]["control_dir"] = str(site.control)
    assert sent_again(site) == (0, 66)
    gone = site.folder / "control" / "accounting" / "accounting_v2.db"
    assert site.run("source", "retire", str(gone)).status == 0
    assert sent_again(site) == (0, 0)


@pytest.fixture
def two(request: pytest.FixtureRequest, tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    """Two CEs with different jobs, all of them delivered."""
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["records"]["default_vo"] = "ops"
    made.config["source"] = []
    for seed, name in ((3, "one"), (4, "two")):
        made.control = tmp_path / name
        (made.control / "accounting").mkdir(parents=True)
        made.fill(*generate(seed, 5 + seed, *MONTHS))
        made.config["source"].append({"type": "arex", "name": name, "control_dir": str(made.control)})
    made.save()
    run = made.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 17), run.err
    return made


@pytest.mark.parametrize("new_jobs", [0, 2])
def test_sources_may_swap_their_databases(two: SiteUnderTest, new_jobs: int) -> None:
    """In the configuration, then on the disk, then both; what is new in each by then is sent once."""

    def grow(seed: int) -> None:
        for number, name in enumerate(("one", "two")):
            two.control = two.folder / name
            two.fill(*generate(seed + number, new_jobs, *MONTHS))

    first, second = two.config["source"]
    first["control_dir"], second["control_dir"] = second["control_dir"], first["control_dir"]
    grow(10)
    assert sent_again(two) == (2 * new_jobs, 0)
    shutil.move(two.folder / "one", two.folder / "aside")
    shutil.move(two.folder / "two", two.folder / "one")
    shutil.move(two.folder / "aside", two.folder / "two")
    grow(20)
    assert sent_again(two) == (2 * new_jobs, 0)
    first["control_dir"], second["control_dir"] = second["control_dir"], first["control_dir"]
    first["name"], second["name"] = second["name"], first["name"]
    grow(30)
    assert sent_again(two) == (2 * new_jobs, 0)
    assert two.run("sync", "--check").status == 0
