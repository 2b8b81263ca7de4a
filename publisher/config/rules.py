"""The two ordered lists of `records`: benchmark rules and VO rules. The first one that matches a job counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from publisher.config.yaml import schema
from publisher.config.yaml.schema import ReadContext, Wrong, read_block
from publisher.config.yaml.tree import Listing, Node, Text, nearest
from publisher.model.errors import Unfit, UsageError
from publisher.model.identity import VO_RULE_FIELDS, VoRule
from publisher.model.rates import Benchmark, BenchmarkRule, make_benchmark
from publisher.model.time import fixed_period, window


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkKeys:
    """One value, or one rule of several."""

    type: str | None = None
    value: str | None = None
    benchmarks: tuple[Benchmark, ...] = field(
        default=(), metadata={"read": lambda node, reading: _benchmarks(node, reading)}
    )
    queue: str = "*"
    endpoint: str = "*"
    host: str = "*"
    from_: str | None = None
    until: str | None = None
    override: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBenchmark:
    """An entry of `benchmarks`."""

    type: str
    value: str


def _check_field(name: str) -> str | None:
    if name in VO_RULE_FIELDS:
        return None
    return f"{schema.quoted(name)} is not a field of a job; {nearest(name, VO_RULE_FIELDS)}"


def _check_word(text: str) -> str | None:
    return "must be one word without blanks" if not text or " " in text else None


def _check_group(group: str) -> str | None:
    return None if group.startswith("/") else f"{schema.quoted(group)} must begin with a slash, as in /atlas/de"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoRuleKeys:
    """One rule of `vo_rules`."""

    field_: str = field(metadata={"check": _check_field, "help": f"write one of {', '.join(VO_RULE_FIELDS)}"})
    pattern: str = "*"
    vo: str = field(metadata={"check": _check_word, "help": "write the VO of the jobs that match"})
    group: str | None = field(default=None, metadata={"check": _check_group})
    role: str | None = None
    override: bool = False


def benchmark_rules(node: Node, reading: ReadContext) -> tuple[BenchmarkRule, ...]:
    """One mapping, or a list of rules."""
    if not isinstance(node, Listing):
        return (_benchmark_rule(node, node.place.path, reading),)
    rules = []
    for number, entry in enumerate(node.entries, start=1):
        try:
            rules.append(_benchmark_rule(entry, f"{node.place.path}, rule {number}", reading))
        except Wrong as wrong:
            if str(wrong):
                reading.wrong(entry.place, str(wrong))
    if len(rules) != len(node.entries):
        raise Wrong("")
    return tuple(rules)


def _benchmark_rule(node: Node, origin: str, reading: ReadContext) -> BenchmarkRule:
    if isinstance(node, Text):
        raise Wrong("is not a mapping; write {type: HEPscore23, value: 11.5}")
    keys = read_block(node, BenchmarkKeys, reading)
    given = [key for key in (keys.type, keys.value) if key is not None]
    if bool(given) == bool(keys.benchmarks):
        raise Wrong("needs either type and value, or a list of them under benchmarks")
    if len(given) == 1:
        raise Wrong("needs both type and value, such as {type: HEPscore23, value: 11.5}")
    benchmarks = keys.benchmarks or (_benchmark(*given),)
    try:
        # As on the command line: a month or a day in `until` ends at its end.
        valid = window(
            fixed_period(keys.from_).start if keys.from_ else None,
            fixed_period(keys.until).end if keys.until else None,
        )
    except UsageError as error:
        raise Wrong(str(error).replace("--from", "from").replace("--to", "until")) from error
    return BenchmarkRule(
        benchmarks=benchmarks,
        queue=keys.queue,
        endpoint=keys.endpoint,
        host=keys.host,
        window=valid,
        override=keys.override,
        origin=origin,
    )


def _benchmarks(node: Node, reading: ReadContext) -> tuple[Benchmark, ...]:
    made = []
    for entry in schema.listing(node, "[{type: HEPscore23, value: 11.5}]").entries:
        one = read_block(entry, OneBenchmark, reading)
        made.append(_benchmark(one.type, one.value))
    kinds = [benchmark.kind for benchmark in made]
    if len(set(kinds)) != len(kinds):
        raise Wrong("holds two values of one type")
    return tuple(made)


def _benchmark(kind: str, value: str) -> Benchmark:
    try:
        return make_benchmark(kind, value)
    except Unfit as unfit:
        raise Wrong(unfit.reason) from unfit


def vo_rules(node: Node, reading: ReadContext) -> tuple[VoRule, ...]:
    rules = []
    entries = schema.listing(node, "one rule a line, as in - {field: queue, pattern: atlas*, vo: atlas}").entries
    for entry in entries:
        try:
            keys = read_block(entry, VoRuleKeys, reading)
        except Wrong as wrong:
            if str(wrong):
                reading.wrong(entry.place, str(wrong))
            continue
        rules.append(
            VoRule(
                field=keys.field_,
                pattern=keys.pattern,
                vo=keys.vo,
                group=keys.group,
                role=_role(keys.role),
                override=keys.override,
            )
        )
    if len(rules) != len(entries):
        raise Wrong("")
    return tuple(rules)


def _role(text: str | None) -> str | None:
    """`production`, `Role=production` and `/Role=production` are one: the spelling that APEL derives from FQANs."""
    return "Role=" + text.removeprefix("/").removeprefix("Role=") if text else None
