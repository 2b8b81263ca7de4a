"""What the ledger counts of a message's records when they were accepted.

It is put together when the message is written down, from what was rendered: to read it back from the outbox takes 4 µs a
record, and is for messages of an earlier run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from publisher.ledger.contract import OutboxRecord
from publisher.ledger.sql.messages import pack as pack_row_ids
from publisher.model.job import Epoch, JobId, JobKey, job_key
from publisher.model.message import Rendered


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Job ids and keys in the message's order; `first` are end time and submit host of what was never delivered before."""

    job_ids: Sequence[JobId] = ()
    keys: Sequence[JobKey] = ()
    first: Sequence[tuple[Epoch, str]] = ()
    last_end: int = 0

    def rows_blob(self, row_ids: Mapping[str, str]) -> bytes | None:
        """Ids by JobID as `message.row_ids` keeps them; of the months of a summary there are none."""
        if not row_ids:
            return None
        return pack_row_ids(
            [(key, row_ids.get(job_id, "")) for job_id, key in zip(self.job_ids, self.keys, strict=True)]
        )


def of_rendered(records: Sequence[Rendered]) -> Arrival:
    """Of records that are about to leave."""
    return Arrival(
        job_ids=[record.job.job_id for record in records],
        keys=[record.entry.key for record in records],
        first=[(record.entry.ended_at, record.submit_host) for record in records if record.first_time],
        last_end=max([record.entry.ended_at for record in records], default=0),
    )


def of_carried(records: Sequence[OutboxRecord]) -> Arrival:
    """Of records as they are written down."""
    return Arrival(
        job_ids=[record.job_id for record in records],
        keys=[job_key(record.job_id, record.local_id) for record in records],
        first=[(record.ended_at, record.submit_host) for record in records if record.first_time],
        last_end=max([record.ended_at for record in records], default=0),
    )
