"""What the jobs of a period used: a source sums jobs up in groups, which are added up here under
the names that the site's settings give them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.published import PublishedJob
from publisher.model.rates import EnergyRules
from publisher.model.time import Durations, Window, epoch, months
from publisher.model.totals import month_number, month_window, sync_host
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Target
from publisher.publishing.site import Site
from publisher.sources.statistics import UsageGroup, UsagePage, Used, by_weight

DAY_S: Final = 86_400
OWN_PROJECT: Final = "(a user's own)"
_REMEMBERED: Final = 20_000
_MOST_CELLS: Final = 10_000  # some 400 kB on a page
HostMonth = tuple[int, str]
UsedByName = defaultdict[str, Used]
_Weight = tuple[str, int] | None


def _used_by_name() -> UsedByName:
    return defaultdict(Used)


class FailureGroup(NamedTuple):
    """What failed jobs have in common; the exit code is None where it is not known."""

    vo: str
    queue: str
    exit_code: int | None


class Cell(NamedTuple):
    """Names that jobs of a day (since 1970) have in common."""

    day: int
    vo: str
    queue: str
    user: str
    project: str


@dataclass(slots=True)
class Cells:
    """Sums by cell, for readers who choose from them. Where there are too many cells, `left_out`
    names what they are no longer kept apart by: projects, users, queues, at last days (they are by
    month instead).

    A sum's name is `jobs`, `failed`, `wall_core_s`, `cpu_s`, `gpu_s`, or the type of a benchmark,
    as `Used.scaled` has it.
    """

    sums: dict[Cell, Counter[str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    most: int = _MOST_CELLS

    def add(self, cell: Cell, group: UsageGroup, weight: _Weight) -> None:
        wall_core_s = group.wall_s * (group.example.cpu_count or 1)
        found = self.sums.setdefault(self._coarse(cell), Counter())
        found["jobs"] += group.jobs
        found["failed"] += group.jobs if group.example.status == "failed" else 0
        found["wall_core_s"] += wall_core_s
        found["cpu_s"] += group.cpu_s or 0
        found["gpu_s"] += group.wall_s * sum(count for _, count in group.gpus)
        if weight is not None:
            found[weight[0]] += wall_core_s * weight[1]
        while len(self.sums) > self.most and len(self.left_out) < len(_COARSER):
            self.left_out.append(_COARSER[len(self.left_out)])
            finer, self.sums = self.sums, {}
            for old, sums in finer.items():
                self.sums.setdefault(self._coarse(old), Counter()).update(sums)

    def _coarse(self, cell: Cell) -> Cell:
        if "days" in self.left_out:
            cell = cell._replace(
                day=(month_window(month_number(cell.day * DAY_S)).start or 0) // DAY_S
            )
        if "projects" in self.left_out:
            cell = cell._replace(project="")
        if "queues" in self.left_out:
            cell = cell._replace(queue="")
        return cell._replace(user="") if "users" in self.left_out else cell


_COARSER: Final = ("projects", "users", "queues", "days")


@dataclass(slots=True, kw_only=True)
class PeriodUsage:
    """What the jobs of a period used, by names. Grows with names and days, not with jobs.

    Names are '' where there is none. `benchmarks` are by type and value (`HEPscore23 11.5`).
    `wall_core_s_by_vo` has the wall time x cores of each day (in days since 1970) and VO.
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
    # Under A-REX's HEPSPEC:1.0, by queue
    arex_default_wall_s: Counter[str] = field(default_factory=Counter)
    days: defaultdict[int, Used] = field(default_factory=lambda: defaultdict(Used))
    failures: defaultdict[FailureGroup, Used] = field(default_factory=lambda: defaultdict(Used))
    cells: Cells = field(default_factory=Cells)
    wall_core_s_by_vo: Counter[tuple[int, str]] = field(default_factory=Counter)
    waits: dict[str, Durations] = field(default_factory=dict)  # by queue
    # GPUs by model, '' for no known one: jobs that had some, and wall time x GPUs of the model
    gpu_model_jobs: Counter[str] = field(default_factory=Counter)
    gpu_model_s: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class ExpectedJobs:
    """Jobs that a target wants, by month and submit host: since its start, before; all's usage.

    `vos` are as the target's receiver sees them. `left_out` are jobs that it does not want, by the
    reason.
    """

    since: Counter[HostMonth] = field(default_factory=Counter)
    before: Counter[HostMonth] = field(default_factory=Counter)
    used: Used = field(default_factory=Used)
    vos: UsedByName = field(default_factory=_used_by_name)
    projects: UsedByName = field(default_factory=_used_by_name)
    left_out: Counter[str] = field(default_factory=Counter)


class _AtTarget(NamedTuple):
    """How the receiver of a target sees a job."""

    host: str
    weight: _Weight
    vo: str


@dataclass(frozen=True, slots=True)
class _SiteValues:
    """What the site says about the jobs of a group."""

    vo: str
    user: str
    arex_default: bool
    benchmark: str  # '' for none
    weight: _Weight  # its type, and 1000 times its value
    # Why a target does not want them, in words; '' for those that it sets aside
    at_targets: tuple[_AtTarget | str, ...]


def _turns(
    window: Window, starts: Iterable[Epoch | None], policies: Iterable[RecordPolicy]
) -> set[Epoch]:
    """When the answers of the policies, the month or the target's part may change."""
    found = {epoch(month.start) for month in months(window)}
    found.update(start for start in starts if start is not None)
    return found.union(*(one.change_times for one in policies))


class UsageReport:
    """Adds groups up. Policies are asked once for each example and time of the same answer."""

    def __init__(
        self,
        window: Window,
        policy: RecordPolicy,
        targets: Sequence[tuple[Target, Epoch | None]],
        power: EnergyRules | None,
        *,
        names_users: bool = True,
    ) -> None:
        """`targets` have the end time of their first jobs. With `power`, each job is looked at."""
        if window.start is None or window.end is None:
            raise ValueError(f"{window} has no start or no end")
        self.usage = PeriodUsage()
        self.wanted = [ExpectedJobs() for _ in targets]
        # Submit hosts are the targets' business: a site whose targets are of different kinds has no
        # policy for them.
        self._policy = replace(policy, infrastructure="grid", imported={})
        self._targets = targets
        self._window = window
        self._first = window.start
        policies = [policy, *(target.policy for target, _ in targets)]
        self._names_users = names_users and policy.identity.open
        self._power = power
        self._depends_on_row_only = all(one.depends_on_row_only for one in policies)
        # The GPUs of a group are its own; its example may be one of other jobs.
        self._selections = [
            target.selection(Window())._replace(gpus_only=False) for target, _ in targets
        ]
        self._turns = sorted(_turns(window, [start for _, start in targets], policies))
        self.eras = sorted({*_days(window.start, window.end), *self._turns})
        self._known: dict[tuple[object, ...], _SiteValues] = {}

    def read(self, site: Site, rows_read: Callable[[int], None] = lambda _: None) -> None:
        """Add up all jobs. Raises: SourceError, ConfigError where the source cannot sum up."""
        with closing(site.accounting.usage()) as source:
            for page in source.groups(self._window, self.eras):
                self.add(page)
                rows_read(page.rows_read)

    def add(self, page: UsagePage) -> None:
        self.usage.unreadable += page.unreadable
        for group in page.groups:
            # When the first of them may have ended: the era's beginning.
            since = self._first
            if group.era:
                since = Epoch(max(self.eras[group.era - 1], since))
            values = self._site_values(group.example, since)
            self._add(group, values, since // DAY_S)
            for wanted, (target, start), there in zip(
                self.wanted, self._targets, values.at_targets, strict=True
            ):
                if isinstance(there, _AtTarget) and target.policy.gpus_only and not group.gpus:
                    there = "without GPUs: the format has only those with some"
                if isinstance(there, str):
                    if there:
                        wanted.left_out[there] += group.jobs
                    continue
                counts = wanted.before if start is not None and since < start else wanted.since
                counts[month_number(since), there.host] += group.jobs
                wanted.used.add(group, there.weight)
                wanted.vos[there.vo].add(group, there.weight)
                local = group.names
                project = self._unless_own(local.project, local.user)
                wanted.projects[project].add(group, there.weight)

    def _add(self, group: UsageGroup, values: _SiteValues, day: int) -> None:
        usage, example = self.usage, group.example
        local = group.names
        energy = None if self._power is None else self._power.energy(example)
        project = self._unless_own(local.project, local.user)
        usage.total.add(group, values.weight, energy)
        for sums, name in (
            (usage.statuses, example.status),
            (usage.vos, values.vo),
            (usage.queues, example.queue),
            (usage.users, values.user),
            (usage.projects, project),
            (usage.accounts, self._unless_own(local.account, local.user)),
            (usage.local_users, local.user if self._names_users else ""),
            (usage.benchmarks, values.benchmark),
        ):
            sums[name].add(group, values.weight, energy)
        if values.arex_default and group.wall_s:
            usage.arex_default_wall_s[example.queue] += group.wall_s
        usage.days[day].add(group, values.weight, energy)
        if example.status == "failed":
            usage.failures[FailureGroup(values.vo, example.queue, group.exit_code)].add(
                group, values.weight, energy
            )
        usage.cells.add(
            Cell(day, values.vo, example.queue, values.user, project), group, values.weight
        )
        usage.wall_core_s_by_vo[day, values.vo] += group.wall_s * (example.cpu_count or 1)
        for model, gpus in group.gpus:
            usage.gpu_model_jobs[model] += group.jobs
            usage.gpu_model_s[model] += group.wall_s * gpus
        waits = usage.waits.setdefault(example.queue, Durations())
        waits.add(group.waits_s)
        waits.unknown += group.jobs - len(group.waits_s)

    def number_users(self) -> None:
        """Call users by their place among all, the one with the most work first."""
        usage = self.usage
        named = [name for name, _ in by_weight(usage.users) if name]
        numbers = {"": ""} | {name: f"user {at}" for at, name in enumerate(named, 1)}
        usage.users = UsedByName(Used, {numbers[name]: used for name, used in usage.users.items()})
        cells = usage.cells.sums.items()
        usage.cells.sums = {cell._replace(user=numbers[cell.user]): sums for cell, sums in cells}

    def _unless_own(self, name: str, user: str) -> str:
        """A user's own project or account is called as the user."""
        return OWN_PROJECT if name and name == user and not self._names_users else name

    def _site_values(self, example: JobRecord, since: Epoch) -> _SiteValues:
        if not self._depends_on_row_only:
            return self._say(example._replace(ended_at=since))
        at = *_words_of(example), bisect_right(self._turns, since)
        known = self._known.get(at)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[at] = self._say(example._replace(ended_at=since))
        return known

    def _say(self, job: JobRecord) -> _SiteValues:
        published = self._policy.describe(job)
        main = next(iter(published.benchmark.benchmarks), None)
        benchmark = "" if main is None else f"{main.kind} {main.text}"
        return _SiteValues(
            vo=published.who.vo,
            user=published.who.user,
            arex_default=published.benchmark.arex_default,
            benchmark=benchmark,
            weight=_weight(published),
            at_targets=tuple(self._at_target(at, job) for at in range(len(self._targets))),
        )

    def _at_target(self, at: int, job: JobRecord) -> _AtTarget | str:
        """Return what a target's receiver sees, or why the target does not want the job."""
        policy, selection = self._targets[at][0].policy, self._selections[at]
        if not selection.wants(job):
            return f"{job.status}: not in statuses"
        try:
            published = policy.describe(job)
        except Unfit:
            return ""  # it is set aside
        vo = published.who.vo
        if not selection.wants_vo(vo):
            listed = "in exclude_vos" if vo in selection.exclude_vos else "not in vos"
            return f"VO {vo or '(none)'}: {listed}"
        return _AtTarget(sync_host(published.where.receiver_host), _weight(published), vo)


def _words_of(job: JobRecord) -> tuple[object, ...]:
    """What the answers of policies depend on, unless they ask for more than the job's row."""
    who = job.user, job.vo, job.fqans[:1], job.attributes, job.side_fqan
    where = job.interface, job.endpoint, job.queue, job.lrms
    return *who, *where, job.benchmark, job.side_benchmark, job.status, job.cpu_count


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


def _days(start: int, end: int) -> Iterator[Epoch]:
    """When the days of a period begin."""
    return (Epoch(day * DAY_S) for day in range(start // DAY_S, -(-end // DAY_S)))
