"""One accounting database of A-REX as a source of jobs: from a row on, part by part, or by id."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from publisher.model.job import (
    Epoch,
    JobId,
    LoadedPage,
    OpenRow,
    Position,
    ReadRequest,
    RowPart,
    RowRef,
    last_row_of,
    part_of,
)
from publisher.model.text import arex_escape
from publisher.model.time import Window
from publisher.sources.arex import queries as sql
from publisher.sources.arex.database import BEFORE_ALL, AccountingDatabase, bounds
from publisher.sources.arex.partial import partial_job
from publisher.sources.arex.rows import ReadOptions, Row, RowOutcomes, RowReader
from publisher.sources.arex.values import position_at, row_of, stored_text

_LOOKED_UP_AT_ONCE: Final = 400  # JobIDs in two spellings; SQLite before 3.32 takes 999 parameters


class AccountingFile:
    """A `JobSource`: one accounting database.

    A position is the RecordID and the JobID of a row: where that row has another job, the rows were
    renumbered (`rotate`, `migrate`, a restored file).
    """

    is_comparable = True

    def __init__(self, database: AccountingDatabase, page_rows: int) -> None:
        self._database = database
        self._page_rows = page_rows

    @property
    def name(self) -> str:
        """The path, or the name of the batch system that is read into it."""
        return self._database.name

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def read(
        self, position: Position | None, again: Sequence[OpenRow], request: ReadRequest
    ) -> Iterator[LoadedPage]:
        """Yield the rows to read again, then all rows behind a position, by RecordID."""
        seen = {one.row.record_id: one.finished_seen_at for one in again}
        numbers = sorted(seen)
        for start in range(0, len(numbers), self._page_rows):
            part = numbers[start : start + self._page_rows]
            first_seen = {number: at for number in part if (at := seen[number]) is not None}
            asked = ReadOptions(request.needs, request.now, first_seen)
            yield self._database.ask(partial(self._reread, part, asked))
        asked = ReadOptions(request.needs, request.now)
        restarted = False
        while True:
            found = self._database.ask(partial(self._behind, position, asked))
            if found is None:
                position, restarted = None, True
                continue
            pages, is_last = found
            for page in pages:
                yield page._replace(restarted=restarted)
                position = page.position
            if is_last:
                break

    def _reread(
        self,
        numbers: Sequence[int],
        asked: ReadOptions,
        connection: sqlite3.Connection,
        reader: RowReader,
    ) -> LoadedPage:
        rows = connection.execute(sql.BY_ROW[reader.layout], sql.listed(numbers)[1]).fetchall()
        found = reader.read(connection, rows, asked, span=False)
        # Nothing of a row changes while its job is in progress; what was known of it stays.
        found.left = [
            (row, sides, rule)
            for row, sides, rule in found.left
            if row[0] in asked.first_seen or not reader.is_in_progress(row)
        ]
        is_open = {one.row.record_id for one in found.open}
        closed = [RowRef(self.name, number) for number in numbers if number not in is_open]
        return self._page(found, reader, len(rows))._replace(closed=closed)

    def _behind(
        self,
        position: Position | None,
        asked: ReadOptions,
        connection: sqlite3.Connection,
        reader: RowReader,
    ) -> tuple[list[LoadedPage], bool] | None:
        """Return pages behind a position, and whether they are the last; None if it does not fit.

        One statement finds the row of the position, and those behind it.
        """
        first = BEFORE_ALL if position is None else row_of(position)
        limit = self._page_rows + (position is not None)
        question = sql.FROM[reader.layout]
        rows = connection.execute(question, {"first": first, "limit": limit}).fetchall()
        is_last = len(rows) < limit
        if position is not None:
            if not rows or position_at(*rows[0][:2]) != position:
                return None
            del rows[0]
        groups = [(part, list(of_part)) for part, of_part in groupby(rows, _part_of_row)]
        if not is_last and len(groups) > 1 and groups[-1][1][-1][0] != last_row_of(groups[-1][0]):
            del groups[-1]  # the next page begins with this part, and has it whole
        pages = []
        part_before = None if position is None else part_of(first)
        for at, (part, of_part) in enumerate(groups):
            is_cut = at == len(groups) - 1 and of_part[-1][0] != last_row_of(part)
            is_whole = part != part_before and not is_cut
            page = self._whole(part, of_part, asked, connection, reader, with_part=is_whole)
            pages.append(page._replace(position=position_at(*of_part[-1][:2])))
        return pages, is_last

    def rows_after(self, position: Position | None) -> int:
        """Return how many RecordIDs there are after a position: A-REX leaves few out."""

        def read(connection: sqlite3.Connection, _: RowReader) -> int:
            lowest, highest = connection.execute(sql.EXTENT).fetchone()
            if lowest is None:
                return 0
            first = lowest - 1
            if position is not None and _fits(connection, position):
                first = max(first, row_of(position))
            return int(max(highest - first, 0))

        return self._database.ask(read)

    def ends(self, rows: Sequence[OpenRow]) -> Mapping[RowRef, Epoch]:
        """Return when the jobs of some rows ended: nothing else is read of a row."""
        asked = sql.listed([one.row.record_id for one in rows])[1]

        def read(connection: sqlite3.Connection, _: RowReader) -> dict[RowRef, Epoch]:
            found = connection.execute(sql.ENDS, asked)
            return {RowRef(self.name, row): Epoch(int(end)) for row, end in found}

        return self._database.ask(read) if rows else {}

    def compare(
        self, window: Window, known: Mapping[int, bytes], request: ReadRequest
    ) -> Iterator[LoadedPage]:
        """Yield the parts in which a job ended in a window, without jobs where nothing changed."""
        asked = ReadOptions(request.needs, request.now, remembers=False)
        first, last = bounds(window)
        for part in self._database.ask(partial(_parts, first, last)):
            yield self._database.ask(partial(self._compared, part, known.get(part), asked))

    def _compared(
        self,
        part: int,
        known: bytes | None,
        asked: ReadOptions,
        connection: sqlite3.Connection,
        reader: RowReader,
    ) -> LoadedPage:
        between = {"first": last_row_of(part - 1) + 1, "last": last_row_of(part)}
        rows = connection.execute(sql.PART[reader.layout], between).fetchall()
        return self._whole(part, rows, asked, connection, reader, known=known)

    def _whole(
        self,
        part: int,
        rows: Sequence[Row],
        asked: ReadOptions,
        connection: sqlite3.Connection,
        reader: RowReader,
        *,
        with_part: bool = True,
        known: bytes | None = None,
    ) -> LoadedPage:
        """Return neighbouring rows, with the digest of their part where they are all of it."""
        if not rows:
            empty = RowPart(part, b"", is_known=known == b"")
            return LoadedPage(self.name, part=empty)
        stored = reader.gather(connection, rows, asked.needs, span=True)
        of_part: RowPart | None = None
        if with_part:
            digest = reader.digest(rows, stored)
            of_part = RowPart(part, digest, is_known=digest == known)
            if of_part.is_known:
                return LoadedPage(self.name, part=of_part, rows=len(rows))
        sides = reader.sides(connection, rows, stored)
        page = self._page(reader.decide(rows, sides, asked), reader, len(rows))
        return page._replace(part=of_part)

    def look_up(self, job_ids: Sequence[JobId], request: ReadRequest) -> Iterator[LoadedPage]:
        """Yield the rows of these jobs, in whichever spelling their ids are stored."""
        asked = ReadOptions(request.needs, request.now, remembers=False)
        for start in range(0, len(job_ids), _LOOKED_UP_AT_ONCE):
            part = job_ids[start : start + _LOOKED_UP_AT_ONCE]
            yield self._database.ask(partial(self._of_jobs, part, asked))

    def _of_jobs(
        self,
        job_ids: Sequence[JobId],
        asked: ReadOptions,
        connection: sqlite3.Connection,
        reader: RowReader,
    ) -> LoadedPage:
        spellings = dict.fromkeys([*job_ids, *map(arex_escape, job_ids)])
        question = sql.of_jobs(reader.layout, len(spellings))
        rows = connection.execute(question, list(map(stored_text, spellings))).fetchall()
        wanted = frozenset(job_ids)
        rows = [row for row in rows if reader.text(row[1]) in wanted]
        return self._page(reader.read(connection, rows, asked, span=False), reader, len(rows))

    def fits(self, position: Position) -> bool:
        """Return whether the row at a position is still the job that it was."""

        return self._database.ask(lambda connection, _: _fits(connection, position))

    def _page(self, found: RowOutcomes, reader: RowReader, rows: int) -> LoadedPage:
        partial = [partial_job(reader, *one) for one in found.left]
        what = found.jobs, found.skipped, found.open
        return LoadedPage(self.name, *what, partial=partial, rows=rows)


def _fits(connection: sqlite3.Connection, position: Position) -> bool:
    row = connection.execute(sql.JOB_OF_ROW, {"row": row_of(position)}).fetchone()
    return row is not None and position_at(row_of(position), *row) == position


def _parts(first: int, last: int, connection: sqlite3.Connection, _: RowReader) -> list[int]:
    rows = connection.execute(sql.PARTS, {"first": first, "last": last})
    return sorted(part for (part,) in rows)


def _part_of_row(row: Row) -> int:
    return part_of(row[0])
