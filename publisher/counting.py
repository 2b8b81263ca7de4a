"""Jobs that are alike, counted into their months at once: judged by one that speaks for all, then added up.

What comes out is what one by one would (tests/test_counting.py): whoever is known with other values, is held in quarantine,
or breaks a rule, is left for a look of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Final

from publisher.aim import Aim
from publisher.errors import Unfit
from publisher.judge import Fit, Judge, PassedOver
from publisher.ledger.base import Known, Ledger
from publisher.model.alike import Alike, BareRun
from publisher.model.job import Epoch, JobKey, JobRecord, RowRef, Side, job_key, values_fingerprint
from publisher.model.message import Entry
from publisher.model.progress import OpenRow, Progress
from publisher.model.quality import CPU_OVER_WALL, shared_warnings
from publisher.model.row_keys import month_number
from publisher.model.summary import Share
from publisher.sources.base import Page, Source
from publisher.summing import MonthTotals

_END, _WALL, _USER, _KERNEL = (itemgetter(place) for place in (3, 4, 5, 6))  # of a BareRun
_REMEMBERED: Final = 5_000  # speakers, 2 kB each
Member = tuple[BareRun, JobKey]
Stretch = tuple[int, int]  # a month, and a place between turning points: all that end in it are judged alike


@dataclass(slots=True, kw_only=True)
class Taken:
    """What became of runs that were alike. `left` are the rows that need a look of their own."""

    jobs: int = 0
    arex_default: int = 0
    warnings: Counter[str] = field(default_factory=Counter)
    left: list[RowRef] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Speaker:
    """One who speaks for the runs of an example in a stretch: to be published, or not wanted, or refused."""

    example: JobRecord  # held, so that its id cannot come to mean another
    fit: Fit | None = None
    refused: bool = False
    warnings: tuple[str, ...] = ()
    admitted: tuple[int, int, int] = (0, 0, 0)  # end, wall and CPU time that its format is known to take


class AlikeCounter:
    """Counts runs that are alike into a target's months."""

    def __init__(
        self,
        *,
        target: str,
        judge: Judge,
        source: Source,
        ledger: Ledger,
        totals: MonthTotals,
        needs: frozenset[Side],
    ) -> None:
        self._target = target
        self._judge = judge
        self._source = source
        self._ledger = ledger
        self._totals = totals
        self._needs = needs
        window = judge.selection.window
        edges = {edge for edge in (window.start, window.end) if edge is not None}
        self._turning_points = sorted(edges | judge.policy.turning_points)
        self._speakers: dict[tuple[int, Stretch], _Speaker] = {}

    def take_page(self, page: Page, progress: Progress, now: datetime) -> tuple[Page, Progress, Taken]:
        """Count those of a page that are alike; gives the page with the jobs that are left for `Round`, read whole.

        Raises: SourceError.
        """
        taken = self.take(page.alike, now)
        left = [OpenRow(row=row, finished_seen_at=None) for row in taken.left]
        page = replace(page, alike=())
        for whole in self._source.look_again(left, self._needs, now) if left else ():
            page = replace(page, jobs=page.jobs + whole.jobs, skipped=page.skipped + whole.skipped)
            progress += Progress(opened=whole.open)
        return page, progress, taken

    def take(self, alike: Sequence[Alike], now: datetime) -> Taken:
        """Count all that can be."""
        keys = [[job_key(run[1], run[2]) for run in one.runs] for one in alike]
        every = [key for of_one in keys for key in of_one]
        known, held = self._ledger.known(self._target, every), self._ledger.held(self._target, every)
        taken = Taken()
        for one, of_one in zip(alike, keys, strict=True):
            database = one.example.row.database
            for stretch, members in self._stretches(list(zip(one.runs, of_one, strict=True))):
                left = self._take(one.example, stretch, members, known, held.keys(), taken, now)
                taken.left += [RowRef(database=database, record_id=run[0]) for run in left]
        return taken

    def _stretches(self, members: list[Member]) -> Iterator[tuple[Stretch | None, list[Member]]]:
        """The runs by stretch, None for those that end in no month; nearly always all are in one."""
        ends = [run[3] for run, _ in members]
        first = self._stretch(min(ends))
        if first is not None and first == self._stretch(max(ends)):
            yield first, members
            return
        apart: dict[Stretch | None, list[Member]] = {}
        for member in members:
            apart.setdefault(self._stretch(member[0][3]), []).append(member)
        yield from apart.items()

    def _stretch(self, ended_at: Epoch) -> Stretch | None:
        try:
            return month_number(ended_at), bisect_right(self._turning_points, ended_at)
        except Unfit:
            return None

    def _take(
        self,
        example: JobRecord,
        stretch: Stretch | None,
        members: Sequence[Member],
        known: Mapping[JobKey, Known],
        held: Collection[JobKey],
        taken: Taken,
        now: datetime,
    ) -> list[BareRun]:
        """Count the runs of a stretch; gives those that need a look of their own."""
        runs = [run for run, _ in members]
        if stretch is None:
            return runs
        speaker = self._speaker(example, stretch, runs[0][3], now)
        if speaker.refused or not self._admits(speaker, runs, now):
            return runs
        if speaker.fit is None:
            return [run for run, key in members if key in held]
        left: list[BareRun] = []
        counted: list[BareRun] = []
        entries: list[Entry] = []
        status, nodes, cores = example.status, example.node_count or 0, example.cpu_count or 0
        for run, key in members:
            if key in self._totals:
                continue
            fingerprint = values_fingerprint(status, *run[3:], nodes, cores)
            if key in held or key in known:
                if key in held or not self._judge.is_delivered(known[key], run[3], fingerprint):
                    left.append(run)
                continue
            entries.append(Entry(key=key, ended_at=run[3], fingerprint=fingerprint))
            counted.append(run)
        if counted:
            self._totals.take_many(speaker.fit.published, entries, _share(counted))
            self._note(speaker, speaker.fit, counted, cores, taken)
        return left

    def _note(self, speaker: _Speaker, fit: Fit, runs: Sequence[BareRun], cores: int, taken: Taken) -> None:
        taken.jobs += len(runs)
        taken.arex_default += len(runs) * fit.published.benchmark.arex_default
        for name in speaker.warnings:
            taken.warnings[name] += len(runs)
        if over_wall := sum(run[5] + run[6] > run[4] * cores for run in runs) if cores else 0:
            taken.warnings[CPU_OVER_WALL] += over_wall

    def _speaker(self, example: JobRecord, stretch: Stretch, ended_at: Epoch, now: datetime) -> _Speaker:
        at = (id(example), stretch)
        speaker = self._speakers.get(at)
        if speaker is None:
            if len(self._speakers) >= _REMEMBERED:
                self._speakers.clear()
            speaker = self._speakers[at] = self._judged(example, ended_at, now)
        return speaker

    def _judged(self, example: JobRecord, ended_at: Epoch, now: datetime) -> _Speaker:
        """What becomes of the runs of an example that end about then, as far as it does not lie in their numbers."""
        job = _with_values(example, ended_at, 0, 0)
        verdict = self._judge.judge(job, job.key, None, None)
        if isinstance(verdict, PassedOver):
            return _Speaker(example=example)
        if isinstance(verdict, Fit) and self._totals.admits(verdict.published, now):
            return _Speaker(example=example, fit=verdict, warnings=shared_warnings(verdict.published))
        return _Speaker(example=example, refused=True)

    def _admits(self, speaker: _Speaker, runs: Sequence[BareRun], now: datetime) -> bool:
        """Whether the format takes a run that is the worst of them in every respect: then it takes them all."""
        if speaker.fit is None:
            return True
        end, wall_s = max(map(_END, runs)), max(map(_WALL, runs))
        cpu_s = max(map(_USER, runs)) + max(map(_KERNEL, runs))
        last = speaker.admitted
        if end <= last[0] and wall_s <= last[1] and cpu_s <= last[2]:
            return True
        worst = speaker.fit.published
        if not self._totals.admits(replace(worst, job=_with_values(worst.job, end, wall_s, cpu_s), ended_at=end), now):
            return False
        speaker.admitted = (max(end, last[0]), max(wall_s, last[1]), max(cpu_s, last[2]))
        return True


def counter_for(outlet: object, aim: Aim, judge: Judge, source: Source, ledger: Ledger) -> AlikeCounter | None:
    """None for an outlet of single records."""
    if not isinstance(outlet, MonthTotals):
        return None
    return AlikeCounter(
        target=aim.name, judge=judge, source=source, ledger=ledger, totals=outlet, needs=aim.format.needs
    )


def _share(runs: Sequence[BareRun]) -> Share:
    ends = list(map(_END, runs))
    return Share(
        jobs=len(runs),
        wall_s=sum(map(_WALL, runs)),
        cpu_s=sum(map(_USER, runs)) + sum(map(_KERNEL, runs)),
        earliest_end=min(ends),
        latest_end=max(ends),
    )


def _with_values(example: JobRecord, ended_at: Epoch, wall_s: int, cpu_s: int) -> JobRecord:
    return replace(example, ended_at=ended_at, wall_s=wall_s, cpu_user_s=cpu_s, cpu_kernel_s=0)
