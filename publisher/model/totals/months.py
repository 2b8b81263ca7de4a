"""Months of summaries: their windows, the rows that would be left behind at the receiver, and whole messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from publisher.model.text import plural
from publisher.model.time import Month, Window, epoch
from publisher.model.totals.summary import KeyTotal, SummaryGroup, SummaryKey, month_number_of, year_and_month


class BlockedMonth(NamedTuple):
    """A month that is not sent: rows that would stay behind at the receiver, and jobs that it would lose.

    `was` is the format in which it was sent as totals, where single records would count beside them. `emptied`: nothing
    would stay, because a record of zeros goes out under the key of each of those rows.
    """

    month: int
    orphaned: tuple[KeyTotal, ...]
    lost_jobs: int
    was: str = ""
    emptied: bool = False

    @property
    def name(self) -> str:
        return month_name(self.month)


class InheritedMonth(NamedTuple):
    """What another publisher left of a month at the receiver: totals, or single records by the rows that they make there."""

    month: int
    format: str
    groups: tuple[SummaryGroup, ...]
    singles: tuple[KeyTotal, ...]
    hosts: Mapping[tuple[int, str], int]  # jobs, as its counts had them


class AcceptedChange(NamedTuple):
    """Rows of a month that an administrator let stay at the receiver, without their digests, and jobs that it lost."""

    month: int
    accepted_at: datetime
    rows: tuple[KeyTotal, ...]
    lost_jobs: int


def month_name(number: int) -> str:
    """As people write it: 2026-09."""
    year, month = year_and_month(number)
    return f"{year}-{month:02}"


def row_of(group: SummaryGroup, *, by_level: bool) -> KeyTotal:
    """A group of a summary as a row of the receiver, for people. `by_level`: whether its table has a benchmark's value."""
    level = " ".join(f"{one.kind} {one.text}" if by_level else one.kind for one in group.benchmarks) or group.kind
    text = (
        f"VO {group.vo or 'None'}, group {group.vo_group or 'None'}, role {group.role or 'None'}, "
        f"user {group.user or 'None'}, SubmitHost {group.submit_host or 'None'}, {group.infrastructure}, {level}, "
        f"nodes {group.node_count}, processors {group.cpu_count}"
    )
    key = SummaryKey(month=month_number_of(group.year, group.month), digest=b"", text=text, site=group.site)
    return KeyTotal(key=key, jobs=group.jobs, wall_s=group.wall_s, cpu_s=group.cpu_s)


def gone_lines(gone: Mapping[str, int]) -> list[str]:
    """Months of totals with delivered jobs that nobody can count again."""
    return [
        f"{month}: {plural(jobs, 'delivered job is', 'delivered jobs are')} no longer in the accounting data (removed there, "
        "or restarted since); the rows with such jobs keep their totals"
        for month, jobs in gone.items()
    ]


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


def without_usage(group: SummaryGroup) -> SummaryGroup:
    """The record that empties a row."""
    return group._replace(jobs=0, wall_s=0, cpu_s=0, normalised_wall_micro=0, normalised_cpu_micro=0)


class FoundJobs(NamedTuple):
    """The counted jobs of a month that are in the accounting data, in groups: as they were counted, and changed since."""

    unchanged: Sequence[SummaryGroup]
    changed: Sequence[SummaryGroup]


def rows_with_gone(
    key: Callable[[SummaryGroup], object], counted: Sequence[SummaryGroup], found: FoundJobs, gone: int
) -> Sequence[SummaryGroup] | None:
    """A month of which so many counted jobs are gone from the accounting data, each row as it was counted or as it is found.

    As it is found is a row that has as many jobs as were counted in it. One that lacks jobs, or has more of them, stays as it
    was counted: which of its jobs are gone, and which changed their row, is not known. None where the jobs do not add up.
    """
    here: Counter[object] = Counter()
    for group in (*found.unchanged, *found.changed):
        here[key(group)] += group.jobs
    were = {key(group): group.jobs for group in counted}
    if sum(were.values()) - sum(here.values()) != gone:
        return None
    as_found = {at for at, jobs in were.items() if here[at] == jobs}
    kept = [group for group in counted if key(group) not in as_found]
    return kept + [group for group in (*found.unchanged, *found.changed) if key(group) in as_found]


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
