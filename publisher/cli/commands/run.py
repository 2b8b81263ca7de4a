"""The daemon: signals, systemd and logs around the rounds. Runs until it is stopped."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from publisher.cli import progress
from publisher.cli.commands import Context, load_part
from publisher.cli.commands.publish import month_text, notes
from publisher.cli.logs import log, log_trouble
from publisher.cli.parser import add_accept_state
from publisher.model.text import plural
from publisher.publishing.plan.actions import PlanLine
from publisher.publishing.publish import OnceARound
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import Site

if TYPE_CHECKING:
    from publisher.publishing.daemon import DaemonCommand
    from publisher.reporting.metrics.exporter import MetricsEndpoint

_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_accept_state(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    """Publish on the targets' timetables; SIGHUP reads the configuration, SIGTERM, SIGINT end it.

    Raises: ConfigError, LedgerError when it cannot begin.
    """
    daemon = load_part("publishing.daemon")
    with _signals_wait():
        _lead_foreign_logs()
        with _metrics_over_http() as follow:
            site = follow(context.load().accepting_state(accept=arguments.accept_state))
            manager = daemon.ServiceManager(site.process.environment)
            next_command = partial(_next_command, daemon.DaemonCommand)

            def serve(check_turn: Callable[[], object] = lambda: None) -> None:
                daemon.Daemon(
                    site,
                    load=lambda: follow(context.load()),
                    next_command=next_command,
                    stop=context.stop,
                    manager=manager,
                    observer=progress.ProgressReport(
                        sys.stderr, monotonic=time.monotonic, quiet=True
                    ),
                    report=partial(_log_outcome, OnceARound()),
                    check_turn=check_turn,
                ).serve()

            if site.ledgers.instance:
                daemon.StandbyDaemon(
                    site, next_command=next_command, manager=manager, serve=serve
                ).serve()
            else:
                serve()
    return 0


@contextmanager
def _metrics_over_http() -> Iterator[Callable[[Site], Site]]:
    """Let the endpoint follow each loaded configuration; one that it cannot follow is refused."""
    with ExitStack() as opened:
        endpoints: list[MetricsEndpoint] = []

        def follow(site: Site) -> Site:
            if site.metrics is not None and not endpoints:
                # Its library may be missing
                endpoint_type = load_part("reporting.metrics.exporter").MetricsEndpoint
                endpoints.append(opened.enter_context(closing(endpoint_type())))
            for endpoint in endpoints:
                endpoint.follow(site)
            return site

        yield follow


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Block the signals, which are waited for in one place. New threads inherit it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # A SIGTERM that came before has asked for a stop, and set an alarm for those who do not look.
    signal.alarm(0)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _next_command(commands: type[DaemonCommand], seconds: float) -> DaemonCommand | None:
    asked = signal.sigtimedwait(_SIGNALS, seconds)
    if asked is None:
        return None
    return commands.RELOAD if asked.si_signo == signal.SIGHUP else commands.STOP


def _lead_foreign_logs() -> None:
    """Send the complaints of APScheduler where our own lines go."""
    logger = logging.getLogger("apscheduler")
    logger.handlers[:] = log.handlers
    logger.propagate = False
    logger.setLevel(logging.WARNING)


def _log_outcome(of_all: OnceARound, outcome: Outcome) -> None:
    """Log what `publish` would print of it; once a round what concerns all targets."""
    log_trouble([outcome.target], outcome.exit_status, outcome.own_reason)
    for reason in of_all.to_log(outcome.target, outcome.lacks):
        log_trouble([], outcome.exit_status, reason)
    level = logging.DEBUG if outcome.outcome == "nothing" else logging.INFO
    log.log(
        level,
        "target %s: round ended: %s: %s messages, %s records, %s bytes, %s set aside",
        outcome.target,
        outcome.outcome,
        f"{outcome.messages:,}",
        f"{outcome.records:,}",
        f"{outcome.bytes:,}",
        f"{outcome.quarantined:,}",
    )
    for line in outcome.actions:
        log.info("target %s: %s", outcome.target, _action_text(line))
    for note in notes(outcome._replace(reason="")):  # the reason was logged above
        log.info("%s", note)


def _action_text(line: PlanLine) -> str:
    """Return what is done about some jobs and rows of a month, and why, in one line."""
    jobs = "" if line.jobs is None else plural(line.jobs, "job")
    rows = "" if line.rows is None else plural(line.rows, "row")
    what = ", ".join(filter(None, (jobs, rows)))
    return f"{month_text(line)}: {line.action.kind} {what}: {line.action.reason}"
