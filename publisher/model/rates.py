"""Benchmarks and tariffs: what a core second is worth, and what a job costs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from publisher.model.errors import Unfit
from publisher.model.job import Epoch, JobId, JobRecord, RunKey
from publisher.model.time import Window

# APEL knows these three, in any case; everything else rejects the message.
KINDS: Final = {"si2k": "Si2k", "hepspec": "HEPSPEC", "hepscore23": "HEPscore23"}
_ALSO_CALLED: Final = {"hs06": "HEPSPEC", "hepspec06": "HEPSPEC", "hs23": "HEPscore23"}
_THREE_PLACES: Final = Decimal("0.001")
GPU_HOURS: Final = "GPUh"  # as the unit of an allocation
_LARGEST: Final = Decimal("9999999.999")  # decimal(10,3) at the server
# Decimal() also takes 1_000, nan and digits of other scripts. The length keeps it exact.
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_LONGEST_NUMBER: Final = 64


class Benchmark(NamedTuple):
    """A benchmark as the server keeps it: type in its usual spelling, value at three decimals."""

    kind: str
    value: Decimal

    @property
    def text(self) -> str:
        """The value without trailing zeros: `10.50` and `10.5` are one."""
        return amount_text(self.value)


_JURA_KINDS: Final = frozenset(KINDS.values())
AREX_DEFAULT: Final = Benchmark(kind="HEPSPEC", value=Decimal("1.000"))
"""What A-REX writes into a job where the site configured no benchmark."""


def wall_text(wall_s: Mapping[str, int]) -> str:
    """Wall time by queue, for people."""
    queues = ", ".join(sorted(queue or "(none)" for queue in wall_s))
    word = "queues" if len(wall_s) > 1 else "queue"
    return f"{sum(wall_s.values()) / 3600:,.1f} h of wall time in the {word} {queues}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedBenchmark:
    """The benchmarks said about a job, the first one the main one; none when nothing is known.

    Shared by the jobs that have the same: formats cache what they render of it by identity.
    """

    benchmarks: tuple[Benchmark, ...]
    origin: str
    arex_default: bool = False  # A-REX's own HEPSPEC:1.0, sent but counted and reported
    # Why there is none although the job carries one
    unreadable: Unfit | None = field(default=None, compare=False)


_JURAS: Final = AppliedBenchmark(
    benchmarks=(AREX_DEFAULT,),
    origin="jura-ng's for jobs without a benchmark that it can read, "
    "until the month of jura_until is over",
)
_NOTHING: Final = AppliedBenchmark(benchmarks=(), origin="nothing configured matches")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRule:
    """Benchmarks for matching jobs: patterns over queue, endpoint and host; dates by end time."""

    benchmarks: tuple[Benchmark, ...]
    queue: str = "*"
    endpoint: str = "*"
    host: str = "*"
    window: Window = Window()
    override: bool = False  # also for jobs that carry a benchmark of their own
    origin: str = "records.benchmark"
    applied: AppliedBenchmark = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        applied = AppliedBenchmark(benchmarks=self.benchmarks, origin=self.origin)
        object.__setattr__(self, "applied", applied)

    def matches(self, job: JobRecord) -> bool:
        return (
            fnmatchcase(job.queue, self.queue)
            and fnmatchcase(job.endpoint, self.endpoint)
            and (self.host == "*" or any(fnmatchcase(host, self.host) for host in job.hosts))
            and job.ended_at in self.window
        )


class BenchmarkPolicy(NamedTuple):
    """The first matching rule of the site: for jobs with a benchmark only one that overrides."""

    rules: tuple[BenchmarkRule, ...] = ()
    distrust_default: bool = False  # A-REX's HEPSPEC:1.0 counts as none
    # Of jobs before, jura-ng left rows under HEPSPEC 1.0 where it read no benchmark.
    jura_before: Epoch | None = None

    def apply(self, job: JobRecord) -> AppliedBenchmark:
        """What is said about a job.

        One whose own benchmark cannot be read has none unless a rule overrides it: a guess would
        change what it is worth. Formats that need one set it aside; those that say none publish it.
        """
        own = self._own_of(job)
        for rule in self.rules:
            if (rule.override or own is None) and rule.matches(job):
                return rule.applied
        return own or _NOTHING

    def _own_of(self, job: JobRecord) -> AppliedBenchmark | None:
        is_before = self.jura_before is not None and job.ended_at < self.jura_before
        if is_before and not is_read_by_jura(job.benchmark):
            return _JURAS
        own = _own(job.benchmark) if job.benchmark else None
        return None if own is not None and own.arex_default and self.distrust_default else own


@lru_cache(maxsize=4096)
def _own(text: str) -> AppliedBenchmark:
    try:
        benchmark = parse_benchmark(text)
    except Unfit as unfit:
        why = unfit.with_traceback(None)
        return AppliedBenchmark(benchmarks=(), origin="the job", unreadable=why)
    is_default = benchmark == AREX_DEFAULT
    return AppliedBenchmark(benchmarks=(benchmark,), origin="the job", arex_default=is_default)


def parse_benchmark(text: str) -> Benchmark:
    """`TYPE:value`, or with a blank, as A-REX copies it from arc.conf into jobs that never ran.

    Raises: Unfit for an unknown type or a value that is not a positive number.
    """
    kind, colon, value = text.partition(":")
    if not colon:
        kind, _, value = text.strip().replace("\t", " ").partition(" ")
        if not value:
            raise Unfit("benchmark-unreadable", f"benchmark {text!r} is not TYPE:value")
    return make_benchmark(kind, value)


def make_benchmark(kind: str, value: str) -> Benchmark:
    """The benchmark at three decimals. Raises: Unfit unless known and in (0, 9999999.999]."""
    known = KINDS.get(kind.strip().lower())
    if known is None:
        why = f"benchmark type {kind.strip()!r}: APEL knows {', '.join(KINDS.values())}"
        if meant := _ALSO_CALLED.get(kind.strip().lower()):
            why = f"{why}; write {meant} for it"
        raise Unfit("benchmark-unknown-type", why)
    text = value.strip()
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        why = f"benchmark value {text[:_LONGEST_NUMBER]!r} is not a number"
        raise Unfit("benchmark-unreadable", why)
    number = Decimal(text)
    # The range before the rounding: quantize() fails in its own way beyond 28 digits.
    if 0 < number <= _LARGEST:
        number = number.quantize(_THREE_PLACES, rounding=ROUND_HALF_UP)
        if number:
            return Benchmark(kind=known, value=number)
    why = f"benchmark value {text!r} is not between {_THREE_PLACES} and {_LARGEST}"
    raise Unfit("benchmark-range", why)


def is_read_by_jura(text: str) -> bool:
    """Whether jura-ng takes a job's benchmark for one: `TYPE:value` in its usual spelling."""
    kind, colon, value = text.partition(":")
    return kind in _JURA_KINDS and bool(colon) and ":" not in value


class Tariff(NamedTuple):
    """What the charges of one rule have in common. Shared by its jobs."""

    unit: str
    formula: str
    description: str = ""


class Charge(NamedTuple):
    """One job's charge. The amount is finite, and rounded as it is published."""

    amount: Decimal
    tariff: Tariff

    @property
    def text(self) -> str:
        """The amount without exponent and without trailing zeros."""
        return amount_text(self.amount)


class JobEnergy(NamedTuple):
    """What a job took, with what cooling and the like take on top; None is not known.

    `measured_wh` is the part that was measured, the rest is estimated. `meter_rejected`: there is a
    measured value, but it is absurd.
    """

    wh: Decimal | None
    measured_wh: Decimal
    grams: Decimal | None  # of CO2 equivalent
    meter_rejected: bool


class EnergyRules(Protocol):
    """The site's rules for energy."""

    def energy(self, job: JobRecord) -> JobEnergy: ...


class Allocation(NamedTuple):
    """What a project or a VO may use in a period, by the end of its jobs.

    A charge in a unit (projects only), GPU hours, hours of a type of benchmark, or several of them.
    """

    project: str  # '' where it is a VO's
    vo: str
    window: Window
    charge: Decimal | None
    unit: str
    gpu_hours: Decimal | None
    benchmark: str
    benchmark_hours: Decimal | None


class UsedAllocation(NamedTuple):
    """A project's or VO's part of what it was granted in one unit."""

    project: str  # `VO atlas` for a VO's
    window: Window
    unit: str
    granted: Decimal
    used: Decimal

    @property
    def share(self) -> float:
        return float(self.used / self.granted)


class Charging(Protocol):
    """The site's rules for charges, as record policy asks them."""

    def of(self, job: JobRecord) -> Charge | None:
        """None where no rule is for the job, or its formula has no result."""


def amount_text(amount: Decimal) -> str:
    """Digits for people and for records: `2688`, `25.42`; never an exponent."""
    plain = format(amount, "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


class AssessedJob(NamedTuple):
    """What came of the site's rules for a job, as it is kept. Without a rule, `tariff` is None too.

    `amount` and `reason` are both there where a job without a result costs 0.
    """

    run: RunKey
    job_id: JobId
    local_id: str
    ended_at: Epoch
    queue: str
    project: str  # the first of the job's, '' for none
    group: str
    tariff: Tariff | None
    amount: Decimal | None
    reason: str = ""
