"""The state of targets: what was delivered, is in quarantine, or waits, not yet accepted.

People and monitoring ask when something is wrong, which is when most waits. So the first rows
behind what was read are looked at as a round would, and of the others SQLite only counts those that
ended: then the numbers say "at most".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final, NamedTuple

from publisher.formats import is_summary_format, receiver_of
from publisher.formats.base import OnChange
from publisher.jobs.reader import StoreReader
from publisher.ledger.answers import Hold, Quarantined, TargetState
from publisher.ledger.contract import (
    Earlier,
    Entries,
    Ledger,
    Ledgers,
    Outbox,
    Quarantine,
)
from publisher.model.entry import EarlierRuns
from publisher.model.errors import SourceError, UsageError
from publisher.model.job import Epoch, JobRecord, ReadRequest, RunKey
from publisher.model.message import MessageId
from publisher.model.time import Window, epoch
from publisher.model.totals import month_window
from publisher.policy.target import Selection, Target, is_wanted
from publisher.publishing.databases.known import (
    AccountingData,
    Missing,
    as_loaded,
    missing_databases,
)
from publisher.publishing.databases.retired import NeverSent, never_sent
from publisher.publishing.site import LOCK_WAIT_S, ProcessEnvironment, Site, choose

_OTHERS_OVERDUE: Final = timedelta(days=2)  # their timetables are in their configurations
_ASKED_AT_ONCE: Final = 4  # instances, each by a connection of its own
LOOKED_AT: Final = 1_000  # rows of all targets together


class WaitingJobs(NamedTuple):
    """Jobs that the next round would send; `exact`, or at most so many.

    `awaited` wait for what their batch system tells.
    """

    pending: int
    late: int  # of them ended before the last published end
    first_end: Epoch | None
    exact: bool
    awaited: int = 0


def count_pending(
    process: ProcessEnvironment,
    target: Target,
    state: TargetState | None,
    accounting: AccountingData,
    ledger: Ledger,
    looked_at: int = LOOKED_AT,
) -> WaitingJobs:
    """What waits for a target; so many rows are examined, in whole pages.

    Raises: LedgerError, SourceError.
    """
    now = process.clock()
    start = state.start if state else target.start.begin(now)
    selection = target.selection(Window(start=start))
    published = state.last_published_end if state else None
    pending, ends = _on_their_way(target, state, ledger)
    parts = list(_not_read(target, selection, published, accounting, ledger, now, looked_at))
    ends += [part.first_end for part in parts if part.first_end is not None]
    return WaitingJobs(
        pending=pending + sum(part.pending for part in parts),
        late=sum(part.late for part in parts),
        first_end=min(ends, default=None),
        exact=all(part.exact for part in parts),
        awaited=sum(part.awaited for part in parts),
    )


def _on_their_way(
    target: Target, state: TargetState | None, ledger: Ledger
) -> tuple[int, list[Epoch]]:
    """Jobs that were read and are not delivered, and when they ended."""
    if is_summary_format(target.format):
        months = [month for month in ledger.entries.months(target.name) if month.pending]
        pending = sum(month.pending for month in months)
        # Which jobs these are is not known any more: most ended after what was published last, all
        # of them in their month.
        published = state.last_published_end if state else None
        return pending, [_within(month.month, published) for month in months]
    if state is None:
        return 0, []
    waits = state.prepared or state.in_doubt
    return state.prepared, list(_ends_on_their_way(target, ledger.outbox)) if waits else []


def _not_read(
    target: Target,
    selection: Selection,
    published: Epoch | None,
    accounting: AccountingData,
    ledger: Ledger,
    now: datetime,
    looked_at: int,
) -> Iterator[WaitingJobs]:
    """What no round has dealt with: jobs behind the cursor, and rows that were not loaded yet."""

    def waiting(jobs: Sequence[JobRecord]) -> WaitingJobs:
        known = ledger.entries, ledger.quarantine
        return _ended(_unknown_ends(target, selection, *known, jobs), published, exact=True)

    cursor = ledger.positions.cursor(target.name)
    is_known = cursor is not None and accounting.jobs.knows(cursor.mark)
    after = cursor.change if cursor is not None and is_known else 0
    yield from _behind(after, accounting.jobs, selection.window, published, waiting, looked_at)
    yield from _not_loaded(accounting, selection.window, published, waiting, now, looked_at)


def _behind(
    change: int,
    jobs: StoreReader,
    window: Window,
    published: Epoch | None,
    waiting: Callable[[Sequence[JobRecord]], WaitingJobs],
    looked_at: int,
) -> Iterator[WaitingJobs]:
    """What waits of the jobs that changed after a change."""
    until = jobs.state().last_change
    for page in jobs.changed(change, until):
        yield waiting(page.jobs)
        looked_at -= len(page.jobs)
        if looked_at <= 0 and page.upto < until:
            ahead = jobs.ahead(page.upto, window, published)
            yield WaitingJobs(ahead.jobs, ahead.late, ahead.first_end, exact=not ahead.jobs)
            return


def _not_loaded(
    accounting: AccountingData,
    window: Window,
    published: Epoch | None,
    waiting: Callable[[Sequence[JobRecord]], WaitingJobs],
    now: datetime,
    looked_at: int,
) -> Iterator[WaitingJobs]:
    """What waits of the rows that the next load reads."""
    jobs, request = accounting.jobs, ReadRequest(frozenset(), Epoch(epoch(now)))
    seen = set[RunKey]()  # the same job may be in two files
    for source in accounting.source.sources():
        if awaiting := jobs.awaiting(source.name):
            yield WaitingJobs(0, 0, None, exact=True, awaited=len(awaiting))
        rows = [row for row in jobs.unfinished(source.name) if row.row not in awaiting]
        ends = source.ends(rows)
        finished = [row for row in rows if row.row in ends]
        again, further = finished[: max(looked_at, 0)], finished[max(looked_at, 0) :]
        if behind := _within_window([ends[row.row] for row in further], window):
            yield _ended(behind, published, exact=False)
        position = jobs.position(source.name)
        for page in source.read(position, again, request):
            runs = {job.run_key: job for job in page.jobs}
            seen.update(job.run_key for job in jobs.of_runs(list(runs)))
            yield waiting([job for run, job in runs.items() if run not in seen])
            seen.update(runs)
            looked_at -= page.rows
            position = page.position or position
            if looked_at <= 0:
                rest = source.rows_after(position)
                late = 0 if published is None else rest
                yield WaitingJobs(rest, late, None, exact=not rest)
                break


def _within_window(ends: Iterable[Epoch], window: Window) -> list[Epoch]:
    return [end for end in ends if end in window]


def _unknown_ends(
    target: Target,
    selection: Selection,
    entries: Entries,
    quarantine: Quarantine,
    jobs: Sequence[JobRecord],
) -> list[Epoch]:
    """When those jobs of a page ended that are wanted, and of which the ledger has nothing."""
    keys = [job.key for job in jobs]
    known = entries.recorded(target.name, [job.run_key for job in jobs])
    held = quarantine.held(target.name, keys)
    pairs = zip(jobs, keys, strict=True)
    new = [job for job, key in pairs if job.run_key not in known and key not in held]
    return [job.ended_at for job in new if is_wanted(selection, target, job)]


def _ended(ends: Sequence[Epoch], published: Epoch | None, *, exact: bool) -> WaitingJobs:
    late = 0 if published is None else sum(end < published for end in ends)
    return WaitingJobs(len(ends), late, min(ends, default=None), exact)


def _ends_on_their_way(target: Target, outbox: Outbox) -> Iterable[Epoch]:
    """When the jobs ended that are in messages without a receipt."""
    seen: set[MessageId] = set()
    while (one := outbox.outstanding(target.name, seen)) is not None:
        seen.add(one.message.id)
        if one.message.target != target.name:  # of another target of the receiver
            continue
        jobs = (record for record in one.records if record.row.record_id)  # counts have no row
        yield from (record.ended_at for record in jobs)


def _within(month: int, last: Epoch | None) -> Epoch:
    """A time as near as can be in a month; its beginning without one."""
    window = month_window(month)
    start, end = window.start or Epoch(0), window.end or Epoch(0)
    return start if last is None else min(max(last, start), end)


class TargetStatus(NamedTuple):
    """A target as `status` shows it.

    `pending` and `late` are None when the accounting data cannot be read, and upper bounds unless
    `exact`. `oldest_unsent` is the end of the pending job that ended first, None without any or
    when that cannot be determined. `overdue` is when somebody should look at it, if it has no
    success until then; None before the first one.
    """

    target: str
    last_success: datetime | None
    last_published_end: Epoch | None
    delivered: int
    pending: int | None
    late: int | None
    in_doubt: int
    quarantined: int
    held: int  # months of which something is held back
    oldest_unsent: Epoch | None
    overdue: datetime | None
    began: bool  # it had a round
    exact: bool = True
    missing: Sequence[Missing] = ()  # databases that its rounds have read
    earlier: EarlierRuns | None = None  # sent under other settings than the target has now
    # Jobs that are over and wait for what their batch system tells; None as for `pending`.
    awaited: int | None = 0
    question: str = ""  # what an administrator is asked before its rounds go on
    never_sent: Sequence[NeverSent] = ()  # jobs that are lost with retired databases


def status(site: Site, *, targets: Sequence[str]) -> tuple[list[TargetStatus], str]:
    """Every target's state, and what kept the pending jobs from being counted, if anything did.

    Whoever finds the accounting data locked, or gone, does not wait for it once more for the next
    target. Only reads. Raises: UsageError, LedgerError.
    """
    chosen = choose(site.targets, targets)
    with closing(site.ledgers.to_read()) as ledger:
        trouble = ""
        found = []
        looked_at = LOOKED_AT // max(len(chosen), 1)
        for target in chosen:
            state = ledger.targets.state(target.name)
            waits: WaitingJobs | None = None
            missing: Sequence[Missing] = ()
            try:
                if not trouble:
                    opened = site.accounting, site.ledgers
                    with closing(as_loaded(*opened, lock_wait_s=LOCK_WAIT_S)) as accounting:
                        missing = missing_databases(target.name, accounting, ledger.databases)
                        waits = count_pending(
                            site.process, target, state, accounting, ledger, looked_at
                        )
            except SourceError as error:
                trouble = str(error)
            earlier = earlier_of(site, target, ledger.earlier)
            changed = ledger.receivers.changed_address(target.name, site.sending.receiver(target))
            asked = "" if changed is None else changed.question
            lost = never_sent(ledger.databases.known(target.name))
            one = _status(target, state, waits, missing, earlier, asked)
            found.append(one._replace(never_sent=lost))
    return found, trouble


def earlier_of(site: Site, target: Target, earlier: Earlier) -> EarlierRuns | None:
    """Return what is known of jobs that were sent under other settings, if there are any.

    None also where the receiver keeps the first record of a job: a republish would move nothing.
    """
    if receiver_of(target.format).on_change is OnChange.KEEP_FIRST:
        return None
    found = earlier.runs(target.name, site.sending.settings_digest(target))
    return None if found.months is not None and not found.months else found


def _status(
    target: Target,
    state: TargetState | None,
    waits: WaitingJobs | None,
    missing: Sequence[Missing],
    earlier: EarlierRuns | None,
    question: str,
) -> TargetStatus:
    success = state and state.last_success
    overdue = None if success is None else target.overdue_after(success)
    return TargetStatus(
        **_done(state),
        target=target.name,
        last_success=success,
        last_published_end=state and state.last_published_end,
        pending=waits and waits.pending,
        late=waits and waits.late,
        awaited=waits and waits.awaited,
        oldest_unsent=waits and waits.first_end,
        overdue=overdue,
        began=state is not None and state.last_round is not None,
        exact=waits is None or waits.exact,
        missing=missing,
        earlier=earlier,
        question=question,
    )


def _done(state: TargetState | None) -> dict[str, Any]:
    """Numbers of jobs and messages, and of months that are held back; of no round yet, zeros."""
    if state is None:
        return dict.fromkeys(("delivered", "in_doubt", "quarantined", "held"), 0)
    return {
        "delivered": state.delivered,
        "in_doubt": state.in_doubt,
        "quarantined": state.quarantined,
        "held": len(state.held),
    }


def status_of_all(site: Site) -> tuple[list[TargetStatus], str]:
    """The same of all instances that share the ledger's database, as INSTANCE/TARGET.

    What waits at the others only they can see: of them it is what their ledgers have.
    Raises: UsageError, LedgerError.
    """
    own, trouble = status(site, targets=())
    found = [one._replace(target=f"{site.ledgers.instance}/{one.target}") for one in own]
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as asked:  # to connect takes longer than to answer
        found += chain.from_iterable(asked.map(recorded_status, site.ledgers.others()))
    return sorted(found, key=lambda one: one.target), trouble


def recorded_status(other: Ledgers) -> list[TargetStatus]:
    """What another ledger has of its targets, as INSTANCE/TARGET. Raises: LedgerError."""
    with closing(other.to_read()) as ledger:
        states = [
            state
            for name in ledger.targets.names()
            if (state := ledger.targets.state(name)) is not None
        ]
        lost = never_sent(ledger.databases.known())
    return [_recorded(other.instance, state, lost) for state in states]


def _recorded(instance: str, state: TargetState, lost: Iterable[NeverSent]) -> TargetStatus:
    success = state.last_success
    overdue = None if success is None else success + _OTHERS_OVERDUE
    return TargetStatus(
        target=f"{instance}/{state.target}",
        last_success=success,
        last_published_end=state.last_published_end,
        delivered=state.delivered,
        pending=None,
        late=None,
        in_doubt=state.in_doubt,
        quarantined=state.quarantined,
        held=len(state.held),
        oldest_unsent=None,
        overdue=overdue,
        began=state.last_round is not None,
        awaited=None,
        never_sent=[one for one in lost if one.target == state.target],
    )


def quarantined(site: Site, *, targets: Sequence[str]) -> list[Quarantined]:
    """The jobs set aside. Raises: UsageError, LedgerError."""
    names = {target.name for target in choose(site.targets, targets)} if targets else None
    with closing(site.ledgers.to_read()) as ledger:
        return [
            held for held in ledger.quarantine.listed() if names is None or held.target in names
        ]


def release_or_drop(
    site: Site, chosen: Sequence[str], hold: Hold, *, every: bool, targets: Sequence[str]
) -> Sequence[Quarantined]:
    """Release or drop quarantined jobs, by number or JobID; returns them.

    Raises: UsageError, LedgerError.
    """
    held = quarantined(site, targets=targets)
    names = set(chosen)
    found = [one for one in held if every or str(one.number) in names or one.job.job_id in names]
    known = {str(one.number) for one in held} | {str(one.job.job_id) for one in held}
    if unknown := sorted(names - known):
        shown = "`publisher quarantine list` shows what is"
        raise UsageError(f"not in quarantine: {', '.join(unknown)}; {shown}")
    numbers = [one.number for one in found]
    with closing(site.ledgers.open()) as ledger:
        _ = (
            ledger.quarantine.release(numbers)
            if hold is Hold.RELEASED
            else ledger.quarantine.drop(numbers)
        )
    return found
