"""Values as A-REX stores them: numbers of 32 bits, text that may be no text, lists in one string.

Events are in the CE's local time: text without a zone, ambiguous in the autumn hour.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from publisher.model.errors import ConfigError, Unfit
from publisher.model.job import Epoch, Position, Transfer
from publisher.model.text import arex_unescape

_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_KINDS: Final = {10: "download", 11: "cached", 20: "upload"}
_INT32: Final = 2**31
_INT63: Final = 2**63


def whole(value: object) -> int | None:
    """A stored number; None for NULL and for what is not a whole number of 64 bits."""
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _INT63:
        return int(value)
    if isinstance(value, str) and _WHOLE.fullmatch(value) and -_INT63 <= int(value) < _INT63:
        return int(value)
    return None


def mandatory(column: str, value: object) -> int:
    """Raises: Unfit with rule `not-a-number` when there is none."""
    number = whole(value)
    if number is None:
        stored = "NULL" if value is None else repr(value)
        raise Unfit("not-a-number", f"{column} is {stored}, not a whole number")
    return number


def positive(value: object) -> int | None:
    """A number of nodes or cores; None when it is not positive, as A-REX writes unknown."""
    if value is None:
        return None
    if isinstance(value, int) and value > 0:  # nearly always; the others cost a call more
        return value
    number = whole(value)
    return number if number is not None and number > 0 else None


def counted(value: object) -> int | None:
    """Return a number that may be 0; None where it is not known, or negative."""
    number = whole(value)
    return number if number is not None and number >= 0 else None


def unsigned(value: object) -> int | None:
    """A size: negative ones went through a signed 32-bit integer. 0 stays 0."""
    if value is None or (isinstance(value, int) and value >= 0):
        return value
    number = whole(value)
    if number is None or number >= 0:
        return number
    return number + 2**32 if number >= -_INT32 else None


def duration(value: object) -> int | None:
    number = whole(value)
    return None if number is None or number < 0 else number


def exit_code(value: object) -> int | None:
    """A signed 32-bit exit code; 4294967295 is -1."""
    if value is None or (isinstance(value, int) and -_INT32 <= value < _INT32):
        return value
    number = whole(value)
    return None if number is None else (number + _INT32) % 2**32 - _INT32


def text_of(value: object) -> str:
    """Stored text; '' for NULL. Bytes that are no UTF-8 stay as surrogate escapes."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)


def stored_text(text: str) -> bytes:
    """A text as it is stored: bytes that were not UTF-8 are kept."""
    return text.encode("utf-8", "surrogateescape")


def unescaped(value: object) -> str:
    """Stored text as it was before A-REX escaped it."""
    text = value if isinstance(value, str) else text_of(value)
    return arex_unescape(text) if "%" in text else text


def tolerant_text(stored: bytes) -> str:
    """Text factory for pages on which some text is not UTF-8."""
    return stored.decode("utf-8", "surrogateescape")


def is_undecodable(text: str) -> bool:
    return not text.isascii() and _SURROGATE.search(text) is not None


def anchor_text(stored: object) -> str:
    """A JobID as a cursor carries it: storable everywhere, even when it is not UTF-8."""
    return text_of(stored).encode("utf-8", "backslashreplace").decode("utf-8")


def position_at(record_id: int, job_id: object) -> Position:
    """Return the position of a row: its RecordID and JobID."""
    return Position(json.dumps([record_id, anchor_text(job_id)]))


def row_of(position: Position) -> int:
    """Return the RecordID of a position."""
    return int(json.loads(position)[0])


@lru_cache(maxsize=4096)
def hosts_of(nodes: str) -> tuple[str, ...]:
    """Node names joined with colons; one IPv6 address stays whole."""
    if nodes.count(":") > 1:
        with suppress(AddressValueError):
            IPv6Address(nodes.strip("[]"))
            return (nodes,)
    return tuple(dict.fromkeys(name for name in nodes.split(":") if name))


def transfer(url: str, stored: Sequence[object]) -> Transfer | None:
    """Of a row of DataTransfers after its URL: size, start, end, type.

    None for a type that no format has a word for.
    """
    size, started, ended, kind = stored
    word, size_bytes = _KINDS.get(whole(kind) or 0), unsigned(size)
    if word is None:
        return None
    return Transfer(word, url, size_bytes, moment(started), moment(ended))


def moment(value: object) -> Epoch | None:
    """A time in epoch seconds; None for 0, which is how A-REX writes unknown."""
    number = positive(value)
    return None if number is None else Epoch(number)


# Python 3.14 reads 24 as the next day.
_HOUR: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} (?:[01][0-9]|2[0-3])")
_WITHIN: Final = {f":{n // 60:02}:{n % 60:02}": n for n in range(3600)}
_REMEMBERED: Final = 2_000  # hours, of 170 bytes: three months, as jobs come in their order
_HOST_ZONE: Final = Path("/etc/localtime")


class LocalTime:
    """Reads `YYYY-MM-DD HH:MM:SS` of one zone."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        # Start of an hour with one offset throughout, for all hours of a day at once where the day
        # has one; None for hours in which clocks change, and for unreadable text.
        self._hours: dict[str, int | None] = {}

    def epoch(self, text: str, *, ended_at: int, wall_s: int) -> Epoch | None:
        """The moment; of two in the autumn hour, the one that fits end and wall time better.

        None for text that is no such time, and for a time that the clocks jumped over.
        """
        hour, within = text[:13], _WITHIN.get(text[13:])
        if within is None:
            return None
        try:
            start = self._hours[hour]
        except KeyError:
            if len(self._hours) >= _REMEMBERED:
                self._hours.clear()
            day = self._plain_span(f"{hour[:10]} 00", 86_400)
            if day is None:
                start = self._hours[hour] = self._plain_span(hour, 3_600)
            else:
                self._hours.update({f"{hour[:10]} {n:02}": day + n * 3_600 for n in range(24)})
                start = self._hours.setdefault(hour, None)
        if start is not None:
            return Epoch(start + within)
        moments = self._moments(hour, within)
        if not moments:
            return None
        return Epoch(min(moments, key=lambda moment: abs(ended_at - moment - wall_s)))

    def moments(self, text: str) -> tuple[Epoch, ...]:
        """Every moment that it may be: one, two in the autumn hour, none for no such time."""
        within = _WITHIN.get(text[13:])
        found = [] if within is None else self._moments(text[:13], within)
        return tuple(map(Epoch, found))

    def _plain_span(self, hour: str, length_s: int) -> int | None:
        """When the span that begins with this hour began; None where clocks change in it."""
        first, last = self._moments(hour, 0), self._moments(hour, length_s - 1)
        if len(first) == len(last) == 1 and last[0] - first[0] == length_s - 1:
            return first[0]
        return None

    def _moments(self, hour: str, within: int) -> list[int]:
        """Every moment at which the clocks of the zone show this time: none, one or two."""
        if not _HOUR.fullmatch(hour):
            return []
        try:
            # A wall clock has no zone yet; giving it one, by both folds, is what this does.
            wall = datetime.fromisoformat(f"{hour}:00:00+00:00") + timedelta(seconds=within)
            folds = [wall.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1)]
            moments = {int(moment.timestamp()) for moment in folds}
            return sorted(moment for moment in moments if self._shows(moment, wall))
        except (ValueError, OverflowError):
            return []

    def _shows(self, moment: int, wall: datetime) -> bool:
        return datetime.fromtimestamp(moment, self._zone).replace(tzinfo=UTC) == wall


@lru_cache(maxsize=8)
def clock_of(zone: tzinfo) -> LocalTime:
    """One clock per zone and process, so that rounds share the hours that were worked out."""
    return LocalTime(zone)


def local_zone(name: str, environment: Mapping[str, str]) -> tzinfo:
    """The zone of that IANA name; '': the host's, by environment TZ, else /etc/localtime, else UTC.

    Raises: ConfigError when there is no such zone.
    """
    if name:
        return _named(name, "source.time_zone")
    zone_name = environment.get("TZ")
    if zone_name is None:
        return _from_file(_HOST_ZONE) if _HOST_ZONE.exists() else UTC
    zone_name = zone_name.removeprefix(":")
    if not zone_name:
        return UTC
    if zone_name.startswith("/"):
        return _from_file(Path(zone_name))
    return _named(zone_name, "the environment's TZ")


def zone_of_host(environment: Mapping[str, str]) -> str:
    """Which zone is taken where none is configured, for people."""
    zone_name = environment.get("TZ")
    if zone_name is not None:
        return f"the environment's TZ, {zone_name or 'UTC'}"
    if not _HOST_ZONE.exists():
        return f"UTC, because there is no {_HOST_ZONE}"
    _, below, name = str(_HOST_ZONE.resolve()).rpartition("/zoneinfo/")
    return f"{_HOST_ZONE}, {name}" if below else str(_HOST_ZONE)


def check_zone(name: str) -> str | None:
    """What is wrong with the name of a zone; '' is the host's."""
    try:
        if name:
            _named(name, "")
    except ConfigError:
        meant = "write one such as Europe/Oslo (and install tzdata if it is missing)"
        if near := get_close_matches(name, available_timezones(), n=1):
            meant = f"did you mean {near[0]!r}?"
        return f"{name!r} is not a time zone; {meant}"
    return None


def _named(name: str, origin: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(
            f"{origin}: no time zone {name!r}; give the CE's as source.time_zone, "
            "such as Europe/Oslo (and install tzdata if that is missing)"
        ) from error


def _from_file(path: Path) -> tzinfo:
    try:
        with path.open("rb") as file:
            return ZoneInfo.from_file(file)
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"{path}: not a time zone file: {error}; give the CE's zone as source.time_zone"
        ) from error
