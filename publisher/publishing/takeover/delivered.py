"""`receiver delivered` and `deleted`: what a receiver has of months, which a restored ledger lacks.

*Delivered*: an administrator has seen at the receiver that it has what it had before. So all jobs
of the month that the receiver's targets want get entries, without being sent: what the settings of
today make of them, as nobody knows what was said. What has an entry keeps it: if its data changed,
the next round sends that. Jobs that ended after something was last handed over were not delivered,
and go out as usual. Where that is not what counted before, nothing is entered, unless the
administrator insists.

    before: 20 jobs; now the same 20 jobs                     ->  20 entries
    19 jobs: one was purged at the CE                         ->  no entry, and 65
    20 jobs, of which one has another VO now, or is another   ->  no entry, and 65
    21 jobs: one was not delivered, and nobody knows which    ->  no entry, and 65

*Deleted*: the receiver has nothing of the month any more. Nothing counts of it, and all is sent as
if it were new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from publisher.formats import (
    JOB_FORMATS,
    is_summary_format,
    job_format,
    receiver_of,
    summary_format,
)
from publisher.formats.base import JobFormat, SummaryFormat
from publisher.formats.rows import SummaryRows
from publisher.jobs.reader import StoreReader
from publisher.ledger.contract import Ledger, Losses
from publisher.model.entry import Entry, RecordedRuns, RowKey, RunKey
from publisher.model.errors import SourceError, Unfit, UsageError
from publisher.model.job import Epoch, key_of
from publisher.model.receiver import Loss, RowSum, entry_digest
from publisher.model.time import Window
from publisher.model.totals import (
    AS_DELIVERED,
    InheritedMonth,
    month_name,
    month_number,
    month_window,
)
from publisher.publishing.databases.known import closed_until, missed, missing_text
from publisher.publishing.databases.load import loaded_alone
from publisher.publishing.plan.collisions import NoCollisions, collisions
from publisher.publishing.plan.decision import Decider, Publish
from publisher.publishing.plan.months import is_of_records
from publisher.publishing.plan.runs import entry_of
from publisher.publishing.round.batches import RecordMaker
from publisher.publishing.round.live import LiveTarget
from publisher.publishing.round.round import patience
from publisher.publishing.site import Site, choose

_AT_ONCE: Final = 5_000  # entries in memory


class TakenMonth(NamedTuple):
    """What came of a month: how many entries were made, and how many jobs count then.

    `before`: how many counted before, None where nobody knows. `is_same`: run by run, row by row,
    they are the same. `is_taken`: the month is held no longer.
    """

    month: int
    entered: int
    counted: int
    before: int | None
    is_same: bool
    is_taken: bool
    is_closed: bool  # so nothing of it can be sent again (`keep`)


def take_as_delivered(
    site: Site, name: str, months: Sequence[int], *, anyway: bool
) -> Sequence[TakenMonth]:
    """Enter what all targets of a receiver want of months, if that is what counted before.

    `anyway`: or if it is not, or nobody knows that. Raises: UsageError, PublisherError.
    """
    with _at_work(site, name) as (lives, ledger):
        losses = _refuse_others(name, months, ledger.losses)
        first, last = (month_window(month) for month in (min(months), max(months)))
        window = Window(start=first.start, end=last.end)
        with loaded_alone(site, ledger.positions, sends_nothing=False, window=window) as accounting:
            if missing := missed(site.targets, accounting, ledger.databases):
                raise SourceError(f"nothing was entered: {missing_text(missing)}")
            now, closed = site.process.clock(), ledger.targets.closed(name)
            all_jobs = [_TargetJobs(live, accounting.jobs, ledger, now) for live in lives]
            return [
                _taken(losses[month], all_jobs, anyway=anyway, is_closed=month < closed)
                for month in months
            ]


def take_as_deleted(site: Site, name: str, months: Sequence[int]) -> Sequence[Loss]:
    """Have all of months sent anew; return what was known. Raises: UsageError, PublisherError."""
    with _at_work(site, name) as (_, ledger):
        losses = _refuse_others(name, months, ledger.losses)
        if closed := [month for month in months if month < ledger.targets.closed(name)]:
            raise UsageError(
                f"{month_name(closed[0])} is closed (`keep`), so nothing of it can be sent again: "
                f"leave it at the receiver, and use `publisher receiver delivered {name} "
                f"{month_name(closed[0])}`"
            )
        ledger.losses.deleted(name, months, site.process.clock())
        return [losses[month] for month in months]


@contextmanager
def _at_work(site: Site, name: str) -> Iterator[tuple[Sequence[LiveTarget], Ledger]]:
    """Work on the receiver of a target; give all of its targets. Raises: UsageError, Busy."""
    (target,) = choose(site.targets, [name])
    receiver = site.sending.receiver(target)
    neighbours = [one for one in site.targets if site.sending.receiver(one).place == receiver.place]
    with closing(site.ledgers.open()) as ledger, ExitStack() as opened:
        lives = [site.sending.live(one, dry_run=True) for one in neighbours]  # nothing is sent
        for live in lives:
            opened.callback(live.transport.close)
        with ledger.locks.working_on(name, patience(site.process.wait), receiver):
            yield [live._replace(start=live.begin(ledger.targets).start) for live in lives], ledger


def _refuse_others(name: str, months: Collection[int], losses: Losses) -> Mapping[int, Loss]:
    """Return what is known of the months. Raises: UsageError for one that is not held."""
    waiting = {loss.month: loss for loss in losses.held(name)}
    for month in months:
        if month not in waiting:
            held = ", ".join(map(month_name, waiting)) or "none"
            raise UsageError(
                f"{month_name(month)} is not held for {name} since its ledger was restored or "
                f"lost; months that are: {held}"
            )
    return waiting


def _taken(
    loss: Loss, all_jobs: Sequence[_TargetJobs], *, anyway: bool, is_closed: bool
) -> TakenMonth:
    """Enter a month, unless it would not be what it was.

    Of a month that is closed, the sums of its rows counted: it is compared by count.
    """
    counted, is_keyed = loss.counted, all_jobs[0].are_keyed(loss)
    for entry in _union(all_jobs, loss):
        prefix = entry.record.localid_prefix if is_keyed else ""
        usage = entry.jobs, entry.wall_s, entry.cpu_s
        digest = entry_digest(entry.run, *usage, entry.record.ended_at, prefix)
        counted = counted.plus(entry.row.fields.digest, RowSum(entry.jobs, digest))
    before = None if loss.before is None else loss.before.jobs
    is_same = counted == loss.before or (is_closed and counted.jobs == before)
    is_taken = is_same or anyway
    entered = sum(jobs.enter(loss) for jobs in all_jobs) if is_taken else 0
    if is_taken:
        all_jobs[0].solve(loss)
    return TakenMonth(
        loss.month,
        entered,
        counted.jobs,
        before,
        is_same=is_same,
        is_taken=is_taken,
        is_closed=is_closed,
    )


def _union(all_jobs: Sequence[_TargetJobs], loss: Loss) -> Iterator[Entry]:
    """Yield the entries that are to be made; several targets may want a run, which counts once."""
    met: set[RunKey] = set()
    for jobs in all_jobs:
        for entry in jobs.entries(loss):
            if entry.run not in met:
                yield entry
            if len(all_jobs) > 1:
                met.add(entry.run)


class _TargetJobs:
    """Takes what one target wants of months."""

    def __init__(self, live: LiveTarget, jobs: StoreReader, ledger: Ledger, now: datetime) -> None:
        self._live = live
        self._jobs = jobs
        self._ledger = ledger
        self._now = now

    def enter(self, loss: Loss) -> int:
        """Let the jobs of a month count that have no entry; return how many."""
        form, entered = self._form_of(loss), 0
        is_totals = is_summary_format(form)
        entries = self.entries(loss)
        while some := tuple(islice(entries, _AT_ONCE)):
            month = InheritedMonth(loss.month, form, is_totals, some, {}, by=AS_DELIVERED)
            self._ledger.entries.adopt(self._live.name, month)
            entered += len(some)
        return entered

    def are_keyed(self, loss: Loss) -> bool:
        """Return whether a month is of single records that replace each other by record key."""
        return not (self._live.receiver.keeps_first or is_summary_format(self._form_of(loss)))

    def solve(self, loss: Loss) -> None:
        """Hold a month no longer whose jobs all count."""
        self._ledger.losses.delivered(self._live.name, [loss.month], self._now)

    def entries(self, loss: Loss) -> Iterator[Entry]:
        """Yield the entries that are to be made."""
        form = self._form_of(loss)
        if is_summary_format(form):
            totals = _OfTotals(summary_format(form), self._now)
            yield from self._of_jobs(loss, form, totals, NoCollisions())
        else:
            at = self._live.name, receiver_of(form), self._ledger.entries
            held_to = collisions(*at, closed_until(self._ledger.targets, self._live.name))
            yield from self._of_jobs(loss, form, _OfRecords(job_format(form), self._now), held_to)

    def _of_jobs(
        self, loss: Loss, form: str, rows: _OfTotals | _OfRecords, held_to: NoCollisions
    ) -> Iterator[Entry]:
        name, decider = self._live.name, self._decider(loss, form)
        for page in self._jobs.window(decider.selection.window):
            known = RecordedRuns(self._ledger.entries.recorded(name, page.runs))
            held = self._ledger.quarantine.held(name, [*map(key_of, page.runs)])
            held_to.look_up(page.jobs, known)
            for job, run in zip(page.jobs, page.runs, strict=True):
                in_quarantine = held.get(key_of(run))
                fit = decider.decide(job, run, known.get(run), in_quarantine)
                if not isinstance(fit, Publish) or fit.known is not None:
                    continue
                with suppress(Unfit):  # it would be set aside, and was not delivered
                    checked = held_to.checked(fit, in_quarantine)
                    fit = checked if isinstance(checked, Publish) else fit
                    entry = rows.entry(fit)
                    held_to.taken(fit)
                    yield entry

    def _decider(self, loss: Loss, form: str) -> Decider:
        """Return what decides on jobs of a month that may have been handed over."""
        window = month_window(loss.month)
        if (start := self._live.start) is not None:
            window = replace(window, start=max(start, window.start or Epoch(0)))
        if loss.last_at is not None and window.end is not None:
            window = replace(window, end=Epoch(min(window.end, loss.last_at + 1)))
        return Decider(
            selection=self._live.selection._replace(window=window),
            policy=self._live.policy,
            policy_digest=self._live.policy_digest,
            changed=receiver_of(form).on_change,
        )

    def _form_of(self, loss: Loss) -> str:
        """Return the format in which a month was sent; the target's own, if nothing is known."""
        own, month, entries = self._live.format.name, loss.month, self._ledger.entries
        known = next((one for one in entries.months(self._live.name) if one.month == month), None)
        if known is not None and known.format:
            return known.format
        has_counted = loss.before is not None and loss.before.jobs > 0
        if not (is_of_records(known) or has_counted) or not is_summary_format(own):
            return own
        return entries.record_format(self._live.name, month) or _records_of(own)


def _records_of(own: str) -> str:
    """Return a format of single records at the service of a format: all make the same entries."""
    name = receiver_of(own).name
    there = [form for form in JOB_FORMATS if receiver_of(form).name == name]
    return next(form for form in there if receiver_of(form).row_keys is not None)


class _OfTotals:
    """Makes entries of totals."""

    def __init__(self, form: SummaryFormat, now: datetime) -> None:
        self._form = form
        self._rows = SummaryRows(form.grouping)
        self._now = now

    def entry(self, fit: Publish) -> Entry:
        """Raises: Unfit."""
        published = fit.published
        self._form.admit(published, self._now)
        row = RowKey(month_number(published.ended_at), self._rows.of(published))
        return entry_of(published, fit.run, row, fit.digest)


class _OfRecords:
    """Makes entries of single records."""

    def __init__(self, form: JobFormat, now: datetime) -> None:
        self._maker = RecordMaker(form)
        self._now = now

    def entry(self, fit: Publish) -> Entry:
        """Raises: Unfit."""
        return self._maker.rendered(fit, self._now).counts_for
