"""Entries of totals that begin to count, and what follows them in the same transaction.

The entry of a run that counted before becomes history, or, where the receiver keeps the first
record of an id, the new one does at once. Balances and the counts of jobs by host follow.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from publisher.ledger.sql import entries
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.sums import counts, holds
from publisher.ledger.sql.sums.balances import Addition, BalanceChanges
from publisher.model.job import Epoch, RunKey
from publisher.model.totals import column, host_of

_PORTION: Final = 5_000  # entries in memory, of 700 bytes
_TARGET: Final = "SELECT target FROM posting WHERE id = :posting"
# What a pending entry counts for, and the entry of its run that counts until now.
_COMING: Final = f"""
SELECT coming.run, coming.row_key, coming.jobs, coming.wall_s, coming.cpu_s, coming.ended_at,
       {entries.PREFIX},
       was.row_key, was.jobs, was.wall_s, was.cpu_s, was.ended_at,
       CASE WHEN earlier.keyed THEN were.localid_prefix ELSE '' END,
       scope.site, scope.localid_prefix, coming.local_id, was.posting,
       were.site, were.localid_prefix, was.local_id, earlier.keyed"""
_BEFORE: Final = """
LEFT JOIN entry AS was
    ON was.receiver = coming.receiver AND was.run = coming.run AND was.state = 1
LEFT JOIN scope AS were ON were.id = was.scope
LEFT JOIN posting AS earlier ON earlier.id = was.posting"""
# `CROSS JOIN` keeps SQLite to the order of the tables: of a posting, a message costs its own runs.
_OF_MESSAGE: Final = f"""{_COMING}
FROM message_entry CROSS JOIN entry AS coming CROSS JOIN posting CROSS JOIN scope{_BEFORE}
WHERE posting.id = coming.posting AND scope.id = coming.scope
    AND message_entry.message = :message AND message_entry.run > :after
    AND coming.receiver = :receiver AND coming.run = message_entry.run
    AND coming.posting = :posting
ORDER BY message_entry.run LIMIT :portion"""
_OF_POSTING: Final = f"""{_COMING}
FROM entry AS pending CROSS JOIN entry AS coming CROSS JOIN posting CROSS JOIN scope{_BEFORE}
WHERE posting.id = coming.posting AND scope.id = coming.scope AND pending.posting = :posting
    AND pending.receiver = :receiver AND pending.run > :after
    AND pending.state = 2
    AND coming.receiver = pending.receiver AND coming.run = pending.run
    AND coming.posting = pending.posting
ORDER BY pending.run LIMIT :portion"""
_OF_RUN: Final = f"""{_COMING}
FROM entry AS coming CROSS JOIN posting CROSS JOIN scope{_BEFORE}
WHERE posting.id = coming.posting AND scope.id = coming.scope
    AND coming.receiver = :receiver AND coming.run = :run AND coming.posting = :posting"""
# Other single records with the end of a pending one that are at the receiver.
_SAME_END: Final = """
SELECT other.run, other.posting, other.row_key, other.jobs, other.wall_s, other.cpu_s,
       other.ended_at, were.localid_prefix, were.site, were.localid_prefix, other.local_id,
       scope.site, scope.localid_prefix, coming.local_id
FROM entry AS pending CROSS JOIN entry AS coming CROSS JOIN entry AS other
JOIN scope ON scope.id = coming.scope
JOIN scope AS were ON were.id = other.scope
JOIN posting AS earlier ON earlier.id = other.posting
WHERE pending.posting = :posting AND pending.state = 2
    AND coming.receiver = pending.receiver AND coming.run = pending.run
    AND coming.posting = pending.posting
    AND +other.receiver = coming.receiver AND other.ended_at = coming.ended_at
    AND earlier.keyed
    AND (other.state = 3 OR (other.state = 1 AND other.run <> coming.run))"""
_SENT_BY: Final = "SELECT sent_by FROM balance WHERE row_key = :row_key"
_DELIVERED: Final = """
UPDATE target SET delivered = delivered + :new,
    last_end = CASE WHEN last_end > :last_end THEN last_end ELSE :last_end END
WHERE id = :target"""


class _Coming(NamedTuple):
    """An entry that begins to count, and the one that it replaces."""

    run: bytes
    entry: Addition
    was: Addition | None
    posting: int | None  # of the one that it replaces
    was_keyed: bool  # that one is of a single record
    is_one_record: bool  # both have one record key


class Settling:
    """Lets entries of a posting count. Memory: a portion of them, and some sums by row."""

    def __init__(self, database: Database, posting: int) -> None:
        self._database = database
        self._posting = posting
        self._receiver, self._keeps_first = entries.receiver_of(database, posting)
        (self._target,) = database.execute(_TARGET, {"posting": posting}).fetchone()
        self._balances = BalanceChanges()
        self._jobs: Counter[int] = Counter()  # by row
        self._is_sent: dict[int, bool] = {}  # by row, whether totals said it
        self._ends: tuple[int, int] | None = None  # the first and the last
        self._new = 0  # runs that never counted

    def of_message(self, message: int) -> None:
        """Let the pending entries count whose rows a message says."""
        for found in self._portions(_OF_MESSAGE, {"message": message}):
            self.count(found)

    def of_records(self) -> None:
        """Let all entries count, of which the receiver has the single records.

        What a record replaces counts no more: also that of another run under the same key, which
        an administrator released. An earlier record of the run under another key is left there.
        """
        if not self._keeps_first:
            self._replace_others()
        for found in self._portions(_OF_POSTING, {}):
            self.count(found, are_records=True)
        entries.count_pending(self._database, self._receiver, self._posting)

    def _replace_others(self) -> None:
        gone = []
        for row in self._database.execute(_SAME_END, {"posting": self._posting}).fetchall():
            run, posting, *entry = row[:8]
            if _is_one_record(row[8:11], row[11:14]):
                gone.append((run, posting))
                self._balances.take_away(run, Addition(*entry))
                self._jobs[entry[0]] -= entry[1]
        entries.set_states(self._database, entries.HISTORY, self._receiver, gone)

    def _portions(self, question: str, at: dict[str, object]) -> Iterator[list[_Coming]]:
        """Yield pending entries in the order of their runs, some at a time."""
        of_posting = {"posting": self._posting, "receiver": self._receiver, **at}
        after = b""
        while True:
            asked = {**of_posting, "after": after, "portion": _PORTION}
            found = list(map(_coming, self._database.execute(question, asked).fetchall()))
            if not found:
                return
            yield found
            after = found[-1].run

    def of_run(self, run: bytes) -> _Coming:
        """Return the entry of a run that is in the posting."""
        at = {"posting": self._posting, "receiver": self._receiver, "run": run}
        return _coming(self._database.execute(_OF_RUN, at).fetchone())

    def count(self, coming: Iterable[_Coming], *, are_records: bool = False) -> None:
        """Let entries count, in the place of those that did.

        A single record is left at the receiver if another one comes under another key, or totals
        come that do not say its row.
        """
        states: dict[int, list[tuple[bytes, int]]] = {
            state: [] for state in (entries.HISTORY, entries.COUNTS, entries.LEFT)
        }
        coming = list(coming)
        holds.end(self._database, self._receiver, [RunKey(one.run) for one in coming])
        for run, entry, was, posting, was_keyed, is_one_record in coming:
            is_later = self._keeps_first and was is not None
            if is_later:
                states[entries.HISTORY].append((run, self._posting))
                continue
            if not are_records:  # of which all others of the posting count, in one go
                states[entries.COUNTS].append((run, self._posting))
            if was is not None and posting is not None:
                is_left = was_keyed and (
                    not is_one_record if are_records else self._stays(was, entry)
                )
                states[entries.LEFT if is_left else entries.HISTORY].append((run, posting))
                if not is_left:
                    self._balances.take_away(run, was)
                    self._jobs[was.row_key] -= was.jobs
            self._balances.add(run, entry)
            self._jobs[entry.row_key] += entry.jobs
            if entry.jobs:
                first, last = self._ends or (entry.ended_at, entry.ended_at)
                self._ends = min(first, entry.ended_at), max(last, entry.ended_at)
                self._new += was is None
        for state, of_runs in states.items():
            entries.set_states(self._database, state, self._receiver, of_runs)

    def _stays(self, was: Addition, entry: Addition) -> bool:
        """Return whether the single record of an entry stays when totals have its run elsewhere."""
        if entry.jobs and entry.row_key == was.row_key:
            return False
        if was.row_key not in self._is_sent:
            found = self._database.execute(_SENT_BY, {"row_key": was.row_key}).fetchone()
            self._is_sent[was.row_key] = found is not None and found[0] is not None
        return was.jobs > 0 and not self._is_sent[was.row_key]

    def write(self) -> None:
        """Bring everything up to date that follows from the entries."""
        self.write_sums()
        if self._ends is not None:
            first, last = self._ends
            delivered = {"target": self._target, "new": self._new, "last_end": last}
            self._database.execute(_DELIVERED, delivered)
            counts.look_before_again(self._database, self._target, [Epoch(first)])

    def write_sums(self) -> None:
        """Bring the balances of rows and the jobs by host up to date."""
        keys = self._balances.write(self._database, self._receiver)
        by_host: Counter[tuple[int, str]] = Counter()
        for row, jobs in self._jobs.items():
            if jobs:
                month, _, fields = keys[row]
                by_host[month, host_of(fields)] += jobs
        counts.change(self._database, self._receiver, by_host)


def _coming(row: Sequence[Any]) -> _Coming:
    entry, posting, was_keyed = Addition(*row[1:7]), row[16], bool(row[20])
    if posting is None:
        return _Coming(row[0], entry, None, None, was_keyed=False, is_one_record=True)
    was = Addition(*row[7:13])
    is_one = was.ended_at == entry.ended_at and _is_one_record(row[13:16], row[17:20])
    return _Coming(row[0], entry, was, posting, was_keyed, is_one)


def _is_one_record(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether site, prefix and local id are one to a receiver, which does not mind case."""
    keys = [(column(site), column(prefix + local_id)) for site, prefix, local_id in (one, other)]
    return keys[0] == keys[1]
