"""Entries: what one run counts for at one receiver.

A run has three keys. The *run key* names it with us, wherever its row is. The *record key* names
its record at a receiver that keeps single records. The *row key* names the row of the receiver's
totals that it adds to. An example, of a job that was submitted at 1767225600 and ended an hour
later:

    run     b"\\x69\\x55\\xb9\\x00" + 7 bytes of its JobID's digest + 4 of its LocalJobID's
    record  site EXAMPLE-SITE, prefix '', local id 4711, end 1767229200
    row     month 24312, Site EXAMPLE-SITE, GlobalUserName /CN=ann, VO atlas, ..., Processors 8
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Final, NamedTuple, NewType

from publisher.model.job import Epoch

RunKey = NewType("RunKey", bytes)
JOB_PART: Final = slice(4, 11)  # of a run key: the digest of its job's id
_LATEST: Final = 0xFFFFFFFF  # a submission time in 4 bytes: until 2106
_JOB_DIGEST: Final = blake2b(digest_size=7)
_LOCAL_DIGEST: Final = blake2b(digest_size=4)
_ROW_DIGEST_BYTES: Final = 12


def run_key(submitted_at: int, job_id: str, local_id: str) -> RunKey:
    """Return the key of a run: its submission time first, so that new runs are neighbours.

    Two of a million runs that were submitted in the same second share it with probability 1e-14.
    """
    job, local = _JOB_DIGEST.copy(), _LOCAL_DIGEST.copy()
    job.update(job_id.encode("utf-8", "surrogateescape"))
    local.update(local_id.encode("utf-8", "surrogateescape"))
    second = max(0, min(submitted_at, _LATEST))
    return RunKey(second.to_bytes(4, "big") + job.digest() + local.digest())


class RecordKey(NamedTuple):
    """What a receiver knows a single record by: site, prefix of local ids, local id and end."""

    site: str
    localid_prefix: str
    local_id: str  # without the prefix
    ended_at: Epoch


class RowFields(NamedTuple):
    """The fields under which a receiver adds records up, but for the month.

    `digest` is that of the values as the receiver compares them; `text` has the fields as records
    have them, as JSON: {"Site": "EXAMPLE-SITE", "VO": "atlas", ...}.
    """

    digest: bytes
    text: str

    @classmethod
    def of(cls, named: dict[str, str], compared: tuple[object, ...]) -> RowFields:
        """Return fields by name, with the digest of the values that the receiver compares."""
        digest = blake2b(repr(compared).encode(), digest_size=_ROW_DIGEST_BYTES).digest()
        return cls(digest, json.dumps(named, separators=(",", ":")))


class RowKey(NamedTuple):
    """A row of a receiver's totals: its month (12 x year + month - 1, UTC by end) and fields."""

    month: int
    fields: RowFields


class Entry(NamedTuple):
    """What one run counts for at one receiver. Times are in seconds.

    `digest` is that of the run's own values as its source has them (`JobRecord.values_digest`).
    """

    run: RunKey
    record: RecordKey
    row: RowKey
    wall_s: int
    cpu_s: int
    digest: bytes


class ReceiverName(NamedTuple):
    """A service and place where rows accumulate, and what is counted there.

    `keeps_first`: of two records under one id the first stays; otherwise the later replaces it.
    """

    place: str  # for people, such as `AMS msg.example.org, project accounting, topic gLite-APEL`
    keeps_first: bool = False
