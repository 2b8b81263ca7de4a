"""Where one month ends and the next begins: to the second, in UTC, wherever the host thinks it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from publisher.model import time as when
from publisher.model.errors import UsageError
from publisher.model.time import Window
from tests.arex_databases import SampleJob, generate
from tests.support.pki import Credential
from tests.support.simulated_months import Month, World

ZONES: Final = ("UTC", "Europe/Oslo", "America/New_York", "Pacific/Kiritimati")
FORMATS: Final = ("car", "apel-job-0.4", "apel-summary-0.2", "apel-summary-0.3")
(PATTERN,) = generate(5, 1, datetime(2028, 1, 1, tzinfo=UTC), datetime(2028, 1, 2, tzinfo=UTC))
NOW: Final = datetime(2028, 4, 10, tzinfo=UTC)
# A new year, a leap day and the month after it, both changes of summer time (Oslo, New York), a month of 30 days.
EDGES: Final = (
    *(when.Month(*month).start for month in ((2027, 11), (2027, 12), (2028, 1), (2028, 2), (2028, 3), (2028, 4))),
    datetime(2028, 2, 29, tzinfo=UTC),
    datetime(2027, 10, 31, 1, tzinfo=UTC),
    datetime(2027, 11, 7, 6, tzinfo=UTC),
    datetime(2028, 3, 12, 7, tzinfo=UTC),
    datetime(2028, 3, 26, 1, tzinfo=UTC),
)


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of the process."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield str(request.param)
    monkeypatch.undo()
    time.tzset()


def ended_at(moment: datetime, number: int) -> SampleJob:
    """A job that ended in that second, all of it moved there."""
    later = int(moment.timestamp()) - PATTERN.end_time
    return replace(
        PATTERN,
        job_id=f"job{number}",
        local_job_id=str(number),
        submit_time=PATTERN.submit_time + later,
        end_time=PATTERN.end_time + later,
        events=tuple(replace(event, at=event.at + later) for event in PATTERN.events),
    )


def at_the_edges() -> list[SampleJob]:
    moments = [edge + timedelta(seconds=beside) for edge in EDGES for beside in (-1, 0, 1)]
    return [ended_at(moment, number) for number, moment in enumerate(moments)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.some(2)
def test_every_second_counts_in_its_month_in_every_zone(zone: str, form: str, tmp_path: Path, host: Credential) -> None:
    world = World(folder=tmp_path, host=host, now=NOW, format=form)
    jobs = at_the_edges()
    world.finish(jobs[::2])
    assert world.publish() is not None
    world.finish(jobs[1::2])
    assert world.publish() is not None
    assert not world.wrong_months()
    for month in ("2027-10", "2027-12", "2028-02"):
        again = world.republish(month)
        assert again is not None
        assert again.exit_status == 0
    assert not world.wrong_months()
    told: dict[Month, int] = {}
    for (month_told, _), count in world.receiver.told.items():
        told[month_told] = told.get(month_told, 0) + count
    assert told == {month: count for month, (count, _, _) in world.truth().items()}
    assert not world.differences()


@pytest.mark.parametrize(("start", "end", "seconds"), [
    ("2028-02", "2028-02", 29 * 86_400),
    ("2027-02", "2027-02", 28 * 86_400),
    ("2028-02-29", "2028-02-29", 86_400),
    ("2028-03", "2028-03", 31 * 86_400),
    ("2028-03-26", "2028-03-26", 86_400),
    ("2027-10-31", "2027-11-07", 8 * 86_400),
    ("2028-03-26T01:00", "2028-03-26T03:00", 7_200),
])  # fmt: skip
def test_windows_are_as_long_in_every_zone(zone: str, start: str, end: str, seconds: int) -> None:
    window = when.window(when.parse_from(start, NOW), when.parse_to(end, NOW))
    assert window.start is not None
    assert window.end is not None
    assert window.end - window.start == seconds


@pytest.mark.parametrize(
    ("now", "yesterday", "last_month"),
    [
        (datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC), "2028-02-28", "2028-01"),
        (datetime(2028, 3, 1, 0, 0, 0, tzinfo=UTC), "2028-02-29", "2028-02"),
        (datetime(2027, 12, 31, 23, 59, 59, tzinfo=UTC), "2027-12-30", "2027-11"),
        (datetime(2028, 1, 1, 0, 0, 0, tzinfo=UTC), "2027-12-31", "2027-12"),
        (datetime(2028, 1, 1, 11, 0, 0, tzinfo=UTC), "2027-12-31", "2027-12"),
    ],
)
def test_named_periods_turn_over_at_midnight_utc(zone: str, now: datetime, yesterday: str, last_month: str) -> None:
    assert when.parse_when("yesterday", now) == when.fixed_period(yesterday)
    assert when.parse_when("last-month", now) == when.fixed_period(last_month)


@pytest.mark.parametrize("form", ["car", "apel-summary-0.2"])
def test_windows_without_jobs(form: str, tmp_path: Path, host: Credential) -> None:
    world = World(folder=tmp_path, host=host, now=NOW, format=form)
    world.finish([ended_at(datetime(2028, 2, 10, tzinfo=UTC), 1)])
    for start, end in (("2031-01", "2031-12"), ("2020-01", "2020-03"), ("1970-01", "1970-01")):
        outcome = world.republish(start, end)
        assert outcome is not None
        assert (outcome.exit_status, outcome.messages) == (0, 0)
    for start, end in (("2028-03", "2028-02"), ("2028-03-01T10:00", "2028-03-01T10:00")):
        with pytest.raises(UsageError, match="empty"):
            world.republish(start, end)
    assert world.publish() is not None
    assert not world.wrong_months()
    assert not world.differences()
    world.pass_time(2)
    outcome = world.publish()
    assert outcome is not None
    assert outcome.exit_status == 0


@pytest.mark.parametrize("form", ["apel-summary-0.2", "apel-summary-0.4"])
def test_a_month_of_totals_goes_when_it_has_surely_begun_there(form: str, tmp_path: Path, host: Credential) -> None:
    """The server refuses a month that its own clock has not begun."""
    world = World(folder=tmp_path, host=host, now=datetime(2028, 3, 1, 0, 0, 30, tzinfo=UTC), format=form)
    world.finish([ended_at(datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC), 1), ended_at(when.Month(2028, 3).start, 2)])
    assert world.publish() is not None
    assert set(world.receiver.totals()) == {(2028, 2)}
    assert world.status().held == 0
    world.pass_time(0.02)
    assert world.publish() is not None
    assert not world.wrong_months()


@pytest.mark.parametrize("form", ["apel-summary-0.2", "apel-normalised-summary-0.4"])
def test_the_running_month_grows_and_never_shrinks(form: str, tmp_path: Path, host: Credential) -> None:
    """Every message of a month says all of it that was there: of part of it nothing leaves, also through lost answers."""
    world = World(folder=tmp_path, host=host, now=datetime(2028, 2, 1, 0, 20, tzinfo=UTC), format=form, batch_records=2)
    counts = []
    for day in range(1, 30):
        moment = datetime(2028, 2, day, 23, 59, 59, tzinfo=UTC)
        world.now = moment + timedelta(seconds=day % 3)
        world.finish([replace(ended_at(moment, day), queue=f"queue{day % 4}", cpus=1 + day % 5)])
        world.publish(faults=("fine", "answer lost", "not stored", "cut after", "cut before")[day % 5 : day % 5 + 2])
        counts.append(world.receiver.totals().get((2028, 2), (0, 0, 0))[0])
    assert counts == sorted(counts)
    assert world.publish() is not None
    assert not world.wrong_months()
    assert not world.receiver.overtaken


def test_months_round_out_to_whole_ones() -> None:
    leap = when.whole_months(when.window(when.parse_from("2028-02-29", NOW), when.parse_to("2028-02-29", NOW)))
    assert leap == when.Month(2028, 2).window
    last_second = Window(start=when.epoch(datetime(2028, 2, 29, 23, 59, 59, tzinfo=UTC)), end=None)
    assert when.whole_months(last_second).start == when.Month(2028, 2).window.start
