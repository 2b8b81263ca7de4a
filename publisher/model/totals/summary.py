"""Monthly totals and sync counts, grouped by the keys of APEL's tables, one entry in memory per
row.

The server replaces rows with equal keys, so two groups that it takes for one would lose the jobs of
the first. Groups are therefore made by its own keys, after its own normalisation: texts without
case, accents and trailing blanks, null-like values as null, benchmarks at three decimals, and of
several benchmarks the one that it keeps (apel facts, 4.5 and 5). Sync counts are the jobs of each
month and submit host, which APEL compares with what it stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from publisher.model.errors import Unfit
from publisher.model.job import Epoch
from publisher.model.policy import Placement, PublishedJob, UserIdentity
from publisher.model.rates import AppliedBenchmark, Benchmark
from publisher.model.text import FORBIDDEN_IN_TEXT, NOT_GIVEN, ascii_text, receiver_key
from publisher.model.time import Month

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S: Final = 86_400
_HOST_CHARACTERS: Final = 255


@lru_cache(maxsize=65_536)
def ascii_key(text: str) -> str:
    """A text as it is sent, in ASCII; '' where the server would take it for not given (apel facts, section 3)."""
    text = ascii_text(text)
    return "" if text.lower() in NOT_GIVEN else text


@lru_cache(maxsize=65_536)
def column(text: str) -> str:
    """A text as the server's key columns compare it."""
    return receiver_key(ascii_key(text))


@lru_cache(maxsize=4096)
def sync_host(text: str) -> str:
    """The submit host under which jobs are counted: one spelling for all that the server takes for one.

    '' where no message may hold it: counts are compared by site and month, and one without a host is as good there (apel
    facts, section 8).
    """
    host = column(text)
    return "" if len(host) > _HOST_CHARACTERS or FORBIDDEN_IN_TEXT.search(host) else host


def month_number(ended_at: int) -> int:
    """Months since the year 0 of an end time, in UTC. Raises: Unfit for one outside the calendar."""
    return _month_of_day(ended_at // _DAY_S)


def month_number_of(year: int, month: int) -> int:
    """The `month_number` of a year and a month from 1."""
    return year * 12 + month - 1


def year_and_month(number: int) -> tuple[int, int]:
    """The year, and the month from 1, of a `month_number`."""
    return number // 12, number % 12 + 1


@lru_cache(maxsize=4096)
def _month_of_day(day: int) -> int:
    try:
        date = _EPOCH + timedelta(days=day)
    except OverflowError as error:
        raise Unfit("end-out-of-range", f"day {day} since 1970 is in no calendar month") from error
    return date.year * 12 + date.month - 1


# The server refuses a month that its own clock has not begun; ours may be ahead of it by this.
MONTH_BEGINS_AFTER: Final = timedelta(minutes=10)

_MICRO: Final = 1_000_000
_PLACES: Final = 20_000  # from shared objects to their group, kept at most; policy shares as many
_AFTER_ALL_ENDS: Final = Epoch(2**63)
_NO_END: Final = Epoch(0)
_PREFERENCE: Final = ("HEPscore23", "HEPSPEC", "Si2k")  # of a dictionary with several (apel facts, 4.5)

# Month number, texts, type and value of the benchmark, nodes, processors. A tuple: joined texts would make (1, 12) of (11, 2).
GroupKey = tuple[int, tuple[str, ...], str, Decimal, int, int]


class Grouping(NamedTuple):
    """What a table of the server has in its key beyond what all summaries share.

    `by_level`: the benchmark's value, as Summaries has it; NormalisedSummaries has only its type.
    `several`: all benchmarks of a job travel, and the server keeps one by preference; else the main one travels.
    """

    by_level: bool
    several: bool


class SummaryGroup(NamedTuple):
    """What one row of the server says about a UTC calendar month. Texts are ASCII, '' where nothing is known.

    `benchmarks` are those that all jobs of the group have, the one that the server keeps first. The normalised times are
    exact, in millionths of a HEPSPEC (or HEPscore23) second.
    """

    year: int
    month: int
    site: str
    user: str
    vo: str
    vo_group: str
    role: str
    submit_host: str
    infrastructure: str
    kind: str  # type of the benchmark
    benchmarks: tuple[Benchmark, ...]
    node_count: int
    cpu_count: int
    earliest_end: Epoch
    latest_end: Epoch
    wall_s: int
    cpu_s: int
    normalised_wall_micro: int
    normalised_cpu_micro: int
    jobs: int

    @property
    def normalised_wall_s(self) -> int:
        """Wall seconds on the benchmark, rounded here and nowhere else; half a second goes up."""
        return rounded(self.normalised_wall_micro)

    @property
    def normalised_cpu_s(self) -> int:
        return rounded(self.normalised_cpu_micro)

    def has_begun(self, now: datetime) -> bool:
        """Whether the server surely takes the month for begun; a group that waits for that is complete later."""
        return Month(self.year, self.month).start + MONTH_BEGINS_AFTER <= now


@dataclass(slots=True)
class _Sums:
    """A group in the making; `spelling` is the first of its spellings in sort order, whatever came first."""

    spelling: tuple[str, ...]
    benchmarks: tuple[Benchmark, ...]
    earliest_end: Epoch = _AFTER_ALL_ENDS
    latest_end: Epoch = _NO_END
    wall_s: int = 0
    cpu_s: int = 0
    normalised_wall_micro: int = 0
    normalised_cpu_micro: int = 0
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where jobs with these shared objects go. It holds on to them, so that their ids cannot come to mean others."""

    sums: _Sums
    micro: int  # of a second, normalised
    shared: tuple[UserIdentity, Placement, AppliedBenchmark]

    def add(self, ended_at: Epoch, wall_s: int, cpu_s: int) -> None:
        """Count a job that ended then and used that, in seconds (hot path)."""
        sums, micro = self.sums, self.micro
        sums.jobs += 1
        sums.wall_s += wall_s
        sums.cpu_s += cpu_s
        sums.normalised_wall_micro += wall_s * micro
        sums.normalised_cpu_micro += cpu_s * micro
        if ended_at < sums.earliest_end:
            sums.earliest_end = ended_at
        if ended_at > sums.latest_end:
            sums.latest_end = ended_at


class Accumulator:
    """Adds jobs to their groups. Memory: one entry a group, and a bounded number of places in them."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._groups: dict[GroupKey, _Sums] = {}
        self._places: dict[tuple[int, ...], GroupPlace] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, job: PublishedJob) -> None:
        """Count a job that its format admits. Raises: Unfit when it ended in no calendar month or has no benchmark."""
        run = job.job
        self.place(job).add(job.ended_at, run.wall_s, run.cpu_user_s + run.cpu_kernel_s)

    def add_group(self, group: SummaryGroup) -> None:
        """Count what was summed up before, with the same grouping."""
        sums = self._group(
            month=month_number_of(group.year, group.month),
            spelling=_texts(group),
            kind=group.kind,
            benchmarks=group.benchmarks,
            nodes=group.node_count,
            cores=group.cpu_count,
        )
        sums.jobs += group.jobs
        sums.wall_s += group.wall_s
        sums.cpu_s += group.cpu_s
        sums.normalised_wall_micro += group.normalised_wall_micro
        sums.normalised_cpu_micro += group.normalised_cpu_micro
        sums.earliest_end = min(sums.earliest_end, group.earliest_end)
        sums.latest_end = max(sums.latest_end, group.latest_end)

    def merge(self, other: Accumulator) -> None:
        """Count everything that another one counted, with the same grouping."""
        for group in other.groups():
            self.add_group(group)

    def groups(self) -> Iterator[SummaryGroup]:
        """All groups, by month and key; the same jobs in any order give the same groups in the same order."""
        for key in sorted(self._groups):
            if self._groups[key].latest_end:  # a place was asked for, and something came there
                yield _finished(key, self._groups[key])

    def place(self, job: PublishedJob) -> GroupPlace:
        """Where a job goes, and others of its month that differ in their ends and in what they used. Raises: as `add`.

        A place holds until groups are taken out.
        """
        nodes, cores = job.job.node_count or 0, job.job.cpu_count or 0
        month = month_number(job.ended_at)
        at = (month, id(job.who), id(job.where), id(job.benchmark), nodes, cores)
        known = self._places.get(at)
        if known is None:
            known = self._find(job, month, nodes, cores)
            if len(self._places) >= _PLACES:
                self._places.clear()
            self._places[at] = known
        return known

    def _find(self, job: PublishedJob, month: int, nodes: int, cores: int) -> GroupPlace:
        who, where = job.who, job.where
        benchmarks = self._benchmarks(job.benchmark)
        texts = (
            where.site, who.user, who.vo, who.receiver_group, who.receiver_role, where.receiver_host, where.infrastructure,
        )  # fmt: skip
        sums = self._group(
            month=month,
            spelling=tuple(ascii_key(text) for text in texts),
            kind=benchmarks[0].kind,
            benchmarks=benchmarks,
            nodes=nodes,
            cores=cores,
        )
        return GroupPlace(sums, micro_of_a_second(benchmarks[0]), (who, where, job.benchmark))

    def _group(
        self,
        *,
        month: int,
        spelling: tuple[str, ...],
        kind: str,
        benchmarks: tuple[Benchmark, ...],
        nodes: int,
        cores: int,
    ) -> _Sums:
        """The group with that key, made if need be."""
        key = _key(self._grouping, month, spelling, kind, benchmarks, nodes, cores)
        sums = self._groups.get(key)
        if sums is None:
            sums = self._groups[key] = _Sums(spelling, benchmarks)
            return sums
        sums.spelling = min(sums.spelling, spelling)
        if sums.benchmarks != benchmarks:
            sums.benchmarks = tuple(one for one in sums.benchmarks if one in benchmarks)
        return sums

    def _benchmarks(self, applied: AppliedBenchmark) -> tuple[Benchmark, ...]:
        """What travels, the one that the server keeps first."""
        if not applied.benchmarks:
            raise Unfit("benchmark-missing", f"no benchmark: {applied.origin}")
        return by_preference(applied.benchmarks) if self._grouping.several else applied.benchmarks[:1]


def group_key(grouping: Grouping, group: SummaryGroup) -> GroupKey:
    """The key of the group's row at the server, after its normalisation."""
    number = month_number_of(group.year, group.month)
    return _key(grouping, number, _texts(group), group.kind, group.benchmarks, group.node_count, group.cpu_count)


def by_preference(benchmarks: tuple[Benchmark, ...]) -> tuple[Benchmark, ...]:
    """Benchmarks of a dictionary, the one that the server keeps first; of two with one type, which it refuses, the first."""
    by_kind: dict[str, Benchmark] = {}
    for benchmark in benchmarks:
        by_kind.setdefault(benchmark.kind, benchmark)
    return tuple(by_kind[kind] for kind in _PREFERENCE if kind in by_kind)


def micro_of_a_second(benchmark: Benchmark) -> int:
    """What a second on it is worth in millionths of a normalised one; exact, because values have three decimals.

    Spec: apel facts, section 7: Si2k counts a 250th, every other type as it is.
    """
    micro = int(benchmark.value * _MICRO)
    return micro // 250 if benchmark.kind == "Si2k" else micro


def rounded(micro: int) -> int:
    """Whole seconds of millionths; half a second goes up."""
    return (micro + _MICRO // 2) // _MICRO


def _texts(group: SummaryGroup) -> tuple[str, ...]:
    return group.site, group.user, group.vo, group.vo_group, group.role, group.submit_host, group.infrastructure


def _key(
    grouping: Grouping,
    month: int,
    texts: tuple[str, ...],
    kind: str,
    benchmarks: tuple[Benchmark, ...],
    nodes: int,
    cores: int,
) -> GroupKey:
    level = benchmarks[0].value if grouping.by_level else Decimal(0)
    return month, tuple(map(column, texts)), kind, level, nodes, cores


def _finished(key: GroupKey, sums: _Sums) -> SummaryGroup:
    number, _, kind, _, nodes, cores = key
    year, month = year_and_month(number)
    site, user, vo, vo_group, role, submit_host, infrastructure = sums.spelling
    return SummaryGroup(
        year=year,
        month=month,
        site=site,
        user=user,
        vo=vo,
        vo_group=vo_group,
        role=role,
        submit_host=submit_host,
        infrastructure=infrastructure,
        kind=kind,
        benchmarks=sums.benchmarks,
        node_count=nodes,
        cpu_count=cores,
        earliest_end=sums.earliest_end,
        latest_end=sums.latest_end,
        wall_s=sums.wall_s,
        cpu_s=sums.cpu_s,
        normalised_wall_micro=sums.normalised_wall_micro,
        normalised_cpu_micro=sums.normalised_cpu_micro,
        jobs=sums.jobs,
    )


class SyncCount(NamedTuple):
    """How many jobs of a month a site holds for a submit host."""

    site: str
    submit_host: str
    year: int
    month: int
    jobs: int


class SyncCounter:
    """Counts jobs by site, submit host and month of their end, as the server keys them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str], tuple[tuple[str, str], int]] = {}

    def add(self, job: PublishedJob) -> None:
        """Count a job that its format admits. Raises: Unfit when it ended in no calendar month."""
        self._add(month_number(job.ended_at), ascii_key(job.where.site), ascii_key(job.where.receiver_host), 1)

    def add_count(self, count: SyncCount) -> None:
        """Count what was counted before, such as the jobs that an earlier publisher delivered."""
        self._add(
            month_number_of(count.year, count.month), ascii_key(count.site), ascii_key(count.submit_host), count.jobs
        )

    def merge(self, other: SyncCounter) -> None:
        for count in other.counts():
            self.add_count(count)

    def counts(self) -> Iterator[SyncCount]:
        """All counts, by month, site and submit host."""
        for key in sorted(self._counts):
            (site, host), jobs = self._counts[key]
            year, month = year_and_month(key[0])
            yield SyncCount(site=site, submit_host=host, year=year, month=month, jobs=jobs)

    def _add(self, month: int, site: str, host: str, jobs: int) -> None:
        key = (month, column(site), column(host))
        spelling, counted = self._counts.get(key, ((site, host), 0))
        self._counts[key] = (min(spelling, (site, host)), counted + jobs)


class SummaryKey(NamedTuple):
    """A row of the server's summaries: its month (12 x year + month - 1), a digest of its key, and the key for people.

    The text leaves the site out, because all rows of a ticket share theirs.
    """

    month: int
    digest: bytes
    text: str
    site: str


class KeyTotal(NamedTuple):
    """What the server adds up under a key."""

    key: SummaryKey
    jobs: int
    wall_s: int
    cpu_s: int
