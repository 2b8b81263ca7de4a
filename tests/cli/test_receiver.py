"""`receiver`: a target whose address no receiver has stops until an administrator says which one it is."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.sites import Run, SiteUnderTest, told, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
FORMS = pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
IN_BOTH = pytest.mark.parametrize("ledger", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def jobs(site: SiteUnderTest) -> list[SampleJob]:
    """Jobs of a site, all delivered to its topic, and another topic that it may publish to."""
    made = list(generate(7, 40, START, END))
    site.config["targets"]["egi"]["attempts"] = 1
    site.fill(*made)
    site.fake.allow(site.user, "trials")
    return made


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> None:
    if request.param == "postgres":
        request.getfixturevalue("ledger_in_postgres")


def lead(site: SiteUnderTest, topic: str, *names: str) -> None:
    for name in names or ("egi",):
        site.config["targets"][name]["topic"] = topic
    site.save()


def sent(site: SiteUnderTest, topic: str) -> int:
    return len(site.fake.messages(PROJECT, topic))


def receivers(site: SiteUnderTest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.run("receiver", "list", "--json").json["receivers"]
    return found


def outcome(run: Run, target: str = "egi") -> dict[str, Any]:
    found: dict[str, Any] = run.json["targets"][target]
    return found


@FORMS
def test_rule_1_a_target_stops_at_an_address_that_no_receiver_has(
    site: SiteUnderTest, jobs: list[SampleJob], form: str
) -> None:
    """Every command that sends ends with 78; all that look say the same sentence."""
    site.config["targets"]["egi"]["format"] = form
    site.save()
    assert site.publish().status == 0
    lead(site, "trials")
    before = sent(site, TOPIC)
    for words in (
        ("publish", "--force", "--json"),
        ("publish", "--force", "--dry-run", "--json"),
        ("sync", "--target", "egi", "--json"),
    ):
        run = site.run(*words)
        assert run.status == 78, (words, run.err)
        reason = outcome(run)["reason"]
        assert "`publisher receiver same egi`" in reason
        assert "`publisher receiver new egi`" in reason
        assert f"topic trials, which is no receiver's address, and {len(jobs)} runs count at" in reason
    question = f"target egi: {outcome(site.publish())['reason']}"
    republish = "republish", "--from", "2026-10", "--to", "2026-10"
    looked = site.run("status", "--json")
    assert (looked.status, outcome(looked)["question"]) == (78, question)
    for looks in (
        ("status",),
        ("receiver", "list"),
        ("config", "check"),
        (*republish, "--yes"),
        (*republish, "--dry-run"),
    ):
        run = site.run(*looks)
        assert run.status == 78
        assert question in run.err
    nagios = site.run("status", "--nagios")
    assert nagios.status == 2
    assert "receiver same egi" in nagios.out
    doctor = site.run("doctor", "--target", "egi")
    assert doctor.status == 78
    assert "receiver same egi" in " ".join(doctor.out.split())
    assert (sent(site, TOPIC), sent(site, "trials")) == (before, 0)
    lead(site, TOPIC)
    assert (site.publish().status, site.run("status").status, site.run("config", "check").status) == (0, 0, 0)


@IN_BOTH
@FORMS
@pytest.mark.usefixtures("ledger")
def test_rule_1_same_takes_everything_along(site: SiteUnderTest, jobs: list[SampleJob], form: str) -> None:
    """What was in doubt at the old address goes to the new one, under the same id, and nothing else."""
    site.config["targets"]["egi"] |= {"format": form}
    site.save()
    site.fake.faults.push(Fault.store_then_close())
    assert site.publish().status == 75
    lead(site, "trials")
    assert site.publish().status == 78
    answered = site.run("receiver", "same", "egi")
    assert answered.status == 0, answered.err
    assert "receiver 1 (egi) is now at" in answered.out
    run = site.publish()
    assert run.status == 0, run.err
    (lost,), (again, *_) = site.fake.messages(PROJECT, TOPIC), site.fake.messages(PROJECT, "trials")
    assert lost.attributes["empaid"] == again.attributes["empaid"]
    assert sent(site, "trials") == 1
    (one,) = receivers(site)
    assert (one["number"], one["name"], one["kind"], one["targets"]) == (1, "egi", "ams", ["egi"])
    assert (one["runs"], one["in_doubt"]) == (len(jobs), 0)
    assert one["address"].endswith("topic trials")
    assert one["first_delivery"] == one["last_delivery"] is not None


@IN_BOTH
@FORMS
@pytest.mark.usefixtures("ledger")
def test_rule_1_new_sends_everything_there(site: SiteUnderTest, jobs: list[SampleJob], form: str) -> None:
    site.config["targets"]["egi"]["format"] = form
    site.save()
    assert site.publish().status == 0
    lead(site, "trials")
    answered = site.run("receiver", "new", "egi")
    assert answered.status == 0, answered.err
    assert "receiver 2 (egi-2): the next round sends everything" in answered.out
    run = site.publish()
    assert run.status == 0, run.err
    assert [(one["number"], one["runs"], one["targets"]) for one in receivers(site)] == [
        (1, len(jobs), []),
        (2, len(jobs), ["egi"]),
    ]
    assert outcome(site.publish())["outcome"] == "nothing"
    lead(site, TOPIC)
    assert outcome(site.publish())["outcome"] == "nothing", "that receiver is known"


def test_rule_1_an_address_of_another_receiver_is_no_question(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    """The targets meet there; what one has sent is not sent again."""
    base = site.config["targets"]["egi"]
    site.config["targets"] = {"egi": base | {"vos": ["atlas"]}, "other": base | {"exclude_vos": ["atlas"]}}
    lead(site, "trials", "other")
    assert site.publish().status == 0
    lead(site, TOPIC, "other")
    run = site.publish()
    assert run.status == 0, run.err
    others = sum(job.vo != "atlas" for job in jobs)
    assert outcome(run, "other")["records"] == others
    assert {one["address"].split()[-1]: one["targets"] for one in receivers(site)} == {
        TOPIC: ["egi", "other"],
        "trials": [],
    }
    assert Counter(map(told, site.received())) == Counter(map(truth, jobs))


def test_rule_1_the_service_did_not_move_while_another_target_leads_there(
    site: SiteUnderTest, jobs: list[SampleJob]
) -> None:
    base = site.config["targets"]["egi"]
    site.config["targets"] = {"egi": base | {"vos": ["atlas"]}, "other": base | {"exclude_vos": ["atlas"]}}
    site.save()
    assert site.publish().status == 0
    lead(site, "trials", "egi")
    refused = site.run("receiver", "same", "egi")
    assert refused.status == 64
    assert "other still leads to" in refused.err
    lead(site, "trials", "other")
    assert site.run("receiver", "same", "egi").status == 0
    run = site.publish()
    assert (run.status, sent(site, "trials")) == (0, 0), run.err


@pytest.mark.parametrize("answer", ["same", "new"])
def test_rule_1_there_is_an_answer_only_to_a_question(site: SiteUnderTest, jobs: list[SampleJob], answer: str) -> None:
    assert site.run("receiver", answer, "egi").status == 64, "before its first round"
    assert site.publish().status == 0
    run = site.run("receiver", answer, "egi")
    assert run.status == 64
    assert "does not ask" in run.err
    assert site.run("receiver", answer, "eji").status == 64
    assert [one["runs"] for one in receivers(site)] == [len(jobs)]


def test_rule_1_a_first_configuration_may_be_corrected(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    """What was certainly not stored is no delivery."""
    lead(site, "nowhere")
    assert site.publish().status != 0
    lead(site, TOPIC)
    run = site.publish()
    assert run.status == 0, run.err
    site.assert_received(*jobs)


def test_rule_1_other_targets_go_on(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    site.config["targets"]["spool"] = {
        "type": "spool",
        "format": "car",
        "start": "all",
        "sign": False,
        "path": str(site.folder / "out"),
    }
    site.save()
    assert site.publish().status == 0
    lead(site, "trials")
    late = list(generate(8, 2, START, END))
    site.fill(*late)
    run = site.publish()
    assert (run.status, outcome(run, "spool")["records"]) == (78, len(late))


@FORMS
def test_rule_2_what_a_shadow_recorded_is_not_sent(site: SiteUnderTest, jobs: list[SampleJob], form: str) -> None:
    """Its first round without `shadow` says what moved, and sends only what is new; `trace` shows both."""
    site.config["targets"]["egi"] |= {"format": form, "shadow": True}
    site.save()
    assert site.publish().status == 0
    (shadow,) = receivers(site)
    assert (shadow["kind"], shadow["address"], shadow["runs"]) == ("shadow", "shadow egi", len(jobs))
    del site.config["targets"]["egi"]["shadow"]
    site.save()
    assert outcome(site.publish("--dry-run"))["outcome"] == "nothing"
    run = site.publish()
    assert (run.status, outcome(run)["outcome"], sent(site, TOPIC)) == (0, "nothing", 0)
    assert f"2026-10: {len(jobs)} runs that its shadow recorded" in run.err
    traced = site.run("trace", jobs[0].job_id)
    assert "egi: counted: recorded by its shadow (receiver 1); another publisher sent it" in traced.out
    late = list(generate(8, 2, START, END))
    site.fill(*late)
    again = site.publish()
    assert "its shadow" not in again.err
    assert again.status == 0
    assert [(one["kind"], one["runs"]) for one in receivers(site)] == [("shadow", 0), ("ams", len(jobs) + len(late))]
    if form == "car":
        site.assert_received(*late)


def test_rule_2_a_month_that_the_receiver_has_from_us_does_not_move(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    """Of that month all goes that the receiver does not have yet."""
    base = site.config["targets"]["egi"]
    site.config["targets"] = {
        "egi": base | {"vos": ["atlas"]},
        "other": base | {"exclude_vos": ["atlas"], "shadow": True},
    }
    site.save()
    assert site.publish().status == 0
    del site.config["targets"]["other"]["shadow"]
    site.save()
    run = site.publish()
    assert (run.status, outcome(run, "other")["records"]) == (0, sum(job.vo != "atlas" for job in jobs))
    assert Counter(map(told, site.received())) == Counter(map(truth, jobs))


@pytest.mark.parametrize(
    "command", [("publish", "--force"), ("republish", "--from", "2026-10", "--to", "2026-10", "--yes")]
)
def test_rule_3_a_target_takes_nothing_away_that_another_one_wants(
    site: SiteUnderTest, jobs: list[SampleJob], command: tuple[str, ...]
) -> None:
    """What the other one wants is by its own rules, under which the jobs may be of another VO."""
    base = site.config["targets"]["egi"] | {"format": "apel-summary-0.4"}
    shared = next(job for job in jobs if job.vo == "cms")
    rule = {"field": "user", "pattern": shared.user, "vo": "alice", "override": True}
    other = base | {"vos": ["alice"], "vo_rules": [rule]}
    site.config["targets"] = {"egi": base | {"vos": ["atlas", "cms"]}, "other": other}
    site.save()
    assert site.publish("--target", "egi").status == 0
    of_egi = [job for job in jobs if job.vo in ("atlas", "cms")]
    assert [one["runs"] for one in receivers(site)] == [len(of_egi)]
    site.config["targets"]["egi"]["vos"] = ["atlas"]
    site.save()
    for _ in range(2):  # what is accepted is what was shown before
        run = site.run(*command, "--target", "egi", "--accept-key-change")
        assert run.status in (0, 65), run.err
    left = [job for job in of_egi if job.vo == "atlas" or job.user == shared.user]
    assert len(left) > sum(job.vo == "atlas" for job in of_egi)
    assert [one["runs"] for one in receivers(site)] == [len(left)]


def test_rule_3_what_several_targets_want_counts_once(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    base = site.config["targets"]["egi"]
    site.config["targets"] = {"egi": dict(base), "other": base | {"vos": ["atlas"]}}
    site.save()
    assert site.publish().status == 0
    assert Counter(map(told, site.received())) == Counter(map(truth, jobs))
    assert [one["runs"] for one in receivers(site)] == [len(jobs)]
