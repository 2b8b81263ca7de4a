"""What a round holds back, as the ledger keeps it, and what of it an administrator may accept.

What is held is planned first in every round, from the job store. A run that the store does not have
any more is set aside, with what it would have counted for: so nothing that waits is forgotten.
`--accept-key-change` accepts rows as they were shown last; others are held, and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from publisher.ledger.contract import Holds
from publisher.model.entry import Entry, RowId, RowTotal, RunKey
from publisher.model.job import JobId, SkippedJob
from publisher.model.receiver import HeldRow, HeldRun, shown
from publisher.model.totals import BlockedMonth, GroupKey, grouping_of, row_for_people
from publisher.publishing.plan.actions import Action, Example
from publisher.publishing.plan.months import MonthKinds, of_other_kind
from publisher.publishing.plan.reasons import held_month
from publisher.publishing.plan.rows import (
    HeldRows,
    KnownRows,
    Moved,
    RowChanges,
    hold_back,
    retracted,
    rows_emptied,
    rows_for_people,
    staying,
)

_FLUSH: Final = 1_000  # runs in memory, of 900 bytes


class HeldBefore:
    """The holds of a target's receiver, and what becomes of them in this round.

    `runs`: those that this target is to plan first, and not another one. Memory grows with runs
    that were held before, 200 bytes each, and with rows.
    """

    def __init__(
        self,
        target: str,
        beside: Collection[str],
        ledger: Holds,
        clock: Callable[[], datetime],
        *,
        again: bool,
    ) -> None:
        """`beside`: the other targets of the receiver. `again`: months are published again."""
        self._target = target
        self._beside = beside
        self._ledger = ledger
        self._clock = clock
        self._again = again
        self._since = clock()
        self._before = {} if again else ledger.runs(target)
        self.runs = frozenset(run for run, by in self._before.items() if by not in beside)
        self._met: set[RunKey] = set()
        self._ended: set[RunKey] = set()
        self._runs: list[HeldRun] = []
        self._rows: set[RowId] = set()
        self._shown: Collection[tuple[RowId, bytes]] | None = None

    # Runs

    def meet(self, runs: Iterable[RunKey]) -> None:
        """Note that the store has these runs (hot path)."""
        if self._before:
            self._met.update(run for run in runs if run in self._before)

    def end(self, run: RunKey) -> None:
        """Note that nothing of a run is to change any more."""
        if run in self.runs:
            self._ended.add(run)

    def hold(self, entry: Entry, job: JobId, month: int, reason: str) -> None:
        """Hold a run that would count so; `month`: where people find it."""
        if not self._again:
            self._runs.append(HeldRun(entry, job, month, reason))
            if len(self._runs) >= _FLUSH:
                self.write_down()

    def write_down(self) -> None:
        """Write down which runs are held: before how far was read."""
        if self._runs:
            self._ledger.hold_runs(self._target, self._runs, self._clock())
            self._runs.clear()

    # Rows

    def accepts(self, rows: Iterable[RowId], shown: bytes) -> bool:
        """Return whether rows were shown so when they were held last."""
        if self._shown is None:
            self._shown = self._ledger.rows_shown(self._target)
        return any((row, shown) in self._shown for row in rows)

    def hold_rows(self, rows: Sequence[HeldRow]) -> None:
        """Hold rows, and keep what is shown of them."""
        self._rows.update(one.row for one in rows)
        if rows:
            self._ledger.hold_rows(self._target, rows, self._clock(), again=self._again)

    # The end of a round

    def not_found(self) -> Sequence[SkippedJob]:
        """Set runs aside that the job store does not have, though all sources are loaded."""
        if not self._before:
            return ()
        found = self._ledger.not_found(self._target, self._met, self._since)
        own = {run: job for run, (by, job) in found.items() if by not in self._beside}
        self._ended.update(own)
        return list(own.values())

    def conclude(self, *, is_whole: bool) -> None:
        """Write down what is held; `is_whole`: every row that waits was planned."""
        self.write_down()
        if self._ended or is_whole:
            but = self._rows if is_whole else None
            self._ledger.end(self._target, self._ended, but=but)


Rows = Callable[[int], Sequence[RowTotal]]


class Held(NamedTuple):
    """What is held back of rows: months for people, and by row of ours why its runs wait."""

    blocked: list[BlockedMonth]
    reasons: Mapping[RowId, Action]
    runs: list[tuple[RowId, Moved, list[Example]]]


def stays(month: BlockedMonth, rows: Sequence[RowTotal]) -> list[HeldRow]:
    """Return those of a month's rows that would stay, as a republish shows them."""
    reason, found = held_month(month).reason, []
    for row in rows:
        as_shown = {row_for_people(row, by_level=by_level) for by_level in (True, False)}
        found += [
            HeldRow(row.key.id, row.counts, reason, shown(one))
            for one in as_shown.intersection(month.orphaned)
        ]
    return found


class RowConsent:
    """What an administrator accepts in a round, or holds back, of the rows of its months."""

    def __init__(
        self, kinds: MonthKinds, rows_of: Rows, before: HeldBefore, *, accepts: bool
    ) -> None:
        """`accepts`: what was shown last."""
        self._kinds = kinds
        self._rows_of = rows_of
        self._before = before
        self._accepts = accepts
        self._other_kind: dict[int, tuple[str, Sequence[RowTotal]]] = {}
        self._overruled: dict[int, str] = {}

    @property
    def overruled(self) -> Collection[int]:
        """Months of which totals are sent, with consent, though they are there otherwise."""
        return self._overruled

    def change_kind(self, month: int, was: str, own: Sequence[RowTotal]) -> None:
        """Ask whether totals may come to what the receiver has of a month in another table.

        `was`: the format of that, '' of single records; `own`: the rows that the target has there.
        """
        self._other_kind[month] = was, own

    def hold_months(self, changes: RowChanges) -> list[BlockedMonth]:
        """Hold the months that are there otherwise, unless all that would stay is accepted.

        One goes over whole: where some of its jobs cannot be sent again, it stays as it is.
        """
        found = []
        for month, (was, own) in sorted(self._other_kind.items()):
            held = of_other_kind(self._kinds.months[month])
            by_level = self._kinds.format_of(month).grouping.by_level
            elsewhere = [row for row in own if grouping_of(row).by_level is not by_level]
            if lost := staying(elsewhere, changes.taken()):
                found.append(held._replace(lost_jobs=lost))
                continue
            reason = held_month(held).reason
            rows = self._not_replaced(month, was, own, changes)
            stay = [
                HeldRow(row.key.id, row.counts, reason, shown(total))
                for row in rows
                for total in rows_for_people([row], was)
            ]
            if self._accepts and all(self._before.accepts((one.row,), one.shown) for one in stay):
                self._overruled[month] = was
            else:
                self._before.hold_rows(stay)
                found.append(held._replace(orphaned=rows_for_people(rows, was)))
        return found

    def _not_replaced(
        self, month: int, was: str, own: Sequence[RowTotal], changes: RowChanges
    ) -> Sequence[RowTotal]:
        """Return the rows that a month has in another table, and that its totals do not replace.

        The sums that the receiver makes of single records have keys with a benchmark's value: it
        replaces those that totals with such keys say again.
        """
        form = self._kinds.format_of(month)
        if was or not form.receiver.keeps_benchmark_values:
            return own
        there = self._there(changes)
        empty = rows_emptied(changes, there.counts, there.key_of)
        stay = () if form.takes_zeros else empty.by_data | empty.by_settings
        return [row for key in sorted(stay) if key[0] == month for row in there.of_key(key)]

    def hold_rows(self, changes: RowChanges) -> Held:
        """Take changes back that would leave rows behind, or lose runs, without consent."""
        there = self._there(changes)
        lost = retracted(changes.moves, there.key_of)

        def shown_of(key: GroupKey) -> bytes:
            return shown(there.for_people(key), lost[key])

        def is_accepted(key: GroupKey) -> bool:
            if key[0] in self._other_kind:
                return True
            rows = (row.key.id for row in there.of_key(key))
            return self._accepts and self._before.accepts(rows, shown_of(key))

        held = hold_back(changes, there.counts, there.key_of, self.takes_zeros, is_accepted)
        blocked: list[BlockedMonth] = []
        reasons: dict[RowId, Action] = {}
        for month, of_month in groupby(sorted(held.keys), itemgetter(0)):
            keys = list(of_month)
            zeros = self._kinds.format_of(month).takes_zeros
            rows, jobs = tuple(map(there.for_people, keys)), sum(lost[key] for key in keys)
            blocked.append(BlockedMonth(month, rows, jobs, emptied=zeros))
            action = held_month(blocked[-1])
            stay = [
                HeldRow(row.key.id, row.counts, action.reason, shown_of(key))
                for key in keys
                for row in there.of_key(key)
            ]
            self._before.hold_rows(stay)
            reasons |= dict.fromkeys((one.row for one in stay), action)
        return Held(blocked, reasons, list(_runs(held, there)))

    def takes_zeros(self, key: GroupKey) -> bool:
        """Return whether a row of the receiver is emptied by a record of zeros."""
        return self._kinds.format_of(key[0]).takes_zeros

    def _there(self, changes: RowChanges) -> KnownRows:
        rows = [row for month in sorted(changes.moving_months()) for row in self._rows_of(month)]
        return KnownRows(rows)


def _runs(
    held: HeldRows[GroupKey], there: KnownRows
) -> Iterator[tuple[RowId, Moved, list[Example]]]:
    for move, moved in held.moves.items():
        text = there.text_of(move.old)
        yield move.old, moved, [Example(job, text) for job in moved.jobs]
