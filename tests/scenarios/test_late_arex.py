"""A-REX writes down a job long after its end, or never: nothing counts twice, nothing is lost, and it is told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from publisher.jobs.store import remove_store
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.service import FakeAMS
from tests.support import condor_history, sacct_text
from tests.support.ledgers import instance_of
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest
from tests.support.stand_in_sacct import install

HOUR_S, DAY_S = 3600, 86_400
WAYS = [("car", True), ("apel-job-0.4", False), ("apel-summary-0.4", True), ("apel-summary-0.4", False)]


@pytest.fixture
def site(tmp_path: Any, pki: PKI, fake_ams: FakeAMS) -> SiteUnderTest:
    made = SiteUnderTest(tmp_path, pki, fake_ams)
    made.config["records"]["statuses"] = ["completed", "failed"]
    made.config["records"]["default_vo"] = "ops"
    return made


def late(count: int, ago_s: int) -> list[SampleJob]:
    """Jobs of Slurm that ended so long ago."""
    now = int(time.time())
    days = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 3, tzinfo=UTC)
    made = [job for job in generate(5, 5 * count + 20, *days) if job.local_job_id and job.status == "completed"]
    found = []
    for place, job in enumerate(made[:count]):
        ended = now - ago_s - place
        moved = job.moved_to(ended)
        found.append(replace(moved, submit_time=ended - job.wall_s - 500, lrms="SLURM", local_job_id=f"{place + 1}"))
    return found


def slurm(site: SiteUnderTest, jobs: Sequence[SampleJob], *, known: Any = True, **keys: Any) -> dict[str, Any]:
    """These jobs, if they are known yet, and 77 that no CE has."""
    lines = [
        sacct_text.job(int(job.local_job_id or 0), Submit=job.end_time - 40 - job.wall_s, ElapsedRaw=job.wall_s)
        for job in (jobs if known else ())
    ]
    own = sacct_text.job(77, Submit=jobs[0].end_time - 3000, ElapsedRaw=100)
    command = install(site.folder / "sacct", [each for line in (*lines, own) for each in (line, sacct_text.step(line))])
    entry = {"type": "slurm", "name": "hpc", "cluster": sacct_text.CLUSTER, "command": list(command)}
    return entry | {"look_back_s": "3d", "arc_wait_s": "1h"} | keys


def accept(site: SiteUnderTest, jobs: Sequence[SampleJob]) -> None:
    with site.arex() as arex:
        for job in jobs:
            arex.accept(job)


def finish(site: SiteUnderTest, jobs: Sequence[SampleJob]) -> None:
    with site.arex() as arex:
        for job in jobs:
            arex.finish(job)


def accounted(site: SiteUnderTest) -> int:
    """Jobs that the receiver counts."""
    table = site.table()
    return len(table.rows("JobRecords")) + sum(int(str(row["NumberOfJobs"])) for row in table.rows("Summaries"))


@pytest.mark.parametrize(("form", "join"), WAYS)
def test_jobs_wait_for_a_ce_that_is_down(form: str, join: bool, site: SiteUnderTest) -> None:
    jobs = late(3, 5 * HOUR_S)
    site.config["targets"]["egi"]["format"] = form
    site.config["source"] = [site.config["source"], slurm(site, jobs, **({"join": "arex"} if join else {}))]
    accept(site, jobs)
    run = site.publish()
    assert (run.status, run.json["targets"]["egi"]["records"]) == (0, 0), run.err
    told = site.run("status", "--json")
    (awaited,) = told.json["sources"]["hpc"]["waiting_for_ces"]
    assert (awaited["ce"], awaited["jobs"]) == (str(site.control / "accounting"), 4)
    assert "source hpc: 4 jobs that may belong to an ARC CE wait for it" in told.err
    assert told.status == 0, "for a day that is no alarm"
    assert site.run("status", "--nagios").status == 1
    finish(site, jobs)
    assert site.publish().status == 0
    assert accounted(site) == 4
    assert site.run("status", "--json").json["sources"]["hpc"]["waiting_for_ces"] == []
    assert site.publish().json["targets"]["egi"]["records"] == 0


def test_a_ce_that_is_down_for_more_than_a_day_is_an_alarm(site: SiteUnderTest) -> None:
    jobs = late(2, 30 * HOUR_S)
    site.config["source"] = [site.config["source"], slurm(site, jobs)]
    accept(site, jobs)
    assert site.publish().json["targets"]["egi"]["records"] == 0
    told = site.run("status")
    assert told.status == 66
    assert f"has written nothing to {site.control / 'accounting'} since" in told.err
    nagios = site.run("status", "--nagios")
    assert (nagios.status, "check that A-REX is running, or set arc_outage_s" in nagios.out) == (2, True)
    assert "jobs that may belong to an ARC CE wait for it" in site.run("doctor").out


@pytest.mark.parametrize(("form", "join"), WAYS)
def test_a_job_that_was_published_already_is_not_published_again(form: str, join: bool, site: SiteUnderTest) -> None:
    """Nor are those lost that A-REX tells of beside it."""
    jobs = late(3, 5 * HOUR_S)
    others = [
        replace(job, local_job_id=f"9{place}", job_id=f"o-{place}") for place, job in enumerate(late(2, 4 * HOUR_S))
    ]
    site.config["targets"]["egi"]["format"] = form
    entry = slurm(site, jobs, arc_outage_s="2h", **({"join": "arex", "join_wait": 0} if join else {}))
    site.config["source"] = [site.config["source"], entry]
    accept(site, jobs)
    assert site.publish().status == 0
    assert accounted(site) == 4
    finish(site, jobs)
    site.fill(*others)
    run = site.publish()
    assert run.status == 65
    assert accounted(site) == 6
    held = site.run("quarantine", "list", "--json").json
    assert [one["rule"] for one in held["quarantined"]] == ["counted-by-batch-system"] * 3
    explained = site.run("explain", jobs[0].job_id).out
    assert "counted-by-batch-system" in explained
    assert "source hpc has this job as" in explained
    assert site.run("status", "--json").json["targets"]["egi"]["quarantined"] == 3
    assert site.publish().status == 0
    assert accounted(site) == 6
    check = site.run("republish", "--from", "last-month", "--to", "this-month", "--yes", "--json")
    assert check.status in (0, 65), check.err
    assert accounted(site) == 6


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["database removed", "other host"])
@pytest.mark.parametrize(("form", "join"), WAYS)
def test_a_job_that_was_published_already_is_not_published_again_by_one_who_does_not_have_it(
    form: str, join: bool, ended: str, site: SiteUnderTest, request: pytest.FixtureRequest
) -> None:
    """A-REX tells of it before the batch system is read again, into a database that is new."""
    jobs = late(3, 5 * HOUR_S)
    site.config["targets"]["egi"]["format"] = form
    entry = slurm(site, jobs, arc_outage_s="2h", **({"join": "arex", "join_wait": 0} if join else {}))
    site.config["source"] = [site.config["source"], entry]
    if ended == "other host":
        server = request.getfixturevalue("postgres").address
        folder = {"state_directory": str(site.state.parent)}
        site.config |= {"state": server, "instance": instance_of(site.state)} | folder
    accept(site, jobs)
    assert site.publish().status == 0
    assert accounted(site) == 4
    finish(site, jobs)
    if ended == "other host":
        site.config["state_directory"] = str(site.folder / "other")
        site.save()
    else:
        remove_store(site.state.with_name("jobs.db"))
    for _ in range(2):
        assert site.publish().status in (0, 65)
        assert accounted(site) == 4
        site.config["records"]["benchmark"]["value"] = 12.0  # all is judged anew
        site.save()


def test_jobs_of_htcondor_are_known_again(site: SiteUnderTest) -> None:
    """The ledger keeps those whose ids have a # without a name of their database."""
    (job,) = late(1, 5 * HOUR_S)
    job = replace(job, local_job_id="12.0", lrms="condor")
    begun = job.end_time - job.wall_s - 60
    ads = [
        condor_history.ad(12, QDate=begun, RemoteWallClockTime=float(job.wall_s)),
        condor_history.ad(77, QDate=begun - 1000, RemoteWallClockTime=500.0),
    ]
    history = condor_history.write(site.folder / "history", condor_history.rolling(ads))
    entry = {"type": "htcondor", "cluster": condor_history.CLUSTER, "history": str(history)}
    site.config["source"] = [site.config["source"], entry | {"arc_wait_s": "1h", "arc_outage_s": "2h"}]
    accept(site, [job])
    assert site.publish().status == 0
    assert accounted(site) == 2
    finish(site, [job])
    remove_store(site.state.with_name("jobs.db"))
    assert site.publish().status == 65
    assert accounted(site) == 2
    (held,) = site.run("quarantine", "list", "--json").json["quarantined"]
    assert (held["rule"], held["job"]) == ("counted-by-batch-system", job.job_id)
