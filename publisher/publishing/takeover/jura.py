"""What jura-ng publishes, as far as receivers use it for keys, and which jobs it passed over.

jura-ng keeps nothing of what it sent but one time per target, so what it left at a receiver is
computed again from the same accounting data. Measured on jura-ng of ARC 6.21 and 7 against APEL's
server code.

A run of it took the jobs with EndTime > LastEndTime and stored the latest end it saw. A job is lost
when its row was written after a run had seen a later end. When rows were written is not stored, but
their order is (`ArexWritingOrder` in `sources/arex/source.py`):

- **Certainly lost**: written after a job that ended later than the final LastEndTime. No run saw
  that job, or LastEndTime would be later; so none came after it either. (Unless someone has
  republished by hand.)
- **Perhaps lost**: written after a job that ended later, but before that. It was lost if a run came
  between the two. Runs came every `period_s`, so of a job that is `behind` that many seconds, about
  behind / period_s are lost. The sum is an estimate: rows that A-REX wrote in one go after a
  standstill look late and need not be.

Jobs that end at or after the new `start` are sent in any case and not listed; that includes the
very second of LastEndTime. Of earlier seconds that a run cut in two (on average two jobs a run)
nothing can be determined. Summaries sent the month before again each time, so only a row two months
behind is perhaps lost there.

A database that was migrated or rotated holds its events in another order. It looks as if a fifth or
more of its jobs came hours late; then nothing is said about it. On a month of a live site, four in
a thousand were late at all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from publisher.formats import is_summary_format, receiver_of
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobRecord
from publisher.model.published import PublishedJob, parse_fqan
from publisher.model.rates import BenchmarkPolicy, BenchmarkRule, is_read_by_jura, make_benchmark
from publisher.model.text import plural, shown
from publisher.model.time import Window, iso_epoch, length_text
from publisher.model.totals import month_name, month_number
from publisher.policy.identity import Identity, read_by_jura
from publisher.policy.records import KeyStyle, RecordPolicy
from publisher.policy.target import Selection, Target
from publisher.publishing.plan.decision import SENT_BY_JURA
from publisher.sources.base import WritingOrder, WrittenJob

# What it says about a job that carries no benchmark.
_WITHOUT: Final = BenchmarkPolicy(
    rules=(BenchmarkRule(benchmarks=(make_benchmark("HEPSPEC", "1.0"),)),)
)

_NAMED: Final = (
    "jura-ng may have sent it with the user's name, which `identity` keeps back now, and under "
    "both it would count twice; when the receiver has no record of this job, or was asked to "
    "delete the row, release it, and drop it otherwise"
)


def as_jura(policy: RecordPolicy, *, summary: bool) -> RecordPolicy:
    """The policy of jura-ng. `vomsless_vo` (records.default_vo) counts in single records only."""
    default_vo = "" if summary else policy.default_vo
    return replace(
        policy,
        infrastructure="grid",
        benchmarks=_WITHOUT,
        default_vo=default_vo,
        vo_rules=(),
        vo_groups=(),
        identity=Identity(),
        key_style=KeyStyle.JURA,
        machine_name="",
        batch_server="",
        localid_prefix="",
        _who={},
        _where={},
    )


def _fqan_of(job: JobRecord, policy: RecordPolicy) -> str:
    return job.fqans[0] if job.fqans and job.side_fqan and (job.vo or policy.default_vo) else ""


def as_read_by_jura(job: JobRecord, policy: RecordPolicy, *, summary: bool) -> JobRecord:
    """A job with the VO, FQAN and benchmark that jura-ng reports, or that APEL makes of them.

    In single records it tells the FQAN as it is, which overrules the VO at APEL, but not for a job
    without a VO. That of ARC 7 looks for FQAN and benchmark where schema 1 had them, and so tells
    neither of a job that was written to schema 2.
    """
    reported = is_read_by_jura(job.benchmark) and (summary or job.side_benchmark)
    benchmark = job.benchmark if reported else ""
    if summary:
        return job._replace(benchmark=benchmark)
    fqan = _fqan_of(job, policy)
    if not read_by_jura(policy.receiver_text(job, fqan))[0]:
        return job._replace(fqans=(), benchmark=benchmark)
    return job._replace(vo=parse_fqan(fqan).vo or job.vo, benchmark=benchmark)


def sent_by_jura_of(target: Target) -> Callable[[JobRecord], PublishedJob | None] | None:
    """What is said of single jobs that jura-ng may have sent: the same, so that the key stays.

    None for a target where that does not matter; it gives None for a job of which the target speaks
    for itself. A user who is not to be named any more is not, and without the name the job has
    another key: it raises Unfit.
    """
    until = target.jura_until
    formats = target.jura_format or target.format, target.format
    if until is None or any(map(is_summary_format, formats)):
        return None
    if receiver_of(target.format).row_keys is None:
        return None
    policy = replace(
        as_jura(target.policy, summary=False),
        identity=target.policy.identity,
        machine_name=target.policy.machine_name,
    )

    def as_sent(job: JobRecord) -> PublishedJob | None:
        if job.ended_at > until or (job.interface, "") in policy.imported:
            return None
        try:
            published = policy.describe(as_read_by_jura(job, policy, summary=False))
            # In our sync messages, as of all other jobs
            counted_at = target.policy.place(job).receiver_host
        except Unfit:
            return None
        if published.who.user != policy.receiver_text(job, job.user):
            raise Unfit(SENT_BY_JURA, _NAMED)
        return published._replace(where=published.where._replace(receiver_host=counted_at))

    return as_sent


def jura_selection(selection: Selection, window: Window) -> Selection:
    """The jobs that it sends of a window: of all VOs, by the jobs' own (`vos`)."""
    every = selection._replace(window=window, vos=None, exclude_vos=frozenset())
    return every._replace(statuses=_PUBLISHED)


Job = TypeVar("Job")

_PUBLISHED: Final = frozenset({"completed", "failed"})
_AT_ONCE: Final = 500  # jobs that are looked for in the other databases
_LISTED: Final = 200
_HOURS_LATE_S: Final = 3600
_DISORDER: Final = 0.2
_ENOUGH_TO_ESTIMATE: Final = 50


class Watermark(NamedTuple):
    """Where ARC stopped with one target, and where ours begins. `vos` empty is all."""

    target: str
    last_end: Epoch
    start: Epoch
    summary: bool
    vos: frozenset[str]
    period_s: int


class Candidate(NamedTuple):
    """A job that was certainly or perhaps lost. `behind_s`: how much later an earlier row ended."""

    job: WrittenJob
    behind_s: int
    certain: bool


@dataclass(slots=True, kw_only=True)
class Search:
    """What was found for one target. Lists are bounded, numbers count all."""

    watermark: Watermark
    looked_at: int = 0
    certain: int = 0
    perhaps: int = 0
    expected: float = 0.0
    earliest: Epoch | None = None
    sent_anyway: int = 0
    unordered: int = 0  # jobs up to LastEndTime without a FINISHED event, of any status and VO
    disordered: list[str] = field(default_factory=list)
    surest: list[Candidate] = field(default_factory=list)
    latest: list[Candidate] = field(default_factory=list)


def look_for_lost(
    databases: Iterable[WritingOrder], watermarks: Sequence[Watermark]
) -> list[Search]:
    """One pass over each database for all targets; a job in two of them counts in the first.

    Raises: SourceError.
    """
    searches = [Search(watermark=watermark) for watermark in watermarks]
    before: list[WritingOrder] = []
    for database in databases:
        passes = [_Pass(search.watermark, search.disordered) for search in searches]
        for job, also_in in _with_others(database.jobs(), before, attrgetter("job_id")):
            for one in passes:
                one.see(job, also_in)
        for one, search in zip(passes, searches, strict=True):
            one.add_to(search, database)
            job_ids = database.unordered(search.watermark.last_end)
            search.unordered += sum(not other for _, other in _with_others(job_ids, before, str))
        before.append(database)
    return searches


def _with_others(
    jobs: Iterator[Job], before: Sequence[WritingOrder], id_of: Callable[[Job], str]
) -> Iterator[tuple[Job, str]]:
    """Each job, and the name of an earlier database that has it finished too, or ''."""
    while some := list(islice(jobs, _AT_ONCE)):
        job_ids = list(map(id_of, some))
        others: dict[str, str] = {}
        for database in before:
            others |= dict.fromkeys(database.finished_among(job_ids), database.name)
        yield from zip(some, (others.get(job_id, "") for job_id in job_ids), strict=True)


class _Pass:
    """One target's way through one database."""

    def __init__(self, watermark: Watermark, disordered: Collection[str]) -> None:
        """`disordered`: databases of which nothing can be said."""
        self._watermark = watermark
        self._disordered = disordered
        self._latest = Epoch(0)
        self._over = False  # a job was written that ended after LastEndTime: no run came later
        self._seen = 0
        self._hours_late = 0
        self._found = Search(watermark=watermark)
        self._heap: list[tuple[int, int, Candidate]] = []

    def see(self, job: WrittenJob, also_in: str) -> None:
        """A job counted in another database only tells the order of writing around it."""
        mark = self._watermark
        again = bool(also_in) and also_in not in self._disordered
        if job.status not in _PUBLISHED or (mark.vos and job.vo not in mark.vos):
            return
        self._seen += 1
        self._found.looked_at += not again
        if job.ended_at > mark.last_end:
            self._over = True
            return
        behind = max(self._latest - job.ended_at, 0)
        self._latest = max(self._latest, job.ended_at)
        self._hours_late += behind > _HOURS_LATE_S
        if not again:
            self._take(job, behind)

    def _take(self, job: WrittenJob, behind: int) -> None:
        mark = self._watermark
        if job.ended_at >= mark.start:
            self._found.sent_anyway += 1
        elif self._over:
            behind_s = max(behind, mark.last_end - job.ended_at)
            self._note_certain(Candidate(job=job, behind_s=behind_s, certain=True))
        elif behind:
            months = month_number(self._latest) - month_number(job.ended_at)
            if months > 1 or not mark.summary:
                self._note_perhaps(Candidate(job=job, behind_s=behind, certain=False))

    def add_to(self, search: Search, database: WritingOrder) -> None:
        found = self._found
        search.looked_at += found.looked_at
        search.sent_anyway += found.sent_anyway
        if self._seen >= _ENOUGH_TO_ESTIMATE and self._hours_late > _DISORDER * self._seen:
            search.disordered.append(database.name)
            return
        search.certain += found.certain
        search.perhaps += found.perhaps
        search.expected += found.expected
        earliest = [one for one in (search.earliest, found.earliest) if one is not None]
        search.earliest = min(earliest, default=None)
        search.surest = [*search.surest, *found.surest][:_LISTED]
        late = [*search.latest, *(candidate for _, _, candidate in self._heap)]
        search.latest = sorted(late, key=lambda candidate: -candidate.behind_s)[:_LISTED]

    def _note_certain(self, candidate: Candidate) -> None:
        found = self._found
        found.certain += 1
        ended_at = candidate.job.ended_at
        found.earliest = ended_at if found.earliest is None else min(found.earliest, ended_at)
        if len(found.surest) < _LISTED:
            found.surest.append(candidate)

    def _note_perhaps(self, candidate: Candidate) -> None:
        self._found.perhaps += 1
        self._found.expected += min(1.0, candidate.behind_s / self._watermark.period_s)
        # The number keeps equals apart
        entry = (candidate.behind_s, -self._found.perhaps, candidate)
        if len(self._heap) < _LISTED:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)


_WHOLE_MONTHS: Final = ("  (months are sent whole: only if the database still holds all of them)",)
_SENT_AGAIN: Final = (
    "  (jobs that ARC sent since then are sent again, as it sent them: "
    "receivers keep one record of a job)",
)


def report(search: Search) -> list[str]:
    """What was found, for people: one line each."""
    mark = search.watermark
    stopped, starts = iso_epoch(mark.last_end), iso_epoch(mark.start)
    lines = [
        f"target {mark.target}: ARC's publisher stopped at {stopped}; publisher starts at {starts}",
        f"  {search.looked_at:,} finished jobs looked at; "
        f"{search.sent_anyway:,} of those until then are sent (again) anyway",
    ]
    order = "its jobs are not in the order in which they were written (migrated or rotated?)"
    lines += [f"  cannot tell for {shown(name)}: {order}" for name in search.disordered]
    if search.unordered:
        jobs = plural(search.unordered, "job")
        lines.append(f"  cannot tell for {jobs} without a FINISHED event (converted rows?)")
    lines.append(
        f"  certainly lost: {search.certain}, unless republished by hand: "
        "written after ARC's publisher had passed their end"
    )
    lines += _listed(search.surest, search.certain)
    lines.append(
        f"  perhaps lost: {search.perhaps}, probably about {round(search.expected)}: written "
        f"behind jobs that ended later, between runs every {length_text(mark.period_s)}"
    )
    lines += _listed(search.latest, search.perhaps)
    if search.earliest is not None:
        start = f"start: {_start(mark, search.earliest)}"
        lines.append(f"  to send the certainly lost ones, set in this target: {start}")
        lines += _WHOLE_MONTHS if mark.summary else _SENT_AGAIN
    return lines


def _listed(candidates: Sequence[Candidate], of: int) -> list[str]:
    lines = [
        f"    {shown(one.job.job_id)}  {shown(one.job.local_id) or '-'}  "
        f"{iso_epoch(one.job.ended_at)}  {shown(one.job.vo) or '-'}  {one.behind_s} s behind"
        for one in candidates
    ]
    return [*lines, f"    ... and {of - len(candidates)} more"] if of > len(candidates) else lines


def _start(mark: Watermark, earliest: Epoch) -> str:
    return month_name(month_number(earliest)) if mark.summary else iso_epoch(earliest)
