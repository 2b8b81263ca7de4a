"""A source: A-REX's databases, named by their folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from publisher.sources.arex import options as options_of_arex
from publisher.sources.arex import source
from publisher.sources.base import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The keys of its block in the configuration."""

    folder: Path = field(metadata={"help": "where jobs are"})


def create(options: object, environment: Mapping[str, str], *, lock_wait_s: float | None = None) -> Source:
    if not isinstance(options, Options):
        raise TypeError(f"options of another source: {type(options).__name__}")
    return source.create(options_of_arex.Options(control_dir=options.folder), environment, lock_wait_s=lock_wait_s)
