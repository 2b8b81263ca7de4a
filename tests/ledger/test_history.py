"""What was delivered when: days, lags and first acceptances, wherever the runs stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from publisher.ledger.books import DailyDelivery, TargetHistory
from publisher.ledger.sql.delivered import pages
from publisher.ledger.sql.history import SqlHistory
from publisher.ledger.sqlite.connection import SqliteDatabase, open_database_to_read, open_ledger_file
from publisher.model.job import Epoch, job_key
from publisher.model.message import PlacedRuns
from publisher.model.time import Window

DAY = 86_400
BEGIN = 20_000 * DAY
WINDOW = Window(start=Epoch(BEGIN), end=Epoch(BEGIN + 10 * DAY))
SENT, REJECTED, COUNTED = 2, 3, 4


class TargetPast:
    """A publishing database into which the past is written by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = open_ledger_file(path)
        self.connection.execute(
            "INSERT INTO target (id, name, start_rule, selection_digest) VALUES (1, 'egi', 'all', '')"
        )
        self.messages = 0

    def message(self, state: int, made_at: int, settled_at: int | None, size: int = 100, name: str = "car") -> int:
        self.messages += 1
        self.connection.execute(
            "INSERT INTO message (id, target, message_id, state, format, records, bytes, digest, made_at, settled_at)"
            " VALUES (?, 1, ?, ?, ?, 2, ?, x'', ?, ?)",
            (self.messages, f"m{self.messages}", state, name, size, made_at, settled_at),
        )
        return self.messages

    def jobs(self, message: int, ended: dict[str, int], numbering: int = 1) -> None:
        """Each in the row of its first letter."""
        self.connection.execute(
            "INSERT OR IGNORE INTO numbering (id, target, file) VALUES (?, 1, 'a.db')", (numbering,)
        )
        placed = PlacedRuns()
        for job, at in ended.items():
            placed.add(job_key(job, ""), Epoch(at), 1, "a.db", ord(job[0]))
        pages.write(SqliteDatabase(self.connection, self.path), message, placed, {"a.db": numbering})

    def told(self) -> TargetHistory:
        with closing(SqlHistory(open_database_to_read(self.path))) as history:
            return history.targets(["egi", "another"], WINDOW)["egi"]


@pytest.fixture
def past(tmp_path: Path) -> Iterator[TargetPast]:
    made = TargetPast(tmp_path / "publishing.db")
    yield made
    made.connection.close()


def lags(told: TargetHistory) -> dict[int, int]:
    return dict(told.lags.minutes)


@pytest.mark.parametrize("numbering", [1, 2], ids=["the same rows", "renumbered"])
def test_the_first_acceptance_counts(past: TargetPast, numbering: int) -> None:
    past.jobs(past.message(SENT, BEGIN, BEGIN + 3600), {"a": BEGIN, "b": BEGIN + 1800})
    past.jobs(past.message(SENT, BEGIN + DAY, BEGIN + 2 * DAY), {"a": BEGIN, "c": BEGIN + DAY}, numbering)
    told = past.told()
    assert lags(told) == {60: 1, 30: 1, 24 * 60: 1}
    assert (told.lags.unknown, told.lags.negative) == (0, 0)


def test_what_is_not_accepted_is_unknown(past: TargetPast) -> None:
    past.jobs(past.message(0, BEGIN, None), {"a": BEGIN})
    past.jobs(past.message(SENT, BEGIN, BEGIN + 60), {"b": BEGIN + 120})
    told = past.told()
    assert lags(told) == {}
    assert (told.lags.unknown, told.lags.negative) == (1, 1)


def test_only_jobs_of_the_window(past: TargetPast) -> None:
    past.jobs(past.message(SENT, BEGIN, BEGIN + 3600), {"a": BEGIN - 1, "b": BEGIN, "c": BEGIN + 10 * DAY})
    assert past.told().lags.known + past.told().lags.negative == 1


def test_a_counted_job_is_accepted_with_its_month(past: TargetPast) -> None:
    """The totals that were made before it was counted do not tell of it, even if they are accepted later."""
    month = 12 * 2024 + 9  # day 20,000 since 1970 is 2024-10-04
    early = past.message(SENT, BEGIN, BEGIN + 9 * 3600)
    counted = past.message(COUNTED, BEGIN + 5, BEGIN + 5)
    late = past.message(SENT, BEGIN, BEGIN + 2 * 3600)
    past.connection.executemany(
        "INSERT INTO month_message (message, month, target) VALUES (?, ?, 1)", [(early, month), (late, month)]
    )
    past.jobs(counted, {"a": BEGIN})
    assert lags(past.told()) == {120: 1}


def test_days_by_format_and_rejections(past: TargetPast) -> None:
    past.message(SENT, BEGIN, BEGIN + 10, 100)
    past.message(SENT, BEGIN, BEGIN + DAY - 1, 150)
    past.message(SENT, BEGIN, BEGIN + DAY, 7, "apel-sync-0.1")
    past.message(SENT, BEGIN, BEGIN - 1, 1000)
    past.message(REJECTED, BEGIN, BEGIN + 20, 30)
    past.message(REJECTED, BEGIN, BEGIN - 20, 30)
    told = past.told()
    assert dict(told.days) == {
        (20_000, "car"): DailyDelivery(messages=2, records=4, bytes=250),
        (20_001, "apel-sync-0.1"): DailyDelivery(messages=1, records=2, bytes=7),
    }
    assert told.rejected == 1


def test_a_target_without_a_round_has_no_past(past: TargetPast) -> None:
    with closing(SqlHistory(open_database_to_read(past.path))) as history:
        assert history.targets(["another"], WINDOW) == {}


def since(past: TargetPast, mark: str, files: Callable[[str], bool] = bool) -> tuple[str, list[tuple[str, int, int]]]:
    """The mark of now, and of each run that came since its database, row and end."""
    with closing(SqlHistory(open_database_to_read(past.path))) as history:
        until, parts = history.delivered_since(mark, files)
        found = [one for runs in parts for one in zip(runs.files, runs.record_ids, runs.ended_at, strict=True)]
    return until, sorted(found)


def test_what_was_delivered_since_a_mark(past: TargetPast) -> None:
    """What is on its way may leave again, so it is told once more."""
    assert since(past, "") == ("{}", [])
    past.jobs(past.message(SENT, BEGIN, BEGIN), {"a": BEGIN, "b": BEGIN + 1})
    first, found = since(past, "")
    assert found == [("a.db", ord("a"), BEGIN), ("a.db", ord("b"), BEGIN + 1)]
    assert since(past, first) == (first, [])
    past.jobs(past.message(COUNTED, BEGIN, BEGIN), {"c": BEGIN + 2})
    past.jobs(past.message(0, BEGIN, None), {"d": BEGIN + 3})
    second, found = since(past, first)
    assert found == [("a.db", ord("c"), BEGIN + 2), ("a.db", ord("d"), BEGIN + 3)]
    assert since(past, second) == (second, [("a.db", ord("d"), BEGIN + 3)])
    assert since(past, first, lambda file: file != "a.db") == (second, [])


def test_a_mark_of_another_ledger_is_none(past: TargetPast) -> None:
    """Of one that was restored, or made anew: its pages have the same numbers."""
    past.jobs(past.message(SENT, BEGIN, BEGIN), {"a": BEGIN})
    before, _ = since(past, "")
    past.jobs(past.message(SENT, BEGIN + 1, BEGIN), {"b": BEGIN + 1})
    after, _ = since(past, before)
    past.connection.execute("UPDATE message SET made_at = made_at + 60 WHERE id = 2")
    assert since(past, after)[1] == [("a.db", ord("a"), BEGIN), ("a.db", ord("b"), BEGIN + 1)]
    assert since(past, before)[1] == [("a.db", ord("b"), BEGIN + 1)]
    past.connection.execute("DELETE FROM delivered_page WHERE id = 2")
    assert since(past, after) == (before, [("a.db", ord("a"), BEGIN)])


def test_each_target_has_its_own_place(past: TargetPast) -> None:
    past.jobs(past.message(SENT, BEGIN, BEGIN), {"a": BEGIN})
    mark, _ = since(past, "")
    past.connection.execute(
        "INSERT INTO target (id, name, start_rule, selection_digest) VALUES (2, 'other', 'all', '')"
    )
    past.connection.execute("UPDATE message SET target = 2 WHERE id = 1")
    past.connection.execute("UPDATE numbering SET target = 2 WHERE id = 1")
    assert since(past, mark)[1] == [("a.db", ord("a"), BEGIN)]
