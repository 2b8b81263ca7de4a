"""APEL individual job messages as text: v0.2, v0.3 and v0.4.

The server reads v0.2 and v0.3 alike; v0.4 says the benchmarks as a dictionary and must not name a ServiceLevelType
(measured on APEL 2.5.0). The values are those of CAR, so a site may change between the two without a job counted twice;
in both, key styles other than APEL's own have no say, because the server takes group and role from the FQAN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Final

from publisher.formats import apel_text
from publisher.formats.apel_text import Kind, Line, levels, text_user, whole, written
from publisher.formats.base import Frame
from publisher.formats.fields import Of
from publisher.formats.xml import Fragments
from publisher.model.job import Side
from publisher.model.policy import PublishedJob, Where
from publisher.model.quality import (
    BENCHMARK_RULES,
    INT_MAX,
    QUEUE_CHARACTERS,
    WHERE_RULES,
    WHO_RULES,
    YEAR_9999,
    Rule,
    apel_local_user,
    apel_queue,
    latest_end,
    require,
    require_run,
)
from publisher.model.summary import by_preference
from publisher.model.text import receiver_key


def _memory(kib: int | None) -> int | None:
    """Nothing is said where nothing was measured, and beyond 2 TiB, which the server cannot keep.

    A job is not refused for it: no total depends on memory, and APEL ignores it in CAR anyway.
    """
    return kib if kib is not None and 0 < kib <= INT_MAX else None


def _submit_host_type(where: Where) -> str:
    return "LRMS" if where.infrastructure == "local" else ""


# Spec: apel facts, 4.1. Consecutive lines of one shared object are rendered together, once.
LINES: Final = (
    Line(key="Site", of=Of.WHERE, value=lambda where: where.site, mandatory=True),
    # The batch server of a local job
    Line(key="SubmitHost", of=Of.WHERE, value=lambda where: where.submit_host),
    # Recommended for jobs that were submitted to the batch system, and ignored; summaries and sync must not have it
    Line(key="SubmitHostType", of=Of.WHERE, value=_submit_host_type),
    Line(key="MachineName", of=Of.WHERE, value=lambda where: where.machine_name, spare=True),
    Line(key="Queue", of=Of.WHERE, value=lambda where: apel_queue(where.queue), limit=QUEUE_CHARACTERS, spare=True),
    Line(key="InfrastructureDescription", of=Of.WHERE, value=lambda where: where.description, limit=100, spare=True),
    # Absent it would be stored as neither grid nor local
    Line(key="InfrastructureType", of=Of.WHERE, value=lambda where: where.infrastructure, limit=20, mandatory=True),
    # Part of the server's key: Site, LocalJobId, EndTime
    Line(key="LocalJobId", value=lambda job: job.local_id, mandatory=True),
    Line(key="LocalUserId", value=lambda job: apel_local_user(job.local_user), spare=True),
    Line(key="GlobalUserName", of=Of.WHO, value=lambda who: text_user(who.user)),
    # Where it is given the server derives VO, group and role from it; who.apel_fqan() is only there if that gives the same
    Line(key="FQAN", of=Of.WHO, value=lambda who: who.apel_fqan()),
    Line(key="VO", of=Of.WHO, value=lambda who: who.vo),
    Line(key="VOGroup", of=Of.WHO, value=lambda who: who.group),
    Line(key="VORole", of=Of.WHO, value=lambda who: who.role),
    whole("WallDuration", lambda job: job.job.wall_s),
    whole("CpuDuration", lambda job: job.job.cpu_user_s + job.job.cpu_kernel_s),
    # Absent is 0 at the server, a group of its own beside 1; said, because summaries must say it
    whole("Processors", lambda job: job.job.cpu_count or 0),
    whole("NodeCount", lambda job: job.job.node_count or 0),
    whole("StartTime", lambda job: job.started_at, limit=YEAR_9999),
    whole("EndTime", lambda job: job.ended_at, limit=YEAR_9999),
    Line(key="MemoryReal", value=lambda job: _memory(job.job.memory_kib), kind=Kind.WHOLE, limit=INT_MAX),
    Line(key="MemoryVirtual", value=lambda job: _memory(job.job.virtual_memory_kib), kind=Kind.WHOLE, limit=INT_MAX),
)
MAIN_BENCHMARK: Final = (
    Line(key="ServiceLevelType", of=Of.BENCHMARK, value=lambda applied: applied.benchmarks[0].kind, kind=Kind.TYPE,
         mandatory=True),
    Line(key="ServiceLevel", of=Of.BENCHMARK, value=lambda applied: applied.benchmarks[0].text, kind=Kind.LEVEL,
         mandatory=True),
)  # fmt: skip
ALL_BENCHMARKS: Final = (
    Line(key="ServiceLevel", of=Of.BENCHMARK, value=lambda applied: levels(by_preference(applied.benchmarks)),
         kind=Kind.LEVELS, mandatory=True),
)  # fmt: skip

_RULES: Final[dict[Of, tuple[Rule[Any], ...]]] = {
    Of.WHERE: tuple(rule for rule in WHERE_RULES if rule.receiver == "apel"),  # no schema here, so not CAR's
    Of.WHO: WHO_RULES,
    Of.BENCHMARK: BENCHMARK_RULES,
}


class ApelJob:
    """One record a job; made for a version by its subclasses."""

    name: ClassVar[str]
    lines: ClassVar[tuple[Line, ...]]
    frame: ClassVar[Frame]
    needs: ClassVar[frozenset[Side]] = frozenset()

    def __init__(self) -> None:
        self._parts = [_part(of, tuple(group)) for of, group in groupby(self.lines, key=lambda line: line.of)]
        self._now = (datetime(1970, 1, 1, tzinfo=UTC), 0)

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        """The lines of one job. `made_at` is the clock that end times are held against."""
        if self._now[0] is not made_at:
            self._now = (made_at, latest_end(made_at))
        require_run(job, self._now[1])
        return "".join([part(job) for part in self._parts]).encode("ascii")

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        """Site, LocalJobId and EndTime, as the server compares them."""
        return receiver_key(job.where.site), receiver_key(job.local_id), job.ended_at

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and the record that has it."""
        apel_text.check(payload, self.frame, self.lines, _fault_between)


class ApelJob02(ApelJob):
    name = "apel-job-0.2"
    lines = LINES + MAIN_BENCHMARK
    frame = apel_text.frame("APEL-individual-job-message: v0.2")


class ApelJob03(ApelJob):
    name = "apel-job-0.3"
    lines = LINES + MAIN_BENCHMARK
    frame = apel_text.frame("APEL-individual-job-message: v0.3")


class ApelJob04(ApelJob):
    name = "apel-job-0.4"
    lines = LINES + ALL_BENCHMARKS
    frame = apel_text.frame("APEL-individual-job-message: v0.4")


def create(name: str) -> ApelJob:
    return {kind.name: kind for kind in (ApelJob02, ApelJob03, ApelJob04)}[name]()


def _part(of: Of, lines: tuple[Line, ...]) -> Callable[[PublishedJob], str]:
    """Renders consecutive lines of the same object; of one that jobs share only once, after its rules."""
    if of is Of.RUN:
        return lambda job: written(lines, job)

    def render(subject: object) -> str:
        require(_RULES[of], subject)
        return written(lines, subject)

    take = attrgetter(of.value)
    known = Fragments(render)
    return lambda job: known(take(job))


def _fault_between(said: Mapping[str, str]) -> str:
    return "EndTime is before StartTime" if int(said["EndTime"]) < int(said["StartTime"]) else ""
