"""Writes jobs the way A-REX does: a row at acceptance, and one transaction after the other at the end."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Final, Literal, Self, get_args
from zoneinfo import ZoneInfo

from tests.arex_databases import schema as tables
from tests.arex_databases.jobs import RawRow, SampleJob, SqlValue
from tests.arex_databases.schema import Journal, Schema
from tests.arex_databases.spelling import Row, Spelling

Step = Literal["aar", "rte", "transfers", "extra"]
"""After which transaction of FINISHED a torn row is left; the events, with FINISHED, come last."""

_STEPS: Final = (*get_args(Step), "events")


class Writer:
    """A-REX's end of the accounting database; makes the file when it is not there.

    `zone` is the CE's, in which events are written. `distort` and `nodes_key` as in `Spelling`. Commits are not
    synced to the disk: other processes see them all the same, and a test does not outlive a power cut.
    """

    def __init__(
        self,
        path: Path,
        *,
        schema: Schema | None = None,
        journal: Journal = "wal",
        optimized: bool = False,
        zone: str = "Europe/Oslo",
        distort: bool = True,
        nodes_key: Literal["nodenames", "nodename"] = "nodenames",
    ) -> None:
        """`schema`, `journal` and `optimized` are for a new file (schema 2 unless told); an old one keeps its own.

        Raises: ValueError: the file is of another schema than asked for.
        """
        if not path.exists():
            tables.create(path, schema=schema or 2, journal=journal, optimized=optimized)
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        try:
            self.schema = self._prepare(path, schema)
        except BaseException:
            self.connection.close()
            raise
        self._spelling = Spelling(schema=self.schema, zone=ZoneInfo(zone), distort=distort, nodes_key=nodes_key)
        self._ids: dict[tuple[str, tuple[str, ...]], int] = {}
        self._torn: dict[str, int] = {}

    def _prepare(self, path: Path, wanted: Schema | None) -> Schema:
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.execute("PRAGMA foreign_keys = OFF")
        found = tables.schema_of(self.connection)
        if wanted not in (None, found):
            raise ValueError(f"{path} has schema {found}, not {wanted}")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the last one of a WAL database takes the WAL with it."""
        self.connection.close()

    def accept(self, job: SampleJob) -> int:
        """The job is ACCEPTED: its AAR row is in progress, tokens and the first event follow. Gives the RecordID."""
        row: Row = dict.fromkeys(self._spelling.usage(job), 0)
        row |= {"JobID": self._spelling.text(job.job_id), "LocalJobID": "", "ExitCode": 1}
        row["SubmitTime"] = self._spelling.number(job.submit_time)
        row |= self._name_columns(job, status="in-progress", benchmark=None)
        with self._transaction():
            record_id = self._insert("AAR", {column: row[column] for column in tables.aar_columns(self.schema)[1:]})
        self._insert_side("AuthTokenAttributes", record_id, self._spelling.token_attributes(job))
        accepted = [self._spelling.event(event) for event in job.events if event.key == "ACCEPTED"]
        self._insert_side("JobEvents", record_id, accepted)
        return record_id

    def finish(self, job: SampleJob, *, stop_after: Step | None = None) -> None:
        """The job is FINISHED; `stop_after` leaves the row torn after that transaction, see `complete`."""
        stop = len(_STEPS) if stop_after is None else _STEPS.index(stop_after) + 1
        self._run_steps(job, self.record_id(job), 0, stop)

    def complete(self, job: SampleJob) -> None:
        """Write what a `finish(job, stop_after=...)` of this writer has left out.

        Raises: KeyError: the job is not torn.
        """
        self._run_steps(job, self.record_id(job), self._torn.pop(job.job_id), len(_STEPS))

    def finish_again(
        self,
        job: SampleJob,
        *,
        end_time: int | None = None,
        local_job_id: str | None = None,
        stop_after: Step | None = None,
    ) -> SampleJob:
        """The job passes FINISHED once more: AAR overwritten, side rows doubled, tokens not. Gives the job as it ended."""
        ended = job if end_time is None else job.moved_to(end_time)
        if local_job_id is not None:
            ended = replace(ended, local_job_id=local_job_id)
        self.finish(ended, stop_after=stop_after)
        return ended

    def write(self, case: SampleJob | RawRow) -> int:
        """Write a finished job whole, or a raw row with all its bends. Gives the RecordID."""
        job = case.job if isinstance(case, RawRow) else case
        record_id = self.accept(job)
        self._run_steps(job, record_id, 0, len(_STEPS))
        if isinstance(case, RawRow):
            self._bend(case, record_id)
        return record_id

    def write_all(self, cases: Iterable[SampleJob | RawRow]) -> None:
        """The same for many, in one transaction: for a database that nobody reads meanwhile.

        Finished jobs take a short cut to the same rows, as tests write a hundred thousand of them.
        """
        with self._transaction():
            for is_job, group in groupby(cases, key=lambda case: isinstance(case, SampleJob)):
                while is_job and (jobs := [case for case in islice(group, 1000) if isinstance(case, SampleJob)]):
                    self._write_at_once(jobs)
                for case in group:
                    self.write(case)

    def record_id(self, job: SampleJob) -> int:
        """RecordID of an accepted job.

        Raises: KeyError: no such job.
        """
        job_id = _bound(self._spelling.text(job.job_id))
        found = self.connection.execute("SELECT RecordID FROM AAR WHERE JobID = CAST(? AS TEXT)", (job_id,)).fetchone()
        if found is None:
            raise KeyError(f"job {job.job_id} was never accepted")
        return int(found[0])

    def _run_steps(self, job: SampleJob, record_id: int, first: int, stop: int) -> None:
        for step in _STEPS[first:stop]:
            self._run_step(step, job, record_id)
        if stop < len(_STEPS):
            self._torn[job.job_id] = stop

    def _run_step(self, step: str, job: SampleJob, record_id: int) -> None:
        match step:
            case "aar":
                row = self._spelling.usage(job)
                names = self._name_columns(job, status=job.status, benchmark=job.benchmark)
                row |= {column: names[column] for column in ("StatusID", "BenchmarkID") if column in names}
                with self._transaction():
                    self._update(record_id, row)
            case "rte":
                self._insert_side("RunTimeEnvironments", record_id, self._spelling.rtes(job))
            case "transfers":
                self._insert_side("DataTransfers", record_id, self._spelling.transfers(job))
            case "extra":
                self._insert_side("JobExtraInfo", record_id, self._spelling.extra_info(job))
            case _:
                events = [self._spelling.event(event) for event in job.events if event.key != "ACCEPTED"]
                self._insert_side("JobEvents", record_id, events)

    def _write_at_once(self, jobs: Iterable[SampleJob]) -> None:
        """What `accept` and `finish` leave of each job, table by table."""
        last = self.connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'AAR'").fetchone()
        columns = tables.aar_columns(self.schema)[1:]
        rows: dict[str, list[list[SqlValue]]] = {}
        for record_id, job in enumerate(jobs, start=last[0] + 1 if last else 1):
            self._name_columns(job, status="in-progress", benchmark=None)  # numbers them in the order of `accept`
            aar = self._spelling.usage(job) | self._name_columns(job, status=job.status, benchmark=job.benchmark)
            aar |= {"JobID": self._spelling.text(job.job_id), "SubmitTime": self._spelling.number(job.submit_time)}
            rows.setdefault("AAR", []).append([record_id, *(_bound(aar[column]) for column in columns)])
            for table, side_rows in self._spelling.side_rows(job).items():
                rows.setdefault(table, []).extend([record_id, *map(_bound, row.values())] for row in side_rows)
        for table, values in rows.items():
            self.connection.executemany(_full_insertion(table, self.schema), values)

    def _name_columns(self, job: SampleJob, *, status: str, benchmark: str | None) -> Row:
        names = {
            "EndpointID": (job.interface, job.endpoint_url),
            "QueueID": (job.queue,),
            "UserID": (job.user,),
            "VOID": (job.vo,),
            "FQANID": (job.fqans[0] if job.fqans else "",),
            "StatusID": (status,),
            "BenchmarkID": (benchmark or "",),
        }
        return {
            column: self._name_id(table, names[column]) for column, table in tables.name_tables(self.schema).items()
        }

    def _name_id(self, table: str, name: tuple[str, ...]) -> int:
        """Number of a name, added in a transaction of its own when new."""
        if (table, name) not in self._ids:
            spelt = tuple(self._spelling.text(part) for part in name)
            row = dict(zip(("Interface", "URL") if table == "Endpoints" else ("Name",), spelt, strict=True))
            condition = " AND ".join(f"{column} = CAST(? AS TEXT)" for column in row)
            query = f"SELECT ID FROM {table} WHERE {condition}"
            found = self.connection.execute(query, [_bound(value) for value in spelt]).fetchone()
            self._ids[table, name] = int(found[0]) if found else self._insert(table, row)
        return self._ids[table, name]

    def _bend(self, case: RawRow, record_id: int) -> None:
        if case.again is not None:
            self.finish(case.again)
        for table in sorted(case.cleared):
            self.connection.execute(f"DELETE FROM {table} WHERE RecordID = ?", (record_id,))
        for table, row in case.side:
            self._insert(table, {"RecordID": record_id, **row})
        known = tables.name_tables(self.schema)
        columns: Row = {
            column: self._insert(known[column], row) for column, row in case.names.items() if column in known
        }
        columns |= case.columns
        self._update(record_id, {name: columns[name] for name in tables.aar_columns(self.schema) if name in columns})

    def _update(self, record_id: int, row: Mapping[str, SqlValue]) -> None:
        if not row:
            return
        assignments = ", ".join(f"{column} = {_placeholder(value)}" for column, value in row.items())
        values = [_bound(value) for value in row.values()]
        self.connection.execute(f"UPDATE AAR SET {assignments} WHERE RecordID = ?", [*values, record_id])

    def _insert_side(self, table: str, record_id: int, rows: Sequence[Row]) -> None:
        if rows:
            with self._transaction():
                for row in rows:
                    self._insert(table, {"RecordID": record_id, **row})

    def _insert(self, table: str, row: Mapping[str, SqlValue]) -> int:
        values = tuple(row.values())
        statement = _insertion(table, tuple(row), tuple(map(type, values)))
        cursor = self.connection.execute(statement, list(map(_bound, values)))
        return int(cursor.lastrowid or 0)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One of its own, or a part of the one that is open."""
        if self.connection.in_transaction:
            yield
            return
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")


@cache
def _insertion(table: str, columns: tuple[str, ...], types: tuple[type, ...]) -> str:
    placeholders = ("CAST(? AS TEXT)" if kind is str else "?" for kind in types)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(placeholders)})"


@cache
def _full_insertion(table: str, schema: Schema) -> str:
    """All columns in the order of the file, RecordID first."""
    columns = {"RecordID": "INTEGER", **tables.columns_of(table, schema)}
    placeholders = ("CAST(? AS TEXT)" if kind == "TEXT" else "?" for kind in columns.values())
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(placeholders)})"


# The sqlite3 module refuses text that is not valid UTF-8, SQLite and A-REX do not: text goes in as bytes and is
# cast back, which keeps every byte.
def _placeholder(value: SqlValue) -> str:
    return "CAST(? AS TEXT)" if isinstance(value, str) else "?"


def _bound(value: SqlValue) -> SqlValue:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
