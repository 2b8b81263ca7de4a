"""What became of jobs: which runs are over and are usage, which wait, which are none and why."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from publisher.model.job import JobRecord
from publisher.model.text import plural
from publisher.sources.sonar.cluster import cpus_of, gpu_use, hyperthreads, partition_names
from publisher.sources.sonar.records import LIVE
from publisher.sources.sonar.runs import (
    MOST_RUNS,
    JobHistory,
    JobStatus,
    SlurmRun,
    kept,
    read_history,
)
from publisher.sources.sonar.site_mapping import Options, SonarMapping

_HOUR: Final = 3600
_SHOWN_NAMES: Final = 5


@dataclass(slots=True, kw_only=True)
class RunOutcomes:
    """What became of some jobs."""

    jobs: list[JobRecord] = field(default_factory=list)
    taken_back: list[str] = field(default_factory=list)  # JobIDs
    settled: list[JobStatus] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    steps: int = 0  # that went into jobs which are new


@dataclass(slots=True, kw_only=True)
class Inconsistencies:
    """What does not fit together in jobs that were imported, for people."""

    hours_off: int = 0
    nodes_differ: int = 0
    too_many_cpus: int = 0
    partitions: Counter[str] = field(default_factory=Counter)
    jobs: int = 0

    def notes(self, connection: sqlite3.Connection, options: Options, place: str) -> list[str]:
        """What an administrator must know; `place` is where the options are configured."""
        notes = []
        if self.hours_off:
            notes.append(
                f"{plural(self.hours_off, 'job')} took an hour more or less than their end less "
                f"their start: the clocks changed meanwhile; set {place}.time_zone to have their "
                "times right"
            )
        if self.nodes_differ:
            notes.append(
                f"{plural(self.nodes_differ, 'job lists', 'jobs list')} another number of nodes "
                "than were allocated; the latter counts"
            )
        if self.too_many_cpus:
            notes.append(
                f"{plural(self.too_many_cpus, 'job has', 'jobs have')} more CPUs than sysinfo "
                "reports for their nodes"
            )
        if self.partitions:
            named = ", ".join(sorted(self.partitions)[:_SHOWN_NAMES])
            notes.append(
                f"{plural(self.partitions.total(), 'job')} ran in partitions that the newest "
                f"cluster data does not have: {named}; "
                f"do {place}.cluster and the rules by queue still fit?"
            )
        nodes, threads = hyperthreads(connection)
        if self.jobs and nodes and options.threads_per_core is None:
            notes.append(
                f"{nodes:,} nodes have {threads} threads for each core, and Slurm may count these "
                f"as CPUs: set {place}.threads_per_core to {threads} to publish cores, "
                "or to 1 to publish CPUs as Slurm counts them"
            )
        return notes


class JobFinalizer:
    """Looks at jobs one by one. The order in which their records came does not matter."""

    def __init__(
        self, connection: sqlite3.Connection, site: SonarMapping, options: Options, now: int
    ) -> None:
        self._connection = connection
        self._site = site
        self._options = options
        self._now = now
        self._partitions = partition_names(connection)
        self.doubts = Inconsistencies()

    def verdicts(self, jobs: Sequence[tuple[int, str]]) -> RunOutcomes:
        """Of jobs, each with the reason for which it was skipped before; inside a transaction."""
        found = RunOutcomes()
        for job, reason in jobs:
            history = read_history(job, kept(self._connection, job), self._site.clock)
            settled = self._settle(history, found)
            found.settled.append(settled)
            if settled.reason and settled.reason != reason:
                found.skipped[settled.reason] += 1
        return found

    def _settle(self, history: JobHistory, found: RunOutcomes) -> JobStatus:
        if history.absurd:
            absurd = f"more than {MOST_RUNS} runs, which no job has"
            return JobStatus(job=history.job, stage="skipped", reason=absurd)
        if not history.runs:
            return self._without_run(history)
        written: list[tuple[str, bool]] = []
        due_times: list[int] = []
        stage, reason = "done", ""
        for run in history.runs:
            due, why = self._verdict(run)
            if due is None and not why:
                if not run.written:
                    written.append((run.start, True))
                    found.steps += run.steps
                self._import(history.job, run, found)
                continue
            if run.written:
                written.append((run.start, False))
                found.taken_back.append(self._site.job_id(history.job, run))
            if why:
                stage, reason = ("skipped" if stage == "done" else stage), why
            else:
                stage = "waiting"
                due_times += filter(None, [due])
        soonest = min(due_times, default=None)
        return JobStatus(job=history.job, stage=stage, due=soonest, reason=reason, written=written)

    def _verdict(self, run: SlurmRun) -> tuple[int | None, str]:
        """When to look again (0: at the next news) or None, and why it is not usage or ''."""
        if run.over:
            ended_at = run.ended_at or 0
            held_until = ended_at + self._options.hold_off_s
            return (held_until, "") if held_until > self._now else (None, self._site.skips(run))
        if run.followed:
            return None, "requeued before its end was seen"
        return 0, ""

    def _without_run(self, history: JobHistory) -> JobStatus:
        if history.waiting is None:
            return JobStatus(job=history.job, stage="steps")
        state = history.waiting.get("state", "")
        if state in LIVE or not state:
            return JobStatus(job=history.job, stage="waiting")
        why = "never started" if "end" in history.waiting else "has neither start nor end"
        return JobStatus(job=history.job, stage="skipped", reason=f"{why} ({state})")

    def _import(self, job: int, run: SlurmRun, found: RunOutcomes) -> None:
        times = (run.started_at, run.ended_at or 0)
        gpus = gpu_use(self._connection, job, *times, self._options.sample_interval_s)
        found.jobs.append(self._site.job(job, run, gpus))
        self._doubt(run)

    def _doubt(self, run: SlurmRun) -> None:
        doubts, get = self.doubts, run.fields.get
        hosts = self._site.hosts(run)
        doubts.jobs += 1
        elapsed: int = get("elapsed", 0)
        is_hour_off = elapsed > 0 and abs(run.span_s - elapsed) == _HOUR
        doubts.hours_off += is_hour_off and not get("suspended")
        doubts.nodes_differ += bool(hosts) and get("nodes", len(hosts)) != len(hosts)
        if self._partitions and get("partition", "") not in self._partitions:
            doubts.partitions[get("partition", "") or "(none)"] += 1
        if hosts and len(hosts) <= 64:
            there = cpus_of(self._connection, hosts)
            doubts.too_many_cpus += there is not None and get("cpus", 0) > there
