"""Sync counts: how many jobs of each month a site holds per submit host, for APEL to compare with what it stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from publisher.model.policy import PublishedJob
from publisher.model.row_keys import column, month_number, month_number_of, said, year_and_month


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncCount:
    """How many jobs of a month a site holds for a submit host."""

    site: str
    submit_host: str
    year: int
    month: int
    jobs: int


class SyncCounter:
    """Counts jobs by site, submit host and month of their end, as the server keys them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str], tuple[tuple[str, str], int]] = {}

    def add(self, job: PublishedJob) -> None:
        """Count a job that its format admits. Raises: Unfit when it ended in no calendar month."""
        self._add(month_number(job.ended_at), said(job.where.site), said(job.where.spelt_host), 1)

    def add_count(self, count: SyncCount) -> None:
        """Count what was counted before, such as the jobs that an earlier publisher delivered."""
        self._add(month_number_of(count.year, count.month), said(count.site), said(count.submit_host), count.jobs)

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
