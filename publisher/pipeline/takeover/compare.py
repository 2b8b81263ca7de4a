"""`sync --check` of a shadow: row by row, what we would have at the receiver beside what jura-ng has there of the same jobs.

jura-ng keeps nothing of what it sent, and no portal shows rows by their keys. But what it sends follows from the accounting
data (jura.py), so both are worked out from the same rows of it. Equal keys with equal numbers replace each other when
`shadow` is taken away; a key that only one of the two has would count beside the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from publisher.formats import receiver_of
from publisher.model.target import Target
from publisher.model.time import month_of
from publisher.model.totals import KeyTotal, month_number_of, month_window, year_and_month
from publisher.pipeline.site import Site
from publisher.pipeline.takeover.adopt import by_key, left_by_jura, rows_of
from publisher.sources.base import Source

_EARLIEST: Final = 12 * 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A row of the receiver that is not the same on both sides. None where one has no such key."""

    row: str
    ours: KeyTotal | None
    theirs: KeyTotal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMonth:
    """A month of a shadow: how many rows are on both sides with equal numbers, and those that are not."""

    target: str
    month: int
    format: str  # ours
    their_format: str
    equal: int
    different: tuple[ComparedRow, ...]

    @property
    def month_name(self) -> str:
        year, month = year_and_month(self.month)
        return f"{year}-{month:02}"


def compare(site: Site, targets: Sequence[Target], *, months: int | None) -> list[ComparedMonth]:
    """The shadows of jura-ng among the targets (`jura_format`), month by month, where they go to APEL. Raises: SourceError."""
    now = site.clock()
    this = month_of(now)
    last = month_number_of(this.year, this.month)
    first = _EARLIEST if months is None else last - months + 1
    shadows = [one for one in targets if one.shadow and one.jura_format and receiver_of(one.format).sync_format]
    with closing(site.source()) as source:
        return [
            _compared(target, number, source, now)
            for target in shadows
            for number in range(first, last + 1)
            if source.count(month_window(number))
        ]


def _compared(target: Target, number: int, source: Source, now: datetime) -> ComparedMonth:
    selection = target.selection(month_window(number))
    ours = by_key(rows_of(selection, target.policy, target.format, number, source, now))
    left = left_by_jura(target, number, None, source, now)
    theirs = by_key(left)
    every = {**theirs, **ours}
    different = [
        ComparedRow(row=total.key.text, ours=ours.get(key), theirs=theirs.get(key))
        for key, total in every.items()
        if _numbers(ours.get(key)) != _numbers(theirs.get(key))
    ]
    return ComparedMonth(
        target=target.name,
        month=number,
        format=target.format,
        their_format=left.format,
        equal=len(every) - len(different),
        different=tuple(sorted(different, key=lambda one: one.row)),
    )


def _numbers(total: KeyTotal | None) -> tuple[int, int, int] | None:
    return None if total is None else (total.jobs, total.wall_s, total.cpu_s)
