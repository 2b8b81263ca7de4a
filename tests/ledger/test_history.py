"""What was delivered when: days, lags and first acceptances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from publisher.ledger.books import DailyDelivery, TargetHistory
from publisher.ledger.sql import entries
from publisher.ledger.sql.past.history import SqlHistory
from publisher.ledger.sql.sums.settlement import Settling
from publisher.ledger.sqlite.connection import SqliteDatabase, open_database_to_read, open_ledger_file
from publisher.model.entry import Entry, RecordKey, RowFields, RowKey
from publisher.model.job import Epoch, run_key
from publisher.model.time import Window
from publisher.model.totals import month_number

DAY = 86_400
BEGIN = 20_000 * DAY
WINDOW = Window(start=Epoch(BEGIN), end=Epoch(BEGIN + 10 * DAY))
MONTH = month_number(BEGIN)
SENT, REJECTED = 2, 3


class TargetPast:
    """A publishing database into which the past is written by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = open_ledger_file(path)
        self.connection.execute(
            "INSERT INTO receiver (id, name, kind, place, keeps_first) VALUES (1, 'egi', 'ams', 'a place', 0)"
        )
        self.target(1, "egi")
        self.messages = 0
        self.numbers = entries.Numbers()

    def target(self, number: int, name: str) -> None:
        self.connection.execute(
            "INSERT INTO target (id, name, start_rule, selection_digest, receiver) VALUES (?, ?, 'all', '', 1)",
            (number, name),
        )

    def message(
        self,
        state: int,
        made_at: int,
        settled_at: int | None,
        size: int = 100,
        name: str = "car",
        posting: int | None = None,
        months: Sequence[int] = (),
    ) -> int:
        self.messages += 1
        self.connection.execute(
            "INSERT INTO message (id, target, receiver, posting, message_id, state, format, records, bytes, digest, made_at,"
            " settled_at) VALUES (?, 1, 1, ?, ?, ?, ?, 2, ?, ?, ?, ?)",
            (
                self.messages,
                posting,
                f"m{self.messages}",
                state,
                name,
                size,
                b"%d" % self.messages,
                made_at,
                settled_at,
            ),
        )
        for month in months:
            self.connection.execute(
                "INSERT INTO month_message (message, month, target) VALUES (?, ?, 1)", (self.messages, month)
            )
        return self.messages

    def post(self, ended: dict[str, int], source: str = "/a.db", target: int = 1) -> int:
        """Enter runs, which are pending."""
        database = SqliteDatabase(self.connection, self.path)
        made = [entry(job, at, source) for job, at in ended.items()]
        with database.atomic():
            return entries.prepare(
                database, self.numbers, entries.Posting(1, target, "then", BEGIN, of_records=True), made
            )

    def settle(self, posting: int) -> None:
        database = SqliteDatabase(self.connection, self.path)
        with database.atomic():
            settling = Settling(database, posting)
            settling.of_records()
            settling.write()

    def jobs(self, ended: dict[str, int], settled_at: int | None, source: str = "/a.db") -> int:
        """A message of single records, accepted then, or on its way."""
        posting = self.post(ended, source)
        message = self.message(0 if settled_at is None else SENT, BEGIN, settled_at, posting=posting)
        if settled_at is not None:
            self.settle(posting)
        return message

    @contextmanager
    def history(self) -> Iterator[SqlHistory]:
        with closing(SqlHistory(open_database_to_read(self.path))) as history:
            yield history

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


def entry(job: str, ended_at: int, source: str) -> Entry:
    row = RowKey(month_number(ended_at), RowFields.of({"VO": "atlas"}, ("atlas",)))
    record = RecordKey("EXAMPLE-SITE", "", job, Epoch(ended_at))
    return Entry(run_key(BEGIN, f"job {job}", job), record, row, 60, 50, b"%d" % ended_at, source=source)


def test_the_first_acceptance_counts(past: TargetPast) -> None:
    past.jobs({"a": BEGIN, "b": BEGIN + 1800}, BEGIN + 3600)
    past.jobs({"a": BEGIN, "c": BEGIN + DAY}, BEGIN + 2 * DAY)
    told = past.told()
    assert lags(told) == {60: 1, 30: 1, 24 * 60: 1}
    assert (told.lags.unknown, told.lags.negative) == (0, 0)


def test_what_is_not_accepted_is_unknown(past: TargetPast) -> None:
    past.jobs({"a": BEGIN}, None)
    past.jobs({"b": BEGIN + 120}, BEGIN + 60)
    told = past.told()
    assert lags(told) == {}
    assert (told.lags.unknown, told.lags.negative) == (1, 1)


def test_only_jobs_of_the_window(past: TargetPast) -> None:
    past.jobs({"a": BEGIN - 1, "b": BEGIN, "c": BEGIN + 10 * DAY}, BEGIN + 3600)
    assert past.told().lags.known + past.told().lags.negative == 1


def test_what_another_target_of_the_receiver_sent_is_not_of_this_one(past: TargetPast) -> None:
    past.target(2, "other")
    past.settle(past.post({"a": BEGIN}, target=2))
    assert (past.told().lags.known, past.told().lags.unknown) == (0, 0)


def test_a_run_of_totals_is_accepted_with_the_first_message_of_its_month(past: TargetPast) -> None:
    """Totals of before do not tell of it, nor do those of another month of its posting."""
    past.message(SENT, BEGIN, BEGIN + 3600, months=[MONTH])
    posting = past.post({"a": BEGIN})
    past.message(SENT, BEGIN, BEGIN + 60, posting=posting, months=[MONTH - 1])
    past.message(SENT, BEGIN, BEGIN + 3 * 3600, posting=posting, months=[MONTH])
    past.message(SENT, BEGIN, BEGIN + 2 * 3600, posting=posting, months=[MONTH, MONTH + 1])
    assert lags(past.told()) == {120: 1}
    with past.history() as history:
        (part,) = history.deliveries(WINDOW)
    assert (part.message_id, part.accepted_at, part.runs) == ("m4", BEGIN + 2 * 3600, (run_key(BEGIN, "job a", "a"),))


def test_deliveries_are_of_the_messages_that_were_accepted_then(past: TargetPast) -> None:
    past.jobs({"a": BEGIN, "b": BEGIN}, BEGIN + 60)
    past.jobs({"a": BEGIN + 1}, BEGIN + 120)
    past.jobs({"c": BEGIN}, BEGIN + 10 * DAY)
    past.jobs({"d": BEGIN}, None)
    with past.history() as history:
        parts = list(history.deliveries(WINDOW))
        assert history.accepted() == {"2024-10": [3, 6, 3]}
    assert sorted((part.message_id, part.ended_at) for part in parts) == [
        ("m1", (BEGIN, BEGIN)),
        ("m2", (BEGIN + 1,)),
    ]


def test_messages_sent_of_a_month(past: TargetPast) -> None:
    """Those with jobs that ended in it, whoever replaced them since, and those with its totals."""
    october = Window(start=Epoch(BEGIN - 3 * DAY), end=Epoch(BEGIN + 28 * DAY))
    past.jobs({"a": BEGIN, "b": BEGIN - 5 * DAY}, BEGIN + 60)
    past.jobs({"a": BEGIN + 1}, BEGIN + 60)
    past.jobs({"c": BEGIN - 5 * DAY}, BEGIN + 60)
    posting = past.post({"d": BEGIN})
    past.message(SENT, BEGIN, BEGIN + 60, posting=posting, months=[MONTH - 1])
    past.message(SENT, BEGIN, BEGIN + 60, posting=posting, months=[MONTH])
    with past.history() as history:
        sent = history.sent("egi", october)
        assert history.sent("another", october).messages == 0
    assert (sent.messages, sent.digest) == (3, sha256(b"125").hexdigest())


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


Told = tuple[str, str, int]


def delivered(past: TargetPast, first: int = 0) -> list[Told]:
    """Of each run that ended at a time or later its database, number and end."""
    with past.history() as history:
        runs = [run for part in history.delivered(Epoch(first)) for run in part]
    return sorted((run.source, run.local_id, run.ended_at) for run in runs)


def test_what_was_delivered_and_is_on_its_way(past: TargetPast) -> None:
    assert delivered(past) == []
    past.jobs({"a": BEGIN, "b": BEGIN + 1}, BEGIN)
    past.post({"c": BEGIN + 2})
    past.jobs({"d": BEGIN + 3}, BEGIN, source="hpc")
    late = [("/a.db", "b", BEGIN + 1), ("/a.db", "c", BEGIN + 2), ("hpc", "d", BEGIN + 3)]
    assert delivered(past) == [("/a.db", "a", BEGIN), *late]
    assert delivered(past, BEGIN + 1) == late


def test_a_job_that_never_reached_the_batch_system_has_no_number(past: TargetPast) -> None:
    database = SqliteDatabase(past.connection, past.path)
    made = entry("a", BEGIN, "/a.db")._replace(run=run_key(BEGIN, "a", ""))
    with database.atomic():
        entries.prepare(database, past.numbers, entries.Posting(1, 1, "then", BEGIN, of_records=True), [made])
    assert delivered(past) == [("/a.db", "", BEGIN)]
