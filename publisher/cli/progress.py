"""How far a command has come, on standard error: one line on a terminal, elsewhere one a minute."""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from shutil import get_terminal_size
from threading import Lock
from typing import Final, TextIO

from publisher.cli.logs import log
from publisher.jobs.reader import JobPage
from publisher.ledger.answers import TargetState
from publisher.model.job import JobId, SkippedJob
from publisher.model.message import Message
from publisher.model.text import plural
from publisher.transports.base import NOT_SENT, Receipt, Verdict

_LINE_EVERY_S: Final = 60.0
SLOW_S: Final = 30.0  # for one message, which takes a second or two
_BAR_EVERY_S: Final = 0.2
_BAR_AFTER_S: Final = 2.0  # what is done sooner needs no bar
# Jobs set aside that are logged one by one; `quarantine list` has them all
_SHOWN_QUARANTINED: Final = 20
_SHOWN_ON_TERMINAL: Final = 3  # where the result of the round is to fit on the same screen
_SHOWN_AS: Final = {
    Verdict.IN_DOUBT: "in doubt",
    Verdict.RETRY_LATER: "deferred",
    Verdict.STOP_TARGET: "rejected",
}


class _StatusLine:
    """A line on a terminal, written over and taken away at the end; nothing unless `shown`."""

    def __init__(self, stream: TextIO, *, shown: bool) -> None:
        self.shown = shown and stream.isatty()
        self._stream = stream
        self._drawn = False

    def draw(self, text: str) -> None:
        if self.shown:
            self._stream.write(f"\r{text}\x1b[K")
            self._stream.flush()
            self._drawn = True

    def waits(self, names: Sequence[str]) -> None:
        """What is being examined, the last first: a service that does not answer is waited for."""
        *others, last = dict.fromkeys(names)
        more = f", {others[-1]}" if others else ""
        if others[1:]:
            more += f" and {len(others) - 1} more"
        self.draw(f"looking at {last}{more} ...")

    def close(self) -> None:
        """Leave the terminal as it was found."""
        if self._drawn:
            self.draw("")
            self._drawn = False


class _TargetProgress:
    """How far the round of one target has come."""

    def __init__(self, began: float) -> None:
        self.began = self.printed_at = began
        self.rows = self.records = self.quarantined = 0
        self.is_slow = False


class ProgressReport:
    """Reports on rounds: progress in one line on a terminal, elsewhere a log line a message and one
    a minute.

    Several targets report at once, each from a thread of its own.
    """

    def __init__(self, stream: TextIO, *, monotonic: Callable[[], float], quiet: bool) -> None:
        self._monotonic = monotonic
        self._status_line = _StatusLine(stream, shown=not quiet)
        self._drawn_at = monotonic()
        self._lock = Lock()
        self._targets: defaultdict[str, _TargetProgress] = defaultdict(
            lambda: _TargetProgress(monotonic())
        )
        self._expected = 0
        self._all_records = 0
        self._all_began = self._drawn_at

    def expect(self, jobs: int) -> None:
        """At most so many jobs are to come: then the bar can show what is left."""
        self._expected = jobs

    def round_begins(self, state: TargetState, *, sweep: bool) -> None:
        with self._lock:
            self._targets[state.target] = _TargetProgress(self._monotonic())
        how = ", checking every row" if sweep else ""
        log.debug("target %s: round begins%s", state.target, how)

    def page_read(self, target: str, page: JobPage) -> None:
        with self._lock:
            progress = self._targets[target]
            progress.rows += len(page.jobs)
            self._show(target, progress)

    def job_set_aside(self, target: str, job: SkippedJob) -> None:
        with self._lock:
            progress = self._targets[target]
            progress.quarantined += 1
            self._status_line.close()
            most = _SHOWN_ON_TERMINAL if self._status_line.shown else _SHOWN_QUARANTINED
            if progress.quarantined <= most:
                words = (target, job.job_id, job.rule, job.reason)
                log.warning("target %s: job %s set aside: %s: %s", *words)
            elif progress.quarantined == most + 1:
                text = "target %s: more jobs set aside; `publisher quarantine list` shows all"
                log.warning(text, target)

    def record_shed(self, target: str, job_id: JobId, reason: str) -> None:
        with self._lock:
            self._status_line.close()
            text = "target %s: job %s is sent without its file transfers: %s"
            log.warning(text, target, job_id, reason)

    def message_prepared(self, message: Message) -> None:
        pass

    def message_handed_over(self, message: Message, receipt: Receipt) -> None:
        with self._lock:
            self._status_line.close()
            is_delivered = receipt.verdict is Verdict.DELIVERED
            sent = receipt.remote_id != NOT_SENT
            # On a terminal the result says it, and the status line how far it is
            is_news = sent and not self._status_line.shown
            level = _level(is_delivered=is_delivered, is_news=is_news)
            remote_id = f", remote id {receipt.remote_id}" if receipt.remote_id and sent else ""
            # That of another verdict is logged with the round that ends, or what is set aside.
            reason = f": {receipt.reason}" if receipt.reason and is_delivered else ""
            verdict = _SHOWN_AS.get(receipt.verdict, receipt.verdict)
            if not sent:
                verdict = "ready, and not sent"
            log.log(
                level,
                "target %s: message %s: %s: %s, %s bytes%s%s",
                message.target,
                message.id,
                verdict,
                plural(message.records, "record"),
                receipt.bytes_sent,
                remote_id,
                reason,
            )
            if receipt.reason and not is_delivered:
                log.debug("message %s: %s", message.id, receipt.reason)
            progress = self._targets[message.target]
            if receipt.bytes_sent and receipt.seconds >= SLOW_S and not progress.is_slow:
                progress.is_slow = True
                log.warning(
                    "target %s: a slow receiver: it took %.0f s over a message of %s bytes; "
                    "other targets go on meanwhile, up to `targets_at_once`",
                    message.target,
                    receipt.seconds,
                    receipt.bytes_sent,
                )

    def message_settled(self, message: Message, receipt: Receipt) -> None:
        with self._lock:
            progress = self._targets[message.target]
            progress.records += message.records
            self._all_records += message.records
            self._show(message.target, progress)

    def close(self) -> None:
        """Leave the terminal as it was found."""
        with self._lock:
            self._status_line.close()

    def _show(self, target: str, progress: _TargetProgress) -> None:
        now = self._monotonic()
        if not self._status_line.shown:
            if now - progress.printed_at >= _LINE_EVERY_S:
                progress.printed_at = now
                log.info("%s", self._line(target, progress, now))
        elif now - self._drawn_at >= _BAR_EVERY_S:
            self._drawn_at = now
            lines = [self._line(name, each, now) for name, each in self._targets.items()]
            self._status_line.draw("; ".join(lines)[: get_terminal_size().columns - 1])

    def _line(self, target: str, progress: _TargetProgress, now: float) -> str:
        done = f"{progress.rows:,} rows read, {progress.records:,} records delivered"
        return f"{target}: {done}, {self._rate(progress, now)}"

    def _rate(self, progress: _TargetProgress, now: float) -> str:
        if not self._expected:
            return f"{progress.records / max(now - progress.began, 0.001):,.0f}/s"
        rate = self._all_records / max(now - self._all_began, 0.001)
        left_s = max(self._expected - self._all_records, 0) / rate if rate else 0
        done = min(100 * self._all_records // max(self._expected, 1), 100)
        return f"{done} %, {rate:,.0f}/s, about {left_s:,.0f} s left"


class CountingReport:
    """Reports how far a long count has come: in one line on a terminal, elsewhere one a minute."""

    def __init__(
        self, stream: TextIO, *, monotonic: Callable[[], float], quiet: bool, what: str
    ) -> None:
        self._monotonic = monotonic
        self._quiet = quiet
        self._what = what
        self._status_line = _StatusLine(stream, shown=not quiet)
        self._began = monotonic()
        self._next = self._began + (_BAR_AFTER_S if self._status_line.shown else _LINE_EVERY_S)
        self._count = self._expected = 0

    def expect(self, count: int) -> None:
        """So many are to come: then it can show what is left."""
        self._expected = count

    def seen(self, more: int) -> None:
        self._count += more
        now = self._monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + (_BAR_EVERY_S if self._status_line.shown else _LINE_EVERY_S)
        if self._status_line.shown:
            self._status_line.draw(self._line(now))
        else:
            log.info("%s", self._line(now))

    def _line(self, now: float) -> str:
        if not self._expected:
            return f"{self._count:,} {self._what}"
        rate = self._count / max(now - self._began, 0.001)
        left_s = max(self._expected - self._count, 0) / max(rate, 0.001)
        counted = f"{self._count:,} of {self._expected:,} {self._what}"
        return f"{counted}, {rate:,.0f}/s, about {left_s:,.0f} s left"

    def close(self) -> None:
        """Leave the terminal as it was found."""
        self._status_line.close()


def _level(*, is_delivered: bool, is_news: bool) -> int:
    """Return the level of a message's line. Of a dry run the result says enough."""
    if not is_delivered:
        return logging.WARNING
    return logging.INFO if is_news else logging.DEBUG


def rounds(*, quiet: bool) -> AbstractContextManager[ProgressReport]:
    """Show how far rounds are while they run."""
    return closing(ProgressReport(sys.stderr, monotonic=time.monotonic, quiet=quiet))


def counting(what: str, *, quiet: bool) -> AbstractContextManager[CountingReport]:
    """Show how many have been counted."""
    return closing(CountingReport(sys.stderr, monotonic=time.monotonic, quiet=quiet, what=what))


def stages(*, quiet: bool) -> AbstractContextManager[_StatusLine]:
    """Show what is being examined."""
    return closing(_StatusLine(sys.stderr, shown=not quiet))
