"""The targets, their rounds and where they lead, in the publishing database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from publisher.ledger.answers import ClosedMonths, TargetState
from publisher.ledger.sql.parts.locks import compare_with_file
from publisher.ledger.sql.parts.opened import LedgerPart, sound
from publisher.ledger.sql.sums import holds, postings, receivers
from publisher.ledger.sql.sums.elsewhere import closed, shadows
from publisher.model.entry import ReceiverName
from publisher.model.errors import Busy
from publisher.model.job import Epoch
from publisher.model.message import LearntLimit
from publisher.model.receiver import ChangedAddress, MovedMonth, ReceiverSums
from publisher.model.time import epoch, moment

_NAMES = "SELECT name FROM target ORDER BY name"
_TOOK_OVER = "SELECT took_over FROM target WHERE name = :name"
_LIMIT = "SELECT payload_bytes, wire, learnt_at FROM learnt_limit WHERE target = :target"
_STATE = """
SELECT start_rule, start_at, last_round, last_success, last_end, swept, delivered,
       (SELECT CAST(coalesce(sum(records), 0) AS BIGINT) FROM message
        WHERE message.target = target.id AND message.receiver = target.receiver
            AND state < 2 AND state = 0),
       (SELECT CAST(coalesce(sum(records), 0) AS BIGINT) FROM message
        WHERE message.target = target.id AND message.receiver = target.receiver
            AND state < 2 AND state = 1),
       (SELECT count(*) FROM quarantine WHERE quarantine.target = target.id AND hold <> 'dropped'),
       checked_digest
FROM target WHERE name = :name"""
_ENTER_TARGET = """
INSERT INTO target (name, start_rule, start_at, selection_digest, receiver)
VALUES (:name, :rule, :start, :digest, :receiver)
ON CONFLICT (name) DO UPDATE SET
    start_at = CASE WHEN target.start_rule = excluded.start_rule
                    THEN target.start_at ELSE excluded.start_at END,
    swept = CASE WHEN target.selection_digest = excluded.selection_digest
                      AND target.start_rule = excluded.start_rule
                      AND target.receiver = excluded.receiver THEN target.swept END,
    receiver = excluded.receiver,
    start_rule = excluded.start_rule, selection_digest = excluded.selection_digest"""
_END_ROUND = """
UPDATE target SET last_round = :now,
       last_success = CASE WHEN :success THEN :now ELSE last_success END,
       swept = CASE WHEN :swept THEN :now ELSE swept END,
       checked_digest = coalesce(:checked, checked_digest) WHERE id = :target"""
_LEARN_LIMIT = """
INSERT INTO learnt_limit (target, payload_bytes, wire, learnt_at)
VALUES (:target, :bytes, :wire, :at)
ON CONFLICT (target) DO UPDATE SET
    payload_bytes = excluded.payload_bytes, wire = excluded.wire, learnt_at = excluded.learnt_at"""
_TAKE_OVER = "UPDATE target SET took_over = :until WHERE name = :name"


class SqlTargets(LedgerPart):
    """`Targets` of a publishing database."""

    def state(self, target: str) -> TargetState | None:
        row = self._opened.first(_STATE, {"name": target})
        if row is None:
            return None
        of = self._opened.receiver(target), self._opened.known_number(target)
        with self._database.reading(), sound(f"the row of target {target}"):
            return _target_state(target, row, holds.months(self._database, *of))

    def names(self) -> Sequence[str]:
        with self._database.reading():
            return [name for (name,) in self._database.execute(_NAMES)]

    def closed(self, target: str) -> int:
        with self._database.reading():
            return receivers.closed(self._database, self._opened.receiver(target))

    def close(self, target: str, before: int, now: datetime) -> ClosedMonths:
        number, receiver = self._opened.known_number(target), self._opened.known_receiver(target)
        with self._database.reading():
            months = closed.months(self._database, receiver, before)
        summed = 0
        for month in months:
            with self._database.reading():
                why = closed.kept_open_by(self._database, receiver, month)
            if why:
                return ClosedMonths(month, why, summed)
            with self._opened.entering():
                summed += closed.close(self._database, receiver, number, month, epoch(now))
            self._follow()
        return ClosedMonths(before, "", summed)

    def _follow(self) -> None:
        self._opened.counts_changed()
        self._opened.follow()

    def took_over(self, target: str) -> Epoch | None:
        row = self._opened.first(_TOOK_OVER, {"name": target})
        return None if row is None or row[0] is None else Epoch(row[0])

    def begin_round(
        self,
        target: str,
        *,
        start_rule: str,
        start: Epoch | None,
        selection_digest: str,
        receiver: ReceiverName,
    ) -> TargetState:
        with self._opened.entering():
            was = receivers.of_target(self._database, target)
            there = receivers.entered(self._database, target, receiver)
            locked = self._opened.working_on.get(target, there.number)
            if there.number != locked:
                raise Busy(
                    f"target {target}: its receiver was changed by an administrator just now"
                )
            named = {"name": target, "digest": selection_digest}
            entered = {**named, "rule": start_rule, "start": start, "receiver": there.number}
            self._database.execute(_ENTER_TARGET, entered)
            number = self._opened.known_number(target)
            postings.discard(self._database, number)
            moved: Sequence[MovedMonth] = ()
            if was is not None and was.is_shadow and was.number != there.number:
                moved = shadows.move(self._database, self._opened.entry_numbers, number, was, there)
        compare_with_file(self._opened)
        if (state := self.state(target)) is None:  # pragma: no cover - it was made above
            raise AssertionError(target)
        return state._replace(moved=moved)

    def end_round(
        self,
        target: str,
        *,
        success: bool,
        swept: bool,
        checked: str | None,
        now: datetime,
    ) -> None:
        found = {"success": success, "swept": swept, "checked": checked}
        at = {"target": self._opened.known_number(target), "now": epoch(now)}
        self._opened.write(_END_ROUND, {**at, **found})

    def take_over(self, target: str, until: Epoch) -> None:
        self._opened.write(_TAKE_OVER, {"name": target, "until": until})

    def limit(self, target: str) -> LearntLimit | None:
        row = self._opened.first(_LIMIT, {"target": self._opened.number(target)})
        if row is None:
            return None
        learnt_at = datetime.fromtimestamp(row[2], UTC)
        return LearntLimit(payload_bytes=row[0], wire=row[1], learnt_at=learnt_at)

    def learn_limit(self, target: str, limit: LearntLimit) -> None:
        known = {"bytes": limit.payload_bytes, "wire": limit.wire, "at": epoch(limit.learnt_at)}
        self._opened.write(_LEARN_LIMIT, {"target": self._opened.known_number(target), **known})


class SqlReceivers(LedgerPart):
    """`Receivers` of a publishing database."""

    def listed(self) -> Sequence[ReceiverSums]:
        with self._database.reading(), sound("the receivers"):
            return receivers.listed(self._database)

    def changed_address(self, target: str, receiver: ReceiverName) -> ChangedAddress | None:
        with self._database.reading():
            return receivers.changed(self._database, target, receiver)

    def readdress(self, target: str, receiver: ReceiverName) -> None:
        with self._file_moving(receiver.place), self._database.atomic():
            receivers.readdress(self._database, target, receiver)

    @contextmanager
    def _file_moving(self, place: str) -> Iterator[None]:
        """Let the file beside the ledger go with its receiver, which gets a place in this block."""
        if self._opened.guard is None or self._opened.file is None:
            yield
            return
        with self._opened.file.moving(self._opened.guard.file(place).path):
            yield
        self._opened.place = place

    def enter(self, target: str, receiver: ReceiverName) -> None:
        with self._database.atomic():
            receivers.enter_for(self._database, target, receiver)


def _target_state(target: str, row: Sequence[Any], held: tuple[int, ...]) -> TargetState:
    return TargetState(
        target=target,
        start_rule=row[0],
        start=row[1],
        last_round=moment(row[2]),
        last_success=moment(row[3]),
        last_published_end=row[4],
        swept=moment(row[5]),
        delivered=row[6],
        prepared=row[7],
        in_doubt=row[8],
        quarantined=row[9],
        checked_digest=row[10],
        held=held,
    )
