"""argv in, exit status out."""

from __future__ import annotations

import argparse
import errno
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Final, NoReturn, TextIO

from publisher.cli.commands import COMMANDS, Context, command, load_site
from publisher.cli.logs import error_line, log, repeat_configuration, set_up_logging
from publisher.cli.parser import DEFAULT_CONFIG, is_quiet, parser, verbosity
from publisher.model.errors import BUG, ConfigError, Later, LedgerError, PublisherError

# A round makes objects by the million and hardly a cycle: a look after every 700 took 7 % (perf).
CYCLES_AFTER: Final = 20_000
# Larger than the copies of a message. Once a block of this size was freed, glibc keeps freed memory
# for the next one; until then it gives each copy back, and the kernel clears new pages for the next
# (M_MMAP_THRESHOLD in mallopt(3); hot path).
_KEPT_BYTES: Final = 2 << 20
_WITHOUT_JINJA: Final = "(--format terminal and --csv do not)"
# Libraries that not every site needs: what needs them, the extra for pip, Debian's packages.
_OPTIONAL: Final = {
    "apscheduler": ("`run` and `cron`", "run", "python3-apscheduler"),
    "jinja2": (f"the page of a report {_WITHOUT_JINJA}", "report", "python3-jinja2"),
    "pyarrow": ("`export --format parquet`", "parquet", "python3-pyarrow"),
}
_OF_OUTPUT: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# To the end of a message after SIGTERM; systemd and people expect an end within ten seconds
_GRACE_S: Final = 7


class _OutOfTime(BaseException):
    """Seconds after SIGTERM something still waits for the network: that stays outstanding."""


def _end_on_sigterm(stop: threading.Event) -> None:
    """SIGTERM ends the run between two messages, or seconds later within one; nothing is lost."""

    def out_of_time(signum: int, frame: object) -> NoReturn:
        raise _OutOfTime

    def asked(signum: int, frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGALRM, out_of_time)
        signal.alarm(_GRACE_S)

    signal.signal(signal.SIGTERM, asked)


def run(argv: Sequence[str], stop: threading.Event | None = None) -> int:
    """Run one command; an error of ours becomes lines on standard error and its exit status."""
    given = argparse.Namespace(command=None)
    set_up_logging(verbosity=0, log_format="text", stream=sys.stderr)
    try:
        return _run(argv, given, stop or threading.Event())
    except PublisherError as error:
        error_line(str(error))
        return error.exit_status
    except _OutOfTime:
        error_line(f"ended by SIGTERM; {_what_to_do(given.command)}")
        return Later.exit_status
    except KeyboardInterrupt:
        error_line(f"interrupted; {_what_to_do(given.command)}")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return 0
    except ModuleNotFoundError as error:
        return _missing(error)
    except OSError as error:
        return _cannot_print(error) if _is_of_output(error) else _bug(error)
    except Exception as error:  # noqa: BLE001  # the one boundary: no traceback for the user
        return _bug(error)


def _run(argv: Sequence[str], given: argparse.Namespace, stop: threading.Event) -> int:
    command_line = parser()
    command_line.parse_args(argv, given)
    set_up_logging(verbosity=verbosity(given), log_format=given.log_format, stream=sys.stderr)
    if given.config != DEFAULT_CONFIG:
        repeat_configuration(given.config, [one.name for one in COMMANDS])
    if given.command is None:
        command_line.print_help()
        return 0
    load = partial(load_site, given.config, stop, quiet=is_quiet(given))
    context = Context(load=load, stop=stop)
    return command(given.command).load().run(given, context)


def _bug(error: Exception) -> int:
    log.critical("a bug in publisher", exc_info=error)
    advice = "run with -vv and report what it prints"
    error_line(f"a bug in publisher: {type(error).__name__}: {error}; {advice}")
    return BUG


def _missing(error: ModuleNotFoundError) -> int:
    library = (error.name or "").partition(".")[0]
    if library not in _OPTIONAL:
        return _bug(error)
    what, extra, packages = _OPTIONAL[library]
    how = f"pip install 'accounting-publisher[{extra}]'"
    if sys.prefix != sys.base_prefix:  # a virtual environment, which sees no packages of the system
        how = f"{sys.prefix}/bin/{how}"
    else:
        how = f"{how}, or on Debian apt-get install {packages}"
    error_line(f"{what} needs the Python library {library}, which is not installed here: {how}")
    return ConfigError.exit_status


def _is_of_output(error: OSError) -> bool:
    """Whether standard output takes no more: errors of files that we open carry their names."""
    return error.filename is None and error.errno in _OF_OUTPUT


def _cannot_print(error: OSError) -> int:
    found = f"cannot print the result: {error.strerror}"
    error_line(f"{found}; what was done is not undone; `publisher status` shows it")
    _abandon(sys.stdout)
    return LedgerError.exit_status


def _abandon(stream: TextIO) -> None:
    """Nobody reads it, or it is full: Python would complain once more, with a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _what_to_do(command: str | None) -> str:
    """Where a command that was broken off will continue."""
    match command:
        case "publish" | "sync":
            return "nothing is lost, the next run continues from here"
        case "republish" | "import" | "charge":
            return "nothing is lost, the same command continues from here"
        case _:
            return "run it again"


def _open_closed_streams() -> None:
    """For what the caller closed Python has None, and the next file opened would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def main() -> NoReturn:
    """The console script."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal of Latin-1 is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    gc.set_threshold(CYCLES_AFTER)
    bytearray(_KEPT_BYTES)
    stop = threading.Event()
    _end_on_sigterm(stop)
    status = run(sys.argv[1:], stop)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has left
        _abandon(sys.stdout)
    except OSError as error:
        status = _cannot_print(error) if _is_of_output(error) else _bug(error)
    try:
        sys.stderr.flush()
    except OSError:
        _abandon(sys.stderr)
    # At its end Python looks for cycles in everything once more: a seventh of a short command
    gc.freeze()
    sys.exit(status)
