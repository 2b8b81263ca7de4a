"""What stays at a receiver until it is deleted there, and what is lost with a retired database, in both kinds of ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from publisher.ledger.sql.database import Database
from publisher.ledger.sql.ledger import sql_ledger
from publisher.model.entry import SHADOW, Entry, RecordKey, RowFields, RowKey, Usage
from tests.ledger.test_recorded import ROW, Entered, entry
from tests.support.ledgers import opener

NOW = datetime(2026, 11, 20, tzinfo=UTC)
MONTH = ROW.month
OTHER = RowKey(MONTH, RowFields.of({"VO": "cms"}, ("cms",)))


class Records(Entered):
    """A ledger with two single records of a row."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.ledger = sql_ledger(database)
        self.begin("egi", "a place")
        self.count(entry(1), entry(2))

    def left(self) -> list[tuple[list[tuple[RowKey, Usage]], list[RecordKey]]]:
        return [
            ([(row.key, row.counts) for row in one.rows], [record.key for record in one.records])
            for one in self.ledger.left.months("egi")
        ]


@pytest.fixture(params=("sqlite", "postgres"))
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
    with closing(opener(request.param, request)(tmp_path / "state" / "publishing.db")) as database:
        yield Records(database)


def prefixed(number: int, row: RowKey = ROW) -> Entry:
    one = entry(number)
    return one._replace(record=one.record._replace(localid_prefix="new-"), row=row)


def test_nothing_stays_of_what_counts_or_is_replaced(records: Records) -> None:
    assert records.left() == []
    records.count(entry(1, wall_s=90))
    assert records.left() == []


def test_a_record_under_an_earlier_key_stays_and_its_row_while_no_other_counts_there(records: Records) -> None:
    records.count(prefixed(2, OTHER))
    assert records.left() == [([], [entry(2).record])], "another record counts in its row"
    records.count(prefixed(1, OTHER))
    assert records.left() == [([(ROW, Usage(2, 120, 100))], [entry(1).record, entry(2).record])]
    records.ledger.left.confirm_deleted("egi", MONTH)
    assert records.left() == []
    assert records.recorded(entry(2).run)[entry(2).run].record.localid_prefix == "new-"


def test_a_row_stays_that_its_last_record_leaves_until_one_comes_back(records: Records) -> None:
    """With what it had when the first of them left: the receiver sums records up from time to time."""
    for number in (1, 2):
        assert records.left() == []
        records.count(entry(number)._replace(row=OTHER))
    assert records.left() == [([(ROW, Usage(2, 120, 100))], [])]
    records.count(entry(3))
    assert records.left() == []
    records.count(entry(3, wall_s=90))
    records.count(entry(3, wall_s=90)._replace(row=OTHER))
    assert records.left() == [([(ROW, Usage(1, 90, 50))], [])]


def test_confirmed_of_one_month_is_nothing_of_another(records: Records) -> None:
    records.count(prefixed(2))
    records.ledger.left.confirm_deleted("egi", MONTH - 1)
    assert records.left() == [([], [entry(2).record])]


def test_what_stays_is_of_the_receiver_whichever_target_looks(records: Records) -> None:
    records.count(prefixed(2))
    records.begin("other", "a place")
    records.begin("elsewhere", "another place")
    (one,), (other,) = (records.ledger.left.months(target) for target in ("egi", "other"))
    assert one == other
    assert records.ledger.left.months("elsewhere") == []


def test_rule_22_a_month_that_is_deleted_is_confirmed_for_all_targets_of_its_receiver(records: Records) -> None:
    records.count(prefixed(2), entry(1)._replace(row=OTHER))
    records.begin("other", "a place")
    records.ledger.losses.deleted("other", [MONTH], NOW)
    assert records.left() == []
    assert records.recorded(entry(1).run) == {}


def test_what_is_lost_is_kept_until_the_database_is_found_again(records: Records) -> None:
    ledger, file = records.ledger, "/srv/ce2.db"
    ledger.databases.found("egi", {file: 1}, NOW)
    assert [one.never_sent for one in ledger.databases.known("egi")] == [{}]
    ledger.databases.retire("egi", file, {MONTH: 12, MONTH + 1: None}, NOW)
    (known,) = ledger.databases.known("egi")
    assert (known.retired, known.never_sent) == (NOW, {MONTH: 12, MONTH + 1: None})
    ledger.databases.found("egi", {file: 1}, NOW)
    (known,) = ledger.databases.known("egi")
    assert (known.retired, known.never_sent) == (None, {})


def test_what_stays_at_receivers_of_other_targets(records: Records) -> None:
    """As when the only target that led there has another address, or is gone. Nobody has a shadow's receiver."""
    records.count(prefixed(2))
    assert records.ledger.left.elsewhere(["egi"]) == []
    records.begin("other", "another place")
    ((receiver, month),) = records.ledger.left.elsewhere(["other", "not known yet"])
    assert (receiver.address, month.receiver, month.month) == ("a place", receiver.number, MONTH)
    assert [one.key for one in month.records] == [entry(2).record]
    with records.database.atomic():
        records.database.execute("UPDATE receiver SET kind = :kind", {"kind": SHADOW})
    assert records.ledger.left.elsewhere(["other"]) == []
