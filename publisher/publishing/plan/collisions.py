"""Keys of the receiver: jobs that would replace others there, or count a second time.

APEL keeps one record for each Site, LocalJobId and EndTime: a run whose record key another run has
there is set aside, and of two new ones the later that comes. SGAS keeps one record for each record
id, which is the JobID's. A job that was restarted has another LocalJobID in the same row: what the
ledger has of other runs of a page's jobs tells, and a run that was delivered after another one gets
a record id of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from publisher.formats.base import OnChange, Receiver
from publisher.ledger.answers import Hold, Quarantined
from publisher.ledger.contract import Entries
from publisher.model.entry import RecordedRuns
from publisher.model.errors import Unfit
from publisher.model.job import JOB_OF_RUN, Epoch, JobRecord, RunKey
from publisher.model.totals import column, id_column
from publisher.publishing.plan.decision import KEY_COLLISION, Publish, Skip
from publisher.publishing.plan.reasons import OTHER_RUN_UNDER_WAY, same_record
from publisher.publishing.plan.records import as_compared

Key = TypeVar("Key")

# Of this round, that may not be in the ledger yet: more than a message has; twice some 2 MB.
_REMEMBERED: Final = 10_000


class _Taken(Generic[Key]):
    """The runs that were taken last, by a key of the receiver."""

    def __init__(self) -> None:
        self._now: dict[Key, RunKey] = {}
        self._before: dict[Key, RunKey] = {}

    def get(self, key: Key) -> RunKey | None:
        return self._now.get(key) or self._before.get(key)

    def note(self, key: Key, run: RunKey) -> None:
        if len(self._now) >= _REMEMBERED:
            self._before, self._now = self._now, {}
        self._now[key] = run


class NoCollisions:
    """For receivers that have no such key."""

    def look_up(self, jobs: Sequence[JobRecord], known: RecordedRuns) -> None: ...

    def checked(self, fit: Publish, held: Quarantined | None) -> Publish | Skip:
        return fit

    def taken(self, fit: Publish, *, is_held: bool = False) -> None: ...


class Collisions(NoCollisions):
    """Whose record the receiver has under which key."""

    def __init__(self, target: str, entries: Entries) -> None:
        self._target = target
        self._entries = entries
        self._owners: dict[tuple[str, str, int], RunKey] = {}  # of the page's ends
        self._taken = _Taken[tuple[str, str, int]]()  # of this round

    def look_up(self, jobs: Sequence[JobRecord], known: RecordedRuns) -> None:
        """Find the records that ended when a page's jobs did. Raises: LedgerError."""
        found = self._entries.owners(self._target, {job.ended_at for job in jobs})
        self._owners = {as_compared(record): run for run, record in found}

    def checked(self, fit: Publish, held: Quarantined | None) -> Publish | Skip:
        """Raises: Unfit for a run whose record would replace another's."""
        if held is not None and held.hold is Hold.RELEASED and held.job.rule == KEY_COLLISION:
            return fit
        key = _key_of(fit)
        if fit.known is not None and as_compared(fit.known.record) == key:
            return fit
        owner = self._owners.get(key) or self._taken.get(key)
        if owner not in (None, fit.run):
            site, local_id = fit.published.where.site, fit.published.local_id
            raise Unfit(KEY_COLLISION, same_record(site, local_id, fit.published.ended_at))
        return fit

    def taken(self, fit: Publish, *, is_held: bool = False) -> None:
        """The job goes on its way, or may be delivered already."""
        self._taken.note(_key_of(fit), fit.run)


def _key_of(fit: Publish) -> tuple[str, str, int]:
    published = fit.published
    return column(published.where.site), id_column(published.local_id), published.ended_at


class LaterRuns(NoCollisions):
    """Of a job that A-REX restarted, SGAS would discard the later run: an id is one row for ever.

    APEL would replace the accelerators of the first.
    """

    def __init__(self, closed_until: Epoch) -> None:
        self._closed_until = closed_until  # entries of other runs of a job may be summed up
        self._known = RecordedRuns({})
        self._taken = _Taken[bytes]()  # by job, of this round

    def look_up(self, jobs: Sequence[JobRecord], known: RecordedRuns) -> None:
        self._known = known

    def checked(self, fit: Publish, held: Quarantined | None) -> Publish | Skip:
        """The run as a later one, if it is; it waits for one that this round takes.

        Raises: Unfit while the other one is on its way.
        """
        run = fit.run
        others = self._known.others(run)
        if fit.known is None and any(one.pending for one in others):
            raise Unfit(KEY_COLLISION, OTHER_RUN_UNDER_WAY)
        is_summed_up = fit.published.job.submitted_at < self._closed_until
        if self._closed_until and not others and is_summed_up:
            if fit.known is not None:  # under which id, was told by what is summed up
                return Skip(kept=True)
            return fit._replace(published=fit.published._replace(later_run=True))
        if not others:
            waits = self._taken.get(run[JOB_OF_RUN]) not in (None, run)
            return Skip(waits=True) if waits else fit
        later = self._known.is_later_run(run)
        return fit._replace(published=fit.published._replace(later_run=later))

    def taken(self, fit: Publish, *, is_held: bool = False) -> None:
        """The job goes on its way; the ledger tells of it before that many others do."""
        if is_held:  # others of its job are, too
            return
        self._taken.note(fit.run[JOB_OF_RUN], fit.run)


def collisions(target: str, there: Receiver, entries: Entries, closed_until: Epoch) -> NoCollisions:
    """Return what has to be known of the keys of single records at a target's receiver."""
    if there.on_change is not OnChange.REPLACE or there.keyed_by_job:
        return LaterRuns(closed_until)
    return Collisions(target, entries)
