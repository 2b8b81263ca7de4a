"""`receiver delivered` and `deleted` of messages in doubt that the receiver refuses ever since.

A message may have been stored though its answer was lost. If the same bytes are refused later, that
proves nothing, so they go again with every round, and others go past. Only a person can tell, who
looks at the receiver:

    the record is there      ->  `receiver delivered`: it counts, and is not sent again
    the record is not there  ->  `receiver deleted`: its job goes out as if it were new

Messages of totals and of counts are not ended like that: what is sent later replaces them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from publisher.formats import JOB_FORMATS
from publisher.ledger.answers import MessageState, Outstanding
from publisher.ledger.contract import Outbox
from publisher.model.errors import UsageError
from publisher.model.message import MessageId
from publisher.publishing.round.round import patience
from publisher.publishing.site import Site, choose

# The next round decides on what is set aside under this, as it is no digest of any policy.
_AGAIN = ""


def end_doubt(site: Site, name: str, asked: Sequence[str], *, delivered: bool) -> list[Outstanding]:
    """Settle messages in doubt as accepted, or as refused; return them as they were.

    Raises: UsageError where one is not in doubt, and then settles none; Busy, LedgerError.
    """
    (target,) = choose(site.targets, [name])
    receiver = site.sending.receiver(target)
    with (
        closing(site.ledgers.open()) as ledger,
        ledger.locks.working_on(name, patience(site.process.wait), receiver),
    ):
        ledger.outbox.leave_in_doubt(name)
        found = [_in_doubt(ledger.outbox, name, MessageId(one)) for one in dict.fromkeys(asked)]
        for one in found:
            now = site.process.clock()
            if delivered:
                ledger.outbox.sent(one.message, remote_id="", remote_ids={}, now=now)
            else:
                why = "an administrator has seen that the receiver does not have it"
                ledger.outbox.refuse(one, "refused-by-receiver", why, _AGAIN, now)
        return found


def _in_doubt(outbox: Outbox, target: str, asked: MessageId) -> Outstanding:
    every = list(_outstanding(outbox, target))
    found = next((one for one in every if one.message.id == asked), None)
    if found is None:
        there = ", ".join(one.message.id for one in every) or "none"
        raise UsageError(f"message {asked} is not in doubt at the receiver of {target}: {there} is")
    if found.message.format not in JOB_FORMATS:
        raise UsageError(
            f"message {asked} is no message of single records: it goes again until it is accepted"
        )
    return found


def _outstanding(outbox: Outbox, target: str) -> Iterator[Outstanding]:
    """Yield the messages in doubt at the receiver of a target, in the order of its queue."""
    passed: set[MessageId] = set()
    while (one := outbox.outstanding(target, passed)) is not None:
        passed.add(one.message.id)
        if one.state is MessageState.IN_DOUBT:
            yield one
