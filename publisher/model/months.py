"""Months of summaries: their windows, the rows that would be left behind at the receiver, and whole messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from publisher.model.row_keys import month_number_of, year_and_month
from publisher.model.selection import Window
from publisher.model.summary import SummaryGroup
from publisher.model.summary_keys import KeyTotal, SummaryKey
from publisher.model.when import Month, epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMonth:
    """A month that is not sent: rows that would stay behind at the receiver, and jobs that it would lose.

    `was` is the format in which it was sent as totals, where single records would count beside them.
    """

    month: int
    stale: tuple[KeyTotal, ...]
    lost_jobs: int
    was: str = ""

    @property
    def name(self) -> str:
        year, month = year_and_month(self.month)
        return f"{year}-{month:02}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftMonth:
    """What another publisher left of a month at the receiver: totals, or single records by the rows that they make there."""

    month: int
    format: str
    groups: tuple[SummaryGroup, ...]
    singles: tuple[KeyTotal, ...]
    hosts: Mapping[tuple[int, str], int]  # jobs, as its counts had them


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedChange:
    """Rows of a month that an administrator let stay at the receiver, without their digests, and jobs that it lost."""

    month: int
    accepted_at: datetime
    rows: tuple[KeyTotal, ...]
    lost_jobs: int


def row_of(group: SummaryGroup, *, by_level: bool) -> KeyTotal:
    """A group of a summary as a row of the receiver, for people. `by_level`: whether its table has a benchmark's value."""
    level = " ".join(f"{one.kind} {one.text}" if by_level else one.kind for one in group.benchmarks) or group.kind
    text = (
        f"VO {group.vo or 'None'}, group {group.vo_group or 'None'}, role {group.role or 'None'}, "
        f"user {group.user or 'None'}, SubmitHost {group.submit_host or 'None'}, {group.infrastructure}, {level}, "
        f"{group.node_count} nodes, {group.cpu_count} processors"
    )
    key = SummaryKey(month=month_number_of(group.year, group.month), digest=b"", text=text)
    return KeyTotal(key=key, jobs=group.jobs, wall_s=group.wall_s, cpu_s=group.cpu_s)


def month_window(number: int) -> Window:
    """The end times of a month, by its number (12 x year + month - 1), UTC."""
    year, month = year_and_month(number)
    following = year_and_month(number + 1)
    return Window(start=epoch(Month(year, month).start), end=epoch(Month(*following).start))


def left_behind(
    key: Callable[[SummaryGroup], object], accepted: Iterable[SummaryGroup], new: Iterable[SummaryGroup]
) -> list[SummaryGroup]:
    """Accepted groups whose keys the new ones do not replace: they would be counted beside them."""
    replaced = {key(group) for group in new}
    return [group for group in accepted if key(group) not in replaced]


def whole_messages(
    rendered: Iterable[tuple[int, SummaryGroup, bytes]], *, most_records: int, most_bytes: int, between: int
) -> Iterator[Sequence[tuple[int, SummaryGroup, bytes]]]:
    """Rendered groups in order, cut into messages that keep both limits; `most_records` 0 is none by count."""
    batch: list[tuple[int, SummaryGroup, bytes]] = []
    size = 0
    for one in rendered:
        more = len(one[2]) + between
        if batch and (size + more > most_bytes or (most_records and len(batch) >= most_records)):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += more
    if batch:
        yield batch
