"""From a table of fields to a renderer: one template and one list of steps, made when a format is loaded.

What jobs share (who, where, benchmark) is rendered once for each shared object, and the rules about it are asked then. What
repeats from job to job is rendered once for each set of its values, neighbours together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from publisher.formats.xml import Fragments
from publisher.model.policy import PublishedJob
from publisher.model.quality import BENCHMARK_RULES, WHERE_RULES, WHO_RULES, require

MADE_AT: Final = "\0made at\0"  # stands in a template until the time of making is known
_FEW: Final = 4096


class Of(Enum):
    """What a field is taken from; consecutive fields of one shared object are rendered together, once."""

    RUN = "run"
    WHO = "who"
    WHERE = "where"
    BENCHMARK = "benchmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One element: where its value comes from, how it is written, and the row of the specification.

    `value` gets the object that `of` names. An optional element whose text comes out empty is left out. `hangs_on` names the
    values of a published job by which it is known, for one that has few different ones.
    """

    row: str
    name: str
    inside: str = ""
    of: Of = Of.RUN
    value: Callable[[Any], Any]
    write: Callable[[Any], str]  # yields escaped text
    form: str = "%s"
    attributes: tuple[tuple[str, str | Callable[[Any], str]], ...] = ()
    value_in: str = ""  # the attribute that holds the value; the element is then empty
    mandatory: bool = False
    each: bool = False  # the value is a tuple: one element for each
    hangs_on: tuple[str, ...] = ()  # such as `job.hosts`
    whole: bool = False  # `write` yields the element itself, attributes and all
    rare: bool = False  # few jobs have it: `Planner.plans` makes a plan without it
    looks: str = ""  # what is written, as a regular expression, where it is less than the writer may yield (form.py)


Step = tuple[Callable[[PublishedJob], Any], Callable[[Any], str] | None]

# Where a shared object is found, and what it must pass before it is rendered. The first group of each asks.
_SHARED: Final[dict[Of, tuple[Callable[[PublishedJob], object], tuple[Any, ...]]]] = {
    Of.WHO: (lambda job: job.who, WHO_RULES),
    Of.WHERE: (lambda job: job.where, WHERE_RULES),
    Of.BENCHMARK: (lambda job: job.benchmark, BENCHMARK_RULES),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`template` has one %s for each step: where its value is taken, and how it is written if not as it is."""

    template: str
    steps: tuple[Step, ...]

    def made(self, created: str) -> str:
        """The template of records made at that time."""
        return self.template.replace(MADE_AT, created)

    def fill(self, template: str, job: PublishedJob) -> str:
        """One record. Raises: Unfit when a rule about what it shares with others, or a writer, says so."""
        return template % tuple([take(job) if write is None else write(take(job)) for take, write in self.steps])


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Makes plans for documents whose attributes carry `prefix` and whose attribute values `attribute` escapes."""

    prefix: str
    attribute: Callable[[str], str]

    def plans(self, record: str, fields: Sequence[Field]) -> tuple[Plan, Plan]:
        """The plan of most jobs, and that of those which have something rare: each step costs every job 100 ns."""
        return self.plan(record, [field for field in fields if not field.rare]), self.plan(record, fields)

    def plan(self, record: str, fields: Iterable[Field]) -> Plan:
        template = [f"<{record}>"]
        steps: list[Step] = []
        container = ""
        for (of, inside, repeats), group in groupby(
            fields, key=lambda field: (field.of, field.inside, bool(field.hangs_on))
        ):
            if inside != container:
                template += [f"</{container}>" if container else "", f"<{inside}>" if inside else ""]
                container = inside
            if repeats:
                template.append("%s")
                steps.append((self._repeated(tuple(group)), None))
            elif of is Of.RUN:
                for field in group:
                    slot, step = self._step(field)
                    template.append(slot)
                    steps.append(step)
            else:
                take, rules = _SHARED[of]
                template.append("%s")
                steps.append((take, Fragments(self._group(tuple(group), rules))))
        template.append(f"</{container}></{record}>" if container else f"</{record}>")
        return Plan(template="".join(template), steps=tuple(steps))

    def _step(self, field: Field) -> tuple[str, Step]:
        """A mandatory element stands in the template and its slot is the text; an optional one is the slot."""
        attributes = [(name, text.replace("%", "%%")) for name, text in self._said(field, None)]
        shell = "%s" if field.whole else self.element(field, attributes, "%s")
        required = field.mandatory and not field.each
        if not required:
            return "%s", (field.value, _optional(field, shell))
        return shell, (field.value, None if field.write is str else field.write)  # the template writes numbers itself

    def _repeated(self, fields: tuple[Field, ...]) -> Callable[[PublishedJob], str]:
        """Consecutive elements by their values: one look-up instead of as many steps."""
        steps = [self._step(field) for field in fields]
        plan = Plan(template="".join(slot for slot, _ in steps), steps=tuple(step for _, step in steps))
        take = attrgetter(*dict.fromkeys(path for field in fields for path in field.hangs_on))
        known: dict[Any, str] = {}

        def fill(job: PublishedJob) -> str:
            values = take(job)
            text = known.get(values)
            if text is None:
                text = plan.fill(plan.template, job)
                if len(known) >= _FEW:
                    known.clear()
                known[values] = text
            return text

        return fill

    def _group(self, fields: tuple[Field, ...], rules: tuple[Any, ...]) -> Callable[[Any], str]:
        def render(subject: object) -> str:
            require(rules, subject)
            elements = []
            for field in fields:
                attributes = self._said(field, subject)
                said = field.value(subject)
                elements += [
                    self.element(field, attributes, field.write(one)) for one in (said if field.each else (said,))
                ]
            return "".join(elements)

        return render

    def _said(self, field: Field, subject: object) -> list[tuple[str, str]]:
        """The attributes with their texts, escaped."""
        said = [(name, text if isinstance(text, str) else text(subject)) for name, text in field.attributes]
        return [(name, text if text == MADE_AT else self.attribute(text)) for name, text in said]

    def element(self, field: Field, attributes: Iterable[tuple[str, str]], text: str) -> str:
        """The whole element around escaped texts; '' for an optional one without text."""
        if not text and not field.mandatory:
            return ""
        opening = f"<{field.name}" + "".join([f' {self.prefix}:{name}="{said}"' for name, said in attributes])
        if field.value_in:
            return f'{opening} {self.prefix}:{field.value_in}="{text}"/>'
        return f"{opening}>{field.form % text}</{field.name}>" if text else f"{opening}/>"


def _optional(field: Field, shell: str) -> Callable[[Any], str]:
    write = field.write
    if field.each:
        return lambda several: "".join([shell % text for text in map(write, several) if text])

    def one(value: Any) -> str:
        text = write(value)
        return shell % text if text else ""

    return one
