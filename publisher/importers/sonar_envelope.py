"""One envelope of Sonar: what it is about, and its records of jobs.

Spec: other-sources facts, sections 2.1 and 2.2. Unknown keys are ignored. The token of `meta` is never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from publisher.importers.sonar_times import BadTime, read_moment
from publisher.importers.texts import clean

_VERSION: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?")
# Sizes of memory were cut before: the unit up to 0.15, what is no whole number up to 0.18.1.
_RIGHT_SIZES: Final = (0, 18, 2)
_MOST_NAME: Final = 255
_MOST_DETAIL: Final = 200


class BadEnvelope(Exception):
    """An envelope that cannot be understood, and why."""


class Kind(StrEnum):
    """What an envelope is about."""

    JOBS = "job"
    SAMPLE = "sample"
    SYSTEM = "sysinfo"
    CLUSTER = "cluster"
    ERRORS = "errors"


_KINDS: Final = {
    "job": Kind.JOBS,
    "jobs": Kind.JOBS,
    "sample": Kind.SAMPLE,
    "sysinfo": Kind.SYSTEM,
    "cluster": Kind.CLUSTER,
    "cluzter": Kind.CLUSTER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """`at` is when it was taken, epoch seconds; `attributes` is what it holds, or nothing for errors."""

    kind: Kind
    at: int
    cluster: str
    node: str
    right_sizes: bool  # whether sizes of memory can be believed
    strange_format: str  # of the data, '' for the one that is known: 0, which is not written
    attributes: dict[str, Any]
    errors: tuple[str, ...] = ()

    def entries(self, key: str) -> Sequence[Any]:
        """A list of it, empty when absent. Raises: BadEnvelope."""
        found = self.attributes.get(key) or []
        if not isinstance(found, list):
            raise BadEnvelope(f"{key} is no list")
        return found


def open_envelope(decoded: dict[str, Any]) -> Envelope:
    """Raises: BadEnvelope."""
    meta, held, errors = decoded.get("meta"), decoded.get("data"), decoded.get("errors")
    if not isinstance(meta, dict):
        raise BadEnvelope("has no meta: not an envelope of Sonar")
    if held is not None and errors is not None:
        raise BadEnvelope("has both data and errors")
    if errors is not None:
        told = _told(errors)
        return Envelope(
            kind=Kind.ERRORS,
            at=0,
            cluster="",
            node="",
            right_sizes=False,
            strange_format="",
            attributes={},
            errors=told,
        )
    if not isinstance(held, dict):
        raise BadEnvelope("has neither data nor errors")
    what, attributes = held.get("type"), held.get("attributes")
    if what == "slurm_jobs":
        raise BadEnvelope(
            "written by Sonar before 0.13, in a form that is not read: import what a later one has written"
        )
    if not isinstance(what, str) or what not in _KINDS:
        raise BadEnvelope(f"of the type {_word(what)[:40]!r}, which is not known")
    if not isinstance(attributes, dict):
        raise BadEnvelope("has no attributes")
    try:
        at = read_moment(attributes.get("time"))
    except BadTime as error:
        raise BadEnvelope(f"time: {error}") from None
    return Envelope(
        kind=_KINDS[what],
        at=at,
        cluster=_name(attributes, "cluster"),
        node=_name(attributes, "node"),
        right_sizes=_right_sizes(meta),
        strange_format=_strange_format(meta),
        attributes=attributes,
    )


def _name(attributes: dict[str, Any], key: str) -> str:
    name = attributes.get(key, "")
    if not isinstance(name, str) or len(name) > _MOST_NAME:
        raise BadEnvelope(f"{key} is no name")
    return clean(name)


def _right_sizes(meta: dict[str, Any]) -> bool:
    """By Sonar's version; other producers are believed."""
    if meta.get("producer") != "sonar":
        return True
    found = _VERSION.match(_word(meta.get("version")))
    return found is not None and tuple(int(part or 0) for part in found.groups()) >= _RIGHT_SIZES


def _strange_format(meta: dict[str, Any]) -> str:
    form = meta.get("format", 0)
    return "" if form == 0 and isinstance(form, int) and not isinstance(form, bool) else repr(form)[:40]


def _told(errors: object) -> tuple[str, ...]:
    if not isinstance(errors, list) or not errors:
        raise BadEnvelope("errors is no list, or an empty one")
    return tuple(_error(each) for each in errors)


def _error(error: object) -> str:
    if not isinstance(error, dict):
        return "an error without words"
    node, detail = _word(error.get("node")) or _word(error.get("cluster")), _word(error.get("detail"))
    where = f"{node[:_MOST_NAME]}: " if node else ""
    return clean(where + (detail[:_MOST_DETAIL] or "no detail"))


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
