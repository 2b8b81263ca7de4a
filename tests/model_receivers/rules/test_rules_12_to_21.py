"""Rows left behind, balances, and what another publisher sent: rules 12, 14 and 21."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.model_receivers.receivers.apel import Total
from tests.model_receivers.rules.site import (
    ACCEPT,
    MAY,
    SINGLE,
    SUMS,
    apel,
    assert_in_order,
    by_month,
    by_vo,
    job,
    of_ledger,
    once,
    outcome,
    quiet,
    records,
    sent,
    total,
)
from tests.model_receivers.site import Answer
from tests.model_receivers.stories.events import delete_what_tickets_say
from tests.model_receivers.test_named_stories import Tale, june, may
from tests.model_receivers.world import ended_again

in_each_form = pytest.mark.parametrize("form", [*SINGLE, *SUMS])
with_sums = pytest.mark.parametrize("form", SUMS)
with_records = pytest.mark.parametrize("form", SINGLE)
WITHOUT_ZEROS = ("apel-summary-0.2", "apel-normalised-summary-0.4")
NORMALISED = "apel-normalised-summary-0.4"
ZEROS = "apel-summary-0.4"
FORCE = ("publish", "--force", "--json")
MAY_, JUNE_ = (2026, 5), (2026, 6)


def by_cores(tale: Tale) -> dict[int, Total]:
    """Return what counts, by number of cores: each is a row."""
    return {key.processors: held for key, held in tale.rows().items()}


def alone(folder: Path, form: str) -> Tale:
    """One job of four cores, alone in its row, beside two of one core."""
    tale = Tale(folder, form)
    tale.ce.insert([job(1, 100, cpus=4), job(2, 200), job(3, 400)])
    assert tale.publish().status == 0
    assert by_cores(tale) == {4: total(100), 1: total(200, 400)}
    return tale


def give_cores(tale: Tale, number: int, cpus: int) -> None:
    tale.ce.correct(replace(tale.ce.rows[f"job000{number}ce1"], cpus=cpus))


# 12: rows left behind


def test_rule_12_zeros_go_where_the_data_moved_the_last_run(tmp_path: Path) -> None:
    tale = alone(tmp_path, ZEROS)
    give_cores(tale, 1, 1)
    assert tale.publish().status == 0
    assert by_cores(tale) == {1: total(100, 200, 400)}
    assert {key.processors: row["NumberOfJobs"] for key, row in apel(tale).summaries.items()} == {4: 0, 1: 3}
    assert_in_order(tale)


@pytest.mark.parametrize("form", [*SINGLE, *WITHOUT_ZEROS])
def test_rule_12_otherwise_the_change_is_held_before_anything_of_it_is_sent(tmp_path: Path, form: str) -> None:
    """Its new row too; other changes and new runs of the round go."""
    tale = alone(tmp_path, form)
    give_cores(tale, 1, 8)
    tale.ce.correct(replace(tale.ce.rows["job0002ce1"], wall_s=600, cpu_user_s=300))
    tale.ce.insert([job(4, 800), job(5, 1600, cpus=2)])
    for _ in range(3):
        assert tale.publish().status == 65
        assert by_cores(tale) == {4: total(100), 1: total(600, 400, 800), 2: total(1600)}
    give_cores(tale, 1, 4)
    assert tale.publish().status == 0, "it is as it was"
    assert_in_order(tale)


@pytest.mark.parametrize("form", WITHOUT_ZEROS)
def test_rule_12_a_change_that_moves_a_run_into_another_month_is_held_in_both(tmp_path: Path, form: str) -> None:
    tale = alone(tmp_path, form)
    tale.ce.again(ended_again(tale.ce.rows["job0001ce1"], june(2)))
    tale.ce.insert([job(6, 800, end=june(3), cpus=4)])
    assert tale.publish().status == 65
    assert by_month(tale) == {MAY_: total(100, 200, 400), JUNE_: total(800)}


@pytest.mark.parametrize("form", [*SINGLE, *SUMS])
def test_rule_12_what_empties_a_row_together_is_planned_together(tmp_path: Path, form: str) -> None:
    """Two runs of a row leave it, with pages and messages between them, one of them for a row that is held."""
    tale = Tale(tmp_path, form)
    tale.product.config["targets"]["egi"]["batch_records"] = 1
    tale.ce.insert([job(1, 100, cpus=4), *(job(number, 10, user="bob") for number in range(2, 9)), job(9, 200, cpus=4)])
    assert tale.publish().status == 0
    before = tale.rows()
    give_cores(tale, 1, 8)
    give_cores(tale, 9, 2)
    run = tale.publish()
    if form == ZEROS:
        assert (run.status, by_cores(tale)[8], by_cores(tale)[2]) == (0, total(100), total(200))
        assert 4 not in by_cores(tale)
        return
    assert (run.status, tale.rows()) == (65, before)
    give_cores(tale, 9, 4)
    assert tale.publish().status == 0, "the row keeps one of them: the other may go"
    assert (by_cores(tale)[8], by_cores(tale)[4]) == (total(100), total(200))


@with_records
def test_rule_12_a_new_run_keeps_no_row_of_single_records_alive(tmp_path: Path, form: str) -> None:
    """It may be refused alone. Once it is accepted, it does."""
    tale = alone(tmp_path, form)
    give_cores(tale, 1, 1)
    tale.ce.insert([job(4, 800, cpus=4)])
    assert tale.publish().status == 65
    assert by_cores(tale) == {4: total(100, 800), 1: total(200, 400)}
    assert tale.publish().status == 0
    assert by_cores(tale) == {4: total(800), 1: total(100, 200, 400)}


@with_sums
def test_rule_12_a_new_run_keeps_a_row_of_totals_alive(tmp_path: Path, form: str) -> None:
    """Both go in one message."""
    tale = alone(tmp_path, form)
    give_cores(tale, 1, 1)
    tale.ce.insert([job(4, 800, cpus=4)])
    before = sent(tale)
    assert tale.publish().status == 0
    assert (by_cores(tale), sent(tale)) == ({4: total(800), 1: total(100, 200, 400)}, before + 1)


@pytest.mark.parametrize("form", WITHOUT_ZEROS)
def test_rule_12_what_stays_all_the_same_is_recorded_with_its_balance(tmp_path: Path, form: str) -> None:
    """For the check too, until its deletion is confirmed; the run that left counts once with us."""
    tale = alone(tmp_path, form)
    give_cores(tale, 1, 1)
    asked = quiet(tale, "publish", "--force")
    assert asked.status == 65
    assert tale.run(*FORCE, ACCEPT).status == 0
    assert by_cores(tale) == {4: total(100), 1: total(100, 200, 400)}
    for _ in range(2):
        check = tale.product.run("sync", "--check", "--json", "--months", "all")
        (accepted,) = check.json["accepted"]
        (stale,) = accepted["stale"]
        assert (check.status, stale["jobs"], stale["wall_s"], stale["cpu_s"]) == (65, 1, 100, 50)
        assert "processors 4" in stale["row"]
        tale.publish()
    delete_what_tickets_say(tale.product, asked)
    assert by_cores(tale) == {1: total(100, 200, 400)}
    assert tale.product.run("sync", "--deleted", "2026-05", "--target", "egi").status == 0
    assert tale.product.run("sync", "--check", "--months", "all").status == 0
    assert_in_order(tale)


@pytest.mark.parametrize("form", SINGLE)
def test_rule_12_a_ticket_is_withdrawn_when_a_run_comes_back_to_its_row(tmp_path: Path, form: str) -> None:
    tale = alone(tmp_path, form)
    give_cores(tale, 1, 1)
    assert tale.publish().status == 65
    assert tale.run(*FORCE, ACCEPT).status == 0
    assert tale.product.run("sync", "--check", "--months", "all").status == 65
    tale.ce.insert([job(4, 800, cpus=4)])
    assert tale.publish().status == 0
    check = tale.product.run("sync", "--check", "--months", "all")
    assert "processors 4" not in check.out
    delete_what_tickets_say(tale.product, check)
    assert by_cores(tale) == {4: total(800), 1: total(100, 200, 400)}


def delete_what_is_asked_for(tale: Tale) -> None:
    """Have the rows deleted that `sync --check` names as left at the receiver."""
    check = tale.product.run("sync", "--check", "--months", "all")
    apel(tale).delete_rows([key for key in tale.rows() if f"processors {key.processors}:" in check.out])


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


# 14: balances


class Statements:
    """Every statement that this process makes of a ledger, by transaction."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.transactions: list[list[str]] = [[]]
        connect = sqlite3.connect

        def traced(database: Any, *more: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(database, *more, **options)
            if "publishing.db" in str(database):
                connection.set_trace_callback(self._take)
            return connection

        patch.setattr(sqlite3, "connect", traced)

    def _take(self, statement: str) -> None:
        if statement.startswith(("BEGIN", "COMMIT", "ROLLBACK")):
            self.transactions.append([])
        self.transactions[-1].append(statement)

    def that_write_balances(self) -> list[list[str]]:
        sums = r"\s*(INSERT INTO balance \(row_key, jobs, wall_s, cpu_s, first_end, last_end\)|UPDATE balance SET (jobs|first))"
        numbers = re.compile(sums, re.DOTALL)
        return [one for one in self.transactions if any(map(numbers.match, one))]


@in_each_form
def test_rule_14_balances_are_written_where_entries_begin_or_cease_to_count_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Neither when a message is prepared, nor when it is in doubt, given up or refused."""
    statements = Statements(monkeypatch)
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100), job(2, 200)])
    for answer in (Answer.AWAY, Answer.REFUSED, Answer.LOST):
        tale.product.answer = once(*[answer] * 9)
        tale.publish()
        tale.product.run("quarantine", "release", "--all")
        assert statements.that_write_balances() == []
        assert of_ledger(tale, "SELECT * FROM balance WHERE jobs <> 0") == []
    tale.product.answer = once()
    tale.publish()
    tale.ce.correct(replace(tale.ce.rows["job0001ce1"], wall_s=600, cpu_user_s=300))
    tale.publish()
    tale.benchmark(12)
    delete_what_tickets_say(tale.product, tale.run(*MAY), tale.run(*MAY, ACCEPT))
    tale.run("sync", "--deleted", "2026-05", "--target", "egi")
    tale.product.run("state", "backup", str(tmp_path / "backup.db"))
    found = statements.that_write_balances()
    assert len(found) >= 3
    for transaction in found:
        assert any(re.match(r"\s*UPDATE entry SET state = [013]\b", one) for one in transaction), transaction


@in_each_form
def test_rule_14_state_check_adds_entries_up_and_compares(tmp_path: Path, form: str) -> None:
    tale = Tale(tmp_path, form)
    tale.ce.insert([job(1, 100), job(2, 200), job(3, 400, user="bob")])
    tale.publish()
    sums = of_ledger(tale, "SELECT sum(jobs), sum(wall_s), sum(cpu_s) FROM balance")
    assert sums == of_ledger(tale, "SELECT sum(jobs), sum(wall_s), sum(cpu_s) FROM entry WHERE state = 1")
    assert sums == [tuple(total(100, 200, 400))]
    assert tale.product.run("state", "check").status == 0
    for column in ("jobs", "wall_s", "cpu_s", "first_end", "last_end"):
        change(tale, f"UPDATE balance SET {column} = {column} + 1 WHERE wall_s = 300")
        assert tale.product.run("state", "check").status != 0, column
        change(tale, f"UPDATE balance SET {column} = {column} - 1 WHERE wall_s IN (300, 301)")
    assert tale.product.run("state", "check").status == 0


def change(tale: Tale, statement: str) -> None:
    with closing(sqlite3.connect(tale.product.state)) as database, database:
        assert database.execute(statement).rowcount == 1


def three_of_a_row(folder: Path, form: str) -> Tale:
    """Three jobs of May in one row, of which another one has earlier and later ends."""
    tale = Tale(folder, form)
    tale.ce.insert([*(job(number, 100 * number) for number in (1, 2, 3)), job(4, 7, cpus=8, end=may(1, 1))])
    tale.ce.insert([job(5, 7, cpus=8, end=may(29))])
    assert tale.publish().status == 0
    assert ends(tale, form) == counted_ends(tale) == (may(1), may(3))
    return tale


def ends(tale: Tale, form: str) -> tuple[int, int]:
    """Return the ends of the row of May that APEL was told."""
    table = apel(tale).normalised if form == NORMALISED else apel(tale).summaries
    (row,) = (row for key, row in table.items() if key.month == MAY_ and key.processors == 1)
    return row["EarliestEndTime"], row["LatestEndTime"]


def counted_ends(tale: Tale) -> tuple[int, int]:
    """Return the ends of that row as the ledger has them: no other job of May has one core."""
    question = (
        "SELECT first_end, last_end FROM balance JOIN row_key ON row_key.id = row_key WHERE month = ? AND jobs > 0"
    )
    rows = of_ledger(tale, question, 2026 * 12 + 4)
    (row,) = (one for one in rows if one[1] < may(9))
    return row[0], row[1]


def leave(tale: Tale, number: int, how: str) -> None:
    one = tale.ce.rows[f"job000{number}ce1"]
    if how == "for another month":
        tale.ce.again(ended_again(one, june(2)))
    elif how == "for another row":
        give_cores(tale, number, 8)
    else:
        tale.ce.correct(replace(one, wall_s=3_000_000_000))
        tale.publish()
        tale.product.run("quarantine", "drop", "--all")
        tale.run(*MAY, ACCEPT)
    assert tale.publish().status == 0


@with_sums
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("how", ["for another month", "for another row", "for good"])
def test_rule_14_ends_are_found_anew_when_a_run_leaves(tmp_path: Path, form: str, number: int, how: str) -> None:
    tale = three_of_a_row(tmp_path, form)
    leave(tale, number, how)
    first, last = sorted({1, 2, 3} - {number})
    assert counted_ends(tale) == (may(first), may(last))
    assert tale.product.run("state", "check").status == 0


@pytest.mark.parametrize(("number", "first", "last"), [(1, 2, 3), (3, 1, 2)])
def test_rule_14_the_receiver_is_told_the_ends_of_the_runs_that_are_left(
    tmp_path: Path, number: int, first: int, last: int
) -> None:
    tale = three_of_a_row(tmp_path, "apel-summary-0.4")
    leave(tale, number, "for another month")
    assert ends(tale, "apel-summary-0.4") == (may(first), may(last))


# 21: what another publisher sent


ENDED = "2026-05-20T00:00:00Z"
ARC_6 = """\
Site: EXAMPLE-SITE
Month: 5
Year: 2026
GlobalUserName: /DC=org/DC=example/CN=ann
VO: atlas
VOGroup: /atlas
VORole: /Role=NULL
SubmitHost: {host}
Infrastructure: grid
EarliestEndTime: {first}
LatestEndTime: {last}
WallDuration: {wall}
CpuDuration: {cpu}
NumberOfJobs: {jobs}
Processors: 1
NodeCount: 1
ServiceLevelType: HEPSPEC
ServiceLevel: 1.0
%%
"""


def after_jura(folder: Path, form: str) -> Tale:
    """jura-ng sent the sums of jobs 1 and 2; job 25 is ours."""
    tale = Tale(folder, form)
    host = "arcrest:https://ce1.example.org:443/arex"
    rows = ARC_6.format(host=host, first=may(1), last=may(2), wall=300, cpu=150, jobs=2)
    apel(tale).take(f"APEL-summary-job-message: v0.2\n{rows}".encode())
    tale.product.config["targets"]["egi"] |= {
        "start": "2026-05",
        "jura_until": ENDED,
        "jura_format": "apel-summary-0.2",
    }
    tale.product.config["records"] = {"key_style": "jura", "benchmark": {"type": "HEPSPEC", "value": 1.0}}
    tale.ce.insert([job(1, 100), job(2, 200), job(25, 800)])
    return tale


BY_JURA = ("apel-summary-0.2", "apel-summary-0.4")
of_jura = pytest.mark.parametrize("form", BY_JURA)


@of_jura
def test_rule_21_entries_are_as_that_arc_made_them(tmp_path: Path, form: str) -> None:
    """Ours is added to its row: every run once."""
    tale = after_jura(tmp_path, form)
    assert tale.total() == total(100, 200)
    assert tale.publish().status == 0
    (row,) = tale.rows().values()
    assert row == total(100, 200, 800)
    found = of_ledger(
        tale, "SELECT wall_s, settings FROM entry JOIN posting ON posting.id = posting WHERE state = 1 ORDER BY wall_s"
    )
    assert [(wall, settings == "jura-ng") for wall, settings in found] == [(100, True), (200, True), (800, False)]
    assert_in_order(tale)


@of_jura
@pytest.mark.parametrize("accept", [(), (ACCEPT,)])
def test_rule_21_no_plan_changes_a_guess(tmp_path: Path, form: str, accept: tuple[str, ...]) -> None:
    """Neither other data nor other settings; a restart is a run of ours. A republish changes it."""
    tale = after_jura(tmp_path, form)
    tale.publish()
    tale.ce.correct(replace(tale.ce.rows["job0001ce1"], wall_s=600, cpu_user_s=300))
    assert tale.run(*FORCE, *accept).status == 0
    assert tale.total() == total(100, 200, 800)
    tale.ce.again(ended_again(tale.ce.rows["job0002ce1"], may(26), local_job_id="9001", wall_s=20, cpu_user_s=10))
    assert tale.run(*FORCE, *accept).status == 0
    assert tale.total() == total(100, 200, 800, 20)
    asked = tale.run(*MAY)
    delete_what_tickets_say(tale.product, asked, tale.run(*MAY, ACCEPT))
    assert tale.total() == total(600, 200, 800, 20)
    assert_in_order(tale)


@of_jura
@pytest.mark.parametrize("why", ["VO", "dropped"])
def test_rule_21_no_plan_retracts_a_guess(tmp_path: Path, form: str, why: str) -> None:
    """A round that accepts a change of keys takes out runs of ours that are not wanted any more, and none of these."""
    tale = after_jura(tmp_path, form)
    tale.ce.insert([job(26, 1600, user="bob")])
    assert tale.publish().status == 0
    assert by_vo(tale) == {"atlas": total(100, 200, 800), "cms": total(1600)}
    if why == "VO":
        tale.product.config["targets"]["egi"]["vos"] = ["cms"]
    else:
        tale.ce.correct(replace(tale.ce.rows["job0001ce1"], wall_s=3_000_000_000))
        tale.publish()
        tale.product.run("quarantine", "drop", "--all")
    assert tale.run(*FORCE, ACCEPT).status in (0, 65)
    assert by_vo(tale)["atlas"] == (total(100, 200) if why == "VO" else total(100, 200, 800))
    assert tale.product.run("state", "check").status == 0


@of_jura
def test_rule_21_republish_retracts_a_guess(tmp_path: Path, form: str) -> None:
    tale = after_jura(tmp_path, form)
    tale.publish()
    tale.product.config["targets"]["egi"]["vos"] = ["cms"]
    delete_what_tickets_say(tale.product, quiet(tale, *MAY), tale.run(*MAY, ACCEPT))
    assert by_vo(tale) == {}


@of_jura
def test_rule_21_guesses_whose_rows_were_purged_go_on_counting(tmp_path: Path, form: str) -> None:
    tale = after_jura(tmp_path, form)
    tale.publish()
    tale.ce.purge(["job0001ce1"])
    tale.ce.insert([job(27, 1600)])
    assert tale.publish().status == 0
    tale.run(*MAY, ACCEPT)
    assert tale.total() == total(100, 200, 800, 1600)


def test_rule_21_single_records_that_were_guessed_are_not_changed_by_rounds(tmp_path: Path) -> None:
    """They go once more as jura-ng sent them, so that none is missing; changed values wait for a republish."""
    tale = after_jura(tmp_path, "car")
    tale.product.config["targets"]["egi"]["jura_format"] = "car"
    apel(tale).summaries.clear()
    assert tale.publish().status == 0
    assert sorted(records(tale).values()) == [100, 200, 800]
    tale.ce.correct(replace(tale.ce.rows["job0001ce1"], wall_s=600, cpu_user_s=300))
    tale.publish()
    assert outcome(tale.publish())["outcome"] == "nothing"
    assert by_month(tale)[MAY_].jobs == 3


@of_jura
def test_rule_21_runs_that_were_passed_over_before_the_start_are_listed_and_not_added(
    tmp_path: Path, form: str
) -> None:
    """Written when jura-ng had seen a later end. Those since our start are of rows that go out in any case."""
    tale = after_jura(tmp_path, form)
    tale.ce.insert([job(3, 400), job(4, 1600, end=may(1) - 5 * 86_400)])
    run = tale.publish()
    lost = outcome(run)["lost"]
    assert [one["job"] for one in lost["jobs"]] == ["job0004ce1"]
    assert by_month(tale) == {MAY_: total(100, 200, 400, 800)}
    assert outcome(quiet(tale))["lost"] is None
    assert_in_order(tale)
    assert by_month(tale) == {MAY_: total(100, 200, 400, 800)}
