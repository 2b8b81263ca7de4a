"""Records of Grid Engine, format by format: what becomes of each trap that real files hold."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from publisher.model.errors import ConfigError, UsageError
from publisher.sources.files.site_mapping import UnmappedVo
from publisher.sources.gridengine.importer import TABLES, Options, create
from publisher.sources.gridengine.records import GridEngineRecord, StampUnit, read_line
from publisher.sources.gridengine.site_mapping import GridEngineWall, ProjectFrom
from tests.support.batch_stores import CPU_UNKNOWN, asked, read_into
from tests.support.gridengine_files import (
    BEGIN,
    CLUSTER,
    HEADER,
    NOW,
    Entry,
    colon,
    extra_of,
    jobs,
    jsonl,
    run_import,
    totals,
    write,
)
from tests.support.strategies import examples

ANY = Entry()
JOB_ID = f"{CLUSTER}:4711:{BEGIN + 10}"

# Jobs, wall and CPU seconds by the rules of other-sources section 1.3, and records that were not usage.
SAMPLES = {
    "ge-46col.accounting": (1, 359, 51, 0),
    "ocs-9.0.accounting.jsonl": (2, 100 + 1, 0 + 1, 0),
    "sge-6.1-43col.accounting": (1, 1, 0, 0),
    "sge-6.2-45col.accounting": (2, 180_001 + 20_572, 1_026_707 + 1_273, 0),
    "sge-6.2u5-with-header.accounting": (2, 42 + 1, 9 + 1, 2),
    "sge-8.1.9-with-header.accounting": (2, 0 + 699, 0 + 21_541, 2),
    "uge-8.2-ms-52col.accounting": (1, 220, 13, 0),
}


def samples() -> Path:
    folder = os.environ.get("PUBLISHER_SAMPLES")
    if not folder:
        pytest.skip("PUBLISHER_SAMPLES is not set")
    return Path(folder) / "gridengine"


def only(database: Path) -> dict[str, Any]:
    ((_, job),) = jobs(database).items()
    return job


def imported(folder: Path, *lines: bytes, **options: Any) -> dict[str, Any]:
    """The one job that these lines give."""
    report = run_import(folder / "imported.db", write(folder / "accounting", lines), **options)
    assert (report.bad, report.troubles) == (0, [])
    return only(folder / "imported.db")


def one(line: bytes) -> GridEngineRecord:
    records, wrong = read_line(line.rstrip(b"\n"), StampUnit.AUTO)
    assert wrong == ""
    (record,) = records
    return record


# Real files


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_real_file_gives_its_totals(name: str, tmp_path: Path) -> None:
    report = run_import(tmp_path / "imported.db", samples() / name)
    count, wall, cpu, skipped = SAMPLES[name]
    assert totals(tmp_path / "imported.db") == (count, wall, cpu)
    assert (report.skipped.total(), report.bad, report.held) == (skipped, 0, 0)


def test_all_real_files_are_known_here_and_add_up(tmp_path: Path) -> None:
    folder = samples()
    assert {path.name for path in folder.iterdir()} - {"SOURCES.md"} == set(SAMPLES)
    run_import(tmp_path / "imported.db", *(folder / name for name in SAMPLES))
    expected = [sum(figures[at] for figures in SAMPLES.values()) for at in range(3)]
    assert list(totals(tmp_path / "imported.db")) == expected


def counted_without_us(path: Path) -> tuple[int, int, int]:
    """Jobs, wall and CPU seconds, by the facts alone: no line of these files has a colon too many."""
    runs = {}
    for line in path.read_text(encoding="latin-1").splitlines():
        if line.startswith("{"):
            said = json.loads(line)
            job, start, end = said["job_number"], said["start_time"] / 1e6, said["end_time"] / 1e6
            cpu = said["usage"].get("eusage", said["usage"].get("usage"))["cpu"]
        elif line.startswith("#"):
            continue
        else:
            columns = line.split(":")
            unit = 1e3 if len(columns) == 52 else 1.0
            job, start, end, cpu = int(columns[5]), float(columns[9]) / unit, float(columns[10]) / unit, columns[36]
        if start > 0:
            runs[job, int(start)] = (int(end - start + 0.5), int(float(cpu) + 0.5))
    return len(runs), sum(wall for wall, _ in runs.values()), sum(cpu for _, cpu in runs.values())


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_totals_of_a_real_file_are_those_of_another_count(name: str) -> None:
    assert counted_without_us(samples() / name) == SAMPLES[name][:3]


def test_real_records_say_what_they_say(tmp_path: Path) -> None:
    run_import(tmp_path / "imported.db", *(samples() / name for name in SAMPLES))
    found = jobs(tmp_path / "imported.db")
    first = found[f"{CLUSTER}:4:1725898198"]
    assert (first["GPUCount"], first["UsedMemory"], first["UsedVirtMem"]) == (2, 928, 217_172)
    parallel = found[f"{CLUSTER}:6972834:1318560254"]
    assert (parallel["CPUCount"], parallel["NodeCount"], parallel["Status"], parallel["ExitCode"]) == (
        9,
        0,
        "failed",
        138,
    )
    assert ("projectname", "por_defecto") in parallel["extra"]
    univa = found[f"{CLUSTER}:3872561:1412932865"]
    assert (univa["SubmitTime"], univa["EndTime"], univa["UsedMemory"]) == (1412932860, 1412933085, 121_496)


# Formats


def test_a_job_says_the_same_in_every_format(tmp_path: Path) -> None:
    told = []
    lines = [colon(ANY, columns=n) for n in (43, 45, 46)]
    lines += [colon(ANY, columns=n) for n in (52, 55, 74)]
    lines += [colon(ANY, columns=52, factor=1000), jsonl(ANY), jsonl(ANY, usage_key="usage")]
    for number, line in enumerate(lines):
        folder = tmp_path / str(number)
        folder.mkdir()
        told.append(imported(folder, line))
    for job in told[:3]:
        assert job.pop("UsedMemory") == 2_048  # there is only ru_maxrss
    for job in told[3:]:
        assert job.pop("UsedMemory") == 4_096
    assert all(job == told[0] for job in told)
    job = told[0]
    assert (job["UsedWalltime"], job["UsedCPUUserTime"], job["UsedCPUKernelTime"]) == (100, 81, 10)
    assert (job["SubmitTime"], job["StartTime"], job["EndTime"]) == (BEGIN, BEGIN + 10, BEGIN + 110)
    assert (job["CPUCount"], job["NodeCount"], job["UsedVirtMem"]) == (1, 1, 1_048_576)
    assert (job["LocalJobID"], job["Queue"], job["Status"], job["Interface"]) == (
        "4711",
        "all.q",
        "completed",
        "gridengine",
    )
    assert job["extra"] == [
        *(("jobname", "analysis"), ("localuser", "ada:theory"), ("lrms", "sge")),
        *(("nodenames", "node1.example.org"), ("quantities", "TimeLimit=3600")),
    ]


@pytest.mark.parametrize(
    "category",
    [
        "-l cpu=24:00:00",
        "-l h_rt=24:00:00,cpu=1:2:3 -pe smp 4",
        "0.5:NONE:1.5:x",
        "-q a:0.0:0.0:b",
        "",
        "NONE",
        ":",
        "-l x=0.0:NONE",
    ],
)
@pytest.mark.parametrize("columns", [43, 45, 46, 52, 74])
def test_a_category_may_hold_colons(category: str, columns: int) -> None:
    record = one(colon(replace(ANY, category=category, pe_task="7.node7.example.org"), columns=columns))
    assert record.category == ("" if category == "NONE" else category)
    assert (record.pe_task, record.virtual_kib) == ("7.node7.example.org", 1_048_576)


@pytest.mark.parametrize("columns", [43, 45, 52])
def test_numbers_may_be_printed_as_fractions(columns: int) -> None:
    line = colon(ANY, columns=columns)
    assert one(line.replace(b":0:0:0:", b":0.000000:0:0.0:")).cpu_us == 90_500_000


def test_times_are_known_by_their_size_or_as_configured(tmp_path: Path) -> None:
    assert one(jsonl(ANY, micro=600_000)).started_us == (BEGIN + 10) * 1_000_000 + 600_000
    early = replace(ANY, submitted=1, started=20, ended=30)
    ((record,), _) = read_line(colon(early, factor=1000).rstrip(), StampUnit.MS)
    assert (record.started_us, record.ended_us) == (20_000_000, 30_000_000)


def test_wall_time_is_end_less_start_rounded(tmp_path: Path) -> None:
    line = jsonl(ANY).replace(
        str((BEGIN + 110) * 1_000_000).encode(), str((BEGIN + 109) * 1_000_000 + 499_999).encode()
    )
    job = imported(tmp_path, line)
    assert job["UsedWalltime"] == 99
    assert job["EndTime"] == BEGIN + 109


@pytest.mark.parametrize("write_line", [colon, jsonl])
def test_a_job_that_was_killed_at_its_limit_has_its_wall_time(write_line: Any, tmp_path: Path) -> None:
    killed = replace(ANY, failed=37, exit_status=137, ru_wallclock=0.0)
    assert imported(tmp_path, write_line(killed), wall_from=GridEngineWall.RU_WALLCLOCK)["UsedWalltime"] == 100


@pytest.mark.parametrize("write_line", [colon, jsonl])
@pytest.mark.parametrize("submitted", [0, ANY.submitted])
def test_a_start_in_1970_is_no_57_years_of_wall_time(write_line: Any, submitted: int, tmp_path: Path) -> None:
    """A host whose clock was set while the job ran: `ru_wallclock` is right where another clock made it."""
    odd = replace(ANY, submitted=submitted, started=86_400, ru_wallclock=100.0)
    job = imported(tmp_path, write_line(odd))
    assert (job["StartTime"], job["EndTime"], job["UsedWalltime"]) == (ANY.started, ANY.ended, 100)


@pytest.mark.parametrize("write_line", [colon, jsonl])
@pytest.mark.parametrize(
    "times",
    [
        {"started": 86_400, "ru_wallclock": 0.0},
        {"started": 86_400, "ru_wallclock": float(ANY.ended - 86_400)},
        {"started": 86_400, "ended": 90_000, "ru_wallclock": 3_600.0},
        {"started": ANY.submitted - 2 * 86_400, "ru_wallclock": 0.0},
    ],
)
def test_without_any_true_start_a_line_is_set_aside(write_line: Any, times: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "accounting", [write_line(replace(ANY, **times)), write_line(replace(ANY, job=2))])
    report = run_import(tmp_path / "imported.db", path)
    assert (report.imported, report.bad) == (1, 1)
    assert "its host's clock was wrong" in report.bad_lines[0].reason
    assert only(tmp_path / "imported.db")["UsedWalltime"] == 100


def test_a_host_whose_clock_is_some_hours_late_tells_wall_time_right(tmp_path: Path) -> None:
    late = replace(ANY, started=ANY.started - 7_200, ended=ANY.ended - 7_200)
    assert imported(tmp_path, jsonl(late))["UsedWalltime"] == 100


def test_slaves_gpus_count_for_each_of_their_hosts(tmp_path: Path) -> None:
    category = "-scope master -hard -l gpu=1 -scope slave -hard -l gpu=2 -pe mpi 4"
    master = replace(ANY, pe="mpi", slots=4, category=category)
    tasks = [replace(master, pe_task=f"{n}.node{n % 2}", host=f"node{n % 2}.example.org") for n in range(1, 4)]
    assert imported(tmp_path, *map(jsonl, [*tasks, master]))["GPUCount"] == 1 + 2 * 2


def test_wall_time_may_come_from_ru_wallclock(tmp_path: Path) -> None:
    assert (
        imported(tmp_path, colon(replace(ANY, ru_wallclock=77.6)), wall_from=GridEngineWall.RU_WALLCLOCK)[
            "UsedWalltime"
        ]
        == 78
    )


def test_comments_empty_lines_and_crlf_are_no_records(tmp_path: Path) -> None:
    report = run_import(
        tmp_path / "imported.db",
        write(tmp_path / "accounting", [HEADER, b"\n", colon(ANY), b"   \n", HEADER, jsonl(replace(ANY, job=2))]),
    )
    assert (report.lines, report.imported, report.bad) == (2, 2, 0)


@pytest.mark.parametrize("write_as", [colon, jsonl])
def test_names_that_are_no_utf8_are_latin1(write_as: Any, tmp_path: Path) -> None:
    line = write_as(replace(ANY, name="Gruesse")).replace(b"ue", b"\xfc")
    assert ("jobname", "Grüsse") in imported(tmp_path, line)["extra"]


def test_utf8_names_stay(tmp_path: Path) -> None:
    assert ("jobname", "Grüße 東京") in imported(tmp_path, jsonl(replace(ANY, name="Grüße 東京")))["extra"]


def test_characters_that_no_receiver_takes_are_replaced(tmp_path: Path) -> None:
    line = jsonl(ANY).replace(b'"analysis"', b'"a\\u0000b\\ud800c\\nd\\u001be"')
    name = dict(imported(tmp_path, line)["extra"])["jobname"]
    assert name == "a\ufffdb\ufffdc\ufffdd\ufffde"


def test_a_name_stays_as_it_is_although_arex_would_escape_it(tmp_path: Path) -> None:
    assert dict(imported(tmp_path, jsonl(replace(ANY, name="50%25 & 'x'")))["extra"])["jobname"] == "50%25 & 'x'"


def test_unknown_keys_and_missing_optional_ones_do_not_matter(tmp_path: Path) -> None:
    assert (
        imported(tmp_path, jsonl(ANY, new_in_9_3={"x": [1, "y"]}, arid=7, ar_submission_time=1))["LocalJobID"] == "4711"
    )


@pytest.mark.parametrize("name", ["UNKNOWN", "(null)"])
def test_what_the_host_never_told_is_unknown(name: str, tmp_path: Path) -> None:
    job = imported(tmp_path, jsonl(replace(ANY, host=name, queue=name)))
    assert job["Queue"] == ""
    assert "nodenames" not in dict(job["extra"])


# Usage


def test_cpu_time_is_the_daemons_and_the_kernel_has_its_share_of_it(tmp_path: Path) -> None:
    job = imported(tmp_path, colon(replace(ANY, cpu=5000.4, utime=1.0, stime=7000.0)))
    assert (job["UsedCPUUserTime"], job["UsedCPUKernelTime"]) == (0, 5000)


def test_a_host_that_was_silent_leaves_rusage(tmp_path: Path) -> None:
    """failed 37: only one of the two copies of usage is read by the qmaster."""
    report = run_import(
        tmp_path / "imported.db", write(tmp_path / "accounting", [jsonl(replace(ANY, failed=37, cpu=0.0))])
    )
    job = only(tmp_path / "imported.db")
    assert job["UsedCPUUserTime"] + job["UsedCPUKernelTime"] == 90
    assert report.notes[0].startswith("1 record (failed 37) written without the host's figures")


@pytest.mark.parametrize(("failed", "unknown"), [(37, True), (0, False)])
def test_cpu_time_that_neither_copy_tells_is_unknown(failed: int, unknown: bool, tmp_path: Path) -> None:
    entry = replace(ANY, failed=failed, cpu=0.0, utime=0.0, stime=0.0)
    run_import(tmp_path / "imported.db", write(tmp_path / "accounting", [jsonl(entry)]))
    assert (CPU_UNKNOWN in extra_of(tmp_path / "imported.db")) is unknown


@pytest.mark.parametrize(
    ("failed", "exit_status", "deleted_by", "status"),
    [
        (0, 0, "", "completed"),
        (0, 1, "", "failed"),
        (100, 137, "", "failed"),
        (100, 137, "ada@login1", "aborted"),
        (100, 137, "execd@node1", "failed"),
        (37, 0, "qmaster@master", "failed"),
        (0, 0, "ada@login1", "completed"),
        (12, 0, "NONE", "failed"),
    ],
)
@pytest.mark.parametrize("univa", [False, True])
def test_the_status(failed: int, exit_status: int, deleted_by: str, status: str, univa: bool, tmp_path: Path) -> None:
    entry = replace(ANY, failed=failed, exit_status=exit_status, deleted_by=deleted_by)
    job = imported(tmp_path, colon(entry, columns=52) if univa else jsonl(entry))
    assert (job["Status"], job["ExitCode"]) == (status, exit_status)


@pytest.mark.parametrize("failed", [0, 12, 19, 25, 37, 100])
def test_what_ran_is_usage_whatever_failed_says(failed: int, tmp_path: Path) -> None:
    assert imported(tmp_path, colon(replace(ANY, failed=failed, ended=BEGIN + 310)))["UsedWalltime"] == 300


@pytest.mark.parametrize("line", [colon, jsonl])
def test_a_job_that_took_less_than_a_second_counts(line: Callable[[Entry], bytes], tmp_path: Path) -> None:
    """As with Slurm: it ran, and had CPUs."""
    job = imported(tmp_path, line(replace(ANY, started=BEGIN + 10, ended=BEGIN + 10, cpu=0.0, utime=0.0, stime=0.0)))
    assert (job["UsedWalltime"], job["CPUCount"]) == (0, 1)


def test_what_never_ran_is_counted_with_the_reason(tmp_path: Path) -> None:
    never = replace(ANY, started=0, ended=0, cpu=0.0, utime=0.0, stime=0.0)
    lines = [
        *(colon(replace(never, job=1, failed=26)), jsonl(replace(never, job=2, failed=26))),
        colon(replace(never, job=3, failed=25, cpu=12.0)),
        jsonl(replace(ANY, job=4, ended=BEGIN)),
        colon(replace(ANY, job=5, started=BEGIN + 10, ended=0)),
        jsonl(replace(never, job=6)),
    ]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "accounting", lines))
    assert report.skipped == {
        "never ran (failed 26, opening output file)": 2,
        "no start time, though it used CPU time (failed 25, rescheduling)": 1,
        "ended before it started (failed 0, no failure)": 2,
        "never ran (failed 0, no failure)": 1,
    }
    assert (report.imported, report.lines, report.exit_status) == (0, 6, 0)


@pytest.mark.parametrize("line", [colon, jsonl])
def test_memory_of_rusage_is_in_kib_where_there_is_no_other(line: Callable[[Entry], bytes], tmp_path: Path) -> None:
    job = imported(tmp_path, line(replace(ANY, maxrss=0)))
    assert job["UsedMemory"] == 2_048


def test_unknown_memory_is_not_zero(tmp_path: Path) -> None:
    job = imported(tmp_path, jsonl(replace(ANY, maxvmem=0, maxrss=0, ru_maxrss=0)))
    assert (job["UsedMemory"], job["UsedVirtMem"]) == (0, 0)  # as ARC writes unknown


@pytest.mark.parametrize(
    ("category", "options", "gpus"),
    [
        ("-l gpu=2", {}, 2),
        ("-q x -l h_rt=60,gpu=3,mem=1G -pe smp 4", {}, 3),
        ("-l gpu=1 -l gpu=2", {}, 3),
        ("-l gpu=2", {"gpu_per_slot": True}, 8),
        ("-l cuda=1,gpu=1", {"gpu_resources": ("cuda",)}, 1),
        ("-l h_rt=60", {}, None),
        ("-l gpu=many", {}, None),
        ("-N gpu=2", {}, None),
        ("-soft -l gpu=2", {}, None),
        ("-l gpu=1 -soft -q fast -l gpu=2", {}, 1),
        ("-soft -l gpu=2 -hard -l gpu=1", {}, 1),
        ("-scope global -hard -l gpu=2 -scope global -soft -l gpu=4 -pe mpi 4", {}, 2),
        ("-scope master -hard -l gpu=1 -scope slave -hard -l gpu=2 -pe mpi 4", {"gpu_per_slot": True}, 1 + 3 * 2),
        ("-scope global -hard -l gpu=2 -pe mpi 4", {"gpu_per_slot": True}, 8),
        ("-scope master -hard -l gpu=1 -pe mpi 4", {"gpu_per_slot": True}, 1),
        # For each host of the slaves, and no record tells which these are.
        ("-scope master -hard -l gpu=1 -scope slave -hard -l gpu=2 -pe mpi 4", {}, None),
        ("-scope another -hard -l gpu=2", {}, None),
        ("", {}, None),
    ],
)
def test_gpus_are_those_of_the_request(category: str, options: Any, gpus: int | None, tmp_path: Path) -> None:
    assert imported(tmp_path, jsonl(replace(ANY, category=category, slots=4)), **options)["GPUCount"] == gpus


@pytest.mark.parametrize(
    ("category", "limit"),
    [
        ("-l h_rt=3600", "3600"),
        ("-q x -l gpu=1,h_rt=1:30:05 -pe smp 4", "5405"),
        ("-l h_rt=:10: -l h_rt=700", "600"),
        ("-l h_rt=INFINITY", None),
        ("-l h_rt=0", "0"),
        ("-l h_vmem=1G", None),
        ("-N h_rt=1", None),
    ],
)
def test_a_requested_run_time_is_a_quantity_for_charges(category: str, limit: str | None, tmp_path: Path) -> None:
    extra = dict(imported(tmp_path, jsonl(replace(ANY, category=category)))["extra"])
    assert extra.get("quantities") == (None if limit is None else f"TimeLimit={limit}")


# Runs and identities


def test_each_task_of_an_array_is_a_job(tmp_path: Path) -> None:
    write(tmp_path / "accounting", [colon(replace(ANY, task=task)) for task in (1, 2, 7)])
    assert run_import(tmp_path / "imported.db", tmp_path / "accounting").imported == 3
    assert {job["LocalJobID"] for job in jobs(tmp_path / "imported.db").values()} == {"4711.1", "4711.2", "4711.7"}


def test_each_run_of_a_job_is_usage(tmp_path: Path) -> None:
    first = replace(ANY, failed=24, ended=BEGIN + 60)
    again = replace(ANY, started=BEGIN + 60, host="node2.example.org")
    write(tmp_path / "accounting", [colon(first), colon(again)])
    run_import(tmp_path / "imported.db", tmp_path / "accounting")
    assert totals(tmp_path / "imported.db")[:2] == (2, 50 + 50)


def test_job_numbers_wrap_around(tmp_path: Path) -> None:
    years_later = replace(ANY, submitted=BEGIN + 10**7, started=BEGIN + 10**7, ended=BEGIN + 10**7 + 5)
    write(tmp_path / "accounting", [colon(ANY), colon(years_later)])
    run_import(tmp_path / "imported.db", tmp_path / "accounting")
    assert totals(tmp_path / "imported.db")[:2] == (2, 105)


def test_the_same_record_in_another_format_is_the_same_job(tmp_path: Path) -> None:
    write(tmp_path / "accounting", [colon(ANY)])
    write(tmp_path / "accounting.jsonl", [jsonl(ANY)])
    report = run_import(tmp_path / "imported.db", tmp_path)
    assert (report.files, report.imported, report.duplicates + report.updated) == (2, 1, 1)


@pytest.mark.parametrize("backwards", [False, True])
def test_two_runs_in_one_second_have_one_identity_and_the_later_stays(backwards: bool, tmp_path: Path) -> None:
    runs = [colon(replace(ANY, ended=BEGIN + 10, failed=26)), colon(replace(ANY, host="node2.example.org"))]
    assert imported(tmp_path, *(reversed(runs) if backwards else runs))["UsedWalltime"] == 100


# Parallel jobs

TIGHT = replace(ANY, pe="mpi", slots=24, cpu=10.0, utime=9.0, stime=1.0)
TASKS = [
    replace(
        TIGHT,
        pe_task=f"{n}.node{n}",
        host=f"node{n}.example.org",
        submitted=0,
        started=BEGIN + 10 + n,
        ended=BEGIN + 90,
        cpu=100.5,
    )
    for n in (1, 2, 3)
]


def test_a_tight_job_is_one_job_with_the_figures_of_all_its_tasks(tmp_path: Path) -> None:
    report = run_import(tmp_path / "imported.db", write(tmp_path / "accounting", map(colon, [*TASKS, TIGHT])))
    assert (report.imported, report.merged, report.held) == (1, 3, 0)
    job = only(tmp_path / "imported.db")
    assert (job["CPUCount"], job["NodeCount"], job["UsedWalltime"]) == (24, 3, 100)
    assert (job["UsedCPUUserTime"], job["UsedCPUKernelTime"]) == (308, 4)  # 10 + 3 x 100.5, 4 x 1
    assert (job["UsedMemory"], job["UsedVirtMem"]) == (4 * 2_048, 4 * 1_048_576)
    assert dict(job["extra"])["nodenames"] == "node1.example.org:node2.example.org:node3.example.org"


def test_the_first_host_is_the_jobs_own(tmp_path: Path) -> None:
    master = replace(TIGHT, host="node2.example.org")
    run_import(tmp_path / "imported.db", write(tmp_path / "accounting", map(jsonl, [*TASKS, master])))
    assert dict(only(tmp_path / "imported.db")["extra"])["nodenames"].split(":")[0] == "node2.example.org"


def test_tasks_wait_for_the_record_of_their_job(tmp_path: Path) -> None:
    path, database = write(tmp_path / "accounting", map(colon, TASKS)), tmp_path / "imported.db"
    report = run_import(database, path)
    assert (report.imported, report.held, report.orphans) == (0, 3, 3)  # they ended two months before NOW
    with path.open("ab") as file:
        file.write(colon(TIGHT))
    report = run_import(database, path)
    assert (report.imported, report.merged, report.held, report.orphans) == (1, 3, 0, 0)
    assert only(database)["UsedCPUUserTime"] == 308


def test_a_task_that_comes_late_still_counts(tmp_path: Path) -> None:
    path, database = write(tmp_path / "accounting", [colon(TIGHT)]), tmp_path / "imported.db"
    run_import(database, path)
    assert only(database)["NodeCount"] == 0
    with path.open("ab") as file:
        file.writelines(map(colon, TASKS))
    report = run_import(database, path)
    assert (report.imported, report.updated, report.merged) == (0, 1, 3)
    assert (only(database)["NodeCount"], only(database)["UsedCPUUserTime"]) == (3, 308)


def test_tasks_go_to_the_run_in_whose_time_they_began(tmp_path: Path) -> None:
    later = 10**7  # the number was used again
    second = [replace(each, started=each.started + later, ended=each.ended + later) for each in (*TASKS[:1], TIGHT)]
    stray = replace(TASKS[0], pe_task="9.node9", started=BEGIN + later // 2, ended=BEGIN + later // 2 + 5)
    lines = map(colon, [stray, *TASKS, *second, TIGHT])
    report = run_import(tmp_path / "imported.db", write(tmp_path / "accounting", lines))
    assert (report.imported, report.merged, report.held) == (2, 4, 1)
    first, again = (jobs(tmp_path / "imported.db")[f"{CLUSTER}:4711:{BEGIN + 10 + more}"] for more in (0, later))
    assert (first["NodeCount"], again["NodeCount"]) == (3, 1)
    assert (first["UsedCPUUserTime"], again["UsedCPUUserTime"]) == (308, 109)  # 110.5 s less 2 s of the kernel


@pytest.mark.parametrize("early_s", [45, 60])
def test_clocks_of_hosts_may_differ_a_little(tmp_path: Path, early_s: int) -> None:
    task = replace(TASKS[0], started=TIGHT.started - early_s)
    assert imported(tmp_path, colon(task), colon(TIGHT))["NodeCount"] == 1
    assert only(tmp_path / "imported.db")["UsedCPUUserTime"] == 109


def test_a_task_that_began_more_than_a_minute_before_is_of_another_run(tmp_path: Path) -> None:
    task = replace(TASKS[0], started=TIGHT.started - 61)
    assert imported(tmp_path, colon(task), colon(TIGHT))["NodeCount"] == 0


def test_of_other_parallel_jobs_the_number_of_hosts_is_known_for_single_host_environments(tmp_path: Path) -> None:
    loose = [replace(ANY, job=1, pe="mpi", slots=8), replace(ANY, job=2, pe="openmp4", slots=4)]
    write(tmp_path / "accounting", map(jsonl, loose))
    run_import(tmp_path / "imported.db", tmp_path / "accounting", single_host_pes=("smp", "openmp*"))
    found = {job["LocalJobID"]: job for job in jobs(tmp_path / "imported.db").values()}
    assert (found["1"]["NodeCount"], found["2"]["NodeCount"]) == (0, 1)
    assert (found["1"]["CPUCount"], found["1"]["UsedWalltime"]) == (8, 100)


# The site's words


def test_maps_give_names_and_vos(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("# people\nada   /DC=org/CN=Ada Lovelace\ncharles\t/DC=org/CN=Charles Babbage\n")
    (tmp_path / "projects").write_text("p1 atlas\n")
    (tmp_path / "groups").write_text("theory theo\n")
    (tmp_path / "vos").write_text("charles engines\n")
    people = [
        replace(ANY, job=1, project="p1"),
        replace(ANY, job=2),
        replace(ANY, job=3, owner="charles", group="other"),
        replace(ANY, job=4, owner="eve", group="other"),
    ]
    maps: dict[str, Any] = {
        "user_map": tmp_path / "users",
        "project_vo_map": tmp_path / "projects",
        "group_vo_map": tmp_path / "groups",
        "user_vo_map": tmp_path / "vos",
    }
    path = write(tmp_path / "accounting", map(colon, people))
    for unmapped, last in ((UnmappedVo.PUBLISH, ""), (UnmappedVo.LOCAL, "local-other")):
        database = tmp_path / f"{unmapped}.db"
        run_import(database, path, unmapped_vo=unmapped, **maps)
        found = {job["LocalJobID"]: (job["User"], job["VO"]) for job in jobs(database).values()}
        assert found == {
            "1": ("/DC=org/CN=Ada Lovelace", "atlas"),
            "2": ("/DC=org/CN=Ada Lovelace", "theo"),
            "3": ("/DC=org/CN=Charles Babbage", "engines"),
            "4": ("", last),
        }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ada\n", "m:1: write a word and its replacement"),
        ("ada x\n\nada y\n", "m:3: 'ada' has another replacement"),
        ("ada x\x07y\n", "m:1: holds a character that cannot be seen"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_wrong_map_file_is_told_with_its_line(text: str | None, complaint: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "m").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        run_import(tmp_path / "imported.db", write(tmp_path / "accounting", [colon(ANY)]), user_map=tmp_path / "m")
    assert not (tmp_path / "imported.db").exists()


def test_the_project_is_what_somebody_chose(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"project_from": (ProjectFrom.PROJECT, ProjectFrom.ACCOUNT, ProjectFrom.DEPARTMENT)}
    people = [
        replace(ANY, job=1, project="p1", account="a1"),
        replace(ANY, job=2, account="a1"),
        replace(ANY, job=3, department="physics"),
        replace(ANY, job=4),
    ]
    write(tmp_path / "accounting", map(colon, people))
    run_import(tmp_path / "imported.db", tmp_path / "accounting", **chosen)
    found = {
        job["LocalJobID"]: dict(job["extra"]).get("projectname") for job in jobs(tmp_path / "imported.db").values()
    }
    assert found == {"1": "p1", "2": "a1", "3": "physics", "4": None}


def test_jobs_may_be_left_out(tmp_path: Path) -> None:
    lines = [
        replace(ANY, job=1, owner="prdatl7"),
        replace(ANY, job=2, group="grid"),
        replace(ANY, job=3, queue="g.q"),
        ANY,
    ]
    report = run_import(
        tmp_path / "imported.db",
        write(tmp_path / "accounting", map(colon, lines)),
        exclude_users=("prdatl*",),
        exclude_groups=("grid",),
        exclude_queues=("g.q",),
    )
    assert report.skipped == Counter({f"left out by exclude_{what}": 1 for what in ("users", "groups", "queues")})
    assert only(tmp_path / "imported.db")["LocalJobID"] == "4711"


def test_the_endpoint_is_the_submit_host_or_the_cluster(tmp_path: Path) -> None:
    assert imported(tmp_path, colon(ANY))["URL"] == f"gridengine://{CLUSTER}"
    (tmp_path / "ce").mkdir()
    assert imported(tmp_path / "ce", colon(ANY), submit_host="https://ce.example.org:443/arex")["URL"] == (
        "https://ce.example.org:443/arex"
    )


# Databases that are not ours


def test_another_cluster_needs_another_source(tmp_path: Path) -> None:
    path = write(tmp_path / "accounting", [colon(ANY)])
    run_import(tmp_path / "imported.db", path)
    other = create(Options(cluster="other.example.org"), {})
    with pytest.raises(UsageError, match=f"has jobs of the cluster {CLUSTER}"):
        read_into(tmp_path / "imported.db", other, TABLES, path, now=NOW)


def test_the_database_is_private(tmp_path: Path) -> None:
    run_import(tmp_path / "state" / "imported.db", write(tmp_path / "accounting", [colon(ANY)]))
    assert (tmp_path / "state" / "imported.db").stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()} == {0o600}


# Bad lines


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"a:b:c", "3 columns; an accounting record has 43 to 74"),
        (colon(ANY, columns=39), "39 columns"),
        (colon(ANY).replace(b":4711:", b":x:"), "no column can be the job number"),
        (colon(ANY).replace(b":NONE:1073741824.000000:", b":what:1073741824.000000:"), "columns after the category"),
        (colon(ANY).replace(b":90.500000:", b":1e999:"), "not a number of seconds"),
        # Four tasks with so much are more than 64 bits hold.
        (colon(replace(ANY, ru_maxrss=2**62)), "not a size of memory"),
        (colon(replace(ANY, started=-5)), "before 1970"),
        (colon(replace(ANY, job=0)), "out of range"),
        (colon(replace(ANY, ended=10**19)), "a column that must be a number is not"),
        (jsonl(ANY).replace(str(BEGIN + 110).encode(), b"9" * 15), "beyond any calendar"),
        (b'{"job_number":4', "not JSON"),
        (b'{"a":' * 50_000, "not JSON"),
        (b'{"job_number":' + b"9" * 5000 + b"}", "not JSON"),
        (jsonl(ANY).rstrip() + b"}", "not one JSON object"),
        (jsonl(ANY).replace(b'"cpu":90.5', b'"cpu":'), "not JSON"),
        (jsonl(ANY).replace(b'"cpu":90.5', b'"cpu":NaN'), "not a number of seconds"),
        (jsonl(ANY).replace(b'"cpu":90.5', b'"cpu":1e400'), "not a number of seconds"),
        (jsonl(ANY).replace(b'"cpu":90.5', b'"cpu":"90.5"'), "wrong kind"),
        (jsonl(ANY).replace(b'"cpu":90.5', b'"cpu":null'), "wrong kind"),
        (jsonl(ANY).replace(b'"owner":"ada"', b'"owner":17'), "wrong kind"),
        (jsonl(ANY).replace(b'"owner":"ada",', b""), "has no owner"),
        (jsonl(ANY).replace(b'"job_number":4711', b'"job_number":4711.5'), "not a whole one"),
        (jsonl(ANY).replace(b'"job_number":4711', b'"job_number":true'), "not a whole one"),
        (jsonl(ANY).replace(b'"usage":{', b'"usage":[{').replace(b"}}}", b"}}]}"), "wrong kind"),
        (jsonl(ANY, time=1, type="acct"), "reporting file"),
        (b"1790000000:acct:" + colon(ANY), "number is not|reporting file"),
        (b"\xff\xfe\x00\x01", "columns"),
    ],
)
def test_a_bad_line_is_set_aside_with_its_place_and_its_neighbours_go_on(
    line: bytes, reason: str, tmp_path: Path
) -> None:
    good = colon(replace(ANY, job=1))
    path = write(tmp_path / "accounting", [good, line.rstrip(b"\n") + b"\n", jsonl(replace(ANY, job=2))])
    report = run_import(tmp_path / "imported.db", path)
    assert (report.imported, report.bad, report.exit_status) == (2, 1, 65)
    (bad,) = report.bad_lines
    assert (bad.path, bad.offset, bad.length) == (str(path), len(good), len(line.rstrip(b"\n")))
    assert re.search(reason, bad.reason), bad.reason
    with asked(tmp_path / "imported.db") as connection:
        kept = connection.execute("SELECT Path, Offset, Length, Reason, Line FROM ImportBadLine").fetchall()
    assert kept == [(str(path), len(good), bad.length, bad.reason, line.rstrip(b"\n")[:4096])]


def test_a_record_that_was_glued_to_a_torn_one_is_saved(tmp_path: Path) -> None:
    """After a failed write of the qmaster (disk full) half a record stays without its line feed."""
    whole = jsonl(replace(ANY, job=2))
    path = write(tmp_path / "accounting.jsonl", [jsonl(ANY)[:300] + whole, jsonl(replace(ANY, job=3))])
    report = run_import(tmp_path / "imported.db", path)
    assert (report.imported, report.bad) == (2, 1)
    assert {job["LocalJobID"] for job in jobs(tmp_path / "imported.db").values()} == {"2", "3"}


@pytest.mark.parametrize("columns", [43, 45, 52, 74])
def test_two_records_in_one_line_are_never_taken_for_one(columns: int, tmp_path: Path) -> None:
    line = colon(ANY, columns=columns).rstrip()
    other = colon(replace(ANY, job=12, owner="eve", cpu=7.0), columns=columns)
    # Torn inside its first word, only that word tells: the queue of the other seems to be called `allall.q`.
    for cut in range(line.index(b":") + 1, len(line)):
        # Neither is lost without a word, also where the first had all that is read of it.
        records, wrong = read_line(line[:cut] + other.rstrip(), StampUnit.AUTO)
        assert (records, bool(wrong)) == ([], True), cut


def test_whole_json_records_without_a_line_feed_between_are_all_saved(tmp_path: Path) -> None:
    two = jsonl(replace(ANY, job=1)).rstrip() + jsonl(replace(ANY, job=2)).rstrip()
    torn = b'"usage":{}}' + two + jsonl(replace(ANY, job=3))[:200] + b"\n"
    for number, line in enumerate((two + b"\n", torn)):
        database = tmp_path / f"{number}.db"
        report = run_import(database, write(tmp_path / f"accounting.{number}", [line]))
        assert (report.imported, report.bad) == (2, 1)
        assert {job["LocalJobID"] for job in jobs(database).values()} == {"1", "2"}


def test_a_line_of_megabytes_is_set_aside_in_bounded_memory(tmp_path: Path) -> None:
    long = b'{"job_number":1,"x":"' + b"x" * 5_000_000 + b'"}\n'
    path = write(tmp_path / "accounting", [colon(replace(ANY, job=1)), long, colon(replace(ANY, job=2))])
    report = run_import(tmp_path / "imported.db", path)
    assert (report.imported, report.bad) == (2, 1)
    (bad,) = report.bad_lines
    assert (bad.length, len(bad.line), bad.reason) == (
        len(long) - 1,
        4096,
        f"{len(long) - 1} bytes long, too long for a record",
    )


def test_a_bad_line_is_set_aside_once(tmp_path: Path) -> None:
    database = tmp_path / "imported.db"
    run_import(database, write(tmp_path / "accounting", [b"torn\n", colon(ANY)]))
    report = run_import(database, write(tmp_path / "copy", [b"torn\n", b"torn\n", colon(ANY), b"also\n"]))
    assert (report.bad, report.bad_kept, report.exit_status) == (1, 2, 65)
    assert run_import(database, tmp_path / "copy").exit_status == 0


def test_a_file_of_something_else_is_refused_as_a_whole(tmp_path: Path) -> None:
    lines = [b"%d:acct:%d:" % (BEGIN + n, BEGIN + n) + colon(ANY) for n in range(50)]
    reporting = write(tmp_path / "reporting", lines)
    good = write(tmp_path / "accounting", [colon(ANY)])
    report = run_import(tmp_path / "imported.db", reporting, good)
    assert (report.bad, report.imported, report.bad_kept, report.exit_status) == (0, 1, 0, 66)
    assert report.troubles == [
        f"{reporting}: is not an accounting file of Grid Engine, or not in a form that is known; its first line: "
        "a line of the reporting file, which holds other records too: name the accounting file"
    ]


@settings(max_examples=examples(400))
@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(line: bytes) -> None:
    records, wrong = read_line(line, StampUnit.AUTO)
    assert bool(records) != bool(wrong)


@settings(max_examples=examples(600))
@given(
    line=st.sampled_from([colon(ANY), colon(ANY, columns=52, factor=1000), jsonl(ANY), jsonl(TASKS[0])]),
    at=st.integers(0, 900),
    size=st.integers(0, 40),
    junk=st.one_of(
        st.binary(max_size=20), st.sampled_from([b":", b"-1", b"1e308", b"null", b"9" * 30, b"\\ud800", b"{}", b"[]"])
    ),
    unit=st.sampled_from(StampUnit),
)
def test_no_change_of_a_record_breaks_the_reader_or_the_database(
    line: bytes, at: int, size: int, junk: bytes, unit: StampUnit, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at %= len(line)
    mutated = (line[:at] + junk + line[at + size :]).replace(b"\n", b" ")
    records, _ = read_line(mutated, unit)
    for record in records:
        assert all(0 <= number < 2**63 for number in record if isinstance(number, int)) or record.exit_status < 0
        "".join(text for text in record if isinstance(text, str)).encode()
