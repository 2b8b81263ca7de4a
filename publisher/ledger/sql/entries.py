"""Entries, and the balances of rows that they add up to.

An entry is *pending* until the message that carries its record is accepted; it *counts* until a
later one of its run does, and is *history* then. A single record that went out under another
record key stays at the receiver and goes on counting: its entry is *left*, and *history* once that
is deleted there. One whose month an administrator had deleted there is *deleted*. `settle` alone
writes balances. Everything runs inside the caller's transaction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import index, itemgetter
from typing import Any, Final, NamedTuple
from zlib import crc32

from publisher.ledger.sql.database import Database, Parameters
from publisher.model.entry import (
    JOB_OF_RUN,
    Entry,
    Recorded,
    RecordKey,
    RowId,
    RowKey,
    RunKey,
    Usage,
)
from publisher.model.job import Epoch
from publisher.model.totals import host_of, month_window

HISTORY, COUNTS, PENDING, LEFT, DELETED = range(5)  # `entry.state`, as schema.py lists them
_REMEMBERED: Final = 20_000  # row keys, of 200 bytes
_RECEIVER_OF: Final = """
SELECT receiver.id, keeps_first FROM posting JOIN receiver ON receiver.id = posting.receiver
WHERE posting.id = :posting"""
_ENTER_SCOPE: Final = """
INSERT INTO scope (site, localid_prefix, source) VALUES (:site, :prefix, :source)
ON CONFLICT (site, localid_prefix, source) DO NOTHING"""
_SCOPE: Final = """
SELECT id FROM scope WHERE site = :site AND localid_prefix = :prefix AND source = :source"""
_SCOPES_OF: Final = "SELECT id, site, localid_prefix FROM scope WHERE id > 0 AND source = :source"
_RENAME_SCOPE: Final = "UPDATE scope SET source = :name WHERE id = :scope"
_ENTER_ROW_KEY: Final = """
INSERT INTO row_key (receiver, month, digest, fields, checksum)
VALUES (:receiver, :month, :digest, :fields, :checksum)
ON CONFLICT (receiver, month, digest) DO NOTHING"""
_ROW_NUMBERS: Final = """
SELECT id, digest FROM row_key
WHERE receiver = :receiver AND month = :month AND digest IN ({asked})"""
_ROW_KEYS: Final = "SELECT id, month, digest, fields FROM row_key WHERE id IN ({asked})"
_POST: Final = """
INSERT INTO posting (receiver, target, settings, made_at, entries, checksum, sealed, keyed)
VALUES (:receiver, :target, :settings, :made_at, :entries, :checksum, :sealed,
        :of_records AND NOT (SELECT keeps_first FROM receiver WHERE id = :receiver))"""
_POST_PART: Final = """
INSERT INTO posting (receiver, target, settings, made_at, entries, checksum, sealed, keyed)
SELECT receiver, target, settings, made_at, 0, 0, TRUE, keyed FROM posting WHERE id = :posting"""
_RECOUNT: Final = "UPDATE posting SET entries = :entries, checksum = :checksum WHERE id = :posting"
# The prefix in the digest of an entry (model/receiver.py).
PREFIX: Final = "CASE WHEN posting.keyed THEN scope.localid_prefix ELSE '' END"
# What never changes of an entry.
CONSTANT: Final = "run, row_key, scope, local_id, ended_at, jobs, wall_s, cpu_s, digest"
_CONSTANTS: Final = f"SELECT {CONSTANT} FROM entry WHERE posting = :posting AND state = 2"
# All entries are looked through.
_OF_SCOPE: Final = f"SELECT posting, {CONSTANT} FROM entry WHERE receiver > 0 AND scope = :scope"
_CHANGE_SCOPE: Final = "UPDATE entry SET scope = :there WHERE receiver > 0 AND scope = :scope"
_CORRECT: Final = "UPDATE posting SET checksum = checksum + :more WHERE id = :posting"
_ENTER: Final = """
INSERT INTO entry (receiver, run, posting, row_key, scope, local_id, ended_at, jobs, wall_s, cpu_s,
                   digest, state)
VALUES (:receiver, :run, :posting, :row_key, :scope, :local_id, :ended_at, :jobs, :wall_s, :cpu_s,
        :digest, 2)"""
_SET_STATE: Final = """
UPDATE entry SET state = :state
WHERE receiver = :receiver AND run = :run AND posting = :posting"""
_COUNT_PENDING: Final = """
UPDATE entry SET state = 1 WHERE posting = :posting AND receiver = :receiver AND state = 2"""
_DROP_POSTING: Final = "DELETE FROM posting WHERE id = :posting"
_MOVE: Final = """
UPDATE entry SET posting = :part
WHERE receiver = (SELECT receiver FROM posting WHERE id = :posting)
    AND run = :run AND posting = :posting"""


# `CROSS JOIN` keeps SQLite to the order of the tables: entries are found by their primary key.
_RECORDED: Final = """
WITH asked (first_run, last_run) AS (VALUES {asked})
SELECT entry.run, scope.site, scope.localid_prefix, entry.local_id, entry.ended_at,
       row_key.month, row_key.digest, entry.jobs, entry.wall_s, entry.cpu_s,
       entry.digest, posting.settings, entry.state = 2, entry.posting,
       coalesce((SELECT min(accepted.posting) FROM entry AS accepted
                 WHERE accepted.receiver = entry.receiver AND accepted.run = entry.run
                     AND accepted.state NOT IN (2, 4)), 0), scope.source
FROM asked CROSS JOIN entry CROSS JOIN scope CROSS JOIN row_key CROSS JOIN posting
WHERE entry.receiver = :receiver
    AND entry.run >= asked.first_run AND entry.run <= asked.last_run AND entry.state IN (1, 2)
    AND scope.id = entry.scope AND row_key.id = entry.row_key AND posting.id = entry.posting"""
_OWNERS: Final = """
WITH asked (ended_at) AS (VALUES {asked})
SELECT entry.run, scope.site, scope.localid_prefix, entry.local_id, entry.ended_at
FROM asked CROSS JOIN entry CROSS JOIN scope
WHERE +entry.receiver = :receiver AND entry.ended_at = asked.ended_at AND entry.state IN (1, 2, 3)
    AND scope.id = entry.scope"""
# All entries of a receiver are looked through.
_COUNTED_FROM: Final = """
SELECT row_key.month, row_key.fields, CAST(sum(entry.jobs) AS BIGINT)
FROM entry CROSS JOIN scope CROSS JOIN row_key
WHERE entry.receiver = :receiver AND entry.state = 1 AND entry.jobs > 0
    AND scope.id = entry.scope AND scope.source = :source AND row_key.id = entry.row_key
GROUP BY row_key.id, row_key.month, row_key.fields"""
_RECORD_FORMAT: Final = """
SELECT message.format FROM entry CROSS JOIN message
WHERE +entry.receiver = :receiver AND entry.ended_at >= :start AND entry.ended_at < :end
    AND message.posting = entry.posting
ORDER BY entry.ended_at LIMIT 1"""
_ASKED: Final = 400  # at once: an SQLite without more takes 999 parameters
_LAST_OF_JOB: Final = b"\xff" * 4
_NAMES: Final = CONSTANT.split(", ")


def recorded(
    database: Database, receiver: int | None, runs: Collection[RunKey]
) -> dict[RunKey, Recorded]:
    """Return what a receiver has, or is being sent, of all runs of these jobs.

    Of a run with several entries it is the pending one, the latest of those that are.
    """
    jobs = sorted({run[JOB_OF_RUN] for run in runs})
    rows: list[Any] = []
    for start in range(0, len(jobs), _ASKED):
        rows += _entries_of(database, receiver, jobs[start : start + _ASKED])
    return {row[0]: _recorded(row) for row in sorted(rows, key=itemgetter(12, 13))}


def _entries_of(database: Database, receiver: int | None, jobs: Sequence[bytes]) -> list[Any]:
    bounds: dict[str, object] = {"receiver": receiver}
    for number, job in enumerate(jobs):
        bounds[f"first{number}"], bounds[f"last{number}"] = job, job + _LAST_OF_JOB
    return database.execute(_question(len(jobs)), bounds).fetchall()


@lru_cache(maxsize=_ASKED)
def _question(jobs: int) -> str:
    return _RECORDED.format(asked=", ".join(f"(:first{one}, :last{one})" for one in range(jobs)))


def owners(
    database: Database, receiver: int | None, ends: Collection[int]
) -> list[tuple[RunKey, RecordKey]]:
    """Return the records at a receiver that ended in these seconds."""
    found = []
    seconds = sorted(ends)
    for start in range(0, len(seconds), _ASKED):
        some = seconds[start : start + _ASKED]
        asked = {f"end{number}": end for number, end in enumerate(some)}
        question = _OWNERS.format(asked=", ".join(f"(:{name})" for name in asked))
        for run, *record in database.execute(question, asked | {"receiver": receiver}).fetchall():
            found.append((run, _record_key(*record)))
    return found


def record_format(database: Database, receiver: int | None, month: int) -> str:
    """Return the format of single records that a receiver has of a month; '' without any."""
    window = month_window(month)
    asked = {"receiver": receiver, "start": window.start, "end": window.end}
    (found,) = database.execute(_RECORD_FORMAT, asked).fetchone() or ("",)
    return str(found)


def counted_from(
    database: Database, receiver: int | None, source: str
) -> dict[tuple[int, str], int]:
    """Return how many runs count that a database told of, by month and submit host."""
    found: Counter[tuple[int, str]] = Counter()
    asked = {"receiver": receiver, "source": source}
    for month, fields, jobs in database.execute(_COUNTED_FROM, asked).fetchall():
        found[month, host_of(fields)] += jobs
    return dict(found)


def _recorded(row: Sequence[Any]) -> Recorded:
    run, site, prefix, local_id, ended_at, month, digest, jobs, wall_s, cpu_s, *rest = row
    values, settings, pending, _posting, first, source = rest
    record = _record_key(site, prefix, local_id, ended_at)
    usage = Usage(jobs, wall_s, cpu_s)
    made = settings, bool(pending), first, source
    return Recorded(run, record, RowId(month, digest), usage, values, *made)


def _record_key(site: str, prefix: str, local_id: str, ended_at: Epoch) -> RecordKey:
    """Raises: TypeError for what is no text, or no time, any more."""
    "".join((site, prefix, local_id))
    return RecordKey(site, prefix, local_id, Epoch(index(ended_at)))


class Posting(NamedTuple):
    """What one planning run enters for a target at a receiver: of single records, a message."""

    receiver: int
    target: int
    settings: str  # digest of the configuration and version that it was made under
    made_at: int
    of_records: bool  # single records; otherwise totals


class Numbers:
    """Numbers of row keys and scopes that were asked for before; to be forgotten with a failure.

    They are kept in memory (hot path). What a transaction entered is gone when it is rolled back.
    """

    def __init__(self) -> None:
        self._scopes: dict[tuple[str, str, str], int] = {}
        self._rows: dict[tuple[int, int, bytes], int] = {}

    def forget(self) -> None:
        self._scopes.clear()
        self._rows.clear()

    def scope(self, database: Database, record: RecordKey, source: str) -> int:
        """Return the number of a record key's site and prefix, and of what told of its run."""
        at = record.site, record.localid_prefix, source
        if at not in self._scopes:
            named = {"site": record.site, "prefix": record.localid_prefix, "source": source}
            database.execute(_ENTER_SCOPE, named)
            self._scopes[at] = _number(database, _SCOPE, named)
        return self._scopes[at]

    def row(self, database: Database, receiver: int, row: RowKey) -> int:
        """Return the number of a row key of a receiver."""
        at = receiver, row.month, row.fields.digest
        if at not in self._rows:
            self.enter(database, receiver, [row])
        return self._rows[at]

    def enter(self, database: Database, receiver: int, rows: Iterable[RowKey]) -> None:
        """Enter row keys of a receiver that are new, and learn the numbers of all."""
        wanted = {(receiver, row.month, row.fields.digest): row for row in rows}
        new = {at: row for at, row in wanted.items() if at not in self._rows}
        if not new:
            return
        if len(self._rows) + len(new) > _REMEMBERED:
            self._rows.clear()
            new = wanted
        database.execute_many(_ENTER_ROW_KEY, [_named(receiver, row) for row in new.values()])
        by_month: defaultdict[int, list[bytes]] = defaultdict(list)
        for _, month, digest in new:
            by_month[month].append(digest)
        for month, digests in by_month.items():
            for start in range(0, len(digests), _ASKED):
                self._learn(database, receiver, month, digests[start : start + _ASKED])

    def _learn(
        self, database: Database, receiver: int, month: int, digests: Sequence[bytes]
    ) -> None:
        asked = {f"digest{at}": digest for at, digest in enumerate(digests)}
        question = _ROW_NUMBERS.format(asked=", ".join(f":{name}" for name in asked))
        found = database.execute(question, {"receiver": receiver, "month": month, **asked})
        for number, digest in found.fetchall():
            self._rows[receiver, month, bytes(digest)] = number


def _named(receiver: int, row: RowKey) -> dict[str, object]:
    """Return the columns of a row key."""
    month, (digest, fields) = row
    key = {"receiver": receiver, "month": month, "digest": digest, "fields": fields}
    return key | {"checksum": row_checksum(month, digest, fields)}


def row_keys(database: Database, numbers: Iterable[int]) -> dict[int, tuple[int, bytes, str]]:
    """Return the month, digest and fields of rows."""
    found = {}
    wanted = sorted(numbers)
    for start in range(0, len(wanted), _ASKED):
        asked = {f"row{at}": row for at, row in enumerate(wanted[start : start + _ASKED])}
        question = _ROW_KEYS.format(asked=", ".join(f":{name}" for name in asked))
        for number, month, digest, fields in database.execute(question, asked).fetchall():
            found[number] = month, bytes(digest), fields
    return found


def prepare(
    database: Database,
    numbers: Numbers,
    posting: Posting,
    entries: Iterable[Entry],
) -> int:
    """Enter the posting of a message with its entries, which are pending; return its number."""
    rows = constants(database, numbers, posting.receiver, entries)
    number = post(database, posting, rows, sealed=True)
    at = {"receiver": posting.receiver, "posting": number}
    database.execute_many(_ENTER, named(rows, at))
    return number


def post(
    database: Database, posting: Posting, rows: Sequence[Sequence[Any]], *, sealed: bool
) -> int:
    """Enter a posting that has entries with these constants; return its number."""
    sums = {"entries": len(rows), "checksum": checksum(rows), "sealed": sealed}
    return database.insert_returning_id(_POST, {**posting._asdict(), **sums})


def constants(
    database: Database, numbers: Numbers, receiver: int, entries: Iterable[Entry]
) -> list[tuple[Any, ...]]:
    """Return the columns `CONSTANT` of entries, whose rows and scopes are entered (hot path)."""
    entries, rows = list(entries), []
    numbers.enter(database, receiver, (entry.row for entry in entries))
    for run, record, row, wall_s, cpu_s, digest, jobs, source in entries:
        row_key = numbers.row(database, receiver, row)
        scope = numbers.scope(database, record, source)
        keys = run, row_key, scope, record.local_id, record.ended_at
        rows.append((*keys, jobs, wall_s, cpu_s, digest))
    return rows


def named(rows: Iterable[Sequence[Any]], at: Parameters) -> list[dict[str, Any]]:
    """Return the columns `CONSTANT` of entries by name, with what they have in common."""
    return [{**at, **dict(zip(_NAMES, row, strict=True))} for row in rows]


def row_checksum(month: int, digest: bytes, fields: str) -> int:
    """Return the checksum of a row key."""
    return crc32(repr((month, digest, fields)).encode()) & 0x7FFF


def checksum(entries: Iterable[Sequence[Any]]) -> int:
    """Return the checksum of entries, of which each has the columns `CONSTANT`, in any order."""
    return sum(crc32(repr(tuple(entry)).encode()) for entry in entries)


def receiver_of(database: Database, posting: int) -> tuple[int, bool]:
    """Return the receiver of a posting, and whether it keeps the first of two records."""
    receiver, keeps_first = database.execute(_RECEIVER_OF, {"posting": posting}).fetchone()
    return receiver, bool(keeps_first)


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


def rename_source(database: Database, source: str, name: str) -> None:
    """Let entries that a database told of be of its other name."""
    for scope, site, prefix in database.execute(_SCOPES_OF, {"source": source}).fetchall():
        named = {"site": site, "prefix": prefix, "source": name}
        there = database.execute(_SCOPE, named).fetchone()
        if there is None:
            database.execute(_RENAME_SCOPE, {"scope": scope, "name": name})
        else:
            _change_scope(database, scope, there[0])


def _change_scope(database: Database, scope: int, there: int) -> None:
    """Move all entries of a scope to another one; the checksums of their postings follow."""
    more: Counter[int] = Counter()
    for posting, *entry in database.stream(_OF_SCOPE, {"scope": scope}):
        moved = {**dict(zip(_NAMES, entry, strict=True)), "scope": there}
        more[posting] += checksum([list(moved.values())]) - checksum([entry])
    database.execute(_CHANGE_SCOPE, {"scope": scope, "there": there})
    sums = [{"posting": posting, "more": change} for posting, change in more.items()]
    database.execute_many(_CORRECT, sums)


def nothing_shared(database: Database) -> int:
    """Return the number of the scope of entries that are of no site and no database."""
    named = {"site": "", "prefix": "", "source": ""}
    database.execute(_ENTER_SCOPE, named)
    return _number(database, _SCOPE, named)


def count_pending(database: Database, receiver: int, posting: int) -> None:
    """Let all entries of a posting count that are pending."""
    database.execute(_COUNT_PENDING, {"receiver": receiver, "posting": posting})


def set_states(
    database: Database, state: int, receiver: int, entries: Iterable[Sequence[Any]]
) -> None:
    """Set the state of entries (run, posting) of a receiver."""
    rows = [
        {"state": state, "receiver": receiver, "run": run, "posting": posting}
        for run, posting in entries
    ]
    if rows:
        database.execute_many(_SET_STATE, rows)


def _number(database: Database, question: str, values: Mapping[str, object]) -> int:
    return int(database.execute(question, values).fetchone()[0])
