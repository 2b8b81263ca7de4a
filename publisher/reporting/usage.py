"""What the jobs of a period used: the job store sums runs up in groups, which are added up here
under the names that the site's settings give them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from publisher.jobs.usage import FAILED, UsageGroup, UsageReader
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.published import PublishedJob
from publisher.model.rates import EnergyRules, JobEnergy
from publisher.model.text import NO_VO
from publisher.model.time import Durations, Window, epoch, months
from publisher.model.totals import month_number, month_window, sync_host
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Target

DAY_S: Final = 86_400
OWN_PROJECT: Final = "(a user's own)"
OTHER_VOS: Final = "(other VOs)"
_REMEMBERED: Final = 20_000
_NOTHING: Final = Decimal(0)
_MOST_CELLS: Final = 10_000  # some 400 kB on a page
_DROPPED_FIRST: Final = ("projects", "users", "queues")
_LEAST_VOS: Final = 7  # that are kept apart by day: as many as a plot has colours
HostMonth = tuple[int, str]
_Weight = tuple[str, int] | None


@dataclass(slots=True, kw_only=True)
class Used:
    """Sums over some jobs.

    `scaled` is wall time x cores x benchmark, in 1/1000 of (benchmark unit x seconds), by benchmark
    type; types are never added up. Jobs without a benchmark are in none. A job whose number of
    cores is unknown counts as one core.
    """

    jobs: int = 0
    failed: int = 0
    wall_s: int = 0
    wall_core_s: int = 0
    cpu_s: int = 0
    cores_unknown: int = 0
    cpu_unknown: int = 0  # jobs of which nobody measured the CPU time
    unmeasured_core_s: int = 0  # wall time x cores of those
    without_benchmark: int = 0
    scaled: Counter[str] = field(default_factory=Counter)
    gpu_jobs: int = 0
    gpu_s: int = 0  # wall time x GPUs
    measured_wh: Decimal = _NOTHING
    estimated_wh: Decimal = _NOTHING
    carbon_g: Decimal = _NOTHING
    energy_unknown: int = 0
    carbon_unknown: int = 0
    meters_rejected: int = 0

    def add(
        self, group: UsageGroup, benchmark: tuple[str, int] | None, energy: JobEnergy | None = None
    ) -> None:
        """`benchmark` is its type and 1000 times its value, `energy` that of its one job."""
        example = group.example
        self.jobs += group.jobs
        self.failed += group.jobs if example.status == FAILED else 0
        self.wall_s += group.wall_s
        self.wall_core_s += group.wall_core_s
        self.cpu_s += group.cpu_s
        if example.cpu_unknown:
            self.cpu_unknown += group.jobs
            self.unmeasured_core_s += group.wall_core_s
        self.cores_unknown += group.cores_unknown
        if group.gpus:
            self.gpu_jobs += group.jobs
            self.gpu_s += group.wall_s * group.gpu_count
        if benchmark is None:
            self.without_benchmark += group.jobs
        else:
            kind, thousandths = benchmark
            self.scaled[kind] += group.wall_core_s * thousandths
        if energy is not None:
            self._add_energy(energy)

    def _add_energy(self, energy: JobEnergy) -> None:
        self.measured_wh += energy.measured_wh
        self.estimated_wh += (energy.wh or 0) - energy.measured_wh
        self.carbon_g += energy.grams or 0
        self.energy_unknown += energy.wh is None
        self.carbon_unknown += energy.grams is None
        self.meters_rejected += energy.meter_rejected

    @property
    def efficiency(self) -> float | None:
        """CPU time over wall time x cores, of jobs whose CPU time was measured; None for none."""
        measured_core_s = self.wall_core_s - self.unmeasured_core_s
        return self.cpu_s / measured_core_s if measured_core_s else None

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.jobs if self.jobs else None

    @property
    def gpu_share(self) -> float | None:
        """Jobs with GPUs over all jobs."""
        return self.gpu_jobs / self.jobs if self.jobs else None

    def merge(self, other: Used) -> None:
        self.jobs += other.jobs
        self.failed += other.failed
        self.wall_s += other.wall_s
        self.wall_core_s += other.wall_core_s
        self.cpu_s += other.cpu_s
        self.cores_unknown += other.cores_unknown
        self.cpu_unknown += other.cpu_unknown
        self.unmeasured_core_s += other.unmeasured_core_s
        self.without_benchmark += other.without_benchmark
        self.scaled.update(other.scaled)
        self.gpu_jobs += other.gpu_jobs
        self.gpu_s += other.gpu_s
        self.measured_wh += other.measured_wh
        self.estimated_wh += other.estimated_wh
        self.carbon_g += other.carbon_g
        self.energy_unknown += other.energy_unknown
        self.carbon_unknown += other.carbon_unknown
        self.meters_rejected += other.meters_rejected


def merged(parts: Mapping[str, Used]) -> Used:
    """Return the sums over all parts."""
    whole = Used()
    for part in parts.values():
        whole.merge(part)
    return whole


def by_weight(parts: Mapping[str, Used]) -> list[tuple[str, Used]]:
    """The parts, the one with the most wall time x cores first; alike ones by name."""
    return sorted(parts.items(), key=lambda part: (-part[1].wall_core_s, -part[1].jobs, part[0]))


UsedByName = defaultdict[str, Used]


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
    names what no longer distinguishes them: projects, users, queues, small VOs (they are
    `OTHER_VOS` together). Of several years, days are added up to months before VOs are.

    Sums are `jobs`, `failed`, `wall_core_s`, `cpu_s`, `gpu_s`, and by benchmark as `Used.scaled`.
    """

    sums: dict[Cell, Counter[str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    most: int = _MOST_CELLS
    _small_vos: set[str] = field(default_factory=set)

    def add(self, cell: Cell, group: UsageGroup, weight: _Weight) -> None:
        found = self.sums.setdefault(self._coarse(cell), Counter())
        found["jobs"] += group.jobs
        found["failed"] += group.jobs if group.example.status == FAILED else 0
        found["wall_core_s"] += group.wall_core_s
        found["cpu_s"] += group.cpu_s
        found["gpu_s"] += group.wall_s * group.gpu_count
        if weight is not None:
            found[weight[0]] += group.wall_core_s * weight[1]
        # Which VOs are small is known better later: there is room for some that turn out to be.
        room = 1 if len(self.left_out) < len(_DROPPED_FIRST) else 2
        if len(self.sums) > room * self.most:
            self.fit()

    def fit(self) -> None:
        """Put cells together until there are not too many."""
        while len(self.sums) > self.most and (dropped := self._next_to_drop()):
            if dropped not in self.left_out:
                self.left_out.append(dropped)
            finer, self.sums = self.sums, {}
            for old, sums in finer.items():
                self.sums.setdefault(self._coarse(old), Counter()).update(sums)

    def _next_to_drop(self) -> str:
        """Return what no longer distinguishes cells, '' where nothing is left to drop."""
        for name in _DROPPED_FIRST:
            if name not in self.left_out:
                return name
        days = len({cell.day for cell in self.sums})
        if "days" not in self.left_out and days * _LEAST_VOS > self.most:
            return "days"
        known = len(self._small_vos)
        self._small_vos.update(self._vos_beyond(self.most - days))
        return "small VOs" if len(self._small_vos) > known else ""

    def _vos_beyond(self, room: int) -> set[str]:
        """Return the VOs with the least work, without which there are at most `room` cells."""
        work, cells = Counter[str](), Counter[str]()
        for cell, sums in self.sums.items():
            work[cell.vo] += sums["wall_core_s"]
            cells[cell.vo] += 1
        del cells[OTHER_VOS]
        largest_first = sorted(cells, key=lambda vo: (-work[vo], vo))
        upto = accumulate(cells[vo] for vo in largest_first)
        return {vo for vo, kept in zip(largest_first, upto, strict=True) if kept > room}

    def _coarse(self, cell: Cell) -> Cell:
        if not self.left_out:
            return cell
        day, vo, queue, user, _ = cell
        if "days" in self.left_out:
            day = (month_window(month_number(day * DAY_S)).start or 0) // DAY_S
        vo = OTHER_VOS if vo in self._small_vos else vo
        queue = "" if "queues" in self.left_out else queue
        user = "" if "users" in self.left_out else user
        return Cell(day, vo, queue, user, "")  # projects are left out first


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
    """Adds groups up. Policies are asked once for each kind of run and time of the same answer."""

    def __init__(
        self,
        window: Window,
        policy: RecordPolicy,
        targets: Sequence[tuple[Target, Epoch | None]],
        power: EnergyRules | None,
        *,
        names_users: bool = True,
        wanted_alone: bool = False,
    ) -> None:
        """`targets` have the end time of their first jobs. With `power`, each job is looked at.

        `wanted_alone`: only what targets want is added up.
        """
        if window.start is None or window.end is None:
            raise ValueError(f"{window} has no start or no end")
        self.usage = PeriodUsage()
        self.wanted = [ExpectedJobs() for _ in targets]
        # Submit hosts are the targets' business: a site whose targets are of different kinds has no
        # policy for them.
        self._policy = replace(policy, infrastructure="grid", imported={})
        self._targets = targets
        self._window = window
        policies = [policy, *(target.policy for target, _ in targets)]
        self._names_users = names_users and policy.identity.open
        self._power = power
        self._wanted_alone = wanted_alone
        self._depends_on_row_only = all(one.depends_on_row_only for one in policies)
        # The GPUs of a group are its own; its example may be one of other jobs.
        self._selections = [
            target.selection(Window())._replace(gpus_only=False) for target, _ in targets
        ]
        turns = _turns(window, [start for _, start in targets], policies)
        edges = [window.start, *sorted(at for at in turns if at in window), window.end]
        pairs = (pair for pair in pairwise(edges) if pair[0] != pair[1])
        self._spans = [Window(start=start, end=end) for start, end in pairs]
        self._known: dict[tuple[object, ...], _SiteValues] = {}

    def read(self, jobs: UsageReader, rows_read: Callable[[int], None] = lambda _: None) -> None:
        """Add up all jobs. Raises: LedgerError."""
        for span in self._spans:
            before, since = merged(self.usage.statuses).jobs, Epoch(span.start or 0)
            self._known.clear()
            for group in self._groups(jobs, span):
                self._add_group(group, since)
            if self._wanted_alone:
                continue
            self.usage.unreadable += jobs.unreadable(span)
            for queue, waits in jobs.waits(span).items():
                self.usage.waits.setdefault(queue, Durations()).update(waits)
            rows_read(merged(self.usage.statuses).jobs - before)
        self.usage.cells.fit()
        self.usage.total = merged(self.usage.statuses)
        for wanted in self.wanted:
            wanted.used = merged(wanted.vos)

    def _groups(self, jobs: UsageReader, span: Window) -> Iterator[UsageGroup]:
        """Yield the groups of a span; each job by itself where its energy is asked for."""
        if self._power is None:
            hosts, days = not self._depends_on_row_only, not self._wanted_alone
            return jobs.groups(span, hosts=hosts, days=days)
        return jobs.each_group(span)

    def _add_group(self, group: UsageGroup, since: Epoch) -> None:
        """Add up a group of a span that begins `since`."""
        values = self._site_values(group, since)
        if not self._wanted_alone:
            self._add(group, values)
        for wanted, (target, start), there in zip(
            self.wanted, self._targets, values.at_targets, strict=True
        ):
            if isinstance(there, _AtTarget) and target.policy.gpus_only and not group.gpus:
                there = "without GPUs: the format has only those with some"
            if isinstance(there, str):
                if there:
                    wanted.left_out[there] += group.jobs
                continue
            is_before = start is not None and since < start
            counts = wanted.before if is_before else wanted.since
            counts[month_number(since), there.host] += group.jobs
            wanted.vos[there.vo].add(group, there.weight)
            project = self._project_of(group.example)
            wanted.projects[project].add(group, there.weight)

    def _add(self, group: UsageGroup, values: _SiteValues) -> None:
        usage, example, day = self.usage, group.example, group.day
        energy = None if self._power is None else self._power.energy(example)
        local_user = example.local_user
        project = self._project_of(example)
        for sums, name in (
            (usage.statuses, example.status),
            (usage.vos, values.vo),
            (usage.queues, example.queue),
            (usage.users, values.user),
            (usage.projects, project),
            (usage.accounts, self._unless_own(example.local_group, local_user)),
            (usage.benchmarks, values.benchmark),
        ):
            sums[name].add(group, values.weight, energy)
        if self._names_users:
            usage.local_users[local_user].add(group, values.weight, energy)
        if values.arex_default and group.wall_s:
            usage.arex_default_wall_s[example.queue] += group.wall_s
        usage.days[day].add(group, values.weight, energy)
        if example.status == FAILED:
            usage.failures[FailureGroup(values.vo, example.queue, group.exit_code)].add(
                group, values.weight, energy
            )
        usage.cells.add(
            Cell(day, values.vo, example.queue, values.user, project), group, values.weight
        )
        usage.wall_core_s_by_vo[day, values.vo] += group.wall_core_s
        for model, gpus in group.gpus:
            usage.gpu_model_jobs[model] += group.jobs
            usage.gpu_model_s[model] += group.wall_s * gpus

    def number_users(self) -> None:
        """Call users by their place among all, the one with the most work first."""
        usage = self.usage
        named = [name for name, _ in by_weight(usage.users) if name]
        numbers = {"": ""} | {name: f"user {at}" for at, name in enumerate(named, 1)}
        usage.users = UsedByName(Used, {numbers[name]: used for name, used in usage.users.items()})
        cells = usage.cells.sums.items()
        usage.cells.sums = {cell._replace(user=numbers[cell.user]): sums for cell, sums in cells}

    def _project_of(self, job: JobRecord) -> str:
        return self._unless_own(next(iter(job.projects), ""), job.local_user)

    def _unless_own(self, name: str, user: str) -> str:
        """A user's own project or account is called as the user."""
        return OWN_PROJECT if name and name == user and not self._names_users else name

    def _site_values(self, group: UsageGroup, since: Epoch) -> _SiteValues:
        """Return what is said of a group, which is asked once for those that differ in nothing."""
        kind = group.kind
        if kind is None:
            return self._say(group.example._replace(ended_at=since))
        asked = kind.of_row if self._depends_on_row_only else kind
        known = self._known.get(asked)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[asked] = self._say(group.example._replace(ended_at=since))
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
            named = f"VO {vo}" if vo else NO_VO
            return f"{named}: {listed}"
        return _AtTarget(sync_host(published.where.receiver_host), _weight(published), vo)


def _weight(published: PublishedJob) -> _Weight:
    main = next(iter(published.benchmark.benchmarks), None)
    return None if main is None else (main.kind, int(main.value * 1000))
