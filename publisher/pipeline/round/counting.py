"""Jobs that are alike, counted into their months at once: judged by one that speaks for all, then added up.

What comes out is what one by one would (tests/pipeline/test_counting.py): whoever is known with other values, is held in
quarantine, or breaks a rule, is left for a look of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Final

from publisher.formats.rules import CPU_OVER_WALL, shared_warnings
from publisher.ledger.contract import DeliveredRun, Ledger
from publisher.model.errors import Unfit
from publisher.model.job import (
    Epoch,
    JobGroup,
    JobId,
    JobKey,
    JobRecord,
    RowRef,
    RunTuple,
    SideTable,
    job_keys,
    run_fingerprints,
)
from publisher.model.message import OpenRow, Progress, delivered_from
from publisher.model.totals.months import month_window
from publisher.model.totals.summary import Share, month_number
from publisher.pipeline.round.decision import Decider, Publish, Skip
from publisher.pipeline.round.totals import MonthlyTotals
from publisher.pipeline.site import LiveTarget
from publisher.sources.base import Page, Source

_END: Final = itemgetter(3)  # of a BareRun
_REMEMBERED: Final = 5_000  # speakers, 2 kB each
_ASKED_FOR_S: Final = 2**30  # more than nearly any job uses, and within every receiver's bounds
Stretch = tuple[int, int]  # a month, and a place between turning points: all that end in it are judged alike


@dataclass(slots=True, kw_only=True)
class Taken:
    """What became of runs that were alike. `left` are the rows that need a look of their own."""

    jobs: int = 0
    arex_default: int = 0
    arex_default_wall_s: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    left: list[RowRef] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Speaker:
    """One who speaks for the runs of an example in a stretch: to be published, or not wanted, or refused."""

    example: JobRecord  # held, so that its id cannot come to mean another
    fit: Publish | None = None
    refused: bool = False
    until: int = 0  # the last second of the stretch
    warnings: tuple[str, ...] = ()
    admitted: tuple[int, int, int] = (0, 0, 0)  # end, wall and CPU time that its format is known to take


class _RunGroup:
    """Runs of an example in a stretch, by columns: what is made of a column at once costs a third of the price."""

    __slots__ = (
        "delivered_from",
        "ends",
        "example",
        "kernels",
        "keys",
        "record_ids",
        "runs",
        "stretch",
        "users",
        "walls",
    )

    def __init__(self, example: JobRecord, stretch: Stretch | None, runs: Sequence[RunTuple]) -> None:
        self.example = example
        self.stretch = stretch
        self.runs = runs
        self.record_ids, job_ids, local_ids, self.ends, self.walls, self.users, self.kernels = zip(*runs, strict=True)
        self.keys = job_keys(job_ids, local_ids)
        self.delivered_from = delivered_from(JobId("".join(job_ids)), example.row)

    def fingerprints(self) -> list[int]:
        values = zip(self.ends, self.walls, self.users, self.kernels, strict=True)
        return run_fingerprints(self.example.status, values, self.example.node_count or 0, self.example.cpu_count or 0)

    def share(self) -> Share:
        return Share(
            jobs=len(self.runs),
            wall_s=sum(self.walls),
            cpu_s=sum(self.users) + sum(self.kernels),
            earliest_end=min(self.ends),
            latest_end=max(self.ends),
        )

    def over_wall(self) -> int:
        """How many used more CPU time than their cores have in their wall time, as far as it is known."""
        cores = self.example.cpu_count or 0
        if not cores:
            return 0
        times = zip(self.walls, self.users, self.kernels, strict=True)
        return sum([user + kernel > wall * cores for wall, user, kernel in times])


class Stretches:
    """Times in which whoever decides makes the same of runs that are alike."""

    def __init__(self, decider: Decider) -> None:
        window = decider.selection.window
        edges = {edge for edge in (window.start, window.end) if edge is not None}
        self._turning_points = sorted(edges | decider.policy.change_times)

    def of(self, runs: Sequence[RunTuple]) -> Iterator[tuple[Stretch | None, Sequence[RunTuple]]]:
        """The runs by stretch, None for those that end in no month; nearly always all are in one."""
        ends = list(map(_END, runs))
        first = self._at(min(ends))
        if first is not None and first == self._at(max(ends)):
            yield first, runs
            return
        apart: dict[Stretch | None, list[RunTuple]] = {}
        for run in runs:
            apart.setdefault(self._at(run[3]), []).append(run)
        yield from apart.items()

    def last_second(self, stretch: Stretch) -> int:
        month, place = stretch
        edges = [month_window(month).end, *self._turning_points[place : place + 1]]
        return min(edge for edge in edges if edge is not None) - 1

    def _at(self, ended_at: Epoch) -> Stretch | None:
        try:
            return month_number(ended_at), bisect_right(self._turning_points, ended_at)
        except Unfit:
            return None


class AlikeCounter:
    """Counts runs that are alike into a target's months."""

    def __init__(
        self,
        *,
        target: str,
        decider: Decider,
        source: Source,
        ledger: Ledger,
        totals: MonthlyTotals,
        needs: frozenset[SideTable],
    ) -> None:
        self._target = target
        self._decider = decider
        self._source = source
        self._ledger = ledger
        self._totals = totals
        self._needs = needs
        self._stretches = Stretches(decider)
        self._speakers: dict[tuple[int, Stretch], _Speaker] = {}

    def take_page(self, page: Page, progress: Progress, now: datetime) -> tuple[Page, Progress, Taken]:
        """Count those of a page that are alike; gives the page with the jobs that are left for `Round`, read whole.

        Raises: SourceError.
        """
        taken = self.take(page.alike, now)
        left = [OpenRow(row=row, finished_seen_at=None) for row in taken.left]
        page = replace(page, alike=())
        for whole in self._source.reread(left, self._needs, now) if left else ():
            page = replace(page, jobs=page.jobs + whole.jobs, skipped=page.skipped + whole.skipped)
            progress += Progress(opened=whole.open)
        return page, progress, taken

    def take(self, alike: Sequence[JobGroup], now: datetime) -> Taken:
        """Count all that can be."""
        groups = [
            _RunGroup(one.example, stretch, runs) for one in alike for stretch, runs in self._stretches.of(one.runs)
        ]
        every = [key for group in groups for key in group.keys]
        rows = [record_id for group in groups for record_id in group.record_ids]
        database = groups[0].example.row.database if groups else ""
        known = self._ledger.known_at(self._target, database, rows, every)
        held = self._ledger.held(self._target, every)
        taken = Taken()
        for group in groups:
            database = group.example.row.database
            left = self._take(group, known, held.keys(), taken, now)
            taken.left += [RowRef(database=database, record_id=record_id) for record_id in left]
        self._totals.remark(taken.arex_default, taken.arex_default_wall_s, taken.warnings)
        return taken

    def _take(
        self,
        group: _RunGroup,
        known: Mapping[JobKey, DeliveredRun],
        held: Collection[JobKey],
        taken: Taken,
        now: datetime,
    ) -> Iterable[int]:
        """Count the runs of a group; gives the rows of those that need a look of their own."""
        if group.stretch is None:
            return group.record_ids
        speaker = self._speaker(group.example, group.stretch, group.ends[0], now)
        if speaker.refused or not self._admits(speaker, group, now):
            return group.record_ids
        if speaker.fit is None:
            return [record_id for record_id, key in zip(group.record_ids, group.keys, strict=True) if key in held]
        if self._are_new(group.keys, known, held):
            self._count(group, speaker, speaker.fit, taken)
            return ()
        new, left = self._new_of(group, known, held)
        if new:
            self._count(_RunGroup(group.example, group.stretch, new), speaker, speaker.fit, taken)
        return left

    def _count(self, group: _RunGroup, speaker: _Speaker, fit: Publish, taken: Taken) -> None:
        databases = [group.delivered_from] * len(group.ends)
        values = zip(group.ends, group.fingerprints(), databases, group.record_ids, strict=True)
        self._totals.take_many(fit.published, zip(group.keys, values, strict=True), group.share())
        jobs = len(group.runs)
        taken.jobs += jobs
        if fit.published.benchmark.arex_default and any(group.walls):
            taken.arex_default += sum(map(bool, group.walls))
            taken.arex_default_wall_s[group.example.queue] += sum(group.walls)
        for name in speaker.warnings:
            taken.warnings[name] += jobs
        if over_wall := group.over_wall():
            taken.warnings[CPU_OVER_WALL] += over_wall

    def _are_new(self, keys: Sequence[JobKey], known: Mapping[JobKey, DeliveredRun], held: Collection[JobKey]) -> bool:
        """Whether each of these is met for the first time."""
        unknown = not (known or held) or not any(key in known or key in held for key in keys)
        return unknown and self._totals.has_none_of(keys) and len(set(keys)) == len(keys)

    def _new_of(
        self, group: _RunGroup, known: Mapping[JobKey, DeliveredRun], held: Collection[JobKey]
    ) -> tuple[list[RunTuple], list[int]]:
        """The runs that nobody met before, and the rows of those that need a look of their own."""
        new: dict[JobKey, RunTuple] = {}
        left: list[int] = []
        for run, key, fingerprint in zip(group.runs, group.keys, group.fingerprints(), strict=True):
            if key in new or key in self._totals:
                continue
            if key in held or (key in known and not self._decider.is_delivered(known[key], run[3], fingerprint)):
                left.append(run[0])
            elif key not in known:
                new[key] = run
        return list(new.values()), left

    def _speaker(self, example: JobRecord, stretch: Stretch, ended_at: Epoch, now: datetime) -> _Speaker:
        at = (id(example), stretch)
        speaker = self._speakers.get(at)
        if speaker is None:
            if len(self._speakers) >= _REMEMBERED:
                self._speakers.clear()
            speaker = self._speakers[at] = self._new_speaker(example, stretch, ended_at, now)
        return speaker

    def _new_speaker(self, example: JobRecord, stretch: Stretch, ended_at: Epoch, now: datetime) -> _Speaker:
        """What becomes of the runs of an example that end about then, as far as it does not lie in their numbers."""
        job = _with_values(example, ended_at, 0, 0)
        verdict = self._decider.decide(job, job.key, None, None)
        if isinstance(verdict, Skip):
            return _Speaker(example=example)
        if isinstance(verdict, Publish) and self._totals.admits(verdict.published, now):
            until = self._stretches.last_second(stretch)
            return _Speaker(example=example, fit=verdict, until=until, warnings=shared_warnings(verdict.published))
        return _Speaker(example=example, refused=True)

    def _admits(self, speaker: _Speaker, group: _RunGroup, now: datetime) -> bool:
        """Whether the format takes a run that is the worst of them in every respect: then it takes them all."""
        if speaker.fit is None:
            return True
        end, wall_s, cpu_s = max(group.ends), max(group.walls), max(group.users) + max(group.kernels)
        last = speaker.admitted
        if end <= last[0] and wall_s <= last[1] and cpu_s <= last[2]:
            return True
        fit, wall_s, cpu_s = speaker.fit.published, max(wall_s, last[1]), max(cpu_s, last[2])
        # Ends grow from page to page, and so does the worst: more is asked for than is needed now, so as not to ask again.
        beyond = Epoch(speaker.until), max(wall_s, _ASKED_FOR_S), max(cpu_s, _ASKED_FOR_S)
        for latest, most_wall_s, most_cpu_s in (beyond, (Epoch(max(end, last[0])), wall_s, cpu_s)):
            worst = _with_values(fit.job, latest, most_wall_s, most_cpu_s)
            if self._totals.admits(replace(fit, job=worst, ended_at=latest), now):
                speaker.admitted = latest, most_wall_s, most_cpu_s
                return True
        return False


def counter_for(
    sink: object, live: LiveTarget, decider: Decider, source: Source, ledger: Ledger
) -> AlikeCounter | None:
    """None for an outlet of single records."""
    if not isinstance(sink, MonthlyTotals):
        return None
    return AlikeCounter(
        target=live.name, decider=decider, source=source, ledger=ledger, totals=sink, needs=live.format.needs
    )


def _with_values(example: JobRecord, ended_at: Epoch, wall_s: int, cpu_s: int) -> JobRecord:
    return replace(example, ended_at=ended_at, wall_s=wall_s, cpu_user_s=cpu_s, cpu_kernel_s=0)
