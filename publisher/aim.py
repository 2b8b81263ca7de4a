"""A target, live: what a round works on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from publisher.delivery.base import Transport
from publisher.formats.base import Frame, JobFormat, SummaryFormat
from publisher.judge import Changed
from publisher.model.job import Epoch
from publisher.model.policy import RecordPolicy
from publisher.model.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A target, live: what it wants, how its records look and travel."""

    name: str
    selection: Selection
    start_rule: str
    start: Epoch | None  # if the target is new now; the ledger keeps what it was on first use
    policy: RecordPolicy
    format: JobFormat | SummaryFormat
    transport: Transport
    batch_records: int  # 0: no limit by count
    frame_of: Callable[[str], Frame]  # by name of format: what was written down earlier may be of another one
    changed: Changed  # what becomes of a delivered run whose values changed
    accept_key_change: bool = False  # send months although rows stay behind at the receiver
    selection_digest: str
    policy_digest: str  # of everything that decides how a record looks, the version included
    wire_digest: str  # of everything that decides how messages travel
