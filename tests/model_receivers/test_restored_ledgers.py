"""A ledger is restored, or lost: what it lacks waits until an administrator answers, and each run counts once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.model_receivers.oracle import note_waiting
from tests.model_receivers.receivers.apel import Apel, Total
from tests.model_receivers.rules.site import MAY, keeping, kept, rewrite
from tests.model_receivers.site import KILLED, Answer, Run
from tests.model_receivers.stories.events import answer_restored, delete_what_tickets_say
from tests.model_receivers.test_named_stories import APEL, Tale, in_each_form, june, may
from tests.model_receivers.world import BatchSystem, ended_again, job_of

Losing = Callable[[Tale], None]


def back_up(tale: Tale) -> None:
    assert tale.product.ledger.back_up(tale.product.run)


def lose(tale: Tale) -> None:
    tale.product.ledger.lose()


def restore(tale: Tale) -> None:
    tale.product.ledger.restore()


def used(folder: Path, form: str) -> Tale:
    """Two jobs of April stay as they were; of May and June some are delivered after the backup."""
    tale = Tale(folder, form)
    tale.jobs(may(3), may(4), june(3), first=1)
    assert tale.publish().status == 0
    back_up(tale)
    tale.jobs(may(5), june(4), first=4)
    assert tale.publish().status == 0
    return tale


def held(tale: Tale) -> dict[str, Any]:
    """What a round holds since the ledger was restored, by month; nothing is sent of it."""
    before = len(tale.product.arrived)
    run = tale.publish()
    note_waiting(tale.memory, tale.product.config["targets"], run)
    assert run.status == 65, run.err
    assert len(tale.product.arrived) == before
    return {one["month"]: one["restored"] for one in run.json["targets"]["egi"]["held"]}


def assert_right(tale: Tale) -> None:
    assert tale.wrong() == []
    assert tale.product.run("state", "check").status == 0
    assert tale.total().jobs == len(tale.ce.rows)


def test_rule_22_both_runs_of_a_restarted_job_wait(tmp_path: Path) -> None:
    """SGAS keeps the first record of a job; the second does not wait unseen for the first."""
    tale = Tale(tmp_path, "car")
    sgas = {"type": "sgas", "url": "https://sgas.example.org/sgas", "format": "ogf-ur"}
    tale.product.config["targets"] = {"egi": {**sgas, "start": "all", "every": "1s"}}
    (job,) = tale.jobs(may(3))
    assert tale.publish().status == 0
    lose(tale)
    assert {month: one["waiting"] for month, one in held(tale).items()} == {"2026-05": 1}
    tale.ce.again(ended_again(job, june(7), local_job_id="9001"))
    assert {month: one["waiting"] for month, one in held(tale).items()} == {"2026-05": 1, "2026-06": 1}


@in_each_form
@pytest.mark.parametrize("is_late", [False, True])
def test_rule_22_a_run_whose_submission_time_was_corrected_is_sent_once(
    tmp_path: Path, form: str, is_late: bool
) -> None:
    """Its job was not restarted, so there is one run of it: before it was sent, and when its month is sent anew."""
    tale = Tale(tmp_path, form)
    job, _ = tale.jobs(may(3), may(4))
    egi = tale.product.config["targets"].pop("egi")
    tale.product.config["targets"]["other"] = egi | {"topic": "other"}
    tale.publish()
    if is_late:
        tale.product.config["targets"]["egi"] = egi
        tale.product.answer = lambda: Answer.AWAY
        tale.publish()
        tale.product.answer = lambda: Answer.OK
    rewrite(tale, job.job_id, "SubmitTime", job.submit_time - 30)
    tale.publish()
    tale.product.config["targets"] = {"egi": egi}
    tale.publish()
    assert tale.total().jobs == 2
    lose(tale)
    held(tale)
    apel = tale.product.model(APEL)
    assert isinstance(apel, Apel)
    apel.delete_month((2026, 5))
    assert tale.run("receiver", "deleted", "egi", "2026-05").status == 0
    tale.publish()
    tale.publish()
    assert tale.total().jobs == 2


@pytest.mark.parametrize(("losing", "counted"), [(restore, 2), (lose, 0)])
@in_each_form
def test_rule_22_lost_then_delivered(tmp_path: Path, form: str, losing: Losing, counted: int) -> None:
    tale = used(tmp_path, form)
    losing(tale)
    may_of = held(tale)["2026-05"]
    assert (may_of["jobs"], may_of["counted"], may_of["differs"]) == (3, counted, True)
    sent = len(tale.product.arrived)
    taken = tale.run("receiver", "delivered", "egi", "2026-05", "2026-06", "--json")
    assert taken.status == 0, taken.err
    assert [(one["is_same"], one["is_taken"]) for one in taken.json["months"]] == [(True, True)] * 2
    assert_right(tale)
    assert len(tale.product.arrived) == sent, "nothing is sent again"


@in_each_form
def test_rule_22_restored_then_republished(tmp_path: Path, form: str) -> None:
    """Settings have changed, so the months cannot be taken: they are deleted and sent anew. Then `republish` moves the rest."""
    tale = used(tmp_path, form)
    restore(tale)
    tale.vo_rule("ann", "cms")
    held(tale)
    refused = tale.run("receiver", "delivered", "egi", "2026-05", "--json")
    assert (refused.status, refused.json["months"][0]["is_taken"]) == (65, False)
    for month in ((2026, 5), (2026, 6)):
        tale.product.model("apel gLite-APEL").delete_month(month)
    assert tale.run("receiver", "deleted", "egi", "2026-05", "2026-06").status == 0
    assert tale.publish().status == 0
    assert_right(tale)
    words = ("republish", "--from", "2026-05", "--to", "2026-06", "--yes", "--accept-key-change")
    delete_what_tickets_say(tale.product, tale.run(*words[:-1]), tale.run(*words))
    assert_right(tale)
    assert {key.vo for key in tale.rows()} == {"cms"}


@in_each_form
def test_rule_22_the_prefix_of_local_ids_has_changed_since(tmp_path: Path, form: str) -> None:
    """Records are at the receiver under the earlier one, so they are not taken as delivered under another."""
    tale = used(tmp_path, form)
    records = tale.product.config["records"]
    records["localid_prefix"] = "a-"
    lose(tale)
    held(tale)
    months = ("2026-05", "2026-06")
    taken = tale.run("receiver", "delivered", "egi", *months, "--json")
    if form == "car":
        assert [(one["entered"], one["is_taken"]) for one in taken.json["months"]] == [(0, False)] * 2
        assert "configure an earlier records.localid_prefix, for example, until the month is taken" in taken.err
        del records["localid_prefix"]
        taken = tale.run("receiver", "delivered", "egi", *months, "--json")
        records["localid_prefix"] = "a-"
    assert (taken.status, [one["entered"] for one in taken.json["months"]]) == (0, [3, 2])
    words = ("republish", "--from", "2026-05", "--to", "2026-06", "--yes", "--accept-key-change")
    delete_what_tickets_say(tale.product, tale.run(*words[:-1]), tale.run(*words))
    assert_right(tale)


@in_each_form
def test_rule_22_a_job_has_another_end_than_its_record(tmp_path: Path, form: str) -> None:
    """A record keeps the end that it was sent with, which a lost ledger does not tell any more."""
    tale = used(tmp_path, form)
    job = tale.ce.rows["job0001ce1"]
    tale.ce.again(ended_again(job, may(7), wall_s=4242))
    assert tale.publish().status == 0
    assert tale.total().jobs == len(tale.ce.rows)
    lose(tale)
    held(tale)
    taken = tale.run("receiver", "delivered", "egi", "2026-05", "--json")
    assert taken.json["months"][0]["is_taken"] is (form != "car")
    tale.ce.again(ended_again(job, may(7), wall_s=5151))
    answers = answer_restored(tale.product, tale.publish(), random.Random(1), how="deleted")
    assert {run.status for runs in answers.values() for run in runs} == {0}
    tale.publish()
    assert_right(tale)


@in_each_form
def test_rule_22_restored_then_late_jobs(tmp_path: Path, form: str) -> None:
    """One that was submitted before waits, in whatever month it ended; one that was submitted later need not."""
    tale = used(tmp_path, form)
    restore(tale)
    held(tale)
    noticed = int(tale.product.now.timestamp())
    late = job_of(number=20, ce="ce1", end=may(20), wall_s=70, cpu_s=60, user="ann")
    other = job_of(number=21, ce="ce1", end=int(may(1) - 86_400 * 5), wall_s=70, cpu_s=60, user="ann")
    tale.ce.insert([late, other])
    waits = held(tale)
    assert {month: (one["differs"], one["waiting"]) for month, one in waits.items()} == {
        "2026-04": (False, 1),
        "2026-05": (True, 2),
        "2026-06": (True, 1),
    }
    tale.product.later(days=30)
    new = job_of(number=22, ce="ce1", end=noticed + 86_400 * 28, wall_s=70, cpu_s=60, user="ann")
    again = job_of(number=23, ce="ce1", end=noticed + 7200, wall_s=70, cpu_s=60, user="ann")
    tale.ce.insert([new, again])
    before = tale.total()
    run = tale.publish()
    note_waiting(tale.memory, tale.product.config["targets"], run)
    assert run.status == 65
    goes = 2 if form == "car" else 1  # of a month that differs, no totals go
    assert tale.total() == before.plus(Total(1, 70, 60), goes)
    solved = tale.run("receiver", "delivered", "egi", "2026-05", "2026-06", "--json")
    assert (solved.status, [one["is_taken"] for one in solved.json["months"]]) == (65, [False, form != "car"])
    answers = answer_restored(tale.product, tale.publish(), random.Random(1), how="deleted")
    assert {run.status for runs in answers.values() for run in runs} == {0}
    assert_right(tale)


def test_rule_22_a_change_of_a_job_of_a_month_that_differs_waits(tmp_path: Path) -> None:
    tale = used(tmp_path, "car")
    restore(tale)
    held(tale)
    tale.ce.correct(replace(tale.ce.rows["job0001ce1"], wall_s=4242))
    assert held(tale)["2026-05"]["waiting"] == 2
    assert tale.run("receiver", "delivered", "egi", "2026-05", "2026-06").status == 0
    assert_right(tale)


def test_rule_22_what_was_in_doubt_in_a_restored_ledger_does_not_overwrite_what_came_later(tmp_path: Path) -> None:
    """Totals that were on their way when the backup was made are older than those that arrived."""
    tale = Tale(tmp_path, "apel-summary-0.4")
    tale.jobs(may(3), may(4), first=1)
    assert tale.product.cut_short("publish", "--force", statement=45).status == KILLED
    back_up(tale)
    tale.jobs(may(5), first=4)
    assert tale.publish().status == 0
    before = tale.total()
    restore(tale)
    held(tale)
    assert tale.total() == before
    assert tale.run("receiver", "delivered", "egi", "2026-05").status == 0
    assert_right(tale)


def test_rule_22_counts_of_held_months_are_not_reported(tmp_path: Path) -> None:
    tale = used(tmp_path, "car")
    tale.product.config["targets"]["egi"]["sync"] = True
    tale.publish()
    model = tale.product.model("apel gLite-APEL")
    assert isinstance(model, Apel)
    reported = {key: row["NumberOfJobs"] for key, row in model.sync.items()}
    assert sum(reported.values()) == 5
    restore(tale)
    tale.publish()
    tale.publish()
    assert {key: row["NumberOfJobs"] for key, row in model.sync.items()} == reported


# Killed


def at_every_step(folder: Path, form: str, words: tuple[str, ...], until: Callable[[Tale], None], stride: int) -> int:
    """Lose a ledger, end a command at ever later statements of the ledger, and see that all comes right."""
    statement = 1
    while True:
        (folder / str(statement)).mkdir()
        tale = used(folder / str(statement), form)
        restore(tale)
        if words[0] == "receiver":
            held(tale)
        ended: Run = tale.product.cut_short(*words, statement=statement)
        until(tale)
        assert_right(tale)
        if ended.status != KILLED:
            return statement // stride
        statement += stride


def solve(tale: Tale) -> None:
    """Hold, take as delivered what is still held."""
    before = len(tale.product.arrived)
    run = tale.publish()
    months = [one["month"] for one in run.json["targets"]["egi"]["held"]]
    if months:
        taken = tale.run("receiver", "delivered", "egi", *months)
        assert taken.status == 0, taken.err
    assert len(tale.product.arrived) == before


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
@pytest.mark.slow
def test_rule_22_killed_between_the_ledger_and_the_file_at_every_step(tmp_path: Path, form: str) -> None:
    """While a round notices that the ledger is an older one."""
    assert at_every_step(tmp_path, form, ("publish", "--force"), solve, 5) > 5


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
@pytest.mark.slow
def test_rule_22_killed_at_every_step_of_taking_months_as_delivered(tmp_path: Path, form: str) -> None:
    words = ("receiver", "delivered", "egi", "2026-05", "2026-06")
    assert at_every_step(tmp_path, form, words, solve, 7) > 5


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
@pytest.mark.slow
def test_a_round_that_was_killed_between_the_ledger_and_the_file_is_no_loss(tmp_path: Path, form: str) -> None:
    for statement in range(20, 120, 4):
        (tmp_path / str(statement)).mkdir()
        tale = used(tmp_path / str(statement), form)
        tale.jobs(may(6), june(6), first=7)
        tale.product.cut_short("publish", "--force", statement=statement)
        assert tale.publish().status == 0
        assert_right(tale)


@pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
def test_rule_22_nobody_knows_any_more_that_a_run_was_a_job_of_a_ce(tmp_path: Path, form: str) -> None:
    """The CE has purged the job, ledger and job store are lost, the month was deleted: the batch system has the run."""
    tale, batch = Tale(tmp_path, form), BatchSystem(tmp_path)
    tale.product.config["source"].append(batch.source)
    job = replace(job_of(number=1, ce="ce1", end=may(3), wall_s=1000, cpu_s=500, user="ann"), lrms="sge")
    tale.ce.insert([job])
    batch.finish(job, of_ce=True)
    assert tale.publish().status == 0
    assert {host for host, *_ in _of_hosts(tale)} == {"https://ce1.example.org:443/arex"}
    tale.ce.purge([job.job_id])
    lose(tale)
    assert held(tale)["2026-05"]["jobs"] == 1
    tale.product.model(APEL).delete_month((2026, 5))
    assert tale.run("receiver", "deleted", "egi", "2026-05").status == 0
    tale.product.lose_store()
    tale.memory.store_is_lost, tale.memory.batch_runs = True, batch.of_ces
    assert tale.wrong() == []
    assert _of_hosts(tale) == [("ce9.example.org", 1, job.wall_s, job.cpu_user_s)]
    for place, payload in tale.product.arrived[:1]:
        tale.product.model(place).take(payload)
    assert any("a run counts twice" in one or "too many jobs" in one for one in tale.wrong())


def _of_hosts(tale: Tale) -> list[tuple[str, int, int, int]]:
    return [(key.host, *total) for key, total in tale.rows().items()]


@pytest.mark.parametrize("gone", ["purged", "restarted"])
@in_each_form
def test_rule_22_jobs_that_the_ce_has_no_more_are_sent_anew_as_they_were_loaded(
    tmp_path: Path, form: str, gone: str
) -> None:
    """Of a month that was deleted because the ledger was lost: the job store has them still."""
    tale = used(tmp_path, form)
    before, job = tale.total(), tale.ce.rows["job0001ce1"]
    more = Total()
    if gone == "purged":
        tale.ce.purge([job.job_id])
    else:
        again = ended_again(job, june(7), local_job_id="9001", wall_s=77, cpu_user_s=33)
        tale.ce.again(again)
        more = Total(1, again.wall_s, again.cpu_user_s)
    lose(tale)
    assert held(tale)["2026-05"]["waiting"] == 3, "all that the receiver should have"
    for month in ((2026, 5), (2026, 6)):
        tale.product.model(APEL).delete_month(month)
    assert tale.run("receiver", "deleted", "egi", "2026-05", "2026-06").status == 0
    assert tale.wrong() == []
    assert tale.total() == before.plus(more)


def test_rule_22_totals_that_went_on_as_records_after_the_backup_are_sent_anew(tmp_path: Path) -> None:
    """The restored ledger has the month as totals, which nobody sends any more."""
    tale = Tale(tmp_path, "apel-summary-0.4")
    tale.jobs(may(3), may(4))
    assert tale.publish().status == 0
    before = tale.total()
    back_up(tale)
    tale.product.config["targets"]["egi"]["format"] = "car"
    tale.republish_may_accepting()
    more = tale.jobs(may(5), first=4)
    assert tale.publish().status == 0
    restore(tale)
    held(tale)
    tale.product.model(APEL).delete_month((2026, 5))
    assert tale.run("receiver", "deleted", "egi", "2026-05").status == 0
    assert tale.wrong() == []
    assert tale.total() == before.plus(Total(1, more[0].wall_s, more[0].cpu_user_s))
    assert tale.product.run("state", "check").status == 0


def test_rule_22_which_run_of_a_job_came_first_is_forgotten_with_its_month(tmp_path: Path) -> None:
    """SGAS keeps the first record of an id: after all were deleted there, another run of the job may be the first."""
    tale = keeping(tmp_path, "sgas")
    (job,) = tale.jobs(may(3))
    assert tale.publish().status == 0
    back_up(tale)
    tale.ce.again(ended_again(job, may(7), local_job_id="9001", wall_s=77, cpu_user_s=33))
    assert tale.publish().status == 0
    restore(tale)
    answers = answer_restored(tale.product, tale.publish(), random.Random(1), how="deleted")
    assert {run.status for runs in answers.values() for run in runs} == {0}
    assert kept(tale) == {}
    for _ in range(2):
        tale.publish()
    cpu_s = sorted(cpu_s for cpu_s, _ in kept(tale).values())
    assert cpu_s == sorted((33 + job.cpu_kernel_s, job.cpu_user_s + job.cpu_kernel_s))
    assert tale.run(*MAY).status == 0
    assert sorted(cpu_s for cpu_s, _ in kept(tale).values()) == cpu_s
