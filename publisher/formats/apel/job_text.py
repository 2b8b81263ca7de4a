"""APEL individual job messages as text: v0.2, v0.3 and v0.4.

The server reads v0.2 and v0.3 alike; v0.4 says the benchmarks as a dictionary and must not name a
ServiceLevelType (APEL 2.5.0). The values are those of CAR, so a site may change between the two
without a job counted twice; in both, key styles other than APEL's own have no say, because the
server takes group and role from the FQAN.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Final

from publisher.formats.apel import text_message
from publisher.formats.apel.receiver import JOBS, JOBS_WITH_ALL_BENCHMARKS
from publisher.formats.apel.rules import (
    BENCHMARK_RULES,
    INT_MAX,
    WHERE_RULES,
    WHO_RULES,
    YEAR_9999,
    apel_local_user,
    apel_queue,
    require_run,
)
from publisher.formats.apel.text_message import (
    TextKind,
    TextLine,
    ValueComparison,
    levels,
    text_user,
    whole,
    written,
)
from publisher.formats.base import Frame, Receiver
from publisher.formats.compiled import NO_ESCAPES, Own, Piece, Scope, renderer
from publisher.formats.rules import QUEUE_CHARACTERS, Rule, latest_end
from publisher.formats.xml.template import shared
from publisher.model.job import SideTable
from publisher.model.published import Placement, PublishedJob
from publisher.model.rates import AppliedBenchmark
from publisher.model.text import receiver_key
from publisher.model.totals import by_preference


def _memory(kib: int | None) -> int | None:
    """Nothing is sent where nothing was measured, and beyond 2 TiB, which the server cannot keep.

    A job is not refused for it: no total depends on memory, and APEL ignores it in CAR anyway.
    """
    return kib if kib is not None and 0 < kib <= INT_MAX else None


def _submit_host_type(where: Placement) -> str:
    return "LRMS" if where.infrastructure == "local" else ""


def _local_user(account: tuple[str, str]) -> str:
    return apel_local_user(account[0])


_of_place = partial(TextLine, of=Scope.WHERE)

# Spec: APEL's individual job record. Lines of one shared object are rendered together, once.
LINES: Final = (
    _of_place("Site", lambda where: where.site, mandatory=True),
    # The batch server of a local job
    _of_place("SubmitHost", lambda where: where.submit_host),
    # Recommended for jobs from the batch system, and ignored; not in summaries and sync
    _of_place("SubmitHostType", _submit_host_type),
    _of_place("MachineName", lambda where: where.machine_name, spare=True),
    _of_place("Queue", lambda where: apel_queue(where.queue), limit=QUEUE_CHARACTERS, spare=True),
    _of_place("InfrastructureDescription", lambda where: where.description, limit=100, spare=True),
    # Absent it would be stored as neither grid nor local
    _of_place("InfrastructureType", lambda where: where.infrastructure, limit=20, mandatory=True),
    # Part of the server's key: Site, LocalJobId, EndTime
    TextLine("LocalJobId", lambda job: job.local_id, mandatory=True),
    TextLine("LocalUserId", _local_user, of=Scope.ACCOUNT, spare=True),
    TextLine("GlobalUserName", lambda who: text_user(who.user), of=Scope.USER),
    # The server derives VO, group and role from it; who.apel_fqan() only gives one that agrees
    TextLine("FQAN", lambda who: who.apel_fqan(), of=Scope.USER),
    TextLine("VO", lambda who: who.vo, of=Scope.USER),
    TextLine("VOGroup", lambda who: who.group, of=Scope.USER),
    TextLine("VORole", lambda who: who.role, of=Scope.USER),
    whole("WallDuration", lambda job: job.job.wall_s),
    whole("CpuDuration", lambda job: job.job.cpu_user_s + job.job.cpu_kernel_s),
    # Absent is 0 at the server, a group of its own beside 1; said, because summaries must say it
    whole("Processors", lambda job: job.job.cpu_count or 0),
    whole("NodeCount", lambda job: job.job.node_count or 0),
    whole("StartTime", lambda job: job.started_at, limit=YEAR_9999),
    whole("EndTime", lambda job: job.ended_at, limit=YEAR_9999),
    TextLine("MemoryReal", lambda job: _memory(job.job.memory_kib), TextKind.WHOLE, INT_MAX),
    TextLine(
        "MemoryVirtual", lambda job: _memory(job.job.virtual_memory_kib), TextKind.WHOLE, INT_MAX
    ),
)


def _benchmark(key: str, value: Callable[[AppliedBenchmark], str], kind: TextKind) -> TextLine:
    return TextLine(key, value, of=Scope.BENCHMARK, kind=kind, mandatory=True)


MAIN_BENCHMARK: Final = (
    _benchmark("ServiceLevelType", lambda applied: applied.benchmarks[0].kind, TextKind.TYPE),
    _benchmark("ServiceLevel", lambda applied: applied.benchmarks[0].text, TextKind.LEVEL),
)
ALL_BENCHMARKS: Final = (
    _benchmark(
        "ServiceLevel", lambda applied: levels(by_preference(applied.benchmarks)), TextKind.LEVELS
    ),
)

_RULES: Final[dict[Scope, tuple[Rule[Any], ...]]] = {
    # No schema here, so not CAR's
    Scope.WHERE: tuple(rule for rule in WHERE_RULES if rule.receiver == "apel"),
    Scope.USER: WHO_RULES,
    Scope.BENCHMARK: BENCHMARK_RULES,
}


class ApelJob:
    """One record a job; made for a version by its subclasses."""

    name: ClassVar[str]
    receiver: ClassVar[Receiver] = JOBS
    lines: ClassVar[tuple[TextLine, ...]]
    frame: ClassVar[Frame]
    needs: ClassVar[frozenset[SideTable]] = frozenset()

    def __init__(self) -> None:
        groups = groupby(self.lines, key=lambda line: line.of)
        self._fill = renderer([_piece(of, tuple(group)) for of, group in groups], NO_ESCAPES, {})
        self._now = (datetime(1970, 1, 1, tzinfo=UTC), 0)

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        """The lines of one job. `made_at` is the clock that end times are held against."""
        if self._now[0] is not made_at:
            self._now = (made_at, latest_end(made_at))
        require_run(job, self._now[1])
        return self._fill(job, "").encode("ascii")

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        """Site, LocalJobId and EndTime, as the server compares them."""
        return receiver_key(job.where.site), receiver_key(job.local_id), job.ended_at

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and the record that has it."""
        text_message.check(payload, self.frame, self.lines, _BETWEEN)


class ApelJob02(ApelJob):
    name = "apel-job-0.2"
    lines = LINES + MAIN_BENCHMARK
    frame = text_message.frame("APEL-individual-job-message: v0.2")


class ApelJob03(ApelJob):
    name = "apel-job-0.3"
    lines = LINES + MAIN_BENCHMARK
    frame = text_message.frame("APEL-individual-job-message: v0.3")


class ApelJob04(ApelJob):
    receiver: ClassVar[Receiver] = JOBS_WITH_ALL_BENCHMARKS
    name = "apel-job-0.4"
    lines = LINES + ALL_BENCHMARKS
    frame = text_message.frame("APEL-individual-job-message: v0.4")


def create(name: str) -> ApelJob:
    return {kind.name: kind for kind in (ApelJob02, ApelJob03, ApelJob04)}[name]()


def _piece(of: Scope, lines: tuple[TextLine, ...]) -> Piece:
    """Consecutive lines of the same object; what jobs share only once, after its rules."""
    write = partial(written, lines)
    return Own("job", write) if of is Scope.RUN else shared(of, _RULES.get(of, ()), write)


def _fault_between(start: str, end: str) -> str:
    return "EndTime is before StartTime" if int(end) < int(start) else ""


_BETWEEN: Final = ValueComparison(("StartTime", "EndTime"), _fault_between)
