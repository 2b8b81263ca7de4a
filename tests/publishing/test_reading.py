"""What a round reads of the job store: what is held first, once, then what changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from publisher.jobs.reader import JobPage
from publisher.jobs.store import JobStore, open_store
from publisher.ledger.contract import Ledger
from publisher.model.job import LoadedPage
from publisher.model.message import StoreCursor
from publisher.publishing.databases.reader import IncrementalReader
from tests.jobs.test_store import CE, job
from tests.support.ledgers import open_ledger


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with closing(open_store(tmp_path / "jobs.db")) as opened:
        yield opened


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(open_ledger(tmp_path / "publishing.db")) as opened:
        yield opened


def read(store: JobStore, ledger: Ledger, *, after: int, held: tuple[int, ...]) -> list[tuple[list[str], int | None]]:
    """Return the jobs of each page, and the cursor that is noted behind it."""
    state = store.state()
    reading = IncrementalReader(
        target="egi",
        jobs=store,
        quarantine=ledger.quarantine,
        held=frozenset(job(number).run_key for number in held),
        cursor=StoreCursor(state.mark, after, ""),
        until=state.last_change,
    )

    def ids(page: JobPage) -> list[str]:
        assert len(page.jobs) == len(page.changes) == len(page.gone)
        return [one.job_id for one in page.jobs]

    return [(ids(page), noted.cursor and noted.cursor.change) for page, noted in reading.pages()]


def test_a_run_that_is_held_is_read_first_though_it_did_not_change(store: JobStore, ledger: Ledger) -> None:
    store.put([LoadedPage(CE, tuple(map(job, range(1, 6))))])
    assert read(store, ledger, after=4, held=(2,)) == [(["job2"], None), (["job5"], 5)]
    assert read(store, ledger, after=5, held=(2,)) == [(["job2"], None)]


def test_a_run_that_is_held_and_changed_is_read_once(store: JobStore, ledger: Ledger) -> None:
    store.put([LoadedPage(CE, tuple(map(job, range(1, 4))))])
    assert read(store, ledger, after=0, held=(2,)) == [(["job2"], None), (["job1", "job3"], 3)]
    assert read(store, ledger, after=0, held=(1, 2, 3))[-1] == ([], 3), "it is noted how far was read"


def test_a_run_that_is_held_and_that_the_store_lacks_is_in_no_page(store: JobStore, ledger: Ledger) -> None:
    store.put([LoadedPage(CE, (job(1),))])
    assert read(store, ledger, after=1, held=(7,)) == [([], None)]
