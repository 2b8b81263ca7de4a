"""Whether a job goes out, and what of it: known or new, wanted or not, fit or set aside."""

from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple

from publisher.formats.base import OnChange, SummaryFormat
from publisher.ledger.contract import DeliveredRun, Hold, Quarantined
from publisher.model.errors import Unfit
from publisher.model.job import JobKey, JobRecord, RunValues, SkippedJob
from publisher.model.message import TOO_LARGE, RunKeyValues
from publisher.model.published import PublishedJob
from publisher.policy.records import RecordPolicy
from publisher.policy.target import Selection

KEY_COLLISION: Final = "key-collision"
KEY_CHANGED: Final = "key-changed"
# These verdicts change with the clock, with other jobs or with a republish, not with the row.
_DECIDED_AGAIN: Final = frozenset({"end-in-future", KEY_COLLISION, KEY_CHANGED})
# These are a receiver's verdicts, on records that were sent.
_SENT_ONCE: Final = frozenset({"refused-by-receiver", TOO_LARGE})


# What another publisher told of a job that it may have sent; None for others. May raise Unfit.
SentByJura = Callable[[JobRecord], PublishedJob | None]


class Skip(NamedTuple):
    """Nothing to do about a job: delivered, not wanted, or in quarantine for good reason."""

    left_quarantine: bool = False  # it is not wanted any more
    kept: bool = False  # it changed after delivery, and the receiver keeps what it has


class Publish(NamedTuple):
    """A job to publish: as the site wants it said, and what the ledger knows of the run already."""

    published: PublishedJob
    entry: RunKeyValues  # under the run's own end time
    known: DeliveredRun | None


class Decider(NamedTuple):
    """What a target makes of a job."""

    selection: Selection
    policy: RecordPolicy
    policy_digest: str
    changed: OnChange
    again: bool = False  # a window is republished: delivered runs go out again
    sent_by_jura: SentByJura | None = None

    def decide(
        self, job: JobRecord, key: JobKey, known: DeliveredRun | None, held: Quarantined | None
    ) -> Publish | SkippedJob | Skip:
        """The job to publish, the job to set aside, or neither."""
        if not self.selection.wants(job):
            return Skip(left_quarantine=held is not None)
        known = self._in_this_form(known)
        if known is None and held is not None and self._may_be_stored(held):
            # Before it was refused alone, its message may have arrived all the same: under the end
            # time that was sent, what goes out now replaces it.
            job = job._replace(ended_at=held.job.ended_at or job.ended_at)
        fingerprint = job.fingerprint
        if known is not None:
            if self.changed is OnChange.REPLACE and job.ended_at != known.ended_at:
                # Under the end time that was delivered the changed run replaces the first at the
                # receiver. If nothing but the end changed, the record would be the same once more.
                job = job._replace(ended_at=known.ended_at)
                fingerprint = job.fingerprint
            if passed := self._passed_over(known, held, job, fingerprint):
                return passed
        if held is not None and self.stays_held(held, job):
            return Skip()
        published = self._described(job, held)
        if not isinstance(published, PublishedJob):
            return published
        if known is not None and self.changed is OnChange.KEEP_FIRST:
            # What it has, whatever is sent again: the difference must stay in sight.
            fingerprint = known.fingerprint
        return Publish(published, RunKeyValues(key, published.ended_at, fingerprint), known)

    def decide_again(
        self,
        job: JobRecord | SkippedJob,
        key: JobKey,
        held: Quarantined | None,
        form: SummaryFormat,
        now: datetime,
    ) -> Publish | SkippedJob | None:
        """What a month that is summed up again makes of a job; None: it is not wanted."""
        if held is not None and held.hold is Hold.DROPPED:
            return None
        if isinstance(job, SkippedJob):
            return job
        verdict = self.decide(job, key, None, None)
        if isinstance(verdict, Publish):
            try:
                form.admit(verdict.published, now)
            except Unfit as unfit:
                return skipped_job(job, unfit)
        return None if isinstance(verdict, Skip) else verdict

    def _described(
        self, job: JobRecord, held: Quarantined | None
    ) -> PublishedJob | SkippedJob | Skip:
        try:
            published = self.policy.describe(job)
            if not self.selection.wants_vo(published.who.vo):
                return Skip(left_quarantine=held is not None)
            if self.sent_by_jura is None or (held is not None and held.hold is Hold.RELEASED):
                return published
            return self.sent_by_jura(job) or published
        except Unfit as unfit:
            return skipped_job(job, unfit)

    def _passed_over(
        self, known: DeliveredRun, held: Quarantined | None, job: JobRecord, fingerprint: int
    ) -> Skip | None:
        """Why a known run does not go out again; None when it may."""
        if not known.settled:
            return Skip()
        released = held is not None and held.hold is Hold.RELEASED
        if known.fingerprint == fingerprint and not self.again and not released:
            # What was held of it with other values is no more; a refused repetition stays held.
            return Skip(left_quarantine=held is not None and not is_unchanged(held, job))
        if self.changed is OnChange.KEEP_FIRST and not self.again:
            return Skip(left_quarantine=held is not None, kept=True)
        return None

    def delivered_as_it_is(self, run: RunValues, known: DeliveredRun) -> bool:
        """Whether a known run was accepted with these values: `decide` would pass it over."""
        same = known.fingerprint == run.fingerprint and known.ended_at == run.ended_at
        is_delivered = same and known.settled and self._in_this_form(known) is not None
        return is_delivered and not self.again

    def _in_this_form(self, known: DeliveredRun | None) -> DeliveredRun | None:
        """None for what was only counted, for totals that did not arrive: one by one it is new."""
        if known is not None and known.only_counted and self.changed is not OnChange.RECOUNT:
            return None
        return known

    def _may_be_stored(self, held: Quarantined) -> bool:
        return self.changed is OnChange.REPLACE and held.job.rule in _SENT_ONCE

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
