"""Messages: written down with what they carry, settled with what that changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from publisher.ledger.answers import Delivery, Outstanding, SentMessage
from publisher.ledger.sql import entries
from publisher.ledger.sql import messages as rows
from publisher.ledger.sql.database import Database
from publisher.ledger.sql.messages import MessageSummary
from publisher.ledger.sql.parts.opened import LedgerPart, Opened, sound
from publisher.ledger.sql.past import traced
from publisher.ledger.sql.sums import counts, message_rows, postings
from publisher.ledger.sql.sums.settlement import Settling
from publisher.model.entry import RunKey, run_key
from publisher.model.job import JobId, key_of
from publisher.model.message import (
    Message,
    MessageId,
    OutboxRecord,
    Progress,
    Rendered,
    SyncMessage,
    WindowMark,
)
from publisher.model.time import epoch
from publisher.model.totals import month_number

_DOUBT = "SELECT state, reason FROM message WHERE id = :id"
_SET_DOUBT = "UPDATE message SET state = :state, reason = :reason WHERE id = :id"
_IS_PREPARED, _REJECTED = 0, 3  # numbers of `message.state`, as schema.py lists them
_WITHOUT_POSTING = "UPDATE message SET posting = NULL WHERE id = :message"
_OUTSTANDING = """
SELECT id, message_id, state, posting FROM message
WHERE target = :target AND receiver = :receiver AND state < 2 ORDER BY id"""
_ANY_PREPARED = """
SELECT EXISTS (SELECT 1 FROM message WHERE receiver = :receiver AND state < 2 AND state = 0)"""
_LEAVE_IN_DOUBT = """
UPDATE message SET state = 1, reason = 'the process that sent it ended before the answer came'
WHERE receiver = :receiver AND state < 2 AND state = 0"""
_QUEUE = "SELECT receiver FROM message WHERE id = :id"
_UNSETTLED = """
SELECT id FROM message WHERE target = :target AND state < 2 AND message_id = :message_id"""
_SYNCED = "UPDATE target SET last_sync = :now WHERE id = :id"
_IN_DOUBT = """
UPDATE message SET state = 1, reason = :reason
WHERE target = :target AND message_id = :id AND state < 2"""
_NARROW = """
UPDATE outbox SET narrowing = TRUE
WHERE message = (SELECT id FROM message
                 WHERE target = :target AND state < 2 AND message_id = :id AND state = 1)"""
_PLACE = "SELECT place, read_from FROM outbox WHERE message = :message"
_READ_TO = "SELECT read_to FROM target WHERE id = :target"
_NEXT_PLACE = "SELECT coalesce(min(place), :place + 1) FROM outbox WHERE place > :place"


class SqlOutbox(LedgerPart):
    """`Outbox` of a publishing database."""

    def __init__(self, opened: Opened) -> None:
        super().__init__(opened)
        # Prepared last.
        self._on_its_way: tuple[int, MessageId, MessageSummary] = 0, MessageId(""), MessageSummary()

    def prepare(
        self,
        message: Message,
        records: Sequence[Rendered],
        progress: Progress,
        policy_digest: str,
        before: SentMessage | None = None,
        *,
        settings: str = "",
    ) -> None:
        summary = rows.summary_of(records)
        target = self._opened.known_number(message.target)
        receiver = self._opened.known_receiver(message.target)
        number_before = None if before is None else self._unsettled(target, before.message)
        with self._opened.entering(len(message.payload)):
            if before is not None and number_before is not None:
                self._settle(target, number_before, before)
            made_at = epoch(message.made_at)
            of = entries.Posting(receiver, target, settings, made_at, of_records=True)
            numbers = self._opened.entry_numbers
            counted = [record.counts_for for record in records]
            posting = entries.prepare(self._database, numbers, of, counted)
            entered = self._database, target, receiver, message, rows.columns_of(records)
            (read_to,) = self._database.execute(_READ_TO, {"target": target}).fetchone()
            number = rows.enter(*entered, posting=posting, read_from=read_to)
            rows.advance(self._database, target, progress, policy_digest, message.made_at)
        if before is not None and number_before is not None:
            self._settled(number_before, before)
        months = {entry.row.month for entry in counted}
        self._opened.begun(number, message.id, months, epoch(message.made_at))
        self._opened.follow()
        self._on_its_way = number, message.id, summary

    def prepare_sync(self, target: str, messages: Sequence[SyncMessage]) -> None:
        number, receiver = self._opened.known_number(target), self._opened.known_receiver(target)
        with self._database.atomic(to_settle=sum(len(one.message.payload) for one in messages)):
            for one in messages:
                columns = rows.columns_of_outbox(one.records)
                entered = rows.enter(self._database, number, receiver, one.message, columns)
                counts.record_sending(self._database, receiver, entered, one.counts)

    def outstanding(self, target: str, besides: Collection[MessageId] = ()) -> Outstanding | None:
        receiver = self._opened.receiver(target)
        passed = 0
        while True:
            row = self._opened.first(rows.OUTSTANDING, {"receiver": receiver, "passed": passed})
            if row is None:
                return None
            if row[1] not in besides:
                with sound(f"message {row[1]} of target {row[-1]}"):
                    return rows.outstanding(row)
            passed += 1

    def sent(
        self, message: Message, *, remote_id: str, remote_ids: Mapping[str, str], now: datetime
    ) -> None:
        target = self._opened.known_number(message.target)
        sent = SentMessage(message, remote_id, remote_ids, now)
        if (number := self._unsettled(target, message)) is None:
            return
        with self._database.atomic():
            self._settle(target, number, sent)
        self._settled(number, sent)
        self._opened.follow()

    def _unsettled(self, target: int, message: Message) -> int | None:
        """The number of a message; None where it is settled already."""
        found = self._opened.first(_UNSETTLED, {"target": target, "message_id": message.id})
        return None if found is None else int(found[0])

    def _settle(self, target: int, number: int, sent: SentMessage) -> None:
        """Settle a message in the caller's transaction."""
        message, remote_id, remote_ids, at = sent
        if message_rows.months_of(self._database, number):
            self._totals_sent(target, number, remote_id, at)
            return
        if (posting := rows.posting_of(self._database, number)) is not None:
            settling = Settling(self._database, posting)
            settling.of_records()
            settling.write()
        summary = self._summary(number, message.id)
        packed = summary.rows_blob(remote_ids)
        rows.accept(self._database, number, at, remote_id=remote_id, remote_ids=packed)
        rows.leave_quarantine(self._database, target, map(key_of, summary.runs))
        if counts.accept(self._database, number):
            self._database.execute(_SYNCED, {"id": target, "now": epoch(at)})

    def _settled(self, number: int, sent: SentMessage) -> None:
        """After that transaction."""
        if self._opened.file is not None:
            self._opened.file.settled(number, sent.message.id, epoch(sent.at))
            self._opened.counts_changed()

    def _totals_sent(self, target: int, number: int, remote_id: str, now: datetime) -> None:
        records = rows.outbox_records(self._database, number)
        message_rows.accept(self._database, number, rows.posting_of(self._database, number))
        rows.accept(self._database, number, now, remote_id=remote_id, remote_ids=None)
        rows.leave_quarantine(self._database, target, (record.key for record in records))

    def in_doubt(self, message: Message, reason: str) -> None:
        at = {"target": self._opened.known_number(message.target), "id": message.id}
        self._opened.write(_IN_DOUBT, at | {"reason": reason})

    def refused_in_doubt(self, message: Message) -> None:
        target = self._opened.known_number(message.target)
        self._opened.write(_NARROW, {"target": target, "id": message.id})

    def leave_in_doubt(self, target: str) -> None:
        of_receiver = {"receiver": self._opened.receiver(target)}
        if self._opened.first(_ANY_PREPARED, of_receiver)[0]:
            self._opened.write(_LEAVE_IN_DOUBT, of_receiver)

    def give_up(
        self, target: str, besides: Collection[MessageId], behind: Mapping[str, WindowMark | None]
    ) -> None:
        number = self._opened.number(target)
        own = {"target": number, "receiver": self._opened.receiver(target)}
        with self._database.reading():
            found = self._database.execute(_OUTSTANDING, own).fetchall()
            given_up = self._given_up(found, besides)
        if number is None or not given_up:
            return
        left = [
            (message, message_id) for message, message_id, _, _ in found if message not in given_up
        ]
        months = {
            month for message, _ in left for month in rows.months_under_way(self._database, message)
        }
        last, last_id = max(left, default=(0, ""))
        self._opened.begun(last, last_id, months)
        self._opened.follow()
        with self._database.atomic():
            for message in given_up:
                take_back(self._database, message)
            rows.go_back(self._database, number, behind)

    def _given_up(
        self, outstanding: Sequence[Sequence[Any]], besides: Collection[MessageId]
    ) -> list[int]:
        """Return which of these messages were not stored, nor any other of their posting."""
        stays, kept = set(), set()
        for message, message_id, state, posting in outstanding:
            if state != _IS_PREPARED or message_id in besides:
                stays.add(message)
                kept.add(posting)
        for posting in {row[3] for row in outstanding} - {None}:
            if message_rows.is_accepted(self._database, posting):
                kept.add(posting)
        kept.discard(None)  # these are of no posting, each by itself
        return [
            message
            for message, _, _, posting in outstanding
            if message not in stays and posting not in kept
        ]

    def split(
        self,
        whole: Outstanding,
        halves: Sequence[tuple[Message, Sequence[OutboxRecord]]],
        narrowing: bool,
    ) -> None:
        months = rows.months_under_way(self._database, whole.number)
        # The whole is gone soon, and a half may even have its number.
        self._opened.begun(0, "", months)
        self._opened.follow()
        self._opened.begun(*self._split(whole, halves, narrowing=narrowing), months)
        self._opened.follow()

    def _split(
        self,
        whole: Outstanding,
        halves: Sequence[tuple[Message, Sequence[OutboxRecord]]],
        *,
        narrowing: bool,
    ) -> tuple[int, MessageId]:
        """Do so in one transaction; return number and id of the last half."""
        target = self._opened.known_number(whole.message.target)
        with self._database.atomic():
            of_whole = {"message": whole.number}
            place, read_from = self._database.execute(_PLACE, of_whole).fetchone()
            (following,) = self._database.execute(_NEXT_PLACE, {"place": place}).fetchone()
            of_months = message_rows.months_of(self._database, whole.number)
            of_counts = counts.is_sync(self._database, whole.number)
            state, reason = self._database.execute(_DOUBT, {"id": whole.number}).fetchone()
            (queue,) = self._database.execute(_QUEUE, {"id": whole.number}).fetchone()
            parts_of = [records for _, records in halves]
            of_parts = self._divided(whole.number, parts_of, of_months)
            rows.forget(self._database, whole.number)
            for at, (message, records) in enumerate(halves):
                where = place + (following - place) * at / len(halves)
                columns = rows.columns_of_outbox(records)
                entered = self._database, target, queue, message, columns
                number = rows.enter(
                    *entered,
                    posting=of_parts[at],
                    place=where,
                    narrowing=narrowing,
                    read_from=read_from,
                )
                self._database.execute(_SET_DOUBT, {"id": number, "state": state, "reason": reason})
                if of_counts:
                    hosts = [(month_number(one.ended_at), one.submit_host) for one in records]
                    counts.move(self._database, whole.number, number, hosts)
                elif of_months:
                    message_rows.link(self._database, target, number, of_months)
                    moved = whole.number, number, records
                    message_rows.move(self._database, of_parts[at], *moved)
        return number, message.id

    def _divided(
        self, message: int, parts: Sequence[Sequence[OutboxRecord]], of_months: Collection[int]
    ) -> Sequence[int | None]:
        """Divide a message's entries among messages with these records; return their postings.

        Messages of totals share one.
        """
        posting = rows.posting_of(self._database, message)
        if posting is None or of_months:
            return [posting] * len(parts)
        return entries.divide(self._database, posting, list(map(_runs, parts)))

    def refuse(
        self, whole: Outstanding, rule: str, reason: str, policy_digest: str, now: datetime
    ) -> None:
        target = self._opened.known_number(whole.message.target)
        with self._database.atomic():
            _drop_refused(self._database, whole.number)
            rows.settle(self._database, whole.number, _REJECTED, now, reason=reason)
            jobs = [record.set_aside(rule, reason) for record in whole.records]
            rows.quarantine(self._database, target, jobs, policy_digest, now)

    def trace(self, job_id: JobId, runs: Collection[RunKey] = ()) -> Sequence[Delivery]:
        with self._database.reading(), sound("what carried a job"):
            return traced.deliveries(self._database, job_id, runs)

    def _summary(self, number: int, message: MessageId) -> MessageSummary:
        """Of an outstanding message: as it was prepared just now, or as it is written down."""
        prepared, name, summary = self._on_its_way
        # By its id too: of a message that was cut in two, the number is free for others.
        if (prepared, name) == (number, message):
            return summary
        return rows.summary_of_outbox(rows.outbox_records(self._database, number))


def take_back(database: Database, message: int) -> None:
    """Undo what writing a message down did, in the caller's transaction."""
    rows.read_again(database, message)
    _drop_entries(database, message)
    message_rows.forget(database, message)
    rows.forget(database, message)
    counts.take_back(database, message)


def _drop_entries(database: Database, message: int) -> None:
    if (posting := rows.posting_of(database, message)) is not None:
        database.execute(_WITHOUT_POSTING, {"message": message})
        postings.drop(database, posting)


def _drop_refused(database: Database, message: int) -> None:
    """Drop what the records of a refused message count for; of totals, other messages go on."""
    if not message_rows.months_of(database, message):
        _drop_entries(database, message)
        return
    posting = rows.posting_of(database, message)
    message_rows.refuse(database, message, posting)
    if posting is not None:
        database.execute(_WITHOUT_POSTING, {"message": message})
        postings.forget_empty(database, posting)


def _runs(records: Iterable[OutboxRecord]) -> list[RunKey]:
    return [run_key(one.submitted_at, one.job_id, one.local_id) for one in records]
