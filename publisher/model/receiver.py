"""Receivers, as the ledger knows them: the services and places where what is sent accumulates.

A receiver has a number and a name of its own: its address may change, and targets may be renamed or
meet there. An example: receiver 1, `egi`, of the kind `ams`, at `https://msg.argo.grnet.gr, project
accounting, topic gLite-APEL`. What a shadow records is at a receiver of its own, of the kind
`shadow`, which nobody has.
"""

from datetime import datetime
from typing import NamedTuple

from publisher.model.entry import SHADOW
from publisher.model.text import plural
from publisher.model.totals import month_name


class KnownReceiver(NamedTuple):
    """A receiver of the ledger."""

    number: int
    name: str  # of the target that made it
    address: str
    kind: str  # type of that target, or `SHADOW`

    @property
    def is_shadow(self) -> bool:
        return self.kind == SHADOW


class ReceiverSums(NamedTuple):
    """A receiver with what counts there, what is in doubt, and when messages were accepted."""

    receiver: KnownReceiver
    runs: int
    in_doubt: int  # records of messages without a receipt
    first_delivery: datetime | None
    last_delivery: datetime | None


class ChangedAddress(NamedTuple):
    """A target that has delivered to a receiver, and now has an address that no receiver has."""

    target: str
    receiver: KnownReceiver
    runs: int  # that count there
    address: str

    @property
    def text(self) -> str:
        """Return what is so."""
        number, name, was, _ = self.receiver
        runs = plural(self.runs, "run counts", "runs count")
        return (
            f"it leads to {self.address}, which is no receiver's address, and {runs} at {was} "
            f"(receiver {number}, {name}): nothing is sent"
        )

    @property
    def advice(self) -> str:
        """Return the two answers."""
        return (
            f"`publisher receiver same {self.target}` if that service moved, with all that it has; "
            f"`publisher receiver new {self.target}` if this is another place: everything that is "
            "wanted is sent there"
        )

    @property
    def question(self) -> str:
        """Return what an administrator is asked; until it is answered, the target stops."""
        return f"target {self.target}: {self.text}; {self.advice}"


class MovedMonth(NamedTuple):
    """A month of which what a shadow recorded counts at the receiver of its target now."""

    month: int  # 12 x year + month - 1
    runs: int
    shadow: KnownReceiver
    receiver: KnownReceiver

    @property
    def text(self) -> str:
        runs = plural(self.runs, "run that its shadow", "runs that its shadow")
        return (
            f"{month_name(self.month)}: {runs} recorded (receiver {self.shadow.number}) now count "
            f"at {self.receiver.address} (receiver {self.receiver.number}), as another publisher "
            "sent them; nothing of them is sent again"
        )


def name_of(target: str, taken: frozenset[str]) -> str:
    """Return a name that is free for a receiver that a target makes: egi, egi-2, egi-3."""
    names = [target, *(f"{target}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)
