"""What a report reports on a period: what jobs used, what they cost, what became of them at each target. Only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from publisher.ledger.books import ChargedSum, TargetHistory
from publisher.ledger.contract import Hold, HostCounts, Quarantine, TargetState
from publisher.model.job import Epoch
from publisher.model.target import Target
from publisher.model.time import Window, epoch, month_of
from publisher.model.totals import month_number, month_number_of, month_window, year_and_month
from publisher.pipeline import status as target_status
from publisher.pipeline.site import Site
from publisher.pipeline.status import TargetStatus
from publisher.reporting.usage import OWN_PROJECT, ExpectedJobs, HostMonth, Usage, UsageReport

RowsRead = Callable[[int], None]


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
    usage: Usage
    charges: Sequence[ChargedSum]
    targets: Sequence[TargetReport]
    drift: Sequence[CountDrift]
    partial: Sequence[str]


def collect(site: Site, window: Window, *, rows_read: RowsRead) -> Report:
    """Raises: SourceError, LedgerError, ConfigError."""
    now, policy = site.clock(), site.policy
    with closing(site.ledger_to_read()) as ledger:
        states = {target.name: ledger.target(target.name) for target in site.targets}
        counts = {target.name: ledger.counts(target.name) for target in site.targets}
        set_aside = {target.name: _set_aside(ledger, target.name) for target in site.targets}
    tally = UsageReport(window, policy, [(target, _start(target, states[target.name], now)) for target in site.targets])
    with closing(site.usage()) as source:
        for page in source.groups(window, tally.eras, alone=tally.alone, own_projects=tally.own_projects):
            tally.add(page)
            rows_read(page.rows_read)
    whole, partial = _months(window, now)
    return Report(
        site=site.name,
        window=window,
        made_at=now,
        identity=str(policy.identity.mode),
        usage=tally.usage,
        charges=_charges(site, window, open_to_all=policy.identity.open, usage=tally.usage),
        targets=_targets(site, states, set_aside, window),
        drift=[
            row
            for target, wanted in zip(site.targets, tally.wanted, strict=True)
            for row in _drift(target, wanted, counts[target.name], whole)
        ],
        partial=[_name(month) for month in partial],
    )


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
    known = usage.projects.keys()
    sums: dict[tuple[str, str], ChargedSum] = {}
    for one in kept:
        project = one.project if one.project in known else OWN_PROJECT
        before = sums.get((project, one.unit))
        sums[project, one.unit] = ChargedSum(
            project=project,
            group="",
            unit=one.unit,
            jobs=one.jobs + (before.jobs if before else 0),
            amount=one.amount + (before.amount if before else 0),
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
