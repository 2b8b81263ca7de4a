"""Postings of totals: open while a round plans, page by page, then sealed with their messages.

A receiver has one open posting at most, of the target that works on it. Its entries are pending,
and no message has them yet, so they can be replaced and taken out again. One that was never sealed
is dropped when the next round begins, whichever target of the receiver has it: the one that opened
the posting may be renamed since. Everything runs inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import holds
from publisher.ledger.sql.sums.settlement import Settling
from publisher.model.entry import Entry, RowId
from publisher.model.receiver import HeldBack
from publisher.model.time import epoch

ENTRY_BYTES: Final = 180  # of an entry and its indexes, when it is written again
_PORTION: Final = 5_000  # entries in memory, of 500 bytes
_MANY: Final = 2_000  # entries: fewer are soon read, whichever way
_RECEIVER: Final = "SELECT receiver FROM target WHERE id = :target"
_OPEN: Final = """
SELECT posting.id, posting.receiver, entries, checksum
FROM target JOIN posting ON posting.receiver = target.receiver
WHERE target.id = :target AND NOT sealed"""
_ENTER: Final = """
INSERT INTO entry (receiver, run, posting, row_key, scope, local_id, ended_at, jobs, wall_s, cpu_s,
                   digest, state)
VALUES (:receiver, :run, :posting, :row_key, :scope, :local_id, :ended_at, :jobs, :wall_s, :cpu_s,
        :digest, 2)
ON CONFLICT (receiver, run, posting) DO NOTHING"""
_ENTERED: Final = f"""
SELECT {entries.CONSTANT} FROM entry
WHERE receiver = :receiver AND run = :run AND posting = :posting"""
_REPLACE: Final = """
UPDATE entry SET row_key = :row_key, scope = :scope, local_id = :local_id, ended_at = :ended_at,
    jobs = :jobs, wall_s = :wall_s, cpu_s = :cpu_s, digest = :digest
WHERE receiver = :receiver AND run = :run AND posting = :posting"""
_PENDING: Final = f"""
SELECT {entries.CONSTANT} FROM entry
WHERE posting = :posting AND receiver = :receiver AND run > :after AND state = 2
ORDER BY run LIMIT :portion"""
# Pending entries, each with the row that its run counts in until now.
_MOVING: Final = """
SELECT entry.run, entry.row_key, was.row_key
FROM entry LEFT JOIN entry AS was
    ON was.receiver = entry.receiver AND was.run = entry.run AND was.state = 1
WHERE entry.posting = :posting AND entry.receiver = :receiver AND entry.run > :after
    AND entry.state = 2
ORDER BY entry.run LIMIT :portion"""
_TAKE_OUT: Final = """
DELETE FROM entry WHERE receiver = :receiver AND run = :run AND posting = :posting"""
_CHANGE: Final = """
UPDATE posting SET entries = entries + :entries, checksum = checksum + :checksum
WHERE id = :posting"""
_AWAIT: Final = "INSERT INTO message_entry (message, run) VALUES (:message, :run)"
_SEAL: Final = "UPDATE posting SET sealed = TRUE WHERE id = :posting"
_ROW_KEY: Final = """
SELECT id FROM row_key WHERE receiver = :receiver AND month = :month AND digest = :digest"""
_DROP_POSTING: Final = """
DELETE FROM posting WHERE id = :posting AND entries = 0
    AND NOT EXISTS (SELECT 1 FROM message WHERE posting = :posting)"""
_PENDING_ROWS: Final = """
SELECT run, row_key, jobs FROM entry
WHERE posting = :posting AND receiver = :receiver AND run > :after AND state = 2
ORDER BY run LIMIT :portion"""


class OpenPosting(NamedTuple):
    """The posting to which a target's entries are added."""

    number: int
    receiver: int
    entries: int
    checksum: int


def open_posting(database: Database, target: int) -> OpenPosting | None:
    """Return the open posting at a target's receiver; None where nothing was entered yet."""
    found = database.execute(_OPEN, {"target": target}).fetchone()
    return None if found is None else OpenPosting(*found)


def enter(
    database: Database,
    numbers: entries.Numbers,
    target: int,
    new: Sequence[Entry],
    settings: str,
    made_at: int,
) -> None:
    """Add entries to the open posting, or to a new one; a later one of a run replaces it."""
    there = open_posting(database, target)
    if there is None:
        (receiver,) = database.execute(_RECEIVER, {"target": target}).fetchone()
        posting = entries.Posting(receiver, target, settings, made_at, of_records=False)
        number = entries.post(database, posting, [], sealed=False)
        there = OpenPosting(number, receiver, 0, 0)
    by_run = {entry.run: entry for entry in new}
    rows = entries.constants(database, numbers, there.receiver, by_run.values())
    at = {"receiver": there.receiver, "posting": there.number}
    named = entries.named(rows, at)
    added = database.execute_many(_ENTER, named)
    if added == len(rows):
        change(database, there.number, len(rows), entries.checksum(rows))
    else:
        _replace(database, there, rows, named, added)


def add(database: Database, receiver: int, posting: int, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add entries with these constants, of runs that it does not have, to a posting."""
    named = entries.named(rows, {"receiver": receiver, "posting": posting})
    database.execute_many(_ENTER, named)
    change(database, posting, len(rows), entries.checksum(rows))


def _replace(
    database: Database,
    there: OpenPosting,
    rows: Sequence[tuple[Any, ...]],
    named: Sequence[dict[str, Any]],
    added: int,
) -> None:
    """Let entries replace those of their runs in the open posting; so many were just added."""
    were = [tuple(database.execute(_ENTERED, one).fetchone()) for one in named]
    database.execute_many(_REPLACE, named)
    changed = [(row, was) for row, was in zip(rows, were, strict=True) if row != was]
    if added + len(changed) == len(rows):  # what is equal was added just now
        less = entries.checksum([was for _, was in changed])
        same = [row for row, was in zip(rows, were, strict=True) if row == was]
        new_rows = [row for row, _ in changed] + same
        change(database, there.number, added, entries.checksum(new_rows) - less)
    else:
        _count_again(database, there)


def change(database: Database, posting: int, count: int, checksum: int) -> None:
    """Note that a posting has so many entries more, with this checksum."""
    sums = {"posting": posting, "entries": count, "checksum": checksum}
    database.execute(_CHANGE, sums)


def _count_again(database: Database, there: OpenPosting) -> None:
    """Count and sum up all entries of the open posting; they are pending."""
    count = checksum = 0
    after = b""
    while found := _portion(database, _PENDING, there, after):
        count += len(found)
        checksum += entries.checksum(found)
        after = found[-1][0]
    change(database, there.number, count - there.entries, checksum - there.checksum)


def _portion(
    database: Database, question: str, there: OpenPosting, after: bytes, **more: object
) -> list[Any]:
    """Return some of a posting's pending entries, in the order of their runs."""
    asked = {"posting": there.number, "receiver": there.receiver, "after": after, **more}
    return database.execute(question, asked | {"portion": _PORTION}).fetchall()


def withdraw(
    database: Database,
    target: int,
    leaving: Collection[RowId],
    entering: Collection[RowId],
    held: HeldBack | None,
) -> None:
    """Take entries out of the open posting whose runs leave rows, and those that enter rows.

    `held`: keep those that leave rows as holds.
    """
    if (there := open_posting(database, target)) is None:
        return
    left = {row_key(database, there.receiver, row): row for row in leaving}
    entered = {row_key(database, there.receiver, row) for row in entering}
    after = b""
    while found := _portion(database, _MOVING, there, after):
        after = found[-1][0]
        if held is not None:
            waits = [
                (run, held.jobs.get(run, ""), left[was].month, held.reasons[left[was]])
                for run, _, was in found
                if was in left
            ]
            at = there.number, there.receiver, target
            holds.hold_entered(database, *at, waits, epoch(held.at))
        runs = [run for run, row, was in found if was in left or row in entered]
        take_out(database, there.number, there.receiver, runs)


def take_out(database: Database, posting: int, receiver: int, runs: Iterable[bytes]) -> None:
    """Delete pending entries of these runs from a posting, as if they never were in it."""
    at = [{"receiver": receiver, "run": run, "posting": posting} for run in runs]
    if at:
        rows = [database.execute(_ENTERED, one).fetchone() for one in at]
        database.execute_many(_TAKE_OUT, at)
        change(database, posting, -len(rows), -entries.checksum(rows))


def row_key(database: Database, receiver: int, row: RowId) -> int:
    """Return the number of a row of a receiver. Raises: KeyError for one that it never had."""
    asked = {"receiver": receiver, "month": row.month, "digest": row.digest}
    if (found := database.execute(_ROW_KEY, asked).fetchone()) is None:
        raise KeyError(row)
    return int(found[0])


def discard(database: Database, target: int) -> None:
    """Drop the open posting at a target's receiver with its entries, if there is one."""
    if (there := open_posting(database, target)) is not None:
        drop(database, there.number)


def drop(database: Database, posting: int) -> None:
    """Forget what waits of a posting, and the posting itself if nothing of it counted ever."""
    receiver, _ = entries.receiver_of(database, posting)
    there = OpenPosting(posting, receiver, 0, 0)
    while found := _portion(database, _PENDING, there, b""):
        change(database, posting, -len(found), -entries.checksum(found))
        at = {"receiver": receiver, "posting": posting}
        database.execute_many(_TAKE_OUT, [at | {"run": run} for run, *_ in found])
    forget_empty(database, posting)


def forget_empty(database: Database, posting: int) -> None:
    """Forget a posting that has neither entries nor messages."""
    database.execute(_DROP_POSTING, {"posting": posting})


def seal(database: Database, there: OpenPosting, sent: Mapping[int, int]) -> None:
    """Close a posting whose messages are written; `sent`: by row, the message that says it.

    A run that counts nothing any more need not be in a message: its row may be one that the
    receiver keeps. Its entry replaces the one before at once. Raises: AssertionError for a run that
    is to count, but that no message has.
    """
    settling = Settling(database, there.number)
    after = b""
    while found := _portion(database, _PENDING_ROWS, there, after):
        after = found[-1][0]
        left_out = [one for one in found if one[1] not in sent]
        if any(jobs for _, _, jobs in left_out):
            raise AssertionError(f"entries of posting {there.number} are in no message")
        waiting = sorted((sent[row], run) for run, row, _ in found if row in sent)
        named = [{"message": message, "run": run} for message, run in waiting]
        database.execute_many(_AWAIT, named)
        settling.count(settling.of_run(run) for run, *_ in left_out)
    settling.write()
    if there.entries >= _MANY:
        database.learn_sizes(("entry", "message_entry"))
    database.execute(_SEAL, {"posting": there.number})
