"""SGAS and AUDITOR: the first record under an id stays, and a later one is answered as if it had been stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.model_receivers.receivers.apel import month_of
from tests.model_receivers.receivers.payloads import Row, auditor_rows, sgas_rows


class KeepFirst:
    """Records by their id."""

    keeps_first = True

    def __init__(self, read: Callable[[bytes], list[Row]]) -> None:
        self.records: dict[str, Row] = {}
        self._read = read

    def take(self, payload: bytes) -> None:
        """Insert what is new, all or nothing: what cannot be read raises before anything is stored."""
        for row in self._read(payload):
            self.store(row)

    def store(self, row: Row) -> None:
        self.records.setdefault(row["RecordId"], row)

    def delete_month(self, month: tuple[int, int]) -> None:
        """Delete everything of a month."""
        self.records = {key: row for key, row in self.records.items() if month_of(row["EndTime"]) != month}


class Sgas(KeepFirst):
    """A later record replaces the first one only if it has another GlobalJobId, which is not the record id either."""

    def __init__(self) -> None:
        super().__init__(sgas_rows)

    def store(self, row: Row) -> None:
        there = self.records.get(row["RecordId"])
        given = row.get("GlobalJobId")
        same = there is not None and given is not None and given in (there.get("GlobalJobId"), row["RecordId"])
        if not same:
            self.records[row["RecordId"]] = row


class Auditor(KeepFirst):
    """A record that exists is refused with RECORD_EXISTS, which the sender takes as delivered."""

    def __init__(self) -> None:
        super().__init__(auditor_rows)


KINDS: Final = {"sgas": Sgas, "auditor": Auditor}
