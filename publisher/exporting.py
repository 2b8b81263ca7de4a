"""Finished jobs for other systems, one by one: what the accounting data has, and what the site says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from publisher.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.job_columns import ExportedJob
from publisher.model.local_stats import JobFilter
from publisher.model.policy import RecordPolicy
from publisher.model.progress import OpenRow
from publisher.sources.accounts import Accounts, accounts_plugin
from publisher.wiring import Site

RowsRead = Callable[[int], None]
_LONG_AGO = Epoch(0)  # a job that waits for what belongs to its row is handed out as it is


@dataclass(slots=True)
class LeftOut:
    """Jobs that a filter takes and that are not handed out: still in progress, or with a row that cannot be read."""

    in_progress: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)  # by rule


def jobs(site: Site, wanted: JobFilter, *, left_out: LeftOut, rows_read: RowsRead) -> Iterator[ExportedJob]:
    """The finished jobs that a filter takes, in bounded memory, each database in the order of its index.

    Raises: SourceError.
    """
    policy = site.settings.policy
    source = site.settings.source
    accounts: Accounts = accounts_plugin(source.type).create(source.options, site.surroundings.environment)
    with closing(accounts), closing(site.source()) as records:
        for page in accounts.counted(wanted):
            finished = [row for row, job in zip(page.rows, page.jobs, strict=True) if not job.in_progress]
            left_out.in_progress += len(page.jobs) - len(finished)
            rows = [OpenRow(row=row, finished_seen_at=_LONG_AGO) for row in finished]
            for found in records.look_again(rows, frozenset(), site.surroundings.clock()):
                left_out.in_progress += len(found.open)
                left_out.unreadable.update(skipped.rule for skipped in found.skipped)
                for job in found.jobs:
                    yield _exported(job, policy)
            rows_read(page.rows_read)


def _exported(job: JobRecord, policy: RecordPolicy) -> ExportedJob:
    try:
        return ExportedJob(job=job, published=policy.describe(job), unfit="")
    except Unfit as unfit:
        return ExportedJob(job=job, published=None, unfit=str(unfit))
