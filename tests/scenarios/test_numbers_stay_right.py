"""States in which the receiver's totals would part from the truth: the guard tells of each, `sync --check` is clean after."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from publisher.model import time
from publisher.model.errors import UsageError
from publisher.publishing.republish import plan, run
from publisher.publishing.round import totals
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.sync import check, portal
from publisher.publishing.sync.left import confirm_deleted
from tests.arex_databases import SampleJob
from tests.support.pki import Credential
from tests.support.simulated_months import Steps, World
from tests.support.spring_2028 import APRIL, JOBS, MARCH, NOW, done


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, host: Credential) -> World:
    return World(folder=tmp_path, host=host, now=NOW, format=getattr(request, "param", "car"))


def held(outcome: Outcome | None) -> list[tuple[str, int, int]]:
    """Month, rows that would stay, jobs that would be lost."""
    return [(month.name, len(month.orphaned), month.lost_jobs) for month in done(outcome).held]


def alike(number: int, **values: Any) -> SampleJob:
    """A job of March; all of them make one row at the receiver."""
    ended = int(MARCH.timestamp()) + 100_000 + 1_000 * number
    job = replace(JOBS[-1], submit_time=ended - 30_000).moved_to(ended)
    return replace(job, job_id=f"job{number}", local_job_id=str(9_000 + number), **values)


def clean_up(world: World, *job_ids: str) -> None:
    """Rows of the accounting database are deleted, as ARC's `cleanup` does."""
    with closing(sqlite3.connect(world.folder / "control" / "accounting" / "accounting_v2.db")) as connection:
        connection.executemany("DELETE FROM AAR WHERE JobID = ?", [(job_id,) for job_id in job_ids])
        connection.commit()


def republish_meeting(world: World, other: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """A republish of March in portions of a page, with something else done between two of them."""
    monkeypatch.setattr(run, "_PORTION_JOBS", 1)
    site = world.site()
    breaths = iter(range(1_000))

    def wait(seconds: float) -> bool:
        if seconds and next(breaths) == 1:
            other()
        return False

    site = replace(site, process=site.process._replace(wait=wait))
    wish = plan.RepublishRequest(window=time.window(MARCH, APRIL))
    plans = plan.plan(site, site.settings.targets, wish, Steps())
    (outcome,) = run.carry_out(site, site.settings.targets, plans, wish, Steps(), dry_run=False)
    return outcome


WITHOUT_LEVELS, BY_LEVEL = ("apel-normalised-summary-0.4", "apel-summary-0.3"), ("apel-summary-0.2", "apel-summary-0.4")


def at_two_levels(*numbers: int) -> list[SampleJob]:
    return [alike(number, benchmark=f"HEPSPEC:{10 + number % 2}") for number in numbers]


@pytest.mark.parametrize("then", BY_LEVEL)
@pytest.mark.parametrize("world", WITHOUT_LEVELS, indirect=True)
def test_a_month_counted_without_levels_goes_on_by_level(world: World, then: str) -> None:
    """In the format that it began in, until it is republished."""
    world.finish(at_two_levels(1, 2, 3))
    done(world.publish())
    world.config["targets"]["egi"]["format"] = then
    world.finish(at_two_levels(4, 5))
    assert held(world.publish()) == []
    assert world.wrong_months() == {}
    first = done(world.republish("2028-03"))
    assert [name for name, _, _ in held(first)] == ["2028-03"], "its row stands in another table"
    world.do_the_tickets(first)
    accepted = done(world.republish("2028-03", accept=True))
    assert (accepted.exit_status, accepted.held, world.wrong_months()) == (0, (), {})
    assert done(world.publish()).records == 0


@pytest.mark.parametrize("then", BY_LEVEL)
@pytest.mark.parametrize("world", WITHOUT_LEVELS, indirect=True)
def test_a_month_counted_without_levels_keeps_jobs_whose_rows_are_gone(world: World, then: str) -> None:
    world.finish(at_two_levels(1, 2, 3))
    done(world.publish())
    clean_up(world, "job1")
    world.config["targets"]["egi"]["format"] = then
    assert done(world.publish()).exit_status == 0
    assert done(world.republish("2028-03")).exit_status == 65
    world.finish(at_two_levels(4))
    assert held(world.publish()) == []
    assert world.wrong_months() == {}


@pytest.mark.parametrize("world", ["apel-summary-0.2", "apel-normalised-summary-0.4"], indirect=True)
def test_a_month_that_lost_its_last_job_is_held_once_and_then_told_as_0(world: World) -> None:
    feb, mar = ([job for job in JOBS if job.end_time < MARCH.timestamp()], JOBS[-3:])
    world.finish([feb[0], *mar])
    done(world.publish())
    world.finish_again(feb[0].job_id, end_time=int(MARCH.timestamp()) + 3_600)
    world.pass_time(1.1)
    first = done(world.publish())
    assert held(first) == [("2028-02", 1, 0)]
    assert world.do_the_tickets(first) == 1
    accepted = done(world.publish(accept=True))
    assert (accepted.exit_status, world.wrong_months()) == (0, {})
    assert [jobs for (month, _), jobs in world.receiver.told.items() if month == (2028, 2)] == [0]
    site = world.site()
    confirm_deleted(site.ledgers, site.settings.targets, 2028 * 12 + 1)
    assert world.differences() == []
    again = done(world.publish())
    assert (again.exit_status, again.held) == (0, ())


def test_a_single_record_that_moved_to_another_month_is_no_difference(world: World) -> None:
    """At the receiver it stays under the end time under which it was delivered: nothing mends that."""
    feb, mar = ([job for job in JOBS if job.end_time < MARCH.timestamp()], JOBS[-3:])
    world.finish([*feb, *mar])
    done(world.publish())
    world.finish_again(feb[0].job_id, end_time=int(MARCH.timestamp()) + 3_600)
    world.pass_time(1.1)
    done(world.publish())
    assert world.differences() == []


@pytest.mark.parametrize("unwanted", ["by status", "purged"])
def test_delivered_jobs_that_do_not_go_again_go_on_counting(world: World, unwanted: str) -> None:
    """Single records are never taken back, and the purged have their entries: nothing shrinks, and nothing is held."""
    world.finish([alike(number, status="failed" if number < 3 else "completed") for number in range(10)])
    world.finish([alike(number, status="aborted") for number in range(10, 20)])
    done(world.publish())
    before = world.receiver.totals()
    if unwanted == "by status":
        world.config["records"]["statuses"] = ["completed"]
    else:
        clean_up(world, "job0", "job1", "job2")
    for again in (world.republish("2028-03"), world.republish("2028-03", accept=True)):
        assert (done(again).exit_status, held(again)) == (0, [])
        assert world.receiver.totals() == before
    assert before[2028, 3][0] == 10


def test_single_records_whose_rows_are_gone_are_in_the_totals_after_them(world: World) -> None:
    world.finish([alike(number) for number in range(10)])
    done(world.publish())
    clean_up(world, "job0", "job1", "job2")
    world.config["targets"]["egi"]["format"] = "apel-summary-0.4"
    world.finish([alike(11)])
    world.pass_time(1.1)
    assert done(world.publish()).held == (), "it goes on as single records"
    assert world.wrong_months() == {}
    assert [month for month, *_ in held(world.republish("2028-03"))] == ["2028-03"]
    assert done(world.republish("2028-03", accept=True)).exit_status == 0
    assert world.wrong_months() == {}


def test_other_settings_that_come_into_use_meanwhile_end_a_republish(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sent again of the others' jobs would leave their rows behind, and nobody would know of these."""
    world.finish([alike(number) for number in range(30)])
    done(world.publish())

    def reconfigured() -> None:
        world.config["records"]["benchmark"]["value"] = 12.5
        world.finish([alike(number) for number in range(40, 45)])
        done(world.publish())

    outcome = republish_meeting(world, reconfigured, monkeypatch)
    assert outcome.exit_status == 65
    assert "run the command again" in outcome.reason
    assert world.wrong_months() == {}
    mixed = done(world.republish("2028-03"))
    assert held(mixed) == [("2028-03", 1, 0)]
    assert done(world.republish("2028-03", accept=True)).exit_status == 0
    world.do_the_tickets(mixed)
    assert world.wrong_months() == {}
    site = world.site()
    assert confirm_deleted(site.ledgers, site.settings.targets, 2028 * 12 + 2) == [("egi", 1)]
    assert world.differences() == []


@pytest.mark.parametrize("world", ["car", "apel-summary-0.4"], indirect=True)
def test_a_late_row_of_a_month_before_the_start_is_found_and_mended(world: World) -> None:
    world.config["targets"]["egi"]["start"] = "2028-04"
    world.finish(JOBS[:-2])
    done(world.republish("2028-02", "2028-03"))
    done(world.sync())
    assert world.differences() == []
    world.finish(JOBS[-2:])
    (difference,) = world.differences()
    assert "2 not delivered: publisher republish --from 2028-03 --to 2028-03 --target egi" in difference
    done(world.republish("2028-03"))
    done(world.sync())
    assert world.differences() == []
    assert world.wrong_months() == {}


def test_totals_for_once_are_of_whole_months_also_where_the_target_starts_inside_one(world: World) -> None:
    world.config["targets"]["egi"]["start"] = "2028-03-10"
    world.finish(JOBS)
    assert done(world.republish("2028-03", form="apel-summary-0.4")).exit_status == 0
    assert world.receiver.totals()[2028, 3] == world.truth()[2028, 3]


def test_nothing_to_tell_is_no_difference(world: World) -> None:
    world.finish([replace(JOBS[-1], benchmark="HS06:12.26")])  # of a kind that the receiver does not know
    assert done(world.publish()).quarantined == 1
    assert [difference.partition(": ")[2] for difference in world.differences()] == [
        "1 set aside: publisher quarantine list --target egi"
    ]


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
@pytest.mark.parametrize("fatal", range(1, 12))
def test_a_large_month_is_noted_in_portions_and_power_may_go_between_them(
    world: World, monkeypatch: pytest.MonkeyPatch, fatal: int
) -> None:
    monkeypatch.setattr(totals, "_FLUSH_ENTRIES", 5)
    world.config["targets"]["egi"]["start"] = "2028-04"
    world.finish([alike(number) for number in range(23)])
    world.republish("2028-03", fatal=fatal)
    assert done(world.republish("2028-03")).exit_status == 0
    done(world.sync())
    assert world.wrong_months() == {}
    assert world.differences() == []


HEADING = "Site{0}Month{0}Year{0}SubmitHost{0}NumberOfJobs\n"
SAVED = {
    "semicolons": HEADING.format(";") + "SITE;3;2028;ce;1234\n",
    "tabs": HEADING.format("\t") + "SITE\t03\t2028\tce\t1,234\n",
    "blanks and quotes": '"Site", "Month", "Year", "Submit Host", "Number Of Jobs"\n"site", "3", "2028", "ce", "1,234"\n',
    "byte order mark": "\ufeff" + HEADING.format(",") + "SITE,3,2028,ce,1234\nOTHER,3,2028,ce,9\n",
    "JSON in an object": '\ufeff{"errors": [], "rows": [{"month": "2028-03", "submit_host": "CE", "jobs": 1234}]}',
}


@pytest.mark.parametrize("text", SAVED.values(), ids=SAVED)
def test_what_portals_save(text: str, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_text(text, encoding="utf-8")
    assert portal.read(path, "SITE") == {(12 * 2028 + 2, "ce"): 1234}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html><body>log in first</body></html>",
        HEADING.format(","),
        HEADING.format(",") + "OTHER,3,2028,ce,9\n",
        HEADING.format(",") + "SITE,3,2028,ce,1,234\n",
        HEADING.format(",") + "SITE,3,2028,ce,-1\n",
        '{"error": "log in first"}',
        "[]",
    ],
)
def test_a_file_that_tells_nothing_is_not_0_jobs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="columns must be"):
        portal.read(path, "SITE")


@pytest.mark.parametrize(
    ("there", "repair"), [(12, ""), (11, "republish --from 2028-03"), (13, "1 more than we published")]
)
def test_a_portal_that_does_not_tell_submit_hosts_apart(world: World, there: int, repair: str, tmp_path: Path) -> None:
    world.finish(
        [replace(job, endpoint_url=f"https://ce0{number % 2}.example.org/arex") for number, job in enumerate(JOBS)]
    )
    done(world.publish())
    path = tmp_path / "saved"
    path.write_text(f"Month,Year,Jobs\n2,2028,12\n3,2028,{there}\n")
    site = world.site()
    compared = check.check(site, site.settings.targets, months=None, portal=portal.read(path, "SITE"))
    repairs = [repair for row in compared for repair in row.repairs]
    assert len(repairs) == bool(repair)
    assert repair in "".join(repairs)
    assert [row.portal for row in compared if row.submit_host == portal.EVERY_HOST] == [12, there]


def test_a_check_tells_how_far_it_is(world: World) -> None:
    """It looks at every job of the months: minutes for a million."""
    world.finish(list(JOBS))
    done(world.publish())
    site = world.site()
    seen: list[int] = []
    check.check(site, site.settings.targets, months=None, portal=None, jobs_seen=seen.append)
    assert sum(seen) == len(JOBS)
