"""What the ledger answers: messages, targets, jobs set aside, databases, as values."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from publisher.model.entry import RunKey
from publisher.model.job import Epoch, JobKey, SkippedJob
from publisher.model.message import Message, MessageId, OutboxRecord
from publisher.model.receiver import MovedMonth


class MessageState(StrEnum):
    PREPARED = "prepared"  # by the process that holds the target's lock, to be sent or given up
    IN_DOUBT = "in doubt"  # perhaps stored: the answer was lost, or the process ended before it
    SENT = "sent"  # accepted by the receiver
    REJECTED = "rejected"  # refused for good; its records are in quarantine
    COUNTED = "counted"  # another publisher's: what it is believed to have sent counts


class Hold(StrEnum):
    """Why a quarantined job stays where it is."""

    HELD = "held"
    RELEASED = "released"  # an administrator said: try again
    DROPPED = "dropped"  # an administrator said: never


class Outstanding(NamedTuple):
    """A message without a receipt."""

    number: int
    message: Message
    state: MessageState
    records: Sequence[OutboxRecord]
    narrowing: bool  # while a refused message is halved down to its culprits


class SentMessage(NamedTuple):
    """A message that the receiver took."""

    message: Message
    remote_id: str  # the receiver's of the message
    remote_ids: Mapping[str, str]  # and of its records, by JobID
    at: datetime  # when the receipt came


class ClosedMonths(NamedTuple):
    """The first month (12 x year + month - 1) that stays open at a receiver, and why.

    `why` is '' where all are closed that were asked for. `entries`: how many were summed up.
    """

    before: int
    why: str
    entries: int


class TargetState(NamedTuple):
    """What is known of a target. Counts are records; times are UTC, None before the first."""

    target: str
    start_rule: str
    start: Epoch | None
    checked_digest: str  # of the policy whose payloads were all checked against the schema
    last_round: datetime | None
    last_success: datetime | None
    last_published_end: Epoch | None
    swept: datetime | None
    delivered: int
    prepared: int
    in_doubt: int
    quarantined: int
    held: tuple[int, ...]  # months that the last round held back
    moved: Sequence[MovedMonth] = ()  # from its shadow, by the round that begins now

    @property
    def is_behind(self) -> bool:
        """Whether the last round left something to be sent, so that the next one need not wait."""
        if self.last_success is None or self.prepared or self.in_doubt:
            return True
        return self.last_round is not None and self.last_round > self.last_success


class Quarantined(NamedTuple):
    """A job set aside. `number` names it in `quarantine release|drop`."""

    number: int
    target: str
    key: JobKey
    job: SkippedJob
    hold: Hold
    policy_digest: str
    since: datetime


class KnownDatabase(NamedTuple):
    """An accounting database that rounds of a target have found.

    `never_sent`: how many of its jobs the target wanted and never sent when it was retired, by
    month (12 x year + month - 1); None for a month of which that could not be counted.
    """

    target: str
    file: str
    inode: int
    seen: datetime
    retired: datetime | None  # when an administrator said that it is gone
    never_sent: Mapping[int, int | None]


class Delivery(NamedTuple):
    """One message that carried a run of a job."""

    target: str
    run: RunKey
    local_id: str  # '' where it was published under its JobID
    ended_at: Epoch
    message_id: MessageId
    state: MessageState
    format: str
    records: int
    digest: str
    made_at: datetime
    settled_at: datetime | None
    remote_id: str  # of the message
    row_id: str  # of the job's row at the receiver; '' where it reported none
    reason: str


class HostCounts(NamedTuple):
    """Jobs by (month, submit host)."""

    delivered: Mapping[tuple[int, str], int]  # carried by the target's records
    before: Mapping[tuple[int, str], int]  # delivered by another before us
    reported: Mapping[tuple[int, str], int]  # to the receiver
    last_reported_at: datetime | None
    before_basis: str  # of what `before` was counted from; '' when it has to be counted again
