"""Delivered entries in the ledger's tables: fresh ones by message, many in stretches of sorted leaves.

A stretch is merged with its elder as soon as it has a quarter of the elder's entries, so that a look-up asks few stretches
and an entry is rewritten few times: for 10,000,000 entries at most six stretches, about four rewrites.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from publisher.ledger.absence import Absence, heads
from publisher.ledger.membership import ENTRY_BYTES, KEY_BYTES, Membership, ceiling, entries, latest, leaves, unpack
from publisher.model.job import JobKey

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


def fresh_entries(connection: sqlite3.Connection, target: int) -> dict[JobKey, bytes]:
    """The latest fresh delivery of each run, packed, by key."""
    known: dict[JobKey, bytes] = {}
    for _, packed in connection.execute(_FRESH, {"target": target}):
        add_fresh(known, entries(packed))
    return known


def add_fresh(known: dict[JobKey, bytes], packed: Sequence[bytes]) -> None:
    """Entries of one more message, later than all before."""
    for entry in packed:
        known[JobKey(entry[:KEY_BYTES])] = entry


def look_up(
    connection: sqlite3.Connection, target: int, keys: Sequence[JobKey], absences: Mapping[int, Absence]
) -> dict[JobKey, Membership]:
    """The latest delivery of each run that stands in a stretch."""
    found: dict[JobKey, Membership] = {}
    beginnings = heads(keys)
    for stretch, _ in connection.execute(_STRETCHES, {"target": target}).fetchall():
        absence = absences.get(stretch)
        for key in keys if absence is None else absence.perhaps(keys, beginnings):
            row = connection.execute(_LEAF_AT, {"stretch": stretch, "key": ceiling(key)[:KEY_BYTES]}).fetchone()
            membership = latest(row[2], key) if row else None
            if membership and (key not in found or membership.message > found[key].message):
                found[key] = membership
    return found


def trace(connection: sqlite3.Connection, target: int, digest: bytes) -> list[bytes]:
    """Every entry of every run of a job, in the order of messages."""
    found = [
        entry
        for _, packed in connection.execute(_FRESH, {"target": target})
        for entry in entries(packed)
        if entry.startswith(digest)
    ]
    for stretch, _ in connection.execute(_STRETCHES, {"target": target}).fetchall():
        row = connection.execute(_LEAF_AT, {"stretch": stretch, "key": ceiling(digest)[:KEY_BYTES]}).fetchone()
        while row:
            found += [entry for entry in entries(row[2]) if entry.startswith(digest)]
            if row[1] < digest:
                break
            row = connection.execute(_LEAF_BEFORE, {"stretch": stretch, "first": row[1], "id": row[0]}).fetchone()
    return sorted(found, key=lambda entry: unpack(entry).message)


def settle_fresh(connection: sqlite3.Connection, target: int, absences: dict[int, Absence]) -> dict[int, Absence]:
    """Make a stretch of the settled fresh entries, and merge what is due. Inside the caller's transaction.

    Takes what surely is not in which stretch, and gives it back as it is once this is committed: what was given is changed on
    the way, because that of a merged stretch takes as much memory as those of its parts, and must not be used should the
    transaction fail.
    """
    rows = connection.execute(_SETTLED_FRESH, {"target": target}).fetchall()
    packed = sorted(entry for _, blob in rows for entry in entries(blob))
    connection.executemany("DELETE FROM fresh WHERE message = ?", [(message,) for message, _ in rows])
    if packed:
        stretch, absence = _write(connection, target, iter(packed), len(packed))
        absences[stretch] = absence
    while due := _due(connection, target):
        for number, _ in due:
            absences.pop(number, None)
        stretch, absence = _merge(connection, target, due)
        absences[stretch] = absence
    return absences


def _due(connection: sqlite3.Connection, target: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    stretches = connection.execute(_STRETCHES, {"target": target}).fetchall()
    if len(stretches) < 2 or stretches[-1][1] * _RATIO < stretches[-2][1]:
        return None
    return stretches[-2], stretches[-1]


def _merge(
    connection: sqlite3.Connection, target: int, due: tuple[tuple[int, int], tuple[int, int]]
) -> tuple[int, Absence]:
    (elder, elder_entries), (younger, younger_entries) = due
    merged = _merged(_consume(connection, elder), _consume(connection, younger))
    written = _write(connection, target, merged, elder_entries + younger_entries)
    connection.execute("DELETE FROM stretch WHERE id IN (:elder, :younger)", {"elder": elder, "younger": younger})
    return written


def _merged(*stretches: Iterator[bytes]) -> Iterator[bytes]:
    """The entries of leaves in order. By leaves, because sorting two runs of 180 costs a tenth of comparing one by one."""
    heads = {stretch: leaf for stretch in stretches if (leaf := next(stretch, None))}
    waiting: list[bytes] = []
    while heads:
        stretch = min(heads, key=heads.__getitem__)
        leaf = heads.pop(stretch)
        # Whatever is still to come begins no lower than this leaf.
        certain = bisect_left(waiting, leaf[:ENTRY_BYTES])
        yield from waiting[:certain]
        waiting = sorted(waiting[certain:] + entries(leaf))
        if following := next(stretch, None):
            heads[stretch] = following
    yield from waiting


def _consume(connection: sqlite3.Connection, stretch: int) -> Iterator[bytes]:
    """The leaves of a stretch in order; each one's page is free for the merged stretch once it was read."""
    while row := connection.execute(_FIRST_LEAF, {"stretch": stretch}).fetchone():
        connection.execute("DELETE FROM leaf WHERE id = ?", (row[0],))
        yield row[1]


def _write(connection: sqlite3.Connection, target: int, in_order: Iterator[bytes], count: int) -> tuple[int, Absence]:
    cursor = connection.execute("INSERT INTO stretch (target, entries) VALUES (?, ?)", (target, count))
    stretch = int(cursor.lastrowid or 0)
    absence = Absence(count)
    for leaf in leaves(in_order):
        connection.execute(
            "INSERT INTO leaf (stretch, first, entries) VALUES (?, ?, ?)", (stretch, leaf[:KEY_BYTES], leaf)
        )
        absence.add(leaf)
    return stretch, absence
