"""Identifiers are made of words that an engineer of the field would search for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "publisher"
# What was called so before, and the words that took its place.
REPLACED = {
    "abreast": "parallel",
    "anew": "again",
    "errand": "window progress",
    "glimpse": "run values",
    "heard": "accepted, last seen",
    "judge": "decide, check, interpret",
    "judged": "decided",
    "laid": "merged",
    "looks": "pattern, checks",
    "lot": "group",
    "lots": "groups",
    "mend": "fix, omit",
    "mended": "fixed",
    "mends": "omissions, altered values",
    "mould": "skeleton",
    "moulds": "skeletons",
    "onlooker": "observer, counter",
    "rival": "other",
    "said": "text, message, values",
    "says": "text",
    "shelf": "copies",
    "spell": "receiver text",
    "spelt": "receiver group, escaped",
    "stale": "orphaned",
    "strayed": "unknown",
    "taker": "getter, candidate",
    "tell": "send, report, notify",
    "telling": "explains more",
    "tells": "reports",
    "told": "reported, sent",
    "unbegun": "not started",
    "unended": "unfinished",
    "unheard": "unknown",
    "unsaid": "left out",
    "untold": "unreported",
    "voice": "speaker",
    "wish": "request",
    "wished": "requested",
}
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def bound(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a module defines or assigns, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def private_words(source: str) -> list[str]:
    """Line, name, and what to call it instead."""
    return [
        f"line {line}: {name}: not {word!r} but {REPLACED[word]}"
        for line, name in bound(ast.parse(source))
        for word in (part.lower() for part in _WORDS.findall(name))
        if word in REPLACED
    ]


def checked() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_identifiers_are_words_of_the_field() -> None:
    for path in checked():
        assert private_words(path.read_text()) == [], path.relative_to(PACKAGE)


def test_no_module_is_named_by_a_participle() -> None:
    """Not `sending.py` or `planning.py`: the noun or the command says more. Packages are called by what they do."""
    found = {path.stem for path in checked() if path.stem.endswith("ing")}
    assert found - {"site_mapping"} == set()


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("def tell_all(): pass", "tell"),
        ("class ToldBefore: pass", "told"),
        ("_SAID = 1", "said"),
        ("x.looks_on = 1", "looks"),
        ("f = lambda wish: 0", "wish"),
    ],
)
def test_private_words_are_found_wherever_a_name_is_bound(source: str, word: str) -> None:
    (found,) = private_words(source)
    assert f"not {word!r}" in found
