"""Charges of a window: computed by the site's rules, kept in the ledger, and summed up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from publisher.ledger.books import ChargeBook, ChargeRequest, ChargeRun, KeptCharge, News, RunNumber
from publisher.ledger.contract import Ledgers
from publisher.model.errors import ConfigError, Later
from publisher.model.job import JobRecord
from publisher.model.rates import AssessedJob, Tariff, UsedAllocation
from publisher.publishing.databases.ask import asked
from publisher.publishing.site import Site
from publisher.reporting.charges.allocations import overlapping, used_allocations
from publisher.reporting.charges.rules import Charges, overlap_notes

RowsRead = Callable[[int], None]

_EXAMPLES: Final = 3  # jobs that are named for each reason
_TRANSACTION_ROWS: Final = 2000  # each is a write to the disk
_LOOK_EVERY_S: Final = 1.0


@dataclass(slots=True)
class Sum:
    """Jobs and what they cost together."""

    jobs: int = 0
    amount: Decimal = Decimal(0)

    def add(self, amount: Decimal | None) -> None:
        self.jobs += 1
        self.amount += amount or 0


@dataclass(frozen=True, slots=True, order=True)
class ChargedAccount:
    """Who pays, in which unit."""

    project: str
    group: str
    unit: str


@dataclass(slots=True)
class Cause:
    """Jobs without a result for one reason; some of them are named."""

    jobs: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, job_id: str) -> None:
        self.jobs += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(job_id)


@dataclass(slots=True)
class Change:
    """Jobs that one tariff took over from another: what they cost before and now."""

    jobs: int = 0
    before: Decimal = Decimal(0)
    after: Decimal = Decimal(0)


@dataclass(slots=True, kw_only=True)
class ChargeTotals:
    """All charges of a request, summed up. Grows with payers and tariffs, not with jobs."""

    jobs: int = 0
    charged: int = 0
    sums: dict[ChargedAccount, Sum] = field(default_factory=dict)
    totals: dict[str, Sum] = field(default_factory=dict)  # by unit
    causes: dict[str, Cause] = field(default_factory=dict)  # by reason
    # Of this run: was, is
    changes: dict[tuple[Tariff | None, Tariff | None], Change] = field(default_factory=dict)

    def add(self, kept: KeptCharge, run: RunNumber | None) -> None:
        job = kept.job
        self.jobs += 1
        if job.amount is not None and job.tariff is not None:
            self.charged += 1
            account = ChargedAccount(job.project, job.group, job.tariff.unit)
            self.sums.setdefault(account, Sum()).add(job.amount)
            self.totals.setdefault(job.tariff.unit, Sum()).add(job.amount)
        if job.reason:
            self.causes.setdefault(job.reason, Cause()).add(job.job_id)
        if kept.news is News.CHANGED and kept.news_of == run and kept.was is not None:
            change = self.changes.setdefault((kept.was.tariff, job.tariff), Change())
            change.jobs += 1
            change.before += kept.was.amount or 0
            change.after += job.amount or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeReport:
    """What came of a request. `run` None: nothing was computed; `overlaps` are rules that meet."""

    request: ChargeRequest
    run: ChargeRun | None
    bill: ChargeTotals
    allocations: Sequence[UsedAllocation]
    overlaps: Sequence[str] = ()


def charge(site: Site, request: ChargeRequest, *, rows_read: RowsRead) -> ChargeReport:
    """Compute the charges of a request again and keep them.

    Raises: ConfigError for no rules; Later when stopped on request; SourceError, LedgerError.
    """
    charges = site.records.charging
    if not isinstance(charges, Charges):
        key = f"{site.configuration}: records.charges"
        raise ConfigError(f"{key}: missing; publisher.yaml(5) explains its keys")
    clock, wait = site.process.clock, site.process.wait
    with closing(site.ledgers.charge_book()) as book:
        with book.asked(request, clock, lambda: not wait(_LOOK_EVERY_S)) as number:
            _compute(site, book, number, request, charges, rows_read)
        bill = _bill(book, request, number)
        run = next(one for one in book.runs() if one.number == number)
    allocations = _allocations(site, request)
    return ChargeReport(
        request=request,
        run=run,
        bill=bill,
        allocations=allocations,
        overlaps=overlap_notes(charges.rules),
    )


def kept(site: Site, request: ChargeRequest) -> ChargeReport:
    """The charges of a request as they are kept. Raises: LedgerError, SourceError."""
    allocations = _allocations(site, request)
    with closing(site.ledgers.charge_book(to_read=True)) as book:
        bill = _bill(book, request, None)
        return ChargeReport(request=request, run=None, bill=bill, allocations=allocations)


def _allocations(site: Site, request: ChargeRequest) -> Sequence[UsedAllocation]:
    """Of its projects and its time; none of a group, which has none."""
    found = overlapping(site.records.allocations, request.window) if request.group is None else ()
    wanted = [one for one in found if request.project in (None, one.project)]
    if not wanted:
        return ()
    with asked(site) as jobs:
        return used_allocations(site, jobs, wanted)


def jobs(ledgers: Ledgers, request: ChargeRequest) -> Iterator[KeptCharge]:
    """Each job of a request as it is kept, by end time. Raises: LedgerError."""
    with closing(ledgers.charge_book(to_read=True)) as book:
        yield from book.charges(request)


def runs(ledgers: Ledgers) -> Sequence[ChargeRun]:
    """Every run, the latest last. Raises: LedgerError."""
    with closing(ledgers.charge_book(to_read=True)) as book:
        return book.runs()


def _compute(
    site: Site,
    book: ChargeBook,
    number: RunNumber,
    request: ChargeRequest,
    rules: Charges,
    rows_read: RowsRead,
) -> None:
    clock, statuses = site.process.clock, site.records.statuses
    with asked(site) as found:
        for page in found.window(request.window, current=True, page_jobs=_TRANSACTION_ROWS):
            if site.process.wait(0):
                kept = "what was computed until now is kept, the same command computes the rest"
                raise Later(f"stopped on request; {kept}")
            jobs = [job for job in page.jobs if _is_for(job, request, statuses)]
            assessed = [_assessed(job, rules) for job in jobs]
            book.keep(number, assessed, unreadable=len(page.skipped), now=clock())
            rows_read(len(page.jobs))


def _is_for(job: JobRecord, request: ChargeRequest, statuses: Set[str]) -> bool:
    if job.status not in statuses or request.group not in (None, job.local_group):
        return False
    return request.project in (None, project_of(job))


def project_of(job: JobRecord) -> str:
    """The project that pays: the first one, so that no job is paid twice."""
    return job.projects[0] if job.projects else ""


def _assessed(job: JobRecord, rules: Charges) -> AssessedJob:
    found = rules.assess(job)
    tariff, charge, reason = (
        (found.rule.tariff, found.charge, found.reason) if found else (None, None, "")
    )
    return AssessedJob(
        run=job.run_key,
        job_id=job.job_id,
        local_id=job.local_id,
        ended_at=job.ended_at,
        queue=job.queue,
        project=project_of(job),
        group=job.local_group,
        tariff=tariff,
        amount=charge and charge.amount,
        reason=reason,
    )


def _bill(book: ChargeBook, request: ChargeRequest, number: RunNumber | None) -> ChargeTotals:
    bill = ChargeTotals()
    for one in book.charges(request):
        bill.add(one, number)
    return bill
