"""Envelopes of Sonar for tests: what really is emitted, and the life of a small cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

from publisher.sources.importers import ImportReport
from publisher.sources.sonar.importer import TABLES, Options, create
from tests.support.batch_stores import asked, read_into
from tests.support.gridengine_files import jobs

CLUSTER = "fox.example.org"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SUMMER = timezone(timedelta(hours=2))
DAY = datetime(2026, 9, 21, 8, tzinfo=SUMMER)
TOKEN = "s3cr3t-t0k3n"  # what must never be seen again

Json = dict[str, Any]


def text(moment: datetime) -> str:
    return moment.isoformat()


def after(seconds: float, begin: datetime = DAY) -> str:
    """Text of so many seconds after the morning."""
    return text(begin + timedelta(seconds=seconds))


def record(**more: Any) -> Json:
    """A job that ran from 08:10 to 09:50 on two nodes; `sacct__KEY` changes a value of sacct, None removes a key."""
    made: Json = {
        "job_id": 4711,
        "job_name": "analysis",
        "job_state": "COMPLETED",
        "user_name": "ada",
        "account": "theory",
        "submit_time": after(0),
        "time_limit": 7202,
        "partition": "normal",
        "nodes": ["c1-[9-10]"],
        "priority": 1002,
        "allocated_resources": "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=16G,node=2",
        "requested_cpus": 8,
        "requested_node_count": 2,
        "start_time": after(600),
        "end_time": after(6600),
        "sacct": {
            "AllocTRES": "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=16G,node=2",
            "ElapsedRaw": 6000,
            "UserCPU": 30000,
            "SystemCPU": 600,
        },
    }
    if "end" in more:
        more["end_time"] = more.pop("end")
    for key, value in more.items():
        into, name = (made["sacct"], key.removeprefix("sacct__")) if key.startswith("sacct__") else (made, key)
        into[name] = value
        if value is None:
            del into[name]
    return made


def step(name: str, **more: Any) -> Json:
    made: Json = {
        "job_id": 4711,
        "job_step": name,
        "job_name": name,
        "job_state": "COMPLETED",
        "account": "theory",
        "submit_time": after(600),
        "start_time": after(600),
        "end_time": after(6600),
        "nodes": ["c1-9"],
        "sacct": {"ElapsedRaw": 6000, "AveCPU": 100, "MaxRSS": 2048, "MaxVMSize": 4096},
    }
    for key, value in more.items():
        into, key_name = (made["sacct"], key.removeprefix("sacct__")) if key.startswith("sacct__") else (made, key)
        into[key_name] = value
    return made


def envelope(
    records: Sequence[Any],
    at: str = "2026-09-21T12:00:00+02:00",
    *,
    cluster: str = CLUSTER,
    kind: str = "job",
    version: str = "0.19.0",
    indent: int | None = None,
) -> bytes:
    whole = {
        "meta": {"producer": "sonar", "version": version, "token": TOKEN},
        "data": {"type": kind, "attributes": {"time": at, "cluster": cluster, "slurm_jobs": list(records)}},
    }
    return json.dumps(whole, indent=indent, separators=(",", ":") if indent is None else None).encode() + b"\n"


def other(kind: str, at: str, **attributes: Any) -> bytes:
    """An envelope of sample, sysinfo or cluster."""
    held = {"type": kind, "attributes": {"time": at, "cluster": CLUSTER, **attributes}}
    whole = {"meta": {"producer": "sonar", "version": "0.19.0", "token": TOKEN}, "data": held}
    return json.dumps(whole).encode() + b"\n"


def trouble(detail: str, **more: str) -> bytes:
    return (
        json.dumps({"meta": {"producer": "sonar", "token": TOKEN}, "errors": [{"detail": detail, **more}]}).encode()
        + b"\n"
    )


def collections(seed: int, count: int, first: int = 1, every_s: int = 300) -> Iterator[bytes]:
    """A cluster's life as collected each hour: jobs are told again and again, in parts, while they wait, run and end."""
    rng = Random(seed)
    told: list[tuple[datetime, Json]] = []
    for number in range(first, first + count):
        told += [(moment, entry) for moment, entry in _life(rng, number, every_s)]
    told.sort(key=lambda pair: pair[0])
    begin = told[0][0]
    end = told[-1][0]
    while begin <= end:
        now = begin + timedelta(hours=1)
        # What one collection covers overlaps with the one before.
        seen = [entry for moment, entry in told if begin - timedelta(minutes=30) <= moment < now]
        for at in range(0, len(seen), 50):
            yield envelope(
                seen[at : at + 50],
                text(now + timedelta(seconds=at)),
                kind=rng.choice(("job", "jobs")),
                indent=rng.choice((None, None, 2)),
            )
        if rng.random() < 0.2:
            yield trouble("No can do", node="c1-26")
        if rng.random() < 0.2:
            yield other("sysinfo", text(now), node=f"c1-{rng.randrange(9)}.fox", sockets=2, cores_per_socket=16)
        if rng.random() < 0.2:
            yield _sample(rng, now, first, count)
        begin = now


def in_parts(told: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Some envelopes once more, with parts of their records missing, and told some seconds before or after."""
    rng = Random(seed)
    for content in told:
        whole = json.loads(content)
        if whole.get("data", {}).get("type") not in ("job", "jobs") or rng.random() < 0.5:
            continue
        for entry in whole["data"]["attributes"]["slurm_jobs"]:
            for key in ("start_time", "submit_time", "job_state", "end_time"):
                if rng.random() < 0.25:
                    entry.pop(key, None)
        attributes = whole["data"]["attributes"]
        attributes["time"] = f"{attributes['time'][:17]}{rng.randrange(60):02}{attributes['time'][19:]}"
        yield json.dumps(whole).encode() + b"\n"


def _sample(rng: Random, now: datetime, first: int, count: int) -> bytes:
    gpu = {"index": 1, "gpu_util": rng.randrange(100), "gpu_memory": 1024}
    using = [{"job": rng.randrange(first, first + count), "user": "ada", "processes": [{"pid": 1, "gpus": [gpu]}]}]
    return other("sample", text(now), node="gpu-1", system={"gpus": [{"index": 0}]}, jobs=using)


def _life(rng: Random, number: int, every_s: int) -> Iterator[tuple[datetime, Json]]:
    submitted = DAY + timedelta(seconds=number * every_s + rng.randrange(every_s))
    description = {
        "job_id": number,
        "job_name": f"job {number}",
        "user_name": f"user{rng.randrange(5)}",
        "account": rng.choice(("theory", "astro")),
        "partition": "normal",
        "requested_cpus": 4,
    }
    yield submitted, description | {"job_state": "PENDING", "submit_time": text(submitted)}
    runs = rng.choice((0, 1, 1, 1, 1, 2))
    if runs == 0:
        gone = submitted + timedelta(seconds=60)
        times = {"submit_time": text(submitted), "end_time": text(gone)}
        yield gone, description | {"job_state": "CANCELLED by 1234"} | times
    for attempt in range(runs):
        begun = submitted + timedelta(seconds=rng.randrange(1, 4000))
        wall = rng.randrange(1, 20_000)
        first = rng.randrange(1, 5)
        running = description | {
            "job_state": "RUNNING",
            "submit_time": text(submitted),
            "start_time": text(begun),
            "nodes": [f"c1-[{first}-6]"],
            "allocated_resources": f"cpu=4,mem=8G,node={7 - first}",
            "sacct": {"ElapsedRaw": 5},
        }
        yield begun + timedelta(seconds=5), running
        ended = begun + timedelta(seconds=wall)
        state = (
            rng.choice(("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 17")) if attempt == runs - 1 else "PREEMPTED"
        )
        final = {"job_state": state, "end_time": text(ended), "sacct": {"ElapsedRaw": wall, "UserCPU": wall // 60 * 60}}
        if rng.random() < 0.3:  # only what changed
            yield ended, {"job_id": number, "submit_time": text(submitted), "start_time": text(begun), **final}
        else:
            yield ended, running | final
        for name in ("batch", "extern", *map(str, range(rng.randrange(3)))):
            sacct = {"ElapsedRaw": wall, "AveCPU": rng.randrange(wall + 1), "MaxRSS": rng.randrange(10_000)}
            made = {"job_id": number, "job_step": name, "job_name": name, "job_state": "COMPLETED", "sacct": sacct}
            late = timedelta(seconds=rng.choice((0, 0, 3000)))
            yield ended + late, made | {"start_time": text(begun), "end_time": text(ended)}
        submitted = ended + timedelta(seconds=30)


def run_import(database: Path, *paths: Path, now: datetime = NOW, **options: Any) -> ImportReport:
    made = Options(cluster=CLUSTER, **options)
    return read_into(database, create(made, os.environ), TABLES, *paths, now=now, options=made)


def content(database: Path) -> tuple[Any, ...]:
    """All that a database says, whatever way it came to say it."""
    questions = (
        "SELECT * FROM SonarRecord ORDER BY Job, Step, Start",
        "SELECT * FROM SonarJob ORDER BY Job",
        "SELECT * FROM SonarGpuSample ORDER BY Job, Node, Taken",
        "SELECT * FROM SonarNode ORDER BY Node",
        "SELECT * FROM SonarPartition ORDER BY Name",
        "SELECT Digest, Reason, Line FROM ImportBadLine ORDER BY Digest",
    )
    with asked(database) as connection:
        kept = [connection.execute(question).fetchall() for question in questions]
    return sorted(jobs(database).items(), key=lambda pair: pair[0]), *kept
