"""Runs counted into their months a page at a time: of those that share all but times and usage, one is decided on (hot path).

What comes out is what one by one would: whoever is known with other values, is held in quarantine, or breaks a rule, is left
for a look of its own.

    columns of 4,000 runs, 30 examples   ->   30 decisions, 4,000 additions; 2 runs that changed are left
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import compress
from typing import Final

from publisher.formats.rules import CPU_OVER_WALL, shared_warnings
from publisher.ledger.contract import Ledger
from publisher.model.job import Epoch, JobId, JobRecord, RowRef, RunColumns
from publisher.model.message import PlacedRuns, Progress, delivered_from
from publisher.model.totals import GroupPlace, month_number_of, month_window
from publisher.pipeline.round.decision import Decider, Publish, Skip
from publisher.pipeline.round.reader import with_rows
from publisher.pipeline.round.totals import MonthlyTotals
from publisher.pipeline.site import LiveTarget
from publisher.sources.base import Page, Source

_REMEMBERED: Final = 10_000  # groups, 2 kB each
_MOST_S: Final = 2**30  # wall or CPU time of more than nearly any job, and within every receiver's bounds
_MONTHS: Final = range(month_number_of(1970, 1), month_number_of(2106, 1))


@dataclass(slots=True, kw_only=True)
class PageCount:
    """What became of the runs of a page. `left` are the rows that need a look of their own."""

    jobs: int = 0
    arex_default: int = 0
    arex_default_wall_s: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    left: list[RowRef] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _RunGroup:
    """What becomes of the runs of an example that end in a period: `fit` speaks for them all, None if they are not wanted."""

    example: JobRecord  # held, so that its id cannot come to mean another
    until: int  # the last second for which this holds; -1: each run needs a look of its own
    fit: Publish | None = None
    warnings: tuple[str, ...] = ()
    place: GroupPlace | None = None  # where they are added; None in a month that has to be summed up again
    months: object = None  # those of the totals when `place` was looked up


@cache
def _month_starts() -> frozenset[Epoch]:
    return frozenset(month_window(month).start or Epoch(0) for month in _MONTHS)


class Periods:
    """Times in which whoever decides makes the same of runs that share the rest: months, cut by the dates of its rules.

    Without `months` only by these, where nothing else depends on the end.
    """

    def __init__(self, decider: Decider, *, months: bool = True) -> None:
        window = decider.selection.window
        edges = {edge for edge in (window.start, window.end) if edge is not None} | decider.policy.change_times
        self._decider = decider
        self._changes = sorted(edges)
        calendar = sorted(_month_starts())
        self._edges = sorted(edges.union(calendar if months else (calendar[0], calendar[-1])))

    def of(self, ends: Sequence[Epoch]) -> Sequence[int]:
        """The period of each end; nearly always all are in one."""
        first = bisect_right(self._edges, min(ends))
        if first == bisect_right(self._edges, max(ends)):
            return [first] * len(ends)
        return [bisect_right(self._edges, end) for end in ends]

    def seconds(self, period: int) -> range:
        """Empty for what lies outside the calendar of receivers."""
        if not 0 < period < len(self._edges):
            return range(0)
        return range(self._edges[period - 1], self._edges[period])

    def rules(self, seconds: range) -> object:
        """Equal for periods in which the same is made of a run, but for its month."""
        if self._decider.sent_by_jura is not None:
            return seconds
        label = self._decider.policy.identity.period_of(Epoch(seconds.start))
        return bisect_right(self._changes, seconds.start), label


class GroupedCounter:
    """Counts the runs of pages into a target's months."""

    def __init__(
        self, live: LiveTarget, decider: Decider, source: Source, ledger: Ledger, totals: MonthlyTotals
    ) -> None:
        self._target = live.name
        self._decider = decider
        self._source = source
        self._ledger = ledger
        self._totals = totals
        self._needs = live.format.needs
        self._periods = Periods(decider)
        self._groups: dict[tuple[int, int], _RunGroup] = {}
        self._decisions: dict[tuple[int, object], _RunGroup] = {}

    def take_page(self, page: Page, progress: Progress, now: datetime) -> tuple[Page, Progress, int]:
        """Count the runs of a page; gives the page with the jobs that are left, read whole, and how many were counted.

        Raises: SourceError.
        """
        if page.runs is None:
            return page, progress, 0
        counted = self.take(page.runs, now)
        page, progress = with_rows(page, progress, counted.left, self._source, self._needs, now)
        return page, progress, counted.jobs

    def take(self, runs: RunColumns, now: datetime) -> PageCount:
        """Count all that can be."""
        keys = runs.keys()
        known = self._ledger.known_at(self._target, runs.database, runs.record_ids, keys)
        held = self._ledger.held(self._target, keys)
        fingerprints = runs.fingerprints()
        groups = self._groups_of(runs, now)
        totals, months, counted = self._totals, self._totals.months, PageCount()
        met = totals.waiting(keys)
        left: list[int] = []
        taken = [False] * len(keys)
        columns = zip(keys, groups, runs.ended_at, runs.wall_s, runs.cpu_user_s, runs.cpu_kernel_s, strict=True)
        for at, (key, group, end, wall_s, user_s, kernel_s) in enumerate(columns):
            cpu_s = user_s + kernel_s
            if end > group.until or wall_s > _MOST_S or cpu_s > _MOST_S or key in held:
                left.append(at)
                continue
            fit = group.fit
            if fit is None or key in met:
                continue
            if key in known:
                if not self._decider.is_delivered(known[key], end, fingerprints[at]):
                    left.append(at)
                continue
            taken[at] = True
            met.add(key)
            if group.months is not months:
                group.place, group.months = totals.place(fit.published, end), months
            if group.place is None:
                totals.count_later(end)
            else:
                group.place.add(end, wall_s, cpu_s)
            self._remark(group, fit, wall_s, cpu_s, counted)
        new = list(compress(keys, taken))
        if new:
            # In one of two spellings a job may stand in another row too.
            file = delivered_from(JobId("".join(runs.job_ids)), RowRef(database=runs.database, record_id=0))
            ends, values = compress(runs.ended_at, taken), compress(fingerprints, taken)
            totals.counted(PlacedRuns(new, ends, values, file, compress(runs.record_ids, taken)))
        totals.remark(counted.arex_default, counted.arex_default_wall_s, counted.warnings)
        counted.jobs, counted.left = len(new), runs.rows(left)
        return counted

    def _remark(self, group: _RunGroup, fit: Publish, wall_s: int, cpu_s: int, counted: PageCount) -> None:
        """Note what is odd about a run that was counted."""
        if group.warnings:
            counted.warnings.update(group.warnings)
        cores = group.example.cpu_count
        if cores and cpu_s > wall_s * cores:
            counted.warnings[CPU_OVER_WALL] += 1
        if wall_s and fit.published.benchmark.arex_default:
            counted.arex_default += 1
            counted.arex_default_wall_s[group.example.queue] += wall_s

    def _groups_of(self, runs: RunColumns, now: datetime) -> list[_RunGroup]:
        """The group of each run."""
        groups, periods = self._groups, self._periods.of(runs.ended_at)
        return [
            groups.get((id(example), period)) or self._new_group(example, period, now)
            for example, period in zip(runs.examples, periods, strict=True)
        ]

    def _new_group(self, example: JobRecord, period: int, now: datetime) -> _RunGroup:
        """What becomes of the runs of an example that end in a period, as far as it does not lie in their numbers."""
        seconds = self._periods.seconds(period)
        # The latest of them, so that a format which takes this one takes all.
        until = min(int(now.timestamp()), seconds.stop - 1)
        group = _RunGroup(example=example, until=-1)
        if until in seconds:
            at = id(example), self._periods.rules(seconds)
            decided = self._decisions.get(at)
            if decided is None:
                decided = self._decisions[at] = self._decide(example, Epoch(until), now)
            group = replace(decided, until=-1 if decided.until < 0 else until)
        if len(self._groups) >= _REMEMBERED:
            self._groups.clear()
            self._decisions.clear()
        self._groups[id(example), period] = group
        return group

    def _decide(self, example: JobRecord, until: Epoch, now: datetime) -> _RunGroup:
        job = replace(example, ended_at=until, wall_s=_MOST_S, cpu_user_s=_MOST_S, cpu_kernel_s=0)
        verdict = self._decider.decide(job, job.key, None, None)
        if isinstance(verdict, Skip):
            return _RunGroup(example=example, until=until)
        if isinstance(verdict, Publish) and self._totals.admits(verdict.published, now):
            warnings = shared_warnings(verdict.published)
            return _RunGroup(example=example, until=until, fit=verdict, warnings=warnings)
        return _RunGroup(example=example, until=-1)
