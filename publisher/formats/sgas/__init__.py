"""What SGAS reads: OGF usage records, and what SGAS makes of their values.

A registry: the module is loaded when the format is made, so that `status` starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from publisher.formats.base import JobFormat, Receiver
from publisher.formats.sgas.receiver import USAGE_RECORDS

RECEIVERS: Final[Mapping[str, Receiver]] = {"ogf-ur": USAGE_RECORDS}


def create(name: str) -> JobFormat:
    """The format of that name."""
    made: JobFormat = import_module(f"{__name__}.ogf_ur").create(name)
    return made


def check_ogf_ur(payload: bytes) -> None:
    """Check a payload against the schema; lxml is loaded with the first one. Raises: Unfit."""
    import_module(f"{__name__}.ogf_ur_check").check(payload)
