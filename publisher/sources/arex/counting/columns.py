"""Pages of runs as columns, for those who only count; each strange row by itself (hot path).

What a row points to and how many nodes and cores it had make its kind; of each kind one row is read
whole, as the example of its runs (`model.job.RunColumns`). A row is strange when it is not
complete, when its numbers are not plain ones, or when its texts need unescaping: it is read whole
itself.

    rows 7, 8 and 9 of AAR, of which 8 is still in progress
        ->   columns of 7 and 9; 8 as an open row
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import itemgetter, not_
from typing import Any, Final

from publisher.model.job import JobRecord, KnownRuns, RunColumns
from publisher.sources.arex import queries as sql
from publisher.sources.arex.names import NameTables
from publisher.sources.arex.rows import ReadOptions, Row, RowOutcomes, RowReader
from publisher.sources.arex.values import is_undecodable, tolerant_text

# A row as `sql.WINDOW_TO_COUNT` has it: what `RunColumns` has, and the kind.
_RUN: Final = 7
_NUMBERS: Final = _RUN + len(sql.KINDS)  # and none of these is a text, but for the ids
_REMEMBERED: Final = 10_000  # kinds with an example, 2 kB each
# Two packed numbers as `sql.KINDS` has them; the FQAN and the benchmark that stand beside the row.
Kind = tuple[Any, ...]


class ColumnReader:
    """Reads rows for counting, for one connection, as does the reader of whole rows behind it."""

    def __init__(self, database: str, whole: RowReader) -> None:
        self._database = database
        self._whole = whole
        self._names = NameTables(whole.layout, whole.text)
        self._lacks: dict[Kind, tuple[bool, bool]] = {}  # rows name no FQAN, and no benchmark
        self._examples: dict[Kind, JobRecord] = {}
        self._events_in_turn = True  # jobs wrote theirs one after the other, as far as is known
        self._places: dict[Kind, JobRecord] = {}  # by the numbers of endpoint, queue and status

    def read(
        self, connection: sqlite3.Connection, rows: Sequence[Row], asked: ReadOptions, *, span: bool
    ) -> RowOutcomes:
        """As `RowReader.read` of rows that hold what counts; most jobs come as columns.

        Raises: sqlite3.Error.
        """
        if not rows or connection.text_factory is tolerant_text:
            return self._read_whole(connection, [row[0] for row in rows], asked)
        columns = list(zip(*rows, strict=True))
        examples = self._examples_of_rows(connection, columns, asked, span=span)
        shared = list(filter(None, examples))
        if len(shared) == len(rows):
            return RowOutcomes(runs=RunColumns._make((self._database, *columns[:_RUN], shared, ())))
        found = self._read_whole(connection, list(compress(columns[0], map(not_, examples))), asked)
        if not shared:
            return found
        plain = [tuple(compress(column, examples)) for column in columns[:_RUN]]
        return replace(found, runs=RunColumns._make((self._database, *plain, shared, ())))

    def _examples_of_rows(
        self,
        connection: sqlite3.Connection,
        columns: Sequence[Sequence[Any]],
        asked: ReadOptions,
        *,
        span: bool,
    ) -> list[JobRecord | None]:
        """For each row an example of its kind; None for those that are read whole themselves."""
        record_ids = columns[0]
        everywhere = sql.beside(record_ids, span=span)
        kinds = self._kinds(connection, record_ids, columns[_RUN:], everywhere)
        odd = _odd(columns[:_NUMBERS]) | self._odd_beside(connection, record_ids, everywhere)
        examples = list(map(self._examples.get, kinds))
        if not all(examples):
            new = [place for place, one in enumerate(examples) if one is None]
            self._complete_kinds(connection, record_ids, kinds, new, everywhere)
            plain = [place for place in new if record_ids[place] not in odd]
            self._read_examples(connection, record_ids, kinds, plain, asked)
            for place in new:
                examples[place] = self._examples.get(kinds[place])
        if not odd:
            return examples
        pairs = zip(record_ids, examples, strict=True)
        return [None if row in odd else example for row, example in pairs]

    def read_known(
        self, connection: sqlite3.Connection, rows: Sequence[Row], asked: ReadOptions
    ) -> RowOutcomes:
        """As `read`, of rows as `sql.WINDOW_OF_KNOWN` has them: those known come as such.

        Raises: sqlite3.Error.
        """
        if not rows or asked.knows is None or connection.text_factory is tolerant_text:
            return self._read_columns(connection, [row[0] for row in rows], asked)
        record_ids, ends, *numbers = zip(*rows, strict=True)
        places = list(zip(*numbers, strict=True))
        known = asked.knows(self._database, record_ids, ends)
        examples = self._examples_of_places(connection, record_ids, places, known, asked)
        others = [row for row, one in zip(record_ids, examples, strict=True) if one is None]
        found = self._read_columns(connection, others, asked)
        shared = [one for one in examples if one is not None]
        if shared:
            columns = list(compress(record_ids, examples)), list(compress(ends, examples))
            found.known = KnownRuns(self._database, *columns, shared)
        return found

    def _examples_of_places(
        self,
        connection: sqlite3.Connection,
        record_ids: Sequence[int],
        places: Sequence[Kind],
        known: Sequence[bool],
        asked: ReadOptions,
    ) -> list[JobRecord | None]:
        """For each known row a job of its place and status, read whole where these are new."""
        rows = zip(compress(places, known), compress(record_ids, known), strict=True)
        new = {row: place for place, row in dict(rows).items() if place not in self._places}
        for job in self._read_whole(connection, list(new), asked).jobs:
            self._places[new[job.row.record_id]] = job
        example_of, pairs = self._places.get, zip(places, known, strict=True)
        return [example_of(place) if is_known else None for place, is_known in pairs]

    def _read_columns(
        self, connection: sqlite3.Connection, record_ids: Sequence[int], asked: ReadOptions
    ) -> RowOutcomes:
        """Some rows, most of them as columns."""
        if not record_ids:
            return RowOutcomes()
        _, wanted = sql.listed(record_ids)
        rows = connection.execute(sql.BY_ROW_TO_COUNT[self._whole.layout], wanted).fetchall()
        return self.read(connection, rows, asked, span=False)

    def _read_whole(
        self, connection: sqlite3.Connection, record_ids: Sequence[int], asked: ReadOptions
    ) -> RowOutcomes:
        if not record_ids:
            return RowOutcomes()
        _, wanted = sql.listed(record_ids)
        rows = connection.execute(sql.BY_ROW[self._whole.layout], wanted).fetchall()
        return self._whole.read(connection, rows, asked, span=False)

    def _kinds(
        self,
        connection: sqlite3.Connection,
        record_ids: Sequence[int],
        packed: Sequence[Sequence[Any]],
        everywhere: sql.Where,
    ) -> list[Kind]:
        """What each row shares with others; in schema 1 the benchmark stands beside it."""
        if self._whole.layout != 1:
            return list(zip(*packed, strict=True))
        which, at = everywhere
        benchmark_of = dict(connection.execute(sql.extra_of_row("benchmark", which), at).fetchall())
        return list(zip(*packed, map(benchmark_of.get, record_ids), strict=True))

    def _complete_kinds(
        self,
        connection: sqlite3.Connection,
        record_ids: Sequence[int],
        kinds: list[Kind],
        new: Sequence[int],
        everywhere: sql.Where,
    ) -> None:
        """Add the FQANs and benchmarks beside rows to the kinds of those rows that name none.

        `new`: places of the rows whose kinds have no example as they are, as all that lack some.
        """
        if self._whole.layout == 1:
            return
        no_fqan, no_benchmark = self._lacking(connection, {kinds[place] for place in new})

        def where(lacking: set[Kind]) -> sql.Where:
            rows = [record_ids[place] for place in new if kinds[place] in lacking]
            return sql.listed(rows) if len(rows) * sql.FEW < len(kinds) else everywhere

        fqan_of: Mapping[int, object] = {}
        if no_fqan:
            which, at = where(no_fqan)
            fqan_of = sql.main_fqans(connection.execute(sql.fqans_by_key(which), at))
        benchmark_of: Mapping[int, object] = {}
        if no_benchmark and self._may_have_benchmarks(connection):
            which, at = where(no_benchmark)
            benchmark_of = dict(
                connection.execute(sql.extra_of_row("benchmark", which), at).fetchall()
            )
        for place in new:
            if (kind := kinds[place]) in no_fqan or kind in no_benchmark:
                row = record_ids[place]
                kinds[place] = (*kind, fqan_of.get(row), benchmark_of.get(row))

    def _may_have_benchmarks(self, connection: sqlite3.Connection) -> bool:
        question = sql.HAS_BENCHMARKS.get(self._whole.layout)
        return question is None or bool(connection.execute(question).fetchone()[0])

    def _lacking(
        self, connection: sqlite3.Connection, kinds: set[Kind]
    ) -> tuple[set[Kind], set[Kind]]:
        """Those of the kinds whose rows name no FQAN, and those whose rows name no benchmark."""
        lacks = self._lacks
        if new := kinds - lacks.keys():
            if len(lacks) > _REMEMBERED:
                lacks.clear()
                new = kinds
            fqans, benchmarks = self._names.fqans, self._names.benchmarks
            for kind, numbers in self._look_up(connection, new).items():
                no_benchmark = not benchmarks.get(numbers["BenchmarkID"])
                lacks[kind] = not fqans.get(numbers["FQANID"]), no_benchmark
        no_fqan = {kind for kind in kinds if lacks[kind][0]}
        return no_fqan, {kind for kind in kinds if lacks[kind][1]}

    def _look_up(
        self, connection: sqlite3.Connection, kinds: Collection[Kind]
    ) -> dict[Kind, Mapping[str, int | None]]:
        """The numbers of kinds, of which all names are known then."""
        numbers = {kind: _unpacked(kind) for kind in kinds}
        named = {name: set(map(itemgetter(name), numbers.values())) for name in sql.NAMES}
        self._names.look_up(connection, named)
        return numbers

    def _odd_beside(
        self, connection: sqlite3.Connection, record_ids: Sequence[int], everywhere: sql.Where
    ) -> set[int]:
        """The rows that are not complete, or beside which something stands that matters."""
        which, at = everywhere
        odd = self._unfinished(connection, record_ids, everywhere)
        (texts,) = connection.execute(sql.attribute_texts(which), at).fetchone()
        if not (texts or b"").isascii():
            strange = {row for (row,) in connection.execute(sql.strange_fqans(which), at)}
            odd.update(strange.intersection(record_ids))
        return odd

    def _unfinished(
        self, connection: sqlite3.Connection, record_ids: Sequence[int], everywhere: sql.Where
    ) -> set[int]:
        """The rows whose job has no such event."""
        if self._whole.layout == sql.IMPORTED:
            return set()
        which, at = everywhere
        if which == sql.BETWEEN and self._events_in_turn:
            near = {**at, "limit": len(record_ids) * sql.FEW}
            (listed,) = connection.execute(sql.FINISHED_NEAR, near).fetchone()
            left = _not_listed(record_ids, listed)
            self._events_in_turn = len(left) * sql.FEW < len(record_ids)
            if not left:
                return left
            record_ids = sorted(left)
            which, at = sql.beside(record_ids, span=False)
        return _not_listed(record_ids, connection.execute(sql.finished(which), at).fetchone()[0])

    def _read_examples(
        self,
        connection: sqlite3.Connection,
        record_ids: Sequence[int],
        kinds: Sequence[Kind],
        places: Sequence[int],
        asked: ReadOptions,
    ) -> None:
        """Read a row whole of each new kind at these places that makes plain jobs."""
        known = self._examples
        new = {kinds[place]: record_ids[place] for place in places if kinds[place] not in known}
        if not new:
            return
        if len(known) > _REMEMBERED:
            known.clear()
        numbers = self._look_up(connection, new)
        plain = {row: kind for kind, row in new.items() if self._is_plain(numbers[kind])}
        for job in self._read_whole(connection, list(plain), asked).jobs:
            known[plain[job.row.record_id]] = job

    def _is_plain(self, numbers: Mapping[str, int | None]) -> bool:
        """Whether a kind points to what is there, to texts, and to the status of an end."""
        names = self._names
        if names.statuses.get(numbers["StatusID"], "") in ("", "in-progress"):
            return False
        if any(numbers[column] not in known for column, known in names.by_column.items()):
            return False
        user, vo, fqan = (numbers[name] for name in ("UserID", "VOID", "FQANID"))
        whose = names.users[user], names.vos[vo], names.fqans[fqan]
        return not any(map(is_undecodable, (*names.endpoints[numbers["EndpointID"]], *whose)))


def _not_listed(record_ids: Sequence[int], listed: str | None) -> set[int]:
    """The rows that a text with commas does not list; it may list others too, or be None."""
    numbers = list(map(str, record_ids))
    if listed == ",".join(numbers):
        return set()
    # In another order, some twice, or among rows that belong to another database.
    return set(map(int, set(numbers).difference((listed or "").split(","))))


def _unpacked(kind: Kind) -> Mapping[str, int | None]:
    """The numbers that are packed in a kind, by column."""
    numbers: dict[str, int | None] = {}
    for packed, columns in zip(kind[:2], sql.KINDS, strict=True):
        rest = packed if isinstance(packed, int) else 0
        for column, bits in reversed(columns.items()):
            rest, number = divmod(rest, 2**bits)
            numbers[column] = number - 1 if number else None
    return numbers


def _odd(columns: Sequence[Sequence[Any]]) -> set[int]:
    """The rows with values not as A-REX writes them, or with escapes in texts: found by halves."""
    if _are_bare(columns):
        return set()
    half = len(columns[0]) // 2
    if not half:
        return {columns[0][0]}
    return _odd([column[:half] for column in columns]) | _odd([column[half:] for column in columns])


def _are_bare(columns: Sequence[Sequence[Any]]) -> bool:
    """Whether the values of all rows are plain: by whole columns, at a quarter of the price."""
    _, job_ids, local_ids, *numbers = columns
    try:
        # Both raise on what is of no such type, and a float makes a float of the sum.
        texts, total = "".join((*job_ids, *local_ids)), sum(map(sum, numbers))
    except TypeError:
        return False
    ended, wall, user, kernel = map(min, numbers[:4])
    are_in_range = ended > 0 and wall >= 0 and user >= 0 and kernel >= 0
    return total.__class__ is int and "%" not in texts and all(job_ids) and are_in_range
