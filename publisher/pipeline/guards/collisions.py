"""Keys of the receiver: jobs that would replace others there, or count a second time.

APEL keeps one record for each Site, LocalJobId and EndTime. The accounting data is asked once a
page for runs with the same LocalJobID and end, and the ledger which of those were delivered; the
later job is set aside. So is one that another target delivered to the same place under another key,
before its VO came here, or before this target took its place: APEL would keep both.

SGAS keeps one record for each record id, which is the JobID's. A job that was restarted has another
LocalJobID in the same row: the ledger is asked for other runs of a page's jobs, and a run that was
delivered after another one gets a record id of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, compress
from typing import Final, NamedTuple

from publisher.formats import receiver_of
from publisher.formats.base import JobFormat, OnChange, SummaryFormat, is_of_vo
from publisher.ledger.contract import (
    DeliveredRun,
    Hold,
    Ledger,
    MessageState,
    MonthState,
    Outbox,
    Quarantined,
)
from publisher.model.errors import Unfit
from publisher.model.job import (
    Epoch,
    JobId,
    JobKey,
    JobRecord,
    RowRef,
    job_key,
    run_digest,
)
from publisher.model.message import REMOVED
from publisher.model.text import ascii_text, receiver_key
from publisher.model.totals import KeyTotal, SummaryGroup, SummaryKey, left_behind, month_number
from publisher.pipeline.round.decision import KEY_CHANGED, KEY_COLLISION, Publish
from publisher.pipeline.site import LiveTarget
from publisher.sources.base import EndedIn, EndedRun, Source

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class NoCollisions:
    """For receivers that have no such key."""

    def look_up(self, jobs: Sequence[JobRecord]) -> None: ...

    def checked(
        self, fit: Publish, held: Quarantined | None, is_waiting: Callable[[JobKey], bool]
    ) -> Publish:
        return fit

    def taken(self, fit: Publish) -> None: ...


class DeliveredBeside:
    """What other targets delivered to the same place, and under which keys."""

    def __init__(self, live: LiveTarget, source: Source, ledger: Ledger) -> None:
        row_keys = live.format.receiver.row_keys
        self._keys = None if row_keys is None else row_keys()
        self.names = _same_place(live, ledger)
        self._source = source
        self._ledger = ledger
        self._known: list[tuple[str, Mapping[JobKey, DeliveredRun]]] = []  # of the page
        self._rows: dict[tuple[str, int], set[bytes] | None] = {}

    def look_up(self, runs: Mapping[JobKey, RowRef | None]) -> None:
        """Before their rows are asked for: what is delivered meanwhile is in those too.

        Raises: SourceError, LedgerError.
        """
        for database in {row.database for row in runs.values() if row is not None}:
            for name in self.names:
                self._ledger.check_numbering(name, database, self._source.fits)
        self._known = [(name, self._ledger.known(name, runs)) for name in self.names]
        self._rows.clear()

    def under_another_key(self, key: JobKey, ended_at: Epoch, row: SummaryKey | None) -> str:
        """Who delivered the run otherwise than as a record of this row and end; '' for nobody."""
        for name, known in self._known:
            run = known.get(key)
            if run is None or run.only_counted or run.fingerprint == REMOVED or row is None:
                continue
            rows = self._rows_of(name, month_number(run.ended_at))
            if rows is not None and (run.ended_at != ended_at or row.digest not in rows):
                return name
        return ""

    def check(self, fit: Publish, held: Quarantined | None) -> None:
        """Raises: Unfit for a run that would count a second time."""
        released = held is not None and held.hold is Hold.RELEASED
        if self._keys is None or not self.names or fit.known is not None or released:
            return
        job = fit.published
        row = self._keys.of(job).of_month(month_number(job.ended_at))
        if name := self.under_another_key(fit.entry.key, job.ended_at, row):
            raise Unfit(
                KEY_CHANGED,
                f"target {name} delivered it to the same place under another key, where it counts; "
                "`publisher quarantine drop` leaves it so; release it if that record and its row "
                "were deleted at the receiver",
            )

    def _rows_of(self, name: str, month: int) -> set[bytes] | None:
        """Of single records; None where it has none any more, and no totals."""
        if (name, month) not in self._rows:
            sent = self._ledger.summary_keys(name, month)
            rows = {total.key.digest for total, _ in sent}
            totals = any(one.month == month for one in self._ledger.months(name))
            self._rows[name, month] = rows if rows or totals else None
        return self._rows[name, month]


def _same_place(live: LiveTarget, ledger: Ledger) -> list[str]:
    """Other targets that led there, the ones that are not configured any more among them."""
    beside = [one.name for one in live.beside]
    names = ledger.targets() if live.leads_to else ()
    states = [ledger.target(name) for name in names if name not in (live.name, *beside)]
    there = [one for one in states if one is not None and one.leads_to == live.leads_to]
    return [*beside, *(one.target for one in there)]


class SentBefore(NamedTuple):
    """Rows of a month that a target sent, and the jobs in them that are not counted any more.

    `singles`: those that its single records made.
    """

    target: str
    format: str
    rows: Sequence[SummaryGroup]
    singles: Sequence[KeyTotal]
    lost: int

    @property
    def jobs(self) -> int:
        return sum(row.jobs for row in self.rows) + sum(row.jobs for row in self.singles)

    def left(
        self, form: SummaryFormat, groups: Sequence[SummaryGroup]
    ) -> tuple[Sequence[SummaryGroup], Sequence[KeyTotal]]:
        """The rows that these groups do not replace: zeros may empty some, the others stay."""
        there, rows = receiver_of(self.format), self.rows
        replaced = there.table == form.receiver.table
        if replaced:
            rows = left_behind(form.receiver_key, rows, groups)
        if replaced and form.takes_zeros:
            return rows, ()
        return (), [group.row(by_level=there.keeps_benchmark_values) for group in rows]


def sent_before(
    live: LiveTarget,
    form: SummaryFormat,
    ledger: Ledger,
    state: MonthState,
    accepted: Sequence[SummaryGroup],
    groups: Sequence[SummaryGroup],
) -> list[SentBefore]:
    """What others sent to the same place of VOs that a month's totals have for the first time.

    `accepted`: what the receiver has of this target's own. A target whose jobs another one took
    over knows only what it sent itself. Of those that are not configured any more, the last one of
    totals counts, as it was asked the same when it came after the others, and all single records
    that were sent after it.
    """
    jobs: Counter[str] = Counter()
    for group in groups:
        jobs[group.vo] += group.jobs
    arrived_whole = sum(group.jobs for group in accepted) == state.accepted_jobs
    new = jobs.keys() - {group.vo for group in accepted if group.jobs and arrived_whole}
    if not new:
        return []
    configured = {one.name for one in live.beside}
    found: defaultdict[tuple[str, str], list[SentBefore]] = defaultdict(list)
    others = filter(None, map(ledger.target, _same_place(live, ledger)))
    for name in [one.target for one in sorted(others, key=lambda one: one.last_round or _NEVER)]:
        for vo, sent in _sent_by(name, form, ledger, state, sorted(new)):
            known = found[vo, name if name in configured else ""]
            if sent.rows:
                known.clear()
            known.append(sent._replace(lost=max(sent.jobs - jobs[vo], 0)))
    return list(chain.from_iterable(found.values()))


def _sent_by(
    name: str, form: SummaryFormat, ledger: Ledger, state: MonthState, vos: Iterable[str]
) -> Iterator[tuple[str, SentBefore]]:
    """Of a month, by VO."""
    there = [*ledger.accepted(name, state.month), *ledger.sending(name, state.month)]
    rows = {(form.receiver_key(one), one.benchmarks): one for one in there if one.jobs}
    singles = [total for total, _ in ledger.summary_keys(name, state.month)]
    its_months = (one for one in ledger.months(name) if one.month == state.month)
    was = next(its_months, state).accepted_format or form.name
    for vo in vos:
        of_vo = [group for group in rows.values() if group.vo == vo]
        singles_of_vo = [total for total in singles if is_of_vo(total.key, vo)]
        if of_vo or singles_of_vo:
            yield vo, SentBefore(name, was, of_vo, singles_of_vo, 0)


class Collisions(NoCollisions):
    """What a round knows of the runs that share LocalJobID and end."""

    def __init__(
        self,
        live: LiveTarget,
        form: JobFormat,
        source: Source,
        ledger: Ledger,
        ended_in: EndedIn,
    ) -> None:
        self._target = live.name
        self._format = form
        self._ledger = ledger
        self._beside = DeliveredBeside(live, source, ledger)
        self._ended_in = ended_in
        self._others: dict[JobKey, dict[JobKey, JobId]] = {}  # of each job of the page that has any
        self._known: Mapping[JobKey, DeliveredRun] = {}  # of these others
        self._taken: dict[JobKey, Epoch] = {}  # jobs of this round that have others, and their end

    def look_up(self, jobs: Sequence[JobRecord]) -> None:
        """Find the others of a page's jobs. Raises: SourceError, LedgerError."""
        self._beside.look_up({job.key: job.row for job in jobs})
        self._look_up(
            [job.key for job in jobs],
            [job.job_id for job in jobs],
            [job.local_id for job in jobs],
            [job.ended_at for job in jobs],
        )

    def _look_up(
        self,
        keys: Sequence[JobKey],
        job_ids: Sequence[JobId],
        local_ids: Sequence[str],
        ends: Sequence[Epoch],
    ) -> None:
        self._others = {}
        # A job that never reached the batch system is published under its JobID.
        shared = self._sharing(set(compress(ends, local_ids)))
        if shared:
            for key, job_id, local_id, end in zip(keys, job_ids, local_ids, ends, strict=True):
                runs = shared.get((end, _folded(local_id)), {}) if local_id else {}
                if others := {other: its_id for other, its_id in runs.items() if its_id != job_id}:
                    self._others[key] = others
        found = dict.fromkeys(key for others in self._others.values() for key in others)
        self._known = self._ledger.known(self._target, found)

    def _sharing(self, ends: set[Epoch]) -> Mapping[tuple[Epoch, str], dict[JobKey, JobId]]:
        """The runs of each end and LocalJobID, where more than one run ended at that time."""
        by_end: defaultdict[Epoch, list[EndedRun]] = defaultdict(list)
        for run in self._ended_in(ends) if ends else ():
            by_end[run[0]].append(run)
        shared: defaultdict[tuple[Epoch, str], dict[JobKey, JobId]] = defaultdict(dict)
        for end, runs in by_end.items():
            for _, job_id, local_id in runs if len(runs) > 1 else ():
                shared[end, _folded(local_id)][job_key(job_id, local_id)] = job_id
        return shared

    def checked(
        self, fit: Publish, held: Quarantined | None, is_waiting: Callable[[JobKey], bool]
    ) -> Publish:
        """`is_waiting` reports on runs not written down yet. Raises: Unfit for the later of two."""
        self._beside.check(fit, held)
        if held is not None and held.hold is Hold.RELEASED and held.job.rule == KEY_COLLISION:
            return fit
        job, key = fit.published, self._format.receiver_key(fit.published)
        for other, job_id in self._others.get(fit.entry.key, {}).items():
            if not self._is_in_the_way(fit, other, job_id, is_waiting):
                continue
            if self._format.receiver_key(job._replace(job=job.job._replace(job_id=job_id))) == key:
                raise Unfit(
                    KEY_COLLISION,
                    f"job {job_id} was published under the same key {key}, and one would replace "
                    "the other at the receiver; if both count, publish the jobs of one of the "
                    "batch systems with a localid_prefix",
                )
        return fit

    def _is_in_the_way(
        self, fit: Publish, other: JobKey, job_id: JobId, is_waiting: Callable[[JobKey], bool]
    ) -> bool:
        end = fit.published.ended_at
        known = self._known.get(other)
        delivered = known is not None and known.ended_at == end and known.fingerprint != REMOVED
        # An administrator released one of them: the later stands at the receiver.
        if delivered and fit.known is not None:
            return self._last_sent(job_id, end) > self._last_sent(fit.published.job.job_id, end)
        going = is_waiting(other) or self._taken.get(other) == end
        return going or (delivered and fit.known is None)

    def _last_sent(self, job_id: JobId, end: Epoch) -> datetime:
        sent = [one for one in self._ledger.trace(job_id) if one.target == self._target]
        return max((one.made_at for one in sent if one.ended_at == end), default=_NEVER)

    def taken(self, fit: Publish) -> None:
        """The job goes on its way."""
        if fit.entry.key in self._others:
            self._taken[fit.entry.key] = fit.published.ended_at


class LaterRuns(NoCollisions):
    """Of a job that A-REX restarted, SGAS would discard the later run: an id is one row for ever.

    APEL would replace the accelerators of the first.
    """

    def __init__(self, target: str, ledger: Ledger) -> None:
        self._target = target
        self._ledger = ledger
        self._others: Mapping[JobKey, Sequence[DeliveredRun]] = {}  # of the page

    def look_up(self, jobs: Sequence[JobRecord]) -> None:
        self._others = self._ledger.other_runs(self._target, {job.key: job.row for job in jobs})

    def checked(
        self, fit: Publish, held: Quarantined | None, is_waiting: Callable[[JobKey], bool]
    ) -> Publish:
        """The run as a later one, if it is. Raises: Unfit while the other one is on its way."""
        others = self._others.get(fit.entry.key, ())
        if fit.known is None and not all(run.settled for run in others):
            wait = "another run of the job is on its way; the next round sends this one"
            raise Unfit(KEY_COLLISION, wait)
        if not others:
            return fit
        later = is_later_run(self._target, fit.published.job, self._ledger)
        return Publish(fit.published._replace(later_run=later), fit.entry, fit.known)


def is_later_run(target: str, job: JobRecord, ledger: Outbox) -> bool:
    """Whether another run of the job was delivered before this one: that order never changes."""
    runs = (one for one in ledger.trace(job.job_id) if one.target == target)
    sent = (one.run for one in runs if one.state is MessageState.SENT)
    return next(sent, run_digest(job.key)) != run_digest(job.key)


@contextmanager
def collisions(live: LiveTarget, source: Source, ledger: Ledger) -> Iterator[NoCollisions]:
    """Keeps accounting data open for a round of records that replace each other there."""
    if isinstance(live.format, SummaryFormat):
        yield NoCollisions()
        return
    if live.changed is not OnChange.REPLACE or live.format.receiver.keyed_by_job:
        yield LaterRuns(live.name, ledger)
        return
    with source.by_end() as ended_in:
        yield Collisions(live, live.format, source, ledger, ended_in)


def _folded(local_id: str) -> str:
    """A LocalJobID as the receiver compares it."""
    return receiver_key(ascii_text(local_id))
