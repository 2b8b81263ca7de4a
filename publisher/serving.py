"""The daemon on this machine: signals, systemd and logs around the rounds. Runs until it is told to stop."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from publisher import results, terminal
from publisher.outcome import Outcome
from publisher.scheduler.daemon import Daemon, Wish
from publisher.scheduler.systemd import ServiceManager
from publisher.wiring import Site

if TYPE_CHECKING:
    from publisher.metrics.endpoint import Endpoint

_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def serve(load: Callable[[], Site], stop: threading.Event) -> int:
    """Publish on the targets' timetables; SIGHUP reads the configuration again, SIGTERM and SIGINT end it.

    Raises: ConfigError, LedgerError when it cannot begin.
    """
    with _signals_wait():
        _lead_foreign_logs()
        with _metrics_over_http() as follow:
            site = follow(load())
            Daemon(
                site,
                load=lambda: follow(load()),
                wish=_next_wish,
                stop=stop,
                manager=ServiceManager(site.surroundings.environment),
                observer=terminal.ProgressReport(sys.stderr, monotonic=time.monotonic, quiet=True),
                tell=_tell,
            ).serve()
    return 0


@contextmanager
def _metrics_over_http() -> Iterator[Callable[[Site], Site]]:
    """Lets the endpoint follow each configuration that is loaded; one that it cannot follow is refused as a whole."""
    with ExitStack() as opened:
        endpoints: list[Endpoint] = []

        def follow(site: Site) -> Site:
            if site.settings.metrics is not None and not endpoints:
                from publisher.metrics.endpoint import Endpoint  # its library need not be installed

                endpoints.append(opened.enter_context(closing(Endpoint())))
            for endpoint in endpoints:
                endpoint.follow(site)
            return site

        yield follow


@contextmanager
def _signals_wait() -> Iterator[None]:
    """They are waited for in one place rather than striking anywhere. Threads that begin here inherit it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    # A SIGTERM that came before has asked for a stop, and set an alarm for those who do not look.
    signal.alarm(0)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _next_wish(seconds: float) -> Wish | None:
    asked = signal.sigtimedwait(_SIGNALS, seconds)
    if asked is None:
        return None
    return Wish.RELOAD if asked.si_signo == signal.SIGHUP else Wish.STOP


def _lead_foreign_logs() -> None:
    """What APScheduler has to complain of belongs where our own lines go."""
    logger = logging.getLogger("apscheduler")
    logger.handlers[:] = terminal.log.handlers
    logger.propagate = False
    logger.setLevel(logging.WARNING)


def _tell(outcome: Outcome) -> None:
    """What `publish` would print of it, as log lines."""
    terminal.log_trouble(outcome.target, outcome.exit_status, outcome.reason)
    terminal.log.log(
        logging.DEBUG if outcome.outcome == "nothing" else logging.INFO,
        "target %s: round ended: %s: %s messages, %s records, %s bytes, %s set aside",
        outcome.target,
        outcome.outcome,
        f"{outcome.messages:,}",
        f"{outcome.records:,}",
        f"{outcome.bytes:,}",
        f"{outcome.quarantined:,}",
    )
    for note in results.publish_notes(replace(outcome, reason="")):  # the reason was logged above
        terminal.log.info("%s", note)
