"""The ledger: what changes it, each in one transaction. What only reads it is in `reads.py`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime

from publisher.ledger.contract import (
    Hold,
    MonthMessage,
    Patience,
    SyncMessage,
    TargetState,
    impatient,
)
from publisher.ledger.generation import StateGuard
from publisher.ledger.sql import entries
from publisher.ledger.sql import messages as rows
from publisher.ledger.sql.outbox import OutboxWriter
from publisher.ledger.sql.sums import counts, keys, months
from publisher.ledger.sql.sums.months import forget as forget_months
from publisher.model.entry import ReceiverName
from publisher.model.job import Epoch
from publisher.model.message import (
    REMOVED,
    LearntLimit,
    PlacedRuns,
    Progress,
)
from publisher.model.time import epoch
from publisher.model.totals import BY_JURA, InheritedMonth, KeyTotal, SummaryGroup

_ENTER_TARGET = """
INSERT INTO target (name, start_rule, start_at, selection_digest, leads_to, receiver)
VALUES (:name, :rule, :start, :digest, :leads_to, :receiver)
ON CONFLICT (name) DO UPDATE SET
    start_at = CASE WHEN target.start_rule = excluded.start_rule
                    THEN target.start_at ELSE excluded.start_at END,
    swept = CASE WHEN target.selection_digest = excluded.selection_digest
                      AND target.start_rule = excluded.start_rule THEN target.swept END,
    leads_to = CASE WHEN target.leads_to = '' THEN excluded.leads_to ELSE target.leads_to END,
    receiver = excluded.receiver,
    start_rule = excluded.start_rule, selection_digest = excluded.selection_digest"""
_END_ROUND = """
UPDATE target SET last_round = :now, held = :held,
       last_success = CASE WHEN :success THEN :now ELSE last_success END,
       swept = CASE WHEN :swept THEN :now ELSE swept END,
       leads_to = CASE WHEN :success THEN :leads_to ELSE leads_to END,
       checked_digest = coalesce(:checked, checked_digest) WHERE id = :target"""
_ACCEPT_CHANGE = """
INSERT INTO key_change (target, month, accepted_at, stale, lost_jobs)
VALUES (:target, :month, :now, :stale, :lost_jobs)"""
_FOUND_DATABASE = """
INSERT INTO source_file (target, file, inode, seen_at) VALUES (:target, :file, :inode, :now)
ON CONFLICT (target, file) DO UPDATE SET
    inode = excluded.inode, seen_at = excluded.seen_at, retired_at = NULL"""
_RETIRE_DATABASE = """
UPDATE source_file SET retired_at = :now WHERE target = :target AND file = :file"""
_FORGET_OPEN_ROWS = "DELETE FROM open_row WHERE target = :target AND file = :file"
_LEARN_LIMIT = """
INSERT INTO learnt_limit (target, payload_bytes, wire, learnt_at)
VALUES (:target, :bytes, :wire, :at)
ON CONFLICT (target) DO UPDATE SET
    payload_bytes = excluded.payload_bytes, wire = excluded.wire, learnt_at = excluded.learnt_at"""
_TAKE_OVER = "UPDATE target SET took_over = :until WHERE name = :name"
_HOLD = "UPDATE quarantine SET hold = :hold WHERE id = :id AND hold <> :hold"


class SqlLedger(OutboxWriter):
    """`Ledger` in a publishing database. Not for use by several threads at once.

    `guard` compares it with what this host knows of it, before anybody works on a target.
    """

    def working_on(
        self, target: str, patience: Patience = impatient, receiver: ReceiverName | None = None
    ) -> AbstractContextManager[None]:
        self._forget_keys()  # whoever held the lock before may have changed them
        lock = super().working_on(target, patience, receiver)
        return lock if self._guard is None else self._guarded(self._guard, target, lock)

    @contextmanager
    def _guarded(
        self, guard: StateGuard, target: str, lock: AbstractContextManager[None]
    ) -> Iterator[None]:
        with lock, closing(guard.file(target)) as file:
            guard.check(self._database, target, file)
            self._files[target] = file
            try:
                yield
            finally:
                del self._files[target]

    def begin_round(
        self,
        target: str,
        *,
        start_rule: str,
        start: Epoch | None,
        selection_digest: str,
        receiver: ReceiverName,
        leads_to: str = "",
    ) -> TargetState:
        with self._database.atomic():
            place = entries.receiver(self._database, receiver)
            named = {"name": target, "digest": selection_digest, "leads_to": leads_to}
            entered = {**named, "rule": start_rule, "start": start, "receiver": place}
            self._database.execute(_ENTER_TARGET, entered)
        if self._guard is not None and target in self._files:
            self._guard.check(self._database, target, self._files[target])
        self._delivered.begin_round(self._known_number(target))
        if (state := self.target(target)) is None:  # pragma: no cover - it was made above
            raise AssertionError(target)
        return state

    def found_databases(self, target: str, inodes: Mapping[str, int], now: datetime) -> None:
        at = {"target": self._known_number(target), "now": epoch(now)}
        found = [at | {"file": file, "inode": inode} for file, inode in inodes.items()]
        with self._database.atomic():
            self._database.execute_many(_FOUND_DATABASE, found)

    def retire_database(self, target: str, file: str, now: datetime) -> None:
        retired = {"target": self._known_number(target), "file": file}
        with self._database.atomic():
            self._database.execute(_RETIRE_DATABASE, retired | {"now": epoch(now)})
            self._database.execute(_FORGET_OPEN_ROWS, retired)

    def rename_database(self, target: str, file: str, name: str) -> None:
        with self._database.atomic():
            rows.rename_database(self._database, self._known_number(target), file, name)

    def note(self, target: str, progress: Progress, policy_digest: str, now: datetime) -> None:
        with self._database.atomic():
            rows.advance(self._database, self._known_number(target), progress, policy_digest, now)

    def count(
        self,
        target: str,
        runs: PlacedRuns,
        contents: Mapping[int, Sequence[SummaryGroup]],
        *,
        dirty: Mapping[int, int],
        clean: Collection[int],
        by_settings: Collection[int],
        progress: Progress,
        basis: str,
        policy_digest: str,
        now: datetime,
    ) -> None:
        number = self._known_number(target)
        with self._database.atomic():
            months.count(self._database, number, contents, dirty, clean, by_settings, basis)
            rows.advance(self._database, number, progress, policy_digest, now)
            known = zip(runs.keys, runs.fingerprints, strict=True)
            left = (key for key, values in known if values != REMOVED)
            rows.leave_quarantine(self._database, number, left)
            if runs:
                message = rows.enter_counted(self._database, number, len(runs), now)
                self._delivered.add(number, message, runs)
                counts.look_before_again(self._database, number, [Epoch(min(runs.ended_at))])

    def prepare_months(self, target: str, messages: Sequence[MonthMessage]) -> None:
        number = self._known_number(target)
        whole = {month for one in messages for month in one.months}
        with self._database.atomic(to_settle=sum(len(one.message.payload) for one in messages)):
            for month in whole:
                months.send(self._database, number, month)
            for one in messages:
                columns = rows.columns_of_outbox(one.records)
                entered = rows.enter(self._database, number, one.message, columns)
                months.link(self._database, number, entered, one.months)

    def set_before(self, target: str, jobs: Mapping[tuple[int, str], int], basis: str) -> None:
        with self._database.atomic():
            counts.set_before(self._database, self._known_number(target), jobs, basis)

    def set_singles(
        self,
        target: str,
        months: Mapping[int, Sequence[KeyTotal]],
        hosts: Mapping[tuple[int, str], int],
        policy_digest: str,
    ) -> None:
        number = self._known_number(target)
        with self._database.atomic():
            self._replace_keys(number, months, policy_digest)
            counts.replace(self._database, number, months, hosts)
            forget_months(self._database, number, months)

    def accept_change(
        self, target: str, month: int, orphaned: Sequence[KeyTotal], lost_jobs: int, now: datetime
    ) -> None:
        number = self._known_number(target)
        texts = [(total.key.text, total.jobs, total.wall_s, total.cpu_s) for total in orphaned]
        accepted = {"target": number, "month": month, "lost_jobs": lost_jobs, "now": epoch(now)}
        text = json.dumps(texts, separators=(",", ":"))
        with self._database.atomic():
            self._forget_keys()
            keys.forget(self._database, number, month, orphaned)
            months.emptied(self._database, number, month)
            self._database.execute(_ACCEPT_CHANGE, accepted | {"stale": text})

    def adopt(self, target: str, inherited: InheritedMonth) -> None:
        number = self._known_number(target)
        with self._database.atomic():
            if inherited.groups:
                months.adopt(self._database, number, inherited)
            self._replace_keys(number, {inherited.month: inherited.singles}, BY_JURA)
            counts.adopt(self._database, number, inherited.hosts)

    def take_over(self, target: str, until: Epoch) -> None:
        self._write(_TAKE_OVER, {"name": target, "until": until})

    def prepare_sync(self, target: str, messages: Sequence[SyncMessage]) -> None:
        number = self._known_number(target)
        with self._database.atomic(to_settle=sum(len(one.message.payload) for one in messages)):
            for one in messages:
                columns = rows.columns_of_outbox(one.records)
                entered = rows.enter(self._database, number, one.message, columns)
                counts.record_sending(self._database, number, entered, one.counts)

    def learn_limit(self, target: str, limit: LearntLimit) -> None:
        known = {"bytes": limit.payload_bytes, "wire": limit.wire, "at": epoch(limit.learnt_at)}
        self._write(_LEARN_LIMIT, {"target": self._known_number(target), **known})

    def finish_window(self, target: str, name: str) -> None:
        self._write(rows.FINISH_WINDOW, {"target": self._known_number(target), "name": name})

    def end_round(
        self,
        target: str,
        *,
        success: bool,
        swept: bool,
        checked: str | None,
        now: datetime,
        held: Sequence[int] = (),
        leads_to: str = "",
    ) -> None:
        found = {"success": success, "swept": swept, "checked": checked, "leads_to": leads_to}
        at = {"target": self._known_number(target), "now": epoch(now)}
        self._write(_END_ROUND, {**at, **found, "held": " ".join(map(str, held))})

    def release(self, numbers: Iterable[int]) -> int:
        return self._hold(numbers, Hold.RELEASED)

    def drop(self, numbers: Iterable[int]) -> int:
        return self._hold(numbers, Hold.DROPPED)

    def _hold(self, numbers: Iterable[int], hold: Hold) -> int:
        asked = [{"id": number, "hold": hold} for number in numbers]
        with self._database.atomic():
            return sum(self._database.execute(_HOLD, one).rowcount for one in asked)

    def _renumbered(self, target: int, database: str) -> None:
        if not self._delivered.is_in_round(target):  # who only looks changes nothing
            super()._renumbered(target, database)
            return
        with self._database.atomic():
            self._delivered.renumber(target, database)
