"""Holds are written down (rule 15): what was shown is accepted and nothing else, and what waits is never forgotten."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from publisher.model.receiver import NOT_FOUND
from tests.arex_databases import SampleJob
from tests.model_receivers.site import KILLED, Answer, Run
from tests.model_receivers.stories.events import delete_what_tickets_say
from tests.model_receivers.test_named_stories import Tale, june, may
from tests.model_receivers.world import ended_again

FORMS = ("car", "apel-summary-0.2")
in_each_form = pytest.mark.parametrize("form", FORMS)


def alone(tale: Tale) -> SampleJob:
    """Deliver three jobs; return the one that is alone in its row."""
    tale.jobs(may(3), may(4))
    (job,) = tale.jobs(may(5), first=20, user="bob")
    assert tale.publish().status == 0
    return job


def held_change(tale: Tale) -> SampleJob:
    """Have a change of a job held, which would leave its row behind; return the job as it is now."""
    changed = replace(alone(tale), cpus=8, wall_s=777)
    tale.ce.correct(changed)
    assert held_months(tale.publish()) == ["2026-05"]
    return changed


def held_months(run: Run) -> list[str]:
    return [held["month"] for held in run.json["targets"]["egi"]["held"]]


def status(tale: Tale) -> dict[str, Any]:
    return dict(tale.product.run("status", "--json").json["targets"]["egi"])


def quarantined(tale: Tale) -> list[dict[str, Any]]:
    return list(tale.product.run("quarantine", "list", "--json").json["quarantined"])


def purge(tale: Tale, job: SampleJob) -> None:
    tale.ce.purge([job.job_id])


def lose(tale: Tale, job: SampleJob) -> None:
    """Purge a job that the job store does not have either."""
    purge(tale, job)
    tale.product.lose_store()


def restart(tale: Tale, job: SampleJob) -> None:
    tale.ce.again(ended_again(job, may(7), local_job_id="9001", wall_s=77, cpu_user_s=33, cpus=1))


@pytest.mark.parametrize("forget", [purge, restart])
@in_each_form
def test_rule_15_a_held_run_that_source_and_store_forget_is_set_aside(
    tmp_path: Path, form: str, forget: Callable[[Tale, SampleJob], None]
) -> None:
    tale = Tale(tmp_path, form)
    job = held_change(tale)
    assert status(tale)["held"] == 1
    before = tale.total().jobs
    forget(tale, job)
    tale.product.lose_store()
    assert tale.publish().status == 65, "somebody is to see it"
    (one,) = quarantined(tale)
    assert (one["job"], one["local_id"], one["rule"]) == (job.job_id, str(job.local_job_id), NOT_FOUND)
    assert "777 s wall" in one["reason"]
    assert "processors 8" in one["reason"]
    assert (status(tale)["held"], status(tale)["quarantined"]) == (0, 1)
    assert tale.total().jobs == before + (forget is restart), "it counts as it was delivered"
    assert tale.publish().status == 0
    assert len(quarantined(tale)) == 1, "until it is dropped"
    assert tale.product.run("quarantine", "drop", str(one["number"])).status == 0
    assert status(tale)["quarantined"] == 0
    assert tale.wrong() == []


@pytest.mark.parametrize("forget", [purge, restart])
@in_each_form
def test_rule_15_a_held_run_that_only_its_source_forgets_is_planned_as_it_was_loaded(
    tmp_path: Path, form: str, forget: Callable[[Tale, SampleJob], None]
) -> None:
    tale = Tale(tmp_path, form)
    job = held_change(tale)
    before = tale.total()
    forget(tale, job)
    held = tale.run("publish", "--force")
    accepted = tale.run("publish", "--force", "--accept-key-change")
    assert accepted.status == 0
    assert (quarantined(tale), status(tale)["held"]) == ([], 0)
    delete_what_tickets_say(tale.product, held, accepted)
    again = 77 if forget is restart else 0
    assert tale.total().wall_s == before.wall_s - 1020 + 777 + again
    assert tale.wrong() == []


@in_each_form
def test_rule_15_a_run_that_comes_back_is_held_again_and_then_counts(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    job = held_change(tale)
    lose(tale, job)
    tale.publish()
    tale.ce.insert([job])
    held = tale.run("publish", "--force")
    assert "held back: 2026-05" in held.err
    accepted = tale.run("publish", "--force", "--accept-key-change")
    assert accepted.status == 0
    assert (quarantined(tale), status(tale)["held"]) == ([], 0)
    delete_what_tickets_say(tale.product, held, accepted)
    assert tale.wrong() == []


@in_each_form
def test_rule_15_nothing_is_accepted_that_was_not_shown(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    tale.ce.correct(replace(alone(tale), cpus=8))
    assert held_months(tale.publish("--accept-key-change")) == ["2026-05"]
    assert tale.publish("--accept-key-change").status == 0
    assert status(tale)["held"] == 0


@in_each_form
def test_rule_15_what_came_since_it_was_shown_is_held_and_shown(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    (other,) = tale.jobs(may(6), first=30, user="cyd")
    held_change(tale)
    tale.ce.correct(replace(other, cpus=8))
    shown = tale.publish("--accept-key-change")
    (held,) = shown.json["targets"]["egi"]["held"]
    assert [("CN=cyd" in row["row"], row["jobs"]) for row in held["stale"]] == [(True, 1)]
    assert [one["job"] for one in quarantined(tale)] == []
    assert (shown.status, shown.json["targets"]["egi"]["records"]) == (65, 1), "what was shown is sent"
    assert tale.publish("--accept-key-change").status == 0


@in_each_form
def test_rule_15_a_hold_ends_when_its_entry_counts_and_not_when_it_is_planned(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    held_change(tale)
    tale.product.answer = lambda: Answer.AWAY
    assert tale.publish("--accept-key-change").status == 75
    assert status(tale)["held"] == 1
    tale.product.answer = lambda: Answer.OK
    assert tale.publish("--accept-key-change").status == 0
    assert status(tale)["held"] == 0


@in_each_form
def test_rule_15_a_run_that_is_lost_between_consent_and_delivery_is_set_aside(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    job = held_change(tale)
    tale.product.answer = lambda: Answer.AWAY
    assert tale.publish("--accept-key-change").status == 75
    tale.product.answer = lambda: Answer.OK
    lose(tale, job)
    assert tale.publish().status == 65
    assert [one["rule"] for one in quarantined(tale)] == [NOT_FOUND]


@in_each_form
@pytest.mark.slow
def test_rule_15_a_round_that_is_killed_forgets_nothing_that_waits(tmp_path: Path, form: str) -> None:
    """Killed at any statement while it holds a change and sends another job; the next round looks only at changes."""
    tale = Tale(tmp_path, form)
    job, run = alone(tale), tale.product.run
    for statement in range(80, 300):
        tale.ce.correct(replace(job, cpus=8))
        tale.jobs(may(8), first=100 + statement)
        run("publish", "--force", "--dry-run")  # it loads them
        tale.product.later(minutes=1)
        ended = tale.product.cut_short("publish", "--json", statement=statement)
        tale.product.later(minutes=1)
        assert held_months(run("publish", "--json")) == ["2026-05"], statement
        tale.ce.correct(job)
        assert (run("publish", "--force").status, status(tale)["held"]) == (0, 0)
        if ended.status != KILLED:
            assert statement > 110
            return
    pytest.fail("a round has more statements")


@in_each_form
def test_rule_15_how_far_was_read_is_noted_behind_what_waits(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pages of one job: a change waits for the next one, both are looked at, and a new job comes behind them."""
    monkeypatch.setattr("publisher.jobs.reader.PAGE_JOBS", 1)
    monkeypatch.setattr("publisher.publishing.round.batches._MOVING", 2)
    tale = Tale(tmp_path, form)
    changed = [alone(tale), *tale.jobs(may(6), first=30, user="cyd")]
    assert tale.publish().status == 0
    for job in changed:
        tale.ce.correct(replace(job, cpus=8))
    tale.product.run("publish", "--force", "--dry-run")
    tale.jobs(may(8), first=40)
    assert held_months(tale.publish()) == ["2026-05"]
    with (
        closing(sqlite3.connect(tale.product.state)) as ledger,
        closing(sqlite3.connect(tale.product.job_store)) as store,
    ):
        (read_to,) = ledger.execute("SELECT read_to FROM target").fetchone()
        assert (read_to,) == store.execute("SELECT last_change FROM store").fetchone()


@in_each_form
def test_rule_15_a_change_that_is_taken_back_is_held_no_longer(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    changed = held_change(tale)
    tale.ce.correct(replace(changed, cpus=1, wall_s=1020))
    assert tale.publish().status == 0
    assert status(tale)["held"] == 0
    purge(tale, changed)
    assert tale.publish().status == 0
    assert quarantined(tale) == []


def test_rule_15_what_is_held_takes_no_place_of_a_limit(tmp_path: Path) -> None:
    """It is planned first in every round: else no other job would ever go."""
    tale = Tale(tmp_path, "car")
    held_change(tale)
    tale.jobs(june(6), first=30)
    assert tale.publish("--limit", "1").json["targets"]["egi"]["records"] == 1


def test_rule_15_a_source_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    tale = Tale(tmp_path, "apel-summary-0.2")
    held_change(tale)
    there, away = tale.ce.path, tale.ce.path.with_suffix(".away")
    there.rename(away)
    tale.publish()
    assert (quarantined(tale), status(tale)["held"]) == ([], 1)
    away.rename(there)
    assert held_months(tale.publish()) == ["2026-05"]


@pytest.mark.parametrize("form", ["car", "apel-summary-0.2"])
def test_rule_15_a_republish_accepts_what_it_showed(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    alone(tale)
    tale.benchmark(12)
    words = ("republish", "--from", "2026-05", "--to", "2026-05", "--yes", "--json")
    assert held_months(tale.run(*words, "--accept-key-change")) == ["2026-05"]
    tale.jobs(may(8), first=40)
    assert tale.publish().status == 0, "a round between forgets nothing of it"
    tale.ce.correct(replace(tale.ce.rows["job0001ce1"], wall_s=5))
    assert tale.publish().status == 0
    assert held_months(tale.run(*words, "--accept-key-change")) == ["2026-05"], "a row has another usage"
    assert tale.run(*words, "--accept-key-change").status == 0
