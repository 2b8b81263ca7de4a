"""Trackable resources as Slurm writes them: `billing=128,cpu=128,gres/gpu:a100=1,gres/gpu=1,mem=472.50G,node=1`.

Spec: other-sources facts, section 2.3.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTP]?)", re.ASCII)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_MOST_TEXT: Final = 65_536
_MOST: Final = 2**31 - 1


class Resources(NamedTuple):
    """What a job was given; None is unknown."""

    cpus: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    memory_kib: int | None = None
    billing: int | None = None


def read_tres(text: str) -> Resources:
    """What cannot be read is unknown. GPUs are those of `gres/gpu`, or else the sum of its models, never both."""
    if not text or len(text) > _MOST_TEXT:
        return Resources()
    found: dict[str, int] = {}
    models = 0
    for each in text.split(","):
        key, _, value = each.partition("=")
        if key in ("cpu", "node", "gres/gpu", "billing") and (count := _count(value)) is not None:
            found[key] = count
        elif key.startswith("gres/gpu:"):
            models += _count(value) or 0
        elif key == "mem":
            found[key] = _kib(value)
    return Resources(
        cpus=found.get("cpu") or None,
        nodes=found.get("node") or None,
        gpus=found.get("gres/gpu") or min(models, _MOST) or None,
        memory_kib=found.get("mem") or None,
        billing=found.get("billing"),
    )


def _kib(text: str) -> int:
    """A size with its unit, `472.50G`; 0 is unknown, and so is what has none."""
    match = _NUMBER.fullmatch(text)
    return int(float(match[1]) * _UNITS[match[2]]) // 1024 if match and match[2] else 0


def _count(text: str) -> int | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    count = int(float(match[1]) * _UNITS[match[2]])
    return count if count <= _MOST else None
