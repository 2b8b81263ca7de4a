"""The report as text: the numbers to see first and what is not as it should be, tables for a terminal, CSV files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from publisher.model.rates import amount_text, wall_text
from publisher.model.text import plural
from publisher.reporting.html.columns import Table
from publisher.reporting.html.tables import definitions, tables, verdict
from publisher.reporting.html.values import hours_text, minutes_text, share_text, thousands_text
from publisher.reporting.report import Report, TargetReport, all_waits
from publisher.sources.statistics import Used

_MOST_ROWS: Final = 20
_BAR: Final = 24
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LOCAL: Final = ("projects", "accounts", "local_users")
# The column whose size each table's bars show.
_BARS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("days", "vos", "queues", "users", *_LOCAL, "statuses", "benchmarks"), "wall_core_s"),
    **dict.fromkeys(("waits", "lags"), "jobs"),
    "gpu_models": "gpu_s",
    "messages": "bytes",
    "charges": "amount",
}
# Too wide for a terminal beside the rest.
_LEFT_OUT: Final = frozenset({"wall_s"})


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its name, and what more there is to say of it."""

    name: str
    value: str
    text: str


@dataclass(frozen=True, slots=True)
class Highlight:
    """Something that is well, or `bad`."""

    about: str
    text: str
    bad: bool


def figures(report: Report) -> list[Figure]:
    total = report.usage.total
    waits = all_waits(report.usage.waits.values())
    scaled = "; ".join(f"{hours_text(sum_ / 1000)} {kind} h scaled" for kind, sum_ in sorted(total.scaled.items()))
    efficiency = "unknown" if total.efficiency is None else share_text(total.efficiency)
    failed = "–" if total.failed_share is None else share_text(total.failed_share)
    waited = f"of {waits.known:,} jobs; {waits.unknown + waits.negative:,} unknown"
    return [
        Figure("Jobs", f"{total.jobs:,}", "ended in the period"),
        Figure("Wall × cores", f"{hours_text(total.wall_core_s)} h", scaled or "no benchmark is known"),
        Figure("CPU efficiency", efficiency, f"{hours_text(total.cpu_s)} h CPU"),
        *_gpu_figure(total),
        *(_energy_figures(total) if report.has_energy else ()),
        Figure("Failed", failed, plural(total.failed, "job")),
        Figure("Median waiting time", minutes_text(waits.quantile_min(0.5)), waited),
    ]


def _gpu_figure(total: Used) -> list[Figure]:
    if not total.gpu_jobs or total.gpu_share is None:
        return []
    text = f"of {plural(total.gpu_jobs, 'job')}, {share_text(total.gpu_share)} of all"
    return [Figure("Wall × GPUs", f"{hours_text(total.gpu_s)} h", text)]


def _energy_figures(total: Used) -> list[Figure]:
    whole = total.measured_wh + total.estimated_wh
    share = (
        f"{share_text(float(total.measured_wh / whole))} measured, the rest estimated" if whole else "nothing is known"
    )
    carbon = f"{thousands_text(total.carbon_g)} kg CO₂e"
    return [Figure("Energy", f"{thousands_text(whole)} kWh", f"{share}; {carbon}")]


def findings(report: Report) -> list[Highlight]:
    """Every target once, well or not; and of the jobs what is odd."""
    return [
        *(_of_target(one) for one in report.targets),
        *_of_databases(report),
        *_of_sources(report),
        *_of_drift(report),
        *_of_allocations(report),
        *_of_jobs(report),
    ]


def _of_target(one: TargetReport) -> Highlight:
    about = f"Target {one.target}{' (shadow, sends nothing)' if one.shadow else ''}"
    if one.status is None:
        return Highlight(about, "it never had a round, so nothing was delivered", bad=True)
    status = one.status
    trouble = {
        "late": status.late,
        "set aside": status.quarantined,
        "in doubt": status.in_doubt,
        "months held back": status.held,
        "messages rejected": one.history.rejected if one.history else 0,
    }
    pending = "unknown" if status.pending is None else f"{status.pending:,}"
    notes = [f"{status.delivered:,} delivered", f"{pending} pending"]
    notes += [f"{count:,} {name}" for name, count in trouble.items() if count]
    return Highlight(about, ", ".join(notes), bad=any(trouble.values()))


def _of_databases(report: Report) -> Iterator[Highlight]:
    for reason in sorted({lost.reason for one in report.targets if one.status for lost in one.status.missing}):
        yield Highlight("Incomplete", reason, bad=True)


def _of_sources(report: Report) -> Iterator[Highlight]:
    for one in report.sources:
        if look := one.alarm or one.silence or one.waiting:
            yield Highlight("Source", look.removeprefix("source "), bad=True)


def _of_drift(report: Report) -> Iterator[Highlight]:
    odd = [row for row in report.drift if row.missing or row.unreported]
    if report.drift and not odd:
        months = plural(len({row.month for row in report.drift}), "month")
        yield Highlight("Drift", f"none in {months}: database, ledger and counts agree", bad=False)
    for row in odd[:3]:
        where = f"{row.target}, {row.month}, {row.submit_host or '(no submit host)'}"
        yield Highlight("Drift", f"{where}: {verdict(row)}", bad=True)
    if len(odd) > 3:
        yield Highlight("Drift", f"{len(odd) - 3:,} more differences, below", bad=True)


def _of_allocations(report: Report) -> Iterator[Highlight]:
    for one in report.allocations:
        if one.share >= 1:
            text = f"{one.project} has used {share_text(one.share)} of {amount_text(one.granted)} {one.unit}"
            yield Highlight("Allocation", text, bad=True)


def _of_jobs(report: Report) -> Iterator[Highlight]:
    usage = report.usage
    for about, count, text in (
        ("Unreadable", usage.unreadable, "values that cannot be read, and are in no other number"),
        ("Benchmark", usage.total.without_benchmark, "none, and are in no scaled number"),
        ("Energy", usage.total.meters_rejected, "a meter value that cannot be, which is in no sum"),
        ("Energy", usage.total.energy_unknown, "neither a meter value nor watts in records.power, and are in no sum"),
        (
            "CO₂e",
            usage.total.carbon_unknown - usage.total.energy_unknown,
            "energy without grams a kWh in records.power",
        ),
    ):
        if count:
            yield Highlight(about, f"{plural(count, 'job has', 'jobs have')} {text}", bad=True)
    if usage.arex_default_wall_s:
        text = (
            f"jobs with {wall_text(usage.arex_default_wall_s)} carry HEPSPEC:1.0, which A-REX writes where none is "
            "configured: they count too little"
        )
        yield Highlight("Benchmark", text, bad=True)
    if usage.total.cores_unknown:
        text = f"{plural(usage.total.cores_unknown, 'job has', 'jobs have')} an unknown number; each counts as one core"
        yield Highlight("Cores", text, bad=True)


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
        rows = [tuple(table.columns[at].shown(row[at]) for at in shown) for row in table.rows[:_MOST_ROWS]]
        if bars := _bars(table):
            heads.append("")
            rows = [(*row, bar) for row, bar in zip(rows, bars, strict=False)]
        yield _title(table), heads, rows


def _title(table: Table) -> str:
    more = len(table.rows) - _MOST_ROWS
    return f"{table.title}, the first {_MOST_ROWS}; {more:,} more" if more > 0 else table.title


def files(report: Report) -> Iterator[tuple[str, str]]:
    """Name and content of every CSV file, the definitions of their columns last."""
    made = tables(report)
    for table in [*made, definitions(made)]:
        yield f"{table.name}.csv", table.csv()


def _bars(table: Table) -> list[str]:
    """A bar for each row, the longest for the largest; none where the table has no column to show."""
    measured = _BARS.get(table.name)
    place = next((at for at, column in enumerate(table.columns) if column.key == measured), None)
    if place is None:
        return []
    sizes = [float(row[place] or 0) for row in table.rows]
    largest = max(sizes) or 1.0
    return [_bar(size / largest) for size in sizes]


def _bar(share: float) -> str:
    eighths = round(max(share, 0.0) * _BAR * 8)
    return (_EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
