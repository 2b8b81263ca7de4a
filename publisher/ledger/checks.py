"""Whether a ledger agrees with itself: file or server, checksums of rows, sums, references.

Messages and postings, which with its entries are nearly all of a ledger, carry checksums, and
payloads that are on their way a digest. SQLite looks after the structure of its file, and compares
the indexes with the tables; PostgreSQL has checksums of its own, where they were switched on.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.messages import CarriedRecords, message_checksum
from publisher.ledger.transfer import tables
from publisher.model.errors import LedgerError
from publisher.model.receiver import MonthSum, RowSum, entry_digest
from publisher.model.totals import CLOSED

_QUICK: Final = 2_000  # of the newest rows
_ALL_SUMS: Final = "SELECT receiver, month, jobs, digest FROM month_sum"
_ALL_ROW_KEYS: Final = "SELECT id, receiver, month, digest FROM row_key"
_COUNTING: Final = f"""
SELECT row_key, run, jobs, wall_s, cpu_s, ended_at, {entries.PREFIX}
FROM entry JOIN posting ON posting.id = entry.posting JOIN scope ON scope.id = entry.scope
WHERE state IN (1, 3) AND jobs > 0"""
_DAYS: Final = 30  # until the daily look has seen every row


class Disagreement(NamedTuple):
    """What does not agree in a ledger, and how often."""

    what: str
    times: int


def disagreements(database: Database, *, quick: bool = False) -> list[Disagreement]:
    """What is damaged, and sums and references that do not agree with the rows. Only reads.

    `quick`: the structure of the file without its indexes, and the checksums of the newest rows
    only. Raises: LedgerError.
    """
    with database.snapshot():
        found = [Disagreement(what, 1) for what in database.damage(quick=quick)]
        for table in tables():  # their columns are there, with these names
            columns = ", ".join(table.columns)
            database.execute(f"SELECT {columns} FROM {table.name} LIMIT 1").fetchone()
        damaged = _damaged_rows(database, quick=quick)
        found += [Disagreement(what, len(rows)) for what, rows in damaged]
        if not quick:
            counted = {what: database.execute(ask).fetchone() for what, ask in AGREEMENTS.items()}
            found += [Disagreement(what, int(times)) for what, (times,) in counted.items()]
            found.append(Disagreement("postings with damaged entries", _damaged_postings(database)))
            found.append(Disagreement("months whose sum is another one", _wrong_sums(database)))
    return [one for one in found if one.times]


def damaged_in_sample(database: Database, day: datetime) -> list[Disagreement]:
    """What is damaged in that day's part of the rows; in a month, all have their day.

    Raises: LedgerError.
    """
    with database.snapshot():
        found = _damaged_rows(database, quick=False, part=day.toordinal() % _DAYS, parts=_DAYS)
        return [Disagreement(what, len(rows)) for what, rows in found if rows]


def _damaged_rows(
    database: Database, *, quick: bool, part: int = 0, parts: int = 1
) -> Iterator[tuple[str, list[int]]]:
    asked = {"limit": _QUICK if quick else 1 << 62, "part": part, "parts": parts}
    for what, ask, is_sound in _CHECKED:
        rows = database.stream(ask, asked)
        yield what, [row[0] for row in rows if not _is_sound(row, is_sound)]


def _damaged_postings(database: Database) -> int:
    """Return how many postings do not have the entries that were entered."""
    there: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for posting, *entry in database.stream(f"SELECT posting, {entries.CONSTANT} FROM entry"):
        sums = there[posting]
        sums[0] += 1
        sums[1] += entries.checksum([entry])
    written = database.stream("SELECT id, entries, checksum FROM posting")
    return sum(there.get(posting, [0, 0]) != sums for posting, *sums in written)


def _wrong_sums(database: Database) -> int:
    """Return how many months are not the sum of the entries that count. Reads all of them.

    What is no number any more, of a damaged entry, is in no sum.
    """
    by_row: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row_key, run, *counts_for in database.stream(_COUNTING):
        of_row = by_row[row_key]
        with suppress(struct.error, TypeError):
            of_row[1] += entry_digest(bytes(run), *counts_for)
            of_row[0] += counts_for[0]
    by_month: defaultdict[tuple[int, int], MonthSum] = defaultdict(MonthSum)
    for row_key, receiver, month, digest in database.stream(_ALL_ROW_KEYS):
        if row_key in by_row:
            of_month = by_month[receiver, month]
            by_month[receiver, month] = of_month.plus(bytes(digest), RowSum(*by_row[row_key]))
    written = {
        (receiver, month): MonthSum(jobs, bytes(digest))
        for receiver, month, jobs, digest in database.stream(_ALL_SUMS)
    }
    none = MonthSum()
    every = written.keys() | by_month.keys()
    return sum(written.get(at, none) != by_month.get(at, none) for at in every)


def _is_sound(row: Any, is_sound: Callable[[Any], bool]) -> bool:
    """In SQLite, damage may leave a value of another type, or none."""
    try:
        return is_sound(row)
    except (zlib.error, AttributeError, LedgerError, TypeError, ValueError):
        return False


def _sound_message(row: Any) -> bool:
    _number, checksum, *values = row
    return bool(checksum == message_checksum(*values))


def _sound_payload(row: Any) -> bool:
    _, digest, payload, count, records = row
    return bool(sha256(payload).digest() == digest and len(CarriedRecords(records)) == count)


def _sound_row_key(row: Any) -> bool:
    _number, checksum, *values = row
    return bool(checksum == entries.row_checksum(*values))


_CHECKED: Final[tuple[tuple[str, str, Callable[[Any], bool]], ...]] = (
    (
        "damaged messages",
        "SELECT id, checksum, message_id, format, records, bytes, digest, made_at FROM message "
        "WHERE checksum IS NOT NULL AND id % :parts = :part ORDER BY id DESC LIMIT :limit",
        _sound_message,
    ),
    (
        "damaged payloads",
        "SELECT message.id, digest, payload, message.records, outbox.records "
        "FROM outbox JOIN message ON message.id = outbox.message "
        "WHERE message.id % :parts = :part ORDER BY message.id DESC LIMIT :limit",
        _sound_payload,
    ),
    (
        "damaged rows of receivers",
        "SELECT id, checksum, month, digest, fields FROM row_key "
        "WHERE id % :parts = :part ORDER BY id DESC LIMIT :limit",
        _sound_row_key,
    ),
)


def _orphans(table: str, column: str, other: str) -> str:
    return f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM {other})"


AGREEMENTS: Final[Mapping[str, str]] = {
    "messages of unknown targets": _orphans("message", "target", "target"),
    "messages without a payload that are not settled": (
        "SELECT count(*) FROM message WHERE state < 2 AND id NOT IN (SELECT message FROM outbox)"
    ),
    "payloads of settled messages": (
        "SELECT count(*) FROM outbox WHERE message NOT IN (SELECT id FROM message WHERE state < 2)"
    ),
    "targets whose accepted messages are not as many as counted": (
        "SELECT count(*) FROM target WHERE accepted_messages <> "
        "(SELECT count(*) FROM message WHERE message.target = target.id AND state = 2)"
    ),
    "targets whose accepted records are not as many as counted": (
        "SELECT count(*) FROM target WHERE accepted_records <> (SELECT coalesce(sum(records), 0) "
        "FROM message WHERE message.target = target.id AND state = 2)"
    ),
    "entries of unknown postings": _orphans("entry", "posting", "posting"),
    "entries of unknown rows": _orphans("entry", "row_key", "row_key"),
    "entries of unknown scopes": _orphans("entry", "scope", "scope"),
    "sums of months of unknown receivers": _orphans("month_sum", "receiver", "receiver"),
    "losses of unknown receivers": _orphans("loss", "receiver", "receiver"),
    "holds of unknown receivers": _orphans("hold", "receiver", "receiver"),
    "holds of unknown targets": _orphans("hold", "target", "target"),
    "waiting runs of unknown targets": _orphans("waiting", "target", "target"),
    "holds of unknown rows": _orphans("hold", "row_key", "row_key"),
    "holds of runs that count as they would": (
        "SELECT count(*) FROM hold JOIN entry ON entry.receiver = hold.receiver "
        "AND entry.run = hold.run AND entry.row_key = hold.row_key AND entry.digest = hold.shown "
        "AND entry.wall_s = hold.wall_s AND entry.cpu_s = hold.cpu_s AND entry.jobs = hold.jobs "
        "WHERE entry.state = 1"
    ),
    "messages of unknown postings": (
        "SELECT count(*) FROM message "
        "WHERE posting IS NOT NULL AND posting NOT IN (SELECT id FROM posting)"
    ),
    "postings of unknown receivers": _orphans("posting", "receiver", "receiver"),
    "rows whose balance is not the sum of their entries": (
        "SELECT count(*) FROM (SELECT row_key FROM (SELECT row_key, jobs, wall_s, cpu_s FROM entry "
        "WHERE state IN (1, 3) AND jobs > 0 "
        "UNION ALL SELECT row_key, -jobs, -wall_s, -cpu_s FROM balance) "
        "AS both_sides GROUP BY row_key "
        "HAVING sum(jobs) <> 0 OR sum(wall_s) <> 0 OR sum(cpu_s) <> 0) AS unequal"
    ),
    "rows whose first and last end are not those of their entries": (
        "SELECT count(*) FROM balance LEFT JOIN (SELECT row_key, "
        f"min(CASE WHEN posting.settings = '{CLOSED}' THEN CAST(local_id AS BIGINT) "
        "ELSE ended_at END) AS first_end, max(ended_at) AS last_end "
        "FROM entry JOIN posting ON posting.id = entry.posting WHERE state IN (1, 3) AND jobs > 0 "
        "GROUP BY row_key) AS ends ON ends.row_key = balance.row_key "
        "WHERE coalesce(ends.first_end, 0) <> balance.first_end "
        "OR coalesce(ends.last_end, 0) <> balance.last_end"
    ),
    "pending entries of settled messages": (
        "SELECT count(*) FROM entry WHERE state = 2 AND posting NOT IN "
        "(SELECT posting FROM message WHERE state < 2 AND posting IS NOT NULL "
        "UNION SELECT id FROM posting WHERE NOT sealed)"
    ),
    "pending entries of totals that no message says": (
        "SELECT count(*) FROM entry JOIN posting ON posting.id = entry.posting "
        "WHERE state = 2 AND sealed AND posting IN (SELECT message.posting FROM month_message "
        "JOIN message ON message.id = month_message.message WHERE message.posting IS NOT NULL) "
        "AND NOT EXISTS (SELECT 1 FROM message_entry "
        "JOIN message ON message.id = message_entry.message "
        "JOIN message_row ON message_row.message = message.id "
        "WHERE message_entry.run = entry.run AND message.posting = entry.posting "
        "AND message_row.row_key = entry.row_key)"
    ),
    "runs that wait for a message without an entry of theirs": (
        "SELECT count(*) FROM message_entry WHERE NOT EXISTS (SELECT 1 FROM message "
        "JOIN posting ON posting.id = message.posting JOIN entry ON entry.posting = posting.id "
        "AND entry.receiver = posting.receiver AND entry.run = message_entry.run "
        "WHERE message.id = message_entry.message AND message.state < 2 AND entry.state = 2)"
    ),
    "rows said by messages that are not outstanding": (
        "SELECT count(*) FROM message_row "
        "WHERE message NOT IN (SELECT id FROM message WHERE state < 2)"
    ),
    "said rows that are unknown": _orphans("message_row", "row_key", "row_key"),
    "rows said by unknown messages": (
        "SELECT count(*) FROM balance "
        "WHERE sent_by IS NOT NULL AND sent_by NOT IN (SELECT id FROM message)"
    ),
    "open postings that have messages": (
        "SELECT count(*) FROM posting WHERE NOT sealed AND id IN "
        "(SELECT posting FROM message WHERE posting IS NOT NULL)"
    ),
    "postings without messages and entries": (
        "SELECT count(*) FROM posting WHERE sealed AND entries = 0 AND id NOT IN "
        "(SELECT posting FROM message WHERE posting IS NOT NULL)"
    ),
    "runs with two entries that count": (
        "SELECT count(*) FROM (SELECT receiver, run FROM entry WHERE state = 1 "
        "GROUP BY receiver, run HAVING count(*) > 1) AS doubled"
    ),
}
CHECKS: Final = len(AGREEMENTS) + len(_CHECKED) + 2
