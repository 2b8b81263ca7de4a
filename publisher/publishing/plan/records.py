"""What becomes of a run's single record at a receiver that adds records up under keys of its own.

A record keeps the key that it was sent under, whatever settings and source say by now: site, prefix
of local ids, local id and end. Only `republish` changes it, and then the old record goes on
counting. Runs that come to another row may leave the old one without any: such runs are held, since
the receiver deletes no row that it has made. New runs keep no row alive: they may be refused alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from publisher.model.entry import Entry, Recorded, RecordKey, RowId, RowTotal, Usage
from publisher.model.published import PublishedJob
from publisher.model.time import epoch
from publisher.model.totals import column, id_column, month_number
from publisher.publishing.plan.rows import HeldRows, RowChanges, hold_back, rows_emptied
from publisher.publishing.plan.runs import difference


def as_compared(key: RecordKey) -> tuple[str, str, int]:
    """Return a record key as the receiver compares it."""
    return column(key.site), id_column(key.localid_prefix + key.local_id), key.ended_at


def pinned(published: PublishedJob, known: Recorded | None) -> PublishedJob:
    """Return a job under the record key that it was sent under."""
    if known is None:
        return published
    key, where = known.record, published.where
    if (key.site, key.localid_prefix) != (where.site, where.localid_prefix):
        where = where._replace(site=key.site, localid_prefix=key.localid_prefix)
    local_id = key.localid_prefix + key.local_id
    return published._replace(where=where, local_id=local_id, ended_at=key.ended_at)


class RecordMoves:
    """The runs of a round, or of a republish, that come to another row than they counted in."""

    def __init__(self, settings: str, rows_of: Callable[[int], Sequence[RowTotal]]) -> None:
        """`rows_of`: the rows of a month as the ledger has them before."""
        self._settings = settings
        self._rows_of = rows_of
        self._rows: dict[RowId, RowTotal] = {}
        self._counts: dict[RowId, Usage] = {}
        self._months: set[int] = set()
        self._changes = RowChanges()

    def add(self, entry: Entry, known: Recorded) -> bool:
        """Take a run; return whether it comes to another row."""
        if known.row == entry.row.id:
            return False
        self._look_up(known.row.month)
        self._look_up(entry.row.month)
        self._changes.add(entry, known, self._settings, difference(entry, known))
        self._counts.setdefault(entry.row.id, Usage())
        return True

    def arrives(self, known: Recorded) -> None:
        """Count a run whose first record is under way: it arrives before the others are sent."""
        at = known.row
        self._look_up(at.month)
        row = self._rows[at]
        self._rows[at] = row._replace(counts=row.counts.plus(known.usage))
        self._counts[at] = self._counts[at].plus(known.usage)

    def hold(self, is_accepted: Callable[[RowId], bool]) -> HeldRows[RowId]:
        """Hold the runs that would empty rows without consent; the others may go."""
        none = _takes_no_zeros
        held = hold_back(self._changes, self._counts, _row_itself, none, is_accepted)
        self._let_go()
        return held

    def emptied(self) -> list[RowId]:
        """Return the rows that are emptied, and let the runs go."""
        found = rows_emptied(self._changes, self._counts, _row_itself)
        self._let_go()
        return sorted(found.by_data | found.by_settings)

    def row(self, row: RowId) -> RowTotal:
        """Return a row as the ledger had it, with what arrives."""
        self._look_up(row.month)
        return self._rows[row]

    def _let_go(self) -> None:
        for row, delta in self._changes.deltas().items():
            self._counts[row] = self._counts[row].plus(delta.usage)
        self._changes = RowChanges()

    def _look_up(self, month: int) -> None:
        if month not in self._months:
            self._months.add(month)
            for row in self._rows_of(month):
                self._rows[row.key.id] = row
                self._counts[row.key.id] = row.counts


class OldRows:
    """Rows of months of which the receiver may have purged the job records that it made them of.

    It makes a row again of the records that it has then. So a record that comes to such a row, or
    leaves it, goes with those of all other runs that count there; rows that count nothing yet are
    new, and their records go as they come. Memory grows with rows.
    """

    def __init__(self, kept_from: int, rows_of: Callable[[int], Sequence[RowTotal]]) -> None:
        """`kept_from`: the first month of which the receiver has all records."""
        self._kept_from = kept_from
        self._rows_of = rows_of
        self._counted: dict[int, dict[RowId, int]] = {}  # by month, before this round
        self._touched: set[RowId] = set()
        self._found: Counter[RowId] = Counter()
        self._moves: set[tuple[RowId, RowId]] = set()

    @property
    def months(self) -> Sequence[int]:
        """The months with rows that are touched."""
        return sorted({row.month for row in self._touched})

    def is_old(self, month: int) -> bool:
        """Return whether a month has such rows."""
        return month < self._kept_from and bool(self._of_month(month))

    def touch(self, entry: Entry, known: Recorded | None) -> bool:
        """Note that a run is to be sent; return whether that is with others of its rows."""
        there = [row for row in _rows_of_run(entry, known) if self._count(row)]
        self._touched.update(there)
        return bool(there)

    def rows(self, entry: Entry, known: Recorded | None) -> set[RowId]:
        """Return the touched rows that a run counts in, or is to count in."""
        return self._touched.intersection(_rows_of_run(entry, known))

    def see(self, entry: Entry, known: Recorded | None, *, is_changed: bool) -> None:
        """Count a run of a touched month that can be sent: as it counts, or changed."""
        if known is None:
            return
        if is_changed or (entry.row.id, entry.digest) == (known.row, known.digest):
            self._found[known.row] += 1
        if is_changed and entry.row.id != known.row:
            self._moves.add((known.row, entry.row.id))

    def missing(self) -> dict[RowId, int]:
        """Return touched rows of which runs cannot be sent, and how many.

        A run that would come to such a row stays in its own, which lacks its record then.
        """
        lacks = {
            row: self._count(row) - self._found[row]
            for row in self._touched
            if self._found[row] < self._count(row)
        }
        while more := {old for old, new in self._moves if new in lacks and old not in lacks}:
            lacks |= dict.fromkeys(more, 0)
        return lacks

    def _count(self, row: RowId) -> int:
        return self._of_month(row.month).get(row, 0)

    def _of_month(self, month: int) -> Mapping[RowId, int]:
        if month not in self._counted:
            rows = {row.key.id: row.counts.jobs for row in self._rows_of(month)}
            self._counted[month] = {row: jobs for row, jobs in rows.items() if jobs}
        return self._counted[month]


def _rows_of_run(entry: Entry, known: Recorded | None) -> set[RowId]:
    return {entry.row.id} if known is None else {entry.row.id, known.row}


def first_kept(single_months: int, now: datetime) -> int:
    """Return the first month of which the receiver has all job records; 0: it purges none."""
    return month_number(epoch(now)) - single_months + 1 if single_months else 0


def by_month(rows: Mapping[RowId, int]) -> dict[int, dict[RowId, int]]:
    """Return numbers of rows by the month of these."""
    found: defaultdict[int, dict[RowId, int]] = defaultdict(dict)
    for row, number in rows.items():
        found[row.month][row] = number
    return found


def _row_itself(row: RowId) -> RowId:
    return row


def _takes_no_zeros(_: RowId) -> bool:
    return False
