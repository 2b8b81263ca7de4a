"""The CE's local time, as A-REX writes it into JobEvents: text without a zone, ambiguous in the autumn hour."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from publisher.errors import ConfigError
from publisher.model.job import Epoch

_HOUR: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}")
_WITHIN: Final = {f":{n // 60:02}:{n % 60:02}": n for n in range(3600)}
_REMEMBERED: Final = 100_000  # hours: eleven years
_HOST_ZONE: Final = Path("/etc/localtime")
_ZONE_FILES: Final = Path("/usr/share/zoneinfo")


class LocalTime:
    """Reads `YYYY-MM-DD HH:MM:SS` of one zone."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        # Start of an hour with one offset throughout; None for hours in which clocks change, and for unreadable text.
        self._hours: dict[str, int | None] = {}

    def epoch(self, text: str, *, ended_at: int, wall_s: int) -> Epoch | None:
        """The moment; of two in the autumn hour, the one whose distance to the end is nearest to the wall time.

        None for text that is no such time, and for a time that the clocks jumped over.
        """
        hour, within = text[:13], _WITHIN.get(text[13:])
        if within is None:
            return None
        if hour not in self._hours:
            if len(self._hours) >= _REMEMBERED:
                self._hours.clear()
            self._hours[hour] = self._plain_hour(hour)
        start = self._hours[hour]
        if start is not None:
            return Epoch(start + within)
        moments = self._moments(hour, within)
        return Epoch(min(moments, key=lambda moment: abs(ended_at - moment - wall_s))) if moments else None

    def moments(self, text: str) -> tuple[Epoch, ...]:
        """Every moment that it may be: one, two in the autumn hour, none where it is no such time."""
        within = _WITHIN.get(text[13:])
        return () if within is None else tuple(Epoch(moment) for moment in self._moments(text[:13], within))

    def _plain_hour(self, hour: str) -> int | None:
        first, last = self._moments(hour, 0), self._moments(hour, 3599)
        if len(first) == len(last) == 1 and last[0] - first[0] == 3599:
            return first[0]
        return None

    def _moments(self, hour: str, within: int) -> list[int]:
        """Every moment at which the clocks of the zone show this time: none, one or two."""
        if not _HOUR.fullmatch(hour):
            return []
        try:
            # A wall clock has no zone yet; giving it one, by both folds, is what this does.
            wall = datetime.fromisoformat(f"{hour}:00:00+00:00") + timedelta(seconds=within)
            moments = {int(wall.replace(tzinfo=self._zone, fold=fold).timestamp()) for fold in (0, 1)}
            return sorted(moment for moment in moments if self._shows(moment, wall))
        except (ValueError, OverflowError):
            return []

    def _shows(self, moment: int, wall: datetime) -> bool:
        return datetime.fromtimestamp(moment, self._zone).replace(tzinfo=UTC) == wall


def local_zone(name: str, environment: Mapping[str, str]) -> tzinfo:
    """The zone of that IANA name; of the host when it is empty: environment TZ, else /etc/localtime, else UTC.

    Raises: ConfigError when there is no such zone.
    """
    if name:
        return _named(name, "source.time_zone")
    told = environment.get("TZ")
    if told is not None:
        told = told.removeprefix(":")
        path = _ZONE_FILES / told if told else None
        if path is None:
            return UTC
        return _from_file(path) if told.startswith("/") else _named(told, "the environment's TZ")
    return _from_file(_HOST_ZONE) if _HOST_ZONE.exists() else UTC


def zone_of_host(environment: Mapping[str, str]) -> str:
    """Which zone is taken where none is configured, for people."""
    told = environment.get("TZ")
    if told is not None:
        return f"the environment's TZ, {told or 'UTC'}"
    if not _HOST_ZONE.exists():
        return f"UTC, because there is no {_HOST_ZONE}"
    target = str(_HOST_ZONE.resolve())
    return f"{_HOST_ZONE}, {target.rpartition('/zoneinfo/')[2]}" if "/zoneinfo/" in target else str(_HOST_ZONE)


def check_zone(name: str) -> str | None:
    """What is wrong with the name of a zone; '' is the host's."""
    try:
        if name:
            _named(name, "")
    except ConfigError:
        near = get_close_matches(name, available_timezones(), n=1)
        meant = (
            f"did you mean {near[0]!r}?"
            if near
            else "write one such as Europe/Oslo (and install tzdata if it is missing)"
        )
        return f"{name!r} is no time zone; {meant}"
    return None


def _named(name: str, origin: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(
            f"{origin}: no time zone {name!r}; give the CE's as source.time_zone, such as Europe/Oslo"
            " (and install tzdata if that is missing)"
        ) from error


def _from_file(path: Path) -> tzinfo:
    try:
        with path.open("rb") as file:
            return ZoneInfo.from_file(file)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: not a time zone file: {error}; give the CE's zone as source.time_zone") from error
