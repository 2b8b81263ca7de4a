"""Odd rows of A-REX's databases, one rule at a time."""

import json
import random
import sqlite3
import timeit
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from publisher.model.errors import SourceError
from publisher.model.job import Epoch, JobRecord, LoadedPage, ReadRequest, SideTable, SkippedJob
from publisher.sources.arex import queries
from publisher.sources.arex.names import NameTables
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import create
from publisher.sources.base import OpenRow
from tests.arex_databases import (
    RawRow,
    SampleJob,
    Schema,
    SqlValue,
    Transfer,
    TransferKind,
    Writer,
    generate,
    set_schema_version,
)
from tests.arex_databases import create as create_database

NOW = Epoch(int(datetime(2026, 12, 1, tzinfo=UTC).timestamp()))
DULL, OTHER = [
    job
    for job in generate(8, 200, datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC))
    if job.status == "completed" and job.fqans and job.transfers
][:2]
Read = Callable[..., LoadedPage]


@pytest.fixture(params=[1, 2])
def schema(request: pytest.FixtureRequest) -> Schema:
    return 1 if request.param == 1 else 2


@pytest.fixture
def read(tmp_path: Path, schema: Schema) -> Read:
    """Writes the cases and reads them back in one page."""

    def write_and_read(*cases: SampleJob | RawRow, zone: str = "Europe/Oslo", **options: object) -> LoadedPage:
        path = tmp_path / "a.db"
        with Writer(path, schema=schema, zone=zone) as writer:
            writer.write_all(cases)
        known = {"time_zone": zone, **options}
        source = create(Options(databases=(str(path),), **known), {})  # type: ignore[arg-type]  # any option
        (page,) = source.sources()[0].read(None, (), ReadRequest(frozenset(SideTable), NOW))
        source.close()
        return page

    return write_and_read


def bent(
    columns: dict[str, SqlValue] | None = None, *side: tuple[str, dict[str, SqlValue]], cleared: str = ""
) -> RawRow:
    return RawRow(
        name="bent",
        job=DULL,
        columns=columns or {},
        side=side,
        cleared=frozenset({cleared}) if cleared else frozenset(),
    )


def one_job(page: LoadedPage) -> JobRecord:
    assert (page.skipped, page.open) == ([], [])
    (job,) = page.jobs
    return job


def one_skipped(page: LoadedPage) -> SkippedJob:
    assert (page.jobs, page.open) == ([], [])
    (skipped,) = page.skipped
    return skipped


def one_open(page: LoadedPage) -> OpenRow:
    assert (page.jobs, page.skipped) == ([], [])
    (opened,) = page.open
    return opened


# --- numbers


@pytest.mark.parametrize("column", ["EndTime", "SubmitTime", "UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime"])
@pytest.mark.parametrize("value", [None, "abc", 1.5, "", b"\xff", 1e30])
def test_a_mandatory_number_must_be_one(read: Read, column: str, value: SqlValue) -> None:
    skipped = one_skipped(read(bent({column: value})))
    assert skipped.rule == "not-a-number"
    assert skipped.reason.startswith(f"{column} is ")
    assert ("NULL" if value is None else repr(value)) in skipped.reason
    assert (skipped.job_id, skipped.local_id) == (DULL.job_id, DULL.local_job_id)
    assert skipped.ended_at == (None if column == "EndTime" else DULL.end_time)


def test_numbers_in_text_are_numbers(read: Read) -> None:
    job = one_job(read(bent({"UsedWalltime": "123", "UsedCPUUserTime": " 7 ", "ExitCode": "3"})))
    assert (job.wall_s, job.cpu_user_s, job.exit_code) == (123, 7, 3)


@pytest.mark.parametrize("column", ["UsedWalltime", "UsedCPUUserTime", "UsedCPUKernelTime"])
def test_a_negative_duration_is_set_aside(read: Read, column: str) -> None:
    assert one_skipped(read(bent({column: -1}))).rule == "negative-duration"


def test_unknown_is_none_and_never_zero(read: Read) -> None:
    zeros = dict.fromkeys(
        ("NodeCount", "CPUCount", "UsedMemory", "UsedVirtMem", "UsedScratch", "StageInVolume", "StageOutVolume"), 0
    )
    job = one_job(read(bent(dict(zeros))))
    assert (job.node_count, job.cpu_count, job.memory_kib, job.virtual_memory_kib) == (None,) * 4
    assert (job.scratch_bytes, job.stage_in_bytes, job.stage_out_bytes) == (0, 0, 0)


@pytest.mark.parametrize("value", [None, "abc", 2.5])
def test_an_optional_number_that_is_none_is_unknown(read: Read, value: SqlValue) -> None:
    columns = ("ExitCode", "NodeCount", "CPUCount", "UsedMemory", "UsedVirtMem", "UsedScratch", "StageInVolume")
    job = one_job(read(bent(dict.fromkeys(columns, value))))
    assert (job.exit_code, job.node_count, job.cpu_count, job.memory_kib) == (None,) * 4
    assert (job.virtual_memory_kib, job.scratch_bytes, job.stage_in_bytes) == (None,) * 3


def test_sizes_past_31_bits_are_repaired(read: Read) -> None:
    job = one_job(
        read(bent({"UsedMemory": -1, "UsedScratch": -(2**31), "StageInVolume": 2**40, "StageOutVolume": -(2**40)}))
    )
    assert job.memory_kib == 2**32 - 1
    assert job.scratch_bytes == 2**31
    assert job.stage_in_bytes == 2**40  # a converted row holds it whole
    assert job.stage_out_bytes is None


@pytest.mark.parametrize(("stored", "code"), [(4_294_967_295, -1), (2**31, -(2**31)), (2**31 - 1, 2**31 - 1), (-9, -9)])
def test_exit_codes_are_signed(read: Read, stored: int, code: int) -> None:
    assert one_job(read(bent({"ExitCode": stored}))).exit_code == code


def test_transfer_sizes_and_kinds(read: Read) -> None:
    def row(size: SqlValue, kind: SqlValue = 10, start: SqlValue = 5) -> tuple[str, dict[str, SqlValue]]:
        values: dict[str, SqlValue] = {"FileSize": size, "TransferStart": start, "TransferEnd": 9, "TransferType": kind}
        return "DataTransfers", {"URL": "u%27v", **values}

    rows = [
        row(0),
        row(-1),
        row(2**40),
        row(None),
        row(0),
        row(1, 11),
        row(2, 20),
        row(3, 99),
        row(4, "x"),
        row(5, 10, 0),
    ]
    job = one_job(read(bent({}, *rows, cleared="DataTransfers")))
    assert [(each.kind, each.size_bytes, each.started_at) for each in job.transfers] == [
        ("download", 0, 5),
        ("download", 2**32 - 1, 5),
        ("download", 2**40, 5),
        ("download", None, 5),
        ("cached", 1, 5),
        ("upload", 2, 5),
        ("download", 5, None),
    ]
    assert {each.url for each in job.transfers} == {"u'v"}


# --- status and end


@pytest.mark.parametrize("status", [0, 987_654, None, "abc"])
def test_an_unknown_status_is_open_without_an_end_and_set_aside_with_one(read: Read, status: SqlValue) -> None:
    page = read(bent({"StatusID": status, "EndTime": 0}), replace(OTHER, status=""))
    assert [row.finished_seen_at for row in page.open] == [None]
    assert [skipped.rule for skipped in page.skipped] == ["unknown-status"]
    assert page.jobs == []


def test_an_empty_status_without_an_end_is_open(read: Read) -> None:
    job = replace(DULL, status="").moved_to(0)
    assert one_open(read(job)).finished_seen_at is None


@pytest.mark.parametrize("end", [0, -1, -(2**63)])
def test_a_finished_job_without_an_end_is_set_aside(read: Read, end: int) -> None:
    skipped = one_skipped(read(bent({"EndTime": end})))
    assert (skipped.rule, skipped.ended_at) == ("no-end-time", None)


@pytest.mark.parametrize("status", ["aborted", "COMPLETED", "failed"])
def test_any_other_status_is_finished(read: Read, status: str) -> None:
    assert one_job(read(replace(DULL, status=status))).status == status


# --- references


@pytest.mark.parametrize("column", ["UserID", "QueueID", "VOID", "EndpointID", "FQANID", "BenchmarkID"])
@pytest.mark.parametrize("number", [0, 987_654, "abc"])
def test_a_dangling_reference_is_set_aside(read: Read, schema: Schema, column: str, number: SqlValue) -> None:
    page = read(bent({column: number}))
    if schema == 1 and column in ("FQANID", "BenchmarkID"):
        one_job(page)
        return
    skipped = one_skipped(page)
    assert skipped.rule == "dangling-reference"
    assert f"{column} is {number!r}" in skipped.reason


def test_null_references(read: Read, schema: Schema) -> None:
    assert one_skipped(read(bent({"UserID": None}))).rule == "dangling-reference"


def test_null_in_a_column_of_schema_2_is_no_reference(read: Read, schema: Schema) -> None:
    job = one_job(read(bent({"FQANID": None, "BenchmarkID": None})))
    assert job.fqans == DULL.fqans
    assert job.benchmark == ("" if schema == 2 else DULL.benchmark)


def test_null_names_are_empty_texts(read: Read) -> None:
    nothing = {"UserID": {"Name": None}, "QueueID": {"Name": None}, "VOID": {"Name": None}}
    job = one_job(read(RawRow(name="x", job=DULL, names={**nothing, "EndpointID": {"Interface": None, "URL": None}})))
    assert (job.user, job.queue, job.vo, job.interface, job.endpoint) == ("",) * 5


@pytest.mark.parametrize("job_id", [None, ""])
def test_a_job_without_an_id_is_set_aside(read: Read, job_id: SqlValue) -> None:
    skipped = one_skipped(read(bent({"JobID": job_id})))
    assert (skipped.rule, skipped.job_id, skipped.local_id) == ("no-job-id", "", DULL.local_job_id)


def test_a_skipped_rows_fingerprint_is_of_its_values(read: Read, tmp_path: Path) -> None:
    first = one_skipped(read(bent({"UsedWalltime": -1})))
    (tmp_path / "a.db").unlink()
    assert one_skipped(read(bent({"UsedWalltime": -1}))).fingerprint == first.fingerprint
    (tmp_path / "a.db").unlink()
    assert one_skipped(read(bent({"UsedWalltime": -2}))).fingerprint != first.fingerprint


# --- texts


def test_escapes_are_undone_once_everywhere(read: Read) -> None:
    real = "O'Neil #1 50%\r\n\b\0 %27"
    job = replace(
        DULL, user=real, queue=real, vo=real, interface=real, endpoint_url=real, local_job_id=real, job_name=real,
        lrms=real, client_host=real, projects=(real,), local_user=f"{real}:{real}", wn_instance=real, rtes=(real,),
        node_names=(real,), benchmark=real, token_attributes=((real, real),), fqans=(f"/{real}", f"/2{real}"), status=real,
        transfers=(Transfer(url=real, size=1, start=1, end=2, kind=TransferKind.UPLOAD),),
    )  # fmt: skip
    found = one_job(read(job))
    assert found.escaped
    assert (found.user, found.queue, found.vo, found.interface, found.endpoint, found.local_id, found.job_name) == (
        real,
    ) * 7
    assert (found.lrms, found.client_host, found.local_user, found.local_group, found.wn_instance) == (real,) * 5
    assert (found.benchmark, found.transfers[0].url, found.status) == (real,) * 3
    assert (found.projects, found.runtime_environments, found.hosts) == ((real,),) * 3
    assert found.attributes == ((real, real),)
    assert found.fqans == (f"/{real}", f"/2{real}")


def test_converted_rows_keep_their_text(read: Read) -> None:
    found = one_job(read(replace(DULL, job_name="100%25"), unescape=False))
    assert (found.job_name, found.escaped) == ("100%2525", False)


@pytest.mark.parametrize("field", ["user", "vo", "local_job_id", "endpoint_url", "interface", "job_id", "fqans"])
def test_identity_that_is_not_utf8_is_set_aside_alone(read: Read, field: str) -> None:
    bad = "a\udcffb"
    changed = replace(DULL, **{field: (bad,) if field == "fqans" else bad})  # type: ignore[arg-type]  # a text field
    page = read(changed, OTHER)
    (skipped,) = page.skipped
    assert skipped.rule == "undecodable-text"
    assert "not UTF-8" in skipped.reason
    assert [job.job_id for job in page.jobs] == [OTHER.job_id]


def test_an_undecodable_name_met_again_on_another_page_is_set_aside_too(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Writer(path) as writer:
        for job in (DULL, OTHER):
            writer.write(replace(job, user="a\udcff"))
    source = create(Options(databases=(str(path),), page_rows=1), {})
    pages = list(source.sources()[0].read(None, (), ReadRequest(frozenset(), NOW)))
    assert [one_skipped(page).rule for page in pages] == ["undecodable-text"] * 2


def test_other_text_that_is_not_utf8_keeps_its_bytes(read: Read) -> None:
    found = one_job(read(replace(DULL, job_name="a\udcffb", projects=("\udcc3",))))
    assert (found.job_name, found.projects) == ("a\udcffb", ("\udcc3",))


def test_blobs_are_read_as_text(read: Read) -> None:
    assert one_job(read(bent({"LocalJobID": b"123"}))).local_id == "123"


# --- side rows


def extra(key: str, value: SqlValue) -> tuple[str, dict[str, SqlValue]]:
    return "JobExtraInfo", {"InfoKey": key, "InfoValue": value}


def token(key: str, value: SqlValue) -> tuple[str, dict[str, SqlValue]]:
    return "AuthTokenAttributes", {"AttrKey": key, "AttrValue": value}


@pytest.mark.parametrize(
    "stored",
    [bent({"JobID": b"a\xffb"}), bent({"LocalJobID": b"\xff"}), bent({}, token("vomsfqan", b"/atlas/\xff"))],
    ids=["job id", "local id", "FQAN"],
)
def test_bytes_that_are_no_utf8_are_set_aside_without_a_neighbour_that_raises_doubts(
    read: Read, stored: RawRow
) -> None:
    """Reading bytes raises nothing, unlike text."""
    assert one_skipped(read(stored)).rule == "undecodable-text"


def test_the_last_row_of_a_key_wins_and_projects_gather(read: Read) -> None:
    rows = [
        extra("jobname", "first"),
        extra("projectname", "one"),
        extra("jobname", "second"),
        extra("projectname", "two"),
    ]
    rows += [
        extra("projectname", "one"),
        extra("localuser", "bob:cms"),
        extra("lrms", None),
        extra("projectname", None),
    ]
    found = one_job(read(bent({}, *rows, cleared="JobExtraInfo")))
    assert (found.job_name, found.projects, found.local_user, found.local_group) == (
        "second",
        ("one", "two"),
        "bob",
        "cms",
    )
    assert (found.lrms, found.client_host, found.hosts) == ("", "", ())


def test_benchmark_of_schema_2_falls_back_to_the_extra_information(read: Read) -> None:
    (job, rows) = replace(DULL, benchmark=None), (extra("benchmark", "HEPSPEC:9"),)
    assert one_job(read(RawRow(name="x", job=job, side=rows))).benchmark == "HEPSPEC:9"


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("wn001", ("wn001",)),
        ("wn001:wn002:wn001", ("wn001", "wn002")),
        (":wn001::", ("wn001",)),
        ("2001:db8::1", ("2001:db8::1",)),
        ("[2001:db8::1]", ("[2001:db8::1]",)),
        ("a:b:c", ("a", "b", "c")),
        ("", ()),
    ],
)
def test_node_names(read: Read, nodes: str, hosts: tuple[str, ...]) -> None:
    assert one_job(read(bent({}, extra("nodenames", nodes), cleared="JobExtraInfo"))).hosts == hosts


def test_fqans_come_once_the_main_one_first(read: Read, schema: Schema) -> None:
    rows = [token("vomsfqan", "/b"), token("group", "/x"), token("vomsfqan", "/c"), token("vomsfqan", "/b")]
    rows += [token("vomsfqan", DULL.fqans[0]), token("group", "/x"), token("vomsfqan", "")]
    if schema == 1:
        rows.insert(2, token("mainfqan", DULL.fqans[0]))
    found = one_job(read(bent({}, *rows, cleared="AuthTokenAttributes")))
    assert found.fqans == (DULL.fqans[0], "/b", "/c")
    assert found.attributes == (("group", "/x"),)


def test_events_and_their_last_start(read: Read) -> None:
    def event(key: str, time: str) -> tuple[str, dict[str, SqlValue]]:
        return "JobEvents", {"EventKey": key, "EventTime": time}

    finished = event("FINISHED", "whenever")
    rows = [event("LRMSSTART", "2026-10-05 12:00:00"), event("LRMSSTART", "2026-10-05 13:00:00"), finished]
    found = one_job(read(bent({}, *rows, cleared="JobEvents")))
    assert found.started_at == int(datetime(2026, 10, 5, 11, tzinfo=UTC).timestamp())


@pytest.mark.parametrize("time", ["", None, "now", "2026-03-29 02:30:00"])
def test_a_start_that_cannot_be_read_is_unknown(read: Read, time: SqlValue) -> None:
    rows: list[tuple[str, dict[str, SqlValue]]] = [
        ("JobEvents", {"EventKey": key, "EventTime": time}) for key in ("LRMSSTART", "FINISHED")
    ]
    assert one_job(read(bent({}, *rows, cleared="JobEvents"))).started_at is None


def test_a_file_of_schema_2_that_says_1_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "accounting_v2.db"
    create_database(path, schema=2)
    set_schema_version(path, "1")
    with pytest.raises(SourceError, match="says schema version 1 and has the columns of version 2"):
        create(Options(databases=(str(path),), time_zone="UTC"), {}).databases()


def test_names_that_are_known_cost_no_more_where_many_are() -> None:
    def least_s(known: int) -> float:
        names = NameTables(2, str)
        names.users.update({number: f"user {number}" for number in range(known)})
        with closing(sqlite3.connect(":memory:")) as connection:
            of_page = {"UserID": set(range(50))}
            look_up = partial(names.look_up, connection, of_page)
            return min(timeit.repeat(look_up, number=3, repeat=20))

    assert least_s(100_000) < 20 * least_s(50)


@pytest.mark.parametrize("index", ["CREATE INDEX JobExtraInfo_RecordID_IDX ON JobExtraInfo (RecordID)", ""])
@pytest.mark.parametrize("which", [queries.BETWEEN, queries.LISTED])
def test_what_is_noted_of_a_job_is_read_in_the_order_of_writing(index: str, which: str) -> None:
    noted = [
        (number % 40, f"key {number % 3}", f"value {number}") for number in random.Random(5).sample(range(4000), 4000)
    ]
    wanted: dict[int, dict[str, str]] = {}
    for job, key, value in noted:
        wanted.setdefault(job, {})[key] = value
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE TABLE JobExtraInfo (RecordID INTEGER NOT NULL, InfoKey TEXT NOT NULL, InfoValue TEXT)"
        )
        connection.execute(index)
        connection.executemany("INSERT INTO JobExtraInfo VALUES (?, ?, ?)", noted)
        asked = {"first": 0, "last": 40, "rows": json.dumps(list(range(40)))}
        found = {job: json.loads(text) for job, text in connection.execute(queries.noted(which), asked)}
    assert found == wanted
