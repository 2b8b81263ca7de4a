"""Local time without a zone, to epoch seconds."""

import os
import shutil
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.model.errors import ConfigError
from publisher.sources.arex.values import LocalTime, local_zone

OSLO = LocalTime(ZoneInfo("Europe/Oslo"))


def epoch(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp())  # type: ignore[misc,arg-type]  # year to second


def test_summer_and_winter() -> None:
    assert OSLO.epoch("2026-07-01 12:00:05", ended_at=0, wall_s=0) == epoch(2026, 7, 1, 10, 0, 5)
    assert OSLO.epoch("2026-12-01 12:59:59", ended_at=0, wall_s=0) == epoch(2026, 12, 1, 11, 59, 59)


def test_the_ambiguous_hour_is_decided_by_the_wall_time() -> None:
    first, second = epoch(2026, 10, 25, 0, 30), epoch(2026, 10, 25, 1, 30)
    for started in (first, second):
        for wall_s in (0, 100, 5000):
            ended_at = started + wall_s + 300
            assert OSLO.epoch("2026-10-25 02:30:00", ended_at=ended_at, wall_s=wall_s) == started


@pytest.mark.slow
def test_thirty_years_take_no_more_memory_than_one() -> None:
    zone, days = (
        LocalTime(ZoneInfo("Europe/Oslo")),
        [datetime(1996, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(11_000)],
    )
    tracemalloc.start()
    try:
        for day in days:
            zone.epoch(f"{day:%Y-%m-%d} 12:00:00", ended_at=0, wall_s=0)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1_000_000


def test_a_time_that_the_clocks_jumped_over_is_unknown() -> None:
    assert OSLO.epoch("2026-03-29 02:30:00", ended_at=epoch(2026, 3, 29, 3), wall_s=100) is None
    assert OSLO.epoch("2026-03-29 03:00:00", ended_at=0, wall_s=0) == epoch(2026, 3, 29, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "1792000000",
        "2026-10-05T12:00:00",
        "2026-10-05 12:00:00Z",
        "2026-02-30 12:00:00",
        "2026-10-05 24:00:00",
        "2026-10-05 12:60:00",
        "2026-10-05 12:00:60",
        "0000-00-00 00:00:00",
        "2026-W01-1 10:00:00",
        "\uff12026-10-05 12:00:00",
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59\0",
    ],
)
def test_text_that_is_no_such_time_is_unknown(text: str) -> None:
    assert OSLO.epoch(text, ended_at=0, wall_s=0) is None


@given(
    zone=st.sampled_from(["Europe/Oslo", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns", "UTC"]),
    moment=st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)),  # noqa: DTZ001  # hypothesis wants naive bounds
    near_a_change=st.none()
    | st.sampled_from([(2026, 4, 4, 14), (2026, 10, 3, 15), (2026, 10, 25, 0), (2026, 3, 29, 0)]),
    wall_s=st.integers(0, 10**6),
)
def test_every_moment_comes_back(
    zone: str, moment: datetime, near_a_change: tuple[int, int, int, int] | None, wall_s: int
) -> None:
    instant = moment.replace(microsecond=0, tzinfo=UTC)
    if near_a_change is not None:
        within = timedelta(minutes=instant.minute, seconds=instant.second, hours=instant.hour % 3)
        instant = datetime(*near_a_change, tzinfo=UTC) + within
    started = int(instant.timestamp())
    written = instant.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")
    assert LocalTime(ZoneInfo(zone)).epoch(written, ended_at=started + wall_s, wall_s=wall_s) == started


def shown(zone_name: str, environment: dict[str, str]) -> str:
    return datetime(2026, 7, 1, 12, tzinfo=UTC).astimezone(local_zone(zone_name, environment)).strftime("%H:%M")


def test_the_zone_is_the_configured_one_then_the_hosts(tmp_path: Path) -> None:
    assert shown("Europe/Oslo", {"TZ": "Asia/Kathmandu"}) == "14:00"
    assert shown("", {"TZ": "Asia/Kathmandu"}) == "17:45"
    assert shown("", {"TZ": ":Asia/Kathmandu"}) == "17:45"
    assert shown("", {"TZ": ""}) == "12:00"
    try:
        os.environ["TZ"] = ""
        time.tzset()
        del os.environ["TZ"]
        time.tzset()
        assert shown("", {}) == datetime(2026, 7, 1, 12, tzinfo=UTC).astimezone().strftime("%H:%M")
    finally:
        time.tzset()
    zones = Path("/usr/share/zoneinfo/Asia/Kathmandu")
    if zones.exists():
        shutil.copy(zones, tmp_path / "zone")
        assert shown("", {"TZ": str(tmp_path / "zone")}) == "17:45"


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("Europe/Olso", {}),
        ("../../etc/passwd", {}),
        ("Europe", {}),
        ("", {"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"}),
        ("", {"TZ": "/etc/passwd"}),
        ("", {"TZ": "/no/such/file"}),
    ],
)
def test_a_zone_that_is_not_there_is_a_configuration_error(name: str, environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="time_zone"):
        local_zone(name, environment)
