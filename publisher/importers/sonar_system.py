"""What Sonar tells of the cluster itself: its partitions, and the cores of its nodes. Jobs are checked against it.

Spec: other-sources facts, section 2.5.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from publisher.importers.sonar_envelope import BadEnvelope, Envelope
from publisher.importers.sonar_nodes import node_names
from publisher.importers.texts import clean

TABLES: Final = """
    -- The newest that sysinfo told of each node.
    CREATE TABLE IF NOT EXISTS SonarNode (
        Node TEXT PRIMARY KEY,
        Taken INTEGER NOT NULL,
        Cores INTEGER NOT NULL,
        Threads INTEGER NOT NULL  -- of each core
    ) WITHOUT ROWID;
    -- Partitions of the newest cluster envelope.
    CREATE TABLE IF NOT EXISTS SonarPartition (
        Name TEXT PRIMARY KEY,
        Taken INTEGER NOT NULL,
        Nodes INTEGER NOT NULL    -- how many; 0 where that is unknown
    ) WITHOUT ROWID;
"""
_PUT_NODE: Final = """
    INSERT INTO SonarNode (Node, Taken, Cores, Threads) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET Taken = excluded.Taken, Cores = excluded.Cores, Threads = excluded.Threads
    WHERE (excluded.Taken, excluded.Cores, excluded.Threads) > (Taken, Cores, Threads)
"""
_PUT_PARTITION: Final = """
    INSERT INTO SonarPartition (Name, Taken, Nodes) VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET Taken = excluded.Taken, Nodes = excluded.Nodes
    WHERE (excluded.Taken, excluded.Nodes) > (Taken, Nodes)
"""
_FORGET: Final = "DELETE FROM SonarPartition WHERE Taken < ?"
_NEWEST: Final = "SELECT coalesce(max(Taken), 0) FROM SonarPartition"
_PARTITIONS: Final = "SELECT Name FROM SonarPartition"
_NODE: Final = "SELECT Cores * Threads FROM SonarNode WHERE Node = ?"
_THREADS: Final = "SELECT count(*), coalesce(max(Threads), 1) FROM SonarNode WHERE Threads > 1"
_MOST: Final = 2**20
_MOST_PARTITIONS: Final = 10_000
_MOST_NAME: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What is told of one node."""

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
    return Node(name=_short(envelope.node), at=envelope.at, cores=min(sockets * cores, _MOST), threads=threads)


def read_partitions(envelope: Envelope) -> Partitions:
    """Raises: BadEnvelope."""
    nodes: dict[str, int] = {}
    entries = envelope.entries("partitions")
    if len(entries) > _MOST_PARTITIONS:
        raise BadEnvelope("has thousands of partitions")
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        listed = entry.get("nodes") or [] if isinstance(entry, dict) else None
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
    """A number of parts; 1 where it is not told, for one is never written by some."""
    value = attributes.get(key) or 1
    if not isinstance(value, int) or not 0 < value <= _MOST:
        raise BadEnvelope(f"{key} is no number of parts")
    return value
