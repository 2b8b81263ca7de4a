"""Which jobs a target wants: a window over the end time, statuses, VOs, a start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from publisher.model.job import Epoch, Glimpse


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A half-open stretch [start, end) of end times, epoch seconds UTC. None is unbounded."""

    start: Epoch | None = None
    end: Epoch | None = None

    def __contains__(self, ended_at: int) -> bool:
        return (self.start is None or ended_at >= self.start) and (self.end is None or ended_at < self.end)

    def __str__(self) -> str:
        return f"[{_iso(self.start) or 'the beginning'}, {_iso(self.end) or 'open'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The jobs a target wants. VO names are those that policy arrives at, compared exactly."""

    statuses: frozenset[str]
    window: Window
    vos: frozenset[str] | None = None
    exclude_vos: frozenset[str] = frozenset()

    def wants(self, job: Glimpse) -> bool:
        """Whether status and end time are wanted; asked before policy has worked out the VO."""
        return job.status in self.statuses and job.ended_at in self.window

    def wants_vo(self, vo: str) -> bool:
        return (self.vos is None or vo in self.vos) and vo not in self.exclude_vos


def _iso(moment: Epoch | None) -> str | None:
    return None if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
