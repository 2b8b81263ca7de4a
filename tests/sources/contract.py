"""What every implementation of an interface must keep: test classes to inherit from."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

import pytest

from publisher.model.errors import SourceError
from publisher.model.job import Epoch, JobId, JobRecord, LoadedPage, OpenRow, Position, ReadRequest, RowRef, SideTable
from publisher.model.time import Window
from publisher.sources.base import JobSource, Source

NOTHING: frozenset[SideTable] = frozenset()


def loaded(pages: Iterable[LoadedPage]) -> list[JobRecord]:
    return [job for page in pages for job in page.jobs]


def every_row(pages: Iterable[LoadedPage]) -> list[OpenRow]:
    """All rows that were met, to be read again."""
    rows: list[RowRef] = []
    for page in pages:
        rows += [job.row for job in page.jobs]
        rows += [skipped.row for skipped in page.skipped]
        rows += [opened.row for opened in page.open]
    return [OpenRow(row=row, finished_seen_at=None) for row in rows]


class SourceWorld(ABC):
    """A source over accounting data that the test can add to and break."""

    source: Source
    now = datetime(2026, 12, 1, tzinfo=UTC)

    @property
    def first(self) -> JobSource:
        """The source of the first database."""
        return self.source.sources()[0]

    @property
    def request(self) -> ReadRequest:
        return ReadRequest(NOTHING, Epoch(int(self.now.timestamp())))

    def read(self, position: Position | None = None, again: Sequence[OpenRow] = ()) -> list[LoadedPage]:
        """Read the first database."""
        return list(self.first.read(position, again, self.request))

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

    def test_an_empty_database_has_no_jobs_and_no_position(self, world: SourceWorld) -> None:
        assert [page for page in world.read() if page.jobs or page.position] == []

    def test_every_job_comes_once_in_row_order(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS)
        pages = world.read()
        jobs = loaded(pages)
        assert [job.job_id for job in jobs] == added
        assert [job.ended_at for job in jobs] == list(self.ENDS)
        assert [job.row for job in jobs] == sorted(job.row for job in jobs)
        assert {job.row.database for job in jobs} == {world.first.name} == {page.source for page in pages}
        assert sum(page.rows for page in pages) == len(added)

    def test_reading_goes_on_after_any_page(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS)
        pages = world.read()
        assert len(pages) > 1, f"the world's source needs pages of fewer than {len(added)} rows"
        read = 0
        for page in pages:
            read += len(page.jobs)
            assert page.position is not None
            assert [job.job_id for job in loaded(world.read(page.position))] == added[read:]

    def test_what_came_later_with_an_earlier_end_is_found(self, world: SourceWorld) -> None:
        world.add(self.ENDS)
        *_, last = world.read()
        late = world.add([self.START - 86_400, self.ENDS[-1]])
        assert [job.job_id for job in loaded(world.read(last.position))] == late

    def test_a_position_fits_its_own_job_only(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS[:3])
        (page,) = world.read()
        assert page.position is not None
        assert world.first.fits(page.position)
        assert not page.restarted
        assert loaded(world.read(page.position)) == []
        world.forget(added[-1])
        assert not world.first.fits(page.position)
        again = world.read(page.position)
        assert [page.restarted for page in again] == [True]
        assert [job.job_id for job in loaded(again)] == added[:-1]

    def test_a_row_to_read_again_is_a_job_or_closed(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS)
        pages = world.read()
        rows = [job.row for job in loaded(pages)]
        missing = RowRef(world.first.name, rows[-1].record_id + 1000)
        asked = [OpenRow(row=row, finished_seen_at=None) for row in (*rows, missing)]
        again = world.read(pages[-1].position, asked)
        assert [job.job_id for job in loaded(again)] == added
        assert {row for page in again for row in page.closed} == {*rows, missing}
        assert all(page.position is None for page in again)

    def test_a_comparison_yields_what_ended_in_a_window_and_nothing_of_what_is_known(self, world: SourceWorld) -> None:
        added = world.add(self.ENDS)
        window = Window(start=Epoch(self.START + 2))
        pages = list(world.first.compare(window, {}, world.request))
        ended = dict(zip(added, self.ENDS, strict=True))
        found = {job.job_id for job in loaded(pages)}
        assert {job for job, end in ended.items() if end >= self.START + 2} <= found <= set(added)
        known = {page.part.number: page.part.digest for page in pages if page.part is not None}
        again = list(world.first.compare(window, known, world.request))
        assert [page.part and page.part.is_known for page in again] == [True] * len(pages)
        assert loaded(again) == []
        world.forget(added[-1])
        (changed,) = (page for page in world.first.compare(window, known, world.request) if page.jobs)
        assert added[-1] not in {job.job_id for job in changed.jobs}
        assert list(world.first.compare(Window(end=Epoch(self.START)), {}, world.request)) == []

    def test_jobs_are_looked_up_by_their_ids(self, world: SourceWorld) -> None:
        first, _, third = world.add(self.ENDS[:3])
        world.forget(first)
        found = loaded(world.first.look_up([first, third, JobId("unknown")], world.request))
        assert [job.job_id for job in found] == [third]

    def test_side_tables_are_read_only_on_demand(self, world: SourceWorld) -> None:
        world.add(self.ENDS)
        for job in loaded(world.read()):
            assert job.transfers == ()
            assert job.runtime_environments == ()

    def test_a_reader_that_stops_early_holds_nothing(self, world: SourceWorld) -> None:
        world.add(self.ENDS)
        pages = world.first.read(None, (), world.request)
        next(pages)
        assert len(world.add([self.START])) == 1
        del pages

    def test_facts_are_of_the_databases(self, world: SourceWorld) -> None:
        assert tuple(facts.path for facts in world.source.facts()) == tuple(world.source.databases().values())

    def test_what_cannot_be_read_is_never_an_empty_answer(self, world: SourceWorld) -> None:
        (job_id,) = world.add(self.ENDS[:1])
        (page,) = world.read()
        position, first, request = page.position, world.first, world.request
        assert position is not None
        world.destroy()
        source = world.source
        opened = [OpenRow(row=page.jobs[0].row, finished_seen_at=None)]

        questions: tuple[Callable[[], object], ...] = (
            source.databases,
            source.facts,
            lambda: first.fits(position),
            lambda: list(first.read(position, (), request)),
            lambda: list(first.read(None, opened, request)),
            lambda: list(first.compare(Window(), {}, request)),
            lambda: list(first.look_up([job_id], request)),
            lambda: first.rows_after(position),
            lambda: first.ends(opened),
        )
        for question in questions:
            with pytest.raises(SourceError):
                question()
