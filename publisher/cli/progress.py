"""How far a command has come: one line on a terminal, and nothing elsewhere.

43 %, about 12 s left: egi: 43,200 of 99,868 jobs read, 42,900 records
24 %, about 2 min left: 3 of 20 targets done; a, b: 98,000 of 399,472 jobs read, 9,500 records
52 %, about 5 s left: 52,000 of 100,000 rows of accounting.db loaded
"""

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

SLOW_S: Final = 30.0  # for one message, which takes a second or two
_MINUTES_FROM_S: Final = 120
_HOURS_FROM: Final = 120  # minutes
_NAMES: Final = 3  # of targets at work that are shown
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
            text = text[: get_terminal_size().columns - 1]
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

    def __init__(self) -> None:
        self.rows = self.expected = self.records = self.quarantined = 0
        self.is_slow = self.has_ended = False


class ProgressReport:
    """Reports on rounds: progress in one line on a terminal, elsewhere a log line a message.

    Several targets report at once, each from a thread of its own.
    """

    def __init__(self, stream: TextIO, *, monotonic: Callable[[], float], quiet: bool) -> None:
        self._monotonic = monotonic
        self._status_line = _StatusLine(stream, shown=not quiet)
        self._drawn_at = self._began = monotonic()
        self._lock = Lock()
        self._targets: defaultdict[str, _TargetProgress] = defaultdict(_TargetProgress)
        self._expected = self._expected_targets = self._set_aside = 0

    def expect(self, jobs: int) -> None:
        """At most so many records are to come: these count, and not the jobs that are read."""
        self._expected = jobs

    def expect_targets(self, targets: int) -> None:
        """So many targets will have a round."""
        self._expected_targets = targets

    def round_begins(self, state: TargetState, *, sweep: bool) -> None:
        with self._lock:
            if not self._targets:
                self._began = self._monotonic()  # what was loaded before is no part of the rate
            self._targets[state.target] = _TargetProgress()
        how = ", checking every row" if sweep else ""
        log.debug("target %s: round begins%s", state.target, how)

    def round_ends(self, target: str) -> None:
        """This target has had its round, whatever came of it."""
        with self._lock:
            self._targets[target].has_ended = True

    def page_read(self, target: str, page: JobPage) -> None:
        with self._lock:
            progress = self._targets[target]
            progress.rows += len(page.jobs)
            if page.upto:
                progress.expected = progress.rows + page.left
            self._show()

    def job_set_aside(self, target: str, job: SkippedJob) -> None:
        with self._lock:
            progress = self._targets[target]
            progress.quarantined += 1
            self._status_line.close()
            if self._status_line.shown:  # the result has the number, and the command
                self._set_aside += 1
                is_shown, is_last = self._set_aside <= _SHOWN_ON_TERMINAL, False
            else:
                is_shown = progress.quarantined <= _SHOWN_QUARANTINED
                is_last = progress.quarantined == _SHOWN_QUARANTINED + 1
            if is_shown:
                words = (target, job.job_id, job.rule, job.reason)
                log.warning("target %s: job %s set aside: %s: %s", *words)
            elif is_last:
                text = "target %s: more jobs set aside; `publisher quarantine list` shows all"
                log.warning(text, target)

    def record_shed(self, target: str, job_id: JobId, reason: str) -> None:
        with self._lock:
            self._status_line.close()
            text = "target %s: job %s is sent without its file transfers: %s"
            level = logging.DEBUG if self._status_line.shown else logging.WARNING
            log.log(level, text, target, job_id, reason)

    def message_prepared(self, message: Message) -> None:
        pass

    def message_handed_over(self, message: Message, receipt: Receipt) -> None:
        with self._lock:
            self._status_line.close()
            is_delivered = receipt.verdict is Verdict.DELIVERED
            sent = receipt.remote_id != NOT_SENT
            level = self._level(is_delivered=is_delivered, sent=sent)
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

    def _level(self, *, is_delivered: bool, sent: bool) -> int:
        """Return the level of a message's line.

        On a terminal, and of a dry run, the result shows enough.
        """
        if self._status_line.shown or (is_delivered and not sent):
            return logging.DEBUG
        return logging.INFO if is_delivered else logging.WARNING

    def message_settled(self, message: Message, receipt: Receipt) -> None:
        with self._lock:
            progress = self._targets[message.target]
            progress.records += message.records
            self._show()

    def close(self) -> None:
        """Leave the terminal as it was found."""
        with self._lock:
            self._status_line.close()

    def _show(self) -> None:
        now = self._monotonic()
        if self._status_line.shown and now - self._drawn_at >= _BAR_EVERY_S:
            self._drawn_at = now
            self._status_line.draw(self._line(now))

    def _line(self, now: float) -> str:
        begun = self._targets.values()
        records, rows = sum(one.records for one in begun), sum(one.rows for one in begun)
        seconds = now - self._began
        if self._expected:
            sent = f"{records:,} of {self._expected:,} records"
            return f"{_left(records, self._expected, seconds)}: {self._names()}{sent}"
        # One whose round has ended had no more jobs, be it as it broke off.
        expected = sum(one.rows if one.has_ended else max(one.expected, one.rows) for one in begun)
        if waiting := max(self._expected_targets - len(begun), 0):
            expected += waiting * expected // max(len(begun), 1)
        read = f"{rows:,} of {expected:,} jobs read, {records:,} records"
        return f"{_left(rows, expected, seconds)}: {self._names()}{read}"

    def _names(self) -> str:
        at_work = [name for name, one in self._targets.items() if not one.has_ended]
        shown = at_work[:_NAMES]
        more = f" and {len(at_work) - _NAMES} more" if len(at_work) > _NAMES else ""
        names = f"{', '.join(shown)}{more}: " if shown else ""
        if self._expected_targets < 2:
            return names
        done = sum(one.has_ended for one in self._targets.values())
        return f"{done} of {self._expected_targets} targets done; {names}"


class CountingReport:
    """Reports how far a long count has come: in one line on a terminal, and nowhere else."""

    def __init__(
        self, stream: TextIO, *, monotonic: Callable[[], float], quiet: bool, what: str = ""
    ) -> None:
        self._monotonic = monotonic
        self._status_line = _StatusLine(stream, shown=not quiet)
        self._start(what)

    def _start(self, what: str, total: Callable[[], int] | None = None) -> None:
        self._what = what
        self._began = self._monotonic()
        self._next = self._began + _BAR_AFTER_S
        self._count = self._expected = 0
        self._total = total

    def expect(self, count: int) -> None:
        """So many are to come: then it can show what is left."""
        self._expected = count

    def begins(self, what: str, total: Callable[[], int]) -> None:
        """Another count begins; `total` is asked once, when it takes long enough to be shown."""
        self._status_line.close()
        self._start(what, total)

    def seen(self, more: int) -> None:
        now = self._monotonic()
        if not self._count:
            self._began = now  # what was waited for before is no part of the rate
        self._count += more
        if not self._status_line.shown or now < self._next:
            return
        self._next = now + _BAR_EVERY_S
        if self._total is not None:
            self._expected, self._total = self._total(), None
        self._status_line.draw(self._line(now))

    def _line(self, now: float) -> str:
        if not self._expected:
            return f"{self._count:,} {self._what}"
        done = min(self._count, self._expected)
        left = _left(done, self._expected, now - self._began)
        return f"{left}: {done:,} of {self._expected:,} {self._what}"

    def close(self) -> None:
        """Leave the terminal as it was found."""
        self._status_line.close()


def _left(done: int, expected: int, seconds: float) -> str:
    """Return the share that is done, and how long the rest takes at the same rate."""
    percent = min(100 * done // max(expected, 1), 100)
    if not done:
        return f"{percent} %"
    left_s = max(expected - done, 0) * seconds / done
    minutes = left_s / 60
    text = f"{left_s:,.0f} s" if left_s < _MINUTES_FROM_S else f"{minutes:,.0f} min"
    return f"{percent} %, about {text if minutes < _HOURS_FROM else f'{minutes / 60:,.1f} h'} left"


def rounds(*, quiet: bool) -> AbstractContextManager[ProgressReport]:
    """Show how far rounds are while they run."""
    return closing(ProgressReport(sys.stderr, monotonic=time.monotonic, quiet=quiet))


def loading(*, quiet: bool) -> AbstractContextManager[CountingReport]:
    """Show how far sources are loaded."""
    return closing(CountingReport(sys.stderr, monotonic=time.monotonic, quiet=quiet))


def counting(what: str, *, quiet: bool) -> AbstractContextManager[CountingReport]:
    """Show how many have been counted."""
    return closing(CountingReport(sys.stderr, monotonic=time.monotonic, quiet=quiet, what=what))


def stages(*, quiet: bool) -> AbstractContextManager[_StatusLine]:
    """Show what is being examined."""
    return closing(_StatusLine(sys.stderr, shown=not quiet))
