"""Rows of one accounting database as statistics count them.

They are walked by the index that a filter favours, then filtered: however little a filter leaves,
no transaction reads more than a page.

Where nothing but the filter's names matters, SQLite adds a page up. Of 50,000 rows of which most
ran as user 7 in VO 2, `sums` makes rows such as

    plain StatusID VOID UserID ended count(*) sum(UsedWalltime) ... min(SubmitTime) max(EndTime)
        1        2    2      7     1    48123         912345678 ...      1740568080   1740937890
        0        2    2      7     1        1               ...

Rows are *plain* that hold numbers as A-REX writes them. The others are `odd` and read one by one,
by the code that names what is wrong with them. So are rows that are asked for by number (`:alone`),
such as those of jobs that another database has too.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Final

from publisher.model.job import Epoch
from publisher.model.text import arex_escape
from publisher.model.time import Window
from publisher.sources.arex.counting.beside import (
    NOTED,
    having,
    local_name,
    noted_as,
    with_local_names,
)
from publisher.sources.arex.counting.joined import counted_with_joined, rows_to_count_alone
from publisher.sources.arex.database import (
    BEFORE_ALL,
    LAST_SECOND,
    AccountingDatabase,
    bounds,
    stored_job_id,
)
from publisher.sources.arex.names import NameTables
from publisher.sources.arex.queries import IMPORTED, LAYOUTS, Parameters, Question, select_list
from publisher.sources.arex.rows import Row, RowReader
from publisher.sources.arex.values import duration, moment, positive, stored_text, unsigned
from publisher.sources.base import CPU_UNKNOWN, JoinedRuns
from publisher.sources.statistics import CountedJob, JobFilter, Totals

# The first thirteen stand where `queries` has them, for `NameTables`; this module unpacks the row.
_COLUMNS: Final = (
    *("RecordID", "JobID", "LocalJobID", "EndpointID", "QueueID", "UserID", "VOID", "FQANID"),
    *("StatusID", "ExitCode", "BenchmarkID", "SubmitTime", "EndTime"),
    *("UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime"),
    *("StageInVolume", "StageOutVolume", "GPUCount"),
)
# Few rows have no CPU time, so nearly none is looked up.
_CPU_UNKNOWN: Final = f"""
    AAR.UsedCPUUserTime + AAR.UsedCPUKernelTime = 0 AND EXISTS (
        SELECT 1 FROM JobExtraInfo AS e
        WHERE e.RecordID = AAR.RecordID
            AND +e.InfoKey = '{CPU_UNKNOWN[0]}' AND e.InfoValue = '{CPU_UNKNOWN[1]}'
    )
"""


def _select(layout: int, where: str) -> str:
    cpu_unknown = _CPU_UNKNOWN if layout == IMPORTED else "NULL"
    # The last as `standing_among` decides it, so that two databases agree on which has it finished.
    return (
        f"SELECT {select_list(layout, _COLUMNS)}, {cpu_unknown} AS CPUUnknown, AAR.EndTime > 0"
        f" FROM AAR WHERE {where} LIMIT :limit"
    )


def _by_layout(where: str) -> dict[int, str]:
    return {layout: _select(layout, where) for layout in LAYOUTS}


def _by_time_sql(column: str) -> dict[int, str]:
    return _by_layout(
        f"{column} >= :first AND {column} <= :last AND ({column} > :first OR RecordID > :after) "
        f"ORDER BY {column}, RecordID"
    )


BY_ROW: Final = _by_layout("RecordID > :after ORDER BY RecordID")
# An index entry ends with the rowid, so a user's rows come in order and none is read twice.
OF_USER: Final = _by_layout("UserID = :user AND RecordID > :after ORDER BY RecordID")
BY_END: Final = _by_time_sql("EndTime")
BY_SUBMISSION: Final = _by_time_sql("SubmitTime")

USER_IDS: Final = "SELECT ID FROM Users WHERE Name IN (CAST(:name AS TEXT), CAST(:escaped AS TEXT))"

# Beyond that the sums of a page might not fit into 64 bits.
_MOST_SUMMED: Final = 2**46
_TIMES: Final = ("UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime")
_SIZES: Final = ("StageInVolume", "StageOutVolume")  # negative ones as `values.unsigned` has them
# What every group shares, with its bits in one number: to sort by more keys takes twice as long.
_PACKED: Final = {"UserID": 24, "VOID": 20, "StatusID": 16}
# NULL is unknown and adds nothing. Text and blobs are greater than any number here, and fractions
# show in the sums.
_PLAIN: Final = " AND ".join(
    (
        *(f"ifnull({name}, 0) BETWEEN 0 AND {_MOST_SUMMED}" for name in (*_TIMES, "EndTime")),
        *(f"ifnull({name}, 0) BETWEEN {-(2**31)} AND {_MOST_SUMMED}" for name in _SIZES),
        f"ifnull(SubmitTime, 0) BETWEEN 1 AND {_MOST_SUMMED}",
        *(f"ifnull({name}, -1) BETWEEN 0 AND {2**bits - 1}" for name, bits in _PACKED.items()),
        "ifnull(GPUCount, 0) BETWEEN 0 AND 65535",
    )
)
_ALONE: Final = "RecordID IN (SELECT value FROM json_each(:alone))"
_SUMS: Final = (
    "count(*)",
    *(f"sum({name})" for name in _TIMES),
    *(f"sum(CASE WHEN {name} < 0 THEN {name} + {2**32} ELSE {name} END)" for name in _SIZES),
    *("sum(SubmitTime)", "sum(EndTime)", "sum(CPUUnknown)"),
    *("sum(GPUCount > 0)", "sum(GPUCount * UsedWalltime)"),
)
# What tells groups apart beside status, VO, user and whether there is an end: fewer are quicker.
BY: Final = {
    "": "NULL",
    **NOTED,
    "queue": "QueueID",
    "endpoint": "EndpointID",
    "month": "strftime('%Y%m', EndTime, 'unixepoch')",
}


def sums(page: str, by: str, alone: bool, timed: bool) -> str:
    """Groups of a page of rows, each with its sums, first submission, and first and last end.

    `alone`: some rows are asked for by number. `timed`: only those of a time. The sums of times
    are there to tell fractions.
    """
    has_end = "ifnull(EndTime, 0) > 0"
    packed = "0"
    for name, bits in _PACKED.items():
        packed = f"({packed}) * {2**bits} + {name}"
    within = """WHERE NOT plain OR (SubmitTime BETWEEN :submitted_first AND :submitted_last
                            AND ifnull(EndTime, 0) BETWEEN :ended_first AND :ended_last)"""
    return f"""
        SELECT {_plain(alone)} AS plain, StatusID, VOID, UserID, {has_end}, {BY[by]},
            {", ".join(_SUMS)}, min(SubmitTime), min(EndTime), max(EndTime)
        FROM ({page}) AS page {within if timed else ""}
        GROUP BY CASE WHEN plain THEN ({packed}) * 2 + ({has_end}) END {f", {BY[by]}" if by else ""}
    """


def odd(page: str, alone: bool) -> str:
    """The rows of a page that are not plain."""
    return f"SELECT * FROM ({page}) WHERE NOT ({_plain(alone)})"


def _plain(alone: bool) -> str:
    return f"{_PLAIN} AND NOT {_ALONE}" if alone else _PLAIN


def ids(page: str) -> str:
    """RecordID and JobID of the rows of a page."""
    return f"SELECT RecordID, JobID FROM ({page})"


def last(page: str) -> str:
    """Where a page ends: the `Place` of its row number `limit`; nothing if it has fewer."""
    where = page.removesuffix("LIMIT :limit").rpartition(" FROM AAR WHERE ")[2]
    return f"SELECT RecordID, SubmitTime, EndTime FROM AAR WHERE {where} LIMIT 1 OFFSET :limit - 1"


_IN_PROGRESS: Final = "in-progress"
Place = tuple[Any, Any, Any]  # RecordID, SubmitTime, EndTime of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredPage:
    """All rows of a page that was read in one transaction, and the jobs that a filter takes."""

    rows: Sequence[Row]
    taken: Sequence[tuple[Row, CountedJob]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSums:
    """The jobs of a page that a filter takes: in groups, with one of each, or by themselves."""

    groups: Sequence[tuple[CountedJob, Totals]]
    alone: FilteredPage
    rows_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """Rows in the order of an index: where to begin, and where to go on after a row."""

    question: Question
    begin: Parameters
    advance: Callable[[Place], Parameters]


class CountingDatabase(AccountingDatabase):
    """One accounting database, open for statistics."""

    joined: JoinedRuns | None = None
    _names: tuple[sqlite3.Connection, NameTables] | None = None

    def pages(self, wanted: JobFilter, limit: int, by: str) -> Iterator[FilteredPage]:
        """All rows that a filter may take, by pages of at most `limit`.

        With local names where jobs are told apart `by` one. Raises: SourceError.
        """
        for walk in self._walks(wanted):
            asked = {**walk.begin, "limit": limit}
            while True:
                page = self._filtered_page(walk.question, asked, wanted, by)
                yield page
                if len(page.rows) < limit:
                    break
                row = page.rows[-1]
                asked.update(walk.advance((row[0], row[11], row[12])))

    def summed(
        self, wanted: JobFilter, by: str, limit: int, others: Sequence[CountingDatabase]
    ) -> Iterator[PageSums]:
        """As `pages`, with most jobs in groups; those that one of `others` has too are alone.

        Filters by queue, interface or extra attributes are not for groups, unless they are told
        apart `by` it. Raises: SourceError.
        """
        asked: dict[str, object] = {"limit": limit}
        for name, window in (("submitted", wanted.submitted), ("ended", wanted.ended)):
            first, last = bounds(window) if window != Window() else (0, LAST_SECOND)
            asked |= {f"{name}_first": first, f"{name}_last": last}
        for walk in self._walks(wanted):
            at: Place | None = None
            asked.update(walk.begin)
            while True:
                joined = self.ask(partial(rows_to_count_alone, self.joined, walk.question, asked))
                elsewhere = self._elsewhere(walk.question, asked, others)
                asked["alone"] = json.dumps([*elsewhere, *joined])
                found, at = self.ask(partial(self._sums, walk.question, asked, wanted, by))
                yield found
                if at is None:
                    break
                asked.update(walk.advance(at))

    def _elsewhere(
        self, question: Question, asked: Parameters, others: Sequence[CountingDatabase]
    ) -> list[int]:
        """The rows of a page whose jobs are in other databases too."""
        if not others:
            return []

        def read(connection: sqlite3.Connection, reader: RowReader) -> list[Row]:
            return connection.execute(ids(question[reader.layout]), asked).fetchall()

        rows = self.ask(read)
        there: set[bytes] = set()
        for other in others:
            there |= other.standing_among(rows).keys()
        return [row[0] for row in rows if stored_job_id(row) in there]

    def _sums(
        self,
        question: Question,
        asked: Parameters,
        wanted: JobFilter,
        by: str,
        connection: sqlite3.Connection,
        reader: RowReader,
    ) -> tuple[PageSums, Place | None]:
        """A page, and where it ends if it is full. Raises: sqlite3.Error."""
        page, alone = question[reader.layout], asked["alone"] != "[]"
        timed = Window() != wanted.submitted or Window() != wanted.ended
        summing = sums(page, noted_as(by, reader.layout), alone, timed)
        groups = _added_up(connection, summing, asked)
        rows: list[Row] = []
        if groups is None:
            rows, groups = connection.execute(page, asked).fetchall(), []
        elif not all(group[0] for group in groups):
            rows = connection.execute(odd(page, alone), asked).fetchall()
        names = self._names_of(connection, reader)
        names.look_up(connection, _named(groups, by))
        plain = [_summed(group, names, reader, by) for group in groups if group[0]]
        taken = self._taken(connection, reader, rows, wanted)
        found = PageSums(
            groups=[one for one in plain if wanted.takes_names(one[0])],
            alone=FilteredPage(rows=rows, taken=with_local_names(connection, reader, taken, by)),
            rows_read=sum(totals.jobs for _, totals in plain) + len(rows),
        )
        return found, connection.execute(last(page), asked).fetchone()

    def _taken(
        self,
        connection: sqlite3.Connection,
        reader: RowReader,
        rows: Sequence[Row],
        wanted: JobFilter,
    ) -> list[tuple[Row, CountedJob]]:
        """The jobs of rows that a filter takes, but for its extra attributes."""
        names = self._names_of(connection, reader)
        names.fill(connection, rows)
        counted = ((row, _counted(row, names, reader)) for row in rows)
        jobs = counted_with_joined(connection, reader, self.joined, counted)
        return [(row, job) for row, job in jobs if wanted.takes(job)]

    def _walks(self, wanted: JobFilter) -> list[_Walk]:
        """By the index that leads past most rows that are not wanted.

        SQLite cannot tell, since sites never ran ANALYZE.
        """
        if wanted.ended.start is None and wanted.users:
            begins = ({"user": user, "after": BEFORE_ALL} for user in self._user_ids(wanted.users))
            return [_Walk(question=OF_USER, begin=begin, advance=_next_row) for begin in begins]
        if wanted.ended != Window():
            return [_by_time(BY_END, wanted.ended, 2)]
        if wanted.submitted != Window():
            return [_by_time(BY_SUBMISSION, wanted.submitted, 1)]
        return [_Walk(question=BY_ROW, begin={"after": BEFORE_ALL}, advance=_next_row)]

    def _user_ids(self, users: Iterable[str]) -> list[int]:
        def read(connection: sqlite3.Connection, _: RowReader) -> list[int]:
            found: set[int] = set()
            for user in users:
                spellings = {"name": stored_text(user), "escaped": stored_text(arex_escape(user))}
                found.update(number for (number,) in connection.execute(USER_IDS, spellings))
            return sorted(found)

        return self.ask(read)

    def _filtered_page(
        self, question: Question, asked: Parameters, wanted: JobFilter, by: str
    ) -> FilteredPage:
        def read(connection: sqlite3.Connection, reader: RowReader) -> FilteredPage:
            rows = connection.execute(question[reader.layout], asked).fetchall()
            taken = self._taken(connection, reader, rows, wanted)
            names = self._names_of(connection, reader)
            for attribute, values in wanted.extras.items():
                if not taken:
                    break
                left = [row for row, _ in taken]
                fitting = having(connection, reader, names, left, attribute, values)
                taken = [(row, job) for row, job in taken if row[0] in fitting]
            return FilteredPage(rows=rows, taken=with_local_names(connection, reader, taken, by))

        return self.ask(read)

    def _names_of(self, connection: sqlite3.Connection, reader: RowReader) -> NameTables:
        """The names that were met behind this connection; another one may be to another file."""
        if self._names is None or self._names[0] is not connection:
            self._names = connection, NameTables(reader.layout, reader.text)
        return self._names[1]


def _by_time(question: Question, window: Window, time: int) -> _Walk:
    first, last = bounds(window)
    return _Walk(
        question=question,
        begin={"first": first, "last": last, "after": BEFORE_ALL},
        advance=lambda place: {"first": place[time], "after": place[0]},
    )


def _next_row(place: Place) -> Parameters:
    return {"after": place[0]}


def _added_up(connection: sqlite3.Connection, question: str, asked: Parameters) -> list[Row] | None:
    """The groups of a page; None where SQLite cannot add up its numbers. Raises: sqlite3.Error."""
    try:
        groups = connection.execute(question, asked).fetchall()
    except sqlite3.OperationalError as error:
        if "integer overflow" not in str(error):  # odd numbers, each beyond what is plain
            raise
        return None
    fractions = any(isinstance(value, float) for group in groups if group[0] for value in group)
    return None if fractions else groups


def _named(groups: Sequence[Row], by: str) -> dict[str, set[Any]]:
    """The numbers of names in some groups, by column."""
    places = {"StatusID": 1, "VOID": 2, "UserID": 3}
    if by in ("queue", "endpoint"):
        places[BY[by]] = 5
    return {column: set(map(itemgetter(at), groups)) for column, at in places.items()}


def _summed(group: Row, names: NameTables, reader: RowReader, by: str) -> tuple[CountedJob, Totals]:
    """A row of `sums`, with one job that has what they have in common."""
    _, status_id, vo_id, user_id, has_end, place_id, jobs = group[:7]
    wall_s, cpu_user_s, cpu_kernel_s, stage_in, stage_out, *others = (n or 0 for n in group[7:-3])
    _, _, cpu_unknown, gpu_jobs, gpu_s = others
    first_submitted, first_ended, last_ended = group[-3:]
    status = names.statuses.get(status_id, "")
    in_progress = status == _IN_PROGRESS or (not status and not has_end)
    unfinished = jobs if in_progress else 0
    first_ended_at, ended_at = (Epoch(first_ended), Epoch(last_ended)) if has_end else (None, None)
    interface = queue = noted = ""
    if by == "endpoint":
        interface, _ = names.endpoints.get(place_id, ("", ""))
    elif by == "queue":
        queue = names.queues.get(place_id, "")
    elif by in NOTED:
        noted = local_name(reader.text(place_id), by)
    job = CountedJob(
        job_id="",
        status=status,
        in_progress=in_progress,
        interface=interface,
        queue=queue,
        user=names.users.get(user_id, ""),
        vo=names.vos.get(vo_id, ""),
        submitted_at=Epoch(first_submitted),
        ended_at=ended_at,
        wall_s=wall_s,
        cpu_user_s=cpu_user_s,
        cpu_kernel_s=cpu_kernel_s,
        stage_in_bytes=stage_in,
        stage_out_bytes=stage_out,
        unreadable=False,
        local_name=noted,
    )
    totals = Totals(
        jobs=jobs,
        in_progress=unfinished,
        wall_s=wall_s,
        cpu_user_s=cpu_user_s,
        cpu_kernel_s=cpu_kernel_s,
        stage_in_bytes=stage_in,
        stage_out_bytes=stage_out,
        cpu_unknown=cpu_unknown,
        gpu_jobs=gpu_jobs,
        gpu_s=gpu_s,
        first_submitted_at=Epoch(first_submitted),
        first_ended_at=first_ended_at,
        last_ended_at=ended_at,
    )
    return job, totals


def _counted(row: Row, names: NameTables, reader: RowReader) -> CountedJob:
    # fmt: off
    (_, job_id, _, endpoint_id, queue_id, user_id, vo_id, _, status_id, _, _, submitted, ended,
     wall, user_s, kernel_s, stage_in, stage_out, gpus, cpu_unknown, _) = row
    # fmt: on
    status = names.statuses.get(status_id, "")
    # Nearly all values are numbers as they should be; a call for each would take half of the time.
    wall_s: int | None = wall
    cpu_user_s: int | None = user_s
    cpu_kernel_s: int | None = kernel_s
    plain = wall.__class__ is user_s.__class__ is kernel_s.__class__ is int
    if not (plain and wall >= 0 and user_s >= 0 and kernel_s >= 0):
        wall_s, cpu_user_s, cpu_kernel_s = duration(wall), duration(user_s), duration(kernel_s)
    stage_in_bytes, stage_out_bytes = unsigned(stage_in), unsigned(stage_out)
    read = wall_s, cpu_user_s, cpu_kernel_s, stage_in_bytes, stage_out_bytes
    stored = wall, user_s, kernel_s, stage_in, stage_out
    return CountedJob(
        job_id=reader.text(job_id),
        status=status,
        in_progress=status == _IN_PROGRESS or (not status and not ended),
        interface=names.endpoints.get(endpoint_id, ("", ""))[0],
        queue=names.queues.get(queue_id, ""),
        user=names.users.get(user_id, ""),
        vo=names.vos.get(vo_id, ""),
        submitted_at=moment(submitted),
        ended_at=moment(ended),
        wall_s=wall_s,
        cpu_user_s=cpu_user_s,
        cpu_kernel_s=cpu_kernel_s,
        stage_in_bytes=stage_in_bytes,
        stage_out_bytes=stage_out_bytes,
        # NULL is unknown, and nothing strange: other systems tell less.
        unreadable=None in read and read.count(None) > stored.count(None),
        gpu_count=positive(gpus),
        cpu_unknown=bool(cpu_unknown),
    )
