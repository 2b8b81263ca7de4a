"""Publishing databases of the tests."""

from __future__ import annotations

from pathlib import Path

from publisher.ledger.sql.charges import SqlChargeBook
from publisher.ledger.sql.ledger import SqlLedger
from publisher.ledger.sqlite.connection import open_database, open_database_to_read


def open_ledger(path: Path) -> SqlLedger:
    return SqlLedger(open_database(path))


def open_to_read(path: Path) -> SqlLedger:
    return SqlLedger(open_database_to_read(path))


def open_charge_book(path: Path) -> SqlChargeBook:
    return SqlChargeBook(open_database(path))


def open_charge_book_to_read(path: Path) -> SqlChargeBook:
    return SqlChargeBook(open_database_to_read(path))
