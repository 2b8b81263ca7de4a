"""A statement as an HTML page that needs no other file, and prints on one sheet of paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from publisher.model.text import visible
from publisher.reporting.statement.verdict import MEANINGS, Badge

Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # headings, and rows of as many cells
_WIDE: Final = 4  # columns: a table of more has a line of its own
_COLOURS: Final = {
    Badge.COMPLETE: "good",
    Badge.SO_FAR: "soft",
    Badge.NO_DATA: "soft",
    Badge.DIFFERENT: "bad",
    Badge.UNKNOWN: "bad",
}
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --good: #116329; --bad: #a40e26; --soft: #4d5761 }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ --good: #6fdc8c; --bad: #ff9aa5; --soft: #aeb8c2 }}
}}
body {{ font: 16px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; \
padding: 0 1rem; overflow-wrap: anywhere }}
h1 {{ font-size: 1.4rem; margin: 0 }}
h2 {{ font-size: 1.1rem; margin: 1.2rem 0 0; padding-top: .6rem; border-top: 2px solid #8888 }}
p {{ margin: .2rem 0 }}
main {{ display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: flex-start }}
h2, p {{ flex: 0 0 100%; min-width: 0 }}
.table {{ flex: 1 1 20rem; min-width: 0; overflow-x: auto }}
.wide {{ flex: 0 0 100% }}
.badge {{ display: inline-block; margin: .5rem .6rem .2rem 0; padding: .1rem .7rem; \
border: 2px solid; border-radius: 1rem; font-weight: 700; text-transform: uppercase }}
.good {{ color: var(--good) }}
.bad {{ color: var(--bad) }}
.soft {{ color: var(--soft) }}
table {{ border-collapse: collapse; width: 100%; margin: .6rem 0; \
font-variant-numeric: tabular-nums }}
th, td {{ text-align: right; padding: .2rem .3rem; border-bottom: 1px solid #8888; \
white-space: nowrap }}
th {{ vertical-align: bottom }}
th:first-child, td:first-child {{ text-align: left; white-space: normal; min-width: 9rem }}
@page {{ size: A4; margin: 12mm }}
@media print {{
  :root {{ color-scheme: light }}
  body {{ font-size: 8.5pt; line-height: 1.3; max-width: none; margin: 0; padding: 0 }}
  .table {{ flex-basis: 40%; overflow: visible }}
  .wide {{ flex-basis: 100% }}
  th, td {{ padding: .08rem .3rem }}
  table {{ margin: .3rem 0 }}
  h2 {{ margin-top: .6rem; padding-top: .3rem; break-after: avoid }}
  tr {{ break-inside: avoid }}
}}
</style>
</head>
<body>
<h1>{title}</h1>
<p><span class="badge {colour}">{badge}</span>{meaning}</p>
<main>
"""


def page(title: str, badge: Badge, parts: Iterable[str | Table]) -> Iterator[str]:
    """Yield the page piece by piece; lines about targets are its headings."""
    yield _PAGE.format(
        title=_html(title),
        colour=_COLOURS[badge],
        badge=_html(badge),
        meaning=_html(MEANINGS[badge]),
    )
    for part in parts:
        if not isinstance(part, str):
            yield from _table(*part)
        elif part:
            tag = "h2" if part.startswith("Target ") else "p"
            yield f"<{tag}>{_html(part)}</{tag}>\n"
    yield "</main>\n</body>\n</html>\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    wide = " wide" if len(columns) > _WIDE else ""
    yield f'<div class="table{wide}"><table>\n'
    for tag, lines in (("th", [columns]), ("td", rows)):
        for row in lines:
            yield "<tr>" + "".join(f"<{tag}>{_html(cell)}</{tag}>" for cell in row) + "</tr>\n"
    yield "</table></div>\n"


def _html(text: str) -> str:
    return escape(visible(text))
