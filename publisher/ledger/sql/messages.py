"""Messages in the publishing database: their rows, and the records of an outstanding one.

The records are text, in `outbox.records`. What writes rows runs inside the caller's transaction.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, NamedTuple, overload
from zlib import crc32

from publisher.ledger.answers import MessageState, Outstanding
from publisher.ledger.sql import entries
from publisher.ledger.sql import remote_ids as ids
from publisher.ledger.sql.database import Database
from publisher.model.errors import LedgerError
from publisher.model.job import (
    Epoch,
    JobId,
    JobKey,
    RowRef,
    RunKey,
    SkippedJob,
    values_number,
)
from publisher.model.message import (
    Message,
    MessageId,
    OutboxRecord,
    Progress,
    Rendered,
    WindowMark,
)
from publisher.model.time import epoch

# Flat lists of plain values, made here: there are no circles to look for (hot path).
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)

# What is kept of each record: database, RecordID, JobID, LocalJobID, end, fingerprint, bytes,
# submit host of a count, `OutboxRecord.group`, its submission, and `OutboxRecord.bundle`.
Columns = Sequence[Sequence[str | int]]


def columns_of(records: Sequence[Rendered]) -> Columns:
    """Return what is kept of records that are about to leave (hot path)."""
    jobs, entries = [one.job for one in records], [one.counts_for for one in records]
    nothing = [0] * len(records)
    return (
        [job.row.database for job in jobs],
        [job.row.record_id for job in jobs],
        [job.job_id for job in jobs],
        [job.local_id for job in jobs],
        [entry.record.ended_at for entry in entries],
        [values_number(entry.digest) for entry in entries],
        [len(one.content) for one in records],
        [""] * len(records),
        nothing,
        [job.submitted_at for job in jobs],
        nothing,
    )


def columns_of_outbox(records: Iterable[OutboxRecord]) -> Columns:
    """Of records as they were written down before."""
    return list(zip(*((*one.row, *one[1:]) for one in records), strict=True))


def carried_text(columns: Columns) -> str:
    """As `outbox.records` keeps them: their number, and each column, or the one value of it all."""
    count = len(columns[0]) if columns else 0
    kept = [column[0] if column.count(column[0]) == count else column for column in columns]
    return _ENCODER.encode([count, *kept])


def _columns_from(text: str) -> Columns:
    """Raises: LedgerError."""
    try:
        count, *columns = json.loads(text) or (0,)
    except (TypeError, ValueError) as error:
        what = "what a message carried cannot be read"
        raise LedgerError(
            f"the ledger is damaged: {what}; restore the last sound backup"
        ) from error
    return [column if isinstance(column, list) else [column] * count for column in columns]


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


def _carried(file: object, record_id: object, *values: object) -> OutboxRecord:
    job_id, local_id, ended_at, fingerprint, content_bytes, *others = values
    submit_host, group, submitted_at, bundle = others
    return OutboxRecord(
        row=RowRef(database=str(file), record_id=int(str(record_id))),
        job_id=JobId(str(job_id)),
        local_id=str(local_id),
        ended_at=Epoch(int(str(ended_at))),
        fingerprint=int(str(fingerprint)),
        content_bytes=int(str(content_bytes)),
        submit_host=str(submit_host),
        group=int(str(group)),
        submitted_at=int(str(submitted_at)),
        bundle=int(str(bundle)),
    )


class MessageSummary(NamedTuple):
    """What is counted of a message. Job ids and runs are in its order."""

    job_ids: Sequence[JobId] = ()
    runs: Sequence[RunKey] = ()

    def rows_blob(self, remote_ids: Mapping[str, str]) -> bytes | None:
        """Ids by JobID as `message.remote_ids` keeps them; of a summary's months there are none."""
        if not remote_ids:
            return None
        runs = zip(self.job_ids, self.runs, strict=True)
        return ids.pack([(run, remote_ids.get(job_id, "")) for job_id, run in runs])


def summary_of(records: Sequence[Rendered]) -> MessageSummary:
    """Return what is counted of records that are about to leave (hot path)."""
    return MessageSummary(
        job_ids=[one.job.job_id for one in records],
        runs=[one.counts_for.run for one in records],
    )


def summary_of_outbox(records: Sequence[OutboxRecord]) -> MessageSummary:
    """Of records as they were written down before."""
    return MessageSummary(
        job_ids=[record.job_id for record in records],
        runs=[record.run for record in records],
    )


STATES: Final = tuple(MessageState)  # by the numbers of `message.state`, as schema.py lists them
_SENT = 2
OUTSTANDING: Final = """
SELECT message.id, message_id, state, format, made_at, narrowing, payload, outbox.records, digest,
       message.records, target.name
FROM message JOIN outbox ON outbox.message = message.id JOIN target ON target.id = message.target
WHERE message.receiver = :receiver AND state < 2
ORDER BY outbox.place LIMIT 1 OFFSET :passed"""
_ENTER_MESSAGE = """
INSERT INTO message (target, receiver, posting, message_id, state, format, records, bytes, digest,
                     made_at, checksum)
VALUES (:target, :receiver, :posting, :message_id, 0, :format, :records, :bytes, :digest, :made_at,
        :checksum)"""
_ENTER_OUTBOX = """
INSERT INTO outbox (message, place, narrowing, read_from, payload, records)
VALUES (:message, :place, :narrowing, :read_from, :payload, :records)"""
_SETTLE = """
UPDATE message SET state = :state, settled_at = :now, remote_id = :remote_id,
    remote_ids = :remote_ids, reason = :reason
WHERE id = :id"""
_ACCEPTED = """
UPDATE target SET accepted_messages = accepted_messages + 1,
    accepted_records = accepted_records + (SELECT records FROM message WHERE id = :id)
WHERE id = (SELECT target FROM message WHERE id = :id)"""
_SET_ASIDE = """
INSERT INTO quarantine (target, key, job_id, local_id, file, record_id, ended_at,
                        rule, reason, fingerprint, hold, policy_digest, since)
VALUES (:target, :key, :job_id, :local_id, :file, :record_id, :ended_at,
        :rule, :reason, :fingerprint, 'held', :policy_digest, :since)
ON CONFLICT (target, key) DO UPDATE SET
    file = excluded.file, record_id = excluded.record_id, ended_at = excluded.ended_at,
    rule = excluded.rule, reason = excluded.reason, fingerprint = excluded.fingerprint,
    hold = CASE WHEN quarantine.hold = 'dropped' THEN quarantine.hold ELSE 'held' END,
    policy_digest = excluded.policy_digest"""
_ANY_HELD = "SELECT EXISTS (SELECT 1 FROM quarantine WHERE target = :target)"
_LEAVE_QUARANTINE = """
DELETE FROM quarantine WHERE target = :target AND key = :key AND hold <> 'dropped'"""
_READ_TO = """
UPDATE target SET store_mark = :mark, read_to = :change, wanted = :wanted, began = :began
WHERE id = :target"""
_GO_BACK = """
UPDATE target SET read_to = (SELECT read_from FROM outbox WHERE message = :message)
WHERE id = (SELECT target FROM message WHERE id = :message)
    AND read_to > (SELECT read_from FROM outbox WHERE message = :message)"""
_WINDOW_PROGRESS = """
INSERT INTO window_progress (target, name, ended_at, change, store_mark)
VALUES (:target, :name, :ended_at, :change, :mark)
ON CONFLICT (target, name) DO UPDATE SET
    ended_at = excluded.ended_at, change = excluded.change, store_mark = excluded.store_mark"""
_LEAVE_OUTBOX = "DELETE FROM outbox WHERE message = :message"
_FORGET_MONTHS = "DELETE FROM month_message WHERE message = :message"
_FORGET_MESSAGE = "DELETE FROM message WHERE id = :message"
_POSTING = "SELECT posting FROM message WHERE id = :message"
# Of single records those of its entries, which are pending; of totals those of its rows.
_UNDER_WAY = """
SELECT DISTINCT row_key.month FROM message CROSS JOIN posting CROSS JOIN entry CROSS JOIN row_key
WHERE message.id = :message AND posting.id = message.posting AND entry.posting = posting.id
    AND entry.receiver = posting.receiver AND entry.state = 2 AND row_key.id = entry.row_key
UNION SELECT month FROM month_message WHERE message = :message"""
_RECORDS = "SELECT records FROM outbox WHERE message = :message"
_CARRIED = """
SELECT message.id, outbox.records FROM message JOIN outbox ON outbox.message = message.id
WHERE target = :target AND state < 2"""
_OF_DATABASES = "source_file", "quarantine"
# A database that had the name before is replaced by the renamed one.
_REPLACE = "DELETE FROM source_file WHERE target = :target AND file = :name"
_RENAME = tuple(
    f"UPDATE {table} SET file = :name WHERE target = :target AND file = :file"
    for table in _OF_DATABASES
)
_CARRY = "UPDATE outbox SET records = :records WHERE message = :message"
FINISH_WINDOW = "DELETE FROM window_progress WHERE target = :target AND name = :name"


def enter(
    database: Database,
    target: int,
    receiver: int,
    message: Message,
    records: Columns,
    *,
    posting: int | None = None,
    place: float | None = None,
    narrowing: bool = False,
    read_from: int | None = None,
) -> int:
    """A message in the outbox; gives its number.

    `place` is where in the queue, None at its end; `narrowing` says that it is a part of one that
    was refused; `read_from` is where its target goes on from if it is given up.
    """
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
        _ENTER_MESSAGE,
        {
            **unchanging,
            "target": target,
            "receiver": receiver,
            "posting": posting,
            "checksum": checksum,
        },
    )
    database.execute(
        _ENTER_OUTBOX,
        {
            "message": number,
            "place": number if place is None else place,
            "narrowing": narrowing,
            "read_from": read_from,
            "payload": message.payload,
            "records": carried_text(records),
        },
    )
    return number


def message_checksum(*unchanging: object) -> int:
    """By which a damaged row is known: of id, format, records, bytes, digest and time of making."""
    return crc32(repr(unchanging).encode()) & 0x7FFF


def leave_quarantine(database: Database, target: int, keys: Iterable[JobKey]) -> None:
    """Runs that are no longer held, for whatever reason; dropped ones stay dropped."""
    if database.execute(_ANY_HELD, {"target": target}).fetchone()[0]:
        database.execute_many(_LEAVE_QUARANTINE, [{"target": target, "key": key} for key in keys])


def advance(
    database: Database, target: int, progress: Progress, policy_digest: str, now: datetime
) -> None:
    if at := progress.cursor:
        database.execute(_READ_TO, at._asdict() | {"target": target})
    if mark := progress.window_mark:
        _go_on_from(database, target, mark)
    leave_quarantine(database, target, progress.left_quarantine)
    quarantine(database, target, progress.skipped, policy_digest, now)


def _go_on_from(database: Database, target: int, mark: WindowMark) -> None:
    at = {"ended_at": mark.ended_at, "change": mark.change, "mark": mark.mark}
    database.execute(_WINDOW_PROGRESS, at | {"target": target, "name": mark.window_progress})


def go_back(database: Database, target: int, behind: Mapping[str, WindowMark | None]) -> None:
    """Republishes go on from these places, None for the beginning."""
    for name, mark in behind.items():
        if mark is None:
            database.execute(FINISH_WINDOW, {"target": target, "name": name})
        else:
            _go_on_from(database, target, mark)


def read_again(database: Database, message: int) -> None:
    """Let the target of a message go on from where it stood before its jobs were read."""
    database.execute(_GO_BACK, {"message": message})


def rename_database(database: Database, target: int, file: str, name: str) -> None:
    """Enter the other name of a database, also in entries and rows of outstanding messages."""
    for statement in (_REPLACE, *_RENAME):
        database.execute(statement, {"target": target, "file": file, "name": name})
    entries.rename_source(database, file, name)
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
                "file": job.row.database,
                "record_id": job.row.record_id,
                "key": job.key,
                "job_id": _storable(job.job_id),
                "local_id": _storable(job.local_id),
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
    database.execute(_LEAVE_OUTBOX, {"message": number})


def accept(
    database: Database, number: int, now: datetime, *, remote_id: str, remote_ids: bytes | None
) -> None:
    """A message was accepted; its target counts it, so that nobody has to go through them all."""
    settle(database, number, _SENT, now, remote_id=remote_id, remote_ids=remote_ids)
    database.execute(_ACCEPTED, {"id": number})


def forget(database: Database, number: int) -> None:
    """A message that was never sent."""
    for statement in (_LEAVE_OUTBOX, _FORGET_MONTHS, _FORGET_MESSAGE):
        database.execute(statement, {"message": number})


def outstanding(row: Sequence[Any]) -> Outstanding:
    """Return a message of `OUTSTANDING`.

    Raises: ValueError for a payload that is not what was written down.
    """
    number, message_id, state, form, at, narrowing, payload, carried, digest, records, target = row
    if sha256(payload).digest() != digest:
        raise ValueError
    made_at = datetime.fromtimestamp(at, UTC)
    names = MessageId(message_id), target, form
    message = Message(*names, payload, bytes(digest).hex(), records, made_at)
    carries = CarriedRecords(carried)
    return Outstanding(number, message, STATES[state], carries, narrowing=bool(narrowing))


def posting_of(database: Database, number: int) -> int | None:
    """Return the posting of a message; None where its records are no entries."""
    found = database.execute(_POSTING, {"message": number}).fetchone()
    return None if found is None else found[0]


def months_under_way(database: Database, number: int) -> list[int]:
    """Return the months of what an outstanding message carries; none of sync counts."""
    with database.reading():
        found = database.execute(_UNDER_WAY, {"message": number}).fetchall()
    return sorted(month for (month,) in found)


def outbox_records(database: Database, number: int) -> CarriedRecords:
    row = database.execute(_RECORDS, {"message": number}).fetchone()
    return CarriedRecords(row[0])


def _storable(text: str) -> str:
    """Text that SQLite takes: bytes that were not UTF-8 are shown as `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()
