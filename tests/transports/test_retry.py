"""Back-off: its bounds, the server's wish, the budget."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.transports.http.exchange import RetrySchedule, asked_wait_s

NOW = datetime(2026, 3, 5, 12, 0, 0, tzinfo=UTC)
SCHEDULE = RetrySchedule(attempts=9, budget_s=10_000)


def ceilings(schedule: RetrySchedule) -> list[float | None]:
    return [
        schedule.wait_s(attempts_made=made, spent_s=0, chance=1.0, asked_s=None)
        for made in range(1, schedule.attempts + 1)
    ]


def test_waits_double_from_two_seconds_to_a_minute() -> None:
    assert ceilings(SCHEDULE) == [2, 4, 8, 16, 32, 60, 60, 60, None]


def test_five_attempts_have_four_waits_between_them() -> None:
    assert ceilings(RetrySchedule()) == [2, 4, 8, 16, None]


def test_no_number_of_attempts_is_too_large() -> None:
    assert RetrySchedule(attempts=10**6, budget_s=1e9).wait_s(attempts_made=10**5, spent_s=0, chance=1.0) == 60


@given(st.integers(1, 8), st.floats(0, 1, exclude_max=True))
def test_jitter_is_full(made: int, chance: float) -> None:
    ceiling = SCHEDULE.wait_s(attempts_made=made, spent_s=0, chance=1.0)
    wait = SCHEDULE.wait_s(attempts_made=made, spent_s=0, chance=chance)
    assert ceiling is not None
    assert wait == pytest.approx(chance * ceiling)


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, 1.0), (0.0, 1.0), (0.5, 1.0), (7.0, 7.0), (299.0, 299.0), (3600.0, 300.0)]
)
def test_the_servers_wish_counts_up_to_five_minutes(asked: float | None, expected: float) -> None:
    assert SCHEDULE.wait_s(attempts_made=1, spent_s=0, chance=0.5, asked_s=asked) == expected


def test_the_budget_ends_patience() -> None:
    schedule = RetrySchedule(attempts=5, budget_s=100)
    assert schedule.wait_s(attempts_made=1, spent_s=98, chance=1.0) == 2
    assert schedule.wait_s(attempts_made=1, spent_s=99, chance=1.0) is None
    assert schedule.wait_s(attempts_made=1, spent_s=0, chance=0.0, asked_s=101) is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Thu, 05 Mar 2026 12:01:30 GMT", 90.0),
        ("Thursday, 05-Mar-26 12:01:30 GMT", 90.0),
        ("Thu Mar  5 12:01:30 2026", 90.0),
        ("Thu, 05 Mar 2026 11:00:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("Thu, 99 Mar 2026 12:00:00 GMT", None),
        ("9" * 5000, 999_999_999.0),
    ],
)
def test_retry_after(header: str, expected: float | None) -> None:
    assert asked_wait_s(header, NOW) == expected


@given(st.integers(0, 10**6))
def test_retry_after_dates_round_trip(seconds: int) -> None:
    assert asked_wait_s(format_datetime(NOW + timedelta(seconds=seconds), usegmt=True), NOW) == seconds


@given(st.text(max_size=60))
def test_no_header_breaks_it(text: str) -> None:
    wait = asked_wait_s(text, NOW)
    assert wait is None or wait >= 0
