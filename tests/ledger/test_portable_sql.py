"""The statements of `ledger/sql` are ones that PostgreSQL takes too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from publisher.ledger import schema, sql, sqlite
from publisher.ledger.sql.database import Database
from publisher.model.errors import LedgerError
from tests.ledger.test_plans import statements
from tests.support.postgres import PostgresServer

REFUSED = {
    "INSERT OR": r"\bINSERT OR\b",
    "REPLACE INTO": r"\bREPLACE INTO\b",
    "max or min of several values": r"\b(max|min)\((?:[^()]|\([^()]*\))*,",
    "a positional parameter": r"\?",
    "rowid": r"\browid\b",
    "IS with a value": r"\bIS (NOT )?(?!NULL|NOT NULL|DISTINCT)\S",
    "a BLOB literal": r"\bx'",
    "a function of SQLite's": r"\b(ifnull|iif|json\w*|strftime|unixepoch|printf|instr|total|typeof|group_concat)\(",
    "an operator of SQLite's": r"\b(GLOB|REGEXP|MATCH)\b|==",
    "a pragma or a schema table": r"\bPRAGMA\b|\bsqlite_",
    "a number for a boolean": r"\b(dirty|by_settings|narrowing) = [01]\b",
    "double quotes, which are names there": r'"',
}
PORTABLE = sorted({statement for statement in statements() if "sqlite_master" not in statement})


@pytest.mark.parametrize("statement", PORTABLE)
def test_no_statement_says_what_postgresql_refuses(statement: str) -> None:
    found = [name for name, pattern in REFUSED.items() if re.search(pattern, statement)]
    assert not found, statement


@pytest.mark.parametrize("statement", [one for one in PORTABLE if "DO UPDATE" in one])
def test_what_an_insert_changes_names_the_table_of_each_column(statement: str) -> None:
    """Beside `excluded` a bare name could mean either row: SQLite takes the old one, PostgreSQL refuses it."""
    table = re.findall(r"INSERT INTO (\w+)", statement)[0]
    columns = re.findall(r"^    (\w+) ", tables()[table], re.MULTILINE)
    changes = re.sub(r"\b\w+ = ", "", statement.split("DO UPDATE")[1].split("SET", 1)[1])
    bare = re.findall(r"(?<![.:\w])(\w+)(?![.\w(])", re.sub(r"'[^']*'", "", changes))
    assert not set(bare) & set(columns), statement


@pytest.fixture(scope="module")
def asked(postgres: PostgresServer) -> Iterator[Database]:
    from publisher.ledger.postgres.connection import open_database

    with closing(open_database(postgres.address, "statements")) as database:
        yield database


@pytest.mark.parametrize("statement", PORTABLE)
def test_postgresql_takes_every_statement(asked: Database, statement: str) -> None:
    names = re.findall(r":(\w+)", statement)
    complaint = ""
    try:
        with asked.atomic():
            asked.execute(statement, dict.fromkeys(names))
    except LedgerError as error:
        complaint = str(error)
    assert not complaint or "not-null constraint" in complaint  # no parameter has a value


def tables() -> dict[str, str]:
    return dict(re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", schema.TABLES, re.DOTALL))


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR REPLACE INTO limits VALUES (1)",
        "SELECT max(coalesce(last_end, 0), 7) FROM target",
        "SELECT max(last_end, 7) FROM target",
        "DELETE FROM month WHERE target = ?",
        "SELECT 1 FROM month WHERE digest IS NOT accepted_digest",
        "UPDATE month SET dirty = 0",
    ],
)
def test_what_is_refused_is_noticed(statement: str) -> None:
    assert any(re.search(pattern, statement) for pattern in REFUSED.values())


def test_only_one_room_of_the_ledger_knows_sqlite() -> None:
    where = {
        path.parent
        for path in Path(str(sql.__file__)).parents[1].rglob("*.py")
        if re.search(r"^\s*(import|from) sqlite3\b", path.read_text(), re.MULTILINE)
    }
    assert where == {Path(str(sqlite.__file__)).parent}
