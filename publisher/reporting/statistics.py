"""What is in the accounting data, published or not: statistics, names, and all about one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final

from publisher.jobs.filters import JobFilter, is_known
from publisher.jobs.link import COUNTED_RULE
from publisher.jobs.queries import FoundJob, JobQueries, NameKind
from publisher.jobs.sums import NO_ROWS, RowsWith, Standing, Totals
from publisher.model.job import JobRecord
from publisher.model.text import arex_unescape
from publisher.publishing.databases.ask import asked
from publisher.publishing.databases.known import not_found
from publisher.publishing.databases.local_ids import GIVE_ID, named_job
from publisher.publishing.site import Site
from publisher.sources.base import GPU_MODELS, QUANTITIES
from publisher.sources.sheet import JobDetails

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


Pairs = Iterator[tuple[str, str]]
_THEIRS: Final = "a batch system has this job as its own, and it counts there"
# What a batch system may know of a job of A-REX.
_JOINED: Final = (
    *("node_count", "cpu_count", "gpu_count", "memory_kib", "virtual_memory_kib", "started_at"),
    *("exit_code", "queue"),
)


@dataclass(slots=True, kw_only=True)
class JobStatistics:
    """All statistics of some jobs. Grows with the number of users, not of jobs.

    `groups` are totals by name, where they were asked for. '' is in no set.
    """

    totals: Totals = field(default_factory=Totals)
    states: Counter[str] = field(default_factory=Counter)
    vos: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    local_users: set[str] = field(default_factory=set)  # of jobs of which no certificate is known
    has_unknown_users: bool = False
    groups: dict[str, Totals] = field(default_factory=dict)

    def add(self, groups: Iterable[tuple[Standing, Totals]], *, is_grouped: bool) -> None:
        """Add sums over jobs; `is_grouped`: also by name."""
        for standing, totals in groups:
            self.totals.add(totals)
            self.states[standing.status] += totals.jobs
            self.vos.add(standing.vo)
            self.users.add(standing.user)
            self.has_unknown_users |= not standing.user
            if is_grouped:
                self.groups.setdefault(standing.name, Totals()).add(totals)
        self.vos.discard("")
        self.users.discard("")


def stats(
    jobs: JobQueries, wanted: JobFilter, *, by: str | None, rows: RowsWith = NO_ROWS
) -> JobStatistics:
    """Return all statistics of the jobs that a filter takes. Raises: LedgerError."""
    tally = JobStatistics()
    tally.add(jobs.sums(wanted, by or "state", rows), is_grouped=by is not None)
    if tally.has_unknown_users:
        found = jobs.sums(wanted, "local-user", rows)
        tally.local_users.update(one.name for one, _ in found if one.name and not one.user)
    return tally


def rows_with(site: Site, wanted: JobFilter) -> RowsWith:
    """Return the rows with the attributes of a filter that only the CEs' databases have.

    Raises: SourceError.
    """
    asked = {name: values for name, values in wanted.extras.items() if not is_known(name)}
    if not asked:
        return {}
    with closing(site.accounting.open()) as source:
        return {name: list(source.rows_with(name, values)) for name, values in asked.items()}


def refuse_strange_names(site: Site, jobs: JobQueries, wanted: JobFilter) -> None:
    """Raises: UsageError with a line for each name that no job ever had; SourceError."""
    asked = {
        NameKind.VO: wanted.vos,
        NameKind.USER: wanted.users,
        NameKind.STATE: wanted.states,
        NameKind.QUEUE: wanted.queues,
        NameKind.INTERFACE: wanted.interfaces,
    }
    lines = []
    for kind, names in asked.items():
        known = jobs.names(kind) if names else frozenset()
        known |= _STATES if kind is NameKind.STATE else frozenset()
        strange = (
            name for name in sorted(names) if name and not {name, arex_unescape(name)} & known
        )
        lines += [_strange(kind, name, known) for name in strange]
    if lines:
        raise not_found(site, "\n".join(lines))


def beginning(jobs: JobQueries, kind: str, text: str) -> list[str]:
    """Return some of the jobs, or names of a kind in `NAMES`, by their beginning.

    Raises: LedgerError.
    """
    if kind == "jobs":
        return list(jobs.beginning(text, _COMPLETED_AT_ONCE))
    known = jobs.names(NAMES[kind])
    return sorted(name for name in known if name and name.startswith(text))[:_COMPLETED_AT_ONCE]


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


def job_sheet(site: Site, text: str, *, apart: bool) -> JobDetails:
    """Return all about a job, by its JobID or its id in the batch system.

    `apart`: its databases are not those of rounds. Raises: UsageError for no such job;
    SourceError, LedgerError.
    """
    with asked(site, job=text, apart=apart) as jobs:
        job_id = named_job(site, jobs, text)
        found = jobs.find(job_id)
        with closing(site.accounting.open()) as source:
            sheet = source.sheet(job_id)
        if sheet is None and not found.jobs:
            what = f"no job is called {job_id!r} in the accounting data; {GIVE_ID}"
            raise not_found(site, what)
        if sheet is None:
            return _as_stored(found.jobs[-1])
        is_theirs = any(one.rule == COUNTED_RULE for one in jobs.skipped_at([sheet.row]))
    if is_theirs:
        return replace(sheet, oddities=(*sheet.oddities, _THEIRS))
    return _with_joined(sheet, found)


def _with_joined(sheet: JobDetails, found: FoundJob) -> JobDetails:
    """Return a sheet with what the batch system added to the job."""
    job = next((one for one in found.jobs if one.joined and one.local_id == sheet.local_id), None)
    if job is None:
        return sheet
    lacking: dict[str, Any] = {
        name: getattr(job, name) for name in _JOINED if not getattr(sheet, name)
    }
    extra = [*sheet.extra, *_of_batch_system(job)]
    if job.hosts and not {"nodename", "nodenames"} & dict(sheet.extra).keys():
        extra.append(("nodenames", ":".join(job.hosts)))
    return replace(sheet, extra=tuple(extra), **lacking)


def _of_batch_system(job: JobRecord) -> Pairs:
    for pairs, key in ((job.gpu_models, GPU_MODELS), (job.quantities, QUANTITIES)):
        if pairs:
            yield key, " ".join(f"{what}={number}" for what, number in pairs)


def _as_stored(job: JobRecord) -> JobDetails:
    fqans = (("vomsfqan", fqan) for fqan in job.fqans)
    same = set(JobDetails.__dataclass_fields__) & set(job._fields)
    values = {name: getattr(job, name) for name in same} | {
        "cpu_user_s": job.measured(job.cpu_user_s),
        "cpu_kernel_s": job.measured(job.cpu_kernel_s),
        "attributes": (*fqans, *job.attributes),
    }
    return JobDetails(
        in_progress=False,
        fqan=next(iter(job.fqans), ""),
        extra=tuple(_extra(job)),
        events=(),
        **values,
    )


def _extra(job: JobRecord) -> Pairs:
    """Yield what A-REX would have noted by these names."""
    named = (
        ("lrms", job.lrms),
        ("jobname", job.job_name),
        ("clienthost", job.client_host),
        ("nodenames", ":".join(job.hosts)),
        ("localuser", ":".join(filter(None, (job.local_user, job.local_group)))),
        ("wninstance", job.wn_instance),
    )
    yield from ((key, text) for key, text in named if text)
    yield from (("projectname", project) for project in job.projects)
    yield from _of_batch_system(job)
