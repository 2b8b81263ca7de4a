"""Values in columns of sacct: times and lengths of time, sizes, counts, exit codes."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from publisher.sources.files.log_files import clean
from publisher.sources.slurm.header import BadRow, NotSacct

_NO_TIME: Final = frozenset({"", "Unknown", "None"})
_DURATION: Final = re.compile(
    r"(?:(?:(?P<days>[0-9]{1,6})-)?(?P<hours>[0-9]{1,6}):)?"
    r"(?P<minutes>[0-9]{1,2}):(?P<seconds>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{1,6}))?",
    re.ASCII,
)
NO_SIZE: Final = frozenset({"", "0"})
_SIZE: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,6}))?([KMGTPE]?)", re.ASCII)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
_IN_KIB: Final = {"K": 1, "M": 2**10, "G": 2**20}
_MOST_KIB: Final = 2**53
_MOST_COUNT: Final = 2**31 - 1
MOST_S: Final = 2**53
_MOST_JOULES: Final = 2**53
_REMEMBERED: Final = 1_000  # texts of columns that have few
_DIGITS: Final = {f"{number:0{width}}": number for width in (2, 3) for number in range(10**width)}
_SIXTIES: Final = {
    f"{first:02}:{second:02}": first * 60 + second for first in range(60) for second in range(60)
}


class MomentReader(Protocol):
    def __call__(self, text: str, fold: int = 0) -> int | None:
        """`fold` 1: in the hour that comes twice, the second time. Raises: BadRow, NotSacct."""


def moment_reader(zone: ZoneInfo | None) -> MomentReader:
    """Return a reader of times as sacct writes them; `zone` None: it wrote epoch seconds."""

    def read(text: str, fold: int = 0) -> int | None:
        if text.isdigit() and len(text) <= 12 and text.isascii():
            return int(text) or None
        if text in _NO_TIME:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise BadRow(f"{clean(text[:64])!r} is not a time") from None
        if moment.tzinfo is None:
            if zone is None:
                raise NotSacct(
                    "has times without a time zone; run sacct with SLURM_TIME_FORMAT=%s in its "
                    "environment, or give the zone in which it ran as time_zone"
                )
            moment = moment.replace(tzinfo=zone, fold=fold)
        return int(moment.timestamp()) or None

    return read


def milliseconds(text: str) -> int | None:
    """A duration: 00:01.250, 01:00:00, 1-03:46:40. None for one that is not there or not known."""
    # Hot path: nearly all are of these two forms; a regular expression takes four times as long.
    whole, end = _SIXTIES.get(text[:5]), _DIGITS.get(text[6:])
    if whole is not None and end is not None:
        if len(text) == 9 and text[5] == ".":
            return whole * 1000 + end
        if len(text) == 8 and text[5] == ":":
            return (whole * 60 + end) * 1000
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, whole_seconds, fraction = found.groups("0")
    whole_s = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(whole_seconds)
    return whole_s * 1000 + int(f"{fraction:0<3}"[:3])


@lru_cache(_REMEMBERED)
def seconds(text: str) -> int:
    return (milliseconds(text) or 0) // 1000


def count_of(text: str, most: int = _MOST_COUNT) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    count = int(text)
    return count if count <= most else None


def joules(text: str) -> int:
    """0 is unknown; -1 is more than anything takes, as broken meters tell, such as 2^64 - 2."""
    if text in NO_SIZE or not (text.isascii() and text.isdigit()):
        return 0
    return int(text) if len(text) < 17 and int(text) <= _MOST_JOULES else -1


@lru_cache(_REMEMBERED)
def known_count(text: str) -> int:
    return count_of(text) or 0


def kib(text: str) -> int:
    """A size: 8420K, 12M, or bytes as --noconvert has them; 0 is unknown."""
    number, factor = text[:-1], _IN_KIB.get(text[-1:])
    if factor is not None and number.isdecimal() and len(number) < 10:  # hot path
        return int(number) * factor
    if text in NO_SIZE:
        return 0
    found = _SIZE.fullmatch(text)
    if found is None:
        return 0
    whole, fraction, unit = found.groups()
    size = int(whole) * _UNITS[unit]
    if fraction:
        size += int(int(fraction) * _UNITS[unit] / 10 ** len(fraction))
    # A greater one is no memory, and 64 bits of the database do not hold it.
    return size // 1024 if size // 1024 <= _MOST_KIB else 0


@lru_cache(_REMEMBERED)
def exit_code_of(text: str) -> int | None:
    """`CODE:SIGNAL`; of a job that a signal ended 128 and the signal, as a shell has it."""
    code, _, signal = text.partition(":")
    number, by = count_of(code), count_of(signal)
    if number is None:
        return None
    return number or (128 + by if by else 0)
