"""The groups of a month as the ledger keeps them: JSON, compressed, the same bytes for the same groups."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from decimal import Decimal
from hashlib import sha256

from publisher.model.benchmark import Benchmark
from publisher.model.job import Epoch
from publisher.model.summary import SummaryGroup


def encode(groups: Sequence[SummaryGroup]) -> bytes:
    rows = [
        [
            group.year,
            group.month,
            group.site,
            group.user,
            group.vo,
            group.vo_group,
            group.role,
            group.submit_host,
            group.infrastructure,
            group.kind,
            [[one.kind, str(one.value)] for one in group.benchmarks],
            group.node_count,
            group.cpu_count,
            group.earliest_end,
            group.latest_end,
            group.wall_s,
            group.cpu_s,
            group.normalised_wall_micro,
            group.normalised_cpu_micro,
            group.jobs,
        ]
        for group in groups
    ]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 6)


def decode(text: bytes | None) -> tuple[SummaryGroup, ...]:
    """No groups for None: nothing was counted or accepted yet."""
    return () if text is None else tuple(_group(row) for row in json.loads(zlib.decompress(text)))


def digest(text: bytes) -> str:
    """Of what the groups say, not of how they were compressed."""
    return sha256(zlib.decompress(text)).hexdigest()[:32]


def _group(row: list[object]) -> SummaryGroup:
    texts = [str(text) for text in row[2:10]]
    site, user, vo, vo_group, role, submit_host, infrastructure, kind = texts
    benchmarks = row[10] if isinstance(row[10], list) else []
    year, month, nodes, cores, earliest, latest, wall, cpu, wall_micro, cpu_micro, jobs = (
        int(str(number)) for number in [*row[:2], *row[11:]]
    )
    return SummaryGroup(
        year=year,
        month=month,
        site=site,
        user=user,
        vo=vo,
        vo_group=vo_group,
        role=role,
        submit_host=submit_host,
        infrastructure=infrastructure,
        kind=kind,
        benchmarks=tuple(Benchmark(kind=name, value=Decimal(value)) for name, value in benchmarks),
        node_count=nodes,
        cpu_count=cores,
        earliest_end=Epoch(earliest),
        latest_end=Epoch(latest),
        wall_s=wall,
        cpu_s=cpu,
        normalised_wall_micro=wall_micro,
        normalised_cpu_micro=cpu_micro,
        jobs=jobs,
    )
