"""What projects and VOs used of their allocations: charges kept, hours in accounting data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from functools import cache, partial
from typing import Final, NamedTuple

from publisher.jobs.usage import UsageReader
from publisher.ledger.books import ChargeRequest, RunState
from publisher.ledger.contract import Ledgers
from publisher.model.rates import GPU_HOURS, Allocation, UsedAllocation
from publisher.model.time import Window
from publisher.policy.identity import Identity
from publisher.policy.records import RecordPolicy
from publisher.publishing.databases.ask import last_loaded
from publisher.publishing.site import Site
from publisher.reporting.usage import PeriodUsage, UsageReport, Used

_STEP: Final = Decimal("0.000001")


def used_allocations(
    site: Site, jobs: UsageReader, wanted: Collection[Allocation]
) -> list[UsedAllocation]:
    """By project, period and unit, if computed. Raises: LedgerError, ConfigError."""
    uncharged = never_charged(site.ledgers, wanted)
    by_window = _ByWindow(
        cache(partial(_charges, site.ledgers)), cache(partial(_usage, site.records.policy, jobs))
    )
    found = [
        used for one in wanted for used in _of_one(one, by_window, charged=one not in uncharged)
    ]
    return sorted(found, key=lambda each: (each.project, each.window.start or 0, each.unit))


def used_by_now(site: Site, wanted: Collection[Allocation]) -> list[UsedAllocation]:
    """Return what was used of the jobs that were loaded last. Raises: LedgerError, ConfigError."""
    with closing(last_loaded(site.ledgers)) as jobs:
        return used_allocations(site, jobs, wanted)


class _ByWindow(NamedTuple):
    """What was used in a window, worked out once: charges by project and unit, and the rest."""

    charges: Callable[[Window], Mapping[tuple[str, str], Decimal]]
    usage: Callable[[Window], PeriodUsage]


def _of_one(one: Allocation, used_in: _ByWindow, *, charged: bool) -> Iterator[UsedAllocation]:
    """Each unit in which something was granted."""
    name = f"VO {one.vo}" if one.vo else one.project
    if one.charge is not None and charged:
        amount = used_in.charges(one.window).get((one.project, one.unit), Decimal(0))
        yield UsedAllocation(one.project, one.window, one.unit, one.charge, amount)
    if one.gpu_hours is not None:
        hours = _hours(_used(one, used_in).gpu_s)
        yield UsedAllocation(name, one.window, GPU_HOURS, one.gpu_hours, hours)
    if one.benchmark_hours is not None:
        hours = _hours(Decimal(_used(one, used_in).scaled[one.benchmark]) / 1000)
        yield UsedAllocation(name, one.window, f"{one.benchmark} h", one.benchmark_hours, hours)


def never_charged(ledgers: Ledgers, wanted: Iterable[Allocation]) -> list[Allocation]:
    """Those with a charge to keep to, of whose time none was computed. Raises: LedgerError."""
    asked = [one for one in wanted if one.charge is not None]
    if not asked:
        return []
    with closing(ledgers.charge_book(to_read=True)) as book:
        done = [
            run.request
            for run in book.runs()
            if run.state is RunState.FINISHED and run.request.group is None
        ]
    return [one for one in asked if not _computed(one, done)]


def _computed(one: Allocation, done: Collection[ChargeRequest]) -> bool:
    return any(
        request.project in (None, one.project) and one.window.overlaps(request.window)
        for request in done
    )


def overlapping(allocations: Iterable[Allocation], window: Window) -> list[Allocation]:
    """Those whose period has a second in common with a window."""
    return [one for one in allocations if one.window.overlaps(window)]


def _charges(ledgers: Ledgers, window: Window) -> Mapping[tuple[str, str], Decimal]:
    """By project and unit."""
    sums: dict[tuple[str, str], Decimal] = {}
    with closing(ledgers.charge_book(to_read=True)) as book:
        for one in book.sums(window):
            at = one.project, one.unit
            sums[at] = sums.get(at, Decimal(0)) + one.amount
    return sums


def _used(one: Allocation, used_in: _ByWindow) -> Used:
    parts = used_in.usage(one.window)
    return parts.vos.get(one.vo, Used()) if one.vo else parts.projects.get(one.project, Used())


def _hours(seconds: int | Decimal) -> Decimal:
    return (Decimal(seconds) / 3600).quantize(_STEP)


def _usage(policy: RecordPolicy, jobs: UsageReader, window: Window) -> PeriodUsage:
    """By VO and project, under the names that the site gives them."""
    # Only sums are shown: a project that has a user's name is counted like any other.
    tally = UsageReport(window, replace(policy, identity=Identity()), (), None)
    tally.read(jobs)
    return tally.usage
