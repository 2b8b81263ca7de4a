"""Sources loaded into the job store: what is new, unfinished, restarted, purged or renumbered, and kills at any moment."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from publisher.jobs.store import open_reader, open_store
from publisher.model.errors import SourceError
from publisher.model.job import Epoch, JobRecord, ReadRequest, SideTable
from publisher.model.time import Window
from publisher.publishing.databases.load import Loading, LoadOptions
from publisher.sources.arex.options import Options
from publisher.sources.arex.source import ArexSource, create
from publisher.sources.base import JobSource
from tests.arex_databases import SIDE_TABLES, SampleJob, Writer, generate, hostile
from tests.model_receivers.world import Ce, ended_again, job_of

START, END = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 2, tzinfo=UTC)
PLAIN = LoadOptions(frozenset(), "as it is")


class Site:
    """CEs with their accounting databases, and the store that they are loaded into."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.ce = Ce(folder, "ce1", 2)
        self.now = NOW
        self.source = create(Options(control_dir=self.ce.control, page_rows=7), {})

    def load(self, options: LoadOptions = PLAIN, stopped: Callable[[], bool] = lambda: False) -> list[str]:
        with closing(open_store(self.path)) as store:
            return list(Loading(store, self.source, options, self.now, stopped).run())

    def jobs(self, *, current: bool = False) -> list[JobRecord]:
        with closing(open_reader(self.path)) as looking:
            return [one for page in looking.window(Window(), current=current) for one in page.jobs]

    def changed(self, after: int) -> list[tuple[str, str]]:
        with closing(open_reader(self.path)) as looking:
            pages = looking.changed(after, looking.state().last_change)
            return [(one.job_id, one.local_id) for page in pages for one in page.jobs]

    def last_change(self) -> int:
        with closing(open_reader(self.path)) as looking:
            return looking.state().last_change

    def expect(self, *jobs: SampleJob, current: bool = False) -> None:
        found = [(one.job_id, one.local_id, one.ended_at, one.wall_s) for one in self.jobs(current=current)]
        wanted = [(one.job_id, str(one.local_job_id), one.end_time, one.wall_s) for one in jobs]
        assert sorted(found) == sorted(wanted)

    def later(self, **passed: float) -> None:
        self.now += timedelta(**passed)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.source.close()


def finished(number: int, *, hours_ago: float = 24 * 3, **values: Any) -> SampleJob:
    end = int((NOW - timedelta(hours=hours_ago)).timestamp())
    return job_of(number=number, ce="ce1", end=end, wall_s=100 + number, cpu_s=10, user="ann", **values)


class TestRounds:
    def test_what_is_new_is_loaded_once(self, site: Site) -> None:
        many = [finished(number) for number in range(20)]
        site.ce.insert(many)
        assert site.load() == []
        site.expect(*many)
        before = site.last_change()
        more = finished(50)
        site.ce.insert([more])
        site.load()
        assert site.changed(before) == [(more.job_id, "1050")]
        site.expect(*many, more)

    def test_a_load_with_nothing_new_changes_nothing(self, site: Site) -> None:
        site.ce.insert([finished(number) for number in range(20)])
        site.load()
        content = site.path.read_bytes()
        for every_row in (False, True):
            site.load(PLAIN._replace(every_row=every_row))
        assert site.last_change() >= 20
        assert site.changed(20) == []
        assert len(site.path.read_bytes()) == len(content)

    def test_a_job_in_progress_is_loaded_when_it_is_over(self, site: Site) -> None:
        job = finished(1)
        with Writer(site.ce.path, zone="UTC") as arex:
            arex.accept(job)
        site.load()
        site.expect()
        with Writer(site.ce.path, zone="UTC") as arex:
            arex.finish(job)
        site.load()
        site.expect(job)

    def test_a_run_that_was_restarted_is_found_within_a_day_and_the_first_one_stays(self, site: Site) -> None:
        first = finished(1)
        site.ce.insert([first, finished(2)])
        site.load()
        again = ended_again(first, first.end_time + 3600, local_job_id="77", wall_s=9)
        site.ce.again(again)
        site.load()
        site.expect(first, finished(2))
        site.later(hours=24)
        site.load()
        site.expect(first, again, finished(2))
        site.expect(again, finished(2), current=True)

    def test_a_run_that_was_restarted_is_found_when_another_source_is_forgotten(self, site: Site) -> None:
        first = finished(1)
        site.ce.insert([first, finished(2)])
        site.load()
        again = ended_again(first, first.end_time + 3600, local_job_id="77", wall_s=9)
        site.ce.again(again)
        with closing(open_store(site.path)) as store:
            store.forget("/ce/that/is/retired.db")
        site.load()
        site.expect(first, again, finished(2))
        site.expect(again, finished(2), current=True)

    def test_changed_usage_is_a_change_of_the_run(self, site: Site) -> None:
        site.ce.insert([finished(1), finished(2)])
        site.load()
        before = site.last_change()
        other = replace(finished(1), wall_s=777)
        site.ce.correct(other)
        site.load(PLAIN._replace(every_row=True))
        site.expect(other, finished(2))
        assert site.changed(before) == [(other.job_id, "1001")]

    def test_purged_rows_stay_and_are_marked(self, site: Site) -> None:
        old, young = finished(1, hours_ago=24 * 200), finished(2)
        site.ce.insert([old, young, finished(3)])
        site.load()
        site.ce.purge([old.job_id, young.job_id])
        site.later(hours=24)
        site.load()
        site.expect(old, young, finished(3))
        site.expect(old, finished(3), current=True)  # of the last three months only
        site.load(PLAIN._replace(every_row=True))
        site.expect(finished(3), current=True)

    def test_renumbered_rows_are_the_same_jobs(self, site: Site) -> None:
        many = [finished(number) for number in range(30)]
        site.ce.insert(many)
        site.load()
        site.ce.purge([many[4].job_id])
        site.ce.renumber(random.Random(3))
        site.load()
        site.expect(*many)
        site.expect(*many[:4], *many[5:], current=True)
        assert site.changed(30) == []

    def test_the_same_jobs_in_a_migrated_database_are_no_others(self, tmp_path: Path) -> None:
        site = Site(tmp_path)
        site.ce = Ce(tmp_path, "old", 1)
        with closing(create(Options(control_dir=site.ce.control, page_rows=7), {})) as source:
            site.source = source
            many = [finished(number) for number in range(10)]
            site.ce.insert(many)
            site.load()
            site.ce.migrate()
            site.load()
            site.expect(*many)
            assert {one.row.database for one in site.jobs()} == {str(site.ce.path)}

    def test_a_row_without_sense_is_set_aside_until_it_is_mended(self, site: Site) -> None:
        site.ce.insert([finished(1), finished(2)])
        site.ce._execute("UPDATE AAR SET EndTime = 'soon' WHERE JobID = ?", [(finished(1).job_id,)])
        site.load()
        site.expect(finished(2))
        with closing(open_reader(site.path)) as looking:
            (page,) = looking.changed(0, looking.state().last_change)
            (aside,) = page.skipped
            assert aside.job_id == finished(1).job_id
        site.ce._execute("UPDATE AAR SET EndTime = ? WHERE JobID = ?", [(finished(1).end_time, finished(1).job_id)])
        site.load(PLAIN._replace(every_row=True))
        site.expect(finished(1), finished(2))
        with closing(open_reader(site.path)) as looking:
            assert looking.skipped_at([aside.row]) == []

    def test_side_tables_are_loaded_where_a_format_needs_them(self, site: Site) -> None:
        with Writer(site.ce.path, zone="UTC") as arex:
            arex.write_all(generate(2, 30, START, END))
        site.load()
        assert not any(one.transfers for one in site.jobs())
        before = site.last_change()
        site.load(PLAIN._replace(needs=frozenset({SideTable.TRANSFERS})))
        with_transfers = [one for one in site.jobs() if one.transfers]
        assert with_transfers
        assert {job_id for job_id, _ in site.changed(before)} == {one.job_id for one in with_transfers}
        site.load()  # the format is gone: nothing is taken away
        assert [one for one in site.jobs() if one.transfers] == with_transfers

    def test_other_options_of_a_source_read_it_again(self, site: Site) -> None:
        site.ce.insert([finished(1)])
        site.load()
        site.ce.correct(replace(finished(1), wall_s=777))
        site.load()
        site.expect(finished(1))
        site.load(PLAIN._replace(read_as="otherwise"))
        site.expect(replace(finished(1), wall_s=777))


class TestTrouble:
    def test_one_that_is_stopped_goes_on_where_it_was(self, site: Site) -> None:
        many = [finished(number) for number in range(40)]
        site.ce.insert(many)
        looks = iter([False, False, True])
        site.load(stopped=lambda: next(looks, True))
        with closing(open_reader(site.path)) as looking:
            assert looking.incomplete() == {str(site.ce.path)}
        assert 0 < len(site.jobs()) < len(many)
        site.load()
        site.expect(*many)
        with closing(open_reader(site.path)) as looking:
            assert looking.incomplete() == frozenset()

    def test_what_was_read_before_a_failure_is_there(self, site: Site) -> None:
        many = [finished(number) for number in range(40)]
        site.ce.insert(many)
        source = Instead(site.source, lambda one: Failing(one, after=3))
        with closing(open_store(site.path)) as store:
            assert Loading(store, source, PLAIN, NOW, lambda: False).run() == ["the disk refused"]
        assert len(site.jobs()) == 21
        site.load()
        site.expect(*many)

    @pytest.mark.parametrize(
        "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 24))]
    )
    def test_killed_at_any_moment_it_is_equal_afterwards(self, tmp_path: Path, seed: int) -> None:
        chance = random.Random(seed)
        killed, whole = (Site(make(tmp_path / name)) for name in ("killed", "whole"))
        for at in (killed, whole):
            with Writer(at.ce.path, zone="UTC") as arex:
                arex.write_all([*generate(seed, 60, START, END), *hostile(seed)])
        for _ in range(10):
            kill_a_load(killed, chance.randrange(1, 90))
        with Writer(killed.ce.path, zone="UTC") as arex, Writer(whole.ce.path, zone="UTC") as other:
            for one in generate(seed + 1000, 20, START, END):
                again = replace(one, job_id=f"again{one.job_id}")
                arex.write(again)
                other.write(again)
        killed.load()
        whole.load()
        assert content(killed) == content(whole)

    def test_databases_that_are_replaced_meanwhile_lose_no_job_and_mark_none(self, tmp_path: Path) -> None:
        """A rotation while they are looked through takes jobs from one that was read into one that was not."""
        jobs = [finished(number) for number in range(40)]
        paths = [tmp_path / name for name in ("accounting.db", "archive.db")]
        for path, there in zip(paths, (jobs[:30], jobs[20:]), strict=True):
            with Writer(path, schema=2, zone="UTC") as arex:
                arex.write_all(there)
        site = Site(tmp_path)
        site.source = create(Options(databases=tuple(map(str, paths)), page_rows=7), {})
        rotated = tmp_path / "rotated.db"
        with Writer(rotated, schema=2, zone="UTC") as arex:
            arex.write_all(jobs[:20])
        site.load()
        looks = iter([False] * 3)

        def stopped() -> bool:
            if next(looks, None) is None and rotated.exists():
                rotated.replace(paths[0])
            return False

        site.load(PLAIN._replace(every_row=True), stopped)
        assert not rotated.exists()
        site.expect(*jobs, current=True)
        site.load(PLAIN._replace(every_row=True))
        site.expect(*jobs, current=True)


class TestRule18:
    """The same job in two files: where it is finished; of two, the later end; of equal ones, the file named first."""

    @pytest.fixture
    def pair(self, tmp_path: Path) -> Iterator[Pair]:
        made = Pair(tmp_path)
        yield made
        made.site.source.close()

    def test_rule_18_of_equal_ends_the_file_named_first_counts(self, pair: Pair) -> None:
        mine, theirs = finished(1), replace(finished(1), wall_s=5)
        pair.write("a.db", [mine])
        pair.write("b.db", [theirs])
        for _ in range(3):
            pair.load()
            assert pair.counted() == [("a.db", mine.end_time, mine.wall_s)]
        pair.name("b.db", "a.db")
        pair.load(every_row=True)
        assert pair.counted() == [("b.db", mine.end_time, 5)]

    def test_rule_18_of_two_ends_the_later_one_counts_wherever_it_is(self, pair: Pair) -> None:
        early, late = finished(1, hours_ago=50), finished(1, hours_ago=40)
        late = replace(early, end_time=late.end_time, events=late.events, wall_s=9)
        pair.write("a.db", [early])
        pair.write("b.db", [late])
        for _ in range(3):
            pair.load()
            assert pair.counted() == [("b.db", late.end_time, 9)]

    def test_rule_18_a_file_in_which_it_runs_has_no_say(self, pair: Pair) -> None:
        job = finished(1)
        with Writer(pair.folder / "a.db", schema=2, zone="UTC") as arex:
            arex.accept(job)
        pair.write("b.db", [job])
        pair.load()
        assert pair.counted() == [("b.db", job.end_time, job.wall_s)]
        with Writer(pair.folder / "a.db", schema=2, zone="UTC") as arex:
            arex.finish(job)
        pair.load()
        assert pair.counted() == [("a.db", job.end_time, job.wall_s)]

    def test_rule_18_the_loser_never_writes_and_no_change_is_made(self, pair: Pair) -> None:
        jobs = [finished(number) for number in range(20)]
        pair.write("a.db", jobs)
        pair.write("b.db", [replace(one, wall_s=1) for one in jobs])
        pair.load()
        before = pair.site.last_change()
        pair.site.later(days=2)
        pair.load()
        pair.load(every_row=True)
        assert pair.site.changed(before) == []
        assert {name for name, _, _ in pair.counted()} == {"a.db"}

    def test_rule_18_another_run_in_a_lesser_file_is_gone_and_back_when_the_better_one_is_purged(
        self, pair: Pair
    ) -> None:
        first = finished(1, hours_ago=60)
        again = ended_again(first, first.end_time + 3600, local_job_id="77", wall_s=9)
        pair.write("b.db", [first])
        pair.load()
        pair.write("a.db", [again])
        pair.load()
        assert pair.counted() == [("a.db", again.end_time, 9)]
        with closing(sqlite3.connect(pair.folder / "a.db")) as connection, connection:
            connection.execute("DELETE FROM AAR")
        pair.site.later(days=2)
        pair.load()
        assert pair.counted() == [("b.db", first.end_time, first.wall_s)]
        assert len(pair.site.jobs()) == 2

    def test_rule_18_a_row_without_sense_is_set_aside_only_where_no_other_file_has_its_job(self, pair: Pair) -> None:
        pair.write("a.db", [finished(1)])
        pair.write("b.db", [finished(1), finished(2)])
        with closing(sqlite3.connect(pair.folder / "b.db")) as connection, connection:
            connection.execute("UPDATE AAR SET UsedWalltime = -5")
        pair.load()
        assert [name for name, _, _ in pair.counted()] == ["a.db"]
        with closing(open_reader(pair.site.path)) as looking:
            (page,) = looking.changed(0, looking.state().last_change)
            assert [one.job_id for one in page.skipped] == [finished(2).job_id]

    def test_rule_18_a_copy_that_is_named_in_the_place_of_a_file_takes_its_jobs_over(self, pair: Pair) -> None:
        jobs = [finished(number) for number in range(20)]
        pair.write("a.db", jobs)
        pair.load()
        before = pair.site.last_change()
        (pair.folder / "moved.db").write_bytes((pair.folder / "a.db").read_bytes())
        pair.name("moved.db")
        pair.load()
        assert {name for name, _, _ in pair.counted()} == {"moved.db"}
        assert len(pair.counted()) == len(jobs)
        assert pair.site.changed(before) == []


class Pair:
    """Two databases, in the order in which they are named."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = Site(folder)
        self.site.source.close()
        self.name("a.db", "b.db")

    def name(self, *names: str) -> None:
        paths = tuple(str(self.folder / name) for name in names)
        self.site.source = create(Options(databases=paths, page_rows=7), {})

    def write(self, name: str, jobs: list[SampleJob]) -> None:
        with Writer(self.folder / name, schema=2, zone="UTC") as arex:
            arex.write_all(jobs)

    def load(self, *, every_row: bool = False) -> None:
        assert self.site.load(PLAIN._replace(every_row=every_row)) == []

    def counted(self) -> list[tuple[str, int, int]]:
        """Return file, end and wall time of each run that its source has."""
        jobs = self.site.jobs(current=True)
        return [(Path(one.row.database).name, one.ended_at, one.wall_s) for one in jobs]


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def content(site: Site) -> Any:
    with closing(open_reader(site.path)) as looking:
        name = str(site.ce.path)
        at = looking.position(name)
        pages = list(looking.changed(0, looking.state().last_change))
        jobs = sorted(repr(one._replace(row=one.row._replace(database=""))) for page in pages for one in page.jobs)
        aside = sorted(repr(one._replace(row=one.row._replace(database=""))) for page in pages for one in page.skipped)
        opened = [(one.row.record_id, one.finished_seen_at) for one in looking.unfinished(name)]
        return jobs, aside, opened, at, looking.incomplete()


def kill_a_load(site: Site, statement: int) -> None:
    """Have a process load and end, as by SIGKILL, before that statement to the store."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    left, connect = [statement], sqlite3.connect

    def count(_: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(database: Any, *more: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(database, *more, **options)
        if "jobs.db" in str(database):
            connection.set_trace_callback(count)
        return connection

    vars(sqlite3)["connect"] = counted
    try:
        source = create(Options(control_dir=site.ce.control, page_rows=7), {})
        with closing(open_store(site.path)) as store:
            Loading(store, source, PLAIN, site.now, lambda: False).run()
    finally:
        os._exit(0)


class Failing:
    """A source that fails after some pages."""

    def __init__(self, source: JobSource, *, after: int) -> None:
        self._source, self._after = source, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def read(self, *asked: Any) -> Iterator[Any]:
        for number, page in enumerate(self._source.read(*asked)):
            if number == self._after:
                raise SourceError("the disk refused")
            yield page


class Instead:
    """Sources, each with something else in its place."""

    def __init__(self, sources: ArexSource, wrapped: Callable[[JobSource], Any]) -> None:
        self._sources, self._wrapped = sources, wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sources, name)

    def sources(self) -> list[Any]:
        return [self._wrapped(one) for one in self._sources.sources()]


def test_the_questions_of_a_load_do_not_grow_with_what_is_loaded(site: Site) -> None:
    """Nothing new: the same number of statements, however many jobs there are."""
    counts = []
    for number in (10, 300):
        site.ce.insert([finished(number * 1000 + at) for at in range(number)])
        site.load()
        counts.append(statements_of_a_load(site))
    assert counts[0] == counts[1] <= 30


def statements_of_a_load(site: Site) -> int:
    seen: list[str] = []
    with closing(open_store(site.path)) as store:
        store._connection.set_trace_callback(seen.append)
        Loading(store, site.source, PLAIN, site.now, lambda: False).run()
    return len(seen)


class TestComparison:
    def test_a_part_that_did_not_change_is_not_decoded_again(self, site: Site) -> None:
        site.ce.insert([finished(number) for number in range(40)])
        with closing(create(Options(control_dir=site.ce.control), {})) as site.source:
            site.load()
            site.later(hours=25)
            site.load()
            (first,) = site.source.sources()
            request = ReadRequest(frozenset(), Epoch(int(site.now.timestamp())))
            with closing(open_reader(site.path)) as looking:
                known = looking.parts(first.name)
            assert [page.part and page.part.is_known for page in first.compare(Window(), known, request)] == [True]
            before = site.last_change()
            site.ce.correct(replace(finished(7), wall_s=777))
            site.later(hours=25)
            site.load()
            assert site.changed(before) == [(finished(7).job_id, "1007")]

    @pytest.mark.parametrize("table", ["AAR", *SIDE_TABLES])
    def test_a_change_in_any_table_is_found(self, site: Site, table: str) -> None:
        with Writer(site.ce.path, zone="UTC") as arex:
            arex.write_all(generate(2, 60, END - timedelta(days=2), END))
        options = PLAIN._replace(needs=frozenset(SideTable))
        columns = {
            "AAR": "UsedWalltime = UsedWalltime + 1",
            "AuthTokenAttributes": "AttrValue = AttrValue || 'x'",
            "JobEvents": "EventTime = '2026-10-30 12:00:00' WHERE EventKey = 'LRMSSTART'",
            "RunTimeEnvironments": "RTEName = RTEName || 'x'",
            "DataTransfers": "FileSize = 12345",
            "JobExtraInfo": "InfoValue = InfoValue || 'x'",
        }
        with closing(create(Options(control_dir=site.ce.control), {})) as site.source:
            site.load(options)
            site.later(hours=25)
            site.load(options)
            before = site.last_change()
            with closing(sqlite3.connect(site.ce.path)) as connection, connection:
                connection.execute(f"UPDATE {table} SET {columns[table]}")
            site.later(hours=25)
            site.load(options)
            assert len(site.changed(before)) > 10


@pytest.mark.parametrize("running", [0, 30])
def test_a_load_with_nothing_new_asks_each_table_of_arex_at_most_twice(
    site: Site, running: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.ce.insert([finished(number) for number in range(40)])
    with Writer(site.ce.path, zone="UTC") as arex:
        for number in range(100, 100 + running):
            arex.accept(finished(number))
    site.load()
    seen: list[str] = []
    connect = sqlite3.connect

    def traced(database: Any, *more: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(database, *more, **options)
        if "accounting" in str(database):
            connection.set_trace_callback(seen.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    with closing(create(Options(control_dir=site.ce.control), {})) as site.source:
        site.load()
    asked = [one for one in seen if "sqlite_master" not in one]
    counts = {table: sum(f"FROM {table}" in one for one in asked) for table in ("AAR", *SIDE_TABLES)}
    assert counts["AAR"] == (2 if running else 1)
    assert all(counts[table] == 0 for table in SIDE_TABLES)
