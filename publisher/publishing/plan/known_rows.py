"""The rows of totals that a receiver has, as the plan compares them and as people read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from publisher.formats import receiver_of
from publisher.formats.base import SummaryFormat
from publisher.model.entry import RowId, RowTotal, Usage
from publisher.model.totals import (
    GroupKey,
    KeyTotal,
    group_key,
    group_of,
    groups_of,
    row_for_people,
)
from publisher.publishing.plan.rows import Delta


class KnownRows:
    """The rows of some months, by the receiver's keys."""

    def __init__(self, rows: Iterable[RowTotal], form_of: Callable[[int], SummaryFormat]) -> None:
        self._form_of = form_of
        self._rows = {row.key.id: row for row in rows}
        self._keys = {
            at: group_key(form_of(at.month).grouping, group_of(row))
            for at, row in self._rows.items()
        }

        self._of_key: defaultdict[GroupKey, list[RowTotal]] = defaultdict(list)
        for at, row in self._rows.items():
            self._of_key[self._keys[at]].append(row)

    @property
    def counts(self) -> Mapping[RowId, Usage]:
        return {at: row.counts for at, row in self._rows.items()}

    def key_of(self, row: RowId) -> GroupKey:
        return self._keys[row]

    def text_of(self, row: RowId) -> str:
        """Return the key of a row as people read it."""
        return row_for_people(self._rows[row], by_level=True).key.text

    def of_key(self, key: GroupKey) -> Sequence[RowTotal]:
        """Return the rows with a key."""
        return self._of_key[key]

    def for_people(self, key: GroupKey) -> KeyTotal:
        """Return the rows with a key as people read them."""
        rows = self._of_key[key]
        form = self._form_of(key[0])
        (grouped,) = groups_of(form.grouping, rows)
        return grouped.group.row(by_level=form.receiver.keeps_benchmark_values)


def rows_for_people(rows: Iterable[RowTotal], form: str = "") -> tuple[KeyTotal, ...]:
    """Return what counts in rows of a format ('': of single records), as people read it."""
    by_level = not form or receiver_of(form).keeps_benchmark_values
    return tuple(row_for_people(row, by_level=by_level) for row in rows if row.counts.jobs)


def changed_row(row: RowTotal, delta: Delta | None) -> RowTotal:
    """Return a row with what a round brings and takes away."""
    if delta is None:
        return row
    first, last = delta.first_end, delta.last_end
    if row.counts.jobs:
        first, last = min(row.first_end, first), max(row.last_end, last)
    return row._replace(counts=row.counts.plus(delta.usage), first_end=first, last_end=last)
