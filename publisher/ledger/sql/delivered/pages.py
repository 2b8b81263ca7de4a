"""Delivered pages: a row for the runs that a message carried of one block of a database's rows.

A *block* is 8192 RecordIDs: jobs end in another order than their rows were written, and in small
blocks the pages would cost more than the runs. A *numbering* is a database as long as its rows keep
their RecordIDs: `rotate`, `migrate` and a restored file begin another. `runs` holds columns, in the
order of the rows: eight bytes of each job's digest, three of each run's, four of each end time,
three of each fingerprint, two of its row's place in the block; 20 bytes a run:

    page of message 7, numbering 2, block 5 (rows 40960 to 49151): two runs

    8a41..c2 | 93b0..11   jobs
      0d12ff | 52aa01     runs of these jobs
    69e2a1f0 | 69e2a3b7   end times, as they were sent
      91c2d4 | 0e2b77     fingerprints of the values that were sent
        0000 | 0107       rows, counted from the first of the block

A run that was sent again is in the pages of both messages; the receiver has that of the later one.
"""

import struct
from bisect import bisect_left
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from itertools import compress, islice
from operator import le
from typing import Any, Final, NamedTuple
from zlib import crc32

from publisher.ledger.sql.database import Database
from publisher.model.job import JOB_DIGEST_BYTES, RUN_DIGEST_BYTES, Epoch, JobKey
from publisher.model.message import PlacedRuns

BLOCK_ROWS: Final = 8192
_END_BYTES: Final = 4
_FINGERPRINT_BYTES: Final = 3
_PLACE_BYTES: Final = 2
RUN_BYTES: Final = (
    JOB_DIGEST_BYTES + RUN_DIGEST_BYTES + _END_BYTES + _FINGERPRINT_BYTES + _PLACE_BYTES
)
_LATEST_END: Final = 0xFFFFFFFF  # 2106; quality rules refuse later ends long before

_INSERT = """
INSERT INTO delivered_page (message, numbering, block, runs, checksum)
VALUES (:message, :numbering, :block, :runs, :checksum)"""
_FORGET = "DELETE FROM delivered_page WHERE message = :message"
_OF_BLOCK = """
SELECT message, runs FROM delivered_page
WHERE numbering = :numbering AND block = :block ORDER BY message"""
_HAS_BLOCK = """
SELECT EXISTS (SELECT 1 FROM delivered_page WHERE numbering = :numbering AND block = :block)"""
_OF_NUMBERING = """
SELECT id, message, runs FROM delivered_page WHERE numbering = :numbering AND id > :after"""
_IN_ORDER = """
SELECT block, message, runs FROM delivered_page
WHERE numbering = :numbering ORDER BY block, message"""
_OF_MESSAGE = """
SELECT numbering, block, runs FROM delivered_page
WHERE message = :message ORDER BY numbering, block"""
_NEWEST = "SELECT coalesce(max(id), 0) FROM delivered_page"
_BY_ID = "SELECT message, runs FROM delivered_page WHERE id = :id AND numbering = :numbering"

# Key, end time, fingerprint, row in the block.
_PackedRun = tuple[JobKey, Epoch, int, int]


class PagedRun(NamedTuple):
    """A run as a page has it."""

    key: JobKey
    message: int
    ended_at: Epoch
    fingerprint: int


def pack(
    keys: Sequence[JobKey], ends: Sequence[int], fingerprints: Sequence[int], places: Sequence[int]
) -> bytes:
    """Runs as `delivered_page.runs` keeps them."""
    wide = bytearray(struct.pack(f"<{len(keys)}I", *fingerprints))
    del wide[_FINGERPRINT_BYTES :: _FINGERPRINT_BYTES + 1]
    within = ends
    if ends and not 0 <= min(ends) <= max(ends) <= _LATEST_END:
        within = [max(0, min(end, _LATEST_END)) for end in ends]
    times = struct.pack(f"<{len(within)}I", *within)
    rows = struct.pack(f"<{len(places)}H", *places)
    return b"".join((*_apart(b"".join(keys)), times, wide, rows))


def _apart(keys: bytes) -> tuple[bytearray, bytearray]:
    """The digests of jobs, and of their runs, of keys that stand one after the other."""
    width = JOB_DIGEST_BYTES + RUN_DIGEST_BYTES
    count = len(keys) // width
    jobs, runs = bytearray(count * JOB_DIGEST_BYTES), bytearray(count * RUN_DIGEST_BYTES)
    for at in range(JOB_DIGEST_BYTES):
        jobs[at::JOB_DIGEST_BYTES] = keys[at::width]
    for at in range(RUN_DIGEST_BYTES):
        runs[at::RUN_DIGEST_BYTES] = keys[JOB_DIGEST_BYTES + at :: width]
    return jobs, runs


def digests(packed: bytes) -> tuple[int, ...]:
    """The digests of a page's jobs, in its order."""
    return struct.unpack_from(f"<{len(packed) // RUN_BYTES}q", packed)


def digest_of(key: bytes) -> int:
    """The digest of a run's job, as `digests` gives it."""
    return int.from_bytes(key[:JOB_DIGEST_BYTES], "little", signed=True)


def ends(packed: bytes) -> tuple[int, ...]:
    """The end times of a page's runs, in its order."""
    count = len(packed) // RUN_BYTES
    return struct.unpack_from(f"<{count}I", packed, count * (JOB_DIGEST_BYTES + RUN_DIGEST_BYTES))


def fingerprints(packed: bytes) -> tuple[int, ...]:
    count = len(packed) // RUN_BYTES
    first = count * (JOB_DIGEST_BYTES + RUN_DIGEST_BYTES + _END_BYTES)
    wide = bytearray(count * (_FINGERPRINT_BYTES + 1))
    end = first + count * _FINGERPRINT_BYTES
    for at in range(_FINGERPRINT_BYTES):
        wide[at :: _FINGERPRINT_BYTES + 1] = packed[first + at : end : _FINGERPRINT_BYTES]
    return struct.unpack(f"<{count}I", wide)


def places(packed: bytes) -> tuple[int, ...]:
    """The rows of a page's runs, counted from the first of its block."""
    count = len(packed) // RUN_BYTES
    return struct.unpack_from(f"<{count}H", packed, len(packed) - count * _PLACE_BYTES)


def contradicts(
    packed: bytes, block: int, rows: Mapping[int, int], lowest: int, highest: int
) -> bool:
    """Whether a page has another job in one of these rows, given with their jobs' digests."""
    first = block * BLOCK_ROWS
    delivered = places(packed)
    if first + delivered[0] > highest or first + delivered[-1] < lowest:
        return False
    here = digests(packed)
    return tuple(map(rows.get, map(first.__add__, delivered), here)) != here


def keys(packed: bytes) -> list[JobKey]:
    """The keys of a page's runs, in its order."""
    count = len(packed) // RUN_BYTES
    return [_key(packed, count, place) for place in range(count)]


def unpack(message: int, packed: bytes, wanted: Container[int]) -> list[PagedRun]:
    """Those of a page's runs whose job's digest is wanted."""
    count = len(packed) // RUN_BYTES
    found = [place for place, digest in enumerate(digests(packed)) if digest in wanted]
    ended_at, values = ends(packed), fingerprints(packed)
    return [
        PagedRun(_key(packed, count, at), message, Epoch(ended_at[at]), values[at]) for at in found
    ]


def _all_of(packed: bytes) -> list[_PackedRun]:
    runs = unpack(0, packed, frozenset(digests(packed)))
    return [
        (one.key, one.ended_at, one.fingerprint, place)
        for one, place in zip(runs, places(packed), strict=True)
    ]


def _key(packed: bytes, count: int, place: int) -> JobKey:
    job, run = place * JOB_DIGEST_BYTES, count * JOB_DIGEST_BYTES + place * RUN_DIGEST_BYTES
    return JobKey(packed[job : job + JOB_DIGEST_BYTES] + packed[run : run + RUN_DIGEST_BYTES])


def write(
    database: Database, message: int, runs: PlacedRuns, numberings: Mapping[str, int]
) -> None:
    """The pages of a message. `numberings` by database."""
    columns: Sequence[Sequence[Any]]
    columns = [runs.keys, runs.ended_at, runs.fingerprints, runs.record_ids]
    for numbering in sorted(set(numberings.values())):
        files = {file for file, number in numberings.items() if number == numbering}
        here = columns
        if len(files) < len(numberings):
            chosen = [file in files for file in runs.files]
            here = [list(compress(column, chosen)) for column in columns]
        _write_blocks(database, message, numbering, _by_row(here))


def _by_row(columns: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """The columns in the order of the rows, which are the last of them."""
    rows = columns[-1]
    if all(map(le, rows, islice(rows, 1, None))):
        return columns
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return [list(map(column.__getitem__, order)) for column in columns]


def _write_blocks(
    database: Database, message: int, numbering: int, columns: Sequence[Sequence[Any]]
) -> None:
    """A page for each block of the rows, which are the last column, in order."""
    rows = columns[-1]
    start = 0
    while start < len(rows):
        block = rows[start] // BLOCK_ROWS
        first = block * BLOCK_ROWS
        end = bisect_left(rows, first + BLOCK_ROWS, lo=start)
        keys, ends, fingerprints, record_ids = (column[start:end] for column in columns)
        packed = pack(keys, ends, fingerprints, [row - first for row in record_ids])
        _insert(database, message, numbering, block, packed)
        start = end


def _insert(database: Database, message: int, numbering: int, block: int, packed: bytes) -> None:
    page = {"message": message, "numbering": numbering, "block": block, "runs": packed}
    database.execute(_INSERT, page | {"checksum": checksum(numbering, block, packed)})


def checksum(numbering: int, block: int, packed: bytes) -> int:
    """By which a page that was damaged on the disk is known; two bytes: there are many."""
    return crc32(packed, crc32(f"{numbering} {block}".encode())) & 0x7FFF


def move(database: Database, whole: int, parts: Mapping[int, Collection[JobKey]]) -> None:
    """Runs of a message are those of some others now; they stay at their places."""
    found = database.execute(_OF_MESSAGE, {"message": whole}).fetchall()
    forget(database, whole)
    for message, wanted in parts.items():
        for numbering, block, packed in found:
            kept = [one for one in _all_of(packed) if one[0] in wanted]
            if kept:
                _insert(database, message, numbering, block, pack(*zip(*kept, strict=True)))


def forget(database: Database, message: int) -> None:
    """A message's runs were not delivered by it."""
    database.execute(_FORGET, {"message": message})


def has_block(database: Database, numbering: int, block: int) -> bool:
    asked = {"numbering": numbering, "block": block}
    return bool(database.execute(_HAS_BLOCK, asked).fetchone()[0])


def of_block(database: Database, numbering: int, block: int) -> Iterator[tuple[int, bytes]]:
    """Message and runs of each page of a block, in the order of messages."""
    yield from database.execute(_OF_BLOCK, {"numbering": numbering, "block": block})


def of_numbering(
    database: Database, numbering: int, after: int = 0
) -> Iterator[tuple[int, int, bytes]]:
    """Id, message and runs of all pages of a numbering that were written after that one."""
    yield from database.stream(_OF_NUMBERING, {"numbering": numbering, "after": after})


def newest(database: Database) -> int:
    """The id of the page that was written last; no page gets it again."""
    return int(database.execute(_NEWEST).fetchone()[0])


def by_block(database: Database, numbering: int) -> Iterator[tuple[int, int, bytes]]:
    """Block, message and runs of all pages of a numbering, by block."""
    yield from database.stream(_IN_ORDER, {"numbering": numbering})


def by_id(database: Database, numbering: int, page: int) -> tuple[int, bytes] | None:
    """Message and runs of a page, as long as it is of that numbering."""
    row = database.execute(_BY_ID, {"id": page, "numbering": numbering}).fetchone()
    return None if row is None else (row[0], row[1])
