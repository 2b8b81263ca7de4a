"""A batch system that cannot be read is no success, in no output, from the first reading on, and all is right when it can."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from publisher.jobs.file import loader_lock
from tests.fake_ams.service import FakeAMS
from tests.support import condor_history, gridengine_files, sacct_text, sonar_files
from tests.support.metrics_site import samples
from tests.support.pki import PKI
from tests.support.sites import Run, SiteUnderTest
from tests.support.stand_in_sacct import install

NOW = int(time.time())


class BatchSystem(NamedTuple):
    """How one is configured, how a job of it ends, and what its accounting is read from: without that it is broken."""

    entry: Callable[[Path], dict[str, Any]]
    finish: Callable[[Path, int], object]
    read_from: str


def _slurm_job(number: int) -> list[dict[str, object]]:
    job = sacct_text.job(number, Submit=NOW - 46_000, Eligible=NOW - 46_000, Start=NOW - 45_000, End=NOW - 43_200)
    return [job, sacct_text.step(job)]


def _sacct(folder: Path) -> dict[str, Any]:
    """The program is found by a link of its own, which may be missing."""
    _, *arguments = install(folder / "sacct", [])
    (folder / "bin").mkdir()
    (folder / "bin" / "sacct").symlink_to(sys.executable)
    command = [str(folder / "bin" / "sacct"), *arguments]
    return {"type": "slurm", "cluster": sacct_text.CLUSTER, "command": command, "look_back_s": "2d"}


def _sacct_job(folder: Path, number: int) -> None:
    install(folder / "sacct", [line for each in range(1, number + 1) for line in _slurm_job(each)])


def _slurm_file(folder: Path) -> dict[str, Any]:
    return {"type": "slurm", "cluster": sacct_text.CLUSTER, "files": [str(folder / "sacct.txt")]}


def _in_slurm_file(folder: Path, number: int) -> None:
    lines = [line for each in range(1, number + 1) for line in _slurm_job(each)]
    (folder / "sacct.txt").write_bytes(sacct_text.text(lines))


def _in_grid_engine(folder: Path, number: int) -> None:
    (folder / "common").mkdir(exist_ok=True)
    with (folder / "common" / "accounting").open("ab") as log:
        log.write(gridengine_files.colon(replace(gridengine_files.Entry(), job=number)))


def _in_condor(folder: Path, number: int) -> None:
    (folder / "history").mkdir(exist_ok=True)
    condor_history.spool(folder / "history", [condor_history.ad(number)])


def _in_sonar(folder: Path, number: int) -> None:
    day = folder / "sonar" / "2026" / "09" / "21"
    day.mkdir(parents=True, exist_ok=True)
    with (day / "0+job-slurm.json").open("ab") as file:
        file.write(sonar_files.envelope([sonar_files.record(job_id=number)], at=datetime.now(UTC).isoformat()))


def _of(system: str, cluster: str, **places: object) -> dict[str, Any]:
    return {"type": system, "cluster": cluster, **places}


SYSTEMS = {
    "slurm file": BatchSystem(_slurm_file, _in_slurm_file, "sacct.txt"),
    "sacct": BatchSystem(_sacct, _sacct_job, "bin/sacct"),
    "gridengine": BatchSystem(
        lambda folder: _of("gridengine", gridengine_files.CLUSTER, paths=[str(folder / "common")]),
        _in_grid_engine,
        "common",
    ),
    "htcondor": BatchSystem(
        lambda folder: _of("htcondor", condor_history.CLUSTER, history=str(folder / "history")), _in_condor, "history"
    ),
    "sonar": BatchSystem(
        lambda folder: _of("sonar", sonar_files.CLUSTER, paths=[str(folder / "sonar")]), _in_sonar, "sonar"
    ),
}


class Batch:
    """A site with one batch system, which may be taken away and put back."""

    def __init__(self, site: SiteUnderTest, system: BatchSystem) -> None:
        self.site, self.system = site, system
        self.folder = site.folder / "batch"
        self.folder.mkdir()
        site.config["source"] = [{"name": "cluster", **system.entry(self.folder)}]
        site.config["metrics"] = {"textfile": str(site.folder / "publisher.prom")}

    def finish(self, number: int) -> None:
        self.system.finish(self.folder, number)

    def take_away(self) -> None:
        (self.folder / self.system.read_from).rename(self.folder / "away")

    def put_back(self) -> None:
        (self.folder / "away").rename(self.folder / self.system.read_from)

    def assert_failing(self, run: Run, *, success: str | None) -> None:
        """The round says so, and so does everything that is asked later."""
        assert run.status == 66, run.err
        (target,) = run.json["targets"].values()
        assert target["outcome"] == "error"
        assert "source cluster: " in target["reason"]
        status = self.site.run("status", "--json")
        assert status.status == 66
        assert status.json["targets"]["egi"]["last_success"] == success
        source = status.json["sources"]["cluster"]
        assert source["trouble"]
        assert source["failing_since"]
        assert source["alarm"].startswith("source cluster: ")
        nagios = self.site.run("status", "--nagios")
        assert (nagios.status, "source cluster: " in nagios.out) == (2, True)
        assert self.finding("last reading")["state"] == "failure"
        assert self.site.run("doctor", "--json").status == 66
        told = samples((self.site.folder / "publisher.prom").read_text())
        assert told[("publisher_accounting_readable",)] == 0
        report = self.site.run("report", "--format", "terminal")
        assert (report.status, "! Source: cluster: " in report.out) == (66, True)
        stats = self.site.run("stats")
        assert (stats.status, "the answer is not complete: source cluster: " in stats.err) == (66, True)

    def assert_unread(self, run: Run, trouble: str) -> None:
        """A round is no success, for this reason."""
        assert (run.status, "source cluster: " in run.err, trouble in run.err) == (66, True, True), run.err
        assert self.site.run("status", "--json").json["targets"]["egi"]["last_success"] is None

    def assert_well(self, run: Run) -> None:
        assert run.status == 0, run.err
        status = self.site.run("status", "--json")
        assert status.status == 0, status.err
        assert status.json["targets"]["egi"]["last_success"] is not None
        source = status.json["sources"]["cluster"]
        assert (source["trouble"], source["failing_since"], source["alarm"]) == (None, None, None)
        assert self.site.run("status", "--nagios").status == 0
        assert self.finding("last reading")["state"] == "ok"
        told = samples((self.site.folder / "publisher.prom").read_text())
        assert told[("publisher_accounting_readable",)] == 1
        assert self.site.run("stats").status == 0

    def finding(self, name: str) -> dict[str, Any]:
        findings = self.site.run("doctor", "--json").json["findings"]
        (found,) = (one for one in findings if (one["name"], one["part"]) == (name, "cluster"))
        return dict(found)


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    return SiteUnderTest(tmp_path, pki, fake_ams)


@pytest.fixture(params=SYSTEMS)
def batch(request: pytest.FixtureRequest, site: SiteUnderTest) -> Batch:
    return Batch(site, SYSTEMS[request.param])


def sent(site: SiteUnderTest) -> list[str]:
    return sorted(str(row["LocalJobId"]).removesuffix(".0") for row in site.received(with_openssl=False))


def long_ago(site: SiteUnderTest) -> str:
    """The last round and its success were an hour earlier; returns the time of the success."""
    with closing(sqlite3.connect(site.state)) as ledger, ledger:
        ledger.execute("UPDATE target SET last_success = last_success - 3600, last_round = last_round - 3600")
    return str(site.run("status", "--json").json["targets"]["egi"]["last_success"])


def test_a_batch_system_that_was_never_read_is_no_success(batch: Batch) -> None:
    batch.finish(1)
    batch.take_away()
    batch.assert_failing(batch.site.publish(), success=None)
    batch.put_back()
    batch.assert_well(batch.site.publish())
    assert sent(batch.site) == ["1"]


def test_a_batch_system_that_cannot_be_read_any_more_is_no_success(batch: Batch) -> None:
    batch.finish(1)
    batch.assert_well(batch.site.publish())
    success = long_ago(batch.site)
    batch.take_away()
    batch.assert_failing(batch.site.publish(), success=success)
    batch.put_back()
    batch.finish(2)
    batch.assert_well(batch.site.publish())
    assert sent(batch.site) == ["1", "2"]


def test_sacct_that_fails_is_no_success(site: SiteUnderTest) -> None:
    batch = Batch(site, SYSTEMS["sacct"])
    batch.finish(1)
    mishap = batch.folder / "sacct" / "mishap"
    mishap.write_text("fail")
    batch.assert_failing(site.publish(), success=None)
    mishap.unlink()
    batch.assert_well(site.publish())
    success = long_ago(site)
    mishap.write_text("fail")
    batch.assert_failing(site.publish(), success=success)


def test_others_are_delivered_beside_a_batch_system_that_fails(batch: Batch) -> None:
    """And the target is tried again with the next timer, though it is due much later."""
    site = batch.site
    other = site.folder / "other"
    other.mkdir()
    paths = {"paths": [str(other / "common")]}
    site.config["source"].append({"type": "gridengine", "name": "other", "cluster": "two.example.org", **paths})
    site.config["targets"]["egi"]["every"] = "1d"
    batch.finish(1)
    _in_grid_engine(other, 8)
    assert site.publish().status == 0
    success = long_ago(site)
    batch.take_away()
    _in_grid_engine(other, 9)
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (66, 1)
    assert sent(site) == ["1", "8", "9"]
    status = site.run("status", "--json").json
    assert status["targets"]["egi"]["last_success"] == success
    assert status["sources"]["other"]["alarm"] is None
    batch.put_back()
    batch.finish(2)
    run = site.run("publish", "--json")  # not --force: it is due
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 1)
    assert site.run("status").status == 0


def test_a_reading_that_could_not_begin_is_written_down(site: SiteUnderTest) -> None:
    """Such as that of a source which was given another name."""
    batch = Batch(site, SYSTEMS["gridengine"])
    batch.finish(1)
    assert site.publish().status == 0
    site.config["source"][0] |= {"name": "renamed", "cluster": "two.example.org"}
    site.save()
    assert site.publish().status == 66
    status = site.run("status", "--json")
    assert status.status == 66
    assert "has read the same files" in status.json["sources"]["renamed"]["trouble"]
    assert site.run("status", "--nagios").status == 2


@pytest.mark.slow
def test_a_reading_that_failed_in_another_process_is_no_success(site: SiteUnderTest) -> None:
    """A round that loads nothing, as another process does, goes by what that one has written down."""
    batch = Batch(site, SYSTEMS["gridengine"])
    batch.finish(1)
    store = site.state.with_name("jobs.db")
    site.state.parent.mkdir(exist_ok=True)
    with loader_lock(store):
        batch.assert_unread(site.publish(), "another process reads it for the first time")
    batch.take_away()
    assert site.publish().status == 66
    with loader_lock(store):
        batch.assert_unread(site.publish(), "No such file or directory")
    batch.put_back()
    batch.assert_well(site.publish())
    with loader_lock(store):
        assert site.publish().status == 0
