"""What a round reads, everything new or a window again, and what may be noted once that is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from sys import maxsize
from typing import Final, Protocol, TypeVar

from publisher.ledger.contract import DeliveredRun, Hold, Ledger, Positions
from publisher.model.errors import Later
from publisher.model.job import (
    Epoch,
    JobKey,
    JobRecord,
    RowRef,
    RunValues,
    SideTable,
    SkippedJob,
    job_keys,
)
from publisher.model.message import OpenRow, Progress, WindowMark
from publisher.model.time import Window
from publisher.pipeline.guards.databases import inodes
from publisher.sources.base import Knows, Page, Source

Found = TypeVar("Found")

Read = tuple[Page, Progress]
_READINGS: Final = 5  # of all databases, while one of them is replaced
_QUARANTINE_PORTION: Final = 1000
_LONG_AGO: Final = Epoch(0)


class JobReader(Protocol):
    """A stream of pages. `repeats`: it yields rows that the same round may meet again."""

    repeats: bool

    def pages(self, now: datetime) -> Iterator[Read]: ...
    def once_more(self) -> JobReader:
        """All from where the ledger stands, each job by itself."""

    def after(self, ended_at: Epoch, row: RowRef) -> Progress | None:
        """How far it has come with this job of the page; None where only page ends are."""


@dataclass(slots=True, kw_only=True)
class IncrementalReader:
    """Open rows and quarantined jobs again, then what is after the cursors, or every row."""

    target: str
    source: Source
    ledger: Ledger
    needs: frozenset[SideTable]
    sweep: bool
    nearly_all_done: bool  # of a sweep: it is not the first, or the target begins with later jobs
    wants: Callable[[RunValues], bool]
    delivered_as_it_is: Callable[[RunValues, DeliveredRun], bool]
    repeats: bool = True

    def pages(self, now: datetime) -> Iterator[Read]:
        self.repeats = True
        see_numbering(self.target, self.source, self.ledger)
        yield from self._open_rows(now)
        yield from self._quarantined(now)
        self.repeats = False
        look = self.sweep and self.nearly_all_done
        for database in self.source.databases():
            cursor = None if self.sweep else self.ledger.cursor(self.target, database)
            done_with = partial(self._done_with, database) if look else None
            pages = self.source.since(cursor, database, self.needs, now, done_with)
            for page in numbered(pages, self.target, self.source, self.ledger, chained=True):
                cursors = (page.cursor,) if page.cursor else ()
                yield page, Progress(cursors=cursors, opened=page.open)

    def once_more(self) -> IncrementalReader:
        return replace(self, repeats=True)

    def after(self, ended_at: Epoch, row: RowRef) -> None:
        return None

    def _done_with(
        self, database: str, rows: Sequence[int], runs: Sequence[RunValues]
    ) -> list[bool]:
        """What was delivered as it is, or was never wanted. Quarantine wants a closer look."""
        keys = job_keys([run.job_id for run in runs], [run.local_id for run in runs])
        held = self.ledger.held(self.target, keys)
        wanted = [self.wants(run) for run in runs]
        refs = [RowRef(database=database, record_id=row) for row in rows]
        known = self.ledger.known(self.target, dict(zip(keys, refs, strict=True)))
        return [
            key not in held
            and (not yes or (key in known and self.delivered_as_it_is(run, known[key])))
            for run, key, yes in zip(runs, keys, wanted, strict=True)
        ]

    def _open_rows(self, now: datetime) -> Iterator[Read]:
        there = frozenset(self.source.databases())
        # Those of a database that is missing wait for it.
        rows = [row for row in self.ledger.open_rows(self.target) if row.row.database in there]
        still_open: set[RowRef] = set()
        pages = self.source.reread(rows, self.needs, now)
        for page in numbered(pages, self.target, self.source, self.ledger):
            still_open.update(row.row for row in page.open)
            yield page, Progress(opened=page.open)
        closed = tuple(row.row for row in rows if row.row not in still_open)
        if closed:
            yield Page(jobs=()), Progress(closed=closed)

    def _quarantined(self, now: datetime) -> Iterator[Read]:
        everything = self.ledger.quarantine(self.target)
        quarantined = (held for held in everything if held.hold is not Hold.DROPPED)
        while portion := list(islice(quarantined, _QUARANTINE_PORTION)):
            # A row without a JobID is in quarantine under a key of its own, which no job has once
            # there is one.
            nameless = {held.job.row: held.key for held in portion if not held.job.job_id}
            again = [OpenRow(row=held.job.row, finished_seen_at=None) for held in portion]
            pages = self.source.reread(again, self.needs, now)
            for page in numbered(pages, self.target, self.source, self.ledger):
                named = tuple(nameless[job.row] for job in page.jobs if job.row in nameless)
                yield page, Progress(left_quarantine=named)


@dataclass(slots=True, kw_only=True)
class WindowReader:
    """The finished jobs of a window, from where the last run stopped, until `most_rows` were read.

    It ends behind the page that reaches them, once any told a place from which to read on: rows of
    jobs that count in another database do not. `finished` tells then whether the window ended, too.
    """

    target: str
    window_progress: str
    source: Source
    ledger: Ledger
    needs: frozenset[SideTable]
    window: Window
    most_rows: int
    finished: bool = False
    repeats: bool = False

    def once_more(self) -> WindowReader:
        return replace(self, most_rows=maxsize)

    def after(self, ended_at: Epoch, row: RowRef) -> Progress:
        """What a message carried is behind it even if the page is not: nothing is sent again."""
        mark = WindowMark(window_progress=self.window_progress, ended_at=ended_at, row=row)
        return Progress(window_mark=mark)

    def pages(self, now: datetime) -> Iterator[Read]:
        stopped_at = self.ledger.window_progress(self.target, self.window_progress)
        # Where that database is gone by now (`migrate`), the place in it tells nothing.
        there = stopped_at is not None and stopped_at.row.database in self.source.databases()
        after = (stopped_at.ended_at, stopped_at.row) if stopped_at is not None and there else None
        where = self.target, self.source, self.ledger, self.window
        rows, self.finished, moved = 0, False, False
        for page in whole_window(*where, self.needs, now, after):
            if rows >= self.most_rows and moved:
                return
            rows += page.rows_read
            last = _last_position(page)
            moved = moved or last is not None
            yield page, self.after(*last) if last else Progress()
        self.finished = True


def whole_window(
    target: str,
    source: Source,
    ledger: Ledger,
    window: Window,
    needs: frozenset[SideTable],
    now: datetime,
    after: tuple[Epoch, RowRef] | None = None,
    *,
    columns: bool = False,
    knows: Knows | None = None,
) -> Iterator[Page]:
    """A window's pages, with those of its incomplete rows that were delivered before.

    They were held off long enough once, which is not remembered: a window by itself waits until a
    day after such a row's end.
    """
    see_numbering(target, source, ledger)
    pages = source.window(window, needs, now, after, columns=columns, knows=knows)
    for page in numbered(pages, target, source, ledger):
        if page.open:
            given_up = [row._replace(finished_seen_at=_LONG_AGO) for row in page.open]
            found = [job for whole in source.reread(given_up, needs, now) for job in whole.jobs]
            known = ledger.known(target, {job.key: job.row for job in found})
            jobs = (*page.jobs, *(job for job in found if job.key in known))
            page = replace(page, jobs=tuple(sorted(jobs, key=_position)))
        yield page


def undisturbed(source: Source, read: Callable[[], Found]) -> Found:
    """What is read of all databases, again where one was replaced meanwhile (`rotate`, `migrate`).

    A job that stands in two might be met in both otherwise, and one that went from one into another
    in neither. Raises: Later when they are replaced every time; SourceError.
    """
    for _ in range(_READINGS):
        there = inodes(source)
        found = read()
        if inodes(source) == there:
            return found
    raise Later(
        "the accounting databases were replaced each time that they were read; "
        "the next round reads them again"
    )


def see_numbering(target: str, source: Source, ledger: Positions) -> None:
    """See whether all rows have the numbers under which the ledger knows them, before any is read.

    Otherwise rows of a file that is replaced just after they were read would pass for the new ones.
    """
    for database in source.databases():
        ledger.check_numbering(target, database, source.fits)


def numbered(
    pages: Iterable[Page], target: str, source: Source, ledger: Positions, *, chained: bool = False
) -> Iterator[Page]:
    """The pages, after a look whether their rows have the numbers that the ledger knows them by.

    After each was read, because the file may have been replaced since it was last looked at. A page
    is of one database. `chained`: with each page the source looked, too, whether the last row of
    the page before it is still the same job (`Source.since`).
    """
    shown = False
    for page in pages:
        if shown and chained and not page.restarted:
            yield page
            continue
        database = _database_of(page)
        if database:
            ledger.check_numbering(target, database, source.fits, restarted=page.restarted)
            shown = True
        yield page


def _database_of(page: Page) -> str:
    """'' for a page that has nothing of which it could be seen."""
    if page.cursor is not None:
        return page.cursor.database
    if (columns := page.runs or page.known) is not None:
        return columns.database
    rows = [job.row for job in page.jobs[:1]] + [skipped.row for skipped in page.skipped[:1]]
    return rows[0].database if rows else ""


def mark_behind(
    reading: JobReader,
    quarantined: Sequence[SkippedJob],
    left: Sequence[JobKey],
    ended_at: Epoch,
    row: RowRef,
) -> Progress | None:
    """What may be noted with a job within a page: also what was set aside before it."""
    mark = reading.after(ended_at, row)
    if mark is None or not (quarantined or left):
        return mark
    return mark + Progress(skipped=tuple(quarantined), left_quarantine=tuple(left))


def _last_position(page: Page) -> tuple[Epoch, RowRef] | None:
    """The last row of a page by (end, row), if it tells: rows behind it are only read again."""
    places = list(map(_position, page.jobs))
    places += [(one.ended_at, one.row) for one in page.skipped if one.ended_at is not None]
    return max(places, default=None)


def _position(job: JobRecord) -> tuple[Epoch, RowRef]:
    return job.ended_at, job.row
