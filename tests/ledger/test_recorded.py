"""What the ledger has of runs at a receiver: one statement a page, by the primary key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import receivers
from publisher.ledger.sql.sums.settlement import Settling
from publisher.ledger.sqlite.connection import open_database, open_ledger_file
from publisher.model.entry import (
    Entry,
    ReceiverName,
    Recorded,
    RecordedRuns,
    RecordKey,
    RowFields,
    RowKey,
    RunKey,
    Usage,
    run_key,
)
from publisher.model.job import Epoch
from tests.support.ledgers import opener

END = Epoch(1_794_000_000)  # 2026-11-06
ROW = RowKey(24322, RowFields.of({"VO": "atlas"}, ("atlas",)))
ENTER_TARGET = """
INSERT INTO target (name, start_rule, selection_digest, receiver) VALUES (:name, '', '', :receiver)"""


class Entered:
    """A database in which entries are written without messages."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.numbers = entries.Numbers()
        self.receivers: dict[str, int] = {}

    def begin(self, target: str, place: str) -> None:
        with self.database.atomic():
            self.receivers[target] = receivers.entered(self.database, target, ReceiverName(place)).number
            self.database.execute(ENTER_TARGET, {"name": target, "receiver": self.receivers[target]})

    def prepare(self, *of_runs: Entry, settings: str = "then", target: str = "egi") -> int:
        posting = entries.Posting(self.receivers[target], 1, settings, 0, of_records=True)
        with self.database.atomic():
            return entries.prepare(self.database, self.numbers, posting, of_runs)

    def count(self, *of_runs: Entry, settings: str = "then", target: str = "egi") -> None:
        posting = self.prepare(*of_runs, settings=settings, target=target)
        with self.database.atomic():
            settling = Settling(self.database, posting)
            settling.of_records()
            settling.write()

    def recorded(self, *runs: RunKey, target: str = "egi") -> dict[RunKey, Recorded]:
        with self.database.reading():
            return entries.recorded(self.database, self.receivers[target], runs)


@pytest.fixture(params=("sqlite", "postgres"))
def entered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Entered]:
    with closing(opener(request.param, request)(tmp_path / "state" / "publishing.db")) as database:
        opened = Entered(database)
        opened.begin("egi", "a place")
        yield opened


def entry(number: int, wall_s: int = 60, local_id: str = "") -> Entry:
    local_id = local_id or str(number)
    run = run_key(END - 3600, f"job{number}", local_id)
    record = RecordKey("EXAMPLE-SITE", "hpc-", local_id, Epoch(END + number))
    return Entry(run, record, ROW, wall_s, 50, b"%d" % number)


def test_a_target_without_a_receiver_has_nothing(entered: Entered) -> None:
    entered.count(entry(1))
    with entered.database.reading():
        assert entries.recorded(entered.database, None, [entry(1).run]) == {}
    assert entered.recorded() == {}


def test_what_counts_is_recorded_as_it_was_sent(entered: Entered) -> None:
    one = entry(1)
    entered.count(one, entry(2))
    assert entered.recorded(one.run, entry(3).run) == {
        one.run: Recorded(one.run, one.record, ROW.id, Usage(1, 60, 50), b"1", "then", False, 1)
    }


def test_what_is_under_way_goes_before_what_counts(entered: Entered) -> None:
    entered.count(entry(1), entry(2))
    entered.prepare(entry(1, wall_s=90), settings="now")
    found = entered.recorded(entry(1).run, entry(2).run)
    assert [(found[entry(one).run].usage.wall_s, found[entry(one).run].settings) for one in (1, 2)] == [
        (90, "now"),
        (60, "then"),
    ]
    assert [found[entry(one).run].pending for one in (1, 2)] == [True, False]
    entered.prepare(entry(1, wall_s=120))
    assert entered.recorded(entry(1).run)[entry(1).run].usage.wall_s == 120  # the latest of both


def test_other_runs_of_a_job_are_recorded_with_it(entered: Entered) -> None:
    entered.count(entry(1), entry(1, local_id="77"), entry(2))
    assert set(entered.recorded(entry(1).run)) == {entry(1).run, entry(1, local_id="77").run}


def test_what_was_replaced_is_not_recorded(entered: Entered) -> None:
    entered.count(entry(1))
    entered.count(entry(1, wall_s=90))
    assert [one.usage.wall_s for one in entered.recorded(entry(1).run).values()] == [90]
    left = entry(1)._replace(record=entry(1).record._replace(site="OTHER-SITE"))
    entered.count(left)
    assert [one.record.site for one in entered.recorded(entry(1).run).values()] == ["OTHER-SITE"]


def test_targets_of_one_place_know_of_each_other(entered: Entered) -> None:
    entered.begin("same", "a place")
    entered.begin("elsewhere", "another place")
    entered.count(entry(1))
    assert set(entered.recorded(entry(1).run, target="same")) == {entry(1).run}
    assert entered.recorded(entry(1).run, target="elsewhere") == {}


def test_a_page_of_many_runs_is_asked_for_in_portions(entered: Entered) -> None:
    entered.count(*(entry(number) for number in range(1, 1200)))
    asked = [entry(number).run for number in range(1300)]
    assert entered.recorded(*asked).keys() == {entry(number).run for number in range(1, 1200)}


def test_a_page_is_one_statement_by_the_primary_key(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "state" / "publishing.db")) as database:
        opened = Entered(database)
        opened.begin("egi", "a place")
        opened.count(entry(1))
    with closing(open_ledger_file(tmp_path / "state" / "publishing.db")) as connection:
        asked: list[str] = []
        connection.set_trace_callback(asked.append)
        found = entries.recorded(cast(Database, connection), 1, [entry(number).run for number in range(400)])
        assert (len(found), len(asked)) == (1, 1)
        steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked[0]}")]
    assert "SEARCH entry USING PRIMARY KEY (receiver=? AND run>? AND run<?)" in steps
    assert [step for step in steps if step.startswith("SCAN") and "CONSTANT" not in step] == ["SCAN asked"]


def test_the_first_run_of_a_job_stays_the_first(entered: Entered) -> None:
    """Whatever is sent again: a receiver that knows jobs only keeps the later run under a key of its own."""
    first, later = entry(1), entry(1, local_id="77")
    entered.count(first)
    entered.count(later)
    entered.count(first._replace(wall_s=90))
    found = RecordedRuns(entered.recorded(first.run))
    recorded = [found.get(run) for run in (first.run, later.run)]
    assert [one.first for one in recorded if one] == [1, 2]
    assert [found.is_later_run(one.run) for one in (first, later)] == [False, True]
    assert [[one.run for one in found.others(run)] for run in (first.run, later.run)] == [[later.run], [first.run]]
    assert found.is_later_run(entry(1, local_id="78").run)
    entered.prepare(entry(1, local_id="78"))
    pending = RecordedRuns(entered.recorded(first.run))
    assert pending.is_later_run(entry(1, local_id="78").run)
    assert not pending.is_later_run(first.run)
    assert not RecordedRuns({}).is_later_run(first.run)


def test_a_run_that_counts_nothing_is_no_other_run(entered: Entered) -> None:
    entered.count(entry(1), entry(1, local_id="77"))
    entered.count(entry(1)._replace(jobs=0, wall_s=0, cpu_s=0))
    found = RecordedRuns(entered.recorded(entry(1).run))
    assert [one.run for one in found.others(entry(1).run)] == [entry(1, local_id="77").run]
    assert found.others(entry(1, local_id="77").run) == []
