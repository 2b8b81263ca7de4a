"""Jobs for other systems, page by page, each with what the site says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from publisher.model.errors import Unfit
from publisher.model.job import JobRecord
from publisher.model.rates import EnergyRules
from publisher.policy.records import SiteRecords
from publisher.reporting.charges.power import Power
from publisher.reporting.export.columns import ExportedJob


def described(
    records: SiteRecords, pages: Iterable[Sequence[JobRecord]], jobs_seen: Callable[[int], None]
) -> Iterator[list[ExportedJob]]:
    """Yield pages of jobs with what the site says of them."""
    power = records.power or Power()
    for page in pages:
        yield [_described(records, power, job) for job in page]
        jobs_seen(len(page))


def _described(records: SiteRecords, power: EnergyRules, job: JobRecord) -> ExportedJob:
    policy, published, reason = records.policy, None, ""
    try:
        published = policy.describe(job)
    except Unfit as unfit:
        reason = str(unfit)
    energy = power.energy(job)
    return ExportedJob(job=job, policy=policy, published=published, unfit=reason, energy=energy)
