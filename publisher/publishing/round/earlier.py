"""Runs that a target sent under other settings than it has now, and that a republish would move.

A change of settings concerns runs without an entry, so these stay as they were sent. A plan counts
those that would have another row or record key now; the ledger keeps the number for `status` and
`statement`. Runs whose own data changed are not among them, because the next round sends these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from functools import cache

from publisher.formats import is_summary_format, receiver_of, summary_format
from publisher.formats.base import OnChange, RowKeys
from publisher.formats.rows import SummaryRows
from publisher.jobs.reader import JobPage, StoreReader
from publisher.ledger.contract import Entries, Ledger, Ledgers, Quarantine
from publisher.model.entry import (
    EarlierRuns,
    FieldChange,
    MonthTotals,
    Recorded,
    RowFields,
    RowId,
)
from publisher.model.errors import Later, PublisherError, Unfit, gravest
from publisher.model.job import key_of
from publisher.model.published import PublishedJob
from publisher.model.time import Window
from publisher.model.totals import month_number, month_window
from publisher.policy.target import Target
from publisher.publishing.plan.decision import Decider, Publish
from publisher.publishing.plan.records import as_compared
from publisher.publishing.plan.runs import record_key_of
from publisher.publishing.round.outcome import Outcome

# The row under which a run was sent, and the fields of the one that it would have now.
_Move = tuple[RowId, RowFields]


def with_earlier(
    outcome: Outcome,
    target: Target,
    settings: str,
    jobs: StoreReader,
    ledger: Ledger,
    ledgers: Ledgers,
    now: datetime,
    wait: Callable[[float], bool],
) -> Outcome:
    """Count the runs under earlier settings, keep the number in the ledger, and add it to a plan.

    What goes wrong is added to the outcome, and the plan stays.
    """
    there = receiver_of(target.format).on_change
    try:
        known = ledger.earlier.runs(target.name, settings)
        is_none = not known.at_most and known.counted_at is None
        if is_none or there is OnChange.KEEP_FIRST:  # a republish moves nothing there
            return outcome
        with jobs.snapshot():
            moves = _moves(target, jobs, ledger.entries, ledger.quarantine, wait)
            changes = _changes(target, moves, ledger.entries)
        months = _by_month(moves)
        with closing(ledgers.open()) as kept:
            kept.earlier.note(target.name, settings, months, now)
    except PublisherError as error:
        reason = "; ".join(filter(None, (outcome.reason, str(error))))
        return outcome._replace(
            outcome="error",
            reason=reason,
            exit_status=gravest([outcome.exit_status, error.exit_status]),
        )
    at_most = max(known.at_most, sum(months.values()))
    return outcome._replace(earlier=EarlierRuns(at_most, months, now, changes))


def _by_month(moves: Counter[_Move]) -> Mapping[int, int]:
    """Return how many runs of each month would have other keys now."""
    found = Counter[int]()
    for (row, _), runs in moves.items():
        found[row.month] += runs
    return dict(sorted(found.items()))


def _changes(target: Target, moves: Counter[_Move], entries: Entries) -> Mapping[FieldChange, int]:
    """Return how many runs have each change of a field of their rows. Raises: LedgerError."""
    found = Counter[FieldChange]()
    for month in sorted({row.month for row, _ in moves}):
        fields = {one.key.id: one.key.fields.named for one in entries.rows(target.name, month)}
        for (row, now), runs in moves.items():
            if row not in fields:
                continue
            was, becomes = fields[row], now.named
            names = (name for name in becomes if was.get(name, "") != becomes[name])
            found.update(
                {FieldChange(name, was.get(name, ""), becomes[name]): runs for name in names}
            )
    return {change: runs for change, runs in found.most_common() if runs}


def _moves(
    target: Target,
    jobs: StoreReader,
    entries: Entries,
    quarantine: Quarantine,
    wait: Callable[[float], bool],
) -> Counter[_Move]:
    """Return how many runs would have other keys now, by their row and the fields of the other."""
    there, is_summary = receiver_of(target.format).on_change, is_summary_format(target.format)
    known = {
        month.month: month
        for month in entries.months(target.name)
        # What was sent as single records is of another kind, whatever the settings.
        if month.counts.jobs and (month.format or not is_summary)
    }
    if not known:
        return Counter()
    window = Window(start=month_window(min(known)).start, end=month_window(max(known)).end)
    decider = Decider(target.selection(window), target.policy, "", there, again=True)
    keys, found = _Keys(target, known), Counter[_Move]()
    for page in jobs.window(window):
        if wait(0):
            raise Later("stopped on request")
        found.update(_other_keys(target, decider, keys, page, entries, quarantine))
    return found


def _other_keys(
    target: Target,
    decider: Decider,
    keys: _Keys,
    page: JobPage,
    entries: Entries,
    quarantine: Quarantine,
) -> Iterator[_Move]:
    """Yield the move of each run of a page that would have another key."""
    known = entries.recorded(target.name, page.runs)
    held = quarantine.held(target.name, [*map(key_of, page.runs)])
    for job, run in zip(page.jobs, page.runs, strict=True):
        recorded = known.get(run)
        if recorded is None or not recorded.counts:
            continue
        fit = decider.decide(job, run, recorded, held.get(key_of(run)))
        if isinstance(fit, Publish) and fit.digest == recorded.digest:
            try:
                other = keys.other(fit.published, recorded)
            except Unfit:  # it would be set aside
                continue
            if other is not None:
                yield recorded.row, other


class _Keys:
    """The keys of runs under the settings of now, in the kind in which each month began."""

    def __init__(self, target: Target, months: Mapping[int, MonthTotals]) -> None:
        self._form = target.format
        self._months = months
        self._rows = cache(_row_keys)

    def other(self, published: PublishedJob, recorded: Recorded) -> RowFields | None:
        """Return a run's fields where its row or record key is another. Raises: Unfit."""
        month = recorded.row.month
        known = self._months.get(month)
        form = known.format if known is not None and known.format else self._form
        fields = self._rows(form).of(published)
        if RowId(month_number(published.ended_at), fields.digest) != recorded.row:
            return fields
        own = record_key_of(published)
        if is_summary_format(form) or as_compared(own) == as_compared(recorded.record):
            return None
        return fields


def _row_keys(form: str) -> RowKeys | SummaryRows:
    """Return what works out the rows of a format that its receiver adds up."""
    if is_summary_format(form):
        return SummaryRows(summary_format(form).grouping)
    row_keys = receiver_of(form).row_keys
    if row_keys is None:
        raise AssertionError(f"{form} adds nothing up")
    return row_keys()
