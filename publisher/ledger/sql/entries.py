"""Entries, and the balances of rows that they add up to.

An entry is *pending* until the message that carries its record is accepted; it *counts* until a
later one of its run does, and is *history* then. A single record that went out under another
record key stays at the receiver and goes on counting: its entry is *left*. `settle` alone writes
balances. Everything runs inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from publisher.ledger.sql.database import Database
from publisher.model.entry import Entry, ReceiverName, RecordKey, RowKey, RunKey
from publisher.model.totals import column, month_window

HISTORY, COUNTS, PENDING, LEFT = range(4)  # `entry.state`, as schema.py lists them
_REMEMBERED: Final = 20_000  # row keys, of 200 bytes
_ENTER_RECEIVER: Final = """
INSERT INTO receiver (place, keeps_first) VALUES (:place, :keeps_first)
ON CONFLICT (place) DO UPDATE SET keeps_first = excluded.keeps_first"""
_RECEIVER: Final = "SELECT id FROM receiver WHERE place = :place"
_RECEIVER_OF: Final = """
SELECT receiver.id, keeps_first FROM posting JOIN receiver ON receiver.id = posting.receiver
WHERE posting.id = :posting"""
_ENTER_SCOPE: Final = """
INSERT INTO scope (site, localid_prefix) VALUES (:site, :prefix)
ON CONFLICT (site, localid_prefix) DO NOTHING"""
_SCOPE: Final = "SELECT id FROM scope WHERE site = :site AND localid_prefix = :prefix"
_ENTER_ROW_KEY: Final = """
INSERT INTO row_key (receiver, month, digest, fields)
VALUES (:receiver, :month, :digest, :fields)
ON CONFLICT (receiver, month, digest) DO NOTHING"""
_ROW_KEY: Final = """
SELECT id FROM row_key WHERE receiver = :receiver AND month = :month AND digest = :digest"""
_MONTH: Final = "SELECT month FROM row_key WHERE id = :row_key"
_POST: Final = """
INSERT INTO posting (receiver, target, settings, made_at, entries, checksum)
VALUES (:receiver, :target, :settings, :made_at, :entries, :checksum)"""
_POST_PART: Final = """
INSERT INTO posting (receiver, target, settings, made_at, entries, checksum)
SELECT receiver, target, settings, made_at, 0, 0 FROM posting WHERE id = :posting"""
_RECOUNT: Final = "UPDATE posting SET entries = :entries, checksum = :checksum WHERE id = :posting"
# What never changes of an entry.
CONSTANT: Final = "run, row_key, scope, local_id, ended_at, jobs, wall_s, cpu_s, digest"
_CONSTANTS: Final = f"SELECT {CONSTANT} FROM entry WHERE posting = :posting AND state = 2"
_ENTER: Final = """
INSERT INTO entry (receiver, run, posting, row_key, scope, local_id, ended_at, jobs, wall_s, cpu_s,
                   digest, state)
VALUES (:receiver, :run, :posting, :row_key, :scope, :local_id, :ended_at, :jobs, :wall_s, :cpu_s,
        :digest, 2)"""
# Entries in force of the runs of a posting: what they count for, their record key, and the new one.
_REPLACED: Final = """
SELECT entry.run, entry.posting, entry.row_key, entry.wall_s, entry.cpu_s,
       was.site, was.localid_prefix, entry.local_id, entry.ended_at,
       scope.site, scope.localid_prefix, pending.local_id, pending.ended_at
FROM entry AS pending
JOIN entry ON entry.receiver = pending.receiver AND entry.run = pending.run
    AND entry.posting <> pending.posting AND entry.state = 1
JOIN scope AS was ON was.id = entry.scope
JOIN scope ON scope.id = pending.scope
WHERE pending.posting = :posting AND pending.state = 2"""
_COMING: Final = """
SELECT run, row_key, wall_s, cpu_s, ended_at FROM entry WHERE posting = :posting AND state = 2"""
_SET_STATE: Final = """
UPDATE entry SET state = :state
WHERE receiver = :receiver AND run = :run AND posting = :posting"""
_COUNT: Final = "UPDATE entry SET state = 1 WHERE posting = :posting AND state = 2"
_ADD: Final = """
INSERT INTO balance (row_key, jobs, wall_s, cpu_s, first_end, last_end)
VALUES (:row_key, :jobs, :wall_s, :cpu_s, :first_end, :last_end)
ON CONFLICT (row_key) DO UPDATE SET
    jobs = balance.jobs + excluded.jobs, wall_s = balance.wall_s + excluded.wall_s,
    cpu_s = balance.cpu_s + excluded.cpu_s,
    first_end = CASE WHEN balance.jobs > 0 AND balance.first_end < excluded.first_end
                     THEN balance.first_end ELSE excluded.first_end END,
    last_end = CASE WHEN balance.jobs > 0 AND balance.last_end > excluded.last_end
                    THEN balance.last_end ELSE excluded.last_end END"""
_LESS: Final = """
UPDATE balance SET jobs = jobs - 1, wall_s = wall_s - :wall_s, cpu_s = cpu_s - :cpu_s
WHERE row_key = :row_key"""
# The index by end is that of a month; a row by itself has none.
_ENDS: Final = """
UPDATE balance SET (first_end, last_end) = (
    SELECT coalesce(min(ended_at), 0), coalesce(max(ended_at), 0) FROM entry
    WHERE receiver = :receiver AND ended_at >= :start AND ended_at < :end
        AND row_key = :row_key AND state IN (1, 3))
WHERE row_key = :row_key"""
_DROP: Final = "DELETE FROM entry WHERE posting = :posting AND state = 2"
_DROP_POSTING: Final = "DELETE FROM posting WHERE id = :posting"
_MOVE: Final = """
UPDATE entry SET posting = :part
WHERE receiver = (SELECT receiver FROM posting WHERE id = :posting)
    AND run = :run AND posting = :posting"""


_NAMES: Final = CONSTANT.split(", ")


class Posting(NamedTuple):
    """What one planning run enters for a target at a receiver: of single records, a message."""

    receiver: int
    target: int
    settings: str  # digest of the configuration and version that it was made under
    made_at: int


def receiver(database: Database, name: ReceiverName) -> int:
    """Return the number of a receiver, which is entered if it is new."""
    named = {"place": name.place, "keeps_first": name.keeps_first}
    database.execute(_ENTER_RECEIVER, named)
    return _number(database, _RECEIVER, {"place": name.place})


class Numbers:
    """Numbers of row keys and scopes that were asked for before; to be forgotten with a failure.

    They are kept in memory (hot path). What a transaction entered is gone when it is rolled back.
    """

    def __init__(self) -> None:
        self._scopes: dict[tuple[str, str], int] = {}
        self._rows: dict[tuple[int, int, bytes], int] = {}

    def forget(self) -> None:
        self._scopes.clear()
        self._rows.clear()

    def scope(self, database: Database, record: RecordKey) -> int:
        """Return the number of a record key's site and prefix."""
        at = record.site, record.localid_prefix
        if at not in self._scopes:
            named = {"site": record.site, "prefix": record.localid_prefix}
            database.execute(_ENTER_SCOPE, named)
            self._scopes[at] = _number(database, _SCOPE, named)
        return self._scopes[at]

    def row(self, database: Database, receiver: int, row: RowKey) -> int:
        """Return the number of a row key of a receiver."""
        at = receiver, row.month, row.fields.digest
        if at not in self._rows:
            if len(self._rows) >= _REMEMBERED:
                self._rows.clear()
            key = {"receiver": receiver, "month": row.month, "digest": row.fields.digest}
            database.execute(_ENTER_ROW_KEY, key | {"fields": row.fields.text})
            self._rows[at] = _number(database, _ROW_KEY, key)
        return self._rows[at]


def prepare(
    database: Database,
    numbers: Numbers,
    posting: Posting,
    entries: Iterable[Entry],
) -> int:
    """Enter a posting with its entries, which are pending; return its number."""
    receiver = posting.receiver
    rows = []
    for run, record, row, wall_s, cpu_s, digest in entries:
        row_key, scope = numbers.row(database, receiver, row), numbers.scope(database, record)
        keys = run, row_key, scope, record.local_id, record.ended_at
        rows.append((*keys, 1, wall_s, cpu_s, digest))
    sums = {"entries": len(rows), "checksum": checksum(rows)}
    number = database.insert_returning_id(_POST, {**posting._asdict(), **sums})
    at = {"receiver": receiver, "posting": number}
    database.execute_many(_ENTER, [at | dict(zip(_NAMES, row, strict=True)) for row in rows])
    return number


def checksum(entries: Iterable[Sequence[Any]]) -> int:
    """Return the checksum of entries, of which each has the columns `CONSTANT`, in any order."""
    return sum(crc32(repr(tuple(entry)).encode()) for entry in entries)


def settle(database: Database, posting: int) -> None:
    """Let a posting's entries count, its message being accepted, and bring balances up to date.

    Where the receiver keeps the first record of an id, a later entry of the run is history at once.
    """
    receiver, keeps_first = database.execute(_RECEIVER_OF, {"posting": posting}).fetchone()
    replaced = database.execute(_REPLACED, {"posting": posting}).fetchall()
    coming = database.execute(_COMING, {"posting": posting}).fetchall()
    if keeps_first:
        later = {run for run, *_ in replaced}
        _set_state(database, HISTORY, receiver, [(run, posting) for run in later])
        coming, replaced = [one for one in coming if one[0] not in later], []
    left = [one for one in replaced if not _is_one_record(one[5:9], one[9:13])]
    gone = [one for one in replaced if _is_one_record(one[5:9], one[9:13])]
    _set_state(database, LEFT, receiver, [one[:2] for one in left])
    _set_state(database, HISTORY, receiver, [one[:2] for one in gone])
    database.execute(_COUNT, {"posting": posting})
    _add(database, coming)
    _take_away(database, receiver, gone)


def drop(database: Database, posting: int) -> None:
    """Forget a posting whose records were certainly not stored, or were refused."""
    database.execute(_DROP, {"posting": posting})
    database.execute(_DROP_POSTING, {"posting": posting})


def divide(database: Database, posting: int, parts: Sequence[Collection[RunKey]]) -> Sequence[int]:
    """Put postings in the place of one, with these runs of it; return their numbers."""
    numbers = []
    for runs in parts:
        numbers.append(database.insert_returning_id(_POST_PART, {"posting": posting}))
        moved = [{"posting": posting, "part": numbers[-1], "run": run} for run in runs]
        database.execute_many(_MOVE, moved)
        here = database.execute(_CONSTANTS, {"posting": numbers[-1]}).fetchall()
        sums = {"entries": len(here), "checksum": checksum(here)}
        database.execute(_RECOUNT, sums | {"posting": numbers[-1]})
    database.execute(_DROP_POSTING, {"posting": posting})
    return numbers


def _is_one_record(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two record keys are one to a receiver, which compares texts without case."""
    return [*map(column, one[:3]), one[3]] == [*map(column, other[:3]), other[3]]


def _set_state(
    database: Database, state: int, receiver: int, entries: Iterable[Sequence[Any]]
) -> None:
    rows = [
        {"state": state, "receiver": receiver, "run": run, "posting": posting}
        for run, posting in entries
    ]
    if rows:
        database.execute_many(_SET_STATE, rows)


def _add(database: Database, entries: Iterable[Sequence[Any]]) -> None:
    """Add entries (run, row key, wall, CPU, end) to the balances of their rows."""
    sums: dict[int, list[int]] = {}
    for _, row_key, wall_s, cpu_s, ended_at in entries:
        known = sums.setdefault(row_key, [0, 0, 0, ended_at, ended_at])
        known[0] += 1
        known[1] += wall_s
        known[2] += cpu_s
        known[3] = min(known[3], ended_at)
        known[4] = max(known[4], ended_at)
    names = "jobs", "wall_s", "cpu_s", "first_end", "last_end"
    rows = [{"row_key": at, **dict(zip(names, sums[at], strict=True))} for at in sorted(sums)]
    database.execute_many(_ADD, rows)


def _take_away(database: Database, receiver: int, entries: Iterable[Sequence[Any]]) -> None:
    """Take entries (run, posting, row key, wall, CPU, ...) out of the balances of their rows."""
    rows = [
        {"receiver": receiver, "row_key": row_key, "wall_s": wall_s, "cpu_s": cpu_s}
        for _, _, row_key, wall_s, cpu_s, *_ in entries
    ]
    if not rows:
        return
    database.execute_many(_LESS, rows)
    for row_key in sorted({row["row_key"] for row in rows}):
        (month,) = database.execute(_MONTH, {"row_key": row_key}).fetchone()
        window = month_window(month)
        ends = {"receiver": receiver, "row_key": row_key, "start": window.start, "end": window.end}
        database.execute(_ENDS, ends)


def _number(database: Database, question: str, values: Mapping[str, object]) -> int:
    return int(database.execute(question, values).fetchone()[0])
