"""Actions: what is done about runs and rows, and why; and what a round does, by month and reason.

The planner returns an `Action` for a run. A round adds up its actions (`ActionCounts`), and shows
them as lines, each with a few examples:

    2026-10  add      99 jobs           the receiver does not have them yet
    2026-10  change    2 jobs, 1 row    their own data changed
    2026-10  hold      1 job, 1 row     ... would stay at the receiver
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

EXAMPLES: Final = 3  # of a line


class Kind(StrEnum):
    """What is done about a run, or a row of totals, in the order in which people read of it."""

    ADD = "add"
    CHANGE = "change"
    KEEP = "keep"
    RETRACT = "retract"
    EMPTY = "empty"
    HOLD = "hold"
    SET_ASIDE = "set aside"


class Action(NamedTuple):
    """What is done, and why, in words (reasons.py has all of them)."""

    kind: Kind
    reason: str


class Example(NamedTuple):
    """A job or a row, or a job with its row, that an action is about; '' for what it is not about.

    `reason`: what is so of it alone.
    """

    job: str = ""
    row: str = ""
    reason: str = ""


class PlanLine(NamedTuple):
    """What is done about some jobs of a month, and rows of it that are touched.

    `month` is None for jobs whose end is unknown. `jobs` is None where they were not counted.
    `rows` are those of totals, and is None where none are concerned.
    """

    month: int | None
    action: Action
    jobs: int | None
    rows: int | None
    examples: tuple[Example, ...]


@dataclass(slots=True)
class _Count:
    jobs: int | None = 0
    rows: int | None = None
    examples: list[Example] = field(default_factory=list)


_ORDER: Final = tuple(Kind)


class ActionCounts:
    """Adds actions up. Memory grows with months and reasons, not with jobs."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int | None, Action], _Count] = {}

    def add(
        self,
        month: int | None,
        action: Action,
        *,
        jobs: int | None = 0,
        rows: int | None = None,
        examples: Iterable[Example] = (),
    ) -> None:
        """Count jobs, and rows; None: they are not counted, or none are concerned."""
        at = month, action
        count = self._counts.get(at) or self._counts.setdefault(at, _Count())
        count.jobs = None if count.jobs is None or jobs is None else count.jobs + jobs
        if rows is not None:
            count.rows = (count.rows or 0) + rows
        if len(count.examples) < EXAMPLES:
            new = [one for one in examples if one not in count.examples]
            count.examples += new[: EXAMPLES - len(count.examples)]

    def job(self, month: int | None, action: Action, example: Example) -> None:
        """Count a job (hot path)."""
        count = self._counts.get((month, action))
        if count is None or count.jobs is None or len(count.examples) < EXAMPLES:
            self.add(month, action, jobs=1, examples=(example,))
        else:
            count.jobs += 1

    def take(self, lines: Iterable[PlanLine]) -> None:
        """Count what was counted elsewhere."""
        for month, action, jobs, rows, examples in lines:
            self.add(month, action, jobs=jobs, rows=rows, examples=examples)

    def lines(self) -> tuple[PlanLine, ...]:
        """Return what was counted, by month and kind; jobs whose end is unknown come last."""
        found = [
            PlanLine(month, action, count.jobs, count.rows, tuple(count.examples))
            for (month, action), count in self._counts.items()
        ]
        return tuple(sorted(found, key=_place))


def _place(line: PlanLine) -> tuple[bool, int, int, str]:
    kind, reason = line.action
    return line.month is None, line.month or 0, _ORDER.index(kind), reason


def merged(parts: Iterable[Sequence[PlanLine]]) -> tuple[PlanLine, ...]:
    """Return the lines of several rounds as those of one."""
    counts = ActionCounts()
    for lines in parts:
        counts.take(lines)
    return counts.lines()
