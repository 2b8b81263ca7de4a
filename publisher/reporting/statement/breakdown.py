"""Tables of a statement by VO, by project and by month: at the CE, and of that delivered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from publisher.model.text import NO_VO
from publisher.reporting.statement.figures import TargetStatement
from publisher.reporting.statement.page import Table
from publisher.reporting.statement.work import VoWork, Work, summed

_MOST_VOS: Final = 12  # in a table for people: a page
_MOST_PROJECTS: Final = 8


def added_up(
    targets: Sequence[TargetStatement],
) -> tuple[dict[str, VoWork], dict[str, Work]]:
    """Return the sums of a target's months, by VO and by project."""
    vos: dict[str, list[VoWork]] = {}
    projects: dict[str, list[Work]] = {}
    for target in targets:
        for name, pair in target.by_vo.items():
            vos.setdefault(name, []).append(pair)
        for name, work in target.by_project.items():
            projects.setdefault(name, []).append(work)
    by_vo = {name: _added(found) for name, found in vos.items()}
    return by_vo, {name: summed(found) for name, found in projects.items()}


def _added(pairs: Sequence[VoWork]) -> VoWork:
    delivered = _all(pair.delivered for pair in pairs)
    return VoWork(summed(pair.at_ce for pair in pairs), delivered)


def _all(works: Iterable[Work | None]) -> Work | None:
    found = list(works)
    known = [work for work in found if work is not None]
    return summed(known) if len(known) == len(found) else None


def pair_table(
    first: str, works: Sequence[tuple[str, Work, Work | None]], kinds: Sequence[str]
) -> Table:
    """Return a row for each name: what was used at the CE, and what of that was delivered.

    Where both are the same in all rows, one column stands for both.
    """
    names = ["jobs", "core h", "CPU h", *(f"{kind} h" for kind in kinds)]
    rows = [(name, _pair_cells(ours, theirs, kinds)) for name, ours, theirs in works]
    if all(cells[::2] == cells[1::2] for _, cells in rows):
        same = [(name, *cells[::2]) for name, cells in rows]
        return ((f"{first}, at the CE and delivered", *names), same)
    columns = [cell for name in names for cell in (name, "delivered")]
    return ((first, *columns), [(name, *cells) for name, cells in rows])


def _pair_cells(ours: Work, theirs: Work | None, kinds: Sequence[str]) -> tuple[str, ...]:
    pairs = zip(_cells(ours, kinds), _cells(theirs, kinds), strict=True)
    return tuple(cell for pair in pairs for cell in pair)


def _cells(work: Work | None, kinds: Sequence[str]) -> list[str]:
    """Return jobs, core hours, CPU hours, and the hours of each benchmark."""
    if work is None:
        return ["-"] * (3 + len(kinds))
    hours = [work.core_s, work.cpu_s, *(_kind_s(work, kind) for kind in kinds)]
    return [f"{work.jobs:,}", *map(_round_hours, hours)]


def _kind_s(work: Work, kind: str) -> float | None:
    if work.scaled is None:
        return None
    return work.scaled.get(kind, 0) / 1000


def _round_hours(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 3600:,.0f}"


def kinds_of(*works: Work | None) -> list[str]:
    """Return the types of benchmark with some work."""
    return sorted({kind for work in works if work is not None for kind in work.scaled or ()})


def by_vo_and_project(
    by_vo: Mapping[str, VoWork], by_project: Mapping[str, Work]
) -> Iterator[Table]:
    """Yield tables by VO and by project, those with most core hours; a column pair a measure."""
    if by_vo:
        ranked = sorted(by_vo.items(), key=lambda one: (-_core_s(one[1].at_ce), one[0]))
        shown = ranked if len(ranked) <= _MOST_VOS else ranked[: _MOST_VOS - 1]
        pairs: list[tuple[str, Work, Work | None]] = [
            (name or NO_VO, pair.at_ce, pair.delivered) for name, pair in shown
        ]
        if rest := [pair for _, pair in ranked[len(shown) :]]:
            theirs = _all(pair.delivered for pair in rest)
            pairs.append((f"{len(rest):,} others", summed(pair.at_ce for pair in rest), theirs))
        kinds = kinds_of(*(ours for _, ours, _ in pairs), *(theirs for *_, theirs in pairs))
        yield pair_table("VO", pairs, kinds)
    if set(by_project) - {""}:
        largest = sorted(by_project.items(), key=lambda one: (-_core_s(one[1]), one[0]))
        kinds = kinds_of(*by_project.values())
        heads = ("project, at the CE", "jobs", "core h", "CPU h", *(f"{kind} h" for kind in kinds))
        table = [(name or "(none)", *_pair_cells(work, None, kinds)[::2]) for name, work in largest]
        if len(table) > _MOST_PROJECTS:
            others = [work for _, work in largest[_MOST_PROJECTS - 1 :]]
            cells = _pair_cells(summed(others), None, kinds)[::2]
            table[_MOST_PROJECTS - 1 :] = [(f"{len(others):,} others", *cells)]
        yield heads, table


def _core_s(work: Work) -> int:
    return work.core_s or 0
