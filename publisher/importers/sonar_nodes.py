"""Lists of node names as Slurm writes them: `c1-[9-10,12],gpu-2`, `n[018-020]`, `r[1-2]n[1-4]`.

Spec: other-sources facts, section 2.2. Read in bounded time and memory, whatever stands there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Final

MOST_NODES: Final = 10_000  # more than one job has in any machine that uses Slurm today
_MOST_TEXT: Final = 262_144
_PART: Final = re.compile(r"([^\[\],\s]*)\[([0-9,\-]+)\]|([^\[\],\s]+)")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def node_names(ranges: Sequence[str]) -> tuple[str, ...]:
    """The names in their order, each once; none at all when something is no list of nodes or there are too many."""
    names: dict[str, None] = {}
    for each in ranges:
        if not each or len(each) > _MOST_TEXT:
            return ()
        found = _names(each, MOST_NODES - len(names))
        if not found:
            return ()
        names.update(dict.fromkeys(found))
    return tuple(names)


def _names(text: str, most: int) -> list[str]:
    """Empty for what is no list, such as `None assigned`."""
    names: list[str] = []
    at = 0
    while at <= len(text):
        choices: list[list[str]] = []
        count = 1
        while at < len(text) and text[at] != ",":
            part = _PART.match(text, at)
            made = None if part is None else [part[3]] if part[3] else _numbers(part[1], part[2], most)
            if part is None or not made:
                return []
            choices.append(made)
            count *= len(made)
            if count > most - len(names):
                return []
            at = part.end()
        if not choices:
            return []
        names += map("".join, product(*choices))
        at += 1
    return names


def _numbers(prefix: str, ranges: str, most: int) -> list[str]:
    """`prefix` with each number, as wide as the first of its range; empty when there are too many or one is none."""
    made: list[str] = []
    for each in ranges.split(","):
        found = _RANGE.fullmatch(each)
        if found is None:
            return []
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or len(made) + int(last) - int(first) >= most:
            return []
        made += [f"{prefix}{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    return made
