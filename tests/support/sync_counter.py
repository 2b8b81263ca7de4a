"""Sync counts of published jobs, made without a ledger, as a second opinion on what the counts must be."""

from __future__ import annotations

from collections.abc import Iterator

from publisher.model.published import PublishedJob
from publisher.model.time import Month
from publisher.model.totals import SyncCount, ascii_key, column, month_number, year_and_month


class SyncCounter:
    """Counts jobs by site, submit host and month of their end, as the server keys them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str], tuple[tuple[str, str], int]] = {}

    def add(self, job: PublishedJob) -> None:
        """Count a job that its format admits. Raises: Unfit when it ended in no calendar month."""
        self._add(month_number(job.ended_at), ascii_key(job.where.site), ascii_key(job.where.receiver_host), 1)

    def add_count(self, count: SyncCount) -> None:
        """Count what was counted before, such as the jobs that an earlier publisher delivered."""
        self._add(
            Month(count.year, count.month).number, ascii_key(count.site), ascii_key(count.submit_host), count.jobs
        )

    def merge(self, other: SyncCounter) -> None:
        for count in other.counts():
            self.add_count(count)

    def counts(self) -> Iterator[SyncCount]:
        """All counts, by month, site and submit host."""
        for key in sorted(self._counts):
            (site, host), jobs = self._counts[key]
            year, month = year_and_month(key[0])
            yield SyncCount(site=site, submit_host=host, year=year, month=month, jobs=jobs)

    def _add(self, month: int, site: str, host: str, jobs: int) -> None:
        key = (month, column(site), column(host))
        spelling, counted = self._counts.get(key, ((site, host), 0))
        self._counts[key] = (min(spelling, (site, host)), counted + jobs)
