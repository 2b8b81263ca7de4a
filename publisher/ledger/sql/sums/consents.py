"""What administrators agreed to: what stays at the receiver until it is deleted there."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Final

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import counts
from publisher.ledger.sql.sums.balances import BalanceChanges
from publisher.model.entry import RecordKey, RowFields, RowKey, RowTotal, Usage
from publisher.model.job import Epoch
from publisher.model.totals import (
    AcceptedChange,
    KeyTotal,
    LeftRecord,
    SummaryKey,
    host_of,
    month_window,
    row_for_people,
)

_ACCEPTED: Final = """
SELECT month, accepted_at, orphaned, lost_jobs, of_records FROM key_change
WHERE target = :target AND receiver = :receiver AND deleted_at IS NULL ORDER BY id"""
_CONFIRM: Final = """
UPDATE key_change SET deleted_at = :now
WHERE target IN (SELECT id FROM target WHERE CAST(:target AS BIGINT) IS NULL OR id = :target)
    AND receiver = :receiver AND month = :month AND deleted_at IS NULL"""
_LEFT: Final = """
SELECT entry.run, entry.posting, entry.row_key, entry.jobs, entry.wall_s, entry.cpu_s,
       entry.ended_at, row_key.fields
FROM entry JOIN row_key ON row_key.id = entry.row_key
WHERE entry.receiver = :receiver AND entry.ended_at >= :start AND entry.ended_at < :end
    AND entry.state = 3"""
# Only of months with consent: their entries are looked through.
_LEFT_KEYS: Final = """
SELECT scope.site, scope.localid_prefix, entry.local_id, entry.ended_at, entry.row_key,
       row_key.fields, entry.jobs, entry.wall_s, entry.cpu_s
FROM entry JOIN scope ON scope.id = entry.scope JOIN row_key ON row_key.id = entry.row_key
WHERE entry.receiver = :receiver AND entry.ended_at >= :start AND entry.ended_at < :end
    AND entry.state = 3
ORDER BY scope.site, scope.localid_prefix, entry.ended_at, entry.local_id"""
_COUNTING: Final = """
SELECT row_key.id, fields, jobs FROM row_key JOIN balance ON balance.row_key = row_key.id
WHERE receiver = :receiver AND month = :month AND jobs > 0"""
_NOT_SENT: Final = """
UPDATE balance SET sent_jobs = 0, sent_wall_s = 0, sent_cpu_s = 0
WHERE jobs = 0 AND sent_jobs > 0 AND row_key IN (
    SELECT id FROM row_key WHERE receiver = :receiver AND month = :month)"""


def accepted_changes(
    database: Database, target: int | None, receiver: int | None
) -> list[AcceptedChange]:
    """Return what was accepted of a target's receiver, oldest first, as far as it stays there."""
    asked = {"target": target, "receiver": receiver}
    found = [
        AcceptedChange(
            month=month,
            accepted_at=datetime.fromtimestamp(accepted_at, UTC),
            rows=_rows(month, orphaned),
            lost_jobs=lost_jobs,
            of_records=bool(of_records),
        )
        for month, accepted_at, orphaned, lost_jobs, of_records in database.execute(
            _ACCEPTED, asked
        ).fetchall()
    ]
    for month in {one.month for one in found if one.of_records}:
        places = [at for at, one in enumerate(found) if one.of_records and one.month == month]
        counting, left = _stays(database, receiver, month)
        for at in places:
            rows = tuple(row for row in found[at].rows if row.key.text not in counting)
            counting |= {row.key.text for row in rows}  # each is named once
            found[at] = found[at]._replace(rows=rows)
        found[places[-1]] = found[places[-1]]._replace(records=left)
    return found


def _rows(month: int, orphaned: str) -> tuple[KeyTotal, ...]:
    return tuple(
        KeyTotal(SummaryKey(month, text, site), *sums) for text, site, *sums in json.loads(orphaned)
    )


def _stays(
    database: Database, receiver: int | None, month: int
) -> tuple[set[str], tuple[LeftRecord, ...]]:
    """Return the rows of a month in which records count, and the records under earlier keys."""
    window = month_window(month)
    at = {"receiver": receiver, "start": window.start, "end": window.end}
    left: list[LeftRecord] = []
    of_row: Counter[int] = Counter()
    for *key, number, fields, jobs, wall_s, cpu_s in database.execute(_LEFT_KEYS, at).fetchall():
        row = _row(month, fields)._replace(jobs=jobs, wall_s=wall_s, cpu_s=cpu_s)
        left.append(LeftRecord(RecordKey(*key), row))
        of_row[number] += jobs
    rows = database.execute(_COUNTING, {"receiver": receiver, "month": month}).fetchall()
    counting = {
        _row(month, fields).key.text for number, fields, jobs in rows if jobs > of_row[number]
    }
    return counting, tuple(left)


def _row(month: int, fields: str) -> KeyTotal:
    key = RowKey(month, RowFields(b"", fields))
    return row_for_people(RowTotal(key, Usage(), Epoch(0), Epoch(0)), by_level=True)


def confirm_deleted(
    database: Database, target: int | None, receiver: int, month: int, now: int
) -> None:
    """Let nothing count any more that stayed at a receiver: it is deleted there.

    `target`: with whose consent; None for all.
    """
    window = month_window(month)
    asked = {"receiver": receiver, "start": window.start, "end": window.end}
    balances, jobs, gone = BalanceChanges(), Counter[tuple[int, str]](), []
    for run, posting, *entry, fields in database.execute(_LEFT, asked).fetchall():
        gone.append((run, posting))
        balances.take_away(run, *entry)
        jobs[month, host_of(fields)] -= entry[1]
    entries.set_states(database, entries.HISTORY, receiver, gone)
    balances.write(database, receiver)
    counts.change(database, receiver, jobs)
    database.execute(_NOT_SENT, {"receiver": receiver, "month": month})
    database.execute(_CONFIRM, {"target": target, "receiver": receiver, "month": month, "now": now})
