"""What many jobs share, stored once: a person, a place, a benchmark, by number."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeVar

from publisher.jobs.tables.columns import Row, distinct_row, distinct_values, restored, stored

# A few hundred bytes each; a site has fewer people. Longer ones are looked up each time.
_REMEMBERED: Final = 20_000
_MOST_TEXT: Final = 1_000

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Remembered(dict[Key, Value]):
    """Answers to a question, but for long ones; it is asked for those that are not here."""

    def __init__(self, ask: Callable[[Key], Value]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, key: Key) -> Value:
        found = self._ask(key)
        if len(self) >= _REMEMBERED:
            self.clear()
        if len(repr((key, found))) <= _MOST_TEXT:
            self[key] = found
        return found


class Distinct:
    """One of these tables. Inside a transaction of the caller, who clears it after a rollback."""

    def __init__(self, connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
        self._execute = connection.execute
        self._columns = columns
        stored_as = ["value"] if table == "benchmark" else columns
        places = ", ".join("?" * (len(columns) + 1))
        self._enter = f"INSERT INTO {table} (digest, {', '.join(stored_as)}) VALUES ({places})"
        self._find = f"SELECT id FROM {table} WHERE digest = ?"
        self._find_values = f"SELECT {', '.join(stored_as)} FROM {table} WHERE id = ?"
        self._numbers: dict[Row, int] = _Remembered(self._entered)
        self.values: dict[int, Row] = _Remembered(self._values_of)

    def numbers(self, rows: Iterable[Row]) -> Iterator[int]:
        """Yield the numbers of some values, which are entered where they are new (hot path)."""
        return map(self._numbers.__getitem__, rows)

    def _entered(self, values: Row) -> int:
        digest = blake2b(json.dumps(values).encode(), digest_size=16).digest()
        known = self._execute(self._find, (digest,)).fetchone()
        if known is not None:
            return int(known[0])
        row = stored(distinct_row(self._columns, values))
        return int(self._execute(self._enter, (digest, *row)).lastrowid or 0)

    def _values_of(self, number: int) -> Row:
        row: Sequence[Any] = self._execute(self._find_values, (number,)).fetchone()
        return distinct_values(self._columns, restored(row))

    def clear(self) -> None:
        """Forget which numbers there are."""
        self._numbers.clear()
        self.values.clear()
