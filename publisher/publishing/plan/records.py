"""What becomes of a run's single record at a receiver that adds records up under keys of its own.

A record keeps the key that it was sent under, whatever settings and source say by now: site, prefix
of local ids, local id and end. Only `republish` changes it, and then the old record goes on
counting. Runs that come to another row may leave the old one without any: such runs are held, since
the receiver deletes no row that it has made. New runs keep no row alive: they may be refused alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from publisher.model.entry import Entry, Recorded, RecordKey, RowId, RowTotal, Usage
from publisher.model.published import PublishedJob
from publisher.model.totals import column
from publisher.publishing.plan.rows import HeldRows, RowChanges, hold_back, rows_emptied
from publisher.publishing.plan.runs import difference


def as_compared(key: RecordKey) -> tuple[str, str, int]:
    """Return a record key as the receiver compares it."""
    return column(key.site), column(key.localid_prefix + key.local_id), key.ended_at


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

    def hold(self, is_accepted: Callable[[RowId], bool]) -> tuple[HeldRows[RowId], list[RowId]]:
        """Hold the runs that would empty rows without consent; the others may go.

        Return what is held, and the rows that are emptied with consent.
        """
        none = _takes_no_zeros
        held = hold_back(self._changes, self._counts, _row_itself, none, is_accepted)
        return held, self.emptied()

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


def _row_itself(row: RowId) -> RowId:
    return row


def _takes_no_zeros(_: RowId) -> bool:
    return False
