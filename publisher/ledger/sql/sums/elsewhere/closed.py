"""Months that are closed (`keep`): one closing entry a row, in the place of those of its runs.

A closing entry counts what the entries of its row did: so many jobs, their wall and CPU time. Its
end is the last one of the row, and its local id the first. It has a posting without a message.

    three runs of May 2024 in a row: 3 entries   ->  1 entry of 3 jobs
    a run of May of a job that ran again in June ->  its entry stays: a later run is told by it
    a run of May whose totals went to June       ->  the same

So no row, no count by host and no sum but the digest of the month changes. Months are closed in
order, each in the caller's transaction, up to a month that is kept with the receiver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import left, postings, receivers
from publisher.ledger.sql.sums.balances import Addition, BalanceChanges
from publisher.ledger.sql.sums.elsewhere import losses
from publisher.model.entry import CLOSING, JOB_OF_RUN, closing_run
from publisher.model.time import Window
from publisher.model.totals import CLOSED, month_window

_SET_BOUND: Final = "UPDATE receiver SET closed = :closed, mark = mark + 1 WHERE id = :receiver"
_MONTHS: Final = """
SELECT DISTINCT month FROM row_key
WHERE receiver = :receiver AND month >= :closed AND month < :before ORDER BY month"""
# Runs that were submitted later are told apart by their entries alone.
_ENTRIES: Final = f"""
SELECT entry.run, entry.posting, entry.row_key, entry.scope, entry.local_id, entry.ended_at,
       entry.jobs, entry.wall_s, entry.cpu_s, entry.digest, entry.state, {entries.PREFIX}
FROM entry JOIN posting ON posting.id = entry.posting JOIN scope ON scope.id = entry.scope
WHERE entry.ended_at >= :from AND entry.ended_at < :end AND +entry.receiver = :receiver
    AND entry.run < :submitted
    AND (entry.ended_at > :from OR entry.run > :run
         OR entry.run = :run AND entry.posting > :posting)
ORDER BY entry.ended_at, entry.run, entry.posting LIMIT :portion"""
_BEYOND: Final = """
WITH asked (first_run, last_run) AS (VALUES {asked})
SELECT DISTINCT asked.first_run FROM asked CROSS JOIN entry
WHERE entry.receiver = :receiver AND entry.run >= asked.first_run AND entry.run <= asked.last_run
    AND (entry.ended_at >= :end OR entry.state IN (2, 3))"""
_DELETE: Final = """
DELETE FROM entry WHERE receiver = :receiver AND run = :run AND posting = :posting"""
_COUNT: Final = """
UPDATE entry SET state = 1 WHERE receiver = :receiver AND posting = :posting"""
_FORGET_EARLIER: Final = """
DELETE FROM earlier_month
WHERE month < :closed AND target IN (SELECT id FROM target WHERE receiver = :receiver)"""
# What keeps a month open: a question with an answer, and what that says.
_OPEN: Final = (
    (
        "SELECT EXISTS (SELECT 1 FROM message WHERE receiver = :receiver AND state < 2)"
        " OR EXISTS (SELECT 1 FROM posting WHERE receiver = :receiver AND NOT sealed)",
        "messages are under way or in doubt",
    ),
    (
        "SELECT EXISTS (SELECT 1 FROM hold JOIN row_key ON row_key.id = hold.row_key"
        " WHERE hold.receiver = :receiver AND (hold.month <= :month OR row_key.month <= :month))",
        "runs or rows of it are held",
    ),
    (
        "SELECT EXISTS (SELECT 1 FROM waiting JOIN target ON target.id = waiting.target"
        " WHERE target.receiver = :receiver AND waiting.ended_at > 0 AND waiting.ended_at < :end)",
        "runs of it wait to be sent",
    ),
    (
        "SELECT EXISTS (SELECT 1 FROM balance JOIN row_key ON row_key.id = balance.row_key"
        " JOIN month_sum ON month_sum.receiver = row_key.receiver"
        " AND month_sum.month = row_key.month"
        " WHERE row_key.receiver = :receiver AND row_key.month = :month AND sent_by IS NOT NULL"
        " AND month_sum.format <> '' AND (sent_jobs <> balance.jobs"
        " OR sent_wall_s <> balance.wall_s OR sent_cpu_s <> balance.cpu_s))",
        "rows of it were sent with other numbers than count now",
    ),
)
_ASKED: Final = 400  # at once: an SQLite without more takes 999 parameters
_PORTION: Final = 4_000  # entries in memory
_LAST_OF_JOB: Final = b"\xff" * 4


def months(database: Database, receiver: int, before: int) -> list[int]:
    """Return the months before one that have rows and are not closed, and the last, in order."""
    asked = {"receiver": receiver, "closed": receivers.closed(database, receiver), "before": before}
    found = {month for (month,) in database.execute(_MONTHS, asked).fetchall()}
    return sorted(found | {before - 1}) if asked["closed"] < before else []


def kept_open_by(database: Database, receiver: int, month: int) -> str:
    """Return what has to be settled before a month can be closed; '' for nothing."""
    if any(one.month <= month for one in left.months(database, receiver)):
        return "something is to be deleted at the receiver: `publisher sync --check` shows it"
    if losses.held(database, receiver):
        return "months are held since the ledger was restored or lost"
    asked = {"receiver": receiver, "month": month, "end": month_window(month).end}
    why = (text for question, text in _OPEN if database.execute(question, asked).fetchone()[0])
    return next(why, "")


def close(database: Database, receiver: int, target: int, month: int, now: int) -> int:
    """Close a month, and all before it; return how many entries it had. Memory: sums by row."""
    closing = _Closing(database, receiver)
    window = month_window(month)
    for portion in _portions(database, receiver, window):
        beyond = _beyond(database, receiver, portion, window.end or 0)
        closing.take([row for row in portion if row[0][JOB_OF_RUN] not in beyond])
    closing.write(target, now)
    bounds = {"receiver": receiver, "closed": month + 1}
    database.execute(_SET_BOUND, bounds)
    database.execute(_FORGET_EARLIER, bounds)
    return closing.entries


def _portions(database: Database, receiver: int, window: Window) -> Iterator[list[Any]]:
    submitted = (window.end or 0).to_bytes(4)
    asked = {"receiver": receiver, "end": window.end, "submitted": submitted, "portion": _PORTION}
    after = {"from": window.start, "run": b"", "posting": 0}
    while found := database.execute(_ENTRIES, asked | after).fetchall():
        run, posting, _, _, _, end = found[-1][:6]
        after = {"from": end, "run": run, "posting": posting}
        rows = [(bytes(run), *rest) for run, *rest in found]
        yield [row for row in rows if row[0][JOB_OF_RUN] != CLOSING]


def _beyond(
    database: Database, receiver: int, rows: Sequence[Sequence[Any]], end: int
) -> set[bytes]:
    """Return the jobs of which the receiver has something after a month, or that stays there."""
    jobs = sorted({row[0][JOB_OF_RUN] for row in rows})
    found: set[bytes] = set()
    for start in range(0, len(jobs), _ASKED):
        some = jobs[start : start + _ASKED]
        asked: dict[str, object] = {"receiver": receiver, "end": end}
        for number, job in enumerate(some):
            asked[f"first{number}"], asked[f"last{number}"] = job, job + _LAST_OF_JOB
        named = ", ".join(f"(:first{one}, :last{one})" for one in range(len(some)))
        question = _BEYOND.format(asked=named)
        found |= {bytes(job) for (job,) in database.execute(question, asked).fetchall()}
    return found


class _Closing:
    """The entries of a month that are summed up."""

    def __init__(self, database: Database, receiver: int) -> None:
        self._database = database
        self._receiver = receiver
        self._balances = BalanceChanges()
        self._rows: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 1 << 62, 0])
        self._postings: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        self.entries = 0

    def take(self, rows: Sequence[Sequence[Any]]) -> None:
        """Delete entries, and add up those that count."""
        gone = []
        for run, posting, row_key, scope, local_id, end, jobs, wall_s, cpu_s, *rest in rows:
            digest, state, prefix = rest
            gone.append({"receiver": self._receiver, "run": run, "posting": posting})
            constant = run, row_key, scope, local_id, end, jobs, wall_s, cpu_s, bytes(digest)
            of_posting = self._postings[posting]
            of_posting[0] += 1
            of_posting[1] += entries.checksum([constant])
            if state == entries.COUNTS and jobs:
                entry = Addition(row_key, jobs, wall_s, cpu_s, end, prefix)
                self._balances.take_away(run, entry)
                sums = self._rows[row_key]
                first, last = min(sums[3], end), max(sums[4], end)
                sums[:] = sums[0] + jobs, sums[1] + wall_s, sums[2] + cpu_s, first, last
        self._database.execute_many(_DELETE, gone)
        self.entries += len(gone)

    def write(self, target: int, now: int) -> None:
        """Enter the closing entries, and bring up to date what follows from them."""
        for posting, (number, checksum) in self._postings.items():
            postings.change(self._database, posting, -number, -checksum)
            postings.forget_empty(self._database, posting)
        if not self._rows:
            return
        scope = entries.nothing_shared(self._database)
        rows = []
        for row_key, (jobs, wall_s, cpu_s, first, last) in sorted(self._rows.items()):
            run = closing_run(row_key)
            rows.append((run, row_key, scope, str(first), last, jobs, wall_s, cpu_s, b""))
            self._balances.add(run, Addition(row_key, jobs, wall_s, cpu_s, last, ""))
        of = entries.Posting(self._receiver, target, CLOSED, now, of_records=False)
        posting = entries.post(self._database, of, [], sealed=True)
        postings.add(self._database, self._receiver, posting, rows)
        at = {"receiver": self._receiver, "posting": posting}
        self._database.execute(_COUNT, at)
        self._balances.write(self._database, self._receiver)
