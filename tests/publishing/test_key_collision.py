"""Two jobs under one key of the receiver: the second would replace the first there unseen, so it is set aside by name."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from publisher.ledger.answers import Hold
from publisher.publishing import publish
from publisher.publishing import status as standing
from publisher.publishing.round.outcome import Outcome
from tests.arex_databases import SampleJob, Writer, generate
from tests.fake_ams.service import FakeAMS
from tests.support.pki import PKI, Credential
from tests.support.simulated_months import Steps, World
from tests.support.sites import SiteUnderTest
from tests.support.spring_2028 import JOBS, NOW, done

JOB_FORMATS = ("car", "apel-job-0.2", "apel-job-0.3", "apel-job-0.4")
FIRST, *OTHERS = JOBS
SECOND = replace(FIRST, job_id="second", wall_s=FIRST.wall_s + 1)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, host: Credential) -> World:
    world = World(folder=tmp_path, host=host, now=NOW, format=getattr(request, "param", "car"))
    world.config["targets"]["egi"]["sync"] = False
    return world


def an_hour_later(world: World) -> Outcome:
    world.pass_time(1 / 24)
    return done(world.publish(force=False))


def set_aside(world: World) -> list[tuple[str, str]]:
    return [(held.job.job_id, held.job.rule) for held in standing.quarantined(world.site(), targets=[])]


def release(world: World) -> None:
    standing.release_or_drop(world.site(), [], Hold.RELEASED, every=True, targets=[])


def wall_of(world: World, job: SampleJob) -> int:
    """What the receiver has under the key of a job."""
    (row,) = [row for row in world.receiver.tables.rows("JobRecords") if row["LocalJobId"] == job.local_job_id]
    return int(str(row["WallDuration"]))


def went_without(world: World, outcome: Outcome) -> None:
    """All but the second job arrived."""
    assert (outcome.exit_status, outcome.quarantined) == (65, 1)
    assert set_aside(world) == [("second", "key-collision")]
    assert wall_of(world, FIRST) == FIRST.wall_s


@pytest.mark.parametrize("world", JOB_FORMATS, indirect=True)
def test_a_job_under_the_key_of_one_delivered_in_an_earlier_round(world: World) -> None:
    world.finish([FIRST])
    done(world.publish())
    world.finish([*OTHERS, SECOND])
    went_without(world, an_hour_later(world))
    again = done(world.publish())
    assert (again.exit_status, again.quarantined, set_aside(world)) == (0, 0, [("second", "key-collision")])
    done(world.republish("2028-02", "2028-03"))
    assert wall_of(world, FIRST) == FIRST.wall_s
    assert len(world.receiver.tables.rows("JobRecords")) == len(JOBS)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_job_under_the_key_of_one_in_another_message_of_the_round(world: World, dry_run: bool) -> None:
    world.finish([*JOBS, SECOND])
    site = world.site()
    (outcome,) = publish.publish(site, targets=[], observer=Steps(), force=True, dry_run=dry_run)
    assert (outcome.exit_status, outcome.quarantined, outcome.records) == (65, 1, len(JOBS))
    if not dry_run:
        went_without(world, outcome)


def test_a_job_of_another_database_under_the_same_key(world: World) -> None:
    world.finish([FIRST])
    with Writer(world.folder / "control" / "accounting" / "accounting.db", schema=1) as arex:
        arex.write(SECOND)
    went_without(world, done(world.publish()))


def test_a_job_that_stands_in_two_databases_is_one_job(world: World) -> None:
    """`migrate` leaves the old file behind."""
    with Writer(world.folder / "control" / "accounting" / "accounting.db", schema=1) as arex:
        arex.write_all(JOBS[:12])
    done(world.publish())
    world.finish(JOBS)
    assert (done(world.publish()).exit_status, set_aside(world)) == (0, [])


@pytest.mark.parametrize("changes", [{"wall_s": 5}, {"wall_s": 5, "local_job_id": "77"}], ids=str)
def test_a_job_that_changed_does_not_collide_with_itself(world: World, changes: dict[str, Any]) -> None:
    world.finish(JOBS)
    done(world.publish())
    world.finish_again(FIRST.job_id, **changes)
    assert (done(world.publish()).exit_status, set_aside(world)) == (0, [])
    assert wall_of(world, world.done[FIRST.job_id]) == 5


@pytest.mark.parametrize("why", ["not wanted", "set aside", "dropped"])
def test_a_job_that_was_never_delivered_is_in_nobodys_way(world: World, why: str) -> None:
    world.finish([replace(FIRST, status="aborted") if why == "not wanted" else replace(FIRST, cpus=0, wall_s=-5)])
    done(world.publish())
    if why == "dropped":
        standing.release_or_drop(world.site(), [], Hold.DROPPED, every=True, targets=[])
    world.finish([*OTHERS, SECOND])
    done(world.publish())
    assert wall_of(world, SECOND) == SECOND.wall_s
    assert ("second", "key-collision") not in set_aside(world)


def test_rule_9_what_was_set_aside_goes_when_it_is_released(world: World) -> None:
    """An administrator decided which of the two counts."""
    world.finish([FIRST])
    done(world.publish())
    world.finish([SECOND])
    done(world.publish())
    release(world)
    released = an_hour_later(world)
    assert (released.exit_status, released.records, set_aside(world)) == (0, 1, [])
    assert wall_of(world, FIRST) == SECOND.wall_s


@pytest.mark.parametrize("again", ["republished", "changed"])
def test_rule_9_a_release_is_not_undone_by_the_job_that_was_replaced(world: World, again: str) -> None:
    """The later of the two stands at the receiver, and stays there without a second release."""
    world.finish([FIRST])
    done(world.publish())
    world.finish([SECOND])
    world.pass_time(1)
    done(world.publish())
    release(world)
    world.pass_time(1)
    done(world.publish())
    world.pass_time(1)
    if again == "changed":
        world.finish_again(FIRST.job_id, wall_s=5)
        done(world.publish())
    else:
        done(world.republish("2028-02", "2028-03"))
    assert set_aside(world) == [(FIRST.job_id, "key-collision")]
    assert wall_of(world, FIRST) == SECOND.wall_s
    done(world.publish())
    assert wall_of(world, FIRST) == SECOND.wall_s


def test_of_two_releases_the_later_stands(world: World) -> None:
    world.finish([FIRST])
    done(world.publish())
    for wall_s in (SECOND.wall_s, 5):
        if wall_s == 5:
            world.finish_again(FIRST.job_id, wall_s=5)
        else:
            world.finish([SECOND])
        world.pass_time(1)
        done(world.publish())
        release(world)
        world.pass_time(1)
        done(world.publish())
    assert wall_of(world, FIRST) == 5
    world.finish_again(SECOND.job_id, wall_s=7)
    world.pass_time(1)
    done(world.publish())
    assert set_aside(world) == [(SECOND.job_id, "key-collision")]
    assert wall_of(world, FIRST) == 5


def test_a_release_says_what_it_replaces(tmp_path: Path, pki: PKI, fake_ams: FakeAMS) -> None:
    site = SiteUnderTest(tmp_path, pki, fake_ams)
    (job,) = generate(1, 1, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC))
    with site.arex() as arex:
        arex.write(job)
        arex.write(replace(job, job_id="second"))
    assert site.publish().status == 65
    told = site.run("quarantine", "release", "second")
    assert (told.status, told.out.splitlines()[0]) == (0, "1 released")
    assert "job second takes the place of another job's record at the receiver of egi" in told.out
    assert f"another run was published as site EXAMPLE-SITE, local id {job.local_job_id}, end " in told.out
    (as_json,) = site.run("quarantine", "release", "second", "--json").json["replaces"]
    assert as_json["job"] == "second"
    assert site.run("quarantine", "drop", "second").out.splitlines() == ["1 dropped"]


def test_what_was_set_aside_goes_when_the_other_was_refused(world: World) -> None:
    world.finish([FIRST, *OTHERS[:6], SECOND])
    refused = done(world.publish(faults=["refused", "refused", "refused"]))  # four records, two, one
    assert refused.exit_status == 65
    assert set_aside(world) == [(FIRST.job_id, "refused-by-receiver"), ("second", "key-collision")]
    assert an_hour_later(world).records == 1
    assert set_aside(world) == [(FIRST.job_id, "refused-by-receiver")]
    assert wall_of(world, SECOND) == SECOND.wall_s


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
def test_totals_have_no_such_key(world: World) -> None:
    world.finish([FIRST])
    done(world.publish())
    world.finish([*OTHERS, SECOND])
    assert done(world.publish()).exit_status == 0
    assert not world.wrong_months()
