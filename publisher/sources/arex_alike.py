"""Rows of AAR put together with those that are alike, for who only counts them; a look of its own for every strange one.

What a row points to and how many nodes and cores it had make its kind; of each kind one row is read whole. A row is strange
when it is not complete, when its numbers are not plain ones, or when its texts need unescaping: it is read whole itself.
7 µs a job where reading all of them whole takes 19 (measured with everything behind it: 9 against 30).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

from publisher.model.alike import Alike, BareRun
from publisher.model.job import JobRecord
from publisher.sources import arex_sql as sql
from publisher.sources.arex_names import NameTables
from publisher.sources.arex_rows import Asked, Row, RowReader, Verdicts
from publisher.sources.arex_values import is_undecodable, tolerant_text

# EndpointID, QueueID, UserID, VOID, FQANID, StatusID, BenchmarkID, NodeCount, CPUCount
_KIND: Final = itemgetter(3, 4, 5, 6, 7, 8, 10, 13, 14)
_FQAN, _STATUS, _BENCHMARK = 4, 5, 6  # their places in a kind
_FEW: Final = 4  # one row in so many: a look-up of each costs less than reading past the others
_REMEMBERED: Final = 5_000  # kinds with an example, 2 kB each
Kind = tuple[Any, ...]


class AlikeReader:
    """Reads rows of one open database for counting. Good for one connection, as the reader of whole rows behind it."""

    def __init__(self, whole: RowReader) -> None:
        self._whole = whole
        self._names = NameTables(whole.layout, whole.text)
        self._examples: dict[Kind, JobRecord] = {}

    def read(self, connection: sqlite3.Connection, rows: Sequence[Row], asked: Asked, *, span: bool) -> Verdicts:
        """As `RowReader.read`; most jobs come as `alike`. Raises: sqlite3.Error."""
        if not rows or connection.text_factory is tolerant_text:
            return self._whole.read(connection, rows, asked, span=span)
        self._names.fill(connection, rows)
        groups, strange = self._sorted(connection, rows)
        strange += self._read_examples(connection, rows, groups, asked)
        strange.sort(key=itemgetter(0))
        verdicts = self._whole.read(connection, strange, asked, span=False)
        examples = self._examples
        alike = [Alike(example=examples[kind], runs=runs) for kind, runs in groups.items() if kind in examples]
        return replace(verdicts, alike=alike)

    def _sorted(
        self, connection: sqlite3.Connection, rows: Sequence[Row]
    ) -> tuple[dict[Kind, list[BareRun]], list[Row]]:
        """Runs by kind, and the strange rows."""
        between = {"first": rows[0][0], "last": rows[-1][0]}
        finished, odd = _events(connection, between)
        odd.update(record_id for (record_id,) in connection.execute(sql.STRANGE_FQANS, between))
        kinds = list(map(_KIND, rows))
        plain = {kind for kind in set(kinds) if self._is_plain(kind)}
        # Schema 1 has both beside the row, schema 2 only where the row has none.
        fqans = _main_fqans(connection, _without(rows, kinds, {kind for kind in plain if not self._fqan(kind)}))
        benchmarks = _benchmarks(
            connection, _without(rows, kinds, {kind for kind in plain if not self._benchmark(kind)})
        )
        beside = bool(fqans or benchmarks)
        complete_at_once = self._whole.layout == sql.IMPORTED
        groups: dict[Kind, list[BareRun]] = {}
        strange = []
        for row, kind in zip(rows, kinds, strict=True):
            record_id = row[0]
            complete = complete_at_once or record_id in finished
            run = _bare(row) if complete and kind in plain and record_id not in odd else None
            if run is None:
                strange.append(row)
                continue
            if beside:
                kind = (*kind, fqans.get(record_id), benchmarks.get(record_id))  # its whole kind
            runs = groups.get(kind)
            if runs is None:
                groups[kind] = [run]
            else:
                runs.append(run)
        return groups, strange

    def _read_examples(
        self, connection: sqlite3.Connection, rows: Sequence[Row], groups: dict[Kind, list[BareRun]], asked: Asked
    ) -> list[Row]:
        """Read a row whole of each kind that is new; gives the rows of kinds whose first row makes no job."""
        if len(self._examples) > _REMEMBERED:
            self._examples.clear()
        new = {runs[0][0]: kind for kind, runs in groups.items() if kind not in self._examples}
        if not new:
            return []
        first = [row for row in rows if row[0] in new]
        for job in self._whole.read(connection, first, asked, span=False).jobs:
            self._examples[new[job.row.record_id]] = job
        left = {run[0] for kind in new.values() if kind not in self._examples for run in groups[kind]}
        return [row for row in rows if row[0] in left] if left else []

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
        told = (*names.endpoints[endpoint], names.users[user], names.vos[vo], names.fqans[fqan])
        return not any(map(is_undecodable, told))

    def _fqan(self, kind: Kind) -> str:
        return self._names.fqans[kind[_FQAN]]

    def _benchmark(self, kind: Kind) -> str:
        return self._names.benchmarks[kind[_BENCHMARK]]


def _bare(row: Row) -> BareRun | None:
    """The row's own values; None unless they are as A-REX writes them, with texts that hold no escapes."""
    job_id, local_id, submitted, ended, wall, user, kernel = row[1], row[2], row[11], row[12], row[17], row[18], row[19]
    if (
        job_id.__class__ is local_id.__class__ is str
        and submitted.__class__ is ended.__class__ is wall.__class__ is user.__class__ is kernel.__class__ is int
        and job_id
        and "%" not in job_id
        and "%" not in local_id
        and submitted > 0
        and ended > 0
        and wall >= 0
        and user >= 0
        and kernel >= 0
    ):
        return row[0], row[1], row[2], row[12], row[17], row[18], row[19]
    return None


def _events(connection: sqlite3.Connection, between: dict[str, int]) -> tuple[set[int], set[int]]:
    """RecordIDs that are finished, and those that started so early that it matters."""
    finished: set[int] = set()
    early: set[int] = set()
    for record_id, key in connection.execute(sql.FINISHED_OR_EARLY, between):
        (finished if key == "FINISHED" else early).add(record_id)
    return finished, early


def _without(rows: Sequence[Row], kinds: Sequence[Kind], lacking: set[Kind]) -> tuple[str, dict[str, object]] | None:
    """Where to look beside the rows of these kinds: row by row for few, along the whole stretch for many; None for none."""
    if not lacking:
        return None
    wanted = [row[0] for row, kind in zip(rows, kinds, strict=True) if kind in lacking]
    if len(wanted) * _FEW < len(rows):
        return sql.LISTED, {"rows": json.dumps(wanted)}
    return sql.BETWEEN, {"first": rows[0][0], "last": rows[-1][0]}


def _main_fqans(connection: sqlite3.Connection, where: tuple[str, dict[str, object]] | None) -> dict[int, object]:
    """The main FQAN beside each row: the first that is called so, else the first of all."""
    main: dict[int, object] = {}
    others: dict[int, object] = {}
    if where is not None:
        for record_id, key, value in connection.execute(sql.fqans_beside(where[0]), where[1]):
            if value:
                (main if key == "mainfqan" else others).setdefault(record_id, value)
    return others | main


def _benchmarks(connection: sqlite3.Connection, where: tuple[str, dict[str, object]] | None) -> dict[int, object]:
    """The benchmark beside each row, the newest one."""
    return {} if where is None else dict(connection.execute(sql.benchmarks_beside(where[0]), where[1]).fetchall())
