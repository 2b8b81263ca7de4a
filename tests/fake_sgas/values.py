"""Texts to values, with the leniency and the crashes of SGAS, as measured.

An element without text crashes the parser; one with a text that means nothing becomes NULL.
"""

import re
from datetime import UTC, datetime, timedelta

from tests.fake_sgas.failures import Crash, Generation, Refusal

_TIME = re.compile(
    r"(?P<year>\d{4})(?:-?W(?P<week>\d\d)-?(?P<day_of_week>\d)|-?(?P<month>\d\d)-?(?P<day>\d\d))"
    r"T(?P<hour>\d\d):?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,]\d+)?)?"
    r"(?P<zone>[Zz]|(?P<sign>[+-])(?P<zone_hour>\d\d)(?::?(?P<zone_minute>\d\d))?)?"
)
_DURATION = re.compile(
    r"(?P<minus>-)?P(?:(?P<years>\d+)Y)?(?:(?P<months>\d+)M)?(?:(?P<weeks>\d+(?:\.\d+)?)W)?(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_UNIT_S = {"weeks": 604800, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_BYTE_UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB", "EB"))}
_BIT_UNITS = {unit: 1024**power for power, unit in enumerate(("b", "Kb", "Mb", "Gb", "Tb", "Pb", "Eb"))}
_METRICS = ("total", "average", "min", "max")
_MEMORY_TYPES = ("shared", "physical", "dedicated")


def present(text: str | None) -> str:
    """Raises: Crash for an element without text."""
    if text is None:
        raise Crash("TypeError", "expected string or bytes-like object, got 'NoneType'")
    return text


def integer(text: str | None) -> int | None:
    """Blanks around it and digits of any script are fine, decimals are NULL."""
    try:
        return int(present(text))
    except ValueError:
        return None


def strict_integer(text: str | None) -> int:
    """Raises: Crash also for what is not a number."""
    try:
        return int(present(text))
    except ValueError as error:
        raise Crash("ValueError", str(error)) from error


def truncated(text: str | None) -> int:
    """A decimal cut to an integer. Raises: Crash for anything else, NaN included."""
    try:
        return int(float(present(text)))
    except (ValueError, OverflowError) as error:
        raise Crash(type(error).__name__, str(error)) from error


def boolean(text: str | None) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get(present(text).lower())


def seconds(text: str | None) -> int | None:
    """An ISO 8601 duration; years and months are NULL, sub-seconds cut."""
    match = _DURATION.fullmatch(present(text))
    if match is None or match["years"] or match["months"]:
        return None
    total = sum(float(match[unit] or 0) * factor for unit, factor in _UNIT_S.items())
    return -int(total) if match["minus"] else int(total)


def moment(text: str | None) -> datetime | None:
    """An ISO 8601 time with a `T`; without a zone it is UTC."""
    match = _TIME.fullmatch(present(text))
    if match is None:
        return None
    try:
        if match["week"]:
            day = datetime.fromisocalendar(int(match["year"]), int(match["week"]), int(match["day_of_week"]))
        else:
            day = datetime(int(match["year"]), int(match["month"]), int(match["day"]), tzinfo=UTC)
        clock = day.replace(
            hour=int(match["hour"]), minute=int(match["minute"]), second=int(match["second"] or 0), tzinfo=UTC
        )
    except ValueError:
        return None
    try:
        return clock - _offset(match)
    except OverflowError as error:
        raise Crash("OverflowError", str(error)) from error


def _offset(match: re.Match[str]) -> timedelta:
    if match["sign"] is None:
        return timedelta()
    # Without a colon the minutes are lost (measured: -0530 is taken as -05:00).
    minutes = int(match["zone_minute"] or 0) if ":" in match["zone"] else 0
    offset = timedelta(hours=int(match["zone_hour"]), minutes=minutes)
    return -offset if match["sign"] == "-" else offset


def memory(
    text: str | None, unit: str | None, metric: str | None, kind: str | None, generation: Generation
) -> tuple[int, str, str | None]:
    """Bytes, metric and type. An unknown unit is bytes; bit units fail on H. Raises: Refusal."""
    try:
        number = int(text or "")
    except ValueError as error:
        raise Refusal("unsupported operand type(s) for *: 'NoneType' and 'int'") from error
    if (metric or "total") not in _METRICS:
        raise Refusal("can't adapt type 'SgasMemory'")
    if unit in _BIT_UNITS:
        if generation == "H":
            raise Refusal("can't adapt type 'SgasMemory'")
        number = number * _BIT_UNITS[unit] // 8
    else:
        number *= _BYTE_UNITS.get(unit or "B", 1)
    return number, metric or "total", kind if kind in _MEMORY_TYPES else None
