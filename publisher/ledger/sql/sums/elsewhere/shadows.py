"""What a shadow recorded, moved to the receiver of its target once it is a shadow no more.

Another publisher sent what the shadow only recorded. So its entries are closed at the shadow, and
entered at the receiver with a message that was never ours, for months of which that has nothing
from us. Everything runs inside the caller's transaction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import counts, message_rows
from publisher.ledger.sql.sums.balances import Addition, BalanceChanges
from publisher.ledger.sql.sums.elsewhere import adopted
from publisher.model.entry import CLOSING, JOB_OF_RUN, Entry, RecordKey, RowFields, RowKey
from publisher.model.receiver import KnownReceiver, MovedMonth
from publisher.model.totals import host_of

_PORTION: Final = 2_000  # entries in memory, of 1 kB
_MONTHS: Final = """
SELECT DISTINCT month FROM row_key JOIN balance ON balance.row_key = row_key.id
WHERE receiver = :receiver AND (jobs > 0 OR sent_jobs > 0)"""
_PENDING_MONTHS: Final = """
SELECT DISTINCT month FROM entry JOIN row_key ON row_key.id = entry.row_key
WHERE entry.receiver = :receiver AND entry.state = 2"""
_COUNTING: Final = f"""
SELECT entry.run, scope.site, scope.localid_prefix, entry.local_id, entry.ended_at,
       row_key.month, row_key.digest, row_key.fields, entry.wall_s, entry.cpu_s, entry.digest,
       entry.jobs, scope.source, entry.posting, entry.row_key, posting.settings, posting.made_at,
       coalesce((SELECT min(format) FROM message WHERE message.posting = posting.id), ''),
       EXISTS (SELECT 1 FROM message JOIN month_message ON month_message.message = message.id
               WHERE message.posting = posting.id),
       {entries.PREFIX}
FROM entry JOIN scope ON scope.id = entry.scope JOIN row_key ON row_key.id = entry.row_key
    JOIN posting ON posting.id = entry.posting
WHERE entry.receiver = :shadow AND entry.run > :after AND entry.state = 1
ORDER BY entry.run LIMIT :portion"""
_STAYS_CLOSED: Final = """
UPDATE receiver SET closed = (SELECT closed FROM receiver WHERE id = :shadow), mark = mark + 1
WHERE id = :receiver AND closed < (SELECT closed FROM receiver WHERE id = :shadow)"""
_MOVE_REPORTED: Final = """
UPDATE sync_count SET receiver = :receiver
WHERE receiver = :shadow AND reported IS NOT NULL AND NOT EXISTS
    (SELECT 1 FROM sync_count AS other WHERE other.receiver = :receiver
     AND other.month = sync_count.month AND other.host = sync_count.host)"""


class _Origin(NamedTuple):
    """What the entries of one posting have in common."""

    month: int
    settings: str
    format: str
    totals: bool


def move(
    database: Database,
    numbers: entries.Numbers,
    target: int,
    shadow: KnownReceiver,
    there: KnownReceiver,
) -> list[MovedMonth]:
    """Move a target's entries from its shadow; return the months, and how many runs of each.

    A run that the receiver has in another month stays as it is there.
    """
    months = _months(database, _MONTHS, shadow) - _months(database, _MONTHS, there)
    months -= _months(database, _PENDING_MONTHS, there)
    moving = _Moving(database, numbers, target, shadow, there)
    after = b""
    asked = {"shadow": shadow.number, "portion": _PORTION}
    while found := database.execute(_COUNTING, asked | {"after": after}).fetchall():
        after = found[-1][0]
        moving.take([row for row in found if row[5] in months])
    moving.write(months)
    return [MovedMonth(month, moving.runs[month], shadow, there) for month in sorted(moving.runs)]


def _months(database: Database, question: str, receiver: KnownReceiver) -> set[int]:
    found = database.execute(question, {"receiver": receiver.number})
    return {month for (month,) in found.fetchall()}


class _Moving:
    """The entries that leave a shadow. Memory: a portion of them, and some sums by row."""

    def __init__(
        self,
        database: Database,
        numbers: entries.Numbers,
        target: int,
        shadow: KnownReceiver,
        there: KnownReceiver,
    ) -> None:
        self._database = database
        self._numbers = numbers
        self._target = target
        self._shadow = shadow.number
        self._there = there.number
        by = f"recorded by its shadow (receiver {shadow.number})"
        self._reason = f"{by}; another publisher sent it"
        self._messages: dict[_Origin, tuple[int, int]] = {}  # with their postings
        self._left = BalanceChanges()
        self._jobs: Counter[tuple[int, str]] = Counter()
        self.runs: Counter[int] = Counter()  # by month

    def take(self, rows: Sequence[Any]) -> None:
        """Close some entries at the shadow, and let them count at the receiver."""
        runs = [row[0] for row in rows]
        known = entries.recorded(self._database, self._there, runs)
        coming: defaultdict[_Origin, list[Entry]] = defaultdict(list)
        made: dict[_Origin, int] = {}
        for row in rows:
            entry, (row_key, settings, made_at, form, totals, prefix) = _entry(row), row[14:]
            kind = _Origin(entry.row.month, settings, form, bool(totals))
            made[kind] = max(made_at, made.get(kind, 0))
            usage = entry.jobs, entry.wall_s, entry.cpu_s
            counted = Addition(row_key, *usage, entry.record.ended_at, prefix)
            self._left.take_away(entry.run, counted)
            self._jobs[entry.row.month, host_of(entry.row.fields.text)] -= entry.jobs
            if entry.run not in known:
                coming[kind].append(entry)
        gone = [(row[0], row[13]) for row in rows]
        entries.set_states(self._database, entries.HISTORY, self._shadow, gone)
        for kind, of_kind in coming.items():
            at = self._message(kind, made[kind])
            columns = entries.constants(self._database, self._numbers, self._there, of_kind)
            adopted.enter(self._database, self._there, at, columns, totals=kind.totals)
            self.runs[kind.month] += sum(entry.jobs for entry in of_kind)

    def _message(self, kind: _Origin, made_at: int) -> tuple[int, int]:
        if kind not in self._messages:
            of_records = not kind.totals
            of = entries.Posting(self._there, self._target, kind.settings, made_at, of_records)
            at = adopted.unknown_message(self._database, of, kind.format, self._reason)
            if kind.totals:
                message_rows.link(self._database, self._target, at[0], [kind.month])
            self._messages[kind] = at
        return self._messages[kind]

    def write(self, months: set[int]) -> None:
        """Bring the sums of the shadow up to date: of these months it has nothing any more."""
        self._left.write(self._database, self._shadow)
        counts.change(self._database, self._shadow, self._jobs)
        message_rows.forget_sent(self._database, self._shadow, months)
        both = {"shadow": self._shadow, "receiver": self._there}
        self._database.execute(_MOVE_REPORTED, both)
        self._database.execute(_STAYS_CLOSED, both)


def _entry(row: Sequence[Any]) -> Entry:
    run, site, prefix, local_id, ended_at, month, digest, fields, wall_s, cpu_s, values = row[:11]
    if bytes(run)[JOB_OF_RUN] == CLOSING:  # it is not the first of its row there
        local_id = str(ended_at)
    record = RecordKey(site, prefix, local_id, ended_at)
    key = RowKey(month, RowFields(digest, fields))
    return Entry(run, record, key, wall_s, cpu_s, values, jobs=row[11], source=row[12])
