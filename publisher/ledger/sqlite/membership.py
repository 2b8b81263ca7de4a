"""Delivered jobs, packed: 22 bytes an entry, sorted, in leaves of one database page.

An entry is the run's key (11 bytes: 64 bits of the JobID's digest, 24 of the LocalJobID's), the number of the message that
carried it (4), the end time that was sent (4) and the fingerprint of the values (3). Entries of one run sort by message, so
the last one is the latest. Pure functions over bytes; who keeps the leaves is `stretches.py`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from publisher.model.job import JOB_DIGEST_BYTES, RUN_DIGEST_BYTES, Epoch, JobKey
from publisher.model.message import Entry, Values

KEY_BYTES: Final = JOB_DIGEST_BYTES + RUN_DIGEST_BYTES
ENTRY_BYTES: Final = KEY_BYTES + 4 + 4 + 3
# 180 entries fill a 4,096-byte page of an SQLite table with its header: no overflow page, no half page.
LEAF_ENTRIES: Final = 180
LEAF_BYTES: Final = LEAF_ENTRIES * ENTRY_BYTES
LATEST_END: Final = 0xFFFFFFFF  # 2106; quality rules refuse later ends long before

_MESSAGE_AND_END: Final = Struct(f">{KEY_BYTES}xII3x")
_ENTRY: Final = Struct(f">{KEY_BYTES}sIIHB")  # the fingerprint's three bytes are the last two numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One delivery of a run: in which message, under which end time, with which values."""

    message: int
    ended_at: Epoch
    fingerprint: int


def pack(entry: Entry, message: int) -> bytes:
    """An entry as leaves hold it, under the number of the message that carried it."""
    return pack_all({entry.key: (entry.ended_at, entry.fingerprint)}, message)[0]


def pack_all(runs: Mapping[JobKey, Values], message: int) -> list[bytes]:
    """The entries of all runs that a message carries: 0.1 µs a run, where a call for each takes 0.5."""
    return [
        _ENTRY.pack(
            key,
            message,
            ended_at if 0 <= ended_at <= LATEST_END else max(0, min(ended_at, LATEST_END)),
            fingerprint >> 8,
            fingerprint & 0xFF,
        )
        for key, (ended_at, fingerprint) in runs.items()
    ]


def unpack(packed: bytes) -> Membership:
    _, message, ended_at, high, low = _ENTRY.unpack(packed)
    return Membership(message=message, ended_at=Epoch(ended_at), fingerprint=high << 8 | low)


def message_and_end(packed: bytes) -> tuple[int, int]:
    """A part of `unpack`, at a fifth of its price."""
    message, ended_at = _MESSAGE_AND_END.unpack(packed)
    return message, ended_at


def entries(leaf: bytes) -> list[bytes]:
    """The packed entries of a leaf, in order."""
    return [leaf[at : at + ENTRY_BYTES] for at in range(0, len(leaf), ENTRY_BYTES)]


def ceiling(prefix: bytes) -> bytes:
    """The highest entry that begins with a key or a job digest."""
    return prefix + b"\xff" * (ENTRY_BYTES - len(prefix))


def latest(leaf: bytes, key: JobKey) -> Membership | None:
    """The latest delivery of a run, looked up in the leaf that would hold `ceiling(key)`."""
    at = leaf.rfind(key)
    while at % ENTRY_BYTES and at >= 0:  # the same bytes across two entries, once in 10^22
        at = leaf.rfind(key, 0, at + KEY_BYTES - 1)
    return None if at < 0 else unpack(leaf[at : at + ENTRY_BYTES])


def of_job(leaf: bytes, digest: bytes) -> list[bytes]:
    """The packed entries of a job's runs."""
    found = []
    at = leaf.find(digest)
    while at >= 0:
        if at % ENTRY_BYTES == 0:
            found.append(leaf[at : at + ENTRY_BYTES])
        at = leaf.find(digest, at + 1)
    return found


def leaves(in_order: Iterable[bytes]) -> Iterator[bytes]:
    """Entries in order, one or more to a piece, cut into full leaves."""
    rest = b""
    for piece in in_order:
        rest += piece
        full = len(rest) - len(rest) % LEAF_BYTES
        yield from (rest[at : at + LEAF_BYTES] for at in range(0, full, LEAF_BYTES))
        rest = rest[full:]
    if rest:
        yield rest
