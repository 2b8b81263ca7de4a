"""Results on standard output, as text or as one JSON object.

Tables are drawn where they fit on a terminal, and otherwise printed so that nothing is cut off.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from shutil import get_terminal_size
from typing import Any, Final, NamedTuple, TextIO, TypeVar
from unicodedata import east_asian_width

from publisher.cli.logs import shown
from publisher.cli.parser import Form
from publisher.model.entry import EarlierRuns
from publisher.model.job import Epoch
from publisher.model.text import NO_VO, harmless, plural, visible
from publisher.model.totals import month_name

Json = Mapping[str, Any]
_Result = TypeVar("_Result")

# Of every JSON output; another number where a field goes or means something else
_SCHEMA: Final = {"schema": 1}
_MOST_CHANGES: Final = 10  # of fields, in the text of a plan
_WIDEST: Final = 100  # cells beyond that do not widen a column
_FRAME: Final = 3  # columns that a drawn table needs beside each of its own, and one at the end


class TextTable(NamedTuple):
    """Names of columns, and rows of as many cells; `empty` is shown where there is no row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    empty: str = ""


Part = str | TextTable


def print_result(
    result: _Result,
    as_json: Callable[[_Result], Json],
    as_text: Callable[[_Result], Iterable[Part]],
    *,
    form: Form,
    rows: str = "",
) -> None:
    """What a command found: lines and tables for people, one JSON object and nothing else, or rows.

    Rows are the entries of the object's list or mapping `rows`; without one it is a row itself.
    """
    if form is Form.JSON:
        print_json(as_json(result), sys.stdout)
        return
    if form is not Form.TABLE:
        print_rows(_rows_of(as_json(result), rows), form)
        return
    for part in as_text(result):
        if not isinstance(part, TextTable):
            print_line(part)
        elif part.rows or not part.empty:
            print_table(part.columns, part.rows)
        else:
            print_line(part.empty)


def text_pieces(parts: Iterable[Part]) -> Iterator[str]:
    """Yield lines and plain tables, as they go to a file."""
    for part in parts:
        if not isinstance(part, TextTable):
            yield visible(part) + "\n"
            continue
        rows = [list(map(visible, row)) for row in (part.columns, *part.rows)]
        widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
        yield from _plain_lines(rows, widths)


def print_line(text: str) -> None:
    sys.stdout.write(shown(text) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Plain on a pipe. On a terminal a drawn or plain table or, where too wide, a block a row."""
    out = sys.stdout
    rows = [list(map(shown, row)) for row in rows]
    cells = [list(map(_width, column)) for column in zip(columns, *rows, strict=True)]
    widths = list(map(_width_of_column, cells))
    beside = get_terminal_size().columns - sum(widths)
    if _draws(out) and max(map(max, cells)) <= _WIDEST and _FRAME * len(widths) + 1 <= beside:
        _print_drawn(columns, rows, widths, out)
    elif not rows or not out.isatty() or 2 * (len(widths) - 1) <= beside:
        out.writelines(_plain_lines([columns, *rows], widths))
    else:
        _print_blocks(columns, rows, out)


def fits_screen(table: TextTable, lines: int) -> bool:
    """Return whether a table takes at most so many lines of a terminal; elsewhere it always fits.

    Where it is too wide, each row takes as many lines as there are columns, and an empty one.
    """
    if not sys.stdout.isatty():
        return True
    columns = zip(table.columns, *table.rows, strict=True)
    widths = [max(map(_width, map(shown, column))) for column in columns]
    width = sum(widths) + 2 * (len(widths) - 1)
    is_wide = width > get_terminal_size().columns
    return len(table.rows) * (len(table.columns) + 1 if is_wide else 1) <= lines


def _draws(out: TextIO) -> bool:
    return out.isatty() and out.encoding.lower().startswith("utf")


def _width_of_column(cells: Sequence[int]) -> int:
    return max(width for width in cells if width <= _WIDEST)


def _plain_lines(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    for row in rows:
        sized = zip(row, widths, strict=True)
        cells = [text + " " * (width - _width(text)) for text, width in sized]
        yield "  ".join(cells).rstrip() + "\n"


def _print_drawn(
    columns: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], out: TextIO
) -> None:
    """In a frame of box-drawing characters."""

    def line(ends: str, cells: Iterable[str], between: str, fill: str = " ") -> None:
        sized = zip(cells, widths, strict=True)
        padded = [f"{fill}{cell}{fill * (width - _width(cell) + 1)}" for cell, width in sized]
        out.write(ends[0] + between.join(padded) + ends[1] + "\n")

    empty = [""] * len(widths)
    line("┏┓", empty, "┳", "━")
    line("┃┃", columns, "┃")
    line("┡┩", empty, "╇", "━")
    for row in rows:
        line("││", row, "│")
    line("└┘", empty, "┴", "─")


def _width(text: str) -> int:
    """In columns of a terminal: letters of East Asian scripts take two."""
    return len(text) + sum(east_asian_width(letter) in "WF" for letter in text)


def _print_blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """A line for each value: it may be as long as it likes, and be copied whole."""
    width = max(map(len, columns))
    for at, row in enumerate(rows):
        if at:
            out.write("\n")
        for column, text in zip(columns, row, strict=True):
            out.write(f"{column.ljust(width)}  {text}".rstrip() + "\n")


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[str]], out: TextIO) -> None:
    """A line of names, then a line per row; no spreadsheet takes a cell for a formula."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([harmless(cell) for cell in row])


def print_json(result: Mapping[str, Any], out: TextIO) -> None:
    out.write(json.dumps({**_SCHEMA, **result}, indent=2) + "\n")


def _rows_of(result: Json, name: str) -> Iterator[Json]:
    """The entries of a list, or of a mapping with names: `targets` of `{"target": NAME, ...}`."""
    entries = result[name] if name else [result]
    if isinstance(entries, Mapping):
        yield from ({name.removesuffix("s"): each, **entry} for each, entry in entries.items())
    else:
        yield from entries


def print_rows(rows: Iterable[Json], form: Form, columns: Sequence[str] = ()) -> None:
    """As CSV, or as a JSON object a line. Without `columns`, the first row names them."""
    if form is Form.JSON_LINES:
        for row in rows:
            sys.stdout.write(json.dumps({**_SCHEMA, **row}) + "\n")
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if columns:
        writer.writerow(columns)
    for row in rows:
        cells = dict(_cells(row))
        if not columns:
            columns = list(cells)
            writer.writerow(columns)
        writer.writerow([harmless(cells.get(name, "")) for name in columns])


def _cells(row: Json, above: str = "") -> Iterator[tuple[str, str]]:
    """The columns of a row: `at_ce.wall_s` for a value in an object; `;` between several."""
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            yield from _cells(value, f"{above}{name}.")
        elif isinstance(value, list):
            yield above + name, ";".join(map(_cell, value))
        else:
            yield above + name, _cell(value)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def print_list(name: str, entries: Iterable[Any], *, form: Form, after: Json) -> None:
    """Entries that are written as they come, for memory may not hold all: a line an entry.

    As JSON they are the last list of the object `after`.
    """
    out = sys.stdout
    if form is not Form.JSON:
        print_rows(entries, form)
        return
    before = json.dumps({**_SCHEMA, **after}, indent=2).removesuffix("\n}")
    out.write(f"{before},\n  {json.dumps(name)}: [")
    between = "\n    "
    for entry in entries:
        out.write(between + json.dumps(entry))
        between = ",\n    "
    out.write("\n  ]\n}\n")


def attributes(source: object, *names: str) -> dict[str, Any]:
    """Some of its attributes by name, as JSON shows them; moments as text."""
    found = ((name, getattr(source, name)) for name in names)
    return {name: moment_text(it) if isinstance(it, datetime) else it for name, it in found}


def moment_text(moment: datetime | Epoch | None) -> str | None:
    """ISO 8601 with Z; an end time outside the calendar is shown as its number of seconds."""
    if moment is None:
        return None
    if isinstance(moment, int):
        try:
            moment = datetime.fromtimestamp(moment, UTC)
        except (OverflowError, OSError, ValueError):
            return f"{moment} s"
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def earlier_json(earlier: EarlierRuns | None) -> Json | None:
    """Return what is known of jobs that were sent under other settings."""
    if earlier is None:
        return None
    months = earlier.months
    return {
        "jobs": None if months is None else sum(months.values()),
        "months": [] if months is None else [month_name(month) for month in sorted(months)],
        "counted": moment_text(earlier.counted_at),
        "at_most": earlier.at_most,
    }


def plan_earlier_json(earlier: EarlierRuns | None) -> Json | None:
    """Return what a plan knows of jobs that were sent under other settings."""
    found = earlier_json(earlier)
    if earlier is None or found is None:
        return None
    changes = [
        {"field": one.field, "was": one.was, "becomes": one.becomes, "jobs": runs}
        for one, runs in earlier.changes.items()
    ]
    return {**found, "changes": changes}


def earlier_text(target: str, earlier: EarlierRuns) -> str:
    """Return what is known of jobs that were sent under other settings; '' where there are none."""
    if earlier.months is None:
        command = f"`publisher plan --target {target}`"
        jobs = plural(earlier.at_most, "job was", "jobs were")
        return f"at most {jobs} sent under other settings: {command} counts those with other keys"
    if not earlier.months:
        return ""
    first, last = month_name(min(earlier.months)), month_name(max(earlier.months))
    months = first if first == last else f"{first} to {last}"
    jobs = plural(sum(earlier.months.values()), "job")
    counted = "" if earlier.counted_at is None else f" (counted {moment_text(earlier.counted_at)})"
    command = f"`publisher republish --from {first} --to {last} --target {target}` moves them"
    more = len(earlier.changes) - _MOST_CHANGES
    changes = [
        f"\n  {one.field} {_value(one.field, one.was)} -> {_value(one.field, one.becomes)}: "
        + plural(runs, "job")
        for one, runs in islice(earlier.changes.items(), _MOST_CHANGES)
    ]
    changes += [f"\n  ... and {more:,} other changes"] * (more > 0)
    text = f"{jobs} of {months} would have other keys under today's settings{counted}: {command}"
    return text + "".join(changes)


def _value(field: str, text: str) -> str:
    """Return a field's value for people."""
    return text or (NO_VO if field == "VO" else "(none)")


_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def duration(seconds: int | None) -> str:
    """`93,784 s (1 day, 2:03:04)`."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds} s"
    try:
        return f"{seconds:,} s ({timedelta(seconds=seconds)})"
    except OverflowError:
        return f"{seconds:,} s"


def hours(seconds: int) -> str:
    """Return `26.1 h`, and what is less than a minute in seconds."""
    if abs(seconds) < 60:
        return f"{seconds} s"
    places = 1 if abs(seconds) >= 36_000 else 2
    return f"{seconds / 3600:,.{places}f} h"


def size(count: int | None, unit: str = "B") -> str:
    """`2,097,152 KiB (2.0 GiB)`: a number of the unit, and rounded where it is large."""
    if count is None:
        return "unknown"
    scaled, at = float(count), _UNITS.index(unit)
    while scaled >= 1024 and at < len(_UNITS) - 1:
        scaled, at = scaled / 1024, at + 1
    exact = f"{count:,} {'bytes' if unit == 'B' else unit}"
    return exact if _UNITS[at] == unit else f"{exact} ({scaled:,.1f} {_UNITS[at]})"


def moment(value: Epoch | None) -> str:
    return moment_text(value) or "unknown"
