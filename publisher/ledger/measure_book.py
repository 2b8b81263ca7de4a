"""What was measured of targets, in the publishing database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from publisher.ledger import sqlite_file
from publisher.ledger.measure_base import Measure, Measures

_MEASURES: Final = "SELECT target, name, label, value FROM measure ORDER BY target, name, label"
_DELIVERED: Final = "SELECT accepted_messages, accepted_records FROM target WHERE name = :target"
_FORGET: Final = "DELETE FROM measure WHERE target = :target AND name = :name"
_SET: Final = """
INSERT INTO measure (target, name, label, value) VALUES (:target, :name, :label, :value)
ON CONFLICT (target, name, label) DO UPDATE SET value = excluded.value"""
_ADD: Final = """
INSERT INTO measure (target, name, label, value) VALUES (:target, :name, :label, :value)
ON CONFLICT (target, name, label) DO UPDATE SET value = value + excluded.value"""


class SqliteMeasureBook:
    """`MeasureBook` in one SQLite file."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def measures(self) -> Sequence[Measure]:
        with sqlite_file.translated(self._path):
            return [
                Measure(target=target, name=name, label=label, value=value)
                for target, name, label, value in self._connection.execute(_MEASURES)
            ]

    def delivered(self, target: str) -> tuple[int, int]:
        with sqlite_file.translated(self._path):
            found = self._connection.execute(_DELIVERED, {"target": target}).fetchone()
            return (0, 0) if found is None else (found[0], found[1])

    def note(self, target: str, *, set_to: Measures, added: Measures, unknown: Sequence[str]) -> None:
        with sqlite_file.atomic(self._connection, self._path):
            self._connection.executemany(_FORGET, [{"target": target, "name": name} for name in unknown])
            self._connection.executemany(_SET, _rows(target, set_to))
            self._connection.executemany(_ADD, _rows(target, added))

    def close(self) -> None:
        self._connection.close()


def _rows(target: str, values: Measures) -> list[dict[str, str | float]]:
    return [
        {"target": target, "name": name, "label": label, "value": float(value)}
        for (name, label), value in values.items()
    ]


def open_measure_book(path: Path) -> SqliteMeasureBook:
    """What was measured, in the publishing database at `path`, made when it is not there. Raises: LedgerError."""
    return SqliteMeasureBook(sqlite_file.open_ledger_file(path), path)


def open_measure_book_to_read(path: Path) -> SqliteMeasureBook:
    """Only to ask; an empty one in memory when there is none yet. Raises: LedgerError."""
    return SqliteMeasureBook(sqlite_file.open_file_to_read(path), path)
