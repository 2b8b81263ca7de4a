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

import logging
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from publisher.formats import record_format
from publisher.jobs import file as store_file
from publisher.jobs.store import JobStore, open_reader, open_store, remove_store
from publisher.jobs.tables.comparison import Met
from publisher.ledger.contract import Positions
from publisher.model.errors import Busy, LedgerError, SourceError
from publisher.model.job import Epoch, JobId, LoadedPage, ReadRequest, RowPart, SideTable
from publisher.model.text import plural
from publisher.model.time import Window, epoch
from publisher.policy.target import Target
from publisher.publishing.databases.batch_systems import (
    awaited_text,
    delivered,
    last_troubles,
    linked_notes,
    not_read,
    not_read_text,
    read_batch_systems,
)
from publisher.publishing.databases.known import AccountingData, inodes, not_loaded
from publisher.publishing.site import NO_OBSERVER, LoadObserver, Site
from publisher.sources.base import JobSource, SourceList
from publisher.transports.base import BackgroundTask

if TYPE_CHECKING:
    from publisher.jobs.link import Linked

log = logging.getLogger("publisher")

_COMPARE_EVERY: Final = timedelta(hours=24)
_COMPARED: Final = timedelta(days=92)
_TRANSACTION_ROWS: Final = 2_000
_TRIES: Final = 50  # at a lock that another process holds
_TRY_EVERY_S: Final = 0.1


class LoadOptions(NamedTuple):
    """What is to be loaded. `read_as`: digest of the options under which sources are read."""

    needs: frozenset[SideTable]
    read_as: str
    every_row: bool = False
    marks: Collection[str] = ()  # of the cursors of all targets
    window: Window | None = None  # to be looked through again in any case
    job: JobId | None = None  # to be read again in any case
    reads_batch: bool = False  # first, what is new of the batch systems
    links: bool = False  # runs of batch systems, for which the ledger is asked
    due: Epoch | None = None  # what ended since then is to be looked through again


class Loading:
    """One load of all sources."""

    def __init__(
        self,
        store: JobStore,
        sources: SourceList,
        options: LoadOptions,
        now: datetime,
        stopped: Callable[[], bool],
        linked: Callable[[LoadedPage], LoadedPage] | None = None,
        observer: LoadObserver = NO_OBSERVER,
    ) -> None:
        """`linked` gives each page as it is to be stored (`Linking.page`)."""
        self._observer = observer
        self.read: set[str] = set()  # names of sources that were loaded without trouble
        self._as_stored = linked or (lambda page: page)
        self._due = options.due
        self._store = store
        self._sources = sources
        self._now = now
        self._stopped = stopped
        state = store.state()
        self._needs = options.needs | frozenset(map(SideTable, state.needs))
        self._request = ReadRequest(self._needs, Epoch(epoch(now)))
        self._read_as, self._window = options.read_as, options.window
        # Which A-REX may have restarted since their rows were loaded.
        self._jobs = [] if options.job is None else [options.job]
        is_other = state.read_as != options.read_as or self._needs != state.needs
        self._is_new = not state.read_as  # nothing was loaded under any options
        self._every_row = options.every_row or (is_other and not self._is_new)
        since = state.compared_at and now.timestamp() - state.compared_at
        self._is_due = since is None or not 0 <= since < _COMPARE_EVERY.total_seconds()
        self._all: Sequence[JobSource] = ()
        self._waiting: list[LoadedPage] = []
        self._are_new = False
        # Digests of what was read whole, until it is known which of the runs there are gone.
        self._parts: dict[str, list[RowPart]] = {}

    def run(self) -> Sequence[str]:
        """Load all sources; return what failed, which keeps no other from it.

        Raises: SourceError where nobody can tell which there are; LedgerError.
        """
        sources, there = self._sources.sources(), inodes(self._sources)
        self._all = sources
        self._store.rank([source.name for source in sources])
        if self._is_new:
            self._store.read_as(self._read_as, self._needs)
        is_fresh = all(self._store.position(source.name) is None for source in sources)
        met = Met() if self._every_row else None
        self.read = {source.name for source in sources}
        failures = [one for source in sources for one in self._failing(self._load, source, met)]
        comparable = [source for source in sources if source.is_comparable]
        looked_through = [] if met is None else [(Window(), met)]
        for window in () if self._every_row or is_fresh else self._windows():
            met = Met()
            for source in comparable:
                failures += self._failing(self._compare, source, window, met)
            looked_through.append((window, met))
        if failures or self._stopped():
            return list(dict.fromkeys(failures))
        if inodes(self._sources) == there:
            for window, met in looked_through:
                self._mark_gone(comparable, window, met)
            for name, parts in self._parts.items():
                self._store.keep_parts(name, parts, are_all=self._every_row)
        if self._every_row:
            self._store.read_as(self._read_as, self._needs)
        if self._every_row or self._is_due:
            self._store.compared(epoch(self._now))
        return ()

    def _failing(
        self, step: Callable[..., None], source: JobSource, *given: object
    ) -> Sequence[str]:
        """Take a step; return why it failed, or nothing. What was read by then is stored."""
        if self._stopped():
            return ()
        try:
            step(source, *given)
        except SourceError as error:
            self.read.discard(source.name)
            self._write(None)
            return (str(error),)
        return ()

    def _load(self, source: JobSource, met: Met | None) -> None:
        """Load what is new in a source, or all of it into `met`."""
        name = source.name
        position = None if self._every_row else self._store.position(name)
        # Of a store with other jobs, some may be where these are now: the next comparison tells.
        is_whole, again = self._every_row or self._is_new, None
        self._observer.begins(
            f"rows of {Path(name).name} loaded", partial(source.rows_after, position)
        )
        for page in source.read(position, self._store.unfinished(name), self._request):
            if page.restarted and again is None:
                is_whole = True
                again = Met() if met is None else met  # rows were renumbered
            if is_whole:
                self._note(page)
            # Rows that were never read. Of a store that has forgotten how far, some may have been.
            goes_on = position is not None or self._is_new
            are_new = page.position is not None and goes_on and not page.restarted
            self._put(page, again or met, are_new=are_new and not self._every_row)
            if self._stopped():
                self._write(again or met)
                return
        for page in source.look_up(self._jobs, self._request):
            self._put(page, again or met)
        self._write(again or met)
        self._store.complete(name)
        if again is not None and met is None:
            self._mark_gone([source], Window(), again)

    def _see(self, source: JobSource, step: str, total: Callable[[], int]) -> None:
        self._observer.begins(f"rows of {Path(source.name).name} {step}", total)

    def _windows(self) -> Iterator[Window]:
        """Yield what is looked through again."""
        if self._is_due:
            yield Window(start=epoch(self._now - _COMPARED))
        if self._window is not None:
            yield self._window
        if self._due is not None:
            yield Window(start=self._due)

    def _compare(self, source: JobSource, window: Window, met: Met) -> None:
        """Look through what ended in a window."""
        known = self._store.parts(source.name)
        self._see(source, "compared", partial(self._store.count, window))
        for page in source.compare(window, known, self._request):
            self._note(page)
            self._put(page, met)
            if self._stopped():
                break
        self._write(met)

    def _mark_gone(self, sources: Sequence[JobSource], window: Window, met: Met) -> None:
        """Mark runs that were not met; what other sources have of their jobs counts then."""
        names = [source.name for source in sources]
        for gone in self._store.not_met(names, window, met):
            jobs = [one.job_id for one in gone]
            pages = [
                self._as_stored(page)
                for source in (self._all if len(self._all) > 1 else ())
                for page in source.look_up(jobs, self._request)
            ]
            self._store.mark_gone(gone, pages, met)
        self._store.forget_skipped(names, window, met)

    def _note(self, page: LoadedPage) -> None:
        if page.part is not None:
            self._parts.setdefault(page.source, []).append(page.part)

    def _put(self, page: LoadedPage, met: Met | None = None, *, are_new: bool = False) -> None:
        if self._waiting and are_new != self._are_new:
            self._write(met)
        self._are_new = are_new
        self._waiting.append(self._as_stored(page))
        self._observer.seen(page.rows)
        if sum(one.rows for one in self._waiting) >= _TRANSACTION_ROWS:
            self._write(met)

    def _write(self, met: Met | None) -> None:
        if self._waiting:
            self._store.put(self._waiting, met, are_new=self._are_new)
            self._waiting = []


def needs_of(targets: Iterable[Target]) -> frozenset[SideTable]:
    """Return the side tables that the formats of some targets publish."""
    return frozenset[SideTable]().union(*(record_format(one.format).needs for one in targets))


class Loaded(NamedTuple):
    """Where jobs were loaded to, and what kept some from it."""

    site: Site
    path: Path
    failures: Sequence[str]

    def open(self) -> AccountingData:
        """Return the accounting data, for one thread. Raises: SourceError, LedgerError."""
        jobs = open_reader(self.path)
        try:
            accounting = self.site.accounting
            return AccountingData(jobs, accounting.open(), self.failures, accounting.batch_systems)
        except BaseException:
            jobs.close()
            raise


@contextmanager
def loaded(
    site: Site,
    positions: Positions,
    *,
    sends_nothing: bool,
    every_row: bool = False,
    needs: frozenset[SideTable] = frozenset(),
    window: Window | None = None,
    reads_batch: bool = False,
) -> Iterator[Loaded]:
    """Load the sources of a site, and give where its jobs are.

    `reads_batch`: also what is new of the batch systems; else they are as they were read last.

    A command that sends nothing loads too, as the store is a cache; into a temporary one where this
    user may not write. What a source raises is kept: what is there goes out. Raises: LedgerError.
    """
    cursors = [positions.cursor(target.name) for target in site.targets]
    marks = [cursor.mark for cursor in cursors if cursor is not None]
    all_needs = needs | needs_of(site.targets)
    read_as = site.accounting.read_as()
    options = LoadOptions(
        all_needs, read_as, every_row, marks, window=window, reads_batch=reads_batch, links=True
    )
    with store_place(site, sends_nothing=sends_nothing) as path:
        failures = BackgroundTask(partial(load, site, path, options)).result()
        yield Loaded(site, path, failures)


@contextmanager
def loaded_alone(
    site: Site,
    positions: Positions,
    *,
    sends_nothing: bool,
    window: Window,
    needs: frozenset[SideTable] = frozenset(),
) -> Iterator[AccountingData]:
    """Load the sources of a site, look through a window again, and give its accounting data.

    Raises: LedgerError; SourceError also where some jobs could not be loaded.
    """
    with (
        loaded(site, positions, sends_nothing=sends_nothing, needs=needs, window=window) as there,
        closing(there.open()) as accounting,
    ):
        accounting.refuse_incomplete()
        yield accounting


@contextmanager
def store_place(
    site: Site, *, sends_nothing: bool, apart: bool = False, copies: bool = True
) -> Iterator[Path]:
    """Give where the jobs of a site are loaded to; `apart`: in a store that is gone afterwards.

    Such a store has what batch systems were read for if it `copies` the other one.
    """
    path = store_file.store_path(site.ledgers.state)
    if not apart and (not sends_nothing or store_file.is_writable(path)):
        yield path
        return
    private = Path(tempfile.mkdtemp(prefix="publisher-"))
    try:
        if copies:
            store_file.copy(path, private / path.name)
        yield private / path.name
    finally:
        shutil.rmtree(private, ignore_errors=True)


def load(site: Site, path: Path, options: LoadOptions) -> Sequence[str]:
    """Load the sources of a site; return what failed. Another process that loads is waited for.

    Raises: LedgerError.
    """
    with loader_lock(site, path) as is_ours:
        if is_ours:
            return load_alone(site, path, options)
        # Another one loads what we would; what it could not read by now may be missing.
        return last_troubles(site) if options.reads_batch else ()


@contextmanager
def loader_lock(site: Site, path: Path) -> Iterator[bool]:
    """Hold the lock of who loads; False where another process does for long."""
    with ExitStack() as held:
        is_ours = held.enter_context(store_file.loader_lock(path))
        for _ in range(_TRIES):
            if is_ours or site.process.wait(_TRY_EVERY_S):
                break
            held.close()
            is_ours = held.enter_context(store_file.loader_lock(path))
        yield is_ours


def forget_jobs(site: Site, databases: Collection[str]) -> None:
    """Forget the jobs of databases that were retired. Raises: LedgerError, Busy."""
    path = store_file.store_path(site.ledgers.state)
    with loader_lock(site, path) as is_ours:
        if not is_ours:
            raise Busy(f"{path}: another publisher loads jobs; run again when it is done")
        with closing(open_store(path)) as store:
            for name in databases:
                store.forget(name)


def marks_of(site: Site) -> Collection[str]:
    """Return the marks of the cursors of all targets: a store without them is not the last one.

    Raises: LedgerError.
    """
    with closing(site.ledgers.to_read()) as ledger:
        cursors = [ledger.positions.cursor(target.name) for target in site.targets]
    return [cursor.mark for cursor in cursors if cursor is not None]


def _store_of(site: Site, path: Path, marks: Collection[str]) -> JobStore:
    """Return the store, begun anew if a target came further in another one.

    What such a store knows of purged jobs may be older than what was sent.
    """
    store = open_store(path)
    try:
        if store.is_behind(marks):
            if store.state().mark:
                log.warning("%s: is older than what was published, and is loaded again", path)
                store.close()
                remove_store(path)
                store = open_store(path)
            store.begin_after(marks)
        store.begin_at(not_loaded(site))
    except BaseException:
        store.close()
        raise
    return store


def load_alone(site: Site, path: Path, options: LoadOptions) -> Sequence[str]:
    """Load the sources of a site; return what failed. The caller holds `loader_lock`.

    Raises: LedgerError.
    """
    with closing(_store_of(site, path, options.marks)) as store, store.translated():
        failures, linked = load_into(store, site, options, read_batch_systems)
        if rows := store.passed_over:
            (log.info if options.every_row else log.warning)(
                "%s: not loaded, as the months in which they ended are closed (`keep`)",
                plural(rows, "row"),
            )
    for name, one in linked.items():
        if one.own or one.of_ce:
            own, of_ce = plural(one.own, "run is a job", "runs are jobs"), f"{one.of_ce:,}"
            log.info("source %s: %s here, %s left to an ARC CE", name, own, of_ce)
        for note in linked_notes(one):
            log.info("source %s: %s", name, note)
    return failures


def load_into(
    store: JobStore,
    site: Site,
    options: LoadOptions,
    reading: Callable[[Site, JobStore], Sequence[str]],
) -> tuple[Sequence[str], Mapping[str, Linked]]:
    """Load the sources of a site into a store; return what failed, and what was linked.

    Batch systems come first, by `reading`, which returns what failed too. Raises: LedgerError.
    """
    failures = [*reading(site, store)] if options.reads_batch else []
    lacking = not_read(site, store, is_known=bool(options.marks))
    if not options.reads_batch:
        failures += not_read_text(lacking)
    if site.accounting.entries and (awaited := awaited_text(lacking)):
        return [*failures, *awaited], {}
    with ExitStack() as opened:
        others: JobStore | None = None
        if options.links and site.ces.has_others:
            others = opened.enter_context(closing(open_store(store_file.others_path(store.path))))
        linking = site.ces.linking(store, epoch(site.process.clock()), others)
        if linking is None:
            _load_all(store, site, site.accounting.open, options, failures)
            return failures, {}
        if options.links:
            failures += linking.troubles
            linking.ask(partial(delivered, site.ledgers))
            options = options._replace(due=linking.due())
        read = _load_all(store, site, site.accounting.open, options, failures, linking.page)
        if others is not None:
            of_others = LoadOptions(frozenset(), "of others", due=options.due)
            read |= _load_all(others, site, site.ces.others, of_others, failures, linking.meet)
        return failures, linking.link(read) if options.links else {}


def _load_all(
    store: JobStore,
    site: Site,
    opens: Callable[[], SourceList],
    options: LoadOptions,
    failures: list[str],
    linked: Callable[[LoadedPage], LoadedPage] | None = None,
) -> set[str]:
    """Load sources into a store; return the names of those that were loaded without trouble."""
    try:
        with closing(opens()) as sources, site.process.loading() as observer:
            now, stopped = site.process.clock(), partial(site.process.wait, 0)
            loading = Loading(store, sources, options, now, stopped, linked, observer)
            failures += loading.run()
            return set() if stopped() else loading.read
    except SourceError as error:
        failures.append(str(error))
        return set()


@contextmanager
def store_alone(site: Site) -> Iterator[JobStore]:
    """Give the job store while nobody else loads it, however long that takes.

    Raises: LedgerError, also where a stop is asked for meanwhile.
    """
    path = store_file.store_path(site.ledgers.state)
    while True:
        with loader_lock(site, path) as is_ours:
            if is_ours:
                with closing(_store_of(site, path, marks_of(site))) as store, store.translated():
                    yield store
                return
        if site.process.wait(0):
            raise LedgerError(f"{path}: another process loads jobs, and a stop was asked for")
