"""`receiver`: where targets lead, and what an administrator says of an address that is new.

The ledger asks before it lets a target send to an address that no receiver has. `same` says that
the service moved: its receiver has the new address, and everything that is recorded of it goes
along. `new` says that it is another place, which gets all that the target wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from publisher.ledger.contract import Receivers
from publisher.model.entry import ReceiverName
from publisher.model.errors import UsageError
from publisher.model.receiver import ChangedAddress, ReceiverSums
from publisher.policy.target import Target
from publisher.publishing.round.live import Sending
from publisher.publishing.round.round import patience
from publisher.publishing.site import Site, choose


class ListedReceiver(NamedTuple):
    """A receiver, and the targets that lead there as they are configured now."""

    sums: ReceiverSums
    targets: Sequence[str]


def listed(site: Site) -> tuple[list[ListedReceiver], list[ChangedAddress]]:
    """Return all receivers, and what an administrator is asked. Raises: LedgerError."""
    with closing(site.ledgers.to_read()) as ledger:
        return _listed(site, ledger.receivers), _asked(site, ledger.receivers)


def asked(site: Site) -> list[ChangedAddress]:
    """Return what an administrator has to say before targets send again. Raises: LedgerError."""
    with closing(site.ledgers.to_read()) as ledger:
        return _asked(site, ledger.receivers)


def _asked(site: Site, receivers: Receivers) -> list[ChangedAddress]:
    found = (
        receivers.changed_address(one.name, site.sending.receiver(one)) for one in site.targets
    )
    return [one for one in found if one is not None]


def _listed(site: Site, receivers: Receivers) -> list[ListedReceiver]:
    leading = [(target.name, site.sending.receiver(target).place) for target in site.targets]

    def leading_to(address: str) -> list[str]:
        return [name for name, place in leading if place == address]

    return [ListedReceiver(sums, leading_to(sums.receiver.address)) for sums in receivers.listed()]


def same(site: Site, name: str) -> ListedReceiver:
    """Let the receiver of a target have the target's address; return it.

    Raises: UsageError where nothing is asked, or other targets still lead to the old address;
    Busy, LedgerError.
    """
    (target,) = choose(site.targets, [name])
    with closing(site.ledgers.open()) as ledger:
        question = _question(site.sending, target, ledger.receivers)
        old = ReceiverName(question.receiver.address, kind=question.receiver.kind)
        place = site.sending.receiver(target).place
        with ledger.locks.working_on(name, patience(site.process.wait), old, moves_to=place):
            there = _question(site.sending, target, ledger.receivers).receiver
            stay = [
                one.name
                for one in site.targets
                if site.sending.receiver(one).place == there.address
            ]
            if stay:
                raise UsageError(
                    f"{', '.join(stay)} still {'leads' if len(stay) == 1 else 'lead'} to "
                    f"{there.address}, so that service is where it was: change the address there "
                    "too, or answer with `new`"
                )
            ledger.receivers.readdress(name, site.sending.receiver(target))
        return _at(site, target, ledger.receivers)


def new(site: Site, name: str) -> ListedReceiver:
    """Enter a receiver for a target's address; return it.

    Raises: UsageError where nothing is asked; Busy, LedgerError.
    """
    (target,) = choose(site.targets, [name])
    with closing(site.ledgers.open()) as ledger:
        with ledger.locks.working_on(name, patience(site.process.wait)):
            _question(site.sending, target, ledger.receivers)
            ledger.receivers.enter(name, site.sending.receiver(target))
        return _at(site, target, ledger.receivers)


def _question(sending: Sending, target: Target, receivers: Receivers) -> ChangedAddress:
    question = receivers.changed_address(target.name, sending.receiver(target))
    if question is None:
        raise UsageError(
            f"target {target.name} does not ask which receiver is at its address: it leads to "
            f"{sending.receiver(target).place}; `publisher receiver list` shows all receivers"
        )
    return question


def _at(site: Site, target: Target, receivers: Receivers) -> ListedReceiver:
    address = site.sending.receiver(target).place
    return next(one for one in _listed(site, receivers) if one.sums.receiver.address == address)
