"""Records cut into batches, a batch put together as one message and checked, and how one is cut.

`BatchBuilder`: rendered records in, batches out that keep both limits, in order, with the progress
that each completes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import groupby, islice, pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from publisher.formats.base import Formed, Frame, JobFormat, SummaryFormat, SyncFormat
from publisher.ledger.answers import Outstanding
from publisher.model.errors import Unfit
from publisher.model.job import JobId, RowRef, RunKey
from publisher.model.message import (
    TOO_LARGE,
    Batch,
    Message,
    MessageRow,
    MonthMessage,
    OutboxRecord,
    Progress,
    Rendered,
    message_of,
)
from publisher.model.text import NO_VO
from publisher.model.totals import SummaryGroup


class Assembled(NamedTuple):
    """A message of a whole batch. `faults`: records that fail the check, each of them alone."""

    message: Message
    faults: tuple[tuple[Rendered, Unfit], ...] = ()


Format = JobFormat | SummaryFormat | SyncFormat


_RENDERED_AT_ONCE: Final = 1_000  # records of totals
_CHECKED_AT_ONCE: Final = 50  # records: the tree of a whole message took 5 MiB more


def assemble_message(
    form: Format, target: str, batch: Batch, made_at: datetime, *, check: slice
) -> Assembled:
    """The message, with the records in it that our schema refuses.

    Held against the schema are those that the slice `check` takes, and those whose form does not
    show that they are sound.
    """
    contents = [record.content for record in batch.records]
    payload = form.frame.join(contents)
    made = Assembled(message=message_of(payload, target, form.name, len(batch.records), made_at))
    checked = contents[check]
    if isinstance(form, Formed):
        checked += [content for content in contents if not form.matches(content)]
    try:
        for at in range(0, len(checked), _CHECKED_AT_ONCE):
            form.check(form.frame.join(checked[at : at + _CHECKED_AT_ONCE]))
    except Unfit:
        return made._replace(faults=tuple(_faults(form, batch)))
    return made


def _faults(form: Format, batch: Batch) -> Iterator[tuple[Rendered, Unfit]]:
    for record in batch.records:
        try:
            form.check(form.frame.join([record.content]))
        except Unfit as unfit:
            yield record, unfit


NOWHERE: Final = RowRef(database="", record_id=0)  # of what is sent and is no job


class MonthRow(NamedTuple):
    """A record of totals to send: its place among them, from 1, and what it says of which rows.

    `bundle` is the place of the first of the records between which runs moved.
    """

    month: int
    place: int
    bundle: int
    group: SummaryGroup
    content: bytes
    rows: tuple[MessageRow, ...]

    def with_content(self, content: bytes) -> MonthRow:
        return self._replace(content=content)


def rendered_rows(
    rows: Iterable[MonthRow], form: SummaryFormat, now: datetime
) -> Iterator[MonthRow]:
    """Render rows, some at a time."""
    rows = iter(rows)
    while some := list(islice(rows, _RENDERED_AT_ONCE)):
        contents = form.render([row.group for row in some], now)
        yield from map(MonthRow.with_content, some, contents)


def whole_messages(
    rows: Iterable[MonthRow], *, most_records: int, most_bytes: int, between: int
) -> Iterator[Sequence[MonthRow]]:
    """Rows in order, cut into messages within limits; `most_records` 0: any count.

    A bundle goes into one message, unless it is too large for any.
    """
    fits = partial(_fits, most_records, most_bytes)
    batch: list[MonthRow] = []
    size = 0
    for _, of_bundle in groupby(rows, attrgetter("bundle")):
        bundle = list(of_bundle)
        sizes = [len(row.content) + between for row in bundle]
        is_whole = fits(len(bundle), sum(sizes))
        if batch and is_whole and not fits(len(batch) + len(bundle), size + sum(sizes)):
            yield batch
            batch, size = [], 0
        for row, more in zip(bundle, sizes, strict=True):
            if batch and not fits(len(batch) + 1, size + more):
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += more
    if batch:
        yield batch


def _fits(most_records: int, most_bytes: int, records: int, size: int) -> bool:
    return size <= most_bytes and (not most_records or records <= most_records)


def make_months(
    form: SummaryFormat, target: str, batch: Sequence[MonthRow], made_at: datetime
) -> MonthMessage:
    """A message of rows of whole months. Raises: Unfit when the check finds a fault."""
    payload = form.frame.join([row.content for row in batch])
    form.check(payload)
    message = message_of(payload, target, form.name, len(batch), made_at)
    return MonthMessage(
        message=message,
        months=tuple(sorted({row.month for row in batch})),
        records=tuple(map(_carried, batch)),
        rows=tuple(sent for row in batch for sent in row.rows),
    )


def _carried(row: MonthRow) -> OutboxRecord:
    """Return a record under the name by which `quarantine list` shows it, should it be refused."""
    name, end = JobId(summary_name(row.group)), row.group.latest_end
    record = OutboxRecord(NOWHERE, name, "", end, 0, len(row.content))
    return record._replace(group=row.place, bundle=row.bundle)


def summary_name(group: SummaryGroup) -> str:
    """Return what a record of totals is called where it stands beside jobs."""
    return (
        f"summary {group.year}-{group.month:02} of {group.vo or NO_VO}, "
        f"{group.user or 'no user'}, {group.submit_host}, {group.kind}, {group.cpu_count} cores"
    )


def divided(
    records: Sequence[OutboxRecord], names: Sequence[str], pieces: int
) -> list[Sequence[int]]:
    """Which records go together, by their places: those of one name, or else pieces of one size.

    Of several bundles of totals, none is cut.
    """
    if names:
        by_name: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            by_name.setdefault(name, []).append(at)
        return list(by_name.values())
    count = len(records)
    ends = [at for at in range(1, count) if _may_part(records[at - 1], records[at])]
    ends = ends or list(range(1, count))
    wanted = [count * at // pieces for at in range(1, pieces)]
    bounds = {min(ends, key=lambda end: abs(end - at)) for at in wanted} if ends else set()
    return [range(begin, end) for begin, end in pairwise(sorted({0, *bounds, count}))]


def _may_part(one: OutboxRecord, other: OutboxRecord) -> bool:
    """Whether two records may go into different messages: no run moved between their rows."""
    return one.bundle != other.bundle or not other.bundle


def cut(
    frame: Frame, whole: Outstanding, parts: Sequence[Sequence[int]]
) -> list[tuple[Message, Sequence[OutboxRecord]]]:
    """Cut a message into messages that have these of its records, by their places."""
    contents = frame.split(
        whole.message.payload, [record.content_bytes for record in whole.records]
    )
    pieces: list[tuple[Message, Sequence[OutboxRecord]]] = []
    for part in parts:
        payload = frame.join([contents[at] for at in part])
        message = part_of(whole.message, payload, len(part))
        pieces.append((message, [whole.records[at] for at in part]))
    return pieces


def part_of(whole: Message, payload: bytes, records: int) -> Message:
    """Return a message that goes in the place of another one, with so many of its records."""
    return message_of(payload, whole.target, whole.format, records, whole.made_at)


class BatchBuilder:
    """Cuts batches between records, never inside one, before anything is sent.

    `most_records` 0 is no limit by count. `most_bytes` is asked once how much one payload may have,
    the frame counted by `around` bytes once and `between` bytes at each record. `fill_to` is asked
    at every record how full a payload shall be now: less than `most_bytes` when the service has
    refused a size. A record that is larger than that goes alone: whether it is too large shall be
    the service's word.
    """

    def __init__(
        self,
        *,
        most_records: int,
        most_bytes: Callable[[], int],
        around: int,
        between: int,
        fill_to: Callable[[], int],
    ) -> None:
        self._most_records = most_records
        self._payload_limit = most_bytes
        self._around = around
        self._between = between
        self._fill_to = fill_to
        self._waiting: list[Rendered] = []
        self._bytes = 0
        self._marks: deque[tuple[int, Progress]] = deque()
        self._added = 0
        self._cut = 0
        self.runs: set[RunKey] = set()  # that wait

    @cached_property
    def _most_bytes(self) -> int:
        return self._payload_limit() - self._around

    def add(self, record: Rendered, progress: Progress | None = None) -> Sequence[Batch]:
        """Add a record; gives the batches that it closes, if any. `progress` goes with its batch.

        Raises: Unfit for a record that no message can hold.
        """
        size = len(record.content) + self._between
        if size > self._most_bytes:
            holds = f"a message holds {self._most_bytes}"
            raise Unfit(TOO_LARGE, f"the record alone has {size} bytes, {holds}")
        full = []
        if self._waiting and self._bytes + size > min(
            self._most_bytes, self._fill_to() - self._around
        ):
            full.append(self._close())
        self._waiting.append(record)
        self.runs.add(record.counts_for.run)
        self._bytes += size
        self._added += 1
        if progress is not None:
            self.mark(progress)
        if 0 < self._most_records <= len(self._waiting):
            full.append(self._close())
        return full

    def mark(self, progress: Progress) -> None:
        """What was read so far is accounted for once the records before `progress` are written."""
        if self._marks and self._marks[-1][0] == self._added:
            progress = self._marks.pop()[1] + progress
        self._marks.append((self._added, progress))

    @property
    def idle(self) -> bool:
        """Whether no record waits: then progress can be written down at once."""
        return not self._waiting

    def rest(self) -> Iterator[Batch]:
        """The last batch, perhaps without records when there is only progress to write down."""
        if self._waiting or self._marks:
            yield self._close()

    def _close(self) -> Batch:
        records, self._waiting = self._waiting, []
        self.runs.clear()
        self._bytes = 0
        self._cut += len(records)
        progress = Progress()
        while self._marks and self._marks[0][0] <= self._cut:
            progress += self._marks.popleft()[1]
        return Batch(records=records, progress=progress)
