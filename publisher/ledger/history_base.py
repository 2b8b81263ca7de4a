"""The contract of what was delivered when: for those who look back. Questions only read. All raise: LedgerError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from publisher.model.selection import Window
from publisher.model.usage import Durations


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What one target accepted on one day in one format. Bytes are those of the payloads, before signing and encoding."""

    messages: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHistory:
    """A target over a period.

    `days` are by days since 1970 and format, of what was accepted in the period. `lags` are the times from the end of a job
    that ended in the period to the first acceptance of a message that tells of it; unknown where that has not come yet.
    `rejected` are messages that were refused in the period.
    """

    days: Mapping[tuple[int, str], Delivered]
    rejected: int
    lags: Durations


class History(Protocol):
    """What the ledger can tell of the past."""

    def targets(self, names: Sequence[str], window: Window) -> Mapping[str, TargetHistory]:
        """Those of the targets that ever had a round. Its memory grows with messages, not with jobs."""
        ...

    def close(self) -> None: ...
