"""The statement of a month: was it all counted? Only reads.

Counts no job by itself: jobs are compared as by `sync --check`, usage is summed up as in a report, and the rest is what the
ledger knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from publisher.ledger.books import History, SentMessages
from publisher.ledger.contract import Ledger, MonthState
from publisher.model.target import Target
from publisher.model.time import Month, month_of
from publisher.model.totals import AcceptedChange, KeyTotal, SummaryGroup, month_number_of
from publisher.pipeline.batch_systems import source_status
from publisher.pipeline.site import Site
from publisher.pipeline.sync import check
from publisher.pipeline.sync.check import UNKNOWN_MONTH, Compared
from publisher.pipeline.sync.counts import HostMonth
from publisher.pipeline.sync.portal import EVERY_HOST
from publisher.reporting.usage import UsageReport
from publisher.sources.statistics import Used

_SI2K_PER_THOUSANDTH: Final = 4  # a group has a 250th of a Si2k second, in millionths
_MICRO_PER_THOUSANDTH: Final = 1000
_COUNTS: Final = ("before", "pending", "quarantined", "purged", "restarted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What jobs used; None is unknown.

    `scaled` is wall time x cores x benchmark in 1/1000 of (benchmark unit x seconds), by benchmark type.
    """

    jobs: int
    wall_s: int | None = None
    cpu_s: int | None = None
    scaled: Mapping[str, int] | None = None
    gpu_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatement:
    """A month of one target.

    `at_ce` are the jobs that the target wants, with the usage of `measured` jobs: there may be none
    of those that were set aside. `emptied`: its jobs ended in other months after all, and the receiver
    was sent zeros for all that it had. `missing` says what is not as it should be, each with the command for it.
    """

    target: str
    format: str
    shadow: bool
    at_ce: Work
    measured: int
    delivered: Work
    before: int
    pending: int
    reported: int | None
    portal: int | None
    quarantined: int
    held: bool
    purged: int
    restarted: int
    emptied: bool
    sent: SentMessages
    accepted: Sequence[AcceptedChange]
    missing: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """`alarms` are sources of which jobs may be missing."""

    site: str
    month: Month
    made_at: datetime
    targets: Sequence[TargetStatement]
    alarms: Sequence[str]

    @property
    def is_over(self) -> bool:
        return self.month.next.start <= self.made_at

    @property
    def different(self) -> bool:
        return any(each.missing for each in self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was found of all targets, of this month and later ones."""

    month: Month
    rows: Sequence[Compared]
    used: Mapping[str, Used]
    accepted: Sequence[tuple[str, AcceptedChange]]

    @property
    def number(self) -> int:
        return month_number_of(self.month.year, self.month.month)

    def rows_of(self, target: Target) -> list[Compared]:
        """With those whose month nobody knows."""
        months = (self.number, UNKNOWN_MONTH)
        return [row for row in self.rows if row.target == target.name and row.month in months]

    def accepted_of(self, target: Target) -> list[AcceptedChange]:
        return [one for name, one in self.accepted if name == target.name and one.month == self.number]


def collect(
    site: Site,
    targets: Sequence[Target],
    month: Month,
    *,
    portal: Mapping[HostMonth, int] | None,
    jobs_seen: Callable[[int], None],
) -> Statement:
    """Raises: SourceError, LedgerError, ConfigError where the source cannot sum up what jobs used."""
    now, number = site.clock(), month_number_of(month.year, month.month)
    this = month_of(now)
    # To the end, not only this month: a job of it that was restarted has a row in a later one.
    back = month_number_of(this.year, this.month) - number + 1
    found = _Found(
        month=month,
        rows=check.check(site, targets, months=back, portal=portal, jobs_seen=jobs_seen),
        used=_used(site, targets, month),
        accepted=check.accepted(site, targets, months=back),
    )
    with closing(site.history()) as history, closing(site.ledger_to_read()) as ledger:
        stated = [_of_target(target, found, ledger, history) for target in targets]
    alarms = [line for one in source_status(site) for line in (one.alarm, one.silence) if line]
    return Statement(site=site.name, month=month, made_at=now, targets=stated, alarms=alarms)


def _used(site: Site, targets: Sequence[Target], month: Month) -> Mapping[str, Used]:
    """What the jobs used that each target wants."""
    tally = UsageReport(month.window, site.policy, [(target, None) for target in targets], power=None)
    with closing(site.usage()) as source:
        for page in source.groups(month.window, tally.eras, alone=tally.alone):
            tally.add(page)
    return {target.name: wanted.used for target, wanted in zip(targets, tally.wanted, strict=True)}


def _of_target(target: Target, found: _Found, ledger: Ledger, history: History) -> TargetStatement:
    number, used = found.number, found.used[target.name]
    rows = found.rows_of(target)
    all_hosts = [row for row in rows if row.month == number]
    here = [row for row in all_hosts if row.submit_host != EVERY_HOST]
    jobs = sum(row.database for row in here)
    delivered = _delivered(target.name, number, sum(row.delivered for row in here), ledger)
    state = ledger.target(target.name)
    return TargetStatement(
        target=target.name,
        format=target.format,
        shadow=target.shadow,
        at_ce=Work(jobs=jobs, wall_s=used.wall_s, cpu_s=used.cpu_s, scaled=used.scaled, gpu_s=used.gpu_s),
        measured=used.jobs,
        delivered=delivered,
        reported=_sum_of_known(row.reported for row in here),
        portal=_sum_of_known(row.portal for row in all_hosts),
        held=state is not None and number in state.held,
        emptied=any(map(_is_emptied, (each for each in ledger.months(target.name) if each.month == number))),
        sent=history.sent(target.name, found.month.window),
        accepted=found.accepted_of(target),
        missing=[*_repairs(rows), *_other_usage(target, found.month, here, used, delivered)],
        **_sums(here),
    )


def _sums(rows: Sequence[Compared]) -> dict[str, int]:
    return {name: sum(getattr(row, name) for row in rows) for name in _COUNTS}


def _is_emptied(month: MonthState) -> bool:
    return bool(month.accepted_digest) and not month.accepted_jobs


def _sum_of_known(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _delivered(target: str, month: int, jobs: int, ledger: Ledger) -> Work:
    """What the receiver accepted, as far as the ledger keeps that: sums by the receiver's keys, but not each job's."""
    groups = ledger.accepted(target, month)
    singles = [total for total, _ in ledger.summary_keys(target, month)]
    sums: list[SummaryGroup | KeyTotal] = [*groups, *singles]
    if sum(each.jobs for each in sums) != jobs:
        return Work(jobs=jobs)
    scaled: Counter[str] = Counter()
    for group in groups:
        per_unit = _SI2K_PER_THOUSANDTH if group.kind == "Si2k" else _MICRO_PER_THOUSANDTH
        scaled[group.kind] += group.normalised_wall_micro * (group.cpu_count or 1) // per_unit
    return Work(
        jobs=jobs,
        wall_s=sum(each.wall_s for each in sums),
        cpu_s=sum(each.cpu_s for each in sums),
        scaled=None if singles else scaled,
    )


def _repairs(rows: Sequence[Compared]) -> Iterator[str]:
    """What `sync --check` says of each submit host, and of the whole month once."""
    hosts = {row.submit_host for row in rows if row.month != UNKNOWN_MONTH} - {EVERY_HOST}
    repairs = [(row, repair) for row in rows for repair in row.repairs]
    times = Counter(repair for _, repair in repairs)
    lines = [_of_host(row, repair, alone=len(hosts) > 1 and times[repair] == 1) for row, repair in repairs]
    yield from dict.fromkeys(lines)


def _of_host(row: Compared, repair: str, *, alone: bool) -> str:
    if row.month == UNKNOWN_MONTH:
        return f"rows without a readable end time: {repair}"
    return f"{row.submit_host or 'no submit host'}: {repair}" if alone and row.submit_host != EVERY_HOST else repair


def _other_usage(target: Target, month: Month, rows: Sequence[Compared], used: Used, delivered: Work) -> Iterator[str]:
    """Where the same jobs were delivered with other usage; of other jobs it is other usage by right."""
    same = all(row.database == row.delivered and not (row.purged or row.restarted) for row in rows)
    if not same or delivered.wall_s is None or used.jobs != delivered.jobs:
        return
    if (used.wall_s, used.cpu_s) != (delivered.wall_s, delivered.cpu_s):
        yield (
            f"delivered with {delivered.wall_s:,} s of wall and {delivered.cpu_s:,} s of CPU time, "
            f"the CE has {used.wall_s:,} s and {used.cpu_s:,} s: "
            f"publisher republish --from {month} --to {month} --target {target.name}"
        )
