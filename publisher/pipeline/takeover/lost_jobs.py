"""Which jobs ARC's publisher has passed over: what its time watermark lost, as far as the database can tell.

A run of it took the jobs with EndTime > LastEndTime and stored the latest end it saw. A job is lost when its row was written
after a run had seen a later end. When rows were written is not stored, but their order is (`sources/arex/write_order.py`):

- **Certainly lost**: written after a job that ended later than the final LastEndTime. No run saw that job, or LastEndTime
  would be later; so none came after it either. (Unless someone has republished by hand.)
- **Perhaps lost**: written after a job that ended later, but before that. It was lost if a run came between the two. Runs came
  every `period_s`, so of a job that is `behind` that many seconds, about behind / period_s are lost. The sum is an estimate:
  rows that A-REX wrote in one go after a standstill look late and need not be.

Jobs that end at or after the new `start` are sent in any case and not listed; that takes in the very second of LastEndTime. Of
earlier seconds that runs have cut in two (on average two jobs a run, where a run falls into the writing) nothing can be
determined.

Summaries sent the month before again each time, so only a row two months behind is perhaps lost there.

A database that was migrated or rotated holds its events in another order. It looks as if a fifth or more of its jobs came hours
late; then nothing is said about it. Measured on a month of a live site: four in a thousand were late at all.

Jobs that another publisher has passed over, as far as the accounting data can tell.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple

from publisher.model.job import Epoch
from publisher.model.text import plural, shown
from publisher.model.time import Month, iso, length_text, month_of
from publisher.sources.base import WritingOrder, WrittenJob

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
    """A job that was certainly or perhaps lost. `behind_s` is how much later one ended that was written before it."""

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
    ordered: int = 0  # jobs up to LastEndTime with a FINISHED event, of any status and VO
    unordered: int = 0  # those without one
    disordered: list[str] = field(default_factory=list)
    surest: list[Candidate] = field(default_factory=list)
    latest: list[Candidate] = field(default_factory=list)


def look_for_lost(
    databases: Iterable[WritingOrder], watermarks: Sequence[Watermark], ended_until: Callable[[Epoch], int]
) -> list[Search]:
    """One pass over each database for all targets; a job that is finished in two of them counts in the first.

    `ended_until` is asked how many jobs have ended up to a second, by any database. Raises: SourceError.
    """
    searches = [Search(watermark=watermark) for watermark in watermarks]
    before: list[WritingOrder] = []
    for database in databases:
        passes = [_Pass(search.watermark, search.disordered) for search in searches]
        for job, also_in in _with_others(database.jobs(), before):
            for one in passes:
                one.see(job, also_in)
        for one, search in zip(passes, searches, strict=True):
            one.add_to(search, database)
        before.append(database)
    for search in searches:
        search.unordered = max(ended_until(search.watermark.last_end) - search.ordered, 0)
    return searches


def _with_others(jobs: Iterator[WrittenJob], before: Sequence[WritingOrder]) -> Iterator[tuple[WrittenJob, str]]:
    """Each job, and the name of a database before this one in which it is finished too; '' when there is none."""
    while some := list(islice(jobs, _AT_ONCE)):
        job_ids = [job.job_id for job in some]
        others = {job_id: database.name for database in before for job_id in database.finished_among(job_ids)}
        yield from ((job, others.get(job.job_id, "")) for job in some)


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
        """A job that was counted in another database only tells in which order those around it were written."""
        mark = self._watermark
        self._found.ordered += job.ended_at <= mark.last_end and not also_in
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
            self._note_certain(Candidate(job=job, behind_s=max(behind, mark.last_end - job.ended_at), certain=True))
        elif behind and (not mark.summary or _months_behind(self._latest, job.ended_at) > 1):
            self._note_perhaps(Candidate(job=job, behind_s=behind, certain=False))

    def add_to(self, search: Search, database: WritingOrder) -> None:
        found = self._found
        search.looked_at += found.looked_at
        search.sent_anyway += found.sent_anyway
        search.ordered += found.ordered
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
        entry = (candidate.behind_s, -self._found.perhaps, candidate)  # the number keeps equals apart
        if len(self._heap) < _LISTED:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)


_WHOLE_MONTHS: Final = ("  (months are sent whole: only if the database still holds all of them)",)
_SENT_AGAIN: Final = (
    "  (jobs that ARC sent since then are sent again, as it sent them: receivers keep one record of a job)",
)


def report(search: Search) -> list[str]:
    """What was found, for people: one line each."""
    mark = search.watermark
    lines = [
        f"target {mark.target}: ARC's publisher stopped at {_iso(mark.last_end)}; publisher starts at {_iso(mark.start)}",
        f"  {search.looked_at} finished jobs looked at; {search.sent_anyway} of those until then are sent (again) anyway",
    ]
    lines += [
        f"  cannot tell for {shown(name)}: its jobs are not in the order in which they were written (migrated or rotated?)"
        for name in search.disordered
    ]
    if search.unordered:
        lines.append(f"  cannot tell for {plural(search.unordered, 'job')} without a FINISHED event (converted rows?)")
    lines.append(
        f"  certainly lost: {search.certain}, unless republished by hand: written after ARC's publisher had passed their end"
    )
    lines += _listed(search.surest, search.certain)
    lines.append(
        f"  perhaps lost: {search.perhaps}, probably about {round(search.expected)}: written behind jobs that ended later, "
        f"between runs every {length_text(mark.period_s)}"
    )
    lines += _listed(search.latest, search.perhaps)
    if search.earliest is not None:
        lines.append(f"  to send the certainly lost ones, set in this target: start: {_start(mark, search.earliest)}")
        lines += _WHOLE_MONTHS if mark.summary else _SENT_AGAIN
    return lines


def _listed(candidates: Sequence[Candidate], of: int) -> list[str]:
    lines = [
        f"    {shown(one.job.job_id)}  {shown(one.job.local_id) or '-'}  {_iso(one.job.ended_at)}  {shown(one.job.vo) or '-'}  "
        f"{one.behind_s} s behind"
        for one in candidates
    ]
    return [*lines, f"    ... and {of - len(candidates)} more"] if of > len(candidates) else lines


def _start(mark: Watermark, earliest: Epoch) -> str:
    return str(_month(earliest)) if mark.summary else _iso(earliest)


def _months_behind(later: Epoch, earlier: Epoch) -> int:
    first, last = _month(earlier), _month(later)
    return 12 * (last.year - first.year) + last.month - first.month


def _month(moment: Epoch) -> Month:
    return month_of(datetime.fromtimestamp(moment, UTC))


def _iso(moment: Epoch) -> str:
    return iso(datetime.fromtimestamp(moment, UTC))


class LostJob(NamedTuple):
    """A job that was certainly or perhaps passed over."""

    job_id: str
    ended_at: Epoch
    certain: bool


class LostJobs(NamedTuple):
    """What was found. The numbers count all, `jobs` are the first of them; `lines` say it to people, and what to do."""

    certain: int
    perhaps: int
    jobs: tuple[LostJob, ...]
    lines: tuple[str, ...]
