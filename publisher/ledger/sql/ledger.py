"""The ledger: what changes it, each in one transaction. What only reads it is in `reads.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime

from publisher.ledger.contract import (
    Hold,
    MonthMessage,
    OutboxRecord,
    Outstanding,
    SentMessage,
    SyncMessage,
    TargetState,
    impatient,
)
from publisher.ledger.generation import GenerationFile, StateGuard
from publisher.ledger.sql import counts, entries, keys, months
from publisher.ledger.sql import messages as rows
from publisher.ledger.sql.database import Database, Parameters
from publisher.ledger.sql.delivered import pages
from publisher.ledger.sql.months import forget as forget_months
from publisher.ledger.sql.reads import LedgerReader
from publisher.model.entry import ReceiverName
from publisher.model.job import Epoch, JobKey
from publisher.model.message import (
    REMOVED,
    LearntLimit,
    Message,
    MessageId,
    PlacedRuns,
    Progress,
    RecordColumns,
    WindowMark,
)
from publisher.model.policy import BY_JURA
from publisher.model.time import epoch
from publisher.model.totals import InheritedMonth, KeyTotal, SummaryGroup, month_number

_DOUBT = "SELECT state, reason FROM message WHERE id = :id"
_SET_DOUBT = "UPDATE message SET state = :state, reason = :reason WHERE id = :id"
_REMEMBERED_KEYS = 10_000  # 100 bytes each; of a month that is over none is met again
_REJECTED = 3  # a number of `message.state`, as schema.py lists them
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
_WITHOUT_POSTING = "UPDATE message SET posting = NULL WHERE id = :message"
_RECEIVER = "SELECT receiver FROM target WHERE id = :target"
_PREPARED = """
SELECT id, message_id FROM message WHERE target = :target AND state < 2 AND state = 0 ORDER BY id"""
_LEAVE_IN_DOUBT = """
UPDATE message SET state = 1, reason = 'the process that sent it ended before the answer came'
WHERE target = :target AND state < 2 AND state = 0"""
_UNSETTLED = """
SELECT id FROM message WHERE target = :target AND state < 2 AND message_id = :message_id"""
_DELIVERED = """
UPDATE target SET delivered = delivered + :records,
    last_end = CASE WHEN last_end > :last_end THEN last_end ELSE :last_end END
WHERE id = :target"""
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
_SYNCED = "UPDATE target SET last_sync = :now WHERE id = :id"
_IN_DOUBT = """
UPDATE message SET state = 1, reason = :reason
WHERE target = :target AND message_id = :id AND state < 2"""
_PLACE = "SELECT place FROM outbox WHERE message = :message"
_NEXT_PLACE = "SELECT coalesce(min(place), :place + 1) FROM outbox WHERE place > :place"
_HOLD = "UPDATE quarantine SET hold = :hold WHERE id = :id AND hold <> :hold"


class SqlLedger(LedgerReader):
    """`Ledger` in a publishing database. Not for use by several threads at once.

    `guard` compares it with what this host knows of it, before anybody works on a target.
    """

    def __init__(self, database: Database, guard: StateGuard | None = None) -> None:
        super().__init__(database, guard)
        self._files: dict[str, GenerationFile] = {}  # of the targets that this one works on
        # Digests of keys that were written for a target under a policy, under its lock (hot path).
        self._written_keys: tuple[int, str, set[bytes]] = (0, "", set())
        self._entry_numbers = entries.Numbers()

    def working_on(
        self, target: str, patience: Callable[[], bool] = impatient
    ) -> AbstractContextManager[None]:
        self._forget_keys()  # whoever held the lock before may have changed them
        lock = super().working_on(target, patience)
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

    def prepare(
        self,
        message: Message,
        records: RecordColumns,
        progress: Progress,
        policy_digest: str,
        before: SentMessage | None = None,
    ) -> None:
        summary = rows.summary_of(records)
        target = self._known_number(message.target)
        none_left = False
        number_before = None if before is None else self._unsettled(target, before.message)
        with self._entering(len(message.payload)):
            if before is not None and number_before is not None:
                none_left = self._settle(target, number_before, before)
            posting = self._post(target, records, policy_digest, message.made_at)
            columns = rows.columns_of(records)
            number = rows.enter(self._database, target, message, columns, posting=posting)
            self._delivered.add(target, number, PlacedRuns.of(records))
            rows.advance(self._database, target, progress, policy_digest, message.made_at)
            there = self._keys_of(target, policy_digest)
            added = keys.add(self._database, target, records, policy_digest, there)
            ended = [ended_at for ended_at, _ in summary.first]
            counts.look_before_again(self._database, target, ended)
            # Before it ends: whatever is raised afterwards, this can be taken away again.
            others = () if none_left else self._additions.get(target, ())
            self._additions[target] = [*others, added]
        if before is not None and number_before is not None:
            self._settled(number_before, before, (number, message.id))
        elif message.target in self._files:
            self._files[message.target].begun(number, message.id)
        self._on_its_way = number, message.id, summary
        self._keys_of(target, policy_digest).update(added.written)

    @contextmanager
    def _entering(self, to_settle: int) -> Iterator[None]:
        """Enter something in one transaction; without it no number of it is known."""
        try:
            with self._database.atomic(to_settle=to_settle):
                yield
        except BaseException:
            self._entry_numbers.forget()
            raise

    def _post(self, target: int, records: RecordColumns, settings: str, made_at: datetime) -> int:
        """Enter what the records of a message count for."""
        (receiver,) = self._database.execute(_RECEIVER, {"target": target}).fetchone()
        posting = entries.Posting(receiver, target, settings, epoch(made_at))
        return entries.prepare(self._database, self._entry_numbers, posting, records.entries)

    def _keys_of(self, target: int, policy_digest: str) -> set[bytes]:
        *of, written = self._written_keys
        if of != [target, policy_digest] or len(written) > _REMEMBERED_KEYS:
            self._written_keys = (target, policy_digest, set())
        return self._written_keys[2]

    def _forget_keys(self) -> None:
        self._written_keys = (0, "", set())

    def _replace_keys(
        self, target: int, months: Mapping[int, Iterable[KeyTotal]], policy_digest: str
    ) -> None:
        self._forget_keys()
        keys.replace(self._database, target, months, policy_digest)

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

    def sent(
        self, message: Message, *, remote_id: str, remote_ids: Mapping[str, str], now: datetime
    ) -> None:
        target = self._known_number(message.target)
        sent = SentMessage(message, remote_id, remote_ids, now)
        if (number := self._unsettled(target, message)) is None:
            return
        with self._database.atomic():
            none_left = self._settle(target, number, sent)
        if none_left:
            self._additions.pop(target, None)
        self._settled(number, sent)

    def _unsettled(self, target: int, message: Message) -> int | None:
        """The number of a message; None where it is settled already."""
        found = self._first(_UNSETTLED, {"target": target, "message_id": message.id})
        return None if found is None else int(found[0])

    def _settle(self, target: int, number: int, sent: SentMessage) -> bool:
        """In the caller's transaction; gives whether no message of the target is on its way now."""
        message, remote_id, remote_ids, at = sent
        if months.months_of(self._database, number):
            self._months_sent(target, number, remote_id, at)
            return False
        if (posting := rows.posting_of(self._database, number)) is not None:
            entries.settle(self._database, posting)
        summary = self._summary(number, message.id)
        packed = summary.rows_blob(remote_ids)
        rows.accept(self._database, number, at, remote_id=remote_id, remote_ids=packed)
        rows.leave_quarantine(self._database, target, summary.keys)
        if counts.accept(self._database, number, epoch(at)):
            self._database.execute(_SYNCED, {"id": target, "now": epoch(at)})
            return False
        counts.add(self._database, target, summary.first)
        delivered = {"records": len(summary.first), "last_end": summary.last_end}
        self._database.execute(_DELIVERED, delivered | {"target": target})
        return not self._database.execute(_PREPARED, {"target": target}).fetchone()

    def _settled(
        self, number: int, sent: SentMessage, begun: tuple[int, MessageId] | None = None
    ) -> None:
        """After that transaction, which wrote down the message `begun` too."""
        if (file := self._files.get(sent.message.target)) is not None:
            file.delivered(number, sent.message.id, epoch(sent.at), sent.message.records, begun)

    def _months_sent(self, target: int, number: int, remote_id: str, now: datetime) -> None:
        records = rows.outbox_records(self._database, number)
        rows.accept(self._database, number, now, remote_id=remote_id, remote_ids=None)
        whole = months.arrived(self._database, target, number, records, now)
        # What was sent of them as single records before is part of the totals now.
        self._replace_keys(target, dict.fromkeys(whole, ()), "")
        counts.replace(self._database, target, whole, {})
        months.count_delivered(self._database, target)
        rows.leave_quarantine(self._database, target, (record.key for record in records))

    def in_doubt(self, message: Message, reason: str) -> None:
        at = {"target": self._known_number(message.target), "id": message.id}
        self._write(_IN_DOUBT, at | {"reason": reason})

    def leave_in_doubt(self, target: str) -> None:
        found = {"target": self._number(target)}
        if self._first(_PREPARED, found):
            self._write(_LEAVE_IN_DOUBT, found)

    def give_up(
        self, target: str, besides: Collection[MessageId], behind: Mapping[str, WindowMark | None]
    ) -> None:
        number = self._number(target)
        with self._database.reading():
            prepared = self._database.execute(_PREPARED, {"target": number}).fetchall()
        given_up = [message for message, message_id in prepared if message_id not in besides]
        if number is None or not given_up:
            return
        if target in self._files:
            left = [one for one in prepared if one[0] not in given_up]
            self._files[target].begun(*max(left, default=(0, "")))
        runs: set[JobKey] = set()
        with self._database.atomic():
            for message in given_up:
                runs |= self._take_back(number, message)
            self._forget_keys()
            keys.take_away(self._database, number, self._additions.get(number, ()), runs)
            rows.go_back(self._database, number, behind)
        self._additions.pop(number, None)

    def _take_back(self, target: int, message: int) -> set[JobKey]:
        """Undo what writing a message down did; gives its runs."""
        records = rows.outbox_records(self._database, message)
        of_months = months.months_of(self._database, message)
        self._drop_entries(message)
        rows.forget(self._database, message)
        pages.forget(self._database, message)
        months.take_back(self._database, target, of_months)
        counts.take_back(self._database, message)
        rows.open_again(self._database, target, records)
        return {record.key for record in records}

    def _drop_entries(self, message: int) -> None:
        if (posting := rows.posting_of(self._database, message)) is not None:
            entries.drop(self._database, posting)
            self._database.execute(_WITHOUT_POSTING, {"message": message})

    def split(
        self,
        whole: Outstanding,
        halves: Sequence[tuple[Message, Sequence[OutboxRecord]]],
        narrowing: bool,
    ) -> None:
        target = self._known_number(whole.message.target)
        file = self._files.get(whole.message.target)
        if file is not None:
            file.begun(0, "")  # the whole is gone soon, and a half may even have its number
        with self._database.atomic():
            (place,) = self._database.execute(_PLACE, {"message": whole.number}).fetchone()
            (following,) = self._database.execute(_NEXT_PLACE, {"place": place}).fetchone()
            of_months = months.months_of(self._database, whole.number)
            of_counts = counts.is_sync(self._database, whole.number)
            state, reason = self._database.execute(_DOUBT, {"id": whole.number}).fetchone()
            postings = self._divided(whole.number, [records for _, records in halves])
            rows.forget(self._database, whole.number)
            parts: dict[int, set[JobKey]] = {}
            for at, (message, records) in enumerate(halves):
                where = place + (following - place) * at / len(halves)
                columns = rows.columns_of_outbox(records)
                entered = self._database, target, message, columns
                part = {"posting": postings[at], "place": where, "narrowing": narrowing}
                number = rows.enter(*entered, **part)
                self._database.execute(_SET_DOUBT, {"id": number, "state": state, "reason": reason})
                if of_counts:
                    hosts = [(month_number(one.ended_at), one.submit_host) for one in records]
                    counts.move(self._database, whole.number, number, hosts)
                elif of_months:
                    months.link(self._database, target, number, of_months)
                parts[number] = {record.key for record in records}
            pages.move(self._database, whole.number, parts)
        if file is not None:
            file.begun(number, message.id)

    def _divided(
        self, message: int, parts: Sequence[Sequence[OutboxRecord]]
    ) -> Sequence[int | None]:
        """Divide a message's entries among messages with these records; return their postings."""
        if (posting := rows.posting_of(self._database, message)) is None:
            return [None] * len(parts)
        runs = [[record.run for record in records] for records in parts]
        return entries.divide(self._database, posting, runs)

    def refuse(
        self, whole: Outstanding, rule: str, reason: str, policy_digest: str, now: datetime
    ) -> None:
        target = self._known_number(whole.message.target)
        with self._database.atomic():
            pages.forget(self._database, whole.number)
            self._drop_entries(whole.number)
            rows.settle(self._database, whole.number, _REJECTED, now, reason=reason)
            months.take_back(self._database, target, months.months_of(self._database, whole.number))
            self._forget_keys()
            keys.take_away_refused(self._database, target, self._additions, whole.records)
            if self._database.execute(_PREPARED, {"target": target}).fetchone() is None:
                self._additions.pop(target, None)
            jobs = [record.set_aside(rule, reason) for record in whole.records]
            rows.quarantine(self._database, target, jobs, policy_digest, now)

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

    def _summary(self, number: int, message: MessageId) -> rows.MessageSummary:
        """Of an outstanding message: as it was prepared just now, or as it is written down."""
        prepared, name, summary = self._on_its_way
        # By its id too: of a message that was cut in two, the number is free for others.
        if (prepared, name) == (number, message):
            return summary
        return rows.summary_of_outbox(rows.outbox_records(self._database, number))

    def _renumbered(self, target: int, database: str) -> None:
        if not self._delivered.is_in_round(target):  # who only looks changes nothing
            super()._renumbered(target, database)
            return
        with self._database.atomic():
            self._delivered.renumber(target, database)

    def _write(self, statement: str, values: Parameters) -> None:
        """One statement, in a transaction of its own."""
        with self._database.atomic():
            self._database.execute(statement, values)

    def _known_number(self, target: str) -> int:
        if (number := self._number(target)) is None:
            raise KeyError(target)
        return number
