"""What a round reads, everything new or a window again, and what may be noted once that is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from sys import maxsize
from typing import Final, Protocol, TypeVar

from publisher.ledger.answers import Hold
from publisher.ledger.contract import Entries, Ledger, Positions
from publisher.model.errors import Later
from publisher.model.job import Epoch, JobKey, JobRecord, RowRef, SideTable, SkippedJob
from publisher.model.message import OpenRow, Progress, WindowMark
from publisher.model.time import Window
from publisher.publishing.databases.known import inodes
from publisher.sources.base import Page, Source

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
    repeats: bool = True

    def pages(self, now: datetime) -> Iterator[Read]:
        self.repeats = True
        yield from self._open_rows(now)
        yield from self._quarantined(now)
        self.repeats = False
        for database in self.source.databases():
            cursor = None if self.sweep else self.ledger.databases.cursor(self.target, database)
            for page in self.source.since(cursor, database, self.needs, now):
                cursors = (page.cursor,) if page.cursor else ()
                yield page, Progress(cursors=cursors, opened=page.open)

    def once_more(self) -> IncrementalReader:
        return replace(self, repeats=True)

    def after(self, ended_at: Epoch, row: RowRef) -> None:
        return None

    def _open_rows(self, now: datetime) -> Iterator[Read]:
        there = frozenset(self.source.databases())
        # Those of a database that is missing wait for it.
        rows = [
            row for row in self.ledger.positions.open_rows(self.target) if row.row.database in there
        ]
        still_open: set[RowRef] = set()
        for page in self.source.reread(rows, self.needs, now):
            still_open.update(row.row for row in page.open)
            yield page, Progress(opened=page.open)
        closed = tuple(row.row for row in rows if row.row not in still_open)
        if closed:
            yield Page(jobs=()), Progress(closed=closed)

    def _quarantined(self, now: datetime) -> Iterator[Read]:
        everything = self.ledger.quarantine.listed(self.target)
        quarantined = (held for held in everything if held.hold is not Hold.DROPPED)
        while portion := list(islice(quarantined, _QUARANTINE_PORTION)):
            # A row without a JobID is in quarantine under a key of its own, which no job has once
            # there is one.
            nameless = {held.job.row: held.key for held in portion if not held.job.job_id}
            again = [OpenRow(row=held.job.row, finished_seen_at=None) for held in portion]
            for page in self.source.reread(again, self.needs, now):
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
    positions: Positions
    entries: Entries
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
        stopped_at = self.positions.window_progress(self.target, self.window_progress)
        # Where that database is gone by now (`migrate`), the place in it tells nothing.
        there = stopped_at is not None and stopped_at.row.database in self.source.databases()
        after = (stopped_at.ended_at, stopped_at.row) if stopped_at is not None and there else None
        where = self.target, self.source, self.entries, self.window
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
    entries: Entries,
    window: Window,
    needs: frozenset[SideTable],
    now: datetime,
    after: tuple[Epoch, RowRef] | None = None,
) -> Iterator[Page]:
    """A window's pages, with those of its incomplete rows that were delivered before.

    They were held off long enough once, which is not remembered: a window by itself waits until a
    day after such a row's end.
    """
    for page in source.window(window, needs, now, after):
        if page.open:
            given_up = [row._replace(finished_seen_at=_LONG_AGO) for row in page.open]
            found = [job for whole in source.reread(given_up, needs, now) for job in whole.jobs]
            known = entries.recorded(target, [job.run_key for job in found])
            jobs = (*page.jobs, *(job for job in found if job.run_key in known))
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
