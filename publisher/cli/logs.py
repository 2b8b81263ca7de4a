"""What goes to standard error: log lines as text, JSON or for the journal, and lines for people.

The journal knows the time of each line itself and reads its priority from `<N>` before it.
Spec: sd-daemon(3), and systemd.exec(5) on JOURNAL_STREAM.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO

from publisher.model.errors import BUG, Later, RecordError
from publisher.model.text import visible

log = logging.getLogger("publisher")

# How commands of ours in messages are written, up to their names, and what they begin with then.
_repeated: list[tuple[re.Pattern[str], str]] = []

# By level: the journal's debug, info, warning, err, crit.
_PRIORITIES: Final = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}


def repeat_configuration(path: Path, commands: Iterable[str]) -> None:
    """Have commands in messages name a configuration file that is not the default one."""
    found = re.compile(rf"(?<![\w-])publisher (?=(?:{'|'.join(commands)})\b)")
    words = f"publisher -c {shlex.quote(str(path))} "
    _repeated.append((found, words.replace("\\", r"\\")))


def shown(text: str) -> str:
    """Return a text as people see it: on one line, with commands that ask the same site."""
    text = visible(text)
    for found, words in _repeated:
        text = found.sub(words, text)
    return text


def leads_to_journal(environment: Mapping[str, str], stream: TextIO) -> bool:
    """Return whether this very stream is the journal, not a file or pipe in its place."""
    device, colon, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    if not (colon and device.isdecimal() and inode.isdecimal()):
        return False
    try:
        found = os.fstat(stream.fileno())
    except (OSError, io.UnsupportedOperation):  # no file of the system behind it
        return False
    return (found.st_dev, found.st_ino) == (int(device), int(inode))


class JournalLines(logging.Formatter):
    """The lines of another formatter, each with its priority: each is an entry of the journal."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = _PRIORITIES.get(record.levelno, 5)
        return "\n".join(f"<{priority}>{line}" for line in self._inner.format(record).split("\n"))


def _moment(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))


class JsonLines(logging.Formatter):
    """Log lines as JSON objects, one a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class PlainLines(logging.Formatter):
    """Log lines for people; tracebacks only where they are asked for."""

    def __init__(self, *, tracebacks: bool, times: bool = True) -> None:
        super().__init__()
        self._tracebacks = tracebacks
        self._times = times

    def format(self, record: logging.LogRecord) -> str:
        line = f"{record.levelname} {shown(record.getMessage())}"
        if self._times:
            line = f"{_moment(record)} {line}"
        if self._tracebacks and record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line.rstrip("\n")


def set_up_logging(*, verbosity: int, log_format: str, stream: TextIO) -> None:
    """Logs on standard error: warnings when quiet, a line per message, everything with `-v`.

    A terminal shows in one line how far a round is; single attempts to send are logged elsewhere.
    """
    _repeated.clear()
    levels = {-1: logging.WARNING, 0: logging.INFO}
    journal = leads_to_journal(os.environ, stream)
    plain = PlainLines(tracebacks=verbosity >= 2, times=not journal)
    lines: logging.Formatter = JsonLines() if log_format == "json" else plain
    if journal:
        lines = JournalLines(lines)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(lines)
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(levels.get(verbosity, logging.DEBUG))
    is_on_screen = stream.isatty() and verbosity == 0
    level = logging.WARNING if is_on_screen else logging.NOTSET
    logging.getLogger("publisher.transports").setLevel(level)


def log_trouble(targets: Sequence[str], exit_status: int, reason: str) -> None:
    """Log why targets failed, without any why all did, once; a bug was logged before.

    Those who drop the output see it too.
    """
    if reason and exit_status not in (0, BUG):
        mild = exit_status in (RecordError.exit_status, Later.exit_status)
        level = logging.WARNING if mild else logging.ERROR
        noun = "target" if len(targets) == 1 else "targets"
        of_whom = f"{noun} {', '.join(targets)}: " if targets else ""
        log.log(level, "%s%s", of_whom, reason)


def notice(text: str) -> None:
    """Print a line for people on standard error, before something is done."""
    _say(logging.INFO, text, text)


def error_line(text: str) -> None:
    for line in text.split("\n"):
        _say(logging.ERROR, line, f"publisher: {line}")


def _say(level: int, logged: str, line: str) -> None:
    """Print a bare line for people, a log line for JSON and the journal."""
    if not log.isEnabledFor(level):
        return
    if any(isinstance(handler.formatter, JsonLines | JournalLines) for handler in log.handlers):
        log.log(level, "%s", logged)
    else:
        with suppress(
            OSError
        ):  # a full disk under standard error: there is no place left to say so but the exit status
            sys.stderr.write(shown(line) + "\n")
