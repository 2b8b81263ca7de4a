"""Jobs that A-REX restarted after they were delivered: every command, and every format, counts the same.

A run under another LocalJobID used resources of its own: it counts beside the one that was delivered before it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS, receiver_of
from publisher.model.job import JobId
from publisher.reporting import explain
from tests.arex_databases import SampleJob
from tests.support import spring_2028
from tests.support.pki import Credential
from tests.support.simulated_months import Totals, World
from tests.support.spring_2028 import APRIL, MARCH, NOW, done

APEL_FORMATS = [*(name for name in JOB_FORMATS if receiver_of(name).table == "JobRecords"), *SUMMARY_FORMATS]
ENDED = int(MARCH.timestamp()) + 100_000


def job_number(number: int, **values: Any) -> SampleJob:
    ended = ENDED + 1_000 * number
    job = replace(spring_2028.JOBS[-1], submit_time=ended - 30_000).moved_to(ended)
    return replace(job, job_id=f"job{number}", local_job_id=str(9_000 + number), **values)


JOBS = [job_number(number) for number in range(6)]
RESTARTED = JOBS[2]


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, host: Credential) -> World:
    world = World(folder=tmp_path, host=host, now=NOW, format=request.param)
    world.finish(JOBS)
    outcome = done(world.publish())
    assert (outcome.exit_status, world.differences()) == (0, [])
    return world


def totals(*jobs: SampleJob) -> Totals:
    return {
        (2028, 3): (
            len(jobs),
            sum(job.wall_s for job in jobs),
            sum(job.cpu_user_s + job.cpu_kernel_s for job in jobs),
        )
    }


def told(world: World) -> Counter[tuple[int, int]]:
    """Jobs by month, as sync told them."""
    counts: Counter[tuple[int, int]] = Counter()
    for (month, _), jobs in world.receiver.told.items():
        counts[month] += jobs
    return counts


def explained(world: World) -> explain.Explanation:
    _, (one,) = explain.explain(world.site(), JobId(RESTARTED.job_id), targets=[], format_name=None)
    return one


def republished(world: World) -> None:
    outcome = done(world.republish("2028-03"))
    assert (outcome.exit_status, outcome.held) == (0, ())


@pytest.mark.parametrize("world", APEL_FORMATS, indirect=True)
@pytest.mark.parametrize("how", ["publish", "republish", "republish twice", "publish and republish"])
@pytest.mark.some(2)
def test_a_run_under_another_local_id_counts_beside_the_first(world: World, how: str) -> None:
    world.finish_again(RESTARTED.job_id, local_job_id="777", wall_s=RESTARTED.wall_s + 77, end_time=ENDED + 90_000)
    again = world.done[RESTARTED.job_id]
    before = explained(world)
    assert (before.fate, before.local_id) == ("to be sent", "777")
    assert "with the next round" in before.reason, "its row was read again"
    assert ["1 not delivered: publisher publish --force" in line for line in world.differences()] == [True]
    before = explained(world)
    assert (before.fate, before.local_id) == ("to be sent", "777")
    assert "with the next round" in before.reason, "the check has looked at all rows"
    assert "counts beside" in before.reason
    if how.startswith("publish"):
        assert done(world.publish()).exit_status == 0
    if how != "publish":
        republished(world)
    if how == "republish twice":
        republished(world)
    assert done(world.sync()).exit_status == 0
    assert world.receiver.totals() == totals(*JOBS, again)
    assert told(world) == {(2028, 3): len(JOBS) + 1}
    assert world.differences() == []
    after = explained(world)
    assert after.fate in ("delivered", "counted")
    assert "counts beside" in after.reason
    assert done(world.publish()).outcome == "nothing"


@pytest.mark.parametrize("world", APEL_FORMATS, indirect=True)
def test_what_is_restarted_later_leaves_the_first_run_in_its_month(world: World) -> None:
    end = int(APRIL.timestamp()) + 7_200
    world.finish_again(RESTARTED.job_id, local_job_id="777", wall_s=5, end_time=end)
    assert done(world.publish()).exit_status == 0
    republished(world)
    assert done(world.republish("2028-04")).exit_status == 0
    assert world.receiver.totals()[2028, 3] == totals(*JOBS)[2028, 3]
    assert world.receiver.totals()[2028, 4][0] == 1
    assert done(world.sync()).exit_status == 0
    assert told(world) == {(2028, 3): len(JOBS), (2028, 4): 1}
    assert world.differences() == []


@pytest.mark.parametrize("world", APEL_FORMATS, indirect=True)
@pytest.mark.parametrize("how", ["publish", "republish"])
@pytest.mark.some(2)
def test_a_run_with_other_values_takes_the_place_of_the_first(world: World, how: str) -> None:
    """Its record is replaced at the receiver; totals are of the new values, at once."""
    world.finish_again(RESTARTED.job_id, wall_s=RESTARTED.wall_s + 77)
    again = world.done[RESTARTED.job_id]
    before = explained(world)
    assert before.fate in ("delivered", "counted")
    assert "publish --force" in before.reason
    if how == "publish":
        assert done(world.publish()).exit_status == 0
    else:
        republished(world)
    others = [job for job in JOBS if job is not RESTARTED]
    assert world.receiver.totals() == totals(*others, again)
    assert done(world.sync()).exit_status == 0
    assert world.differences() == []
    assert "publish --force" not in explained(world).reason


@pytest.mark.parametrize("world", APEL_FORMATS, indirect=True)
def test_two_runs_and_a_correction_in_one_month(world: World) -> None:
    world.finish_again(RESTARTED.job_id, local_job_id="777", wall_s=RESTARTED.wall_s + 77)
    assert done(world.publish()).exit_status == 0
    world.finish_again(RESTARTED.job_id, local_job_id="777", wall_s=RESTARTED.wall_s + 78)
    assert done(world.publish()).exit_status == 0
    assert done(world.sync()).exit_status == 0
    assert world.receiver.totals()[2028, 3][0] == len(JOBS) + 1
    assert world.differences() == []
