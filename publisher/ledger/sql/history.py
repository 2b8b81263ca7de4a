"""What was delivered when, from the publishing database: messages day by day, and how long jobs waited for theirs.

What was measured of targets, in the publishing database.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from publisher.ledger.books import DailyDelivery, Measures, StoredMetric, TargetHistory
from publisher.ledger.sql.database import Database
from publisher.ledger.sqlite.membership import ENTRY_BYTES, KEY_BYTES, LATEST_END, entries, message_and_end
from publisher.model.time import Durations, Window
from publisher.model.totals.summary import month_number

_DAY_S: Final = 86_400
_SENT, _REJECTED, _COUNTED = 2, 3, 4  # numbers of `message.state`, as sqlite/schema.py lists them

_TARGETS = "SELECT name, id FROM target"
# All of them, 0.5 µs each: an index on the time would cost every message something, for ever.
_MESSAGES = "SELECT id, target, state, format, records, bytes, settled_at FROM message WHERE id > 0 ORDER BY id"
_MONTHS = """
SELECT month_message.month, message.id, message.settled_at
FROM month_message JOIN message ON message.id = month_message.message
WHERE month_message.target = :target AND message.state = 2"""
_FRESH = "SELECT entries FROM fresh WHERE target = :target"
_STRETCHES = "SELECT id FROM stretch WHERE target = :target"
_LEAVES = "SELECT entries FROM leaf WHERE stretch = :stretch ORDER BY first, id"


@dataclass(slots=True)
class _TargetPast:
    """What is found of one target. `accepted`: when, by number of message; `counted`: the numbers under which jobs were."""

    days: dict[tuple[int, str], Counter[str]] = field(default_factory=dict)
    rejected: int = 0
    accepted: dict[int, int] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)
    lags: Durations = field(default_factory=Durations)


class SqlHistory:
    """`History` of a publishing database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def targets(self, names: Sequence[str], window: Window) -> Mapping[str, TargetHistory]:
        with self._database.snapshot():
            numbers = {name: number for name, number in self._database.execute(_TARGETS) if name in names}
            found = {number: _TargetPast() for number in numbers.values()}
            self._read_messages(found, window)
            for number, past in found.items():
                self._read_lags(number, past, window)
        return {name: _history(found[number]) for name, number in numbers.items()}

    def close(self) -> None:
        self._database.close()

    def _read_messages(self, found: Mapping[int, _TargetPast], window: Window) -> None:
        for number, target, state, name, records, size, settled_at in self._database.execute(_MESSAGES):
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
        """Every run's first acceptance. 1.5 µs an entry."""
        months = self._months(target)
        start = 0 if window.start is None else window.start
        end = LATEST_END + 1 if window.end is None else window.end
        run = b""
        lag: int | None = None
        ended_in_window = False
        for entry in self._in_order(target):
            if entry[:KEY_BYTES] != run:
                _settle(past.lags, lag, due=ended_in_window)
                run, lag, ended_in_window = entry[:KEY_BYTES], None, False
            message, ended_at = message_and_end(entry)
            if not start <= ended_at < end:
                continue
            ended_in_window = True
            accepted = past.accepted.get(message)
            if accepted is None and message in past.counted:
                accepted = _first_after(months.get(month_number(ended_at), []), message)
            if accepted is not None and (lag is None or accepted - ended_at < lag):
                lag = accepted - ended_at
        _settle(past.lags, lag, due=ended_in_window)

    def _months(self, target: int) -> dict[int, list[tuple[int, int]]]:
        """Numbers of the messages with each month's totals, in order, and when they were accepted."""
        months: dict[int, list[tuple[int, int]]] = {}
        for month, number, settled_at in self._database.execute(_MONTHS, {"target": target}):
            months.setdefault(month, []).append((number, settled_at))
        return {month: sorted(times) for month, times in months.items()}

    def _in_order(self, target: int) -> Iterator[bytes]:
        """All entries of a target, those of one run together, in the order of messages."""
        fresh = [entry for (packed,) in self._database.execute(_FRESH, {"target": target}) for entry in entries(packed)]
        fresh.sort()
        stretches = [number for (number,) in self._database.execute(_STRETCHES, {"target": target})]
        return heapq.merge(fresh, *map(self._stretch, stretches))

    def _stretch(self, number: int) -> Iterator[bytes]:
        for (packed,) in self._database.execute(_LEAVES, {"stretch": number}):
            for at in range(0, len(packed), ENTRY_BYTES):
                yield packed[at : at + ENTRY_BYTES]


def _settle(lags: Durations, lag: int | None, *, due: bool) -> None:
    if lag is not None:
        lags.add((lag,))
    elif due:
        lags.unknown += 1


def _first_after(messages: Sequence[tuple[int, int]], counted: int) -> int | None:
    """The first acceptance of totals that were made after jobs were counted: their number is higher."""
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

    def note(self, target: str, *, set_to: Measures, added: Measures, unknown: Sequence[str]) -> None:
        with self._database.atomic():
            self._database.execute_many(_FORGET, [{"target": target, "name": name} for name in unknown])
            self._database.execute_many(_SET, _rows(target, set_to))
            self._database.execute_many(_ADD, _rows(target, added))

    def close(self) -> None:
        self._database.close()


def _rows(target: str, values: Measures) -> list[dict[str, str | float]]:
    return [
        {"target": target, "name": name, "label": label, "value": float(value)}
        for (name, label), value in values.items()
    ]
