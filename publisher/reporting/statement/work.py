"""What jobs used, at the CE and as it was delivered, in all and by VO."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from publisher.ledger.contract import Entries
from publisher.model.entry import RowTotal
from publisher.model.totals import SummaryGroup, ascii_key, group_of
from publisher.reporting.usage import Used, by_weight

_SI2K_PER_THOUSANDTH: Final = 4  # a group has a 250th of a Si2k second, in millionths
_MICRO_PER_THOUSANDTH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Use; None is unknown. `scaled`: wall x cores x benchmark in 1/1000 unit s, by type.

    `core_s` is wall time x cores; an unknown number of cores counts as one.
    """

    jobs: int
    wall_s: int | None = None
    core_s: int | None = None
    cpu_s: int | None = None
    scaled: Mapping[str, int] | None = None
    gpu_s: int | None = None


def summed(works: Iterable[Work]) -> Work:
    """Return the sum; what is unknown of one is unknown of all."""
    found = list(works)
    scaled: Counter[str] | None = Counter()
    for work in found:
        if scaled is None or work.scaled is None:
            scaled = None
        else:
            scaled.update(work.scaled)
    return Work(
        jobs=sum(work.jobs for work in found),
        wall_s=_sum_or_unknown(work.wall_s for work in found),
        core_s=_sum_or_unknown(work.core_s for work in found),
        cpu_s=_sum_or_unknown(work.cpu_s for work in found),
        scaled=scaled,
        gpu_s=_sum_or_unknown(work.gpu_s for work in found),
    )


def _sum_or_unknown(values: Iterable[int | None]) -> int | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


class VoWork(NamedTuple):
    """What jobs of a VO used at the CE, and what of that was delivered; None where not known."""

    at_ce: Work
    delivered: Work | None


class DeliveredRows(NamedTuple):
    """Jobs that a receiver accepted; its rows, None where the ledger has no sums of just these."""

    jobs: int
    groups: Sequence[SummaryGroup] | None
    wall_s: int | None
    cpu_s: int | None


def delivered_rows(target: str, month: int, jobs: int, entries: Entries) -> DeliveredRows:
    """Return what the receiver accepted: sums by its keys, as far as the ledger keeps them."""
    rows = [row for row in entries.rows(target, month) if row.counts.jobs]
    if sum(row.counts.jobs for row in rows) != jobs:
        return DeliveredRows(jobs, None, None, None)
    wall_s = sum(row.counts.wall_s for row in rows)
    cpu_s = sum(row.counts.cpu_s for row in rows)
    groups: list[SummaryGroup] | None = None
    if all(map(_adds_up, rows)):
        groups = list(map(group_of, rows))
    return DeliveredRows(jobs, groups, wall_s, cpu_s)


def _adds_up(row: RowTotal) -> bool:
    """Return whether its receiver adds up under the fields of a summary."""
    return "ServiceLevelType" in json.loads(row.key.fields.text)


def total(sent: DeliveredRows) -> Work:
    if sent.groups is None:
        return Work(jobs=sent.jobs, wall_s=sent.wall_s, cpu_s=sent.cpu_s)
    return _work_of_rows(sent.groups)


def _work_of_rows(groups: Sequence[SummaryGroup]) -> Work:
    return Work(
        jobs=sum(group.jobs for group in groups),
        wall_s=sum(group.wall_s for group in groups),
        core_s=sum(group.wall_s * (group.cpu_count or 1) for group in groups),
        cpu_s=sum(group.cpu_s for group in groups),
        scaled=_scaled(groups),
    )


def work_at_ce(used: Used) -> Work:
    """Return what jobs used at the CE. GPU time is known only where a batch system is a source."""
    return Work(
        jobs=used.jobs,
        wall_s=used.wall_s,
        core_s=used.wall_core_s,
        cpu_s=used.cpu_s,
        scaled=used.scaled,
    )


def work_by_vo(at_ce: Mapping[str, Used], sent: DeliveredRows) -> dict[str, VoWork]:
    """Return the work of each VO, most core hours first; a receiver may know more VOs than the CE
    has today.
    """
    groups: defaultdict[str, list[SummaryGroup]] = defaultdict(list)
    for group in sent.groups or ():
        groups[group.vo].append(group)
    names = {ascii_key(name): name for name in at_ce}
    theirs = {names.get(name, name): _work_of_rows(each) for name, each in groups.items()}
    nothing = None if sent.groups is None else Work(jobs=0, wall_s=0, core_s=0, cpu_s=0, scaled={})
    found = {
        name: VoWork(work_at_ce(used), theirs.get(name, nothing)) for name, used in by_weight(at_ce)
    }
    none_here = work_at_ce(Used())
    return found | {
        name: VoWork(none_here, work) for name, work in theirs.items() if name not in found
    }


def _scaled(groups: Iterable[SummaryGroup]) -> Counter[str]:
    scaled: Counter[str] = Counter()
    for group in groups:
        per_unit = _SI2K_PER_THOUSANDTH if group.kind == "Si2k" else _MICRO_PER_THOUSANDTH
        scaled[group.kind] += group.normalised_wall_micro * (group.cpu_count or 1) // per_unit
    return scaled
