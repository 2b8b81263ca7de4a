"""Counts saved from the accounting portal's page of sync records: CSV or JSON, with the columns it names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from publisher.errors import UsageError
from publisher.model.row_keys import month_number_of, sync_host

_NAMES: Final = {
    "month": ("month",),
    "year": ("year",),
    "host": ("submithost", "host", "ce"),
    "jobs": ("numberofjobs", "jobs", "count", "records", "njobs"),
    "site": ("site", "sitename"),
}
_LARGEST: Final = 64 * 1024 * 1024


def read(path: Path, site: str) -> dict[tuple[int, str], int]:
    """Jobs by (12 x year + month - 1, submit host), of this site where the file names sites.

    A month may be a column of its own beside the year, or `2026-03` alone. Raises: UsageError for a file that is none.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path}: larger than {_LARGEST} bytes, which no such page is")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as text: {error}") from error
    counts: dict[tuple[int, str], int] = {}
    for number, row in enumerate(_rows(text, path), start=1):
        try:
            named = {name: _value(row, spellings) for name, spellings in _NAMES.items()}
            if named["site"] not in (None, "", site):
                continue
            at = (_month(str(named["year"] or ""), str(named["month"])), sync_host(str(named["host"] or "")))
            counts[at] = counts.get(at, 0) + int(str(named["jobs"]))
        except (KeyError, ValueError, TypeError) as error:
            raise UsageError(
                f"{path}: row {number} ({row!r:.80}) is no count: {error}; "
                "columns must be Month and Year (or Month as 2026-03), SubmitHost and NumberOfJobs"
            ) from error
    return counts


def _rows(text: str, path: Path) -> Iterable[Mapping[str, Any]]:
    if not text.lstrip().startswith(("[", "{")):
        return csv.DictReader(io.StringIO(text))
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    rows = (
        next((value for value in parsed.values() if isinstance(value, list)), [])
        if isinstance(parsed, dict)
        else parsed
    )
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: not a list of objects, one a count")
    return rows


def _value(row: Mapping[str, Any], spellings: tuple[str, ...]) -> Any:
    plain = {str(name).replace("_", "").replace(" ", "").lower(): value for name, value in row.items()}
    return next((plain[spelling] for spelling in spellings if spelling in plain), None)


def _month(year: str, month: str) -> int:
    if "-" in month and not year:
        year, _, month = month.partition("-")
    number = int(month)
    if not 1 <= number <= 12:
        raise ValueError(f"month {month}")
    return month_number_of(int(year), number)
