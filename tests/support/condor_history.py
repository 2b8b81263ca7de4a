"""Histories of HTCondor for tests, made from one description of each ad."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from publisher.sources.htcondor.importer import TABLES, Options, create
from publisher.sources.importers import ImportReport
from tests.support.batch_stores import read_into

CLUSTER = "condor.example.org"
SCHEDD = "schedd1.example.org"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
BEGIN = 1_790_000_000  # 2026-09-21

Ad = dict[str, Any]


class Raw(str):
    """An expression, written as it is."""


def ad(number: int = 12, proc: int = 0, **attributes: Any) -> Ad:
    """What a job's ad says; `None` takes an attribute out. Times follow from `QDate` and `RemoteWallClockTime`."""
    submitted = int(str(attributes.get("QDate", BEGIN + number * 60)))
    wall = attributes.get("RemoteWallClockTime", 100.0)
    started = submitted + 30
    ended = started + round(wall if isinstance(wall, int | float) else 0)
    usual: Ad = {
        "MyType": "Job",
        "GlobalJobId": f"{SCHEDD}#{number}.{proc}#{submitted}",
        "ClusterId": number,
        "ProcId": proc,
        "Owner": "ada",
        "AcctGroup": "group_atlas",
        "AccountingGroup": "group_atlas.ada",
        "JobUniverse": 5,
        "JobStatus": 4,
        "ExitBySignal": False,
        "ExitCode": 0,
        "QDate": submitted,
        "JobStartDate": started,
        "JobCurrentStartDate": started,
        "CompletionDate": ended,
        "EnteredCurrentStatus": ended,
        "RemoteWallClockTime": wall,
        "CumulativeSuspensionTime": 0,
        "NumJobStarts": 1,
        "RemoteUserCpu": 80.25,
        "RemoteSysCpu": 10.25,
        "RequestCpus": 2,
        "CpusProvisioned": 2,
        "RequestMemory": Raw("ifthenelse(MemoryUsage =!= undefined,MemoryUsage,(ImageSize + 1023) / 1024)"),
        "ResidentSetSize_RAW": 8420,
        "ImageSize_RAW": 12_288,
        "Requirements": Raw('(TARGET.Arch == "X86_64") && (TARGET.Cpus >= RequestCpus)'),
        "LastRemoteHost": "slot1_2@node1.example.org",
        "JobBatchName": "analysis",
        "Environment": "HOME=/home/ada",
    }
    return {name: value for name, value in (usual | attributes).items() if value is not None}


def expression(value: object) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace('"', '\\"') + '"'
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def text(one: Mapping[str, object]) -> bytes:
    """The file of one job."""
    lines = (f"{name} = {expression(value)}\n" for name, value in one.items())
    return "".join(lines).encode("utf-8", "surrogateescape")


def rolling(ads: Iterable[Mapping[str, object]]) -> bytes:
    """The history of all jobs."""
    content = b""
    for one in ads:
        owner, ended = one.get("Owner", "?"), one.get("CompletionDate", 0)
        where = f'ClusterId = {one.get("ClusterId")} ProcId = {one.get("ProcId")} Owner = "{owner}"'
        content += text(one) + f"*** Offset = {len(content)} {where} CompletionDate = {ended}\n".encode(
            "utf-8", "surrogateescape"
        )
    return content


def ads_of(seed: int, count: int, first: int = 1) -> list[Ad]:
    """A pool's life: reruns, suspended jobs, jobs that were removed early and late, GPUs, routed and local ones, signals."""
    rng, found = Random(seed), []
    for number in range(first, first + count):
        wall = rng.randrange(1, 5000) + rng.random()
        cpus = rng.choice((1, 2, 8))
        usual: Ad = {
            "RemoteWallClockTime": wall,
            "Owner": f"user{rng.randrange(9)}",
            "AcctGroup": f"group_{rng.choice(('atlas', 'bio', 'theory'))}",
            "CpusProvisioned": cpus,
            "RequestCpus": cpus,
            "RemoteUserCpu": wall * 0.9,
            "ExitCode": rng.choice((0, 0, 0, 1)),
        }
        match rng.randrange(10):
            case 0:
                special: Ad = {"JobStatus": 3, "RemoteWallClockTime": 0.0, "NumJobStarts": 0, "CompletionDate": 0}
            case 1:
                special = {"JobStatus": 3, "CompletionDate": 0, "ExitCode": None}
            case 2:
                special = {"NumJobStarts": 3, "CumulativeRemoteUserCpu": wall * 1.5, "CumulativeRemoteSysCpu": 10.25}
            case 3:
                special = {"CumulativeSuspensionTime": int(wall / 2)}
            case 4:
                special = {"RequestGPUs": 1, "GPUsProvisioned": 2}
            case 5:
                special = {"RoutedToJobId": f"{number}.0"}
            case 6:
                special = {"JobUniverse": 12}
            case 7:
                special = {"ExitBySignal": True, "ExitSignal": 9, "ExitCode": None}
            case _:
                special = {}
        found.append(ad(number, **(usual | special)))
    return found


def usage(ads: Iterable[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """Jobs, wall time, that of cores and that of GPUs, summed up without our reader."""
    walls = []
    for one in ads:
        if one["RemoteWallClockTime"] and "RoutedToJobId" not in one and one["JobUniverse"] == 5:
            wall = round(one["RemoteWallClockTime"]) - one["CumulativeSuspensionTime"]
            walls.append((wall, wall * one["CpusProvisioned"], wall * one.get("GPUsProvisioned", 0)))
    return len(walls), *(sum(each[at] for each in walls) for at in range(3))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def spool(directory: Path, ads: Iterable[Mapping[str, object]]) -> Path:
    """A directory of one file a job, renamed into place as HTCondor does, and written long ago."""
    directory.mkdir(exist_ok=True)
    for one in ads:
        unfinished = write(directory / f".history.{one['ClusterId']}.{one['ProcId']}.tmp", text(one))
        os.utime(unfinished, (BEGIN, BEGIN))
        unfinished.rename(directory / f"history.{one['ClusterId']}.{one['ProcId']}")
    return directory


def run_import(database: Path, *paths: Path, now: datetime = NOW, **options: Any) -> ImportReport:
    made = Options(cluster=CLUSTER, **options)
    return read_into(database, create(made, os.environ), TABLES, *paths, now=now, options=made)
