"""The accounting databases: readable, quick, of a known kind, and what their newest jobs meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from publisher.config import Settings
from publisher.doctor.findings import Finding, Question, join, not_asked
from publisher.formats import is_summary_format, job_format, receiver_of, summary_format
from publisher.jobs.reader import StoreReader
from publisher.ledger.contract import Ledgers
from publisher.model.errors import (
    Busy,
    ConfigError,
    CredentialError,
    LedgerError,
    SourceError,
    Unfit,
)
from publisher.model.job import Epoch, JobRecord
from publisher.model.rates import wall_text
from publisher.model.text import plural
from publisher.model.time import Month, Window, epoch
from publisher.policy.target import Target
from publisher.publishing.databases.ask import asked
from publisher.publishing.databases.known import as_loaded, jobs_of, missed
from publisher.publishing.round.live import Sending
from publisher.publishing.site import LOCK_WAIT_S, ProcessEnvironment, Site
from publisher.sources.arex.values import zone_of_host
from publisher.sources.base import SourceFacts
from publisher.sources.importers import Accounting
from publisher.transports.credentials.checks import foreign_machines

_MONTHS: Final = 6
_QUIET: Final = timedelta(days=7)
_DAY_S: Final = 86_400
_RECENT_DAYS: Final = 30
# Newest jobs that are judged as a round would: seconds, and enough to meet every queue.
_MOST_JOBS: Final = 5000
_SOON: Final = timedelta(days=1)  # time zones and small clock steps apart
_WHY_ZONE: Final = "A-REX writes local times; with the wrong zone every start is hours off"
_OTHER_DATABASE: Final = (
    "is this the database that A-REX writes today? After an upgrade to ARC 7 it is "
    "accounting_v2.db; compare controldir in arc.conf with `source`"
)
_SILENT_BATCH_SYSTEM: Final = (
    "check that the batch system runs jobs and still writes its accounting where `source` reads it"
)
_OPTIMIZE: Final = "as the user who runs A-REX: `arcctl accounting database optimize`"


def check_databases(site: Site, settings: Settings, targets: Sequence[Target]) -> Iterator[Finding]:
    question = Question("database", "source", "every job that is published is read from there")
    yield from _zone(site, settings)
    now = site.process.clock()
    try:
        if _waits_for_first_reading(site, settings):
            because = "no batch system was read yet"
            yield question.warning(because, "`publisher publish` reads them, as does the daemon")
            yield not_asked(Question("benchmarks", "source", _WHY_BENCHMARKS), because)
            return
        with closing(site.accounting.open(lock_wait_s=LOCK_WAIT_S)) as source:
            facts = source.facts()
            for each in facts:
                yield _opened(each)
                yield _indexes(each)
                yield _statuses(each)
        with asked(site) as jobs:
            yield _months(jobs, now, with_arex=any(_of_arex(settings)))
            yield _future(jobs, now)
            yield from _newest(site.sending, site.ledgers, jobs, targets, now)
    except (LedgerError, Busy) as error:  # which `state directory` is about, or another publisher
        yield not_asked(Question("benchmarks", "source", _WHY_BENCHMARKS), f"job store: {error}")
    except (SourceError, ConfigError) as error:
        advice = (
            "check that A-REX's accounting is enabled ([arex] in arc.conf), and look at that file"
        )
        yield question.error(error, advice)
        because = "the accounting data cannot be read"
        yield not_asked(Question("benchmarks", "source", _WHY_BENCHMARKS), because)


def _zone(site: Site, settings: Settings) -> Iterator[Finding]:
    """Events are there as local time without a zone. Imported jobs have no events."""
    for name, options in _of_arex(settings):
        yield _zone_of(Question("time zone", name, _WHY_ZONE), options.time_zone, site.process)


def _waits_for_first_reading(site: Site, settings: Settings) -> bool:
    """Return whether no batch system was read yet, and there is no CE. Raises: LedgerError."""
    if any(_of_arex(settings)):
        return False
    names = {entry.name for entry in site.batch_systems.entries if entry.in_rounds}
    with closing(jobs_of(site.ledgers)) as jobs:
        return bool(names) and names.isdisjoint(jobs.sources())


def _of_arex(settings: Settings) -> Iterator[tuple[str, Any]]:
    """The sources that A-REX writes, with their options."""
    for entry in settings.written:
        options: Any = entry.options
        if hasattr(options, "time_zone"):
            yield entry.name, options


def _zone_of(question: Question, zone: str, process: ProcessEnvironment) -> Finding:
    if zone:
        return question.ok(zone)
    assumed = zone_of_host(process.environment)
    return question.warning(
        f"source.time_zone is not set, so this host's zone is used: {assumed}",
        "set source.time_zone to the CE's zone, such as Europe/Oslo",
    )


def check_known_databases(
    ledgers: Ledgers, accounting: Accounting, targets: Sequence[Target]
) -> Iterator[Finding]:
    """Whether all databases that were read once are still there."""
    why = "jobs that are in no other database are counted nowhere"
    question = Question("known databases", "source", why)
    try:
        with (
            closing(ledgers.to_read()) as ledger,
            closing(as_loaded(accounting, ledgers, lock_wait_s=LOCK_WAIT_S)) as found,
        ):
            named = {one.reason for one in found.source.absent()}
            missing = missed(targets, found, ledger.databases)
    except (LedgerError, SourceError, ConfigError):
        return  # a finding of its own
    for one in missing:
        if one.reason in named:  # a finding of its own
            continue
        yield question.error(SourceError(one.reason), "bring it back, or retire it")
    if not missing:
        yield question.ok("all databases read before are there, or retired")


def _opened(facts: SourceFacts) -> Finding:
    question = Question("database", facts.path, "every job that is published is read from there")
    found = f"schema {facts.schema}, journal mode {facts.journal_mode}"
    if facts.way == "copy":
        advice = (
            "restart A-REX, or let its user open the file once with "
            "`sqlite3 FILE 'SELECT 1 FROM AAR LIMIT 1'`; "
            "else every run copies the whole file, by default to /var/tmp"
        )
        return question.warning(f"{found}; {join(facts.notes)}", advice)
    return question.ok(f"{found}, read in place{''.join(f'; {note}' for note in facts.notes)}")


def _indexes(facts: SourceFacts) -> Finding:
    why = "without them every page of jobs reads whole tables, and the CE notices"
    question = Question("indexes", facts.path, why)
    if facts.unindexed:
        return question.warning(f"no index helps our queries of {join(facts.unindexed)}", _OPTIMIZE)
    return question.ok("every query uses an index")


def _statuses(facts: SourceFacts) -> Finding:
    question = Question("statuses", facts.path, "jobs with an unknown status are not published")
    if facts.strange_statuses:
        found = join(f"{name!r} ({rows:,} jobs)" for name, rows in facts.strange_statuses.items())
        advice = (
            "look at these jobs in A-REX's log, and report the status: "
            "an update of ARC may have brought it"
        )
        return question.warning(f"unknown: {found}", advice)
    return question.ok("all known")


def _months(jobs: StoreReader, now: datetime, *, with_arex: bool) -> Finding:
    """How many rows end in each of the last months, and whether any still comes in."""
    question = Question("jobs per month", "source", "a gap here is a gap at every receiver")
    month = Month(now.year, now.month)
    months = []
    for _ in range(_MONTHS):
        months.append((month, jobs.count(month.window)))
        month = month.previous
    counted = ", ".join(f"{month}: {rows:,}" for month, rows in reversed(months))
    if not jobs.count(Window(start=epoch(now - _QUIET), end=epoch(now + _SOON))):
        advice = _OTHER_DATABASE if with_arex else _SILENT_BATCH_SYSTEM
        return question.warning(f"no job ended in the last {_QUIET.days} days ({counted})", advice)
    return question.ok(counted)


def _future(jobs: StoreReader, now: datetime) -> Finding:
    question = Question("end times", "source", "a job that ends in the future waits until then")
    rows = jobs.count(Window(start=epoch(now + _SOON)))
    if rows:
        advice = "check the CE's clock; a row that stays wrong has to be corrected in the database"
        return question.warning(f"{plural(rows, 'job ends', 'jobs end')} in the future", advice)
    return question.ok("none in the future")


_WHY_BENCHMARKS: Final = (
    "a job without a benchmark cannot be counted and is set aside; "
    "with a wrong one its work counts too little"
)
_ADVICE_BENCHMARKS: Final = (
    "write it under `records`, such as `benchmark: {type: HEPscore23, value: 11.5}` or a list of "
    "rules with `queue:`, and with `override: true` where jobs carry one that is wrong or cannot "
    "be read; what arc.conf says (benchmark in [lrms] and [queue:NAME]) holds for jobs from then on"
)


@dataclass(slots=True)
class _JobFates:
    """What would become of a target's newest jobs."""

    looked_at: int = 0
    queues: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)  # queues with jobs that lack a benchmark
    # Under A-REX's HEPSPEC:1.0, by queue
    default_wall_s: Counter[str] = field(default_factory=Counter)
    machines: set[str] = field(default_factory=set)  # MachineName
    rules: Counter[str] = field(default_factory=Counter)

    @property
    def among(self) -> str:
        return f"the newest {plural(self.looked_at, 'job')}, of {plural(len(self.queues), 'queue')}"


def _newest(
    sending: Sending,
    ledgers: Ledgers,
    jobs: StoreReader,
    targets: Sequence[Target],
    now: datetime,
) -> Iterator[Finding]:
    recent, skipped = _recent(jobs, now)
    for target in targets:
        outcomes = _outcomes_of(target, recent, now)
        yield _benchmarks(target, outcomes)
        if not outcomes.looked_at:
            continue
        yield _rules_broken(target, outcomes, skipped)
        if receiver_of(target.format).checks_machine_name:
            yield from _machine_names(sending, ledgers, target, outcomes.machines)


def _benchmarks(target: Target, outcomes: _JobFates) -> Finding:
    question = Question("benchmarks", target.name, _WHY_BENCHMARKS)
    unset = not target.policy.benchmarks.rules and receiver_of(target.format).needs_benchmark
    if not outcomes.looked_at:
        found = f"cannot tell: no job that this target wants ended in the last {_RECENT_DAYS} days"
        advice = "run doctor again when there are jobs; see `jobs per month`, `vos` and `statuses`"
        if unset:
            return question.warning(f"`records: benchmark` is not set; {found}", _ADVICE_BENCHMARKS)
        return question.warning(found, advice)
    if outcomes.bare:
        queues = join(sorted(outcomes.bare))
        none = "none, or none that can be read, for jobs of the queue"
        found = f"{none} {queues} (among {outcomes.among})"
        return question.warning(found, _ADVICE_BENCHMARKS)
    if outcomes.default_wall_s:
        walls = wall_text(outcomes.default_wall_s)
        wrote = f"A-REX wrote HEPSPEC:1.0 (its default) into jobs with {walls}"
        found = f"{wrote}, among {outcomes.among}"
        return question.warning(found, f"`distrust_default: true`, and {_ADVICE_BENCHMARKS}")
    if unset:
        found = (
            f"`records: benchmark` is not set: {outcomes.among} have their own; "
            "the first job without one will be set aside"
        )
        return question.warning(found, _ADVICE_BENCHMARKS)
    return question.ok(f"known for {outcomes.among}")


def _rules_broken(target: Target, outcomes: _JobFates, skipped: Counter[str]) -> Finding:
    question = Question("fitness", target.name, "a job that breaks a rule is set aside")
    rules = outcomes.rules + skipped
    if not rules:
        return question.ok(f"none of {outcomes.among} would be set aside")
    broken = join(f"{rule} ({count:,})" for rule, count in rules.most_common())
    advice = "`publisher explain JOB` shows why; `publisher quarantine list` has them after a round"
    found = f"jobs that would be set aside, among {outcomes.among}: {broken}"
    return question.warning(found, advice)


def _machine_names(
    sending: Sending, ledgers: Ledgers, target: Target, machines: Set[str]
) -> Iterator[Finding]:
    """Whether the certificate is of the domain of every MachineName.

    The receiver requires that, unless configured otherwise.
    """
    receiver = receiver_of(target.format).name
    why = (
        f"{receiver} refuses a record whose MachineName is not of the certificate's domain; "
        "an empty document does not show that"
    )
    question = Question("machine name", target.name, why)
    try:
        host, foreign = foreign_machines(sending.credentials(), machines)
        with closing(ledgers.to_read()) as ledger:
            state = ledger.targets.state(target.name)
    except (CredentialError, LedgerError):  # reported by the checks of these
        return
    domain = f"of the domain of the certificate's CN {host}"
    if not foreign:
        yield question.ok(f"{join(sorted(machines))}, {domain}")
    elif state is not None and state.delivered and not state.quarantined:
        yield question.ok(f"{join(foreign)}, not {domain}, but records were taken")
    else:
        permission = f"jobinsert:machine_name={';'.join(foreign)}"
        advice = (
            f"ask the administrator of {receiver} for `{permission}` for the DN under `subject`, "
            "or correct `records: machine_name`"
        )
        yield question.warning(f"{join(foreign)}, not {domain}", advice)


def _recent(jobs: StoreReader, now: datetime) -> tuple[list[JobRecord], Counter[str]]:
    """The newest finished jobs, and the rules that rows broke which are not jobs at all.

    Day by day backwards, and in larger steps past days without any.
    """
    found: list[JobRecord] = []
    skipped: Counter[str] = Counter()
    end = epoch(now + _SOON)
    oldest, step_s = end - (_RECENT_DAYS + 1) * _DAY_S, _DAY_S
    while end > oldest:
        start, before = Epoch(max(end - step_s, oldest)), len(found)
        for page in jobs.window(Window(start=start, end=end)):
            found += page.jobs
            skipped.update(one.rule for one in page.skipped)
            if len(found) >= _MOST_JOBS:
                return found, skipped
        step_s = _DAY_S if len(found) > before else step_s * 2
        end = start
    return found, skipped


def _outcomes_of(target: Target, jobs: Sequence[JobRecord], now: datetime) -> _JobFates:
    outcomes = _JobFates()
    selection = target.selection(Window())
    summary = summary_format(target.format) if is_summary_format(target.format) else None
    render = summary.admit if summary else job_format(target.format).render
    for job in jobs:
        if not selection.wants(job):
            continue
        try:
            published = target.policy.describe(job)
            if not selection.wants_vo(published.who.vo):
                continue
            outcomes.machines.add(published.where.machine_name)
            if published.benchmark.arex_default and job.wall_s > 0:
                outcomes.default_wall_s[job.queue] += job.wall_s
            render(published, now)
        except Unfit as unfit:
            outcomes.rules[unfit.rule] += 1
            if unfit.rule.startswith("benchmark"):
                outcomes.bare.add(job.queue)
        outcomes.looked_at += 1
        outcomes.queues.add(job.queue)
    return outcomes
