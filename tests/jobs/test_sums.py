"""What SQLite adds up is what the jobs add up to, whatever they have; rows that are no run count once; names are found."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from publisher.jobs.filters import JobFilter
from publisher.jobs.queries import JobQueries, NameKind, open_queries
from publisher.jobs.store import JobStore, open_store
from publisher.jobs.sums import GROUPINGS, Totals
from publisher.jobs.usage import group_of
from publisher.model.job import Epoch, JobId, JobRecord, LoadedPage, OpenRow, PartialJob, RowRef, SkippedJob
from publisher.model.time import Window
from tests.support import strategies
from tests.support.jobs import ENDED, make_job
from tests.support.strategies import examples

OLD, NEW = "/ce/accounting.db", "/ce/accounting_v2.db"
ALL: Final = JobFilter()
NAME: Final[dict[str, Callable[[JobRecord], str]]] = {
    "vo": lambda job: job.vo,
    "user": lambda job: job.user,
    "state": lambda job: job.status,
    "queue": lambda job: job.queue,
    "endpoint": lambda job: job.interface,
    "month": lambda job: month(job.ended_at),
    "project": lambda job: next(iter(job.projects), ""),
    "account": lambda job: job.local_group,
    "local-user": lambda job: job.local_user,
    "fqan": lambda job: next(iter(job.fqans), ""),
}


def month(ended_at: int) -> str:
    try:
        return f"{datetime.fromtimestamp(ended_at, UTC):%Y-%m}" if ended_at > 0 else ""
    except (OverflowError, OSError, ValueError):
        return ""


def job(number: int, **values: Any) -> JobRecord:
    given = {"row": RowRef(NEW, number), "job_id": JobId(f"job{number}"), "local_id": str(1000 + number)}
    return make_job(**{**given, **values})


def running(number: int, database: str = NEW, **values: Any) -> PartialJob:
    row = RowRef(database, number)
    blank = {"ended_at": Epoch(0), "wall_s": 0, "cpu_user_s": 0, "cpu_kernel_s": 0, "status": "in-progress"}
    return PartialJob(job(number, **{**blank, "row": row, **values}), is_in_progress=True)


@contextmanager
def loaded(*pages: LoadedPage) -> Iterator[JobQueries]:
    """Give the questions to a store of these pages."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        with closing(open_store(path)) as store:
            put(store, *pages)
        with closing(open_queries(path)) as jobs:
            yield jobs


def put(store: JobStore, *pages: LoadedPage) -> None:
    for page in pages:
        store.put([page])


def page(*jobs: JobRecord, database: str = NEW, **values: Any) -> LoadedPage:
    return LoadedPage(database, jobs, **values)


def partial(*rows: PartialJob) -> LoadedPage:
    """Return a page of rows that are to be read again."""
    opened = [OpenRow(row=one.job.row, finished_seen_at=None) for one in rows]
    return LoadedPage(rows[0].job.row.database, open=opened, partial=rows)


def totals_of(jobs: Sequence[JobRecord]) -> Totals:
    """Return the sums over whole jobs."""
    return Totals(
        jobs=len(jobs),
        wall_s=sum(one.wall_s for one in jobs),
        wall_core_s=sum(one.wall_s * (one.cpu_count or 1) for one in jobs),
        cores_unknown=sum(not one.cpu_count for one in jobs),
        cpu_user_s=sum(one.cpu_user_s for one in jobs),
        cpu_kernel_s=sum(one.cpu_kernel_s for one in jobs),
        stage_in_bytes=sum(one.stage_in_bytes or 0 for one in jobs),
        stage_out_bytes=sum(one.stage_out_bytes or 0 for one in jobs),
        cpu_unknown=sum(one.cpu_unknown for one in jobs),
        gpu_jobs=sum(bool(one.gpu_count) for one in jobs),
        gpu_s=sum((one.gpu_count or 0) * one.wall_s for one in jobs),
        first_submitted_at=min((one.submitted_at for one in jobs if one.submitted_at > 0), default=None),
        first_ended_at=min((one.ended_at for one in jobs if one.ended_at > 0), default=None),
        last_ended_at=max((one.ended_at for one in jobs if one.ended_at > 0), default=None),
    )


def summed(jobs: JobQueries, by: str, wanted: JobFilter = ALL) -> dict[str, Totals]:
    found: defaultdict[str, Totals] = defaultdict(Totals)
    for standing, totals in jobs.sums(wanted, by):
        found[standing.name].add(totals)
    return dict(found)


many_jobs = st.lists(strategies.jobs, min_size=1, max_size=8)


def by_run(drawn: Sequence[JobRecord]) -> list[JobRecord]:
    """Return jobs as sources have them: numbers of 64 bits, durations from 0, each run once."""
    found: dict[bytes, JobRecord] = {}
    for at, one in enumerate(drawn):
        numbers: dict[str, Any] = {
            name: min(abs(value), 2**63 - 1) for name, value in one._asdict().items() if type(value) is int
        }
        whole = one._replace(**numbers, job_id=JobId(f"job{at}"), row=RowRef(NEW, at + 1))
        try:
            found[whole.run_key] = whole
        except UnicodeEncodeError:
            continue
    return list(found.values())


@settings(max_examples=examples(100), deadline=None)
@given(many_jobs)
@pytest.mark.slow
def test_sums_by_every_name_are_those_of_the_jobs(drawn: Sequence[JobRecord]) -> None:
    jobs = by_run(drawn)
    assert NAME.keys() == GROUPINGS.keys()
    with loaded(page(*jobs)) as store:
        for by, name_of in NAME.items():
            names = set(map(name_of, jobs))
            expected = {name: totals_of([one for one in jobs if name_of(one) == name]) for name in names}
            found = {name: asdict(totals) for name, totals in summed(store, by).items()}
            assert found == {name: asdict(totals) for name, totals in expected.items()}, by


@settings(max_examples=examples(100), deadline=None)
@given(many_jobs)
@pytest.mark.slow
def test_usage_in_groups_is_that_of_each_job(drawn: Sequence[JobRecord]) -> None:
    jobs = by_run(drawn)
    summed_up: Counter[Any] = Counter()
    expected: Counter[Any] = Counter()
    with loaded(page(*jobs)) as store:
        for group in store.groups(Window(), hosts=True):
            add(summed_up, group)
    for one in jobs:
        add(expected, group_of(one))
    assert summed_up == expected


def add(sums: Counter[Any], group: Any) -> None:
    example = group.example
    who = example.user, example.vo, example.fqans, example.local_user, example.projects, example.hosts
    at = *who, example.queue, example.status, group.day, group.exit_code, group.gpus, example.cpu_unknown
    for name in ("jobs", "wall_s", "wall_core_s", "cpu_s", "cores_unknown"):
        sums[at, name] += getattr(group, name)


def test_a_run_that_its_source_lost_counts_no_longer() -> None:
    with loaded(page(job(1), job(2)), page(job(1, local_id="77", ended_at=Epoch(ENDED + 60)))) as store:
        assert summed(store, "state")["completed"].jobs == 2
        assert [one.local_id for one in store.find(JobId("job1")).jobs] == ["77"]


class TestPartialRows:
    """Rows that are no run by now."""

    def test_jobs_in_progress_count_until_they_are_runs(self) -> None:
        first = partial(running(1), running(2))
        with loaded(first) as store:
            assert {state: one.in_progress for state, one in summed(store, "state").items()} == {"in-progress": 2}
            assert not list(store.groups(Window(), hosts=False))
            assert store.left_out(ALL) == {"": 2}
        with loaded(first, page(job(1), closed=[RowRef(NEW, 1)])) as store:
            assert {state: one.jobs for state, one in summed(store, "state").items()} == {
                "completed": 1,
                "in-progress": 1,
            }
        gone = LoadedPage(NEW, closed=[RowRef(NEW, 1), RowRef(NEW, 2)])
        with loaded(first, gone) as store:
            assert not summed(store, "state")

    def test_a_job_in_two_databases_counts_where_it_is_over(self) -> None:
        over = PartialJob(job(1, row=RowRef(OLD, 9)), is_in_progress=False)
        with loaded(partial(running(1)), partial(over)) as store:
            assert {state: one.jobs for state, one in summed(store, "state").items()} == {"completed": 1}
            assert sum(group.jobs for group in store.groups(Window(), hosts=False)) == 1
        with loaded(partial(running(1)), page(job(1, row=RowRef(OLD, 9)), database=OLD)) as store:
            assert {state: one.jobs for state, one in summed(store, "state").items()} == {"completed": 1}
        with loaded(partial(running(1)), partial(running(1, OLD, vo="cms"))) as store:
            assert {vo: one.jobs for vo, one in summed(store, "vo").items()} == {"atlas": 1}

    def test_a_row_that_was_set_aside_counts_and_is_told_by_its_rule(self) -> None:
        row = RowRef(NEW, 5)
        skipped = SkippedJob(row, JobId("job5"), "1005", Epoch(ENDED), "not-a-number", "UsedWalltime is 'x'", 7)
        odd = PartialJob(job(5, wall_s=0), is_in_progress=False, is_unreadable=True, rule="not-a-number")
        with loaded(page(job(1), skipped=[skipped], partial=[odd])) as store:
            found = summed(store, "state")["completed"]
            assert (found.jobs, found.unreadable, found.wall_s) == (2, 1, job(1).wall_s)
            assert store.left_out(ALL) == {"not-a-number": 1}
            assert [one.job_id for pages in store.selected(ALL) for one in pages] == ["job1"]
            assert store.find(JobId("job5")).skipped == [skipped]
            assert store.unreadable(Window()) == 1
        with loaded(page(skipped=[skipped], partial=[odd]), page(job(5))) as store:
            assert summed(store, "state")["completed"].unreadable == 0
            assert not store.left_out(ALL)


JOBS: Final = [
    job(1),
    job(2, vo="cms", user="/CN=Ann O'Neil", queue="long", status="failed", projects=("hep", "bio")),
    job(3, vo="", user="", fqans=(), interface="org.nordugrid.internal", projects=("[x]",), hosts=("a", "b")),
    job(4, gpu_count=2, attributes=(("wlcg.groups", "/dune"),), ended_at=Epoch(ENDED + 86_400), job_name="fit"),
]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (ALL, [1, 2, 3, 4]),
        (JobFilter(vos=frozenset({"cms"})), [2]),
        (JobFilter(vos=frozenset({"cms", ""})), [2, 3]),
        (JobFilter(users=frozenset({"/CN=Ann O%27Neil"})), [2]),
        (JobFilter(queues=frozenset({"long", "nowhere"})), [2]),
        (JobFilter(interfaces=frozenset({"org.nordugrid.internal"}), vos=frozenset({"atlas"})), []),
        (JobFilter(states=frozenset({"failed"})), [2]),
        (JobFilter(gpus=True), [4]),
        (JobFilter(ended=Window(start=Epoch(ENDED + 1))), [4]),
        (JobFilter(submitted=Window(end=Epoch(ENDED - 9_000))), []),
        (JobFilter(extras={"project": frozenset({"bio"})}), [2]),
        (JobFilter(extras={"projectname": frozenset({"[x]"})}), [3]),
        (JobFilter(extras={"jobname": frozenset({"fit"})}), [4]),
        (JobFilter(extras={"nodenames": frozenset({"a:b"})}), [3]),
        (JobFilter(extras={"wlcg.groups": frozenset({"/dune"})}), [4]),
        (JobFilter(extras={"vomsfqan": frozenset({"/atlas/Role=NULL/Capability=NULL"})}), [1, 2, 4]),
        (JobFilter(extras={"mainfqan": frozenset({"/atlas/Role=NULL/Capability=NULL"})}), []),
        (JobFilter(extras={"localuser": frozenset({"atlplt01:atlas"}), "lrms": frozenset({"slurm"})}), [1, 2, 3, 4]),
        (JobFilter(extras={"benchmark": frozenset({"HEPscore23:11.9"}), "jobname": frozenset({"%' OR 1"})}), []),
    ],
)
def test_a_filter_takes_the_jobs_that_it_says(wanted: JobFilter, numbers: list[int]) -> None:
    with loaded(page(*JOBS)) as store:
        assert list(store.ids(wanted)) == [f"job{number}" for number in numbers]
        assert sum(totals.jobs for _, totals in store.sums(wanted, "user")) == len(numbers)
        assert [one.job_id for pages in store.selected(wanted) for one in pages] == [f"job{n}" for n in numbers]


def test_rows_with_what_only_the_ce_has_are_named() -> None:
    wanted = JobFilter(extras={"rte": frozenset({"ENV/PROXY"})})
    with loaded(page(*JOBS)) as store:
        assert list(store.ids(wanted, {"rte": [RowRef(NEW, 3), RowRef(OLD, 1)]})) == ["job3"]


def test_names_and_ids_are_found() -> None:
    with loaded(page(*JOBS), partial(running(5, vo="dune"))) as store:
        assert store.names(NameKind.VO) == {"atlas", "cms", "", "dune"}
        assert store.names(NameKind.STATE) == {"completed", "failed", "in-progress"}
        assert store.names(NameKind.QUEUE) == {"grid", "long"}
        assert store.with_local_id("1002") == ["job2"]
        assert store.with_local_id("1005") == ["job5"]
        assert store.with_local_id("102") == []
        assert store.beginning("job", 3) == ["job1", "job2", "job3"]
        assert store.beginning("job5", 3) == ["job5"]
        assert store.find(JobId("job5")).unfinished == [RowRef(NEW, 5)]
        assert not store.find(JobId("job6")).is_there
        assert store.has_any(Window(end=Epoch(ENDED + 1)))
        assert not store.has_any(Window(end=Epoch(ENDED)))
