"""A report of a period: what jobs used and cost, and what became of them at each target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from publisher.jobs.usage import UsageReader
from publisher.ledger.answers import Hold, HostCounts, TargetState
from publisher.ledger.books import ChargedSum, TargetHistory
from publisher.ledger.contract import Ledgers, Quarantine
from publisher.model.errors import SourceError, UsageError
from publisher.model.job import Epoch
from publisher.model.rates import UsedAllocation
from publisher.model.time import Window, epoch, iso_epoch, month_of
from publisher.model.totals import month_name, month_number, month_window
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Target
from publisher.publishing import status as target_status
from publisher.publishing.databases.ask import asked
from publisher.publishing.databases.batch_systems import SourceStatus, source_status
from publisher.publishing.databases.known import jobs_of
from publisher.publishing.databases.prune import refuse_pruned
from publisher.publishing.databases.retired import NeverSent
from publisher.publishing.site import Site
from publisher.publishing.status import TargetStatus
from publisher.reporting.charges.allocations import never_charged, overlapping, used_allocations
from publisher.reporting.usage import (
    DAY_S,
    OWN_PROJECT,
    ExpectedJobs,
    FailureGroup,
    HostMonth,
    PeriodUsage,
    UsageReport,
    Used,
)

RowsRead = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountDrift:
    """A month and submit host at a target, in jobs, as `sync --check` counts without reading each.

    `reported` is None where counts are not sent, or were not yet. Another publisher delivered
    `before`, before our start.
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
        """Jobs of the database that the receiver lacks; negative where it has more of them."""
        return self.database - self.delivered - self.before

    @property
    def unreported(self) -> bool:
        """Whether the number last reported to the receiver differs from what it holds."""
        return self.reports_counts and (self.reported or 0) != self.delivered + self.before

    @property
    def is_difference(self) -> bool:
        """Whether something is to be done, as far as counts show it.

        Nothing is where the database has fewer jobs than were delivered: others were purged since,
        restarted, or are of a retired database.
        """
        return self.missing > 0 or self.unreported

    @property
    def remark(self) -> str:
        """What differs, for people."""
        notes = []
        if self.missing > 0:
            notes.append(f"{self.missing:,} not delivered")
        if self.missing < 0:
            notes.append(f"{-self.missing:,} delivered that the database no longer has")
        if self.unreported and self.reported is None:
            notes.append("nothing reported")
        elif self.unreported:
            notes.append(f"reported {self.reported:,}")
        return "; ".join(notes) or "agrees"


class UsedMonth(NamedTuple):
    """What jobs of a month used, or of the part of it that is known; and its core hours against
    those of the month before, where both are whole.
    """

    name: str
    used: Used
    is_whole: bool
    change: float | None


class FailureReason(NamedTuple):
    """Failed jobs with one exit code; jobs by VO and by queue, most first."""

    exit_code: int | None
    jobs: int
    wall_core_s: int
    vos: Sequence[tuple[str, int]]
    queues: Sequence[tuple[str, int]]


class DeliveredJobs(NamedTuple):
    """Jobs that a target wants, those that its receiver has, and those that it lacks."""

    wanted: int
    delivered: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """One target. `status`, `history` None: no round yet. `set_aside`: quarantine by rule."""

    target: str
    format: str
    shadow: bool
    status: TargetStatus | None
    history: TargetHistory | None
    set_aside: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A period in numbers. `partial` are months that it holds in part, without a report of drift.

    `month_before` is what jobs used in the month before the period; None where the period does not
    begin with a month, or the accounting data of that month is gone.
    """

    site: str
    window: Window
    made_at: datetime
    identity: str  # a mode of records.identity, or `numbered`
    by: Sequence[str]  # of LOCAL_NAMES
    has_energy: bool  # whether it was asked for
    has_charge_rules: bool
    usage: PeriodUsage
    month_before: Used | None
    charges: Sequence[ChargedSum]
    allocations: Sequence[UsedAllocation]
    uncharged: Sequence[str]  # projects with an allocation of charges that were never computed
    targets: Sequence[TargetReport]
    sources: Sequence[SourceStatus]
    drift: Sequence[CountDrift]
    partial: Sequence[str]

    @property
    def months(self) -> Sequence[UsedMonth]:
        """The month before the period, where known, and each one of it that has begun."""
        sums: dict[int, Used] = {}
        for day, used in self.usage.days.items():
            sums.setdefault(month_number(day * DAY_S), Used()).merge(used)
        first = month_number(self.window.start or 0)
        last = max(month_number(min((self.window.end or 1) - 1, epoch(self.made_at))), first, *sums)
        if self.month_before is not None:
            sums[first - 1] = self.month_before
            first -= 1
        found: list[UsedMonth] = []
        for month in range(first, last + 1):
            is_over = (month_window(month).end or 0) <= epoch(self.made_at)
            is_whole = is_over and month_name(month) not in self.partial
            used, before = sums.get(month, Used()), found[-1] if found else None
            change = _change(before, used) if is_whole else None
            found.append(UsedMonth(month_name(month), used, is_whole, change))
        return found

    @property
    def failures(self) -> list[tuple[FailureGroup, Used]]:
        """Most jobs first."""
        found = self.usage.failures.items()
        return sorted(
            found, key=lambda one: (-one[1].jobs, one[0].vo, one[0].queue, one[0].exit_code or 0)
        )

    @property
    def failure_reasons(self) -> list[FailureReason]:
        """Failed jobs by exit code, most jobs first."""
        by_code: dict[int | None, list[tuple[FailureGroup, Used]]] = {}
        for group, used in self.failures:
            by_code.setdefault(group.exit_code, []).append((group, used))
        found = [_reason(code, groups) for code, groups in by_code.items()]
        return sorted(found, key=lambda one: (-one.jobs, one.exit_code or 0))

    @property
    def charge_command(self) -> str:
        start, end = Epoch(self.window.start or 0), Epoch(self.window.end or 0)
        first, last = month_number(start), month_number(end - 1)
        since = month_name(first) if month_window(first).start == start else iso_epoch(start)
        until = month_name(last) if month_window(last).end == end else iso_epoch(end)
        return f"publisher charge --from {since} --to {until}"

    def delivered_of(self, target: str) -> DeliveredJobs | None:
        """Of the period's whole months; None for none, or where only another instance knows."""
        rows = [row for row in self.drift if row.target == target]
        if not rows and (self.partial or target not in self._ours):
            return None
        return DeliveredJobs(
            wanted=sum(row.database for row in rows),
            delivered=sum(row.delivered + row.before for row in rows),
            missing=sum(max(row.missing, 0) for row in rows),
        )

    def lost_of(self, one: TargetReport) -> Sequence[NeverSent]:
        """Return jobs of the period's months that a target lost with retired databases."""
        first = month_number(self.window.start or Epoch(0))
        last = month_number(Epoch((self.window.end or epoch(self.made_at)) - 1))
        never_sent = one.status.never_sent if one.status else ()
        found = [each.of_months(first, last) for each in never_sent]
        return [each for each in found if each.months]

    @property
    def _ours(self) -> set[str]:
        """Targets of this instance: of others the format is not known."""
        return {one.target for one in self.targets if one.format}


def _reason(code: int | None, groups: Sequence[tuple[FailureGroup, Used]]) -> FailureReason:
    vos, queues = Counter[str](), Counter[str]()
    for group, used in groups:
        vos[group.vo] += used.jobs
        queues[group.queue] += used.jobs
    return FailureReason(
        exit_code=code,
        jobs=vos.total(),
        wall_core_s=sum(used.wall_core_s for _, used in groups),
        vos=vos.most_common(),
        queues=queues.most_common(),
    )


def _change(before: UsedMonth | None, used: Used) -> float | None:
    """In core hours, against a month that was used and is whole."""
    if before is None or not before.is_whole or not before.used.wall_core_s:
        return None
    return used.wall_core_s / before.used.wall_core_s - 1


def collect(
    site: Site,
    window: Window,
    *,
    by: Sequence[str],
    rows_read: RowsRead,
    name_users: bool = False,
    all_instances: bool = False,
) -> Report:
    """With `all_instances`, with what other instances' ledgers say, as INSTANCE/TARGET.

    Raises: UsageError where users must not be named; SourceError, LedgerError, ConfigError.
    """
    now, policy = site.process.clock(), site.records.policy
    _refuse_to_name_users(by, policy, name_users=name_users)
    states, counts, set_aside = _of_ledger(site)
    targets = [(target, _start(target, states[target.name], now)) for target in site.targets]
    open_to_all = policy.identity.open and (name_users or "local-user" in by)
    tally = UsageReport(window, policy, targets, site.records.power, names_users=open_to_all)
    allocations = overlapping(site.records.allocations, window)
    with asked(site) as jobs:
        tally.read(jobs, rows_read)
        month_before = _month_before(site, jobs, window, rows_read)
        used = used_allocations(site, jobs, allocations)
    identity = str(policy.identity.mode)
    if policy.identity.open and not name_users:
        identity = "numbered"
        tally.number_users()
    whole, partial = _months(window, now)
    others = _of_others(site.ledgers, window) if all_instances else []
    return Report(
        site=site.records.name,
        window=window,
        made_at=now,
        identity=identity,
        by=by,
        has_energy=site.records.power is not None,
        has_charge_rules=site.records.charging is not None,
        usage=tally.usage,
        month_before=month_before,
        charges=_charges(site.ledgers, window, open_to_all=open_to_all, usage=tally.usage),
        allocations=used,
        uncharged=[one.project for one in never_charged(site.ledgers, allocations)],
        targets=[*_targets(site, states, set_aside, window), *others],
        sources=source_status(site),
        drift=_all_drift(site.targets, tally.wanted, counts, whole),
        partial=list(map(month_name, partial)),
    )


def rows_to_read(site: Site, window: Window) -> int:
    """Return how many jobs `collect` reads, with those of the month before. Raises: LedgerError.

    As they were loaded last: an estimate, since `collect` loads what is new.
    """
    first = month_window(month_number(window.start or 0))
    if window.start == first.start and first.start:
        window = Window(start=month_window(month_number(first.start) - 1).start, end=window.end)
    with closing(jobs_of(site.ledgers)) as jobs:
        return jobs.count(window)


def _of_others(ledgers: Ledgers, window: Window) -> list[TargetReport]:
    return [one for other in ledgers.others() for one in _recorded(other, window)]


def _all_drift(
    targets: Sequence[Target],
    wanted: Sequence[ExpectedJobs],
    counts: Mapping[str, HostCounts],
    months: Sequence[int],
) -> list[CountDrift]:
    return [
        row
        for target, jobs in zip(targets, wanted, strict=True)
        for row in _drift(target, jobs, counts[target.name], months)
    ]


def _of_ledger(
    site: Site,
) -> tuple[
    Mapping[str, TargetState | None], Mapping[str, HostCounts], Mapping[str, Mapping[str, int]]
]:
    """By target: its state, its counts, and the jobs set aside by rule."""
    names = [target.name for target in site.targets]
    with closing(site.ledgers.to_read()) as ledger:
        states = {name: ledger.targets.state(name) for name in names}
        counts = {name: ledger.counts.by_host(name) for name in names}
        return states, counts, {name: _set_aside(ledger.quarantine, name) for name in names}


def _month_before(
    site: Site, jobs: UsageReader, window: Window, rows_read: RowsRead
) -> Used | None:
    first = month_window(month_number(window.start or 0))
    if window.start != first.start or not first.start:
        return None
    before = month_window(month_number(first.start) - 1)
    try:
        refuse_pruned(site, before)
    except SourceError:
        return None
    tally = UsageReport(before, site.records.policy, (), site.records.power)
    tally.read(jobs, rows_read)
    return tally.usage.total


def _refuse_to_name_users(by: Sequence[str], policy: RecordPolicy, *, name_users: bool) -> None:
    if policy.identity.open:
        return
    refused = "records.identity does not let users be named"
    if "local-user" in by:
        raise UsageError(f"--by local-user: {refused}; take --by account or project")
    if name_users:
        raise UsageError(f"--name-users: {refused}; leave the option out")


def _start(target: Target, state: TargetState | None, now: datetime) -> Epoch | None:
    return target.start.begin(now) if state is None else state.start


def _set_aside(quarantine: Quarantine, target: str) -> Mapping[str, int]:
    held = [one for one in quarantine.listed(target) if one.hold is not Hold.DROPPED]
    return Counter(one.job.rule for one in held)


def _charges(
    ledgers: Ledgers, window: Window, *, open_to_all: bool, usage: PeriodUsage
) -> Sequence[ChargedSum]:
    """By project, group and unit; those of one user are named only where users are."""
    with closing(ledgers.charge_book(to_read=True)) as book:
        kept = book.sums(window)
    if open_to_all:
        return kept
    sums: dict[tuple[str, str], ChargedSum] = {}
    for one in kept:
        project = one.project if one.project in usage.projects else OWN_PROJECT
        before = sums.get(
            (project, one.unit),
            ChargedSum(project=project, group="", unit=one.unit, jobs=0, amount=Decimal(0)),
        )
        sums[project, one.unit] = replace(
            before, jobs=before.jobs + one.jobs, amount=before.amount + one.amount
        )
    return [sums[at] for at in sorted(sums)]


def _targets(
    site: Site,
    states: Mapping[str, TargetState | None],
    set_aside: Mapping[str, Mapping[str, int]],
    window: Window,
) -> list[TargetReport]:
    # Of a target without a round everything would have to be read to say that all of it waits.
    begun = [name for name, state in states.items() if state is not None]
    status = (
        {one.target: one for one in target_status.status(site, targets=begun)[0]} if begun else {}
    )
    with closing(site.ledgers.history()) as history:
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


def _recorded(other: Ledgers, window: Window) -> list[TargetReport]:
    """The targets of another instance, by its ledger; only it knows what waits there."""
    status = {one.target.partition("/")[2]: one for one in target_status.recorded_status(other)}
    with closing(other.history()) as history, closing(other.to_read()) as ledger:
        past = history.targets(list(status), window)
        return [
            TargetReport(
                target=one.target,
                format="",
                shadow=False,
                status=one,
                history=past.get(name),
                set_aside=_set_aside(ledger.quarantine, name),
            )
            for name, one in status.items()
        ]


def _months(window: Window, now: datetime) -> tuple[list[int], list[int]]:
    """The months that a window holds whole, as far as they have passed, and those in part."""
    whole: list[int] = []
    partial: list[int] = []
    current = month_of(now).number
    first, last = month_number(window.start or 0), month_number((window.end or 1) - 1)
    for month in range(first, min(last, current) + 1):
        there = month_window(month)
        end = min(there.end or 0, epoch(now))
        is_whole = (window.start or 0) <= (there.start or 0) and end <= (window.end or 0)
        (whole if is_whole else partial).append(month)
    return whole, partial


def _drift(
    target: Target, wanted: ExpectedJobs, counts: HostCounts, months: Sequence[int]
) -> list[CountDrift]:
    places: set[HostMonth] = {*wanted.since, *wanted.before}
    places.update(counts.delivered, counts.before, counts.reported)
    rows = []
    for month, host in sorted(at for at in places if at[0] in months):
        at = month, host
        database, delivered = wanted.since[at] + wanted.before[at], counts.delivered.get(at, 0)
        # Some of those before our start may have been republished since.
        before = min(counts.before.get(at, wanted.before[at]), max(database - delivered, 0))
        reported = counts.reported.get(at) if target.sync else None
        # Another publisher's month, whose count it reported itself
        theirs = not delivered and not wanted.since[at]
        rows.append(
            CountDrift(
                target=target.name,
                month=month_name(month),
                submit_host=host,
                database=database,
                delivered=delivered,
                before=before,
                reported=reported,
                reports_counts=target.sync and not (theirs and reported is None),
            )
        )
    return rows
