"""What was found of a month and submit host, and the commands that fix its differences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from publisher.ledger.answers import Hold, Quarantined
from publisher.model.entry import Recorded
from publisher.model.totals import month_name
from publisher.policy.target import Target

UNKNOWN_MONTH: Final = 0  # of rows whose end time cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A month and submit host, in numbers of jobs. `portal` is None without a file from there.

    `restarted` are runs among the delivered that are in no row any more: A-REX restarted their
    jobs, which have other LocalJobIDs since. They used resources, and count as the later runs do.
    """

    target: str
    month: int
    submit_host: str
    database: int  # finished, and wanted by the target
    delivered: int
    restarted: int
    before: int  # delivered by another publisher, before our start
    quarantined: int
    pending: int
    reported: int | None
    portal: int | None
    purged: int  # delivered, and not in the database any more: `cleanup` takes rows away on purpose
    retired: int  # delivered, of databases that an administrator retired
    repairs: tuple[str, ...]

    @property
    def due(self) -> int:
        """What the receiver ought to hold."""
        return self.delivered + self.before

    @property
    def beyond(self) -> int:
        """How many jobs the portal has that are not ours, as far as one can tell."""
        return max((self.portal or 0) - self.due, 0)

    @property
    def month_name(self) -> str:
        return "unknown" if self.month == UNKNOWN_MONTH else month_name(self.month)


@dataclass(slots=True)
class Seen:
    """What was seen of a month and submit host, in jobs."""

    database: int = 0
    delivered: int = 0
    restarted: int = 0
    before: int = 0
    quarantined: int = 0
    unwanted: int = 0  # delivered, and not wanted any more
    held: int = 0  # of the quarantined, those that wait
    pending: int = 0
    retired: int = 0  # delivered, from a database that an administrator retired

    def count(self, run: Recorded | None, held: Quarantined | None, *, before_start: bool) -> None:
        """A job of the database, by what the ledger has of it."""
        if run is not None and (run.pending or run.counts):
            self.delivered += run.counts
            self.pending += run.pending
        elif held is not None:
            self.quarantine(held)
        elif before_start:
            self.before += 1
        else:
            self.pending += 1

    @property
    def of_delivered(self) -> int:
        """Delivered runs, as far as they were seen."""
        return self.delivered + self.unwanted + self.restarted

    def quarantine(self, held: Quarantined) -> None:
        """Count a job that is set aside."""
        self.quarantined += 1
        self.held += held.hold is not Hold.DROPPED  # of those an administrator said: never


def repairs_of(
    target: Target, row: Compared, found: Seen, before_us: bool, *, known_trouble: bool
) -> Iterable[str]:
    """The command that fixes each difference of a row. `before_us`: the month is before our start.

    Of such a month, what we have nothing of is another publisher's, who reported the count too.
    `known_trouble`: why its counts differ is said about the whole month.
    """
    window = f"--from {row.month_name} --to {row.month_name}"
    if row.pending:
        again = f"republish {window}" if before_us else "publish --force"
        yield f"{row.pending:,} not delivered: publisher {again} --target {target.name}"
    if found.held:
        yield f"{found.held:,} set aside: publisher quarantine list --target {target.name}"
    if found.delivered + found.restarted > row.delivered and not known_trouble:
        yield f"the ledger's count differs: publisher republish {window} --target {target.name}"
    theirs = before_us and not row.delivered
    if _is_to_report(target, row, theirs):
        reported = "nothing" if row.reported is None else f"{row.reported:,}"
        yield f"reported {reported}: publisher sync --target {target.name}"
    yield from of_portal(target, row)


def _is_to_report(target: Target, row: Compared, theirs: bool) -> bool:
    differs = (row.reported or 0) != row.due
    return target.sync and differs and (row.reported is not None or not theirs)


def of_portal(target: Target, row: Compared) -> Iterable[str]:
    """Yield what fixes a difference between what the portal has and what it should have."""
    if row.portal is not None and row.portal < row.due:
        window = f"--from {row.month_name} --to {row.month_name}"
        yield f"the portal has {row.portal:,}: publisher republish {window} --target {target.name}"
    if row.beyond:
        more = f"{row.beyond:,} more than we published"
        yield f"the portal has {row.portal:,}, {more}: send the text below as a ticket"
