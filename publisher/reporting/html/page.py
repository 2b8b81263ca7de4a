"""The report as one HTML file that needs nothing else, as text for a terminal or a mail, and as CSV
files.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from publisher import __version__
from publisher.model.text import visible
from publisher.model.time import iso
from publisher.reporting.html.columns import LONG, Table
from publisher.reporting.html.plots import Plot, report_plots
from publisher.reporting.html.tables import definitions, tables
from publisher.reporting.html.text import figures, findings
from publisher.reporting.html.values import day_text
from publisher.reporting.report import DAY_S, Report

_MOST_ROWS: Final = 500  # of a table on the page
# Title, and the names of plots and of tables, in their order.
_SECTIONS: Final = (
    ("Days", ("usage_by_day", "jobs_by_day"), ("days",)),
    ("VOs", ("vos",), ("vos",)),
    ("Queues", ("queues",), ("queues",)),
    ("Users", ("users",), ("users",)),
    ("Projects and charges", ("projects",), ("projects", "accounts", "local_users", "charges", "allocations")),
    ("GPUs", (), ("gpu_models",)),
    ("Benchmarks", ("benchmarks",), ("benchmarks",)),
    ("Statuses", (), ("statuses",)),
    ("Waiting times", ("waits",), ("waits_by_queue", "waits")),
    ("Sources", (), ("sources",)),
    ("Delivery", ("lags", "messages", "bytes"), ("delivery", "set_aside", "lags", "messages")),
    ("Drift", (), ("drift",)),
    ("Definitions", (), ("definitions",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    name: str
    title: str
    plots: Sequence[Plot]
    tables: Sequence[Table]


def page(report: Report) -> Iterator[str]:
    """The file, piece by piece."""
    # Whatever comes from jobs passes through autoescape; what does not is marked safe in the template.
    environment = Environment(
        loader=PackageLoader("publisher.reporting", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"visible": visible, "base64": _base64}
    script = environment.get_template("page.js").render()
    return environment.get_template("page.html.j2").generate(
        title=f"Accounting report: {visible(report.site)}",
        start=_moment(report.window.start),
        end=_moment(report.window.end, end=True),
        made_at=iso(report.made_at),
        identity=report.identity,
        version=__version__,
        figures=figures(report),
        findings=findings(report),
        sections=list(_sections(report)),
        most_rows=_MOST_ROWS,
        long=LONG,
        script=script,
        script_digest=b64encode(sha256(script.encode()).digest()).decode(),
    )


def _sections(report: Report) -> Iterator[_Section]:
    made = tables(report)
    by_name: Mapping[str, Table] = {one.name: one for one in [*made, definitions(made)]}
    drawn = report_plots(report)
    for title, plots, names in _SECTIONS:
        yield _Section(
            name=title.lower().replace(" ", "-"),
            title=title,
            plots=[drawn[name] for name in plots],
            tables=[by_name[name] for name in names if name in by_name],
        )


def _base64(text: str) -> str:
    return b64encode(text.encode("utf-8", "backslashreplace")).decode()


def _moment(at: int | None, *, end: bool = False) -> str:
    """A day where it begins or ends, else a clock time."""
    if at is None:
        return "the beginning"
    if at % DAY_S == 0:
        return f"the end of {day_text(at // DAY_S - 1)}" if end else day_text(at // DAY_S)
    return iso(datetime.fromtimestamp(at, UTC))
