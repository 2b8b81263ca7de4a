"""Values of a report as people read them."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from publisher.model.time import Window
from publisher.reporting.usage import DAY_S

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SIGNALS: Final = frozenset(int(one) for one in signal.Signals)
_LIMITS: Final = (signal.SIGKILL, signal.SIGTERM)
_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")


def day_text(day: int) -> str:
    """`2026-03-05` of a number of days since 1970."""
    try:
        return f"{_EPOCH + timedelta(days=day):%Y-%m-%d}"
    except OverflowError:
        return f"day {day}"


def window_text(window: Window) -> str:
    """The first and the last, where it has whole days."""
    start, end = window.start or 0, window.end or 0
    if start % DAY_S or end % DAY_S:
        return str(window)
    return f"{day_text(start // DAY_S)} to {day_text(end // DAY_S - 1)}"


def size_text(count: float) -> str:
    """`1.2 MB`, by thousands."""
    at = 0
    while count >= 1000 and at < len(_UNITS) - 1:
        count, at = count / 1000, at + 1
    return f"{count:,.0f} {_UNITS[at]}" if at == 0 else f"{count:,.1f} {_UNITS[at]}"


def minutes_text(minutes: int | None) -> str:
    """`3 h 05 min`, rounded down to the minute."""
    if minutes is None:
        return "unknown"
    if minutes < 1:
        return "under 1 min"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // 1440} days {minutes % 1440 // 60} h"


def hours_text(seconds: float) -> str:
    return number_text(seconds / 3600)


def days_text(seconds: float) -> str:
    return number_text(seconds / 86_400)


def thousands_text(count: Decimal) -> str:
    """`1.2` kWh of 1,234 Wh."""
    return number_text(float(count) / 1000)


def number_text(number: float) -> str:
    """`1,234`, `12.3`, `0`: the one form of amounts, on the page, beside axes and on terminals."""
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 0.1 else "< 0.1"


def share_text(share: float) -> str:
    return f"{share * 100:.1f} %"


def change_text(change: float) -> str:
    """`+12.3 %`, and `0.0 %` without a sign."""
    text = f"{change * 100:+,.1f} %"
    return text if text.strip("+-") != "0.0 %" else "0.0 %"


def exit_text(code: int | None) -> str:
    """What an exit code means, in words."""
    match code:
        case None:
            return "not known"
        case 0:
            return "the program itself did not fail"
        case 126:
            return "the program cannot be executed"
        case 127:
            return "command not found"
        case _ if (number := _signal(code)) is not None:
            hint = ", often a limit of memory or time" if number in _LIMITS else ""
            return f"ended by {signal.Signals(number).name}{hint}"
    return "the program's own"


def _signal(code: int) -> int | None:
    """Return the signal that an exit code stands for: 128 more in shells, 256 more in PBS."""
    return next((code - more for more in (128, 256) if code - more in _SIGNALS), None)


def exit_advice(code: int | None) -> str:
    """Return what a person can do about jobs that failed with an exit code."""
    match code:
        case None:
            return "Look some of the jobs up in the log of the batch system."
        case 0:
            return "Look in the CE's log: staging or submission failed, not the program."
        case 126:
            return "Check permissions and mounts on the nodes."
        case 127:
            return "Check which software and mounts are missing on the nodes."
        case _ if (number := _signal(code)) is None:
            return "Ask the VO what the code means; name some of the jobs."
        case _ if number in _LIMITS:
            return (
                "Compare the queue's limits with what the jobs used; look for nodes that went down."
            )
    return "The program crashed: in one VO, inform the VO; in several, check the nodes."


def quoted(text: str) -> str:
    if any(letter in text for letter in ',";\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text
