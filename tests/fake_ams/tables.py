"""The far end's database: rows replace rows by the server's keys, in the order they come."""

import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from types import MappingProxyType

Row = Mapping[str, object]

_SUMMARY = ("Site", "Month", "Year", "GlobalUserName", "VO", "VOGroup", "VORole", "SubmitHost")
KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "JobRecords": ("Site", "LocalJobId", "EndTime"),
        "Summaries": (
            *_SUMMARY,
            "InfrastructureType",
            "ServiceLevelType",
            "ServiceLevel",
            "NodeCount",
            "Processors",
        ),
        "NormalisedSummaries": (*_SUMMARY, "Infrastructure", "ServiceLevelType", "NodeCount", "Processors"),
        "SyncRecords": ("Site", "SubmitHost", "Month", "Year"),
    }
)
"""Columns of each primary key, by the names of the text messages. Spec: APEL server schema 2.5.0, measured."""

_INTEGERS = frozenset({"Month", "Year", "NodeCount", "Processors"})


class Tables:
    """JobRecords, Summaries, NormalisedSummaries and SyncRecords with REPLACE semantics."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[tuple[object, ...], Row]] = {name: {} for name in KEYS}

    def replace(self, table: str, row: Row) -> bool:
        """Store a row; whether it pushed out one of the same key. Raises: KeyError for an unknown table."""
        rows, key = self._tables[table], key_of(table, row)
        replaced = rows.pop(key, None) is not None
        rows[key] = MappingProxyType(dict(row))
        return replaced

    def rows(self, table: str) -> list[Row]:
        """The rows of a table, those written last at the end."""
        return list(self._tables[table].values())

    def total(self, table: str, column: str) -> int:
        """Sum of an integer column."""
        return sum(int(str(row[column])) for row in self.rows(table))

    def content(self) -> dict[str, set[tuple[tuple[str, str], ...]]]:
        """Everything, without order: equal for two runs that left the same rows."""
        return {
            name: {tuple(sorted((column, str(value)) for column, value in row.items())) for row in rows.values()}
            for name, rows in self._tables.items()
        }


def key_of(table: str, row: Row) -> tuple[object, ...]:
    """A row's primary key as the database compares it: no case, accents or trailing blanks; benchmark to 3 decimals."""
    return tuple(_comparable(column, row.get(column)) for column in KEYS[table])


def _comparable(column: str, value: object) -> object:
    if column in _INTEGERS:
        return int(str(value)) if value is not None else 0
    if column == "EndTime":
        return _epoch(value)
    if column == "ServiceLevel":
        return Decimal(str(value)).quantize(Decimal("0.001"), ROUND_HALF_UP)
    text = "None" if value is None or value == "" else str(value)
    letters = unicodedata.normalize("NFKD", text.rstrip(" "))
    return "".join(letter for letter in letters if not unicodedata.combining(letter)).casefold()


def _epoch(value: object) -> int:
    """Seconds, from a number, its text, ISO text or a datetime (without a zone: UTC)."""
    if isinstance(value, str) and not value.lstrip("-").isdecimal():
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    return int(str(value))
