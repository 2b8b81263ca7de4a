"""Single records of months of which APEL has purged job records (rule 11): whole rows, or they are held."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from publisher.model.entry import RowTotal, Usage
from publisher.publishing.plan.records import OldRows, first_kept
from tests.arex_databases import SampleJob
from tests.model_receivers.receivers.apel import Apel, Total
from tests.model_receivers.receivers.payloads import apel_rows
from tests.model_receivers.site import Answer, Run
from tests.model_receivers.test_named_stories import APEL, Tale, june, may
from tests.publishing.test_plan import END, MONTH, entry, recorded

FORMS = ("car", "apel-job-0.4")
in_each_form = pytest.mark.parametrize("form", FORMS)


def apel(tale: Tale) -> Apel:
    model = tale.product.model(APEL)
    assert isinstance(model, Apel)
    return model


def purged(folder: Path, form: str, **keys: int) -> tuple[Tale, list[SampleJob]]:
    """A tale in August: three jobs of May in one row, and one in another, whose records APEL has purged."""
    tale = Tale(folder, form)
    tale.product.config["targets"]["egi"] |= keys
    jobs = tale.jobs(may(3), may(4), may(5))
    jobs += tale.jobs(may(6), first=20, user="bob")
    assert tale.publish().status == 0
    tale.rows()
    tale.product.later(days=55)
    apel(tale).purge((2026, 6))
    assert tale.total().jobs == 4
    return tale, jobs


def usage(*jobs: SampleJob) -> Total:
    return Total(len(jobs), sum(job.wall_s for job in jobs), sum(job.cpu_user_s for job in jobs))


def sent(tale: Tale, before: int) -> list[str]:
    """Local ids in the order in which they were sent after so many messages."""
    return [str(row["LocalJobId"]) for _, payload in tale.product.arrived[before:] for row in apel_rows(payload)[1]]


def held(run: Run) -> list[tuple[str, int, bool]]:
    return [(one["month"], one["lost_jobs"], one["purged"]) for one in run.json["targets"]["egi"]["held"]]


@in_each_form
def test_rule_11_a_late_job_of_an_old_month_goes_with_all_others_of_its_row(tmp_path: Path, form: str) -> None:
    tale, jobs = purged(tmp_path, form)
    before = len(tale.product.arrived)
    (late,) = tale.jobs(may(9), first=9)
    assert tale.publish().status == 0
    assert tale.total() == usage(*jobs, late)
    assert sorted(sent(tale, before)) == ["1001", "1002", "1003", "1009"], "none of the other row"
    assert sent(tale, before)[-1] == "1009", "the one that has to come is last: otherwise all go again"
    assert tale.wrong() == []


@in_each_form
def test_rule_11_without_the_key_it_goes_alone(tmp_path: Path, form: str) -> None:
    """As where the receiver keeps all records; APEL does not, and loses three jobs: why the default is 3."""
    tale, jobs = purged(tmp_path, form, single_months=0)
    tale.jobs(may(9), first=9)
    assert tale.publish().status == 0
    assert tale.total().jobs == len(jobs) + 1 - 3


@in_each_form
def test_rule_11_a_changed_job_goes_with_all_others_too(tmp_path: Path, form: str) -> None:
    tale, jobs = purged(tmp_path, form)
    changed = replace(jobs[0], wall_s=7)
    tale.ce.correct(changed)
    assert tale.publish().status == 0
    assert tale.total() == usage(changed, *jobs[1:])


@in_each_form
def test_rule_11_a_job_that_moves_has_both_rows_made_again(tmp_path: Path, form: str) -> None:
    tale, jobs = purged(tmp_path, form)
    moved = replace(jobs[0], cpus=8)
    tale.ce.correct(moved)
    assert tale.publish().status == 0
    assert tale.total() == usage(moved, *jobs[1:])
    assert {key.processors: total.jobs for key, total in tale.rows().items() if key.vo == "atlas"} == {1: 2, 8: 1}


@in_each_form
def test_rule_11_the_last_of_a_row_is_held_as_in_any_month(tmp_path: Path, form: str) -> None:
    tale, jobs = purged(tmp_path, form)
    tale.ce.correct(replace(jobs[3], cpus=8))
    run = tale.publish()
    assert (held(run), tale.total()) == ([("2026-05", 0, False)], usage(*jobs))


@in_each_form
def test_rule_11_a_row_of_which_a_job_cannot_be_sent_again_is_held(tmp_path: Path, form: str) -> None:
    tale, jobs = purged(tmp_path, form)
    tale.ce.purge([jobs[1].job_id])
    tale.product.lose_store()
    (late,) = tale.jobs(may(9), first=9)
    (other,) = tale.jobs(may(10), first=30, user="bob")
    run = tale.publish()
    assert (run.status, held(run)) == (65, [("2026-05", 1, True)])
    assert "single_months" in run.json["targets"]["egi"]["reason"]
    assert tale.total() == usage(*jobs, other), "the other row is whole"
    assert held(tale.publish("--accept-key-change")) == [("2026-05", 1, True)], "it would lose a job"
    assert tale.wrong() == []
    tale.ce.insert([jobs[1]])
    assert tale.publish().status == 0
    assert tale.total() == usage(*jobs, other, late)


@in_each_form
def test_rule_11_a_job_that_was_purged_goes_again_as_it_was_loaded(tmp_path: Path, form: str) -> None:
    tale, jobs = purged(tmp_path, form)
    tale.ce.purge([jobs[1].job_id])
    (late,) = tale.jobs(may(9), first=9)
    assert tale.publish().status == 0
    assert tale.total() == usage(*jobs, late)
    assert tale.wrong() == []


@in_each_form
def test_rule_11_jobs_that_would_come_to_other_rows_by_now_cannot_be_sent_again(tmp_path: Path, form: str) -> None:
    """Under the benchmark of today their records make other rows."""
    tale, jobs = purged(tmp_path, form)
    tale.benchmark(12)
    (late,) = tale.jobs(may(9), first=9)
    assert tale.publish().status == 0, "it comes to a row of its own"
    assert tale.total() == usage(*jobs, late)
    tale.ce.correct(replace(jobs[0], wall_s=7))
    assert held(tale.publish()) == [("2026-05", 2, True)]
    assert tale.total() == usage(*jobs, late)


@in_each_form
def test_rule_11_what_breaks_off_is_sent_again_whole(tmp_path: Path, form: str) -> None:
    tale, jobs = purged(tmp_path, form, batch_records=1)
    late = tale.jobs(may(9), may(10), first=9)
    answers = iter([Answer.OK, Answer.OK, Answer.OK, Answer.OK, Answer.AWAY])
    tale.product.answer = lambda: next(answers, Answer.OK)
    assert tale.publish().status == 75
    apel(tale).summarise()
    apel(tale).purge((2026, 6))
    assert tale.publish().status == 0
    assert tale.total() == usage(*jobs, *late)


@in_each_form
def test_rule_11_a_month_that_is_sent_for_the_first_time_goes_as_it_comes(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    tale.product.config["targets"]["egi"]["batch_records"] = 1
    tale.product.later(days=90)
    jobs = tale.jobs(may(3), may(4), may(5))
    assert tale.publish().status == 0
    assert sent(tale, 0) == ["1001", "1002", "1003"]
    assert tale.total() == usage(*jobs)


@in_each_form
def test_rule_11_months_that_the_receiver_keeps_go_job_by_job(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    tale.jobs(june(3), june(4))
    assert tale.publish().status == 0
    before = len(tale.product.arrived)
    tale.jobs(june(5), first=9)
    assert tale.publish().status == 0
    assert sent(tale, before) == ["1009"]


@in_each_form
def test_rule_11_a_republish_of_a_row_without_all_its_jobs_is_held(tmp_path: Path, form: str) -> None:
    tale, jobs = purged(tmp_path, form)
    words = ("republish", "--from", "2026-05", "--to", "2026-05", "--yes", "--json")
    assert tale.run(*words).status == 0
    assert tale.total() == usage(*jobs)
    tale.ce.purge([jobs[1].job_id])
    tale.product.lose_store()
    apel(tale).purge((2026, 6))
    for accept in ((), ("--accept-key-change",), ("--accept-key-change",)):
        run = tale.run(*words, *accept)
        assert (run.status, held(run)) == (65, [("2026-05", 1, True)])
    assert tale.total() == usage(*jobs)


@pytest.mark.parametrize(("months", "first"), [(3, (2026, 4)), (1, (2026, 6)), (12, (2025, 7))])
def test_rule_11_this_month_is_one_of_those_that_are_kept(tmp_path: Path, months: int, first: tuple[int, int]) -> None:
    year, month = first
    assert first_kept(months, Tale(tmp_path, "car").product.now) == 12 * year + month - 1


def test_rule_11_a_row_lacks_a_job_that_would_come_to_a_row_that_is_held() -> None:
    """Run 1 stays in a, since b lacks a job; but its record is another by now, so a lacks one, too."""
    a, b = entry(1).row, entry(1, "b").row
    rows = [RowTotal(a, Usage(2, 120, 100), END, END), RowTotal(b, Usage(1, 60, 50), END, END)]
    old = OldRows(MONTH + 1, lambda month: rows)
    changed = entry(1, "b", digest=b"2")
    assert old.touch(changed, recorded(1))
    old.see(changed, recorded(1), is_changed=True)
    old.see(entry(2), recorded(2), is_changed=False)
    assert old.missing() == {a.id: 0, b.id: 1}
