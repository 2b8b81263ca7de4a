"""The past of targets: messages day by day, how long jobs waited for theirs, and metrics."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import Final

from publisher.ledger.books import (
    DailyDelivery,
    DeliveredPart,
    Measures,
    SentMessages,
    StoredMetric,
    TargetHistory,
)
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.delivered import pages
from publisher.ledger.sql.delivered.lookup import DeliveredRuns
from publisher.model.job import Epoch, JobKey
from publisher.model.message import PlacedRuns
from publisher.model.time import Durations, Window
from publisher.model.totals import month_name, month_number

_DAY_S: Final = 86_400
_SENT, _REJECTED, _COUNTED = 2, 3, 4  # numbers of `message.state`, as schema.py lists them

_TARGETS = "SELECT name, id FROM target"
# All of them: an index on the time would cost every message something, for ever.
_MESSAGES = """
SELECT id, target, state, format, records, bytes, settled_at FROM message
WHERE id > 0 ORDER BY id"""
_MONTHS = """
SELECT month_message.month, message.id, message.settled_at
FROM month_message JOIN message ON message.id = month_message.message
WHERE month_message.target = :target AND message.state = 2"""
# Pages with jobs that were counted only belong to no message of these.
_OF_MONTH = """
SELECT message.id, message.digest
FROM month_message JOIN message ON message.id = month_message.message
WHERE month_message.target = (SELECT id FROM target WHERE name = :target) AND month = :month
      AND message.state = 2"""
_PAGES_SENT = """
SELECT message.id, message.digest, delivered_page.runs
FROM delivered_page JOIN message ON message.id = delivered_page.message
WHERE message.id > 0 AND message.target = (SELECT id FROM target WHERE name = :target)
      AND message.state = 2"""
_ACCEPTED = """
SELECT id, settled_at, records FROM message WHERE id > 0 AND state IN (2, 4) ORDER BY id"""
_RUNS_OF = """
SELECT target.name, message.message_id, message.format, message.settled_at, delivered_page.runs
FROM message JOIN delivered_page ON delivered_page.message = message.id
             JOIN target ON target.id = message.target
WHERE message.id > 0 AND message.state IN (2, 4)
      AND message.settled_at >= :start AND message.settled_at < :end"""
# A target's pages are numbered as they are written: one publisher works on it at a time.
_PAGE = """
SELECT delivered_page.id, message.id, message.made_at
FROM delivered_page JOIN message ON message.id = delivered_page.message
WHERE delivered_page.id = :page AND message.target = :target"""
_LAST_SETTLED = """
SELECT delivered_page.id, message.id, message.made_at
FROM delivered_page JOIN message ON message.id = delivered_page.message
WHERE delivered_page.id >= :page AND message.target = :target AND message.state IN (2, 4)
ORDER BY delivered_page.id DESC LIMIT 1"""
_FILES = "SELECT id, file FROM numbering WHERE target = :target ORDER BY id"
_PAGES_AFTER = "SELECT block, runs FROM delivered_page WHERE numbering = :numbering AND id > :page"
_MessageAndEnd = tuple[int, int]


@dataclass(slots=True)
class _TargetPast:
    """What is found of one target."""

    days: dict[tuple[int, str], Counter[str]] = field(default_factory=dict)
    rejected: int = 0
    accepted: dict[int, int] = field(default_factory=dict)  # when, by number of message
    counted: set[int] = field(default_factory=set)  # the numbers under which jobs were
    lags: Durations = field(default_factory=Durations)


class SqlHistory:
    """`History` of a publishing database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._delivered = DeliveredRuns(database)

    def targets(self, names: Sequence[str], window: Window) -> Mapping[str, TargetHistory]:
        with self._database.snapshot():
            all_of_them = self._database.execute(_TARGETS)
            numbers = {name: number for name, number in all_of_them if name in names}
            found = {number: _TargetPast() for number in numbers.values()}
            self._read_messages(found, window)
            for number, past in found.items():
                self._read_lags(number, past, window)
        return {name: _history(found[number]) for name, number in numbers.items()}

    def sent(self, target: str, month: Window) -> SentMessages:
        with self._database.snapshot():
            at = {"target": target, "month": month_number(month.start or 0)}
            of_month = self._database.execute(_OF_MONTH, at)
            digests = {number: bytes(digest) for number, digest in of_month}
            for number, digest, packed in self._database.stream(_PAGES_SENT, {"target": target}):
                if number not in digests and any(end in month for end in pages.ends(packed)):
                    digests[number] = bytes(digest)
        if not digests:
            return SentMessages(messages=0, digest="")
        whole = sha256(b"".join(digests[number] for number in sorted(digests)))
        return SentMessages(messages=len(digests), digest=whole.hexdigest())

    def accepted(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        with self._database.snapshot():
            for number, settled_at, records in self._database.execute(_ACCEPTED):
                month = found.setdefault(month_name(month_number(settled_at)), [0, 0, 0])
                month[:] = month[0] + 1, month[1] + records, number
        return found

    def deliveries(self, accepted: Window) -> Iterator[DeliveredPart]:
        window = {"start": accepted.start, "end": accepted.end}
        with self._database.snapshot():
            for row in self._database.stream(_RUNS_OF, window):
                target, message_id, form, at, packed = row
                ends = [Epoch(end) for end in pages.ends(packed)]
                yield DeliveredPart(target, message_id, form, Epoch(at), pages.keys(packed), ends)

    def delivered_since(
        self, mark: str, files: Callable[[str], bool]
    ) -> tuple[str, Generator[PlacedRuns, None, None]]:
        before: dict[str, list[int]] = json.loads(mark or "{}")
        with self._database.snapshot():
            after: dict[int, int] = {}
            until: dict[str, list[int]] = {}
            for name, number in self._database.execute(_TARGETS).fetchall():
                after[number] = self._place(number, before.get(name))
                asked = {"target": number, "page": after[number]}
                if last := self._database.execute(_LAST_SETTLED, asked).fetchone():
                    until[name] = list(last)
        return json.dumps(until), self._placed(after, files)

    def _place(self, target: int, page: Sequence[int] | None) -> int:
        """The number of a settled message's page; 0 for one of another ledger: pages never move."""
        if page is None:
            return 0
        found = self._database.execute(_PAGE, {"page": page[0], "target": target}).fetchone()
        return page[0] if found is not None and list(found) == list(page) else 0

    def _placed(
        self, after: Mapping[int, int], files: Callable[[str], bool]
    ) -> Generator[PlacedRuns, None, None]:
        with self._database.snapshot():
            for target, page in after.items():
                numberings = self._database.execute(_FILES, {"target": target}).fetchall()
                for numbering, file in numberings:
                    if not files(file):
                        continue
                    asked = {"numbering": numbering, "page": page}
                    for block, packed in self._database.stream(_PAGES_AFTER, asked):
                        first = block * pages.BLOCK_ROWS
                        columns = pages.keys(packed), pages.ends(packed), pages.fingerprints(packed)
                        yield PlacedRuns(*columns, file, map(first.__add__, pages.places(packed)))

    def close(self) -> None:
        self._database.close()

    def _read_messages(self, found: Mapping[int, _TargetPast], window: Window) -> None:
        for row in self._database.stream(_MESSAGES):
            number, target, state, name, records, size, settled_at = row
            past = found.get(target)
            if past is None or settled_at is None:
                continue
            if state == _COUNTED:
                past.counted.add(number)
            elif state == _SENT:
                past.accepted[number] = settled_at
                if settled_at in window:
                    day = past.days.setdefault((settled_at // _DAY_S, name), Counter())
                    day.update(messages=1, records=records, bytes=size)
            elif state == _REJECTED and settled_at in window:
                past.rejected += 1

    def _read_lags(self, target: int, past: _TargetPast, window: Window) -> None:
        """Every run's first acceptance."""
        months = self._months(target)
        for deliveries in self._runs(target):
            ended = [(message, end) for message, end in deliveries if end in window]
            if not ended:
                continue
            lags = []
            for message, end in ended:
                accepted = past.accepted.get(message)
                if accepted is None and message in past.counted:
                    accepted = _first_after(months.get(month_number(end), []), message)
                if accepted is not None:
                    lags.append(accepted - end)
            if lags:
                past.lags.add((min(lags),))
            else:
                past.lags.unknown += 1

    def _months(self, target: int) -> dict[int, list[tuple[int, int]]]:
        """By month, the numbers of messages with its totals, and when they were accepted."""
        months: dict[int, list[tuple[int, int]]] = {}
        for month, number, settled_at in self._database.execute(_MONTHS, {"target": target}):
            months.setdefault(month, []).append((number, settled_at))
        return {month: sorted(times) for month, times in months.items()}

    def _runs(self, target: int) -> Iterator[Sequence[_MessageAndEnd]]:
        """The deliveries of each run of a target: in which message, under which end time."""
        numberings = self._delivered.with_pages(target)
        for numbering in numberings:
            for _, found in groupby(pages.by_block(self._database, numbering), itemgetter(0)):
                runs: defaultdict[JobKey, list[_MessageAndEnd]] = defaultdict(list)
                for _, message, packed in found:
                    for key, end in zip(pages.keys(packed), pages.ends(packed), strict=True):
                        runs[key].append((message, end))
                if len(numberings) > 1:
                    self._join(target, numbering, runs)
                yield from runs.values()

    def _join(self, target: int, numbering: int, runs: dict[JobKey, list[_MessageAndEnd]]) -> None:
        """Add what else was delivered of some runs; earlier numberings have counted theirs."""
        wanted = frozenset(map(pages.digest_of, runs))
        for other, one in self._delivered.elsewhere(target, numbering, wanted):
            if one.key not in runs:
                continue
            if other < numbering:
                del runs[one.key]
            else:
                runs[one.key].append((one.message, one.ended_at))


def _first_after(messages: Sequence[tuple[int, int]], counted: int) -> int | None:
    """The first acceptance of totals made after jobs were counted: their number is higher."""
    following = messages[bisect_left(messages, (counted, 0)) :]
    return min((settled_at for _, settled_at in following), default=None)


def _history(past: _TargetPast) -> TargetHistory:
    days = {
        at: DailyDelivery(messages=sums["messages"], records=sums["records"], bytes=sums["bytes"])
        for at, sums in sorted(past.days.items())
    }
    return TargetHistory(days=days, rejected=past.rejected, lags=past.lags)


_MEASURES: Final = "SELECT target, name, label, value FROM measure ORDER BY target, name, label"
_DELIVERED: Final = "SELECT accepted_messages, accepted_records FROM target WHERE name = :target"
_FORGET: Final = "DELETE FROM measure WHERE target = :target AND name = :name"
_SET: Final = """
INSERT INTO measure (target, name, label, value) VALUES (:target, :name, :label, :value)
ON CONFLICT (target, name, label) DO UPDATE SET value = excluded.value"""
_ADD: Final = """
INSERT INTO measure (target, name, label, value) VALUES (:target, :name, :label, :value)
ON CONFLICT (target, name, label) DO UPDATE SET value = measure.value + excluded.value"""


class SqlMeasureBook:
    """`MeasureBook` in a publishing database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def measures(self) -> Sequence[StoredMetric]:
        with self._database.reading():
            return [
                StoredMetric(target=target, name=name, label=label, value=value)
                for target, name, label, value in self._database.execute(_MEASURES)
            ]

    def delivered(self, target: str) -> tuple[int, int]:
        with self._database.reading():
            found = self._database.execute(_DELIVERED, {"target": target}).fetchone()
            return (0, 0) if found is None else (found[0], found[1])

    def note(
        self, target: str, *, set_to: Measures, added: Measures, unknown: Sequence[str]
    ) -> None:
        gone = [{"target": target, "name": name} for name in unknown]
        with self._database.atomic():
            self._database.execute_many(_FORGET, gone)
            self._database.execute_many(_SET, _rows(target, set_to))
            self._database.execute_many(_ADD, _rows(target, added))

    def close(self) -> None:
        self._database.close()


def _rows(target: str, values: Measures) -> list[dict[str, str | float]]:
    return [
        {"target": target, "name": name, "label": label, "value": float(value)}
        for (name, label), value in values.items()
    ]
