"""The daily look at all rows: it finds whatever changed, and sends nothing else."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from publisher import config
from publisher.cli.site import LiveSite
from publisher.jobs.reader import JobPage
from publisher.publishing import publish
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ProcessEnvironment
from tests.arex_databases import generate
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

JOBS = list(generate(5, 40, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)))


class Watching:
    """Keeps the pages that a round reads."""

    def __init__(self) -> None:
        self.pages: list[JobPage] = []

    def page_read(self, target: str, page: JobPage) -> None:
        self.pages.append(page)

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **also: None


def swept(site: SiteUnderTest) -> tuple[Watching, Outcome]:
    """A round a day later."""
    with closing(sqlite3.connect(site.state)) as connection, connection:
        connection.execute("UPDATE target SET swept = swept - 90000")
    live = LiveSite(
        settings=config.load(site.path, {}, host_name="ce01.example.org"),
        process=ProcessEnvironment(
            environment={}, clock=lambda: datetime.now(UTC), monotonic=time.monotonic, wait=threading.Event().wait
        ),
    )
    watching = Watching()
    (outcome,) = publish.publish(live, targets=[], observer=watching, force=True)
    return watching, outcome


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_a_sweep_sends_what_changed_and_nothing_else(tmp_path: Path, pki: PKI, fake_ams: FakeAMS, form: str) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.config["targets"]["egi"] |= {"format": form, "batch_records": 7}
    site.save()
    with site.arex() as arex:
        arex.write_all(JOBS)
        assert site.publish().status == 0
        watching, outcome = swept(site)
        assert outcome.outcome == "nothing"
        assert sum(len(page.jobs) for page in watching.pages) == len(JOBS)
        changed = replace(JOBS[3], wall_s=JOBS[3].wall_s + 60)
        arex.finish_again(changed)
        _, outcome = swept(site)
    assert (outcome.outcome, outcome.records, outcome.exit_status) == ("ok", 1, 0)
    if form == "car":
        site.assert_received(*JOBS, changed)
    else:
        table = site.table()
        wall_s = sum(job.wall_s for job in JOBS) + 60
        assert (table.total("Summaries", "NumberOfJobs"), table.total("Summaries", "WallDuration")) == (40, wall_s)


def test_rows_that_ended_before_the_start_stay_out_of_a_sweep(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.config["targets"]["egi"] |= {"start": "2026-10-20"}
    site.save()
    site.fill(*JOBS)
    late = [job.job_id for job in JOBS if job.end_time >= datetime(2026, 10, 20, tzinfo=UTC).timestamp()]
    assert 0 < len(late) < len(JOBS)
    assert site.publish().json["targets"]["egi"]["records"] == len(late)
    _, outcome = swept(site)
    assert outcome.outcome == "nothing"


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_force_looks_at_every_row(tmp_path: Path, pki: PKI, fake_ams: FakeAMS, form: str) -> None:
    """A restarted job stands in a row that was read long ago: other rounds come back to it only once a day."""
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    site.config["targets"]["egi"] |= {"format": form, "every": "1s"}
    site.save()
    restarted = replace(JOBS[3], wall_s=JOBS[3].wall_s + 60)
    with site.arex() as arex:
        arex.write_all(JOBS)
        assert site.publish().status == 0
        arex.finish_again(restarted)
    assert site.run("publish", "--json").json["targets"]["egi"]["records"] == 0
    rehearsed = site.run("publish", "--json", "--force", "--dry-run").json["targets"]["egi"]
    forced = site.publish().json["targets"]["egi"]
    assert rehearsed["records"] == forced["records"] > 0
    assert (forced["outcome"], site.publish().json["targets"]["egi"]["outcome"]) == ("ok", "nothing")
