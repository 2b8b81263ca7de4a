"""What batch systems know of A-REX's jobs, for who counts: their GPUs, and which not to count."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from publisher.model.job import JobRecord
from publisher.sources.arex.options import Options, readings_of
from publisher.sources.arex.queries import IMPORTED, Parameters, Question, extra_of_row
from publisher.sources.arex.rows import Row, RowReader
from publisher.sources.base import Additions, JoinedRuns, RunAt
from publisher.sources.sqlite_reader import CopyDirectory, copies_directory
from publisher.sources.statistics import CountedJob, JobDetails

_NOTHING: Mapping[str, Any] = {}


class ReopenedDatabases:
    """The databases of the configuration.

    Each call reopens the files, because `rotate` and `migrate` replace them.
    """

    def __init__(
        self, options: object, environment: Mapping[str, str], joined: JoinedRuns | None
    ) -> None:
        """Raises: ConfigError when a time zone cannot be found."""
        if not isinstance(options, Options):
            raise TypeError(f"expected {Options}, got {options!r}")
        self._options = options
        self._copies = CopyDirectory(copies_directory(environment))
        self._readings = readings_of(options, environment)
        self._joined = joined

    def _joined_of(self, path: str) -> JoinedRuns | None:
        """What is known of the jobs of one of them."""
        return None if self._joined is None else self._joined.of_ce(path)

    def close(self) -> None:
        self._copies.close()
        if self._joined is not None:
            self._joined.close()


def known_of(
    connection: sqlite3.Connection,
    reader: RowReader,
    joined: JoinedRuns | None,
    rows: Iterable[Sequence[Any]],
) -> Additions:
    """Of rows as (RecordID, LocalJobID, SubmitTime, EndTime, UsedWalltime).

    Nothing of a batch system's own database. Raises: sqlite3.Error, SourceError.
    """
    if joined is None or reader.layout == IMPORTED:
        return {}

    def lrms_of(asked: Collection[int]) -> Mapping[int, str]:
        found = connection.execute(extra_of_row("lrms"), {"rows": json.dumps(list(asked))})
        return {row: reader.text(text) for row, text in found}

    runs = {
        row: RunAt(reader.text(number), *times)
        for row, number, *times in rows
        if number and set(map(type, times)) == {int}
    }
    return joined.known(runs, lrms_of)


def rows_to_count_alone(
    joined: JoinedRuns | None,
    question: Question,
    asked: Parameters,
    connection: sqlite3.Connection,
    reader: RowReader,
) -> list[int]:
    """Rows of a page of which SQLite's sums would be wrong. Raises: sqlite3.Error, SourceError."""
    if joined is None:
        return []
    columns = "RecordID, LocalJobID, SubmitTime, EndTime, UsedWalltime"
    rows = connection.execute(f"SELECT {columns} FROM ({question[reader.layout]})", asked)
    known = known_of(connection, reader, joined, rows)
    return [row for row, values in known.items() if values is None or values.get("gpu_count")]


def counted_with_joined(
    connection: sqlite3.Connection,
    reader: RowReader,
    joined: JoinedRuns | None,
    jobs: Iterable[tuple[Row, CountedJob]],
) -> list[tuple[Row, CountedJob]]:
    """Jobs with their GPUs, without those that a batch system counts.

    Raises: sqlite3.Error, SourceError.
    """
    pairs = list(jobs)
    runs = [(row[0], row[2], row[11], row[12], row[13]) for row, _ in pairs]
    known = known_of(connection, reader, joined, runs)
    if not known:
        return pairs
    values_of = [known.get(row[0], _NOTHING) for row, _ in pairs]
    return [
        (row, job._replace(gpu_count=values.get("gpu_count", job.gpu_count)))
        for (row, job), values in zip(pairs, values_of, strict=True)
        if values is not None
    ]


def lacking(job: JobRecord | JobDetails, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that a job has a place for and does not know."""
    return {name: value for name, value in values.items() if not getattr(job, name, True)}
