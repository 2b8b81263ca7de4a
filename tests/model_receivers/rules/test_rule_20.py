"""Months older than `keep` are closed: the receiver keeps what it has, and nothing of them is sent again."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from publisher.model.receiver import WAITED
from publisher.model.totals import CLOSED
from publisher.publishing.plan.decision import CLOSED_MONTHS, KEY_COLLISION
from tests.arex_databases import SampleJob
from tests.model_receivers.receivers.apel import Total
from tests.model_receivers.rules.site import (
    KEEPERS,
    assert_in_order,
    by_month,
    job,
    keeping,
    kept,
    of_ledger,
    once,
    quiet,
)
from tests.model_receivers.site import KILLED, Answer, Run
from tests.model_receivers.test_named_stories import OTHER, Tale, in_each_form, may
from tests.model_receivers.test_restored_ledgers import Losing, back_up, held, lose, restore
from tests.model_receivers.world import ended_again

MAY = "2026-05"
PRUNE = ("source", "prune", "--json")
_BALANCES = "SELECT row_key, jobs, wall_s, cpu_s, first_end, last_end, sent_jobs FROM balance ORDER BY row_key"
_COUNTS = "SELECT month, host, jobs FROM delivered_count ORDER BY month, host"
_CLOSING = f"SELECT jobs FROM entry JOIN posting ON posting.id = posting WHERE settings = '{CLOSED}' ORDER BY jobs"


def old(folder: Path, form: str, **config: Any) -> tuple[Tale, list[SampleJob]]:
    """Three delivered jobs of May, of which fourteen months have gone by, and one of now."""
    return grown_old(Tale(folder, form), **config)


def grown_old(tale: Tale, **config: Any) -> tuple[Tale, list[SampleJob]]:
    tale.product.config |= config
    jobs = tale.jobs(may(3), may(4), may(5))
    assert tale.publish().status == 0
    tale.product.now = datetime(2027, 7, 20, tzinfo=UTC)
    tale.jobs(int(tale.product.now.timestamp()) - 7200, first=9)
    assert tale.publish().status == 0
    return tale, jobs


def close(tale: Tale) -> dict[str, Any]:
    tale.product.config["keep"] = "13 months"
    run = tale.product.run(*PRUNE)
    assert run.status == 0, run.err
    return {name: value for name, value in run.json.items() if name != "schema"}


def closed(folder: Path, form: str) -> tuple[Tale, list[SampleJob]]:
    tale, jobs = old(folder, form)
    assert close(tale) == {"before": "2026-06", "entries": 3, "jobs": 3, "reason": None}
    return tale, jobs


def set_aside(tale: Tale) -> list[tuple[str, str]]:
    listed = tale.product.run("quarantine", "list", "--json").json["quarantined"]
    return [(one["job"], one["rule"]) for one in listed]


@in_each_form
def test_rule_20_a_closed_month_counts_as_it_did(tmp_path: Path, form: str) -> None:
    tale, _ = old(tmp_path, form)
    before, counts, has = of_ledger(tale, _BALANCES), of_ledger(tale, _COUNTS), tale.rows()
    close(tale)
    assert (of_ledger(tale, _BALANCES), of_ledger(tale, _COUNTS), tale.rows()) == (before, counts, has)
    assert of_ledger(tale, _CLOSING) == [(3,)]
    assert_in_order(tale)
    check = tale.product.run("sync", "--check", "--months", "all", "--json")
    assert check.status == 0, check.out
    found = {row["month"]: (row["delivered"], row["purged"]) for row in check.json["rows"]}
    assert found == {MAY: (3, 3), "2027-07": (1, 0)}


def test_rule_20_a_round_closes_what_is_old_enough(tmp_path: Path) -> None:
    tale, _ = old(tmp_path, "car")
    tale.product.config["keep"] = "13 months"
    assert quiet(tale).status == 0
    assert of_ledger(tale, _CLOSING) == [(3,)]


@in_each_form
def test_rule_20_nothing_of_a_closed_month_is_sent_again(tmp_path: Path, form: str) -> None:
    tale, jobs = closed(tmp_path, form)
    run = quiet(tale, "republish", "--from", MAY, "--to", MAY, "--yes")
    assert run.status == 64
    assert "target egi: months before 2026-06 are closed (`keep`)" in run.err
    tale.ce.correct(ended_again(jobs[0], jobs[0].end_time, wall_s=7))
    tale.product.config["targets"]["egi"]["vos"] = ["cms"]
    quiet(tale, "publish", "--force", "--json", "--accept-key-change")
    tale.product.config["targets"]["egi"]["vos"] = ["atlas"]
    quiet(tale)
    assert set_aside(tale) == []
    assert by_month(tale)[2026, 5] == Total(3, 3006, 1506)
    assert_in_order(tale)


@in_each_form
def test_rule_20_a_deleted_store_brings_nothing_back(tmp_path: Path, form: str) -> None:
    tale, _ = closed(tmp_path, form)
    tale.product.lose_store()
    run = quiet(tale)
    assert run.status == 0, run.err
    assert "3 rows: not loaded, as the months in which they ended are closed (`keep`)" in run.err
    assert set_aside(tale) == []
    assert by_month(tale)[2026, 5].jobs == 3
    assert_in_order(tale)


@in_each_form
def test_rule_20_a_job_that_runs_again_after_its_month_was_closed_is_set_aside(tmp_path: Path, form: str) -> None:
    """It may be one of those that are summed up; who knows that it is not releases it."""
    tale, jobs = closed(tmp_path, form)
    end = int(tale.product.now.timestamp()) - 600
    tale.ce.again(ended_again(jobs[0], end, local_job_id="77", wall_s=70, cpu_user_s=7))
    run = quiet(tale)
    assert run.status in (0, 65)
    assert set_aside(tale) == [(jobs[0].job_id, CLOSED_MONTHS)]
    quiet(tale)
    (one,) = tale.product.run("quarantine", "list", "--json").json["quarantined"]
    assert "it was submitted before 2026-06-01T00:00:00Z" in one["reason"]
    tale.product.run("quarantine", "release", str(one["number"]))
    assert tale.publish().status == 0
    assert by_month(tale)[2026, 5] == Total(3, 3006, 1506)
    assert by_month(tale)[2027, 7].jobs == 2
    assert_in_order(tale)


@pytest.mark.parametrize("kind", KEEPERS)
def test_rule_20_a_released_run_is_a_later_one_where_the_first_record_of_an_id_stays(tmp_path: Path, kind: str) -> None:
    tale, jobs = grown_old(keeping(tmp_path, kind))
    close(tale)
    end = int(tale.product.now.timestamp()) - 600
    tale.ce.again(ended_again(jobs[0], end, local_job_id="77", wall_s=70, cpu_user_s=7))
    before = kept(tale)
    quiet(tale)
    (one,) = tale.product.run("quarantine", "list", "--json").json["quarantined"]
    tale.product.run("quarantine", "release", str(one["number"]))
    assert tale.publish().status == 0
    new = {key: row for key, row in kept(tale).items() if key not in before}
    assert [cpu for cpu, _ in new.values()] == [7]
    assert len(kept(tale)) == len(before) + 1
    quiet(tale)


def test_rule_20_an_open_month_is_named_with_why(tmp_path: Path) -> None:
    tale, jobs = old(tmp_path, "car")
    tale.ce.correct(ended_again(jobs[1], jobs[1].end_time, wall_s=7))  # records of its whole row go again
    tale.product.answer = once(Answer.LOST)
    assert tale.publish().status == 75
    reason = "2026-05 stays open: not every target has accepted 3 jobs of it, or had them dropped"
    assert close(tale) == {"before": None, "entries": 0, "jobs": 0, "reason": reason}
    assert tale.publish().status == 0  # and a day later, the round closes it
    assert of_ledger(tale, _CLOSING) == [(3,)]


def test_rule_20_a_job_that_was_set_aside_keeps_its_month_open_though_it_is_gone(tmp_path: Path) -> None:
    """It was purged before settings changed, and can be released as long as the job store has it."""
    tale = Tale(tmp_path, "car")
    first, *_ = tale.jobs(may(3), may(4))
    assert tale.publish().status == 0
    same = job(9, 300, end=first.end_time, local_id=str(first.local_job_id))
    tale.ce.insert([same])
    tale.publish()
    tale.ce.purge([same.job_id])
    tale.publish()
    for value in (11, 12):
        tale.benchmark(value)
        tale.publish()
    tale.product.now = datetime(2027, 7, 20, tzinfo=UTC)
    assert set_aside(tale) == [(same.job_id, KEY_COLLISION)]
    found = close(tale)
    assert found["reason"] == "2026-05 stays open: not every target has accepted 1 job of it, or had them dropped"
    assert tale.product.run("quarantine", "drop", "--all").status == 0
    assert close(tale) == {"before": "2026-06", "entries": 2, "jobs": 3, "reason": None}


@in_each_form
def test_rule_20_no_month_is_closed_that_a_lost_ledger_had(tmp_path: Path, form: str) -> None:
    """Nobody has its jobs any more, so neither the job store nor the new ledger has anything of it."""
    tale, jobs = old(tmp_path, form)
    tale.ce.purge([one.job_id for one in jobs])
    lose(tale)
    tale.product.lose_store()
    assert held(tale)[MAY]["jobs"] == 3
    assert close(tale)["before"] is None
    assert of_ledger(tale, "SELECT closed FROM receiver") == [(0,)]


def test_rule_20_trace_names_the_closed_months(tmp_path: Path) -> None:
    tale, jobs = closed(tmp_path, "car")
    traced = tale.product.run("trace", jobs[0].job_id)
    assert "target egi: months before 2026-06 are closed (`keep`)" in traced.out + traced.err


@pytest.mark.parametrize("losing", [restore, lose])
@in_each_form
def test_rule_20_a_ledger_of_before_holds_the_closed_months(tmp_path: Path, form: str, losing: Losing) -> None:
    """The bound is in the generation file; a month whose runs were summed up is compared by count."""
    tale, _ = old(tmp_path, form)
    back_up(tale)
    close(tale)
    losing(tale)
    lost = held(tale)
    assert lost[MAY]["jobs"] == 3
    assert of_ledger(tale, "SELECT closed FROM receiver") == [(2026 * 12 + 5,)]
    assert quiet(tale, "receiver", "deleted", "egi", MAY).status == 64
    told = quiet(tale).err
    offered = re.findall(r"`publisher receiver deleted egi ([^`]*)`", told)
    assert all(MAY not in months.split() for months in offered), told
    assert f"{MAY} is closed (`keep`), and cannot be sent again" in told
    (receiver,) = quiet(tale, "receiver", "list", "--json").json["receivers"]
    assert receiver["closed_before"] == "2026-06"
    assert " 2026-06\n" in quiet(tale, "receiver", "list").out
    for month in sorted(lost):
        run = quiet(tale, "receiver", "delivered", "egi", month, "--json")
        assert run.status == 0, run.out + run.err
    assert by_month(tale)[2026, 5].jobs == 3
    assert_in_order(tale)
    close(tale)
    tale.product.lose_store()
    assert quiet(tale).status == 0
    assert_in_order(tale)


def _killed(tale: Tale, statement: int) -> Run:
    """Let a month go by, and end the command that closes the one before at a statement."""
    tale.product.later(days=31)
    end = int(tale.product.now.timestamp())
    tale.jobs(end - 7200, end - 7000, first=100 + 2 * statement)
    tale.product.config.pop("keep", None)
    assert tale.publish().status == 0
    tale.product.config["keep"] = "13 months"
    return tale.product.cut_short(*PRUNE, statement=statement)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_rule_20_a_kill_at_any_statement_of_closing_loses_nothing(tmp_path: Path, form: str) -> None:
    tale, _ = old(tmp_path, form)
    statement, ended = 1, Run(KILLED, "")
    while ended.status == KILLED:
        ended = _killed(tale, statement)
        has = tale.rows()
        assert tale.product.run("state", "check").status == 0
        run = quiet(tale)
        assert (run.status, run.json["targets"]["egi"]["held"]) == (0, []), run.out
        assert tale.rows() == has
        statement += 3
    assert statement > 60
    assert ended.status == 0
    assert tale.total().jobs == len(tale.ce.rows)


def test_rule_20_a_month_stays_open_of_which_a_job_is_set_aside_that_no_store_has(tmp_path: Path) -> None:
    tale = Tale(tmp_path, "car")
    tale.jobs(may(3), may(4))
    assert tale.publish().status == 0
    (job,) = tale.jobs(may(5), first=5)
    tale.product.answer = lambda: Answer.AWAY
    tale.publish()
    tale.ce.purge([job.job_id])
    tale.product.lose_store()
    tale.publish()
    tale.product.answer = once()
    tale.publish()
    assert set_aside(tale) == [(job.job_id, WAITED)]
    tale.product.now = datetime(2027, 7, 20, tzinfo=UTC)
    tale.jobs(int(tale.product.now.timestamp()) - 7200, first=9)
    tale.publish()
    reason = "2026-05 stays open: not every target has accepted 1 job of it, or had them dropped"
    assert close(tale) == {"before": None, "entries": 0, "jobs": 0, "reason": reason}
    (one,) = tale.product.run("quarantine", "list", "--json").json["quarantined"]
    assert tale.product.run("quarantine", "drop", str(one["number"])).status == 0
    assert close(tale)["before"] == "2026-06"


@in_each_form
def test_rule_20_a_target_that_has_not_been_where_it_leads_keeps_months_open(tmp_path: Path, form: str) -> None:
    """Another target may be there already, and have nothing of these months."""
    tale = Tale(tmp_path, form, {"egi": ["atlas"], "second": ["bio"]})
    tale.jobs(may(3), may(4))
    assert tale.publish().status == 0
    tale.product.now = datetime(2027, 7, 20, tzinfo=UTC)
    tale.product.config["keep"] = "13 months"
    for target in tale.product.config["targets"].values():
        target["topic"] = "other"
    assert tale.publish().status == 78
    tale.publish()
    assert tale.total(OTHER).jobs == 2
