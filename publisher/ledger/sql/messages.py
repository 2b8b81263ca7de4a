"""Messages in the publishing database: their rows, the records of an outstanding one, and the
receiver's ids of its records.

The records are text, in the column `outbox.records`; whatever writes rows runs inside the caller's
transaction.

The receiver's ids are packed, and found again by the run's key. Entries do not keep a job's place
in its message, so each id has a tag: as few leading bytes of the run's key as tell the runs of this
message apart, for 50 nearly always two. SGAS numbers its rows in order, so that the ids beside the
tags are a few ranges: some 2 bytes a job, where the reply itself has 85.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import compress
from typing import Any, Final, NamedTuple, overload
from zlib import crc32

from publisher.ledger.contract import OutboxRecord
from publisher.ledger.sql.database import Database
from publisher.model.job import Epoch, JobId, JobKey, RowRef, SkippedJob
from publisher.model.message import Message, Progress, RecordColumns, WindowMark
from publisher.model.time import epoch

# Flat lists of plain values, made here: there are no circles to look for (hot path).
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)


Columns = Sequence[Sequence[str | int]]
"""What is kept of each record: database, RecordID, JobID, LocalJobID, end, fingerprint, bytes,
whether it goes out for the first time, submit host, and the place of a summary's row among those of
its month.
"""


def columns_of(records: RecordColumns) -> Columns:
    """Of records that are about to leave (hot path)."""
    runs = (
        records.files,
        records.record_ids,
        records.job_ids,
        records.local_ids,
        records.ended_at,
        records.fingerprints,
    )
    return (
        *runs,
        list(map(len, records.contents)),
        list(map(int, records.first_time)),
        records.submit_hosts,
        [0] * len(records),
    )


def columns_of_outbox(records: Iterable[OutboxRecord]) -> Columns:
    """Of records as they were written down before."""
    return list(
        zip(*((*one.row, *one[1:6], int(one.first_time), *one[7:]) for one in records), strict=True)
    )


def carried_text(columns: Columns) -> str:
    """The records of an outstanding message, as `outbox.records` keeps them: their number, and each
    column, or the one value that all of it has.
    """
    count = len(columns[0]) if columns else 0
    return _ENCODER.encode(
        [count, *(column[0] if column.count(column[0]) == count else column for column in columns)]
    )


def _columns_from(text: str) -> Columns:
    count, *columns = json.loads(text) or (0,)
    if isinstance(count, list):  # schema 1 had a list for each record, without a place that is 0
        return list(
            zip(*(line + [0] * (10 - len(line)) for line in (count, *columns)), strict=True)
        )
    return [column if isinstance(column, list) else [column] * count for column in columns]


_ENDED_AT, _GROUP = 4, 9  # among the columns


class CarriedRecords(Sequence[OutboxRecord]):
    """The records of an outstanding message from what `carried_text` made of them.

    They are taken apart when somebody looks at one: of nearly every message nobody does.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _records(self) -> list[OutboxRecord]:
        return [_carried(*values) for values in zip(*_columns_from(self._text), strict=True)]

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, at: int) -> OutboxRecord: ...
    @overload
    def __getitem__(self, at: slice) -> list[OutboxRecord]: ...
    def __getitem__(self, at: int | slice) -> OutboxRecord | list[OutboxRecord]:
        return self._records[at]

    def __iter__(self) -> Iterator[OutboxRecord]:
        yield from self._records

    def places(self) -> list[tuple[int, int]]:
        """Of each row of a month among them, its `OutboxRecord.group` and its end (hot path)."""
        columns: Sequence[Sequence[Any]] = _columns_from(self._text)
        if not columns:
            return []
        return list(
            compress(zip(columns[_GROUP], columns[_ENDED_AT], strict=True), columns[_GROUP])
        )


def _carried(file: object, record_id: object, *values: object) -> OutboxRecord:
    job_id, local_id, ended_at, fingerprint, content_bytes, first_time, submit_host, group = values
    return OutboxRecord(
        row=RowRef(database=str(file), record_id=int(str(record_id))),
        job_id=JobId(str(job_id)),
        local_id=str(local_id),
        ended_at=Epoch(int(str(ended_at))),
        fingerprint=int(str(fingerprint)),
        content_bytes=int(str(content_bytes)),
        first_time=bool(first_time),
        submit_host=str(submit_host),
        group=int(str(group)),
    )


_TEXTS: Final = (
    0x80  # in the first byte, beside the width of the tags: the ids are no plain numbers
)


def _distinct_width(keys: Collection[JobKey]) -> int:
    """As few leading bytes as tell keys apart, also those of runs without an id, which must not be
    found under another's.
    """
    width = 1
    while len({key[:width] for key in keys}) < len(keys):
        width += 1
    return width


def pack(named: Sequence[tuple[JobKey, str]]) -> bytes | None:
    """All runs of a message in its order, each with its id or ''; None when no id is known.

    Of a run that is named twice, the first counts.
    """
    by_key: dict[JobKey, str] = {}
    for key, text in named:
        by_key.setdefault(key, text)
    known = {key: text for key, text in by_key.items() if text}
    if not known:
        return None
    width = _distinct_width(by_key)
    head = _varint(len(known)) + b"".join(key[:width] for key in known)
    if all(_is_number(text) for text in known.values()):
        return bytes([width]) + head + _ranges([int(text) for text in known.values()])
    return (
        bytes([width | _TEXTS])
        + head
        + json.dumps(list(known.values()), separators=(",", ":")).encode()
    )


def find(packed: bytes | None, key: JobKey) -> str:
    """The id of the row of a run that the message carried; '' when the receiver reported none."""
    if not packed:
        return ""
    width = packed[0] & ~_TEXTS
    tags, at = _read_varint(packed, 1)
    ids = at + tags * width
    for place in range(tags):
        if packed[at + place * width : at + (place + 1) * width] == key[:width]:
            if packed[0] & _TEXTS:
                return str(json.loads(packed[ids:])[place])
            return str(_number_at(packed[ids:], place))
    return ""


def _is_number(text: str) -> bool:
    """Whether the text comes back byte for byte from the number that it spells."""
    return len(text) < 20 and text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


def _ranges(numbers: Sequence[int]) -> bytes:
    """Numbers as ranges that count up by one: how far each begins from the end of the last, and how
    long it is.
    """
    begins = [
        place
        for place, number in enumerate(numbers)
        if not place or number != numbers[place - 1] + 1
    ]
    packed = []
    for begin, following in zip(begins, [*begins[1:], len(numbers)], strict=True):
        packed += [
            _varint(_folded(numbers[begin] - (numbers[begin - 1] if begin else 0))),
            _varint(following - begin),
        ]
    return b"".join(packed)


def _number_at(packed: bytes, place: int) -> int:
    for first, length in _unpacked(packed):
        if place < length:
            return first + place
        place -= length
    raise ValueError("row ids end before their last place")


def _unpacked(packed: bytes) -> Iterator[tuple[int, int]]:
    at = last = 0
    while at < len(packed):
        step, at = _read_varint(packed, at)
        length, at = _read_varint(packed, at)
        first = last + (-(step + 1 >> 1) if step & 1 else step >> 1)
        yield first, length
        last = first + length - 1


def _folded(step: int) -> int:
    """Steps of either sign as numbers from 0 on, small ones small."""
    return step << 1 if step >= 0 else -(step << 1) - 1


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    packed = b""
    while number > 0x7F:
        packed += bytes([number & 0x7F | 0x80])
        number >>= 7
    return packed + bytes([number])


def _read_varint(packed: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next one begins."""
    number = shift = 0
    while True:
        octet = packed[at]
        at += 1
        number |= (octet & 0x7F) << shift
        shift += 7
        if not octet & 0x80:
            return number, at


class MessageSummary(NamedTuple):
    """Job ids and keys in the message's order; `first` are end time and submit host of what was
    never delivered before.
    """

    job_ids: Sequence[JobId] = ()
    keys: Sequence[JobKey] = ()
    first: Sequence[tuple[Epoch, str]] = ()
    last_end: int = 0

    def rows_blob(self, remote_ids: Mapping[str, str]) -> bytes | None:
        """Ids by JobID as `message.remote_ids` keeps them; of the months of a summary there are
        none.
        """
        if not remote_ids:
            return None
        return pack(
            [
                (key, remote_ids.get(job_id, ""))
                for job_id, key in zip(self.job_ids, self.keys, strict=True)
            ]
        )


def summary_of(records: RecordColumns) -> MessageSummary:
    """Of records that are about to leave (hot path)."""
    return MessageSummary(
        job_ids=records.job_ids,
        keys=records.keys,
        first=list(
            compress(zip(records.ended_at, records.submit_hosts, strict=True), records.first_time)
        ),
        last_end=max(records.ended_at, default=0),
    )


def summary_of_outbox(records: Sequence[OutboxRecord]) -> MessageSummary:
    """Of records as they were written down before."""
    return MessageSummary(
        job_ids=[record.job_id for record in records],
        keys=[record.key for record in records],
        first=[(record.ended_at, record.submit_host) for record in records if record.first_time],
        last_end=max([record.ended_at for record in records], default=0),
    )


_SENT = 2  # a number of `message.state`, as schema.py lists them
_ENTER_MESSAGE = """
INSERT INTO message (target, message_id, state, format, records, bytes, digest, made_at, checksum)
VALUES (:target, :message_id, 0, :format, :records, :bytes, :digest, :made_at, :checksum)"""
_ENTER_COUNTED = """
INSERT INTO message (target, message_id, state, format, records, bytes, digest, made_at, settled_at)
VALUES (:target, '', 4, '', :jobs, 0, :no_digest, :now, :now)"""
_ENTER_OUTBOX = """
INSERT INTO outbox (message, place, narrowing, payload, records)
VALUES (:message, :place, :narrowing, :payload, :records)"""
_SETTLE = """
UPDATE message SET state = :state, settled_at = :now, remote_id = :remote_id, remote_ids = :remote_ids, reason = :reason
WHERE id = :id"""
_ACCEPTED = """
UPDATE target SET accepted_messages = accepted_messages + 1,
    accepted_records = accepted_records + (SELECT records FROM message WHERE id = :id)
WHERE id = (SELECT target FROM message WHERE id = :id)"""
_SET_ASIDE = """
INSERT INTO quarantine (target, key, job_id, local_id, file, record_id, ended_at, rule, reason, fingerprint, hold,
                        policy_digest, since)
VALUES (:target, :key, :job_id, :local_id, :file, :record_id, :ended_at, :rule, :reason, :fingerprint, 'held',
        :policy_digest, :since)
ON CONFLICT (target, key) DO UPDATE SET
    file = excluded.file, record_id = excluded.record_id, ended_at = excluded.ended_at, rule = excluded.rule,
    reason = excluded.reason, fingerprint = excluded.fingerprint,
    hold = CASE WHEN quarantine.hold = 'dropped' THEN quarantine.hold ELSE 'held' END, policy_digest = excluded.policy_digest"""
_ANY_HELD = "SELECT EXISTS (SELECT 1 FROM quarantine WHERE target = :target)"
_LEAVE_QUARANTINE = (
    "DELETE FROM quarantine WHERE target = :target AND key = :key AND hold <> 'dropped'"
)
_READ_TO = """
INSERT INTO reading (target, file, record_id, anchor) VALUES (:target, :file, :record_id, :anchor)
ON CONFLICT (target, file) DO UPDATE SET record_id = excluded.record_id, anchor = excluded.anchor"""
_OPEN = """
INSERT INTO open_row (target, file, record_id, finished_at) VALUES (:target, :file, :record_id, :finished_at)
ON CONFLICT (target, file, record_id) DO UPDATE SET finished_at = coalesce(open_row.finished_at, excluded.finished_at)"""
_WINDOW_PROGRESS = """
INSERT INTO window_progress (target, name, ended_at, file, record_id) VALUES (:target, :name, :ended_at, :file, :record_id)
ON CONFLICT (target, name) DO UPDATE SET
    ended_at = excluded.ended_at, file = excluded.file, record_id = excluded.record_id"""
_OPEN_AGAIN = """
INSERT INTO open_row (target, file, record_id)
SELECT target, file, CAST(:record_id AS BIGINT) FROM reading WHERE target = :target AND file = :file AND record_id >= :record_id
ON CONFLICT (target, file, record_id) DO NOTHING"""
_LEAVE_OUTBOX = "DELETE FROM outbox WHERE message = :message"
_RECORDS = "SELECT records FROM outbox WHERE message = :message"
_CARRIED = """
SELECT message.id, outbox.records FROM message JOIN outbox ON outbox.message = message.id
WHERE target = :target AND state < 2"""
_CARRY = "UPDATE outbox SET records = :records WHERE message = :message"
FINISH_WINDOW = "DELETE FROM window_progress WHERE target = :target AND name = :name"
_CLOSE = "DELETE FROM open_row WHERE target = :target AND file = :file AND record_id = :record_id"


def enter(
    database: Database,
    target: int,
    message: Message,
    records: str,
    *,
    place: float | None,
    narrowing: bool,
) -> int:
    """A message in the outbox, with its records as they are written here; gives its number."""
    unchanging = {
        "message_id": message.id,
        "format": message.format,
        "records": message.records,
        "bytes": len(message.payload),
        "digest": bytes.fromhex(message.digest),
        "made_at": epoch(message.made_at),
    }
    checksum = message_checksum(*unchanging.values())
    number = database.insert_returning_id(
        _ENTER_MESSAGE, unchanging | {"target": target, "checksum": checksum}
    )
    database.execute(
        _ENTER_OUTBOX,
        {
            "message": number,
            "place": number if place is None else place,
            "narrowing": narrowing,
            "payload": message.payload,
            "records": records,
        },
    )
    return number


def message_checksum(*unchanging: object) -> int:
    """By which a row that was damaged on the disk is known: of id, format, records, bytes, digest
    and time of making.
    """
    return crc32(repr(unchanging).encode()) & 0x7FFF


def enter_counted(database: Database, target: int, jobs: int, now: datetime) -> int:
    """The number under which runs are known that were counted into months; no message carries them."""
    return database.insert_returning_id(
        _ENTER_COUNTED, {"target": target, "jobs": jobs, "no_digest": b"", "now": epoch(now)}
    )


def leave_quarantine(database: Database, target: int, keys: Iterable[JobKey]) -> None:
    """Runs that are no longer held, for whatever reason; dropped ones stay dropped."""
    if database.execute(_ANY_HELD, {"target": target}).fetchone()[0]:
        database.execute_many(_LEAVE_QUARANTINE, [{"target": target, "key": key} for key in keys])


def advance(
    database: Database, target: int, progress: Progress, policy_digest: str, now: datetime
) -> None:
    execute = database.execute_many
    execute(
        _READ_TO,
        [
            {"target": target, "file": at.database, "record_id": at.record_id, "anchor": at.anchor}
            for at in progress.cursors
        ],
    )
    execute(
        _OPEN,
        [
            {
                "target": target,
                "file": row.row.database,
                "record_id": row.row.record_id,
                "finished_at": row.finished_seen_at,
            }
            for row in progress.opened
        ],
    )
    execute(
        _CLOSE,
        [
            {"target": target, "file": row.database, "record_id": row.record_id}
            for row in progress.closed
        ],
    )
    if mark := progress.window_mark:
        _go_on_from(database, target, mark)
    leave_quarantine(database, target, progress.left_quarantine)
    quarantine(database, target, progress.skipped, policy_digest, now)


def _go_on_from(database: Database, target: int, mark: WindowMark) -> None:
    database.execute(
        _WINDOW_PROGRESS,
        {
            "target": target,
            "name": mark.window_progress,
            "ended_at": mark.ended_at,
            "file": mark.row.database,
            "record_id": mark.row.record_id,
        },
    )


def go_back(database: Database, target: int, behind: Mapping[str, WindowMark | None]) -> None:
    """Republishes go on from these places, None for the beginning."""
    for name, mark in behind.items():
        if mark is None:
            database.execute(FINISH_WINDOW, {"target": target, "name": name})
        else:
            _go_on_from(database, target, mark)


def open_again(database: Database, target: int, records: Iterable[OutboxRecord]) -> None:
    """Rows that are to be looked at again. Those beyond what was read will be met anyway."""
    database.execute_many(
        _OPEN_AGAIN,
        [
            {"target": target, "file": one.row.database, "record_id": one.row.record_id}
            for one in records
        ],
    )


def rename_carried(database: Database, target: int, file: str, name: str) -> None:
    """A database has another name from now on, also in the rows of outstanding messages."""
    for message, text in database.execute(_CARRIED, {"target": target}).fetchall():
        files, *others = _columns_from(text)
        renamed = [name if one == file else one for one in files]
        database.execute(_CARRY, {"message": message, "records": carried_text([renamed, *others])})


def quarantine(
    database: Database, target: int, jobs: Sequence[SkippedJob], policy_digest: str, now: datetime
) -> None:
    database.execute_many(
        _SET_ASIDE,
        [
            {
                "target": target,
                "key": job.key,
                "job_id": _storable(job.job_id),
                "local_id": _storable(job.local_id),
                "file": job.row.database,
                "record_id": job.row.record_id,
                "ended_at": job.ended_at,
                "rule": job.rule,
                "reason": _storable(job.reason),
                "fingerprint": job.fingerprint,
                "policy_digest": policy_digest,
                "since": epoch(now),
            }
            for job in jobs
        ],
    )


def settle(
    database: Database,
    number: int,
    state: int,
    now: datetime,
    *,
    remote_id: str = "",
    remote_ids: bytes | None = None,
    reason: str = "",
) -> None:
    database.execute(
        _SETTLE,
        {
            "id": number,
            "state": state,
            "now": epoch(now),
            "remote_id": remote_id or None,
            "remote_ids": remote_ids,
            "reason": reason or None,
        },
    )
    leave_outbox(database, number)


def accept(
    database: Database, number: int, now: datetime, *, remote_id: str, remote_ids: bytes | None
) -> None:
    """A message was accepted. Its target counts it, so that nobody has to go through all messages
    to know how many.
    """
    settle(database, number, _SENT, now, remote_id=remote_id, remote_ids=remote_ids)
    database.execute(_ACCEPTED, {"id": number})


def leave_outbox(database: Database, number: int) -> None:
    """Nothing of a message is to be sent any more."""
    database.execute(_LEAVE_OUTBOX, {"message": number})


def outbox_records(database: Database, number: int) -> CarriedRecords:
    row = database.execute(_RECORDS, {"message": number}).fetchone()
    return CarriedRecords(row[0])


def _storable(text: str) -> str:
    """Text that SQLite takes: bytes that were not UTF-8 are shown as `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()
