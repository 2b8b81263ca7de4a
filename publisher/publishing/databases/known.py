"""Accounting databases that were read before and are missing now: jobs may be lost with them.

Also `source list`: all databases ever read. `retired.py` has those that an administrator declares
gone for good.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import groupby
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from publisher.jobs.file import store_path
from publisher.jobs.reader import StoreReader
from publisher.jobs.store import open_reader
from publisher.ledger.answers import KnownDatabase
from publisher.ledger.contract import Databases, Ledgers, Targets
from publisher.model.errors import PublisherError, SourceError, UsageError, refused_by_system
from publisher.model.job import Epoch, JobRecord
from publisher.model.totals import month_window
from publisher.policy.target import Target
from publisher.publishing.site import Site
from publisher.sources.base import Source, SourceList

if TYPE_CHECKING:
    from publisher.sources.importers import Accounting

log = logging.getLogger("publisher")

_INODES = 2**63  # what SQLite's integers hold; some file systems number beyond


class Missing(NamedTuple):
    """A database, or a configured name or pattern without a match, and what to do about it."""

    file: str
    reason: str


class AccountingData(NamedTuple):
    """The jobs of a site as they were loaded, and the source, for what is asked of its databases.

    `failures`: what kept some jobs from being loaded.
    """

    jobs: StoreReader
    source: Source
    failures: Sequence[str] = ()
    batch_systems: frozenset[str] = frozenset()  # names of those that are configured

    def names(self) -> Mapping[str, int]:
        """Return what is read by its name with its inode; of batch systems, with a number.

        A batch system is there once it was read in full. Raises: SourceError, LedgerError.
        """
        read = self.batch_systems & (set(self.jobs.sources()) - self.jobs.incomplete())
        files = inodes(self.source) if self.has_files() else {}
        return {**files, **{name: -crc32(name.encode()) - 1 for name in read}}

    def has_files(self) -> bool:
        """Return whether databases are to be looked for, which batch systems go on without."""
        return not self.batch_systems or self.source.has_any()

    def close(self) -> None:
        self.jobs.close()
        self.source.close()

    def refuse_incomplete(self) -> None:
        """Raises: SourceError where some jobs could not be loaded: an answer would be wrong."""
        if self.failures:
            raise SourceError("; ".join(self.failures))


def closed_until(targets: Targets, name: str) -> Epoch:
    """Return when the closed months of a target's receiver end; 0 without any."""
    month = targets.closed(name)
    return (month and month_window(month).start) or Epoch(0)


def closed_everywhere(site: Site) -> Epoch:
    """Return when the months end that are closed at all receivers; 0 without any.

    Raises: LedgerError.
    """
    with closing(site.ledgers.to_read()) as ledger:
        ends = [closed_until(ledger.targets, target.name) for target in site.targets]
    return min(ends, default=Epoch(0))


def not_loaded(site: Site) -> Epoch:
    """Return when what needs not be loaded ended at the latest; 0 where all is loaded.

    Jobs of closed months may be needed where some wait since a ledger was restored or lost. Raises:
    LedgerError.
    """
    with closing(site.ledgers.to_read()) as ledger:
        if any(ledger.losses.held(target.name) for target in site.targets):
            return Epoch(0)
    return closed_everywhere(site)


def jobs_of(ledgers: Ledgers) -> StoreReader:
    """Return the jobs as they were loaded last. Raises: LedgerError."""
    return open_reader(store_path(ledgers.state))


def is_read_next(jobs: StoreReader, job: JobRecord) -> bool:
    """Whether the next round has a job with its values of now."""
    runs = jobs.of_jobs([job.job_id])
    ends = (one._replace(ended_at=job.ended_at) for one in runs)
    stored = [one.values_digest for one in ends if one.run_key == job.run_key]
    if stored:
        return job.values_digest in stored
    is_open = any(row.row == job.row for row in jobs.unfinished(job.row.database))
    return is_open or all(one.row.database != job.row.database for one in runs)


def as_loaded(
    accounting: Accounting, ledgers: Ledgers, *, lock_wait_s: float | None = None
) -> AccountingData:
    """Return the accounting data as it was loaded last. Raises: SourceError, LedgerError."""
    source = accounting.open(lock_wait_s=lock_wait_s)
    try:
        return AccountingData(jobs_of(ledgers), source, batch_systems=accounting.batch_systems)
    except BaseException:
        source.close()
        raise


class FoundDatabases(NamedTuple):
    """Those that are there, by name with inodes; those missing, renamed, or back again."""

    there: Mapping[str, int]
    missing: Sequence[Missing]
    renamed: Mapping[str, str]
    returned: Sequence[str]


def look_for_databases(target: str, accounting: AccountingData, kept: Databases) -> FoundDatabases:
    """What became of the databases that a target has read. Raises: SourceError, LedgerError."""
    source, known = accounting.source, kept.known(target)
    databases = dict.fromkeys(accounting.batch_systems, "")
    databases |= source.databases() if accounting.has_files() else {}
    there = accounting.names()
    unknown = there.keys() - {one.file for one in known}
    renamed, missing = {}, []
    read = _names({name: databases[name] for name in there}) | accounting.batch_systems
    for one in _lost(known, read):
        if name := _new_name(one, there, unknown, accounting):
            renamed[one.file] = name
        else:
            missing.append(_missing(one))
    return FoundDatabases(
        there=there,
        missing=[*missing, *_never_read(known, source)],
        renamed=renamed,
        returned=[one.file for one in known if one.retired is not None and one.file in there],
    )


def _lost(known: Sequence[KnownDatabase], there: frozenset[str]) -> list[KnownDatabase]:
    return [one for one in known if one.retired is None and not is_read(one.file, there)]


def _names(files: Mapping[str, str]) -> frozenset[str]:
    """By which databases are known: their names, and real paths."""
    return frozenset([*files, *map(os.path.realpath, filter(None, files.values()))])


def note_databases(
    target: str, accounting: AccountingData, kept: Databases, now: datetime
) -> Sequence[Missing]:
    """Note which databases are there, and say which of those that were read once are not."""
    found = look_for_databases(target, accounting, kept)
    for file, name in found.renamed.items():
        log.info("target %s: %s: is called %s now", target, file, name)
        kept.rename(target, file, name)
    kept.found(target, found.there, now)
    for file in found.returned:
        what = "was retired and is there again: it is read from where reading stopped"
        log.info("target %s: %s: %s", target, file, what)
    return found.missing


def inodes(source: SourceList) -> Mapping[str, int]:
    """Of each database by name; another one where it was replaced. Raises: SourceError."""
    found = {name: _inode(path) for name, path in source.databases().items()}
    return {name: inode for name, inode in found.items() if inode is not None}


def _inode(path: str) -> int | None:
    """None where nothing is. Raises: SourceError when that cannot be told."""
    try:
        return os.stat(path).st_ino % _INODES
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = refused_by_system(error, "let this user search its directory")
        raise SourceError(f"{path}: {why}") from error


def missing_databases(
    target: str, accounting: AccountingData, kept: Databases
) -> Sequence[Missing]:
    """Raises: SourceError, LedgerError."""
    return look_for_databases(target, accounting, kept).missing


def missed(
    targets: Iterable[Target], accounting: AccountingData, kept: Databases
) -> Sequence[Missing]:
    """Those that any of these targets misses. Raises: SourceError, LedgerError."""
    of_targets = (missing_databases(target.name, accounting, kept) for target in targets)
    return list({one.file: one for found in of_targets for one in found}.values())


def missed_at(site: Site) -> Sequence[Missing]:
    """Raises: SourceError, LedgerError."""
    with (
        closing(site.ledgers.to_read()) as ledger,
        closing(as_loaded(site.accounting, site.ledgers)) as accounting,
    ):
        return missed(site.targets, accounting, ledger.databases)


def missing_text(missing: Sequence[Missing]) -> str:
    """In one line."""
    return "; ".join(one.reason for one in missing)


def not_found(site: Site, reason: str) -> PublisherError:
    """The error for what the accounting data lacks: without all databases nobody can tell."""
    missing = missed_at(site)
    return SourceError(f"{reason}\n{missing_text(missing)}") if missing else UsageError(reason)


def _new_name(
    lost: KnownDatabase,
    there: Mapping[str, int],
    unknown: Collection[str],
    accounting: AccountingData,
) -> str | None:
    """The name that the same file has now, or that of an unread copy named in its place.

    A file that is named still is missed, though a backup lies beside it. The row that was read last
    is in the other one too: inodes are used again.
    """
    if not os.path.isabs(lost.file):
        return _new_name_of_batch_system(lost.file, unknown, accounting)
    position = accounting.jobs.position(lost.file)
    if not accounting.has_files():
        return None
    unknown = [] if accounting.source.names(lost.file) else unknown
    for source in accounting.source.sources():
        name, is_same = source.name, there.get(source.name) == lost.inode
        if position is None and is_same:
            return name
        if position is not None and (is_same or name in unknown) and source.fits(position):
            return name
    return None


def _new_name_of_batch_system(
    name: str, unknown: Collection[str], accounting: AccountingData
) -> str | None:
    """The name under which a batch system of this cluster is read now: jobs have their ids."""
    cluster = accounting.jobs.cluster(name)
    named = (one for one in sorted(unknown) if one in accounting.batch_systems)
    return next((one for one in named if cluster and accounting.jobs.cluster(one) == cluster), None)


def _missing(lost: KnownDatabase) -> Missing:
    if not os.path.isabs(lost.file):
        what = "this batch system is no longer in `source`; put it back"
    elif os.path.exists(lost.file):
        what = "is there, but no longer in `source`; add it again"
    else:
        what = "is gone, and jobs that were only in it are not published; restore it"
    last = f"(it was last read at {lost.seen:%Y-%m-%dT%H:%M:%SZ})"
    retire = f"`publisher source retire {quote(lost.file)}`"
    reason = f"{lost.file}: {what} {last}, or, if that is on purpose, {retire}"
    return Missing(file=lost.file, reason=reason)


def _never_read(known: Sequence[KnownDatabase], source: Source) -> Iterator[Missing]:
    """What the configuration names in vain, but for databases that were read or retired."""
    for absent in source.absent():
        if not any(fnmatchcase(one.file, pattern) for one in known for pattern in absent.patterns):
            yield Missing(file=absent.patterns[0], reason=absent.reason)


class SourceFile(NamedTuple):
    """A database that the rounds of any target have found. `there`: it is read today."""

    file: str
    seen: datetime
    retired: datetime | None  # None while any target misses it
    there: bool
    known: tuple[KnownDatabase, ...]  # by target


def listed(ledgers: Ledgers, accounting: Accounting) -> list[SourceFile]:
    """By name. Raises: LedgerError."""
    with closing(ledgers.to_read()) as ledger:
        known = ledger.databases.known()
    there = read_today(accounting)
    by_file = groupby(known, key=lambda each: each.file)
    return [_one_file(file, list(of_targets), there) for file, of_targets in by_file]


def _one_file(
    file: str, of_targets: Sequence[KnownDatabase], there: frozenset[str] | None
) -> SourceFile:
    seen = max(each.seen for each in of_targets)
    retired = [each.retired for each in of_targets if each.retired is not None]
    by_all = max(retired) if len(retired) == len(of_targets) else None
    is_there = is_read(file, there)
    return SourceFile(file, seen=seen, retired=by_all, there=is_there, known=tuple(of_targets))


def is_read(file: str, there: frozenset[str] | None) -> bool:
    """Whether a file is among those of `read_today`."""
    if there is None:
        return os.path.isabs(file) and os.path.exists(file)
    return file in there or (os.path.isabs(file) and os.path.realpath(file) in there)


def read_today(accounting: Accounting) -> frozenset[str] | None:
    """What is read, by name and real path; None when one is unreadable or none is there."""
    try:
        with closing(accounting.open()) as source:
            return _names(source.databases()) | accounting.batch_systems
    except SourceError:
        return None
