"""What waits since the ledger was found restored, or lost and made anew (rule 22).

What it lacks was delivered under settings and with values that nobody knows any more, so nothing is
inferred. Of a month that differs nothing goes, but single records of runs that were submitted
later. A run without an entry that was submitted before may be delivered, in its month or in another
one that differs: it waits, too, until each of these is solved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from publisher.model.entry import Recorded
from publisher.model.job import Epoch, JobId, JobRecord
from publisher.model.receiver import Loss
from publisher.model.totals import BlockedMonth, RestoredMonth
from publisher.publishing.plan.actions import EXAMPLES
from publisher.publishing.plan.reasons import MAY_BE_DELIVERED, MAY_LACK


class RestoredLedger:
    """The months of a receiver that differ, and the runs that wait in this round."""

    def __init__(
        self, target: str, losses: Sequence[Loss], *, closed: int, are_all_shown: bool
    ) -> None:
        """`are_all_shown`: `held` has all months that differ, not only those that were met.

        `closed`: months before this one are closed at the receiver; 0 for none.
        """
        self._closed = closed
        self._target = target
        self._losses = {one.month: one for one in losses}
        self._noticed_at = max((one.noticed_at for one in losses), default=Epoch(0))
        self._waiting = Counter[int]()
        self._examples: defaultdict[int, list[JobId]] = defaultdict(list)
        if are_all_shown:
            self._waiting.update(dict.fromkeys(self._losses, 0))

    def __bool__(self) -> bool:
        return bool(self._losses)

    @property
    def months(self) -> frozenset[int]:
        """The months that differ."""
        return frozenset(self._losses)

    def holds(self, job: JobRecord, month: int, known: Recorded | None, *, is_single: bool) -> bool:
        """Whether a run waits that would count in a month, or does not count any more there."""
        if not self._losses:
            return False
        if known is not None:
            waits = month in self._losses or known.row.month in self._losses
        else:
            goes_alone = is_single or month not in self._losses
            waits = job.submitted_at < self._noticed_at or not goes_alone
        if waits:
            self._wait(job.job_id, month)
        return waits

    def reason(self, month: int) -> str:
        """Return why runs of a month wait."""
        return MAY_LACK if month in self._losses else MAY_BE_DELIVERED

    def _wait(self, job: JobId, month: int) -> None:
        self._waiting[month] += 1
        examples = self._examples[month]
        if len(examples) < EXAMPLES:
            examples.append(job)

    def start_over(self, months: Collection[int]) -> None:
        """Forget the runs that wait in months, which are read again."""
        for month in months:
            self._examples.pop(month, None)
            if self._waiting.pop(month, None) is not None and month in self._losses:
                self.wait(month)

    def wait(self, month: int) -> None:
        """Show a month as held that is not sent."""
        self._waiting.setdefault(month, 0)

    @property
    def held(self) -> list[BlockedMonth]:
        """The months in which something waits."""
        return [self._blocked(month) for month in sorted(self._waiting)]

    def _blocked(self, month: int) -> BlockedMonth:
        waiting, loss = self._waiting[month], self._losses.get(month)
        examples = tuple(self._examples.get(month, ()))
        part = RestoredMonth(
            self._target, self._noticed_at, differs=False, waiting=waiting, examples=examples
        )
        if loss is not None:
            jobs = None if loss.before is None else loss.before.jobs
            is_closed = month < self._closed
            part = part._replace(
                differs=True, jobs=jobs, counted=loss.counted.jobs, is_closed=is_closed
            )
        return BlockedMonth(month, (), 0, restored=part)
