"""What stays at receivers until their teams delete it, as people read it.

Rows of totals that nothing counts in any more, rows that the receiver made of single records, and
single records under an earlier key. An administrator agreed to it before, and confirms when it is
done; until then `sync --check` finds a difference, also where no target leads to the receiver any
more. A row to which a run comes back is not listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime
from typing import NamedTuple

from publisher.ledger.contract import Ledger, Ledgers, Left
from publisher.model.entry import ReceiverName
from publisher.model.errors import UsageError
from publisher.model.receiver import KnownReceiver, LeftMonth, LeftRecord
from publisher.model.totals import KeyTotal
from publisher.policy.target import Target
from publisher.publishing.plan.rows import rows_for_people
from publisher.publishing.sync.counts import first_month


class LeftBehind(NamedTuple):
    """What stays of a month: rows of totals, rows made of single records, and such records.

    `receiver`: its number in the ledger.
    """

    receiver: int
    month: int
    totals: tuple[KeyTotal, ...]
    sums: tuple[KeyTotal, ...]
    records: tuple[LeftRecord, ...]

    @property
    def rows(self) -> tuple[KeyTotal, ...]:
        """All rows."""
        return *self.totals, *self.sums

    @property
    def number(self) -> int:
        """How many rows and records there are."""
        return len(self.rows) + len(self.records)


def left_at(left: Left, targets: Iterable[str]) -> list[tuple[str, LeftBehind]]:
    """Return what stays at the receivers of targets, under the name of the first that leads there.

    Raises: LedgerError.
    """
    found, seen = [], set[tuple[int, int]]()
    for target in targets:
        months = [one for one in left.months(target) if (one.receiver, one.month) not in seen]
        seen |= {(one.receiver, one.month) for one in months}
        found += [(target, _behind(one)) for one in months]
    return found


def _behind(one: LeftMonth) -> LeftBehind:
    of_totals = [row for row in one.rows if row.format]
    totals = tuple(total for row in of_totals for total in rows_for_people([row], row.format))
    sums = rows_for_people(row for row in one.rows if not row.format)
    return LeftBehind(one.receiver, one.month, totals, sums, one.records)


def left_behind(
    ledgers: Ledgers, targets: Sequence[Target], now: datetime, *, months: int | None
) -> list[tuple[str, LeftBehind]]:
    """Return what stays of the last months (None: of all). Raises: LedgerError."""
    first = first_month(now, months)
    with closing(ledgers.to_read()) as ledger:
        found = left_at(ledger.left, [target.name for target in targets])
    return [(target, one) for target, one in found if one.month >= first]


def left_elsewhere(
    ledgers: Ledgers, targets: Sequence[Target], now: datetime, *, months: int | None
) -> list[tuple[KnownReceiver, LeftBehind]]:
    """Return what stays of the last months at receivers to which none of the targets leads.

    `months` is None for all. Raises: LedgerError.
    """
    first = first_month(now, months)
    with closing(ledgers.to_read()) as ledger:
        found = ledger.left.elsewhere([target.name for target in targets])
    return [(receiver, _behind(one)) for receiver, one in found if one.month >= first]


def confirm_deleted(
    ledgers: Ledgers, targets: Sequence[Target], month: int
) -> list[tuple[str, int]]:
    """Let nothing count any more that stayed of a month: it was deleted there.

    Return how many rows and records that are, by target. Raises: LedgerError, Busy.
    """
    names = [target.name for target in targets]
    found = dict.fromkeys(names, 0)
    with closing(ledgers.open()) as ledger:
        known = _receivers(ledger)
        for name, one in left_at(ledger.left, names):
            if one.month == month:
                found[name] = one.number
                with ledger.locks.working_on(name, receiver=_place(known[one.receiver])):
                    ledger.left.confirm_deleted(name, month)
    return list(found.items())


def confirm_deleted_at(ledgers: Ledgers, number: int, month: int) -> list[tuple[str, int]]:
    """Let nothing count any more that stayed of a month at the receiver with a number.

    Return its name, and how many rows and records that are. Raises: UsageError for an unknown
    number; LedgerError, Busy.
    """
    with closing(ledgers.open()) as ledger:
        known = _receivers(ledger)
        if number not in known:
            raise UsageError(f"there is no receiver {number}; `publisher receiver list` shows all")
        name, place = known[number].name, _place(known[number])
        with ledger.locks.working_on(name, receiver=place):  # which its name leads to until then
            months = [one for _, one in left_at(ledger.left, [name]) if one.month == month]
            ledger.left.confirm_deleted(name, month)
    return [(name, sum(one.number for one in months))]


def _receivers(ledger: Ledger) -> dict[int, KnownReceiver]:
    return {one.receiver.number: one.receiver for one in ledger.receivers.listed()}


def _place(receiver: KnownReceiver) -> ReceiverName:
    return ReceiverName(receiver.address, kind=receiver.kind)
