"""Publishing databases of the tests."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from publisher.ledger.contract import Ledger
from publisher.ledger.sql.charges import SqlChargeBook
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.ledger import sql_ledger
from publisher.ledger.sqlite.connection import open_database, open_database_to_read


def open_ledger(path: Path) -> Ledger:
    return sql_ledger(open_database(path))


def open_to_read(path: Path) -> Ledger:
    return sql_ledger(open_database_to_read(path))


def open_charge_book(path: Path) -> SqlChargeBook:
    return SqlChargeBook(open_database(path))


def open_charge_book_to_read(path: Path) -> SqlChargeBook:
    return SqlChargeBook(open_database_to_read(path))


Opener = Callable[[Path], Database]


def opener(kind: str, request: pytest.FixtureRequest, *, to_read: bool = False) -> Opener:
    """Opens the publishing database of a path: in SQLite that file, in PostgreSQL an instance named after it."""
    if kind == "sqlite":
        return open_database_to_read if to_read else open_database
    address = request.getfixturevalue("postgres").address
    from publisher.ledger.postgres import connection

    opens = connection.open_database_to_read if to_read else connection.open_database
    return lambda path: opens(address, instance_of(path))


def instance_of(path: Path) -> str:
    return sha256(str(path).encode()).hexdigest()[:16]
