"""When to try again: exponential back-off with full jitter, the server's own wish, and an end to all patience.

Pure arithmetic; chance and time come in as arguments, and waiting is somebody else's.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

FIRST_S: Final = 2.0
LONGEST_S: Final = 60.0
# A balancer that asks for an hour gets the next round instead.
LONGEST_ASKED_S: Final = 300.0
# The form of today and the two obsolete ones. Not `email.utils`, which takes long to load for answers that are few.
_HTTP_DATES: Final = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")


class RetrySchedule(NamedTuple):
    """How often and how long: `attempts` in all for one message, `budget_s` for everything that goes wrong in one run."""

    attempts: int = 5
    budget_s: float = 600.0

    def wait_s(
        self, *, attempts_made: int, spent_s: float, chance: float, asked_s: float | None = None
    ) -> float | None:
        """Seconds to wait before the next attempt, or None when there shall be none.

        `spent_s` is what this run has lost already, `chance` is in [0, 1), `asked_s` is what Retry-After said.
        """
        if attempts_made >= self.attempts:
            return None
        ceiling = min(LONGEST_S, FIRST_S * 2.0 ** min(attempts_made - 1, 16))
        # Full jitter: hundreds of CEs lost the same service in the same second and must not come back in one.
        wait = max(chance * ceiling, min(asked_s or 0.0, LONGEST_ASKED_S))
        return wait if spent_s + wait <= self.budget_s else None


def asked_wait_s(retry_after: str, now: datetime) -> float | None:
    """What a Retry-After header asks for in seconds, never negative; None when it is absent or says nothing sensible.

    Spec: RFC 9110 section 10.2.3, seconds or an HTTP date.
    """
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    for form in _HTTP_DATES:
        with suppress(ValueError):
            return max(0.0, (datetime.strptime(text, form).replace(tzinfo=UTC) - now).total_seconds())
    return None
