"""Reading a batch system's entry of `source` before a round, and what became of that."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from publisher.model.errors import PublisherError, bug_text
from publisher.model.time import epoch
from publisher.sources.base import BatchEntry
from publisher.sources.files import tables
from publisher.sources.files.log_files import opened, rotated_siblings
from publisher.sources.files.read_files import Cursors
from publisher.sources.files.site_mapping import CLUSTER
from publisher.sources.files.tables import SourceTables, count_bad_lines
from publisher.sources.importers import Importer, ImportReport, Retried, SourceStore

_PATHS: Final = "SELECT Path FROM ImportFile WHERE Source = source_number()"
_BAD_FILES: Final = """
    SELECT Path, count(*) FROM ImportBadLine WHERE Source = source_number()
    GROUP BY Path ORDER BY Path
"""
_NO_RETRIED: Final = "DELETE FROM ImportRetried WHERE Source = source_number()"
_RETRY: Final = """
    INSERT OR IGNORE INTO ImportRetried
    SELECT Source, Digest FROM ImportBadLine WHERE Source = source_number() AND Path = ?
"""
_NOT_MET_AGAIN: Final = """
    DELETE FROM ImportBadLine WHERE Source = source_number()
        AND Digest IN (SELECT Digest FROM ImportRetried WHERE Source = source_number())
"""


def read_entry(
    store: SourceStore, importer: Callable[[], Importer], clock: Callable[[], datetime]
) -> ImportReport:
    """Read what is new. What went wrong is kept, and raised where nothing could be read at all.

    Raises: PublisherError.
    """
    try:
        report = importer().run((), store, clock())
    except PublisherError as error:
        _keep(store, clock(), trouble=str(error))
        raise
    except Exception as error:
        _keep(store, clock(), trouble=bug_text(error))
        raise
    _keep(store, clock(), trouble="; ".join(report.failures), damaged=report.damaged)
    return report


def other_cluster(connection: sqlite3.Connection, entry: BatchEntry) -> str:
    """Return under which name of its cluster a source has read files that an entry names; or ''."""
    options: Any = entry.options
    cluster = tables.setting(connection, CLUSTER)
    if cluster in ("", options.cluster):
        return ""
    reads = [str(path) for path in options.reads]
    read = [path for (path,) in connection.execute(_PATHS)]
    return cluster if any(_names(each, path) for path in read for each in reads) else ""


def _names(reads: str, path: str) -> bool:
    return path == reads or path.startswith(f"{reads}/") or fnmatchcase(path, reads)


def retry(
    store: SourceStore, importer: Importer, kind: str, clock: Callable[[], datetime]
) -> Retried:
    """Read the files once more in which lines were set aside, whole.

    What is known of them changes nothing. A line that is not met again is no longer bad, unless a
    file was in trouble. Raises: PublisherError.
    """
    now, accounting = clock(), SourceTables(store)
    found = _to_retry(accounting, importer, now)
    report = ImportReport(importer=kind, database=store.path)
    if found.tried:
        report = importer.run(found.files, store, now)
    with accounting.transaction():
        if not report.troubles:
            accounting.connection.execute(_NOT_MET_AGAIN)
        accounting.connection.execute(_NO_RETRIED)
        left = count_bad_lines(accounting.connection)
    return Retried(tried=found.tried, still_bad=left - found.others, gone=found.gone, report=report)


class _ToRetry(NamedTuple):
    """The files to read again, none where a program is asked."""

    files: Sequence[Path]
    tried: int  # how many bad lines that may mend
    others: int  # bad lines
    gone: Mapping[str, int]


def _to_retry(accounting: SourceTables, importer: Importer, now: datetime) -> _ToRetry:
    """Forget how far they were read, and note the bad lines that are to be met again."""
    connection, cursors = accounting.connection, Cursors(accounting.connection)
    counts: dict[str, int] = dict(connection.execute(_BAD_FILES).fetchall())
    files = {path: _files_of(Path(path), cursors) for path in counts}
    with accounting.transaction():
        asked = [path for path in counts if importer.ask_again(connection, Path(path), now)]
        tried = asked or list(filter(files.get, files))
        again = list(dict.fromkeys(chain.from_iterable(map(files.__getitem__, tried))))
        connection.execute(_NO_RETRIED)
        connection.executemany(_RETRY, [(path,) for path in tried])
        for each in again:
            cursors.read_again(str(each))
            importer.forget_file(connection, each)
    lines = sum(map(counts.__getitem__, tried))
    gone = {path: counts[path] for path, found in files.items() if not (found or path in asked)}
    return _ToRetry(files=again, tried=lines, others=sum(counts.values()) - lines, gone=gone)


def _files_of(path: Path, cursors: Cursors) -> Sequence[Path]:
    """Where a line of this file may be today: there, and where rotation moved what was read of it.

    Raises: SourceError.
    """
    there = [path] if path.is_file() else []
    if not path.parent.is_dir() or not path.is_absolute():
        return there
    for sibling in rotated_siblings(path, 0.0):
        with opened(sibling) as file:
            if any(file.begins(cursor.mark) for cursor in cursors.all() if cursor.mark.consumed):
                there.append(sibling)
    return there


def _keep(store: SourceStore, now: datetime, *, trouble: str, damaged: Sequence[str] = ()) -> None:
    moment = epoch(now)
    SourceTables(store).keep_reading(
        {
            "now": moment,
            "succeeded": None if trouble else moment,
            "failed": moment if trouble else None,
            "trouble": trouble,
            "damaged": "\n".join(damaged),
        }
    )
