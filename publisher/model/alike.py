"""Finished runs that differ in nothing but who they are, when they ended and what they used: one record stands for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from publisher.model.job import Epoch, JobId, JobRecord

# RecordID, JobID, LocalJobID, end (epoch seconds), wall time, CPU time of user and kernel (seconds). A tuple, because one is
# made for every job, and nothing else.
BareRun = tuple[int, JobId, str, Epoch, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Complete runs with the example's status, user, VO, main FQAN, place, benchmark and numbers of nodes and cores.

    Their start is known to lie after 1970. Whatever else the example has is its own.
    """

    example: JobRecord
    runs: Sequence[BareRun]
