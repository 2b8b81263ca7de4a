"""From a batch to a settled message: written down, handed over, settled; if need be cut or shed.

A message that may have been stored is sent again by the next round, the same bytes under the same
id: one whose answer was lost, and one of a process that ended on the way. Whatever was certainly
not stored is given up at the end of the round, so that the next one reads, decides on and renders
its jobs again, under the configuration that holds then. Not so where a republish would go back
behind what arrived, as when a message was cut and a part of it went out: its rest stays, too.

While the next batch is read, rendered and put together, the last one is signed and sent, beside the
main thread. A message is written down in the transaction that settles the one before, so there is
one outstanding at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Protocol

from publisher.formats import JOB_FORMATS
from publisher.formats.base import Formed, JobFormat, SummaryFormat, SyncFormat, lighter
from publisher.ledger.answers import Outstanding, SentMessage
from publisher.ledger.contract import Ledger
from publisher.model.errors import CredentialError, LedgerError
from publisher.model.job import JobId, JobKey, RunKey, SkippedJob
from publisher.model.message import (
    TOO_LARGE,
    Batch,
    LearntLimit,
    Message,
    MessageId,
    Progress,
    WindowMark,
    message_of,
)
from publisher.model.totals import month_number
from publisher.publishing.round.assemble import Assembled, assemble_message, cut, divided, part_of
from publisher.publishing.round.live import LiveTarget
from publisher.publishing.round.outcome import Remarks, RoundCounters, of_whom
from publisher.publishing.round.refusals import (
    Refusals,
    RoundStopped,
    is_in_doubt,
    unproven,
    way_out_of_doubt,
)
from publisher.transports.base import BackgroundThread, Receipt, Verdict

# Of records whose form shows that they are sound, those that are held against the schema all the
# same, which costs five times what rendering costs: one in so many, and the first after a change of
# version or configuration.
_CHECK_ONE_IN: Final = 250
_CHECK_FIRST: Final = 1_000
# The verdict on an attempt that was followed by another in the same round.
_TRIED_AGAIN: Final = "tried_again"


class MessageObserver(Protocol):
    """Notified of every step of a message."""

    def job_set_aside(self, target: str, job: SkippedJob) -> None: ...
    def record_shed(self, target: str, job_id: JobId, reason: str) -> None: ...
    def message_prepared(self, message: Message) -> None: ...
    def message_handed_over(self, message: Message, receipt: Receipt) -> None: ...
    def message_settled(self, message: Message, receipt: Receipt) -> None: ...


class _Arrival(NamedTuple):
    """A message that the receiver took; its runs are looked at if any is odd."""

    message: Message
    runs: Iterable[RunKey]
    receipt: Receipt


class MessageSender:
    """Sends a target's messages, one after the other; as a context, gives up what was not sent."""

    def __init__(
        self,
        live: LiveTarget,
        record_format: JobFormat | SummaryFormat | SyncFormat,
        ledger: Ledger,
        watcher: MessageObserver,
        clock: Callable[[], datetime],
        *,
        check_all: bool,
    ) -> None:
        self._target = live.name
        self._format = record_format
        self._transport = live.transport
        self._ledger = ledger
        self._policy_digest, self._wire_digest = live.policy_digest, live.wire_digest
        self._prepare = partial(ledger.outbox.prepare, settings=live.settings)
        self._learnt = ledger.targets.limit(live.name)
        self._limit: int | None = None
        self._watcher = watcher
        self._clock = clock
        self._check_all = check_all
        # An outstanding message may be of the format that was configured before.
        self._frame_of = live.frame_of
        self._found_faults = False
        self._shipped = 0  # records
        self._refusals = Refusals()
        self._in_flight: tuple[Message, Sequence[RunKey]] | None = None
        self._thread: BackgroundThread[Receipt]  # which signs and sends it
        # And nobody has said that they were not stored. Of a republish, what arrived stays among
        # them until `_behind` goes on.
        self._handed_over: set[MessageId] = set()
        # A republish, and where it stood before what is not settled.
        self._behind: dict[str, WindowMark | None] = {}
        self._news: dict[JobKey, SkippedJob] = {}  # set aside, and not written down yet
        self._refused_rows: dict[RunKey, int] = {}  # of the target's totals, with their months
        self.tally = RoundCounters()
        self.remarks = Remarks(self.tally)

    def __enter__(self) -> MessageSender:
        """Nobody knows what became of a message that an earlier process left."""
        self._ledger.outbox.leave_in_doubt(self._target)
        self._thread = BackgroundThread()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give up what was certainly not stored; if the ledger failed, everything is in doubt."""
        self._thread.close()
        if isinstance(error, LedgerError):
            return
        if not (self._behind and self._handed_over):
            self._ledger.outbox.give_up(self._target, self._handed_over, self._behind)
        self._refusals.forget_suspects()
        self._went_on()

    def payload_limit(self) -> int:
        """How many bytes a payload shall have now: what the service refused lately counts.

        Asked for every record, worked out again after every message.
        """
        if self._limit is None:
            self._limit = self._transport.payload_limit()
            if self._learnt is not None and self._learnt.holds(self._wire_digest, self._clock()):
                self._limit = min(self._limit, self._learnt.payload_bytes)
        return self._limit

    def send(self, batch: Batch) -> None:
        """Take a batch on its way, after those before it; `finish` makes sure that all arrived.

        Raises: Stopped when nothing more can be sent; then what is not written down is read again.
        """
        made = self._put_together(batch) if batch.records else None
        if made is not None and made.faults:
            batch, made = self._without(batch, made)
        if made is not None:
            self._hand_over(batch, made.message)
        else:
            self.finish()
            self.note(batch.progress)

    def finish(self) -> None:
        """Settle the message that was handed over. Raises: Stopped when no more can be sent."""
        if (arrived := self._arrived()) is not None:
            self._settle_alone(arrived)
            self._went_on()

    def abort(self, receipt: Receipt | None) -> Receipt | None:
        """The round ends early: settle what was handed over, and leave the rest.

        Returns the receipt that ends the round: of that message, or the one that was given.
        """
        try:
            self.finish()
        except RoundStopped as stopped:
            return stopped.receipt
        return receipt

    def send_outstanding(self) -> None:
        """Everything of the receiver that has no receipt, in order. Raises: Stopped."""
        while outstanding := self._ledger.outbox.outstanding(self._target, self._refusals.passed):
            self._deliver_now(outstanding)
        if not self._refusals.has_suspects:
            self._went_on()

    def refused_months(self) -> set[int]:
        """Return the months of the totals that were refused, and not accepted since."""
        return set(self._refused_rows.values())

    def conclude(self) -> None:
        """Everything was tried. Raises: RoundStopped for what was refused and is not settled."""
        self._refusals.conclude()

    def shed(self, run: RunKey, job_id: JobId, reason: str) -> None:
        """A record was made lighter; it counts when it is delivered."""
        self.remarks.note_lighter(run)
        self._watcher.record_shed(self._target, job_id, reason)

    def quarantine(self, job: SkippedJob) -> None:
        """A job is set aside again; it counts when the progress that says so is written down."""
        self._news[job.key] = job

    def written_down(self, progress: Progress) -> None:
        """The ledger has this progress."""
        for job in progress.skipped:
            if (new := self._news.pop(job.key, None)) is not None:
                self._count_quarantined(self._target, new)

    def _count_quarantined(self, target: str, job: SkippedJob) -> None:
        if target == self._target:
            self.tally.set_aside(job)
        self._watcher.job_set_aside(target, job)

    def note(self, progress: Progress) -> None:
        self._ledger.positions.note(self._target, progress, self._policy_digest, self._clock())
        self.written_down(progress)

    # On the way

    def _is_to_be_checked(self) -> bool:
        """Whether each record of the next message is checked, whatever it looks like."""
        if self._check_all and self._shipped >= _CHECK_FIRST and isinstance(self._format, Formed):
            self._check_all = False
        return self._check_all or self._found_faults

    def _window_before(self, mark: WindowMark | None) -> dict[str, WindowMark | None]:
        """Where the republish stands that a mark is of."""
        if mark is None:
            return {}
        window = mark.window_progress
        return {window: self._ledger.positions.window_progress(self._target, window)}

    def _put_together(self, batch: Batch) -> Assembled:
        check = slice(None)
        if not self._is_to_be_checked():
            check = slice(-self._shipped % _CHECK_ONE_IN, None, _CHECK_ONE_IN)
        self._shipped += len(batch.records)
        return assemble_message(self._format, self._target, batch, self._clock(), check=check)

    def _hand_over(self, batch: Batch, message: Message) -> None:
        """Settle the message before and write this one down in one transaction; send it beside."""
        before = self._arrived()
        try:
            behind = self._window_before(batch.progress.window_mark)
            sent = None if before is None else self._sent(before)
            self._behind = behind if before is not None else self._behind or behind
            self._prepare(message, batch.records, batch.progress, self._policy_digest, sent)
        except Exception:
            # What keeps this message from being written down, such as a full disk, need not keep
            # the receipt of the one before.
            if before is not None:
                self._settle_alone(before)
            raise
        if before is not None:
            self._handed_over.discard(before.message.id)
            self._settled(before)
        self.written_down(batch.progress)
        self._watcher.message_prepared(message)
        # Not by the thread, which ^C may come before.
        self._handed_over.add(message.id)
        self._thread.begin(partial(self._deliver, message, self._clock()))
        self._in_flight = message, [record.counts_for.run for record in batch.records]

    def _deliver_now(self, outstanding: Outstanding) -> None:
        message = outstanding.message
        self._handed_over.add(message.id)
        receipt = self._deliver(message, self._clock())
        self._note_attempts(message, receipt)
        runs = (record.run for record in outstanding.records)
        self._came_of(_Arrival(message, runs, receipt), outstanding)

    def _deliver(self, message: Message, now: datetime) -> Receipt:
        try:
            receipt = self._transport.deliver(message, now)
            return receipt._replace(seconds=(self._clock() - now).total_seconds())
        except CredentialError:  # raised before anything is sent
            self._handed_over.discard(message.id)
            raise

    def _without(self, batch: Batch, made: Assembled) -> tuple[Batch, Assembled | None]:
        """The batch without the records that failed, which are set aside; None if none is left."""
        # One got past the rules: look at every message of this round from now on.
        self._found_faults = True
        faulty = {record.run for record, _ in made.faults}
        quarantined = [record.set_aside(unfit) for record, unfit in made.faults]
        for job in quarantined:
            self.quarantine(job)
        left = [record for record in batch.records if record.run not in faulty]
        batch = Batch(records=left, progress=batch.progress + Progress(skipped=tuple(quarantined)))
        if not left:
            return batch, None
        payload = self._format.frame.join([record.content for record in left])
        made_at = made.message.made_at
        message = message_of(payload, self._target, self._format.name, len(left), made_at)
        return batch, Assembled(message)

    def _arrived(self) -> _Arrival | None:
        """The message that was handed over, if all that is left to be done is to settle it.

        Raises: Stopped when nothing more can be sent.
        """
        if self._in_flight is None:
            return None
        (message, runs), self._in_flight = self._in_flight, None
        receipt = self._thread.result()
        arrived = _Arrival(message, runs, receipt)
        self._note_attempts(message, receipt)
        if receipt.verdict is Verdict.DELIVERED and not self._refusals.has_suspects:
            return arrived
        self._came_of(arrived, None)
        self.send_outstanding()
        return None

    def _went_on(self) -> None:
        """Of what was written down, nothing is left."""
        self._behind.clear()
        self._handed_over.clear()

    def _settle_alone(self, arrived: _Arrival) -> None:
        message, remote_id, remote_ids, now = self._sent(arrived)
        self._ledger.outbox.sent(message, remote_id=remote_id, remote_ids=remote_ids, now=now)
        self._settled(arrived)

    def _sent(self, arrived: _Arrival) -> SentMessage:
        receipt = arrived.receipt
        return SentMessage(arrived.message, receipt.remote_id, receipt.remote_ids, self._clock())

    def _settled(self, arrived: _Arrival) -> None:
        """A message is settled in the ledger."""
        message, runs, receipt = arrived
        if message.target == self._target:
            self.tally.messages += 1
            self.tally.records += message.records
            runs = self._refused_once(runs) if self._refused_rows else runs
            self.remarks.count(runs)
        else:
            self.tally.others_first[message.target] += 1
        self._watcher.message_settled(message, receipt)
        self._clear_suspects()

    def _refused_once(self, runs: Iterable[RunKey]) -> Collection[RunKey]:
        """Count rows of totals that were refused in this round, and are accepted, as accepted."""
        runs = set(runs)
        for run in self._refused_rows.keys() & runs:
            del self._refused_rows[run]
            self.tally.quarantined -= 1
        return runs

    # Handing over

    def _came_of(self, arrived: _Arrival, outstanding: Outstanding | None) -> None:
        """Settle what came of a message; others may have to go out in its place."""
        message, _, receipt = arrived
        match receipt.verdict:
            case Verdict.DELIVERED:
                self._settle_alone(arrived)
            case Verdict.IN_DOUBT | Verdict.RETRY_LATER | Verdict.STOP_TARGET:
                raise RoundStopped(of_whom(message.target, self._target, receipt))
            case Verdict.TOO_LARGE | Verdict.REFUSED:
                whole = outstanding or self._written_down(message)
                if receipt.verdict is Verdict.REFUSED and not whole.narrowing:
                    self._believe(whole, receipt)
                self._bisect(whole, receipt)

    def _believe(self, whole: Outstanding, receipt: Receipt) -> None:
        """Take a refusal as one, unless an earlier attempt may have been stored: it proves nothing.

        Raises: RoundStopped then; the same bytes go again with the next round.
        """
        if is_in_doubt(whole, receipt):
            self._ledger.outbox.refused_in_doubt(whole.message)
            receipt = unproven(receipt, "the same bytes go again with the next round")
            raise RoundStopped(of_whom(whole.message.target, self._target, receipt))

    def _note_attempts(self, message: Message, receipt: Receipt) -> None:
        """What was tried, and whether the message may have been stored."""
        self._limit = None
        self._watcher.message_handed_over(message, receipt)
        self.tally.bytes += receipt.bytes_sent
        self._count_attempts(receipt)
        # Of several attempts, one may have been stored.
        if receipt.verdict is Verdict.IN_DOUBT or receipt.doubt:
            self._ledger.outbox.in_doubt(message, receipt.reason)
        elif receipt.verdict is not Verdict.DELIVERED:
            self._handed_over.discard(message.id)

    def _count_attempts(self, receipt: Receipt) -> None:
        """Each but the last was tried again at once; none at all counts as its verdict does."""
        self.tally.attempts[receipt.verdict.name.lower()] += 1
        if receipt.attempts > 1:
            self.tally.attempts[_TRIED_AGAIN] += receipt.attempts - 1

    def _bisect(self, whole: Outstanding, receipt: Receipt) -> None:
        """Cut a message; one record that is too large is made lighter; what is left is set aside.

        Records that are refused for what they are called by stay together.
        """
        refused = receipt.verdict is Verdict.REFUSED
        unclear = refused and not receipt.certain
        parts = divided(whole.records, receipt.refused_by, self._count_pieces(whole, receipt))
        if unclear and not whole.narrowing:
            self._refusals.note_whole(receipt, is_cut=len(parts) > 1)
        if len(parts) > 1:
            frame = self._frame_of(whole.message.format)
            self._ledger.outbox.split(whole, cut(frame, whole, parts), narrowing=refused)
        elif unclear and not self._refusals.is_proven_healthy:
            self._suspect_poison(whole, receipt)
        elif refused or not self._shed(whole, receipt.reason):
            self._refuse(whole, receipt)

    def _count_pieces(self, whole: Outstanding, receipt: Receipt) -> int:
        """Into how many a message goes; its size is remembered where the service finds it large."""
        if receipt.verdict is Verdict.REFUSED or not receipt.attempts:
            return 2
        most = self.payload_limit()
        self._learnt = LearntLimit(
            payload_bytes=most, wire=self._wire_digest, learnt_at=self._clock()
        )
        self._ledger.targets.learn_limit(self._target, self._learnt)
        return max(2, -(-len(whole.message.payload) // most))

    def _shed(self, whole: Outstanding, reason: str) -> bool:
        """Put a lighter message in the place of one with a single record; False if impossible."""
        (record,) = whole.records
        frame = self._frame_of(whole.message.format)
        (content,) = frame.split(whole.message.payload, [record.content_bytes])
        less = lighter(self._format, content) if whole.message.format == self._format.name else None
        if less is None:
            return False
        message = part_of(whole.message, frame.join([less]), 1)
        lightened = record._replace(content_bytes=len(less))
        self._ledger.outbox.split(whole, [(message, [lightened])], narrowing=False)
        if whole.message.target == self._target:
            self.remarks.note_lighter(record.run)
        self._watcher.record_shed(whole.message.target, record.job_id, reason)
        return True

    def _suspect_poison(self, whole: Outstanding, receipt: Receipt) -> None:
        """A message was refused for no clear reason, and cannot be cut.

        After many in a row, what waits furthest from them tells whether records or target are
        to blame.

        Raises: Stopped when that is refused too: it is the target.
        """
        if not self._refusals.suspect(whole, receipt):
            return
        last, passed = None, set(self._refusals.passed)
        while (one := self._ledger.outbox.outstanding(self._target, passed)) is not None:
            last = one
            passed.add(one.message.id)
        if last is not None:
            self._deliver_now(last)
        if self._refusals.has_suspects:
            self.conclude()

    def _clear_suspects(self) -> None:
        """Something got through, so it is the records; one refused alone need not be asked again.

        Several are outstanding again, to be sent once more.
        """
        suspects = self._refusals.clear_suspects()
        if len(suspects) == 1:
            self._refuse(*suspects[0])

    def _refuse(self, whole: Outstanding, receipt: Receipt) -> None:
        """Set the records of a refused message aside, unless they may be stored.

        Raises: RoundStopped for totals and counts that may be: newer ones must not overtake them.
        """
        if is_in_doubt(whole, receipt):
            is_single = whole.message.format in JOB_FORMATS
            way_on = way_out_of_doubt(whole.message) if is_single else ""
            ending = f"it goes again with every round, and is not set aside{way_on}"
            receipt = unproven(receipt, ending)
            is_own = whole.message.target == self._target
            self._refusals.leave_in_doubt(whole, receipt, is_own=is_own)
            if not is_single:
                raise RoundStopped(of_whom(whole.message.target, self._target, receipt))
            return
        rule = "refused-by-receiver" if receipt.verdict is Verdict.REFUSED else TOO_LARGE
        self._ledger.outbox.refuse(whole, rule, receipt.reason, self._policy_digest, self._clock())
        for record in whole.records:
            if record.run not in self._refused_rows:
                quarantined = record.set_aside(rule, receipt.reason)
                self._count_quarantined(whole.message.target, quarantined)
            if record.group and whole.message.target == self._target:
                self._refused_rows[record.run] = month_number(record.ended_at)

    def _written_down(self, message: Message) -> Outstanding:
        outstanding = self._ledger.outbox.outstanding(self._target, self._refusals.passed)
        if outstanding is None or outstanding.message.id != message.id:
            raise AssertionError(f"message {message.id} is not the first in its queue")
        return outstanding
