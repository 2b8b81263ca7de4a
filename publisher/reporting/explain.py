"""How each value of a job's record came about, what becomes of the job at each target and why, and the record itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from publisher.formats import JOB_FORMATS, SUMMARY_FORMATS, is_summary_format, job_format, receiver_of, summary_format
from publisher.formats.base import JobFormat, OnChange, SummaryFormat
from publisher.formats.rules import WARNINGS
from publisher.ledger.contract import DeliveredRun, Hold, Ledger, Quarantined
from publisher.model.errors import Unfit, UsageError
from publisher.model.job import JobId, JobRecord, RowRef, SkippedJob
from publisher.model.message import REMOVED
from publisher.model.policy import PublishedJob
from publisher.model.target import Target
from publisher.model.time import Window, epoch
from publisher.model.totals.summary import Accumulator, SummaryGroup, month_number
from publisher.pipeline.guards.collisions import is_later_run
from publisher.pipeline.guards.databases import not_found
from publisher.pipeline.round.decision import is_unchanged
from publisher.pipeline.site import Site, choose
from publisher.reporting.charges.rules import Charges
from publisher.reporting.explanation import ExplainedValue, explained
from publisher.sources import BY_INTERFACE
from publisher.sources.base import ImportedFrom, Page
from publisher.sources.importers import ImportRule

_FOLLOW: Final = "follow when all rows are checked, once a day or with `publisher publish --force`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One run of a job at one target.

    `fate` is what becomes of it there, `reason` why. `oddities` were sent all the same, `altered` are what the record says
    less than the job. `record` is '' where none can be made, and `unfit` says why. `group_jobs` counts the jobs that are in
    the same group of a summary by now, None where there is none.
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
    imported: Sequence[ImportRule] = ()  # how fields of the job record came about, where an importer wrote the row
    origin: ImportedFrom | None = None  # which of its records that was


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCharge:
    """What the rule that is for a job made of it. `quantities` are name, value and field of the job record.

    `amount` is '' without a result, and `reason` says why. `published`: the record has it.
    """

    place: str
    formula: str
    unit: str
    quantities: Sequence[tuple[str, str, str]]
    amount: str
    reason: str
    published: bool


def explain(site: Site, job_id: JobId, *, targets: Sequence[str], format_name: str | None) -> list[Explanation]:
    """Every run of a job at every target, in `format_name` or the target's own format.

    Raises: UsageError for a job that is not there; LedgerError, SourceError.
    """
    chosen = choose(site.targets, targets)
    if format_name is not None and format_name not in (known := {**JOB_FORMATS, **SUMMARY_FORMATS}):
        raise UsageError(f"there is no format {format_name!r}; there are {', '.join(known)}")
    now = site.clock()
    formats = {target.name: _format(format_name or target.format) for target in chosen}
    with closing(site.source()) as source:
        needs = frozenset(side for each in formats.values() for side in each.needs)
        page = source.find(job_id, needs, now)
    if not (page.jobs or page.skipped or page.open):
        raise not_found(
            site,
            f"no finished job is called {job_id!r} in the accounting data; give the JobID that the CE assigned. "
            f"`publisher trace {job_id}` tells whether it was delivered before it was removed",
        )
    rules = {job.row: _import_rules(site, job) for job in page.jobs}
    origins = {job.row: _origin(site, job) for job in page.jobs}
    with closing(site.ledger_to_read()) as ledger:
        found = [
            one
            for target in chosen
            for one in _at_target(_bench(site, target, formats[target.name], ledger, now), page)
        ]
    return [replace(one, imported=rules.get(one.row, ()), origin=origins.get(one.row)) for one in found]


def _import_rules(site: Site, job: JobRecord) -> Sequence[ImportRule]:
    """Empty for a job of A-REX, and where the importer of another is no longer configured."""
    importer = BY_INTERFACE.get(job.interface)
    if importer is None or importer not in site.importers:
        return ()
    return site.importer(importer).explain(job)


def _origin(site: Site, job: JobRecord) -> ImportedFrom | None:
    """None for a job of A-REX. Raises: SourceError."""
    if job.interface not in BY_INTERFACE:
        return None
    return site.imported_from(job)


def _format(name: str) -> JobFormat | SummaryFormat:
    return summary_format(name) if is_summary_format(name) else job_format(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """Where one target's explanations are made."""

    target: Target
    format: JobFormat | SummaryFormat
    ledger: Ledger
    policy_digest: str
    now: datetime


def _bench(site: Site, target: Target, form: JobFormat | SummaryFormat, ledger: Ledger, now: datetime) -> _Bench:
    return _Bench(target=target, format=form, ledger=ledger, policy_digest=site.policy_digest(target), now=now)


def _at_target(bench: _Bench, page: Page) -> list[Explanation]:
    name, form = bench.target.name, bench.format.name
    waiting = [
        Explanation(
            target=name,
            format=form,
            row=row.row,
            local_id="",
            fate="open",
            reason="it has not finished, or A-REX still writes it",
        )
        for row in page.open
    ]
    return [
        *(_of_skipped(bench, skipped) for skipped in page.skipped),
        *(_of(bench, job) for job in page.jobs),
        *waiting,
    ]


def _of_skipped(bench: _Bench, skipped: SkippedJob) -> Explanation:
    """A row that cannot be read as a job."""
    return Explanation(
        target=bench.target.name,
        format=bench.format.name,
        row=skipped.row,
        local_id=skipped.local_id,
        fate="set aside",
        reason=f"{skipped.rule}: {skipped.reason}",
    )


def _of(bench: _Bench, job: JobRecord) -> Explanation:
    target, key = bench.target, job.key
    known = bench.ledger.known(target.name, {key: job.row}).get(key)
    held = bench.ledger.held(target.name, [key]).get(key)
    if known is not None and receiver_of(target.format).on_change is OnChange.REPLACE:
        job = replace(job, ended_at=known.ended_at)
    about = Explanation(
        target=target.name,
        format=bench.format.name,
        row=job.row,
        local_id=job.local_id,
        fate="",
        reason="",
        charge=_charge(bench, job),
    )
    others = bench.ledger.other_runs(target.name, {key: job.row}).get(key, ())
    sent_otherwise = any(run.settled for run in others)
    try:
        published = target.in_format(bench.format.name).policy.describe(job)
        if sent_otherwise:
            published = replace(published, later_run=is_later_run(target.name, job, bench.ledger))
    except Unfit as unfit:
        fate, reason = _fate(bench, job, None, known, held, str(unfit))
        return replace(about, fate=fate, reason=reason, unfit=str(unfit))
    own = bench.format if bench.format.name == target.format else _format(target.format)
    fate, reason = _fate(bench, job, published, known, held, _rendered(own, published, bench.now)[1])
    if sent_otherwise:
        reason += "; A-REX restarted the job after a run under another local job id was delivered, which counts beside this one"
    record, unfit_here = _rendered(bench.format, published, bench.now)
    receiver = bench.format.receiver
    return replace(
        about,
        fate=fate,
        reason=reason,
        values=explained(target.policy, published, receiver, summary=isinstance(bench.format, SummaryFormat)),
        oddities=[(rule.name, text) for rule in WARNINGS if (text := rule.check(published))],
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
    return ExplainedCharge(
        place=rule.place,
        formula=rule.formula.text,
        unit=rule.unit,
        quantities=rule.quantity_rows(job),
        amount="" if found.charge is None else found.charge.text,
        reason=found.reason,
        published=found.charge is not None and bench.format.receiver.takes_charges,
    )


def _fate(
    bench: _Bench,
    job: JobRecord,
    published: PublishedJob | None,
    known: DeliveredRun | None,
    held: Quarantined | None,
    unfit: str,
) -> tuple[str, str]:
    """What the next round makes of a job, as `Decider` decides it, and why."""
    target = bench.target
    state = bench.ledger.target(target.name)
    begin = target.start.begin(bench.now)
    start = state.start if state else (None if begin is None else epoch(begin))
    selection = target.selection(Window(start=start))
    if known is not None and known.fingerprint != REMOVED:
        return _fate_of_known(target, job, known)
    if job.status not in selection.statuses:
        return (
            "not wanted",
            f"status {job.status} is not among records.statuses ({', '.join(sorted(selection.statuses))})",
        )
    if job.ended_at not in selection.window:
        return (
            "not wanted",
            f"it ended outside of {selection.window}, since when the target takes jobs (start: {target.start})",
        )
    if published is not None and not selection.wants_vo(published.who.vo):
        return "not wanted", f"its VO is {published.who.vo or 'none'}, which vos and exclude_vos exclude"
    if held is not None and held.hold is Hold.DROPPED:
        return "dropped", f"by an administrator; {held.job.rule}: {held.job.reason}"
    if unfit:
        return "set aside", unfit
    same_decision = held is not None and held.policy_digest == bench.policy_digest
    if held is not None and held.hold is Hold.HELD and same_decision and is_unchanged(held, job):
        return "set aside", f"{held.job.rule}: {held.job.reason}"
    return "to be sent", _when_sent(bench, job, held)


def _fate_of_known(target: Target, job: JobRecord, known: DeliveredRun) -> tuple[str, str]:
    if not known.settled:
        return "on its way", "not yet settled"
    word = "counted" if is_summary_format(target.format) else "delivered"
    if known.fingerprint == job.fingerprint:
        return word, "`publisher trace` tells in which message"
    if receiver_of(target.format).on_change is OnChange.KEEP_FIRST:
        return word, "its values have changed since, and the receiver keeps what it has"
    return word, f"with other values than it has now, which {_FOLLOW}"


def _when_sent(bench: _Bench, job: JobRecord, held: Quarantined | None) -> str:
    """A row that was read before is not met again by every round."""
    cursor = bench.ledger.cursor(bench.target.name, job.row.database)
    if held is not None or cursor is None or job.row.record_id > cursor.record_id:
        return "with the next round"
    if any(row.row == job.row for row in bench.ledger.open_rows(bench.target.name)):
        return "with the next round"
    return f"its row changed after it was read, and such rows {_FOLLOW}"


def _rendered(form: JobFormat | SummaryFormat, published: PublishedJob, now: datetime) -> tuple[str, str]:
    """The record in its frame, of a summary the group that the job alone makes; and why there is none, or ''."""
    try:
        content = (
            form.render(_group(form, published, now), now)
            if isinstance(form, SummaryFormat)
            else form.render(published, now)
        )
    except Unfit as unfit:
        return "", str(unfit)
    return form.frame.join([content]).decode("utf-8"), ""


def _group(form: SummaryFormat, published: PublishedJob, now: datetime) -> SummaryGroup:
    """Raises: Unfit."""
    form.admit(published, now)
    alone = Accumulator(form.grouping)
    alone.add(published)
    return next(alone.groups())


def _group_jobs(bench: _Bench, published: PublishedJob) -> int | None:
    """How many jobs the ledger has counted into the job's group."""
    form = bench.format
    if not isinstance(form, SummaryFormat) or form.name != bench.target.format:
        return None
    try:
        wanted = form.receiver_key(_group(form, published, bench.now))
        month = month_number(published.ended_at)
    except Unfit:
        return None
    counted = bench.ledger.counted(bench.target.name, month)
    return next((group.jobs for group in counted if form.receiver_key(group) == wanted), 0)
