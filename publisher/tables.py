"""Lines and tables on standard output: drawn on a terminal where they fit, in every other case so that nothing is cut."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import Final, TextIO

_FRAME: Final = 3  # columns that a drawn table needs beside each of its own, and one at the end


def visible(text: str) -> str:
    """The text on one line with nothing that moves a cursor: job names and answers must not forge lines."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def print_line(text: str, out: TextIO) -> None:
    out.write(visible(text) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """A plain table on a pipe. On a terminal a drawn one, or a plain one; where that is too wide too, a block a row."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in [columns, *rows]) for at in range(len(columns))]
    room = get_terminal_size().columns
    if out.isatty() and sum(widths) + _FRAME * len(widths) + 1 <= room:
        _print_drawn(columns, rows, out)
    elif not rows or not out.isatty() or sum(widths) + 2 * (len(widths) - 1) <= room:
        _print_plain([columns, *rows], widths, out)
    else:
        _print_blocks(columns, rows, out)


def _print_plain(rows: Sequence[Sequence[str]], widths: Sequence[int], out: TextIO) -> None:
    for row in rows:
        out.write("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _print_drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    Console(file=out).print(table)


def _print_blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    """A line for each value: it may be as long as it likes, and be copied whole."""
    width = max(map(len, columns))
    for at, row in enumerate(rows):
        out.write("\n" if at else "")
        for column, text in zip(columns, row, strict=True):
            out.write(f"{column.ljust(width)}  {text}".rstrip() + "\n")


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[str]], out: TextIO) -> None:
    """A line of names, then a line a row, whatever stands in the cells."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([visible(cell) for cell in row])
