"""Messages: a batch of rendered records under a stable id."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Final, NewType

from publisher.model.job import Epoch, JobKey, JobRecord
from publisher.model.per_job import per_job
from publisher.model.summary_keys import SummaryKey

MessageId = NewType("MessageId", str)
# What AMS stores without harm as an attribute value (ams facts, section 5).
MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9./_-]+")


LEFT_OUT: Final = 0
"""The fingerprint of a run that was counted and left its month, because nothing is made of its row now. No values have it."""


@per_job(frozen=True, slots=True)
class Entry:
    """One delivered run in the ledger: its key, the end time that was sent, and the fingerprint of its values."""

    key: JobKey
    ended_at: Epoch
    fingerprint: int


# The end time and the fingerprint of an `Entry`. A tuple, because one is made for every job, where that is all that is made.
Values = tuple[Epoch, int]


@per_job(frozen=True, slots=True)
class Rendered:
    """One record, rendered, with the job it came from."""

    job: JobRecord
    content: bytes
    entry: Entry
    first_time: bool  # never delivered to this target before
    submit_host: str = ""  # as sync counts spell it
    summary_key: SummaryKey | None = None  # under which the receiver adds it up, where it does
    arex_default: bool = False  # with the benchmark that A-REX itself writes where the site configured none


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is handed over: the payload before signing. The same bytes and id whenever it is sent again."""

    id: MessageId
    target: str
    format: str
    payload: bytes
    records: int
    made_at: datetime
    _digest: str = field(init=False, default="", repr=False, compare=False)  # once worked out, 0.4 ms for 700 kB

    @property
    def digest(self) -> str:
        """SHA-256 of the payload, hex."""
        return self._digest or sha256(self.payload).hexdigest()


def message_of(payload: bytes, target: str, format_name: str, records: int, made_at: datetime) -> Message:
    """A payload under its own id, with its digest worked out."""
    digest = sha256(payload).hexdigest()
    message = Message(
        id=_id_of(made_at, digest),
        target=target,
        format=format_name,
        payload=payload,
        records=records,
        made_at=made_at,
    )
    object.__setattr__(message, "_digest", digest)
    return message


def message_id(made_at: datetime, payload: bytes) -> MessageId:
    """`YYYYMMDD/YYYYMMDDhhmmss-` and 16 hex digits of the payload's digest: unique, and the same for the same bytes."""
    return _id_of(made_at, sha256(payload).hexdigest())


def _id_of(made_at: datetime, digest: str) -> MessageId:
    return MessageId(f"{made_at:%Y%m%d/%Y%m%d%H%M%S}-{digest[:16]}")
