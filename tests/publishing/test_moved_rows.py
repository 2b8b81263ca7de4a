"""Totals whose jobs moved: rows are emptied by themselves, after a word of the administrator, or never."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from publisher.cli.commands import publish as told
from publisher.publishing.round.outcome import Outcome
from tests.arex_databases import SampleJob
from tests.support.pki import Credential
from tests.support.simulated_months import World
from tests.support.spring_2028 import FEBRUARY, JOBS, MARCH, NOW, done


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, host: Credential) -> World:
    return World(folder=tmp_path, host=host, now=NOW, format=getattr(request, "param", "apel-summary-0.4"))


def alike(number: int, **values: Any) -> SampleJob:
    """A job of March; without other values they make one row at the receiver."""
    ended = int(MARCH.timestamp()) + 100_000 + 1_000 * number
    job = replace(JOBS[-1], submit_time=ended - 30_000).moved_to(ended)
    return replace(job, job_id=f"job{number}", local_job_id=str(9_000 + number), **values)


def alter(world: World, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(world.folder / "control" / "accounting" / "accounting_v2.db")) as connection:
        connection.execute(statement, values)
        connection.commit()


def clean_up(world: World, *job_ids: str) -> None:
    """As ARC's `cleanup` does."""
    for job_id in job_ids:
        alter(world, "DELETE FROM AAR WHERE JobID = ?", job_id)


def empty_rows(world: World) -> int:
    return sum(row["NumberOfJobs"] == 0 for _, row in world.receiver.rows())


def fine(outcome: Outcome | None) -> Outcome:
    one = done(outcome)
    assert (one.exit_status, one.held) == (0, ())
    return one


# Moved at the CE


def test_a_restart_that_was_the_last_of_its_row_empties_it_without_a_word(world: World) -> None:
    world.finish([alike(number) for number in range(3)])
    world.finish([alike(7, cpus=7)])
    fine(world.publish())
    world.finish_again("job7", cpus=9, wall_s=77)
    world.finish([alike(8)])  # the month must not wait for anybody
    world.pass_time(1.1)
    fine(world.publish())
    assert not world.wrong_months()
    assert empty_rows(world) == 1
    assert not world.differences()
    assert done(world.publish()).outcome == "nothing"


@pytest.mark.parametrize("others", [0, 2])
def test_a_job_that_ends_again_in_another_month_leaves_the_first(world: World, others: int) -> None:
    february = int(FEBRUARY.timestamp()) + 5_000
    world.finish(
        [replace(alike(number), job_id=f"feb{number}").moved_to(february + number) for number in range(others)]
    )
    world.finish([alike(7).moved_to(february), alike(1)])
    fine(world.publish())
    world.finish_again("job7", end_time=int(MARCH.timestamp()) + 3_600)
    world.pass_time(1.1)
    fine(world.publish())
    assert not world.wrong_months()
    assert empty_rows(world) == (0 if others else 1)
    world.sync()
    assert not world.differences()
    fine(world.republish("2028-02", "2028-03"))
    assert not world.wrong_months()


def test_another_benchmark_of_the_jobs_own_empties_its_row(world: World) -> None:
    world.finish([alike(number, benchmark="HEPSPEC:10") for number in range(3)])
    fine(world.publish())
    alter(world, "UPDATE Benchmarks SET Name = 'HEPSPEC:12' WHERE Name = 'HEPSPEC:10'")
    fine(world.republish("2028-03"))
    assert not world.wrong_months()
    assert {float(row["ServiceLevel"]) for _, row in world.receiver.rows() if row["NumberOfJobs"]} == {12}


@pytest.mark.parametrize(
    "world", ["apel-summary-0.2", "apel-summary-0.3", "apel-normalised-summary-0.4"], indirect=True
)
def test_where_no_zeros_were_tried_the_month_waits_for_a_ticket(world: World) -> None:
    world.finish([alike(1), alike(7, cpus=7)])
    fine(world.publish())
    world.finish_again("job7", cpus=9)
    world.pass_time(1.1)
    held = done(world.publish())
    assert [(month.name, len(month.orphaned), month.emptied) for month in held.held] == [("2028-03", 1, False)]
    assert told.ticket("SITE", "APEL", held)
    assert not world.wrong_months()


@pytest.mark.slow
def test_power_may_go_at_every_step(world: World) -> None:
    world.batch_records = 1
    world.config["targets"]["egi"]["batch_records"] = 1
    february = int(FEBRUARY.timestamp()) + 5_000
    world.finish([alike(7, cpus=7).moved_to(february), alike(8, cpus=8), alike(1)])
    fine(world.publish())
    for fatal in range(1, 40):
        cpus = 10 + fatal
        end_time = (february, int(MARCH.timestamp()) + 3_600)[fatal % 2] + fatal
        world.finish_again("job7", cpus=cpus, end_time=end_time)
        world.finish_again("job8", cpus=cpus)
        world.pass_time(1.1)
        cut = world.publish(fatal=fatal)
        fine(world.publish())
        assert not world.wrong_months(), fatal
        if cut is not None:
            break
    assert empty_rows(world) > 10


# Moved by settings


def test_settings_are_held_and_zeros_take_the_place_of_the_ticket(world: World) -> None:
    world.finish([alike(number, cpus=1 + number % 2) for number in range(4)])
    fine(world.publish())
    world.config["records"]["benchmark"]["value"] = 9
    world.finish([alike(8)])
    assert fine(world.publish()).jobs == 1, "settings concern new jobs"
    held = done(world.republish("2028-03"))
    assert [(month.name, len(month.orphaned), month.emptied) for month in held.held] == [("2028-03", 2, True)]
    assert "no ticket is needed" in held.reason
    assert told.ticket("SITE", "APEL", held) == []
    assert not world.wrong_months()
    world.finish_again("job1", wall_s=77)
    world.pass_time(1.1)
    fine(world.publish())
    assert not world.wrong_months()
    world.finish_again("job3", wall_s=77)
    world.pass_time(1.1)
    assert done(world.publish()).held, "the last one of its row, which other settings would empty"
    fine(world.republish("2028-03", accept=True))
    assert not world.wrong_months()
    assert empty_rows(world) == 2
    with closing(world.site().ledgers.to_read()) as ledger:
        assert not ledger.left.months("egi"), "nothing stays there"
    world.finish_again("job2", cpus=12)
    world.pass_time(1.1)
    fine(world.publish())
    assert not world.wrong_months()


def test_settings_that_are_taken_back_leave_no_trace(world: World) -> None:
    world.finish([alike(1), alike(7, cpus=7)])
    fine(world.publish())
    world.config["records"]["benchmark"]["value"] = 9
    assert done(world.republish("2028-03")).held
    world.config["records"]["benchmark"]["value"] = 11.5
    assert fine(world.publish()).records == 0
    world.finish_again("job7", cpus=9)
    world.pass_time(1.1)
    fine(world.publish())
    assert not world.wrong_months()


@pytest.mark.parametrize("interface", ["gridengine", "slurm", "org.nordugrid.arcrest"])
def test_rows_that_any_source_rewrote_empty_theirs(world: World, interface: str) -> None:
    world.config["records"]["batch_server"] = "batch.example.org"
    world.finish([alike(1), alike(7, cpus=7)])
    alter(world, "UPDATE Endpoints SET Interface = ?", interface)
    fine(world.publish())
    alter(world, "UPDATE AAR SET CPUCount = 9 WHERE JobID = 'job7'")
    world.pass_time(1.1)
    fine(world.publish())
    assert not world.wrong_months()
    assert empty_rows(world) == 1


@pytest.mark.parametrize("block", ["source", "importers"])
def test_how_the_source_is_read_is_a_setting_too(world: World, block: str) -> None:
    world.finish([alike(1), alike(7, cpus=7)])
    fine(world.publish())
    if block == "source":
        world.config["source"]["unescape"] = False
    else:
        world.config["importers"] = {"gridengine": {"cluster": "batch.example.org"}}
    alter(world, "UPDATE AAR SET CPUCount = 9 WHERE JobID = 'job7'")
    world.pass_time(1.1)
    held = done(world.publish())
    assert [(month.name, len(month.orphaned), month.emptied) for month in held.held] == [("2028-03", 1, True)]
    fine(world.publish(accept=True))
    assert not world.wrong_months()
    world.config["source"]["unescape"] = block == "source"
    assert fine(world.publish()).outcome == "nothing", "nothing moved"


def test_a_clock_that_went_back_empties_nothing(world: World) -> None:
    """Its jobs end in the future then: they did not change."""
    world.finish([alike(1), alike(7, cpus=7).moved_to(int(NOW.timestamp()) - 600)])
    fine(world.publish())
    before = world.receiver.totals()
    world.pass_time(-3)
    done(world.publish())
    done(world.republish("2028-04"))
    assert world.receiver.totals() == before


# Gone


def test_rows_whose_jobs_are_gone_keep_their_totals_beside_others_that_changed(world: World) -> None:
    """`cleanup` took jobs of two rows, one of them the last; the job of another row was restarted."""
    world.finish([alike(number) for number in range(3)])
    world.finish([alike(7, cpus=7), alike(8, cpus=8)])
    fine(world.publish())
    clean_up(world, "job0", "job8")
    world.finish_again("job7", wall_s=77)
    world.finish([alike(20)])
    world.pass_time(1.1)
    fine(world.publish())
    assert not world.wrong_months()
    assert empty_rows(world) == 0
    fine(world.republish("2028-03"))
    assert not world.wrong_months()


def test_of_two_rows_that_lost_a_job_only_that_of_the_restarted_one_is_emptied(world: World) -> None:
    world.finish([alike(1), alike(7, cpus=7), alike(8, cpus=8)])
    fine(world.publish())
    clean_up(world, "job8")
    world.finish_again("job7", cpus=9, wall_s=77)
    world.pass_time(1.1)
    for _ in range(3):
        fine(world.publish())
        world.pass_time(1.1)
        assert not world.wrong_months()
        assert empty_rows(world) == 1


@pytest.mark.parametrize("world", ["apel-summary-0.2", "apel-summary-0.4"], indirect=True)
def test_a_row_with_a_job_gone_follows_another_that_changed(world: World) -> None:
    world.finish([alike(number) for number in range(3)])
    fine(world.publish())
    clean_up(world, "job0")
    world.finish_again("job1", wall_s=77)
    world.pass_time(1.1)
    fine(world.publish(accept=True))
    assert not world.wrong_months()
    world.finish([alike(4)])
    fine(world.publish())
    assert not world.wrong_months()


def test_settings_do_not_empty_rows_whose_jobs_are_gone(world: World) -> None:
    world.finish([alike(number) for number in range(3)])
    fine(world.publish())
    before = world.receiver.totals()
    clean_up(world, "job0")
    world.config["records"]["benchmark"]["value"] = 9
    world.pass_time(1.1)
    done(world.publish(accept=True))
    done(world.republish("2028-03", accept=True))
    assert world.receiver.totals() == before


@pytest.mark.parametrize("accept", [False, True])
@pytest.mark.parametrize("world", ["apel-summary-0.2", "apel-summary-0.4"], indirect=True)
def test_where_one_job_is_gone_and_another_moved_their_row_keeps_the_first(world: World, accept: bool) -> None:
    february = int(FEBRUARY.timestamp()) + 5_000
    world.finish([replace(alike(number), job_id=f"feb{number}").moved_to(february + number) for number in range(3)])
    world.finish([replace(alike(7, cpus=7), job_id="feb7").moved_to(february + 7)])
    fine(world.publish())
    clean_up(world, "feb0")
    world.finish_again("feb1", end_time=int(MARCH.timestamp()) + 3_600)
    world.finish_again("feb7", wall_s=world.done["feb7"].wall_s + 77)
    world.finish([replace(alike(8, cpus=8), job_id="feb8").moved_to(february + 8)])
    world.pass_time(1.1)
    fine(world.publish(accept=accept))
    assert not world.wrong_months()
    assert done(world.publish()).outcome == "nothing"
    fine(world.republish("2028-02", "2028-03"))
    assert not world.wrong_months()
    world.sync()
    assert not world.differences()
