"""From a table of fields to a renderer: constant texts and steps between them, prepared when a
format is loaded.

What jobs share (user, place, benchmark) is rendered once, and checked against its rules then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

from publisher.formats.rules import Rule, require
from publisher.formats.xml.text import RenderedParts
from publisher.model.published import PublishedJob

MADE_AT: Final = "\0made at\0"  # is in a template until the time of making is known
_VALUE: Final = "\0value\0"  # is in an element until it is taken apart there
_MOST_USERS: Final = 1_000


class Scope(Enum):
    """What a field is from; consecutive fields of a shared object are rendered once, together.

    What is of a user is taken from the whole `PublishedJob`: who it is, the local account and the
    projects.
    """

    RUN = "run"
    USER = "user"
    WHERE = "where"
    BENCHMARK = "benchmark"


class Field(NamedTuple):
    """One element: where its value comes from, how it is written, and the row of the specification.

    `value` gets the object that `of` names. An optional element whose text comes out empty is left
    out.
    """

    row: str
    name: str
    value: Callable[[Any], Any]
    write: Callable[[Any], str]  # yields escaped text
    inside: str = ""
    of: Scope = Scope.RUN
    form: str = "%s"
    attributes: tuple[tuple[str, str | Callable[[Any], str]], ...] = ()
    value_in: str = ""  # the attribute that holds the value; the element is then empty
    mandatory: bool = False
    each: bool = False  # the value is a tuple: one element for each
    whole: bool = False  # `write` yields the element itself, attributes and all
    pattern: str = (
        # What is written, as a regular expression, where it is less than the writer may yield
        # (pattern.py)
        ""
    )


class Part(NamedTuple):
    """A part of a record that differs from job to job."""

    of: Scope
    write: Callable[[PublishedJob], str]


class Template:
    """How records are written: constant texts, and parts between them."""

    def __init__(self, parts: Sequence[str | Part]) -> None:
        self._parts = list(parts)
        self._texts = [part if isinstance(part, str) else "" for part in parts]
        self._steps = [(at, part.write) for at, part in enumerate(parts) if isinstance(part, Part)]

    def begin(self, created: str) -> None:
        """From now on records are made at that time."""
        self._texts = [
            part.replace(MADE_AT, created) if isinstance(part, str) else "" for part in self._parts
        ]

    def fill(self, job: PublishedJob) -> str:
        """Return one record.

        Raises: Unfit when a rule about what it shares with others, or a writer, says so.
        """
        texts = self._texts.copy()
        for at, write in self._steps:
            texts[at] = write(job)
        return "".join(texts)


class TemplateCompiler(NamedTuple):
    """Makes templates for documents with attributes of a `prefix` and an `attribute` escape.

    `rules` are what a shared object must pass before it is rendered.
    """

    prefix: str
    attribute: Callable[[str], str]
    rules: Mapping[Scope, tuple[Rule[Any], ...]]

    def plan(self, record: str, fields: Sequence[Field]) -> Template:
        parts: list[str | Part] = [f"<{record}>"]
        container = ""
        for (of, inside), group in groupby(fields, key=lambda field: (field.of, field.inside)):
            if inside != container:
                parts += [f"</{container}>" if container else "", f"<{inside}>" if inside else ""]
                container = inside
            if of is Scope.RUN:
                parts += [part for field in group for part in self._step(field)]
            else:
                parts.append(shared_part(of, self.rules.get(of, ()), self._group(tuple(group))))
        if container:
            parts.append(f"</{container}>")
        parts.append(f"</{record}>")
        return Template(list(_joined(parts)))

    def _step(self, field: Field) -> tuple[str, Part, str]:
        """What is before a value, the value, and what is after it; optional elements alone."""
        shell = (
            _VALUE if field.whole else self.element(field, self._attributes(field, None), _VALUE)
        )
        before, _, after = shell.partition(_VALUE)
        value, write = field.value, field.write
        if field.mandatory and not field.each:
            return before, Part(Scope.RUN, lambda job: write(value(job))), after
        optional = _optional(field, before, after)
        return "", Part(Scope.RUN, lambda job: optional(value(job))), ""

    def _group(self, fields: tuple[Field, ...]) -> Callable[[Any], str]:
        """Consecutive elements of one object."""

        def render(subject: object) -> str:
            elements = []
            for field in fields:
                attributes = self._attributes(field, subject)
                value = field.value(subject)
                elements += [
                    self.element(field, attributes, field.write(one))
                    for one in (value if field.each else (value,))
                ]
            return "".join(elements)

        return render

    def _attributes(self, field: Field, subject: object) -> list[tuple[str, str]]:
        """The attributes with their texts, escaped."""
        written = []
        for name, text in field.attributes:
            text = text if isinstance(text, str) else text(subject)
            written.append((name, text if text == MADE_AT else self.attribute(text)))
        return written

    def element(self, field: Field, attributes: Iterable[tuple[str, str]], text: str) -> str:
        """The whole element around escaped texts; '' for an optional one without text."""
        if not text and not field.mandatory:
            return ""
        written = [f' {self.prefix}:{name}="{text}"' for name, text in attributes]
        opening = f"<{field.name}{''.join(written)}"
        if field.value_in:
            return f'{opening} {self.prefix}:{field.value_in}="{text}"/>'
        return f"{opening}>{field.form % text}</{field.name}>" if text else f"{opening}/>"


def shared_part(of: Scope, rules: tuple[Rule[Any], ...], render: Callable[[Any], str]) -> Part:
    """A part that jobs of a user, place or benchmark share: it is checked and rendered once."""
    if of is Scope.USER:
        return Part(of, _of_user(rules, render))

    def checked(subject: object) -> str:
        require(rules, subject)
        return render(subject)

    take, fragments = attrgetter(of.value), RenderedParts(checked)
    return Part(of, lambda job: fragments(take(job)))


def _of_user(
    rules: tuple[Rule[Any], ...], render: Callable[[PublishedJob], str]
) -> Callable[[PublishedJob], str]:
    # Who it is is held, so that its id cannot come to mean another.
    known: dict[tuple[object, ...], tuple[str, object]] = {}

    def write(job: PublishedJob) -> str:
        at = id(job.who), job.local_user, job.local_group, job.projects
        found = known.get(at)
        if found is None:
            require(rules, job.who)
            if len(known) >= _MOST_USERS:
                known.clear()
            found = known[at] = render(job), job.who
        return found[0]

    return write


def _joined(parts: Iterable[str | Part]) -> Iterator[str | Part]:
    """The parts with consecutive texts in one."""
    for constant, group in groupby(parts, key=lambda part: isinstance(part, str)):
        if constant:
            yield "".join(map(str, group))
        else:
            yield from group


def _optional(field: Field, before: str, after: str) -> Callable[[Any], str]:
    write = field.write
    if field.each:
        return lambda values: "".join(
            [f"{before}{one}{after}" for one in map(write, values) if one]
        )
    if field.whole:
        return write

    def one(value: Any) -> str:
        text = write(value)
        return f"{before}{text}{after}" if text else ""

    return one
