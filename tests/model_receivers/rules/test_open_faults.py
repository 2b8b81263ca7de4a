"""Sentences of the rules that the product does not hold yet: each test fails, and says with the smallest story how."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_receivers.rules.site import ACCEPT, MAY, apel, by_month, job, once, quiet, total
from tests.model_receivers.rules.test_rule_10 import JUNE_, MAY_, OTHER_KIND, begun, in_format, tables
from tests.model_receivers.rules.test_rules_12_to_21 import (
    FORCE,
    WITHOUT_ZEROS,
    alone,
    by_cores,
    ends,
    give_cores,
    leave,
    three_of_a_row,
)
from tests.model_receivers.site import Answer
from tests.model_receivers.stories.events import delete_what_tickets_say
from tests.model_receivers.test_named_stories import Tale, june, may


def delete_what_is_asked_for(tale: Tale) -> None:
    """Have the rows deleted that `sync --check` names as left at the receiver."""
    check = tale.product.run("sync", "--check", "--months", "all")
    apel(tale).delete_rows([key for key in tale.rows() if f"processors {key.processors}:" in check.out])


@pytest.mark.xfail(strict=True, reason="late jobs of a month of the other kind are held")
@pytest.mark.parametrize(("before", "after"), OTHER_KIND)
def test_rule_10_after_a_change_of_kind_late_jobs_go_on_in_the_format_of_their_month(
    tmp_path: Path, before: str, after: str
) -> None:
    tale = begun(tmp_path, before)
    (table,) = tables(tale, MAY_)
    in_format(tale, after)
    tale.ce.insert([job(4, 400, end=june(2)), job(5, 800)])
    assert tale.publish().status == 0
    assert tables(tale, MAY_) == {table}
    assert by_month(tale) == {MAY_: total(100, 200, 800), JUNE_: total(400)}


@pytest.mark.xfail(strict=True, reason="the ticket of a change to totals names rows that these replace")
def test_rule_10_a_ticket_that_is_carried_out_after_the_totals_came_loses_none(tmp_path: Path) -> None:
    tale = begun(tmp_path, "car")
    in_format(tale, "apel-summary-0.4")
    held = quiet(tale, *MAY)
    assert held.status == 65
    assert tale.run(*MAY, ACCEPT).status == 0
    delete_what_tickets_say(tale.product, held)
    assert by_month(tale) == {MAY_: total(100, 200)}


@pytest.mark.xfail(
    strict=True,
    reason="a consent of totals stays though a run came back to its row",
)
@pytest.mark.parametrize("form", WITHOUT_ZEROS)
def test_rule_12_a_row_of_totals_to_which_a_run_comes_back_is_not_to_be_deleted_any_more(
    tmp_path: Path, form: str
) -> None:
    """Whoever has it deleted loses the run."""
    tale = alone(tmp_path, form)
    give_cores(tale, 1, 1)
    assert tale.publish().status == 65
    assert tale.run(*FORCE, ACCEPT).status == 0
    tale.ce.insert([job(4, 800, cpus=4)])
    assert tale.publish().status == 0
    assert by_cores(tale) == {4: total(800), 1: total(100, 200, 400)}
    delete_what_is_asked_for(tale)
    assert by_cores(tale) == {4: total(800), 1: total(100, 200, 400)}


@pytest.mark.xfail(strict=True, reason="a consent is recorded before its message is accepted, and stays")
@pytest.mark.parametrize("form", WITHOUT_ZEROS)
def test_rule_12_what_did_not_arrive_leaves_no_ticket(tmp_path: Path, form: str) -> None:
    """Nothing was stored: all is as it was, and the change is held again."""
    tale = alone(tmp_path, form)
    give_cores(tale, 1, 1)
    assert tale.publish().status == 65
    tale.product.answer = lambda: Answer.AWAY
    assert tale.run(*FORCE, ACCEPT).status == 75
    tale.product.answer = once()
    delete_what_is_asked_for(tale)
    assert tale.publish().status == 65
    assert by_cores(tale) == {4: total(100), 1: total(200, 400)}


@pytest.mark.xfail(strict=True, reason="a message has the ends that the row had before the run left")
@pytest.mark.parametrize(("number", "first", "last"), [(1, 2, 3), (3, 1, 2)])
def test_rule_14_the_receiver_is_told_the_ends_of_the_runs_that_are_left(
    tmp_path: Path, number: int, first: int, last: int
) -> None:
    tale = three_of_a_row(tmp_path, "apel-summary-0.4")
    leave(tale, number, "for another month")
    assert ends(tale, "apel-summary-0.4") == (may(first), may(last))
