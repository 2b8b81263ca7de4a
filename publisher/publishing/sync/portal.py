"""Counts from the accounting portal's page of sync records: CSV or JSON, by its columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from publisher.model.errors import UsageError
from publisher.model.time import Month
from publisher.model.totals import column, sync_host

_NAMES: Final = {
    "month": ("month",),
    "year": ("year",),
    "host": ("submithost", "host", "ce"),
    "jobs": ("numberofjobs", "jobs", "count", "records", "njobs"),
    "site": ("site", "sitename"),
}
_NEEDED: Final = ("month", "jobs")
_DELIMITERS: Final = ",;\t|"
_COLUMNS: Final = (
    "columns must be Month and Year (or Month as 2026-03), SubmitHost (or none, for months as a "
    "whole) and NumberOfJobs"
)
_LARGEST: Final = 64 * 1024 * 1024
EVERY_HOST: Final = "*"  # stands for all submit hosts of a month, in a file that names none


def read(path: Path, site: str) -> dict[tuple[int, str], int]:
    """Jobs by (12 x year + month - 1, submit host), of this site where the file names sites.

    A month may be a column of its own beside the year, or `2026-03` alone. Raises: UsageError for a
    file that is none, or that has nothing of the site: that is not 0 jobs.
    """
    text = _text_of(path)
    counts: dict[tuple[int, str], int] = {}
    for number, row in enumerate(_rows(text, path), start=1):
        if None in row:
            raise UsageError(
                f"{path}: row {number} ({row!r:.80}) has more columns than the heading; {_COLUMNS}"
            )
        try:
            named = {name: _value(row, spellings) for name, spellings in _NAMES.items()}
            if not _is_of(site, named["site"]):
                continue
            host = EVERY_HOST if named["host"] is None else sync_host(str(named["host"]))
            at = (_month(str(named["year"] or ""), str(named["month"])), host)
            counts[at] = counts.get(at, 0) + _jobs(str(named["jobs"]))
        except (KeyError, ValueError, TypeError) as error:
            raise UsageError(
                f"{path}: row {number} ({row!r:.80}) is not a count: {error}; {_COLUMNS}"
            ) from error
    if not counts:
        raise UsageError(f"{path}: has no count for site {site}; {_COLUMNS}")
    return counts


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path}: larger than {_LARGEST} bytes, too large for such a page")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        advice = "name the file that was saved from the portal"
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}; {advice}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not text in UTF-8; {_COLUMNS}") from error


def _is_of(site: str, named: Any) -> bool:
    return named in (None, "") or column(str(named)) == column(site)


def _rows(text: str, path: Path) -> Iterable[Mapping[str, Any]]:
    if not text.lstrip().startswith(("[", "{")):
        return _table(text.lstrip(), path)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    lists = list(parsed.values()) if isinstance(parsed, dict) else [parsed]
    for rows in lists:
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            return rows
    raise UsageError(f"{path}: not a list of objects, one per count; {_COLUMNS}")


def _table(text: str, path: Path) -> Iterable[Mapping[str, Any]]:
    """The rows of a CSV, whose delimiter is the one that its heading has most of."""
    heading = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=heading.count)
    rows = csv.DictReader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
    names = dict.fromkeys(rows.fieldnames or (), "")
    if any(_value(names, _NAMES[needed]) is None for needed in _NEEDED):
        raise UsageError(f"{path}: the heading {heading[:80]!r} is not one of counts; {_COLUMNS}")
    return rows


def _value(row: Mapping[str, Any], spellings: tuple[str, ...]) -> Any:
    plain = {
        str(name).replace("_", "").replace(" ", "").lower(): value for name, value in row.items()
    }
    return next((plain[spelling] for spelling in spellings if spelling in plain), None)


def _month(year: str, month: str) -> int:
    if "-" in month and not year:
        year, _, month = month.partition("-")
    number = int(month)
    if not 1 <= number <= 12:
        raise ValueError(f"month {month}")
    return Month(int(year), number).number


def _jobs(text: str) -> int:
    """A whole number, also with commas between thousands. Raises: ValueError."""
    jobs = int(text.replace(",", ""))
    if jobs < 0:
        raise ValueError(f"{text} jobs")
    return jobs
