"""Months summed up anew, and rows under new numbers: whatever a row is just then, its job is neither lost nor counted twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from publisher.model.job import JobId
from publisher.publishing import publish
from publisher.publishing.round.outcome import Outcome
from publisher.reporting import explain
from tests.arex_databases import SampleJob
from tests.support.pki import Credential
from tests.support.simulated_months import Steps, World
from tests.support.spring_2028 import JOBS, NOW


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, host: Credential) -> World:
    return World(folder=tmp_path, host=host, now=NOW, format=getattr(request, "param", "apel-summary-0.2"))


def published(world: World, *, accept: bool = False) -> Outcome:
    outcome = world.publish(accept=accept)
    assert outcome is not None
    return outcome


def ended(name: str, at: datetime, job: SampleJob = JOBS[0]) -> SampleJob:
    return replace(job, job_id=name, local_job_id=name).moved_to(int(at.timestamp()))


def give_up(world: World, torn: SampleJob) -> None:
    """A-REX died before it wrote the last rows of a job, which is held off long enough, and goes out as it is."""
    with world.arex() as arex:
        arex.accept(torn)
        arex.finish(torn, stop_after="aar")
    assert published(world).exit_status == 0
    world.pass_time(0.02)
    world.done[torn.job_id] = torn
    assert published(world).exit_status == 0
    assert not world.wrong_months()


def test_a_counted_job_that_never_became_complete_stays_in_its_month(world: World) -> None:
    """Also when that is summed up anew within a day of its end, where an unknown one would be waited for."""
    world.finish(JOBS)
    assert published(world).exit_status == 0
    world.pass_time(0.9)
    changed = ended("changed", world.now - timedelta(hours=10), JOBS[1])
    world.finish([changed])
    give_up(world, ended("torn", world.now - timedelta(minutes=5)))
    world.finish_again("changed", wall_s=changed.wall_s + 7)
    world.pass_time(0.2)  # a day after the last sweep
    assert published(world).exit_status == 0
    assert not world.wrong_months()


@pytest.mark.parametrize("accept", [False, True])
def test_a_clock_that_goes_back_takes_no_job_from_its_month(world: World, accept: bool) -> None:
    """What was delivered ends in the future for three days; that says nothing about it."""
    changed = ended("changed", NOW - timedelta(days=5), JOBS[1])
    world.finish([*JOBS, ended("late", NOW - timedelta(minutes=10)), changed])
    assert published(world).exit_status == 0
    world.pass_time(-3)
    world.finish_again("changed", wall_s=changed.wall_s + 7)
    outcome = published(world, accept=accept)
    assert (outcome.exit_status, outcome.quarantined, outcome.held) == (0, 0, ())
    assert not world.wrong_months()
    _, (explained,) = explain.explain(world.site(), JobId("late"), targets=[], format_name=None)
    assert explained.fate == "counted"
    assert not world.differences()
    world.pass_time(3)
    assert published(world).exit_status == 0
    assert not world.wrong_months()
    assert published(world).outcome == "nothing"


@pytest.mark.parametrize("world", ["car"], indirect=True)
def test_a_republish_sends_what_was_delivered_incomplete_too(world: World) -> None:
    """So that it stays in the counts of its month, which sync tells."""
    world.finish(JOBS)
    give_up(world, ended("torn", world.now - timedelta(minutes=5)))
    again = world.republish("2028-04")
    assert again is not None
    assert (again.exit_status, again.records) == (0, 1), again
    told = world.sync()
    assert told is not None
    assert told.exit_status == 0
    assert sum(world.receiver.told.values()) == len(JOBS) + 1
    assert not world.differences()


class Meanwhile(Steps):
    """An observer under whose eyes A-REX goes on, once the first page was read."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens: Callable[[], object] | None = happens

    def page_read(self, *_: object) -> None:
        if self._happens is not None:
            happens, self._happens = self._happens, None
            happens()


@pytest.mark.parametrize("world", ["apel-summary-0.2", "car"], indirect=True)
def test_a_row_that_comes_to_be_where_another_was_open_is_looked_at_again(world: World) -> None:
    """`rotate`: of the old number there is no row when it is looked for, and in the same round one is met under it."""
    first, second = JOBS[0], JOBS[1]
    world.finish([first])
    with world.arex() as arex:
        arex.accept(second)
    assert published(world).exit_status == 0
    (world.folder / "control" / "accounting" / "accounting_v2.db").unlink()
    with world.arex() as arex:
        arex.write(first)
        meanwhile = Meanwhile(lambda: arex.accept(second))
        assert publish.publish(world.site(), targets=[], observer=meanwhile, force=True)[0].exit_status == 0
        arex.finish(second)
        world.done[second.job_id] = second
    assert published(world).exit_status == 0
    assert not world.wrong_months()
