"""Which formula is a job's, and its outcome: rules by queue, group and start of the job, rounding.

The names in a formula are those of `scontrol show job` and Slurm's TRES, as in HEAppE.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import combinations
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from publisher.model.job import JobRecord
from publisher.model.rates import Charge, Tariff
from publisher.model.time import Window
from publisher.reporting.charges import heappe
from publisher.reporting.charges.formula import (
    DECIMAL,
    Expression,
    FormulaError,
    NoResult,
    Number,
    Quantity,
    bind,
    leaves,
    parse,
    quotient,
)

DEFAULT_PLACES: Final = 6
MAX_PLACES: Final = 12
TOO_LARGE: Final = Decimal(10) ** 15
_ZERO: Final = Decimal(0)
_WIDE: Final = decimal.Context(prec=60)
_PIECE: Final = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)  # of a pattern
_REMEMBERED: Final = 20_000  # places
OneRule = TypeVar("OneRule", bound="JobRule")


class TimeUnit(StrEnum):
    """What a formula counts time in."""

    SECONDS = "seconds"
    MINUTES = "minutes"
    HOURS = "hours"
    DAYS = "days"


UNIT_S: Final[Mapping[TimeUnit, int]] = {
    TimeUnit.SECONDS: 1,
    TimeUnit.MINUTES: 60,
    TimeUnit.HOURS: 3600,
    TimeUnit.DAYS: 86_400,
}
KIB_PER_GIB: Final = 1024 * 1024


class QuantityKind(StrEnum):
    """What kind of quantity it is; how the two arithmetics read it depends on that."""

    COUNT = "count"
    DURATION = "duration"  # in the time unit
    MOMENT = "moment"  # since 1970, in the time unit, so that EndTime - StartTime is a duration
    SECONDS = "seconds"  # whatever the time unit is
    MEMORY = "memory"  # GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A quantity: its kind, where a job record has it ('' for no source), and how to get it.

    `take` yields None where it is not known, else a count, seconds, or (of memory) KiB.
    """

    measure: QuantityKind
    field: str
    take: Callable[[JobRecord], int | None]


def _read(measure: QuantityKind, name: str) -> Named:
    """A field of the job record."""
    return Named(measure=measure, field=name, take=attrgetter(name))


def _reported(measure: QuantityKind, name: str) -> Named:
    """One that only the source of some batch systems reports; others leave it unknown."""
    return Named(
        measure=measure,
        field=f"quantities: {name}",
        take=lambda job: dict(job.quantities).get(name),
    )


METER: Final = "energy"  # joules, of the quantities that a source reports
_METER_REJECTED: Final = "energy_rejected"  # 1 where they were more than a source keeps
# No node takes more; a meter that says so is broken. It is read at intervals, so a short job may
# have what its neighbours took.
_MOST_WATTS_OF_NODE: Final = 20_000
_READ_EVERY_S: Final = 60


def metered(job: JobRecord) -> tuple[int | None, bool]:
    """Joules, if they were measured and can be; and whether they cannot."""
    quantities = dict(job.quantities)
    joules = quantities.get(METER)
    nodes = job.node_count or len(job.hosts) or 1
    most = _MOST_WATTS_OF_NODE * nodes * (job.wall_s + _READ_EVERY_S)
    if _METER_REJECTED in quantities or (joules is not None and joules > most):
        return None, True
    return joules, False


QUANTITIES: Final[Mapping[str, Named]] = {
    "NumNodes": _read(QuantityKind.COUNT, "node_count"),
    "NumCPUs": _read(QuantityKind.COUNT, "cpu_count"),
    "NumTasks": _reported(QuantityKind.COUNT, "NumTasks"),
    "RunTime": _read(QuantityKind.DURATION, "wall_s"),
    "TimeLimit": _reported(QuantityKind.DURATION, "TimeLimit"),
    "SubmitTime": Named(
        measure=QuantityKind.MOMENT, field="submitted_at", take=lambda job: job.submitted_at or None
    ),
    "StartTime": _read(QuantityKind.MOMENT, "started_at"),
    "EndTime": _read(QuantityKind.MOMENT, "ended_at"),
    "EligibleTime": _reported(QuantityKind.MOMENT, "EligibleTime"),
    "AccrueTime": _reported(QuantityKind.MOMENT, "AccrueTime"),
    "SecsPreSuspend": _reported(QuantityKind.SECONDS, "SecsPreSuspend"),
    "cpu": _read(QuantityKind.COUNT, "cpu_count"),
    "mem": _reported(QuantityKind.MEMORY, "mem"),
    "node": _read(QuantityKind.COUNT, "node_count"),
    "billing": _reported(QuantityKind.COUNT, "billing"),
    METER: Named(
        measure=QuantityKind.COUNT, field="quantities: energy", take=lambda job: metered(job)[0]
    ),
    "gres_gpu": _read(QuantityKind.COUNT, "gpu_count"),
}


def decimal_value(measure: QuantityKind, value: int, unit_s: int) -> Decimal:
    """As formulas of ours have it."""
    match measure:
        case QuantityKind.DURATION | QuantityKind.MOMENT:
            return quotient(value, unit_s)
        case QuantityKind.MEMORY:
            return quotient(value, KIB_PER_GIB)
        case _:
            return Decimal(value)


def heappe_value(measure: QuantityKind, value: int, unit_s: int) -> heappe.Value:
    """As in formulas of HEAppE: times of day and sizes with a letter are no numbers, so 0."""
    match measure:
        case QuantityKind.DURATION:
            return heappe.duration(value, unit_s)
        case QuantityKind.MOMENT | QuantityKind.MEMORY:
            return 0
        case _:
            return heappe.literal(value)


Taking = Callable[[JobRecord], Any]  # a quantity as a formula has it; raises NoResult


class Compatibility(StrEnum):
    """Whose results a formula gives: this project's, or those of the original program."""

    NONE = "none"
    HEAPPE = "heappe"


class OnError(StrEnum):
    """What becomes of a job whose formula has no result."""

    OMIT = "omit"
    ZERO = "zero"


class Rounding(StrEnum):
    """Where an amount goes that lies between two."""

    HALF_UP = "half-up"
    HALF_EVEN = "half-even"
    UP = "up"
    DOWN = "down"


_ROUNDINGS: Final[Mapping[Rounding, str]] = {
    Rounding.HALF_UP: decimal.ROUND_HALF_UP,
    Rounding.HALF_EVEN: decimal.ROUND_HALF_EVEN,
    Rounding.UP: decimal.ROUND_UP,
    Rounding.DOWN: decimal.ROUND_DOWN,
}


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula that was read. `text` identifies it."""

    text: str
    tree: Expression = field(repr=False, compare=False)

    @classmethod
    def read(cls, text: str, compat: Compatibility = Compatibility.NONE) -> Formula:
        """Raises: FormulaError naming the place."""
        tree = parse(text, QUANTITIES)
        if compat is Compatibility.HEAPPE:
            for number in (leaf for leaf in leaves(tree) if isinstance(leaf, Number)):
                try:
                    heappe.read(number.text)
                except NoResult as refused:
                    raise FormulaError(str(refused), text, number.at) from refused
        return cls(text, tree)

    @property
    def quantities(self) -> tuple[str, ...]:
        """What it asks for, each once, in order."""
        names = [leaf.name for leaf in leaves(self.tree) if isinstance(leaf, Quantity)]
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRule:
    """For jobs of some queues, groups and hosts that started in a window. `place` is for people."""

    queues: tuple[str, ...] = ("*",)
    groups: tuple[str, ...] = ("*",)
    hosts: tuple[str, ...] = ("*",)
    valid: Window = Window()  # over the start of a job
    place: str = field(default="records.charges", repr=False, compare=False)

    def is_for(self, queue: str, group: str, hosts: Sequence[str]) -> bool:
        """A job of several hosts is for a rule that names one of them."""
        return (
            _matches(self.queues, queue)
            and _matches(self.groups, group)
            and ("*" in self.hosts or any(_matches(self.hosts, host) for host in hosts))
        )


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, one) for one in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRule(JobRule):
    """One formula, read for the same `compat`. `places` None: as many as the arithmetic has."""

    formula: Formula
    unit: str
    description: str = ""
    time_unit: TimeUnit = TimeUnit.HOURS
    compat: Compatibility = Compatibility.NONE
    places: int | None = DEFAULT_PLACES
    rounding: Rounding = Rounding.HALF_UP
    on_error: OnError = OnError.OMIT
    tariff: Tariff = field(init=False, repr=False, compare=False)
    # Made once a rule, because each job asks for them.
    _value: Callable[[Mapping[str, Any]], Any] = field(init=False, repr=False, compare=False)
    _asked: tuple[tuple[str, Taking], ...] = field(init=False, repr=False, compare=False)
    _step: Decimal = field(init=False, repr=False, compare=False)  # between two amounts

    def __post_init__(self) -> None:
        tariff = Tariff(unit=self.unit, formula=self.formula.text, description=self.description)
        object.__setattr__(self, "tariff", tariff)
        object.__setattr__(self, "_value", self._bound())
        asked = tuple((name, self._taking(name)) for name in self.formula.quantities)
        object.__setattr__(self, "_asked", asked)
        object.__setattr__(self, "_step", Decimal(1).scaleb(-(self.places or 0)))

    def values(self, job: JobRecord) -> dict[str, Any]:
        """The quantities of a job, as the formula has them. Raises: NoResult for an unknown one."""
        return {name: taking(job) for name, taking in self._asked}

    def quantity_rows(self, job: JobRecord) -> list[tuple[str, str, str]]:
        """For people: each quantity's name, value ('' if unknown) and field of the job record."""
        found = []
        for name, taking in self._asked:
            try:
                value = str(taking(job))
            except NoResult:
                value = ""
            found.append((name, value, QUANTITIES[name].field))
        return found

    def amount(self, job: JobRecord) -> Decimal:
        """Raises: NoResult."""
        return self._rounded(self._value(self.values(job)))

    def _bound(self) -> Callable[[Mapping[str, Any]], Any]:
        tree = self.formula.tree
        if self.compat is Compatibility.HEAPPE:
            return bind(tree, heappe.HEAPPE)
        return bind(tree, DECIMAL)

    def _taking(self, name: str) -> Taking:
        quantity, unit_s = QUANTITIES[name], UNIT_S[self.time_unit]
        take, measure = quantity.take, quantity.measure
        read = heappe_value if self.compat is Compatibility.HEAPPE else decimal_value

        def taking(job: JobRecord) -> Any:
            value = take(job)
            if value is None:
                raise NoResult(f"{name} is not known")
            return read(measure, value, unit_s)

        return taking

    def _rounded(self, value: Decimal | float) -> Decimal:
        if isinstance(value, float) and not math.isfinite(value):
            raise NoResult("the result is not a finite number")
        if self.compat is Compatibility.HEAPPE:
            value = Decimal(repr(float(value)))  # the original answers with a binary number
        elif value < 0:
            raise NoResult("the result is negative")
        amount = Decimal(value)
        if not -TOO_LARGE < amount < TOO_LARGE:
            raise NoResult("the result is too large")
        if self.places is not None:
            amount = amount.quantize(self._step, _ROUNDINGS[self.rounding], _WIDE)
        return amount if amount else _ZERO  # never minus zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What came of a job's rule: a charge, or why there is none; both with `on_error: zero`."""

    rule: ChargeRule
    charge: Charge | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules(Generic[OneRule]):
    """Rules of a kind. Of a job's rules the one valid since latest counts; then the last one."""

    rules: tuple[OneRule, ...] = ()
    _by_place: dict[tuple[object, ...], tuple[OneRule, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _asks_hosts: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_asks_hosts", any(rule.hosts != ("*",) for rule in self.rules))

    def rule_for(self, job: JobRecord) -> OneRule | None:
        where = (job.queue, job.local_group, job.hosts if self._asks_hosts else ())
        rules = self._by_place.get(where)
        if rules is None:
            if len(self._by_place) >= _REMEMBERED:
                self._by_place.clear()
            fitting = [rule for rule in reversed(self.rules) if rule.is_for(*where)]
            fitting.sort(
                key=lambda rule: -math.inf if rule.valid.start is None else rule.valid.start,
                reverse=True,
            )
            rules = self._by_place[where] = tuple(fitting)
        began = start_of(job)
        return next((rule for rule in rules if began in rule.valid), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges(Rules[ChargeRule]):
    """The price list of a site."""

    def of(self, job: JobRecord) -> Charge | None:
        assessed = self.assess(job)
        return None if assessed is None else assessed.charge

    def assess(self, job: JobRecord) -> Assessment | None:
        """None where no rule is for the job."""
        rule = self.rule_for(job)
        if rule is None:
            return None
        try:
            return Assessment(rule=rule, charge=Charge(amount=rule.amount(job), tariff=rule.tariff))
        except NoResult as none:
            zero = (
                Charge(amount=_ZERO, tariff=rule.tariff) if rule.on_error is OnError.ZERO else None
            )
            return Assessment(rule=rule, charge=zero, reason=str(none))


def start_of(job: JobRecord) -> int:
    """When a job began; where no source reports it, its wall time before its end."""
    return job.ended_at - job.wall_s if job.started_at is None else job.started_at


def overlaps(rules: Sequence[OneRule]) -> Iterator[tuple[OneRule, OneRule]]:
    """Pairs of rules that are both for some job, the one that counts second."""
    for first, second in combinations(rules, 2):
        names = (
            (first.queues, second.queues),
            (first.groups, second.groups),
            (first.hosts, second.hosts),
        )
        if all(_meet(*both) for both in names) and first.valid.overlaps(second.valid):
            begins = [
                -math.inf if rule.valid.start is None else rule.valid.start
                for rule in (first, second)
            ]
            yield (second, first) if begins[0] > begins[1] else (first, second)


def overlap_notes(rules: Sequence[JobRule]) -> list[str]:
    """What an administrator should know about rules that overlap."""
    return [
        f"{first.place} and {second.place} are both for some jobs: the second counts"
        for first, second in overlaps(rules)
    ]


def _meet(patterns: Sequence[str], others: Sequence[str]) -> bool:
    """Whether some name matches one of each."""
    return any(
        _have_name(_PIECE.findall(one), _PIECE.findall(other))
        for one in patterns
        for other in others
    )


def _have_name(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a name matches both patterns, in pieces; of two character sets that is assumed."""
    places = {(0, 0)}  # in both patterns: where a name can have got to
    ahead = list(places)
    while ahead:
        at, there = ahead.pop()
        here, that = "".join(one[at : at + 1]), "".join(other[there : there + 1])
        if "*" in (here, that):
            ways = [(at + bool(here), there), (at, there + bool(that))]
        else:
            both = bool(here and that) and _share_letter(here, that)
            ways = [(at + both, there + both)]
        ahead += [way for way in ways if way not in places]
        places.update(ways)
    return (len(one), len(other)) in places


def _share_letter(one: str, other: str) -> bool:
    """Whether a character is both; each is one, any (?), or a set ([...])."""
    if "?" in (one, other) or (len(one) > 1 and len(other) > 1):
        return True
    return fnmatchcase(one, other) if len(one) == 1 else fnmatchcase(other, one)
