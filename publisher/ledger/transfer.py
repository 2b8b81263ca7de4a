"""A ledger in another database, row by row, and whether two have the same rows.

What is there already is compared, not copied again: a copy that was broken off goes on, and one of
a ledger that changed meanwhile is brought up to it. Rows are read a portion at a time, in the order
of their keys, which is the same everywhere. Until it is whole, a copy says so (generation.py), and
no round begins with it.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import starmap
from operator import itemgetter
from typing import Any, Final, NamedTuple

from publisher.ledger import schema
from publisher.ledger.contract import impatient
from publisher.ledger.generation import IS_UNFINISHED, UNFINISHED
from publisher.ledger.sql.database import Database
from publisher.model.errors import LedgerError

_PORTION: Final = 500
_SETTLED: Final = 2  # states of messages from here on are for good, as schema.py lists them
_Row = tuple[Any, ...]

_ALL_TARGETS: Final = "SELECT name FROM target ORDER BY name"
_IS_UNFINISHED: Final = "SELECT EXISTS (SELECT 1 FROM receiver WHERE generation = :generation)"
_SET_GENERATION: Final = "UPDATE receiver SET generation = :generation"


class LedgerTable(NamedTuple):
    """A table: its columns, those of its key, and those that are true or false."""

    name: str
    columns: Sequence[str]
    key: Sequence[str]
    truths: Collection[str]


class Transferred(NamedTuple):
    """What came of a table: its rows, and how many of them had to be written or taken away."""

    table: str
    rows: int
    changed: int


def tables() -> list[LedgerTable]:
    """All tables of a publishing database."""
    found = re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", schema.TABLES, re.DOTALL)
    return list(starmap(_table, found))


def _table(name: str, body: str) -> LedgerTable:
    columns: dict[str, str] = dict(re.findall(r"^    ([a-z]\w*) +(.*)$", body, re.MULTILINE))
    together = re.search(r"^    PRIMARY KEY \((.*?)\)", body, re.MULTILINE)
    alone = [column for column, spelling in columns.items() if "PRIMARY KEY" in spelling]
    key = together[1].split(", ") if together else alone
    truths = {column for column, spelling in columns.items() if spelling.startswith("BOOLEAN")}
    return LedgerTable(name, list(columns), key, truths)


def copy(source: Database, destination: Database, note: Callable[[Transferred], None]) -> None:
    """Make the destination's rows those of the source, and then compare all of them once more.

    Nobody may write to either meanwhile (`nobody_works`), or the source is read in one `snapshot`.
    Raises: LedgerError, also for a destination that knows of messages that the source does not.
    """
    _refuse_unfinished(source)
    _refuse_another(source, destination)
    _set_generation(destination, UNFINISHED)
    for table in tables():
        changed = _make_equal(source, destination, table)
        note(Transferred(table.name, _count(source, table), changed))
    with destination.atomic():
        numbered = [table.name for table in tables() if list(table.key) == ["id"]]
        destination.rows_were_copied(numbered)
    if different := compare(source, destination):
        raise LedgerError(
            f"the copy differs: {', '.join(different)}; run the same command again, "
            "and report it if it stays"
        )
    _set_generation(destination, 0)  # none yet: it was made on purpose


def mark_as_used(database: Database) -> None:
    """A ledger that is put somewhere else without the file beside it is noticed (generation.py)."""
    _set_generation(database, 1)


def _set_generation(database: Database, generation: int) -> None:
    with database.atomic():
        database.execute(_SET_GENERATION, {"generation": generation})


def _refuse_unfinished(source: Database) -> None:
    with source.reading():
        unfinished = {"generation": UNFINISHED}
        if source.execute(_IS_UNFINISHED, unfinished).fetchone()[0]:
            raise LedgerError(f"the ledger {IS_UNFINISHED}; nothing was changed")


def _refuse_another(source: Database, destination: Database) -> None:
    """Neither set back a destination that was used since, nor overwrite that of another CE."""
    (messages,) = (table for table in tables() if table.name == "message")
    state, message_id = (messages.columns.index(column) for column in ("state", "message_id"))
    for _, there, wanted in _pairs(source, destination, messages):
        if there is None or there[state] < _SETTLED:
            continue
        if wanted is None or wanted[message_id] != there[message_id] or wanted[state] < _SETTLED:
            raise LedgerError(
                f"the destination has settled message {there[message_id]}, "
                "and this ledger has not: it is no copy of this one, or was used since; "
                "nothing was changed"
            )


def compare(source: Database, destination: Database) -> list[str]:
    """The rows in which two ledgers differ: table and key of each; of many the first ones."""
    found: list[str] = []
    for table in tables():
        for portion in _differences(source, destination, table):
            found += [f"{table.name} {key}" for key in portion]
            if len(found) > 10:
                return found
    return found


@contextmanager
def nobody_works(*databases: Database) -> Iterator[None]:
    """Hold the locks of all targets, and of charges. Raises: Busy, LedgerError."""
    with ExitStack() as held:
        for database in databases:
            with database.reading():
                names = [name for (name,) in database.execute(_ALL_TARGETS).fetchall()]
            for name in names:
                held.enter_context(database.target_lock(name, impatient))
            charges = database.charge_locks()
            held.callback(charges.close)
            charges.work(impatient)
        yield


def _make_equal(source: Database, destination: Database, table: LedgerTable) -> int:
    """Gives how many rows were written, or are gone for good.

    Those of receivers say that the copy is unfinished, and are never away.
    """
    if table.name == "receiver":
        with destination.atomic():
            return _replace(source, destination, table, nullcontext)
    return _replace(source, destination, table, destination.atomic)


def _replace(
    source: Database,
    destination: Database,
    table: LedgerTable,
    transaction: Callable[[], AbstractContextManager[None]],
) -> int:
    """All that are to go before the first that comes: it may have what must be unique of one."""
    changed = 0
    for wanted, there in _portions(source, destination, table):
        leaving = [key for key in there if there[key] != wanted.get(key)]
        if leaving:
            with transaction():
                _delete(destination, table, leaving)
        changed += sum(key not in wanted for key in leaving)
    for wanted, there in _portions(source, destination, table):
        missing = [row for key, row in wanted.items() if key not in there]
        if missing:
            with transaction():
                _insert(destination, table, missing)
        changed += len(missing)
    return changed


def _differences(
    source: Database, destination: Database, table: LedgerTable
) -> Iterator[list[_Row]]:
    """The keys of rows that differ, a portion at a time."""
    for wanted, there in _portions(source, destination, table):
        yield [key for key in wanted | there if wanted.get(key) != there.get(key)]


def _pairs(
    source: Database, destination: Database, table: LedgerTable
) -> Iterator[tuple[_Row, _Row | None, _Row | None]]:
    """Each key with the row of the destination and that of the source."""
    for wanted, there in _portions(source, destination, table):
        yield from ((key, there.get(key), wanted.get(key)) for key in wanted | there)


def _portions(
    source: Database, destination: Database, table: LedgerTable
) -> Iterator[tuple[dict[_Row, _Row], dict[_Row, _Row]]]:
    """The rows of both between the same keys."""
    after: _Row | None = None
    while True:
        wanted = _portion(source, table, after, None)
        last = list(wanted)[-1] if len(wanted) == _PORTION else None
        yield wanted, _portion(destination, table, after, last, limited=False)
        if last is None:
            return
        after = last


def _portion(
    database: Database,
    table: LedgerTable,
    after: _Row | None,
    last: _Row | None,
    *,
    limited: bool = True,
) -> dict[_Row, _Row]:
    """Rows by key, behind one and up to another."""
    key = ", ".join(table.key)
    limits = [f"({key}) > ({_names('after', table)})"] if after is not None else []
    limits += [f"({key}) <= ({_names('last', table)})"] if last is not None else []
    where = f"WHERE {' AND '.join(limits)} " if limits else ""
    # Each ledger has a generation of its own.
    asked = [str(UNFINISHED) if name == "generation" else name for name in table.columns]
    question = f"SELECT {', '.join(asked)} FROM {table.name} {where}ORDER BY {key}"
    if limited:
        question += f" LIMIT {_PORTION}"
    values = _values("after", after) | _values("last", last)
    places = [table.columns.index(column) for column in table.key]
    with database.reading():
        rows = [_comparable(table, row) for row in database.execute(question, values).fetchall()]
    keys = zip(*(map(itemgetter(place), rows) for place in places), strict=True)
    return dict(zip(keys, rows, strict=True))


def _comparable(table: LedgerTable, row: _Row) -> _Row:
    """As every database gives it back."""
    texts = (value.replace("\0", "\\x00") if isinstance(value, str) else value for value in row)
    named = zip(table.columns, texts, strict=True)
    return tuple(bool(value) if column in table.truths else value for column, value in named)


def _delete(database: Database, table: LedgerTable, keys: Sequence[_Row]) -> None:
    where = " AND ".join(f"{column} = :key{place}" for place, column in enumerate(table.key))
    statement = f"DELETE FROM {table.name} WHERE {where}"
    database.execute_many(statement, [_values("key", key) for key in keys])


def _insert(database: Database, table: LedgerTable, rows: Sequence[_Row]) -> None:
    columns = ", ".join(table.columns)
    values = ", ".join(f":{column}" for column in table.columns)
    statement = f"INSERT INTO {table.name} ({columns}) VALUES ({values})"
    database.execute_many(statement, [dict(zip(table.columns, row, strict=True)) for row in rows])


def _count(database: Database, table: LedgerTable) -> int:
    with database.reading():
        return int(database.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0])


def _names(prefix: str, table: LedgerTable) -> str:
    return ", ".join(f":{prefix}{place}" for place in range(len(table.key)))


def _values(prefix: str, key: _Row | None) -> dict[str, Any]:
    return {f"{prefix}{place}": value for place, value in enumerate(key or ())}
