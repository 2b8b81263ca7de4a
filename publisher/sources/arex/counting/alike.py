"""Rows of AAR put together with those that are alike, for who only counts them; a look of its own for every strange one.

What a row points to and how many nodes and cores it had make its kind; of each kind one row is read whole. A row is strange
when it is not complete, when its numbers are not plain ones, or when its texts need unescaping: it is read whole itself.
4 µs a job where reading all of them whole takes 19, of it 3 SQLite's own.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from publisher.model.job import JobGroup, JobRecord, RunTuple
from publisher.sources.arex import queries as sql
from publisher.sources.arex.rows import NameTables, ReadOptions, Row, RowOutcomes, RowReader
from publisher.sources.arex.values import is_undecodable, tolerant_text

# A row as `sql.SINCE_TO_COUNT` has it: a `RunTuple`, the time of submission, and the kind.
_RUN: Final = slice(0, 7)
_KIND: Final = slice(8, None)
_NAMED: Final = tuple(sql.NAMES)  # how a kind begins
_FQAN, _BENCHMARK = 4, 6  # their places in a kind
_FEW: Final = 4  # one row in so many: a look-up of each costs less than reading past the others
_REMEMBERED: Final = 5_000  # kinds with an example, 2 kB each
Kind = tuple[Any, ...]
Groups = Mapping[Kind, list[RunTuple]]
Where = tuple[str, dict[str, object]]


class AlikeReader:
    """Reads rows of one open database for counting. Good for one connection, as the reader of whole rows behind it."""

    def __init__(self, whole: RowReader) -> None:
        self._whole = whole
        self._names = NameTables(whole.layout, whole.text)
        self._examples: dict[Kind, JobRecord] = {}

    def read(
        self, connection: sqlite3.Connection, rows: Sequence[Row], asked: ReadOptions, *, span: bool
    ) -> RowOutcomes:
        """As `RowReader.read` of rows that hold what counts; most jobs come as `alike`. Raises: sqlite3.Error."""
        if not rows or connection.text_factory is tolerant_text:
            return self._read_whole(connection, [row[0] for row in rows], asked)
        groups, strange = self._sorted(connection, rows, span=span)
        strange += self._read_examples(connection, groups, asked)
        examples = self._examples
        alike = [JobGroup(example=examples[kind], runs=runs) for kind, runs in groups.items() if kind in examples]
        return replace(self._read_whole(connection, strange, asked), alike=alike)

    def _read_whole(self, connection: sqlite3.Connection, record_ids: Sequence[int], asked: ReadOptions) -> RowOutcomes:
        if not record_ids:
            return RowOutcomes()
        wanted = {"rows": json.dumps(record_ids)}
        rows = connection.execute(sql.BY_ROW[self._whole.layout], wanted).fetchall()
        return self._whole.read(connection, rows, asked, span=False)

    def _sorted(self, connection: sqlite3.Connection, rows: Sequence[Row], *, span: bool) -> tuple[Groups, list[int]]:
        """Runs by kind, and the strange rows."""
        everywhere = _between(rows) if span else _listed([row[0] for row in rows])
        kinds: defaultdict[Kind, list[RunTuple]] = defaultdict(list)
        for row in rows:
            kinds[row[_KIND]].append(row[_RUN])
        self._names.look_up(connection, {name: {kind[at] for kind in kinds} for at, name in enumerate(_NAMED)})
        odd = _odd(rows) | self._odd_beside(connection, rows, everywhere)
        strange = list(odd)
        plain: dict[Kind, list[RunTuple]] = {}
        for kind, runs in kinds.items():
            normal = [run for run in runs if run[0] not in odd] if odd else runs
            if not self._is_plain(kind):
                strange += [run[0] for run in normal]
            elif normal:
                plain[kind] = normal
        return self._by_whole_kind(connection, len(rows), everywhere, plain), strange

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

    def _by_whole_kind(self, connection: sqlite3.Connection, rows: int, everywhere: Where, groups: Groups) -> Groups:
        """The groups, told apart by the FQANs and benchmarks that stand beside their rows.

        Schema 1 has both there, schema 2 only where the row has none.
        """
        without_fqan = {kind for kind in groups if not self._names.fqans[kind[_FQAN]]}
        without_benchmark = {kind for kind in groups if not self._names.benchmarks[kind[_BENCHMARK]]}
        fqans = _main_fqans(connection, _where(rows, everywhere, groups, without_fqan))
        benchmarks = _benchmarks(connection, _where(rows, everywhere, groups, without_benchmark))
        whole: defaultdict[Kind, list[RunTuple]] = defaultdict(list)
        for kind, runs in groups.items():
            if kind not in without_fqan and kind not in without_benchmark:
                whole[kind] = runs
                continue
            for run in runs:
                whole[*kind, fqans.get(run[0]), benchmarks.get(run[0])].append(run)
        return whole

    def _read_examples(self, connection: sqlite3.Connection, groups: Groups, asked: ReadOptions) -> list[int]:
        """Read a row whole of each kind that is new; gives the rows of kinds whose first row makes no job."""
        if len(self._examples) > _REMEMBERED:
            self._examples.clear()
        new = {runs[0][0]: kind for kind, runs in groups.items() if kind not in self._examples}
        for job in self._read_whole(connection, list(new), asked).jobs:
            self._examples[new[job.row.record_id]] = job
        return [run[0] for kind in new.values() if kind not in self._examples for run in groups[kind]]

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


def _where(rows: int, everywhere: Where, groups: Groups, lacking: Iterable[Kind]) -> Where | None:
    """Where to look beside the rows of these kinds: row by row for few, beside all for many; None for none."""
    wanted = [run[0] for kind in lacking for run in groups[kind]]
    if not wanted:
        return None
    return _listed(wanted) if len(wanted) * _FEW < rows else everywhere


def _main_fqans(connection: sqlite3.Connection, where: Where | None) -> dict[int, object]:
    """The main FQAN beside each row: the first that is called so, else the first of all."""
    main: dict[int, object] = {}
    others: dict[int, object] = {}
    if where is not None:
        for record_id, key, value in connection.execute(sql.fqans_of_row(where[0]), where[1]):
            if value:
                (main if key == "mainfqan" else others).setdefault(record_id, value)
    return others | main


def _benchmarks(connection: sqlite3.Connection, where: Where | None) -> dict[int, object]:
    """The benchmark beside each row, the newest one."""
    return {} if where is None else dict(connection.execute(sql.benchmarks_of_row(where[0]), where[1]).fetchall())
