"""Closed months: one entry a row in the place of those of its runs, and nothing that counts changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from publisher.ledger.checks import disagreements
from publisher.model.entry import CLOSING, JOB_OF_RUN
from publisher.model.job import Epoch, JobId
from publisher.model.totals import CLOSED
from tests.ledger.test_entries import COUNTS, END, HISTORY, MONTH_S, NOW, PENDING, Kept, job
from tests.support.jobs import make_record
from tests.support.ledgers import opener

MONTH = 24322  # of END: 2026-11
NEXT = END + MONTH_S
_BALANCES = "SELECT row_key, jobs, wall_s, cpu_s, first_end, last_end FROM balance ORDER BY row_key"
_COUNTS = "SELECT month, host, jobs FROM delivered_count ORDER BY month, host"


@pytest.fixture(params=("sqlite", "postgres"))
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    path = tmp_path / "state" / "publishing.db"
    with closing(opener(request.param, request)(path)) as database:
        opened = Kept(database)
        yield opened
        assert opened.is_sound(), disagreements(database)


def close(kept: Kept, before: int = MONTH + 1) -> tuple[int, str, int]:
    return tuple(kept.ledger.targets.close("egi", before, NOW))  # type: ignore[return-value]


def old(number: int, **values: Any) -> Any:
    return job(number, submitted_at=Epoch(END - 600), **values)


def entries(kept: Kept) -> list[tuple[Any, ...]]:
    found = kept.ask("SELECT run, jobs, wall_s, cpu_s, ended_at, local_id, state FROM entry ORDER BY run")
    return [(bytes(run), *rest) for run, *rest in found]


def test_rule_20_a_row_of_a_closed_month_has_one_entry_with_the_number_of_its_runs(kept: Kept) -> None:
    kept.deliver(*(make_record(old(number)) for number in (1, 2, 3)))
    kept.deliver(make_record(job(9, ended_at=Epoch(NEXT), submitted_at=Epoch(NEXT - 600))))
    balances, counts = kept.ask(_BALANCES), kept.ask(_COUNTS)
    assert close(kept) == (MONTH + 1, "", 3)
    closed, open_one = entries(kept)
    assert closed[0][JOB_OF_RUN] == CLOSING
    assert closed[1:] == (3, 180, 156, END + 3, str(END + 1), COUNTS)
    assert open_one[1:5] == (1, 60, 59, NEXT)
    assert (kept.ask(_BALANCES), kept.ask(_COUNTS)) == (balances, counts)
    assert kept.ledger.targets.closed("egi") == MONTH + 1
    assert close(kept) == (MONTH + 1, "", 0)


def test_rule_20_history_goes_with_its_month(kept: Kept) -> None:
    kept.deliver(make_record(old(1)))
    kept.deliver(make_record(old(1, wall_s=90)))
    balances = kept.ask(_BALANCES)
    assert close(kept)[2] == 2
    assert [row[1:4] for row in entries(kept)] == [(1, 90, 51)]
    assert kept.ask(_BALANCES) == balances


def test_rule_20_a_run_stays_whose_job_ran_again_after_the_month(kept: Kept) -> None:
    """Which run of a job was the first is told by the entries of both."""
    again = old(1, local_id="77", ended_at=Epoch(NEXT))
    kept.deliver(make_record(old(1)), make_record(old(2)))
    kept.deliver(make_record(again))
    close(kept)
    known = kept.ledger.entries.recorded("egi", [again.run_key])
    assert {old(1).run_key, again.run_key} == set(known)
    assert [row[1] for row in entries(kept)] == [1, 1, 1]  # and the closing entry of the other


def test_rule_20_a_run_stays_that_was_submitted_after_it_ended(kept: Kept) -> None:
    """Only its entry tells that it was delivered: by its submission, it could be a new one."""
    kept.deliver(make_record(job(1, submitted_at=Epoch(NEXT))))
    assert close(kept) == (MONTH + 1, "", 0)
    assert len(kept.ledger.entries.recorded("egi", [job(1, submitted_at=Epoch(NEXT)).run_key])) == 1


def test_rule_20_a_month_with_something_under_way_is_not_closed(kept: Kept) -> None:
    kept.deliver(make_record(old(1)))
    message = kept.prepare(make_record(old(2)))
    assert close(kept) == (MONTH, "messages are under way or in doubt", 0)
    assert (kept.states(), kept.ledger.targets.closed("egi")) == ({COUNTS: 1, PENDING: 1}, 0)
    kept.accept(message)
    assert close(kept)[1:] == ("", 2)


def test_rule_20_months_are_closed_in_order_and_none_is_passed_over(kept: Kept) -> None:
    kept.deliver(make_record(old(1)))
    kept.deliver(make_record(job(9, ended_at=Epoch(NEXT), submitted_at=Epoch(NEXT - 600))))
    assert close(kept, MONTH + 3) == (MONTH + 3, "", 2)
    assert [row[1] for row in entries(kept)] == [1, 1]
    assert kept.ledger.targets.closed("egi") == MONTH + 3


def test_rule_20_a_closing_entry_is_nobody_s_delivery(kept: Kept) -> None:
    """History, and runs of earlier settings, are those of runs."""
    kept.deliver(make_record(old(1)))
    close(kept)
    assert kept.ask(f"SELECT entries, keyed FROM posting WHERE settings = '{CLOSED}'") == [(1, False)]
    assert CLOSED not in kept.ledger.earlier.settings_since("egi", 0)[1]
    assert kept.ledger.earlier.runs("egi", "policy").at_most == 0
    assert kept.ledger.outbox.trace(JobId("job1"), [old(1).run_key]) == []


def test_rule_20_a_run_that_leaves_a_closed_row_leaves_its_ends_as_they_were(kept: Kept) -> None:
    """The ends of a row are found again in its entries: the closing entry has both."""
    kept.deliver(make_record(old(1)), make_record(old(5)))
    close(kept)
    (before,) = kept.ask(_BALANCES)
    kept.deliver(make_record(old(9)))
    assert kept.ask(_BALANCES)[0][5] == END + 9
    kept.deliver(make_record(old(9, ended_at=Epoch(NEXT))))
    kept.ledger.left.confirm_deleted("egi", MONTH)
    assert kept.ask(_BALANCES)[0] == before
    assert kept.states() == {COUNTS: 2, HISTORY: 1}


class Broken(Exception):
    """The ledger is gone."""


def test_rule_20_what_breaks_off_at_any_statement_closes_nothing(kept: Kept) -> None:
    kept.deliver(*(make_record(old(number)) for number in (1, 2, 3)))
    before, statement = (entries(kept), kept.ask(_BALANCES)), 0
    while True:
        statement += 1
        with breaking_at(kept, statement) as is_broken:
            close(kept)
        if kept.ledger.targets.closed("egi"):  # what failed, came after it
            break
        assert is_broken
        assert (entries(kept), kept.ask(_BALANCES)) == before
        assert kept.is_sound()
    assert statement > 20
    assert [row[1] for row in entries(kept)] == [3]


@contextmanager
def breaking_at(kept: Kept, statement: int) -> Iterator[list[bool]]:
    """Have the database fail at a statement; what is given is empty if there was none."""
    broken: list[bool] = []
    left = [statement]

    def counted(execute: Callable[..., Any]) -> Callable[..., Any]:
        def execute_one(*given: Any, **also: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                broken.append(True)
                raise Broken
            return execute(*given, **also)

        return execute_one

    with pytest.MonkeyPatch.context() as patch:
        for name in ("execute", "execute_many", "insert_returning_id"):
            patch.setattr(kept.database, name, counted(getattr(kept.database, name)))
        with suppress(Broken):
            yield broken
