"""Steps of Slurm's jobs go to their own jobs, wherever their lines are."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.arex_databases.schema import create
from tests.sources.test_slurm_cases import CASES, case, cpu_s
from tests.support.batch_stores import asked, notices
from tests.support.gridengine_files import jobs
from tests.support.sacct_text import BEGIN, CLUSTER, NOW, job, jobs_of, run_import, step, text, write

GIB = 2**20  # in KiB
NO_CPU = {"TotalCPU": "00:00:00", "UserCPU": "00:00:00", "SystemCPU": "00:00:00"}
OWN = {"TotalCPU": "00:10.000", "UserCPU": "00:09.000", "SystemCPU": "00:01.000"}


def test_steps_behind_another_job(tmp_path: Path) -> None:
    report, (first, second) = case("step-of-another-job", tmp_path)
    assert (report.troubles, report.bad, report.held, report.incomplete) == ([], 0, 0, 0)
    assert (cpu_s(first), first["UsedMemory"]) == (2_400, 5 * GIB)
    assert (cpu_s(second), second["UsedMemory"]) == (300, GIB)


def test_steps_in_front_of_their_jobs(tmp_path: Path) -> None:
    report, found = case("steps-first", tmp_path)
    assert (report.troubles, report.bad, report.held) == ([], 0, 0)
    assert [(cpu_s(one), one["UsedMemory"]) for one in found] == [(600, 1000)] * 2


@pytest.mark.parametrize("steps_first", [True, False])
def test_steps_in_another_file(tmp_path: Path, steps_first: bool) -> None:
    header, *lines = (CASES / "step-of-another-job.sacct").read_bytes().splitlines(keepends=True)
    of_jobs = write(tmp_path / "jobs.sacct", b"".join([header, *lines[:2]]))
    of_steps = write(tmp_path / "steps.sacct", b"".join([header, *lines[2:]]))
    database, paths = tmp_path / "imported.db", [of_jobs, of_steps]
    for path in reversed(paths) if steps_first else paths:
        run_import(database, path)
    assert run_import(database, *paths).troubles == []
    found = [one for _, one in sorted(jobs(database).items())]
    assert [(cpu_s(one), one["UsedMemory"]) for one in found] == [(2_400, 5 * GIB), (300, GIB)]


def test_a_step_whose_job_is_not_there_waits_and_is_reported(tmp_path: Path) -> None:
    one, other, database = job(1), job(2), tmp_path / "imported.db"
    first = write(tmp_path / "1", text([other, step(other), step(one)]))
    for _ in range(2):
        report = run_import(database, first)
        assert (report.bad, report.held) == (0, 1)
        (note,) = (each for each in report.notes if "waits for its job" in each)
        assert note.startswith("1 step (1.batch) waits for its job, which was not read; import ")
        assert note in notices(database)
    assert run_import(database, write(tmp_path / "2", text([one, other, step(other)]))).held == 0


def test_a_recycled_number_gets_no_old_steps(tmp_path: Path) -> None:
    old, new = job(1, **NO_CPU), job(1, Submit=BEGIN + 10**7, **NO_CPU)
    of_old, of_new = step(old, MaxRSS="9G", **OWN), step(new, **OWN | {"UserCPU": "00:02.000", "TotalCPU": "00:03.000"})
    found = {}
    for number, lines in enumerate(
        ([old, new, of_old, of_new], [of_new, of_old, new, old], [new, of_old, of_new, old])
    ):
        database = tmp_path / f"{number}.db"
        assert run_import(database, write(tmp_path / f"{number}.txt", text(lines))).held == 0
        found = jobs(database)
        assert [cpu_s(found[f"{CLUSTER}:1:{line['Submit']}"]) for line in (old, new)] == [10, 3]
        assert found[f"{CLUSTER}:1:{new['Submit']}"]["UsedMemory"] == 8420
    assert len(found) == 2


def test_steps_of_each_run_of_a_requeued_job(tmp_path: Path) -> None:
    first = job(7, State="REQUEUED", Submit=BEGIN, ElapsedRaw=30, **NO_CPU)
    second = job(7, Submit=BEGIN + 30, Start=BEGIN + 40, ElapsedRaw=50, State="RUNNING", End="Unknown", **NO_CPU)
    over = second | {"State": "COMPLETED", "End": BEGIN + 90}
    of_first, of_second = step(first, **OWN), step(over, **OWN | {"UserCPU": "00:05.000"})
    database = tmp_path / "imported.db"
    # Sorted by number, while the second run lasts, and afterwards.
    run_import(database, write(tmp_path / "1", text([first, second, of_first])))
    assert list(map(cpu_s, jobs(database).values())) == [10]
    run_import(database, write(tmp_path / "2", text([first, over, of_first, of_second])))
    assert [cpu_s(one) for _, one in sorted(jobs(database).items())] == [10, 6]


def test_steps_of_other_clusters_are_not_ours(tmp_path: Path) -> None:
    one, other = job(7, **NO_CPU), job(7, Cluster="hpc2", **NO_CPU)
    lines = [one, step(other, **OWN), other, step(one, **OWN | {"UserCPU": "00:05.000"})]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "1", text(lines)))
    assert [cpu_s(one) for one in jobs(tmp_path / "imported.db").values()] == [6]
    assert report.skipped == {"of the cluster hpc2": 2}


def test_steps_of_a_job_that_is_left_out_wait_for_nobody(tmp_path: Path) -> None:
    root, one = job(1, User="root"), job(2)
    lines = [step(root), one, step(one), root, step(root, "extern")]
    path = write(tmp_path / "1", text(lines))
    for _ in range(2):
        assert run_import(tmp_path / "imported.db", path, exclude_users=("root",)).held == 0
    assert len(jobs(tmp_path / "imported.db")) == 1


def test_what_was_added_is_not_added_again_when_its_parts_are_forgotten(tmp_path: Path) -> None:
    lines, database = life(), tmp_path / "imported.db"
    random.Random(9).shuffle(lines)
    path = write(tmp_path / "1", text(lines))
    run_import(database, path)
    before = usage(database)
    run_import(database, write(tmp_path / "2", text([])), now=NOW + timedelta(days=90))
    with asked(database) as connection:
        assert connection.execute("SELECT count(*) FROM SlurmRun").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM SlurmStep").fetchone() == (0,)
    for seed in (1, 2):
        random.Random(seed).shuffle(lines)
        run_import(database, write(tmp_path / f"{seed}.again", text(lines)))
        assert usage(database) == before


USAGE = {"TRESUsageInTot": "cpu=00:20:00,mem=7000000K"}


def life() -> list[dict[str, object]]:
    """Jobs of all kinds, and some whose CPU time only their steps have, or only TRES."""
    lines = jobs_of(7, 60)
    for number in range(100, 110):
        one = job(number, **NO_CPU)
        lines += [one, step(one, **OWN), step(one, "extern", **NO_CPU), step(one, "0", MaxRSS="9G", **OWN)]
        other = job(number + 100, ElapsedRaw=5000, **OWN)
        lines += [other, step(other, **OWN), step(other, "0", NTasks=9, **NO_CPU | USAGE)]
    return lines


def usage(database: Path) -> dict[str, tuple[Any, ...]]:
    return {
        job_id: (cpu_s(one), one["UsedMemory"], one["UsedVirtMem"], sorted(one["extra"]))
        for job_id, one in jobs(database).items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_lines_in_any_order_and_in_any_files_give_the_same(seed: int, tmp_path: Path) -> None:
    lines, rng = life(), random.Random(seed)
    run_import(tmp_path / "expected.db", write(tmp_path / "expected.txt", text(lines)))
    rng.shuffle(lines)
    cuts = sorted({0, len(lines), *rng.sample(range(len(lines)), seed)})
    files = [write(tmp_path / f"{at}.txt", text(lines[at:to])) for at, to in pairwise(cuts)]
    database = tmp_path / "imported.db"
    for _ in range(2):
        assert run_import(database, *files).troubles == []
    again = run_import(database, *files)
    assert (again.imported, again.updated, again.held) == (0, 0, 0)
    assert usage(database) == usage(tmp_path / "expected.db")


def test_steps_of_a_job_that_waits_for_a_ce(tmp_path: Path) -> None:
    """It may have been read before its steps, and becomes a job here when no CE claims it."""
    create(arc := tmp_path / "arc.db")
    one, database = job(1, **NO_CPU), tmp_path / "imported.db"
    options: dict[str, Any] = {"arc_databases": (arc,), "now": datetime.fromtimestamp(int(str(one["End"])) + 60, UTC)}
    other = job(2)
    for number, lines in enumerate(([one, other, step(other)], [step(one, **OWN), other, step(other)])):
        report = run_import(database, write(tmp_path / f"{number}.txt", text(lines)), **options)
        assert (report.imported, report.bad, report.troubles) == (0, 0, [])
    run_import(database, tmp_path / "1.txt", **options | {"now": NOW})
    found = jobs(database)[f"{CLUSTER}:1:{one['Submit']}"]
    assert (cpu_s(found), found["UsedMemory"]) == (10, 8420)
