"""Accelerators of jobs, as APEL is about to take them: JSON, a record for each job and model of GPU.

The server keeps one row for each month, job, site and model. A job is named by its global id, because local ids of two
CEs are often the same.

Spec: APEL-accelerator-message 0.1 (apel/apel pull requests 348 and 459, not released).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Final

from publisher.formats.apel.receiver import ACCELERATORS, MOST_MODELS, gpu_models
from publisher.formats.apel.rules import INT_MAX, WHERE_RULES, WHO_RULES, require_run
from publisher.formats.base import Frame, OwnValues, Receiver
from publisher.formats.rules import latest_end, require
from publisher.model.errors import Unfit
from publisher.model.job import SideTable
from publisher.model.policy import PublishedJob
from publisher.model.text import FORBIDDEN_IN_TEXT, ascii_text, receiver_key
from publisher.model.totals import ascii_key, month_number, year_and_month

_HEAD: Final = '{"Type": "APEL-accelerator-message", "Version": "0.1", "UsageRecords": [\n'
_SEPARATOR: Final = b",\n"
_APEL_WHERE_RULES: Final = tuple(rule for rule in WHERE_RULES if rule.receiver == "apel")
_FIRST_YEAR: Final = 2000
_CHARACTERS: Final = 255  # of the server's text columns


class ApelAccelerator:
    """A JSON object for each model of a job's GPUs."""

    name: ClassVar[str] = "apel-accelerator-0.1"
    receiver: ClassVar[Receiver] = ACCELERATORS
    needs: ClassVar[frozenset[SideTable]] = frozenset()
    own_values: ClassVar[OwnValues] = {}
    frame: ClassVar[Frame] = Frame(head=_HEAD.encode("ascii"), separator=_SEPARATOR, tail=b"\n]}\n")

    def __init__(self) -> None:
        self._now = (datetime(1970, 1, 1, tzinfo=UTC), 0)

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        """The objects of one job, an object a line. `made_at` is the clock that end times are held against."""
        if self._now[0] is not made_at:
            self._now = (made_at, latest_end(made_at))
        require_run(job, self._now[1])
        require(_APEL_WHERE_RULES, job.where)
        require(WHO_RULES, job.who)
        made = [json.dumps(values, ensure_ascii=True) for values in _records(job)]
        if not 0 < len(made) <= MOST_MODELS:
            raise Unfit("accelerator-models", f"GPUs of {len(made)} models, a message has room for {MOST_MODELS}")
        return _SEPARATOR.join([text.encode("ascii") for text in made])

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        """Site, month and job, as the server compares them."""
        return receiver_key(job.where.site), month_number(job.ended_at), receiver_key(job.job.job_id)

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and where it is."""
        try:
            found = json.loads(payload.decode("ascii"))
        except ValueError as error:
            raise Unfit("accelerator-schema", f"is not JSON in ASCII: {error}") from error
        if fault := next(_faults(_schema(), found, "message"), ""):
            raise Unfit("accelerator-schema", fault)


def create(name: str) -> ApelAccelerator:
    return {ApelAccelerator.name: ApelAccelerator}[name]()


def _records(job: PublishedJob) -> Iterator[dict[str, object]]:
    year, month = year_and_month(month_number(job.ended_at))
    if year < _FIRST_YEAR:
        raise Unfit("end-out-of-range", f"it ended in {year}, APEL takes accelerators from {_FIRST_YEAR} on")
    user = ascii_key(job.who.user)
    texts = {
        "AssociatedRecord": job.job.job_id,
        "FQAN": job.who.full_fqan() or "None",
        "SiteName": job.where.site,
        **({"GlobalUserName": user} if user else {}),
    }
    for model, count in gpu_models(job):
        if not 0 < count <= INT_MAX:
            raise Unfit("accelerators-out-of-range", f"{count} GPUs is not in 1 to {INT_MAX}")
        yield {
            "MeasurementMonth": month,
            "MeasurementYear": year,
            "AssociatedRecordType": "job",
            **{key: _text(key, value) for key, value in texts.items()},
            "Count": count,
            "AvailableDuration": job.job.wall_s,
            "Type": "GPU",
            "Model": _text("Model", model),
        }


def _text(key: str, value: str) -> str:
    """Raises: Unfit for a text that the server does not keep, or that would sink the message."""
    text = ascii_text(value)
    if not text:
        raise Unfit("value-missing", f"{key} is empty")
    if len(text) > _CHARACTERS:
        raise Unfit("text-too-long", f"{key} has {len(text)} characters, APEL keeps {_CHARACTERS}")
    if found := FORBIDDEN_IN_TEXT.search(text):
        raise Unfit("forbidden-text", f"{key} holds {found[0]!r}, which would sink the whole message")
    return text


@cache
def _schema() -> Mapping[str, Any]:
    text = (files("publisher.formats") / "schemas" / "apel_accelerator.json").read_text("ascii")
    found: Mapping[str, Any] = json.loads(text)
    return found


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
}


def _faults(schema: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
    """What our schema, which is of the few words of JSON Schema that are used here, finds in a value."""
    kinds = _TYPES.get(schema.get("type", ""))
    if kinds is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
        yield f"{at} is not of the type {schema['type']}"
        return
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else [value])
    if value not in allowed:
        yield f"{at} is {value!r}, not one of {', '.join(map(str, allowed))}"
    if isinstance(value, dict):
        yield from _object_faults(schema, value, at)
    elif isinstance(value, list):
        yield from _size_faults(schema, "Items", len(value), f"{at} has {len(value)} entries")
        for number, entry in enumerate(value, start=1):
            yield from _faults(schema["items"], entry, f"{at} {number}")
    elif isinstance(value, str):
        yield from _size_faults(schema, "Length", len(value), f"{at} has {len(value)} characters")
    else:
        yield from _size_faults(schema, "imum", value, f"{at} is {value}")


def _object_faults(schema: Mapping[str, Any], value: Mapping[str, Any], at: str) -> Iterator[str]:
    known = schema["properties"]
    yield from (f"{at}: {key} is missing" for key in schema["required"] if key not in value)
    yield from (f"{at}: {key} is no key" for key in value if key not in known)
    for key, entry in value.items():
        if key in known:
            yield from _faults(known[key], entry, f"{at}: {key}")


def _size_faults(schema: Mapping[str, Any], what: str, size: float, found: str) -> Iterator[str]:
    """`what` is what the schema writes behind min and max."""
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if least is not None and size < least:
        yield f"{found}, less than {least}"
    if most is not None and not size <= most:  # also what is no number
        yield f"{found}, more than {most}"
