"""What every implementation of an interface must keep: test classes to inherit from."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import pytest

from publisher.model.errors import SourceError
from publisher.model.job import Epoch, JobId, JobRecord, RowRef, SideTable
from publisher.model.message import Cursor, OpenRow
from publisher.model.time import Window
from publisher.sources.base import Page, Source

NOTHING: frozenset[SideTable] = frozenset()


def jobs_of(pages: Iterable[Page]) -> list[JobRecord]:
    return [job for page in pages for job in page.jobs]


class SourceWorld(ABC):
    """A source over accounting data that the test can add to and break."""

    source: Source
    now = datetime(2026, 12, 1, tzinfo=UTC)

    @abstractmethod
    def add(self, ends: Sequence[int]) -> list[JobId]:
        """Append finished, complete jobs with these end times, to the first database."""

    @abstractmethod
    def forget(self, job_id: JobId) -> None:
        """Remove the job's row."""

    @abstractmethod
    def destroy(self) -> None:
        """Make the accounting data unreadable."""


class SourceContract:
    """Tests of `publisher.sources.base.Source`. A subclass gives the fixture `world` with an empty `SourceWorld`.

    Its source has small pages, of fewer rows than `ENDS`.
    """

    START = 1_793_000_000
    ENDS = tuple(1_793_000_000 + n // 3 for n in range(50))  # three to a second, over several pages

    def test_an_empty_database_has_no_pages_and_no_cursor(self, world: SourceWorld) -> None:
        (database, *_) = world.source.databases()
        assert list(world.source.since(None, database, NOTHING, world.now)) == []

    def test_since_gives_every_job_once_in_row_order(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS)
        (database, *_) = world.source.databases()
        pages = list(world.source.since(None, database, NOTHING, world.now))
        jobs = jobs_of(pages)
        assert [job.job_id for job in jobs] == added
        assert [job.ended_at for job in jobs] == list(self.ENDS)
        assert [job.row for job in jobs] == sorted(job.row for job in jobs)
        assert {job.row.database for job in jobs} == {database}
        assert sum(page.rows_read for page in pages) == len(added)

    def test_since_goes_on_after_any_page(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS)
        (database, *_) = world.source.databases()
        pages = list(world.source.since(None, database, NOTHING, world.now))
        assert len(pages) > 1, f"the world's source needs pages of fewer than {len(added)} rows"
        read = 0
        for page in pages:
            read += len(page.jobs)
            rest = jobs_of(world.source.since(page.cursor, database, NOTHING, world.now))
            assert [job.job_id for job in rest] == added[read:]

    def test_since_finds_what_came_later_with_an_earlier_end(self, world: SourceWorld) -> None:
        world.add(self.ENDS)
        (database, *_) = world.source.databases()
        *_, last = world.source.since(None, database, NOTHING, world.now)
        late = world.add([self.START - 86_400, self.ENDS[-1]])
        assert [job.job_id for job in jobs_of(world.source.since(last.cursor, database, NOTHING, world.now))] == late

    def test_a_cursor_fits_its_own_job_only(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS[:3])
        (database, *_) = world.source.databases()
        (page,) = world.source.since(None, database, NOTHING, world.now)
        cursor = page.cursor
        assert cursor is not None
        assert world.source.fits(cursor)
        other = Cursor(database=database, record_id=cursor.record_id, anchor="another job")
        assert not world.source.fits(other)
        assert not page.restarted
        assert next(iter(world.source.since(other, database, NOTHING, world.now))).restarted
        assert [job.job_id for job in jobs_of(world.source.since(other, database, NOTHING, world.now))] == added
        world.forget(added[-1])
        assert not world.source.fits(cursor)
        assert [job.job_id for job in jobs_of(world.source.since(cursor, database, NOTHING, world.now))] == added[:-1]

    def test_a_window_is_half_open_and_ordered(self, world: SourceWorld) -> None:
        added = dict(zip(world.add(self.ENDS), self.ENDS, strict=True))
        window = Window(start=Epoch(self.START + 2), end=Epoch(self.START + 9))
        jobs = jobs_of(world.source.window(window, NOTHING, world.now))
        assert [(job.ended_at, job.row) for job in jobs] == sorted((job.ended_at, job.row) for job in jobs)
        assert sorted(job.job_id for job in jobs) == sorted(job_id for job_id, end in added.items() if end in window)

    def test_windows_side_by_side_hold_every_job_once(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS)
        cut = Epoch(self.START + 5)
        windows = (Window(end=cut), Window(start=cut))
        jobs = [job for window in windows for job in jobs_of(world.source.window(window, NOTHING, world.now))]
        assert sorted(job.job_id for job in jobs) == sorted(added)
        assert len(jobs_of(world.source.window(Window(), NOTHING, world.now))) == len(added)
        assert jobs_of(world.source.window(Window(start=cut, end=cut), NOTHING, world.now)) == []

    def test_a_window_goes_on_after_any_job(self, world: SourceWorld) -> None:
        world.add(self.ENDS[:12])
        jobs = jobs_of(world.source.window(Window(), NOTHING, world.now))
        for place, job in enumerate(jobs, start=1):
            rest = world.source.window(Window(), NOTHING, world.now, after=(job.ended_at, job.row))
            assert jobs_of(rest) == jobs[place:]

    def test_look_again_answers_for_every_row(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS)
        (database, *_) = world.source.databases()
        rows = [job.row for job in jobs_of(world.source.since(None, database, NOTHING, world.now))]
        missing = RowRef(database=database, record_id=rows[-1].record_id + 1000)
        strayed = RowRef(database="/no/longer/configured", record_id=1)
        asked = [OpenRow(row=row, finished_seen_at=None) for row in (strayed, *rows, missing)]
        pages = list(world.source.reread(asked, NOTHING, world.now))
        assert [job.job_id for job in jobs_of(pages)] == added
        assert {row for page in pages for row in page.gone} == {missing, strayed}
        assert all(page.cursor is None for page in pages)

    def test_a_job_is_found_by_its_id(self, world: SourceWorld) -> None:
        first, second = world.add(self.ENDS[:2])
        (job,) = world.source.find(second, NOTHING, world.now).jobs
        assert job.job_id == second
        world.forget(first)
        assert world.source.find(first, NOTHING, world.now) == Page(jobs=())

    def test_side_tables_are_read_only_on_demand(self, world: SourceWorld) -> None:
        world.add(self.ENDS)
        (database, *_) = world.source.databases()
        for job in jobs_of(world.source.since(None, database, NOTHING, world.now)):
            assert job.transfers == ()
            assert job.runtime_environments == ()

    def test_a_reader_that_stops_early_holds_nothing(self, world: SourceWorld) -> None:
        world.add(self.ENDS)
        (database, *_) = world.source.databases()
        pages = world.source.since(None, database, NOTHING, world.now)
        next(pages)
        assert len(world.add([self.START])) == 1
        del pages

    def test_facts_are_of_the_databases(self, world: SourceWorld) -> None:
        assert tuple(facts.path for facts in world.source.facts()) == tuple(world.source.databases().values())

    def test_what_cannot_be_read_is_never_an_empty_answer(self, world: SourceWorld) -> None:
        (job_id,) = world.add(self.ENDS[:1])
        (database, *_) = world.source.databases()
        (job,) = jobs_of(world.source.since(None, database, NOTHING, world.now))
        world.destroy()
        source, now = world.source, world.now
        cursor = Cursor(database=database, record_id=job.row.record_id, anchor=job_id)
        opened = [OpenRow(row=job.row, finished_seen_at=None)]

        questions: tuple[Callable[[], object], ...] = (
            source.databases,
            source.facts,
            lambda: source.fits(cursor),
            lambda: list(source.since(cursor, database, NOTHING, now)),
            lambda: list(source.reread(opened, NOTHING, now)),
            lambda: list(source.window(Window(), NOTHING, now)),
            lambda: source.find(job_id, NOTHING, now),
        )
        for question in questions:
            with pytest.raises(SourceError):
                question()
