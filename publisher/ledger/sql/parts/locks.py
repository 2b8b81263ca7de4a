"""Who works on a ledger, and whether it is whole, and the one that this host knows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime

from publisher.ledger.checks import damaged_in_sample, disagreements
from publisher.ledger.contract import Patience, impatient
from publisher.ledger.generation import Lacking, StateGuard, note_lack, position
from publisher.ledger.sql.parts.opened import LedgerPart, Opened
from publisher.ledger.sql.parts.outbox import take_back
from publisher.ledger.sql.sums import receivers
from publisher.ledger.sql.sums.elsewhere import losses
from publisher.model.entry import ReceiverName
from publisher.model.time import epoch
from publisher.model.totals import month_name

log = logging.getLogger("publisher")

_UNDER_WAY = "SELECT id FROM message WHERE receiver = :receiver AND state < 2 ORDER BY id"


class SqlLocks(LedgerPart):
    """`Locks` of a publishing database."""

    def working_on(
        self,
        target: str,
        patience: Patience = impatient,
        receiver: ReceiverName | None = None,
        *,
        moves_to: str = "",
    ) -> AbstractContextManager[None]:
        lock, guard = self._holding(target, patience, receiver), self._opened.guard
        if guard is None or receiver is None:
            return lock
        # Of a ledger from before a move, the file is at the new place, where a round compares it.
        if moves_to and guard.has_moved(receiver.place, moves_to):
            return lock
        return self._guarded(guard, receiver.place, lock)

    @contextmanager
    def _holding(
        self, target: str, patience: Patience, receiver: ReceiverName | None
    ) -> Iterator[None]:
        with ExitStack() as held:
            if receiver is not None:
                number = self._entered_receiver(target, receiver)
                lock = self._database.receiver_lock(number, receiver.place, target, patience)
                held.enter_context(lock)
                self._opened.working_on[target] = number
                held.callback(self._opened.working_on.pop, target)
            held.enter_context(self._database.target_lock(target, patience))
            yield

    def _entered_receiver(self, target: str, receiver: ReceiverName) -> int:
        with self._database.reading():
            there = receivers.at(self._database, receiver.place)
        if there is not None:
            return there.number
        with self._database.atomic():
            return receivers.entered(self._database, target, receiver).number

    @contextmanager
    def _guarded(
        self, guard: StateGuard, place: str, lock: AbstractContextManager[None]
    ) -> Iterator[None]:
        with lock:
            self._opened.file, self._opened.place = guard.file(place), place
            try:
                compare_with_file(self._opened)
                yield
            finally:
                self._opened.file = None

    def close(self) -> None:
        self._database.close()


class SqlCondition(LedgerPart):
    """`Condition` of a publishing database."""

    def damage(self, on: datetime | None = None) -> Sequence[str]:
        if on is None:
            return [one.what for one in disagreements(self._database, quick=True)]
        return [one.what for one in damaged_in_sample(self._database, on)]

    def trouble(self, place: str) -> str:
        guard = self._opened.guard
        return "" if guard is None else guard.trouble(self._database, place)


def compare_with_file(opened: Opened) -> None:
    """Hold what the ledger may lack, by the file beside it, which then follows the ledger."""
    if opened.guard is None or opened.file is None:
        return
    at = opened.database, opened.place, opened.file
    if (lacking := opened.guard.check(*at)) is not None:
        _hold(opened, lacking, epoch(opened.guard.clock()))
    opened.guard.bring_up_to_date(*at)


def _hold(opened: Opened, lacking: Lacking, now: int) -> None:
    """Hold months; what is under way is given up, as it may be older than what arrived."""
    database, there = opened.database, position(opened.database, opened.place)
    if there is None:  # pragma: no cover - it was compared just now
        raise AssertionError(opened.place)
    with database.atomic():
        if lacking.months:
            asked = {"receiver": there.receiver}
            for (message,) in database.execute(_UNDER_WAY, asked).fetchall():
                take_back(database, message)
            lost = lacking.months, lacking.mark, lacking.last_at, now
            losses.note(database, there.receiver, *lost)
        note_lack(database, there.receiver, lacking.mark, lacking.closed)
    months = ", ".join(map(month_name, sorted(lacking.months))) or "no month"
    log.warning("the ledger %s: held for %s: %s", lacking.why, opened.place, months)
