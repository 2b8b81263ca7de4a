"""The job store is deleted while batch systems forget what they have shown: what a receiver has stays as it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from publisher.jobs.store import remove_store
from tests.fake_ams.service import FakeAMS
from tests.scenarios.test_joined import arex_jobs, show, slurm, total
from tests.support.batch_stores import records
from tests.support.gridengine_files import CLUSTER, Entry, colon, write
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite, SiteUnderTest

ANY = Entry()


@pytest.fixture
def joined(tmp_path: Path, pki: PKI) -> ConfiguredSite:
    """An ARC CE in front of Slurm, three of whose jobs were delivered with their runs' values."""
    return delivered(tmp_path, pki, joined=3)


def delivered(tmp_path: Path, pki: PKI, *, joined: int) -> ConfiguredSite:
    """Return the site after its first round, without its job store; Slurm knew of so many of its three jobs."""
    spool = {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "start": "all", "every": "1s"}
    made = ConfiguredSite(tmp_path, pki, pki.host(), {"out": spool})
    made.config["records"]["statuses"] = ["completed", "failed"]
    made.config["source"] = [made.config["source"], slurm(made)]
    jobs = arex_jobs(3, 7200)
    made.fill(*jobs)
    show(made, *jobs[:joined])
    assert total(made.publish()) == 4
    remove_store(made.state.with_name("jobs.db"))
    return made


def test_a_question_before_the_next_round_leaves_jobs_with_their_runs(joined: ConfiguredSite) -> None:
    asked = joined.run("stats")
    assert (asked.status, "source hpc: was not read yet; `publisher publish` reads it" in asked.err) == (66, True)
    assert total(joined.run("publish", "--json")) == 0
    assert total(joined.publish()) == 0


def test_jobs_of_a_ce_wait_for_a_batch_system_that_cannot_be_read(joined: ConfiguredSite) -> None:
    mishap = joined.folder / "sacct" / "mishap"
    mishap.write_text("fail")
    run = joined.publish()
    assert (run.status, run.json["targets"]["out"]["records"]) == (66, 0)
    mishap.unlink()
    assert total(joined.publish()) == 0


def test_jobs_keep_the_values_of_runs_that_their_batch_system_has_forgotten(joined: ConfiguredSite) -> None:
    show(joined)
    assert total(joined.publish()) == 0
    assert total(joined.publish()) == 0


def test_a_job_that_its_ce_has_corrected_goes_out_again(joined: ConfiguredSite) -> None:
    """Also to less usage, and without its run: what the CE records is whole in its database."""
    show(joined)
    with joined.arex() as arex:
        arex.connection.execute("UPDATE AAR SET UsedWalltime = UsedWalltime - 60 WHERE RecordID = 2")
    assert total(joined.publish()) == 1
    assert total(joined.publish()) == 0


def test_a_job_that_never_had_a_run_lacks_none(tmp_path: Path, pki: PKI) -> None:
    """A correction of what a run might have told goes out: nothing was joined to what was delivered."""
    site = delivered(tmp_path, pki, joined=2)
    with site.arex() as arex:
        arex.connection.execute("UPDATE AAR SET CPUCount = CPUCount + 1 WHERE RecordID = 3")
    assert "1 row would stay at the receiver" in site.publish().err
    assert total(site.publish("--accept-key-change")) == 1
    assert total(site.publish()) == 0


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    paths = [str(made.folder / "common")]
    made.config["source"] = [{"type": "gridengine", "cluster": CLUSTER, "paths": paths}]
    return made


def sent(site: SiteUnderTest) -> int:
    """How many records a round sends."""
    run = site.publish()
    assert run.status == 0, run.err
    records: int = run.json["targets"]["egi"]["records"]
    return records


def log(site: SiteUnderTest, *entries: Entry, name: str = "accounting") -> Path:
    (site.folder / "common").mkdir(exist_ok=True)
    return write(site.folder / "common" / name, map(colon, entries))


def test_files_imported_by_hand_stay_for_the_next_round(site: SiteUnderTest) -> None:
    log(site, replace(ANY, job=1))
    assert sent(site) == 1
    remove_store(site.state.with_name("jobs.db"))
    old = write(site.folder / "old", [colon(replace(ANY, job=9))])
    assert site.run("import", "gridengine", str(old)).status == 0
    assert sent(site) == 1
    assert sorted(job.local_id for job in records(site.state.with_name("jobs.db"))) == ["1", "9"]


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_a_run_whose_log_is_gone_counts_as_before(site: SiteUnderTest, form: str) -> None:
    site.config["targets"]["egi"]["format"] = form
    log(site, replace(ANY, job=1), replace(ANY, job=2))
    sent(site)
    remove_store(site.state.with_name("jobs.db"))
    log(site, replace(ANY, job=2), replace(ANY, job=3))
    assert sent(site) == 1
    months = list(site.received(with_openssl=False))
    if form != "car":
        assert int(str(months[-1]["NumberOfJobs"])) == 3
    assert site.run("sync", "--check", "--months", "all").status == 0


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_a_job_whose_tasks_are_gone_counts_as_before(site: SiteUnderTest, form: str) -> None:
    site.config["targets"]["egi"]["format"] = form
    whole = replace(ANY, job=1, pe="mpi", slots=2)
    log(site, replace(whole, pe_task="1.node1", cpu=500.0, utime=400.0, stime=100.0), name="accounting.0")
    log(site, whole)
    sent(site)
    before = site.received(with_openssl=False)
    remove_store(site.state.with_name("jobs.db"))
    (site.folder / "common" / "accounting.0").unlink()
    assert sent(site) == 0
    assert sent(site) == 0
    assert site.received(with_openssl=False) == before
    for command in ("plan", "sync --check --months all", "republish --from 2026-09 --to 2026-09 --yes"):
        assert site.run(*command.split()).status == 0, command
    assert all(row in before for row in site.received(with_openssl=False)), "a month goes whole, as it was"


def test_a_run_is_moved_by_other_rules_only_where_it_is_published_again(site: SiteUnderTest) -> None:
    log(site, replace(ANY, job=1))
    groups = write(site.folder / "groups.map", [b"theory theo\n"])
    site.config["source"][0]["group_vo_map"] = str(groups)
    assert sent(site) == 1
    write(groups, [b"theory others\n"])
    remove_store(site.state.with_name("jobs.db"))
    assert sent(site) == 0
    words = ("republish", "--from", "2026-09", "--to", "2026-09", "--yes", "--json")
    assert site.run(*words).status == 65, "the row of the other VO stays"
    run = site.run(*words, "--accept-key-change")
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 1), run.err


QUESTIONS = ("publish --force", "status", "doctor", "source list", "source bad-lines", "import gridengine", "explain 1")


@pytest.mark.parametrize("command", QUESTIONS)
def test_what_a_damaged_store_lacks_is_an_error_that_says_what_to_do(site: SiteUnderTest, command: str) -> None:
    log(site, replace(ANY, job=1))
    assert sent(site) == 1
    store = site.state.with_name("jobs.db")
    with closing(sqlite3.connect(store)) as connection:
        for table in ("SourceReading", "ImportFile", "ImportBadLine"):
            connection.execute(f"DROP TABLE {table}")
    run = site.run(*command.split())
    assert run.status in (66, 74), run.err
    assert "it is a cache: delete it, with its -wal and -shm, and run again" in run.out + run.err
    assert "bug" not in run.out + run.err
    remove_store(store)
    assert sent(site) == 0
