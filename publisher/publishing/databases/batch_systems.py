"""The entries of `source`: batch systems are read before a round; and how old everything is.

Nothing here prints.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from publisher.jobs.store import JobStore
from publisher.ledger.contract import Ledgers
from publisher.model.errors import (
    LedgerError,
    PublisherError,
    SourceError,
    UsageError,
    bug_text,
)
from publisher.model.text import plural
from publisher.model.time import epoch, iso
from publisher.publishing.databases.known import jobs_of
from publisher.publishing.site import Site
from publisher.sources.base import BatchEntry, DatabaseEntry, LastReading, NewestJob

if TYPE_CHECKING:
    from publisher.jobs.link import Linked
    from publisher.model.entry import DeliveredRun
    from publisher.model.job import Epoch
    from publisher.sources.importers import BadLine, BatchSystems

log = logging.getLogger("publisher")

_TOO_LONG: Final = timedelta(days=1)
# A source is silent when none of its jobs ended in the last two days, although 100 a day or more
# did, on average, in the four weeks before its newest one.
_SILENCE: Final = timedelta(days=2)
_BUSY_JOBS: Final = 28 * 100
_LOGGED_BAD: Final = 10
_SHOWN_BAD: Final = 1_000


class SourceStatus(NamedTuple):
    """An entry of `source`.

    `trouble` is that of its last reading, or why nothing can be told of it. `last` is the last
    reading of a batch system; None where that cannot be told, and where it is `in_place`: no round
    reads files of it, since it is a database of a CE, or imported by hand (`importers`).
    """

    name: str
    type: str
    databases: Sequence[str]
    in_place: bool
    last: LastReading | None
    newest: NewestJob | None  # as loaded last; None where that cannot be told
    trouble: str
    alarm: str  # what an administrator must do now, or ''
    silence: str  # why somebody should look at a source without jobs, or ''
    waiting: str = ""  # why jobs that ended long ago wait for a CE, or ''


class SetAside(NamedTuple):
    """A line of a source that could not be understood."""

    source: str
    line: BadLine


def read_batch_systems(site: Site, store: JobStore) -> Sequence[str]:
    """Read what is new of each batch system, whatever becomes of another; return what failed.

    The caller holds the lock of who loads. Raises: LedgerError where the store cannot be written.
    """
    entries = _in_rounds(site.batch_systems)
    return [line for entry in entries for line in _read(site, store, entry)]


def not_read(site: Site, store: JobStore, *, is_known: bool) -> Sequence[BatchEntry]:
    """Return the batch systems whose jobs are missing in a store: it was not loaded with all yet.

    Those of which targets have jobs, if such are known, as the store is new then; else the first
    one, where nothing was loaded yet and no CE is there either.
    """
    read = set(store.sources()) - store.incomplete()
    entries = _in_rounds(site.batch_systems)
    unread = [entry for entry in entries if entry.name not in read]
    if is_known and unread:
        with closing(site.ledgers.to_read()) as ledger:
            known = {one.file for one in ledger.databases.known() if one.retired is None}
        if found := [entry for entry in unread if entry.name in known]:
            return found
    is_empty = not any(entry.name in store.sources() for entry in entries)
    return unread[:1] if is_empty and not site.accounting.entries else ()


def not_read_text(entries: Sequence[BatchEntry]) -> Sequence[str]:
    """Return what to do about batch systems that were not read, a line each."""
    what = "was not read yet; `publisher publish` reads it"
    return [line for entry in entries for line in _lines(entry.name, [what])]


def awaited_text(entries: Sequence[BatchEntry]) -> Sequence[str]:
    """Return why jobs of CEs are not loaded, where batch systems beside them were not read.

    Without all jobs of these, runs would count once more as jobs of a CE, or lose what was joined.
    """
    beside = [entry for entry in entries if entry.ces() != frozenset()]
    what = "jobs of CEs wait until it was read in full, as the job store is new"
    return [line for entry in beside for line in _lines(entry.name, [what])]


def last_troubles(site: Site) -> Sequence[str]:
    """Return what went wrong when batch systems were read last, by another process.

    Raises: LedgerError.
    """
    found: list[str] = []
    with closing(jobs_of(site.ledgers)) as jobs, jobs.translated():
        for entry in _in_rounds(site.batch_systems):
            last = site.batch_systems.last_reading(jobs.bound_to(entry.name))
            is_new = "another process reads it for the first time" if last.ended is None else ""
            found += _lines(entry.name, [last.trouble or is_new])
    return found


def _read(site: Site, store: JobStore, entry: BatchEntry) -> Sequence[str]:
    batch_systems = site.batch_systems
    check = partial(_refuse_second_name, batch_systems, site.ledgers, entry, store)
    try:
        with store.translated():
            part = site.ces.part(store, entry)
            report = batch_systems.read(entry, part, check)
            if not report.failures:
                store.complete(entry.name)
    except PublisherError as error:
        return _lines(entry.name, [str(error)])
    except Exception as error:  # the boundary: a bug must not stop what is there from going out
        log.critical("source %s: a bug in publisher", entry.name, exc_info=error)
        return _lines(entry.name, [bug_text(error)])
    if report.imported or report.updated or not report.failures:
        imported = plural(report.imported, "job")
        log.info("source %s: %s imported, %s updated", entry.name, imported, f"{report.updated:,}")
    for line in report.bad_lines[:_LOGGED_BAD]:
        where = entry.name, line.path, line.offset
        log.warning("source %s: set aside: %s, byte %s: %s", *where, line.reason)
    if report.bad > _LOGGED_BAD:
        all_bad = "source %s: %s set aside; `publisher source bad-lines` has all"
        log.warning(all_bad, entry.name, plural(report.bad, "line"))
    for damaged in report.damaged:
        log.warning("source %s: skipped: %s", entry.name, damaged)
    for note in report.notes:
        log.info("source %s: %s", entry.name, note)
    return _lines(entry.name, report.failures)


def _lines(name: str, troubles: Sequence[str]) -> Sequence[str]:
    return [f"source {name}: {trouble}" for trouble in troubles if trouble]


def _refuse_second_name(
    batch_systems: BatchSystems, ledgers: Ledgers, entry: BatchEntry, store: JobStore
) -> None:
    """Raises: SourceError where jobs were delivered under other ids, and would count twice."""
    if batch_systems.last_reading(store.bound_to(entry.name)).succeeded is not None:
        return
    others = [name for name in store.sources() if name != entry.name]
    try:
        found = {name: batch_systems.other_cluster(entry, store.bound_to(name)) for name in others}
    finally:
        store.bound_to(entry.name)
    if not any(found.values()):
        return
    with closing(ledgers.to_read()) as ledger:
        retired = {one.file for one in ledger.databases.known() if one.retired is not None}
    for name, cluster in found.items():
        if cluster and name not in retired:
            raise SourceError(
                f"source {name} has read the same files and calls their cluster {cluster}:"
                f" under another name all jobs would count twice; write cluster: {cluster}, or, "
                f"if these are other jobs, `publisher source retire {name}`"
            )


def delivered(ledgers: Ledgers, first: Epoch) -> Generator[Sequence[DeliveredRun], None, None]:
    """Yield what the ledger has of runs that ended at a time or later. Raises: LedgerError."""
    with closing(ledgers.history()) as history, closing(history.delivered(first)) as parts:
        yield from parts


def linked_notes(linked: Linked) -> list[str]:
    """Return what an administrator must know of the runs of a batch system that were linked."""
    notes = []
    if linked.forgotten:
        runs = plural(linked.forgotten, "run")
        notes.append(f"delivered, and forgotten by A-REX since: {runs}, not counted again")
    if linked.waiting:
        wait = "waits" if linked.waiting == 1 else "wait"
        notes.append(
            f"{plural(linked.waiting, 'run')} {wait}: an ARC CE may still have them "
            "(arc_wait_s, arc_outage_s), or its database could not be read"
        )
    return notes


def source_status(site: Site) -> Sequence[SourceStatus]:
    """Return every entry of `source`, in the order of databases and batch systems; only read.

    At last what was imported by hand.
    """
    in_place = [_in_place(site, entry) for entry in site.accounting.entries]
    return [*in_place, *readings(site), *_by_hand(site)]


def _by_hand(site: Site) -> Iterator[SourceStatus]:
    for entry in site.batch_systems.entries:
        if not entry.in_rounds:
            found = _status(site, entry)
            if found.trouble or (found.newest and found.newest.ended_at is not None):
                yield found._replace(in_place=True, last=None, alarm="", waiting="")


def readings(site: Site) -> Sequence[SourceStatus]:
    """Return the batch systems that rounds read."""
    return [_status(site, entry) for entry in _in_rounds(site.batch_systems)]


def set_aside(site: Site, name: str | None) -> tuple[Sequence[SetAside], int]:
    """Return the first lines of one source, or of each, and how many there are.

    Raises: UsageError for a name that is not configured, LedgerError.
    """
    batch_systems = site.batch_systems
    lines: list[SetAside] = []
    total = 0
    with closing(jobs_of(site.ledgers)) as jobs:
        for entry in chosen_entries(batch_systems, name):
            with jobs.translated():
                connection = jobs.bound_to(entry.name)
                found = batch_systems.bad_lines(connection, _SHOWN_BAD)
                total += batch_systems.last_reading(connection).bad_lines
            lines += [SetAside(entry.name, line) for line in found]
    return lines, total


def chosen_entries(batch_systems: BatchSystems, name: str | None) -> Sequence[BatchEntry]:
    """Return all batch systems, or the one of this name. Raises: UsageError."""
    entries = batch_systems.entries
    chosen = [entry for entry in entries if name in (None, entry.name)]
    if name is not None and not chosen:
        known = ", ".join(entry.name for entry in entries) or "none"
        raise UsageError(f"{name}: no such batch system in `source`; there are: {known}")
    return chosen


def _in_rounds(batch_systems: BatchSystems) -> Sequence[BatchEntry]:
    return [entry for entry in batch_systems.entries if entry.in_rounds]


def _status(site: Site, entry: BatchEntry) -> SourceStatus:
    last: LastReading | None = None
    newest: NewestJob | None = None
    silence = waiting = ""
    try:
        with closing(jobs_of(site.ledgers)) as jobs, jobs.translated():
            last = site.batch_systems.last_reading(jobs.bound_to(entry.name))
            newest = NewestJob(*jobs.newest(entry.name, epoch(site.process.clock())))
    except LedgerError as error:
        last, trouble, alarm = None, str(error), f"source {entry.name}: {error}"
    else:
        now = site.process.clock()
        trouble, alarm = last.trouble, _alarm(entry.name, last, now)
        if not alarm:
            silence, waiting = _silence(entry.name, newest, now), _waiting(entry.name, last)
    return SourceStatus(
        name=entry.name,
        type=entry.type,
        databases=(entry.name,),
        in_place=False,
        last=last,
        newest=newest,
        trouble=trouble,
        alarm=alarm,
        silence=silence,
        waiting=waiting,
    )


def _waiting(name: str, last: LastReading) -> str:
    if not last.awaited:
        return ""
    ces = [f"{each.name} since {each.written:%Y-%m-%dT%H:%M:%SZ}" for each in last.awaited]
    jobs = max(each.jobs for each in last.awaited)
    wait = "waits" if jobs == 1 else "wait"
    return (
        f"source {name}: {plural(jobs, 'job')} that may belong to an ARC CE {wait} for it: "
        f"it has jobs in progress, and has written nothing to {' and '.join(ces)}; "
        "check that A-REX is running, or set arc_outage_s"
    )


def _in_place(site: Site, entry: DatabaseEntry) -> SourceStatus:
    """Return the status of databases of CEs, whose troubles are alarms of the targets."""
    files: Sequence[str] = ()
    newest: NewestJob | None = None
    trouble = silence = ""
    now = site.process.clock()
    try:
        files = site.accounting.files(entry)
        with closing(jobs_of(site.ledgers)) as jobs:
            loaded = [file for file in files if jobs.position(file) is not None]
            found = [NewestJob(*jobs.newest(file, epoch(now))) for file in loaded]
        if found:
            newest = max(found, key=lambda one: (one.ended_at or 0, one.four_weeks))
            silence = _silence(entry.name, newest, now)
    except (SourceError, LedgerError) as error:
        trouble = str(error)
    return SourceStatus(
        name=entry.name,
        type=entry.type,
        databases=files,
        in_place=True,
        last=None,
        newest=newest,
        trouble=trouble,
        alarm="",
        silence=silence,
    )


def _silence(name: str, newest: NewestJob, now: datetime) -> str:
    if newest.ended_at is None or newest.four_weeks < _BUSY_JOBS:
        return ""
    ended = datetime.fromtimestamp(newest.ended_at, UTC)
    if now - ended <= _SILENCE:
        return ""
    return (
        f"source {name}: no job has ended since {ended:%Y-%m-%dT%H:%M:%SZ}, "
        f"and {newest.four_weeks // 28:,} a day did in the four weeks before; "
        "check that its accounting is still written where it is read"
    )


def _alarm(name: str, last: LastReading, now: datetime) -> str:
    """Return what an administrator must do now: the last reading failed, or is a day old.

    Jobs that wait for a CE longer than a day are an alarm too. A clock that went back raises none.
    """
    since = last.succeeded
    what = "has never been read in full"
    if since is not None:
        what = f"was last read in full at {iso(since)}"
    if last.trouble:
        return f"source {name}: {what}: {last.trouble}"
    if since is not None and now - since > _TOO_LONG:
        return f"source {name}: {what}: no round has run since; check the timer or the daemon"
    waits = any(now - each.since > _TOO_LONG for each in last.awaited)
    return _waiting(name, last) if waits else ""
