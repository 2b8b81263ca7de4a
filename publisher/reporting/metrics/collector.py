"""After a round: its target is measured, values are kept, the text file is written again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from glob import escape
from operator import attrgetter
from typing import Final

from publisher.jobs.usage import UsageReader
from publisher.ledger.books import StoredMetric
from publisher.ledger.contract import Ledgers
from publisher.model.errors import ConfigError, LedgerError, UsageError
from publisher.model.job import Epoch
from publisher.model.time import Window, epoch, month_of
from publisher.policy.records import SiteRecords
from publisher.publishing import status as target_status
from publisher.publishing.databases.ask import last_loaded
from publisher.publishing.databases.batch_systems import SourceStatus, source_status
from publisher.publishing.round.outcome import Outcome
from publisher.publishing.site import ProcessEnvironment, Site
from publisher.publishing.sync import counts as syncing
from publisher.reporting.charges.allocations import used_allocations
from publisher.reporting.files import whole_file
from publisher.reporting.metrics import exporter
from publisher.reporting.metrics.exporter import exposition, lost_measures
from publisher.reporting.usage import DAY_S, PeriodUsage, UsageReport, Used

_ATTEMPTS_TO_AGREE: Final = 5
_HOUR_S: Final = 3600
_DAY_END: Final = "day end"  # is not exposed
_OF_DAY: Final = (
    *(_DAY_END, exporter.DAY_JOBS, exporter.DAY_GPU_JOBS, exporter.DAY_GPU_SECONDS),
    *(exporter.DAY_ENERGY, exporter.DAY_CARBON, exporter.ALLOCATION),
)
_MONTH_DAY: Final = "month day"  # is not exposed
_OF_VOS: Final = (
    *(exporter.MONTH_JOBS, exporter.MONTH_CORE_SECONDS, exporter.MONTH_CPU_SECONDS),
    exporter.MONTH_WORK,
)
_OF_PROJECTS: Final = (
    *(exporter.PROJECT_JOBS, exporter.PROJECT_CORE_SECONDS, exporter.PROJECT_CPU_SECONDS),
    exporter.PROJECT_WORK,
)
_OF_MONTH: Final = (_MONTH_DAY, *_OF_VOS, *_OF_PROJECTS)
Values = dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Gauges by name (and label), None for what is unknown. `added` goes to counters."""

    target: str
    gauges: Mapping[str, float | None]
    added: Mapping[tuple[str, str], float]
    labelled: Mapping[tuple[str, str], float | None] = field(default_factory=dict)

    @property
    def known(self) -> Values:
        gauges = {(name, ""): value for name, value in self.gauges.items()} | {**self.labelled}
        return {at: value for at, value in gauges.items() if value is not None}

    @property
    def unknown(self) -> Sequence[str]:
        return [
            *(name for name, value in self.gauges.items() if value is None),
            *{name for name, _ in self.labelled},
        ]


def after_round(site: Site, outcome: Outcome) -> None:
    """Measure a target after its round, and publish what was measured.

    Raises: LedgerError, ConfigError when the file cannot be written.
    """
    if outcome.target not in {target.name for target in site.targets}:
        return  # removed from the configuration meanwhile
    measured: Sequence[Measured]
    try:
        if site.process.wait(
            0
        ):  # a stop was asked for, and locked accounting data would be waited for
            measured = (_of_round(site.process, outcome),)
        else:
            of_site = _of_site(site)
            of_day = _of_day(site, readable=bool(of_site.gauges[exporter.SOURCE_READABLE]))
            measured = (
                _of_round(site.process, outcome),
                _of_target(site, outcome.target),
                of_site,
                *of_day,
            )
        with closing(site.ledgers.measure_book()) as book:
            for one in measured:
                book.note(one.target, set_to=one.known, added=one.added, unknown=one.unknown)
    except LedgerError:
        # The stored values are outdated for good: only that, and the outcome, is reported.
        write_file(site, lost_measures(site.process, outcome))
        raise
    _write_what_is_kept(site)


def _write_what_is_kept(site: Site) -> None:
    """The file, as often as another round came in between, which this one may have overtaken."""
    for _ in range(_ATTEMPTS_TO_AGREE):
        written = _kept(site.ledgers)
        write_file(site, written)
        if _kept(site.ledgers) == written:
            return


def _kept(ledgers: Ledgers) -> Sequence[StoredMetric]:
    with closing(ledgers.measure_book(to_read=True)) as book:
        return book.measures()


def write_file(site: Site, measures: Sequence[StoredMetric]) -> None:
    """The text file, whole or as it was; nothing when none is configured. Raises: ConfigError."""
    settings = site.metrics
    if settings is None or settings.textfile is None:
        return
    text = exposition(site, measures).decode()
    try:
        with whole_file(settings.textfile, is_unattended=True) as out:
            out.write(text)
    except UsageError as error:
        reason = str(error).partition("; ")[0]
        raise ConfigError(
            f"metrics.textfile: {reason}; its directory must be there, and let this user write "
            f"(under systemd: ReadWritePaths={settings.textfile.parent} in the service)"
        ) from error


def _of_round(process: ProcessEnvironment, outcome: Outcome) -> Measured:
    return Measured(
        target=outcome.target,
        gauges={
            exporter.LAST_ROUND: _seconds(process.clock()),
            exporter.LAST_STATUS: outcome.exit_status,
            exporter.LAST_SECONDS: outcome.seconds,
        },
        added={
            (exporter.SENT_BYTES, ""): outcome.bytes,
            (exporter.ROUNDS, outcome.outcome): 1,
            (f"{exporter.ROUND_SECONDS}_count", ""): 1,
            (f"{exporter.ROUND_SECONDS}_sum", ""): outcome.seconds,
            **{(exporter.ATTEMPTS, verdict): count for verdict, count in outcome.attempts.items()},
        },
    )


def _of_target(site: Site, name: str) -> Measured:
    """What `status` reports. Raises: LedgerError."""
    ((status,), trouble) = target_status.status(site, targets=[name])
    with closing(site.ledgers.measure_book(to_read=True)) as book:
        messages, records = book.delivered(name)
    return Measured(
        target=name,
        gauges={
            exporter.LAST_SUCCESS: _seconds(status.last_success),
            exporter.OVERDUE: _seconds(status.overdue),
            exporter.PUBLISHED_END: status.last_published_end,
            exporter.OLDEST_UNSENT: status.oldest_unsent,
            exporter.DELIVERED: status.delivered,
            exporter.PENDING: status.pending,
            exporter.LATE: status.late,
            exporter.IN_DOUBT: status.in_doubt,
            exporter.QUARANTINED: status.quarantined,
            exporter.HELD: status.held,
            exporter.MISSING: None if trouble else len(status.missing),
            exporter.DRIFT: _drift(site, name),
            exporter.MESSAGES: messages,
            exporter.RECORDS: records,
        },
        added={},
    )


def _drift(site: Site, name: str) -> float | None:
    """Jobs by which the receiver's report differs from what was delivered; None for no counts.

    Both are in the ledger. `sync --check`, which reads every job, compares the database.
    """
    (target,) = (target for target in site.targets if target.name == name)
    if not target.sync:
        return None
    with closing(site.ledgers.to_read()) as ledger:
        counts = ledger.counts.by_host(name)
    due = syncing.counts_to_send(counts)
    recent = syncing.recent(due, site.process.clock(), syncing.MONTHS)
    return sum(abs(jobs - counts.reported.get(at, 0)) for at, jobs in recent.items())


def _of_site(site: Site) -> Measured:
    gauges: dict[str, float | None] = {
        exporter.ROWS: None,
        exporter.SOURCE_READABLE: 0,
        exporter.STATE_USABLE: 1,
        exporter.STATE_BYTES: _size(site.ledgers),
        exporter.CERTIFICATE_ENDS: _seconds(site.sending.certificate_ends()),
    }
    sources = source_status(site)
    if not any(one.trouble for one in sources):
        gauges[exporter.SOURCE_READABLE] = 1
        with suppress(LedgerError), closing(last_loaded(site.ledgers)) as jobs:
            gauges[exporter.ROWS] = jobs.count(Window())  # unknown else, as the round has said
    of_sources = {at: value for one in sources for at, value in _of_source(one).items()}
    return Measured(target="", gauges=gauges, added={}, labelled=of_sources)


def _of_source(one: SourceStatus) -> Mapping[tuple[str, str], float | None]:
    gauges: dict[str, float | None] = {
        exporter.SOURCE_NEWEST: None if one.newest is None else one.newest.ended_at,
        exporter.SOURCE_SILENT: bool(one.silence),
    }
    if one.last is not None:
        gauges |= {
            exporter.SOURCE_READ: _seconds(one.last.succeeded),
            exporter.SOURCE_SET_ASIDE: one.last.bad_lines,
            exporter.SOURCE_WAITING: max((each.jobs for each in one.last.awaited), default=0),
        }
    return {(name, one.name): value for name, value in gauges.items()}


def _of_day(site: Site, *, readable: bool) -> Sequence[Measured]:
    """What jobs used that ended in the last 24 whole hours: hourly, because each one is read.

    Nothing is asked of unreadable data: a lock on it would be waited for once more.
    """
    end = Epoch(epoch(site.process.clock()) // _HOUR_S * _HOUR_S)
    if StoredMetric(target="", name=_DAY_END, label="", value=end) in _kept(site.ledgers):
        return ()
    names = (*_OF_DAY, *_OF_MONTH)
    unknown = Measured(target="", gauges=dict.fromkeys(names), added={})
    if not readable:
        return (unknown,)
    window = Window(start=Epoch(end - DAY_S), end=end)
    tally = UsageReport(window, site.records.policy, (), site.records.power)
    with closing(last_loaded(site.ledgers)) as jobs:  # the round has loaded it
        tally.read(jobs)
        months = _of_months(site, jobs, end)
        allocations = used_allocations(
            site, jobs, [one for one in site.records.allocations if end in one.window]
        )
    labelled = dict(_of_usage(site.records, tally.usage, end))
    fullest_last = sorted(allocations, key=attrgetter("share"))
    labelled |= {
        (exporter.ALLOCATION, f"{one.project}\n{one.unit}"): one.share for one in fullest_last
    }
    labelled |= months
    return (Measured(target="", gauges=dict.fromkeys(names), added={}, labelled=labelled),)


def _of_months(site: Site, jobs: UsageReader, end: Epoch) -> Values:
    """Return what the jobs of this month used until now, and those of the month before.

    The latter changes by late jobs only: it is read once a day.
    Raises: LedgerError.
    """
    month, day = month_of(datetime.fromtimestamp(end - 1, UTC)), end // DAY_S
    values: Values = {(_MONTH_DAY, ""): day}
    kept = _kept(site.ledgers)
    windows = {str(month): Window(start=epoch(month.start), end=end)}
    if StoredMetric(target="", name=_MONTH_DAY, label="", value=day) in kept:
        before = f"\n{month.previous}"
        values |= {
            (one.name, one.label): one.value
            for one in kept
            if one.name in _OF_MONTH and one.label.endswith(before)
        }
    else:
        windows[str(month.previous)] = month.previous.window
    for name, window in windows.items():
        tally = UsageReport(window, site.records.policy, (), power=None, names_users=False)
        tally.read(jobs)
        for metrics, parts in ((_OF_VOS, tally.usage.vos), (_OF_PROJECTS, tally.usage.projects)):
            for part, used in parts.items():
                values |= dict(_month_values(metrics, part, name, used))
    return values


def _month_values(
    metrics: tuple[str, str, str, str], part: str, month: str, used: Used
) -> Iterator[tuple[tuple[str, str], float]]:
    jobs, core_s, cpu_s, work = metrics
    at = f"{part}\n{month}"
    yield (jobs, at), used.jobs
    yield (core_s, at), used.wall_core_s
    yield (cpu_s, at), used.cpu_s
    for kind, thousandths in used.scaled.items():
        yield (work, f"{part}\n{kind}\n{month}"), thousandths / 1000


def _of_usage(
    records: SiteRecords, usage: PeriodUsage, end: Epoch
) -> Iterator[tuple[tuple[str, str], float]]:
    yield (_DAY_END, ""), end
    for vo, used in usage.vos.items():
        yield (exporter.DAY_JOBS, vo), used.jobs
        if usage.total.gpu_jobs:  # else it may not be known
            yield (exporter.DAY_GPU_JOBS, vo), used.gpu_jobs
            yield (exporter.DAY_GPU_SECONDS, vo), used.gpu_s
        if records.power is not None and used.energy_unknown < used.jobs:
            yield (exporter.DAY_ENERGY, f"{vo}\nmeasured"), float(used.measured_wh * _HOUR_S)
            yield (exporter.DAY_ENERGY, f"{vo}\nestimated"), float(used.estimated_wh * _HOUR_S)
        if records.power is not None and used.carbon_unknown < used.jobs:
            yield (exporter.DAY_CARBON, vo), float(used.carbon_g)


def _size(ledgers: Ledgers) -> float | None:
    """Of the ledger, with what is still in its log: up to 4 MB while somebody has it open."""
    path = ledgers.state
    try:
        return path.stat().st_size + sum(
            log.stat().st_size for log in path.parent.glob(f"{escape(path.name)}-wal")
        )
    except OSError:
        return None


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
