"""What an importer stores in its part of the job store: which run stays, what one step takes, and what failures leave."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from publisher.jobs.batch import SourceJobs
from publisher.jobs.store import JobStore, open_reader, open_store
from publisher.model.errors import LedgerError
from publisher.model.job import Epoch, JobId, JobRecord
from publisher.sources.files.batch_job import batch_job


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with closing(open_store(tmp_path / "jobs.db")) as opened:
        yield opened


@pytest.fixture
def part(store: JobStore) -> SourceJobs:
    return SourceJobs(store, "hpc")


def jobs(count: int, wall_s: int = 60, *, submitted_at: int = 1_790_000_000) -> list[JobRecord]:
    """Of two users."""
    return [
        batch_job(
            job_id=f"hpc1:{number}",
            local_id=str(number),
            endpoint=("sacct", "sacct://hpc1"),
            queue="batch",
            lrms="slurm",
            user=f"user{number % 2}",
            vo="atlas",
            account=("ada", "physics"),
            status="completed",
            exit_code=0,
            submitted_at=submitted_at,
            started_at=1_790_000_010,
            ended_at=1_790_000_010 + wall_s,
            node_count=1,
            cpu_count=1,
            memory_kib=0,
            virtual_memory_kib=0,
            wall_s=wall_s,
            cpu_user_s=50,
            cpu_kernel_s=1,
            cpu_unknown=False,
            gpu_count=None,
            job_name="analysis",
        )
        for number in range(count)
    ]


def put(part: SourceJobs, page: list[JobRecord]) -> tuple[tuple[int, ...], list[str]]:
    """How many jobs were new and how many changed, and the statements that it took."""
    statements: list[str] = []
    part.connection.set_trace_callback(statements.append)
    with part.transaction():
        stored = part.put(page)
    part.connection.set_trace_callback(None)
    return stored[:2], statements


def stored(store: JobStore) -> list[JobRecord]:
    return [job for page in store.changed(0, store.state().last_change) for job in page.jobs]


class TestStoring:
    @pytest.mark.parametrize("count", [10, 500])
    def test_a_page_of_new_jobs_takes_their_rows_and_few_statements_more(self, part: SourceJobs, count: int) -> None:
        put(part, jobs(2, wall_s=1))
        new = [job._replace(job_id=JobId(f"x{job.job_id}")) for job in jobs(count)]
        found, statements = put(part, new)
        assert found == (count, 0)
        assert len([each for each in statements if each.startswith("INSERT INTO job")]) == count
        assert len(statements) <= count + 20

    @pytest.mark.parametrize("count", [10, 500])
    def test_jobs_that_are_there_are_looked_up_together(self, part: SourceJobs, count: int) -> None:
        put(part, jobs(count))
        found, statements = put(part, jobs(count))
        assert found == (0, 0)
        assert len(statements) <= count // 100 + 12

    def test_of_several_runs_of_one_job_in_a_page_the_greatest_stays(self, store: JobStore, part: SourceJobs) -> None:
        one, two, three = (jobs(1, wall_s)[0] for wall_s in (60, 90, 70))
        assert put(part, [one, three, two, three])[0] == (1, 2)
        assert [(job.job_id, job.wall_s) for job in stored(store)] == [("hpc1:0", 90)]

    def test_a_step_in_which_something_is_raised_leaves_neither_jobs_nor_names(
        self, store: JobStore, part: SourceJobs
    ) -> None:
        with suppress(KeyboardInterrupt), part.transaction():
            part.put(jobs(3))
            raise KeyboardInterrupt
        assert stored(store) == []
        put(part, jobs(2))
        assert [job.user for job in stored(store)] == ["user0", "user1"]

    def test_what_is_the_same_is_no_change(self, store: JobStore, part: SourceJobs) -> None:
        put(part, jobs(3))
        before = store.state()
        with part.transaction():
            part.put(jobs(3), replace=True)
        assert store.state() == before

    def test_runs_of_another_source_are_left_alone(self, store: JobStore, part: SourceJobs) -> None:
        put(part, jobs(1))
        other = SourceJobs(store, "other")
        with other.transaction():
            other.take_back(["hpc1:0"])
        assert len(stored(store)) == 1


class TestOneThatIsSubmittedAtAnotherTime:
    """A batch system that corrects a submission makes another run of the job."""

    def test_the_first_run_is_gone_and_is_no_job_any_more(self, store: JobStore, part: SourceJobs) -> None:
        put(part, jobs(1))
        later = jobs(1, 90, submitted_at=1_790_000_005)
        assert put(part, later)[0] == (0, 1)
        ((page),) = store.changed(0, store.state().last_change)
        assert [(job.submitted_at, bool(gone)) for job, gone in zip(page.jobs, page.gone, strict=True)] == [
            (Epoch(1_790_000_000), True),
            (Epoch(1_790_000_005), False),
        ]


def test_a_source_is_incomplete_until_it_was_read_in_full(store: JobStore) -> None:
    SourceJobs(store, "hpc")
    assert store.incomplete() == {"hpc"}
    store.complete("hpc")
    assert (store.incomplete(), store.first_loads()) == (frozenset(), {})


def test_a_store_after_another_one_knows_what_each_source_had_first(store: JobStore, part: SourceJobs) -> None:
    store.begin_after(["a mark of another store"])
    put(part, jobs(3))
    store.complete("hpc")
    put(part, jobs(4, 90))
    store.complete("hpc")
    assert store.first_loads() == {"hpc": 3}


def test_what_cannot_be_read_between_transactions_says_what_to_do(tmp_path: Path) -> None:
    failed = sqlite3.OperationalError("locking protocol")
    failed.sqlite_errorcode = sqlite3.SQLITE_BUSY
    with (
        closing(open_reader(tmp_path / "jobs.db")) as reader,
        pytest.raises(LedgerError, match=r"jobs\.db: locking protocol; another program holds it"),
        reader.translated(),
    ):
        raise failed
