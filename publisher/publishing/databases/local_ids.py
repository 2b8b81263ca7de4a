"""Jobs named by their ids in the batch system: `1001`, or `hpc:1001` where several systems count.

Sites without a CE know no other ids. The part before the colon is the name of a source, or the
cluster with which the JobIDs of imported jobs begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from publisher.jobs.queries import JobQueries
from publisher.model.errors import UsageError
from publisher.model.job import JobId
from publisher.publishing.site import Site

if TYPE_CHECKING:
    from publisher.sources.importers import Accounting, BatchSystems

GIVE_ID: Final = (
    "give the JobID, or the id in the batch system (1001, or hpc:1001 with the name of the source "
    "or cluster); `publisher stats -o jobids` lists the JobIDs that are there"
)


def named_job(site: Site, jobs: JobQueries, text: str) -> JobId:
    """Return the JobID of the job that is meant: a JobID itself, or an id in the batch system.

    What names no job is returned as it is: who asks for that job reports what is missing.
    Raises: UsageError where several jobs have the id; LedgerError.
    """
    found = _meant(site.accounting, site.batch_systems, jobs, text)
    if len(found) > 1:
        listed = "\n".join(f"  {job_id}" for job_id in found)
        raise UsageError(
            f"{text} is the id in the batch system of {len(found)} jobs or more; "
            f"give the JobID of one:\n{listed}"
        )
    return found[0] if found else JobId(text)


def _meant(
    accounting: Accounting, batch_systems: BatchSystems, jobs: JobQueries, text: str
) -> Sequence[JobId]:
    if not text or jobs.find(JobId(text)).is_there:
        return ()
    found = _with_local_id(jobs, text)
    prefix, colon, local_id = text.partition(":")  # names of sources and clusters have none
    if found or not colon:
        return found
    clusters = {entry.cluster for entry in batch_systems.entries if entry.name == prefix} or {
        prefix
    }
    imported = {f"{entry.cluster}:" for entry in batch_systems.entries if entry.cluster}
    of_ce = any(entry.name == prefix for entry in accounting.entries)
    begins = tuple(f"{cluster}:" for cluster in clusters)
    candidates = _with_local_id(jobs, local_id)
    if of_ce:
        return [one for one in candidates if not one.startswith(tuple(imported))]
    return [one for one in candidates if one.startswith(begins)]


def _with_local_id(jobs: JobQueries, local_id: str) -> Sequence[JobId]:
    """Return the jobs with an id; of HTCondor's cluster 105 the first two, 105.0 and 105.1."""
    found = jobs.with_local_id(local_id)
    if found or not local_id.isdecimal():
        return found
    return [one for part in (0, 1) for one in jobs.with_local_id(f"{local_id}.{part}")]
