"""Pages of runs as columns, for those who only count jobs; a look of its own for every strange row (hot path).

What a row points to and how many nodes and cores it had make its kind; of each kind one row is read whole, as the example of
its runs (`model.job.RunColumns`). A row is strange when it is not complete, when its numbers are not plain ones, or when its
texts need unescaping: it is read whole itself.

    rows 7, 8 and 9 of AAR, of which 8 is still in progress   ->   columns of 7 and 9; 8 as an open row
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import compress, islice
from typing import Any, Final

from publisher.model.job import JobRecord, RunColumns
from publisher.sources.arex import queries as sql
from publisher.sources.arex.rows import NameTables, ReadOptions, Row, RowOutcomes, RowReader
from publisher.sources.arex.values import is_undecodable, tolerant_text

# A row as `sql.SINCE_TO_COUNT` has it: what `RunColumns` has, the time of submission, and the kind.
_RUN: Final = 7
_KIND: Final = slice(8, None)
_NAMED: Final = tuple(sql.NAMES)  # how a kind begins
_FQAN, _BENCHMARK = 4, 6  # their places in a kind
_FEW: Final = 4  # one row in so many: a look-up of each costs less than reading past the others
_REMEMBERED: Final = 10_000  # kinds with an example, 2 kB each
Kind = tuple[Any, ...]
Where = tuple[str, dict[str, object]]


class ColumnReader:
    """Reads rows of one open database for counting. Good for one connection, as the reader of whole rows behind it."""

    def __init__(self, database: str, whole: RowReader) -> None:
        self._database = database
        self._whole = whole
        self._names = NameTables(whole.layout, whole.text)
        self._examples: dict[Kind, JobRecord] = {}

    def read(
        self, connection: sqlite3.Connection, rows: Sequence[Row], asked: ReadOptions, *, span: bool
    ) -> RowOutcomes:
        """As `RowReader.read` of rows that hold what counts; most jobs come as columns. Raises: sqlite3.Error."""
        if not rows or connection.text_factory is tolerant_text:
            return self._read_whole(connection, [row[0] for row in rows], asked)
        everywhere = _between(rows) if span else _listed([row[0] for row in rows])
        kinds = self._kinds(connection, rows, everywhere)
        odd = _odd(rows) | self._odd_beside(connection, rows, everywhere)
        self._read_examples(connection, rows, kinds, odd, asked)
        examples = [None if row[0] in odd else self._examples.get(kind) for row, kind in zip(rows, kinds, strict=True)]
        strange = [row[0] for row, example in zip(rows, examples, strict=True) if example is None]
        found = self._read_whole(connection, strange, asked)
        if len(strange) == len(rows):
            return found
        plain = compress(rows, examples) if strange else rows
        record_ids, job_ids, local_ids, ended, wall, user, kernel = islice(zip(*plain, strict=True), _RUN)
        shared = [one for one in examples if one is not None]
        runs = RunColumns(self._database, record_ids, job_ids, local_ids, ended, wall, user, kernel, shared)
        return replace(found, runs=runs)

    def _read_whole(self, connection: sqlite3.Connection, record_ids: Sequence[int], asked: ReadOptions) -> RowOutcomes:
        if not record_ids:
            return RowOutcomes()
        wanted = {"rows": json.dumps(record_ids)}
        rows = connection.execute(sql.BY_ROW[self._whole.layout], wanted).fetchall()
        return self._whole.read(connection, rows, asked, span=False)

    def _kinds(self, connection: sqlite3.Connection, rows: Sequence[Row], everywhere: Where) -> list[Kind]:
        """What each row shares with others, with the FQAN and the benchmark that stand beside it.

        Schema 1 has both there, schema 2 only where the row has none.
        """
        kinds = [row[_KIND] for row in rows]
        distinct = set(kinds)
        self._names.look_up(connection, {name: {kind[at] for kind in distinct} for at, name in enumerate(_NAMED)})
        fqans, benchmarks = self._names.fqans, self._names.benchmarks
        without_fqan = _where(rows, kinds, everywhere, lambda kind: not fqans.get(kind[_FQAN]))
        without_benchmark = _where(rows, kinds, everywhere, lambda kind: not benchmarks.get(kind[_BENCHMARK]))
        if without_fqan is None and without_benchmark is None:
            return kinds
        fqan_of, benchmark_of = _main_fqans(connection, without_fqan), _benchmarks(connection, without_benchmark)
        return [(*kind, fqan_of.get(row[0]), benchmark_of.get(row[0])) for row, kind in zip(rows, kinds, strict=True)]

    def _odd_beside(self, connection: sqlite3.Connection, rows: Sequence[Row], everywhere: Where) -> set[int]:
        """The rows that are not complete, or beside which something stands that matters."""
        which, at = everywhere
        finished = {record_id for (record_id,) in connection.execute(sql.finished_or_early(which), at).fetchall()}
        among = {row[0] for row in rows}  # between them may be rows that belong to another database
        odd = set() if self._whole.layout == sql.IMPORTED else among - finished
        if None in finished:
            odd.update(record_id for (record_id,) in connection.execute(sql.early(which), at))
        (texts,) = connection.execute(sql.attribute_texts(which), at).fetchone()
        if not (texts or b"").isascii():
            odd.update(record_id for (record_id,) in connection.execute(sql.strange_fqans(which), at))
        return odd & among

    def _read_examples(
        self,
        connection: sqlite3.Connection,
        rows: Sequence[Row],
        kinds: Sequence[Kind],
        odd: set[int],
        asked: ReadOptions,
    ) -> None:
        """Read a row whole of each kind that is new and makes plain jobs."""
        if len(self._examples) > _REMEMBERED:
            self._examples.clear()
        known = self._examples
        new: dict[Kind, int] = {}
        for row, kind in zip(rows, kinds, strict=True):
            if kind not in known and kind not in new and row[0] not in odd:
                new[kind] = row[0]
        plain = {record_id: kind for kind, record_id in new.items() if self._is_plain(kind)}
        for job in self._read_whole(connection, list(plain), asked).jobs:
            known[plain[job.row.record_id]] = job

    def _is_plain(self, kind: Kind) -> bool:
        """Whether everything that it points to is there, and is text, and its status is that of an end."""
        endpoint, queue, user, vo, fqan, status, benchmark = kind[:7]
        names = self._names
        if (
            names.statuses.get(status, "") in ("", "in-progress")
            or endpoint not in names.endpoints
            or queue not in names.queues
            or user not in names.users
            or vo not in names.vos
            or fqan not in names.fqans
            or benchmark not in names.benchmarks
        ):
            return False
        texts = (*names.endpoints[endpoint], names.users[user], names.vos[vo], names.fqans[fqan])
        return not any(map(is_undecodable, texts))


def _odd(rows: Sequence[Row]) -> set[int]:
    """The rows whose own values are not as A-REX writes them, or whose texts hold escapes."""
    return set() if _are_bare(rows) else {row[0] for row in rows if not _is_bare(row)}


def _are_bare(rows: Sequence[Row]) -> bool:
    """Whether `_is_bare` says so of every row, at a quarter of the price: whole columns are looked at."""
    _, job_ids, local_ids, *numbers = islice(zip(*rows, strict=True), 8)
    try:
        # Both raise on what is of no such type, and a float makes a float of the sum.
        texts, total = "".join((*job_ids, *local_ids)), sum(map(sum, numbers))
    except TypeError:
        return False
    if total.__class__ is not int or "%" in texts or not all(job_ids):
        return False
    ended, wall, user, kernel, submitted = map(min, numbers)
    return bool(ended > 0 and submitted > 0 and wall >= 0 and user >= 0 and kernel >= 0)


def _is_bare(row: Row) -> bool:
    _, job_id, local_id, ended, wall, user, kernel, submitted = row[:8]
    return (
        job_id.__class__ is local_id.__class__ is str
        and submitted.__class__ is ended.__class__ is wall.__class__ is user.__class__ is kernel.__class__ is int
        and job_id != ""
        and "%" not in job_id
        and "%" not in local_id
        and submitted > 0
        and ended > 0
        and wall >= 0
        and user >= 0
        and kernel >= 0
    )


def _between(rows: Sequence[Row]) -> Where:
    return sql.BETWEEN, {"first": rows[0][0], "last": rows[-1][0]}


def _listed(record_ids: Sequence[int]) -> Where:
    return sql.LISTED, {"rows": json.dumps(record_ids)}


def _where(
    rows: Sequence[Row], kinds: Iterable[Kind], everywhere: Where, lacks: Callable[[Kind], bool]
) -> Where | None:
    """Where to look beside the rows of kinds that lack something: row by row for few, beside all for many; None for none."""
    lacking = {kind for kind in set(kinds) if lacks(kind)}
    wanted = [row[0] for row in rows if row[_KIND] in lacking] if lacking else []
    if not wanted:
        return None
    return _listed(wanted) if len(wanted) * _FEW < len(rows) else everywhere


def _main_fqans(connection: sqlite3.Connection, where: Where | None) -> dict[int, object]:
    """The main FQAN beside each row: the first that is called so, else the first of all."""
    main: dict[int, object] = {}
    others: dict[int, object] = {}
    if where is not None:
        for record_id, key, value in connection.execute(sql.fqans_of_row(where[0]), where[1]).fetchall():
            if value:
                (main if key == "mainfqan" else others).setdefault(record_id, value)
    return others | main


def _benchmarks(connection: sqlite3.Connection, where: Where | None) -> dict[int, object]:
    """The benchmark beside each row, the newest one."""
    return {} if where is None else dict(connection.execute(sql.benchmarks_of_row(where[0]), where[1]).fetchall())
