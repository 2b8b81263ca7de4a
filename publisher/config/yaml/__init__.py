"""YAML in, with the place of every word; every problem at once.

A registry: the YAML library, which is not there where the manual is built, and what reads keys that few write, are loaded
when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from publisher.config.yaml.schema import ReadContext
from publisher.config.yaml.tree import Node, Problems, YamlBlock

_LOADER: Final = "publisher.config.yaml.loader"


def read_tree(path: Path, problems: Problems) -> YamlBlock | None:
    """The file as a tree; None, with the reason among the problems, when there is no tree to continue with."""
    tree: YamlBlock | None = import_module(_LOADER).read_tree(path, problems)
    return tree


def write_tree(tree: dict[str, Any]) -> str:
    """Plain values as YAML."""
    text: str = import_module(_LOADER).write_tree(tree)
    return text


def read_by(module: str) -> Callable[[Node, ReadContext], Any]:
    """What reads a key's value: the `read` of a module of this package."""
    return lambda node, reading: import_module(f"publisher.config.{module}").read(node, reading)
