"""What runs count for, and the open posting of totals, in the publishing database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from publisher.ledger.sql import entries
from publisher.ledger.sql import messages as rows
from publisher.ledger.sql.parts.opened import LedgerPart, sound
from publisher.ledger.sql.sums import counts, message_rows, month_sums, postings
from publisher.ledger.sql.sums.elsewhere import adopted
from publisher.model.entry import (
    Entry,
    MonthTotals,
    Recorded,
    RecordKey,
    RowId,
    RowTotal,
    RunKey,
)
from publisher.model.job import Epoch
from publisher.model.message import MonthMessage
from publisher.model.receiver import HeldBack
from publisher.model.time import epoch
from publisher.model.totals import InheritedMonth


class SqlEntries(LedgerPart):
    """`Entries` of a publishing database."""

    def recorded(self, target: str, runs: Collection[RunKey]) -> Mapping[RunKey, Recorded]:
        with self._database.reading(), sound("an entry"):
            return entries.recorded(self._database, self._opened.receiver(target), runs)

    def owners(self, target: str, ends: Collection[Epoch]) -> Sequence[tuple[RunKey, RecordKey]]:
        with self._database.reading(), sound("an entry"):
            return entries.owners(self._database, self._opened.receiver(target), ends)

    def counted_from(self, target: str, source: str) -> Mapping[tuple[int, str], int]:
        with self._database.reading():
            return entries.counted_from(self._database, self._opened.receiver(target), source)

    def rows(self, target: str, month: int) -> Sequence[RowTotal]:
        with self._database.reading():
            return message_rows.rows(self._database, self._opened.receiver(target), month)

    def ends(self, target: str, row: RowId) -> tuple[Epoch, Epoch]:
        with self._database.reading():
            return message_rows.ends(self._database, self._opened.receiver(target), row)

    def record_format(self, target: str, month: int) -> str:
        with self._database.reading():
            return entries.record_format(self._database, self._opened.receiver(target), month)

    def months(self, target: str) -> Sequence[MonthTotals]:
        with self._database.reading():
            return message_rows.months(self._database, self._opened.receiver(target))

    def adopt(self, target: str, inherited: InheritedMonth) -> None:
        number, receiver = self._opened.known_number(target), self._opened.known_receiver(target)
        with self._opened.entering():
            of = number, receiver
            adopted.adopt(self._database, self._opened.entry_numbers, *of, inherited)
            counts.adopt(self._database, receiver, inherited.hosts)
        self._opened.counts_changed()
        self._opened.follow()

    def go_on_as_records(self, target: str, months: Collection[int]) -> None:
        receiver = self._opened.known_receiver(target)
        with self._database.atomic():
            month_sums.go_on(self._database, receiver, months, "")
        self._opened.counts_changed()
        self._opened.follow()


class SqlPostings(LedgerPart):
    """`Postings` of a publishing database."""

    def enter(self, target: str, entries: Sequence[Entry], settings: str, now: datetime) -> None:
        if not entries:
            return
        number = self._opened.known_number(target)
        with self._opened.entering():
            added = number, entries, settings, epoch(now)
            postings.enter(self._database, self._opened.entry_numbers, *added)

    def withdraw(
        self,
        target: str,
        *,
        leaving: Collection[RowId] = (),
        entering: Collection[RowId] = (),
        held: HeldBack | None = None,
    ) -> None:
        of = self._opened.known_number(target), leaving, entering, held
        with self._database.atomic():
            postings.withdraw(self._database, *of)

    def discard(self, target: str) -> None:
        with self._database.atomic():
            postings.discard(self._database, self._opened.known_number(target))

    def seal(self, target: str, messages: Iterable[MonthMessage]) -> None:
        number = self._opened.known_number(target)
        with self._database.reading():
            there = postings.open_posting(self._database, number)
        to_settle = postings.ENTRY_BYTES * there.entries if there is not None else 0
        with self._database.atomic(to_settle=to_settle + 1):
            if there is not None and not there.entries:
                postings.forget_empty(self._database, there.number)
                there = None
            posting = None if there is None else there.number
            receiver = self._opened.known_receiver(target)
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
            self._opened.begun(last, last_id, months, made_at)
            self._opened.follow()

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
