"""Tables on a terminal: whole, aligned, and in a frame where terminal and width allow it."""

from __future__ import annotations

import io
import sys

import pytest

from publisher.cli.output import print_csv, print_table

COLUMNS = ("target", "user")
ROWS = [("egi", "山田太郎"), ("nordugrid", "x\x1b[2J")]
DRAWN = """\
┏━━━━━━━━━━━┳━━━━━━━━━━┓
┃ target    ┃ user     ┃
┡━━━━━━━━━━━╇━━━━━━━━━━┩
│ egi       │ 山田太郎 │
│ nordugrid │ x\\x1b[2J │
└───────────┴──────────┘
"""
PLAIN = """\
target     user
egi        山田太郎
nordugrid  x\\x1b[2J
"""
BLOCKS = """\
target  egi
user    山田太郎

target  nordugrid
user    x\\x1b[2J
"""


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("encoding", "width", "expected"),
    [("utf-8", 24, DRAWN), ("utf-8", 23, PLAIN), ("utf-8", 18, BLOCKS), ("gb18030", 200, PLAIN)],
)
def test_a_table_takes_the_widest_form_that_fits(
    encoding: str, width: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", Terminal(written, encoding=encoding))
    print_table(COLUMNS, ROWS)
    sys.stdout.flush()
    assert written.getvalue().decode(encoding) == expected


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        (" @SUM(1)", "' @SUM(1)"),
        ("-2+3", "'-2+3"),
        ("\uff1d1", "'\uff1d1"),
        ("-17.25", "-17.25"),
        ("0", "0"),
        ("a=b", "a=b"),
    ],
)
def test_no_spreadsheet_takes_a_cell_for_a_formula(cell: str, written: str) -> None:
    out = io.StringIO()
    print_csv(("name",), [(cell,)], out)
    assert out.getvalue() == f"name\n{written}\n"
