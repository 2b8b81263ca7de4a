"""Local questions: sources are loaded into the job store, and the store is asked.

    publisher stats, in the minute after a round     asks what the round has loaded
    publisher stats --database-file old.db           loads that file into a temporary store

A question loads what is new, and reads the job again that it is about. What else A-REX changed in
rows that were loaded before shows when these are compared again, once a day, by the first load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from publisher.jobs.file import store_path
from publisher.jobs.queries import JobQueries, open_queries
from publisher.ledger.contract import Ledgers
from publisher.model.errors import Busy, LedgerError, SourceError
from publisher.model.job import Epoch, JobId, JobRecord, ReadRequest, SideTable
from publisher.model.time import epoch
from publisher.publishing.databases.load import (
    LoadOptions,
    load_alone,
    loader_lock,
    marks_of,
    needs_of,
    store_place,
)
from publisher.publishing.databases.local_ids import named_job
from publisher.publishing.site import Site
from publisher.transports.base import BackgroundTask


@contextmanager
def asked(
    site: Site,
    *,
    job: str = "",
    apart: bool = False,
    needs: frozenset[SideTable] = frozenset(),
) -> Iterator[JobQueries]:
    """Load the sources of a site, and give its jobs.

    `job`: the one that is asked about, by its JobID or its id in the batch system.
    `apart`: into a store that is gone afterwards, for sources that are not those of rounds, or for
    side tables that rounds do not load. Raises: LedgerError, Busy; SourceError where some jobs
    could not be loaded: an answer would be wrong. UsageError where several jobs are called `job`.
    """
    copies = bool(needs) or not apart
    job_id = _loaded_job(site, job) if job and not apart else None
    with store_place(site, sends_nothing=True, apart=apart, copies=copies) as path:
        BackgroundTask(partial(_load, site, path, needs, job_id, apart=apart)).result()
        with closing(open_queries(path)) as jobs, jobs.snapshot():
            yield jobs


def last_loaded(ledgers: Ledgers) -> JobQueries:
    """Return the jobs as they were loaded last, for answers at once. Raises: LedgerError."""
    return open_queries(store_path(ledgers.state))


def _loaded_job(site: Site, text: str) -> JobId:
    """Return the JobID of a job, as far as jobs were loaded."""
    with closing(last_loaded(site.ledgers)) as jobs:
        return named_job(site, jobs, text)


def _load(
    site: Site, path: Path, needs: frozenset[SideTable], job: JobId | None, *, apart: bool
) -> None:
    marks = () if apart else _marks(site)
    all_needs = needs | needs_of(site.targets)
    options = LoadOptions(all_needs, site.accounting.read_as(), marks=marks, job=job)
    with loader_lock(site, path) as is_ours:
        if is_ours:
            if failures := load_alone(site, path, options):
                raise SourceError("; ".join(failures))
            return
    with closing(open_queries(path)) as jobs:
        if not jobs.state().mark or jobs.incomplete():
            what = "another publisher loads the accounting data for the first time"
            raise Busy(f"{path}: {what}; run again when it is done")


def _marks(site: Site) -> Collection[str]:
    """Return the marks of the cursors of all targets."""
    try:
        return marks_of(site)
    except LedgerError:  # the answer does not come from the ledger; rounds look once more
        return []


def with_side_tables(
    site: Site, jobs: Sequence[JobRecord], needs: frozenset[SideTable]
) -> list[JobRecord]:
    """Return the runs of a job with what no round publishes of them. Raises: SourceError."""
    ids = [job.job_id for job in jobs[:1]]
    request = ReadRequest(needs, Epoch(epoch(site.process.clock())))
    with closing(site.accounting.open()) as accounting:
        pages = [page for one in accounting.sources() for page in one.look_up(ids, request)]
    found = {job.run_key: job for page in reversed(pages) for job in page.jobs}
    whole = ((job, found.get(job.run_key, job)) for job in jobs)
    return [
        job._replace(transfers=one.transfers, runtime_environments=one.runtime_environments)
        for job, one in whole
    ]
