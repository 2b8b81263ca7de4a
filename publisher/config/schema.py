"""Blocks of keys, read by the shape of a dataclass: its fields are the keys, with their types.

This is how plug-ins get their configuration: `Options` is a frozen dataclass, and

- a field's name is the key (a trailing underscore is dropped: `from_` reads `from`);
- its type is str, int, float, bool, Path, a StrEnum, `tuple[...]` of these, a dataclass, or one of
  these `| None`;
- numbers whose name ends in `_s` are lengths of time: `24h`, `90s`, or seconds;
- texts whose name is `url` or ends in `_url` must be plain https addresses, or http ones with
  `metadata["plain_http"]`;
- a field without default is mandatory; a key without value means its default;
- `metadata["help"]` says what it is, `metadata["check"]` takes the value and returns what is wrong
  with it or None, `metadata["read"]` takes (node, reading) in place of all this,
  `metadata["hidden"]` keeps a field from being a key;
- a ValueError from the constructor says what is wrong between the keys.

A file becomes a tree whose every node knows its line (`yaml_file.py`). Nothing is typed there: a
scalar stays the text that was written, so that a VO called `no` and a version `0.10` survive. What
is wrong is collected and reported at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from importlib import import_module
from inspect import get_annotations
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from publisher.model.errors import ConfigError

Shape = TypeVar("Shape")
Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=StrEnum)

CREDENTIALS_DIRECTORY: Final = "CREDENTIALS_DIRECTORY"
_CREDENTIAL: Final = re.compile(r"\$(?:\{CREDENTIALS_DIRECTORY\}|CREDENTIALS_DIRECTORY)/([^/]+)")
# Eighteen digits fit 64 bits; leading zeros would be octal to some readers of YAML.
_WHOLE: Final = re.compile(r"[+-]?(?:0|[1-9][0-9_]{0,17})", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([smhdw]?)", re.ASCII)
_MONTHS: Final = re.compile(r"([0-9]{1,4}) ?months?", re.ASCII)
_UNIT_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TRUTH: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Place(NamedTuple):
    """Where something is written: line (from 1; 0 is the file as a whole) and path of keys."""

    line: int
    path: str

    def under(self, name: str, line: int) -> Place:
        path = f"{self.path}.{name}" if self.path else name
        return Place(line=line, path=path)


class Text(NamedTuple):
    """A scalar as it was written. `null` when nothing, `~` or `null` was."""

    place: Place
    text: str
    null: bool


class Listing(NamedTuple):
    """A list."""

    place: Place
    entries: tuple[Node, ...]


class YamlBlock(NamedTuple):
    """A mapping; the line of each node in it is the line of its key."""

    place: Place
    keys: Mapping[str, Node]


Node = Text | Listing | YamlBlock


class Problems:
    """What is wrong with one file, collected so that everything is reported at once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: list[tuple[Place, str]] = []
        self._hopeless: set[Place] = set()

    def add(self, place: Place, what: str, *, hopeless: bool = False) -> None:
        """Note a problem; behind a hopeless one, what else is found there is its consequence."""
        if place not in self._hopeless:
            self._found.append((place, what))
        if hopeless:
            self._hopeless.add(place)

    def lines(self) -> tuple[str, ...]:
        """`FILE:LINE: key.path: what is wrong`, in the order of the file."""
        ordered = sorted(self._found, key=lambda found: found[0].line)
        return tuple(dict.fromkeys(self._line(place, what) for place, what in ordered))

    def stop(self) -> None:
        """Raises: ConfigError listing everything that was found, when anything was."""
        if self._found:
            raise ConfigError(self.lines())

    def _line(self, place: Place, what: str) -> str:
        where = f"{self.file}:{place.line}" if place.line else self.file
        return f"{where}: {place.path}: {what}" if place.path else f"{where}: {what}"


def closest(name: str, valid: Collection[str]) -> str | None:
    """The valid name that was probably meant: case, and `-` for `_`, do not count."""
    plain = {known.lower().replace("_", "-"): known for known in valid}
    close = get_close_matches(name.lower().replace("_", "-"), plain, n=1, cutoff=0.6)
    if close:
        return plain[close[0]]
    begun = [known for known in valid if len(name) > 2 and known.startswith(name.lower())]
    return begun[0] if len(begun) == 1 else None


def nearest(name: str, valid: Collection[str]) -> str:
    """Advice for a name that is not valid: the nearest one that is, else those there are."""
    meant = closest(name, valid)
    if meant is not None:
        return f"did you mean {meant!r}?"
    return f"valid here: {', '.join(valid)}" if valid else "nothing is valid here"


class Wrong(Exception):
    """What is wrong with a value and what to write instead; a problem at the value's place."""


class ReadContext(NamedTuple):
    """What reading needs besides the text: problems, environment, where relative paths start."""

    problems: Problems
    environment: Mapping[str, str]
    folder: Path

    def wrong(self, place: Place, what: str) -> None:
        self.problems.add(place, what)

    @contextmanager
    def reporting(self, place: Place) -> Iterator[None]:
        """What is found wrong in this block is reported; an empty `Wrong` was reported before."""
        try:
            yield
        except Wrong as wrong:
            if str(wrong):
                self.wrong(place, str(wrong))


def load_module(name: str) -> Any:
    """A module of this package, loaded late: few need it, or its library is not always there."""
    return import_module(f"publisher.config.{name}")


def read_by(module: str, function: str = "read") -> Callable[[Node, ReadContext], Any]:
    """What reads a key's value: a function of a module of this package."""
    return lambda node, reading: getattr(load_module(module), function)(node, reading)


def scalar(node: Node, wanted: str) -> str:
    """The text of a scalar. Raises: Wrong for a list, a mapping or nothing."""
    if not isinstance(node, Text):
        kind = "list" if isinstance(node, Listing) else "mapping"
        raise Wrong(f"is a {kind}; it must be {wanted}")
    if node.null:
        raise Wrong(f"has no value; it must be {wanted}")
    return node.text


def quoted(text: str) -> str:
    """The text for a message, not longer than one can read."""
    if len(text) > 60:
        text = text[:57] + "..."
    return repr(text)


def whole_number(node: Node) -> int:
    text = scalar(node, "a whole number")
    if not _WHOLE.fullmatch(text):
        raise Wrong(f"{quoted(text)} is not a whole number; write digits only, such as 500")
    return int(text)


def number(node: Node) -> float:
    text = scalar(node, "a number")
    if not _NUMBER.fullmatch(text):
        raise Wrong(f"{quoted(text)} is not a number; write it as 1.5")
    return float(text)


def truth(node: Node) -> bool:
    text = scalar(node, "true or false")
    value = _TRUTH.get(text.lower())
    if value is None:
        raise Wrong(f"{quoted(text)} is neither true nor false")
    return value


def duration_s(node: Node) -> float:
    """Seconds."""
    text = scalar(node, "a time such as 24h")
    found = _DURATION.fullmatch(text)
    if not found:
        advice = "write 90s, 30m, 24h or 7d (a bare number is seconds)"
        raise Wrong(f"{quoted(text)} is not a length of time; {advice}")
    return float(found[1]) * _UNIT_S[found[2]]


_FEWEST_MONTHS: Final = 13


def months(node: Node, _reading: object) -> int:
    """A whole number of months: a year and the month that begins, or more."""
    text = scalar(node, "a number of months such as 24 months")
    found = _MONTHS.fullmatch(text)
    if found is None:
        raise Wrong(f"{quoted(text)} is no number of months; write 24 months")
    if int(found[1]) < _FEWEST_MONTHS:
        raise Wrong(f"{quoted(text)} is too short; write {_FEWEST_MONTHS} months or more")
    return int(found[1])


def whole_duration_s(node: Node, _reading: object = None) -> int:
    """Whole seconds."""
    seconds = duration_s(node)
    if seconds != math.floor(seconds):
        raise Wrong("is not a whole number of seconds")
    return int(seconds)


def choice(node: Node, kind: type[Choice]) -> Choice:
    names = tuple(str(member) for member in kind)
    text = scalar(node, f"one of {', '.join(names)}")
    if text not in names:
        raise Wrong(f"{quoted(text)} is not known; {nearest(text, names)}")
    return kind(text)


def path(node: Node, reading: ReadContext) -> Path:
    """A path; relative ones start in the directory of the configuration file.

    `$CREDENTIALS_DIRECTORY/NAME` is what systemd's LoadCredential= set up. Outside of the service
    the variable is not there: then the path stays as it is written, so that `config check` and
    `status` work in a shell, and using it fails by name.
    """
    text = scalar(node, "a path")
    if not text:
        raise Wrong("is empty; write a path")
    credential = _CREDENTIAL.fullmatch(text)
    if credential:
        directory = reading.environment.get(CREDENTIALS_DIRECTORY)
        return Path(directory, credential[1]) if directory else Path(text)
    if "$" in text or text.startswith("~"):
        why = "only $CREDENTIALS_DIRECTORY/NAME is filled in; write the full path"
        raise Wrong(f"{quoted(text)}: {why}")
    return reading.folder / text


def listing(node: Node, example: str) -> Listing:
    """Raises: Wrong for anything that is not a list."""
    if isinstance(node, Listing):
        return node
    raise Wrong(f"is not a list; write it in brackets: {example}")


def read_each(
    entries: Sequence[Node], read: Callable[[Node], Value], reading: ReadContext
) -> tuple[Value, ...]:
    """What `read` makes of each. Raises: Wrong, when all that is wrong has been reported."""
    made = []
    for entry in entries:
        with reading.reporting(entry.place):
            made.append(read(entry))
    if len(made) != len(entries):
        raise Wrong("")
    return tuple(made)


def check(is_right: Callable[[Any], bool], what: str) -> Callable[[Any], str | None]:
    """A field's `check`: what to say of a value that is not right; {} in it is the value."""
    return lambda value: None if is_right(value) else what.format(quoted(str(value)))


def as_block(node: Node, _reading: object = None) -> YamlBlock:
    """Raises: Wrong for anything that is not a mapping."""
    if isinstance(node, YamlBlock):
        return node
    if isinstance(node, Text) and node.null:
        raise Wrong("has no keys; indent them under it")
    raise Wrong("is not a mapping; indent its keys under it, one on a line")


def https_problem(url: str) -> str | None:
    """What is wrong with an address that a certificate is shown to: https, a host, no secret."""
    if "@" in url:  # first, because every other complaint quotes it
        return "holds a user or password; the certificate alone speaks for this host"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        return f"{quoted(url)} is not an address: {error}"
    if parts.scheme != "https":
        why = "records and certificate travel over TLS only: write https://HOST"
        return f"{quoted(url)} is not https; {why}"
    if not host or " " in url:
        return f"{quoted(url)} names no host; write https://HOST"
    if parts.query or parts.fragment:
        advice = "write https://HOST, with a path where the service needs one"
        return f"{quoted(url)} has a query or fragment; {advice}"
    return None


def keys_of(shape: type) -> Mapping[str, Field[Any]]:
    """The fields of a shape by their key in the file: mandatory ones first, shared ones last."""
    return _keys_of(shape)


@cache
def _keys_of(shape: type) -> Mapping[str, Field[Any]]:
    if not is_dataclass(shape):
        raise TypeError(f"{shape!r} is not a dataclass")
    shared = {name for base in shape.__mro__[1:] for name in get_annotations(base)}
    found = sorted(fields(shape), key=lambda entry: (not mandatory(entry), entry.name in shared))
    return {entry.name.rstrip("_"): entry for entry in found if not entry.metadata.get("hidden")}


def mandatory(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def default_of(entry: Field[Any]) -> Any:
    return entry.default_factory() if entry.default_factory is not MISSING else entry.default


def check_names(
    block: YamlBlock,
    valid: Iterable[str],
    reading: ReadContext,
    hints: dict[str, str] | None = None,
) -> None:
    """Every key that is not valid here is a problem, with the nearest valid one or a hint."""
    names = tuple(valid)
    for name, node in block.keys.items():
        if name not in names:
            advice = (hints or {}).get(name) or nearest(name, names)
            reading.wrong(node.place, f"unknown key; {advice}")


def read_keys(block: YamlBlock, shape: type, reading: ReadContext) -> dict[str, Any]:
    """The right values by field name, of the keys that are written; problems are reported."""
    known: dict[str, Any] = {}
    kinds = _kinds(shape)
    for name, entry in keys_of(shape).items():
        node = block.keys.get(name)
        if node is None:
            continue
        if _is_null(node):
            if not mandatory(entry):
                known[entry.name] = default_of(entry)
            continue
        with reading.reporting(node.place):
            value = _value(node, kinds.get(entry.name), entry, reading)
            _check(name, value, entry)
            known[entry.name] = value
    return known


def missing_keys(block: YamlBlock, shape: type, reading: ReadContext) -> bool:
    """Whether a mandatory key is missing; each one is a problem on the line of the block."""
    lacking = [
        name
        for name, entry in keys_of(shape).items()
        if mandatory(entry) and (name not in block.keys or _is_null(block.keys[name]))
    ]
    for name in lacking:
        what = str(keys_of(shape)[name].metadata.get("help", "")).rstrip(".")
        node = block.keys.get(name)
        place = node.place if node else block.place.under(name, block.place.line)
        reading.wrong(place, f"missing; {what or 'it has no default'}")
    return bool(lacking)


def build(
    block: YamlBlock, shape: type[Shape], known: dict[str, Any], reading: ReadContext
) -> Shape | None:
    """The instance, when every key that was written is right and none is missing."""
    written = {
        entry.name
        for name, entry in keys_of(shape).items()
        if name in block.keys and not _is_null(block.keys[name])
    }
    if missing_keys(block, shape, reading) or not written <= set(known):
        return None
    try:
        return shape(**known)
    except ValueError as error:
        reading.wrong(block.place, str(error))
        return None


def read_block(node: Node, shape: type[Shape], reading: ReadContext) -> Shape:
    """A block with the keys of one shape and no others. Raises: Wrong when it cannot be made."""
    block = as_block(node)
    check_names(block, keys_of(shape), reading)
    made = build(block, shape, read_keys(block, shape, reading), reading)
    if made is None:
        raise Wrong("")
    return made


@cache
def _kinds(shape: type) -> dict[str, Any]:
    """The types of the fields that are read by them; a reader's own type may not be loaded."""
    by_type = {entry.name for entry in fields(shape) if "read" not in entry.metadata}
    kinds: dict[str, Any] = {}
    for each in reversed(shape.__mro__):
        own = {name: kind for name, kind in get_annotations(each).items() if name in by_type}
        of_them = {"__annotations__": own, "__module__": each.__module__}
        kinds |= get_type_hints(type(each.__name__, (), of_them))
    return kinds


def _is_null(node: Node) -> bool:
    return isinstance(node, Text) and node.null


def _value(node: Node, kind: Any, entry: Field[Any], reading: ReadContext) -> Any:
    reader = entry.metadata.get("read")
    if reader is not None:
        return reader(node, reading)
    if get_origin(kind) in (Union, UnionType):
        kinds = [member for member in get_args(kind) if member is not NoneType]
        if len(kinds) != 1:
            advice = "give the field a metadata['read']"
            raise TypeError(f"{entry.name}: {kind} is more than one type; {advice}")
        kind = kinds[0]
    if get_origin(kind) is tuple:
        (member,) = get_args(kind)[:1]
        entries = listing(node, "[one, another]").entries
        return read_each(entries, lambda each: _one(each, member, entry, reading), reading)
    return _one(node, kind, entry, reading)


_READERS: Final[Mapping[Any, Callable[[Node], Any]]] = {
    str: lambda node: scalar(node, "one text"),
    bool: truth,
    int: whole_number,
    float: number,
}
_READERS_S: Final = {**_READERS, int: whole_duration_s, float: duration_s}  # of keys that end in _s


def _one(node: Node, kind: Any, entry: Field[Any], reading: ReadContext) -> Any:
    readers = _READERS_S if entry.name.endswith("_s") else _READERS
    if kind in readers:
        return readers[kind](node)
    if kind is Path:
        return path(node, reading)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return choice(node, kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return read_block(node, kind, reading)
    raise TypeError(f"{entry.name}: no reader for {kind!r}; see publisher/config/schema.py")


def _check(name: str, value: Any, entry: Field[Any]) -> None:
    if not mandatory(entry) and value == default_of(entry):
        return  # an optional text that is written out as empty is as if it were not written
    checks = [entry.metadata["check"]] if "check" in entry.metadata else []
    if isinstance(value, str) and _is_to_be_https(name, value, entry):
        checks.insert(0, https_problem)
    for check in checks:
        complaint = check(value)
        if complaint:
            raise Wrong(str(complaint))


def _is_to_be_https(name: str, value: str, entry: Field[Any]) -> bool:
    may_be_plain = entry.metadata.get("plain_http") and value.startswith("http://")
    return (name == "url" or name.endswith("_url")) and not may_be_plain
