"""Monthly totals and sync counts by the keys of APEL's tables, one entry in memory per row.

The server replaces rows with equal keys, so two groups that it takes for one would lose the jobs of
the first. Rows are therefore told apart by its own keys, after its own normalisation: texts without
case, accents and trailing blanks, null-like values as null, benchmarks at three decimals, and of
several benchmarks the one that it keeps. The ledger keeps rows with all that their records say
(`formats/rows.py`); those that the server does not tell apart go out as one group (`groups_of`).
Sync counts are the jobs of each month and submit host, which APEL compares with what it stored.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from publisher.model.entry import Entry, RowTotal, Usage, fields_of
from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobId
from publisher.model.published import Placement
from publisher.model.rates import Benchmark
from publisher.model.text import FORBIDDEN_IN_TEXT, NOT_GIVEN, ascii_text, receiver_key
from publisher.model.time import Month, Window, epoch

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


def id_column(local_id: str) -> str:
    """The same of a text that few jobs share, such as a local id: it is not remembered."""
    text = receiver_key(local_id)
    return "" if text in NOT_GIVEN else text


@lru_cache(maxsize=4096)
def sync_host(text: str) -> str:
    """The submit host under which jobs are counted: one spelling of all that the server equates.

    '' where no message may hold it: one without a host is as good for counts by month.
    """
    host = column(text)
    return "" if len(host) > _HOST_CHARACTERS or FORBIDDEN_IN_TEXT.search(host) else host


COUNTED_HOST: Final = "CountedHost"  # among the fields of a row, where it is not the SubmitHost


def counted_host(where: Placement, submit_host: str) -> dict[str, str]:
    """Return the field that says under which submit host jobs are counted, if it is another one."""
    host = ascii_key(where.receiver_host)
    return {} if host == submit_host else {COUNTED_HOST: host}


def host_of(fields: str) -> str:
    """Return the submit host under which jobs of a row are counted; '' where it has none."""
    named = fields_of(fields)
    return sync_host(named.get(COUNTED_HOST, named.get("SubmitHost", "")))


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
_TEXTS: Final = (
    *("Site", "GlobalUserName", "VO", "VOGroup", "VORole", "SubmitHost", "InfrastructureType"),
)
NORMALISED: Final = "NormalisedSummaries"
_PREFERENCE: Final = ("HEPscore23", "HEPSPEC", "Si2k")  # of a dictionary with several

# The month's number, texts, type and value of the benchmark, nodes, processors. A tuple: joined
# texts would make (1, 12) of (11, 2).
GroupKey = tuple[int, tuple[str, ...], str, Decimal, int, int]


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
        key = SummaryKey(month=number, text=text, site=self.site)
        return KeyTotal(key=key, jobs=self.jobs, wall_s=self.wall_s, cpu_s=self.cpu_s)

    def without_usage(self) -> "SummaryGroup":
        """Return the record that empties the row; its ends are the beginning of the month."""
        begin = epoch(Month(self.year, self.month).start)
        return self._replace(
            earliest_end=begin,
            latest_end=begin,
            jobs=0,
            wall_s=0,
            cpu_s=0,
            normalised_wall_micro=0,
            normalised_cpu_micro=0,
        )

    def has_begun(self, now: datetime) -> bool:
        """Return whether the server surely takes the month as begun."""
        return Month(self.year, self.month).start + _MONTH_BEGINS_AFTER <= now


def grouping_of(row: RowTotal) -> Grouping:
    """Return how the server groups the table that a row is of."""
    named = row.key.fields.named
    is_normalised = named.get("Table") == NORMALISED
    return Grouping(by_level=not is_normalised, several="OtherServiceLevels" in named)


def has_benchmark(row: RowTotal) -> bool:
    """Return whether a row is by benchmark, as those of summaries are."""
    return "ServiceLevelType" in row.key.fields.named


def group_of(row: RowTotal) -> SummaryGroup:
    """Return the record of totals that says what counts in a row."""
    named = row.key.fields.named
    levels = [(named["ServiceLevelType"], named["ServiceLevel"])]
    others = (other.partition(" ") for other in named.get("OtherServiceLevels", "").splitlines())
    levels += [(kind, value) for kind, _, value in others]
    benchmarks = tuple(Benchmark(kind, Decimal(value or 0)) for kind, value in levels)
    micro = micro_of_a_second(benchmarks[0])
    year, month = year_and_month(row.key.month)
    site, user, vo, group, role, host, infrastructure = (named[name] for name in _TEXTS)
    return SummaryGroup(
        year=year,
        month=month,
        site=site,
        user=user,
        vo=vo,
        vo_group=group,
        role=role,
        submit_host=host,
        infrastructure=infrastructure,
        kind=benchmarks[0].kind,
        benchmarks=benchmarks,
        node_count=int(named["NodeCount"]),
        cpu_count=int(named["Processors"]),
        earliest_end=row.first_end,
        latest_end=row.last_end,
        wall_s=row.counts.wall_s,
        cpu_s=row.counts.cpu_s,
        normalised_wall_micro=row.counts.wall_s * micro,
        normalised_cpu_micro=row.counts.cpu_s * micro,
        jobs=row.counts.jobs,
    )


def row_for_people(row: RowTotal, *, by_level: bool) -> "KeyTotal":
    """Return what counts in a row as people read it; `by_level`: with the benchmark's value."""
    if has_benchmark(row):
        return group_of(row).row(by_level=by_level)
    named = row.key.fields.named
    site, month = named.get("Site", ""), row.key.month
    apart = "Site", COUNTED_HOST
    about = ", ".join(f"{name} {value}" for name, value in named.items() if name not in apart)
    return KeyTotal(SummaryKey(month, about, site), *row.counts)


class GroupedRows(NamedTuple):
    """Rows that their server does not tell apart: the record for all, and what each counts."""

    group: SummaryGroup
    rows: tuple[RowTotal, ...]

    @property
    def counts(self) -> Usage:
        return _sum(row.counts for row in self.rows)

    @property
    def sent(self) -> Usage:
        return _sum(row.sent for row in self.rows)

    @property
    def is_unsent(self) -> bool:
        """Return whether the receiver may have been told something else."""
        is_sent = any(row.format for row in self.rows)
        is_guess = any(row.is_guess for row in self.rows)
        return is_sent and (is_guess or self.counts != self.sent)


def _sum(usages: Iterable[Usage]) -> Usage:
    found = Usage()
    for usage in usages:
        found = found.plus(usage)
    return found


def groups_of(grouping: Grouping, rows: Iterable[RowTotal]) -> Iterator[GroupedRows]:
    """Yield the rows of months by the server's keys, in the order of these.

    Rows of another table are left out. Where spellings differ, the first in sort order is said.
    """
    by_key: dict[GroupKey, list[tuple[SummaryGroup, RowTotal]]] = {}
    for row in rows:
        if grouping_of(row).by_level is not grouping.by_level:
            continue
        group = group_of(row)
        by_key.setdefault(group_key(grouping, group), []).append((group, row))
    for key in sorted(by_key):
        members = by_key[key]
        yield GroupedRows(_merged([one for one, _ in members]), tuple(row for _, row in members))


def _merged(groups: list[SummaryGroup]) -> SummaryGroup:
    """Return the record that says all of some groups with one key; it has no ends without jobs."""
    live = [group for group in groups if group.jobs] or groups
    first = min(live, key=_texts)
    if len(live) == 1:
        return first
    of_all = set(first.benchmarks).intersection(*(group.benchmarks for group in live))
    common = tuple(one for one in first.benchmarks if one in of_all)
    return first._replace(
        benchmarks=common or first.benchmarks[:1],
        earliest_end=min(group.earliest_end for group in live),
        latest_end=max(group.latest_end for group in live),
        wall_s=sum(group.wall_s for group in live),
        cpu_s=sum(group.cpu_s for group in live),
        normalised_wall_micro=sum(group.normalised_wall_micro for group in live),
        normalised_cpu_micro=sum(group.normalised_cpu_micro for group in live),
        jobs=sum(group.jobs for group in live),
    )


def group_key(grouping: Grouping, group: SummaryGroup) -> GroupKey:
    """Return the key of the group's row at the server, after its normalisation."""
    level = group.benchmarks[0].value if grouping.by_level else Decimal(0)
    texts = tuple(map(column, _texts(group)))
    number = Month(group.year, group.month).number
    return number, texts, group.kind, level, group.node_count, group.cpu_count


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


class SyncCount(NamedTuple):
    """How many jobs of a month a site holds for a submit host."""

    site: str
    submit_host: str
    year: int
    month: int
    jobs: int


class SummaryKey(NamedTuple):
    """A row of summaries for people: its month (12 x year + month - 1), its key's text, its site.

    The text leaves the site out, because all rows of a ticket share theirs.
    """

    month: int
    text: str
    site: str


class KeyTotal(NamedTuple):
    """What the server adds up under a key."""

    key: SummaryKey
    jobs: int
    wall_s: int
    cpu_s: int


SINGLE_RECORDS: Final = "single records"  # what a receiver may have of a month


class RestoredMonth(NamedTuple):
    """What is known of a month since the ledger was found restored, or lost and made anew.

    `differs`: what counts of it is not what counted before, or nobody can tell; in others only
    jobs wait. `jobs`: how many the receiver should have, None where nobody knows; `counted`: how
    many the ledger has. `waiting`: how many jobs a round held back; `examples`: some of their ids.
    """

    target: str
    noticed_at: Epoch
    differs: bool
    jobs: int | None = None
    counted: int = 0
    waiting: int = 0
    examples: tuple[JobId, ...] = ()
    is_closed: bool = False  # so nothing of it can be sent again (`keep`)


class BlockedMonth(NamedTuple):
    """A month that is not sent: rows that would stay at the receiver, and jobs that it would lose.

    `was`: what the receiver has of it, where records of another kind would count in addition: a
    format of totals, or single records. Its `lost_jobs` cannot be sent again, and a month goes over
    to another kind whole. `jobs` are those that wait with the month, None where only rows are held.
    `emptied`: nothing would stay, as zeros go out under each key.
    `ticket_after`: rows are to be deleted when the new ones are there, since the receiver would
    make them again before. `restored`, `purged`: the ledger, or the receiver, may lack something.
    """

    month: int
    orphaned: tuple[KeyTotal, ...]
    lost_jobs: int
    was: str = ""
    emptied: bool = False
    ticket_after: bool = False
    restored: RestoredMonth | None = None
    purged: bool = False  # records of its rows
    jobs: int | None = None

    @property
    def name(self) -> str:
        return month_name(self.month)


BY_JURA: Final = "jura-ng"  # in place of a policy's digest, of what that sent


AS_DELIVERED: Final = "taken as delivered"  # the same, of what an administrator knows to be there
CLOSED: Final = "closed by keep"  # the same, of what entries of closed months add up to


class InheritedMonth(NamedTuple):
    """What was sent of a month without an entry here, run by run.

    `by`: another publisher (BY_JURA), or this one before the ledger was restored (AS_DELIVERED).
    """

    month: int
    format: str
    totals: bool  # in this format they are, and not single records
    entries: tuple[Entry, ...]
    hosts: Mapping[tuple[int, str], int]  # jobs, as its counts had them
    by: str = BY_JURA


def month_name(number: int) -> str:
    """As people write it: 2026-09."""
    year, month = year_and_month(number)
    return f"{year}-{month:02}"


def has_begun(number: int, now: datetime) -> bool:
    """Return whether the server surely takes a month as begun, by its number."""
    return _begins(number) <= now


@lru_cache(maxsize=256)
def _begins(number: int) -> datetime:
    return Month(*year_and_month(number)).start + _MONTH_BEGINS_AFTER


def month_window(number: int) -> Window:
    """The end times of a month, by its number (12 x year + month - 1), UTC."""
    return Month(*year_and_month(number)).window
