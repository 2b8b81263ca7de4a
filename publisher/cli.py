"""argv in, exit status out."""

from __future__ import annotations

import argparse
import gc
import io
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from publisher import command_line
from publisher.errors import BUG, ConfigError, Later, PublisherError, SourceError, UsageError

_GRACE_S: Final = 7  # to the end of a message after SIGTERM; systemd and people expect an end within ten seconds
DEFAULT_CONFIG = Path("/etc/publisher/publisher.yaml")
# Where doctor looks for what starts the rounds.
UNIT_FOLDERS = (Path("/etc/systemd/system"), Path("/run/systemd/system"), Path("/usr/lib/systemd/system"))
CRON_FOLDERS = (Path("/etc/cron.d"),)


def run_sending(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import sending

    site = _site(arguments, stop)
    match arguments.command:
        case "publish":
            return sending.publish(arguments, site)
        case "republish":
            return sending.republish(arguments, site)
        case _:
            return sending.sync(arguments, site)


def run_status(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import commands, results, terminal

    found, trouble = commands.status(_site(arguments, stop), targets=arguments.target)
    if arguments.json:
        terminal.print_json(results.status_json(found), sys.stdout)
    else:
        terminal.print_table(results.STATUS_COLUMNS, results.status_rows(found), sys.stdout)
    if trouble:
        terminal.error_line(trouble)
        return SourceError.exit_status
    return 0


def run_trace(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import commands, results, terminal
    from publisher.model.job import JobId

    traced = commands.trace(_site(arguments, stop), JobId(arguments.job))
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


def run_explain(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import explaining, results_explain, terminal
    from publisher.model.job import JobId

    job_id = JobId(arguments.job)
    found = explaining.explain(_site(arguments, stop), job_id, targets=arguments.target, format_name=arguments.format)
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


def run_quarantine(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import commands, results, terminal
    from publisher.ledger.base import Hold

    site = _site(arguments, stop)
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
        print(f"{changed} {hold}")
    return 0


def run_doctor(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import results_doctor, terminal

    try:
        diagnosis = _diagnosis(arguments, stop)
    except PublisherError as error:
        if not arguments.nagios:
            raise
        terminal.print_line(results_doctor.nagios_unknown(str(error)), sys.stdout)
        return results_doctor.NAGIOS_UNKNOWN
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


def _diagnosis(arguments: argparse.Namespace, stop: threading.Event) -> Any:
    """What doctor finds; a configuration that does not load is a finding too."""
    from publisher import doctor

    try:
        site = _site(arguments, stop)
    except ConfigError as error:
        return doctor.broken_configuration(error)
    host = doctor.Host(
        arc_conf=arguments.arc_conf,
        units=UNIT_FOLDERS,
        cron=CRON_FOLDERS,
        free_bytes=lambda directory: shutil.disk_usage(directory).free,
    )
    return doctor.examine(site, host, targets=arguments.target)


def run_local(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import local

    site = _site(arguments, stop)
    if arguments.command == "stats":
        return local.stats(arguments, site)
    match arguments.action:
        case "info":
            return local.job_info(arguments, site)
        case "events":
            return local.job_events(arguments, site)
        case _:
            return local.job_transfers(arguments, site)


def run_import(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import importing, results_import, terminal

    report = importing.import_accounting(_site(arguments, stop), arguments.action, arguments.paths, arguments.database)
    if arguments.json:
        terminal.print_json(results_import.import_json(report), sys.stdout)
    else:
        terminal.print_table(results_import.IMPORT_COLUMNS, results_import.import_rows(report), sys.stdout)
        for note in results_import.import_notes(report):
            terminal.print_line(note, sys.stdout)
    for trouble in report.troubles:
        terminal.error_line(trouble)
    return report.exit_status


def run_config(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import config

    if arguments.action == "example":
        sys.stdout.write(config.example())
        return 0
    if arguments.action == "from-arc":
        return _from_arc(arguments)
    settings = _site(arguments, stop).settings
    if arguments.action == "show":
        sys.stdout.write(config.show(settings))
    else:
        print(f"{arguments.config}: good; targets: {', '.join(target.name for target in settings.targets)}")
    return 0


def _from_arc(arguments: argparse.Namespace) -> int:
    from publisher import arc_conf, terminal

    page = arc_conf.convert(
        arguments.arc_conf,
        state=arguments.state,
        site=arguments.site,
        now=datetime.now(UTC),
        environment=os.environ,
    )
    if arguments.look_for_lost:
        for line in arc_conf.lost_jobs(page, environment=os.environ):
            print(line)
        return 0
    sys.stdout.write(page.text)
    if page.missing:
        terminal.error_line(
            f"{arguments.arc_conf}: not enough for a configuration, {', '.join(page.missing)} must be filled in; "
            "the list at the end says why"
        )
        return ConfigError.exit_status
    if page.by_hand:
        terminal.error_line(f"what needs a hand stands at the end ({len(page.by_hand)})")
    return 0


def _site(arguments: argparse.Namespace, stop: threading.Event) -> Any:
    from publisher import config
    from publisher.wiring import Site, Surroundings

    settings = config.load(arguments.config, os.environ, host_name=socket.gethostname())
    return Site(
        settings=settings,
        surroundings=Surroundings(
            environment=os.environ,
            clock=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
            wait=stop.wait,
            chance=random.random,
        ),
    )


RUNS: Final[Mapping[str, Callable[[argparse.Namespace, threading.Event], int]]] = {
    "publish": run_sending,
    "republish": run_sending,
    "sync": run_sending,
    "status": run_status,
    "trace": run_trace,
    "explain": run_explain,
    "quarantine": run_quarantine,
    "stats": run_local,
    "job": run_local,
    "doctor": run_doctor,
    "import": run_import,
    "config": run_config,
}


def parser() -> argparse.ArgumentParser:
    """The whole command line, with the default configuration file."""
    return command_line.parser(DEFAULT_CONFIG)


class _OutOfTime(BaseException):
    """Some seconds after SIGTERM something still waits for the network: what it waits for stays outstanding."""


def _end_on_sigterm(stop: threading.Event) -> None:
    """SIGTERM ends the run between two messages, or within seconds in the middle of one; nothing is lost either way."""

    def out_of_time(signum: int, frame: object) -> NoReturn:
        raise _OutOfTime

    def asked(signum: int, frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGALRM, out_of_time)
        signal.alarm(_GRACE_S)

    signal.signal(signal.SIGTERM, asked)


def run(argv: Sequence[str], stop: threading.Event | None = None) -> int:
    """Run one command; every error of ours becomes one or more lines on standard error and its exit status."""
    from publisher import terminal

    stop = stop or threading.Event()
    command = ""
    terminal.set_up_logging(verbosity=0, log_format="text", stream=sys.stderr)
    try:
        arguments = parser().parse_args(argv)
        verbosity = -1 if arguments.quiet else arguments.verbose
        terminal.set_up_logging(verbosity=verbosity, log_format=arguments.log_format, stream=sys.stderr)
        command = arguments.command
        return RUNS[command](arguments, stop)
    except PublisherError as error:
        terminal.error_line(str(error))
        return error.exit_status
    except _OutOfTime:
        terminal.error_line(f"ended by SIGTERM; {_goes_on(command)}")
        return Later.exit_status
    except KeyboardInterrupt:
        terminal.error_line(f"interrupted; {_goes_on(command)}")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001  # the one boundary: no traceback for the user
        terminal.log.critical("a bug in publisher", exc_info=True)
        terminal.error_line(
            f"a bug in publisher: {type(error).__name__}: {error}; run with -vv and report what it prints"
        )
        return BUG


def _goes_on(command: str) -> str:
    """Where a command that was broken off will go on."""
    match command:
        case "publish" | "sync":
            return "nothing is lost, the next run goes on from here"
        case "republish" | "import":
            return "nothing is lost, the same command goes on from here"
        case _:
            return "run it again"


def main() -> NoReturn:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal of Latin-1 is no reason to fail
    # A round makes objects by the million and hardly a cycle: to look for some after every 700 took 7 % of it (perf).
    gc.set_threshold(20_000)
    stop = threading.Event()
    _end_on_sigterm(stop)
    status = run(sys.argv[1:], stop)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has left; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
