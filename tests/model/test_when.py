"""Times as administrators write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publisher.model.errors import UsageError
from publisher.model.time import (
    Month,
    StartKind,
    StartRule,
    Window,
    epoch,
    fixed_period,
    month_of,
    months,
    parse_from,
    parse_to,
    parse_when,
    whole_months,
    window,
)

NOW = datetime(2026, 3, 1, 0, 30, tzinfo=UTC)


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026-03", utc(2026, 3, 1), utc(2026, 4, 1)),
        ("2026-12", utc(2026, 12, 1), utc(2027, 1, 1)),
        ("2024-02", utc(2024, 2, 1), utc(2024, 3, 1)),
        ("2026-03-05", utc(2026, 3, 5), utc(2026, 3, 6)),
        ("2026-12-31", utc(2026, 12, 31), utc(2027, 1, 1)),
        ("2026-03-05T14:00", utc(2026, 3, 5, 14), utc(2026, 3, 5, 14)),
        ("2026-03-05 14:00", utc(2026, 3, 5, 14), utc(2026, 3, 5, 14)),
        ("2026-03-05T14:00Z", utc(2026, 3, 5, 14), utc(2026, 3, 5, 14)),
        ("2026-03-05T14:00:59Z", utc(2026, 3, 5, 14, 0, 59), utc(2026, 3, 5, 14, 0, 59)),
        ("today", utc(2026, 3, 1), utc(2026, 3, 2)),
        ("yesterday", utc(2026, 2, 28), utc(2026, 3, 1)),
        ("this-month", utc(2026, 3, 1), utc(2026, 4, 1)),
        ("last-month", utc(2026, 2, 1), utc(2026, 3, 1)),
        (" 2999-12 ", utc(2999, 12, 1), utc(3000, 1, 1)),
    ],
)
def test_from_takes_the_start_and_to_the_end_of_what_is_named(text: str, start: datetime, end: datetime) -> None:
    assert (parse_from(text, NOW), parse_to(text, NOW)) == (start, end)
    assert parse_from(text, NOW).tzinfo is UTC


def test_names_are_days_and_months_of_utc_wherever_the_clock_stands() -> None:
    tokyo = NOW.astimezone(timezone(timedelta(hours=9)))
    new_york = NOW.astimezone(timezone(timedelta(hours=-5)))
    assert parse_when("yesterday", tokyo) == parse_when("yesterday", new_york) == parse_when("yesterday", NOW)


def test_last_month_of_january_is_december() -> None:
    assert parse_from("last-month", utc(2026, 1, 31)) == utc(2025, 12, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a time"),
        ("March", "not a time; write 2026-03"),
        ("2026", "not a time"),
        ("2026-3", "not a time"),
        ("03/2026", "not a time"),
        ("2026-13", "not in the calendar"),
        ("2026-00", "not in the calendar"),
        ("2026-02-29", "not in the calendar"),
        ("2026-03-05T24:00", "not in the calendar"),
        ("2026-03-05T14:00+01:00", "UTC"),
        ("2026-03-05T14", "not a time"),
        ("1066-10", "year must be from 1970"),
        ("9999-12", "year must be from 1970"),
        ("٢٠٢٦-٠٣", "not a time"),
    ],
)
def test_what_is_no_time_is_said_with_the_forms_that_are(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_from(text, NOW)


def test_names_are_for_the_command_line_only() -> None:
    with pytest.raises(UsageError, match="not a time"):
        fixed_period("yesterday")


def test_a_month_to_the_same_month_is_that_month() -> None:
    march = window(parse_from("2026-03", NOW), parse_to("2026-03", NOW))
    assert str(march) == "2026-03-01 to 2026-03-31"
    assert str(Window()) == "at any time"
    assert list(months(march)) == [Month(2026, 3)]


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        ("2026-03-05", "2026-03-05", "2026-03-05"),
        ("2026-03-05", None, "from 2026-03-05 on"),
        (None, "2026-03", "until 2026-03-31"),
        ("2026-03-05T14:00", None, "from 2026-03-05T14:00:00Z on"),
        (None, "2026-03-05T14:00", "before 2026-03-05T14:00:00Z"),
        ("2026-03", "2026-03-05T14:00", "2026-03-01T00:00:00Z until before 2026-03-05T14:00:00Z"),
    ],
)
def test_periods_are_written_for_people(start: str | None, end: str | None, shown: str) -> None:
    first = None if start is None else parse_from(start, NOW)
    assert str(window(first, None if end is None else parse_to(end, NOW))) == shown


@pytest.mark.parametrize("end", ["2026-02", "2026-03-01T00:00"])
def test_a_window_that_holds_nothing_is_refused(end: str) -> None:
    with pytest.raises(UsageError, match="is empty: --from must be before --to"):
        window(parse_from("2026-03", NOW), parse_to(end, NOW))


def test_a_window_may_be_open() -> None:
    assert window(None, None) == Window()
    assert whole_months(Window()) == Window()
    with pytest.raises(ValueError, match="no start or no end"):
        list(months(window(None, NOW)))


@given(st.integers(0, 2 * 10**10), st.integers(1, 10**8))
def test_whole_months_hold_the_window_and_begin_and_end_with_a_month(moment: int, seconds: int) -> None:
    start = datetime.fromtimestamp(moment, UTC)
    wanted = window(start, start + timedelta(seconds=seconds))
    rounded = whole_months(wanted)
    assert wanted.start is not None
    assert rounded.start is not None
    assert wanted.end is not None
    assert rounded.end is not None
    assert rounded.start <= wanted.start < wanted.end <= rounded.end
    listed = list(months(wanted))
    assert [month.next for month in listed[:-1]] == listed[1:]
    assert rounded == Window(start=listed[0].window.start, end=listed[-1].window.end)
    assert whole_months(rounded) == rounded
    assert listed[0].next.previous == listed[0] == month_of(start)


@pytest.mark.parametrize(
    ("rule", "begin", "spelt"),
    [
        (StartRule(), utc(2026, 3, 1), "month"),
        (StartRule(kind=StartKind.NOW), NOW, "now"),
        (StartRule(kind=StartKind.ALL), None, "all"),
        (StartRule(kind=StartKind.DATE, since=utc(2025, 1, 1)), utc(2025, 1, 1), "2025-01-01T00:00:00Z"),
    ],
)
def test_a_new_target_begins_where_its_rule_says(rule: StartRule, begin: datetime | None, spelt: str) -> None:
    assert rule.begin(NOW) == (None if begin is None else epoch(begin))
    assert str(rule) == spelt
