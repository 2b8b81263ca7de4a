"""Runs counted into their months by the page: one of those that share the rest is decided on.

What comes out is what one by one would: whoever is known with other values, is held in quarantine,
or breaks a rule, is left for a look of its own (hot path).

    columns of 4,000 runs, 30 examples   ->   30 decisions, 4,000 additions;
                                              2 runs that changed are left
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache, cached_property
from itertools import chain, compress
from math import inf
from operator import add, attrgetter, gt, mul
from typing import Any, Final, NamedTuple

from publisher.formats.rules import CPU_OVER_WALL, shared_warnings
from publisher.ledger.contract import DeliveredRun, Ledger
from publisher.model.job import Epoch, JobId, JobKey, JobRecord, RowRef, RunColumns
from publisher.model.message import PlacedRuns, Progress, delivered_from
from publisher.model.totals import SummaryRow, add_runs, month_number
from publisher.pipeline.round.decision import Decider, Publish, Skip
from publisher.pipeline.round.reader import with_rows
from publisher.pipeline.round.totals import MonthlyTotals
from publisher.pipeline.site import LiveTarget
from publisher.sources.base import Page, Source

_REMEMBERED: Final = 10_000  # groups, and decisions of 2 kB each
# Wall or CPU time of more than nearly any job, and within every receiver's bounds.
_MOST_S: Final = 2**30
_YEARS: Final = range(1970, 2106)
_FIRST_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_S: Final = 86_400


@dataclass(slots=True, kw_only=True, eq=False)
class _RunGroup:
    """What becomes of the runs of an example that end in periods of the same rules."""

    example: JobRecord  # held, so that its id cannot come to mean another
    values: bytes  # `RunValues.values_but_own`
    alone: bool = False  # each run needs a look of its own
    row: SummaryRow | None = None  # where they are added in their month, if they are wanted
    warnings: tuple[str, ...] = ()
    arex_default: bool = False  # its benchmark is the one that A-REX writes where nobody named any
    # Without end where they are not known: a product with that is never less than the CPU time.
    cores: float = inf


_VALUES, _ROW, _ALONE = (attrgetter(name) for name in ("values", "row", "alone"))
_WARNINGS, _CORES = attrgetter("warnings"), attrgetter("cores")
_AREX_DEFAULT = attrgetter("arex_default")


class _SomeRuns(NamedTuple):
    """Runs of a page, in columns."""

    keys: Sequence[JobKey]
    values: Sequence[int]  # fingerprints
    record_ids: Sequence[int]
    groups: Sequence[_RunGroup]
    periods: Sequence[int]
    ended_at: Sequence[Epoch]
    wall_s: Sequence[int]
    cpu_s: Sequence[int]

    def only(self, wanted: Sequence[bool]) -> "_SomeRuns":
        columns: Sequence[Sequence[Any]] = self
        return _SomeRuns(*(list(compress(column, wanted)) for column in columns))

    def can_be_counted(self, until: Epoch) -> bool:
        """Whether all of them can that end until then, as long as none is known."""
        return bool(
            all(map(_ROW, set(self.groups)))
            and max(self.ended_at) <= until
            and max(max(self.wall_s), max(self.cpu_s)) <= _MOST_S
            and len(set(self.keys)) == len(self.keys)
        )


@cache
def _month_starts() -> frozenset[Epoch]:
    firsts = [date(year, month, 1) for year in _YEARS for month in range(1, 13)]
    return frozenset(Epoch((first.toordinal() - _FIRST_DAY) * _DAY_S) for first in firsts)


class Periods:
    """Times in which the same is made of runs that share the rest: months, cut by rules' dates.

    Without `months` only by these, where nothing else depends on the end.
    """

    def __init__(self, decider: Decider, *, months: bool = True) -> None:
        window = decider.selection.window
        edges = {edge for edge in (window.start, window.end) if edge is not None}
        edges |= decider.policy.change_times
        self._decider = decider
        self._changes = sorted(edges)
        self._months = months

    @cached_property
    def _edges(self) -> Sequence[Epoch]:
        """Looked up with the first run: to tell all months takes a while."""
        calendar = sorted(_month_starts())
        fixed = calendar if self._months else (calendar[0], calendar[-1])
        return sorted({*self._changes, *fixed})

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
        self,
        live: LiveTarget,
        decider: Decider,
        source: Source,
        ledger: Ledger,
        totals: MonthlyTotals,
    ) -> None:
        self._target = live.name
        self._decider = decider
        self._source = source
        self._ledger = ledger
        self._totals = totals
        self._needs = live.format.needs
        self._periods = Periods(decider)
        # Of a period; None where every run needs a look of its own.
        self._rules: dict[int, object] = {}
        # By these rules, and by the id of their example.
        self._groups: dict[object, dict[int, _RunGroup]] = {}

    def take_page(
        self, page: Page, progress: Progress, now: datetime
    ) -> tuple[Page, Progress, int]:
        """Count a page's runs; gives the page with jobs that are left, read whole, and how many.

        Raises: SourceError.
        """
        if page.runs is None:
            return page, progress, 0
        jobs, left = self._take(page.runs, now)
        page, progress = with_rows(page, progress, left, self._source, self._needs, now)
        return page, progress, jobs

    def _take(self, runs: RunColumns, now: datetime) -> tuple[int, list[RowRef]]:
        """Count all that can be; gives how many were, and the rows that need another look."""
        until = Epoch(int(now.timestamp()))
        periods = self._periods.of(runs.ended_at)
        groups = self._groups_of(runs.examples, periods, until, now)
        some = _SomeRuns(
            keys=runs.keys(),
            values=runs.fingerprints_of(map(_VALUES, groups)),
            record_ids=runs.record_ids,
            groups=groups,
            periods=periods,
            ended_at=runs.ended_at,
            wall_s=runs.wall_s,
            cpu_s=list(map(add, runs.cpu_user_s, runs.cpu_kernel_s)),
        )
        known = self._ledger.known_at(self._target, runs.database, runs.record_ids, some.keys)
        held, met = self._ledger.held(self._target, some.keys), self._totals.waiting(some.keys)
        left: list[int] = []
        if known or held or met or not some.can_be_counted(until):
            taken, left = self._sorted(some, until, known, held, met)
            some = some.only(taken)
        if some.keys:
            # In one of two spellings a job may stand in another row too.
            nowhere = RowRef(database=runs.database, record_id=0)
            file = delivered_from(JobId("".join(runs.job_ids)), nowhere)
            self._remark(some)
            self._add(some)
            placed = PlacedRuns(some.keys, some.ended_at, some.values, file, some.record_ids)
            self._totals.counted(placed)
        return len(some.keys), runs.rows(left)

    def _sorted(
        self,
        some: _SomeRuns,
        until: Epoch,
        known: Mapping[JobKey, DeliveredRun],
        held: Container[JobKey],
        met: set[JobKey],
    ) -> tuple[list[bool], list[int]]:
        """Which of the runs are to be counted, and the places of those that need another look."""
        taken, left = [False] * len(some.keys), []
        for at, (key, value, _, group, _, end, wall, cpu) in enumerate(zip(*some, strict=True)):
            if group.alone or end > until or wall > _MOST_S or cpu > _MOST_S or key in held:
                left.append(at)
            elif group.row is None or key in met:
                continue
            elif key not in known:
                taken[at] = True
                met.add(key)
            elif not self._decider.is_delivered(known[key], end, value):
                left.append(at)
        return taken, left

    def _remark(self, some: _SomeRuns) -> None:
        """Note what is odd about runs that are counted."""
        most_s = map(mul, some.wall_s, map(_CORES, some.groups))
        warnings = Counter({CPU_OVER_WALL: sum(map(gt, some.cpu_s, most_s))})
        groups = set(some.groups)
        if any(map(_WARNINGS, groups)):
            warnings.update(chain.from_iterable(map(_WARNINGS, some.groups)))
        wall_of_queue = Counter[str]()
        defaults = 0
        if any(map(_AREX_DEFAULT, groups)):
            walls = zip(some.groups, some.wall_s, strict=True)
            for group, wall in compress(walls, map(_AREX_DEFAULT, some.groups)):
                if wall:
                    defaults += 1
                    wall_of_queue[group.example.queue] += wall
        self._totals.remark(defaults, wall_of_queue, +warnings)

    def _add(self, some: _SomeRuns) -> None:
        """Count runs into their months."""
        periods = set(some.periods)
        if len(periods) == 1:
            self._add_to_month(some)
            return
        for period in sorted(periods):
            self._add_to_month(some.only([one == period for one in some.periods]))

    def _add_to_month(self, some: _SomeRuns) -> None:
        month = month_number(some.ended_at[0])
        totals = self._totals.accumulator(month)
        if totals is None:
            for end in some.ended_at:
                self._totals.count_later(end)
            return
        places = totals.places
        for group in set(some.groups).difference(places):
            if group.row is not None:  # as it is for all that are counted
                places[group] = totals.place(group.row, month)
        add_runs(map(places.__getitem__, some.groups), some.ended_at, some.wall_s, some.cpu_s)

    def _groups_of(
        self, examples: Sequence[JobRecord], periods: Sequence[int], until: Epoch, now: datetime
    ) -> list[_RunGroup]:
        """The group of each run."""
        if sum(map(len, self._groups.values())) >= _REMEMBERED:
            self._groups.clear()
            self._totals.forget_places()
        rules = {period: self._rules_of(period, until) for period in set(periods)}
        known = {period: self._groups.setdefault(rule, {}) for period, rule in rules.items()}
        found = list(map(dict.get, map(known.__getitem__, periods), map(id, examples)))
        if not all(found):
            for at in (at for at, group in enumerate(found) if group is None):
                period, example = periods[at], examples[at]
                group = known[period].get(id(example))
                found[at] = group or self._new_group(example, period, known[period], until, now)
        return list(filter(None, found))

    def _rules_of(self, period: int, until: Epoch) -> object:
        """Equal for periods in which the same becomes of a run, but for its month."""
        if period not in self._rules:
            seconds = self._periods.seconds(period)
            has_begun = bool(seconds) and seconds.start <= until
            self._rules[period] = self._periods.rules(seconds) if has_begun else None
        return self._rules[period]

    def _new_group(
        self,
        example: JobRecord,
        period: int,
        known: dict[int, _RunGroup],
        until: Epoch,
        now: datetime,
    ) -> _RunGroup:
        """Of the runs of an example that end in a period, as far as their numbers do not matter."""
        group = _RunGroup(example=example, values=example.values_but_own())
        if self._rules_of(period, until) is None:
            group.alone = True
        else:
            # The latest of them, so that a format which takes this one takes all.
            self._decide(group, min(until, Epoch(self._periods.seconds(period).stop - 1)), now)
        known[id(example)] = group
        return group

    def _decide(self, group: _RunGroup, latest: Epoch, now: datetime) -> None:
        job = group.example._replace(ended_at=latest, wall_s=_MOST_S)
        job = job._replace(cpu_user_s=_MOST_S, cpu_kernel_s=0)
        verdict = self._decider.decide(job, job.key, None, None)
        if isinstance(verdict, Publish) and self._totals.admits(verdict.published, now):
            group.row = self._totals.row(verdict.published)
            group.warnings = shared_warnings(verdict.published)
            group.arex_default = verdict.published.benchmark.arex_default
            group.cores = group.example.cpu_count or inf
        elif not isinstance(verdict, Skip):
            group.alone = True
