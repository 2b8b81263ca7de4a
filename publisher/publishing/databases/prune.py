"""Old months: what needs jobs that were pruned, or months that are closed, is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime

from publisher.model.errors import SourceError, UsageError
from publisher.model.job import Epoch
from publisher.model.time import Month, Window, epoch, month_of
from publisher.policy.target import Target
from publisher.publishing.databases.known import closed_until, jobs_of, not_loaded
from publisher.publishing.site import Site


def refuse_pruned(site: Site, window: Window) -> None:
    """Raises: SourceError where jobs of a window were pruned: the answer would be wrong."""
    with closing(jobs_of(site.ledgers)) as jobs:
        end = max(jobs.begins() or Epoch(0), not_loaded(site))
    if _begins_before(window, end):
        month = month_of(datetime.fromtimestamp(end, UTC))
        raise SourceError(
            f"jobs that ended before {month} were pruned (`keep`), "
            f"and an answer without them would be wrong; ask from {month} on. Of months before, "
            "the receiver's portal has what counts, and `publisher sync --check --months all` "
            "compares the numbers of jobs"
        )


def refuse_closed(site: Site, targets: Sequence[Target], window: Window) -> None:
    """Raises: UsageError where months of a window are closed, and cannot be sent again."""
    with closing(site.ledgers.to_read()) as ledger:
        for target in targets:
            end = closed_until(ledger.targets, target.name)
            if _begins_before(window, end):
                month = month_of(datetime.fromtimestamp(end, UTC))
                raise UsageError(
                    f"target {target.name}: months before {month} are closed (`keep`): what counts "
                    f"of them is known by sums, no longer by run, and nothing of them can be sent "
                    f"again; republish from {month} on"
                )


def _begins_before(window: Window, end: Epoch) -> bool:
    return bool(end) and (window.start is None or window.start < end)


def months_ago(now: datetime, count: int) -> Month:
    """Return the month that began so many months before this one."""
    month = month_of(now)
    for _ in range(count):
        month = month.previous
    return month


def earliest(now: datetime, months: int | None) -> Window:
    """The last months, this one among them; all without a number."""
    start = None if months is None else epoch(months_ago(now, max(months - 1, 0)).start)
    return Window(start=start)
