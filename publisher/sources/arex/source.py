"""Finished jobs from A-REX's databases, of ARC 6 (schema 1) and ARC 7 (schema 2) side by side."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from publisher.model.job import Epoch, JobId, RowRef
from publisher.sources.arex import queries as sql
from publisher.sources.arex.database import (
    AccountingDatabase,
)
from publisher.sources.arex.file import AccountingFile
from publisher.sources.arex.options import NamedFile, Options, look_for, names, present, readings_of
from publisher.sources.arex.sheet import read_sheet
from publisher.sources.arex.values import stored_text, text_of, tolerant_text
from publisher.sources.base import (
    Absent,
    JobSource,
    Source,
    SourceFacts,
    WrittenJob,
)
from publisher.sources.sheet import JobDetails
from publisher.sources.sqlite_reader import CopyDirectory, ReadOnlyFile, copies_directory

_ORDERED_ROWS: Final = 2000


def create(
    options: object, environment: Mapping[str, str], *, lock_wait_s: float | None = None
) -> ArexSource:
    """Raises: ConfigError when the time zone cannot be found."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return ArexSource(
        options, environment, copies_below=copies_directory(environment), lock_wait_s=lock_wait_s
    )


@contextmanager
def writing_order(
    source: Source, environment: Mapping[str, str]
) -> Iterator[list[ArexWritingOrder]]:
    """Each database of a source, to be read once in the order of writing. Raises: SourceError."""
    copies = CopyDirectory(copies_directory(environment))
    with ExitStack() as stack:
        stack.callback(copies.close)
        databases = []
        for name, path in source.databases().items():
            databases.append(ArexWritingOrder(name, path, copies))
            stack.callback(databases[-1].close)
        yield databases


class ArexWritingOrder:
    """One database, to be read once in the order in which A-REX wrote the ends of jobs.

    RecordID is the order of submission and EndTime is the state file's; neither says when a row was
    written. The FINISHED event does: it is the last thing that is written of a job, and rowids of
    JobEvents grow with each row. Of a job that passed FINISHED twice the last event counts, because
    EndTime is of that.
    """

    def __init__(
        self, name: str, path: str, copies: CopyDirectory, *, page_rows: int = _ORDERED_ROWS
    ) -> None:
        """Raises: SourceError."""
        self.name = name
        self._page_rows = page_rows
        self._file = ReadOnlyFile(path, copies)

    def close(self) -> None:
        self._file.close()

    def jobs(self) -> Iterator[WrittenJob]:
        """Jobs whose end is told, page by page in short transactions. Raises: SourceError."""
        after = 0
        while True:
            rows = self._file.ask(partial(self._page, after=after))
            for _, job_id, local_id, ended_at, status, vo in rows:
                if isinstance(ended_at, int) and ended_at > 0:
                    ids = text_of(job_id), text_of(local_id)
                    yield WrittenJob(*ids, Epoch(ended_at), text_of(status), text_of(vo))
            if len(rows) < self._page_rows:
                return
            after = rows[-1][0]

    def unordered(self, last_end: Epoch) -> Iterator[str]:
        """Yield JobIDs of jobs that ended up to a second, of which no event tells that."""
        after = 0
        while rows := self._file.ask(partial(self._without_event, after=after, last=last_end)):
            yield from (text_of(job_id) for _, job_id in rows)
            after = rows[-1][0]

    def finished_among(self, job_ids: Sequence[str]) -> set[str]:
        """Which of some jobs, named as by `WrittenJob`, are finished here. Raises: SourceError."""
        named = {stored_text(job_id): job_id for job_id in job_ids}

        def read(connection: sqlite3.Connection) -> set[str]:
            found = connection.execute(sql.standing_among(len(named)), list(named))
            return {named[job_id] for job_id, finished in found if finished}

        return self._file.ask(read) if named else set()

    def _page(self, connection: sqlite3.Connection, after: int) -> list[tuple[Any, ...]]:
        connection.text_factory = tolerant_text
        return connection.execute(
            sql.IN_ORDER, {"after": after, "limit": self._page_rows}
        ).fetchall()

    def _without_event(
        self, connection: sqlite3.Connection, after: int, last: int
    ) -> list[tuple[Any, ...]]:
        connection.text_factory = tolerant_text
        place = {"after": after, "last": last, "limit": self._page_rows}
        return connection.execute(sql.UNORDERED, place).fetchall()


class ArexSources:
    """`SourceList`: the accounting databases of all CEs, those of schema 2 before those of 1."""

    def __init__(
        self,
        options: Options,
        environment: Mapping[str, str],
        *,
        copies_below: Path,
        lock_wait_s: float | None = None,
    ) -> None:
        """Raises: ConfigError when a time zone cannot be found."""
        self._options = options
        self._page_rows = options.page_rows
        self._copies = CopyDirectory(copies_below)
        self._open: dict[NamedFile, AccountingDatabase] = {}
        self._readings = readings_of(options, environment, lock_wait_s=lock_wait_s)

    def sources(self) -> Sequence[JobSource]:
        """Return the databases that are there. Raises: SourceError when none is."""
        return [AccountingFile(each, self._page_rows) for each in self._opened()]

    def databases(self) -> Mapping[str, str]:
        """Return the files by the names of their databases."""
        return {each.name: each.path for each in self._opened()}

    def absent(self) -> tuple[Absent, ...]:
        """Return what the configuration names in vain."""
        return look_for(self._options)[1]

    def has_any(self) -> bool:
        """Return whether any of the files is there."""
        return bool(look_for(self._options)[0])

    def names(self, file: str) -> bool:
        """Whether any entry names this file, be it there or not."""
        return names(self._options, file)

    def facts(self) -> tuple[SourceFacts, ...]:
        """Return what the files look like."""
        return tuple(each.facts() for each in self._opened())

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()
        self._copies.close()

    def _opened(self) -> list[AccountingDatabase]:
        """All databases, the most authoritative first: schema 2 before 1, then as configured.

        They stay open until `close`; what was replaced is opened anew when it is asked.
        """
        found = present(self._options)
        for file in [file for file in self._open if file not in found]:
            self._open.pop(file).close()
        for file in found:
            if file not in self._open:
                reading = self._readings[file.entry]
                self._open[file] = AccountingDatabase(file.path, self._copies, reading, file.name)
        return sorted((self._open[file] for file in found), key=lambda each: -each.schema)


class ArexSource(ArexSources):
    """A `Source`. Each call looks for the files again: `rotate` and `migrate` replace them."""

    def sheet(self, job_id: JobId) -> JobDetails | None:
        sheets = [read_sheet(database, job_id) for database in self._opened()]
        found = [sheet for sheet in sheets if sheet is not None]
        if not found:
            return None
        # Where it counts. Sorting is stable: the most authoritative database comes first.
        best, *others = sorted(found, key=lambda sheet: sheet.in_progress or sheet.ended_at is None)
        elsewhere = tuple(other.row.database for other in others)
        return replace(best, elsewhere=elsewhere, zone=self._options.time_zone)

    def rows_with(self, attribute: str, values: Collection[str]) -> Iterator[RowRef]:
        for database in self._opened():
            for record_id in database.rows_with(attribute, values):
                yield RowRef(database=database.name, record_id=record_id)
