"""What is in the accounting data, published or not: statistics, and all about one job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches
from typing import Final

from publisher.model.job import JobId
from publisher.model.text import arex_unescape
from publisher.publishing.databases.known import not_found
from publisher.publishing.databases.local_ids import GIVE_ID
from publisher.publishing.site import Site
from publisher.sources.importers import Accounting
from publisher.sources.statistics import JobDetails, JobFilter, JobStatistics, NameKind

RowsRead = Callable[[int], None]

NAMES: Final[Mapping[str, NameKind]] = {
    "vos": NameKind.VO,
    "users": NameKind.USER,
    "queues": NameKind.QUEUE,
    "endpoints": NameKind.INTERFACE,
}
"""What `complete` can be asked for besides `jobs`."""
# A site where no job was in one of these may ask for it all the same.
_STATES: Final = frozenset(("completed", "failed", "aborted", "in-progress"))
_COMPLETED_AT_ONCE: Final = 200  # more than a shell shows without asking


def stats(
    accounting: Accounting, wanted: JobFilter, *, by: str | None, rows_read: RowsRead
) -> JobStatistics:
    """All statistics of the jobs that a filter accepts. Raises: SourceError."""
    tally = JobStatistics(by=by)
    with closing(accounting.accounts()) as accounts:
        for page in accounts.summed(wanted, by):
            tally.add(page.groups)
            rows_read(page.rows_read)
        if tally.has_unknown_users:
            for page in accounts.summed(wanted, "local-user"):
                local = (job.local_name for job, _ in page.groups if not job.user)
                tally.local_users.update(name for name in local if name)
    return tally


def job_ids(accounting: Accounting, wanted: JobFilter) -> Iterator[str]:
    """The ids of the jobs that a filter takes, while they are read. Raises: SourceError."""
    with closing(accounting.accounts()) as accounts:
        for page in accounts.counted(wanted):
            yield from (job.job_id for job in page.jobs)


def refuse_strange_names(site: Site, wanted: JobFilter) -> None:
    """Raises: UsageError with a line for each name that no job ever had; SourceError."""
    asked = {
        NameKind.VO: wanted.vos,
        NameKind.USER: wanted.users,
        NameKind.STATE: wanted.states,
        NameKind.QUEUE: wanted.queues,
        NameKind.INTERFACE: wanted.interfaces,
    }
    lines = []
    with closing(site.accounting.accounts()) as accounts:
        for kind, names in asked.items():
            known = accounts.names(kind) if names else frozenset()
            known |= _STATES if kind is NameKind.STATE else frozenset()
            strange = (
                name for name in sorted(names) if name and not {name, arex_unescape(name)} & known
            )
            lines += [_strange(kind, name, known) for name in strange]
    if lines:
        raise not_found(site, "\n".join(lines))


def beginning(accounting: Accounting, kind: str, text: str) -> list[str]:
    """Some of the jobs, or names of a kind in `NAMES`, by their beginning. Raises: SourceError."""
    with closing(accounting.accounts()) as accounts:
        if kind == "jobs":
            return list(accounts.ids_beginning(text, _COMPLETED_AT_ONCE))
        known = accounts.names(NAMES[kind])
    return sorted(name for name in known if name and name.startswith(text))[:_COMPLETED_AT_ONCE]


def job(site: Site, job_id: JobId) -> tuple[JobDetails, str]:
    """All about a job, and its events' zone. Raises: UsageError for no such job; SourceError."""
    with closing(site.accounting.accounts()) as accounts:
        found = accounts.sheet(job_id)
        if found is not None:
            return found, accounts.zone
    raise not_found(
        site,
        f"no job is called {job_id!r} in the accounting data; {GIVE_ID}",
    )


def _strange(kind: NameKind, name: str, known: frozenset[str]) -> str:
    near = (
        get_close_matches(name, known, n=1)
        or sorted(one for one in known if name.lower() in one.lower())[:1]
    )
    words = next((words for words, each in NAMES.items() if each is kind), "")
    listed = (
        f"`publisher complete {words}` lists those that it knows"
        if words
        else f"there are {', '.join(sorted(known))}"
    )
    advice = f"did you mean {near[0]!r}?" if near else listed
    return f"the accounting data has no {kind} {name!r}; {advice}"
