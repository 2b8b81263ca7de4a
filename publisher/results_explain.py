"""Explanations as a JSON object and as lines. The JSON is a contract: `publisher(1)` documents it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from publisher.explaining import Explanation
from publisher.model.job import JobId

EXPLAIN_COLUMNS: Final = ("value", "published as", "rule", "field of the job")


def explain_json(job_id: JobId, found: Iterable[Explanation]) -> Mapping[str, Any]:
    return {
        "job": job_id,
        "explanations": [
            {
                "target": one.target,
                "format": one.format,
                "database": one.row.database,
                "record_id": one.row.record_id,
                "local_id": one.local_id,
                "fate": one.fate,
                "reason": one.reason,
                "values": [
                    {
                        "name": each.name,
                        "value": each.value or None,
                        "rule": each.rule,
                        "field": each.source or None,
                    }
                    for each in one.values
                ],
                "warnings": dict(one.oddities),
                "mends": dict(one.mends),
                "record": one.record or None,
                "unfit": one.unfit or None,
                "group_jobs": one.group_jobs,
            }
            for one in found
        ],
    }


def explain_heading(one: Explanation) -> list[str]:
    """The job and what becomes of it."""
    return [
        f"target {one.target}, format {one.format}",
        f"row {one.row.record_id} of {one.row.database}, batch id {one.local_id or 'none'}",
        f"{one.fate}: {one.reason}",
    ]


def explain_rows(one: Explanation) -> list[tuple[str, ...]]:
    return [(each.name, each.value or "-", each.rule, each.source or "-") for each in one.values]


def explain_notes(one: Explanation) -> list[str]:
    """What is odd about it, and what the record says less than the job."""
    notes = [f"odd, but no hindrance: {name}: {said}" for name, said in one.oddities]
    notes += [f"said otherwise: {name}: {said}" for name, said in one.mends]
    if one.unfit:
        notes.append(f"no record can be made: {one.unfit}")
    if one.group_jobs is not None:
        notes.append(f"the record is that of this job alone; its group has {one.group_jobs:,} jobs by now")
    return notes


def record_lines(one: Explanation) -> Sequence[str]:
    return one.record.splitlines()
