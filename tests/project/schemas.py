"""The published JSON Schemas: `python -m tests.project.schemas` writes them to conf/schemas.

That of the configuration comes from the shapes that read it. That of the output has the fields that publisher(1) explains, in
its words, with the types of what the commands print.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from package import pages
from package.schemas import DIALECT, Schema, configuration
from publisher.reporting.export.columns import COLUMNS
from tests.cli.test_forms import ROWS
from tests.project.test_documents import ALIKE, JSON_RUNS, OBJECTS, OPEN_KEYS, Results, leaves, results_in

FOLDER: Final = Path(__file__).parents[2] / "conf" / "schemas"
CONFIGURATION: Final = FOLDER / "publisher.yaml.json"
OUTPUT: Final = FOLDER / "output.json"
_NAMES: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}

_OF_COLUMNS: Final[Mapping[str, Schema]] = {
    "text": {"type": ["string", "null"]},
    "time": {"type": ["string", "null"]},
    "integer": {"type": ["integer", "null"]},
    "decimal": {"type": ["number", "null"]},
    "texts": {"type": ["array", "null"], "items": {"type": "string"}},
}


def written(schema: Schema) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def output(results: Results) -> Schema:
    """One definition for each command, by its words."""
    found: dict[str, Schema] = {}
    for name in JSON_RUNS:
        like = ALIKE.get(name)
        found[name] = _like(like) if like else _object(name, results)
    found |= {"export": _export(), "export --columns": _list_of("columns", _definition())}
    found |= {
        lines_of(name): _like(lines_of(ALIKE[name])) if name in ALIKE else _line(name, found[name])
        for name in found
        if name != "report"  # which has many tables
    }
    return {
        "$schema": DIALECT,
        "title": "JSON output of publisher",
        "description": "$defs has each command's object, as publisher(1) explains it under JSON OUTPUT. "
        "Unknown is null. Fields may be added; the number in `schema` changes when one goes or means something else.",
        "$defs": found,
    }


def _like(*path: str) -> Schema:
    return {"$ref": f"#/$defs/{'/'.join(path).replace(' ', '%20')}"}


def lines_of(name: str) -> str:
    return f"{name} --as json-lines"


def _line(name: str, whole: Schema) -> Schema:
    """A row of the object's list or mapping, with the name that it has there; or the object itself."""
    if name.startswith("stats"):  # fields by what was asked for
        return {"type": "object", "properties": {"schema": {"const": 1}}, "required": ["schema"]}
    if name not in ROWS:
        return _like(name)
    rows = ROWS[name]
    among = "items" if "items" in whole["properties"][rows] else "additionalProperties"
    named = {} if among == "items" else {rows.removesuffix("s"): {"type": "string"}}
    row = _like(name, "properties", rows, among)
    return {**row, "type": "object", "properties": {"schema": {"const": 1}, **named}, "required": ["schema"]}


def _list_of(name: str, row: Schema) -> Schema:
    properties = {"schema": {"const": 1}, name: {"type": "array", "items": row}}
    return {"type": "object", "properties": properties, "required": ["schema", name]}


def _export() -> Schema:
    columns = {
        each.name: {"description": f"{each.meaning}{f' ({each.unit})' if each.unit else ''}", **_OF_COLUMNS[each.kind]}
        for each in COLUMNS
    }
    return _list_of("jobs", {"type": "object", "properties": columns, "required": list(columns)})


def _definition() -> Schema:
    properties = {name: {"type": "string"} for name in ("column", "type", "unit", "meaning")}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _object(name: str, results: Results) -> Schema:
    alike = [name, *(other for other, like in ALIKE.items() if like == name)]
    seen: dict[str, set[type]] = {}
    for each in alike:
        for result in results[each]:
            for path, value in leaves(result):
                seen.setdefault(path, set()).add(type(value))
    explained = {path: text.astext() for path, text in pages.entries(OBJECTS[name]).items()}
    tree: dict[str, Any] = {}
    for path in explained:
        at = tree
        for step in re.findall(r"\[\]|[^.\[]+", path):
            at = at.setdefault(step, {})
    made = _schema("", tree, explained, seen)
    return {
        **made,
        "properties": {"schema": {"const": 1}, **made["properties"]},
        "required": ["schema"],
    }


def _schema(
    path: str, tree: Mapping[str, Any], explained: Mapping[str, str], seen: Mapping[str, Iterable[type]]
) -> Schema:
    about = {"description": " ".join(explained[path].split())} if path in explained else {}
    if "[]" in tree:
        kind = ["array", "null"]
        return {**about, "type": kind, "items": _schema(f"{path}[]", tree["[]"], explained, seen)}
    if not tree:
        return {**about, **_type(seen.get(path, ()))}
    below = {step: _schema(f"{path}.{step}" if path else step, rest, explained, seen) for step, rest in tree.items()}
    (*open_keys,) = (step for step in below if step in OPEN_KEYS.values())
    fixed = {step: each for step, each in below.items() if step not in open_keys}
    found: Schema = {**about, "type": ["object", "null"] if path else "object"}
    if fixed:
        found["properties"] = fixed
    if open_keys:
        found["additionalProperties"] = below[open_keys[0]]
    return found


def _type(kinds: Iterable[type]) -> Schema:
    """Of what was seen; anything where it was never seen."""
    names = {_NAMES[kind] for kind in kinds if kind in _NAMES}
    if "number" in names:
        names.discard("integer")
    return {"type": [*sorted(names), "null"]} if names else {}


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    CONFIGURATION.write_text(written(configuration()), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        OUTPUT.write_text(written(output(results_in(Path(folder)))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
