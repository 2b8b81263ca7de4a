"""The first message fixes the kind of a month at a receiver that takes both single records and totals."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.model_receivers.receivers.apel import month_of
from tests.model_receivers.rules.site import (
    ACCEPT,
    MAY,
    SINGLE,
    apel,
    assert_in_order,
    by_month,
    job,
    once,
    quiet,
    sent,
    total,
)
from tests.model_receivers.site import Answer, Run
from tests.model_receivers.stories.events import delete_what_tickets_say
from tests.model_receivers.test_named_stories import Tale, june, may
from tests.model_receivers.world import ended_again

MAY_, JUNE_ = (2026, 5), (2026, 6)
OF_ONE_TABLE = [("apel-summary-0.2", "apel-summary-0.4"), ("apel-summary-0.4", "apel-summary-0.2")]
OF_TWO_TABLES = [
    ("apel-summary-0.2", "apel-normalised-summary-0.4"),
    ("apel-normalised-summary-0.4", "apel-summary-0.4"),
]
KINDS = [("car", "apel-summary-0.4"), ("apel-job-0.4", "apel-normalised-summary-0.4")]
OTHER_KIND = [*KINDS, *((after, before) for before, after in KINDS)]


def begun(folder: Path, form: str) -> Tale:
    tale = Tale(folder, form)
    tale.ce.insert([job(1, 100), job(2, 200)])
    assert tale.publish().status == 0
    return tale


def in_format(tale: Tale, form: str) -> None:
    tale.product.config["targets"]["egi"]["format"] = form


def tables(tale: Tale, month: tuple[int, int]) -> set[str]:
    """Return the tables of APEL that have something of a month, zeros too."""
    model = apel(tale)
    found = {name for name in ("summaries", "normalised") for key in getattr(model, name) if key.month == month}
    return found | {"jobs" for _, _, end in model.jobs if month_of(end) == month}


def held_months(run: Run) -> list[str]:
    return [held["month"] for held in run.json["targets"]["egi"]["held"]]


@pytest.mark.parametrize(("before", "after"), OTHER_KIND)
def test_rule_10_a_month_takes_nothing_of_the_other_kind(tmp_path: Path, before: str, after: str) -> None:
    """A late job, a changed one and a restarted one of May; what is of June goes in the new format."""
    tale = begun(tmp_path, before)
    (table,) = tables(tale, MAY_)
    in_format(tale, after)
    tale.ce.insert([job(4, 400, end=june(2)), job(5, 800), job(6, 1600, user="bob")])
    tale.ce.again(ended_again(tale.ce.rows["job0001ce1"], may(9), local_job_id="9001", wall_s=20, cpu_user_s=10))
    run = tale.publish()
    assert tables(tale, MAY_) == {table}
    assert len(tables(tale, JUNE_)) == 1
    assert tables(tale, JUNE_) != {table}
    assert by_month(tale)[JUNE_] == total(400)
    assert "2026-05" in held_months(run) or by_month(tale)[MAY_] == total(100, 200, 800, 1600, 20)


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


@pytest.mark.parametrize(("before", "after"), OF_TWO_TABLES)
def test_rule_10_after_a_change_of_table_late_jobs_go_on_in_the_format_of_their_month(
    tmp_path: Path, before: str, after: str
) -> None:
    """The new one begins with the next month that has nothing yet, and stays there when it is changed back."""
    tale = begun(tmp_path, before)
    (table,) = tables(tale, MAY_)
    in_format(tale, after)
    tale.ce.insert([job(4, 400, end=june(2)), job(5, 800)])
    assert tale.publish().status == 0
    (other,) = tables(tale, JUNE_)
    assert (tables(tale, MAY_), other != table) == ({table}, True)
    assert by_month(tale) == {MAY_: total(100, 200, 800), JUNE_: total(400)}
    in_format(tale, before)
    tale.ce.insert([job(6, 1600, end=june(3)), job(7, 3200)])
    assert tale.publish().status == 0
    assert (tables(tale, MAY_), tables(tale, JUNE_)) == ({table}, {other})
    assert by_month(tale) == {MAY_: total(100, 200, 800, 3200), JUNE_: total(400, 1600)}
    assert_in_order(tale)


@pytest.mark.parametrize(("before", "after"), OF_ONE_TABLE)
def test_rule_10_formats_of_one_table_are_one_kind(tmp_path: Path, before: str, after: str) -> None:
    tale = begun(tmp_path, before)
    in_format(tale, after)
    tale.ce.insert([job(4, 400, end=june(2)), job(5, 800)])
    assert tale.publish().status == 0
    assert by_month(tale) == {MAY_: total(100, 200, 800), JUNE_: total(400)}
    tale.run(*MAY)
    assert by_month(tale)[MAY_] == total(100, 200, 800)
    assert_in_order(tale)


@pytest.mark.parametrize("after", SINGLE)
def test_rule_10_a_row_that_was_emptied_overwrites_single_records_too(tmp_path: Path, after: str) -> None:
    """The only job of May ended again in June. A late job of May under the same key would be overwritten with zeros."""
    tale = Tale(tmp_path, "apel-summary-0.4")
    moved = job(1, 100)
    tale.ce.insert([moved])
    tale.publish()
    tale.ce.again(ended_again(moved, june(2)))
    assert tale.publish().status == 0
    assert by_month(tale) == {JUNE_: total(100)}
    (table,) = tables(tale, MAY_)
    in_format(tale, after)
    tale.ce.insert([job(2, 200)])
    run = tale.publish()
    assert tables(tale, MAY_) == {table}
    assert "2026-05" in held_months(run) or by_month(tale)[MAY_] == total(200)


@pytest.mark.parametrize(("before", "after"), OTHER_KIND)
def test_rule_10_what_is_in_doubt_fixes_the_kind_and_what_was_given_up_does_not(
    tmp_path: Path, before: str, after: str
) -> None:
    for answer, fixed in ((Answer.LOST, True), (Answer.AWAY, False)):
        folder = tmp_path / answer.name
        folder.mkdir()
        tale = Tale(folder, before)
        tale.ce.insert([job(1, 100), job(2, 200)])
        tale.product.answer = once(*[answer] * 9)
        assert tale.publish().status == 75
        there = tables(tale, MAY_)
        in_format(tale, after)
        tale.product.answer = once()
        tale.publish()
        tale.publish()
        assert by_month(tale) == {MAY_: total(100, 200)}
        assert (tables(tale, MAY_) == there) == fixed


@pytest.mark.parametrize(("before", "after"), [*OTHER_KIND, *OF_TWO_TABLES])
@pytest.mark.parametrize("is_configured", [True, False])
def test_rule_10_republish_of_a_month_of_another_kind_is_held_with_a_ticket(
    tmp_path: Path, before: str, after: str, is_configured: bool
) -> None:
    """After ticket and consent, the month is of that kind, with each run once; the next late job too.

    The ticket about totals comes first; that about single records after consent, since APEL would make their rows again.
    Totals under the keys of the sums that it made of them replace these: no ticket is needed.
    """
    tale = begun(tmp_path, before)
    (table,) = tables(tale, MAY_)
    if is_configured:
        in_format(tale, after)
    words = MAY if is_configured else (*MAY, "--format", after)
    held = quiet(tale, *words)
    assert held.status == 65
    is_replaced, comes_after = (before, after) == KINDS[0], (before, after) == KINDS[1]
    ticket = "Text for a ticket to the APEL team, to be sent before --accept-key-change (egi)"
    assert (ticket in held.out) != (is_replaced or comes_after)
    delete_what_tickets_say(tale.product, held)
    assert by_month(tale) == ({MAY_: total(100, 200)} if is_replaced or comes_after else {})
    ended = tale.run(*words, ACCEPT)
    assert (ended.status, "Text for a ticket" in ended.out) == (0, comes_after)
    delete_what_tickets_say(tale.product, ended)
    assert by_month(tale) == {MAY_: total(100, 200)}
    assert (table in tables(tale, MAY_)) == is_replaced
    in_format(tale, after)
    tale.ce.insert([job(5, 800)])
    there = tables(tale, MAY_)
    tale.publish()
    assert by_month(tale) == {MAY_: total(100, 200, 800)}
    assert tables(tale, MAY_) == there


@pytest.mark.parametrize(("before", "after"), [*OTHER_KIND, *OF_TWO_TABLES])
def test_rule_10_a_month_of_which_a_run_cannot_be_sent_again_stays_as_it_is(
    tmp_path: Path, before: str, after: str
) -> None:
    """The CE has purged it, and the job store was lost: a ticket would have it deleted for good.

    Totals that replace the sums of single records say these with it.
    """
    tale = begun(tmp_path, before)
    tale.ce.purge([job(1, 100).job_id])
    tale.product.lose_store()
    there = tables(tale, MAY_)
    words = (*MAY, "--format", after)
    run = tale.run if (before, after) == KINDS[0] else partial(quiet, tale)
    ended = [run(*words), run(*words, ACCEPT)]
    delete_what_tickets_say(tale.product, *ended)
    assert by_month(tale) == {MAY_: total(100, 200)}
    if (before, after) == KINDS[0]:
        assert [run.status for run in ended] == [65, 0], ended[1].err
        return
    assert [run.status for run in ended] == [65, 65], ended[1].err
    assert all("1 job of what the receiver has cannot be sent again" in run.err for run in ended), ended[0].err
    assert tables(tale, MAY_) == there


def test_rule_10_a_ticket_that_is_carried_out_after_the_totals_came_loses_none(tmp_path: Path) -> None:
    tale = begun(tmp_path, "car")
    in_format(tale, "apel-summary-0.4")
    held = quiet(tale, *MAY)
    assert held.status == 65
    assert tale.run(*MAY, ACCEPT).status == 0
    delete_what_tickets_say(tale.product, held)
    assert by_month(tale) == {MAY_: total(100, 200)}


@pytest.mark.parametrize(("before", "after"), OTHER_KIND)
def test_rule_10_a_renamed_target_does_not_begin_a_month_anew(tmp_path: Path, before: str, after: str) -> None:
    """The kind is of the receiver's month, whichever target sent it."""
    tale = begun(tmp_path, before)
    there = tables(tale, MAY_)
    targets = tale.product.config["targets"]
    targets["renamed"] = targets.pop("egi") | {"format": after}
    tale.ce.insert([job(5, 800)])
    tale.publish()
    tale.publish()
    assert tables(tale, MAY_) == there


@pytest.mark.parametrize(("before", "after"), OTHER_KIND)
def test_rule_10_a_vo_of_another_target_does_not_begin_a_month_anew(tmp_path: Path, before: str, after: str) -> None:
    tale = begun(tmp_path, before)
    there = tables(tale, MAY_)
    tale.product.config["targets"]["egi"]["vos"] = ["atlas"]
    tale.product.config["targets"]["second"] = tale.target(["cms"]) | {"format": after}
    tale.ce.insert([job(5, 800, user="bob")])
    before_it = sent(tale)
    run = tale.publish()
    assert (run.status, tables(tale, MAY_)) == (65, there) or (run.status, sent(tale)) == (78, before_it)


@pytest.mark.parametrize(("before", "after"), OF_TWO_TABLES)
def test_rule_10_the_round_says_in_which_format_a_month_goes_on(tmp_path: Path, before: str, after: str) -> None:
    tale = begun(tmp_path, before)
    in_format(tale, after)
    tale.ce.insert([job(5, 800)])
    assert before in tale.publish().err


@pytest.mark.parametrize(("before", "after"), [*OTHER_KIND, *OF_TWO_TABLES])
@pytest.mark.parametrize("month", ["delivered", "deleted"])
def test_rules_10_and_22_the_kind_of_a_month_outlives_its_ledger(
    tmp_path: Path, before: str, after: str, month: str
) -> None:
    """It is in the file beside the ledger. A month that was deleted begins anew."""
    tale = begun(tmp_path, before)
    there = tables(tale, MAY_)
    for path in tale.product.state.parent.glob(f"{tale.product.state.name}*"):
        if not path.name.endswith(".generation"):
            path.unlink()
    in_format(tale, after)
    assert quiet(tale).status == 65
    if month == "deleted":
        apel(tale).delete_month(MAY_)
    assert tale.product.run("receiver", month, "egi", "2026-05").status == 0
    tale.ce.insert([job(5, 800)])
    assert tale.publish().status == 0
    assert (tables(tale, MAY_) == there) == (month == "delivered")
    assert by_month(tale)[MAY_] == total(100, 200, 800)
    assert tale.product.run("state", "check").status == 0
