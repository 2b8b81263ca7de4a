"""`sync --check`: is everything there? Sends nothing: reads the accounting data again and compares.

Compared, by month and submit host: the jobs of the database, what the ledger delivered, what is
pending, what was reported last and, if a copy of it was saved, what the portal shows.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Final

from publisher.formats import is_summary_format, receiver_of
from publisher.jobs.reader import JobPage, StoreReader, page_of
from publisher.ledger.answers import Hold, Quarantined
from publisher.ledger.contract import Ledger, Ledgers
from publisher.model.entry import Recorded, RecordedRuns, RowId
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobKey, JobRecord, RunKey, SkippedJob, key_of
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
from publisher.publishing.databases.known import AccountingData, jobs_of
from publisher.publishing.databases.load import loaded_alone
from publisher.publishing.databases.retired import NeverSent, never_sent
from publisher.publishing.plan.decision import Decider
from publisher.publishing.site import Site
from publisher.publishing.sync.counts import HostMonth, first_month, whoever_counts
from publisher.publishing.sync.differences import (
    UNKNOWN_MONTH,
    Compared,
    Seen,
    of_portal,
    repairs_of,
)
from publisher.publishing.sync.left import left_at
from publisher.publishing.sync.portal import EVERY_HOST

LAST_MONTH: Final = sys.maxsize
_SUMMED: Final = (
    *("database", "delivered", "restarted", "before", "quarantined"),
    *("pending", "purged", "retired"),
)


def jobs_to_compare(
    site: Site, targets: Sequence[Target], months: int | None, last: int = LAST_MONTH
) -> int:
    """Return how many jobs `check` looks at, as they were loaded last. Raises: LedgerError."""
    window = _months(first_month(site.process.clock(), months), last)
    with closing(jobs_of(site.ledgers)) as jobs:
        return jobs.count(window) * len(targets)


def _months(first: int, last: int) -> Window:
    """Return the time of some months; `first` is 0 for all up to the last one."""
    start = month_window(first).start if first else None
    end = None if last == LAST_MONTH else month_window(last).end
    return Window(start=start, end=end)


@contextmanager
def loaded_to_check(site: Site, first: int) -> Iterator[tuple[Ledger, AccountingData]]:
    """Load the sources, look through what ended from a month on, and give ledger and jobs.

    `first` is 0 for all months. Raises: LedgerError, SourceError.
    """
    window = _months(first, LAST_MONTH)
    with (
        closing(site.ledgers.to_read()) as ledger,
        loaded_alone(site, ledger.positions, sends_nothing=True, window=window) as accounting,
    ):
        yield ledger, accounting


def check(
    site: Site,
    targets: Sequence[Target],
    *,
    months: int | None,
    portal: Mapping[HostMonth, int] | None,
    jobs_seen: Callable[[int], None] = lambda _: None,
) -> list[Compared]:
    """Compare database, ledger, sync and portal; no sending. Raises: LedgerError, SourceError."""
    first = first_month(site.process.clock(), months)
    with loaded_to_check(site, first) as (ledger, accounting):
        return compared(targets, ledger, accounting.jobs, first, portal=portal, jobs_seen=jobs_seen)


def compared(
    targets: Sequence[Target],
    ledger: Ledger,
    jobs: StoreReader,
    first: int,
    last: int = LAST_MONTH,
    *,
    portal: Mapping[HostMonth, int] | None,
    jobs_seen: Callable[[int], None],
) -> list[Compared]:
    """Compare the months from the first to the last one. Raises: LedgerError."""
    found = list[Compared]()
    for target in targets:
        found += _TargetCheck(target, jobs, ledger, first, last, jobs_seen).rows(portal)
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
        last: int,
        jobs_seen: Callable[[int], None],
    ) -> None:
        self._target = target
        self._jobs = jobs
        self._ledger = ledger
        self._first = first
        self._last = last
        self._window = _months(first, last)
        self._jobs_seen = jobs_seen
        self._state = ledger.targets.state(target.name)
        self._start = (self._state and self._state.start) or Epoch(0)
        self._counts = ledger.counts.by_host(target.name)
        self._left = {one.month: one.number for _, one in left_at(ledger.left, [target.name])}
        self._summary = is_summary_format(target.format)
        self._seen: defaultdict[HostMonth, Seen] = defaultdict(Seen)
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
            recent = {at: jobs for at, jobs in portal.items() if self._is_asked_for(at[0])}
            yield from _whole_months(self._target, rows, recent)

    def _is_asked_for(self, month: int) -> bool:
        return self._first <= month <= self._last

    def _asked_for(self, places: Iterable[HostMonth], trouble: Iterable[int]) -> list[HostMonth]:
        """Those of the months, in order, and one of each month that has none and is in trouble."""
        found = {at for at in places if self._is_asked_for(at[0]) or at[0] == UNKNOWN_MONTH}
        without = set(trouble) - {month for month, _ in found}
        return sorted(found | {(month, "") for month in without})

    def _compare(
        self, at: HostMonth, portal: Mapping[HostMonth, int] | None, trouble: Sequence[str]
    ) -> Compared:
        month, submit_host = at
        found, counts = self._seen.get(at, Seen()), self._counts
        delivered = counts.delivered.get(at, 0)
        before_us = month != UNKNOWN_MONTH and (month_window(month).end or 0) <= self._start
        if delivered and before_us:  # by a republish: who else would deliver the rest of it?
            found = replace(found, pending=found.pending + found.before, before=0)
        reported = counts.reported.get(at) if self._target.sync else None
        in_portal = None if portal is None else portal.get(at, 0)
        gone = 0 if trouble else max(delivered - found.of_delivered, 0)
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
        repairs = repairs_of(self._target, compared, found, before_us, known_trouble=bool(trouble))
        return replace(compared, repairs=(*trouble, *repairs))

    def _trouble(self) -> dict[int, Sequence[str]]:
        """What is wrong with whole months: held back, or at the receiver under another site."""
        held = set(self._state.held) if self._state else set()
        totals = self._ledger.entries.months(self._target.name)
        months = {one.month for one in totals if one.format}
        months |= {month for month, _ in self._counts.delivered} | held
        months |= self._left.keys()
        asked_for = sorted(filter(self._is_asked_for, months))
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
        # A run of these months may belong to a job that has ended once more after them.
        decider = whoever_counts(self._target, replace(self._window, end=None))
        for page in self._jobs.window(self._window, current=True):
            set_aside |= self._see_unreadable(page.skipped)
            set_aside |= self._see_jobs(page, decider)
        if self._may_have_moved():
            set_aside |= self._see_jobs(self._moved(), decider)
            set_aside |= self._see_unreadable(self._moved_unreadable())
        self._see_set_aside(set_aside)

    def _may_have_moved(self) -> bool:
        """Return whether jobs that end after these months may have counted in them before."""
        if self._window.end is None:  # all were seen
            return False
        name, delivered = self._target.name, self._counts.delivered
        return (
            any(
                delivered[at] > self._seen[at].of_delivered
                for at in delivered
                if self._is_asked_for(at[0])
            )
            or self._ledger.outbox.outstanding(name) is not None
            or any(self._set_aside_here())
        )

    def _moved(self) -> JobPage:
        """Return jobs that end after these months, and were delivered or set aside in them."""
        after, name = Window(start=self._window.end), self._target.name
        moved = set[RunKey]()
        for runs in self._jobs.runs(after):
            known = RecordedRuns(self._ledger.entries.recorded(name, runs))
            moved.update(run for run in runs if self._counts_here(known, run))
        jobs = self._jobs.of_jobs(held.job.job_id for held in self._set_aside_here())
        moved.update(job.run_key for job in jobs if job.ended_at in after)
        return page_of(self._jobs.of_runs(sorted(moved), current=True))

    def _moved_unreadable(self) -> Sequence[SkippedJob]:
        """Return rows that were set aside in these months, and end after them now."""
        after = Window(start=self._window.end)
        rows = self._jobs.skipped_at(held.job.row for held in self._set_aside_here())
        return [row for row in rows if row.ended_at is not None and row.ended_at in after]

    def _counts_here(self, known: RecordedRuns, run: RunKey) -> bool:
        """Return whether a run, or another one of its job, has an entry in these months."""
        own = known.get(run)
        runs = known.others(run) if own is None else [own, *known.others(run)]
        return any(self._is_asked_for(one.row.month) for one in runs)

    def _set_aside_here(self) -> Iterator[Quarantined]:
        for held in self._ledger.quarantine.listed(self._target.name):
            ended_at = held.job.ended_at
            if ended_at is not None and ended_at in self._window and held.job.row.database:
                yield held

    def _see_jobs(self, page: JobPage, decider: Decider) -> Set[JobKey]:
        """Return those that are set aside."""
        self._jobs_seen(len(page.jobs))
        name, runs, keys = self._target.name, page.runs, list(map(key_of, page.runs))
        known = RecordedRuns(self._ledger.entries.recorded(name, runs))
        held = self._ledger.quarantine.held(name, keys)
        for key, run, job in zip(keys, runs, page.jobs, strict=True):
            is_wanted, host = decider.wants(job), self._host(job)
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
        yield replace(whole, repairs=tuple(of_portal(target, whole)))


def _month(ended_at: Epoch) -> int:
    try:
        return month_number(ended_at)
    except Unfit:
        return UNKNOWN_MONTH


def _place(ended_at: Epoch, host: str | None) -> HostMonth:
    month = _month(ended_at)
    return (UNKNOWN_MONTH, "") if host is None or month == UNKNOWN_MONTH else (month, host)
