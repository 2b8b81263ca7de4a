"""The command charge, from arguments to what is told."""

from __future__ import annotations

import argparse
import sys
import time

from publisher import charging, results_charge, terminal
from publisher.errors import UsageError
from publisher.ledger.charge_base import ChargeRequest
from publisher.model import when
from publisher.wiring import Site


def charge(arguments: argparse.Namespace, site: Site) -> int:
    if arguments.runs:
        return _runs(arguments, site)
    request = _request(arguments, site)
    terminal.notice(f"charges of jobs that ended in {request.window}{_whose(request)}")
    if arguments.stored:
        report = charging.kept(site, request)
    else:
        counting = terminal.CountingReport(
            sys.stderr, monotonic=time.monotonic, quiet=arguments.quiet or arguments.json, what="rows of jobs"
        )
        try:
            report = charging.charge(site, request, rows_read=counting.seen)
        finally:
            counting.done()
    jobs = charging.jobs(site, request) if arguments.jobs else None
    if arguments.json:
        head = results_charge.charge_json(report)
        if jobs is None:
            terminal.print_json(head, sys.stdout)
        else:
            terminal.print_json_and_list(head, {"charges": map(results_charge.kept_json, jobs)}, sys.stdout)
        return 0
    for one in jobs or ():
        terminal.print_line(results_charge.kept_line(one), sys.stdout)
    terminal.print_table(results_charge.SUM_COLUMNS, results_charge.sum_rows(report), sys.stdout)
    for line in results_charge.charge_notes(report):
        terminal.print_line(line, sys.stdout)
    return 0


def _runs(arguments: argparse.Namespace, site: Site) -> int:
    found = charging.runs(site)
    if arguments.json:
        terminal.print_json({"runs": [results_charge.run_json(run) for run in found]}, sys.stdout)
        return 0
    terminal.print_table(results_charge.RUN_COLUMNS, results_charge.run_rows(found), sys.stdout)
    for line in results_charge.run_notes(found):
        terminal.print_line(line, sys.stdout)
    return 0


def _request(arguments: argparse.Namespace, site: Site) -> ChargeRequest:
    """Raises: UsageError."""
    if arguments.start is None or arguments.end is None:
        raise UsageError("charge needs --from and --to, as in --from last-month --to last-month; or --runs")
    now = site.surroundings.clock()
    window = when.window(when.parse_from(arguments.start, now), when.parse_to(arguments.end, now))
    return ChargeRequest(window=window, project=arguments.project, group=arguments.group)


def _whose(request: ChargeRequest) -> str:
    said = {"project": request.project, "group": request.group}
    return "".join(f", {name} {value!r} only" for name, value in said.items() if value is not None)
