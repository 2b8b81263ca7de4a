"""The key under which APEL's summariser adds up a single job record.

Job records replace each other at the receiver, but their summaries do not: a job sent again with
another benchmark, user, VO, submit host or number of cores makes a second row, and the first one
stays (apel facts, section 7, measured).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from publisher.model.policy import Placement, PublishedJob, UserIdentity
from publisher.model.rates import AppliedBenchmark
from publisher.model.totals.summary import SummaryKey, ascii_key, by_preference, column, month_number

_REMEMBERED: Final = 20_000


class SummaryKeys:
    """Works out summary keys, each once: jobs of one user and place share theirs."""

    def __init__(self, *, several: bool = False) -> None:
        """`several`: all benchmarks of a job travel, and the server keeps one by its own preference."""
        self._several = several
        # The shared objects are held, so that their ids cannot come to mean others.
        self._known: dict[tuple[int, ...], tuple[SummaryKey, tuple[UserIdentity, Placement, AppliedBenchmark]]] = {}

    def of(self, job: PublishedJob) -> SummaryKey:
        """Raises: Unfit for a job that ended in no calendar month."""
        month = month_number(job.ended_at)
        nodes, cores = job.job.node_count or 0, job.job.cpu_count or 0
        at = (month, id(job.who), id(job.where), id(job.benchmark), nodes, cores)
        known = self._known.get(at)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[at] = (
                _key(job, month, nodes, cores, self._several),
                (job.who, job.where, job.benchmark),
            )
        return known[0]


def _key(job: PublishedJob, month: int, nodes: int, cores: int, several: bool) -> SummaryKey:
    who, where = job.who, job.where
    benchmarks = by_preference(job.benchmark.benchmarks) if several else job.benchmark.benchmarks
    level = " ".join(f"{one.kind} {one.text}" for one in benchmarks[:1]) or "no benchmark"
    texts = (where.site, who.user, who.vo, who.group, who.role, where.submit_host, where.infrastructure)
    parts = (month, tuple(map(column, texts)), level, nodes, cores)
    site, user, vo, group, role, host, infrastructure = (ascii_key(text) or "None" for text in texts)
    return SummaryKey(
        month=month,
        digest=blake2b(repr(parts).encode(), digest_size=8).digest(),
        site=site,
        text=f"VO {vo}, group {group}, role {role}, user {user}, SubmitHost {host}, {infrastructure}, {level}, "
        f"{nodes} nodes, {cores} processors",
    )
