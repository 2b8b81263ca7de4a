"""Sources are loaded into the job store: what is new, what was unfinished, and once a day the rest.

A page of a source is stored with the position behind it, so a load that is killed goes on where it
was. Rows that were loaded are looked through again, as A-REX restarts jobs and purges rows: those
of the last three months once a day, all of them when that is asked for, when a source is read
otherwise than before, or when its rows were renumbered. Runs that are not met then are marked.

    first load of ce.db             ->  all rows
    an hour later                   ->  rows in progress by then, and those behind the last one
    a day later                     ->  these, and again what ended in the last three months
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Final, NamedTuple

from publisher.jobs.store import JobStore, LoadedPage, Met
from publisher.model.errors import SourceError
from publisher.model.job import RowRef, SideTable
from publisher.model.time import Window, epoch
from publisher.publishing.databases.known import inodes
from publisher.sources.base import Page, Source

_COMPARE_EVERY: Final = timedelta(hours=24)
_COMPARED: Final = timedelta(days=92)
_TRANSACTION_ROWS: Final = 2_000


class LoadOptions(NamedTuple):
    """What is to be loaded. `read_as`: digest of the options under which sources are read."""

    needs: frozenset[SideTable]
    read_as: str
    every_row: bool = False


class Loading:
    """One load of a source."""

    def __init__(
        self,
        store: JobStore,
        source: Source,
        options: LoadOptions,
        now: datetime,
        stopped: Callable[[], bool],
    ) -> None:
        self._store = store
        self._source = source
        self._now = now
        self._stopped = stopped
        state = store.state()
        self._needs = options.needs | frozenset(map(SideTable, state.needs))
        self._read_as = options.read_as
        is_other = state.read_as != options.read_as or self._needs != state.needs
        self._is_new = not state.read_as  # nothing was loaded under any options
        self._every_row = options.every_row or (is_other and not self._is_new)
        since = state.compared_at and now.timestamp() - state.compared_at
        self._is_due = since is None or not 0 <= since < _COMPARE_EVERY.total_seconds()
        self._waiting: list[LoadedPage] = []
        self._rows = 0

    def run(self) -> Sequence[str]:
        """Load all databases; return what failed, which keeps no other from it.

        Raises: SourceError where nobody can tell which there are; LedgerError.
        """
        there, databases = inodes(self._source), list(self._source.databases())
        if self._is_new:
            self._store.read_as(self._read_as, self._needs)
        is_fresh = all(self._store.position(name) is None for name in databases)
        met = Met() if self._every_row else None
        failures = [one for name in databases for one in self._failing(self._load, name, met)]
        if not self._every_row and self._is_due and not is_fresh:
            met = Met()
            failures += self._failing(self._read_recent, met)
        if failures or self._stopped():
            return list(dict.fromkeys(failures))
        if met is not None and inodes(self._source) == there:
            window = Window() if self._every_row else self._recent
            self._store.mark_gone(databases, window, met)
        if self._every_row:
            self._store.read_as(self._read_as, self._needs)
        if self._every_row or self._is_due:
            self._store.compared(epoch(self._now))
        return ()

    def _failing(self, step: Callable[..., None], *given: object) -> Sequence[str]:
        """Take a step; return why it failed, or nothing. What was read by then is stored."""
        if self._stopped():
            return ()
        try:
            step(*given)
        except SourceError as error:
            self._write(None)
            return (str(error),)
        return ()

    def _load(self, name: str, met: Met | None) -> None:
        """Load what a database has told since, or all of it into `met`."""
        for page in self._source.reread(self._store.unfinished(name), self._needs, self._now):
            self._put(_reread(name, page), page.rows_read)
        self._write(None)
        position = None if self._every_row else self._store.position(name)
        again: Met | None = None  # of a database whose rows were renumbered
        for page in self._source.since(position, name, self._needs, self._now):
            if page.restarted and met is None:
                again = Met()
            read = LoadedPage(name, page.jobs, page.skipped, page.open, position=page.cursor)
            self._put(read, page.rows_read, met or again)
            if self._stopped():
                self._write(met or again)
                return
        self._write(met or again)
        self._store.take_back(name, self._source.taken_back(name))
        self._store.complete(name)
        if again is not None:
            self._store.mark_gone([name], Window(), again)

    @property
    def _recent(self) -> Window:
        return Window(start=epoch(self._now - _COMPARED))

    def _read_recent(self, met: Met) -> None:
        """Look through what ended in the last months."""
        for page in self._source.window(self._recent, self._needs, self._now):
            if self._stopped():
                break
            if (row := _first_row(page)) is not None:
                read = LoadedPage(row.database, page.jobs, page.skipped, page.open)
                self._put(read, page.rows_read, met)
        self._write(met)

    def _put(self, page: LoadedPage, rows: int, met: Met | None = None) -> None:
        self._waiting.append(page)
        self._rows += rows
        if self._rows >= _TRANSACTION_ROWS:
            self._write(met)

    def _write(self, met: Met | None) -> None:
        if self._waiting:
            self._store.put(self._waiting, met)
            self._waiting, self._rows = [], 0


def _first_row(page: Page) -> RowRef | None:
    """Return a row of a page; None of one without any."""
    jobs, skipped = page.jobs, page.skipped
    rows = chain((job.row for job in jobs), (one.row for one in skipped))
    return next(chain(rows, (one.row for one in page.open)), None)


def _reread(name: str, page: Page) -> LoadedPage:
    """Return rows that were read again: those that are not open are done with."""
    done = [*(job.row for job in page.jobs), *(one.row for one in page.skipped), *page.gone]
    return LoadedPage(name, page.jobs, page.skipped, page.open, done)
