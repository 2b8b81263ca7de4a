"""A record of `slurm_jobs`: what it says of a job or of a step of one, and where that belongs.

Records are partial and are met again and again. What is said of one run is laid over field by field: what an ended job says
over what a running one says, and then the later over the earlier. Spec: other-sources facts, sections 2.2 to 2.4.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from publisher.importers.sonar_times import BadTime, read_time
from publisher.importers.sonar_tres import read_tres
from publisher.importers.texts import clean

Fields = dict[str, Any]
"""Of a job: name, state, user, account, partition, submit, end, hosts, cpus, nodes, gpus, asked_cpus, exit, elapsed, user_s,
system_s, suspended, limit_s, memory, billing, array, task. Of a step: cpu_s, rss, vm. Absent is unknown."""

# Not over. What is none of these and has an end is over, whatever it is called.
LIVE: Final = frozenset(
    {
        *("PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "RESIZING", "RESV_DEL_HOLD", "REQUEUE_FED"),
        *("REQUEUE_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED"),
    }
)
WAITING: Final = "?"  # begins the place of what has no start yet; the time of submission follows where it is known
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


class BadRecord(Exception):
    """A record that cannot be understood, and why."""


class Said(NamedTuple):
    """What one record says. A tuple, because there are millions."""

    job: int
    step: str  # '' is the job itself
    start: str  # what the clock showed, or WAITING and the time of submission
    over: int  # 1: an ended job says it, 0: a waiting or running one
    at: int  # when it was said
    fields: Fields
    offsets: dict[str, int | None]  # that were claimed for the times here


class Layer(NamedTuple):
    """What was said at one time, without what was said over it."""

    over: int
    at: int
    fields: Fields


def read_record(entry: object, at: int, *, right_sizes: bool) -> Said:
    """Raises: BadRecord."""
    if not isinstance(entry, dict):
        raise BadRecord("is no object")
    job = _count(entry, "job_id")
    if not job:
        raise BadRecord("has no job_id")
    step = _step(entry.get("job_step"))
    sacct = entry.get("sacct") or {}
    if not isinstance(sacct, dict):
        raise BadRecord("sacct is no object")
    offsets: dict[str, int | None] = {}
    state = _name(entry, "job_state").split(" ", 1)[0]
    start = "" if state == _PENDING else _time(entry, "start_time", offsets)
    submit = _time(entry, "submit_time", offsets)
    if step:
        fields = _step_fields(sacct, right_sizes=right_sizes)
    else:
        fields = _job_fields(entry, sacct)
        fields |= {"state": state, "submit": submit, "end": _time(entry, "end_time", offsets)}
        if state == _PENDING:
            fields = {key: value for key, value in fields.items() if key in _DESCRIPTION}
    return Said(
        job=job,
        step=step,
        start=start or f"{WAITING}{'' if step else submit}",
        over=int(state not in LIVE),
        at=at,
        fields={key: value for key, value in fields.items() if value not in (None, "", 0)},
        offsets=offsets,
    )


def overlay(layers: Sequence[Layer], new: Layer) -> list[Layer]:
    """All that is said, the newest first, without what is said again above it. The order in which it came does not matter."""
    if not layers:
        return [new] if new.fields else []
    stacked: dict[tuple[int, int], Fields] = {(layer.over, layer.at): layer.fields for layer in layers}
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


def laid(layers: Sequence[Layer]) -> Fields:
    """What holds when the newer is laid over the older, and of two of one time the last."""
    if len(layers) == 1:
        return layers[0].fields
    fields: Fields = {}
    for layer in sorted(layers, key=lambda layer: layer[:2]):
        fields |= layer.fields
    return fields


def _greater(one: Fields, other: Fields) -> Fields:
    """Of what was said at the same time, whichever of two came first."""
    merged = one | other
    for key in one.keys() & other.keys():
        merged[key] = max(one[key], other[key], key=lambda value: json.dumps(value, sort_keys=True))
    return merged


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
        "asked_cpus": _count(entry, "requested_cpus", _MOST_CPUS),
        "exit": _count(entry, "exit_code"),
        "elapsed": _count(sacct, "ElapsedRaw"),
        "user_s": _count(sacct, "UserCPU"),
        "system_s": _count(sacct, "SystemCPU"),
        "suspended": _count(entry, "suspend_time"),
        "limit_s": _limit_s(entry.get("time_limit")),
        "memory": tres.memory_kib,
        "billing": tres.billing,
        "array": _count(entry, "array_job_id"),
        "task": _count(entry, "array_task_id"),
    }


def _limit_s(value: object) -> int | None:
    """Sonar writes two seconds more; less than two are no limit. Only charges ask for it, so that an odd one is unknown."""
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
        raise BadRecord("job_step is no name of a step")
    return clean(step)


def _time(entry: Mapping[str, Any], key: str, offsets: dict[str, int | None]) -> str:
    text = entry.get(key)
    if text is None or (isinstance(text, str) and text in _UNKNOWN_TIMES):
        return ""
    try:
        clock, offset = read_time(text)
    except BadTime as error:
        raise BadRecord(f"{key}: {error}") from None
    offsets[clock] = offset
    return clock


def _count(entry: Mapping[str, Any], key: str, most: int = _MOST_COUNT) -> int | None:
    """A whole number, rounded; None for zero, which is how Go and Rust write nothing."""
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRecord(f"{key} is no number")
    if not 0 <= value <= most:  # also what is not finite
        raise BadRecord(f"{key} is {str(value)[:30]}, which is out of range")
    return int(value + 0.5) if isinstance(value, float) else value or None


def _text(entry: Mapping[str, Any], key: str) -> str:
    text = entry.get(key)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise BadRecord(f"{key} is no text")
    return clean(text)


def _name(entry: Mapping[str, Any], key: str) -> str:
    name = _text(entry, key)
    if len(name) > _MOST_NAME:
        raise BadRecord(f"{key} is {len(name)} characters long")
    return name


def _hosts(nodes: object) -> list[str] | None:
    """Ranges of names as they are: what they stand for is only looked at when the job is over."""
    if nodes is None:
        return None
    if not isinstance(nodes, list) or not all(isinstance(each, str) for each in nodes):
        raise BadRecord("nodes is no list of names")
    if len(nodes) > _MOST_RANGES or sum(map(len, nodes)) > 2**18:
        raise BadRecord("nodes is too long a list")
    return [clean(each) for each in nodes] or None
