"""What a table of a report is made of: columns with a name, a definition, and a form of their
values for people and for programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from publisher.model.rates import amount_text
from publisher.model.text import harmless
from publisher.model.time import Durations
from publisher.reporting.html.values import (
    change_text,
    day_text,
    days_text,
    hours_text,
    minutes_text,
    number_text,
    quoted,
    share_text,
    size_text,
    thousands_text,
)

Value = str | int | float | Decimal | None

LONG: Final = 24  # letters: a text of more needs room
UNKNOWN: Final = "unknown"


class CellKind(StrEnum):
    """What a column holds; None is unknown, or not there, and never zero."""

    TEXT = "text"
    DAY = "day"  # days since 1970
    COUNT = "count"
    MINUTES = "minutes"
    SECONDS = "seconds"  # shown in hours
    IN_DAYS = "in days"  # seconds, shown in days
    SCALED = "scaled"  # 1/1000 of benchmark units x seconds; shown in units x hours
    SCALED_DAYS = "scaled days"  # the same, shown in units x days
    SHARE = "share"  # shown in per cent
    CHANGE = "change"  # a share with its sign
    BYTES = "bytes"
    ENERGY = "energy"  # Wh; shown in kWh
    CARBON = "carbon"  # g; shown in kg
    AMOUNT = "amount"  # decimal


@dataclass(frozen=True, slots=True)
class TableColumn:
    """`key` heads it in CSV files, `title` on the page and on terminals; `means` defines it.

    A column that is not `in_files` says in another unit what a column beside it says.
    """

    key: str
    title: str
    kind: CellKind
    means: str
    in_files: bool = True

    def shown(self, value: Value) -> str:
        """For people."""
        match value:
            case None:
                return "–"
            case str():
                return value or "(none)"
        return KINDS[self.kind][1](value)

    def stored(self, value: Value) -> str:
        """For programs: plain numbers in seconds, bytes and fractions; '' for what is not known."""
        match value:
            case None:
                return ""
            case str():
                return harmless(value)
            case Decimal():
                return amount_text(value)
        match self.kind:
            case CellKind.DAY:
                return day_text(int(value))
            case CellKind.SCALED:
                return amount_text(Decimal(int(value)) / 1000)
            case CellKind.SHARE | CellKind.CHANGE:
                return f"{value:.6f}"
            case _:
                return str(value)

    @property
    def is_number(self) -> bool:
        return self.kind not in (CellKind.TEXT, CellKind.DAY)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report. `name` is of its CSV file; `notes` are below it; `total` is a row."""

    name: str
    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[tuple[Value, ...]]
    total: tuple[Value, ...] | None = None
    notes: Sequence[str] = ()

    def csv(self) -> str:
        """All rows without the total, which would be counted twice by who adds them up."""
        lines = [[column.key for column in self.columns if column.in_files]]
        for row in self.rows:
            cells = zip(self.columns, row, strict=True)
            lines.append([column.stored(value) for column, value in cells if column.in_files])
        return "".join(",".join(map(quoted, line)) + "\r\n" for line in lines)


def text(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.TEXT, means)


def count(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.COUNT, means)


def minutes(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.MINUTES, f"{means} In minutes, rounded down.")


def spread(
    durations: Durations, edges: Sequence[int], names: Sequence[str]
) -> list[tuple[str, int]]:
    """How many took how long; at last, those of which it is not known."""
    counts = durations.within(edges)
    unknown = durations.unknown + durations.negative
    return [*zip(names, counts, strict=True), *([(UNKNOWN, unknown)] if unknown else [])]


# The unit of what is stored, and how it is shown.
KINDS: Final[Mapping[CellKind, tuple[str, Callable[[Any], str]]]] = {
    CellKind.TEXT: ("text", str),
    CellKind.DAY: ("date", lambda value: day_text(int(value))),
    CellKind.COUNT: ("number", "{:,}".format),
    CellKind.MINUTES: ("min", lambda value: minutes_text(int(value))),
    CellKind.SECONDS: ("s", hours_text),
    CellKind.IN_DAYS: ("s", days_text),
    CellKind.SCALED: ("benchmark unit x s", lambda value: hours_text(value / 1000)),
    CellKind.SCALED_DAYS: ("benchmark unit x s", lambda value: days_text(value / 1000)),
    CellKind.SHARE: ("fraction", share_text),
    CellKind.CHANGE: ("fraction", change_text),
    CellKind.BYTES: ("bytes", size_text),
    CellKind.ENERGY: ("Wh", thousands_text),
    CellKind.CARBON: ("g", thousands_text),
    CellKind.AMOUNT: ("decimal", lambda value: number_text(float(value))),
}


_HOUR, _DAY = 60, 24 * 60  # in minutes
WAIT_EDGES_MIN: Final = (1, 5, 15, _HOUR, 4 * _HOUR, 12 * _HOUR, _DAY, 3 * _DAY)
WAIT_NAMES: Final = (
    *("< 1 min", "1-5 min", "5-15 min", "15-60 min"),
    *("1-4 h", "4-12 h", "12-24 h", "1-3 days", "> 3 days"),
)
LAG_EDGES_MIN: Final = (
    _HOUR,
    3 * _HOUR,
    6 * _HOUR,
    12 * _HOUR,
    _DAY,
    2 * _DAY,
    7 * _DAY,
    31 * _DAY,
)
LAG_NAMES: Final = (
    "< 1 h",
    "1-3 h",
    "3-6 h",
    "6-12 h",
    "12-24 h",
    "1-2 days",
    "2-7 days",
    "7-31 days",
    "> 31 days",
)
