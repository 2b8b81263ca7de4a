"""Accelerators of jobs, as APEL is about to take them: JSON, a record a job and model of GPU.

The server keeps one row for each month, job, site and model. A job is named by its global id,
because local ids of two CEs are often the same.

Spec: APEL-accelerator-message 0.1 (apel/apel pull requests 348 and 459, not released).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import ClassVar, Final

from publisher.formats.apel.receiver import (
    ACCELERATORS,
    MOST_MODELS,
    MOST_RECORDS,
    associated_record,
    gpu_models,
)
from publisher.formats.apel.rules import INT_MAX, WHERE_RULES, WHO_RULES, require_run, require_text
from publisher.formats.base import Frame, Receiver
from publisher.formats.rules import fitting, latest_end, require
from publisher.model.errors import Unfit
from publisher.model.job import SideTable
from publisher.model.published import PublishedJob
from publisher.model.text import ascii_text, receiver_key
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
    frame: ClassVar[Frame] = Frame(head=_HEAD.encode("ascii"), separator=_SEPARATOR, tail=b"\n]}\n")

    def __init__(self) -> None:
        self._now = (datetime(1970, 1, 1, tzinfo=UTC), 0)

    def render(self, job: PublishedJob, made_at: datetime) -> bytes:
        """The objects of one job, one a line. No end time may be later than `made_at`."""
        if self._now[0] is not made_at:
            self._now = (made_at, latest_end(made_at))
        require_run(job, self._now[1])
        require(_APEL_WHERE_RULES, job.where)
        require(WHO_RULES, job.who)
        if year_and_month(month_number(job.ended_at))[0] > made_at.year:
            what = f"it ended at {job.ended_at}, in a year that APEL does not take yet"
            raise Unfit("end-in-future", what)
        made = [json.dumps(values, ensure_ascii=True) for values in _records(job)]
        if not 0 < len(made) <= MOST_MODELS:
            what = f"GPUs of {len(made)} models, a message has room for {MOST_MODELS}"
            raise Unfit("accelerator-models", what)
        return _SEPARATOR.join([text.encode("ascii") for text in made])

    def receiver_key(self, job: PublishedJob) -> tuple[object, ...]:
        """Site, month and job, as the server compares them."""
        site, record = receiver_key(job.where.site), receiver_key(associated_record(job))
        return site, month_number(job.ended_at), record

    def check(self, payload: bytes) -> None:
        """Raises: Unfit naming the first fault and where it is."""
        if not payload.startswith(self.frame.head):
            raise Unfit("accelerator-schema", "does not begin with the header of this message")
        try:
            records = json.loads(payload.decode("ascii"))["UsageRecords"]
        except ValueError as error:
            raise Unfit("accelerator-schema", f"is not JSON in ASCII: {error}") from error
        if not 0 < len(records) <= MOST_RECORDS:
            what = f"has {len(records)} records, a message has 1 to {MOST_RECORDS}"
            raise Unfit("accelerator-schema", what)
        for number, record in enumerate(records, start=1):
            if fault := _fault(record):
                raise Unfit("accelerator-schema", f"record {number}: {fault}")


def create(name: str) -> ApelAccelerator:
    return {ApelAccelerator.name: ApelAccelerator}[name]()


def _records(job: PublishedJob) -> Iterator[dict[str, object]]:
    year, month = year_and_month(month_number(job.ended_at))
    if year < _FIRST_YEAR:
        what = f"it ended in {year}, APEL takes accelerators from {_FIRST_YEAR} on"
        raise Unfit("end-out-of-range", what)
    user = ascii_key(job.who.user)
    texts = {
        "AssociatedRecord": associated_record(job),
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
    text = fitting(key, ascii_text(value), _CHARACTERS, "APEL")
    require_text(key, text)
    return text


def _is_whole(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _CHARACTERS


_USER: Final = "GlobalUserName"  # the one key that a record may lack
_TAKEN: Final[Mapping[str, Callable[[object], bool]]] = {
    "MeasurementMonth": _is_whole(1, 12),
    "MeasurementYear": _is_whole(_FIRST_YEAR, 9999),
    "AssociatedRecordType": "job".__eq__,
    "AssociatedRecord": _is_text,
    _USER: _is_text,
    "FQAN": _is_text,
    "SiteName": _is_text,
    "Count": _is_whole(1, INT_MAX),
    "AvailableDuration": _is_whole(0, INT_MAX),
    "Type": "GPU".__eq__,
    "Model": _is_text,
}


def _fault(record: object) -> str:
    """What the server would refuse in a record, or ''."""
    if not isinstance(record, dict):
        return "is not an object"
    if missing := _TAKEN.keys() - record.keys() - {_USER}:
        return f"lacks {', '.join(sorted(missing))}"
    refused = [key for key, value in record.items() if key not in _TAKEN or not _TAKEN[key](value)]
    return f"{refused[0]} is {record[refused[0]]!r}, which APEL does not take" if refused else ""
