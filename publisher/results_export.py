"""Exported jobs as JSON lines and as CSV, and what each column means."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Final

from publisher.exporting import LeftOut
from publisher.model.job_columns import COLUMNS, ExportedJob, Value

DEFINITION_COLUMNS: Final = ("column", "type", "unit", "meaning")


def json_lines(jobs: Iterable[ExportedJob]) -> Iterator[str]:
    """A JSON object a job, every column in each; decimals are numbers as they are written, never rounded."""
    for job in jobs:
        yield "{" + ", ".join(f"{_NAMES[column.name]}: {_json(column.value(job))}" for column in COLUMNS) + "}"


def csv_rows(jobs: Iterable[ExportedJob]) -> Iterator[list[str]]:
    """A row a job. Unknown is an empty cell, several texts are joined by `;`."""
    for job in jobs:
        yield [_cell(column.value(job)) for column in COLUMNS]


def definitions() -> list[tuple[str, ...]]:
    return [(column.name, column.kind, column.unit, column.meaning) for column in COLUMNS]


def left_out_lines(left_out: LeftOut) -> Iterator[str]:
    if left_out.in_progress:
        yield f"{left_out.in_progress:,} jobs are still in progress and were left out"
    for rule, count in sorted(left_out.unreadable.items()):
        yield f"{count:,} jobs were left out because their rows cannot be read: {rule}"


_NAMES: Final = {column.name: json.dumps(column.name) for column in COLUMNS}


def _json(value: Value) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value)


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ";".join(value)
    return format(value, "f") if isinstance(value, Decimal) else str(value)
