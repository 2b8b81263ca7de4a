"""Counts and losses of months, and what stays of them, in the publishing database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from publisher.ledger.answers import HostCounts
from publisher.ledger.sql.parts.opened import LedgerPart
from publisher.ledger.sql.sums import counts, left, receivers
from publisher.ledger.sql.sums.elsewhere import losses
from publisher.model.receiver import KnownReceiver, LeftMonth, Loss
from publisher.model.time import epoch, moment

_SYNC_STATE = "SELECT last_sync, before_basis FROM target WHERE id = :target"


class SqlCounts(LedgerPart):
    """`Counts` of a publishing database."""

    def by_host(self, target: str) -> HostCounts:
        number, receiver = self._opened.number(target), self._opened.receiver(target)
        with self._database.reading():
            row = self._database.execute(_SYNC_STATE, {"target": number}).fetchone() or (None, "")
            return HostCounts(
                delivered=counts.delivered(self._database, receiver),
                before=counts.before(self._database, number),
                reported=counts.reported(self._database, receiver),
                last_reported_at=moment(row[0]),
                before_basis=row[1],
            )

    def set_before(self, target: str, jobs: Mapping[tuple[int, str], int], basis: str) -> None:
        number = self._opened.known_number(target)
        with self._database.atomic():
            counts.set_before(self._database, number, jobs, basis)


class SqlLeft(LedgerPart):
    """`Left` of a publishing database."""

    def months(self, target: str) -> Sequence[LeftMonth]:
        with self._database.reading():
            return left.months(self._database, self._opened.receiver(target))

    def elsewhere(self, targets: Collection[str]) -> Sequence[tuple[KnownReceiver, LeftMonth]]:
        led_to = {self._opened.receiver(target) for target in targets}
        with self._database.reading():
            others = [
                one
                for one in receivers.known(self._database)
                if one.number not in led_to and not one.is_shadow
            ]
            return [
                (one, month) for one in others for month in left.months(self._database, one.number)
            ]

    def confirm_deleted(self, target: str, month: int) -> None:
        receiver = self._opened.known_receiver(target)
        with self._database.atomic():
            left.confirm_deleted(self._database, receiver, month)
        self._opened.counts_changed()
        self._opened.follow()


class SqlLosses(LedgerPart):
    """`Losses` of a publishing database."""

    def held(self, target: str) -> Sequence[Loss]:
        with self._database.reading():
            return losses.held(self._database, self._opened.receiver(target))

    def months(self, target: str) -> Collection[int]:
        with self._database.reading():
            return losses.months(self._database, self._opened.receiver(target))

    def deleted(self, target: str, months: Collection[int], now: datetime) -> None:
        receiver = self._opened.known_receiver(target)
        with self._database.atomic():
            for month in months:
                losses.forget(self._database, receiver, month)
                left.confirm_deleted(self._database, receiver, month)
            losses.solve(self._database, receiver, months, epoch(now))
        self._opened.counts_changed()
        self._opened.follow()

    def delivered(self, target: str, months: Collection[int], now: datetime) -> None:
        receiver = self._opened.known_receiver(target)
        with self._database.atomic():
            losses.all_is_sent(self._database, receiver, months)
            losses.solve(self._database, receiver, months, epoch(now))
