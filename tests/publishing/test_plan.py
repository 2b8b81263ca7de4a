"""What becomes of runs and rows, decided without a ledger or a receiver (rules 6, 7, 12 and 21)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from publisher.model.entry import Entry, Recorded, RecordKey, RowFields, RowId, RowKey, RunKey, Usage
from publisher.model.job import Epoch
from publisher.model.totals import BY_JURA
from publisher.publishing.plan import reasons
from publisher.publishing.plan.actions import ActionCounts, Example, Kind, PlanLine, merged
from publisher.publishing.plan.rows import RowChanges, hold_back, retracted, rows_emptied
from publisher.publishing.plan.runs import plan_record, plan_run, plan_unwanted, retraction_of

MONTH = 24_321
END = Epoch(1_794_000_000)
SETTINGS = "settings of now"


def fields(name: str) -> RowFields:
    return RowFields(name.encode(), f'{{"VO":"{name}"}}')


def entry(run: int, row: str = "a", *, wall_s: int = 60, digest: bytes = b"1", month: int = MONTH) -> Entry:
    record = RecordKey("SITE", "", str(run), Epoch(END + run))
    return Entry(RunKey(b"%015d" % run), record, RowKey(month, fields(row)), wall_s, 50, digest)


def recorded(run: int, row: str = "a", **values: Any) -> Recorded:
    there = entry(run, row)
    usage = Usage(1, there.wall_s, there.cpu_s)
    own = there.run, there.record, there.row.id, usage, there.digest, SETTINGS
    known = Recorded(*own, pending=False, first=1)
    return known._replace(**values)


# Runs


def test_a_run_without_an_entry_is_added() -> None:
    assert plan_run(entry(1), None, again=False).kind is Kind.ADD


def test_a_run_with_an_equal_entry_is_kept() -> None:
    assert plan_run(entry(1), recorded(1), again=False).kind is Kind.KEEP
    assert plan_run(entry(1), recorded(1), again=True).kind is Kind.KEEP


def test_rule_7_settings_move_a_run_only_when_its_own_data_changed_or_by_republish() -> None:
    elsewhere = entry(1, "b")
    assert plan_run(elsewhere, recorded(1, "a"), again=False).kind is Kind.KEEP
    assert plan_run(elsewhere, recorded(1, "a"), again=True).kind is Kind.CHANGE
    assert plan_run(elsewhere._replace(digest=b"2"), recorded(1, "a"), again=False).kind is Kind.CHANGE


def test_a_run_under_way_is_kept() -> None:
    changed = entry(1, wall_s=90, digest=b"2")
    assert plan_run(changed, recorded(1, pending=True), again=True).kind is Kind.KEEP


def test_rule_21_what_another_publisher_sent_is_changed_by_republish_alone() -> None:
    changed, guess = entry(1, wall_s=90, digest=b"2"), recorded(1, settings=BY_JURA)
    assert plan_run(changed, guess, again=False).kind is Kind.KEEP
    assert plan_run(changed, guess, again=True).kind is Kind.CHANGE


def test_a_run_that_was_retracted_counts_again_when_it_is_wanted_again() -> None:
    assert plan_run(entry(1), recorded(1, usage=Usage()), again=False).kind is Kind.CHANGE


def test_rule_6_a_run_that_is_not_wanted_is_retracted_on_purpose_only() -> None:
    assert plan_unwanted(recorded(1), again=False).kind is Kind.KEEP
    assert plan_unwanted(recorded(1), again=True).kind is Kind.RETRACT
    assert plan_unwanted(recorded(1), again=False, accepts=True).kind is Kind.RETRACT
    for known in (None, recorded(1, pending=True), recorded(1, usage=Usage())):
        assert plan_unwanted(known, again=True).kind is Kind.KEEP


def test_rule_21_what_another_publisher_sent_is_retracted_by_republish_alone() -> None:
    guess = recorded(1, settings=BY_JURA)
    assert plan_unwanted(guess, again=False, accepts=True).kind is Kind.KEEP
    assert plan_unwanted(guess, again=True).kind is Kind.RETRACT


def test_a_retraction_counts_nothing_in_the_row_of_before() -> None:
    gone = retraction_of(recorded(1, "a"))
    assert (gone.row.id, gone.jobs, gone.wall_s, gone.cpu_s) == (RowId(MONTH, b"a"), 0, 0, 0)


def test_a_single_record_is_sent_again_for_a_reason() -> None:
    same, known = entry(1), recorded(1)
    assert plan_record(same, None, again=False) == reasons.ADD
    assert plan_record(same._replace(digest=b"2"), known, again=False) == reasons.OWN_DATA
    assert plan_record(same, known, again=False) == reasons.RELEASED
    assert plan_record(same, known, again=True) == reasons.KEEP
    assert plan_record(entry(1, "b"), known, again=True) == reasons.OTHER_SETTINGS
    elsewhere = same._replace(record=same.record._replace(site="OTHER"))
    assert plan_record(elsewhere, known, again=True) == reasons.OTHER_SETTINGS


# Actions


def test_actions_add_up_by_month_and_reason_with_three_examples() -> None:
    counts = ActionCounts()
    for number in range(5):
        counts.job(MONTH, reasons.ADD, Example(f"job {number}"))
    counts.add(MONTH, reasons.ADD, rows=2)
    counts.add(MONTH - 1, reasons.EMPTY, rows=1, examples=[Example(row="a row")])
    counts.add(None, reasons.set_aside("end-missing"), jobs=1)
    empty, add, aside = counts.lines()
    assert (empty.month, empty.action, empty.jobs, empty.rows) == (MONTH - 1, reasons.EMPTY, 0, 1)
    assert (add.month, add.jobs, add.rows) == (MONTH, 5, 2)
    assert add.examples == (Example("job 0"), Example("job 1"), Example("job 2"))
    assert (aside.month, aside.action.kind, aside.rows) == (None, Kind.SET_ASIDE, None)
    twice = merged([counts.lines(), counts.lines()])
    assert [(line.jobs, line.rows, len(line.examples)) for line in twice] == [(0, 2, 1), (10, 4, 3), (2, None, 0)]


def test_jobs_that_were_not_counted_stay_unknown() -> None:
    counts = ActionCounts()
    counts.add(MONTH, reasons.ADD, jobs=None)
    counts.job(MONTH, reasons.ADD, Example("job"))
    assert counts.lines() == (PlanLine(MONTH, reasons.ADD, None, None, (Example("job"),)),)


def counted(changes: RowChanges) -> list[tuple[Any, ...]]:
    counts = ActionCounts()
    changes.count(counts)
    return [(line.action, line.jobs, line.rows, [one.job for one in line.examples]) for line in counts.lines()]


def test_what_rows_change_by_is_counted_and_what_was_held_is_not() -> None:
    changes = RowChanges()
    for run in (1, 2):
        changes.add(entry(run), None, SETTINGS, reasons.ADD, f"new {run}")
    changes.add(entry(3, "b"), recorded(3), SETTINGS, reasons.OWN_DATA, "changed")
    changes.add(retraction_of(recorded(4, "c")), recorded(4, "c"), SETTINGS, reasons.RETRACT, "gone")
    add = reasons.ADD, 2, 1, ["new 1", "new 2"]
    assert counted(changes) == [add, (reasons.OWN_DATA, 1, 2, ["changed"]), (reasons.RETRACT, 1, 1, ["gone"])]
    held = hold_back(
        changes, {A: Usage(4, 0, 0), C: Usage(1, 60, 50)}, lambda row: row, lambda _: False, lambda _: False
    )
    assert {move.action: moved.jobs for move, moved in held.moves.items()} == {reasons.RETRACT: ("gone",)}
    assert counted(changes) == [add, (reasons.OWN_DATA, 1, 2, ["changed"])]
    changes.hold((), {A})
    assert counted(changes) == [(reasons.OWN_DATA, 1, 2, ["changed"])]


# Rows


def test_runs_that_come_add_up_in_their_rows() -> None:
    changes = RowChanges()
    for run in (1, 2):
        changes.add(entry(run), None, SETTINGS)
    changes.add(entry(3, "b"), None, SETTINGS)
    deltas = changes.deltas(MONTH)
    assert deltas[RowId(MONTH, b"a")] == (Usage(2, 120, 100), END + 1, END + 2)
    assert deltas[RowId(MONTH, b"b")].usage == Usage(1, 60, 50)
    assert changes.months() == [MONTH]
    assert changes.moving_months() == set()


def test_a_changed_run_takes_away_what_it_counted_before() -> None:
    changes = RowChanges()
    changes.add(entry(1, wall_s=90), recorded(1), SETTINGS)
    changes.add(entry(2, "b", wall_s=70), recorded(2, "a"), SETTINGS)
    deltas = changes.deltas()
    assert deltas[RowId(MONTH, b"a")].usage == Usage(-1, 90 - 60 - 60, -50)
    assert deltas[RowId(MONTH, b"b")].usage == Usage(1, 70, 50)
    assert changes.moving_months() == {MONTH}


def emptying(old: str = SETTINGS) -> RowChanges:
    """The last run of row a comes to row b."""
    changes = RowChanges()
    changes.add(entry(1, "b", digest=b"2"), recorded(1, "a", settings=old), SETTINGS)
    return changes


A, B, C = (RowId(MONTH, name) for name in (b"a", b"b", b"c"))


def test_rule_12_zeros_go_by_themselves_where_the_data_moved_the_last_run() -> None:
    counts = {A: Usage(1, 60, 50), B: Usage()}
    emptied = rows_emptied(emptying(), counts, lambda row: row)
    assert (set(emptied.by_data), set(emptied.by_settings)) == ({A}, set())
    assert not hold_back(emptying(), counts, lambda row: row, lambda _: True, lambda _: False).keys


def test_rule_12_without_zeros_the_run_stays_where_it_counts() -> None:
    counts, changes = {A: Usage(1, 60, 50), B: Usage()}, emptying()
    held = hold_back(changes, counts, lambda row: row, lambda _: False, lambda _: False)
    assert (held.keys, set(held.rows)) == ([A], {A})
    assert changes.deltas() == {}


def test_rule_12_settings_empty_no_row_by_themselves() -> None:
    counts, changes = {A: Usage(1, 60, 50), B: Usage()}, emptying("settings of before")
    emptied = rows_emptied(changes, counts, lambda row: row)
    assert (set(emptied.by_data), set(emptied.by_settings)) == (set(), {A})
    assert hold_back(changes, counts, lambda row: row, lambda _: True, lambda _: False).keys == [A]


def test_a_row_with_other_runs_is_not_emptied() -> None:
    counts = {A: Usage(2, 120, 100), B: Usage()}
    assert not hold_back(emptying("other"), counts, lambda row: row, lambda _: False, lambda _: False).keys


def test_a_new_run_keeps_the_row_of_totals_that_another_one_leaves() -> None:
    changes = emptying()
    changes.add(entry(9, "a"), None, SETTINGS)
    assert not hold_back(
        changes, {A: Usage(1, 60, 50), B: Usage()}, lambda row: row, lambda _: False, lambda _: False
    ).keys


def test_rows_that_the_receiver_does_not_tell_apart_are_one() -> None:
    counts = {A: Usage(1, 60, 50), B: Usage()}
    assert not hold_back(emptying(), counts, lambda _: "one", lambda _: False, lambda _: False).keys


def test_holding_one_row_may_hold_the_next() -> None:
    changes = emptying()
    changes.add(entry(2, "c", digest=b"2"), recorded(2, "b"), SETTINGS)
    counts = {A: Usage(1, 60, 50), B: Usage(1, 60, 50), C: Usage()}
    # While run 1 comes to b, b is kept by it; once it is held, run 2 would empty b.
    assert hold_back(changes, counts, lambda row: row, lambda _: False, lambda _: False).rows == {A, B}
    assert changes.deltas() == {}


def test_a_retraction_that_empties_a_row_waits_for_consent() -> None:
    changes, known = RowChanges(), recorded(1)
    changes.add(retraction_of(known), known, SETTINGS)
    held = hold_back(changes, {A: Usage(1, 60, 50)}, lambda row: row, lambda _: True, lambda _: False)
    assert held.keys == [A]
    assert retracted(held.moves, lambda row: row) == {A: 1}


def test_runs_that_come_to_a_row_can_be_taken_out() -> None:
    changes = emptying()
    changes.add(entry(5, "b"), None, SETTINGS)
    changes.add(entry(6, "c"), None, SETTINGS)
    changes.hold((), [B])
    assert set(changes.deltas()) == {C}


@pytest.mark.parametrize("seed", range(200))
def test_what_is_left_after_holding_adds_up_and_leaves_no_row_behind(seed: int) -> None:
    """Each run is followed by itself: an oracle that knows no sums."""
    chance = random.Random(seed)
    rows = ["a", "b", "c", "d"]
    was = {run: chance.choice(rows) for run in range(chance.randrange(1, 9))}
    settings = {run: chance.choice([SETTINGS, "before"]) for run in was}
    now = {run: chance.choice(rows) for run in was} | {run: chance.choice(rows) for run in range(20, 22)}
    zeros = chance.random() < 0.5
    changes = RowChanges()
    for run, row in now.items():
        known = recorded(run, was[run], settings=settings[run]) if run in was else None
        changes.add(entry(run, row), known, SETTINGS)
    counts = {RowId(MONTH, row.encode()): Usage() for row in rows}
    for row in was.values():
        at = RowId(MONTH, row.encode())
        counts[at] = counts[at].plus(Usage(1, 60, 50))
    held = hold_back(changes, counts, lambda row: row, lambda _: zeros, lambda _: False)

    stay = {run for run, row in was.items() if RowId(MONTH, row.encode()) in held.rows and now[run] != row}
    there = Counter(was[run] if run in stay else row for run, row in now.items())
    for row in rows:
        at = RowId(MONTH, row.encode())
        delta = changes.deltas().get(at)
        assert counts[at].jobs + (delta.usage.jobs if delta else 0) == there[row]
        if counts[at].jobs and not there[row]:  # emptied: by the data alone, and zeros go
            assert zeros
            leavers = [run for run in was if was[run] == row]
            assert all(settings[run] == SETTINGS for run in leavers)
