"""Whether a job goes out, and what of it: known or new, wanted or not, fit or set aside. Decides, and does nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from publisher.errors import Unfit
from publisher.formats.base import JobFormat
from publisher.ledger.base import Hold, Known, Quarantined
from publisher.model.job import JobRecord, SkippedJob
from publisher.model.message import Entry, Rendered
from publisher.model.policy import RecordPolicy
from publisher.model.selection import Selection

# These verdicts change with the clock, not with the row.
_JUDGED_ANEW: Final = frozenset({"end-in-future"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """Nothing to do about a job: delivered, not wanted, or in quarantine for a reason that still holds."""

    left_quarantine: bool = False  # it is not wanted any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What a target makes of a job."""

    selection: Selection
    policy: RecordPolicy
    format: JobFormat
    policy_digest: str

    def judge(
        self, job: JobRecord, known: Known | None, held: Quarantined | None, now: datetime
    ) -> Rendered | SkippedJob | PassedOver:
        """The record to send, the job to set aside, or neither."""
        if not self.selection.wants(job):
            return PassedOver(left_quarantine=held is not None)
        fingerprint = job.fingerprint
        if known is not None:
            if known.fingerprint == fingerprint or not known.settled:
                return PassedOver()
            # The same run with other values: under the end time that was delivered it replaces the first at the receiver.
            job = replace(job, ended_at=known.ended_at)
        if held is not None and self.stays_held(held, fingerprint):
            return PassedOver()
        try:
            published = self.policy.describe(job)
            if not self.selection.wants_vo(published.who.vo):
                return PassedOver(left_quarantine=held is not None)
            return Rendered(
                job=job,
                content=self.format.render(published, now),
                entry=Entry(key=job.key, ended_at=published.ended_at, fingerprint=fingerprint),
                receiver_key=self.format.receiver_key(published),
                first_time=known is None,
                arex_default=published.benchmark.arex_default,
            )
        except Unfit as unfit:
            return set_aside(job, unfit, fingerprint)

    def stays_held(self, held: Quarantined, fingerprint: int) -> bool:
        """A quarantined job is tried again when it was released, its row changed, or another policy judges it now."""
        if held.hold is Hold.DROPPED:
            return True
        return (
            held.hold is Hold.HELD
            and held.job.fingerprint == fingerprint
            and held.policy_digest == self.policy_digest
            and held.job.rule not in _JUDGED_ANEW
        )


def set_aside(job: JobRecord, unfit: Unfit, fingerprint: int) -> SkippedJob:
    """The job as quarantine keeps it, with the rule that it broke."""
    return SkippedJob(
        row=job.row,
        job_id=job.job_id,
        local_id=job.local_id,
        ended_at=job.ended_at,
        rule=unfit.rule,
        reason=unfit.reason,
        fingerprint=fingerprint,
    )
