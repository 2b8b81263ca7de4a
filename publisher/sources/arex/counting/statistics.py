"""A-REX's databases for local statistics: every job once, whatever its state; all of one job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from publisher.model.job import JobId, RowRef
from publisher.model.text import arex_unescape
from publisher.sources.arex.counting.count import BY, CountingDatabase, FilteredPage
from publisher.sources.arex.counting.job_details import (
    ids_from,
    name_texts,
    read_sheet,
    with_local_id,
)
from publisher.sources.arex.counting.joined import ReopenedDatabases
from publisher.sources.arex.database import stored_job_id
from publisher.sources.arex.options import database_files
from publisher.sources.arex.rows import Row
from publisher.sources.base import JoinedRuns
from publisher.sources.statistics import (
    CountedJob,
    CountedPage,
    JobDetails,
    JobFilter,
    NameKind,
    SummedPage,
    totals_of,
)

_SUMMED_PAGES: Final = 100  # in one transaction, where SQLite adds them up


def create(
    options: object, environment: Mapping[str, str], joined: JoinedRuns | None = None
) -> ArexAccounts:
    """Raises: ConfigError when the time zone cannot be found."""
    return ArexAccounts(options, environment, joined)


class ArexAccounts(ReopenedDatabases):
    """An `Accounts`."""

    @property
    def zone(self) -> str:
        return self._options.time_zone

    def counted(self, wanted: JobFilter) -> Iterator[CountedPage]:
        return self._counted(wanted, "")

    def _counted(self, wanted: JobFilter, by: str) -> Iterator[CountedPage]:
        if self._options.unescape:
            wanted = _in_both_spellings(wanted)
        with self._opened() as opened:
            for place, database in enumerate(opened):
                for page in database.pages(wanted, self._options.page_rows, by):
                    taken = _once(page, opened[:place], opened[place + 1 :])
                    rows = [RowRef(database=database.name, record_id=row[0]) for row, _ in taken]
                    jobs = tuple(job for _, job in taken)
                    yield CountedPage(jobs=jobs, rows=tuple(rows), rows_read=len(page.rows))

    def summed(self, wanted: JobFilter, by: str | None) -> Iterator[SummedPage]:
        grouped_by = _distinguish(wanted, by)
        if grouped_by is None:
            for page in self._counted(wanted, by or ""):
                groups = [(job, totals_of(job)) for job in page.jobs]
                yield SummedPage(groups=groups, rows_read=page.rows_read)
            return
        if self._options.unescape:
            wanted = _in_both_spellings(wanted)
        with self._opened() as opened:
            for place, database in enumerate(opened):
                above, below = opened[:place], opened[place + 1 :]
                limit = self._options.page_rows * _SUMMED_PAGES
                for found in database.summed(wanted, grouped_by, limit, [*above, *below]):
                    alone = [(job, totals_of(job)) for _, job in _once(found.alone, above, below)]
                    yield SummedPage(groups=[*found.groups, *alone], rows_read=found.rows_read)

    def names(self, kind: NameKind) -> frozenset[str]:
        with self._opened() as opened:
            return frozenset().union(*(name_texts(database, kind) for database in opened))

    def sheet(self, job_id: JobId) -> JobDetails | None:
        with self._opened() as opened:
            sheets = [read_sheet(one, job_id, one.clock, one.joined) for one in opened]
        found = [sheet for sheet in sheets if sheet is not None]
        if not found:
            return None
        # Where `counted` counts it. Sorting is stable: the most authoritative database comes first.
        best, *others = sorted(found, key=lambda sheet: sheet.in_progress or sheet.ended_at is None)
        return replace(best, elsewhere=tuple(other.row.database for other in others))

    def with_local_id(self, local_id: str) -> tuple[JobId, ...]:
        with self._opened() as opened:
            known = [JobId(found) for one in opened for found in with_local_id(one, local_id)]
        return tuple(dict.fromkeys(known))

    def ids_beginning(self, beginning: str, limit: int) -> tuple[JobId, ...]:
        with self._opened() as opened:
            near = {job_id for one in opened for job_id in ids_from(one, beginning, limit)}
        found = [JobId(job_id) for job_id in sorted(near) if job_id.startswith(beginning)]
        return tuple(found[:limit])

    @contextmanager
    def _opened(self) -> Iterator[list[CountingDatabase]]:
        """All databases, the most authoritative first: by schema, then as configured."""
        with ExitStack() as stack:
            opened = []
            for name, path, ce in database_files(self._options):
                database = CountingDatabase(path, self._copies, self._readings[ce], name)
                database.joined = self._joined_of(path)
                stack.callback(database.close)
                opened.append(database)
            yield sorted(opened, key=lambda each: -each.schema)


def _distinguish(wanted: JobFilter, by: str | None) -> str | None:
    """Which of `BY` tells the groups apart; None where it would take two, or single jobs."""
    if wanted.extras or wanted.gpus:
        return None
    asked = (by, by in BY), ("queue", wanted.queues), ("endpoint", wanted.interfaces)
    kinds = {kind for kind, is_asked in asked if kind and is_asked}
    return None if len(kinds) > 1 else next(iter(kinds), "")


def _once(
    page: FilteredPage, above: Sequence[CountingDatabase], below: Sequence[CountingDatabase]
) -> Sequence[tuple[Row, CountedJob]]:
    """The jobs that count here.

    A job counts where it is finished, else where it is, in the most authoritative database.
    """
    taken = page.taken
    for database in above:
        there = database.standing_among(row for row, _ in taken)
        taken = [one for one in taken if not _counts_there(*one, there, any_state=True)]
    for database in below:
        there = database.standing_among(row for row, job in taken if not _finished(row, job))
        taken = [one for one in taken if not _counts_there(*one, there, any_state=False)]
    return taken


def _counts_there(
    row: Row, job: CountedJob, there: Mapping[bytes, bool], *, any_state: bool
) -> bool:
    finished_there = there.get(stored_job_id(row))
    if finished_there is None:
        return False
    return finished_there or (any_state and not _finished(row, job))


def _finished(row: Row, job: CountedJob) -> bool:
    """As the other database would say it of its own row."""
    return bool(row[-1]) and not job.in_progress


def _in_both_spellings(wanted: JobFilter) -> JobFilter:
    """Values as they are, and as meant where they are from arcctl, which shows A-REX's escapes."""

    def both(values: frozenset[str]) -> frozenset[str]:
        return values | {arex_unescape(value) for value in values}

    return replace(
        wanted,
        vos=both(wanted.vos),
        users=both(wanted.users),
        states=both(wanted.states),
        queues=both(wanted.queues),
        interfaces=both(wanted.interfaces),
        extras={attribute: both(values) for attribute, values in wanted.extras.items()},
    )
