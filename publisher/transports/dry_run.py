"""The transport of a rehearsal (`--dry-run`): it knows the real one's limit and sends nothing."""

from __future__ import annotations

from datetime import datetime

from publisher.model.message import Message
from publisher.transports.base import Receipt, Step, Transport, Verdict


class DryRunTransport:
    """Says "delivered" to everything, and touches no network."""

    def __init__(self, real: Transport) -> None:
        self._real = real

    def payload_limit(self) -> int:
        return self._real.payload_limit()

    def deliver(self, message: Message, now: datetime) -> Receipt:
        return Receipt(verdict=Verdict.DELIVERED, remote_id="rehearsal", bytes_sent=len(message.payload), attempts=0)

    def preflight(self) -> tuple[Step, ...]:
        return self._real.preflight()

    def warnings(self, now: datetime) -> list[str]:
        return self._real.warnings(now)

    def close(self) -> None:
        self._real.close()
