"""A-REX's finished jobs for reports, each with what only a report asks of it.

Jobs that are not complete yet count here: what they used is all there when they have an end.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from publisher.model.job import Epoch, JobRecord, gpus_by_model
from publisher.model.time import Window
from publisher.sources.arex import queries as sql
from publisher.sources.arex.counting.joined import ReopenedDatabases, known_of, lacking
from publisher.sources.arex.database import (
    BEFORE_ALL,
    LAST_SECOND,
    AccountingDatabase,
    RowPage,
    bounds,
    without_finished_in,
)
from publisher.sources.arex.options import database_files
from publisher.sources.arex.rows import ReadOptions, RowReader
from publisher.sources.base import JoinedRuns
from publisher.sources.statistics import LocalNames, UsageGroup, UsagePage

_PAGE_ROWS: Final = 4_000  # in one transaction, which no writer notices
_NOTHING: Final[Mapping[str, Any]] = {}
_FAILED: Final = "failed"


def create(
    options: object, environment: Mapping[str, str], joined: JoinedRuns | None = None
) -> ArexUsage:
    """Raises: ConfigError when the time zone cannot be found."""
    return ArexUsage(options, environment, joined)


class ArexUsage(ReopenedDatabases):
    """A `UsageReader`."""

    def groups(self, window: Window, eras: Sequence[Epoch]) -> Iterator[UsagePage]:
        # Nothing is waited for.
        asked = ReadOptions(needs=frozenset(), now=Epoch(LAST_SECOND), remembers=False)
        first, last = bounds(window)
        with ExitStack() as stack:
            opened: list[_UsageDatabase] = []
            for name, path, ce in database_files(self._options):
                reading = self._readings[ce]._replace(hold_off_s=0)
                opened.append(_UsageDatabase(path, self._copies, reading, name))
                opened[-1].joined = self._joined_of(path)
                stack.callback(opened[-1].close)
            # The most authoritative first, as `ArexSource` has them.
            opened.sort(key=lambda each: -each.schema)
            for place, database in enumerate(opened):
                after = first, BEFORE_ALL
                while True:
                    found = database.page(after, last, asked, opened[:place])
                    yield UsagePage(
                        groups=tuple(_group(job, eras) for job in found.verdicts.jobs),
                        unreadable=len(found.verdicts.skipped),
                        rows_read=len(found.rows),
                    )
                    if len(found.rows) < _PAGE_ROWS:
                        break
                    after = found.rows[-1][sql.END], found.rows[-1][0]


class _UsageDatabase(AccountingDatabase):
    """One accounting database, open for a report."""

    joined: JoinedRuns | None = None

    def page(
        self,
        after: tuple[int, int],
        last: int,
        asked: ReadOptions,
        above: Sequence[AccountingDatabase],
    ) -> RowPage:
        """Rows by (EndTime, RecordID) past that position. Raises: SourceError."""
        parameters = {"first": after[0], "after": after[1], "last": last, "limit": _PAGE_ROWS}

        def read(connection: sqlite3.Connection, reader: RowReader) -> RowPage:
            row_filter = without_finished_in(above)
            found = self._read(sql.WINDOW, parameters, asked, row_filter, connection, reader)
            self._join(connection, reader, found)
            return found

        return self.ask(read)

    def _join(self, connection: sqlite3.Connection, reader: RowReader, found: RowPage) -> None:
        """Add what batch systems know of the jobs, and leave out those that they count.

        Raises: sqlite3.Error.
        """
        jobs = found.verdicts.jobs
        rows: list[tuple[Any, ...]] = [
            (job.row.record_id, job.local_id, job.submitted_at, job.ended_at, job.wall_s)
            for job in jobs
        ]
        known = known_of(connection, reader, self.joined, rows)
        if known:
            values_of = [known.get(job.row.record_id, _NOTHING) for job in jobs]
            found.verdicts.jobs = [
                job._replace(**lacking(job, values))
                for job, values in zip(jobs, values_of, strict=True)
                if values is not None
            ]


def _group(job: JobRecord, eras: Sequence[Epoch]) -> UsageGroup:
    exit_code = job.exit_code if job.status == _FAILED else None
    cpu_s = None if job.cpu_unknown else job.cpu_user_s + job.cpu_kernel_s
    waits_s = () if job.started_at is None else (job.started_at - job.submitted_at,)
    return UsageGroup(
        era=bisect_right(eras, job.ended_at),
        example=job,
        names=LocalNames(next(iter(job.projects), ""), job.local_group, job.local_user),
        exit_code=exit_code,
        jobs=1,
        wall_s=job.wall_s,
        cpu_s=cpu_s,
        waits_s=waits_s,
        gpus=gpus_by_model(job.gpu_count, job.gpu_models),
    )
