"""Samples of what processes use, for the GPU time of batch jobs.

Spec: other-sources facts, section 2.5. Samples are an addition: CPU time, wall time and memory of a job never come from them.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from publisher.importers.sonar_envelope import BadEnvelope, Envelope

TABLES: Final = """
    -- Use of GPUs by batch jobs, on nodes that have some: one row for each sample.
    CREATE TABLE IF NOT EXISTS SonarSample (
        Job INTEGER NOT NULL,
        Node TEXT NOT NULL,
        Taken INTEGER NOT NULL,   -- epoch seconds
        Use INTEGER NOT NULL,     -- of all GPUs, in hundredths of a GPU
        Memory INTEGER NOT NULL,  -- of GPUs, KiB
        PRIMARY KEY (Job, Node, Taken)
    ) WITHOUT ROWID;
"""
_PUT: Final = """
    INSERT INTO SonarSample (Job, Node, Taken, Use, Memory) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET Use = max(Use, excluded.Use), Memory = max(Memory, excluded.Memory)
    WHERE excluded.Use > Use OR excluded.Memory > Memory
"""
_OF_RUN: Final = """
    SELECT Node, count(*), sum(Use), max(Memory) FROM SonarSample
    WHERE Job = ? AND Taken > ? AND Taken <= ? GROUP BY Node ORDER BY Node
"""
_MOST: Final = 2**53
_MOST_USE: Final = 100.0  # percent of one GPU
_MOST_GPUS: Final = 4096  # of one job on one node


class Sample(NamedTuple):
    """What a batch job used of the GPUs of one node at one time."""

    job: int
    node: str
    at: int
    use: int  # hundredths of a GPU
    memory_kib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """GPU time of a run, or None where samples are missing; and the most memory of GPUs that was seen."""

    gpu_s: int | None
    memory_kib: int


def read_samples(envelope: Envelope) -> list[Sample]:
    """Of batch jobs on a node with GPUs. A job with an epoch is none of the batch system, though its number may be one.

    Raises: BadEnvelope.
    """
    jobs = envelope.entries("jobs")
    if not _has_gpus(envelope.attributes, jobs):
        return []
    use: Counter[int] = Counter()
    memory: Counter[int] = Counter()
    for entry in jobs:
        if not isinstance(entry, dict):
            raise BadEnvelope("a job is no object")
        job = entry.get("job")
        if entry.get("epoch") or job.__class__ is not int or not 0 < job < _MOST:
            continue
        by_gpu: dict[object, float] = {}
        for gpu in _gpus(entry):
            # `index` is omitted when it is 0.
            name = str(gpu.get("uuid") or gpu.get("index") or 0)
            by_gpu[name] = by_gpu.get(name, 0.0) + _number(gpu.get("gpu_util"))
            memory[job] += int(min(_number(gpu.get("gpu_memory")), _MOST))
            if len(by_gpu) > _MOST_GPUS:
                raise BadEnvelope("a job has thousands of GPUs")
        use[job] += round(sum(min(percent, _MOST_USE) for percent in by_gpu.values()))
    return [
        Sample(job, envelope.node, envelope.at, min(hundredths, _MOST), min(memory[job], _MOST))
        for job, hundredths in use.items()
    ]


def keep_samples(connection: sqlite3.Connection, samples: list[Sample]) -> set[int]:
    """Inside a transaction; returns the jobs of which there is something new."""
    new = set()
    for sample in samples:
        if connection.execute(_PUT, sample).rowcount > 0:
            new.add(sample.job)
    return new


def gpu_use(connection: sqlite3.Connection, job: int, started_at: int, ended_at: int, interval_s: int) -> GpuUse | None:
    """Of a run, where any sample of it is there. Each sample stands for the time since the one before.

    With fewer samples than nine in ten of those that fit into the run, its GPU time is unknown.
    """
    use, most = 0, 0
    gaps = False
    found = connection.execute(_OF_RUN, (job, started_at, ended_at)).fetchall()
    for _, count, hundredths, memory in found:
        gaps = gaps or 10 * (count + 1) * interval_s < 9 * (ended_at - started_at)
        use += hundredths
        most += memory
    if not found:
        return None
    return GpuUse(gpu_s=None if gaps else use * interval_s // 100, memory_kib=min(most, _MOST))


def _has_gpus(attributes: Mapping[str, Any], jobs: object) -> bool:
    system = attributes.get("system")
    if isinstance(system, dict) and system.get("gpus"):
        return True
    return isinstance(jobs, list) and any(isinstance(job, dict) and any(True for _ in _gpus(job)) for job in jobs)


def _gpus(job: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Use of a GPU by a process of the job. Raises: BadEnvelope."""
    processes = job.get("processes") or []
    if not isinstance(processes, list):
        raise BadEnvelope("processes is no list")
    for process in processes:
        gpus = process.get("gpus") or [] if isinstance(process, dict) else None
        if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
            raise BadEnvelope("a process or its gpus are not what they must be")
        yield from gpus


def _number(value: object) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadEnvelope("use of a GPU is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise BadEnvelope("use of a GPU is out of range")
    return number
