"""What would leave rows behind at the receiver is held back, kept in sight, and mended by what it names."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from publisher.cli.commands.publish import ticket
from publisher.cli.site import LiveLedgers
from publisher.jobs.reader import StoreReader
from publisher.ledger.answers import Hold
from publisher.ledger.contract import Ledger, Locks, Patience, impatient
from publisher.ledger.sql.ledger import sql_ledger
from publisher.ledger.sqlite.connection import open_database
from publisher.model import time
from publisher.model.entry import ReceiverName
from publisher.model.errors import Busy, UsageError
from publisher.publishing import publish
from publisher.publishing import status as standing
from publisher.publishing.republish import plan, run
from publisher.publishing.round.outcome import Outcome
from tests.arex_databases import SampleJob, Writer
from tests.support.pki import Credential
from tests.support.simulated_months import Steps, WiredSite, World, month_of
from tests.support.spring_2028 import FEBRUARY, JOBS, MARCH, NOW, done


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, host: Credential) -> World:
    return World(folder=tmp_path, host=host, now=NOW, format=getattr(request, "param", "car"))


def names(outcome: Outcome | None) -> list[str]:
    return [month.name for month in done(outcome).held]


def configure(world: World, **target: Any) -> None:
    world.config["targets"]["egi"] |= target


def alone_in_its_row() -> SampleJob:
    return next(job for job in JOBS if sum(job.user == other.user and job.cpus == other.cpus for other in JOBS) == 1)


def jobs_of(month: datetime) -> list[SampleJob]:
    return [job for job in JOBS if datetime.fromtimestamp(job.end_time, UTC).month == month.month]


# Another format


@pytest.mark.parametrize("other", ["apel-summary-0.2", "apel-summary-0.3", "apel-normalised-summary-0.4"])
def test_after_single_records_late_jobs_go_alone_until_the_month_is_republished_as_totals(
    world: World, other: str
) -> None:
    world.finish(JOBS[1:])
    assert done(world.publish()).exit_status == 0
    configure(world, format=other)
    world.pass_time(1)
    world.finish(JOBS[:1])
    assert done(world.publish()).exit_status == 0
    assert {name for name, _ in tables(world)} == {"JobRecords"}
    assert not world.wrong_months()
    held = done(world.republish("2028-02"))
    assert (held.exit_status, names(held)) == (65, ["2028-02"])
    is_replaced = other == "apel-summary-0.2"
    assert sum(total.jobs for total in held.held[0].orphaned) == (0 if is_replaced else len(jobs_of(FEBRUARY)))
    world.do_the_tickets(held)
    assert done(world.republish("2028-02", accept=True)).exit_status == 0
    assert not world.wrong_months()
    world.confirm_deleted(held)
    world.sync()
    assert done(world.publish()).outcome == "nothing"
    assert not world.differences()
    assert world.status().delivered == len(JOBS)


def tables(world: World) -> list[tuple[str, Any]]:
    """Return the rows of jobs that the receiver has, with their tables."""
    names_of = "JobRecords", "Summaries", "NormalisedSummaries"
    return [(name, row) for name in names_of for row in world.receiver.tables.rows(name)]


@pytest.mark.parametrize("world", ["car", "apel-summary-0.4"], indirect=True)
def test_a_benchmark_that_is_overridden_moves_rows_and_is_held(world: World) -> None:
    world.finish([replace(job, benchmark="HEPSPEC:1190") for job in JOBS])
    assert done(world.publish()).exit_status == 0
    world.config["records"]["benchmark"] = {"type": "HEPSPEC", "value": 11.9, "override": True}
    assert done(world.publish()).outcome == "nothing", "settings concern runs that were not sent"
    held = done(world.republish("2028-02", "2028-03"))
    assert (held.exit_status, names(held)) == (65, ["2028-02", "2028-03"])
    assert any("1190" in total.key.text for month in held.held for total in month.orphaned)
    if world.format == "car":
        world.do_the_tickets(held)
    assert done(world.republish("2028-02", "2028-03", accept=True)).exit_status == 0
    assert not world.wrong_months()
    assert {row["ServiceLevel"] for _, row in world.receiver.rows() if row["NumberOfJobs"]} == {Decimal("11.9")}


@pytest.mark.parametrize("world", ["car", "apel-job-0.4"], indirect=True)
def test_a_month_under_another_localid_prefix_is_held(world: World) -> None:
    """A record under another LocalJobId is another record, and that of before stays."""
    world.finish(JOBS[1:])
    assert done(world.publish()).exit_status == 0
    world.config["records"]["localid_prefix"] = "c1-"
    world.finish(JOBS[:1])
    assert done(world.publish()).exit_status == 0
    assert not world.wrong_months()
    for prefix in ("c1-", ""):
        world.config["records"]["localid_prefix"] = prefix
        held = done(world.republish("2028-02", "2028-03"))
        assert (held.exit_status, names(held)) == (65, ["2028-02", "2028-03"])
        assert not world.wrong_months()
        told = "".join(ticket("EXAMPLE-SITE", "APEL", held))
        assert "Rows that would stay" in told
        assert "Please delete" not in told, "the ticket comes after the new records"
        world.asked.clear()
        world.do_the_tickets(held)
        assert done(world.republish("2028-02", "2028-03", accept=True)).exit_status == 0
        assert not world.wrong_months()
        assert done(world.republish("2028-02", "2028-03")).exit_status == 0
        assert not world.wrong_months()


@pytest.mark.parametrize("world", ["car", "apel-job-0.4"], indirect=True)
@pytest.mark.parametrize("change", [{"records": {"localid_prefix": "c1-"}}, {"site": "OTHER-SITE"}])
def test_a_run_that_changed_keeps_the_local_job_id_and_site_that_it_was_sent_under(
    world: World, change: dict[str, Any]
) -> None:
    alike = [replace(JOBS[0], job_id=f"alike{at}", local_job_id=f"9{at}", cpus=4) for at in range(3)]
    world.finish(alike)
    assert done(world.publish()).exit_status == 0
    before = world.config
    records = before["records"] | change.get("records", {})
    world.config = before | change | {"records": records}
    world.finish_again("alike1", wall_s=77)
    assert done(world.publish()).records == 1
    assert not world.wrong_months()
    world.config = before
    assert done(world.publish()).outcome == "nothing"
    assert world.status().quarantined == 0
    assert not world.wrong_months()


@pytest.mark.parametrize("world", ["car", "apel-summary-0.2"], indirect=True)
def test_the_ticket_of_a_site_that_was_renamed_names_the_site_of_the_rows(world: World) -> None:
    """Its job records stay as well: the site is in their keys."""
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    world.config["site"] = "OTHER-SITE"
    singles = world.format == "car"
    held = done(world.republish("2028-02", "2028-03"))
    assert names(held) == ["2028-02", "2028-03"]
    told = ticket("OTHER-SITE", "APEL", held)
    rows = [line for line in told if " s wall, " in line]
    assert all(": site EXAMPLE-SITE, VO " in line for line in rows)
    assert ("Rows that would stay" in "".join(told)) == singles
    assert ": VO " in "".join(ticket("example-site", "APEL", held))


def test_a_run_that_changed_goes_with_its_month_under_another_localid_prefix(world: World) -> None:
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    world.config["records"]["localid_prefix"] = "c1-"
    world.finish_again(JOBS[0].job_id, wall_s=JOBS[0].wall_s + 60)
    assert done(world.publish()).records == 1
    assert not world.wrong_months()
    held = done(world.republish("2028-02", "2028-03"))
    assert names(held) == ["2028-02", "2028-03"]
    world.do_the_tickets(held)
    assert done(world.republish("2028-02", "2028-03", accept=True)).exit_status == 0
    assert done(world.publish()).exit_status == 0
    assert world.status().quarantined == 0
    assert not world.wrong_months()
    assert world.differences(), "the old records count until their deletion is confirmed"
    world.confirm_deleted(held)
    world.sync()
    assert not world.differences()


@pytest.mark.parametrize("world", ["apel-summary-0.2", "apel-normalised-summary-0.4"], indirect=True)
def test_after_totals_late_jobs_are_added_until_the_month_is_republished_as_single_records(world: World) -> None:
    world.finish(JOBS[1:])
    assert done(world.publish()).exit_status == 0
    configure(world, format="car")
    world.finish(JOBS[:1])
    assert done(world.publish()).exit_status == 0
    assert not world.receiver.tables.rows("JobRecords")
    assert not world.wrong_months()
    held = done(world.republish("2028-02"))
    assert (held.exit_status, names(held)) == (65, ["2028-02"])
    world.do_the_tickets(held)
    assert done(world.republish("2028-02", accept=True)).exit_status == 0
    assert not world.wrong_months()
    assert world.differences(), "until it is confirmed"
    world.confirm_deleted(held)
    world.sync()
    assert done(world.publish()).outcome == "nothing"
    assert world.status().held == 0
    assert not world.differences()


def test_a_republish_in_a_format_of_another_table_is_held(world: World) -> None:
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    assert names(world.republish("2028-02", "2028-03", form="apel-summary-0.4")) == ["2028-02", "2028-03"]
    assert done(world.republish("2028-02", "2028-03", form="apel-job-0.3")).exit_status == 0
    assert not world.wrong_months()


@pytest.mark.parametrize("world", ["apel-summary-0.2"], indirect=True)
def test_totals_of_another_table_are_held_and_late_jobs_go_on_in_that_of_their_month(world: World) -> None:
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    assert names(world.republish("2028-02", form="apel-summary-0.3")) == ["2028-02"]
    assert names(world.republish("2028-02", form="car")) == ["2028-02"]
    assert done(world.republish("2028-02", form="apel-summary-0.4")).exit_status == 0
    configure(world, format="apel-summary-0.3")
    assert done(world.publish()).exit_status == 0, "months that did not change stay as they are"
    world.finish([replace(jobs_of(MARCH)[0], job_id="late", local_job_id="777")])
    assert done(world.publish()).exit_status == 0
    assert not world.receiver.tables.rows("NormalisedSummaries")
    assert not world.wrong_months()


@pytest.mark.parametrize("world", ["apel-summary-0.3", "apel-normalised-summary-0.4"], indirect=True)
@pytest.mark.parametrize("then", ["apel-summary-0.2", "car"])
def test_a_ticket_about_normalised_rows_names_no_value_of_a_benchmark(world: World, then: str) -> None:
    """Their table has no column for one."""
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    republished = done(world.republish("2028-02", form=then))
    configure(world, format=then)
    world.finish([replace(jobs_of(FEBRUARY)[0], job_id="late", local_job_id="777")])
    published = done(world.publish())
    lines = [line for line in ticket("SITE", "APEL", republished) if " s wall, " in line]
    assert names(republished) == ["2028-02"]
    assert (published.exit_status, names(published)) == (0, [])
    assert lines
    for line in lines:
        assert re.search(r", grid, (HEPSPEC|HEPscore23|Si2k), nodes \d+,", line), line


@pytest.mark.parametrize(("first", "then"), [("car", "apel-summary-0.2"), ("apel-summary-0.2", "car")])
def test_a_message_of_the_format_before_goes_first_and_counts(world: World, first: str, then: str) -> None:
    configure(world, format=first)
    world.finish(JOBS)
    assert done(world.publish(faults=["answer lost"])).exit_status == 75
    configure(world, format=then)
    world.finish([replace(jobs_of(FEBRUARY)[0], job_id="late", local_job_id="777")])
    there = {(name, month_of(row)) for name, row in tables(world)}
    published = done(world.publish())
    assert (published.exit_status, names(published), published.messages > 1) == (0, [], True)
    months = {month for _, month in there}
    now = {(name, month_of(row)) for name, row in tables(world) if month_of(row) in months}
    assert now == there, "it fixes the kind of its months"
    assert not world.wrong_months()


def totals_in_doubt(world: World) -> None:
    """The only message of a month of totals may have arrived, and single records are to follow it."""
    configure(world, format="apel-summary-0.2")
    world.finish(jobs_of(FEBRUARY)[:1])
    assert done(world.publish(faults=["answer lost"])).exit_status == 75
    configure(world, format="car")
    world.finish([replace(jobs_of(FEBRUARY)[0], job_id="late", local_job_id="777")])


def test_records_wait_for_totals_that_nobody_has_accepted_yet(world: World) -> None:
    totals_in_doubt(world)
    refused = done(world.publish(faults=["refused, perhaps"]))
    assert (refused.exit_status, refused.records, names(refused)) == (76, 0, [])
    assert done(world.publish()).exit_status == 0
    assert {name for name, _ in tables(world)} == {"Summaries"}
    assert not world.wrong_months()


def test_a_rehearsal_takes_totals_in_doubt_for_the_format_that_they_have(world: World) -> None:
    totals_in_doubt(world)
    outcomes = publish.publish(world.site(), targets=[], observer=Steps(), force=True, dry_run=True)
    assert [(one.exit_status, names(one), one.jobs) for one in outcomes] == [(0, [], 2)], "a row of two jobs"


@pytest.mark.parametrize("narrowed", [{"vos": ["cms"]}, {"statuses": ["completed"]}])
def test_jobs_that_are_not_wanted_any_more_are_no_difference(world: World, narrowed: dict[str, Any]) -> None:
    """Neither before nor after their rows were accepted as left behind, and counted no more."""
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    configure(world, **narrowed)
    assert done(world.publish()).exit_status == 0
    assert world.differences() == []
    assert done(world.republish("2028-02", "2028-03", accept=True)).exit_status == 0
    assert done(world.publish()).exit_status == 0
    assert world.differences() == []


# Changed jobs


@pytest.mark.parametrize("rules", [[], [{"field": "local_user", "pattern": "nobody here", "vo": "other"}]])
def test_a_changed_job_that_was_the_last_of_its_row_waits(world: World, rules: list[dict[str, str]]) -> None:
    """The server never deletes a row that it summed up: the job would count under its old cores and its new ones.

    Nor does it when the row was made under other settings.
    """
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    world.config["records"]["vo_rules"] = rules
    job = alone_in_its_row()
    world.finish_again(job.job_id, cpus=job.cpus + 3)
    world.pass_time(2)
    for _ in range(3):  # also rounds that look at new rows only
        held = done(world.publish())
        assert (held.exit_status, sum(len(month.orphaned) for month in held.held)) == (65, 1)
        assert not world.wrong_months()
        assert world.status().held == 1
    world.do_the_tickets(held)
    assert done(world.publish(accept=True)).exit_status == 0
    assert not world.wrong_months()
    assert done(world.publish()).outcome == "nothing"


def test_a_changed_job_whose_row_keeps_others_goes_out(world: World) -> None:
    alike = [replace(JOBS[0], job_id=f"alike{at}", local_job_id=f"9{at}", cpus=4) for at in range(3)]
    world.finish(alike)
    assert done(world.publish()).exit_status == 0
    world.finish_again("alike1", cpus=8, wall_s=77)
    world.pass_time(2)
    assert done(world.publish()).records > 0
    assert not world.wrong_months()


def test_a_first_run_that_stays_by_right_holds_nobody(world: World) -> None:
    """A job was restarted under another LocalJobId, with other cores: what its first run used stays counted."""
    alike = [replace(JOBS[0], job_id=f"alike{at}", local_job_id=f"9{at}", cpus=4) for at in range(3)]
    world.finish([*alike, replace(JOBS[0], job_id="again", local_job_id="95", cpus=7)])
    assert done(world.publish()).exit_status == 0
    world.finish_again("again", local_job_id="96", cpus=9)
    assert done(world.publish()).exit_status == 0
    world.finish_again("alike1", wall_s=77)
    world.pass_time(2)
    corrected = done(world.publish())
    assert (corrected.exit_status, corrected.held) == (0, ())
    assert 77 in {row["WallDuration"] for row in world.receiver.tables.rows("JobRecords")}
    ((jobs, _, _),) = [totals for totals in world.receiver.totals().values() if totals[0]]
    assert jobs == 5
    world.finish_again("again", cpus=11)
    world.pass_time(2)
    assert done(world.publish()).held, "of its second run nothing else makes the row"


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("later", ["same month", "next month"])
def test_republish_holds_nothing_for_a_first_run_that_stays_by_right(world: World, published: bool, later: str) -> None:
    alike = [replace(JOBS[0], job_id=f"alike{at}", local_job_id=f"9{at}", cpus=4) for at in range(3)]
    world.finish([*alike, replace(JOBS[0], job_id="again", local_job_id="95", cpus=7)])
    assert done(world.publish()).exit_status == 0
    end = JOBS[0].end_time + (500 if later == "same month" else 40 * 86_400)
    world.finish_again("again", local_job_id="96", cpus=9, end_time=end)
    if published:
        assert done(world.publish()).exit_status == 0
    for _ in range(2):
        again = done(world.republish("2028-02", "2028-03"))
        assert (again.exit_status, again.held) == (0, ())
    rows = sorted((row["Processors"], row["NumberOfJobs"]) for _, row in world.receiver.rows())
    assert rows == [(4, 3), (7, 1), (9, 1)]
    assert done(world.sync()).exit_status == 0
    assert world.differences() == []
    ledger = world.site().ledgers.to_read()
    with closing(ledger):
        noted = [row.counts.jobs for month in (24_337, 24_338) for row in ledger.entries.rows("egi", month)]
    assert sorted(noted) == [1, 1, 3]
    world.finish_again("alike1", wall_s=77)
    assert done(world.republish("2028-02")).exit_status == 0
    assert 77 in {row["WallDuration"] for row in world.receiver.tables.rows("JobRecords")}
    world.finish_again("again", cpus=11)
    assert done(world.republish("2028-02", "2028-03")).held, "of its second run nothing else makes the row"


def test_a_round_that_holds_something_back_is_no_success(world: World) -> None:
    configure(world, format="apel-summary-0.2")
    world.finish(JOBS)
    world.publish()
    first = world.status()
    world.finish_again(alone_in_its_row().job_id, cpus=99)
    world.pass_time(1)
    assert done(world.publish()).exit_status == 65
    held = world.status()
    assert (first.held, held.held) == (0, 1)
    assert held.last_success == first.last_success
    assert done(world.publish(force=False)).held, "it stays due"


# Rows that are gone


def forget_rows(world: World, count: int) -> None:
    """`arcctl accounting database cleanup`."""
    with (
        closing(sqlite3.connect(world.folder / "control" / "accounting" / "accounting_v2.db")) as connection,
        connection,
    ):
        connection.execute(
            "DELETE FROM AAR WHERE RecordID IN (SELECT RecordID FROM AAR ORDER BY EndTime LIMIT ?)", (count,)
        )


@pytest.mark.parametrize("world", ["car", "apel-summary-0.2"], indirect=True)
def test_jobs_that_the_ce_purged_go_on_counting(world: World) -> None:
    """Their entries count, whatever rounds, republishing and late jobs find in the accounting data."""
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    forget_rows(world, 3)
    republished = done(world.republish("2028-02"))
    assert (republished.exit_status, republished.held) == (0, ())
    assert not world.wrong_months()
    world.finish([replace(jobs_of(FEBRUARY)[0], job_id="late", local_job_id="777")])
    assert done(world.publish()).exit_status == 0
    assert not world.wrong_months()


@pytest.mark.parametrize("world", ["car", "apel-summary-0.2"], indirect=True)
def test_copies_in_a_second_database_count_once_beside_purged_jobs(world: World) -> None:
    world.finish(jobs_of(FEBRUARY))
    assert done(world.publish()).exit_status == 0
    forget_rows(world, 3)
    with Writer(world.folder / "control" / "accounting" / "accounting.db", schema=1) as arex:
        arex.write_all(sorted(jobs_of(FEBRUARY), key=lambda job: job.end_time)[3:])
    assert done(world.publish()).outcome == "nothing"
    world.finish([replace(jobs_of(FEBRUARY)[0], job_id="late", local_job_id="777")])
    assert done(world.publish()).exit_status == 0
    assert not world.wrong_months()


@pytest.mark.parametrize("world", ["apel-summary-0.2"], indirect=True)
def test_another_version_or_policy_does_not_shrink_a_month_whose_rows_are_gone(world: World) -> None:
    configure(world, sync=False)
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    forget_rows(world, 3)
    world.config["records"]["start_time"] = "submission"  # changes no total, but the digest of the policy
    world.pass_time(2)
    assert done(world.publish()).outcome == "nothing"
    late = replace(JOBS[-1], job_id="late", local_job_id="777", end_time=int(FEBRUARY.timestamp()) + 7200)
    world.finish([late])
    assert done(world.publish()).exit_status == 0
    assert not world.wrong_months()


@pytest.mark.parametrize("world", ["apel-summary-0.2"], indirect=True)
def test_a_dropped_job_stays_out_when_its_month_is_summed_up_anew(world: World) -> None:
    del world.config["records"]["benchmark"]
    (poor, *rest) = JOBS
    world.finish([poor, *(replace(job, benchmark="HEPSPEC:10") for job in rest)])
    assert done(world.publish()).quarantined == 1
    site = world.site()
    standing.release_or_drop(site, [], Hold.DROPPED, every=True, targets=[])
    world.config["records"]["benchmark"] = {"type": "HEPSPEC", "value": 10}
    world.pass_time(2)
    assert done(world.publish()).exit_status == 0
    assert sum(jobs for jobs, _, _ in world.receiver.totals().values()) == len(JOBS) - 1


@pytest.mark.parametrize("world", ["apel-summary-0.2"], indirect=True)
def test_a_job_that_moved_to_another_month_leaves_the_first_also_when_the_second_is_republished(world: World) -> None:
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    job = jobs_of(FEBRUARY)[0]
    world.finish_again(job.job_id, end_time=int(MARCH.timestamp()) + 90_000)
    assert names(world.republish("2028-03")) == ["2028-02"], "before anything of it is sent"
    held = done(world.publish())
    assert names(held) == ["2028-02"]
    world.do_the_tickets(held)
    assert done(world.publish(accept=True)).exit_status == 0
    assert not world.wrong_months()


@pytest.mark.parametrize("world", ["apel-summary-0.2"], indirect=True)
@pytest.mark.parametrize("then", ["nothing", "another job"])
def test_a_job_that_moved_to_a_month_without_any_counts_there(world: World, then: str) -> None:
    jobs = jobs_of(FEBRUARY)
    world.finish(jobs)
    assert done(world.publish()).exit_status == 0
    world.finish_again(jobs[0].job_id, end_time=int(MARCH.timestamp()) + 90_000)
    world.pass_time(2)
    if then == "another job":
        assert world.publish(fatal=2) is None
        world.finish(jobs_of(MARCH)[:1])
    held = done(world.publish())
    assert names(held) == ["2028-02"]
    has = {month: counted for month, (counted, *_) in world.receiver.totals().items()}
    others = {} if then == "nothing" else {(2028, 3): 1}
    assert has == {(2028, 2): len(jobs)} | others, "what moves waits with the row that it leaves"
    world.do_the_tickets(held)
    assert done(world.publish(accept=True)).exit_status == 0
    assert not world.wrong_months()


# Months before the start


@pytest.mark.parametrize("world", ["car", "apel-summary-0.2"], indirect=True)
def test_months_before_the_start_go_whole_when_they_are_named(world: World) -> None:
    configure(world, start="2028-03")
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    assert set(world.wrong_months()) == {(2028, 2)}
    assert done(world.republish("2028-02")).exit_status == 0
    assert not world.wrong_months()
    world.config["records"]["start_time"] = "submission"
    world.pass_time(2)
    assert done(world.publish()).exit_status == 0
    assert not world.wrong_months()
    assert not world.differences()


def test_what_another_publisher_delivered_is_read_once_and_again_when_it_goes_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(world, start="2028-02-15")
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    asked: list[object] = []
    real = StoreReader.window

    def window(self: StoreReader, *rest: Any, **named: Any) -> Iterator[Any]:
        asked.append(rest)
        return real(self, *rest, **named)

    monkeypatch.setattr(StoreReader, "window", window)
    world.sync()
    assert not asked
    monkeypatch.undo()
    assert not world.differences()
    assert done(world.republish("2028-02")).exit_status == 0
    world.sync()
    assert not world.differences()
    assert sum(world.receiver.told.values()) == len(JOBS)


# Errands


def test_an_errand_under_other_settings_begins_anew(world: World) -> None:
    configure(world, batch_records=2)
    world.finish(JOBS)
    assert world.republish("2028-02", fatal=14) is None
    world.config["records"]["benchmark"]["value"] = 9
    held = done(world.republish("2028-02"))
    assert names(held) == ["2028-02"]
    world.do_the_tickets(held)
    again = done(world.republish("2028-02", accept=True))
    assert again.records >= len(jobs_of(FEBRUARY))
    assert {row["ServiceLevel"] for _, row in world.receiver.rows()} == {9}


def test_a_ticket_is_written_when_nothing_is_on_its_way(world: World) -> None:
    """A row that has not arrived yet cannot be deleted, and would arrive after that."""
    world.finish(JOBS)
    assert done(world.publish(faults=["not stored"])).exit_status == 75
    world.config["records"]["benchmark"]["value"] = 9
    assert done(world.republish("2028-02", "2028-03", faults=["not stored"])).held == ()
    held = done(world.republish("2028-02", "2028-03"))
    assert held.messages > 0
    world.do_the_tickets(held)
    assert done(world.republish("2028-02", "2028-03", accept=True)).exit_status == 0
    assert not world.wrong_months()


def test_a_second_run_of_an_errand_leaves_it_alone(world: World) -> None:
    world.finish(JOBS)
    others: list[Outcome | None] = []

    class Meanwhile(Steps):
        def _step(self, *_: object, **__: object) -> None:
            if not others:
                others.append(None)
                others[0] = world.republish("2028-02")

    site = world.site()
    wish = plan.RepublishRequest(window=time.Month(2028, 2).window)
    plans = plan.plan(site, site.settings.targets, wish, Steps())
    (first,) = run.carry_out(site, site.settings.targets, plans, wish, Meanwhile(), dry_run=False)
    assert first.exit_status == 0
    assert done(others[0]).exit_status == 75
    assert world.republish("2028-02", dry_run=True) is not None


def test_a_database_that_is_gone_does_not_hold_an_errand_up(world: World) -> None:
    configure(world, batch_records=2)
    world.finish(JOBS)
    assert world.republish("2028-02", fatal=14) is None
    folder = world.folder / "control" / "accounting"
    moved = folder / "moved.db"
    (folder / "accounting_v2.db").rename(moved)
    world.config["source"] = {"type": "arex", "databases": [str(moved)], "time_zone": "Europe/Oslo"}
    assert done(world.republish("2028-02")).exit_status == 0
    assert set(world.wrong_months()) == {(2028, 3)}


# Others at work, clocks, rehearsals


class GrabbedLocks:
    """Another publisher takes the target as soon as its first holder lets go of it."""

    def __init__(self, locks: Locks) -> None:
        self.locks = locks
        self.close = locks.close
        self.takers = 0

    def working_on(
        self,
        target: str,
        patience: Patience = impatient,
        receiver: ReceiverName | None = None,
        *,
        moves_to: str = "",
    ) -> AbstractContextManager[None]:
        self.takers += 1
        if self.takers > 1:
            raise Busy(f"target {target}: another publisher is at work on it")
        return self.locks.working_on(target, patience, receiver, moves_to=moves_to)


class GrabbedLedgers(LiveLedgers):
    def open(self, *, dry_run: bool = False) -> Ledger:
        ledger = sql_ledger(open_database(self.settings.state))
        return ledger._replace(locks=GrabbedLocks(ledger.locks))


class GrabbedSite(WiredSite):
    @property
    def ledgers(self) -> LiveLedgers:
        return GrabbedLedgers(self.settings, self.process)


def test_counts_that_cannot_be_told_now_do_not_hide_what_the_round_did(world: World) -> None:
    world.finish(JOBS)
    site = world.site()
    grabbed = GrabbedSite(settings=site.settings, process=site.process, wire=world.wire)
    (outcome,) = publish.publish(grabbed, targets=[], observer=Steps(), force=True)
    assert (outcome.exit_status, outcome.outcome, outcome.records) == (75, "deferred", len(JOBS))
    assert done(world.publish()).exit_status == 0
    assert not world.differences()


@pytest.mark.parametrize("world", ["car", "apel-summary-0.2"], indirect=True)
def test_clocks_that_jump(world: World) -> None:
    world.finish(JOBS)
    world.pass_time(400)
    assert done(world.publish()).exit_status == 0
    world.pass_time(-401)
    world.finish([replace(JOBS[0], job_id="late", local_job_id="777")])
    assert done(world.publish(force=False)).exit_status == 0, "a clock that went back makes it due"
    assert not world.wrong_months()
    world.pass_time(-60)  # before jobs have ended, in the eyes of this clock
    assert done(world.publish()).exit_status == 0
    world.pass_time(62)
    assert done(world.publish()).exit_status == 0
    assert not world.wrong_months()


@pytest.mark.parametrize("world", ["apel-summary-0.2", "car"], indirect=True)
def test_a_rehearsal_of_what_is_held_writes_nothing_down(world: World) -> None:
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    world.config["records"]["benchmark"]["value"] = 9
    before = len(world.receiver.messages)
    assert names(world.republish("2028-02", dry_run=True)) == ["2028-02"]
    assert names(world.republish("2028-02", dry_run=True, accept=True)) == ["2028-02"]
    assert names(world.republish("2028-02")) == ["2028-02"], "nothing was shown of it yet"
    assert done(world.republish("2028-02", dry_run=True, accept=True)).records > 0
    assert len(world.receiver.messages) == before
    assert names(world.republish("2028-02")) == ["2028-02"], "nothing of it was accepted"


def test_part_of_a_month_of_totals_is_refused(world: World) -> None:
    site = world.site()
    window = time.window(time.parse_from("2028-02-02", NOW), time.parse_to("2028-02-03", NOW))
    with pytest.raises(UsageError, match="a part of a month"):
        plan.plan(
            site,
            site.settings.targets,
            plan.RepublishRequest(window=window, exact=True, format="apel-summary-0.4"),
            Steps(),
        )


@pytest.mark.slow
def test_power_may_go_at_every_step_of_an_accepted_change(world: World) -> None:
    configure(world, batch_records=6)
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    world.config["records"]["benchmark"]["value"] = 9
    held = done(world.republish("2028-02", "2028-03"))
    world.do_the_tickets(held)
    for fatal in range(1, 60):
        if world.republish("2028-02", "2028-03", accept=True, fatal=fatal) is not None:
            break
    assert done(world.republish("2028-02", "2028-03")).exit_status == 0
    assert not world.wrong_months()


# Parts of months


def row_of(job: SampleJob) -> tuple[object, ...]:
    """What differs between rows of these jobs."""
    return job.user, job.vo, job.fqans, job.endpoint_url, job.cpus, job.nodes


def republish_part(world: World, *, accept: bool = False) -> Outcome:
    """`--exact`: the first half of a month."""
    site = world.site()
    window = time.window(time.parse_from("2028-02", NOW), time.parse_to("2028-02-14", NOW))
    wish = plan.RepublishRequest(window=window, exact=True, accept_key_change=accept)
    plans = plan.plan(site, site.settings.targets, wish, Steps())
    (outcome,) = run.carry_out(site, site.settings.targets, plans, wish, Steps(), dry_run=False)
    return outcome


def test_a_part_of_a_month_goes_when_its_keys_are_as_before(world: World) -> None:
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    assert republish_part(world).records > 0
    assert not world.wrong_months()


def test_a_part_of_a_month_under_other_keys_is_held(world: World) -> None:
    """Jobs of the rest keep some of the old rows alive; the others are named."""
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    world.config["records"]["benchmark"]["value"] = 9
    held = republish_part(world)
    assert (held.exit_status, names(held)) == (65, ["2028-02"])
    middle = int(datetime(2028, 2, 15, tzinfo=UTC).timestamp())
    rest = {row_of(job) for job in jobs_of(FEBRUARY) if job.end_time >= middle}
    emptied = [job for job in jobs_of(FEBRUARY) if row_of(job) not in rest]
    assert sum(total.jobs for total in held.held[0].orphaned) == len(emptied) > 0
    assert not world.wrong_months()
    assert names(republish_part(world)) == ["2028-02"], "again, until it is accepted or taken back"
    world.do_the_tickets(held)
    assert republish_part(world, accept=True).exit_status == 0
    assert not world.wrong_months()
    held = done(world.republish("2028-02"))
    assert sum(total.jobs for total in held.held[0].orphaned) == sum(
        job.end_time >= middle for job in jobs_of(FEBRUARY)
    )
    world.do_the_tickets(held)
    assert done(world.republish("2028-02", accept=True)).exit_status == 0
    assert not world.wrong_months()
    assert republish_part(world).exit_status == 0
    assert not world.wrong_months()


def test_an_accepted_part_of_a_month_is_recorded_and_no_news_again(world: World) -> None:
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    world.config["records"]["benchmark"]["value"] = 9
    assert republish_part(world, accept=True).exit_status == 65
    assert republish_part(world, accept=True).exit_status == 0
    assert republish_part(world).exit_status == 0
    assert names(world.republish("2028-03")) == ["2028-03"]


@pytest.mark.parametrize("world", ["apel-summary-0.2"], indirect=True)
@pytest.mark.parametrize("accept", [False, True])
def test_a_part_of_a_month_of_totals_is_held_whatever_is_accepted(world: World, accept: bool) -> None:
    world.finish(JOBS)
    assert done(world.publish()).exit_status == 0
    configure(world, format="car")
    held = republish_part(world, accept=accept)
    assert (held.exit_status, names(held)) == (65, ["2028-02"])
    assert "publisher republish --from 2028-02 --to 2028-02 --accept-key-change" in held.reason
    assert not world.wrong_months()
