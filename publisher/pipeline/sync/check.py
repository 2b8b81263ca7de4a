"""`sync --check`: is everything there? Sends nothing: reads the accounting data again and compares.

Of rows that the ledger knows by their numbers and ends only the kinds are read, and counted; all
others are compared job by job.

Compared, by month and submit host: the jobs of the database, what the ledger delivered, what is
pending, what was reported last and, if a copy of it was saved, what the portal shows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from publisher.formats import is_summary_format, receiver_of
from publisher.ledger.contract import DeliveredRun, Hold, Ledger, Quarantined
from publisher.model.errors import Unfit
from publisher.model.job import (
    JOB_DIGEST_BYTES,
    Epoch,
    JobRecord,
    KnownRuns,
    RowRef,
    RunColumns,
    SkippedJob,
)
from publisher.model.message import REMOVED, OpenRow
from publisher.model.time import Window
from publisher.model.totals import (
    AcceptedChange,
    column,
    month_name,
    month_number,
    month_window,
    sync_host,
)
from publisher.pipeline.round.decision import Decider, Publish
from publisher.pipeline.round.reader import undisturbed, whole_window
from publisher.pipeline.site import Site
from publisher.pipeline.sync.counts import HostMonth, first_month, whoever_counts
from publisher.pipeline.sync.periods import Periods
from publisher.pipeline.sync.portal import EVERY_HOST
from publisher.policy.target import Target
from publisher.sources.base import Source

_LONG_AGO: Final = Epoch(0)
_REMEMBERED: Final = 20_000  # what was seen of kinds of runs
UNKNOWN_MONTH: Final = 0  # of rows whose end time cannot be read
_SUMMED: Final = (
    *("database", "delivered", "restarted", "before", "quarantined"),
    *("pending", "purged"),
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

    def count(
        self, run: DeliveredRun | None, held: Quarantined | None, *, before_start: bool
    ) -> None:
        """A job of the database, by what the ledger has of it."""
        if run is not None and run.fingerprint != REMOVED:
            self.delivered += run.settled
            self.pending += not run.settled
        elif held is not None:
            self.quarantine(held)
        elif before_start:
            self.before += 1
        else:
            self.pending += 1

    def quarantine(self, held: Quarantined) -> None:
        self.quarantined += 1
        self.held += held.hold is not Hold.DROPPED  # of those an administrator said: never


def check(
    site: Site,
    targets: Sequence[Target],
    *,
    months: int | None,
    portal: Mapping[HostMonth, int] | None,
    jobs_seen: Callable[[int], None] = lambda _: None,
) -> list[Compared]:
    """Compare database, ledger, sync and portal; no sending. Raises: LedgerError, SourceError."""
    now, found = site.clock(), list[Compared]()
    first = first_month(now, months)
    with closing(site.ledger_to_read()) as ledger, closing(site.source()) as source:
        for target in targets:
            found += _TargetCheck(target, source, ledger, now, first, jobs_seen).rows(portal)
    return found


def accepted(
    site: Site, targets: Sequence[Target], *, months: int | None
) -> list[tuple[str, AcceptedChange]]:
    """What an administrator accepted for these months, by target. Raises: LedgerError."""
    first = first_month(site.clock(), months)
    with closing(site.ledger_to_read()) as ledger:
        return [
            (target.name, change)
            for target in targets
            for change in ledger.accepted_changes(target.name)
            if change.month >= first
        ]


class _TargetCheck:
    """Checks one target."""

    def __init__(
        self,
        target: Target,
        source: Source,
        ledger: Ledger,
        now: datetime,
        first: int,
        jobs_seen: Callable[[int], None],
    ) -> None:
        self._target = target
        self._source = source
        self._ledger = ledger
        self._now = now
        self._first = first
        self._jobs_seen = jobs_seen
        self._state = ledger.target(target.name)
        self._start = (self._state and self._state.start) or Epoch(0)
        self._counts = ledger.counts(target.name)
        self._summary = is_summary_format(target.format)
        self._seen: defaultdict[HostMonth, _Seen] = defaultdict(_Seen)

    def rows(self, portal: Mapping[HostMonth, int] | None) -> Iterator[Compared]:
        """By month and submit host. Raises: LedgerError, SourceError; Later as `undisturbed`."""
        undisturbed(self._source, self._see_the_database)
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
        purged = 0 if trouble else max(delivered - here, 0)
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
            purged=purged,
            repairs=(),
        )
        repairs = _repairs(self._target, compared, found, before_us, known_trouble=bool(trouble))
        return replace(compared, repairs=(*trouble, *repairs))

    def _trouble(self) -> dict[int, Sequence[str]]:
        """What is wrong with whole months: held back, or at the receiver under another site."""
        held = set(self._state.held) if self._state else set()
        totals = self._ledger.months(self._target.name)
        months = {one.month for one in totals if one.accepted_digest}
        months |= {month for month, _ in self._counts.delivered} | held
        asked_for = sorted(month for month in months if month >= self._first)
        found = {month: self._of_month(month, month in held) for month in asked_for}
        return {month: troubles for month, troubles in found.items() if troubles}

    def _of_month(self, month: int, held: bool) -> list[str]:
        target, name = self._target, month_name(month)
        sites = {total.key.site for total, _ in self._ledger.summary_keys(target.name, month)}
        sites |= {group.site for group in self._ledger.accepted(target.name, month)}
        others = sorted(site for site in sites if column(site) != column(target.policy.site))
        again = "publish --force" if self._summary else f"republish --from {name} --to {name}"
        command = f"publisher {again} --target {target.name}"
        troubles = [f"held back: {command} says why, and what to do"] if held else []
        if others:
            troubles.append(f"rows exist under site {', '.join(others)}: {command} says what to do")
        return troubles

    def _see_the_database(self) -> None:
        """Every wanted job of the months, and the ledger on each; unreadable rows have no host."""
        self._seen.clear()
        self._see_without_end_time()
        name, ledger = self._target.name, self._ledger
        window = Window()
        if self._first:
            window = Window(start=month_window(self._first).start)
        decider = whoever_counts(self._target, window)
        columns = decider.policy.depends_on_row_only and not decider.policy.gpus_only
        # The VO may hang on an FQAN, which is not in every row.
        by_vo = self._target.vos or self._target.exclude_vos or decider.policy.vo_rules
        knows = partial(ledger.settled_at, name) if columns and not by_vo else None
        kinds = _Kinds(self._target, decider)
        where = name, self._source, ledger, window
        pages = whole_window(*where, frozenset(), self._now, columns=columns, knows=knows)
        for page in pages:
            self._see_unreadable(page.skipped)
            self._see_jobs(page.jobs, kinds)
            if page.known is not None:
                self._see_known(page.known, kinds)
            if page.runs is not None:
                self._see_runs(page.runs, kinds)

    def _see_jobs(self, jobs: Sequence[JobRecord], kinds: _Kinds) -> None:
        """Jobs that were read whole."""
        self._jobs_seen(len(jobs))
        name, keys = self._target.name, [job.key for job in jobs]
        rows = dict(zip(keys, [job.row for job in jobs], strict=True))
        known, held = self._ledger.known(name, rows), self._ledger.held(name, keys)
        earlier = self._ledger.other_runs(name, rows)
        for key, job in zip(keys, jobs, strict=True):
            kind = kinds.of_job(job)
            self._see_earlier(kind.host, earlier.get(key, ()))
            self._see(job.ended_at, kind, known.get(key), held.get(key))

    def _see_runs(self, runs: RunColumns, kinds: _Kinds) -> None:
        """Runs in columns, of which nearly all were delivered as they are."""
        self._jobs_seen(len(runs.record_ids))
        name, keys, of_run = self._target.name, runs.keys(), kinds.of_runs(runs)
        known = self._ledger.known_at(name, runs.database, runs.record_ids, keys)
        held = self._ledger.held(name, keys)
        delivered: list[HostMonth] = []
        for key, end, kind in zip(keys, runs.ended_at, of_run, strict=True):
            run = known.get(key)
            if run is not None and kind.place and run.ended_at == end and _is_delivered(run):
                delivered.append(kind.place)
            else:
                self._see(end, kind, run, held.get(key))
        self._see_delivered(delivered)
        if others := known.keys() - set(keys):
            runs_of = zip(keys, of_run, strict=True)
            hosts = {key[:JOB_DIGEST_BYTES]: kind.host for key, kind in runs_of}
            for key in others:
                self._see_earlier(hosts[key[:JOB_DIGEST_BYTES]], [known[key]])

    def _see_delivered(self, places: Iterable[HostMonth]) -> int:
        """Runs that were delivered as they are, by where they are counted; gives how many."""
        counted = Counter(places)
        for place, jobs in counted.items():
            self._seen[place].database += jobs
            self._seen[place].delivered += jobs
        return counted.total()

    def _see_known(self, runs: KnownRuns, kinds: _Kinds) -> None:
        """Runs that were delivered as they are; those not wanted any more are read whole."""
        places = [kind.place for kind in kinds.of_runs(runs)]
        self._jobs_seen(self._see_delivered(place for place in places if place is not None))
        by_row = zip(runs.record_ids, places, strict=True)
        rows = [RowRef(database=runs.database, record_id=row) for row, at in by_row if at is None]
        wanted = [OpenRow(row=row, finished_seen_at=_LONG_AGO) for row in rows]
        for page in self._source.reread(wanted, frozenset(), self._now) if wanted else ():
            self._see_unreadable(page.skipped)
            self._see_jobs(page.jobs, kinds)

    def _see_earlier(self, host: str | None, runs: Iterable[DeliveredRun]) -> None:
        """Delivered runs of a job that was restarted since."""
        for run in runs:
            place = _place(run.ended_at, host)
            known_place = host is not None and place[0] != UNKNOWN_MONTH
            if known_place and _is_delivered(run):
                self._seen[place].restarted += 1

    def _see(
        self, ended_at: Epoch, kind: _Kind, known: DeliveredRun | None, held: Quarantined | None
    ) -> None:
        unwanted = not kind.wanted and held is None
        if unwanted and (known is None or known.fingerprint == REMOVED):
            return
        # Single records stay in the month of their delivery; totals are to follow their jobs.
        counted_at = ended_at if known is None or self._summary else known.ended_at
        here = self._seen[_place(counted_at, kind.host)]
        if unwanted and known is not None and known.settled:
            here.unwanted += 1
            return
        here.database += not unwanted
        here.count(known, held, before_start=ended_at < self._start)

    def _see_without_end_time(self) -> None:
        """Rows that no window has."""
        for held in self._ledger.quarantine(self._target.name):
            # A month of totals set aside has no end time either, but it is no row of a database.
            if held.job.ended_at is None and held.job.row.database:
                here = self._seen[UNKNOWN_MONTH, ""]
                here.database += 1
                here.quarantine(held)

    def _see_unreadable(self, skipped: Sequence[SkippedJob]) -> None:
        """Rows of a page that are not jobs: set aside, or about to be."""
        keys = [row.key for row in skipped]
        rows = dict(zip(keys, [row.row for row in skipped], strict=True))
        name = self._target.name
        known, held = self._ledger.known(name, rows), self._ledger.held(name, keys)
        for row, key in zip(skipped, keys, strict=True):
            if row.ended_at is None:
                continue
            if key in held or (key not in known and row.ended_at >= self._start):
                here = self._seen[_month(row.ended_at), ""]
                here.database += 1
                here.count(None, held.get(key), before_start=False)


def _is_delivered(run: DeliveredRun) -> bool:
    return run.settled and run.fingerprint != REMOVED


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


class _Kind(NamedTuple):
    """What is said of the runs that share all but times and usage, and end in one period."""

    wanted: bool
    host: str | None  # None where nobody can say that
    place: HostMonth | None  # where they are counted; None where that is asked for each


class _Kinds:
    """The kinds of runs; one run of each is examined."""

    def __init__(self, target: Target, decider: Decider) -> None:
        self._target = target
        self._decider = decider
        self._periods = Periods(decider)
        # With the examples, so that the id of one cannot come to mean another.
        self._known: dict[tuple[int, int], tuple[_Kind, JobRecord]] = {}

    def of_runs(self, runs: RunColumns | KnownRuns) -> list[_Kind]:
        """The kind of each run."""
        groups = list(zip(map(id, runs.examples), self._periods.of(runs.ended_at), strict=True))
        found = list(map(self._known.get, groups))
        for at in (at for at, one in enumerate(found) if one is None):
            known = self._known.get(groups[at])
            found[at] = known or self._new(runs.examples[at], groups[at][1], runs.ended_at[at])
        return [one[0] for one in found if one is not None]

    def _new(self, example: JobRecord, period: int, ended_at: Epoch) -> tuple[_Kind, JobRecord]:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        kind = self.of_job(example._replace(ended_at=ended_at))
        if kind.wanted and self._periods.seconds(period):
            kind = kind._replace(place=_place(ended_at, kind.host))
        self._known[id(example), period] = kind, example
        return kind, example

    def of_job(self, job: JobRecord) -> _Kind:
        wanted = isinstance(self._decider.decide(job, job.key, None, None), Publish)
        try:
            return _Kind(wanted, sync_host(self._target.policy.place(job).receiver_host), None)
        except Unfit:
            return _Kind(wanted, None, None)


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
