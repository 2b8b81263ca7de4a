"""What stays at a receiver with consent, and what is lost with a retired database, in both kinds of ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from publisher.ledger.sql.database import Database
from publisher.ledger.sql.ledger import sql_ledger
from publisher.model.totals import KeyTotal, SummaryKey
from tests.ledger.test_recorded import ROW, Entered, entry
from tests.support.ledgers import opener

NOW = datetime(2026, 11, 20, tzinfo=UTC)
MONTH = ROW.month


class Agreed(Entered):
    """A ledger with entries of single records, one of which came again under another prefix."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.ledger = sql_ledger(database)
        self.begin("egi", "a place")
        self.count(entry(1), entry(2))
        moved = entry(2)
        self.count(moved._replace(record=moved.record._replace(localid_prefix="new-")))

    def accept(self, *texts: str) -> None:
        rows = [KeyTotal(SummaryKey(MONTH, text, "SITE"), 2, 120, 100) for text in texts]
        self.ledger.consents.accept("egi", MONTH, rows, 0, NOW, of_records=True)


@pytest.fixture(params=("sqlite", "postgres"))
def agreed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agreed]:
    with closing(opener(request.param, request)(tmp_path / "state" / "publishing.db")) as database:
        yield Agreed(database)


def test_rows_in_which_no_record_counts_stay_and_records_under_earlier_keys(agreed: Agreed) -> None:
    agreed.accept("VO atlas", "VO gone")
    (change,) = agreed.ledger.consents.accepted("egi")
    assert [(row.key.text, row.key.site) for row in change.rows] == [("VO gone", "SITE")], (
        "a record counts in the other"
    )
    assert [(one.key, one.row.key.text, one.row.jobs, one.row.wall_s) for one in change.records] == [
        (entry(2).record, "VO atlas", 1, 60)
    ]


def test_each_row_is_named_once_and_nothing_once_it_is_confirmed(agreed: Agreed) -> None:
    agreed.accept("VO gone")
    agreed.accept("VO gone", "VO too")
    first, second = agreed.ledger.consents.accepted("egi")
    assert [row.key.text for one in (first, second) for row in one.rows] == ["VO gone", "VO too"]
    assert (first.records, len(second.records)) == ((), 1)
    agreed.ledger.consents.confirm_deleted("egi", MONTH, NOW)
    assert agreed.ledger.consents.accepted("egi") == []
    assert agreed.recorded(entry(2).run)[entry(2).run].record.localid_prefix == "new-"


def test_rows_of_totals_are_named_though_records_count_in_them(agreed: Agreed) -> None:
    """The receiver keeps totals beside records, and lets them overwrite what it makes of these."""
    rows = [KeyTotal(SummaryKey(MONTH, "VO atlas", "SITE"), 2, 120, 100)]
    agreed.ledger.consents.accept("egi", MONTH, rows, 0, NOW, of_records=False)
    (change,) = agreed.ledger.consents.accepted("egi")
    assert (change.rows, change.records) == (tuple(rows), ())


def test_what_is_lost_is_kept_until_the_database_is_found_again(agreed: Agreed) -> None:
    ledger, file = agreed.ledger, "/srv/ce2.db"
    ledger.databases.found("egi", {file: 1}, NOW)
    assert [one.never_sent for one in ledger.databases.known("egi")] == [{}]
    ledger.databases.retire("egi", file, {MONTH: 12, MONTH + 1: None}, NOW)
    (known,) = ledger.databases.known("egi")
    assert (known.retired, known.never_sent) == (NOW, {MONTH: 12, MONTH + 1: None})
    ledger.databases.found("egi", {file: 1}, NOW)
    (known,) = ledger.databases.known("egi")
    assert (known.retired, known.never_sent) == (None, {})


def test_records_of_another_month_are_not_named(agreed: Agreed) -> None:
    agreed.ledger.consents.accept("egi", MONTH - 1, [], 0, NOW, of_records=True)
    (change,) = agreed.ledger.consents.accepted("egi")
    assert (change.rows, change.records) == ((), ())


def test_rule_22_a_month_that_is_deleted_is_confirmed_for_all_targets_of_its_receiver(agreed: Agreed) -> None:
    agreed.accept("VO gone")
    agreed.begin("other", "a place")
    agreed.ledger.losses.deleted("other", [MONTH], NOW)
    assert agreed.ledger.consents.accepted("egi") == []
    assert agreed.recorded(entry(1).run) == {}
