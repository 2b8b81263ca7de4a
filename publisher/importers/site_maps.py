"""What all importers ask of a site: its cluster's name, whose jobs are whose, and which are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from publisher.importers.map_files import read_map

_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


class UnmappedVo(StrEnum):
    """The VO of jobs that no map names: none, so that `records` decides, or `local-` and the group or account."""

    PUBLISH = "publish"
    LOCAL = "local"


def is_host_name(name: str) -> bool:
    return bool(_HOST.fullmatch(name)) and len(name) <= 255


def check_submit_host(name: str) -> str | None:
    return "must not hold blanks" if " " in name else None


def site_map(path: Path | None, importer: str, key: str) -> Mapping[str, str]:
    """A map file of the site, empty where none is named. Raises: ConfigError."""
    return {} if path is None else read_map(path, f"importers.{importer}.{key}")


def left_out(checks: Sequence[tuple[str, Sequence[str], str]]) -> str:
    """Why a job is not wanted, or ''. Each check is a name, patterns over it, and the key that holds these."""
    for name, patterns, key in checks:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return f"left out by {key}"
    return ""


def rule_of(value: str, importer: str, maps: Sequence[tuple[str, Mapping[str, str], str]], otherwise: str) -> str:
    """Which line of which map gave a job its value. Each map is its key, its lines, and the word that is looked up."""
    for key, known, word in maps:
        if word and known.get(word) == value:
            return f"importers.{importer}.{key}: {word}"
    return "the maps have changed since it was imported" if value else otherwise
