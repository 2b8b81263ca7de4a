"""What every format of records offers, and the frame that a batch of rendered records travels in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Protocol, runtime_checkable

from publisher.model.job import Side
from publisher.model.policy import PublishedJob
from publisher.model.summary import Grouping, SummaryGroup
from publisher.model.sync_count import SyncCount

_TABLES: Final[Mapping[str, str]] = {
    "apel-summary-0.2": "Summaries",
    "apel-summary-0.3": "NormalisedSummaries",
    "apel-summary-0.4": "Summaries",
    "apel-normalised-summary-0.4": "NormalisedSummaries",
}


def receiver_table(format_name: str) -> str:
    """The table in which a receiver keeps records of a format: within one they replace each other, in two both count.

    Spec: apel facts, sections 3 and 7.
    """
    return _TABLES.get(format_name, "JobRecords")


def has_levels(format_name: str) -> bool:
    """Whether the table has a column for a benchmark's value; normalised summaries have one for its type only."""
    return receiver_table(format_name) != "NormalisedSummaries"


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
        """The key under which the receiver keeps the record: another job's would replace it, or be discarded."""
        ...

    def check(self, payload: bytes) -> None:
        """Check a whole payload against our own schema of the format. Raises: Unfit naming the first fault."""
        ...


@runtime_checkable
class Shedding(Protocol):
    """A `JobFormat` whose records can do without something that nobody counts by, such as file transfers."""

    def shed(self, content: bytes) -> bytes | None:
        """The record of `render` without it; None when there is nothing to leave out."""
        ...


@runtime_checkable
class Formed(Protocol):
    """A `JobFormat` that tells a sound record by its form, without parsing it."""

    def is_sound(self, record: bytes) -> bool:
        """Whether `check` surely takes the record. A sound one may be told unsound, but never the other way round."""
        ...


def lighter(format: object, content: bytes) -> bytes | None:  # noqa: A002  # the field's word
    """A record without what its format can leave out; None when it must stay as it is."""
    return format.shed(content) if isinstance(format, Shedding) else None


@runtime_checkable
class SummaryFormat(Protocol):
    """Says which jobs a summary can count, and renders the groups that an `Accumulator` of its grouping makes of them."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[Side]]
    frame: ClassVar[Frame]
    grouping: ClassVar[Grouping]
    takes_zeros: ClassVar[bool]  # the real receiver was seen to empty a row for a record of zeros under its key

    def admit(self, job: PublishedJob, made_at: datetime) -> None:
        """Asked for each job before it is added. Raises: Unfit when the receiver would refuse what comes of it."""
        ...

    def render(self, group: SummaryGroup, made_at: datetime) -> bytes:
        """One record, ready to stand in the frame. Raises: Unfit when the receiver would refuse it, now or ever."""
        ...

    def receiver_key(self, group: SummaryGroup) -> tuple[object, ...]:
        """The key under which the receiver keeps the record; groups of one accumulator never share it."""
        ...

    def check(self, payload: bytes) -> None:
        """Check a whole payload against our own table of the format. Raises: Unfit naming the first fault."""
        ...


class SyncFormat(Protocol):
    """Renders counts per submit host and month."""

    name: ClassVar[str]
    frame: ClassVar[Frame]

    def render(self, count: SyncCount) -> bytes:
        """One record, ready to stand in the frame. Raises: Unfit when the receiver would refuse it."""
        ...

    def receiver_key(self, count: SyncCount) -> tuple[object, ...]:
        """The key under which the receiver keeps the count."""
        ...

    def check(self, payload: bytes) -> None:
        """Check a whole payload against our own table of the format. Raises: Unfit naming the first fault."""
        ...
