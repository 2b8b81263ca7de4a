"""Jobs as totals have them, without a ledger: they add up to rows, and rows to the groups that go out."""

from __future__ import annotations

from collections.abc import Iterable

from publisher.formats.rows import SummaryRows
from publisher.model.entry import RowId, RowKey, RowTotal, Usage
from publisher.model.published import PublishedJob
from publisher.model.totals import Grouping, SummaryGroup, groups_of, month_number


def summed(jobs: Iterable[PublishedJob], grouping: Grouping) -> list[SummaryGroup]:
    rows = SummaryRows(grouping)
    totals: dict[RowId, RowTotal] = {}
    for job in jobs:
        key = RowKey(month_number(job.ended_at), rows.of(job))
        one = RowTotal(key, Usage(), job.ended_at, job.ended_at)
        row = totals.get(key.id, one)
        used = Usage(1, job.job.wall_s, job.job.cpu_user_s + job.job.cpu_kernel_s)
        totals[key.id] = row._replace(
            counts=row.counts.plus(used),
            first_end=min(row.first_end, job.ended_at),
            last_end=max(row.last_end, job.ended_at),
        )
    return [grouped.group for grouped in groups_of(grouping, totals.values())]
