"""Text of sacct for tests, made from one description of each line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from publisher.sources.importers import ImportReport
from publisher.sources.slurm.header import COLUMNS
from publisher.sources.slurm.importer import TABLES, Options, create
from tests.support.batch_stores import read_into

CLUSTER = "hpc1"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
BEGIN = 1_790_000_000  # 2026-09-21

_JOB: dict[str, object] = {
    "Cluster": CLUSTER,
    "Partition": "batch",
    "Account": "atlas",
    "User": "ada",
    "State": "COMPLETED",
    "ExitCode": "0:0",
    "ElapsedRaw": 100,
    "TotalCPU": "01:30.500",
    "UserCPU": "01:20.250",
    "SystemCPU": "00:10.250",
    "AllocCPUS": 2,
    "AllocNodes": 1,
    "NodeList": "node1",
    "AllocTRES": "billing=2,cpu=2,mem=4G,node=1",
    "Suspended": "00:00:00",
    "TimelimitRaw": 60,
    "JobName": "analysis",
}
_OF_JOBS_ONLY = ("Partition", "User", "TimelimitRaw")


def job(number: int = 7, **columns: object) -> dict[str, object]:
    """A job's line. Times follow from `Submit` and `ElapsedRaw` where they are not given."""
    submit = columns.get("Submit", BEGIN + number * 60)
    start = columns.get("Start", submit)
    given = {"JobIDRaw": number, "JobID": number, "Submit": submit, "Eligible": submit, "Start": start}
    line = _JOB | given | columns
    if "End" not in columns and isinstance(start, int):
        elapsed = line["ElapsedRaw"]
        assert isinstance(elapsed, int)
        line["End"] = start + elapsed
    return line


def step(of: dict[str, object], name: str = "batch", **columns: object) -> dict[str, object]:
    """The line of a step."""
    number = f"{of['JobIDRaw']}.{name}"
    memory = {"MaxRSS": "8420K", "MaxVMSize": "12M", "NTasks": 1}
    return (
        of
        | dict.fromkeys(_OF_JOBS_ONLY, "")
        | memory
        | {"JobIDRaw": number, "JobID": number, "JobName": name}
        | columns
    )


def text(
    lines: Iterable[dict[str, object]],
    columns: Sequence[str] = COLUMNS,
    delimiter: str = "|",
    *,
    trailing: bool = False,
    header: bool = True,
) -> bytes:
    """What sacct prints; `trailing` as with -p."""
    rows = [list(columns)] if header else []
    rows += [[str(line.get(column, "")) for column in columns] for line in lines]
    end = delimiter if trailing else ""
    return "".join(delimiter.join(row) + end + "\n" for row in rows).encode("utf-8", "surrogateescape")


def jobs_of(seed: int, count: int, first: int = 1) -> list[dict[str, object]]:
    """A cluster's life, line by line: steps, arrays, reruns, jobs that never ran, failed nodes, resized ones."""
    rng, lines = Random(seed), []
    for number in range(first, first + count):
        cpus, wall = rng.choice((1, 2, 8)), rng.randrange(1, 5000)
        one = job(
            number,
            Submit=BEGIN + number * 60,
            Start=BEGIN + number * 60 + rng.randrange(500),
            ElapsedRaw=wall,
            User=f"user{rng.randrange(9)}",
            Account=rng.choice(("atlas", "bio", "theory")),
            AllocCPUS=cpus,
            AllocTRES=f"billing={cpus},cpu={cpus},gres/gpu={rng.randrange(3)},mem=4G,node=1",
            UserCPU=_duration(wall, rng.randrange(1000)),
            State=rng.choice(("COMPLETED", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 3001")),
        )
        match rng.randrange(8):
            case 0:  # never ran
                lines.append(one | {"ElapsedRaw": 0, "AllocTRES": "", "Start": "None", "State": "CANCELLED by 0"})
            case 1:  # ran twice
                end = one["End"]
                assert isinstance(end, int)
                lines += [one | {"State": "REQUEUED"}, step(one)]
                again = job(number, Submit=end, Start=end + 9, ElapsedRaw=60, User=one["User"], Account=one["Account"])
                lines += [again, step(again)]
            case 2:  # nobody measured
                failed = one | {
                    "State": "NODE_FAIL",
                    "TotalCPU": "00:00:00",
                    "UserCPU": "00:00:00",
                    "SystemCPU": "00:00:00",
                }
                lines += [failed, step(failed, ExitCode="", MaxRSS="", State="CANCELLED")]
            case _:
                lines += [one, step(one), step(one, "extern", MaxRSS="900K"), step(one, "0", NTasks=4)]
    return lines


def _duration(seconds: int, milliseconds: int) -> str:
    """From an hour on Slurm drops the fraction."""
    if seconds < 3600:
        return f"{seconds // 60:02}:{seconds % 60:02}.{milliseconds:03}"
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def run_import(database: Path, *paths: Path, now: datetime = NOW, **options: Any) -> ImportReport:
    made = Options(cluster=CLUSTER, **options)
    return read_into(database, create(made, os.environ), TABLES, *paths, now=now, options=made)
