"""`charge`: compute, keep and list what jobs cost by the formulas of `records.charges`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from publisher.cli import progress
from publisher.cli.commands import Context
from publisher.cli.logs import notice
from publisher.cli.output import (
    Json,
    Part,
    TextTable,
    attributes,
    moment_text,
    print_line,
    print_list,
    print_result,
)
from publisher.cli.parser import Form, add_flag, add_json, add_window, is_quiet, window_of
from publisher.cli.sources import incomplete
from publisher.ledger.books import ChargeRequest, ChargeRun, KeptCharge
from publisher.model.errors import UsageError
from publisher.model.rates import AssessedJob, Tariff, UsedAllocation, amount_text
from publisher.model.text import plural
from publisher.model.time import iso
from publisher.publishing.databases.prune import refuse_pruned
from publisher.publishing.site import Site
from publisher.reporting.charges import run as charging
from publisher.reporting.charges.run import Change, ChargedAccount, ChargeReport, Sum

_SUM_COLUMNS: Final = ("project", "group", "jobs", "amount", "unit")
_NEWS: Final = ("without_rule", "unreadable", "first", "changed")
_COUNTS: Final = ("jobs", "charged", "without_result", *_NEWS)
_RUN_COLUMNS: Final = (
    *("run", "state", "jobs that ended", "project", "group", "asked"),
    *("jobs", "charged", "changed"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_window(parser)
    parser.add_argument("--project", metavar="P", help="only jobs of this project")
    parser.add_argument("--group", metavar="G", help="only jobs of this local group")
    add_flag(parser, "--jobs", text="also list each job")
    what = parser.add_mutually_exclusive_group()
    add_flag(what, "--stored", text="list stored charges without computing anything")
    add_flag(what, "--runs", text="list the runs that computed charges, and how they ended")
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    if arguments.runs:
        print_result(
            charging.runs(site.ledgers),
            lambda runs: {"runs": list(map(_run_json, runs))},
            _runs_text,
            form=arguments.form,
            rows="runs",
        )
        return 0
    request = _request(arguments, site)
    notice(f"charges of jobs that ended {request.window}{_whose(request)}")
    report = _report(arguments, site, request)
    jobs = charging.jobs(site.ledgers, request) if arguments.jobs else None
    status = 0 if arguments.stored else incomplete(site)
    if arguments.form is not Form.TABLE and jobs is not None:
        rows, after = map(_kept_json, jobs), _charge_json(report)
        print_list("charges", rows, form=arguments.form, after=after)
        return status
    for one in jobs or ():
        print_line(_kept_line(one))
    print_result(report, _charge_json, _as_text, form=arguments.form, rows="sums")
    return status


def _report(arguments: argparse.Namespace, site: Site, request: ChargeRequest) -> ChargeReport:
    if arguments.stored:
        return charging.kept(site, request)
    refuse_pruned(site, request.window)
    with progress.counting("rows of jobs", quiet=is_quiet(arguments)) as counting:
        return charging.charge(site, request, rows_read=counting.seen)


def _request(arguments: argparse.Namespace, site: Site) -> ChargeRequest:
    """Raises: UsageError."""
    if arguments.start is None or arguments.end is None:
        example = "--from last-month --to last-month"
        raise UsageError(f"charge needs --from and --to, as in {example}; or --runs")
    window = window_of(arguments, site.process.clock())
    return ChargeRequest(window=window, project=arguments.project, group=arguments.group)


def _whose(request: ChargeRequest) -> str:
    text = {"project": request.project, "group": request.group}
    return "".join(f", {name} {value!r} only" for name, value in text.items() if value is not None)


def _charge_json(report: ChargeReport) -> Json:
    """Amounts are texts, so that no digit of them is lost on the way."""
    request, bill, run = report.request, report.bill, report.run
    return {
        "run": None if run is None else run.number,
        "from": moment_text(request.window.start),
        "to": moment_text(request.window.end),
        **attributes(request, "project", "group"),
        **attributes(bill, "jobs", "charged"),
        **{name: run and getattr(run.counts, name) for name in _NEWS},
        "totals": [_total_json(unit, total) for unit, total in sorted(bill.totals.items())],
        "sums": [
            {**_payer_json(payer), **_total_json(payer.unit, total)}
            for payer, total in sorted(bill.sums.items())
        ],
        "reasons": [
            {"reason": reason, "jobs": cause.jobs, "examples": cause.examples}
            for reason, cause in sorted(bill.causes.items())
        ],
        "changes": [_change_json(*tariffs, change) for tariffs, change in bill.changes.items()],
        "allocations": [
            {
                **attributes(one, "project", "unit"),
                "from": moment_text(one.window.start),
                "to": moment_text(one.window.end),
                "granted": amount_text(one.granted),
                "used": amount_text(one.used),
            }
            for one in report.allocations
        ],
        "overlaps": list(report.overlaps),
    }


def _total_json(unit: str, total: Sum) -> dict[str, Any]:
    return {"unit": unit, "jobs": total.jobs, "amount": amount_text(total.amount)}


def _change_json(was: Tariff | None, now: Tariff | None, change: Change) -> Json:
    return {
        "was_unit": was and was.unit,
        "was_formula": was and was.formula,
        "was_amount": amount_text(change.before),
        "unit": now and now.unit,
        "formula": now and now.formula,
        "amount": amount_text(change.after),
        "jobs": change.jobs,
    }


def _kept_json(kept: KeptCharge) -> Json:
    """One job of `charges`."""
    job, was = kept.job, kept.was
    earlier = _tariff_json(was) if was else dict.fromkeys(("amount", "unit", "formula"))
    return {
        "job": job.job_id,
        "local_id": job.local_id or None,
        "ended": moment_text(job.ended_at),
        "queue": job.queue or None,
        **_payer_json(job),
        **_tariff_json(job),
        "reason": job.reason or None,
        **attributes(kept, "news", "news_of"),
        **{f"was_{name}": value for name, value in earlier.items()},
    }


def _payer_json(payer: ChargedAccount | AssessedJob) -> dict[str, Any]:
    return {"project": payer.project or None, "group": payer.group or None}


def _tariff_json(job: AssessedJob) -> dict[str, Any]:
    tariff = job.tariff
    return {
        "amount": _amount(job.amount),
        "unit": tariff and tariff.unit,
        "formula": tariff and tariff.formula,
    }


def _run_json(run: ChargeRun) -> Json:
    """One run of `runs`."""
    return {
        "run": run.number,
        "state": run.state,
        "from": moment_text(run.request.window.start),
        "to": moment_text(run.request.window.end),
        **attributes(run.request, "project", "group"),
        "asked": moment_text(run.asked_at),
        "began": moment_text(run.began_at),
        "noted": moment_text(run.noted_at),
        "ended": moment_text(run.ended_at),
        **attributes(run.counts, *_COUNTS),
        "reason": run.reason or None,
    }


def _as_text(report: ChargeReport) -> Iterator[Part]:
    yield TextTable(_SUM_COLUMNS, _sum_rows(report))
    yield from _charge_notes(report)


def _sum_rows(report: ChargeReport) -> list[tuple[str, ...]]:
    """By project and group, then the totals."""
    bill = report.bill
    sums = [
        (payer.project or "-", payer.group or "-", payer.unit, total)
        for payer, total in sorted(bill.sums.items())
    ]
    if len(sums) > 1:
        sums += [("all", "all", unit, total) for unit, total in sorted(bill.totals.items())]
    return [
        (project, group, f"{total.jobs:,}", amount_text(total.amount), unit)
        for project, group, unit, total in sums
    ]


def _charge_notes(report: ChargeReport) -> Iterator[str]:
    """Yield what has no charge and why, what changed, and rules that meet."""
    run = report.run
    for reason, cause in sorted(report.bill.causes.items()):
        more = ", ..." if cause.jobs > len(cause.examples) else ""
        yield f"{cause.jobs:,} without a result: {reason}: {', '.join(cause.examples)}{more}"
    if run is not None and run.counts.without_rule:
        yield f"{run.counts.without_rule:,} that no rule applies to"
    if run is not None and run.counts.unreadable:
        rows = plural(run.counts.unreadable, "row")
        yield f"{rows} could not be read; see `publisher quarantine list`"
    for (was, now), change in report.bill.changes.items():
        before, after = _amount_text(was, change.before), _amount_text(now, change.after)
        yield f"changed: {plural(change.jobs, 'job')} from {before} to {after}"
    yield from map(_allocation_text, report.allocations)
    yield from (f"note: {text}" for text in report.overlaps)
    if run is not None:
        counts, jobs = run.counts, plural(run.counts.jobs, "job")
        news = f"{counts.first:,} for the first time, {counts.changed:,} changed"
        yield f"run {run.number}: {jobs} assessed, {news}"


def _allocation_text(one: UsedAllocation) -> str:
    used, granted = amount_text(one.used), amount_text(one.granted)
    share = f"{100 * one.share:.1f} %"
    return f"allocation of {one.project}: {used} of {granted} {one.unit}, {share}, {one.window}"


def _kept_line(kept: KeptCharge) -> str:
    """One job on a line: end, amount and unit or why none, project, group, id; what changed."""
    job = kept.job
    cost = f"{_amount(job.amount) or '-':>14} {job.tariff.unit if job.tariff else '-'}"
    payer = f"{job.project or '-'}  {job.group or '-'}"
    text = f"{moment_text(job.ended_at)} {cost}  {payer}  {job.job_id}"
    if job.reason:
        text += f"  ({job.reason})"
    if kept.was is not None:
        before = _amount(kept.was.amount) or "nothing"
        unit = kept.was.tariff.unit if kept.was.tariff else ""
        text += f"  (until run {kept.news_of}: {before} {unit})"
    return text


def _runs_text(runs: Sequence[ChargeRun]) -> Iterator[Part]:
    """Yield the runs, and why some failed."""
    yield TextTable(
        _RUN_COLUMNS, [_run_row(run.request, run) for run in runs], "charges were never computed"
    )
    yield from (f"run {run.number}: {run.reason}" for run in runs if run.reason)


def _run_row(request: ChargeRequest, run: ChargeRun) -> tuple[str, ...]:
    whose = (str(request.window), request.project or "all", request.group or "all")
    counts = attributes(run.counts, "jobs", "charged", "changed").values()
    texts = [f"{count:,}" for count in counts]
    return (str(run.number), run.state, *whose, iso(run.asked_at), *texts)


def _amount_text(tariff: Tariff | None, amount: Decimal) -> str:
    return f"{amount_text(amount)} {tariff.unit} ({tariff.formula})" if tariff else "no charge"


def _amount(amount: Decimal | None) -> str | None:
    return None if amount is None else amount_text(amount)
