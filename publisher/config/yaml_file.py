"""Bytes of YAML as a tree whose nodes know their places, with bounds on size and depth."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from publisher.config.schema import Listing, Node, Place, Problems, Text, YamlBlock

MAX_BYTES: Final = 1024 * 1024
_MAX_DEPTH: Final = 20  # a configuration needs six; a thousand would exhaust the stack
_TAG: Final = "tag:yaml.org,2002:"
_KNOWN_TAGS: Final = frozenset(
    _TAG + name
    for name in ("str", "null", "bool", "int", "float", "timestamp", "seq", "map", "merge", "value")
)


def write_tree(tree: dict[str, Any]) -> str:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)


def read_tree(path: Path, problems: Problems) -> YamlBlock | None:
    """The file as a tree; None, with the reason among the problems, when there is none."""
    whole = Place(line=0, path="")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        problems.add(whole, "no such file; `publisher config example` prints one to start from")
    except PermissionError:
        advice = "run as the service's user, or give it the right to read"
        problems.add(whole, f"this user may not read it; {advice}")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        problems.add(whole, f"cannot be read: {getattr(error, 'strerror', None) or error}")
    else:
        return parse_tree(content, problems)
    return None


def parse_tree(content: bytes, problems: Problems) -> YamlBlock | None:
    """As `read_tree`, for bytes that are already here."""
    if len(content) > MAX_BYTES:
        what = f"larger than {MAX_BYTES} bytes; this is not a configuration"
        problems.add(Place(line=0, path=""), what)
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = Place(line=content.count(b"\n", 0, error.start) + 1, path="")
        what = f"byte 0x{content[error.start]:02x} is not UTF-8; save it as UTF-8"
        problems.add(place, what)
        return None
    root = _compose(text, problems)
    if root is None:
        return None
    top = _Converter(problems).node(root, Place(line=root.start_mark.line + 1, path=""))
    if not isinstance(top, YamlBlock):
        what = "it must consist of `key: value` lines such as `site: EXAMPLE-SITE`"
        problems.add(top.place, f"not a mapping; {what}")
        return None
    return top


def _compose(text: str, problems: Problems) -> yaml.Node | None:
    """The document's nodes. A syntax error ends the reading: the rest cannot be interpreted."""
    if yaml.__with_libyaml__:
        with suppress(yaml.YAMLError):  # the loader written in Python explains it better
            return _nodes(text, yaml.CSafeLoader)
    try:
        return _nodes(text, yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
    except _Refused as refused:
        line, what = refused.line, str(refused)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        what = f"not valid YAML: {error.problem or error.context}"
    problems.add(Place(line=line, path=""), what)
    return None


class _Refused(yaml.YAMLError):
    """Valid YAML that is still refused."""

    def __init__(self, what: str, event: yaml.Event | None = None) -> None:
        self.line = event.start_mark.line + 1 if event and event.start_mark else 0
        super().__init__(what)


def _nodes(text: str, loader: type[yaml.SafeLoader | yaml.CSafeLoader]) -> yaml.Node:
    """Composed within bounds: no aliases (a few lines unfold to gigabytes), no deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            raise _Refused("aliases (*name) are not used here; write the value out", event)
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.NodeEvent):
            if depth >= _MAX_DEPTH:
                what = f"nested more than {_MAX_DEPTH} levels deep; a configuration needs six"
                raise _Refused(what, event)
            depth += isinstance(event, yaml.CollectionStartEvent)
    root = yaml.compose(text, Loader=loader)
    if root is None:
        raise _Refused("empty; `publisher config example` prints one to start from")
    return root


class _Converter:
    """From the library's nodes to ours."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def node(self, node: yaml.Node, place: Place) -> Node:
        if node.tag not in _KNOWN_TAGS:
            tag = node.tag.removeprefix(_TAG)
            self.problems.add(place, f"the tag {tag!r} is not used here; write the plain value")
        if isinstance(node, yaml.MappingNode):
            return self._block(node, place)
        if isinstance(node, yaml.SequenceNode):
            entries = []
            for number, entry in enumerate(node.value, start=1):
                at = Place(line=entry.start_mark.line + 1, path=f"{place.path}[{number}]")
                entries.append(self.node(entry, at))
            return Listing(place=place, entries=tuple(entries))
        self._check(node.value, place)
        return Text(place=place, text=node.value, null=node.tag == _TAG + "null")

    def _block(self, node: yaml.MappingNode, place: Place) -> YamlBlock:
        keys: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.problems.add(Place(line=line, path=place.path), "a key must be a plain word")
                continue
            shown = key.value if key.value.isprintable() else ascii(key.value)[1:-1]
            here = place.under(shown, line)
            if key.value in lines:
                self.problems.add(here, f"given twice; it is already on line {lines[key.value]}")
                continue
            lines[key.value] = line
            if self._check(key.value, here):
                keys[key.value] = self.node(value, here)
        return YamlBlock(place=place, keys=keys)

    def _check(self, text: str, place: Place) -> bool:
        wrong = next((letter for letter in text if not letter.isprintable()), None)
        if wrong is not None:
            what = f"holds the character U+{ord(wrong):04X}, which cannot be seen"
            self.problems.add(place, f"{what}; type it again, on one line", hopeless=True)
        return wrong is None
