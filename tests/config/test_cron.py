"""The key `cron`: what crontab(5) says, held against the slowest way to read it, minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.config.cron import Cron

SUNDAY = datetime(2026, 11, 1, 12, 34, 56, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("* * * * *", "2026-11-01T12:35"),
        ("0 3 * * *", "2026-11-02T03:00"),
        ("34 12 * * *", "2026-11-02T12:34"),
        ("*/15 * * * *", "2026-11-01T12:45"),
        ("5-59/20 13 * * *", "2026-11-01T13:05"),
        ("0,30 6-8 * * *", "2026-11-02T06:00"),
        ("0 0 1 * *", "2026-12-01T00:00"),
        ("0 0 31 * *", "2026-12-31T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("0 3 * * 0", "2026-11-08T03:00"),  # APScheduler's own notation would say Monday
        ("0 3 * * 7", "2026-11-08T03:00"),
        ("0 3 * * sun", "2026-11-08T03:00"),
        ("0 3 * * 1", "2026-11-02T03:00"),
        ("0 3 * * 6-7", "2026-11-07T03:00"),
        ("0 3 * * Mon-Fri", "2026-11-02T03:00"),
        ("0 3 * jan *", "2027-01-01T03:00"),
        ("0 3 20 * 3", "2026-11-04T03:00"),  # either is enough: Wednesday the 4th
        ("0 3 3 * fri", "2026-11-03T03:00"),
        ("0 3 */2 * mon", "2026-11-09T03:00"),  # day begins with *: both, Monday the 9th
    ],
)
def test_the_next_moment(text: str, then: str) -> None:
    assert Cron(text).next_after(SUNDAY).isoformat() == then + ":00+00:00"


def test_a_moment_is_not_its_own_next() -> None:
    three = datetime(2026, 11, 2, 3, tzinfo=UTC)
    assert Cron("0 3 * * *").next_after(three) == three + timedelta(days=1)
    assert Cron("0 3 * * *").next_after(three - timedelta(microseconds=1)) == three


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 fields"),
        ("0 3 * *", "has 4 fields; write five fields: minute hour day month weekday"),
        ("@daily", "has 1 fields"),
        ("0 0 3 * * *", "has 6 fields"),
        ("60 3 * * *", "'60' is not a valid minute; it is 0 to 59"),
        ("0 24 * * *", "'24' is not a valid hour"),
        ("0 3 0 * *", "'0' is not a valid day; it is 1 to 31"),
        ("0 3 * 13 *", "'13' is not a valid month"),
        ("0 3 * * 8", "'8' is not a valid weekday"),
        ("0 3 * * funday", "'funday' is not a valid weekday; it is 0 to 7, or sun to sat"),
        ("0 3 30 2 *", "names a day that does not exist"),
        ("0 3 31 4,6,9,11 *", "names a day that does not exist"),
        ("30-10 3 * * *", "the minutes run backwards"),
        ("*/0 3 * * *", "a step must be at least 1"),
        ("5/10 3 * * *", "a step needs a range, such as 5-59/10"),
        ("0 3 last * *", "'last' is not a valid day"),
        ("0 3 L * *", "'L' is not a valid day"),
        ("0 3 * * mon#2", "'mon#2' is not a valid weekday"),
        ("1,,2 3 * * *", "'' is not a valid minute"),
        ("0 " + "9" * 5000 + " * * *", "is not a valid hour"),
    ],
)
def test_what_is_no_timetable_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".+") as error:
        Cron(text)
    assert said in str(error.value)


def numbers(low: int, high: int) -> st.SearchStrategy[set[int] | None]:
    """Some numbers of a field; None is `*`."""
    return st.none() | st.sets(st.integers(low, high), min_size=1, max_size=4)


@given(
    minutes=numbers(0, 59),
    hours=numbers(0, 23),
    days=numbers(1, 28),
    weekdays=numbers(0, 6),
    since=st.integers(0, 400 * 1440),
)
def test_the_next_moment_is_the_first_that_fits(
    minutes: set[int] | None, hours: set[int] | None, days: set[int] | None, weekdays: set[int] | None, since: int
) -> None:
    fields = ["*" if field is None else ",".join(map(str, field)) for field in (minutes, hours, days, weekdays)]
    moment = datetime(2027, 1, 1, tzinfo=UTC) + timedelta(minutes=since)
    found = Cron(" ".join([*fields[:3], "*", fields[3]])).next_after(moment)

    def fits(day: datetime) -> bool:
        of_month = days is None or day.day in days
        of_week = weekdays is None or day.isoweekday() % 7 in weekdays
        return of_month or of_week if days and weekdays else of_month and of_week

    first = moment + timedelta(minutes=1)
    while not fits(first):
        first = first.replace(hour=0, minute=0) + timedelta(days=1)
    while not (fits(first) and (hours is None or first.hour in hours) and (minutes is None or first.minute in minutes)):
        first += timedelta(minutes=1)
    assert found == first
