"""Runs that were sent under other settings than a target has now.

Which of them have other keys by now is counted by a plan, which looks at all jobs, and kept until
the settings change again or a month is published again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final

from publisher.ledger.sql.parts.opened import LedgerPart
from publisher.ledger.sql.sums import holds
from publisher.model.entry import EarlierRuns
from publisher.model.time import epoch
from publisher.model.totals import CLOSED

_ANY: Final = """
SELECT EXISTS (SELECT 1 FROM posting
WHERE receiver = (SELECT receiver FROM target WHERE id = :target)
    AND settings NOT IN (:settings, :closed))"""
# All entries of the receiver are looked through.
_AT_MOST: Final = """
SELECT count(*) FROM target CROSS JOIN entry CROSS JOIN posting
WHERE target.id = :target AND entry.receiver = target.receiver AND state = 1 AND jobs > 0
    AND posting.id = entry.posting AND settings NOT IN (:settings, :closed)"""
# As long as the target sent nothing under other settings since.
_COUNTED: Final = """
SELECT counted_at FROM earlier_settings
WHERE target = :target AND settings = :settings AND NOT EXISTS (
    SELECT 1 FROM posting WHERE posting.target = :target
        AND posting.settings NOT IN (:settings, :closed)
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
_OF_TARGET: Final = "target = (SELECT id FROM target WHERE name = :name)"
_LATEST_POSTING: Final = f"SELECT coalesce(max(id), 0) FROM posting WHERE {_OF_TARGET}"
_SETTINGS_SINCE: Final = f"""
SELECT DISTINCT settings FROM posting
WHERE {_OF_TARGET} AND id > :posting AND settings <> :closed"""


class SqlEarlier(LedgerPart):
    """`Earlier` of a publishing database."""

    def runs(self, target: str, settings: str) -> EarlierRuns:
        asked = {"target": self._opened.number(target), "settings": settings, "closed": CLOSED}
        with self._database.reading():
            if not self._database.execute(_ANY, asked).fetchone()[0]:
                return EarlierRuns(0, {}, None)
            counted = self._database.execute(_COUNTED, asked).fetchone()
            if counted is None:
                (at_most,) = self._database.execute(_AT_MOST, asked).fetchone()
                unknown: Mapping[int, int] | None = None if at_most else {}
                return EarlierRuns(at_most, unknown, None)
            months = dict(self._database.execute(_MONTHS, asked).fetchall())
        counted_at = datetime.fromtimestamp(counted[0], UTC)
        return EarlierRuns(sum(months.values()), months, counted_at)

    def note(self, target: str, settings: str, months: Mapping[int, int], now: datetime) -> None:
        of = {"target": self._opened.known_number(target)}
        counted = [of | {"month": month, "runs": runs} for month, runs in months.items()]
        with self._database.atomic():
            self._database.execute(_NOTE, of | {"settings": settings, "now": epoch(now)})
            self._database.execute(_FORGET, of)
            if counted:
                self._database.execute_many(_NOTE_MONTH, counted)

    def forget(self, target: str, months: Collection[int]) -> None:
        receiver, number = self._opened.known_receiver(target), self._opened.known_number(target)
        with self._database.atomic():
            for month in months:
                self._database.execute(_FORGET_MONTH, {"target": number, "month": month})
            holds.end_again(self._database, receiver, number, months)

    def settings_since(self, target: str, posting: int) -> tuple[int, frozenset[str]]:
        asked = {"name": target, "posting": posting, "closed": CLOSED}
        with self._database.reading():
            (latest,) = self._database.execute(_LATEST_POSTING, asked).fetchone()
            found = self._database.execute(_SETTINGS_SINCE, asked).fetchall()
        return int(latest), frozenset(settings for (settings,) in found)
