"""The job store is lost while runs wait (rule 19): those that their source has no more are set aside, each by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from publisher.model.receiver import WAITED
from publisher.publishing.databases import reader
from tests.model_receivers.site import Answer, Run
from tests.model_receivers.test_named_stories import Tale, may
from tests.model_receivers.world import ended_again
from tests.publishing.test_rule_15 import in_each_form, purge, quarantined, restart, status

Change = Callable[[Tale], None]


def publish_in_vain(tale: Tale, answer: Answer = Answer.AWAY) -> Run:
    tale.product.answer = lambda: answer
    run = tale.publish()
    tale.product.answer = lambda: Answer.OK
    assert run.status == 75
    return run


def waiting_tale(folder: Path, form: str, count: int = 3) -> Tale:
    """Three jobs are delivered, and others wait in the job store, of which the CE purges the first two."""
    tale = Tale(folder, form)
    tale.jobs(may(1), may(2), may(3))
    assert tale.publish().status == 0
    jobs = tale.jobs(*(may(day) for day in range(4, 4 + count)), first=10)
    publish_in_vain(tale)
    for job in jobs[:2]:
        purge(tale, job)
    return tale


@in_each_form
def test_rule_19_runs_that_waited_and_are_found_nowhere_are_set_aside(tmp_path: Path, form: str) -> None:
    tale = waiting_tale(tmp_path, form)
    tale.product.lose_store()
    assert tale.publish().json["targets"]["egi"]["records"] == 1
    found = [(one["job"], one["local_id"], one["rule"]) for one in quarantined(tale)]
    assert found == [("job0010ce1", "1010", WAITED), ("job0011ce1", "1011", WAITED)]
    assert "it waited with 1010 s wall, 510 s CPU when jobs.db was lost" in quarantined(tale)[0]["reason"]
    assert (status(tale)["quarantined"], tale.total().jobs) == (2, 4)
    assert tale.wrong() == []
    tale.product.run("quarantine", "drop", "--all")
    tale.publish()
    assert status(tale)["quarantined"] == 0


@in_each_form
def test_rule_19_a_store_that_has_them_still_delivers_them(tmp_path: Path, form: str) -> None:
    tale = waiting_tale(tmp_path, form)
    assert tale.publish().json["targets"]["egi"]["quarantined"] == 0
    tale.product.lose_store()
    tale.publish()
    assert (quarantined(tale), tale.total().jobs) == ([], 6)


@in_each_form
def test_rule_19_what_arrived_or_is_in_doubt_is_not_lost(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    jobs = tale.jobs(may(3), may(4))
    publish_in_vain(tale, Answer.LOST)
    for job in jobs:
        purge(tale, job)
    tale.product.lose_store()
    assert tale.publish().status == 0
    assert (quarantined(tale), tale.total().jobs) == ([], 2)


@in_each_form
def test_rule_19_a_change_that_was_in_doubt_and_arrives_is_not_lost(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    tale.jobs(may(1), may(2))
    assert tale.publish().status == 0
    tale.ce.again(ended_again(tale.ce.rows["job0002ce1"], may(3), wall_s=77))
    publish_in_vain(tale, Answer.LOST)
    purge(tale, tale.ce.rows["job0002ce1"])
    tale.product.lose_store()
    assert tale.publish().status == 0
    assert quarantined(tale) == []


@in_each_form
def test_rule_19_a_job_that_is_back_is_delivered(tmp_path: Path, form: str) -> None:
    tale = waiting_tale(tmp_path, form)
    tale.product.lose_store()
    tale.publish()
    tale.jobs(may(4), may(5), first=10)
    tale.publish()
    assert (quarantined(tale), tale.total().jobs) == ([], 6)


def restarted(tale: Tale) -> None:
    restart(tale, tale.ce.rows["job0002ce1"])


def ended_otherwise(tale: Tale) -> None:
    tale.ce.again(ended_again(tale.ce.rows["job0002ce1"], may(2), wall_s=77))


@pytest.mark.parametrize("change", [restarted, ended_otherwise])
def test_rule_19_a_later_run_and_a_change_of_a_delivered_one_are_named(tmp_path: Path, change: Change) -> None:
    tale = Tale(tmp_path, "apel-summary-0.4")
    tale.jobs(may(1), may(2))
    assert tale.publish().status == 0
    change(tale)
    publish_in_vain(tale)
    purge(tale, tale.ce.rows["job0002ce1"])
    tale.product.lose_store()
    tale.publish()
    (one,) = quarantined(tale)
    assert (one["job"], one["rule"]) == ("job0002ce1", WAITED)
    is_change = change is ended_otherwise
    assert ("so, and counts as it was, with 1002 s wall, 502 s CPU" in one["reason"]) is is_change
    assert tale.wrong() == []


def test_rule_19_nothing_is_said_before_every_source_is_loaded(tmp_path: Path) -> None:
    tale = waiting_tale(tmp_path, "car")
    tale.product.lose_store()
    here = tale.ce.accounting / "accounting_v2.db"
    away = here.rename(here.with_name("away"))
    tale.publish()
    assert quarantined(tale) == []
    away.rename(here)
    tale.publish()
    assert [one["job"] for one in quarantined(tale)] == ["job0010ce1", "job0011ce1"]


def test_rule_19_runs_that_are_too_many_to_be_named_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_LOOKED_AT", 1)
    tale = waiting_tale(tmp_path, "car", count=4)
    tale.product.lose_store()
    tale.publish()
    (one,) = quarantined(tale)
    assert one["reason"].startswith("up to 4 more jobs waited when jobs.db was lost")
    assert (status(tale)["quarantined"], tale.total().jobs) == (1, 5)
    tale.run("quarantine", "drop", "1")
    for job in tale.jobs(may(20), may(21), may(22), first=20):
        publish_in_vain(tale)
        purge(tale, job)
    tale.product.lose_store()
    tale.publish()
    more = [one["reason"] for one in quarantined(tale)]
    assert [text.partition(" more jobs waited")[0] for text in more] == ["up to 4", "up to 8"]


def test_rule_19_a_dry_run_shows_it_and_writes_nothing(tmp_path: Path) -> None:
    tale = waiting_tale(tmp_path, "car")
    tale.product.lose_store()
    assert "egi: 2 set aside" in tale.run("plan").out
    assert quarantined(tale) == []
    tale.publish()
    assert len(quarantined(tale)) == 2
