"""As what the months of a receiver began: single records, or totals of a format.

The first message fixes the kind of a month at a receiver that takes both, since APEL's summaries
overwrite what its summariser makes of job records. A month goes on in the format that it began in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from publisher.formats import is_summary_format, receiver_of, summary_format
from publisher.formats.base import SummaryFormat
from publisher.formats.rows import SummaryRows
from publisher.model.entry import MonthTotals, RowKey, Usage
from publisher.model.published import PublishedJob
from publisher.model.totals import SINGLE_RECORDS, BlockedMonth, month_number
from publisher.publishing.plan.decision import Publish


class MonthKinds:
    """The months of a target's receiver, as the ledger has them, and how each goes on."""

    def __init__(
        self,
        form: SummaryFormat,
        months: Callable[[], Sequence[MonthTotals]],
        *,
        again: bool,
        begin_as_records: bool,
    ) -> None:
        """`form`: in which months begin, unless they `begin_as_records`.

        `months`: as the ledger has them. `again`: months are published again, in that format.
        """
        self._format = form
        self._begin_as_records = begin_as_records
        self._ask = months
        self._again = again
        self._months: Mapping[int, MonthTotals] | None = None
        self._forms: dict[int, SummaryFormat | None] = {}
        self._row_keys: dict[str, SummaryRows] = {}

    @property
    def months(self) -> Mapping[int, MonthTotals]:
        """The months that the ledger knows."""
        if self._months is None:
            self._months = {month.month: month for month in self._ask()}
        return self._months

    def refresh(self) -> None:
        """Ask the ledger again: what it has of months has changed."""
        self._months = None

    def form_of(self, month: int) -> SummaryFormat | None:
        """Return the format in which a month goes on.

        None where it was sent as single records, or if it is published again in another table.
        """
        if month not in self._forms:
            self._forms[month] = self._kind_of(self.months.get(month))
        return self._forms[month]

    def format_of(self, month: int) -> SummaryFormat:
        """Return the format in which a month is sent, if it is."""
        return self.form_of(month) or self._format

    def row_of(self, month: int, published: PublishedJob) -> RowKey:
        """Return the row of a job in the format in which its month is sent."""
        form = self.format_of(month)
        if form.name not in self._row_keys:
            self._row_keys[form.name] = SummaryRows(form.grouping)
        return RowKey(month, self._row_keys[form.name].of(published))

    def in_its_month(self, fit: Publish) -> PublishedJob | None:
        """Return a job as its month has it; None for one that counts in one of single records.

        A run that ends again in a month of the other kind goes on in the month where it counts.
        """
        published, known = fit.published, fit.known
        month = month_number(published.ended_at)
        if known is None or known.row.month == month:
            return published
        if self._is_of_records(known.row.month):
            return None
        if self._is_of_records(month):
            return published._replace(ended_at=known.record.ended_at)
        return published

    def _is_of_records(self, month: int) -> bool:
        known = self.months.get(month)
        if known is None or is_new(known):
            return self._begin_as_records
        return is_of_records(known)

    def _kind_of(self, known: MonthTotals | None) -> SummaryFormat | None:
        if known is None or is_new(known):
            return self._format
        if is_of_records(known):
            return None
        there = receiver_of(known.format)
        if self._again:
            return self._format if there.table == self._format.receiver.table else None
        return summary_format(known.format) if is_summary_format(known.format) else self._format


def is_new(known: MonthTotals) -> bool:
    """Return whether the receiver has nothing of a month, and is sent nothing."""
    return not (known.format or known.pending) and known.counts == known.sent == Usage()


def is_of_records(known: MonthTotals | None) -> bool:
    """Return whether the receiver has single records of a month."""
    return known is not None and not known.format and not is_new(known)


def of_other_kind(known: MonthTotals) -> BlockedMonth:
    """Return a month that the receiver has in another table, or as single records."""
    was = known.format or SINGLE_RECORDS
    ticket_after, jobs = not known.format, known.counts.jobs
    return BlockedMonth(known.month, (), 0, was=was, ticket_after=ticket_after, jobs=jobs)
