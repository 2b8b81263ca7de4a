"""Every condition that holds something back from a receiver, with what people read about it."""

from __future__ import annotations

from collections.abc import Sequence

from publisher.model.text import plural
from publisher.model.totals import SINGLE_RECORDS, BlockedMonth


def held_reason(held: Sequence[BlockedMonth]) -> str:
    """Return why months are held back, in one line; '' when none is."""
    if not held:
        return ""
    names = ", ".join(month.name for month in held)
    orphaned = sum(len(month.orphaned) for month in held)
    lost = sum(month.lost_jobs for month in held)
    others = sorted(month.name for month in held if month.was)
    if all(month.emptied for month in held):
        return (
            f"held back: {names}: other settings put jobs under other keys of "
            f"the receiver: {plural(orphaned, 'row')} there would be emptied, "
            f"{plural(lost, 'job')} would be lost; --accept-key-change sends them, with a record "
            "of zeros for each of those rows: no ticket is needed"
        )
    remedy = "--accept-key-change sends anyway"
    if others:
        is_single = all(month.was == SINGLE_RECORDS for month in held if month.was)
        kind, instead = ("single records", "totals") if is_single else ("totals", "single records")
        remedy = (
            f"of {', '.join(others)} the receiver has {kind}: `publisher republish "
            f"--from {others[0]} --to {others[-1]} --accept-key-change` sends {instead} instead"
        )
    what = ": ".join(filter(None, (names, ", ".join(_effects(orphaned, lost)))))
    return f"held back: {what}; {remedy}"


def _effects(orphaned: int, lost: int) -> list[str]:
    """Return what sending anyway would do at the receiver, to so many rows and jobs."""
    effects = []
    if orphaned:
        twice = "would stay at the receiver in addition to the new ones and count twice"
        effects.append(f"{plural(orphaned, 'row')} {twice}")
    if lost:
        effects.append(f"{plural(lost, 'job')} would be lost there")
    return effects
