"""Text of sacct, trap by trap, and against what live jobs measured themselves."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import tracemalloc
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from publisher.model.errors import UsageError
from publisher.sources.files.line_importer import lines_of
from publisher.sources.files.log_files import clean, opened
from publisher.sources.slurm.header import COLUMNS, Header, NotSacct
from publisher.sources.slurm.records import SacctReader, SacctRun
from publisher.sources.slurm.site_mapping import Options, SacctMapping
from tests.sources.mortal_imports import child
from tests.support.batch_stores import records, source_jobs
from tests.support.gridengine_files import jobs
from tests.support.jobs import make_job
from tests.support.patience import PATIENCE_S
from tests.support.sacct_text import BEGIN, CLUSTER, job, jobs_of, run_import, step, text, write

# Files of the samples whose times are text; how many lines of jobs cannot be understood, because names and directories of jobs
# hold the delimiter or the end of a line.
SAMPLES = {
    "sacct-22.05-s-terminal.txt": 9,
    "sacct-22.05-noD.txt": 9,
    "sacct-22.05-running.txt": 5,
    "sacct-22.05-before-ctld-restart.txt": 7,
    "sacct-22.05-x1f.txt": 1,
    "sacct-22.05-epoch.txt": 9,
}


def samples() -> Path:
    folder = os.environ.get("PUBLISHER_SAMPLES")
    if not folder:
        pytest.skip("PUBLISHER_SAMPLES is not set")
    return Path(folder) / "slurm"


def runs_of(path: Path, zone: str = "UTC") -> list[SacctRun]:
    with opened(path) as file:
        first = next(lines_of(file, 0))
        reader = SacctReader(Header(first.content), ZoneInfo(zone))
        records = [run for piece in reader.pieces(file.blocks(first.end), whole=True) for run in piece.records]
    return [run for run in records if isinstance(run, SacctRun)]


def read(lines: list[dict[str, object]], tmp_path: Path) -> list[SacctRun]:
    return runs_of(write(tmp_path / "sacct.txt", text(lines)))


def only(database: Path) -> dict[str, Any]:
    ((job_id, found),) = jobs(database).items()
    return found | {"JobID": job_id, "extra": dict(found["extra"])}


def imported(tmp_path: Path, lines: list[dict[str, object]], **options: Any) -> dict[str, Any]:
    """The one job that these lines give."""
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct.txt", text(lines)), **options)
    assert (report.bad, report.troubles) == (0, [])
    return only(tmp_path / "imported.db")


def content(database: Path) -> list[tuple[Any, ...]]:
    """Everything of every job but its tasks, which a torn text may tell too few of."""
    found = (
        job._replace(quantities=tuple(one for one in job.quantities if one[0] != "NumTasks"))
        for job in records(database)
    )
    return sorted((*job[:9], *job[10:]) for job in found)


# Against live jobs


@pytest.mark.parametrize("name", SAMPLES)
def test_every_run_is_read_as_slurm_shows_it(name: str, tmp_path: Path) -> None:
    """The rows of truth.json were printed as JSON by another path than the text."""
    truth = json.loads((samples() / "truth.json").read_text())["jobs"]
    rows = [(raw, row) for one in truth for raw, found in one["raw_ids"].items() for row in found["sacct_rows"]]
    ran = Counter((raw, int(row["ElapsedRaw"])) for raw, row in rows if int(row["ElapsedRaw"]) or row["AllocTRES"])
    report = run_import(tmp_path / "imported.db", samples() / name, time_zone="UTC")
    assert report.troubles == []
    assert report.bad == SAMPLES[name]
    resized = {"187", "202"}
    found = Counter((run.raw_id, run.wall_s) for run in runs_of(samples() / name) if run.raw_id not in resized)
    assert found <= ran
    assert report.imported == len(runs_of(samples() / name))
    if name == "sacct-22.05-x1f.txt":  # every run of a job is there, but those of one whose name holds the delimiter
        assert {raw for raw, _ in ran} - {raw for raw, _ in found} - resized == {"80"}


def test_cpu_time_is_what_the_jobs_measured_themselves() -> None:
    truth = json.loads((samples() / "truth.json").read_text())["jobs"]
    runs = {run.raw_id: run for run in runs_of(samples() / "sacct-22.05-x1f.txt")}
    # Killed tasks did not measure; a part of a heterogeneous job measured in the other's row.
    unfit = {"6", "15", "186"}
    compared = 0
    for one in truth:
        for raw, found in one["raw_ids"].items():
            measured = list(found["runs_measured"].values())
            run = runs.get(raw)
            if run is None or len(measured) != 1 or raw in unfit or one["kind"] == "het" or run.user_ms is None:
                continue
            if measured[0].get("batch_cpu") is None or run.system_ms is None:
                continue
            tasks = [task for task in measured[0]["tasks"] if task["step"] != "batch"]
            used = measured[0]["batch_cpu"] + sum(task.get("utime", 0) + task.get("stime", 0) for task in tasks)
            assert (run.user_ms + run.system_ms) / 1000 == pytest.approx(used, abs=0.05), raw
            compared += 1
    assert compared > 140


def test_gpus_and_states_of_the_samples() -> None:
    truth = json.loads((samples() / "truth.json").read_text())["jobs"]
    rows = {raw: found["sacct_rows"] for one in truth for raw, found in one["raw_ids"].items()}
    for run in runs_of(samples() / "sacct-22.05-x1f.txt"):
        assert run.tres in {row["AllocTRES"] for row in rows[run.raw_id]}
        assert run.state in {row["State"].partition(" ")[0] for row in rows[run.raw_id]}


def test_a_restart_of_slurmctld_makes_no_new_run(tmp_path: Path) -> None:
    """It rewrites states and exit codes of jobs that were over."""
    database = tmp_path / "imported.db"
    run_import(database, samples() / "sacct-22.05-before-ctld-restart.txt", time_zone="UTC")
    before = content(database)
    report = run_import(database, samples() / "sacct-22.05-s-terminal.txt", time_zone="UTC")
    twice = len(records(database)) - len(jobs(database))
    assert twice == 0
    assert report.imported == len(content(database)) - len(before)
    assert report.imported + report.updated + report.duplicates == 194


def test_output_with_x_is_refused_because_it_has_no_cpu_time(tmp_path: Path) -> None:
    report = run_import(tmp_path / "imported.db", samples() / "sacct-22.05-X.txt", time_zone="UTC")
    assert report.imported == 0
    assert "make it without -X" in report.troubles[0]


def test_durations_as_slurm_writes_them(tmp_path: Path) -> None:
    for line in (samples() / "totalcpu-format-by-sql.txt").read_text().splitlines():
        seconds, _, printed = line.partition(" -> ")
        total, user, system = printed.split(" ")[0].split("|")[1:]
        one = job(TotalCPU=total, UserCPU=user, SystemCPU=system)
        (run,) = read([one, step(one)], tmp_path)
        assert run.user_ms is not None
        # A fraction is dropped from an hour on. The sample set the user's part of one step.
        assert run.user_ms / 1000 == pytest.approx(int(seconds), abs=1.3), line


def test_a_fraction_behind_hours_counts(tmp_path: Path) -> None:
    one = job(TotalCPU="1-02:03:04.5", UserCPU="1-02:03:04.5", SystemCPU="00:00:00")
    (run,) = read([one, step(one)], tmp_path)
    assert run.user_ms == ((26 * 60 + 3) * 60 + 4) * 1000 + 500


# Trap by trap


GPUS = "billing=3,cpu=2,gres/gpu:a100=1,gres/gpu:t4=1,gres/gpu=2,mem=4G,node=1"


def test_a_job_and_its_steps(tmp_path: Path) -> None:
    one = job(
        7,
        Start=BEGIN + 10,
        Submit=BEGIN,
        AllocTRES="billing=3,cpu=2,gres/gpu:a100=1,gres/gpu:t4=1,gres/gpu=2,mem=4G,node=1",
    )
    found = imported(tmp_path, [one, step(one), step(one, "extern", MaxRSS="20M"), step(one, "0", NTasks=4)])
    assert found["JobID"] == f"{CLUSTER}:7:{BEGIN}"
    assert (found["LocalJobID"], found["UsedWalltime"]) == ("7", 100)
    assert (found["SubmitTime"], found["StartTime"], found["EndTime"]) == (BEGIN, BEGIN + 10, BEGIN + 110)
    assert (found["UsedCPUUserTime"], found["UsedCPUKernelTime"]) == (81, 10)  # 90.5 s in all
    assert (found["CPUCount"], found["NodeCount"], found["GPUCount"]) == (2, 1, 2)
    assert (found["UsedMemory"], found["UsedVirtMem"]) == (20 * 1024, 12 * 1024)
    extra = found["extra"]
    assert extra["gpumodels"] == "a100=1,t4=1"
    assert (extra["localuser"], extra["jobname"], extra["nodenames"]) == ("ada:atlas", "analysis", "node1")
    quantities = f"NumTasks=4 TimeLimit=3600 EligibleTime={BEGIN} mem={4 * 2**20} billing=3 SecsPreSuspend=0"
    assert extra["quantities"] == quantities


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("COMPLETED", "completed"),
        ("CANCELLED", "aborted"),
        ("CANCELLED by 3001", "aborted"),
        *((state, "failed") for state in ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "DEADLINE", "BOOT_FAIL")),
        *((state, "failed") for state in ("PREEMPTED", "REQUEUED", "REVOKED", "LAUNCH_FAILED")),
    ],
)
def test_each_state_in_which_a_job_is_over(tmp_path: Path, state: str, status: str) -> None:
    one = job(State=state)
    assert imported(tmp_path, [one, step(one)])["Status"] == status


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "REQUEUE_HOLD"])
def test_a_job_that_is_not_over_waits(tmp_path: Path, state: str) -> None:
    one = job(State=state, End="Unknown")
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct", text([one, step(one)])))
    assert report.imported == 0
    assert report.skipped == {f"not over ({state})": 1}


@pytest.mark.parametrize("start", ["None", "Unknown", BEGIN + 500])
def test_a_job_that_never_ran_is_no_usage(tmp_path: Path, start: object) -> None:
    """Whatever AllocCPUS says; one that was held has the time of its cancellation as its start."""
    one = job(
        State="CANCELLED by 0", Start=start, End=BEGIN + 500, ElapsedRaw=0, AllocTRES="", NodeList="None assigned"
    )
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct", text([one])))
    assert report.skipped == {"never ran (CANCELLED)": 1}


def test_a_run_of_less_than_a_second_counts(tmp_path: Path) -> None:
    one = job(ElapsedRaw=0)
    assert imported(tmp_path, [one, step(one, MaxRSS="")])["UsedWalltime"] == 0


def test_each_run_of_a_requeued_job_counts(tmp_path: Path) -> None:
    first = job(7, State="REQUEUED", Submit=BEGIN, ElapsedRaw=30)
    second = job(7, Submit=BEGIN + 30, Start=BEGIN + 40, ElapsedRaw=50)
    lines = [first, step(first), second, step(second)]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct", text(lines)))
    assert report.imported == 2
    assert sum(one["UsedWalltime"] for one in jobs(tmp_path / "imported.db").values()) == 80


def test_the_parts_of_a_resized_job_do_not_overlap(tmp_path: Path) -> None:
    """Slurm shows the start of the first part with the second, too."""
    nothing = {"TotalCPU": "00:00:00", "UserCPU": "00:00:00", "SystemCPU": "00:00:00"}
    first = job(7, State="RESIZING", Submit=BEGIN, ElapsedRaw=3, **nothing)
    second = job(7, Submit=BEGIN + 3, Start=BEGIN, ElapsedRaw=7, **nothing)
    runs = read([first, step(first, MaxRSS="", State="RESIZING", **nothing), second], tmp_path)
    assert [(run.started_at, run.ended_at, run.wall_s) for run in runs] == [
        (BEGIN, BEGIN + 3, 3),
        (BEGIN + 3, BEGIN + 7, 4),
    ]
    assert [run.user_ms for run in runs] == [None, None]


def test_a_clock_that_went_back_takes_no_wall_time(tmp_path: Path) -> None:
    """A job that was submitted after its end is not what is left of a resized one."""
    late = job(7, Submit=BEGIN + 3600, Start=BEGIN + 300, ElapsedRaw=1500)
    backwards = job(8, Submit=BEGIN, Start=BEGIN + 3600, ElapsedRaw=0, End=BEGIN + 1800)
    times = [
        (run.started_at, run.ended_at, run.wall_s)
        for run in read([late, step(late), backwards, step(backwards)], tmp_path)
    ]
    assert times == [(BEGIN + 300, BEGIN + 1800, 1500), (BEGIN + 1800, BEGIN + 1800, 0)]


# Submission, start, end and seconds; then start and end in UTC. In Oslo it was 2:00 to 3:00 twice.
TWICE = [
    (("02:50", "02:10", "02:20", 600), ("01:10", "01:20")),
    (("02:30", "02:50", "02:10", 1200), ("00:50", "01:10")),
    (("01:00", "02:50", "03:50", 3600), ("01:50", "02:50")),
    (("01:00", "02:50", "03:50", 7200), ("00:50", "02:50")),
    (("02:10", "02:20", "02:30", 600), ("00:20", "00:30")),
    (("04:00", "04:10", "04:20", 600), ("03:10", "03:20")),
]


@pytest.mark.parametrize(("told", "true"), TWICE)
def test_the_hour_that_comes_twice(told: tuple[str, str, str, int], true: tuple[str, str], tmp_path: Path) -> None:
    *clock, elapsed = told
    submit, start, end = (f"2026-10-25T{each}:00" for each in clock)
    line = job(7, Submit=submit, Start=start, End=end, ElapsedRaw=elapsed)
    (run,) = runs_of(write(tmp_path / "sacct.txt", text([line, step(line)])), "Europe/Oslo")
    begun, ended = (datetime.fromisoformat(f"2026-10-25T{each}:00Z").timestamp() for each in true)
    assert (run.started_at, run.ended_at, run.wall_s) == (begun, ended, elapsed)


def test_another_time_zone_would_count_jobs_twice(tmp_path: Path) -> None:
    """The submission is part of a job's id, so what is read again in another zone would be another job."""
    database, clock = tmp_path / "imported.db", "2026-09-21T10:00:00"
    line = job(7, Submit=clock, Start=clock, End="2026-09-21T10:01:40", ElapsedRaw=100)
    path = write(tmp_path / "sacct.txt", text([job(8, State="CANCELLED", Start="None", ElapsedRaw=0, AllocTRES="")]))
    for zone in ("UTC", "Europe/Oslo"):  # nothing was imported yet
        run_import(database, path, time_zone=zone)
    run_import(database, write(path, text([line, step(line)])), time_zone="Europe/Oslo")
    before = only(database)
    again = write(path, text([job(9), step(job(9)), line, step(line)]))
    with pytest.raises(UsageError, match=r"read in the zone Europe/Oslo.*write importers.slurm.time_zone: Europe/Oslo"):
        run_import(database, again, time_zone="UTC")
    assert only(database) == before
    assert run_import(database, again, time_zone="Europe/Oslo").imported == 1
    with source_jobs(database) as part, part.transaction():  # of jobs that are gone by now, too
        part.take_back(list(jobs(database)))
    with pytest.raises(UsageError, match="read in the zone Europe/Oslo"):
        run_import(database, again, time_zone="UTC")


def test_a_job_that_was_resized_in_the_hour_that_comes_twice(tmp_path: Path) -> None:
    """Its later part shows the start of the first one, before its own submission, and the time since then."""
    submit, start, end = (f"2026-10-25T{each}:00" for each in ("02:50", "02:20", "03:30"))
    line = job(7, Submit=submit, Start=start, End=end, ElapsedRaw=130 * 60)
    (run,) = runs_of(write(tmp_path / "sacct.txt", text([line, step(line)])), "Europe/Oslo")
    begun, ended = (datetime.fromisoformat(f"2026-10-25T{each}:00Z").timestamp() for each in ("00:50", "02:30"))
    assert (run.started_at, run.ended_at, run.wall_s) == (begun, ended, 100 * 60)


@pytest.mark.parametrize("size", ["999999999999999999E", "999999999999999999M", "9999999999999999G"])
def test_a_size_that_no_memory_has_is_unknown(size: str, tmp_path: Path) -> None:
    line = job(7)
    assert imported(tmp_path, [line, step(line, MaxRSS=size, MaxVMSize=size)])["UsedMemory"] == 0


def test_a_file_that_is_written_anew_each_time_misses_nothing(tmp_path: Path) -> None:
    """As the manual has it: each output has some of the last one."""
    path = tmp_path / "sacct.txt"
    for first in (1, 5, 9):
        lines = [line for number in range(first, first + 8) for line in (job(number), step(job(number)))]
        report = run_import(tmp_path / "imported.db", write(path, text(lines)))
        assert (report.troubles, len(report.notes)) == ([], 1)
        assert "--delimiter" in report.notes[0]
    assert len(jobs(tmp_path / "imported.db")) == 16


def test_a_file_that_goes_on_with_allocations_that_had_no_step(tmp_path: Path) -> None:
    lines = [job(7), step(job(7))]
    for number in (8, 9, 10):
        report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct.txt", text(lines)))
        assert report.troubles == []
        lines.append(job(number, TotalCPU="", UserCPU="", SystemCPU=""))
    assert len(jobs(tmp_path / "imported.db")) == 3


def test_a_resized_job_is_not_charged_for_its_suspension(tmp_path: Path) -> None:
    (run,) = read([job(7, Submit=BEGIN + 3, Start=BEGIN, ElapsedRaw=7, Suspended="00:00:01")], tmp_path)
    assert (run.ended_at, run.wall_s, run.suspended_s) == (BEGIN + 7, 3, 1)


NO_CPU = {"TotalCPU": "00:00:00", "UserCPU": "00:00:00", "SystemCPU": "00:00:00"}


def test_cpu_time_that_nobody_measured_is_unknown_and_told(tmp_path: Path) -> None:
    measured = job(1, ElapsedRaw=1, **NO_CPU)
    lost = job(2, State="NODE_FAIL", **NO_CPU)
    alone = job(3, **NO_CPU)
    lines = [measured, step(measured, MaxRSS=""), lost, step(lost, ExitCode="", MaxRSS="", State="CANCELLED"), alone]
    assert [run.user_ms for run in read(lines, tmp_path)] == [0, None, None]
    report = run_import(tmp_path / "imported.db", tmp_path / "sacct.txt")
    assert report.incomplete == 2
    assert "2 runs whose CPU time Slurm does not know" in report.notes[0]
    unknown = [dict(one["extra"]).get("cputime") for _, one in sorted(jobs(tmp_path / "imported.db").items())]
    assert unknown == [None, "unknown", "unknown"]


def test_cpu_time_of_steps_where_the_job_has_none(tmp_path: Path) -> None:
    one = job(TotalCPU="", UserCPU="", SystemCPU="")
    own = {"TotalCPU": "00:10.000", "UserCPU": "00:09.000", "SystemCPU": "00:01.000"}
    (run,) = read([one, step(one, **own), step(one, "extern", **own), step(one, "0", **own)], tmp_path)
    assert (run.user_ms, run.system_ms) == (27_000, 3_000)


def test_suspension_is_no_wall_time(tmp_path: Path) -> None:
    one = job(ElapsedRaw=27, End=BEGIN + 7 * 60 + 33, Suspended="00:00:06")
    found = imported(tmp_path, [one, step(one)])
    assert found["UsedWalltime"] == 27
    assert found["extra"]["quantities"].endswith("SecsPreSuspend=6")


def test_parts_of_arrays_and_of_heterogeneous_jobs_are_jobs(tmp_path: Path) -> None:
    lines = [job(95, JobID="93_2"), job(98, JobID="98_5"), job(128, JobID="128+0"), job(129, JobID="128+1")]
    lines += [job(104, JobID="104_[2-9%2]", ElapsedRaw=0, AllocTRES="", Start="None", End=BEGIN, State="CANCELLED")]
    with_steps = [line for one in lines for line in (one, step(one))]
    database = tmp_path / "imported.db"
    report = run_import(database, write(tmp_path / "sacct", text(with_steps)), array_ids=True)
    assert sorted(one["LocalJobID"] for one in jobs(database).values()) == ["128+0", "128+1", "93_2", "98_5"]
    assert report.skipped == {"never ran (CANCELLED)": 1}


@pytest.mark.parametrize(
    "name",
    [
        "a|b",
        "two\nlines",
        "three\nmore\nlines|",
        "\r",
        "tab\t",
        "\u2028",
        "x\x1fy",
        "\x1c",
        "",
        " ",
        "123.batch",
        "9|x",
        "\N{GRINNING FACE}",
    ],
)
def test_a_name_that_is_asked_for_last_moves_nothing(tmp_path: Path, name: str) -> None:
    one, other = job(1, JobName=name), job(2)
    runs = read([one, step(one, JobName=name), other, step(other)], tmp_path)
    assert [(run.raw_id, run.name, run.user_ms) for run in runs] == [
        ("1", clean(name), 80_250),
        ("2", "analysis", 80_250),
    ]


def test_bytes_that_are_no_utf_8_are_kept_as_far_as_can_be(tmp_path: Path) -> None:
    one = job(JobName="caf\udce9")
    assert imported(tmp_path, [one, step(one)])["UsedWalltime"] == 100


def test_a_name_that_looks_like_a_job_is_a_bad_line_and_no_job(tmp_path: Path) -> None:
    one = job(1, JobName="x\n999|forged|COMPLETED")
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct", text([one, step(one)])))
    assert (report.imported, report.bad) == (1, 1)
    assert set(jobs(tmp_path / "imported.db")) == {f"{CLUSTER}:1:{BEGIN + 60}"}


def test_a_name_in_the_middle_may_cost_its_own_job_only(tmp_path: Path) -> None:
    columns = ("JobIDRaw", "JobName", *(name for name in COLUMNS if name not in ("JobIDRaw", "JobName")))
    bad, good = job(1, JobName="a|b"), job(2)
    report = run_import(
        tmp_path / "imported.db", write(tmp_path / "sacct", text([bad, step(bad), good, step(good)], columns))
    )
    assert (report.imported, report.bad) == (1, 1)
    assert "fields where the header has" in report.bad_lines[0].reason


@pytest.mark.parametrize("delimiter", ["|", "\x1f", ";", "^^", "\x1f123456789\x1f"])
@pytest.mark.parametrize("trailing", [False, True])
def test_any_delimiter_and_one_behind_the_last_field(tmp_path: Path, delimiter: str, trailing: bool) -> None:
    one = job(1)
    path = write(tmp_path / "sacct.txt", text([one, step(one)], delimiter=delimiter, trailing=trailing))
    (run,) = runs_of(path)
    assert (run.name, run.memory_kib) == ("analysis", 8420)


VERSIONS = {
    "20.11": ("JobIDRaw JobID Cluster Partition Account User QOS State ExitCode Submit Eligible Start End ElapsedRaw TotalCPU "
              "UserCPU SystemCPU NCPUS NNodes NTasks NodeList AllocTRES MaxRSS MaxVMSize Suspended ConsumedEnergyRaw JobName"),
    "21.08": ("JobIDRaw JobID Cluster Partition Account User QOS State ExitCode Submit Start End ElapsedRaw TotalCPU UserCPU "
              "SystemCPU AllocCPUS AllocNodes NTasks NodeList AllocTRES MaxRSS SubmitLine JobName"),
    "23.11": ("JobIDRaw JobID Cluster Partition Account User QOS State ExitCode Submit Eligible Start End ElapsedRaw TotalCPU "
              "UserCPU SystemCPU AllocCPUS AllocNodes NTasks NodeList AllocTRES MaxRSS Planned FailedNode Licenses JobName"),
    "25.05": ("JobIDRaw JobID Cluster Partition Account User QOS State ExitCode Submit Eligible Start End ElapsedRaw TotalCPU "
              "UserCPU SystemCPU AllocCPUS AllocNodes NTasks NodeList AllocTRES MaxRSS Restarts StdOut Segment JobName"),
}  # fmt: skip


@pytest.mark.parametrize("trailing", [False, True])
def test_a_step_that_lacks_a_field_is_not_read_as_if_it_had_it(tmp_path: Path, trailing: bool) -> None:
    one = job(1)
    lines = text([one, step(one)], trailing=trailing).splitlines(keepends=True)
    lines[2] = lines[2].replace(b"||", b"|", 1)
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct.txt", b"".join(lines)))
    assert (report.imported, report.bad) == (0, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_columns_of_other_versions(tmp_path: Path, version: str) -> None:
    """By their names, whatever else is there (sacct's manual of these versions)."""
    one = job(1) | {"NCPUS": 2, "NNodes": 1, "SubmitLine": "sbatch x", "Planned": "00:00:01", "Restarts": 0}
    (run,) = runs_of(write(tmp_path / "sacct.txt", text([one, step(one)], VERSIONS[version].split())))
    assert (run.wall_s, run.user_ms, run.cpus, run.nodes, run.memory_kib) == (100, 80_250, 2, 1, 8420)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", ""),
        (b"1|2|3\n", "does not begin with a header"),
        (b"JobID|JobIDRaw|State\n", "does not begin with a header"),
        (b"JobIDRaw|State|User\n", "lacks the columns Submit, Start, End, ElapsedRaw, AllocTRES"),
        (b"JobIDRaw|State,User\n", "cannot be understood"),
        (text([job(1, Submit="2026-09-21T10:00:00", End="2026-09-21T10:01:40"), step(job(1))]), "time_zone"),
        (text([job(1)]) + text([job(2)], COLUMNS[:-1]), "has other columns"),
        (text([job(1), step(job(1))]) + text([job(2)], delimiter="\x1f"), "or another delimiter from byte"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_read_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct", content))
    assert report.imported == 0
    assert [reason in trouble for trouble in report.troubles] == ([True] if reason else [])


def test_outputs_that_were_put_together_are_read(tmp_path: Path) -> None:
    one, two = job(1), job(2)
    content_ = text([one, step(one)]) + text([two, step(two)])
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct", content_))
    assert (report.imported, report.bad) == (2, 0)
    assert {dict(found["extra"])["jobname"] for found in jobs(tmp_path / "imported.db").values()} == {"analysis"}


def test_times_of_a_zone(tmp_path: Path) -> None:
    one = job(
        1, Submit="2026-09-21T16:00:00", Eligible="Unknown", Start="2026-09-21T16:00:01", End="2026-09-21T16:01:41"
    )
    path = write(tmp_path / "sacct.txt", text([one, step(one)]))
    (run,) = runs_of(path, "Europe/Oslo")
    assert (run.submitted_at, run.started_at, run.eligible_at) == (1_789_999_200, 1_789_999_201, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (job(1, ElapsedRaw="many", End=BEGIN), "ElapsedRaw"),
        (job(1, Submit="Unknown", Start=BEGIN, End=BEGIN + 100), "has no time of submission"),
        (job(1, End="soon"), "'soon' is not a time"),
    ],
)
def test_a_line_that_cannot_be_understood_is_set_aside(tmp_path: Path, line: dict[str, object], reason: str) -> None:
    other = job(2)
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct", text([line, other, step(other)])))
    assert (report.imported, report.bad) == (1, 1)
    assert reason in report.bad_lines[0].reason


def test_what_is_left_out(tmp_path: Path) -> None:
    lines = [job(1, Cluster="other"), job(2, User="root"), job(3, Account="test"), job(4, Partition="debug")]
    lines += [job(5, State="BOOT_FAIL"), job(6)]
    report = run_import(
        tmp_path / "imported.db",
        write(tmp_path / "sacct", text([line for one in lines for line in (one, step(one))])),
        exclude_users=("root",),
        exclude_accounts=("t*",),
        exclude_partitions=("debug",),
        exclude_states=("BOOT_FAIL",),
    )
    assert report.imported == 1
    assert set(report.skipped) == {
        "of the cluster other",
        *(f"left out by exclude_{name}" for name in ("users", "accounts", "partitions", "states")),
    }


def test_users_and_accounts_are_mapped(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ada /DC=org/CN=Ada\n")
    (tmp_path / "vos").write_text("atlas atlas\n")
    (tmp_path / "projects").write_text("atlas p-17\n")
    one = job(1)
    maps = {
        "user_map": tmp_path / "users",
        "account_vo_map": tmp_path / "vos",
        "account_project_map": tmp_path / "projects",
    }
    found = imported(tmp_path, [one, step(one)], **maps)
    assert (found["User"], found["VO"], found["extra"]["projectname"]) == ("/DC=org/CN=Ada", "atlas", "p-17")


@pytest.mark.parametrize(
    ("account", "qos", "vo"), [("atlas", "high", "atlas"), ("bio", "high", "cms"), ("bio", "", "lhcb")]
)
def test_an_account_comes_before_a_qos_and_that_before_a_user(tmp_path: Path, account: str, qos: str, vo: str) -> None:
    for name, line in (("account", "atlas atlas"), ("qos", "high cms"), ("user", "ada lhcb")):
        (tmp_path / name).write_text(f"{line}\n")
    maps: dict[str, Any] = {f"{name}_vo_map": tmp_path / name for name in ("account", "qos", "user")}
    one = job(1, Account=account, QOS=qos)
    assert imported(tmp_path, [one, step(one, QOS="")], **maps)["VO"] == vo
    mapping = SacctMapping(Options(cluster=CLUSTER, **maps))
    rules = dict(mapping.explain(make_job(vo=vo, local_group=account, local_user="ada")))
    by = {"atlas": "account_vo_map: atlas", "cms": "qos_vo_map", "lhcb": "user_vo_map: ada"}
    assert rules["vo"] == f"importers.slurm.{by[vo]}"


# Once, twice, in pieces, killed


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = job(1)

    class Pipe:
        buffer = io.BytesIO(text([one, step(one)]).rstrip(b"\n"))

    monkeypatch.setattr("sys.stdin", Pipe)
    assert run_import(tmp_path / "imported.db", Path("-")).imported == 1


def test_an_import_in_any_order_and_number_of_pieces_is_one(tmp_path: Path) -> None:
    lines = jobs_of(1, 400)
    whole = tmp_path / "whole.db"
    run_import(whole, write(tmp_path / "whole.txt", text(lines)))
    starts = [at for at, line in enumerate(lines) if "." not in str(line["JobIDRaw"])]
    rng = random.Random(2)
    for attempt in range(3):
        cuts = sorted({0, len(lines), *rng.sample(starts, 6)})
        parts = [write(tmp_path / f"{attempt}.{begin}.txt", text(lines[begin:end])) for begin, end in pairwise(cuts)]
        rng.shuffle(parts)
        database = tmp_path / f"{attempt}.db"
        for part in [*parts, *rng.sample(parts, 3)]:
            assert run_import(database, part).troubles == []
        assert content(database) == content(whole)


def test_a_file_that_grows_is_read_on_and_its_last_job_gets_its_steps(tmp_path: Path) -> None:
    lines = jobs_of(3, 60)
    whole = text(lines)
    expected = tmp_path / "expected.db"
    run_import(expected, write(tmp_path / "expected.txt", whole))
    path, database = tmp_path / "sacct.txt", tmp_path / "imported.db"
    rng = random.Random(4)
    for end in sorted(rng.sample(range(1, len(whole)), 25)):
        path.write_bytes(whole[:end])
        assert run_import(database, path).bad == 0
    path.write_bytes(whole)
    run_import(database, path)
    assert content(database) == content(expected)


def test_files_of_one_job_each_are_read_although_they_begin_alike(tmp_path: Path) -> None:
    """As on a quiet cluster, of which sacct is asked each hour."""
    database = tmp_path / "imported.db"
    for number in (1, 2, 3):
        path = write(tmp_path / f"{number}.txt", text([line := job(number), step(line)]))
        assert run_import(database, path).imported == 1
    again = run_import(database, *(tmp_path / f"{number}.txt" for number in (1, 2, 3)))
    assert (again.imported, again.updated, len(jobs(database))) == (0, 0, 3)


def test_the_last_job_of_a_file_gets_its_steps_also_when_no_other_follows(tmp_path: Path) -> None:
    path, database = tmp_path / "sacct.txt", tmp_path / "imported.db"
    unmeasured = dict.fromkeys(("TotalCPU", "UserCPU", "SystemCPU"), "")
    first, last = job(1), job(2, **unmeasured)
    run_import(database, write(path, text([first, step(first), last])))
    run_import(database, write(path, text([first, step(first), last, step(last, TotalCPU="00:05.000")])))
    assert jobs(database)[f"{CLUSTER}:2:{last['Submit']}"]["UsedCPUUserTime"] == 5


def test_an_exit_code_that_was_not_known_at_first(tmp_path: Path) -> None:
    before, after, other = job(1, ExitCode=""), job(1, ExitCode="0:15"), job(2)
    database = tmp_path / "imported.db"
    for number, line in enumerate((before, after, before)):
        content = text([line, step(line), other, step(other)])
        assert run_import(database, write(tmp_path / f"{number}.txt", content)).updated == (number == 1)
    assert jobs(database)[f"{CLUSTER}:1:{after['Submit']}"]["ExitCode"] == 143


SET_UP = """
from publisher.sources.files import line_importer
from tests.support.sacct_text import run_import

line_importer._BATCH_PIECES = 20
"""


def test_an_import_that_is_killed_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path / "sacct.txt", text(jobs_of(5, 900)))
    expected, database = tmp_path / "expected.db", tmp_path / "imported.db"
    run_import(expected, path)
    rng = random.Random(1)
    ends = [child(SET_UP, database, rng.randrange(1, 200), path).wait(PATIENCE_S) for _ in range(10)]
    assert ends[:6] == [-signal.SIGKILL] * 6
    assert run_import(database, path).troubles == []
    assert content(database) == content(expected)


def test_sums_are_those_of_the_text(tmp_path: Path) -> None:
    """Summed up here without our reader."""
    lines = jobs_of(6, 500)
    run_import(tmp_path / "imported.db", write(tmp_path / "sacct.txt", text(lines)))
    ran = [line for line in lines if "." not in str(line["JobIDRaw"]) and (line["ElapsedRaw"] or line["AllocTRES"])]
    made = records(tmp_path / "imported.db")
    found = (len(made), sum(one.wall_s for one in made), sum(one.wall_s * (one.cpu_count or 0) for one in made))
    walls = [(int(str(line["ElapsedRaw"])), int(str(line["AllocCPUS"]))) for line in ran]
    assert found == (len(ran), sum(wall for wall, _ in walls), sum(wall * cpus for wall, cpus in walls))


def test_a_header_says_what_it_is() -> None:
    header = Header(text([], delimiter=";").rstrip(b"\n"))
    assert (header.delimiter, header.trailing) == (";", False)
    with pytest.raises(NotSacct):
        Header(b"JobIDRaw")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        one = job(7)
        page = text([one, step(one), step(one, "extern")], header=False)
        path = write(
            tmp_path / f"{count}.txt",
            text([])
            + b"".join(
                page.replace(b"7", b"%d" % (10**6 + at), 1).replace(b"\n7.", b"\n%d." % (10**6 + at))
                for at in range(count)
            ),
        )
        tracemalloc.start()
        try:
            assert run_import(tmp_path / f"{count}.db", path).imported == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(9_000) < peak(3_000) + 2 * 2**20
