"""Attributes of a job's ad as texts and numbers that a job may have; None is unknown."""

from __future__ import annotations

from typing import Final

from publisher.sources.files.log_files import clean
from publisher.sources.htcondor.classads import Ad, Value, read_value

MOST_COUNT: Final = 2**31 - 1
_MOST_NUMBER: Final = 2**53
NO_NUMBERS: Final = (str, bool)


def value_of(ad: Ad, name: str) -> Value:
    return read_value(ad.get(name.lower(), ""))


def text_of(ad: Ad, name: str) -> str:
    """'' for what is no text."""
    value = value_of(ad, name)
    return clean(value).strip() if isinstance(value, str) else ""


def number_of(ad: Ad, name: str) -> float | None:
    """Return a number that is not negative."""
    value = value_of(ad, name)
    if isinstance(value, NO_NUMBERS) or value is None or not 0 <= value <= _MOST_NUMBER:
        return None
    return value


def whole_of(ad: Ad, name: str) -> int | None:
    number = number_of(ad, name)
    return None if number is None else int(number)


def count_of(ad: Ad, name: str) -> int | None:
    """Return a whole number of things, of which a job has less than 2**31."""
    number = whole_of(ad, name)
    return number if number is not None and number <= MOST_COUNT else None
