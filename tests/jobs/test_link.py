"""Linking: which runs of a batch system are jobs of the CE in front of it, what is joined, and when each becomes visible."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from publisher.jobs.batch import SourceJobs
from publisher.jobs.link import COUNTED_RULE, Linked, Linking
from publisher.jobs.store import JobStore, open_store
from publisher.jobs.tables.batch_runs import LinkState
from publisher.jobs.tables.systems import LinkedSystem
from publisher.model.entry import DeliveredRun
from publisher.model.job import Epoch, JobId, JobRecord, LoadedPage, RowRef
from tests.sources.mortal_imports import FOR_EVER, child
from tests.support.jobs import make_job
from tests.support.patience import PATIENCE_S

HOUR, DAY = 3600, 86_400
NOW = 1_790_000_000
OLD = NOW - 3 * DAY
CE, HPC = "/ce/accounting_v2.db", "hpc"
SYSTEM = LinkedSystem(
    name=HPC,
    lrms="slurm",
    databases=frozenset({CE}),
    ce_of=lambda name: name if name == CE else None,
    wait_s=DAY,
    outage_s=14 * DAY,
    join_wait_s=HOUR,
)


def run_of(number: int, ended: int = OLD, **values: Any) -> JobRecord:
    """A run of the batch system: ten minutes, two GPUs."""
    times = {"submitted_at": Epoch(ended - 900), "started_at": Epoch(ended - 600), "ended_at": Epoch(ended)}
    known = {"wall_s": 600, "gpu_count": 2, "memory_kib": 4096, "hosts": ("n1",), "interface": "slurm"}
    named = {"job_id": JobId(f"hpc:{number}:{ended}"), "local_id": str(number), "row": RowRef(HPC, 0)}
    return make_job(**{**times, **named, **known, **values})


def job_of(number: int, ended: int = OLD, **values: Any) -> JobRecord:
    """A job of the CE, which noticed the end a minute later."""
    times = {"submitted_at": Epoch(ended - 1000), "started_at": None, "ended_at": Epoch(ended + 60), "wall_s": 600}
    unknown = {"gpu_count": None, "memory_kib": None, "hosts": ()}
    named = {"job_id": JobId(f"ce-{number}"), "local_id": str(number), "row": RowRef(CE, number)}
    return make_job(**{**times, **named, **unknown, **values})


def entry_of(job: JobRecord) -> DeliveredRun:
    return DeliveredRun(job.row.database, job.run_key, job.local_id, job.ended_at)


class Site(NamedTuple):
    """What a load finds: runs, jobs of the CE, and what was delivered."""

    runs: Sequence[JobRecord] = ()
    jobs: Sequence[JobRecord] = ()
    delivered: Sequence[DeliveredRun] = ()

    def ledger(self, first: Epoch) -> Generator[Sequence[DeliveredRun], None, None]:
        for one in self.delivered:
            if one.ended_at >= first:
                yield [one]


def put_runs(store: JobStore, runs: Sequence[JobRecord]) -> None:
    part = SourceJobs(store, HPC, has_ces=True)
    for one in runs:
        with part.transaction():
            part.put([one])


def load(store: JobStore, site: Site, *, read: frozenset[str] = frozenset({CE}), now: int = NOW) -> Linked:
    """As a round does: runs, the ledger, the CE, and linking."""
    put_runs(store, site.runs)
    linking = Linking(store, [SYSTEM], now)
    linking.ask(site.ledger)
    for start in range(0, len(site.jobs), 3):
        store.put([linking.page(LoadedPage(CE, site.jobs[start : start + 3]))])
    store.complete(CE)
    return linking.link(read)[HPC]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


class Outcome(NamedTuple):
    """What a store has: jobs with what is joined to them, hidden runs, and jobs of the CE that are none."""

    jobs: frozenset[tuple[str, str]]
    hidden: frozenset[tuple[str, int]]
    set_aside: frozenset[str]
    open: frozenset[str]


def outcome(store: JobStore) -> Outcome:
    ask = store.connection.execute
    return Outcome(
        jobs=frozenset(ask("SELECT job_id, joined FROM job")),
        hidden=frozenset(ask("SELECT job_id, state FROM batch_run")),
        set_aside=frozenset(one for (one,) in ask("SELECT job_id FROM skipped WHERE rule = ?", (COUNTED_RULE,))),
        open=frozenset(
            one for (one,) in ask("SELECT p.job_id FROM partial p JOIN unfinished USING (source, record_id)")
        ),
    )


def changed(store: JobStore, after: int = 0) -> list[str]:
    """Jobs in the order in which they became visible."""
    return [one.job_id for page in store.changed(after, store.state().last_change) for one in page.jobs]


def test_rule_16_a_run_gets_its_change_when_it_is_linked(path: Path) -> None:
    """A cursor that passed the CE's jobs before that finds it behind them."""
    run, job = run_of(1), job_of(2)
    with closing(open_store(path)) as store:
        put_runs(store, [run])
        assert (changed(store), store.state().last_change) == ([], 0)
        linking = Linking(store, [SYSTEM], NOW)
        linking.ask(Site().ledger)
        store.put([linking.page(LoadedPage(CE, [job]))])
        cursor = store.state().last_change
        assert changed(store) == [job.job_id]
        linking.link({CE})
        assert changed(store, cursor) == [run.job_id]


def test_rule_16_a_job_changes_when_its_run_comes(path: Path) -> None:
    job, run = job_of(1), run_of(1)
    with closing(open_store(path)) as store:
        load(store, Site(jobs=[job]))
        cursor = store.state().last_change
        load(store, Site(runs=[run]))
        assert changed(store, cursor) == [job.job_id]
        cursor = store.state().last_change
        load(store, Site(runs=[run], jobs=[job]))
        assert changed(store, cursor) == [], "nothing is new"
        load(store, Site(runs=[run._replace(gpu_count=4, wall_s=700)]))
        (again,) = store.of_jobs([job.job_id])
        assert (again.gpu_count, again.memory_kib, again.cpu_count) == (4, 4096, 4)


def test_what_was_joined_stays_when_the_run_is_pruned(path: Path) -> None:
    job, run = job_of(1), run_of(1)
    with closing(open_store(path)) as store:
        load(store, Site([run], [job]))
        before, cursor = outcome(store), store.state().last_change
        store.connection.execute("DELETE FROM batch_run")
        load(store, Site(jobs=[job]))
        assert outcome(store) == before._replace(hidden=frozenset())
        assert changed(store, cursor) == []
        load(store, Site(runs=[run]))
        assert outcome(store) == before


def test_nobody_has_a_run_only_once_all_ces_were_loaded(path: Path) -> None:
    run = run_of(1)
    with closing(open_store(path)) as store:
        assert load(store, Site([run]), read=frozenset()) == Linked(waiting=1)
        assert changed(store) == []
        assert load(store, Site()) == Linked(own=1)
        assert changed(store) == [run.job_id]


def test_a_job_whose_run_nobody_has_asked_the_ledger_about_stays_open(path: Path) -> None:
    """A question that is asked between two rounds loads the CE, too."""
    run, job = run_of(1), job_of(1)
    site = Site([run], [job], [entry_of(run)])
    with closing(open_store(path)) as store:
        put_runs(store, site.runs)
        store.put([Linking(store, [SYSTEM], NOW).page(LoadedPage(CE, site.jobs))])
        assert outcome(store).open == {job.job_id}
        load(store, site)
        assert outcome(store).set_aside == {job.job_id}
        assert changed(store) == [run.job_id]


def test_a_job_that_is_visible_goes_when_its_run_turns_out_to_be_delivered(path: Path) -> None:
    """The batch system could not be read when the CE was loaded into a store that is new."""
    run, job = run_of(1), job_of(1)
    for delivered, jobs in (([run], {run.job_id}), ([run, job], {run.job_id, job.job_id})):
        with closing(open_store(path.with_name(f"{len(delivered)}.db"))) as store:
            load(store, Site(jobs=[job]))
            load(store, Site([run], (), list(map(entry_of, delivered))))
            assert {one for one, _ in outcome(store).jobs} == jobs
            assert outcome(store).set_aside == {job.job_id} - jobs


def test_a_run_that_a_ce_of_another_batch_system_delivered_is_not_its(path: Path) -> None:
    job = job_of(1, lrms="condor")
    with closing(open_store(path)) as store:
        assert load(store, Site([run_of(1)], [job], [entry_of(job)])).own == 1


def test_each_question_of_linking_uses_an_index(path: Path) -> None:
    """Runs and jobs are found by their numbers, and runs to decide about by their ends; none looks through a table."""
    with closing(open_store(path)) as store:
        load(store, everything())
        questions: list[str] = []
        store.connection.set_trace_callback(questions.append)
        load(store, everything()._replace(runs=()))
        store.connection.set_trace_callback(None)
        plans = [
            (question, step[3])
            for question in questions
            if question.startswith(("SELECT", "INSERT", "UPDATE", "DELETE")) and "EXISTS (SELECT 1 FROM" not in question
            for step in store.connection.execute(f"EXPLAIN QUERY PLAN {question}")
        ]
    scanned = [
        (plan, question) for question, plan in plans if re.match("SCAN (job|batch_run|partial|other_number)", plan)
    ]
    assert {"batch_run", "partial", "job"} <= {plan.split()[1] for _, plan in plans if plan.startswith("SEARCH")}
    assert scanned == []


# Killed


class Part(NamedTuple):
    """Some runs and jobs, and what becomes of them by the rules as users are told."""

    runs: Sequence[JobRecord] = ()
    jobs: Sequence[JobRecord] = ()
    delivered: Sequence[JobRecord] = ()
    visible: Sequence[JobRecord] = ()
    joined: Sequence[JobRecord] = ()
    hidden: Sequence[JobRecord] = ()
    waiting: Sequence[JobRecord] = ()
    set_aside: Sequence[JobRecord] = ()
    open: Sequence[JobRecord] = ()


def of_a_ce(number: int, ended: int) -> Part:
    run, job = run_of(number, ended), job_of(number, ended)
    return Part([run], [job], hidden=[run], joined=[job])


def nobodys(number: int, ended: int) -> Part:
    run = run_of(number, ended)
    return Part([run], visible=[run])


def young(number: int, _: int) -> Part:
    run = run_of(number, NOW - HOUR)
    return Part([run], waiting=[run])


def delivered_as_own(number: int, ended: int) -> Part:
    run, job = run_of(number, ended), job_of(number, ended)
    return Part([run], [job], [run], visible=[run], set_aside=[job])


def forgotten(number: int, ended: int) -> Part:
    run = run_of(number, ended)
    return Part([run], (), [job_of(number, ended)], hidden=[run])


def awaited(number: int, _: int) -> Part:
    job = job_of(number, NOW - 600)
    return Part((), [job], open=[job])


def without_a_run(number: int, ended: int) -> Part:
    job = job_of(number, ended)
    return Part((), [job], visible=[job])


def requeued(number: int, ended: int) -> Part:
    runs = [run_of(number, ended), run_of(number, ended - HOUR, gpu_count=8)]
    job = job_of(number, ended, submitted_at=Epoch(ended - 3 * HOUR))
    return Part(runs, [job], hidden=runs, joined=[job])


def restarted(number: int, ended: int) -> Part:
    run, before = run_of(number, ended), job_of(number, ended)
    again = job_of(number + 1000, ended + HOUR, job_id=before.job_id, submitted_at=before.submitted_at)
    return Part([run], [again], [before], hidden=[run], visible=[again])


KINDS = (*(of_a_ce, nobodys, young, delivered_as_own, forgotten, awaited, without_a_run, requeued, restarted),)
PARTS = [KINDS[number % len(KINDS)](number, OLD - number * HOUR) for number in range(1, len(KINDS) + 1)]


def ids(name: str) -> list[str]:
    return [one.job_id for part in PARTS for one in getattr(part, name)]


def everything() -> Site:
    delivered = [entry_of(one) for part in PARTS for one in part.delivered]
    runs, jobs = ([one for part in PARTS for one in getattr(part, name)] for name in ("runs", "jobs"))
    return Site(runs, jobs, delivered)


def expected() -> Outcome:
    values = json.dumps({"gpu_count": 2, "hosts": ["n1"], "memory_kib": 4096}, separators=(",", ":"))
    return Outcome(
        jobs=frozenset([*((one, "") for one in ids("visible")), *((one, values) for one in ids("joined"))]),
        hidden=frozenset(
            [
                *((one, int(LinkState.OF_CE)) for one in ids("hidden")),
                *((one, int(LinkState.WAITS)) for one in ids("waiting")),
            ]
        ),
        set_aside=frozenset(ids("set_aside")),
        open=frozenset(ids("open")),
    )


def play(path: Path) -> None:
    with closing(open_store(path)) as store:
        load(store, everything())


def test_each_kind_of_run_is_where_it_belongs(path: Path) -> None:
    site = everything()
    with closing(open_store(path)) as store:
        linked = load(store, site)
        assert outcome(store) == expected()
        assert (linked.own, linked.of_ce, linked.forgotten, linked.waiting) == (2, 5, 2, 1)
        again = load(store, site)
        assert (outcome(store), again.own, again.of_ce) == (expected(), 0, 0)
        assert len(changed(store)) == len(set(changed(store))) == len(expected().jobs)


@pytest.mark.slow
def test_killed_at_any_statement_linking_ends_alike(path: Path) -> None:
    set_up = "from tests.jobs.test_link import play as run_import\n"
    step, killed = 0, 0
    status = -signal.SIGKILL
    while status == -signal.SIGKILL:
        step += 1 + killed // 30
        one = path.with_name(f"{step}.db")
        status = child(set_up, one, step).wait(PATIENCE_S)
        killed += status == -signal.SIGKILL
        assert child(set_up, one, FOR_EVER).wait(PATIENCE_S) == 0
        with closing(open_store(one)) as store:
            assert outcome(store) == expected(), step
            assert len(changed(store)) == len(expected().jobs)
        one.unlink()
    assert (status, killed > 60) == (0, True)
