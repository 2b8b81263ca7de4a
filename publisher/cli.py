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
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from publisher import __version__
from publisher.errors import BUG, PublisherError, SourceError, UsageError

DEFAULT_CONFIG = Path("/etc/publisher/publisher.yaml")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\n{self.format_usage().strip()}")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="publisher",
        description="Publish finished grid jobs to accounting services: once, signed, provably.",
        epilog="Exit statuses and JSON output: publisher(1). Configuration: publisher.yaml(5).",
    )
    top.add_argument("--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help=f"default {DEFAULT_CONFIG}")
    top.add_argument("-v", "--verbose", action="count", default=0, help="say more; -vv also tracebacks")
    top.add_argument("-q", "--quiet", action="store_true", help="warnings and errors only")
    top.add_argument("--log-format", choices=("text", "json"), default="text", help="of the log on standard error")
    top.add_argument("--version", action="version", version=f"publisher {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _publish(commands)
    _republish(commands)
    _status(commands)
    _trace(commands)
    _quarantine(commands)
    _config(commands)
    return top


def _command(commands: Any, name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.set_defaults(run=run)
    return made


def _with_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def _with_targets(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--target", action="append", default=[], metavar="NAME", help="this target; may be repeated (default: all)"
    )


def _publish(commands: Any) -> None:
    command = _command(commands, "publish", run_publish, "one regular round: everything not yet delivered")
    _with_targets(command)
    command.add_argument("--force", action="store_true", help="also targets that are not due yet")
    command.add_argument("--dry-run", action="store_true", help="do everything but send and remember")
    command.add_argument(
        "--accept-key-change",
        action="store_true",
        help="send months although rows under other keys stay at the receiver (its team must delete them)",
    )
    command.add_argument("--limit", type=_count, metavar="N", help="at most N jobs a target (not for summaries)")
    _with_json(command)


def _republish(commands: Any) -> None:
    command = _command(commands, "republish", run_republish, "a window again, whatever was delivered; resumable")
    command.add_argument(
        "--from", dest="start", required=True, metavar="WHEN", help="2026-03, 2026-03-05T14:00, last-month"
    )
    command.add_argument("--to", dest="end", required=True, metavar="WHEN", help="a named period ends at its end")
    _with_targets(command)
    command.add_argument("--format", metavar="F", help="another format than the target's own")
    command.add_argument("--exact", action="store_true", help="do not round out to whole months (job formats only)")
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.add_argument("--no-brake", action="store_true", help="also what dwarfs or contradicts the ledger")
    command.add_argument("--dry-run", action="store_true", help="do everything but send and remember")
    command.add_argument(
        "--accept-key-change",
        action="store_true",
        help="send months although rows under other keys stay at the receiver",
    )
    _with_json(command)


def _status(commands: Any) -> None:
    command = _command(commands, "status", run_status, "what was delivered, what waits; only reads")
    _with_targets(command)
    _with_json(command)


def _trace(commands: Any) -> None:
    command = _command(commands, "trace", run_trace, "every message that carried a job")
    command.add_argument("job", metavar="JOB", help="the job's id (JobID)")
    _with_json(command)


def _quarantine(commands: Any) -> None:
    command = _command(commands, "quarantine", run_quarantine, "the jobs that were set aside")
    command.add_argument("action", choices=("list", "release", "drop"), help="release: try again; drop: never send")
    command.add_argument("jobs", nargs="*", metavar="JOB", help="numbers or ids of jobs, for release and drop")
    command.add_argument("--all", action="store_true", dest="every", help="release or drop all of them")
    _with_targets(command)
    _with_json(command)


def _config(commands: Any) -> None:
    command = _command(commands, "config", run_config, "the configuration itself")
    command.add_argument(
        "action", choices=("check", "show", "example"), help="check it, show it with defaults, print a commented sample"
    )


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of 1 or more")
    return int(text)


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
    targets = commands.choose(site.settings, arguments.target)
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


def run_config(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import config

    if arguments.action == "example":
        sys.stdout.write(config.example())
        return 0
    settings = _site(arguments, stop).settings
    if arguments.action == "show":
        sys.stdout.write(config.show(settings))
    else:
        print(f"{arguments.config}: good; targets: {', '.join(target.name for target in settings.targets)}")
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


def run(argv: Sequence[str]) -> int:
    """Run one command; every error of ours becomes one or more lines on standard error and its exit status."""
    from publisher import terminal

    stop = threading.Event()
    try:
        arguments = parser().parse_args(argv)
        verbosity = -1 if arguments.quiet else arguments.verbose
        terminal.set_up_logging(verbosity=verbosity, log_format=arguments.log_format, stream=sys.stderr)
        status: int = arguments.run(arguments, stop)
        return status
    except PublisherError as error:
        terminal.error_line(str(error))
        return error.exit_status
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
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has left; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
