"""Benchmarks: what one core second is worth, from the job itself or from what the site configured."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from publisher.errors import Unfit
from publisher.model.job import JobRecord
from publisher.model.selection import Window

# APEL knows these three, in any case; everything else rejects the message (apel facts, section 4.1).
KINDS: Final = {"si2k": "Si2k", "hepspec": "HEPSPEC", "hepscore23": "HEPscore23"}
_THREE_PLACES: Final = Decimal("0.001")
_LARGEST: Final = Decimal("9999999.999")  # decimal(10,3) at the server


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark as the server keeps it: type in its usual spelling, value at three decimals."""

    kind: str
    value: Decimal

    @property
    def text(self) -> str:
        """The value without trailing zeros: `10.50` and `10.5` are one."""
        plain = format(self.value, "f")
        return plain.rstrip("0").rstrip(".") if "." in plain else plain


AREX_DEFAULT: Final = Benchmark(kind="HEPSPEC", value=Decimal("1.000"))
"""What A-REX writes into a job where the site configured no benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRule:
    """Benchmarks for the jobs it matches: shell patterns over queue, endpoint URL and host, and dates by end time."""

    benchmarks: tuple[Benchmark, ...]
    queue: str = "*"
    endpoint: str = "*"
    host: str = "*"
    window: Window = Window()
    origin: str = "records.benchmark"

    def matches(self, job: JobRecord) -> bool:
        return (
            fnmatchcase(job.queue, self.queue)
            and fnmatchcase(job.endpoint, self.endpoint)
            and (self.host == "*" or any(fnmatchcase(host, self.host) for host in job.hosts))
            and job.ended_at in self.window
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedBenchmark:
    """The benchmarks said about a job, the first one the main one; none when nothing is known."""

    benchmarks: tuple[Benchmark, ...]
    origin: str
    arex_default: bool = False  # A-REX's own HEPSPEC:1.0, sent but counted and reported


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPolicy:
    """The job's own benchmark first, then the site's rules in order, else none."""

    rules: tuple[BenchmarkRule, ...] = ()
    distrust_default: bool = False  # A-REX's HEPSPEC:1.0 counts as none

    def apply(self, job: JobRecord) -> AppliedBenchmark:
        """Raises: Unfit when the job carries a benchmark that cannot be read; a guess would change what it is worth."""
        if job.benchmark:
            own = parse_benchmark(job.benchmark)
            arex_default = own == AREX_DEFAULT
            if not (arex_default and self.distrust_default):
                return AppliedBenchmark(benchmarks=(own,), origin="the job", arex_default=arex_default)
        for rule in self.rules:
            if rule.matches(job):
                return AppliedBenchmark(benchmarks=rule.benchmarks, origin=rule.origin)
        return AppliedBenchmark(benchmarks=(), origin="nothing configured matches")


@lru_cache(maxsize=4096)
def parse_benchmark(text: str) -> Benchmark:
    """`TYPE:value` as A-REX writes it. Raises: Unfit for an unknown type or a value that is no positive number."""
    kind, colon, value = text.partition(":")
    if not colon:
        raise Unfit("benchmark-unreadable", f"benchmark {text!r} is not TYPE:value")
    return make_benchmark(kind, value)


def make_benchmark(kind: str, value: str) -> Benchmark:
    """Raises: Unfit for an unknown type, or a value that is not a plain number in (0, 9999999.999]."""
    known = KINDS.get(kind.strip().lower())
    if known is None:
        raise Unfit(
            "benchmark-unknown-type", f"benchmark type {kind.strip()!r}: APEL knows {', '.join(KINDS.values())}"
        )
    try:
        number = Decimal(value.strip())
    except InvalidOperation:
        raise Unfit("benchmark-unreadable", f"benchmark value {value.strip()!r} is not a number") from None
    if not number.is_finite() or number > _LARGEST:
        raise Unfit("benchmark-range", f"benchmark value {value.strip()!r} is not in (0, {_LARGEST}]")
    number = number.quantize(_THREE_PLACES, rounding=ROUND_HALF_UP)
    if number <= 0:
        raise Unfit("benchmark-range", f"benchmark value {value.strip()!r} is not in (0, {_LARGEST}]")
    return Benchmark(kind=known, value=number)
