"""What every format of job records offers, and the frame that a batch of rendered records travels in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol

from publisher.model.job import Side
from publisher.model.policy import PublishedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands before, between and after the records of a payload. Bytes, so that a batch is joined, never parsed."""

    head: bytes
    separator: bytes
    tail: bytes

    def join(self, records: list[bytes]) -> bytes:
        return b"".join((self.head, self.separator.join(records), self.tail))


class JobFormat(Protocol):
    """Renders one job after the other. Pure: no input, no output, no clock."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[Side]]
    frame: ClassVar[Frame]

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        """One record, ready to stand in the frame. Raises: Unfit when its receiver would refuse it."""
        ...

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        """The key under which the receiver keeps the record; two jobs of one batch must not share it."""
        ...

    def check(self, payload: bytes) -> None:
        """Check a whole payload against our own schema of the format. Raises: Unfit naming the first fault."""
        ...
