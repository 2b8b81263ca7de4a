"""The report as one HTML file that needs nothing else, as text for a terminal, and as CSV files."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from publisher import __version__
from publisher.model.text import visible
from publisher.model.time import iso
from publisher.reporting.html.columns import LONG, Table
from publisher.reporting.html.plots import Plot, report_plots, shows_days
from publisher.reporting.html.tables import IDENTITIES, definitions, tables
from publisher.reporting.html.text import answers, figures, findings
from publisher.reporting.report import Report
from publisher.reporting.usage import DAY_S, OTHER_VOS, Cell

_MOST_ROWS: Final = 500  # of a table on the page
_PLAIN_SUMS: Final = ("jobs", "failed", "wall_core_s", "cpu_s", "gpu_s")
_MEASURES: Final = (  # title, number of the sum, and what makes hours or days of it
    ("Core hours", 2, 3600),
    ("Core days", 2, DAY_S),
    ("Jobs", 0, 1),
    ("Failed jobs", 1, 1),
    ("CPU hours", 3, 3600),
    ("GPU hours", 4, 3600),
)
# What is not to break at the end of a line: `8.2 %`, `2 h`, `2026-10`, `2026-11-14T23:57:00Z`
_NUMBER: Final = re.compile(
    r"(?<![\w/.-])([+-]?\d[\d,.]* (?:%|h|min)(?!\w)|\d{4}-\d\d[\dTZ:-]*(?![\w/]))"
)
_HARMLESS: Final = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}
# Title, and the names of plots and of tables, in their order. The summary comes first, two pages on
# paper; the others are its appendix.
_SUMMARY: Final = (
    ("Over time", ("usage_over_time", "jobs_over_time"), ()),
    ("Failures", (), ("failure_reasons",)),
    ("Delivery", (), ("delivery",)),
)
_APPENDIX: Final = (
    ("Months", ("months",), ("months",)),
    ("Days", (), ("days",)),
    ("VOs", ("vos",), ("vos",)),
    ("Queues", ("queues",), ("queues",)),
    ("Users", ("users",), ("users",)),
    ("Projects", ("projects",), ("projects", "accounts", "local_users")),
    ("Charges and allocations", ("allocations",), ("charges", "allocations")),
    ("GPUs", (), ("gpu_models",)),
    ("Benchmarks", ("benchmarks",), ("benchmarks",)),
    ("Waiting times", ("waits",), ("waits_by_queue", "waits")),
    ("Sources", (), ("sources",)),
    ("Failed jobs", (), ("failures", "statuses")),
    ("Messages", ("lags", "messages", "bytes"), ("set_aside", "lags", "messages")),
    ("Drift", (), ("drift",)),
    ("Definitions", (), ("definitions",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    name: str
    title: str
    plots: Sequence[Plot]
    tables: Sequence[Table]
    is_appendix: bool


def page(report: Report) -> Iterator[str]:
    """The file, piece by piece."""
    # Whatever comes from jobs passes through autoescape; the template marks what is safe.
    environment = Environment(
        loader=PackageLoader("publisher.reporting", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"visible": visible, "base64": _base64, "pieces": _NUMBER.split}
    script = environment.get_template("page.js").render()
    return environment.get_template("page.html.j2").generate(
        title=f"Accounting report: {visible(report.site)}",
        period=str(report.window),
        made_at=iso(report.made_at),
        identity=IDENTITIES[report.identity],
        version=__version__,
        answers=answers(report),
        figures=figures(report),
        findings=findings(report),
        sections=list(_sections(report)),
        sums=_sums(report),
        left_out=_left_out(report.usage.cells.left_out),
        most_rows=_MOST_ROWS,
        long=LONG,
        script=script,
        script_digest=b64encode(sha256(script.encode()).digest()).decode(),
    )


def _sections(report: Report) -> Iterator[_Section]:
    made = tables(report)
    by_name: Mapping[str, Table] = {one.name: one for one in [*made, definitions(made)]}
    drawn = report_plots(report)
    for title, plots, names in (*_SUMMARY, *_APPENDIX):
        if title == "Days" and not shows_days(report):
            continue
        yield _Section(
            name=title.lower().replace(" ", "-"),
            title=title,
            plots=[drawn[name] for name in plots if name in drawn],
            tables=[by_name[name] for name in names if name in by_name],
            is_appendix=(title, plots, names) in _APPENDIX,
        )


def _left_out(names: Sequence[str]) -> str:
    """Return what cannot be chosen, in words; '' where everything can."""
    *dropped, last = [name for name in names if name not in ("small VOs", "days")] or [""]
    which = f"{', '.join(dropped)} and {last}" if dropped else last
    notes = [f"{which} cannot be chosen"] if last else []
    notes += ["small VOs are put together"] if "small VOs" in names else []
    notes += ["days are added up to months"] if "days" in names else []
    return ", ".join(notes)


def _sums(report: Report) -> str:
    """The sums to choose from, as JSON that is harmless in HTML: names by number, and numbers."""
    names: list[dict[str, int]] = [{} for _ in Cell._fields[1:]]
    kinds = sorted(report.usage.total.scaled)
    rows = []
    for cell, found in sorted(report.usage.cells.sums.items()):
        numbers = [
            known.setdefault(visible(name), len(known))
            for known, name in zip(names, cell[1:], strict=True)
        ]
        rows.append([cell.day, *numbers, *(found[name] for name in (*_PLAIN_SUMS, *kinds))])
    measures = list(_MEASURES)
    for at, kind in enumerate(kinds, len(_PLAIN_SUMS)):
        measures += [(f"{kind} hours", at, 3_600_000), (f"{kind} days", at, 86_400_000)]
    start = (report.window.start or 0) // DAY_S
    sums_to_choose = {
        "days": [rows[0][0], rows[-1][0]] if rows else [start, start],
        "months": "days" in report.usage.cells.left_out,
        "without": [name.removesuffix("s") for name in report.usage.cells.left_out],
        "others": OTHER_VOS,
        "names": [list(known) for known in names],
        "measures": [
            {"name": title, "at": at, "divisor": divisor} for title, at, divisor in measures
        ],
        "cells": rows,
    }
    return json.dumps(sums_to_choose, separators=(",", ":")).translate(_HARMLESS)


def _base64(text: str) -> str:
    return b64encode(text.encode("utf-8", "backslashreplace")).decode()
