"""What every format of records offers, and the frame around a batch of rendered records."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from publisher.model.entry import RowFields
from publisher.model.job import Epoch, SideTable
from publisher.model.published import PublishedJob
from publisher.model.time import iso_epoch
from publisher.model.totals import Grouping, SummaryGroup, SyncCount


class OnChange(StrEnum):
    """What becomes of a delivered run whose values changed: replaced, counted again, or kept.

    SGAS discards whatever comes again under a record id that it has, and says so to nobody.
    """

    REPLACE = "replace"
    RECOUNT = "recount"
    KEEP_FIRST = "keep first"


class RowKeys(Protocol):
    """The rows of a service that adds single records up by month."""

    def of(self, job: PublishedJob) -> RowFields: ...


class Receiver(NamedTuple):
    """What an accounting service does with the records of a format.

    Within one `table` records replace each other; those of two tables are added up where both
    `count` the same, such as jobs in single records and in summaries: what a service counts apart
    may go to one place. `row_keys` tells the keys under which it adds single records up: one that
    comes again under another of them would be counted twice. `whole_months`: a window is rounded
    out to months. `values` and `omitted` are for `explain`: the fields of a job's record (or, with
    True, of its group's in a summary), and what the record leaves out or changes.
    """

    name: str
    on_change: OnChange
    table: str
    values: Callable[[PublishedJob, bool], Iterator[tuple[str, str]]]
    row_keys: Callable[[], RowKeys] | None = None
    whole_months: bool = False
    sync_format: str = ""  # of counts of jobs; '' for a receiver that takes none
    counts: str = "jobs"
    gpus_only: bool = False  # jobs without GPUs are none of its records
    most_batch_records: int = 0  # 0 for a receiver without a limit
    unreleased: str = ""  # what of the receiver's side is not released, for people
    takes_charges: bool = False
    needs_benchmark: bool = False  # a job without one is set aside
    # MachineName must be of the domain of the sender's certificate
    checks_machine_name: bool = False
    # Its table has a column for them, beside the one for their types
    keeps_benchmark_values: bool = True
    submit_host_is_client: bool = False  # SubmitHost is where the user's client ran
    # S/MIME around the payload; otherwise the connection's certificate speaks for it
    signed: bool = False
    default_batch_records: int = 500  # as in ARC's publisher
    # Its key has the JobID and no run: a later run of a job needs another id
    keyed_by_job: bool = False
    omitted: Callable[[PublishedJob], tuple[tuple[str, str], ...]] = lambda _: ()


class Frame(NamedTuple):
    """What is before, between and after the records of a payload: a batch is joined, not parsed."""

    head: bytes
    separator: bytes
    tail: bytes

    def join(self, records: list[bytes]) -> bytes:
        return b"".join((self.head, self.separator.join(records), self.tail))

    def split(self, payload: bytes, sizes: Sequence[int]) -> list[bytes]:
        """The records of a payload again, by their sizes in bytes."""
        contents = []
        at = len(self.head)
        for size in sizes:
            contents.append(payload[at : at + size])
            at += size + len(self.separator)
        return contents


class JobFormat(Protocol):
    """Renders one job after the other. Pure: no input, no output, no clock."""

    name: ClassVar[str]
    receiver: ClassVar[Receiver]
    needs: ClassVar[frozenset[SideTable]]
    frame: ClassVar[Frame]

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        """One record, without its frame. Raises: Unfit when its receiver would refuse it."""

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        """The receiver's key of the record: another job's would replace it, or be discarded."""

    def check(self, payload: bytes) -> None:
        """Check a payload against our schema of the format. Raises: Unfit for the first fault."""


@runtime_checkable
class Shedding(Protocol):
    """A `JobFormat` whose records can do without something, such as file transfers."""

    def shed(self, content: bytes) -> bytes | None:
        """The record of `render` without it; None when there is nothing to leave out."""


@runtime_checkable
class Formed(Protocol):
    """A `JobFormat` that recognises a valid record by its form, without parsing it."""

    def matches(self, record: bytes) -> bool:
        """Whether `check` surely takes the record. Some valid records do not match."""


def lighter(record_format: object, content: bytes) -> bytes | None:
    """A record without what its format can leave out; None when it must stay as it is."""
    return record_format.shed(content) if isinstance(record_format, Shedding) else None


@runtime_checkable
class SummaryFormat(Protocol):
    """Says which jobs a summary can count, and renders the groups that rows make."""

    name: ClassVar[str]
    receiver: ClassVar[Receiver]
    needs: ClassVar[frozenset[SideTable]]
    frame: ClassVar[Frame]
    grouping: ClassVar[Grouping]
    # The real receiver was seen to empty a row for a record of zeros under its key
    takes_zeros: ClassVar[bool]

    def admit(self, job: PublishedJob, made_at: datetime) -> None:
        """Asked for each job before it is added. Raises: Unfit when the receiver would refuse."""

    def render(self, groups: Sequence[SummaryGroup], made_at: datetime) -> list[bytes]:
        """A record of each, without its frame. Raises: Unfit when the receiver would refuse one."""

    def receiver_key(self, group: SummaryGroup) -> tuple[object, ...]:
        """The receiver's key of the record; groups of one accumulator never share it."""

    def check(self, payload: bytes) -> None:
        """Check a payload against our table of the format. Raises: Unfit naming the first fault."""


class SyncFormat(Protocol):
    """Renders counts per submit host and month."""

    name: ClassVar[str]
    receiver: ClassVar[Receiver]
    frame: ClassVar[Frame]

    def render(self, count: SyncCount) -> bytes:
        """One record, without its frame. Raises: Unfit when the receiver would refuse it."""

    def receiver_key(self, count: SyncCount) -> tuple[object, ...]:
        """The key under which the receiver keeps the count."""

    def check(self, payload: bytes) -> None:
        """Check a payload against our table of the format. Raises: Unfit naming the first fault."""


def number(value: int | None, unit: str = "") -> str:
    return "" if value is None else f"{value}{unit}"


def moment(value: Epoch | int | None) -> str:
    """ISO 8601 with Z; a time outside the calendar as its number of seconds."""
    if value is None:
        return ""
    try:
        return iso_epoch(Epoch(value))
    except (OverflowError, OSError, ValueError):
        return f"{value} s"
