"""`sync`: send APEL the number of jobs that a target's records carry, by submit host and month.

The number is what the ledger delivered, plus, for the month in which a target took over from
another publisher, the eligible jobs that the other one delivered before. A submit host that is no
longer counted is reported as 0 once. check.py verifies the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from publisher.formats import sync_format
from publisher.formats.base import OnChange, SyncFormat
from publisher.jobs.reader import JobPage, StoreReader
from publisher.ledger.answers import HostCounts, TargetState
from publisher.ledger.contract import Entries, Ledger, Ledgers, Losses
from publisher.model.job import Epoch, JobId
from publisher.model.message import OutboxRecord, SyncMessage, message_of
from publisher.model.time import Window, month_of
from publisher.model.totals import (
    SyncCount,
    ascii_key,
    month_name,
    month_number,
    month_window,
    sync_host,
    year_and_month,
)
from publisher.policy.target import Target
from publisher.publishing.databases.known import AccountingData, missing_databases
from publisher.publishing.plan.decision import Decider, Publish
from publisher.publishing.round.assemble import NOWHERE
from publisher.publishing.round.live import LiveTarget
from publisher.publishing.round.outcome import Outcome, concluded
from publisher.publishing.round.refusals import RoundStopped
from publisher.publishing.round.round import Observer, patience
from publisher.publishing.round.sender import MessageSender
from publisher.publishing.site import ProcessEnvironment
from publisher.transports.base import Receipt

MONTHS: Final = 12
# Also what has not changed: the portal shows when a count was last sent
_SEND_EVERY: Final = timedelta(hours=24)
_MESSAGE_COUNTS: Final = 5_000

HostMonth = tuple[int, str]


def after_round(
    process: ProcessEnvironment,
    target: Target,
    live: LiveTarget,
    accounting: AccountingData,
    ledger: Ledger,
    observer: Observer,
) -> Outcome | None:
    """The counts after a regular round, when they changed or a day has passed; else None."""
    now = process.clock()
    counts = ledger.counts.by_host(target.name)
    wanted = _known(recent(counts_to_send(counts), now, MONTHS), target, ledger.losses)
    sent = counts.last_reported_at
    fresh = sent is not None and timedelta(0) <= now - sent < _SEND_EVERY
    if not wanted or (fresh and wanted == {at: counts.reported.get(at) for at in wanted}):
        return None
    return send_counts(process, target, live, accounting, ledger, observer, months=MONTHS)


def send_counts(
    process: ProcessEnvironment,
    target: Target,
    live: LiveTarget,
    accounting: AccountingData,
    ledger: Ledger,
    observer: Observer,
    *,
    months: int | None,
) -> Outcome:
    """Send a target's counts. Raises: PublisherError before anything is sent."""
    now = process.clock()
    form = sync_format(live.format.receiver.sync_format)
    with ledger.locks.working_on(target.name, patience(process.wait), live.receiver):
        if ledger.targets.state(target.name) is not None:  # what it sends belongs to this receiver
            live.begin(ledger.targets)
        sender = MessageSender(live, form, ledger, observer, process.clock, check_all=True)
        receipt: Receipt | None = None
        try:
            with sender:
                sender.send_outstanding()
                missing = missing_databases(target.name, accounting, ledger.databases)
                if not (missing or accounting.failures):  # else they would be too few
                    basis = f"{live.selection_digest}-{live.policy_digest}"
                    _look_before_us(target, accounting.jobs, ledger, basis)
                counts = recent(counts_to_send(ledger.counts.by_host(target.name)), now, months)
                counts = _known(counts, target, ledger.losses)
                if counts:  # a target without a round has none, and is not in the ledger
                    ledger.outbox.prepare_sync(target.name, _messages(target, form, counts, now))
                    sender.send_outstanding()
        except RoundStopped as stopped:
            receipt = stopped.receipt
    return concluded(target.name, receipt, sender.tally, held=())


def counts_to_send(counts: HostCounts) -> dict[HostMonth, int]:
    """What the receiver should hold: a host that is no longer counted is reported as 0 once."""
    wanted = dict(Counter(counts.delivered) + Counter(counts.before))
    vanished = {at: 0 for at, jobs in counts.reported.items() if at not in wanted and jobs}
    return wanted | vanished


def recent(
    counts: Mapping[HostMonth, int], now: datetime, months: int | None
) -> dict[HostMonth, int]:
    """The last so many months, the current one included."""
    first = first_month(now, months)
    return {at: counts[at] for at in sorted(counts) if at[0] >= first}


def _known(counts: Mapping[HostMonth, int], target: Target, losses: Losses) -> dict[HostMonth, int]:
    """Leave out months of which the ledger may have lost something: nobody knows their counts."""
    lost = {loss.month for loss in losses.held(target.name)}
    return {at: jobs for at, jobs in counts.items() if at[0] not in lost}


def first_month(now: datetime, months: int | None) -> int:
    """The first of the last so many months, the current one included."""
    return 0 if months is None else month_of(now).number - months + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCount:
    """A month and submit host of another instance, as its ledger had it at its last success.

    `reported` is None where its target reports no counts.
    """

    target: str  # INSTANCE/TARGET
    month: int
    submit_host: str
    delivered: int
    before: int
    reported: int | None
    recorded: datetime | None

    @property
    def differs(self) -> bool:
        return self.reported is not None and self.reported != self.delivered + self.before


def recorded(ledgers: Ledgers, now: datetime, *, months: int | None) -> list[RecordedCount]:
    """What other instances have, by target, month and host. Raises: UsageError, LedgerError."""
    first = first_month(now, months)
    found: list[RecordedCount] = []
    for other in ledgers.others():
        with closing(other.to_read()) as ledger:
            for target in ledger.targets.names():
                state, counts = ledger.targets.state(target), ledger.counts.by_host(target)
                found += _recorded(f"{other.instance}/{target}", state, counts, first)
    return found


def _recorded(
    target: str, state: TargetState | None, counts: HostCounts, first: int
) -> Iterator[RecordedCount]:
    for at in sorted({*counts.delivered, *counts.before, *counts.reported}):
        month, submit_host = at
        if month >= first:
            reported = counts.reported.get(at, 0) if counts.reported else None
            yield RecordedCount(
                target=target,
                month=month,
                submit_host=submit_host,
                delivered=counts.delivered.get(at, 0),
                before=counts.before.get(at, 0),
                reported=reported,
                recorded=state and state.last_success,
            )


def _look_before_us(target: Target, jobs: StoreReader, ledger: Ledger, basis: str) -> None:
    """Count the jobs of the takeover month that ended before our start, unless delivered since.

    They are read only when that may have changed: rows, the policy, or a delivery.
    """
    state = ledger.targets.state(target.name)
    if state is None or state.start is None:
        return
    begin = month_window(month_number(state.start)).start
    if begin == state.start:
        return
    decider = whoever_counts(target, Window(start=begin, end=state.start))
    basis = f"{basis}-{state.start}-{jobs.count(decider.selection.window)}"
    if basis == ledger.counts.by_host(target.name).before_basis:
        return
    found: Counter[HostMonth] = Counter()
    for page in jobs.window(decider.selection.window, current=True):
        found.update(_unknown(target, decider, page, ledger.entries))
    ledger.counts.set_before(target.name, found, basis)


def _unknown(
    target: Target, decider: Decider, page: JobPage, entries: Entries
) -> Iterator[HostMonth]:
    """Month and submit host of each eligible job of a page that we did not deliver."""
    known = entries.recorded(target.name, [job.run_key for job in page.jobs])
    for job in page.jobs:
        fit = decider.decide(job, job.run_key, None, None)
        if job.run_key not in known and isinstance(fit, Publish):
            yield month_number(job.ended_at), sync_host(fit.published.where.receiver_host)


def whoever_counts(target: Target, window: Window) -> Decider:
    """Of the jobs of a window, those that the target's records carry, or would."""
    return Decider(target.selection(window), target.policy, "", OnChange.RECOUNT, again=True)


def _messages(
    target: Target, form: SyncFormat, counts: Mapping[HostMonth, int], now: datetime
) -> list[SyncMessage]:
    reported = list(counts.items())
    return [
        _message(target, form, reported[start : start + _MESSAGE_COUNTS], now)
        for start in range(0, len(reported), _MESSAGE_COUNTS)
    ]


def _message(
    target: Target, form: SyncFormat, reported: Sequence[tuple[HostMonth, int]], now: datetime
) -> SyncMessage:
    contents = []
    for (number, host), jobs in reported:
        year, month = year_and_month(number)
        count = SyncCount(
            site=ascii_key(target.policy.site), submit_host=host, year=year, month=month, jobs=jobs
        )
        contents.append(form.render(count))
    payload = form.frame.join(contents)
    form.check(payload)
    by_place = zip(reported, contents, strict=True)
    return SyncMessage(
        message=message_of(payload, target.name, form.name, len(reported), now),
        counts=tuple(reported),
        records=tuple(_carried(at, content) for (at, _), content in by_place),
    )


def _carried(at: HostMonth, content: bytes) -> OutboxRecord:
    return OutboxRecord(
        row=NOWHERE,
        job_id=JobId(f"sync {month_name(at[0])} of {at[1]}"),
        local_id="",
        ended_at=month_window(at[0]).start or Epoch(0),
        fingerprint=0,
        content_bytes=len(content),
        submit_host=at[1],
    )
