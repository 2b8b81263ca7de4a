"""Runs that were sent under other settings than a target has now.

Which of them have other keys by now is counted by a plan, which looks at all jobs, and kept until
the settings change again or a month is published again. Everything runs inside the caller's
transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final

from publisher.ledger.sql.database import Database
from publisher.model.entry import EarlierRuns

_AT_MOST: Final = """
SELECT CAST(coalesce(sum(entries), 0) AS BIGINT) FROM posting
WHERE receiver = (SELECT receiver FROM target WHERE id = :target) AND settings <> :settings"""
# As long as the target sent nothing under other settings since.
_COUNTED: Final = """
SELECT counted_at FROM earlier_settings
WHERE target = :target AND settings = :settings AND NOT EXISTS (
    SELECT 1 FROM posting WHERE posting.target = :target AND posting.settings <> :settings
        AND posting.id > earlier_settings.posting)"""
_MONTHS: Final = "SELECT month, runs FROM earlier_month WHERE target = :target ORDER BY month"
_FORGET: Final = "DELETE FROM earlier_month WHERE target = :target"
_FORGET_MONTH: Final = "DELETE FROM earlier_month WHERE target = :target AND month = :month"
_NOTE: Final = """
INSERT INTO earlier_settings (target, settings, posting, counted_at)
VALUES (:target, :settings, (SELECT coalesce(max(id), 0) FROM posting WHERE target = :target), :now)
ON CONFLICT (target) DO UPDATE SET settings = excluded.settings, posting = excluded.posting,
    counted_at = excluded.counted_at"""
_NOTE_MONTH: Final = """
INSERT INTO earlier_month (target, month, runs) VALUES (:target, :month, :runs)"""


def earlier(database: Database, target: int | None, settings: str) -> EarlierRuns:
    """Return what is known of runs that were sent under other settings than these."""
    asked = {"target": target, "settings": settings}
    (at_most,) = database.execute(_AT_MOST, asked).fetchone()
    counted = database.execute(_COUNTED, asked).fetchone()
    if counted is None:
        unknown: Mapping[int, int] | None = None if at_most else {}
        return EarlierRuns(at_most, unknown, None)
    months = dict(database.execute(_MONTHS, asked).fetchall())
    return EarlierRuns(at_most, months, datetime.fromtimestamp(counted[0], UTC))


def note(
    database: Database, target: int, settings: str, months: Mapping[int, int], now: int
) -> None:
    """Keep how many runs of each month have other keys under these settings."""
    database.execute(_NOTE, {"target": target, "settings": settings, "now": now})
    database.execute(_FORGET, {"target": target})
    counted = [{"target": target, "month": month, "runs": runs} for month, runs in months.items()]
    if counted:
        database.execute_many(_NOTE_MONTH, counted)


def forget(database: Database, target: int, months: Collection[int]) -> None:
    """Forget the runs of months that were published again."""
    for month in months:
        database.execute(_FORGET_MONTH, {"target": target, "month": month})
