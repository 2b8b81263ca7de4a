"""What the key columns of APEL's tables make of texts and end times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from publisher.errors import Unfit
from publisher.model.quality import FORBIDDEN_IN_TEXT, NOT_GIVEN
from publisher.model.text import ascii_text, receiver_key

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S: Final = 86_400
_HOST_CHARACTERS: Final = 255


@lru_cache(maxsize=65_536)
def said(text: str) -> str:
    """A text as it is sent, in ASCII; '' where the server would take it for not given (apel facts, section 3)."""
    text = ascii_text(text)
    return "" if text.lower() in NOT_GIVEN else text


@lru_cache(maxsize=65_536)
def column(text: str) -> str:
    """A text as the server's key columns compare it."""
    return receiver_key(said(text))


@lru_cache(maxsize=4096)
def sync_host(text: str) -> str:
    """The submit host under which jobs are counted: one spelling for all that the server takes for one.

    '' where no message may hold it: counts are compared by site and month, and one without a host is as good there (apel
    facts, section 8).
    """
    host = column(text)
    return "" if len(host) > _HOST_CHARACTERS or FORBIDDEN_IN_TEXT.search(host) else host


def month_number(ended_at: int) -> int:
    """Months since the year 0 of an end time, in UTC. Raises: Unfit for one outside the calendar."""
    return _month_of_day(ended_at // _DAY_S)


def month_number_of(year: int, month: int) -> int:
    """The `month_number` of a year and a month from 1."""
    return year * 12 + month - 1


def year_and_month(number: int) -> tuple[int, int]:
    """The year, and the month from 1, of a `month_number`."""
    return number // 12, number % 12 + 1


@lru_cache(maxsize=4096)
def _month_of_day(day: int) -> int:
    try:
        date = _EPOCH + timedelta(days=day)
    except OverflowError as error:
        raise Unfit("end-out-of-range", f"day {day} since 1970 is in no calendar month") from error
    return date.year * 12 + date.month - 1
