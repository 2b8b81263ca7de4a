"""The report as text for a terminal, and as CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from publisher.reporting.html.columns import Table, Value
from publisher.reporting.html.highlights import figures, findings
from publisher.reporting.html.tables import definitions, tables
from publisher.reporting.report import Report

_MOST_ROWS: Final = 20


_BAR: Final = 24


_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


# The column whose size each table's bars show.
_BARS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("days", "vos", "queues", "users", "projects", "statuses", "benchmarks"), "wall_core_s"),
    **dict.fromkeys(("waits", "lags"), "jobs"),
    "messages": "bytes",
    "charges": "amount",
}


# Too wide for a terminal beside the rest.
_LEFT_OUT: Final = frozenset({"wall_s"})


def headlines(report: Report) -> Iterator[str]:
    """The numbers to see first, and what to look at."""
    for figure in figures(report):
        yield f"{figure.name:<22}{figure.value}  ({figure.text})"
    yield ""
    for finding in findings(report):
        yield f"{'! ' if finding.bad else 'ok '}{finding.about}: {finding.text}"


def drawn(report: Report) -> Iterator[tuple[str, list[str], list[tuple[str, ...]]]]:
    """Each table that has rows, for a terminal: title, headings, cells; with a bar at the end of each row."""
    for table in tables(report):
        if not table.rows:
            continue
        shown = [at for at, column in enumerate(table.columns) if column.key not in _LEFT_OUT]
        heads = [table.columns[at].title for at in shown]
        sizes = _sizes(table)
        rows = [_cells(table, row, shown) for row in table.rows[:_MOST_ROWS]]
        if sizes:
            heads.append("")
            largest = max(sizes, default=0.0)
            rows = [(*row, _bar(size / largest if largest else 0.0)) for row, size in zip(rows, sizes, strict=False)]
        yield _title(table), heads, rows


def _title(table: Table) -> str:
    more = len(table.rows) - _MOST_ROWS
    return f"{table.title}, the first {_MOST_ROWS}; {more:,} more" if more > 0 else table.title


def files(report: Report) -> Iterator[tuple[str, str]]:
    """Name and content of every CSV file, the definitions of their columns last."""
    made = tables(report)
    for table in [*made, definitions(made)]:
        yield f"{table.name}.csv", table.csv()


def _cells(table: Table, row: Sequence[Value], shown: Sequence[int]) -> tuple[str, ...]:
    return tuple(table.columns[at].shown(row[at]) for at in shown)


def _sizes(table: Table) -> list[float]:
    measured = _BARS.get(table.name)
    places = [at for at, column in enumerate(table.columns) if column.key == measured]
    return [float(row[places[0]] or 0) for row in table.rows] if places else []


def _bar(share: float) -> str:
    eighths = round(max(share, 0.0) * _BAR * 8)
    return (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
