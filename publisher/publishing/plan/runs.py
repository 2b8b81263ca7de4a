"""What is done about one run: the entry that it should have, compared with the recorded one.

Settings concern runs without an entry: one that has an entry gets another only when its own data
changed, or when it is published again on purpose (`again`).
"""

from __future__ import annotations

from publisher.model.entry import Entry, Recorded, RecordKey, RowFields, RowKey, RunKey, Usage
from publisher.model.published import PublishedJob
from publisher.model.totals import BY_JURA
from publisher.publishing.plan import reasons
from publisher.publishing.plan.actions import Action


def entry_of(published: PublishedJob, run: RunKey, row: RowKey, digest: bytes) -> Entry:
    """Return what a run counts for in a row (hot path).

    `digest` is that of its values as its source has them: `published` may have others.
    """
    job = published.job
    cpu_s = job.cpu_user_s + job.cpu_kernel_s
    record = record_key_of(published)
    return Entry(run, record, row, job.wall_s, cpu_s, digest, 1, job.row.database)


def record_key_of(published: PublishedJob) -> RecordKey:
    """Return the key of a job's single record."""
    where = published.where
    local_id = published.local_id.removeprefix(where.localid_prefix)
    return RecordKey(where.site, where.localid_prefix, local_id, published.ended_at)


def retraction_of(recorded: Recorded) -> Entry:
    """Return the entry of a run that shall not count any more, in the row where it did."""
    row = RowKey(recorded.row.month, RowFields(recorded.row.digest, ""))
    return Entry(recorded.run, recorded.record, row, 0, 0, recorded.digest, jobs=0)


def plan_run(entry: Entry, recorded: Recorded | None, *, again: bool) -> Action:
    """Return what is done about a wanted run, at a receiver of totals."""
    if recorded is None:
        return reasons.ADD
    if recorded.pending:
        return reasons.UNDER_WAY
    if recorded.settings == BY_JURA and not again:
        # What another publisher is believed to have sent is a guess, which only a person corrects.
        return reasons.SENT_BY_JURA
    if recorded.usage.jobs == 0:
        return reasons.COUNT_AGAIN
    found = difference(entry, recorded)
    return reasons.KEEP if found is reasons.OTHER_SETTINGS and not again else found


def plan_record(entry: Entry, recorded: Recorded | None, *, again: bool) -> Action:
    """Return what is done about a run whose single record is sent."""
    if recorded is None:
        return reasons.ADD
    found = difference(entry, recorded)
    if found is reasons.KEEP and entry.record != recorded.record:
        found = reasons.OTHER_SETTINGS
    if again or found is reasons.OWN_DATA:
        return found
    return reasons.BELIEVED if recorded.settings == BY_JURA else reasons.RELEASED


def difference(entry: Entry, recorded: Recorded) -> Action:
    """Return how what a run should count for differs from what it counts for."""
    if entry.digest != recorded.digest:
        return reasons.OWN_DATA
    usage = Usage(entry.jobs, entry.wall_s, entry.cpu_s)
    if (entry.row.id, usage) != (recorded.row, recorded.usage):
        return reasons.OTHER_SETTINGS
    return reasons.KEEP


def plan_unwanted(recorded: Recorded | None, *, again: bool, accepts: bool = False) -> Action:
    """Return what is done about a run that no target of the receiver wants any more.

    That it is not wanted says nothing in a regular round, unless an administrator `accepts` it: it
    was wanted when it was sent. What another publisher sent goes by `again` alone.
    """
    if recorded is None or recorded.pending or recorded.usage.jobs == 0:
        return reasons.KEEP
    if recorded.settings == BY_JURA and not again:
        return reasons.SENT_BY_JURA
    return reasons.RETRACT if again or accepts else reasons.KEEP
