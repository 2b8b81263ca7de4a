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
from publisher.model.totals import AcceptedChange, KeyTotal, SummaryKey, host_of, month_window

_ACCEPTED: Final = """
SELECT month, accepted_at, orphaned, lost_jobs FROM key_change
WHERE target = :target AND receiver = :receiver AND deleted_at IS NULL ORDER BY id"""
_CONFIRM: Final = """
UPDATE key_change SET deleted_at = :now
WHERE target = :target AND receiver = :receiver AND month = :month AND deleted_at IS NULL"""
_LEFT: Final = """
SELECT entry.run, entry.posting, entry.row_key, entry.jobs, entry.wall_s, entry.cpu_s,
       entry.ended_at, row_key.fields
FROM entry JOIN row_key ON row_key.id = entry.row_key
WHERE entry.receiver = :receiver AND entry.ended_at >= :start AND entry.ended_at < :end
    AND entry.state = 3"""
_NOT_SENT: Final = """
UPDATE balance SET sent_jobs = 0, sent_wall_s = 0, sent_cpu_s = 0
WHERE jobs = 0 AND sent_jobs > 0 AND row_key IN (
    SELECT id FROM row_key WHERE receiver = :receiver AND month = :month)"""


def accepted_changes(
    database: Database, target: int | None, receiver: int | None
) -> list[AcceptedChange]:
    """Return what an administrator accepted of a target's receiver, oldest first."""
    found = database.execute(_ACCEPTED, {"target": target, "receiver": receiver})
    return [
        AcceptedChange(
            month=month,
            accepted_at=datetime.fromtimestamp(accepted_at, UTC),
            rows=_rows(month, orphaned),
            lost_jobs=lost_jobs,
        )
        for month, accepted_at, orphaned, lost_jobs in found
    ]


def _rows(month: int, orphaned: str) -> tuple[KeyTotal, ...]:
    return tuple(
        KeyTotal(SummaryKey(month, text, ""), *sums) for text, *sums in json.loads(orphaned)
    )


def confirm_deleted(database: Database, target: int, receiver: int, month: int, now: int) -> None:
    """Let nothing count any more that stayed at the receiver of a target: it is deleted there."""
    window = month_window(month)
    asked = {"receiver": receiver, "start": window.start, "end": window.end}
    balances, jobs, gone = BalanceChanges(), Counter[tuple[int, str]](), []
    for run, posting, *entry, fields in database.execute(_LEFT, asked).fetchall():
        gone.append((run, posting))
        balances.take_away(*entry)
        jobs[month, host_of(fields)] -= entry[1]
    entries.set_states(database, entries.HISTORY, receiver, gone)
    balances.write(database, receiver)
    counts.change(database, receiver, jobs)
    database.execute(_NOT_SENT, {"receiver": receiver, "month": month})
    database.execute(_CONFIRM, {"target": target, "receiver": receiver, "month": month, "now": now})
