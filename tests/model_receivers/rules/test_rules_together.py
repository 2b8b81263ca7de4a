"""Two rules at once: where one of them says that a run stays, and another one that it goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.model_receivers.rules.site import (
    ACCEPT,
    MAY,
    SINGLE,
    SUMS,
    assert_in_order,
    by_month,
    by_vo,
    job,
    quiet,
    records,
    total,
)
from tests.model_receivers.stories.events import delete_what_tickets_say
from tests.model_receivers.test_named_stories import Tale, june, may
from tests.model_receivers.world import ended_again

with_sums = pytest.mark.parametrize("form", SUMS)
with_records = pytest.mark.parametrize("form", SINGLE)
MAY_, JUNE_ = (2026, 5), (2026, 6)
SITE = "example-site"


def restarted(tale: Tale, *, end: int = 0) -> None:
    """Job 1 ran again under another local id."""
    again = {"local_job_id": "9001", "wall_s": 800, "cpu_user_s": 400}
    tale.ce.again(ended_again(tale.ce.rows["job0001ce1"], end or may(9), **again))


@with_records
def test_rules_4_and_5_both_runs_of_a_restarted_job_are_moved(tmp_path: Path, form: str) -> None:
    """The first was loaded before A-REX restarted it: the ticket names the old records of both."""
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100), job(2, 200)])
    tale.publish()
    restarted(tale)
    assert tale.publish().status == 0
    tale.product.config["records"]["localid_prefix"] = "c1-"
    assert quiet(tale, *MAY).status == 65
    ended = tale.run(*MAY, ACCEPT)
    delete_what_tickets_say(tale.product, ended)
    assert {key[1]: wall for key, wall in records(tale).items()} == {"c1-1001": 100, "c1-1002": 200, "c1-9001": 800}
    assert tale.product.run("sync", "--deleted", "2026-05", "--target", "egi").status == 0
    assert_in_order(tale)
    assert by_month(tale) == {MAY_: total(100, 200, 800)}


@with_sums
@pytest.mark.parametrize("accept", [(), (ACCEPT,)])
def test_rules_3_and_4_a_vo_moves_while_one_of_its_jobs_is_restarted(
    tmp_path: Path, form: str, accept: tuple[str, ...]
) -> None:
    """Then both targets republish the month, the first of them too."""
    tale = Tale(tmp_path, form, {"egi": ["atlas", "cms"], "second": ["bio"]})
    tale.ce.insert([job(1, 100), job(2, 200), job(3, 400, user="bob")])
    tale.publish()
    restarted(tale, end=june(2))
    tale.product.config["targets"]["egi"]["vos"] = ["cms"]
    tale.product.config["targets"]["second"]["vos"] = ["atlas", "bio"]
    assert tale.publish().status == 0
    for target in ("egi", "second", "egi"):
        assert tale.run(*MAY, "--target", target, *accept).status == 0
    assert by_vo(tale) == {"atlas": total(100, 200), "cms": total(400)}
    assert by_vo(tale, JUNE_) == {"atlas": total(800)}
    assert tale.product.run("state", "check").status == 0


@with_sums
def test_rules_6_and_8_a_run_that_changed_while_it_was_not_wanted_comes_back_as_it_is(
    tmp_path: Path, form: str
) -> None:
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100), job(2, 200), job(3, 400, user="bob")])
    tale.publish()
    tale.product.config["targets"]["egi"]["vos"] = ["cms"]
    delete_what_tickets_say(tale.product, quiet(tale, *MAY), tale.run(*MAY, ACCEPT))
    assert by_vo(tale) == {"cms": total(400)}
    tale.ce.correct(replace(tale.ce.rows["job0001ce1"], wall_s=600, cpu_user_s=300))
    restarted_too = ended_again(tale.ce.rows["job0002ce1"], may(9), local_job_id="9002", wall_s=20, cpu_user_s=10)
    tale.ce.again(restarted_too)
    quiet(tale)
    tale.product.config["targets"]["egi"]["vos"] = ["atlas", "cms"]
    tale.publish()
    tale.run(*MAY)
    assert by_vo(tale) == {"atlas": total(600, 200, 20), "cms": total(400)}
    assert tale.product.run("state", "check").status == 0


@pytest.mark.parametrize(("before", "after"), [("car", "apel-summary-0.4"), ("apel-summary-0.4", "car")])
def test_rules_5_and_10_a_run_of_a_month_of_the_other_kind_that_ends_again_in_the_next_counts_once(
    tmp_path: Path, before: str, after: str
) -> None:
    """By its single record or in its total, where it is; never there and in the next month as well."""
    tale = Tale(tmp_path, before)
    tale.ce.insert([job(1, 100), job(2, 200)])
    tale.publish()
    tale.product.config["targets"]["egi"]["format"] = after
    tale.ce.again(ended_again(tale.ce.rows["job0001ce1"], june(2)))
    tale.ce.insert([job(4, 800, end=june(3))])
    for words in (("publish", "--force"), ("republish", "--from", "2026-06", "--to", "2026-06", "--yes")):
        tale.run(*words)
        assert tale.total() in (total(100, 200, 800), total(100, 200)), "the month is held, or each counts once"
    restarted(tale, end=june(4))
    tale.publish()
    assert by_month(tale)[MAY_] == total(100, 200)
    assert by_month(tale).get(JUNE_) in (None, total(800), total(800, 800)), "held, or the restarted run as well"


@with_records
def test_rules_7_and_12_a_correction_that_is_taken_back_withdraws_the_ticket(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100, cpus=4), job(2, 200)])
    tale.publish()
    tale.ce.correct(replace(tale.ce.rows["job0001ce1"], cpus=1))
    assert quiet(tale).status == 65
    assert tale.publish(ACCEPT).status == 0
    assert tale.product.run("sync", "--check", "--months", "all").status == 65
    tale.ce.correct(replace(tale.ce.rows["job0001ce1"], cpus=4))
    assert tale.publish().status == 0
    check = tale.product.run("sync", "--check", "--months", "all")
    assert "processors 4" not in check.out
    delete_what_tickets_say(tale.product, check)
    assert {key.processors: held for key, held in tale.rows().items()} == {4: total(100), 1: total(200)}


@with_sums
def test_rules_6_and_12_both_runs_of_a_restarted_job_are_retracted_and_come_back(tmp_path: Path, form: str) -> None:
    """The first one was loaded before A-REX restarted it."""
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100), job(3, 400, user="bob")])
    tale.publish()
    restarted(tale)
    tale.publish()
    assert by_vo(tale) == {"atlas": total(100, 800), "cms": total(400)}
    tale.product.config["targets"]["egi"]["vos"] = ["cms"]
    delete_what_tickets_say(tale.product, quiet(tale, *MAY), tale.run(*MAY, ACCEPT))
    assert by_vo(tale) == {"cms": total(400)}
    tale.product.config["targets"]["egi"]["vos"] = ["atlas", "cms"]
    assert tale.publish().status == 0
    tale.run(*MAY)
    assert by_vo(tale) == {"atlas": total(100, 800), "cms": total(400)}
    assert_in_order(tale)


@with_sums
def test_rules_5_and_7_a_run_moves_by_its_data_to_the_row_and_month_of_todays_settings(
    tmp_path: Path, form: str
) -> None:
    """It ends again in June after the site began to speak otherwise; the others of May stay as they were said."""
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100), job(2, 200)])
    tale.publish()
    tale.vo_rule("ann", "cms")
    tale.ce.again(ended_again(tale.ce.rows["job0001ce1"], june(2)))
    assert tale.publish().status == 0
    assert (by_vo(tale), by_vo(tale, JUNE_)) == ({"atlas": total(200)}, {"cms": total(100)})
    tale.ce.again(ended_again(tale.ce.rows["job0001ce1"], may(20)))
    tale.publish()
    if form != "apel-summary-0.4":
        asked = tale.run("publish", "--force")
        delete_what_tickets_say(tale.product, asked, tale.publish(ACCEPT))
    assert (by_vo(tale), by_vo(tale, JUNE_)) == ({"atlas": total(200), "cms": total(100)}, {})
