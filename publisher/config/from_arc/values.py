"""What arc.conf says about a key: defaults and inherited values filled in, references to other values resolved.

`$VAR{key}` is another value of the same block, `$VAR{[block]key}` one of another block. `$EXEC{command}` and
`$EVAL{expression}` are never run: a configuration file that is read by root must not be a way to become root. A value that
holds one needs a hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from publisher.config.from_arc.reader import ArcConf, Option
from publisher.model.errors import ConfigError
from publisher.model.text import shown

COMMON: Final = "common"
JURA: Final = "arex/jura"
DEFAULTS: Final[Mapping[tuple[str, str], str]] = {
    (COMMON, "x509_host_cert"): "/etc/grid-security/hostcert.pem",
    (COMMON, "x509_host_key"): "/etc/grid-security/hostkey.pem",
    (COMMON, "x509_cert_dir"): "/etc/grid-security/certificates",
    (COMMON, "x509_cert_policy"): "grid",
    ("arex", "controldir"): "/var/spool/arc/jobstatus",
}
_INHERITED: Final = frozenset({"x509_host_cert", "x509_host_key", "x509_cert_dir", "x509_cert_policy", "http_proxy"})
_REFERENCE: Final = re.compile(r"\$(VAR|EXEC|EVAL)\{")
_NAMED: Final = re.compile(r"(?:\[([^\[\]]+)\])?\s*([^\s\[\]{}$]+)")
_MAX_REFERENCES: Final = 1000  # in one value: a few lines that name each other twice unfold to billions
_MAX_DEPTH: Final = 32  # of references that lead on to others
_MAX_TEXT: Final = 4096


class ByHand(Exception):  # not an error of the program: the value stays open, and the reason is told
    """A person has to settle this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArcValue:
    """A value, and where it is from, for the comment behind it. `place` (file and line) is '' for defaults."""

    text: str
    origin: str
    place: str
    repeated: int = 1


@dataclass(slots=True)
class _Expansion:
    """One value on its way through its references."""

    chain: list[tuple[str, str]]
    depth: int = 0
    references: int = 0
    seen: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArcValues:
    """The questions to one arc.conf. All raise: ByHand, and ConfigError for references that never end."""

    conf: ArcConf

    def first(self, block: str, key: str) -> ArcValue | None:
        """The value of a key that takes one, from the block, from where it inherits, or by default; else None."""
        for place in (block, COMMON) if key in _INHERITED and block != COMMON else (block,):
            options = self.conf.all(place, key)
            if options:
                return self._given(place, options[0], len(options))
            default = DEFAULTS.get((place, key))
            if default is not None:
                return ArcValue(text=default, origin=f"ARC's default of [{place}] {key}", place="")
        return None

    def all(self, block: str, key: str) -> tuple[ArcValue, ...]:
        """Every value of a key that takes several, in the order of the file."""
        return tuple(self._given(block, option, 1) for option in self.conf.all(block, key))

    def _given(self, block: str, option: Option, repeated: int) -> ArcValue:
        text = self._expand(option.text, block, _Expansion([(block, option.key)]), option.place)
        hidden = next((letter for letter in text if not letter.isprintable()), None)
        if hidden is not None:
            raise ByHand(f"holds the character {ascii(hidden)[1:-1]}, which cannot be seen")
        if len(text) > _MAX_TEXT:
            raise ByHand(f"is longer than {_MAX_TEXT} characters")
        return ArcValue(
            text=text, origin=f"from [{shown(block)}] {shown(option.key)}", place=option.place, repeated=repeated
        )

    def _expand(self, text: str, block: str, expansion: _Expansion, place: str) -> str:
        parts: list[str] = []
        at = 0
        expansion.depth += 1
        if expansion.depth > _MAX_DEPTH:
            raise _endless(place)
        while found := _REFERENCE.search(text, at):
            parts.append(text[at : found.start()])
            end = _closing_brace(text, found.end())
            if found[1] != "VAR":
                raise ByHand(f"holds ${found[1]}{{...}}, which publisher never runs; write down what it gives")
            inside = self._expand(text[found.end() : end], block, expansion, place)
            parts.append(self._refer(inside.strip(), block, expansion, place))
            at = end + 1
            if sum(len(part) for part in parts) > _MAX_TEXT:
                raise ByHand(f"is longer than {_MAX_TEXT} characters with its references filled in")
        parts.append(text[at:])
        expansion.depth -= 1
        return "".join(parts)

    def _refer(self, name: str, block: str, expansion: _Expansion, place: str) -> str:
        """The value behind `key` or `[block]key`."""
        expansion.references += 1
        named = _NAMED.fullmatch(name)
        if not named:
            raise ByHand(f"refers to {shown(name)!r}; a reference is $VAR{{key}} or $VAR{{[block]key}}")
        there = ":".join(part.strip() for part in named[1].split(":", 1)) if named[1] else block
        wanted = (there, named[2])
        if wanted in expansion.chain:
            loop = [*expansion.chain[expansion.chain.index(wanted) :], wanted]
            names = " -> ".join(f"[{shown(place)}] {shown(key)}" for place, key in loop)
            raise ConfigError(f"{place}: references in a circle: {names}")
        if expansion.references > _MAX_REFERENCES:
            raise _endless(place)
        if wanted in expansion.seen:
            return expansion.seen[wanted]
        options = self.conf.all(*wanted)
        if options:
            expansion.chain.append(wanted)
            text = self._expand(options[0].text, there, expansion, options[0].place)
            expansion.chain.pop()
        elif wanted in DEFAULTS:
            text = DEFAULTS[wanted]
        else:
            raise ByHand(f"refers to [{shown(there)}] {shown(named[2])}, which is not set")
        expansion.seen[wanted] = text
        return text


def _endless(place: str) -> ConfigError:
    return ConfigError(f"{place}: more references than a configuration can need")


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at
    raise ByHand("holds a reference without its closing brace")
