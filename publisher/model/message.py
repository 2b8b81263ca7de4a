"""Messages, batches of rendered records under a stable id, and how far a target has read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, NamedTuple, NewType

from publisher.model.entry import Entry, RowId, RunKey, Usage, run_key
from publisher.model.errors import Unfit
from publisher.model.job import (
    Epoch,
    JobId,
    JobKey,
    JobRecord,
    RowRef,
    SkippedJob,
    key_of,
)

MessageId = NewType("MessageId", str)
# What AMS stores without harm as an attribute value.
MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9./_-]+")


class Rendered(NamedTuple):
    """The record of a job, and what the job counts for with it."""

    job: JobRecord
    content: bytes
    counts_for: Entry

    @property
    def run(self) -> RunKey:
        """The job's."""
        return self.counts_for.run

    @property
    def job_id(self) -> JobId:
        """The job's."""
        return self.job.job_id

    def set_aside(self, unfit: Unfit) -> SkippedJob:
        """Return the job as quarantine keeps it, with the rule that it broke."""
        job = self.job
        return SkippedJob(
            job.row,
            job.job_id,
            job.local_id,
            Epoch(self.counts_for.record.ended_at),
            rule=unfit.rule,
            reason=unfit.reason,
            fingerprint=job.content_fingerprint,
        )


class Message(NamedTuple):
    """The payload before signing. The same bytes and id whenever it is sent again."""

    id: MessageId
    target: str
    format: str
    payload: bytes
    digest: str  # SHA-256 of the payload, hex
    records: int
    made_at: datetime


def message_of(
    payload: bytes, target: str, format_name: str, records: int, made_at: datetime
) -> Message:
    """A payload under its own id: `YYYYMMDD/YYYYMMDDhhmmss-` and 16 hex digits of the digest.

    The same bytes, made at the same time, have the same id.
    """
    digest = sha256(payload).hexdigest()
    return Message(
        id=MessageId(f"{made_at:%Y%m%d/%Y%m%d%H%M%S}-{digest[:16]}"),
        target=target,
        format=format_name,
        payload=payload,
        digest=digest,
        records=records,
        made_at=made_at,
    )


class StoreCursor(NamedTuple):
    """How far a target has come in the job store: all jobs up to a change were dealt with.

    `mark` is the last one of the store by then, and `wanted` a digest of what decides which jobs
    are wanted: in a store without the mark, or with another digest, the cursor is of no use.
    A run that its source had lost by the change `began` is not wanted, but where it is known.
    """

    mark: str
    change: int
    wanted: str
    began: int = 0


class WindowMark(NamedTuple):
    """How far a republish of a window has come: all up to this end time and change is written.

    `mark` is as of `StoreCursor`; in another store, all that ended then are still to come.
    """

    window_progress: str
    ended_at: Epoch
    change: int = 0
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the ledger may forget, and must remember, once everything before it is written."""

    cursor: StoreCursor | None = None
    skipped: tuple[SkippedJob, ...] = ()
    left_quarantine: tuple[JobKey, ...] = ()  # not wanted any more
    window_mark: WindowMark | None = None

    def __add__(self, other: "Progress") -> "Progress":
        """`other` comes later."""
        return Progress(
            cursor=other.cursor or self.cursor,
            skipped=self.skipped + other.skipped,
            left_quarantine=self.left_quarantine + other.left_quarantine,
            window_mark=other.window_mark or self.window_mark,
        )


TOO_LARGE: Final = "too-large"


_LEARNT_FOR: Final = timedelta(days=7)


class LearntLimit(NamedTuple):
    """The largest payload for a service that refused a larger one. `wire` is for target options.

    It is believed for a week: asking again costs one refused message, and a limit that an operator
    raised is found. With other options (another service, another `batch_bytes`), or with a clock
    that went back, the question is open at once.
    """

    payload_bytes: int
    wire: str
    learnt_at: datetime

    def holds(self, wire: str, now: datetime) -> bool:
        return self.wire == wire and timedelta(0) <= now - self.learnt_at < _LEARNT_FOR


class Batch(NamedTuple):
    """Records of one message, and what to write down of the reading once they are prepared."""

    records: Sequence[Rendered]
    progress: Progress


class OutboxRecord(NamedTuple):
    """A record of an outstanding message: enough to cut that in two, set this aside, or give up."""

    row: RowRef
    job_id: JobId
    local_id: str
    ended_at: Epoch
    fingerprint: int
    content_bytes: int
    submit_host: str = ""  # of a count, as sync spells it
    group: int = 0  # place of a summary's row among those of its month, from 1; 0 for other records
    submitted_at: int = 0  # of the run, for its key
    bundle: int = 0  # `group` of the first of the rows that share runs, which go in one message

    @property
    def key(self) -> JobKey:
        return key_of(self.run)

    @property
    def run(self) -> RunKey:
        return run_key(self.submitted_at, self.job_id, self.local_id)

    def set_aside(self, rule: str, reason: str) -> SkippedJob:
        """As quarantine keeps its job."""
        run = self.row, self.job_id, self.local_id, self.ended_at
        return SkippedJob(*run, rule=rule, reason=reason, fingerprint=self.fingerprint)


class MessageRow(NamedTuple):
    """What a record of totals says of a row; `group` is that of its `OutboxRecord`.

    A record may stand for several rows, where its receiver does not tell them apart.
    """

    group: int
    row: RowId
    usage: Usage


class MonthMessage(NamedTuple):
    """A message with rows of whole months."""

    message: Message
    months: tuple[int, ...]
    records: tuple[OutboxRecord, ...]  # its groups, by their names for quarantine
    rows: tuple[MessageRow, ...]


class SyncMessage(NamedTuple):
    """A message of counts; `counts` and `records` are in one order."""

    message: Message
    counts: tuple[tuple[tuple[int, str], int], ...]
    records: tuple[OutboxRecord, ...]
