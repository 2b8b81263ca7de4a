"""Whether a job goes out, and what of it: known or new, wanted or not, fit or set aside."""

from collections.abc import Callable
from typing import Final, NamedTuple

from publisher.formats.base import OnChange
from publisher.ledger.answers import Hold, Quarantined
from publisher.model.entry import Recorded
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord, RunKey, SkippedJob
from publisher.model.published import PublishedJob
from publisher.model.receiver import NOT_FOUND, WAITED
from publisher.model.totals import BY_JURA
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Selection
from publisher.publishing.plan.reasons import may_be_summed_up

KEY_COLLISION: Final = "key-collision"
SENT_BY_JURA: Final = "sent-by-jura"
CLOSED_MONTHS: Final = "submitted-in-closed-months"
# These verdicts change with the clock, with other jobs or with what is found, not with the row.
_DECIDED_AGAIN: Final = frozenset({"end-in-future", KEY_COLLISION, NOT_FOUND, WAITED})


# What another publisher told of a job that it may have sent; None for others. May raise Unfit.
SentByJura = Callable[[JobRecord], PublishedJob | None]


class Skip(NamedTuple):
    """Nothing to do about a job: delivered, not wanted, or in quarantine for good reason."""

    left_quarantine: bool = False  # it is not wanted any more
    kept: bool = False  # it changed after delivery, and the receiver keeps what it has
    waits: bool = False  # it changed while a message with it is under way
    unwanted: bool = False  # its status, its VO or an administrator says so, not when it ended


class Publish(NamedTuple):
    """A job to publish: as the site wants it said, and what the ledger knows of the run already."""

    published: PublishedJob
    run: RunKey
    digest: bytes  # of the run's own values
    known: Recorded | None  # what the receiver counts of the run


class Decider(NamedTuple):
    """What a target makes of a job."""

    selection: Selection
    policy: RecordPolicy
    policy_digest: str
    changed: OnChange
    again: bool = False  # a window is republished: delivered runs go out again
    retracts: bool = False  # delivered runs that are not wanted any more are taken back
    sent_by_jura: SentByJura | None = None
    closed_until: Epoch = Epoch(0)  # what ended before counts in sums of its months (`keep`)

    def may_want(self, skipped: SkippedJob) -> bool:
        """Return whether what could not be read may be a job of the window."""
        return skipped.ended_at is None or skipped.ended_at in self.selection.window

    def is_settled(self, job: JobRecord, known: Recorded | None) -> bool:
        """Return whether a job that was looked at, and is not sent, is at the receiver."""
        is_there = known is not None and not known.pending
        return is_there and job.ended_at in self.selection.window

    def wants(self, job: JobRecord) -> bool:
        """Return whether a job would be published if nothing were known of it (hot path)."""
        return self.selection.wants(job) and isinstance(
            self._described(job, None, None), PublishedJob
        )

    def decide(
        self, job: JobRecord, run: RunKey, known: Recorded | None, held: Quarantined | None
    ) -> Publish | SkippedJob | Skip:
        """The job to publish, the job to set aside, or neither."""
        if self.closed_until and self.is_closed(job, known):
            return Skip(kept=known is not None and known.digest != job.values_digest)
        if not self.selection.wants(job):
            in_window = job.ended_at in self.selection.window
            return Skip(left_quarantine=held is not None, unwanted=in_window)
        if known is not None and known.pending:
            return Skip(waits=known.digest != job.values_digest)
        if known is not None and not known.counts:
            known = None
        if known is not None:
            job = self.pinned(job, known)
        digest = job.values_digest
        if known is not None and (passed := self._passed_over(known, held, job, digest)):
            return passed
        if held is not None and self.stays_held(held, job):
            return Skip(unwanted=held.hold is Hold.DROPPED)
        published = self._described(job, held, known)
        if not isinstance(published, PublishedJob):
            return published
        return Publish(published, run, digest, known)

    def is_closed(self, job: JobRecord, known: Recorded | None) -> bool:
        """Return whether a run counts in a month that is closed, or would."""
        if known is None or not known.counts:
            return job.ended_at < self.closed_until
        return min(known.record.ended_at, self.pinned(job, known).ended_at) < self.closed_until

    def pinned(self, job: JobRecord, known: Recorded) -> JobRecord:
        """Return a job as it is sent to a receiver that has the run.

        Under the end time that was delivered the changed run replaces the first there. If nothing
        but the end changed, the record would be the same once more.
        """
        if self.changed is OnChange.REPLACE:
            return job._replace(ended_at=known.record.ended_at)
        return job

    def _described(
        self, job: JobRecord, held: Quarantined | None, known: Recorded | None
    ) -> PublishedJob | SkippedJob | Skip:
        """Return what is said of a job; `known`: what the receiver counts of the run."""
        try:
            published = self.policy.describe(job)
            if not self.selection.wants_vo(published.who.vo):
                return Skip(left_quarantine=held is not None, unwanted=True)
            is_released = held is not None and held.hold is Hold.RELEASED
            if known is None and not is_released:
                self._refuse_summed_up(job)
            if self.sent_by_jura is None or is_released:
                return published
            return self.sent_by_jura(job) or published
        except Unfit as unfit:
            counts = known is not None and known.digest == job.values_digest
            if counts and unfit.rule == SENT_BY_JURA:
                # It goes on counting under a name that is not to be sent any more.
                return Skip(left_quarantine=held is not None)
            return skipped_job(job, unfit)

    def _refuse_summed_up(self, job: JobRecord) -> None:
        """Raises: Unfit for a run without an entry, which may have had one of closed months."""
        if self.closed_until and job.submitted_at < self.closed_until:
            raise Unfit(CLOSED_MONTHS, may_be_summed_up(self.closed_until))

    def _passed_over(
        self, known: Recorded, held: Quarantined | None, job: JobRecord, digest: bytes
    ) -> Skip | None:
        """Why a known run does not go out again; None when it may."""
        released = held is not None and held.hold is Hold.RELEASED
        # A record that another publisher is only believed to have sent goes out once more.
        is_guess = known.settings == BY_JURA and self.changed is OnChange.REPLACE
        if known.digest == digest and not (self.again or released or is_guess):
            # What was held of it with other values is no more; a refused repetition stays held.
            left = held is not None and not is_unchanged(held, job)
            return Skip(left_quarantine=left, unwanted=self.retracts and self._is_unwanted(job))
        if self.changed is OnChange.KEEP_FIRST and not self.again:
            return Skip(left_quarantine=held is not None, kept=True)
        return None

    def _is_unwanted(self, job: JobRecord) -> bool:
        """Return whether a job's VO is not selected any more; False where that cannot be told."""
        try:
            return not self.selection.wants_vo(self.policy.describe(job).who.vo)
        except Unfit:
            return False

    def stays_held(self, held: Quarantined, job: JobRecord) -> bool:
        """Until it is released, its row changes, or it is under another policy."""
        if held.hold is Hold.DROPPED:
            return True
        return (
            held.hold is Hold.HELD
            and is_unchanged(held, job)
            and held.policy_digest == self.policy_digest
            and held.job.rule not in _DECIDED_AGAIN
        )


def is_unchanged(held: Quarantined, job: JobRecord) -> bool:
    """Whether a quarantined job is what it was: all of it, or, if it was refused, what counts."""
    return held.job.fingerprint in (job.content_fingerprint, job.fingerprint)


def skipped_job(job: JobRecord, unfit: Unfit) -> SkippedJob:
    """The job as quarantine keeps it, with the rule that it broke."""
    return SkippedJob(
        row=job.row,
        job_id=job.job_id,
        local_id=job.local_id,
        ended_at=job.ended_at,
        rule=unfit.rule,
        reason=unfit.reason,
        fingerprint=job.content_fingerprint,
    )
