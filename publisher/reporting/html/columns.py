"""Columns and tables of the report, and how their values are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from publisher.model.rates import amount_text
from publisher.model.time import Durations

Value = str | int | float | Decimal | None

LONG: Final = 24  # letters: a text of more needs room
UNKNOWN: Final = "unknown"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
# What spreadsheets take for the beginning of a formula, also behind white space (OWASP, CSV Injection).
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class CellKind(StrEnum):
    """What a column holds; None is unknown, or not there, and never zero."""

    TEXT = "text"
    DAY = "day"  # days since 1970
    COUNT = "count"
    MINUTES = "minutes"
    SECONDS = "seconds"  # shown in hours
    SCALED = "scaled"  # 1/1000 of benchmark units x seconds; shown in units x hours
    SHARE = "share"  # shown in per cent
    BYTES = "bytes"
    AMOUNT = "amount"  # decimal


@dataclass(frozen=True, slots=True)
class TableColumn:
    """`key` heads it in CSV files, `title` on the page and on terminals; `means` defines it."""

    key: str
    title: str
    kind: CellKind
    means: str

    def shown(self, value: Value) -> str:
        """For people."""
        match value:
            case None:
                return "–"
            case str():
                return value or "(none)"
            case Decimal():
                return amount_text(value)
        return _SHOWN[self.kind](value)

    def stored(self, value: Value) -> str:
        """For programs: plain numbers in seconds, bytes and fractions; '' for what is not known."""
        match value:
            case None:
                return ""
            case str():
                return _harmless(value)
            case Decimal():
                return amount_text(value)
        match self.kind:
            case CellKind.DAY:
                return day_text(int(value))
            case CellKind.SCALED:
                return amount_text(Decimal(int(value)) / 1000)
            case CellKind.SHARE:
                return f"{value:.6f}"
            case _:
                return str(value)

    @property
    def is_number(self) -> bool:
        return self.kind not in (CellKind.TEXT, CellKind.DAY)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report. `name` names its CSV file; `notes` are below it; `total` is one more row."""

    name: str
    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[tuple[Value, ...]]
    total: tuple[Value, ...] | None = None
    notes: Sequence[str] = ()

    def csv(self) -> str:
        """All rows without the total, which would be counted twice by who adds them up."""
        lines = [[column.key for column in self.columns]]
        lines += [[column.stored(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]
        return "".join(",".join(map(_quoted, line)) + "\r\n" for line in lines)


def text(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.TEXT, means)


def count(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.COUNT, means)


def minutes(key: str, title: str, means: str) -> TableColumn:
    return TableColumn(key, title, CellKind.MINUTES, f"{means} In minutes, rounded down.")


def spread(durations: Durations, edges: Sequence[int], names: Sequence[str]) -> list[tuple[str, int]]:
    """How many took how long; at last, those of which it is not known."""
    counts = durations.within(edges)
    unknown = durations.unknown + durations.negative
    return [*zip(names, counts, strict=True), *([(UNKNOWN, unknown)] if unknown else [])]


def day_text(day: int) -> str:
    """`2026-03-05` of a number of days since 1970."""
    try:
        return f"{_EPOCH + timedelta(days=day):%Y-%m-%d}"
    except OverflowError:
        return f"day {day}"


def size_text(count: float) -> str:
    """`1.2 MB`, by thousands."""
    at = 0
    while count >= 1000 and at < len(_UNITS) - 1:
        count, at = count / 1000, at + 1
    return f"{count:,.0f} {_UNITS[at]}" if at == 0 else f"{count:,.1f} {_UNITS[at]}"


def minutes_text(minutes: int | None) -> str:
    """`3 h 05 min`, rounded down to the minute."""
    if minutes is None:
        return "unknown"
    if minutes < 1:
        return "under 1 min"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // 1440} days {minutes % 1440 // 60} h"


def hours_text(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 100 or hours == 0 else f"{hours:,.1f}" if hours >= 0.1 else f"{hours:.3f}"


def share_text(share: float) -> str:
    return f"{share * 100:.1f} %"


def _harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula; control characters are written out."""
    if text.strip().startswith(_FORMULA) or text.startswith(_FORMULA):
        text = f"'{text}"
    return printable(text)


def printable(text: str) -> str:
    """A text on one line, in which nothing hides: control characters and what reverses the direction are written out."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(letter in text for letter in ',";\r\n') else text


_SHOWN: Final[Mapping[CellKind, Callable[[float], str]]] = {
    CellKind.TEXT: str,
    CellKind.DAY: lambda value: day_text(int(value)),
    CellKind.COUNT: lambda value: f"{value:,}",
    CellKind.MINUTES: lambda value: minutes_text(int(value)),
    CellKind.SECONDS: hours_text,
    CellKind.SCALED: lambda value: hours_text(value / 1000),
    CellKind.SHARE: share_text,
    CellKind.BYTES: size_text,
    CellKind.AMOUNT: str,
}
