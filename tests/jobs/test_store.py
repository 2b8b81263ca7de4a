"""The job store: what goes in comes out equal; inserts, changes and nothing; its questions and their plans; its file."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from publisher.jobs import file as store_file
from publisher.jobs import reader
from publisher.jobs.batch import SourceJobs, prune
from publisher.jobs.reader import StoreReader
from publisher.jobs.store import JobStore, open_reader, open_store, scratch_store
from publisher.jobs.tables import schema
from publisher.jobs.tables.comparison import Met
from publisher.model.errors import LedgerError
from publisher.model.job import (
    Epoch,
    JobId,
    JobRecord,
    LoadedPage,
    OpenRow,
    Position,
    ReadRequest,
    RowRef,
    SideTable,
    SkippedJob,
    Transfer,
)
from publisher.model.time import Window
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import create
from tests.arex_databases import Schema, Writer, generate, hostile
from tests.support import strategies
from tests.support.jobs import ENDED, make_job
from tests.support.strategies import examples

START, END = (datetime(2026, month, 1, tzinfo=UTC) for month in (10, 11))
NOW = Epoch(int(datetime(2026, 12, 1, tzinfo=UTC).timestamp()))
CE = "/ce/accounting_v2.db"
_INT64 = 2**63 - 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with closing(open_store(tmp_path / "jobs.db")) as opened:
        yield opened


def job(number: int = 1, **values: Any) -> JobRecord:
    """Return a job of row `number` of the CE."""
    given = {"row": RowRef(CE, number), "job_id": JobId(f"job{number}"), "local_id": str(1000 + number)}
    return make_job(**{**given, **values})


def skipped(number: int = 1, **values: Any) -> SkippedJob:
    row = SkippedJob(RowRef(CE, number), JobId(f"job{number}"), "", Epoch(ENDED), "no-end-time", "EndTime is 'x'", 7)
    return row._replace(**values)


def put(store: JobStore, *jobs: JobRecord, **page: Any) -> None:
    store.put([LoadedPage(CE, jobs, **page)])


def all_of(store: StoreReader) -> list[JobRecord]:
    return [one for page in store.changed(0, store.state().last_change) for one in page.jobs]


def changes(store: StoreReader, after: int = 0) -> list[tuple[int, str, str]]:
    pages = list(store.changed(after, store.state().last_change))
    return [(at, one.job_id, one.local_id) for page in pages for at, one in zip(page.changes, page.jobs, strict=True)]


def has_changed(store: JobStore, after: int) -> bool:
    return any(page.jobs or page.skipped for page in store.changed(after, store.state().last_change))


class TestRoundTrip:
    @settings(max_examples=examples(300))
    @given(st.lists(strategies.jobs, min_size=1, max_size=5))
    @pytest.mark.slow
    def test_what_goes_in_comes_out_equal(self, drawn: Sequence[JobRecord]) -> None:
        by_run = {one.run_key: one for one in map(in_64_bits, drawn) if has_key(one)}
        with closing(scratch_store()) as store:
            for one in by_run.values():
                store.put([LoadedPage(one.row.database, [one])])
            out = all_of(store)
        assert list(map(repr, out)) == list(map(repr, by_run.values()))
        assert out == list(by_run.values())

    @pytest.mark.parametrize("layout", [1, 2])
    def test_every_row_of_the_test_databases_comes_out_equal(self, tmp_path: Path, layout: Schema) -> None:
        path = tmp_path / "accounting.db"
        with Writer(path, schema=layout, zone="UTC") as arex:
            arex.write_all([*generate(3, 200, START, END), *hostile(3)])
        with closing(create(Options(databases=(str(path),)), {})) as source, closing(scratch_store()) as store:
            pages = list(source.sources()[0].read(None, (), ReadRequest(frozenset(SideTable), NOW)))
            store.put(pages)
            found = list(store.changed(0, store.state().last_change))
        there = [one for page in pages for one in page.jobs]
        assert len(there) > 200
        assert [repr(one) for page in found for one in page.jobs] == list(map(repr, there))
        aside = {one for page in pages for one in page.skipped}
        assert aside, "no row was set aside"
        assert {one for page in found for one in page.skipped} == aside

    def test_rare_values_and_bytes_that_are_no_text(self, store: JobStore) -> None:
        odd = job(
            transfers=(Transfer("upload", "gsiftp://x/\udcff", 7, Epoch(1), None),),
            runtime_environments=("ENV/A", ""),
            quantities=(("mem", 4096),),
            gpu_models=(("a100", 2), ("", 1)),
            hosts=("[2001:db8::1]",),
            projects=("a", "\udcfe"),
            job_name="\udcff",
            user="/CN=\udc80",
        )
        plain = job(2, hosts=("\udcff",), projects=())
        put(store, odd, plain)
        assert all_of(store) == [odd, plain]


def has_key(one: JobRecord) -> bool:
    """Whether its ids are bytes, as those of every source are."""
    with suppress(UnicodeEncodeError):
        return bool(one.run_key)
    return False


def in_64_bits(one: JobRecord) -> JobRecord:
    """Return a job with numbers that SQLite holds, as those of every source are."""
    values: dict[str, Any] = {
        name: max(-_INT64, min(value, _INT64)) for name, value in one._asdict().items() if type(value) is int
    }
    return one._replace(**values)


class TestChanges:
    def test_what_is_new_or_another_gets_the_next_number_and_the_rest_none(self, store: JobStore) -> None:
        put(store, job(1), job(2))
        put(store, job(1), job(2, wall_s=9), job(3))
        assert [name for _, name, _ in changes(store)] == ["job1", "job2", "job3"]
        before = store.state().last_change
        put(store, job(1), job(2, wall_s=9), job(3))
        assert changes(store, before) == []
        assert all_of(store)[1].wall_s == 9

    @pytest.mark.parametrize("name", [name for name in JobRecord._fields if name not in ("row", "job_id", "local_id")])
    def test_any_value_makes_a_change_and_any_may_be_told_anew(self, store: JobStore, name: str) -> None:
        first = job()
        other = first._replace(**{name: another(name, getattr(first, name))})
        put(store, first)
        put(store, other)
        expected = [first, other] if name == "submitted_at" else [other]
        assert all_of(store) == expected
        assert has_changed(store, 1)

    def test_a_row_that_moved_is_no_change(self, store: JobStore) -> None:
        put(store, job(1))
        store.put([LoadedPage("/ce/new.db", [job(1, row=RowRef("/ce/new.db", 70))])])
        assert [one.row for one in all_of(store)] == [RowRef("/ce/new.db", 70)]
        assert not has_changed(store, 1)

    def test_a_run_under_another_local_id_is_another_one(self, store: JobStore) -> None:
        first, again = job(1), job(1, local_id="77", ended_at=Epoch(ENDED + 60))
        put(store, first)
        put(store, again)
        assert all_of(store) == [first, again]
        window = Window(start=Epoch(ENDED - 100), end=Epoch(ENDED + 100))
        assert [one for page in store.window(window, current=True) for one in page.jobs] == [again]
        assert [one for page in store.window(window) for one in page.jobs] == [first, again]

    def test_the_number_of_what_was_deleted_is_not_given_again(self, store: JobStore) -> None:
        put(store, job(1), job(2)._replace(ended_at=Epoch(ENDED - 100)))
        assert prune(store, ENDED - 50, ENDED) == 1
        assert all_of(store) == [job(1)]
        put(store, job(3))
        assert [(at, name) for at, name, _ in changes(store, 2)] == [(3, "job3")]

    def test_what_ended_in_closed_months_is_not_stored(self, store: JobStore) -> None:
        store.begin_at(ENDED)
        put(store, job(1), job(2)._replace(ended_at=Epoch(ENDED - 100)))
        part = SourceJobs(store, "hpc")
        with part.transaction():
            part.put([job(3), job(4)._replace(ended_at=Epoch(ENDED - 1))])
        assert [one.job_id for one in all_of(store)] == ["job1", "job3"]
        assert (store.passed_over, store.begins()) == (2, ENDED)


def another(name: str, value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case tuple():
            special = {
                "transfers": (Transfer("upload", "u", None, None, None),),
                "attributes": (("a", "b"),),
                "quantities": (("mem", 1),),
                "gpu_models": (("a100", 1),),
            }
            return special.get(name, (*value, "more"))
        case _:
            return 5


class TestMarks:
    def test_each_transaction_that_changes_jobs_makes_one(self, store: JobStore) -> None:
        put(store, job(1))
        first = store.state().mark
        put(store, job(1))
        assert store.state().mark == first
        put(store, job(2), skipped=[skipped(3)])
        second = store.state().mark
        assert second != first
        assert store.knows(first)
        assert store.knows(second)
        assert not store.knows("")

    def test_an_older_store_knows_none_of_later_changes(self, tmp_path: Path) -> None:
        path, backup = tmp_path / "jobs.db", tmp_path / "backup.db"
        with closing(open_store(path)) as store, closing(sqlite3.connect(backup)) as copy:
            put(store, job(1))
            store._connection.backup(copy)
            put(store, job(2))
            mark = store.state().mark
        with closing(open_store(backup)) as older:
            put(older, job(3))
            assert older.state().last_change == 2
            assert not older.knows(mark)
            assert older.is_behind([mark])
            older.begin_after([mark])
            assert not older.is_behind([mark])
            assert not older.knows(mark)


class TestSetAside:
    def test_a_row_that_is_no_job_is_found_until_it_is_one(self, store: JobStore) -> None:
        put(store, job(2), skipped=[skipped(1)])
        (page,) = store.changed(0, store.state().last_change)
        assert (page.jobs, page.skipped) == ((job(2),), (skipped(1),))
        assert store.skipped_at([RowRef(CE, 1)]) == [skipped(1)]
        put(store, job(1))
        (page,) = store.changed(0, store.state().last_change)
        assert (page.jobs, page.skipped) == ((job(2), job(1)), ())

    def test_it_is_a_change_only_where_it_is_another(self, store: JobStore) -> None:
        put(store, skipped=[skipped(1)])
        put(store, skipped=[skipped(1)])
        assert not has_changed(store, 1)
        put(store, skipped=[skipped(1, reason="EndTime is 'y'")])
        assert has_changed(store, 1)

    def test_ids_that_are_not_text_pass(self, store: JobStore) -> None:
        bad = skipped(1, job_id=JobId("\udcff"), local_id="\udc80", ended_at=None, reason="job_id is '\udcff'")
        put(store, skipped=[bad])
        assert store.skipped_at([bad.row]) == [bad]

    def test_a_job_whose_row_became_none_is_gone(self, store: JobStore) -> None:
        put(store, job(1))
        put(store, skipped=[skipped(1, local_id="1001", submitted_at=job(1).submitted_at)])
        assert [page.jobs for page in store.window(Window(), current=True)] == [()]
        assert all_of(store) == [job(1)]

    def test_rows_of_a_window_come_with_the_page_in_which_they_ended(self, store: JobStore) -> None:
        many = [job(number, ended_at=Epoch(ENDED + number)) for number in range(1, reader.PAGE_JOBS + 3)]
        late, early, outside = (skipped(5000 + at, ended_at=Epoch(ENDED + at)) for at in (501, 3, 900))
        put(store, *many, skipped=[late, early, outside])
        pages = list(store.window(Window(start=Epoch(ENDED), end=Epoch(ENDED + 800))))
        assert [len(page.jobs) for page in pages] == [reader.PAGE_JOBS, 2]
        assert [page.skipped for page in pages] == [(early,), (late,)]


def lose(store: JobStore, sources: Sequence[str], window: Window, met: Met) -> None:
    """Mark what was not met."""
    for gone in store.not_met(sources, window, met):
        store.mark_gone(gone, (), met)
    store.forget_skipped(sources, window, met)


class TestGone:
    def test_what_was_not_met_is_marked_and_stays(self, store: JobStore) -> None:
        put(store, job(1), job(2), skipped=[skipped(3)])
        met = Met()
        store.put([LoadedPage(CE, [job(2)])], met)
        lose(store, [CE], Window(), met)
        assert [one.job_id for page in store.window(Window(), current=True) for one in page.jobs] == ["job2"]
        assert all_of(store) == [job(1), job(2)]
        assert store.skipped_at([RowRef(CE, 3)]) == []
        put(store, job(1))
        assert len(next(store.window(Window(), current=True)).jobs) == 2
        assert not has_changed(store, 3)

    def test_only_of_the_window_and_the_sources_that_were_looked_through(self, store: JobStore) -> None:
        put(store, job(1), job(2, ended_at=Epoch(ENDED + 1000)))
        store.put([LoadedPage("hpc", [job(3, row=RowRef("hpc", 1))])])
        lose(store, [CE], Window(start=Epoch(ENDED + 500)), Met())
        assert [one.job_id for page in store.window(Window(), current=True) for one in page.jobs] == ["job1", "job3"]

    def test_a_row_that_waits_for_the_rest_of_it_is_there(self, store: JobStore) -> None:
        put(store, job(1), job(2))
        met = Met()
        store.put([LoadedPage(CE, open=[OpenRow(RowRef(CE, 1), Epoch(5)), OpenRow(RowRef(CE, 2), None)])], met)
        lose(store, [CE], Window(), met)
        assert [one.job_id for page in store.window(Window(), current=True) for one in page.jobs] == ["job1"]


class TestPositions:
    def test_a_page_its_position_and_its_unfinished_rows_are_one_transaction(self, store: JobStore) -> None:
        at = Position("2 job2")
        put(store, job(1), open=[OpenRow(RowRef(CE, 2), None)], position=at)
        assert (store.position(CE), store.unfinished(CE)) == (at, [OpenRow(RowRef(CE, 2), None)])
        unknown: Any = object()
        with pytest.raises(LedgerError):
            put(store, job(3), open=[OpenRow(RowRef(CE, unknown), None)], position=Position("3 job3"))
        assert store.position(CE) == at
        assert all_of(store) == [job(1)]

    def test_the_first_time_that_a_row_was_seen_finished_stays(self, store: JobStore) -> None:
        row = RowRef(CE, 2)
        for seen in (None, Epoch(5), Epoch(9), None):
            put(store, open=[OpenRow(row, seen)])
        assert store.unfinished(CE) == [OpenRow(row, Epoch(5))]
        put(store, closed=[row])
        assert store.unfinished(CE) == []

    def test_a_source_is_incomplete_until_it_was_loaded_to_its_end(self, store: JobStore) -> None:
        put(store, job(1))
        assert store.incomplete() == {CE}
        store.complete(CE)
        assert store.incomplete() == frozenset()


class TestQuestions:
    def test_changes_come_in_pages_and_none_beyond_the_last_asked_for(self, store: JobStore) -> None:
        many = [job(number) for number in range(1, 2 * reader.PAGE_JOBS + 8)]
        put(store, *many)
        pages = list(store.changed(3, 2 * reader.PAGE_JOBS + 5))
        assert [one for page in pages for one in page.jobs] == many[3 : 2 * reader.PAGE_JOBS + 5]
        assert [page.upto for page in pages] == [503, 1003, 1005]

    def test_a_window_goes_on_within_a_second(self, store: JobStore) -> None:
        many = [job(number) for number in range(1, reader.PAGE_JOBS + 3)]
        put(store, *many, job(9000, ended_at=Epoch(ENDED + 1)))
        window = Window(start=Epoch(ENDED), end=Epoch(ENDED + 1))
        first, second = store.window(window)
        assert (first.jobs + second.jobs) == tuple(many)
        (rest,) = store.window(window, (Epoch(ENDED), 500))
        assert rest.jobs == tuple(many[500:])
        assert store.count(window) == len(many)

    def test_a_snapshot_stays_as_it_was(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        with closing(open_store(path)) as store:
            put(store, job(1))
            with closing(open_reader(path)) as looking, looking.snapshot():
                assert all_of(looking) == [job(1)]
                put(store, job(2))
                assert all_of(looking) == [job(1)]

    def test_runs_are_found_by_the_id_of_their_job(self, store: JobStore) -> None:
        put(store, job(1), job(2), job(1, local_id="7"))
        assert store.of_jobs([JobId("job1"), JobId("nobody")]) == [job(1), job(1, local_id="7")]
        assert store.of_jobs([]) == []

    def test_runs_are_found_by_their_keys(self, store: JobStore) -> None:
        put(store, *map(job, range(1, 405)))
        wanted = [job(number).run_key for number in range(1, 500, 2)]
        assert store.of_runs(wanted) == [job(number) for number in range(1, 405, 2)]
        assert store.of_runs([]) == []

    def test_ahead_counts(self, store: JobStore) -> None:
        put(store, *(job(number, ended_at=Epoch(ENDED + number)) for number in range(1, 6)))
        assert store.ahead(2, Window(start=Epoch(ENDED)), Epoch(ENDED + 4)) == (3, 1, ENDED + 3)
        assert store.ahead(5, Window(), None) == (0, 0, None)


def questions() -> list[str]:
    """Return every statement of the reader, with one id where there may be several."""
    found = [
        value for value in vars(reader).values() if isinstance(value, str) and "SELECT" in value and "FROM" in value
    ]
    by_name = [f"{reader._JOB} WHERE {one.format('?, ?')} ORDER BY change" for one in (reader._DIGESTS, reader._RUNS)]
    small = {
        *(reader._STATE, reader._SOURCES, reader._INCOMPLETE, reader._FIRST_LOADS),
        *(reader._JOB, reader.SKIPPED_ROWS, reader._PRUNED_AT, reader._FIRST_UNDECIDED, reader._BEGINS),
    }
    return [*(one for one in found if one not in small), *by_name]


@pytest.mark.parametrize("question", questions())
def test_every_question_has_an_index_that_fits(store: JobStore, question: str) -> None:
    """SQLite chooses by the shape of a question alone: nobody runs ANALYZE."""
    names = re.findall(r":(\w+)", question)
    values: Any = dict.fromkeys(names, 1) if names else (b"",) * question.count("?")
    plan = [row[3] for row in store._connection.execute(f"EXPLAIN QUERY PLAN {question}", values)]
    scans = [step for step in plan if step.startswith("SCAN") and step != "SCAN CONSTANT ROW"]
    assert not scans, plan
    pages = "ORDER BY ended_at, change LIMIT" in question or "ORDER BY change LIMIT" in question
    assert not (pages and any("TEMP B-TREE" in step for step in plan)), plan


class TestFile:
    def test_it_is_private_and_lies_beside_the_ledger(self, tmp_path: Path) -> None:
        path = store_file.store_path(tmp_path / "state" / "publishing.db")
        assert path == tmp_path / "state" / "jobs.db"
        open_store(path).close()
        assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert store_file.store_path(tmp_path / "other.db").name == "other-jobs.db"

    @pytest.mark.parametrize("harm", ["text", "cut", "page", "version", "other", "tables"])
    def test_one_that_cannot_be_read_is_begun_anew(self, tmp_path: Path, harm: str) -> None:
        path = tmp_path / "jobs.db"
        with closing(open_store(path)) as store:
            put(store, *(job(number) for number in range(1, 400)))
            mark = store.state().mark
        damage(path, harm)
        with closing(open_reader(path)) as looking:
            assert not looking.knows(mark)
        with closing(open_store(path)) as store:
            state = store.state()
            assert (store.knows(mark), state.last_change, all_of(store)) == (False, 0, [])
            put(store, job(1))

    def test_damage_that_is_met_later_is_an_error_that_says_what_happens(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        with closing(open_store(path)) as store:
            put(store, *(job(number) for number in range(1, 4000)))
        with path.open("r+b") as file:
            for at in range(100, path.stat().st_size // 4096, 3):
                file.seek(at * 4096)
                file.write(os.urandom(4096))
        with closing(open_store(path)) as store, pytest.raises(LedgerError, match="is a cache"):
            put(store, *(job(number, wall_s=3) for number in range(1, 4000)))
        assert not path.exists()

    def test_one_process_loads_at_a_time(self, tmp_path: Path) -> None:
        path = tmp_path / "state" / "jobs.db"
        with store_file.loader_lock(path) as first, store_file.loader_lock(path) as second:
            assert (first, second) == (True, False)
        with store_file.loader_lock(path) as again:
            assert again

    def test_without_one_nothing_is_there_and_nothing_is_made(self, tmp_path: Path) -> None:
        with closing(open_reader(tmp_path / "no" / "jobs.db")) as looking:
            assert all_of(looking) == []
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_is_not_ours_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(LedgerError, match="state directory"):
            open_store(tmp_path / "file" / "jobs.db")


def damage(path: Path, harm: str) -> None:
    content = path.read_bytes()
    match harm:
        case "text":
            path.write_bytes(b"this is no database, and longer than a header is" * 100)
        case "cut":
            path.write_bytes(content[:5000])
        case "page":
            path.write_bytes(content[:100] + os.urandom(4096) + content[4196:])
        case _:
            statements = {
                "version": "PRAGMA user_version = 99",
                "other": "PRAGMA application_id = 7",
                "tables": "DROP TABLE store",
            }
            with closing(sqlite3.connect(path)) as database:
                database.execute(statements[harm])


@pytest.mark.slow
def test_a_job_takes_less_than_400_bytes(tmp_path: Path) -> None:
    path = tmp_path / "accounting.db"
    with Writer(path, schema=2, zone="UTC") as arex:
        arex.write_all(generate(5, 6000, START, END))
    with (
        closing(create(Options(databases=(str(path),)), {})) as source,
        closing(open_store(tmp_path / "jobs.db")) as store,
    ):
        store.put(list(source.sources()[0].read(None, (), ReadRequest(frozenset(), NOW))))
        jobs = len(all_of(store))
    assert jobs > 5000
    assert (tmp_path / "jobs.db").stat().st_size < 400 * jobs


def test_every_column_has_a_meaning_or_is_named_as_in_a_job() -> None:
    lines = [line for line in schema.TABLES.splitlines() if re.match(r"    \w+ +(TEXT|BLOB|INTEGER|BOOLEAN)", line)]
    assert len(lines) > 60
    plain = {*JobRecord._fields, *SkippedJob._fields, "source", "record_id", "id", "digest"}
    unexplained = [line.split()[0] for line in lines if "--" not in line]
    assert set(unexplained) - plain - {"person", "account", "place"} == set()
