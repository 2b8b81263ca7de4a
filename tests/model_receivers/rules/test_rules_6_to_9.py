"""When a run counts no more, and what sends it again: rules 6 to 9."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import publisher.cli.site
from tests.model_receivers.receivers.apel import Total
from tests.model_receivers.rules.site import (
    ACCEPT,
    MAY,
    SINGLE,
    SUMS,
    assert_in_order,
    by_month,
    by_vo,
    job,
    of_ledger,
    once,
    outcome,
    quiet,
    records,
    rewrite,
    sent,
    total,
)
from tests.model_receivers.site import Answer
from tests.model_receivers.stories.events import delete_what_tickets_say
from tests.model_receivers.test_named_stories import Tale, june, may
from tests.model_receivers.world import Ce, ended_again

in_each_form = pytest.mark.parametrize("form", [*SINGLE, *SUMS])
in_a_form_of_each_kind = pytest.mark.parametrize("form", ["car", "apel-summary-0.4"])
with_sums = pytest.mark.parametrize("form", SUMS)
with_records = pytest.mark.parametrize("form", SINGLE)
NORMALISED = "apel-normalised-summary-0.4"
FORCE = ("publish", "--force", "--json")


def two_vos(folder: Path, form: str) -> Tale:
    """Two jobs of one row, and one of another VO."""
    tale = Tale(folder, form)
    tale.ce.insert([job(1, 100), job(2, 200), job(3, 400, user="bob")])
    assert tale.publish().status == 0
    assert by_vo(tale) == {"atlas": total(100, 200), "cms": total(400)}
    return tale


# 6: what retracts


def move_the_start(tale: Tale) -> None:
    tale.product.config["targets"]["egi"]["start"] = "2026-06"


def purge(tale: Tale) -> None:
    tale.ce.purge(["job0001ce1", "job0003ce1"])


def empty_file(tale: Tale) -> None:
    """The accounting data begins anew."""
    tale.ce.purge(list(tale.ce.rows))
    tale.ce.insert([job(9, 1600, end=june(2))])


NOT_LOOKED_AT: dict[str, Callable[[Tale], None]] = {"start": move_the_start, "purged": purge, "begun anew": empty_file}


@in_each_form
@pytest.mark.parametrize("why", NOT_LOOKED_AT)
def test_rule_6_that_a_run_was_not_looked_at_retracts_nothing(tmp_path: Path, form: str, why: str) -> None:
    """Neither a round that accepts everything nor a republish, whole or in part."""
    tale = two_vos(tmp_path, form)
    NOT_LOOKED_AT[why](tale)
    for words in (FORCE, (*FORCE, ACCEPT), MAY, (*MAY, ACCEPT)):
        assert tale.run(*words).status == 0
        assert by_month(tale)[2026, 5] == total(100, 200, 400)
    part = ("republish", "--from", "2026-05-03T00:00:00Z", "--to", "2026-05-04T00:00:00Z", "--yes", ACCEPT)
    assert tale.run(*part).status == 0
    assert by_month(tale)[2026, 5] == total(100, 200, 400)
    assert tale.product.run("state", "check").status == 0


@with_records
def test_rule_6_a_limit_retracts_nothing(tmp_path: Path, form: str) -> None:
    tale = two_vos(tmp_path, form)
    tale.ce.insert([job(4, 800), job(5, 1600)])
    assert tale.run(*FORCE, "--limit", "1", ACCEPT).status == 0
    assert tale.run(*FORCE, "--limit", "1", ACCEPT).status == 0
    assert by_month(tale)[2026, 5] == total(100, 200, 400, 800, 1600)


@in_each_form
def test_rule_6_a_source_that_cannot_be_read_retracts_nothing(tmp_path: Path, form: str) -> None:
    tale = two_vos(tmp_path, form)
    whole = tale.ce.path.read_bytes()
    tale.ce.path.write_bytes(b"no database" * 1000)
    for words in (FORCE, (*FORCE, ACCEPT), MAY, (*MAY, ACCEPT)):
        assert tale.run(*words).status == 66
    tale.ce.path.write_bytes(whole)
    for words in ((*FORCE, ACCEPT), (*MAY, ACCEPT)):
        assert tale.run(*words).status == 0
    assert by_vo(tale) == {"atlas": total(100, 200), "cms": total(400)}


@in_each_form
def test_rule_6_a_retired_source_retracts_nothing(tmp_path: Path, form: str) -> None:
    """Its rows share one with those of the source that stays."""
    tale = Tale(tmp_path, form)
    other = Ce(tmp_path, "ce2", 2)
    tale.product.config["source"].append(other.source)
    tale.ce.insert([job(1, 100)])
    other.insert([replace(job(2, 200), job_id="job0002ce2"), replace(job(3, 400, user="bob"), job_id="job0003ce2")])
    assert tale.publish().status == 0
    tale.product.config["source"].pop()
    path = str(other.path)
    shutil.rmtree(other.control)
    assert tale.product.run("source", "retire", path).status == 0
    for words in (FORCE, (*FORCE, ACCEPT), MAY, (*MAY, ACCEPT)):
        assert tale.run(*words).status == 0
        assert by_vo(tale) == {"atlas": total(100, 200), "cms": total(400)}


def deselect_the_vo(tale: Tale) -> None:
    tale.product.config["targets"]["egi"]["vos"] = ["cms"]


def deselect_the_status(tale: Tale) -> None:
    tale.product.config["records"]["statuses"] = ["failed"]


def drop(tale: Tale) -> None:
    """The data of two jobs became such that no receiver takes them, and the administrator drops them."""
    for number in (1, 2):
        tale.ce.correct(replace(tale.ce.rows[f"job000{number}ce1"], wall_s=3_000_000_000))
    assert quiet(tale).status == 65
    assert tale.product.run("quarantine", "drop", "--all").status == 0


UNWANTED: dict[str, Callable[[Tale], None]] = {"VO": deselect_the_vo, "status": deselect_the_status, "dropped": drop}
TAKEN: dict[str, dict[str, Total]] = {"VO": {"cms": total(400)}, "status": {}, "dropped": {"cms": total(400)}}
by_every_way = pytest.mark.parametrize("why", UNWANTED)
on_purpose = pytest.mark.parametrize("words", [(*FORCE, ACCEPT), (*MAY, ACCEPT)])


@with_sums
@by_every_way
@on_purpose
def test_rule_6_what_is_not_wanted_is_retracted_on_purpose(
    tmp_path: Path, form: str, why: str, words: tuple[str, ...]
) -> None:
    """With zeros, or a ticket; and it comes back when it is wanted again."""
    tale = two_vos(tmp_path, form)
    UNWANTED[why](tale)
    assert quiet(tale).status == 0
    assert quiet(tale, *MAY).status == 65
    assert by_vo(tale) == {"atlas": total(100, 200), "cms": total(400)}
    asked = quiet(tale, *MAY)
    delete_what_tickets_say(tale.product, asked, tale.run(*words))
    assert by_vo(tale) == TAKEN[why]
    assert tale.product.run("state", "check").status == 0
    if why == "VO":
        tale.product.config["targets"]["egi"]["vos"] = ["atlas", "cms"]
        tale.publish()
        tale.run(*MAY)
        assert by_vo(tale) == {"atlas": total(100, 200), "cms": total(400)}


@with_records
@by_every_way
@on_purpose
def test_rule_6_single_records_are_never_retracted(tmp_path: Path, form: str, why: str, words: tuple[str, ...]) -> None:
    """No message can take one back."""
    tale = two_vos(tmp_path, form)
    UNWANTED[why](tale)
    quiet(tale)
    tale.run(*words)
    tale.run(*words)
    assert by_vo(tale) == {"atlas": total(100, 200), "cms": total(400)}
    (there,) = tale.product.run("receiver", "list", "--json").json["receivers"]
    assert there["runs"] == 3


@with_sums
@on_purpose
def test_rule_6_another_target_that_wants_the_run_keeps_it(tmp_path: Path, form: str, words: tuple[str, ...]) -> None:
    """Also one whose start is later than the job's end: what it wants is not a question of time."""
    tale = two_vos(tmp_path, form)
    deselect_the_vo(tale)
    heir = tale.target(["atlas"]) | {"start": "2026-06"}
    tale.product.config["targets"]["heir"] = heir
    tale.run(*words)
    tale.run(*words)
    assert by_vo(tale) == {"atlas": total(100, 200), "cms": total(400)}


@with_sums
@on_purpose
def test_rule_6_both_runs_of_a_restarted_job_whose_vo_is_deselected_are_retracted(
    tmp_path: Path, form: str, words: tuple[str, ...]
) -> None:
    """The first one was loaded before A-REX restarted it."""
    tale = Tale(tmp_path, form)
    first = job(1, 100)
    tale.ce.insert([first, job(3, 400, user="bob")])
    tale.publish()
    tale.ce.again(ended_again(first, may(9), local_job_id="9001", wall_s=800, cpu_user_s=400))
    tale.publish()
    deselect_the_vo(tale)
    asked = quiet(tale, *MAY)
    delete_what_tickets_say(tale.product, asked, tale.run(*words))
    assert by_vo(tale) == {"cms": total(400)}


# 7: settings concern runs without an entry


def other_site(tale: Tale) -> None:
    tale.product.config["site"] = "OTHER-SITE"


def other_identity(tale: Tale) -> None:
    tale.product.config["records"]["identity"] = "withheld"


SETTINGS: dict[str, Callable[[Tale], None]] = {
    "benchmark": lambda tale: tale.benchmark(12),
    "VO rule": lambda tale: tale.vo_rule("ann", "cms"),
    "site": other_site,
    "identity": other_identity,
}
under_other_settings = pytest.mark.parametrize("setting", SETTINGS)


@in_each_form
@under_other_settings
def test_rule_7_settings_concern_runs_without_an_entry(tmp_path: Path, form: str, setting: str) -> None:
    """One that has an entry gets another row when its own data changed; a republish moves the others."""
    if setting == "benchmark" and form == NORMALISED:
        setting = "VO rule"  # no benchmark is in the key
    tale = Tale(tmp_path, form)
    changed = job(1, 100)
    tale.ce.insert([changed, job(2, 200)])
    assert tale.publish().status == 0
    (before,) = tale.rows()
    SETTINGS[setting](tale)
    quiet(tale)
    tale.ce.insert([job(3, 400)])
    assert tale.publish().status == 0
    assert {key: held for key, held in tale.rows().items() if key == before} == {before: total(100, 200)}
    (new,) = tale.rows().keys() - {before}
    assert tale.rows()[new] == total(400)
    tale.ce.correct(replace(changed, wall_s=800, cpu_user_s=400))
    assert tale.publish().status == 0
    is_bound = form in SINGLE and setting == "site"  # the record key has it
    expected = {before: total(800, 200), new: total(400)} if is_bound else {before: total(200), new: total(400, 800)}
    assert tale.rows() == expected
    asked = quiet(tale, *MAY)
    assert asked.status == 65
    delete_what_tickets_say(tale.product, asked, tale.run(*MAY, ACCEPT))
    assert tale.rows() == {new: total(800, 200, 400)}


@in_each_form
def test_rule_7_a_posting_keeps_the_digest_of_its_settings(tmp_path: Path, form: str) -> None:
    """Of those that it was made under: also when a round of other settings sends it after a failure."""
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100)])
    assert tale.publish().status == 0
    tale.benchmark(12)
    tale.ce.insert([job(2, 200)])
    tale.product.answer = once(*[Answer.LOST] * 9)
    assert tale.publish().status == 75
    tale.benchmark(13)
    tale.ce.insert([job(3, 400)])
    tale.product.answer = once()
    assert tale.publish().status == 0
    tale.benchmark(12)
    tale.ce.insert([job(4, 800)])
    assert tale.publish().status == 0
    found = of_ledger(
        tale, "SELECT wall_s, settings FROM entry JOIN posting ON posting.id = posting WHERE state = 1 ORDER BY wall_s"
    )
    first, second, third, fourth = (settings for _, settings in found)
    assert (len({first, second, third}), second) == (3, fourth)
    rows = {10: total(100), 12: total(200, 800), 13: total(400)}
    assert {key.level: held for key, held in tale.rows().items()} == (
        {0: total(100, 200, 400, 800)} if form == NORMALISED else rows
    )


@in_each_form
def test_rule_7_what_stands_under_earlier_settings_is_counted_until_it_is_moved(tmp_path: Path, form: str) -> None:
    """Also runs that are gone, which were loaded: one that A-REX restarted, and one that was purged."""
    tale = Tale(tmp_path, form)
    first = job(1, 100)
    tale.ce.insert([first, job(2, 200), job(3, 400), job(4, 800, end=june(2))])
    tale.publish()
    tale.ce.again(ended_again(first, may(9), local_job_id="9001", wall_s=1600, cpu_user_s=800))
    tale.publish()
    tale.ce.purge(["job0003ce1"])
    tale.benchmark(12)
    found = tale.run("plan", "--json").json["targets"]["egi"]["earlier_settings"]
    assert (found["jobs"], found["months"], found["at_most"]) == (5, ["2026-05", "2026-06"], 5)
    counted = found["counted"]
    tale.product.later(hours=50)
    assert tale.product.run("status", "--json").json["targets"]["egi"]["earlier_settings"]["counted"] == counted
    for words in (("status",), ("statement", "2026-06")):
        out = tale.product.run(*words).out
        assert counted[:10] in out
        assert "`publisher republish --from 2026-0" in out


# 8: the digest is of the run's own values


VALUES: dict[str, str | int] = {
    "StatusID": "failed",
    "EndTime": may(7),
    "UsedWalltime": 600,
    "UsedCPUUserTime": 300,
    "UsedCPUKernelTime": 7,
    "NodeCount": 2,
    "CPUCount": 8,
    "UserID": "/DC=org/DC=example/CN=eve",
    "VOID": "bio",
    "FQANID": "/atlas/Role=production",
    "QueueID": "long",
    "BenchmarkID": "HEPSPEC:10.5",
}
OTHERS: dict[str, str | int] = {
    "ExitCode": 3,
    "UsedMemory": 77,
    "UsedVirtMem": 77,
    "UsedScratch": 77,
    "StageInVolume": 77,
    "StageOutVolume": 77,
}


@in_a_form_of_each_kind
@pytest.mark.parametrize("column", VALUES)
def test_rule_8_each_value_that_counts_sends_the_run_again(tmp_path: Path, form: str, column: str) -> None:
    """Once, and whatever becomes of its row: the plan gives the reason."""
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100), job(2, 200), job(3, 400)])
    assert tale.publish().status == 0
    rewrite(tale, "job0001ce1", column, VALUES[column])
    lines = tale.run("plan", "--json").json["targets"]["egi"]["actions"]
    changes = [line for line in lines if line["action"] == "change"]
    if column == "EndTime" and form in SINGLE:
        # The record keeps its end, and with it everything that it says.
        assert changes == []
        quiet(tale)
        return
    assert [(line["jobs"], line["reason"]) for line in changes] == [(1, "their own data changed after they were sent")]
    assert tale.publish().status == 0
    assert outcome(quiet(tale))["outcome"] == "nothing"
    assert tale.total().jobs == 3


@in_a_form_of_each_kind
@pytest.mark.parametrize("column", OTHERS)
def test_rule_8_no_other_value_does(tmp_path: Path, form: str, column: str) -> None:
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100), job(2, 200)])
    assert tale.publish().status == 0
    rewrite(tale, "job0001ce1", column, OTHERS[column])
    assert outcome(quiet(tale))["outcome"] == "nothing"


def upgrade(tale: Tale, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publisher.cli.site, "__version__", "9.9.9")


def charge(tale: Tale, patch: pytest.MonkeyPatch) -> None:
    tale.product.config["records"]["charges"] = {"formula": "NumCPUs * RunTime * 3", "unit": "CPUh"}


def other_secret(tale: Tale, patch: pytest.MonkeyPatch) -> None:
    (tale.product.folder / "secret").write_text("fedcba9876543210")
    tale.product.config["credentials"]["key"] = "/nowhere/other-key.pem"  # it is read anew


@in_each_form
@pytest.mark.parametrize("change", [upgrade, charge, other_secret])
def test_rule_8_upgrade_charges_and_secret_send_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, change: Callable[[Tale, pytest.MonkeyPatch], None]
) -> None:
    """Nor does a late job make the others of its month go again."""
    tale = Tale(tmp_path, form)
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    records: dict[str, Any] = tale.product.config["records"]
    records["identity"] = {"mode": "pseudonym", "secret_file": str(secret)}
    records["charges"] = {"formula": "NumCPUs * RunTime", "unit": "CPUh"}
    tale.ce.insert([job(1, 100), job(2, 200)])
    assert tale.publish().status == 0
    (user,) = {key.user for key in tale.rows()}
    change(tale, monkeypatch)
    assert outcome(quiet(tale))["outcome"] == "nothing"
    tale.ce.insert([job(3, 400, user="bob")])
    assert tale.publish().status == 0
    assert tale.product.arrived[-1][1].count(b"1001") == 0
    assert {key.vo: held for key, held in tale.rows().items()} == {"atlas": total(100, 200), "cms": total(400)}
    assert (len({key.user for key in tale.rows()} - {user})) == 1


# 9: two runs under one record key


def twins(first: int, second: int) -> tuple[Any, Any]:
    """Two jobs with one local id and end; these are their wall times, and so the later submitted is the shorter."""
    made = [job(number, wall_s, end=may(9), local_id="4711") for number, wall_s in ((1, first), (2, second))]
    return made[0], made[1]


def wall(tale: Tale) -> int:
    (found,) = records(tale).values()
    return found


def set_aside(tale: Tale) -> list[str]:
    return [one["job"] for one in tale.product.run("quarantine", "list", "--json").json["quarantined"]]


@with_records
@pytest.mark.parametrize(("first", "second"), [(100, 200), (200, 100)])
def test_rule_9_the_run_without_an_accepted_entry_is_set_aside(
    tmp_path: Path, form: str, first: int, second: int
) -> None:
    """Whichever was submitted later, also when the accepted one changes."""
    tale = Tale(tmp_path, form)
    one, other = twins(first, second)
    tale.ce.insert([one])
    assert tale.publish().status == 0
    tale.ce.insert([other])
    assert quiet(tale).status == 65
    assert set_aside(tale) == ["job0002ce1"]
    tale.ce.correct(replace(one, wall_s=600, cpu_user_s=300))
    assert tale.publish().status in (0, 65)
    tale.run(*MAY)
    assert (wall(tale), set_aside(tale)) == (600, ["job0002ce1"])


@with_records
@pytest.mark.parametrize("batch", [1, 500])
def test_rule_9_of_two_new_runs_the_one_submitted_later_is_set_aside(tmp_path: Path, form: str, batch: int) -> None:
    tale = Tale(tmp_path, form)
    tale.product.config["targets"]["egi"]["batch_records"] = batch
    longer, shorter = twins(200, 100)
    assert longer.submit_time < shorter.submit_time
    tale.ce.insert([longer, shorter])
    assert tale.publish().status == 65
    assert (wall(tale), set_aside(tale)) == (200, ["job0002ce1"])


@with_records
def test_rule_9_a_release_closes_the_entry_of_the_run_whose_record_was_replaced(tmp_path: Path, form: str) -> None:
    """What the receiver counts is one run; the replaced one is set aside from then on, in rounds and windows."""
    tale = Tale(tmp_path, form)
    one, other = twins(200, 100)
    tale.ce.insert([one])
    tale.publish()
    tale.ce.insert([other, job(3, 400)])
    tale.publish()
    assert tale.product.run("quarantine", "release", "job0002ce1").status == 0
    assert tale.publish().status == 0
    assert by_month(tale) == {(2026, 5): total(100, 400)}
    (there,) = tale.product.run("receiver", "list", "--json").json["receivers"]
    assert there["runs"] == 2
    assert of_ledger(tale, "SELECT wall_s FROM entry WHERE state IN (1, 3) ORDER BY wall_s") == [(100,), (400,)]
    assert tale.product.run("state", "check").status == 0
    tale.ce.correct(replace(one, wall_s=600, cpu_user_s=300))
    before = sent(tale)
    tale.publish()
    tale.run(*MAY)
    assert by_month(tale) == {(2026, 5): total(100, 400)}
    assert sent(tale) == before + 1  # of the window
    assert tale.product.run("state", "check").status == 0


@with_records
def test_rule_9_a_released_run_in_doubt_replaces_nothing_until_it_is_accepted(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    one, other = twins(200, 100)
    tale.ce.insert([one])
    tale.publish()
    tale.ce.insert([other])
    tale.publish()
    assert tale.product.run("quarantine", "release", "job0002ce1").status == 0
    tale.product.answer = once(*[Answer.LOST] * 9)
    assert tale.publish().status == 75
    assert of_ledger(tale, "SELECT wall_s FROM entry WHERE state = 1") == [(200,)]
    tale.product.answer = once()
    assert tale.publish().status == 65
    assert (wall(tale), set_aside(tale)) == (100, ["job0001ce1"])
    assert of_ledger(tale, "SELECT wall_s FROM entry WHERE state = 1") == [(100,)]
    assert_in_order(tale)


@with_records
def test_rule_9_of_two_new_runs_the_one_whose_row_comes_later_is_set_aside(tmp_path: Path, form: str) -> None:
    """Whichever was submitted first: a round reads its jobs once."""
    tale = Tale(tmp_path, form)
    shorter, longer = twins(100, 200)
    assert longer.submit_time < shorter.submit_time
    tale.ce.insert([shorter, longer])
    assert tale.publish().status == 65
    assert (wall(tale), set_aside(tale)) == (100, ["job0002ce1"])
