"""Monthly totals and sync counts by the keys of APEL's tables, one entry in memory per row.

And whole months of them: their windows, and rows that would be left behind at the receiver.

The server replaces rows with equal keys, so two groups that it takes for one would lose the jobs of
the first. Groups are therefore made by its own keys, after its own normalisation: texts without
case, accents and trailing blanks, null-like values as null, benchmarks at three decimals, and of
several benchmarks the one that it keeps. Sync counts are the jobs of each month and submit host,
which APEL compares with what it stored.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from publisher.model.errors import Unfit
from publisher.model.job import Epoch
from publisher.model.published import PublishedJob
from publisher.model.rates import Benchmark
from publisher.model.text import FORBIDDEN_IN_TEXT, NOT_GIVEN, ascii_text, receiver_key
from publisher.model.time import Month, Window

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S: Final = 86_400
_HOST_CHARACTERS: Final = 255


@lru_cache(maxsize=65_536)
def ascii_key(text: str) -> str:
    """A text as it is sent, in ASCII; '' where the server would take it for not given."""
    text = ascii_text(text)
    return "" if text.lower() in NOT_GIVEN else text


@lru_cache(maxsize=65_536)
def column(text: str) -> str:
    """A text as the server's key columns compare it."""
    return receiver_key(ascii_key(text))


@lru_cache(maxsize=4096)
def sync_host(text: str) -> str:
    """The submit host under which jobs are counted: one spelling of all that the server equates.

    '' where no message may hold it: one without a host is as good for counts by month.
    """
    host = column(text)
    return "" if len(host) > _HOST_CHARACTERS or FORBIDDEN_IN_TEXT.search(host) else host


def month_number(ended_at: int) -> int:
    """Months since the year 0 of an end time, in UTC. Raises: Unfit outside the calendar."""
    return _month_of_day(ended_at // _DAY_S)


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
_MONTH_BEGINS_AFTER: Final = timedelta(minutes=10)

MICRO: Final = 1_000_000  # of a normalised second
_ROWS: Final = 20_000  # by shared objects, kept at most; policy shares as many
_AFTER_ALL_ENDS: Final = Epoch(2**63)
_NO_END: Final = Epoch(0)
_PREFERENCE: Final = ("HEPscore23", "HEPSPEC", "Si2k")  # of a dictionary with several

# Texts, type and value of the benchmark, nodes, processors. A tuple: joined texts would make
# (1, 12) of (11, 2).
RowKey = tuple[tuple[str, ...], str, Decimal, int, int]
GroupKey = tuple[int, tuple[str, ...], str, Decimal, int, int]  # the month's number, and a RowKey


class Grouping(NamedTuple):
    """What a table of the server has in its key beyond what all summaries share.

    `by_level`: the benchmark's value, as Summaries has it; NormalisedSummaries has only its type.
    `several`: all benchmarks of a job travel and the server prefers one; else the main one travels.
    """

    by_level: bool
    several: bool


class SummaryGroup(NamedTuple):
    """What one row of the server says about a month in UTC. Texts are ASCII, '' for nothing known.

    `benchmarks` are those that all jobs of the group have, the one that the server keeps first. The
    normalised times are exact, in millionths of a HEPSPEC (or HEPscore23) second.
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

    def row(self, *, by_level: bool) -> "KeyTotal":
        """As a row of the receiver, for people. `by_level`: its table has a benchmark's value."""
        levels = [f"{one.kind} {one.text}" if by_level else one.kind for one in self.benchmarks]
        text = (
            f"VO {self.vo or 'None'}, group {self.vo_group or 'None'}, role {self.role or 'None'}, "
            f"user {self.user or 'None'}, SubmitHost {self.submit_host or 'None'}, "
            f"{self.infrastructure}, {' '.join(levels) or self.kind}, "
            f"nodes {self.node_count}, processors {self.cpu_count}"
        )
        number = Month(self.year, self.month).number
        key = SummaryKey(month=number, digest=b"", text=text, site=self.site)
        return KeyTotal(key=key, jobs=self.jobs, wall_s=self.wall_s, cpu_s=self.cpu_s)

    def without_usage(self) -> "SummaryGroup":
        """The record that empties the row."""
        return self._replace(
            jobs=0, wall_s=0, cpu_s=0, normalised_wall_micro=0, normalised_cpu_micro=0
        )

    def has_begun(self, now: datetime) -> bool:
        """Whether the server surely takes the month as begun; else the group completes later."""
        return Month(self.year, self.month).start + _MONTH_BEGINS_AFTER <= now


@dataclass(slots=True)
class _Sums:
    """A group in the making; `spelling` is the first in sort order, whatever came first."""

    spelling: tuple[str, ...]
    benchmarks: tuple[Benchmark, ...]
    earliest_end: Epoch = _AFTER_ALL_ENDS
    latest_end: Epoch = _NO_END
    wall_s: int = 0
    cpu_s: int = 0
    normalised_wall_micro: int = 0
    normalised_cpu_micro: int = 0
    jobs: int = 0

    def add_run(self, ended_at: Epoch, wall_s: int, cpu_s: int, micro: int) -> None:
        """Count a job; `micro`: what a second is worth, normalised."""
        self.earliest_end = min(self.earliest_end, ended_at)
        self.latest_end = max(self.latest_end, ended_at)
        self.wall_s += wall_s
        self.cpu_s += cpu_s
        self.normalised_wall_micro += wall_s * micro
        self.normalised_cpu_micro += cpu_s * micro
        self.jobs += 1

    def add(self, part: "SummaryGroup", wall_micro: int, cpu_micro: int) -> None:
        """Count what some of its jobs used, also normalised."""
        self.earliest_end = min(self.earliest_end, part.earliest_end)
        self.latest_end = max(self.latest_end, part.latest_end)
        self.wall_s += part.wall_s
        self.cpu_s += part.cpu_s
        self.normalised_wall_micro += wall_micro
        self.normalised_cpu_micro += cpu_micro
        self.jobs += part.jobs


class SummaryRow(NamedTuple):
    """What a job says of its row but the month: key and texts, and what a second is worth."""

    key: RowKey
    spelling: tuple[str, ...]
    benchmarks: tuple[Benchmark, ...]
    micro: int  # of a second, normalised


class Accumulator:
    """Adds jobs to their groups. Memory: an entry a group, and a bounded number of rows."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._groups: dict[GroupKey, _Sums] = {}
        self._rows: dict[tuple[int, ...], tuple[SummaryRow, object]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def jobs(self) -> int:
        return sum(sums.jobs for sums in self._groups.values())

    def add(self, job: PublishedJob) -> None:
        """Count an admitted job. Raises: Unfit when it has no calendar month or no benchmark."""
        row, run = self._row(job), job.job
        sums = self._group((month_number(job.ended_at), *row.key), row.spelling, row.benchmarks)
        sums.add_run(job.ended_at, run.wall_s, run.cpu_user_s + run.cpu_kernel_s, row.micro)

    def add_group(self, group: SummaryGroup) -> None:
        """Count what was summed up before, with the same grouping."""
        sums = self._group(group_key(self._grouping, group), _texts(group), group.benchmarks)
        sums.add(group, group.normalised_wall_micro, group.normalised_cpu_micro)

    def merge(self, other: "Accumulator") -> None:
        """Count everything that another one counted, with the same grouping."""
        for group in other.groups():
            self.add_group(group)

    def groups(self) -> Iterator[SummaryGroup]:
        """All groups, by month and key; the same jobs give the same groups in the same order."""
        for key in sorted(self._groups):
            sums = self._groups[key]
            number, _, kind, _, nodes, cores = key
            row = *year_and_month(number), *sums.spelling, kind, sums.benchmarks, nodes, cores
            used = sums.earliest_end, sums.latest_end, sums.wall_s, sums.cpu_s
            normalised = sums.normalised_wall_micro, sums.normalised_cpu_micro
            yield SummaryGroup._make((*row, *used, *normalised, sums.jobs))

    def _row(self, job: PublishedJob) -> SummaryRow:
        """The `summary_row` of a job, kept with what it shares: their ids stay theirs."""
        shared = job.who, job.where, job.benchmark
        at = (*map(id, shared), job.job.node_count or 0, job.job.cpu_count or 0)
        if at not in self._rows:
            row = summary_row(self._grouping, job)
            if len(self._rows) >= _ROWS:
                self._rows.clear()
            self._rows[at] = row, shared
        return self._rows[at][0]

    def _group(
        self, key: GroupKey, spelling: tuple[str, ...], benchmarks: tuple[Benchmark, ...]
    ) -> _Sums:
        """The group with that key, made if need be."""
        if key not in self._groups:
            self._groups[key] = _Sums(spelling, benchmarks)
        sums = self._groups[key]
        sums.spelling = min(sums.spelling, spelling)
        if sums.benchmarks != benchmarks:
            sums.benchmarks = tuple(one for one in sums.benchmarks if one in benchmarks)
        return sums


def summary_row(grouping: Grouping, job: PublishedJob) -> SummaryRow:
    """Raises: Unfit when it has no benchmark."""
    who, where = job.who, job.where
    if not job.benchmark.benchmarks:
        raise Unfit("benchmark-missing", f"no benchmark: {job.benchmark.origin}")
    benchmarks = job.benchmark.benchmarks[:1]
    if grouping.several:
        benchmarks = by_preference(job.benchmark.benchmarks)
    texts = where.site, who.user, who.vo, who.receiver_group, who.receiver_role, where.receiver_host
    spelling = tuple(map(ascii_key, (*texts, where.infrastructure)))
    nodes, cores = job.job.node_count or 0, job.job.cpu_count or 0
    key = _key(grouping, spelling, benchmarks[0].kind, benchmarks, nodes, cores)
    return SummaryRow(key, spelling, benchmarks, micro_of_a_second(benchmarks[0]))


def group_key(grouping: Grouping, group: SummaryGroup) -> GroupKey:
    """The key of the group's row at the server, after its normalisation."""
    nodes, cores = group.node_count, group.cpu_count
    row = _key(grouping, _texts(group), group.kind, group.benchmarks, nodes, cores)
    return Month(group.year, group.month).number, *row


def by_preference(benchmarks: tuple[Benchmark, ...]) -> tuple[Benchmark, ...]:
    """Benchmarks of a dictionary, the one that the server keeps first; of a type, the first."""
    by_kind: dict[str, Benchmark] = {}
    for benchmark in benchmarks:
        by_kind.setdefault(benchmark.kind, benchmark)
    return tuple(by_kind[kind] for kind in _PREFERENCE if kind in by_kind)


def micro_of_a_second(benchmark: Benchmark) -> int:
    """What its second is worth in millionths of a normalised one: exact, as values are.

    As APEL's server reckons: Si2k counts a 250th, every other type as it is.
    """
    micro = int(benchmark.value * MICRO)
    return micro // 250 if benchmark.kind == "Si2k" else micro


def rounded(micro: int) -> int:
    """Whole seconds of millionths; half a second goes up."""
    return (micro + MICRO // 2) // MICRO


def _texts(group: SummaryGroup) -> tuple[str, ...]:
    texts = group.site, group.user, group.vo, group.vo_group, group.role, group.submit_host
    return *texts, group.infrastructure


def _key(
    grouping: Grouping,
    texts: tuple[str, ...],
    kind: str,
    benchmarks: tuple[Benchmark, ...],
    nodes: int,
    cores: int,
) -> RowKey:
    level = benchmarks[0].value if grouping.by_level else Decimal(0)
    return tuple(map(column, texts)), kind, level, nodes, cores


class SyncCount(NamedTuple):
    """How many jobs of a month a site holds for a submit host."""

    site: str
    submit_host: str
    year: int
    month: int
    jobs: int


class SummaryKey(NamedTuple):
    """A row of summaries: its month (12 x year + month - 1), its key's digest, and its key's text.

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


class BlockedMonth(NamedTuple):
    """A month that is not sent: rows that would stay at the receiver, and jobs that it would lose.

    `was`: its format as totals, beside which single records would count. `emptied`: nothing would
    stay, as zeros go out under each key. `awaited`: targets that have yet to count. `before`: those
    that sent rows of its VOs before.
    """

    month: int
    orphaned: tuple[KeyTotal, ...]
    lost_jobs: int
    was: str = ""
    emptied: bool = False
    awaited: str = ""
    before: str = ""

    @property
    def name(self) -> str:
        return month_name(self.month)


BY_JURA: Final = "jura-ng"  # in place of a policy's digest, of what that sent


class InheritedMonth(NamedTuple):
    """What another publisher left of a month: totals, or single records by their rows there."""

    month: int
    format: str
    groups: tuple[SummaryGroup, ...]
    singles: tuple[KeyTotal, ...]
    hosts: Mapping[tuple[int, str], int]  # jobs, as its counts had them


class AcceptedChange(NamedTuple):
    """Rows of a month that were let stay at the receiver, without digests, and the jobs it lost."""

    month: int
    accepted_at: datetime
    rows: tuple[KeyTotal, ...]
    lost_jobs: int


def month_name(number: int) -> str:
    """As people write it: 2026-09."""
    year, month = year_and_month(number)
    return f"{year}-{month:02}"


def month_window(number: int) -> Window:
    """The end times of a month, by its number (12 x year + month - 1), UTC."""
    return Month(*year_and_month(number)).window


_KeyOf = Callable[[SummaryGroup], object]


def left_behind(
    key: _KeyOf, accepted: Sequence[SummaryGroup], new: Iterable[SummaryGroup]
) -> list[SummaryGroup]:
    """Accepted groups whose keys the new ones do not replace: they would be counted beside them."""
    replaced = {key(group) for group in new} if accepted else ()
    return [group for group in accepted if key(group) not in replaced]


class FoundJobs(NamedTuple):
    """The counted jobs of a month in the accounting data: as they were counted, or changed."""

    unchanged: Sequence[SummaryGroup]
    changed: Sequence[SummaryGroup]


def rows_with_gone(
    key: _KeyOf, counted: Sequence[SummaryGroup], found: FoundJobs, gone: int
) -> Sequence[SummaryGroup] | None:
    """A month with counted jobs that are gone, each row as it was counted or as it is found.

    As it is found is a row that has as many jobs as were counted in it. One that lacks jobs, or has
    more of them, stays as it was counted: which of its jobs are gone, and which changed their row,
    is not known. None where the jobs do not add up.
    """
    there = (*found.unchanged, *found.changed)
    here: Counter[object] = Counter()
    for group in there:
        here[key(group)] += group.jobs
    were = {key(group): group.jobs for group in counted}
    if sum(were.values()) - sum(here.values()) != gone:
        return None
    as_found = {at for at, jobs in were.items() if here[at] == jobs}
    kept = [group for group in counted if key(group) not in as_found]
    return kept + [group for group in there if key(group) in as_found]
