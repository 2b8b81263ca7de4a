"""Monthly totals: runs are entered, page by page; the rows that they change are sent, whole.

A run is entered once, with what it counts for; the rows of months are what entries add up to. So a
row that is sent is what the receiver has of it, and what runs bring or take away. Nothing is ever
counted anew from the accounting data, which forgets jobs.

Entries of a round wait in an open posting of the ledger until all of it is planned: what would
leave rows behind is taken out again (`plan/rows.py`). Then the posting is sealed with its messages.
How far was read is noted once they are accepted: a round that ends before reads again.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import chain, count, groupby
from operator import itemgetter
from typing import Final

from publisher.formats import summary_format
from publisher.formats.base import SummaryFormat
from publisher.jobs.reader import JobPage, StoreReader
from publisher.ledger.answers import Hold, Quarantined
from publisher.ledger.contract import Ledger
from publisher.model.entry import Entry, Recorded, RowId, RowTotal, RunKey
from publisher.model.errors import Unfit
from publisher.model.job import JobId, JobRecord, SkippedJob, key_of
from publisher.model.message import MessageRow, MonthMessage, Progress
from publisher.model.receiver import HeldBack
from publisher.model.time import Window
from publisher.model.totals import (
    BlockedMonth,
    GroupedRows,
    groups_of,
    has_begun,
    month_name,
    month_number,
    month_window,
)
from publisher.policy.target import is_wanted
from publisher.publishing.databases.reader import LoadedFirst
from publisher.publishing.plan.actions import Action, ActionCounts, Example, Kind
from publisher.publishing.plan.decision import Decider, Publish, Skip, skipped_job
from publisher.publishing.plan.holds import HeldBefore, RowConsent
from publisher.publishing.plan.months import MonthKinds, is_of_records
from publisher.publishing.plan.reasons import held_month, row_sent_again
from publisher.publishing.plan.restored import RestoredLedger
from publisher.publishing.plan.rows import RowChanges, bundled, changed_row, months_together
from publisher.publishing.plan.runs import entry_of, plan_run, plan_unwanted, retraction_of
from publisher.publishing.round.assemble import (
    NOWHERE,
    MonthRow,
    make_months,
    rendered_rows,
    summary_name,
    whole_messages,
)
from publisher.publishing.round.live import LiveTarget, own_rows
from publisher.publishing.round.sender import MessageSender

# Entries that wait for their transaction: some 5 MB.
log = logging.getLogger("publisher")

_FLUSH_ENTRIES: Final = 10_000
# No row of a site adds up to more; what does is rendered alone, to see if the receiver takes it.
_PLAUSIBLE_S: Final = 1 << 40


class MonthlyTotals:
    """What a round does with jobs when its format has monthly totals."""

    idle: Final = True  # progress can always be written down

    def __init__(
        self,
        live: LiveTarget,
        summary_format: SummaryFormat,
        decider: Decider,
        jobs: StoreReader,
        ledger: Ledger,
        sender: MessageSender,
        clock: Callable[[], datetime],
        restored: RestoredLedger,
        before: HeldBefore,
        *,
        first: LoadedFirst,
        page_read: Callable[[JobPage], None],
    ) -> None:
        self._live = live
        self._target = live.name
        self._format = summary_format
        self._decider = decider
        self._jobs = jobs
        self._ledger = ledger
        self._sender = sender
        self._clock = clock
        self._restored = restored
        self._before = before
        self._first = first
        self._page_read = page_read
        self.waits = False  # some job that was read is to be planned by a later round
        self._accepts = live.accept_key_change
        self._again = decider.again
        self._changes = RowChanges()
        self._moving: dict[RunKey, JobId] = {}  # runs that come to other rows: few, but on purpose
        self._entries: list[Entry] = []
        # The jobs that were taken, by the row that each leaves; None: it comes for the first time.
        self._taken: defaultdict[RowId | None, list[RunKey]] = defaultdict(list)
        self.met: set[RunKey] = set()  # that the ledger may not tell of yet
        self._progress = Progress()
        months, rows = ledger.entries.months, ledger.entries.rows
        self._kinds = MonthKinds(
            summary_format,
            partial(months, live.name),
            again=decider.again,
            begin_as_records=not isinstance(live.format, SummaryFormat),
        )
        rows_of = partial(rows, live.name)
        self._consent = RowConsent(self._kinds, rows_of, before, accepts=self._accepts)
        self._rows_sent = ActionCounts()  # that go out though no run changed, or with zeros
        self._blocked: list[BlockedMonth] = []  # months that wait for an administrator

    @property
    def held(self) -> list[BlockedMonth]:
        """Months of which something is held back."""
        return self._blocked

    # Taking runs

    def take(self, fit: Publish, now: datetime, mark: Progress | None = None) -> bool:
        """Plan a wanted run, and enter it if it is new or changed. Raises: Unfit."""
        self._plan(fit, now)
        return True

    def _plan(self, fit: Publish, now: datetime) -> None:
        self.met.add(fit.run)
        if (published := self._kinds.in_its_month(fit)) is None:
            return
        month = month_number(published.ended_at)
        form = self._kinds.form_of(month)
        (form or self._format).admit(published, now)
        if not has_begun(month, now):
            self.waits = True
            return
        entry = entry_of(published, fit.run, self._kinds.row_of(month, published), fit.digest)
        action = plan_run(entry, fit.known, again=self._again or form is None)
        if action.kind is Kind.KEEP and not self._again:
            self._before.end(entry.run)
            return
        job_id = published.job.job_id
        if self._restored.holds(published.job, month, fit.known, is_single=False):
            self._before.hold(entry, job_id, month, self._restored.reason(month))
            return
        if action.kind is Kind.KEEP:
            return
        self._enter(entry, fit.known, action, job_id)
        self._taken[fit.known and fit.known.row].append(fit.run)

    def unwanted(self, job: JobRecord, known: Recorded | None) -> None:
        """Plan a run that the target does not want any more; another of the receiver may."""
        action = plan_unwanted(known, again=self._again, accepts=self._accepts)
        if action.kind is not Kind.RETRACT or known is None:
            return
        if known.row.month in self._restored.months:
            return
        if not self._is_wanted_beside(job):
            self._enter(retraction_of(known), known, action, job.job_id)

    def _is_wanted_beside(self, job: JobRecord) -> bool:
        window = Window()  # also of a job from before its start
        return any(is_wanted(one.selection(window), one, job) for one in self._live.beside)

    def _enter(self, entry: Entry, known: Recorded | None, action: Action, job: JobId) -> None:
        self._changes.add(entry, known, self._live.settings, action, job)
        leaves = known is not None and (not entry.jobs or entry.row.id != known.row)
        if leaves and not self._again:
            self._moving[entry.run] = job
        self._entries.append(entry)
        if len(self._entries) >= _FLUSH_ENTRIES:
            self._flush()

    def _flush(self) -> None:
        if self._entries:
            now = self._clock()
            self._ledger.postings.enter(self._target, self._entries, self._live.settings, now)
            self._entries.clear()

    # Progress

    def mark(self, progress: Progress) -> None:
        """Keep how far was read until what is before it is accepted; note what was set aside."""
        if progress.skipped:
            self._sender.note(Progress(skipped=progress.skipped))
        self._progress += Progress(
            cursor=progress.cursor,
            left_quarantine=progress.left_quarantine,
            window_mark=progress.window_mark,
        )
        self._page_ends()

    def _page_ends(self) -> None:
        """Forget which runs came once the ledger tells of them: each counts once."""
        if len(self.met) >= _FLUSH_ENTRIES:
            self._flush()
            self.met.clear()

    def write_down(self) -> None:
        """Enter what waits."""
        self._flush()

    def conclude(self, now: datetime) -> None:
        """Plan the rows, and send those that changed. Raises: Stopped, SourceError."""
        self._conclude((), now)

    def resend(self, month: int, now: datetime) -> None:
        """Plan a month anew and send all of it. Raises: Stopped, SourceError."""
        if month in self._restored.months:
            self._restored.wait(month)
            return
        self._read_again((month,), now)
        if self._kinds.form_of(month) is None:
            was = self._kinds.months[month].format
            self._consent.change_kind(month, was, self._own_rows(month))
        self._conclude((month,), now)

    def _read_again(self, months: Collection[int], now: datetime) -> None:
        """Plan months anew, from all that their source has. Raises: SourceError."""
        with self._jobs.snapshot():
            self._read_months(months, now)

    def _read_months(self, months: Collection[int], now: datetime) -> None:
        self._start_over()
        self._restored.start_over(months)
        for month in sorted(months):
            self._read_month(month, now)

    def _start_over(self) -> None:
        """Forget what was planned and is in no message."""
        self._changes = RowChanges()
        self._entries.clear()
        self.met.clear()
        self._ledger.postings.discard(self._target)
        self._kinds.refresh()

    def _read_month(self, month: int, now: datetime) -> None:
        quarantined: list[SkippedJob] = []
        window, decider = month_window(month), self._decider
        if self._again:  # also of a job that began before the start: the month is sent whole
            decider = decider._replace(selection=decider.selection._replace(window=window))
        for page in self._jobs.window(window):
            self._page_read(page)
            known = self._ledger.entries.recorded(self._target, page.runs)
            page = self._first.wanted(page, known, self._before.runs, again=self._again)
            keys = [*map(key_of, page.runs), *(skipped.key for skipped in page.skipped)]
            held = self._ledger.quarantine.held(self._target, keys)
            quarantined += [skipped for skipped in page.skipped if skipped.key not in held]
            for job, run, key in zip(page.jobs, page.runs, keys, strict=False):
                quarantined += self._again_of(decider, job, run, known.get(run), held.get(key), now)
            self._page_ends()
        for skipped in quarantined:
            self._sender.quarantine(skipped)
        if quarantined:
            self._sender.note(Progress(skipped=tuple(quarantined)))

    def _again_of(
        self,
        decider: Decider,
        job: JobRecord,
        run: RunKey,
        known: Recorded | None,
        held: Quarantined | None,
        now: datetime,
    ) -> Iterator[SkippedJob]:
        """Plan a job of a month that is published again; yield it if it is to be set aside."""
        if run in self.met:
            return
        if held is not None and held.hold is Hold.DROPPED:
            self.unwanted(job, known)
            return
        stays = None if self._again else held
        verdict = decider.decide(job, run, known, stays)
        if isinstance(verdict, Publish):
            try:
                self.take(verdict, now)
            except Unfit as unfit:
                verdict = skipped_job(job, unfit)
        if isinstance(verdict, SkippedJob):
            if held is None:
                yield verdict
        elif isinstance(verdict, Skip) and verdict.unwanted:
            self.unwanted(job, known)

    # Rows

    def _conclude(self, say: Collection[int], now: datetime) -> None:
        self._send(say, now)
        if refused := self._sender.refused_months():
            self._plan_refused(refused, now)
        self._sender.conclude()
        self._before.write_down()
        self._sender.note(self._progress)
        self._sender.remarks.count(chain.from_iterable(self._taken.values()))
        self._changes.count(self._sender.tally.actions)
        self._sender.tally.actions.take(self._rows_sent.lines())
        self._progress = Progress()

    def _plan_refused(self, months: Collection[int], now: datetime) -> None:
        """Plan months again of which a message was refused; its runs have no entry any more.

        If that is refused, too, the rows that these runs should have left, and that may have been
        accepted without them, are sent as they count.
        """
        self._blocked = [held for held in self._blocked if held.month not in months]
        self._read_again(months, now)
        self._send((), now)
        if self._sender.refused_months():
            self._start_over()
            self._ledger.postings.seal(self._target, self._messages((), now))
            self._sender.send_outstanding()

    def _send(self, say: Collection[int], now: datetime) -> None:
        """Send what is planned, but for what is held."""
        self._flush()
        self._blocked += self._consent.hold_months(self._changes)
        self._hold_rows()
        held = [*self._restored.held, *self._blocked]
        if self._again and held:  # a month that is published again goes whole, or not at all
            self._ledger.postings.discard(self._target)
            self._changes.count(self._sender.tally.actions, held_month(held[-1]))
            self._changes, say = RowChanges(), ()
        self._hold_large_rows(now)
        self._ledger.postings.seal(self._target, self._messages(say, now))
        self._sender.send_outstanding()

    def _hold_rows(self) -> None:
        """Hold runs that would leave rows behind at the receiver without consent."""
        held = self._consent.hold_rows(self._changes)
        if held.reasons:
            reasons = {row: action.reason for row, action in held.reasons.items()}
            waits = None if self._again else HeldBack(reasons, self._moving, self._clock())
            self._ledger.postings.withdraw(self._target, leaving=reasons, held=waits)
        for row in held.reasons:
            self._taken.pop(row, None)
        for row, moved, examples in held.runs:
            at = row.month, held.reasons[row]
            self._sender.tally.actions.add(*at, jobs=moved.old.jobs, examples=examples)
        self._blocked += held.blocked

    def _rows(self, month: int) -> Sequence[RowTotal]:
        return self._ledger.entries.rows(self._target, month)

    def _own_rows(self, month: int) -> list[RowTotal]:
        return own_rows(self._rows(month), self._decider.selection, self._live.beside)

    def _hold_large_rows(self, now: datetime) -> None:
        """Take runs out whose rows the receiver would refuse: such sums are damage."""
        for month in self._changes.months():
            deltas = self._changes.deltas(month)
            seconds = sum(max(delta.usage[1:]) for delta in deltas.values())
            known = self._kinds.months.get(month)
            if seconds + (max(known.counts[1:]) if known else 0) < _PLAUSIBLE_S:
                continue
            for grouped in self._grouped(month):
                rows = [row.key.id for row in grouped.rows]
                if deltas.keys().isdisjoint(rows):
                    continue
                try:
                    self._kinds.format_of(month).render([grouped.group], now)
                except Unfit as unfit:
                    self._changes.hold((), rows)
                    self._ledger.postings.withdraw(self._target, entering=rows)
                    self._set_aside(summary_name(grouped.group), unfit)

    def _set_aside(self, name: str, unfit: Unfit) -> None:
        about = JobId(name)
        quarantined = SkippedJob(NOWHERE, about, "", None, unfit.rule, unfit.reason, fingerprint=0)
        self._sender.quarantine(quarantined)
        self._sender.note(Progress(skipped=(quarantined,)))

    def _grouped(self, month: int) -> Iterator[GroupedRows]:
        """Yield the rows of a month with what this round changes."""
        deltas, left = self._changes.deltas(month), self._changes.left(month)
        ends = partial(self._ledger.entries.ends, self._target)
        changed = []
        for row in self._rows(month):
            of_row = ends if row.key.id in left else None
            changed.append(changed_row(row, deltas.get(row.key.id), of_row))
        return groups_of(self._kinds.format_of(month).grouping, changed)

    def _report_earlier_format(
        self, form: SummaryFormat, bundles: Sequence[tuple[str, list[int]]]
    ) -> None:
        """Log which months go on in another format than the target's."""
        if form.name != self._live.format.name:
            months = sorted({month for _, together in bundles for month in together})
            names = ", ".join(map(month_name, months))
            text = "target %s: %s: sent as %s, in which the month began"
            log.info(text, self._target, names, form.name)

    def _messages(self, say: Collection[int], now: datetime) -> Iterator[MonthMessage]:
        """Yield the messages of what changed, and of whole months to `say`."""
        known = self._kinds.months.items()
        unsent = [at for at, one in known if one.unsent and not is_of_records(one)]
        months = {*self._changes.months(), *say, *unsent} - self._restored.months
        bundles = [
            (name, list(of_form))
            for together in months_together(months, self._changes.moves)
            for name, of_form in groupby(together, lambda month: self._kinds.format_of(month).name)
        ]
        places = count(1)
        for name, found in groupby(bundles, itemgetter(0)):
            form, of_format = summary_format(name), list(found)
            self._report_earlier_format(form, of_format)
            rows = chain.from_iterable(
                self._rows_to_send(together, form, say, places) for _, together in of_format
            )
            rendered = rendered_rows(rows, form, now)
            frame = form.frame
            batches = whole_messages(
                rendered,
                most_records=self._live.batch_records,
                most_bytes=self._sender.payload_limit() - len(frame.head) - len(frame.tail),
                between=len(frame.separator),
            )
            for batch in batches:
                yield make_months(form, self._target, batch, now)

    def _rows_to_send(
        self,
        months: Sequence[int],
        form: SummaryFormat,
        say: Collection[int],
        places: Iterator[int],
    ) -> Iterator[MonthRow]:
        """Yield the rows of months that changed, or that the receiver was told otherwise.

        All rows of months to `say`. Rows between which runs moved are a bundle, also where they are
        of several months.
        """
        found: list[GroupedRows] = []
        for month in months:
            found += self._due_rows(month, form, every=month in say)
        first, of_bundle = 0, -1
        for bundle, grouped in bundled(found, self._changes.moves):
            place = next(places)
            if bundle != of_bundle:
                first, of_bundle = place, bundle
            self._sender.tally.jobs += grouped.group.jobs
            sent_rows = tuple(MessageRow(place, row.key.id, row.counts) for row in grouped.rows)
            month = grouped.rows[0].key.month
            yield MonthRow(month, place, first, grouped.group, b"", sent_rows)

    def _due_rows(self, month: int, form: SummaryFormat, *, every: bool) -> Iterator[GroupedRows]:
        changed = set(self._changes.deltas(month))
        there = {row.key.id for row in self._rows(month) if row.counts.jobs or row.sent.jobs}
        due = changed
        if every:  # a kind is of the whole month, whichever target wants a row
            is_whole = month in self._consent.overruled
            rows = self._rows(month) if is_whole else self._own_rows(month)
            due = due | {row.key.id for row in rows}
        for grouped in self._grouped(month):
            group, counts = grouped.group, grouped.counts
            is_due = not due.isdisjoint(row.key.id for row in grouped.rows)
            if not (is_due or grouped.is_unsent):
                continue
            if not counts.jobs:
                had = any(row.key.id in there for row in grouped.rows)
                if not (form.takes_zeros and had):
                    continue
                grouped = grouped._replace(group=group.without_usage())
            if not counts.jobs or changed.isdisjoint(row.key.id for row in grouped.rows):
                self._count_row(grouped)
            yield grouped

    def _count_row(self, grouped: GroupedRows) -> None:
        """Count a row that is emptied, or that goes out though no run changed."""
        counts, month = grouped.counts, grouped.rows[0].key.month
        about = Example(row=grouped.group.row(by_level=True).key.text)
        sent_again = row_sent_again(grouped)
        self._rows_sent.add(month, sent_again, jobs=counts.jobs, rows=1, examples=(about,))
