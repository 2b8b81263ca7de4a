"""How each value of a job's record came about, its fate at each target and why, and the record.

Names are those of APEL's messages, and of usage records where APEL has none. Values are as people
read them: times in ISO 8601, durations in seconds; the record itself shows how they are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from publisher.formats import (
    JOB_FORMATS,
    SUMMARY_FORMATS,
    is_summary_format,
    receiver_of,
    record_format,
)
from publisher.formats.base import JobFormat, OnChange, Receiver, SummaryFormat
from publisher.formats.rows import SummaryRows
from publisher.formats.rules import explained_warnings
from publisher.jobs.queries import FoundJob, JobQueries
from publisher.jobs.reader import StoreReader
from publisher.ledger.answers import Hold, Quarantined
from publisher.ledger.contract import Ledger
from publisher.model.entry import Recorded, RecordedRuns, RowKey, RowTotal, Usage
from publisher.model.errors import Unfit, UsageError
from publisher.model.job import JobId, JobRecord, RowRef, SideTable
from publisher.model.published import PublishedJob, ValueOrigin
from publisher.model.text import NO_VO
from publisher.model.time import Window
from publisher.model.totals import SummaryGroup, group_of, groups_of, month_number
from publisher.policy.identity import IdentityMode
from publisher.policy.records import KeyStyle, RecordPolicy
from publisher.policy.target import Target
from publisher.publishing.databases.ask import asked, with_side_tables
from publisher.publishing.databases.known import is_read_next, jobs_of, not_found
from publisher.publishing.databases.load import needs_of
from publisher.publishing.databases.local_ids import GIVE_ID, named_job
from publisher.publishing.plan.decision import is_unchanged
from publisher.publishing.plan.runs import entry_of
from publisher.publishing.site import Site, choose
from publisher.reporting.charges.rules import Charges
from publisher.sources import BY_INTERFACE
from publisher.sources.base import ImportedFrom
from publisher.sources.importers import Accounting, BatchSystems, ImportRule

_UNFINISHED: Final = "it has not finished, or A-REX still writes it"
_AWAITED: Final = "it is over, and waits for its batch system's record (join_wait)"
_AS_IT_IS: Final = "as it is"
_BY_FORMAT: Final = "made by the format"  # a field that only one format has
_NOT_MEASURED: Final = "nobody measured it; a format that wants a number has 0"
# Values that no rule of the site decides, and where they are in a job record.
_PLAIN: Final[Mapping[str, str]] = {
    "GlobalJobId": "job_id",
    "Status": "status",
    "ExitStatus": "exit_code",
    "WallDuration": "wall_s",
    "CpuDuration": "cpu_user_s, cpu_kernel_s",
    "Processors": "cpu_count",
    "NodeCount": "node_count",
    "SubmitTime": "submitted_at",
    "MemoryReal": "memory_kib",
    "MemoryVirtual": "virtual_memory_kib",
    "Host": "hosts",
    "GPUs": "gpu_count",
    "GPUModels": "gpu_models",
    "ProjectName": "projects",
    "Disk": "scratch_bytes",
    "Network": "stage_in_bytes, stage_out_bytes",
    "WorkerNodeInstance": "wn_instance",
    "RuntimeEnvironment": "runtime_environments",
}

# Summaries spell these in the site's key style.
_RESPELLED: Final = frozenset({"VOGroup", "VORole", "SubmitHost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedValue:
    """One published value or ''; `source` is the job record's field, '' for the configuration."""

    name: str
    value: str
    rule: str
    source: str


def explained(
    policy: RecordPolicy, job: PublishedJob, receiver: Receiver, *, summary: bool
) -> list[ExplainedValue]:
    """Every value of a record for a receiver, a job's or (`summary`) of its group."""
    origins = {origin.name: origin for origin in _origins(policy, job, receiver, summary=summary)}
    unknown = {"CpuDuration": "unknown"} if job.job.cpu_unknown else {}
    found = []
    for name, value in receiver.values(job, summary):
        _, rule, source = origins.get(name, ValueOrigin(name, _BY_FORMAT))
        text = unknown.get(name, value)
        found.append(ExplainedValue(name=name, value=text, rule=rule, source=source))
    return found


def _origins(
    policy: RecordPolicy, job: PublishedJob, receiver: Receiver, *, summary: bool
) -> Iterator[ValueOrigin]:
    """Later ones win."""
    yield from (ValueOrigin(name, _AS_IT_IS, source) for name, source in _PLAIN.items())
    yield from job.who.origins
    yield from job.where.origins
    yield from _personal(policy, job, receiver)
    yield policy.start_origin(job.job)
    yield ValueOrigin("EndTime", _AS_IT_IS, "ended_at")
    if job.job.cpu_unknown:
        yield ValueOrigin("CpuDuration", _NOT_MEASURED, _PLAIN["CpuDuration"])
    rule = "ur-, the endpoint's host (or MachineName), the job's id"
    yield ValueOrigin("RecordId", rule, "endpoint, job_id")
    yield _local_id(policy, job)
    yield _fqan(job)
    yield _service_level(job)
    charged = f"records.charges: {job.charge.tariff.formula}" if job.charge else "none"
    yield ValueOrigin("Charge", charged)
    if summary and policy.key_style is KeyStyle.JURA:
        respelled = [
            origin for origin in (*job.who.origins, *job.where.origins) if origin.name in _RESPELLED
        ]
        for origin in respelled:
            rule = f"{origin.rule}; spelled as jura-ng did (records.key_style)"
            yield ValueOrigin(origin.name, rule, origin.source)


def _personal(policy: RecordPolicy, job: PublishedJob, receiver: Receiver) -> Iterator[ValueOrigin]:
    """Yield what is left out where people are not named."""
    hidden = policy.identity.mode is not IdentityMode.PLAIN
    rule = f"left out (records.identity: {policy.identity.mode})" if hidden else _AS_IT_IS
    yield ValueOrigin("LocalUserId", rule, "local_user")
    of_group = _AS_IT_IS if job.local_group == job.job.local_group else rule
    yield ValueOrigin("LocalGroup", of_group, "local_group")
    of_projects = _AS_IT_IS if job.projects == job.job.projects else rule
    yield ValueOrigin("ProjectName", of_projects, "projects")
    yield ValueOrigin("JobName", rule, "job_name")
    yield ValueOrigin("FileTransfers", rule, "transfers")
    if receiver.submit_host_is_client:
        yield ValueOrigin("SubmitHost", rule, "client_host")


def _local_id(policy: RecordPolicy, job: PublishedJob) -> ValueOrigin:
    prefix = "records.localid_prefix, then " if policy.localid_prefix else ""
    if job.job.local_id:
        return ValueOrigin("LocalJobId", f"{prefix}the batch system's id", "local_id")
    rule = f"{prefix}the job's id, because the batch system gave none"
    return ValueOrigin("LocalJobId", rule, "job_id")


def _service_level(job: PublishedJob) -> ValueOrigin:
    applied, own, source = job.benchmark, job.job.benchmark, "benchmark"
    if applied.unreadable is not None:
        rule = f"the job's cannot be read: {applied.unreadable.reason}"
    elif applied.origin == "the job":
        rule = "the job"
        if applied.arex_default:
            rule += ": HEPSPEC 1.0, which A-REX writes where arc.conf has none"
    else:
        overridden = f", whose override wins over the job's {own!r}" if own else ""
        rule, source = f"{applied.origin}{overridden}", ""
    return ValueOrigin("ServiceLevel", rule, source)


def _fqan(job: PublishedJob) -> ValueOrigin:
    rule = "the main FQAN"
    if not job.job.fqans:
        rule = "the job has none"
    elif not job.who.apel_fqan():
        rule = "left out: APEL would take VO, group and role from it, which are others"
    return ValueOrigin("FQAN", rule, "fqans")


_FOLLOW: Final = "follow when all rows are checked, once a day or with `publisher publish --force`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One run of a job at one target.

    `fate` is what becomes of it there, `reason` why. `oddities` were sent all the same, `altered`
    are what the record says less than the job. `record` is '' where none can be made, and `unfit`
    says why. `group_jobs` counts the jobs that are in the same group of a summary by now, None
    where there is none.
    """

    target: str
    format: str
    row: RowRef
    local_id: str
    fate: str
    reason: str
    values: Sequence[ExplainedValue] = ()
    oddities: Sequence[tuple[str, str]] = ()
    altered: Sequence[tuple[str, str]] = ()
    record: str = ""
    unfit: str = ""
    group_jobs: int | None = None
    charge: ExplainedCharge | None = None
    # How fields of the job record came about that an importer wrote, or that were joined
    imported: Sequence[ImportRule] = ()
    origin: ImportedFrom | None = None  # which of its records that was


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCharge:
    """What a job's rule made of it. `quantities` are name, value and field of the job record.

    `amount` is '' without a result, and `reason` says why. `published`: the record has it.
    """

    place: str
    formula: str
    unit: str
    quantities: Sequence[tuple[str, str, str]]
    amount: str
    reason: str
    published: bool


def explain(
    site: Site, text: str, *, targets: Sequence[str], format_name: str | None
) -> tuple[JobId, list[Explanation]]:
    """Return a job and each of its runs at every target, in `format_name` or the target's own.

    `text` is its JobID, or its id in the batch system. Raises: UsageError for a job that is not
    there; LedgerError, SourceError.
    """
    chosen = choose(site.targets, targets)
    now, digest_of = site.process.clock(), site.sending.policy_digest
    formats = {target.name: _format(format_name or target.format) for target in chosen}
    needs = frozenset[SideTable]().union(*(each.needs for each in formats.values()))
    with asked(site, job=text) as jobs:
        job_id = named_job(site, jobs, text)
        page = _page(site, jobs, job_id)
    if needs > needs_of(site.targets):  # another format than that of any target
        page = page._replace(jobs=with_side_tables(site, page.jobs, needs))
    rules = {job.row: _import_rules(site.accounting, site.batch_systems, job) for job in page.jobs}
    entries = {entry.name: entry for entry in site.batch_systems.entries}
    origins = {
        job.row: site.batch_systems.imported_from(entries[job.row.database], job)
        for job in page.jobs
        if job.row.database in entries
    }
    with closing(site.ledgers.to_read()) as ledger, closing(jobs_of(site.ledgers)) as jobs:
        found = [
            one
            for target in chosen
            for one in _at_target(
                _Bench(target, formats[target.name], ledger, jobs, digest_of(target), now),
                page,
            )
        ]
    explained = [_with_origins(one, rules.get(one.row, ()), origins.get(one.row)) for one in found]
    return job_id, explained


def _with_origins(
    one: Explanation, rules: Sequence[ImportRule], origin: ImportedFrom | None
) -> Explanation:
    """With how the fields of its job record came about; joined values are marked as such."""
    joined = {} if origin is not None else dict(rules)
    values = [replace(value, rule=joined.get(value.source, value.rule)) for value in one.values]
    return replace(one, values=values, imported=rules, origin=origin)


def _page(site: Site, jobs: JobQueries, job_id: JobId) -> FoundJob:
    """Return the job's runs. Raises: UsageError, SourceError, LedgerError."""
    page = jobs.find(job_id)
    if page.is_there:
        return page
    raise not_found(
        site,
        f"no finished job is called {job_id!r} in the accounting data; {GIVE_ID}. "
        f"`publisher trace {job_id}` tells whether it was delivered before it was removed",
    )


def _import_rules(
    accounting: Accounting, batch_systems: BatchSystems, job: JobRecord
) -> Sequence[ImportRule]:
    """Return where a job's joined values come from; empty where its importer is gone."""
    if job.interface not in BY_INTERFACE:
        return accounting.joined_from(job)
    entries = [
        each for each in batch_systems.entries if each.type == BY_INTERFACE.get(job.interface)
    ]
    entries.sort(key=lambda entry: entry.name != job.row.database)
    return batch_systems.importer(entries[0]).explain(job) if entries else ()


def _format(name: str) -> JobFormat | SummaryFormat:
    """Raises: UsageError."""
    known = {**JOB_FORMATS, **SUMMARY_FORMATS}
    if name not in known:
        raise UsageError(f"there is no format {name!r}; there are {', '.join(known)}")
    return record_format(name)


@dataclass(frozen=True, slots=True)
class _Bench:
    """Where one target's explanations are made."""

    target: Target
    format: JobFormat | SummaryFormat
    ledger: Ledger
    jobs: StoreReader
    policy_digest: str
    now: datetime

    def explanation(self, row: RowRef, local_id: str, fate: str, reason: str) -> Explanation:
        target, form = self.target.name, self.format.name
        return Explanation(
            target=target, format=form, row=row, local_id=local_id, fate=fate, reason=reason
        )


def _at_target(bench: _Bench, page: FoundJob) -> list[Explanation]:
    return [
        *(
            bench.explanation(one.row, one.local_id, "set aside", f"{one.rule}: {one.reason}")
            for one in page.skipped
        ),
        *(_of(bench, job) for job in page.jobs),
        *(bench.explanation(row, "", "open", _UNFINISHED) for row in page.unfinished),
        *(bench.explanation(row, "", "open", _AWAITED) for row in page.awaited),
    ]


def _of(bench: _Bench, job: JobRecord) -> Explanation:
    target, key, run = bench.target, job.key, job.run_key
    recorded = RecordedRuns(bench.ledger.entries.recorded(target.name, [run]))
    known = recorded.get(run)
    held = bench.ledger.quarantine.held(target.name, [key]).get(key)
    if known is not None and receiver_of(target.format).on_change is OnChange.REPLACE:
        job = job._replace(ended_at=known.record.ended_at)
    charge = _charge(bench, job)
    sent_otherwise = any(other.counts for other in recorded.others(run))
    try:
        published = target.in_format(bench.format.name).policy.describe(job)
        if sent_otherwise:
            published = published._replace(later_run=recorded.is_later_run(run))
    except Unfit as unfit:
        fate, reason = _fate(bench, job, None, known, held, str(unfit))
        return replace(
            bench.explanation(job.row, job.local_id, fate, reason), charge=charge, unfit=str(unfit)
        )
    own = bench.format if bench.format.name == target.format else _format(target.format)
    fate, reason = _fate(
        bench, job, published, known, held, _rendered(own, published, bench.now)[1]
    )
    if sent_otherwise:
        reason += (
            "; A-REX restarted the job after a run under another local job id was delivered, "
            "which counts beside this one"
        )
    record, unfit_here = _rendered(bench.format, published, bench.now)
    receiver = bench.format.receiver
    return replace(
        bench.explanation(job.row, job.local_id, fate, reason),
        charge=charge,
        values=explained(
            target.policy, published, receiver, summary=isinstance(bench.format, SummaryFormat)
        ),
        oddities=explained_warnings(published),
        altered=receiver.omitted(published),
        record=record,
        unfit=unfit_here,
        group_jobs=_group_jobs(bench, published),
    )


def _charge(bench: _Bench, job: JobRecord) -> ExplainedCharge | None:
    """None where no rule is for the job."""
    charges = bench.target.charging
    found = charges.assess(job) if isinstance(charges, Charges) else None
    if found is None:
        return None
    rule = found.rule
    amount = "" if found.charge is None else found.charge.text
    return ExplainedCharge(
        place=rule.place,
        formula=rule.formula.text,
        unit=rule.unit,
        quantities=rule.quantity_rows(job),
        amount=amount,
        reason=found.reason,
        published=found.charge is not None and bench.format.receiver.takes_charges,
    )


def _fate(
    bench: _Bench,
    job: JobRecord,
    published: PublishedJob | None,
    known: Recorded | None,
    held: Quarantined | None,
    unfit: str,
) -> tuple[str, str]:
    """Return what the next round makes of a job, as `Decider` decides it, and why."""
    if known is not None and (known.pending or known.counts):
        return _fate_of_known(bench.target, job, known)
    if unwanted := _why_not_wanted(bench, job, published):
        return "not wanted", unwanted
    if held is not None and held.hold is Hold.DROPPED:
        return "dropped", f"by an administrator; {held.job.rule}: {held.job.reason}"
    if unfit:
        return "set aside", unfit
    if held is not None and _stays_held(bench, held, job):
        return "set aside", f"{held.job.rule}: {held.job.reason}"
    return "to be sent", _when_sent(bench, job, held)


def _stays_held(bench: _Bench, held: Quarantined, job: JobRecord) -> bool:
    same_policy = held.policy_digest == bench.policy_digest
    return held.hold is Hold.HELD and same_policy and is_unchanged(held, job)


def _why_not_wanted(bench: _Bench, job: JobRecord, published: PublishedJob | None) -> str:
    target = bench.target
    state = bench.ledger.targets.state(target.name)
    start = state.start if state else target.start.begin(bench.now)
    selection = target.selection(Window(start=start))
    if job.status not in selection.statuses:
        statuses = ", ".join(sorted(selection.statuses))
        return f"status {job.status} is not among records.statuses ({statuses})"
    if job.ended_at not in selection.window:
        since = f"since when the target takes jobs (start: {target.start})"
        return f"it did not end {selection.window}, {since}"
    if published is not None and not selection.wants_vo(published.who.vo):
        return f"its VO is {published.who.vo or NO_VO}, which vos and exclude_vos exclude"
    return ""


def _fate_of_known(target: Target, job: JobRecord, known: Recorded) -> tuple[str, str]:
    if known.pending:
        return "on its way", "not yet settled"
    word = "counted" if is_summary_format(target.format) else "delivered"
    if known.digest == job.values_digest:
        return word, "`publisher trace` shows in which message"
    if receiver_of(target.format).on_change is OnChange.KEEP_FIRST:
        return word, "its values have changed since, and the receiver keeps what it has"
    return word, f"with other values than it has now, which {_FOLLOW}"


def _when_sent(bench: _Bench, job: JobRecord, held: Quarantined | None) -> str:
    """Return when a round meets a row again that was read before."""
    if held is not None or is_read_next(bench.jobs, job):
        return "with the next round"
    return f"its row changed after it was read, and such rows {_FOLLOW}"


def _rendered(
    form: JobFormat | SummaryFormat, published: PublishedJob, now: datetime
) -> tuple[str, str]:
    """The record in its frame, of a summary the job's own group; and why there is none, or ''."""
    try:
        if isinstance(form, SummaryFormat):
            (content,) = form.render([_group(form, published, now)], now)
        else:
            content = form.render(published, now)
    except Unfit as unfit:
        return "", str(unfit)
    return form.frame.join([content]).decode("utf-8"), ""


def _group(form: SummaryFormat, published: PublishedJob, now: datetime) -> SummaryGroup:
    """Raises: Unfit."""
    form.admit(published, now)
    return group_of(_row(form, published))


def _row(form: SummaryFormat, published: PublishedJob) -> RowTotal:
    """Return the job's row in totals, with the job alone. Raises: Unfit."""
    fields = SummaryRows(form.grouping).of(published)
    month, end = month_number(published.ended_at), published.ended_at
    job = published.job
    entry = entry_of(published, job.run_key, RowKey(month, fields), job.values_digest)
    return RowTotal(entry.row, Usage(1, entry.wall_s, entry.cpu_s), end, end)


def _group_jobs(bench: _Bench, published: PublishedJob) -> int | None:
    """Return how many jobs the ledger has counted into the job's group."""
    form = bench.format
    if not isinstance(form, SummaryFormat) or form.name != bench.target.format:
        return None
    try:
        wanted = form.receiver_key(_group(form, published, bench.now))
        month = month_number(published.ended_at)
    except Unfit:
        return None
    rows = bench.ledger.entries.rows(bench.target.name, month)
    groups = groups_of(form.grouping, rows)
    return next((one.counts.jobs for one in groups if form.receiver_key(one.group) == wanted), 0)
