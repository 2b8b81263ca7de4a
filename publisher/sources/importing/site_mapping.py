"""What all importers ask of a site: the cluster's name, which user and VO a job belongs to, and
which jobs to leave out.

Map files have a word and its value on each line. The rules under which a database was imported are
stored with it: changed rules do not affect the jobs that are already there, and the next import
says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from publisher.model.errors import ConfigError
from publisher.sources.importing.database import ImportDatabase

_MOST_BYTES: Final = 64 * 1024 * 1024


def read_map(path: Path, key: str) -> dict[str, str]:
    """`WORD VALUE` on each line, the value to the end of the line; `#` begins a comment line.

    `key` is where the configuration names the file. Raises: ConfigError with every line that is wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"{key}: {path} cannot be read: {error.strerror or error}; correct the path, or let this user read it"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: {path} is not UTF-8: {error}; save it as UTF-8") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{key}: {path} is larger than {_MOST_BYTES} bytes; this is not a map file")
    found: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, _, value = (part.strip() for part in " ".join(line.split()).partition(" "))
        if not value:
            problems.append(f"{path}:{number}: write a word and its replacement, with a blank between them")
        elif not value.isprintable():
            problems.append(f"{path}:{number}: holds a character that cannot be seen; type the line again")
        elif found.setdefault(word, value) != value:
            problems.append(f"{path}:{number}: {word!r} has another replacement on a line above")
    if problems:
        raise ConfigError(problems)
    return found


# What decides when something is read or reported, but not what a row contains.
_NO_RULES: Final = frozenset(
    {
        *("cluster", "arc_wait_s", "orphans_after_s", "hold_off_s", "overdue_after_s"),
        *("infrastructure", "batch_server", "infrastructure_description"),
    }
)
_DIGEST_BYTES: Final = 8

Maps = Mapping[str, Mapping[str, str]]  # by key of the configuration


def rules_of(options: Any, maps: Maps) -> dict[str, str]:
    """The value of each key of an importer's block, map files by their content."""
    digests = {}
    for each in fields(options):
        value = maps.get(each.name, getattr(options, each.name))
        if each.name not in _NO_RULES:
            digests[each.name] = _digest(sorted(value.items())) if isinstance(value, Mapping) else _text(value)
    return digests


def note_of_change(accounting: ImportDatabase, importer: str, rules: Mapping[str, str]) -> str:
    """Keep the rules of today; what to tell when those were others by which jobs were imported, or ''. Inside a transaction."""
    key, today = f"{importer.upper()}_RULES", json.dumps(dict(rules), sort_keys=True)
    before = accounting.settle(key, today)
    if before == today:
        return ""
    accounting.connection.execute("UPDATE DBConfig SET KeyValue = ? WHERE KeyName = ?", (today, key))
    known: dict[str, str] = json.loads(before)
    changed = sorted(name for name in rules.keys() & known.keys() if rules[name] != known[name])
    question = "SELECT count(*) FROM AAR WHERE Source = ?"
    (jobs,) = accounting.connection.execute(question, (importer,)).fetchone()
    if not (jobs and changed):
        return ""
    return (
        f"{', '.join(changed)} of importers.{importer} changed since the last import, and what was imported or left out until "
        f"then ({jobs:,} jobs are here) stays as it is; to have it by the new rules, remove {accounting.path} and import again "
        "from all files: what was delivered is known by the ids of jobs, and not sent twice"
    )


def _text(value: object) -> str:
    return str([str(each) for each in value] if isinstance(value, tuple) else value)


def _digest(content: object) -> str:
    return blake2b(repr(content).encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


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
