"""Jobs and names looked up in an accounting database; of one job, all that is there.

What cannot be read is named, and the rest reported.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

from publisher.model.job import Epoch, JobId, RowRef, Transfer
from publisher.model.text import arex_escape
from publisher.sources.arex import queries as sql
from publisher.sources.arex.database import AccountingDatabase
from publisher.sources.arex.names import NameTables
from publisher.sources.arex.rows import Row, RowReader
from publisher.sources.arex.values import (
    LocalTime,
    duration,
    exit_code,
    positive,
    stored_text,
    text_of,
    transfer,
    unsigned,
    whole,
)
from publisher.sources.sheet import JobDetails, StoredEvent

# EndTime is that of a file; the event is written by another hand, a little before or after.
_EVENT_SLACK_S: Final = 600
_DOWNLOAD: Final = 10
_FQAN: Final = "mainfqan"
_NEVER: Final = 2**63


def read_sheet(database: AccountingDatabase, job_id: JobId) -> JobDetails | None:
    """The job as it stands there, in whichever spelling its id is stored; None when it does not.

    Raises: SourceError.
    """

    def read(connection: sqlite3.Connection, reader: RowReader) -> JobDetails | None:
        spellings = {"job": stored_text(job_id), "escaped": stored_text(arex_escape(job_id))}
        rows = connection.execute(sql.BY_JOB[reader.layout], spellings).fetchall()
        row = next((row for row in rows if reader.text(row[1]) == job_id), None)
        if row is None:
            return None
        return _DetailsReader(database.name, connection, reader, database.clock).sheet(row)

    return database.ask(read)


class _DetailsReader:
    """One row and what stands beside it, inside the transaction that found it."""

    def __init__(
        self, path: str, connection: sqlite3.Connection, reader: RowReader, clock: LocalTime
    ) -> None:
        self._path = path
        self._connection = connection
        self._reader = reader
        self._text = reader.text
        self._clock = clock
        self._oddities: list[str] = []

    def sheet(self, row: Row) -> JobDetails:
        """Raises: sqlite3.Error."""
        # fmt: off
        (record_id, job_id, local_id, endpoint_id, queue_id, user_id, vo_id, fqan_id, status_id,
         status_code, benchmark_id, submitted, ended, nodes, cpus, memory, virtual,
         wall, user_s, kernel_s, scratch, stage_in, stage_out) = row
        # fmt: on
        names = self._names(row)
        status = names.statuses.get(status_id, "")
        interface, endpoint = names.endpoints.get(endpoint_id, ("", ""))
        submitted_at = self._moment("SubmitTime", submitted)
        ended_at = self._moment("EndTime", ended)
        events = self._events(record_id, submitted_at, ended_at)
        environments = [
            self._text(name) for (name,) in self._side("RunTimeEnvironments", record_id)
        ]
        extra = self._pairs("JobExtraInfo", record_id)
        attributes = self._pairs("AuthTokenAttributes", record_id)
        return JobDetails(
            row=RowRef(database=self._path, record_id=record_id),
            job_id=JobId(self._text(job_id)),
            local_id=self._text(local_id),
            status=status,
            in_progress=status == "in-progress" or (not status and not ended),
            exit_code=self._number("ExitCode", status_code, exit_code),
            submitted_at=submitted_at,
            started_at=_started(events),
            ended_at=ended_at,
            interface=interface,
            endpoint=endpoint,
            queue=names.queues.get(queue_id, ""),
            user=names.users.get(user_id, ""),
            vo=names.vos.get(vo_id, ""),
            fqan=names.fqans.get(fqan_id, "") or dict(attributes).get(_FQAN, ""),
            benchmark=names.benchmarks.get(benchmark_id, "") or dict(extra).get("benchmark", ""),
            node_count=self._number("NodeCount", nodes, positive, zero=True),
            cpu_count=self._number("CPUCount", cpus, positive, zero=True),
            gpu_count=None,  # A-REX knows none
            # 0: the batch system told nothing.
            memory_kib=self._number("UsedMemory", memory, unsigned) or None,
            virtual_memory_kib=self._number("UsedVirtMem", virtual, unsigned) or None,
            wall_s=self._number("UsedWalltime", wall, duration),
            cpu_user_s=self._number("UsedCPUUserTime", user_s, duration),
            cpu_kernel_s=self._number("UsedCPUKernelTime", kernel_s, duration),
            scratch_bytes=self._number("UsedScratch", scratch, unsigned),
            stage_in_bytes=self._number("StageInVolume", stage_in, unsigned),
            stage_out_bytes=self._number("StageOutVolume", stage_out, unsigned),
            attributes=attributes,
            extra=extra,
            runtime_environments=tuple(dict.fromkeys(environments)),
            events=events,
            transfers=self._transfers(record_id),
            oddities=tuple(self._oddities),
        )

    def _names(self, row: Row) -> NameTables:
        names = NameTables(self._reader.layout, self._text)
        names.fill(self._connection, [row])
        known = sql.tables(self._reader.layout)
        for column, (place, table, _) in sql.NAMES.items():
            number = row[place]
            if table in known and number not in names.by_column[column]:
                self._oddities.append(f"{column} is {_shown(number)}, and {table} has no such row")
        return names

    def _number(
        self,
        column: str,
        stored: object,
        read: Callable[[object], int | None],
        *,
        zero: bool = False,
    ) -> int | None:
        """None is unknown; what cannot be read is told. `zero`: that is a way to write unknown."""
        number = read(stored)
        if number is None and stored is not None and not (zero and whole(stored) == 0):
            self._oddities.append(f"{column} is {_shown(stored)}")
        return number

    def _moment(self, column: str, stored: object) -> Epoch | None:
        number = self._number(column, stored, positive, zero=True)
        return None if number is None else Epoch(number)

    def _side(self, table: str, record_id: int) -> list[tuple[Any, ...]]:
        """A table's rows of the job, without RecordID, in the order of writing.

        A second FINISHED repeats them.
        """
        which, parameters = sql.listed([record_id])
        found = self._connection.execute(sql.side(table, which), parameters)
        return list(dict.fromkeys(tuple(stored) for _, *stored in found))

    def _pairs(self, table: str, record_id: int) -> tuple[tuple[str, str], ...]:
        text, stored = self._text, self._side(table, record_id)
        return tuple(dict.fromkeys((text(key), text(value)) for key, value in stored))

    def _events(
        self, record_id: int, submitted_at: Epoch | None, ended_at: Epoch | None
    ) -> tuple[StoredEvent, ...]:
        """By time; those whose time cannot be read come last."""
        events = []
        for key, stored in self._side("JobEvents", record_id):
            local_time = text_of(stored)
            moments = _likely(self._clock.moments(local_time), submitted_at, ended_at)
            events.append(StoredEvent(key=self._text(key), local_time=local_time, moments=moments))
        return tuple(sorted(events, key=lambda event: event.moments[:1] or (_NEVER,)))

    def _transfers(self, record_id: int) -> tuple[Transfer, ...]:
        return tuple(self._transfer(*stored) for stored in self._side("DataTransfers", record_id))

    def _transfer(
        self, url: object, size: object, started: object, ended: object, kind: object
    ) -> Transfer:
        known = transfer(self._text(url), (size, started, ended, kind))
        if known is not None:
            return known
        unknown = transfer(self._text(url), (size, started, ended, _DOWNLOAD))
        if unknown is None:
            raise AssertionError("a download is a transfer")
        return unknown._replace(kind=f"type {_shown(kind)}")


def _likely(
    moments: tuple[Epoch, ...], submitted_at: Epoch | None, ended_at: Epoch | None
) -> tuple[Epoch, ...]:
    """Of two moments in the autumn hour those within the job's life, if that helps."""
    if len(moments) < 2:
        return moments
    within = tuple(
        moment
        for moment in moments
        if (submitted_at is None or moment >= submitted_at - _EVENT_SLACK_S)
        and (ended_at is None or moment <= ended_at + _EVENT_SLACK_S)
    )
    return within or moments


def _started(events: Sequence[StoredEvent]) -> Epoch | None:
    """The newest LRMSSTART, where its time is certain."""
    starts = [event.moments for event in events if event.key == "LRMSSTART"]
    return starts[-1][0] if starts and len(starts[-1]) == 1 else None


def _shown(stored: object) -> str:
    return "NULL" if stored is None else repr(stored)
