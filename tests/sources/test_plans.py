"""Every question to an accounting database has an index that fits, in both schemas and in those that importers write.

Sites never ran ANALYZE, and we may not: SQLite chooses by the shape of a question alone. A new question is found here by
itself, as a constant of the room or in a function that makes one; without a fitting index it fails.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from publisher.sources import arex, sqlite_reader
from publisher.sources.arex import queries
from publisher.sources.arex.queries import LAYOUTS
from tests.arex_databases import bulk

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
ALL_LAYOUTS: Final = frozenset(LAYOUTS)
# Arguments for functions that make questions.
WHICH: Final = [(queries.BETWEEN,), (queries.LISTED,)]
MADE: Final[dict[str, list[tuple[Any, ...]]]] = {
    "queries.side": [
        *((table, *which) for table in queries.tables(2) for which in WHICH if table in queries._SIDES),
    ],
    "queries.events": list(WHICH),
    "queries.noted": list(WHICH),
    "queries.names": [(column,) for column in queries.NAMES],
    "queries.standing_among": [(2,)],
    "queries.of_jobs": [(2, 2)],
}
# Questions that read something whole, each for its reason.
WHOLE: Final = {
    queries.STATUSES: {"AAR"},  # by its index on StatusID alone, for `doctor`
    queries.LAYOUT: {"entry", "field"},  # the schema
    # What stands beside rows and only people ask for, who can wait.
    queries.ROWS_WITH["rte"]: {"RunTimeEnvironments"},
    queries.ROWS_WITH["dtrurl"]: {"DataTransfers"},
    queries.ROWS_WITH[""]: {"JobExtraInfo"},
}
SMALL: Final = {"json_each", "sqlite_master", "(subquery-1)", "(subquery-2)", "page"}  # or one page
# What hardly tells one row from another: SQLite must not go by it.
COARSE: Final = ("(StatusID=?", "(EventKey=?", "(AttrKey=?", "(InfoKey=?", "(TransferType=?")
NARROW: Final = " AND rowid>? AND rowid<?)"  # but it may within what was written in a while
# A page's worth; a schema's; and what is read whole anyway.
SORTED: Final = {
    queries.EVENTFUL,
    queries.PARTS,  # numbers of parts, of the index on EndTime alone
    *WHOLE,
}


def questions() -> Iterator[tuple[str, frozenset[int], str]]:
    """Name, layouts, and text of every question in the room."""
    below = [found.name for found in pkgutil.walk_packages(arex.__path__, f"{arex.__name__}.")]
    for path in (*below, sqlite_reader.__name__):
        module = importlib.import_module(path)
        short = path.rpartition(".")[2]
        for name, value in vars(module).items():
            if isinstance(value, str) and _asks(value):
                yield f"{short}.{name}", ALL_LAYOUTS, value
            elif isinstance(value, dict) and any(isinstance(text, str) and _asks(text) for text in value.values()):
                for key, text in value.items():
                    layouts = frozenset({key}) if isinstance(key, int) else ALL_LAYOUTS
                    yield f"{short}.{name}[{key}]", layouts, text
        for name, arguments in MADE.items():
            if name.startswith(f"{short}."):
                make = getattr(module, name.partition(".")[2])
                yield from ((f"{name}{one}", ALL_LAYOUTS, make(*one)) for one in arguments)
        tree = ast.parse(Path(str(module.__file__)).read_text())
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args):
            text = getattr(call.args[0], "value", None)
            if getattr(call.func, "attr", "") == "execute" and isinstance(text, str) and _asks(text):
                yield f"{short}, line {call.lineno}", ALL_LAYOUTS, text


def _asks(text: str) -> bool:
    return text.lstrip().upper().startswith(("SELECT ", "WITH ", "INSERT ", "UPDATE ", "DELETE "))


EVERY: Final = sorted(set(questions()), key=lambda one: (one[0], sorted(one[1])))


class Anything(dict[str, Any]):
    """Values for all named parameters."""

    def __missing__(self, name: str) -> object:
        return "[1]" if name in ("rows", "ids") else 5


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[int, sqlite3.Connection]]]:
    """One of each layout, as A-REX makes them and after `arcctl accounting database optimize`; none was ever analysed."""
    folder = tmp_path_factory.mktemp("plans")
    paths = []
    for optimized in (False, True):
        for schema in (1, 2):
            path = folder / f"{schema}-{optimized}.db"
            bulk(path, 1 if schema == 1 else 2, 300, 1, START, END, optimized=optimized)
            paths.append((schema, path))
    opened = [(layout, sqlite3.connect(path)) for layout, path in paths]
    for _, connection in opened:
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'").fetchall()
    yield opened
    for _, connection in opened:
        connection.close()


@pytest.mark.parametrize(("layouts", "question"), [one[1:] for one in EVERY], ids=[one[0] for one in EVERY])
def test_nothing_that_grows_is_scanned_or_sorted(
    databases: list[tuple[int, sqlite3.Connection]], layouts: frozenset[int], question: str
) -> None:
    unnamed = question.count("?")
    for layout, connection in databases:
        if layout not in layouts:
            continue
        values: Any = [b"x"] * unnamed if unnamed else Anything()
        try:
            steps = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {question}", values)]
        except sqlite3.OperationalError as error:
            if layout == 1 and "no such" in str(error):  # FQANs, Benchmarks
                continue
            raise
        for step in steps:
            words = step.replace(" TABLE", "").split()
            assert words[0] != "SCAN" or words[1] in SMALL | WHOLE.get(question, set()) | {"CONSTANT"}, (layout, step)
            assert "TEMP B-TREE" not in step or question in SORTED, (layout, step)
            coarse = any(term in step for term in COARSE) and NARROW not in step
            assert not coarse, (layout, step)


def test_every_function_that_makes_a_question_is_asked_for_one() -> None:
    for module in (queries,):
        short = module.__name__.rpartition(".")[2]
        for name, made in vars(module).items():
            if not inspect.isfunction(made) or name.startswith("_") or made.__module__ != module.__name__:
                continue
            if str(made.__annotations__.get("return")) == "str":
                assert f"{short}.{name}" in {*MADE, "queries.select_list"}, "name it above, with arguments"


def test_the_questions_are_found() -> None:
    names = " ".join(name for name, _, _ in EVERY)
    for one in (
        "FROM[1]",
        "PART[2]",
        "PARTS",
        "BY_ROW[2]",
        "ENDS",
        "IN_ORDER",
        "UNORDERED",
        "ROWS_WITH[rte]",
        "events",
        "line",
    ):
        assert one in names
    assert len(EVERY) > 46


def test_a_wrong_index_is_noticed(databases: list[tuple[int, sqlite3.Connection]]) -> None:
    """The trap that is measured in arex_sql.py: without the plus, an hour's jobs are looked for among all completed ones."""
    question = "SELECT RecordID FROM AAR WHERE StatusID = 1 AND EndTime > 5"
    steps = [str(row[3]) for row in databases[1][1].execute(f"EXPLAIN QUERY PLAN {question}")]
    assert any(term in step for step in steps for term in COARSE)
