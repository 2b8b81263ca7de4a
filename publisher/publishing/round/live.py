"""A target, live: what it wants, how its records look and travel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol

from publisher.formats.base import Frame, JobFormat, OnChange, SummaryFormat
from publisher.model.entry import ReceiverName, RowTotal
from publisher.model.job import Epoch
from publisher.model.published import PublishedJob
from publisher.model.time import Window
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Selection, Target
from publisher.transports.base import Credentials, Endpoint, Transport

if TYPE_CHECKING:
    from publisher.ledger.answers import TargetState
    from publisher.ledger.contract import Targets
    from publisher.model.job import JobRecord

log = logging.getLogger("publisher")


def own_rows(rows: Iterable[RowTotal], own: Selection, others: Sequence[Target]) -> list[RowTotal]:
    """Return rows without those of VOs that only other targets of the receiver want."""
    selections = [other.selection(Window()) for other in others]

    def is_own(row: RowTotal) -> bool:
        vo = row.key.fields.named.get("VO", "")
        return own.wants_vo(vo) or not any(other.wants_vo(vo) for other in selections)

    return [row for row in rows if not others or is_own(row)]


class LiveTarget(NamedTuple):
    """A target, live: what it wants, how its records look and travel."""

    name: str
    selection: Selection
    start_rule: str
    start: Epoch | None  # if the target is new now; the ledger keeps what it was on first use
    policy: RecordPolicy
    format: JobFormat | SummaryFormat
    transport: Transport
    batch_records: int  # 0: no limit by count
    single_months: int  # of which the receiver has all job records; 0: it purges none
    # By name of format: what was written down earlier may be of another one.
    frame_of: Callable[[str], Frame]
    changed: OnChange  # what becomes of a delivered run whose values changed
    selection_digest: str
    policy_digest: str  # of everything that decides how a record looks, the version included
    # Digest of what decides which rows jobs count in: what they are read as, and what is said of
    # them, whatever the version.
    settings: str
    wire_digest: str  # of everything that decides how messages travel
    receiver: ReceiverName  # where its rows accumulate; a shadow has one of its own
    # In regular rounds, as `Decider` has it.
    sent_by_jura: Callable[[JobRecord], PublishedJob | None] | None = None
    accept_key_change: bool = False  # send months although rows stay behind at the receiver
    beside: tuple[Target, ...] = ()  # the other targets of the receiver

    def wanted_digest(self, start: Epoch | None) -> str:
        """Return digests of where jobs go, and of what decides which are wanted, and how said."""
        of_target = self.selection_digest, self.settings, self.format.name, self.start_rule
        of_place, of_jobs = (
            blake2b(repr(values).encode(), digest_size=8).hexdigest()
            for values in (self.receiver.place, (*of_target, start))
        )
        return f"{of_place} {of_jobs}"

    def begin(self, targets: Targets) -> TargetState:
        """Enter the target and its receiver in the ledger. Raises: ConfigError, LedgerError."""
        state = targets.begin_round(
            self.name,
            start_rule=self.start_rule,
            start=self.start,
            selection_digest=self.selection_digest,
            receiver=self.receiver,
        )
        for month in state.moved:
            log.warning("target %s: %s", self.name, month.text)
        return state


class Sending(Protocol):
    """How records of targets look and travel. It sends nothing by itself."""

    def live(
        self, target: Target, *, dry_run: bool = False, accept_key_change: bool = False
    ) -> LiveTarget:
        """A target with its transport, not yet connected. Raises: CredentialError."""

    def beside(self, target: Target) -> Sequence[Target]:
        """The other targets of its receiver."""

    def receiver(self, target: Target) -> ReceiverName:
        """Where its rows accumulate, by its present address; a shadow has a receiver of its own."""

    def endpoints(self, target: Target) -> Sequence[Endpoint]:
        """The services that a target talks to. Raises: ConfigError."""

    def transport(self, target: Target) -> Transport:
        """Raises: CredentialError, ConfigError."""

    def selection_digest(self, target: Target) -> str:
        """Of what decides which jobs a target wants."""

    def settings_digest(self, target: Target) -> str:
        """Of what decides under which keys a target's jobs count, wherever they are read."""

    def policy_digest(self, target: Target) -> str:
        """Of everything that decides how a target's records look."""

    def credentials(self) -> Credentials: ...

    def certificate_ends(self) -> datetime | None:
        """When the host certificate runs out; None where that cannot be read."""
