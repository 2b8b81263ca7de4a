"""What Sonar reports about the cluster: partitions, cores of nodes, and samples of processes.

Jobs are checked against partitions and nodes; samples give the GPU time of batch jobs. CPU time,
wall time and memory of a job never come from them.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from publisher.sources.files.log_files import clean
from publisher.sources.files.slurm_jobs import node_names
from publisher.sources.sonar.envelopes import BadEnvelope, Envelope

SAMPLE_TABLES: Final = """
    -- Use of GPUs by batch jobs, on nodes that have some: one row for each sample.
    CREATE TABLE IF NOT EXISTS SonarGpuSample (
        Source INTEGER NOT NULL REFERENCES source (id),
        Job INTEGER NOT NULL,
        Node TEXT NOT NULL,
        Taken INTEGER NOT NULL,   -- epoch seconds
        Use INTEGER NOT NULL,     -- of all GPUs, in hundredths of a GPU
        Memory INTEGER NOT NULL,  -- of GPUs, KiB
        Power INTEGER,            -- of all GPUs, mW; negative where a meter told what cannot be
        PRIMARY KEY (Source, Job, Node, Taken)
    ) WITHOUT ROWID;
"""
_PUT: Final = """
    INSERT INTO SonarGpuSample VALUES (source_number(), ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        Use = max(Use, excluded.Use), Memory = max(Memory, excluded.Memory),
        Power = max(coalesce(Power, excluded.Power), coalesce(excluded.Power, Power))
    WHERE excluded.Use > Use OR excluded.Memory > Memory OR excluded.Power > ifnull(Power, -2)
"""
_OF_RUN: Final = """
    SELECT Node, count(*), sum(Use), max(Memory), count(Power), sum(Power), min(Power) < 0
    FROM SonarGpuSample
    WHERE Source = source_number() AND Job = ? AND Taken > ? AND Taken <= ?
    GROUP BY Node ORDER BY Node
"""
_MOST_OF_A_SAMPLE: Final = 2**53
_MOST_USE: Final = 100.0  # percent of one GPU
_MOST_WATTS: Final = 5000  # of one GPU
_REJECTED: Final = -1
_MOST_GPUS: Final = 4096  # of one job on one node


class Sample(NamedTuple):
    """What a batch job used of the GPUs of one node at one time."""

    job: int
    node: str
    at: int
    use: int  # hundredths of a GPU
    memory_kib: int
    power_mw: int | None  # its part of the power of its GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """GPU time and energy of a run, None where samples are missing; the most memory of GPUs seen.

    `energy_rejected`: a meter told what cannot be.
    """

    gpu_s: int | None
    memory_kib: int
    energy_j: int | None
    energy_rejected: bool


def read_samples(envelope: Envelope) -> list[Sample]:
    """Of batch jobs, not jobs with an epoch, on a node with GPUs. Raises: BadEnvelope."""
    jobs = envelope.entries("jobs")
    if not _has_gpus(envelope.attributes, jobs):
        return []
    use: Counter[int] = Counter()
    memory: Counter[int] = Counter()
    power: dict[int, list[int | None]] = {}
    power_of = _power_of_users(envelope.attributes, jobs)
    for entry in jobs:
        if not isinstance(entry, dict):
            raise BadEnvelope("a job is not an object")
        job = _batch_job(entry)
        if not job:
            continue
        by_gpu: dict[str, float] = {}
        for gpu in _gpus(entry):
            name = _name(gpu)
            by_gpu[name] = by_gpu.get(name, 0.0) + _number(gpu.get("gpu_util"))
            memory[job] += int(min(_number(gpu.get("gpu_memory")), _MOST_OF_A_SAMPLE))
            if len(by_gpu) > _MOST_GPUS:
                raise BadEnvelope("a job has thousands of GPUs")
        use[job] += round(sum(min(percent, _MOST_USE) for percent in by_gpu.values()))
        power.setdefault(job, []).extend(map(power_of.get, by_gpu))
    return [
        Sample(
            job,
            envelope.node,
            envelope.at,
            min(hundredths, _MOST_OF_A_SAMPLE),
            min(memory[job], _MOST_OF_A_SAMPLE),
            _whole_power(power[job]),
        )
        for job, hundredths in use.items()
    ]


def _batch_job(entry: Mapping[str, Any]) -> int:
    """Its number; 0 for what is none."""
    job = entry.get("job")
    is_number = isinstance(job, int) and not isinstance(job, bool) and 0 < job < _MOST_OF_A_SAMPLE
    return int(job) if is_number and job is not None and not entry.get("epoch") else 0


def _name(gpu: Mapping[str, Any]) -> str:
    return str(gpu.get("uuid") or gpu.get("index") or 0)  # `index` is omitted when it is 0


def _power_of_users(attributes: Mapping[str, Any], jobs: Sequence[Any]) -> dict[str, int]:
    """The power of each GPU in mW, by its names, divided by its jobs; not where it is unknown."""
    users: Counter[str] = Counter()
    for job in jobs:
        if isinstance(job, dict):
            users.update({_name(gpu) for gpu in _gpus(job)})
    found: dict[str, int] = {}
    for gpu in _system_gpus(attributes):
        power = _power_mw(gpu)
        if power is not None:
            for name in {_name(gpu), str(gpu.get("index") or 0)}:
                found[name] = power // max(users[name], 1)
    return found


def _power_mw(gpu: Mapping[str, Any]) -> int | None:
    """Of a GPU; None where it is not known, negative where it cannot be."""
    watts = gpu.get("power")
    if isinstance(watts, bool) or not isinstance(watts, int | float):
        return None
    return round(1000 * watts) if 0 <= watts <= _MOST_WATTS else _REJECTED


def _whole_power(parts: Sequence[int | None]) -> int | None:
    known = [one for one in parts if one is not None]
    if min(known, default=0) < 0:
        return _REJECTED
    return sum(known) if len(known) == len(parts) else None


def keep_samples(connection: sqlite3.Connection, samples: list[Sample]) -> set[int]:
    """Inside a transaction; returns the jobs of which there is something new."""
    new = set()
    for sample in samples:
        if connection.execute(_PUT, sample).rowcount > 0:
            new.add(sample.job)
    return new


def gpu_use(
    connection: sqlite3.Connection, job: int, started_at: int, ended_at: int, interval_s: int
) -> GpuUse | None:
    """Of a run, where any sample of it is there. Each sample covers the time since the one before.

    With fewer than nine in ten of the samples that fit into the run, use is unknown.
    """
    found = connection.execute(_OF_RUN, (job, started_at, ended_at)).fetchall()
    if not found:
        return None
    _, counts, uses, memories, metered, power_mw, rejected = zip(*found, strict=True)
    gaps = 10 * (min(counts) + 1) * interval_s < 9 * (ended_at - started_at)
    unmetered = gaps or any(rejected) or metered != counts
    gpu_s = None if gaps else sum(uses) * interval_s // 100
    energy_j = None if unmetered else sum(power_mw) * interval_s // 1000
    return GpuUse(
        gpu_s=gpu_s,
        memory_kib=min(sum(memories), _MOST_OF_A_SAMPLE),
        energy_j=energy_j,
        energy_rejected=any(rejected),
    )


def _has_gpus(attributes: Mapping[str, Any], jobs: object) -> bool:
    if _system_gpus(attributes):
        return True
    listed = jobs if isinstance(jobs, list) else []
    return any(isinstance(job, dict) and next(_gpus(job), None) is not None for job in listed)


def _system_gpus(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    system = attributes.get("system")
    gpus = system.get("gpus") if isinstance(system, dict) else None
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _gpus(job: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Use of a GPU by a process of the job. Raises: BadEnvelope."""
    processes = job.get("processes") or []
    if not isinstance(processes, list):
        raise BadEnvelope("processes is not a list")
    for process in processes:
        gpus = process.get("gpus") or [] if isinstance(process, dict) else None
        if not isinstance(gpus, list) or not all(isinstance(gpu, dict) for gpu in gpus):
            raise BadEnvelope("a process or its gpus are not what they must be")
        yield from gpus


def _number(value: object) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadEnvelope("use of a GPU is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise BadEnvelope("use of a GPU is out of range")
    return number


SYSTEM_TABLES: Final = """
    -- The newest that sysinfo reported of each node.
    CREATE TABLE IF NOT EXISTS SonarNode (
        Source INTEGER NOT NULL REFERENCES source (id),
        Node TEXT NOT NULL,
        Taken INTEGER NOT NULL,
        Cores INTEGER NOT NULL,
        Threads INTEGER NOT NULL, -- of each core
        PRIMARY KEY (Source, Node)
    ) WITHOUT ROWID;
    -- Partitions of the newest cluster envelope.
    CREATE TABLE IF NOT EXISTS SonarPartition (
        Source INTEGER NOT NULL REFERENCES source (id),
        Name TEXT NOT NULL,
        Taken INTEGER NOT NULL,
        Nodes INTEGER NOT NULL,   -- how many; 0 where that is unknown
        PRIMARY KEY (Source, Name)
    ) WITHOUT ROWID;
"""
_PUT_NODE: Final = """
    INSERT INTO SonarNode VALUES (source_number(), ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        Taken = excluded.Taken, Cores = excluded.Cores, Threads = excluded.Threads
    WHERE (excluded.Taken, excluded.Cores, excluded.Threads) > (Taken, Cores, Threads)
"""
_PUT_PARTITION: Final = """
    INSERT INTO SonarPartition VALUES (source_number(), ?, ?, ?)
    ON CONFLICT DO UPDATE SET Taken = excluded.Taken, Nodes = excluded.Nodes
    WHERE (excluded.Taken, excluded.Nodes) > (Taken, Nodes)
"""
_OWN: Final = "WHERE Source = source_number()"
_FORGET: Final = f"DELETE FROM SonarPartition {_OWN} AND Taken < ?"
_NEWEST: Final = f"SELECT coalesce(max(Taken), 0) FROM SonarPartition {_OWN}"
_PARTITIONS: Final = f"SELECT Name FROM SonarPartition {_OWN}"
_NODE: Final = f"SELECT Cores * Threads FROM SonarNode {_OWN} AND Node = ?"
_THREADS: Final = f"""
    SELECT count(*), coalesce(max(Threads), 1) FROM SonarNode {_OWN} AND Threads > 1
"""
_MOST_CORES: Final = 2**20
_MOST_PARTITIONS: Final = 10_000
_MOST_NAME: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What Sonar reports about one node."""

    name: str
    at: int
    cores: int
    threads: int  # of each core


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """All partitions at one time, with the number of their nodes."""

    at: int
    nodes: dict[str, int]


def read_node(envelope: Envelope) -> Node:
    """Raises: BadEnvelope."""
    attributes = envelope.attributes
    sockets, cores = _small(attributes, "sockets"), _small(attributes, "cores_per_socket")
    threads = _small(attributes, "threads_per_core")
    cores = min(sockets * cores, _MOST_CORES)
    return Node(name=_short(envelope.node), at=envelope.at, cores=cores, threads=threads)


def read_partitions(envelope: Envelope) -> Partitions:
    """Raises: BadEnvelope."""
    nodes: dict[str, int] = {}
    entries = envelope.entries("partitions")
    if len(entries) > _MOST_PARTITIONS:
        raise BadEnvelope("has thousands of partitions")
    for entry in entries:
        fields = entry if isinstance(entry, dict) else {}
        name, listed = fields.get("name"), fields.get("nodes") or []
        if not isinstance(name, str) or not isinstance(listed, list) or len(name) > _MOST_NAME:
            raise BadEnvelope("a partition is not what it must be")
        nodes[clean(name)] = len(node_names([each for each in listed if isinstance(each, str)]))
    return Partitions(at=envelope.at, nodes=nodes)


def keep_node(connection: sqlite3.Connection, node: Node) -> None:
    """Inside a transaction. The newest stays, whichever came first."""
    if node.name and node.cores:
        connection.execute(_PUT_NODE, (node.name, node.at, node.cores, node.threads))


def keep_partitions(connection: sqlite3.Connection, partitions: Partitions) -> None:
    """Inside a transaction. The newest stay, whichever came first."""
    (newest,) = connection.execute(_NEWEST).fetchone()
    if partitions.nodes and partitions.at >= newest:
        rows = [(name, partitions.at, count) for name, count in partitions.nodes.items()]
        connection.executemany(_PUT_PARTITION, rows)
        connection.execute(_FORGET, (partitions.at,))


def partition_names(connection: sqlite3.Connection) -> frozenset[str]:
    """Empty where no cluster envelope was read."""
    return frozenset(name for (name,) in connection.execute(_PARTITIONS))


def hyperthreads(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many nodes have more than one thread for each core, and the most that one has."""
    nodes, threads = connection.execute(_THREADS).fetchone()
    return int(nodes), int(threads)


def cpus_of(connection: sqlite3.Connection, hosts: Sequence[str]) -> int | None:
    """Slurm's CPUs of these nodes together; None where one of them is not known."""
    total = 0
    for host in hosts:
        found = connection.execute(_NODE, (_short(host),)).fetchone()
        if found is None:
            return None
        total += int(found[0])
    return total or None


def _short(host: str) -> str:
    """Slurm and Sonar call one node `c1-6` and `c1-6.fox`."""
    return host.partition(".")[0]


def _small(attributes: dict[str, Any], key: str) -> int:
    """A number of parts; 1 where it is missing: some versions never write a 1."""
    value = attributes.get(key) or 1
    if not isinstance(value, int) or not 0 < value <= _MOST_CORES:
        raise BadEnvelope(f"{key} is not a number of parts")
    return value
