"""Accounting records of Grid Engine for tests, written in each of its formats from one description."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from publisher.sources.gridengine.importer import TABLES, Options, create
from publisher.sources.importers import ImportReport
from tests.support.batch_stores import as_row, asked, read_into, records

CLUSTER = "sge.example.org"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
BEGIN = 1_790_000_000  # 2026-09-21
HEADER = b"# Version: 8.1.9\n# \n# DO NOT MODIFY THIS FILE MANUALLY!\n# \n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one record says; times in whole seconds."""

    job: int = 4711
    task: int = 0
    pe_task: str = ""
    queue: str = "all.q"
    host: str = "node1.example.org"
    owner: str = "ada"
    group: str = "theory"
    account: str = "sge"
    project: str = ""
    department: str = "defaultdepartment"
    pe: str = ""
    slots: int = 1
    name: str = "analysis"
    category: str = "-l h_rt=3600"
    submitted: int = BEGIN
    started: int = BEGIN + 10
    ended: int = BEGIN + 110
    failed: int = 0
    exit_status: int = 0
    deleted_by: str = ""
    ru_wallclock: float = 100.0
    cpu: float = 90.5
    utime: float = 80.0
    stime: float = 10.25
    ru_maxrss: int = 2_048  # kB
    maxrss: int = 4_194_304  # bytes; only where the format has it
    maxvmem: int = 1_073_741_824  # bytes

    def key(self) -> tuple[object, ...]:
        """What makes it the same record when it is met again."""
        return (self.job, self.task, self.pe_task, self.host, self.submitted, self.started, self.ended)


def colon(entry: Entry, *, columns: int = 45, factor: int = 1) -> bytes:
    """A line of the colon-separated format; `factor` is 1000 for Univa's milliseconds."""

    def word(text: str) -> str:
        return text or "NONE"

    usage = ["0"] * 14
    fields = [
        *(entry.queue, entry.host, entry.group, entry.owner, entry.name, entry.job, entry.account, 0),
        *(entry.submitted * factor, entry.started * factor, entry.ended * factor, entry.failed, entry.exit_status),
        *(f"{entry.ru_wallclock:g}", f"{entry.utime:.6f}", f"{entry.stime:.6f}", f"{entry.ru_maxrss:.6f}", *usage),
        *(word(entry.project), entry.department, word(entry.pe), entry.slots, entry.task),
        *(f"{entry.cpu:.6f}", "0.5", "0.25", word(entry.category), "0.000000", word(entry.pe_task)),
        *(f"{entry.maxvmem:.6f}", 0, 0, "NONE", word(entry.deleted_by), entry.maxrss, entry.maxrss),
        *("login1.example.org", "NONE", "qsub job.sh"),
    ]
    fields += ["0"] * max(0, columns - len(fields))
    return ":".join(map(str, fields[:columns])).encode("latin-1") + b"\n"


def jsonl(entry: Entry, *, micro: int = 0, usage_key: str = "eusage", **more: Any) -> bytes:
    """A line of the JSON format; `micro` are the microseconds of every time."""
    record: dict[str, Any] = {"job_number": entry.job, "task_number": entry.task}
    for key, moment in (("start_time", entry.started), ("end_time", entry.ended), ("submission_time", entry.submitted)):
        record[key] = moment * 1_000_000 + micro if moment else 0
    record |= {"owner": entry.owner, "group": entry.group, "account": entry.account, "qname": entry.queue}
    record |= {"hostname": entry.host, "department": entry.department, "slots": entry.slots, "job_name": entry.name}
    optional = {"project": entry.project, "granted_pe": entry.pe, "pe_taskid": entry.pe_task}
    record |= {key: text for key, text in optional.items() if text}
    record |= {"category": entry.category, "failed": entry.failed, "exit_status": entry.exit_status}
    if entry.deleted_by:
        record["deleted_by"] = entry.deleted_by
    rusage = {"ru_wallclock": int(entry.ru_wallclock), "ru_utime": entry.utime, "ru_stime": entry.stime}
    record["usage"] = {
        "rusage": rusage | {"ru_maxrss": entry.ru_maxrss},
        usage_key: {
            "wallclock": 999.0,
            "cpu": entry.cpu,
            "maxvmem": float(entry.maxvmem),
            "maxrss": float(entry.maxrss),
        },
    }
    return json.dumps({**record, **more}, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def entries(seed: int, count: int, first: int = 1) -> Iterator[Entry]:
    """A cluster's life: serial and array jobs, parallel ones of all three kinds, reruns, jobs that never ran."""
    rng = Random(seed)
    for number in range(first, first + count):
        start = BEGIN + number * 60 + rng.randrange(60)
        wall = rng.randrange(0, 5000)
        job = Entry(
            job=number,
            owner=f"user{rng.randrange(9)}",
            group=rng.choice(("theory", "astro", "bio")),
            project=rng.choice(("", "p1", "p2")),
            submitted=start - rng.randrange(1, 500),
            started=start,
            ended=start + wall,
            ru_wallclock=wall,
            cpu=round(wall * 0.9, 3),
            stime=round(wall * 0.1, 3),
            exit_status=rng.choice((0, 0, 0, 1, 137)),
        )
        match rng.randrange(8):
            case 0:  # never ran
                yield replace(job, started=0, ended=0, failed=rng.choice((1, 8, 26)), cpu=0.0, stime=0.0, utime=0.0)
            case 1:
                yield from (replace(job, task=task) for task in range(1, 4))
            case 2:  # ran twice
                yield replace(job, failed=25, exit_status=99)
                yield replace(job, started=job.ended + 30, ended=job.ended + 90, cpu=50.0, stime=5.0)
            case 3:  # one record for all hosts
                yield replace(job, pe="mpi", slots=16, cpu=job.cpu * 16)
            case 4:  # a record for each task, before that of the job
                for task in range(1, 4):
                    yield replace(
                        job,
                        pe="tight",
                        slots=8,
                        pe_task=f"{task}.node{task}",
                        host=f"node{task}.example.org",
                        submitted=0,
                    )
                yield replace(job, pe="tight", slots=8, host="node1.example.org")
            case _:
                yield job


def run_import(database: Path, *paths: Path, now: datetime = NOW, **options: Any) -> ImportReport:
    made = Options(cluster=CLUSTER, **options)
    return read_into(database, create(made, os.environ), TABLES, *paths, now=now, options=made)


def extra_of(database: Path) -> list[tuple[str, str]]:
    """What is known of a job besides its usage."""
    return [pair for job in records(database) for pair in as_row(job)["extra"]]


def jobs(database: Path) -> dict[str, dict[str, Any]]:
    """Every job of a store by JobID."""
    return {job.job_id: as_row(job) for job in records(database)}


def content(database: Path) -> tuple[Any, ...]:
    """All that a database says, whatever way it came to say it."""
    with asked(database) as connection:
        kept = connection.execute(
            "SELECT * FROM GridEngineRecord ORDER BY job, task, pe_task, host, started_s, ended_s"
        ).fetchall()
        bad = connection.execute("SELECT Digest, Length, Reason, Line FROM ImportBadLine ORDER BY Digest").fetchall()
    assert len(jobs(database)) == len(records(database))
    return sorted(jobs(database).items(), key=lambda pair: pair[0]), kept, bad


def write(path: Path, lines: Iterable[bytes]) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def totals(database: Path) -> tuple[int, int, int]:
    """Jobs, wall seconds and CPU seconds."""
    every: Sequence[dict[str, Any]] = list(jobs(database).values())
    return (
        len(every),
        sum(job["UsedWalltime"] for job in every),
        sum(job["UsedCPUUserTime"] + job["UsedCPUKernelTime"] for job in every),
    )
