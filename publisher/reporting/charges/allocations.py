"""What projects and VOs have used of their allocations: charges as kept, hours as in the accounting data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from typing import Final

from publisher.ledger.books import ChargeRequest, RunState
from publisher.model.identity import Identity
from publisher.model.rates import GPU_HOURS, Allocation, UsedAllocation
from publisher.model.time import Window
from publisher.pipeline.site import Site
from publisher.reporting.usage import Usage, UsageReport
from publisher.sources.statistics import JobFilter, JobStatistics, Used

_STEP: Final = Decimal("0.000001")


def used_allocations(site: Site, wanted: Collection[Allocation]) -> list[UsedAllocation]:
    """By project, period and unit; not of charges that were never computed. Raises: SourceError, LedgerError, ConfigError."""
    uncharged = never_charged(site, wanted)
    asked = [replace(one, charge=None) if one in uncharged else one for one in wanted]
    charges = {one.window: _charges(site, one.window) for one in asked if one.charge is not None}
    gpu_s = {one.window: _gpu_s(site, one.window) for one in asked if one.gpu_hours is not None and one.project}
    usage = {one.window: _usage(site, one.window) for one in asked if one.vo or one.benchmark_hours is not None}
    found = [used for one in asked for used in _of_one(one, charges, gpu_s, usage)]
    return sorted(found, key=lambda each: (each.project, each.window.start or 0, each.unit))


def _of_one(
    one: Allocation,
    charges: Mapping[Window, Mapping[tuple[str, str], Decimal]],
    gpu_s: Mapping[Window, Mapping[str, int]],
    usage: Mapping[Window, Usage],
) -> Iterator[UsedAllocation]:
    """Each unit in which something was granted."""
    name = f"VO {one.vo}" if one.vo else one.project
    if one.charge is not None:
        used = charges[one.window].get((one.project, one.unit), Decimal(0))
        yield UsedAllocation(one.project, one.window, one.unit, one.charge, used)
    if one.gpu_hours is not None:
        seconds = _used(one, usage).gpu_s if one.vo else gpu_s[one.window].get(one.project, 0)
        yield UsedAllocation(name, one.window, GPU_HOURS, one.gpu_hours, _hours(seconds))
    if one.benchmark_hours is not None:
        used = _hours(Decimal(_used(one, usage).scaled[one.benchmark]) / 1000)
        yield UsedAllocation(name, one.window, f"{one.benchmark} h", one.benchmark_hours, used)


def never_charged(site: Site, wanted: Iterable[Allocation]) -> list[Allocation]:
    """Those with a charge to keep to, while no run has computed charges of their time. Raises: LedgerError."""
    asked = [one for one in wanted if one.charge is not None]
    if not asked:
        return []
    with closing(site.charge_book_to_read()) as book:
        done = [run.request for run in book.runs() if run.state is RunState.FINISHED and run.request.group is None]
    return [one for one in asked if not any(_computed(one, request) for request in done)]


def _computed(one: Allocation, request: ChargeRequest) -> bool:
    return request.project in (None, one.project) and bool(overlapping([one], request.window))


def overlapping(allocations: Iterable[Allocation], window: Window) -> list[Allocation]:
    """Those whose period has a second in common with a window."""
    return [
        one
        for one in allocations
        if (window.end is None or (one.window.start or 0) < window.end)
        and (window.start is None or one.window.end is None or window.start < one.window.end)
    ]


def _charges(site: Site, window: Window) -> Mapping[tuple[str, str], Decimal]:
    """By project and unit."""
    sums: dict[tuple[str, str], Decimal] = {}
    with closing(site.charge_book_to_read()) as book:
        for one in book.sums(window):
            at = one.project, one.unit
            sums[at] = sums.get(at, Decimal(0)) + one.amount
    return sums


def _used(one: Allocation, usage: Mapping[Window, Usage]) -> Used:
    parts = usage[one.window]
    return parts.vos.get(one.vo, Used()) if one.vo else parts.projects.get(one.project, Used())


def _hours(seconds: int | Decimal) -> Decimal:
    return (Decimal(seconds) / 3600).quantize(_STEP)


def _usage(site: Site, window: Window) -> Usage:
    """By VO and project, under the names that the site gives them."""
    # Only sums are shown: a project that has a user's name is counted like any other.
    tally = UsageReport(window, replace(site.policy, identity=Identity()), (), None)
    with closing(site.usage()) as source:
        for page in source.groups(window, tally.eras, alone=tally.alone):
            tally.add(page)
    return tally.usage


def _gpu_s(site: Site, window: Window) -> Mapping[str, int]:
    """By project."""
    tally = JobStatistics(by="project")
    with closing(site.accounts()) as accounts:
        for page in accounts.summed(JobFilter(ended=window), tally.by):
            tally.add(page.groups)
    return {project: totals.gpu_s for project, totals in tally.groups.items()}
