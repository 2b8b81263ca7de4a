"""What projects have used of their allocations: charges as kept, GPU hours as in the accounting data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from decimal import Decimal
from typing import Final

from publisher.model.rates import GPU_HOURS, Allocation, UsedAllocation
from publisher.model.time import Window
from publisher.pipeline.site import Site
from publisher.sources.statistics import JobFilter, JobStatistics

_STEP: Final = Decimal("0.000001")


def used_allocations(site: Site, wanted: Iterable[Allocation]) -> list[UsedAllocation]:
    """By project, period and unit. Raises: SourceError, LedgerError, ConfigError."""
    asked = list(wanted)
    charges = {one.window: _charges(site, one.window) for one in asked if one.charge is not None}
    gpu_s = {one.window: _gpu_s(site, one.window) for one in asked if one.gpu_hours is not None}
    found = []
    for one in asked:
        if one.charge is not None:
            used = charges[one.window].get((one.project, one.unit), Decimal(0))
            found.append(UsedAllocation(one.project, one.window, one.unit, one.charge, used))
        if one.gpu_hours is not None:
            used = (Decimal(gpu_s[one.window].get(one.project, 0)) / 3600).quantize(_STEP)
            found.append(UsedAllocation(one.project, one.window, GPU_HOURS, one.gpu_hours, used))
    return sorted(found, key=lambda each: (each.project, each.window.start or 0, each.unit))


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


def _gpu_s(site: Site, window: Window) -> Mapping[str, int]:
    """By project."""
    tally = JobStatistics(by="project")
    with closing(site.accounts()) as accounts:
        for page in accounts.summed(JobFilter(ended=window), tally.by):
            tally.add(page.groups)
    return {project: totals.gpu_s for project, totals in tally.groups.items()}
