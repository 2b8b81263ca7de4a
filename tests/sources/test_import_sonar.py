"""What Sonar tells of jobs: what becomes of each trap that real collections hold."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from publisher.model.errors import ConfigError, UsageError
from publisher.sources.files.site_mapping import UnmappedVo
from publisher.sources.files.slurm_jobs import MOST_NODES, Resources, node_names, read_tres
from publisher.sources.importers import ImportReport
from publisher.sources.sonar.cluster import read_samples
from publisher.sources.sonar.envelopes import BadEnvelope, open_envelope
from publisher.sources.sonar.importer import TABLES, Options, create
from publisher.sources.sonar.records import BadSonarRecord, Layer, merged, overlay, read_record
from publisher.sources.sonar.site_mapping import SonarWall
from tests.support.batch_stores import CPU_UNKNOWN, read_into, records
from tests.support.gridengine_files import extra_of, jobs, totals, write
from tests.support.patience import bounded
from tests.support.sonar_files import (
    CLUSTER,
    DAY,
    NOW,
    Json,
    after,
    envelope,
    other,
    record,
    run_import,
    step,
    text,
    trouble,
)
from tests.support.strategies import examples

JOB_ID = f"{CLUSTER}:4711:20260921T081000"
START, END = DAY + timedelta(seconds=600), DAY + timedelta(seconds=6600)
FOX = "fox.educloud.no"
# Jobs, wall and CPU seconds by the rule of section 2.4.
SAMPLES = {
    "jobs-fox-v0.18.1.json": (55, 110_617, 652_040),
    "spec-slurmjobs.json": (0, 0, 0),  # a step without its job, and an error
    "spec-samples.json": (0, 0, 0),
    "spec-sysinfo.json": (0, 0, 0),
    "spec-cluster.json": (0, 0, 0),
    "cluster-fox-v0.16.json": (0, 0, 0),
    "sample-gpu-ex3-v0.16.json": (0, 0, 0),
}


def samples() -> Path:
    folder = os.environ.get("PUBLISHER_SAMPLES")
    if not folder:
        pytest.skip("PUBLISHER_SAMPLES is not set")
    return Path(folder) / "sonar"


def imported(folder: Path, *told: bytes, **options: Any) -> dict[str, Any]:
    """The one job that these envelopes give."""
    folder.mkdir(exist_ok=True)
    report = run_import(folder / "imported.db", write(folder / "told", told), **options)
    assert (report.bad, report.troubles) == (0, [])
    ((_, job),) = jobs(folder / "imported.db").items()
    return job


def all_of(folder: Path, *told: bytes, **options: Any) -> tuple[dict[str, dict[str, Any]], Any]:
    report = run_import(folder / "imported.db", write(folder / "told", told), **options)
    return jobs(folder / "imported.db"), report


def cpu(job: dict[str, Any]) -> tuple[int, int]:
    return job["UsedCPUUserTime"], job["UsedCPUKernelTime"]


def partial(state: str, **more: Any) -> Json:
    return {"job_id": 4711, "job_name": "analysis", "job_state": state, **more}


# Real files


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_real_file_gives_its_totals(name: str, tmp_path: Path) -> None:
    database = tmp_path / "imported.db"
    report = read_into(database, create(Options(cluster=FOX), {}), TABLES, samples() / name, now=NOW)
    assert totals(database) == SAMPLES[name]
    assert (report.bad, report.troubles) == (0, [])


def test_all_real_files_are_known_here_and_add_up(tmp_path: Path) -> None:
    database, folder = tmp_path / "imported.db", samples()
    assert {path.name for path in folder.glob("*.json")} == set(SAMPLES)
    report = read_into(
        database, create(Options(cluster=FOX), {}), TABLES, *(folder / name for name in SAMPLES), now=NOW
    )
    assert totals(database) == (55, 110_617, 652_040)
    assert report.skipped == {"never started (CANCELLED)": 4}
    assert (report.held, report.orphans) == (32 + 31 + 1, 1)
    assert [note for note in report.notes if "Sonar reported" in note] == [
        "Sonar reported an error (1 time): c1-26.fox: No can do",
        "Sonar reported an error (1 time): Node not cooperating",
    ]


def test_real_jobs_say_what_sacct_said_of_them(tmp_path: Path) -> None:
    database = tmp_path / "imported.db"
    path = samples() / "jobs-fox-v0.18.1.json"
    read_into(database, create(Options(cluster=FOX), {}), TABLES, path, now=NOW)
    found = {job["LocalJobID"]: job for job in jobs(database).values()}
    seen = 0
    for line in (samples() / "jobs-fox-v0.18.1.sacct.psv").read_text().splitlines():
        row = line.split("|")
        local_id, user, account, state, elapsed, partition = row[0], row[2], row[3], row[4], row[12], row[28]
        if local_id not in found:
            continue
        job = found[local_id]
        seen += 1
        assert (job["UsedWalltime"], job["Queue"]) == (int(elapsed), partition)
        assert dict(job["extra"])["localuser"] == f"{user}:{account}"
        assert job["Status"] == {"COMPLETED": "completed", "CANCELLED": "aborted"}.get(state.split()[0], "failed")
    assert seen == 55


# What a job says


def test_a_job_and_its_steps_are_one_row(tmp_path: Path) -> None:
    steps = [step("batch", sacct__AveCPU=3000, sacct__MaxRSS=9000), step("extern"), step("0", sacct__AveCPU=50)]
    job = imported(tmp_path, envelope([*steps, record()]))
    assert cpu(job) == (30_000, 600)
    assert (job["UsedWalltime"], job["UsedMemory"], job["UsedVirtMem"]) == (6000, 9000, 4096)
    assert (job["CPUCount"], job["NodeCount"], job["GPUCount"]) == (8, 2, 2)
    assert (job["SubmitTime"], job["StartTime"], job["EndTime"]) == (
        int(DAY.timestamp()),
        int(START.timestamp()),
        int(END.timestamp()),
    )
    assert (job["LocalJobID"], job["Queue"], job["Status"], job["ExitCode"]) == ("4711", "normal", "completed", 0)
    assert (job["Interface"], job["URL"]) == ("slurm", f"slurm://{CLUSTER}")
    assert dict(job["extra"]) == {
        "lrms": "slurm",
        "localuser": "ada:theory",
        "jobname": "analysis",
        "projectname": "theory",
        "nodenames": "c1-9:c1-10",
        "gpumodels": "a100=2",
        "quantities": f"TimeLimit=7200 mem={16 * 2**20} billing=8 SecsPreSuspend=0",
    }
    assert list(jobs(tmp_path / "imported.db")) == [JOB_ID]


def test_without_the_name_of_a_cluster_there_may_be_one(tmp_path: Path) -> None:
    database, path = tmp_path / "imported.db", tmp_path / "told"

    def read() -> ImportReport:
        return read_into(database, create(Options(), os.environ), TABLES, path, now=NOW)

    path.write_bytes(envelope([record(job_id=1)], cluster="a.example.org"))
    assert (read().imported, list(jobs(database))) == (1, ["sonar:1:20260921T081000"])
    path.write_bytes(path.read_bytes() + envelope([record(job_id=2)], cluster="b.example.org"))
    report = read()
    assert report.imported == 0
    assert "has records of the clusters a.example.org and b.example.org; write cluster" in report.troubles[0]
    path.write_bytes(
        path.read_bytes().splitlines(keepends=True)[0] + envelope([record(job_id=3)], cluster="a.example.org")
    )
    assert len(jobs(database)) == 1
    assert read().imported == 1


def test_both_spellings_of_the_type_are_jobs(tmp_path: Path) -> None:
    told = [envelope([record(job_id=n)], kind=kind) for n, kind in enumerate(("job", "jobs"), start=1)]
    assert len(all_of(tmp_path, *told)[0]) == 2


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        ("COMPLETED", "completed", 0),
        ("CANCELLED by 2101037", "aborted", None),
        ("CANCELLED", "aborted", None),
        ("FAILED", "failed", None),
        ("TIMEOUT", "failed", None),
        ("OUT_OF_MEMORY", "failed", None),
        ("DEADLINE", "failed", None),
        ("NODE_FAIL", "failed", None),
        ("PREEMPTED", "failed", None),
        ("BOOT_FAIL", "failed", None),
        ("REQUEUED", "failed", None),
        ("NEW_IN_SLURM_30", "failed", None),
    ],
)
def test_the_state_is_its_first_word(state: str, status: str, code: int | None, tmp_path: Path) -> None:
    """And a signal leaves no code: nothing is made of that."""
    job = imported(tmp_path, envelope([step("batch", job_state="FAILED", exit_code=7), record(job_state=state)]))
    assert (job["Status"], job["ExitCode"]) == (status, code)


def test_an_exit_code_is_told(tmp_path: Path) -> None:
    assert imported(tmp_path, envelope([record(job_state="FAILED", exit_code=3)]))["ExitCode"] == 3


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "RESIZING"])
def test_a_job_that_is_not_over_waits(state: str, tmp_path: Path) -> None:
    found, report = all_of(tmp_path, envelope([record(job_state=state)]))
    assert (found, report.held, report.skipped.total()) == ({}, 1, 0)


def test_a_job_that_never_started_is_no_usage(tmp_path: Path) -> None:
    gone = record(job_state="CANCELLED by 17", start_time=None, sacct=None, nodes=None, allocated_resources=None)
    found, report = all_of(tmp_path, envelope([gone]), envelope([gone], after(90)))
    assert (found, report.skipped) == ({}, {"never started (CANCELLED)": 1})
    assert run_import(tmp_path / "imported.db", tmp_path / "told").skipped == {}


_GIVEN_NOTHING = {"sacct": None, "nodes": ["None assigned"], "allocated_resources": None}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"end_time": after(600), "job_state": "CANCELLED by 7", **_GIVEN_NOTHING}, "never started (CANCELLED)"),
        ({"end_time": after(500), "sacct": None}, "ended before it started"),
    ],
)
def test_a_job_that_was_given_nothing_is_no_usage(more: Json, reason: str, tmp_path: Path) -> None:
    found, report = all_of(tmp_path, envelope([record(**more)]))
    assert (found, report.skipped) == ({}, {reason: 1})


def test_a_job_that_took_less_than_a_second_counts(tmp_path: Path) -> None:
    """As with Grid Engine: it ran, and had CPUs."""
    found, report = all_of(tmp_path, envelope([record(end_time=after(600), sacct=None)]))
    ((_, job),) = found.items()
    assert (job["UsedWalltime"], job["CPUCount"], report.skipped.total()) == (0, 8, 0)


@pytest.mark.parametrize("form", [1, "1", True, 0.5, []])
def test_a_format_that_is_not_known_is_not_read_as_the_first(form: Any, tmp_path: Path) -> None:
    told = json.loads(envelope([record()]))
    other = json.loads(envelope([record(job_id=5)]))
    told["meta"]["format"], other["meta"]["format"] = form, 0
    found, report = all_of(tmp_path, json.dumps(told).encode(), json.dumps(other).encode())
    assert (len(found), report.bad) == (1, 1)
    assert "which is not known" in report.bad_lines[0].reason


def test_steps_without_their_job_are_counted(tmp_path: Path) -> None:
    found, report = all_of(tmp_path, envelope([step("batch"), step("extern"), step("0", job_id=5)]))
    assert (found, report.held, report.orphans) == ({}, 2, 2)
    assert report.orphans_are == ("job known only by its steps", "jobs known only by their steps")
    assert imported(tmp_path / "later", envelope([step("batch")]), envelope([record()]))["UsedWalltime"] == 6000


def test_a_job_whose_end_never_came_is_told(tmp_path: Path) -> None:
    told = envelope([record(job_state="RUNNING", end=None)])
    assert "1 job was seen waiting or running long ago" in all_of(tmp_path, told)[1].notes[0]
    report = run_import(tmp_path / "imported.db", tmp_path / "told", now=DAY + timedelta(days=2))
    assert report.notes == []


# Hold-off


def test_a_job_is_imported_when_its_steps_had_time_to_come(tmp_path: Path) -> None:
    path, database = (
        write(tmp_path / "told", [envelope([record(sacct__UserCPU=0, sacct__SystemCPU=0)])]),
        tmp_path / "i",
    )
    report = run_import(database, path, now=END + timedelta(minutes=89))
    assert (report.imported, report.held) == (0, 1)
    with path.open("ab") as file:
        file.write(envelope([step("batch", sacct__AveCPU=77)], after(7000)))
    report = run_import(database, path, now=END + timedelta(minutes=90))
    assert (report.imported, report.updated, report.merged, report.held) == (1, 0, 1, 0)
    assert sum(cpu(next(iter(jobs(database).values())))) == 77
    # A step that comes later still changes the row.
    with path.open("ab") as file:
        file.write(envelope([step("0", sacct__AveCPU=23)], after(90_000)))
    report = run_import(database, path)
    assert (report.imported, report.updated) == (0, 1)
    assert sum(cpu(next(iter(jobs(database).values())))) == 100


def test_the_hold_off_ends_without_anything_new(tmp_path: Path) -> None:
    path, database = write(tmp_path / "told", [envelope([record()])]), tmp_path / "i"
    assert run_import(database, path, now=END, hold_off_s=60).imported == 0
    assert run_import(database, path, now=END + timedelta(seconds=60), hold_off_s=60).imported == 1


def test_a_job_that_was_taken_back_comes_again(tmp_path: Path) -> None:
    """Its end turns out to be later."""
    database = tmp_path / "imported.db"
    told, late = record(), record(end_time=after(9000))
    others = [record(job_id=number) for number in (2, 3)]
    found = []
    for name, what, now in (
        ("first", [told], END + timedelta(seconds=60)),
        ("others", others, END + timedelta(seconds=61)),
        ("late", [late], END + timedelta(seconds=62)),
        ("last", [others[0]], END + timedelta(hours=2)),
    ):
        path = write(tmp_path / name, [envelope(what, text(now))])
        run_import(database, path, now=now, hold_off_s=60)
        found.append({job.local_id: job.run_key for job in records(database)})
    assert "4711" in found[0]
    assert "4711" not in found[2]
    assert found[3]["4711"] == found[0]["4711"]
    assert len(found[3]) == 3


# Overlay


def test_records_are_laid_over_field_by_field(tmp_path: Path) -> None:
    told = [
        envelope(
            [partial("PENDING", submit_time=after(0), user_name="ada", account="theory", partition="normal")], after(1)
        ),
        envelope([partial("RUNNING", submit_time=after(0), start_time=after(600), nodes=["c1-9"])], after(700)),
        envelope([partial("COMPLETED", end_time=after(6600), sacct={"ElapsedRaw": 6000})], after(6700)),
        envelope([partial("COMPLETED", sacct={"UserCPU": 60, "AllocTRES": "cpu=3,node=1"})], after(6800)),
    ]
    for order in (told, told[::-1], [told[2], told[0], told[3], told[1]]):
        job = imported(tmp_path / str(len(list(tmp_path.iterdir()))), *order)
        assert (job["UsedWalltime"], job["CPUCount"], job["NodeCount"], cpu(job)) == (6000, 3, 1, (60, 0))
        assert (job["Queue"], dict(job["extra"])["localuser"]) == ("normal", "ada:theory")


def test_the_later_word_counts_and_an_ended_job_more_than_a_running_one(tmp_path: Path) -> None:
    told = [
        envelope([record(job_name="first", sacct__UserCPU=1)], after(7000)),
        envelope([record(job_name="last", sacct__UserCPU=2)], after(8000)),
        envelope([record(job_state="RUNNING", job_name="stale", sacct__UserCPU=3, end=None)], after(9000)),
    ]
    for order in (told, told[::-1]):
        job = imported(tmp_path / str(len(list(tmp_path.iterdir()))), *order)
        assert (dict(job["extra"])["jobname"], cpu(job)[0]) == ("last", 2)


def test_zeros_and_empty_texts_of_other_producers_say_nothing(tmp_path: Path) -> None:
    plain = imported(tmp_path / "a", envelope([record()]))
    nothing = {"job_name": "", "account": "", "exit_code": 0, "end_time": "", "sacct": {"UserCPU": 0, "AllocTRES": ""}}
    empty = partial("COMPLETED", job_step="", start_time=after(600), nodes=[]) | nothing
    assert imported(tmp_path / "b", envelope([record(job_step="")]), envelope([empty], after(9000))) == plain


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, 3),
            st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 2, "x", [1]])),
        ),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_layers_does_not_matter(told: list[tuple[int, int, Json]], rng: Any) -> None:
    def stack(order: list[tuple[int, int, Json]]) -> list[Layer]:
        layers: list[Layer] = []
        for each in order:
            layers = overlay(layers, Layer(*each))
        return layers

    expected = stack(told)
    assert stack(told + told) == expected
    shuffled = told.copy()
    rng.shuffle(shuffled)
    assert stack(shuffled) == expected
    assert merged(expected) == merged(expected[::-1])


# Requeueing


def test_a_requeued_job_has_a_row_for_each_run_that_ended(tmp_path: Path) -> None:
    again = after(10_000)
    told = [
        envelope([record(job_state="PREEMPTED"), step("batch", sacct__AveCPU=40_000)], after(7000)),
        envelope([partial("PENDING", submit_time=after(6600), user_name="ada")], after(7500)),
        envelope(
            [
                record(
                    submit_time=after(6600),
                    start_time=again,
                    end=after(10_100),
                    sacct__ElapsedRaw=100,
                    sacct__UserCPU=5,
                ),
                step("batch", start_time=again, sacct__AveCPU=900),
            ],
            after(11_000),
        ),
    ]
    for order in (told, told[::-1]):
        found, _ = all_of(tmp_path, *order)
        assert [(job["UsedWalltime"], sum(cpu(job))) for _, job in sorted(found.items())] == [
            (6000, 40_000),
            (100, 900),
        ]
        assert {job["LocalJobID"] for job in found.values()} == {"4711"}


def test_a_run_whose_end_was_never_seen_is_counted(tmp_path: Path) -> None:
    told = [
        envelope([record(job_state="RUNNING", end=None)], after(1000)),
        envelope([record(submit_time=after(2000), start_time=after(3000))], after(7000)),
    ]
    found, report = all_of(tmp_path, *told)
    assert list(found) == [f"{CLUSTER}:4711:20260921T085000"]
    assert report.skipped == {"requeued before its end was seen": 1}


def test_a_requeued_job_that_is_cancelled_while_it_waits_keeps_its_first_run(tmp_path: Path) -> None:
    told = [
        envelope([record(job_state="NODE_FAIL")], after(7000)),
        envelope([partial("CANCELLED by 1", submit_time=after(6600), end_time=after(9000))], after(9100)),
    ]
    job = imported(tmp_path, *told)
    assert (job["EndTime"], job["Status"]) == (int(END.timestamp()), "failed")


def test_numbers_of_jobs_wrap_around(tmp_path: Path) -> None:
    later = DAY + timedelta(days=400)
    then = record(submit_time=text(later), start_time=after(5, later), end_time=after(6005, later))
    found, _ = all_of(
        tmp_path, envelope([record()]), envelope([then], after(9000, later)), now=NOW + timedelta(days=900)
    )
    assert len(found) == 2


# Ids


@pytest.mark.parametrize(
    ("more", "local_id"),
    [
        ({"array_job_id": 4700, "array_task_id": 7}, "4700_7"),
        ({"array_job_id": 4711}, "4711_0"),
        ({"array_job_id": 0}, "4711"),
        ({"het_job_id": 4711, "het_job_offset": 1}, "4711"),
    ],
)
def test_a_task_of_an_array_may_have_that_ones_number(more: Json, local_id: str, tmp_path: Path) -> None:
    assert imported(tmp_path / "a", envelope([record(**more)]), array_ids=True)["LocalJobID"] == local_id
    assert imported(tmp_path / "b", envelope([record(**more)]))["LocalJobID"] == "4711"


# Figures


@pytest.mark.parametrize(
    ("user", "system", "steps", "expected"),
    [
        (30_000, 600, [100], (30_000, 600)),
        (0, 0, [12, 30, 1], (43, 0)),  # below an hour the fields of the job are lost
        (60, 60, [100, 50], (90, 60)),  # the greater in all, the rest is the user's
        (0, 500, [100], (0, 500)),
        (120, 0, [], (120, 0)),
        (0, 0, [], (0, 0)),
        (1.6, 0.4, [], (2, 0)),
    ],
)
def test_cpu_time_is_the_greater_of_job_and_steps(
    user: float, system: float, steps: list[int], expected: tuple[int, int], tmp_path: Path
) -> None:
    told = [step(str(number), sacct__AveCPU=seconds) for number, seconds in enumerate(steps)]
    assert cpu(imported(tmp_path, envelope([record(sacct__UserCPU=user, sacct__SystemCPU=system), *told]))) == expected


@pytest.mark.parametrize(
    ("more", "steps", "unknown"),
    [
        ({"sacct__UserCPU": None, "sacct__SystemCPU": None}, [], True),
        ({"sacct__UserCPU": None, "sacct__SystemCPU": None}, [step("0", sacct__AveCPU=None)], True),
        ({"sacct__UserCPU": None, "sacct__SystemCPU": None}, [step("0", sacct__AveCPU=7)], False),
        ({"sacct__UserCPU": None, "sacct__SystemCPU": 60}, [], False),
        ({}, [], False),
    ],
)
def test_cpu_time_of_which_nothing_is_told_is_unknown(
    more: Json, steps: list[Json], unknown: bool, tmp_path: Path
) -> None:
    imported(tmp_path, envelope([record(**more), *steps]))
    assert (CPU_UNKNOWN in extra_of(tmp_path / "imported.db")) is unknown


@pytest.mark.parametrize(
    ("version", "memory"),
    [
        *(("0.13.0", 0), ("0.15.9", 0), ("0.16.0-rc7", 0), ("0.18.1", 0), ("", 0), ("devel", 0)),
        *(("0.18.2", 2048), ("0.19.0-devel", 2048), ("1.2.3", 2048), ("0.20", 2048)),
    ],
)
def test_sizes_of_memory_are_believed_since_they_are_right(version: str, memory: int, tmp_path: Path) -> None:
    job = imported(tmp_path, envelope([record(), step("batch")], version=version))
    assert job["UsedMemory"] == memory
    assert job["UsedVirtMem"] == 2 * memory


def test_wall_time_is_slurms_own_or_by_the_clock(tmp_path: Path) -> None:
    told = envelope([record(sacct__ElapsedRaw=5000, suspend_time=1000)])
    assert imported(tmp_path / "a", told)["UsedWalltime"] == 5000
    assert imported(tmp_path / "b", told, wall_from=SonarWall.TIMES)["UsedWalltime"] == 6000
    assert imported(tmp_path / "c", envelope([record(sacct__ElapsedRaw=None)]))["UsedWalltime"] == 6000


@pytest.mark.parametrize(
    ("tres", "expected"),
    [
        (
            "billing=32,cpu=32,gres/gpu:a100=1,gres/gpu=1,mem=128G,node=1",
            Resources(32, 1, 1, 128 * 2**20, 32, (("a100", 1),), has_gpu_total=True),
        ),
        ("cpu=1,gres/gpu:a100=2,gres/gpu:h100=1", Resources(1, None, 3, None, None, (("a100", 2), ("h100", 1)))),
        ("gres/gpu=4", Resources(None, None, 4, has_gpu_total=True)),
        (
            "billing=128,cpu=128,energy=52238802,mem=472.50G,node=1",
            Resources(128, 1, None, 495_452_160, 128, (), 52_238_802),
        ),
        ("cpu=2K,node=1.0,license/x=3", Resources(2048, 1, None)),
        ("cpu=0,mem=0", Resources()),
        ("mem=1000,billing=0", Resources(billing=0)),
        ("mem=500M,billing=x", Resources(memory_kib=512_000)),
        ("cpu=x,node=-1,gres/gpu=1e9", Resources()),
        ("cpu", Resources()),
        ("", Resources()),
        ("cpu=99999P", Resources()),
        ("cpu=1," * 20_000, Resources()),
        ("cpu=٣", Resources()),
    ],
)
def test_trackable_resources(tres: str, expected: Resources) -> None:
    assert read_tres(tres) == expected


def test_before_0_16_resources_are_those_of_sacct_and_cpus_else_the_request(tmp_path: Path) -> None:
    job = imported(tmp_path / "a", envelope([record(allocated_resources=None, sacct__AllocTRES="cpu=6,node=3")]))
    assert (job["CPUCount"], job["NodeCount"], job["GPUCount"]) == (6, 3, 0), "what it was given has no GPU"
    job = imported(tmp_path / "b", envelope([record(allocated_resources=None, sacct__AllocTRES=None)]))
    assert (job["CPUCount"], job["NodeCount"], job["GPUCount"]) == (8, 2, None)


@pytest.mark.parametrize(
    ("ranges", "names"),
    [
        (["gpu-2"], "gpu-2"),
        (["c1-[9-10]"], "c1-9 c1-10"),
        (["c1-[9-10]", "bigmem-1", "c1-9"], "c1-9 c1-10 bigmem-1"),
        (["n[018-020]"], "n018 n019 n020"),
        (["n[8-11]"], "n8 n9 n10 n11"),
        (["n[08-11,3]x"], "n08x n09x n10x n11x n3x"),
        (["r[1-2]n[1-2]"], "r1n1 r1n2 r2n1 r2n2"),
        (["c1-[9-10],gpu-[2,4]"], "c1-9 c1-10 gpu-2 gpu-4"),
        (["[1-3]"], "1 2 3"),
        *(
            ([text], "")
            for text in ("None assigned", "None allocated", "", "n[", "n]", "n[]", "n[1-]", "n[2-1]", "a b")
        ),
        *(([text], "") for text in ("n[a-c]", "n,,m", ",", "n[1-2", "n[[1]]", "n[1]\n", "n[9999999999]", "n[1--2]")),
        (["c1-9", "None assigned"], ""),
        ([], ""),
    ],
)
def test_ranges_of_nodes(ranges: list[str], names: str) -> None:
    assert node_names(ranges) == tuple(names.split())


@pytest.mark.parametrize(
    "text",
    [
        *("n[0-999999999]", "n[1-100][1-100][1-100]", "n[1-9999]" * 30, "n[" + "1," * 60_000 + "1]", "[1]" * 50_000),
        *("n[1-9],".rstrip() * 100_000, "[" * 100_000, "a," * 100_000, "n[1-10001]", "x" * 300_000),
    ],
)
def test_ranges_are_read_in_bounded_time(text: str) -> None:
    with bounded():
        assert len(node_names([text])) <= MOST_NODES


def test_as_many_nodes_as_there_may_be() -> None:
    assert len(node_names([f"n[1-{MOST_NODES}]"])) == MOST_NODES
    assert node_names([f"n[1-{MOST_NODES}]", "m"]) == ()


def test_what_was_allocated_is_the_number_of_nodes(tmp_path: Path) -> None:
    job = imported(tmp_path / "a", envelope([record(nodes=["c1-[1-3]"])]))
    assert (job["NodeCount"], dict(job["extra"])["nodenames"]) == (2, "c1-1:c1-2:c1-3")
    report = run_import(tmp_path / "b", tmp_path / "a" / "told")
    assert report.notes == ["1 job lists another number of nodes than were allocated; the latter counts"]
    job = imported(tmp_path / "c", envelope([record(nodes=["None assigned"])]))
    assert (job["NodeCount"], "nodenames" in dict(job["extra"])) == (2, False)


# Times

WINTER = "+01:00"


def clock(moment: str, offset: str) -> str:
    return f"2026-{moment}{offset}"


def test_without_a_zone_the_first_offset_that_was_seen_is_believed(tmp_path: Path) -> None:
    """A job of the night before the clocks change, told again after they did."""
    early: Json = {}
    late: Json = {}
    for times, offset in ((early, "+02:00"), (late, WINTER)):
        times["submit_time"] = clock("10-24T21:00:00", offset)
        times["start_time"], times["end_time"] = clock("10-24T22:00:00", offset), clock("10-24T23:40:00", offset)
    told = [envelope([record(**early)], clock("10-24T23:50:00", "+02:00"))]
    told.append(envelope([record(**late)], clock("10-25T04:00:00", WINTER)))
    for order in (told, told[::-1]):
        found, report = all_of(tmp_path, *order)
        ((job_id, job),) = found.items()
        assert job_id == f"{CLUSTER}:4711:20261024T220000"
        assert job["StartTime"] == int(datetime(2026, 10, 24, 20, tzinfo=UTC).timestamp())
        assert job["EndTime"] - job["StartTime"] == job["UsedWalltime"] == 6000
        assert report.notes == []


@pytest.mark.parametrize("offset", ["+02:00", WINTER, ""])
def test_with_the_zone_of_the_cluster_times_are_right_whatever_offset_is_claimed(offset: str, tmp_path: Path) -> None:
    more = {
        "submit_time": clock("10-24T21:00:00", offset),
        "start_time": clock("10-24T23:00:00", offset),
        "end_time": clock("10-25T05:00:00", offset),
        "sacct__ElapsedRaw": 7 * 3600,
    }
    told = envelope([record(**more)], clock("10-25T05:10:00", WINTER))
    job = imported(tmp_path, told, time_zone="Europe/Oslo")
    assert job["StartTime"] == int(datetime(2026, 10, 24, 21, tzinfo=UTC).timestamp())
    assert job["EndTime"] == int(datetime(2026, 10, 25, 4, tzinfo=UTC).timestamp())
    assert list(jobs(tmp_path / "imported.db")) == [f"{CLUSTER}:4711:20261024T230000"]


@pytest.mark.parametrize(("wall", "hour"), [(3600, 0), (7200, 1)])
def test_in_the_hour_that_comes_twice_the_end_is_what_fits(wall: int, hour: int, tmp_path: Path) -> None:
    more = {"start_time": clock("10-25T01:30:00", WINTER), "end_time": clock("10-25T02:30:00", WINTER)}
    told = envelope([record(**more, sacct__ElapsedRaw=wall)], clock("10-25T04:00:00", WINTER))
    job = imported(tmp_path, told, time_zone="Europe/Oslo")
    assert job["StartTime"] == int(datetime(2026, 10, 24, 23, 30, tzinfo=UTC).timestamp())
    assert job["EndTime"] == int(datetime(2026, 10, 25, hour, 30, tzinfo=UTC).timestamp())


def test_an_hour_too_many_is_told(tmp_path: Path) -> None:
    told = envelope([record(sacct__ElapsedRaw=9600)])
    assert "set importers.sonar.time_zone" in all_of(tmp_path, told)[1].notes[0]


def test_a_time_without_an_offset_needs_the_zone(tmp_path: Path) -> None:
    told = envelope([record(start_time="2026-09-21T08:10:00")])
    report = all_of(tmp_path, told)[1]
    assert (report.bad, report.bad_lines[0].reason) == (
        1,
        "record 1 of the envelope: a time has no offset from UTC: set importers.sonar.time_zone",
    )


# Site


def test_who_a_job_belongs_to_is_in_the_maps(tmp_path: Path) -> None:
    for name, lines in {
        "users": "ada /DC=org/CN=Ada Lovelace\n",
        "accounts": "theory theo\n",
        "vos": "bob bobs\nada adas\n",
        "projects": "theory Theory of Everything\n",
    }.items():
        (tmp_path / name).write_text(lines)
    options: dict[str, Any] = {
        "user_map": tmp_path / "users",
        "account_vo_map": tmp_path / "accounts",
        "user_vo_map": tmp_path / "vos",
        "account_project_map": tmp_path / "projects",
        "unmapped_vo": UnmappedVo.LOCAL,
        "submit_host": "https://ce.example.org:443/arex",
    }
    told = [
        record(job_id=1),
        record(job_id=2, user_name="bob", account="astro"),
        record(job_id=3, user_name="eve", account="astro"),
        record(job_id=4, user_name="eve", account=None),
    ]
    found = {job["LocalJobID"]: job for job in all_of(tmp_path, envelope(told), **options)[0].values()}
    assert [found[n]["VO"] for n in "1234"] == ["theo", "bobs", "local-astro", ""]
    assert [found[n]["User"] for n in "12"] == ["/DC=org/CN=Ada Lovelace", ""]
    assert [dict(found[n]["extra"]).get("projectname") for n in "124"] == ["Theory of Everything", "astro", None]
    assert dict(found["4"]["extra"])["localuser"] == "eve"
    assert found["1"]["URL"] == "https://ce.example.org:443/arex"


def test_jobs_may_be_left_out(tmp_path: Path) -> None:
    told = [
        record(job_id=1, user_name="prdatl7"),
        record(job_id=2, account="grid"),
        record(job_id=3, partition="gp"),
        record(job_id=4, job_state="CANCELLED by 1"),
        record(),
    ]
    found, report = all_of(
        tmp_path,
        envelope(told),
        exclude_users=("prdatl*",),
        exclude_accounts=("grid",),
        exclude_partitions=("gp",),
        exclude_states=("CANCELLED",),
    )
    assert report.skipped == Counter(
        {f"left out by exclude_{w}": 1 for w in ("users", "accounts", "partitions", "states")}
    )
    assert list(found) == [JOB_ID]


def test_other_clusters_are_counted(tmp_path: Path) -> None:
    told = [envelope([record(), step("0")], cluster="bling"), envelope([], cluster="x"), envelope([record(job_id=1)])]
    found, report = all_of(tmp_path, *told)
    assert (len(found), report.lines) == (1, 3)
    assert report.skipped == {"of the cluster bling, not of importers.sonar.cluster": 2}


def test_another_cluster_needs_another_source(tmp_path: Path) -> None:
    all_of(tmp_path, envelope([record()]))
    other = create(Options(cluster="bling"), {})
    with pytest.raises(UsageError, match=f"has jobs of the cluster {CLUSTER}"):
        read_into(tmp_path / "imported.db", other, TABLES, tmp_path / "told", now=NOW)


def test_a_map_that_is_wrong_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"importers\.sonar\.account_vo_map"):
        create(Options(cluster=CLUSTER, account_vo_map=tmp_path / "missing"), {})


# The cluster itself


def test_threads_may_be_published_as_cores(tmp_path: Path) -> None:
    told = [
        envelope([record()]),
        other("sysinfo", after(0), node="c1-9.fox", sockets=2, cores_per_socket=8, threads_per_core=2),
    ]
    report = all_of(tmp_path, *told)[1]
    assert "set importers.sonar.threads_per_core to 2 to publish cores" in report.notes[0]
    assert run_import(tmp_path / "a", tmp_path / "told", threads_per_core=1).notes == []
    run_import(tmp_path / "b", tmp_path / "told", threads_per_core=3)
    assert next(iter(jobs(tmp_path / "b").values()))["CPUCount"] == 3  # 8 threads on 2 2/3 cores


def test_partitions_and_cores_are_checked(tmp_path: Path) -> None:
    old = other("cluster", after(0), slurm=True, partitions=[{"name": "gone", "nodes": ["c1-[1-9]"]}])
    new = other("cluster", after(9), slurm=True, partitions=[{"name": "normal", "nodes": ["c1-[1-9]"]}])
    small = [other("sysinfo", after(0), node=f"c1-{n}", sockets=1, cores_per_socket=3) for n in (9, 10)]
    told = [
        new,
        old,
        *small,
        envelope([record(partition="gone"), record(job_id=2, allocated_resources="cpu=6,node=2")]),
    ]
    assert all_of(tmp_path, *told)[1].notes == [
        "1 job has more CPUs than sysinfo reports for their nodes",
        "1 job ran in partitions that the newest cluster data does not have: gone; "
        "do importers.sonar.cluster and the rules by queue still fit?",
    ]


def sample(at: float, job: int = 4711, node: str = "gpu-1", *, gpus: list[Json] | None = None, **more: Any) -> bytes:
    used = [{"index": 1, "uuid": "GPU-1", "gpu_util": 50, "gpu_memory": 1000}] if gpus is None else gpus
    process = {"resident_memory": 408, "cmd": "python", "pid": 7, "gpus": used}
    entry = {"job": job, "user": "ada", "processes": [process], **more}
    return other("sample", after(at), node=node, system={"gpus": [{"index": 0}]}, jobs=[entry])


def gpu_time(folder: Path, *told: bytes, **options: Any) -> tuple[str | None, str | None]:
    extra = dict(imported(folder, *told, envelope([record()]), **options)["extra"])
    quantities = dict(pair.split("=") for pair in extra["quantities"].split())
    return quantities.get("gpuseconds"), quantities.get("gpumemory")


COVERED = range(900, 6601, 300)


def test_gpu_time_is_that_of_all_samples(tmp_path: Path) -> None:
    assert gpu_time(tmp_path / "a", *map(sample, COVERED)) == ("3000", "1000")  # 20 times 300 s, half used
    both = [sample(at, node=node) for at in COVERED for node in ("gpu-1", "gpu-2")]
    assert gpu_time(tmp_path / "b", *both, *both) == ("6000", "2000")
    one: list[Json] = [
        {"uuid": "a", "gpu_util": 80},
        {"uuid": "a", "gpu_util": 80},
        {"index": 0, "gpu_util": 25.5, "gpu_memory": 5},
    ]
    assert gpu_time(tmp_path / "c", *(sample(at, gpus=one) for at in COVERED)) == ("7560", "5")
    idle = [sample(at, gpus=[]) for at in COVERED]
    assert gpu_time(tmp_path / "d", *idle) == ("0", "0")


def gpu_energy(folder: Path, *told: bytes) -> dict[str, str]:
    """What formulas may ask for of the energy of a job's GPUs."""
    extra = dict(imported(folder, *told, envelope([record()]))["extra"])
    pairs = (pair.split("=") for pair in extra["quantities"].split())
    return {name: value for name, value in pairs if "energy" in name}


def powered(at: float, *watts: object, users: int = 1) -> bytes:
    """A sample of GPUs by number that take so much, all used by each of some jobs."""
    gpus = [{"index": number, "uuid": f"GPU-{number}", "power": each} for number, each in enumerate(watts)]
    used: list[Json] = [{"uuid": f"GPU-{number}", "gpu_util": 50} for number in range(len(watts))]
    process = {"pid": 7, "gpus": used}
    jobs = [{"job": 4711 + number, "processes": [process]} for number in range(users)]
    return other("sample", after(at), node="gpu-1", system={"gpus": gpus}, jobs=jobs)


def test_the_energy_of_gpus_is_that_of_all_samples(tmp_path: Path) -> None:
    joules = 20 * 300  # for each watt
    assert gpu_energy(tmp_path / "a", *(powered(at, 200, 50.5) for at in COVERED)) == {
        "gpu_energy": str(joules * 501 // 2)
    }
    shared = [powered(at, 200, users=4) for at in COVERED]
    assert gpu_energy(tmp_path / "b", *shared, *shared) == {"gpu_energy": str(joules * 50)}
    assert gpu_energy(tmp_path / "c", *(powered(at, 200) for at in COVERED[::2])) == {}
    assert gpu_energy(tmp_path / "d", *(powered(at, 200, None) for at in COVERED)) == {}
    assert gpu_energy(tmp_path / "e", *map(sample, COVERED)) == {}


@pytest.mark.parametrize("absurd", [5001, -3, 1e300])
def test_power_that_cannot_be_is_counted_and_not_added(tmp_path: Path, absurd: float) -> None:
    told = [powered(at, 200, absurd if at == COVERED[3] else 10) for at in COVERED]
    assert gpu_energy(tmp_path, *told) == {"energy_rejected": "1"}


@pytest.mark.parametrize(
    ("told", "energy"),
    [("cpu=6,node=2,energy=52238802", {"energy": "52238802"}), ("cpu=6,node=2,energy=0", {}), ("cpu=6,node=2", {})],
)
def test_energy_that_slurm_has_is_kept(tmp_path: Path, told: str, energy: dict[str, str]) -> None:
    extra = dict(imported(tmp_path, envelope([record(allocated_resources=told)]))["extra"])
    found = dict(pair.split("=") for pair in extra.get("quantities", "").split())
    assert {name: value for name, value in found.items() if "energy" in name} == energy


def test_gpu_time_is_unknown_where_samples_are_missing(tmp_path: Path) -> None:
    assert gpu_time(tmp_path / "a", *map(sample, COVERED[::2])) == (None, "1000")
    assert gpu_time(tmp_path / "b", *map(sample, COVERED[::2]), sample_interval_s=600) == ("3000", "1000")
    assert gpu_time(tmp_path / "c", sample(0), sample(7000)) == (None, None)
    assert gpu_time(tmp_path / "d", *map(sample, COVERED), samples=False) == (None, None)


def test_what_is_no_batch_job_has_numbers_of_its_own(tmp_path: Path) -> None:
    assert gpu_time(tmp_path / "a", *(sample(at, epoch=166179831) for at in COVERED)) == (None, None)
    assert gpu_time(tmp_path / "b", *(sample(at, epoch=0) for at in COVERED)) == ("3000", "1000")


def test_samples_that_come_later_change_the_row(tmp_path: Path) -> None:
    imported(tmp_path, envelope([record()]))
    report = run_import(tmp_path / "imported.db", write(tmp_path / "0+sample-gpu-1.json", map(sample, COVERED)))
    assert (report.imported, report.updated) == (0, 1)


def test_real_samples_tell_batch_jobs_from_others(tmp_path: Path) -> None:
    told = json.loads((samples() / "sample-gpu-ex3-v0.16.json").read_text())
    found = read_samples(open_envelope(told))
    assert found
    batch = {job["job"] for job in told["data"]["attributes"]["jobs"] if not job.get("epoch")}
    assert {each.job for each in found} == batch
    assert next(each for each in found if each.job == 928613)[3:] == (16, 432128, None)


# Troubles


def test_errors_of_sonar_are_told(tmp_path: Path) -> None:
    told = [trouble("No can do", node="c1-26"), trouble("No can do", node="c1-26"), trouble("x" * 5000)]
    told += [trouble(f"trouble {n}") for n in range(50)]
    report = all_of(tmp_path, *told)[1]
    assert report.notes[0] == "Sonar reported an error (2 times): c1-26: No can do"
    assert (len(report.notes), report.notes[-1], report.exit_status) == (
        11,
        "and 42 other errors that Sonar reported",
        0,
    )
    assert max(map(len, report.notes)) < 300


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"data": {}}, "has no meta"),
        ({"meta": {}}, "neither data nor errors"),
        ({"meta": {}, "data": {}, "errors": []}, "both data and errors"),
        ({"meta": {}, "errors": []}, "an empty one"),
        ({"meta": {}, "data": 3}, "neither data nor errors"),
        ({"meta": {}, "data": {"type": "slurm_jobs"}}, "written by Sonar before 0.13"),
        ({"meta": {}, "data": {"type": "weather"}}, "'weather', which is not known"),
        ({"meta": {}, "data": {"type": ["job"]}}, "which is not known"),
        ({"meta": {}, "data": {"type": "job"}}, "has no attributes"),
        ({"meta": {}, "data": {"type": "job", "attributes": {}}}, "time: is not a time"),
        ({"meta": {}, "data": {"type": "job", "attributes": {"time": "soon"}}}, "'soon' is not a time"),
        ({"meta": {}, "data": {"type": "job", "attributes": {"time": "2026-01-01T00:00:00"}}}, "has no offset"),
    ],
)
def test_an_envelope_that_is_none(content: Json, reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadEnvelope, match=re.escape(reason)):
        open_envelope(content)
    found, report = all_of(tmp_path, json.dumps(content).encode() + b"\n", envelope([record()]))
    assert (len(found), report.bad, report.exit_status) == (1, 1, 65)


def test_an_empty_envelope_is_a_heartbeat(tmp_path: Path) -> None:
    bare = {"meta": {}, "data": {"type": "job", "attributes": {"time": after(0), "cluster": CLUSTER}}}
    _, report = all_of(tmp_path, envelope([]), json.dumps(bare).encode(), now=NOW)
    assert (report.lines, report.bad, report.exit_status) == (0, 0, 0)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"job_id": None}, "has no job_id"),
        ({"job_id": 0}, "has no job_id"),
        ({"job_id": "4711"}, "job_id is not a number"),
        ({"job_id": True}, "job_id is not a number"),
        ({"job_id": 2**70}, "job_id is 1180591620717411303424, which is out of range"),
        ({"job_id": -1}, "out of range"),
        ({"job_step": ["x"]}, "job_step is not the name"),
        ({"job_step": "x" * 100}, "job_step is not the name"),
        ({"job_state": 7}, "job_state is not text"),
        ({"start_time": 1790000000}, "start_time: is not a time"),
        ({"start_time": "yesterday"}, "start_time: 'yesterday' is not a time"),
        ({"end_time": "1900-01-01T00:00:00Z"}, "not a time of this age"),
        ({"end_time": "9999-12-31T23:59:59-12:00"}, "not a time of this age"),
        ({"nodes": "c1-9"}, "nodes is not a list"),
        ({"nodes": [1]}, "nodes is not a list"),
        ({"nodes": ["n"] * 20_000}, "nodes is too long"),
        ({"sacct": [1]}, "sacct is not an object"),
        ({"sacct__ElapsedRaw": 1e400}, "out of range"),
        ({"sacct__ElapsedRaw": float("nan")}, "out of range"),
        ({"sacct__UserCPU": -5}, "out of range"),
        ({"user_name": "x" * 2000}, "user_name is 2000 characters long"),
        ({"requested_cpus": 2**31}, "out of range"),
    ],
)
def test_a_bad_record_is_set_aside_and_its_neighbours_go_on(more: Json, reason: str, tmp_path: Path) -> None:
    told = envelope([record(job_id=1), record(**more), record(job_id=2)])
    first = envelope([record(job_id=3)])
    found, report = all_of(tmp_path, first, told)
    assert (len(found), report.bad, report.exit_status) == (3, 1, 65)
    (bad,) = report.bad_lines
    assert (bad.path, bad.offset, bad.length) == (str(tmp_path / "told"), len(first), len(told))
    assert bad.reason.startswith("record 2 of the envelope: ")
    assert reason in bad.reason


def test_times_that_are_unknown_are_absent(tmp_path: Path) -> None:
    found, report = all_of(tmp_path, envelope([record(job_state="RUNNING", end_time="Unknown", submit_time=None)]))
    assert (found, report.held, report.bad) == ({}, 1, 0)


# Whatever stands there

ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**80), 2**80),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from([after(0), after(1), "", "PENDING", "n[1-999999999]", "\ud800", "\x00", "x" * 2000]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)
KEYS = st.sampled_from([*record(), *step("0"), "array_job_id", "array_task_id", "exit_code", "suspend_time"])


@settings(max_examples=examples(400))
@given(st.dictionaries(KEYS, ANYTHING, max_size=4), st.dictionaries(st.sampled_from(list(record()["sacct"])), ANYTHING))
def test_no_record_breaks_the_reader(more: Json, sacct: Json) -> None:
    entry = record() | {"sacct": record()["sacct"] | sacct} | more
    try:
        said = read_record(entry, 1, right_sizes=True)
    except BadSonarRecord:
        return
    assert 0 < said.job < 2**53
    for value in said.fields.values():
        assert not isinstance(value, int) or 0 < value <= 2**53
    json.dumps([said.start, said.step, said.fields]).encode().decode()


@settings(max_examples=examples(60))
@given(
    told=st.lists(
        st.one_of(
            st.builds(
                lambda more: record(**more),
                st.dictionaries(KEYS.filter(lambda key: key != "sacct"), ANYTHING, max_size=3),
            ),
            st.builds(
                lambda more: step("0", **more), st.dictionaries(KEYS.filter(lambda key: key != "sacct"), ANYTHING)
            ),
            ANYTHING,
        ),
        max_size=4,
    ),
    kind=st.sampled_from(["job", "sample", "sysinfo", "cluster"]),
    attributes=st.dictionaries(
        st.sampled_from(["time", "node", "jobs", "system", "sockets", "partitions", "slurm_jobs"]), ANYTHING, max_size=2
    ),
    at=st.integers(0, 2000),
    junk=st.binary(max_size=10),
)
def test_no_envelope_breaks_the_importer(
    told: list[Any], kind: str, attributes: Json, at: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    held = {"time": after(0), "cluster": CLUSTER, "slurm_jobs": told, **attributes}
    whole = {"meta": {"producer": "sonar", "version": "0.19.0"}, "data": {"type": kind, "attributes": held}}
    content = json.dumps(whole).encode()
    at %= len(content)
    log = [content + b"\n", content[:at] + junk + content[at:], b"\n", envelope([record(job_id=99)])]
    report = run_import(folder / "imported.db", write(folder / "told", log))
    assert report.troubles == []
    assert any(job["LocalJobID"] == "99" for job in jobs(folder / "imported.db").values())
    assert run_import(folder / "imported.db", folder / "told").imported == 0
