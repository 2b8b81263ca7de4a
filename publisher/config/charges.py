"""The list `charges` of `records`: what jobs cost, by formula, queue, group and the time of their start."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from publisher.config import schema
from publisher.config.schema import Listing, Node, ReadContext, Text, Wrong, YamlBlock
from publisher.model.errors import UsageError
from publisher.model.job import Epoch
from publisher.model.time import Window, epoch, fixed_period
from publisher.reporting.charges.formula import FormulaError
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
    lambda text: len(text) <= _DESCRIPTION_CHARACTERS, f"has more than {_DESCRIPTION_CHARACTERS} characters"
)


def _check_places(places: int) -> str | None:
    return None if 0 <= places <= MAX_PLACES else f"{places} is not between 0 and {MAX_PLACES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingKeys:
    """Places behind the point, and where an amount goes that lies between two. Places None: no rounding at all."""

    places: int | None = field(metadata={"check": _check_places, "help": "write how many places stay behind the point"})
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
    """One rule. `partitions` is another word for `queues`, `validity_from` and `validity_to` for the shorter ones."""

    formula: str = field(metadata={"help": f"write what a job costs, such as {_EXAMPLE}"})
    unit: str = field(metadata={"check": _check_unit, "help": "write the unit of the amount, such as CPUh"})
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
                raise ValueError(f"has both {short} and {long}; take one of them out")


def read(node: Node, reading: ReadContext) -> Charges | None:
    """One mapping, or a list of rules."""
    entries = node.entries if isinstance(node, Listing) else (node,)
    rules = schema.read_each(entries, lambda entry: _rule(entry, reading), reading)
    return Charges(rules=rules) if rules else None


def _rule(node: Node, reading: ReadContext) -> ChargeRule:
    if isinstance(node, Text):
        raise Wrong(f"is not a mapping; write {_EXAMPLE}")
    keys = schema.read_block(node, ChargeKeys, reading)
    rounding = keys.rounding or RoundingKeys(places=None if keys.compat is Compatibility.HEAPPE else DEFAULT_PLACES)
    return ChargeRule(
        formula=_formula(node, keys, reading),
        unit=keys.unit,
        description=keys.description,
        queues=(*(keys.queues or ()), *(keys.partitions or ())) or ("*",),
        groups=keys.groups or ("*",),
        valid=_validity(keys),
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


def _validity(keys: ChargeKeys) -> Window:
    """Both ends belong to it: a month or a day in `valid_to` counts to its end, a clock time includes its second."""
    first, last = keys.valid_from or keys.validity_from, keys.valid_to or keys.validity_to
    try:
        start = epoch(fixed_period(first).start) if first else None
        end = _behind(last) if last else None
    except UsageError as error:
        raise Wrong(str(error)) from error
    if start is not None and end is not None and start >= end:
        raise Wrong(f"valid_from {first} is after valid_to {last}")
    return Window(start=start, end=end)


def _behind(text: str) -> Epoch:
    """The first second that does not belong to the period any more."""
    period = fixed_period(text)
    return Epoch(epoch(period.end) + (period.start == period.end))
