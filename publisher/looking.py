"""The commands that look at what was published, from arguments to what is told: status, trace, explain, quarantine, doctor."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from publisher import commands, results, terminal
from publisher.errors import ConfigError, PublisherError, SourceError, UsageError
from publisher.ledger.base import Hold
from publisher.model.job import JobId
from publisher.wiring import Site

if TYPE_CHECKING:
    from publisher import doctor


def status(arguments: argparse.Namespace, load: Callable[[], Site]) -> int:
    """`load` reads the configuration; that it cannot be read is an answer to Nagios too."""
    if arguments.nagios:
        return _status_nagios(arguments, load)
    if arguments.warning or arguments.critical:
        raise UsageError("--warning and --critical go with --nagios")
    found, trouble = commands.status(load(), targets=arguments.target)
    if arguments.json:
        terminal.print_json(results.status_json(found), sys.stdout)
    else:
        terminal.print_table(results.STATUS_COLUMNS, results.status_rows(found), sys.stdout)
    missing = {one.file: one.reason for each in found for one in each.missing}
    for line in [trouble] if trouble else missing.values():
        terminal.error_line(line)
    return SourceError.exit_status if trouble or missing else 0


def _status_nagios(arguments: argparse.Namespace, load: Callable[[], Site]) -> int:
    from publisher import results_nagios

    try:
        limits = results_nagios.thresholds(arguments.warning, arguments.critical)
        site = load()
        found, trouble = commands.status(site, targets=arguments.target)
    except PublisherError as error:
        terminal.print_line(results_nagios.nagios_unknown(str(error)), sys.stdout)
        return results_nagios.UNKNOWN
    line, state = results_nagios.status_nagios(found, trouble, site.surroundings.clock(), limits)
    terminal.print_line(line, sys.stdout)
    return state


def trace(arguments: argparse.Namespace, site: Site) -> int:
    traced = commands.trace(site, JobId(arguments.job))
    if arguments.json:
        terminal.print_json(results.trace_json(traced), sys.stdout)
    else:
        terminal.print_table(results.TRACE_COLUMNS, results.trace_rows(traced), sys.stdout)
        for line in results.trace_notes(traced):
            terminal.print_line(line, sys.stdout)
    if traced.trouble:
        terminal.error_line(traced.trouble)
        return SourceError.exit_status
    return 0


def explain(arguments: argparse.Namespace, site: Site) -> int:
    from publisher import (
        explaining,
        results_explain,
    )  # here: what renders records is slow to load, and `status` is quick

    job_id = JobId(arguments.job)
    found = explaining.explain(site, job_id, targets=arguments.target, format_name=arguments.format)
    if arguments.json:
        terminal.print_json(results_explain.explain_json(job_id, found), sys.stdout)
        return 0
    for one in found:
        for line in results_explain.explain_heading(one):
            terminal.print_line(line, sys.stdout)
        if one.values:
            terminal.print_table(results_explain.EXPLAIN_COLUMNS, results_explain.explain_rows(one), sys.stdout)
        for line in [*results_explain.explain_notes(one), *results_explain.record_lines(one), ""]:
            terminal.print_line(line, sys.stdout)
    return 0


def quarantine(arguments: argparse.Namespace, site: Site) -> int:
    if arguments.action == "list":
        found = commands.quarantined(site, targets=arguments.target)
        if arguments.json:
            terminal.print_json({"quarantined": [results.quarantined_json(held) for held in found]}, sys.stdout)
        else:
            terminal.print_table(results.QUARANTINE_COLUMNS, results.quarantine_rows(found), sys.stdout)
        return 0
    if bool(arguments.jobs) == arguments.every:
        raise UsageError(f"quarantine {arguments.action} takes numbers or ids of jobs, or --all")
    hold = Hold.RELEASED if arguments.action == "release" else Hold.DROPPED
    changed = commands.change_hold(site, arguments.jobs, hold, every=arguments.every, targets=arguments.target)
    if arguments.json:
        terminal.print_json({"changed": changed, "hold": str(hold)}, sys.stdout)
    else:
        terminal.print_line(f"{changed} {hold}", sys.stdout)
    return 0


def source(arguments: argparse.Namespace, site: Site) -> int:
    from publisher import retiring

    listing = arguments.action == "list"
    found = retiring.listed(site) if listing else retiring.retire(site, arguments.databases)
    if arguments.json:
        terminal.print_json(results.sources_json(found), sys.stdout)
        return 0
    terminal.print_table(results.SOURCE_COLUMNS, results.source_rows(found), sys.stdout)
    if not listing:
        terminal.print_line("take a retired file out of `source.databases` too, if it stands there", sys.stdout)
    return 0


def doctor_says(arguments: argparse.Namespace, site: Callable[[], Site], host: doctor.Host) -> int:
    """Everything that could keep records from going out; `site` loads the configuration, which may be the first finding."""
    from publisher import results_doctor, results_nagios

    try:
        diagnosis = _diagnosis(arguments, site, host)
    except PublisherError as error:
        if not arguments.nagios:
            raise
        terminal.print_line(results_nagios.nagios_unknown(str(error)), sys.stdout)
        return results_nagios.UNKNOWN
    if arguments.nagios:
        line, status = results_doctor.doctor_nagios(diagnosis)
        terminal.print_line(line, sys.stdout)
        return status
    if arguments.json:
        terminal.print_json(results_doctor.doctor_json(diagnosis), sys.stdout)
    else:
        for line in results_doctor.doctor_lines(diagnosis):
            terminal.print_line(line, sys.stdout)
    worst: int = diagnosis.exit_status
    return worst


def _diagnosis(arguments: argparse.Namespace, site: Callable[[], Site], host: doctor.Host) -> doctor.Diagnosis:
    """What doctor finds; a configuration that does not load is a finding too."""
    from publisher import doctor

    try:
        loaded = site()
    except ConfigError as error:
        return doctor.broken_configuration(error)
    shown = terminal.StageLine(sys.stderr, quiet=arguments.quiet or arguments.json or arguments.nagios)
    try:
        return doctor.examine(loaded, host, targets=arguments.target, begins=shown.begins)
    finally:
        shown.done()
