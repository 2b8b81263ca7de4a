"""One lock a receiver: what is under way there goes first, whichever target made it; its targets run one by one."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest

from publisher.cli.commands import load_site
from publisher.ledger.contract import Ledger
from publisher.policy.target import Target
from publisher.publishing.databases.known import AccountingData
from publisher.publishing.publish import for_each_target
from publisher.publishing.round.outcome import Outcome
from tests.arex_databases import SampleJob, generate
from tests.fake_ams.faults import Fault
from tests.fake_ams.receiver import Receiver
from tests.fake_ams.service import PROJECT, TOPIC
from tests.support.daemons import RunningDaemon, until
from tests.support.forks import Child, publisher
from tests.support.ledgers import open_to_read
from tests.support.patience import FOR_EVER_S
from tests.support.sites import ConfiguredSite, Run, SiteUnderTest, told, truth

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
REFUSED = Fault.status(400, body=b'{"error":{"code":400,"message":"Invalid Message Arguments"}}')
ONE_VO = ["atlas"]


@pytest.fixture
def jobs(site: SiteUnderTest) -> list[SampleJob]:
    """Jobs of a site with two targets on one topic, each with VOs of its own."""
    made = list(generate(1, 60, START, END))
    site.fill(*made)
    base = site.config["targets"]["egi"] | {"attempts": 1, "batch_records": 1000}
    site.config["targets"] = {
        "one": base | {"vos": list(ONE_VO)},
        "other": base | {"exclude_vos": list(ONE_VO)},
    }
    site.save()
    return made


def add(site: SiteUnderTest, name: str, **keys: Any) -> None:
    """A target like the other one, but for these keys."""
    site.config["targets"][name] = deepcopy(site.config["targets"]["other"]) | keys
    site.save()


def of_one(jobs: list[SampleJob]) -> int:
    return sum(job.vo in ONE_VO for job in jobs)


def arrived(site: SiteUnderTest) -> list[tuple[str, str]]:
    """Id and text of each message, in order."""
    first = Receiver.create(site.pki.ca_directory, allowed=[site.host.subject], with_openssl=False)
    messages = site.fake.messages(PROJECT, TOPIC)
    return [(one.attributes["empaid"], first.take(one).text) for one in messages]


def targets(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.json["targets"]
    return found


def states(site: ConfiguredSite) -> dict[str, tuple[int, int, int]]:
    """Of each target: what is delivered, in doubt and set aside."""
    found = targets(site.run("status", "--json"))
    return {name: (one["delivered"], one["in_doubt"], one["quarantined"]) for name, one in found.items()}


def is_reported(site: ConfiguredSite, target: str) -> bool:
    """Whether the receiver has the counts of a target as they are."""
    with closing(open_to_read(site.state)) as ledger:
        counts = ledger.counts.by_host(target)
    return bool(counts.reported) and counts.reported == counts.delivered


def lose_an_answer(site: SiteUnderTest, *words: str) -> None:
    site.fake.faults.push(Fault.store_then_close())
    run = site.publish(*words)
    assert run.status == 75, run.err


# What is under way


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_rule_2_what_another_target_has_under_way_goes_first(
    site: SiteUnderTest, jobs: list[SampleJob], form: str
) -> None:
    """Rule 2."""
    for target in site.config["targets"].values():
        target["format"] = form
    site.save()
    lose_an_answer(site, "--target", "one")
    run = site.publish("--target", "other")
    assert run.status == 0, run.err
    first, again, own = arrived(site)
    assert first == again
    assert own[0] != first[0]
    outcome = targets(run)["other"]
    assert (outcome["outcome"], outcome["messages"], outcome["others_first"]) == ("ok", 1, {"one": 1})
    shown = site.run("publish", "--force", "--target", "other").out
    assert "first of target one" not in shown, "nothing is under way any more"
    found = states(site)
    assert (found["one"], found["other"]) == ((of_one(jobs), 0, 0), (len(jobs) - of_one(jobs), 0, 0))
    if form == "car":
        assert outcome["records"] == len(jobs) - of_one(jobs)
        assert Counter(map(told, site.received())) == Counter(map(truth, jobs)) + Counter(
            truth(job) for job in jobs if job.vo in ONE_VO
        )
    assert site.publish().status == 0
    assert len(arrived(site)) == 3


def test_rule_2_nothing_is_prepared_for_a_receiver_before_that_is_settled(
    site: SiteUnderTest, jobs: list[SampleJob]
) -> None:
    """Rule 2."""
    lose_an_answer(site, "--target", "one")
    site.fake.faults.push(Fault.store_then_close())
    run = site.publish("--target", "other")
    assert run.status == 75
    assert len(set(arrived(site))) == 1
    outcome = targets(run)["other"]
    assert (outcome["messages"], outcome["records"], outcome["outcome"]) == (0, 0, "deferred")
    assert outcome["reason"].startswith("a message of target one, which goes first: ")
    assert states(site) == {"one": (0, of_one(jobs), 0), "other": (0, 0, 0)}
    rehearsed = site.publish("--dry-run", "--target", "other")
    assert targets(rehearsed)["other"]["others_first"] == {"one": 1}
    assert targets(rehearsed)["other"]["records"] == len(jobs) - of_one(jobs)
    told_to_people = site.run("publish", "--force", "--target", "other")
    assert "other: 1 message of target one went first" in told_to_people.out
    assert site.publish().status == 0


def test_a_message_of_another_target_is_cut_and_stays_its_own(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    lose_an_answer(site, "--target", "one")
    site.fake.faults.push(Fault.status(413))
    run = site.publish("--target", "other")
    assert run.status == 0, run.err
    assert targets(run)["other"]["others_first"] == {"one": 2}
    assert targets(run)["other"]["records"] == len(jobs) - of_one(jobs)
    assert states(site)["one"] == (of_one(jobs), 0, 0)
    first, *others = arrived(site)
    assert site.publish().status == 0, "the ledger is no other one than before"
    assert [first, *others] == arrived(site)
    assert Counter(map(told, site.received())).keys() == Counter(map(truth, jobs)).keys()


def test_a_poisoned_record_of_another_target_does_not_count_as_this_ones(
    site: SiteUnderTest, jobs: list[SampleJob]
) -> None:
    site.config["targets"]["one"]["batch_records"] = 1
    site.config["targets"]["one"]["exclude_vos"] = []
    site.save()
    lose_an_answer(site, "--target", "one", "--limit", "1")
    site.fake.faults.push(REFUSED)
    run = site.publish("--target", "other")
    assert run.status == 76
    assert targets(run)["other"]["reason"].startswith("a message of target one, which goes first: ")
    site.fake.faults.push(REFUSED, REFUSED)
    run = site.publish("--target", "other")
    assert run.status == 0, run.err
    (explained,) = [line for line in run.err.splitlines() if "Invalid Message Arguments" in line]
    assert " WARNING target one: AMS answered 400 " in explained, "its own rounds may be none any more"
    assert (targets(run)["other"]["quarantined"], targets(run)["other"]["others_first"]) == (0, {})
    assert states(site)["one"] == (0, 1, 0), "it may be stored"
    assert states(site)["other"] == (len(jobs) - of_one(jobs), 0, 0)
    assert site.run("quarantine", "list", "--json").json["quarantined"] == []
    assert site.publish().status == 0, "the ledger is no other one than before"
    assert states(site)["one"] == (of_one(jobs), 0, 0)


def test_counts_are_messages_of_a_receiver_too(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    assert site.publish().status == 0
    site.fake.faults.push(Fault.store_then_close())
    assert site.run("sync", "--target", "one").status == 75
    assert site.publish("--target", "other").status == 0
    *_, lost, again = arrived(site)
    assert lost == again
    assert lost[1].startswith("APEL-sync-message")
    assert site.run("sync", "--target", "one", "--target", "other").status == 0
    assert is_reported(site, "one")
    assert is_reported(site, "other")


def test_counts_of_another_target_are_cut_as_their_own_format_wants_it(
    site: SiteUnderTest, jobs: list[SampleJob]
) -> None:
    site.fill(*generate(5, 20, datetime(2026, 9, 1, tzinfo=UTC), START))
    assert site.publish().status == 0
    site.fake.faults.push(Fault.store_then_close(), Fault.status(413))
    assert site.run("sync", "--target", "one").status == 75
    run = site.publish("--target", "other")
    assert (run.status, targets(run)["other"]["others_first"]) == (0, {"one": 2})
    lost, *halves = (text for _, text in arrived(site)[2:])
    header, *records = re.split("(?m)^(?=Site:)", lost)
    assert halves == [header + record for record in records]
    assert is_reported(site, "one")


def test_the_counts_of_another_target_go_after_what_is_under_way(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    site.publish("--target", "other")
    lose_an_answer(site, "--target", "one")
    assert site.run("sync", "--target", "other").status == 0
    _, lost, again, counts = arrived(site)
    assert lost == again
    assert counts[1].startswith("APEL-sync-message")
    assert states(site)["one"] == (of_one(jobs), 0, 0)


def test_a_republish_sends_what_is_under_way_first(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    site.publish("--target", "other")
    lose_an_answer(site, "--target", "one")
    run = site.run("republish", "--from", "2026-10", "--to", "2026-10", "--yes", "--target", "other", "--json")
    assert run.status == 0, run.err
    _, lost, again, *_ = arrived(site)
    assert lost == again
    assert targets(run)["other"]["others_first"] == {"one": 1}
    assert states(site)["one"] == (of_one(jobs), 0, 0)


def test_the_new_name_of_a_target_delivers_what_the_old_one_has_in_doubt(site: SiteUnderTest) -> None:
    """Rule 2."""
    made = list(generate(7, 5, START, END))
    site.fill(*made)
    site.config["targets"]["egi"]["attempts"] = 1
    site.save()
    lose_an_answer(site)
    site.config["targets"]["apel"] = site.config["targets"].pop("egi")
    site.save()
    assert targets(site.publish("--dry-run"))["apel"]["others_first"] == {"egi": 1}
    run = site.publish()
    assert run.status == 0, run.err
    first, again, *_ = arrived(site)
    assert first == again
    said = " ".join(run.err.split())
    assert "the ledger has egi, not configured any more" in said
    assert "what it has in doubt goes first, under its old name" in said
    traced = site.run("trace", made[0].job_id, "--json").json["deliveries"]
    assert ("egi", "sent") in {(one["target"], one["state"]) for one in traced}
    assert site.publish().status == 0


def test_rule_2_a_shadow_is_a_receiver_of_its_own(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    lose_an_answer(site, "--target", "one")
    add(site, "rehearsal", shadow=True)
    run = site.publish("--target", "rehearsal")
    assert (run.status, targets(run)["rehearsal"]["others_first"]) == (0, {})
    assert states(site)["one"] == (0, of_one(jobs), 0)
    assert len(arrived(site)) == 1


# One after the other


def met(site: SiteUnderTest) -> None:
    """Wait until somebody has met the fault that lies ahead."""
    until(lambda: not site.fake.faults.pending, lambda: "nobody sends a message")


@contextmanager
def hanging(site: SiteUnderTest, *words: str) -> Iterator[Child]:
    """A publisher that waits for an answer, killed in the end."""
    site.fake.faults.push(Fault.delay(FOR_EVER_S))
    child = publisher(site, *words)
    try:
        met(site)
        yield child
    finally:
        child.kill()
        child.communicate()


def a_receiver_is_of_one_publisher(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    site.fake.allow(site.user, "elsewhere")
    add(site, "elsewhere", topic="elsewhere")
    with hanging(site, "publish", "--force", "--target", "one") as child:
        run = site.publish("--target", "other", "--target", "elsewhere")
        assert run.status == 75
        assert targets(run)["elsewhere"]["outcome"] == "ok"
        assert targets(run)["other"]["outcome"] == "deferred"
        reason = targets(run)["other"]["reason"]
        assert "another publisher is at work on its receiver" in reason
        assert f"topic {TOPIC}" in reason
        assert f"process {child.pid}, target one" in reason
    assert site.publish().status == 0
    assert Counter(map(told, site.received())).keys() == Counter(map(truth, jobs)).keys()


@pytest.mark.slow
def test_a_receiver_is_of_one_publisher(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    """Rule 2. A second one ends with 75, for another target too; another receiver does not wait."""
    a_receiver_is_of_one_publisher(site, jobs)


@pytest.mark.usefixtures("ledger_in_postgres")
@pytest.mark.slow
def test_a_receiver_is_of_one_publisher_in_postgresql(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    """Rule 2."""
    a_receiver_is_of_one_publisher(site, jobs)


@pytest.mark.slow
def test_rule_2_targets_of_a_receiver_run_in_their_order_and_receivers_at_once(
    site: ConfiguredSite, tmp_path: Path
) -> None:
    """Rule 2. `targets_at_once` counts receivers."""
    spool = {"type": "spool", "format": "car", "start": "all", "sign": False}
    names = [f"{place}{number}" for number in range(4) for place in "abc"]
    site.config["targets"] = {name: spool | {"path": str(tmp_path / f"out-{name[0]}")} for name in names}
    site.config["targets_at_once"] = 2
    site.save()
    at_work: list[str] = []
    done: list[str] = []
    seen: list[set[str]] = []
    turn = Lock()

    def work(target: Target, accounting: AccountingData, ledger: Ledger) -> Outcome:
        with turn:
            at_work.append(target.name[0])
            assert len(set(at_work)) == len(at_work) <= 2
            seen.append(set(at_work))
        end = time.monotonic() + 1.0
        while time.monotonic() < end and len(at_work) < 2:
            time.sleep(0.01)
        with turn:
            seen.append(set(at_work))
            at_work.remove(target.name[0])
            done.append(target.name)
        return Outcome(target=target.name, outcome="nothing")

    live = load_site(site.path, Event())
    outcomes = for_each_target(live, live.targets, work)
    assert [outcome.target for outcome in outcomes] == names
    assert [name for name in done if name[0] == "a"] == ["a0", "a1", "a2", "a3"]
    assert max(map(len, seen)) == 2


# The daemon


@pytest.mark.slow
def test_two_targets_of_one_receiver_that_are_due_at_once_both_succeed(
    site: SiteUnderTest, jobs: list[SampleJob]
) -> None:
    """Rule 2. Longer than a round is patient with another publisher."""
    for target in site.config["targets"].values():
        target["every"] = "1h"
    site.fake.faults.push(Fault.delay(6.5))
    with RunningDaemon(site) as daemon:
        daemon.wait_for("target one: round ended: ok")
        daemon.wait_for("target other: round ended: ok")
        assert "deferred" not in daemon.text()
        assert daemon.end() == 0
    assert Counter(map(told, site.received())) == Counter(map(truth, jobs))


@pytest.mark.slow
def test_a_round_that_waits_for_another_hears_a_stop(site: SiteUnderTest, jobs: list[SampleJob]) -> None:
    for target in site.config["targets"].values():
        target["every"] = "1h"
    site.fake.faults.push(Fault.delay(FOR_EVER_S))
    with RunningDaemon(site) as daemon:
        daemon.manager.wait_for("STATUS=one: at work; other: at work")
        met(site)
        assert daemon.end(signal.SIGTERM) == 0
        said = daemon.text()
    assert "target other: round ended" not in said or "target one: round ended" not in said
    assert "one, other" not in said, "only one was in the middle of a message"
