"""What waits for a target: how many jobs, and since when, wherever they stand on their way."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from publisher.publishing import status as standing
from publisher.publishing.status import TargetStatus
from tests.arex_databases import generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import FakeAMS
from tests.support.metrics_site import WatchedSite
from tests.support.pki import PKI
from tests.support.sites import SiteUnderTest

OCTOBER, NOVEMBER = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
JOBS = sorted(generate(5, 9, OCTOBER, NOVEMBER), key=lambda job: job.end_time)
ENDS = [job.end_time for job in JOBS]


@pytest.fixture
def site(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> WatchedSite:
    under_test = SiteUnderTest(tmp_path, pki, fake_ams)
    under_test.config["targets"]["egi"] |= {"attempts": 1, "batch_records": 3}
    return WatchedSite(under_test)


def finish(site: WatchedSite, *numbers: int) -> None:
    with site.site.arex() as arex:
        for number in numbers:
            arex.write(JOBS[number])


def status(site: WatchedSite) -> TargetStatus:
    ((found,), trouble) = standing.status(site.live(), targets=[])
    assert trouble == ""
    return found


def waits(site: WatchedSite) -> tuple[int | None, int | None, int, int | None]:
    found = status(site)
    return found.pending, found.late, found.in_doubt, found.oldest_unsent


def test_before_the_first_round_all_wait_since_the_first_end(site: WatchedSite) -> None:
    finish(site, 4, 2, 3)
    assert waits(site) == (3, 0, 0, ENDS[2])
    assert not status(site).began


def test_a_late_row_is_the_oldest(site: WatchedSite) -> None:
    finish(site, 4, 5)
    site.round(force=True)
    assert waits(site) == (0, 0, 0, None)
    finish(site, 1, 6)
    assert waits(site) == (2, 1, 0, ENDS[1])


def test_a_row_of_the_second_that_was_published_last_is_not_late(site: WatchedSite) -> None:
    finish(site, 5)
    site.round(force=True)
    site.site.fill(replace(JOBS[6].moved_to(ENDS[5]), job_id="in the same second"))
    assert waits(site) == (1, 0, 0, ENDS[5])


def test_jobs_in_doubt_wait_too(site: WatchedSite, fake_ams: FakeAMS) -> None:
    """Three stand in the message whose answer was lost, others behind it."""
    fake_ams.faults.always(Fault.drop_without_storing())
    finish(site, 3, 1, 2, 5, 4)
    site.round(force=True)
    assert waits(site) == (2, 0, 3, ENDS[1])
    fake_ams.faults.clear()
    site.round(force=True)
    assert waits(site) == (0, 0, 0, None)


def test_jobs_whose_totals_were_not_stored_wait_since_the_first_of_them(site: WatchedSite, fake_ams: FakeAMS) -> None:
    site.site.config["targets"]["egi"]["format"] = "apel-summary-0.4"
    finish(site, 0, 1, 2)
    site.round(force=True)
    assert waits(site) == (0, 0, 0, None)
    fake_ams.faults.always(Fault.status(503))
    finish(site, 3, 4)
    assert waits(site) == (2, 0, 0, ENDS[3])
    site.round(force=True)
    assert waits(site) == (2, 0, 0, ENDS[3])
    fake_ams.faults.clear()
    site.round(force=True)
    assert waits(site) == (0, 0, 0, None)


def test_a_success_is_overdue_after_two_rounds(site: WatchedSite) -> None:
    site.site.config["targets"]["egi"] |= {"every": "6h", "jitter": "10m"}
    finish(site, 0)
    assert status(site).overdue is None
    site.round()
    found = status(site)
    assert found.last_success is not None
    assert found.overdue == found.last_success + timedelta(hours=13, minutes=10)
    del site.site.config["targets"]["egi"]["every"]
    site.site.config["targets"]["egi"]["cron"] = "0 3 * * *"
    midnight = found.last_success.replace(hour=0, minute=0, second=0)
    days = 2 if found.last_success.hour >= 3 else 1
    assert status(site).overdue == midnight + timedelta(days=days, hours=4, minutes=10)
