"""A VO whose jobs went to a place by one target and go there by another now: none may count twice, and none is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from publisher.cli.commands.publish import ticket
from publisher.ledger.answers import Hold
from publisher.model import time
from publisher.model.totals import month_number
from publisher.publishing import publish, status
from publisher.publishing.republish import plan, run
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import choose
from publisher.publishing.sync import check, left
from tests.support.patience import sending_ends
from tests.support.pki import Credential
from tests.support.simulated_months import Steps, WiredSite, World
from tests.support.spring_2028 import APRIL, FEBRUARY, JOBS, MARCH, NOW

Outcomes = dict[str, Outcome]


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, host: Credential) -> World:
    world = World(folder=tmp_path, host=host, now=NOW, format=getattr(request, "param", "car"))
    world.config["targets"]["egi"]["sync"] = False
    world.finish(JOBS)
    return world


def configure(world: World, vos: list[str], one: dict[str, Any], other: dict[str, Any]) -> None:
    """These VOs by target one, the rest by the other."""
    base = next(iter(world.config["targets"].values()))
    base = {name: base[name] for name in ("type", "url", "format", "start", "every", "batch_records")}
    world.config["targets"] = {
        "one": base | {"vos": list(vos)} | one,
        "other": base | {"exclude_vos": vos} | dict(other),
    }


def done(world: World, work: Callable[[WiredSite], list[Outcome]]) -> Outcomes:
    with sending_ends():
        return {outcome.target: outcome for outcome in work(world.site())}


def round_of_all(world: World) -> Outcomes:
    return done(world, lambda site: publish.publish(site, targets=[], observer=Steps(), force=True))


def republished(world: World, *names: str, accept: bool = False) -> Outcomes:
    window = time.window(time.parse_from("2028-02", NOW), time.parse_to("2028-03", NOW))
    wish = plan.RepublishRequest(window=window, accept_key_change=accept)

    def work(site: WiredSite) -> list[Outcome]:
        targets = choose(site.settings.targets, names)
        return run.carry_out(site, targets, plan.plan(site, targets, wish, Steps()), wish, Steps(), dry_run=False)

    outcomes = done(world, work)
    if accept:
        confirm_deleted(world)
    return outcomes


def confirm_deleted(world: World) -> None:
    """What the tickets asked for was done before."""
    site = world.site()
    for month in (FEBRUARY, MARCH):
        left.confirm_deleted(site.ledgers, site.settings.targets, month_number(int(month.timestamp())))


def differences(world: World) -> list[str]:
    site = world.site()
    compared = check.check(site, site.settings.targets, months=None, portal=None)
    return [repair for row in compared for repair in row.repairs]


def of_vo(*vos: str) -> int:
    return sum(job.vo in vos for job in JOBS)


def do_the_tickets(world: World, outcomes: Outcomes) -> None:
    """Where there are any: rows that zeros empty need none."""
    for outcome in outcomes.values():
        if not all(held.emptied for held in outcome.held):
            world.do_the_tickets(outcome)


def all_is_well(world: World) -> bool:
    """Nothing doubled, nothing lost, nothing held and nothing to say."""
    fine = {outcome.exit_status for outcome in round_of_all(world).values()} == {0}
    return fine and not world.wrong_months() and differences(world) == []


OTHERWISE = [
    ({"localid_prefix": "a-"}, {"localid_prefix": "b-"}),
    ({}, {"localid_prefix": "b-"}),
    ({}, {"benchmark": {"type": "HEPscore23", "value": 9}}),
    ({}, {"identity": "withheld"}),
]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["car", "apel-job-0.4"], indirect=True)
@pytest.mark.parametrize(("one", "other"), OTHERWISE)
def test_jobs_that_another_target_delivered_under_another_key_stay_there(
    world: World, one: dict[str, Any], other: dict[str, Any]
) -> None:
    configure(world, ["atlas", "cms"], one, other)
    assert all_is_well(world)
    configure(world, ["cms"], one, other)
    assert {outcome.outcome for outcome in round_of_all(world).values()} == {"nothing"}
    assert all_is_well(world)
    world.finish_again(next(job.job_id for job in JOBS if job.vo == "atlas"), wall_s=77)
    changed = round_of_all(world)["other"]
    assert (changed.records, len(changed.held)) == ((1, 0) if "localid_prefix" in other else (0, 1))
    if changed.held:  # the last one of its row comes to another one
        world.do_the_tickets(changed)
        totals_of(world, "other", accept=True)
    assert all_is_well(world)
    held = republished(world)
    assert {name: outcome.exit_status for name, outcome in held.items()} == {"one": 0, "other": 65}
    assert all_is_well(world) or "held back" in differences(world)[0]
    world.do_the_tickets(held["other"])
    assert republished(world, accept=True)["other"].exit_status == 0
    assert all_is_well(world)


def test_a_job_that_another_target_delivered_in_another_month_stays_in_it(world: World) -> None:
    """That target has no row in the month in which the job ends now."""
    prefixes = {"localid_prefix": "a-"}, {"localid_prefix": "b-"}
    configure(world, ["atlas"], *prefixes)
    round_of_all(world)
    configure(world, ["none"], *prefixes)
    job = next(job for job in JOBS if job.vo == "atlas")
    world.finish_again(job.job_id, wall_s=job.wall_s + 7, end_time=int(APRIL.timestamp()) + 1)
    assert round_of_all(world)["other"].records == 1
    totals = world.receiver.totals().values()
    assert [jobs for jobs, *_ in totals] == [12, 12]
    assert sum(wall_s for _, wall_s, _ in totals) == sum(job.wall_s for job in JOBS) + 7


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
def test_jobs_that_totals_do_not_count_any_more_go_by_another_target(world: World) -> None:
    """Their rows are zeros since, and the months go on as totals."""
    world.config["targets"]["egi"]["vos"] = ["atlas", "cms"]
    round_of_all(world)
    world.config["targets"]["egi"]["vos"] = ["cms"]
    assert republished(world)["egi"].exit_status == 65
    assert republished(world, accept=True)["egi"].exit_status == 0
    world.config["targets"] = {"jobs": world.config["targets"]["egi"] | {"format": "car", "vos": ["atlas"]}}
    outcome = round_of_all(world)["jobs"]
    assert (outcome.jobs, outcome.quarantined, outcome.held) == (of_vo("atlas"), 0, ())
    assert not world.receiver.tables.rows("JobRecords")
    assert sum(jobs for jobs, *_ in world.receiver.totals().values()) == of_vo("atlas", "cms")


@pytest.mark.parametrize("world", ["car", "apel-job-0.4"], indirect=True)
@pytest.mark.slow
def test_under_the_same_keys_a_vo_goes_from_target_to_target(world: World) -> None:
    """The second record takes the place of the first. The first target neither holds its rows back nor asks for a ticket."""
    same = {"localid_prefix": "a-"}
    configure(world, ["atlas", "cms"], same, same)
    round_of_all(world)
    configure(world, ["cms"], same, same)
    assert republished(world, "one")["one"].exit_status == 0
    outcomes = round_of_all(world)
    assert outcomes["other"].outcome == "nothing"
    world.finish_again(next(job.job_id for job in JOBS if job.vo == "cms"), wall_s=77)
    world.finish([replace(JOBS[0], job_id="late", local_job_id="777")])
    assert {outcome.exit_status for outcome in round_of_all(world).values()} == {0}
    assert not world.wrong_months()
    for _ in range(2):
        assert {outcome.exit_status for outcome in republished(world).values()} == {0}
        assert not world.wrong_months()
        assert differences(world) == []
    configure(world, ["atlas", "cms"], same, same)
    assert {outcome.exit_status for outcome in round_of_all(world).values()} == {0}
    assert {outcome.exit_status for outcome in republished(world).values()} == {0}
    assert not world.wrong_months()
    assert differences(world) == []


@pytest.mark.parametrize(("one", "other"), OTHERWISE)
def test_a_target_that_takes_the_place_of_others_sends_nothing_under_other_keys(
    world: World, one: dict[str, Any], other: dict[str, Any]
) -> None:
    """Two targets become one, under the name of either or under a new one: the ledger knows where the others led."""
    configure(world, ["atlas", "cms"], one, other)
    round_of_all(world)
    targets = world.config["targets"]
    world.config["targets"] = {
        "other": {key: targets["other"][key] for key in targets["other"] if key != "exclude_vos"}
    }
    assert round_of_all(world)["other"].outcome == "nothing"
    assert all_is_well(world)
    world.config["targets"] = {"new": world.config["targets"].pop("other")}
    assert round_of_all(world)["new"].outcome == "nothing"
    assert all_is_well(world)
    republished(world)
    assert not world.wrong_months()


TOTALS = ["apel-summary-0.2", "apel-summary-0.4", "apel-normalised-summary-0.4"]
OTHER_ROWS = [
    {"benchmark": {"type": "HEPSPEC", "value": 9}},
    {"identity": "withheld"},
    {"infrastructure": "local", "batch_server": "pbs.example.org"},
]


def totals_of(world: World, *names: str, accept: bool = False) -> Outcomes:
    """A round of these targets, default all."""
    outcomes = done(
        world,
        lambda site: publish.publish(site, targets=names, observer=Steps(), force=True, accept_key_change=accept),
    )
    if accept:
        confirm_deleted(world)
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHER_ROWS)
@pytest.mark.parametrize("world", TOTALS, indirect=True)
def test_totals_of_a_vo_that_moved_stay_under_their_keys_until_they_are_republished(
    world: World, other: dict[str, Any]
) -> None:
    configure(world, ["atlas", "cms"], {}, other)
    assert all_is_well(world)
    configure(world, ["cms"], {}, other)
    assert {outcome.outcome for outcome in round_of_all(world).values()} == {"nothing"}
    assert all_is_well(world)
    held = republished(world)
    assert {name: len(outcome.held) for name, outcome in held.items()} == {"one": 0, "other": 2}
    assert not world.wrong_months()
    configure(world, ["atlas", "cms"], {}, other)
    assert all_is_well(world), "it may be taken back"
    configure(world, ["cms"], {}, other)
    do_the_tickets(world, held)
    assert {outcome.exit_status for outcome in republished(world, accept=True).values()} == {0}
    assert all_is_well(world)


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
def test_totals_that_arrived_in_part_are_asked_about_again(world: World) -> None:
    """Some rows of a VO arrived, and not the zeros for those of the target that had it before."""
    configure(world, ["atlas", "cms"], {}, {"identity": "withheld"})
    assert all_is_well(world)
    world.config["targets"] = {"other": world.config["targets"]["other"] | {"exclude_vos": []}}
    assert len(republished(world)["other"].held) == 2
    world.wire.ahead = ["fine", *["refused"] * 99]
    republished(world, accept=True)
    world.wire.ahead = []
    status.release_or_drop(world.site(), [], Hold.RELEASED, every=True, targets=[])
    assert republished(world)["other"].exit_status == 65
    assert republished(world, accept=True)["other"].exit_status == 0
    assert all_is_well(world)


@pytest.mark.parametrize("world", TOTALS, indirect=True)
def test_totals_under_the_same_keys_go_from_target_to_target(world: World) -> None:
    configure(world, ["atlas", "cms"], {}, {})
    assert all_is_well(world)
    configure(world, ["cms"], {}, {})
    totals_of(world, "other")
    assert all_is_well(world)
    world.finish([replace(JOBS[0], job_id="late", local_job_id="777")])
    assert all_is_well(world)
    everything = dict(world.config["targets"]["other"])
    del everything["exclude_vos"]
    for name in ("other", "new", "newer"):
        world.config["targets"] = {name: everything}
        assert all_is_well(world)


@pytest.mark.parametrize("other", OTHER_ROWS)
@pytest.mark.parametrize("world", TOTALS, indirect=True)
@pytest.mark.slow
def test_totals_of_a_target_that_takes_the_place_of_others_stay_until_they_are_republished(
    world: World, other: dict[str, Any]
) -> None:
    """Two targets become one, under the name of either or under a new one: the ledger knows where the others led."""
    configure(world, ["atlas", "cms"], {}, other)
    assert all_is_well(world)
    plain = dict(world.config["targets"]["one"])
    del plain["vos"]
    for name, settings in (("other", other), ("new", {})):
        world.pass_time(1)
        world.config["targets"] = {name: plain | settings}
        assert round_of_all(world)[name].outcome == "nothing"
        assert all_is_well(world)
        held = republished(world)
        assert len(held[name].held) == 2
        assert not world.wrong_months()
        do_the_tickets(world, held)
        republished(world, accept=True)
        assert all_is_well(world)
    world.pass_time(1)
    world.config["targets"] = {"newer": plain}
    assert all_is_well(world)


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
def test_totals_in_another_table_wait_for_rows_of_a_removed_target(world: World) -> None:
    """Zeros under their keys would make rows of another table, and empty none."""
    assert all_is_well(world)
    target = world.config["targets"].pop("egi")
    world.config["targets"] = {"new": target | {"format": "apel-normalised-summary-0.4"}}
    assert all_is_well(world)
    held = republished(world)
    assert len(held["new"].held) == 2
    assert not world.wrong_months()
    do_the_tickets(world, held)
    republished(world, accept=True)
    assert all_is_well(world)


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
def test_totals_that_lack_jobs_do_not_shrink_the_rows_of_a_removed_target(world: World) -> None:
    """Jobs were removed from the accounting data (`cleanup`, `rotate`), and a target got another name."""
    assert all_is_well(world)
    with closing(sqlite3.connect(world.folder / "control" / "accounting" / "accounting_v2.db")) as arex, arex:
        arex.execute("DELETE FROM AAR WHERE JobID = ?", (JOBS[0].job_id,))
    world.config["targets"] = {"new": world.config["targets"].pop("egi")}
    for accept in (False, True):
        assert {outcome.exit_status for outcome in totals_of(world, accept=accept).values()} == {0}
        assert {outcome.exit_status for outcome in republished(world, accept=accept).values()} == {0}
        assert not world.wrong_months()


@pytest.mark.parametrize("totals", TOTALS)
@pytest.mark.parametrize("world", ["car", "apel-job-0.4"], indirect=True)
def test_single_records_of_a_removed_target_stay_until_a_republish_sends_totals(world: World, totals: str) -> None:
    """A target got another name and another format at once."""
    assert all_is_well(world)
    target = world.config["targets"].pop("egi")
    world.config["targets"] = {"new": target | {"format": totals}}
    assert all_is_well(world)
    outcomes = republished(world)
    assert not world.wrong_months()
    held = outcomes["new"].held
    stays = 12 if totals == "apel-normalised-summary-0.4" else 0  # the others replace what the receiver made of them
    assert [sum(row.jobs for row in month.orphaned) for month in held] == [stays, stays]
    assert [month.lost_jobs for month in held] == [0, 0]
    told = "".join(ticket("EXAMPLE-SITE", "APEL", outcomes["new"]))
    assert ("Rows that would stay" in told, "Please delete" in told) == (bool(stays), False)
    do_the_tickets(world, outcomes)
    assert republished(world, accept=True)["new"].exit_status == 0
    assert all_is_well(world)
    world.finish([replace(JOBS[0], job_id="late", local_job_id="777")])
    assert all_is_well(world), "it is asked once"
    world.pass_time(1)
    world.config["targets"] = {"newer": world.config["targets"].pop("new")}
    assert all_is_well(world), "the one before was asked"


@pytest.mark.parametrize("prefix", ["", "b-"])
def test_totals_take_the_place_of_single_records_of_all_targets_that_were_removed(world: World, prefix: str) -> None:
    """The last one had only a late job left to deliver."""
    assert all_is_well(world)
    target = world.config["targets"].pop("egi")
    world.config["targets"] = {"new": target | {"localid_prefix": prefix}}
    world.pass_time(1)
    world.finish([replace(JOBS[0], job_id="late", local_job_id="777")])
    outcome = round_of_all(world)["new"]
    assert (outcome.records, outcome.quarantined) == (1, 0)
    world.config["targets"] = {"newer": target | {"format": "apel-summary-0.4"}}
    outcomes = republished(world)
    assert [(month.name, month.orphaned) for month in outcomes["newer"].held] == [("2028-02", ()), ("2028-03", ())]
    do_the_tickets(world, outcomes)
    republished(world, accept=True)
    assert all_is_well(world)


def test_totals_take_the_place_of_single_records_of_a_vo_that_another_target_had(world: World) -> None:
    """That one sends totals as well by now, of the VOs that are left to it, and has nothing new."""
    configure(world, ["atlas", "cms"], {}, {})
    assert all_is_well(world)
    configure(world, ["cms"], {"format": "apel-summary-0.4"}, {"format": "apel-summary-0.4"})
    assert all_is_well(world)
    outcomes = republished(world, "other")
    assert not world.wrong_months()
    assert len(outcomes["other"].held) == 2
    republished(world, "other", accept=True)
    assert all_is_well(world)
    assert {"atlas", "cms"} < {row["VO"] for row in world.receiver.tables.rows("Summaries")}, (
        "a kind is of all the month"
    )
    late = replace(next(job for job in JOBS if job.vo == "cms"), job_id="late", local_job_id="777")
    world.finish([late])
    assert all_is_well(world)
    assert {outcome.exit_status for outcome in republished(world, "one").values()} == {0}
    assert all_is_well(world)


def test_totals_wait_for_no_single_records_of_a_shadow(world: World) -> None:
    target = world.config["targets"].pop("egi")
    world.config["targets"] = {"trial": target | {"shadow": True}}
    assert {outcome.exit_status for outcome in round_of_all(world).values()} == {0}
    totals = target | {"format": "apel-summary-0.4"}
    world.config["targets"] = {"new": totals | {"vos": ["atlas"]}}
    assert {outcome.exit_status for outcome in round_of_all(world).values()} == {0}
    assert sum(jobs for jobs, *_ in world.receiver.totals().values()) == of_vo("atlas")
