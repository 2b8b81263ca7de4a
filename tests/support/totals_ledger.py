"""A ledger of one receiver's totals: entries made of short numbers, and messages that say their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from publisher.ledger.answers import Outstanding
from publisher.ledger.checks import disagreements
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.ledger import sql_ledger
from publisher.model.entry import Entry, ReceiverName, RecordKey, RowFields, RowId, RowKey, RunKey, Usage, run_key
from publisher.model.job import Epoch, JobId, RowRef
from publisher.model.message import Message, MessageRow, MonthMessage, OutboxRecord, message_of
from tests.support.jobs import RECEIVER

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MONTH = 24322  # 2026-11
END = Epoch(1_794_000_000)  # 2026-11-06
MONTH_S = 30 * 86_400
SUBMITTED = END - 3_600


def row(vo: str = "atlas", host: str = "ce1", month: int = MONTH) -> RowKey:
    return RowKey(month, RowFields.of({"VO": vo, "SubmitHost": host}, (vo, host)))


def run(number: int) -> RunKey:
    return run_key(SUBMITTED, f"job{number}", str(number))


def entry(number: int, of: RowKey | None = None, *, wall_s: int = 60, jobs: int = 1) -> Entry:
    """What run `number` counts for: it ends so many seconds after the others."""
    of = of or row()
    end = Epoch(END + number + (of.month - MONTH) * MONTH_S)
    record = RecordKey("EXAMPLE-SITE", "", str(number), end)
    usage = (wall_s, wall_s // 2) if jobs else (0, 0)
    return Entry(run(number), record, of, *usage, b"%d" % wall_s, jobs)


class TotalsLedger:
    """A ledger with a target `egi`, and what its totals come to."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = sql_ledger(database)
        self._bytes = count(1)
        self.begin()

    def begin(self, target: str = "egi", receiver: ReceiverName = RECEIVER) -> None:
        self.ledger.targets.begin_round(target, start_rule="all", start=None, selection_digest="", receiver=receiver)

    def enter(self, *entries: Entry, target: str = "egi", settings: str = "now") -> None:
        self.ledger.postings.enter(target, entries, settings, NOW)

    def says(self, *rows: tuple[RowKey, Usage], target: str = "egi") -> MonthMessage:
        """Return a message with a record a row."""
        payload = b"message %d" % next(self._bytes)
        message = message_of(payload, target, "apel-summary-0.4", len(rows), NOW)
        places = range(1, len(rows) + 1)
        records = tuple(record_of(place, key.month) for place, (key, _) in zip(places, rows, strict=True))
        sent = (MessageRow(place, key.id, usage) for place, (key, usage) in zip(places, rows, strict=True))
        months = tuple(sorted({key.month for key, _ in rows}))
        return MonthMessage(message, months, records, tuple(sent))

    def seal(self, *messages: MonthMessage, target: str = "egi") -> list[Message]:
        self.ledger.postings.seal(target, iter(messages))
        return [one.message for one in messages]

    def accept(self, *messages: Message) -> None:
        for message in messages:
            self.ledger.outbox.sent(message, remote_id="", remote_ids={}, now=NOW)

    def send(self, *entries: Entry, target: str = "egi") -> None:
        """Enter runs, and have the receiver accept what their rows come to then, in one message."""
        self.enter(*entries, target=target)
        self.accept(*self.seal(self.says(*self.sums(entries, target), target=target), target=target))

    def sums(self, entries: Iterable[Entry], target: str = "egi") -> list[tuple[RowKey, Usage]]:
        """Return every row that these entries touch, with what it comes to with them."""
        had = {run_of: (RowId(*at), Usage(*usage)) for run_of, at, usage in self._counting()}
        keys = {total.key.id: total.key for total in self.all_rows(target)}
        sums = {total.key.id: total.counts for total in self.all_rows(target)}
        touched: dict[RowId, None] = {}
        for one in entries:
            at = one.row.id
            keys.setdefault(at, one.row)
            if one.run in had:
                was, usage = had[one.run]
                sums[was] = sums[was].less(usage)
                touched[was] = None
            sums[at] = sums.get(at, Usage()).plus(Usage(one.jobs, one.wall_s, one.cpu_s))
            touched[at] = None
        return [(keys[at], sums[at]) for at in touched]

    def _counting(self) -> Iterator[tuple[RunKey, tuple[Any, ...], tuple[Any, ...]]]:
        question = "SELECT run, row_key.month, row_key.digest, jobs, wall_s, cpu_s FROM entry"
        for run_of, *rest in self.ask(f"{question} JOIN row_key ON row_key.id = row_key WHERE state = 1"):
            yield run_of, tuple(rest[:2]), tuple(rest[2:])

    def all_rows(self, target: str = "egi") -> Iterator[Any]:
        for month in self.ledger.entries.months(target):
            yield from self.ledger.entries.rows(target, month.month)

    def totals(self, target: str = "egi") -> dict[RowId, tuple[Usage, Usage]]:
        """Return what counts and what was said, of every row of which there is anything."""
        found = {total.key.id: (total.counts, total.sent) for total in self.all_rows(target)}
        return {at: sums for at, sums in found.items() if sums != (Usage(), Usage())}

    def outstanding(self, target: str = "egi", besides: Collection[Message] = ()) -> Outstanding:
        found = self.ledger.outbox.outstanding(target, [one.id for one in besides])
        assert found is not None
        return found

    def split(self, whole: Outstanding, *parts: Sequence[OutboxRecord]) -> list[Message]:
        halves = [
            (message_of(b"part %d" % next(self._bytes), "egi", whole.message.format, len(part), NOW), part)
            for part in parts
        ]
        self.ledger.outbox.split(whole, halves, narrowing=True)
        return [message for message, _ in halves]

    def refuse(self, whole: Outstanding) -> None:
        self.ledger.outbox.refuse(whole, "refused-by-receiver", "no", "policy", NOW)

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        with self.database.reading():
            return [tuple(found) for found in self.database.execute(question).fetchall()]

    def number(self, question: str) -> int:
        ((found,),) = self.ask(question)
        return int(found)

    def states(self) -> Counter[int]:
        return Counter(state for (state,) in self.ask("SELECT state FROM entry"))

    def assert_is_sound(self) -> None:
        assert disagreements(self.database) == []


def record_of(place: int, month: int = MONTH) -> OutboxRecord:
    at = Epoch(END + (month - MONTH) * MONTH_S)
    about = JobId(f"row {place} of month {month}")
    return OutboxRecord(RowRef("", 0), about, "", at, 0, 7, group=place)
