"""What a republish would send, for people, before it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from publisher.model.months import gone_lines
from publisher.planning import Plan

_MEGABYTE = 1_000_000


def plan_lines(plans: Sequence[Plan]) -> list[str]:
    """A heading a target, and below it what is sent and what is to be known of it."""
    return [line for plan in plans for line in _lines(plan)]


def _lines(plan: Plan) -> Iterator[str]:
    rounded = ", rounded out to whole months" if plan.rounded else ""
    yield f"{plan.target}: {plan.format}, jobs that ended in {plan.window}{rounded}"
    yield f"  {_size(plan)}; months: {', '.join(plan.months) or 'none'}"
    if plan.goes_on:
        yield (
            f"  {plan.rows:,} jobs left: goes on where the last run of the same errand stopped"
            if not plan.summary
            else ("  goes on with the month in which the last run of the same errand stopped")
        )
    if plan.held:
        months = ", ".join(month.name for month in plan.held)
        yield f"  {months}: would leave rows behind at the receiver, or make it lose jobs"
    yield from (f"  {line}" for line in gone_lines(plan.gone))
    if plan.type == "sgas":
        yield "  SGAS keeps the row it has: this fills gaps and corrects nothing"
    elif plan.exact:
        yield "  --exact: a receiver that purged its job records replaces a whole month's total by this part of it"
    if plan.brake:
        yield f"  {plan.brake}"


def _size(plan: Plan) -> str:
    """Exact where every job was looked at; messages and bytes of single records are then by their mean size."""
    if plan.summary and not plan.counted:
        return f"totals of at most {plan.jobs:,} jobs"
    if plan.summary:
        return f"{plan.records:,} totals of {plan.jobs:,} jobs in {plan.messages:,} messages, {_bytes(plan.bytes)}"
    jobs = f"{plan.jobs:,} jobs" if plan.counted else f"at most {plan.jobs:,} jobs"
    return f"{jobs} in some {plan.messages:,} messages, {_bytes(plan.bytes)}"


def _bytes(count: int) -> str:
    return f"{count / _MEGABYTE:,.1f} MB" if count >= _MEGABYTE else f"{count / 1000:,.1f} kB"
