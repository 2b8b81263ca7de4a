"""Names that rows of an A-REX accounting database point to: users, queues, VOs and the like.

They are read as rows need them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from publisher.model.errors import Unfit
from publisher.sources.arex import queries as sql
from publisher.sources.arex.values import is_undecodable

_REMEMBERED: Final = 200_000


class NameTables:
    """Texts by number, per column of AAR, for one connection: other files number them otherwise."""

    def __init__(self, layout: int, reads: Callable[[object], str]) -> None:
        """`reads` makes text of what is stored."""
        self._reads = reads
        known = sql.tables(layout)
        self._columns = [column for column, (_, table, _) in sql.NAMES.items() if table in known]
        self.by_column: dict[str, dict[Any, Any]] = {column: {} for column in sql.NAMES}
        # Of endpoints, interface and URL.
        self.endpoints: dict[Any, tuple[str, str]] = self.by_column["EndpointID"]
        self.queues: dict[Any, str] = self.by_column["QueueID"]
        self.users: dict[Any, str] = self.by_column["UserID"]
        self.vos: dict[Any, str] = self.by_column["VOID"]
        self.fqans: dict[Any, str] = self.by_column["FQANID"]
        self.statuses: dict[Any, str] = self.by_column["StatusID"]
        self.benchmarks: dict[Any, str] = self.by_column["BenchmarkID"]
        self.undecodable = False  # some text is not UTF-8
        self._forget()

    def fill(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Look up, in the page's own transaction, what its rows name and was not met before.

        Return whether earlier names were forgotten. Raises: sqlite3.Error.
        """
        return self.look_up(connection, self._numbers(rows))

    def of(self, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the names that rows point to, in an order that depends on the rows alone."""
        found: list[Any] = []
        for column, numbers in self._numbers(rows).items():
            found += map(self.by_column[column].get, sorted(numbers, key=repr))
        return found

    def _numbers(self, rows: Sequence[tuple[Any, ...]]) -> dict[str, set[Any]]:
        places = {column: itemgetter(sql.NAMES[column][0]) for column in self._columns}
        return {column: set(map(at, rows)) for column, at in places.items()}

    def look_up(self, connection: sqlite3.Connection, numbers: Mapping[str, set[Any]]) -> bool:
        """As `fill`, for numbers by column, which may be only some of the columns."""
        is_full = any(len(known) > _REMEMBERED for known in self.by_column.values())
        if is_full:
            self._forget()
        for column in self._columns:
            known = self.by_column[column]
            # Not a difference of sets, which walks through all that is known, for every page.
            missing = [number for number in numbers.get(column, ()) if number not in known]
            whole = [number for number in missing if number.__class__ is int]
            if whole:
                self._look_up(connection, column, whole)
        return is_full

    def _look_up(self, connection: sqlite3.Connection, column: str, numbers: Sequence[int]) -> None:
        for number, *texts in connection.execute(sql.names(column), {"ids": json.dumps(numbers)}):
            read = tuple(map(self._reads, texts))
            self.undecodable = self.undecodable or any(map(is_undecodable, read))
            self.by_column[column][number] = read if len(read) > 1 else read[0]

    def _forget(self) -> None:
        for known in self.by_column.values():
            known.clear()
        # NULL is not a reference: schema 1 has none of these, and converted rows may lack them.
        self.fqans[None] = self.benchmarks[None] = ""
        self.undecodable = False

    def dangling(self, row: Sequence[Any]) -> Unfit:
        """Which reference of the row points nowhere."""
        for column in self._columns:
            place, table, _ = sql.NAMES[column]
            if column != "StatusID" and row[place] not in self.by_column[column]:
                number = "NULL" if row[place] is None else repr(row[place])
                reason = f"{column} is {number}, and {table} has no such row"
                return Unfit("dangling-reference", reason)
        raise AssertionError("no reference of the row dangles")
