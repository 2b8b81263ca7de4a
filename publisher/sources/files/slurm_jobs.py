"""What is Slurm's, whoever reports its jobs: nodes, resources, and what a site configures.

Node lists (`c1-[9-10,12],gpu-2`) and trackable resources
(`billing=128,cpu=128,gres/gpu:a100=1,mem=472.50G,node=1`) are as Slurm writes them; lists are
expanded in bounded time and memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import ClassVar, Final, NamedTuple
from zoneinfo import ZoneInfo

from publisher.model.job import JobRecord
from publisher.sources.files.log_files import clean
from publisher.sources.files.site_mapping import (
    ImporterOptions,
    SiteMapping,
    map_of,
    rule_of,
)
from publisher.sources.importers import ImportRule

MOST_NODES: Final = 10_000  # more than one job has in any machine that uses Slurm today
_MOST_NODES_TEXT: Final = 262_144
_PART: Final = re.compile(r"([^\[\],\s]*)\[([0-9,\-]+)\]|([^\[\],\s]+)")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def node_names(ranges: Sequence[str]) -> tuple[str, ...]:
    """The names in their order, each once; none when something is no list or they are too many."""
    names: dict[str, None] = {}
    for each in ranges:
        if not each or len(each) > _MOST_NODES_TEXT:
            return ()
        found = _names(each, MOST_NODES - len(names))
        if not found:
            return ()
        names.update(dict.fromkeys(found))
    return tuple(names)


def _names(text: str, most: int) -> list[str]:
    """Empty for what is not a list, such as `None assigned`."""
    names: list[str] = []
    at = 0
    while at <= len(text):
        choices: list[list[str]] = []
        count = 1
        while at < len(text) and text[at] != ",":
            part = _PART.match(text, at)
            if part is None:
                return []
            made = [part[3]] if part[3] else _numbers(part[1], part[2], most)
            if not made:
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
    """`prefix` with each number, as wide as the first of its range; empty for none or too many."""
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


_NUMBER: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGTP]?)", re.ASCII)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_COUNTED: Final = ("cpu", "node", "gres/gpu", "billing")
_SHARES_OF_GPUS: Final = frozenset({"gres/shard", "gres/mps"})
_MOST_TRES_TEXT: Final = 65_536
_MOST: Final = 2**31 - 1


class Resources(NamedTuple):
    """What a job was given; None is unknown."""

    cpus: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    memory_kib: int | None = None
    billing: int | None = None
    gpu_models: tuple[tuple[str, int], ...] = ()
    energy_j: int | None = None
    has_gpu_total: bool = False  # gres/gpu, be it 0; not models alone
    has_gpu_share: bool = False  # of a GPU that other jobs have shares of, too


def read_tres(text: str) -> Resources:
    """What cannot be read is unknown. GPUs are those of `gres/gpu`, else the sum of its models."""
    if not text or len(text) > _MOST_TRES_TEXT:
        return Resources()
    found, models = _tres_values(text)
    return Resources(
        cpus=found.get("cpu") or None,
        nodes=found.get("node") or None,
        gpus=found.get("gres/gpu") or min(sum(models.values()), _MOST) or None,
        memory_kib=found.get("mem") or None,
        billing=found.get("billing"),
        gpu_models=tuple(models.items()),
        energy_j=found.get("energy") or None,
        has_gpu_total="gres/gpu" in found,
        has_gpu_share=any(found.get(name) for name in _SHARES_OF_GPUS),
    )


def models_text(resources: Resources) -> str:
    """The GPUs of a job by model: `a100=4,t4=1`."""
    return ",".join(f"{model}={count}" for model, count in resources.gpu_models)


def _tres_values(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """By resource, and the GPUs by model."""
    found: dict[str, int] = {}
    models: dict[str, int] = {}
    for each in text.split(","):
        key, _, value = each.partition("=")
        count = _tres_count(value) if key in _COUNTED else None
        if count is not None:
            found[key] = count
        elif key.startswith("gres/gpu:"):
            models[clean(key.removeprefix("gres/gpu:"))] = _tres_count(value) or 0
        elif key.partition(":")[0] in _SHARES_OF_GPUS:
            found[key.partition(":")[0]] = _tres_count(value) or 0
        elif key == "energy":
            found[key] = _joules(value)
        elif key == "mem":
            found[key] = _kib(value)
    return found, models


def _joules(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


def _kib(text: str) -> int:
    """A size with its unit, `472.50G`; 0 is unknown, and so is what has none."""
    match = _NUMBER.fullmatch(text)
    return int(float(match[1]) * _UNITS[match[2]]) // 1024 if match and match[2] else 0


def _tres_count(text: str) -> int | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    count = int(float(match[1]) * _UNITS[match[2]])
    return count if count <= _MOST else None


_MOST_THREADS: Final = 64


def check_zone(name: str) -> str | None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return f"{name!r} is not a time zone; write one such as Europe/Oslo"
    return None


def _check_threads(threads: int) -> str | None:
    return None if 1 <= threads <= _MOST_THREADS else f"must be from 1 to {_MOST_THREADS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions(ImporterOptions):
    """Keys that importers of Slurm's jobs have."""

    account_vo_map: Path | None = field(default=None, metadata=map_of("ACCOUNT VO"))
    account_project_map: Path | None = field(default=None, metadata=map_of("ACCOUNT PROJECT"))
    array_ids: bool = False
    threads_per_core: int | None = field(default=None, metadata={"check": _check_threads})
    exclude_accounts: tuple[str, ...] = ()
    exclude_partitions: tuple[str, ...] = ()
    exclude_states: tuple[str, ...] = ()


_STATUS: Final = {"COMPLETED": "completed", "RESIZING": "completed", "CANCELLED": "aborted"}


class SlurmMapping(SiteMapping):
    """What the mappings of such importers share."""

    lrms: ClassVar[str] = "slurm"
    in_ids: ClassVar[frozenset[str]] = frozenset({"array_ids"})
    gpu_rule: ClassVar[str] = "allocated gres/gpu"

    def __init__(
        self,
        importer: str,
        options: SlurmOptions,
        *,
        interface: str,
        vo_maps: Sequence[str] = ("account_vo_map", "user_vo_map"),
    ) -> None:
        """Raises: ConfigError when a map file cannot be read or is wrong."""
        super().__init__(
            importer,
            options,
            interface=interface,
            vo_maps=vo_maps,
            excludes=("exclude_users", "exclude_accounts", "exclude_partitions", "exclude_states"),
            maps=("account_project_map",),
        )
        self._array_ids = options.array_ids
        self._threads = options.threads_per_core or 1
        self._projects = self._maps["account_project_map"]
        self._hosts = lru_cache(maxsize=1_000)(node_names)

    def cores(self, cpus: int) -> int:
        """Cores of so many of Slurm's CPUs, which are hyperthreads where so configured."""
        return -(-cpus // self._threads)

    @staticmethod
    def status(state: str) -> str:
        """A-REX's word for a final state."""
        return _STATUS.get(state, "failed")

    def _account_rules(self, job: JobRecord, names: Sequence[str]) -> list[ImportRule]:
        """`names` as for `_vo`."""
        account = job.local_group
        project = job.projects[0] if job.projects else ""
        rule = "the account"
        if project != account:
            maps = [("account_project_map", self._projects, account)]
            rule = rule_of(project, self.place, maps, "the job has no account")
        cpus = f"allocated CPUs, else requested; {self._threads} a core (threads_per_core)"
        return [
            *self._identity_rules(job, names),
            ImportRule("projects", rule),
            ImportRule("cpu_count", cpus),
            ImportRule("node_count", "allocated nodes, else those listed"),
            ImportRule("gpu_count", self.gpu_rule),
        ]
