"""What a `republish` would send, computed beforehand: jobs, messages, bytes, months, and what
speaks against it.

Monthly totals are summed up as they would be sent, to know how many there are and what would hold
them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Protocol

from publisher.formats import is_summary_format, job_format, receiver_of
from publisher.ledger.contract import Ledger, TargetState
from publisher.model.errors import CredentialError, PublisherError, SourceError, Unfit, UsageError
from publisher.model.job import JobId, SkippedJob
from publisher.model.message import Message, WindowMark
from publisher.model.target import Target
from publisher.model.time import Window, months, whole_months
from publisher.model.totals import BlockedMonth, KeyTotal, month_number_of, month_window
from publisher.pipeline.guards import keys as key_guard
from publisher.pipeline.guards.databases import missed, missing_text
from publisher.pipeline.round.outcome import Outcome, added
from publisher.pipeline.round.round import Round
from publisher.pipeline.site import Site
from publisher.pipeline.takeover.adopt import adopt_named
from publisher.sources.base import Page, Source
from publisher.transports.base import Receipt


def estimate(
    site: Site,
    target: Target,
    months: Sequence[int],
    source: Source,
    ledger: Ledger,
    seen: Callable[[int], None],
    *,
    accept_key_change: bool,
) -> Outcome:
    """What would come of sending these months (12 x year + month - 1). The ledger is a dry-run ledger.

    `seen` is called with the number of rows read since the last call. Raises: CredentialError, SourceError, LedgerError.
    """
    live = site.live(target, dry_run=True, accept_key_change=accept_key_change)
    done = Outcome(target=target.name, outcome="nothing")
    with closing(live.transport):
        for month in months:
            counter = _RowCounter(seen)
            round_ = Round(live, source, ledger, counter, site.clock, site.wait)
            done = added(done, round_.republish_month(month))
    return done


class _RowCounter:
    """An `Observer` of a dry run: it only counts rows."""

    def __init__(self, seen: Callable[[int], None]) -> None:
        self._seen = seen

    def page_read(self, target: str, page: Page) -> None:
        self._seen(page.rows_read)

    def round_begins(self, state: TargetState, *, sweep: bool) -> None:
        pass

    def job_set_aside(self, target: str, job: SkippedJob) -> None:
        pass

    def record_shed(self, target: str, job_id: JobId, reason: str) -> None:
        pass

    def message_prepared(self, message: Message) -> None:
        pass

    def message_handed_over(self, message: Message, receipt: Receipt) -> None:
        pass

    def message_settled(self, message: Message, receipt: Receipt) -> None:
        pass


# A window this many times what was ever delivered, and not small, is more likely a slip than a wish.
_SUSPICIOUS_RATIO: Final = 10
_SMALL: Final = 20_000


Digests = frozenset[bytes]


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
    gone: Mapping[str, int]  # by month's name, delivered jobs whose totals stay although their rows are gone
    made: key_guard.WindowTotals | None  # what its months make at the receiver, where something was sent of them before
    noted: Digests  # the receiver's rows that single records had made of the months by then
    policy_digest: str  # of what decides which jobs are sent and how they look
    brake: str  # why it should not be done without a second thought; '' when nothing speaks against it

    @property
    def window_progress(self) -> str:
        return f"{self.window} {self.format} {self.policy_digest}"

    @property
    def summary(self) -> bool:
        return is_summary_format(self.format)

    @property
    def whole(self) -> bool:
        """Months are sent whole as single records: the ledger's keys and counts of them are anew then."""
        return receiver_of(self.format).whole_months and not self.summary and not self.exact

    def stays_held(self, request: RepublishRequest) -> bool:
        """Whether months are held back. A part of a month that the receiver has as totals is, whatever is accepted."""
        return bool(self.held) and not (request.accept_key_change and not any(month.was for month in self.held))

    def months_left(self) -> list[int]:
        """The months that are not dealt with, by number."""
        done = self.resume_from.ended_at if self.resume_from and self.summary else None
        return [number for number in numbers(self.window) if done is None or (month_window(number).end or 0) > done]


def numbers(window: Window) -> list[int]:
    """The months that a window touches, by number (12 x year + month - 1)."""
    return [month_number_of(month.year, month.month) for month in months(window)]


def as_requested(target: Target, request: RepublishRequest) -> Target:
    return target if request.format is None else target.in_format(request.format)


def plan(site: Site, targets: Sequence[Target], request: RepublishRequest, looking: RowProgress) -> list[RepublishPlan]:
    """What would be sent, target by target. Raises: UsageError, SourceError, LedgerError."""
    with closing(site.ledger(dry_run=True)) as ledger, closing(site.source()) as source:
        # What is only in a missing database is not gone: months without it would be too small.
        if missing := missed([*site.targets, *targets], source, ledger):
            raise SourceError(f"nothing was sent: {missing_text(missing)}")
        for target in targets:
            adopt_named(as_requested(target, request), numbers(_as_sent(target, request)), source, ledger, site.clock())
        outlines = [_outline(site, as_requested(target, request), request, source, ledger) for target in targets]
        looking.expect(sum(outline.rows for outline in outlines if _reads_every_job(outline, ledger)))
        return [
            _filled(site, as_requested(target, request), request, outline, source, ledger, looking)
            for target, outline in zip(targets, outlines, strict=True)
        ]


def _outline(site: Site, target: Target, request: RepublishRequest, source: Source, ledger: Ledger) -> RepublishPlan:
    """What can be determined without looking at every job."""
    summary = is_summary_format(target.format)
    if summary and request.exact:
        raise UsageError(
            f"target {target.name}: a part of a month would replace the whole month at the receiver; "
            f"--exact is not for {target.format}"
        )
    window = _as_sent(target, request)
    all_rows = source.count(window)
    state = ledger.target(target.name)
    outline = RepublishPlan(
        target=target.name,
        format=target.format,
        window=window,
        exact=request.exact,
        rounded=window != request.window,
        months=tuple(f"{month.year}-{month.month:02}" for month in months(window)),
        rows=all_rows,
        jobs=all_rows,
        counted=False,
        records=0,
        messages=0,
        bytes=0,
        resume_from=None,
        held=(),
        gone={},
        made=None,
        noted=frozenset(
            total.key.digest for at in numbers(window) for total, _ in ledger.summary_keys(target.name, at)
        ),
        policy_digest=f"{site.selection_digest(target)}-{site.policy_digest(target)}",
        brake=_brake(site, target, window, source, ledger, all_rows, state.delivered if state else 0),
    )
    outline = replace(outline, resume_from=ledger.window_progress(target.name, outline.window_progress))
    left = _rows_left(outline, source)
    return outline if summary else _sized(site, target, replace(outline, rows=left, jobs=left), source)


def _as_sent(target: Target, request: RepublishRequest) -> Window:
    """Rounded out to whole months: of totals always, of single records as the receiver needs it, unless `exact`."""
    whole = is_summary_format(target.format) or (receiver_of(target.format).whole_months and not request.exact)
    return whole_months(request.window) if whole else request.window


def _rows_left(outline: RepublishPlan, source: Source) -> int:
    """What an interrupted run has not read yet. With two databases, end times cannot tell."""
    if outline.resume_from is None or len(source.databases()) > 1:
        return outline.rows
    return source.count(replace(outline.window, start=outline.resume_from.ended_at))


def _sized(site: Site, target: Target, planned: RepublishPlan, source: Source) -> RepublishPlan:
    """With messages and bytes, by the mean size of the records of the window's first page."""
    now = site.clock()
    form = job_format(target.format)
    sizes = []
    for job in _first_page(site, target, planned.window, source).jobs[:100]:
        try:
            sizes.append(len(form.render(target.policy.describe(job), now)))
        except Unfit:
            continue
    size = planned.jobs * sum(sizes) // len(sizes) if sizes else 0
    by_count = -(-planned.jobs // target.batch_records) if target.batch_records else 0
    try:
        with closing(site.transport(target)) as transport:
            by_size = -(-size // transport.payload_limit())
    except PublisherError:  # trouble with the certificate is reported when something is sent
        by_size = 0
    return replace(planned, records=planned.jobs, messages=max(by_count, by_size, min(planned.jobs, 1)), bytes=size)


def _reads_every_job(outline: RepublishPlan, ledger: Ledger) -> bool:
    """Whether every job is examined: for totals always, for single records where some were sent before."""
    if outline.summary:
        return True
    before = (ledger.summary_keys(outline.target, number) for number in numbers(outline.window))
    return receiver_of(outline.format).row_keys is not None and any(before)


def _filled(
    site: Site,
    target: Target,
    request: RepublishRequest,
    outline: RepublishPlan,
    source: Source,
    ledger: Ledger,
    looking: RowProgress,
) -> RepublishPlan:
    if outline.summary:
        return _rehearsed(site, target, request, outline, source, ledger, looking)
    if receiver_of(outline.format).row_keys is None:
        return outline
    return _guarded(site, target, outline, source, ledger, looking)


def _rehearsed(
    site: Site,
    target: Target,
    request: RepublishRequest,
    outline: RepublishPlan,
    source: Source,
    ledger: Ledger,
    looking: RowProgress,
) -> RepublishPlan:
    left = outline.months_left()
    accept = request.accept_key_change
    try:
        done = estimate(site, target, left, source, ledger, looking.seen, accept_key_change=accept)
    except CredentialError:  # reported when something is sent: other targets may be better off
        return outline
    jobs = sum(state.jobs for state in ledger.months(target.name) if state.month in left)
    return replace(
        outline,
        jobs=jobs,
        counted=True,
        records=done.records,
        messages=done.messages,
        bytes=done.bytes,
        held=done.held,
        gone=done.gone,
    )


def _blocked(
    number: int, totals: Sequence[tuple[KeyTotal, str]], orphaned: Sequence[KeyTotal], lost_jobs: int, *, exact: bool
) -> BlockedMonth:
    return BlockedMonth(
        month=number,
        orphaned=(*(total for total, _ in totals), *orphaned),
        lost_jobs=lost_jobs,
        was=next((form for _, form in totals), "") if exact else "",
    )


def _guarded(
    site: Site, target: Target, outline: RepublishPlan, source: Source, ledger: Ledger, looking: RowProgress
) -> RepublishPlan:
    """The plan with the months whose single records would leave rows of the receiver behind, or make them smaller.

    Of a part of a month (--exact) nobody knows which rows the rest makes there under earlier settings: whatever the month as a
    whole would not make now counts as left behind.
    """
    touched = numbers(outline.window)
    orphaned: dict[int, tuple[KeyTotal, ...]] = dict.fromkeys(touched, ())
    totals = _totals(target, ledger, touched)
    would_be = None
    if _reads_every_job(outline, ledger):
        # Not only another policy gives jobs other rows: one that changed may have been the last of its row.
        would_be = key_guard.made(
            key_guard.JobScope(
                target=target.name, format=target.format, selection=target.selection(Window()), policy=target.policy
            ),
            whole_months(outline.window),
            source,
            ledger,
            site.clock(),
            page_read=lambda page: looking.seen(page.rows_read),
        )
        for number in touched:
            orphaned[number] = key_guard.orphaned(ledger, target.name, number, would_be)
    lost = {} if outline.exact else key_guard.lost(ledger, target.name, touched, would_be, totals, source)
    held = [
        _blocked(number, totals.get(number, ()), orphaned[number], lost.get(number, 0), exact=outline.exact)
        for number in touched
        if orphaned[number] or number in lost or totals.get(number)
    ]
    planned = replace(outline, held=tuple(held))
    if would_be is None or outline.exact:
        return planned
    return _counted(site, target, replace(planned, made=would_be), source)


def _counted(site: Site, target: Target, planned: RepublishPlan, source: Source) -> RepublishPlan:
    """With the number of jobs that was found by looking at each of them."""
    jobs = sum(planned.made.hosts.values()) if planned.made else 0
    if planned.resume_from is not None:
        return replace(planned, jobs=min(planned.jobs, jobs))
    return _sized(site, target, replace(planned, jobs=jobs, counted=True), source)


def _totals(target: Target, ledger: Ledger, touched: Sequence[int]) -> dict[int, list[tuple[KeyTotal, str]]]:
    """Rows of months that the receiver has as totals, and in which format: single records would count beside them."""
    return {
        state.month: [
            (
                group.row(by_level=receiver_of(state.accepted_format).keeps_benchmark_values),
                state.accepted_format or "totals",
            )
            for group in ledger.accepted(target.name, state.month)
        ]
        for state in ledger.months(target.name)
        if state.month in touched and state.accepted_digest
    }


def _brake(
    site: Site, target: Target, window: Window, source: Source, ledger: Ledger, rows: int, delivered: int
) -> str:
    """Why the window dwarfs or contradicts what the ledger knows."""
    if rows > _SMALL and delivered and rows > _SUSPICIOUS_RATIO * delivered:
        return f"the window has {rows:,} jobs, {rows // delivered} times what was ever delivered to {target.name}"
    return _contradiction(site, target, window, source, ledger)


def _contradiction(site: Site, target: Target, window: Window, source: Source, ledger: Ledger) -> str:
    state = ledger.target(target.name)
    if state is None or is_summary_format(target.format) or state.last_published_end is None:
        return ""
    first = _first_page(site, target, window, source)
    served = Window(start=state.start, end=state.last_published_end)
    runs = {job.key: job.row for job in first.jobs if job.ended_at in served}
    if len(runs) <= 100 or ledger.known(target.name, runs):
        return ""
    return (
        f"none of the first {len(runs)} jobs of the window was ever delivered to {target.name}, though it was "
        "served at that time: is this the right accounting database?"
    )


def _first_page(site: Site, target: Target, window: Window, source: Source) -> Page:
    needs = job_format(target.format).needs
    return next(source.window(window, needs, site.clock()), Page(jobs=()))
