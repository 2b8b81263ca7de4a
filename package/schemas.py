"""JSON Schema of the configuration, from the shapes that read it, for editors.

`python -m tests.project.schemas` writes it.

`_READ` has the keys that are read by functions of their own, of which the shapes say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, is_dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from publisher.config import charges, records, schema, settings, targets
from publisher.policy.identity import IdentityMode

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
CONFIGURATION: Final = "conf/schemas/publisher.yaml.json"
# YAML's readers take `0.10` and `no` for others
_TEXT: Final[Schema] = {"type": ["string", "number", "boolean"]}
_NUMBER: Final[Schema] = {"type": "number"}
_WHOLE: Final[Schema] = {"type": "integer"}
_TRUTH: Final[Schema] = {"enum": [True, False, "yes", "no", "on", "off"]}
_PATH: Final[Schema] = {"type": "string"}
_DURATION: Final[Schema] = {
    "type": ["string", "integer"],
    "pattern": r"^[0-9]{1,12}(\.[0-9]{1,6})? ?[smhdw]?$",
}
_SCALARS: Final[Mapping[Any, Schema]] = {
    str: _TEXT,
    int: _WHOLE,
    float: _NUMBER,
    bool: _TRUTH,
    Path: _PATH,
}


def configuration() -> Schema:
    """Of publisher.yaml."""
    known = targets.REGISTERED
    found = _block(settings.TopKeys)
    target = _with_type(targets.TargetKeys, known.transports, records.RecordSettings)
    target["properties"]["format"] = {"enum": list(known.formats)}
    importers = {name: _block(options()) for name, options in known.importers.items()}
    return {
        "$schema": DIALECT,
        "title": "publisher.yaml",
        "$defs": {"source": _with_type(settings.SourceKeys, {**known.sources, **known.importers})},
        "description": "The configuration of publisher; publisher.yaml(5) explains each key.",
        **found,
        "properties": {
            **found["properties"],
            "records": _or_null(_block(records.RecordSettings)),
            "source": _one_or_list({"$ref": "#/$defs/source"}),
            "importers": {
                "type": ["object", "null"],
                "properties": importers,
                "additionalProperties": False,
            },
            "targets": {"type": "object", "additionalProperties": target, "minProperties": 1},
        },
    }


def _with_type(
    keys: type, plugins: Mapping[str, Callable[[], type]], further: type | None = None
) -> Schema:
    """A block of which `type` decides about more keys: those of all types, and those of each."""
    common = _block(keys)
    if further is not None:
        common["properties"] |= _block(further)["properties"]
    of_types = {name: _block(options()) for name, options in plugins.items()}
    return {
        **common,
        "properties": {
            **{key: {} for each in of_types.values() for key in each["properties"]},
            **common["properties"],
            "type": {"enum": list(of_types)},
        },
        "allOf": [
            {
                "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
                "then": _only(each, common["properties"]),
            }
            for name, each in of_types.items()
        ],
    }


def _only(each: Schema, common: Mapping[str, Schema]) -> Schema:
    """The keys of one type, beside which there are the common ones and no others."""
    return {**each, "properties": {**{key: {} for key in common}, **each["properties"]}}


def _block(shape: type) -> Schema:
    kinds = _kinds(shape)
    found: dict[str, Schema] = {}
    needed = []
    for key, entry in schema.keys_of(shape).items():
        found[key] = _value(kinds.get(entry.name), entry)
        if schema.mandatory(entry):
            needed.append(key)
        else:
            found[key] = _or_null(found[key])
    block = {"type": "object", "properties": found, "additionalProperties": False}
    return {**block, "required": needed} if needed else block


def _kinds(shape: type) -> Mapping[str, Any]:
    """The types of a shape's fields; those of keys with readers of their own may not be here."""
    own = {entry.name for entry in schema.keys_of(shape).values() if "read" not in entry.metadata}
    found: dict[str, Any] = {}
    for each in reversed(shape.__mro__):
        written = getattr(each, "__annotations__", {})
        hints = {name: kind for name, kind in written.items() if name in own}
        alone = {"__annotations__": hints, "__module__": each.__module__}
        found |= get_type_hints(type("Shape", (), alone))
    return found


def _value(kind: Any, entry: Field[Any]) -> Schema:
    if "read" in entry.metadata:
        return _READ[entry.name]()
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (member for member in get_args(kind) if member is not NoneType)
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _one(get_args(kind)[0], entry.name)}
    return _one(kind, entry.name)


def _one(kind: Any, name: str) -> Schema:
    if name.endswith("_s") and kind in (int, float):
        return _DURATION
    if kind in _SCALARS:
        return _SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": [str(member) for member in kind]}
    if is_dataclass(kind) and isinstance(kind, type):
        return _block(kind)
    raise TypeError(f"{name}: no schema for {kind!r}; see package/schemas.py")


def _or_null(value: Schema) -> Schema:
    """A key without value means its default."""
    if not value:
        return value
    if "enum" in value:
        return {"enum": [*value["enum"], None]}
    if "anyOf" in value:
        return {"anyOf": [*value["anyOf"], {"type": "null"}]}
    kinds = value["type"] if isinstance(value["type"], list) else [value["type"]]
    return {**value, "type": list(dict.fromkeys([*kinds, "null"]))}


def _one_or_list(value: Schema) -> Schema:
    return {"anyOf": [value, {"type": "array", "items": value}]}


def _list_of(shape: type) -> Schema:
    return {"type": "array", "items": _block(shape)}


_READ: Final[Mapping[str, Callable[[], Schema]]] = {
    **dict.fromkeys(("every", "jitter", "join_wait"), lambda: _DURATION),
    **dict.fromkeys(("start", "cron", "jura_until", "listen", "ca", "state"), lambda: _PATH),
    "keep": lambda: {"type": "string", "pattern": "^[0-9]{1,4} ?months?$"},
    **dict.fromkeys(("batch_records", "single_months"), lambda: _WHOLE),
    "textfile": lambda: {"type": "string", "pattern": r"\.prom$"},
    "rounding": lambda: {"anyOf": [_WHOLE, {"const": "none"}, _block(charges.RoundingKeys)]},
    "benchmarks": lambda: _list_of(records.OneBenchmark),
    "benchmark": lambda: _one_or_list(_block(records.BenchmarkKeys)),
    "vo_rules": lambda: _list_of(records.VoRuleKeys),
    "identity": lambda: {"anyOf": [_one(IdentityMode, "mode"), _block(records.IdentitySettings)]},
    "charges": lambda: _one_or_list(_block(charges.ChargeKeys)),
    "power": lambda: _one_or_list(_block(charges.PowerKeys)),
    "allocations": lambda: _list_of(charges.AllocationKeys),
    # Blocks of plug-ins, which `configuration` puts in their place.
    **dict.fromkeys(("source", "records", "importers", "targets"), dict),
}
