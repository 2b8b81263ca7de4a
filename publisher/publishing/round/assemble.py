"""A batch put together as one message, checked against our schema, and how one is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

from publisher.formats.base import Formed, JobFormat, SummaryFormat, SyncFormat
from publisher.ledger.contract import MessageRow, MonthMessage, OutboxRecord
from publisher.model.errors import Unfit
from publisher.model.job import JobId, RowRef
from publisher.model.message import Batch, Message, Rendered, message_of
from publisher.model.totals import SummaryGroup


class Assembled(NamedTuple):
    """A message of a whole batch. `faults`: records that fail the check, each of them alone."""

    message: Message
    faults: tuple[tuple[Rendered, Unfit], ...] = ()


Format = JobFormat | SummaryFormat | SyncFormat


_CHECKED_AT_ONCE: Final = 50  # records: the tree of a whole message took 5 MiB more


def assemble_message(
    form: Format, target: str, batch: Batch, made_at: datetime, *, check: slice
) -> Assembled:
    """The message, with the records in it that our schema refuses.

    Held against the schema are those that the slice `check` takes, and those whose form does not
    show that they are sound.
    """
    contents = batch.records.contents
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
    """A record of totals to send: its place among them, from 1, and what it says of which rows."""

    month: int
    place: int
    group: SummaryGroup
    content: bytes
    rows: tuple[MessageRow, ...]

    def with_content(self, content: bytes) -> MonthRow:
        return self._replace(content=content)


def whole_messages(
    rows: Iterable[MonthRow], *, most_records: int, most_bytes: int, between: int
) -> Iterator[Sequence[MonthRow]]:
    """Rows in order, cut into messages within limits; `most_records` 0: any count."""
    batch: list[MonthRow] = []
    size = 0
    for row in rows:
        more = len(row.content) + between
        if batch and (size + more > most_bytes or (most_records and len(batch) >= most_records)):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += more
    if batch:
        yield batch


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
    return OutboxRecord(NOWHERE, name, "", end, 0, len(row.content), False, group=row.place)


def summary_name(group: SummaryGroup) -> str:
    """Return what a record of totals is called where it stands beside jobs."""
    return (
        f"summary {group.year}-{group.month:02} of {group.vo or 'no VO'}, "
        f"{group.user or 'no user'}, {group.submit_host}, {group.kind}, {group.cpu_count} cores"
    )


def divided(count: int, names: Sequence[str], pieces: int) -> list[Sequence[int]]:
    """Which records go together, by their places: those of one name, or else equal pieces."""
    if names:
        by_name: dict[str, list[int]] = {}
        for at, name in enumerate(names):
            by_name.setdefault(name, []).append(at)
        return list(by_name.values())
    pieces = min(pieces, count)
    bounds = [count * at // pieces for at in range(pieces + 1)]
    return [range(begin, end) for begin, end in pairwise(bounds)]
