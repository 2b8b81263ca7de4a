"""APEL summaries as text: v0.2 and v0.4, and normalised v0.3 (summary header) and v0.4 (its own).

One record is one row at the server, grouped by model/totals.py. NodeCount, Processors and the
infrastructure are always said: the first two must not be missing, and without the last a job is
neither grid nor local. InfrastructureDescription never is: it is not a key, and servers older than
APEL 2.5.0 refuse the whole message for it. Normalised v0.3 does say the benchmark's type, which its
document lacks: the server takes it, and shows benchmark 0 without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import ClassVar, Final

from publisher.formats.apel import text_message
from publisher.formats.apel.receiver import NORMALISED_SUMMARIES, SUMMARIES
from publisher.formats.apel.rules import (
    BENCHMARK_RULES,
    RUN_RULES,
    WHERE_RULES,
    WHO_RULES,
    YEAR_9999,
    run_requirement,
)
from publisher.formats.apel.text_message import (
    BIGINT_MAX,
    TextKind,
    TextLine,
    ValueComparison,
    levels,
    require_value,
    text_user,
    whole,
    written_each,
)
from publisher.formats.base import Frame, Receiver
from publisher.formats.compiled import Once
from publisher.formats.rules import latest_end, require
from publisher.model.errors import Unfit
from publisher.model.job import SideTable
from publisher.model.published import Placement, PublishedJob, UserIdentity
from publisher.model.rates import AppliedBenchmark
from publisher.model.time import Month, epoch
from publisher.model.totals import MICRO, Grouping, GroupKey, SummaryGroup, ascii_key, group_key

# Spec: APEL's summary record and normalised summary record
_WHO_AND_WHERE: Final = (
    TextLine("Site", attrgetter("site"), mandatory=True),
    whole("Month", attrgetter("month"), limit=12),
    whole("Year", attrgetter("year"), limit=9999),
    TextLine("GlobalUserName", lambda group: text_user(group.user)),
    TextLine("VO", attrgetter("vo")),
    TextLine("VOGroup", attrgetter("vo_group")),
    TextLine("VORole", attrgetter("role")),
    TextLine("SubmitHost", attrgetter("submit_host")),
)
_INFRASTRUCTURE_TYPE: Final = TextLine(
    "InfrastructureType", attrgetter("infrastructure"), limit=20, mandatory=True
)
_INFRASTRUCTURE: Final = TextLine(
    "Infrastructure", attrgetter("infrastructure"), limit=20, mandatory=True
)
_SERVICE_LEVEL_TYPE: Final = TextLine(
    "ServiceLevelType", attrgetter("kind"), kind=TextKind.TYPE, limit=50, mandatory=True
)
_COUNTS: Final = (
    whole("NodeCount", attrgetter("node_count")),
    whole("Processors", attrgetter("cpu_count")),
    whole("EarliestEndTime", attrgetter("earliest_end"), limit=YEAR_9999),
    whole("LatestEndTime", attrgetter("latest_end"), limit=YEAR_9999),
    whole("WallDuration", attrgetter("wall_s"), limit=BIGINT_MAX),
    whole("CpuDuration", attrgetter("cpu_s"), limit=BIGINT_MAX),
)
_JOBS: Final = whole("NumberOfJobs", attrgetter("jobs"))


def _by_type(key: str, seconds: Callable[[SummaryGroup], int]) -> TextLine:
    """A dictionary with one entry; the limit holds for the number in it."""

    def value(group: SummaryGroup) -> str:
        return f"{{{group.kind}: {seconds(group)}}}"

    return TextLine(key, value, kind=TextKind.WHOLES, limit=BIGINT_MAX, mandatory=True)


_NORMALISED_BY_TYPE: Final = (
    _by_type("NormalisedWallDuration", attrgetter("normalised_wall_s")),
    _by_type("NormalisedCpuDuration", attrgetter("normalised_cpu_s")),
)

# The most of a product that is rounded to no more than its limit
_MICRO_MAX: Final = BIGINT_MAX * MICRO + MICRO // 2 - 1

# Of the rules about jobs, those for a summary, which has no id, start, queue or FQAN.
_SUMMED: Final = frozenset(
    (
        *("wall-out-of-range", "cpu-out-of-range", "processors-out-of-range", "nodes-out-of-range"),
        *("end-out-of-range", "end-in-future"),
        *("site-missing", "site-too-long", "submit-host-too-long", "infrastructure"),
        *("user-too-long", "vo-too-long", "group-too-long", "role-too-long"),
    )
)
_require_run: Final = run_requirement([rule for rule in RUN_RULES if rule.name in _SUMMED])
_WHERE_RULES: Final = tuple(rule for rule in WHERE_RULES if rule.name in _SUMMED)
_WHO_RULES: Final = tuple(rule for rule in WHO_RULES if rule.name in _SUMMED)


class ApelSummary:
    """One record a group; made for a version by its subclasses."""

    name: ClassVar[str]
    receiver: ClassVar[Receiver] = SUMMARIES
    lines: ClassVar[tuple[TextLine, ...]]
    frame: ClassVar[Frame]
    grouping: ClassVar[Grouping]
    needs: ClassVar[frozenset[SideTable]] = frozenset()
    takes_zeros: ClassVar[bool] = False

    def __init__(self) -> None:
        self._who = Once(_admit_user)
        self._where = Once(_admit_place)
        self._benchmark = Once(_admit_benchmark)
        self._now = (datetime(1970, 1, 1, tzinfo=UTC), 0)

    def admit(self, job: PublishedJob, made_at: datetime) -> None:
        """Whether a summary can count the job. Raises: Unfit when the server would refuse it."""
        if self._now[0] is not made_at:
            self._now = (made_at, latest_end(made_at))
        _require_run(job, self._now[1])
        self._where(job.where)
        self._who(job.who)
        self._benchmark(job.benchmark)

    def render(self, groups: Sequence[SummaryGroup], made_at: datetime) -> list[bytes]:
        """The lines of each group. Raises: Unfit also when a month begins after `made_at`."""
        by_month = {(group.year, group.month): group for group in groups}
        for group in by_month.values():
            if not group.has_begun(made_at):
                what = f"{group.year}-{group.month:02} has not begun for the server"
                raise Unfit("month-not-begun", what)
        for group in groups:
            # Such a product stops the server's summariser for all sites, even where it is not said
            if group.normalised_wall_micro > _MICRO_MAX or group.normalised_cpu_micro > _MICRO_MAX:
                seconds = max(group.normalised_wall_s, group.normalised_cpu_s)
                what = f"{seconds} normalised seconds are more than {BIGINT_MAX}"
                raise Unfit("number-out-of-range", what)
        return [text.encode("ascii") for text in written_each(self.lines, groups)]

    def receiver_key(self, group: SummaryGroup) -> GroupKey:
        """The server's primary key, after its normalisation."""
        return group_key(self.grouping, group)

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and the record that has it."""
        text_message.check(payload, self.frame, self.lines, BETWEEN)


class ApelSummary02(ApelSummary):
    name = "apel-summary-0.2"
    frame = text_message.frame("APEL-summary-job-message: v0.2")
    grouping = Grouping(by_level=True, several=False)
    lines = (
        *_WHO_AND_WHERE,
        _INFRASTRUCTURE_TYPE,
        _SERVICE_LEVEL_TYPE,
        TextLine(
            "ServiceLevel", lambda group: group.benchmarks[0].text, TextKind.LEVEL, mandatory=True
        ),
        *_COUNTS,
        _JOBS,
    )


class ApelSummary04(ApelSummary):
    name = "apel-summary-0.4"
    frame = text_message.frame("APEL-summary-job-message: v0.4")
    grouping = Grouping(by_level=True, several=True)
    takes_zeros = True
    lines = (
        *_WHO_AND_WHERE,
        _INFRASTRUCTURE_TYPE,
        TextLine(
            "ServiceLevel", lambda group: levels(group.benchmarks), TextKind.LEVELS, mandatory=True
        ),
        *_COUNTS,
        _JOBS,
    )


class ApelSummary03(ApelSummary):
    receiver: ClassVar[Receiver] = NORMALISED_SUMMARIES
    name = "apel-summary-0.3"
    frame = text_message.frame("APEL-summary-job-message: v0.3")
    grouping = Grouping(by_level=False, several=False)
    lines = (
        *_WHO_AND_WHERE,
        _INFRASTRUCTURE,
        _SERVICE_LEVEL_TYPE,
        *_COUNTS,
        whole("NormalisedWallDuration", attrgetter("normalised_wall_s"), limit=BIGINT_MAX),
        whole("NormalisedCpuDuration", attrgetter("normalised_cpu_s"), limit=BIGINT_MAX),
        _JOBS,
    )


class ApelNormalisedSummary04(ApelSummary):
    receiver: ClassVar[Receiver] = NORMALISED_SUMMARIES
    name = "apel-normalised-summary-0.4"
    frame = text_message.frame("APEL-normalised-summary-message: v0.4")
    grouping = Grouping(by_level=False, several=True)
    lines = (*_WHO_AND_WHERE, _INFRASTRUCTURE, *_COUNTS, *_NORMALISED_BY_TYPE, _JOBS)


def create(name: str) -> ApelSummary:
    kinds = (ApelSummary02, ApelSummary03, ApelSummary04, ApelNormalisedSummary04)
    return {kind.name: kind for kind in kinds}[name]()


def _admit_user(who: UserIdentity) -> str:
    require(_WHO_RULES, who)
    for key, text in (
        ("GlobalUserName", text_user(who.user)),
        ("VO", who.vo),
        ("VOGroup", who.receiver_group),
        ("VORole", who.receiver_role),
    ):
        require_value(key, ascii_key(text), 255)
    return ""


def _admit_place(where: Placement) -> str:
    require(_WHERE_RULES, where)
    require_value("Site", ascii_key(where.site), 255)
    require_value("SubmitHost", ascii_key(where.receiver_host), 255)
    return ""


def _admit_benchmark(applied: AppliedBenchmark) -> str:
    require(BENCHMARK_RULES, applied)
    return ""


def _fault_between(month: str, year: str, earliest: str, latest: str) -> str:
    if "0" in (month, year):
        return "Month or Year is 0"
    seconds = _seconds(int(year), int(month))
    if not seconds.start <= int(earliest) <= int(latest) < seconds.stop:
        return f"end times {earliest} to {latest} are not in {Month(int(year), int(month))}"
    return ""


@lru_cache(maxsize=64)
def _seconds(year: int, month: int) -> range:
    whole = Month(year, month)
    return range(epoch(whole.start), epoch(whole.next.start))


BETWEEN: Final = ValueComparison(
    ("Month", "Year", "EarliestEndTime", "LatestEndTime"), _fault_between
)
