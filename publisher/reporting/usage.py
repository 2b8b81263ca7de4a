"""Groups of jobs as a source sums them up, added up for a report under the names that the site's settings give them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.policy import RecordPolicy
from publisher.model.target import Target
from publisher.model.time import Durations, Window, epoch, months
from publisher.model.totals import month_number, sync_host
from publisher.sources.statistics import UsageGroup, UsagePage, Used

DAY_S: Final = 86_400
OWN_PROJECT: Final = "(a user's own)"
_REMEMBERED: Final = 20_000
HostMonth = tuple[int, str]


@dataclass(slots=True, kw_only=True)
class Usage:
    """What the jobs of a period used, by what one may want to know it of. Grows with names and days, not with jobs.

    Names are '' where there is none. `benchmarks` are by type and value (`HEPscore23 11.5`). `wall_core_s_by_vo` has the wall
    time x cores of each day (in days since 1970) and VO.
    """

    total: Used = field(default_factory=Used)
    unreadable: int = 0
    statuses: dict[str, Used] = field(default_factory=dict)
    vos: dict[str, Used] = field(default_factory=dict)
    queues: dict[str, Used] = field(default_factory=dict)
    users: dict[str, Used] = field(default_factory=dict)
    projects: dict[str, Used] = field(default_factory=dict)
    benchmarks: dict[str, Used] = field(default_factory=dict)
    arex_default_wall_s: Counter[str] = field(default_factory=Counter)  # under A-REX's HEPSPEC:1.0, by queue
    days: dict[int, Used] = field(default_factory=dict)
    wall_core_s_by_vo: Counter[tuple[int, str]] = field(default_factory=Counter)
    waits: dict[str, Durations] = field(default_factory=dict)  # by queue


@dataclass(slots=True, kw_only=True)
class ExpectedJobs:
    """Jobs that a target wants, by month and submit host: those since its start, and those before."""

    since: Counter[HostMonth] = field(default_factory=Counter)
    before: Counter[HostMonth] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _SiteValues:
    """What the site says about the jobs of a group."""

    vo: str
    user: str
    arex_default: bool
    benchmark: str  # '' for none
    weight: tuple[str, int] | None  # its type, and 1000 times its value
    hosts: tuple[str | None, ...]  # the submit host to each target; None where it does not want them


def _month_starts(window: Window) -> set[Epoch]:
    return {epoch(month.start) for month in months(window)}


class UsageReport:
    """Adds groups up. Policies are asked once for each example and each interval of time in which they give the same answer."""

    def __init__(self, window: Window, policy: RecordPolicy, targets: Sequence[tuple[Target, Epoch | None]]) -> None:
        """`targets` come with the end time that their first jobs have."""
        if window.start is None or window.end is None:
            raise ValueError(f"{window} has no start or no end")
        self.usage = Usage()
        self.wanted = [ExpectedJobs() for _ in targets]
        # Submit hosts are the targets' business: a site whose targets are of different kinds has no policy for them.
        self._policy = replace(policy, infrastructure="grid", imported={})
        self._targets = targets
        policies = [policy, *(target.policy for target, _ in targets)]
        self.own_projects = not policy.identity.open
        self.alone = not all(one.depends_on_row_only for one in policies)
        self._selections = [target.selection(Window()) for target, _ in targets]
        starts = {start for _, start in targets if start is not None}
        turns = _month_starts(window).union(starts, *(one.change_times for one in policies))
        self._turns = sorted(turns)
        first_day = window.start // DAY_S
        days = (Epoch(day * DAY_S) for day in range(first_day, -(-window.end // DAY_S)))
        self.eras = sorted({*days, *turns})
        self._first = window.start
        self._known: dict[tuple[int, int], tuple[JobRecord, _SiteValues]] = {}

    def add(self, page: UsagePage) -> None:
        self.usage.unreadable += page.unreadable
        for group in page.groups:
            # When the first of them may have ended: the era's beginning.
            since = Epoch(max(self.eras[group.era - 1] if group.era else self._first, self._first))
            values = self._site_values(group.example, since)
            self._add(group, values, since // DAY_S)
            for wanted, (_, start), host in zip(self.wanted, self._targets, values.hosts, strict=True):
                if host is not None:
                    counts = wanted.before if start is not None and since < start else wanted.since
                    counts[month_number(since), host] += group.jobs

    def _add(self, group: UsageGroup, values: _SiteValues, day: int) -> None:
        usage, example = self.usage, group.example
        project = group.project
        if group.own_project:
            project = OWN_PROJECT
        usage.total.add(group, values.weight)
        for sums, name in (
            (usage.statuses, example.status),
            (usage.vos, values.vo),
            (usage.queues, example.queue),
            (usage.users, values.user),
            (usage.projects, project),
            (usage.benchmarks, values.benchmark),
        ):
            _of(sums, name).add(group, values.weight)
        if values.arex_default and group.wall_s:
            usage.arex_default_wall_s[example.queue] += group.wall_s
        if day not in usage.days:
            usage.days[day] = Used()
        usage.days[day].add(group, values.weight)
        usage.wall_core_s_by_vo[day, values.vo] += group.wall_s * (example.cpu_count or 1)
        waits = usage.waits.setdefault(example.queue, Durations())
        waits.add(group.waits_s)
        waits.unknown += group.jobs - len(group.waits_s)

    def _site_values(self, example: JobRecord, since: Epoch) -> _SiteValues:
        at = id(example), bisect_right(self._turns, since)
        known = self._known.get(at)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            # The example is kept with it: another one must not get its id.
            known = self._known[at] = example, self._say(replace(example, ended_at=since))
        return known[1]

    def _say(self, job: JobRecord) -> _SiteValues:
        published = self._policy.describe(job)
        main = next(iter(published.benchmark.benchmarks), None)
        return _SiteValues(
            vo=published.who.vo,
            user=published.who.user,
            arex_default=published.benchmark.arex_default,
            benchmark="" if main is None else f"{main.kind} {main.text}",
            weight=None if main is None else (main.kind, int(main.value * 1000)),
            hosts=tuple(self._host(at, job) for at in range(len(self._targets))),
        )

    def _host(self, at: int, job: JobRecord) -> str | None:
        """The submit host under which a target's receiver counts a job; None when the target does not want it."""
        policy = self._targets[at][0].policy
        if not self._selections[at].wants(job):
            return None
        try:
            published = policy.describe(job)
        except Unfit:
            return None  # it is set aside
        return sync_host(published.where.receiver_host) if self._selections[at].wants_vo(published.who.vo) else None


def _of(sums: dict[str, Used], name: str) -> Used:
    found = sums.get(name)
    if found is None:
        found = sums[name] = Used()
    return found


def all_waits(waits: Iterable[Durations]) -> Durations:
    """Of several queues together."""
    whole = Durations()
    for one in waits:
        whole.minutes.update(one.minutes)
        whole.unknown += one.unknown
        whole.negative += one.negative
    return whole
