"""From a table of fields to a renderer: constant texts and steps between them, prepared when a
format is loaded.

What jobs share (user, place, benchmark) is rendered once per shared object, and checked against its
rules then. Values that repeat from job to job are rendered once per distinct set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from publisher.formats.rules import Rule, require
from publisher.formats.xml.text import RenderedParts
from publisher.model.policy import PublishedJob

MADE_AT: Final = "\0made at\0"  # is in a template until the time of making is known
_VALUE: Final = "\0value\0"  # is in an element until it is taken apart there
_FEW: Final = 4096
_MAX_SKELETONS: Final = 500  # of some 2 kB


class Scope(Enum):
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
    of: Scope = Scope.RUN
    value: Callable[[Any], Any]
    write: Callable[[Any], str]  # yields escaped text
    form: str = "%s"
    attributes: tuple[tuple[str, str | Callable[[Any], str]], ...] = ()
    value_in: str = ""  # the attribute that holds the value; the element is then empty
    mandatory: bool = False
    each: bool = False  # the value is a tuple: one element for each
    depends_on: tuple[str, ...] = ()  # such as `job.status`
    varied: bool = (
        False  # what it depends on has too many values to be part of a cached skeleton: users, projects, hosts
    )
    whole: bool = False  # `write` yields the element itself, attributes and all
    rare: bool = False  # few jobs have it: `TemplateCompiler.plans` makes a plan without it
    pattern: str = (
        ""  # what is written, as a regular expression, where it is less than the writer may yield (pattern.py)
    )


Getter = Callable[[PublishedJob], Any]
Writer = Callable[[Any], str]

# Where a shared object is found.
_SHARED: Final[dict[Scope, Getter]] = {
    Scope.WHO: lambda job: job.who,
    Scope.WHERE: lambda job: job.where,
    Scope.BENCHMARK: lambda job: job.benchmark,
}


_IN_SKELETON: Final = frozenset({Scope.WHERE.value, Scope.BENCHMARK.value})


class Placeholder(NamedTuple):
    """The place of a value that is the job's own."""

    take: Getter
    write: Writer


Part = str | Placeholder | Getter  # constant text, a job's own value, or text that many jobs share


class Template:
    """How records are written: what a job has for itself, put into its skeleton.

    A skeleton is what all jobs of one place, outcome and so on have in common, made once: a site has some hundred of them in
    a month. So a record takes a third fewer steps (hot path). Much of them is waiting for memory: therefore texts are
    beside each other in it, constant ones for all skeletons, and are joined with the job's own.
    """

    def __init__(self, parts: Sequence[Part], depends_on: Iterable[str]) -> None:
        """`depends_on`: the values of a job by which its skeleton is known, beside its place and benchmark."""
        self._parts = self._filled = list(_joined(parts))
        self._steps = [
            (at, part.take, part.write) for at, part in enumerate(self._parts) if isinstance(part, Placeholder)
        ]
        self._values = attrgetter(*dict.fromkeys(depends_on))
        # The shared objects are held, so that their ids cannot come to mean others.
        self._skeletons: dict[tuple[Any, ...], tuple[list[str], tuple[object, ...]]] = {}

    def __len__(self) -> int:
        return len(self._skeletons)

    def begin(self, created: str) -> None:
        """From now on records are made at that time."""
        self._filled = [part.replace(MADE_AT, created) if isinstance(part, str) else part for part in self._parts]
        self._skeletons.clear()

    def fill(self, job: PublishedJob) -> str:
        """One record. Raises: Unfit when a rule about what it shares with others, or a writer, says so."""
        shared = where, benchmark = job.where, job.benchmark
        known_by = id(where), id(benchmark), self._values(job)
        known = self._skeletons.get(known_by)
        if known is None:
            if len(self._skeletons) >= _MAX_SKELETONS:
                self._skeletons.clear()
            known = self._skeletons[known_by] = self._skeleton(job), shared
        texts = known[0].copy()
        for at, take, write in self._steps:
            texts[at] = write(take(job))
        return "".join(texts)

    def _skeleton(self, job: PublishedJob) -> list[str]:
        """All texts in their order, with room for the job's own."""
        return [
            part if isinstance(part, str) else "" if isinstance(part, Placeholder) else part(job)
            for part in self._filled
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCompiler:
    """Makes templates for documents whose attributes carry `prefix` and whose attribute values `attribute` escapes.

    `rules` are what a shared object must pass before it is rendered.
    """

    prefix: str
    attribute: Callable[[str], str]
    rules: Mapping[Scope, tuple[Rule[Any], ...]]

    def plans(self, record: str, fields: Sequence[Field]) -> tuple[Template, Template]:
        """The plan of most jobs, and that of those which have something rare: each step costs every job 100 ns."""
        return self.plan(record, [field for field in fields if not field.rare]), self.plan(record, fields)

    def plan(self, record: str, fields: Sequence[Field]) -> Template:
        parts: list[Part] = [f"<{record}>"]
        container = ""
        for (of, inside, repeats, varied), group in groupby(fields, key=_rendered_with):
            if inside != container:
                parts += [f"</{container}>" if container else "", f"<{inside}>" if inside else ""]
                container = inside
            if of is Scope.RUN and not repeats:
                parts += [part for field in group for part in self._step(field)]
            else:
                parts.append(self._repeated(of, tuple(group), varied=bool(varied)))
        parts.append(f"</{container}></{record}>" if container else f"</{record}>")
        depends_on = [path for field in fields if not field.varied for path in field.depends_on]
        return Template(parts, [path for path in depends_on if path.partition(".")[0] not in _IN_SKELETON])

    def _repeated(self, of: Scope, fields: tuple[Field, ...], *, varied: bool) -> Placeholder | Getter:
        """Consecutive elements that many jobs share, each text rendered once."""
        if of is Scope.RUN:
            remembered = self._remembered(fields)
            return Placeholder(take=remembered, write=str) if varied else remembered
        shared = self._shared(of, fields)
        # There are too many users to go into a skeleton with the rest.
        return Placeholder(take=shared, write=str) if of is Scope.WHO else shared

    def _step(self, field: Field) -> tuple[str, Placeholder, str]:
        """What is before a value, the value, and what is after it: of an optional element nothing but the value."""
        shell = _VALUE if field.whole else self.element(field, self._attributes(field, None), _VALUE)
        before, _, after = shell.partition(_VALUE)
        if field.mandatory and not field.each:
            return before, Placeholder(take=field.value, write=field.write), after
        return "", Placeholder(take=field.value, write=_optional(field, before, after)), ""

    def _remembered(self, fields: tuple[Field, ...]) -> Callable[[PublishedJob], str]:
        """Consecutive elements by the values that they hang on: one look-up instead of as many steps."""
        steps = [self._step(field) for field in fields]
        take = attrgetter(*dict.fromkeys(path for field in fields for path in field.depends_on))
        known: dict[Any, str] = {}

        def fill(job: PublishedJob) -> str:
            values = take(job)
            text = known.get(values)
            if text is None:
                if len(known) >= _FEW:
                    known.clear()
                text = "".join([f"{before}{slot.write(slot.take(job))}{after}" for before, slot, after in steps])
                known[values] = text
            return text

        return fill

    def _shared(self, of: Scope, fields: tuple[Field, ...]) -> Callable[[PublishedJob], str]:
        """Consecutive elements of a shared object."""
        take, rules = _SHARED[of], self.rules.get(of, ())
        fragments = RenderedParts(self._group(fields, rules))
        return lambda job: fragments(take(job))

    def _group(self, fields: tuple[Field, ...], rules: tuple[Any, ...]) -> Callable[[Any], str]:
        def render(subject: object) -> str:
            require(rules, subject)
            elements = []
            for field in fields:
                attributes = self._attributes(field, subject)
                value = field.value(subject)
                elements += [
                    self.element(field, attributes, field.write(one)) for one in (value if field.each else (value,))
                ]
            return "".join(elements)

        return render

    def _attributes(self, field: Field, subject: object) -> list[tuple[str, str]]:
        """The attributes with their texts, escaped."""
        attributes = [(name, text if isinstance(text, str) else text(subject)) for name, text in field.attributes]
        return [(name, text if text == MADE_AT else self.attribute(text)) for name, text in attributes]

    def element(self, field: Field, attributes: Iterable[tuple[str, str]], text: str) -> str:
        """The whole element around escaped texts; '' for an optional one without text."""
        if not text and not field.mandatory:
            return ""
        opening = f"<{field.name}" + "".join([f' {self.prefix}:{name}="{text}"' for name, text in attributes])
        if field.value_in:
            return f'{opening} {self.prefix}:{field.value_in}="{text}"/>'
        return f"{opening}>{field.form % text}</{field.name}>" if text else f"{opening}/>"


def _rendered_with(field: Field) -> tuple[Scope, str, bool, tuple[str, ...]]:
    """What consecutive fields that are rendered together have in common."""
    return field.of, field.inside, bool(field.depends_on), field.depends_on if field.varied else ()


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts with consecutive texts in one."""
    for constant, group in groupby(parts, key=lambda part: isinstance(part, str)):
        if constant:
            yield "".join(map(str, group))
        else:
            yield from group


def _optional(field: Field, before: str, after: str) -> Writer:
    write = field.write
    if field.each:
        return lambda several: "".join([f"{before}{text}{after}" for text in map(write, several) if text])
    if field.whole:
        return write

    def one(value: Any) -> str:
        text = write(value)
        return f"{before}{text}{after}" if text else ""

    return one
