"""Batch systems and the ARC CEs in front of them, as linking knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from publisher.jobs.tables.batch_runs import CeJob


class LinkedSystem(NamedTuple):
    """A batch system, and the CEs that submit to it. Times are in seconds.

    `databases` are those of its CEs, which must be loaded before a run is taken for nobody's; None
    where one is missing. `ce_of` gives the CE that a source belongs to, by its name; None where it
    is no CE in front of this system. `join_wait_s` is how long a job of a CE waits for its run;
    None where runs are not joined.
    """

    name: str
    lrms: str  # what A-REX calls it, or a part of that
    databases: frozenset[str] | None = frozenset()
    trouble: str = ""  # why it cannot be told which these are
    ce_of: Callable[[str], str | None] = lambda _: None
    wait_s: int = 0
    outage_s: int = 0
    join_wait_s: int | None = None

    @property
    def has_ces(self) -> bool:
        """Whether any CE submits to it."""
        return self.databases is None or bool(self.databases)

    def has(self, job: CeJob) -> bool:
        """Return whether its CE still has a job."""
        return job.is_there and (self.databases is None or job.source in self.databases)

    def ran(self, lrms: str) -> bool:
        """Return whether it may have run a job of which A-REX names this batch system, or none."""
        return not lrms or self.lrms in lrms.lower()
