"""What all importers ask of a site: the cluster, users and VOs of jobs, and what to leave out.

Map files have a word and its value on each line. The rules under which a source was read are kept
with it: changed rules leave the jobs alone that are there, and the next import says so.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar, Final

from publisher.model.errors import ConfigError, UsageError
from publisher.model.job import JobRecord
from publisher.model.published import Infrastructure, check_description
from publisher.model.text import plural
from publisher.sources.files.tables import SourceTables
from publisher.sources.importers import ImportRule

_MOST_BYTES: Final = 64 * 1024 * 1024
CLUSTER: Final = "CLUSTER"  # settings of a source
_RULES: Final = "RULES"


def _text_of(path: Path, key: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        advice = "correct the path, or let this user read it"
        raise ConfigError(f"{key}: {path} {why}; {advice}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}: {path} is not UTF-8: {error}; save it as UTF-8") from error
    if len(content) > _MOST_BYTES:
        why = f"is larger than {_MOST_BYTES} bytes; this is not a map file"
        raise ConfigError(f"{key}: {path} {why}")
    return text


def read_map(path: Path, key: str) -> dict[str, str]:
    """`WORD VALUE` on each line, the value to the end of the line; `#` begins a comment line.

    `key` is where the configuration names the file. Raises: ConfigError with all wrong lines.
    """
    found: dict[str, str] = {}
    problems = []
    for number, line in enumerate(_text_of(path, key).split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, _, value = (part.strip() for part in " ".join(line.split()).partition(" "))
        problem = ""
        if not value:
            problem = "write a word and its replacement, with a blank between them"
        elif not value.isprintable():
            problem = "holds a character that cannot be seen; type the line again"
        elif found.setdefault(word, value) != value:
            problem = f"{word!r} has another replacement on a line above"
        if problem:
            problems.append(f"{path}:{number}: {problem}")
    if problems:
        raise ConfigError(problems)
    return found


# What decides when something is read or reported, but not what a row contains.
_NO_RULES: Final = frozenset(
    {
        *("place", "paths", "files", "history", "command", "look_back_s", "timeout_s", "cluster"),
        *("arc_wait_s", "arc_outage_s", "join", "join_wait"),
        *("keep_months", "orphans_after_s", "hold_off_s", "overdue_after_s"),
        *("infrastructure", "batch_server", "infrastructure_description"),
    }
)
_DIGEST_BYTES: Final = 8


def _text(value: object) -> str:
    return str(list(map(str, value))) if isinstance(value, tuple) else str(value)


def _digest(content: object) -> str:
    text = repr(content).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


class UnmappedVo(StrEnum):
    """The VO of jobs that no map names."""

    PUBLISH = "publish"  # none, so that `records` decides
    LOCAL = "local"  # `local-` and the group or account


def is_host_name(name: str) -> bool:
    return bool(_HOST.fullmatch(name)) and len(name) <= 255


def check_submit_host(name: str) -> str | None:
    return "must not hold blanks" if " " in name else None


def cluster_key(help_text: str, wrong: str) -> Mapping[str, object]:
    """Metadata of the key `cluster`; `wrong` follows a name that is none, and gives an example."""

    def check(name: str) -> str | None:
        return None if is_host_name(name) else f"{name!r} {wrong}"

    return {"help": help_text, "check": check}


def map_of(line: str) -> Mapping[str, object]:
    """The metadata of a key that names a file of such lines."""
    return {"help": f"file of `{line}` lines"}


_HIDDEN: Final = {"hidden": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImporterOptions:
    """Keys that the block of every importer has."""

    reads_key: ClassVar[str] = "paths"  # which key names what is read
    must_read: ClassVar[bool] = True  # a source needs that key
    have_vos: ClassVar[bool] = False  # jobs may have VOs that no map file gives them

    cluster: str  # becomes part of every job's id
    place: str = field(default="", metadata=_HIDDEN)  # of these keys in the configuration
    submit_host: str = field(
        default="",
        metadata={
            "help": "SubmitHost of grid jobs, such as the CE's id",
            "check": check_submit_host,
        },
    )
    infrastructure: Infrastructure = Infrastructure.AUTO
    batch_server: str = field(default="", metadata={"check": check_submit_host})
    infrastructure_description: str = field(default="", metadata={"check": check_description})
    user_map: Path | None = field(default=None, metadata=map_of("USER DN"))
    user_vo_map: Path | None = field(default=None, metadata=map_of("USER VO"))
    unmapped_vo: UnmappedVo = UnmappedVo.PUBLISH
    # In `source` None is the databases of its arex entry.
    arc_databases: tuple[Path, ...] | None = None
    arc_wait_s: int = 86_400
    arc_outage_s: int = 14 * 86_400  # so long at most, while a CE writes nothing
    keep_months: int = field(default=0, metadata=_HIDDEN)  # for how long; 0: for good
    exclude_users: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[Path, ...]:
        """Files, directories and patterns that are read where no other are named."""
        named: tuple[Path, ...] | Path | None = getattr(self, self.reads_key)
        if isinstance(named, Path):
            return (named,)
        return named or ()

    @property
    def read_as(self) -> object:
        """What decides the values of jobs, wherever they are read and whichever are left out."""
        return [
            (each.name, _text(getattr(self, each.name)))
            for each in fields(self)
            if each.name not in _NO_RULES | {"arc_databases"}
            and not each.name.startswith("exclude_")
        ]

    @property
    def lacks_files(self) -> bool:
        """Whether a source of these keys would have nothing to read."""
        return self.must_read and not self.reads


class SiteMapping(ABC):
    """What the mappings of all importers share: users and VOs by maps, and which jobs to leave out.

    `vo_maps` and `excludes` are keys of the importer's block, in the order of the names that they
    are asked about. `interface`, that of the jobs' endpoint, tells which batch system ran them.
    """

    in_ids: ClassVar[frozenset[str]] = frozenset()  # keys by which jobs have other ids

    def __init__(
        self,
        importer: str,
        options: ImporterOptions,
        *,
        interface: str,
        vo_maps: Sequence[str],
        excludes: Sequence[str],
        maps: Sequence[str] = (),
    ) -> None:
        """Raises: ConfigError when a map file cannot be read or is wrong."""
        self.importer = importer
        self.options = options
        self.place = options.place or f"importers.{importer}"
        self._endpoint = (interface, options.submit_host or f"{interface}://{options.cluster}")
        self._maps = {key: self._read_map(key) for key in ("user_map", *vo_maps, *maps)}
        self._users = self._maps["user_map"]
        self._vo_maps = {key: self._maps[key] for key in vo_maps}
        self._has_vos = any(self._vo_maps.values()) or options.unmapped_vo is UnmappedVo.LOCAL
        self._excludes = {key: getattr(options, key) for key in excludes}
        self._has_excludes = any(self._excludes.values())
        self._left_out = lru_cache(maxsize=10_000)(self._excluded)

    @property
    def mapped_vos(self) -> frozenset[str]:
        """The VOs that map files give to jobs."""
        return frozenset(vo for known in self._vo_maps.values() for vo in known.values())

    def begin_import(self, accounting: SourceTables) -> list[str]:
        """Check that the source is this cluster's, and keep the rules of today.

        Return what to note of a change. Raises: UsageError for another cluster's.
        """
        cluster, source = self.options.cluster, accounting.store.name
        with accounting.transaction():
            stored = accounting.settle(CLUSTER, cluster)
            if stored != cluster:
                raise UsageError(
                    f"source {source}: has jobs of the cluster {stored}; under the name {cluster} "
                    f"they would count twice: correct {self.place}.cluster, or give this source "
                    "another name"
                )
            rules = self._rules()
            today = json.dumps(rules, sort_keys=True)
            before = accounting.settle(_RULES, today)
            if before == today:
                return []
            accounting.set(_RULES, today)
        known: dict[str, str] = json.loads(before)
        changed = sorted(name for name in rules.keys() & known.keys() if rules[name] != known[name])
        jobs = accounting.store.count() if changed else 0
        if not jobs:
            return []
        again = (
            f"to have it by the new rules, remove {accounting.store.path} and read all files "
            "again: what was delivered is known by the ids of jobs, and not sent twice"
        )
        if self.in_ids.intersection(changed):
            again = (
                f"jobs have other ids by the new rules, so do not remove {accounting.store.path} "
                "and read them again: those that were delivered would be sent and counted twice"
            )
        return [
            f"{', '.join(changed)} of {self.place} changed since the last import, and what was "
            f"imported or left out until then ({plural(jobs, 'job is', 'jobs are')} here) stays "
            f"as it is; {again}"
        ]

    def _rules(self) -> dict[str, str]:
        """The value of each key of the block, map files by their content."""
        rules = {}
        for each in fields(self.options):
            value = self._maps.get(each.name, getattr(self.options, each.name))
            if isinstance(value, Mapping):
                value = _digest(sorted(value.items()))
            if each.name not in _NO_RULES:
                rules[each.name] = _text(value)
        return rules

    def _read_map(self, key: str) -> Mapping[str, str]:
        """A map file of the site, empty where none is named. Raises: ConfigError."""
        path: Path | None = getattr(self.options, key)
        return {} if path is None else read_map(path, f"{self.place}.{key}")

    def _vo(self, names: Sequence[str], group: str) -> str:
        if not self._has_vos:
            return ""
        for known, name in zip(self._vo_maps.values(), names, strict=True):
            if name in known:
                return known[name]
        return f"local-{group}" if group and self.options.unmapped_vo is UnmappedVo.LOCAL else ""

    def _excluded(self, *names: str) -> str:
        """Why a job is not wanted, or ''."""
        for name, (key, patterns) in zip(names, self._excludes.items(), strict=True):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return f"left out by {key}"
        return ""

    @staticmethod
    @abstractmethod
    def record_key(job: JobRecord) -> str:
        """Return what tells people of which record a job was made."""

    @abstractmethod
    def explain(self, job: JobRecord) -> Sequence[ImportRule]:
        """How the fields of a job came about, by the rules of today."""

    def _endpoint_rule(self) -> ImportRule:
        rule = f"{self.place}.submit_host" if self.options.submit_host else "the cluster"
        return ImportRule("endpoint", rule)

    def _identity_rules(self, job: JobRecord, names: Sequence[str]) -> list[ImportRule]:
        """How a job's user and VO came about; `names` as for `_vo`."""
        maps = [("user_map", self._users, job.local_user)]
        user = rule_of(job.user, self.place, maps, "no line of user_map names it")
        vo = f"{self.place}.unmapped_vo: {self.options.unmapped_vo}"
        if not job.local_group or job.vo != f"local-{job.local_group}":
            maps = list(zip(self._vo_maps, self._vo_maps.values(), names, strict=True))
            vo = rule_of(job.vo, self.place, maps, vo)
        return [ImportRule("user", user), ImportRule("vo", vo)]


def rule_of(
    value: str, place: str, maps: Sequence[tuple[str, Mapping[str, str], str]], otherwise: str
) -> str:
    """Which line of which map gave a job its value.

    Each map is its key, its lines, and the word that is looked up.
    """
    for key, known, word in maps:
        if word and known.get(word) == value:
            return f"{place}.{key}: {word}"
    return "the maps have changed since it was imported" if value else otherwise
