"""The past of targets: messages day by day, how long jobs waited for theirs, and metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from publisher.ledger.books import (
    DailyDelivery,
    DeliveredPart,
    Measures,
    SentMessages,
    StoredMetric,
    TargetHistory,
)
from publisher.ledger.sql.database import Database
from publisher.model.entry import CLOSING, DeliveredRun
from publisher.model.job import JOB_OF_RUN, Epoch, RunKey, has_local_id
from publisher.model.time import Durations, Window
from publisher.model.totals import month_name, month_number

_DAY_S: Final = 86_400
_SENT, _REJECTED = 2, 3  # numbers of `message.state`, as schema.py lists them
_RUNS_AT_ONCE: Final = 5_000  # some 1 MB

_TARGETS = "SELECT name, id FROM target"
# All of them: an index on the time would cost every message something, for ever.
_MESSAGES = """
SELECT id, target, state, format, records, bytes, settled_at FROM message
WHERE id > 0 ORDER BY id"""
# A posting of totals has messages by month; one of single records has one, of no month.
_CARRIERS = """
SELECT message.posting, month_message.month, message.id, message.settled_at, target.name,
       message.message_id, message.format
FROM message JOIN target ON target.id = message.target
    LEFT JOIN month_message ON month_message.message = message.id
WHERE message.id > 0 AND message.posting IS NOT NULL AND message.state = 2"""
_OF_MONTH = """
SELECT message.id, message.digest
FROM month_message JOIN message ON message.id = month_message.message
    JOIN target ON target.id = month_message.target AND target.receiver = message.receiver
WHERE target.name = :target AND month = :month AND message.state = 2"""
_POSTINGS_OF_WINDOW = """
SELECT DISTINCT entry.posting FROM target JOIN entry ON +entry.receiver = target.receiver
WHERE target.name = :target AND ended_at >= :start AND ended_at < :end"""
_OF_POSTINGS = """
SELECT message.id, posting, digest
FROM message JOIN target ON target.id = message.target AND target.receiver = message.receiver
WHERE message.id > 0 AND target.name = :target AND state = 2
    AND posting IS NOT NULL AND message.id NOT IN (SELECT message FROM month_message)"""
_ACCEPTED = """
SELECT id, settled_at, records FROM message WHERE id > 0 AND state = 2 ORDER BY id"""
# In the order of their keys, so that all entries of a run are together.
_ENTRIES = """
SELECT entry.run, entry.posting, row_key.month, entry.ended_at
FROM entry JOIN row_key ON row_key.id = entry.row_key
WHERE entry.receiver IN (SELECT receiver FROM posting WHERE id > 0 AND target = :target)
    AND entry.jobs > 0 AND entry.ended_at >= :start
    AND entry.ended_at < :end ORDER BY entry.run"""
_POSTINGS_OF = "SELECT id FROM posting WHERE id > 0 AND target = :target"
_ACCEPTED_ENTRIES = """
SELECT entry.run, entry.posting, row_key.month, entry.ended_at
FROM entry JOIN row_key ON row_key.id = entry.row_key
WHERE entry.receiver > 0 AND entry.jobs > 0 AND entry.posting IN
    (SELECT posting FROM message WHERE id > 0 AND settled_at >= :start AND settled_at < :end)"""
_SOURCES = "SELECT id, source FROM scope WHERE id > 0"
_ENDED_SINCE = """
SELECT scope, run, local_id, ended_at FROM entry WHERE ended_at >= :first AND jobs > 0"""
_At = tuple[int, int | None]  # a posting, and the month of totals


@dataclass(slots=True)
class _TargetPast:
    """What is found of one target."""

    days: dict[tuple[int, str], Counter[str]] = field(default_factory=dict)
    rejected: int = 0
    lags: Durations = field(default_factory=Durations)


class SqlHistory:
    """`History` of a publishing database."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
            window = {"target": target, "start": month.start, "end": month.end}
            postings = {one for (one,) in self._database.execute(_POSTINGS_OF_WINDOW, window)}
            for number, posting, digest in self._database.execute(_OF_POSTINGS, {"target": target}):
                if posting in postings:
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
        with self._database.snapshot():
            carriers = self._carriers()
            parts: defaultdict[_At, list[tuple[RunKey, Epoch]]] = defaultdict(list)
            waiting = 0
            window = {"start": accepted.start, "end": accepted.end}
            for run, posting, month, end in self._database.stream(_ACCEPTED_ENTRIES, window):
                at = (posting, month) if (posting, month) in carriers else (posting, None)
                if at in carriers and carriers[at][1] in accepted:
                    parts[at].append((run, end))
                    waiting += 1
                if waiting >= _RUNS_AT_ONCE:
                    yield from (_part(carriers[at], runs) for at, runs in parts.items())
                    parts.clear()
                    waiting = 0
            yield from (_part(carriers[at], runs) for at, runs in parts.items())

    def _carriers(self) -> Mapping[_At, tuple[int, Epoch, str, str, str]]:
        """Return the first accepted message of each posting and month.

        Its number, when it was accepted, its target, its id, and its format.
        """
        found: dict[_At, tuple[int, Epoch, str, str, str]] = {}
        for posting, month, number, at, *named in self._database.execute(_CARRIERS):
            before = found.get((posting, month))
            if before is None or (at, number) < (before[1], before[0]):
                found[posting, month] = (number, at, *named)
        return found

    def delivered(self, first: Epoch) -> Generator[Sequence[DeliveredRun], None, None]:
        part: list[DeliveredRun] = []
        with self._database.snapshot():
            named = dict(self._database.execute(_SOURCES).fetchall())
            for scope, run, local_id, end in self._database.stream(_ENDED_SINCE, {"first": first}):
                key = RunKey(bytes(run))
                if key[JOB_OF_RUN] == CLOSING:
                    continue
                number = local_id if has_local_id(key) else ""
                part.append(DeliveredRun(named[scope], key, number, end))
                if len(part) >= _RUNS_AT_ONCE:
                    yield part
                    part = []
        if part:
            yield part

    def close(self) -> None:
        self._database.close()

    def _read_messages(self, found: Mapping[int, _TargetPast], window: Window) -> None:
        for row in self._database.stream(_MESSAGES):
            _, target, state, name, records, size, settled_at = row
            past = found.get(target)
            if past is None or settled_at is None:
                continue
            if state == _SENT and settled_at in window:
                day = past.days.setdefault((settled_at // _DAY_S, name), Counter())
                day.update(messages=1, records=records, bytes=size)
            elif state == _REJECTED and settled_at in window:
                past.rejected += 1

    def _read_lags(self, target: int, past: _TargetPast, window: Window) -> None:
        """Every run's first acceptance."""
        postings = {one for (one,) in self._database.execute(_POSTINGS_OF, {"target": target})}
        accepted = {at: carrier[1] for at, carrier in self._carriers().items()}
        bounds = {"start": window.start, "end": window.end, "target": target}
        least: dict[int | None, int] = Counter()
        last, lag = None, None
        for run, posting, month, end in self._database.stream(_ENTRIES, bounds):  # hot path
            if posting not in postings or bytes(run)[JOB_OF_RUN] == CLOSING:
                continue
            at = accepted.get((posting, month)) or accepted.get((posting, None))
            own = None if at is None else at - end
            if run != last:
                if last is not None:
                    least[lag] += 1
                last, lag = run, own
            elif own is not None:
                lag = own if lag is None else min(lag, own)
        if last is not None:
            least[lag] += 1
        for seconds, times in least.items():
            if seconds is None:
                past.lags.unknown += times
            else:
                past.lags.add(seconds, times)


def _part(carrier: tuple[Any, ...], runs: Sequence[tuple[RunKey, Epoch]]) -> DeliveredPart:
    _, accepted_at, target, message_id, form = carrier
    keys, ends = zip(*runs, strict=True)
    return DeliveredPart(target, message_id, form, accepted_at, keys, ends)


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
