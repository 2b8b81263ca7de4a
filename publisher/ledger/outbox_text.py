"""The records of an outstanding message as text: what stands in `outbox.records`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from publisher.ledger.base import Carried
from publisher.model.job import Epoch, JobId, RowRef
from publisher.model.message import Rendered

# Flat lists of plain values, made here: to look for circles in them takes a quarter of the time.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def carried_text(records: Sequence[Carried]) -> str:
    """The records of an outstanding message, as `outbox.records` keeps them."""
    return _ENCODER.encode(
        [
            (
                record.row.database,
                record.row.record_id,
                record.job_id,
                record.local_id,
                record.ended_at,
                record.fingerprint,
                record.content_bytes,
                int(record.first_time),
                record.submit_host,
            )
            for record in records
        ]
    )


def rendered_text(records: Sequence[Rendered]) -> str:
    """The same of records that were rendered just now, without a `Carried` of each (0.7 of 2 µs)."""
    return _ENCODER.encode(
        [
            (
                record.job.row.database,
                record.job.row.record_id,
                record.job.job_id,
                record.job.local_id,
                record.entry.ended_at,
                record.entry.fingerprint,
                len(record.content),
                int(record.first_time),
                record.submit_host,
            )
            for record in records
        ]
    )


def carried_from(text: str) -> tuple[Carried, ...]:
    """The records of an outstanding message from what `carried_text` made of them."""
    return tuple(_carried(line) for line in json.loads(text))


def _carried(line: Sequence[object]) -> Carried:
    file, record_id, job_id, local_id, ended_at, fingerprint, content_bytes, first_time, submit_host = line
    return Carried(
        row=RowRef(database=str(file), record_id=int(str(record_id))),
        job_id=JobId(str(job_id)),
        local_id=str(local_id),
        ended_at=Epoch(int(str(ended_at))),
        fingerprint=int(str(fingerprint)),
        content_bytes=int(str(content_bytes)),
        first_time=bool(first_time),
        submit_host=str(submit_host),
    )
