"""What a report shows of a period: what jobs used, what they cost, what became of them at each target. Only reads.

A source sums jobs up in groups; `UsageReport` adds the groups up under the names that the site's settings give them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Final

from publisher.ledger.books import ChargedSum, TargetHistory
from publisher.ledger.contract import Hold, HostCounts, Quarantine, TargetState
from publisher.model.errors import Unfit, UsageError
from publisher.model.job import Epoch, JobRecord
from publisher.model.policy import PublishedJob, RecordPolicy
from publisher.model.rates import EnergyRules, UsedAllocation
from publisher.model.target import Target
from publisher.model.time import Durations, Window, epoch, month_of, months
from publisher.model.totals import month_number, month_number_of, month_window, sync_host, year_and_month
from publisher.pipeline import status as target_status
from publisher.pipeline.batch_systems import SourceStatus, source_status
from publisher.pipeline.site import Site
from publisher.pipeline.status import TargetStatus
from publisher.reporting.charges.allocations import overlapping, used_allocations
from publisher.sources.statistics import UsageGroup, UsagePage, Used

RowsRead = Callable[[int], None]
DAY_S: Final = 86_400
OWN_PROJECT: Final = "(a user's own)"
_REMEMBERED: Final = 20_000
HostMonth = tuple[int, str]


_Weight = tuple[str, int] | None


UsedByName = defaultdict[str, Used]


def _used_by_name() -> UsedByName:
    return defaultdict(Used)


@dataclass(slots=True, kw_only=True)
class Usage:
    """What the jobs of a period used, by what one may want to know it of. Grows with names and days, not with jobs.

    Names are '' where there is none. `benchmarks` are by type and value (`HEPscore23 11.5`). `wall_core_s_by_vo` has the wall
    time x cores of each day (in days since 1970) and VO.
    """

    total: Used = field(default_factory=Used)
    unreadable: int = 0
    statuses: UsedByName = field(default_factory=_used_by_name)
    vos: UsedByName = field(default_factory=_used_by_name)
    queues: UsedByName = field(default_factory=_used_by_name)
    users: UsedByName = field(default_factory=_used_by_name)
    projects: UsedByName = field(default_factory=_used_by_name)
    accounts: UsedByName = field(default_factory=_used_by_name)
    local_users: UsedByName = field(default_factory=_used_by_name)
    benchmarks: UsedByName = field(default_factory=_used_by_name)
    arex_default_wall_s: Counter[str] = field(default_factory=Counter)  # under A-REX's HEPSPEC:1.0, by queue
    days: defaultdict[int, Used] = field(default_factory=lambda: defaultdict(Used))
    wall_core_s_by_vo: Counter[tuple[int, str]] = field(default_factory=Counter)
    waits: dict[str, Durations] = field(default_factory=dict)  # by queue
    # GPUs by model, '' for no known one: jobs that had some, and wall time x GPUs of the model
    gpu_model_jobs: Counter[str] = field(default_factory=Counter)
    gpu_model_s: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class ExpectedJobs:
    """Jobs that a target wants, by month and submit host: those since its start, and those before; and what all used."""

    since: Counter[HostMonth] = field(default_factory=Counter)
    before: Counter[HostMonth] = field(default_factory=Counter)
    used: Used = field(default_factory=Used)


@dataclass(frozen=True, slots=True)
class _SiteValues:
    """What the site says about the jobs of a group."""

    vo: str
    user: str
    arex_default: bool
    benchmark: str  # '' for none
    weight: _Weight  # its type, and 1000 times its value
    at_targets: tuple[tuple[str, _Weight] | None, ...]  # submit host and weight; None where a target does not want them


def _turns(window: Window, starts: Iterable[Epoch | None], policies: Iterable[RecordPolicy]) -> set[Epoch]:
    """When the answers of the policies, the month or the target's part may change."""
    found = {epoch(month.start) for month in months(window)}
    found.update(start for start in starts if start is not None)
    return found.union(*(one.change_times for one in policies))


class UsageReport:
    """Adds groups up. Policies are asked once for each example and each interval of time in which they give the same answer."""

    def __init__(
        self,
        window: Window,
        policy: RecordPolicy,
        targets: Sequence[tuple[Target, Epoch | None]],
        power: EnergyRules | None,
    ) -> None:
        """`targets` come with the end time that their first jobs have. With `power`, each job is looked at by itself."""
        if window.start is None or window.end is None:
            raise ValueError(f"{window} has no start or no end")
        self.usage = Usage()
        self.wanted = [ExpectedJobs() for _ in targets]
        # Submit hosts are the targets' business: a site whose targets are of different kinds has no policy for them.
        self._policy = replace(policy, infrastructure="grid", imported={})
        self._targets = targets
        policies = [policy, *(target.policy for target, _ in targets)]
        self._names_users = policy.identity.open
        self._power = power
        self.alone = power is not None or not all(one.depends_on_row_only for one in policies)
        self._selections = [target.selection(Window()) for target, _ in targets]
        self._turns = sorted(_turns(window, [start for _, start in targets], policies))
        days = range(window.start // DAY_S, -(-window.end // DAY_S))
        self.eras = sorted({*(Epoch(day * DAY_S) for day in days), *self._turns})
        self._first = window.start
        self._known: dict[tuple[int, int], tuple[JobRecord, _SiteValues]] = {}

    def add(self, page: UsagePage) -> None:
        self.usage.unreadable += page.unreadable
        for group in page.groups:
            # When the first of them may have ended: the era's beginning.
            since = Epoch(max(self.eras[group.era - 1] if group.era else self._first, self._first))
            values = self._site_values(group.example, since)
            self._add(group, values, since // DAY_S)
            for wanted, (_, start), there in zip(self.wanted, self._targets, values.at_targets, strict=True):
                if there is not None:
                    host, weight = there
                    counts = wanted.before if start is not None and since < start else wanted.since
                    counts[month_number(since), host] += group.jobs
                    wanted.used.add(group, weight)

    def _add(self, group: UsageGroup, values: _SiteValues, day: int) -> None:
        usage, example = self.usage, group.example
        local = group.names
        energy = None if self._power is None else self._power.energy(example)
        usage.total.add(group, values.weight, energy)
        for sums, name in (
            (usage.statuses, example.status),
            (usage.vos, values.vo),
            (usage.queues, example.queue),
            (usage.users, values.user),
            (usage.projects, self._unless_own(local.project, local.user)),
            (usage.accounts, self._unless_own(local.account, local.user)),
            (usage.local_users, local.user if self._names_users else ""),
            (usage.benchmarks, values.benchmark),
        ):
            sums[name].add(group, values.weight, energy)
        if values.arex_default and group.wall_s:
            usage.arex_default_wall_s[example.queue] += group.wall_s
        usage.days[day].add(group, values.weight, energy)
        usage.wall_core_s_by_vo[day, values.vo] += group.wall_s * (example.cpu_count or 1)
        for model, gpus in group.gpus:
            usage.gpu_model_jobs[model] += group.jobs
            usage.gpu_model_s[model] += group.wall_s * gpus
        waits = usage.waits.setdefault(example.queue, Durations())
        waits.add(group.waits_s)
        waits.unknown += group.jobs - len(group.waits_s)

    def _unless_own(self, name: str, user: str) -> str:
        """A user's own project or account is called as the user."""
        return OWN_PROJECT if name and name == user and not self._names_users else name

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
            weight=_weight(published),
            at_targets=tuple(self._at_target(at, job) for at in range(len(self._targets))),
        )

    def _at_target(self, at: int, job: JobRecord) -> tuple[str, _Weight] | None:
        """The submit host under which a target's receiver counts a job, and its benchmark; None when it does not want it."""
        policy = self._targets[at][0].policy
        if not self._selections[at].wants(job):
            return None
        try:
            published = policy.describe(job)
        except Unfit:
            return None  # it is set aside
        if not self._selections[at].wants_vo(published.who.vo):
            return None
        return sync_host(published.where.receiver_host), _weight(published)


def _weight(published: PublishedJob) -> _Weight:
    main = next(iter(published.benchmark.benchmarks), None)
    return None if main is None else (main.kind, int(main.value * 1000))


def all_waits(waits: Iterable[Durations]) -> Durations:
    """Of several queues together."""
    whole = Durations()
    for one in waits:
        whole.minutes.update(one.minutes)
        whole.unknown += one.unknown
        whole.negative += one.negative
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class CountDrift:
    """A month and submit host at a target, in numbers of jobs, counted as `sync --check` does, without looking at each job.

    `reported` is None where counts are not sent, or were not yet. Another publisher delivered `before`, before our start.
    """

    target: str
    month: str
    submit_host: str
    database: int
    delivered: int
    before: int
    reported: int | None
    reports_counts: bool

    @property
    def missing(self) -> int:
        """Jobs of the database that the receiver does not hold; negative where it holds more than the database has."""
        return self.database - self.delivered - self.before

    @property
    def unreported(self) -> bool:
        """Whether the number last reported to the receiver differs from what it holds."""
        return self.reports_counts and self.reported != self.delivered + self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """One target. `status` and `history` are None before its first round. `set_aside` are jobs in quarantine, by rule."""

    target: str
    format: str
    shadow: bool
    status: TargetStatus | None
    history: TargetHistory | None
    set_aside: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A period in numbers. `partial` are months of which the period holds only a part: drift is not reported for them."""

    site: str
    window: Window
    made_at: datetime
    identity: str
    by: Sequence[str]  # of LOCAL_NAMES
    has_energy: bool  # whether it was asked for
    usage: Usage
    charges: Sequence[ChargedSum]
    allocations: Sequence[UsedAllocation]
    targets: Sequence[TargetReport]
    sources: Sequence[SourceStatus]
    drift: Sequence[CountDrift]
    partial: Sequence[str]


def collect(
    site: Site, window: Window, *, by: Sequence[str], rows_read: RowsRead, all_instances: bool = False
) -> Report:
    """With `all_instances`, what the ledgers of the others say of their targets is in it too, as INSTANCE/TARGET.

    Raises: UsageError where users are asked for and not to be named; SourceError, LedgerError, ConfigError.
    """
    now, policy = site.clock(), site.policy
    _refuse_to_name_users(by, policy)
    with closing(site.ledger_to_read()) as ledger:
        states = {target.name: ledger.target(target.name) for target in site.targets}
        counts = {target.name: ledger.counts(target.name) for target in site.targets}
        set_aside = {target.name: _set_aside(ledger, target.name) for target in site.targets}
    targets = [(target, _start(target, states[target.name], now)) for target in site.targets]
    tally = UsageReport(window, policy, targets, site.power)
    with closing(site.usage()) as source:
        for page in source.groups(window, tally.eras, alone=tally.alone):
            tally.add(page)
            rows_read(page.rows_read)
    whole, partial = _months(window, now)
    return Report(
        site=site.name,
        window=window,
        made_at=now,
        identity=str(policy.identity.mode),
        by=by,
        has_energy=site.power is not None,
        usage=tally.usage,
        charges=_charges(site, window, open_to_all=policy.identity.open, usage=tally.usage),
        allocations=used_allocations(site, overlapping(site.allocations, window)),
        targets=[
            *_targets(site, states, set_aside, window),
            *([one for other in site.other_instances() for one in _recorded(other, window)] if all_instances else ()),
        ],
        sources=source_status(site),
        drift=[
            row
            for target, wanted in zip(site.targets, tally.wanted, strict=True)
            for row in _drift(target, wanted, counts[target.name], whole)
        ],
        partial=[_name(month) for month in partial],
    )


def _refuse_to_name_users(by: Sequence[str], policy: RecordPolicy) -> None:
    if "local-user" in by and not policy.identity.open:
        raise UsageError("--by local-user: records.identity does not let users be named; take --by account or project")


def _start(target: Target, state: TargetState | None, now: datetime) -> Epoch | None:
    if state is not None:
        return state.start
    begin = target.start.begin(now)
    return None if begin is None else epoch(begin)


def _set_aside(ledger: Quarantine, target: str) -> Mapping[str, int]:
    return Counter(held.job.rule for held in ledger.quarantine(target) if held.hold is not Hold.DROPPED)


def _charges(site: Site, window: Window, *, open_to_all: bool, usage: Usage) -> Sequence[ChargedSum]:
    """By project, group and unit; groups and projects of one user are named only where users are."""
    with closing(site.charge_book_to_read()) as book:
        kept = book.sums(window)
    if open_to_all:
        return kept
    sums: dict[tuple[str, str], ChargedSum] = {}
    for one in kept:
        project = one.project if one.project in usage.projects else OWN_PROJECT
        before = sums.get(
            (project, one.unit), ChargedSum(project=project, group="", unit=one.unit, jobs=0, amount=Decimal(0))
        )
        sums[project, one.unit] = replace(before, jobs=before.jobs + one.jobs, amount=before.amount + one.amount)
    return [sums[at] for at in sorted(sums)]


def _targets(
    site: Site,
    states: Mapping[str, TargetState | None],
    set_aside: Mapping[str, Mapping[str, int]],
    window: Window,
) -> list[TargetReport]:
    # Of a target without a round everything would have to be read to say that all of it waits.
    begun = [name for name, state in states.items() if state is not None]
    status = {one.target: one for one in target_status.status(site, targets=begun)[0]} if begun else {}
    with closing(site.history()) as history:
        past = history.targets(begun, window)
    return [
        TargetReport(
            target=target.name,
            format=target.format,
            shadow=target.shadow,
            status=status.get(target.name),
            history=past.get(target.name),
            set_aside=set_aside[target.name],
        )
        for target in site.targets
    ]


def _recorded(other: Site, window: Window) -> list[TargetReport]:
    """The targets of another instance, by its ledger. What waits there, and in which format, only it knows."""
    status = {one.target.partition("/")[2]: one for one in target_status.recorded_status(other)}
    with closing(other.history()) as history, closing(other.ledger_to_read()) as ledger:
        past = history.targets(list(status), window)
        return [
            TargetReport(
                target=one.target,
                format="",
                shadow=False,
                status=one,
                history=past.get(name),
                set_aside=_set_aside(ledger, name),
            )
            for name, one in status.items()
        ]


def _months(window: Window, now: datetime) -> tuple[list[int], list[int]]:
    """The months that a window holds whole, as far as they have passed, and those of which it holds a part."""
    whole: list[int] = []
    partial: list[int] = []
    this = month_of(now)
    current = month_number_of(this.year, this.month)
    first, last = month_number(window.start or 0), month_number((window.end or 1) - 1)
    for month in range(first, min(last, current) + 1):
        there = month_window(month)
        end = min(there.end or 0, epoch(now))
        is_whole = (window.start or 0) <= (there.start or 0) and end <= (window.end or 0)
        (whole if is_whole else partial).append(month)
    return whole, partial


def _drift(target: Target, wanted: ExpectedJobs, counts: HostCounts, months: Sequence[int]) -> list[CountDrift]:
    places: set[HostMonth] = {*wanted.since, *wanted.before, *counts.delivered, *counts.before, *counts.reported}
    rows = []
    for month, host in sorted(at for at in places if at[0] in months):
        at = month, host
        database, delivered = wanted.since[at] + wanted.before[at], counts.delivered.get(at, 0)
        # Some of those before our start may have been republished since.
        before = min(counts.before.get(at, wanted.before[at]), max(database - delivered, 0))
        reported = counts.reported.get(at) if target.sync else None
        theirs = not delivered and not wanted.since[at]  # another publisher's month, whose count it reported itself
        rows.append(
            CountDrift(
                target=target.name,
                month=_name(month),
                submit_host=host,
                database=database,
                delivered=delivered,
                before=before,
                reported=reported,
                reports_counts=target.sync and not (theirs and reported is None),
            )
        )
    return rows


def _name(month: int) -> str:
    year, of_year = year_and_month(month)
    return f"{year}-{of_year:02}"
