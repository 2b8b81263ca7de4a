"""Which run counts, and under which key: rules 3, 4 and 5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.model_receivers.rules.site import (
    ACCEPT,
    KEEPERS,
    MAY,
    SINGLE,
    SUMS,
    assert_in_order,
    by_month,
    by_vo,
    job,
    keeping,
    kept,
    once,
    quiet,
    records,
    total,
)
from tests.model_receivers.site import Answer
from tests.model_receivers.stories.events import delete_what_tickets_say
from tests.model_receivers.test_named_stories import Tale, june, may
from tests.model_receivers.world import ended_again

in_each_form = pytest.mark.parametrize("form", [*SINGLE, *SUMS])
with_sums = pytest.mark.parametrize("form", SUMS)
with_records = pytest.mark.parametrize("form", SINGLE)
at_keepers = pytest.mark.parametrize("kind", KEEPERS)
SITE = "example-site"


# 3: desired at a receiver is the union of what its targets want


@in_each_form
def test_rule_3_desired_is_the_union_of_what_the_targets_want(tmp_path: Path, form: str) -> None:
    """Single records of a VO may be wanted by both; of totals, the configuration is refused."""
    shared = ["cms"] if form in SINGLE else []
    tale = Tale(tmp_path, form, {"egi": ["atlas", "cms"], "second": [*shared, "bio"]})
    tale.ce.insert([job(1, 100), job(2, 200, user="bob"), job(3, 400, user="cyd")])
    assert tale.publish().status == 0
    assert by_vo(tale) == {"atlas": total(100), "cms": total(200), "bio": total(400)}
    assert_in_order(tale)


@with_sums
@pytest.mark.parametrize("command", [("publish", "--force"), MAY])
def test_rule_3_a_target_empties_no_row_of_which_another_one_wants_a_run(
    tmp_path: Path, form: str, command: tuple[str, ...]
) -> None:
    """Both of a row, one of which only the first target wanted: the row keeps the other run."""
    tale = Tale(tmp_path, form, {"egi": ["atlas"], "second": ["bio"]})
    tale.ce.insert([job(1, 100, user="ann"), job(2, 200, user="ann"), job(3, 400, user="cyd")])
    assert tale.publish().status == 0
    tale.product.config["targets"]["second"]["vos"] = ["atlas"]
    tale.product.config["targets"]["egi"]["vos"] = ["cms"]
    tale.run(*command, ACCEPT)
    tale.run(*command, ACCEPT)
    assert by_vo(tale)["atlas"] == total(100, 200)


@with_sums
def test_rule_3_two_targets_that_speak_otherwise_of_one_run_do_not_fight_over_it(tmp_path: Path, form: str) -> None:
    """The second one's rule puts it into another VO; only its republish moves it, and no round moves it back."""
    tale = Tale(tmp_path, form, {"egi": ["atlas"], "second": ["cms"]})
    rule = {"field": "user", "pattern": "/DC=org/DC=example/CN=ann", "vo": "cms", "override": True}
    tale.product.config["targets"]["second"]["vo_rules"] = [rule]
    tale.ce.insert([job(1, 100), job(2, 200)])
    assert tale.publish().status == 0
    assert by_vo(tale) == {"atlas": total(100, 200)}
    quiet(tale)
    republish = (*MAY, "--target", "second")
    delete_what_tickets_say(tale.product, quiet(tale, *republish), tale.run(*republish, ACCEPT))
    assert by_vo(tale) == {"cms": total(100, 200)}
    for _ in range(2):
        quiet(tale)
    assert by_vo(tale) == {"cms": total(100, 200)}


# 4: the newest accepted entry counts where a receiver replaces, the first where it keeps


@in_each_form
def test_rule_4_the_newest_accepted_entry_counts(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    changed = job(1, 100)
    tale.ce.insert([changed, job(2, 200)])
    assert tale.publish().status == 0
    tale.ce.correct(replace(changed, wall_s=600, cpu_user_s=300))
    tale.product.answer = lambda: Answer.AWAY
    assert tale.publish().status == 75
    assert by_month(tale) == {(2026, 5): total(100, 200)}, "what was not accepted does not count"
    tale.ce.correct(replace(changed, wall_s=800, cpu_user_s=400))
    tale.product.answer = once()
    assert tale.publish().status == 0
    assert by_month(tale) == {(2026, 5): total(800, 200)}
    assert_in_order(tale)


@in_each_form
def test_rule_4_an_older_entry_in_doubt_does_not_count_after_the_newest(tmp_path: Path, form: str) -> None:
    """Its answer was lost, and the job changed again: what is in doubt goes first, then the newest."""
    tale = Tale(tmp_path, form)
    changed = job(1, 100)
    tale.ce.insert([changed])
    assert tale.publish().status == 0
    tale.ce.correct(replace(changed, wall_s=600, cpu_user_s=300))
    tale.product.answer = once(Answer.LOST, Answer.LOST)
    assert tale.publish().status == 75
    tale.ce.correct(replace(changed, wall_s=800, cpu_user_s=400))
    tale.publish()
    tale.product.answer = once()
    assert tale.publish().status == 0
    assert by_month(tale) == {(2026, 5): total(800)}
    assert_in_order(tale)


@in_each_form
def test_rule_4_a_restarted_job_counts_with_each_of_its_runs(tmp_path: Path, form: str) -> None:
    """In the row of each, with the newest values of each: also where the later run is corrected and goes on."""
    tale = Tale(tmp_path, form)
    first = job(1, 100)
    tale.ce.insert([first])
    assert tale.publish().status == 0
    second = ended_again(first, june(2), local_job_id="9001", wall_s=400, cpu_user_s=200)
    tale.ce.again(second)
    assert tale.publish().status == 0
    assert by_month(tale) == {(2026, 5): total(100), (2026, 6): total(400)}
    tale.ce.correct(replace(second, wall_s=600, cpu_user_s=300))
    assert tale.publish().status == 0
    assert by_month(tale) == {(2026, 5): total(100), (2026, 6): total(600)}
    for month in ("2026-05", "2026-06"):
        assert tale.run("republish", "--from", month, "--to", month, "--yes").status == 0
    assert by_month(tale) == {(2026, 5): total(100), (2026, 6): total(600)}
    assert_in_order(tale)


@at_keepers
def test_rule_4_the_first_record_counts_where_it_is_kept(tmp_path: Path, kind: str) -> None:
    """Nothing is said to have changed there: the ledger counts what the receiver has."""
    tale = keeping(tmp_path, kind)
    changed = job(1, 100)
    tale.ce.insert([changed, job(2, 200)])
    assert tale.publish().status == 0
    before = kept(tale)
    assert sorted(before.values()) == [(50, may(1)), (100, may(2))]
    tale.ce.correct(replace(changed, wall_s=600, cpu_user_s=300))
    quiet(tale)
    assert tale.run(*MAY).status == 0
    assert kept(tale) == before
    assert tale.product.run("state", "check").status == 0
    found = tale.product.run("receiver", "list", "--json").json["receivers"]
    assert [one["runs"] for one in found] == [2]


@at_keepers
def test_rule_4_a_later_run_has_a_record_id_of_its_own(tmp_path: Path, kind: str) -> None:
    """Each run of three once, in any number of rounds and windows."""
    tale = keeping(tmp_path, kind)
    first = job(1, 100)
    tale.ce.insert([first])
    assert tale.publish().status == 0
    for number, end in ((1, may(5)), (2, may(9))):
        wall_s = 200 << number
        tale.ce.again(ended_again(first, end, local_job_id=f"900{number}", wall_s=wall_s, cpu_user_s=wall_s // 2))
        assert tale.publish().status == 0
    ids = kept(tale)
    assert sorted(ids.values()) == [(50, may(1)), (200, may(5)), (400, may(9))]
    assert tale.run(*MAY).status == 0
    assert tale.publish().status == 0
    assert kept(tale) == ids
    assert tale.product.run("state", "check").status == 0


@at_keepers
def test_rule_4_a_run_restarted_while_the_first_is_in_doubt_waits_for_it(tmp_path: Path, kind: str) -> None:
    """Else it might take the record id of the first, and be thrown away."""
    tale = keeping(tmp_path, kind)
    first = job(1, 100)
    tale.ce.insert([first])
    tale.product.answer = once(*[Answer.LOST] * 9)
    assert tale.publish().status == 75
    tale.ce.again(ended_again(first, may(5), local_job_id="9001", wall_s=400, cpu_user_s=200))
    assert tale.publish().status == 75
    tale.product.answer = once()
    for _ in range(2):
        tale.publish()
    assert sorted(kept(tale).values()) == [(50, may(1)), (200, may(5))]
    assert_in_order(tale)


@at_keepers
def test_rule_4_a_later_run_of_another_month_keeps_its_id_when_that_month_is_deleted(tmp_path: Path, kind: str) -> None:
    """June is deleted and sent anew: the first run of May is still there under the job's id."""
    tale = keeping(tmp_path, kind)
    first = job(1, 100)
    tale.ce.insert([first])
    assert tale.publish().status == 0
    tale.ce.again(ended_again(first, june(2), local_job_id="9001", wall_s=400, cpu_user_s=200))
    assert tale.publish().status == 0
    ids = kept(tale)
    (model,) = tale.product.models.values()
    model.delete_month((2026, 6))
    assert len(kept(tale)) == 1
    assert tale.run("republish", "--from", "2026-06", "--to", "2026-06", "--yes").status == 0
    assert kept(tale) == ids


# 5: the key of a record is kept


@with_records
def test_rule_5_a_record_stays_under_its_end_and_in_its_month_whatever_the_source_says(
    tmp_path: Path, form: str
) -> None:
    tale = Tale(tmp_path, form)
    moved = job(1, 100)
    tale.ce.insert([moved, job(2, 200)])
    assert tale.publish().status == 0
    tale.ce.again(ended_again(moved, june(3), wall_s=600, cpu_user_s=300))
    assert tale.publish().status == 0
    assert records(tale) == {(SITE, "1001", may(1)): 600, (SITE, "1002", may(2)): 200}
    assert by_month(tale) == {(2026, 5): total(600, 200)}
    tale.run("republish", "--from", "2026-06", "--to", "2026-06", "--yes")
    assert_in_order(tale)
    assert by_month(tale) == {(2026, 5): total(600, 200)}


@with_sums
def test_rule_5_totals_take_the_end_that_the_source_says(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    moved = job(1, 100)
    tale.ce.insert([moved, job(2, 200)])
    assert tale.publish().status == 0
    tale.ce.again(ended_again(moved, june(3), wall_s=600, cpu_user_s=300))
    assert tale.publish().status == 0
    assert by_month(tale) == {(2026, 5): total(200), (2026, 6): total(600)}
    assert_in_order(tale)


@with_records
@pytest.mark.parametrize("what", ["site", "localid_prefix"])
def test_rule_5_rounds_keep_site_prefix_local_id_and_end(tmp_path: Path, form: str, what: str) -> None:
    tale = Tale(tmp_path, form)
    changed = job(1, 100)
    tale.ce.insert([changed, job(2, 200)])
    assert tale.publish().status == 0
    speak_otherwise(tale, what)
    quiet(tale)
    tale.ce.again(ended_again(changed, may(20), wall_s=600, cpu_user_s=300))
    assert tale.publish().status == 0
    assert records(tale) == {(SITE, "1001", may(1)): 600, (SITE, "1002", may(2)): 200}
    assert_in_order(tale)


def speak_otherwise(tale: Tale, what: str) -> tuple[str, str]:
    """Have the site renamed, or local ids prefixed; return the site and the prefix of then."""
    if what == "site":
        tale.product.config["site"] = "OTHER-SITE"
        return "other-site", ""
    tale.product.config["records"]["localid_prefix"] = "c1-"
    return SITE, "c1-"


@with_records
@pytest.mark.parametrize("what", ["site", "localid_prefix"])
def test_rule_5_republish_holds_another_key_and_after_consent_the_old_record_counts_until_it_is_deleted(
    tmp_path: Path, form: str, what: str
) -> None:
    """Also of a run which the accounting data does not have any more: it was loaded."""
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100), job(2, 200)])
    assert tale.publish().status == 0
    tale.ce.purge(["job0002ce1"])
    site, prefix = speak_otherwise(tale, what)
    assert quiet(tale, *MAY).status == 65
    accepted = tale.run(*MAY, ACCEPT)
    before = {(SITE, "1001", may(1)): 100, (SITE, "1002", may(2)): 200}
    new = {(site, f"{prefix}1001", may(1)): 100, (site, f"{prefix}1002", may(2)): 200}
    assert records(tale) == before | new
    assert by_month(tale) == {(2026, 5): total(100, 200, 100, 200)}
    (there,) = tale.product.run("receiver", "list", "--json").json["receivers"]
    assert there["runs"] == 4, "what the receiver counts, the old records too"
    assert tale.product.run("sync", "--check", "--months", "all").status == 65
    delete_what_tickets_say(tale.product, accepted)
    assert records(tale) == new
    assert tale.product.run("sync", "--deleted", "2026-05", "--target", "egi").status == 0
    (there,) = tale.product.run("receiver", "list", "--json").json["receivers"]
    assert there["runs"] == 2
    assert by_month(tale) == {(2026, 5): total(100, 200)}
    assert_in_order(tale)


@with_records
def test_rule_5_a_run_that_was_moved_is_corrected_under_its_new_key(tmp_path: Path, form: str) -> None:
    """Twice moved, then corrected by a round and restarted: each record of the run is named, and only one is corrected."""
    tale = Tale(tmp_path, form)
    first = job(1, 100)
    tale.ce.insert([first, job(2, 200)])
    assert tale.publish().status == 0
    tickets = []
    for prefix in ("c1-", "c2-"):
        tale.product.config["records"]["localid_prefix"] = prefix
        assert quiet(tale, *MAY).status == 65
        tickets.append(tale.run(*MAY, ACCEPT))
    tale.ce.correct(replace(first, wall_s=600, cpu_user_s=300))
    assert tale.publish().status in (0, 65)
    assert records(tale)[SITE, "c2-1001", may(1)] == 600
    tale.ce.again(ended_again(first, may(9), local_job_id="9001", wall_s=800, cpu_user_s=400))
    tale.publish()
    delete_what_tickets_say(tale.product, tale.product.run("sync", "--check", "--months", "all"))
    expected = {("c2-1001", may(1)): 600, ("c2-1002", may(2)): 200, ("c2-9001", may(9)): 800}
    assert {key[1:]: wall for key, wall in records(tale).items()} == expected
    assert tale.product.run("sync", "--deleted", "2026-05", "--target", "egi").status == 0
    assert_in_order(tale)
    assert by_month(tale) == {(2026, 5): total(600, 200, 800)}
