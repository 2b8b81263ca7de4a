"""argv in, exit status out."""

from __future__ import annotations

import argparse
import errno
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
from publisher.errors import BUG, Later, LedgerError, PublisherError

# A round makes objects by the million and hardly a cycle: to look for some after every 700 took 7 % of it (perf).
CYCLES_AFTER: Final = 20_000
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


def run_looking(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import looking

    if arguments.command == "status":
        return looking.status(arguments, lambda: _site(arguments, stop))
    site = _site(arguments, stop)
    match arguments.command:
        case "source":
            return looking.source(arguments, site)
        case "trace":
            return looking.trace(arguments, site)
        case "explain":
            return looking.explain(arguments, site)
        case _:
            return looking.quarantine(arguments, site)


def run_daemon(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import serving

    return serving.serve(lambda: _site(arguments, stop), stop)


def run_doctor(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import doctor, looking

    host = doctor.Host(
        arc_conf=arguments.arc_conf,
        units=UNIT_FOLDERS,
        cron=CRON_FOLDERS,
        free_bytes=lambda directory: shutil.disk_usage(directory).free,
    )
    return looking.doctor_says(arguments, lambda: _site(arguments, stop), host)


def run_local(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import local

    if arguments.command == "export" and arguments.columns:
        return local.export_columns()  # what is the same at every site
    site = _site(arguments, stop)
    match arguments.command:
        case "stats":
            return local.stats(arguments, site)
        case "complete":
            return local.complete(arguments, site)
        case "export":
            return local.export(arguments, site)
        case _:
            return local.job(arguments, site)


def run_charge(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import billing

    return billing.charge(arguments, _site(arguments, stop))


def run_report(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import presenting

    return presenting.report(arguments, _site(arguments, stop))


def run_import(arguments: argparse.Namespace, stop: threading.Event) -> int:
    from publisher import importing, results_import, terminal

    site, quiet = _site(arguments, stop), arguments.quiet or arguments.json
    counting = terminal.CountingReport(sys.stderr, monotonic=time.monotonic, quiet=quiet, what="records read")
    try:
        report = importing.import_accounting(
            site, arguments.action, arguments.paths, arguments.database, watch=counting.seen
        )
    finally:
        counting.done()
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
    from publisher import config, configuring

    match arguments.action:
        case "example":
            sys.stdout.write(config.example())
            return 0
        case "from-arc":
            return configuring.from_arc(arguments, os.environ, datetime.now(UTC))
        case _:
            return configuring.check_or_show(arguments, _site(arguments, stop))


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
            abreast=True,
        ),
        after_round=() if settings.metrics is None else (_tell_metrics,),
    )


def _tell_metrics(site: Any, outcome: Any) -> None:
    from publisher import metrics

    metrics.after_round(site, outcome)


RUNS: Final[Mapping[str, Callable[[argparse.Namespace, threading.Event], int]]] = {
    "publish": run_sending,
    "run": run_daemon,
    "republish": run_sending,
    "sync": run_sending,
    "status": run_looking,
    "trace": run_looking,
    "explain": run_looking,
    "quarantine": run_looking,
    "stats": run_local,
    "job": run_local,
    "export": run_local,
    "source": run_looking,
    "doctor": run_doctor,
    "import": run_import,
    "charge": run_charge,
    "report": run_report,
    "complete": run_local,
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
    except OSError as error:
        return _cannot_print(error) if _is_of_output(error) else _bug(error)
    except Exception as error:  # noqa: BLE001  # the one boundary: no traceback for the user
        return _bug(error)


def _bug(error: Exception) -> int:
    from publisher import terminal

    terminal.log.critical("a bug in publisher", exc_info=error)
    terminal.error_line(f"a bug in publisher: {type(error).__name__}: {error}; run with -vv and report what it prints")
    return BUG


def _is_of_output(error: OSError) -> bool:
    """Whether standard output takes no more: files that we open ourselves have errors of their own, with their names."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _cannot_print(error: OSError) -> int:
    from publisher import terminal

    terminal.error_line(
        f"cannot print the result: {error.strerror}; what was done stays done, `publisher status` tells"
    )
    _leave_output()
    return LedgerError.exit_status


def _leave_output() -> None:
    """Nobody reads it, or nothing fits in: Python would complain once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _goes_on(command: str) -> str:
    """Where a command that was broken off will go on."""
    match command:
        case "publish" | "sync":
            return "nothing is lost, the next run goes on from here"
        case "republish" | "import" | "charge":
            return "nothing is lost, the same command goes on from here"
        case _:
            return "run it again"


def main() -> NoReturn:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal of Latin-1 is no reason to fail
    gc.set_threshold(CYCLES_AFTER)
    stop = threading.Event()
    _end_on_sigterm(stop)
    status = run(sys.argv[1:], stop)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has left
        _leave_output()
    except OSError as error:
        status = _cannot_print(error) if _is_of_output(error) else _bug(error)
    sys.exit(status)
