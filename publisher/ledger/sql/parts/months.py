"""Counts, consents and losses of months, in the publishing database."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from publisher.ledger.answers import HostCounts
from publisher.ledger.sql.parts.opened import LedgerPart
from publisher.ledger.sql.sums import consents, counts
from publisher.ledger.sql.sums.elsewhere import losses
from publisher.model.receiver import Loss
from publisher.model.time import epoch, moment
from publisher.model.totals import AcceptedChange, KeyTotal

_SYNC_STATE = "SELECT last_sync, before_basis FROM target WHERE id = :target"
_ACCEPT = """
INSERT INTO key_change (target, receiver, month, accepted_at, of_records, orphaned, lost_jobs)
VALUES (:target, :receiver, :month, :now, :of_records, :orphaned, :lost_jobs)"""


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


class SqlConsents(LedgerPart):
    """`Consents` of a publishing database."""

    def accepted(self, target: str) -> Sequence[AcceptedChange]:
        with self._database.reading():
            of = self._opened.number(target), self._opened.receiver(target)
            return consents.accepted_changes(self._database, *of)

    def accept(
        self,
        target: str,
        month: int,
        orphaned: Sequence[KeyTotal],
        lost_jobs: int,
        now: datetime,
        *,
        of_records: bool,
    ) -> None:
        number = self._opened.known_number(target)
        texts = [(key.text, key.site, *usage) for key, *usage in orphaned]
        accepted = {"month": month, "lost_jobs": lost_jobs, "now": epoch(now)}
        text = json.dumps(texts, separators=(",", ":"))
        of_rows = {"orphaned": text, "of_records": of_records}
        of = {"target": number, "receiver": self._opened.known_receiver(target)}
        self._opened.write(_ACCEPT, accepted | of | of_rows)

    def confirm_deleted(self, target: str, month: int, now: datetime) -> None:
        of = self._opened.known_number(target), self._opened.known_receiver(target)
        with self._database.atomic():
            consents.confirm_deleted(self._database, *of, month, epoch(now))


class SqlLosses(LedgerPart):
    """`Losses` of a publishing database."""

    def held(self, target: str) -> Sequence[Loss]:
        with self._database.reading():
            return losses.held(self._database, self._opened.receiver(target))

    def deleted(self, target: str, months: Collection[int], now: datetime) -> None:
        receiver = self._opened.known_receiver(target)
        with self._database.atomic():
            for month in months:
                losses.forget(self._database, receiver, month)
                consents.confirm_deleted(self._database, None, receiver, month, epoch(now))
            losses.solve(self._database, receiver, months, epoch(now))
        self._opened.counts_changed()
        self._opened.follow()

    def delivered(self, target: str, months: Collection[int], now: datetime) -> None:
        receiver = self._opened.known_receiver(target)
        with self._database.atomic():
            losses.all_is_sent(self._database, receiver, months)
            losses.solve(self._database, receiver, months, epoch(now))
