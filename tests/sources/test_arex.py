"""A-REX's databases as a source: pages, order, authority between files, incomplete rows, plans and transactions."""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from publisher.jobs.store import open_reader
from publisher.model.errors import SourceError
from publisher.model.job import (
    Epoch,
    JobId,
    JobRecord,
    LoadedPage,
    OpenRow,
    ReadRequest,
    RowRef,
    SideTable,
    Transfer,
)
from publisher.model.time import Window
from publisher.sources import source_plugin
from publisher.sources.arex import queries
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import ArexSource, create
from publisher.sources.arex.values import row_of
from publisher.sources.base import JobSource
from tests.arex_databases import (
    RawRow,
    SampleJob,
    Schema,
    TransferKind,
    Writer,
    bulk,
    generate,
    hostile,
    set_schema_version,
)
from tests.arex_databases import create as create_database
from tests.jobs.test_load import Site, make
from tests.sources.contract import NOTHING, SourceContract, SourceWorld, every_row, loaded
from tests.support.strategies import examples

pytestmark = pytest.mark.some(2, of="schema")

DAY_S = 86_400
START = datetime(2026, 10, 1, tzinfo=UTC)
END = datetime(2026, 11, 1, tzinfo=UTC)
NOW = datetime(2026, 12, 1, tzinfo=UTC)
EVERYTHING = frozenset(SideTable)
BOTH: tuple[Schema, ...] = (1, 2)
OSLO = "Europe/Oslo"


def samples(count: int, seed: int = 1) -> list[SampleJob]:
    return list(generate(seed, count, START, END))


_MADE: list[ArexSource] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Python 3.13 complains about connections that nobody closes."""
    yield
    while _MADE:
        _MADE.pop().close()


def made(source: ArexSource) -> ArexSource:
    _MADE.append(source)
    return source


def source_of(*databases: Path, **options: Any) -> ArexSource:
    known: dict[str, Any] = {"time_zone": OSLO, "page_rows": 7, **options}
    return made(create(Options(databases=tuple(map(str, databases)), **known), {}))


def write(path: Path, jobs: Sequence[SampleJob | RawRow], schema: Schema = 2, zone: str = OSLO) -> None:
    with Writer(path, schema=schema, zone=zone) as writer:
        writer.write_all(jobs)


def request(now: datetime = NOW, needs: frozenset[SideTable] = NOTHING) -> ReadRequest:
    return ReadRequest(needs, Epoch(int(now.timestamp())))


def first(source: ArexSource) -> JobSource:
    return source.sources()[0]


def read(source: ArexSource, now: datetime = NOW, needs: frozenset[SideTable] = NOTHING) -> list[LoadedPage]:
    """Everything in the first database."""
    return list(first(source).read(None, (), request(now, needs)))


def reread(
    source: ArexSource, rows: Sequence[OpenRow], now: datetime = NOW, needs: frozenset[SideTable] = NOTHING
) -> list[LoadedPage]:
    """These rows of the first database again."""
    return [page for page in first(source).read(None, rows, request(now, needs)) if page.position is None]


def compared(
    source: ArexSource, window: Window = Window(), now: datetime = NOW, needs: frozenset[SideTable] = NOTHING
) -> list[LoadedPage]:
    """The parts of the first database in which a job ended in a window."""
    return list(first(source).compare(window, {}, request(now, needs)))


def into_store(folder: Path, source: ArexSource, now: datetime = NOW) -> Site:
    """A job store with all that the source has."""
    site = Site(make(folder / "state"))
    site.source.close()
    site.source, site.now = source, now
    assert site.load() == []
    return site


def at(end_time: int, seconds: int = 0) -> datetime:
    return datetime.fromtimestamp(end_time + seconds, UTC)


class ArexWorld(SourceWorld):
    def __init__(self, directory: Path, schema: Schema) -> None:
        self.path = directory / ("accounting.db" if schema == 1 else "accounting_v2.db")
        create_database(self.path, schema=schema)
        self.source = source_of(self.path)
        self._fresh = generate(3, 1000, START, END)

    def add(self, ends: Sequence[int]) -> list[JobId]:
        jobs = [next(self._fresh).moved_to(end) for end in ends]
        write(self.path, jobs, schema=1 if self.path.name == "accounting.db" else 2)
        return [JobId(job.job_id) for job in jobs]

    def forget(self, job_id: JobId) -> None:
        connection = sqlite3.connect(self.path)
        with connection:
            connection.execute("DELETE FROM AAR WHERE JobID = ?", (job_id,))
        connection.close()

    def destroy(self) -> None:
        for file in self.path.parent.iterdir():
            file.unlink()


@pytest.fixture(params=BOTH)
def schema(request: pytest.FixtureRequest) -> Schema:
    return 1 if request.param == 1 else 2


class TestContract(SourceContract):
    @pytest.fixture
    def world(self, tmp_path: Path, schema: Schema) -> Iterator[SourceWorld]:
        world = ArexWorld(tmp_path, schema)
        yield world
        world.source.close()


def record_of(job: SampleJob, row: RowRef, schema: Schema) -> JobRecord:
    """What must come out of an ordinary job, written by A-REX in a schema."""
    user, _, group = (job.local_user or "").partition(":")
    started = [event.at for event in job.events if event.key == "LRMSSTART"]
    kinds = {TransferKind.DOWNLOAD: "download", TransferKind.CACHED: "cached", TransferKind.UPLOAD: "upload"}
    return JobRecord(
        row=row,
        job_id=JobId(job.job_id),
        local_id=job.local_job_id or "",
        status=job.status,
        exit_code=job.exit_code,
        submitted_at=Epoch(job.submit_time),
        started_at=Epoch(started[-1]) if started else None,
        ended_at=Epoch(job.end_time),
        wall_s=job.wall_s,
        cpu_user_s=job.cpu_user_s,
        cpu_kernel_s=job.cpu_kernel_s,
        node_count=job.nodes or None,
        cpu_count=job.cpus or None,
        memory_kib=job.memory_kib or None,
        virtual_memory_kib=job.virtual_memory_kib or None,
        scratch_bytes=job.scratch_bytes % 2**32,  # what is over 4 GiB is lost in the writer
        stage_in_bytes=job.stage_in_bytes % 2**32,
        stage_out_bytes=job.stage_out_bytes % 2**32,
        interface=job.interface,
        endpoint=job.endpoint_url,
        queue=job.queue,
        user=job.user,
        vo=job.vo,
        fqans=job.fqans,
        attributes=job.token_attributes,
        benchmark=job.benchmark or "",
        job_name=job.job_name or "",
        lrms=job.lrms or "",
        client_host=job.client_host or "",
        projects=job.projects[:1],
        hosts=tuple(dict.fromkeys(job.node_names)),
        local_user=user,
        local_group=group,
        wn_instance=job.wn_instance or "",
        runtime_environments=job.rtes,
        transfers=tuple(
            Transfer(
                kind=kinds[each.kind],
                url=each.url,
                size_bytes=each.size % 2**32,
                started_at=Epoch(each.start),
                ended_at=Epoch(each.end),
            )
            for each in job.transfers
        ),
        escaped=True,
        side_fqan=schema == 1 and bool(job.fqans),
        side_benchmark=schema == 1 and bool(job.benchmark),
    )


def test_every_value_of_ordinary_jobs_comes_out(tmp_path: Path, schema: Schema) -> None:
    jobs = samples(300)
    write(tmp_path / "a.db", jobs, schema)
    source = source_of(tmp_path / "a.db")
    pages = read(source, needs=EVERYTHING)
    assert sum(len(page.skipped) + len(page.open) for page in pages) == 0
    found = loaded(pages)
    assert [record_of(job, record.row, schema) for job, record in zip(jobs, found, strict=True)] == found
    # The sample holds what it is meant to try.
    assert any("'" in job.user or "%" in (job.job_name or "") for job in jobs)
    assert any(job.transfers for job in jobs)
    assert loaded(compared(source, needs=EVERYTHING)) == found
    again = reread(source, [OpenRow(row=job.row, finished_seen_at=None) for job in found], needs=EVERYTHING)
    assert loaded(again) == found
    (page,) = looked_up(source, found[5].job_id, EVERYTHING)
    assert page.jobs == [found[5]]


def test_nodename_is_read_like_nodenames(tmp_path: Path) -> None:
    (job,) = [job for job in samples(400) if len(job.node_names) > 1][:1]
    with Writer(tmp_path / "a.db", nodes_key="nodename") as writer:
        writer.write(job)
    assert loaded(read(source_of(tmp_path / "a.db")))[0].hosts == tuple(dict.fromkeys(job.node_names))


def test_the_environment_of_the_process_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = samples(40)
    write(tmp_path / "a.db", jobs, zone="Australia/Lord_Howe")
    found: list[list[JobRecord]] = []
    try:
        for zone in ("UTC", "America/St_Johns", "Asia/Kathmandu"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            found.append(loaded(read(source_of(tmp_path / "a.db", time_zone="Australia/Lord_Howe"))))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found[0] == found[1] == found[2]
    assert [record_of(job, record.row, 2).started_at for job, record in zip(jobs, found[0], strict=True)] == [
        record.started_at for record in found[0]
    ]
    host_zone = made(create(Options(databases=(str(tmp_path / "a.db"),)), {"TZ": ":Australia/Lord_Howe"}))
    assert loaded(read(host_zone)) == found[0]


def looked_up(source: ArexSource, job_id: JobId, needs: frozenset[SideTable] = NOTHING) -> list[LoadedPage]:
    """What the first database has of a job."""
    return list(first(source).look_up([job_id], request(needs=needs)))


# --- incomplete rows


def test_a_running_job_is_open_and_becomes_a_job(tmp_path: Path, schema: Schema) -> None:
    (job,) = samples(1)
    with Writer(tmp_path / "a.db", schema=schema) as writer:
        writer.accept(job)
        source = source_of(tmp_path / "a.db")
        (page,) = read(source)
        assert (page.jobs, page.skipped) == ([], [])
        (opened,) = page.open
        assert opened.finished_seen_at is None
        (found,) = looked_up(source, JobId(job.job_id))
        assert found.open == [opened]
        writer.finish(job)
        (again,) = reread(source, [opened])
    assert [found.job_id for found in again.jobs] == [job.job_id]
    assert again.closed == [opened.row]


@pytest.mark.parametrize("step", ["aar", "rte", "transfers", "extra"])
def test_a_torn_row_waits_for_its_finished_event(tmp_path: Path, schema: Schema, step: str) -> None:
    (job,) = [job for job in samples(9) if job.local_job_id][:1]
    now = at(job.end_time, 5 * 3600)  # A-REX's queue was long: EndTime says nothing about when the row was written
    with Writer(tmp_path / "a.db", schema=schema) as writer:
        writer.accept(job)
        writer.finish(job, stop_after=step)  # type: ignore[arg-type]  # a parametrized Step
        source = source_of(tmp_path / "a.db")
        (page,) = read(source, now)
        assert (page.jobs, page.skipped) == ([], [])
        assert [row.finished_seen_at for row in page.open] == [Epoch(int(now.timestamp()))]
        later = at(job.end_time, 5 * 3600 + 899)
        (again,) = reread(source, page.open, later)
        assert (again.open, again.closed) == (page.open, [])
        writer.complete(job)
        (whole,) = reread(source, page.open, later, EVERYTHING)
    assert whole.jobs == [record_of(job, page.open[0].row, schema)]


def test_a_row_that_stays_torn_is_taken_after_the_hold_off(tmp_path: Path, schema: Schema) -> None:
    (job,) = samples(1)
    with Writer(tmp_path / "a.db", schema=schema) as writer:
        writer.accept(job)
        writer.finish(job, stop_after="aar")
    source = source_of(tmp_path / "a.db", hold_off_s=600)
    (page,) = read(source, at(job.end_time))
    assert len(loaded(reread(source, page.open, at(job.end_time, 599)))) == 0
    assert len(loaded(reread(source, page.open, at(job.end_time, 600)))) == 1
    # A comparison meets it for the first time, and must not lose it for ever.
    (early,) = compared(source, now=at(job.end_time, DAY_S - 1))
    assert (len(early.jobs), len(early.open)) == (0, 1)
    assert len(loaded(compared(source, now=at(job.end_time, DAY_S)))) == 1


def test_a_row_without_any_events_is_held_off_from_its_end(tmp_path: Path, schema: Schema) -> None:
    ended, future = samples(2)
    future = future.moved_to(int(datetime(2036, 1, 1, tzinfo=UTC).timestamp()))
    write(tmp_path / "a.db", [replace(ended, events=()), replace(future, events=())], schema)
    source = source_of(tmp_path / "a.db")
    now = at(ended.end_time, 899)
    (page,) = read(source, now)
    assert (len(page.jobs), len(page.open)) == (0, 2)
    (page,) = read(source, at(ended.end_time, 900))
    assert [job.job_id for job in page.jobs] == [ended.job_id]
    # An end in the future is waited for no longer than any other.
    (again,) = reread(source, page.open, at(ended.end_time, 1800))
    assert [job.job_id for job in again.jobs] == [future.job_id]


def test_a_job_that_finishes_twice_is_one_row_with_its_newest_values(tmp_path: Path, schema: Schema) -> None:
    (job,) = [job for job in samples(60) if job.transfers and job.local_job_id and job.projects][:1]
    with Writer(tmp_path / "a.db", schema=schema) as writer:
        writer.write(job)
        again = writer.finish_again(job, end_time=job.end_time + 3600, local_job_id="77")
    (found,) = loaded(read(source_of(tmp_path / "a.db"), needs=EVERYTHING))
    assert found == record_of(again, found.row, schema)


# --- several databases


def test_a_migrated_pair_counts_each_job_once(tmp_path: Path) -> None:
    jobs = samples(60)
    old, both, new = jobs[:20], jobs[20:40], jobs[40:]
    accounting = tmp_path / "accounting"
    accounting.mkdir()
    write(accounting / "accounting.db", old + both, schema=1)
    write(accounting / "accounting_v2.db", both + new, schema=2)
    (accounting / "publishing.db").write_bytes(b"ARC's own")
    source = made(create(Options(control_dir=tmp_path, page_rows=7, time_zone=OSLO), {}))
    assert tuple(source.databases()) == (str(accounting / "accounting_v2.db"), str(accounting / "accounting.db"))
    assert [facts.schema for facts in source.facts()] == [2, 1]
    assert [one.name for one in source.sources()] == list(source.databases())
    site = into_store(tmp_path, source)
    better, lesser = source.databases()
    expected = [(better, job.job_id) for job in both + new] + [(lesser, job.job_id) for job in old]
    assert sorted((job.row.database, job.job_id) for job in site.jobs()) == sorted(expected)
    with closing(open_reader(site.path)) as looking:
        assert looking.count(Window()) == len(jobs)
        half = Window(end=Epoch(jobs[30].end_time))
        assert looking.count(half) == sum(job.end_time < jobs[30].end_time for job in jobs)
        # The position of the lesser one moves past what counts elsewhere.
        positions = [looking.position(name) for name in source.databases()]
    assert [position and row_of(position) for position in positions] == [40, 40]


def test_a_job_unfinished_in_the_better_database_counts_in_the_other(tmp_path: Path) -> None:
    running, torn, done = samples(3)
    write(tmp_path / "1.db", [running, torn, done], schema=1)
    with Writer(tmp_path / "2.db", schema=2) as writer:
        for job in (running, torn):
            writer.accept(job)
        writer.finish(torn, stop_after="aar")
    site = into_store(tmp_path, source_of(tmp_path / "1.db", tmp_path / "2.db"), at(torn.end_time))
    found = {job.job_id: Path(job.row.database).name for job in site.jobs()}
    assert found == dict.fromkeys((job.job_id for job in (running, torn, done)), "1.db")
    with closing(open_reader(site.path)) as looking:
        assert looking.count(Window()) == 3


def test_databases_of_one_schema_rank_as_configured(tmp_path: Path) -> None:
    jobs = samples(9)
    write(tmp_path / "b.db", jobs)
    write(tmp_path / "a.db", jobs)
    (tmp_path / "link.db").symlink_to("a.db")
    source = source_of(tmp_path / "b.db", tmp_path / "*.db")
    assert tuple(source.databases()) == (str(tmp_path / "b.db"), str(tmp_path / "a.db"))
    counted = into_store(tmp_path, source).jobs()
    assert [job.row.database for job in counted] == [str(tmp_path / "b.db")] * len(jobs)


def test_patterns_are_expanded_anew_and_must_match(tmp_path: Path) -> None:
    source = source_of(tmp_path / "*.db*")
    with pytest.raises(SourceError, match="matches this pattern"):
        source.databases()
    write(tmp_path / "a.db", samples(1))
    assert len(source.databases()) == 1
    with Writer(tmp_path / "b.db") as writer:  # leaves -wal and -shm about
        writer.write(samples(1)[0])
        assert len(source.databases()) == 2


def test_a_control_directory_without_databases_is_an_error(tmp_path: Path) -> None:
    source = made(create(Options(control_dir=tmp_path), {}))
    with pytest.raises(SourceError, match="has neither"):
        source.databases()


# --- a file that changes


def test_a_replaced_file_is_read_anew(tmp_path: Path, schema: Schema) -> None:
    jobs = samples(30)
    path = tmp_path / "a.db"
    write(path, jobs, schema)
    source = source_of(path)
    position = read(source)[-1].position
    assert position is not None
    path.unlink()
    write(path, jobs[10:], schema)  # rotated: the rest is numbered from 1
    assert not first(source).fits(position)
    pages = list(first(source).read(position, (), request()))
    assert [page.restarted for page in pages] == [True] * 3
    assert [job.job_id for job in loaded(pages)] == [job.job_id for job in jobs[10:]]


def test_names_added_between_pages_are_found(tmp_path: Path, schema: Schema) -> None:
    jobs = samples(20)
    path = tmp_path / "a.db"
    write(path, jobs[:7], schema)
    source = source_of(path)
    with Writer(path) as writer:
        pages = first(source).read(None, (), request())
        next(pages)
        newcomer = replace(jobs[8], user="/CN=somebody new", queue="new", vo="new", fqans=("/new",))
        writer.write(newcomer)
        (page,) = pages
    assert [(job.user, job.queue, job.vo, job.fqans) for job in page.jobs] == [
        ("/CN=somebody new", "new", "new", ("/new",))
    ]


def test_no_transaction_stays_open_between_pages(tmp_path: Path, schema: Schema) -> None:
    path = tmp_path / "a.db"
    jobs = samples(30)
    with Writer(path, schema=schema) as writer:
        writer.write_all(jobs[:20])
        source = source_of(path)
        connection = writer.connection
        connection.execute("PRAGMA busy_timeout = 0")
        found = 0
        for page in first(source).read(None, (), request()):
            found += len(page.jobs)
            if found <= 14:
                writer.write(jobs[20 + found // 7])
                # Blocked (1) or leaving frames behind, if a reader's snapshot were in the way.
                busy, frames, moved = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                assert (busy, frames - moved) == (0, 0)
    assert found == 22


def test_a_rollback_journal_database_can_be_written_between_pages(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    jobs = samples(30)
    with Writer(path, journal="delete") as writer:
        writer.write_all(jobs[:20])
        writer.connection.execute("PRAGMA busy_timeout = 0")
        source = source_of(path)
        for number, _ in enumerate(first(source).read(None, (), request())):
            if number < 3:
                writer.write(jobs[20 + number])
    assert source.facts()[0].journal_mode == "delete"


def test_a_locked_database_is_an_error_and_not_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Writer(path, journal="delete") as writer:
        writer.write(samples(1)[0])
        options = Options(databases=(str(path),))
        impatient = made(ArexSource(options, {}, copies_below=tmp_path, lock_wait_s=0.05))
        writer.connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SourceError, match="locked"):
            read(impatient)
        writer.connection.execute("COMMIT")
        assert len(loaded(read(impatient))) == 1


# --- plans


@pytest.mark.parametrize("optimized", [False, True])
def test_no_question_scans_a_table_or_sorts_it(tmp_path: Path, schema: Schema, optimized: bool) -> None:
    path = tmp_path / "a.db"
    bulk(path, schema, 2000, 1, START, END, optimized=optimized)
    connection = sqlite3.connect(path)
    questions = {
        queries.FROM[schema]: {"first": 5, "limit": 5},
        queries.PART[schema]: {"first": 1, "last": 9},
        queries.PARTS: {"first": 5, "last": 9},
        queries.ENDS: {"rows": "[1]"},
        queries.BY_ROW[schema]: {"rows": "[1]"},
        queries.BY_JOB[schema]: {"job": b"x", "escaped": b"x"},
        queries.JOB_OF_ROW: {"row": 1},
        queries.EVENTFUL: {"rows": "[1]"},
    }
    for which, parameters in ((queries.BETWEEN, {"first": 1, "last": 9}), (queries.LISTED, {"rows": "[1]"})):
        questions[queries.events(which)] = parameters
        for table in ("AuthTokenAttributes", "JobExtraInfo", "RunTimeEnvironments", "DataTransfers"):
            questions[queries.side(table, which)] = parameters
    for column, (_, table, _) in queries.NAMES.items():
        if table in queries.tables(schema):
            questions[queries.names(column)] = {"ids": "[1]"}
    plans = {question: plan(connection, question, values) for question, values in questions.items()}
    plans["looked up"] = plan(connection, queries.of_jobs(schema, 2), [b"x", b"y"])
    plans["finished"] = plan(connection, queries.standing_among(2), [b"x", b"y"])
    connection.close()
    for question, steps in plans.items():
        assert [step for step in steps if step.startswith("SCAN") and "json_each" not in step] == [], question
        if "DISTINCT" not in question:
            assert [step for step in steps if "TEMP B-TREE" in step] == [], question
    assert "AAR_EndTime_IDX" in " ".join(plans[queries.PARTS])
    for which in (queries.BETWEEN, queries.LISTED):
        assert "EventKey" not in " ".join(plans[queries.events(which)])


def plan(connection: sqlite3.Connection, question: str, values: object) -> list[str]:
    rows = connection.execute(f"EXPLAIN QUERY PLAN {question}", values)  # type: ignore[arg-type]  # named or listed
    return [str(row[3]) for row in rows]


# --- hostile rows


def test_hostile_rows_are_jobs_or_skipped_or_open_and_stop_nobody(tmp_path: Path, schema: Schema) -> None:
    cases = hostile(1)
    path = tmp_path / "a.db"
    write(path, cases, schema)
    source = source_of(path, page_rows=50)
    pages = read(source, needs=EVERYTHING)
    rows = every_row(pages)
    assert sorted(one.row.record_id for one in rows) == list(range(1, len(cases) + 1))
    rules = {skipped.rule for page in pages for skipped in page.skipped}
    assert rules == {
        "dangling-reference",
        "negative-duration",
        "no-end-time",
        "no-job-id",
        "not-a-number",
        "undecodable-text",
        "unknown-status",
    }
    for page in pages:
        assert all(skipped.reason and skipped.key for skipped in page.skipped)
    ended = loaded(pages)
    held = [row for page in pages for row in page.open if row.finished_seen_at is not None]
    assert held  # rows with events, and no FINISHED among them
    ended += loaded(reread(source, held, NOW + timedelta(hours=1), EVERYTHING))
    assert loaded(compared(source, needs=EVERYTHING)) == sorted(ended, key=lambda job: job.row)
    again = reread(source, rows, needs=EVERYTHING)
    assert loaded(again) == loaded(pages)
    for page in pages:
        for skipped in page.skipped:
            (found,) = looked_up(source, skipped.job_id)
            assert skipped in found.skipped or skipped.rule == "no-job-id"


@pytest.mark.slow
def test_a_large_page_tells_what_small_ones_tell(tmp_path: Path, schema: Schema) -> None:
    """What stands beside the rows of a large page is read piece by piece."""
    path = tmp_path / "a.db"
    write(path, [*samples(150), *hostile(1), *samples(150, 2)], schema)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DELETE FROM AAR WHERE RecordID % 7 = 3")
    connection.close()
    small, large = (read(source_of(path, page_rows=rows), needs=EVERYTHING) for rows in (3, 10_000))
    assert len(small) > 100
    (whole,) = large
    assert list(whole.jobs) == loaded(small)
    assert list(whole.skipped) == [skipped for page in small for skipped in page.skipped]
    assert list(whole.open) == [opened for page in small for opened in page.open]
    assert len(whole.jobs) > 200
    assert whole.skipped
    assert whole.open
    rows = [OpenRow(row=job.row, finished_seen_at=None) for job in whole.jobs]
    listed = reread(source_of(path, page_rows=10_000), rows, needs=EVERYTHING)
    assert loaded(listed) == list(whole.jobs)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_job_of_a_pair_once_and_in_one_window(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("pair")
    seed = data.draw(st.integers(0, 2**20))
    pool = [replace(job, end_time=job.end_time - job.end_time % 3600) for job in samples(40, seed)]
    states = data.draw(st.lists(st.sampled_from(["done", "torn", "running"]), min_size=1, max_size=40))
    complete: set[str] = set()
    torn = 0
    with Writer(directory / "1.db", schema=1) as old, Writer(directory / "2.db", schema=2) as new:
        for job, state in zip(pool, states, strict=False):
            where = data.draw(st.sampled_from([[old], [new], [old, new]]))
            for writer in where:
                writer.accept(job)
                torn += state == "torn"
                if state != "running":
                    writer.finish(job, stop_after="extra" if state == "torn" else None)
            if state == "done":
                complete.add(job.job_id)
    now = at(pool[0].end_time)  # nothing is old enough to be taken without its FINISHED event
    source = source_of(directory / "1.db", directory / "2.db", page_rows=data.draw(st.integers(1, 9)))
    site = into_store(directory, source, now)
    assert sorted(job.job_id for job in site.jobs()) == sorted(complete)
    cuts = sorted(data.draw(st.lists(st.sampled_from(sorted({job.end_time for job in pool})), max_size=6)))
    bounds = [None, *map(Epoch, cuts), None]
    windows = [Window(start=start, end=end) for start, end in pairwise(bounds)]
    with closing(open_reader(site.path)) as looking:
        opened = [row for name in source.databases() for row in looking.unfinished(name)]
        by_window = [[job.job_id for page in looking.window(window) for job in page.jobs] for window in windows]
        assert [looking.count(window) for window in windows] == list(map(len, by_window))
    assert len({row.row for row in opened}) == len(opened)
    assert sum(row.finished_seen_at is not None for row in opened) == torn
    assert sorted(job_id for found in by_window for job_id in found) == sorted(complete)


# --- failures, in words


def broken(change: Callable[[Path], object], words: str) -> tuple[Callable[[Path], object], str]:
    return change, words


def run_sql(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        connection = sqlite3.connect(path)
        with connection:
            connection.execute(statement)
        connection.close()

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        broken(lambda path: set_schema_version(path, "3"), "schema version 3; versions 1"),
        broken(lambda path: set_schema_version(path, None), "schema version none"),
        broken(run_sql("DROP TABLE JobExtraInfo"), "lacks JobExtraInfo.RecordID"),
        broken(run_sql("ALTER TABLE AAR DROP COLUMN UsedScratch"), "lacks AAR.UsedScratch"),
        broken(run_sql("DROP TABLE AAR"), "no accounting tables"),
    ],
)
def test_what_is_wrong_with_a_database_is_said(tmp_path: Path, change: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "a.db"
    write(path, samples(1))
    change(path)
    with pytest.raises(SourceError, match=words) as told:
        source_of(path).databases()
    assert str(path) in str(told.value)


def test_the_plug_in_is_registered() -> None:
    plugin = source_plugin("arex")
    assert plugin.Options is Options
    with pytest.raises(ValueError, match="give control_dir"):
        Options()
    with pytest.raises(TypeError):
        plugin.create(object(), {})


def test_nothing_is_written_beside_the_databases(tmp_path: Path, schema: Schema) -> None:
    path = tmp_path / "a.db"
    write(path, samples(30), schema)
    before = {entry.name: entry.stat().st_mtime_ns for entry in tmp_path.iterdir()}
    source = source_of(path)
    read(source)
    compared(source, needs=EVERYTHING)
    source.facts()
    source.close()
    assert {entry.name: entry.stat().st_mtime_ns for entry in tmp_path.iterdir()} == before
    assert os.listdir(tmp_path) == ["a.db"]


def test_rows_are_read_the_same_from_a_copy_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a.db", samples(30))
    original = loaded(read(source_of(tmp_path / "a.db")))
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    copied = loaded(read(source_of(tmp_path / "b.db")))
    row = original[0].row
    assert [job._replace(row=row) for job in original] == [job._replace(row=row) for job in copied]
