"""Hostile cases that A-REX itself would not write: NULLs, wrong types, dangling numbers, doubled side rows."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tests.arex_databases.jobs import RawRow, SampleJob, SqlValue
from tests.arex_databases.schema import NAME_TABLES, SIDE_TABLES, aar_columns

DANGLING: Final = 987_654
"""A number that no name table holds."""

_NUMERIC: Final = tuple(name for name in aar_columns(2) if name not in {"RecordID", "JobID", "LocalJobID"})

_WRONG_NUMBERS: Final[tuple[SqlValue, ...]] = (
    "123",
    "abc",
    "",
    " 7 ",
    "1e3",
    1.5,
    b"\x00\xff",
    -1,
    2**31,
    2**40,
    2**63 - 1,
    -(2**63),
)

_TYPED_COLUMNS: Final = ("ExitCode", "EndTime", "SubmitTime", "CPUCount", "UsedWalltime", "UsedMemory", "StageInVolume")

_SIDE_SAMPLES: Final[Mapping[str, Mapping[str, SqlValue]]] = {
    "AuthTokenAttributes": {"AttrKey": "vomsfqan", "AttrValue": "/atlas/extra"},
    "JobEvents": {"EventKey": "LRMSSTART", "EventTime": "2026-10-25 02:30:00"},
    "RunTimeEnvironments": {"RTEName": "ENV/PROXY"},
    "DataTransfers": {
        "URL": "https://dav.example.org/f",
        "FileSize": 4711,
        "TransferStart": 1_792_000_000,
        "TransferEnd": 1_792_000_060,
        "TransferType": 10,
    },
    "JobExtraInfo": {"InfoKey": "jobname", "InfoValue": "another name"},
}

_EVENT_TIMES: Final = (
    "",
    "now",
    "1792000000",
    "2026-10-05T12:00:00Z",
    "2026-02-30 12:00:00",
    "20261005120000Z",
    "0000-00-00 00:00:00",
)


def bent_rows(jobs: Iterator[SampleJob]) -> Iterator[RawRow]:
    """The raw cases, each on the next of `jobs`."""
    yield from _nulls(jobs)
    yield from _wrong_numbers(jobs)
    yield from _references(jobs)
    yield from _side_rows(jobs)
    yield from _finished_twice(jobs)


def _nulls(jobs: Iterator[SampleJob]) -> Iterator[RawRow]:
    for column in aar_columns(2)[1:]:
        yield RawRow(name=f"NULL: AAR.{column}", job=next(jobs), columns={column: None})
    for table, columns in SIDE_TABLES.items():
        for column, _ in columns:
            row = (table, {**_SIDE_SAMPLES[table], column: None})
            yield RawRow(name=f"NULL: {table}.{column}", job=next(jobs), side=(row,))
    for column, table in NAME_TABLES.items():
        row_of_nulls = dict.fromkeys(("Interface", "URL") if table == "Endpoints" else ("Name",))
        yield RawRow(name=f"NULL: {table} row", job=next(jobs), names={column: row_of_nulls})
    yield RawRow(name="NULL: Endpoints.URL", job=next(jobs), names={"EndpointID": {"Interface": "x", "URL": None}})
    yield RawRow(name="empty: AAR.JobID", job=next(jobs), columns={"JobID": ""})
    yield RawRow(name="BLOB: AAR.LocalJobID", job=next(jobs), columns={"LocalJobID": b"123"})
    yield RawRow(name="BLOB: Users.Name", job=next(jobs), names={"UserID": {"Name": b"/O=Grid/CN=\xff"}})
    yield RawRow(name="number: Queues.Name", job=next(jobs), names={"QueueID": {"Name": 7}})
    yield RawRow(
        name="unescaped: JobExtraInfo",
        job=next(jobs),
        side=(("JobExtraInfo", {"InfoKey": "jobname", "InfoValue": "5%\n'#"}),),
    )


def _wrong_numbers(jobs: Iterator[SampleJob]) -> Iterator[RawRow]:
    for column in _TYPED_COLUMNS:
        for value in _WRONG_NUMBERS:
            yield RawRow(name=f"number: {column} {value!r}", job=next(jobs), columns={column: value})
    yield RawRow(name="number: ExitCode 4294967295", job=next(jobs), columns={"ExitCode": 4_294_967_295})
    yield RawRow(name="number: EndTime 0", job=next(jobs), columns={"EndTime": 0})
    for value in _WRONG_NUMBERS:
        row = ("DataTransfers", {**_SIDE_SAMPLES["DataTransfers"], "FileSize": value})
        yield RawRow(name=f"number: FileSize {value!r}", job=next(jobs), side=(row,))
    for kind in (0, 11, 20, 99, "download"):
        row = ("DataTransfers", {**_SIDE_SAMPLES["DataTransfers"], "TransferType": kind})
        yield RawRow(name=f"number: TransferType {kind!r}", job=next(jobs), side=(row,))


def _references(jobs: Iterator[SampleJob]) -> Iterator[RawRow]:
    for column in NAME_TABLES:
        for number in (0, DANGLING, "abc"):
            yield RawRow(name=f"dangling: {column} {number!r}", job=next(jobs), columns={column: number})
    yield RawRow(name="dangling: StatusID 99", job=next(jobs), columns={"StatusID": 99})
    yield RawRow(name="dangling: all", job=next(jobs), columns=dict.fromkeys(NAME_TABLES, DANGLING))


def _side_rows(jobs: Iterator[SampleJob]) -> Iterator[RawRow]:
    for table in SIDE_TABLES:
        yield RawRow(name=f"side rows: no {table}", job=next(jobs), cleared=frozenset({table}))
        row = (table, _SIDE_SAMPLES[table])
        yield RawRow(name=f"side rows: {table} twice", job=next(jobs), side=(row, row))
    yield RawRow(name="side rows: none", job=next(jobs), cleared=frozenset(SIDE_TABLES))
    for key, first, second in (
        ("jobname", "first", "second"),
        ("benchmark", "HEPSPEC:10.5", "HEPscore23:11.9"),
        ("projectname", "one", "two"),
        ("localuser", "alice:atlas", "bob:cms"),
        ("nodename", "wn001", "wn002"),
    ):
        rows = tuple(("JobExtraInfo", {"InfoKey": key, "InfoValue": value}) for value in (first, second))
        yield RawRow(name=f"side rows: two of {key}", job=next(jobs), side=rows)
    mains = tuple(("AuthTokenAttributes", {"AttrKey": "mainfqan", "AttrValue": fqan}) for fqan in ("/a", "/b/Role=c"))
    yield RawRow(name="side rows: two of mainfqan", job=next(jobs), side=mains)
    for time in _EVENT_TIMES:
        row = ("JobEvents", {"EventKey": "LRMSSTART", "EventTime": time})
        yield RawRow(name=f"event time: {time!r}", job=next(jobs), cleared=frozenset({"JobEvents"}), side=(row,))
    unknown = ("JobExtraInfo", {"InfoKey": "a key & no one's", "InfoValue": "x"})
    yield RawRow(name="side rows: unknown key", job=next(jobs), side=(unknown,))


def _finished_twice(jobs: Iterator[SampleJob]) -> Iterator[RawRow]:
    job = next(jobs)
    yield RawRow(name="finished twice: alike", job=job, again=job)
    job = next(jobs)
    yield RawRow(name="finished twice: later end", job=job, again=job.moved_to(job.end_time + 3600))
    job = next(jobs)
    yield RawRow(name="finished twice: other local job id", job=job, again=replace(job, local_job_id="77"))
    job = next(jobs)
    yield RawRow(name="finished twice: other benchmark", job=job, again=replace(job, benchmark="HEPSPEC:99"))
    job = next(jobs)
    yield RawRow(name="finished twice: failed first", job=replace(job, status="failed"), again=job)
