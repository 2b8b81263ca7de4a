"""Jobs under one key of the receiver: the second would replace the first there, or be discarded.

APEL keeps one record for each Site, LocalJobId and EndTime. The accounting data are asked once a page for runs with the same
LocalJobID and end, and the ledger which of those were delivered; the later job is set aside.

SGAS keeps one record for each record id, which is the JobID's. A job that was restarted has another LocalJobID in the same row:
the ledger is asked for other runs of a page's jobs, and a run that was delivered after another one gets a record id of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from publisher.formats.base import JobFormat, OnChange, SummaryFormat
from publisher.ledger.contract import DeliveredRun, Hold, Ledger, MessageState, Outbox, Quarantined
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobId, JobKey, JobRecord, job_key, run_digest
from publisher.model.message import REMOVED
from publisher.model.text import ascii_text, receiver_key
from publisher.pipeline.round.decision import KEY_COLLISION, Publish
from publisher.pipeline.site import LiveTarget
from publisher.sources.base import EndedIn, EndedRun, Source

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class NoCollisions:
    """For receivers that have no such key."""

    def look_up(self, jobs: Sequence[JobRecord]) -> None: ...

    def checked(self, fit: Publish, held: Quarantined | None, is_waiting: Callable[[JobKey], bool]) -> Publish:
        return fit

    def taken(self, fit: Publish) -> None: ...


class Collisions(NoCollisions):
    """What a round knows of the runs that share LocalJobID and end."""

    def __init__(self, target: str, form: JobFormat, ledger: Ledger, ended_in: EndedIn) -> None:
        self._target = target
        self._format = form
        self._ledger = ledger
        self._ended_in = ended_in
        self._others: dict[JobKey, dict[JobKey, JobId]] = {}  # of each job of the page that has any
        self._known: Mapping[JobKey, DeliveredRun] = {}  # of these others
        self._taken: dict[JobKey, Epoch] = {}  # jobs of this round that have others, and their end

    def look_up(self, jobs: Sequence[JobRecord]) -> None:
        """Find the others of a page's jobs. Raises: SourceError, LedgerError."""
        # A job that never reached the batch system has no LocalJobID, and is published under its JobID.
        asked = [job for job in jobs if job.local_id]
        shared = self._sharing({job.ended_at for job in asked}) if asked else {}
        self._others = {}
        for job in asked if shared else ():
            if others := _others(job, shared.get((job.ended_at, _folded(job.local_id)), {})):
                self._others[job.key] = others
        keys = dict.fromkeys(key for others in self._others.values() for key in others)
        self._known = self._ledger.known(self._target, keys)

    def _sharing(self, ends: set[Epoch]) -> Mapping[tuple[Epoch, str], dict[JobKey, JobId]]:
        """The runs of each end and LocalJobID, where more than one run ended at that time."""
        by_end: defaultdict[Epoch, list[EndedRun]] = defaultdict(list)
        for run in self._ended_in(ends):
            by_end[run[0]].append(run)
        shared: defaultdict[tuple[Epoch, str], dict[JobKey, JobId]] = defaultdict(dict)
        for end, runs in by_end.items():
            for _, job_id, local_id in runs if len(runs) > 1 else ():
                shared[end, _folded(local_id)][job_key(job_id, local_id)] = job_id
        return shared

    def checked(self, fit: Publish, held: Quarantined | None, is_waiting: Callable[[JobKey], bool]) -> Publish:
        """`is_waiting` reports on runs that were taken and are not yet written down. Raises: Unfit for the later of two."""
        if held is not None and held.hold is Hold.RELEASED and held.job.rule == KEY_COLLISION:
            return fit
        job, key = fit.published, self._format.receiver_key(fit.published)
        for other, job_id in self._others.get(fit.entry.key, {}).items():
            if not self._is_in_the_way(fit, other, job_id, is_waiting):
                continue
            if self._format.receiver_key(replace(job, job=replace(job.job, job_id=job_id))) == key:
                raise Unfit(
                    KEY_COLLISION,
                    f"job {job_id} was published under the same key {key}, and one would replace the other at the "
                    "receiver; if both count, publish the jobs of one of the batch systems with a localid_prefix",
                )
        return fit

    def _is_in_the_way(self, fit: Publish, other: JobKey, job_id: JobId, is_waiting: Callable[[JobKey], bool]) -> bool:
        end = fit.published.ended_at
        known = self._known.get(other)
        delivered = known is not None and known.ended_at == end and known.fingerprint != REMOVED
        if (
            delivered and fit.known is not None
        ):  # an administrator released one of them: the later stands at the receiver
            return self._last_sent(job_id, end) > self._last_sent(fit.published.job.job_id, end)
        going = is_waiting(other) or self._taken.get(other) == end
        return going or (delivered and fit.known is None)

    def _last_sent(self, job_id: JobId, end: Epoch) -> datetime:
        made = [one.made_at for one in self._ledger.trace(job_id) if (one.target, one.ended_at) == (self._target, end)]
        return max(made, default=_NEVER)

    def taken(self, fit: Publish) -> None:
        """The job goes on its way."""
        if fit.entry.key in self._others:
            self._taken[fit.entry.key] = fit.published.ended_at


def _others(job: JobRecord, runs: Mapping[JobKey, JobId]) -> dict[JobKey, JobId]:
    return {key: job_id for key, job_id in runs.items() if job_id != job.job_id}


class LaterRuns(NoCollisions):
    """Of a job that A-REX restarted, SGAS would discard the later run: one record id is one row forever."""

    def __init__(self, target: str, ledger: Ledger) -> None:
        self._target = target
        self._ledger = ledger
        self._others: Mapping[JobKey, Sequence[DeliveredRun]] = {}  # of the page

    def look_up(self, jobs: Sequence[JobRecord]) -> None:
        self._others = self._ledger.other_runs(self._target, {job.key: job.row for job in jobs})

    def checked(self, fit: Publish, held: Quarantined | None, is_waiting: Callable[[JobKey], bool]) -> Publish:
        """The run as a later one, if it is. Raises: Unfit while the other one is on its way: perhaps it is not stored."""
        others = self._others.get(fit.entry.key, ())
        if fit.known is None and not all(run.settled for run in others):
            raise Unfit(KEY_COLLISION, "another run of the job is on its way; the next round sends this one")
        if not others:
            return fit
        later = is_later_run(self._target, fit.published.job, self._ledger)
        return Publish(replace(fit.published, later_run=later), fit.entry, fit.known)


def is_later_run(target: str, job: JobRecord, ledger: Outbox) -> bool:
    """Whether another run of the job was delivered before this one: the order in which they went out never changes."""
    sent = (one.run for one in ledger.trace(job.job_id) if one.target == target and one.state is MessageState.SENT)
    return next(sent, run_digest(job.key)) != run_digest(job.key)


@contextmanager
def collisions(live: LiveTarget, source: Source, ledger: Ledger) -> Iterator[NoCollisions]:
    """Keeps the accounting data open for a round of single records that replace each other at their receiver."""
    if isinstance(live.format, SummaryFormat):
        yield NoCollisions()
        return
    if live.changed is not OnChange.REPLACE:
        yield LaterRuns(live.name, ledger)
        return
    with source.by_end() as ended_in:
        yield Collisions(live.name, live.format, ledger, ended_in)


def _folded(local_id: str) -> str:
    """A LocalJobID as the receiver compares it."""
    return receiver_key(ascii_text(local_id))
