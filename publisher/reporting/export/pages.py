"""Finished jobs for other systems, page by page, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from publisher.model.errors import SourceError, Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.message import OpenRow
from publisher.model.time import Window
from publisher.publishing.site import Site
from publisher.reporting.charges.power import Power
from publisher.reporting.export.columns import ExportedJob
from publisher.sources.base import Page
from publisher.sources.statistics import Accounts, JobFilter

RowsRead = Callable[[int], None]
_LONG_AGO: Final = Epoch(0)  # a job that waits for what belongs to its row is handed out as it is


@dataclass(slots=True)
class SkippedJobs:
    """Jobs that a filter takes and that are left out: in progress, or with an unreadable row."""

    in_progress: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)  # by rule


class FinishedJobs:
    """The finished jobs of a site, with what the site says of them."""

    def __init__(self, site: Site, *, left_out: SkippedJobs, rows_read: RowsRead) -> None:
        self._site = site
        self._source = site.accounting.open()
        self._left_out = left_out
        self._rows_read = rows_read
        self._power = site.records.power or Power()

    def close(self) -> None:
        self._source.close()

    def pages(self, wanted: JobFilter) -> Iterator[Sequence[ExportedJob]]:
        """Those that a filter takes, each database in the order of its rows or of an index.

        Raises: SourceError.
        """
        source, clock = self._source, self._site.process.clock
        every = wanted == JobFilter(ended=wanted.ended)
        for page in self._all(wanted.ended) if every else self._filtered(wanted):
            rows = [OpenRow(row=row.row, finished_seen_at=_LONG_AGO) for row in page.open]
            for each in [page, *(source.reread(rows, frozenset(), clock()) if rows else ())]:
                self._left_out.in_progress += len(each.open) if each is not page else 0
                self._left_out.unreadable.update(skipped.rule for skipped in each.skipped)
                yield list(map(self._described, each.jobs))
            self._rows_read(page.rows_read)

    def _all(self, ended: Window) -> Iterator[Page]:
        source, now = self._source, self._site.process.clock()
        if ended != Window():
            yield from source.window(ended, frozenset(), now)
            return
        for database in source.databases():
            for page in source.since(None, database, frozenset(), now):
                if page.restarted:
                    replaced = "it was replaced while it was read; export it again"
                    raise SourceError(f"{database}: {replaced}")
                yield page

    def _filtered(self, wanted: JobFilter) -> Iterator[Page]:
        """The rows that a filter takes are read by their numbers."""
        accounts: Accounts = self._site.accounting.accounts()
        with closing(accounts):
            for page in accounts.counted(wanted):
                rows = tuple(OpenRow(row=row, finished_seen_at=None) for row in page.rows)
                yield Page(jobs=(), open=rows, rows_read=page.rows_read)

    def _described(self, job: JobRecord) -> ExportedJob:
        policy, published, reason = self._site.records.policy, None, ""
        try:
            published = policy.describe(job)
        except Unfit as unfit:
            reason = str(unfit)
        energy = self._power.energy(job)
        return ExportedJob(job=job, policy=policy, published=published, unfit=reason, energy=energy)
