"""The name tables of one open database (users, queues, VOs, ...), read as rows need them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from publisher.errors import Unfit
from publisher.sources import arex_sql as sql
from publisher.sources.arex_values import is_undecodable

_REMEMBERED: Final = 200_000


class NameTables:
    """Texts by number, per column of AAR. Good for one connection: another file may number them otherwise."""

    def __init__(self, layout: int, reads: Callable[[object], str]) -> None:
        """`reads` makes text of what is stored."""
        self._reads = reads
        known = sql.tables(layout)
        self._columns = [column for column, (_, table, _) in sql.NAMES.items() if table in known]
        self.endpoints: dict[Any, tuple[str, str]] = {}  # interface and URL
        self.queues: dict[Any, str] = {}
        self.users: dict[Any, str] = {}
        self.vos: dict[Any, str] = {}
        self.fqans: dict[Any, str] = {}
        self.statuses: dict[Any, str] = {}
        self.benchmarks: dict[Any, str] = {}
        self.undecodable = False  # some text is not UTF-8
        self._texts: dict[str, dict[Any, Any]] = {
            "EndpointID": self.endpoints,
            "QueueID": self.queues,
            "UserID": self.users,
            "VOID": self.vos,
            "FQANID": self.fqans,
            "StatusID": self.statuses,
            "BenchmarkID": self.benchmarks,
        }
        self._forget()

    def fill(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Look up, in the page's own transaction, what its rows name and was not met before. Raises: sqlite3.Error."""
        self.look_up(connection, {column: {row[sql.NAMES[column][0]] for row in rows} for column in self._columns})

    def look_up(self, connection: sqlite3.Connection, numbers: Mapping[str, Collection[Any]]) -> None:
        """As `fill`, for numbers by column."""
        if any(len(known) > _REMEMBERED for known in self._texts.values()):
            self._forget()
        for column in self._columns:
            known = self._texts[column]
            missing = [number for number in numbers[column] if number not in known and number.__class__ is int]
            if not missing:
                continue
            for number, *texts in connection.execute(sql.names(column), {"ids": json.dumps(missing)}):
                read = tuple(self._reads(text) for text in texts)
                self.undecodable = self.undecodable or any(is_undecodable(text) for text in read)
                known[number] = read if len(read) > 1 else read[0]

    def _forget(self) -> None:
        for known in self._texts.values():
            known.clear()
        # NULL is no reference: schema 1 has none of these, and converted rows may lack them.
        self.fqans[None] = self.benchmarks[None] = ""
        self.undecodable = False

    def dangling(self, row: Sequence[Any]) -> Unfit:
        """Which reference of the row points nowhere."""
        for column in self._columns:
            place, table, _ = sql.NAMES[column]
            if column != "StatusID" and row[place] not in self._texts[column]:
                number = "NULL" if row[place] is None else repr(row[place])
                return Unfit("dangling-reference", f"{column} is {number}, and {table} has no such row")
        raise AssertionError("no reference of the row dangles")
