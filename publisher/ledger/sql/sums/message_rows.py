"""Rows of totals: what messages say of them, and what the receiver was told and has.

What an outstanding message says is kept in `message_row`, and in `balance` once it is accepted.
Everything that writes runs inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import month_sums, postings
from publisher.ledger.sql.sums.settlement import Settling
from publisher.model.entry import MonthTotals, RowFields, RowId, RowKey, RowTotal, Usage
from publisher.model.job import Epoch
from publisher.model.message import MessageRow, OutboxRecord
from publisher.model.totals import BY_JURA, month_window

_LINK: Final = """
INSERT INTO month_message (message, target, month) VALUES (:message, :target, :month)"""
_MONTHS_OF: Final = "SELECT month FROM month_message WHERE message = :message"
_ENTER: Final = """
INSERT INTO message_row (message, row_key, record_at, jobs, wall_s, cpu_s)
VALUES (:message, :row_key, :record_at, :jobs, :wall_s, :cpu_s)"""
_MOVE: Final = """
UPDATE message_row SET message = :half WHERE message = :whole AND record_at = :record_at"""
_MOVE_RUNS: Final = """
UPDATE message_entry SET message = :half
WHERE message = :whole AND run IN (
    SELECT entry.run FROM message_entry AS waiting CROSS JOIN entry CROSS JOIN message_row
    WHERE waiting.message = :whole AND entry.receiver = :receiver AND entry.run = waiting.run
        AND entry.posting = :posting
        AND message_row.message = :half AND message_row.row_key = entry.row_key)"""
_FORGET: Final = tuple(
    f"DELETE FROM {table} WHERE message = :message" for table in ("message_row", "message_entry")
)
_ACCEPT: Final = """
INSERT INTO balance (row_key, jobs, wall_s, cpu_s, first_end, last_end,
                     sent_jobs, sent_wall_s, sent_cpu_s, sent_by)
SELECT row_key, 0, 0, 0, 0, 0, jobs, wall_s, cpu_s, message
FROM message_row WHERE message = :message ORDER BY row_key
ON CONFLICT (row_key) DO UPDATE SET
    sent_jobs = excluded.sent_jobs, sent_wall_s = excluded.sent_wall_s,
    sent_cpu_s = excluded.sent_cpu_s, sent_by = excluded.sent_by"""
_FORGET_SENT: Final = """
UPDATE balance SET sent_jobs = 0, sent_wall_s = 0, sent_cpu_s = 0, sent_by = NULL
WHERE row_key IN (SELECT id FROM row_key WHERE month = :month AND receiver = :receiver)"""
# A number of `message.state`, as schema.py lists them.
_IS_ACCEPTED: Final = """
SELECT EXISTS (SELECT 1 FROM message WHERE posting = :posting AND state = 2)"""
_WAITING: Final = """
SELECT run FROM message_entry WHERE message = :message AND run > :after
ORDER BY run LIMIT :portion"""
_PORTION: Final = 5_000  # runs in memory
# `guess`: the settings of what another publisher is believed to have sent.
_ROWS: Final = """
SELECT row_key.month, row_key.digest, row_key.fields, coalesce(jobs, 0), coalesce(wall_s, 0),
       coalesce(cpu_s, 0), coalesce(first_end, 0), coalesce(balance.last_end, 0),
       coalesce(sent_jobs, 0), coalesce(sent_wall_s, 0), coalesce(sent_cpu_s, 0),
       coalesce(message.format, ''), coalesce(posting.settings = :guess, FALSE)
FROM row_key LEFT JOIN balance ON balance.row_key = row_key.id
LEFT JOIN message ON message.id = balance.sent_by
LEFT JOIN posting ON posting.id = message.posting
WHERE row_key.receiver = :receiver AND row_key.month = :month
ORDER BY row_key.digest"""
_MONTHS: Final = """
SELECT row_key.month,
       CAST(coalesce(sum(jobs), 0) AS BIGINT),
       CAST(coalesce(sum(wall_s), 0) AS BIGINT),
       CAST(coalesce(sum(cpu_s), 0) AS BIGINT),
       CAST(coalesce(sum(sent_jobs), 0) AS BIGINT),
       CAST(coalesce(sum(sent_wall_s), 0) AS BIGINT),
       CAST(coalesce(sum(sent_cpu_s), 0) AS BIGINT),
       sum(CASE WHEN posting.settings = :guess
                OR sent_by IS NOT NULL AND (sent_jobs <> jobs OR sent_wall_s <> wall_s
                                            OR sent_cpu_s <> cpu_s)
                THEN 1 ELSE 0 END)
FROM row_key LEFT JOIN balance ON balance.row_key = row_key.id
LEFT JOIN message AS sender ON sender.id = balance.sent_by
LEFT JOIN posting ON posting.id = sender.posting
WHERE row_key.receiver = :receiver GROUP BY row_key.month ORDER BY row_key.month"""
_FORMATS: Final = "SELECT month, format FROM month_sum WHERE receiver = :receiver AND format <> ''"
# The index by end is that of all rows; the first entry that is of this one ends the search.
_FIRST_END: Final = """
SELECT entry.ended_at FROM row_key CROSS JOIN entry
WHERE row_key.receiver = :receiver AND row_key.month = :month AND row_key.digest = :digest
    AND +entry.receiver = :receiver AND entry.ended_at >= :start AND entry.ended_at < :end
    AND entry.row_key = row_key.id AND entry.jobs > 0
    AND (entry.state IN (2, 3) OR entry.state = 1 AND NOT EXISTS (
        SELECT 1 FROM entry AS later
        WHERE later.receiver = :receiver AND later.run = entry.run AND later.state = 2))
ORDER BY entry.ended_at LIMIT 1"""
_LAST_END: Final = f"{_FIRST_END.removesuffix(' LIMIT 1')} DESC LIMIT 1"
# Whichever target of the receiver they are of; what waits is in few postings.
_PENDING: Final = """
SELECT row_key.month, CAST(sum(entry.jobs) AS BIGINT)
FROM entry CROSS JOIN row_key
WHERE entry.state = 2 AND entry.receiver = :receiver
    AND entry.posting IN (
        SELECT message.posting FROM message
        WHERE message.receiver = :receiver AND message.state < 2
            AND message.posting IS NOT NULL
        UNION SELECT id FROM posting WHERE receiver = :receiver AND NOT sealed)
    AND row_key.id = entry.row_key
GROUP BY row_key.month"""

_UNDER_WAY: Final = """
SELECT month_message.month, message.format
FROM message JOIN month_message ON month_message.message = message.id
WHERE message.receiver = :receiver AND message.state < 2"""
_SENT: Final = """
SELECT row_key.month, row_key.digest, row_key.fields,
       message_row.jobs, message_row.wall_s, message_row.cpu_s,
       coalesce(balance.first_end, 0), coalesce(balance.last_end, 0), message_row.row_key
FROM message_row JOIN row_key ON row_key.id = message_row.row_key
LEFT JOIN balance ON balance.row_key = message_row.row_key
WHERE message_row.message = :message ORDER BY message_row.row_key"""
_WAITING_FOR: Final = """
SELECT coming.row_key, sum(coming.jobs), min(coming.ended_at), max(coming.ended_at)
FROM message CROSS JOIN posting CROSS JOIN message_entry CROSS JOIN entry AS coming
WHERE message.id = :message AND posting.id = message.posting
    AND message_entry.message = message.id
    AND coming.receiver = posting.receiver AND coming.run = message_entry.run
    AND coming.posting = posting.id AND coming.jobs > 0
GROUP BY coming.row_key"""


def say(
    database: Database, receiver: int, message: int, rows: Collection[MessageRow]
) -> Sequence[int]:
    """Keep what a message says of rows of a receiver; return their numbers.

    Raises: KeyError for a row that no entry was made for.
    """
    numbers = [postings.row_key(database, receiver, sent.row) for sent in rows]
    sent = [
        {"message": message, "row_key": row_key, "record_at": sent.group, **sent.usage._asdict()}
        for sent, row_key in zip(rows, numbers, strict=True)
    ]
    database.execute_many(_ENTER, sent)
    return numbers


def link(database: Database, target: int, message: int, months: Collection[int]) -> None:
    """Keep which months a message has rows of."""
    links = [{"message": message, "target": target, "month": month} for month in months]
    database.execute_many(_LINK, links)


def months_of(database: Database, message: int) -> list[int]:
    """Return the months of a message of totals; none for one of another kind."""
    return [month for (month,) in database.execute(_MONTHS_OF, {"message": message})]


def accept(database: Database, message: int, posting: int | None) -> None:
    """Keep that a receiver was told what a message says, and let the entries of its rows count."""
    database.execute(_ACCEPT, {"message": message})
    if posting is not None:
        settling = Settling(database, posting)
        settling.of_message(message)
        settling.write()
    month_sums.go_on_as(database, message)
    forget(database, message)


def move(
    database: Database,
    posting: int | None,
    whole: int,
    half: int,
    records: Iterable[OutboxRecord],
) -> None:
    """Let a half of a message say what these of its records do; their runs wait for it."""
    halves = {"half": half, "whole": whole}
    database.execute_many(_MOVE, [halves | {"record_at": one.group} for one in records])
    if posting is not None:
        receiver, _ = entries.receiver_of(database, posting)
        database.execute(_MOVE_RUNS, halves | {"posting": posting, "receiver": receiver})


def forget(database: Database, message: int) -> None:
    """Forget what a message says that is settled, or was never sent."""
    for statement in _FORGET:
        database.execute(statement, {"message": message})


def refuse(database: Database, message: int, posting: int | None) -> None:
    """Forget a refused message's rows, and the entries that wait for them."""
    if posting is not None:
        receiver, _ = entries.receiver_of(database, posting)
        at = {"message": message, "portion": _PORTION}
        after = b""
        while found := database.execute(_WAITING, at | {"after": after}).fetchall():
            postings.take_out(database, posting, receiver, [run for (run,) in found])
            (after,) = found[-1]
    forget(database, message)


def waiting(database: Database, message: int) -> list[tuple[RowTotal, int]]:
    """Return the rows that a message says, as they will be, each with the jobs that wait for it."""
    asked = {"message": message}
    coming = {row_key: rest for row_key, *rest in database.execute(_WAITING_FOR, asked)}
    found = []
    for month, digest, fields, *usage, first, last, row_key in database.execute(_SENT, asked):
        jobs, from_end, to_end = coming.get(row_key, (0, last, last))
        ends = Epoch(min(first or from_end, from_end)), Epoch(max(last, to_end))
        key = RowKey(month, RowFields(digest, fields))
        found.append((RowTotal(key, Usage(), *ends, sent=Usage(*usage)), int(jobs)))
    return found


def is_accepted(database: Database, posting: int) -> bool:
    """Return whether a message of a posting was accepted."""
    return bool(database.execute(_IS_ACCEPTED, {"posting": posting}).fetchone()[0])


def forget_sent(database: Database, receiver: int, months: Iterable[int]) -> None:
    """Forget what totals said of months of which a receiver has nothing any more."""
    of = [{"receiver": receiver, "month": month} for month in months]
    database.execute_many(_FORGET_SENT, of)
    month_sums.go_on(database, receiver, [one["month"] for one in of], "")


def rows(database: Database, receiver: int | None, month: int) -> list[RowTotal]:
    """Return the rows of a month at a receiver."""
    found = database.execute(_ROWS, {"receiver": receiver, "month": month, "guess": BY_JURA})
    return [_row_total(row) for row in found]


def ends(database: Database, receiver: int | None, row: RowId) -> tuple[Epoch, Epoch]:
    """Return the first and the last end in a row once what is pending counts, 0 without jobs."""
    window = month_window(row.month)
    asked = {"receiver": receiver, **row._asdict(), "start": window.start, "end": window.end}
    first, last = (
        database.execute(question, asked).fetchone() or (0,) for question in (_FIRST_END, _LAST_END)
    )
    return Epoch(first[0]), Epoch(last[0])


def _row_total(row: Sequence[Any]) -> RowTotal:
    month, digest, fields, jobs, wall_s, cpu_s, first_end, last_end, *sent, form, is_guess = row
    key = RowKey(month, RowFields(digest, fields))
    counts = Usage(jobs, wall_s, cpu_s)
    return RowTotal(key, counts, first_end, last_end, Usage(*sent), form, bool(is_guess))


def months(database: Database, receiver: int | None) -> list[MonthTotals]:
    """Return every month of a receiver, in order."""
    asked = {"receiver": receiver}
    pending = dict(database.execute(_PENDING, asked).fetchall())
    formats = dict(database.execute(_UNDER_WAY, asked).fetchall())
    formats |= dict(database.execute(_FORMATS, asked).fetchall())
    found = [
        MonthTotals(
            month=row[0],
            counts=Usage(*row[1:4]),
            sent=Usage(*row[4:7]),
            pending=pending.get(row[0], 0),
            format=formats.pop(row[0], ""),
            unsent=row[7],
        )
        for row in database.execute(_MONTHS, asked | {"guess": BY_JURA}).fetchall()
    ]
    # Of a ledger that was lost, no more than that is known of a month.
    found += [MonthTotals(at, Usage(), Usage(), 0, form, 0) for at, form in formats.items()]
    return sorted(found)
