"""Where a published value came from, for `explain`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`name` is the value's name in APEL's messages; `rule` what decided, `source` the field of the job record ('' if none)."""

    name: str
    rule: str
    source: str = ""
