"""Delivered entries in the ledger's tables: fresh ones by message, many in stretches of sorted leaves.

A stretch is merged with its elder as soon as it has a quarter of the elder's entries, so that a look-up asks few stretches
and an entry is rewritten few times: for 10,000,000 entries at most four stretches, ten rewrites of 0.2 µs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from publisher.ledger.sql.database import Database
from publisher.ledger.sqlite.absence import Absence
from publisher.ledger.sqlite.membership import (
    ENTRY_BYTES,
    KEY_BYTES,
    Membership,
    ceiling,
    entries,
    latest,
    leaves,
    of_job,
    unpack,
)
from publisher.model.job import JOB_DIGEST_BYTES, JobKey

FRESH_ENTRIES: Final = 32_768  # as many are kept in memory; then they become a stretch
_RATIO: Final = 4

_FRESH = "SELECT message, entries FROM fresh WHERE target = :target ORDER BY message"
_SETTLED_FRESH = """
SELECT fresh.message, fresh.entries FROM fresh JOIN message ON message.id = fresh.message
WHERE fresh.target = :target AND message.state IN (2, 4)"""
_STRETCHES = "SELECT id, entries FROM stretch WHERE target = :target ORDER BY id"
_LEAF_AT = """
SELECT id, first, entries FROM leaf WHERE stretch = :stretch AND first <= :key ORDER BY first DESC, id DESC LIMIT 1"""
_LEAF_BEFORE = """
SELECT id, first, entries FROM leaf
WHERE stretch = :stretch AND (first < :first OR (first = :first AND id < :id)) ORDER BY first DESC, id DESC LIMIT 1"""
_FIRST_LEAF = "SELECT id, entries FROM leaf WHERE stretch = :stretch ORDER BY first, id LIMIT 1"


def fresh_entries(database: Database, target: int) -> dict[JobKey, bytes]:
    """The latest fresh delivery of each run, packed, by key."""
    known: dict[JobKey, bytes] = {}
    for _, packed in database.execute(_FRESH, {"target": target}):
        add_fresh(known, entries(packed))
    return known


def add_fresh(known: dict[JobKey, bytes], packed: Sequence[bytes]) -> None:
    """Entries of one more message, later than all before."""
    for entry in packed:
        known[JobKey(entry[:KEY_BYTES])] = entry


def look_up(
    database: Database, target: int, keys: Sequence[JobKey], absence: Absence | None
) -> dict[JobKey, Membership]:
    """The latest delivery of each run that stands in a stretch."""
    found: dict[JobKey, Membership] = {}
    likely = absence.perhaps(keys) if absence else keys
    for stretch, _ in database.execute(_STRETCHES, {"target": target}).fetchall():
        leaf = last = b""
        for key in sorted(likely if absence and stretch in absence.covers else keys):
            if key >= last:  # else it can only stand in the leaf of the one before
                row = database.execute(_LEAF_AT, {"stretch": stretch, "key": key}).fetchone()
                leaf = row[2] if row else b""
                last = leaf[-ENTRY_BYTES:][:KEY_BYTES]
            membership = latest(leaf, key)
            if membership and (key not in found or membership.message > found[key].message):
                found[key] = membership
    return found


def of_jobs(
    database: Database, target: int, keys: Sequence[JobKey], fresh: Mapping[JobKey, bytes], absence: Absence | None
) -> dict[bytes, dict[JobKey, Membership]]:
    """The latest delivery of every run of the jobs that these runs are of, by the job's digest."""
    found: dict[bytes, dict[JobKey, Membership]] = {key[:JOB_DIGEST_BYTES]: {} for key in keys}
    likely = {key[:JOB_DIGEST_BYTES] for key in absence.perhaps(keys)} if absence else found.keys()
    for stretch, _ in database.execute(_STRETCHES, {"target": target}).fetchall():
        asked = likely if absence and stretch in absence.covers else found.keys()
        for digest in sorted(asked):  # so that neighbouring leaves are read one after the other
            for entry in _of_job(database, stretch, digest):
                _keep_latest(found[digest], entry)
    for key, entry in fresh.items():
        if (digest := key[:JOB_DIGEST_BYTES]) in found:
            _keep_latest(found[digest], entry)
    return found


def _keep_latest(runs: dict[JobKey, Membership], entry: bytes) -> None:
    key, membership = JobKey(entry[:KEY_BYTES]), unpack(entry)
    if key not in runs or membership.message > runs[key].message:
        runs[key] = membership


def trace(database: Database, target: int, digest: bytes) -> list[bytes]:
    """Every entry of every run of a job, in the order of messages."""
    found = [
        entry
        for _, packed in database.execute(_FRESH, {"target": target})
        for entry in entries(packed)
        if entry.startswith(digest)
    ]
    for stretch, _ in database.execute(_STRETCHES, {"target": target}).fetchall():
        found += _of_job(database, stretch, digest)
    return sorted(found, key=lambda entry: unpack(entry).message)


def _of_job(database: Database, stretch: int, digest: bytes) -> list[bytes]:
    """Every entry of every run of a job in a stretch."""
    found: list[bytes] = []
    row = database.execute(_LEAF_AT, {"stretch": stretch, "key": ceiling(digest)[:KEY_BYTES]}).fetchone()
    while row:
        found += of_job(row[2], digest)
        if row[1] < digest:
            break
        row = database.execute(_LEAF_BEFORE, {"stretch": stretch, "first": row[1], "id": row[0]}).fetchone()
    return found


def settle_fresh(database: Database, target: int, absence: Absence) -> frozenset[int]:
    """Make a stretch of the settled fresh entries, and merge what is due. Inside the caller's transaction.

    Gives the stretches that the absence covers once this is committed. Should it fail, it covers what it did.
    """
    rows = database.execute(_SETTLED_FRESH, {"target": target}).fetchall()
    packed = sorted(entry for _, blob in rows for entry in entries(blob))
    database.execute_many("DELETE FROM fresh WHERE message = :id", [{"id": message} for message, _ in rows])
    covers = absence.covers
    if packed:
        written = b"".join(packed)
        absence.add(written)
        covers |= {_write(database, target, iter([written]), len(packed))}
    while due := _due(database, target):
        streams = [_consume(database, number, None if number in covers else absence) for number, _ in due]
        covers |= {_write(database, target, _merged(*streams), sum(count for _, count in due))}
        for number, _ in due:
            database.execute("DELETE FROM stretch WHERE id = :id", {"id": number})
            covers -= {number}
    return covers


def _due(database: Database, target: int) -> Sequence[tuple[int, int]]:
    """The two youngest stretches with their entries, if they are to be merged."""
    stretches = database.execute(_STRETCHES, {"target": target}).fetchall()
    if len(stretches) < 2 or stretches[-1][1] * _RATIO < stretches[-2][1]:
        return ()
    return stretches[-2:]


def _merged(*stretches: Iterator[bytes]) -> Iterator[bytes]:
    """The entries of leaves in order. By leaves, because sorting two runs of 180 costs a tenth of comparing one by one."""
    heads = {stretch: leaf for stretch in stretches if (leaf := next(stretch, None))}
    waiting: list[bytes] = []
    while heads:
        stretch = min(heads, key=heads.__getitem__)
        leaf = heads.pop(stretch)
        # Whatever is still to come begins no lower than this leaf.
        certain = bisect_left(waiting, leaf[:ENTRY_BYTES])
        yield b"".join(waiting[:certain])
        waiting = sorted(waiting[certain:] + entries(leaf))
        if following := next(stretch, None):
            heads[stretch] = following
    yield b"".join(waiting)


def _consume(database: Database, stretch: int, absence: Absence | None) -> Iterator[bytes]:
    """The leaves of a stretch in order; each one's page is free for the merged stretch once it was read."""
    while row := database.execute(_FIRST_LEAF, {"stretch": stretch}).fetchone():
        database.execute("DELETE FROM leaf WHERE id = :id", {"id": row[0]})
        if absence:
            absence.add(row[1])
        yield row[1]


def _write(database: Database, target: int, in_order: Iterator[bytes], count: int) -> int:
    stretch = database.insert_returning_id(
        "INSERT INTO stretch (target, entries) VALUES (:target, :entries)", {"target": target, "entries": count}
    )
    database.execute_many(
        "INSERT INTO leaf (stretch, first, entries) VALUES (:stretch, :first, :entries)",
        ({"stretch": stretch, "first": leaf[:KEY_BYTES], "entries": leaf} for leaf in leaves(in_order)),
    )
    return stretch
