"""Formats of usage records, by name. A new one is one file here and one line in `FORMATS`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from publisher.formats.base import JobFormat

FORMATS: Final[Mapping[str, str]] = {
    "car": "publisher.formats.car",
}


def job_format(name: str) -> JobFormat:
    """The format of that name, loaded on first use. Raises: KeyError for a name that is not in `FORMATS`."""
    made: JobFormat = import_module(FORMATS[name]).create()
    return made
