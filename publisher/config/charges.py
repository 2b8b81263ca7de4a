"""What jobs cost and take and projects may use: `charges`, `power`, `allocations` of `records`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Final

from publisher.config import schema
from publisher.config.schema import Listing, Node, ReadContext, Text, Wrong, YamlBlock
from publisher.model.errors import UsageError
from publisher.model.job import Epoch
from publisher.model.rates import KINDS, Allocation
from publisher.model.time import Window, epoch, fixed_period, iso_epoch
from publisher.reporting.charges.formula import FormulaError
from publisher.reporting.charges.power import CarbonPeriod, CarbonTable, Power, PowerRule
from publisher.reporting.charges.rules import (
    DEFAULT_PLACES,
    MAX_PLACES,
    ChargeRule,
    Charges,
    Compatibility,
    Formula,
    OnError,
    Rounding,
    TimeUnit,
)

# What an attribute of type xsd:token keeps as it is, and what a table of sums bears as a heading.
_UNIT: Final = re.compile(r"[!-~]+(?: [!-~]+)*")
_UNIT_CHARACTERS: Final = 40
_DESCRIPTION_CHARACTERS: Final = 200
_EXAMPLE: Final = "{formula: NumCPUs * RunTime, unit: CPUh}"


_check_patterns: Final = schema.check(
    bool, "is empty, so the rule would apply to no job; leave the key out to apply it to all"
)
_check_unit: Final = schema.check(
    lambda unit: len(unit) <= _UNIT_CHARACTERS and _UNIT.fullmatch(unit) is not None,
    f"{{}} is not a unit; write up to {_UNIT_CHARACTERS} characters of ASCII, such as CPUh",
)
_check_description: Final = schema.check(
    lambda text: len(text) <= _DESCRIPTION_CHARACTERS,
    f"has more than {_DESCRIPTION_CHARACTERS} characters",
)


def _check_places(places: int) -> str | None:
    return None if 0 <= places <= MAX_PLACES else f"{places} is not between 0 and {MAX_PLACES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingKeys:
    """Places behind the point, and how an amount between two is rounded. Places None: not."""

    places: int | None = field(
        metadata={"check": _check_places, "help": "write how many places stay behind the point"}
    )
    mode: Rounding = Rounding.HALF_UP


def _rounding(node: Node, reading: ReadContext) -> RoundingKeys:
    if isinstance(node, YamlBlock):
        return schema.read_block(node, RoundingKeys, reading)
    if isinstance(node, Text) and node.text == "none":
        return RoundingKeys(places=None)
    try:
        places = schema.whole_number(node)
    except Wrong as wrong:
        raise Wrong(f"{wrong}, none, or {{places: 2, mode: half-even}}") from wrong
    if complaint := _check_places(places):
        raise Wrong(complaint)
    return RoundingKeys(places=places)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeKeys:
    """One rule. `partitions` is another word for `queues`, `validity_*` for `valid_*`."""

    formula: str = field(metadata={"help": f"write what a job costs, such as {_EXAMPLE}"})
    unit: str = field(
        metadata={"check": _check_unit, "help": "write the unit of the amount, such as CPUh"}
    )
    description: str = field(default="", metadata={"check": _check_description})
    queues: tuple[str, ...] | None = field(default=None, metadata={"check": _check_patterns})
    partitions: tuple[str, ...] | None = field(default=None, metadata={"check": _check_patterns})
    groups: tuple[str, ...] | None = field(default=None, metadata={"check": _check_patterns})
    valid_from: str | None = None
    valid_to: str | None = None
    validity_from: str | None = None
    validity_to: str | None = None
    time_unit: TimeUnit = TimeUnit.HOURS
    rounding: RoundingKeys | None = field(default=None, metadata={"read": _rounding})
    compat: Compatibility = Compatibility.NONE
    on_error: OnError = OnError.OMIT

    def __post_init__(self) -> None:
        for short, long in (("valid_from", "validity_from"), ("valid_to", "validity_to")):
            if getattr(self, short) is not None and getattr(self, long) is not None:
                raise ValueError(f"has both {short} and {long}; remove one of them")


def read(node: Node, reading: ReadContext) -> Charges | None:
    """One mapping, or a list of rules."""
    entries = node.entries if isinstance(node, Listing) else (node,)
    rules = schema.read_each(entries, lambda entry: _rule(entry, reading), reading)
    return Charges(rules=rules) if rules else None


def _rule(node: Node, reading: ReadContext) -> ChargeRule:
    if isinstance(node, Text):
        raise Wrong(f"is not a mapping; write {_EXAMPLE}")
    keys = schema.read_block(node, ChargeKeys, reading)
    places = None if keys.compat is Compatibility.HEAPPE else DEFAULT_PLACES
    rounding = keys.rounding or RoundingKeys(places=places)
    return ChargeRule(
        formula=_formula(node, keys, reading),
        unit=keys.unit,
        description=keys.description,
        queues=(*(keys.queues or ()), *(keys.partitions or ())) or ("*",),
        groups=keys.groups or ("*",),
        valid=_validity(keys.valid_from or keys.validity_from, keys.valid_to or keys.validity_to),
        time_unit=keys.time_unit,
        compat=keys.compat,
        places=rounding.places,
        rounding=rounding.mode,
        on_error=keys.on_error,
        place=f"{node.place.path}, line {node.place.line}",
    )


def _formula(node: Node, keys: ChargeKeys, reading: ReadContext) -> Formula:
    try:
        return Formula.read(keys.formula, keys.compat)
    except FormulaError as error:
        place = node.keys["formula"].place if isinstance(node, YamlBlock) else node.place
        reading.wrong(place, str(error))
        raise Wrong("") from error


def _validity(first: str | None, last: str | None, *, last_second: bool = True) -> Window:
    """The last month or day counts to its end; a clock time is exact, or has its `last_second` too.

    Raises: Wrong.
    """
    try:
        start = epoch(fixed_period(first).start) if first else None
        end = _behind(last, last_second=last_second) if last else None
    except UsageError as error:
        raise Wrong(str(error)) from error
    if start is not None and end is not None and start >= end:
        raise Wrong(f"valid_from {first} is after valid_to {last}")
    return Window(start=start, end=end)


def _behind(text: str, *, last_second: bool) -> Epoch:
    """The first second that does not belong to the period any more."""
    period = fixed_period(text)
    return Epoch(epoch(period.end) + (last_second and period.start == period.end))


_POWER_EXAMPLE: Final = "{watts_per_core: 6, watts_per_gpu: 300, grams_per_kwh: 28}"
_MOST_CHARACTERS: Final = 10_000_000
_HOUR_S: Final = 3600
_NUMBER: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


_check_number: Final = schema.check(_is_number, "{} is not a number such as 4.5")


def _check_pue(text: str) -> str | None:
    if problem := _check_number(text):
        return problem
    return None if 1 <= Decimal(text) <= 10 else f"{text} is not between 1 and 10"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerKeys:
    """One rule."""

    watts_per_core: str | None = field(default=None, metadata={"check": _check_number})
    watts_per_gpu: str | None = field(default=None, metadata={"check": _check_number})
    pue: str = field(default="1", metadata={"check": _check_pue})
    grams_per_kwh: str | None = field(default=None, metadata={"check": _check_number})
    carbon_file: Path | None = None
    queues: tuple[str, ...] = field(default=("*",), metadata={"check": _check_patterns})
    hosts: tuple[str, ...] = field(default=("*",), metadata={"check": _check_patterns})
    valid_from: str | None = None
    valid_to: str | None = None

    def __post_init__(self) -> None:
        if self.grams_per_kwh is not None and self.carbon_file is not None:
            raise ValueError("has both grams_per_kwh and carbon_file; remove one of them")


def read_power(node: Node, reading: ReadContext) -> Power | None:
    """One mapping, or a list of rules."""
    entries = node.entries if isinstance(node, Listing) else (node,)
    rules = schema.read_each(entries, lambda entry: _power_rule(entry, reading), reading)
    return Power(rules=rules) if rules else None


def _power_rule(node: Node, reading: ReadContext) -> PowerRule:
    if isinstance(node, Text):
        raise Wrong(f"is not a mapping; write {_POWER_EXAMPLE}")
    keys = schema.read_block(node, PowerKeys, reading)
    carbon = None if keys.carbon_file is None else _carbon_table(keys.carbon_file)
    return PowerRule(
        watts_per_core=_decimal(keys.watts_per_core),
        watts_per_gpu=_decimal(keys.watts_per_gpu),
        pue=Decimal(keys.pue),
        grams_per_kwh=_decimal(keys.grams_per_kwh),
        carbon_file=keys.carbon_file,
        carbon=carbon,
        queues=keys.queues,
        hosts=keys.hosts,
        valid=_validity(keys.valid_from, keys.valid_to),
        place=f"{node.place.path}, line {node.place.line}",
    )


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _carbon_table(path: Path) -> CarbonTable:
    """Lines of a month, a day or an hour, and the grams in it. Raises: Wrong."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Wrong(f"carbon_file {path} cannot be read: {why}") from error
    if len(text) > _MOST_CHARACTERS:
        what = f"has more than {_MOST_CHARACTERS:,} characters; keep the years that matter"
        raise Wrong(f"carbon_file {path} {what}")
    lines = enumerate(text.splitlines(), start=1)
    found = sorted(_period(path, number, line) for number, line in lines if _words(line))
    for first, second in pairwise(found):
        if second.start < first.end:
            raise Wrong(f"carbon_file {path}: two lines are for {iso_epoch(second.start)}")
    return CarbonTable(found)


def _words(line: str) -> list[str]:
    return line.partition("#")[0].replace(",", " ").split()


def _period(path: Path, number: int, line: str) -> CarbonPeriod:
    words, where = _words(line), f"carbon_file {path}, line {number}"
    if len(words) != 2 or not _NUMBER.fullmatch(words[1]):
        raise Wrong(f"{where}: is not a time and the grams in it, such as 2026-03-05T14:00 31.5")
    try:
        period = fixed_period(words[0])
    except UsageError as error:
        raise Wrong(f"{where}: {error}") from error
    start, end = epoch(period.start), epoch(period.end)
    if start == end:
        end = Epoch(start + _HOUR_S)
    return CarbonPeriod(start, end, Decimal(words[1]))


_ALLOCATION: Final = "{project: nn9, valid_from: 2026-04, valid_to: 2026-09, gpu_hours: 500}"
_check_amount: Final = schema.check(
    lambda text: _is_number(text) and Decimal(text) > 0, "{} is not a number above 0"
)
_check_benchmark_type: Final = schema.check(
    lambda text: text in KINDS.values(), f"{{}} is none of {', '.join(KINDS.values())}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationKeys:
    """One project's or VO's part in a period."""

    project: str | None = None
    vo: str | None = None
    valid_from: str = field(metadata={"help": "write the first month or day"})
    valid_to: str = field(metadata={"help": "write the last month or day"})
    charge: str | None = field(default=None, metadata={"check": _check_amount})
    unit: str | None = field(default=None, metadata={"check": _check_unit})
    gpu_hours: str | None = field(default=None, metadata={"check": _check_amount})
    benchmark: str | None = field(default=None, metadata={"check": _check_benchmark_type})
    benchmark_hours: str | None = field(default=None, metadata={"check": _check_amount})

    def __post_init__(self) -> None:
        wrong = ""
        if bool(self.project) == bool(self.vo):
            wrong = f"write either project or vo, as in {_ALLOCATION}"
        elif {self.charge, self.gpu_hours, self.benchmark_hours} == {None}:
            wrong = "has none of charge, gpu_hours and benchmark_hours; write what may be used"
        elif self.charge is not None and self.vo:
            wrong = "has charge, which projects have; write gpu_hours or benchmark_hours for a VO"
        elif (self.benchmark_hours is None) != (self.benchmark is None):
            wrong = "write benchmark and benchmark_hours together, or neither"
        elif self.charge is not None and self.unit is None:
            wrong = "has charge and no unit; write the unit of a rule of charges"
        if wrong:
            raise ValueError(wrong)


def read_allocations(node: Node, reading: ReadContext) -> tuple[Allocation, ...]:
    entries = schema.listing(node, f"one allocation a line, as in - {_ALLOCATION}").entries
    return schema.read_each(entries, lambda entry: _allocation(entry, reading), reading)


def _allocation(node: Node, reading: ReadContext) -> Allocation:
    keys = schema.read_block(node, AllocationKeys, reading)
    return Allocation(
        project=keys.project or "",
        vo=keys.vo or "",
        window=_validity(keys.valid_from, keys.valid_to, last_second=False),
        charge=_decimal(keys.charge),
        unit=keys.unit or "",
        gpu_hours=_decimal(keys.gpu_hours),
        benchmark=keys.benchmark or "",
        benchmark_hours=_decimal(keys.benchmark_hours),
    )
