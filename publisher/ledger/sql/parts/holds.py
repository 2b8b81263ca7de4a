"""What waits for an administrator, in the publishing database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from publisher.ledger.sql.parts.opened import LedgerPart
from publisher.ledger.sql.sums import holds, postings
from publisher.model.entry import RowId, RunKey
from publisher.model.job import SkippedJob
from publisher.model.receiver import HeldRow, HeldRun
from publisher.model.time import epoch


class SqlHolds(LedgerPart):
    """`Holds` of a publishing database."""

    def runs(self, target: str) -> Mapping[RunKey, str]:
        receiver = self._opened.receiver(target)
        with self._database.reading():
            return holds.of_runs(self._database, receiver)

    def hold_runs(self, target: str, runs: Sequence[HeldRun], now: datetime) -> None:
        receiver, number = self._opened.known_receiver(target), self._opened.known_number(target)
        of = self._opened.entry_numbers, receiver, number, runs, epoch(now)
        with self._opened.entering():
            holds.hold_runs(self._database, *of)

    def rows_shown(self, target: str) -> Collection[tuple[RowId, bytes]]:
        of = self._opened.receiver(target), self._opened.number(target)
        with self._database.reading():
            return holds.rows_shown(self._database, *of)

    def hold_rows(
        self, target: str, rows: Sequence[HeldRow], now: datetime, *, again: bool = False
    ) -> None:
        receiver, number = self._opened.known_receiver(target), self._opened.known_number(target)
        with self._database.atomic():
            numbered = {postings.row_key(self._database, receiver, one.row): one for one in rows}
            of = receiver, number, numbered, epoch(now)
            holds.hold_rows(self._database, *of, again=again)

    def not_found(
        self, target: str, found: Collection[RunKey], since: datetime
    ) -> Mapping[RunKey, tuple[str, SkippedJob]]:
        receiver = self._opened.receiver(target)
        with self._database.reading():
            return holds.not_found(self._database, receiver, found, epoch(since))

    def end(self, target: str, runs: Collection[RunKey], *, but: Collection[RowId] | None) -> None:
        receiver, number = self._opened.known_receiver(target), self._opened.known_number(target)
        with self._database.atomic():
            holds.end(self._database, receiver, runs)
            if but is not None:
                holds.end_rows(self._database, receiver, number, but)
