"""argv in, exit status out."""

from __future__ import annotations

import argparse
import io
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NoReturn

from publisher import command_line
from publisher.errors import BUG, ConfigError, Later, PublisherError, RecordError, SourceError, UsageError

_GRACE_S: Final = 7  # to the end of a message after SIGTERM; systemd and people expect an end within ten seconds
DEFAULT_CONFIG = Path("/etc/publisher/publisher.yaml")


def run_publish(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import commands, terminal

    report = terminal.ProgressReport(sys.stderr, monotonic=time.monotonic, quiet=arguments.quiet or arguments.json)
    site = _site(arguments, stop)
    try:
        outcomes = commands.publish(
            site,
            targets=arguments.target,
            observer=report,
            force=arguments.force,
            dry_run=arguments.dry_run,
            limit=arguments.limit,
            accept_key_change=arguments.accept_key_change,
        )
    finally:
        report.done()
    _tell_outcomes(arguments, site, outcomes)
    return commands.exit_status(outcomes)


def run_republish(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import commands, republishing, results, terminal
    from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS
    from publisher.model import when

    site = _site(arguments, stop)
    now = site.surroundings.clock()
    if arguments.format and arguments.format not in {**JOB_FORMATS, **SUMMARY_FORMATS}:
        raise UsageError(
            f"no format is called {arguments.format!r}; there are {', '.join({**JOB_FORMATS, **SUMMARY_FORMATS})}"
        )
    wish = republishing.Wish(
        window=when.window(when.parse_from(arguments.start, now), when.parse_to(arguments.end, now)),
        exact=arguments.exact,
        format=arguments.format,
        accept_key_change=arguments.accept_key_change,
        brake=not arguments.no_brake,
    )
    targets = _once(arguments, site) or commands.choose(site.settings, arguments.target)
    plans = republishing.plan(site, targets, wish)
    for line in results.plan_lines(plans, exact=arguments.exact):
        sys.stderr.write(line + "\n")
    if not (arguments.yes or arguments.dry_run) and sys.stdin.isatty() and not _confirmed():
        terminal.error_line("nothing was sent")
        return 0
    report = terminal.ProgressReport(sys.stderr, monotonic=time.monotonic, quiet=arguments.quiet or arguments.json)
    report.expect(sum(plan.rows for plan in plans))
    try:
        outcomes = republishing.carry_out(site, targets, plans, wish, report, dry_run=arguments.dry_run)
    finally:
        report.done()
    _tell_outcomes(arguments, site, outcomes)
    return commands.exit_status(outcomes)


def _once(arguments: argparse.Namespace, site: Any) -> list[Any]:
    """The target that the command line makes for this once; none without a URL. Raises: UsageError, ConfigError."""
    from publisher import config

    urls = {"ams": arguments.ams_url, "sgas": arguments.sgas_url}
    given = [(kind, url) for kind, url in urls.items() if url]
    extra = {"topic": arguments.topic, "project": arguments.project}
    if not given:
        if arguments.site or any(extra.values()):
            raise UsageError("--site, --topic and --project go with --ams-url or --sgas-url")
        return []
    if len(given) > 1 or arguments.target:
        raise UsageError("name one of --ams-url, --sgas-url and --target")
    ((kind, url),) = given
    if kind == "sgas" and any(extra.values()):
        raise UsageError("--topic and --project go with --ams-url")
    form = arguments.format or ("car" if kind == "ams" else "ogf-ur")
    keys = {"type": kind, "url": url, "format": form} | {key: value for key, value in extra.items() if value}
    # Its name keys the ledger: the same place for once again is the same target.
    name = f"once-{sha256(repr((url, arguments.topic, arguments.project)).encode()).hexdigest()[:8]}"
    return [config.one_off_target(site.settings, name, keys, site=arguments.site, host_name=socket.gethostname())]


def _confirmed() -> bool:
    sys.stderr.write("Send this? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell_outcomes(arguments: argparse.Namespace, site: Any, outcomes: Sequence[Any]) -> None:
    from publisher import results, terminal

    if arguments.json:
        terminal.print_json(results.publish_json(outcomes), sys.stdout)
        return
    terminal.print_table(results.PUBLISH_COLUMNS, results.publish_rows(outcomes), sys.stdout)
    for outcome in outcomes:
        for note in [*results.publish_notes(outcome), *results.ticket(site.settings.site, outcome)]:
            print(note)
    if arguments.dry_run:
        print("a rehearsal: nothing was sent, nothing was written down")


def run_sync(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import commands, portal, results, syncing, terminal

    site = _site(arguments, stop)
    months = None if arguments.months == "all" else _months(arguments.months)
    if arguments.portal and not arguments.check:
        raise UsageError("--portal is for --check")
    chosen = commands.choose(site.settings, arguments.target)
    targets = [target for target in chosen if arguments.target or arguments.check or target.sync]
    if not arguments.check:
        report = terminal.ProgressReport(sys.stderr, monotonic=time.monotonic, quiet=arguments.quiet or arguments.json)
        try:
            outcomes = syncing.sync(site, targets, report, months=months, dry_run=arguments.dry_run)
        finally:
            report.done()
        _tell_outcomes(arguments, site, outcomes)
        return commands.exit_status(outcomes)
    counts = portal.read(arguments.portal, site.settings.site) if arguments.portal else None
    compared = syncing.check(site, targets, months=months, portal=counts)
    status = RecordError.exit_status if any(row.repairs for row in compared) else 0
    if arguments.json:
        terminal.print_json(results.check_json(compared, status), sys.stdout)
    else:
        terminal.print_table(results.CHECK_COLUMNS, results.check_rows(compared), sys.stdout)
        print("differences: see the last column" if status else "no difference")
    return status


def _months(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--months {text}: a number of months from 1, or all")
    return int(text)


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
        if arguments.jobs or arguments.every:
            raise UsageError("quarantine list takes no jobs; it lists all (or those of --target)")
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
    "publish": run_publish,
    "republish": run_republish,
    "sync": run_sync,
    "status": run_status,
    "trace": run_trace,
    "explain": run_explain,
    "quarantine": run_quarantine,
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
    try:
        arguments = parser().parse_args(argv)
        verbosity = -1 if arguments.quiet else arguments.verbose
        terminal.set_up_logging(verbosity=verbosity, log_format=arguments.log_format, stream=sys.stderr)
        return RUNS[arguments.command](arguments, stop)
    except PublisherError as error:
        terminal.error_line(str(error))
        return error.exit_status
    except _OutOfTime:
        terminal.error_line("ended by SIGTERM; nothing is lost, the next run goes on from here")
        return Later.exit_status
    except KeyboardInterrupt:
        terminal.error_line("interrupted; nothing is lost, the next run goes on from here")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001  # the one boundary: no traceback for the user
        terminal.log.critical("a bug in publisher", exc_info=True)
        terminal.error_line(
            f"a bug in publisher: {type(error).__name__}: {error}; run with -vv and report what it prints"
        )
        return BUG


def main() -> NoReturn:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal of Latin-1 is no reason to fail
    stop = threading.Event()
    _end_on_sigterm(stop)
    status = run(sys.argv[1:], stop)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has left; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
