"""The sums of months in the ledger, which follow the entries that count (model/receiver.py).

Each has the format in which its month goes on: the first message fixes its kind.

The generation file beside the ledger has the same (generation.py): where the two differ, the ledger
lacks something. Everything that writes runs inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.model.receiver import MonthSum, RowSum

_SUM: Final = """
SELECT jobs, digest, format FROM month_sum WHERE receiver = :receiver AND month = :month"""
_SET: Final = """
INSERT INTO month_sum (receiver, month, jobs, digest, format)
VALUES (:receiver, :month, :jobs, :digest, :format)
ON CONFLICT (receiver, month) DO UPDATE SET
    jobs = excluded.jobs, digest = excluded.digest, format = excluded.format"""
_AS_MESSAGE: Final = """
UPDATE month_sum SET format = (SELECT format FROM message WHERE id = :message)
WHERE receiver = (SELECT receiver FROM message WHERE id = :message)
    AND month IN (SELECT month FROM month_message WHERE message = :message)
    AND format <> (SELECT format FROM message WHERE id = :message)"""
_MARK_OF: Final = """
UPDATE receiver SET mark = mark + 1
WHERE id = (SELECT receiver FROM message WHERE id = :message)"""
_MARK: Final = "UPDATE receiver SET mark = mark + 1 WHERE id = :receiver"
_SUMS: Final = "SELECT month, jobs, digest, format FROM month_sum WHERE receiver = :receiver"


def change(
    database: Database, receiver: int, rows: Mapping[int, RowSum]
) -> Mapping[int, tuple[int, bytes, str]]:
    """Add what rows of a receiver gain, less what they lose, and note that something changed.

    Return month, digest and fields of these rows.
    """
    months: dict[int, MonthSum] = {}
    keys = entries.row_keys(database, rows)
    for row_key, (month, digest, _) in keys.items():
        if month not in months:
            at = {"receiver": receiver, "month": month}
            months[month] = _sum_of(database.execute(_SUM, at).fetchone())
        months[month] = months[month].plus(digest, rows[row_key])
    for month, of_month in sorted(months.items()):
        at = {"receiver": receiver, "month": month}
        database.execute(_SET, {**at, **of_month._asdict()})
    if rows:
        database.execute(_MARK, {"receiver": receiver})
    return keys


def _sum_of(row: Sequence[Any] | None) -> MonthSum:
    return MonthSum() if row is None else MonthSum(row[0], bytes(row[1]), row[2])


def go_on_as(database: Database, message: int) -> None:
    """Keep that the months of a message of totals go on in its format."""
    if database.execute_many(_AS_MESSAGE, [{"message": message}]):
        database.execute(_MARK_OF, {"message": message})


def go_on(database: Database, receiver: int, months: Iterable[int], form: str) -> None:
    """Keep in which format of totals months go on from now on; '': as single records."""
    for month in months:
        at = {"receiver": receiver, "month": month}
        known = _sum_of(database.execute(_SUM, at).fetchone())
        if known.format != form:
            database.execute(_SET, {**at, **known._asdict(), "format": form})
            database.execute(_MARK, {"receiver": receiver})


def sums(database: Database, receiver: int) -> dict[int, MonthSum]:
    """Return what counts at a receiver, by month; months of which nothing does are left out."""
    found = database.execute(_SUMS, {"receiver": receiver}).fetchall()
    every = {month: MonthSum(jobs, bytes(digest), form) for month, jobs, digest, form in found}
    return {month: one for month, one in every.items() if one != MonthSum()}
