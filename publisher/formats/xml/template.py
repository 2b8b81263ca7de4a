"""From a table of fields to the function that renders a record, compiled when a format is loaded.

What jobs share (user, account, place, benchmark, hosts) is rendered once, and checked then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from publisher.formats.compiled import (
    MADE_AT,
    Escapes,
    Fill,
    Own,
    Piece,
    Scope,
    Shared,
    Written,
    renderer,
)
from publisher.formats.rules import Rule, require

_VALUE = "\0value\0"  # is in an element until it is taken apart there


class Field(NamedTuple):
    """One element: where its value comes from, how it is written, and the row of the specification.

    Of what jobs share `value` gets the object that `of` names; of the run itself it is an
    expression over `job` and `run`. An optional element whose text comes out empty is left out.
    """

    row: str
    name: str
    value: str | Callable[[Any], Any]
    write: Callable[[Any], str] | Written  # yields escaped text
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


class TemplateCompiler(NamedTuple):
    """Makes renderers of documents with attributes of a `prefix` and an `attribute` escape.

    `rules` are what a shared object must pass before it is rendered. `names`: functions that the
    fields' expressions use.
    """

    prefix: str
    attribute: Callable[[str], str]
    rules: Mapping[Scope, tuple[Rule[Any], ...]]
    escapes: Escapes
    names: Mapping[str, object]

    def plan(self, record: str, fields: Sequence[Field]) -> Fill:
        """Return the function that renders a record of these fields."""
        return renderer(list(self._pieces(record, fields)), self.escapes, self.names)

    def _pieces(self, record: str, fields: Sequence[Field]) -> Iterator[Piece]:
        yield f"<{record}>"
        container = ""
        for (of, inside), group in groupby(fields, key=lambda field: (field.of, field.inside)):
            if inside != container:
                yield f"</{container}>" if container else ""
                yield f"<{inside}>" if inside else ""
                container = inside
            if of is Scope.RUN:
                yield from map(self._own, group)
            else:
                yield shared(of, self.rules.get(of, ()), self._group(tuple(group)))
        if container:
            yield f"</{container}>"
        yield f"</{record}>"

    def _own(self, field: Field) -> Own:
        """Return the value of a run with what is before and after it."""
        before, after = self._around(field)
        return Own(str(field.value), field.write, before, after, field.mandatory)

    def _around(self, field: Field) -> tuple[str, str]:
        """Return what is before and after a text of an element with constant attributes."""
        if field.whole:
            return "", ""
        shell = self.element(field, self._attributes(field, None), _VALUE)
        before, _, after = shell.partition(_VALUE)
        return before, after

    def _group(self, fields: tuple[Field, ...]) -> Callable[[Any], str]:
        """Consecutive elements of one object."""
        elements = [self._element_of(field) for field in fields]
        return lambda subject: "".join([element(subject) for element in elements])

    def _element_of(self, field: Field) -> Callable[[Any], str]:
        """Return what makes the element, or elements, of an object."""
        if isinstance(field.value, str) or isinstance(field.write, Written):
            raise TypeError(f"{field.name} is no field of what jobs share")
        value_of, write = field.value, field.write
        is_constant = all(isinstance(text, str) for _, text in field.attributes)
        before, after = self._around(field) if is_constant else ("", "")

        def around(subject: object, text: str) -> str:
            if text and is_constant:
                return f"{before}{text}{after}"
            if not text and not field.mandatory:
                return ""
            return self.element(field, self._attributes(field, subject), text)

        if not field.each:
            return lambda subject: around(subject, write(value_of(subject)))
        return lambda subject: "".join([around(subject, write(one)) for one in value_of(subject)])

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


def shared(of: Scope, rules: tuple[Rule[Any], ...], render: Callable[[Any], str]) -> Shared:
    """Return a piece that jobs share, checked against its rules before it is rendered."""

    def checked(subject: object) -> str:
        require(rules, subject)
        return render(subject)

    return Shared(of, checked)
