"""What became of a job: every message that carried it, and where it was set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import NamedTuple

from publisher.jobs.queries import FoundJob
from publisher.ledger.answers import Delivery, Quarantined
from publisher.ledger.contract import Databases, Ledgers, Targets
from publisher.model.errors import SourceError, UsageError
from publisher.model.job import JobId, JobRecord, RunKey
from publisher.model.time import Month, month_of
from publisher.publishing.databases.ask import asked
from publisher.publishing.databases.known import as_loaded, closed_until, missed, missing_text
from publisher.publishing.databases.local_ids import GIVE_ID, named_job
from publisher.publishing.site import Site


class Traced(NamedTuple):
    """All that is known of a job: messages that carried it, where it is set aside, its rows now."""

    job_id: JobId
    deliveries: Sequence[Delivery]
    quarantined: Sequence[Quarantined]
    # None when the accounting data cannot be read; `trouble` says why.
    rows: Sequence[JobRecord] | None
    trouble: str
    closed: Mapping[str, Month]  # by target: months before this one are known by sums only


def trace(site: Site, text: str, *, all_instances: bool = False) -> Traced:
    """Every message that carried a job, by its JobID or its id in the batch system; and its state.

    Of all instances, their names stand before those of the targets. Raises: UsageError for a job
    that is known nowhere, LedgerError.
    """
    with closing(site.ledgers.to_read()) as ledger:
        job_id, page, trouble, missing = _in_the_data(site, text, ledger.databases)
        runs = [] if page is None else [job.run_key for job in page.jobs]
        deliveries, held = ledger.outbox.trace(job_id, runs), ledger.quarantine.of_job(job_id)
        closed = _closed(site, ledger.targets, runs)
    if all_instances:
        deliveries, held = _of_instances(site.ledgers, job_id, runs, deliveries, held)
    if page is not None and not (page.is_there or deliveries or held):
        trouble = missing
        if not trouble:
            what = f"job {job_id} is neither in the ledger nor in the accounting data; {GIVE_ID}"
            raise UsageError("; ".join([what, *map(closed_text, closed, closed.values())]))
    rows = None if page is None else page.jobs
    return Traced(job_id, deliveries, held, rows, trouble, closed)


def closed_text(target: str, month: Month) -> str:
    """Return why runs of closed months are not found."""
    return (
        f"target {target}: months before {month} are closed (`keep`): what counts of them is known "
        "by sums, no longer by run"
    )


def _closed(site: Site, targets: Targets, runs: Sequence[RunKey]) -> dict[str, Month]:
    """Return the targets whose closed months may have a run of a job, or of one without runs."""
    found = {}
    for target in site.targets:
        until = closed_until(targets, target.name)
        if until and (not runs or any(run[:4] < until.to_bytes(4) for run in runs)):
            found[target.name] = month_of(datetime.fromtimestamp(until, UTC))
    return found


def _in_the_data(
    site: Site, text: str, databases: Databases
) -> tuple[JobId, FoundJob | None, str, str]:
    """Return a job and its rows, or why they cannot be read, and which databases are missing.

    What was delivered can be proved without them.
    """
    try:
        with asked(site, job=text) as jobs:
            job_id = named_job(site, jobs, text)
            found = jobs.find(job_id)
        with closing(as_loaded(site.accounting, site.ledgers)) as accounting:
            return job_id, found, "", missing_text(missed(site.targets, accounting, databases))
    except SourceError as error:
        return JobId(text), None, str(error), ""


def _of_instances(
    ledgers: Ledgers,
    job_id: JobId,
    runs: Sequence[RunKey],
    deliveries: Sequence[Delivery],
    held: Sequence[Quarantined],
) -> tuple[list[Delivery], list[Quarantined]]:
    sent = [one._replace(target=f"{ledgers.instance}/{one.target}") for one in deliveries]
    kept = [one._replace(target=f"{ledgers.instance}/{one.target}") for one in held]
    for other in ledgers.others():
        with closing(other.to_read()) as ledger:
            there, set_aside = ledger.outbox.trace(job_id, runs), ledger.quarantine.of_job(job_id)
        sent += [one._replace(target=f"{other.instance}/{one.target}") for one in there]
        kept += [one._replace(target=f"{other.instance}/{one.target}") for one in set_aside]
    return sent, kept
