"""Side rows of a page of jobs, by RecordID: tokens, extra information, events, and what a format asks for beyond."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from publisher.model.job import Side
from publisher.sources import arex_sql as sql

_PROJECT: Final = "projectname"


@dataclass(slots=True, kw_only=True)
class Sides:
    """Everything that stands beside AAR for some rows, as stored: texts are escaped still, and may be of any type."""

    finished: set[int] = field(default_factory=set)
    eventful: set[int] = field(default_factory=set)  # of those that are not finished: which have any event
    started: dict[int, object] = field(default_factory=dict)  # the newest LRMSSTART
    tokens: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)
    extra: dict[int, dict[Any, Any]] = field(default_factory=dict)  # the newest value of each key
    projects: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    environments: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    transfers: dict[int, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))


def read_sides(
    connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]], span: bool, needs: frozenset[Side]
) -> Sides:
    """The side rows of these rows of AAR. `span`: they are all the rows from the first to the last. Raises: sqlite3.Error."""
    which, parameters = (
        (sql.BETWEEN, {"first": rows[0][0], "last": rows[-1][0]})
        if span
        else (sql.LISTED, _listed(row[0] for row in rows))
    )
    sides = Sides()
    _read_events(connection, sides, which, parameters, rows)
    # Ten rows a job, a job's together: two look-ups less for each are a tenth of what reading a page takes. Those of fifty jobs
    # are fetched at once: a loop over the cursor calls it for each, 0.04 µs.
    job: object = None
    pairs: list[tuple[Any, Any]] = []
    for record_id, key, value in connection.execute(sql.side("AuthTokenAttributes", which), parameters).fetchall():
        if record_id != job:
            job, pairs = record_id, []
            sides.tokens[record_id] = pairs
        pairs.append((key, value))
    job = None
    values: dict[Any, Any] = {}
    for record_id, key, value in connection.execute(sql.side("JobExtraInfo", which), parameters).fetchall():
        if record_id != job:
            job, values = record_id, {}
            sides.extra[record_id] = values
        if key == _PROJECT:
            sides.projects[record_id].append(value)
        else:
            values[key] = value
    if Side.RUNTIME_ENVIRONMENTS in needs:
        for record_id, name in connection.execute(sql.side("RunTimeEnvironments", which), parameters):
            sides.environments[record_id].append(name)
    if Side.TRANSFERS in needs:
        for record_id, *stored in connection.execute(sql.side("DataTransfers", which), parameters):
            sides.transfers[record_id].append(tuple(stored))
    return sides


def _read_events(
    connection: sqlite3.Connection,
    sides: Sides,
    which: str,
    parameters: Mapping[str, object],
    rows: Sequence[tuple[Any, ...]],
) -> None:
    finished, started = sides.finished, sides.started
    for record_id, start in connection.execute(sql.events(which), parameters).fetchall():
        if start is None:
            finished.add(record_id)
        else:
            started[record_id] = start
    unfinished = [row[0] for row in rows if row[0] not in finished]
    if unfinished:
        sides.eventful.update(number for (number,) in connection.execute(sql.EVENTFUL, _listed(unfinished)))


def _listed(record_ids: Iterable[int]) -> dict[str, str]:
    return {"rows": json.dumps(list(record_ids))}
