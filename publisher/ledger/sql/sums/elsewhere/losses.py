"""Months of which the ledger may lack something, from the time when that was noticed until solved.

Everything that writes runs inside the caller's transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import counts, month_sums
from publisher.ledger.sql.sums.balances import Addition, BalanceChanges
from publisher.model.job import Epoch
from publisher.model.receiver import Loss, MonthSum
from publisher.model.totals import host_of, month_window

# The other host of a pair may notice the same later, by what it knew, and that is not news.
_NOTE: Final = """
INSERT INTO loss (receiver, month, noticed_at, mark, last_at, jobs, digest, solved_at)
VALUES (:receiver, :month, :now, :mark, :last_at, :jobs, :digest, NULL)
ON CONFLICT (receiver, month) DO UPDATE SET
    noticed_at = excluded.noticed_at, mark = excluded.mark, last_at = excluded.last_at,
    jobs = excluded.jobs, digest = excluded.digest, solved_at = NULL
WHERE excluded.mark > loss.mark"""
# A window that was broken off in the lost ledger is not where the restored one has it.
_FORGET_WINDOWS: Final = """
DELETE FROM window_progress WHERE target IN (SELECT id FROM target WHERE receiver = :receiver)"""
_HELD: Final = """
SELECT loss.month, noticed_at, last_at, loss.jobs, loss.digest, month_sum.jobs, month_sum.digest
FROM loss
LEFT JOIN month_sum ON month_sum.receiver = loss.receiver AND month_sum.month = loss.month
WHERE loss.receiver = :receiver AND solved_at IS NULL ORDER BY loss.month"""
_MARKS: Final = "SELECT month, mark FROM loss WHERE receiver = :receiver"
_SOLVE: Final = """
UPDATE loss SET solved_at = :now
WHERE receiver = :receiver AND month = :month AND solved_at IS NULL"""
# The next round of each target looks at every row: what waited is behind its cursors.
_LOOK_AT_ALL: Final = "UPDATE target SET swept = NULL WHERE receiver = :receiver"
_ALL_IS_SENT: Final = """
UPDATE balance SET sent_jobs = jobs, sent_wall_s = wall_s, sent_cpu_s = cpu_s
WHERE sent_by IS NOT NULL AND row_key IN (
    SELECT id FROM row_key WHERE receiver = :receiver AND month = :month)"""
_NOTHING_IS_SENT: Final = """
UPDATE balance SET sent_jobs = 0, sent_wall_s = 0, sent_cpu_s = 0
WHERE sent_by IS NOT NULL AND row_key IN (
    SELECT id FROM row_key WHERE receiver = :receiver AND month = :month)"""
_SINGLE: Final = f"""
SELECT entry.run, entry.posting, entry.row_key, entry.jobs, entry.wall_s, entry.cpu_s,
       entry.ended_at, {entries.PREFIX}, row_key.month, row_key.fields
FROM entry JOIN row_key ON row_key.id = entry.row_key
JOIN posting ON posting.id = entry.posting JOIN scope ON scope.id = entry.scope
LEFT JOIN balance ON balance.row_key = entry.row_key
LEFT JOIN month_sum ON month_sum.receiver = row_key.receiver AND month_sum.month = row_key.month
WHERE entry.receiver = :receiver AND entry.ended_at >= :start AND entry.ended_at < :end
    AND entry.state IN (1, 3) AND (balance.sent_by IS NULL OR month_sum.format = '')
ORDER BY entry.ended_at LIMIT :portion"""
# Which record of a job came first there is no question any more.
_HISTORY_IS_DELETED: Final = """
UPDATE entry SET state = 4
WHERE +receiver = :receiver AND ended_at >= :start AND ended_at < :end AND state = 0"""
_PORTION: Final = 5_000  # entries in memory


def note(
    database: Database,
    receiver: int,
    lost: Mapping[int, MonthSum | None],
    mark: int,
    last_at: int | None,
    now: int,
) -> None:
    """Hold months of a receiver, each with what should count of it; None where nobody knows.

    `mark`: how far the ledger had come that is lost; `last_at`: when it handed over last.
    """
    at: dict[str, object] = {"receiver": receiver, "now": now, "mark": mark, "last_at": last_at}
    rows = [
        at | {"month": month, "jobs": one and one.jobs, "digest": one and one.digest}
        for month, one in sorted(lost.items())
    ]
    database.execute_many(_NOTE, rows)
    for month, one in lost.items():
        if one is not None:  # it goes on as it began
            month_sums.go_on(database, receiver, [month], one.format)
    database.execute(_FORGET_WINDOWS, {"receiver": receiver})


def held(database: Database, receiver: int | None) -> list[Loss]:
    """Return the months of a receiver that wait for an administrator, in order."""
    found = database.execute(_HELD, {"receiver": receiver}).fetchall()
    return [
        Loss(month, noticed_at, last_at, _sum(sums[:2]), _sum(sums[2:]) or MonthSum())
        for month, noticed_at, last_at, *sums in found
    ]


def months(database: Database, receiver: int | None) -> frozenset[int]:
    """Return the months of a receiver that wait or have waited for an administrator."""
    found = database.execute(_MARKS, {"receiver": receiver}).fetchall()
    return frozenset(month for month, _ in found)


def to_hold(
    database: Database,
    receiver: int,
    lost: Mapping[int, MonthSum | None],
    mark: int,
    last_at: int | None,
    now: Epoch,
) -> list[Loss]:
    """Return the months that would wait if these were noted; nothing is written."""
    marks = dict(database.execute(_MARKS, {"receiver": receiver}).fetchall())
    counted, last = month_sums.sums(database, receiver), None if last_at is None else Epoch(last_at)
    found = {one.month: one for one in held(database, receiver)} | {
        month: Loss(month, now, last, before, counted.get(month, MonthSum()))
        for month, before in lost.items()
        if mark > marks.get(month, -1)
    }
    return [found[month] for month in sorted(found)]


def _sum(row: Sequence[Any]) -> MonthSum | None:
    return None if row[0] is None else MonthSum(row[0], bytes(row[1]))


def solve(database: Database, receiver: int, months: Iterable[int], now: int) -> None:
    """Hold months no longer."""
    solved = [{"receiver": receiver, "month": month, "now": now} for month in months]
    database.execute_many(_SOLVE, solved)
    database.execute(_LOOK_AT_ALL, {"receiver": receiver})


def all_is_sent(database: Database, receiver: int, months: Iterable[int]) -> None:
    """Keep that the receiver was told of each row of totals what counts in it."""
    rows = [{"receiver": receiver, "month": month} for month in months]
    database.execute_many(_ALL_IS_SENT, rows)


def forget(database: Database, receiver: int, month: int) -> None:
    """Let no single record of a month count, and no row of its totals be said: all is deleted.

    Nobody says the totals of a month again that goes on as single records: its runs count no more.
    """
    window = month_window(month)
    asked = {"receiver": receiver, "start": window.start, "end": window.end, "portion": _PORTION}
    while found := database.execute(_SINGLE, asked).fetchall():
        balances, jobs, gone = BalanceChanges(), Counter[tuple[int, str]](), []
        for run, posting, *entry, at, fields in found:
            gone.append((run, posting))
            balances.take_away(bytes(run), Addition(*entry))
            jobs[at, host_of(fields)] -= entry[1]
        entries.set_states(database, entries.DELETED, receiver, gone)
        balances.write(database, receiver)
        counts.change(database, receiver, jobs)
    database.execute(_HISTORY_IS_DELETED, asked)
    database.execute(_NOTHING_IS_SENT, {"receiver": receiver, "month": month})
    if not month_sums.sums(database, receiver).get(month, MonthSum()).jobs:  # it begins anew
        month_sums.go_on(database, receiver, [month], "")
