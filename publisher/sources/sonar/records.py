"""Records of `slurm_jobs`: what each reports about a job or a step, and how they are merged.

Records are partial and repeated. Those of one run are merged field by field: an ended job's values
win over a running one's, then later values over earlier ones. Times are local, with the offset that
was valid at collection: one moment has two offsets when clocks change between two collections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from publisher.sources.files.log_files import clean
from publisher.sources.files.slurm_jobs import models_text, read_tres

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR, _LAST_YEAR = 1971, 2999
_MOST_TEXT: Final = 64


class BadTime(ValueError):
    """A text that is not a time."""


def read_time(text: object) -> tuple[str, int | None]:
    """The clock's `2026-03-01T12:00:00`, and the claimed offset in seconds. Raises: BadTime."""
    if not isinstance(text, str) or len(text) > _MOST_TEXT:
        raise BadTime("is not a time")
    return _read(text)


@lru_cache(maxsize=4096)  # a job and its steps have most of their times in common
def _read(text: str) -> tuple[str, int | None]:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadTime(f"{text!r} is not a time") from None
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise BadTime(f"{text!r} is not a time of this age")
    offset = moment.utcoffset()
    clock = moment.replace(tzinfo=None, microsecond=0).isoformat()
    return clock, None if offset is None else int(offset.total_seconds())


def read_moment(text: object) -> int:
    """Epoch seconds of a time noted as it was measured: its offset is right. Raises: BadTime."""
    clock, offset = read_time(text)
    if offset is None:
        raise BadTime(f"{clock} has no offset from UTC")
    return Clock(None).moments(clock, offset)[0]


class Clock:
    """Local texts to epoch seconds: by the cluster's zone or, if unknown, by claimed offsets."""

    def __init__(self, zone: ZoneInfo | None) -> None:
        self._zone = zone

    def moments(self, clock: str, offset: int | None) -> tuple[int, ...]:
        """Epoch seconds, the likelier first: an hour that comes twice in the year has two."""
        local = datetime.fromisoformat(clock)
        if self._zone is None:
            return (_seconds(local.replace(tzinfo=UTC)) - (offset or 0),)
        folds = [local.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1)]
        claimed = timedelta(seconds=offset) if offset is not None else None
        folds.sort(key=lambda moment: moment.utcoffset() != claimed)
        return tuple(dict.fromkeys(_seconds(moment) for moment in folds))


def _seconds(moment: datetime) -> int:
    return int((moment.astimezone(UTC) - _EPOCH).total_seconds())


# Of a job: name, state, user, account, partition, submit, end, hosts, cpus, nodes, gpus,
# gpu_models, asked_cpus, exit, elapsed, user_s, system_s, suspended, limit_s, memory, billing,
# energy, array, task.
# Of a step: cpu_s, rss, vm. Absent is unknown.
Fields = dict[str, Any]

# Not over. What is none of these and has an end is over, whatever it is called.
LIVE: Final = frozenset(
    {
        *("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "RESIZING"),
        *("RESV_DEL_HOLD", "REQUEUE_FED", "REQUEUE_HOLD", "SIGNALING", "SPECIAL_EXIT"),
        *("STAGE_OUT", "STOPPED"),
    }
)
# Begins the place of what has no start yet; the time of submission follows where it is known
WAITING: Final = "?"
_PENDING: Final = "PENDING"
_UNKNOWN_TIMES: Final = frozenset({"", "Unknown", "None"})
_MOST_COUNT: Final = 2**53
_MOST_CPUS: Final = 2**31 - 1
_MOST_NAME: Final = 1024
_MOST_STEP: Final = 64
_MOST_RANGES: Final = 10_000
# What waits or is described; the rest of what a pending record may hold is not of a run.
_DESCRIPTION: Final = frozenset(
    {"name", "user", "account", "partition", "submit", "asked_cpus", "array", "task", "state"}
)


class BadSonarRecord(Exception):
    """A record that cannot be understood, and why."""


class Observation(NamedTuple):
    """What one record says. A tuple, because there are millions."""

    job: int
    step: str  # '' is the job itself
    start: str  # what the clock showed, or WAITING and the time of submission
    over: int  # 1: an ended job says it, 0: a waiting or running one
    at: int  # when it was said
    fields: Fields
    offsets: dict[str, int | None]  # that were claimed for the times here


def _sacct(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    found = entry.get("sacct") or {}
    if not isinstance(found, dict):
        raise BadSonarRecord("sacct is not an object")
    return found


class Layer(NamedTuple):
    """What was reported at one time, without what newer records replaced."""

    over: int
    at: int
    fields: Fields


def read_record(entry: object, at: int, *, right_sizes: bool) -> Observation:
    """Raises: BadSonarRecord."""
    if not isinstance(entry, dict):
        raise BadSonarRecord("is not an object")
    job = _count(entry, "job_id")
    if not job:
        raise BadSonarRecord("has no job_id")
    step, sacct = _step(entry.get("job_step")), _sacct(entry)
    offsets: dict[str, int | None] = {}
    state = _name(entry, "job_state").split(" ", 1)[0]
    start = "" if state == _PENDING else _time(entry, "start_time", offsets)
    submit = _time(entry, "submit_time", offsets)
    if step:
        fields = _step_fields(sacct, right_sizes=right_sizes)
    else:
        times = {"state": state, "submit": submit, "end": _time(entry, "end_time", offsets)}
        fields = _job_fields(entry, sacct) | times
        if state == _PENDING:
            fields = _described(fields)
    return Observation(
        job=job,
        step=step,
        start=start or f"{WAITING}{'' if step else submit}",
        over=int(state not in LIVE),
        at=at,
        fields={key: value for key, value in fields.items() if value not in (None, "", 0)},
        offsets=offsets,
    )


def _described(fields: Fields) -> Fields:
    """Of a job that has not begun only what describes it."""
    return {key: value for key, value in fields.items() if key in _DESCRIPTION}


def overlay(layers: Sequence[Layer], new: Layer) -> list[Layer]:
    """All that is said, the newest first, without repetition, in whatever order it came."""
    if not layers:
        return [new] if new.fields else []
    stacked = {(layer.over, layer.at): layer.fields for layer in layers}
    same = stacked.get((new.over, new.at))
    stacked[new.over, new.at] = new.fields if same is None else _greater(same, new.fields)
    seen: set[str] = set()
    left = []
    for (over, at), fields in sorted(stacked.items(), key=lambda pair: pair[0], reverse=True):
        own = {key: value for key, value in fields.items() if key not in seen}
        if own:
            left.append(Layer(over, at, own))
        seen |= own.keys()
    return left


def merged(layers: Sequence[Layer]) -> Fields:
    """The fields of all layers; newer ones win over older ones, and of two of one time the last."""
    if len(layers) == 1:
        return layers[0].fields
    fields: Fields = {}
    for layer in sorted(layers, key=lambda layer: layer[:2]):
        fields |= layer.fields
    return fields


def _greater(one: Fields, other: Fields) -> Fields:
    """Of two records of the same time the greater of each value, so that order does not matter."""
    greater, as_text = one | other, partial(json.dumps, sort_keys=True)
    for key in one.keys() & other.keys():
        greater[key] = max(one[key], other[key], key=as_text)
    return greater


def _job_fields(entry: Mapping[str, Any], sacct: Mapping[str, Any]) -> Fields:
    tres = read_tres(_text(entry, "allocated_resources") or _text(sacct, "AllocTRES"))
    return {
        "name": _text(entry, "job_name")[:_MOST_NAME],
        "user": _name(entry, "user_name"),
        "account": _name(entry, "account"),
        "partition": _name(entry, "partition"),
        "hosts": _hosts(entry.get("nodes")),
        "cpus": tres.cpus,
        "nodes": tres.nodes,
        "gpus": tres.gpus,
        "gpu_models": models_text(tres),
        "asked_cpus": _count(entry, "requested_cpus", _MOST_CPUS),
        "exit": _count(entry, "exit_code"),
        "elapsed": _count(sacct, "ElapsedRaw"),
        "user_s": _count(sacct, "UserCPU"),
        "system_s": _count(sacct, "SystemCPU"),
        "suspended": _count(entry, "suspend_time"),
        "limit_s": _limit_s(entry.get("time_limit")),
        "memory": tres.memory_kib,
        "billing": tres.billing,
        "energy": tres.energy_j,
        "array": _count(entry, "array_job_id"),
        "task": _count(entry, "array_task_id"),
    }


def _limit_s(value: object) -> int | None:
    """Sonar writes two seconds more; less are no limit. Odd ones are unknown: for charges only."""
    if not isinstance(value, int) or isinstance(value, bool) or not 2 < value <= _MOST_COUNT:
        return None
    return value - 2


def _step_fields(sacct: Mapping[str, Any], *, right_sizes: bool) -> Fields:
    fields: Fields = {"cpu_s": _count(sacct, "AveCPU")}
    if right_sizes:
        fields |= {"rss": _count(sacct, "MaxRSS"), "vm": _count(sacct, "MaxVMSize")}
    return fields


def _step(step: object) -> str:
    if step is None:
        return ""
    if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < _MOST_COUNT:
        return str(step)
    if not isinstance(step, str) or len(step) > _MOST_STEP:
        raise BadSonarRecord("job_step is not the name of a step")
    return clean(step)


def _time(entry: Mapping[str, Any], key: str, offsets: dict[str, int | None]) -> str:
    text = entry.get(key)
    if text is None or (isinstance(text, str) and text in _UNKNOWN_TIMES):
        return ""
    try:
        clock, offset = read_time(text)
    except BadTime as error:
        raise BadSonarRecord(f"{key}: {error}") from None
    offsets[clock] = offset
    return clock


def _count(entry: Mapping[str, Any], key: str, most: int = _MOST_COUNT) -> int | None:
    """A whole number, rounded; None for zero, which is how Go and Rust write nothing."""
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSonarRecord(f"{key} is not a number")
    if not 0 <= value <= most:  # also what is not finite
        raise BadSonarRecord(f"{key} is {str(value)[:30]}, which is out of range")
    return int(value + 0.5) if isinstance(value, float) else value or None


def _text(entry: Mapping[str, Any], key: str) -> str:
    text = entry.get(key)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise BadSonarRecord(f"{key} is not text")
    return clean(text)


def _name(entry: Mapping[str, Any], key: str) -> str:
    name = _text(entry, key)
    if len(name) > _MOST_NAME:
        raise BadSonarRecord(f"{key} is {len(name)} characters long")
    return name


def _hosts(nodes: object) -> list[str] | None:
    """Ranges of names as they are: what they stand for is only examined when the job is over."""
    if nodes is None:
        return None
    if not isinstance(nodes, list) or not all(isinstance(each, str) for each in nodes):
        raise BadSonarRecord("nodes is not a list of names")
    if len(nodes) > _MOST_RANGES or sum(map(len, nodes)) > 2**18:
        raise BadSonarRecord("nodes is too long a list")
    return [clean(each) for each in nodes] or None
