"""A-REX's finished jobs for reports: rows by end time, put together with those that are alike as they are read.

As for counting (`columns.py`), of each kind of job one row is read whole, and so is every strange row. Unlike there, rows
come by end time, and jobs that are not complete yet count too: their usage is. What stands beside a row is looked up in the
question itself, which is quicker than a question for each side table and page. The plans are tested.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from publisher.model.job import Epoch, JobRecord
from publisher.model.time import Window
from publisher.sources.arex import queries
from publisher.sources.arex.database import BEFORE_ALL, LAST_SECOND, AccountingDatabase, stored_job_id
from publisher.sources.arex.options import Options, database_files, readings_of
from publisher.sources.arex.queries import IMPORTED, LAYOUTS
from publisher.sources.arex.rows import NameTables, ReadOptions, Row, RowReader
from publisher.sources.arex.values import LocalTime, positive, text_of
from publisher.sources.sqlite_reader import CopyDirectory, copies_directory
from publisher.sources.statistics import UsageGroup, UsagePage

# The first thirteen stand where `queries` has them, for `NameTables`; this module unpacks the row.
_COLUMNS: Final = (
    *("RecordID", "JobID", "LocalJobID", "EndpointID", "QueueID", "UserID", "VOID", "FQANID", "StatusID"),
    *("ExitCode", "BenchmarkID", "SubmitTime", "EndTime", "NodeCount", "CPUCount", "UsedWalltime"),
    *("UsedCPUUserTime", "UsedCPUKernelTime"),
)
_UNUSED: Final = frozenset({"LocalJobID", "ExitCode"})  # they keep the others in their places
_NOT_IN_1: Final = frozenset({"FQANID", "BenchmarkID"})


def _extra(key: str, order: str) -> str:
    return f"(SELECT InfoValue FROM JobExtraInfo AS x WHERE x.RecordID = AAR.RecordID AND +x.InfoKey = '{key}' {order} LIMIT 1)"


def _token(key: str) -> str:
    return (
        "(SELECT AttrValue FROM AuthTokenAttributes AS t WHERE t.RecordID = AAR.RecordID "
        f"AND +t.AttrKey = '{key}' AND +t.AttrValue <> '' ORDER BY t.rowid LIMIT 1)"
    )


def _started(layout: int) -> str:
    """An importer's own column, else the newest LRMSSTART."""
    if layout == IMPORTED:
        return "AAR.StartTime"
    return (
        "(SELECT EventTime FROM JobEvents AS e WHERE e.RecordID = AAR.RecordID AND +e.EventKey = 'LRMSSTART' "
        "ORDER BY e.rowid DESC LIMIT 1)"
    )


def _beside(layout: int) -> str:
    """The main FQAN and the benchmark, where the row itself names none."""
    fqan, benchmark = (
        f"coalesce({_token('mainfqan')}, {_token('vomsfqan')})",
        _extra("benchmark", "ORDER BY x.rowid DESC"),
    )
    if layout == 1:
        return f"{fqan}, {benchmark}"
    return ", ".join(
        f"CASE WHEN AAR.{column} IS NULL OR AAR.{column} = (SELECT ID FROM {table} WHERE Name = '') THEN {look} END"
        for column, table, look in (("FQANID", "FQANs", fqan), ("BenchmarkID", "Benchmarks", benchmark))
    )


def _ended(layout: int) -> str:
    left_out = _UNUSED | _NOT_IN_1 if layout == 1 else _UNUSED
    columns = (f"NULL AS {name}" if name in left_out else f"AAR.{name}" for name in _COLUMNS)
    return f"""
        SELECT {", ".join(columns)}, {_started(layout)}, {_extra("projectname", "AND +x.InfoValue <> '' ORDER BY x.rowid")},
               CASE WHEN :own THEN {_extra("localuser", "ORDER BY x.rowid DESC")} END, {_beside(layout)}
        FROM AAR WHERE EndTime >= :first AND EndTime <= :last AND (EndTime > :first OR RecordID > :after)
        ORDER BY EndTime, RecordID LIMIT :limit
    """


ENDED: Final = {layout: _ended(layout) for layout in LAYOUTS}


_PAGE_ROWS: Final = 4_000  # 40 ms in one transaction
_REMEMBERED: Final = 5_000  # kinds with an example, 2 kB each
# EndpointID, QueueID, UserID, VOID, FQANID, StatusID, BenchmarkID, NodeCount, CPUCount; FQAN and benchmark beside the row.
_KIND: Final = itemgetter(3, 4, 5, 6, 7, 8, 10, 13, 14, 21, 22)
_WALL, _USER, _KERNEL = itemgetter(15), itemgetter(16), itemgetter(17)
Kind = tuple[Any, ...]
# Nothing is waited for: what a job used is all there when it has an end.
_WHATEVER: Final = ReadOptions(needs=frozenset(), now=Epoch(LAST_SECOND), remembers=False)


def create(options: object, environment: Mapping[str, str]) -> ArexUsage:
    """Raises: ConfigError when the time zone cannot be found."""
    if not isinstance(options, Options):
        raise TypeError(f"expected {Options}, got {options!r}")
    return ArexUsage(options, environment, copies_below=copies_directory(environment))


class ArexUsage:
    """A `UsageReader`. Each call reopens the files, because `rotate` and `migrate` replace them."""

    def __init__(
        self, options: Options, environment: Mapping[str, str], *, copies_below: Path, page_rows: int = _PAGE_ROWS
    ) -> None:
        """Raises: ConfigError when a time zone cannot be found."""
        self._options = options
        self._page_rows = page_rows
        self._copies = CopyDirectory(copies_below)
        readings = readings_of(options, environment)
        self._readings = {ce: reading._replace(hold_off_s=0) for ce, reading in readings.items()}

    def groups(self, window: Window, eras: Sequence[Epoch], *, alone: bool, own_projects: bool) -> Iterator[UsagePage]:
        first = max(1, window.start or 1)
        last = LAST_SECOND if window.end is None else min(window.end - 1, LAST_SECOND)
        with ExitStack() as stack:
            opened: list[UsageDatabase] = []
            for path, ce in database_files(self._options):
                database = UsageDatabase(path, self._copies, self._readings[ce])
                stack.callback(database.close)
                opened.append(database)
            opened.sort(key=lambda each: -each.schema)  # the most authoritative first, as `ArexSource` has them
            for place, database in enumerate(opened):
                summing = _Summing(database.clock, eras, opened[:place], alone=alone)
                asked = {
                    "first": first,
                    "after": BEFORE_ALL,
                    "last": last,
                    "limit": self._page_rows,
                    "own": own_projects,
                }
                yield from database.pages(asked, summing)

    def close(self) -> None:
        self._copies.close()


class UsageDatabase(AccountingDatabase):
    """One accounting database, open for a report."""

    def pages(self, asked: Mapping[str, int], summing: _Summing) -> Iterator[UsagePage]:
        """Raises: SourceError."""
        while True:
            page, end = self._ask(partial(summing.page, asked=asked))
            yield page
            if page.rows_read < asked["limit"] or end is None:
                return
            asked = {**asked, "first": end[0], "after": end[1]}


class _Summing:
    """Sums up the rows of one database, leaving out jobs that are finished in those above it."""

    def __init__(
        self, clock: LocalTime, eras: Sequence[Epoch], above: Sequence[AccountingDatabase], *, alone: bool
    ) -> None:
        self._clock = clock
        self._eras = eras
        self._above = above
        self._alone = alone
        self._known: tuple[RowReader, NameTables] | None = None
        self._examples: dict[Kind, JobRecord] = {}

    def page(
        self, connection: sqlite3.Connection, reader: RowReader, asked: Mapping[str, int]
    ) -> tuple[UsagePage, tuple[int, int] | None]:
        """A page, and where it ends. Raises: sqlite3.Error."""
        found = connection.execute(ENDED[reader.layout], asked).fetchall()
        rows: Sequence[Row] = found
        for database in self._above:
            finished = database.finished_among(rows)
            rows = [row for row in rows if stored_job_id(row) not in finished] if finished else rows
        names = self._names(reader)
        names.fill(connection, rows)
        kinds, strange = self._sorted(rows, names)
        strange += self._read_examples(connection, reader, kinds)
        groups = [
            group
            for kind, members in kinds.items()
            if kind in self._examples
            for group in self._groups(self._examples[kind], members, reader)
        ]
        unreadable = 0
        for row, job in self._whole(connection, reader, strange):
            if job is None:
                unreadable += names.statuses.get(row[8]) != "in-progress"
            else:
                groups += self._groups(job, [_with_written_values(row, job)], reader)
        page = UsagePage(groups=tuple(groups), unreadable=unreadable, rows_read=len(found))
        return page, (found[-1][12], found[-1][0]) if found else None

    def _names(self, reader: RowReader) -> NameTables:
        """What was met behind this reader's connection; another one may be to another file."""
        if self._known is None or self._known[0] is not reader:
            self._known = reader, NameTables(reader.layout, reader.text)
            self._examples.clear()
        return self._known[1]

    def _sorted(self, rows: Sequence[Row], names: NameTables) -> tuple[dict[Kind, list[Row]], list[Row]]:
        """Rows by kind, and the strange ones."""
        if self._alone:
            return {}, list(rows)
        kinds: defaultdict[Kind, list[Row]] = defaultdict(list)
        strange = []
        finished = {number for number, status in names.statuses.items() if status not in ("", "in-progress")}
        for row in rows:
            if row[8] in finished and _is_plain(row):
                kinds[_KIND(row)].append(row)
            else:
                strange.append(row)
        return kinds, strange

    def _read_examples(
        self, connection: sqlite3.Connection, reader: RowReader, kinds: Mapping[Kind, list[Row]]
    ) -> list[Row]:
        """Read a row whole of each kind that is new; gives the rows of kinds whose first row makes no job."""
        if len(self._examples) > _REMEMBERED:
            self._examples.clear()
        new = {kind: members[0] for kind, members in kinds.items() if kind not in self._examples}
        for (kind, _), (_, job) in zip(new.items(), self._whole(connection, reader, list(new.values())), strict=True):
            if job is not None:
                self._examples[kind] = job
        return [row for kind in new if kind not in self._examples for row in kinds[kind]]

    def _whole(
        self, connection: sqlite3.Connection, reader: RowReader, rows: Sequence[Row]
    ) -> list[tuple[Row, JobRecord | None]]:
        """The records of rows, in their order; None where none can be made."""
        if not rows:
            return []
        listed = {"rows": json.dumps([row[0] for row in rows])}
        whole = connection.execute(queries.BY_ROW[reader.layout], listed).fetchall()
        jobs = {job.row.record_id: job for job in reader.read(connection, whole, _WHATEVER, span=False).jobs}
        return [(row, jobs.get(row[0])) for row in rows]

    def _groups(self, example: JobRecord, members: Sequence[Row], reader: RowReader) -> list[UsageGroup]:
        """Rows of one kind by era and project."""
        text, eras = reader.text, self._eras
        alike: defaultdict[tuple[int, Any, bool], list[Row]] = defaultdict(list)
        for row in members:
            project, local_user = row[19], row[20]
            own = bool(project and local_user) and text(local_user).partition(":")[0] == text(project)
            alike[bisect_right(eras, row[12]), project, own].append(row)
        return [
            UsageGroup(
                era=era,
                example=example,
                project=text(project),
                own_project=own,
                jobs=len(rows),
                wall_s=sum(map(_WALL, rows)),
                cpu_s=sum(map(_USER, rows)) + sum(map(_KERNEL, rows)),
                waits_s=self._waits(rows, imported=reader.layout == queries.IMPORTED),
            )
            for (era, project, own), rows in alike.items()
        ]

    def _waits(self, rows: Sequence[Row], *, imported: bool) -> list[int]:
        """From submission to true start, of the rows that tell it: an importer's in a column, A-REX's in its local time."""
        epoch = self._clock.epoch
        if imported:
            starts = [(positive(row[18]), row[11]) for row in rows]
        else:
            starts = [
                (epoch(text_of(row[18]), ended_at=row[12], wall_s=row[15]), row[11])
                for row in rows
                if row[18] is not None
            ]
        return [start - submitted for start, submitted in starts if start is not None]


def _is_plain(row: Row) -> bool:
    """Whether the row's own values are as A-REX writes them."""
    submitted, ended, wall, user, kernel = row[11], row[12], row[15], row[16], row[17]
    return (
        submitted.__class__ is ended.__class__ is wall.__class__ is user.__class__ is kernel.__class__ is int
        and bool(row[1])
        and submitted > 0
        and wall >= 0
        and user >= 0
        and kernel >= 0
    )


def _with_written_values(row: Row, job: JobRecord) -> Row:
    """A strange row with the numbers that were read from it."""
    used = job.wall_s, job.cpu_user_s, job.cpu_kernel_s
    return (*row[:11], job.submitted_at, job.ended_at, *row[13:15], *used, *row[18:])
