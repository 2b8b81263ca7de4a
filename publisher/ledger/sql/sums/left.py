"""What stays at a receiver until it is deleted there, though nothing of ours is to count in it.

A row of totals stays when its last run leaves it and no zeros empty it, or when its month goes on
as single records; a row that the receiver makes of single records stays when these leave it.
Records stay whose run counts under another key now. All of it is recorded by `settle`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import counts
from publisher.ledger.sql.sums.balances import Addition, BalanceChanges
from publisher.model.entry import RecordKey, RowFields, RowKey, RowTotal, Usage
from publisher.model.job import Epoch
from publisher.model.receiver import LeftMonth, LeftRecord
from publisher.model.totals import host_of, month_window, row_for_people

_ROWS: Final = """
SELECT row_key.id, row_key.month, row_key.digest, row_key.fields, balance.jobs, balance.wall_s,
       balance.cpu_s, sent_jobs, sent_wall_s, sent_cpu_s, coalesce(message.format, '')
FROM row_key JOIN balance ON balance.row_key = row_key.id
JOIN month_sum ON month_sum.receiver = row_key.receiver AND month_sum.month = row_key.month
LEFT JOIN message ON message.id = balance.sent_by
WHERE row_key.receiver = :receiver AND sent_jobs > 0
    AND (balance.jobs = 0 OR (sent_by IS NOT NULL AND month_sum.format = ''))
ORDER BY row_key.month, row_key.fields"""
_RECORDS: Final = f"""
SELECT scope.site, scope.localid_prefix, entry.local_id, entry.ended_at, entry.row_key,
       row_key.month, row_key.digest, row_key.fields, entry.jobs, entry.wall_s, entry.cpu_s,
       {entries.PREFIX}, entry.run, entry.posting
FROM entry JOIN scope ON scope.id = entry.scope JOIN row_key ON row_key.id = entry.row_key
JOIN posting ON posting.id = entry.posting
WHERE entry.receiver = :receiver AND entry.state = 3
ORDER BY scope.site, scope.localid_prefix, entry.ended_at, entry.local_id"""
_BALANCE: Final = """
SELECT jobs, wall_s, cpu_s FROM balance WHERE row_key = :row_key AND sent_by IS NULL"""
_NOT_SENT: Final = """
UPDATE balance SET sent_jobs = 0, sent_wall_s = 0, sent_cpu_s = 0, sent_by = NULL
WHERE sent_jobs > 0 AND row_key IN (
    SELECT id FROM row_key WHERE receiver = :receiver AND month = :month)
    AND (jobs = 0 OR sent_by IS NULL OR '' = (
        SELECT format FROM month_sum WHERE receiver = :receiver AND month = :month))"""


def months(database: Database, receiver: int | None) -> list[LeftMonth]:
    """Return what stays at a receiver, by month."""
    asked = {"receiver": receiver}
    rows: defaultdict[int, list[RowTotal]] = defaultdict(list)
    for _, month, digest, fields, *sums, form in database.execute(_ROWS, asked).fetchall():
        rows[month].append(_row(month, digest, fields, Usage(*sums[3:]), form))
    records: defaultdict[int, list[LeftRecord]] = defaultdict(list)
    of_row: Counter[tuple[int, int, bytes, str]] = Counter()
    for *key, row_key, month, digest, fields, jobs, wall_s, cpu_s, _, _, _ in database.execute(
        _RECORDS, asked
    ).fetchall():
        row = _row(month, digest, fields, Usage(jobs, wall_s, cpu_s), "")
        of_record = LeftRecord(RecordKey(*key), row_for_people(row, by_level=True))
        records[month].append(of_record)
        of_row[row_key, month, digest, fields] += jobs
    for (row_key, month, digest, fields), jobs in of_row.items():
        found = database.execute(_BALANCE, {"row_key": row_key}).fetchone()
        if found is not None and found[0] == jobs:  # no other record counts there
            rows[month].append(_row(month, digest, fields, Usage(*found), ""))
    return [
        LeftMonth(month, receiver or 0, tuple(rows[month]), tuple(records[month]))
        for month in sorted(rows.keys() | records.keys())
    ]


def _row(month: int, digest: bytes, fields: str, usage: Usage, form: str) -> RowTotal:
    key = RowKey(month, RowFields(bytes(digest), fields))
    return RowTotal(key, usage, Epoch(0), Epoch(0), usage, form)


def confirm_deleted(database: Database, receiver: int, month: int) -> None:
    """Let nothing count any more that stayed of a month at a receiver: it is deleted there."""
    window, asked = month_window(month), {"receiver": receiver}
    balances, jobs, gone = BalanceChanges(), Counter[tuple[int, str]](), []
    found = database.execute(_RECORDS, asked).fetchall()
    for *_, end, row_key, _, _, fields, number, wall_s, cpu_s, prefix, run, posting in found:
        if end not in window:
            continue
        gone.append((run, posting))
        balances.take_away(run, Addition(row_key, number, wall_s, cpu_s, end, prefix))
        jobs[month, host_of(fields)] -= number
    entries.set_states(database, entries.HISTORY, receiver, gone)
    balances.write(database, receiver)
    counts.change(database, receiver, jobs)
    database.execute(_NOT_SENT, {"receiver": receiver, "month": month})
