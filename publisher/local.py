"""The commands that look into the accounting data, from arguments to what is told: stats, job."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TextIO

from publisher import exporting, results_export, results_job, results_stats, retiring, statistics, terminal
from publisher.errors import UsageError
from publisher.model import when
from publisher.model.job import JobId
from publisher.model.job_columns import COLUMNS, ExportedJob
from publisher.model.job_sheet import JobSheet
from publisher.model.local_stats import JobFilter, Tally
from publisher.model.selection import Window
from publisher.whole_file import whole_file
from publisher.wiring import Site


def stats(arguments: argparse.Namespace, site: Site) -> int:
    wanted = _filter(arguments, site.surroundings.clock())
    if arguments.by and arguments.output != "brief":
        raise UsageError("--by makes a table of the totals: without --output")
    if arguments.csv and arguments.output == "json":
        raise UsageError("--csv and --output json contradict each other")
    statistics.refuse_strange_names(site, wanted)
    for line in _windows(wanted):
        terminal.notice(line)
    if arguments.output == "jobids":
        _print_job_ids(arguments, site, wanted)
        return 0
    report = terminal.CountingReport(
        sys.stderr, monotonic=time.monotonic, quiet=arguments.quiet or arguments.json, what="rows of jobs"
    )
    try:
        tally = statistics.stats(site, wanted, by=arguments.by, rows_read=report.seen)
    finally:
        report.done()
    if arguments.json:
        terminal.print_json(results_stats.stats_json(wanted, tally), sys.stdout)
    elif arguments.output == "json":
        terminal.print_json(results_stats.arc_json(tally), sys.stdout)
    elif arguments.csv:
        _print_csv(arguments, tally)
    else:
        _print_stats(arguments, tally)
    return 0


def job(arguments: argparse.Namespace, site: Site) -> int:
    match arguments.action:
        case "info":
            return _job_info(arguments, site)
        case "events":
            return _job_events(arguments, site)
        case _:
            return _job_transfers(arguments, site)


def _job_info(arguments: argparse.Namespace, site: Site) -> int:
    sheet, _ = statistics.job(site, JobId(arguments.job))
    if arguments.json or arguments.output == "json":
        terminal.print_json(results_job.job_json(sheet), sys.stdout)
        return 0
    parts = {
        "description": results_job.description_lines,
        "resources": results_job.resource_lines,
        "rtes": results_job.rte_lines,
        "authtokens": results_job.token_lines,
    }
    chosen = parts.values() if arguments.output == "all" else [parts[arguments.output]]
    blocks = [results_job.heading(sheet), *(part(sheet) for part in chosen), results_job.oddity_lines(sheet)]
    _print("\n\n".join("\n".join(block) for block in blocks if block).split("\n"))
    return 0


def _job_events(arguments: argparse.Namespace, site: Site) -> int:
    sheet, zone = statistics.job(site, JobId(arguments.job))
    if arguments.json:
        terminal.print_json(results_job.events_json(sheet, zone), sys.stdout)
        return 0
    rows = results_job.event_rows(sheet)
    _print_table(sheet, results_job.EVENT_COLUMNS, rows, "no events are known")
    if rows:
        _print([results_job.event_notes(zone)])
    return 0


def _job_transfers(arguments: argparse.Namespace, site: Site) -> int:
    sheet, _ = statistics.job(site, JobId(arguments.job))
    if arguments.json:
        terminal.print_json(results_job.transfers_json(sheet, full_urls=arguments.full_urls), sys.stdout)
        return 0
    rows = results_job.transfer_rows(sheet, full_urls=arguments.full_urls)
    _print_table(sheet, results_job.TRANSFER_COLUMNS, rows, "no file transfers are known")
    return 0


def export_columns() -> int:
    terminal.print_table(results_export.DEFINITION_COLUMNS, results_export.definitions(), sys.stdout)
    return 0


def export(arguments: argparse.Namespace, site: Site) -> int:
    wanted = _filter(arguments, site.surroundings.clock())
    statistics.refuse_strange_names(site, wanted)
    for line in _windows(wanted):
        terminal.notice(line)
    report = terminal.CountingReport(
        sys.stderr, monotonic=time.monotonic, quiet=arguments.quiet or arguments.output is None, what="rows of jobs"
    )
    left_out = exporting.LeftOut()
    found = exporting.jobs(site, wanted, left_out=left_out, rows_read=report.seen)
    try:
        if arguments.output is None:
            _write_jobs(arguments.format, found, sys.stdout)
        else:
            with whole_file(arguments.output) as out:
                _write_jobs(arguments.format, found, out)
    finally:
        report.done()
    for line in results_export.left_out_lines(left_out):
        terminal.notice(line)
    return 0


def _write_jobs(form: str, jobs: Iterator[ExportedJob], out: TextIO) -> None:
    if form == "csv":
        terminal.print_csv([column.name for column in COLUMNS], results_export.csv_rows(jobs), out)
    else:
        for line in results_export.json_lines(jobs):
            out.write(line + "\n")


def complete(arguments: argparse.Namespace, site: Site) -> int:
    """A line for each word that the shell may offer."""
    if arguments.kind == "targets":
        words = sorted(target.name for target in site.settings.targets if target.name.startswith(arguments.beginning))
    elif arguments.kind == "databases":
        gone = [one.file for one in retiring.listed(site) if not (one.there or one.retired)]
        words = [file for file in gone if file.startswith(arguments.beginning)]
    else:
        words = statistics.beginning(site, arguments.kind, arguments.beginning)
    _print(words)
    return 0


def _filter(arguments: argparse.Namespace, now: datetime) -> JobFilter:
    """Raises: UsageError."""
    start, end, submitted = arguments.end_from, arguments.end_till, arguments.start_from
    extras: dict[str, set[str]] = {}
    for attribute, value in arguments.filter_extra:
        extras.setdefault(attribute, set()).add(value)
    return JobFilter(
        ended=when.window(
            None if start is None else when.parse_from(start, now), None if end is None else when.parse_to(end, now)
        ),
        submitted=Window(start=None if submitted is None else when.epoch(when.parse_from(submitted, now))),
        vos=frozenset(arguments.filter_vo),
        users=frozenset(arguments.filter_user),
        states=frozenset(arguments.filter_state),
        queues=frozenset(arguments.filter_queue),
        interfaces=frozenset(arguments.filter_endpoint),
        extras={attribute: frozenset(values) for attribute, values in extras.items()},
    )


def _windows(wanted: JobFilter) -> list[str]:
    """The windows in full, as they were understood."""
    lines = []
    if wanted.ended != Window():
        lines.append(f"jobs that ended in {wanted.ended}")
    if wanted.submitted != Window():
        lines.append(f"jobs that were submitted in {wanted.submitted}")
    return lines


def _print_job_ids(arguments: argparse.Namespace, site: Site, wanted: JobFilter) -> None:
    """One by one while they are read: there may be ten million."""
    job_ids = statistics.job_ids(site, wanted)
    if arguments.json:
        terminal.print_json_list(results_stats.job_ids_json(job_ids), sys.stdout)
    elif arguments.csv:
        terminal.print_csv(("job_id",), ((job_id,) for job_id in job_ids), sys.stdout)
    else:
        for job_id in job_ids:
            terminal.print_line(job_id, sys.stdout)


def _print_csv(arguments: argparse.Namespace, tally: Tally) -> None:
    single = _single(arguments.output, tally)
    if single is not None:
        name, values = single
        terminal.print_csv((name,), ((value,) for value in values), sys.stdout)
    elif arguments.by:
        rows = results_stats.table_rows(tally.groups)
        terminal.print_csv((arguments.by, *results_stats.COLUMNS), rows, sys.stdout)
    else:
        terminal.print_csv(results_stats.COLUMNS, [results_stats.totals_row(tally.totals)], sys.stdout)


def _print_stats(arguments: argparse.Namespace, tally: Tally) -> None:
    single = _single(arguments.output, tally)
    if single is not None:
        _print(single[1])
        return
    _print(results_stats.brief_lines(tally))
    if arguments.by:
        _print([""])
        rows = [(name or "(none)", *rest) for name, *rest in results_stats.table_rows(tally.groups)]
        terminal.print_table((arguments.by, *results_stats.COLUMNS), rows, sys.stdout)


def _single(output: str, tally: Tally) -> tuple[str, list[str]] | None:
    """What an output of one column is called, and its values; None for the totals."""
    totals = tally.totals
    match output:
        case "jobcount":
            return "jobs", [str(totals.jobs)]
        case "walltime":
            return "wall_s", [str(totals.wall_s)]
        case "cputime":
            return "cpu_s", [str(totals.cpu_s)]
        case "data-staged-in":
            return "stage_in_bytes", [str(totals.stage_in_bytes)]
        case "data-staged-out":
            return "stage_out_bytes", [str(totals.stage_out_bytes)]
        case "wlcgvos":
            return "vo", sorted(tally.vos)
        case "users":
            return "user", sorted(tally.users)
        case _:
            return None


def _print_table(sheet: JobSheet, columns: Sequence[str], rows: Sequence[Sequence[str]], none: str) -> None:
    _print(results_job.heading(sheet))
    if rows:
        terminal.print_table(columns, rows, sys.stdout)
    else:
        _print([none])


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        terminal.print_line(line, sys.stdout)
