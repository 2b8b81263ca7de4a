"""What the jobs of a period used: groups as a source sums them up, and sums of such groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from publisher.model.job import JobRecord

# Durations are kept by whole minutes, those of more than 100 days together: few enough, whatever clocks did.
_MINUTE_S: Final = 60
_LONGEST_MIN: Final = 144_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageGroup:
    """Finished jobs that differ in nothing but who they are, when they ran, and what they used.

    `example` is one of them. `era` says between which of the asked for moments they ended. `project` is their first one,
    '' for none; `own_project` whether it is called as their local user is. `waits_s` has the time from submission to the true
    start of those whose start is known.
    """

    era: int
    example: JobRecord
    project: str
    own_project: bool
    jobs: int
    wall_s: int
    cpu_s: int
    waits_s: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsagePage:
    """The groups of some rows that were read in one short transaction. `unreadable` jobs are in no group."""

    groups: tuple[UsageGroup, ...]
    unreadable: int
    rows_read: int


@dataclass(slots=True, kw_only=True)
class Used:
    """Sums over some jobs.

    `scaled` is wall time x cores x benchmark, in 1/1000 of (benchmark unit x seconds), by benchmark type; types are never
    added up. Jobs without a benchmark are in none. A job whose number of cores is unknown counts as one core.
    """

    jobs: int = 0
    failed: int = 0
    wall_s: int = 0
    wall_core_s: int = 0
    cpu_s: int = 0
    cores_unknown: int = 0
    without_benchmark: int = 0
    scaled: Counter[str] = field(default_factory=Counter)

    def add(self, group: UsageGroup, benchmark: tuple[str, int] | None) -> None:
        """`benchmark` is its type and 1000 times its value."""
        cores = group.example.cpu_count
        wall_core_s = group.wall_s * (cores or 1)
        self.jobs += group.jobs
        self.failed += group.jobs if group.example.status == "failed" else 0
        self.wall_s += group.wall_s
        self.wall_core_s += wall_core_s
        self.cpu_s += group.cpu_s
        self.cores_unknown += 0 if cores else group.jobs
        if benchmark is None:
            self.without_benchmark += group.jobs
        else:
            kind, thousandths = benchmark
            self.scaled[kind] += wall_core_s * thousandths

    @property
    def efficiency(self) -> float | None:
        """CPU time over wall time x cores; None where there was none."""
        return self.cpu_s / self.wall_core_s if self.wall_core_s else None

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.jobs if self.jobs else None

    def merge(self, other: Used) -> None:
        self.jobs += other.jobs
        self.failed += other.failed
        self.wall_s += other.wall_s
        self.wall_core_s += other.wall_core_s
        self.cpu_s += other.cpu_s
        self.cores_unknown += other.cores_unknown
        self.without_benchmark += other.without_benchmark
        self.scaled.update(other.scaled)


@dataclass(slots=True)
class Durations:
    """How long something took, by whole minutes. `unknown` is counted apart, and so is `negative`: clocks disagreed."""

    minutes: Counter[int] = field(default_factory=Counter)
    unknown: int = 0
    negative: int = 0

    def add(self, seconds: Sequence[int]) -> None:
        for one in seconds:
            if one < 0:
                self.negative += 1
            else:
                self.minutes[min(one // _MINUTE_S, _LONGEST_MIN)] += 1

    @property
    def known(self) -> int:
        return self.minutes.total()

    def quantile_min(self, share: float) -> int | None:
        """The least number of minutes that at least this share of what is known did not exceed; None without any."""
        wanted, passed = share * self.known, 0
        for minute in sorted(self.minutes):
            passed += self.minutes[minute]
            if passed >= wanted:
                return minute
        return None

    def within(self, edges_min: Sequence[int]) -> list[int]:
        """How many took less than each edge and not less than the one before; at last, those that took longer."""
        counts = [0] * (len(edges_min) + 1)
        for minute, count in self.minutes.items():
            counts[next((at for at, edge in enumerate(edges_min) if minute < edge), len(edges_min))] += count
        return counts


def by_weight(parts: Mapping[str, Used]) -> list[tuple[str, Used]]:
    """The parts, the one with the most wall time x cores first; alike ones by name."""
    return sorted(parts.items(), key=lambda part: (-part[1].wall_core_s, -part[1].jobs, part[0]))
