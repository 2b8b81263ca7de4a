"""`sync --check`: is everything there? Sends nothing: reads the accounting data again and compares.

Compared, by month and submit host: the jobs of the database, what the ledger delivered, what is
pending, what was reported last and, if a copy of it was saved, what the portal shows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Final

from publisher.formats import is_summary_format, receiver_of
from publisher.jobs.reader import JobPage, StoreReader
from publisher.ledger.answers import Hold, Quarantined
from publisher.ledger.contract import Ledger, Ledgers
from publisher.model.entry import Recorded, RecordedRuns, RowId
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobKey, JobRecord, SkippedJob, key_of
from publisher.model.text import plural
from publisher.model.time import Window
from publisher.model.totals import (
    column,
    host_of,
    month_name,
    month_number,
    month_window,
    sync_host,
)
from publisher.policy.target import Target
from publisher.publishing.databases.known import jobs_of
from publisher.publishing.databases.load import loaded_alone
from publisher.publishing.databases.retired import NeverSent, never_sent
from publisher.publishing.plan.decision import Decider, Publish
from publisher.publishing.site import Site
from publisher.publishing.sync.counts import HostMonth, first_month, whoever_counts
from publisher.publishing.sync.left import left_at
from publisher.publishing.sync.portal import EVERY_HOST

UNKNOWN_MONTH: Final = 0  # of rows whose end time cannot be read
_SUMMED: Final = (
    *("database", "delivered", "restarted", "before", "quarantined"),
    *("pending", "purged", "retired"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A month and submit host, in numbers of jobs. `portal` is None without a file from there.

    `restarted` are runs among the delivered that are in no row any more: A-REX restarted their
    jobs, which have other LocalJobIDs since. They used resources, and count beside the later runs.
    """

    target: str
    month: int
    submit_host: str
    database: int  # finished, and wanted by the target
    delivered: int
    restarted: int
    before: int  # delivered earlier by another publisher our start
    quarantined: int
    pending: int
    reported: int | None
    portal: int | None
    purged: int  # delivered, and not in the database any more: `cleanup` takes rows away on purpose
    retired: int  # delivered, of databases that an administrator retired
    repairs: tuple[str, ...]

    @property
    def due(self) -> int:
        """What the receiver ought to hold."""
        return self.delivered + self.before

    @property
    def beyond(self) -> int:
        """How many jobs the portal has that are not ours, as far as one can tell."""
        return max((self.portal or 0) - self.due, 0)

    @property
    def month_name(self) -> str:
        return "unknown" if self.month == UNKNOWN_MONTH else month_name(self.month)


@dataclass(slots=True)
class _Seen:
    database: int = 0
    delivered: int = 0
    restarted: int = 0
    before: int = 0
    quarantined: int = 0
    unwanted: int = 0  # delivered, and not wanted any more
    held: int = 0  # of the quarantined, those that wait
    pending: int = 0
    retired: int = 0  # delivered, and told of by a database that is retired

    def count(self, run: Recorded | None, held: Quarantined | None, *, before_start: bool) -> None:
        """A job of the database, by what the ledger has of it."""
        if run is not None and (run.pending or run.counts):
            self.delivered += run.counts
            self.pending += run.pending
        elif held is not None:
            self.quarantine(held)
        elif before_start:
            self.before += 1
        else:
            self.pending += 1

    def quarantine(self, held: Quarantined) -> None:
        self.quarantined += 1
        self.held += held.hold is not Hold.DROPPED  # of those an administrator said: never


def jobs_to_compare(site: Site, targets: Sequence[Target], months: int | None) -> int:
    """Return how many jobs `check` looks at, as they were loaded last. Raises: LedgerError."""
    first = first_month(site.process.clock(), months)
    window = Window(start=month_window(first).start) if first else Window()
    with closing(jobs_of(site.ledgers)) as jobs:
        return jobs.count(window) * len(targets)


def check(
    site: Site,
    targets: Sequence[Target],
    *,
    months: int | None,
    portal: Mapping[HostMonth, int] | None,
    jobs_seen: Callable[[int], None] = lambda _: None,
) -> list[Compared]:
    """Compare database, ledger, sync and portal; no sending. Raises: LedgerError, SourceError."""
    found, first = list[Compared](), first_month(site.process.clock(), months)
    window = Window(start=month_window(first).start) if first else Window()
    with (
        closing(site.ledgers.to_read()) as ledger,
        loaded_alone(site, ledger.positions, sends_nothing=True, window=window) as accounting,
    ):
        for target in targets:
            one = _TargetCheck(target, accounting.jobs, ledger, first, jobs_seen)
            found += one.rows(portal)
    return found


def lost(
    ledgers: Ledgers, targets: Sequence[Target], now: datetime, *, months: int | None
) -> list[NeverSent]:
    """Return jobs of these months that retired databases lost. Raises: LedgerError."""
    first = first_month(now, months)
    with closing(ledgers.to_read()) as ledger:
        known = [one for target in targets for one in ledger.databases.known(target.name)]
    return never_sent(known, first)


class _TargetCheck:
    """Checks one target."""

    def __init__(
        self,
        target: Target,
        jobs: StoreReader,
        ledger: Ledger,
        first: int,
        jobs_seen: Callable[[int], None],
    ) -> None:
        self._target = target
        self._jobs = jobs
        self._ledger = ledger
        self._first = first
        self._jobs_seen = jobs_seen
        self._state = ledger.targets.state(target.name)
        self._start = (self._state and self._state.start) or Epoch(0)
        self._counts = ledger.counts.by_host(target.name)
        self._left = {one.month: one.number for _, one in left_at(ledger.left, [target.name])}
        self._summary = is_summary_format(target.format)
        self._seen: defaultdict[HostMonth, _Seen] = defaultdict(_Seen)
        self._hosts: dict[int, dict[RowId, str]] = {}  # by month, of the receiver's rows
        known = ledger.databases.known(target.name)
        self._retired = {one.file for one in known if one.retired is not None}
        self._of_retired: Counter[HostMonth] = Counter()
        for file in self._retired:
            self._of_retired.update(ledger.entries.counted_from(target.name, file))

    def rows(self, portal: Mapping[HostMonth, int] | None) -> Iterator[Compared]:
        """By month and submit host. Raises: LedgerError."""
        with self._jobs.snapshot():
            self._see_the_database()
        if not receiver_of(self._target.format).sync_format:
            portal = None  # it shows what receivers of counts hold
        by_host = portal if portal is not None and _differs_by_host(portal) else None
        trouble = self._trouble()
        counts = self._counts
        places = {*self._seen, *counts.delivered, *counts.before, *counts.reported}
        asked_for = self._asked_for(places | {*(by_host or {})}, trouble)
        rows = [self._compare(at, by_host, trouble.get(at[0], ())) for at in asked_for]
        yield from rows
        if portal is not None and by_host is None:
            recent = {at: jobs for at, jobs in portal.items() if at[0] >= self._first}
            yield from _whole_months(self._target, rows, recent)

    def _asked_for(self, places: Iterable[HostMonth], trouble: Iterable[int]) -> list[HostMonth]:
        """Those of the months, in order, and one of each month that has none and is in trouble."""
        found = {at for at in places if at[0] >= self._first or at[0] == UNKNOWN_MONTH}
        without = set(trouble) - {month for month, _ in found}
        return sorted(found | {(month, "") for month in without})

    def _compare(
        self, at: HostMonth, portal: Mapping[HostMonth, int] | None, trouble: Sequence[str]
    ) -> Compared:
        month, submit_host = at
        found, counts = self._seen.get(at, _Seen()), self._counts
        delivered = counts.delivered.get(at, 0)
        before_us = month != UNKNOWN_MONTH and (month_window(month).end or 0) <= self._start
        if delivered and before_us:  # by a republish: who else would deliver the rest of it?
            found = replace(found, pending=found.pending + found.before, before=0)
        reported = counts.reported.get(at) if self._target.sync else None
        in_portal = None if portal is None else portal.get(at, 0)
        here = found.delivered + found.unwanted + found.restarted
        gone = 0 if trouble else max(delivered - here, 0)
        retired = min(gone, max(self._of_retired[at] - found.retired, 0))
        compared = Compared(
            target=self._target.name,
            month=month,
            submit_host=submit_host,
            database=found.database,
            delivered=delivered,
            restarted=found.restarted,
            before=found.before,
            quarantined=found.quarantined,
            pending=found.pending,
            reported=reported,
            portal=in_portal,
            purged=gone - retired,
            retired=retired,
            repairs=(),
        )
        repairs = _repairs(self._target, compared, found, before_us, known_trouble=bool(trouble))
        return replace(compared, repairs=(*trouble, *repairs))

    def _trouble(self) -> dict[int, Sequence[str]]:
        """What is wrong with whole months: held back, or at the receiver under another site."""
        held = set(self._state.held) if self._state else set()
        totals = self._ledger.entries.months(self._target.name)
        months = {one.month for one in totals if one.format}
        months |= {month for month, _ in self._counts.delivered} | held
        months |= self._left.keys()
        asked_for = sorted(month for month in months if month >= self._first)
        found = {month: self._of_month(month, month in held) for month in asked_for}
        return {month: troubles for month, troubles in found.items() if troubles}

    def _of_month(self, month: int, held: bool) -> list[str]:
        target, name = self._target, month_name(month)
        there = [row for row in self._ledger.entries.rows(target.name, month) if row.counts.jobs]
        named = [row.key.fields.named for row in there]
        sites = {fields["Site"] for fields in named if "Site" in fields}
        others = sorted(site for site in sites if column(site) != column(target.policy.site))
        troubles = []
        if held:
            command = f"publisher publish --force --target {target.name}"
            troubles.append(f"held back: {command} says why, and what to do")
        if stays := self._left.get(month):
            rows = plural(stays, "row or record is", "rows and records are")
            command = f"publisher sync --deleted {name} --target {target.name}"
            troubles.append(f"{rows} to be deleted at the receiver: after that, {command}")
        elif others:
            command = f"publisher republish --from {name} --to {name} --target {target.name}"
            troubles.append(f"rows exist under site {', '.join(others)}: {command} says what to do")
        return troubles

    def _see_the_database(self) -> None:
        """Every wanted job of the months, and the ledger on each; unreadable rows have no host."""
        self._seen.clear()
        set_aside = set[JobKey]()
        window = Window()
        if self._first:
            window = Window(start=month_window(self._first).start)
        decider = whoever_counts(self._target, window)
        for page in self._jobs.window(window, current=True):
            set_aside |= self._see_unreadable(page.skipped)
            set_aside |= self._see_jobs(page, decider)
        self._see_set_aside(set_aside)

    def _see_jobs(self, page: JobPage, decider: Decider) -> Set[JobKey]:
        """Return those that are set aside."""
        self._jobs_seen(len(page.jobs))
        name, runs, keys = self._target.name, page.runs, list(map(key_of, page.runs))
        known = RecordedRuns(self._ledger.entries.recorded(name, runs))
        held = self._ledger.quarantine.held(name, keys)
        for key, run, job in zip(keys, runs, page.jobs, strict=True):
            is_wanted = isinstance(decider.decide(job, run, None, None), Publish)
            host = self._host(job)
            self._see_earlier(known.others(run))
            self._see(job.ended_at, host, known.get(run), held.get(key), is_wanted=is_wanted)
        return held.keys()

    def _host(self, job: JobRecord) -> str | None:
        """Return the submit host under which a job counts; None where nobody can say that."""
        try:
            return sync_host(self._target.policy.place(job).receiver_host)
        except Unfit:
            return None

    def _counted_at(self, run: Recorded) -> HostMonth:
        """Return where a run counts, whatever its source and the settings say by now."""
        month = run.row.month
        if month not in self._hosts:
            rows = self._ledger.entries.rows(self._target.name, month)
            self._hosts[month] = {row.key.id: host_of(row.key.fields.text) for row in rows}
        return month, self._hosts[month][run.row]

    def _see_earlier(self, runs: Iterable[Recorded]) -> None:
        """Delivered runs of a job that was restarted since."""
        for run in runs:
            if run.counts:
                here = self._seen[self._counted_at(run)]
                here.restarted += 1
                here.retired += run.source in self._retired

    def _see(
        self,
        ended_at: Epoch,
        host: str | None,
        known: Recorded | None,
        held: Quarantined | None,
        *,
        is_wanted: bool,
    ) -> None:
        if known is not None and not (known.pending or known.counts):
            known = None
        unwanted = not is_wanted and held is None
        if unwanted and known is None:
            return
        place = _place(ended_at, host) if known is None else self._counted_at(known)
        if self._summary and place[0] != _month(ended_at):  # totals are to follow their jobs
            place = _place(ended_at, host)
        here = self._seen[place]
        here.retired += known is not None and known.counts and known.source in self._retired
        if unwanted and known is not None and known.counts:
            here.unwanted += 1
            return
        here.database += not unwanted
        here.count(known, held, before_start=ended_at < self._start)

    def _see_set_aside(self, seen: Set[JobKey]) -> None:
        """Jobs set aside that no page had: without an end time, or not in any database now."""
        for held in self._ledger.quarantine.listed(self._target.name):
            ended_at = held.job.ended_at
            # A month of totals set aside has no end time either, but it is no row of a database.
            if ended_at is None and held.job.row.database:
                here = self._seen[UNKNOWN_MONTH, ""]
                here.database += 1
                here.quarantine(held)
            elif ended_at is not None and held.key not in seen and held.hold is not Hold.DROPPED:
                self._seen[_month(ended_at), ""].quarantine(held)

    def _see_unreadable(self, skipped: Sequence[SkippedJob]) -> Set[JobKey]:
        """See rows of a page that are not jobs: set aside, or about to be. Return the former."""
        keys = [row.key for row in skipped]
        name = self._target.name
        known = self._ledger.entries.recorded(name, [row.run_key for row in skipped])
        held = self._ledger.quarantine.held(name, keys)
        for row, key in zip(skipped, keys, strict=True):
            if row.ended_at is None:
                continue
            if key in held or (row.run_key not in known and row.ended_at >= self._start):
                here = self._seen[_month(row.ended_at), ""]
                here.database += 1
                here.count(None, held.get(key), before_start=False)
        return held.keys()


def _differs_by_host(portal: Mapping[HostMonth, int]) -> bool:
    return all(host != EVERY_HOST for _, host in portal)


def _whole_months(
    target: Target, rows: Sequence[Compared], portal: Mapping[HostMonth, int]
) -> Iterable[Compared]:
    """Months beside a portal that does not tell submit hosts apart."""
    for month in sorted({row.month for row in rows} | {month for month, _ in portal}):
        here = [row for row in rows if row.month == month]
        whole = Compared(
            target=target.name,
            month=month,
            submit_host=EVERY_HOST,
            reported=None,
            portal=sum(jobs for (at, _), jobs in portal.items() if at == month),
            repairs=(),
            **{name: sum(map(attrgetter(name), here)) for name in _SUMMED},
        )
        yield replace(whole, repairs=tuple(_of_portal(target, whole)))


def _month(ended_at: Epoch) -> int:
    try:
        return month_number(ended_at)
    except Unfit:
        return UNKNOWN_MONTH


def _place(ended_at: Epoch, host: str | None) -> HostMonth:
    month = _month(ended_at)
    return (UNKNOWN_MONTH, "") if host is None or month == UNKNOWN_MONTH else (month, host)


def _repairs(
    target: Target, row: Compared, found: _Seen, before_us: bool, *, known_trouble: bool
) -> Iterable[str]:
    """The command that fixes each difference of a row. `before_us`: the month is before our start.

    Of such a month, what we have nothing of is another publisher's, who reported the count too.
    `known_trouble`: why its counts differ is said about the whole month.
    """
    window = f"--from {row.month_name} --to {row.month_name}"
    if row.pending:
        again = f"republish {window}" if before_us else "publish --force"
        yield f"{row.pending} not delivered: publisher {again} --target {target.name}"
    if found.held:
        yield f"{found.held} set aside: publisher quarantine list --target {target.name}"
    if found.delivered + found.restarted > row.delivered and not known_trouble:
        yield f"the ledger's count differs: publisher republish {window} --target {target.name}"
    theirs = before_us and not row.delivered
    if _is_to_report(target, row, theirs):
        reported = "nothing" if row.reported is None else row.reported
        yield f"reported {reported}: publisher sync --target {target.name}"
    yield from _of_portal(target, row)


def _is_to_report(target: Target, row: Compared, theirs: bool) -> bool:
    differs = (row.reported or 0) != row.due
    return target.sync and differs and (row.reported is not None or not theirs)


def _of_portal(target: Target, row: Compared) -> Iterable[str]:
    if row.portal is not None and row.portal < row.due:
        window = f"--from {row.month_name} --to {row.month_name}"
        yield f"the portal has {row.portal}: publisher republish {window} --target {target.name}"
    if row.beyond:
        more = f"{row.beyond} more than we published"
        yield f"the portal has {row.portal}, {more}: send the text below as a ticket"
