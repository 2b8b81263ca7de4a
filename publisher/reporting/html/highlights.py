"""What a reader should see first: the most important numbers, and what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from publisher.model.rates import wall_text
from publisher.model.text import plural
from publisher.reporting.html.columns import hours_text, minutes_text, share_text
from publisher.reporting.html.tables import verdict
from publisher.reporting.report import Report, TargetReport
from publisher.reporting.usage import all_waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with its name, and what more there is to say of it."""

    name: str
    value: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Highlight:
    """Something that is well, or `bad`."""

    about: str
    text: str
    bad: bool


def figures(report: Report) -> list[Figure]:
    total = report.usage.total
    waits = all_waits(report.usage.waits.values())
    scaled = "; ".join(f"{hours_text(sum_ / 1000)} {kind} h scaled" for kind, sum_ in sorted(total.scaled.items()))
    return [
        Figure(name="Jobs", value=f"{total.jobs:,}", text="ended in the period"),
        Figure(name="Wall × cores", value=f"{hours_text(total.wall_core_s)} h", text=scaled or "no benchmark is known"),
        Figure(
            name="CPU efficiency",
            value="unknown" if total.efficiency is None else share_text(total.efficiency),
            text=f"{hours_text(total.cpu_s)} h CPU",
        ),
        Figure(
            name="Failed",
            value="–" if total.failed_share is None else share_text(total.failed_share),
            text=plural(total.failed, "job"),
        ),
        Figure(
            name="Median waiting time",
            value=minutes_text(waits.quantile_min(0.5)),
            text=f"of {waits.known:,} jobs; {waits.unknown + waits.negative:,} unknown",
        ),
    ]


def findings(report: Report) -> list[Highlight]:
    """Every target once, well or not; and of the jobs what is odd."""
    return [
        *(_of_target(one) for one in report.targets),
        *_of_databases(report),
        *_of_drift(report),
        *_of_jobs(report),
    ]


def _of_target(one: TargetReport) -> Highlight:
    about = f"Target {one.target}{' (shadow, sends nothing)' if one.shadow else ''}"
    if one.status is None:
        return Highlight(about=about, text="it never had a round, so nothing was delivered", bad=True)
    status = one.status
    trouble = {
        "late": status.late,
        "set aside": status.quarantined,
        "in doubt": status.in_doubt,
        "months held back": status.held,
        "messages rejected": one.history.rejected if one.history else 0,
    }
    notes = [f"{status.delivered:,} delivered", f"{status.pending or 0:,} pending"]
    notes += [f"{count:,} {name}" for name, count in trouble.items() if count]
    return Highlight(about=about, text=", ".join(notes), bad=any(trouble.values()))


def _of_databases(report: Report) -> Iterator[Highlight]:
    for reason in sorted({lost.reason for one in report.targets if one.status for lost in one.status.missing}):
        yield Highlight(about="Incomplete", text=reason, bad=True)


def _of_drift(report: Report) -> Iterator[Highlight]:
    if not report.drift:
        return
    odd = [row for row in report.drift if row.missing or row.unreported]
    if not odd:
        months = len({row.month for row in report.drift})
        yield Highlight(
            about="Drift",
            text=f"none in {months} month{'s'[: months != 1]}: database, ledger and counts agree",
            bad=False,
        )
    for row in odd[:3]:
        where = f"{row.target}, {row.month}, {row.submit_host or '(no submit host)'}"
        yield Highlight(about="Drift", text=f"{where}: {verdict(row)}", bad=True)
    if len(odd) > 3:
        yield Highlight(about="Drift", text=f"{len(odd) - 3:,} more differences, below", bad=True)


def _of_jobs(report: Report) -> Iterator[Highlight]:
    usage = report.usage
    if usage.unreadable:
        text = (
            f"{plural(usage.unreadable, 'job has', 'jobs have')} values that cannot be read, and are in no other number"
        )
        yield Highlight(about="Unreadable", text=text, bad=True)
    if usage.total.without_benchmark:
        text = f"{plural(usage.total.without_benchmark, 'job has', 'jobs have')} none, and are in no scaled number"
        yield Highlight(about="Benchmark", text=text, bad=True)
    if usage.arex_default_wall_s:
        text = (
            f"jobs with {wall_text(usage.arex_default_wall_s)} carry HEPSPEC:1.0, which A-REX writes where none is "
            "configured: they count too little"
        )
        yield Highlight(about="Benchmark", text=text, bad=True)
    if usage.total.cores_unknown:
        text = f"{plural(usage.total.cores_unknown, 'job has', 'jobs have')} an unknown number; each counts as one core"
        yield Highlight(about="Cores", text=text, bad=True)
