"""Outputs of sacct after public reports of what happened at sites, and what each must give."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from publisher.sources.importers import ImportReport
from publisher.sources.slurm.header import COLUMNS
from tests.support.batch_stores import notices
from tests.support.gridengine_files import jobs
from tests.support.sacct_text import NOW, job, run_import, step, text, write

CASES = Path(__file__).parent / "slurm_cases"


def case(name: str, tmp_path: Path) -> tuple[ImportReport, list[dict[str, Any]]]:
    """The report, and the jobs in the order of their numbers."""
    report = run_import(tmp_path / "imported.db", CASES / f"{name}.sacct")
    return report, sorted(jobs(tmp_path / "imported.db").values(), key=lambda one: int(one["LocalJobID"].split("+")[0]))


def safe(path: Path, lines: list[dict[str, object]], columns: Sequence[str] = COLUMNS) -> Path:
    """Written with a delimiter that no user can write."""
    return write(path, text(lines, columns, "|13580424571302949375|"))


def cpu_s(one: dict[str, Any]) -> int | None:
    if dict(one["extra"]).get("cputime") == "unknown":
        return None
    return int(one["UsedCPUUserTime"] + one["UsedCPUKernelTime"])


@pytest.mark.parametrize(
    ("name", "expected"), [("srun-cpu-only-in-tres-25.05", [14_117]), ("totalcpu-zero-25.05", [14_112] * 30)]
)
def test_cpu_time_of_srun_steps_stands_in_tres(name: str, expected: list[int], tmp_path: Path) -> None:
    report, found = case(name, tmp_path)
    assert (report.troubles, report.bad) == ([], 0)
    assert list(map(cpu_s, found)) == expected


@pytest.mark.parametrize(("own", "expected"), [("02:00:00", 7200), ("01:30:00", 7200), ("02:30:00", 9000)])
def test_what_the_line_of_a_job_has_is_not_added_again(own: str, expected: int, tmp_path: Path) -> None:
    """The greater counts."""
    one = job(1, TotalCPU=own, UserCPU=own, SystemCPU="00:00:00", ElapsedRaw=9000)
    srun = step(
        one, UserCPU="00:10:00", SystemCPU="00:00:00", TotalCPU="00:10:00", TRESUsageInTot="cpu=02:00:00,mem=1G"
    )
    run_import(tmp_path / "imported.db", safe(tmp_path / "sacct.txt", [one, srun]))
    assert [cpu_s(found) for found in jobs(tmp_path / "imported.db").values()] == [expected]


class Kept(NamedTuple):
    """What the job of a case is, in numbers that stand in its text; by default as most cases have them."""

    number: str
    user: str | None = "ann:phys"
    status: str = "completed"
    submitted_at: int = 1_790_000_000
    started_at: int = 1_790_000_100
    ended_at: int = 1_790_003_700
    wall_s: int = 3600
    user_s: int = 540
    system_s: int = 60
    cores: int = 1
    memory_kib: int = 1000  # 0 is unknown
    is_cpu_known: bool = True


KEPT: dict[str, list[Kept]] = {
    # Its step of the same name took longer than the job, and tells nothing of it but memory.
    "interactive-step": [
        Kept("778010", ended_at=1_790_000_107, wall_s=7, user_s=1, system_s=1, cores=2),
    ],
    "het": [Kept("176"), Kept("177"), Kept("178")],
    # The step of the first one is of the second, by its times.
    "recycled-number": [
        Kept(
            "12728301",
            "jh:phys",
            submitted_at=1_507_050_000,
            started_at=1_507_052_369,
            ended_at=1_507_055_969,
            memory_kib=0,
        ),
        Kept("12728301"),
    ],
    "node-fail": [
        Kept(
            "12",
            status="failed",
            ended_at=1_790_001_332,
            wall_s=1232,
            user_s=0,
            system_s=0,
            memory_kib=0,
            is_cpu_known=False,
        )
    ],
    "unknown-state": [Kept(number, status="failed") for number in "123"],
    "no-user": [Kept("9", None)],
    "usercpu-above-wall": [
        Kept(
            "15715316",
            ended_at=1_790_001_694,
            wall_s=1594,
            user_s=147_587,
            system_s=600,
            cores=2,
            memory_kib=3532,
        )
    ],
    "timeout-batch-cancelled": [
        Kept(
            "77",
            status="failed",
            ended_at=1_790_003_729,
            wall_s=3629,
            user_s=3600,
            system_s=66,
            cores=2,
            memory_kib=19_855_760,
        )
    ],
    "never-started": [],
}
SKIPPED = {"never-started": {"never ran (CANCELLED)": 1, "not over (PENDING)": 1}}


def kept(one: dict[str, Any]) -> Kept:
    extra = dict(one["extra"])
    return Kept(
        one["LocalJobID"],
        extra.get("localuser"),
        one["Status"],
        one["SubmitTime"],
        one["StartTime"],
        one["EndTime"],
        one["UsedWalltime"],
        one["UsedCPUUserTime"],
        one["UsedCPUKernelTime"],
        one["CPUCount"],
        one["UsedMemory"],
        extra.get("cputime") != "unknown",
    )


@pytest.mark.parametrize("name", KEPT)
def test_every_value_of_a_case(name: str, tmp_path: Path) -> None:
    report, found = case(name, tmp_path)
    assert (report.troubles, report.bad, report.held, dict(report.skipped)) == ([], 0, 0, SKIPPED.get(name, {}))
    found.sort(key=lambda one: (one["LocalJobID"], one["SubmitTime"]))
    assert list(map(kept, found)) == KEPT[name]
    for one in found:
        assert (one["Queue"], one["User"], one["VO"], one["NodeCount"], one["ExitCode"]) == ("p", "", "", 1, 0)
        assert (one["GPUCount"], one["UsedVirtMem"], dict(one["extra"])["nodenames"]) == (None, 0, "n1")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("disabled", "Slurm accounting storage is disabled"),
        ("error-text", "slurmdbd: Too wide of a date range in query"),
    ],
)
def test_what_sacct_says_in_place_of_a_table(name: str, words: str, tmp_path: Path) -> None:
    report, _ = case(name, tmp_path)
    assert report.exit_status == 66
    assert words in report.troubles[0]


NO_CPU = {"TotalCPU": "00:00:00", "UserCPU": "00:00:00", "SystemCPU": "00:00:00"}


def test_a_cluster_that_gathers_nothing(tmp_path: Path) -> None:
    """JobAcctGatherType=none: every CPU time is 0, and no step shows memory. It is said once, until jobs show some."""
    database = tmp_path / "imported.db"
    measured, after = job(0), [job(number) for number in range(10, 12)]
    unmeasured = [job(number, **NO_CPU) for number in range(1, 6)]
    none = {"MaxRSS": "", "MaxVMSize": ""}
    before = [measured, step(measured), *(line for one in unmeasured[:4] for line in (one, step(one, **none)))]
    run_import(database, safe(tmp_path / "before", before))
    assert notices(database) == ()
    lines = [*before, unmeasured[4], step(unmeasured[4], **none)]
    for _ in range(2):
        report = run_import(database, safe(tmp_path / "sacct.txt", lines))
        (notice,) = notices(database)
        assert notice in report.notes
        assert ["JobAcctGatherType" in note for note in report.notes].count(True) == 1
    assert [cpu_s(one) for _, one in sorted(jobs(database).items())] == [91, *[None] * 5]
    run_import(database, safe(tmp_path / "after", [line for one in after for line in (one, step(one))]))
    assert notices(database) == ()


def test_a_text_without_memory_makes_no_measured_cpu_time_unknown(tmp_path: Path) -> None:
    columns = [name for name in COLUMNS if name not in ("MaxRSS", "TRESUsageInTot")]
    idle, lost = job(1, **NO_CPU), job(2, State="NODE_FAIL", **NO_CPU)
    lines = [idle, step(idle), lost, step(lost, ExitCode="", State="CANCELLED")]
    run_import(tmp_path / "imported.db", safe(tmp_path / "sacct.txt", lines, columns))
    assert [cpu_s(one) for _, one in sorted(jobs(tmp_path / "imported.db").items())] == [0, None]


def test_cores_come_from_tres_where_they_were_not_asked_for(tmp_path: Path) -> None:
    one = job(1, AllocTRES="billing=4,cpu=4,mem=4G,node=1")
    columns = [name for name in COLUMNS if name != "AllocCPUS"]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct.txt", text([one, step(one)], columns)))
    assert report.troubles == []
    assert [found["CPUCount"] for found in jobs(tmp_path / "imported.db").values()] == [4]


def test_no_name_forges_a_job_in_a_file_made_as_the_manual_shows(tmp_path: Path) -> None:
    """Slurm prints an end of line in a name, a directory or an account as it is."""
    forged = text([job(666), step(job(666))], header=False).decode()
    one = job(1, JobName=f"x\n{forged}", Account=f"bio\n{forged}")
    path = write(tmp_path / "sacct.txt", text([one, step(one)], delimiter="|13580424571302949375|"))
    run_import(tmp_path / "imported.db", path)
    assert "666" not in {found["LocalJobID"] for found in jobs(tmp_path / "imported.db").values()}


def test_ends_of_lines_as_windows_has_them(tmp_path: Path) -> None:
    """The last column, here the state, is what it is."""
    report, found = case("crlf", tmp_path)
    assert (report.troubles, report.bad) == ([], 0)
    assert [(one["Status"], one["UsedMemory"]) for one in found] == [("completed", 2048), ("failed", 2048)]


@pytest.mark.parametrize("delimiter", [",", ":", "=", "-", ".", "/", " ", "+", "_", "["])
def test_a_delimiter_that_values_hold_is_refused(delimiter: str, tmp_path: Path) -> None:
    """With a comma, a job would have no GPU: its TRES would end with the first of them."""
    one = job(1, AllocTRES="billing=2,cpu=2,gres/gpu:a100=2,gres/gpu=2,mem=4G,node=1")
    path = write(tmp_path / "sacct.txt", text([one, step(one)], delimiter=delimiter))
    report = run_import(tmp_path / "imported.db", path)
    assert (report.imported, report.exit_status) == (0, 66)
    assert "--delimiter" in report.troubles[0]


@pytest.mark.parametrize("last", ["AllocCPUS", "AllocTRES", "ElapsedRaw", "NodeList"])
def test_a_last_line_that_was_cut_off_in_an_archive(last: str, tmp_path: Path) -> None:
    """Of 16 cores 1 would be left."""
    columns = [*(name for name in COLUMNS if name != last), last]
    one, two = job(1), job(2, AllocCPUS=16, AllocTRES="billing=16,cpu=16,mem=4G,node=1")
    content = text([one, step(one), two], columns)[:-2]
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct.gz", gzip.compress(content)))
    assert (report.imported, report.bad) == (1, 1)
    assert "cut" in report.bad_lines[0].reason


@pytest.mark.parametrize("trailing", [False, True])
def test_a_text_without_a_last_end_of_a_line(trailing: bool, tmp_path: Path) -> None:
    """As a shell hands it on: only the name of a job may have lost something."""
    one = job(1)
    content = text([one, step(one)], trailing=trailing).rstrip(b"\n")
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct.gz", gzip.compress(content)))
    assert (report.imported, report.bad) == (1, 0)


@pytest.mark.parametrize(("age_s", "status"), [(0, 0), (7200, 66)])
def test_an_empty_file_is_no_answer_for_long(age_s: int, status: int, tmp_path: Path) -> None:
    """A shell makes it before sacct writes into it, and it stays where sacct failed."""
    path = write(tmp_path / "sacct.txt", b"")
    modified = NOW.timestamp() - age_s
    os.utime(path, (modified, modified))
    report = run_import(tmp_path / "imported.db", path)
    assert report.exit_status == status
    assert ["is empty" in trouble for trouble in report.troubles] == ([True] if status else [])
    assert ["is still empty" in note for note in report.notes] == ([] if status else [True])


def test_a_header_alone_is_an_answer(tmp_path: Path) -> None:
    report = run_import(tmp_path / "imported.db", write(tmp_path / "sacct.txt", text([])))
    assert (report.exit_status, report.troubles) == (0, [])


FORGED = {"State": "COMPLETED", "User": "eve", "AllocCPUS": 4096}
NAME_IN_THE_MIDDLE = ("JobIDRaw", "JobName", *(name for name in COLUMNS if name not in ("JobIDRaw", "JobName")))


def test_a_row_behind_a_broken_one_is_set_aside(tmp_path: Path) -> None:
    """Where a user's text goes over lines and is not the last column, its row lacks columns."""
    forged, good = text([job(666, **FORGED)], NAME_IN_THE_MIDDLE, header=False).decode(), job(2)
    one = job(1, JobName=f"x\n{forged}")
    path = write(tmp_path / "sacct.txt", text([one, step(one), good, step(good)], NAME_IN_THE_MIDDLE))
    report = run_import(tmp_path / "imported.db", path)
    assert {found["LocalJobID"] for found in jobs(tmp_path / "imported.db").values()} == {"2"}
    reasons = [line.reason for line in report.bad_lines]
    assert reasons[1].startswith("follows a row that lacks columns")
    assert b"666|" in report.bad_lines[1].line


def test_a_text_in_the_middle_that_goes_over_lines_is_read(tmp_path: Path) -> None:
    one = job(1, JobName="two\nlines")
    path = write(tmp_path / "sacct.txt", text([one, step(one)], NAME_IN_THE_MIDDLE))
    assert run_import(tmp_path / "imported.db", path).bad == 0
    assert len(jobs(tmp_path / "imported.db")) == 1


@pytest.mark.parametrize(
    ("delimiter", "columns", "warns"),
    [
        ("|", COLUMNS, True),
        ("\x1f", COLUMNS, True),
        ("|", [name for name in COLUMNS if name not in ("JobName", "Account")], False),
        ("|", [name for name in COLUMNS if name != "JobName"], True),
        ("|13580424571302949375|", COLUMNS, False),
    ],
)
def test_a_file_in_which_a_user_can_forge_jobs_is_reported(
    delimiter: str, columns: list[str], warns: bool, tmp_path: Path
) -> None:
    lines, database = [line for number in range(3) for line in (job(number), step(job(number)))], tmp_path / "i.db"
    paths = [write(tmp_path / f"{at}.txt", text(lines[at:], columns, delimiter)) for at in (0, 2)]
    for _ in range(2):
        notes = [note for note in run_import(database, *paths).notes if "--delimiter" in note]
        assert len(notes) == warns
        kept = notices(database)
        assert list(kept) == notes
    safe = write(tmp_path / "safe.txt", text(lines, COLUMNS, "|13580424571302949375|"))
    assert run_import(database, safe).notes == []
    assert notices(database) == ()
