"""The ledger: what changes it, each in one transaction. What only reads it is in `reads.py`."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime

from publisher.ledger.contract import Hold, Patience, TargetState, impatient
from publisher.ledger.generation import Lacking, StateGuard, note_lack, position
from publisher.ledger.sql import messages as rows
from publisher.ledger.sql.outbox import OutboxWriter
from publisher.ledger.sql.sums import consents, counts, earlier, message_rows, postings, receivers
from publisher.ledger.sql.sums.elsewhere import adopted, losses, shadows
from publisher.model.entry import Entry, ReceiverName, RowId
from publisher.model.errors import Busy
from publisher.model.job import Epoch
from publisher.model.message import LearntLimit, MonthMessage, Progress, SyncMessage
from publisher.model.receiver import MovedMonth
from publisher.model.time import epoch
from publisher.model.totals import InheritedMonth, KeyTotal, month_name

log = logging.getLogger("publisher")

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
UPDATE target SET last_round = :now, held = :held,
       last_success = CASE WHEN :success THEN :now ELSE last_success END,
       swept = CASE WHEN :swept THEN :now ELSE swept END,
       checked_digest = coalesce(:checked, checked_digest) WHERE id = :target"""
_ACCEPT_CHANGE = """
INSERT INTO key_change (target, receiver, month, accepted_at, of_records, orphaned, lost_jobs)
VALUES (:target, :receiver, :month, :now, :of_records, :orphaned, :lost_jobs)"""
_FOUND_DATABASE = """
INSERT INTO source_file (target, file, inode, seen_at) VALUES (:target, :file, :inode, :now)
ON CONFLICT (target, file) DO UPDATE SET
    inode = excluded.inode, seen_at = excluded.seen_at, retired_at = NULL, never_sent = '{}'"""
_RETIRE_DATABASE = """
UPDATE source_file SET retired_at = :now, never_sent = :never_sent
WHERE target = :target AND file = :file"""
_FORGET_OPEN_ROWS = "DELETE FROM open_row WHERE target = :target AND file = :file"
_LEARN_LIMIT = """
INSERT INTO learnt_limit (target, payload_bytes, wire, learnt_at)
VALUES (:target, :bytes, :wire, :at)
ON CONFLICT (target) DO UPDATE SET
    payload_bytes = excluded.payload_bytes, wire = excluded.wire, learnt_at = excluded.learnt_at"""
_TAKE_OVER = "UPDATE target SET took_over = :until WHERE name = :name"
_UNDER_WAY = """
SELECT target, id FROM message WHERE receiver = :receiver AND state < 2 ORDER BY id"""
_HOLD = "UPDATE quarantine SET hold = :hold WHERE id = :id AND hold <> :hold"


class SqlLedger(OutboxWriter):
    """`Ledger` in a publishing database. Not for use by several threads at once.

    `guard` compares it with what this host knows of it, before anybody works on a target.
    """

    def working_on(
        self,
        target: str,
        patience: Patience = impatient,
        receiver: ReceiverName | None = None,
        *,
        moves_to: str = "",
    ) -> AbstractContextManager[None]:
        lock = self._holding(target, patience, receiver)
        if self._guard is None or receiver is None:
            return lock
        # Of a ledger from before a move, the file is at the new place, where a round compares it.
        if moves_to and self._guard.has_moved(receiver.place, moves_to):
            return lock
        return self._guarded(self._guard, receiver.place, lock)

    @contextmanager
    def _holding(
        self, target: str, patience: Patience, receiver: ReceiverName | None
    ) -> Iterator[None]:
        with ExitStack() as held:
            if receiver is not None:
                number = self._entered_receiver(target, receiver)
                lock = self._database.receiver_lock(number, receiver.place, target, patience)
                held.enter_context(lock)
                self._receivers[target] = number
                held.callback(self._receivers.pop, target)
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
            self._file, self._place = guard.file(place), place
            try:
                self._compare_with_file()
                yield
            finally:
                self._file = None

    def _compare_with_file(self) -> None:
        """Hold what the ledger may lack, by the file beside it, which then follows the ledger."""
        if self._guard is None or self._file is None:
            return
        if (lacking := self._guard.check(self._database, self._place, self._file)) is not None:
            self._hold(lacking, epoch(self._guard.clock()))
        self._guard.bring_up_to_date(self._database, self._place, self._file)

    def _hold(self, lacking: Lacking, now: int) -> None:
        """Hold months; what is under way is given up, as it may be older than what arrived."""
        there = position(self._database, self._place)
        if there is None:  # pragma: no cover - it was compared just now
            raise AssertionError(self._place)
        with self._database.atomic():
            if lacking.months:
                asked = {"receiver": there.receiver}
                for target, message in self._database.execute(_UNDER_WAY, asked).fetchall():
                    self._take_back(target, message)
                lost = lacking.months, lacking.mark, lacking.last_at, now
                losses.note(self._database, there.receiver, *lost)
            note_lack(self._database, there.receiver, lacking.mark)
        months = ", ".join(map(month_name, sorted(lacking.months))) or "no month"
        log.warning("the ledger %s: held for %s: %s", lacking.why, self._place, months)

    def begin_round(
        self,
        target: str,
        *,
        start_rule: str,
        start: Epoch | None,
        selection_digest: str,
        receiver: ReceiverName,
    ) -> TargetState:
        with self._entering(0):
            was = receivers.of_target(self._database, target)
            there = receivers.entered(self._database, target, receiver)
            if there.number != self._receivers.get(target, there.number):  # which this one locked
                raise Busy(
                    f"target {target}: its receiver was changed by an administrator just now"
                )
            named = {"name": target, "digest": selection_digest}
            entered = {**named, "rule": start_rule, "start": start, "receiver": there.number}
            self._database.execute(_ENTER_TARGET, entered)
            number = self._known_number(target)
            postings.discard(self._database, number)
            moved: Sequence[MovedMonth] = ()
            if was is not None and was.is_shadow and was.number != there.number:
                moved = shadows.move(self._database, self._entry_numbers, number, was, there)
        self._compare_with_file()
        if (state := self.target(target)) is None:  # pragma: no cover - it was made above
            raise AssertionError(target)
        return state._replace(moved=moved)

    def same_receiver(self, target: str, receiver: ReceiverName) -> None:
        with self._file_moving(receiver.place), self._database.atomic():
            receivers.readdress(self._database, target, receiver)

    @contextmanager
    def _file_moving(self, place: str) -> Iterator[None]:
        """Let the file beside the ledger go with its receiver, which gets a place in this block."""
        if self._guard is None or self._file is None:
            yield
            return
        with self._file.moving(self._guard.file(place).path):
            yield
        self._place = place

    def new_receiver(self, target: str, receiver: ReceiverName) -> None:
        with self._database.atomic():
            receivers.enter_for(self._database, target, receiver)

    def found_databases(self, target: str, inodes: Mapping[str, int], now: datetime) -> None:
        at = {"target": self._known_number(target), "now": epoch(now)}
        found = [at | {"file": file, "inode": inode} for file, inode in inodes.items()]
        with self._database.atomic():
            self._database.execute_many(_FOUND_DATABASE, found)

    def retire_database(
        self, target: str, file: str, never_sent: Mapping[int, int | None], now: datetime
    ) -> None:
        retired = {"target": self._known_number(target), "file": file}
        lost = {"now": epoch(now), "never_sent": json.dumps(never_sent)}
        with self._database.atomic():
            self._database.execute(_RETIRE_DATABASE, retired | lost)
            self._database.execute(_FORGET_OPEN_ROWS, retired)

    def rename_database(self, target: str, file: str, name: str) -> None:
        with self._database.atomic():
            rows.rename_database(self._database, self._known_number(target), file, name)

    def note(self, target: str, progress: Progress, policy_digest: str, now: datetime) -> None:
        with self._database.atomic():
            rows.advance(self._database, self._known_number(target), progress, policy_digest, now)

    def enter(self, target: str, entries: Sequence[Entry], settings: str, now: datetime) -> None:
        if not entries:
            return
        number = self._known_number(target)
        with self._entering(0):
            added = number, entries, settings, epoch(now)
            postings.enter(self._database, self._entry_numbers, *added)

    def withdraw(
        self, target: str, *, leaving: Collection[RowId] = (), entering: Collection[RowId] = ()
    ) -> None:
        with self._database.atomic():
            postings.withdraw(self._database, self._known_number(target), leaving, entering)

    def discard(self, target: str) -> None:
        with self._database.atomic():
            postings.discard(self._database, self._known_number(target))

    def seal(self, target: str, messages: Iterable[MonthMessage]) -> None:
        number = self._known_number(target)
        with self._database.reading():
            there = postings.open_posting(self._database, number)
        to_settle = postings.ENTRY_BYTES * there.entries if there is not None else 0
        with self._database.atomic(to_settle=to_settle + 1):
            if there is not None and not there.entries:
                postings.forget_empty(self._database, there.number)
                there = None
            posting = None if there is None else there.number
            receiver = self._known_receiver(target)
            sent: dict[int, int] = {}  # by row, the message that says it
            months: set[int] = set()
            last, last_id, made_at = 0, "", 0
            for one in messages:
                last, of_message = self._enter_message(number, receiver, posting, one, to_settle)
                last_id, made_at = one.message.id, epoch(one.message.made_at)
                sent |= dict.fromkeys(of_message, last)
                months.update(one.months)
                to_settle += len(one.message.payload)
            if there is not None:
                postings.seal(self._database, there, sent)
        if last:
            self._begun(last, last_id, months, made_at)
            self._follow()

    def _enter_message(
        self, target: int, receiver: int, posting: int | None, one: MonthMessage, others: int
    ) -> tuple[int, Sequence[int]]:
        """Write a message of totals down, beside others of so many bytes.

        Return its number and its rows.
        """
        places = {record.group for record in one.records}
        if len(places) < len(one.records) or not places >= {row.group for row in one.rows}:
            raise AssertionError(f"rows of message {one.message.id} are of none of its records")
        self._database.make_room(others + len(one.message.payload))
        columns = rows.columns_of_outbox(one.records)
        to = target, receiver
        number = rows.enter(self._database, *to, one.message, columns, posting=posting)
        message_rows.link(self._database, target, number, one.months)
        return number, message_rows.say(self._database, receiver, number, one.rows)

    def set_before(self, target: str, jobs: Mapping[tuple[int, str], int], basis: str) -> None:
        with self._database.atomic():
            counts.set_before(self._database, self._known_number(target), jobs, basis)

    def forget_totals(self, target: str, months: Collection[int]) -> None:
        with self._database.atomic():
            message_rows.forget_sent(self._database, self._known_receiver(target), months)

    def accept_change(
        self,
        target: str,
        month: int,
        orphaned: Sequence[KeyTotal],
        lost_jobs: int,
        now: datetime,
        *,
        of_records: bool,
    ) -> None:
        number = self._known_number(target)
        texts = [(key.text, key.site, *usage) for key, *usage in orphaned]
        accepted = {"month": month, "lost_jobs": lost_jobs, "now": epoch(now)}
        text = json.dumps(texts, separators=(",", ":"))
        of_rows = {"orphaned": text, "of_records": of_records}
        of = {"target": number, "receiver": self._known_receiver(target)}
        with self._database.atomic():
            self._database.execute(_ACCEPT_CHANGE, accepted | of | of_rows)

    def note_earlier(
        self, target: str, settings: str, months: Mapping[int, int], now: datetime
    ) -> None:
        counted = self._known_number(target), settings, months, epoch(now)
        with self._database.atomic():
            earlier.note(self._database, *counted)

    def forget_earlier(self, target: str, months: Collection[int]) -> None:
        with self._database.atomic():
            earlier.forget(self._database, self._known_number(target), months)

    def confirm_deleted(self, target: str, month: int, now: datetime) -> None:
        of = self._known_number(target), self._known_receiver(target)
        with self._database.atomic():
            consents.confirm_deleted(self._database, *of, month, epoch(now))

    def months_deleted(self, target: str, months: Collection[int], now: datetime) -> None:
        receiver = self._known_receiver(target)
        with self._database.atomic():
            for month in months:
                losses.forget(self._database, receiver, month)
                consents.confirm_deleted(self._database, None, receiver, month, epoch(now))
            losses.solve(self._database, receiver, months, epoch(now))
        self._counts_changed()
        self._follow()

    def months_delivered(self, target: str, months: Collection[int], now: datetime) -> None:
        receiver = self._known_receiver(target)
        with self._database.atomic():
            losses.all_is_sent(self._database, receiver, months)
            losses.solve(self._database, receiver, months, epoch(now))

    def adopt(self, target: str, inherited: InheritedMonth) -> None:
        number, receiver = self._known_number(target), self._known_receiver(target)
        with self._entering(0):
            of = number, receiver
            adopted.adopt(self._database, self._entry_numbers, *of, inherited)
            counts.adopt(self._database, receiver, inherited.hosts)
        self._counts_changed()
        self._follow()

    def take_over(self, target: str, until: Epoch) -> None:
        self._write(_TAKE_OVER, {"name": target, "until": until})

    def prepare_sync(self, target: str, messages: Sequence[SyncMessage]) -> None:
        number, receiver = self._known_number(target), self._known_receiver(target)
        with self._database.atomic(to_settle=sum(len(one.message.payload) for one in messages)):
            for one in messages:
                columns = rows.columns_of_outbox(one.records)
                entered = rows.enter(self._database, number, receiver, one.message, columns)
                counts.record_sending(self._database, receiver, entered, one.counts)

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
    ) -> None:
        found = {"success": success, "swept": swept, "checked": checked}
        at = {"target": self._known_number(target), "now": epoch(now)}
        self._write(_END_ROUND, {**at, **found, "held": " ".join(map(str, held))})

    def release(self, numbers: Iterable[int]) -> int:
        return self._set_hold(numbers, Hold.RELEASED)

    def drop(self, numbers: Iterable[int]) -> int:
        return self._set_hold(numbers, Hold.DROPPED)

    def _set_hold(self, numbers: Iterable[int], hold: Hold) -> int:
        asked = [{"id": number, "hold": hold} for number in numbers]
        with self._database.atomic():
            return sum(self._database.execute(_HOLD, one).rowcount for one in asked)
