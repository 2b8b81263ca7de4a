"""Blocks of keys, read by the shape of a dataclass: its fields are the keys, their types what a value must be.

This is how plug-ins get their configuration: `Options` is a frozen dataclass, and

- a field's name is the key (a trailing underscore is dropped: `from_` reads `from`);
- its type is one of str, int, float, bool, Path, a StrEnum, `tuple[...]` of these, a dataclass, or one of these `| None`;
- numbers whose name ends in `_s` are lengths of time: `24h`, `90s`, or seconds;
- texts whose name is `url` or ends in `_url` must be plain https addresses;
- a field without default is mandatory; a key without value means its default;
- `metadata["help"]` says what it is, `metadata["check"]` takes the value and returns what is wrong with it or None,
  `metadata["read"]` takes (node, reading) in place of all this, `metadata["hidden"]` keeps a field from being a key;
- a ValueError from the constructor says what is wrong between the keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from publisher.config import values
from publisher.config.tree import Block, Node, Text, nearest
from publisher.config.values import Reading, Wrong

Shape = TypeVar("Shape")
Known = dict[str, Any]
"""Values by field name, of the keys that are written and right."""


def keys_of(shape: type) -> dict[str, Field[Any]]:
    """The fields of a shape by the key that stands in the file."""
    if not is_dataclass(shape):
        raise TypeError(f"{shape!r} is not a dataclass")
    return {entry.name.rstrip("_"): entry for entry in fields(shape) if not entry.metadata.get("hidden")}


def mandatory(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def default_of(entry: Field[Any]) -> Any:
    return entry.default_factory() if entry.default_factory is not MISSING else entry.default


def check_names(block: Block, valid: Iterable[str], reading: Reading, hints: dict[str, str] | None = None) -> None:
    """Every key that is not valid here is a problem, with the nearest one that is, or the hint for that name."""
    names = tuple(valid)
    for name, node in block.keys.items():
        if name not in names:
            advice = (hints or {}).get(name) or nearest(name, names)
            reading.wrong(node.place, f"unknown key; {advice}")


def read_keys(block: Block, shape: type, reading: Reading) -> Known:
    """The keys of this shape that the block holds; what is wrong with a value goes to the problems."""
    known: Known = {}
    kinds = _kinds(shape)
    for name, entry in keys_of(shape).items():
        node = block.keys.get(name)
        if node is None:
            continue
        if isinstance(node, Text) and node.null:
            if not mandatory(entry):
                known[entry.name] = default_of(entry)
            continue
        try:
            value = _value(node, kinds.get(entry.name), entry, reading)
            _check(name, value, entry)
            known[entry.name] = value
        except Wrong as wrong:
            if str(wrong):  # an empty one was told where it happened
                reading.wrong(node.place, str(wrong))
    return known


def missing_keys(block: Block, shape: type, reading: Reading) -> bool:
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


def build(block: Block, shape: type[Shape], known: Known, reading: Reading) -> Shape | None:
    """The instance, when every key that was written is right and none is missing."""
    written = {
        entry.name for name, entry in keys_of(shape).items() if name in block.keys and not _is_null(block.keys[name])
    }
    if missing_keys(block, shape, reading) or not written <= set(known):
        return None
    try:
        return shape(**known)
    except ValueError as error:
        reading.wrong(block.place, str(error))
        return None


def read_block(node: Node, shape: type[Shape], reading: Reading) -> Shape:
    """A block with the keys of one shape and no others. Raises: Wrong when it cannot be made."""
    block = values.block(node)
    check_names(block, keys_of(shape), reading)
    made = build(block, shape, read_keys(block, shape, reading), reading)
    if made is None:
        raise Wrong("")
    return made


def _kinds(shape: type) -> dict[str, Any]:
    """The types of the fields that are read by them; one with a reader of its own may be of a type that is not loaded."""
    by_type = {entry.name: entry.type for entry in fields(shape) if "read" not in entry.metadata}
    asked = type(shape.__name__, (), {"__annotations__": by_type, "__module__": shape.__module__})
    return get_type_hints(asked)


def _is_null(node: Node) -> bool:
    return isinstance(node, Text) and node.null


def _value(node: Node, kind: Any, entry: Field[Any], reading: Reading) -> Any:
    reader = entry.metadata.get("read")
    if reader is not None:
        return reader(node, reading)
    if get_origin(kind) in (Union, UnionType):
        kinds = [member for member in get_args(kind) if member is not NoneType]
        if len(kinds) != 1:
            raise TypeError(f"{entry.name}: {kind} is more than one type; give the field a metadata['read']")
        kind = kinds[0]
    if get_origin(kind) is tuple:
        return _values(node, get_args(kind)[0], entry, reading)
    return _one(node, kind, entry, reading)


def _values(node: Node, kind: Any, entry: Field[Any], reading: Reading) -> tuple[Any, ...]:
    listed = values.listing(node, "[one, another]")
    made = []
    for each in listed.entries:
        try:
            made.append(_one(each, kind, entry, reading))
        except Wrong as wrong:
            if str(wrong):
                reading.wrong(each.place, str(wrong))
    if len(made) != len(listed.entries):
        raise Wrong("")
    return tuple(made)


def _one(node: Node, kind: Any, entry: Field[Any], reading: Reading) -> Any:
    duration = entry.name.endswith("_s")
    if kind is str:
        return values.scalar(node, "one text")
    if kind is bool:
        return values.truth(node)
    if kind is int:
        return values.whole_duration_s(node) if duration else values.whole_number(node)
    if kind is float:
        return values.duration_s(node) if duration else values.number(node)
    if kind is Path:
        return values.path(node, reading)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return values.choice(node, kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return read_block(node, kind, reading)
    raise TypeError(f"{entry.name}: no reader for {kind!r}; see publisher/config/shapes.py")


def _check(name: str, value: Any, entry: Field[Any]) -> None:
    if not mandatory(entry) and value == default_of(entry):
        return  # an optional text that is written out as empty is as if it were not written
    checks = [entry.metadata["check"]] if "check" in entry.metadata else []
    if isinstance(value, str) and (name == "url" or name.endswith("_url")):
        checks.insert(0, values.https_problem)
    for check in checks:
        complaint = check(value)
        if complaint:
            raise Wrong(str(complaint))
