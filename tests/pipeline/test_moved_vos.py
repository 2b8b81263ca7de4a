"""A VO whose jobs went to a place by one target and go there by another now: none may count twice, and none is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from publisher.cli.commands.publish import ticket
from publisher.ledger.contract import Hold, Ledger
from publisher.ledger.sql.ledger import SqlLedger
from publisher.ledger.sqlite.connection import SqliteDatabase, open_ledger_file
from publisher.model import time
from publisher.pipeline import publish, status
from publisher.pipeline.republish import plan, run
from publisher.pipeline.round.outcome import Outcome
from publisher.pipeline.site import choose
from publisher.pipeline.sync import check
from tests.ledger.test_delivered import whole_table
from tests.support.patience import sending_ends
from tests.support.pki import Credential
from tests.support.simulated_months import Steps, WiredSite, World
from tests.support.spring_2028 import APRIL, JOBS, NOW

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

    return done(world, work)


def differences(world: World) -> list[str]:
    site = world.site()
    compared = check.check(site, site.settings.targets, months=None, portal=None)
    return [repair for row in compared for repair in row.repairs]


def of_vo(*vos: str) -> int:
    return sum(job.vo in vos for job in JOBS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSite(WiredSite):
    """One that notes what its ledger is asked."""

    asked: list[str]

    def ledger(self, *, dry_run: bool = False) -> Ledger:
        connection = open_ledger_file(self.settings.state)
        connection.set_trace_callback(self.asked.append)
        return SqlLedger(SqliteDatabase(connection, self.settings.state))


OTHERWISE = [
    ({"localid_prefix": "a-"}, {"localid_prefix": "b-"}),
    ({}, {"localid_prefix": "b-"}),
    ({}, {"benchmark": {"type": "HEPscore23", "value": 9}}),
    ({}, {"identity": "withheld"}),
]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["car", "apel-job-0.4"], indirect=True)
@pytest.mark.parametrize(("one", "other"), OTHERWISE)
def test_jobs_that_another_target_delivered_under_another_key_are_set_aside(
    world: World, one: dict[str, Any], other: dict[str, Any]
) -> None:
    configure(world, ["atlas", "cms"], one, other)
    round_of_all(world)
    assert not world.wrong_months()
    configure(world, ["cms"], one, other)
    for _ in range(2):
        round_of_all(world)
        assert not world.wrong_months()
    assert differences(world) == [] or all("set aside" in one for one in differences(world))
    (held,) = {(one.target, one.job.rule) for one in status.quarantined(world.site(), targets=[])}
    assert held == ("other", "key-changed")
    assert len(list(status.quarantined(world.site(), targets=[]))) == of_vo("atlas")
    world.finish_again(next(job.job_id for job in JOBS if job.vo == "atlas"), wall_s=77)
    round_of_all(world)
    for accept in (False, True):
        again = republished(world, accept=accept)
        assert {outcome.exit_status for outcome in again.values()} == {0}, again
        assert again["one"].records == of_vo("cms")
        assert [jobs for jobs, *_ in world.receiver.totals().values()] == [12, 12]
    status.release_or_drop(world.site(), [], Hold.DROPPED, every=True, targets=[])
    assert {outcome.exit_status for outcome in round_of_all(world).values()} == {0}
    assert differences(world) == []
    assert [jobs for jobs, *_ in world.receiver.totals().values()] == [12, 12]


def test_jobs_that_were_deleted_at_the_receiver_go_when_they_are_released(world: World) -> None:
    prefixes = {"localid_prefix": "a-"}, {"localid_prefix": "b-"}
    configure(world, ["atlas", "cms"], *prefixes)
    round_of_all(world)
    configure(world, ["cms"], *prefixes)
    assert round_of_all(world)["other"].quarantined == of_vo("atlas")
    for text, row in world.receiver.rows():
        if row["VO"] == "atlas":
            world.receiver.delete((row["Year"], row["Month"]), text)
    status.release_or_drop(world.site(), [], Hold.RELEASED, every=True, targets=[])
    assert round_of_all(world)["other"].records == of_vo("atlas")
    assert not world.wrong_months()
    assert differences(world) == []
    assert round_of_all(world)["other"].outcome == "nothing"


def test_a_job_that_another_target_delivered_in_another_month_is_set_aside(world: World) -> None:
    """That target has no row in the month in which the job ends now."""
    prefixes = {"localid_prefix": "a-"}, {"localid_prefix": "b-"}
    configure(world, ["atlas"], *prefixes)
    round_of_all(world)
    configure(world, ["none"], *prefixes)
    world.finish_again(next(job.job_id for job in JOBS if job.vo == "atlas"), end_time=int(APRIL.timestamp()) + 1)
    assert round_of_all(world)["other"].quarantined == of_vo("atlas")
    assert sum(jobs for jobs, *_ in world.receiver.totals().values()) == len(JOBS)


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
def test_jobs_that_totals_do_not_count_any_more_go_by_another_target(world: World) -> None:
    """Their rows are zeros since: nothing is in their way."""
    world.config["targets"]["egi"]["vos"] = ["atlas", "cms"]
    round_of_all(world)
    world.config["targets"]["egi"]["vos"] = ["cms"]
    assert republished(world, accept=True)["egi"].exit_status == 0
    world.config["targets"] = {"jobs": world.config["targets"]["egi"] | {"format": "car", "vos": ["atlas"]}}
    outcomes = round_of_all(world)
    assert (outcomes["jobs"].records, outcomes["jobs"].quarantined) == (of_vo("atlas"), 0)
    assert sum(jobs for jobs, *_ in world.receiver.totals().values()) == of_vo("atlas", "cms")


@pytest.mark.parametrize("renamed", [False, True])
def test_what_another_target_delivered_is_looked_up_by_place(world: World, renamed: bool) -> None:
    """Not in all that it ever delivered, once for each page with a new job."""
    configure(world, ["atlas", "cms"], {}, {})
    round_of_all(world)
    if renamed:
        everything = {key: value for key, value in world.config["targets"]["one"].items() if key != "vos"}
        world.config["targets"] = {"new": everything}
        round_of_all(world)
    world.finish([replace(JOBS[at], job_id=f"late{at}", local_job_id=f"77{at}") for at in range(4)])
    world.pass_time(0.1)
    asked: list[str] = []
    site = world.site()
    traced = TracedSite(settings=site.settings, process=site.process, wire=site.wire, asked=asked)
    outcomes = publish.publish(traced, targets=[], observer=Steps(), force=False)
    assert sum(outcome.records for outcome in outcomes) == 4
    assert any("FROM delivered_page" in one for one in asked)
    assert not whole_table(asked)


@pytest.mark.parametrize("world", ["car", "apel-job-0.4"], indirect=True)
def test_under_the_same_keys_a_vo_goes_from_target_to_target(world: World) -> None:
    """The second record takes the place of the first. The first target neither holds its rows back nor asks for a ticket."""
    same = {"localid_prefix": "a-"}
    configure(world, ["atlas", "cms"], same, same)
    round_of_all(world)
    configure(world, ["cms"], same, same)
    assert republished(world, "one")["one"].exit_status == 0
    outcomes = round_of_all(world)
    assert (outcomes["other"].records, outcomes["other"].quarantined) == (of_vo("atlas"), 0)
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
    assert round_of_all(world)["other"].quarantined == of_vo("atlas", "cms")
    assert not world.wrong_months()
    world.config["targets"] = {"new": world.config["targets"].pop("other")}
    assert round_of_all(world)["new"].quarantined == of_vo("atlas", "cms")
    assert not world.wrong_months()
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
    return done(
        world,
        lambda site: publish.publish(site, targets=names, observer=Steps(), force=True, accept_key_change=accept),
    )


def do_the_tickets(world: World, outcomes: Outcomes) -> None:
    """Where there are any: rows that zeros empty need none."""
    for outcome in outcomes.values():
        if not all(held.emptied for held in outcome.held):
            world.do_the_tickets(outcome)


def all_is_well(world: World) -> bool:
    """Nothing doubled, nothing lost, nothing held and nothing to say."""
    fine = {outcome.exit_status for outcome in round_of_all(world).values()} == {0}
    return fine and not world.wrong_months() and differences(world) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "accepted"), [*zip(OTHER_ROWS, [[["one"]], [["other"], ["one"]], [[]]], strict=True)]
)
@pytest.mark.parametrize("world", TOTALS, indirect=True)
def test_totals_of_a_vo_that_moved_wait_while_rows_under_other_keys_are_there(
    world: World, other: dict[str, Any], accepted: list[list[str]]
) -> None:
    configure(world, ["atlas", "cms"], {}, other)
    assert all_is_well(world)
    configure(world, ["cms"], {}, other)
    for _ in range(2):
        outcomes = round_of_all(world)
        assert not world.wrong_months()
        assert {name: len(outcome.held) for name, outcome in outcomes.items()} == {"one": 2, "other": 2}
        assert "target one sent" in outcomes["other"].reason
    assert {outcome.exit_status for outcome in republished(world).values()} == {65}
    assert not world.wrong_months()
    configure(world, ["atlas", "cms"], {}, other)
    assert all_is_well(world), "it may be taken back"
    configure(world, ["cms"], {}, other)
    outcomes = round_of_all(world)
    do_the_tickets(world, outcomes)
    for names in accepted:
        totals_of(world, *names, accept=True)
    assert all_is_well(world)


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
def test_totals_that_arrived_in_part_are_asked_about_again(world: World) -> None:
    """Some rows of a VO arrived, and not the zeros for those of the target that had it before."""
    configure(world, ["atlas", "cms"], {}, {"identity": "withheld"})
    assert all_is_well(world)
    world.config["targets"] = {"other": world.config["targets"]["other"] | {"exclude_vos": []}}
    assert len(round_of_all(world)["other"].held) == 2
    world.wire.ahead = ["fine", *["refused"] * 99]
    totals_of(world, accept=True)
    world.wire.ahead = []
    outcomes = round_of_all(world)
    assert outcomes["other"].held
    totals_of(world, accept=True)
    status.release_or_drop(world.site(), [], Hold.RELEASED, every=True, targets=[])
    totals_of(world, accept=True)
    assert not world.wrong_months()


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
def test_totals_of_a_target_that_takes_the_place_of_others_wait_while_their_rows_are_there(
    world: World, other: dict[str, Any]
) -> None:
    """Two targets become one, under the name of either or under a new one: the ledger knows where the others led."""
    configure(world, ["atlas", "cms"], {}, other)
    assert all_is_well(world)
    plain = dict(world.config["targets"]["one"])
    del plain["vos"]
    for name, settings, sent in (("other", other, "one"), ("new", {}, "other")):
        world.pass_time(1)
        world.config["targets"] = {name: plain | settings}
        for _ in range(2):
            outcomes = round_of_all(world)
            assert not world.wrong_months()
            assert len(outcomes[name].held) == 2
            assert f"target {sent} sent" in outcomes[name].reason
        do_the_tickets(world, outcomes)
        totals_of(world, accept=True)
        assert all_is_well(world)
    world.pass_time(1)
    world.config["targets"] = {"newer": plain}
    assert all_is_well(world), "what the first ones sent is gone"


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
def test_totals_in_another_table_wait_for_rows_of_a_removed_target(world: World) -> None:
    """Zeros under their keys would make rows of another table, and empty none."""
    assert all_is_well(world)
    target = world.config["targets"].pop("egi")
    world.config["targets"] = {"new": target | {"format": "apel-normalised-summary-0.4"}}
    outcomes = round_of_all(world)
    assert len(outcomes["new"].held) == 2
    assert not world.wrong_months()
    do_the_tickets(world, outcomes)
    totals_of(world, accept=True)
    assert all_is_well(world)


@pytest.mark.parametrize("world", ["apel-summary-0.4"], indirect=True)
def test_totals_that_lack_jobs_do_not_shrink_the_rows_of_a_removed_target(world: World) -> None:
    """Jobs were removed from the accounting data (`cleanup`, `rotate`), and a target got another name."""
    assert all_is_well(world)
    with closing(sqlite3.connect(world.folder / "control" / "accounting" / "accounting_v2.db")) as arex, arex:
        arex.execute("DELETE FROM AAR WHERE JobID = ?", (JOBS[0].job_id,))
    world.config["targets"] = {"new": world.config["targets"].pop("egi")}
    outcomes = round_of_all(world)
    assert [held.lost_jobs for held in outcomes["new"].held] == [1]
    assert not world.wrong_months()
    assert {outcome.exit_status for outcome in totals_of(world, accept=True).values()} == {0}


@pytest.mark.parametrize("totals", TOTALS)
@pytest.mark.parametrize("world", ["car", "apel-job-0.4"], indirect=True)
def test_totals_wait_for_single_records_of_a_removed_target(world: World, totals: str) -> None:
    """A target got another name and another format at once: as under its name, those count beside the totals."""
    assert all_is_well(world)
    target = world.config["targets"].pop("egi")
    world.config["targets"] = {"new": target | {"format": totals}}
    for _ in range(2):
        outcomes = round_of_all(world)
        assert not world.wrong_months()
        held = outcomes["new"].held
        assert [sum(row.jobs for row in month.orphaned) for month in held] == [12, 12]
        assert [month.lost_jobs for month in held] == [0, 0]
        assert "target egi sent" in outcomes["new"].reason
        (told,) = [line for line in ticket("EXAMPLE-SITE", "APEL", outcomes["new"]) if "Please" in line]
        assert "rows and the job records that they are made of" in told
    assert republished(world)["new"].exit_status == 65
    assert not world.wrong_months()
    do_the_tickets(world, outcomes)
    assert totals_of(world, accept=True)["new"].exit_status == 0
    assert all_is_well(world)
    world.finish([replace(JOBS[0], job_id="late", local_job_id="777")])
    assert all_is_well(world), "it is asked once"
    world.pass_time(1)
    world.config["targets"] = {"newer": world.config["targets"].pop("new")}
    assert all_is_well(world), "the one before was asked"


@pytest.mark.parametrize(("prefix", "again"), [("", len(JOBS)), ("b-", 0)])
def test_totals_wait_for_single_records_of_all_targets_that_were_removed(world: World, prefix: str, again: int) -> None:
    """The last one replaced the records of the first, or had only a late job left to deliver."""
    assert all_is_well(world)
    target = world.config["targets"].pop("egi")
    world.config["targets"] = {"new": target | {"localid_prefix": prefix}}
    world.pass_time(1)
    world.finish([replace(JOBS[0], job_id="late", local_job_id="777")])
    outcome = round_of_all(world)["new"]
    assert (outcome.records, outcome.quarantined) == (again + 1, len(JOBS) - again)
    world.config["targets"] = {"newer": target | {"format": "apel-summary-0.4"}}
    outcomes = round_of_all(world)
    assert sum(row.jobs for month in outcomes["newer"].held for row in month.orphaned) == len(JOBS) + 1
    do_the_tickets(world, outcomes)
    totals_of(world, accept=True)
    assert all_is_well(world)


def test_totals_wait_for_single_records_of_a_vo_that_another_target_had(world: World) -> None:
    """That one sends totals as well by now, of the VOs that are left to it, and has nothing new."""
    configure(world, ["atlas", "cms"], {}, {})
    assert all_is_well(world)
    configure(world, ["cms"], {"format": "apel-summary-0.4"}, {"format": "apel-summary-0.4"})
    outcomes = round_of_all(world)
    assert not world.wrong_months()
    assert {name: len(outcome.held) for name, outcome in outcomes.items()} == {"one": 0, "other": 2}
    assert "target one sent" in outcomes["other"].reason
    texts = [row.key.text for month in outcomes["other"].held for row in month.orphaned]
    assert any("VO atlas" in text for text in texts)
    assert not any("VO cms" in text for text in texts)
    do_the_tickets(world, outcomes)
    totals_of(world, accept=True)
    assert all_is_well(world)


def test_totals_wait_for_no_single_records_of_a_shadow_or_of_other_vos(world: World) -> None:
    target = world.config["targets"].pop("egi")
    world.config["targets"] = {"egi": target | {"vos": ["cms"]}, "trial": target | {"shadow": True}}
    assert {outcome.exit_status for outcome in round_of_all(world).values()} == {0}
    totals = target | {"format": "apel-summary-0.4"}
    world.config["targets"] = {"new": totals | {"vos": ["atlas"]}, "shadow": totals | {"shadow": True}}
    assert {outcome.exit_status for outcome in round_of_all(world).values()} == {0}
    assert sum(jobs for jobs, *_ in world.receiver.totals().values()) == of_vo("atlas", "cms")
