"""Times in which the same is counted of runs that share the rest: months, cut by rules' dates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import date
from functools import cache, cached_property
from typing import Final

from publisher.model.job import Epoch
from publisher.pipeline.round.decision import Decider

_YEARS: Final = range(1970, 2106)
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400


@cache
def _month_starts() -> frozenset[Epoch]:
    firsts = [date(year, month, 1) for year in _YEARS for month in range(1, 13)]
    return frozenset(Epoch((first.toordinal() - _FIRST_DAY) * _DAY_S) for first in firsts)


class Periods:
    """The periods of a decider, by number."""

    def __init__(self, decider: Decider) -> None:
        window = decider.selection.window
        edges = {edge for edge in (window.start, window.end) if edge is not None}
        self._changes = edges | decider.policy.change_times

    @cached_property
    def _edges(self) -> Sequence[Epoch]:
        """Return the edges; to work out all months takes a while."""
        return sorted(self._changes | _month_starts())

    def of(self, ends: Sequence[Epoch]) -> Sequence[int]:
        """Return the period of each end; nearly always all are in one."""
        first = bisect_right(self._edges, min(ends))
        if first == bisect_right(self._edges, max(ends)):
            return [first] * len(ends)
        return [bisect_right(self._edges, end) for end in ends]

    def seconds(self, period: int) -> range:
        """Return the ends in a period; none for what lies outside the calendar of receivers."""
        if not 0 < period < len(self._edges):
            return range(0)
        return range(self._edges[period - 1], self._edges[period])
