"""Refusals that settle nothing yet: the target may be to blame, or an attempt before was stored.

A message that was refused alone for no clear reason is a *suspect* until something else gets
through: then its record is to blame, and otherwise the target. One of which an earlier attempt may
have been stored is *left in doubt*, whoever is to blame: a refusal proves nothing any more, so
nothing of it is dropped, and its bytes go again with every round. What is in here is outstanding,
and other messages go past it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from publisher.ledger.answers import MessageState, Outstanding
from publisher.model.errors import Later, Rejected
from publisher.model.message import Message, MessageId
from publisher.transports.base import Receipt, Verdict

log = logging.getLogger("publisher")

# Messages that cannot be cut any more, refused for no clear reason, before the target is to blame.
_SUSPECTS: Final = 8
STOP_REQUESTED: Final = Receipt(
    verdict=Verdict.RETRY_LATER,
    reason="stopped on request; the next run continues from here",
    exit_status=Later.exit_status,
)


class RoundStopped(Exception):  # not an error: the round ends here, for the receipt's reason
    """Nothing more can be sent in this round."""

    def __init__(self, receipt: Receipt) -> None:
        self.receipt = receipt
        super().__init__(receipt.reason)


class Refusals:
    """The refused messages of a round that are not settled."""

    def __init__(self) -> None:
        self._suspects: dict[MessageId, tuple[Outstanding, Receipt]] = {}
        self._left_in_doubt: dict[MessageId, Receipt | None] = {}
        # The target took something since it last refused a whole batch for no clear reason.
        self._proven_healthy = False
        # Of a whole message, for what its records are called by.
        self._refusal: Receipt | None = None

    @property
    def passed(self) -> Collection[MessageId]:
        """The outstanding messages that others go past in this round."""
        return self._suspects.keys() | self._left_in_doubt.keys()

    @property
    def has_suspects(self) -> bool:
        return bool(self._suspects)

    @property
    def is_proven_healthy(self) -> bool:
        return self._proven_healthy

    def note_whole(self, receipt: Receipt, *, is_cut: bool) -> None:
        """A whole message was refused, perhaps for the target's sake: nothing proves it healthy."""
        if receipt.refused_by and receipt.attempts:
            self._proven_healthy = False
            self._refusal = receipt
        elif is_cut and not receipt.refused_by:
            self._proven_healthy = False

    def suspect(self, whole: Outstanding, receipt: Receipt) -> bool:
        """Keep a message that cannot be cut; return whether there are many by now."""
        self._suspects[whole.message.id] = whole, receipt
        return len(self._suspects) == _SUSPECTS

    def leave_in_doubt(self, whole: Outstanding, receipt: Receipt, *, is_own: bool) -> None:
        """Keep a message that cannot be cut, and may be stored; `is_own`: of the round's target.

        The reason of another target's is logged here, as it does not end the round.
        """
        if not is_own:
            log.warning("target %s: %s", whole.message.target, receipt.reason)
        self._left_in_doubt[whole.message.id] = receipt if is_own else None

    def clear_suspects(self) -> list[tuple[Outstanding, Receipt]]:
        """Return the suspects: something got through, so it is the records."""
        self._proven_healthy = True
        self._refusal = None
        suspects = list(self._suspects.values())
        self.forget_suspects()
        return suspects

    def forget_suspects(self) -> None:
        self._suspects.clear()

    def conclude(self) -> None:
        """The target is to blame where records are refused for no clear reason, and all of them.

        Raises: RoundStopped when it is the target, or where its refused records stay in doubt.
        """
        if self._suspects:
            raise RoundStopped(self._blame_target())
        for receipt in filter(None, self._left_in_doubt.values()):
            raise RoundStopped(receipt)

    def _blame_target(self) -> Receipt:
        named = [receipt for _, receipt in self._suspects.values() if receipt.refused_by]
        if named:
            names = {name for receipt in named for name in receipt.refused_by}
            whole = self._refusal or named[0]
            refused_by = tuple(sorted(names))
            return whole._replace(verdict=Verdict.STOP_TARGET, refused_by=refused_by)
        _, last = list(self._suspects.values())[-1]
        reason = "every record is refused: the target is at fault, not the records"
        return Receipt(
            verdict=Verdict.STOP_TARGET,
            reason=f"{reason}: {last.reason}",
            exit_status=Rejected.exit_status,
        )


def is_in_doubt(whole: Outstanding, receipt: Receipt) -> bool:
    """Return whether any attempt at a message may have been stored, in this round or before.

    Not so of bytes that this host itself refuses to send: no attempt ever left it.
    """
    is_refused = receipt.verdict is Verdict.REFUSED and not receipt.refused_by
    never_leaves = is_refused and not receipt.attempts
    return not never_leaves and (whole.state is MessageState.IN_DOUBT or receipt.doubt)


def way_out_of_doubt(message: Message) -> str:
    """Return what an administrator can do about a record that is in doubt, and refused since."""
    name, number = message.target, message.id
    return (
        f"; if the receiver has it, `publisher receiver delivered {name} {number}` takes it as "
        f"delivered; otherwise `publisher receiver deleted {name} {number}` has it sent anew"
    )


def unproven(receipt: Receipt, ending: str) -> Receipt:
    """Return the receipt of a refusal that came after a doubt: it ends a round."""
    reason = f"{receipt.reason}; an earlier attempt may have been stored: {ending}"
    return receipt._replace(verdict=Verdict.STOP_TARGET, reason=reason, refused_by=())
