"""What waits for an administrator, in both kinds of ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from publisher.ledger.checks import disagreements
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.ledger import sql_ledger
from publisher.model.entry import Usage
from publisher.model.job import JobId
from publisher.model.receiver import NOT_FOUND, HeldRow, HeldRun
from tests.ledger.test_recorded import ROW, Entered, entry
from tests.support.ledgers import opener

NOW = datetime(2026, 11, 20, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


class Waiting(Entered):
    """A ledger in which run 1 counts, and run 2 is held."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.database, self.ledger = database, sql_ledger(database)
        self.begin("egi", "a place")
        self.count(entry(1))
        self.hold(2)

    def hold(self, number: int, reason: str = "why") -> None:
        holds = self.ledger.holds
        holds.hold_runs("egi", [HeldRun(entry(number), JobId(f"job {number}"), ROW.month, reason)], NOW)

    def hold_row(self, shown: bytes, *, again: bool = False) -> None:
        self.ledger.holds.hold_rows("egi", [HeldRow(ROW.id, Usage(1, 60, 50), "why", shown)], NOW, again=again)

    def months(self) -> tuple[int, ...]:
        state = self.ledger.targets.state("egi")
        assert state is not None
        return state.held


@pytest.fixture(params=("sqlite", "postgres"))
def waiting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Waiting]:
    with closing(opener(request.param, request)(tmp_path / "state" / "publishing.db")) as database:
        yield Waiting(database)


def test_rule_15_a_run_is_held_until_its_entry_counts(waiting: Waiting) -> None:
    assert waiting.ledger.holds.runs("egi") == {entry(2).run: "egi"}
    assert waiting.months() == (ROW.month,)
    waiting.count(entry(2))
    assert (waiting.ledger.holds.runs("egi"), waiting.months()) == ({}, ())


def test_rule_15_a_run_that_is_not_found_is_told_with_what_it_would_count(waiting: Waiting) -> None:
    assert waiting.ledger.holds.not_found("egi", (), NOW) == {}, "it is held since"
    assert waiting.ledger.holds.not_found("egi", [entry(2).run], LATER) == {}
    ((run, (target, job)),) = waiting.ledger.holds.not_found("egi", (), LATER).items()
    assert (run, target, job.job_id, job.rule) == (entry(2).run, "egi", "job 2", NOT_FOUND)
    assert job.reason == (
        "it was held back (why), and the accounting data does not have it any more; "
        "it would have counted 1 job, 60 s wall, 50 s CPU in the row VO atlas"
    )


def test_rule_15_a_run_has_one_hold(waiting: Waiting) -> None:
    waiting.hold(2, "another reason")
    ((_, (_, job)),) = waiting.ledger.holds.not_found("egi", (), LATER).items()
    assert "another reason" in job.reason


def test_rule_15_rows_of_rounds_and_of_a_republish_are_apart(waiting: Waiting) -> None:
    holds, of_round, of_republish = waiting.ledger.holds, (ROW.id, b"1"), (ROW.id, b"2")
    waiting.hold_row(b"1")
    waiting.hold_row(b"2", again=True)
    assert holds.rows_shown("egi") == {of_round, of_republish}
    holds.end("egi", [entry(2).run], but=None)
    assert holds.rows_shown("egi") == {of_round, of_republish}
    holds.end("egi", [], but=[ROW.id])
    assert waiting.months() == (ROW.month,)
    holds.end("egi", [], but=[])
    assert (holds.rows_shown("egi"), waiting.months()) == ({of_republish}, ())
    waiting.ledger.earlier.forget("egi", [ROW.month])
    assert holds.rows_shown("egi") == set()


def test_rule_15_holds_are_checked(waiting: Waiting) -> None:
    database = waiting.database
    with database.atomic():
        database.execute("UPDATE hold SET row_key = 999")
    found = [one.what for one in disagreements(database)]
    assert found == ["holds of unknown rows"]
