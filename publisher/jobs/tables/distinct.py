"""What many jobs share, stored once: a person, a place, a benchmark, by number."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from publisher.jobs.tables.columns import Row, distinct_row, distinct_values, restored, stored

# A few hundred bytes each; a site has fewer people. Longer ones are looked up each time.
_REMEMBERED: Final = 20_000
_MOST_TEXT: Final = 1_000


class Distinct(dict[int, Row]):
    """The values of one of these tables, by number, as far as they were asked for.

    Inside a transaction of the caller, who clears it after a rollback.
    """

    def __init__(self, connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
        super().__init__()
        self._execute = connection.execute
        self._columns = columns
        stored_as = ["value"] if table == "benchmark" else columns
        places = ", ".join("?" * (len(columns) + 1))
        self._enter = f"INSERT INTO {table} (digest, {', '.join(stored_as)}) VALUES ({places})"
        self._find = f"SELECT id FROM {table} WHERE digest = ?"
        self._read = f"SELECT {', '.join(stored_as)} FROM {table} WHERE id = ?"
        self._numbers: dict[Row, int] = {}

    def number(self, values: Row) -> int:
        """Return the number of these values, which are entered where they are new."""
        found = self._numbers.get(values)
        if found is None:
            found = self._entered(values)
            if len(self._numbers) >= _REMEMBERED:
                self._numbers.clear()
            if len(repr(values)) <= _MOST_TEXT:
                self._numbers[values] = found
        return found

    def _entered(self, values: Row) -> int:
        digest = blake2b(json.dumps(values).encode(), digest_size=16).digest()
        known = self._execute(self._find, (digest,)).fetchone()
        if known is not None:
            return int(known[0])
        row = stored(distinct_row(self._columns, values))
        return int(self._execute(self._enter, (digest, *row)).lastrowid or 0)

    def __missing__(self, number: int) -> Row:
        row: Sequence[Any] = self._execute(self._read, (number,)).fetchone()
        found = distinct_values(self._columns, restored(row))
        if len(self) >= _REMEMBERED:
            super().clear()
        if len(repr(found)) <= _MOST_TEXT:
            self[number] = found
        return found

    def clear(self) -> None:
        """Forget which numbers there are."""
        self._numbers.clear()
        super().clear()
