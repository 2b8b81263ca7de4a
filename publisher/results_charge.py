"""Charges as a JSON object, tables and lines. The JSON is a contract: `publisher(1)` documents it."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from publisher.charging import ChargeReport
from publisher.ledger.charge_base import ChargeRun, KeptCharge
from publisher.model.charge import Tariff, amount_text
from publisher.model.when import iso
from publisher.results import when

SUM_COLUMNS: Final = ("project", "group", "jobs", "amount", "unit")
RUN_COLUMNS: Final = ("run", "state", "jobs that ended in", "project", "group", "asked", "jobs", "charged", "changed")


def charge_json(report: ChargeReport) -> dict[str, Any]:
    """Amounts are texts, so that no digit of them is lost on the way."""
    request, bill, run = report.request, report.bill, report.run
    return {
        "run": None if run is None else run.number,
        "from": when(request.window.start),
        "to": when(request.window.end),
        "project": request.project,
        "group": request.group,
        "jobs": bill.jobs,
        "charged": bill.charged,
        "without_rule": None if run is None else run.counts.without_rule,
        "unreadable": None if run is None else run.counts.unreadable,
        "first": None if run is None else run.counts.first,
        "changed": None if run is None else run.counts.changed,
        "totals": [
            {"unit": unit, "jobs": total.jobs, "amount": amount_text(total.amount)}
            for unit, total in sorted(bill.totals.items())
        ],
        "sums": [
            {
                "project": payer.project or None,
                "group": payer.group or None,
                "unit": payer.unit,
                "jobs": total.jobs,
                "amount": amount_text(total.amount),
            }
            for payer, total in sorted(bill.sums.items())
        ],
        "reasons": [
            {"reason": reason, "jobs": cause.jobs, "examples": cause.examples}
            for reason, cause in sorted(bill.causes.items())
        ],
        "changes": [
            {
                "was_unit": was and was.unit,
                "was_formula": was and was.formula,
                "was_amount": amount_text(change.before),
                "unit": now and now.unit,
                "formula": now and now.formula,
                "amount": amount_text(change.after),
                "jobs": change.jobs,
            }
            for (was, now), change in bill.changes.items()
        ],
        "overlaps": list(report.overlaps),
    }


def kept_json(kept: KeptCharge) -> dict[str, Any]:
    """One job of `charges`."""
    job, was = kept.job, kept.was
    return {
        "job": job.job_id,
        "local_id": job.local_id or None,
        "ended": when(job.ended_at),
        "queue": job.queue or None,
        "project": job.project or None,
        "group": job.group or None,
        "amount": _amount(job.amount),
        "unit": job.tariff and job.tariff.unit,
        "formula": job.tariff and job.tariff.formula,
        "reason": job.reason or None,
        "news": kept.news,
        "news_of": kept.news_of,
        "was_amount": was and _amount(was.amount),
        "was_unit": was and was.tariff and was.tariff.unit,
        "was_formula": was and was.tariff and was.tariff.formula,
    }


def run_json(run: ChargeRun) -> dict[str, Any]:
    """One run of `runs`."""
    return {
        "run": run.number,
        "state": run.state,
        "from": when(run.request.window.start),
        "to": when(run.request.window.end),
        "project": run.request.project,
        "group": run.request.group,
        "asked": iso(run.asked_at),
        "began": None if run.began_at is None else iso(run.began_at),
        "noted": iso(run.noted_at),
        "ended": None if run.ended_at is None else iso(run.ended_at),
        "jobs": run.counts.jobs,
        "charged": run.counts.charged,
        "without_result": run.counts.without_result,
        "without_rule": run.counts.without_rule,
        "unreadable": run.counts.unreadable,
        "first": run.counts.first,
        "changed": run.counts.changed,
        "reason": run.reason or None,
    }


def sum_rows(report: ChargeReport) -> list[tuple[str, ...]]:
    """By project and group, then the totals."""
    rows: list[tuple[str, ...]] = [
        (payer.project or "-", payer.group or "-", f"{total.jobs:,}", amount_text(total.amount), payer.unit)
        for payer, total in sorted(report.bill.sums.items())
    ]
    if len(rows) > 1:
        rows += [
            ("all", "all", f"{total.jobs:,}", amount_text(total.amount), unit)
            for unit, total in sorted(report.bill.totals.items())
        ]
    return rows


def charge_notes(report: ChargeReport) -> list[str]:
    """What has no charge and why, what changed, and rules that meet."""
    run = report.run
    notes = []
    for reason, cause in sorted(report.bill.causes.items()):
        more = ", ..." if cause.jobs > len(cause.examples) else ""
        notes.append(f"{cause.jobs:,} without a result: {reason}: {', '.join(cause.examples)}{more}")
    if run is not None and run.counts.without_rule:
        notes.append(f"{run.counts.without_rule:,} that no rule is for")
    if run is not None and run.counts.unreadable:
        notes.append(
            f"{run.counts.unreadable:,} rows that cannot be read as jobs; `publisher quarantine list` names them"
        )
    for (was, now), change in report.bill.changes.items():
        notes.append(f"changed: {change.jobs:,} jobs from {_said(was, change.before)} to {_said(now, change.after)}")
    notes += [f"note: {said}" for said in report.overlaps]
    if run is not None:
        notes.append(
            f"run {run.number}: {run.counts.jobs:,} jobs assessed, {run.counts.first:,} for the first time, "
            f"{run.counts.changed:,} changed"
        )
    return notes


def kept_line(kept: KeptCharge) -> str:
    """One job on a line: end, amount and unit or why there is none, project, group, id; what it was, where that changed."""
    job = kept.job
    cost = f"{_amount(job.amount) or '-':>14} {job.tariff.unit if job.tariff else '-'}"
    said = f"{when(job.ended_at)} {cost}  {job.project or '-'}  {job.group or '-'}  {job.job_id}"
    if job.reason:
        said += f"  ({job.reason})"
    if kept.was is not None:
        before = _amount(kept.was.amount) or "nothing"
        said += f"  (until run {kept.news_of}: {before} {kept.was.tariff.unit if kept.was.tariff else ''})"
    return said


def run_rows(runs: Sequence[ChargeRun]) -> list[tuple[str, ...]]:
    return [
        (
            str(run.number),
            run.state,
            str(run.request.window),
            run.request.project or "all",
            run.request.group or "all",
            iso(run.asked_at),
            f"{run.counts.jobs:,}",
            f"{run.counts.charged:,}",
            f"{run.counts.changed:,}",
        )
        for run in runs
    ]


def run_notes(runs: Sequence[ChargeRun]) -> list[str]:
    """Why runs failed."""
    return [f"run {run.number}: {run.reason}" for run in runs if run.reason]


def _said(tariff: Tariff | None, amount: Decimal) -> str:
    return f"{amount_text(amount)} {tariff.unit} ({tariff.formula})" if tariff else "no charge"


def _amount(amount: Decimal | None) -> str | None:
    return None if amount is None else amount_text(amount)
