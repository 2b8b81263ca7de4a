"""What becomes of one run at a receiver of totals: the entry that it should have, and the recorded.

Settings concern runs without an entry: one that has an entry gets another only when its own data
changed, or when it is published again on purpose (`again`).
"""

from __future__ import annotations

from enum import StrEnum

from publisher.model.entry import Entry, Recorded, RecordKey, RowFields, RowKey, Usage
from publisher.model.published import PublishedJob
from publisher.model.totals import BY_JURA


class Action(StrEnum):
    """What is done about a run."""

    ADD = "add"
    CHANGE = "change"
    KEEP = "keep"
    RETRACT = "retract"


def entry_of(published: PublishedJob, row: RowKey, digest: bytes = b"") -> Entry:
    """Return what a job counts for in a row.

    `digest` is that of its values as its source has them, where `published` has others: those that
    another publisher sent.
    """
    job, where = published.job, published.where
    local_id = published.local_id.removeprefix(where.localid_prefix)
    return Entry(
        run=job.run_key,
        record=RecordKey(where.site, where.localid_prefix, local_id, published.ended_at),
        row=row,
        wall_s=job.wall_s,
        cpu_s=job.cpu_user_s + job.cpu_kernel_s,
        digest=digest or job.values_digest,
        source=job.row.database,
    )


def retraction_of(recorded: Recorded) -> Entry:
    """Return the entry of a run that shall not count any more, in the row where it did."""
    row = RowKey(recorded.row.month, RowFields(recorded.row.digest, ""))
    return Entry(recorded.run, recorded.record, row, 0, 0, recorded.digest, jobs=0)


def plan_run(entry: Entry, recorded: Recorded | None, *, again: bool) -> Action:
    """Return what is done about a wanted run."""
    if recorded is None:
        return Action.ADD
    if recorded.pending or (recorded.settings == BY_JURA and not again):
        # What another publisher is believed to have sent is a guess, which only a person corrects.
        return Action.KEEP
    if recorded.usage.jobs == 0:
        return Action.CHANGE
    usage = Usage(entry.jobs, entry.wall_s, entry.cpu_s)
    if again and (entry.row.id, usage) != (recorded.row, recorded.usage):
        return Action.CHANGE
    return Action.KEEP if entry.digest == recorded.digest else Action.CHANGE


def plan_unwanted(recorded: Recorded | None, *, again: bool) -> Action:
    """Return what is done about a run that no target of the receiver wants any more.

    That it is not wanted says nothing in a regular round: it was wanted when it was sent.
    """
    if recorded is None or recorded.pending or recorded.usage.jobs == 0 or not again:
        return Action.KEEP
    return Action.RETRACT
