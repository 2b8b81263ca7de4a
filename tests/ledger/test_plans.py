"""Every question and move of the ledger has an index that fits, on a file never analysed: none slows with history."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from publisher import ledger
from publisher.ledger.sql import entries
from publisher.ledger.sql.sums import balances, settlement
from publisher.ledger.sqlite.connection import open_ledger_file

VERBS = ("SELECT ", "INSERT ", "UPDATE ", "DELETE ")
# What these hold does not grow with jobs or messages: targets, their months and hosts, files, metrics.
FEW = frozenset(
    {
        "receiver",
        "target",
        "source_file",
        "window_progress",
        "sync_count",
        "delivered_count",
        "count_before",
        "sqlite_master",
        "charge_run",
        "tariff",
        "measure",
        "months",  # sums of rows, by month
    }
)


@cache
def statements() -> frozenset[str]:
    """Every SQL text in the room: its constants as they are put together, and what is written where it is used.

    Without what only PostgreSQL is asked, what has a table of its own, and transfers and checks, which go through whole tables.
    """
    all_found: set[str] = set()
    for module in pkgutil.walk_packages(ledger.__path__, f"{ledger.__name__}."):
        if "postgres" in module.name or module.name.endswith((".transfer", ".checks", ".scratch")):
            continue
        loaded = importlib.import_module(module.name)
        texts = {value for value in vars(loaded).values() if isinstance(value, str)}
        tree = ast.parse(Path(str(loaded.__file__)).read_text())
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            constants = (node.value for node in ast.walk(function) if isinstance(node, ast.Constant))
            texts |= {text for text in constants if isinstance(text, str)}
        found = {text.strip() for text in texts if text.strip().startswith(VERBS) and "{" not in text}
        # What others begin with is only a part of them.
        all_found.update(one for one in found if not any(other != one and other.startswith(one) for other in found))
    return frozenset(all_found)


class Anything(dict[str, Any]):
    """Values for all named parameters."""

    def __missing__(self, name: str) -> object:
        return None


def plan(connection: sqlite3.Connection, statement: str) -> list[str]:
    unnamed = statement.count("?")
    values: Any = [None] * unnamed if unnamed else Anything()
    return [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("plans") / "publishing.db"
    with closing(open_ledger_file(path)) as opened:
        yield opened


@pytest.mark.parametrize("statement", sorted(statements()))
def test_nothing_that_grows_is_scanned(connection: sqlite3.Connection, statement: str) -> None:
    for step in plan(connection, statement):
        words = step.split()
        scanned = words[1] if words[0] == "SCAN" and step != "SCAN CONSTANT ROW" else ""
        assert not scanned or scanned in FEW, f"{step} in {statement}"


def test_the_statements_are_found() -> None:
    found = statements()
    assert len(found) > 60
    for table in ("message", "outbox", "entry", "posting", "quarantine", "message_row"):
        assert any(f" {table} " in f"{text} ".replace("\n", " ") for text in found), table


def test_a_scan_is_noticed(connection: sqlite3.Connection) -> None:
    assert plan(connection, "SELECT * FROM message WHERE remote_id = :id") == ["SCAN message"]


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(entries._OWNERS.format(asked="(1)"), id="whose records ended then"),
        pytest.param(settlement._SAME_END, id="what a record replaces"),
        pytest.param(balances._FIRST_END, id="the first end of a row"),
        pytest.param(balances._LAST_END, id="the last end of a row"),
    ],
)
def test_entries_that_ended_in_some_seconds_are_found_by_their_ends(
    connection: sqlite3.Connection, statement: str
) -> None:
    """Not among all entries of the receiver, once for each."""
    assert any("USING INDEX entry_by_end" in step for step in plan(connection, statement))
