"""The maker of A-REX databases against the facts of the file format."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import get_args

import pytest

from tests.arex_databases import (
    TEXTS,
    RawRow,
    SampleJob,
    Schema,
    Step,
    Transfer,
    TransferKind,
    Writer,
    bulk,
    create,
    escaped,
    generate,
    hostile,
    leave_wal,
    make_damaged,
    make_empty,
    make_missing,
    make_not_a_database,
    make_truncated,
    set_schema_version,
    wrapped,
)
from tests.arex_databases.__main__ import main, month_window

START = datetime(2026, 10, 1, tzinfo=UTC)
END = datetime(2026, 11, 1, tzinfo=UTC)
GIB = 2**30

BOTH = pytest.mark.parametrize("schema", get_args(Schema))

AAR_V1 = (
    "RecordID JobID LocalJobID EndpointID QueueID UserID VOID StatusID ExitCode SubmitTime EndTime NodeCount CPUCount"
    " UsedMemory UsedVirtMem UsedWalltime UsedCPUUserTime UsedCPUKernelTime UsedScratch StageInVolume StageOutVolume"
)
AAR_V2 = AAR_V1.replace("VOID ", "VOID FQANID ").replace("ExitCode ", "ExitCode BenchmarkID ")
INDEXED_V1 = "LocalJobID EndpointID QueueID UserID StatusID SubmitTime EndTime"


def rows(path: Path, question: str, *values: object) -> list[tuple[object, ...]]:
    """Answer of a fresh read-only connection, text as bytes turned into surrogate escapes."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda stored: stored.decode("utf-8", "surrogateescape")
        return connection.execute(question, values).fetchall()


def dump(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table."""
    tables = [str(name) for (name,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: rows(path, f"SELECT rowid, * FROM {table} ORDER BY rowid") for table in tables}


def index_columns(path: Path, table: str) -> set[str]:
    names = [str(row[1]) for row in rows(path, f"PRAGMA index_list({table})")]
    return {",".join(str(row[2]) for row in rows(path, f"PRAGMA index_info({name})")) for name in names}


def sample(count: int = 1, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, START, END))


def ordinary() -> SampleJob:
    """A completed job with transfers, FQANs, project and local id."""
    jobs = generate(1, 1000, START, END)
    return next(
        job for job in jobs if job.status == "completed" and job.transfers and len(job.fqans) > 1 and job.projects
    )


def written(path: Path, jobs: Sequence[SampleJob | RawRow], *, schema: Schema = 2) -> Path:
    with Writer(path, schema=schema) as writer:
        writer.write_all(jobs)
    return path


class TestSchema:
    @BOTH
    def test_columns_and_indexes_are_those_of_the_format(self, tmp_path: Path, schema: Schema) -> None:
        create(tmp_path / "a.db", schema=schema)
        columns = [row[1] for row in rows(tmp_path / "a.db", "PRAGMA table_info(AAR)")]
        assert columns == (AAR_V1 if schema == 1 else AAR_V2).split()
        more = {"VOID", "FQANID", "BenchmarkID"} if schema == 2 else set()
        assert index_columns(tmp_path / "a.db", "AAR") == {"JobID", *INDEXED_V1.split()} | more
        for table in ("AuthTokenAttributes", "JobEvents", "RunTimeEnvironments", "DataTransfers", "JobExtraInfo"):
            assert "RecordID" in index_columns(tmp_path / "a.db", table)
        assert ("Interface,URL" in index_columns(tmp_path / "a.db", "Endpoints")) is (schema == 2)
        assert rows(tmp_path / "a.db", "SELECT * FROM DBConfig") == [("DBSCHEMA_VERSION", str(schema))]

    @BOTH
    def test_optimized_adds_the_three_indexes_of_arcctl(self, tmp_path: Path, schema: Schema) -> None:
        path = tmp_path / "a.db"
        create(path, schema=schema, optimized=True)
        assert "StatusID,EndTime" in index_columns(path, "AAR")
        assert "RecordID,AttrKey" in index_columns(path, "AuthTokenAttributes")
        assert "RecordID,InfoKey" in index_columns(path, "JobExtraInfo")

    @pytest.mark.parametrize("journal", ["wal", "delete"])
    def test_journal_mode_stays_in_the_file(self, tmp_path: Path, journal: str) -> None:
        create(tmp_path / "a.db", journal="wal" if journal == "wal" else "delete")
        assert rows(tmp_path / "a.db", "PRAGMA journal_mode") == [(journal,)]

    def test_there_are_no_statistics(self, tmp_path: Path) -> None:
        bulk(tmp_path / "a.db", 2, 1000, 1, START, END)
        assert rows(tmp_path / "a.db", "SELECT name FROM sqlite_master WHERE name LIKE 'sqlite_stat%'") == []

    def test_an_old_file_is_not_written_over(self, tmp_path: Path) -> None:
        create(tmp_path / "a.db", schema=1)
        with pytest.raises(FileExistsError, match=r"a\.db exists"):
            create(tmp_path / "a.db")
        with pytest.raises(FileExistsError, match=r"a\.db exists"):
            bulk(tmp_path / "a.db", 2, 1, 1, START, END)
        with pytest.raises(ValueError, match="has schema 1, not 2"):
            Writer(tmp_path / "a.db", schema=2)


class TestSpelling:
    def test_escapes_are_lower_case_and_only_those_of_arex(self) -> None:
        assert escaped("'#%\r\n\b\0") == "%27%23%25%0d%0a%08%00"
        assert escaped('a\t"&<>\x85å') == 'a\t"&<>\x85å'

    @pytest.mark.parametrize(
        ("true", "stored"),
        [(0, 0), (2**31 - 1, 2**31 - 1), (3 * GIB, -GIB), (4 * GIB, 0), (5 * GIB, GIB), (2**32 - 1, -1), (-1, -1)],
    )
    def test_numbers_pass_through_32_bits(self, true: int, stored: int) -> None:
        assert wrapped(true) == stored

    def test_the_file_holds_escaped_text_and_wrapped_sizes(self, tmp_path: Path) -> None:
        job = ordinary()
        transfers = tuple(
            Transfer(url="x", size=size, start=1, end=2, kind=TransferKind.UPLOAD) for size in (3 * GIB, 5 * GIB, 0)
        )
        user = "/CN=Sean O'Neil"
        path = written(tmp_path / "a.db", [replace(job, user=user, transfers=transfers, memory_kib=3 * GIB)])
        assert rows(path, "SELECT FileSize FROM DataTransfers ORDER BY rowid") == [(-GIB,), (GIB,), (0,)]
        assert rows(path, "SELECT Name FROM Users") == [("/CN=Sean O%27Neil",)]
        assert rows(path, "SELECT UsedMemory FROM AAR") == [(-GIB,)]

    def test_a_conversion_keeps_text_and_64_bits(self, tmp_path: Path) -> None:
        job = replace(ordinary(), user="/CN=Sean O'Neil", stage_in_bytes=5 * GIB, events=())
        with Writer(tmp_path / "a.db", distort=False) as writer:
            writer.write(job)
        assert rows(tmp_path / "a.db", "SELECT Name FROM Users") == [(job.user,)]
        assert rows(tmp_path / "a.db", "SELECT StageInVolume FROM AAR") == [(5 * GIB,)]

    def test_events_are_local_time_and_the_autumn_hour_comes_twice(self, tmp_path: Path) -> None:
        twice = [case for case in hostile(1) if "ambiguous local hour" in case.name]
        path = written(tmp_path / "a.db", twice)
        ends = rows(path, "SELECT EventTime FROM JobEvents WHERE EventKey = 'FINISHED'")
        assert ends == [("2026-10-25 02:30:00",), ("2026-10-25 02:30:00",)]
        (first,), (second,) = rows(path, "SELECT EndTime FROM AAR ORDER BY RecordID")
        assert (first, second) == (1_792_888_200, 1_792_888_200 + 3600)

    @BOTH
    def test_fqans_and_benchmark_sit_where_the_schema_has_them(self, tmp_path: Path, schema: Schema) -> None:
        job = ordinary()
        path = written(tmp_path / "a.db", [replace(job, token_attributes=())], schema=schema)
        keys = [str(key) for (key,) in rows(path, "SELECT AttrKey FROM AuthTokenAttributes ORDER BY rowid")]
        values = tuple(value for (value,) in rows(path, "SELECT AttrValue FROM AuthTokenAttributes ORDER BY rowid"))
        assert values == job.fqans
        extra = {row[0]: row[1] for row in rows(path, "SELECT InfoKey, InfoValue FROM JobExtraInfo")}
        assert extra["nodenames"] == ":".join(job.node_names)
        assert extra["projectname"] == job.projects[0]
        if schema == 1:
            assert keys == ["mainfqan"] + ["vomsfqan"] * (len(job.fqans) - 1)
            assert extra["benchmark"] == job.benchmark
        else:
            assert keys == ["vomsfqan"] * len(job.fqans)
            assert "benchmark" not in extra
            joined = (
                "SELECT f.Name, b.Name FROM AAR JOIN FQANs f ON f.ID = FQANID JOIN Benchmarks b ON b.ID = BenchmarkID"
            )
            assert rows(path, joined) == [(job.fqans[0], job.benchmark)]

    def test_the_nodes_key_can_be_that_of_the_reader(self, tmp_path: Path) -> None:
        with Writer(tmp_path / "a.db", nodes_key="nodename") as writer:
            writer.write(ordinary())
        assert len(rows(tmp_path / "a.db", "SELECT 1 FROM JobExtraInfo WHERE InfoKey = 'nodename'")) == 1

    def test_undecodable_bytes_are_stored_as_text(self, tmp_path: Path) -> None:
        path = written(tmp_path / "a.db", [replace(ordinary(), job_name="a\udcffb")])
        stored = rows(path, "SELECT typeof(InfoValue), hex(InfoValue) FROM JobExtraInfo WHERE InfoKey = 'jobname'")
        assert stored == [("text", "61FF62")]


class TestWriter:
    @BOTH
    def test_an_accepted_job_is_in_progress(self, tmp_path: Path, schema: Schema) -> None:
        job = ordinary()
        with Writer(tmp_path / "a.db", schema=schema) as writer:
            assert writer.accept(job) == 1
        path = tmp_path / "a.db"
        question = "SELECT LocalJobID, ExitCode, EndTime, SubmitTime, s.Name FROM AAR JOIN Status s ON s.ID = StatusID"
        assert rows(path, question) == [("", 1, 0, job.submit_time, "in-progress")]
        assert rows(path, "SELECT EventKey FROM JobEvents") == [("ACCEPTED",)]
        tokens = rows(path, "SELECT count(*) FROM AuthTokenAttributes")
        assert tokens == [(len(job.fqans) + len(job.token_attributes),)]
        assert rows(path, "SELECT count(*) FROM JobExtraInfo") == [(0,)]

    @pytest.mark.parametrize(("step", "present"), [("aar", 0), ("rte", 1), ("transfers", 2), ("extra", 3)])
    def test_a_torn_row_is_seen_by_others_and_completed(self, tmp_path: Path, step: Step, present: int) -> None:
        job, path = ordinary(), tmp_path / "a.db"
        whole = dump(written(tmp_path / "whole.db", [job]))
        with Writer(path) as writer:
            writer.accept(job)
            writer.finish(job, stop_after=step)
            assert rows(path, "SELECT EndTime FROM AAR") == [(job.end_time,)]
            tables = ("RunTimeEnvironments", "DataTransfers", "JobExtraInfo")
            filled = [bool(rows(path, f"SELECT 1 FROM {table}")) for table in tables]
            assert filled == [number < present for number in range(3)]
            assert rows(path, "SELECT 1 FROM JobEvents WHERE EventKey = 'FINISHED'") == []
            writer.complete(job)
            with pytest.raises(KeyError):
                writer.complete(job)
        assert dump(path) == whole

    def test_finishing_again_doubles_side_rows_and_overwrites_the_row(self, tmp_path: Path) -> None:
        job, path = ordinary(), tmp_path / "a.db"
        once = dump(written(tmp_path / "once.db", [job]))
        with Writer(path) as writer:
            writer.write(job)
            ended = writer.finish_again(job, end_time=job.end_time + 900, local_job_id="77")
        assert (ended.end_time, ended.local_job_id) == (job.end_time + 900, "77")
        assert rows(path, "SELECT EndTime, LocalJobID FROM AAR") == [(job.end_time + 900, "77")]
        twice = dump(path)
        for table in ("RunTimeEnvironments", "DataTransfers", "JobExtraInfo"):
            assert Counter(row[1:] for row in twice[table]) == Counter(row[1:] for row in once[table] * 2)
        assert twice["AuthTokenAttributes"] == once["AuthTokenAttributes"]
        assert len(rows(path, "SELECT 1 FROM JobEvents WHERE EventKey = 'FINISHED'")) == 2

    def test_a_job_unknown_to_the_file_cannot_finish(self, tmp_path: Path) -> None:
        with Writer(tmp_path / "a.db") as writer, pytest.raises(KeyError, match="never accepted"):
            writer.finish(ordinary())

    def test_a_second_writer_finds_the_names_of_the_first(self, tmp_path: Path) -> None:
        first, second = sample(2)
        written(tmp_path / "a.db", [first])
        written(tmp_path / "a.db", [replace(second, user=first.user, interface=first.interface)])
        assert len(rows(tmp_path / "a.db", "SELECT 1 FROM Users")) == 1
        assert len(rows(tmp_path / "a.db", "SELECT 1 FROM Endpoints")) == 1


class TestGenerate:
    def test_the_same_seed_gives_the_same_file(self, tmp_path: Path) -> None:
        one = dump(written(tmp_path / "1.db", sample(200)))
        assert dump(written(tmp_path / "2.db", sample(200))) == one
        assert dump(written(tmp_path / "3.db", sample(200, seed=2))) != one

    def test_jobs_end_in_the_window_after_submission_and_are_distinct(self) -> None:
        jobs = sample(3000)
        assert all(START.timestamp() <= job.end_time < END.timestamp() for job in jobs)
        assert all(job.submit_time <= job.end_time and job.wall_s >= 0 for job in jobs)
        assert all(job.events[0].key == "ACCEPTED" and job.events[-1].key == "FINISHED" for job in jobs)
        assert [job.submit_time for job in jobs] == sorted(job.submit_time for job in jobs)
        assert len({job.job_id for job in jobs}) == len(jobs)
        assert all(len(job.job_id) == 54 and job.job_id.isalnum() for job in jobs)

    def test_the_mixture_has_what_sites_have(self) -> None:
        jobs = sample(3000)
        assert {job.vo for job in jobs} == {"atlas", "cms", "belle", "ops", ""}
        assert {job.benchmark for job in jobs} >= {"HEPSPEC:10.5", "HEPscore23:11.9", "HEPSPEC:1.0", None}
        assert {job.cpus // max(job.nodes, 1) for job in jobs} == {0, 1, 2, 4, 8}
        assert max(job.nodes for job in jobs) > 1
        assert any(job.status == "failed" and job.local_job_id == "" and job.wall_s == 0 for job in jobs)
        assert any(transfer.size > 4 * GIB for job in jobs for transfer in job.transfers)
        assert any("\\x" in job.user for job in jobs)
        assert any(job.user.startswith("https://") for job in jobs)
        staged = sum(bool(job.transfers) for job in jobs) / len(jobs)
        assert 0.28 < staged < 0.42

    @pytest.mark.parametrize(("start", "end"), [(START.replace(tzinfo=None), END), (END, START), (START, START)])
    def test_a_window_without_zone_or_length_is_refused(self, start: datetime, end: datetime) -> None:
        with pytest.raises(ValueError, match=r"zone|empty"):
            next(generate(1, 1, start, end))


class TestHostile:
    @BOTH
    def test_every_case_is_written_under_its_own_name(self, tmp_path: Path, schema: Schema) -> None:
        cases = hostile(3)
        assert len({case.name for case in cases}) == len(cases)
        assert "" not in {case.name for case in cases}
        path = written(tmp_path / "a.db", cases, schema=schema)
        assert rows(path, "SELECT count(*) FROM AAR") == [(len(cases),)]

    def test_they_are_the_same_for_the_same_seed_and_fit_beside_ordinary_jobs(self, tmp_path: Path) -> None:
        assert hostile(3) == hostile(3)
        written(tmp_path / "a.db", [*sample(300, seed=3), *hostile(3)])

    def test_texts_reach_the_file_byte_for_byte(self, tmp_path: Path) -> None:
        cases = [case for case in hostile(1) if case.name.startswith("job_name: ")]
        path = written(tmp_path / "a.db", cases)
        stored = [value for (value,) in rows(path, "SELECT InfoValue FROM JobExtraInfo WHERE InfoKey = 'jobname'")]
        assert stored == [escaped(case.job_name or "") for case in cases if isinstance(case, SampleJob)]
        assert len(stored) == len(TEXTS) + 2

    @pytest.mark.slow
    def test_raw_rows_hold_what_arex_would_not_write(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        ids: dict[str, int] = {}
        with Writer(path) as writer:
            for case in hostile(1):
                ids[case.name] = writer.write(case)

        def aar(column: str, name: str) -> object:
            return rows(path, f"SELECT {column} FROM AAR WHERE RecordID = ?", ids[name])[0][0]

        assert aar("FQANID", "NULL: AAR.FQANID") is None
        assert aar("ExitCode", "number: ExitCode 4294967295") == 4_294_967_295
        assert aar("ExitCode", "exit_code: 4294967295") == -1
        assert aar("UsedWalltime", "number: UsedWalltime 'abc'") == "abc"
        assert aar("UsedWalltime", "number: UsedWalltime '123'") == 123
        assert aar("EndTime", "number: EndTime 0") == 0
        assert aar("StatusID", "dangling: StatusID 99") == 99
        queue = aar("QueueID", "dangling: QueueID 987654")
        assert rows(path, "SELECT 1 FROM Queues WHERE ID = ?", queue) == []
        user = aar("UserID", "NULL: Users row")
        assert rows(path, "SELECT Name FROM Users WHERE ID = ?", user) == [(None,)]
        doubled = rows(path, "SELECT 1 FROM JobExtraInfo WHERE RecordID = ?", ids["side rows: none"])
        assert doubled == []


class TestBulk:
    @BOTH
    def test_rows_are_those_of_the_writer_at_other_times(self, tmp_path: Path, schema: Schema) -> None:
        path = tmp_path / "a.db"
        bulk(path, schema, 2000, 1, START, END, optimized=True)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        limits = "SELECT count(*), min(EndTime) >= ?, max(EndTime) < ?, min(EndTime - SubmitTime) >= 0 FROM AAR"
        assert rows(path, limits, START.timestamp(), END.timestamp()) == [(2000, 1, 1, 1)]
        submitted = [time for (time,) in rows(path, "SELECT SubmitTime FROM AAR ORDER BY RecordID")]
        assert submitted == sorted(submitted, key=lambda time: int(str(time)))
        assert len(rows(path, "SELECT DISTINCT LocalJobID FROM AAR WHERE LocalJobID <> ''")) > 1800
        create(tmp_path / "b.db", schema=schema, optimized=True)
        layout = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name <> 'sqlite_sequence' ORDER BY name"
        assert rows(path, layout) == rows(tmp_path / "b.db", layout)

    def test_each_job_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        bulk(path, 2, 2000, 1, START, END)
        per_job = {
            table: len(rows(path, f"SELECT 1 FROM {table}")) / 2000
            for table in ("JobEvents", "JobExtraInfo", "AuthTokenAttributes", "RunTimeEnvironments", "DataTransfers")
        }
        shape = [8.5, 6.5, 2.2, 1.1, 0.6]
        assert all(least < value < least * 1.3 for least, value in zip(shape, per_job.values(), strict=True)), per_job
        ended = "SELECT count(*), count(DISTINCT RecordID) FROM JobEvents WHERE EventKey = 'FINISHED'"
        assert rows(path, ended) == [(2000, 2000)]

    def test_events_follow_the_clock_change(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        bulk(path, 2, 2000, 1, START, END)
        question = "SELECT EndTime, EventTime FROM AAR JOIN JobEvents USING (RecordID) WHERE EventKey = 'FINISHED'"
        change = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()
        ahead: set[tuple[bool, float]] = set()
        for end, text in rows(path, question):
            local = datetime.fromisoformat(f"{text}+00:00").timestamp()
            ahead.add((int(str(end)) < change, local - int(str(end))))
        assert ahead == {(True, 7200), (False, 3600)}

    def test_the_same_seed_gives_the_same_file(self, tmp_path: Path) -> None:
        for name in ("1.db", "2.db"):
            bulk(tmp_path / name, 1, 700, 5, START, END, journal="delete")
        assert dump(tmp_path / "1.db") == dump(tmp_path / "2.db")

    def test_the_writer_goes_on_where_bulk_ended(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        bulk(path, 2, 100, 1, START, END)
        with Writer(path) as writer:
            assert writer.write(ordinary()) == 101


class TestDamage:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return written(tmp_path / "a.db", sample(50))

    @pytest.mark.parametrize("damage", [make_truncated, make_not_a_database, make_damaged, make_empty, make_missing])
    def test_the_damaged_cannot_be_read(self, path: Path, damage: Callable[[Path], None]) -> None:
        damage(path)
        with pytest.raises(sqlite3.DatabaseError):
            rows(path, "SELECT * FROM AAR JOIN JobExtraInfo USING (RecordID)")

    def test_the_schema_can_be_unknown_or_unnamed(self, path: Path) -> None:
        set_schema_version(path, "3")
        assert rows(path, "SELECT KeyValue FROM DBConfig") == [("3",)]
        with pytest.raises(ValueError, match="schema '3'"):
            Writer(path)
        set_schema_version(path, None)
        assert rows(path, "SELECT KeyValue FROM DBConfig") == []

    @pytest.mark.parametrize("shm", [True, False])
    def test_a_killed_writer_leaves_rows_in_the_wal_only(self, path: Path, shm: bool) -> None:
        late = islice(generate(9, 10, START, END), 3)
        leave_wal(path, late, shm=shm)
        assert path.with_name("a.db-shm").exists() is shm
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as blind:
            assert blind.execute("SELECT count(*) FROM AAR").fetchone() == (50,)
        assert rows(path, "SELECT count(*) FROM AAR") == [(53,)]

    def test_without_a_wal_there_is_nothing_to_leave(self, tmp_path: Path) -> None:
        create(tmp_path / "b.db", journal="delete")
        with pytest.raises(ValueError, match="nothing in a WAL"):
            leave_wal(tmp_path / "b.db", sample())


class TestByHand:
    def test_the_command_makes_the_month(self, tmp_path: Path) -> None:
        path = tmp_path / "a.db"
        asked = "--schema 1 --jobs 30 --seed 4 --month 2026-12 --hostile"
        assert main([*asked.split(), str(path)]) == 0
        start, end = month_window("2026-12")
        (count,) = rows(
            path,
            "SELECT count(*) FROM AAR WHERE EndTime >= ? AND EndTime < ?",
            *(moment.timestamp() for moment in (start, end)),
        )[0]
        assert int(str(count)) > 600
        assert rows(path, "SELECT KeyValue FROM DBConfig") == [("1",)]

    def test_it_does_not_write_over_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "a.db").touch()
        with pytest.raises(SystemExit):
            main([str(tmp_path / "a.db")])
        assert "exists" in capsys.readouterr().err
