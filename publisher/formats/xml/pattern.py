"""A regular expression for the bytes of a record, built from the same table of fields as its
renderer.

A record that matches is valid by the schema and acceptable to its receiver: the expressions are
narrower than the types they stand for, and tests compare the two. Matching is much cheaper than
parsing the record and validating its tree (hot path). A record that does not match, because of an
umlaut for example, may still be valid: then the schema decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from publisher.formats.compiled import MADE_AT, Written
from publisher.formats.xml.template import Field, TemplateCompiler

Patterns = Mapping[Callable[..., Any] | Written, str]

# Printable ASCII without markup, by itself or as one of four references. Whatever might begin
# `pkcs7-mime`, which no message may say, is left to the schema. `*+` gives nothing back, so that no
# text can make the search a long one.
_PLAIN: Final = "[ !#-%'-689:;=?-~]"
_ODD: Final = "(?:7(?!-[Mm])|&(?:amp|lt|gt|quot);)"
TEXT: Final = f"{_PLAIN}*+(?:{_ODD}{_PLAIN}*+)*+"
NOTHING: Final = ""
NUMBER: Final = "[0-9]{1,10}"
POSITIVE: Final = "[1-9][0-9]{0,14}"
_LABEL: Final = "[A-Za-z0-9][A-Za-z0-9-]{0,30}[A-Za-z0-9]"
DOMAIN: Final = rf"(?:{_LABEL}\.){{0,5}}{_LABEL}"  # 197 characters at most
# The days of the years 1970 to 2099, in UTC to the second: as text in the order of time.
_DAY: Final = (
    "(?:(?:19[7-9]|20[0-9])[0-9]-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:19(?:7[26]|8[048]|9[26])|20(?:[02468][048]|[13579][26]))-02-29)"
)
TIME: Final = f"{_DAY}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z"


def at_most(characters: int) -> str:
    """Text of one character or more that is surely not longer than this, counted in bytes."""
    return f'(?=[^<"]{{1,{characters}}}[<"]){TEXT}'


class RecordPattern:
    """Of the records of one format. `pattern` reports on writers, and of attributes their values.

    Records with an element of another writer are not of the form. Groups that are named in
    `pattern` can be asked for.
    """

    def __init__(
        self, planner: TemplateCompiler, record: str, fields: Iterable[Field], pattern: Patterns
    ) -> None:
        self._patterns = pattern
        self._planner = planner
        written = [f"<{record}>"]
        container = ""
        for field in fields:
            if field.inside != container:
                end = f"</{container}>" if container else ""
                begin = f"<{field.inside}>" if field.inside else ""
                written += [end, begin]
                container = field.inside
            written.append(self._element(field))
        if container:
            written.append(f"</{container}>")
        written.append(f"</{record}>")
        self._written = "".join(written).encode("ascii")

    @cached_property
    def match(self) -> Callable[[bytes], re.Match[bytes] | None]:
        """Made with the first record: it takes as long as all else, and many rounds have none."""
        return re.compile(self._written).fullmatch

    def _element(self, field: Field) -> str:
        text = field.pattern or self._patterns.get(field.write)
        if text is None:
            return "(?!)" if field.mandatory else ""
        if field.whole:
            return f"(?:{text})" if field.mandatory else f"(?:{text})?"
        attributes = [(name, f"(?:{self._attribute(of)})") for name, of in field.attributes]
        grouped = f"(?:{text})" if text else ""
        element = self._planner.element(field, attributes, grouped)
        if field.each:
            return f"(?:{element})*"
        return element if field.mandatory else f"(?:{element})?"

    def _attribute(self, of: str | Callable[[Any], str]) -> str:
        if of == MADE_AT:
            return TIME
        return re.escape(of) if isinstance(of, str) else self._patterns.get(of, "(?!)")
