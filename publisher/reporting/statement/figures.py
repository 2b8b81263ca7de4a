"""The figures of a statement, month by month; only reads.

Counts no job by itself: jobs are compared as by `sync --check`, usage is summed up as in a report,
and the rest is what the ledger knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Final

from publisher.formats import receiver_of
from publisher.jobs.queries import open_queries
from publisher.jobs.usage import UsageReader
from publisher.ledger.answers import Hold
from publisher.ledger.books import History, SentMessages
from publisher.ledger.contract import Counts, Earlier, Entries, Ledger, Ledgers
from publisher.model.entry import EarlierRuns
from publisher.model.errors import UsageError
from publisher.model.time import Month, epoch, iso, month_of
from publisher.policy.target import Target
from publisher.publishing.databases.batch_systems import SourceStatus, source_status
from publisher.publishing.databases.retired import NeverSent, never_sent
from publisher.publishing.site import Site
from publisher.publishing.status import earlier_of
from publisher.publishing.sync import check
from publisher.publishing.sync.counts import HostMonth
from publisher.publishing.sync.differences import UNKNOWN_MONTH, Compared
from publisher.publishing.sync.left import LeftBehind, left_behind
from publisher.publishing.sync.portal import EVERY_HOST
from publisher.reporting.statement.work import (
    VoWork,
    Work,
    delivered_rows,
    total,
    work_at_ce,
    work_by_vo,
)
from publisher.reporting.usage import ExpectedJobs, UsageReport, Used, by_weight

_LATE_S: Final = 7 * 86_400  # after its end a job is recorded, at the latest as a rule
_COUNTS: Final = ("before", "pending", "quarantined", "purged", "retired", "restarted")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatement:
    """A month of one target.

    `at_ce` are the jobs that the target wants, with the usage of `measured` jobs: there may be none
    of those that were set aside. `emptied`: its jobs ended in other months after all, and the
    receiver was sent zeros for all that it had. `missing` says what is not as it should be, each
    with the command for it. `left_out` are jobs of the month that the target does not want, by the
    reason. `by_vo` are those that it wants, and what was delivered; `by_project` only the former,
    because no receiver is told of projects.
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
    retired: int
    restarted: int
    emptied: bool
    sent: SentMessages
    earlier: EarlierRuns | None
    left: Sequence[LeftBehind]
    never_sent: Sequence[NeverSent]
    missing: Sequence[str]
    left_out: Mapping[str, int]
    by_vo: Mapping[str, VoWork]
    by_project: Mapping[str, Work]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStatement:
    """A month of another instance's target, INSTANCE/TARGET: what its ledger has alone."""

    target: str
    last_success: datetime | None
    delivered: Work
    before: int
    reported: int | None
    portal: int | None
    quarantined: int
    held: bool
    emptied: bool
    sent: SentMessages
    never_sent: Sequence[NeverSent]
    missing: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """`alarms` are sources that may lack jobs. `others` are other instances' targets.

    `has_no_data`: no job in the accounting data ended in the month or before it.
    """

    site: str
    month: Month
    made_at: datetime
    has_no_data: bool
    targets: Sequence[TargetStatement]
    others: Sequence[RecordedStatement] | None
    alarms: Sequence[str]

    @property
    def is_over(self) -> bool:
        return self.month.next.start <= self.made_at

    @property
    def different(self) -> bool:
        return any(each.missing for each in self._all())

    def _all(self) -> list[TargetStatement | RecordedStatement]:
        return [*self.targets, *(self.others or ())]

    def delivered(self) -> Mapping[str, int]:
        """Jobs by the target's name, of all instances: equal names send to the same place."""
        jobs: Counter[str] = Counter()
        for each in self._all():
            jobs[each.target.rpartition("/")[2]] += each.delivered.jobs
        return jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was found of all targets, of all months that were asked for."""

    month: Month
    rows: Sequence[Compared]
    wanted: Mapping[str, ExpectedJobs]
    left: Sequence[tuple[str, LeftBehind]]
    gpus_known: bool
    has_no_data: bool  # no job ended in the month or before it

    def gpu_s(self, target: Target) -> int | None:
        """What no source tells is unknown, not zero."""
        return self.wanted[target.name].used.gpu_s if self.gpus_known else None

    @property
    def number(self) -> int:
        return self.month.number

    def rows_of(self, target: Target) -> list[Compared]:
        """With those whose month nobody knows."""
        months = (self.number, UNKNOWN_MONTH)
        return [row for row in self.rows if row.target == target.name and row.month in months]

    def left_of(self, target: Target) -> list[LeftBehind]:
        return [one for name, one in self.left if name == target.name and one.month == self.number]


def collect(
    site: Site,
    targets: Sequence[Target],
    months: Sequence[Month],
    *,
    portal: Mapping[HostMonth, int] | None,
    jobs_seen: Callable[[int], None],
    all_instances: bool = False,
) -> list[Statement]:
    """Return the statement of each month.

    Raises: SourceError, LedgerError, UsageError; ConfigError where the source cannot sum up.
    """
    now = site.process.clock()
    back = month_of(now).number - months[0].number + 1
    others: dict[Month, list[RecordedStatement]] = {}
    if all_instances:
        for month in months:
            others[month], portal = _others(site.ledgers, month, portal, now)
    found, first = list[Statement](), months[0].number
    with (
        check.loaded_to_check(site, first) as (ledger, accounting),
        closing(open_queries(accounting.jobs.path)) as jobs,
        jobs.snapshot(),
    ):
        rows = check.compared(
            *(targets, ledger, accounting.jobs, first, months[-1].number),
            portal=portal,
            jobs_seen=jobs_seen,
        )
        left = left_behind(site.ledgers, targets, now, months=back)
        sources = source_status(site)
        for month in months:
            of_month = _Found(
                month=month,
                rows=rows,
                wanted=_wanted(site, jobs, targets, month),
                left=left,
                gpus_known=bool(site.batch_systems.entries),  # A-REX does not know them
                has_no_data=not jobs.has_any(replace(month.window, start=None)),
            )
            alarms = [line for one in sources for line in _alarms(one, month)]
            found.append(_month_statement(site, targets, of_month, others.get(month), alarms))
    return found


def _alarms(source: SourceStatus, month: Month) -> Iterator[str]:
    """Yield why jobs of a month may be missing.

    A source that fell silent more than a week after the month has recorded the month's late jobs.
    """
    if source.alarm:
        yield source.alarm
    ended_at = None if source.newest is None else source.newest.ended_at
    if source.silence and (ended_at or 0) < epoch(month.next.start) + _LATE_S:
        yield source.silence


def _month_statement(
    site: Site,
    targets: Sequence[Target],
    found: _Found,
    others: Sequence[RecordedStatement] | None,
    alarms: Sequence[str],
) -> Statement:
    month = found.month
    with closing(site.ledgers.history()) as history, closing(site.ledgers.to_read()) as ledger:
        stated = [
            replace(
                _of_target(target, found, ledger, history),
                earlier=_earlier(site, target, month, ledger.earlier),
            )
            for target in targets
        ]
    return Statement(
        site=site.records.name,
        month=month,
        made_at=site.process.clock(),
        has_no_data=found.has_no_data,
        targets=stated,
        others=others,
        alarms=alarms,
    )


def _wanted(
    site: Site, jobs: UsageReader, targets: Sequence[Target], month: Month
) -> Mapping[str, ExpectedJobs]:
    """Return the jobs that each target wants, and those that it does not."""
    tally = UsageReport(
        month.window,
        site.records.policy,
        [(target, None) for target in targets],
        power=None,
        names_users=False,
        wanted_alone=True,
    )
    tally.read(jobs)
    return {target.name: wanted for target, wanted in zip(targets, tally.wanted, strict=True)}


def _of_target(target: Target, found: _Found, ledger: Ledger, history: History) -> TargetStatement:
    number, wanted = found.number, found.wanted[target.name]
    used = wanted.used
    rows = found.rows_of(target)
    all_hosts = [row for row in rows if row.month == number]
    here = [row for row in all_hosts if row.submit_host != EVERY_HOST]
    jobs = sum(row.database for row in here)
    sent = delivered_rows(target.name, number, sum(row.delivered for row in here), ledger.entries)
    delivered = _with_gpus(total(sent), target, found, here)
    state = ledger.targets.state(target.name)
    return TargetStatement(
        target=target.name,
        format=target.format,
        shadow=target.shadow,
        at_ce=replace(work_at_ce(used), jobs=jobs, gpu_s=found.gpu_s(target)),
        measured=used.jobs,
        delivered=delivered,
        reported=_sum_of_known(row.reported for row in here),
        portal=_sum_of_known(row.portal for row in all_hosts),
        held=state is not None and number in state.held,
        emptied=_has_emptied_rows(ledger.entries, target.name, number),
        sent=history.sent(target.name, found.month.window),
        earlier=None,
        left=found.left_of(target),
        never_sent=never_sent(ledger.databases.known(target.name), number, number),
        missing=[*_repairs(rows), *_other_usage(target, found.month, here, used, delivered)],
        left_out=wanted.left_out,
        by_vo=work_by_vo(wanted.vos, sent),
        by_project={name: work_at_ce(each) for name, each in by_weight(wanted.projects)},
        **_sums(here),
    )


def _earlier(site: Site, target: Target, month: Month, earlier: Earlier) -> EarlierRuns | None:
    """Return what is known of the month's jobs that were sent under other settings, if any were."""
    if (found := earlier_of(site, target, earlier)) is None:
        return None
    of_month = found.of_month(month.number)
    return None if of_month.months == {} else of_month


def _with_gpus(delivered: Work, target: Target, found: _Found, rows: Sequence[Compared]) -> Work:
    """GPU time, which no ledger keeps: the CE's, where just its jobs were delivered as they are."""
    usage = attrgetter("jobs", "wall_s", "cpu_s")
    same_usage = usage(found.wanted[target.name].used) == usage(delivered)
    if receiver_of(target.format).gpus_only and same_usage and _same_jobs(rows):
        return replace(delivered, gpu_s=found.gpu_s(target))
    return delivered


def _others(
    ledgers: Ledgers, month: Month, portal: Mapping[HostMonth, int] | None, now: datetime
) -> tuple[list[RecordedStatement], Mapping[HostMonth, int] | None]:
    """The other instances' targets, and the portal's counts without those of their hosts."""
    number = month.number
    if portal is not None and (number, EVERY_HOST) in portal:
        needed = "the submit hosts in the portal's file: each belongs to an instance"
        raise UsageError(f"--all-instances needs {needed}")
    others: list[RecordedStatement] = []
    theirs: set[HostMonth] = set()
    for other in ledgers.others():
        with (
            closing(other.history()) as history,
            closing(other.to_read()) as ledger,
        ):
            for name in ledger.targets.names():
                at = _places(ledger.counts, name, number)
                theirs |= at
                in_portal = _sum_of_known(portal.get(place) for place in at) if portal else None
                sent = history.sent(name, month.window)
                one = _of_other(other.instance, name, month, ledger, sent, in_portal, now)
                others.append(one)
    own = portal and {at: jobs for at, jobs in portal.items() if at not in theirs}
    return others, own


def _places(counts: Counts, target: str, month: int) -> set[HostMonth]:
    """Where jobs of a month were delivered, by us or before us."""
    found = counts.by_host(target)
    return {place for place in (*found.delivered, *found.before) if place[0] == month}


def _of_other(
    instance: str,
    name: str,
    month: Month,
    ledger: Ledger,
    sent: SentMessages,
    portal: int | None,
    now: datetime,
) -> RecordedStatement:
    number = month.number
    state, counts = ledger.targets.state(name), ledger.counts.by_host(name)
    held = [each.job for each in ledger.quarantine.listed(name) if each.hold is not Hold.DROPPED]
    reported = _of_month(counts.reported, number) if counts.reported else None
    found = RecordedStatement(
        target=f"{instance}/{name}",
        last_success=state and state.last_success,
        delivered=total(
            delivered_rows(name, number, _of_month(counts.delivered, number), ledger.entries)
        ),
        before=_of_month(counts.before, number),
        reported=reported,
        portal=portal,
        quarantined=sum(one.ended_at is not None and one.ended_at in month.window for one in held),
        held=state is not None and number in state.held,
        emptied=_has_emptied_rows(ledger.entries, name, number),
        sent=sent,
        never_sent=never_sent(ledger.databases.known(name), number, number),
        missing=(),
    )
    missing = [f"{line}, at {instance}" for line in _missing_there(found, name, month, now)]
    return replace(found, missing=missing)


def _has_emptied_rows(entries: Entries, target: str, month: int) -> bool:
    months = (each for each in entries.months(target) if each.month == month)
    return any(each.format and not each.counts.jobs for each in months)


def _of_month(counts: Mapping[HostMonth, int], month: int) -> int:
    return sum(jobs for at, jobs in counts.items() if at[0] == month)


def _missing_there(
    found: RecordedStatement, name: str, month: Month, now: datetime
) -> Iterator[str]:
    """What a ledger alone tells of a month that may be missing at the receiver."""
    jobs = found.delivered.jobs + found.before
    if found.last_success is None:
        yield f"nothing was ever delivered: publisher doctor --target {name}"
    elif found.last_success < month.next.start <= now:
        last = f"last success at {iso(found.last_success)}, before the month ended"
        yield f"{last}: publisher publish --target {name}"
    if found.held:
        yield f"held back: publisher publish --force --target {name}"
    if found.quarantined:
        yield f"{found.quarantined} set aside: publisher quarantine list --target {name}"
    if found.reported is not None and found.reported != jobs:
        yield f"told {found.reported:,} of {jobs:,} jobs: publisher sync --target {name}"
    if found.portal is not None and found.portal != jobs:
        known = f"the portal has {found.portal:,} of {jobs:,} jobs"
        yield f"{known}: publisher statement {month} --portal FILE"


def _sums(rows: Sequence[Compared]) -> dict[str, int]:
    return {name: sum(map(attrgetter(name), rows)) for name in _COUNTS}


def _sum_of_known(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _repairs(rows: Sequence[Compared]) -> Iterator[str]:
    """What `sync --check` says of each submit host, and of the whole month once."""
    hosts = {row.submit_host for row in rows if row.month != UNKNOWN_MONTH} - {EVERY_HOST}
    repairs = [(row, repair) for row in rows for repair in row.repairs]
    times = Counter(repair for _, repair in repairs)
    lines = [
        _of_host(row, repair, alone=len(hosts) > 1 and times[repair] == 1)
        for row, repair in repairs
    ]
    yield from dict.fromkeys(lines)


def _of_host(row: Compared, repair: str, *, alone: bool) -> str:
    if row.month == UNKNOWN_MONTH:
        return f"rows without a readable end time: {repair}"
    if not alone or row.submit_host == EVERY_HOST:
        return repair
    return f"{row.submit_host or 'no submit host'}: {repair}"


def _other_usage(
    target: Target, month: Month, rows: Sequence[Compared], used: Used, delivered: Work
) -> Iterator[str]:
    """Where the same jobs were delivered with other usage; other jobs differ by right."""
    if not _same_jobs(rows) or delivered.wall_s is None or used.jobs != delivered.jobs:
        return
    if (used.wall_s, used.cpu_s) != (delivered.wall_s, delivered.cpu_s):
        yield (
            f"delivered with {delivered.wall_s:,} s of wall and {delivered.cpu_s:,} s of CPU time, "
            f"the CE has {used.wall_s:,} s and {used.cpu_s:,} s: "
            f"publisher republish --from {month} --to {month} --target {target.name}"
        )


def _same_jobs(rows: Sequence[Compared]) -> bool:
    """Whether just the CE's jobs were delivered, and none of them has to go out again."""
    return all(
        row.database == row.delivered
        and not (row.pending or row.purged or row.retired or row.restarted)
        for row in rows
    )
