"""What a `republish` would send, computed first: jobs, messages, bytes, months, and obstacles.

Monthly totals are summed up as for sending, to know how many there are and what holds them back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from publisher.formats import is_summary_format, job_format, receiver_of
from publisher.formats.base import OnChange
from publisher.jobs.reader import JobPage
from publisher.ledger.answers import TargetState
from publisher.ledger.contract import Ledger
from publisher.model.entry import RowId, RowTotal
from publisher.model.errors import (
    ConfigError,
    CredentialError,
    PublisherError,
    SourceError,
    Unfit,
    UsageError,
)
from publisher.model.job import JobId, SkippedJob, key_of
from publisher.model.message import Message, WindowMark
from publisher.model.time import Window, months, whole_months
from publisher.model.totals import BlockedMonth, KeyTotal, month_name, month_window
from publisher.policy.target import Target
from publisher.publishing.databases.known import AccountingData, missed, missing_text
from publisher.publishing.databases.load import loaded_alone, needs_of
from publisher.publishing.databases.prune import refuse_closed, refuse_pruned
from publisher.publishing.databases.reader import LoadedFirst, wanted_since
from publisher.publishing.plan.decision import Decider, Publish, Skip
from publisher.publishing.plan.reasons import contradicts, dwarfs
from publisher.publishing.plan.records import (
    OldRows,
    RecordMoves,
    as_compared,
    by_month,
    first_kept,
)
from publisher.publishing.plan.restored import RestoredLedger
from publisher.publishing.plan.rows import rows_for_people, staying
from publisher.publishing.round.batches import RecordMaker
from publisher.publishing.round.live import own_rows
from publisher.publishing.round.outcome import Outcome, added
from publisher.publishing.round.round import Round
from publisher.publishing.site import Site
from publisher.publishing.takeover.adopt import adopt_named, jobs_of_ces
from publisher.transports.base import Receipt


class _RowCounter:
    """An `Observer` that only counts rows."""

    def __init__(self, seen: Callable[[int], None]) -> None:
        self._seen = seen

    def page_read(self, target: str, page: JobPage) -> None:
        self._seen(len(page.jobs))

    def round_begins(self, state: TargetState, *, sweep: bool) -> None: ...
    def round_ends(self, target: str) -> None: ...
    def job_set_aside(self, target: str, job: SkippedJob) -> None: ...
    def record_shed(self, target: str, job_id: JobId, reason: str) -> None: ...
    def message_prepared(self, message: Message) -> None: ...
    def message_handed_over(self, message: Message, receipt: Receipt) -> None: ...
    def message_settled(self, message: Message, receipt: Receipt) -> None: ...


# A window of so many times what was ever delivered, and not small, is likely a slip.
_SUSPICIOUS_RATIO: Final = 10
_SMALL: Final = 20_000


class RowProgress(Protocol):
    """Called with the number of rows to come, and with those read since the last call."""

    def expect(self, count: int) -> None: ...
    def seen(self, more: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RepublishRequest:
    """What was asked for. `format` None is the target's own."""

    window: Window
    exact: bool = False
    format: str | None = None
    accept_key_change: bool = False
    brake: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RepublishPlan:
    """What a republish to one target would send. Bytes are those before signing and encoding."""

    target: str
    format: str
    window: Window
    exact: bool
    rounded: bool
    months: tuple[str, ...]
    rows: int  # to be read: those that an interrupted run has not dealt with
    jobs: int
    counted: bool  # every job was examined; else `jobs`, messages and bytes are upper bounds
    records: int  # of a summary, its rows
    messages: int
    bytes: int
    resume_from: WindowMark | None  # how far an interrupted run has come
    held: tuple[BlockedMonth, ...]  # months that would leave rows behind at the receiver
    policy_digest: str  # of what decides which jobs are sent and how they look
    posting: int  # the latest one of the target by then
    # Why it should not be done without a second thought; '' when nothing speaks against it
    brake: str

    @property
    def window_progress(self) -> str:
        return f"{self.window} {self.format} {self.policy_digest}"

    @property
    def summary(self) -> bool:
        return is_summary_format(self.format)

    @property
    def whole(self) -> bool:
        """Months are sent whole as single records, and the ledger knows them anew."""
        return receiver_of(self.format).whole_months and not self.summary and not self.exact

    def stays_held(self, request: RepublishRequest) -> bool:
        """Whether months are held back: parts of months are, in any case, that are totals there,
        or of which a restored ledger may lack something, or the receiver.
        """
        always = any(month.was or month.restored or month.purged for month in self.held)
        return bool(self.held) and (always or not request.accept_key_change)

    def months_left(self) -> list[int]:
        """The months that are not dealt with, by number."""
        done = self.resume_from.ended_at if self.resume_from and self.summary else -1
        return [at for at in numbers(self.window) if (month_window(at).end or 0) > done]


def numbers(window: Window) -> list[int]:
    """The months that a window touches, by number (12 x year + month - 1)."""
    return [month.number for month in months(window)]


def as_requested(target: Target, request: RepublishRequest) -> Target:
    return target if request.format is None else target.in_format(request.format)


def plan(
    site: Site, targets: Sequence[Target], request: RepublishRequest, looking: RowProgress
) -> list[RepublishPlan]:
    """What would be sent, target by target.

    Raises: ConfigError for targets that ask which receiver is at their address; UsageError,
    SourceError, LedgerError.
    """
    refuse_closed(site, targets, request.window)
    refuse_pruned(site, request.window)
    wanted = [as_requested(target, request) for target in targets]
    with (
        closing(site.ledgers.open(dry_run=True)) as ledger,
        loaded_alone(
            site,
            ledger.positions,
            sends_nothing=True,
            window=whole_months(request.window),
            needs=needs_of(wanted),
        ) as accounting,
    ):
        asked = [
            ledger.receivers.changed_address(one.name, site.sending.receiver(one))
            for one in targets
        ]
        if questions := [one.question for one in asked if one is not None]:
            raise ConfigError(questions)
        for one in targets:  # it may have another name than in the ledger
            with ledger.locks.working_on(one.name, receiver=site.sending.receiver(one)):
                pass
        # What is only in a missing database is not gone: months without it would be too small.
        if missing := missed([*site.targets, *targets], accounting, ledger.databases):
            raise SourceError(f"nothing was sent: {missing_text(missing)}")
        planners = [_Planner(site, one, request, accounting, ledger, looking) for one in wanted]
        for planner in planners:
            planner.adopt()
        outlines = [planner.outline() for planner in planners]
        pairs = list(zip(planners, outlines, strict=True))
        looking.expect(sum(outline.rows for planner, outline in pairs if planner.reads_every_job))
        return [planner.filled(outline) for planner, outline in pairs]


class _Planner:
    """Plans for one target."""

    def __init__(
        self,
        site: Site,
        target: Target,
        request: RepublishRequest,
        accounting: AccountingData,
        ledger: Ledger,
        looking: RowProgress,
    ) -> None:
        self._site = site
        self._target = target
        self._request = request
        self._accounting = accounting
        self._jobs = accounting.jobs
        self._ledger = ledger
        self._looking = looking
        self._summary = is_summary_format(target.format)
        self._receiver = receiver_of(target.format)
        # Rounded out to whole months: totals always, records as needed unless `exact`.
        whole = self._summary or (self._receiver.whole_months and not request.exact)
        self._window = whole_months(request.window) if whole else request.window
        self._numbers = numbers(self._window)

    def adopt(self) -> None:
        now = self._site.process.clock()
        adopt_named(
            self._target,
            self._numbers,
            jobs_of_ces(self._accounting.jobs, self._accounting.source, now),
            self._ledger.entries,
            self._ledger.counts,
            now,
        )

    def outline(self) -> RepublishPlan:
        """What can be determined without looking at every job. Raises: UsageError."""
        target, window = self._target, self._window
        if self._summary and self._request.exact:
            raise UsageError(
                f"target {target.name}: a part of a month would replace the whole month at the "
                f"receiver; --exact is not for {target.format}"
            )
        all_rows = self._jobs.count(window)
        digests = [
            self._site.sending.selection_digest(target),
            self._site.sending.policy_digest(target),
        ]
        outline = RepublishPlan(
            target=target.name,
            format=target.format,
            window=window,
            exact=self._request.exact,
            rounded=window != self._request.window,
            months=tuple(month_name(number) for number in self._numbers),
            rows=all_rows,
            jobs=all_rows,
            counted=False,
            records=0,
            messages=0,
            bytes=0,
            resume_from=None,
            held=(),
            policy_digest="-".join(digests),
            posting=self._ledger.earlier.settings_since(target.name, 0)[0],
            brake=self._brake(all_rows),
        )
        stopped_at = self._ledger.positions.window_progress(target.name, outline.window_progress)
        outline = replace(outline, resume_from=stopped_at)
        left = self._rows_left(outline)
        return outline if self._summary else self._sized(replace(outline, rows=left, jobs=left))

    @property
    def reads_every_job(self) -> bool:
        """Whether every job is examined: for totals, and where single records were sent before."""
        if self._summary:
            return True
        known = self._ledger.entries.months(self._target.name)
        before = any(one.month in self._numbers and one.counts.jobs for one in known)
        return self._receiver.row_keys is not None and before

    def filled(self, outline: RepublishPlan) -> RepublishPlan:
        """With what looking at the jobs told."""
        if self._summary:
            return self._summed_up(outline)
        if self._receiver.row_keys is not None:
            outline = self._guarded(outline)
        restored = self._restored()
        at = {one.month for one in restored}
        others = [one for one in outline.held if one.month not in at]
        return replace(outline, held=(*restored, *others))

    def _restored(self) -> list[BlockedMonth]:
        """Return the months of the window that wait since the ledger was restored, or lost."""
        losses = self._ledger.losses.held(self._target.name)
        closed = self._ledger.targets.closed(self._target.name)
        there = RestoredLedger(self._target.name, losses, closed=closed, are_all_shown=False)
        for month in there.months.intersection(self._numbers):
            there.wait(month)
        return there.held

    def _rows_left(self, outline: RepublishPlan) -> int:
        """What an interrupted run has not read yet."""
        if outline.resume_from is None:
            return outline.rows
        return self._jobs.count(replace(outline.window, start=outline.resume_from.ended_at))

    def _sized(self, planned: RepublishPlan) -> RepublishPlan:
        """With messages and bytes, by the mean size of the records of the window's first page."""
        target, now = self._target, self._site.process.clock()
        form = job_format(target.format)
        sizes = []
        for job in self._first_page().jobs[:100]:
            try:
                sizes.append(len(form.render(target.policy.describe(job), now)))
            except Unfit:
                continue
        size = planned.jobs * sum(sizes) // len(sizes) if sizes else 0
        by_count = -(-planned.jobs // target.batch_records) if target.batch_records else 0
        try:
            with closing(self._site.sending.transport(target)) as transport:
                by_size = -(-size // transport.payload_limit())
        except PublisherError:  # trouble with the certificate is reported when something is sent
            by_size = 0
        messages = max(by_count, by_size, min(planned.jobs, 1))
        return replace(planned, records=planned.jobs, messages=messages, bytes=size)

    def _summed_up(self, outline: RepublishPlan) -> RepublishPlan:
        """With the months that are left, summed up as they would be sent."""
        target, left = self._target, outline.months_left()
        done = Outcome(target=target.name, outcome="nothing")
        accept, site = self._request.accept_key_change, self._site
        seen = _RowCounter(self._looking.seen)
        journey = self._accounting, self._ledger, seen, site.process.clock, site.process.wait
        try:
            live = site.sending.live(target, dry_run=True, accept_key_change=accept)
            with closing(live.transport):
                for month in left:
                    done = added(done, Round(live, *journey).republish_month(month))
        except CredentialError:  # reported when something is sent: other targets may be better off
            return outline
        return replace(
            outline,
            jobs=done.jobs,
            counted=True,
            records=done.records,
            messages=done.messages,
            bytes=done.bytes,
            held=done.held,
        )

    def _guarded(self, outline: RepublishPlan) -> RepublishPlan:
        """With the months whose records would leave rows or records behind at the receiver."""
        if not self.reads_every_job:
            return outline
        with self._jobs.snapshot():
            jobs, left, purged, found = self._left_behind()
        totals = self._totals()
        held = [
            _blocked(at, totals.get(at, ("", ())), left.get(at, ()), found, exact=outline.exact)
            for at in sorted({*left, *totals} - purged.keys())
        ]
        held = sorted([*held, *purged.values()])
        planned = replace(outline, held=tuple(held))
        if outline.exact:
            return planned
        if planned.resume_from is not None:
            return replace(planned, jobs=min(planned.jobs, jobs))
        return self._sized(replace(planned, jobs=jobs, counted=True))

    def _left_behind(
        self,
    ) -> tuple[
        int, Mapping[int, Sequence[KeyTotal]], Mapping[int, BlockedMonth], Mapping[RowId, int]
    ]:
        """Return how many jobs would be sent, and by month the rows that would stay, whole or in
        part: their last runs come to other rows, or a record comes under another key. And months
        with rows that the receiver would make again without some jobs. And how many runs of each
        row would be sent again, or are not wanted any more.
        """
        target, ledger, now = self._target, self._ledger, self._site.process.clock()
        maker = RecordMaker(job_format(target.format))
        rows_of = partial(ledger.entries.rows, target.name)
        moves = RecordMoves("", rows_of)
        old = OldRows(first_kept(target.single_months, now), rows_of)
        stays: set[RowId] = set()
        jobs = 0
        of_sources = self._jobs.first_loads(), self._accounting.batch_systems
        began = wanted_since(target.name, ledger.positions, self._jobs)
        lost = ledger.losses.months(target.name)
        first = LoadedFirst(*of_sources, began=began, lost=lost)
        found: Counter[RowId] = Counter()
        for page in self._jobs.window(self._window):
            self._looking.seen(len(page.jobs))
            for fit in self._to_send(page, first, found):
                known = fit.known
                try:
                    entry = maker.entry(fit)
                except Unfit:
                    continue  # it ended in no month: it is set aside
                jobs += 1
                if old.is_old(entry.row.month) and old.touch(entry, known):
                    old.see(entry, known, is_changed=True)
                if known is None:
                    continue
                if known.pending and not known.first:
                    moves.arrives(known)
                if as_compared(known.record) != as_compared(entry.record):
                    stays.add(known.row)
                moves.add(entry, known)
        left: defaultdict[int, list[RowTotal]] = defaultdict(list)
        for at in sorted({*stays, *moves.emptied()}):
            left[at.month].append(moves.row(at))
        purged = {
            month: BlockedMonth(
                month,
                rows_for_people(map(moves.row, sorted(rows))),
                sum(rows.values()),
                purged=True,
            )
            for month, rows in by_month(old.missing()).items()
        }
        rows = {at: rows_for_people(of_month) for at, of_month in left.items()}
        return jobs, rows, purged, found

    def _to_send(
        self, page: JobPage, first: LoadedFirst, found: Counter[RowId]
    ) -> Iterator[Publish]:
        target, ledger = self._target, self._ledger
        decider = Decider(
            target.selection(self._window), target.policy, "", OnChange.REPLACE, again=True
        )
        known = ledger.entries.recorded(target.name, page.runs)
        page = first.wanted(page, known, again=True)
        held = ledger.quarantine.held(target.name, [*map(key_of, page.runs)])
        for job, run in zip(page.jobs, page.runs, strict=True):
            recorded = known.get(run)
            # What is under way arrives first.
            arrived = None if recorded is None else recorded._replace(pending=False)
            fit = decider.decide(job, run, arrived, held.get(key_of(run)))
            is_unwanted = isinstance(fit, Skip) and fit.unwanted
            if recorded is not None and (is_unwanted or isinstance(fit, Publish)):
                found[recorded.row] += recorded.usage.jobs
            if isinstance(fit, Publish):
                yield fit._replace(known=recorded)

    def _totals(self) -> dict[int, tuple[str, list[RowTotal]]]:
        """Rows of months that are totals there, with their format: records would add to them."""
        own, others = self._target.selection(Window()), self._site.sending.beside(self._target)
        found = {}
        for known in self._ledger.entries.months(self._target.name):
            if known.month in self._numbers and known.format:
                rows = self._ledger.entries.rows(self._target.name, known.month)
                found[known.month] = known.format, own_rows(rows, own, others)
        return found

    def _brake(self, rows: int) -> str:
        """Why the window dwarfs what the ledger knows, or contradicts it."""
        name, state = self._target.name, self._ledger.targets.state(self._target.name)
        delivered = state.delivered if state else 0
        if rows > _SMALL and delivered and rows > _SUSPICIOUS_RATIO * delivered:
            return dwarfs(rows, delivered, name)
        return "" if state is None or self._summary else self._contradicted(state)

    def _contradicted(self, state: TargetState) -> str:
        if state.last_published_end is None:
            return ""
        name, served = self._target.name, Window(start=state.start, end=state.last_published_end)
        runs = {job.run_key for job in self._first_page().jobs if job.ended_at in served}
        if len(runs) <= 100 or self._ledger.entries.recorded(name, runs):
            return ""
        return contradicts(len(runs), name)

    def _first_page(self) -> JobPage:
        return next(self._jobs.window(self._window, current=True), JobPage(()))


def _blocked(
    month: int,
    totals: tuple[str, Sequence[RowTotal]],
    left: Sequence[KeyTotal],
    found: Mapping[RowId, int],
    *,
    exact: bool,
) -> BlockedMonth:
    """A month with the rows that would stay; `totals` are those that records would add to."""
    was, rows = totals
    if not exact and (lost := staying(rows, found)):
        return BlockedMonth(month, (), lost, was=was)
    stay = rows_for_people(rows, was)
    was = was if stay and exact else ""
    return BlockedMonth(month, stay or tuple(left), 0, was=was, ticket_after=not stay)
