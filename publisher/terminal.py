"""The command line's hands: results, one progress line, log lines. Part of the `cli` room."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from shutil import get_terminal_size
from threading import Lock
from typing import Any, Final, TextIO

from publisher.delivery.base import Receipt, Verdict
from publisher.errors import BUG, Later, RecordError
from publisher.journal import JournalLines, leads_to_journal
from publisher.ledger.base import TargetState
from publisher.model.job import JobId, SkippedJob
from publisher.model.message import Message
from publisher.sources.base import Page
from publisher.tables import print_csv, print_line, print_table, visible

__all__ = [
    "CountingReport",
    "JsonLines",
    "PlainLines",
    "ProgressReport",
    "StageLine",
    "error_line",
    "log",
    "log_trouble",
    "notice",
    "print_csv",
    "print_json",
    "print_json_and_list",
    "print_json_list",
    "print_line",
    "print_table",
    "set_up_logging",
    "visible",
]

log = logging.getLogger("publisher")

_LINE_EVERY_S: Final = 60.0
_BAR_EVERY_S: Final = 0.2
_PATIENCE_S: Final = 2.0  # what is done sooner needs no bar
_SHOWN_ASIDE: Final = 20  # jobs set aside that are logged one by one; `quarantine list` has them all


def print_json(result: Mapping[str, Any], out: TextIO) -> None:
    out.write(json.dumps(result, indent=2) + "\n")


def print_json_list(result: Mapping[str, Iterable[str]], out: TextIO) -> None:
    """An object with one list of texts, written while they come: it may be too long for memory."""
    ((name, texts),) = result.items()
    out.write(f"{{\n  {json.dumps(name)}: [")
    between = "\n    "
    for text in texts:
        out.write(between + json.dumps(text))
        between = ",\n    "
    out.write("\n  ]\n}\n")


def print_json_and_list(
    result: Mapping[str, Any], last: Mapping[str, Iterable[Mapping[str, Any]]], out: TextIO
) -> None:
    """As `print_json`, with one more list of objects at the end, a line each, written while they come."""
    ((name, rows),) = last.items()
    out.write(f"{json.dumps(result, indent=2).removesuffix(chr(10) + '}')},\n  {json.dumps(name)}: [")
    between = "\n    "
    for row in rows:
        out.write(between + json.dumps(row))
        between = ",\n    "
    out.write("\n  ]\n}\n")


class JsonLines(logging.Formatter):
    """Log lines as JSON objects, one a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class PlainLines(logging.Formatter):
    """Log lines for people; tracebacks only where they are asked for."""

    converter = staticmethod(time.gmtime)

    def __init__(self, *, tracebacks: bool, times: bool = True) -> None:
        super().__init__(f"{'%(asctime)s ' if times else ''}%(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self._tracebacks = tracebacks

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        return super().formatException(ei) if self._tracebacks else ""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        record.message = visible(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).rstrip("\n")


def set_up_logging(*, verbosity: int, log_format: str, stream: TextIO) -> None:
    """Logs on standard error: warnings when quiet, a line a message otherwise, everything with `-v`."""
    levels = {-1: logging.WARNING, 0: logging.INFO}
    journal = leads_to_journal(os.environ, stream)
    plain = PlainLines(tracebacks=verbosity >= 2, times=not journal)
    lines = JsonLines() if log_format == "json" else plain
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JournalLines(lines) if journal else lines)
    logger = logging.getLogger("publisher")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(levels.get(verbosity, logging.DEBUG))


class _Going:
    """How far the round of one target has come."""

    def __init__(self, began: float) -> None:
        self.began = self.told = began
        self.rows = self.records = self.aside = 0


class ProgressReport:
    """Tells of rounds: a log line a message, and progress: a line rewritten on a terminal, a line a minute elsewhere.

    Several targets tell at once, each from a thread of its own.
    """

    def __init__(self, stream: TextIO, *, monotonic: Callable[[], float], quiet: bool) -> None:
        self._stream = stream
        self._monotonic = monotonic
        self._bar = stream.isatty() and not quiet
        self._drawn = False
        self._drawn_at = monotonic()
        self._lock = Lock()
        self._going: dict[str, _Going] = {}
        self._expected = 0
        self._all_records = 0
        self._all_began = self._drawn_at

    def expect(self, jobs: int) -> None:
        """At most so many jobs are to come: then the bar can tell what is left."""
        self._expected = jobs

    def round_begins(self, state: TargetState, *, sweep: bool) -> None:
        with self._lock:
            self._going[state.target] = _Going(self._monotonic())
        log.debug("target %s: round begins%s", state.target, ", every row is looked at" if sweep else "")

    def page_read(self, target: str, page: Page) -> None:
        with self._lock:
            going = self._of(target)
            going.rows += page.rows_read
            self._show(target, going)

    def job_set_aside(self, target: str, job: SkippedJob) -> None:
        with self._lock:
            going = self._of(target)
            going.aside += 1
            self._clear()
            if going.aside <= _SHOWN_ASIDE:
                log.warning("target %s: job %s set aside: %s: %s", target, job.job_id, job.rule, job.reason)
            elif going.aside == _SHOWN_ASIDE + 1:
                log.warning("target %s: more jobs set aside; `publisher quarantine list` shows all", target)

    def record_shed(self, target: str, job_id: JobId, reason: str) -> None:
        with self._lock:
            self._clear()
            log.warning("target %s: job %s goes without its file transfers: %s", target, job_id, reason)

    def message_prepared(self, message: Message) -> None:
        pass

    def message_handed_over(self, message: Message, receipt: Receipt) -> None:
        with self._lock:
            self._clear()
            log.log(
                logging.INFO if receipt.verdict is Verdict.DELIVERED else logging.WARNING,
                "target %s: message %s: %s: %s records, %s bytes%s%s",
                message.target,
                message.id,
                receipt.verdict,
                message.records,
                receipt.bytes_sent,
                f", remote id {receipt.remote_id}" if receipt.remote_id else "",
                f": {receipt.reason}" if receipt.reason else "",
            )

    def message_settled(self, message: Message, receipt: Receipt) -> None:
        with self._lock:
            going = self._of(message.target)
            going.records += message.records
            self._all_records += message.records
            self._show(message.target, going)

    def done(self) -> None:
        """Leave the terminal as it was found."""
        with self._lock:
            self._clear()

    def _of(self, target: str) -> _Going:
        if target not in self._going:
            self._going[target] = _Going(self._monotonic())
        return self._going[target]

    def _show(self, target: str, going: _Going) -> None:
        now = self._monotonic()
        if not self._bar:
            if now - going.told >= _LINE_EVERY_S:
                going.told = now
                log.info("%s", self._line(target, going, now))
        elif now - self._drawn_at >= _BAR_EVERY_S:
            self._drawn_at = now
            lines = [self._line(name, each, now) for name, each in self._going.items()]
            self._stream.write(f"\r{'; '.join(lines)[: get_terminal_size().columns - 1]}\x1b[K")
            self._stream.flush()
            self._drawn = True

    def _line(self, target: str, going: _Going, now: float) -> str:
        return f"{target}: {going.rows:,} rows read, {going.records:,} records delivered, {self._rate(going, now)}"

    def _rate(self, going: _Going, now: float) -> str:
        if not self._expected:
            return f"{going.records / max(now - going.began, 0.001):,.0f}/s"
        rate = self._all_records / max(now - self._all_began, 0.001)
        left_s = max(self._expected - self._all_records, 0) / rate if rate else 0
        done = min(100 * self._all_records // max(self._expected, 1), 100)
        return f"{done} %, {rate:,.0f}/s, about {left_s:,.0f} s left"

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False


class CountingReport:
    """Tells how far a count has come, when it takes long: a line rewritten on a terminal, a line a minute elsewhere."""

    def __init__(self, stream: TextIO, *, monotonic: Callable[[], float], quiet: bool, what: str) -> None:
        self._stream = stream
        self._monotonic = monotonic
        self._quiet = quiet
        self._what = what
        self._bar = stream.isatty()
        self._began = monotonic()
        self._next = self._began + (_PATIENCE_S if self._bar else _LINE_EVERY_S)
        self._count = self._expected = 0
        self._drawn = False

    def expect(self, count: int) -> None:
        """So many are to come: then it can tell what is left."""
        self._expected = count

    def seen(self, more: int) -> None:
        self._count += more
        now = self._monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (_BAR_EVERY_S if self._bar else _LINE_EVERY_S)
        if self._bar:
            self._stream.write(f"\r{self._line(now)}\x1b[K")
            self._stream.flush()
            self._drawn = True
        else:
            log.info("%s", self._line(now))

    def _line(self, now: float) -> str:
        if not self._expected:
            return f"{self._count:,} {self._what}"
        rate = self._count / max(now - self._began, 0.001)
        left_s = max(self._expected - self._count, 0) / max(rate, 0.001)
        return f"{self._count:,} of {self._expected:,} {self._what}, {rate:,.0f}/s, about {left_s:,.0f} s left"

    def done(self) -> None:
        """Leave the terminal as it was found."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False


class StageLine:
    """Tells on a terminal what is looked at just now: a service that does not answer is waited for."""

    def __init__(self, stream: TextIO, *, quiet: bool) -> None:
        self._stream = stream
        self._bar = stream.isatty() and not quiet

    def begins(self, what: str) -> None:
        self._write(f"looking at {what} ...")

    def done(self) -> None:
        """Leave the terminal as it was found."""
        self._write("")

    def _write(self, text: str) -> None:
        if self._bar:
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()


def log_trouble(target: str, exit_status: int, reason: str) -> None:
    """One line for a target that came to grief, also for those who drop what is printed. A bug was logged where it struck."""
    if reason and exit_status not in (0, BUG):
        mild = exit_status in (RecordError.exit_status, Later.exit_status)
        log.log(logging.WARNING if mild else logging.ERROR, "target %s: %s", target, reason)


def notice(text: str) -> None:
    """A line for people on standard error, before something is done."""
    _say(logging.INFO, text, text)


def error_line(text: str) -> None:
    for line in text.split("\n"):
        _say(logging.ERROR, line, f"publisher: {line}")


def _say(level: int, logged: str, shown: str) -> None:
    """Bare for people; for JSON and the journal as a log line, so that all of standard error can be read line by line."""
    if any(isinstance(handler.formatter, JsonLines | JournalLines) for handler in log.handlers):
        log.log(level, "%s", logged)
    else:
        with suppress(
            OSError
        ):  # a full disk under standard error: there is no place left to say so but the exit status
            sys.stderr.write(visible(shown) + "\n")
